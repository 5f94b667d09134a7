"""What agac knows about an endpoint: the columns of the provider table; and what a call costs in US dollars.

A price that nobody knows is None: it is said, not guessed, and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from agac.core.keys import account_mark
from agac.core.types import Usage
from agac.providers.batch import BatchTraits

Structured = Literal["json_schema", "json_object", "none"]
"""How a provider can be held to a schema: by the schema itself, to JSON of any shape, or only by being told."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an account may use at once and a minute; None: not limited by us."""

    concurrency: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    enqueued_tokens: int | None = None
    """Prompt tokens that may wait in batches of one model at once; None: not known, what a lane shows is learned."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `cached_input` None: cached tokens cost what others do.

    `batch`, `flex`, `priority` are factors for that mode and those service tiers; None: not known, full price.

    `above`: from so many input tokens on, all tokens of the call have the other price; the highest such step counts.
    """

    input: float
    output: float
    cached_input: float | None = None
    batch: float | None = None
    flex: float | None = None
    priority: float | None = None
    above: tuple[tuple[int, Price], ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """How a model's thinking is turned on and off: what is added to the request; None: it cannot be. `efforts`: it
    takes those too; `tokens`: it takes a number of tokens to think with."""

    on: Mapping[str, Any] | None
    off: Mapping[str, Any] | None
    efforts: bool = False
    tokens: bool = False


@dataclass(frozen=True, slots=True)
class Provider:
    """One endpoint and what is known about it."""

    name: str
    """How model strings and agac.yml call it."""
    dialect: str
    """The key of its dialect in `agac.providers.table.DIALECTS`."""
    base_url: str
    """What stands before the dialect's path, without a slash at its end. Empty: embedded and not yet started. `${VAR}`
    in a shipped row is what the user's environment says."""
    key_variable: str | None = None
    """The environment variable that holds the key; None: no key is sent, unless agac.yml gives one."""
    key_optional: bool = False
    """Can be asked without a key."""
    api_key: str | None = field(default=None, repr=False)
    """The key itself."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Sent with every request, after the dialect's own."""
    structured: Structured = "json_schema"
    """How a schema is enforced."""
    strict_schema: bool = False
    """Knows OpenAI's `strict: true`; it is sent for schemas that lie inside that subset."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The wire name of `max_tokens`."""
    max_tokens: int = 4096
    """The `max_tokens` that is sent where nothing is said, by a dialect that cannot do without."""
    renames: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Wire names of other parameters where they differ from OpenAI's."""
    extras: tuple[str, ...] | None = None
    """Which parameters beyond OpenAI's it takes (`top_k`, `min_p`, `repetition_penalty`); None: not known, all are
    sent."""
    seeds: bool = True
    """Can be told a seed; False: it refuses to be told. (Where the dialect has no word for it nothing is told.)"""
    service_tiers: tuple[str, ...] | None = None
    """The service tiers that it has; None: not known, any is sent."""
    efforts: tuple[str, ...] | None = None
    """The efforts of thinking that it knows; None: not known, any is sent."""
    unsampled: tuple[str, ...] = ()
    """How the names of models begin that refuse `temperature`, `top_p` and `top_k`."""
    routed: bool = False
    """Hands calls on to whoever is named after a colon: `model:route`."""
    switches: Mapping[str, Switch] = field(default_factory=dict, hash=False)
    """How thinking is turned on and off, by model; `*`: any other. A model that has none takes efforts."""
    stream_usage: bool = True
    """Is to be told that a stream should count its tokens (`stream_options`); False: it refuses to be told."""
    limits: Limits = field(default_factory=Limits)
    """What the user allows; the shipped rows leave it open, since it differs by account."""
    prices: Mapping[str, Price] = field(default_factory=dict, hash=False)
    """Prices by model that win over the price library's."""
    price_id: str | None = None
    """The provider's name in the price library; None: only `prices` counts. A route is added to it."""
    tiers_priced: bool = False
    """The price library has the prices of its service tiers too."""
    simulated: bool = False
    """Its replies come from no model: shown as simulated, and its costs as `simulated $`."""
    embedded: bool = False
    """agac starts it by itself for the time of a run."""
    batch: BatchTraits | None = None
    """Its batch API; None: sync only."""
    missing_variables: tuple[str, ...] = ()
    """Variables that the row needs and the environment lacks: an error as soon as the provider is used."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values that must never be shown: the key, and whatever came from the environment into a header or the URL."""

    @property
    def account(self) -> str:
        """Tells its accounts apart and holds nothing secret. The port of an embedded one is another each time."""
        return account_mark("" if self.embedded else self.base_url, self.api_key)

    def switch_of(self, model: str) -> Switch | None:
        """How a model's thinking is turned on and off, None when it has no switch. `model` may hold a route."""
        name = model.partition(":")[0] if self.routed else model
        return self.switches.get(name) or self.switches.get("*")

    def meant_reasoning(self, model: str, value: str | None) -> str | None:
        """`off` as the effort `none` where there is no switch, and the other way round."""
        switch = self.switch_of(model)
        if value == "off" and switch is None:
            return "none"
        knows_none = switch is None or (switch.efforts and (self.efforts is None or "none" in self.efforts))
        return "off" if value == "none" and not knows_none else value


ANY_MODEL = "*"
"""In a provider's `prices`: the price of every model that is not named."""


BATCH = "batch"
"""In the place of a service tier: what requests cost in batches."""


def price_of(provider: Provider, model: str, service_tier: str | None = None) -> Price | None:
    """A model's price: agac.yml's, else the price library's of today, else None.

    `service_tier` (`flex`, `priority`) picks the library's price for it; a price from agac.yml is multiplied by its own
    factor for the tier where it has one. `BATCH` is the ordinary price times the factor that agac.yml names, else the
    provider's own, unless the library has a price for it. The first look-up in the library imports it, which takes a
    third of a second.
    """
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
    """The price library's."""
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
    return provider.prices.get(model) or provider.prices.get(ANY_MODEL)


def cost(usage: Usage, price: Price | None) -> float | None:
    """Dollars for a call's tokens; None when the price or one of the two counts is not known."""
    if price is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    for start, above in price.above:
        if usage.input_tokens >= start:
            price = above
    cached = min(usage.cached_tokens or 0, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    fresh = (usage.input_tokens - cached) * price.input
    return (fresh + cached * cached_price + usage.output_tokens * price.output) / 1_000_000


def _times(price: Price, factor: float) -> Price:
    cached = None if price.cached_input is None else price.cached_input * factor
    above = tuple((start, _times(step, factor)) for start, step in price.above)
    return Price(input=price.input * factor, output=price.output * factor, cached_input=cached, above=above)


@lru_cache(maxsize=256)
def _library_price(price_id: str, model: str, service_tier: str | None) -> Price | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, price_id, None)
    except LookupError:
        return None
    context: dict[str, Any] = {"service_tier": service_tier} if service_tier else {}
    prices = found.get_prices(datetime.now(tz=UTC), context)
    columns = (prices.input_mtok, prices.output_mtok, prices.cache_read_mtok)
    # the library's tiers start above their number, ours at it
    starts = {0, *(tier.start + 1 for column in columns for tier in getattr(column, "tiers", ()))}
    known = {start: step for start in sorted(starts) if (step := _flat(columns, start)) is not None}
    base = known.pop(0, None)
    return replace(base, above=tuple(known.items())) if base else None


def _flat(columns: tuple[Any, Any, Any], input_tokens: int) -> Price | None:
    """The library's columns for a call of this size; None when it lacks the input's or the output's price."""
    found: list[float | None] = []
    for column in columns:
        value = getattr(column, "base", column)
        for tier in getattr(column, "tiers", ()):
            value = tier.price if input_tokens > tier.start else value
        found.append(None if value is None else float(value))
    given, made, cached = found
    return None if given is None or made is None else Price(given, made, cached)
