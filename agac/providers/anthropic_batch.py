"""Anthropic's message batches: the API through the anthropic SDK (an extra), and the lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from agac.core.errors import AgacError
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers import error_tables
from agac.providers.batch import (
    STATES,
    UNKNOWN,
    BatchState,
    BatchTraits,
    Order,
    ProviderBatch,
    Remote,
    RemoteFile,
    ResultLine,
    count_of,
    moment,
    object_of,
    text_of,
)
from agac.providers.control_plane import PIECE, Sdk, SdkBatches, listed, none, refused
from agac.providers.openai_batch import one_line
from agac.providers.provider import Provider
from agac.providers.wire import encode

if TYPE_CHECKING:
    import anthropic
    import httpx2


# Facts: platform.claude.com/docs/en/build-with-claude/batch-processing and the anthropic SDK 2.12, November 2026.
# Requests are sent inline, and a batch carries nothing of ours: it is found by the number of its requests.

_PAGE = 1000
_OPEN, _CLOSE = b'{"requests":[', b"]}"
_ENDS = ("succeeded", "errored", "canceled", "expired")


def _sdk() -> Sdk:
    try:
        import anthropic
    except ImportError as problem:
        raise AgacError(
            "Anthropic's batches need the anthropic package, which is not installed",
            remedy="Run `pip install 'agac[anthropic]'`, or write run_mode: sync.",
        ) from problem

    def client(base_url: str, http: httpx2.AsyncClient) -> anthropic.AsyncAnthropic:
        # the key is set by us with every request, or none is
        return anthropic.AsyncAnthropic(api_key="unused", base_url=base_url, http_client=http, max_retries=0)

    return Sdk(
        client=client,
        answered=anthropic.APIStatusError,
        lost=(anthropic.AnthropicError,),
        rules=error_tables.ANTHROPIC_RULES,
        read_error=error_tables.read_anthropic_error,
        is_error=error_tables.is_error,
    )


class AnthropicBatches(SdkBatches):
    """The message batches of one workspace."""

    uploads = False
    address = "/messages/batches"

    def __init__(self, provider: Provider, traits: BatchTraits, redactor: Redactor) -> None:
        """Raises AgacError: the SDK is not installed. UsageError: the address, a header, … cannot be used."""
        super().__init__(provider, traits, redactor, _sdk())

    async def upload(self, path: Path, name: str) -> str | Fault:
        """There is nothing to upload: `create` sends the requests."""
        raise NotImplementedError

    async def uploaded(self, name: str, size: int) -> str | Fault | None:
        """No input lies there."""
        return None

    async def create(self, order: Order) -> ProviderBatch | Fault:
        """Creates a batch of the requests in `order.path`: this is what costs money. See `BatchApi.create`."""
        size = order.path.stat().st_size - 1  # without the last line's break
        headers = {"Content-Type": "application/json", "Content-Length": str(len(_OPEN) + size + len(_CLOSE))}
        with order.path.open("rb") as file:
            content = _body(file, size)
            found = await self._plane.post(
                self.address, creates=True, model=order.model, headers=headers, content=content
            )
        return self._plane.read(found, self._seen, "a batch without an id", creates=True)

    async def candidates(self, order: Order, since: float) -> AsyncIterator[ProviderBatch | Fault]:
        """Batches that were created since then with as many requests as `order` has. A Fault ends it."""
        limit = _PAGE if self._traits.pages else None
        async for one in listed(self._plane, self.address, limit=limit, cursor="after_id", since=since):
            if isinstance(one, Fault):
                yield one
            elif seen := self._seen(one):
                recent = seen.created_at is None or seen.created_at >= since
                if recent and seen.total in (None, order.requests):
                    yield seen

    async def download(self, result: Remote, path: Path) -> int | Fault:
        """Writes the results to `path`, replacing it, and gives their size. See `BatchApi.download`.

        The address is made of the batch's id: the one that the batch names (`results_url`) may lie elsewhere, where our
        key has no business.
        """
        saved = await self._plane.save(f"{self._at(result.ref)}/results", path, "application/binary")
        if isinstance(saved, Fault) and saved.status == 404 and await self._is_archived(result.ref):
            return refused(self._provider, FaultKind.TASK, f"keeps the results of {result.ref} no longer", code="gone")
        return saved if isinstance(saved, Fault) else saved.size

    async def _is_archived(self, batch: str) -> bool:
        found = await self._plane.get(self._at(batch), known=True)
        return not isinstance(found, Fault) and text_of(found, "archived_at") is not None

    async def delete(self, *, batch: str | None = None, file: str | None = None) -> Fault | None:
        """Deletes a batch that has ended, with its results. What is gone already is no fault."""
        return await self._plane.delete(self._at(batch)) if batch is not None else None

    def stale(self, prefix: str) -> AsyncIterator[RemoteFile | Fault]:
        """There are no files."""
        return none()

    def _seen(self, data: Any) -> ProviderBatch | None:
        return seen_of(data, self._traits, self._redactor)


async def _body(lines: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """The request that creates a batch, made of the first `size` bytes of the lines while it is sent."""
    yield _OPEN
    while size > 0 and (piece := lines.read(min(PIECE, size))):
        size -= len(piece)
        yield piece.replace(b"\n", b",")
    yield _CLOSE


def seen_of(data: Any, traits: BatchTraits, redactor: Redactor) -> ProviderBatch | None:
    """A batch as it is told; None when it has no id."""
    batch = text_of(data, "id")
    if batch is None:
        return None
    word = text_of(data, "processing_status") or ""
    counts = data.get("request_counts")
    ended = word.lower() == "ended"
    state, known = (_end(data), True) if ended else STATES.get(word.lower(), UNKNOWN)
    created, archived = moment(data.get("created_at")), moment(data.get("archived_at"))
    told = [count_of(counts, name) for name in ("processing", *_ENDS)]
    return ProviderBatch(
        id=batch,
        state=state,
        word=redactor.clean(word),
        known=known,
        total=sum(one or 0 for one in told) if any(one is not None for one in told) else None,
        # all but `processing` stay 0 until the end: that is no count
        done=count_of(counts, "succeeded") if ended else None,
        failed=sum(count_of(counts, name) or 0 for name in _ENDS[1:]) if ended else None,
        created_at=created,
        expires_at=moment(data.get("expires_at")),
        ended_at=moment(data.get("ended_at")),
        results_until=archived or (created + traits.results_kept if created and traits.results_kept else None),
        results=(Remote(batch, "output"),) if ended and archived is None else (),
    )


def _end(data: dict[str, Any]) -> BatchState:
    """An end has one word; what it was is told by the counts."""
    counts = data.get("request_counts")
    if data.get("cancel_initiated_at") and count_of(counts, "canceled"):
        return BatchState.CANCELLED
    return BatchState.EXPIRED if count_of(counts, "expired") else BatchState.COMPLETED


# Shapes: platform.claude.com/docs/en/build-with-claude/batch-processing and the types of the anthropic SDK 2.12,
# November 2026.

STATUSES: dict[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 504,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}
"""The status with which each error comes where it comes by itself (the SDK's `ErrorType`): a result has only its
name."""


def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
    """One of the requests. All of them are messages: `endpoint` is not told."""
    return b'{"custom_id":' + json.dumps(custom_id).encode() + b',"params":' + one_line(body) + b"}"


def result(line: bytes) -> ResultLine:
    """One line of the results. Raises UnreadableLine."""
    custom_id, data = object_of(line)
    found = data.get("result")
    kind = text_of(found, "type")
    if not isinstance(found, dict) or kind is None:
        return ResultLine(custom_id, "unanswered", message="no result")
    if kind == "succeeded":
        message = found.get("message")
        if not isinstance(message, dict) or not message:
            return ResultLine(custom_id, "unanswered", 200, message="a success without a message")
        return ResultLine(custom_id, "answered", 200, encode(message))
    if kind == "expired":
        return ResultLine(custom_id, "expired", message="the batch ended before the request was worked on")
    if kind in ("canceled", "cancelled"):
        return ResultLine(custom_id, "cancelled", message="the batch was cancelled before the request was worked on")
    if kind == "errored":
        return _errored(custom_id, found.get("error"))
    return ResultLine(custom_id, "unanswered", message=f"a result of the unknown type {kind[:40]}")


def _errored(custom_id: str, outer: Any) -> ResultLine:
    """The reason stands within an error within the error; some who look alike leave the outer one out."""
    inner = outer.get("error") if isinstance(outer, dict) else None
    error = inner if isinstance(inner, dict) else outer
    kind, words = text_of(error, "type"), text_of(error, "message") or ""
    request_id = text_of(outer, "request_id") or ""
    if kind is None:
        words = words or (outer if isinstance(outer, str) else "an error without words")
        return ResultLine(custom_id, "unanswered", message=words, request_id=request_id)
    body = encode({"type": "error", "error": error, **({"request_id": request_id} if request_id else {})})
    return ResultLine(custom_id, "answered", STATUSES.get(kind, 500), body, words, request_id)
