"""OpenAI's files and batches over HTTP, and Azure's, which are the same at another address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from agac.simulator.asks import ApiError
from agac.simulator.batches import records
from agac.simulator.batches.calls import Call
from agac.simulator.batches.desk import Desk
from agac.simulator.batches.orders import Order, read_order
from agac.simulator.batches.records import DAY, Batch, File, file_path
from agac.simulator.batches.spoiled import mentions
from agac.simulator.batches.told import batch_object, file_object, page
from agac.simulator.batches.uploads import receive
from agac.simulator.openaiwire import read_object

INPUTS_KEPT = 30 * DAY
Respond = Callable[[Any, int], web.Response]
Refuse = Callable[[ApiError], web.Response]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class OpenAiBatches:
    """The routes of one family: `openai`, or `azure`. `check` refuses keys, `respond` and `refuse` write responses."""

    def __init__(
        self, desk: Desk, family: str, check: Callable[[web.Request], None], respond: Respond, refuse: Refuse
    ) -> None:
        self.desk, self.family, self.check, self.respond, self.refuse = desk, family, check, respond, refuse
        self.state = desk.state

    def add_routes(self, router: web.UrlDispatcher, prefix: str) -> None:
        """The addresses below `prefix`."""
        routes: list[tuple[str, str, str, Callable[[web.Request, Call], Awaitable[web.StreamResponse]]]] = [
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
        for method, path, op, handle in routes:
            router.add_route(method, prefix + path, self.handler(op, handle))

    def handler(self, op: str, handle: Callable[[web.Request, Call], Awaitable[web.StreamResponse]]) -> Handler:
        """One call: counted, and with its faults."""

        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                self.check(request)
            except ApiError as error:
                return self.refuse(error)
            call = Call(self.desk, op, request, self.refuse)
            return await call.serve(lambda: handle(request, call))

        return serve

    async def upload(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST /files."""
        upload = await receive(request, self.state.folder)
        try:
            upload.check()
            kept = INPUTS_KEPT if upload.stay is None else upload.stay
            lag = next((rule.values["times"] for rule in call.rules if rule.kind == "batch_file_lag"), 0)
            assert upload.path is not None

            def add() -> File:
                assert upload.path is not None
                expires_at = self.state.now() + kept
                file = records.add_file(
                    self.state, upload.path, upload.name, upload.fields["purpose"], expires_at=expires_at
                )
                self.state.count("files")
                if lag:
                    records.set_lag(self.state, file, lag)
                return file

            return self.respond(file_object(await self.desk.change(add)), 200)
        finally:
            upload.drop()

    async def list_files(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /files: the newest first, or the oldest with `order=asc`."""
        query = request.query
        limit, newest = number(query.get("limit"), 10_000, 10_000), query.get("order", "desc") != "asc"
        size = min(limit, self.desk.faults.page or limit)
        found = await self.desk.do(
            records.listed_files, self.state, query.get("purpose"), query.get("after"), size + 1, newest=newest
        )
        return self.respond(page([file_object(file) for file in found], size), 200)

    async def found_file(self, request: web.Request) -> File:
        """The file that is asked for; raises ApiError."""
        file_id = request.match_info["id"]
        file = await self.desk.do(records.get_file, self.state, file_id)
        if file is None:
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return file

    async def get_file(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /files/ID."""
        return self.respond(file_object(await self.found_file(request)), 200)

    async def content(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /files/ID/content."""
        file = await self.found_file(request)
        return await call.send(file_path(self.state, file.id), dict(self.respond({}, 200).headers))

    async def delete_file(self, request: web.Request, call: Call) -> web.StreamResponse:
        """DELETE /files/ID."""
        file = await self.found_file(request)
        await self.desk.change(records.delete_file, self.state, file)
        return self.respond({"id": file.id, "object": "file", "deleted": True}, 200)

    async def create(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST /batches."""
        order = read_order(read_object(await request.read()), self.family)
        batch = await self.desk.change(self._create, order, call.number)
        if isinstance(batch, ApiError):
            raise batch
        self.desk.start(batch.id)
        return self.respond(batch_object(batch, batch.created_at), 200)

    def _create(self, order: Order, number: int) -> Batch | ApiError:
        file = records.get_file(self.state, order.input_id)
        if file is not None and file.lag > 0:
            records.set_lag(self.state, file, file.lag - 1)
            self.state.count("fault.batch_file_lag")
            file = None
        if file is None:
            told = f"Cannot find file {order.input_id}, or the project does not have access to it."
            return ApiError(400, told, code="invalid_request", param="input_file_id")
        if file.purpose != "batch":
            told = f"Invalid purpose '{file.purpose}' of the input file: expected 'batch'."
            return ApiError(400, told, param="input_file_id")
        now = self.state.now()
        batch = Batch(
            id=self.state.new_id("batch_", number, now),
            family=self.family,
            endpoint=order.endpoint,
            input_id=file.id,
            created_at=now,
            seconds=self.desk.seconds,
            expires_at=now + DAY if self.family == "openai" else None,
            metadata=order.metadata,
            kept_seconds=order.kept_seconds,
            faults=self.desk.faults.of_batch(number, partial(contains, file_path(self.state, file.id))),
            number=number,
        )
        return records.add_batch(self.state, batch)

    async def list_batches(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /batches: the newest first."""
        limit = number(request.query.get("limit"), 20, 100)
        size = min(limit, self.desk.faults.page or limit)
        await self.desk.caught_up()
        found = await self.desk.do(self._listed, request.query.get("after"), size + 1)
        return self.respond(page(found, size), 200)

    def _listed(self, after: str | None, count: int) -> list[dict[str, Any]]:
        """Batches after the one named, as they are told; some show up late."""
        last = records.get_batch(self.state, after, (self.family,)) if after is not None else None
        if after is not None and last is None:
            raise ApiError(400, f"Invalid 'after': no such batch: {after}", param="after")
        now, found, before = self.state.now(), list[Batch](), last.seq if last else None
        while len(found) < count:
            more = records.batches(self.state, (self.family,), count, before=before)
            found += [batch for batch in more if not late(batch, "batch_list_lag", now)]
            if len(more) < count:
                break
            before = more[-1].seq
        return [batch_object(batch, now) for batch in found[:count]]

    async def get_batch(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /batches/ID."""
        batch_id = request.match_info["id"]
        await self.desk.caught_up(batch_id)
        return self.respond(await self.desk.do(self._told, batch_id), 200)

    def _told(self, batch_id: str) -> dict[str, Any]:
        batch, now = records.get_batch(self.state, batch_id, (self.family,)), self.state.now()
        if batch is None or late(batch, "batch_get_404", now):
            raise ApiError(404, f"No batch found with id '{batch_id}'.", param="id")
        return batch_object(batch, now)

    async def cancel(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST /batches/ID/cancel: what is done by now stays done."""
        batch_id = request.match_info["id"]
        await self.desk.caught_up(batch_id)
        told = await self.desk.change(self._cancel, batch_id)
        self.desk.start(batch_id)
        return self.respond(told, 200)

    def _cancel(self, batch_id: str) -> dict[str, Any]:
        batch, now = records.get_batch(self.state, batch_id, (self.family,)), self.state.now()
        if batch is None:
            raise ApiError(404, f"No batch found with id '{batch_id}'.", param="id")
        if batch.ended:
            raise ApiError(400, f"Cannot cancel a batch with status '{batch.ended}'.")
        records.cancel(self.state, batch, now)
        return batch_object(batch, now)


def late(batch: Batch, kind: str, now: float) -> bool:
    """Whether a fault keeps a batch from being seen yet."""
    rule = batch.fault(kind)
    return rule is not None and now < batch.created_at + rule["seconds"]


def contains(path: Path, text: str) -> bool:
    """Whether a text stands in one of the lines of an input."""
    with path.open("rb") as lines:
        return any(mentions(line, text) for line in lines)


def number(text: str | None, usual: int, most: int) -> int:
    """The parameter `limit`; raises ApiError."""
    if text is None:
        return usual
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ApiError(400, f"Invalid 'limit': expected an integer from 1 to {most}.", param="limit")
    return int(text)
