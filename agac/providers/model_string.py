"""Model strings: `provider/model:route?key=value&…`, or a short name. All of them are read here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import unquote

from agac.core.errors import nearest
from agac.providers.provider import SERVER_TOOLS, Provider, Structured
from agac.providers.table import ELSEWHERE, SHIPPED, objections, refusal
from agac.spec.paths import Refused

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

SERVICE_TIERS = ("auto", "default", "flex", "priority", "standard_only")
LEAST_THINKING = (
    1024  # tokens: Anthropic's least `budget_tokens`, and nobody else counts thinking so
)
SCHEMA_MODES = ("json_schema", "json_object", "none")
TRANSPORTS = ("sse", "ws", "auto")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def _reader(
    takes: str, read: Callable[[str], Any], fits: Callable[[Any], bool]
) -> Callable[[str], Any]:
    """Reads a value. It raises ValueError or KeyError for one that is not as its docstring,
    `takes`, says."""

    def reader(text: str) -> Any:
        value = read(text)
        if not fits(value):
            raise ValueError
        return value

    reader.__doc__ = takes
    return reader


def _number(low: float, high: float) -> Callable[[str], Any]:
    return _reader(f"a number from {low:g} to {high:g}", float, lambda value: low <= value <= high)


def _one_of(values: tuple[str, ...], **others: str) -> Callable[[str], Any]:
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


def _instant(text: str) -> str:
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


@dataclass(slots=True)
class _Reading:
    """A string taken apart: nothing of it is checked against its provider yet. `values` and
    `spelt` say of each key after `?` what it sets and how it was written; `messages` are about
    what cannot be read, `warnings` about keys without an effect. `written` is what was written
    when that is a short name."""

    provider: str = ""
    model: str = ""
    route: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    spelt: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    written: str | None = None


def _read_query(text: str) -> _Reading:
    """Reads `key=value&…`; every mistake in it is among the messages."""
    read = _Reading()
    for pair in text.split("&"):
        key, equals, value = pair.partition("=")
        name = SPELLINGS.get(key, key)
        value = unquote(value)
        reader: Callable[[str], Any] | None
        if key == "instant":
            reader = _instant
        else:
            reader = READERS.get(name) or NOT_HERE.get(name)
        if not equals:
            read.messages.append(f"'{pair}' after ? is no key=value pair")
        elif reader is None and name not in NO_EFFECT:
            hint = _hint(key, [*READERS, *SPELLINGS, *NOT_HERE, *NO_EFFECT])
            read.messages.append(f"unknown key '{key}'{hint} The keys are {', '.join(READERS)}")
        elif name in read.spelt:
            if read.spelt[name] == key:
                others = ""
            else:
                others = f", as {read.spelt[name]} and as {key}"
            read.messages.append(f"{name} is given twice{others}")
        else:
            read.spelt[name] = key
            if reader is None:
                read.warnings.append(f"{key} has no effect: {NO_EFFECT[name]}")
                continue
            try:
                found = reader(value)
            except Refused as refused:
                said = str(refused)
                read.messages.append(
                    said if said.startswith(f"{key}=") else f"{key}={value}: {said}"
                )
            except (ValueError, KeyError):
                read.messages.append(f"{key}={value}: expected {reader.__doc__}")
            else:
                if name in READERS:
                    read.values[name] = found
    return read


def write_query(values: Mapping[str, Any]) -> str:
    """The values as `?key=value&…`, as `_read_query` reads them; empty when there are none."""
    pairs = []
    for name in READERS:
        if name in values:
            value = values[name]
            if isinstance(value, float):
                text = f"{value!r}".removesuffix(".0")
            else:
                text = str(value)
            text = "none" if value == math.inf and name == "idle_timeout" else text
            nothing = "off" if name in SERVER_TOOLS else "auto"
            pairs.append(f"{name}={nothing if value is None else text}")
    return "?" + "&".join(pairs) if pairs else ""


# The names and what they stand for are those that AgentCards are written with (fast-agent's, read
# November 2026), in the words of agac's providers. A run stores the expansion, and its fingerprints
# are made of it: a name that moves makes a changed run, never an unnoticed one.

_QWEN = "hf/Qwen/Qwen3.5-397B-A17B:novita"
_KIMI = "hf/moonshotai/Kimi-K2.6:novita"

ALIASES: dict[str, str] = {
    "sonnet": "anthropic/claude-sonnet-5",
    "opus": "anthropic/claude-opus-5",
    "haiku": "anthropic/claude-haiku-4-5",
    "claude": "anthropic/claude-sonnet-5",
    "gpt-4.1": "openai/gpt-4.1",
    "gpt-4.1-mini": "openai/gpt-4.1-mini",
    "gpt-5.4": "responses/gpt-5.4?reasoning=medium",
    "gpt-5.4-mini": "responses/gpt-5.4-mini?reasoning=medium",
    "gpt-5.5": "responses/gpt-5.5?reasoning=medium",
    "gpt54-mini": "responses/gpt-5.4-mini",
    "codex": "responses/gpt-5.3-codex",
    "gemini": "gemini/gemini-3.7-flash",
    "gemini3flash": "gemini/gemini-3-flash-preview",
    "grok": "xai/grok-4.6",
    "kimi": "hf/moonshotai/Kimi-K2.7-Code:fireworks-ai?temperature=1.0&top_p=0.95",
    "kimi26": f"{_KIMI}?temperature=1.0&top_p=0.95&reasoning=on",
    "kimi26instant": f"{_KIMI}?temperature=0.6&top_p=0.95&reasoning=off",
    "glm": "hf/zai-org/GLM-5.2:zai-org",
    "minimax": "hf/MiniMaxAI/MiniMax-M3:together?temperature=1.0&top_p=0.95&top_k=40",
    "qwen35": f"{_QWEN}?temperature=0.6&top_p=0.95&top_k=20&min_p=0.0"
    "&presence_penalty=0.0&repetition_penalty=1.0&reasoning=on",
    "qwen35instruct": f"{_QWEN}?temperature=0.7&top_p=0.8&top_k=20&min_p=0.0"
    "&presence_penalty=1.5&repetition_penalty=1.0&reasoning=off",
    "gpt-oss": "hf/openai/gpt-oss-120b:cerebras",
    "gpt-oss-20b": "hf/openai/gpt-oss-20b",
    "deepseek": "deepseek/deepseek-v4-flash",
    "deepseek-hf": "hf/deepseek-ai/DeepSeek-V4-Pro:together",
}
"""The short names. One of agac.yml's `aliases` with the same name comes first."""

TEST_MODELS = ("passthrough", "playback", "slow", "silent")
"""Short names of another program for models that nobody asks."""


def _all(provider: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), provider)


MODELS: dict[str, str] = {
    **_all("openai", "gpt-4o gpt-4o-mini gpt-4.1-nano"),
    **_all(
        "responses",
        "gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.3-codex gpt-5.4-nano o3 o4-mini",
    ),
    **_all(
        "anthropic",
        """claude-haiku-4-5 claude-haiku-5-5 claude-sonnet-4-5 claude-sonnet-4-6 claude-sonnet-5
        claude-sonnet-5-5
        claude-opus-4-5 claude-opus-4-6 claude-opus-4-7 claude-opus-4-8 claude-opus-5
        claude-opus-5-5 claude-fable-5
        claude-fable-5-1 claude-fable-5-2""",
    ),
    **_all(
        "gemini",
        "gemini-2.5-flash gemini-2.5-pro gemini-3-flash-preview gemini-3.5-flash gemini-3.7-flash",
    ),
    **_all("xai", "grok-4.3 grok-4.5 grok-4.6"),
    **_all("deepseek", "deepseek-chat deepseek-reasoner deepseek-v4-flash deepseek-v4-pro"),
}
"""Whose model a name without a provider is: exact names only, so that a slip of the pen is never
sent anywhere."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SUFFIX = re.compile(rf"(.+)\.({'|'.join((*EFFORTS, 'auto'))})\Z")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of a provider, and what its string sets: `params` by field name of `Params`, None
    where `auto` is said. `route` names who runs the model behind a router. `idle_timeout` is in
    seconds, `math.inf` for none at all. `transport`, `idle_timeout` and `schema_mode` say how it
    is asked, so no fingerprint holds them; None: nothing is said. `written` is what was written
    when that is a short name, without those three; `warnings` are about keys that have no effect.
    """

    provider: str
    model: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    route: str | None = None
    transport: Literal["sse", "ws", "auto"] | None = None
    idle_timeout: float | None = None
    schema_mode: Structured | None = None
    written: str | None = field(default=None, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.provider}/{self.wire}"

    @property
    def wire(self) -> str:
        """The model's name as the provider wants it."""
        if self.route:
            return f"{self.model}:{self.route}"
        return self.model

    @property
    def meaning(self) -> str:
        """The string without short names, as far as it decides answers."""
        return f"{self}{write_query(self.params)}"

    @property
    def text(self) -> str:
        """The whole string without short names: read again it gives the same value."""
        said = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        return f"{self}{write_query({**self.params, **said})}"


def parse_model(
    text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str] | None = None
) -> tuple[ModelRef | None, list[str]]:
    """The model that `text` names, or None and every reason why it names none. `aliases` are the
    project's own."""
    read = _read(text.strip(), providers, aliases or {})
    if read.messages:
        return None, read.messages
    row = providers[read.provider]
    asked = {name: read.values.pop(name, None) for name in FIELDS}
    effort = row.meant_reasoning(read.model, read.values.get("reasoning"))
    if effort is not None:
        read.values["reasoning"] = effort
    found = ModelRef(
        read.provider,
        read.model,
        read.values,
        read.route,
        **asked,
        written=read.written,
        warnings=(*read.warnings,),
    )
    messages = objections(found.model, found.params, found.transport, row)
    if read.spelt.get("reasoning") == "instant" and row.switch_of(found.model) is None:
        messages = [
            f"instant: {row.name}/{found.model} has no such switch; write an effort as reasoning",
            *messages,
        ]
    return (None, messages) if messages else (found, [])


def alias_problem(name: str, providers: Mapping[str, Provider]) -> str | None:
    """What is wrong with the name of a project's alias."""
    if not _NAME.match(name):
        return f"'{name}' is no short name; use letters, digits, '.', _ and -"
    if name.partition(".")[0] in providers and "." in name:
        return (
            f"'{name}' reads as a model of the provider {name.partition('.')[0]}; choose "
            "another name"
        )
    return None


_MOST_ALIASES = 20
"""Short names that may lead to one another; more are a mistake, and each would be read again for
each of the others."""


def _read(
    text: str,
    providers: Mapping[str, Provider],
    aliases: Mapping[str, str],
    left: int = _MOST_ALIASES,
) -> _Reading:
    """The string taken apart, with what `left` short names at most lead to."""
    address, question, query = text.partition("?")
    address = address.strip()
    read = _read_query(query) if question else _Reading()
    if address.partition(":")[0] in aliases.keys() | ALIASES.keys():
        if not left:
            return _Reading(
                messages=[
                    f"more than {_MOST_ALIASES} short names lead to one another; name the model"
                ]
            )
        name, colon, route = address.partition(":")
        own = aliases.get(name)
        target = ALIASES[name] if own is None else own
        # without itself, so that a project may give a known name to something else, and no circle
        # is endless
        if own is None:
            others = {}
        else:
            others = {key: value for key, value in aliases.items() if key != name}
        base = _read(target, providers, others, left - 1)
        messages = [
            f"'{name}' means {target}: {message}" for message in base.messages
        ] + read.messages
        if colon and not base.messages:
            if not route:
                messages.append(
                    f"'{address}' ends in a colon without a route; write {name}, or {name}:<route>"
                )
            elif not providers[base.provider].routed:
                messages.append(
                    f"'{name}' means {target}, which has no routes; leave out ':{route}'"
                )
        decisive = {key: value for key, value in read.values.items() if key not in FIELDS}
        return replace(
            read,
            provider=base.provider,
            model=base.model,
            route=route or base.route,
            values={**base.values, **read.values},
            messages=messages,
            warnings=list(dict.fromkeys([*base.warnings, *read.warnings])),
            written=address + write_query(decisive),
        )
    try:
        name = address.partition(":")[0]
        if name in TEST_MODELS:
            raise Refused(
                f"'{name}' is a test model of another program; write simulator/small, which "
                "costs nothing"
            )
        read.provider, read.model = _address(address, providers, aliases)
        if providers[read.provider].routed:
            read.model, colon, route = read.model.partition(":")
            read.route = route or None
            if (colon and not route) or not read.model:
                wanted = f"{read.provider}/{read.model}:<route>"
                raise Refused(f"'{address}' ends in a colon without a route; write {wanted}")
    except Refused as refused:
        read.messages.insert(0, str(refused))
    return read


def _address(
    text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]
) -> tuple[str, str]:
    """Provider and model. Only a known provider is a prefix: models have slashes and dots too.
    Raises Refused."""
    prefix, slash, rest = text.partition("/")
    if slash and (prefix in providers or prefix in ELSEWHERE):
        return _named(prefix, rest, "/", providers)
    # the longest first: a provider's own name may hold a dot
    for name in sorted({*providers, *ELSEWHERE}, key=len, reverse=True):
        if text == name or text.startswith(f"{name}."):
            return _named(name, text[len(name) + 1 :], text[len(name) : len(name) + 1], providers)
    if text in MODELS:
        return _address(f"{MODELS[text]}/{text}", providers, aliases)
    raise Refused(_unknown(text, prefix if slash else "", providers, aliases))


def _named(
    provider: str, model: str, mark: str, providers: Mapping[str, Provider]
) -> tuple[str, str]:
    if provider not in providers:
        raise Refused(refusal(provider, model))
    if not model.strip():
        what = "no model" if mark else "a provider and no model"
        if provider == "simulator":
            own = ["small"]
        else:
            own = [name for name, owner in MODELS.items() if owner == provider]
        example = f", as {provider}/{own[0]}" if own else ""
        raise Refused(f"'{provider}{mark}' names {what}; write {provider}/<model>{example}")
    if any(character.isspace() for character in model):
        raise Refused(f"'{model}' is no model name: it holds a space")
    if provider in SHIPPED and (suffix := _SUFFIX.match(model)):
        effort = suffix[2]
        raise Refused(
            f"'.{effort}' is no part of a model's name; write "
            f"{provider}/{suffix[1]}?reasoning={effort}"
        )
    return provider, model


def _unknown(
    text: str, prefix: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]
) -> str:
    if not text:
        return "no model is named; write provider/model, like openai/gpt-5.4-mini"
    if text.startswith("$"):
        return (
            f"'{text}' refers to another program's settings; write aliases: {{name: "
            f"provider/model}} in agac.yml"
        )
    listed = ", ".join(sorted(providers))
    if prefix:
        hint = _hint(prefix, [*providers, *ELSEWHERE])
        return (
            f"unknown provider '{prefix}'{hint} The providers are {listed}; agac.yml can add others"
        )
    short = {**ALIASES, **aliases, **MODELS}
    suffix = _SUFFIX.match(text)
    if suffix and suffix[1] in short:
        return (
            f"'.{suffix[2]}' is no part of a model's name; write {suffix[1]}?reasoning={suffix[2]}"
        )
    near = nearest(text.partition(".")[0], providers, cutoff=0.75)
    if near and "." in text:
        return f"'{text}' names no provider; did you mean '{near}/{text.partition('.')[2]}'?"
    near = nearest(text, short, cutoff=0.8)
    if near:
        return f"'{text}' is no short name of a model; did you mean '{near}'?"
    return (
        f"'{text}' names no provider; write provider/model, like 'openai/{text}'. The "
        f"providers are {listed}"
    )


def _hint(name: str, known: list[str]) -> str:
    near = nearest(name, known, cutoff=0.7)
    return f"; did you mean '{near}'?" if near else "."
