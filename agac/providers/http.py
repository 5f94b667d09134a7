"""The senders: bytes to a provider, bytes back, over HTTP, events and WebSockets. None retries,
waits or interprets."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

import aiohttp
from aiohttp import (
    ClientWebSocketResponse,
    ClientWSTimeout,
    TraceRequestRedirectParams,
    WSCloseCode,
    WSMsgType,
)
from multidict import CIMultiDict

from agac.core.redact import Redactor
from agac.core.types import Fault
from agac.providers.bodies import encode
from agac.providers.dialect import STREAMED, Assembly, Begins, Heard, asking, too_large
from agac.providers.event_stream import (
    BEGINS_EVENTS,
    ReplyTooLarge,
    parsed_event,
    read_body,
    read_events,
    take_all,
)
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS
from agac.providers.transport import (
    NO_WEBSOCKET,
    ConnectionSettings,
    exception_rule,
    reason_of,
)
from agac.spec.rules import Timeout


class HttpReply(NamedTuple):
    """An answer as it came, whatever its status."""

    status: int
    """The HTTP status."""
    headers: Mapping[str, str]
    """The headers; their names are found in any case of letters."""
    body: bytes
    """The body; of a streamed answer what its events say, put together."""
    duration: float
    """Seconds from sending to its last byte."""
    ttft: float | None = None
    """Seconds from sending to the first token of a stream, be it of thinking."""
    time_to_response: float | None = None
    """Seconds from sending to the first token of the answer itself."""


def _assembled(
    assembly: Assembly, response: aiohttp.ClientResponse | None, started: float
) -> HttpReply:
    """Returns an answer that came piece by piece and has ended now; `response` is that of
    server-sent events."""
    status, said, whole = assembly.result()
    headers = said
    if response is not None:
        status = response.status if status == 200 else status
        if said:
            headers = CIMultiDict({**response.headers, **said})
        else:
            headers = response.headers
    body = encode(whole)
    duration = time.monotonic() - started
    begun = (
        None if at is None else at - started for at in (assembly.begun_at, assembly.answering_at)
    )
    return HttpReply(status, headers, body, duration, *begun)


# Every call is one POST through one pool of connections. No call is ever sent twice by it: aiohttp
# itself repeats only idempotent methods, and POST is none.

HEADER_BYTES = 1 << 18
"""Of one line of headers of an answer: gateways add much, and an answer that is refused for it is
paid all the same."""

LARGE_BODY = 1 << 20
"""Bytes from which aiohttp wants a file rather than bytes, so that one huge write does not hold up
the others."""


@cache
def _bounds(timeout: Timeout) -> aiohttp.ClientTimeout:
    """Makes the time limits of calls, once for each `Timeout`."""
    return aiohttp.ClientTimeout(
        total=timeout.total, connect=timeout.connect, sock_read=timeout.first_byte
    )


class Sender:
    """A pool of connections to one provider. Opens with the first call; `close` it."""

    def __init__(
        self,
        provider: Provider,
        redactor: Redactor,
        *,
        env: Mapping[str, str],
        stream: bool = False,
    ) -> None:
        """`stream` asks for answers as server-sent events; a server that sends them whole anyway
        is understood. Raises UsageError when the address, a header, a proxy or the certificates
        cannot be used."""
        self.dialect = dialect = DIALECTS[provider.dialect]
        self.settings = ConnectionSettings(provider, dialect.path, env, redactor)
        self._assembly = dialect.assembly if stream else None
        self._asks = STREAMED + (dialect.asks_usage if provider.stream_usage else b"")
        if stream:
            self.settings.headers["Accept"] = "text/event-stream, application/json"
        self.most = provider.limits.reply_bytes
        self.heard: Heard = None
        self._session: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None

    async def send(
        self, wire: bytes, timeout: Timeout, *, within: float | None = None, fresh: bool = False,
        begins: Begins = None, headers: Mapping[str, str] | None = None,
    ) -> HttpReply | Fault:  # fmt: skip
        """POST `wire` and read the whole answer. A Fault only when there is none: an error status
        is an HttpReply. `first_byte` bounds each silence, also within the body. `within` bounds
        this one call more tightly, in seconds. `fresh`: over a connection of its own, where one
        from the pool may have been closed by the server meanwhile. `begins` is called with the
        first token of a stream. `headers` are this call's own."""
        session = self._session or self.session()
        if fresh:
            session = self._unpooled = self._unpooled or self._opened(force_close=True)
        bounds = self.bounds(timeout, within)
        assembly = self._assembly() if self._assembly is not None else None
        if assembly is not None:
            assembly.heard = self.heard
            assembly.begins = begins
            wire = asking(wire, self._asks)
        data = wire if len(wire) < LARGE_BODY else io.BytesIO(wire)
        started = time.monotonic()
        try:
            sent = session.post(
                self.settings.url, data=data, headers=headers, timeout=bounds, allow_redirects=False
            )
            async with sent as response:
                return await self._answer(response, assembly, started)
        # TimeoutError is an OSError; a stream that is cut is lost
        except (aiohttp.ClientError, OSError) as problem:
            return self.fault(problem, bounds)

    async def _answer(
        self, response: aiohttp.ClientResponse, assembly: Assembly | None, started: float
    ) -> HttpReply | Fault:
        """Reads an answer, which comes whole or as events."""
        if response.content_type == "text/event-stream" and response.status < 300:
            # some servers stream though nobody asked for it
            assembly = assembly or self.dialect.assembly()
            await read_events(response, assembly, self.most)
            return _assembled(assembly, response, started)
        body = await read_body(response, self.most)
        if 300 <= response.status < 400:
            return self.settings.redirected(response.status, response.headers)
        if body.lstrip().startswith(BEGINS_EVENTS):
            assembly = self.dialect.assembly()
            if take_all(body, assembly):
                return _assembled(assembly, response, started)
        duration = time.monotonic() - started
        return HttpReply(response.status, response.headers, body, duration)

    async def close(self) -> None:
        """Closes every connection; calls that are still waiting end in a Fault."""
        sessions = (self._session, self._unpooled)
        self._session = None
        self._unpooled = None
        for session in sessions:
            if session is not None:
                await session.close()

    def session(self, trace: aiohttp.TraceConfig | None = None) -> aiohttp.ClientSession:
        """Returns the connections, which exist from the first call on. `trace` sees what goes over
        them."""
        if self._session is None:
            # servers close idle connections after 60 s or more; ours must be the shorter
            self._session = self._opened(trace, keepalive_timeout=30.0)
        return self._session

    def _opened(
        self, trace: aiohttp.TraceConfig | None = None, **pool: Any
    ) -> aiohttp.ClientSession:
        """Opens a pool of connections."""
        if self.settings.provider.offline:
            raise AssertionError(
                f"a call to {self.settings.provider.name} was to go out, and it is offline"
            )
        # the environment was read once: `trust_env` would read it, and .netrc, in a thread for
        # every call
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.settings.tls or True, **pool),
            headers=self.settings.headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self.settings.proxy,
            trust_env=False,
            trace_configs=[trace] if trace else None,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )

    def bounds(self, timeout: Timeout, within: float | None) -> aiohttp.ClientTimeout:
        """Returns the bounds of one call, never more than `within`."""
        bounds = _bounds(timeout)
        if within is not None and (bounds.total is None or within < bounds.total):
            bounds = aiohttp.ClientTimeout(
                total=within, connect=bounds.connect, sock_read=bounds.sock_read
            )
        return bounds

    def fault(self, problem: BaseException, bounds: aiohttp.ClientTimeout) -> Fault:
        """Makes the fault of a call that got no answer."""
        if isinstance(problem, ReplyTooLarge):
            return too_large(self.settings.provider)
        if isinstance(problem, aiohttp.WSServerHandshakeError):
            rule = NO_WEBSOCKET
        else:
            rule = exception_rule(problem)
        return self.settings.fault(
            rule, reason_of(problem), getattr(problem, "status", ""),
            connect=bounds.connect, first_byte=bounds.sock_read, total=bounds.total,
        )  # fmt: skip


# The Responses API over WebSockets: a socket carries one request at a time, so each call under way
# has its own.
#
# Facts: developers.openai.com/api/docs/guides/websocket-mode and the openai SDK 3.52's
# `responses.connect`, read November 2026: the same path and headers as for POST; a
# `response.create` message is the body without `stream`; back come the events of a stream; an
# `error` event holds status and headers; 60 minutes is the most that a socket lives.

_log = logging.getLogger("agac.websocket")

MAX_LIFETIME_S = 55 * 60.0
"""Seconds after which a socket takes no further request: a call may take minutes, and at 60 the
server ends it."""

# sockets in a row that come to nothing, after which `auto` believes that something on the way ends
# them
STRIKES = 3
MOMENT = (
    1e-6  # seconds to look for what came while a socket lay idle: what is there is there already
)

_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses that say nothing of whether the server has WebSockets."""


class _Socket(NamedTuple):
    """An open socket, and when it was opened, in `time.monotonic()` seconds."""

    ws: ClientWebSocketResponse
    opened: float


class _Redirected(aiohttp.ClientError):
    """The upgrade was to be asked for elsewhere, and the key would have gone along."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__()
        self.response = response


class SocketSender:
    """Sends as `Sender` does, over WebSockets. With `fallback` it goes on by server-sent events,
    for good, once the server has shown that it has none; a call that was sent is never sent again
    by it."""

    def __init__(self, http: Sender, *, fallback: bool) -> None:
        """`http` is a streaming sender of the same provider, which this one owns."""
        assert http.dialect.socket_asks is not None
        self._http = http
        self._assembly = http.dialect.assembly
        self._asks = http.dialect.socket_asks
        self._fallback = fallback
        self._trace = aiohttp.TraceConfig()
        self._trace.on_request_redirect.append(_refuse)
        self._strikes = 0
        self._without = False
        self._idle: list[_Socket] = []
        self._leaving: set[asyncio.Task[bool]] = set()

    async def send(
        self,
        wire: bytes,
        timeout: Timeout,
        *,
        within: float | None = None,
        fresh: bool = False,
        begins: Begins = None,
    ) -> HttpReply | Fault:
        """As `Sender.send`: an error event comes back as the answer with an error status that it
        stands for."""
        if self._without:
            return await self._http.send(wire, timeout, within=within, fresh=fresh, begins=begins)
        bounds = self._http.bounds(timeout, within)
        started = time.monotonic()
        try:
            async with asyncio.timeout(bounds.total):
                return await self._ask(
                    await self._ready(bounds, fresh=fresh), wire, bounds, started, begins
                )
        except (
            aiohttp.WSServerHandshakeError,
            aiohttp.ConnectionTimeoutError,
            _Redirected,
        ) as problem:
            if not self._fallback:
                return self._no_upgrade(problem, bounds)
        except (aiohttp.ClientError, OSError) as problem:
            return self._http.fault(problem, bounds)
        if within is None:
            left = None
        else:
            left = max(MOMENT, within - (time.monotonic() - started))
        return await self._http.send(wire, timeout, within=left, fresh=fresh, begins=begins)

    async def close(self) -> None:
        while self._idle:
            self._leave(self._idle.pop())
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._http.close()

    async def _ready(self, bounds: aiohttp.ClientTimeout, *, fresh: bool) -> _Socket:
        """Returns a socket to which nothing was sent that is still to be answered: the one used
        last, or a new one."""
        while self._idle and not fresh:
            socket = self._idle.pop()
            if time.monotonic() - socket.opened <= MAX_LIFETIME_S:
                try:  # nothing may have come while it was idle, such as the server's goodbye
                    await socket.ws.receive(timeout=MOMENT)
                except TimeoutError:
                    return socket
            self._leave(socket)
        session = self._http.session(self._trace)
        closing = ClientWSTimeout(ws_close=1.0)  # seconds that the other side has to say goodbye
        try:
            async with asyncio.timeout(bounds.connect):
                ws = await session.ws_connect(
                    self._http.settings.url, timeout=closing, max_msg_size=self._http.most
                )
            return _Socket(ws, time.monotonic())
        except aiohttp.WSServerHandshakeError as refused:
            self._strike(at_once=refused.status not in _PASSING)
            raise
        except _Redirected:
            self._strike(at_once=True)
            raise
        except TimeoutError as late:
            self._strike()
            raise aiohttp.ConnectionTimeoutError from late

    async def _ask(
        self,
        socket: _Socket,
        wire: bytes,
        bounds: aiohttp.ClientTimeout,
        started: float,
        begins: Begins,
    ) -> HttpReply:
        assembly = self._assembly()
        assembly.heard = self._http.heard
        assembly.begins = begins
        began = sound = False
        try:
            await socket.ws.send_frame(asking(wire, self._asks), WSMsgType.TEXT)
            while not assembly.done:
                try:
                    message = await socket.ws.receive(timeout=bounds.sock_read)
                except TimeoutError as late:
                    raise aiohttp.SocketTimeoutError from late
                if getattr(message.data, "code", None) == WSCloseCode.MESSAGE_TOO_BIG:
                    raise ReplyTooLarge
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    raise aiohttp.ServerDisconnectedError
                event = parsed_event(message.data)
                began = True
                assembly.take(event)
                if assembly.size > self._http.most:
                    raise ReplyTooLarge
            assembly.finish()
            status, _, body = assembly.result()
            sound = status == 200 and isinstance(body, dict) and not body.get("error")
        except aiohttp.ClientError:
            if not began:
                self._strike()
            raise
        finally:
            if sound:
                self._idle.append(socket)
                self._strikes = 0
            else:
                self._leave(socket)
        return _assembled(assembly, None, started)

    def _leave(self, socket: _Socket) -> None:
        """Closes a socket without keeping anybody waiting; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(socket.ws.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _strike(self, *, at_once: bool = False) -> None:
        """Counts a socket that came to nothing. After some of them `auto` turns to server-sent
        events."""
        self._strikes += 1
        if self._fallback and not self._without and (at_once or self._strikes >= STRIKES):
            self._without = True
            _log.info(
                "%s takes no WebSockets: going on by server-sent events",
                self._http.settings.url.host,
            )

    def _no_upgrade(
        self, problem: aiohttp.ClientError, bounds: aiohttp.ClientTimeout
    ) -> HttpReply | Fault:
        """Returns what a refused upgrade means if there is no other way. Its body cannot be
        read."""
        if isinstance(problem, _Redirected):
            return self._http.settings.redirected(problem.response.status, problem.response.headers)
        if isinstance(problem, aiohttp.WSServerHandshakeError) and problem.status in {
            *_PASSING,
            401,
            402,
            403,
            407,
        }:
            return HttpReply(problem.status, problem.headers or {}, b"", duration=0.0)
        return self._http.fault(problem, bounds)


async def _refuse(
    _session: aiohttp.ClientSession, _context: object, redirect: TraceRequestRedirectParams
) -> None:  # aiohttp would follow: `ws_connect` cannot be told not to
    """Refuses a redirect."""
    raise _Redirected(redirect.response)


def open_sender(
    provider: Provider,
    transport: str,
    redactor: Redactor,
    env: Mapping[str, str],
    heard: Heard = None,
) -> Sender | SocketSender:
    """Returns what sends by a transport: `body`, `sse`, `ws`, or `auto`, which falls back to events
    if there are no WebSockets. `heard` gets the pieces of streams. Raises UsageError as `Sender`
    does."""
    sender = Sender(provider, redactor, env=env, stream=transport != "body")
    sender.heard = heard
    if transport in ("ws", "auto") and DIALECTS[provider.dialect].socket_asks is not None:
        return SocketSender(sender, fallback=transport == "auto")
    return sender


class Sending(Protocol):
    """Carries requests to a provider, and its answers back."""

    async def send(
        self,
        wire: bytes,
        timeout: Timeout,
        *,
        within: float | None = None,
        fresh: bool = False,
        begins: Begins = None,
    ) -> HttpReply | Fault:
        """Sends one request. See `Sender.send`."""
        ...

    async def close(self) -> None:
        """Closes what it holds open."""
