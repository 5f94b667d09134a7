"""Anthropic's Messages API: how requests are read, how answers, events and errors are written.

By platform.claude.com (Messages, Errors, Structured outputs) and the anthropic SDK 2.12, read
November 2026.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agac.simulator import replies
from agac.simulator.api_errors import ApiError
from agac.simulator.kinds import (
    COUNT,
    LIST,
    OBJECT,
    TRUTH,
    Headers,
    JsonObject,
    Texts,
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
    plain_json,
    prompted_form,
    signature,
)
from agac.simulator.prompt_cache import LIFETIMES
from agac.simulator.replies import Event, ModelAnswer, ModelApi
from agac.simulator.schema_rules import schema_problem, schema_with_described_bounds
from agac.simulator.schema_values import word_set
from agac.simulator.settings import RateLimits
from agac.simulator.tool_calls import AskedTool, HostedUse, OfferedTool, cited_pages

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

UNTOLD_CODES = word_set(
    "rate_limit_exceeded invalid_api_key model_not_found server_is_overloaded server_error "
    "invalid_json_schema unknown_url"
)
"""Codes of OpenAI's, which the rest of the simulator uses, without one of Anthropic's."""


def is_stop_sequences(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text.strip() for text in value)


PARAMETERS: dict[str, ValueKind] = {
    "container": only(),
    "speed": only("standard"),
    "diagnostics": only(),
    "max_tokens": COUNT,
    "top_k": COUNT,
    "temperature": between(0, 1),
    "top_p": between(0, 1),
    "output_config": OBJECT,
    "thinking": OBJECT,
    "metadata": OBJECT,
    "tool_choice": OBJECT,
    "stream": TRUTH,
    "stop_sequences": ValueKind(is_stop_sequences, "a list of strings that are not blank"),
    "service_tier": ValueKind(
        lambda value: value in ("auto", "standard_only"), "'auto' or 'standard_only'"
    ),
    "tools": LIST,
    **anything("model messages system inference_geo cache_control user_profile_id"),
}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
MIN_THINKING_TOKENS = 1024
THINKING_KINDS = ("adaptive", "enabled", "disabled", "between_tools")
STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
    "pause": "pause_turn",
}
HOSTED_TOOLS = ("web_search", "web_fetch")
"""Tools that Anthropic runs itself, by their names: those of their types begin so."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": (
        "text",
        "tool_use",
        "thinking",
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
    ),
}


def bad(place: str, problem: str) -> ApiError:
    """Returns the refusal of a request: where in it, and why."""
    return ApiError(400, f"{place}: {problem}", param=place)


def bad_pattern(place: str, pattern: str) -> ApiError:
    return bad(place, f"String should match pattern '{pattern}'")


def message_error(error: ApiError) -> JsonObject:
    """Returns an error as Anthropic writes it.

    A code that is the name of a type is the type, whatever the status.
    """
    usual = "api_error" if error.status >= 500 else "invalid_request_error"
    about: JsonObject = {
        "type": ERROR_TYPES.get(error.status, usual),
        "message": error.message,
    }
    code = error.code
    if code == "insufficient_quota":
        code = "enforced_spend_limit_reached"
    if code in ERROR_TYPES.values():
        about["type"] = code
    elif code is not None and code not in UNTOLD_CODES:
        about["details"] = {"error_code": code}
    return {"type": "error", "error": about, "request_id": None}


def anthropic_headers(number: int, limits: RateLimits) -> Texts:
    """Returns a reply's own headers: its number, and what is left of the limits, until when."""
    headers = {"request-id": f"req_sim_{number}"}
    now = time.time()
    for unit, limit, remaining, reset in limits.levels(time.monotonic()):
        prefix = f"anthropic-ratelimit-{unit}"
        headers[f"{prefix}-limit"] = str(limit)
        headers[f"{prefix}-remaining"] = str(remaining)
        headers[f"{prefix}-reset"] = str(moment(now + reset, "seconds"))
    return headers


def moment(seconds: float | None, timespec: str = "microseconds") -> str | None:
    """Returns a time as Anthropic writes it (RFC 3339)."""
    if seconds is None:
        return None
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec)
    return text.replace("+00:00", "Z")


def check_version(headers: Headers) -> None:
    """Raises ApiError for a request without the header that says the API's version."""
    if not headers.get("anthropic-version"):
        raise bad("anthropic-version", "header is required")


def read_message_request(data: JsonObject, seed: int) -> ModelCall:
    """Reads a request for a message, or the `params` of a batch's request.

    `stream` is taken out of it.
    """
    check_values(data)
    talk = MessageReader(data).read()
    form = read_output_format(data)
    offer = read_tools(data)
    thinks = (data.get("thinking") or {}).get("type") in ("adaptive", "enabled")
    return replace(
        model_call(data, seed, talk),
        form=prompted_form(talk.messages) if form is None else form,
        offer=offer,
        max_tokens=data["max_tokens"],
        stop=tuple(data.get("stop_sequences") or ()),
        extras={"thinks": True} if thinks else {},
    )


class MessageReader:
    """Reads the messages of a request into a conversation."""

    def __init__(self, data: JsonObject) -> None:
        self.data = data
        self.talk = Conversation()
        self.must_think = (data.get("thinking") or {}).get("type") == "enabled"
        """true if thoughts must come before calls"""

    def read(self) -> Conversation:
        """Returns the conversation; raises ApiError."""
        if self.data.get("system") is not None:
            self.talk.say("system", read_content(self.data["system"], "system"))
        for index, message in enumerate(self.data["messages"]):
            self.read_message(message, f"messages.{index}")
        self.talk.check("messages")
        if self.talk.turns and not self.data.get("tools"):
            problem = "Requests which include `tool_use` or `tool_result` blocks must define tools"
            raise bad("tools", problem)
        return self.talk

    def read_message(self, message: Any, place: str) -> None:
        role = as_object(message).get("role")
        if role not in BLOCKS:
            raise bad(f"{place}.role", "Input should be 'user' or 'assistant'")
        blocks = read_blocks(message.get("content"), f"{place}.content", BLOCKS[role])
        calls = [call for block in blocks for call in self.read_block(block, place)]
        self.talk.check(place)
        self.check_order([block["type"] for block in blocks], place)
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        if texts or role == "assistant":
            self.talk.say(role, "".join(texts), calls)

    def check_order(self, kinds: list[str], place: str) -> None:
        """Refuses calls without a thought before them, where there must be, and late results."""
        lacks_thought = self.must_think and not kinds[0].endswith("thinking")
        is_result_late = kinds[0] == "text" and "tool_result" in kinds
        if (lacks_thought and "tool_use" in kinds) or is_result_late:
            problem = "thoughts must come before calls, and `tool_result` blocks before text"
            raise bad(place, problem)

    def read_block(self, block: JsonObject, place: str) -> Iterator[AskedTool]:
        """Reads a block other than text; gives the call that it is, if it is one."""
        check_sealed(block, place)
        match block["type"]:
            case "tool_use":
                yield read_call(block, place)
            case "tool_result":
                text = read_content(block["content"], place) if block.get("content") else ""
                self.talk.result(block.get("tool_use_id"), text, place)
            case "thinking":
                if block.get("signature") != signature(str(block["thinking"])):
                    raise bad(place, "Invalid `signature` in `thinking` block")


def read_call(block: JsonObject, place: str) -> AskedTool:
    call_id = block.get("id")
    name = block.get("name")
    arguments = block.get("input")
    is_named = isinstance(call_id, str) and isinstance(name, str)
    if not is_named or not isinstance(arguments, dict):
        problem = "`tool_use` blocks should have an id and a name, and an object as their input"
        raise bad(place, problem)
    if not TOOL_NAME.fullmatch(str(name)):
        raise bad_pattern(f"{place}.name", TOOL_NAME.pattern)
    return AskedTool(str(call_id), str(name), plain_json(arguments))


def read_tools(data: JsonObject) -> ToolOffer:
    """Reads the tools that are offered and how they are to be used."""
    tools = [
        read_tool(tool, f"tools.{index}") for index, tool in enumerate(data.get("tools") or [])
    ]
    choice = data.get("tool_choice") or {"type": "auto"}
    if choice.get("type") not in ("auto", "none"):
        problem = "Input should have the type 'auto' or 'none': no other is simulated"
        raise bad("tool_choice", problem)
    if not tools:
        return ToolOffer()
    is_parallel = not choice.get("disable_parallel_tool_use")
    return ToolOffer(tuple(tools), may_call=choice["type"] == "auto", parallel=is_parallel)


def read_tool(tool: Any, place: str) -> OfferedTool:
    kind = str(tool.get("type") or "custom") if isinstance(tool, dict) else ""
    hosted = next((name for name in HOSTED_TOOLS if kind.startswith(f"{name}_2")), "")
    if not hosted and kind != "custom":
        problem = "Input should be a tool of type 'custom', or a web search or fetch"
        raise bad(place, f"{problem}: no other is simulated")
    name = tool.get("name")
    is_right = isinstance(name, str) and TOOL_NAME.fullmatch(name) is not None
    if not is_right or (hosted and name != hosted):
        raise bad_pattern(f"{place}.name", hosted or TOOL_NAME.pattern)
    schema = tool.get("input_schema")
    if not hosted:
        check_tool_schema(schema, f"{place}.custom.input_schema", strict=bool(tool.get("strict")))
    return OfferedTool(name, schema, kind=hosted)


def check_tool_schema(schema: Any, place: str, *, strict: bool) -> None:
    if as_object(schema).get("type") != "object":
        raise bad(place, "Input should be a schema with the type 'object'")
    problem = schema_problem(canonical(schema)) if strict else None
    if problem is not None:
        raise bad(place, problem)


def check_values(data: JsonObject) -> None:
    for name in sorted(data.keys() - PARAMETERS.keys()):
        raise bad(name, "Extra inputs are not permitted")
    for name in ("model", "max_tokens", "messages"):
        if data.get(name) is None:
            raise bad(name, "Field required")
    if not isinstance(data["model"], str) or not data["model"]:
        raise bad("model", "Input should be a string that is not empty")
    if not isinstance(data["messages"], list) or not data["messages"]:
        raise bad("messages", "at least one message is required")
    for name, wanted in wrong_parameters(data, PARAMETERS):
        if wanted:
            raise bad(name, f"Input should be {wanted}")
        raise bad(name, "not supported by the simulator: leave it out")
    check_thinking(data.get("thinking") or {"type": "disabled"}, data["max_tokens"])


def check_thinking(thinking: Any, max_tokens: int) -> None:
    kind = thinking.get("type")
    budget = thinking.get("budget_tokens")
    if kind not in THINKING_KINDS:
        problem = "Input should be 'adaptive', 'enabled', 'disabled' or 'between_tools'"
        raise bad("thinking.type", problem)
    if kind != "enabled":
        if budget is not None:
            raise bad(f"thinking.{kind}.budget_tokens", "Extra inputs are not permitted")
        return
    if type(budget) is not int or budget < MIN_THINKING_TOKENS:
        problem = f"Input should be greater than or equal to {MIN_THINKING_TOKENS}"
        raise bad("thinking.enabled.budget_tokens", problem)
    if budget >= max_tokens:
        raise ApiError(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")


def read_output_format(data: JsonObject) -> AnswerForm | None:
    """Reads the schema that the answer is held to, None if there is none."""
    config = data.get("output_config") or {}
    for name in sorted(set(config) - {"effort", "format"}):
        raise bad(f"output_config.{name}", "Extra inputs are not permitted")
    if config.get("effort") not in (None, *EFFORTS):
        raise bad("output_config.effort", f"Input should be one of {', '.join(EFFORTS)}")
    form = config.get("format")
    if form is None:
        return None
    if as_object(form).get("type") != "json_schema":
        raise bad("output_config.format.type", "Input should be 'json_schema'")
    if set(form) != {"type", "schema"} or not isinstance(form["schema"], dict):
        problem = "Input should be an object with 'type' and 'schema' and nothing else"
        raise bad("output_config.format", problem)
    text = canonical(form["schema"])
    problem = schema_problem(text) or ""
    if problem:
        raise bad("output_config.format.schema", problem)
    schema = schema_with_described_bounds(text)
    return AnswerForm(schema, canonical(schema))


def read_blocks(content: Any, place: str, kinds: tuple[str, ...]) -> list[JsonObject]:
    """Reads the blocks of a content, of these kinds; a text is one block.

    Blocks of other kinds are not simulated.
    """
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(is_block(block, kinds) for block in blocks):
        raise bad(place, "Input should be a string or a list of text blocks")
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if not blocks or not all(text.strip() for text in texts):
        raise bad(place, "text content blocks must be non-empty")
    return blocks


def is_block(block: Any, kinds: tuple[str, ...]) -> bool:
    if not isinstance(block, dict) or block.get("type") not in kinds:
        return False
    return block["type"] != "text" or isinstance(block.get("text"), str)


def read_content(content: Any, place: str) -> str:
    return "".join(block["text"] for block in read_blocks(content, place, ("text",)))


def message_object(call: ModelCall, answer: ModelAnswer) -> JsonObject:
    """Returns the message of an answer. A refusal is said in `stop_reason`, without a text."""
    message = message_frame(call) | {"content": answer_blocks(call, answer)}
    return message | stop_fields(answer) | {"usage": message_usage(call, answer)}


def answer_blocks(call: ModelCall, answer: ModelAnswer) -> list[JsonObject]:
    """Returns what a message holds: thoughts, uses of hosted tools, the text, calls."""
    blocks: list[JsonObject] = []
    tools = call.offer.tools
    if tools and call.extras.get("thinks"):
        thought = f"Which of the {len(tools)} tools? {call.digest.hex()}"
        blocks.append({"type": "thinking", "thinking": thought, "signature": signature(thought)})
    for index, use in enumerate(answer.hosted):
        blocks += hosted_blocks(use, f"srvtoolu_sim{call.digest.hex()[:16]}{index}")
    if answer.content:
        cited = citations(answer) or None
        blocks.append({"type": "text", "text": answer.content, "citations": cited})
    for asked in answer.calls:
        blocks.append(
            {"type": "tool_use", "id": asked.id, "name": asked.name, "input": call_input(asked)}
        )
    return blocks


def call_input(asked: AskedTool) -> JsonObject:
    """Returns the arguments of a call as an object."""
    with suppress(ValueError):
        arguments = json.loads(asked.arguments)
        if isinstance(arguments, dict):
            return arguments
    return {"INVALID_JSON": asked.arguments}


def hosted_blocks(use: HostedUse, use_id: str) -> list[JsonObject]:
    """Returns the use of one of the provider's own tools, and its result."""
    asked = {"query": use.query}
    result = fetched(use) if use.kind == "web_fetch" else searched(use)
    if use.kind == "web_fetch":
        asked = {"url": use.pages[0].url}
    return [
        {"type": "server_tool_use", "id": use_id, "name": use.kind, "input": asked},
        {"type": f"{use.kind}_tool_result", "tool_use_id": use_id, "content": result},
    ]


def searched(use: HostedUse) -> Any:
    return [
        {
            "type": f"{use.kind}_result",
            "url": page.url,
            "title": page.title,
            "page_age": None,
            "encrypted_content": sealed(page.url),
        }
        for page in use.pages
    ]


def fetched(use: HostedUse) -> Any:
    page = use.pages[0]
    source = {"type": "text", "media_type": "text/plain", "data": use.query}
    document = {"type": "document", "title": page.title, "source": source}
    return {"type": f"{use.kind}_result", "url": page.url, "content": document}


def sealed(url: str) -> str:
    """Returns what the provider alone can read of a page, and wants back as it was sent."""
    return signature(f"page {url}")


def citations(answer: ModelAnswer) -> list[JsonObject]:
    """Returns how a text refers to the pages that were found."""
    return [
        {
            "type": "web_search_result_location",
            "url": page.url,
            "title": page.title,
            "encrypted_index": sealed(page.url),
            "cited_text": f"Of {page.title.lower()}.",
        }
        for page in cited_pages(answer.hosted)
    ]


def check_sealed(block: JsonObject, place: str) -> None:
    """Refuses a page, or a reference to one, that does not come back as it was sent."""
    key = "content" if block["type"] == "web_search_tool_result" else "citations"
    pages = block.get(key)
    for page in pages if isinstance(pages, list) else []:
        seal = page.get("encrypted_content", page.get("encrypted_index"))
        if seal != sealed(str(page.get("url"))):
            raise bad(place, f"Invalid encrypted content in `{page.get('type')}`")


def message_frame(call: ModelCall) -> JsonObject:
    """Returns what every message object has.

    `system_fingerprint` is not Anthropic's: it marks the simulator, as in chat.
    """
    return {
        "id": f"msg_sim{call.digest.hex()}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "system_fingerprint": replies.FINGERPRINT,
    }


def stop_fields(answer: ModelAnswer) -> JsonObject:
    fields: JsonObject = {
        "stop_reason": answer.ended_with(STOPS[answer.finish]),
        "stop_sequence": None,
        "stop_details": None,
    }
    is_refused = answer.refusal is not None
    if not answer.has_word and (is_refused or answer.finish == "content_filter"):
        fields["stop_reason"] = "refusal"
        fields["stop_details"] = {
            "type": "refusal",
            "category": None if is_refused else "general_harms",
            "explanation": answer.refusal,
        }
    return fields


def message_usage(call: ModelCall, answer: ModelAnswer) -> JsonObject:
    """Returns the charged tokens.

    `service_tier` among a call's extras says who served it; a batch is one of its values.
    """
    by_lifetime = call.cache.written
    written = sum(by_lifetime.values())
    counts: JsonObject = {
        "input_tokens": call.prompt_tokens - call.cache.read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": call.cache.read,
        "output_tokens": answer.tokens,
        "service_tier": call.extras.get("service_tier", "standard"),
    }
    if written:
        counts["cache_creation"] = {
            f"ephemeral_{lifetime}_input_tokens": by_lifetime.get(lifetime, 0)
            for lifetime in LIFETIMES
        }
    if call.offer.hosted:
        uses = Counter(use.kind for use in answer.hosted)
        counts["server_tool_use"] = {f"{name}_requests": uses[name] for name in HOSTED_TOOLS}
    return answer.usage(counts)


def message_events(call: ModelCall, answer: ModelAnswer) -> Iterator[Event]:
    usage = message_usage(call, answer)
    begun = message_frame(call) | {"usage": usage | {"output_tokens": 1}}
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block in enumerate(answer_blocks(call, answer)):
        empty, deltas = block_steps(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    written = {"output_tokens": usage["output_tokens"]}
    yield {"type": "message_delta", "delta": stop_fields(answer), "usage": written}
    yield {"type": "message_stop"}


def block_steps(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Returns a block as it begins, and the pieces that follow."""
    kind = block["type"]
    if kind in ("tool_use", "server_tool_use"):
        arguments = block["input"]
        text = arguments.get("INVALID_JSON", plain_json(arguments))
        pieces = replies.pieces(text)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        return block | {"input": {}}, deltas
    if kind not in ("text", "thinking"):
        return block, []
    empty = block | {kind: ""}
    deltas = [{"type": f"{kind}_delta", kind: piece} for piece in replies.pieces(block[kind])]
    if block.get("citations"):
        empty["citations"] = []
        for citation in block["citations"]:
            deltas.append({"type": "citations_delta", "citation": citation})
    if kind == "thinking":
        empty["signature"] = ""
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return empty, deltas


MESSAGES = ModelApi(
    read_data=read_message_request,
    check_headers=check_version,
    reply=message_object,
    events=message_events,
    error=message_error,
    headers=anthropic_headers,
)
