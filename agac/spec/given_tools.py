"""What a program gives and is told: tools in the key `tools` of a stage, which are functions and
those that agac brings with their keys; and messages with Python where files have YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from agac.core.arguments import refuse_fields
from agac.core.errors import Problem, UsageError
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.tools import McpServer, source_of
from agac.spec.yaml import parse_yaml


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that agac brings, as `agac.Tool.read_file`; called it is the same with these keys of
    a tool besides, as `agac.Tool.http_get(allow=["example.com"], rate=2)`."""

    read_file: ClassVar[Tool]
    http_get: ClassVar[Tool]
    run_sql: ClassVar[Tool]
    web_search: ClassVar[Tool]

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_fields(self)

    def __call__(self, **keys: Any) -> Tool:
        """With these keys."""
        return replace(self, keys={**self.keys, **keys})


for _name in ("read_file", "http_get", "run_sql", "web_search"):
    setattr(Tool, _name, Tool(_name, {"cacheable": True}))


@dataclass(slots=True)
class GivenTools:
    """What a workflow's stages were given: `functions` by the sources of their tools, `servers` by
    name."""

    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def written(self, stages: Any) -> Any:
        """Returns the stages with their tools as files have them. Raises UsageError for what is no
        tool."""
        if not isinstance(stages, list | tuple):
            return stages
        return [
            {**one, "tools": self._keys(one["tools"])}
            if isinstance(one, Mapping) and "tools" in one
            else one
            for one in stages
        ]

    def _keys(self, given: Any) -> Any:
        """Tools by name, each with its keys; what files can have as well stays as it is."""
        if not isinstance(given, list | tuple) or all(isinstance(one, str) for one in given):
            return list(given) if isinstance(given, tuple) else given
        return {name: keys for one in given for name, keys in self._named(one).items()}

    def _named(self, one: Any) -> Mapping[str, Any]:
        if isinstance(one, str):
            return {one: {}}
        if isinstance(one, Mapping):
            return one
        if isinstance(one, Tool):
            return {one.name: dict(one.keys)}
        if isinstance(one, McpServer):
            keys = {name: getattr(one, name) for name in _OF_SERVERS}
            self.servers[one.name] = {
                name: value for name, value in keys.items() if value is not None
            }
            return {one.name: {}}
        if not callable(one):
            remedy = (
                "Give functions, agac.Tool.read_file and the like, agac.McpServer(…), or "
                "names as files have them."
            )
            raise UsageError(f"tools: {one!r:.60} is no tool", remedy=remedy)
        source = source_of(one)
        if self.functions.setdefault(source, one) != one:  # a method is another object each time
            raise UsageError(
                f"tools: two functions are called {source}", remedy="Rename one of them."
            )
        return {source: {}}


_OF_SERVERS = [one.name for one in fields(McpServer) if one.name not in ("name", "lock", "locked")]


# What a program is told.

_YAML = re.compile(r"`(\w+: [^`]+)`(?: on the stage, or [^;]*)?")
_FLAG = "name one with --model, or "
_KEYS = StageFile.model_fields.keys() | WorkflowFile.model_fields.keys()


def in_python(problem: Problem, form: str) -> Problem:
    """Returns the problem with the keys that it tells to write as Python has them; `form` has a
    `key` and its `value`."""
    message = problem.message.replace(_FLAG, "")
    return replace(problem, message=_YAML.sub(lambda span: _python_of(span, form), message))


def _python_of(span: re.Match[str], form: str) -> str:
    written = parse_yaml(span[1], "").data
    if isinstance(written, dict) and len(written) == 1:
        key = next(iter(written))
    else:
        key = None
    if not isinstance(written, dict) or key not in _KEYS:
        return span[0]
    value = written[key]
    return f"`{form.format(key=key, value=_tools(value) if key == 'tools' else repr(value))}`"


def _tools(written: Any) -> str:
    """Returns the tools of a mapping, as a program gives those that agac brings."""
    if not isinstance(written, dict) or not written.keys() <= vars(Tool).keys():
        return repr(written)
    with_keys = {
        name: ", ".join(f"{key}={value!r}" for key, value in keys.items())
        for name, keys in written.items()
    }
    return f"[{', '.join(f'agac.Tool.{name}({keys})' for name, keys in with_keys.items())}]"
