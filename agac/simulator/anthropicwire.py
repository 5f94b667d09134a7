"""Errors and headers in Anthropic's form.

Facts: platform.claude.com/docs/en/api/errors and the types of the anthropic SDK 2.12, read November 2026.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from agac.simulator.asks import ApiError
from agac.simulator.latency import RateLimits
from agac.simulator.words import names

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""What an error of each status is called."""

CODES: dict[str | None, str | None] = {
    "insufficient_quota": "enforced_spend_limit_reached",
    **dict.fromkeys(
        names(
            "rate_limit_exceeded invalid_api_key model_not_found server_is_overloaded server_error invalid_json_schema "
            "unknown_url"
        )
    ),
}
"""Codes of OpenAI's, in which the rest of the simulator speaks, with Anthropic's `error_code`; None: it has none."""


def bad(place: str, problem: str) -> ApiError:
    """A request that is refused: where in it, and why."""
    return ApiError(400, f"{place}: {problem}", param=place)


def error_object(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic writes it. A code that is the name of a type is the type, whatever the status."""
    kind = TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    code = CODES.get(error.code, error.code)
    if code in TYPES.values():
        kind, code = str(code), None
    about: dict[str, Any] = {"type": kind, "message": error.message}
    if code is not None:
        about["details"] = {"error_code": code}
    return {"type": "error", "error": about, "request_id": None}


def error_body(error: ApiError) -> bytes:
    """The same on the wire."""
    return json.dumps(error_object(error)).encode()


def headers(number: int, limits: RateLimits) -> dict[str, str]:
    """A reply's own headers: its number, and what is left of the limits, until when (RFC 3339)."""
    told = {"request-id": f"req_sim_{number}"}
    now = time.time()
    for unit, limit, remaining, reset in limits.told(time.monotonic()):
        moment = datetime.fromtimestamp(now + reset, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        told[f"anthropic-ratelimit-{unit}-limit"] = str(limit)
        told[f"anthropic-ratelimit-{unit}-remaining"] = str(remaining)
        told[f"anthropic-ratelimit-{unit}-reset"] = moment
    return told
