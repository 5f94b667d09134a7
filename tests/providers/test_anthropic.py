"""Anthropic's Messages: what a request says on the wire, which schemas are held, and what headers say of limits."""

from dataclasses import replace
from typing import Any

import pytest

from agac.core.types import Message, Params, RateState, Request, Schema
from agac.providers.anthropic import MESSAGES
from agac.providers.known_providers import ANTHROPIC, LOOK_ALIKES, SHIPPED
from agac.providers.provider import Provider
from agac.providers.structured import INSTRUCTION
from agac.providers.table import build_providers
from agac.simulator.model_calls import canonical
from agac.simulator.schema_rules import described_bounds, schema_problem, schema_with_described_bounds
from agac.spec.project_models import ProviderSpec

OWN = replace(LOOK_ALIKES["anthropic"], name="own", base_url="http://127.0.0.1:1/v1")
ASKED = (Message("system", "Classify."), Message("user", "Great!"))
STRING = {"type": "string"}


def wire(
    model: str = "claude-haiku-4-5", to: Provider = ANTHROPIC, schema: Any = None, **params: Any
) -> dict[str, Any]:
    asked = Request(ASKED, None if schema is None else Schema("verdict", schema), Params(**params))
    return MESSAGES.build(asked, model, to)


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def sent(schema: dict[str, Any]) -> Any:
    """The schema as the API gets it, None where it is told in words; the simulator takes what is sent."""
    built = wire(schema=schema)
    if "output_config" not in built:
        assert INSTRUCTION in built["system"]
        return None
    assert built["system"] == "Classify."
    form = built["output_config"]["format"]
    assert form["type"] == "json_schema"
    assert schema_problem(canonical(form["schema"])) is None
    return form["schema"]


def test_every_part_of_a_request_has_its_place() -> None:
    keyed = replace(ANTHROPIC, api_key="sk-ant-1")
    assert MESSAGES.headers(keyed) == {"x-api-key": "sk-ant-1", "anthropic-version": "2023-06-01"}
    body = {"model": "claude-haiku-4-5", "system": "Classify.", "messages": [{"role": "user", "content": "Great!"}]}
    assert wire() == {**body, "max_tokens": 16_384}
    built = wire(temperature=0.5, top_p=0.9, top_k=5, stop=("END",), service_tier="standard_only", max_tokens=400)
    assert built == {
        **body,
        "max_tokens": 400,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "service_tier": "standard_only",
    }


@pytest.mark.parametrize(
    ("row", "params", "expected"),
    [
        (ANTHROPIC, {}, 16_384),
        (OWN, {}, 4096),
        (ANTHROPIC, {"max_tokens": 100}, 100),
        # what is thought counts as a part of the reply
        (ANTHROPIC, {"reasoning": "8000"}, 24_384),
        (ANTHROPIC, {"reasoning": "8000", "max_tokens": 9000}, 9000),
    ],
)
def test_how_long_a_reply_may_be_is_always_said(row: Provider, params: dict[str, Any], expected: int) -> None:
    assert wire(to=row, **params)["max_tokens"] == expected


ADAPTIVE = {"type": "adaptive"}


@pytest.mark.parametrize(
    ("model", "reasoning", "expected"),
    [
        ("claude-haiku-4-5", "2048", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("claude-haiku-4-5", "off", {"thinking": {"type": "disabled"}}),
        ("claude-opus-4-5", "low", {"output_config": {"effort": "low"}}),
        ("claude-sonnet-4-6", "on", {"thinking": ADAPTIVE}),
        ("claude-sonnet-4-6", "high", {"thinking": ADAPTIVE, "output_config": {"effort": "high"}}),
        ("claude-opus-5-5", "max", {"thinking": ADAPTIVE, "output_config": {"effort": "max"}}),
        ("claude-sonnet-5-5", "off", {"thinking": {"type": "between_tools"}}),
        ("claude-haiku-5-5", "off", {"thinking": {"type": "disabled"}}),
        ("claude-haiku-5-5", None, {}),
    ],
)
def test_each_model_is_told_to_think_in_its_own_words(
    model: str, reasoning: str | None, expected: dict[str, Any]
) -> None:
    built = wire(model, reasoning=reasoning)
    assert {name: built[name] for name in ("thinking", "output_config") if name in built} == expected


def test_an_effort_and_a_schema_share_a_key() -> None:
    built = wire("claude-sonnet-5", schema=closed(a=STRING), reasoning="low")
    assert built["output_config"]["effort"] == "low"
    assert built["output_config"]["format"]["schema"] == closed(a=STRING)


SAME = {
    "simple": closed(sentiment={"type": "string", "enum": ["good", "bad"], "description": "How."}, score=STRING),
    "nested": closed(tags={"type": "array", "items": closed(name=STRING), "minItems": 1}),
    "formats": closed(when={"type": "string", "format": "date-time"}),
    "or null": closed(who={"type": ["string", "null"]}, age={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "optional": {**closed(a=STRING, b=STRING), "required": ["a"]},
    "definitions": {**closed(who={"$ref": "#/$defs/person"}), "$defs": {"person": closed(name=STRING)}},
    "a constant": closed(kind={"const": "review"}),
}


CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an open object is closed": ({"type": "object", "properties": {"a": STRING}, "required": ["a"]}, closed(a=STRING)),
    "bounds are told": (
        closed(score={"type": "integer", "minimum": 1, "maximum": 5}),
        closed(score={"type": "integer", "description": "{minimum: 1, maximum: 5}"}),
    ),
    "bounds are told after what is said already": (
        closed(tags={"type": "array", "items": STRING, "minItems": 2, "description": "Tags."}),
        closed(tags={"type": "array", "items": STRING, "description": "Tags.\n\n{minItems: 2}"}),
    ),
    "a pattern": (
        closed(code={"type": "string", "pattern": '^"x, y"$'}),
        closed(code={"type": "string", "description": '{pattern: "^\\"x, y\\"$"}'}),
    ),
    "one of becomes any of": (
        closed(a={"oneOf": [STRING, {"type": "null"}]}),
        closed(a={"anyOf": [STRING, {"type": "null"}]}),
    ),
    "what says nothing of values is left out": (
        {**closed(a={**STRING, "examples": ["x"], "default": "y"}), "$schema": "https://json-schema.org/x"},
        closed(a=STRING),
    ),
    "beside a reference": (
        {**closed(a={"$ref": "#/$defs/x", "description": "y"}), "$defs": {"x": STRING}},
        {**closed(a={"$ref": "#/$defs/x"}), "$defs": {"x": STRING}},
    ),
}


@pytest.mark.parametrize("name", [*SAME, *CHANGED])
def test_a_schema_is_put_into_the_language_and_the_simulator_reads_the_bounds_that_are_told(name: str) -> None:
    schema, expected = CHANGED.get(name) or (SAME[name], SAME[name])
    assert sent(schema) == expected
    read = schema_with_described_bounds(canonical(expected))
    for key, part in schema["properties"].items():
        bounds = {k: v for k, v in part.items() if k in ("minimum", "maximum", "minItems", "pattern")}
        assert {k: read["properties"][key][k] for k in bounds} == bounds


LEAF = {"type": "object", "properties": {"next": {"$ref": "#/$defs/leaf"}}, "required": []}
IN_WORDS: dict[str, dict[str, Any]] = {
    "a list": {"type": "array", "items": STRING},
    "any object": {"type": "object"},
    "further properties are wanted": {"type": "object", "properties": {"a": STRING}, "additionalProperties": STRING},
    "a free object within": closed(more={"type": "object"}),
    "it never ends": {**closed(a={"$ref": "#/$defs/leaf"}), "$defs": {"leaf": LEAF}},
    "a reference to the root": closed(a={"$ref": "#"}),
    "a reference to nothing": closed(a={"$ref": "#/$defs/none"}),
    "a list of anything": closed(a={"type": "array"}),
    "anything": closed(a={}),
    "true": closed(a=True),
    "a tuple": closed(a={"type": "array", "items": STRING, "prefixItems": [STRING]}),
    "not": closed(a={**STRING, "not": {"const": "x"}}),
    "objects among the values": closed(a={"enum": [{"x": 1}]}),
    "all of": closed(a={"allOf": [closed(b=STRING), closed(c=STRING)]}),
    "too many that are optional": {**closed(**{f"p{n}": STRING for n in range(25)}), "required": []},
    "too many unions": closed(**{f"p{n}": {"type": ["string", "null"]} for n in range(17)}),
}


@pytest.mark.parametrize("schema", IN_WORDS.values(), ids=IN_WORDS.keys())
def test_a_schema_beyond_the_language_is_told_in_words(schema: dict[str, Any]) -> None:
    assert sent(schema) is None


def test_a_look_alike_is_told_in_words() -> None:
    for structured in ("json_object", "none"):
        built = wire(to=replace(OWN, structured=structured), schema=closed(a=STRING))
        assert "output_config" not in built
        assert built["system"].startswith(f"Classify.\n\n{INSTRUCTION}")
    asked = Request(ASKED[1:], Schema("v", closed(a=STRING)))
    assert MESSAGES.build(asked, "m", OWN)["system"].startswith(INSTRUCTION)


def test_a_description_that_tells_no_bounds() -> None:
    for text in (None, "", "A mark.", "Write {name}: so", "{}", "{minimum: }", "{a: 1}", "{minimum: 1"):
        assert described_bounds(text) == {}


def test_what_is_left_of_the_limits() -> None:
    headers = {
        "date": "Sat, 21 Nov 2026 12:00:00 GMT",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-11-21T12:00:01.5Z",
        "anthropic-ratelimit-tokens-remaining": "40000",
        "anthropic-ratelimit-tokens-reset": "2026-11-21T12:01:00+00:00",
        "anthropic-ratelimit-input-tokens-remaining": "7",
    }
    assert MESSAGES.rates(headers) == RateState(49, 1.5, 40000, 60.0)
    assert MESSAGES.rates({"anthropic-ratelimit-input-tokens-remaining": "7"}) == RateState(None, None, 7, None)
    assert MESSAGES.rates({"x-ratelimit-remaining-requests": "1"}) is None
    assert MESSAGES.rates({"anthropic-ratelimit-requests-remaining": "x", "anthropic-ratelimit-requests-reset": "20"})


def test_a_row_of_agac_yml_that_speaks_it_knows_what_claude_models_take() -> None:
    spec = ProviderSpec.model_validate({"dialect": "anthropic", "base_url": "http://127.0.0.1:1/v1"})
    rows, problems = build_providers({"own": spec}, {})
    own = rows["own"]
    assert (problems, own.name, own.api_key, own.structured) == ([], "own", None, "json_object")
    assert own.switch_of("claude-opus-5-5") == SHIPPED["anthropic"].switch_of("claude-opus-5-5")
    assert (own.batch, own.price_id, own.service_tiers) == (None, None, None)
