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
    """How a tool is run; nothing in it decides an answer."""

    timeout: float = 30.0
    """Seconds of a call."""
    cacheable: bool = False
    """True if equal calls of a run share one execution."""
    cache: Literal["run", "persist"] = "run"
    """`persist`: those of later runs too."""
    ttl: float | None = None
    """Seconds for which a kept result is taken."""
    side_effects: bool = False
    """True if a call is never repeated unasked."""
    rate: float | None = None
    """Calls a second."""
    retries: int = 0
    """Further attempts after an exception."""
    concurrency: int | None = None
    """The most calls at a time."""
    scope: ToolScope = "run"


DEFAULT_RULES = ToolRules()  # how a tool is run of which nobody says anything


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server."""

    name: str
    target: str
    """A URL, or a command with its arguments."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """As written, with `${VARIABLE}`: values are looked up when the server is connected, and never
    stored."""
    scope: ToolScope = "run"
    pool: int = 1
    timeout: float = 30.0
    """Seconds for connecting."""
    state: bool = False
    """True if it keeps a state between calls, so that a lost session cannot be replaced
    silently."""
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    lock: str = ""
    """The file that says what it has to offer."""
    locked: str = ""
    """The hash of what that says."""

    def __post_init__(self) -> None:
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool that an agent may call."""

    name: str
    description: str
    parameters: Mapping[str, JSONValue]
    kind: ToolKind
    source: str
    """Where it comes from: of a function `tools/search.py:web_search`, of a built-in tool its name,
    of an MCP tool `server:tool`, of a child agent the card's name."""
    version: str = ""
    """A hash of what it does."""
    settings: Mapping[str, JSONValue] = field(default_factory=dict)
    """The settings of a built-in tool."""
    max_chars: int = MAX_CHARS
    """A longer result is cut."""

    @property
    def definition(self) -> ToolDefinition:
        """What a model is told, in a form that every provider takes."""
        return ToolDefinition(
            sent_name(self.name), self.description, sent_parameters(self.parameters).schema
        )

    def body(self) -> dict[str, JSONValue]:
        """Returns the tool as a definition stores it; its parameters as text, which keeps their
        order."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {
            "parameters": snapshot(self.parameters)
        }

    @staticmethod
    def of(body: Mapping[str, Any]) -> ToolSpec:
        """Read back."""
        return ToolSpec(**{**body, "parameters": json.loads(body["parameters"])})


def function_name(function: FunctionRef | Callable[..., Any]) -> str:
    """Returns the name of a function."""
    return str(getattr(function, "name", None) or getattr(function, "__name__", ""))


def source_of(function: Callable[..., Any]) -> str:
    """Returns the `source` of the tool that a program's function is."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool as files name it; nothing of it was imported yet."""

    kind: ToolKind
    source: str
    """As in a ToolSpec."""
    where: Where
    function: FunctionRef | Callable[..., Any] | None = None
    """The function, perhaps one that a program gave."""
    spec: ToolSpec | None = None
    """Known for the tools of a server."""
    settings: Mapping[str, JSONValue] = field(default_factory=dict)
    """As in a ToolSpec."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """How it is run."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What makes a stage an agent: its tools, and what is done with them."""

    tools: tuple[ToolSpec, ...] = ()
    """Sorted by name."""
    card: str | None = None
    result_mode: ResultMode = "postprocess"
    parallel: bool = True
    structured: StructuredTools = "auto"
    mode: ToolsMode = "live"
    """Where results come from."""
    stubs: Mapping[str, JSONValue] = field(default_factory=dict)
    """The stand-ins by tool."""
    reads: str | None = None
    """A hash of the project's files that tools read, if they are named."""

    def body(self) -> dict[str, JSONValue]:
        """Returns the agent as a definition stores it and as its fingerprints hold it."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"tools": [tool.body() for tool in self.tools]}

    @staticmethod
    def of(body: Mapping[str, Any]) -> AgentSpec:
        """Read back."""
        return AgentSpec(**{**body, "tools": tuple(ToolSpec.of(tool) for tool in body["tools"])})


@dataclass(frozen=True, slots=True)
class Runtime:
    """The program that runs each task of a stage as an agent of its own, with its own tools. The
    first five fields decide answers."""

    name: Literal["opencode"] = "opencode"
    version: str | None = None
    """How its version has to begin."""
    permission: str = "{}"
    """What its tools may do besides reading their folder: JSON, in whose order it counts."""
    files: str | None = None
    """The folder that each task gets a copy of."""
    source: str | None = None
    """The hash of that folder."""
    command: str = "opencode"
    """A name or a path."""
    max_agents: int = 2
    """The most that run at a time."""
    context: int = 128_000
    """The most tokens of a request."""

    def body(self) -> dict[str, JSONValue]:
        """Returns what decides answers, as a definition stores it and fingerprints hold it."""
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
    """How an agent's tools are run; kept next to the definition."""

    rules: Mapping[str, ToolRules] = field(default_factory=dict)
    """By the name of the tool."""
    servers: tuple[McpServer, ...] = ()
    max_turns: int = MAX_TURNS
    """The most model calls of a conversation."""
    record: bool = False
    """True if results are noted, for stubs."""
    replay: int | None = None
    """The run whose results are taken."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The patterns of files that answers depend on, by the hash of what they hold."""
    program: Runtime | None = None
    """The program of a runtime."""
    on_failure: OnToolFailure = "go_on"
    """Says whether a row continues after a tool call failed."""


NO_TOOLS = ToolSettings()  # those of a stage without tools
