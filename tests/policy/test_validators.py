"""The validator that judges answers against the published test suite, and against jsonschema as a second opinion.

`json_schema_suite` holds the required cases of draft 2020-12 of github.com/json-schema-org/JSON-Schema-Test-Suite, as
the source distribution of jsonschema 4.26.0 has them: one line a keyword, each `[keyword, [[description, schema,
[[description, value, valid], …]], …]]`.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_parsing_answers import error_of, reply, stage, values

from agac.core.errors import ErrorType, RowError, UsageError
from agac.engine.ask.validate import Checker, ValidReply
from agac.spec.json_schema import compiled, schema_cost
from agac.spec.schema_checks import schema_faults
from agac.spec.schema_errors import TOO_MANY

LINES = (Path(__file__).parent / "json_schema_suite" / "draft2020-12.jsonl").read_text("utf-8").splitlines()
SUITE: dict[str, list[Any]] = dict(map(json.loads, LINES))
ASSERTED = "invalid {} string is only an annotation by default"
REFUSED = {
    "anchor": 3,
    "defs": 1,
    "dynamicRef": 16,
    "ref": 14,
    "refRemote": 15,
    "unevaluatedItems": 1,
    "unevaluatedProperties": 1,
}
"""Groups a keyword whose schemas point outside themselves, which agac refuses when it loads them."""


@pytest.mark.parametrize("keyword", sorted(SUITE.keys() - {"format", "vocabulary"}))
def test_the_published_cases_of_a_keyword_pass(keyword: str) -> None:
    accepted = [one for one in SUITE[keyword] if not isinstance(one[1], dict) or not schema_faults(one[1])]
    assert len(SUITE[keyword]) - len(accepted) == REFUSED.get(keyword, 0)
    for group, schema, cases in accepted:
        validator, second = compiled(schema), jsonschema.Draft202012Validator(schema)
        for case, value, valid in cases:
            assert validator.is_valid(value) is valid, (group, case)
            assert bool(list(validator.iter_errors(value))) is not valid, (group, case)
            assert second.is_valid(value) is valid, (group, case)


def test_formats_are_checked_where_the_standard_only_annotates() -> None:
    for group, schema, cases in SUITE["format"]:
        name = schema["format"]
        for case, value, valid in cases:
            assert compiled(schema).is_valid(value) is (valid and case != ASSERTED.format(name)), (group, case)


def test_the_meta_schema_that_a_schema_names_is_neither_fetched_nor_followed() -> None:
    schema = {"$schema": "http://127.0.0.1:9/meta.json", "type": "object", "properties": {"a": {"minimum": 2}}}
    assert schema_faults(schema) == []
    assert not compiled(schema).is_valid({"a": 1})
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{"type": "string"}]}
    assert not compiled(older).is_valid([1])


def test_nothing_is_ever_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        for scheme in ("http", "https", "file"):
            there = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/schema.json"
            for schema in ({"$ref": there}, {"properties": {"a": {"$ref": f"{there}#/x"}}}, {"$dynamicRef": there}):
                with pytest.raises(ValueError, match="Retriev"):
                    compiled(schema)
                [(_, message)] = schema_faults(schema)
                assert "points outside this schema" in message
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_schema_that_cannot_be_compiled_is_refused_where_it_is_wrong() -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": "^a\\Z"}}, "patternProperties": {"(": {}, "b": {}}}
    found = dict(schema_faults(schema))
    assert found.keys() == {("properties", "a", "pattern"), ("patternProperties", "(")}
    assert found["properties", "a", "pattern"] == (
        "'^a\\\\Z' is not a regular expression: write it as in JavaScript, whose regular expressions JSON Schema uses"
    )
    with pytest.raises(UsageError, match="of stage 'one' cannot be compiled"):
        Checker(stage(schema))
    assert schema_faults({"pattern": r"^\p{L}+$"}) == []
    [(_, message)] = schema_faults({"pattern": r"^\p{L}{1000}$"})
    assert message.endswith("can make it too large: use maxLength instead")


FOREVER = r"^(a|a)*?(?=b)c\1"


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"pattern": FOREVER}, "pattern"),
        ({"not": {"pattern": FOREVER}}, "not.pattern"),
        ({"if": {"pattern": FOREVER}, "then": False}, "if.pattern"),
        ({"anyOf": [{"pattern": FOREVER}, {"type": "null"}]}, "anyOf.0.pattern"),
        ({"patternProperties": {FOREVER: {}}, "additionalProperties": False}, f"patternProperties.{FOREVER}"),
        ({"propertyNames": {"pattern": FOREVER}}, "propertyNames.pattern"),
    ],
)
def test_a_pattern_that_goes_back_for_ever_fails_the_row_and_says_so(schema: dict[str, Any], where: str) -> None:
    assert schema_faults(schema) == []
    text = "a" * 30 + "b"
    error = error_of(json.dumps({text: 1} if "ropert" in where else text), body=schema)
    assert f"matching {where} of output_schema was given up after going back 1,000,000 times" in error.message
    assert error.type is ErrorType.SCHEMA_MISMATCH


@pytest.mark.parametrize("pattern", ["^(?:(?!.*bad).)*$", r"(?!.*bad)x$", r"(?=(?:a|b){2,})a.*c", r"(a|b)\1.*x"])
def test_a_pattern_that_reads_on_each_time_is_given_up_in_a_long_text(pattern: str) -> None:
    body = {"properties": {"a": {"pattern": pattern}, "b": {"pattern": "^(?:(?!bad).)*$"}}}
    assert schema_faults(body) == []
    error = error_of(json.dumps({"a": "a" * 1_000_000, "b": "b" * 500_000}), body=body)
    assert error.message.startswith("a: matching properties.a.pattern of output_schema was given up after going back")
    assert "properties.b" not in error.message
    valid = Checker(stage(body)).check(reply(json.dumps({"a": "aacx", "b": "b" * 500_000})))
    assert isinstance(valid, ValidReply)
    assert "does not match" in error_of(json.dumps({"a": "b", "b": "bad"}), body=body).message


def test_patterns_that_read_on_are_bounded_for_the_whole_reply() -> None:
    """Also in names, and where each text by itself would pass."""
    slow = "^(?:(?!.*bad).)*$"
    names, texts = {"patternProperties": {slow: False}}, {"items": {"pattern": slow}}
    assert "matching patternProperties." in error_of(json.dumps({"a" * 200_000: 1}), body=names).message
    assert "matching items.pattern" in error_of(json.dumps(["a" * 10_000] * 200), body=texts).message


def test_of_a_reply_with_very_many_values_the_first_error_is_told() -> None:
    error = error_of(json.dumps(["a"] * 50_000), body={"items": {"type": "integer"}})
    assert error.message == '[0]: "a" is not of type "integer"'


@pytest.mark.parametrize(
    ("pattern", "text", "valid"),
    [
        ("^(a+)+$", "a" * 100_000 + "b", False),
        ("^(?:(?!bad).)*$", "a" * 500_000, True),
        ("^(?=.*[0-9])(?!.*x)[a-z0-9]+$", "abc1", True),
        ("^[0-9]+$", "12\n", False),
        (r"^\d+$", "١٢", False),
    ],
)
def test_patterns_are_those_of_javascript_with_look_around(pattern: str, text: str, valid: bool) -> None:
    for schema, value in (({"pattern": pattern}, text), ({"propertyNames": {"pattern": pattern}}, {text: 1})):
        assert isinstance(Checker(stage(schema)).check(reply(json.dumps(value))), ValidReply) is valid


@pytest.mark.parametrize("raised", [SystemExit(2), RecursionError("too deep"), KeyError("a")])
def test_whatever_a_checker_raises_is_an_error_of_the_row(raised: BaseException) -> None:
    def extra(_: object) -> list[str]:
        raise raised

    found = Checker(stage({"type": "integer"}, extra)).check(reply("1"))
    assert isinstance(found, RowError)
    assert found.message.startswith("the reply cannot be checked: ")


@pytest.mark.parametrize("schema", [{"format": "date"}, {"anyOf": [{"format": "date"}, {"type": "null"}]}])
def test_what_fails_by_format_alone_counts_where_the_provider_enforced_the_schema(schema: dict[str, Any]) -> None:
    checker = Checker(stage({"type": "object", "properties": {"at": schema, "n": {"maximum": 5}}}))
    late, more = reply('{"at":"31.01.2026","n":1}'), reply('{"at":"31.01.2026","n":9}')
    assert isinstance(checker.check(late), RowError)
    assert isinstance(checker.check(more, enforced=True), RowError)
    assert checker.check(late, enforced=True) == ValidReply(late.text, json.loads(late.text), misformatted=True)


def test_every_price_of_two_digits_is_a_multiple_of_a_cent() -> None:
    price = compiled({"multipleOf": 0.01})
    assert [one for one in range(1, 10_000) if not price.is_valid(one / 100)] == []
    assert [one for one in range(1, 10_000) if price.is_valid(one / 1000) != (one % 10 == 0)] == []


ODD = st.sampled_from(
    [5, -1, 1.0, 2.5, True, None, "string", "x", ["a", "a"], ["string"], [{}], [], {}, {"a": 5}, {"a": {}}]
)
KEYS = "type properties required items enum const minLength multipleOf uniqueItems $id $defs anyOf not if format title"


@given(st.dictionaries(st.sampled_from(KEYS.split()), ODD, min_size=1, max_size=3), st.booleans())
def test_what_compiles_is_what_jsonschema_holds_for_a_schema(schema: dict[str, Any], nested: bool) -> None:
    body = {"properties": {"it": schema}} if nested else schema
    try:
        jsonschema.Draft202012Validator.check_schema(body)
    except jsonschema.SchemaError:
        with pytest.raises(ValueError):
            compiled(body)
        assert schema_faults(body)
    else:
        compiled(body)
        assert schema_faults(body) == []


def test_an_anchor_is_a_place_within_the_schema() -> None:
    schema = {"properties": {"a": {"$ref": "#here"}}, "$defs": {"x": {"$anchor": "here", "type": "string"}}}
    assert schema_faults(schema) == []
    assert error_of('{"a": 1}', body=schema).message == 'a: 1 is not of type "string"'
    [(_, message)] = schema_faults({"properties": {"a": {"$ref": "#there"}}})
    assert message.startswith("'#there' does not exist")


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": ["string", "null"]}, 1, 'the reply: 1 is not of types "null", "string"'),
        ({"enum": [1, "a", None, {"b": []}]}, "é", 'the reply: "é" is not one of 1, "a", null, {"b":[]}'),
        ({"properties": {"a b": {"type": "null"}}}, {"a b": [1]}, "['a b']: [1] is not of type \"null\""),
        ({"properties": {"it's": {"type": "null"}}}, {"it's": True}, "['it\\'s']: true is not of type \"null\""),
        ({"items": {"items": {"maximum": 1}}}, [[1], [0, 2]], "[1][1]: 2 is greater than the maximum of 1"),
        ({"required": ["a"]}, {}, 'the reply: "a" is a required property'),
        ({"multipleOf": 0.01}, 19.999, "the reply: 19.999 is not a multiple of 0.01"),
    ],
)
def test_an_error_says_where_and_what(schema: dict[str, Any], value: Any, message: str) -> None:
    assert error_of(json.dumps(value), body=schema).message == message


@given(values, values)
def test_what_is_not_an_enum_is_an_error_and_what_is_one_is_not(value: Any, other: Any) -> None:
    checked = Checker(stage({"enum": [value]})).check(reply(json.dumps(other)))
    assert isinstance(checked, tuple) is jsonschema.Draft202012Validator({"enum": [value]}).is_valid(other)


@given(st.integers(-(10**400), 10**400), st.sampled_from([1, 3, 0.01, 1e-7]))
def test_no_number_is_too_large_to_be_judged(number: int, step: float) -> None:
    body = {"type": "integer", "multipleOf": step, "maximum": 0}
    checked = Checker(stage(body)).check(reply(json.dumps(number)))
    assert number <= 0 or not isinstance(checked, tuple)


def doubled(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """A schema each of whose parts leads to the next one twice."""
    parts: dict[str, Any] = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**parts, f"a{levels}": {"type": "integer"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "prefixItems"])
def test_a_schema_whose_parts_look_too_often_at_a_value_is_refused(keyword: str) -> None:
    assert schema_faults(doubled(8, keyword)) == []
    ((path, message),) = schema_faults(doubled(13, keyword))
    assert path == ()
    assert "more than 10,000 parts of the schema look at the same value; let fewer references" in message


NESTED = {"type": "array", "items": {"$ref": "#"}}


def test_many_fields_of_one_shape_and_a_tree_are_no_matter() -> None:
    fields = {f"f{n}": {"$ref": "#/$defs/part"} for n in range(2_000)}
    part = {"anyOf": [{"type": "null"}, {"properties": {"left": {"$ref": "#/$defs/part"}, "x": {"type": "string"}}}]}
    body = {"properties": fields, "$defs": {"part": part}}
    assert schema_faults(body) == []
    assert schema_cost(body).visits < 20


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"anyOf": [{"type": "null"}, NESTED, NESTED]}, "[" * 40 + "1" + "]" * 40),
        ({"items": {"enum": [*range(3_000)]}}, json.dumps([0.5] * 3_000)),
        (doubled(11, "anyOf"), '"x"'),
    ],
)
def test_errors_that_would_take_too_long_to_make_are_told_in_one_sentence(body: dict[str, Any], value: str) -> None:
    error = error_of(value, body=body)
    assert error.type is ErrorType.SCHEMA_MISMATCH
    assert error.message == TOO_MANY


def test_of_many_wrong_values_beside_a_long_enum_the_first_alone_is_told() -> None:
    error = error_of(json.dumps([0.5] * 1_000), body={"items": {"enum": [*range(1_000)]}})
    assert error.message.startswith("[0]: 0.5 is not one of 0, 1")
    assert error.message.count("0.5 is not one of") == 1


def test_a_pattern_may_go_back_less_often_in_a_reply_of_many_texts() -> None:
    body = {"items": {"pattern": "^(?:(?!bad).)*$"}}
    assert isinstance(Checker(stage(body)).check(reply(json.dumps(["good text"] * 20_000))), ValidReply)
    assert isinstance(Checker(stage(body)).check(reply(json.dumps(["good text " * 1_000] * 20))), ValidReply)
    error = error_of(json.dumps(["x" * 20_000, *["good text"] * 20_000]), body=body)
    assert "was given up after going back" in error.message
