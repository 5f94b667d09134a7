"""OpenAI's Responses API, and batches of it and of chat completions, read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agac.simulator import chat, replies
from agac.simulator.replies import ApiError, Conversation, Event, Kind, ModelAnswer, ModelCall
from agac.simulator.schema_values import word_set
from agac.simulator.tool_calls import AskedTool, HostedUse

RESPONSES_PARAMETERS = word_set(
    "model input instructions stream stream_options text max_output_tokens temperature top_p reasoning service_tier "
    "store metadata user safety_identifier prompt_cache_key prompt_cache_retention include truncation background "
    "parallel_tool_calls tool_choice tools max_tool_calls top_logprobs previous_response_id conversation prompt"
)
RESPONSES_UNSUPPORTED: dict[str, Any] = {"background": False, "top_logprobs": 0}
RESPONSES_UNSUPPORTED |= dict.fromkeys(("previous_response_id", "conversation", "prompt"))
RESPONSES_KINDS: dict[str, Kind] = {
    "temperature": replies.between(0, 2), "top_p": replies.between(0, 1), "max_output_tokens": replies.COUNT,
    **dict.fromkeys(("stream", "store", "parallel_tool_calls"), replies.TRUTH),
    **dict.fromkeys(("stream_options", "reasoning", "text", "metadata"), replies.OBJECT),
    **dict.fromkeys(("instructions", "service_tier"), replies.TEXT),
}  # fmt: skip
HOSTED_ITEMS = ("web_search_call", "custom_tool_call")
SEARCH_STEPS = ("in_progress", "searching", "completed")
THOUGHT_OUT = "fc_simr"  # how the id of a call begins that must be sent back with what the model thought before it

PARTS = ("input_text", "output_text", "text")
"""Kinds of content in the Responses API that are text: nothing else is simulated."""


def read_response(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a response; raises ApiError as OpenAI would answer it."""
    for name in sorted(set(data) - RESPONSES_PARAMETERS):
        raise ApiError(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise chat.missing("model")
    chat.check_parameters(data, RESPONSES_UNSUPPORTED, RESPONSES_KINDS, code="invalid_type")
    talk = Conversation()
    if data.get("instructions"):
        talk.say("system", data["instructions"])
    if isinstance(data.get("input"), str):
        talk.say("user", data["input"])
    else:
        read_items(talk, chat.read_list(data, "input"), stored=data.get("store") is not False)
    data.pop("stream_options", None)
    form = (data.get("text") or {}).get("format")
    asked = chat.read_format(form, "text.format", talk.messages, needed=("name", "schema"))
    said = talk.messages[1 if data.get("instructions") else 0 :]
    if (
        form
        and form["type"] == "json_object"
        and not any("json" in text.lower() for _, text in said)
    ):
        message = "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
        raise ApiError(400, f"{message}'json_object'.", param="input")
    asked |= chat.read_tools(data)
    extras = {
        name: value for name, value in data.items() if name not in ("model", "input", "stream")
    }
    return replies.model_call(
        data, seed, talk, max_tokens=data.get("max_output_tokens"), extras=extras, **asked
    )


def read_items(talk: Conversation, items: Sequence[Any], *, stored: bool) -> None:
    """Reads messages, calls, results, and what models think. Calls that follow each other are one turn. `stored`:
    OpenAI keeps what it thought, and knows it by its id."""
    calls, thoughts = list[AskedTool](), set[str]()
    for index, item in enumerate([*items, {"type": "end"}]):
        param, told = f"input[{index}]", item if isinstance(item, dict) else {}
        kind, item_id = told.get("type") or "message", str(told.get("id"))
        if kind == "function_call":
            if (
                item_id.startswith(THOUGHT_OUT)
                and item_id.removeprefix(THOUGHT_OUT)[:32] not in thoughts
            ):
                raise ApiError(
                    400, f"Item '{item_id}' was provided without its 'reasoning' item.", param=param
                )
            calls.append(chat.read_call(item, "call_id", "", param))
            continue
        if calls:
            talk.say("assistant", "", calls)
            calls = []
        if kind == "function_call_output":
            text = chat.read_text(told.get("output"), PARTS, f"{param}.output")
            talk.result(told.get("call_id"), text, param)
        elif kind == "reasoning":
            sealed = told.get("encrypted_content")
            if sealed is None and not stored:
                message = f"Item with id '{item_id}' not found: `store` is false, and it has no `encrypted_content`."
                raise ApiError(404, message)
            if told.get("id") is not None and sealed not in (None, replies.signature(item_id)):
                message = f"The encrypted content for item {item_id} could not be verified."
                raise ApiError(400, message, code="invalid_encrypted_content")
            thoughts.add(item_id.removeprefix("rs_"))
        elif kind not in (*HOSTED_ITEMS, "end"):
            role = chat.read_role(item if kind == "message" else None, param)
            talk.say(role, chat.read_text(told.get("content"), PARTS, f"{param}.content"))
    talk.check("input")


def read_socket_message(message: bytes, seed: int, headers: Mapping[str, str]) -> ModelCall:
    """A message of a WebSocket, which must be a `response.create`: a body, always answered with events."""
    data = replies.read_object(message)
    kind = data.pop("type", None)
    if kind != "response.create":
        raise ApiError(
            400, f"Invalid event type: {kind!r}. Expected 'response.create'.", param="type"
        )
    return replace(read_response(data, seed), stream=True)


def response(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    finished = answer.word is None and (answer.has_word or answer.finish in ("stop", "tool_calls"))
    reason = answer.ended_with(
        "content_filter" if answer.finish == "content_filter" else "max_output_tokens"
    )
    usage: dict[str, Any] = {
        "input_tokens": call.prompt_tokens,
        "input_tokens_details": {"cached_tokens": call.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": call.prompt_tokens + answer.tokens,
    }  # fmt: skip
    if any(
        tool.kind == "x_search" for tool in call.tools
    ):  # this is xAI's, which counts the uses of its tools
        uses = Counter(f"{use.kind}_calls" for use in answer.hosted)
        usage |= {
            "num_server_side_tools_used": uses.total(),
            "server_side_tool_usage_details": dict(uses),
        }
    return response_frame(call, "completed" if finished else "incomplete") | {
        "completed_at": replies.CREATED if finished else None,
        "incomplete_details": None if finished else {"reason": reason},
        "output": response_items(call, answer),
        "usage": answer.usage(usage),
    }


def response_items(call: ModelCall, answer: ModelAnswer) -> list[dict[str, Any]]:
    """What a response holds: what the model thinks, uses of the provider's own tools, messages, calls."""
    digest, output = call.digest.hex(), list[dict[str, Any]]()
    thinks = bool(call.tools) and (call.extras.get("reasoning") or {}).get("effort") not in (
        None,
        "none",
    )
    if thinks:
        sealed = {"encrypted_content": replies.signature(f"rs_{digest}")}
        output.append({"id": f"rs_{digest}", "type": "reasoning", "summary": [], **sealed})
    for index, use in enumerate(answer.hosted):
        about = {"id": f"ws_sim{digest}{index}", "status": "completed"}
        if use.kind == "x_search":
            query = {"name": "x_keyword_search", "input": replies.plain_json({"query": use.query})}
            output.append({**about, "type": "custom_tool_call", "call_id": about["id"], **query})
        else:
            output.append({**about, "type": "web_search_call", "action": search_action(call, use)})
    last = len(answer.messages) - 1
    for index, message in enumerate(answer.messages):
        cited = chat.url_citations(answer, message.text) if index == last else []
        annotations = [{"type": "url_citation", **one} for one in cited]
        part: dict[str, Any] = {
            "type": "output_text",
            "text": message.text,
            "annotations": annotations,
            "logprobs": [],
        }
        if message.refusal is not None:
            part = {"type": "refusal", "refusal": message.refusal}
        item = {"id": f"msg_sim{digest}{index}", "type": "message"}
        status = {"status": "incomplete" if message.cut else "completed"}
        output.append({**item, **status, "role": "assistant", "content": [part]})
    for index, asked in enumerate(answer.calls):
        about = {
            "id": f"{THOUGHT_OUT if thinks else 'fc_sim'}{digest}{index}",
            "type": "function_call",
        }
        told = {"call_id": asked.id, "name": asked.name, "arguments": asked.arguments}
        output.append({**about, "status": "completed", **told})
    return output


def search_action(call: ModelCall, use: HostedUse) -> dict[str, Any]:
    """A search, with the addresses of all that it found where the request wants them."""
    action: dict[str, Any] = {"type": "search", "query": use.query}
    if "web_search_call.action.sources" in (call.extras.get("include") or ()):
        action["sources"] = [{"type": "url", "url": page.url} for page in use.pages]
    return action


def response_frame(call: ModelCall, status: str) -> dict[str, Any]:
    """What every response object has. `system_fingerprint` is not OpenAI's: it marks the simulator, as in chat."""
    given = call.extras
    tier = given.get("service_tier") or "default"
    return {
        "id": f"resp_sim{call.digest.hex()}", "object": "response", "created_at": replies.CREATED, "status": status,
        "background": False, "completed_at": None, "error": None, "incomplete_details": None,
        "instructions": given.get("instructions"), "max_output_tokens": call.max_tokens, "max_tool_calls": None,
        "model": call.model, "output": [], "parallel_tool_calls": given.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": {"effort": (given.get("reasoning") or {}).get("effort"), "summary": None},
        "service_tier": "default" if tier == "auto" else tier, "store": given.get("store") is not False,
        "temperature": 1.0 if given.get("temperature") is None else given["temperature"],
        "text": {"format": (given.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": given.get("tool_choice") or "auto", "tools": given.get("tools") or [], "top_logprobs": 0,
        "top_p": 1.0 if given.get("top_p") is None else given["top_p"], "truncation": "disabled", "usage": None,
        "user": given.get("user"), "metadata": given.get("metadata") or {},
        "system_fingerprint": replies.FINGERPRINT,
    }  # fmt: skip


def response_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """All events of an answer, its texts in pieces; each event has its number."""
    begun, whole = response_frame(call, "in_progress"), response(call, answer)
    events: list[Event] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, done in enumerate(whole["output"]):
        begun = done | {"status": "in_progress"} if "status" in done else done
        steps = list(item_steps(done, {"item_id": done["id"], "output_index": index}))
        begun |= {
            name: type(done[name])() for name in ("content", "arguments") if steps and name in done
        }
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": begun},
            *steps,
            {"type": "response.output_item.done", "output_index": index, "item": done},
        ]
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return ({**event, "sequence_number": number} for number, event in enumerate(events))


def item_steps(item: dict[str, Any], where: dict[str, Any]) -> Iterator[Event]:
    if item["type"] == "function_call":
        name = "response.function_call_arguments"
        for piece in replies.pieces(item["arguments"]):
            yield {"type": f"{name}.delta", **where, "delta": piece}
        yield {
            "type": f"{name}.done",
            **where,
            "name": item["name"],
            "arguments": item["arguments"],
        }
    elif item["type"] == "web_search_call":
        yield from ({"type": f"response.web_search_call.{step}", **where} for step in SEARCH_STEPS)
    elif item["type"] == "message":
        part, where = item["content"][0], {**where, "content_index": 0}
        kind, name = f"response.{part['type']}", "refusal" if part["type"] == "refusal" else "text"
        logprobs: Event = {"logprobs": []} if name == "text" else {}
        bare = {name: "", **({"annotations": []} if name == "text" else {})}
        yield {"type": "response.content_part.added", **where, "part": part | bare}
        for piece in replies.pieces(part[name]):
            yield {"type": f"{kind}.delta", **where, "delta": piece, **logprobs}
        yield {"type": f"{kind}.done", **where, name: part[name], **logprobs}
        for number, annotation in enumerate(part.get("annotations", ())):
            added = {"annotation_index": number, "annotation": annotation}
            yield {"type": "response.output_text.annotation.added", **where, **added}
        yield {"type": "response.content_part.done", **where, "part": part}


def socket_error(error: ApiError) -> Event:
    """An error as a WebSocket sends it: there is no status line, so status and headers are within."""
    about = {"type": error.kind, "code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "status": error.status, "error": about | {"headers": error.headers}}


RESPONSES = replace(
    chat.CHAT,
    read=lambda body, seed, headers: read_response(replies.read_object(body), seed),
    reply=response,
    events=response_events,
    failed=lambda call, error: (
        response_frame(call, "failed")
        | {"error": {"code": error.code or "server_error", "message": error.message}}
    ),
    stream_error=lambda error: {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": None,
    },
)
SOCKET_RESPONSES = replace(
    RESPONSES,
    read=read_socket_message,
    error=socket_error,
    stream_error=lambda error: {
        "type": "error",
        "error": socket_error(error)["error"],
    },  # the model was at work
)
