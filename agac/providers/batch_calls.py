"""The calls of a batch API through its maker's SDK: one request a call, lists, errors."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar
from urllib.parse import quote

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.state_files import make_file
from agac.core.types import KIND_OF, Fault, FaultKind
from agac.providers.batch import BatchError, Order, ProviderBatch, Remote, RemoteFile, ResultLine
from agac.providers.bodies import json_of, moment, text
from agac.providers.dialect import beginning_of, too_large, unreadable
from agac.providers.error_bodies import ErrorBody, is_error
from agac.providers.error_rules import Operation, Rule
from agac.providers.error_tables import ErrorAnswer, fault_of, refusal
from agac.providers.event_stream import ReplyTooLarge
from agac.providers.provider import BatchTraits, Provider
from agac.providers.transport import ConnectionSettings, lost

if TYPE_CHECKING:
    import httpx2


# What errors mean here is in `error_tables`, with what they mean of calls.

_BEFORE_ALL = (401, 403, 404, 405, 407, 410, 411, 413, 414, 415, 429, 431)
"""Statuses with which a proxy or gateway before an API refuses a request, in whatever words."""


def proves_nothing(status: int, data: Any) -> bool:
    """True if an error status leaves open that what was to be created is there. `data` is the JSON
    that came with it. An API that refuses says so in JSON, before it creates anything; 408, 409,
    499 and 5xx may come later."""
    if status in _BEFORE_ALL:
        return False
    if status in (408, 409, 425, 499) or not 400 <= status < 500:
        return True
    return not isinstance(data, (dict, list))


CONNECT = 10.0
"""Seconds for a connection."""
CREATE = 600.0
"""Seconds of silence while something large is sent and looked at."""
LOOK = 60.0
"""Seconds of silence in any other request."""

PIECE = 1 << 20
"""Bytes that are read or written at once."""
# bytes of a last line, at most, whose end is looked at to tell whether a file was cut
LONGEST = 32 << 20
"""Bytes of a last line, at most, whose end is looked at to tell whether a file was cut."""
CREATING: frozenset[Operation] = frozenset({"upload", "create"})
"""What may be there although its request failed."""

TOO_LARGE = "too_large"
"""The code of the Fault of a download of more bytes than are allowed."""

_KEPT = (
    *("host", "content-type", "content-length", "transfer-encoding", "accept"),
    *("accept-encoding", "connection", "range", "if-range"),
)
"""Headers that are the transport's. All others of an SDK go: it takes keys, organizations and
whole headers from variables that were not meant for this provider."""

Sdk = tuple[Callable[..., Any], Any, type[Exception]]
"""A maker's asynchronous client; its exception for an error status, with the `response`; its
exception for anything else that went wrong, the reason as its cause. All SDKs of one generator
have the same `get`, `post` and `delete`."""


class BatchApi:
    """The files and batches of one account. An SDK left to itself sends a request that creates
    something up to three times when its answer is lost; here every call is one request. Nothing
    here sleeps, retries or logs: what could not be done comes back as a `Fault`, `ambiguous` where
    something may have been created."""

    uploads: ClassVar[bool]
    """True if the input is a file that is uploaded first; else `create` sends the requests
    themselves."""
    address: ClassVar[str]
    cursor: ClassVar[str]  # the parameter of a list that names the entry after which it continues
    page: ClassVar[int]  # batches that are asked for at once
    rules: ClassVar[Sequence[Rule]]
    read_error: Callable[[Any], ErrorBody]

    def __init__(self, provider: Provider, traits: BatchTraits, redactor: Redactor) -> None:
        """Raises AgacError without its SDK, UsageError when address, header, proxy or certificates
        cannot be used."""
        client, self._status_error, sdk_error = self.sdk()
        import httpx2

        self._provider = provider
        self._traits = traits
        self._redactor = redactor
        self._cut: dict[str, int] = {}
        self._begun: dict[str, tuple[int, str]] = {}
        """Downloads that were cut and can be continued: how many bytes came, and the version of
        the file, if named."""
        self._response = httpx2.Response
        self._timeout = httpx2.Timeout
        self._settings = ConnectionSettings(provider, "", os.environ, redactor)
        self._headers = {
            name: value
            for name, value in self._settings.headers.items()
            if name.lower() not in _KEPT
        }
        http = httpx2.AsyncClient(
            verify=self._settings.tls or False,
            proxy=str(self._settings.proxy) if self._settings.proxy else None,
            trust_env=False,
            event_hooks={"request": [self._with_our_headers], "response": [self._read]},
        )
        # the key is set by us with every request, or none is
        self._client = client(
            api_key="unused", base_url=provider.base_url, http_client=http, max_retries=0
        )
        lost = (sdk_error, httpx2.HTTPError, httpx2.StreamError, ssl.SSLError, ReplyTooLarge)
        self._lost: tuple[type[Exception], ...] = lost

    @staticmethod
    def sdk() -> Sdk:
        """Imports the maker's SDK. Raises AgacError when it is not installed."""
        raise NotImplementedError

    @staticmethod
    def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
        """Returns one line of the input, without its line break; `body` is the encoded JSON that
        the dialect built."""
        raise NotImplementedError

    @staticmethod
    def result(line: bytes) -> ResultLine:
        """Reads one line of the results. Raises UnreadableLine."""
        raise NotImplementedError

    @staticmethod
    def seen_of(data: Any, traits: BatchTraits, redactor: Redactor) -> ProviderBatch | None:
        """Returns a batch as it was reported; None without an id. Whatever else is missing or odd
        counts as not reported."""
        raise NotImplementedError

    @staticmethod
    def may_be(batch: ProviderBatch, order: Order, since: float) -> bool:
        """True if a batch may be what `order` created: see `candidates`."""
        raise NotImplementedError

    async def upload(self, path: Path, name: str) -> str | Fault:
        """Uploads an input file and returns its id. Killed, it may leave a file, free of charge;
        `uploaded` finds it."""
        raise NotImplementedError

    async def uploaded(self, name: str, size: int) -> str | Fault | None:
        """Returns the id of an input file with this name and size at the provider; none where
        nothing is uploaded."""
        return None

    async def create(self, order: Order) -> ProviderBatch | Fault:
        """Creates a batch: this is what costs money. A Fault that is not `ambiguous` proves that
        there is none."""
        raise NotImplementedError

    async def candidates(self, order: Order, since: float) -> AsyncIterator[ProviderBatch | Fault]:
        """Yields batches that may be what `order` created: those that echo its key or its file, or
        (`finds_by: count`) all created at or after `since`. The list is read to its end, or well
        past `since`; a Fault ends it. Their states may lag behind what `look` says."""
        query = {self._traits.filters: order.key} if self._traits.filters else {}
        async for batch in self._batches(query, since):
            if isinstance(batch, Fault) or self.may_be(batch, order, since):
                yield batch

    async def look(self, batch: str) -> ProviderBatch | Fault:
        """Returns the state of a batch. A batch that is not found is a Fault of the kind RETRY: it
        may show up yet."""
        return self._batch(await self._ask("get", self._at(batch), of="known"))

    async def download(self, result: Remote, path: Path, most: float = math.inf) -> int | Fault:
        """Writes a file of results to `path`, replacing it, syncs it to the disk and gives its
        size. A body that ends before it should is a Fault of the kind RETRY (the next download
        continues it, where the server offers ranges); so is one that is not there (yet); one that
        is said to be gone for good, or of more than `most` bytes (its code is TOO_LARGE), is of
        the kind TASK. Raises OSError when `path` cannot be written."""
        raise NotImplementedError

    async def cancel(self, batch: str) -> Fault | None:
        """Asks for the end of a batch. One that has ended already is no fault."""
        cancelled = await self._ask("post", f"{self._at(batch)}/cancel", of="known")
        if isinstance(cancelled, Fault) and cancelled.status not in (400, 409):
            return cancelled
        return None

    async def delete(self, file: str) -> Fault | None:
        """Deletes a file. What is gone already is no fault."""
        return None

    async def stale(self, prefix: str) -> AsyncIterator[RemoteFile | Fault]:
        """Yields our input files (whose names begin with `prefix`) and result files that are still
        at the provider."""
        for file in list[RemoteFile]():
            yield file

    async def close(self) -> None:
        await self._client.close()

    # what the implementations are made of

    def _at(self, batch: str) -> str:
        return f"{self.address}/{quote(batch, safe='')}"

    def _batch(self, answer: Any | Fault, *, creates: bool = False) -> ProviderBatch | Fault:
        """Returns the batch that an answer reports."""
        if isinstance(answer, Fault):
            return answer
        seen = self.seen_of(answer, self._traits, self._redactor)
        if seen is None:
            return self._unreadable(200, "a batch without an id", creates=creates)
        return seen

    async def _batches(
        self, query: Mapping[str, object], since: float | None = None
    ) -> AsyncIterator[ProviderBatch | Fault]:
        """Yields the batches of the account; see `_listed`."""
        async for entry in self._listed(self.address, self.page, query, since):
            yield self._batch(entry)

    async def _with_our_headers(self, request: httpx2.Request) -> None:
        """Replaces the headers of an SDK by ours, before a request is sent."""
        for name in [name for name in request.headers if name.lower() not in _KEPT]:
            del request.headers[name]
        request.headers.update(self._headers)

    async def _read(self, response: httpx2.Response) -> None:
        """Reads an answer, but for files of results, before the SDK does, which has no bound.
        Raises ReplyTooLarge."""
        if response.is_success and response.request.headers["accept"] != "application/json":
            return
        body = bytearray()
        most = self._provider.limits.reply_bytes
        async with aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > most and response.is_error:
                    break  # its beginning says enough
                if len(body) > most:
                    raise ReplyTooLarge
        response._content = bytes(body)  # there is no other way to give it

    async def _ask(
        self, method: str, path: str, *, of: Operation = "list", model: str = "", **sent: Any
    ) -> Any | Fault:
        """Returns the JSON object that a request gives. `of`: what it is for; what it makes, a
        file or a batch, may be there although no answer says so."""
        response = await self._send(method, path, of=of, model=model, **sent)
        if isinstance(response, Fault):
            return response
        data = json_of(response.content)
        has_error = is_error(data)
        if isinstance(data, dict) and ("id" in data or not has_error):
            return data
        if has_error:
            return self._fault(response, of=of, model=model)
        what = f"a body that is no JSON object{beginning_of(response.content, self._redactor)}"
        return self._unreadable(response.status_code, what, creates=of in CREATING)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        of: Operation,
        model: str = "",
        options: Mapping[str, Any] | None = None,
        **sent: Any,
    ) -> Any | Fault:
        """Sends one request and returns its response."""
        creates = of in CREATING
        bound = CREATE if creates else LOOK
        timeout = self._timeout(connect=CONNECT, read=bound, write=bound, pool=None)
        call = getattr(self._client, method)
        try:
            return await call(
                path,
                cast_to=self._response,
                options={**(options or {}), "timeout": timeout},
                **sent,
            )
        except self._status_error as problem:
            return self._fault(problem.response, of=of, model=model)
        except self._lost as problem:
            if ReplyTooLarge not in (type(problem), type(problem.__cause__)):  # some SDKs wrap it
                return lost(problem, self._settings, creates=creates)
            fault = too_large(self._provider, "ask a server that has batches")
            return replace(fault, kind=FaultKind.FATAL, ambiguous=creates)

    async def _save(
        self, path: str, target: Path, accept: str, most: float
    ) -> tuple[int, bool] | Fault:
        """Writes the body that is at `path` to `target`, and syncs it to the disk: its size, and
        whether its length came with it, and is this. A body that ends early is a Fault (the next
        call continues it where the server offers ranges), and so is one of more than `most` bytes.
        Killed or failing, it leaves a part of the file. Raises OSError when `target` cannot be
        written."""
        begun, headers = self._resumed(path, target)
        options = {"headers": {"Accept": accept, **headers}}
        response = await self._send("get", path, of="known", options=options, stream=True)
        if isinstance(response, Fault):
            return self._torn(begun) if response.status == 416 else response
        continues = response.status_code == 206
        content_range = response.headers.get("content-range", "")
        try:
            if continues and not content_range.startswith(f"bytes {begun}-"):
                return self._torn(0)
            make_file(target)
            with target.open("ab" if continues else "wb", buffering=PIECE) as file:
                last = await self._copy(response, file, most)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
                size = file.tell()
        finally:
            await response.aclose()
        is_whole = self._is_whole(path, response, size, last)
        if isinstance(last, Fault):
            return last
        if is_whole:
            return (size, response.headers.get("content-length", "").isdecimal())
        return self._torn(size)

    def _resumed(self, path: str, target: Path) -> tuple[int, dict[str, str]]:
        """Returns how many bytes of a download are there, and the headers that ask for the rest."""
        begun, version = self._begun.pop(path, (0, ""))
        if not begun or not target.exists() or target.stat().st_size != begun:
            return 0, {}
        headers = {"Range": f"bytes={begun}-"}
        if version:
            headers["If-Range"] = version
        return begun, headers

    def _is_whole(
        self, path: str, response: httpx2.Response, size: int, last: bytes | Fault
    ) -> bool:
        """True if a body of `size` bytes came to its end; else the next call asks for the rest of
        it."""
        length = response.headers.get("content-length", "")
        is_whole = not length.isdecimal() or int(length) == response.num_bytes_downloaded
        if isinstance(last, Fault):
            if size and (not is_whole or last.kind is FaultKind.RETRY):
                self._keep_begun(path, response, size)
            return is_whole
        if size and not is_whole:
            self._keep_begun(path, response, size)
        continues = response.status_code == 206
        if continues or not last.strip() or json_of(last) is not None:
            return is_whole
        before = self._cut.get(path)
        self._cut[path] = size
        return is_whole and before == size  # a server that sends the same again has no more of it

    def _keep_begun(self, path: str, response: httpx2.Response, size: int) -> None:
        """Takes note of a download that can be continued.

        A server that says nothing of ranges may have them, and sends the whole body where it has
        none (RFC 9110, 14.2); one that wants no ranges asked for says `Accept-Ranges: none`
        (14.3)."""
        headers = response.headers
        if headers.get("accept-ranges") == "none":
            return
        if headers.get("content-encoding", "identity") == "identity":
            self._begun[path] = size, headers.get("etag", "")

    async def _copy(self, response: httpx2.Response, file: BinaryIO, most: float) -> bytes | Fault:
        """Writes a body after what `file` holds, and returns its last line, where no break ends
        it."""
        last = bytearray()
        pieces = response.aiter_bytes()
        while True:
            try:
                piece = await anext(pieces, None)
            except self._lost as problem:
                return lost(problem, self._settings, creates=False)
            if piece is None:
                return bytes(last)
            file.write(piece)
            if file.tell() > most:
                return self._refused(
                    FaultKind.TASK, f"sent more than {most:,} bytes of results", code=TOO_LARGE
                )
            line = piece.rfind(b"\n")
            if line >= 0:
                last = bytearray(piece[line + 1 :])
            elif len(last) < LONGEST:
                last += piece

    def _refused(self, kind: FaultKind, what: str, *, code: str = "") -> Fault:
        return Fault(kind, ErrorType.PROVIDER_ERROR, f"{self._provider.name} {what}", code=code)

    def _torn(self, size: int) -> Fault:
        return self._refused(
            FaultKind.RETRY, f"sent {size:,} bytes of a file and not the rest of it"
        )

    def _unreadable(self, status: int, what: str, *, creates: bool = False) -> Fault:
        return replace(unreadable(self._provider, status, what), ambiguous=creates)

    def _fault(self, response: httpx2.Response, *, of: Operation, model: str) -> Fault:
        """Returns the fault that a response with an error means."""
        status = response.status_code
        headers = response.headers
        if 300 <= status < 400:
            return self._settings.redirected(status, headers)
        data = json_of(response.content)
        error = self.read_error(data)
        fault = fault_of(
            error,
            self.rules,
            ErrorAnswer(status, headers, response.content),
            provider=self._provider,
            model=model,
            redactor=self._redactor,
            of=of,
        )
        may_exist = of in CREATING and proves_nothing(error.status or status, data)
        return replace(fault, ambiguous=may_exist)

    def judged(self, error: BatchError, model: str) -> Fault:
        """Returns what an error is about with which a batch failed as a whole; the first of
        `remedies` is what to do."""
        rule = refusal(ErrorBody(error.message, code=error.code), self.rules, None, "batch")
        provider = self._provider
        key = provider.key_variable or f"the key of {provider.name}"
        remedy = rule.remedy.format(
            provider=provider.name, model=model, base_url=provider.base_url, key=key
        )
        return Fault(
            KIND_OF[rule.about],
            rule.type,
            error.words,
            code=error.code,
            about=rule.about,
            remedies=(self._redactor.clean(remedy), ""),
        )

    async def _listed(
        self, path: str, page: int, query: Mapping[str, object], since: float | None = None
    ) -> AsyncIterator[dict[str, Any] | Fault]:
        """Yields what a list holds, each id once; a Fault ends it. `page`: entries to ask for at
        once, where it has pages. With `since` it ends early where it was seen to go from new to
        old and is past that moment by a whole page: an order is never taken for granted, since
        what is not found may be created again."""
        seen: set[str] = set()
        last: str | None = None
        times: list[float | None] = []
        was_past = False
        while True:
            listed = await self._page(path, page, query, last)
            if isinstance(listed, Fault):
                yield listed
                return
            entries = listed["data"]
            fresh = [entry for entry in entries if _is_fresh(entry, seen)]
            for entry in fresh:
                seen.add(entry["id"])
                yield entry
            if not (self._traits.pages and fresh and _has_more(listed, page)):
                return
            last = text(listed, "last_id") or fresh[-1]["id"]
            times += [moment(entry.get("created_at")) for entry in fresh]
            is_past = since is not None and _falls_below(times, since - CLOCK_TOLERANCE)
            if is_past and was_past:
                return
            was_past = is_past

    async def _page(
        self, path: str, page: int, query: Mapping[str, object], last: str | None
    ) -> dict[str, Any] | Fault:
        """Returns a page of a list: the one after the entry `last`."""
        params = dict(query)
        if self._traits.pages:
            params |= {"limit": page, self.cursor: last}
        sent = {name: value for name, value in params.items() if value is not None}
        listed: dict[str, Any] | Fault = await self._ask("get", path, options={"params": sent})
        if isinstance(listed, Fault) or isinstance(listed.get("data"), list):
            return listed
        return self._unreadable(200, "a list without data")


CLOCK_TOLERANCE = 300.0
"""Seconds by which the clocks of a provider and of this machine may differ."""


def _is_fresh(entry: Any, seen: set[str]) -> bool:
    """True if an entry of a list has an id that was not seen yet."""
    entry_id = text(entry, "id")
    return bool(entry_id) and entry_id not in seen


def _has_more(listed: Mapping[str, Any], page: int) -> bool:
    """True if a list has more than this page, as far as it says."""
    more = listed.get("has_more")
    return more if isinstance(more, bool) else len(listed["data"]) >= page


def _falls_below(times: Sequence[float | None], bound: float) -> bool:
    """True if moments go from new to old, and the last is before `bound`. One that is missing
    proves no order."""
    known = [time for time in times if time is not None]
    if len(known) < len(times) or known != sorted(known, reverse=True):
        return False
    return known[0] > known[-1] and known[-1] < bound
