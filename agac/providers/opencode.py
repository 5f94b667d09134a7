"""OpenCode's command line as the runtime of a stage: each task is a session of `opencode run` in a
folder of its own, which asks the stage's model. What comes of a session is one JSON document; its
reply or its fault is read of that. Facts: opencode-ai 1.18.33, run against the simulator, November
2026. Two programs with one data folder lock each other out, and a new one costs seconds: so there
is a pool of them. `steps` is a word to the model and no bound."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Any

from agac.core.errors import ErrorType, UsageError, storable
from agac.core.redact import Redactor
from agac.core.types import (
    Fault,
    FaultKind,
    Finish,
    JSONValue,
    Params,
    Reply,
    Request,
    Schema,
    Usage,
)
from agac.providers import keeper
from agac.providers.bodies import count, encode, json_of, mapping, text
from agac.providers.dialect import NO_HEADERS, Assembly, Begins, Dialect, believable
from agac.providers.endings import MAX_WORD, SESSION_ENDINGS, ending
from agac.providers.error_bodies import read_openai_error
from agac.providers.http import HttpReply
from agac.providers.provider import SERVER_TOOLS, Provider
from agac.providers.structured import shape_of
from agac.providers.table import DIALECTS
from agac.providers.thinking import without_thinking
from agac.spec.project_files import copy_file
from agac.spec.tools import Runtime
from agac.spec.workflow import Timeout

_DENIED = {
    "*": "deny",
    "read": {"*": "allow", "*.env": "deny", "*.env.*": "deny"},
    "glob": "allow",
    "grep": "allow",
    "list": "allow",
}
"""What a session may do where nobody says more: read its folder. The last pattern that matches
counts."""

_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
"""Of the user's environment a program is given these, and proxies; others may hold secrets."""

_OFF = (
    "AUTOUPDATE MODELS_FETCH DEFAULT_PLUGINS LSP_DOWNLOAD AUTOCOMPACT PRUNE CLAUDE_CODE "
    "PROJECT_CONFIG"
)
_COMPATIBLE = "@ai-sdk/openai-compatible"
_RESPONSES = "@ai-sdk/openai"
_ANTHROPIC = "@ai-sdk/anthropic"
_WORDS = {
    "reasoning": "reasoningEffort",
    "service_tier": "serviceTier",
    "verbosity": "textVerbosity",
}
_OWN_PARAMS = ("temperature", "top_p", "max_tokens")

LINE = 16_000_000
EVENTS = 1_000_000
TEXT = 20_000
STDERR = 4_000
"""Bytes of an event at most; characters that are kept: of the events of a session, of a text in
them, of its errors."""

SESSIONS = 200  # of a data folder, which grows with each, before a new one takes its place
LOCKED = "database is locked"  # what a program says that finds its data folder in use


def _package(provider: Provider) -> str:
    """What speaks to a provider there. OpenAI's newer models refuse the `max_tokens` that it asks
    chat completions with, so its own (of which prefixes are marked) are asked by its other API."""
    if provider.dialect == "openai-chat" and provider.marked is None:
        return _COMPATIBLE
    if provider.dialect == "anthropic":
        return _ANTHROPIC
    return _RESPONSES


def unsendable(params: Params, provider: Provider) -> list[str]:
    """The parameters that are set and that no session can be asked with."""
    given = [name for name in Params.__slots__ if getattr(params, name) is not None]
    by = _package(provider)
    known = (*_OWN_PARAMS, *(_WORDS if by == _RESPONSES else ()))
    return [
        name for name in given if (name in SERVER_TOOLS if by == _COMPATIBLE else name not in known)
    ]


def find_program(command: str, root: Path, env: Mapping[str, str]) -> str:
    """The path of a command; one with a slash is relative to the project. Raises UsageError."""
    found = shutil.which(str(root / command) if "/" in command else command, path=env.get("PATH"))
    if found is None:
        remedy = (
            "Install it with `npm install -g opencode-ai`, or say where it is: `runtime: "
            "{command: PATH}`."
        )
        raise UsageError(
            f"the program {command!r} of runtime: opencode is not found", remedy=remedy
        )
    return found


def _environment(
    how: Runtime, turns: int, provider: Provider, name: str, params: Params
) -> dict[str, str]:
    """OpenCode's configuration, and the variables that it names: no key or header stands in it."""
    by = _package(provider)
    limit = {"context": how.context, "output": params.max_tokens or provider.max_tokens}
    options = {
        word: value for one, word in _WORDS.items() if (value := getattr(params, one)) is not None
    }
    if by == _COMPATIBLE:
        bare = Request((), params=replace(params, **dict.fromkeys(_OWN_PARAMS)))
        options = DIALECTS[provider.dialect].build(bare, name, provider)
        options = {key: value for key, value in options.items() if key not in ("model", "messages")}
    headers = {**DIALECTS[provider.dialect].headers(provider), **provider.headers}
    secrets = {"AGAC_KEY": provider.api_key or "none"}
    secrets |= {f"AGAC_HEADER_{place}": value for place, value in enumerate(headers.values())}
    told = {
        "baseURL": provider.base_url,
        "apiKey": "{env:AGAC_KEY}",
        "includeUsage": provider.stream_usage,
    }
    told["headers"] = {one: f"{{env:AGAC_HEADER_{place}}}" for place, one in enumerate(headers)}
    model = {"id": name, "tool_call": True, "temperature": True, "options": options, "limit": limit}
    agent = {
        key: value
        for key in ("temperature", "top_p")
        if (value := getattr(params, key)) is not None
    }
    config = {
        "model": "agac/m",
        "small_model": "agac/m",
        "share": "disabled",
        "autoupdate": False,
        "snapshot": False,
        "permission": {**_DENIED, **json.loads(how.permission)},
        "agent": {"build": {"steps": turns, **agent}},
        "provider": {"agac": {"npm": by, "name": "agac", "options": told, "models": {"m": model}}},
    }
    # a variable is put into the text of the configuration as it is
    own = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        **{f"OPENCODE_DISABLE_{one}": "1" for one in _OFF.split()},
    }
    return own | {key: json.dumps(value)[1:-1] for key, value in secrets.items()}


@dataclass(slots=True)
class Transcript:
    """What a session says, as it comes, and what it comes to. `most`: calls of the model, tokens
    of a request; `clean` takes keys out before anything is cut; `failure`: the kind of error for
    which it was ended, and why."""

    most: tuple[int, int]
    clean: Callable[[bytes], bytes]
    failure: tuple[ErrorType, str] | None = None
    session: str | None = None
    texts: list[str] = field(default_factory=list)
    long: int = 0
    finish: str = ""
    calls: int = 0
    error: JSONValue = None
    usage: dict[str, int | None] = field(default_factory=dict)
    events: list[JSONValue] = field(default_factory=list)
    left: int = EVENTS
    stderr: bytes = b""

    def take(self, line: bytes) -> None:
        """One line of its output; what is no event is left out."""
        event = mapping(json_of(self.clean(line)))
        part = mapping(event.get("part"))
        kind = text(event, "type")
        session = text(event, "sessionID")
        self.session = self.session or (session if session.isidentifier() else None)
        if kind == "step_start":
            self.texts = []
            self.long = 0
            self.finish = ""
        elif kind == "text":
            self.texts.append(storable(text(part, "text")))
            self.long += len(self.texts[-1])
            if self.long > LINE:
                self.failure = (
                    ErrorType.REPLY_TOO_LARGE,
                    f"its answer had more than {LINE:,} characters",
                )
        elif kind == "error":
            self.error = _shortened(event.get("error")) or {"name": "error"}
        elif kind == "step_finish":
            self._count(mapping(part.get("tokens")), text(part, "reason"))
        shown = _shortened(event)
        self.left -= len(json.dumps(shown))
        self.events += [shown] if kind and self.left >= 0 else []

    def _count(self, tokens: dict[str, Any], reason: str) -> None:
        """A call of the model that ended: `input` is without what a cache had, `output` without
        what was thought."""
        cache = mapping(tokens.get("cache"))
        thought = count(tokens, "reasoning") or 0
        read = count(cache, "read") or 0
        written = count(cache, "write") or 0
        given = (count(tokens, "input") or 0) + read + written
        made = (count(tokens, "output") or 0) + thought
        call = believable(Usage(given, made, read, thought, written), wrote=True)
        for name in _COUNTED:
            number = getattr(call, name)
            before = self.usage.get(name, 0)
            # what one call did not count is unknown for the whole session
            self.usage[name] = None if number is None or before is None else before + number
        self.calls = self.calls + 1
        self.finish = reason
        if reason == "tool-calls" and self.calls >= self.most[0]:
            self.failure = (
                ErrorType.TOOL_LOOP_LIMIT,
                f"it asked for tools after max_turns, {self.most[0] - 1}",
            )
        elif given > self.most[1]:
            why = f"a request had {given:,} tokens, more than `runtime.context`, {self.most[1]:,}"
            self.failure = ErrorType.BUDGET_EXCEEDED, why

    async def follow(
        self, process: Process, prompt: str, folder: Path, seconds: float | None
    ) -> None:
        """Says the prompt, and hears what comes until the program ends, or is to be ended."""
        works = _say(process, prompt), self._note(process), _end_rest(process, folder)
        others = [asyncio.ensure_future(one) for one in works]
        try:
            async with asyncio.timeout(seconds):
                assert process.stdout is not None
                while self.failure is None and (line := await process.stdout.readline()):
                    self.take(line)
                if self.failure is None:
                    await asyncio.gather(*others)
        except TimeoutError:
            self.failure = ErrorType.TIMEOUT, f"it took longer than {seconds:g} s"
        except ValueError:
            self.failure = ErrorType.REPLY_TOO_LARGE, f"an event had more than {LINE:,} bytes"
        finally:
            for one in others:
                one.cancel()

    async def _note(self, process: Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(STDERR):
            self.stderr = (self.stderr + piece)[-2 * STDERR :]

    def body(self, status: int | None, seconds: float) -> dict[str, JSONValue]:
        """The document that is kept."""
        return {
            "runtime": "opencode",
            "session": self.session,
            "exit": status,
            "failure": self.failure,
            "failed": self.error,
            "finish": self.finish,
            "text": "\n".join(self.texts),
            "calls": self.calls,
            "usage": self.usage,
            "seconds": round(seconds, 3),
            "events": self.events,
            "cut": self.left < 0,
            "stderr": storable(self.clean(self.stderr)[-STDERR:].decode("utf-8", "replace")),
        }


def answered(answer: str) -> dict[str, JSONValue]:
    """The document of a session that took one call of the model and ended with this answer, for
    tests of workflows."""
    session = Transcript((2, 1), bytes, session="simulated", texts=[answer], finish="stop", calls=1)
    return session.body(0, 0.0)


_COUNTED = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cache_write_tokens",
)


def _shortened(value: Any, depth: int = 50) -> Any:
    """An event with its long texts cut, and what lies deep in it."""
    if not depth:
        return "…"
    if isinstance(value, dict):
        return {key: _shortened(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner, depth - 1) for inner in value]
    if not isinstance(value, str) or len(value) <= TEXT:
        return value
    return f"{value[:TEXT]}… ({len(value):,} characters)"


async def _say(process: Process, prompt: str) -> None:
    """Gives the prompt on standard input, which has no limit; the program begins once that ends."""
    assert process.stdin is not None
    with suppress(ConnectionError):  # it has ended
        process.stdin.write(prompt.encode("utf-8", "replace"))
        await process.stdin.drain()
    process.stdin.close()


def _uncounted(folder: str, names: list[str]) -> list[str]:
    """Of what lies in a folder that is copied, what its hash does not hold: hidden files, and
    folders by a link."""
    return [
        one
        for one in names
        if one.startswith(".") or ((at := Path(folder, one)).is_symlink() and at.is_dir())
    ]


async def _end_rest(process: Process, folder: Path) -> None:
    """Once the program has ended, ends what it left, which may hold its pipes open."""
    await process.wait()
    await asyncio.to_thread(keeper.end, folder)


class Program:
    """Runs sessions, in the place of a sender: the body of a request says what is asked, or said
    in an earlier session. `told` stands before all prompts. It has `max_agents` data folders, each
    for one process at a time."""

    def __init__(
        self,
        command: str,
        how: Runtime,
        turns: int,
        told: str,
        root: Path,
        env: Mapping[str, str],
        redactor: Redactor,
    ) -> None:
        self._clean = redactor.clean_bytes
        self._command = command
        self._how = how
        self._turns = turns
        self._told = told
        self._env = env
        self._root = root
        self._files = None if how.files is None else root / how.files
        self._base = Path(tempfile.mkdtemp(prefix="agac-agents-")).resolve()
        self._used = dict[Path, int]()
        self._sessions = dict[str, tuple[Path, Path]]()
        self._numbers = numbers(1)
        self._idle = [self._base / f"data-{one}" for one in range(how.max_agents)]
        self._freed = asyncio.Condition()

    async def start(self) -> None:
        """Starts what ends all sessions, and removes their folders, when agac ends."""
        watch = (sys.executable, "-ISE", keeper.__file__, str(self._base))
        self._keeper = await asyncio.create_subprocess_exec(
            *watch, stdin=PIPE, env={}, start_new_session=True
        )

    async def close(self) -> None:
        """Ends what is left of all sessions, and removes their folders."""
        await asyncio.shield(self._keeper.communicate(b""))

    async def send(
        self,
        wire: bytes,
        timeout: Timeout,
        *,
        within: float | None = None,
        fresh: bool = False,
        begins: Begins = None,
    ) -> HttpReply | Fault:
        """Runs a session, or goes on with one. What comes of it is the body, whose status is
        always 200."""
        asked = mapping(json_of(wire))
        started = time.monotonic()
        new = None, self._base / f"task-{next(self._numbers)}"
        # so that nobody gives it up meanwhile
        data, folder = self._sessions.pop(asked.get("session", ""), new)
        goes_on = data is not None
        async with self._freed:
            await self._freed.wait_for(lambda: data in self._idle if goes_on else self._idle)
            data = data or self._idle[-1]
            self._idle.remove(data)
        if goes_on:
            prompt = asked["said"]
        else:
            prompt = "\n\n".join(filter(None, (asked["prompt"], asked.get("said"))))
        seen = Transcript((self._turns, self._how.context), self._clean)
        try:
            process = await self._started(data, folder, asked["session"] if goes_on else None)
            try:
                bounds = [one for one in (timeout.total, within) if one is not None]
                await seen.follow(process, prompt, folder, min(bounds, default=None))
            finally:
                await asyncio.shield(
                    asyncio.gather(asyncio.to_thread(keeper.end, folder), process.wait())
                )
        except OSError as error:
            what = f"a session of {self._command} cannot be started: {error.strerror or error}"
            return Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, what)
        finally:
            async with self._freed:
                # a session is kept while it may be asked again, which is at once; its folder goes
                # with it
                self._sessions[seen.session or str(folder)] = data, folder
                self._used[data] = self._used.get(data, 0) + 1
                full = self._used[data] >= SESSIONS
                old = [key for key, one in self._sessions.items() if full and one[0] == data]
                for key in dict.fromkeys(
                    (*old, *list(self._sessions)[: -2 * self._how.max_agents])
                ):
                    shutil.rmtree(self._sessions.pop(key)[1], ignore_errors=True)
                if full:
                    shutil.rmtree(data, ignore_errors=True)
                    self._used[data] = 0
                self._idle.append(data)
                self._freed.notify_all()
        took = time.monotonic() - started
        return HttpReply(200, NO_HEADERS, encode(seen.body(process.returncode, took)), took)

    def _copy_files(self, folder: Path) -> None:
        """Makes the folder of a session, with the files that it gets. Raises OSError."""
        if self._files is None:
            folder.mkdir()
            return
        copy = partial(copy_file, root=self._root)
        shutil.copytree(self._files, folder, ignore=_uncounted, copy_function=copy)

    async def _started(self, data: Path, folder: Path, session: str | None) -> Process:
        if not data.exists():
            (data / "config" / "opencode").mkdir(parents=True)
            (data / "config" / "opencode" / "AGENTS.md").write_text(self._told, encoding="utf-8")
        if session is None:
            await asyncio.to_thread(self._copy_files, folder)
        words = [self._command, "run", "--format", "json", "--model", "agac/m", "--title", "task"]
        own = {
            f"XDG_{name.upper()}_HOME": str(data / name)
            for name in ("config", "data", "cache", "state")
        }
        own |= {"HOME": str(data), "PWD": str(folder), keeper.MARK: str(folder)}
        return await asyncio.create_subprocess_exec(
            *words,
            *(("--session", session) if session else ()),
            cwd=folder,
            env={**self._env, **own},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE,
            start_new_session=True,
        )


async def _version(command: str, env: Mapping[str, str]) -> str:
    """What a program says of its version; empty where it says nothing in time, or is none."""
    asks = command, "--version"
    with suppress(OSError, TimeoutError):
        shown = await asyncio.create_subprocess_exec(
            *asks, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=env
        )
        try:
            assert shown.stdout is not None
            async with asyncio.timeout(60):
                words = await shown.stdout.read(1_000)
            return words.decode("utf-8", "replace").strip()
        finally:
            with suppress(ProcessLookupError):
                shown.kill()
            await shown.wait()
    return ""


async def open_program(
    how: Runtime,
    max_turns: int,
    asked: tuple[Provider, str, Params],
    told: tuple[str | None, Schema | None],
    root: Path,
    env: Mapping[str, str],
    redactor: Redactor,
) -> Program:
    """The program of a stage that asks this model, ready to be run; `told` are its instructions
    and the form of its answers. Raises UsageError where it is not there, or has another version."""
    command, (system, schema) = find_program(how.command, root, env), told
    passed = {
        name: value
        for name, value in env.items()
        if name in _PASSED or name.lower().endswith("_proxy")
    }
    if how.version is not None:
        version = await _version(command, passed)
        if not f"{version}.".startswith(f"{how.version}."):
            remedy = (
                f"Install it: `npm install -g opencode-ai@{how.version}`; or change "
                "`runtime.version`."
            )
            raise UsageError(
                f"{command} has the version {version or 'unknown'}, not {how.version}",
                remedy=remedy,
            )
    form = shape_of(schema, replace(asked[0], structured="none"), lambda *_: None).instruction
    local = ",".join(
        filter(
            None, (passed.get("NO_PROXY", passed.get("no_proxy")), "127.0.0.1", "localhost", "::1")
        )
    )
    passed |= {"NO_PROXY": local, "no_proxy": local} | _environment(how, max_turns + 1, *asked)
    program = Program(
        command,
        how,
        max_turns + 1,
        "\n\n".join(filter(None, (system, form))),
        root,
        passed,
        redactor,
    )
    await program.start()
    return program


# What sessions are asked, and what came of them, as a dialect.


def _build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    said = [message.text for message in request.messages if message.role == "user"]
    return {
        "prompt": said[0],
        **({"session": request.session or "", "said": said[-1]} if len(said) > 1 else {}),
    }


def _read(doc: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """What became of a session: a reply where the program ended well and its last step is an
    answer."""
    counts = mapping(doc.get("usage"))
    failed = mapping(doc.get("failed"))
    stderr = text(doc, "stderr")
    given, made, read, thought, written = (count(counts, name) for name in _COUNTED)
    usage = Usage(given, made, read, thought, written) if counts else None
    failure = doc.get("failure")
    if failure:
        message = f"the session was ended: {failure[1]}"
        return Fault(FaultKind.TASK, ErrorType(failure[0]), message, ambiguous=True, usage=usage)
    data = mapping(failed.get("data"))
    message = ""
    ended = doc.get("exit")
    if (failed or ended != 0) and (LOCKED in stderr or LOCKED in json.dumps(failed)):
        message = "OpenCode's own database was locked"
        return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, usage=usage)
    if type(code := data.get("statusCode")) is int and code >= 400:
        body = text(data, "responseBody").encode("utf-8", "replace")
        headers = {
            name.lower(): str(value) for name, value in mapping(data.get("responseHeaders")).items()
        }
        found = DIALECTS[provider.dialect].parse(code, headers, body, provider, model, Redactor())
        if isinstance(found, Fault):
            return replace(found, usage=usage)
        return found
    if failed or ended != 0:
        why = text(data, "message") or text(failed, "name") or stderr.strip().rpartition("\n")[2]
        message = f"OpenCode ended with exit status {ended}{f': {why}' if why else ''}"
    else:
        word = text(doc, "finish")
        finish = ending(word, SESSION_ENDINGS).meaning
        if word and isinstance(finish, Finish) and finish is not Finish.OTHER:
            session = text(doc, "session") or None
            known = usage or Usage()
            answer = without_thinking(text(doc, "text"), cut=finish is Finish.LENGTH)
            return Reply(
                answer, finish, known, model, simulated=provider.simulated, session=session
            )
        last = f": its last step ended with {word[:MAX_WORD]!r}" if word else ""
        message = f"OpenCode ended well, and without an answer{last}"
    return Fault(
        FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, ambiguous=True, retries=1, usage=usage
    )


OPENCODE = Dialect(
    path="", refused={}, headers=lambda _: {}, build=_build, shaping=lambda *_: None, read=_read,
    read_error=read_openai_error, rules=(), rates=lambda _: None, assembly=Assembly,
)  # fmt: skip
