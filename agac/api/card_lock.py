"""`agac card lock`: what the MCP servers of a card offer, written into a file for review, from which plans are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agac.api.project import Project, open_project
from agac.api.sync import blocking
from agac.core.errors import SpecError, UsageError, any_error, did_you_mean
from agac.core.types import Report
from agac.data.files import write_whole
from agac.spec.agent_cards import find_card, read_card
from agac.spec.mcp_lock import ServerLock, difference, lock_file, lock_text, read_lock
from agac.spec.paths import Refused, is_reference
from agac.spec.stage_tools import card_servers
from agac.tools.mcp import listed_servers


@dataclass(frozen=True, slots=True)
class LockReport(Report):
    """The lock file of a card, or of a server of agac.yml. `servers` are the tools of each by its name, and `changes`
    what the file did not say so before, in lines. `written`: the file says it now."""

    name: str
    file: str
    servers: dict[str, list[str]]
    changes: dict[str, str]
    written: bool


@blocking
async def lock_card(
    name: str, *, check: bool = False, trust_card: bool = False, project: Path | str | None = None
) -> LockReport:
    """Connects the MCP servers of the card that is called `name`, or at that address, or of agac.yml with that name,
    and writes what they offer; with `check` it only compares. Raises UsageError: one cannot be reached; SpecError."""
    return await _locked(name, open_project(project), check=check, trusted=trust_card)


async def lock_given(name: str, opened: Project) -> None:
    """Writes the lock of a server that a program gave, where there is none yet: it stands with the cards, too."""
    if not lock_file(opened.spec.paths.agentcards / name).exists():
        await _locked(name, opened, check=False)


async def _locked(name: str, opened: Project, *, check: bool, trusted: bool = False) -> LockReport:
    if any_error(opened.problems):
        raise SpecError(opened.problems)
    try:
        remote = opened.spec.fetch(name, "card")[0] if is_reference(name) else None
    except Refused as error:
        raise UsageError(str(error)) from None
    path, message = (remote.path, "") if remote else find_card(name, opened.spec)
    if path is not None:
        keys, document, _, problems = read_card(path, opened.spec, remote, trusted=trusted)
        if any_error(problems):
            raise SpecError(problems)
        path = opened.spec.paths.agentcards / f"{keys.name}.md" if remote else path
        if not (servers := card_servers(keys, opened.spec)):
            raise UsageError(f"{document.shown} uses no MCP server", remedy="Only cards that do have a lock.")
    elif name in (known := opened.spec.file.mcp):
        path, servers = opened.spec.paths.agentcards / name, card_servers([name], opened.spec)
    else:
        more = f", and no MCP server of agac.yml; {did_you_mean(name, known, 'servers')}" if known else ""
        raise UsageError(message + more)
    locks = await listed_servers(servers, opened.root, opened.env)
    file, text = lock_file(path), lock_text(locks)
    shown = opened.spec.shown(file)
    changes = _changes(file, shown, locks)
    if written := not check and (not file.exists() or file.read_text(encoding="utf-8") != text):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
    return LockReport(name, shown, {key: sorted(one.tools) for key, one in locks.items()}, changes, written)


def _changes(file: Path, shown: str, locks: dict[str, ServerLock]) -> dict[str, str]:
    try:
        before = read_lock(file, shown, "")
    except UsageError:
        before = {}
    found = dict.fromkeys(before.keys() - locks, "is locked, and used no longer")
    found |= dict.fromkeys(locks.keys() - before, "is new")
    for name in before.keys() & locks:
        if lines := difference(before[name], locks[name]):
            found[name] = f"changed:\n{lines}"
    return dict(sorted(found.items()))
