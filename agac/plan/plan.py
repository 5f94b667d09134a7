"""A Plan: a workflow with everything resolved that its rows will need, made from files or from a
stored run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import count
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from agac.core.errors import UsageError
from agac.core.keys import Fingerprinter, canonical, definition_hash, digest, params_body, snapshot
from agac.core.types import JSONValue, Params, Schema, Shard
from agac.plan.stage import (
    CHOOSING_ROWS,
    AnyStage,
    LocalStage,
    PlannedModel,
    PlannedStage,
    RecordedStage,
    agent_body,
    definition,
    ends_of,
    recorded_stages,
    stage_body,
    tupled,
)
from agac.providers.backend import at_backend
from agac.providers.provider import Provider
from agac.spec.data_specs import InputSpec, OutputSpec
from agac.spec.guards import STORED, Guard, compile_guard
from agac.spec.json_schema import field_shape
from agac.spec.operations import Filter, Operation, Python, Review, Select
from agac.spec.output_schema import Resolved, lacks_field, resolve_schema, same_schema
from agac.spec.paths import Refused, RemoteContent, home_of
from agac.spec.project_files import files_hash
from agac.spec.python_code import EDITED, FunctionRef, same_function
from agac.spec.rules import RunRules
from agac.spec.tool_schemas import safe_name
from agac.spec.tools import AgentSpec, NamedTool, ToolRules, ToolSettings, ToolSpec
from agac.spec.workflow import PythonSchema, Stage, StageSettings, Workflow, WrittenStage, family

DEFAULT_CONCURRENCY = 32
"""Calls in flight when nobody says otherwise: busy enough for a hosted model, gentle to a local
one."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the input take part; None: all. `offset` counts records from 0. First `offset`
    rows are skipped, then `sample` of the others are drawn with `seed`, then the first `limit`
    taken; of those one `shard`."""

    limit: int | None = None
    offset: int = 0
    sample: int | None = None
    seed: int = 0
    shard: Shard | None = None

    def __post_init__(self) -> None:
        if self.shard is not None:  # JSON has a list
            object.__setattr__(self, "shard", Shard(*self.shard))

    @property
    def partial(self) -> bool:
        """Whether rows may be left out: such a run writes to a preview folder."""
        return (
            self.limit is not None
            or self.offset > 0
            or self.sample is not None
            or self.shard is not None
        )

    def taken(self, rows: int) -> int:
        """How many of so many rows take part, `offset` not counted; of a shard about so many."""
        most = min(bound for bound in (rows, self.sample, self.limit) if bound is not None)
        return most if self.shard is None else most // self.shard.of

    def text(self) -> str:
        """Canonical JSON: part of a run's identity."""
        drawn: dict[str, object] = (
            {} if self.sample is None else {"sample": self.sample, "seed": self.seed}
        )
        drawn |= {} if self.shard is None else {"shard": self.shard}
        return canonical(
            {"limit": self.limit, "offset": self.offset, **drawn} if self.partial else {}
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do. `body` is the resolved definition, `hash` its part in the run's
    identity."""

    workflow: str
    input: InputSpec
    output: OutputSpec
    stages: tuple[AnyStage, ...]
    vars: Mapping[str, JSONValue]
    selection: Selection
    concurrency: int
    body: dict[str, Any]
    hash: bytes
    rules: RunRules
    remote: tuple[RemoteContent, ...] = ()

    @property
    def asking(self) -> tuple[PlannedStage, ...]:
        """The stages that call a model."""
        return tuple(stage for stage in self.stages if isinstance(stage, PlannedStage))

    @property
    def ends(self) -> tuple[AnyStage, ...]:
        """The stages whose results are a row's result: one alone, of several an object by their
        names."""
        return tuple(stage for stage in self.stages if stage.name in self.output.stages)


# the models that each stage calls one after the other, by its name
Models = Mapping[str, tuple[PlannedModel, ...]]


def make_plan(
    workflow: Workflow,
    models: Models,
    root: Path,
    selection: Selection,
    concurrency: int | None,
    *,
    untrusted: bool = False,
) -> Plan:
    """The plan of a workflow that was checked. Imports Python of the project, unless that is
    `untrusted`: the plan then is only good for looking at. `concurrency` is the command line's."""
    written = (
        _stage(one, models, root, untrusted) if one.asks else local_stage(one)
        for one in workflow.stages
    )
    stages = numbered(written)
    if not concurrency:  # rows that walk at a time: enough to fill the widest stage
        asking = (stage for stage in stages if isinstance(stage, PlannedStage))
        wanted = (
            s.settings.concurrency or s.provider.limits.concurrency or DEFAULT_CONCURRENCY
            for s in asking
        )
        concurrency = max(wanted, default=DEFAULT_CONCURRENCY)
    body = definition(workflow, stages)
    return Plan(
        workflow=workflow.name,
        input=workflow.input,
        output=workflow.output,
        stages=stages,
        vars=workflow.vars,
        selection=selection,
        concurrency=concurrency,
        body=body,
        hash=definition_hash(body),
        rules=workflow.rules,
        remote=workflow.remote,
    )


def local_stage(stage: Stage) -> LocalStage:
    """A stage that calls no model, ready to be run."""
    assert stage.operation is not None
    return LocalStage(**_fields_of(stage), prints=definition_hash(stage.operation.body()))


def planned_stage(
    stage: Stage,
    models: Sequence[PlannedModel],
    resolved: Resolved | None,
    python_schema: PythonSchema | None,
) -> PlannedStage:
    """A stage that calls these models one after the other, ready to be run; `resolved` is the
    schema of its answers."""
    first = models[0]
    schema = resolved.schema if resolved else None
    return PlannedStage(
        **{**_fields_of(stage), "schema": schema},
        models=tuple(models),
        extra_check=resolved.validate_extra if resolved else None,
        model=resolved.model if resolved else None,
        python_schema=python_schema,
        prints=Fingerprinter(
            first.provider.name,
            first.model,
            first.params,
            schema,
            stage.output_field,
            stage.reply,
            agent_body(stage),
        ),
    )


def _fields_of(stage: Stage) -> dict[str, Any]:
    """The fields that every kind of stage has, by name."""
    return {one.name: getattr(stage, one.name) for one in fields(Stage)}


def numbered(stages: Iterable[AnyStage]) -> tuple[AnyStage, ...]:
    """The stages, with agents that others call counted on after them."""
    own = tuple(stages)
    numbers = count(len(own))

    def with_numbers(stage: PlannedStage) -> PlannedStage:
        children = tuple(
            with_numbers(replace(child, index=next(numbers))) for child in stage.children
        )
        return replace(stage, children=children) if children else stage

    return tuple(with_numbers(stage) if isinstance(stage, PlannedStage) else stage for stage in own)


def _stage(stage: WrittenStage, models: Models, root: Path, untrusted: bool) -> PlannedStage:
    children = tuple(_stage(child, models, root, untrusted) for child in stage.children)
    agent_spec, tooling = with_tools(stage, children, root, untrusted=untrusted)
    settings = replace(stage.settings, tooling=tooling)
    stage = replace(stage, agent_spec=agent_spec, settings=settings)
    resolved = None
    written = stage.output_schema
    if written is not None:
        try:
            resolved = resolve_schema(written, root, untrusted=untrusted)
        except UsageError as error:
            place = f"{stage.at('output_schema')}: {stage.path}.output_schema"
            raise UsageError(f"{place}: {error.message}", remedy=error.remedy) from error
    voted = stage.vote and stage.vote.field
    if voted and resolved and (fault := lacks_field(resolved.schema.body, voted)):
        raise UsageError(f"{stage.at('vote')}: {stage.path}.vote: {fault}")
    python_schema = written if isinstance(written, PythonSchema) else None
    return replace(
        planned_stage(stage, models[stage.name], resolved, python_schema), children=children
    )


# How a run is resumed without the project's files: batches come back after days.
#
# `run_settings` is what a Plan holds beyond its definition, as JSON; `restored_plan` makes the same
# Plan of both and of the providers of today. Prompts, schemas, models and rules are those of the
# day on which the run began; what a definition keeps in another order (it is sorted) is held here
# as text. What is stored is made of the fields themselves: a new key is stored and read without a
# line here, one that an older run did not store is at its default.

_NO_BOUND = "none"  # an endless time-out: JSON has no infinity

_DEFINED = ("shown", "format", "id_field", "on_duplicate_id", "stages", "rows", *CHOOSING_ROWS)
"""Fields of the input and the output that are in the definition."""

_KEPT_WHERE_SET = (
    "delimiter",
    "encoding",
    "on_short_record",
    "bom",
    "places",
    "turns",
    "tool_calls",
    "max_open_rows",
    "linger",
    "tail",
    "files",
    "otel",
    "otel_sample",
    "otel_prompts",
    "notify",
    "how",
    "one_value",
    "program",
    "shard",
    "backend",
    "on_failure",
    "sources",
)
"""Keys that came later: what is stored where they are not set is what it was."""

_NOT_KEPT = ("where", "warnings", "allow_empty", "sql_at", "scratch")
"""Places are of the files of another day; warnings were shown; a run that goes on does not read
the input."""


def run_settings(plan: Plan, root: Path) -> dict[str, Any]:
    """What is kept with a run beside its definition: JSON, without secrets. Paths are relative to
    `root`."""
    beside = {
        name: {key: value for key, value in _plain(shown, root).items() if key not in _DEFINED}
        for name, shown in (("input", plan.input), ("output", plan.output))
    }
    return {
        "vars": snapshot(dict(plan.vars)),
        "selection": _plain(plan.selection, root),
        "concurrency": plan.concurrency,
        **beside,
        "rules": _plain(plan.rules, root),
        "stages": [_stage_settings(stage, root) for stage in plan.stages],
        **({"remote": _plain(plan.remote, root)} if plan.remote else {}),
    }


def _stage_settings(stage: AnyStage, root: Path) -> dict[str, Any]:
    own = {}
    for setting in fields(StageSettings):
        kept = setting.metadata["kept"]
        value = getattr(stage.settings, setting.name)
        if kept == "all" or (stage.asks and (kept == "asks" or value != setting.default)):
            own[setting.name] = _plain(value, root)
    if isinstance(stage, LocalStage):
        does = stage.operation
        if isinstance(does, Python):
            own |= {"processes": does.processes, "is_async": does.function.is_async}
            own |= {} if does.timeout is None else {"function_timeout": does.timeout}
        return own
    models = [
        {"provider": one.provider.name, "dialect": one.provider.dialect, **_plain(one, root)}
        for one in stage.models
    ]
    for ref in (one["ref"] for one in models if one["ref"]):  # in the order in which runs have it
        ref |= {key: ref.pop(key) for key in ("params", "idle_timeout")}
    schema = snapshot(stage.schema.body) if stage.schema else None
    own |= {"models": models, "schema": schema, "python_schema": _plain(stage.python_schema, root)}
    return own | (
        {"children": [_stage_settings(one, root) for one in stage.children]}
        if stage.children
        else {}
    )


def _plain(value: Any, root: Path) -> Any:
    """A value as JSON: a dataclass by its fields, of parameters those that are set; of a provider
    its name."""
    if isinstance(value, Path):  # one inside the project moves with it
        if value.is_relative_to(root):
            return value.relative_to(root).as_posix()
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _plain(inner, root) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, root) for inner in value]
    if isinstance(value, Provider):
        return value.name
    if isinstance(value, Params):
        return _plain(params_body(value), root)
    if is_dataclass(value):
        own = [
            (one.name, getattr(value, one.name), one.default)
            for one in fields(value)
            if one.name not in _NOT_KEPT
        ]
        return {
            name: _plain(held, root)
            for name, held, usual in own
            if name not in _KEPT_WHERE_SET or held not in (usual, {})
        }
    return _NO_BOUND if value == inf else value


_hints = cache(get_type_hints)


def remote_of(settings: Mapping[str, Any] | None, root: Path) -> tuple[RemoteContent, ...]:
    """What was fetched for a run, of its settings."""
    return tuple(_read(RemoteContent, one, root) for one in (settings or {}).get("remote", ()))


def _read(hint: Any, body: Any, root: Path) -> Any:
    """The value of this type that `_plain` wrote; what was not known when it was stored is at its
    default."""
    if get_origin(hint) in (Union, UnionType):
        if body is None:
            return None
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        hint = next(
            (kind for kind in kinds if is_dataclass(kind) == isinstance(body, Mapping)), kinds[0]
        )
    origin = get_origin(hint)
    if isinstance(body, Provider):  # that of today
        return body
    if is_dataclass(hint):
        hints = _hints(cast("Any", hint))
        read = {
            one.name: _read(hints[one.name], body[one.name], root)
            for one in fields(hint)
            if one.name in body
        }
        place = {"where": STORED} if hint is InputSpec else {}
        return cast("Any", hint)(**read, **place)
    if origin is tuple:
        return tuple(_read(get_args(hint)[0], inner, root) for inner in body)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        kind = get_args(hint)[1]
        if is_dataclass(kind):
            return {key: _read(kind, one, root) for key, one in body.items()}
        return tupled(body)
    if hint is Path:
        return root / body
    if hint is bytes:
        return bytes.fromhex(body)
    return inf if hint is float and body == _NO_BOUND else body


def restored_plan(
    workflow: str,
    definition: dict[str, Any],
    settings: Mapping[str, Any],
    providers: Mapping[str, Provider],
    root: Path,
    *,
    functions: bool = True,
) -> Plan:
    """The Plan that a run was made with. Imports Python schemas of the project. Without
    `functions` it is only good for reading answers: whatever became of functions of the project is
    not looked at. Raises UsageError when a provider is gone or speaks another dialect, or a
    function, a schema in Python or a file of an agent has changed."""
    variables = json.loads(settings["vars"])
    recorded = recorded_stages({**definition, "vars": variables})
    both = zip(recorded, settings["stages"], strict=True)
    stages = numbered(
        _restored_stage(stage, how, providers, root, functions=functions) for stage, how in both
    )
    ends = [stages[place].name for place in ends_of(definition)]
    source = {**definition["input"], "shown": definition["input"]["path"], **settings["input"]}
    target = {**settings["output"], "stages": ends, "rows": definition.get("rows")}
    return Plan(
        workflow=workflow,
        input=_read(InputSpec, source, root),
        output=_read(OutputSpec, target, root),
        stages=stages,
        vars=variables,
        selection=_read(Selection, settings["selection"], root),
        concurrency=settings["concurrency"],
        body=definition,
        hash=definition_hash(definition),
        rules=_read(RunRules, settings["rules"], root),
        remote=remote_of(settings, root),
    )


def _restored_stage(
    recorded: RecordedStage,
    how: Mapping[str, Any],
    providers: Mapping[str, Provider],
    root: Path,
    *,
    functions: bool,
) -> AnyStage:
    hints = _hints(StageSettings)
    settings = {name: _read(hints[name], how[name], root) for name in hints if name in how}
    stage = replace(
        recorded,
        settings=StageSettings(**settings),
        checks=tuple(replace(one, guard=_guard(one.guard.text)) for one in recorded.checks),
        guard=_guard(recorded.guard.text) if recorded.guard else None,
    )
    if stage.operation is not None:
        return local_stage(
            replace(stage, operation=_operation(stage.operation, how, root, functions=functions))
        )
    if functions:
        same_files(stage, root)
    models = [_restored_model(one, recorded.name, providers, root) for one in how["models"]]
    resolved = None
    python_schema = _read(PythonSchema | None, how["python_schema"], root)
    # as it was sent, its fields in their order
    if recorded.schema is not None and python_schema is None:
        resolved = Resolved(Schema(recorded.schema.name, json.loads(how["schema"])))
    elif recorded.schema is not None:  # with what a class of the project checks beyond it
        same_schema(python_schema, root)
        resolved = resolve_schema(python_schema, root)
    children = tuple(
        cast("PlannedStage", _restored_stage(one, inner, providers, root, functions=functions))
        for one, inner in zip(recorded.children, how.get("children", ()), strict=True)
    )
    return replace(planned_stage(stage, models, resolved, python_schema), children=children)


def _guard(text: str) -> Guard:
    guard, _ = compile_guard(text, STORED)
    assert guard is not None, "only a guard without problems is stored"
    return guard


def _operation(
    does: Operation, how: Mapping[str, Any], root: Path, *, functions: bool
) -> Operation:
    if isinstance(does, Filter):
        return Filter(_guard(does.guard.text))
    if isinstance(does, Review) and does.when is not None:
        return replace(does, when=_guard(does.when.text))
    if not isinstance(does, Python):
        return does
    if not functions:
        return Select(())
    function = replace(does.function, file=root / does.function.shown, is_async=how["is_async"])
    same_function(function, root)
    return Python(function, how["processes"], how.get("function_timeout"))


def _restored_model(
    body: Mapping[str, Any], stage: str, providers: Mapping[str, Provider], root: Path
) -> PlannedModel:
    name = body["provider"]
    dialect = body["dialect"]
    asks = f"stage {stage!r} of this run asks"
    if name not in providers:
        remedy = f"Put `providers: {{{name}: …}}` back into agac.yml."
        raise UsageError(
            f"{asks} {name}/{body['model']}, and there is no provider {name!r} any more",
            remedy=remedy,
        )
    provider = providers[name]
    if provider.dialect != dialect:
        remedy = f"Write `dialect: {dialect}` for it in agac.yml until the run is finished."
        message = f"{asks} {name}/{body['model']} in the dialect {dialect}"
        raise UsageError(f"{message}, and the provider's is {provider.dialect} now", remedy=remedy)
    model: PlannedModel = _read(PlannedModel, {**body, "provider": provider}, root)
    if model.backend:
        provider = at_backend(model.backend, providers)
    if model.ref is not None and model.ref.schema_mode is not None:
        provider = replace(provider, structured=model.ref.schema_mode)
    return replace(model, provider=provider)


_MESSAGE: dict[str, JSONValue] = field_shape("message") | {"additionalProperties": False}
"""What an agent is given whose card does not say."""

_NONE = AgentSpec()  # seconds of a call of an agent, whose conversation may take several replies
_CHILD_TIMEOUT = 600.0


def with_tools(
    stage: WrittenStage, children: Sequence[PlannedStage], root: Path, *, untrusted: bool = False
) -> tuple[AgentSpec | None, ToolSettings]:
    """What the model of a stage may call and how that is run; None where it has no tools. Imports
    functions of the project, unless that is `untrusted`: then no more is known of them than what
    stands for their source. `children`, where they are planned, tell their versions. Raises
    UsageError."""
    if stage.agent_spec is None:
        return None, stage.settings.tooling
    told = dict[str, ToolSpec]()
    rules = dict[str, ToolRules]()
    # whose names can be made longer
    for tool in sorted(stage.named_tools, key=lambda one: one.kind == "mcp"):
        try:
            spec, how = _told(tool, stage, children, root, untrusted=untrusted)
        except UsageError as error:
            raise UsageError(f"{tool.where}: {error.message}", remedy=error.remedy) from error
        if spec.name in told and tool.kind == "mcp":
            spec = replace(spec, name=spec.source.replace(":", "__", 1))
        if spec.name in told:
            message = (
                f"{tool.where}: two tools are called {spec.name!r}: "
                f"{told[spec.name].source} and {spec.source}"
            )
            raise UsageError(message, remedy="Rename one of them, or leave one out.")
        told[spec.name] = replace(spec, max_chars=tool.keys.get("max_chars", spec.max_chars))
        rules[spec.name] = how = replace(
            how, **{key: v for key, v in tool.keys.items() if key in ToolRules.__slots__}
        )
        if how.side_effects if how.cacheable else (how.ttl or how.cache == "persist"):
            needs = "side_effects: false" if how.cacheable else "cacheable: true"
            raise UsageError(
                f"{tool.where}: {spec.name} is cached only with {needs}",
                remedy="Write both, or neither.",
            )
    theirs = {
        tool.name
        for one in children
        for own in family(one)
        for tool in (own.agent_spec or _NONE).tools
    }
    for name in (
        stage.agent_spec.stubs.keys() - told - theirs if stage.agent_spec.mode == "stub" else ()
    ):
        remedy = f"Its tools are: {', '.join(sorted(told))}."
        raise UsageError(
            f"{stage.at('')}: tool_stubs has {name!r}, which is no tool of {stage.name}",
            remedy=remedy,
        )
    tools = tuple(told[name] for name in sorted(told))
    return replace(stage.agent_spec, tools=tools), replace(
        stage.settings.tooling, rules=dict(sorted(rules.items()))
    )


def same_files(stage: Stage, root: Path) -> None:
    """Raises UsageError when files that an agent's fingerprints stand for no longer hold what they
    did."""
    for known, patterns in stage.settings.tooling.files.items():
        with suppress(Refused):  # where they are gone
            if files_hash(home_of(root), patterns) == known:
                continue
        what = f"{', '.join(patterns)} of stage {stage.name!r}"
        raise UsageError(
            f"{what}: what it holds is not what it was when the run was made", remedy=EDITED
        )


def _told(
    tool: NamedTool,
    stage: WrittenStage,
    children: Sequence[PlannedStage],
    root: Path,
    *,
    untrusted: bool,
) -> tuple[ToolSpec, ToolRules]:
    """A tool as the model is told of it, and how it is run where nobody says. Raises UsageError."""
    from agac.tools.builtin import describe_builtin  # and what it needs, where there are tools
    from agac.tools.functions import import_function
    from agac.tools.tool_functions import declared_of, describe

    if tool.spec is not None:  # what a server says of its tools is never believed
        server = next(
            one
            for one in stage.settings.tooling.servers
            if one.name == tool.source.partition(":")[0]
        )
        return tool.spec, ToolRules(timeout=server.timeout, scope=server.scope, side_effects=True)
    if untrusted and isinstance(tool.function, FunctionRef):
        source = tool.function
        return ToolSpec(
            source.name, "", {}, "function", str(source), source.source_hash.hex()
        ), ToolRules()
    if tool.function is not None:
        found = tool.function
        if isinstance(found, FunctionRef):
            called = import_function(found, root)
        else:
            called = found
        return describe(found, root), declared_of(called).rules
    if tool.kind == "agent":
        card = next(one.card for one in stage.children if one.card and one.card.name == tool.source)
        assert stage.card is not None, "only a card names agents"
        own = stage.card.keys
        told = card.keys.description or f"Asks the agent {card.name}."
        version = ""
        for child in children:
            # by all that decides what it answers, not by its name
            if child.name == f"{stage.name}/{tool.source}":
                body = {
                    key: value
                    for key, value in stage_body(child).items()
                    if key not in ("name", "needs", "children")
                }
                version = digest(canonical(body)).hex()
        schema = card.keys.tool_input_schema or _MESSAGE
        spec = ToolSpec(safe_name(f"agent__{card.name}"), told, schema, "agent", card.name, version)
        return spec, ToolRules(
            timeout=own.child_timeout_sec or _CHILD_TIMEOUT, concurrency=own.max_parallel
        )
    return describe_builtin(tool.source, tool.settings, root), ToolRules(cacheable=True)
