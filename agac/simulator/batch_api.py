"""Files and batches over HTTP: OpenAI's, Azure's, which are the same at another address, and Anthropic's.

All three share a call's way (`BatchCall`), the store and the work; how each writes is in its provider's module.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from aiohttp import web

from agac.simulator.anthropic import MESSAGES, bad, results_url
from agac.simulator.batch_store import DAY, Batch, StoredFile
from agac.simulator.batch_worker import FAMILIES, MAX_ID_LENGTH, SimulatedBatches
from agac.simulator.faults import FaultRule, mentions, rule_error
from agac.simulator.openai import CHAT, OPENAI_ENDPOINTS, file_object, missing
from agac.simulator.replies import MARK, ApiError, ModelApi, encoded, read_object

INPUTS_KEPT = 30 * DAY
DOWNLOAD_PIECE = 2**18

MAX_FILE_BYTES = 512 * 2**20
MAX_BODY_BYTES = 256_000_000
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
MIN_KEPT_S, MAX_KEPT_S = 3600, 2_592_000

CREATE_PARAMETERS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
MAX_PAIRS, MAX_KEY_LENGTH, MAX_VALUE_LENGTH = 16, 64, 512
MAX_MESSAGE_REQUESTS = 100_000
ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

Answer = dict[str, Any] | Path | ApiError
"""What a call comes to: JSON, a file, or an error that leaves its changes as they are."""

Effect = Callable[[Any], Answer]
"""A method of a call that does what is requested; raises ApiError, and then nothing changed."""


class Dropped(Exception):
    """The connection is closed without an answer."""


def drop_connection(http: web.Request) -> None:
    """Closes the connection of a request."""
    if http.transport is not None:
        http.transport.close()


def json_response(data: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Any JSON, marked as simulated."""
    body = json.dumps(data).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=MARK | (headers or {}))


class BatchCall:
    """One call of a batch API: counted, and with its faults before or after it has its effect."""

    api: ModelApi
    """How errors are written."""

    page_limit: int
    """How many batches a page of the list holds at most."""

    cancels_hidden: bool
    """Whether a batch can be cancelled that a fault hides."""

    file_headers = MARK

    def __init__(self, family: str, batches: SimulatedBatches, operation: str, http: web.Request) -> None:
        self.family, self.batches, self.operation, self.http = family, batches, operation, http
        self.store, self.format = batches.store, FAMILIES[family]
        self.id = http.match_info.get("id", "")
        self.number = 0
        self.rules: list[FaultRule] = []
        self.begun = ""
        """The batch whose work is to start."""

    async def serve(self, effect: Effect) -> web.StreamResponse:
        """The answer to the call, which has its effect unless a fault comes first; raises ApiError."""
        self.number = self.batches.count(self.operation)
        self.rules = self.batches.faults.of_call(self.operation, self.number)
        try:
            await self._apply("before")
            await self.receive()
            if self.operation != "create" and "/batches" in self.http.path:
                await self.batches.caught_up(self.id or None)
            with nullcontext() if self.http.method == "GET" else self.store.write():
                done = effect(self)
            if self.begun:
                self.batches.start(self.begun)
            if isinstance(done, ApiError):
                raise done
            await self._apply("after")
        except Dropped:
            drop_connection(self.http)
            return web.Response(status=503)
        return json_response(done) if isinstance(done, dict) else await self._send(done)

    async def receive(self) -> None:
        """Reads the body; raises ApiError."""

    async def _apply(self, when: str) -> None:
        """The faults of one moment of the call: it waits, its connection is dropped, or it is refused."""
        for rule in self.rules:
            if rule.kind == "batch_slow" and when == "before":
                self.store.counted(f"fault.{rule.kind}")
                await asyncio.sleep(rule.value("seconds"))
            elif rule.kind == f"batch_drop_{when}":
                self.store.counted(f"fault.{rule.kind}")
                raise Dropped
            elif rule.kind == "batch_status" and rule.value("when") == when:
                self.store.counted(f"fault.{rule.kind}")
                raise rule_error(rule.values)

    async def _send(self, path: Path) -> web.StreamResponse:
        """A file as the body, or the part of it that is asked for, piece by piece; a fault ends it early, with the
        connection, or sends something else."""
        if (junk := next((rule for rule in self.rules if rule.kind == "batch_junk"), None)) is not None:
            self.store.counted(f"fault.{junk.kind}")
            return await self._send_junk(junk.value("body"), path)
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=([0-9]{1,15})-", self.http.headers.get("Range", ""))  # other ranges get it whole
        begin = int(wanted[1]) if wanted is not None and int(wanted[1]) < size else 0
        left = size - begin
        cut = next((rule for rule in self.rules if rule.kind == "batch_truncate"), None)
        response = web.StreamResponse(status=206 if begin else 200, headers=self.file_headers)
        response.headers["Accept-Ranges"] = "bytes"
        if begin:
            response.headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        response.content_type = "application/octet-stream"
        response.content_length = left
        if cut is not None:
            self.store.counted(f"fault.{cut.kind}")
            after = cut.value("after_bytes")
            left = min(left // 2 if after is None else after, max(0, left - 1))
        with suppress(ConnectionError), path.open("rb") as file:
            file.seek(begin)
            await response.prepare(self.http)
            while left > 0 and (piece := await asyncio.to_thread(file.read, min(DOWNLOAD_PIECE, left))):
                await response.write(piece)
                left -= len(piece)
            if cut is None:
                await response.write_eof()
        if cut is not None:
            drop_connection(self.http)
        return response

    async def _send_junk(self, body: str, path: Path) -> web.StreamResponse:
        """Something else than a whole file of results."""
        if body == "error":
            return json_response({"error": {"message": "The results cannot be read now.", "type": "server_error"}})
        lines = path.read_bytes().splitlines()
        if body == "array":
            return web.Response(body=b"[" + b",".join(lines) + b"]", headers=self.file_headers)
        if body in ("half", "empty"):
            half = b"\n".join(lines[: len(lines) // 2])
            return web.Response(body=half if body == "half" else b"", headers=self.file_headers)
        response = web.StreamResponse(headers=self.file_headers)
        with suppress(ConnectionError):
            await response.prepare(self.http)
            while True:
                await response.write(b"x" * DOWNLOAD_PIECE)
        return response

    def existing(self, name: str) -> Path:
        """The path of a file's bytes; raises ApiError if they are gone."""
        path = self.store.file_path(name)
        if not path.exists():
            raise ApiError(404, "The file is not there any more.")
        return path

    def page_size(self, usual: int, most: int) -> int:
        """How many entries a page holds, by the parameter `limit` and by a fault; raises ApiError."""
        text = self.http.query.get("limit")
        if text is not None and (not text.isdecimal() or not 1 <= int(text) <= most):
            raise ApiError(400, f"Invalid 'limit': expected an integer from 1 to {most}.", param="limit")
        limit = usual if text is None else int(text)
        return min(limit, self.batches.faults.page_size or limit)

    def found(self, batch_id: str, *, hidden: bool = False) -> Batch:
        """A batch that exists, and that no fault hides unless a `hidden` one is meant too; raises ApiError."""
        batch = self.store.batch(batch_id, self.family)
        if batch is None or (not hidden and batch.hidden_by("batch_get_404", self.store.now())):
            raise self.format.not_found(batch_id)
        return batch

    def listed(self, **bounds: int | None) -> list[Batch]:
        """The batches of the family, the newest first; some show up late."""
        now = self.store.now()
        found = self.store.batches(self.family, **bounds)
        return [batch for batch in found if not batch.hidden_by("batch_list_lag", now)]

    def written(self, batch: Batch) -> dict[str, Any]:
        """A batch as the provider writes it."""
        return self.format.batch_object(batch, self.store.now(), f"{self.http.scheme}://{self.http.host}")

    def get_batch(self) -> Answer:
        """GET …/batches/ID."""
        return self.written(self.found(self.id))

    def cancel(self) -> Answer:
        """POST …/batches/ID/cancel: requests that are done by now stay done."""
        batch = self.found(self.id, hidden=self.cancels_hidden)
        if batch.ended:
            raise self.format.not_open(batch)
        self.store.cancel(batch)
        self.begun = batch.id
        return self.written(batch)

    def new_batch(self, prefix: str, contains: Callable[[str], bool], **more: Any) -> Batch:
        """A batch to store, with the faults that are meant for it."""
        now = self.store.now()
        return Batch(
            id=self.store.new_id(prefix, self.number, now), family=self.family, created_at=now,
            seconds=self.batches.seconds, expires_at=None if self.family == "azure" else now + DAY,
            faults=self.batches.faults.of_batch(self.number, contains), number=self.number, **more,
        )  # fmt: skip

    def created(self, batch: Batch) -> Answer:
        """Stores a new batch, whose work starts then."""
        self.begun = batch.id
        return self.written(self.store.add_batch(batch))


class OpenAiCall(BatchCall):
    """A call about files and batches of OpenAI, or of Azure."""

    api = CHAT
    page_limit = 100
    cancels_hidden = True

    async def receive(self) -> None:
        if self.operation == "upload":
            self.upload = await read_upload(self.http)
        elif self.operation == "create":
            self.order = read_order(read_object(await self.http.read()), self.family)

    def add_file(self) -> Answer:
        """POST /files."""
        now = self.store.now()
        file_id = self.store.new_id("file-", self.number, now)
        path = self.store.folder / f".upload-{file_id}"
        with path.open("wb") as kept:
            shutil.copyfileobj(self.upload.content, kept)
        lag = next((rule.value("times") for rule in self.rules if rule.kind == "batch_file_lag"), 0)
        expires_at = now + (INPUTS_KEPT if self.upload.kept_seconds is None else self.upload.kept_seconds)
        self.store.count("files")
        return file_object(self.store.add_file(file_id, path, self.upload.name, self.upload.purpose, expires_at, lag))

    def list_files(self) -> Answer:
        """GET /files: the newest first, or the oldest with `order=asc`."""
        query, size = self.http.query, self.page_size(10_000, 10_000)
        newest = query.get("order", "desc") != "asc"
        found = self.store.files(query.get("purpose"), query.get("after"), newest=newest)
        return list_page(map(file_object, found[: size + 1]), size)

    def file(self) -> StoredFile:
        """The requested file; raises ApiError."""
        file = self.store.file(self.id)
        if file is None:
            raise ApiError(404, f"No such File object: {self.id}", param="id")
        return file

    def content(self) -> Answer:
        """GET /files/ID/content."""
        return self.existing(self.file().id)

    def delete_file(self) -> Answer:
        """DELETE /files/ID."""
        self.store.delete_file(self.file().id)
        return {"id": self.id, "object": "file", "deleted": True}

    def create(self) -> Answer:
        """POST /batches."""
        input_id = self.order["input_id"]
        file = self.store.file(input_id)
        if file is not None and file.lag > 0:
            self.store.lower_lag(file)
            self.store.count("fault.batch_file_lag")
            file = None
        if file is None:
            message = f"Cannot find file {input_id}, or the project does not have access to it."
            return ApiError(400, message, code="invalid_request", param="input_file_id")
        if file.purpose != "batch":
            message = f"Invalid purpose '{file.purpose}' of the input file: expected 'batch'."
            raise ApiError(400, message, param="input_file_id")
        contains = partial(file_mentions, self.store.file_path(file.id))
        return self.created(self.new_batch("batch_", contains, **self.order))

    def list_batches(self) -> Answer:
        """GET /batches."""
        after, size = self.http.query.get("after"), self.page_size(20, self.page_limit)
        last = self.store.batch(after, self.family) if after is not None else None
        if after is not None and last is None:
            raise ApiError(400, f"Invalid 'after': no such batch: {after}", param="after")
        return list_page(map(self.written, self.listed(before=last.seq if last else None)), size)


class MessageCall(BatchCall):
    """A call about Anthropic's batches."""

    api = MESSAGES
    page_limit = 1000
    cancels_hidden = False
    file_headers = MARK | {"request-id": "req_sim_batches"}

    async def serve(self, effect: Effect) -> web.StreamResponse:
        if not self.http.headers.get("anthropic-version"):
            raise bad("anthropic-version", "header is required")
        return await super().serve(effect)

    async def receive(self) -> None:
        if self.operation == "create":
            self.requests = await asyncio.to_thread(split_requests, await self.http.read())

    def create(self) -> Answer:
        """POST /v1/messages/batches. Anthropic refuses at once what others refuse when they check the input."""
        batch = self.new_batch(
            "msgbatch_",
            lambda text: any(mentions(line, text) for line in self.requests),
            input_id="",
            endpoint=self.http.headers["anthropic-version"],
            validated=True,
            total=len(self.requests),
            enqueued_tokens=sum(map(len, self.requests)) // 4,
        )
        batch.input_id = f"{batch.id}.input"
        rejection, cap = batch.fault("batch_reject"), batch.fault("batch_enqueued_cap")
        waiting = sum(other.enqueued_tokens for other in self.store.open_batches())
        if rejection is not None:
            message = rejection.get("message") or "The batch was rejected."
            return self._refused("batch_reject", ApiError(400, message, code=rejection.get("code")))
        if cap is not None and waiting + batch.enqueued_tokens > cap["tokens"]:
            message = "Too many batch requests wait to be processed."
            return self._refused("batch_enqueued_cap", ApiError(429, message, code="rate_limit_exceeded"))
        self.store.file_path(batch.input_id).write_bytes(b"".join(self.requests))
        self.store.count("requests", batch.total)
        return self.created(batch)

    def _refused(self, kind: str, error: ApiError) -> ApiError:
        """Counts a batch that a fault refuses."""
        self.store.count("rejected")
        self.store.count(f"fault.{kind}")
        return error

    def list_batches(self) -> Answer:
        """GET /v1/messages/batches."""
        query, size = self.http.query, self.page_size(20, self.page_limit)
        after, before = query.get("after_id"), query.get("before_id")
        if before is not None:
            found = self.listed(after=self.found(before).seq)
            shown = found[-size:]
        else:
            found = self.listed(before=None if after is None else self.found(after).seq)
            shown = found[:size]
        data = [self.written(batch) for batch in shown]
        ids = [one["id"] for one in data] or [None]
        return {"data": data, "has_more": len(found) > size, "first_id": ids[0], "last_id": ids[-1]}

    def results(self) -> Answer:
        """GET /v1/messages/batches/ID/results."""
        batch = self.found(self.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} has not ended yet: it has no results.")
        if results_url(batch, self.store.now(), "") is None:
            raise ApiError(404, f"The results of Message Batch {batch.id} are no longer available.")
        return self.existing(batch.output_id or f"{batch.id}.output")

    def delete(self) -> Answer:
        """DELETE /v1/messages/batches/ID: only of a batch that has ended."""
        batch = self.found(self.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} is in progress: cancel it, and delete it once it has ended.")
        self.store.delete_batch(batch)
        return {"id": batch.id, "type": "message_batch_deleted"}


Route = tuple[str, str, str, Effect]
OPENAI_ROUTES: list[Route] = [
    ("POST", "/files", "upload", OpenAiCall.add_file),
    ("GET", "/files", "files", OpenAiCall.list_files),
    ("GET", "/files/{id}", "files", lambda call: file_object(call.file())),
    ("GET", "/files/{id}/content", "download", OpenAiCall.content),
    ("DELETE", "/files/{id}", "delete", OpenAiCall.delete_file),
    ("POST", "/batches", "create", OpenAiCall.create),
    ("GET", "/batches", "list", OpenAiCall.list_batches),
    ("GET", "/batches/{id}", "poll", OpenAiCall.get_batch),
    ("POST", "/batches/{id}/cancel", "cancel", OpenAiCall.cancel),
]
"""Method, path, operation and effect of each call."""

MESSAGE_ROUTES: list[Route] = [
    ("POST", "", "create", MessageCall.create),
    ("GET", "", "list", MessageCall.list_batches),
    ("GET", "/{id}", "poll", MessageCall.get_batch),
    ("GET", "/{id}/results", "download", MessageCall.results),
    ("POST", "/{id}/cancel", "cancel", MessageCall.cancel),
    ("DELETE", "/{id}", "delete", MessageCall.delete),
]


def list_page(found: Iterable[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of OpenAI's list, of which at least one more than fits was looked up."""
    entries = list(found)
    data = entries[:limit]
    ids = [item["id"] for item in data] or [None]
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": len(entries) > limit}


def file_mentions(path: Path, text: str) -> bool:
    """Whether one of the lines of an input contains a text."""
    with path.open("rb") as lines:
        return any(mentions(line, text) for line in lines)


class Upload(NamedTuple):
    """A file that came in: its bytes, name and purpose, and for how many seconds it is to be kept, None if unsaid."""

    content: IO[bytes]
    name: str
    purpose: str
    kept_seconds: float | None


async def read_upload(http: web.Request) -> Upload:
    """The file of a multipart body; raises ApiError for an upload that OpenAI refuses."""
    try:
        fields = await http.post()
    except web.HTTPRequestEntityTooLarge as wrong:
        message = f"The file is larger than {MAX_FILE_BYTES:,} bytes, the most."
        raise ApiError(413, message, code="file_too_large") from wrong
    except ValueError as wrong:
        raise ApiError(400, f"We could not parse the multipart body: {wrong}") from wrong
    file, purpose = fields.get("file"), fields.get("purpose")
    if not isinstance(file, web.FileField):
        raise missing("file")
    if not purpose:
        raise missing("purpose")
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        known = ", ".join(f"'{one}'" for one in PURPOSES)
        raise ApiError(400, f"'{purpose!s}' is not one of [{known}] - 'purpose'", param="purpose")
    if purpose == "batch" and not file.filename.endswith(".jsonl"):
        raise ApiError(400, f"Invalid file format for Batch API: '{file.filename}'. Must be .jsonl", param="file")
    if not file.file.seek(0, os.SEEK_END):
        raise ApiError(400, "The file is empty.", param="file")
    file.file.seek(0)
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    unsaid = anchor is None and seconds is None
    kept_seconds = None if unsaid else read_kept_seconds(anchor, seconds, "expires_after")
    return Upload(file.file, file.filename, purpose, kept_seconds)


def read_kept_seconds(anchor: object, seconds: object, param: str) -> float:
    """How long something is kept after its creation; raises ApiError."""
    if anchor != "created_at":
        raise ApiError(400, f"Invalid '{param}.anchor': expected 'created_at'.", param=f"{param}.anchor")
    try:
        kept = int(str(seconds))
    except ValueError:
        kept = 0
    if not MIN_KEPT_S <= kept <= MAX_KEPT_S:
        message = f"Invalid '{param}.seconds': expected an integer from {MIN_KEPT_S} to {MAX_KEPT_S}."
        raise ApiError(400, message, param=f"{param}.seconds")
    return float(kept)


def read_order(data: dict[str, Any], family: str) -> dict[str, Any]:
    """The body of a create at OpenAI or Azure as fields of a Batch; raises ApiError. Azure also takes endpoints without
    their version."""
    for name in CREATE_PARAMETERS[:3]:
        if not isinstance(data.get(name), str) or not data[name]:
            raise missing(name)
    if unknown := sorted(set(data) - set(CREATE_PARAMETERS)):
        raise ApiError(400, f"Unknown parameter: '{unknown[0]}'.", code="unknown_parameter", param=unknown[0])
    endpoint = data["endpoint"]
    if endpoint not in OPENAI_ENDPOINTS and not (family == "azure" and f"/v1{endpoint}" in OPENAI_ENDPOINTS):
        known = " and ".join(f"'{one}'" for one in OPENAI_ENDPOINTS)
        message = f"Invalid value: '{endpoint}'. Supported values are: {known}."
        raise ApiError(400, message, code="invalid_value", param="endpoint")
    if data["completion_window"] != "24h":
        message = f"Invalid value: '{data['completion_window']}'. Value must be '24h'."
        raise ApiError(400, message, code="invalid_value", param="completion_window")
    kept = data.get("output_expires_after")
    if kept is not None and not isinstance(kept, dict):
        raise ApiError(400, "Invalid 'output_expires_after': expected an object.", param="output_expires_after")
    metadata = data.get("metadata")
    if (problem := metadata_problem(metadata)) is not None:
        raise ApiError(400, f"Invalid 'metadata': {problem}.", param="metadata")
    if kept is not None:
        kept = read_kept_seconds(kept.get("anchor"), kept.get("seconds"), "output_expires_after")
    return {"endpoint": endpoint, "input_id": data["input_file_id"], "metadata": metadata, "kept_seconds": kept}


def metadata_problem(metadata: Any) -> str | None:
    """What is wrong with metadata, which is pairs of texts."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        return "expected an object of strings"
    if len(metadata) > MAX_PAIRS:
        return f"too many properties: {len(metadata)}, at most {MAX_PAIRS}"
    if any(len(key) > MAX_KEY_LENGTH or len(value) > MAX_VALUE_LENGTH for key, value in metadata.items()):
        return f"keys have at most {MAX_KEY_LENGTH} characters, values at most {MAX_VALUE_LENGTH}"
    return None


def split_requests(body: bytes) -> list[bytes]:
    """Each request of Anthropic's body as a line. Raises ApiError for what it refuses."""
    if len(body) > MAX_BODY_BYTES:
        message = f"Request exceeds the maximum size of {MAX_BODY_BYTES:,} bytes."
        raise ApiError(413, message, code="request_too_large")
    requests = read_object(body).get("requests")
    if requests is not None and not isinstance(requests, list):
        raise bad("requests", "Input should be a valid list")
    if not requests:
        raise bad("requests", "List should have at least 1 item")
    if len(requests) > MAX_MESSAGE_REQUESTS:
        raise bad("requests", f"List should have at most {MAX_MESSAGE_REQUESTS} items")
    seen: set[str] = set()
    for number, request in enumerate(requests):
        check_request(f"requests.{number}", request, seen)
    return [encoded(request) + b"\n" for request in requests]


def check_request(place: str, request: Any, seen: set[str]) -> None:
    """Raises ApiError for what Anthropic refuses at once; the `params` are checked only when the request is done."""
    if not isinstance(request, dict):
        raise bad(place, "Input should be an object")
    for name in sorted(set(request) - {"custom_id", "params"}):
        raise bad(f"{place}.{name}", "Extra inputs are not permitted")
    for name in ("custom_id", "params"):
        if request.get(name) is None:
            raise bad(f"{place}.{name}", "Field required")
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not custom_id:
        raise bad(f"{place}.custom_id", "String should have at least 1 character")
    if len(custom_id) > MAX_ID_LENGTH:
        raise bad(f"{place}.custom_id", f"String should have at most {MAX_ID_LENGTH} characters")
    if not set(custom_id) <= ID_LETTERS:
        raise bad(f"{place}.custom_id", "String should match pattern '^[a-zA-Z0-9_-]{1,64}$'")
    if not isinstance(request["params"], dict):
        raise bad(f"{place}.params", "Input should be an object")
    if custom_id in seen:
        raise bad(f"{place}.custom_id", f"custom_id {json.dumps(custom_id)} is not unique in the batch")
    seen.add(custom_id)
