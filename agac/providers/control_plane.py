"""Files and batches at a provider, through its SDK: one request a call, paged lists, and what an error means there."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from http import HTTPStatus
from pathlib import Path
from socket import gaierror
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.batch import BatchTraits, ProviderBatch, moment, text_of
from agac.providers.dialects import DIALECTS
from agac.providers.error_tables import ANY, NOTHING, ErrorBody, Rule, codes, fault_of
from agac.providers.http import (
    EXCEPTION_RULES,
    ExceptionRule,
    address_of,
    headers_for,
    named,
    proxy_for,
    reason_of,
    redirected,
    tls_context,
)
from agac.providers.provider import Provider
from agac.providers.wire import json_of, unreadable

if TYPE_CHECKING:
    import httpx2


_NO_BATCHES = "Does {base_url} offer files and batches? If not, write run_mode: sync, or batch: none for {provider}."

_FULL = Rule(ANY, codes("token_limit_exceeded enqueued_token_limit_exceeded"), FaultKind.PAUSE, ErrorType.RATE_LIMITED)
"""The account's limit on enqueued tokens, where it is told at once (Azure tells it with a failed batch)."""

_TOO_LARGE = Rule((413,), NOTHING, FaultKind.TASK, remedy="Lower batch.max_bytes or batch.max_requests.")
_NOWHERE = (
    Rule((404,), codes("not_found_error"), FaultKind.FATAL, remedy=_NO_BATCHES),
    Rule((404, 405), NOTHING, FaultKind.FATAL, remedy=_NO_BATCHES),
)

KNOWN: tuple[Rule, ...] = (
    # provider-batch.md 13, 17: a batch or a file that was made a minute ago may be nowhere to be found
    Rule((404,), NOTHING, FaultKind.RETRY),
    Rule((410,), NOTHING, FaultKind.TASK),
)
"""What comes before a dialect's rules where something is asked for that was there: it may show up yet."""


@cache
def creating(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """A dialect's rules with those for files and batches. A model's name that is wrong is said of the model."""
    named, plain = [rule for rule in rules if rule.codes], [rule for rule in rules if not rule.codes]
    return (_FULL, _TOO_LARGE, _NOWHERE[0], *named, _NOWHERE[1], *plain)


_BEFORE_ALL = (401, 403, 404, 405, 407, 410, 411, 413, 414, 415, 429, 431)
"""Statuses with which whoever stands before an API turns a request away, in whatever words."""


def proves_nothing(status: int, data: Any) -> bool:
    """Whether an error status leaves open that what was to be created is there. `data` is the JSON that came with it.

    An API that refuses says so in JSON, before it creates anything; 408, 409, 499 and all from 500 on may come later.
    """
    if status in _BEFORE_ALL:
        return False
    return status in (408, 409, 425, 499) or not 400 <= status < 500 or not isinstance(data, (dict, list))


_SLOW_CONNECT = ExceptionRule(FaultKind.RETRY, ErrorType.TIMEOUT, "no connection to {provider} ({host}) within 10 s")
_SILENT = ExceptionRule(
    FaultKind.RETRY, ErrorType.TIMEOUT, "{provider} ({host}) did not answer in time", ambiguous=True
)

_LIKE: dict[str, type[BaseException]] = {
    "UnsupportedProtocol": aiohttp.NonHttpUrlClientError,
    "ProxyError": aiohttp.ClientHttpProxyError,
    "RemoteProtocolError": aiohttp.ServerDisconnectedError,
    "LocalProtocolError": aiohttp.ClientPayloadError,
    "DecodingError": aiohttp.ClientPayloadError,
    "ReadError": aiohttp.ClientConnectionResetError,
    "WriteError": aiohttp.ClientConnectionResetError,
    "CloseError": aiohttp.ClientConnectionResetError,
}
"""What the SDKs' HTTP library (httpx2) calls what aiohttp, which carries the calls, has a row for; else it is a
connection that was lost."""

_CONNECTING: dict[type[BaseException], type[BaseException]] = {
    gaierror: aiohttp.ClientConnectorDNSError,
    ssl.SSLCertVerificationError: aiohttp.ClientConnectorCertificateError,
    ssl.SSLError: aiohttp.ClientConnectorSSLError,
}
"""Why a connection does not come about, in the standard library's words."""

_OWN = {
    "ConnectTimeout": _SLOW_CONNECT,
    "PoolTimeout": _SLOW_CONNECT,
    "TimeoutException": _SILENT,
    "TimeoutError": _SILENT,
}


def lost(problem: BaseException, provider: Provider, proxy: URL | None, redactor: Redactor, *, creates: bool) -> Fault:
    """Why a request got no answer. One that never left is not ambiguous; nor is any that creates nothing."""
    # not by `__context__`: what went wrong before, and was being handled, says nothing of this request
    own = problem.__cause__ or problem if type(problem).__name__ in _WRAPPERS else problem
    names = {kind.__name__ for kind in type(own).__mro__}
    inner = list(_within(own)) if "ConnectError" in names else [own]
    trouble = _trouble(names, inner, proxy)
    words = {
        "provider": provider.name,
        "host": URL(provider.base_url).host,
        "base_url": provider.base_url,
        "proxy": f"{proxy.host}:{proxy.port}" if proxy else "",
        "reason": f"the proxy answered {str(own)[:3]}" if "ProxyError" in names else reason_of(inner[-1]),
        "status": str(own)[:80],
    }
    fault = named(trouble, words, redactor)
    return replace(fault, ambiguous=trouble.ambiguous and creates)


_WRAPPERS = ("APIConnectionError", "APITimeoutError")
"""What SDKs raise from the exceptions of their HTTP library."""


def _trouble(names: Set[str], inner: Sequence[BaseException], proxy: URL | None) -> ExceptionRule:
    if "ConnectError" in names:
        return EXCEPTION_RULES[_unconnected(inner, proxy)]
    if "ProxyError" in names and str(inner[0]).startswith("5"):
        return EXCEPTION_RULES[aiohttp.ClientConnectorError]  # it did not reach them either
    if own := next((trouble for name, trouble in _OWN.items() if name in names), None):
        return own
    return EXCEPTION_RULES[next((_LIKE[name] for name in names if name in _LIKE), aiohttp.ClientConnectionError)]


def _unconnected(inner: Sequence[BaseException], proxy: URL | None) -> type[BaseException]:
    """Why no connection came about: the name of a host, TLS, a proxy, or nobody listens."""
    for cause, kind in _CONNECTING.items():
        if any(isinstance(one, cause) for one in inner):
            return kind
    return aiohttp.ClientConnectorError if proxy is None else aiohttp.ClientProxyConnectionError


def _within(problem: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, the innermost last."""
    seen: set[int] = set()
    one: BaseException | None = problem
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def refused(provider: Provider, kind: FaultKind, what: str, *, code: str = "") -> Fault:
    """A Fault in words of our own."""
    return Fault(kind, ErrorType.PROVIDER_ERROR, f"{provider.name} {what}", code=code)


# An SDK left to itself sends a request that creates something up to three times when its answer is lost. Here every
# call is one request (`max_retries=0`), and what went wrong is a `Fault` that says whether something may have been
# created.

T = TypeVar("T")

CONNECT, CREATE, LOOK = 10.0, 600.0, 60.0
"""Seconds: for a connection; of silence while something large is sent and looked at; of silence else."""

PIECE = 1 << 20
"""Bytes of a body that are held at once."""

_KEPT = ("host", "content-type", "content-length", "transfer-encoding", "accept", "accept-encoding", "connection")
"""Headers that are the transport's. All others of an SDK go: it takes keys, organizations and whole headers from
variables that nobody meant for this provider."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """A maker's SDK: how its client is opened, the errors that it wraps, and how the maker's errors are read."""

    client: Callable[[str, httpx2.AsyncClient], Any]
    """Its asynchronous client. All SDKs of one generator have the same `get`, `post`, `delete` and `close`."""
    answered: Any
    """An error status; it has the `response`."""
    lost: tuple[type[Exception], ...]
    """No answer; the reason is its cause."""
    rules: Sequence[Rule]
    read_error: Callable[[Any], ErrorBody]
    is_error: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Saved:
    """A body that was written to disk. `declared`: its length came with it, and is this."""

    size: int
    declared: bool


class ControlPlane:
    """One account's files and batches over HTTP: JSON there and back, files streamed. Never sends anything twice."""

    def __init__(
        self, provider: Provider, redactor: Redactor, sdk: Sdk, *, env: Mapping[str, str] = os.environ
    ) -> None:
        """Raises UsageError: the address, a header, a proxy or the certificates cannot be used."""
        import httpx2

        self._provider, self._redactor, self._sdk = provider, redactor, sdk
        self._cut: dict[str, int] = {}
        self._response = httpx2.Response
        self._timeout = httpx2.Timeout
        url = address_of(provider, "")
        headers = headers_for(provider, DIALECTS[provider.dialect].headers(provider))
        self._headers = {name: value for name, value in headers.items() if name.lower() not in _KEPT}
        self._proxy = proxy_for(url, env)
        secure = "https" in (url.scheme, self._proxy and self._proxy.scheme)
        http = httpx2.AsyncClient(
            verify=tls_context(env) if secure else False,
            proxy=str(self._proxy) if self._proxy else None,
            trust_env=False,
            event_hooks={"request": [self._ours]},
        )
        self._client = sdk.client(provider.base_url, http)
        self._lost: tuple[type[Exception], ...] = (*sdk.lost, httpx2.HTTPError, httpx2.StreamError, ssl.SSLError)

    async def _ours(self, request: httpx2.Request) -> None:
        for name in [name for name in request.headers if name.lower() not in _KEPT]:
            del request.headers[name]
        request.headers.update(self._headers)

    async def close(self) -> None:
        """Closes every connection."""
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, object] | None = None, *, known: bool = False) -> Any | Fault:
        """The JSON object that lies at `path`. `known`: it is one that was seen before, and may be late to show."""
        options = {"params": {name: value for name, value in (query or {}).items() if value is not None}}
        return await self._ask(lambda: self._client.get(path, **self._as(options, LOOK)), known=known)

    async def post(
        self, path: str, *, creates: bool, model: str = "", headers: Mapping[str, str] | None = None, **sent: Any
    ) -> Any | Fault:
        """What a POST gives. `creates`: it makes something that may be there although no answer tells of it."""
        options = {"headers": dict(headers)} if headers else {}
        bound = CREATE if creates else LOOK
        call = self._client.post
        return await self._ask(
            lambda: call(path, **self._as(options, bound), **sent), known=not creates, creates=creates, model=model
        )

    async def end(self, path: str) -> Fault | None:
        """Asks for the end of something by a POST. That it has ended already is no fault."""
        found = await self.post(path, creates=False)
        return found if isinstance(found, Fault) and found.status not in (400, 409) else None

    async def delete(self, path: str) -> Fault | None:
        """Deletes what lies at `path`. What is gone already is no fault."""
        found = await self._ask(lambda: self._client.delete(path, **self._as({}, LOOK)), known=True)
        return found if isinstance(found, Fault) and found.status not in (404, 410) else None

    async def save(self, path: str, target: Path, accept: str) -> Saved | Fault:
        """Writes the body that lies at `path` to `target`, and syncs it to the disk. A body that ends early is a Fault.

        Killed or failing, it leaves a part of the file. Raises OSError when `target` cannot be written.
        """
        options = self._as({"headers": {"Accept": accept}}, LOOK)
        try:
            response = await self._client.get(path, stream=True, **options)
        except self._sdk.answered as problem:
            return self._answered(problem.response, known=True)
        except self._lost as problem:
            return self._no_answer(problem, creates=False)
        try:
            with target.open("wb") as file:
                last, size = b"", 0
                async for piece in self._pieces(response):
                    if isinstance(piece, Fault):
                        return piece
                    size += file.write(piece)
                    line = piece.rfind(b"\n")
                    last = last + piece if line < 0 else piece[line + 1 :]
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
        finally:
            await response.aclose()
        declared = response.headers.get("content-length", "").isdecimal()
        if declared and int(response.headers["content-length"]) != response.num_bytes_downloaded:
            return self.torn(size)
        if last.strip() and json_of(last) is None and self._cut.get(path) != size:
            self._cut[path] = size  # who sends the same again has no more of it
            return self.torn(size)
        return Saved(size, declared)

    async def _pieces(self, response: httpx2.Response) -> AsyncIterator[bytes | Fault]:
        """The body; then a Fault if the connection is lost."""
        try:
            async for piece in response.aiter_bytes(PIECE):
                yield piece
        except self._lost as problem:
            yield self._no_answer(problem, creates=False)

    def torn(self, size: int) -> Fault:
        """A body that ended before it should."""
        return refused(self._provider, FaultKind.RETRY, f"sent {size:,} bytes of a file and not the rest of it")

    def _as(self, options: Mapping[str, Any], bound: float) -> dict[str, Any]:
        timeout = self._timeout(connect=CONNECT, read=bound, write=bound, pool=None)
        return {"cast_to": self._response, "options": {**options, "timeout": timeout}}

    async def _ask(
        self, call: Callable[[], Awaitable[Any]], *, known: bool = False, creates: bool = False, model: str = ""
    ) -> Any | Fault:
        try:
            response = await call()
        except self._sdk.answered as problem:
            found = problem.response
            return self._answered(found, known=known, creates=creates, model=model)
        except self._lost as problem:
            return self._no_answer(problem, creates=creates)
        data = json_of(response.content)
        if isinstance(data, dict) and ("id" in data or not self._sdk.is_error(data)):
            return data
        if self._sdk.is_error(data):
            return self._answered(response, known=known, creates=creates, model=model)
        return self.unreadable(response.status_code, "a body that is no JSON object", creates=creates)

    def read(self, found: Any | Fault, reader: Callable[[Any], T | None], what: str, *, creates: bool) -> T | Fault:
        """What was told, as `reader` reads it; a Fault when it finds nothing: `what` came then."""
        if isinstance(found, Fault):
            return found
        told = reader(found)
        return self.unreadable(HTTPStatus.OK, what, creates=creates) if told is None else told

    def unreadable(self, status: int, what: str, *, creates: bool) -> Fault:
        """A good status with something that cannot be what was asked for."""
        return replace(unreadable(self._provider, status, what), ambiguous=creates)

    def _answered(self, response: httpx2.Response, *, known: bool, creates: bool = False, model: str = "") -> Fault:
        """What an error status means."""
        status, headers = response.status_code, response.headers
        if 300 <= status < 400:
            return redirected(self._provider, status, headers.get("location", ""), self._redactor)
        data = json_of(response.content)
        error = self._sdk.read_error(data)
        rules = (*KNOWN, *self._sdk.rules) if known else creating(self._sdk.rules)
        fault = fault_of(
            error,
            rules,
            status,
            headers,
            response.content,
            provider=self._provider,
            model=model,
            redactor=self._redactor,
        )
        return replace(fault, ambiguous=creates and proves_nothing(error.status or status, data))

    def _no_answer(self, problem: BaseException, *, creates: bool) -> Fault:
        return lost(problem, self._provider, self._proxy, self._redactor, creates=creates)


LEEWAY = 300.0
"""Seconds by which a provider's clock and ours may differ."""


async def listed(
    plane: ControlPlane,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    limit: int | None,
    cursor: str = "after",
    since: float | None = None,
) -> AsyncIterator[dict[str, Any] | Fault]:
    """What a list holds, each id once; a Fault ends it. `limit` None: the list has no pages.

    With `since` it ends early where it was seen to go from new to old and is past that moment by a whole page: an order
    is never taken for granted, since what is not found may be created again.
    """
    seen: set[str] = set()
    last: str | None = None
    order = _Order()
    was_past = False
    while True:
        asked = dict(query or {}) | ({} if limit is None else {"limit": limit, cursor: last})
        found = await plane.get(path, asked)
        if isinstance(found, Fault):
            yield found
            return
        entries = found.get("data")
        if not isinstance(entries, list):
            yield plane.unreadable(200, "a list without data", creates=False)
            return
        fresh = [one for one in entries if (name := text_of(one, "id")) and name not in seen]
        for one in fresh:
            seen.add(one["id"])
            order.saw(moment(one.get("created_at")))
            yield one
        last = text_of(found, "last_id") or (fresh[-1]["id"] if fresh else None)
        if limit is None or not fresh or not _more(found, len(entries), limit):
            return
        is_past = since is not None and order.past(since - LEEWAY)
        if is_past and was_past:
            return
        was_past = is_past


def _more(page: dict[str, Any], count: int, limit: int) -> bool:
    more = page.get("has_more")
    return more if isinstance(more, bool) else count >= limit


class _Order:
    """Whether what was seen goes from new to old."""

    __slots__ = ("_falls", "_last", "_rises")

    def __init__(self) -> None:
        self._last: float | None = None
        self._falls = self._rises = False

    def saw(self, at: float | None) -> None:
        if at is None:
            self._rises = True  # without its moment nothing is known of the order
            return
        if self._last is not None:
            self._falls |= at < self._last
            self._rises |= at > self._last
        self._last = at

    def past(self, moment: float) -> bool:
        return self._falls and not self._rises and self._last is not None and self._last < moment


class SdkBatches:
    """What the batch APIs behind all SDKs have in common. `address` is where batches are; see `BatchApi`."""

    address: str

    def __init__(self, provider: Provider, traits: BatchTraits, redactor: Redactor, sdk: Sdk) -> None:
        self._provider, self._traits, self._redactor = provider, traits, redactor
        self._plane = ControlPlane(provider, redactor, sdk)

    async def close(self) -> None:
        """Closes every connection."""
        await self._plane.close()

    async def look(self, batch: str) -> ProviderBatch | Fault:
        """How a batch stands. A batch that is not found is a Fault of the kind RETRY: it may show up yet."""
        found = await self._plane.get(self._at(batch), known=True)
        return self._plane.read(found, self._seen, "a batch without an id", creates=False)

    async def cancel(self, batch: str) -> Fault | None:
        """Asks for the end of a batch. One that has ended already is no fault."""
        return await self._plane.end(f"{self._at(batch)}/cancel")

    def _at(self, batch: str) -> str:
        return f"{self.address}/{quote(batch, safe='')}"

    def _seen(self, data: Any) -> ProviderBatch | None:
        """A batch as it was reported; None when it has no id."""
        raise NotImplementedError


async def none() -> AsyncIterator[Any]:
    """An empty list."""
    for one in list[Any]():
        yield one
