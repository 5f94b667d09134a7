"""What MCP servers offer, as `agac card lock` wrote it for review: plans are made from it, and
start no server."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from agac.core.errors import UsageError, did_you_mean, key_path
from agac.core.keys import canonical, digest
from agac.core.text import json_shown
from agac.core.types import JSONValue
from agac.spec.paths import Unusable, inside
from agac.spec.project_files import read_text
from agac.spec.schema_checks import schema_faults
from agac.spec.tool_schemas import marked_name, safe_name, sent_parameters
from agac.spec.tools import McpServer, ToolSpec

SUFFIX = ".lock.json"
MAX_CHANGES = 5  # changes of one tool's schema that are shown
_SHOWN = 40  # lines of a difference that are shown, and characters of each
_LONGEST = 500


class LockedTool(NamedTuple):
    """A tool as its server describes it."""

    description: str
    input_schema: dict[str, JSONValue]


@dataclass(frozen=True, slots=True)
class ServerLock:
    """What a server says of itself. Its tools and instructions, which models are given, decide
    whether it is still the same; the rest is for those who review."""

    target: str
    tools: Mapping[str, LockedTool]
    instructions: str = ""
    server: str = ""
    """Its name and version."""
    protocol: str = ""
    """The version of the protocol."""

    @property
    def hash(self) -> str:
        """Stands for what the model is told."""
        return digest(canonical([self.instructions, self.tools])).hex()

    def told(self) -> dict[str, JSONValue]:
        """Returns what the model is given, for reading: each line of a text on a line of its
        own."""
        tools = {
            name: (_lines(one.description), one.input_schema)
            for name, one in sorted(self.tools.items())
        }
        told: dict[str, JSONValue] = {
            name: {"description": a, "input_schema": b} for name, (a, b) in tools.items()
        }
        return {"instructions": _lines(self.instructions), "tools": told}


HUB = "https://huggingface.co"  # where HF_TOKEN is sent


class ServerAddress(NamedTuple):
    """How a server is reached: by a command, or at a URL."""

    command: list[str]
    """Empty for a URL."""
    url: str
    headers: Mapping[str, str]
    folder: Path
    env: Mapping[str, str]
    secrets: list[str]
    """Texts that must not be shown."""


def connection(server: McpServer, root: Path, env: Mapping[str, str]) -> ServerAddress:
    """Resolves a server's keys with these variables. `https://huggingface.co/mcp?login` means that
    HF_TOKEN is sent. Raises UsageError: a variable is not set, or somebody would have to log in."""
    from agac.spec.yaml import expand  # `agac runs` must not pay for the library of YAML

    missing: list[str] = []
    secrets: list[str] = []

    def filled(text: str) -> str:
        value, unset = expand(text, env)
        missing.extend(unset)
        if value != text:
            secrets.extend((value, *value.split()))
        return value

    target = filled(server.target)
    name = f"MCP server {server.name!r}"
    headers = {key: filled(value) for key, value in server.headers.items()}
    variables = {key: filled(value) for key, value in server.env.items()}
    if missing:
        raise UsageError(
            f"{name} needs the environment variable {missing[0]}",
            remedy="Set it, or add it to .env.",
        )
    if re.match(r"https?://", target):
        url, token = _without_login(target, headers, env, name)
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        return ServerAddress([], url, headers, root, {}, [*secrets, token])
    try:
        if target.startswith("@"):
            command = ["npx", "-y", *shlex.split(target)]
        else:
            command = shlex.split(target)
        folder = inside(root, server.cwd or ".")
    except ValueError as error:
        raise UsageError(
            f"{name} cannot be started: {error}", remedy="Mend its target or its cwd."
        ) from None
    return ServerAddress(command, "", {}, folder, variables, secrets)


def _without_login(
    url: str, headers: Mapping[str, str], env: Mapping[str, str], name: str
) -> tuple[str, str]:
    """Returns a URL without `?login`, and the token to be sent in its place."""
    parts = urlsplit(url)
    asked = [word for word in parts.query.split("&") if word]
    rest = [word for word in asked if word.partition("=")[0] != "login"]
    if rest == asked or any(key.lower() == "authorization" for key in headers):
        return urlunsplit(parts._replace(query="&".join(rest))), ""
    hub = urlsplit(env.get("HF_ENDPOINT") or HUB)
    if (parts.scheme, parts.netloc) != (hub.scheme, hub.netloc):
        remedy = "Leave `?login` out, and give it `headers: {Authorization: Bearer ${TOKEN}}`."
        raise UsageError(
            f"{name} asks for a login at {parts.netloc}: nobody can log in while rows run",
            remedy=remedy,
        )
    token = env.get("HF_TOKEN")
    if not token:
        remedy = (
            f"Set HF_TOKEN, or add it to .env: it is sent to {hub.netloc} alone. Without "
            "`?login` nothing is sent."
        )
        raise UsageError(
            f"{name} asks for a login at {hub.netloc}, and HF_TOKEN is not set", remedy=remedy
        )
    return urlunsplit(parts._replace(query="&".join(rest))), token


def lock_file(card: Path) -> Path:
    """Returns the place of the lock of a card's servers: next to the card."""
    return card.with_name(card.stem + SUFFIX)


def lock_text(servers: Mapping[str, ServerLock]) -> str:
    """Returns the text of a lock file: the same for the same servers."""
    beside = ("target", "server", "protocol")
    shown = {
        name: {key: getattr(one, key) for key in beside} | one.told()
        for name, one in sorted(servers.items())
    }
    return f"{_text({'servers': shown})}\n"


def _text(value: JSONValue) -> str:
    return json_shown(json.dumps(value, indent=2, ensure_ascii=False))


def _lines(text: str) -> str | list[str]:
    return text.split("\n") if "\n" in text else text


def _joined(value: Any) -> str:
    text: str = "\n".join(value) if isinstance(value, list) else value + ""  # TypeError: no text
    return text


def read_lock(path: Path, shown: str, command: str, root: Path) -> dict[str, ServerLock]:
    """Returns the servers of a lock file of the project at `root`, by name. `command` is what
    writes it. Raises UsageError."""
    remedy = f"Connect to its servers and write it with `{command}`, then review the file."
    if not os.path.lexists(path):
        raise UsageError(
            f"{shown} is not there: what its MCP servers offer is not known", remedy=remedy
        )
    try:
        body: dict[str, dict[str, Any]] = json.loads(read_text(path, shown, root))["servers"]
        return {name: _server(one) for name, one in body.items()}
    except Unusable as error:
        raise UsageError(str(error.problem), remedy=remedy) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, json.JSONDecodeError):
            why = f"line {error.lineno}"
        else:
            why = repr(error)
        raise UsageError(f"{shown} is no lock file ({why})", remedy=remedy) from None


def _server(body: dict[str, Any]) -> ServerLock:
    told = body["tools"].items()
    tools = {
        key: LockedTool(_joined(one["description"]), dict(one["input_schema"])) for key, one in told
    }
    words = (_joined(body.get(key, "")) for key in ("instructions", "server", "protocol"))
    return ServerLock(_joined(body["target"]), tools, *words)


def locked_tools(
    servers: Sequence[McpServer],
    locks: Mapping[str, ServerLock],
    shown: str,
    command: str,
    allow: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[list[ToolSpec], list[McpServer]]:
    """Returns the tools that servers offer by their `locks`, which stand in the file `shown`; and
    the servers with what they are held to. `allow` has by server the names or patterns of the
    tools that are wanted; where it says nothing, all are. A name that two servers have becomes
    `server__tool`. Raises UsageError."""
    found: list[ToolSpec] = []
    held = []
    for server in servers:
        lock = locks.get(server.name)
        again = f"Write it again with `{command}`, then review what changed."
        if lock is None:
            raise UsageError(f"{shown} has no server {server.name!r}", remedy=again)
        if lock.target != server.target:
            message = (
                f"{shown} has server {server.name!r} at {lock.target}, it is at {server.target} now"
            )
            raise UsageError(message, remedy=again)
        version = digest(canonical(lock.server)).hex()
        for name in _allowed(lock, allow.get(server.name), f"server {server.name!r} in {shown}"):
            locked = lock.tools[name]
            source = f"{server.name}:{name}"
            fault = _fault(locked.input_schema)
            if fault:
                remedy = (
                    "Leave it out: name the tools that the agent needs under `tools: "
                    f"{{{server.name}: […]}}`."
                )
                raise UsageError(
                    f"the input schema of tool {source} in {shown} cannot be used: {fault}",
                    remedy=remedy,
                )
            found.append(
                ToolSpec(name, locked.description, locked.input_schema, "mcp", source, version)
            )
        held.append(replace(server, lock=shown, locked=lock.hash))
    names = _distinct_names(found)
    return [replace(tool, name=name) for tool, name in zip(found, names, strict=True)], held


def _distinct_names(tools: Sequence[ToolSpec]) -> Iterator[str]:
    """Yields the names of servers' tools as models are told them: `tool`, else `server__tool`,
    else that with a mark."""
    plain = Counter(safe_name(tool.name) for tool in tools)
    full = Counter(safe_name(_full_name(tool)) for tool in tools)
    for tool in tools:
        name = safe_name(tool.name)
        long_name = safe_name(_full_name(tool))
        if plain[name] == 1:
            yield name
        else:
            yield long_name if full[long_name] == 1 else marked_name(_full_name(tool))


def _full_name(tool: ToolSpec) -> str:
    return tool.source.replace(":", "__", 1)


def told_otherwise(tools: Iterable[ToolSpec]) -> Iterator[str]:
    """Yields what models are given of a server's tools in another form, since providers refuse the
    server's."""
    for tool in tools:
        own = tool.source.partition(":")[2]
        changes = sent_parameters(tool.parameters).changes
        if safe_name(own) != own:
            changes = (f"its name as {tool.name}", *changes)
        else:
            changes = changes
        if changes:
            shown = ", ".join(changes[:MAX_CHANGES])
            if len(changes) > MAX_CHANGES:
                more = f" and {len(changes) - MAX_CHANGES} more"
            else:
                more = ""
            yield f"{tool.source}: {shown}{more}"


def _fault(schema: dict[str, JSONValue]) -> str:
    if schema.get("type") != "object":
        return "its type is not object"
    return next(
        (f"{key_path(path) or 'all of it'}: {fault}" for path, fault in schema_faults(schema)), ""
    )


def _allowed(lock: ServerLock, patterns: Sequence[str] | None, where: str) -> Iterable[str]:
    if patterns is None:
        return sorted(lock.tools)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in lock.tools):
            raise UsageError(
                f"no tool of {where} is called {pattern!r}; "
                f"{did_you_mean(pattern, lock.tools, 'tools')}"
            )
    return [name for name in sorted(lock.tools) if any(fnmatchcase(name, one) for one in patterns)]


def difference(locked: ServerLock, found: ServerLock) -> str:
    """Compares what a server's lock and the server itself give a model: lists the tools and lines
    that differ; "" if none does."""
    moved = found.target not in ("", locked.target)
    if locked.hash == found.hash and not moved:
        return ""
    old = locked.tools
    new = found.tools
    said = {"added": new.keys() - old, "removed": old.keys() - new}
    said["changed"] = {name for name in old.keys() & new if old[name] != new[name]}
    head = [f"target: {found.target}"] if moved else []
    head += [f"{word}: {', '.join(sorted(names))}" for word, names in said.items() if names]
    before, now = (_text(one.told()).split("\n") for one in (locked, found))
    body = [line[:_LONGEST] for line in unified_diff(before, now, n=1, lineterm="")][2:]
    if len(body) > _SHOWN:
        more = [f"… and {len(body) - _SHOWN} more lines"]
    else:
        more = []
    return "\n".join(f"  {line}" for line in [*head, *body[:_SHOWN], *more])
