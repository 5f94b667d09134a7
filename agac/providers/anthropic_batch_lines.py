"""Requests and results of Anthropic's message batches.

Shapes: platform.claude.com/docs/en/build-with-claude/batch-processing and the types of the anthropic SDK 2.12,
November 2026.
"""

from __future__ import annotations

import json
from typing import Any

from agac.providers.base import encode
from agac.providers.batches import ResultLine
from agac.providers.batchreading import object_of, text_of
from agac.providers.openai_batch_lines import one_line

STATUSES: dict[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 504,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}
"""The status with which each error comes where it comes by itself (the SDK's `ErrorType`): a result has only its
name."""


def line(custom_id: str, body: bytes, endpoint: str) -> bytes:
    """One of the requests. All of them are messages: `endpoint` is not told."""
    return b'{"custom_id":' + json.dumps(custom_id).encode() + b',"params":' + one_line(body) + b"}"


def result(line: bytes) -> ResultLine:
    """One line of the results. Raises UnreadableLine."""
    custom_id, data = object_of(line)
    found = data.get("result")
    kind = text_of(found, "type")
    if not isinstance(found, dict) or kind is None:
        return ResultLine(custom_id, "unanswered", message="no result")
    if kind == "succeeded":
        message = found.get("message")
        if not isinstance(message, dict) or not message:
            return ResultLine(custom_id, "unanswered", 200, message="a success without a message")
        return ResultLine(custom_id, "answered", 200, encode(message))
    if kind == "expired":
        return ResultLine(custom_id, "expired", message="the batch ended before the request was worked on")
    if kind in ("canceled", "cancelled"):
        return ResultLine(custom_id, "cancelled", message="the batch was cancelled before the request was worked on")
    if kind == "errored":
        return _errored(custom_id, found.get("error"))
    return ResultLine(custom_id, "unanswered", message=f"a result of the unknown type {kind[:40]}")


def _errored(custom_id: str, outer: Any) -> ResultLine:
    """The reason stands within an error within the error; some who look alike leave the outer one out."""
    inner = outer.get("error") if isinstance(outer, dict) else None
    error = inner if isinstance(inner, dict) else outer
    kind, words = text_of(error, "type"), text_of(error, "message") or ""
    request_id = text_of(outer, "request_id") or ""
    if kind is None:
        words = words or (outer if isinstance(outer, str) else "an error without words")
        return ResultLine(custom_id, "unanswered", message=words, request_id=request_id)
    body = encode({"type": "error", "error": error, **({"request_id": request_id} if request_id else {})})
    return ResultLine(custom_id, "answered", STATUSES.get(kind, 500), body, words, request_id)
