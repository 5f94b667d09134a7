"""Files and batches over HTTP: OpenAI's, Azure's, which are the same elsewhere, and Anthropic's.

All share the way of a call, the store and the work; a dialect has the words.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from aiohttp import web

from agac.core.state_files import make_file
from agac.simulator.anthropic_batches import MessageBatches, results_url
from agac.simulator.api_errors import PAGE, ApiError, invalid, missing
from agac.simulator.batch_state import DAY, Batch, BatchOrder
from agac.simulator.batch_store import StoredFile
from agac.simulator.batch_worker import DIALECTS, SimulatedBatches, refusal
from agac.simulator.fault_effects import Dropped, mentions
from agac.simulator.faults import FaultRule
from agac.simulator.kinds import JsonObject, Texts
from agac.simulator.openai_batches import file_object
from agac.simulator.replies import MARK

MAX_FILE_BYTES = 512 * 2**20
MAX_FILES_OF_PAGE = 10_000
USUAL_PAGE = 20
DOWNLOAD_PIECE = 2**18

Answer = JsonObject | Path | ApiError
"""The outcome of a call: JSON, a file, or an error that leaves its changes as they are."""

Effect = Callable[["BatchCall"], Answer]
"""Does what a call requests; raises ApiError, and then nothing changed."""


def drop_connection(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.close()


def json_response(data: object, status: int = 200, headers: Texts | None = None) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(data).encode(),
        content_type="application/json",
        headers=MARK | (headers or {}),
    )


def page_response(error: ApiError) -> web.Response:
    """Returns the page of HTML that comes in the place of an error."""
    return web.Response(
        status=error.status, body=error.page, content_type="text/html", headers=MARK
    )


class BatchCall:
    """One call of a batch API: counted, and with its faults before or after its effect."""

    def __init__(
        self, family: str, batches: SimulatedBatches, operation: str, http: web.Request
    ) -> None:
        self.family = family
        self.batches = batches
        self.operation = operation
        self.http = http
        self.store = batches.store
        self.dialect = DIALECTS[family]
        self.id = http.match_info.get("id", "")
        self.number = 0
        self.rules: list[FaultRule] = []
        self.upload: tuple[IO[bytes], str] | None = None
        """the uploaded file and its name"""
        self.order: BatchOrder | None = None
        self.starts = ""
        """the batch whose work is to start"""
        self.results_path = Path()
        """the file that a download sends"""

    async def serve(self, effect: Effect) -> web.StreamResponse:
        """Answers the call, which has its effect unless a fault comes first; raises ApiError."""
        self.dialect.check_headers(self.http.headers)
        self.number = self.batches.count(self.operation)
        self.rules = self.batches.faults.of_call(self.operation, self.number)
        try:
            await self._apply_faults("before")
            await self._receive()
            await self._apply_faults("received")
            if self.operation != "create" and "/batches" in self.http.path:
                await self.batches.caught_up(self.id or None)
            answer = self._take_effect(effect)
            await self._apply_faults("after")
        except Dropped:
            drop_connection(self.http)
            return web.Response(status=503)
        except ApiError as error:
            if error.page is None:
                raise
            return page_response(error)
        if isinstance(answer, Path):
            return await self._send(answer)
        return json_response(answer)

    def _take_effect(self, effect: Effect) -> JsonObject | Path:
        with nullcontext() if self.http.method == "GET" else self.store.write():
            answer = effect(self)
        if self.starts:
            self.batches.start(self.starts)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def _receive(self) -> None:
        """Reads the body; raises ApiError."""
        if self.operation == "upload":
            self.upload = await read_upload(self.http)
        elif self.operation == "create":
            body = await self.http.read()
            self.order = await asyncio.to_thread(self.dialect.read_order, body)

    @property
    def size(self) -> int:
        """The length of the body in bytes."""
        return self.http.content_length or 0

    def requests_sent(self) -> bytes:
        """Returns the requests for a batch that the call holds."""
        if self.upload is not None:
            file, _ = self.upload
            content = file.read()
            file.seek(0)
            return content
        return b"".join((self.order and self.order.requests) or ())

    async def _apply_faults(self, when: str) -> None:
        """Applies the faults of one moment: it waits, is dropped, or is refused."""
        for rule in self.rules:
            if rule.value("when") != when or rule.effect is None:
                continue
            outcome: Exception | float | None = rule.effect(rule, self)
            if outcome is None:
                continue
            self.store.counted(f"fault.{rule.kind}")
            if isinstance(outcome, Exception):
                raise outcome
            await asyncio.sleep(outcome)

    async def _send(self, path: Path) -> web.StreamResponse:
        """Sends a file, or the part that is asked for; a fault sends something else."""
        self.results_path = path
        for rule in self.rules:
            if rule.kind in ("batch_junk", "batch_truncate") and rule.effect is not None:
                self.store.counted(f"fault.{rule.kind}")
                response: web.StreamResponse = await rule.effect(rule, self)
                return response
        return web.FileResponse(path, headers=self.dialect.headers)

    async def cut(self, after_bytes: int | None) -> web.StreamResponse:
        """Sends the results until there, or half of them, and drops the connection."""
        content = self.results_path.read_bytes()
        end = len(content) // 2 if after_bytes is None else after_bytes
        end = min(end, max(0, len(content) - 1))
        response = web.StreamResponse(headers=self.dialect.headers | {"Accept-Ranges": "bytes"})
        response.content_length = len(content)
        with suppress(ConnectionError):
            await response.prepare(self.http)
            await response.write(content[:end])
        drop_connection(self.http)
        return response

    async def send_junk(self, form: str) -> web.StreamResponse:
        """Sends one of JUNK_BODIES in the place of the results."""
        if form == "error":
            error = {"message": "The results cannot be read now.", "type": "server_error"}
            return json_response({"error": error})
        if form == "endless":
            return await self._send_endless()
        lines = self.results_path.read_bytes().removesuffix(b"\n").split(b"\n")
        bodies = {
            "array": b"[" + b",".join(lines) + b"]",
            "half": b"\n".join(lines[: len(lines) // 2]),
            "empty": b"",
            "page": PAGE % (b"200 OK", b"Log in to go on."),
        }
        return web.Response(body=bodies[form], headers=self.dialect.headers)

    async def _send_endless(self) -> web.StreamResponse:
        response = web.StreamResponse(headers=self.dialect.headers)
        with suppress(ConnectionError):
            await response.prepare(self.http)
            while True:
                await response.write(b"x" * DOWNLOAD_PIECE)
        return response

    def results_file(self, name: str) -> Path:
        path = self.store.file_path(name)
        if not path.exists():
            raise ApiError(404, "The file is not there any more.")
        return path

    def page_size(self, usual: int, max_size: int) -> int:
        """Returns how many entries a page holds, by the parameter `limit` and by a fault."""
        text = self.http.query.get("limit")
        size = usual
        if text is not None:
            if not text.isdecimal() or not 1 <= int(text) <= max_size:
                raise invalid("limit", f"an integer from 1 to {max_size}")
            size = int(text)
        return min(size, self.batches.faults.page_size or size)

    def existing_batch(self, batch_id: str) -> Batch:
        """Returns a batch that exists; raises ApiError."""
        batch = self.store.batch(batch_id, self.family)
        if batch is None:
            raise self.dialect.not_found(batch_id)
        if self.operation == "poll" and batch.hidden_by("batch_get_404", self.store.now()):
            raise self.dialect.not_found(batch_id)
        return batch

    def shown(self, batch: Batch) -> JsonObject:
        address = f"{self.http.scheme}://{self.http.host}"
        return self.dialect.batch_object(batch, self.store.now(), address)

    def create(self) -> Answer:
        """POST …/batches."""
        assert self.order is not None
        if self.order.requests is None:
            return self._create_of_file(self.order)
        return self._create_of_requests(self.order, self.order.requests)

    def _create_of_file(self, order: BatchOrder) -> Answer:
        """Makes a batch of an uploaded file, which the work checks."""
        file = self.store.file(order.input_id)
        if file is not None and file.lag > 0:
            self.store.set_lag(file, file.lag - 1)
            self.store.count("fault.batch_file_lag")
            file = None
        if file is None:
            message = (
                f"Cannot find file {order.input_id}, or the project does not have access to it."
            )
            return ApiError(400, message, code="invalid_request", param="input_file_id")
        path = self.store.file_path(file.id)
        batch = self._new_batch(order, lambda text: mentions(path.read_bytes(), text))
        return self._created(batch)

    def _create_of_requests(self, order: BatchOrder, requests: list[bytes]) -> Answer:
        """Makes a batch of requests that were checked when they came in."""
        batch = self._new_batch(order, lambda text: any(mentions(line, text) for line in requests))
        batch.input_id = f"{batch.id}.input"
        batch.validated = True
        batch.total = len(requests)
        batch.enqueued_tokens = sum(map(len, requests)) // 4
        refused = refusal(self.store, batch, batch.model, batch.enqueued_tokens)
        if refused is not None:
            self.store.count("rejected")
            self.store.count_faults(batch, "checked")
            return refused
        path = self.store.file_path(batch.input_id)
        make_file(path)
        path.write_bytes(b"".join(requests))
        self.store.count("requests", batch.total)
        return self._created(batch)

    def _new_batch(self, order: BatchOrder, contains: Callable[[str], bool]) -> Batch:
        now = self.store.now()
        return Batch(
            id=self.store.new_id(self.dialect.id_prefix, self.number, now),
            family=self.family,
            endpoint=order.endpoint,
            input_id=order.input_id,
            created_at=now,
            seconds=self.batches.seconds,
            expires_at=None if self.family == "azure" else now + DAY,
            metadata=order.metadata,
            faults=self.batches.faults.of_batch(self.number, contains),
            number=self.number,
        )

    def _created(self, batch: Batch) -> Answer:
        self.starts = batch.id
        return self.shown(self.store.add_batch(batch))

    def get_batch(self) -> Answer:
        return self.shown(self.existing_batch(self.id))

    def cancel(self) -> Answer:
        """POST …/batches/ID/cancel: requests that are done by now stay done."""
        batch = self.existing_batch(self.id)
        if batch.ended:
            raise self.dialect.not_open(batch)
        self.store.cancel(batch)
        self.starts = batch.id
        return self.shown(batch)

    def list_batches(self) -> Answer:
        """GET …/batches: the newest first; some show up late."""
        size = self.page_size(USUAL_PAGE, self.dialect.max_page)
        after = self.http.query.get(self.dialect.page_parameter)
        last = None if after is None else self._last_listed(after)
        now = self.store.now()
        batches = self.store.batches(self.family, before=last.seq if last else None)
        shown = [
            self.shown(batch) for batch in batches if not batch.hidden_by("batch_list_lag", now)
        ]
        return dict(self.dialect.page_frame) | list_page(shown, size)

    def _last_listed(self, batch_id: str) -> Batch:
        """Returns the batch after which a page begins; raises ApiError."""
        batch = self.store.batch(batch_id, self.family)
        if batch is None:
            raise self.dialect.not_listed(batch_id)
        return batch

    def results(self) -> Answer:
        """GET …/batches/ID/results, of Anthropic."""
        batch = self.existing_batch(self.id)
        if not batch.ended:
            message = f"Message Batch {batch.id} has not ended yet: it has no results."
            raise ApiError(400, message)
        if results_url(batch, self.store.now(), "") is None:
            message = f"The results of Message Batch {batch.id} are no longer available."
            raise ApiError(404, message)
        return self.results_file(batch.output_id or f"{batch.id}.output")

    def add_file(self) -> Answer:
        """POST /files."""
        assert self.upload is not None
        content, name = self.upload
        now = self.store.now()
        file_id = self.store.new_id("file-", self.number, now)
        path = self.store.folder / f".upload-{file_id}"
        make_file(path)
        with path.open("wb") as copy:
            shutil.copyfileobj(content, copy)
        self.store.count("files")
        file = self.store.add_file(path, file_id, name, "batch", now)
        for rule in self.rules:
            if rule.kind == "batch_file_lag":
                self.store.set_lag(file, rule.value("times"))
        return file_object(file)

    def list_files(self) -> Answer:
        """GET /files: the newest first."""
        query = self.http.query
        size = self.page_size(MAX_FILES_OF_PAGE, MAX_FILES_OF_PAGE)
        files = [
            file
            for file in self.store.files(query.get("purpose"), query.get("after"))
            if file.purpose != MessageBatches.results_purpose  # those are found by their batch
        ]
        return {"object": "list"} | list_page(map(file_object, files[: size + 1]), size)

    def existing_file(self) -> StoredFile:
        file = self.store.file(self.id)
        if file is None:
            raise ApiError(404, f"No such File object: {self.id}", param="id")
        return file

    def get_file(self) -> Answer:
        return file_object(self.existing_file())

    def content(self) -> Answer:
        return self.results_file(self.existing_file().id)

    def delete_file(self) -> Answer:
        self.store.delete_file(self.existing_file().id)
        return {"id": self.id, "object": "file", "deleted": True}


Route = tuple[str, str, str, Effect]
OPENAI_ROUTES: list[Route] = [
    ("POST", "/files", "upload", BatchCall.add_file),
    ("GET", "/files", "files", BatchCall.list_files),
    ("GET", "/files/{id}", "files", BatchCall.get_file),
    ("GET", "/files/{id}/content", "download", BatchCall.content),
    ("DELETE", "/files/{id}", "delete", BatchCall.delete_file),
    ("POST", "/batches", "create", BatchCall.create),
    ("GET", "/batches", "list", BatchCall.list_batches),
    ("GET", "/batches/{id}", "poll", BatchCall.get_batch),
    ("POST", "/batches/{id}/cancel", "cancel", BatchCall.cancel),
]
"""Method, path, operation and effect of each call."""

MESSAGE_ROUTES: list[Route] = [
    ("POST", "", "create", BatchCall.create),
    ("GET", "", "list", BatchCall.list_batches),
    ("GET", "/{id}", "poll", BatchCall.get_batch),
    ("GET", "/{id}/results", "download", BatchCall.results),
    ("POST", "/{id}/cancel", "cancel", BatchCall.cancel),
]

FAMILIES: dict[str, tuple[str, list[Route]]] = {
    "openai": ("/v1", OPENAI_ROUTES),
    "azure": ("/openai/v1", OPENAI_ROUTES),
    "anthropic": ("/v1/messages/batches", MESSAGE_ROUTES),
}
"""The prefix and the routes of each family's calls."""


def list_page(entries: Iterable[JsonObject], size: int) -> JsonObject:
    """Returns a page of a list, of which at least one more than fits was looked up."""
    entries = list(entries)
    page = entries[:size]
    ids = [entry["id"] for entry in page] or [None]
    has_more = len(entries) > size
    return {"data": page, "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}


async def read_upload(http: web.Request) -> tuple[IO[bytes], str]:
    """Reads the file in a multipart body, and its name.

    Raises ApiError for an upload that OpenAI refuses, or that is for something else than batches.
    """
    try:
        fields = await http.post()
    except web.HTTPRequestEntityTooLarge as error:
        message = f"The file is larger than {MAX_FILE_BYTES:,} bytes, the most."
        raise ApiError(413, message, code="file_too_large") from error
    except ValueError as error:
        raise ApiError(400, f"We could not parse the multipart body: {error}") from error
    file = fields.get("file")
    if not isinstance(file, web.FileField):
        raise missing("file")
    if fields.get("purpose") != "batch":
        raise invalid("purpose", "'batch': no other is simulated")
    if not file.filename.endswith(".jsonl"):
        message = f"Invalid file format for Batch API: '{file.filename}'. Must be .jsonl"
        raise ApiError(400, message, param="file")
    if not file.file.seek(0, os.SEEK_END):
        raise ApiError(400, "The file is empty.", param="file")
    file.file.seek(0)
    return file.file, file.filename
