"""When a provider can be asked again: times in headers, bodies and messages, in all their units,
read within bounds."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from agac.core.types import RateState
from agac.providers.bodies import MAX_COUNT, date, mapping, number

# Names are looked up in lower case: aiohttp's header mapping does not mind, a plain dict must be
# made so.
#
# Sources, November 2026:
# - RFC 9110 section 10.2.3: Retry-After is a number of seconds or an HTTP date
# - the openai and anthropic SDKs: retry-after-ms
# - platform.openai.com/docs/guides/rate-limits: Go durations
# - platform.claude.com/docs/en/api/rate-limits: RFC 3339
# - openrouter.ai/docs/api-reference/limits: Unix time in milliseconds, in headers and within the
# body
# - docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api: Unix time in seconds
# - inference-docs.cerebras.ai/support/rate-limits: limits of a minute, an hour and a day
# - developers.cloudflare.com/fundamentals/api/reference/limits: the `RateLimit` header of the
# IETF's draft
# - console.groq.com/docs/rate-limits, ai.google.dev/gemini-api/docs/rate-limits: "Please try again
# in 7m12s"

MAX_ASKED_S = 31 * 86_400.0
"""Seconds. The longest quotas are those of a month; a server that asks for more means something
else."""

NONSENSE_S = 86_400.0
"""Seconds for which a server is left alone that asks for more than MAX_ASKED_S, such as 1e308."""

_UNIX_UNITS = ((1e19, 0.0), (1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e9, 1.0))
"""From which number on a number is a time since 1970, and the seconds that one of its units has.
1e9 seconds were over in 2001; as a wait they would be 31 years. The first line is no time at all.
"""

_NAMES = {
    "d": r"d(?:ays?)?",
    "h": r"h(?:ours?|rs?)?",
    "ms": r"ms|milliseconds?|msecs?",
    "m": r"m(?:in(?:ute)?s?)?",
    "us": r"us|µs|microseconds?",
    "ns": r"ns|nanoseconds?",
    "s": r"s(?:ec(?:ond)?s?)?",
}
"""How units of durations are written, by their shortest name. Those that begin like others come
first."""

_SECONDS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_UNIT = "|".join(f"(?P<{name}>{written})" for name, written in _NAMES.items())
_PIECE = re.compile(
    rf"\s*(?P<amount>\d{{1,3}}(?:,\d{{3}})+|\d{{1,15}}(?:\.\d{{1,15}})?)\s*(?:{_UNIT})(?![a-zµ])\s*(?:,|and\b)?",
    re.IGNORECASE,
)
_COMPACT = re.compile(r"(?<=[a-zµ])(?=\d)", re.IGNORECASE)
_MOST_PIECES = 8

_IN_WORDS = re.compile(
    r"\b(?:try(?:ing)? again|retry(?:ing)?|wait|come back|resets?|available again|regain access)\b"
    r"[^.\n\d]{0,40}?(?P<when>\d[^\n]{0,80})",
    re.IGNORECASE,
)
"""Where a message says when to come back: what comes behind it is a duration or a date."""

_DATE_IN_WORDS = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})(?:[T ](?:at )?(?P<time>\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})?)?"
)

_ISO_DURATION = re.compile(
    r"P(?:(?P<d>\d{1,9})D)?(?:T(?=\d)(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,9}(?:\.\d{1,9})?)S)?)?"
)
_MOMENT_IN_WORDS = re.compile(r"\d{10,19}(?![\d.]*\d|\s*[a-z])", re.IGNORECASE)

_ASKS = ("retry-after", "x-ratelimit-retry-after")

_RESETS = ("x-ratelimit-reset", "ratelimit-reset", "x-rate-limit-reset", "x-ratelimit-reset-after")
"""Headers with one reset for all limits."""

_SPANS = ("", "-second", "-minute", "-hour", "-day", "-month")
_ANTHROPIC_UNITS = ("requests", "tokens", "input-tokens", "output-tokens")
_LIMITED = (
    *(f"x-ratelimit-{{}}-{of}{span}" for of in ("requests", "tokens") for span in _SPANS),
    *(f"anthropic-ratelimit-{unit}-{{}}" for unit in _ANTHROPIC_UNITS),
)
"""Headers of each limit. inference-docs.cerebras.ai/support/rate-limits names the span of time
behind it."""

_NOTHING_LEFT = re.compile(
    r"\br(?:emaining)?\s*=\s*0\s*[;,]\s*(?:t|reset)\s*=\s*(?P<seconds>\d{1,9})", re.IGNORECASE
)
"""What RFC drafts put into one header: `"default";r=0;t=30`, and before that `limit=9,
remaining=0, reset=30`."""


def asked_delay(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that the server asks us to wait; `retry-after-ms` wins over
    `retry-after`. None: it asked for nothing."""
    now = headers.get("date")
    milliseconds = number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _seconds(milliseconds, 1e-3, now)
    for name in _ASKS:
        wait = seconds_until(headers.get(name), now)
        if wait is not None:
            return wait
    return None


def reset_delay(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds until the limit that refused a call is reset, where the server asks for
    no pause by itself. Only a limit of which nothing is left is meant; None where no header says
    so."""
    now = headers.get("date")
    waits = list[float]()
    for name in _RESETS:
        left = number(headers.get(name.replace("reset", "remaining")))
        until = seconds_until(headers.get(name), now)
        if until is not None and not left:
            waits.append(until)
    for limit in _LIMITED:
        if number(headers.get(limit.format("remaining"))) == 0:
            waits.append(seconds_until(headers.get(limit.format("reset")), now) or 0.0)
    for spent in _NOTHING_LEFT.finditer(headers.get("ratelimit") or ""):
        waits.append(float(spent["seconds"]))
    return _bounded(max(waits, default=0.0)) or None


def told_delay(message: str, server_now: str | None = None) -> float | None:
    """Seconds until the moment for which a message tells us to come back; None where it tells of
    none."""
    for found in _IN_WORDS.finditer(message[:4000]):
        when = found["when"]
        dated = _DATE_IN_WORDS.match(when)
        if dated is not None:
            return _until(_as_date(dated), server_now)
        since_1970 = _MOMENT_IN_WORDS.match(when)
        if since_1970 is not None:
            return _seconds(float(since_1970[0]), 1.0, server_now)
        seconds = _pieces(when, whole=False)
        if seconds is not None:
            return _bounded(seconds)
    return None


def headers_within(value: object) -> dict[str, str]:
    """Headers that a body quotes (OpenRouter's `metadata.headers`), by names in lower case."""
    return {
        name.lower(): str(one)
        for name, one in mapping(value).items()
        if isinstance(one, (str, int, float))
    }


def seconds_until(written: str | None, server_now: str | None = None) -> float | None:
    """Seconds of a wait, or until a moment: a number of seconds, a Go duration (`6m0s`), Unix time
    in any unit, an HTTP date, RFC 3339. `server_now`: the server's own time, if it told it, since
    our clock may be wrong. None: none of these."""
    if not written:
        return None
    value = number(written)
    if value is not None:
        return _seconds(value, 1.0, server_now)
    seconds = _pieces(written, whole=True)
    if seconds is not None:
        return _bounded(seconds)
    iso = _ISO_DURATION.fullmatch(written.strip())
    if iso is not None and any(iso.groups()):
        return _bounded(
            sum(float(amount) * _SECONDS[unit] for unit, amount in iso.groupdict("0").items())
        )
    dated = _DATE_IN_WORDS.fullmatch(written.strip())
    return _until(_as_date(dated) if dated else written, server_now)


def _as_date(found: re.Match[str]) -> str:
    """Returns a date as RFC 3339 writes it; one without a time or a zone is UTC."""
    zone = found["zone"] or "Z"
    return f"{found['day']}T{found['time'] or '00:00'}{'Z' if zone in ('UTC', 'GMT') else zone}"


def _pieces(written: str, *, whole: bool) -> float | None:
    """Seconds of a duration at the beginning of a text, or (`whole`) that is all of it."""
    text = _COMPACT.sub(" ", written[:200])
    at = 0
    seconds = 0.0
    pieces = 0
    while pieces < _MOST_PIECES and (piece := _PIECE.match(text, at)) is not None:
        unit = next(name for name in _SECONDS if piece[name])
        seconds += float(piece["amount"].replace(",", "")) * _SECONDS[unit]
        at = piece.end()
        pieces = pieces + 1
    if not pieces or (whole and text[at:].strip()):
        return None
    return seconds


def _seconds(value: float, unit: float, server_now: str | None) -> float:
    """Returns a number as seconds from now: a wait in units of so many seconds, or Unix time."""
    for least, size in _UNIX_UNITS:
        if value >= least:
            if size:
                return _from_now(value * size, server_now)
            return NONSENSE_S
    return _bounded(max(value, 0.0) * unit)


def _until(written: str, server_now: str | None) -> float | None:
    then = date(written.strip())
    return None if then is None else _from_now(then, server_now)


def _from_now(then: float, server_now: str | None) -> float:
    now = date(server_now) if server_now else None
    return _bounded(max(then - (time.time() if now is None else now), 0.0))


def _bounded(seconds: float) -> float:
    return seconds if seconds <= MAX_ASKED_S else NONSENSE_S


# What the headers of any answer say about the account's limits.

_OPENAI_RATES = tuple(
    f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("remaining", "reset")
)


def rate_state(headers: Mapping[str, str]) -> RateState | None:
    """OpenAI's four `x-ratelimit-*` headers; None when the response has none of them."""
    return _rates(headers, _OPENAI_RATES)


def dated_rate_state(headers: Mapping[str, str]) -> RateState | None:
    """Anthropic's `anthropic-ratelimit-*` headers, which name the moment of a reset (RFC 3339);
    None when the response has none of them. `tokens` is whichever of its limits on tokens is the
    nearest."""
    if "anthropic-ratelimit-tokens-remaining" in headers:
        unit = "tokens"
    else:
        unit = "input-tokens"
    return _rates(
        headers,
        [
            f"anthropic-ratelimit-{of}-{what}"
            for of in ("requests", unit)
            for what in ("remaining", "reset")
        ],
    )


def _rates(headers: Mapping[str, str], names: Sequence[str]) -> RateState | None:
    requests = headers.get(names[0])
    tokens = headers.get(names[2])
    if requests is None and tokens is None:
        return None
    resets = [
        seconds_until(headers.get(name), headers.get("date")) for name in (names[1], names[3])
    ]
    return RateState(_whole(requests), resets[0], _whole(tokens), resets[1])


def _whole(written: str | None) -> int | None:
    value = None if written is None else number(written)
    if value is None:
        return None
    return int(min(max(value, 0.0), MAX_COUNT))
