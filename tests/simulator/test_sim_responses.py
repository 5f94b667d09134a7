"""The Responses API as the simulator speaks it, held against OpenAI's own SDK: its client, its types, its events."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.responses import Response, ResponsesClientEvent, ResponsesServerEvent, ResponseStreamEvent
from pydantic import TypeAdapter

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesClientEvent)
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
VERDICT = {
    "type": "object",
    "properties": {"sentiment": {"type": "string", "enum": ["good", "bad"]}, "why": {"type": "string"}},
    "required": ["sentiment", "why"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "name": "verdict", "schema": VERDICT, "strict": True}


def body(said: str = "It works", **more: Any) -> dict[str, Any]:
    return {"model": "small", "input": [{"role": "user", "content": said}], **more}


def sdk(client: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="sk-test", base_url=client.base_url, max_retries=0)


async def post(client: Any, data: Any) -> tuple[int, Any]:
    url = f"{client.base_url}/responses"
    async with client.session.post(url, json=data, headers={"authorization": "Bearer any"}) as response:
        return response.status, await response.json()


@asynccontextmanager
async def socket(client: Any, key: str = "any") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = f"{client.base_url}/responses"
    async with client.session.ws_connect(url, headers={"authorization": f"Bearer {key}"}) as ws:
        yield ws


async def told(ws: aiohttp.ClientWebSocketResponse, data: Any, kind: str = "response.create") -> list[dict[str, Any]]:
    """The events of one request, checked against the SDK's types, to the last."""
    await ws.send_json({"type": kind, **data})
    events = []
    while True:
        event = await ws.receive_json()
        SERVER_EVENT.validate_python(event)
        events.append(event)
        if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
            return events


def texts(response: Any) -> list[tuple[str, str]]:
    return [(item["status"], item["content"][0]["text"]) for item in response["output"]]


async def test_the_sdk_reads_a_response_and_a_stream(served: Any) -> None:
    asked = {
        "model": "small", "instructions": "You judge.", "input": "Great!", "text": {"format": FORMAT}, "store": False,
        "max_output_tokens": 200, "reasoning": {"effort": "low"}, "service_tier": "flex",
    }  # fmt: skip
    async with served() as client, sdk(client) as api:
        whole = await api.responses.create(**asked)
        events = [event async for event in await api.responses.create(**asked, stream=True)]
        async with api.responses.stream(**body()) as stream:
            final = await stream.get_final_response()
        assert final.output_text == (await api.responses.create(**body())).output_text
    Response.model_validate(whole.to_dict())
    assert (whole.status, whole.error, whole.incomplete_details) == ("completed", None, None)
    assert json.loads(whole.output_text)["sentiment"] in ("good", "bad")
    assert (whole.service_tier, whole.store) == ("flex", False)
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert whole.to_dict()["system_fingerprint"] == "agac-simulator"
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for event in events:
        STREAM_EVENT.validate_python(event.to_dict())
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response == whole


async def test_a_socket_takes_one_request_after_the_other_and_says_what_http_says(client: Any) -> None:
    CLIENT_EVENT.validate_python({"type": "response.create", **body(store=False)})
    _, whole = await post(client, body())
    async with socket(client) as ws:
        first = await told(ws, body())
        second = await told(ws, body("Another one."))
    assert first[-1]["response"] == whole
    assert second[-1]["response"] != whole
    account = await client.account()
    assert (account["requests"], account["charged"], account["duplicates"]) == (3, 3, 1)


async def test_the_message_of_a_socket_is_refused_as_an_event_and_rate_limits_with_their_headers(served: Any) -> None:
    async with served() as client, socket(client) as ws:
        [wrong] = await told(ws, {}, "response.steer")
        assert (wrong["status"], wrong["error"]["param"]) == (400, "type")
        [missing] = await told(ws, body(model="missing"))
        assert (missing["status"], missing["error"]["code"]) == (404, "model_not_found")
        await ws.send_str("no json")
        assert (await ws.receive_json())["status"] == 400
        assert (await told(ws, body()))[-1]["type"] == "response.completed"  # it lives on
    async with served(rpm=1) as client, socket(client) as ws:
        await told(ws, body())
        [refused] = await told(ws, body())
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused["error"]["headers"]["retry-after"]) >= 1


@pytest.mark.parametrize(("flags", "key", "status"), [({"websocket": False}, "any", 404), ({}, "sk-invalid", 401)])
async def test_an_upgrade_can_be_refused(served: Any, flags: dict[str, Any], key: str, status: int) -> None:
    async with served(**flags) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with socket(client, key):
                pass
        assert refused.value.status == status
        assert (await post(client, body()))[0] == 200


UNNAMED, LOOSE = {"type": "json_schema", "schema": {}}, {**FORMAT, "schema": {"type": "object"}}
JSON_MODE = {"format": {"type": "json_object"}}
MALFORMED: dict[str, tuple[Any, str, str | None]] = {
    "no model": ({"input": "x"}, "model", "missing_required_parameter"),
    "no input": ({"model": "small"}, "input", None),
    "empty input": (body() | {"input": []}, "input", None),
    "unknown role": (body() | {"input": [{"role": "boss", "content": "x"}]}, "input[0]", None),
    "an item that is no message": (body() | {"input": [{"type": "function_call", "role": "user"}]}, "input[0]", None),
    "an image": (body() | {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]", None),
    "seed": (body(seed=1), "seed", "unknown_parameter"),
    "stop": (body(stop=["x"]), "stop", "unknown_parameter"),
    "too hot": (body(temperature=3), "temperature", "invalid_type"),
    "background": (body(background=True), "background", None),
    "a format that is none": (body(text={"format": {"type": "xml"}}), "text.format.type", None),
    "an unnamed schema": (body(text={"format": UNNAMED}), "text.format.name", "missing_required_parameter"),
    "a schema that is not strict": (body(text={"format": LOOSE}), "response_format", "invalid_json_schema"),
    "JSON mode that nobody was told of": (body(text=JSON_MODE, instructions="JSON, please."), "input", None),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_refused_as_openai_does(client: Any, name: str) -> None:
    data, param, code = MALFORMED[name]
    status, answer = await post(client, data)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert str(answer["error"]["param"]).startswith(param)
    assert answer["error"]["code"] == code
    assert (await client.account())["charged"] == 0


forms = pytest.mark.parametrize("form", ["body", "stream", "socket"])


async def last_of(client: Any, form: str, data: dict[str, Any]) -> Any:
    """The response however it is asked for, or the event that came in its place."""
    if form == "body":
        return (await post(client, data))[1]
    if form == "socket":
        async with socket(client) as ws:
            event = (await told(ws, data))[-1]
    else:
        async with sdk(client) as api:
            *_, last = [event async for event in await api.responses.create(**data, stream=True)]
        event = last.to_dict()
    return event.get("response", event)


@forms
async def test_an_early_message_can_be_cut(served: Any, form: str) -> None:
    faults = [{"kind": "early_cut", "at": 1}, {"kind": "early_cut", "marked": False, "at": 2}]
    async with served(faults=faults) as client:
        for status in ("incomplete", "completed"):
            response = await last_of(client, form, body(text={"format": FORMAT}))
            Response.model_validate(response)
            [(early, half), (late, whole)] = texts(response)
            assert (response["status"], early, late) == ("completed", status, "completed")
            assert whole.startswith(half)
            json.loads(whole)
            with pytest.raises(json.JSONDecodeError):
                json.loads(half)


@forms
async def test_two_messages_can_both_be_answers(served: Any, form: str) -> None:
    async with served(faults=[{"kind": "two_answers", "always": True}]) as client:
        response = await last_of(client, form, body(text={"format": FORMAT}))
    [(_, first), (_, second)] = texts(response)
    assert first != second
    assert {"sentiment", "why"} == set(json.loads(first)) == set(json.loads(second))
    assert response["usage"]["output_tokens"] >= (len(first) + len(second)) // 4


REFUSAL = {"type": "refusal", "refusal": "I'm sorry, I can't help with that."}
FINISHES = [
    ("length", "incomplete", {"reason": "max_output_tokens"}),
    ("filter", "incomplete", {"reason": "content_filter"}),
    ("refusal", "completed", None),
]


@forms
@pytest.mark.parametrize(("kind", "status", "details"), FINISHES)
async def test_a_response_can_end_early_or_refuse(served: Any, form: str, kind: str, status: str, details: Any) -> None:
    async with served(faults=[{"kind": kind, "always": True}]) as client:
        response = await last_of(client, form, body())
    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert response["output"][0]["status"] == status
    assert (response["output"][0]["content"] == [REFUSAL]) == (kind == "refusal")


async def test_a_model_can_fail_while_it_is_at_work(served: Any) -> None:
    faults = [{"kind": "stream_error", "failed": True, "code": "rate_limit_exceeded", "always": True}]
    async with served(faults=faults) as client:
        for form in ("body", "stream", "socket"):
            response = await last_of(client, form, body())
            Response.model_validate(response)
            assert (response["status"], response["error"]["code"]) == ("failed", "rate_limit_exceeded")
        assert (await client.account())["charged"] == 3


async def test_a_stream_can_end_in_an_error(served: Any) -> None:
    async with served(faults=[{"kind": "stream_error", "always": True}]) as client:
        async with sdk(client) as api:
            *_, last = [event async for event in await api.responses.create(**body(), stream=True)]
        STREAM_EVENT.validate_python(last.to_dict())
        assert last.type == "error"
        assert "had an error" in last.message
        async with socket(client) as ws:
            *before, error = await told(ws, body())
        assert before[0]["type"] == "response.created"
        assert (error["type"], error["error"]["code"]) == ("error", "server_error")
        _, data = await post(client, body())
        assert data["status"] == "failed"
        chat = {"model": "small", "messages": [{"role": "user", "content": "x"}]}
        async with sdk(client) as api:
            with pytest.raises(openai.APIError, match="had an error"):
                [chunk async for chunk in await api.chat.completions.create(**chat, stream=True)]


async def test_a_socket_can_be_cut_hung_and_garbled(served: Any) -> None:
    faults = [
        {"kind": "cut", "at": 1},
        {"kind": "cut", "after_bytes": 2000, "at": 2},
        {"kind": "invalid_body", "at": 3},
        {"kind": "hang", "at": 4},
    ]
    async with served(faults=faults) as client:
        seen = []
        for _ in range(4):
            async with client.session.ws_connect(f"{client.base_url}/responses") as ws:
                await ws.send_json({"type": "response.create", **body()})
                kinds = []
                try:
                    while (message := await ws.receive(timeout=0.3)).type is aiohttp.WSMsgType.TEXT:
                        kinds.append(message.data[:6])
                except TimeoutError:
                    kinds.append("silent")
                seen.append(kinds)
        assert (seen[0], seen[1][:1], seen[2], seen[3]) == ([], ['{"type'], ["<html>", "silent"], ["silent"])
        while (account := await client.account())["in_flight"]:  # it looks now and then whether the client has gone
            pass
        assert account["charged"] == 3
