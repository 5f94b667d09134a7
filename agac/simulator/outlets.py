"""Where replies go: one outlet for each request, over HTTP or over a WebSocket. What they say is an API's business."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from agac.simulator import anthropicwire, chat, messageevents, messages, responses
from agac.simulator.asks import Answer, ApiError, Ask
from agac.simulator.faults import Rule
from agac.simulator.latency import RateLimits
from agac.simulator.openaiwire import error_body
from agac.simulator.responseevents import Event, as_sse, events, failing_events, socket_error

MARK = {"x-agac-simulated": "true"}
HANG_LOOKS = 0.1
"""Seconds between looks at whether a client that gets no answer is still there."""

GARBAGE = b"<html><body>upstream sent too much</body></html>"


def openai_headers(number: int, limits: RateLimits) -> dict[str, str]:
    """A reply's own headers: its number, and what is left of the limits."""
    return {"x-request-id": f"req-sim-{number}"} | limits.headers(time.monotonic())


@dataclass(frozen=True, slots=True)
class Api:
    """One API of a provider: how it reads a body, how it writes an answer and a failure, whole or piece by piece, and
    how it says no; `headers` of the n-th reply."""

    read: Callable[[bytes, int], Ask]
    body: Callable[[Ask, Answer], bytes]
    chunks: Callable[[Ask, Answer], Iterator[bytes]]
    failed_body: Callable[[Ask, ApiError], bytes]
    failing_chunks: Callable[[Ask, Answer, ApiError, Rule], Iterator[bytes]]
    error: Callable[[ApiError], bytes] = error_body
    headers: Callable[[int, RateLimits], dict[str, str]] = openai_headers


CHAT = Api(
    read=chat.read_ask,
    body=chat.completion_body,
    chunks=chat.completion_chunks,
    failed_body=lambda _, error: error_body(error),  # its status has been told by then
    failing_chunks=lambda ask, answer, error, rule: chat.failing_chunks(ask, answer, error),
)
RESPONSES = Api(
    read=responses.read_ask,
    body=responses.response_body,
    chunks=lambda ask, answer: map(as_sse, events(ask, answer)),
    failed_body=responses.failed_body,
    failing_chunks=lambda ask, answer, error, rule: map(
        as_sse, failing_events(ask, answer, error, as_response=rule.failed)
    ),
)
MESSAGES = Api(
    read=messages.read_ask,
    body=messages.message_body,
    chunks=messageevents.message_chunks,
    failed_body=lambda _, error: anthropicwire.error_body(error),
    failing_chunks=lambda ask, answer, error, rule: messageevents.failing_chunks(ask, answer, error),
    error=anthropicwire.error_body,
    headers=anthropicwire.headers,
)


class Outlet(Protocol):
    """Where the reply to one request goes. A client that has left is no error."""

    async def answer(self, ask: Ask, answer: Answer) -> None:
        """The whole answer."""

    async def fail(self, ask: Ask, answer: Answer, error: ApiError, rule: Rule) -> None:
        """An answer that turns into an error on its way."""

    async def cut(self, ask: Ask, answer: Answer, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after so many bytes of the answer."""

    async def garble(self) -> None:
        """Something that is no answer."""

    async def hang(self, stopping: asyncio.Event) -> None:
        """Nothing, until the client has gone or the simulator stops."""

    async def refuse(self, error: ApiError) -> None:
        """An error."""


class HttpOutlet:
    """Answers a POST; `response` is what the application gives back. `headers` are made when they are sent."""

    def __init__(self, api: Api, request: web.Request, headers: Callable[[], dict[str, str]]) -> None:
        self._api, self._request, self._headers = api, request, headers
        self.response: web.StreamResponse = web.Response(status=503)

    async def answer(self, ask: Ask, answer: Answer) -> None:
        """The whole answer, or its pieces."""
        if ask.stream:
            await self._stream(self._api.chunks(ask, answer))
        else:
            self._whole(self._api.body(ask, answer))

    async def fail(self, ask: Ask, answer: Answer, error: ApiError, rule: Rule) -> None:
        """The status says that all is well, by then."""
        if ask.stream:
            await self._stream(self._api.failing_chunks(ask, answer, error, rule))
        else:
            self._whole(self._api.failed_body(ask, error))

    async def cut(self, ask: Ask, answer: Answer, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after so many bytes of the body."""
        whole = b"".join(self._api.chunks(ask, answer)) if ask.stream else self._api.body(ask, answer)
        response = web.StreamResponse(headers=MARK)
        response.content_type = "text/event-stream" if ask.stream else "application/json"
        if after_bytes is not None and self._request.transport is not None:
            if not ask.stream:
                response.content_length = len(whole)
            await response.prepare(self._request)
            await response.write(whole[: min(after_bytes, len(whole) - 1)])
        if self._request.transport is not None:
            self._request.transport.close()
        self.response = response

    async def garble(self) -> None:
        """A page where JSON belongs."""
        self._whole(GARBAGE)

    async def hang(self, stopping: asyncio.Event) -> None:
        """Waits until the client has gone or the simulator stops."""
        await gone(self._request, stopping)
        self.response = web.Response(status=503)

    async def refuse(self, error: ApiError) -> None:
        """An error in the provider's form."""
        self._whole(self._api.error(error), error.status, error.headers)

    def _whole(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        told = self._headers() | (headers or {})
        self.response = web.Response(status=status, body=body, content_type="application/json", headers=told)

    async def _stream(self, chunks: Iterable[bytes]) -> None:
        """Server-sent events, one write each. A client that leaves early has been charged all the same."""
        response = web.StreamResponse(headers=self._headers() | {"cache-control": "no-cache"})
        response.content_type = "text/event-stream"
        self.response = response
        with suppress(ConnectionError):
            await response.prepare(self._request)
            for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()


class SocketOutlet:
    """Answers one `response.create` message of a WebSocket."""

    def __init__(self, request: web.Request, ws: web.WebSocketResponse) -> None:
        self._request, self._ws = request, ws

    async def answer(self, ask: Ask, answer: Answer) -> None:
        """The events of the answer."""
        await self._tell(events(ask, answer))

    async def fail(self, ask: Ask, answer: Answer, error: ApiError, rule: Rule) -> None:
        """Some events, then the error: in the form of a socket, but without a status, for the model was at work."""
        *told, last = failing_events(ask, answer, error, as_response=rule.failed)
        if last["type"] == "error":
            about = socket_error(error)
            last = {"type": "error", "error": about["error"], "sequence_number": last["sequence_number"]}
        await self._tell([*told, last])

    async def cut(self, ask: Ask, answer: Answer, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after as many events as lie within so many bytes."""
        sent = 0
        for event in events(ask, answer) if after_bytes is not None else ():
            sent += len(json.dumps(event))
            if after_bytes is None or sent > after_bytes or event["type"].endswith(("completed", "incomplete")):
                break
            await self._tell([event])
        if self._request.transport is not None:
            self._request.transport.close()

    async def garble(self) -> None:
        """A page where an event belongs."""
        with suppress(ConnectionError):
            await self._ws.send_str(GARBAGE.decode())

    async def hang(self, stopping: asyncio.Event) -> None:
        """Waits until the client has gone or the simulator stops."""
        await gone(self._request, stopping)

    async def refuse(self, error: ApiError) -> None:
        """An `error` event, with the status and the headers that HTTP would have."""
        await self._tell([socket_error(error)])

    async def _tell(self, told: Iterable[Event]) -> None:
        with suppress(ConnectionError):
            for event in told:
                await self._ws.send_str(json.dumps(event))


async def gone(request: web.Request, stopping: asyncio.Event) -> None:
    """Returns when the client has gone or the simulator stops."""
    while request.transport is not None and not request.transport.is_closing() and not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), HANG_LOOKS)
