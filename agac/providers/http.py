"""The one sender: bytes to a provider, bytes back, over HTTP and SSE. It never retries, waits or interprets."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from agac.core.errors import ErrorType, UsageError
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.dialects import DIALECTS, STREAMS, Streaming, WatchedStream, asking
from agac.providers.provider import Provider
from agac.providers.wire import encode
from agac.spec.workflow import Timeout

# Format: html.spec.whatwg.org, section 9.2.6. Only `data` is read: all dialects say an event's kind within its JSON.

DONE = b"[DONE]"
"""OpenAI's last event of a chat completion, the one that is no JSON."""


LAST_BYTES = 1.0
"""Seconds that a stream may take to end once its last event has come, so that its connection can be used again."""


class GarbledStream(aiohttp.ClientPayloadError):
    """An event is not JSON: with a piece missing, the answer would be another one."""


class Events:
    """Takes bytes and gives events. One that no empty line ended is none, as the format says."""

    __slots__ = ("_after_cr", "_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """The events that are whole now: their JSON, None for `[DONE]`. Raises GarbledStream."""
        # a line ends in LF, in CR, or in CR LF, of which the chunk before may have brought the first half
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield from self._ended()

    def _ended(self) -> Iterator[Any]:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        if data.strip() == DONE:
            yield None
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise GarbledStream from None
        if event is not None:
            yield event


async def read_events(response: aiohttp.ClientResponse, watched: WatchedStream) -> None:
    """Reads a stream to its last event.

    Raises ClientPayloadError when it ended before that, GarbledStream: both as when the connection is lost.
    """
    events = Events()
    while not watched.assembly.done and (chunk := await response.content.readany()):
        for event in events.feed(chunk):
            watched.take(event)
    if not watched.assembly.finish():
        raise aiohttp.ClientPayloadError
    await _drained(response)


async def _drained(response: aiohttp.ClientResponse) -> None:
    """Reads to the end of a stream whose last event has come, so that its connection is kept. The answer is had: what
    goes wrong now, or takes long, only costs the connection."""
    if response.content.at_eof():
        return
    try:
        async with asyncio.timeout(LAST_BYTES):
            await response.read()
    except (aiohttp.ClientError, OSError):
        response.close()


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer as it came, whatever its status. Times are `time.monotonic()` seconds: before sending, when the headers
    had come, when the body had. Names in `headers` are found in any case of letters.

    A streamed answer's `body` is what its events say when they are put together; `ttft` is the seconds from sending to
    its first token, be it of thinking, `time_to_response` those to the first token of the answer itself.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    started: float
    first_byte: float
    ended: float
    ttft: float | None = None
    time_to_response: float | None = None


class Sending(Protocol):
    """What carries a request to a provider and its answer back, whatever the transport."""

    async def send(
        self, wire: bytes, timeout: Timeout | None = None, *, within: float | None = None
    ) -> HttpReply | Fault:
        """The answer to `wire`, or why there is none: see `Sender.send`."""

    async def close(self) -> None:
        """Closes every connection."""


def streamed_reply(
    watched: WatchedStream, status: int, headers: Mapping[str, str], body: bytes, started: float, first_byte: float
) -> HttpReply:
    """An answer that came piece by piece and has ended now."""
    return HttpReply(
        status,
        headers,
        body,
        started,
        first_byte,
        time.monotonic(),
        None if watched.begun_at is None else watched.begun_at - started,
        None if watched.answering_at is None else watched.answering_at - started,
    )


CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where a file of trusted certificates is named; the first that is set counts."""


def proxy_for(url: URL, env: Mapping[str, str]) -> URL | None:
    """The proxy that the environment names for `url`, credentials included; None: straight.

    HTTPS_PROXY or HTTP_PROXY by the URL's scheme, else ALL_PROXY, in either case of letters (lower wins); NO_PROXY's
    hosts and every loopback address are reached straight, since a proxy's loopback is another machine's.

    Raises:
        UsageError: the variable names something else than an HTTP proxy.
    """
    found = {
        name.lower(): (name, value) for name, value in sorted(env.items()) if value and name.lower().endswith("_proxy")
    }
    name, text = found.get(f"{url.scheme}_proxy") or found.get("all_proxy") or ("", "")
    if not text or _is_loopback(url.host or "") or _bypassed(url, found.get("no_proxy", ("", ""))[1]):
        return None
    proxy = URL(text if "://" in text else f"http://{text}")
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise UsageError(
            f"{name} names a {proxy.scheme} proxy; agac goes through http proxies only",
            remedy=f"Set {name} to http://host:port, or add {url.host} to NO_PROXY.",
        )
    return proxy


def _bypassed(url: URL, no_proxy: str) -> bool:
    host = f"{url.host}:{url.port}"
    return bool(no_proxy) and bool(proxy_bypass_environment(host, {"no": no_proxy}))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def tls_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Verifies servers against the file that the environment names, else against the system's certificates.

    Raises:
        UsageError: the file is not there or holds no certificates.
    """
    for variable in CA_VARIABLES:
        if file := env.get(variable):
            return _context_of(variable, Path(file))
    return ssl.create_default_context()


def _context_of(variable: str, file: Path) -> ssl.SSLContext:
    try:
        if file.is_dir():
            return ssl.create_default_context(capath=str(file))
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as problem:
        reason = "holds no certificates" if isinstance(problem, ssl.SSLError) else "cannot be read"
        raise UsageError(
            f"{variable}: {file} {reason}", remedy=f"Set {variable} to a PEM file of certificates, or unset it."
        ) from problem


def address_of(provider: Provider, path: str) -> URL:
    """Where a dialect is spoken. Raises UsageError when that is no address."""
    try:
        url = URL(provider.base_url + path)
        (url.host or "").encode("idna")  # refuses what the resolver would stumble over
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(
            f"the base_url of {provider.name} is no address: '{provider.base_url}'",
            remedy="Write it as https://host/path in agac.yml.",
        )
    return url


@cache
def _user_agent() -> str:
    """It takes 4 ms to look up, for each provider of each run."""
    return f"agac/{version('agac')}"


def headers_for(provider: Provider, own: Mapping[str, str]) -> dict[str, str]:
    """All that is sent with every call. A value that cannot stand in a header is refused here, without being shown.

    Raises UsageError.
    """
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "User-Agent": _user_agent(),
    }
    headers.update(own)
    headers.update(provider.headers)
    for name, value in headers.items():
        if not value.isprintable() or not value.isascii():
            source = provider.key_variable if name in own and provider.key_variable else f"the header {name}"
            raise UsageError(
                f"{provider.name}: {source} holds characters that HTTP headers cannot carry",
                remedy="Copy the value again; line breaks and typographic quotes are the usual reason.",
            )
    return headers


@dataclass(frozen=True, slots=True)
class ExceptionRule:
    """What an exception means. `sentence` and `remedy` have the fields `{provider} {host} {proxy} {reason} {connect}
    {first_byte} {total} {status} {base_url}`."""

    kind: FaultKind
    type: ErrorType
    sentence: str
    remedy: str = ""
    ambiguous: bool = False
    """The request may have been sent: the provider may have done the work."""


_RETRY, _FATAL = FaultKind.RETRY, FaultKind.FATAL
_ERROR, _TIMEOUT = ErrorType.PROVIDER_ERROR, ErrorType.TIMEOUT

_CUT = ExceptionRule(
    _RETRY, _ERROR, "the connection to {provider} ({host}) was lost before the answer was complete", ambiguous=True
)
_NO_HTTP = ExceptionRule(_RETRY, _ERROR, "what {host} sent is not HTTP", ambiguous=True)
_GARBLED = ExceptionRule(_RETRY, _ERROR, "{provider} ({host}) streamed an event that is not JSON", ambiguous=True)
_NO_CONNECTION = ExceptionRule(
    _RETRY,
    _ERROR,
    "{provider} ({host}) cannot be reached: {reason}",
    "Check that the server runs and that its base_url, {base_url}, is right.",
)
_NO_HOST = ExceptionRule(
    _RETRY,
    _ERROR,
    "{provider}: the host {host} cannot be found: {reason}",
    "Check the host in its base_url, {base_url}, and that this machine is online.",
)
_NO_PROXY = ExceptionRule(
    _RETRY,
    _ERROR,
    "the proxy {proxy} cannot be reached: {reason}",
    "Check the variable that names it (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY), or add {host} to NO_PROXY.",
)
_PROXY_REFUSES = ExceptionRule(
    _FATAL,
    _ERROR,
    "the proxy {proxy} refused the way to {host} ({status})",
    "Give its credentials in the variable (http://user:password@host:port), or add {host} to NO_PROXY.",
)
_NO_TLS = ExceptionRule(
    _RETRY,
    _ERROR,
    "no TLS connection to {provider} ({host}): {reason}",
    "Check that its base_url, {base_url}, is right: https only where the server speaks TLS.",
)
_NOT_TRUSTED = ExceptionRule(
    _FATAL,
    _ERROR,
    "the certificate of {host} is not trusted: {reason}",
    "Set SSL_CERT_FILE to a PEM file with the certificates that sign it (a company's proxy has its own).",
)
_NO_ADDRESS = ExceptionRule(
    _FATAL, _ERROR, "{base_url} is no address", "Write the base_url of {provider} as https://host/path."
)
_SLOW_CONNECT = ExceptionRule(
    _RETRY, _TIMEOUT, "no connection to {provider} ({host}) within {connect} s (timeout.connect)"
)
_SILENT = ExceptionRule(
    _RETRY, _TIMEOUT, "{provider} sent nothing for {first_byte} s (timeout.first_byte)", ambiguous=True
)
_SLOW = ExceptionRule(_RETRY, _TIMEOUT, "{provider} did not finish within {total} s (timeout.total)", ambiguous=True)

NO_WEBSOCKET = ExceptionRule(
    _FATAL,
    _ERROR,
    "{provider} accepts no WebSocket at {base_url} ({status})",
    "Write transport=auto or transport=sse in the model.",
)
"""An upgrade that was refused, where nothing else was allowed."""

_REDIRECTED = ExceptionRule(
    _FATAL,
    _ERROR,
    "{provider} ({base_url}) answered {status} and points to {target}; a key is not carried on to another address",
    "Write the address that serves the API as base_url of {provider}.",
)

EXCEPTION_RULES: dict[type[BaseException], ExceptionRule] = {
    # before anything is sent
    aiohttp.ConnectionTimeoutError: _SLOW_CONNECT,
    aiohttp.ClientConnectorError: _NO_CONNECTION,  # of a Unix socket too
    aiohttp.ClientConnectorDNSError: _NO_HOST,
    aiohttp.ClientProxyConnectionError: _NO_PROXY,
    aiohttp.ClientHttpProxyError: _PROXY_REFUSES,
    aiohttp.ClientSSLError: _NO_TLS,
    aiohttp.ClientConnectorSSLError: _NO_TLS,
    aiohttp.ClientConnectorCertificateError: _NOT_TRUSTED,
    aiohttp.ServerFingerprintMismatch: _NOT_TRUSTED,
    ssl.SSLCertVerificationError: _NOT_TRUSTED,
    ssl.SSLError: _NO_TLS,
    aiohttp.InvalidURL: _NO_ADDRESS,
    aiohttp.InvalidUrlClientError: _NO_ADDRESS,
    aiohttp.NonHttpUrlClientError: _NO_ADDRESS,
    aiohttp.InvalidUrlRedirectClientError: _NO_ADDRESS,
    aiohttp.NonHttpUrlRedirectClientError: _NO_ADDRESS,
    aiohttp.RedirectClientError: _NO_ADDRESS,
    # afterwards: the work may have been done
    aiohttp.SocketTimeoutError: _SILENT,
    aiohttp.ServerTimeoutError: _SILENT,
    TimeoutError: _SLOW,
    aiohttp.ServerDisconnectedError: _CUT,
    aiohttp.ServerConnectionError: _CUT,
    aiohttp.ClientConnectionResetError: _CUT,
    aiohttp.ClientOSError: _CUT,
    aiohttp.ClientConnectionError: _CUT,
    aiohttp.ClientPayloadError: _CUT,
    GarbledStream: _GARBLED,
    OSError: _CUT,
    aiohttp.ClientResponseError: _NO_HTTP,
    aiohttp.ContentTypeError: _NO_HTTP,
    aiohttp.TooManyRedirects: _NO_HTTP,
    aiohttp.ClientError: _CUT,
}
"""Every exception that a request can end in. Classes are named one by one: a new one of aiohttp fails a test."""


def exception_rule(problem: BaseException) -> ExceptionRule:
    """The row of the exception's nearest class. Raises KeyError for what no request raises."""
    if isinstance(problem, aiohttp.ClientHttpProxyError) and problem.status >= 500:
        return _NO_CONNECTION
    return next(EXCEPTION_RULES[cls] for cls in type(problem).__mro__ if cls in EXCEPTION_RULES)


def reason_of(problem: BaseException) -> str:
    """The system's words for an exception, without addresses and without anything that was sent."""
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        inner: BaseException = problem.certificate_error
        return getattr(inner, "verify_message", "") or type(inner).__name__
    if isinstance(problem, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {problem.status}"
    if isinstance(problem, aiohttp.ClientConnectorError):
        problem = problem.os_error
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "TLS failed").replace("_", " ").lower()
    strerror = str(getattr(problem, "strerror", None) or problem)
    number = getattr(problem, "errno", None) or next(iter(re.findall(r"\[Errno (\d+)\]", strerror)), None)
    if number and "Connect call failed" in strerror:  # asyncio puts an address there, or one for each try
        return os.strerror(int(number)).lower()
    return strerror if getattr(problem, "strerror", None) else type(problem).__name__


def named(trouble: ExceptionRule, words: Mapping[str, object], redactor: Redactor, status: int | None = None) -> Fault:
    """The Fault of a trouble, in the words that it has fields for."""
    message = trouble.sentence.format(**words)
    if trouble.remedy:
        message = f"{message}. {trouble.remedy.format(**words)}"
    return Fault(trouble.kind, trouble.type, redactor.clean(message), status=status, ambiguous=trouble.ambiguous)


def redirected(provider: Provider, status: int, location: str, redactor: Redactor) -> Fault:
    """An answer that points elsewhere, which is not followed."""
    try:
        target = URL(location).host
    except ValueError:
        target = None
    words = {
        "provider": provider.name,
        "base_url": provider.base_url,
        "status": status,
        "target": target or "another address",
    }
    return named(_REDIRECTED, words, redactor, status)


# Every call is one POST through one pool of connections. No call is ever sent twice by it: aiohttp itself repeats only
# idempotent methods, and POST is none.

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
            watched = WatchedStream(self._streaming.assembly())
            return await self._stream(session, asking(wire, self._asks), bounds, watched)
        data = wire if len(wire) < LARGE_BODY else io.BytesIO(wire)
        started = time.monotonic()
        try:
            async with session.post(self.url, data=data, timeout=bounds, allow_redirects=False) as response:
                return await self._whole(response, started)
        except (aiohttp.ClientError, OSError) as problem:  # TimeoutError is an OSError
            return self.fault(problem, bounds)

    async def _whole(self, response: aiohttp.ClientResponse, started: float) -> HttpReply | Fault:
        """An answer that is not streamed."""
        first_byte = time.monotonic()
        body = await response.read()
        if 300 <= response.status < 400:
            return self.redirected(response)
        return HttpReply(response.status, response.headers, body, started, first_byte, time.monotonic())

    async def _stream(
        self, session: aiohttp.ClientSession, wire: bytes, bounds: aiohttp.ClientTimeout, watched: WatchedStream
    ) -> HttpReply | Fault:
        """The same by server-sent events. A stream that is cut before its end is a lost connection."""
        data = wire if len(wire) < LARGE_BODY else io.BytesIO(wire)
        started = time.monotonic()
        try:
            async with session.post(self.url, data=data, timeout=bounds, allow_redirects=False) as response:
                if response.content_type != "text/event-stream":
                    return await self._whole(response, started)
                first_byte = time.monotonic()
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

    def fault(
        self, problem: BaseException, bounds: aiohttp.ClientTimeout, trouble: ExceptionRule | None = None
    ) -> Fault:
        """What an exception of a request means; `trouble` where its class does not say it."""
        trouble = trouble or exception_rule(problem)
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
