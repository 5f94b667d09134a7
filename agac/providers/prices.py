"""What a call costs in US dollars: prices from agac.yml, the provider's row or the price library, of tiers and batches.
A price that nobody knows is None: it is said, not guessed, and never 0."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from agac.core.types import Usage
from agac.providers.provider import Price, Provider

BATCH = "batch"  # in the place of a service tier: what requests cost in batches


def price_of(provider: Provider, model: str, service_tier: str | None = None) -> Price | None:
    """A model's price with those of the tools that its provider runs, which no tier changes: see `_tokens`."""
    price = _tokens(provider, model, service_tier)
    return replace(price, uses=provider.tool_prices) if price is not None and provider.tool_prices else price


def _tokens(provider: Provider, model: str, service_tier: str | None) -> Price | None:
    """A model's price: agac.yml's, else the price library's of today, else None. `service_tier` (`flex`, `priority`)
    picks the library's price for it; a price from agac.yml is multiplied by its own factor for the tier where it has
    one. `BATCH` is the ordinary price times the factor that agac.yml names, else the provider's own, unless the library
    has a price for it. The first look-up imports the library: a third of a second."""
    own = _own(provider, model)
    price = own or _listed(provider, model, None)
    factor = {"flex": own.flex, "priority": own.priority, BATCH: own.batch}.get(service_tier or "") if own else None
    if own is None and service_tier:
        listed = _listed(provider, model, service_tier)
        if service_tier != BATCH or listed != price:
            return listed
    if service_tier == BATCH and factor is None:
        factor = provider.batch.price_factor if provider.batch else 1.0
    return price if price is None or factor is None else _times(price, factor)


def _listed(provider: Provider, model: str, service_tier: str | None) -> Price | None:
    if provider.price_id is None:
        return None
    name, _, route = model.partition(":") if provider.routed else (model, "", "")
    if provider.routed and not route:  # who runs the model, and at what price, is decided call by call
        return None
    return _library_price(f"{provider.price_id}_{route}" if route else provider.price_id, name, service_tier)


def lacks_tier(provider: Provider, model: str, service_tier: str) -> bool:
    """Whether the price library knows the model and knows no price of its own for the tier: it is not offered there."""
    if provider.price_id is None or not provider.tiers_priced or _own(provider, model) is not None:
        return False
    ordinary = _library_price(provider.price_id, model, None)
    return ordinary is not None and ordinary == _library_price(provider.price_id, model, service_tier)


def _own(provider: Provider, model: str) -> Price | None:
    """The price that agac.yml gives, or the row."""
    return provider.prices.get(model) or provider.prices.get("*")  # of every model that is not named


def cost(usage: Usage, price: Price | None) -> float | None:
    """Dollars for a call's tokens and for tools its provider ran; None: a price, or a count of tokens, is unknown.
    Tokens that cost nothing need not be counted."""
    if price is None:
        return None
    uses = 0.0
    if used := usage.server_tools:
        if not used.keys() <= price.uses.keys():
            return None
        uses = sum(times * price.uses[name] for name, times in used.items()) / 1000
    if _has_free_tokens(price):
        return uses
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    for start, above in price.above:
        if usage.input_tokens >= start:
            price = above
    cached = min(usage.cached_tokens or 0, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    written, kept = min(usage.cache_write_tokens or 0, usage.input_tokens - cached), 0.0
    if written:
        lasting = min(usage.cache_write_1h_tokens or 0, written)
        write = price.input if price.cache_write is None else price.cache_write
        kept = (written - lasting) * write + lasting * (write if price.cache_write_1h is None else price.cache_write_1h)
    fresh = (usage.input_tokens - cached - written) * price.input
    return (fresh + kept + cached * cached_price + usage.output_tokens * price.output) / 1_000_000 + uses


def _has_free_tokens(price: Price) -> bool:
    """Whether no token costs anything, however long the prompt is and whatever a cache does."""
    columns = (getattr(price, name) for name in _COLUMNS)
    return not any(columns) and all(_has_free_tokens(step) for _, step in price.above)


def dated_versions(provider: Provider, model: str) -> list[str]:
    """Names with a date or version at their end that the price library knows, oldest first; it may lack some."""
    from genai_prices.data_snapshot import get_snapshot

    def named(clause: Any) -> list[str]:
        inner = [name for one in getattr(clause, "or_", ()) for name in named(one)]
        return [*inner, *([clause.equals] if hasattr(clause, "equals") else [])]

    found = (row for one in get_snapshot().providers if one.id == provider.price_id for row in one.models)
    names = {name for row in found for name in (row.id, *named(row.match))}
    return sorted(name for name in names if re.fullmatch(re.escape(model) + r"[-@]\d{3,4}(-?\d\d-?\d\d)?", name))


_COLUMNS = {
    "input": "input_mtok", "output": "output_mtok", "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok", "cache_write_1h": "cache_write_1h_mtok",
}  # fmt: skip


def _times(price: Price, factor: float) -> Price:
    known = {name: value * factor for name in _COLUMNS if (value := getattr(price, name)) is not None}
    return Price(**known, above=tuple((start, _times(step, factor)) for start, step in price.above))


@lru_cache(maxsize=256)
def _library_price(price_id: str, model: str, service_tier: str | None) -> Price | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, price_id, None)
    except LookupError:
        return None
    context: dict[str, Any] = {"service_tier": service_tier} if service_tier else {}
    prices = found.get_prices(datetime.now(tz=UTC), context)
    columns = [getattr(prices, name, None) for name in _COLUMNS.values()]
    # the library's tiers start above their number, ours at it
    starts = {0, *(tier.start + 1 for column in columns for tier in getattr(column, "tiers", ()))}
    known = {start: step for start in sorted(starts) if (step := _flat(columns, start)) is not None}
    base = known.pop(0, None)
    return replace(base, above=tuple(known.items())) if base else None


def _flat(columns: list[Any], input_tokens: int) -> Price | None:
    """The library's columns for a call of this size; None when it lacks the input's or the output's price."""
    found: list[float | None] = []
    for column in columns:
        value = getattr(column, "base", column)
        for tier in getattr(column, "tiers", ()):
            value = tier.price if input_tokens > tier.start else value
        found.append(None if value is None else float(value))
    known = dict(zip(_COLUMNS, found, strict=True))
    return None if known["input"] is None or known["output"] is None else Price(**known)  # type: ignore[arg-type]
