"""The one sender: bytes to a provider, bytes back. It never retries, waits or interprets; it times and names failures.

Every call is one POST through one pool of connections. No call is ever sent twice by it: aiohttp itself repeats only
idempotent methods, and POST is none.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict

from agac.core.redact import Redactor
from agac.core.types import Fault
from agac.providers.base import encode
from agac.providers.dialects import DIALECTS
from agac.providers.faults import Trouble, named, reason_of, redirected, trouble_of
from agac.providers.provider import Provider
from agac.providers.sending import HttpReply, streamed_reply
from agac.providers.sse import read_events
from agac.providers.streams import STREAMS, Streaming, Watched, asking
from agac.providers.transport import address_of, headers_for, proxy_for, tls_context
from agac.spec.workflow import Timeout

DEFAULT_TIMEOUT = Timeout(connect=10.0, first_byte=None, total=600.0)
"""Seconds. No bound on the first byte: an answer that is not streamed sends its first byte when it is finished."""

KEEP_ALIVE = 30.0
"""Seconds that an idle connection is kept. Servers close theirs after 60 or more; ours must be the shorter."""

LARGE_BODY = 1 << 20
"""Bytes from which aiohttp wants a file rather than bytes, so that one huge write does not hold up the others."""


def filled(timeout: Timeout, default: Timeout) -> Timeout:
    """`timeout`, with the default's bounds where it has none."""
    return Timeout(
        connect=default.connect if timeout.connect is None else timeout.connect,
        first_byte=default.first_byte if timeout.first_byte is None else timeout.first_byte,
        total=default.total if timeout.total is None else timeout.total,
    )


class Sender:
    """A pool of connections to one provider. Opens with the first call; `close` it, or use it as `async with`."""

    def __init__(
        self,
        provider: Provider,
        redactor: Redactor,
        *,
        timeout: Timeout = DEFAULT_TIMEOUT,
        limit: int = 0,
        env: Mapping[str, str] = os.environ,
        stream: bool = False,
    ) -> None:
        """`timeout` holds for calls that bring none; bounds that it lacks are DEFAULT_TIMEOUT's. `limit` bounds open
        connections (0: does not): the number of calls at once, or more, so that nobody waits for one. `stream` asks for
        answers as server-sent events; a server that sends them whole all the same is understood.

        Raises:
            UsageError: the address, a header, a proxy or the certificates cannot be used.
        """
        dialect = DIALECTS[provider.dialect]
        self._provider = provider
        self._redactor = redactor
        self._timeout = filled(timeout, DEFAULT_TIMEOUT)
        self._limit = limit
        self.url = address_of(provider, dialect.path)
        self._headers = headers_for(provider, dialect.headers(provider))
        self._streaming = STREAMS[provider.dialect] if stream else None
        self._asks = _asks(STREAMS[provider.dialect], provider)
        if stream:
            self._headers["Accept"] = "text/event-stream, application/json"
        self._proxy = proxy_for(self.url, env)
        self._tls = tls_context(env) if "https" in (self.url.scheme, self._proxy and self._proxy.scheme) else True
        self._timeouts: dict[Timeout | None, aiohttp.ClientTimeout] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self, wire: bytes, timeout: Timeout | None = None, *, within: float | None = None
    ) -> HttpReply | Fault:
        """POST `wire` and read the whole answer. A Fault only when there is none: an error status is an HttpReply.

        `timeout`'s missing bounds are the sender's. `first_byte` bounds each silence, also within the body. `within`
        bounds this one call more tightly, in seconds.
        """
        session = self._session or self.session()
        bounds = self.bounds(timeout, within)
        if self._streaming is not None:
            watched = Watched(self._streaming.assembly())
            return await self._stream(session, asking(wire, self._asks), bounds, watched)
        data = wire if len(wire) < LARGE_BODY else io.BytesIO(wire)
        started = time.monotonic()
        try:
            async with session.post(self.url, data=data, timeout=bounds, allow_redirects=False) as response:
                first_byte = time.monotonic()
                body = await response.read()
        except (aiohttp.ClientError, OSError) as problem:  # TimeoutError is an OSError
            return self.fault(problem, bounds)
        if 300 <= response.status < 400:
            return self.redirected(response)
        return HttpReply(response.status, response.headers, body, started, first_byte, time.monotonic())

    async def _stream(
        self, session: aiohttp.ClientSession, wire: bytes, bounds: aiohttp.ClientTimeout, watched: Watched
    ) -> HttpReply | Fault:
        """The same by server-sent events. A stream that is cut before its end is a lost connection."""
        data = wire if len(wire) < LARGE_BODY else io.BytesIO(wire)
        started = time.monotonic()
        try:
            async with session.post(self.url, data=data, timeout=bounds, allow_redirects=False) as response:
                first_byte = time.monotonic()
                if response.content_type != "text/event-stream":
                    body = await response.read()
                    if 300 <= response.status < 400:
                        return self.redirected(response)
                    return HttpReply(response.status, response.headers, body, started, first_byte, time.monotonic())
                await read_events(response, watched)
        except (aiohttp.ClientError, OSError) as problem:
            return self.fault(problem, bounds)
        status, said, whole = watched.assembly.result()
        if status == 200:
            status = response.status
        headers = CIMultiDict({**response.headers, **said}) if said else response.headers
        return streamed_reply(watched, status, headers, encode(whole), started, first_byte)

    async def close(self) -> None:
        """Closes every connection; calls that are still waiting end in a Fault."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def session(self, trace: aiohttp.TraceConfig | None = None) -> aiohttp.ClientSession:
        """The connections; they are there from the first call on. `trace` sees what goes over them."""
        if self._session is not None:
            return self._session
        # the environment was read once: `trust_env` would read it, and .netrc, in a thread for every call
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=KEEP_ALIVE, ssl=self._tls),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._proxy,
            trust_env=False,
            trace_configs=[trace] if trace else None,
        )
        return self._session

    def bounds(self, timeout: Timeout | None, within: float | None) -> aiohttp.ClientTimeout:
        """The bounds of one call: its own, with the sender's where it has none, and never more than `within`."""
        bounds = self._timeouts.get(timeout) or self._bounds(timeout)
        if within is not None and (bounds.total is None or within < bounds.total):
            bounds = aiohttp.ClientTimeout(total=within, connect=bounds.connect, sock_read=bounds.sock_read)
        return bounds

    def _bounds(self, timeout: Timeout | None) -> aiohttp.ClientTimeout:
        asked = filled(timeout, self._timeout) if timeout else self._timeout
        bounds = aiohttp.ClientTimeout(total=asked.total, connect=asked.connect, sock_read=asked.first_byte)
        self._timeouts[timeout] = bounds
        return bounds

    def fault(self, problem: BaseException, bounds: aiohttp.ClientTimeout, trouble: Trouble | None = None) -> Fault:
        """What an exception of a request means; `trouble` where its class does not say it."""
        trouble = trouble or trouble_of(problem)
        words = {
            "provider": self._provider.name,
            "host": self.url.host,
            "base_url": self._provider.base_url,
            "proxy": f"{self._proxy.host}:{self._proxy.port}" if self._proxy else "",
            "reason": reason_of(problem),
            "status": getattr(problem, "status", ""),
            "connect": _seconds(bounds.connect),
            "first_byte": _seconds(bounds.sock_read),
            "total": _seconds(bounds.total),
        }
        return named(trouble, words, self._redactor)

    def redirected(self, response: aiohttp.ClientResponse) -> Fault:
        """An answer that points elsewhere, which is not followed."""
        location = response.headers.get("location", "")
        return redirected(self._provider, response.status, location, self._redactor)


def _asks(streaming: Streaming, provider: Provider) -> bytes:
    return streaming.asks + (streaming.asks_usage if provider.stream_usage else b"")


def _seconds(bound: float | None) -> str:
    return "any" if bound is None else f"{bound:g}"
