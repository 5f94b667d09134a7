"""Which of several messages is the answer: a table. The choice is made in one place, whatever the dialect."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_parsing_answers import reply, stage

from agac.core.errors import ErrorType, RowError
from agac.core.types import Finish, Message, Reply, Request
from agac.engine.validate import Checker, ValidReply, repair_request

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def several(*texts: str, **more: Any) -> Reply:
    return replace(reply(texts[0]), others=texts[1:], **more)


def checked(found: Reply, body: dict[str, Any] | None = NUMBER, *, mends: bool = False) -> ValidReply | RowError:
    return Checker(replace(stage(body), json_repair=mends)).check(found)


VALID = {
    "the later one": ['{"n": ', '{"n": 1}'],
    "the earlier one": ['{"n": 1}', '{"n": 1'],
    "the one of the right shape": ['{"m": 1}', '{"n": "x"}', '{"n": 1}', "no JSON"],
    "the same twice": ['{"n": 1}', '{"n":1}'],
    "the same, fenced": ['{"n": 1}', '```json\n{"n": 1}\n```'],
}


@pytest.mark.parametrize("texts", VALID.values(), ids=VALID.keys())
@pytest.mark.parametrize("mends", [False, True])
def test_the_one_that_is_valid_is_the_answer(texts: list[str], mends: bool) -> None:
    found = checked(several(*texts), mends=mends)
    assert isinstance(found, ValidReply)
    assert (found.value, found.mended) == ({"n": 1}, False)


def test_two_that_are_valid_and_differ_are_none() -> None:
    error = checked(several('{"n": 1}', '{"n": 2}', "{"))
    assert error == RowError(
        ErrorType.SCHEMA_MISMATCH,
        "the reply holds 2 messages that are valid and differ; nobody knows which one is meant",
    )


def test_none_that_is_valid_says_what_is_wrong_with_each() -> None:
    error = checked(several('{"m": 1}', "{", "[]"))
    assert isinstance(error, RowError)
    assert error.type is ErrorType.SCHEMA_MISMATCH
    for words in ("message 1: ", "message 2: the reply is not JSON", "message 3: "):
        assert words in error.message


def test_one_is_mended_only_where_none_is_valid_as_it_stands() -> None:
    mended = checked(several('{"n": 1,}', "{"), mends=True)
    assert isinstance(mended, ValidReply)
    assert (mended.value, mended.mended) == ({"n": 1}, True)
    assert isinstance(checked(several('{"n": 1,}', '{"n": 2,}'), mends=True), RowError)


def test_without_a_schema_texts_that_differ_are_never_joined() -> None:
    assert isinstance(checked(several("Half an ans", "Half an answer."), None), RowError)
    found = checked(several("The same.", "The same."), None)
    assert isinstance(found, ValidReply)
    assert found.value == "The same."


@pytest.mark.parametrize("finish", [finish for finish in Finish if finish is not Finish.STOP])
def test_a_reply_that_ended_otherwise_is_none_however_many_are_valid(finish: Finish) -> None:
    error = checked(several('{"n": 1}', '{"n": 1}', finish=finish))
    assert isinstance(error, RowError)
    assert error.type is not ErrorType.SCHEMA_MISMATCH


@given(st.lists(st.integers(0, 2) | st.sampled_from(["{", "x"]), min_size=2, max_size=5))
def test_the_order_of_messages_decides_nothing(drawn: list[Any]) -> None:
    texts = [text if isinstance(text, str) else json.dumps({"n": text}) for text in drawn]
    valid = {text for text in drawn if isinstance(text, int)}
    for order in (texts, texts[::-1]):
        found = checked(several(*order))
        assert isinstance(found, ValidReply) == (len(valid) == 1)


def test_asking_again_quotes_all_of_them() -> None:
    error = RowError(ErrorType.SCHEMA_MISMATCH, "two")
    again = repair_request(Request((Message.of("user", "Go."),)), several("one", "two"), error)
    assert again.messages[1] == Message.of("assistant", "one\n\ntwo")
