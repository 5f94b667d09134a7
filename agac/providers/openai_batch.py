"""OpenAI's files and batches, and those of compatible providers: the API through the openai SDK, and the lines."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers import error_tables
from agac.providers.batch import (
    STATES,
    UNKNOWN,
    BatchError,
    BatchState,
    BatchTraits,
    EndedBatch,
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
from agac.providers.control_plane import Sdk, SdkBatches, listed, none, refused
from agac.providers.provider import Provider
from agac.providers.wire import encode

if TYPE_CHECKING:
    import httpx2


# Facts: platform.openai.com/docs/api-reference/batch and /files, the types of the openai SDK 3.52, Azure's pages and
# public bug reports, November 2026. What differs between those who look alike is in `BatchTraits`, or read as it comes.

KEY = "agac_intent"
"""The name in a batch's metadata under which it carries our key."""

_BATCHES_PAGE, _FILES_PAGE = 100, 1000
"""The most that is given at once: 100 batches; of files up to 10,000."""

_NOT_YET = re.compile(
    r"(?:cannot|can't|could not|couldn't) find .{0,20}\bfile\b|no such file\b"
    r"|\bfile\b.{0,80}(?:not found|not be found|does not exist|doesn't exist|no access)",
    re.IGNORECASE,
)
"""Words for a file that was just uploaded and is nowhere yet (github.com/bespokelabsai/curator/issues/116); there is no
code for it."""


def _sdk() -> Sdk:
    import openai

    def client(base_url: str, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
        # the key is set by us with every request, or none is
        return openai.AsyncOpenAI(api_key="unused", base_url=base_url, http_client=http, max_retries=0)

    return Sdk(
        client=client,
        answered=openai.APIStatusError,
        lost=(openai.OpenAIError,),
        rules=error_tables.OPENAI_RULES,
        read_error=error_tables.read_openai_error,
        is_error=error_tables.is_error,
    )


class OpenAIBatches(SdkBatches):
    """The batches of one account at OpenAI or somewhere that speaks its files and batches."""

    uploads = True
    address = "/batches"

    def __init__(self, provider: Provider, traits: BatchTraits, redactor: Redactor) -> None:
        """Raises UsageError: the address, a header, a proxy or the certificates cannot be used."""
        super().__init__(provider, traits, redactor, _sdk())
        self._short: dict[str, int] = {}

    async def upload(self, path: Path, name: str) -> str | Fault:
        """Uploads an input file and gives its id. See `BatchApi.upload`."""
        size = path.stat().st_size
        with path.open("rb") as file:
            found = await self._plane.post(
                "/files",
                creates=True,
                headers={"Content-Type": "multipart/form-data"},
                body={"purpose": "batch"},
                files=[("file", (name, file, "application/jsonl"))],
            )
        stored = None if isinstance(found, Fault) else count_of(found, "bytes")
        if stored is not None and 0 < stored < size:
            return refused(self._provider, FaultKind.RETRY, f"kept {stored:,} of the {size:,} bytes of {name}")
        return self._plane.read(found, lambda told: text_of(told, "id"), "a file without an id", creates=True)

    async def uploaded(self, name: str, size: int) -> str | Fault | None:
        """The id of an input file with this name and size that lies at the provider."""
        async for one in self._files("batch"):
            if isinstance(one, Fault):
                return one
            if one.name == name and one.size in (None, size):
                return one.id
        return None

    async def create(self, order: Order) -> ProviderBatch | Fault:
        """Creates a batch: this is what costs money. A Fault that is not `ambiguous` proves that there is none."""
        body = {
            "input_file_id": order.file_id,
            "endpoint": order.endpoint,
            "completion_window": order.window or self._traits.windows[0],
            "metadata": {KEY: order.key},
        }
        found = await self._plane.post(self.address, creates=True, model=order.model, body=body)
        made = self._plane.read(found, self._seen, "a batch without an id", creates=True)
        return _file_is_late(made) if isinstance(made, Fault) else made

    async def candidates(self, order: Order, since: float) -> AsyncIterator[ProviderBatch | Fault]:
        """Batches that echo the key or the input file of `order`. A Fault ends it."""
        async for one in self._batches(since, {self._traits.filters: order.key} if self._traits.filters else {}):
            if isinstance(one, Fault) or one.key == order.key or (one.file_id and one.file_id == order.file_id):
                yield one

    async def download(self, result: Remote, path: Path) -> int | Fault:
        """Writes a file of results to `path`, replacing it, and gives its size. See `BatchApi.download`."""
        address = f"/files/{quote(result.ref, safe='')}"
        saved = await self._plane.save(f"{address}/content", path, "application/octet-stream")
        if isinstance(saved, Fault):
            return saved
        if not saved.declared and await self._is_short(address, saved.size):
            return self._plane.torn(saved.size)
        return saved.size

    async def _is_short(self, address: str, size: int) -> bool:
        """Whether the provider has more of a file than it sent without saying how much it would be. One that sends the
        same again has all of it: its own count is wrong."""
        found = await self._plane.get(address, known=True)
        whole = None if isinstance(found, Fault) else count_of(found, "bytes")
        short = whole is not None and whole > size and self._short.get(address) != size
        self._short[address] = size
        return short

    async def delete(self, *, batch: str | None = None, file: str | None = None) -> Fault | None:
        """Deletes a file; batches stay in OpenAI's list. What is gone already is no fault."""
        return await self._plane.delete(f"/files/{quote(file, safe='')}") if file is not None else None

    async def stale(self, prefix: str) -> AsyncIterator[RemoteFile | Fault]:
        """Our input files and the result files of batches that carry our key, that still lie at the provider."""
        async for one in self._files("batch"):
            if isinstance(one, Fault):
                yield one
                return
            if one.name.startswith(prefix):
                yield replace(one, key=one.name.removeprefix(prefix).removesuffix(".jsonl"))
        made: dict[str, RemoteFile] = {}
        async for one in self._files("batch_output"):
            if isinstance(one, Fault):
                yield one
                return
            made[one.id] = one
        async for batch in self._batches(None, {}) if made else none():
            if isinstance(batch, Fault):
                yield batch
                return
            for result in batch.results if batch.key else ():
                if file := made.get(result.ref):
                    yield replace(file, key=batch.key)

    async def _files(self, purpose: str) -> AsyncIterator[RemoteFile | Fault]:
        limit = _FILES_PAGE if self._traits.pages else None
        async for one in listed(self._plane, "/files", query={"purpose": purpose}, limit=limit):
            if isinstance(one, Fault):
                yield one
            elif one.get("purpose") in (None, purpose):
                name = text_of(one, "filename") or ""
                yield RemoteFile(one["id"], name, count_of(one, "bytes"), moment(one.get("created_at")))

    async def _batches(self, since: float | None, query: Mapping[str, object]) -> AsyncIterator[ProviderBatch | Fault]:
        limit = _BATCHES_PAGE if self._traits.pages else None
        async for one in listed(self._plane, self.address, query=query, limit=limit, since=since):
            if isinstance(one, Fault):
                yield one
            elif seen := self._seen(one):
                yield seen

    def _seen(self, data: Any) -> ProviderBatch | None:
        return seen_of(data, self._traits, self._redactor)


def _file_is_late(fault: Fault) -> Fault:
    """A file that was just uploaded can be unknown to whoever creates batches: nothing was created, try again."""
    if fault.status in (400, 404) and not fault.ambiguous and _NOT_YET.search(fault.message):
        return replace(fault, kind=FaultKind.RETRY, code="input_file_not_found")
    return fault


def seen_of(data: Any, traits: BatchTraits, redactor: Redactor) -> ProviderBatch | None:
    """A batch as it is told; None when it has no id. Whatever else is missing or odd is read as not told."""
    batch = text_of(data, "id")
    if batch is None:
        return None
    word = text_of(data, "status") or ""
    state, known = STATES.get(word.lower(), UNKNOWN)
    counts, metadata = data.get("request_counts"), data.get("metadata")
    created = moment(data.get("created_at"))
    return ProviderBatch(
        id=batch,
        state=state,
        word=redactor.clean(word),
        known=known,
        total=count_of(counts, "total"),
        done=count_of(counts, "completed"),
        failed=count_of(counts, "failed"),
        created_at=created,
        expires_at=moment(data.get("expires_at")) if traits.expires else None,
        ended_at=moment(data.get(f"{state.value}_at")) if state.is_terminal else None,
        results_until=created + traits.results_kept if created and traits.results_kept else None,
        key=text_of(metadata, KEY),
        file_id=text_of(data, "input_file_id"),
        results=_results(data) if state.is_terminal else (),
        errors=_errors(data.get("errors") or data.get("error"), redactor) if state is BatchState.FAILED else (),
    )


def _results(data: dict[str, Any]) -> tuple[Remote, ...]:
    """The files of results. Either id may be null, absent, empty, or the same as the other."""
    output, errors = text_of(data, "output_file_id"), text_of(data, "error_file_id")
    return (
        *((Remote(output, "output"),) if output else ()),
        *((Remote(errors, "errors"),) if errors and errors != output else ()),
    )


def _errors(errors: Any, redactor: Redactor) -> tuple[BatchError, ...]:
    """Why a batch failed: OpenAI's list within an object, a bare list, one object, or a text."""
    found = errors.get("data", [errors]) if isinstance(errors, dict) else errors
    told = found if isinstance(found, list) else [found]
    return tuple(_error(one, redactor) for one in told if one)


def _error(error: Any, redactor: Redactor) -> BatchError:
    if not isinstance(error, dict):
        return BatchError("", redactor.clean(str(error)))
    line = error.get("line")
    code = text_of(error, "code") or text_of(error, "type") or ""
    message = redactor.clean(text_of(error, "message") or code)
    return BatchError(redactor.clean(code), message, line if type(line) is int and line > 0 else None)


# Shapes: platform.openai.com/docs/guides/batch and the types of the openai SDK 3.52; the odd ones are from public bug
# reports of OpenAI, Azure, Together, vLLM and others, November 2026.

_ENDED: dict[str, EndedBatch] = {
    "batch_expired": "expired",
    "batch_cancelled": "cancelled",
    "batch_canceled": "cancelled",
    "request_timeout": "unanswered",
}
"""What the codes of a line's error mean that say that the request was never, or not to its end, worked on."""


def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
    """One line of an input file. Separators that some readers of lines split at are escaped."""
    head = json.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint}, separators=(",", ":")).encode()
    return head[:-1] + b',"body":' + one_line(body) + b"}"


def one_line(body: bytes) -> bytes:
    """The same JSON without U+2028 and U+2029, which can stand in its texts only."""
    if b"\xe2\x80" not in body:
        return body
    return body.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def result(line: bytes) -> ResultLine:
    """One line of an output or an error file. Raises UnreadableLine."""
    custom_id, data = object_of(line)
    response, error = data.get("response"), data.get("error")
    if error:
        return _failed(custom_id, response, error)
    if not isinstance(response, dict):
        return ResultLine(custom_id, "unanswered", message="neither a response nor an error")
    request_id, status = text_of(response, "request_id") or "", _status(response)
    if status is None:
        return ResultLine(custom_id, "unanswered", message="a response without a status", request_id=request_id)
    body = _body(response.get("body"))
    if not body:
        message = f"a response of status {status} without a body"
        return ResultLine(custom_id, "unanswered", status, message=message, request_id=request_id)
    return ResultLine(custom_id, "answered", status, body, request_id=request_id)


def _failed(custom_id: str, response: Any, error: Any) -> ResultLine:
    """A line with an error of its own. One that stands beside an answer is read as the endpoint's error: what it means
    is the dialect's to say."""
    code, message = text_of(error, "code") or "", text_of(error, "message") or ""
    if isinstance(error, str):
        message = error
    request_id = text_of(response, "request_id") or ""
    if ended := _ENDED.get(code):
        return ResultLine(custom_id, ended, message=message or code, request_id=request_id)
    status = _status(response) or _status(error) or 0
    body = _body(response.get("body")) if isinstance(response, dict) else b""
    if status >= 400 or code:
        # an error that comes with no status, or with a good one, is told by its code
        body = body if body and status >= 400 else encode({"error": error})
        return ResultLine(custom_id, "answered", max(status, 200), body, message, request_id)
    return ResultLine(custom_id, "unanswered", message=message or "an error without words", request_id=request_id)


def _status(of: Any) -> int | None:
    """The HTTP status that an object names; None where it names none, or 0."""
    for name in ("status_code", "code"):
        value = of.get(name) if isinstance(of, dict) else None
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if type(value) is int and 100 <= value < 600:
            return value
    return None


def _body(value: Any) -> bytes:
    """The endpoint's payload; empty where there is none. Some send it as a text that holds JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass") if value.strip() not in ("", "null", "{}") else b""
    return encode(value) if value else b""
