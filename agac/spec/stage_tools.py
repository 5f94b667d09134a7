"""Tools of a stage as its card, the stage itself and agac.yml name them: read and checked here,
imported for a plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from agac.core.errors import Path_, Problem, UsageError, Where, did_you_mean
from agac.core.keys import snapshot
from agac.core.text import plain
from agac.spec.agent_cards import Card
from agac.spec.card_models import CardFile, CardKeys, RequestParamsFile, ServedKeys
from agac.spec.mcp_lock import lock_file, locked_tools, read_lock, told_otherwise
from agac.spec.models import StageFile
from agac.spec.paths import Refused, home_of, inside
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.project_files import files_hash
from agac.spec.python_code import FORM, parse_reference
from agac.spec.skills import Skill
from agac.spec.stage_models import RuntimeFile
from agac.spec.tool_schemas import safe_name
from agac.spec.tool_stubs import read_stubs, recorded_calls, stub_fault, stub_file
from agac.spec.tools import (
    MAX_TURNS,
    AgentSpec,
    McpServer,
    NamedTool,
    Runtime,
    ToolSettings,
    ToolsMode,
    ToolSpec,
    function_name,
)
from agac.spec.yaml import Document

BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "read_file": ("root",),
    "http_get": ("allow",),
    "run_sql": ("database",),
    "web_search": ("url", "api_key", "shape"),
}
"""Tools that agac brings, with the keys that only they take."""

_NEEDED = {
    "http_get": "allow: [example.com]",
    "run_sql": "database: shop.db",
    "web_search": "url: https://…",
}
MAX_NAMED = 5  # tools that are named whose schemas models are told otherwise
_SEARCHES = {
    "https://api.search.brave.com/res/v1/web/search": (
        "BRAVE_KEY",
        "BRAVE_API_KEY",
        "BRAVE_SEARCH_API_KEY",
    ),
    "https://serpapi.com/search.json": ("SERPAPI_KEY", "SERPAPI_API_KEY", "SERP_API_KEY"),
}
"""Services that a web search without a `url` asks, each with the variables in which its key may
be."""
FOR_TOOLS = ("max_turns", "tools_mode", "tool_stubs", "on_tool_failure", "reads")
"""Keys of a stage that are for one with tools."""


@dataclass(slots=True)
class ToolReader:
    """Reads the tools of one stage."""

    project: ProjectSpec
    document: Document
    path: Path_
    """The place of the stage in `document`."""
    overrides: Overrides
    card: Card | None
    written: StageFile
    tools: list[NamedTool]
    """At first the agents that it may call, and after `read` all its tools."""
    skills: tuple[Skill, ...]
    servers: list[McpServer] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of files that tools read, by the hash of what they match."""

    def read(self) -> dict[str, Any]:
        """Reads the fields of a WrittenStage that say what its agent is; none where it has no
        tools."""
        if self.card:
            self.tools += self._of_card(self.card)
        if self.skills:
            self.tools.append(self._skill_reader())
        for name in self.written.tools or {}:
            if not any(name in _names(tool) for tool in self.tools):
                self.tools += self._of_stage(name)
        if self.written.runtime is not None:
            return self._runtime(self.written.runtime)
        if not self.tools:
            self._note_unused_keys()
            return {}
        mode = self._mode()
        tools = tuple(map(self._with_keys, self.tools))
        spec = self._spec(mode)
        settings = ToolSettings(
            servers=tuple(self.servers),
            max_turns=self._max_turns(),
            record=mode == "record",
            replay=self.overrides.replay,
            files=dict(sorted(self.files.items())),
            on_failure=self.written.on_tool_failure or "go_on",
        )
        return {"agent_spec": spec, "tooling": settings, "named_tools": tools}

    def _note_unused_keys(self) -> None:
        """Notes keys that are for a stage with tools."""
        if self.problems and self.written.tools:
            return  # what is wrong with the tools is a problem of its own
        for key in self.written.model_fields_set & {*FOR_TOOLS}:
            message = f"{key} is for a stage with tools; name some with `tools`, or in its card"
            self._note(self._at(key), message)

    def _max_turns(self) -> int:
        """Returns the most turns of a conversation: the command line's, the stage's, the card's."""
        of_card = self.card.keys.request_params.max_iterations if self.card else None
        return self.overrides.max_turns or self.written.max_turns or of_card or MAX_TURNS

    def _runtime(self, keys: RuntimeFile) -> dict[str, Any]:
        """Returns the fields of a stage whose tasks a program runs, which has tools of its own."""
        self._note_keys_of_runtime(keys)
        files: tuple[str, ...] = ()
        source = None
        if keys.files is not None:
            files = (f"{escape(keys.files.rstrip('/'))}/**",)
            source = self._hash(files, self._at("runtime", "files"))
        values = dict(keys) | {"permission": snapshot(keys.permission), "source": source}
        runtime = Runtime(**values)
        tooling = ToolSettings(max_turns=self._max_turns(), files=self.files, program=runtime)
        return {"runtime": Runtime.of(runtime.body()), "tooling": tooling}

    def _note_keys_of_runtime(self, keys: RuntimeFile) -> None:
        """Notes tools and messages, of which the program has its own."""
        others = [
            key
            for key in ("tools", "skills", "messages", *FOR_TOOLS[1:])
            if getattr(self.written, key) is not None
        ]
        for key in others:
            message = f"{key} does not go with runtime: {keys.name}, which has its own; remove one"
            self._note(self._at(key), message)
        if others or self.card is None:
            return
        if self.tools or self.card.messages:
            message = (
                f"the card {self.card.name} has tools or messages, and {keys.name} has its own; "
                "take a card with an instruction alone, or remove runtime"
            )
            self._note(self._at("runtime"), message)

    def _mode(self) -> ToolsMode:
        """Returns where results of tools come from."""
        mode = self._chosen_mode()
        if mode == "replay" and self.overrides.replay is None:
            message = (
                "replay needs the run whose tool calls are taken; add --run N to `agac "
                "run` or `agac plan`"
            )
            if self.written.tools_mode == "replay":
                message += ", and --tools-mode replay in the place of this key"
            self._note(self._at("tools_mode"), message)
        return mode

    def _chosen_mode(self) -> ToolsMode:
        """Returns the mode that the command line says or means, else the stage's."""
        if self.overrides.tools_mode:
            return self.overrides.tools_mode
        if self.overrides.tool_stubs:
            return "stub"
        if self.overrides.replay:
            return "replay"
        return self.written.tools_mode or "live"

    def _spec(self, mode: ToolsMode) -> AgentSpec:
        """Returns the parts of the agent, apart from the tools themselves, that decide answers."""
        params = self.card.keys.request_params if self.card else RequestParamsFile()
        reads = self.written.reads
        stubs = self._stubs(kept=mode == "stub")
        if mode == "replay":
            stubs = {"run": self.overrides.replay}
        elif mode != "stub":
            stubs = {}
        return AgentSpec(
            card=self.card.name if self.card else None,
            result_mode=params.tool_result_mode,
            parallel=params.parallel_tool_calls,
            structured=params.structured_tool_policy,
            mode="live" if mode == "record" else mode,
            stubs=stubs,
            reads=None if reads is None else self._hash(reads, self._at("reads")),
        )

    def _skill_reader(self) -> NamedTool:
        """Returns the tool that reads the skills of the stage."""
        where = self._at("skills")
        folders: dict[str, Any] = {skill.name: skill.folder for skill in self.skills}
        content = self._hash([f"{escape(folder)}/**" for folder in folders.values()], where)
        settings = {"hash": content, "skills": folders}
        return NamedTool("skill", "read_skill", where, settings=settings)

    def _at(self, *key: str | int) -> Where:
        return self.document.where((*self.path, *key))

    def _note(self, where: Where, message: str) -> None:
        self.problems.append(Problem(where, message))

    def _of_card(self, card: Card) -> Iterator[NamedTool]:
        """Yields the tools that a card names."""
        keys = card.keys
        at = card.document.where
        for index, function in enumerate(keys.function_tools):
            yield from self._function(function.entrypoint, at(("function_tools", index)), card)
        for index, name in enumerate(keys.servers):
            self._server(name, at(("servers", index)))
        servers = card_servers(keys, self.project)
        names = [server.name for server in servers]
        for name in keys.tools.keys() - {*names}:
            hint = did_you_mean(name, names, "it uses")
            self._note(at(("tools", name), key=True), f"the card uses no server {name!r}; {hint}")
        if servers:
            yield from self._locked(servers, card.path, at(("mcp_connect",)), keys.tools)

    def _of_stage(self, name: str) -> Iterable[NamedTool]:
        """Returns the tools that the stage calls `name`; none, and a problem, where there are
        none."""
        where = self._at("tools", name)
        server, _, pattern = name.partition(":")
        if name in self.project.functions:
            return [NamedTool("function", name, where, function=self.project.functions[name])]
        if ".py:" in name:
            return self._function(name, where, None)
        if name in BUILT_IN:
            return [NamedTool("builtin", name, where)]
        if server in self.project.file.mcp:
            place = self.project.paths.agentcards / server
            allow = {server: [pattern]} if pattern else {}
            return self._locked(self._server(server, where), place, where, allow)
        other_names = [other for tool in self.tools for other in _names(tool)]
        hint = did_you_mean(name, [*BUILT_IN, *self.project.file.mcp, *other_names], "there are")
        end = "" if hint.endswith("?") else "."
        self._note(where, f"no tool {name!r}; {hint}{end} A function is {FORM}")
        return ()

    def _function(self, text: str, where: Where, card: Card | None) -> Iterator[NamedTool]:
        """Yields the function that `text` names, unless something is wrong with it."""
        base = card.path.parent if card and not card.remote else None
        home = home_of(self.project.root)
        function, problems = parse_reference(text, where, home, tool=True, base=base)
        self.problems += problems
        if not function:
            return
        if any(tool.source == str(function) for tool in self.tools):
            self._note(where, f"{function} is named twice; name it once")
        else:
            yield NamedTool("function", str(function), where, function=function)

    def _server(self, name: str, where: Where) -> list[McpServer]:
        """Returns the server of agac.yml that is called `name`; none, and a problem, where there is
        none."""
        servers = card_servers([name], self.project)
        if not servers:
            hint = did_you_mean(name, self.project.file.mcp, "there are")
            message = (
                f"agac.yml has no MCP server {name!r}; {hint}; add `mcp: {{{name}: "
                f"{{target: …}}}}` to it"
            )
            self._note(where, message)
        return servers

    def _locked(
        self,
        servers: Sequence[McpServer],
        card: Path,
        where: Where,
        allow: Mapping[str, Sequence[str]],
    ) -> Iterator[NamedTool]:
        """Yields the tools of servers, as the lock file of `card` has them."""
        is_remote = self.card and self.card.remote and self.card.path == card
        name = self.card.file if self.card and is_remote else card.stem
        shown = self.project.shown(lock_file(card))
        command = f"agac card lock {name}"
        try:
            locks = read_lock(lock_file(card), shown, command, home_of(self.project.root))
            specs, locked_servers = locked_tools(servers, locks, shown, command, allow)
        except UsageError as error:
            message = f"{error.message}. {error.remedy or ''}".strip()
            if os.path.lexists(lock_file(card)) or not self._calls_nothing():
                self._note(where, message)
                return
            message += (
                " Until then its tools are not known here, and the requests are without what it "
                "says of them."
            )
            self.problems.append(Problem(where, message, "warning"))
            self.servers += servers
            yield from self._unknown_tools(servers, where)
            return
        self.servers += locked_servers
        self._note_adapted(specs, shown, where)
        yield from (NamedTool("mcp", spec.source, where, spec=spec) for spec in specs)

    def _note_adapted(self, specs: Sequence[ToolSpec], shown: str, where: Where) -> None:
        """Warns of tools that models are told of in another form than the lock file has."""
        changes = [plain(change) for change in told_otherwise(specs)]
        if not changes:
            return
        named = "; ".join(changes[:MAX_NAMED])
        rest = len(changes) - MAX_NAMED
        more = f"; and {rest} more tools" if rest > 0 else ""
        message = (
            f"models are told of tools in {shown} in a form that all providers take: {named}{more}"
        )
        self.problems.append(Problem(where, message, "warning"))

    def _calls_nothing(self) -> bool:
        """True if no server is reached: for a plan, or with stand-ins."""
        overrides = self.overrides
        if overrides.dry:
            return True
        if overrides.tools_mode:
            return overrides.tools_mode == "stub"
        return bool(overrides.tool_stubs) or self.written.tools_mode == "stub"

    def _unknown_tools(self, servers: Sequence[McpServer], where: Where) -> Iterator[NamedTool]:
        """Yields tools for servers without a lock file: the stand-ins that no other tool has, else
        for each server one that is called as the server."""
        others = {name for tool in self.tools for name in _names(tool)}
        names = [name for name in self._stub_names() if name not in others and "/" not in name]
        pairs = [(servers[0].name, name) for name in names]
        if not pairs:
            pairs = [(server.name, server.name) for server in servers]
        for server_name, name in pairs:
            schema = {"type": "object", "properties": {}}
            spec = ToolSpec(safe_name(name), "", schema, "mcp", f"{server_name}:{name}")
            yield NamedTool("mcp", spec.source, where, spec=spec)

    def _stub_names(self) -> Iterable[str]:
        """Returns the tools that have stand-ins; none where their file cannot be read."""
        stubs = self.overrides.tool_stubs or self.written.tool_stubs or {}
        if not isinstance(stubs, str):
            return stubs
        try:
            return read_stubs(Path(stubs), home_of(self.project.root))
        except ValueError:  # which is said of the stand-ins
            return ()

    def _with_keys(self, tool: NamedTool) -> NamedTool:
        """Adds the keys that agac.yml and the stage have for a tool. Notes keys that it does not
        take, or lacks."""
        keys: dict[str, Any] = {}
        for level in (self.project.file.tools, self.written.tools or {}):
            for name in _names(tool):
                if name in level:
                    written = level[name]
                    keys |= {key: getattr(written, key) for key in written.model_fields_set}
        is_built_in = tool.kind == "builtin" and tool.source in BUILT_IN
        special = BUILT_IN[tool.source] if is_built_in else ()
        # as a stored run has them
        settings = {key: keys.pop(key) for key in sorted(special) if key in keys}
        self._note_foreign_keys(tool, keys)
        if is_built_in:
            if tool.source == "web_search" and "url" not in settings:
                settings |= _search_of(self.project.env)
            self._note_missing_key(tool, settings)
        self._note_bad_settings(tool, settings)
        if is_built_in and tool.source in ("read_file", "run_sql") and self.written.reads is None:
            message = (
                f"{tool.source}: answers are reused although what it reads changed; name it as "
                "`reads` to have them asked again"
            )
            self.problems.append(Problem(tool.where, message, "warning"))
        return replace(tool, keys=keys, settings={**tool.settings, **settings})

    def _note_foreign_keys(self, tool: NamedTool, keys: Mapping[str, Any]) -> None:
        """Notes keys that only another built-in tool takes."""
        for other, special in BUILT_IN.items():
            for key in keys.keys() & {*special}:
                self._note(tool.where, f"{tool.source}: {key} is for {other} alone; remove it")

    def _note_missing_key(self, tool: NamedTool, settings: Mapping[str, Any]) -> None:
        """Notes the key without which a built-in tool can do nothing."""
        if tool.source not in _NEEDED:
            return
        example = _NEEDED[tool.source]
        needed = example.partition(":")[0]
        if needed in settings:
            return
        message = f"{tool.source} needs {needed}; write `tools: {{{tool.source}: {{{example}}}}}`"
        message += " on the stage, or into agac.yml"
        if tool.source == "web_search":
            variables = " or ".join(names[0] for names in _SEARCHES.values())
            message += f"; or set {variables} in .env"
        self._note(tool.where, message)

    def _note_bad_settings(self, tool: NamedTool, settings: Mapping[str, Any]) -> None:
        """Notes hosts that are no hosts, and files and folders that are not there."""
        for host in settings.get("allow") or ():
            if "/" in host:
                message = f"http_get: allow names hosts, as example.com, not {host!r}"
                self._note(tool.where, message)
        for key in settings.keys() & {"root", "database"}:
            try:
                path = inside(home_of(self.project.root), str(settings[key]))
                if not (path.is_dir() if key == "root" else path.is_file()):
                    raise Refused(f"{settings[key]!r} is not there")
            except Refused as error:
                self._note(tool.where, f"{tool.source}: {key}: {error}")

    def _stubs(self, *, kept: bool) -> dict[str, Any]:
        """Reads the stand-ins, each file of theirs with a hash of its content. They are checked
        whether `kept` or not."""
        typed = self.overrides.tool_stubs
        home = home_of(self.project.root)
        try:
            typed_stubs = read_stubs(Path(typed), home) if isinstance(typed, str) else typed
        except ValueError as error:
            self._note(Where(str(typed)), str(error))
            return {}
        stubs = dict[str, Any]()
        names = {name for tool in self.tools for name in _names(tool)}
        may_be_for_others = bool(typed_stubs) or "/" in self.written.name
        for name, stub in (typed_stubs or self.written.tool_stubs or {}).items():
            if may_be_for_others and name not in names:
                continue  # it is for another stage, or for another agent of this one
            if isinstance(typed, str):
                where = Where(typed, path=name)
            else:
                where = self._at("tool_stubs", name)
            stubs[name] = self._stub(stub, where, home, kept=kept)
        return stubs

    def _stub(self, stub: Any, where: Where, home: Path, *, kept: bool) -> Any:
        """Returns a stand-in, with a hash if it is a file. Notes what is wrong with it."""
        fault = stub_fault(stub)
        if fault:
            self._note(where, fault)
            return stub
        file = stub_file(stub)
        if not file:
            return stub
        stub = stub | {"hash": self._hash([file], where, kept=kept)}
        try:
            recorded_calls(home / file, stub["hash"], home)
        except (OSError, ValueError) as error:
            self._note(where, str(error))
        return stub

    def _hash(self, patterns: Sequence[str], where: Where, *, kept: bool = True) -> str:
        """Returns the hash of the files that patterns match, "" where they are refused; `kept` to
        be compared when the workflow runs."""
        home = home_of(self.project.root)
        try:
            for pattern in patterns:
                inside(home, pattern)
            content = files_hash(home, patterns)
        except Refused as error:
            self._note(where, str(error))
            return ""
        if kept:
            self.files[content] = tuple(patterns)
        return content


def _search_of(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a web search by the first service whose key is set; none where no
    key is set."""
    for url, variables in _SEARCHES.items():
        for name in variables:
            if env.get(name):
                return {"url": url, "api_key": f"${{{name}}}"}
    return {}


def _names(tool: NamedTool) -> tuple[str, ...]:
    """Returns the names by which `tools` may mean a tool, the most general first."""
    if tool.spec:
        return tool.source.partition(":")[0], tool.source, tool.spec.name
    return tool.source, function_name(tool.function) if tool.function else f"agent__{tool.source}"


def for_no_tool(tools: Sequence[NamedTool], overrides: Overrides, home: Path) -> Iterator[Problem]:
    """Yields settings of tools that the command line gives, and that are for none of the `tools` of
    the workflow."""
    stubs = overrides.tool_stubs or {}
    mode = overrides.tools_mode
    where = Where("--tool-stubs" if stubs else "--tools-mode")
    if not tools:
        if stubs or overrides.replay is not None or mode not in (None, "live"):
            yield Problem(where, "has no effect: no stage has tools; leave it out", "warning")
        return
    if stubs and mode not in (None, "stub"):
        message = f"stubs are not asked with --tools-mode {mode}; leave out one of them"
        yield Problem(where, message)
    try:
        stubs = read_stubs(Path(stubs), home) if isinstance(stubs, str) else stubs
    except ValueError:  # which was said of a stage
        return
    names = sorted({name for tool in tools for name in _names(tool)})
    for name in stubs.keys() - names:
        message = f"no stage has a tool {name!r}; {did_you_mean(name, names, 'the tools are')}"
        yield Problem(where, message, "warning")


def card_servers(names: CardKeys | Sequence[str], project: ProjectSpec) -> list[McpServer]:
    """Returns the MCP servers of a card, or those with these names in agac.yml, of which unknown
    ones are left out."""
    servers = list[McpServer]()
    if isinstance(names, CardFile):
        for name, server in names.mcp_connect.items():
            headers = dict(server.headers)
            if server.access_token:
                headers["Authorization"] = f"Bearer {server.access_token}"
            servers.append(McpServer(name, server.target or "", headers))
    if isinstance(names, CardKeys):
        names = names.servers if isinstance(names, ServedKeys) else ()
    of_project = project.file.mcp
    for name in names:
        if name in of_project:
            servers.append(McpServer(**{"name": name, **dict(of_project[name])}))
    return servers
