"""What a call costs: agac.yml's price first, then the price library's, and nothing is guessed."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.types import Usage
from agac.providers.known_providers import OPENAI, SHIPPED, SIMULATOR
from agac.providers.prices import BATCH, cheapest_price, cost, dearest_price, lacks_tier, price_of
from agac.providers.provider import BatchTraits, Price, Provider
from agac.providers.table import build_providers
from agac.spec.project_models import ProviderSpec

MILLION = 1_000_000


def known(provider: Provider, model: str, tier: str | None = None, at: float | None = None) -> Price:
    found = price_of(provider, model, tier, at)
    assert found is not None
    return found


PRICE = Price(input=0.25, output=2.0, cached_input=0.025)
KEPT = Price(1.0, 5.0, 0.1, cache_write=1.25, cache_write_1h=2.0, uses={"web_search": 10.0, "web_fetch": 0.0})
LONG = Price(1.0, 10.0, above=((200_001, Price(2.0, 15.0)), (500_001, Price(4.0, 20.0))))


@pytest.mark.parametrize(
    ("usage", "price", "dollars"),
    [
        (Usage(MILLION, MILLION), PRICE, 2.25),
        (Usage(MILLION, 0, cached_tokens=MILLION), PRICE, 0.025),
        (Usage(MILLION, 0, cached_tokens=MILLION // 2), PRICE, 0.1375),
        (Usage(0, MILLION, reasoning_tokens=MILLION), PRICE, 2.0),
        # cached tokens cost what others do where no price says otherwise
        (Usage(MILLION, 0, cached_tokens=MILLION), Price(0.25, 2.0), 0.25),
        # so do those that are written to a cache; each token counts once
        (Usage(MILLION, 0, cache_write_tokens=MILLION), PRICE, 0.25),
        (Usage(MILLION, 0, cache_write_tokens=MILLION), KEPT, 1.25),
        (Usage(MILLION, 0, 400_000, cache_write_tokens=600_000, cache_write_1h_tokens=200_000), KEPT, 0.94),
        (Usage(MILLION, 0, MILLION, cache_write_tokens=MILLION, cache_write_1h_tokens=MILLION), KEPT, 0.1),
        # tools that the provider ran: of a price that nobody knows nothing is said
        (Usage(0, 0, server_tools={"web_search": 3, "web_fetch": 2}), KEPT, 0.03),
        (Usage(MILLION, 0, server_tools={"x_search": 1}), KEPT, None),
        # a long prompt can have another price
        (Usage(200_000, 0), LONG, 0.2),
        (Usage(200_001, 0), LONG, 0.400002),
        (Usage(MILLION, MILLION), LONG, 24.0),
        # what was not counted or has no price has no cost
        (Usage(), PRICE, None),
        (Usage(input_tokens=5), PRICE, None),
        (Usage(output_tokens=5), PRICE, None),
        (Usage(1, 1), None, None),
        # but where no token costs anything
        (Usage(), Price(0.0, 0.0), 0.0),
        (Usage(), Price(0.0, 0.0, cache_write=1.0), None),
        (Usage(), Price(0.0, 0.0, above=((200_000, Price(1.0, 0.0)),)), None),
        (Usage(server_tools={"web_search": 1}), Price(0.0, 0.0, uses={"web_search": 10.0}), 0.01),
    ],
)
def test_what_a_call_costs(usage: Usage, price: Price | None, dollars: float | None) -> None:
    assert cost(usage, price) == (None if dollars is None else pytest.approx(dollars))


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**10))
def test_a_cost_is_never_negative(given_tokens: int, made: int, cached: int) -> None:
    found = cost(Usage(given_tokens, made, cached), Price(0.25, 2.0, 0.025))
    assert found is not None
    assert found >= 0


def test_what_the_library_knows_of_models_and_routes_and_agac_ymls_price_wins_over_it() -> None:
    own = Provider("openai", "openai-chat", "https://h/v1", prices={"gpt-4o": Price(1, 2)}, price_id="openai")
    assert price_of(own, "gpt-4o") == Price(1, 2)
    assert known(OPENAI, "gpt-4o") != Price(1, 2)
    found = known(OPENAI, "gpt-4o-mini-2024-07-18")  # a price that has not changed since 2024
    assert (found.input, found.cached_input, found.output) == (0.15, 0.075, 0.6)
    assert known(OPENAI, "gpt-5.4-mini", "flex").input < known(OPENAI, "gpt-5.4-mini").input
    assert known(OPENAI, "gpt-4-turbo").cached_input is None
    by_size = known(SHIPPED["gemini"], "gemini-2.5-pro")
    [(start, above)] = by_size.above
    assert (start, by_size.input, above.input) == (200_001, 1.25, 2.5)
    assert price_of(OPENAI, "tts-1") is None  # paid by the character
    assert price_of(OPENAI, "gpt-nonsense") is None
    assert price_of(Provider("local", "openai-chat", "http://127.0.0.1/v1"), "gpt-4o") is None
    assert price_of(SIMULATOR, "small") == price_of(SIMULATOR, "anything") == Price(0.25, 2.0, 0.025, 0.5)


@pytest.mark.parametrize("name", [name for name, row in SHIPPED.items() if row.price_id])
def test_the_library_knows_each_provider_that_the_table_names(name: str) -> None:
    from genai_prices.data_snapshot import get_snapshot

    row, known = SHIPPED[name], {provider.id for provider in get_snapshot().providers}
    assert row.price_id in known or (row.routed and any(one.startswith(f"{row.price_id}_") for one in known))


def test_the_library_bounds_prices_by_dates_and_times_alone() -> None:
    """Another kind of condition would need its own change points: until then each call has a wrong price."""
    from genai_prices.data_snapshot import get_snapshot
    from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

    for model in (model for provider in get_snapshot().providers for model in provider.models):
        conditional = [*(model.prices if isinstance(model.prices, list) else ()), *(model.price_variants or ())]
        for price in conditional:
            assert isinstance(price.constraint, StartDateConstraint | TimeOfDateConstraint | None), model.id


def seconds(*when: int) -> float:
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(("model", "times"), [("deepseek-reasoner", 4), ("deepseek-v4-pro", 2), ("deepseek-flash", 2)])
def test_a_price_is_that_of_the_hour_of_the_call(model: str, times: int) -> None:
    deepseek, night, day = SHIPPED["deepseek"], seconds(2026, 12, 1, 20), seconds(2026, 12, 1, 2)
    cheap, dear = price_of(deepseek, model, at=night), price_of(deepseek, model, at=day)
    assert cheap is not None
    assert dear is not None
    assert dear.output / cheap.output == pytest.approx(times, rel=0.03)
    for at in (night, day):  # whatever the hour, a quote and a worst case take the dearest
        assert dearest_price(deepseek, model, at=at) == dear
        assert cheapest_price(deepseek, model, at=at) == cheap


def test_a_price_changes_at_the_very_second() -> None:
    deepseek, begins = SHIPPED["deepseek"], seconds(2026, 12, 1, 1)
    before, after = (price_of(deepseek, "deepseek-flash", at=begins + more) for more in (-0.001, 0.0))
    assert before is not None
    assert after is not None
    assert after.input == 2 * before.input
    ends = seconds(2026, 12, 1, 4)
    assert price_of(deepseek, "deepseek-flash", at=ends - 0.001) == after
    assert price_of(deepseek, "deepseek-flash", at=ends) == before


def test_a_price_with_a_date_holds_from_it_on_and_bounds_quotes_of_the_day_before() -> None:
    gemini, model = SHIPPED["gemini"], "gemini-3.6-flash"
    assert price_of(gemini, model, at=seconds(2026, 12, 31, 23, 59)) == known(gemini, model, at=seconds(2026, 12, 1))
    after = known(gemini, model, at=seconds(2027, 1, 1))
    assert after.input == 2 * known(gemini, model, at=seconds(2026, 12, 31)).input
    assert dearest_price(gemini, model, at=seconds(2026, 12, 31)) == after
    assert dearest_price(gemini, model, at=seconds(2026, 12, 30)) == known(gemini, model, at=seconds(2026, 12, 30))


@pytest.mark.parametrize("tier", [None, "flex", "priority", BATCH])
def test_of_a_price_that_stays_the_same_there_is_no_dearest_hour(tier: str | None) -> None:
    for row, model in ((OPENAI, "gpt-5.4-mini"), (SHIPPED["gemini"], "gemini-2.5-pro"), (SIMULATOR, "small")):
        assert dearest_price(row, model, tier) == cheapest_price(row, model, tier) == price_of(row, model, tier)


def test_a_routes_price_is_that_of_who_runs_the_model() -> None:
    hf = SHIPPED["hf"]
    assert price_of(hf, "openai/gpt-oss-120b:cerebras") is not None
    assert price_of(hf, "openai/gpt-oss-120b:cerebras") != price_of(hf, "openai/gpt-oss-120b:novita")
    assert price_of(hf, "openai/gpt-oss-120b") is None  # nobody knows yet who will run it


@pytest.mark.parametrize(
    ("provider", "model", "tier", "lacks"),
    [
        ("openai", "gpt-5.4-mini", "flex", False),
        ("responses", "gpt-5.4-mini", "flex", False),
        ("openai", "gpt-4.1-mini", "flex", True),
        ("openai", "gpt-4.1-mini", "priority", False),
        ("openai", "a-model-of-tomorrow", "flex", False),
        ("groq", "openai/gpt-oss-120b", "flex", False),  # the library knows no tiers of groq
    ],
)
def test_which_models_have_a_tier(provider: str, model: str, tier: str, lacks: bool) -> None:
    row = SHIPPED[provider]
    assert lacks_tier(row, model, tier) is lacks
    assert not lacks_tier(replace(row, prices={model: Price(1.0, 2.0, flex=0.5)}), model, tier)  # agac.yml's last word


TIERS = Price(input=1.0, output=10.0, cached_input=0.1, flex=0.5, priority=2.0)


@pytest.mark.parametrize(
    ("tier", "factor"),
    [(None, 1.0), ("", 1.0), ("auto", 1.0), ("default", 1.0), ("flex", 0.5), ("priority", 2.0), ("scale", 1.0)],
)
def test_a_tier_has_agac_ymls_factor_for_every_kind_of_token(tier: str | None, factor: float) -> None:
    found = price_of(Provider("p", "openai-chat", "https://h/v1", prices={"m": TIERS}), "m", tier)
    assert cost(Usage(MILLION, 0), found) == pytest.approx(1.0 * factor)
    assert cost(Usage(MILLION, 0, cached_tokens=MILLION), found) == pytest.approx(0.1 * factor)
    assert cost(Usage(0, MILLION), found) == pytest.approx(10.0 * factor)


def test_what_a_tier_costs_without_a_factor_and_without_a_price_of_cached_input() -> None:
    provider = Provider("p", "openai-chat", "https://h/v1", prices={"m": Price(1.0, 10.0)})
    assert price_of(provider, "m", "flex") == price_of(provider, "m", "priority") == Price(1.0, 10.0)
    provider = Provider("p", "openai-chat", "https://h/v1", prices={"*": Price(1.0, 10.0, flex=0.5)})
    assert cost(Usage(MILLION, 0, cached_tokens=MILLION), price_of(provider, "m", "flex")) == pytest.approx(0.5)


def test_what_caches_and_a_providers_tools_cost_is_known_and_agac_yml_wins() -> None:
    found = known(SHIPPED["anthropic"], "claude-sonnet-4-5-20250929", BATCH)
    assert found.cache_write == pytest.approx(found.input * 1.25)
    assert found.cache_write_1h == pytest.approx(found.input * 2)
    assert found.uses["web_search"] == 10.0  # a batch makes searches no cheaper
    assert known(SHIPPED["xai-responses"], "grok-4.6").uses["x_search"] == 5.0
    own = ProviderSpec.model_validate(
        {"tool_prices": {"web_search": 4}, "prices": {"m": {"input": 1, "output": 2, "cache_write": 3}}}
    )
    priced = known(build_providers({"responses": own}, {})[0]["responses"], "m")
    assert (priced.cache_write, priced.uses) == (3, {"web_search": 4})


def batching(price: Price | None, traits: BatchTraits | None) -> Provider:
    prices = {} if price is None else {"m": price}
    return Provider("p", "openai-chat", "https://h/v1", prices=prices, batch=traits)


def test_requests_in_batches_cost_agac_ymls_factor_else_the_providers_of_every_price() -> None:
    half, none = BatchTraits("openai", price_factor=0.5), BatchTraits("openai", price_factor=1.0)
    ordinary = Price(1.0, 4.0, 0.2)
    assert price_of(batching(replace(ordinary, batch=0.75), half), "m", BATCH) == Price(0.75, 3.0, 0.2 * 0.75)
    assert price_of(batching(ordinary, half), "m", BATCH) == Price(0.5, 2.0, 0.1)
    assert price_of(batching(ordinary, none), "m", BATCH) == ordinary
    assert price_of(batching(ordinary, None), "m", BATCH) == ordinary
    assert price_of(batching(None, BatchTraits("openai")), "m", BATCH) is None
    half = BatchTraits("openai", price_factor=0.5)
    found = known(replace(SHIPPED["gemini"], batch=half), "gemini-2.5-pro", BATCH)
    [(start, above)] = found.above
    assert (start, found.input, above.input) == (200_001, 0.625, 1.25)
    found = known(replace(OPENAI, batch=half), "gpt-4o-mini-2024-07-18", BATCH)
    assert (found.input, found.cached_input, found.output) == (0.075, 0.0375, 0.3)
    found = known(SIMULATOR, "small", BATCH)
    assert (found.input, found.cached_input, found.output) == (0.125, 0.0125, 1.0)
