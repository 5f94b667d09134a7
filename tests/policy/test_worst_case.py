"""What a call can cost at most, and what it is counted as afterwards."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import ErrorType, RowError
from agac.core.types import Params, Usage
from agac.engine.ask.limits import NOTHING, Amount, WorstCase, counted, max_price_steps
from agac.plan.stage import PlannedModel
from agac.providers.known_providers import SHIPPED, SIMULATOR
from agac.providers.prices import cost, price_of
from agac.providers.provider import Price
from agac.store.records import Attempt, Call, CallTiming, Endpoint

RATES = st.floats(0, 100, allow_nan=False)
FLAT = st.builds(Price, input=RATES, output=RATES, cached_input=st.none() | RATES, cache_write=st.none() | RATES)
STEPS = st.lists(st.tuples(st.integers(1, 3_000), FLAT), max_size=3, unique_by=lambda step: step[0])
PRICES = st.builds(lambda base, steps: replace(base, above=tuple(sorted(steps, key=lambda s: s[0]))), FLAT, STEPS)


def worst_of(price: Price, max_tokens: int, body: bytes, tier: str | None = None, *, batch: bool = False) -> Amount:
    provider, params = replace(SIMULATOR, prices={"m": price}), Params(max_tokens=max_tokens, service_tier=tier)
    return WorstCase(PlannedModel(provider, "m", params), in_dollars=True, batch=batch).of(body)


@given(
    price=PRICES, size=st.integers(0, 4_000), max_tokens=st.integers(1, 2_000),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
def test_no_call_costs_more_than_its_worst_case(
    price: Price, size: int, max_tokens: int, shares: tuple[float, float, float]
) -> None:
    worst = worst_of(price, max_tokens, b"x" * size)
    given_tokens = int(size * shares[0])
    cached = int(given_tokens * shares[2])
    written = int((given_tokens - cached) * shares[1])
    used = Usage(given_tokens, int(max_tokens * shares[1]), cached, cache_write_tokens=written)
    real = cost(used, price)
    assert real is not None
    assert real <= worst.usd * (1 + 1e-9)
    assert (used.input_tokens or 0) + (used.output_tokens or 0) <= worst.tokens


def test_tokens_are_bounded_by_bytes_and_a_price_tells_what_they_cost() -> None:
    body = "žluťoučký kůň 🐎".encode()
    assert worst_of(Price(1.0, 1.0), 10, body) == Amount((len(body) + 10) / 1e6, len(body) + 10, 1)
    model = PlannedModel(SHIPPED["ollama"], "unheard-of", Params(max_tokens=5))
    assert WorstCase(model, in_dollars=False).of(b"12345") == Amount(0.0, 10, 1)
    steps = max_price_steps([Price(2.0, 8.0, above=((100, Price(1.0, 4.0)),))])
    assert steps[-1] == (100, 2.0, 8.0)  # a cheaper step does not lower it


def test_a_worst_case_takes_the_dearest_hour_and_follows_a_price_that_begins_during_the_run() -> None:
    night, now = datetime(2026, 12, 1, 20, tzinfo=UTC).timestamp(), [datetime(2026, 12, 1, tzinfo=UTC).timestamp()]

    def worst(provider: str, name: str) -> WorstCase:
        model = PlannedModel(SHIPPED[provider], name, Params(max_tokens=100))
        return WorstCase(model, in_dollars=True, wall=lambda: now[0])

    off_peak = price_of(SHIPPED["deepseek"], "deepseek-reasoner", at=night)
    assert off_peak is not None
    assert (
        worst("deepseek", "deepseek-reasoner").of(b"x" * 100).usd > 3 * 100 * (off_peak.input + off_peak.output) / 1e6
    )
    gemini = worst("gemini", "gemini-3.6-flash")
    before = gemini.of(b"x").usd
    now[0] = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert gemini.of(b"x").usd == pytest.approx(2 * before)


@pytest.mark.parametrize(("tier", "factor"), [(None, 2), ("auto", 2), ("priority", 2), ("flex", 1)])
def test_the_dearest_tier_that_may_be_served_counts_and_batches_have_their_own(tier: str | None, factor: int) -> None:
    price = Price(1.0, 4.0, flex=0.5, priority=2.0, batch=0.25)
    assert worst_of(price, 100, b"x" * 100, tier).usd == pytest.approx(factor * 500 / 1e6)
    assert worst_of(price, 10, b"x" * 100, tier, batch=True) == Amount((25 + 10) / 1e6, 110, 1)


WORST = Amount(0.5, 1_000, 1)
CALL = Call(
    Attempt(0, b"", 0, 1, "ask"), Endpoint("p", "u", "m", False), CallTiming(0.0, 0.0), 200,
    usage=Usage(10, 20), cost=0.01,
)  # fmt: skip
FAILED = RowError(ErrorType.PROVIDER_ERROR, "x")


@pytest.mark.parametrize(
    ("changes", "real", "unsure"),
    [
        ({}, Amount(0.01, 30, 1), NOTHING),
        ({"status": 429, "error": FAILED, "usage": Usage(), "cost": None}, Amount(0.0, 0, 1), NOTHING),
        ({"status": 500, "error": FAILED, "usage": Usage(), "cost": None}, Amount(0.0, 0, 1), NOTHING),
        ({"status": None, "error": FAILED, "usage": Usage(), "cost": None}, Amount(0.0, 0, 1), NOTHING),
        # a time-out, of ours or of a gateway: the work may have been done
        ({"status": None, "ambiguous": True, "usage": Usage(), "cost": None}, WORST, Amount(0.5, 1_000)),
        ({"status": 504, "ambiguous": True, "usage": Usage(), "cost": None}, WORST, Amount(0.5, 1_000)),
        # a reply without usage, or with half of it
        ({"usage": Usage(), "cost": None}, WORST, Amount(0.5, 1_000)),
        ({"usage": Usage(10, None), "cost": None}, WORST, Amount(0.5, 990)),
        # more than was set aside: the real counts
        ({"usage": Usage(1_500, 20), "cost": 0.8}, Amount(0.8, 1_520, 1), NOTHING),
    ],
)
def test_a_call_is_counted_as_what_is_known_of_it_and_the_worst_for_the_rest(
    changes: dict[str, Any], real: Amount, unsure: Amount
) -> None:
    assert counted(CALL._replace(**changes), WORST) == (real, unsure)
