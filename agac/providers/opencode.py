"""OpenCode's command line as the runtime of a stage: each task is a session of `opencode run` in a
folder of its own, which asks the stage's model. What comes of a session is in `opencode_session`.
Facts: opencode-ai 1.18.33, run against the simulator, November 2026. Two programs with one data
folder lock each other out, and a new one costs seconds: so there is a pool of them. `steps` is a
word to the model and no bound."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Any

from agac.core.errors import ErrorType, UsageError
from agac.core.redact import Redactor
from agac.core.types import (
    Fault,
    FaultKind,
    JSONValue,
    Params,
    Request,
    Schema,
)
from agac.providers import keeper
from agac.providers.bodies import encode, json_of, mapping
from agac.providers.dialect import NO_HEADERS, Begins
from agac.providers.http import HttpReply
from agac.providers.opencode_session import LINE, Transcript
from agac.providers.provider import SERVER_TOOLS, Provider
from agac.providers.structured import shape_of
from agac.providers.table import DIALECTS
from agac.spec.project_files import copy_file
from agac.spec.rules import Timeout
from agac.spec.tools import Runtime

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

SESSIONS = 200
"""Sessions of a data folder, which grows with each, before a new one takes its place."""


def _package(provider: Provider) -> str:
    """Returns the package that speaks to a provider there. OpenAI's newer models refuse the
    `max_tokens` that it asks chat completions with, so its own (of which prefixes are marked) are
    asked by its other API."""
    if provider.dialect == "openai-chat" and provider.marked is None:
        return _COMPATIBLE
    if provider.dialect == "anthropic":
        return _ANTHROPIC
    return _RESPONSES


def unsendable(params: Params, provider: Provider) -> list[str]:
    """Returns the parameters that are set and that no session can be asked with."""
    names = [name for name in Params.__slots__ if getattr(params, name) is not None]
    package = _package(provider)
    if package == _COMPATIBLE:
        return [name for name in names if name in SERVER_TOOLS]
    known = {*_OWN_PARAMS, *(_WORDS if package == _RESPONSES else ())}
    return [name for name in names if name not in known]


def find_program(command: str, root: Path, env: Mapping[str, str]) -> str:
    """Returns the path of a command; one with a slash is relative to the project. Raises
    UsageError."""
    path = str(root / command) if "/" in command else command
    program = shutil.which(path, path=env.get("PATH"))
    if program is None:
        remedy = (
            "Install it with `npm install -g opencode-ai`, or say where it is: `runtime: "
            "{command: PATH}`."
        )
        raise UsageError(
            f"the program {command!r} of runtime: opencode is not found", remedy=remedy
        )
    return program


def _environment(
    how: Runtime, turns: int, provider: Provider, name: str, params: Params
) -> dict[str, str]:
    """Returns OpenCode's configuration, and the variables that it names: it holds no key or
    header itself."""
    headers = {**DIALECTS[provider.dialect].headers(provider), **provider.headers}
    variables = {f"AGAC_HEADER_{number}": value for number, value in enumerate(headers.values())}
    variables["AGAC_KEY"] = provider.api_key or "none"
    connection = {
        "baseURL": provider.base_url,
        "apiKey": "{env:AGAC_KEY}",
        "includeUsage": provider.stream_usage,
        "headers": {
            header: f"{{env:AGAC_HEADER_{number}}}" for number, header in enumerate(headers)
        },
    }
    package = _package(provider)
    limit = {"context": how.context, "output": params.max_tokens or provider.max_tokens}
    model = {
        "id": name,
        "tool_call": True,
        "temperature": True,
        "options": _model_options(package, provider, name, params),
        "limit": limit,
    }
    provided = {"npm": package, "name": "agac", "options": connection, "models": {"m": model}}
    sampling = {
        key: getattr(params, key)
        for key in ("temperature", "top_p")
        if getattr(params, key) is not None
    }
    config = {
        "model": "agac/m",
        "small_model": "agac/m",
        "share": "disabled",
        "autoupdate": False,
        "snapshot": False,
        "permission": {**_DENIED, **json.loads(how.permission)},
        "agent": {"build": {"steps": turns, **sampling}},
        "provider": {"agac": provided},
    }
    # a variable is put into the text of the configuration as it is
    escaped = {key: json.dumps(value)[1:-1] for key, value in variables.items()}
    disabled = {f"OPENCODE_DISABLE_{feature}": "1" for feature in _OFF.split()}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config), **disabled, **escaped}


def _model_options(
    package: str, provider: Provider, name: str, params: Params
) -> dict[str, JSONValue]:
    """Returns the options of a model in the configuration: the parameters that it is asked with,
    but for those that OpenCode has words of its own for."""
    if package == _COMPATIBLE:
        bare = Request((), params=replace(params, **dict.fromkeys(_OWN_PARAMS)))
        wire = DIALECTS[provider.dialect].build(bare, name, provider)
        return {key: value for key, value in wire.items() if key not in ("model", "messages")}
    return {
        word: getattr(params, param)
        for param, word in _WORDS.items()
        if getattr(params, param) is not None
    }


def _uncounted(folder: str, names: list[str]) -> list[str]:
    """Returns the names in a folder that is copied which its hash does not hold: hidden files, and
    folders by a link."""
    return [name for name in names if name.startswith(".") or _is_linked_folder(Path(folder, name))]


def _is_linked_folder(path: Path) -> bool:
    return path.is_symlink() and path.is_dir()


class Program:
    """Runs sessions, in the place of a sender: the body of a request has the prompt, or what
    continues an earlier session. It has `max_agents` data folders, each for one process at a
    time."""

    def __init__(
        self,
        command: str,
        how: Runtime,
        turns: int,
        instructions: str,
        root: Path,
        env: Mapping[str, str],
        redactor: Redactor,
    ) -> None:
        """`instructions` come before all prompts."""
        self._clean = redactor.clean_bytes
        self._command = command
        self._how = how
        self._turns = turns
        self._instructions = instructions
        self._env = env
        self._root = root
        self._files = None if how.files is None else root / how.files
        self._base = Path(tempfile.mkdtemp(prefix="agac-agents-")).resolve()
        self._used = dict[Path, int]()
        self._sessions = dict[str, tuple[Path, Path]]()
        self._numbers = numbers(1)
        self._idle = [self._base / f"data-{number}" for number in range(how.max_agents)]
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
        """Runs a session, or continues one. What comes of it is the body, whose status is always
        200."""
        asked = mapping(json_of(wire))
        started = time.monotonic()
        # removed, so that no other task gives it up meanwhile
        data, folder = self._sessions.pop(
            asked.get("session", ""), (None, self._base / f"task-{next(self._numbers)}")
        )
        session = None if data is None else asked["session"]
        data = await self._take_data_folder(data)
        transcript = Transcript((self._turns, self._how.context), self._clean)
        bounds = [bound for bound in (timeout.total, within) if bound is not None]
        try:
            process = await self._started(data, folder, session)
            try:
                prompt = _prompt_of(asked, continues=session is not None)
                await transcript.follow(process, prompt, folder, min(bounds, default=None))
            finally:
                await asyncio.shield(
                    asyncio.gather(asyncio.to_thread(keeper.end, folder), process.wait())
                )
        except OSError as error:
            what = f"a session of {self._command} cannot be started: {error.strerror or error}"
            return Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, what)
        finally:
            async with self._freed:
                self._give_back(data, folder, transcript.session)
                self._freed.notify_all()
        took = time.monotonic() - started
        return HttpReply(200, NO_HEADERS, encode(transcript.body(process.returncode, took)), took)

    async def _take_data_folder(self, wanted: Path | None) -> Path:
        """Waits for a data folder, or for the `wanted` one, and takes it."""
        async with self._freed:
            await self._freed.wait_for(
                lambda: self._idle if wanted is None else wanted in self._idle
            )
            data = wanted or self._idle[-1]
            self._idle.remove(data)
        return data

    def _give_back(self, data: Path, folder: Path, session: str | None) -> None:
        """Gives a data folder back, and removes the folders of sessions that are no longer kept.

        A session is kept while it may be asked again, which is at once; its folder goes with it."""
        self._sessions[session or str(folder)] = data, folder
        self._used[data] = self._used.get(data, 0) + 1
        is_full = self._used[data] >= SESSIONS
        dropped: list[str] = []
        if is_full:
            dropped += [key for key, folders in self._sessions.items() if folders[0] == data]
        dropped += list(self._sessions)[: -2 * self._how.max_agents]
        for key in dict.fromkeys(dropped):
            _, old_folder = self._sessions.pop(key)
            shutil.rmtree(old_folder, ignore_errors=True)
        if is_full:
            shutil.rmtree(data, ignore_errors=True)
            self._used[data] = 0
        self._idle.append(data)

    def _copy_files(self, folder: Path) -> None:
        """Makes the folder of a session, with the files that it gets. Raises OSError."""
        if self._files is None:
            folder.mkdir()
            return
        copy = partial(copy_file, root=self._root)
        shutil.copytree(self._files, folder, ignore=_uncounted, copy_function=copy)

    async def _started(self, data: Path, folder: Path, session: str | None) -> Process:
        """Starts the program for a session. Raises OSError."""
        if not data.exists():
            config = data / "config" / "opencode"
            config.mkdir(parents=True)
            (config / "AGENTS.md").write_text(self._instructions, encoding="utf-8")
        if session is None:
            await asyncio.to_thread(self._copy_files, folder)
        words = [self._command, "run", "--format", "json", "--model", "agac/m", "--title", "task"]
        if session:
            words += ["--session", session]
        folders = {
            f"XDG_{name.upper()}_HOME": str(data / name)
            for name in ("config", "data", "cache", "state")
        }
        places = {"HOME": str(data), "PWD": str(folder), keeper.MARK: str(folder)}
        return await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env={**self._env, **folders, **places},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE,
            start_new_session=True,
        )


def _prompt_of(asked: dict[str, Any], *, continues: bool) -> str:
    """Returns what the program is given: what was said last, or all that was said."""
    if continues:
        return str(asked["said"])
    return "\n\n".join(filter(None, (asked["prompt"], asked.get("said"))))


async def _version(command: str, env: Mapping[str, str]) -> str:
    """Returns what a program says of its version; empty where it says nothing in time, or is
    none."""
    with suppress(OSError, TimeoutError):
        program = await asyncio.create_subprocess_exec(
            command, "--version", stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=env
        )
        try:
            assert program.stdout is not None
            async with asyncio.timeout(60):
                words = await program.stdout.read(1_000)
            return words.decode("utf-8", "replace").strip()
        finally:
            with suppress(ProcessLookupError):
                program.kill()
            await program.wait()
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
    """Returns the program of a stage that asks this model, ready to be run; `told` are its
    instructions and the form of its answers. Raises UsageError where it is not there, or has
    another version."""
    command = find_program(how.command, root, env)
    passed = {name: value for name, value in env.items() if _is_passed(name)}
    if how.version is not None:
        _check_version(how.version, command, await _version(command, passed))
    system, schema = told
    form = shape_of(schema, replace(asked[0], structured="none"), lambda *_: None).instruction
    local = _without_proxy(passed)
    configuration = _environment(how, max_turns + 1, *asked)
    program = Program(
        command,
        how,
        max_turns + 1,
        "\n\n".join(filter(None, (system, form))),
        root,
        {**passed, "NO_PROXY": local, "no_proxy": local, **configuration},
        redactor,
    )
    await program.start()
    return program


def _is_passed(name: str) -> bool:
    """True if a program is given this variable of the user's environment."""
    return name in _PASSED or name.lower().endswith("_proxy")


def _check_version(wanted: str, command: str, version: str) -> None:
    """Raises UsageError where a program has another version than is wanted."""
    if f"{version}.".startswith(f"{wanted}."):
        return
    remedy = f"Install it: `npm install -g opencode-ai@{wanted}`; or change `runtime.version`."
    raise UsageError(
        f"{command} has the version {version or 'unknown'}, not {wanted}", remedy=remedy
    )


def _without_proxy(env: Mapping[str, str]) -> str:
    """Returns the hosts that are reached without a proxy: the user's, and this machine."""
    excepted = env.get("NO_PROXY", env.get("no_proxy"))
    return ",".join(filter(None, (excepted, "127.0.0.1", "localhost", "::1")))
