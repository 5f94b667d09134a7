"""Files and batches over HTTP: OpenAI's, Azure's, which are the same at another address, and Anthropic's. All share a
call's way (`BatchCall`), the store and the work; how each writes is in its provider's module."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from aiohttp import web

from agac.core.state_files import make_file
from agac.simulator.anthropic import bad, results_url
from agac.simulator.batch_store import DAY, Batch, StoredFile
from agac.simulator.batch_worker import FAMILIES, SimulatedBatches
from agac.simulator.chat import invalid, missing
from agac.simulator.faults import FaultRule, error_of, mentions
from agac.simulator.openai import OPENAI_ENDPOINTS, file_object
from agac.simulator.replies import MARK, PAGE, ApiError, blocked_page, encoded, read_object

INPUTS_KEPT = 30 * DAY
DOWNLOAD_PIECE = 2**18

MAX_FILE_BYTES = 512 * 2**20
MAX_BODY_BYTES = 256_000_000

CREATE_PARAMETERS = ("input_file_id", "endpoint", "completion_window", "metadata")
MAX_MESSAGE_REQUESTS = 100_000
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Answer = dict[str, Any] | Path | ApiError
"""What a call comes to: JSON, a file, or an error that leaves its changes as they are."""

Effect = Callable[[Any], Answer]
"""A method of a call that does what is requested; raises ApiError, and then nothing changed."""


class Dropped(Exception):
    """The connection is closed without an answer."""


def drop_connection(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.close()


def json_response(data: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps(data).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=MARK | (headers or {}))


class BatchCall:
    """One call of a batch API: counted, and with its faults before or after it has its effect."""

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
            await self._apply("received")
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
        except ApiError as error:
            if error.page is None:
                raise
            return web.Response(status=error.status, body=error.page, content_type="text/html", headers=MARK)
        return json_response(done) if isinstance(done, dict) else await self._send(done)

    async def receive(self) -> None:
        """Reads the body; raises ApiError."""

    def requests_sent(self) -> bytes:
        """Returns the requests for a batch that the call holds."""
        return b""

    async def _apply(self, when: str) -> None:
        """The faults of one moment of the call: it waits, its connection is dropped, or it is refused."""
        for rule in self.rules:
            if rule.value("when") != when:
                continue
            if rule.kind == "batch_too_large" and (self.http.content_length or 0) <= rule.value("bytes"):
                continue
            text = rule.value("match")
            if rule.kind == "batch_blocked" and text is not None and not mentions(self.requests_sent(), text):
                continue
            self.store.counted(f"fault.{rule.kind}")
            if rule.kind == "batch_blocked":
                raise blocked_page(rule.value("status"))
            if rule.kind == "batch_status":
                raise error_of(rule)
            if rule.kind == "batch_too_large":
                most = rule.value("bytes")
                raise ApiError(413, f"The body has more than {most:,} bytes, the most.", code="request_too_large")
            if rule.kind != "batch_slow":
                raise Dropped
            await asyncio.sleep(rule.value("seconds"))

    async def _send(self, path: Path) -> web.StreamResponse:
        """A file, or its part that is asked for; a fault ends it early or sends something else."""
        cut = next((rule for rule in self.rules if rule.kind in ("batch_junk", "batch_truncate")), None)
        if cut is None:
            return web.FileResponse(path, headers=self.file_headers)
        self.store.counted(f"fault.{cut.kind}")
        if cut.kind == "batch_junk":
            body = cut.value("body")
            if body == "error":
                return json_response({"error": {"message": "The results cannot be read now.", "type": "server_error"}})
            lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
            sent = {
                "array": b"[" + b",".join(lines) + b"]", "half": b"\n".join(lines[: len(lines) // 2]), "empty": b"",
                "page": PAGE % (b"200 OK", b"Log in to go on."),
            }  # fmt: skip
            if body in sent:
                return web.Response(body=sent[body], headers=self.file_headers)
            response = web.StreamResponse(headers=self.file_headers)
            with suppress(ConnectionError):
                await response.prepare(self.http)
                while True:
                    await response.write(b"x" * DOWNLOAD_PIECE)
            return response
        content, after = path.read_bytes(), cut.value("after_bytes")
        response = web.StreamResponse(headers=self.file_headers | {"Accept-Ranges": "bytes"})
        response.content_length = len(content)
        with suppress(ConnectionError):
            await response.prepare(self.http)
            await response.write(content[: len(content) // 2 if after is None else after][: max(0, len(content) - 1)])
        drop_connection(self.http)
        return response

    def existing(self, name: str) -> Path:
        path = self.store.file_path(name)
        if not path.exists():
            raise ApiError(404, "The file is not there any more.")
        return path

    def page_size(self, usual: int, most: int) -> int:
        """How many entries a page holds, by the parameter `limit` and by a fault; raises ApiError."""
        text = self.http.query.get("limit")
        if text is not None and (not text.isdecimal() or not 1 <= int(text) <= most):
            raise invalid("limit", f"an integer from 1 to {most}")
        limit = usual if text is None else int(text)
        return min(limit, self.batches.faults.page_size or limit)

    def found(self, batch_id: str) -> Batch:
        """A batch that exists; raises ApiError."""
        batch = self.store.batch(batch_id, self.family)
        if batch is None or (self.operation == "poll" and batch.hidden_by("batch_get_404", self.store.now())):
            raise self.format.not_found(batch_id)
        return batch

    def listed(self, last: Batch | None) -> list[Batch]:
        """The batches of the family that are older than the `last` one known, the newest first; some show up late."""
        now = self.store.now()
        found = self.store.batches(self.family, before=last.seq if last else None)
        return [batch for batch in found if not batch.hidden_by("batch_list_lag", now)]

    def written(self, batch: Batch) -> dict[str, Any]:
        return self.format.batch_object(batch, self.store.now(), f"{self.http.scheme}://{self.http.host}")

    def get_batch(self) -> Answer:
        return self.written(self.found(self.id))

    def cancel(self) -> Answer:
        """POST …/batches/ID/cancel: requests that are done by now stay done."""
        batch = self.found(self.id)
        if batch.ended:
            raise self.format.not_open(batch)
        self.store.cancel(batch)
        self.begun = batch.id
        return self.written(batch)

    def new_batch(self, prefix: str, contains: Callable[[str], bool], **more: Any) -> Batch:
        now = self.store.now()
        return Batch(
            id=self.store.new_id(prefix, self.number, now), family=self.family, created_at=now,
            seconds=self.batches.seconds, expires_at=None if self.family == "azure" else now + DAY,
            faults=self.batches.faults.of_batch(self.number, contains), number=self.number, **more,
        )  # fmt: skip

    def created(self, batch: Batch) -> Answer:
        self.begun = batch.id
        return self.written(self.store.add_batch(batch))


class OpenAiCall(BatchCall):
    """A call about files and batches of OpenAI, or of Azure."""

    async def receive(self) -> None:
        if self.operation == "upload":
            self.upload = await read_upload(self.http)
        elif self.operation == "create":
            self.order = read_order(read_object(await self.http.read()))

    def requests_sent(self) -> bytes:
        if self.operation != "upload":
            return b""
        file, _ = self.upload
        content = file.read()
        file.seek(0)
        return content

    def add_file(self) -> Answer:
        content, name = self.upload
        now = self.store.now()
        file_id = self.store.new_id("file-", self.number, now)
        path = self.store.folder / f".upload-{file_id}"
        make_file(path)
        with path.open("wb") as kept:
            shutil.copyfileobj(content, kept)
        lag = next((rule.value("times") for rule in self.rules if rule.kind == "batch_file_lag"), 0)
        self.store.count("files")
        return file_object(self.store.add_file(file_id, path, name, "batch", now, INPUTS_KEPT, lag))

    def list_files(self) -> Answer:
        """GET /files: the newest first."""
        query, size = self.http.query, self.page_size(10_000, 10_000)
        found = self.store.files(query.get("purpose"), query.get("after"))
        return {"object": "list"} | list_page(map(file_object, found[: size + 1]), size)

    def file(self) -> StoredFile:
        file = self.store.file(self.id)
        if file is None:
            raise ApiError(404, f"No such File object: {self.id}", param="id")
        return file

    def content(self) -> Answer:
        return self.existing(self.file().id)

    def delete_file(self) -> Answer:
        self.store.delete_file(self.file().id)
        return {"id": self.id, "object": "file", "deleted": True}

    def create(self) -> Answer:
        input_id = self.order["input_id"]
        file = self.store.file(input_id)
        if file is not None and file.lag > 0:
            self.store.lower_lag(file)
            self.store.count("fault.batch_file_lag")
            file = None
        if file is None:
            message = f"Cannot find file {input_id}, or the project does not have access to it."
            return ApiError(400, message, code="invalid_request", param="input_file_id")
        path = self.store.file_path(file.id)
        return self.created(self.new_batch("batch_", lambda text: mentions(path.read_bytes(), text), **self.order))

    def list_batches(self) -> Answer:
        after, size = self.http.query.get("after"), self.page_size(20, 100)
        last = self.store.batch(after, self.family) if after is not None else None
        if after is not None and last is None:
            raise ApiError(400, f"Invalid 'after': no such batch: {after}", param="after")
        return {"object": "list"} | list_page(map(self.written, self.listed(last)), size)


class MessageCall(BatchCall):
    """A call about Anthropic's batches."""

    file_headers = MARK | {"request-id": "req_sim_batches"}

    async def serve(self, effect: Effect) -> web.StreamResponse:
        if not self.http.headers.get("anthropic-version"):
            raise bad("anthropic-version", "header is required")
        return await super().serve(effect)

    async def receive(self) -> None:
        if self.operation == "create":
            self.requests = await asyncio.to_thread(split_requests, await self.http.read())

    def requests_sent(self) -> bytes:
        return b"".join(self.requests) if self.operation == "create" else b""

    def create(self) -> Answer:
        """POST /v1/messages/batches. Anthropic refuses at once what others refuse when they check the input."""
        batch = self.new_batch(
            "msgbatch_",
            lambda text: any(mentions(line, text) for line in self.requests),
            input_id="",
            endpoint="/v1/messages",
            validated=True,
            total=len(self.requests),
            enqueued_tokens=sum(map(len, self.requests)) // 4,
        )
        batch.input_id = f"{batch.id}.input"
        rejection, cap = batch.fault("batch_reject"), batch.fault("batch_enqueued_cap")
        waiting, refusal = sum(other.enqueued_tokens for other in self.store.open_batches()), None
        if rejection is not None:
            refusal = ApiError(400, rejection.get("message") or "The batch was rejected.", code=rejection.get("code"))
        elif cap is not None and waiting + batch.enqueued_tokens > cap["tokens"]:
            refusal = ApiError(429, "Too many batch requests wait to be processed.", code="rate_limit_exceeded")
        if refusal is not None:
            self.store.count("rejected")
            self.store.count_faults(batch, "checked")
            return refusal
        make_file(self.store.file_path(batch.input_id))
        self.store.file_path(batch.input_id).write_bytes(b"".join(self.requests))
        self.store.count("requests", batch.total)
        return self.created(batch)

    def list_batches(self) -> Answer:
        after, size = self.http.query.get("after_id"), self.page_size(20, 1000)
        return list_page(map(self.written, self.listed(self.found(after) if after is not None else None)), size)

    def results(self) -> Answer:
        batch = self.found(self.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} has not ended yet: it has no results.")
        if results_url(batch, self.store.now(), "") is None:
            raise ApiError(404, f"The results of Message Batch {batch.id} are no longer available.")
        return self.existing(batch.output_id or f"{batch.id}.output")


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
]


def list_page(found: Iterable[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list, of which at least one more than fits was looked up."""
    entries = list(found)
    data = entries[:limit]
    ids = [item["id"] for item in data] or [None]
    return {"data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": len(entries) > limit}


async def read_upload(http: web.Request) -> tuple[IO[bytes], str]:
    """The bytes of the file in a multipart body, and its name; raises ApiError for an upload that OpenAI refuses, or
    that is for something else than batches."""
    try:
        fields = await http.post()
    except web.HTTPRequestEntityTooLarge as wrong:
        message = f"The file is larger than {MAX_FILE_BYTES:,} bytes, the most."
        raise ApiError(413, message, code="file_too_large") from wrong
    except ValueError as wrong:
        raise ApiError(400, f"We could not parse the multipart body: {wrong}") from wrong
    file = fields.get("file")
    if not isinstance(file, web.FileField):
        raise missing("file")
    if fields.get("purpose") != "batch":
        raise invalid("purpose", "'batch': no other is simulated")
    if not file.filename.endswith(".jsonl"):
        raise ApiError(400, f"Invalid file format for Batch API: '{file.filename}'. Must be .jsonl", param="file")
    if not file.file.seek(0, os.SEEK_END):
        raise ApiError(400, "The file is empty.", param="file")
    file.file.seek(0)
    return file.file, file.filename


def read_order(data: dict[str, Any]) -> dict[str, Any]:
    """The body of a create as fields of a Batch; raises ApiError."""
    for name in CREATE_PARAMETERS[:3]:
        if not isinstance(data.get(name), str) or not data[name]:
            raise missing(name)
    if unknown := sorted(set(data) - set(CREATE_PARAMETERS)):
        raise ApiError(400, f"Unknown parameter: '{unknown[0]}'.", code="unknown_parameter", param=unknown[0])
    endpoint = data["endpoint"]
    if endpoint not in OPENAI_ENDPOINTS:
        raise invalid("endpoint", " or ".join(OPENAI_ENDPOINTS), "invalid_value")
    if data["completion_window"] != "24h":
        raise invalid("completion_window", "'24h'", "invalid_value")
    metadata = data.get("metadata")
    pairs = {} if metadata is None else metadata
    if not isinstance(pairs, dict) or not all(isinstance(value, str) for value in pairs.values()):
        raise invalid("metadata", "an object of strings")
    if len(pairs) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in pairs.items()):
        raise invalid("metadata", "at most 16 properties, with keys of at most 64 characters and values of at most 512")
    return {"endpoint": endpoint, "input_id": data["input_file_id"], "metadata": metadata}


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
    if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
        raise bad(f"{place}.custom_id", f"String should match pattern '^{CUSTOM_ID.pattern}$'")
    if not isinstance(request["params"], dict):
        raise bad(f"{place}.params", "Input should be an object")
    if custom_id in seen:
        raise bad(f"{place}.custom_id", f"custom_id {json.dumps(custom_id)} is not unique in the batch")
    seen.add(custom_id)
