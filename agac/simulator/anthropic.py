"""Anthropic's Messages API: how requests and schemas are read, how answers, events and errors are written, by
platform.claude.com (Messages, Errors, Structured outputs) and the anthropic SDK 2.12, read November 2026."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from agac.simulator import replies
from agac.simulator.replies import (
    ApiError,
    Conversation,
    Event,
    Kind,
    ModelAnswer,
    ModelApi,
    ModelCall,
)
from agac.simulator.schema_rules import schema_problem, schema_with_described_bounds
from agac.simulator.schema_values import word_set
from agac.simulator.serving import LIFETIMES
from agac.simulator.settings import RateLimits
from agac.simulator.tool_calls import AskedTool, OfferedTool, cited_pages

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 408: "timeout_error", 409: "conflict_error", 413: "request_too_large",
    429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip

UNTOLD_CODES = word_set(
    "rate_limit_exceeded invalid_api_key model_not_found server_is_overloaded server_error invalid_json_schema "
    "unknown_url"
)
"""Codes of OpenAI's, which the rest of the simulator uses, without one of Anthropic's."""

PARAMETERS = word_set(
    "model messages max_tokens system stream temperature top_p top_k stop_sequences output_config thinking "
    "service_tier metadata tools tool_choice container inference_geo speed diagnostics cache_control user_profile_id"
)
UNSUPPORTED: dict[str, Any] = {"container": None, "speed": "standard", "diagnostics": None}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("max_tokens", "top_k"), replies.COUNT),
    **dict.fromkeys(("temperature", "top_p"), replies.between(0, 1)),
    **dict.fromkeys(("output_config", "thinking", "metadata", "tool_choice"), replies.OBJECT),
    "stream": replies.TRUTH,
    "stop_sequences": (
        lambda value: (
            isinstance(value, list)
            and all(isinstance(text, str) and text.strip() for text in value)
        ),
        "a list of strings that are not blank",
    ),
    "service_tier": (lambda value: value in ("auto", "standard_only"), "'auto' or 'standard_only'"),
    "tools": (lambda value: isinstance(value, list), "a list"),
}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
MIN_THINKING_TOKENS = 1024
STOPS = {
    "stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use",
    "pause": "pause_turn",
}  # fmt: skip
HOSTED_TOOLS = ("web_search", "web_fetch")
"""Tools that Anthropic runs itself, by their names: those of their types begin so."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": (
        "text", "tool_use", "thinking", "redacted_thinking", "server_tool_use", "web_search_tool_result",
        "web_fetch_tool_result",
    ),
}  # fmt: skip


def bad(place: str, problem: str) -> ApiError:
    """A request that is refused: where in it, and why."""
    return ApiError(400, f"{place}: {problem}", param=place)


def message_error(error: ApiError) -> dict[str, Any]:
    """An error as Anthropic writes it. A code that is the name of a type is the type, whatever the status."""
    kind = ERROR_TYPES.get(
        error.status, "api_error" if error.status >= 500 else "invalid_request_error"
    )
    code = "enforced_spend_limit_reached" if error.code == "insufficient_quota" else error.code
    if code in ERROR_TYPES.values():
        kind, code = str(code), None
    about: dict[str, Any] = {"type": kind, "message": error.message}
    if code is not None and code not in UNTOLD_CODES:
        about["details"] = {"error_code": code}
    return {"type": "error", "error": about, "request_id": None}


def anthropic_headers(number: int, limits: RateLimits) -> dict[str, str]:
    """A reply's own headers: its number, and what is left of the limits, until when (RFC 3339)."""
    headers = {"request-id": f"req_sim_{number}"}
    now = time.time()
    for unit, limit, remaining, reset in limits.levels(time.monotonic()):
        headers[f"anthropic-ratelimit-{unit}-limit"] = str(limit)
        headers[f"anthropic-ratelimit-{unit}-remaining"] = str(remaining)
        headers[f"anthropic-ratelimit-{unit}-reset"] = str(moment(now + reset, "seconds"))
    return headers


def moment(seconds: float | None, timespec: str = "microseconds") -> str | None:
    """A time as Anthropic writes it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def read_body(body: bytes, seed: int, headers: Mapping[str, str]) -> ModelCall:
    """Reads a request; raises ApiError as Anthropic would answer it."""
    check_version(headers)
    return read_message_request(replies.read_object(body), seed)


def check_version(headers: Mapping[str, str]) -> None:
    """Raises ApiError for a request without the header that says the API's version."""
    if not headers.get("anthropic-version"):
        raise bad("anthropic-version", "header is required")


def read_message_request(data: dict[str, Any], seed: int) -> ModelCall:
    """A request for a message (or the `params` of a batch's request). `stream` is taken out of it."""
    check_values(data)
    talk = read_conversation(data)
    schema = read_output_format(data)
    form = (
        replies.prompted_schema(talk.messages)
        if schema is None
        else {"schema": schema, "schema_key": replies.canonical(schema)}
    )
    form |= {
        "max_tokens": data["max_tokens"],
        "stop": tuple(data.get("stop_sequences") or ()),
    } | read_offered(data)
    thinks = (data.get("thinking") or {}).get("type") in ("adaptive", "enabled")
    return replies.model_call(data, seed, talk, extras={"thinks": True} if thinks else {}, **form)


def read_conversation(data: Mapping[str, Any]) -> Conversation:
    talk, thinking = Conversation(), (data.get("thinking") or {}).get("type") == "enabled"
    if data.get("system") is not None:
        talk.say("system", read_content(data["system"], "system"))
    for index, message in enumerate(data["messages"]):
        place = f"messages.{index}"
        if not isinstance(message, dict) or message.get("role") not in BLOCKS:
            raise bad(f"{place}.role", "Input should be 'user' or 'assistant'")
        role, calls = message["role"], []
        blocks = read_blocks(message.get("content"), f"{place}.content", BLOCKS[role])
        said = [block["text"] for block in blocks if block["type"] == "text"]
        for block in blocks:
            check_sealed(block, place)
            if block["type"] == "tool_use":
                call_id, name, given = block.get("id"), block.get("name"), block.get("input")
                if not (
                    isinstance(call_id, str) and isinstance(name, str) and isinstance(given, dict)
                ):
                    raise bad(
                        place,
                        "`tool_use` blocks should have an id and a name, and an object as their input",
                    )
                if not TOOL_NAME.fullmatch(name):
                    raise bad(f"{place}.name", f"String should match pattern '{TOOL_NAME.pattern}'")
                calls.append(AskedTool(call_id, name, replies.plain_json(given)))
            elif block["type"] == "tool_result":
                text = read_content(block["content"], place) if block.get("content") else ""
                talk.result(block.get("tool_use_id"), text, place)
            elif block["type"] == "thinking" and block.get("signature") != replies.signature(
                str(block["thinking"])
            ):
                raise bad(place, "Invalid `signature` in `thinking` block")
        talk.check(place)
        if (calls and thinking and not blocks[0]["type"].endswith("thinking")) or (
            "tool_result" in [block["type"] for block in blocks[1:]] and blocks[0]["type"] == "text"
        ):
            raise bad(
                place, "thoughts must come before calls, and `tool_result` blocks before text"
            )
        if said or role == "assistant":
            talk.say(role, "".join(said), calls)
    talk.check("messages")
    if talk.turns and not data.get("tools"):
        raise bad(
            "tools", "Requests which include `tool_use` or `tool_result` blocks must define tools"
        )
    return talk


def read_offered(data: Mapping[str, Any]) -> dict[str, Any]:
    """The tools that are offered and how they are to be used, as fields of a ModelCall."""
    tools = tuple(
        read_tool(tool, f"tools.{index}") for index, tool in enumerate(data.get("tools") or [])
    )
    choice = data.get("tool_choice") or {"type": "auto"}
    if choice.get("type") not in ("auto", "none"):
        raise bad(
            "tool_choice", "Input should have the type 'auto' or 'none': no other is simulated"
        )
    parallel = not choice.get("disable_parallel_tool_use")
    return (
        {"tools": tools, "may_call": choice["type"] == "auto", "parallel": parallel}
        if tools
        else {}
    )


def read_tool(tool: Any, place: str) -> OfferedTool:
    kind = (tool.get("type") or "custom") if isinstance(tool, dict) else ""
    hosted = next((name for name in HOSTED_TOOLS if str(kind).startswith(f"{name}_2")), "")
    if not hosted and kind != "custom":
        raise bad(
            place,
            "Input should be a tool of type 'custom', or a web search or fetch: no other is simulated",
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name) or (hosted and name != hosted):
        raise bad(f"{place}.name", f"String should match pattern '{hosted or TOOL_NAME.pattern}'")
    if not hosted and not (isinstance(schema, dict) and schema.get("type") == "object"):
        raise bad(f"{place}.custom.input_schema", "Input should be a schema with the type 'object'")
    if tool.get("strict") and (problem := schema_problem(replies.canonical(schema))) is not None:
        raise bad(f"{place}.custom.input_schema", problem)
    return OfferedTool(name, schema, kind=hosted)


def check_values(data: Mapping[str, Any]) -> None:
    for name in sorted(set(data) - PARAMETERS):
        raise bad(name, "Extra inputs are not permitted")
    for name in ("model", "max_tokens", "messages"):
        if data.get(name) is None:
            raise bad(name, "Field required")
    if not isinstance(data["model"], str) or not data["model"]:
        raise bad("model", "Input should be a string that is not empty")
    if not isinstance(data["messages"], list) or not data["messages"]:
        raise bad("messages", "at least one message is required")
    for name, wanted in replies.wrong_parameters(data, UNSUPPORTED, KINDS):
        raise bad(
            name,
            f"Input should be {wanted}"
            if wanted
            else "not supported by the simulator: leave it out",
        )
    check_thinking(data.get("thinking") or {"type": "disabled"}, data["max_tokens"])


def check_thinking(thinking: Any, max_tokens: int) -> None:
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in ("adaptive", "enabled", "disabled", "between_tools"):
        raise bad(
            "thinking.type", "Input should be 'adaptive', 'enabled', 'disabled' or 'between_tools'"
        )
    if kind != "enabled":
        if budget is not None:
            raise bad(f"thinking.{kind}.budget_tokens", "Extra inputs are not permitted")
        return
    if type(budget) is not int or budget < MIN_THINKING_TOKENS:
        raise bad(
            "thinking.enabled.budget_tokens",
            f"Input should be greater than or equal to {MIN_THINKING_TOKENS}",
        )
    if budget >= max_tokens:
        raise ApiError(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")


def read_output_format(data: Mapping[str, Any]) -> Any:
    """The schema that the answer is held to, None if there is none."""
    config = data.get("output_config") or {}
    for name in sorted(set(config) - {"effort", "format"}):
        raise bad(f"output_config.{name}", "Extra inputs are not permitted")
    if config.get("effort") not in (None, *EFFORTS):
        raise bad("output_config.effort", f"Input should be one of {', '.join(EFFORTS)}")
    form = config.get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise bad("output_config.format.type", "Input should be 'json_schema'")
    if set(form) != {"type", "schema"} or not isinstance(form["schema"], dict):
        raise bad(
            "output_config.format",
            "Input should be an object with 'type' and 'schema' and nothing else",
        )
    text = replies.canonical(form["schema"])
    problem = schema_problem(text)
    if problem is not None:
        raise bad("output_config.format.schema", problem)
    return schema_with_described_bounds(text)


def read_blocks(content: Any, place: str, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """The blocks of a content, of these kinds; a text is one block. Blocks of other kinds are not simulated."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(
        isinstance(b, dict)
        and b.get("type") in kinds
        and (b["type"] != "text" or replies.TEXT[0](b.get("text")))
        for b in blocks
    ):
        raise bad(place, "Input should be a string or a list of text blocks")
    if not blocks or not all(block["text"].strip() for block in blocks if block["type"] == "text"):
        raise bad(place, "text content blocks must be non-empty")
    return blocks


def read_content(content: Any, place: str) -> str:
    return "".join(block["text"] for block in read_blocks(content, place, ("text",)))


def message_object(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The message object of an answer. One that was refused says so in `stop_reason`, and has no text."""
    content = {"content": answer_blocks(call, answer)}
    return (
        message_frame(call) | content | stop_fields(answer) | {"usage": message_usage(call, answer)}
    )


def answer_blocks(call: ModelCall, answer: ModelAnswer) -> list[dict[str, Any]]:
    """What a message holds: thoughts, uses of the provider's own tools with their results, the text, calls."""
    blocks: list[dict[str, Any]] = []
    if call.tools and call.extras.get("thinks"):
        thought = f"Which of the {len(call.tools)} tools? {call.digest.hex()}"
        blocks.append(
            {"type": "thinking", "thinking": thought, "signature": replies.signature(thought)}
        )
    for index, use in enumerate(answer.hosted):
        use_id = f"srvtoolu_sim{call.digest.hex()[:16]}{index}"
        kind, asked = {"type": f"{use.kind}_result"}, {"query": use.query}
        told: Any = [
            {
                **kind,
                "url": page.url,
                "title": page.title,
                "page_age": None,
                "encrypted_content": sealed(page.url),
            }
            for page in use.pages
        ]
        if use.kind == "web_fetch":
            page = use.pages[0]
            source = {"type": "text", "media_type": "text/plain", "data": use.query}
            document = {"type": "document", "title": page.title, "source": source}
            asked, told = {"url": page.url}, {**kind, "url": page.url, "content": document}
        blocks.append({"type": "server_tool_use", "id": use_id, "name": use.kind, "input": asked})
        blocks.append({"type": f"{use.kind}_tool_result", "tool_use_id": use_id, "content": told})
    if answer.content:
        blocks.append(
            {"type": "text", "text": answer.content, "citations": citations(answer) or None}
        )
    for asked_tool in answer.calls:
        given = None
        with suppress(ValueError):
            given = json.loads(asked_tool.arguments)
        given = given if isinstance(given, dict) else {"INVALID_JSON": asked_tool.arguments}
        blocks.append(
            {"type": "tool_use", "id": asked_tool.id, "name": asked_tool.name, "input": given}
        )
    return blocks


def sealed(url: str) -> str:
    """What only the provider can read of a page that it found, and wants back as it was sent."""
    return replies.signature(f"page {url}")


def citations(answer: ModelAnswer) -> list[dict[str, Any]]:
    """How a text refers to the pages that were found."""
    return [
        {
            "type": "web_search_result_location", "url": page.url, "title": page.title,
            "encrypted_index": sealed(page.url), "cited_text": f"Of {page.title.lower()}.",
        }
        for page in cited_pages(answer.hosted)
    ]  # fmt: skip


def check_sealed(block: dict[str, Any], place: str) -> None:
    """Refuses a page, or a reference to one, that does not come back as it was sent."""
    told = (
        block.get("content")
        if block["type"] == "web_search_tool_result"
        else block.get("citations")
    )
    for one in told if isinstance(told, list) else []:
        seal = one.get("encrypted_content", one.get("encrypted_index"))
        if seal != sealed(str(one.get("url"))):
            raise bad(place, f"Invalid encrypted content in `{one.get('type')}`")


def message_frame(call: ModelCall) -> dict[str, Any]:
    """What every message object has. `system_fingerprint` is not Anthropic's: it marks the simulator, as in chat."""
    return {
        "id": f"msg_sim{call.digest.hex()}", "type": "message", "role": "assistant", "model": call.model, "content": [],
        "stop_reason": None, "stop_sequence": None, "stop_details": None, "system_fingerprint": replies.FINGERPRINT,
    }  # fmt: skip


def stop_fields(answer: ModelAnswer) -> dict[str, Any]:
    if answer.has_word or (answer.refusal is None and answer.finish != "content_filter"):
        return {
            "stop_reason": answer.ended_with(STOPS[answer.finish]),
            "stop_sequence": None,
            "stop_details": None,
        }
    category = None if answer.refusal is not None else "general_harms"
    details = {"type": "refusal", "category": category, "explanation": answer.refusal}
    return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}


def message_usage(call: ModelCall, answer: ModelAnswer) -> dict[str, Any]:
    """The charged tokens. `service_tier` among a call's extras says who served it; a batch is one of its values."""
    written = sum(call.cache_written.values())
    split = {f"ephemeral_{ttl}_input_tokens": call.cache_written.get(ttl, 0) for ttl in LIFETIMES}
    uses = Counter(f"{use.kind}_requests" for use in answer.hosted)
    served = {
        "server_tool_use": {f"{name}_requests": uses[f"{name}_requests"] for name in HOSTED_TOOLS}
    }
    counts = {
        "input_tokens": call.prompt_tokens - call.cached_tokens - written,
        "cache_creation_input_tokens": written, "cache_read_input_tokens": call.cached_tokens,
        "output_tokens": answer.tokens, "service_tier": call.extras.get("service_tier", "standard"),
        **({"cache_creation": split} if written else {}),
        **(served if any(tool.kind for tool in call.tools) else {}),
    }  # fmt: skip
    return answer.usage(counts)


def message_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    usage = message_usage(call, answer)
    yield {
        "type": "message_start",
        "message": message_frame(call) | {"usage": usage | {"output_tokens": 1}},
    }
    yield {"type": "ping"}
    for index, block in enumerate(answer_blocks(call, answer)):
        empty, deltas = dict(block), list[dict[str, Any]]()
        if block["type"] in ("tool_use", "server_tool_use"):
            empty["input"], written = {}, replies.plain_json(block["input"])
            written = block["input"].get("INVALID_JSON", written)
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in replies.pieces(written)
            ]
        elif (name := block["type"]) in ("text", "thinking"):
            empty[name] = ""
            deltas = [
                {"type": f"{name}_delta", name: piece} for piece in replies.pieces(block[name])
            ]
            if cited := block.get("citations"):
                empty["citations"] = []
                deltas += [{"type": "citations_delta", "citation": one} for one in cited]
            if name == "thinking":
                empty["signature"] = ""
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield from (
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        )
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": stop_fields(answer),
        "usage": {"output_tokens": usage["output_tokens"]},
    }
    yield {"type": "message_stop"}


MESSAGES = ModelApi(
    read=read_body,
    reply=message_object,
    events=message_events,
    error=message_error,
    headers=anthropic_headers,
)
