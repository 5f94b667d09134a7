"""Lines of results in the words of each provider, one for what each request came to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from agac.simulator import chat, responses
from agac.simulator.asks import Answer, ApiError, Ask
from agac.simulator.openaiwire import error_body

dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
quoted = json.encoder.encode_basestring_ascii

EXPIRED = "This request could not be executed before the completion window expired."
CANCELLED = "This request was cancelled before it was executed."


def encoded(value: Any) -> bytes:
    """JSON as providers write results: letters as they are, but for halves of pairs, which UTF-8 does not have."""
    try:
        return dump(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API whose requests a batch may hold: how a body is read, how an answer is written."""

    ask_of: Callable[[dict[str, Any], int], Ask]
    body: Callable[[Ask, Answer], Any]


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(chat.ask_of, chat.completion),
    "/v1/responses": Endpoint(responses.ask_of, responses.response),
}
"""What may be asked in batches of OpenAI and Azure."""


class Lines(Protocol):
    """How a provider writes requests and results."""

    one_file: bool
    unknown: bytes
    """A line about a request that nobody made."""

    def read(self, line: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The custom_id and the body of a request."""

    def good(self, batch: str, number: int, custom_id: str, body: bytes) -> bytes:
        """What was answered."""

    def refused(self, batch: str, number: int, custom_id: str, error: ApiError) -> bytes:
        """A request that got an error with a status."""

    def failed(self, batch: str, number: int, custom_id: str, code: str, message: str) -> bytes:
        """A request that got no answer."""

    def zero(self, batch: str, number: int, custom_id: str) -> bytes:
        """A request of which nothing is said."""

    def unfinished(self, batch: str, number: int, custom_id: str, ended: str) -> bytes:
        """A request that was not done when its batch ended."""


class OpenAiLines:
    """Results as OpenAI writes them: good ones and others in files of their own."""

    one_file = False
    unknown = (
        b'{"id":"batch_req_0","custom_id":"nobody-asked-this","response":{"status_code":200,"request_id":"req_0",'
        b'"body":{}},"error":null}\n'
    )

    def read(self, line: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The custom_id and the body of a line of the input."""
        return line["custom_id"], line["body"]

    def good(self, batch: str, number: int, custom_id: str, body: bytes) -> bytes:
        """What was answered."""
        return self.answered(batch, number, custom_id, 200, body)

    def answered(self, batch: str, number: int, custom_id: str, status: int, body: bytes) -> bytes:
        """An answer with a status, whatever that says."""
        name = mark(batch, number)
        return (
            f'{{"id":"batch_req_{name}","custom_id":{quoted(custom_id)},"response":{{"status_code":{status},'
            f'"request_id":"req_{name}","body":'.encode()
            + body
            + b'},"error":null}\n'
        )

    def refused(self, batch: str, number: int, custom_id: str, error: ApiError) -> bytes:
        """A request that got an error with a status."""
        return self.answered(batch, number, custom_id, error.status, error_body(error))

    def failed(self, batch: str, number: int, custom_id: str, code: str, message: str) -> bytes:
        """A request that got no answer at all."""
        line = {
            "id": f"batch_req_{mark(batch, number)}",
            "custom_id": custom_id,
            "response": None,
            "error": {"code": code, "message": message},
        }
        return encoded(line) + b"\n"

    def zero(self, batch: str, number: int, custom_id: str) -> bytes:
        """A request of which nothing is said: seen in life."""
        line = {
            "id": f"batch_req_{mark(batch, number)}",
            "custom_id": custom_id,
            "response": {"status_code": 0, "request_id": "", "body": {}},
            "error": None,
        }
        return encoded(line) + b"\n"

    def unfinished(self, batch: str, number: int, custom_id: str, ended: str) -> bytes:
        """A request that was not done when its batch ended."""
        code, message = ("batch_expired", EXPIRED) if ended == "expired" else ("batch_cancelled", CANCELLED)
        return self.failed(batch, number, custom_id, code, message)


def mark(batch: str, number: int) -> str:
    """A name for one request of a batch."""
    return blake2b(f"{batch}/{number}".encode(), digest_size=12).hexdigest()
