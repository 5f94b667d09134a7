"""The tools that the model of a stage may call: what it is sent about them, and how they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agac.core.errors import UsageError
from agac.core.keys import canonical, digest
from agac.core.types import JSONValue
from agac.plan.stage import PlannedStage, stage_body
from agac.spec.json_schema import field_shape
from agac.spec.paths import Refused, home_of
from agac.spec.project_files import files_hash
from agac.spec.python_code import EDITED, FunctionRef
from agac.spec.tool_schemas import safe_name
from agac.spec.tools import AgentSpec, NamedTool, ToolRules, ToolSettings, ToolSpec
from agac.spec.workflow import Stage, WrittenStage, family

_MESSAGE: dict[str, JSONValue] = field_shape("message") | {"additionalProperties": False}
"""The arguments of an agent whose card does not declare any."""

_CHILD_TIMEOUT = 600.0
"""Seconds for a call of an agent, whose conversation may take several replies."""

DescribedTool = tuple[ToolSpec, ToolRules]
"""What the model is sent about a tool, and how the tool runs unless files say otherwise."""


def with_tools(
    stage: WrittenStage, children: Sequence[PlannedStage], root: Path, *, untrusted: bool = False
) -> tuple[AgentSpec | None, ToolSettings]:
    """Returns what the model of a stage may call and how that is run; None if it has no tools.

    Imports functions of the project, unless that is `untrusted`: then no more is known of them
    than the hash of their source. The `children` that are planned give the versions of agents.
    Raises UsageError."""
    if stage.agent_spec is None:
        return None, stage.settings.tooling
    specs = dict[str, ToolSpec]()
    rules = dict[str, ToolRules]()
    servers_last = sorted(stage.named_tools, key=lambda tool: tool.kind == "mcp")
    for tool in servers_last:  # their names can be made longer
        try:
            spec, default_rules = _described(tool, stage, children, root, untrusted=untrusted)
        except UsageError as error:
            raise UsageError(f"{tool.where}: {error.message}", remedy=error.remedy) from error
        spec = _with_own_name(spec, tool, specs)
        specs[spec.name] = replace(spec, max_chars=tool.keys.get("max_chars", spec.max_chars))
        rules[spec.name] = _rules_of(tool, default_rules, spec.name)
    _check_stubs(stage, stage.agent_spec, specs, children)
    tools = tuple(specs[name] for name in sorted(specs))
    tooling = replace(stage.settings.tooling, rules=dict(sorted(rules.items())))
    return replace(stage.agent_spec, tools=tools), tooling


def _with_own_name(spec: ToolSpec, tool: NamedTool, specs: Mapping[str, ToolSpec]) -> ToolSpec:
    """Returns the tool with a name that none of `specs` has. Raises UsageError if there is none."""
    if spec.name in specs and tool.kind == "mcp":
        spec = replace(spec, name=spec.source.replace(":", "__", 1))
    if spec.name in specs:
        other = specs[spec.name]
        raise UsageError(
            f"{tool.where}: two tools are called {spec.name!r}: {other.source} and {spec.source}",
            remedy="Rename one of them, or leave one out.",
        )
    return spec


def _rules_of(tool: NamedTool, default_rules: ToolRules, name: str) -> ToolRules:
    """Returns how a tool runs by its keys. Raises UsageError if these contradict each other."""
    keys = {key: value for key, value in tool.keys.items() if key in ToolRules.__slots__}
    rules = replace(default_rules, **keys)
    if rules.cacheable:
        contradicts = rules.side_effects
        needs = "side_effects: false"
    else:
        contradicts = bool(rules.ttl) or rules.cache == "persist"
        needs = "cacheable: true"
    if contradicts:
        raise UsageError(
            f"{tool.where}: {name} is cached only with {needs}", remedy="Write both, or neither."
        )
    return rules


def _check_stubs(
    stage: WrittenStage,
    agent: AgentSpec,
    specs: Mapping[str, ToolSpec],
    children: Sequence[PlannedStage],
) -> None:
    """Raises UsageError if a stand-in is for no tool of the stage, or of the agents it may call."""
    if agent.mode != "stub":
        return
    tools_of_children = {
        tool.name
        for child in children
        for member in family(child)
        if member.agent_spec is not None
        for tool in member.agent_spec.tools
    }
    for name in agent.stubs.keys() - specs.keys() - tools_of_children:
        raise UsageError(
            f"{stage.at('')}: tool_stubs has {name!r}, which is no tool of {stage.name}",
            remedy=f"Its tools are: {', '.join(sorted(specs))}.",
        )


def _described(
    tool: NamedTool,
    stage: WrittenStage,
    children: Sequence[PlannedStage],
    root: Path,
    *,
    untrusted: bool,
) -> DescribedTool:
    """Describes a tool. Raises UsageError."""
    if tool.spec is not None:
        return _server_tool(tool, tool.spec, stage)
    if untrusted and isinstance(tool.function, FunctionRef):
        return _unread_function(tool.function)
    if tool.function is not None:
        from agac.tools.functions import import_function  # and what it needs, if there are tools
        from agac.tools.tool_functions import declared_of, describe

        function = tool.function
        if isinstance(function, FunctionRef):
            function = import_function(function, root)
        return describe(tool.function, root), declared_of(function).rules
    if tool.kind == "agent":
        return _agent_tool(tool, stage, children)
    from agac.tools.builtin import describe_builtin

    return describe_builtin(tool.source, tool.settings, root), ToolRules(cacheable=True)


def _server_tool(tool: NamedTool, spec: ToolSpec, stage: WrittenStage) -> DescribedTool:
    """Describes a tool of an MCP server. What a server says of side effects is never believed."""
    name = tool.source.partition(":")[0]
    server = next(server for server in stage.settings.tooling.servers if server.name == name)
    return spec, ToolRules(timeout=server.timeout, scope=server.scope, side_effects=True)


def _unread_function(function: FunctionRef) -> DescribedTool:
    """Describes a function that may not be imported."""
    version = function.source_hash.hex()
    return ToolSpec(function.name, "", {}, "function", str(function), version), ToolRules()


def _agent_tool(
    tool: NamedTool, stage: WrittenStage, children: Sequence[PlannedStage]
) -> DescribedTool:
    """Describes an agent that the stage's model may call."""
    card = next(
        child.card for child in stage.children if child.card and child.card.name == tool.source
    )
    assert stage.card is not None, "only a card names agents"
    keys = stage.card.keys
    child_name = f"{stage.name}/{tool.source}"
    version = next((_version_of(child) for child in children if child.name == child_name), "")
    spec = ToolSpec(
        safe_name(f"agent__{card.name}"),
        card.keys.description or f"Asks the agent {card.name}.",
        card.keys.tool_input_schema or _MESSAGE,
        "agent",
        card.name,
        version,
    )
    timeout = keys.child_timeout_sec or _CHILD_TIMEOUT
    return spec, ToolRules(timeout=timeout, concurrency=keys.max_parallel)


def _version_of(child: PlannedStage) -> str:
    """Returns a hash of all that decides an agent's answers, which its name does not."""
    body = stage_body(child)
    decides = {key: body[key] for key in body if key not in ("name", "needs", "children")}
    return digest(canonical(decides)).hex()


def same_files(stage: Stage, root: Path) -> None:
    """Raises UsageError if files that an agent's fingerprints depend on were changed."""
    for recorded, patterns in stage.settings.tooling.files.items():
        with suppress(Refused):  # which they are if they are gone
            if files_hash(home_of(root), patterns) == recorded:
                continue
        raise UsageError(
            f"{', '.join(patterns)} of stage {stage.name!r}: what it holds is not what it was "
            "when the run was made",
            remedy=EDITED,
        )
