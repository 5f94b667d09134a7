"""Replies conform to their schema, whatever the schema; checked by jsonschema and, with its formats, jsonschema-rs."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from support.soak import campaign

from agac.simulator.api_errors import ApiError
from agac.simulator.chat import CHAT
from agac.simulator.replies import AnswerWriter

NAMES = st.sampled_from(["sentiment", "reason", "score", "tags", "name", "rating", "x y", "é"])
PATTERNS = [
    "^[A-Z]{2}-\\d{4}$", "^(red|green|blue)$", "[aeiou]", "^\\w+@\\w+\\.com$", "^[^a-z]{3,5}$", "^a?b*c+$",
    "^.{2,9}$",
]  # fmt: skip
JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["positive", "a", ""]), st.just([1])
)


FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "odd"]
TEXTS = st.one_of(
    st.just({"type": "string"}),
    st.tuples(st.integers(0, 200), st.integers(0, 50)).map(
        lambda ends: {"type": "string", "minLength": ends[0], "maxLength": sum(ends)}
    ),
    st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(FORMATS).map(lambda form: {"type": "string", "format": form}),
)


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    if draw(st.booleans()):
        schema["multipleOf"] = draw(st.sampled_from([1, 2, 7, 0.5, 0.1, 0.01, 2.5, 1e-3, 1000]))
    edge = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6), st.sampled_from([0, 1, 1e15, -1e15, 0.1]))
    low = draw(edge)
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(st.integers(4000, 9000))
    return schema


@st.composite
def lists(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": draw(inner)}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 4))
        schema["maxItems"] = schema["minItems"] + draw(st.integers(0, 3))
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.one_of(st.just(False), inner))
    elif draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, 6))
    return schema


LEAVES = st.one_of(
    TEXTS,
    numbers(),
    st.lists(JSON_VALUES, min_size=1, max_size=5).map(lambda values: {"enum": values}),
    JSON_VALUES.map(lambda value: {"const": value}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {}, True, {"title": "T"}]),
    st.sampled_from([{"type": ["integer", "array"], "minItems": 2, "minimum": 5}, {"properties": {"a": {}}}]),
)
"""Schemas without others inside, each with a value."""

POSSIBLE = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        lists(inner), objects(inner), st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
    ),
    max_leaves=8,
)
"""Schemas that surely have a value."""


@st.composite
def wild(draw: st.DrawFn) -> Any:
    """Schemas that may have no value: combinations, contradictions, references, recursion."""
    inner = st.one_of(POSSIBLE, st.just({"$ref": "#/$defs/node"}), st.just(False))
    some = st.lists(inner, min_size=1, max_size=3)
    body = draw(
        st.one_of(
            some.map(lambda parts: {"allOf": parts}),
            some.map(lambda parts: {"oneOf": parts}),
            inner.map(lambda part: {"not": part, "type": "string"}),
            st.tuples(objects(inner), some).map(lambda pair: {**pair[0], "anyOf": pair[1]}),
            st.tuples(lists(inner), st.just({"uniqueItems": True})).map(lambda pair: {**pair[0], **pair[1]}),
            objects(inner).map(lambda part: {**part, "patternProperties": {"^s": {"type": "string"}}}),
            st.tuples(TEXTS, numbers()).map(lambda pair: {**pair[1], **pair[0], "type": ["string", "number"]}),
        )
    )
    node = {"type": "object", "required": ["value"], "properties": {"value": draw(inner), "next": draw(inner)}}
    return {"type": "object", "required": ["it"], "properties": {"it": body}, "$defs": {"node": node}}


def reply_to(schema: Any, text: str = "It broke after 2 days", seed: int = 0) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "result", "schema": schema}}
    body = {"model": "small", "messages": [{"role": "user", "content": text}], "response_format": form}
    answer = AnswerWriter().answer(CHAT.read(json.dumps(body).encode(), seed, {}))
    assert answer.content is not None
    return json.loads(answer.content)


def assert_conforms(schema: Any, value: Any) -> None:
    Draft202012Validator(schema).validate(value)
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True).validate(value)


@given(POSSIBLE, st.text(max_size=60), st.integers(0, 3))
@campaign(test=60, soak=4000)
def test_every_schema_with_a_value_gets_one_that_conforms(schema: Any, text: str, seed: int) -> None:
    assert_conforms(schema, reply_to(schema, text.encode(errors="replace").decode(), seed))


@given(wild(), st.integers(0, 3))
@campaign(test=40, soak=2000)
def test_other_schemas_get_a_conforming_reply_or_a_refusal(schema: Any, seed: int) -> None:
    try:
        value = reply_to(schema, seed=seed)
    except ApiError as refusal:
        code = refusal.code
    else:
        code = None
        assert_conforms(schema, value)
    assert code in (None, "invalid_json_schema")


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "additionalProperties": False,
            "required": ["value", "children", "parent"],
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "parent": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
        }
    },
}

ANSWERABLE = {
    "recursive": TREE,
    "recursive root": {
        "type": "object",
        "properties": {"next": {"$ref": "#"}},
        "required": ["next"],
        "minProperties": 0,
    }
    | {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
    "reference with company": {
        "$defs": {"short": {"type": "string", "maxLength": 9}},
        "properties": {"a": {"$ref": "#/$defs/short", "minLength": 9, "description": "nine"}},
        "required": ["a"],
    },
    "merged objects": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 4}, "b": {"const": "b"}}, "required": ["b"]},
        ]
    },
    "exactly one": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
    "alternatives beside properties": {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
        "required": ["kind"],
        "anyOf": [{"properties": {"kind": {"const": "a"}}}, {"required": ["size"]}],
    },
    "unique items": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 3, "uniqueItems": True},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3},
    "pattern of a length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 30, "maxLength": 40},
    "loose pattern of a length": {"type": "string", "pattern": "ab", "minLength": 60},
    "back reference": {"type": "string", "pattern": "^(['\"])[a-z]*\\1$"},
    "old tuple": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "null"}]},
    "narrow number": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9},
    "tenths": {"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.75},
    "escaped reference": {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"const": 1}}},
    "typed enum": {"type": ["string", "null"], "enum": ["a", None, 3]},
    "filtered enum": {"enum": ["a", "bbb", "cccc"], "minLength": 3, "maxLength": 3},
    "const within enum": {"const": "a", "enum": ["a", "b"]},
    "long list": {"type": "array", "items": {"type": "string"}, "minItems": 50, "maxItems": 50},
    "nullable": {"type": "string", "nullable": True},
    "not": {"type": "integer", "minimum": 0, "maximum": 3, "not": {"enum": [0, 1]}},
    "reference within allOf": {
        "allOf": [{"$ref": "#/$defs/any"}, {"$ref": "#/$defs/list/prefixItems/0"}, True],
        "minimum": 6,
        "$defs": {
            "any": True,
            "list": {"prefixItems": [{"$ref": "#/$defs/end"}]},
            "end": {"type": ["number", "null"], "maximum": 6.5},
        },
    },
    "whole number within allOf": {"allOf": [{"type": "number", "multipleOf": 0.5}, {"type": "integer"}]},
    "enum of numbers": {"type": "integer", "enum": [1.5, True, 2.0, "2"]},
    "enum of many types": {"type": ["array", "object", "boolean", "number"], "enum": [[1], {"a": 1}, False, 3.5, "x"]},
    "only a highest number": {"type": "number", "exclusiveMaximum": -1e300},
    "only a lowest number": {"type": "number", "minimum": 1e300},
    "both kinds of bounds": {
        "minimum": 3, "exclusiveMinimum": 3, "maximum": 4, "exclusiveMaximum": 5, "type": "integer",
    },
    "one number": {"type": "number", "minimum": 0.3, "maximum": 0.3},
    "optional no": {"type": "object", "properties": {"a": False, "b": {"const": 1}}, "minProperties": 1},
    "short list of what is possible": {"type": "array", "prefixItems": [{"const": 1}, False], "items": {"const": 2}},
    "few properties": {"type": "object", "properties": {c: {} for c in "abcdef"}, "maxProperties": 2},
    "required but unnamed": {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}},
    "dependent": {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERABLE)
@pytest.mark.parametrize("seed", range(5))
def test_reply_conforms_for(name: str, seed: int) -> None:
    schema = ANSWERABLE[name]
    value = reply_to(schema, seed=seed)
    if "$schema" in schema:
        validator_for(schema)(schema).validate(value)
    else:
        assert_conforms(schema, value)


REFUSED = {
    "no value at all": ({"type": "string", "minLength": 5, "maxLength": 2}, "no finite value"),
    "endless": ({"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]}, "no finite value"),
    "circle": ({"$ref": "#"}, "no finite value"),
    "circle of allOf": ({"allOf": [{"$ref": "#"}], "type": "string"}, "lead back to themselves"),
    "false": ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no finite value"),
    "no such type": ({"type": "str"}, "type must be of object, array, "),
    "no such definition": ({"$ref": "#/$defs/nope"}, "points at nothing"),
    "elsewhere": ({"$ref": "https://example.com/schema.json"}, "must point into the schema itself"),
    "no regular expression": ({"type": "string", "pattern": "("}, "is no regular expression"),
    "bound is text": ({"type": "integer", "minimum": "3"}, "minimum must be a number"),
    "length is text": ({"type": "string", "minLength": "3"}, "minLength must be a whole number"),
    "step is zero": ({"type": "integer", "multipleOf": 0}, "multipleOf must be more than 0"),
    "required is text": ({"type": "object", "required": "a"}, "required must be a list"),
    "required names numbers": ({"type": "object", "required": [1]}, "required must be a list of property names"),
    "properties is a list": ({"type": "object", "properties": []}, "properties must be an object"),
    "enum is text": ({"enum": "a"}, "enum must be a list"),
    "branches are empty": ({"anyOf": []}, "anyOf must be a list with something in it"),
    "a list is no schema": ({"type": "array", "items": 3}, "is not a schema"),
    "reference to no schema": ({"$ref": "#/$defs/a", "$defs": {"a": 3}}, "points at something that is no schema"),
    "false within allOf": ({"allOf": [{"type": "string"}, False]}, "no finite value"),
    "unlike within allOf": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no finite value"),
    "number within allOf": ({"type": "string", "allOf": [{"minLength": 1}, {"minLength": "a"}]}, "minLength"),
    "number that is none": ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no finite value"),
    "no room for what is required": ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "no finite value"),
    "list longer than possible": ({"type": "array", "items": False, "minItems": 1}, "no finite value"),
    "contradiction": ({"type": "string", "not": {"type": "string"}}, "found no value"),
    "impossible pattern": ({"type": "string", "pattern": "^abc$", "minLength": 9}, "found no value"),
    "too many combinations": (
        {"allOf": [{"anyOf": [{"const": i} for i in range(40)]}, {"anyOf": [{"const": i} for i in range(41)]}]},
        "too many combinations",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_schema_is_refused_with_its_reason(name: str) -> None:
    schema, reason = REFUSED[name]
    with pytest.raises(ApiError) as caught:
        reply_to(schema)
    assert caught.value.code == "invalid_json_schema"
    assert reason in caught.value.message


def test_recursive_replies_are_bounded() -> None:
    sizes = [len(json.dumps(reply_to(TREE, seed=seed))) for seed in range(50)]
    assert max(sizes) < 20_000
    assert max(sizes) > 200


def test_properties_come_in_the_order_of_the_schema() -> None:
    properties = {name: {"type": "integer"} for name in ["zebra", "apple", "mango", "b"]}
    schema = {"type": "object", "properties": properties, "required": ["mango", "zebra"]}
    for seed in range(20):
        keys = list(reply_to(schema, seed=seed))
        assert keys == [name for name in properties if name in keys]
