"""Which text is JSON, which value is a result, what is mended, and which of several messages counts."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import ErrorType, RowError, Where
from agac.core.keys import Fingerprinter
from agac.core.types import Finish, Message, Params, Reply, Request, Schema, Usage
from agac.engine.ask.mended_json import MAX_READS, mended_json
from agac.engine.ask.validate import MAX_ERRORS, Checker, ValidReply, complaint, parsed, repair_request
from agac.plan.stage import ExtraCheck, PlannedModel, PlannedStage
from agac.providers.provider import Provider
from agac.spec.field_shapes import WholeNumbers
from agac.spec.templates import compile_template
from agac.spec.workflow import StageSettings


def stage(body: dict[str, Any] | None, extra: ExtraCheck | None = None) -> PlannedStage:
    schema = Schema("answer", body) if body is not None else None
    prompt, _ = compile_template("${text}", Where("workflows/x.yml"))
    assert prompt is not None
    provider = Provider(name="local", dialect="openai-chat", base_url="http://127.0.0.1:1")
    return PlannedStage(
        name="one", index=0, needs=(),
        ancestors=(), system=None, prompt=prompt, schema=schema, extra_check=extra,
        models=(PlannedModel(provider, "small", Params()),),
        prints=Fingerprinter(provider="local", model="small", params=Params(), schema=schema),
    )  # fmt: skip


def reply(*texts: str, finish: Finish = Finish.STOP, refusal: str | None = None) -> Reply:
    return Reply(texts[0], finish, Usage(), "small", refusal, others=texts[1:])


Body = dict[str, Any] | None


def checked(found: Reply, body: Body = None, *, mends: bool = False) -> ValidReply | RowError:
    return Checker(replace(stage(body), settings=StageSettings(json_repair=mends))).check(found)


def error_of(*texts: str, body: Body = None, mends: bool = False, **more: Any) -> RowError:
    error = checked(reply(*texts, **more), body, mends=mends)
    assert isinstance(error, RowError)
    return error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), (" [1, 2]\n", [1, 2]), ('{"a": null}', {"a": None}), ("```json\n[]\n```", []),
        ("```\n[]\n```", []), ("  ```JSON  \r\n{}\r\n```  \n", {}), ("```json\n```", ValueError),
        ('"```json\\n1\\n```"', "```json\n1\n```"), ("18446744073709551617", 18446744073709551617),
        ("", ValueError), ("   ", ValueError), ("yes", ValueError), ("{'a': 1}", ValueError),
        ('{"a": 1,}', ValueError), ("[1] [2]", ValueError), ("Sure! {}", ValueError),
        ("{} Anything else?", ValueError), ("```json\n{}\n``` Anything else?", ValueError),
        ("Sure!\n```json\n{}\n```", ValueError), ("```json\n{}\n```\n```json\n{}\n```", ValueError),
        ("```python\n{}\n```", ValueError), ("NaN", ValueError), ("[Infinity]", ValueError),
        ('{"a": -Infinity}', ValueError), ("1e400", ValueError), ('{"a": 1, "a": 1}', ValueError),
        ('[{"b": {"a": 1, "a": 2}}]', ValueError), ('"\\ud800"', ValueError), ('{"\\udfff": 1}', ValueError),
        ("9" * 5000, ValueError), ("[" * 100_000, ValueError), ("[" * 100_000 + "]" * 100_000, ValueError),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, ValueError), ("\ufeff{}", ValueError),
    ],
)  # fmt: skip
def test_what_is_json(text: str, value: Any) -> None:
    if value is ValueError:
        with pytest.raises(ValueError):
            parsed(text)
    else:
        assert parsed(text)[1] == value


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner),
    max_leaves=10,
)


@given(values, st.booleans(), st.booleans())
def test_every_value_comes_back(value: Any, fenced: bool, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert parsed(f"```json\n{text}\n```" if fenced else text)[1] == value


FINISHES = [
    (Finish.LENGTH, ErrorType.TRUNCATED),
    (Finish.REFUSAL, ErrorType.REFUSED),
    (Finish.FILTER, ErrorType.FILTERED),
    (Finish.TOOLS, ErrorType.PROVIDER_ERROR),
    (Finish.PAUSED, ErrorType.PROVIDER_ERROR),
    (Finish.OTHER, ErrorType.PROVIDER_ERROR),
]


@pytest.mark.parametrize("texts", [[""], ["{}"], ["a fine text"], ["{}", "{}"]])
@pytest.mark.parametrize("body", [None, {"type": "object"}])
def test_only_a_reply_that_ended_by_itself_is_looked_at(texts: list[str], body: Body) -> None:
    assert {finish for finish, _ in FINISHES} | {Finish.STOP} == set(Finish)
    for finish, error in FINISHES:
        assert error_of(*texts, body=body, finish=finish).type is error


@pytest.mark.parametrize(
    ("text", "body", "refusal", "error", "words"),
    [
        ("", None, None, ErrorType.EMPTY_RESPONSE, "is empty"),
        ("\n\t ", {}, None, ErrorType.EMPTY_RESPONSE, "is empty"),
        ("{}", {}, "not me", ErrorType.REFUSED, "not me"),
        ("\ud800", None, None, ErrorType.SCHEMA_MISMATCH, "lone surrogate"),
        ("a\udfffb", None, None, ErrorType.SCHEMA_MISMATCH, "lone surrogate"),
    ],
)
def test_what_is_blank_refused_or_no_text_is_no_result(
    text: str, body: Body, refusal: str | None, error: ErrorType, words: str
) -> None:
    found = error_of(text, body=body, refusal=refusal)
    assert (found.type, words in found.message) == (error, True)


def test_errors_are_few_short_and_say_where() -> None:
    body = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    error = error_of(json.dumps([{"n": "x" * 5000}] * 50), body=body)
    assert error.message.count("; ") == MAX_ERRORS - 1
    assert len(error.message) < MAX_ERRORS * 400
    assert error.message.startswith("[0].n: ")


def test_what_a_python_schema_says_counts_after_the_json_schema() -> None:
    checker = Checker(stage({"type": "object"}, lambda value: ["a must be even"] if value.get("a") == 1 else []))
    assert checker.check(reply('{"a": 1}')) == RowError(ErrorType.SCHEMA_MISMATCH, "a must be even")
    assert checker.check(reply('{"a": 2}')) == ValidReply('{"a":2}', {"a": 2})
    assert "is not of type" in checker.check(reply("[]")).message  # type: ignore[union-attr]


def test_a_re_ask_for_plain_text_quotes_every_message_and_asks_for_no_json() -> None:
    error = RowError(ErrorType.SCHEMA_MISMATCH, "a: bad; b: worse")
    request = Request((Message("user", "Go."),))
    _, said, told = repair_request(request, reply("one", "two"), error, wants_json=False).messages
    assert said == Message("assistant", "one\n\ntwo")
    assert told.text.endswith("What is wrong:\n- a: bad\n- b: worse\nReply again.")


def test_a_sign_that_parts_problems_may_stand_in_one() -> None:
    """Also in one that was read from the store, within quotes."""
    body = {"type": "object", "properties": {"mood": {"enum": ["glad; calm", "sad"]}}}
    wrong = error_of('{"mood": "so; so"}', body=body)
    told = '- mood: "so; so" is not one of "glad; calm", "sad"\nReply'
    for error in (wrong, RowError(wrong.type, wrong.message)):
        assert told in complaint(error, wants_json=True)
    two = RowError.listing(ErrorType.CHECK_FAILED, ["net; tax: add up", "b"])
    assert "- net; tax: add up\n- b\nReply" in complaint(two, wants_json=True)


# Almost JSON, with `json_repair: true`.

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 1,}', "{'n': 1}", "{n: 1}", '{"n": 1', '{"n": 1}}', "{\u201cn\u201d: 1}", '{"n":: 1;}', '{"n": +1}',
        '{ // the first\n"n": 1}', '{"n": 1 # first, of 2\n}', '{"n": /* of 2 */ 1}',
        'Sure! Here it is:\n```json\n{"n": 1,}\n```\nAnything else?',
        'Sure!\n```\n{"n": 1}\n```', '```json\n{"n": 1}',
    ],
)  # fmt: skip
def test_slips_of_form_are_mended_and_marked(text: str) -> None:
    assert checked(reply(text), OBJECT, mends=True) == ValidReply('{"n":1}', {"n": 1}, mended=True)
    assert error_of(text, body=OBJECT).type is ErrorType.SCHEMA_MISMATCH


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': \"it's\", b: yes,}", {"a": "it's", "b": "yes"}), ('{"a": True, "b": None,}', {"a": True, "b": None}),
        ('{"a": "\\u00e4\\n\\ud83d\\ude00 \\"x\\"",}', {"a": 'ä\n😀 "x"'}),
        ('{"a": "he said "hi" to me"}', {"a": 'he said "hi" to me'}),
        ('{"a": "// 1",\n"b": "# 2",}', {"a": "// 1", "b": "# 2"}),
        ("{url: http://x.example/1,}", {"url": "http://x.example/1"}),
        ('{"day": 2026-01-31}', {"day": "2026-01-31"}), ('{"a": [1.50, -2e3, "007"]', {"a": [1.5, -2000.0, "007"]}),
        ('{"a": "NaN", "b": [],}', {"a": "NaN", "b": []}), ("{1: 2, 'a': '',}", {"1": 2, "a": ""}),
        ('{"a": "x" "b": "y"}', {"a": "x", "b": "y"}), ('{"a": "one\ntwo",}', {"a": "one\ntwo"}),
        ("{'a': 'don't', 'b': 'rock 'n' roll'}", {"a": "don't", "b": "rock 'n' roll"}), ("[1; 2]", [1, 2]),
        ('{"a": "he said "hi", and "ho".", "b": 1}', {"a": 'he said "hi", and "ho".', "b": 1}),
        ('[{"a": 1}\n{"a": 2}]', [{"a": 1}, {"a": 2}]), ('{"a": [1, 2}', {"a": [1, 2]}), ('{"a": "",}', {"a": ""}),
    ],
)  # fmt: skip
def test_what_is_mended_says_what_the_reply_says(text: str, value: Any) -> None:
    assert checked(reply(text), {}, mends=True)[1] == value  # type: ignore[index]


LOST = [
    '{"n": 1 000 000}', '{"n": 5 000}', '{"n": 5\u00a0000}', '{"n": 12:30}', '{"n": 3 or 4}', '{"n": 10%}',
    '{"n": 10 %}',
    "[[1, []\n]] []", '{"a": [1, [ ]','{"a": [{"b": 1,}, {}]} {}', "[1 200]", "[1 200, 3]", "[5. 5]", '{"n": [1\n2]}',
    '{"n": $5}', '{"n": 5€}', '{"n": 5 apples}', '{"n": ~5}', '{"n": <5}', '{"n": ≥5}', '{"n": (5)}', '{"n": - 5}',
    '{"n": 5½}', '{"n": 007}', '{"n": 5 (of 9)}', '{"n": 5?}', "[1, 2, ...]", "[1, 2, …]",
    '{"n": [1, 2, ...], "m": 3}', '{"a": "x" "y"}', '{"a": "x"y, "b": 2}', "{'a': 'it''s'}",
    '{"a": "x", b}', '{"n": 1,}\n5', '{"n": 1,} {"n": 2,}', '{"n": 1} 000', '{"n": 1} or 2',
    '{"n": 1}\nActually, it is two.', '{"n": 1}\n```\nand 2', "[1, 2,] [3,]", '[1, 2]\n"x"', "{'n': 1, 'n': 2}",
    "{'n': 1, 'n': 1}", '[{"a": 1, "a": 2,}]', '{"a": {b: 1, b: 2}, "c": 3}', '{"n": 1, "tags": [#1, #2]}',
    '{"a": "yes" or "no"}', '{"a": ["x" or "y"]}', '{"a": "x" + "y"}', "{'a': 'it's'}", "{'a': 'the dogs' bone'}",
    '{"a": "a 5" pipe", "b": 2}', '{"a: 5, "b": 6}', '{"a": 5", "b": 6}', "{'a': 6'}", '{"a": 5\\, "b": 6}',
    '["a" text, "b"]', '["a"\n"b"]', "[1,, 2]", "[, 2]", '{"a": "", b, "c": 1}',
    '{"a": {"b": 1], "c": 2}', '{"a": [1, 2, "b": 3}', '[{"a": 1, {"a": 2}]', '{"a": "open, "b": 2}',
    '{"a": "cut in the mid', '{"a": tru', '{"a": 1.', '{"a": [1, 2,', '{"a": 1,', '{"a": 1,} [',
    '{"a": NaN,}', '{"a": -Infinity,}', '{"a": undefined,}', '{"a": nan,}', '{"a": -inf,}',
    '```json\n{"n": 5 000}\n```', '{"n": 1 // of 2}',
]  # fmt: skip


@pytest.mark.parametrize("text", LOST)
@pytest.mark.parametrize("body", [{}, {"type": ["object", "array"]}])
def test_nothing_that_a_reply_says_is_lost_by_mending(text: str, body: Body) -> None:
    assert error_of(text, body=body, mends=True).type is ErrorType.SCHEMA_MISMATCH


LEFT = [
    "The value is 1.", "a: 1", '"a": 1', 'Here is the JSON: {"a": 1}', "I would say {a: 1}, or [1, 2]",
    '{"n": 1}\nI hope that helps.',
    '{"a": 1}{"a": 2}', '{"a": 1}\n{"a": 2}', '```\n{"a": 1}\n```\nor\n```\n{"a": 2}\n```', '{"a": 1, "a": 2}',
    '{"a": }', '{"a": 1, "b": }', '{"a": NaN}', '{"a": 1e999,}', '{"a": "\\ud800",}', '{"a": ' + "9" * 5000 + ",}",
    "{ I think it is fine", "{" * 5000, "[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000,
    "```json\n```", "", "{", "[", '{"a": 1,} {"b": 2,}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "body"),
    [
        *((text, body) for text in LEFT for body in ({}, {"type": ["object", "array"]})),
        *((text, OBJECT) for text in ('{"n": "one",}', "{'b': 1}", '{"n": 1, "b": 2,}', "[1, 2,]", "{}")),
    ],
)
def test_nothing_is_made_out_of_prose_nothing_is_filled_in_and_what_is_mended_is_valid(text: str, body: Body) -> None:
    assert error_of(text, body=body, mends=True).type in (ErrorType.SCHEMA_MISMATCH, ErrorType.EMPTY_RESPONSE)


def test_what_is_json_is_never_touched_and_a_list_stays_one() -> None:
    assert checked(reply('{"n": 1}'), OBJECT, mends=True) == ValidReply('{"n":1}', {"n": 1}, mended=False)
    assert (mended_json('{"a": 1,}'), mended_json("[1, 2,]")) == ('{"a": 1}', "[1, 2]")


parts = st.lists(st.sampled_from([*"{}[]\",:\\'1a \n`", "```json\n", "true", '"a"', "NaN", "\\ud800"]), max_size=30)


@given(st.text() | parts.map("".join))
def test_every_text_is_checked_without_an_accident_and_only_json_is_mended(text: str) -> None:
    assert mended_json(text) is None or text.strip().startswith(("{", "[", "`")) or "```" in text
    found = checked(reply(text), {}, mends=True)
    if isinstance(found, ValidReply):
        json.dumps(found.value, allow_nan=False).encode()


@given(st.dictionaries(texts, values, min_size=1), st.booleans())
def test_a_comma_too_many_never_changes_a_value(value: Any, escaped: bool) -> None:
    mended = mended_json(json.dumps(value, ensure_ascii=escaped)[:-1] + ",}")
    assert mended is None or json.loads(mended) == value


def test_the_repair_of_a_reply_is_given_up_after_so_many_characters() -> None:
    assert mended_json(f"[{'1, ' * 1_000}]") == f"[{', '.join('1' * 1_000)}]"
    assert mended_json(f"[{'1, ' * MAX_READS}]") is None


# Several messages in one reply.


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(['{"n": ', '{"n": 1}'], id="the later one"),
        pytest.param(['{"n": 1}', '{"n": 1'], id="the earlier one"),
        pytest.param(['{"m": 1}', '{"n": "x"}', '{"n": 1}', "no JSON"], id="the one of the right shape"),
        pytest.param(['{"n": 1}', '{"n":1}'], id="the same twice"),
        pytest.param(['{"n": 1}', '```json\n{"n": 1}\n```'], id="the same, fenced"),
    ],
)
def test_of_several_messages_the_one_that_is_valid_is_the_answer(texts: list[str]) -> None:
    for mends in (False, True):
        assert checked(reply(*texts), OBJECT, mends=mends) == ValidReply('{"n":1}', {"n": 1})


def test_no_message_or_two_different_ones_are_no_answer_and_one_is_mended_only_then() -> None:
    differ = error_of('{"n": 1}', '{"n": 2}', "{", body=OBJECT)
    words = "the reply holds 2 messages that are valid and differ; nobody knows which one is meant"
    assert differ == RowError(ErrorType.SCHEMA_MISMATCH, words)
    wrong = error_of('{"m": 1}', "{", "[]", body=OBJECT)
    for words in ("message 1: ", "message 2: the reply is not JSON", "message 3: "):
        assert words in wrong.message
    assert checked(reply('{"n": 1,}', "{"), OBJECT, mends=True) == ValidReply('{"n":1}', {"n": 1}, mended=True)
    assert error_of('{"n": 1,}', '{"n": 2,}', body=OBJECT, mends=True).type is ErrorType.SCHEMA_MISMATCH


def test_without_a_schema_texts_that_differ_are_never_joined() -> None:
    assert error_of("Half an ans", "Half an answer.").type is ErrorType.SCHEMA_MISMATCH
    assert checked(reply("The same.", "The same."))[1] == "The same."  # type: ignore[index]


@given(st.lists(st.integers(0, 2) | st.sampled_from(["{", "x"]), min_size=2, max_size=5))
def test_the_order_of_messages_decides_nothing(drawn: list[Any]) -> None:
    texts = [text if isinstance(text, str) else json.dumps({"n": text}) for text in drawn]
    valid = {text for text in drawn if isinstance(text, int)}
    for order in (texts, texts[::-1]):
        assert isinstance(checked(reply(*order), OBJECT), ValidReply) == (len(valid) == 1)


# To JSON Schema 2.0 is an integer; to a guard, and to whoever reads the result, it is 2.

INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}


@pytest.mark.parametrize(
    ("body", "text", "written"),
    [
        (INTEGER, "2.0", "2"), (INTEGER, "-0.0", "0"), (INTEGER, "2e3", "2000"), (NUMBER, "2.0", "2.0"),
        ({"type": ["integer", "null"]}, "2.0", "2"), ({"type": ["integer", "number"]}, "2.0", "2.0"),
        (INTEGER, "1e19", "1e+19"), ({"enum": [1, 2]}, "2.0", "2"), ({}, "[2.0]", "[2.0]"),
        ({"type": "array", "items": INTEGER}, "[1, 2.0]", "[1,2]"),
        ({"type": "array", "prefixItems": [NUMBER], "items": INTEGER}, "[1.0, 2.0, 3.0]", "[1.0,2,3]"),
        ({"type": "object", "properties": {"n": INTEGER, "x": NUMBER}}, '{"n": 2.0, "x": 2.0, "y": 2.0}',
         '{"n":2,"x":2.0,"y":2.0}'),
        ({"type": "object", "additionalProperties": INTEGER}, '{"n": 2.0}', '{"n":2}'),
        ({"type": "object", "properties": {"x": NUMBER}, "additionalProperties": INTEGER}, '{"n": 2.0, "x": 2.0}',
         '{"n":2,"x":2.0}'),
        ({"type": "object", "patternProperties": {"^n": INTEGER}, "additionalProperties": False}, '{"n": 2.0}',
         '{"n":2}'),
        ({"type": "object", "patternProperties": {"^n": INTEGER, "x$": NUMBER}}, '{"x": 2.0}', '{"x":2.0}'),
        ({"$ref": "#/$defs/part", "$defs": {"part": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}},
          "n": INTEGER}}, '{"n": 2.0}', '{"n":2}'),
        ({"anyOf": [INTEGER, {"type": "null"}]}, "2.0", "2"), ({"anyOf": [INTEGER, NUMBER]}, "2.0", "2.0"),
        ({"oneOf": [{"type": "object", "properties": {"n": INTEGER}}, {"type": "string"}]}, '{"n": 2.0}', '{"n":2}'),
        ({"allOf": [{"properties": {"n": INTEGER}}], "properties": {"n": NUMBER}}, '{"n": 2.0}', '{"n":2}'),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
          "n": INTEGER, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}},
         '{"n": 1.0, "below": [{"n": 2.0, "below": []}]}', '{"n":1,"below":[{"n":2,"below":[]}]}'),
    ],
)  # fmt: skip
def test_what_a_schema_calls_an_integer_is_one(body: dict[str, Any], text: str, written: str) -> None:
    found = checked(reply(text), body)
    assert isinstance(found, ValidReply)
    assert found.text == written
    assert json.dumps(found.value, separators=(",", ":")) == written


def test_integers_of_a_mended_reply_and_of_several_equal_messages_are_integers() -> None:
    assert checked(reply('{"n": 2.0,}'), OBJECT, mends=True) == ValidReply('{"n":2}', {"n": 2}, mended=True)
    assert checked(reply('{"n": 2.0}', '{"n": 2}'), OBJECT) == ValidReply('{"n":2}', {"n": 2})


@given(values)
def test_no_value_is_another_one_with_whole_numbers(value: Any) -> None:
    body = {"additionalProperties": INTEGER, "items": INTEGER, "type": ["object", "array", "integer", "number", "null"]}
    assert WholeNumbers(body).of(value) == value
