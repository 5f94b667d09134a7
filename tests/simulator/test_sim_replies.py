"""Replies follow from seed and content, and look as if somebody had read the prompt."""

import json
from collections.abc import Callable
from typing import Any

import pytest

SENTIMENT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["sentiment", "reason"],
    "properties": {"sentiment": {"enum": ["positive", "neutral", "negative"]}, "reason": {"type": "string"}},
}
WithSchema = Callable[..., dict[str, Any]]


async def test_same_request_gets_the_same_bytes_in_any_order(served: Any) -> None:
    bodies = [{"model": "small", "messages": [{"role": "user", "content": f"Row {i}"}]} for i in range(20)]

    async def replies(order: list[dict[str, Any]]) -> list[bytes]:
        async with served() as client:
            return [(await client.post(body))[2] for body in order]

    forwards = await replies(bodies)
    assert forwards == (await replies(bodies[::-1]))[::-1]
    assert len(set(forwards)) == 20
    async with served() as client:  # nor on the order of keys
        one = await client.post(b'{"model": "m", "temperature": 1, "messages": [{"role": "user", "content": "Hi"}]}')
        two = await client.post(b'{"messages": [{"content": "Hi", "role": "user"}], "temperature": 1, "model": "m"}')
    assert one[2] == two[2]


async def test_seed_model_and_parameters_change_the_reply(served: Any) -> None:
    async def reply(seed: int, **more: Any) -> Any:
        async with served(seed=seed) as client:
            return (await client.ask("A long enough text about lamps, tables and chairs to draw from", **more))[2]["id"]

    ids = [await reply(seed) for seed in (0, 1, -1)]
    ids += [await reply(0, model="large"), await reply(0, temperature=1)]
    assert len(set(ids)) == 5


@pytest.mark.parametrize(
    ("review", "sentiment"),
    [
        ("Arrived late and it broke after two days. Terrible.", "negative"),
        ("I love it, works great!", "positive"),
        ("It is a lamp of 40 cm.", "neutral"),
    ],
)
async def test_sentiment_fits_the_text(client: Any, with_schema: WithSchema, review: str, sentiment: str) -> None:
    for seed in range(5):
        content = await client.content(f"Review: {review}", seed=seed, response_format=with_schema(SENTIMENT))
        assert json.loads(content)["sentiment"] == sentiment


async def test_enum_value_that_the_text_names_and_plausible_ratings_are_preferred(
    client: Any, with_schema: WithSchema
) -> None:
    schema = {"type": "object", "required": ["team"], "properties": {"team": {"enum": ["sales", "billing", "support"]}}}
    for seed in range(5):
        form = with_schema(schema)
        content = await client.content("A question for Billing, please", seed=seed, response_format=form)
        assert json.loads(content)["team"] == "billing"
    properties = {"rating": {"type": "integer", "minimum": 1, "maximum": 5}, "confidence": {"type": "number"}}
    form = with_schema({"type": "object", "required": list(properties), "properties": properties})
    good = json.loads(await client.content("Great, I love it", response_format=form))
    bad = json.loads(await client.content("Awful, I hate it", response_format=form))
    assert (good["rating"], bad["rating"]) == (5, 1)
    assert 0 <= good["confidence"] <= 1


async def test_text_is_made_of_the_prompt_and_a_schema_in_it_is_only_text(client: Any) -> None:
    content = await client.content("zebra yak xerus walrus vole")
    assert set(content.lower().replace(".", "").split()) <= {"zebra", "yak", "xerus", "walrus", "vole"}
    assert await client.content("12345 !?") != ""
    assert (await client.content('JSON Schema:\n{"type": "integer"}')).endswith(".")
    content = await client.content(response_format={"type": "json_object"})
    assert isinstance(json.loads(content)["answer"], str)


@pytest.mark.parametrize("response_format", [None, {"type": "json_object"}, {"type": "text"}])
async def test_schema_at_the_end_of_the_system_message_is_kept(client: Any, response_format: Any) -> None:
    system = f"Classify.\n\nJSON Schema:\n{{}}\nno, this one:\nJSON Schema:\n{json.dumps(SENTIMENT)}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "It is broken"}]
    more = {} if response_format is None else {"response_format": response_format}
    content = json.loads(await client.content(messages=messages, **more))
    assert content["sentiment"] == "negative"
    assert set(content) == {"sentiment", "reason"}


async def test_echo_says_the_users_text_again(client: Any, with_schema: WithSchema) -> None:
    schema = {"type": "object", "required": ["echo"], "properties": {"echo": {"type": "string", "maxLength": 9}}}
    form = with_schema(schema)
    assert await client.content("Row 7 é", model="echo") == "Row 7 é"
    assert json.loads(await client.content("Row 7 é", model="echo", response_format=form)) == {"echo": "Row 7 é"}
    long = json.loads(await client.content("Row 7 is too long", model="echo", response_format=form))
    assert len(long["echo"]) <= 9
    for other in ({"type": "integer"}, {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}):
        value = json.loads(await client.content("Row 7", model="echo", response_format=with_schema(other)))
        assert "Row 7" not in str(value)
    form = {"type": "json_object"}
    assert json.loads(await client.content("Row 7", model="echo", response_format=form)) == {"echo": "Row 7"}
    broken = {"type": "object", "required": ["echo"], "properties": {"echo": {}, "beside": {"type": []}}}
    assert "echo" in json.loads(await client.content("Row 7", model="echo", response_format=with_schema(broken)))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_reply_longer_than_its_tokens_is_cut(client: Any, name: str) -> None:
    _, _, data = await client.ask("a text of some words", model="echo", **{name: 3})
    assert data["choices"][0]["finish_reason"] == "length"
    assert data["choices"][0]["message"]["content"] == "a text of so"
    assert data["usage"]["completion_tokens"] == 3
    _, _, data = await client.ask("a text of some words", model="echo", **{name: 5})
    assert data["choices"][0]["finish_reason"] == "stop"
    assert await client.content("one two three", model="echo", stop=[" three", "tw"]) == "one "
    assert await client.content("one two three", model="echo", stop=" two") == "one"


async def test_usage_and_marks_are_there(client: Any) -> None:
    _, headers, data = await client.ask("12345", model="echo")
    assert data["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert data["system_fingerprint"] == "agac-simulator"
    assert headers["x-agac-simulated"] == "true"
    assert data["id"].startswith("chatcmpl-")
