"""Tools and agents as values: what decides answers (`AgentSpec.body`), and how tools are run
(`ToolRules`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from agac.core.arguments import refuse_fields
from agac.core.errors import Where
from agac.core.keys import snapshot
from agac.core.types import JSONValue, ToolDefinition
from agac.spec.python_code import FunctionRef
from agac.spec.tool_schemas import sent_name, sent_parameters

ToolKind = Literal["function", "builtin", "mcp", "skill", "agent"]
ToolsMode = Literal["live", "stub", "record", "replay"]
ResultMode = Literal["postprocess", "passthrough", "selectable"]
StructuredTools = Literal["auto", "always", "defer", "no_tools"]
OnToolFailure = Literal["go_on", "fail"]
ToolScope = Literal["run", "row"]

MAX_TURNS = 20  # model calls of a conversation, where a card does not say
MAX_CHARS = 16_000  # characters of a tool's result, where nobody says


@dataclass(frozen=True, slots=True)
class ToolRules:
    """How a tool is run: nothing in it decides an answer. `timeout` in seconds; `rate` in calls a
    second; `retries` after an exception. `cacheable`: equal calls of a run share one execution,
    and with `cache: persist` those of later runs, for `ttl` seconds. `side_effects`: it is never
    repeated unasked. `concurrency`: so many calls at a time."""

    timeout: float = 30.0
    cacheable: bool = False
    cache: Literal["run", "persist"] = "run"
    ttl: float | None = None
    side_effects: bool = False
    rate: float | None = None
    retries: int = 0
    concurrency: int | None = None
    scope: ToolScope = "run"


DEFAULT_RULES = ToolRules()  # how a tool is run of which nobody says anything


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server. `target` is a URL, or a command with its arguments. `headers` hold
    `${VARIABLE}` as it was written: what it means is looked up when the server is connected, and
    never stored. `state`: it keeps one between calls, so that a session that is lost cannot be
    replaced silently. `timeout` is for connecting. What it offers has to be what the file `lock`
    says of it, whose hash is `locked`."""

    name: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    scope: ToolScope = "run"
    pool: int = 1
    timeout: float = 30.0
    state: bool = False
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    lock: str = ""
    locked: str = ""

    def __post_init__(self) -> None:
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool that an agent may call. `source` says what it is: of a function
    `tools/search.py:web_search`, of a tool built in its name, of an MCP tool `server:tool`, of a
    child agent the card's name. `version` is a hash of what it does, `settings` are those of a
    tool built in. A result of more than `max_chars` characters is cut."""

    name: str
    description: str
    parameters: Mapping[str, JSONValue]
    kind: ToolKind
    source: str
    version: str = ""
    settings: Mapping[str, JSONValue] = field(default_factory=dict)
    max_chars: int = MAX_CHARS

    @property
    def definition(self) -> ToolDefinition:
        """What a model is told, in a form that every provider takes."""
        return ToolDefinition(
            sent_name(self.name), self.description, sent_parameters(self.parameters).schema
        )

    def body(self) -> dict[str, JSONValue]:
        """The tool as a definition stores it; its parameters as text, which keeps their order."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {
            "parameters": snapshot(self.parameters)
        }

    @staticmethod
    def of(body: Mapping[str, Any]) -> ToolSpec:
        """Read back."""
        return ToolSpec(**{**body, "parameters": json.loads(body["parameters"])})


def function_name(function: FunctionRef | Callable[..., Any]) -> str:
    """What a function is called."""
    return str(getattr(function, "name", None) or getattr(function, "__name__", ""))


def source_of(function: Callable[..., Any]) -> str:
    """The `source` of the tool that a program's function is."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool as files name it, of which nothing was imported yet. `source` and `settings` are as
    in a ToolSpec; `spec` is there for a server's tools, `keys` say how it is run. `function` may
    be one that a program gave."""

    kind: ToolKind
    source: str
    where: Where
    function: FunctionRef | Callable[..., Any] | None = None
    spec: ToolSpec | None = None
    settings: Mapping[str, JSONValue] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What makes a stage an agent: its tools, sorted by name, and what is done with them. `mode`
    is where results come from, `stubs` the stand-ins by tool. `reads` is a hash of the project's
    files that tools read, where it is said."""

    tools: tuple[ToolSpec, ...] = ()
    card: str | None = None
    result_mode: ResultMode = "postprocess"
    parallel: bool = True
    structured: StructuredTools = "auto"
    mode: ToolsMode = "live"
    stubs: Mapping[str, JSONValue] = field(default_factory=dict)
    reads: str | None = None

    def body(self) -> dict[str, JSONValue]:
        """The agent as a definition stores it and as its fingerprints hold it."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"tools": [tool.body() for tool in self.tools]}

    @staticmethod
    def of(body: Mapping[str, Any]) -> AgentSpec:
        """Read back."""
        return AgentSpec(**{**body, "tools": tuple(ToolSpec.of(tool) for tool in body["tools"])})


@dataclass(frozen=True, slots=True)
class Runtime:
    """The program that runs each task of a stage as an agent of its own, with tools of its own.
    `version` is how its version has to begin; `permission` is what its tools may do beyond reading
    their folder: JSON, in whose order it counts; `files` is the folder that each task gets a copy
    of, whose hash is `source`. These decide answers; `command` is a name or a path, `max_agents`
    run at a time, a request may have `context` tokens."""

    name: Literal["opencode"] = "opencode"
    version: str | None = None
    permission: str = "{}"
    files: str | None = None
    source: str | None = None
    command: str = "opencode"
    max_agents: int = 2
    context: int = 128_000

    def body(self) -> dict[str, JSONValue]:
        """What decides answers, as a definition stores it and fingerprints hold it."""
        own = {
            key: getattr(self, key) for key in ("name", "version", "permission", "files", "source")
        }
        return {key: value for key, value in own.items() if value not in (None, "{}")}

    @staticmethod
    def of(body: Mapping[str, Any]) -> Runtime:
        """Read back."""
        return Runtime(**body)


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """How an agent's tools are run, beside the definition. `rules` by the name of their tool;
    `max_turns` bounds a conversation's model calls; `record`: results are noted, for stubs;
    `replay` is the run whose results are taken; `files` are the patterns of files that stand for
    answers, by the hash of what these hold; `program` is a runtime; `on_failure` says whether a
    row goes on whose call of a tool failed."""

    rules: Mapping[str, ToolRules] = field(default_factory=dict)
    servers: tuple[McpServer, ...] = ()
    max_turns: int = MAX_TURNS
    record: bool = False
    replay: int | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    program: Runtime | None = None
    on_failure: OnToolFailure = "go_on"


NO_TOOLS = ToolSettings()  # those of a stage without tools
