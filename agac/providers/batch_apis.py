"""The batch APIs that agac speaks: OpenAI's, as its look-alikes have it too, and Anthropic's. This
loads no SDK."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from agac.core.errors import AgacError, UsageError, lack_of, sentence
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, JSONValue
from agac.providers import batch
from agac.providers.batch import BatchState, Order, ProviderBatch, Remote, RemoteFile, ResultLine
from agac.providers.batch_calls import PIECE, BatchApi, Sdk
from agac.providers.bodies import count, encode, http_status, loads, mapping, moment, text
from agac.providers.error_bodies import read_anthropic_error, read_openai_error
from agac.providers.error_tables import ANTHROPIC_RULES, MESSAGE_LENGTH, OPENAI_RULES
from agac.providers.provider import BatchTraits, Provider

# OpenAI. Facts: platform.openai.com/docs/api-reference/batch and /files, docs/guides/batch, the
# types of the openai SDK 3.52; the odd shapes are from Azure's pages and public bug reports of
# OpenAI, Azure, Together, vLLM and others, November 2026. What differs between those who look alike
# is in `BatchTraits`, or read as it comes.

KEY = "agac_intent"  # the name in a batch's metadata under which it carries our key

_ENDED: dict[str, batch.EndedBatch] = {
    "batch_expired": "expired",
    "batch_cancelled": "cancelled",
    "batch_canceled": "cancelled",
    "request_timeout": "unanswered",
}
"""What the codes of a line's error mean that say that the request was never, or not to its end,
worked on."""


def _object_of(line: bytes) -> tuple[str, dict[str, Any]]:
    """Returns a line of results as an object, and its custom_id. Raises UnreadableLine."""
    try:
        data = loads(line.removeprefix(batch.BOM).decode())
    except UnicodeDecodeError:
        raise batch.UnreadableLine("it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise batch.UnreadableLine("it is not JSON" if line.strip() else "it is empty") from None
    if not isinstance(data, dict):
        kinds = {type(None): "null", list: "a list", str: "a text", bool: "a truth value"}
        raise batch.UnreadableLine(f"it is {kinds.get(type(data), 'a number')}, not an object")
    custom_id = text(data, "custom_id")
    if custom_id:
        return custom_id, data
    is_missing = data.get("custom_id") in (None, "")
    raise batch.UnreadableLine("it has no custom_id" if is_missing else "its custom_id is no text")


def _results_until(created: float | None, traits: BatchTraits) -> float | None:
    """Returns when the results of a batch are deleted; None: it is unknown."""
    if created and traits.results_kept:
        return created + traits.results_kept
    return None


class OpenAIBatches(BatchApi):
    """The batches of one account at OpenAI or somewhere that speaks its files and batches."""

    uploads = True
    address = "/batches"
    cursor = "after"
    page = 100  # the most
    rules = OPENAI_RULES
    read_error = staticmethod(read_openai_error)

    @staticmethod
    def sdk() -> Sdk:
        """The openai package."""
        import openai

        return openai.AsyncOpenAI, openai.APIStatusError, openai.OpenAIError

    async def upload(self, path: Path, name: str) -> str | Fault:
        size = path.stat().st_size
        with path.open("rb") as file:
            created = await self._ask(
                "post",
                "/files",
                of="upload",
                options={"headers": {"Content-Type": "multipart/form-data"}},
                body={"purpose": "batch"},
                files=[("file", (name, file, "application/jsonl"))],
            )
        if isinstance(created, Fault):
            return created
        stored = count(created, "bytes") or 0
        if 0 < stored < size:
            return self._refused(
                FaultKind.RETRY, f"kept {stored:,} of the {size:,} bytes of {name}"
            )
        return text(created, "id") or self._unreadable(200, "a file without an id", creates=True)

    async def uploaded(self, name: str, size: int) -> str | Fault | None:
        async for file in self._files("batch"):
            if isinstance(file, Fault):
                return file
            if file.name == name and file.size in (None, size):
                return file.id
        return None

    async def create(self, order: Order) -> ProviderBatch | Fault:
        body = {
            "input_file_id": order.file_id,
            "endpoint": order.endpoint,
            "completion_window": order.window or self._traits.windows[0],
            "metadata": {KEY: order.key},
        }
        found = await self._ask("post", self.address, of="create", model=order.model, body=body)
        return self._batch(found, creates=True)

    @staticmethod
    def may_be(batch: ProviderBatch, order: Order, since: float) -> bool:
        """True if it echoes the key or the input file of `order`."""
        return batch.key == order.key or bool(batch.file_id and batch.file_id == order.file_id)

    async def download(self, result: Remote, path: Path, most: float = math.inf) -> int | Fault:
        address = f"/files/{quote(result.ref, safe='')}"
        saved = await self._save(f"{address}/content", path, "application/octet-stream", most)
        if isinstance(saved, Fault):
            return saved
        size, is_declared = saved
        if is_declared:
            return size
        # whether it has more than it sent without saying how much; one that sends the same again
        # has all: it miscounts
        file = await self._ask("get", address, of="known")
        whole = None if isinstance(file, Fault) else count(file, "bytes")
        sent_before = self._cut.get(address)
        self._cut[address] = size
        if whole is not None and whole > size and sent_before != size:
            return self._torn(size)
        return size

    async def delete(self, file: str) -> Fault | None:
        """Deletes a file; batches stay in OpenAI's list. What is gone already is no fault."""
        deleted = await self._ask("delete", f"/files/{quote(file, safe='')}", of="known")
        if isinstance(deleted, Fault) and deleted.status not in (404, 410):
            return deleted
        return None

    async def stale(self, prefix: str) -> AsyncIterator[RemoteFile | Fault]:
        """Yields our input files and the result files of batches that carry our key, that are
        still at the provider."""
        async for file in self._files("batch"):
            if isinstance(file, Fault):
                yield file
                return
            if file.name.startswith(prefix):
                yield replace(file, key=file.name.removeprefix(prefix).removesuffix(".jsonl"))
        results: dict[str, RemoteFile] = {}
        async for file in self._files("batch_output"):
            if isinstance(file, Fault):
                yield file
                return
            results[file.id] = file
        if results:
            async for keyed in self._with_keys(results):
                yield keyed

    async def _with_keys(
        self, results: Mapping[str, RemoteFile]
    ) -> AsyncIterator[RemoteFile | Fault]:
        """Yields those of the result files that belong to a batch with our key."""
        async for known in self._batches({}):
            if isinstance(known, Fault):
                yield known
                return
            if not known.key:
                continue
            for result in known.results:
                file = results.get(result.ref)
                if file:
                    yield replace(file, key=known.key)

    async def _files(self, purpose: str) -> AsyncIterator[RemoteFile | Fault]:
        """Yields the files for a purpose, by which not every server filters. A server that lists
        none is taken to have none."""
        for query in ({"purpose": purpose}, {}):
            async for entry in self._listed("/files", 1000, query):  # 10,000 are the most at once
                if not isinstance(entry, Fault):
                    if entry.get("purpose") in (None, purpose):
                        yield RemoteFile(
                            entry["id"], text(entry, "filename"), count(entry, "bytes")
                        )
                    continue
                if query and entry.status in (400, 422):
                    break
                if entry.status not in (404, 405):
                    yield entry
                return
            else:
                return

    @staticmethod
    def seen_of(data: Any, traits: BatchTraits, redactor: Redactor) -> ProviderBatch | None:
        id_ = text(data, "id")
        if not id_:
            return None
        word = text(data, "status")
        state, known = batch.STATES.get(word.lower(), batch.UNKNOWN)
        counts = data.get("request_counts")
        created = moment(data.get("created_at"))
        seen = ProviderBatch(
            id=id_,
            state=state,
            word=redactor.clean(word),
            known=known,
            total=count(counts, "total"),
            done=count(counts, "completed"),
            failed=count(counts, "failed"),
            created_at=created,
            expires_at=moment(data.get("expires_at")) if traits.expires else None,
            results_until=_results_until(created, traits),
            key=text(data.get("metadata"), KEY) or None,
            file_id=text(data, "input_file_id") or None,
        )
        if not state.is_terminal:
            return seen
        errors: tuple[batch.BatchError, ...] = ()
        if state is BatchState.FAILED:
            errors = _errors(data.get("errors") or data.get("error"), redactor)
        return replace(
            seen,
            ended_at=moment(data.get(f"{state.value}_at")),
            results=_results_of(data),
            errors=errors,
        )

    @staticmethod
    def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
        """Returns one line of an input file. Separators that some readers of lines split at are
        escaped."""
        head = json.dumps(
            {"custom_id": custom_id, "method": "POST", "url": endpoint}, separators=(",", ":")
        ).encode()
        return head[:-1] + b',"body":' + _one_line(body) + b"}"

    @staticmethod
    def result(line: bytes) -> ResultLine:
        custom_id, data = _object_of(line)
        response = data.get("response")
        error = data.get("error")
        status = _status(response)
        body = _body(mapping(response).get("body"))
        if error:
            return _error_line(custom_id, error, status, body)
        if not isinstance(response, dict):
            return ResultLine(custom_id, "unanswered", message="neither a response nor an error")
        if status is None:
            return ResultLine(custom_id, "unanswered", message="a response without a status")
        if not body:
            message = f"a response of status {status} without a body"
            return ResultLine(custom_id, "unanswered", status, message=message)
        return ResultLine(custom_id, "answered", status, body)


def _error_line(custom_id: str, error: Any, status: int | None, body: bytes) -> ResultLine:
    """Returns what a line with an error says; `status` and `body` are its response's."""
    code = text(error, "code")
    message = error if isinstance(error, str) else text(error, "message")
    ended = _ENDED.get(code)
    if ended:
        return ResultLine(custom_id, ended, message=message or code)
    status = status or _status(error) or 0
    if status < 400 and not code:
        return ResultLine(custom_id, "unanswered", message=message or "an error without words")
    # an error that comes with no status, or with a good one, is known by its code
    if not body or status < 400:
        body = encode({"error": error})
    return ResultLine(custom_id, "answered", max(status, 200), body, message)


def _results_of(data: Mapping[str, Any]) -> tuple[Remote, ...]:
    """Returns the files with results of a batch: either id may be null, absent, empty, or the same
    as the other."""
    output = text(data, "output_file_id")
    errors = text(data, "error_file_id")
    results: list[Remote] = []
    if output:
        results.append(Remote(output, "output"))
    if errors and errors != output:
        results.append(Remote(errors, "errors"))
    return tuple(results)


def _errors(errors: Any, redactor: Redactor) -> tuple[batch.BatchError, ...]:
    """Returns why a batch failed: OpenAI's list within an object, a bare list, one object, or a
    text."""
    listed = errors.get("data", [errors]) if isinstance(errors, dict) else errors
    read = []
    for error in filter(None, listed if isinstance(listed, list) else [listed]):
        if not isinstance(error, dict):
            read.append(batch.BatchError("", redactor.clean(str(error))))
            continue
        body = read_openai_error({"error": error})
        message = redactor.clean(body.message or body.name)[:MESSAGE_LENGTH]
        line = count(error, "line") or None
        read.append(batch.BatchError(redactor.clean(body.name), message, line))
    return tuple(read)


def _status(holder: Any) -> int | None:
    """Returns the HTTP status that an object names; None where it names none, or 0."""
    named = mapping(holder)
    return http_status(named.get("status_code"), 100) or http_status(named.get("code"), 100)


def _body(value: Any) -> bytes:
    """Returns the endpoint's payload; empty where there is none. Some send it as a text that holds
    JSON."""
    if isinstance(value, str):
        if value.strip() not in ("", "null", "{}"):
            return value.encode("utf-8", "surrogatepass")
        return b""
    return encode(value) if value else b""


def _one_line(body: bytes) -> bytes:
    """Returns the same JSON without U+2028 and U+2029, which can be in its texts only."""
    if b"\xe2\x80" not in body:
        return body
    return body.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


# Anthropic. Facts: platform.claude.com/docs/en/build-with-claude/batch-processing and the types of
# the anthropic SDK 2.12, November 2026. Requests are sent inline, and a batch has nothing of ours:
# it is found by their number.

_OPEN = b'{"requests":['
_CLOSE = b"]}"
_FAILURES = ("errored", "canceled", "expired")

_STATUSES: dict[str, int] = {
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
"""The status of each error where it comes by itself (the SDK's `ErrorType`): a result has only its
name."""


class AnthropicBatches(BatchApi):
    """The message batches of one workspace."""

    uploads = False
    address = "/messages/batches"
    cursor = "after_id"
    page = 1000
    rules = ANTHROPIC_RULES
    read_error = staticmethod(read_anthropic_error)

    @staticmethod
    def sdk() -> Sdk:
        """The anthropic package, an extra. Raises AgacError when it is not installed."""
        lack = lack_of("batch mode of Anthropic", "anthropic")
        if lack:
            raise AgacError(lack, remedy="Or write run_mode: sync.")
        import anthropic

        return anthropic.AsyncAnthropic, anthropic.APIStatusError, anthropic.AnthropicError

    async def create(self, order: Order) -> ProviderBatch | Fault:
        """Creates a batch of the requests in `order.path`: this is what costs money. See
        `BatchApi.create`."""
        size = order.path.stat().st_size - 1  # without the last line's break
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(_OPEN) + size + len(_CLOSE)),
        }
        with order.path.open("rb") as file:
            created = await self._ask(
                "post",
                self.address,
                of="create",
                model=order.model,
                options={"headers": headers},
                content=_inline(file, size),
            )
        return self._batch(created, creates=True)

    @staticmethod
    def may_be(batch: ProviderBatch, order: Order, since: float) -> bool:
        """True if it was created since then: nothing else tells, since counts may be wrong."""
        return batch.created_at is None or batch.created_at >= since

    async def download(self, result: Remote, path: Path, most: float = math.inf) -> int | Fault:
        """Writes the results to `path`, replacing it, and returns their size. See
        `BatchApi.download`. The address is made of the batch's id: the one that it names
        (`results_url`) may be elsewhere, not for our key."""
        saved = await self._save(
            f"{self._at(result.ref)}/results", path, "application/binary", most
        )
        if not isinstance(saved, Fault):
            return saved[0]
        if saved.status == 404:
            found = await self._ask("get", self._at(result.ref), of="known")
            if not isinstance(found, Fault) and text(found, "archived_at"):
                return self._refused(
                    FaultKind.TASK, f"keeps the results of {result.ref} no longer", code="gone"
                )
        return saved

    @staticmethod
    def seen_of(data: Any, traits: BatchTraits, redactor: Redactor) -> ProviderBatch | None:
        """Returns a batch as it was reported; None when it has no id."""
        id_ = text(data, "id")
        if not id_:
            return None
        word = text(data, "processing_status")
        counts = data.get("request_counts")
        counted = {name: count(counts, name) for name in ("processing", "succeeded", *_FAILURES)}
        numbers = [number for number in counted.values() if number is not None]
        state, known = batch.STATES.get(word.lower(), batch.UNKNOWN)
        created = moment(data.get("created_at"))
        archived = moment(data.get("archived_at"))
        seen = ProviderBatch(
            id=id_,
            state=state,
            word=redactor.clean(word),
            known=known,
            total=sum(numbers) if numbers else None,
            created_at=created,
            expires_at=moment(data.get("expires_at")),
            ended_at=moment(data.get("ended_at")),
            results_until=archived or _results_until(created, traits),
        )
        if word.lower() != "ended":
            return seen  # all counts but `processing` stay 0 until the end: that is no count
        is_cancelled = bool(data.get("cancel_initiated_at") and counted["canceled"])
        return replace(
            seen,
            state=_end_state(counted, is_cancelled=is_cancelled),
            known=True,
            done=counted["succeeded"],
            failed=sum(counted[name] or 0 for name in _FAILURES),
            results=(Remote(id_, "output"),) if archived is None else (),
        )

    @staticmethod
    def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
        """Returns one of the requests. All of them are messages: `endpoint` is not sent."""
        quoted_id = json.dumps(custom_id).encode()
        return b'{"custom_id":' + quoted_id + b',"params":' + _one_line(body) + b"}"

    @staticmethod
    def result(line: bytes) -> ResultLine:
        """Reads one line of the results. Raises UnreadableLine."""
        custom_id, data = _object_of(line)
        result: Any = data.get("result")
        match text(result, "type"):
            case "":
                return ResultLine(custom_id, "unanswered", message="no result")
            case "succeeded":
                message = mapping(result.get("message"))
                if message:
                    return ResultLine(custom_id, "answered", 200, encode(message))
                why = "a success without a message"
                return ResultLine(custom_id, "unanswered", 200, message=why)
            case "expired":
                why = "the batch ended before the request was worked on"
                return ResultLine(custom_id, "expired", message=why)
            case "canceled" | "cancelled":
                why = "the batch was cancelled before the request was worked on"
                return ResultLine(custom_id, "cancelled", message=why)
            case "errored":
                return _errored_line(custom_id, result.get("error"))
            case kind:
                why = f"a result of the unknown type {kind[:40]}"
                return ResultLine(custom_id, "unanswered", message=why)


def _end_state(counted: Mapping[str, int | None], *, is_cancelled: bool) -> BatchState:
    """Returns how a batch ended: its end has one word, and the counts say what it was."""
    if is_cancelled:
        return BatchState.CANCELLED
    if counted["expired"]:
        return BatchState.EXPIRED
    return BatchState.COMPLETED


def _errored_line(custom_id: str, outer: Any) -> ResultLine:
    """Returns what a line with an error says. The reason is an error within the error; some who
    look alike leave the outer one out."""
    inner = mapping(outer).get("error")
    error = inner if isinstance(inner, dict) else outer
    kind = text(error, "type")
    words = text(error, "message")
    if not kind:
        words = words or (outer if isinstance(outer, str) else "an error without words")
        return ResultLine(custom_id, "unanswered", message=words)
    body: dict[str, JSONValue] = {"type": "error", "error": error}
    request_id = text(outer, "request_id")
    if request_id:
        body["request_id"] = request_id
    return ResultLine(custom_id, "answered", _STATUSES.get(kind, 500), encode(body), words)


async def _inline(lines: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """Yields the request that creates a batch, made of the first `size` bytes of the lines while
    it is sent."""
    yield _OPEN
    while size > 0 and (piece := lines.read(min(PIECE, size))):
        size -= len(piece)
        yield piece.replace(b"\n", b",")
    yield _CLOSE


BATCH_APIS: Mapping[str, type[BatchApi]] = {"openai": OpenAIBatches, "anthropic": AnthropicBatches}
"""By the name that a provider's column `batch` gives them."""


def open_batch_api(provider: Provider, redactor: Redactor) -> BatchApi:
    """Returns the batches of a provider's account. Loads the provider's SDK; close it when done.
    Raises AgacError where that is not installed, UsageError where there are no batches, or as
    `BatchApi` does."""
    if provider.batch is None:
        raise UsageError(
            f"{provider.name} has no batches", remedy=sentence(provider.without_batches)
        )
    return BATCH_APIS[provider.batch.api](provider, provider.batch, redactor)
