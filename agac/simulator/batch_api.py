"""Files and batches over HTTP: OpenAI's, Azure's, which are the same at another address, and Anthropic's.

All three share the calls (`BatchCall`), the store and the work; what differs in writing is in each provider's module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from agac.simulator.anthropic import MESSAGES, bad, results_url
from agac.simulator.batch_inputs import read_order, receive_body, receive_upload, split_requests
from agac.simulator.batch_store import DAY, Batch, StoredFile
from agac.simulator.batch_worker import FAMILIES, BatchThreads
from agac.simulator.faults import FaultRule, mentions, rule_error
from agac.simulator.openai import CHAT, file_object
from agac.simulator.replies import MARK, ApiError, ModelApi, read_object

INPUTS_KEPT = 30 * DAY
DOWNLOAD_PIECE = 2**18


class Dropped(Exception):
    """The connection is closed without an answer."""


def drop_connection(http: web.Request) -> None:
    """Closes the connection of a request."""
    if http.transport is not None:
        http.transport.close()


class BatchCall:
    """One call of a batch API: counted, and with its faults before or after it has its effect."""

    def __init__(self, threads: BatchThreads, operation: str, http: web.Request) -> None:
        self.threads, self.operation, self.http = threads, operation, http
        self.id = http.match_info.get("id", "")
        self.number = 0
        self.rules: list[FaultRule] = []

    async def serve(self, effect: Effect) -> dict[str, Any] | web.StreamResponse:
        """The answer to the call, which has its effect unless a fault comes first; raises ApiError."""
        self.number = await self.threads.count(self.operation)
        self.rules = self.threads.faults.of_call(self.operation, self.number)
        try:
            await self._apply("before")
            done = await effect(self)
            await self._apply("after")
        except Dropped:
            drop_connection(self.http)
            return web.Response(status=503)
        return done

    async def _apply(self, when: str) -> None:
        """The faults of one moment of the call: it waits, its connection is dropped, or it is refused."""
        for rule in self.rules:
            if rule.kind == "batch_slow" and when == "before":
                await self._count(rule)
                await asyncio.sleep(rule.value("seconds"))
            elif rule.kind == f"batch_drop_{when}":
                await self._count(rule)
                raise Dropped
            elif rule.kind == "batch_status" and rule.value("when") == when:
                await self._count(rule)
                raise rule_error(rule.values)

    async def _count(self, rule: FaultRule) -> None:
        await self.threads.change(self.threads.store.count, f"fault.{rule.kind}")

    async def send(self, path: Path, headers: dict[str, str]) -> web.StreamResponse:
        """A file as the body, piece by piece; a fault ends it early, with the connection."""
        if not path.exists():
            raise ApiError(404, "The file is not there any more.")
        size = left = path.stat().st_size
        cut = next((rule for rule in self.rules if rule.kind == "batch_truncate"), None)
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/octet-stream"
        response.content_length = size
        if cut is not None:
            await self._count(cut)
            after = cut.value("after_bytes")
            left = min(size // 2 if after is None else after, max(0, size - 1))
        if any(rule.kind in ("batch_drop_after", "batch_status") for rule in self.rules):
            return response  # it is never sent
        with suppress(ConnectionError), path.open("rb") as file:
            await response.prepare(self.http)
            while left > 0 and (piece := await asyncio.to_thread(file.read, min(DOWNLOAD_PIECE, left))):
                await response.write(piece)
                left -= len(piece)
            if cut is None:
                await response.write_eof()
        if cut is not None:
            drop_connection(self.http)
        return response


Effect = Callable[[BatchCall], Awaitable[dict[str, Any] | web.StreamResponse]]
"""What a call does; gives its answer, as JSON or sent already."""


class BatchRoutes:
    """The calls of one family, as far as they are the same for all."""

    api: ModelApi
    """How errors are written."""

    page_limit: int
    """How many batches a page of the list holds at most."""

    cancels_hidden: bool
    """Whether a batch can be cancelled that a fault hides."""

    def __init__(self, family: str, threads: BatchThreads) -> None:
        self.family, self.threads, self.store = family, threads, threads.store
        self.format = FAMILIES[family]

    def routes(self) -> list[tuple[str, str, str, Effect]]:
        """Method, path, operation and effect of each call."""
        raise NotImplementedError

    def check_headers(self, http: web.Request) -> None:
        """Raises ApiError for a call that is refused before it is counted."""

    def page_size(self, call: BatchCall, usual: int, most: int) -> int:
        """How many entries a page holds, by the parameter `limit` and by a fault; raises ApiError."""
        text = call.http.query.get("limit")
        if text is not None and (not text.isdecimal() or not 1 <= int(text) <= most):
            raise ApiError(400, f"Invalid 'limit': expected an integer from 1 to {most}.", param="limit")
        limit = usual if text is None else int(text)
        return min(limit, self.threads.faults.page_size or limit)

    def found(self, batch_id: str, *, hidden: bool = False) -> Batch:
        """A batch that exists, and that no fault hides unless a `hidden` one is meant too; raises ApiError."""
        batch = self.store.batch(batch_id, self.family)
        if batch is None or (not hidden and batch.hidden_by("batch_get_404", self.store.now())):
            raise self.format.not_found(batch_id)
        return batch

    async def look(self, batch_id: str) -> tuple[Batch, float]:
        """A batch as it is now, and the time."""
        await self.threads.caught_up(batch_id)
        return await self.threads.do(lambda: (self.found(batch_id), self.store.now()))

    def written(self, call: BatchCall, batch: Batch, now: float) -> dict[str, Any]:
        """A batch as the provider writes it."""
        return self.format.batch_object(batch, now, f"{call.http.scheme}://{call.http.host}")

    async def get_batch(self, call: BatchCall) -> dict[str, Any]:
        """GET …/batches/ID."""
        return self.written(call, *await self.look(call.id))

    async def cancel(self, call: BatchCall) -> dict[str, Any]:
        """POST …/batches/ID/cancel: requests that are done by now stay done."""

        def cancelled() -> tuple[Batch, float]:
            batch, now = self.found(call.id, hidden=self.cancels_hidden), self.store.now()
            if batch.ended:
                raise self.format.not_open(batch)
            self.store.cancel(batch, now)
            return batch, now

        await self.threads.caught_up(call.id)
        batch, now = await self.threads.change(cancelled)
        self.threads.start(batch.id)
        return self.written(call, batch, now)

    def new_batch(self, batch_id: str, number: int, now: float, requests: Path, **more: Any) -> Batch:
        """A batch to store, with the faults that are meant for it."""
        return Batch(
            id=batch_id,
            family=self.family,
            created_at=now,
            seconds=self.threads.seconds,
            faults=self.threads.faults.of_batch(number, partial(file_mentions, requests)),
            number=number,
            **more,
        )

    async def created(self, call: BatchCall, create: Callable[..., Batch | ApiError], *args: Any) -> dict[str, Any]:
        """Creates a batch in one transaction, which is committed also if the batch is refused; starts the work."""
        batch = await self.threads.change(create, *args, call.number)
        if isinstance(batch, ApiError):
            raise batch
        self.threads.start(batch.id)
        return self.written(call, batch, batch.created_at)


class OpenAiBatchRoutes(BatchRoutes):
    """Files and batches of OpenAI, or of Azure."""

    api = CHAT
    page_limit = 100
    cancels_hidden = True

    def routes(self) -> list[tuple[str, str, str, Effect]]:
        return [
            ("POST", "/files", "upload", self.upload),
            ("GET", "/files", "files", self.list_files),
            ("GET", "/files/{id}", "files", self.get_file),
            ("GET", "/files/{id}/content", "download", self.content),
            ("DELETE", "/files/{id}", "delete", self.delete_file),
            ("POST", "/batches", "create", self.create),
            ("GET", "/batches", "list", self.list_batches),
            ("GET", "/batches/{id}", "poll", self.get_batch),
            ("POST", "/batches/{id}/cancel", "cancel", self.cancel),
        ]

    async def upload(self, call: BatchCall) -> dict[str, Any]:
        """POST /files."""
        async with receive_upload(call.http, self.store.folder) as upload:
            lag = next((rule.value("times") for rule in call.rules if rule.kind == "batch_file_lag"), 0)
            kept = INPUTS_KEPT if upload.kept_seconds is None else upload.kept_seconds

            def add() -> StoredFile:
                expires_at = self.store.now() + kept
                self.store.count("files")
                return self.store.add_file(upload.path, upload.name, upload.purpose, expires_at=expires_at, lag=lag)

            return file_object(await self.threads.change(add))

    async def list_files(self, call: BatchCall) -> dict[str, Any]:
        """GET /files: the newest first, or the oldest with `order=asc`."""
        query, size = call.http.query, self.page_size(call, 10_000, 10_000)
        newest = query.get("order", "desc") != "asc"
        found = await self.threads.do(
            self.store.files, query.get("purpose"), query.get("after"), size + 1, newest=newest
        )
        return list_page(map(file_object, found), size)

    async def found_file(self, call: BatchCall) -> StoredFile:
        """The requested file; raises ApiError."""
        file = await self.threads.do(self.store.file, call.id)
        if file is None:
            raise ApiError(404, f"No such File object: {call.id}", param="id")
        return file

    async def get_file(self, call: BatchCall) -> dict[str, Any]:
        """GET /files/ID."""
        return file_object(await self.found_file(call))

    async def content(self, call: BatchCall) -> web.StreamResponse:
        """GET /files/ID/content."""
        file = await self.found_file(call)
        return await call.send(self.store.file_path(file.id), MARK)

    async def delete_file(self, call: BatchCall) -> dict[str, Any]:
        """DELETE /files/ID."""
        file = await self.found_file(call)
        await self.threads.change(self.store.delete_file, file.id)
        return {"id": file.id, "object": "file", "deleted": True}

    async def create(self, call: BatchCall) -> dict[str, Any]:
        """POST /batches."""
        order = read_order(read_object(await call.http.read()), self.family)
        return await self.created(call, self._create, order)

    def _create(self, order: dict[str, Any], number: int) -> Batch | ApiError:
        file = self.store.file(order["input_id"])
        if file is not None and file.lag > 0:
            self.store.lower_lag(file)
            self.store.count("fault.batch_file_lag")
            file = None
        if file is None:
            message = f"Cannot find file {order['input_id']}, or the project does not have access to it."
            return ApiError(400, message, code="invalid_request", param="input_file_id")
        if file.purpose != "batch":
            message = f"Invalid purpose '{file.purpose}' of the input file: expected 'batch'."
            return ApiError(400, message, param="input_file_id")
        now = self.store.now()
        batch_id, expires_at = self.store.new_id("batch_", number, now), now + DAY if self.family == "openai" else None
        path = self.store.file_path(file.id)
        return self.store.add_batch(self.new_batch(batch_id, number, now, path, expires_at=expires_at, **order))

    async def list_batches(self, call: BatchCall) -> dict[str, Any]:
        """GET /batches: the newest first; some show up late."""
        after, size = call.http.query.get("after"), self.page_size(call, 20, self.page_limit)

        def listed() -> list[dict[str, Any]]:
            last = self.store.batch(after, self.family) if after is not None else None
            if after is not None and last is None:
                raise ApiError(400, f"Invalid 'after': no such batch: {after}", param="after")
            now, found, before = self.store.now(), list[Batch](), last.seq if last else None
            while len(found) <= size:
                more = self.store.batches(self.family, size + 1, before=before)
                found += [batch for batch in more if not batch.hidden_by("batch_list_lag", now)]
                if len(more) <= size:
                    break
                before = more[-1].seq
            return [self.format.batch_object(batch, now, "") for batch in found[: size + 1]]

        await self.threads.caught_up()
        return list_page(await self.threads.do(listed), size)


class MessageBatchRoutes(BatchRoutes):
    """Anthropic's batches."""

    api = MESSAGES
    page_limit = 1000
    cancels_hidden = False

    def routes(self) -> list[tuple[str, str, str, Effect]]:
        return [
            ("POST", "", "create", self.create),
            ("GET", "", "list", self.list_batches),
            ("GET", "/{id}", "poll", self.get_batch),
            ("GET", "/{id}/results", "download", self.results),
            ("POST", "/{id}/cancel", "cancel", self.cancel),
            ("DELETE", "/{id}", "delete", self.delete),
        ]

    def check_headers(self, http: web.Request) -> None:
        if not http.headers.get("anthropic-version"):
            raise bad("anthropic-version", "header is required")

    async def create(self, call: BatchCall) -> dict[str, Any]:
        """POST /v1/messages/batches."""
        body = await receive_body(call.http, self.store.folder)
        requests = body.with_suffix(".lines")
        try:
            total = await asyncio.to_thread(split_requests, body, requests)
            return await self.created(call, self._create, requests, total, call.http.headers["anthropic-version"])
        finally:
            body.unlink(missing_ok=True)
            requests.unlink(missing_ok=True)

    def _create(self, requests: Path, total: int, version: str, number: int) -> Batch | ApiError:
        now = self.store.now()
        batch_id = self.store.new_id("msgbatch_", number, now)
        batch = self.new_batch(
            batch_id,
            number,
            now,
            requests,
            endpoint=version,
            input_id=f"{batch_id}.input",
            expires_at=now + DAY,
            validated=True,
            total=total,
            enqueued_tokens=requests.stat().st_size // 4,
        )
        rejection, cap = batch.fault("batch_reject"), batch.fault("batch_enqueued_cap")  # Anthropic says so at once
        waiting = sum(other.enqueued_tokens for other in self.store.open_batches())
        error = None
        if rejection is not None:
            kind, code = "batch_reject", rejection.get("code")
            error = ApiError(400, rejection.get("message") or "The batch was rejected.", code=code)
        elif cap is not None and waiting + batch.enqueued_tokens > cap["tokens"]:
            kind = "batch_enqueued_cap"
            error = ApiError(429, "Too many batch requests wait to be processed.", code="rate_limit_exceeded")
        if error is not None:
            self.store.count("rejected")
            self.store.count(f"fault.{kind}")
            return error
        requests.replace(self.store.file_path(batch.input_id))
        self.store.count("requests", total)
        return self.store.add_batch(batch)

    async def list_batches(self, call: BatchCall) -> dict[str, Any]:
        """GET /v1/messages/batches: the newest first; some show up late."""
        query, size = call.http.query, self.page_size(call, 20, self.page_limit)
        after, before = query.get("after_id"), query.get("before_id")

        def listed() -> tuple[list[Batch], float]:
            newer = self.found(before).seq if before is not None else None
            older = self.found(after).seq if before is None and after is not None else None
            now, batches = self.store.now(), self.store.batches(self.family, before=older, after=newer)
            return [batch for batch in batches if not batch.hidden_by("batch_list_lag", now)], now

        await self.threads.caught_up()
        found, now = await self.threads.do(listed)
        shown = found[-size:] if before is not None else found[:size]
        data = [self.written(call, batch, now) for batch in shown]
        ids = [one["id"] for one in data] or [None]
        return {"data": data, "has_more": len(found) > size, "first_id": ids[0], "last_id": ids[-1]}

    async def results(self, call: BatchCall) -> web.StreamResponse:
        """GET /v1/messages/batches/ID/results."""
        batch, now = await self.look(call.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} has not ended yet: it has no results.")
        if results_url(batch, now, "") is None:
            raise ApiError(404, f"The results of Message Batch {batch.id} are no longer available.")
        path = self.store.file_path(batch.output_id or f"{batch.id}.output")
        return await call.send(path, MARK | {"request-id": "req_sim_batches"})

    async def delete(self, call: BatchCall) -> dict[str, Any]:
        """DELETE /v1/messages/batches/ID: only of a batch that has ended."""
        batch, _ = await self.look(call.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} is in progress: cancel it, and delete it once it has ended.")
        await self.threads.change(self.store.delete_batch, batch)
        return {"id": batch.id, "type": "message_batch_deleted"}


def list_page(found: Iterable[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of OpenAI's list, of which one more than fits was looked up."""
    entries = list(found)
    data = entries[:limit]
    ids = [item["id"] for item in data] or [None]
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": len(entries) > limit}


def file_mentions(path: Path, text: str) -> bool:
    """Whether one of the lines of an input contains a text."""
    with path.open("rb") as lines:
        return any(mentions(line, text) for line in lines)
