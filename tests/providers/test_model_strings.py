"""`provider/model?key=value&…`: what it means, and what is said of one that means nothing."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agac.core.types import Params
from agac.providers.model_string import FIELDS, READERS, ModelRef, parse_model
from agac.providers.provider import Provider
from agac.providers.table import SHIPPED

PROVIDERS = {**SHIPPED, "my.local": Provider("my.local", "openai-chat", "http://127.0.0.1:8000/v1")}


def read(text: str) -> ModelRef:
    found, messages = parse_model(text, PROVIDERS)
    assert messages == []
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "provider", "model"),
    [
        ("openai/gpt-5.4-mini", "openai", "gpt-5.4-mini"),
        ("openai.gpt-5.4-mini", "openai", "gpt-5.4-mini"),
        ("  simulator/small ", "simulator", "small"),
        ("openrouter/google/gemini-2.5-flash:free", "openrouter", "google/gemini-2.5-flash:free"),
        ("openrouter.google/gemini-2.5-flash:free", "openrouter", "google/gemini-2.5-flash:free"),
        ("together/meta-llama/Llama-4.1-70B", "together", "meta-llama/Llama-4.1-70B"),
        ("my.local/qwen3.5/8b", "my.local", "qwen3.5/8b"),
        ("my.local.qwen3.5", "my.local", "qwen3.5"),
        ("ollama/llama3.2:1b", "ollama", "llama3.2:1b"),
        ("openai/ft:gpt-4.1:acme::x9", "openai", "ft:gpt-4.1:acme::x9"),
    ],
)
def test_provider_and_model_are_told_apart(text: str, provider: str, model: str) -> None:
    found = read(text)
    assert (found.provider, found.model, dict(found.params)) == (provider, model, {})
    assert str(found) == f"{provider}/{model}"


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("temperature=0.2&max_tokens=400", {"temperature": 0.2, "max_tokens": 400}),
        ("temp=1&topP=0.5&maxTokens=9", {"temperature": 1.0, "top_p": 0.5, "max_tokens": 9}),
        ("presence_penalty=-2&frequency_penalty=2", {"presence_penalty": -2.0, "frequency_penalty": 2.0}),
        ("seed=-7", {"seed": -7}),
        ("reasoning=xhigh&service_tier=flex", {"reasoning": "xhigh", "service_tier": "flex"}),
        ("service_tier=fast", {"service_tier": "priority"}),
    ],
)
def test_keys_become_parameters(query: str, params: dict[str, Any]) -> None:
    assert read(f"openai/gpt-5.4-mini?{query}").params == params
    assert read(f"openai.gpt-5.4-mini?{query}").params == params


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model is named; write provider/model, like openai/gpt-5.4-mini"),
        ("?temperature=1", "no model is named; write provider/model, like openai/gpt-5.4-mini"),
        ("openai/", "'openai/' names no model; write openai/<model>, as openai/gpt-4o"),
        ("openai.", "'openai.' names no model; write openai/<model>, as openai/gpt-4o"),
        ("openai", "'openai' names a provider and no model; write openai/<model>, as openai/gpt-4o"),
        ("simulator", "'simulator' names a provider and no model; write simulator/<model>, as simulator/small"),
        ("openai/gpt 5", "'gpt 5' is no model name: it holds a space"),
        (
            "my-own-model",
            "'my-own-model' names no provider; write provider/model, like 'openai/my-own-model'. The providers are ",
        ),
        ("opneai/gpt-5.4-mini", "unknown provider 'opneai'; did you mean 'openai'? The providers are "),
        ("opneai.gpt-5.4-mini", "'opneai.gpt-5.4-mini' names no provider; did you mean 'openai/gpt-5.4-mini'?"),
        ("meta-llama/Llama-4", "unknown provider 'meta-llama'. The providers are "),
        ("openai/m?", "'' after ? is no key=value pair"),
        ("openai/m?temperature", "'temperature' after ? is no key=value pair"),
        (
            "openai/m?temperture=1",
            "unknown key 'temperture'; did you mean 'temperature'? The keys are temperature, top_p, ",
        ),
        ("openai/m?zzz=1", "unknown key 'zzz'. The keys are "),
        ("openai/m?temperature=hot", "temperature=hot: expected a number from 0 to 2"),
        ("openai/m?temperature=2.1", "temperature=2.1: expected a number from 0 to 2"),
        ("openai/m?temperature=nan", "temperature=nan: expected a number from 0 to 2"),
        ("openai/m?top_p=1.5", "top_p=1.5: expected a number from 0 to 1"),
        ("openai/m?presence_penalty=inf", "presence_penalty=inf: expected a number from -2 to 2"),
        ("openai/m?max_tokens=0", "max_tokens=0: expected a whole number above 0"),
        ("openai/m?max_tokens=1.5", "max_tokens=1.5: expected a whole number above 0"),
        ("openai/m?seed=x", "seed=x: expected a whole number"),
        (
            "openai/m?reasoning=hi",
            "reasoning=hi: expected one of none, minimal, low, medium, high, xhigh, max, or auto",
        ),
        ("openai/m?service_tier=slow", "service_tier=slow: expected one of auto, default, flex, priority"),
        ("openai/m?seed=1&seed=1", "seed is given twice"),
        ("openai/m?temp=1&temperature=1", "temperature is given twice, as temp and as temperature"),
    ],
)
def test_what_is_said_of_a_string_that_means_nothing(text: str, message: str) -> None:
    found, messages = parse_model(text, PROVIDERS)
    assert found is None
    assert len(messages) == 1
    assert messages[0].startswith(message)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found, messages = parse_model("opneai/m?temperature=9&max_token=1&seed=1&seed=2", PROVIDERS)
    assert found is None
    assert len(messages) == 4


def test_an_unknown_provider_comes_with_all_that_are_known() -> None:
    _, [message] = parse_model("nobody/m", PROVIDERS)
    for name in PROVIDERS:
        assert name in message


def test_every_key_is_a_parameter_that_a_request_has() -> None:
    assert READERS.keys() - FIELDS <= {f.name for f in fields(Params)}


@given(
    st.sampled_from(sorted(PROVIDERS)),
    st.text(st.characters(categories=["L", "N"], include_characters="-_:/"), min_size=1),
)
def test_a_known_provider_before_a_slash_is_always_the_provider(provider: str, model: str) -> None:
    assume(not PROVIDERS[provider].routed)
    found = read(f"{provider}/{model}")
    assert (found.provider, found.model) == (provider, model)
