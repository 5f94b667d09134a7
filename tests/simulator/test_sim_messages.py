"""Anthropic's Messages as the simulator speaks it, held against Anthropic's own SDK: its client, types and errors."""

import json
from datetime import datetime
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from agac.simulator.anthropic import message_error, read_message_request
from agac.simulator.api_errors import ApiError

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
OLD = {"anthropic-version": "2023-06-01"}
VERDICT = {
    "type": "object",
    "properties": {"sentiment": {"type": "string", "enum": ["good", "bad"]}, "why": {"type": "string"}},
    "required": ["sentiment", "why"],
    "additionalProperties": False,
}
FORMAT = {"format": {"type": "json_schema", "schema": VERDICT}}


def body(said: str = "It works", **more: Any) -> dict[str, Any]:
    return {"model": "small", "max_tokens": 200, "messages": [{"role": "user", "content": said}], **more}


def sdk(client: Any, key: str = "sk-ant-test") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=key, base_url=client.root, max_retries=0)


async def post(client: Any, data: Any, **headers: str) -> tuple[int, Any, Any]:
    url = f"{client.base_url}/messages"
    async with client.session.post(url, json=data, headers=headers or OLD) as response:
        return response.status, response.headers, await response.json()


async def test_the_sdk_reads_a_message_and_a_stream(served: Any) -> None:
    asked = {
        **body("Great!"), "system": "You judge.", "output_config": FORMAT, "stop_sequences": ["END"],
        "service_tier": "auto",
    }  # fmt: skip
    async with served() as client, sdk(client) as api:
        whole = await api.messages.create(**asked)
        account = await client.account()
        events = [event async for event in await api.messages.create(**asked, stream=True)]
        async with api.messages.stream(**body("Great!")) as stream:
            final = await stream.get_final_message()
        plain = await api.messages.create(**body("Great!"))
        assert (final.id, final.stop_reason, final.usage) == (plain.id, plain.stop_reason, plain.usage)
        assert [block.to_dict()["text"] for block in final.content] == [
            block.to_dict()["text"] for block in plain.content
        ]
    Message.model_validate(whole.to_dict())
    assert (whole.stop_reason, whole.type, whole.role) == ("end_turn", "message", "assistant")
    [block] = whole.content
    assert json.loads(block.text)["sentiment"] in ("good", "bad")
    assert whole.usage.service_tier == "standard"
    assert whole.to_dict()["system_fingerprint"] == "agac-simulator"
    assert account["prompt_tokens"] == whole.usage.input_tokens
    assert account["completion_tokens"] == whole.usage.output_tokens
    for event in events:
        EVENT.validate_python(event.to_dict())
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == block.text
    assert (events[0].message.id, events[-2].delta.stop_reason) == (whole.id, whole.stop_reason)
    assert events[-2].usage.output_tokens == whole.usage.output_tokens


async def test_texts_may_come_in_blocks_and_the_same_body_gets_the_same_answer(served: Any) -> None:
    blocks = [{"type": "text", "text": "It "}, {"type": "text", "text": "works"}]

    async with served() as client, sdk(client) as api:
        one = await api.messages.create(**body(), system="You judge.")
        other = await api.messages.create(
            model="small",
            max_tokens=200,
            system=[{"type": "text", "text": "You judge.", "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": blocks}],
        )
        assert one.usage.input_tokens == other.usage.input_tokens
        again = await api.messages.create(**body(), system="You judge.")
        assert again == one


ERRORS: list[tuple[dict[str, Any], type[anthropic.APIStatusError], str, str | None]] = [
    ({"kind": "rate_limit", "retry_after": 3}, anthropic.RateLimitError, "rate_limit_error", None),
    ({"kind": "quota"}, anthropic.RateLimitError, "rate_limit_error", "enforced_spend_limit_reached"),
    ({"kind": "server_error", "status": 500}, anthropic.InternalServerError, "api_error", None),
    ({"kind": "server_error", "status": 503}, anthropic.ServiceUnavailableError, "overloaded_error", None),
    ({"kind": "server_error", "status": 529}, anthropic.OverloadedError, "overloaded_error", None),
    ({"kind": "server_error", "status": 504}, anthropic.GatewayTimeoutError, "timeout_error", None),
    ({"kind": "unauthorized"}, anthropic.AuthenticationError, "authentication_error", None),
    ({"kind": "not_found"}, anthropic.NotFoundError, "not_found_error", None),
    ({"kind": "bad_request"}, anthropic.BadRequestError, "invalid_request_error", None),
    ({"kind": "bad_request", "code": "on_hold"}, anthropic.BadRequestError, "invalid_request_error", "on_hold"),
]


@pytest.mark.parametrize(("rule", "kind", "name", "code"), ERRORS, ids=[str(rule) for rule, *_ in ERRORS])
async def test_the_sdk_knows_each_error(
    served: Any, rule: dict[str, Any], kind: type, name: str, code: str | None
) -> None:
    async with served(faults=[{**rule, "always": True}]) as client, sdk(client) as api:
        with pytest.raises(kind) as caught:
            await api.messages.create(**body())
        error = caught.value
        assert isinstance(error, anthropic.APIStatusError)
        assert (error.type, error.error_code, error.request_id) == (name, code, "req_sim_1")
        assert isinstance(error.body, dict)
        assert error.body["type"] == "error"
        if "retry_after" in rule:
            assert error.response.headers["retry-after"] == "3"


async def test_an_error_amid_a_stream_ends_it(served: Any) -> None:
    fault = {"kind": "stream_error", "code": "overloaded_error", "always": True}
    async with served(faults=[fault]) as client, sdk(client) as api:
        with pytest.raises(anthropic.APIStatusError) as caught:
            async for _ in await api.messages.create(**body(), stream=True):
                pass
        assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "length"}, ("max_tokens", 1, None)),
        ({"kind": "refusal", "message": "No."}, ("refusal", 0, "No.")),
        ({"kind": "filter"}, ("refusal", 0, None)),
        ({"kind": "empty"}, ("end_turn", 0, None)),
    ],
)
async def test_why_the_model_stopped(served: Any, fault: dict[str, Any], expected: tuple[str, int, str | None]) -> None:
    async with served(faults=[{**fault, "always": True}]) as client, sdk(client) as api:
        message = await api.messages.create(**body())
        words = message.stop_details.explanation if message.stop_details else None
        assert (message.stop_reason, len(message.content), words) == expected


async def test_the_limits_are_told_with_the_moment_of_their_reset(served: Any) -> None:
    async with served(rpm=60, burst=2) as client:
        _, headers, _ = await post(client, body())
        assert headers["anthropic-ratelimit-requests-limit"] == "60"
        assert headers["anthropic-ratelimit-requests-remaining"] == "1"
        assert datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"]).tzinfo is not None
        assert "x-ratelimit-limit-requests" not in headers
        await post(client, body())
        status, headers, data = await post(client, body())
        assert (status, data["error"]["type"]) == (429, "rate_limit_error")
        assert float(headers["retry-after"]) > 0


def formed(**more: Any) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", **more}}}


def holding(node: dict[str, Any]) -> dict[str, Any]:
    """A format whose schema has one property."""
    return formed(
        schema={"type": "object", "properties": {"a": node}, "required": ["a"], "additionalProperties": False}
    )


IN_SCHEMA = "output_config.format.schema: "
OPEN = {"type": "object", "properties": {}}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "a", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": ""}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "temprature: Extra inputs are not permitted"),
    ({"max_tokens": None}, "max_tokens: Field required"),
    ({"max_tokens": 0}, "max_tokens: Input should be an integer of at least 1"),
    ({"model": ""}, "model: Input should be a string that is not empty"),
    ({"messages": []}, "messages: at least one message is required"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role: Input should be 'user' or 'assistant'"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content: text content blocks must be non-empty"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content: Input should be a string"),
    ({"system": ""}, "system: text content blocks must be non-empty"),
    ({"temperature": 1.5}, "temperature: Input should be a number from 0 to 1"),
    ({"stop_sequences": [" "]}, "stop_sequences: Input should be a list of strings that are not blank"),
    ({"service_tier": "flex"}, "service_tier: Input should be 'auto' or 'standard_only'"),
    ({"tools": {}}, "tools: Input should be a list"),
    ({"tools": [{}]}, "tools.0.name: String should match pattern"),
    ({"tools": [{"name": "a"}]}, "tools.0.custom.input_schema: Input should be a schema"),
    ({"tools": [{"name": "web_fetch", "type": "web_search_20250305"}]}, "tools.0.name: String should match"),
    ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools.0: Input should be a tool of type 'custom'"),
    (
        {"tools": [{"name": "a", "input_schema": {"type": "object"}, "strict": True}]},
        "tools.0.custom.input_schema: For 'object' type",
    ),
    (
        {"tools": [{"name": "a", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "b"}},
        "tool_choice: Input should",
    ),
    ({"messages": [CALLED]}, "messages: tool calls must be followed by their results; missing: t1."),
    ({"messages": [CALLED, {"role": "user", "content": "so?"}]}, "messages.1: tool calls must be followed by"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages.0: no tool call found for the result of 't1'"),
    (
        {"messages": [CALLED, {"role": "user", "content": [{"type": "text", "text": "so"}, RESULT]}]},
        "messages.1: thoughts must come before calls, and `tool_result` blocks before text",
    ),
    ({"messages": [CALLED, {"role": "user", "content": [RESULT]}]}, "tools: Requests which include"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "y"}]}]},
        "messages.0: Invalid `signature`",
    ),
    (
        {
            "messages": [CALLED, {"role": "user", "content": [RESULT]}],
            "max_tokens": 2000,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        "messages.0: thoughts must come before calls",
    ),
    ({"thinking": {"type": "so"}}, "thinking.type: Input should be 'adaptive', 'enabled', 'disabled'"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1}}, "thinking.adaptive.budget_tokens: Extra inputs"),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.enabled.budget_tokens: Input should be greater"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "`max_tokens` must be greater than"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort: Input should be one of low, medium"),
    ({"output_config": {"efort": "low"}}, "output_config.efort: Extra inputs are not permitted"),
    (formed(type="json_object"), "output_config.format.type: Input should be 'json_schema'"),
    (formed(), "output_config.format: Input should be an object with"),
    (formed(schema=OPEN), "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly"),
    (
        holding({"type": "integer", "minimum": 1}),
        IN_SCHEMA + "For 'integer' type, properties minimum are not supported",
    ),
    (
        holding({"type": "string", "maxLength": 1}),
        IN_SCHEMA + "For 'string' type, properties maxLength are not supported",
    ),
    (
        holding({"type": "array", "items": {"type": "null"}, "minItems": 2}),
        IN_SCHEMA + "For 'array' type, 'minItems' values other than 0 or 1",
    ),
    (holding({"oneOf": [{"type": "null"}]}), IN_SCHEMA + "'oneOf' is not supported"),
    (holding({}), IN_SCHEMA + "Schema must have a 'type'"),
    (
        holding({"anyOf": [OPEN]}),
        IN_SCHEMA + "For 'object' type, 'additionalProperties' must be explicitly set to false",
    ),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_what_is_refused_is_said_where(change: dict[str, Any], words: str) -> None:
    asked = {name: value for name, value in {**body(), **change}.items() if value is not None}
    with pytest.raises(ApiError) as caught:
        read_message_request(asked, 0)
    assert caught.value.message.startswith(words)
    told = message_error(caught.value)
    assert (told["type"], told["error"]["type"], caught.value.status) == ("error", "invalid_request_error", 400)


async def test_the_version_is_wanted(client: Any) -> None:
    status, _, data = await post(client, body(), **{"x-api-key": "k"})
    assert (status, data["error"]["message"]) == (400, "anthropic-version: header is required")
    assert (await post(client, body(temperature=1.0), **OLD))[0] == 200
