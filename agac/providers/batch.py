"""Files and batches at a provider: as values, and through its maker's SDK: a request a call,
lists, errors."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal
from urllib.parse import quote

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.state_files import make_file
from agac.core.types import KIND_OF, Fault, FaultKind
from agac.providers.bodies import json_of, moment, text
from agac.providers.dialect import beginning_of, too_large, unreadable
from agac.providers.error_bodies import ErrorBody, is_error
from agac.providers.error_rules import Operation, Rule
from agac.providers.error_tables import ErrorAnswer, fault_of, refusal
from agac.providers.http import ReplyTooLarge
from agac.providers.provider import BatchTraits, Provider
from agac.providers.transport import ConnectionSettings, lost

if TYPE_CHECKING:
    import httpx2


class BatchState(StrEnum):
    """The state of a batch at its provider: the same words for all of them."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing will happen to it any more. An unknown state is read as `in_progress`."""
        return self in (
            BatchState.COMPLETED,
            BatchState.FAILED,
            BatchState.EXPIRED,
            BatchState.CANCELLED,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be created. `key` names it at the provider where it can (`metadata.agac_intent`);
    `file_id` is its uploaded input, None where requests are sent inline from `path`, whose last
    line ends with a line break too. `endpoint` is the dialect's path with the prefix."""

    key: str
    path: Path
    endpoint: str
    model: str
    requests: int
    file_id: str | None = None
    window: str | None = None


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a provider refused a batch as a whole. `line` counts the lines of the input from 1."""

    code: str
    message: str
    line: int | None = None

    @property
    def words(self) -> str:
        """The message, with the code where there is one."""
        if self.code:
            return f"{self.message} ({self.code})"
        return self.message

    def __str__(self) -> str:
        if self.line is None:
            return self.words
        return f"line {self.line}: {self.words}"


@dataclass(frozen=True, slots=True)
class Remote:
    """A file with results at the provider: `ref` is its id or its address; `kind` says which lines
    it holds."""

    ref: str
    kind: Literal["output", "errors"]


MOST_REASONS = (
    100  # errors of a refused batch that are quoted; each that names a line fails its task
)


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A batch as its provider reports it. Times are seconds since 1970; counts None where it
    reports none. `word` is the provider's own for its state, `known` False when it is one that
    this program has never heard of. `key` and `file_id` are what it echoes of its `Order`.
    `results` are there once it is terminal, and may be none. `expires_at`: when the provider gives
    up; `results_until`: when its results are deleted."""

    id: str
    state: BatchState
    word: str
    known: bool = True
    total: int | None = None
    done: int | None = None
    failed: int | None = None
    created_at: float | None = None
    expires_at: float | None = None
    ended_at: float | None = None
    results_until: float | None = None
    key: str | None = None
    file_id: str | None = None
    results: tuple[Remote, ...] = ()
    errors: tuple[BatchError, ...] = ()

    @property
    def reasons(self) -> str:
        """Why it was refused: the first hundred errors."""
        more = len(self.errors) - MOST_REASONS
        return "; ".join(one.words for one in self.errors[:MOST_REASONS]) + (
            f"; and {more:,} more" if more > 0 else ""
        )

    def stored(self) -> dict[str, Any]:
        """What is kept of it with our batch: the values of the statement `batch_seen`, but our
        number and the time."""
        same = ("word", "total", "done", "failed", "expires_at", "results_until", "ended_at")
        return {
            "provider_id": self.id,
            "status": self.state.value,
            **{name: getattr(self, name) for name in same},
        }


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An input or output file at the provider. `key`: of the batch that it belongs to, where that
    is known."""

    id: str
    name: str
    size: int | None
    key: str | None = None


EndedBatch = Literal["answered", "expired", "cancelled", "unanswered", "too_large"]
"""What a result's line says became of a request. `answered`: an HTTP status and a body, good or
bad; `unanswered`: it failed at the provider without either, which is not billed; `too_large`: its
line is longer than is read."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A line of results. `body`: the payload's bytes, for a dialect's `parse`; `message`: said
    where there is none."""

    custom_id: str
    ended: EndedBatch
    status: int = 0
    body: bytes = b""
    message: str = ""


BOM = b"\xef\xbb\xbf"


def result_lines(path: Path, longest: int) -> Iterator[bytes]:
    """The lines of a file of results but blank ones; above `longest` bytes one more. LF alone ends
    a line."""
    with path.open("rb") as file:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        while line := file.readline(longest + 1):
            rest = line
            while len(rest) > longest and not rest.endswith(b"\n"):
                rest = file.readline(longest + 1)
            bare = line.rstrip(b"\r\n")
            if bare:
                yield bare


class UnreadableLine(ValueError):
    """A line of results that is no result: not UTF-8, not JSON, no object, no custom_id. The
    message says which."""


STATES: Mapping[str, tuple[BatchState, bool]] = {
    **{state.value: (state, True) for state in BatchState},
    "canceling": (BatchState.CANCELLING, True),
    "canceled": (BatchState.CANCELLED, True),
}
"""What the words of providers mean, in lower case, and whether they are known."""

UNKNOWN = (BatchState.IN_PROGRESS, False)

# The calls of a batch API. What errors mean there is in `error_tables`, with what they mean of
# calls.

_BEFORE_ALL = (401, 403, 404, 405, 407, 410, 411, 413, 414, 415, 429, 431)
"""Statuses with which a proxy or gateway before an API refuses a request, in whatever words."""


def proves_nothing(status: int, data: Any) -> bool:
    """Whether an error status leaves open that what was to be created is there. `data` is the JSON
    that came with it. An API that refuses says so in JSON, before it creates anything; 408, 409,
    499 and 5xx may come later."""
    if status in _BEFORE_ALL:
        return False
    return (
        status in (408, 409, 425, 499)
        or not 400 <= status < 500
        or not isinstance(data, (dict, list))
    )


CONNECT = 10.0
CREATE = 600.0
LOOK = 60.0
"""Seconds: for a connection; of silence while something large is sent and looked at; of silence
else."""

PIECE = 1 << 20
# bytes of a last line, at most, whose end is looked at to tell whether a file was cut
LONGEST = 32 << 20
CREATING: frozenset[Operation] = frozenset({"upload", "create"})
"""What may be there although its request failed."""

TOO_LARGE = "too_large"  # the code of the Fault of a download of more bytes than are allowed

_KEPT = (
    "host",
    "content-type",
    "content-length",
    "transfer-encoding",
    "accept",
    "accept-encoding",
    "connection",
    "range",
    "if-range",
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
    """Whether the input is a file that is uploaded first; else `create` sends the requests
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
        """One line of the input, without its line break; `body` is the encoded JSON that the
        dialect built."""
        raise NotImplementedError

    @staticmethod
    def result(line: bytes) -> ResultLine:
        """One line of the results. Raises UnreadableLine."""
        raise NotImplementedError

    @staticmethod
    def seen_of(data: Any, traits: BatchTraits, redactor: Redactor) -> ProviderBatch | None:
        """A batch as it was reported; None without an id. Whatever else is missing or odd counts
        as not reported."""
        raise NotImplementedError

    @staticmethod
    def may_be(batch: ProviderBatch, order: Order, since: float) -> bool:
        """Whether a batch may be what `order` created: see `candidates`."""
        raise NotImplementedError

    async def upload(self, path: Path, name: str) -> str | Fault:
        """Uploads an input file and gives its id. Killed, it may leave a file, free of charge;
        `uploaded` finds it."""
        raise NotImplementedError

    async def uploaded(self, name: str, size: int) -> str | Fault | None:
        """The id of an input file with this name and size at the provider; none where nothing is
        uploaded."""
        return None

    async def create(self, order: Order) -> ProviderBatch | Fault:
        """Creates a batch: this is what costs money. A Fault that is not `ambiguous` proves that
        there is none."""
        raise NotImplementedError

    async def candidates(self, order: Order, since: float) -> AsyncIterator[ProviderBatch | Fault]:
        """Batches that may be what `order` created: those that echo its key or its file, or
        (`finds_by: count`) all created at or after `since`. The list is read to its end, or well
        past `since`; a Fault ends it. Their states may lag behind what `look` says."""
        query = {self._traits.filters: order.key} if self._traits.filters else {}
        async for one in self._batches(query, since):
            if isinstance(one, Fault) or self.may_be(one, order, since):
                yield one

    async def look(self, batch: str) -> ProviderBatch | Fault:
        """The state of a batch. A batch that is not found is a Fault of the kind RETRY: it may
        show up yet."""
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
        found = await self._ask("post", f"{self._at(batch)}/cancel", of="known")
        if isinstance(found, Fault) and found.status not in (400, 409):
            return found
        return None

    async def delete(self, file: str) -> Fault | None:
        """Deletes a file. What is gone already is no fault."""
        return None

    async def stale(self, prefix: str) -> AsyncIterator[RemoteFile | Fault]:
        """Our input files (whose names begin with `prefix`) and result files that are still at the
        provider."""
        for file in list[RemoteFile]():
            yield file

    async def close(self) -> None:
        await self._client.close()

    # what the implementations are made of

    def _at(self, batch: str) -> str:
        return f"{self.address}/{quote(batch, safe='')}"

    def _batch(self, found: Any | Fault, *, creates: bool = False) -> ProviderBatch | Fault:
        if isinstance(found, Fault):
            return found
        seen = self.seen_of(found, self._traits, self._redactor)
        if seen is None:
            return self._unreadable(200, "a batch without an id", creates=creates)
        return seen

    async def _batches(
        self, query: Mapping[str, object], since: float | None = None
    ) -> AsyncIterator[ProviderBatch | Fault]:
        async for one in self._listed(self.address, self.page, query, since):
            yield one if isinstance(one, Fault) else self._batch(one)

    async def _with_our_headers(self, request: httpx2.Request) -> None:
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
        """The JSON object that a request gives. `of`: what it is for; what it makes, a file or a
        batch, may be there although no answer says so."""
        creates = of in CREATING
        response = await self._send(method, path, of=of, model=model, **sent)
        if isinstance(response, Fault):
            return response
        data = json_of(response.content)
        if isinstance(data, dict) and ("id" in data or not is_error(data)):
            return data
        if is_error(data):
            return self._fault(response, of=of, model=model)
        what = f"a body that is no JSON object{beginning_of(response.content, self._redactor)}"
        return self._unreadable(response.status_code, what, creates=creates)

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
        begun, version = self._begun.pop(path, (0, ""))
        if begun and not (target.exists() and target.stat().st_size == begun):
            begun = 0
        headers = {
            "Accept": accept,
            **({"Range": f"bytes={begun}-", "If-Range": version} if begun else {}),
        }
        sent = {name: value for name, value in headers.items() if value}
        response = await self._send("get", path, of="known", options={"headers": sent}, stream=True)
        if isinstance(response, Fault):
            return self._torn(begun) if response.status == 416 else response
        continues = response.status_code == 206
        try:
            if continues and not response.headers.get("content-range", "").startswith(
                f"bytes {begun}-"
            ):
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

    def _is_whole(
        self, path: str, response: httpx2.Response, size: int, last: bytes | Fault
    ) -> bool:
        """Whether a body of `size` bytes came to its end; else the next call asks for the rest of
        it. A server that says nothing of ranges may have them, and sends the whole body where it
        has none (RFC 9110, 14.2); one that wants no ranges asked for says `Accept-Ranges: none`
        (14.3)."""
        headers = response.headers
        continues = response.status_code == 206
        length = headers.get("content-length", "")
        is_whole = not length.isdecimal() or int(length) == response.num_bytes_downloaded
        if not is_whole or (isinstance(last, Fault) and last.kind is FaultKind.RETRY):
            refused = headers.get("accept-ranges") == "none"
            if size and not refused and headers.get("content-encoding", "identity") == "identity":
                self._begun[path] = size, headers.get("etag", "")
        if isinstance(last, Fault) or continues or not last.strip() or json_of(last) is not None:
            return is_whole
        before, self._cut[path] = self._cut.get(path), size
        return is_whole and before == size  # who sends the same again has no more of it

    async def _copy(self, response: httpx2.Response, file: BinaryIO, most: float) -> bytes | Fault:
        """Writes a body behind what `file` holds: its last line, where no break ends it."""
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
        status = response.status_code
        headers = response.headers
        if 300 <= status < 400:
            return self._settings.redirected(status, headers)
        data = json_of(response.content)
        error = self.read_error(data)
        fault = fault_of(
            error, self.rules, ErrorAnswer(status, headers, response.content),
            provider=self._provider, model=model, redactor=self._redactor, of=of,
        )  # fmt: skip
        return replace(
            fault, ambiguous=of in CREATING and proves_nothing(error.status or status, data)
        )

    def judged(self, error: BatchError, model: str) -> Fault:
        """What an error is about with which a batch failed as a whole; the first of `remedies` is
        what to do."""
        rule = refusal(ErrorBody(error.message, code=error.code), self.rules, None, "batch")
        key = self._provider.key_variable or f"the key of {self._provider.name}"
        about = {
            "provider": self._provider.name,
            "model": model,
            "base_url": self._provider.base_url,
            "key": key,
        }
        remedy = self._redactor.clean(rule.remedy.format(**about))
        kind = KIND_OF[rule.about]
        return Fault(
            kind, rule.type, error.words, code=error.code, about=rule.about, remedies=(remedy, "")
        )

    async def _listed(
        self, path: str, page: int, query: Mapping[str, object], since: float | None = None
    ) -> AsyncIterator[dict[str, Any] | Fault]:
        """What a list holds, each id once; a Fault ends it. `page`: entries to ask for at once,
        where it has pages. With `since` it ends early where it was seen to go from new to old and
        is past that moment by a whole page: an order is never taken for granted, since what is not
        found may be created again."""
        seen: set[str] = set()
        last: str | None = None
        times: list[float | None] = []
        was_past = False
        while True:
            pages = {"limit": page, self.cursor: last} if self._traits.pages else {}
            params = {
                name: value for name, value in {**query, **pages}.items() if value is not None
            }
            found = await self._ask("get", path, options={"params": params})
            if isinstance(found, Fault):
                yield found
                return
            entries = found.get("data")
            if not isinstance(entries, list):
                yield self._unreadable(200, "a list without data")
                return
            fresh = [one for one in entries if (name := text(one, "id")) and name not in seen]
            for one in fresh:
                seen.add(one["id"])
                yield one
            more = found.get("has_more")
            if not isinstance(more, bool):
                more = len(entries) >= page
            if not (self._traits.pages and fresh and more):
                return
            last = text(found, "last_id") or fresh[-1]["id"]
            times += [moment(one.get("created_at")) for one in fresh]
            is_past = since is not None and _falls_below(times, since - 300.0)  # s: clocks differ
            if is_past and was_past:
                return
            was_past = is_past


def _falls_below(times: Sequence[float | None], bound: float) -> bool:
    """Whether moments go from new to old, and the last is before `bound`. One that is missing
    proves no order."""
    known = [time for time in times if time is not None]
    falls = (
        len(known) == len(times) and known == sorted(known, reverse=True) and known[0] > known[-1]
    )
    return falls and known[-1] < bound
