"""Server-sent events: bytes as they come, to the JSON of each event.

Format: html.spec.whatwg.org, section 9.2.6. Only `data` is read: all dialects say an event's kind within its JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp

from agac.providers.streams import Watched

DONE = b"[DONE]"
"""OpenAI's last event of a chat completion, the one that is no JSON."""


LAST_BYTES = 1.0
"""Seconds that a stream may take to end once its last event has come, so that its connection can be used again."""


class GarbledStream(aiohttp.ClientPayloadError):
    """An event is not JSON: with a piece missing, the answer would be another one."""


class Events:
    """Takes bytes and gives events. One that no empty line ended is none, as the format says."""

    __slots__ = ("_after_cr", "_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """The events that are whole now: their JSON, None for `[DONE]`. Raises GarbledStream."""
        # a line ends in LF, in CR, or in CR LF, of which the chunk before may have brought the first half
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield from self._ended()

    def _ended(self) -> Iterator[Any]:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        if data.strip() == DONE:
            yield None
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise GarbledStream from None
        if event is not None:
            yield event


async def read_events(response: aiohttp.ClientResponse, watched: Watched) -> None:
    """Reads a stream to its last event.

    Raises ClientPayloadError when it ended before that, GarbledStream: both as when the connection is lost.
    """
    events = Events()
    while not watched.assembly.done and (chunk := await response.content.readany()):
        for event in events.feed(chunk):
            watched.take(event)
    if not watched.assembly.finish():
        raise aiohttp.ClientPayloadError
    await _drained(response)


async def _drained(response: aiohttp.ClientResponse) -> None:
    """Reads to the end of a stream whose last event has come, so that its connection is kept. The answer is had: what
    goes wrong now, or takes long, only costs the connection."""
    if response.content.at_eof():
        return
    try:
        async with asyncio.timeout(LAST_BYTES):
            await response.read()
    except (aiohttp.ClientError, OSError):
        response.close()
