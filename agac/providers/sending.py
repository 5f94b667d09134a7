"""What carries a request to a provider, whatever the transport, and what it brings back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from agac.core.types import Fault
from agac.providers.streams import Watched
from agac.spec.workflow import Timeout


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer as it came, whatever its status. Times are `time.monotonic()` seconds: before sending, when the headers
    had come, when the body had. Names in `headers` are found in any case of letters.

    A streamed answer's `body` is what its events say when they are put together; `ttft` is the seconds from sending to
    its first token, be it of thinking, `time_to_response` those to the first token of the answer itself.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    started: float
    first_byte: float
    ended: float
    ttft: float | None = None
    time_to_response: float | None = None


class Sending(Protocol):
    """What carries a request to a provider and its answer back, whatever the transport."""

    async def send(
        self, wire: bytes, timeout: Timeout | None = None, *, within: float | None = None
    ) -> HttpReply | Fault:
        """The answer to `wire`, or why there is none: see `Sender.send`."""

    async def close(self) -> None:
        """Closes every connection."""


def streamed_reply(
    watched: Watched, status: int, headers: Mapping[str, str], body: bytes, started: float, first_byte: float
) -> HttpReply:
    """An answer that came piece by piece and has ended now."""
    return HttpReply(
        status,
        headers,
        body,
        started,
        first_byte,
        time.monotonic(),
        None if watched.begun_at is None else watched.begun_at - started,
        None if watched.answering_at is None else watched.answering_at - started,
    )
