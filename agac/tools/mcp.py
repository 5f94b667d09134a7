"""MCP servers at work: sessions that rows share or have alone, replaced when they end, and held to
their lock."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agac.core.errors import UsageError, lack_of
from agac.core.keys import canonical, digest
from agac.spec.mcp_lock import (
    HUB,
    SUFFIX,
    ServerAddress,
    ServerLock,
    connection,
    difference,
    read_lock,
)
from agac.spec.paths import home_of
from agac.spec.tools import McpServer, ToolRules
from agac.tools.tool_functions import (
    NO_INTENT,
    Intent,
    SessionGone,
    ToolFailed,
    ToolLost,
    ToolTimeout,
)

if TYPE_CHECKING:
    from agac.tools.mcp_session import McpSession, Mode

MOST_FAILURES = 3
BACKOFF_S = 0.5
REST_S = 30.0
"""Sessions of a server that may end or not begin without a call that worked between them; seconds
before the second, which double; and those for which it is left alone then, until a call tries it
once."""

_GUARD = """\
import os, signal, sys
alive = set()
for line in sys.stdin:
    number = int(line)
    alive.add(number) if number > 0 else alive.discard(-number)
for group in alive:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""Ends processes once agac is gone, however it went."""


@dataclass(slots=True)
class _Served:
    """A server and its sessions."""

    spec: McpServer
    failures: int = 0
    """Sessions in a row that ended or did not begin, without a call that worked."""
    why: str = ""
    """The reason of the last failure."""
    rests_until: float = 0.0
    """The moment (`monotonic`) until which the server is left alone."""
    sessions: defaultdict[bytes, list[McpSession]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The sessions by the row's fingerprint, or shared under an empty key."""
    used: dict[bytes, McpSession] = field(default_factory=dict)
    """The sessions with a state, by the fingerprint of the row that uses them."""
    opening: defaultdict[bytes, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    """Locks under which sessions are opened, by the key of these."""
    mode: Mode = "auto"
    """True if a session asks for the version of the protocol: the first one tells."""

    def __str__(self) -> str:
        return f"MCP server {self.spec.name!r} ({self.spec.target})"

    def failed(self, why: str) -> None:
        self.failures = self.failures + 1
        self.why = why
        if self.failures >= MOST_FAILURES:
            self.rests_until = time.monotonic() + REST_S

    def down(self) -> ToolLost:
        return ToolLost(f"{self} failed {MOST_FAILURES} times in a row: {self.why}", made=False)

    def lost(self, why: str, *, made: bool) -> ToolLost:
        return ToolLost(f"{self} lost its session, and what it knew: {why}", anew=True, made=made)


async def listed_servers(
    servers: list[McpServer], root: Path, env: Mapping[str, str]
) -> dict[str, ServerLock]:
    """Returns what servers say of themselves now, by name. Raises UsageError if one cannot be
    reached."""
    async with aclosing(McpServers(root, env)) as pool:
        try:
            found = await asyncio.gather(*map(pool.listed, servers))
        except ToolLost as lost:
            raise UsageError(str(lost), remedy=_remedy_of(str(lost), servers, env)) from None
    return {server.name: one for server, one in zip(servers, found, strict=True)}


def _remedy_of(why: str, servers: Sequence[McpServer], env: Mapping[str, str]) -> str:
    """Says what to do about a server that cannot be listed: for one that refuses without a login,
    how to log in."""
    if not re.search(r"HTTP 40[13]\b", why):
        return "See that it works by itself; `agac --log-level info …` shows what it writes."
    target = next((one.target for one in servers if f"({one.target})" in why), "")
    if target and urlsplit(target).netloc == urlsplit(env.get("HF_ENDPOINT") or HUB).netloc:
        return f"It wants a login: set HF_TOKEN, and write its target as {target}?login."
    return "It wants a login: give it `headers: {Authorization: Bearer ${TOKEN}}`, and set TOKEN."


class McpServers:
    """The servers of an invocation, each connected when it is first called. `env`: what `${VAR}`
    is looked up in."""

    def __init__(self, root: Path, env: Mapping[str, str]) -> None:
        lack = lack_of("An MCP server", "mcp")
        if lack:
            raise UsageError(lack)
        self._root = root
        self._env = env
        self._served: dict[str, _Served] = {}
        self._all: set[McpSession] = set()
        self._guard: subprocess.Popen[bytes] | None = None

    async def call(
        self,
        server: McpServer,
        tool: str,
        rules: ToolRules,
        arguments: dict[str, Any],
        fingerprint: bytes,
        intent: Intent = NO_INTENT,
    ) -> str:
        """Returns the result of a tool as text; its `intent` begins once there is a session that is
        what its lock says.

        If a session ends, the call is made again, provided that it has no side effects and the
        server no state. Raises ToolFailed for the model, ToolLost, and UsageError if the server is
        not what its lock says."""
        served = self._of(server)
        repeatable = not rules.side_effects
        for _ in range(MOST_FAILURES):
            session = await self._session(served, fingerprint)
            try:
                await self._begin(server, session, intent)
                async with asyncio.timeout(rules.timeout):
                    text = await session.call(tool, arguments)
            except TimeoutError:
                session.retire()
                said = f"{tool} took longer than {rules.timeout:g} s, and was given up"
                raise ToolTimeout(said, again=repeatable) from None
            except ToolFailed:
                served.failures = 0
                raise
            except SessionGone as gone:
                if not gone.sent:
                    intent.withdraw()
                if not session.retired:  # of all that it had, the first one counts
                    served.failed(str(gone))
                session.retire()
                if server.state:
                    served.used.pop(fingerprint, None)
                    raise served.lost(str(gone), made=gone.sent) from None
                if gone.sent and not repeatable:
                    raise ToolLost(
                        f"{served} ended in the middle of a call of {tool}: {gone}"
                    ) from None
            else:
                served.failures = 0
                return text
        raise served.down()

    async def _begin(self, server: McpServer, session: McpSession, intent: Intent) -> None:
        """Begins the intent of a call while the session is what its lock says."""
        for _ in range(MOST_FAILURES):
            if session.changed:
                await self._compare(server, session)
            await intent.begin()
            if not session.changed:  # meanwhile
                return
            intent.withdraw()
        raise SessionGone("it changes its tools all the time", sent=False)

    def access(self, server: McpServer) -> str:
        """Stands for how a server is reached, and as whom. Raises UsageError."""
        return digest(
            canonical([asdict(server), str(connection(server, self._root, self._env))])
        ).hex()

    async def listed(self, server: McpServer) -> ServerLock:
        """Returns what a server says of itself. Raises ToolLost."""
        session = await self._opened(self._of(server))
        return replace(await session.listed(server.timeout), target=server.target)

    async def end(self, fingerprint: bytes) -> None:
        """Ends the sessions of one conversation, which ended."""
        for served in self._served.values():
            served.used.pop(fingerprint, None)
            served.opening.pop(fingerprint, None)
            for session in served.sessions.pop(fingerprint, ()):
                session.retire()

    async def aclose(self) -> None:
        """Every session ends, and every process: soon, where a Ctrl-C has cancelled the task that
        waits."""
        task = asyncio.current_task()
        hurried = task is not None and task.cancelling() > 0
        await asyncio.gather(*(session.close(hurried=hurried) for session in list(self._all)))
        if self._guard is not None:
            await asyncio.to_thread(self._guard.communicate)

    def _of(self, server: McpServer) -> _Served:
        return self._served.setdefault(canonical(asdict(server)), _Served(server))

    async def _session(self, served: _Served, fingerprint: bytes) -> McpSession:
        """Returns the least busy of the sessions that a conversation may use."""
        used = served.used.get(fingerprint)
        if used is not None:
            if used.gone or used.retired:
                del served.used[fingerprint]
                raise served.lost(used.gone or "a call took too long", made=False)
            return used
        key = fingerprint if served.spec.scope == "row" else b""
        async with served.opening[key]:
            session = await self._idlest(served, key)
        if served.spec.state:
            served.used[fingerprint] = session
        return session

    async def _idlest(self, served: _Served, key: bytes) -> McpSession:
        """Returns the least busy session of these, or a new one if there may be more."""
        sessions = [
            session for session in served.sessions[key] if not session.gone and not session.retired
        ]
        idlest = min(sessions, key=lambda session: session.calls, default=None)
        may_open = not key and len(sessions) < served.spec.pool
        if idlest is None or (idlest.calls and may_open):
            idlest = await self._opened(served)
            sessions.append(idlest)
        served.sessions[key] = sessions
        return idlest

    async def _opened(self, served: _Served) -> McpSession:
        """Connects to a server. Raises UsageError if its command is missing, ToolLost if it is
        down."""
        from agac.tools.mcp_session import McpSession  # 1 s

        spec = served.spec
        reached = connection(spec, self._root, self._env)
        if reached.command:
            self._check_command(served, reached)
        while served.failures < MOST_FAILURES or time.monotonic() >= served.rests_until:
            if served.failures:
                await asyncio.sleep(BACKOFF_S * 2 ** (min(served.failures, MOST_FAILURES) - 1))
            session = McpSession(spec.name, reached, self._watch, served.mode)
            self._all.add(session)
            session.task.add_done_callback(lambda _, ended=session: self._all.discard(ended))  # type: ignore[misc]
            try:
                await session.open(spec.timeout)
                served.mode = session.mode
                await self._compare(spec, session)
            except SessionGone as gone:
                served.mode = "auto"
                served.failed(str(gone))
                await session.close()
            except BaseException:
                session.task.cancel()  # it may never come so far as to be told to end
                raise
            else:
                return session
        raise served.down()

    def _check_command(self, served: _Served, reached: ServerAddress) -> None:
        """Raises UsageError if the program of a server is not there."""
        from agac.tools.mcp_session import environment

        program = reached.command[0]
        path = {**environment(), **reached.env}["PATH"]
        if which(program, path=path) is None and not (reached.folder / program).is_file():
            message = f"{served} cannot be started: there is no command {program!r}"
            raise UsageError(message, remedy="Install it, or mend its target.")

    async def _compare(self, spec: McpServer, session: McpSession) -> None:
        """Raises UsageError where a server is not what its lock says."""
        session.changed = False
        found = await session.listed(spec.timeout)
        if found.hash == spec.locked or not spec.locked:
            return
        session.changed = True
        command = f"agac card lock {Path(spec.lock).name.removesuffix(SUFFIX)}"
        lock = read_lock(self._root / spec.lock, spec.lock, command, home_of(self._root)).get(
            spec.name
        )
        if lock is None or lock.hash != spec.locked:
            message = f"{spec.lock} was changed after this run was planned"
            raise UsageError(message, remedy="Run the same command again: the plan is made anew.")
        message = (
            f"MCP server {spec.name!r} is not what {spec.lock} says of "
            f"it:\n{difference(lock, found)}"
        )
        remedy = (
            f"Look at what changed: accept it with `{command}` and run again, or restore "
            "the server."
        )
        raise UsageError(message, remedy=remedy)

    def _watch(self, number: int) -> None:
        """Notes that a process began, or with a number below 0 that it ended."""
        if self._guard is None and hasattr(os, "killpg"):
            how: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "bufsize": 0,
                "start_new_session": True,
            }
            self._guard = subprocess.Popen((sys.executable, "-ISE", "-c", _GUARD), **how)  # noqa: S603
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(OSError):
                self._guard.stdin.write(f"{number}\n".encode())
