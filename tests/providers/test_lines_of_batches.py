"""Lines of batches: how a request is written, and how every result that was ever seen is read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.redact import Redactor
from agac.core.types import Message, RateState, Reply, Request
from agac.providers.batch import ResultLine, UnreadableLine
from agac.providers.batch_apis import BATCH_APIS
from agac.providers.bodies import count, encode, json_of
from agac.providers.known_providers import SHIPPED
from agac.providers.table import DIALECTS
from agac.providers.waits import rate_state

OPENAI, ANTHROPIC = BATCH_APIS["openai"], BATCH_APIS["anthropic"]
COMPLETION = {"id": "chatcmpl-1", "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
REFUSED = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}


def said(**line: Any) -> bytes:
    return json.dumps({"id": "batch_req_a", "custom_id": "x", **line}).encode()


def answer(status: Any, body: Any, **more: Any) -> dict[str, Any]:
    return {"response": {"status_code": status, "request_id": "req_1", "body": body}, "error": None, **more}


def answered(status: int, body: Any, message: str = "") -> ResultLine:
    return ResultLine("x", "answered", status, encode(body), message)


def unanswered(message: str, *, status: int = 0) -> ResultLine:
    return ResultLine("x", "unanswered", status, b"", message)


EXPIRED = {"code": "batch_expired", "message": "This request could not be executed before the batch expired."}

NO_BODY, OOPS = "a response of status 200 without a body", {"code": "server_error", "message": "oops"}
NOT_SERVED = {"message": "no such model", "code": "invalid_model"}
OPENAI_LINES = [
    # the four shapes of provider-batch.md section 1
    ("a success", said(**answer(200, COMPLETION)), answered(200, COMPLETION)),
    ("an error of the endpoint, the outer error null", said(**answer(400, REFUSED)), answered(400, REFUSED)),
    ("expired", said(response=None, error=EXPIRED), ResultLine("x", "expired", message=EXPIRED["message"])),
    ("status 0 and nothing else", said(**answer(0, {})), unanswered("a response without a status")),
    # who ends a request that is in a batch
    ("cancelled", said(response=None, error={"code": "batch_cancelled"}),
     ResultLine("x", "cancelled", message="batch_cancelled")),
    ("the model's call timed out", said(error={"code": "request_timeout", "message": "timed out"}),
     unanswered("timed out")),
    # section 13
    *((f"200 with {body!r}", said(**answer(200, body)), unanswered(NO_BODY, status=200)) for body in ({}, None, " ")),
    ("a body as text", said(**answer(200, json.dumps(COMPLETION))),
     ResultLine("x", "answered", 200, json.dumps(COMPLETION).encode())),
    ("a status as text", said(**answer("429", {"error": "slow"})), answered(429, {"error": "slow"})),
    ("a truth value as status", said(**answer(True, COMPLETION)), unanswered("a response without a status")),
    ("no status", said(response={"body": COMPLETION}), unanswered("a response without a status")),
    ("neither a response nor an error", said(response=None, error=None), unanswered("neither a response nor an error")),
    ("a response that is none", said(response=[1]), unanswered("neither a response nor an error")),
    ("an error as text", said(response=None, error="worker died"), unanswered("worker died")),
    ("an error as a list", said(response=None, error=[1]), unanswered("an error without words")),
    ("a BOM", b"\xef\xbb\xbf" + said(**answer(200, COMPLETION)), answered(200, COMPLETION)),
    ("a carriage return", said(**answer(200, COMPLETION)) + b"\r", answered(200, COMPLETION)),
    # vLLM: no body, an error as an object or as text beside the status
    *((f"vLLM, {error!r}", said(response={"status_code": 400, "request_id": "req_1", "body": None}, error=error),
       answered(400, {"error": error}, "bad")) for error in ({"message": "bad", "code": 400}, "bad")),
    # Together: an error with a code and no response
    ("Together", said(error=NOT_SERVED), answered(200, {"error": NOT_SERVED}, "no such model")),
    ("an error beside a good answer is an error", said(**answer(200, COMPLETION, error=OOPS)),
     answered(200, {"error": OOPS}, "oops")),
    ("an error beside a bad answer", said(**answer(500, REFUSED, error=OOPS)), answered(500, REFUSED, "oops")),
]  # fmt: skip

MESSAGE = {"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn"}


def result(**result: Any) -> bytes:
    return json.dumps({"custom_id": "x", "result": result}).encode()


def errored(kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "req_1"}


ANTHROPIC_LINES = [
    ("a success", result(type="succeeded", message=MESSAGE), answered(200, MESSAGE)),
    *(
        (kind, result(type="errored", error=errored(kind)), answered(status, errored(kind), "why"))
        for kind, status in [
            ("invalid_request_error", 400), ("authentication_error", 401), ("billing_error", 402),
            ("permission_error", 403), ("not_found_error", 404), ("request_too_large", 413),
            ("rate_limit_error", 429), ("api_error", 500), ("timeout_error", 504), ("overloaded_error", 529),
            ("an_error_of_tomorrow", 500),
        ]
    ),
    ("nested once", result(type="errored", error={"type": "overloaded_error", "message": "why"}),
     answered(529, {"type": "error", "error": {"type": "overloaded_error", "message": "why"}}, "why")),
    ("an error as text", result(type="errored", error="worker died"), unanswered("worker died")),
    ("no reason", result(type="errored"), unanswered("an error without words")),
    ("expired", result(type="expired"),
     ResultLine("x", "expired", message="the batch ended before the request was worked on")),
    ("cancelled", result(type="canceled"),
     ResultLine("x", "cancelled", message="the batch was cancelled before the request was worked on")),
    ("a type of tomorrow", result(type="paused"), unanswered("a result of the unknown type paused")),
    ("no result", b'{"custom_id":"x"}', unanswered("no result")),
    ("a result that is none", b'{"custom_id":"x","result":[]}', unanswered("no result")),
    ("no message", result(type="succeeded", message=None), unanswered("a success without a message", status=200)),
]  # fmt: skip

CASES = [("openai", *case) for case in OPENAI_LINES] + [("anthropic", *case) for case in ANTHROPIC_LINES]


@pytest.mark.parametrize(
    ("api", "line", "expected"), [case[:1] + case[2:] for case in CASES], ids=[f"{c[0]}: {c[1]}" for c in CASES]
)
def test_a_line_of_results(api: str, line: bytes, expected: ResultLine) -> None:
    assert BATCH_APIS[api].result(line) == expected


UNREADABLE = [
    (b"", "it is empty"),
    (b" \r", "it is empty"),
    (b'{"custom_id": "x", "resp', "it is not JSON"),
    (b'{"custom_id": "x"} {}', "it is not JSON"),
    (b"\xff\xfe\x00", "it is not UTF-8"),
    (b'{"custom_id": "\xe4"}', "it is not UTF-8"),
    (b"null", "it is null, not an object"),
    (b"[1]", "it is a list, not an object"),
    (b'"x"', "it is a text, not an object"),
    (b"true", "it is a truth value, not an object"),
    (b"3", "it is a number, not an object"),
    (b'{"response": {}}', "it has no custom_id"),
    (b'{"custom_id": null}', "it has no custom_id"),
    (b'{"custom_id": ""}', "it has no custom_id"),
    (b'{"custom_id": 5}', "its custom_id is no text"),
    (b"[" * 100_000, "it is not JSON"),
]


@pytest.mark.parametrize("api", BATCH_APIS)
@pytest.mark.parametrize(("line", "words"), UNREADABLE, ids=[words + repr(line[:9]) for line, words in UNREADABLE])
def test_a_line_that_is_no_result(api: str, line: bytes, words: str) -> None:
    with pytest.raises(UnreadableLine) as raised:
        BATCH_APIS[api].result(line)
    assert str(raised.value) == words


KEYS = st.sampled_from(["custom_id", "response", "result", "error", "status_code", "body", "type", "message", "code"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@pytest.mark.parametrize("api", BATCH_APIS)
@given(line=st.binary(max_size=300) | st.text(max_size=300).map(str.encode) | VALUES.map(encode))
def test_whatever_comes_is_a_result_or_no_line(api: str, line: bytes) -> None:
    try:
        found = BATCH_APIS[api].result(line)
    except UnreadableLine:
        return
    assert found.custom_id
    assert found.ended != "answered" or (found.body and found.status >= 200)


TEXTS = st.text(max_size=40) | st.sampled_from(["\u2028\u2029\u0085", "\r\n", "\ud800", '"}', "😀", "\x00"])


@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_a_request_stands_on_one_line_and_is_what_it_was(texts: list[str]) -> None:
    body = encode({"model": "m", "messages": [{"role": "user", "content": text} for text in texts]})
    sent = OPENAI.line("k-0-abc", body, "/v1/chat/completions")
    assert json.loads(sent) == {
        "custom_id": "k-0-abc",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": json.loads(body),
    }
    asked = ANTHROPIC.line("k-0-abc", body, "/v1/messages")
    assert json.loads(asked) == {"custom_id": "k-0-abc", "params": json.loads(body)}
    for line in (sent, asked):
        assert b"\n" not in line
        assert b"\r" not in line
        assert b"\xe2\x80\xa8" not in line
        assert b"\xe2\x80\xa9" not in line


@given(text=TEXTS)
def test_an_answer_comes_out_of_its_line_as_it_went_in(text: str) -> None:
    body = {**COMPLETION, "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    message = {**MESSAGE, "content": [{"type": "text", "text": text}]}
    found = {
        "openai": (OPENAI.result(encode({"custom_id": "x", **answer(200, body)})), body),
        "anthropic": (ANTHROPIC.result(result(type="succeeded", message=message)), message),
    }
    for provider, (line, expected) in found.items():
        assert json.loads(line.body) == expected
        row = SHIPPED[provider]
        good = DIALECTS[row.dialect].parse(line.status, {}, line.body, provider=row, model="m", redactor=Redactor([]))
        assert not isinstance(good, Reply) or good.text == text


@pytest.mark.parametrize("provider", ["openai", "responses", "anthropic"])
def test_a_request_of_a_batch_is_the_one_of_a_call(provider: str) -> None:
    row = SHIPPED[provider]
    dialect, lines = DIALECTS[row.dialect], BATCH_APIS[row.batch.api]
    body = dialect.build(Request((Message("user", "Say yes."),)), "the-model", row)
    line = json.loads(lines.line("x", encode(body), "/v1" + dialect.path))
    assert line.get("body", line.get("params")) == body


@pytest.mark.parametrize("status", ["9" * 5000, f'"{"9" * 5000}"', "1e400", str(2**70)], ids=lambda status: status[:9])
def test_an_odd_status_is_none_and_loses_neither_its_line_nor_the_batch(status: str) -> None:
    line = said(**answer("?", COMPLETION)).replace(b'"?"', status.encode())
    assert OPENAI.result(line) == unanswered("a response without a status")
    assert json_of(b'{"usage": {"prompt_tokens": %s}}' % status.encode()) is not None
    assert count(json_of(b'{"prompt_tokens": %s}' % status.encode()), "prompt_tokens") is None
    assert rate_state({"x-ratelimit-remaining-tokens": status.strip('"')}) in (
        RateState(remaining_tokens=None), RateState(remaining_tokens=2**53),
    )  # fmt: skip
