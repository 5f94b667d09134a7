"""`agac card`: what a model will see of an AgentCard, and what its MCP servers offer, in a file
for review."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any

from agac.api.project import Project, open_project
from agac.api.sync import blocking
from agac.core.arguments import typed
from agac.core.errors import Problem, SpecError, UsageError, any_error, did_you_mean
from agac.core.keys import canonical
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import Report
from agac.data.files import write_in_project
from agac.plan.plan import with_tools
from agac.providers.model_string import parse_model
from agac.spec.agent_cards import find_card, load_card, read_card
from agac.spec.card_types import card_parts, most_calls
from agac.spec.graph import graph
from agac.spec.mcp_lock import (
    ServerLock,
    difference,
    lock_file,
    lock_text,
    locked_tools,
    read_lock,
    told_otherwise,
)
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.paths import Refused, home_of, is_reference
from agac.spec.project_files import required_text
from agac.spec.rule_models import RowBudgetFile
from agac.spec.stage_tools import card_servers
from agac.spec.stages import StageBuilder
from agac.spec.tools import McpServer
from agac.spec.workflow import Overrides
from agac.tools.mcp import listed_servers


@dataclass(frozen=True, slots=True)
class CardReport(Report):
    """An AgentCard as a run would use it: `system` is the message that the model gets before every
    row, `messages` the examples after it. `means` is what a short name in `model` stands for.
    `tools` are what the model may call, in at most `max_turns` replies; all of it is about
    `estimated_tokens` long. A card of another `type` becomes `stages`, which make `most_calls` for
    a row at most."""

    name: str
    file: str
    description: str | None
    model: str | None
    params: dict[str, Any]
    system: str | None
    messages: list[dict[str, str]]
    means: str | None
    warnings: Annotated[list[Problem], lambda problems: list(map(str, problems))]
    tools: list[dict[str, Any]]
    max_turns: int | None
    estimated_tokens: int
    type: str = "agent"
    stages: Sequence[dict[str, Any]] = ()
    most_calls: int | None = None


@typed
def show_card(
    name: str, *, variables: dict[str, str] | None = None, project: Path | str | None = None
) -> CardReport:
    """The card called `name`, filled with `variables`. Raises UsageError when there is none,
    SpecError if it is bad."""
    opened = open_project(project, sound=True)
    path, message = find_card(name, opened.spec)
    if path is None:
        raise UsageError(message)
    report = _several(name, path, opened, variables or {})
    if report is not None:
        return report
    card, problems = load_card(path, opened.spec, variables or {})
    if card is None:
        failure = SpecError(problems)
        if any(
            problem.message.startswith(("unknown placeholder", "unknown variable"))
            for problem in problems
        ):
            failure.remedy = (
                "In a run the workflow's vars fill the card; give them here with --var NAME=VALUE."
            )
        raise failure
    params = dict(card.params)
    means = None
    if card.keys.model is not None:
        ref, messages = parse_model(card.keys.model, opened.providers, opened.spec.file.aliases)
        where = card.where["model"]
        problems += [Problem(where, text) for text in messages]
        if ref is None:
            raise SpecError(problems)
        problems += [Problem(where, text, "warning") for text in ref.warnings]
        params |= ref.params
        means = ref.meaning if ref.written is not None else None
    examples = [{"role": one.role, "text": one.content.render({})} for one in card.messages]
    builder = StageBuilder(
        opened.spec, card.document, WorkflowFile.model_construct(), variables or {}, Overrides()
    )
    stage = builder.of_card(card, card.name, ())
    problems += builder.problems
    if any_error(problems):
        raise SpecError(problems)
    agent, tooling = with_tools(stage, (), opened.root)
    specs = agent.tools if agent else ()
    tools = [asdict(tool.definition) | {"kind": tool.kind, "source": tool.source} for tool in specs]
    length = len(
        "".join(
            [card.instruction or "", *(one["text"] for one in examples), *map(canonical, tools)]
        )
    )
    return CardReport(
        card.name,
        card.file,
        card.keys.description,
        card.keys.model,
        params,
        card.instruction,
        examples,
        means,
        problems,
        tools,
        tooling.max_turns if agent else None,
        length // CHARACTERS_A_TOKEN,
        card.kind,
    )


def _several(
    name: str, path: Path, opened: Project, variables: dict[str, str]
) -> CardReport | None:
    """The report of a card that becomes several stages; None of another one. Raises SpecError."""
    keys, document, *_ = read_card(path, opened.spec, None, trusted=False)
    written = StageFile.model_construct(
        {"name", "agent", "prompt"}, name=path.stem, agent=name, prompt="${message}"
    )
    parts, problems = card_parts([written], document, opened.spec)
    if path.stem not in parts:
        return None
    nodes, _ = graph([written], document, parts)
    # what bounds a planner without a limit of its own is the business of its workflow
    file = WorkflowFile.model_construct(stages=[written], row_budget=RowBudgetFile(turns=1))
    builder = StageBuilder(opened.spec, document, file, variables, Overrides(), problems, parts)
    stages = [one for n, node in enumerate(nodes) if (one := builder.stage(node, n)) is not None]
    if any_error(problems):
        raise SpecError(problems)
    shown: list[dict[str, Any]] = [
        {
            "name": one.name,
            "needs": one.needs,
            "does": one.operation.key if one.operation else one.model,
            "agent": one.card.name if one.card else None,
            "when": one.guard.text if one.guard else None,
            "amends": one.amends,
            "calls": one.replicas * one.most_turns if one.asks else 0,
        }
        for one in stages
    ]
    most = most_calls(parts[path.stem], {one["name"]: one["calls"] for one in shown})
    return CardReport(
        str(keys.name),
        opened.spec.shown(path),
        keys.description,
        None,
        {},
        None,
        [],
        None,
        problems,
        [],
        None,
        0,
        keys.type,
        shown,
        most,
    )


@dataclass(frozen=True, slots=True)
class LockReport(Report):
    """The lock file of a card, or of a server of agac.yml. `servers` are the tools of each by its
    name, and `changes` what the file did not say so before, in lines. `written`: the file says it
    now."""

    name: str
    file: str
    servers: dict[str, list[str]]
    changes: dict[str, str]
    written: bool
    told_otherwise: list[str] = field(default_factory=list)
    """Tools of which models are told in a form of its own, since providers refuse the server's,
    with what differs."""


@blocking
async def lock_card(
    name: str, *, check: bool = False, trust_card: bool = False, project: Path | str | None = None
) -> LockReport:
    """Connects the MCP servers of the card that is called `name`, or at that address, or of
    agac.yml with that name, and writes what they offer; with `check` it only compares. Raises
    UsageError: one cannot be reached; SpecError."""
    return await _locked(name, open_project(project), check=check, trusted=trust_card)


async def lock_given(name: str, opened: Project) -> None:
    """Writes the lock of a server that a program gave, where there is none yet: it stands with the
    cards, too."""
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
        servers = card_servers(keys, opened.spec)
        if not servers:
            raise UsageError(
                f"{document.shown} uses no MCP server", remedy="Only cards that do have a lock."
            )
    elif name in (known := opened.spec.file.mcp):
        path = opened.spec.paths.agentcards / name
        servers = card_servers([name], opened.spec)
    else:
        if known:
            more = f", and no MCP server of agac.yml; {did_you_mean(name, known, 'servers')}"
        else:
            more = ""
        raise UsageError(message + more)
    locks = await listed_servers(servers, opened.root, opened.env)
    file = lock_file(path)
    text = lock_text(locks)
    shown = opened.spec.shown(file)
    home = home_of(opened.root)
    changes = _changes(file, shown, locks, home)
    written = not check and not (lexists(file) and required_text(file, shown, home) == text)
    if written:
        write_in_project(file, text, shown, home)
    otherwise = list(_told_otherwise(servers, locks, shown))
    return LockReport(
        name,
        shown,
        {key: sorted(one.tools) for key, one in locks.items()},
        changes,
        written,
        otherwise,
    )


def _told_otherwise(
    servers: Sequence[McpServer], locks: dict[str, ServerLock], shown: str
) -> Iterator[str]:
    """What is to be said of the tools in a lock; what makes a tool unusable is said where it is
    used."""
    try:
        yield from told_otherwise(locked_tools(servers, locks, shown, "")[0])
    except UsageError:
        return


def _changes(file: Path, shown: str, locks: dict[str, ServerLock], home: Path) -> dict[str, str]:
    try:
        before = read_lock(file, shown, "", home)
    except UsageError:
        before = {}
    found = dict.fromkeys(before.keys() - locks, "is locked, and used no longer")
    found |= dict.fromkeys(locks.keys() - before, "is new")
    for name in before.keys() & locks:
        lines = difference(before[name], locks[name])
        if lines:
            found[name] = f"changed:\n{lines}"
    return dict(sorted(found.items()))
