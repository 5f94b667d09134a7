"""What headers say about waiting, at the edges; the words of providers are in contract/other_servers/headers.jsonl."""

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.providers.waits import NONSENSE_S, asked_delay, rate_state, reset_delay, seconds_until, told_delay


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "1e308"}, 86_400.0),
        ({"retry-after-ms": "1e308"}, 86_400.0),
        ({"retry-after": "Fri, 20 Nov 9999 10:00:30 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 86_400.0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 -0000", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30.0),
    ],
)
def test_how_long_a_server_asks_us_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_delay(headers) == seconds


NOW = {"date": "Fri, 20 Nov 2026 10:00:00 GMT"}
AT = 1_795_168_800
"""The same moment in seconds since 1970."""


@pytest.mark.parametrize(
    "written",
    [
        f"{AT + 90}", f"{AT + 90}.0", f"{(AT + 90) * 1000}", f"{(AT + 90) * 10**6}", f"{(AT + 90) * 10**9}",
        "90", "90.0", "90s", "1m30s", "1m 30s", "1 minute 30 seconds", "90 sec", "90000ms",
        "PT90S", "PT1M30S", "P0DT1M30.0S", "2026-11-20 10:01:30 UTC",
        "2026-11-20T10:01:30Z", "2026-11-20T11:01:30+01:00", "Fri, 20 Nov 2026 10:01:30 GMT",
    ],
)  # fmt: skip
def test_a_time_in_any_unit_is_the_same_wait(written: str) -> None:
    assert asked_delay(NOW | {"retry-after": written}) == pytest.approx(90.0)
    limit = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": written}
    found = rate_state(NOW | limit)
    assert found is not None
    assert found.reset_requests == pytest.approx(90.0)
    assert reset_delay(NOW | limit) == pytest.approx(90.0)
    assert reset_delay(NOW | {"x-ratelimit-reset": written}) == pytest.approx(90.0)


@pytest.mark.parametrize("written", [f"{AT - 90}", f"{(AT - 90) * 1000}", "2026-11-20T09:58:30Z", "-90"])
def test_a_moment_that_has_passed_is_no_wait(written: str) -> None:
    assert asked_delay(NOW | {"retry-after": written}) == 0.0


@pytest.mark.parametrize(
    ("written", "seconds"), [("900000000", NONSENSE_S), ("1e30", NONSENSE_S), ("20d", 1_728_000.0)]
)
def test_a_wait_is_bounded(written: str, seconds: float) -> None:
    assert asked_delay({"retry-after": written}) == seconds


def test_milliseconds_may_be_a_time_too() -> None:
    assert asked_delay(NOW | {"retry-after-ms": str((AT + 90) * 1000)}) == pytest.approx(90.0)
    assert asked_delay(NOW | {"retry-after-ms": "90000"}) == pytest.approx(90.0)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests-day": "0", "x-ratelimit-reset-requests-day": "3600.5"},
        {"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "3600.5"},
        {"x-ratelimit-reset-after": "3600.5"},
    ],
)
def test_a_limit_may_name_its_span_of_time(headers: dict[str, str]) -> None:
    assert reset_delay(headers) == 3600.5


def test_one_header_may_hold_a_whole_limit() -> None:
    assert reset_delay({"ratelimit": '"default";r=0;t=30'}) == 30.0
    assert reset_delay({"ratelimit": "limit=9, remaining=0, reset=30"}) == 30.0
    assert reset_delay({"ratelimit": '"default";r=5;t=30'}) is None


def test_only_a_limit_of_which_nothing_is_left_makes_wait() -> None:
    assert reset_delay({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "6m0s"}) is None
    assert reset_delay({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "60"}) is None
    assert reset_delay({}) is None


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Please wait 5 minutes before the next request", 300.0),
        ("Your quota resets at 2026-11-20T12:00:00Z.", 7200.0),
        ("You will regain access on 2026-11-20 at 12:00 UTC.", 7200.0),
        ("Try again in 2 days", 172_800.0),
        ("Retry in 1,200 seconds.", 1200.0),
        ("Your quota will reset on 2026-11-21.", 50_400.0),
        (f"The limit resets at {AT + 90}.", 90.0),
        ("Please try again later. Limit 30000, Used 28000, Requested 4000", None),
        ("Try again.", None),
        ("", None),
    ],
)
def test_what_a_message_says_of_when_to_come_back(message: str, seconds: float | None) -> None:
    assert told_delay(message, NOW["date"]) == (None if seconds is None else pytest.approx(seconds))


def test_a_date_is_measured_by_our_clock_where_the_server_tells_no_time() -> None:
    found = asked_delay({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert found == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0), ("6m0s", 360.0), ("120ms", 0.12), ("7.66s", 7.66), ("2m59.56s", 179.56), ("1h2m3s", 3723.0),
        ("1d", 86400.0), ("0", 0.0), ("12.5", 12.5), ("soon", None), ("1s later", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_how_long_until_a_limit_is_reset(text: str | None, seconds: float | None) -> None:
    assert seconds_until(text) == (None if seconds is None else pytest.approx(seconds))


@given(st.text(), st.text())
def test_no_header_raises(one: str, other: str) -> None:
    asked_delay({"retry-after": one, "date": other})
    seconds_until(one, other)
    told_delay(one, other)
    reset_delay({"x-ratelimit-reset": one, "x-ratelimit-remaining": other, "ratelimit": one})
