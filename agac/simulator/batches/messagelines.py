"""Requests and results of batches as Anthropic writes them: one file for all of them."""

from __future__ import annotations

from typing import Any

from agac.simulator import anthropicwire, messages
from agac.simulator.asks import ApiError, Ask
from agac.simulator.batches.lines import Endpoint, encoded, mark, quoted

NOBODY = b'{"custom_id":"nobody-asked-this","result":{"type":"expired"}}\n'


class MessageLines:
    """Results as Anthropic writes them."""

    one_file = True
    unknown = NOBODY

    def read(self, line: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The custom_id and the params of a request."""
        return line["custom_id"], line["params"]

    def good(self, batch: str, number: int, custom_id: str, body: bytes) -> bytes:
        """What was answered."""
        head = f'{{"custom_id":{quoted(custom_id)},"result":{{"type":"succeeded","message":'
        return head.encode() + body + b"}}\n"

    def refused(self, batch: str, number: int, custom_id: str, error: ApiError) -> bytes:
        """A request that got an error."""
        told = anthropicwire.error_object(error) | {"request_id": f"req_{mark(batch, number)}"}
        return ended(custom_id, {"type": "errored", "error": told})

    def failed(self, batch: str, number: int, custom_id: str, code: str, message: str) -> bytes:
        """A request that got no answer."""
        kind = code if code in anthropicwire.TYPES.values() else "timeout_error"
        return self.refused(batch, number, custom_id, ApiError(408, message, code=kind))

    def zero(self, batch: str, number: int, custom_id: str) -> bytes:
        """A request of which nothing is said, as near to it as Anthropic comes."""
        return self.refused(batch, number, custom_id, ApiError(500, "Internal server error"))

    def unfinished(self, batch: str, number: int, custom_id: str, how: str) -> bytes:
        """A request that was not done when its batch ended."""
        return ended(custom_id, {"type": "expired" if how == "expired" else "canceled"})


def ended(custom_id: str, result: dict[str, Any]) -> bytes:
    """A line of results."""
    return encoded({"custom_id": custom_id, "result": result}) + b"\n"


def messages_endpoint(version: str) -> Endpoint:
    """The Messages API in a batch: what may be asked depends on the version that the batch was created with."""

    def ask_of(params: dict[str, Any], seed: int) -> Ask:
        ask = messages.ask_of(params, seed, version)
        ask.extras["service_tier"] = "batch"
        return ask

    return Endpoint(ask_of, messages.message)
