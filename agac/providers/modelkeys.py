"""What may stand after `?` in a model string: every key is read here, taken over, or refused with a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How much a model may think."""

SERVICE_TIERS = ("auto", "default", "flex", "priority", "standard_only")
LEAST_THINKING = 1024
"""Tokens: Anthropic's least `budget_tokens`, and nobody else counts thinking so."""
SCHEMA_MODES = ("json_schema", "json_object", "none")
TRANSPORTS = ("sse", "ws", "auto")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


class Refused(ValueError):
    """A value that is understood and cannot be had; the text is the sentence."""


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not low <= value <= high:
            raise ValueError
        return value

    read.__doc__ = f"a number from {low:g} to {high:g}"
    return read


def _above_zero(text: str) -> float:
    """a number above 0"""
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError
    return value


def _positive(text: str) -> int:
    """a whole number above 0"""
    value = int(text)
    if value <= 0:
        raise ValueError
    return value


def _whole(text: str) -> int:
    """a whole number"""
    return int(text)


def _one_of(values: tuple[str, ...], **others: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        value = others.get(text, text)
        if value not in values:
            raise ValueError
        return value

    read.__doc__ = f"one of {', '.join(values)}"
    return read


def _reasoning(text: str) -> str | None:
    """one of none, minimal, low, medium, high, xhigh, max, or auto (nothing is sent), on, off, tokens from 1024"""
    if text == "auto":
        return None
    if text in EFFORTS:
        return text
    if text not in ("0", "1") and text.isascii() and text.isdigit():
        if len(text) < 10 and int(text) >= LEAST_THINKING:
            return str(int(text))
        raise Refused(f"reasoning={text}: a number of tokens to think with is at least {LEAST_THINKING}")
    return "on" if _SWITCH[text.lower()] else "off"


def _seconds(text: str) -> float:
    """seconds above 0, or none"""
    return math.inf if text == "none" else _above_zero(text)


def _schema_mode(text: str) -> str:
    """one of json_schema, json_object, none"""
    if text in ("tool", "tool_use"):
        raise Refused(f"{text} is not supported yet: stages call no tools; write json, or leave it to the provider")
    value = "json_schema" if text == "json" else text
    if value not in SCHEMA_MODES:
        raise ValueError
    return value


def _schema_tools(text: str) -> None:
    """auto or no_tools"""
    if text in ("always", "defer"):
        raise Refused(f"{text} is not supported yet: stages call no tools; leave it out")
    if text not in ("auto", "no_tools"):
        raise ValueError


def _only_off(why: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        if text == "1m" or _SWITCH[text.lower()]:
            raise Refused(why)

    read.__doc__ = "off"
    return read


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
    "transport": _one_of(TRANSPORTS, websocket="ws"),
    "idle_timeout": _seconds,
    "schema_mode": _schema_mode,
}
"""The keys of a model string, each with what reads its value; the reader's docstring says what it takes."""

FIELDS = ("transport", "idle_timeout", "schema_mode")
"""Keys that are fields of ModelRef: how a model is asked, not what. The others are fields of `Params`."""

_TOOLS = "tools that a provider runs are not supported yet; leave it out"
_LONG = "models with a long context window have it without being asked; leave it out"

NOT_HERE: dict[str, Callable[[str], None]] = {
    "schema_tools": _schema_tools,
    "long_context": _only_off(_LONG),
    "web_search": _only_off(_TOOLS),
    "x_search": _only_off(_TOOLS),
    "web_fetch": _only_off(_TOOLS),
}
"""Keys of other programs' model strings of which only the value can be had that changes nothing."""

NO_EFFECT: dict[str, str] = {
    "task_budget": "no stage has such a budget; `budget` of a workflow bounds what it may spend",
    "poll_period": "no stage runs a shell",
    "lite": "a row has no conversation that could be shortened",
    "compaction": "a row has no conversation that could be shortened",
    "compact_at": "a row has no conversation that could be shortened",
}
"""Keys of other programs' model strings that mean nothing here: a warning, so that their cards can be used."""

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


@dataclass(slots=True)
class Query:
    """What stands after `?`: values by key, `messages` about what cannot be read, `warnings` about the idle rest.

    `written` is how each key was spelt.
    """

    values: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)


def read_query(text: str) -> Query:
    """Reads `key=value&…`; every mistake in it is among the messages."""
    query = Query()
    for pair in text.split("&"):
        key, equals, value = pair.partition("=")
        name = SPELLINGS.get(key, key)
        if not equals:
            query.messages.append(f"'{pair}' after ? is no key=value pair")
        elif name not in READERS and name not in NOT_HERE and name not in NO_EFFECT:
            query.messages.append(_unknown_key(key))
        elif name in query.written:
            same = query.written[name] == key
            query.messages.append(
                f"{name} is given twice" + ("" if same else f", as {query.written[name]} and as {key}")
            )
        else:
            query.written[name] = key
            _read(query, key, name, unquote(value))
    return query


def _read(query: Query, key: str, name: str, value: str) -> None:
    if name in NO_EFFECT:
        query.warnings.append(f"{key} has no effect: {NO_EFFECT[name]}")
        return
    reader = READERS.get(name) or NOT_HERE[name]
    try:
        found = _turned(value) if key == "instant" else reader(value)
    except Refused as refused:
        said = str(refused)
        query.messages.append(said if said.startswith(f"{key}=") else f"{key}={value}: {said}")
    except (ValueError, KeyError):
        takes = "on or off" if key == "instant" else reader.__doc__
        query.messages.append(f"{key}={value}: expected {takes}")
    else:
        if name in READERS:
            query.values[name] = found


def _turned(value: str) -> str:
    return "off" if _SWITCH[value.lower()] else "on"


def write_query(values: Mapping[str, Any]) -> str:
    """The values as `?key=value&…`, as `read_query` reads them; empty when there are none."""
    pairs = [f"{name}={_written(values[name], name)}" for name in READERS if name in values]
    return "?" + "&".join(pairs) if pairs else ""


def _written(value: Any, name: str) -> str:
    if value is None:
        return "auto"
    if value == math.inf and name == "idle_timeout":
        return "none"
    return f"{value!r}".removesuffix(".0") if isinstance(value, float) else str(value)


def _unknown_key(key: str) -> str:
    near = get_close_matches(key, [*READERS, *SPELLINGS, *NOT_HERE, *NO_EFFECT], n=1, cutoff=0.7)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"unknown key '{key}'{hint} The keys are {', '.join(READERS)}"
