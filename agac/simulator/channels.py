"""Sending the reply to one request: over HTTP, or over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from aiohttp import web

from agac.simulator import replies
from agac.simulator.api_errors import ApiError
from agac.simulator.batch_api import drop_connection, page_response
from agac.simulator.kinds import Texts
from agac.simulator.model_calls import ModelCall
from agac.simulator.openai import SOCKET_RESPONSES
from agac.simulator.replies import Event, ModelAnswer, ModelApi

HANG_INTERVAL_S = 0.1  # seconds between looks at whether a client that gets no answer is there


class Channel:
    """A POST and its answer, sent whole or as events. A client that left is no error."""

    call: ModelCall
    answer: ModelAnswer

    def __init__(
        self,
        api: ModelApi,
        http: web.Request,
        stopping: asyncio.Event,
        headers: Callable[[], Texts],
    ) -> None:
        self.api = api
        self.http = http
        self.stopping = stopping
        """set when the simulator stops"""
        self.response: web.StreamResponse = web.Response(status=503)
        self.rest: Callable[[], Awaitable[Any]] | None = None
        """waits for the second half of a stream"""
        self._headers = headers
        """makes the headers when the reply is sent"""

    async def paced(self, events: Iterable[Event]) -> AsyncIterator[Event]:
        """Gives the first half of the events now, the others with the `rest` of the answer."""
        all_events = list(events)
        for index, event in enumerate(all_events):
            if self.rest is not None and index == len(all_events) // 2 + 1:
                await self.rest()
            yield event

    async def send(self, body: bytes, status: int = 200, headers: Texts | None = None) -> None:
        self.response = web.Response(
            status=status,
            body=body,
            content_type="application/json",
            headers=self._headers() | (headers or {}),
        )

    async def refuse(self, error: ApiError) -> None:
        """Sends an error, or the page that comes in its place."""
        body = json.dumps(self.api.error(error)).encode()
        await self.send(body, error.status, error.headers)
        if error.page is not None:
            self.response = page_response(error)

    async def send_events(self, events: Iterable[Event]) -> None:
        response = web.StreamResponse(headers=self._headers() | {"cache-control": "no-cache"})
        response.content_type = "text/event-stream"
        self.response = response
        with suppress(ConnectionError):
            await response.prepare(self.http)
            async for event in self.paced(events):
                await response.write(replies.server_sent(event))
            await response.write_eof()

    async def cut(self, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after `after_bytes` of the answer."""
        response = web.StreamResponse(headers=replies.MARK)
        self.response = response
        if self.call.stream:
            response.content_type = "text/event-stream"
            events = self.api.events(self.call, self.answer)
            body = b"".join(map(replies.server_sent, events))
        else:
            response.content_type = "application/json"
            body = self.api.body(self.call, self.answer)
            response.content_length = len(body)
        if after_bytes is not None and self.http.transport is not None:
            await response.prepare(self.http)
            await response.write(body[: min(after_bytes, len(body) - 1)])
        drop_connection(self.http)

    async def send_answer(self) -> None:
        if self.call.stream:
            await self.send_events(self.api.events(self.call, self.answer))
        else:
            await self.send(self.api.body(self.call, self.answer))

    async def fail(self, error: ApiError, *, as_response: bool) -> None:
        """Sends an answer that turns into an error: by then the status says that all is well."""
        if self.call.stream:
            events = self.api.failing_events(self.call, self.answer, error, as_response=as_response)
            await self.send_events(events)
        elif self.api.failed is None:
            await self.send(json.dumps(self.api.error(error)).encode())
        else:
            await self.send(json.dumps(self.api.failed(self.call, error)).encode())

    async def hang(self) -> None:
        """Sends nothing, until the client has left or the simulator stops."""
        while not self.stopping.is_set():
            if self.http.transport is None or self.http.transport.is_closing():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(HANG_INTERVAL_S):
                    await self.stopping.wait()


class SocketChannel(Channel):
    """Answers one `response.create` message of a WebSocket, always with events."""

    def __init__(
        self, http: web.Request, stopping: asyncio.Event, ws: web.WebSocketResponse
    ) -> None:
        super().__init__(SOCKET_RESPONSES, http, stopping, dict)
        self._ws = ws

    async def send(self, body: bytes, status: int = 200, headers: Texts | None = None) -> None:
        with suppress(ConnectionError):
            await self._ws.send_str(body.decode())

    async def send_events(self, events: Iterable[Event]) -> None:
        async for event in self.paced(events):
            await self.send(json.dumps(event).encode())

    async def cut(self, after_bytes: int | None) -> None:
        left = after_bytes or 0
        for event in self.api.events(self.call, self.answer):
            left -= len(json.dumps(event))
            if left < 0 or event["type"].endswith(("completed", "incomplete")):
                break
            await self.send_events([event])
        drop_connection(self.http)
