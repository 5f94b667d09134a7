"""OpenAI's chat completions, read and written, and what the Responses API has in common with them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agac.simulator import replies
from agac.simulator.replies import (
    COUNT,
    OBJECT,
    ApiError,
    Conversation,
    Event,
    Kind,
    ModelAnswer,
    ModelApi,
    ModelCall,
)
from agac.simulator.schema_values import word_set
from agac.simulator.tool_calls import AskedTool, OfferedTool, cited_pages

CHAT_PARAMETERS = word_set(
    "model messages stream stream_options response_format max_tokens max_completion_tokens temperature top_p n stop "
    "seed presence_penalty frequency_penalty reasoning_effort service_tier user metadata store logit_bias logprobs "
    "top_logprobs modalities prompt_cache_key prompt_cache_retention safety_identifier verbosity prediction tools "
    "tool_choice parallel_tool_calls"
)
CHAT_UNSUPPORTED: dict[str, Any] = {"n": 1, "logprobs": False, "top_logprobs": 0}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

CHAT_KINDS: dict[str, Kind] = {
    "temperature": replies.between(0, 2), "top_p": replies.between(0, 1), "presence_penalty": replies.between(-2, 2),
    "frequency_penalty": replies.between(-2, 2), "max_tokens": COUNT, "max_completion_tokens": COUNT,
    "stream": replies.TRUTH, "stream_options": OBJECT, "parallel_tool_calls": replies.TRUTH,
}  # fmt: skip

ROLES = ("assistant", "developer", "system", "user")
FORMATS = ("text", "json_object", "json_schema")
TEXTS = ("text",)
HOSTED_TOOLS = ("web_search", "x_search")
"""The types of the provider's own tools; `x_search` is xAI's."""

SEARCHING = ":online"
"""How the name of a model ends that searches the web by itself, as at OpenRouter: chat completions offer no tool for
it."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
CALLED_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def missing(param: str) -> ApiError:
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def error_object(error: ApiError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def check_parameters(
    data: Mapping[str, Any],
    unsupported: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    code: str | None = None,
) -> None:
    """Refuses parameters that are not simulated, and values of a wrong kind; the latter with `code`."""
    for name, wanted in replies.wrong_parameters(data, unsupported, kinds):
        if not wanted:
            raise ApiError(
                400, f"{name} is not supported by the simulator: leave it out.", param=name
            )
        raise invalid(name, wanted, code)


def invalid(place: str, expected: str, code: str | None = None) -> ApiError:
    return ApiError(400, f"Invalid '{place}': expected {expected}.", code=code, param=place)


def read_tools(data: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """The tools that are offered and how they are to be used, as fields of a ModelCall. A function is described in its
    tool, or in the key `within` of it, as in chat completions, which have none of the provider's own tools."""
    given, choice = data.get("tools"), data.get("tool_choice") or "auto"
    if not given:
        return {}
    if not isinstance(given, list):
        raise invalid("tools", "an array of objects")
    tools = []
    for index, tool in enumerate(given):
        place, kind = f"tools[{index}]", tool.get("type") if isinstance(tool, dict) else None
        if kind in HOSTED_TOOLS and not within:
            tools.append(OfferedTool(str(kind), kind=str(kind)))
            continue
        if kind != "function":
            raise invalid(f"{place}.type", "function: no other is simulated")
        told, place = (tool.get(within), f"{place}.{within}") if within else (tool, place)
        if not isinstance(told, dict) or not TOOL_NAME.fullmatch(str(told.get("name"))):
            raise invalid(f"{place}.name", f"a string that matches '{TOOL_NAME.pattern}'")
        tools.append(
            OfferedTool(told["name"], told.get("parameters"), strict=bool(told.get("strict")))
        )
    if choice not in ("auto", "none"):
        raise invalid("tool_choice", "auto or none: no other is simulated")
    parallel = data.get("parallel_tool_calls") is not False
    return {"tools": tuple(tools), "may_call": choice == "auto", "parallel": parallel}


def read_call(call: Any, key: str, within: str, place: str) -> AskedTool:
    """A call that an assistant has made: its id has this key, name and arguments are in it or `within` one of it."""
    told = (call.get(within) if within else call) if isinstance(call, dict) else None
    texts = (
        (call.get(key), told.get("name"), told.get("arguments"))
        if isinstance(told, dict)
        else (None,)
    )
    if not all(isinstance(text, str) for text in texts):
        raise invalid(place, "an id, and a function's name and arguments, as strings")
    asked = AskedTool(*texts)
    if not CALLED_NAME.fullmatch(asked.name):
        raise invalid(f"{place}.name", f"a string that matches '{CALLED_NAME.pattern}'")
    return asked


def read_text(content: Any, kinds: tuple[str, ...], param: str) -> str:
    """The text of a message; parts of these kinds are joined, others are not simulated."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)
        for part in content
    ):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise invalid(param, "a string or an array of text parts")
    return content


def read_list(data: Mapping[str, Any], name: str) -> list[Any]:
    listed = data.get(name)
    if not isinstance(listed, list) or not listed:
        raise invalid(name, "an array with at least one element")
    return listed


def read_role(message: Any, param: str) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise invalid(param, f"a message whose role is one of {', '.join(ROLES)}")
    return str(role)


def read_messages(data: Mapping[str, Any]) -> Conversation:
    talk = Conversation()
    for index, message in enumerate(read_list(data, "messages")):
        param, told = f"messages[{index}]", message if isinstance(message, dict) else {}
        content, calls = told.get("content"), []
        if told.get("role") == "tool":
            talk.result(told.get("tool_call_id"), read_text(content, TEXTS, param), param)
            continue
        role = read_role(message, param)
        talk.check(param)
        if role == "assistant":
            content = "" if content is None else content
            calls = [
                read_call(one, "id", "function", f"{param}.tool_calls")
                for one in told.get("tool_calls") or ()
            ]
        talk.say(role, read_text(content, TEXTS, f"{param}.content"), calls)
    talk.check("messages")
    return talk


def read_format(
    form: Any,
    place: str,
    messages: Sequence[tuple[str, str]],
    within: str = "",
    needed: tuple[str, ...] = ("name",),
) -> dict[str, Any]:
    """What the parameter `place` requests, as fields of a ModelCall; `needed` describes a schema, in it or `within`."""
    if form is None:
        return replies.prompted_schema(messages)
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in FORMATS:
        raise invalid(f"{place}.type", f"one of {', '.join(FORMATS)}")
    if kind != "json_schema":
        return replies.prompted_schema(messages) | {"wants_json": kind != "text"}
    described, place = (form.get(within), f"{place}.{within}") if within else (form, place)
    for name in needed:
        if not isinstance(described, dict) or described.get(name) is None:
            raise missing(f"{place}.{name}")
    schema = described.get("schema", {})
    strict_name = str(described["name"]) if described.get("strict") else None
    schema_key = f"{strict_name or ''}:{replies.canonical(schema)}"
    return {
        "schema": schema,
        "schema_key": schema_key,
        "strict_name": strict_name,
        "wants_json": True,
    }


OF_LOOK_ALIKES = word_set(
    "top_k min_p repetition_penalty chat_template_kwargs enable_thinking thinking"
)
"""Parameters that OpenAI's own API does not have, and others that speak its protocol do: their models are rehearsed
here, too, and answered as without them."""

_OPENAIS = re.compile(r"(gpt-\d|chatgpt|o\d)")


def read_chat(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a chat completion; raises ApiError as OpenAI would answer it."""
    known = (
        CHAT_PARAMETERS
        if _OPENAIS.match(str(data.get("model")))
        else CHAT_PARAMETERS | OF_LOOK_ALIKES
    )
    if unknown := sorted(set(data) - known):
        raise ApiError(
            400, f"Unrecognized request argument supplied: {', '.join(unknown)}", param=unknown[0]
        )
    if not isinstance(data.get("model"), str) or not data["model"]:
        raise ApiError(400, "you must provide a model parameter", param="model")
    check_parameters(data, CHAT_UNSUPPORTED, CHAT_KINDS)
    if data.get("stream_options") and not data.get("stream"):
        raise ApiError(
            400,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream",
        )
    talk = read_messages(data)
    stream_options = data.pop("stream_options", None) or {}
    form = read_format(
        data.get("response_format"), "response_format", talk.messages, within="json_schema"
    )
    stops = [data["stop"]] if isinstance(data.get("stop"), str) else data.get("stop") or []
    if (
        not isinstance(stops, list)
        or len(stops) > 4
        or not all(isinstance(stop, str) for stop in stops)
    ):
        raise invalid("stop", "a string or an array of up to 4 strings")
    form |= {
        "stop": tuple(filter(None, stops)),
        "include_usage": bool(stream_options.get("include_usage")),
    }
    form |= read_tools(data, "function")
    if data["model"].endswith(SEARCHING):
        form["tools"] = (*form.get("tools", ()), OfferedTool("web_search", kind="web_search"))
    max_tokens = data.get("max_completion_tokens") or data.get("max_tokens")
    extras = {"service_tier": data["service_tier"]} if data.get("service_tier") else {}
    return replies.model_call(data, seed, talk, max_tokens=max_tokens, extras=extras, **form)


def chat_usage(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    written = answer.tokens
    counts = {
        "prompt_tokens": call.prompt_tokens, "completion_tokens": written, "total_tokens": call.prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": call.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return answer.usage(counts)


def chat_frame(call: ModelCall, kind: str) -> dict[str, Any]:
    """What a completion and each of its chunks have in common."""
    return {
        "id": f"chatcmpl-sim{call.digest.hex()}", "object": kind, "created": replies.CREATED, "model": call.model,
        "system_fingerprint": replies.FINGERPRINT, **call.extras,
    }  # fmt: skip


def chat_completion(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.content,
        "refusal": answer.refusal,
    }
    if answer.calls:
        message["tool_calls"] = [chat_tool_call(asked) for asked in answer.calls]
    if cited := chat_annotations(answer):
        message["annotations"] = cited
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(answer),
    }
    frame = chat_frame(call, "chat.completion") | found_pages(answer)
    return frame | {"choices": [choice], "usage": chat_usage(call, answer)}


def url_citations(answer: ModelAnswer, text: str) -> list[dict[str, Any]]:
    """How a text refers to the pages that were found, each by all of the text."""
    pages = cited_pages(answer.hosted)
    return [
        {"url": page.url, "title": page.title, "start_index": 0, "end_index": len(text)}
        for page in pages
    ]


def chat_annotations(answer: ModelAnswer) -> list[dict[str, Any]]:
    if answer.content is None:
        return []
    return [
        {"type": "url_citation", "url_citation": one}
        for one in url_citations(answer, answer.content)
    ]


def found_pages(answer: ModelAnswer) -> dict[str, Any]:
    """All pages that were found, as xAI and Perplexity list them."""
    pages = [page.url for use in answer.hosted for page in use.pages]
    return {"citations": pages} if pages else {}


def finish_reason(answer: ModelAnswer) -> str | None:
    return answer.ended_with("length" if answer.finish == "pause" else answer.finish)


def chat_tool_call(asked: AskedTool) -> dict[str, Any]:
    return {
        "id": asked.id,
        "type": "function",
        "function": {"name": asked.name, "arguments": asked.arguments},
    }


def chat_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    """The same completion in chunks: the role, pieces of text, the end, usage if requested, and the last line."""
    name, text = (
        ("content", answer.content) if answer.refusal is None else ("refusal", answer.refusal)
    )
    usage = {"usage": None} if call.include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return chat_frame(call, "chat.completion.chunk") | {"choices": [choice]} | usage

    yield chunk({"role": "assistant", "content": None if answer.calls else "", "refusal": None})
    for piece in replies.pieces(text or ""):
        yield chunk({name: piece})
    for index, asked in enumerate(answer.calls):
        yield chunk(
            {"tool_calls": [{"index": index, **chat_tool_call(asked._replace(arguments=""))}]}
        )
        for piece in replies.pieces(asked.arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if cited := chat_annotations(answer):
        yield chunk({"annotations": cited})
    yield chunk({}, finish_reason(answer)) | found_pages(answer)
    if call.include_usage:
        yield chat_frame(call, "chat.completion.chunk") | {
            "choices": [],
            "usage": chat_usage(call, answer),
        }
    yield "[DONE]"


CHAT = ModelApi(
    read=lambda body, seed, headers: read_chat(replies.read_object(body), seed), reply=chat_completion,
    events=chat_events, error=error_object,
    headers=lambda number, limits: {"x-request-id": f"req-sim-{number}"} | limits.headers(time.monotonic()),
)  # fmt: skip
