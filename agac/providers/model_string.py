"""Model strings: `provider/model:route?key=value&…`, or a short name. All of them are read here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, cast
from urllib.parse import unquote

from agac.providers.dialects import objections
from agac.providers.provider import Provider, Structured
from agac.providers.table import ELSEWHERE, SHIPPED, refusal

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How much a model may think."""

SERVICE_TIERS = ("auto", "default", "flex", "priority", "standard_only")
LEAST_THINKING = 1024
"""Tokens: Anthropic's least `budget_tokens`, and nobody else counts thinking so."""
SCHEMA_MODES = ("json_schema", "json_object", "none")
TRANSPORTS = ("sse", "ws", "auto")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


class KeyRefused(ValueError):
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
        raise KeyRefused(f"reasoning={text}: a number of tokens to think with is at least {LEAST_THINKING}")
    return "on" if _SWITCH[text.lower()] else "off"


def _seconds(text: str) -> float:
    """seconds above 0, or none"""
    return math.inf if text == "none" else _above_zero(text)


def _schema_mode(text: str) -> str:
    """one of json_schema, json_object, none"""
    if text in ("tool", "tool_use"):
        raise KeyRefused(f"{text} is not supported yet: stages call no tools; write json, or leave it to the provider")
    value = "json_schema" if text == "json" else text
    if value not in SCHEMA_MODES:
        raise ValueError
    return value


def _schema_tools(text: str) -> None:
    """auto or no_tools"""
    if text in ("always", "defer"):
        raise KeyRefused(f"{text} is not supported yet: stages call no tools; leave it out")
    if text not in ("auto", "no_tools"):
        raise ValueError


def _only_off(why: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        if text == "1m" or _SWITCH[text.lower()]:
            raise KeyRefused(why)

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
    except KeyRefused as refused:
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


# The names and what they stand for are those that AgentCards are written with (fast-agent's, read November 2026), in
# the words of agac's providers. A run stores the expansion, and its fingerprints are made of it: a name that moves
# makes a changed run, never an unnoticed one. Whoever changes a target raises VERSION and writes it into the line's
# `since`.

VERSION = 1
"""Of the table. 1: November 2026."""


@dataclass(frozen=True, slots=True)
class Alias:
    """What a short name stands for, since which version of the table. `refused`: why nothing stands for it here."""

    target: str = ""
    since: int = 1
    refused: str = ""


def _test_model(name: str) -> Alias:
    return Alias(refused=f"'{name}' is a test model of another program; write simulator/small, which costs nothing")


_QWEN = "hf/Qwen/Qwen3.5-397B-A17B:novita"
_KIMI = "hf/moonshotai/Kimi-K2.6:novita"

ALIASES: dict[str, Alias] = {
    "sonnet": Alias("anthropic/claude-sonnet-5"),
    "opus": Alias("anthropic/claude-opus-5"),
    "haiku": Alias("anthropic/claude-haiku-4-5"),
    "claude": Alias("anthropic/claude-sonnet-5"),
    "gpt-4.1": Alias("openai/gpt-4.1"),
    "gpt-4.1-mini": Alias("openai/gpt-4.1-mini"),
    "gpt-5.4": Alias("responses/gpt-5.4?reasoning=medium"),
    "gpt-5.4-mini": Alias("responses/gpt-5.4-mini?reasoning=medium"),
    "gpt-5.5": Alias("responses/gpt-5.5?reasoning=medium"),
    "gpt54-mini": Alias("responses/gpt-5.4-mini"),
    "codex": Alias("responses/gpt-5.3-codex"),
    "gemini": Alias("gemini/gemini-3.7-flash"),
    "gemini3flash": Alias("gemini/gemini-3-flash-preview"),
    "grok": Alias("xai/grok-4.6"),
    "kimi": Alias("hf/moonshotai/Kimi-K2.7-Code:fireworks-ai?temperature=1.0&top_p=0.95"),
    "kimi26": Alias(f"{_KIMI}?temperature=1.0&top_p=0.95&reasoning=on"),
    "kimi26instant": Alias(f"{_KIMI}?temperature=0.6&top_p=0.95&reasoning=off"),
    "glm": Alias("hf/zai-org/GLM-5.2:zai-org"),
    "minimax": Alias("hf/MiniMaxAI/MiniMax-M3:together?temperature=1.0&top_p=0.95&top_k=40"),
    "qwen35": Alias(
        f"{_QWEN}?temperature=0.6&top_p=0.95&top_k=20&min_p=0.0"
        "&presence_penalty=0.0&repetition_penalty=1.0&reasoning=on"
    ),
    "qwen35instruct": Alias(
        f"{_QWEN}?temperature=0.7&top_p=0.8&top_k=20&min_p=0.0"
        "&presence_penalty=1.5&repetition_penalty=1.0&reasoning=off"
    ),
    "gpt-oss": Alias("hf/openai/gpt-oss-120b:cerebras"),
    "gpt-oss-20b": Alias("hf/openai/gpt-oss-20b"),
    "deepseek": Alias("deepseek/deepseek-v4-flash"),
    "deepseek-hf": Alias("hf/deepseek-ai/DeepSeek-V4-Pro:together"),
    **{name: _test_model(name) for name in ("passthrough", "playback", "slow", "silent")},
}
"""The short names. One of agac.yml's `aliases` with the same name comes first."""


def _all(provider: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), provider)


MODELS: dict[str, str] = {
    **_all("openai", "gpt-4o gpt-4o-mini gpt-4.1-nano"),
    **_all("responses", "gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.3-codex gpt-5.4-nano o3 o4-mini"),
    **_all(
        "anthropic",
        """claude-haiku-4-5 claude-haiku-5-5 claude-sonnet-4-5 claude-sonnet-4-6 claude-sonnet-5 claude-sonnet-5-5
        claude-opus-4-5 claude-opus-4-6 claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-opus-5-5 claude-fable-5
        claude-fable-5-1 claude-fable-5-2""",
    ),
    **_all("gemini", "gemini-2.5-flash gemini-2.5-pro gemini-3-flash-preview gemini-3.5-flash gemini-3.7-flash"),
    **_all("xai", "grok-4.3 grok-4.5 grok-4.6"),
    **_all("deepseek", "deepseek-chat deepseek-reasoner deepseek-v4-flash deepseek-v4-pro"),
}
"""Whose model a name without a provider is: exact names only, so that a slip of the pen is never sent anywhere."""


Transport = Literal["sse", "ws", "auto"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SUFFIX = re.compile(rf"(.+)\.({'|'.join((*EFFORTS, 'auto'))})\Z")
_NONE = "no model is named; write provider/model, like openai/gpt-5.4-mini"


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of a provider, and what its string sets: `params` by field name of `Params`, None where `auto` is said.

    `route` names who runs the model behind a router. `idle_timeout` is in seconds, `math.inf` for none at all.
    `transport`, `idle_timeout` and `schema_mode` say how it is asked, so no fingerprint holds them; None: nothing is
    said. `written` is what was written when that is a short name, without those three; `warnings` are about keys that
    have no effect.
    """

    provider: str
    model: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    route: str | None = None
    transport: Transport | None = None
    idle_timeout: float | None = None
    schema_mode: Structured | None = None
    written: str | None = field(default=None, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.provider}/{self.wire}"

    @property
    def wire(self) -> str:
        """The model's name as the provider wants it."""
        return f"{self.model}:{self.route}" if self.route else self.model

    @property
    def meaning(self) -> str:
        """The string without short names, as far as it decides answers."""
        return f"{self}{write_query(self.params)}"

    @property
    def text(self) -> str:
        """The whole string without short names: read again it gives the same value."""
        said = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        return f"{self}{write_query({**self.params, **said})}"


@dataclass(frozen=True, slots=True)
class _Read:
    """A string taken apart: nothing of it is checked against its provider yet."""

    provider: str = ""
    model: str = ""
    route: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    written: str | None = None
    instant: bool = False


def parse_model(
    text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str] | None = None
) -> tuple[ModelRef | None, list[str]]:
    """The model that `text` names, or None and every reason why it names none. `aliases` are the project's own."""
    read = _modelref_read(text.strip(), providers, aliases or {})
    if read.messages:
        return None, list(read.messages)
    params = {name: value for name, value in read.values.items() if name not in FIELDS}
    found = ModelRef(
        read.provider,
        read.model,
        params,
        read.route,
        transport=cast("Transport | None", read.values.get("transport")),
        idle_timeout=read.values.get("idle_timeout"),
        schema_mode=cast("Structured | None", read.values.get("schema_mode")),
        written=read.written,
        warnings=read.warnings,
    )
    row = providers[read.provider]
    effort = row.meant_reasoning(read.model, params.get("reasoning"))
    if effort is not None:
        found = replace(found, params={**params, "reasoning": effort})
    messages = objections(found.model, found.params, found.transport, row)
    if read.instant and row.switch_of(found.model) is None:
        messages = [f"instant: {row.name}/{found.model} has no such switch; write an effort as reasoning", *messages]
    return (None, messages) if messages else (found, [])


def alias_problem(name: str, providers: Mapping[str, Provider]) -> str | None:
    """What is wrong with the name of a project's alias."""
    if not _NAME.match(name):
        return f"'{name}' is no short name; use letters, digits, '.', _ and -"
    if name.partition(".")[0] in providers and "." in name:
        return f"'{name}' reads as a model of the provider {name.partition('.')[0]}; choose another name"
    return None


def _modelref_read(text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]) -> _Read:
    address, question, query_text = text.partition("?")
    address = address.strip()
    query = read_query(query_text) if question else Query()
    name, colon, route = address.partition(":")
    if name in aliases or name in ALIASES:
        return _short(address, query, providers, aliases)
    provider, model, trouble = _address(address, providers, aliases)
    messages = (*([trouble] if trouble else []), *query.messages)
    if not trouble and providers[provider].routed:
        model, colon, route = model.partition(":")
        if (colon and not route) or not model:
            messages = (f"'{address}' ends in a colon without a route; write {provider}/{model}:<route>", *messages)
    else:
        route = ""
    instant = query.written.get("reasoning") == "instant"
    return _Read(provider, model, route or None, query.values, tuple(query.warnings), messages, instant=instant)


def _short(address: str, query: Query, providers: Mapping[str, Provider], aliases: Mapping[str, str]) -> _Read:
    """A short name, its own route and keys under those that are written with it."""
    name, colon, route = address.partition(":")
    own = aliases.get(name)
    target = ALIASES[name].target if own is None else own
    if not target:
        return _Read(messages=(ALIASES[name].refused, *query.messages))
    # without itself, so that a project may give a known name to something else, and no circle is endless
    base = _modelref_read(
        target, providers, {key: value for key, value in aliases.items() if key != name and own is not None}
    )
    messages = [f"'{name}' means {target}: {message}" for message in base.messages] + query.messages
    if colon and not base.messages:
        if not route:
            messages.append(f"'{address}' ends in a colon without a route; write {name}, or {name}:<route>")
        elif not providers[base.provider].routed:
            messages.append(f"'{name}' means {target}, which has no routes; leave out ':{route}'")
    return _Read(
        base.provider,
        base.model,
        route or base.route,
        {**base.values, **query.values},
        tuple(dict.fromkeys([*base.warnings, *query.warnings])),
        tuple(messages),
        address + write_query({key: value for key, value in query.values.items() if key not in FIELDS}),
        instant=query.written.get("reasoning") == "instant",
    )


def _address(text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]) -> tuple[str, str, str | None]:
    """Provider, model, and what is wrong. Only a known provider is a prefix: models have slashes and dots too."""
    prefix, slash, rest = text.partition("/")
    if slash and prefix in providers:
        return _named(prefix, rest, "/")
    if slash and prefix in ELSEWHERE:
        return "", "", refusal(prefix, rest)
    # the longest first: a provider's own name may hold a dot
    for name in sorted({*providers, *ELSEWHERE}, key=len, reverse=True):
        if text == name or text.startswith(f"{name}."):
            rest = text[len(name) + 1 :]
            if name not in providers:
                return "", "", refusal(name, rest)
            return _named(name, rest, text[len(name) : len(name) + 1])
    if text in MODELS:
        return _address(f"{MODELS[text]}/{text}", providers, aliases)
    return "", "", _unknown(text, prefix if slash else "", providers, aliases)


def _named(provider: str, model: str, mark: str) -> tuple[str, str, str | None]:
    if not model.strip():
        what = "no model" if mark else "a provider and no model"
        own = ["small"] if provider == "simulator" else [name for name, owner in MODELS.items() if owner == provider]
        example = f", as {provider}/{own[0]}" if own else ""
        return "", "", f"'{provider}{mark}' names {what}; write {provider}/<model>{example}"
    if any(character.isspace() for character in model):
        return "", "", f"'{model}' is no model name: it holds a space"
    if provider in SHIPPED and (suffix := _SUFFIX.match(model)):
        effort = suffix[2]
        return "", "", f"'.{effort}' is no part of a model's name; write {provider}/{suffix[1]}?reasoning={effort}"
    return provider, model, None


def _unknown(text: str, prefix: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]) -> str:
    if not text:
        return _NONE
    if text.startswith("$"):
        return f"'{text}' refers to another program's settings; write aliases: {{name: provider/model}} in agac.yml"
    listed = ", ".join(sorted(providers))
    if prefix:
        hint = _hint(prefix, [*providers, *ELSEWHERE])
        return f"unknown provider '{prefix}'{hint} The providers are {listed}; agac.yml can add others"
    short = {**ALIASES, **aliases, **MODELS}
    if (suffix := _SUFFIX.match(text)) and suffix[1] in short:
        return f"'.{suffix[2]}' is no part of a model's name; write {suffix[1]}?reasoning={suffix[2]}"
    near = get_close_matches(text.partition(".")[0], providers, n=1, cutoff=0.75)
    if near and "." in text:
        return f"'{text}' names no provider; did you mean '{near[0]}/{text.partition('.')[2]}'?"
    if near := get_close_matches(text, short, n=1, cutoff=0.8):
        return f"'{text}' is no short name of a model; did you mean '{near[0]}'?"
    return f"'{text}' names no provider; write provider/model, like 'openai/{text}'. The providers are {listed}"


def _hint(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else "."
