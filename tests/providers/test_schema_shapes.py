"""How a schema travels, by the provider's ability, and what keeps one from OpenAI's strict mode."""

import json
from typing import Any

import pytest

from agac.core.types import Message, Request, Schema
from agac.providers.known_providers import OPENAI
from agac.providers.openai import CHAT
from agac.providers.provider import Provider, Structured
from agac.providers.structured import openai_format, shape_of, strict_obstacle


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


STRING = {"type": "string"}
STRICT = closed(
    sentiment={"type": "string", "enum": ["good", "bad"], "description": "How it sounds."},
    score={"type": ["number", "null"], "minimum": 0, "maximum": 1},
    tags={"type": "array", "items": STRING, "minItems": 1},
    when={"type": "string", "format": "date"},
    who={"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
) | {
    "$defs": {"person": closed(name=STRING)},
    "title": "Verdict",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
}


def provider(structured: Structured, *, strict: bool = False) -> Provider:
    return Provider("p", "openai-chat", "http://127.0.0.1/v1", structured=structured, strict_schema=strict)


def wire(schema: dict[str, Any], to: Provider, *messages: Message) -> dict[str, Any]:
    asked = messages or (Message("system", "Classify."), Message("user", "Great!"))
    return CHAT.build(Request(asked, Schema("verdict", schema)), "m", to)


def test_a_schema_within_the_strict_subset_is_enforced_by_those_who_know_strict() -> None:
    built = wire(STRICT, OPENAI)
    assert built["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "verdict", "schema": STRICT, "strict": True},
    }
    assert [message["content"] for message in built["messages"]] == ["Classify.", "Great!"]
    assert "strict" not in wire({**STRICT, "required": []}, OPENAI)["response_format"]["json_schema"]
    assert "strict" not in wire(STRICT, provider("json_schema"))["response_format"]["json_schema"]


@pytest.mark.parametrize("structured", ["json_object", "none"])
def test_a_provider_that_knows_no_schemas_is_told_at_the_end_of_the_system_message(structured: Structured) -> None:
    built = wire(STRICT, provider(structured))
    [system, user] = built["messages"]
    assert user["content"] == "Great!"
    assert system["content"].startswith("Classify.\n\nAnswer with one JSON value")
    *_, heading, schema = system["content"].splitlines()
    assert heading == "JSON Schema:"
    assert json.loads(schema) == STRICT
    assert built.get("response_format") == ({"type": "json_object"} if structured == "json_object" else None)
    # without a system message the instruction is one
    built = wire(STRICT, provider("none"), Message("user", "Great!"))
    assert [message["role"] for message in built["messages"]] == ["system", "user"]


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "none"])
@pytest.mark.parametrize("root", [{"type": "array", "items": STRING}, STRING, {"anyOf": [STRICT, STRING]}, {}])
def test_what_is_no_object_is_only_told(structured: Structured, root: dict[str, Any]) -> None:
    built = wire(root, provider(structured, strict=True))
    assert "response_format" not in built
    assert built["messages"][0]["content"].endswith(f"JSON Schema:\n{json.dumps(root, separators=(',', ':'))}")


def test_what_is_sent_depends_on_the_schema_and_the_ability_and_not_on_what_was_before() -> None:
    for number in range(600):  # more than are kept
        body = closed(**{f"field{number}": STRING})
        assert shape_of(Schema("s", body), OPENAI, openai_format).response_format == {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": body, "strict": True},
        }
    schema = Schema("s", STRICT)
    rows = [*(provider(each) for each in ("json_schema", "json_object", "none")), OPENAI]
    assert len({str(shape_of(schema, row, openai_format)) for row in rows}) == 4
    assert shape_of(None, OPENAI, openai_format).response_format is None


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(levels):
        schema = closed(inner=schema)
    return schema


def enum(values: int, characters: int) -> dict[str, Any]:
    """Texts of so many characters each."""
    return {"type": "string", "enum": [f"{n:0>{characters}}" for n in range(values)]}


OPEN = "an object lacks `additionalProperties: false`"
LARGE = "it has too many properties or values of enums"


@pytest.mark.parametrize(
    ("schema", "obstacle"),
    [
        ({"type": "array", "items": STRING}, "its root is not a plain object"),
        ({**closed(), "anyOf": [closed()]}, "its root is not a plain object"),
        ({**closed(a=STRING), "required": []}, "'a' is not in `required`"),
        ({**closed(a=STRING), "additionalProperties": True}, OPEN),
        (
            {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
            "an object lacks `additionalProperties: false`",
        ),
        (closed(a={"type": "string", "minLength": 1}), "`minLength` is not known there (at a)"),
        (closed(a={"type": "string", "default": "x"}), "`default` is not known there (at a)"),
        (closed(a={"oneOf": [STRING]}), "`oneOf` is not known there (at a)"),
        (closed(a={"enum": ["x"]}), "a value has no type (at a)"),
        (closed(a={"type": "string", "format": "uri"}), "the format 'uri' is not known there (at a)"),
        (closed(a=True), "true and false are no schemas there (at a)"),
        (closed(a={"type": "array", "items": {}}), "a value has no type (at a.items)"),
        (closed(a={"type": "array", "items": {"type": "object"}}), f"{OPEN} (at a.items)"),
        (closed(a={"anyOf": [STRING, {"not": {}}]}), "`not` is not known there (at a.anyOf)"),
        (
            closed(a={"$ref": "#/$defs/b", "title": "A"}) | {"$defs": {"b": STRING}},
            "a `$ref` stands beside other keywords (at a)",
        ),
        (closed() | {"$defs": {"b": {"type": "object"}}}, f"{OPEN} (at $defs.b)"),
        (deep(11), f"more than 10 levels are nested (at {'.'.join(['inner'] * 11)})"),
        (closed(**{f"p{n}": STRING for n in range(5001)}), LARGE),
        (
            closed(a={"type": "string", "enum": [str(n) for n in range(1001)]}),
            "it has too many properties or values of enums",
        ),
        (closed(a=enum(251, 60)), "an enum of over 250 values has 15,060 characters, and 15,000 are taken"),
        (
            closed(a=enum(250, 200), b=enum(250, 200), c={"type": "string", "const": "x" * 20_000}),
            "its names and values have 120,003 characters, and 120,000 are taken",
        ),
        (
            closed(**{f"{n:0>100}": STRING for n in range(601)}) | {"$defs": {"x" * 60_000: STRING}},
            "its names and values have 120,100 characters, and 120,000 are taken",
        ),
    ],
)
def test_each_obstacle_keeps_a_schema_from_strict_mode(schema: dict[str, Any], obstacle: str) -> None:
    assert strict_obstacle(schema) == obstacle


@pytest.mark.parametrize(
    "schema",
    [
        STRICT,
        deep(10),
        closed(again={"$ref": "#"}),
        closed(a=enum(250, 400)),
        closed(a=enum(300, 50), b=enum(300, 50)),
        closed(a={"type": "string", "const": "x" * 119_999}),
    ],
)
def test_what_is_no_obstacle(schema: dict[str, Any]) -> None:
    assert strict_obstacle(schema) is None
