"""`provider/model?key=value&…`: providers, routes, every query key, short names, and what is said of others."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agac.core.types import Params
from agac.providers.known_providers import SHIPPED
from agac.providers.model_keys import EFFORTS, FIELDS, NO_EFFECT, NOT_HERE, READERS, SPELLINGS
from agac.providers.model_string import ALIASES, MODELS, ModelRef, alias_problem, parse_model
from agac.providers.provider import Provider
from agac.providers.table import ELSEWHERE

OWN = Provider("own", "openai-chat", "http://127.0.0.1:8000/v1")
PROVIDERS = {**SHIPPED, "own": OWN, "my.local": replace(OWN, name="my.local")}


def read(text: str, aliases: Mapping[str, str] | None = None) -> ModelRef:
    found, messages = parse_model(text, PROVIDERS, aliases)
    assert messages == []
    assert found is not None
    return found


def refused(text: str, aliases: Mapping[str, str] | None = None) -> str:
    found, messages = parse_model(text, PROVIDERS, aliases)
    assert found is None
    [message] = messages
    return message


MEANS = {
    "responses.gpt-5.4-mini?reasoning=low&service_tier=flex&transport=auto": ModelRef(
        "responses", "gpt-5.4-mini", {"reasoning": "low", "service_tier": "flex"}, transport="auto"
    ),
    "kimi26instant": ModelRef(
        "hf", "moonshotai/Kimi-K2.6", {"temperature": 0.6, "top_p": 0.95, "reasoning": "off"}, route="novita"
    ),
    "hf.moonshotai/Kimi-K2.6:novita": ModelRef("hf", "moonshotai/Kimi-K2.6", route="novita"),
    "hf/moonshotai/Kimi-K2.6": ModelRef("hf", "moonshotai/Kimi-K2.6"),
    "openrouter/google/x:free": ModelRef("openrouter", "google/x:free"),
    "own/a/b:c": ModelRef("own", "a/b:c"),
    "gpt-5.4-mini": ModelRef("responses", "gpt-5.4-mini", {"reasoning": "medium"}),
    "gpt-4.1-mini": ModelRef("openai", "gpt-4.1-mini"),
    "deepseek.deepseek-chat": ModelRef("deepseek", "deepseek-chat"),
    "o3?reasoning=high": ModelRef("responses", "o3", {"reasoning": "high"}),
    "generic.llama3.2:1b": ModelRef("generic", "llama3.2:1b"),
    "azure/my-deployment": ModelRef("azure", "my-deployment"),
    "  simulator/small ": ModelRef("simulator", "small"),
    "openrouter.google/gemini-2.5-flash:free": ModelRef("openrouter", "google/gemini-2.5-flash:free"),
    "my.local/qwen3.5/8b": ModelRef("my.local", "qwen3.5/8b"),
    "my.local.qwen3.5": ModelRef("my.local", "qwen3.5"),
    "openai/ft:gpt-4.1:acme::x9": ModelRef("openai", "ft:gpt-4.1:acme::x9"),
    # other spellings, and keys that change nothing
    "own/m?temp=0.5&topP=0.5&topK=40&minP=0.1&maxTokens=7&presencePenalty=1.5&frequencyPenalty=2&repetitionPenalty=1.1"
    "&seed=-7": ModelRef(
        "own",
        "m",
        {
            "temperature": 0.5, "top_p": 0.5, "top_k": 40, "min_p": 0.1, "max_tokens": 7, "presence_penalty": 1.5,
            "frequency_penalty": 2.0, "repetition_penalty": 1.1, "seed": -7,
        },
    ),
    "own/m?structured_tools=auto&long_context=off": ModelRef("own", "m"),
    "own/m?web_search=off&x_search=false&web_fetch=0": ModelRef(
        "own", "m", {"web_search": None, "x_search": None, "web_fetch": None}
    ),
    "anthropic/m?web_search=on&web_fetch=08": ModelRef("anthropic", "m", {"web_search": "on", "web_fetch": "8"}),
    "xai-responses/m?x_search=1": ModelRef("xai-responses", "m", {"x_search": "on"}),
    "own/m?structuredToolPolicy=no_tools": ModelRef("own", "m"),
    "own/m?service_tier=fast": ModelRef("own", "m", {"service_tier": "priority"}),
    "own/m?reasoning=auto": ModelRef("own", "m", {"reasoning": None}),  # said, and nothing is sent
    **{f"own/m?reasoning={off}": ModelRef("own", "m", {"reasoning": "none"}) for off in ("off", "false", "0", "OFF")},
    **{f"own/m?reasoning={effort}": ModelRef("own", "m", {"reasoning": effort}) for effort in EFFORTS},
    # keys that say how a model is asked are no parameters
    **{f"responses/m?transport={one}": ModelRef("responses", "m", transport=one) for one in ("sse", "ws", "auto")},
    "responses/m?transport=websocket": ModelRef("responses", "m", transport="ws"),
    "own/m?streaming_timeout=30": ModelRef("own", "m", idle_timeout=30.0),
    "own/m?streaming_timeout=none": ModelRef("own", "m", idle_timeout=math.inf),
    "own/m?structured=json": ModelRef("own", "m", schema_mode="json_schema"),
    "own/m?schema_mode=none&idle_timeout=0.5": ModelRef("own", "m", idle_timeout=0.5, schema_mode="none"),
    # what the user writes beats what a short name holds
    "kimi26instant?temp=1&reasoning=on": ModelRef(
        "hf", "moonshotai/Kimi-K2.6", {"temperature": 1.0, "top_p": 0.95, "reasoning": "on"}, route="novita"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", MEANS)
def test_a_string_means(text: str) -> None:
    found = read(text)
    assert found == MEANS[text]
    assert found.warnings == ()
    assert read(found.text) == found


def test_the_route_after_a_short_name_takes_the_place_of_its_own() -> None:
    assert (read("kimi26").route, read("kimi26:groq").route) == ("novita", "groq")
    assert read("kimi26:groq").wire == "moonshotai/Kimi-K2.6:groq"
    assert read("kimi26:groq").params == read("kimi26").params


@pytest.mark.parametrize(
    "query", ["task_budget=20k", "taskBudget=off", "poll_period=60", "lite=on", "compaction=native", "compact_at=190k"]
)
def test_keys_of_other_programs_without_a_meaning_here_are_said_to_have_none(query: str) -> None:
    found = read(f"own/m?{query}")
    key = query.partition("=")[0]
    assert found.params == {}
    [warning] = found.warnings
    assert warning.startswith(f"{key} has no effect: ")


REFUSED = {
    "openai.": "'openai.' names no model; write openai/<model>, as openai/gpt-4o",
    "": "no model is named; write provider/model, like openai/gpt-5.4-mini",
    "openai/": "'openai/' names no model; write openai/<model>, as openai/gpt-4o",
    "openai": "'openai' names a provider and no model; write openai/<model>, as openai/gpt-4o",
    "simulator": "'simulator' names a provider and no model; write simulator/<model>, as simulator/small",
    "openai/gpt 5": "'gpt 5' is no model name: it holds a space",
    "my-own-model": "'my-own-model' names no provider; write provider/model, like 'openai/my-own-model'. The providers",
    "opneai/gpt-5.4-mini": "unknown provider 'opneai'; did you mean 'openai'? The providers are ",
    "opneai.gpt-5.4-mini": "'opneai.gpt-5.4-mini' names no provider; did you mean 'openai/gpt-5.4-mini'?",
    "meta-llama/Llama-4": "unknown provider 'meta-llama'. The providers are ",
    "openai/m?": "'' after ? is no key=value pair",
    "openai/m?temperature": "'temperature' after ? is no key=value pair",
    "openai/m?temperture=1": "unknown key 'temperture'; did you mean 'temperature'? The keys are temperature, top_p, ",
    "openai/m?zzz=1": "unknown key 'zzz'. The keys are ",
    "openai/m?temperature=hot": "temperature=hot: expected a number from 0 to 2",
    "openai/m?temperature=2.1": "temperature=2.1: expected a number from 0 to 2",
    "openai/m?temperature=nan": "temperature=nan: expected a number from 0 to 2",
    "openai/m?top_p=1.5": "top_p=1.5: expected a number from 0 to 1",
    "openai/m?presence_penalty=inf": "presence_penalty=inf: expected a number from -2 to 2",
    "openai/m?max_tokens=0": "max_tokens=0: expected a whole number above 0",
    "openai/m?max_tokens=1.5": "max_tokens=1.5: expected a whole number above 0",
    "openai/m?seed=x": "seed=x: expected a whole number",
    "openai/m?reasoning=hi": "reasoning=hi: expected one of none, minimal, low, medium, high, xhigh, max, or auto",
    "openai/m?seed=1&seed=1": "seed is given twice",
    "gpt-5.4-mini.high": "'.high' is no part of a model's name; write gpt-5.4-mini?reasoning=high",
    "openai.gpt-5.4.low": "'.low' is no part of a model's name; write openai/gpt-5.4?reasoning=low",
    "openai/m?temp=1&temperature=1": "temperature is given twice, as temp and as temperature",
    "own/m?instant=on&reasoning=off": "reasoning is given twice, as instant and as reasoning",
    "own/m?nonsense=1": "unknown key 'nonsense'. The keys are temperature, ",
    "own/m?reasoning=on": "reasoning=on: own/m has no such switch that agac knows; write an effort",
    "own/m?reasoning=8000": "reasoning=8000: own/m takes no number of tokens; write an effort: none, minimal, low",
    "own/m?reasoning=loud": "reasoning=loud: expected one of none, minimal, low, medium, high, xhigh, max, or",
    "kimi26?reasoning=low": "reasoning=low: hf/moonshotai/Kimi-K2.6 thinks or does not; write reasoning=on or",
    "gpt-4.1?instant=on": "instant: openai/gpt-4.1 has no such switch; write an effort as reasoning",
    "kimi26?instant=perhaps": "instant=perhaps: expected on or off",
    "openai/m?verbosity=low": "verbosity: only the Responses API is asked for it here; write responses/…",
    "responses/m?verbosity=long": "verbosity=long: expected one of low, medium, high",
    "openai/m?transport=ws": "transport=ws: openai is asked over HTTP alone; leave it out",
    "openai/m?transport=auto": "transport=auto: openai is asked over HTTP alone; leave it out",
    "responses/m?transport=pigeon": "transport=pigeon: expected one of sse, ws, auto",
    "responses/m?seed=1": "seed: the Responses API has no such parameter; ",
    "responses/m?top_k=1": "top_k: the Responses API has no such parameter; ",
    "openai/m?top_k=1": "top_k: openai has no such parameter; leave it out",
    "mistral/m?min_p=0.1": "min_p: mistral has no such parameter; leave it out",
    "own/m?top_k=0": "top_k=0: expected a whole number above 0",
    "own/m?min_p=2": "min_p=2: expected a number from 0 to 1",
    "own/m?repetition_penalty=0": "repetition_penalty=0: expected a number above 0",
    "mistral/m?service_tier=flex": "service_tier=flex: mistral has no such tier; it has no tiers; leave",
    "groq/m?service_tier=priority": "service_tier=priority: groq has no such tier; its tiers are auto, flex",
    "own/m?service_tier=slow": "service_tier=slow: expected one of auto, default, flex, priority",
    "own/m?streaming_timeout=0": "streaming_timeout=0: expected seconds above 0, or none",
    "own/m?streaming_timeout=soon": "streaming_timeout=soon: expected seconds above 0, or none",
    "own/m?structured=tool_use": "structured=tool_use: tool_use: a schema is sent as one, never as a tool; write json",
    "own/m?structured=xml": "structured=xml: expected one of json_schema, json_object, none",
    "own/m?structured_tools=always": "structured_tools=always: always is the agent's: write `request_params: {struct",
    "own/m?structured_tools=maybe": "structured_tools=maybe: expected auto or no_tools",
    "own/m?reasoning=1023": "reasoning=1023: a number of tokens to think with is at least 1024",
    "own/m?reasoning=99999999999": "reasoning=99999999999: a number of tokens to think with",
    "claude-sonnet-5?temperature=0": "temperature: anthropic/claude-sonnet-5 refuses it, as newer models do; leave",
    "anthropic/claude-opus-5-5?top_k=5": "top_k: anthropic/claude-opus-5-5 refuses it, as newer models do; leave",
    "haiku?seed=1": "seed: Anthropic's API has no such parameter; leave it out",
    "haiku?verbosity=low": "verbosity: Anthropic's API has no such parameter; leave it out",
    "haiku?reasoning=on": "reasoning=on: anthropic/claude-haiku-4-5 is told how many tokens it may think for; write",
    "haiku?reasoning=low": "reasoning=low: anthropic/claude-haiku-4-5 takes no effort; write how many tokens it",
    "opus?reasoning=2048": "reasoning=2048: anthropic/claude-opus-5 takes no number of tokens; write an effort: low,",
    "opus?reasoning=minimal": "reasoning=minimal: anthropic/claude-opus-5 has no such effort; its efforts are low, me",
    "claude-opus-5-5?reasoning=none": "reasoning=off: anthropic/claude-opus-5-5 always thinks; write an effort: low",
    "sonnet?service_tier=flex": "service_tier=flex: anthropic has no such tier; its tiers are auto, standard_only",
    "own/m?context=1m": "context=1m: models with a long context window have it without being asked; leave it out",
    "own/m?long_context=on": "long_context=on: models with a long context window have it",
    "own/m?web_search=on": "web_search: own runs no such tool that agac knows of; name a model of responses or anthrop",
    "openai/m?x_search=true": "x_search: openai runs no such tool that agac knows of; name a model of xai-responses, o",
    "responses/m?web_fetch=1": "web_fetch: responses runs no such tool that agac knows of; name a model of anthropic, ",
    "responses/m?web_search=5": "web_search=5: responses takes no number of uses; write web_search=on",
    "own/m?web_fetch=perhaps": "web_fetch=perhaps: expected on, off, or how often at most in a call, from 2",
    "hf/a/b:": "'hf/a/b:' ends in a colon without a route; write hf/a/b:<route>",
    "kimi26:": "'kimi26:' ends in a colon without a route; write kimi26, or kimi26:<route>",
    "gpt-4.1:fast": "'gpt-4.1' means openai/gpt-4.1, which has no routes; leave out ':fast'",
    "$system.fast": "'$system.fast' refers to another program's settings; write aliases: {name: provider/model}",
    "passthrough": "'passthrough' is a test model of another program; write simulator/small, which costs nothing",
    "sonet": "'sonet' is no short name of a model; did you mean 'sonnet'?",
    "gpt-5.4-mni": "'gpt-5.4-mni' is no short name of a model; did you mean 'gpt-5.4-mini'?",
    "antropic/x": "unknown provider 'antropic'; did you mean 'anthropic'? The providers are ",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_said_of_what_cannot_be_had(text: str) -> None:
    assert refused(text).startswith(REFUSED[text])


LISTED = """anthropic anthropic-vertex openai responses openresponses codexresponses google googleoai deepseek zai
moonshot hf openrouter tensorzero azure aliyun xai metaai bedrock groq generic fast-agent copilot"""


def test_each_provider_can_be_asked_or_says_what_to_write_instead() -> None:
    for name, mark in product(LISTED.split(), "/."):
        assert (name in SHIPPED) != (name in ELSEWHERE), name
        if name in SHIPPED:
            assert str(read(f"{name}{mark}m")) == f"{name}/m"
        else:
            said = refused(f"{name}{mark}m")
            assert said.startswith(f"provider '{name}' ")
            assert any(word in said for word in ("write ", "use ", "name ", "openrouter/"))
            assert "{" not in said


def test_a_project_can_take_a_name_that_agac_does_not_reach() -> None:
    found, messages = parse_model("bedrock/claude", {**PROVIDERS, "bedrock": OWN})
    assert messages == []
    assert found == ModelRef("bedrock", "claude")


CORE = """sonnet opus haiku claude gpt-4.1 gpt-4.1-mini gpt-5.4 gpt-5.4-mini gpt-5.5 gpt54-mini codex gemini
gemini3flash grok kimi kimi26 kimi26instant glm minimax qwen35 qwen35instruct gpt-oss gpt-oss-20b deepseek
deepseek-hf"""


def test_each_short_name_has_a_model_and_a_model_without_a_provider_is_its_makers() -> None:
    for name in CORE.split():
        found = read(name)
        assert found.written == name
        assert read(found.text) == found == read(ALIASES[name])
    for name, provider in MODELS.items():
        assert str(read(name)) == f"{provider}/{name}"


def test_a_projects_short_name_comes_before_agacs_and_its_keys_can_be_changed() -> None:
    aliases = {"fast": "openai/gpt-5.4-mini?reasoning=low&max_tokens=9"}
    assert read("fast", aliases).params == {"reasoning": "low", "max_tokens": 9}
    assert read("fast?reasoning=high", aliases).params == {"reasoning": "high", "max_tokens": 9}
    assert read("fast?transport=sse", aliases).written == "fast"
    assert read("fast?temp=1", aliases).written == "fast?temperature=1"
    assert read("fast", aliases).meaning == "openai/gpt-5.4-mini?max_tokens=9&reasoning=low"
    assert read("sonnet", {"sonnet": "openrouter/anthropic/claude-sonnet-5"}).provider == "openrouter"
    assert read("k", {"k": "kimi26:groq?temp=1"}).text.startswith("hf/moonshotai/Kimi-K2.6:groq?temperature=1&")
    assert read("kimi26", {"kimi26": "kimi26:groq"}).route == "groq"
    assert refused("a", {"a": "b", "b": "a"}).startswith("'a' means b: 'b' means a: 'a' names no provider; ")


def test_names_that_a_short_name_can_have() -> None:
    assert alias_problem("fast", PROVIDERS) is alias_problem("gpt-9.1", PROVIDERS) is None
    for name in ("a/b", "a b"):
        assert alias_problem(name, PROVIDERS) == f"'{name}' is no short name; use letters, digits, '.', _ and -"
    said = "'openai.x' reads as a model of the provider openai; choose another name"
    assert alias_problem("openai.x", PROVIDERS) == said


def test_every_key_is_a_parameter_and_every_other_spelling_is_of_a_key() -> None:
    assert READERS.keys() - FIELDS <= {f.name for f in fields(Params)}
    assert {*SPELLINGS.values()} <= {*READERS, *NOT_HERE, *NO_EFFECT}


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(1, 10**6),
    "min_p": st.floats(0, 1),
    "max_tokens": st.integers(1, 10**9),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0, 100, exclude_min=True),
    "seed": st.integers(),
    "reasoning": st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    "service_tier": st.sampled_from(["auto", "default", "flex", "priority"]),
}


@given(
    st.text(st.characters(categories=["L", "N"], include_characters="-._:/&="), min_size=1),
    st.fixed_dictionaries({}, optional=VALUES),
    st.sampled_from([None, "sse"]),
    st.none() | st.floats(0, exclude_min=True, allow_nan=False),
    st.sampled_from([None, "json_schema", "json_object", "none"]),
)
def test_what_is_written_out_is_read_again(
    model: str, params: dict[str, Any], transport: Any, idle: float | None, mode: Any
) -> None:
    ref = ModelRef("own", model, params, None, transport, idle, mode)
    assert read(ref.text) == ref


@given(st.text(), st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_any_text_is_a_model_or_has_a_reason(text: str, aliases: dict[str, str]) -> None:
    found, messages = parse_model(text, PROVIDERS, aliases)
    assert (found is None) == bool(messages)


def test_everything_that_is_wrong_is_said_at_once_and_all_that_is_known() -> None:
    found, messages = parse_model("opneai/m?temperature=9&max_token=1&seed=1&seed=2", PROVIDERS)
    assert (found, len(messages)) == (None, 4)
    for name in PROVIDERS:
        assert name in messages[0]


@given(
    st.sampled_from(sorted(PROVIDERS)),
    st.text(st.characters(categories=["L", "N"], include_characters="-_:/"), min_size=1),
)
def test_a_known_provider_before_a_slash_is_always_the_provider(provider: str, model: str) -> None:
    assume(not PROVIDERS[provider].routed)
    found = read(f"{provider}/{model}")
    assert (found.provider, found.model) == (provider, model)
