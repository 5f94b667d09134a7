"""Tools of a stage as its card, the stage itself and agac.yml name them: read and checked here,
imported for a plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from agac.core.errors import Path_, Problem, UsageError, Where, did_you_mean
from agac.core.keys import snapshot
from agac.core.text import plain
from agac.spec.agent_cards import Card, Skill
from agac.spec.card_models import CardFile, CardKeys, RequestParamsFile, ServedKeys
from agac.spec.mcp_lock import lock_file, locked_tools, read_lock, told_otherwise
from agac.spec.models import RuntimeFile, StageFile
from agac.spec.paths import Refused, home_of, inside
from agac.spec.project_files import files_hash
from agac.spec.python_code import FORM, parse_reference
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
from agac.spec.workflow import Overrides, ProjectSpec
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
    """Reads the tools of one stage, whose keys stand at `path` of `document`. `tools` are the
    agents that it may call, and then all. Problems gather in `problems`."""

    project: ProjectSpec
    document: Document
    path: Path_
    overrides: Overrides
    card: Card | None
    written: StageFile
    tools: list[NamedTool]
    skills: tuple[Skill, ...]
    servers: list[McpServer] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """The fields of a WrittenStage that say what its agent is; none where it has no tools."""
        self.tools += self._of_card(self.card) if self.card else ()
        self.tools += [self._skill_reader()] if self.skills else ()
        for name in self.written.tools or {}:
            if not any(name in _names(one) for one in self.tools):
                self.tools += self._of_stage(name)
        if self.written.runtime is not None:
            return self._runtime(self.written.runtime)
        if self.tools:
            mode = self._mode()
            tools = tuple(map(self._with_keys, self.tools))
            over = self.overrides
            if self.card:
                of_card = self.card.keys.request_params.max_iterations
            else:
                of_card = None
            spec = self._spec(mode)
            turns = over.max_turns or self.written.max_turns or of_card
            files = dict(sorted(self.files.items()))
            how = ToolSettings(
                servers=tuple(self.servers), max_turns=turns or MAX_TURNS, record=mode == "record",
                replay=over.replay, files=files, on_failure=self.written.on_tool_failure or "go_on",
            )  # fmt: skip
            return {"agent_spec": spec, "tooling": how, "named_tools": tools}
        # what is wrong with them is a problem of its own
        wants_tools = self.problems and self.written.tools
        for key in () if wants_tools else self.written.model_fields_set & {*FOR_TOOLS}:
            self._note(
                self._at(key),
                f"{key} is for a stage with tools; name some with `tools`, or in its card",
            )
        return {}

    def _runtime(self, keys: RuntimeFile) -> dict[str, Any]:
        """The fields of a stage whose tasks a program runs, which has tools of its own."""
        written = self.written
        if self.card:
            of_card = self.card.keys.request_params.max_iterations
        else:
            of_card = None
        beside = [
            key
            for key in ("tools", "skills", "messages", *FOR_TOOLS[1:])
            if getattr(written, key) is not None
        ]
        for key in beside:
            self._note(
                self._at(key),
                f"{key} does not go with runtime: {keys.name}, which has its own; remove one",
            )
        if self.card and not beside and (self.tools or self.card.messages):
            what = f"the card {self.card.name} has tools or messages, and {keys.name} has its own"
            self._note(
                self._at("runtime"),
                f"{what}; take a card with an instruction alone, or remove runtime",
            )
        files: tuple[str, ...]
        if keys.files is None:
            files = ()
        else:
            files = (f"{escape(keys.files.rstrip('/'))}/**",)
        source = self._hash(files, self._at("runtime", "files")) if files else None
        turns = self.overrides.max_turns or written.max_turns or of_card or MAX_TURNS
        found = Runtime(**{**dict(keys), "permission": snapshot(keys.permission), "source": source})
        tooling = ToolSettings(max_turns=turns, files=self.files, program=found)
        return {"runtime": Runtime.of(found.body()), "tooling": tooling}

    def _mode(self) -> ToolsMode:
        """Where results of tools come from."""
        over = self.overrides
        written = self.written.tools_mode
        mode = over.tools_mode or (
            "stub" if over.tool_stubs else "replay" if over.replay else written or "live"
        )
        if mode == "replay" and over.replay is None:
            message = (
                "replay needs the run whose tool calls are taken; add --run N to `agac "
                "run` or `agac plan`"
            )
            if written == "replay":
                message += ", and --tools-mode replay in the place of this key"
            self._note(self._at("tools_mode"), message)
        return mode

    def _spec(self, mode: ToolsMode) -> AgentSpec:
        """What decides answers beside the tools themselves."""
        params = self.card.keys.request_params if self.card else RequestParamsFile()
        reads = self.written.reads
        stubs = self._stubs(kept=mode == "stub")
        return AgentSpec(
            card=self.card.name if self.card else None,
            result_mode=params.tool_result_mode,
            parallel=params.parallel_tool_calls,
            structured=params.structured_tool_policy,
            mode="live" if mode == "record" else mode,
            stubs=stubs
            if mode == "stub"
            else {"run": self.overrides.replay}
            if mode == "replay"
            else {},
            reads=None if reads is None else self._hash(reads, self._at("reads")),
        )

    def _skill_reader(self) -> NamedTool:
        skills: dict[str, Any] = {one.name: one.folder for one in self.skills}
        own = self._hash([f"{escape(folder)}/**" for folder in skills.values()], self._at("skills"))
        return NamedTool(
            "skill", "read_skill", self._at("skills"), settings={"hash": own, "skills": skills}
        )

    def _at(self, *key: str | int) -> Where:
        return self.document.where((*self.path, *key))

    def _note(self, where: Where, message: str) -> None:
        self.problems.append(Problem(where, message))

    def _of_card(self, card: Card) -> Iterator[NamedTool]:
        keys = card.keys
        at = card.document.where
        for index, one in enumerate(keys.function_tools):
            yield from self._function(one.entrypoint, at(("function_tools", index)), card)
        for index, name in enumerate(keys.servers):
            self._server(name, at(("servers", index)))
        servers = card_servers(keys, self.project)
        for name in keys.tools.keys() - {one.name for one in servers}:
            known = did_you_mean(name, [one.name for one in servers], "it uses")
            self._note(at(("tools", name), key=True), f"the card uses no server {name!r}; {known}")
        if servers:
            yield from self._locked(servers, card.path, at(("mcp_connect",)), keys.tools)

    def _of_stage(self, name: str) -> Iterable[NamedTool]:
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
        known = [
            *BUILT_IN,
            *self.project.file.mcp,
            *(other for one in self.tools for other in _names(one)),
        ]
        hint = did_you_mean(name, known, "there are")
        message = (
            f"no tool {name!r}; {hint}{'' if hint.endswith('?') else '.'} A function is {FORM}"
        )
        self._note(where, message)
        return ()

    def _function(self, text: str, where: Where, card: Card | None) -> Iterator[NamedTool]:
        base = card.path.parent if card and not card.remote else None
        found, problems = parse_reference(
            text, where, home_of(self.project.root), tool=True, base=base
        )
        self.problems += problems
        if found and any(one.source == str(found) for one in self.tools):
            self._note(where, f"{found} is named twice; name it once")
        elif found:
            yield NamedTool("function", str(found), where, function=found)

    def _server(self, name: str, where: Where) -> list[McpServer]:
        """The server of agac.yml that is called `name`; none, and a problem, where there is
        none."""
        found = card_servers([name], self.project)
        if not found:
            known = did_you_mean(name, self.project.file.mcp, "there are")
            message = (
                f"agac.yml has no MCP server {name!r}; {known}; add `mcp: {{{name}: "
                f"{{target: …}}}}` to it"
            )
            self._note(where, message)
        return found

    def _locked(
        self,
        servers: Sequence[McpServer],
        card: Path,
        where: Where,
        allow: Mapping[str, Sequence[str]],
    ) -> Iterator[NamedTool]:
        """The tools of servers, by what was written down of them beside `card`."""
        if self.card and self.card.remote and self.card.path == card:
            name = self.card.file
        else:
            name = card.stem
        shown = self.project.shown(lock_file(card))
        command = f"agac card lock {name}"
        try:
            locks = read_lock(lock_file(card), shown, command, home_of(self.project.root))
            specs, held = locked_tools(servers, locks, shown, command, allow)
        except UsageError as error:
            told = f"{error.message}. {error.remedy or ''}".strip()
            if os.path.lexists(lock_file(card)) or not self._calls_nothing():
                self._note(where, told)
                return
            what = "its tools are not known here, and the requests are without what it says of them"
            self.problems.append(Problem(where, f"{told} Until then {what}.", "warning"))
            self.servers += servers
            yield from self._unknown_tools(servers, where)
            return
        self.servers += held
        said = [plain(one) for one in told_otherwise(specs)]
        if said:
            if len(said) > MAX_NAMED:
                more = f"; and {len(said) - MAX_NAMED} more tools"
            else:
                more = ""
            message = f"models are told of tools in {shown} in a form that all providers take: "
            self.problems.append(
                Problem(where, f"{message}{'; '.join(said[:MAX_NAMED])}{more}", "warning")
            )
        yield from (NamedTool("mcp", spec.source, where, spec=spec) for spec in specs)

    def _calls_nothing(self) -> bool:
        """Whether no server is reached: for a plan, or with stand-ins."""
        over = self.overrides
        return (
            over.dry
            or (over.tools_mode or ("stub" if over.tool_stubs else self.written.tools_mode))
            == "stub"
        )

    def _unknown_tools(self, servers: Sequence[McpServer], where: Where) -> Iterator[NamedTool]:
        """The tools of servers of which nothing was written down: the stand-ins that no other tool
        has, else one that is called as its server."""
        stubs = self.overrides.tool_stubs or self.written.tool_stubs or {}
        with suppress(ValueError):  # which is said of the stand-ins
            if isinstance(stubs, str):
                stubs = read_stubs(Path(stubs), home_of(self.project.root))
            else:
                stubs = stubs
        others = {name for tool in self.tools for name in _names(tool)}
        if isinstance(stubs, str):
            names = []
        else:
            names = [name for name in stubs if name not in others and "/" not in name]
        for server, own in [(servers[0].name, name) for name in names] or [
            (one.name, one.name) for one in servers
        ]:
            spec = ToolSpec(
                safe_name(own), "", {"type": "object", "properties": {}}, "mcp", f"{server}:{own}"
            )
            yield NamedTool("mcp", spec.source, where, spec=spec)

    def _with_keys(self, tool: NamedTool) -> NamedTool:
        """A tool with what agac.yml and the stage say of it. What it does not take, or lacks, is
        noted."""
        keys: dict[str, Any] = {}
        for level in (self.project.file.tools, self.written.tools or {}):
            for said in (level[name] for name in _names(tool) if name in level):
                keys |= {key: getattr(said, key) for key in said.model_fields_set}
        own = BUILT_IN.get(tool.source, ()) if tool.kind == "builtin" else ()
        # as a stored run has them
        settings = {key: keys.pop(key) for key in sorted(own) if key in keys}
        for other, special in BUILT_IN.items():
            for key in keys.keys() & {*special}:
                self._note(tool.where, f"{tool.source}: {key} is for {other} alone; remove it")
        if own and tool.source == "web_search" and "url" not in settings:
            settings |= _search_of(self.project.env)
        if (
            own
            and (needs := _NEEDED.get(tool.source, "root").partition(":")[0]) not in settings
            and needs != "root"
        ):
            message = (
                f"{tool.source} needs {needs}; write `tools: {{{tool.source}: "
                f"{{{_NEEDED[tool.source]}}}}}`"
            )
            keyed = " or ".join(names[0] for names in _SEARCHES.values())
            also = f"; or set {keyed} in .env" if tool.source == "web_search" else ""
            self._note(tool.where, f"{message} on the stage, or into agac.yml{also}")
        for host in (one for one in settings.get("allow") or () if "/" in one):
            self._note(tool.where, f"http_get: allow names hosts, as example.com, not {host!r}")
        for key in settings.keys() & {"root", "database"}:
            try:
                path = inside(home_of(self.project.root), str(settings[key]))
                if not (path.is_dir() if key == "root" else path.is_file()):
                    raise Refused(f"{settings[key]!r} is not there")
            except Refused as error:
                self._note(tool.where, f"{tool.source}: {key}: {error}")
        if tool.source in ("read_file", "run_sql") and own and self.written.reads is None:
            message = (
                "answers are reused although what it reads changed; name it as `reads` to "
                "have them asked again"
            )
            self.problems.append(Problem(tool.where, f"{tool.source}: {message}", "warning"))
        return replace(tool, keys=keys, settings={**tool.settings, **settings})

    def _stubs(self, *, kept: bool) -> dict[str, Any]:
        """The stand-ins, each file of theirs with a hash of what it holds. They are checked
        whether `kept` or not."""
        over = self.overrides.tool_stubs
        home = home_of(self.project.root)
        found = dict[str, Any]()
        own = {name for tool in self.tools for name in _names(tool)}
        try:
            over = read_stubs(Path(over), home) if isinstance(over, str) else over
        except ValueError as error:
            self._note(Where(str(over)), str(error))
            return {}
        for name, stub in (over or self.written.tool_stubs or {}).items():
            if (over or "/" in self.written.name) and name not in own:
                continue  # it is for another stage, or for another agent of this one
            found[name], typed = stub, self.overrides.tool_stubs
            if isinstance(typed, str):
                where = Where(typed, path=name)
            else:
                where = self._at("tool_stubs", name)
            fault = stub_fault(stub)
            if fault:
                self._note(where, fault)
            elif file := stub_file(stub):
                found[name] = stub | {"hash": self._hash([file], where, kept=kept)}
                try:
                    recorded_calls(home / file, found[name]["hash"], home)
                except (OSError, ValueError) as error:
                    self._note(where, str(error))
        return found

    def _hash(self, patterns: Sequence[str], where: Where, *, kept: bool = True) -> str:
        home = home_of(self.project.root)
        try:
            for pattern in patterns:
                inside(home, pattern)
            found = files_hash(home, patterns)
        except Refused as error:
            self._note(where, str(error))
            return ""
        self.files |= {found: tuple(patterns)} if kept else {}
        return found


def _search_of(env: Mapping[str, str]) -> dict[str, str]:
    """The settings of a web search by the first service whose key is there; none where there is no
    key."""
    for url, variables in _SEARCHES.items():
        for name in variables:
            if env.get(name):
                return {"url": url, "api_key": f"${{{name}}}"}
    return {}


def _names(tool: NamedTool) -> tuple[str, ...]:
    """The names by which `tools` may mean a tool, the most general first."""
    if tool.spec:
        return tool.source.partition(":")[0], tool.source, tool.spec.name
    return tool.source, function_name(tool.function) if tool.function else f"agent__{tool.source}"


def for_no_tool(tools: Sequence[NamedTool], overrides: Overrides, home: Path) -> Iterator[Problem]:
    """What is said of tools for one invocation, and for none of the `tools` of its workflow."""
    said = overrides.tool_stubs or {}
    known = sorted({name for tool in tools for name in _names(tool)})
    where = Where("--tool-stubs" if said else "--tools-mode")
    if not tools and (
        said or overrides.replay is not None or overrides.tools_mode not in (None, "live")
    ):
        yield Problem(where, "has no effect: no stage has tools; leave it out", "warning")
    elif said and overrides.tools_mode not in (None, "stub"):
        yield Problem(
            where,
            f"stubs are not asked with --tools-mode {overrides.tools_mode}; leave out one of them",
        )
    with suppress(ValueError):  # which was said of a stage
        for name in (
            (read_stubs(Path(said), home) if isinstance(said, str) else said).keys() - known
            if tools
            else ()
        ):
            yield Problem(
                where,
                f"no stage has a tool {name!r}; {did_you_mean(name, known, 'the tools are')}",
                "warning",
            )


def card_servers(names: CardKeys | Sequence[str], project: ProjectSpec) -> list[McpServer]:
    """The MCP servers of a card, or those with these names in agac.yml; names that it has not are
    left out."""
    known = project.file.mcp
    own = list[McpServer]()
    if isinstance(names, CardFile):
        for name, one in names.mcp_connect.items():
            if one.access_token:
                token = {"Authorization": f"Bearer {one.access_token}"}
            else:
                token = {}
            own.append(McpServer(name, one.target or "", {**one.headers, **token}))
    if isinstance(names, CardKeys):
        names = names.servers if isinstance(names, ServedKeys) else ()
    return [
        *own,
        *(McpServer(**{"name": name, **dict(known[name])}) for name in names if name in known),
    ]
