"""What files and batches are moved with: a provider's SDK, held to one request a call, to our headers and our road.

An SDK left to itself sends a request that creates something up to three times when its answer is lost. Here every call
is one request (`max_retries=0`), and what went wrong is a `Fault` that says whether something may have been created.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.controlfaults import KNOWN, creating, lost, proves_nothing, refused
from agac.providers.dialects import DIALECTS
from agac.providers.errorrules import ErrorBody, Rule, fault_of
from agac.providers.faults import redirected
from agac.providers.provider import Provider
from agac.providers.reading import json_of, unreadable
from agac.providers.transport import address_of, headers_for, proxy_for, tls_context

if TYPE_CHECKING:
    import httpx2

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
