"""OpenAI's chat completions, read and written, and what the Responses API reads alike."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agac.simulator import replies
from agac.simulator.api_errors import ApiError, invalid, missing
from agac.simulator.kinds import (
    COUNT,
    OBJECT,
    TRUTH,
    JsonObject,
    ValueKind,
    anything,
    as_object,
    between,
    only,
    wrong_parameters,
)
from agac.simulator.model_calls import (
    AnswerForm,
    Conversation,
    ModelCall,
    ToolOffer,
    canonical,
    model_call,
    prompted_form,
)
from agac.simulator.replies import Event, ModelAnswer, ModelApi
from agac.simulator.schema_values import word_set
from agac.simulator.tool_calls import AskedTool, Messages, OfferedTool, cited_pages

CHAT_PARAMETERS: dict[str, ValueKind] = {
    "n": only(1),
    "logprobs": only(False),
    "top_logprobs": only(0),
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "presence_penalty": between(-2, 2),
    "frequency_penalty": between(-2, 2),
    "max_tokens": COUNT,
    "max_completion_tokens": COUNT,
    "stream": TRUTH,
    "stream_options": OBJECT,
    "parallel_tool_calls": TRUTH,
    **anything(
        "model messages response_format stop seed reasoning_effort service_tier user metadata "
        "store logit_bias modalities prompt_cache_key prompt_cache_retention safety_identifier "
        "verbosity prediction tools tool_choice"
    ),
}
OF_LOOK_ALIKES = word_set(
    "top_k min_p repetition_penalty chat_template_kwargs enable_thinking thinking"
)
"""Parameters that OpenAI's own API does not have, and others that speak its protocol do.

Their models are rehearsed here, too, and answered as without them.
"""
OPENAI_MODEL = re.compile(r"(gpt-\d|chatgpt|o\d)")

ROLES = ("assistant", "developer", "system", "user")
FORMATS = ("text", "json_object", "json_schema")
TEXTS = ("text",)
MAX_STOPS = 4
HOSTED_TOOLS = ("web_search", "x_search")
"""The types of the provider's own tools; `x_search` is xAI's."""

SEARCHING = ":online"
"""The end of the name of a model that searches the web by itself, as at OpenRouter.

Chat completions offer no tool for it.
"""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
CALLED_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def error_object(error: ApiError) -> JsonObject:
    about = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    return {"error": about}


def check_parameters(
    data: JsonObject, kinds: dict[str, ValueKind], code: str | None = None
) -> None:
    """Refuses parameters that are not simulated, and values of a wrong kind, with `code`."""
    for name, wanted in wrong_parameters(data, kinds):
        if wanted:
            raise invalid(name, wanted, code)
        message = f"{name} is not supported by the simulator: leave it out."
        raise ApiError(400, message, param=name)


def read_tools(data: JsonObject, within: str = "") -> ToolOffer:
    """Reads the tools that are offered and how they are to be used.

    A function is described in its tool or, as in chat completions, in the key `within` of it.
    Those have none of the provider's own tools.
    """
    tools = data.get("tools")
    if not tools:
        return ToolOffer()
    if not isinstance(tools, list):
        raise invalid("tools", "an array of objects")
    offered = [read_tool(tool, f"tools[{index}]", within) for index, tool in enumerate(tools)]
    choice = data.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        raise invalid("tool_choice", "auto or none: no other is simulated")
    is_parallel = data.get("parallel_tool_calls") is not False
    return ToolOffer(tuple(offered), may_call=choice == "auto", parallel=is_parallel)


def read_tool(tool: Any, place: str, within: str) -> OfferedTool:
    kind = as_object(tool).get("type")
    if kind in HOSTED_TOOLS and not within:
        return OfferedTool(str(kind), kind=str(kind))
    if kind != "function":
        raise invalid(f"{place}.type", "function: no other is simulated")
    function = tool
    if within:
        function = tool.get(within)
        place = f"{place}.{within}"
    name = as_object(function).get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise invalid(f"{place}.name", f"a string that matches '{TOOL_NAME.pattern}'")
    return OfferedTool(name, function.get("parameters"), strict=bool(function.get("strict")))


def read_call(call: Any, id_key: str, within: str, place: str) -> AskedTool:
    """Reads a call that an assistant has made.

    Its name and arguments are in it or, with `within`, in that key of it.
    """
    fields = as_object(call)
    function = as_object(fields.get(within)) if within else fields
    texts: list[Any] = [fields.get(id_key), function.get("name"), function.get("arguments")]
    if not all(isinstance(text, str) for text in texts):
        raise invalid(place, "an id, and a function's name and arguments, as strings")
    asked = AskedTool(*texts)
    if not CALLED_NAME.fullmatch(asked.name):
        raise invalid(f"{place}.name", f"a string that matches '{CALLED_NAME.pattern}'")
    return asked


def read_text(content: Any, kinds: tuple[str, ...], param: str) -> str:
    """Reads the text of a message; parts of these kinds are joined, others are not simulated."""
    parts = content if isinstance(content, list) else [{"type": kinds[0], "text": content}]
    if not all(is_text_part(part, kinds) for part in parts):
        raise invalid(param, "a string or an array of text parts")
    return "".join(part["text"] for part in parts)


def is_text_part(part: Any, kinds: tuple[str, ...]) -> bool:
    if not isinstance(part, dict) or part.get("type") not in kinds:
        return False
    return isinstance(part.get("text"), str)


def read_list(data: JsonObject, name: str) -> list[Any]:
    items = data.get(name)
    if not isinstance(items, list) or not items:
        raise invalid(name, "an array with at least one element")
    return items


def read_role(message: Any, param: str) -> str:
    role = as_object(message).get("role")
    if role not in ROLES:
        raise invalid(param, f"a message whose role is one of {', '.join(ROLES)}")
    return str(role)


def read_messages(data: JsonObject) -> Conversation:
    talk = Conversation()
    for index, message in enumerate(read_list(data, "messages")):
        read_message(talk, message, f"messages[{index}]")
    talk.check("messages")
    return talk


def read_message(talk: Conversation, message: Any, param: str) -> None:
    if as_object(message).get("role") == "tool":
        text = read_text(message.get("content"), TEXTS, param)
        talk.result(message.get("tool_call_id"), text, param)
        return
    role = read_role(message, param)
    talk.check(param)
    content = message.get("content")
    calls: list[AskedTool] = []
    if role == "assistant":
        content = "" if content is None else content
        calls = [
            read_call(call, "id", "function", f"{param}.tool_calls")
            for call in message.get("tool_calls") or ()
        ]
    talk.say(role, read_text(content, TEXTS, f"{param}.content"), calls)


def read_format(
    form: Any,
    place: str,
    messages: Messages,
    within: str = "",
    needed: tuple[str, ...] = ("name",),
) -> AnswerForm:
    """Reads the form that the parameter `place` requests.

    A schema is described in it or, with `within`, in that key of it, by the keys `needed`.
    """
    if form is None:
        return prompted_form(messages)
    kind = as_object(form).get("type")
    if kind not in FORMATS:
        raise invalid(f"{place}.type", f"one of {', '.join(FORMATS)}")
    if kind != "json_schema":
        return replace(prompted_form(messages), wants_json=kind != "text")
    described = form
    if within:
        described = form.get(within)
        place = f"{place}.{within}"
    for name in needed:
        if as_object(described).get(name) is None:
            raise missing(f"{place}.{name}")
    schema = described.get("schema", {})
    strict_name = str(described["name"]) if described.get("strict") else None
    schema_key = f"{strict_name or ''}:{canonical(schema)}"
    return AnswerForm(schema, schema_key, strict_name, wants_json=True)


def read_chat(data: JsonObject, seed: int) -> ModelCall:
    """Reads a request for a chat completion; raises ApiError as OpenAI would answer it."""
    check_chat(data)
    talk = read_messages(data)
    stream_options = data.pop("stream_options", None) or {}
    form = read_format(
        data.get("response_format"), "response_format", talk.messages, within="json_schema"
    )
    stops = read_stops(data)
    offer = read_tools(data, "function")
    if data["model"].endswith(SEARCHING):
        search = OfferedTool("web_search", kind="web_search")
        offer = replace(offer, tools=(*offer.tools, search))
    tier = data.get("service_tier")
    return replace(
        model_call(data, seed, talk),
        form=form,
        offer=offer,
        stop=stops,
        include_usage=bool(stream_options.get("include_usage")),
        max_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
        extras={"service_tier": tier} if tier else {},
    )


def check_chat(data: JsonObject) -> None:
    """Raises ApiError for parameters that are wrong."""
    unknown = sorted(data.keys() - CHAT_PARAMETERS.keys())
    if not OPENAI_MODEL.match(str(data.get("model"))):
        unknown = [name for name in unknown if name not in OF_LOOK_ALIKES]
    if unknown:
        message = f"Unrecognized request argument supplied: {', '.join(unknown)}"
        raise ApiError(400, message, param=unknown[0])
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise ApiError(400, "you must provide a model parameter", param="model")
    check_parameters(data, CHAT_PARAMETERS)
    if data.get("stream_options") and not data.get("stream"):
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise ApiError(400, message, param="stream")


def read_stops(data: JsonObject) -> tuple[str, ...]:
    stops = data.get("stop") or []
    if isinstance(stops, str):
        stops = [stops]
    is_right = isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)
    if not is_right or len(stops) > MAX_STOPS:
        raise invalid("stop", f"a string or an array of up to {MAX_STOPS} strings")
    return tuple(filter(None, stops))


def chat_usage(call: ModelCall, answer: ModelAnswer) -> JsonObject:
    counts = {
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": call.prompt_tokens + answer.tokens,
        "prompt_tokens_details": {"cached_tokens": call.cache.read},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    return answer.usage(counts)


def chat_frame(call: ModelCall, kind: str) -> JsonObject:
    """Returns what a completion and each of its chunks have in common."""
    return {
        "id": f"chatcmpl-sim{call.digest.hex()}",
        "object": kind,
        "created": replies.CREATED,
        "model": call.model,
        "system_fingerprint": replies.FINGERPRINT,
        **call.extras,
    }


def chat_completion(call: ModelCall, answer: ModelAnswer) -> JsonObject:
    message: JsonObject = {
        "role": "assistant",
        "content": answer.content,
        "refusal": answer.refusal,
    }
    if answer.calls:
        message["tool_calls"] = [chat_tool_call(asked) for asked in answer.calls]
    annotations = chat_annotations(answer)
    if annotations:
        message["annotations"] = annotations
    choice = chat_choice("message", message, finish_reason(answer))
    frame = chat_frame(call, "chat.completion") | listed_pages(answer)
    return frame | {"choices": [choice], "usage": chat_usage(call, answer)}


def chat_choice(name: str, value: JsonObject, finish: str | None) -> JsonObject:
    return {"index": 0, name: value, "logprobs": None, "finish_reason": finish}


def url_citations(answer: ModelAnswer, text: str) -> list[JsonObject]:
    """Returns how a text refers to the pages that were found, each by all of the text."""
    return [
        {"url": page.url, "title": page.title, "start_index": 0, "end_index": len(text)}
        for page in cited_pages(answer.hosted)
    ]


def chat_annotations(answer: ModelAnswer) -> list[JsonObject]:
    if answer.content is None:
        return []
    citations = url_citations(answer, answer.content)
    return [{"type": "url_citation", "url_citation": citation} for citation in citations]


def listed_pages(answer: ModelAnswer) -> JsonObject:
    """Returns all pages that were found, as xAI and Perplexity list them."""
    pages = [page.url for use in answer.hosted for page in use.pages]
    return {"citations": pages} if pages else {}


def finish_reason(answer: ModelAnswer) -> str | None:
    return answer.ended_with("length" if answer.finish == "pause" else answer.finish)


def chat_tool_call(asked: AskedTool) -> JsonObject:
    function = {"name": asked.name, "arguments": asked.arguments}
    return {"id": asked.id, "type": "function", "function": function}


def chat_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """Gives the same completion in chunks: the role, pieces, the end, usage, the last line."""
    frame = chat_frame(call, "chat.completion.chunk")
    usage = {"usage": None} if call.include_usage else {}

    def chunk(delta: JsonObject, finish: str | None = None) -> Event:
        return frame | {"choices": [chat_choice("delta", delta, finish)]} | usage

    content = None if answer.calls else ""
    yield chunk({"role": "assistant", "content": content, "refusal": None})
    yield from map(chunk, chat_deltas(answer))
    yield chunk({}, finish_reason(answer)) | listed_pages(answer)
    if call.include_usage:
        yield frame | {"choices": [], "usage": chat_usage(call, answer)}
    yield "[DONE]"


def chat_deltas(answer: ModelAnswer) -> Iterator[JsonObject]:
    """Gives the pieces of an answer between its role and its end."""
    if answer.refusal is None:
        for piece in replies.pieces(answer.content or ""):
            yield {"content": piece}
    else:
        for piece in replies.pieces(answer.refusal):
            yield {"refusal": piece}
    for index, asked in enumerate(answer.calls):
        begun = chat_tool_call(asked._replace(arguments=""))
        yield {"tool_calls": [{"index": index, **begun}]}
        for piece in replies.pieces(asked.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
    annotations = chat_annotations(answer)
    if annotations:
        yield {"annotations": annotations}


CHAT = ModelApi(
    read_data=read_chat,
    reply=chat_completion,
    events=chat_events,
    error=error_object,
    headers=lambda number, limits: (
        {"x-request-id": f"req-sim-{number}"} | limits.headers(time.monotonic())
    ),
)
