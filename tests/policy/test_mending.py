"""What `json_repair: true` makes of text that is almost JSON, and what it leaves alone."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_parsing_answers import reply, stage

from agac.core.errors import ErrorType, RowError
from agac.engine.validate import Checker, ValidReply, mended_json

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}

MENDED = [
    ('{"a": 1,}', {"a": 1}),
    ("{'a': 1}", {"a": 1}),
    ("{a: 1}", {"a": 1}),
    ('{"a": 1', {"a": 1}),
    ('{"a": 1}}', {"a": 1}),
    ('{"a": 1}\nI hope that helps.', {"a": 1}),
    ('{ // the first\n"a": 1}', {"a": 1}),
    ('Sure! Here it is:\n```json\n{"a": 1,}\n```\nAnything else?', {"a": 1}),
    ('Sure!\n```\n{"a": 1}\n```', {"a": 1}),
    ('```json\n{"a": 1}', {"a": 1}),
]


@pytest.mark.parametrize(("text", "value"), MENDED)
def test_slips_of_form_are_mended_and_marked(text: str, value: Any) -> None:
    mending = Checker(replace(stage(OBJECT), json_repair=True))
    assert mending.check(reply(text)) == ValidReply('{"a":1}', value, mended=True)
    plain = Checker(stage(OBJECT)).check(reply(text))
    assert isinstance(plain, RowError)
    assert plain.type is ErrorType.SCHEMA_MISMATCH


LEFT = [
    "The value is 1.", "a: 1", '"a": 1', 'Here is the JSON: {"a": 1}', "I would say {a: 1}, or [1, 2]",
    '{"a": 1}{"a": 2}', '{"a": 1}\n{"a": 2}', '```\n{"a": 1}\n```\nor\n```\n{"a": 2}\n```', '{"a": 1, "a": 2}',
    '{"a": }', '{"a": 1, "b": }', '{"a": NaN}', '{"a": 1e999,}', '{"a": "\\ud800",}', '{"a": ' + "9" * 5000 + ",}",
    "{ I think it is fine", "{" * 5000, "[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000,
    "```json\n```", "", "{", "[",
]  # fmt: skip


@pytest.mark.parametrize("text", LEFT)
@pytest.mark.parametrize("body", [{}, {"type": ["object", "array"]}], ids=["any", "object or array"])
def test_nothing_is_made_out_of_prose_and_nothing_is_filled_in(text: str, body: dict[str, Any]) -> None:
    checked = Checker(replace(stage(body), json_repair=True)).check(reply(text))
    assert isinstance(checked, RowError)
    assert checked.type in (ErrorType.SCHEMA_MISMATCH, ErrorType.EMPTY_RESPONSE)


@pytest.mark.parametrize("text", ['{"a": "one",}', "{'b': 1}", '{"a": 1, "b": 2,}', "[1, 2,]", "{}"])
def test_what_is_mended_has_to_be_valid_too(text: str) -> None:
    checked = Checker(replace(stage(OBJECT), json_repair=True)).check(reply(text))
    assert isinstance(checked, RowError)
    assert checked.type is ErrorType.SCHEMA_MISMATCH


def test_what_is_json_is_never_touched() -> None:
    checked = Checker(replace(stage(OBJECT), json_repair=True)).check(reply('{"a": 1}'))
    assert checked == ValidReply('{"a":1}', {"a": 1}, mended=False)


def test_an_object_stays_an_object_and_a_list_a_list() -> None:
    assert (mended_json('{"a": 1,}'), mended_json("[1, 2,]")) == ('{"a": 1}', "[1, 2]")
    assert mended_json('{"a": 1,} {"b": 2,}') is None


@given(st.text())
def test_no_text_is_more_than_left_alone(text: str) -> None:
    assert mended_json(text) is None or text.strip().startswith(("{", "[", "`")) or "```" in text


parts = st.lists(st.sampled_from([*"{}[]\",:\\'1a \n`", "```json\n", "true", '"a"', "NaN", "\\ud800"]), max_size=30)


@given(parts.map("".join))
def test_every_text_of_pieces_of_json_is_checked_without_an_accident(text: str) -> None:
    checked = Checker(replace(stage({}), json_repair=True)).check(reply(text))
    if isinstance(checked, ValidReply):
        json.dumps(checked.value, allow_nan=False).encode()
