"""One call of a batch API: counted, and with whatever goes wrong with it before or after it has its effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from agac.simulator.asks import ApiError
from agac.simulator.batches.desk import Desk
from agac.simulator.batches.rules import BatchRule
from agac.simulator.batches.spoiled import error_of
from agac.simulator.spoiling import retry_headers

PIECE = 2**18
Effect = Callable[[], Awaitable[web.StreamResponse]]


class Dropped(Exception):
    """The connection is closed without an answer."""


class Call:
    """What happens to one call; `refuse` writes an error in the provider's form."""

    def __init__(
        self, desk: Desk, op: str, request: web.Request, refuse: Callable[[ApiError], web.StreamResponse]
    ) -> None:
        self._desk, self._op, self._request, self._refuse = desk, op, request, refuse
        self.number = 0
        self.rules: list[BatchRule] = []

    async def serve(self, effect: Effect) -> web.StreamResponse:
        """The answer to the call, which has its effect unless a fault comes first."""
        self.number = await self._desk.count(self._op)
        self.rules = self._desk.faults.of_call(self._op, self.number)
        try:
            await self._before()
            response = await effect()
            await self._after()
        except ApiError as error:
            return self._refuse(error)
        except Dropped:
            if self._request.transport is not None:
                self._request.transport.close()
            return web.Response(status=503)
        return response

    async def _before(self) -> None:
        for rule in self.rules:
            if rule.kind == "batch_slow":
                await self._count(rule)
                await asyncio.sleep(rule.values["seconds"])
            elif rule.kind == "batch_drop_before":
                await self._count(rule)
                raise Dropped
            elif rule.kind == "batch_status" and rule.values["when"] == "before":
                await self._refusal(rule)

    async def _after(self) -> None:
        for rule in self.rules:
            if rule.kind == "batch_drop_after":
                await self._count(rule)
                raise Dropped
            if rule.kind == "batch_status" and rule.values["when"] == "after":
                await self._refusal(rule)

    async def _refusal(self, rule: BatchRule) -> None:
        await self._count(rule)
        error = error_of(rule.values)
        if rule.values.get("retry_after") is not None:
            error.headers |= retry_headers(rule.values["retry_after"], in_ms=bool(rule.values.get("in_ms")))
        raise error

    async def _count(self, rule: BatchRule) -> None:
        await self._desk.change(self._desk.state.count, f"fault.{rule.kind}")

    async def send(self, path: Path, headers: dict[str, str]) -> web.StreamResponse:
        """A file as the body, piece by piece; a fault ends it early, with the connection."""
        if not path.exists():
            raise ApiError(404, "The file is not there any more.")
        size = path.stat().st_size
        cut = next((rule for rule in self.rules if rule.kind == "batch_truncate"), None)
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/octet-stream"
        response.content_length = size
        left = size
        if cut is not None:
            await self._count(cut)
            asked = cut.values.get("after_bytes")
            left = min(size // 2 if asked is None else asked, max(0, size - 1))
        if any(rule.kind in ("batch_drop_after", "batch_status") for rule in self.rules):
            return response  # it is never sent
        with suppress(ConnectionError), path.open("rb") as file:
            await response.prepare(self._request)
            while left > 0 and (piece := await asyncio.to_thread(file.read, min(PIECE, left))):
                await response.write(piece)
                left -= len(piece)
            if cut is None:
                await response.write_eof()
        if cut is not None and self._request.transport is not None:
            self._request.transport.close()
        return response
