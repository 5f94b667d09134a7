"""The simulator as OpenAI's own SDK meets it, and what it refuses."""

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.simulator import schema_keywords
from agac.simulator.api_errors import ApiError
from agac.simulator.chat import CHAT, CHAT_PARAMETERS
from agac.simulator.replies import AnswerWriter

USER: Any = [{"role": "user", "content": "The lamp broke after two days and the shop was rude about it"}]
STRICT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["mood", "items"],
    "properties": {
        "mood": {"type": "string", "enum": ["negative", "positive"]},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name"],
                "properties": {"name": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            },
        },
    },
}


def sdk(base_url: str, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)


async def test_sdk_reads_a_completion_and_a_stream_with_the_same_text(served: Any, with_schema: Any) -> None:
    async with served() as client, sdk(client.base_url) as api:
        asked = {
            "model": "small", "messages": USER, "response_format": with_schema(STRICT, strict=True), "temperature": 0,
            "max_completion_tokens": 500,
        }  # fmt: skip
        whole = await api.chat.completions.create(**asked)
        assert whole.choices[0].finish_reason == "stop"
        assert json.loads(whole.choices[0].message.content or "")["mood"] == "negative"
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        assert whole.system_fingerprint == "agac-simulator"
        stream = await api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        assert len(chunks) > 3
        assert {chunk.id for chunk in chunks} == {whole.id}
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage == whole.usage
        chunks = [chunk async for chunk in await api.chat.completions.create(**asked, stream=True)]
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)


async def test_the_sdk_is_refused_an_invalid_key_and_a_missing_model_and_lists_models(client: Any, served: Any) -> None:
    async with sdk(client.base_url, key="sk-invalid") as api:
        with pytest.raises(openai.AuthenticationError) as refused:
            await api.chat.completions.create(model="small", messages=USER)
        assert "sk-invalid" not in str(refused.value)
    async with sdk(client.base_url) as api:
        with pytest.raises(openai.NotFoundError, match="missing-model"):
            await api.chat.completions.create(model="missing-model", messages=USER)
    assert (await client.account())["refused"] == 2
    async with served() as client, sdk(client.base_url) as api:
        assert [model.id async for model in api.models.list()] == ["small", "large", "echo"]


def ask_body(**more: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": "x"}], **more}


KEYWORDS = sorted({*schema_keywords.KEYWORDS, "not", "$defs"})

UNNAMED = {"type": "json_schema", "json_schema": {"schema": {}}}
MALFORMED = {
    "no JSON": (b"{", "could not parse the JSON body", None),
    "no object": (b"[]", "expected a JSON object", None),
    "too deep": (b'{"model": ' + b"[" * 200_000, "could not parse the JSON body", None),
    "no text": (b"\xff\xfe", "could not parse the JSON body", None),
    "no model": ({"messages": [{"role": "user", "content": "x"}]}, "model", "model"),
    "no messages": ({"model": "small"}, "messages", "messages"),
    "empty messages": (ask_body(messages=[]), "at least one element", "messages"),
    "unknown role": (ask_body(messages=[{"role": "robot", "content": "x"}]), "role", "messages[0]"),
    "role is a list": (ask_body(messages=[{"role": ["user"], "content": "x"}]), "role", "messages[0]"),
    "no content": (ask_body(messages=[{"role": "user"}]), "content", "messages[0]"),
    "image": (ask_body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "text parts", "messages[0]"),
    "unknown argument": (ask_body(temprature=1), "temprature", "temprature"),
    "two replies": (ask_body(n=2), "n is not supported", "n"),
    "too hot": (ask_body(temperature=3), "temperature", "temperature"),
    "temperature as text": (ask_body(temperature="1"), "temperature", "temperature"),
    "no tokens": (ask_body(max_tokens=0), "max_tokens", "max_tokens"),
    "tokens as truth": (ask_body(max_tokens=True), "max_tokens", "max_tokens"),
    "stream as text": (ask_body(stream="yes"), "stream", "stream"),
    "options without stream": (ask_body(stream_options={"include_usage": True}), "stream_options", "stream"),
    "five stops": (ask_body(stop=list("abcde")), "stop", "stop"),
    "format": (ask_body(response_format={"type": "xml"}), "response_format", "response_format.type"),
    "unnamed": (ask_body(response_format=UNNAMED), "name", "response_format.json_schema.name"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_refused_as_openai_does(client: Any, name: str) -> None:
    body, words, param = MALFORMED[name]
    status, headers, raw = await client.post(body)
    error = json.loads(raw)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]
    assert str(error["param"]).startswith(str(param))
    assert headers["x-agac-simulated"] == "true"
    account = await client.account()
    assert (account["requests"], account["refused"], account["charged"]) == (1, 1, 0)


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["object", "string", "#", "a", "("])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(CHAT_PARAMETERS)), JSON), JSON, st.booleans(), st.booleans())
@campaign(test=60, soak=3000)
def test_no_body_and_no_schema_make_it_stumble(more: Any, schema: Any, whole: bool, strict: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": strict, "schema": schema}}
    body = more if whole else {**ask_body(), "response_format": form}
    try:
        answer = AnswerWriter().answer(CHAT.read(json.dumps(body).encode(), 0, {}))
    except ApiError as refusal:
        status = refusal.status
    else:
        status = 200
        assert answer.content is not None
    assert status in (200, 400)


async def test_parameters_that_change_nothing_are_taken(client: Any) -> None:
    more = {"n": 1, "tools": [], "seed": 3, "user": "u", "stop": None, "reasoning_effort": "low"}
    status, _, data = await client.ask(**more, service_tier="flex", top_p=0.5, stream=False)
    assert (status, data["service_tier"]) == (200, "flex")
    form = {"type": "json_object", "json_schema": {"strict": True}}  # a schema beside another format
    assert json.loads(await client.content(response_format=form))["answer"]
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [{"role": "assistant", "content": None}, {"role": "user", "content": parts}]
    assert await client.content(model="echo", messages=messages) == "one two"


CLOSED = {"type": "object", "additionalProperties": False, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"type": "string"}}, "'type: \"object\"'"),
        ({"type": "object", "properties": {}}, "'additionalProperties' is required to be supplied and to be false"),
        (CLOSED | {"properties": {"a": {}, "b": {}}}, "Missing 'b'"),
        (CLOSED | {"properties": {"a": {"anyOf": [{"type": "object"}]}}}, "'additionalProperties' is required to be"),
    ],
)
async def test_strict_mode_refuses_open_schemas(client: Any, with_schema: Any, schema: Any, words: str) -> None:
    status, _, data = await client.ask(response_format=with_schema(schema, strict=True))
    assert (status, data["error"]["code"]) == (400, "invalid_json_schema")
    assert words in data["error"]["message"]
    assert (await client.ask(response_format=with_schema(schema)))[0] == 200


async def test_other_addresses_are_said(client: Any) -> None:
    for method, path in (("GET", "/v1/chat/completions"), ("POST", "/v1/images"), ("GET", "/")):
        async with client.session.request(method, client.root + path) as response:
            assert response.status == 404
            assert path in (await response.json())["error"]["message"]


async def test_account_counts_what_was_charged_and_what_was_asked_twice_until_it_is_reset(client: Any) -> None:
    assert (await client.account())["first_request_at"] is None
    replies = [(await client.ask(text))[2] for text in ["one", "two", "one", "one"]]
    await client.post(b"{")
    account = await client.account()
    counts = {"requests": 5, "answered": 5, "charged": 4, "refused": 1, "duplicates": 2, "distinct": 2}
    assert counts.items() <= account.items()
    assert account["prompt_tokens"] == sum(reply["usage"]["prompt_tokens"] for reply in replies)
    assert account["completion_tokens"] == sum(reply["usage"]["completion_tokens"] for reply in replies)
    assert 0 < account["first_request_at"] <= account["last_request_at"]
    async with client.session.post(f"{client.root}/account/reset") as response:
        assert (await response.json())["charged"] == 4
    await client.ask("one")
    account = await client.account()
    assert (account["requests"], account["charged"], account["duplicates"]) == (1, 1, 0)
