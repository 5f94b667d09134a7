"""Keys of model strings: what each sets, what reads its value, and how else it may be written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from agac.providers.provider import SERVER_TOOLS
from agac.spec.paths import Refused

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

SERVICE_TIERS = ("auto", "default", "flex", "priority", "standard_only")
LEAST_THINKING = 1024
"""Tokens: Anthropic's least `budget_tokens`; nobody else counts thinking so."""
SCHEMA_MODES = ("json_schema", "json_object", "none")
TRANSPORTS = ("sse", "ws", "auto")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def _reader(
    takes: str, read: Callable[[str], Any], fits: Callable[[Any], bool]
) -> Callable[[str], Any]:
    """Returns a reader of values. It raises ValueError or KeyError for a value that is not as its
    docstring, `takes`, says."""

    def reader(text: str) -> Any:
        value = read(text)
        if not fits(value):
            raise ValueError
        return value

    reader.__doc__ = takes
    return reader


def _number(low: float, high: float) -> Callable[[str], Any]:
    """Returns a reader of numbers between two bounds."""
    return _reader(f"a number from {low:g} to {high:g}", float, lambda value: low <= value <= high)


def _one_of(values: tuple[str, ...], **others: str) -> Callable[[str], Any]:
    """Returns a reader of one of these values; `others` are other ways to write them."""
    return _reader(
        f"one of {', '.join(values)}", lambda text: others.get(text, text), values.__contains__
    )


_above_zero = _reader("a number above 0", float, lambda value: 0 < value < math.inf)
_positive = _reader("a whole number above 0", int, lambda value: value > 0)
_whole = _reader("a whole number", int, lambda _value: True)
_seconds = _reader(
    "seconds above 0, or none",
    lambda text: math.inf if text == "none" else _above_zero(text),
    lambda _value: True,
)


def _reasoning(text: str) -> str | None:
    """one of none, minimal, low, medium, high, xhigh, max, or auto (nothing is sent), on, off,
    tokens from 1024"""
    if text == "auto":
        return None
    if text in EFFORTS:
        return text
    if text not in ("0", "1") and text.isascii() and text.isdigit():
        if len(text) < 10 and int(text) >= LEAST_THINKING:
            return str(int(text))
        raise Refused(
            f"reasoning={text}: a number of tokens to think with is at least {LEAST_THINKING}"
        )
    return "on" if _SWITCH[text.lower()] else "off"


def instant(text: str) -> str:
    """on or off"""
    return "off" if _SWITCH[text.lower()] else "on"


def _uses(text: str) -> str | None:
    """on, off, or how often at most in a call, from 2"""
    if text not in ("0", "1") and text.isascii() and text.isdigit() and len(text) < 10:
        return str(int(text))
    return "on" if _SWITCH[text.lower()] else None


def _schema_mode(text: str) -> str:
    """one of json_schema, json_object, none"""
    if text in ("tool", "tool_use"):
        raise Refused(
            f"{text}: a schema is sent as one, never as a tool; write json, or leave it to "
            "the provider"
        )
    value: str = _one_of(SCHEMA_MODES, json="json_schema")(text)
    return value


def _schema_tools(text: str) -> None:
    """auto or no_tools"""
    if text in ("always", "defer"):
        raise Refused(
            f"{text} is the agent's: write `request_params: {{structured_tool_policy: "
            f"{text}}}` in its card"
        )
    _one_of(("auto", "no_tools"))(text)


def _long_context(text: str) -> None:
    """off"""
    if text == "1m" or _SWITCH[text.lower()]:
        raise Refused("models with a long context window have it without being asked; leave it out")


READERS: dict[str, Callable[[str], Any]] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _positive,
    "min_p": _number(0, 1),
    "max_tokens": _positive,
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _above_zero,
    "seed": _whole,
    "reasoning": _reasoning,
    "verbosity": _one_of(("low", "medium", "high")),
    "service_tier": _one_of(SERVICE_TIERS, fast="priority"),
    **dict.fromkeys(SERVER_TOOLS, _uses),
    "transport": _one_of(TRANSPORTS, websocket="ws"),
    "idle_timeout": _seconds,
    "schema_mode": _schema_mode,
}
"""The keys of a model string, each with what reads its value; the reader's docstring says what it
takes."""

FIELDS = ("transport", "idle_timeout", "schema_mode")
"""Keys that are fields of ModelRef: how a model is asked, not what. The others are fields of
`Params`."""

NOT_HERE: dict[str, Callable[[str], None]] = {
    "schema_tools": _schema_tools,
    "long_context": _long_context,
}
"""Keys of other programs' model strings of which only the value can be had that changes nothing."""

NO_EFFECT: dict[str, str] = {
    "task_budget": "no stage has such a budget; `budget` of a workflow bounds what it may spend",
    "poll_period": "no stage runs a shell",
    **dict.fromkeys(
        ("lite", "compaction", "compact_at"), "a row has no conversation that could be shortened"
    ),
}
"""Keys of other programs' model strings that mean nothing here: a warning, so that their cards can
be used."""

SPELLINGS = {
    "temp": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "minP": "min_p",
    "maxTokens": "max_tokens",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "repetitionPenalty": "repetition_penalty",
    "streaming_timeout": "idle_timeout",
    "structured": "schema_mode",
    "structured_tools": "schema_tools",
    "structured_tool_policy": "schema_tools",
    "structuredToolPolicy": "schema_tools",
    "context": "long_context",
    "taskBudget": "task_budget",
    "instant": "reasoning",
}
"""Other ways to write a key. `instant` turns its value round."""
