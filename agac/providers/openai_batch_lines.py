"""Lines of OpenAI's batch files, and those of everyone who looks alike.

Shapes: platform.openai.com/docs/guides/batch and the types of the openai SDK 3.52; the odd ones are from public bug
reports of OpenAI, Azure, Together, vLLM and others, November 2026.
"""

from __future__ import annotations

import json
from typing import Any

from agac.providers.base import encode
from agac.providers.batches import Ended, ResultLine
from agac.providers.batchreading import object_of, text_of

_ENDED: dict[str, Ended] = {
    "batch_expired": "expired",
    "batch_cancelled": "cancelled",
    "batch_canceled": "cancelled",
    "request_timeout": "unanswered",
}
"""What the codes of a line's error mean that say that the request was never, or not to its end, worked on."""


def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
    """One line of an input file. Separators that some readers of lines split at are escaped."""
    head = json.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint}, separators=(",", ":")).encode()
    return head[:-1] + b',"body":' + one_line(body) + b"}"


def one_line(body: bytes) -> bytes:
    """The same JSON without U+2028 and U+2029, which can stand in its texts only."""
    if b"\xe2\x80" not in body:
        return body
    return body.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def result(line: bytes) -> ResultLine:
    """One line of an output or an error file. Raises UnreadableLine."""
    custom_id, data = object_of(line)
    response, error = data.get("response"), data.get("error")
    if error:
        return _failed(custom_id, response, error)
    if not isinstance(response, dict):
        return ResultLine(custom_id, "unanswered", message="neither a response nor an error")
    request_id, status = text_of(response, "request_id") or "", _status(response)
    if status is None:
        return ResultLine(custom_id, "unanswered", message="a response without a status", request_id=request_id)
    body = _body(response.get("body"))
    if not body:
        message = f"a response of status {status} without a body"
        return ResultLine(custom_id, "unanswered", status, message=message, request_id=request_id)
    return ResultLine(custom_id, "answered", status, body, request_id=request_id)


def _failed(custom_id: str, response: Any, error: Any) -> ResultLine:
    """A line with an error of its own. One that stands beside an answer is read as the endpoint's error: what it means
    is the dialect's to say."""
    code, message = text_of(error, "code") or "", text_of(error, "message") or ""
    if isinstance(error, str):
        message = error
    request_id = text_of(response, "request_id") or ""
    if ended := _ENDED.get(code):
        return ResultLine(custom_id, ended, message=message or code, request_id=request_id)
    status = _status(response) or _status(error) or 0
    body = _body(response.get("body")) if isinstance(response, dict) else b""
    if status >= 400 or code:
        # an error that comes with no status, or with a good one, is told by its code
        body = body if body and status >= 400 else encode({"error": error})
        return ResultLine(custom_id, "answered", max(status, 200), body, message, request_id)
    return ResultLine(custom_id, "unanswered", message=message or "an error without words", request_id=request_id)


def _status(of: Any) -> int | None:
    """The HTTP status that an object names; None where it names none, or 0."""
    for name in ("status_code", "code"):
        value = of.get(name) if isinstance(of, dict) else None
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if type(value) is int and 100 <= value < 600:
            return value
    return None


def _body(value: Any) -> bytes:
    """The endpoint's payload; empty where there is none. Some send it as a text that holds JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass") if value.strip() not in ("", "null", "{}") else b""
    return encode(value) if value else b""
