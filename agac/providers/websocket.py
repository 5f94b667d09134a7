"""The Responses API over WebSockets: a socket carries one request at a time, so each call under way has its own.

Facts: developers.openai.com/api/docs/guides/websocket-mode and the openai SDK 3.52's `responses.connect`, read November
2026: the same path and headers as for POST; a `response.create` message is the body without `stream`; back come the
events of a stream; an `error` event holds status and headers; 60 minutes is the most that a socket lives.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import NamedTuple

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, TraceRequestRedirectParams, WSMsgType

from agac.core.types import Fault
from agac.providers.dialects import Streaming, WatchedStream, asking
from agac.providers.http import NO_WEBSOCKET, GarbledStream, HttpReply, Sender, streamed_reply
from agac.providers.wire import encode
from agac.spec.workflow import Timeout

_log = logging.getLogger("agac.websocket")

MAX_LIFETIME_S = 55 * 60.0
"""Seconds after which a socket takes no further request: a call may take minutes, and at 60 the server ends it."""

CLOSING = 1.0
"""Seconds that the other side has to say goodbye."""

STRIKES = 3
"""Sockets in a row that come to nothing, after which `auto` believes that something on the way ends them."""

MOMENT = 1e-6
"""Seconds to look for what came while a socket lay idle: what is there is there already."""

_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses that say nothing of whether the server has WebSockets."""


class _Socket(NamedTuple):
    """An open socket, and when it was opened, in `time.monotonic()` seconds."""

    ws: ClientWebSocketResponse
    opened: float

    @property
    def old(self) -> bool:
        return time.monotonic() - self.opened > MAX_LIFETIME_S


class _Redirected(aiohttp.ClientError):
    """The upgrade was to be asked for elsewhere, and the key would have gone along."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__()
        self.response = response


class SocketSender:
    """Sends as `Sender` does, over WebSockets. With `fallback` it goes on by server-sent events, for good, once the
    server has shown that it has none; a call that was sent is never sent again by it."""

    def __init__(self, http: Sender, streaming: Streaming, *, fallback: bool) -> None:
        """`http` is a streaming sender of the same provider, which this one owns; `streaming` its dialect's."""
        assert streaming.socket_asks is not None
        self._http, self._streaming, self._asks = http, streaming, streaming.socket_asks
        self._fallback = fallback
        self._trace = aiohttp.TraceConfig()
        self._trace.on_request_redirect.append(_refuse)
        self._strikes = 0
        self._without = False
        self._idle: list[_Socket] = []
        self._leaving: set[asyncio.Task[bool]] = set()

    async def send(
        self, wire: bytes, timeout: Timeout | None = None, *, within: float | None = None
    ) -> HttpReply | Fault:
        """As `Sender.send`: an error event comes back as the answer with an error status that it stands for."""
        if self._without:
            return await self._http.send(wire, timeout, within=within)
        bounds = self._http.bounds(timeout, within)
        started = time.monotonic()
        try:
            async with asyncio.timeout(bounds.total):
                socket = await self._ready(bounds)
                return await self._ask(socket, wire, bounds, started)
        except (aiohttp.WSServerHandshakeError, aiohttp.ConnectionTimeoutError, _Redirected) as problem:
            if not self._fallback:
                return self._no_upgrade(problem, bounds)
        except (aiohttp.ClientError, OSError) as problem:
            return self._http.fault(problem, bounds)
        left = None if within is None else max(MOMENT, within - (time.monotonic() - started))
        return await self._http.send(wire, timeout, within=left)

    async def close(self) -> None:
        """Closes every connection."""
        while self._idle:
            self._leave(self._idle.pop())
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._http.close()

    async def _ready(self, bounds: aiohttp.ClientTimeout) -> _Socket:
        """A socket to which nothing was sent that is still to be answered: the one used last, or a new one."""
        while self._idle:
            socket = self._idle.pop()
            if not socket.old and await _is_quiet(socket.ws):
                return socket
            self._leave(socket)
        try:
            return await self._open(bounds)
        except aiohttp.WSServerHandshakeError as refused:
            self._strike(at_once=refused.status not in _PASSING)
            raise
        except _Redirected:
            self._strike(at_once=True)
            raise
        except aiohttp.ConnectionTimeoutError:
            self._strike()
            raise

    async def _open(self, bounds: aiohttp.ClientTimeout) -> _Socket:
        session = self._http.session(self._trace)
        try:
            async with asyncio.timeout(bounds.connect):
                ws = await session.ws_connect(
                    self._http.url, timeout=ClientWSTimeout(ws_close=CLOSING), max_msg_size=0
                )  # fmt: skip
        except TimeoutError as late:
            raise aiohttp.ConnectionTimeoutError from late
        return _Socket(ws, time.monotonic())

    async def _ask(self, socket: _Socket, wire: bytes, bounds: aiohttp.ClientTimeout, started: float) -> HttpReply:
        watched = WatchedStream(self._streaming.assembly())
        first_byte: float | None = None
        sound = False
        try:
            await socket.ws.send_frame(asking(wire, self._asks), WSMsgType.TEXT)
            while not watched.assembly.done:
                event = await _event(socket.ws, bounds.sock_read)
                first_byte = first_byte or time.monotonic()
                watched.take(event)
            status, headers, body = watched.assembly.result()
            sound = status == 200 and isinstance(body, dict) and not body.get("error")
        except aiohttp.ClientError:
            if first_byte is None:
                self._strike()
            raise
        finally:
            if sound:
                self._idle.append(socket)
                self._strikes = 0
            else:
                self._leave(socket)
        return streamed_reply(watched, status, headers, encode(body), started, first_byte or started)

    def _leave(self, socket: _Socket) -> None:
        """Closes a socket without keeping anybody waiting; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(socket.ws.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _strike(self, *, at_once: bool = False) -> None:
        """A socket came to nothing."""
        self._strikes += 1
        if self._fallback and not self._without and (at_once or self._strikes >= STRIKES):
            self._without = True
            _log.info("%s takes no WebSockets: going on by server-sent events", self._http.url.host)

    def _no_upgrade(self, problem: aiohttp.ClientError, bounds: aiohttp.ClientTimeout) -> HttpReply | Fault:
        """What a refused upgrade means where there is no other way. Its body is not to be had."""
        if isinstance(problem, _Redirected):
            return self._http.redirected(problem.response)
        if not isinstance(problem, aiohttp.WSServerHandshakeError):
            return self._http.fault(problem, bounds)
        if problem.status in _PASSING or problem.status in (401, 402, 403, 407):
            now = time.monotonic()
            return HttpReply(problem.status, problem.headers or {}, b"", now, now, now)
        return self._http.fault(problem, bounds, NO_WEBSOCKET)


async def _refuse(
    _session: aiohttp.ClientSession, _context: object, redirect: TraceRequestRedirectParams
) -> None:  # aiohttp would follow: `ws_connect` cannot be told not to
    raise _Redirected(redirect.response)


async def _is_quiet(ws: ClientWebSocketResponse) -> bool:
    """Whether nothing came while it lay idle, such as the server's goodbye. So what is sent now is sent to somebody."""
    try:
        await ws.receive(timeout=MOMENT)
    except TimeoutError:
        return True
    return False


async def _event(ws: ClientWebSocketResponse, silence: float | None) -> object:
    """The next event. Raises aiohttp's exceptions for a silence that is too long, a lost socket, what is no JSON."""
    try:
        message = await ws.receive(timeout=silence)
    except TimeoutError as late:
        raise aiohttp.SocketTimeoutError from late
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        raise aiohttp.ServerDisconnectedError
    try:
        event: object = json.loads(message.data)
    except (ValueError, RecursionError):
        raise GarbledStream from None
    return event
