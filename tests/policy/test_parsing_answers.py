"""Which text is JSON and which value is a result: tables and generated values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import ErrorType, RowError, Where
from agac.core.keys import Fingerprinter
from agac.core.types import Finish, Message, Params, Reply, Request, Schema, Usage
from agac.engine.validate import MAX_ERRORS, Checker, parsed, repair_request
from agac.plan.stage import DEFAULT_TIMEOUT, ExtraCheck, PlannedStage
from agac.providers.provider import Provider
from agac.spec.templates import compile_template


def stage(body: dict[str, Any] | None, extra: ExtraCheck | None = None) -> PlannedStage:
    schema = Schema("answer", body) if body is not None else None
    prompt, _ = compile_template("${text}", Where("workflows/x.yml"))
    assert prompt is not None
    provider = Provider(name="local", dialect="openai-chat", base_url="http://127.0.0.1:1")
    return PlannedStage(
        name="one", index=0, needs=(),
        ancestors=(), system=None, prompt=prompt, schema=schema, extra_check=extra,
        provider=provider, model="small", params=Params(), timeout=DEFAULT_TIMEOUT, concurrency=None,
        prints=Fingerprinter(provider="local", model="small", params=Params(), schema=schema),
    )  # fmt: skip


def reply(text: str, finish: Finish = Finish.STOP, refusal: str | None = None) -> Reply:
    return Reply(text, finish, Usage(), "small", refusal)


def error_of(text: str, body: dict[str, Any] | None = None, finish: Finish = Finish.STOP, **more: Any) -> RowError:
    checked = Checker(stage(body)).check(reply(text, finish, **more))
    assert isinstance(checked, RowError)
    return checked


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


@given(st.text())
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        _, value = parsed(text)
    except ValueError:
        return
    json.dumps(value, allow_nan=False).encode()


FINISHES = [
    (Finish.LENGTH, ErrorType.TRUNCATED),
    (Finish.REFUSAL, ErrorType.REFUSED),
    (Finish.FILTER, ErrorType.FILTERED),
    (Finish.OTHER, ErrorType.PROVIDER_ERROR),
]


@pytest.mark.parametrize(("finish", "error"), FINISHES)
@pytest.mark.parametrize("text", ["", "{}", "a fine text"])
@pytest.mark.parametrize("body", [None, {"type": "object"}])
def test_only_a_reply_that_ended_by_itself_is_looked_at(
    finish: Finish, error: ErrorType, text: str, body: dict[str, Any] | None
) -> None:
    assert error_of(text, body, finish).type is error


def test_every_way_to_end_is_in_the_table() -> None:
    assert {finish for finish, _ in FINISHES} | {Finish.STOP} == set(Finish)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
@pytest.mark.parametrize("body", [None, {}])
def test_blank_is_empty(text: str, body: dict[str, Any] | None) -> None:
    assert error_of(text, body).type is ErrorType.EMPTY_RESPONSE


def test_a_refusal_beside_a_text_is_a_refusal() -> None:
    error = error_of("{}", {}, refusal="not me")
    assert (error.type, "not me" in error.message) == (ErrorType.REFUSED, True)


def test_text_is_kept_with_its_spaces() -> None:
    checked = Checker(stage(None)).check(reply(" a\n"))
    assert checked[:2] == ('" a\\n"', " a\n")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_is_no_text(text: str) -> None:
    error = error_of(text)
    assert error.type is ErrorType.SCHEMA_MISMATCH
    error.message.encode()


def test_errors_are_few_short_and_say_where() -> None:
    body = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    error = error_of(json.dumps([{"n": "x" * 5000}] * 50), body)
    assert error.message.count("; ") == MAX_ERRORS - 1
    assert len(error.message) < MAX_ERRORS * 400
    assert error.message.startswith("[0].n: ")


def test_the_whole_reply_is_named_as_such() -> None:
    assert error_of("[]", {"type": "object"}).message == 'the reply: [] is not of type "object"'


def test_what_a_python_schema_says_counts_after_the_json_schema() -> None:
    checker = Checker(stage({"type": "object"}, lambda value: ["a must be even"] if value.get("a") == 1 else []))
    assert checker.check(reply('{"a": 1}')) == RowError(ErrorType.SCHEMA_MISMATCH, "a must be even")
    assert checker.check(reply('{"a": 2}')) == ('{"a":2}', {"a": 2}, False)
    assert "is not of type" in checker.check(reply("[]")).message  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("date", "2026-02-28", "2026-02-30"),
        ("email", "a@b.c", "nobody"),
        ("uuid", "12345678-1234-1234-1234-123456789abc", "1234"),
        ("ipv4", "127.0.0.1", "300.0.0.1"),
    ],
)
def test_formats_are_checked(kind: str, good: str, bad: str) -> None:
    checker = Checker(stage({"type": "string", "format": kind}))
    assert checker.check(reply(json.dumps(good))) == (json.dumps(good), good, False)
    assert isinstance(checker.check(reply(json.dumps(bad))), RowError)


def test_a_re_ask_holds_the_original_and_the_last_reply_only() -> None:
    original = Request((Message.of("system", "s"), Message.of("user", "u")), Schema("a", {}), Params(seed=1))
    first = repair_request(original, reply("wrong"), RowError(ErrorType.SCHEMA_MISMATCH, "a: bad; b: worse"))
    assert first.messages[:2] == original.messages
    assert [m.role for m in first.messages[2:]] == ["assistant", "user"]
    assert first.messages[2].parts[0].text == "wrong"
    assert "- a: bad\n- b: worse" in first.messages[3].parts[0].text
    assert "JSON only" in first.messages[3].parts[0].text
    assert (first.schema, first.params) == (original.schema, original.params)


def test_a_re_ask_for_plain_text_asks_for_no_json() -> None:
    original = Request((Message.of("user", "u"),))
    again = repair_request(original, reply("wrong"), RowError(ErrorType.SCHEMA_MISMATCH, "no character"))
    assert "JSON" not in again.messages[2].parts[0].text
