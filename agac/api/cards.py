"""`agac card`: shows what a model will see of an AgentCard, and writes down what its MCP servers
offer, for review."""

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
from agac.plan.agent_tools import with_tools
from agac.providers.model_string import parse_model
from agac.spec.agent_cards import Card, find_card, load_card, read_card
from agac.spec.card_types import card_parts, most_calls
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
from agac.spec.project import Overrides
from agac.spec.project_files import required_text
from agac.spec.rule_models import RowBudgetFile
from agac.spec.stage_order import ordered
from agac.spec.stage_tools import card_servers
from agac.spec.stages import StageBuilder
from agac.spec.tools import McpServer
from agac.spec.workflow import WrittenStage
from agac.tools.mcp import listed_servers

PLACEHOLDER_PROBLEMS = ("unknown placeholder", "unknown variable")
"""How problems begin that `--var` may solve."""


@dataclass(frozen=True, slots=True)
class CardReport(Report):
    """An AgentCard as a run would use it. A card of another `type` becomes `stages`."""

    name: str
    """Its name."""

    file: str
    """The path of its file."""

    description: str | None
    """Its description."""

    model: str | None
    """Its model, as the card names it."""

    params: dict[str, Any]
    """Parameters of its requests."""

    system: str | None
    """The message that the model gets before every row."""

    messages: list[dict[str, str]]
    """The examples after it."""

    means: str | None
    """What a short name in `model` stands for."""

    warnings: Annotated[list[Problem], lambda problems: list(map(str, problems))]
    """What a run would warn of."""

    tools: list[dict[str, Any]]
    """What the model may call."""

    max_turns: int | None
    """So many replies of the model for a row at most; None without tools."""

    estimated_tokens: int
    """About the length of the messages and tools."""

    type: str = "agent"
    """The kind of the card."""

    stages: Sequence[dict[str, Any]] = ()
    """The stages that a card of another type becomes."""

    most_calls: int | None = None
    """So many calls those make for a row at most."""


@typed
def show_card(
    name: str, *, variables: dict[str, str] | None = None, project: Path | str | None = None
) -> CardReport:
    """Shows the card called `name`, filled with `variables`. Raises UsageError if there is none,
    SpecError if it is bad."""
    opened = open_project(project, sound=True)
    path, message = find_card(name, opened.spec)
    if path is None:
        raise UsageError(message)
    report = _pattern_report(name, path, opened, variables or {})
    if report is not None:
        return report
    card, problems = load_card(path, opened.spec, variables or {})
    if card is None:
        raise _unusable_card(problems)
    return _agent_report(card, problems, opened, variables or {})


def _unusable_card(problems: list[Problem]) -> SpecError:
    """Makes the error for a card that cannot be loaded."""
    error = SpecError(problems)
    if any(problem.message.startswith(PLACEHOLDER_PROBLEMS) for problem in problems):
        error.remedy = (
            "In a run the workflow's vars fill the card; give them here with --var NAME=VALUE."
        )
    return error


def _agent_report(
    card: Card, problems: list[Problem], opened: Project, variables: dict[str, str]
) -> CardReport:
    """Describes a card that is asked as one stage. Raises SpecError."""
    params, means, model_problems = _model_of(card, problems, opened)
    examples = [{"role": each.role, "text": each.content.render({})} for each in card.messages]
    builder = StageBuilder(
        opened.spec, card.document, WorkflowFile.model_construct(), variables, Overrides()
    )
    stage = builder.of_card(card, card.name, ())
    problems = [*problems, *model_problems, *builder.problems]
    if any_error(problems):
        raise SpecError(problems)
    agent, tooling = with_tools(stage, (), opened.root)
    specs = agent.tools if agent else ()
    tools = [asdict(tool.definition) | {"kind": tool.kind, "source": tool.source} for tool in specs]
    return CardReport(
        name=card.name,
        file=card.file,
        description=card.keys.description,
        model=card.keys.model,
        params=params,
        system=card.instruction,
        messages=examples,
        means=means,
        warnings=problems,
        tools=tools,
        max_turns=tooling.max_turns if agent else None,
        estimated_tokens=_length(card, examples, tools) // CHARACTERS_A_TOKEN,
        type=card.kind,
    )


def _model_of(
    card: Card, problems: list[Problem], opened: Project
) -> tuple[dict[str, Any], str | None, list[Problem]]:
    """Resolves the model of a card: its parameters, what its short name stands for, and problems.

    Raises SpecError, with the other `problems` too, if the model does not exist."""
    params = dict(card.params)
    if card.keys.model is None:
        return params, None, []
    ref, messages = parse_model(card.keys.model, opened.providers, opened.spec.file.aliases)
    where = card.where["model"]
    errors = [Problem(where, text) for text in messages]
    if ref is None:
        raise SpecError([*problems, *errors])
    warnings = [Problem(where, text, "warning") for text in ref.warnings]
    means = ref.meaning if ref.written is not None else None
    params |= ref.params
    return params, means, [*errors, *warnings]


def _length(card: Card, examples: Sequence[dict[str, str]], tools: Sequence[dict[str, Any]]) -> int:
    """Counts the characters of all that the model gets before a row."""
    texts = [
        card.instruction or "",
        *(example["text"] for example in examples),
        *map(canonical, tools),
    ]
    return len("".join(texts))


def _pattern_report(
    name: str, path: Path, opened: Project, variables: dict[str, str]
) -> CardReport | None:
    """Describes a card that becomes several stages; gives None for another one. Raises
    SpecError."""
    keys, document, *_ = read_card(path, opened.spec, None, trusted=False)
    written = StageFile.model_construct(
        {"name", "agent", "prompt"}, name=path.stem, agent=name, prompt="${message}"
    )
    parts, problems = card_parts([written], document, opened.spec)
    if path.stem not in parts:
        return None
    nodes, _ = ordered([written], document, parts)
    # what bounds a planner without a limit of its own is the business of its workflow
    file = WorkflowFile.model_construct(stages=[written], row_budget=RowBudgetFile(turns=1))
    builder = StageBuilder(opened.spec, document, file, variables, Overrides(), problems, parts)
    built = [builder.stage(node, n) for n, node in enumerate(nodes)]
    if any_error(problems):
        raise SpecError(problems)
    stages = [_stage_line(stage) for stage in built if stage is not None]
    return CardReport(
        name=str(keys.name),
        file=opened.spec.shown(path),
        description=keys.description,
        model=None,
        params={},
        system=None,
        messages=[],
        means=None,
        warnings=problems,
        tools=[],
        max_turns=None,
        estimated_tokens=0,
        type=keys.type,
        stages=stages,
        most_calls=most_calls(parts[path.stem], {each["name"]: each["calls"] for each in stages}),
    )


def _stage_line(stage: WrittenStage) -> dict[str, Any]:
    """Describes a stage that a card becomes."""
    return {
        "name": stage.name,
        "needs": stage.needs,
        "does": stage.operation.key if stage.operation else stage.model,
        "agent": stage.card.name if stage.card else None,
        "when": stage.guard.text if stage.guard else None,
        "amends": stage.amends,
        "calls": stage.replicas * stage.most_turns if stage.asks else 0,
    }


@dataclass(frozen=True, slots=True)
class LockReport(Report):
    """The lock file of a card, or of a server of agac.yml."""

    name: str
    """The name of the card or the server."""

    file: str
    """The path of the lock file."""

    servers: dict[str, list[str]]
    """The tools of each server by its name."""

    changes: dict[str, str]
    """What the file did not say so before, by server, in lines."""

    written: bool
    """True if the file says it now."""

    told_otherwise: list[str] = field(default_factory=list)
    """Tools that models see in another form, since providers refuse the server's, with the
    difference."""


@blocking
async def lock_card(
    name: str, *, check: bool = False, trust_card: bool = False, project: Path | str | None = None
) -> LockReport:
    """Connects the MCP servers of the card that is called `name`, or at that address, or of
    agac.yml with that name, and writes what they offer; with `check` it only compares.

    Raises UsageError if one cannot be reached; SpecError."""
    return await _locked(name, open_project(project), check=check, trusted=trust_card)


async def lock_given(name: str, opened: Project) -> None:
    """Writes the lock of a server that a program gave, if there is none yet, into the folder of
    the cards."""
    if not lock_file(opened.spec.paths.agentcards / name).exists():
        await _locked(name, opened, check=False)


async def _locked(name: str, opened: Project, *, check: bool, trusted: bool = False) -> LockReport:
    """Asks servers for their tools, compares these with the lock file, and writes it unless
    `check`."""
    if any_error(opened.problems):
        raise SpecError(opened.problems)
    path, servers = _servers_of(name, opened, trusted=trusted)
    locks = await listed_servers(servers, opened.root, opened.env)
    file = lock_file(path)
    text = lock_text(locks)
    shown = opened.spec.shown(file)
    home = home_of(opened.root)
    changes = _changes(file, shown, locks, home)
    is_current = lexists(file) and required_text(file, shown, home) == text
    written = not check and not is_current
    if written:
        write_in_project(file, text, shown, home)
    return LockReport(
        name,
        shown,
        {key: sorted(lock.tools) for key, lock in locks.items()},
        changes,
        written,
        list(_told_otherwise(servers, locks, shown)),
    )


def _servers_of(name: str, opened: Project, *, trusted: bool) -> tuple[Path, list[McpServer]]:
    """Finds the servers of a card or of agac.yml, and the file whose lock they have. Raises
    UsageError and SpecError."""
    try:
        remote = opened.spec.fetch(name, "card")[0] if is_reference(name) else None
    except Refused as error:
        raise UsageError(str(error)) from None
    cards = opened.spec.paths.agentcards
    path, message = (remote.path, "") if remote else find_card(name, opened.spec)
    if path is None:
        configured = opened.spec.file.mcp
        if name in configured:
            return cards / name, card_servers([name], opened.spec)
        if configured:
            hint = did_you_mean(name, configured, "servers")
            message += f", and no MCP server of agac.yml; {hint}"
        raise UsageError(message)
    keys, document, _, problems = read_card(path, opened.spec, remote, trusted=trusted)
    if any_error(problems):
        raise SpecError(problems)
    servers = card_servers(keys, opened.spec)
    if not servers:
        raise UsageError(
            f"{document.shown} uses no MCP server", remedy="Only cards that do have a lock."
        )
    return cards / f"{keys.name}.md" if remote else path, servers


def _told_otherwise(
    servers: Sequence[McpServer], locks: dict[str, ServerLock], shown: str
) -> Iterator[str]:
    """Yields what is to be said of the tools in a lock; what makes a tool unusable is reported
    where it is used."""
    try:
        yield from told_otherwise(locked_tools(servers, locks, shown, "")[0])
    except UsageError:
        return


def _changes(file: Path, shown: str, locks: dict[str, ServerLock], home: Path) -> dict[str, str]:
    """Compares servers with the lock file: by their names, what is new, changed or gone."""
    try:
        before = read_lock(file, shown, "", home)
    except UsageError:
        before = {}
    changes = dict.fromkeys(before.keys() - locks, "is locked, and used no longer")
    changes |= dict.fromkeys(locks.keys() - before, "is new")
    for name in before.keys() & locks:
        lines = difference(before[name], locks[name])
        if lines:
            changes[name] = f"changed:\n{lines}"
    return dict(sorted(changes.items()))
