"""What the models of agents are told: functions imported and described, agents and servers as tools, all by name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agac.core.errors import UsageError
from agac.core.keys import canonical, digest
from agac.core.types import JSONValue
from agac.plan.stage import PlannedStage, stage_body
from agac.spec.json_schema import field_shape
from agac.spec.mcp_lock import safe_name
from agac.spec.paths import Refused, files_hash, home_of
from agac.spec.python_code import EDITED, FunctionRef
from agac.spec.tools import AgentSpec, NamedTool, ToolRules, ToolSettings, ToolSpec
from agac.spec.workflow import Stage, WrittenStage, family

_MESSAGE: dict[str, JSONValue] = field_shape("message") | {"additionalProperties": False}
"""What an agent is given whose card does not say."""

_NONE, _CHILD_TIMEOUT = AgentSpec(), 600.0  # seconds of a call of an agent, whose conversation may take several replies


def with_tools(
    stage: WrittenStage, children: Sequence[PlannedStage], root: Path, *, untrusted: bool = False
) -> tuple[AgentSpec | None, ToolSettings]:
    """What the model of a stage may call and how that is run; None where it has no tools. Imports functions of the
    project, unless that is `untrusted`: then no more is known of them than what stands for their source. `children`,
    where they are planned, tell their versions. Raises UsageError."""
    if stage.agent_spec is None:
        return None, stage.tooling
    told, rules = dict[str, ToolSpec](), dict[str, ToolRules]()
    for tool in sorted(stage.named_tools, key=lambda one: one.kind == "mcp"):  # whose names can be made longer
        try:
            spec, how = _told(tool, stage, children, root, untrusted=untrusted)
        except UsageError as error:
            raise UsageError(f"{tool.where}: {error.message}", remedy=error.remedy) from error
        if spec.name in told and tool.kind == "mcp":
            spec = replace(spec, name=spec.source.replace(":", "__", 1))
        if spec.name in told:
            message = f"{tool.where}: two tools are called {spec.name!r}: {told[spec.name].source} and {spec.source}"
            raise UsageError(message, remedy="Rename one of them, or leave one out.")
        told[spec.name] = replace(spec, max_chars=tool.keys.get("max_chars", spec.max_chars))
        rules[spec.name] = how = replace(how, **{key: v for key, v in tool.keys.items() if key in ToolRules.__slots__})
        if how.side_effects if how.cacheable else (how.ttl or how.cache == "persist"):
            needs = "side_effects: false" if how.cacheable else "cacheable: true"
            raise UsageError(f"{tool.where}: {spec.name} is cached only with {needs}", remedy="Write both, or neither.")
    theirs = {tool.name for one in children for own in family(one) for tool in (own.agent_spec or _NONE).tools}
    for name in stage.agent_spec.stubs.keys() - told - theirs if stage.agent_spec.mode == "stub" else ():
        remedy = f"Its tools are: {', '.join(sorted(told))}."
        raise UsageError(f"{stage.at('')}: tool_stubs has {name!r}, which is no tool of {stage.name}", remedy=remedy)
    tools = tuple(told[name] for name in sorted(told))
    return replace(stage.agent_spec, tools=tools), replace(stage.tooling, rules=dict(sorted(rules.items())))


def same_files(stage: Stage, root: Path) -> None:
    """Raises UsageError when files that an agent's fingerprints stand for no longer hold what they did."""
    for known, patterns in stage.tooling.files.items():
        with suppress(Refused):  # where they are gone
            if files_hash(home_of(root), patterns) == known:
                continue
        what = f"{', '.join(patterns)} of stage {stage.name!r}"
        raise UsageError(f"{what}: what it holds is not what it was when the run was made", remedy=EDITED)


def _told(
    tool: NamedTool, stage: WrittenStage, children: Sequence[PlannedStage], root: Path, *, untrusted: bool
) -> tuple[ToolSpec, ToolRules]:
    """A tool as the model is told of it, and how it is run where nobody says. Raises UsageError."""
    from agac.tools.builtin import describe_builtin  # and what it needs, where there are tools
    from agac.tools.functions import import_function
    from agac.tools.tool_functions import declared_of, describe

    if tool.spec is not None:  # what a server says of its tools is never believed
        server = next(one for one in stage.tooling.servers if one.name == tool.source.partition(":")[0])
        return tool.spec, ToolRules(timeout=server.timeout, scope=server.scope, side_effects=True)
    if untrusted and isinstance(tool.function, FunctionRef):
        source = tool.function
        return ToolSpec(source.name, "", {}, "function", str(source), source.source_hash.hex()), ToolRules()
    if tool.function is not None:
        found = tool.function
        called = import_function(found, root) if isinstance(found, FunctionRef) else found
        return describe(found, root), declared_of(called).rules
    if tool.kind == "agent":
        card = next(one.card for one in stage.children if one.card and one.card.name == tool.source)
        assert stage.card is not None, "only a card names agents"
        own, told, version = stage.card.keys, card.keys.description or f"Asks the agent {card.name}.", ""
        for child in children:
            if child.name == f"{stage.name}/{tool.source}":  # by all that decides what it answers, not by its name
                body = {
                    key: value for key, value in stage_body(child).items() if key not in ("name", "needs", "children")
                }
                version = digest(canonical(body)).hex()
        schema = card.keys.tool_input_schema or _MESSAGE
        spec = ToolSpec(safe_name(f"agent__{card.name}"), told, schema, "agent", card.name, version)
        return spec, ToolRules(timeout=own.child_timeout_sec or _CHILD_TIMEOUT, concurrency=own.max_parallel)
    return describe_builtin(tool.source, tool.settings, root), ToolRules(cacheable=True)
