"""Anthropic's Message Batches over HTTP."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from aiohttp import web

from agac.simulator import anthropicwire
from agac.simulator.asks import ApiError
from agac.simulator.batches import records
from agac.simulator.batches.calls import Call
from agac.simulator.batches.desk import Desk
from agac.simulator.batches.ending import output_part
from agac.simulator.batches.messagerequests import split
from agac.simulator.batches.messagestold import address, batch_object, headers, refuse, results_url
from agac.simulator.batches.openaiapi import Handler, contains, late, number
from agac.simulator.batches.records import DAY, Batch, file_path

LARGEST = 256_000_000
PIECE = 2**18
FAMILY = ("anthropic",)


class MessageBatches:
    """The routes of Anthropic's batches. `check` refuses keys."""

    def __init__(self, desk: Desk, check: Callable[[web.Request], None], respond: Callable[..., web.Response]) -> None:
        self.desk, self.check, self.respond = desk, check, respond
        self.state = desk.state

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """The addresses."""
        one = "/v1/messages/batches/{id}"
        routes: list[tuple[str, str, str, Callable[[web.Request, Call], Awaitable[web.StreamResponse]]]] = [
            ("POST", "/v1/messages/batches", "create", self.create),
            ("GET", "/v1/messages/batches", "list", self.list_batches),
            ("GET", one, "poll", self.get_batch),
            ("GET", f"{one}/results", "download", self.results),
            ("POST", f"{one}/cancel", "cancel", self.cancel),
            ("DELETE", one, "delete", self.delete),
        ]
        for method, path, op, handle in routes:
            router.add_route(method, path, self.handler(op, handle))

    def handler(self, op: str, handle: Callable[[web.Request, Call], Awaitable[web.StreamResponse]]) -> Handler:
        """One call: counted, and with its faults."""

        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                self.check(request)
                if not request.headers.get("anthropic-version"):
                    raise anthropicwire.bad("anthropic-version", "header is required")
            except ApiError as error:
                return refuse(error)
            call = Call(self.desk, op, request, refuse)
            return await call.serve(lambda: handle(request, call))

        return serve

    async def create(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST /v1/messages/batches."""
        body = await self._received(request)
        requests = body.with_suffix(".lines")
        try:
            total = await asyncio.to_thread(split, body, requests)
            version = request.headers["anthropic-version"]
            batch = await self.desk.change(self._create, requests, total, version, call.number)
            if isinstance(batch, ApiError):
                raise batch
        finally:
            body.unlink(missing_ok=True)
            requests.unlink(missing_ok=True)
        self.desk.start(batch.id)
        return self.respond(batch_object(batch, batch.created_at, address(request)), 200)

    async def _received(self, request: web.Request) -> Path:
        """The body on disk; raises ApiError for one that is too large."""
        self.state.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".body-", dir=self.state.folder)
        size = 0
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 (a descriptor, a local disk)
                async for piece in request.content.iter_chunked(PIECE):
                    size += len(piece)
                    if size <= LARGEST:  # what is more is read and let go, so that the client hears why
                        file.write(piece)
            if size > LARGEST:
                told = f"Request exceeds the maximum size of {LARGEST:,} bytes."
                raise ApiError(413, told, code="request_too_large")
        except BaseException:
            Path(name).unlink()
            raise
        return Path(name)

    def _create(self, requests: Path, total: int, version: str, count: int) -> Batch | ApiError:
        now = self.state.now()
        batch_id = self.state.new_id("msgbatch_", count, now)
        batch = Batch(
            id=batch_id,
            family="anthropic",
            endpoint=version,
            input_id=f"{batch_id}.input",
            created_at=now,
            seconds=self.desk.seconds,
            expires_at=now + DAY,
            faults=self.desk.faults.of_batch(count, partial(contains, requests)),
            number=count,
            validated=True,
            total=total,
            enqueued_tokens=requests.stat().st_size // 4,
        )
        if (error := self._refusal(batch)) is not None:
            return error
        requests.replace(file_path(self.state, batch.input_id))
        self.state.count("requests", total)
        return records.add_batch(self.state, batch)

    def _refusal(self, batch: Batch) -> ApiError | None:
        """Why a fault rejects a batch: Anthropic says so at once."""
        waiting = sum(other.enqueued_tokens for other in records.open_batches(self.state))
        cap = batch.fault("batch_enqueued_cap")
        if (rule := batch.fault("batch_reject")) is not None:
            error = ApiError(400, rule.get("message") or "The batch was rejected.", code=rule.get("code"))
        elif cap is not None and waiting + batch.enqueued_tokens > cap["tokens"]:
            rule = cap
            error = ApiError(429, "Too many batch requests wait to be processed.", code="rate_limit_exceeded")
        else:
            return None
        self.state.count("rejected")
        self.state.count(f"fault.{rule['kind']}")
        return error

    async def list_batches(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /v1/messages/batches: the newest first."""
        query = request.query
        limit = number(query.get("limit"), 20, 1000)
        size = min(limit, self.desk.faults.page or limit)
        await self.desk.caught_up()
        found, more = await self.desk.do(self._listed, query.get("after_id"), query.get("before_id"), size)
        now = await self.desk.do(self.state.now)
        data = [batch_object(batch, now, address(request)) for batch in found]
        ids = [one["id"] for one in data] or [None]
        return self.respond({"data": data, "has_more": more, "first_id": ids[0], "last_id": ids[-1]}, 200)

    def _listed(self, after: str | None, before: str | None, size: int) -> tuple[list[Batch], bool]:
        """A page of batches, and whether there are more in its direction."""
        if before is not None:
            found = self._seen(records.batches(self.state, FAMILY, -1, after=self._found(before).seq))
            return found[-size:], len(found) > size
        oldest = self._found(after).seq if after is not None else None
        found = self._seen(records.batches(self.state, FAMILY, -1, before=oldest))
        return found[:size], len(found) > size

    def _seen(self, found: list[Batch]) -> list[Batch]:
        now = self.state.now()
        return [batch for batch in found if not late(batch, "batch_list_lag", now)]

    def _found(self, batch_id: str) -> Batch:
        """A batch; raises ApiError for one that is not there, or not seen yet."""
        batch = records.get_batch(self.state, batch_id, FAMILY)
        if batch is None or late(batch, "batch_get_404", self.state.now()):
            raise ApiError(404, f"Message Batch {batch_id} not found.")
        return batch

    async def get_batch(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /v1/messages/batches/ID."""
        batch, now = await self._looked_at(request)
        return self.respond(batch_object(batch, now, address(request)), 200)

    async def _looked_at(self, request: web.Request) -> tuple[Batch, float]:
        """A batch as it is now."""
        batch_id = request.match_info["id"]
        await self.desk.caught_up(batch_id)
        return await self.desk.do(self._found, batch_id), await self.desk.do(self.state.now)

    async def results(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET /v1/messages/batches/ID/results."""
        batch, now = await self._looked_at(request)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} has not ended yet: it has no results.")
        if results_url(batch, now, "") is None:
            raise ApiError(404, f"The results of Message Batch {batch.id} are no longer available.")
        return await call.send(file_path(self.state, batch.output_id or output_part(batch)), headers())

    async def cancel(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST /v1/messages/batches/ID/cancel: what is done by now stays done."""
        batch, now = await self._looked_at(request)
        if batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} has ended: it cannot be canceled.")
        await self.desk.change(records.cancel, self.state, batch, now)
        self.desk.start(batch.id)
        return self.respond(batch_object(batch, now, address(request)), 200)

    async def delete(self, request: web.Request, call: Call) -> web.StreamResponse:
        """DELETE /v1/messages/batches/ID: only of what has ended."""
        batch, _ = await self._looked_at(request)
        if not batch.ended:
            raise ApiError(400, f"Message Batch {batch.id} is in progress: cancel it, and delete it once it has ended.")
        await self.desk.change(records.delete_batch, self.state, batch)
        return self.respond({"id": batch.id, "type": "message_batch_deleted"}, 200)
