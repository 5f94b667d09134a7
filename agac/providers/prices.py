"""What a call costs in US dollars: prices from agac.yml, the provider's row or the price library,
of tiers and batches. A price that nobody knows is None: it is said, not guessed, and never 0."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from functools import lru_cache
from typing import Any, Literal

from agac.core.types import Usage
from agac.providers.provider import Price, Provider

BATCH = "batch"  # in the place of a service tier: what requests cost in batches


DAY = 86_400  # seconds

Hours = Literal["then", "dearest", "cheapest"]
"""Some models cost more at some hours: their price at that time, or the highest or lowest of a
day."""


def price_of(
    provider: Provider, model: str, service_tier: str | None = None, at: float | None = None
) -> Price | None:
    """Returns a model's price `at` a time (seconds since 1970; None: now), with those of the tools
    that its provider runs, which no tier changes: see `_tokens`."""
    return _price(provider, model, service_tier, "then", at)


def dearest_price(
    provider: Provider, model: str, service_tier: str | None = None, at: float | None = None
) -> Price | None:
    """Returns what a model costs at most on the day of `at` (UTC) and the next one, whatever the
    hour: for quotes and budgets. Each kind of token has its own highest price."""
    return _price(provider, model, service_tier, "dearest", at)


def cheapest_price(
    provider: Provider, model: str, service_tier: str | None = None, at: float | None = None
) -> Price | None:
    """Returns what a model costs at least on the day of `at` (UTC) and the next one, whatever the
    hour."""
    return _price(provider, model, service_tier, "cheapest", at)


def _price(
    provider: Provider, model: str, service_tier: str | None, hours: Hours, at: float | None
) -> Price | None:
    price = _tokens(provider, model, service_tier, hours, time.time() if at is None else at)
    if price is not None and provider.tool_prices:
        return replace(price, uses=provider.tool_prices)
    return price


def _tokens(
    provider: Provider, model: str, service_tier: str | None, hours: Hours, at: float
) -> Price | None:
    """Returns a model's price: agac.yml's, else the price library's, else None. `service_tier`
    (`flex`, `priority`) picks the library's price for it; a price from agac.yml is multiplied by
    its own factor for the tier where it has one. `BATCH` is the ordinary price times the factor
    that agac.yml names, else the provider's own, unless the library has a price for it. The first
    look-up imports the library: a third of a second."""
    batch_factor = provider.batch.price_factor if provider.batch else 1.0
    price = _own(provider, model)
    if price is not None:
        factor = _own_factor(price, service_tier)
        if service_tier == BATCH and factor is None:
            factor = batch_factor
        return price if factor is None else _times(price, factor)
    price = _listed(provider, model, None, hours, at)
    if not service_tier:
        return price
    listed = _listed(provider, model, service_tier, hours, at)
    if service_tier != BATCH or listed != price:
        return listed
    return None if price is None else _times(price, batch_factor)


def _own_factor(price: Price, service_tier: str | None) -> float | None:
    """Returns the factor that a price from agac.yml has for a tier, or for batches."""
    factors = {"flex": price.flex, "priority": price.priority, BATCH: price.batch}
    return factors.get(service_tier or "")


def _listed(
    provider: Provider, model: str, service_tier: str | None, hours: Hours, at: float
) -> Price | None:
    if provider.price_id is None:
        return None
    name, _, route = model.partition(":") if provider.routed else (model, "", "")
    # who runs the model, and at what price, is decided call by call
    if provider.routed and not route:
        return None
    price_id = f"{provider.price_id}_{route}" if route else provider.price_id
    return _library_price(price_id, name, service_tier, hours, at)


def lacks_tier(provider: Provider, model: str, service_tier: str) -> bool:
    """True if the price library knows the model and knows no price of its own for the tier: it is
    not offered there."""
    if provider.price_id is None or not provider.tiers_priced or _own(provider, model) is not None:
        return False
    now = time.time()
    ordinary = _library_price(provider.price_id, model, None, "dearest", now)
    return ordinary is not None and ordinary == _library_price(
        provider.price_id, model, service_tier, "dearest", now
    )


def _own(provider: Provider, model: str) -> Price | None:
    """Returns the price that agac.yml gives, or the row."""
    # of every model that is not named
    return provider.prices.get(model) or provider.prices.get("*")


def cost(usage: Usage, price: Price | None) -> float | None:
    """Returns the dollars for a call's tokens and for tools its provider ran; None: a price, or a
    count of tokens, is unknown. Tokens that cost nothing need not be counted."""
    if price is None:
        return None
    uses = _cost_of_uses(usage, price)
    if uses is None or _has_free_tokens(price):
        return uses
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    price = _at_size(price, usage.input_tokens)
    cached = min(usage.cached_tokens or 0, usage.input_tokens)
    written = min(usage.cache_write_tokens or 0, usage.input_tokens - cached)
    cached_price = price.input if price.cached_input is None else price.cached_input
    kept = _cost_of_writing(usage, price, written)
    fresh = (usage.input_tokens - cached - written) * price.input
    return (
        fresh + kept + cached * cached_price + usage.output_tokens * price.output
    ) / 1_000_000 + uses


def _cost_of_uses(usage: Usage, price: Price) -> float | None:
    """Returns the dollars for tools that the provider ran; None: the price of one is unknown."""
    used = usage.server_tools
    if not used:
        return 0.0
    if not used.keys() <= price.uses.keys():
        return None
    return sum(times * price.uses[name] for name, times in used.items()) / 1000


def _cost_of_writing(usage: Usage, price: Price, written: int) -> float:
    """Returns what tokens cost that were written to a cache, in millionths of a dollar."""
    if not written:
        return 0.0
    lasting = min(usage.cache_write_1h_tokens or 0, written)
    brief_price = price.input if price.cache_write is None else price.cache_write
    lasting_price = brief_price if price.cache_write_1h is None else price.cache_write_1h
    return (written - lasting) * brief_price + lasting * lasting_price


def _has_free_tokens(price: Price) -> bool:
    """True if no token costs anything, however long the prompt is and whatever a cache does."""
    columns = (getattr(price, name) for name in _COLUMNS)
    return not any(columns) and all(_has_free_tokens(step) for _, step in price.above)


def dated_versions(provider: Provider, model: str) -> list[str]:
    """Names with a date or version at their end that the price library knows, oldest first; it may
    lack some."""
    from genai_prices.data_snapshot import get_snapshot

    def named(clause: Any) -> list[str]:
        inner = [name for one in getattr(clause, "or_", ()) for name in named(one)]
        return [*inner, *([clause.equals] if hasattr(clause, "equals") else [])]

    found = (
        row for one in get_snapshot().providers if one.id == provider.price_id for row in one.models
    )
    names = {name for row in found for name in (row.id, *named(row.match))}
    return sorted(
        name
        for name in names
        if re.fullmatch(re.escape(model) + r"[-@]\d{3,4}(-?\d\d-?\d\d)?", name)
    )


_COLUMNS = {
    "input": "input_mtok", "output": "output_mtok", "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok", "cache_write_1h": "cache_write_1h_mtok",
}  # fmt: skip


def _times(price: Price, factor: float) -> Price:
    known = {
        name: value * factor for name in _COLUMNS if (value := getattr(price, name)) is not None
    }
    return Price(**known, above=tuple((start, _times(step, factor)) for start, step in price.above))


@dataclass(frozen=True)
class _Schedule:
    """A model of the price library, and when its prices may change."""

    found: Any
    """The library's `ModelInfo`."""
    dates: tuple[int, ...]
    """Days since 1970 (UTC) with which another price begins."""
    times: tuple[int, ...]
    """Seconds of a day (UTC) at which another price begins, midnight included."""

    def period(self, at: float) -> int:
        """Returns the same number of seconds since 1970 for all times between two changes of the
        price."""
        day, second = divmod(int(at), DAY)
        passed = bisect_right(self.dates, day)
        return (self.dates[passed - 1] if passed else 0) * DAY + self.times[
            bisect_right(self.times, second) - 1
        ]

    def periods(self, day: int) -> tuple[int, ...]:
        """Returns all periods of a day (since 1970) and of the next one, in order."""
        begins = (
            self.period((day + more) * DAY + second) for more in (0, 1) for second in self.times
        )
        return tuple(dict.fromkeys(begins))


@lru_cache(maxsize=1024)
def _schedule(price_id: str, model: str) -> _Schedule | None:
    """Returns the price library's entry for a model; None: it has none."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, price_id, None)
    except LookupError:
        return None
    conditional = [
        *(found.prices if isinstance(found.prices, list) else ()),
        *(found.price_variants or ()),
    ]
    dates = set[int]()
    times = {0}
    for price in conditional:
        begins = getattr(price.constraint, "start_date", None)
        dates |= set() if begins is None else {(begins - date(1970, 1, 1)).days}
        bounds = (getattr(price.constraint, name, None) for name in ("start_time", "end_time"))
        times |= {_second_of_day(bound) for bound in bounds if bound is not None}
    return _Schedule(found, tuple(sorted(dates)), tuple(sorted(times)))


def _second_of_day(bound: time_of_day) -> int:
    """Returns the second of a day in UTC. The library takes a time without a zone for one in
    UTC."""
    aware = bound if bound.tzinfo else bound.replace(tzinfo=UTC)
    utc = datetime.combine(date(1970, 1, 2), aware).astimezone(UTC)
    return utc.hour * 3600 + utc.minute * 60 + utc.second


def _library_price(
    price_id: str, model: str, service_tier: str | None, hours: Hours, at: float
) -> Price | None:
    """Returns the library's price. What it says of a period is read once."""
    schedule = _schedule(price_id, model)
    if schedule is None:
        return None
    if hours == "then":
        return _price_in(price_id, model, service_tier, schedule.period(at))
    return _price_of_day(price_id, model, service_tier, schedule.periods(int(at) // DAY), hours)


@lru_cache(maxsize=1024)
def _price_of_day(
    price_id: str, model: str, service_tier: str | None, periods: tuple[int, ...], hours: Hours
) -> Price | None:
    """Returns the highest or lowest price of some periods; None if that of one is unknown."""
    found = [_price_in(price_id, model, service_tier, period) for period in periods]
    prices = [price for price in found if price is not None]
    if len(prices) < len(found):
        return None
    return _of_all(prices, max if hours == "dearest" else min)


def _of_all(prices: Sequence[Price], pick: Callable[..., float]) -> Price:
    """For each kind of token, and for each size of a request, the price that `pick` takes."""
    base = _picked(prices, pick)
    starts = sorted({start for price in prices for start, _ in price.above})
    steps = (
        (start, _picked([_at_size(price, start) for price in prices], pick)) for start in starts
    )
    return replace(base, above=tuple(steps))


def _picked(prices: Sequence[Price], pick: Callable[..., float]) -> Price:
    known = dict[str, Any]()
    for name in _COLUMNS:
        values = [getattr(price, name) for price in prices]
        # a kind of input without a price costs what all input does
        if any(value is not None for value in values):
            pairs = zip(values, prices, strict=True)
            known[name] = pick(price.input if value is None else value for value, price in pairs)
    return Price(**known)


def _at_size(price: Price, input_tokens: int) -> Price:
    """Returns the price of a request of this many tokens."""
    for start, above in price.above:
        if input_tokens >= start:
            price = above
    return price


@lru_cache(maxsize=1024)
def _price_in(price_id: str, model: str, service_tier: str | None, period: int) -> Price | None:
    """Returns the library's price in a period; None if it lacks the input's or the output's
    price."""
    schedule = _schedule(price_id, model)
    assert schedule is not None
    context: dict[str, Any] = {"service_tier": service_tier} if service_tier else {}
    prices = schedule.found.get_prices(datetime.fromtimestamp(period, UTC), context)
    columns = [getattr(prices, name, None) for name in _COLUMNS.values()]
    # the library's tiers start above their number, ours at it
    starts = {0, *(tier.start + 1 for column in columns for tier in getattr(column, "tiers", ()))}
    known = {start: step for start in sorted(starts) if (step := _flat(columns, start)) is not None}
    base = known.pop(0, None)
    if base:
        return replace(base, above=tuple(known.items()))
    return None


def _flat(columns: list[Any], input_tokens: int) -> Price | None:
    """Returns the library's columns for a call of this size; None if it lacks the input's or the
    output's price."""
    found: list[float | None] = []
    for column in columns:
        value = getattr(column, "base", column)
        for tier in getattr(column, "tiers", ()):
            value = tier.price if input_tokens > tier.start else value
        found.append(None if value is None else float(value))
    known = dict(zip(_COLUMNS, found, strict=True))
    if known["input"] is None or known["output"] is None:
        return None
    return Price(**known)  # type: ignore[arg-type]
