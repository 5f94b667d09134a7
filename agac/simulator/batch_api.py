"""Files and batches over HTTP: OpenAI's, Azure's, which are the same at another address, and Anthropic's.

All three share the calls (`BatchCall`), the store and the work; what differs is written in `batch_formats`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from agac.simulator.anthropic import bad, message_error
from agac.simulator.batch_formats import FAMILIES, BatchFamily, file_object, results_url
from agac.simulator.batch_store import DAY, Batch, StoredFile
from agac.simulator.batch_uploads import BatchOrder, read_order, receive_body, receive_upload, split_requests
from agac.simulator.batch_worker import BatchThreads, output_part
from agac.simulator.faults import FaultRule, mentions, rule_error
from agac.simulator.replies import MARK, ApiError, read_object

INPUTS_KEPT = 30 * DAY
DOWNLOAD_PIECE = 2**18


class Dropped(Exception):
    """The connection is closed without an answer."""


class BatchCall:
    """One call of a batch API: counted, and with its faults before or after it has its effect."""

    def __init__(self, threads: BatchThreads, operation: str, http: web.Request) -> None:
        self.threads, self.operation, self.http = threads, operation, http
        self.number = 0
        self.rules: list[FaultRule] = []

    @property
    def id(self) -> str:
        """The id in its address."""
        return self.http.match_info["id"]

    @property
    def address(self) -> str:
        """The address of the simulator, as the client sees it."""
        return f"{self.http.scheme}://{self.http.host}"

    async def serve(self, effect: Callable[[BatchCall], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        """The answer to the call, which has its effect unless a fault comes first; raises ApiError."""
        self.number = await self.threads.count(self.operation)
        self.rules = self.threads.faults.of_call(self.operation, self.number)
        try:
            await self._apply("before")
            response = await effect(self)
            await self._apply("after")
        except Dropped:
            if self.http.transport is not None:
                self.http.transport.close()
            return web.Response(status=503)
        return response

    async def _apply(self, when: str) -> None:
        """The faults of one moment of the call: it waits, its connection is dropped, or it is refused."""
        for rule in self.rules:
            refused = rule.kind == "batch_status" and rule.value("when") == when
            dropped = rule.kind == f"batch_drop_{when}"
            slow = rule.kind == "batch_slow" and when == "before"
            if not (refused or dropped or slow):
                continue
            await self._count(rule)
            if slow:
                await asyncio.sleep(rule.value("seconds"))
            else:
                raise rule_error(rule.values) if refused else Dropped

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
        if cut is not None and self.http.transport is not None:
            self.http.transport.close()
        return response


Effect = Callable[[BatchCall], Awaitable[web.StreamResponse]]
Respond = Callable[..., web.Response]
"""Writes JSON as a response: of a body, a status, and more headers."""


class BatchRoutes:
    """The routes of one family, as far as they are the same for all. `check` refuses keys, `respond` writes JSON."""

    family: str
    page_limits: tuple[int, int]
    """How many batches a page of the list holds if nothing is said, and at most."""

    def __init__(self, threads: BatchThreads, check: Callable[[web.Request], None], respond: Respond) -> None:
        self.threads, self.check, self.respond = threads, check, respond
        self.store = threads.store

    @property
    def format(self) -> BatchFamily:
        """How the family writes batches."""
        return FAMILIES[self.family]

    def add(self, router: web.UrlDispatcher, prefix: str, routes: list[tuple[str, str, str, Effect]]) -> None:
        """Adds routes: method, path, operation and effect of each."""
        for method, path, operation, effect in routes:
            router.add_route(method, prefix + path, partial(self._serve, operation, effect))

    async def _serve(self, operation: str, effect: Effect, http: web.Request) -> web.StreamResponse:
        try:
            self.check_call(http)
            return await BatchCall(self.threads, operation, http).serve(effect)
        except ApiError as error:
            return self.refuse(error)

    def check_call(self, http: web.Request) -> None:
        """Raises ApiError for a call that is refused before it is counted."""
        self.check(http)

    def refuse(self, error: ApiError) -> web.Response:
        """An error in the provider's form."""
        raise NotImplementedError

    def page_size(self, call: BatchCall, limits: tuple[int, int]) -> int:
        """How many entries a page holds, by the parameter `limit` and by a fault; raises ApiError."""
        text, (usual, most) = call.http.query.get("limit"), limits
        if text is not None and (not text.isdecimal() or not 1 <= int(text) <= most):
            raise ApiError(400, f"Invalid 'limit': expected an integer from 1 to {most}.", param="limit")
        limit = usual if text is None else int(text)
        return min(limit, self.threads.faults.page_size or limit)

    def found(self, batch_id: str) -> Batch:
        """A batch; raises ApiError for one that does not exist."""
        batch = self.store.batch(batch_id, self.family)
        if batch is None:
            raise self.format.not_found(batch_id)
        return batch

    def visible(self, batch_id: str) -> Batch:
        """A batch that exists and that no fault hides; raises ApiError."""
        batch = self.found(batch_id)
        if batch.hidden_by("batch_get_404", self.store.now()):
            raise self.format.not_found(batch_id)
        return batch

    async def look(self, batch_id: str) -> tuple[Batch, float]:
        """A batch as it is now, and the time."""
        await self.threads.caught_up(batch_id)
        return await self.threads.do(lambda: (self.visible(batch_id), self.store.now()))

    def batch_response(self, call: BatchCall, batch: Batch, now: float) -> web.StreamResponse:
        """A batch as the provider writes it."""
        return self.respond(self.format.batch_object(batch, now, call.address))

    async def get_batch(self, call: BatchCall) -> web.StreamResponse:
        """GET …/batches/ID."""
        return self.batch_response(call, *await self.look(call.id))

    async def cancel(self, call: BatchCall) -> web.StreamResponse:
        """POST …/batches/ID/cancel: requests that are done by now stay done."""
        await self.threads.caught_up(call.id)
        batch, now = await self.threads.change(self._cancel, call.id)
        self.threads.start(batch.id)
        return self.batch_response(call, batch, now)

    def _cancel(self, batch_id: str) -> tuple[Batch, float]:
        batch, now = self.cancellable(batch_id), self.store.now()
        if batch.ended:
            raise self.format.not_open(batch)
        self.store.cancel(batch, now)
        return batch, now

    def cancellable(self, batch_id: str) -> Batch:
        """The batch to cancel; raises ApiError for one that does not exist."""
        return self.found(batch_id)

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

    async def created(self, call: BatchCall, create: Callable[..., Batch | ApiError], *args: Any) -> web.StreamResponse:
        """Creates a batch in one transaction, which is committed also if the batch is refused; starts the work."""
        batch = await self.threads.change(create, *args)
        if isinstance(batch, ApiError):
            raise batch
        self.threads.start(batch.id)
        return self.batch_response(call, batch, batch.created_at)


class OpenAiBatchRoutes(BatchRoutes):
    """Files and batches of OpenAI, or of Azure."""

    page_limits = (20, 100)

    def __init__(
        self,
        family: str,
        threads: BatchThreads,
        check: Callable[[web.Request], None],
        respond: Respond,
        refuse: Callable[[ApiError], web.Response],
    ) -> None:
        super().__init__(threads, check, respond)
        self.family, self._refuse = family, refuse

    def add_routes(self, router: web.UrlDispatcher, prefix: str) -> None:
        """The addresses below `prefix`."""
        routes: list[tuple[str, str, str, Effect]] = [
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
        self.add(router, prefix, routes)

    def refuse(self, error: ApiError) -> web.Response:
        return self._refuse(error)

    async def upload(self, call: BatchCall) -> web.StreamResponse:
        """POST /files."""
        upload = await receive_upload(call.http, self.store.folder)
        try:
            path, kept = upload.checked_path(), upload.kept_seconds
            lag = next((rule.value("times") for rule in call.rules if rule.kind == "batch_file_lag"), 0)

            def add() -> StoredFile:
                expires_at = self.store.now() + (INPUTS_KEPT if kept is None else kept)
                self.store.count("files")
                return self.store.add_file(path, upload.name, upload.fields["purpose"], expires_at=expires_at, lag=lag)

            return self.respond(file_object(await self.threads.change(add)))
        finally:
            upload.drop()

    async def list_files(self, call: BatchCall) -> web.StreamResponse:
        """GET /files: the newest first, or the oldest with `order=asc`."""
        query, size = call.http.query, self.page_size(call, (10_000, 10_000))
        newest = query.get("order", "desc") != "asc"
        found = await self.threads.do(
            self.store.files, query.get("purpose"), query.get("after"), size + 1, newest=newest
        )
        return self.respond(list_page([file_object(file) for file in found], size))

    async def found_file(self, call: BatchCall) -> StoredFile:
        """The requested file; raises ApiError."""
        file = await self.threads.do(self.store.file, call.id)
        if file is None:
            raise ApiError(404, f"No such File object: {call.id}", param="id")
        return file

    async def get_file(self, call: BatchCall) -> web.StreamResponse:
        """GET /files/ID."""
        return self.respond(file_object(await self.found_file(call)))

    async def content(self, call: BatchCall) -> web.StreamResponse:
        """GET /files/ID/content."""
        file = await self.found_file(call)
        return await call.send(self.store.file_path(file.id), MARK)

    async def delete_file(self, call: BatchCall) -> web.StreamResponse:
        """DELETE /files/ID."""
        file = await self.found_file(call)
        await self.threads.change(self.store.delete_file, file.id)
        return self.respond({"id": file.id, "object": "file", "deleted": True})

    async def create(self, call: BatchCall) -> web.StreamResponse:
        """POST /batches."""
        order = read_order(read_object(await call.http.read()), self.family)
        return await self.created(call, self._create, order, call.number)

    def _create(self, order: BatchOrder, number: int) -> Batch | ApiError:
        file = self.store.file(order.input_id)
        if file is not None and file.lag > 0:
            self.store.lower_lag(file)
            self.store.count("fault.batch_file_lag")
            file = None
        if file is None:
            message = f"Cannot find file {order.input_id}, or the project does not have access to it."
            return ApiError(400, message, code="invalid_request", param="input_file_id")
        if file.purpose != "batch":
            message = f"Invalid purpose '{file.purpose}' of the input file: expected 'batch'."
            return ApiError(400, message, param="input_file_id")
        now = self.store.now()
        batch = self.new_batch(
            self.store.new_id("batch_", number, now),
            number,
            now,
            self.store.file_path(file.id),
            endpoint=order.endpoint,
            input_id=file.id,
            expires_at=now + DAY if self.family == "openai" else None,
            metadata=order.metadata,
            kept_seconds=order.kept_seconds,
        )
        return self.store.add_batch(batch)

    async def list_batches(self, call: BatchCall) -> web.StreamResponse:
        """GET /batches: the newest first."""
        size = self.page_size(call, self.page_limits)
        await self.threads.caught_up()
        found, now = await self.threads.do(self._listed, call.http.query.get("after"), size + 1)
        return self.respond(list_page([self.format.batch_object(batch, now, "") for batch in found], size))

    def _listed(self, after: str | None, count: int) -> tuple[list[Batch], float]:
        """Batches after the one named, and the time; some show up late."""
        last = self.store.batch(after, self.family) if after is not None else None
        if after is not None and last is None:
            raise ApiError(400, f"Invalid 'after': no such batch: {after}", param="after")
        now, found, before = self.store.now(), list[Batch](), last.seq if last else None
        while len(found) < count:
            more = self.store.batches(self.family, count, before=before)
            found += [batch for batch in more if not batch.hidden_by("batch_list_lag", now)]
            if len(more) < count:
                break
            before = more[-1].seq
        return found[:count], now


class MessageBatchRoutes(BatchRoutes):
    """Anthropic's batches."""

    family = "anthropic"
    page_limits = (20, 1000)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """The addresses."""
        routes: list[tuple[str, str, str, Effect]] = [
            ("POST", "", "create", self.create),
            ("GET", "", "list", self.list_batches),
            ("GET", "/{id}", "poll", self.get_batch),
            ("GET", "/{id}/results", "download", self.results),
            ("POST", "/{id}/cancel", "cancel", self.cancel),
            ("DELETE", "/{id}", "delete", self.delete),
        ]
        self.add(router, "/v1/messages/batches", routes)

    def check_call(self, http: web.Request) -> None:
        super().check_call(http)
        if not http.headers.get("anthropic-version"):
            raise bad("anthropic-version", "header is required")

    def refuse(self, error: ApiError) -> web.Response:
        return self.respond(message_error(error), error.status, {"request-id": "req_sim_batches"} | error.headers)

    def cancellable(self, batch_id: str) -> Batch:
        return self.visible(batch_id)

    async def create(self, call: BatchCall) -> web.StreamResponse:
        """POST /v1/messages/batches."""
        body = await receive_body(call.http, self.store.folder)
        requests = body.with_suffix(".lines")
        try:
            total = await asyncio.to_thread(split_requests, body, requests)
            version = call.http.headers["anthropic-version"]
            return await self.created(call, self._create, requests, total, version, call.number)
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
        if (error := self._refusal(batch)) is not None:
            return error
        requests.replace(self.store.file_path(batch.input_id))
        self.store.count("requests", total)
        return self.store.add_batch(batch)

    def _refusal(self, batch: Batch) -> ApiError | None:
        """Why a fault rejects a batch: Anthropic says so at once."""
        rejection, cap = batch.fault("batch_reject"), batch.fault("batch_enqueued_cap")
        waiting = sum(other.enqueued_tokens for other in self.store.open_batches())
        if rejection is not None:
            kind = "batch_reject"
            error = ApiError(400, rejection.get("message") or "The batch was rejected.", code=rejection.get("code"))
        elif cap is not None and waiting + batch.enqueued_tokens > cap["tokens"]:
            kind = "batch_enqueued_cap"
            error = ApiError(429, "Too many batch requests wait to be processed.", code="rate_limit_exceeded")
        else:
            return None
        self.store.count("rejected")
        self.store.count(f"fault.{kind}")
        return error

    async def list_batches(self, call: BatchCall) -> web.StreamResponse:
        """GET /v1/messages/batches: the newest first."""
        query, size = call.http.query, self.page_size(call, self.page_limits)
        await self.threads.caught_up()
        found, more = await self.threads.do(self._listed, query.get("after_id"), query.get("before_id"), size)
        now = await self.threads.do(self.store.now)
        data = [self.format.batch_object(batch, now, call.address) for batch in found]
        ids = [one["id"] for one in data] or [None]
        return self.respond({"data": data, "has_more": more, "first_id": ids[0], "last_id": ids[-1]})

    def _listed(self, after: str | None, before: str | None, size: int) -> tuple[list[Batch], bool]:
        """A page of batches, and whether there are more in its direction; some show up late."""
        newer = self.visible(before).seq if before is not None else None
        older = self.visible(after).seq if before is None and after is not None else None
        now = self.store.now()
        listed = self.store.batches(self.family, before=older, after=newer)
        found = [batch for batch in listed if not batch.hidden_by("batch_list_lag", now)]
        return found[-size:] if before is not None else found[:size], len(found) > size

    async def results(self, call: BatchCall) -> web.StreamResponse:
        """GET /v1/messages/batches/ID/results."""
        batch, now = await self.look(call.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} has not ended yet: it has no results.")
        if results_url(batch, now, "") is None:
            raise ApiError(404, f"The results of Message Batch {batch.id} are no longer available.")
        path = self.store.file_path(batch.output_id or output_part(batch))
        return await call.send(path, MARK | {"request-id": "req_sim_batches"})

    async def delete(self, call: BatchCall) -> web.StreamResponse:
        """DELETE /v1/messages/batches/ID: only of a batch that has ended."""
        batch, _ = await self.look(call.id)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} is in progress: cancel it, and delete it once it has ended.")
        await self.threads.change(self.store.delete_batch, batch)
        return self.respond({"id": batch.id, "type": "message_batch_deleted"})


def list_page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of OpenAI's list, of which one more than fits was looked up."""
    data = found[:limit]
    ids = [item["id"] for item in data] or [None]
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": len(found) > limit}


def file_mentions(path: Path, text: str) -> bool:
    """Whether one of the lines of an input contains a text."""
    with path.open("rb") as lines:
        return any(mentions(line, text) for line in lines)
