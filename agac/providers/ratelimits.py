"""What response headers say about waiting and about limits: `retry-after*`, `x-ratelimit-*`, `anthropic-ratelimit-*`.

Names are looked up in lower case: aiohttp's header mapping does not mind, a plain dict must be made so.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from agac.core.types import RateState

_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def asked_delay(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait; `retry-after-ms` wins over `retry-after`. None: it asked for nothing."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (seconds := _number(text)) is not None:
        return seconds
    return _until(text, headers.get("date")) if text else None


def duration(text: str | None) -> float | None:
    """Seconds of a Go-style duration (`6m0s`, `120ms`, `7.66s`) or of a bare number; None for anything else."""
    if not text:
        return None
    pieces = _PIECE.findall(text)
    if pieces and "".join(number + unit for number, unit in pieces) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in pieces)
    return _number(text)


def rate_state(headers: Mapping[str, str]) -> RateState | None:
    """OpenAI's four `x-ratelimit-*` headers; None when the response has none of them."""
    requests = headers.get("x-ratelimit-remaining-requests")
    tokens = headers.get("x-ratelimit-remaining-tokens")
    if requests is None and tokens is None:
        return None
    return RateState(
        remaining_requests=_whole(requests),
        reset_requests=duration(headers.get("x-ratelimit-reset-requests")),
        remaining_tokens=_whole(tokens),
        reset_tokens=duration(headers.get("x-ratelimit-reset-tokens")),
    )


def dated_rate_state(headers: Mapping[str, str]) -> RateState | None:
    """Anthropic's `anthropic-ratelimit-*` headers, which name the moment of a reset (RFC 3339); None when the response
    has none of them. `tokens` is whichever of its limits on tokens is the nearest."""
    requests = headers.get("anthropic-ratelimit-requests-remaining")
    unit = "tokens" if "anthropic-ratelimit-tokens-remaining" in headers else "input-tokens"
    tokens = headers.get(f"anthropic-ratelimit-{unit}-remaining")
    if requests is None and tokens is None:
        return None
    now = headers.get("date")
    resets = (headers.get(f"anthropic-ratelimit-{name}-reset") for name in ("requests", unit))
    reset_requests, reset_tokens = (_until(text, now) if text else None for text in resets)
    return RateState(_whole(requests), reset_requests, _whole(tokens), reset_tokens)


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None else int(value)


def _moment(text: str) -> float | None:
    """A date of HTTP or of RFC 3339, in seconds since 1970."""
    from email.utils import parsedate_to_datetime  # 12 ms that only a date in a header is worth

    try:
        moment: datetime = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except ValueError:
        return None
    # a date without a zone is UTC in HTTP
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _until(text: str, server_now: str | None) -> float | None:
    """Seconds until a moment, by the server's own clock where it gave one: ours may be wrong."""
    then = _moment(text)
    if then is None:
        return None
    now = _moment(server_now) if server_now else None
    return max(then - (time.time() if now is None else now), 0.0)
