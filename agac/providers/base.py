"""What a dialect is: how a Request is written on the wire and how an answer is read, and nothing else.

A dialect never sends, sleeps, retries or logs; the sender moves its bytes and the engine acts on its Faults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from agac.core.redact import Redactor
from agac.core.types import Fault, JSONValue, RateState, Reply, Request
from agac.providers.provider import Provider

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Dialect(Protocol):
    """One wire format. Implementations are plain modules without state; `dialects.DIALECTS` lists them."""

    path: str
    """What is put after a provider's base URL."""

    refused: Mapping[str, str]
    """Parameters (fields of `Params`) that it has no word for, each with what to do instead: an error at load."""

    websocket: bool
    """Whether its requests may go over a WebSocket too, where the server has one."""

    def headers(self, provider: Provider) -> dict[str, str]:
        """What identifies us to the provider. Built once a sender, not once a call."""

    def build(self, request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
        """The request as the provider wants its JSON. `encode` makes bytes of it; batches put it into their lines."""

    def parse(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        provider: Provider,
        model: str,
        redactor: Redactor,
    ) -> Reply | Fault:
        """What an answer means. `headers` are looked up in lower case. Never raises for anything a server says."""

    def rates(self, headers: Mapping[str, str]) -> RateState | None:
        """What the headers say about the account's limits; None when they say nothing."""


def encode(wire: JSONValue) -> bytes:
    """JSON as bytes, once a call. A lone surrogate, which UTF-8 cannot hold, travels as its JSON escape."""
    try:
        return _compact(wire).encode()
    except UnicodeEncodeError:
        return _escaped(wire).encode()
