"""Anthropic's Messages API on the wire: bodies in, messages out. `messageevents` tells them piece by piece.

Facts: platform.claude.com/docs/en/api/messages and the types of the anthropic SDK 2.12, read November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agac.simulator.anthropicwire import bad
from agac.simulator.asks import FINGERPRINT, Answer, ApiError, Ask, canonical, content_digest, token_count
from agac.simulator.messageschemas import as_meant, check_schema
from agac.simulator.openaiwire import COUNT, OBJECT, TEXT, TRUTH, Kind, between, prompted_schema, read_object
from agac.simulator.words import names

VERSION = "2023-06-01"
"""The API version of requests that sample (`temperature`, `top_p`, `top_k`); the one after it refuses these."""

NO_SAMPLING = "2026-10-21"

PARAMETERS = names(
    "model messages max_tokens system stream temperature top_p top_k stop_sequences output_config thinking "
    "service_tier metadata tools tool_choice container inference_geo speed diagnostics cache_control user_profile_id"
)
SAMPLING = names("temperature top_p top_k")
UNSUPPORTED: dict[str, Any] = {"tools": [], "container": None, "speed": "standard", "diagnostics": None}
"""Parameters of the real API that are not simulated, each with the one value that changes nothing."""

TEXTS: Kind = (
    lambda value: isinstance(value, list) and all(isinstance(text, str) and text.strip() for text in value),
    "a list of strings that are not blank",
)
TIER: Kind = (lambda value: value in ("auto", "standard_only"), "'auto' or 'standard_only'")
KINDS: dict[str, Kind] = {
    "max_tokens": COUNT,
    "temperature": between(0, 1),
    "top_p": between(0, 1),
    "top_k": COUNT,
    "stream": TRUTH,
    "stop_sequences": TEXTS,
    "output_config": OBJECT,
    "thinking": OBJECT,
    "service_tier": TIER,
    "metadata": OBJECT,
}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
LEAST_BUDGET = 1024
"""Tokens that a model must be left to think, where it is told how many."""

STOPS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


def read_ask(body: bytes, seed: int, version: str = VERSION) -> Ask:
    """Reads a request body; raises ApiError as Anthropic would answer it. `version`: the header `anthropic-version`."""
    if not version:
        raise bad("anthropic-version", "header is required")
    return ask_of(read_object(body), seed, version)


def ask_of(data: dict[str, Any], seed: int, version: str = VERSION) -> Ask:
    """What a request's JSON asks (the `params` of a batch's request too). `stream` is taken out of it."""
    check_values(data, version)
    messages = (*read_system(data.get("system")), *(read_message(i, m) for i, m in enumerate(data["messages"])))
    stream = data.pop("stream", None) or False
    schema = read_format(data)
    prompted, key = prompted_schema(messages) if schema is None else (schema, canonical(schema))
    return Ask(
        model=data["model"],
        messages=messages,
        digest=content_digest(seed, data),
        prompt_tokens=max(1, sum(token_count(text) for _, text in messages)),
        schema=prompted,
        schema_key=key,
        max_tokens=data["max_tokens"],
        stop=tuple(data.get("stop_sequences") or ()),
        stream=stream,
    )


def check_values(data: Mapping[str, Any], version: str) -> None:
    """Refuses what Anthropic refuses, and what is not simulated."""
    allowed = set(PARAMETERS) - (set(SAMPLING) if version >= NO_SAMPLING else set())
    for name in sorted(set(data) - allowed):
        raise bad(name, "Extra inputs are not permitted")
    for name in ("model", "max_tokens", "messages"):
        if data.get(name) is None:
            raise bad(name, "Field required")
    if not isinstance(data["model"], str) or not data["model"]:
        raise bad("model", "Input should be a string that is not empty")
    if not isinstance(data["messages"], list) or not data["messages"]:
        raise bad("messages", "at least one message is required")
    for name, harmless in UNSUPPORTED.items():
        if data.get(name) not in (None, harmless):
            raise bad(name, "not supported by the simulator: leave it out")
    for name, (fits, wanted) in KINDS.items():
        if data.get(name) is not None and not fits(data[name]):
            raise bad(name, f"Input should be {wanted}")
    check_thinking(data.get("thinking"), data["max_tokens"])


def check_thinking(thinking: Any, max_tokens: int) -> None:
    """How much the model is to think, or whether."""
    if thinking is None:
        return
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in ("adaptive", "enabled", "disabled", "between_tools"):
        raise bad("thinking.type", "Input should be 'adaptive', 'enabled', 'disabled' or 'between_tools'")
    if kind != "enabled":
        if budget is not None:
            raise bad(f"thinking.{kind}.budget_tokens", "Extra inputs are not permitted")
        return
    if type(budget) is not int or budget < LEAST_BUDGET:
        raise bad("thinking.enabled.budget_tokens", f"Input should be greater than or equal to {LEAST_BUDGET}")
    if budget >= max_tokens:
        raise ApiError(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")


def read_format(data: Mapping[str, Any]) -> Any:
    """The schema that the answer is held to, None where there is none."""
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
        raise bad("output_config.format", "Input should be an object with 'type' and 'schema' and nothing else")
    text = canonical(form["schema"])
    problem = check_schema(text)
    if problem is not None:
        raise bad("output_config.format.schema", problem)
    return as_meant(text)


def read_system(system: Any) -> tuple[tuple[str, str], ...]:
    """The system prompt, as a message."""
    return () if system is None else (("system", read_content(system, "system")),)


def read_message(index: int, message: Any) -> tuple[str, str]:
    """Role and text of a message."""
    place = f"messages.{index}"
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise bad(f"{place}.role", "Input should be 'user' or 'assistant'")
    return message["role"], read_content(message.get("content"), f"{place}.content")


def read_content(content: Any, place: str) -> str:
    """A text, or blocks of text joined. Blocks of other kinds are not simulated."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(
        isinstance(b, dict) and b.get("type") == "text" and TEXT[0](b.get("text")) for b in blocks
    ):
        raise bad(place, "Input should be a string or a list of text blocks")
    if not blocks or not all(block["text"] for block in blocks):
        raise bad(place, "text content blocks must be non-empty")
    return "".join(block["text"] for block in blocks)


def message_body(ask: Ask, answer: Answer) -> bytes:
    """A whole message."""
    return json.dumps(message(ask, answer)).encode()


def message(ask: Ask, answer: Answer) -> dict[str, Any]:
    """The message object of an answer. One that was refused says so in `stop_reason`, and has no text."""
    blocks = [{"type": "text", "text": answer.content, "citations": None}] if answer.content else []
    return frame(ask) | {"content": blocks} | stopped(answer) | {"usage": usage_of(ask, answer)}


def frame(ask: Ask) -> dict[str, Any]:
    """What every message object says. `system_fingerprint` is not Anthropic's: it marks the simulator, as in chat."""
    return {
        "id": f"msg_sim{ask.digest.hex()}",
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "system_fingerprint": FINGERPRINT,
    }


def stopped(answer: Answer) -> dict[str, Any]:
    """Why the model stopped."""
    if answer.refusal is None and answer.finish != "content_filter":
        return {"stop_reason": STOPS[answer.finish], "stop_sequence": None, "stop_details": None}
    category = None if answer.refusal is not None else "general_harms"
    details = {"type": "refusal", "category": category, "explanation": answer.refusal}
    return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}


def usage_of(ask: Ask, answer: Answer) -> dict[str, Any]:
    """What was charged. `service_tier` among an ask's extras says who served it; a batch is one of its values."""
    return {
        "input_tokens": ask.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": answer.tokens,
        "service_tier": ask.extras.get("service_tier", "standard"),
    }
