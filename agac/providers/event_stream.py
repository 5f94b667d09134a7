"""Streamed answers: bytes of a response become events, and events become one answer."""

from __future__ import annotations

import asyncio
import codecs
import math
from collections.abc import Iterator
from typing import Any

import aiohttp

from agac.providers.bodies import loads
from agac.providers.dialect import Assembly
from agac.providers.transport import GarbledStream

# Server-sent events. Format: html.spec.whatwg.org, section 9.2.6. Only `data` is read: its JSON
# says an event's kind, but for errors of some servers, whose kind is in `event` alone.

DONE = b"[DONE]"  # OpenAI's last event of a chat completion, the one that is no JSON

LAST_BYTES = 1.0
"""Seconds that a stream may take to end once its last event has come, so that its connection can
be used again."""


def parsed_event(data: str | bytes) -> Any:
    """Reads the JSON of an event. Raises GarbledStream."""
    try:
        return loads(data)
    except (ValueError, RecursionError):
        raise GarbledStream from None


class Events:
    """Takes bytes and gives events of at most `most` bytes. One that no empty line ended is none
    (the format says)."""

    __slots__ = ("_after_cr", "_begun", "_data", "_is_error", "_most", "_rest", "_size")

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._size = 0
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = self._begun = self._is_error = False

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yields the events that are whole now: their JSON, None for `[DONE]`. Raises
        GarbledStream, ReplyTooLarge."""
        # a line ends in LF, in CR, or in CR LF, of which the chunk before may have brought the
        # first half
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if lines and not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
            elif line.startswith(b"event:"):
                self._is_error = line[6:].strip() == b"error"
            elif not line:
                yield from self._ended()
        if self._size + len(self._rest) > self._most:
            raise ReplyTooLarge

    def _ended(self) -> Iterator[Any]:
        """Yields the event that an empty line ended."""
        data = b"\n".join(self._data).strip()
        is_error = self._is_error
        self._data = []
        self._size = 0
        self._is_error = False
        if data == DONE:
            yield None
        elif data and (event := parsed_event(data)) is not None:
            named = isinstance(event, dict) and ("error" in event or event.get("type") == "error")
            yield {"error": event} if is_error and not named else event


class ReplyTooLarge(aiohttp.ClientPayloadError):
    """A reply has more bytes than `limits.reply_mb` allows; the rest of it is not read."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Returns the decoded body, `most` bytes of it. Raises ReplyTooLarge for more; of an error the
    beginning is enough."""
    pieces = []
    size = 0
    while not response.content.at_eof():
        piece = await response.content.readany()
        pieces.append(piece)
        size += len(piece)
        if size > most:
            response.close()
            if response.status < 400:
                raise ReplyTooLarge
            break
    return b"".join(pieces)


async def read_events(response: aiohttp.ClientResponse, assembly: Assembly, most: int) -> None:
    """Reads a stream to its last event. Raises ClientPayloadError when it ended before that,
    GarbledStream: both as when the connection is lost; ReplyTooLarge when an event, or the answer
    so far, has more than `most` bytes."""
    events = Events(most)
    while not assembly.done and (chunk := await response.content.readany()):
        for event in events.feed(chunk):
            assembly.take(event)
            if assembly.size > most:
                raise ReplyTooLarge
    if not assembly.finish():
        raise aiohttp.ClientPayloadError
    if response.content.at_eof():
        return
    # to the end, so that the connection is kept; what goes wrong now, or takes long, only costs the
    # connection
    try:
        async with asyncio.timeout(LAST_BYTES):
            await read_body(response, most)
    except (aiohttp.ClientError, OSError):
        response.close()


BEGINS_EVENTS = (b"data:", b"event:")
"""How a stream begins that its headers do not call one: JSON never does."""


def take_all(body: bytes, assembly: Assembly) -> bool:
    """Puts together the events of a body that came whole. True if the answer is whole. Raises
    GarbledStream."""
    for event in Events().feed(body + b"\n\n"):
        assembly.take(event)
    return assembly.finish()
