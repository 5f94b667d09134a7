"""What headers say about waiting and about the account's limits."""

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.types import RateState
from agac.providers.error_tables import asked_delay, duration, rate_state


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "120"}, 0.12),
        ({"retry-after-ms": "120", "retry-after": "9"}, 0.12),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "1e308"}, 86_400.0),
        ({"retry-after-ms": "1e308"}, 86_400.0),
        ({"retry-after": "Fri, 20 Nov 9999 10:00:30 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 86_400.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Fri, 20 Nov 2026 11:00:30 +0100", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 -0000", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Fri, 20 Nov 2026 09:00:00 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 0.0),
    ],
)
def test_how_long_a_server_asks_us_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_delay(headers) == seconds


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
    assert duration(text) == (None if seconds is None else pytest.approx(seconds))


def test_limits_are_read_from_a_response_as_far_as_it_tells_them() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert rate_state(headers) == RateState(59, 1.0, 149984, 360.0)
    assert rate_state({"x-ratelimit-remaining-tokens": "7"}) == RateState(remaining_tokens=7)
    assert rate_state({"x-ratelimit-limit-requests": "60"}) is None


@given(st.text(), st.text())
def test_no_header_raises(one: str, other: str) -> None:
    asked_delay({"retry-after": one, "date": other})
    duration(one)
