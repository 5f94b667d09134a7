"""Model strings: `provider/model:route?key=value&…`, or a short name. All of them are read here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import unquote

from agac.core.errors import nearest
from agac.providers.abilities import objections
from agac.providers.known_providers import SHIPPED
from agac.providers.model_keys import (
    EFFORTS,
    FIELDS,
    NO_EFFECT,
    NOT_HERE,
    READERS,
    SPELLINGS,
    instant,
)
from agac.providers.provider import SERVER_TOOLS, Provider, Structured
from agac.providers.table import ELSEWHERE, refusal
from agac.spec.paths import Refused


@dataclass(slots=True)
class _Reading:
    """A string taken apart: nothing of it is checked against its provider yet."""

    provider: str = ""
    """The provider's name."""
    model: str = ""
    """The model's name."""
    route: str | None = None
    """Who runs the model behind a router."""
    values: dict[str, Any] = field(default_factory=dict)
    """What each key after `?` sets."""
    spelt: dict[str, str] = field(default_factory=dict)
    """How each of those keys was written."""
    messages: list[str] = field(default_factory=list)
    """What cannot be read."""
    warnings: list[str] = field(default_factory=list)
    """Keys without an effect."""
    written: str | None = None
    """What was written, when that is a short name."""


def _read_query(text: str) -> _Reading:
    """Reads `key=value&…`; every mistake in it is among the messages."""
    read = _Reading()
    for pair in text.split("&"):
        key, equals, value = pair.partition("=")
        if equals:
            _read_pair(read, key, unquote(value))
        else:
            read.messages.append(f"'{pair}' after ? is no key=value pair")
    return read


def _read_pair(read: _Reading, key: str, value: str) -> None:
    """Adds a key and its value to what was read."""
    name = SPELLINGS.get(key, key)
    reader = instant if key == "instant" else READERS.get(name) or NOT_HERE.get(name)
    if reader is None and name not in NO_EFFECT:
        hint = _hint(key, [*READERS, *SPELLINGS, *NOT_HERE, *NO_EFFECT])
        read.messages.append(f"unknown key '{key}'{hint} The keys are {', '.join(READERS)}")
    elif name in read.spelt:
        earlier = read.spelt[name]
        others = "" if earlier == key else f", as {earlier} and as {key}"
        read.messages.append(f"{name} is given twice{others}")
    elif reader is None:
        read.spelt[name] = key
        read.warnings.append(f"{key} has no effect: {NO_EFFECT[name]}")
    else:
        read.spelt[name] = key
        _read_value(read, key, value, reader)


def _read_value(read: _Reading, key: str, value: str, reader: Callable[[str], Any]) -> None:
    """Reads the value of a key, or adds what is wrong with it."""
    try:
        setting = reader(value)
    except Refused as refused:
        problem = str(refused)
        is_named = problem.startswith(f"{key}=")
        read.messages.append(problem if is_named else f"{key}={value}: {problem}")
    except (ValueError, KeyError):
        read.messages.append(f"{key}={value}: expected {reader.__doc__}")
    else:
        name = SPELLINGS.get(key, key)
        if name in READERS:
            read.values[name] = setting


def write_query(values: Mapping[str, Any]) -> str:
    """Returns the values as `?key=value&…`, as `_read_query` reads them; empty when there are
    none."""
    pairs = [f"{name}={_written(name, values[name])}" for name in READERS if name in values]
    return "?" + "&".join(pairs) if pairs else ""


def _written(name: str, value: Any) -> str:
    """Returns the value of a key as a model string writes it."""
    if value is None:
        return "off" if name in SERVER_TOOLS else "auto"
    if value == math.inf and name == "idle_timeout":
        return "none"
    if isinstance(value, float):
        return f"{value!r}".removesuffix(".0")
    return str(value)


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
    """Returns the models of a provider, by name."""
    return dict.fromkeys(names.split(), provider)


MODELS: dict[str, str] = {
    **_all("openai", "gpt-4o gpt-4o-mini gpt-4.1-nano"),
    **_all(
        "responses",
        "gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.3-codex gpt-5.4-nano o3 o4-mini",
    ),
    **_all(
        "anthropic",
        """
        claude-haiku-4-5 claude-haiku-5-5 claude-sonnet-4-5 claude-sonnet-4-6 claude-sonnet-5
        claude-sonnet-5-5 claude-opus-4-5 claude-opus-4-6 claude-opus-4-7 claude-opus-4-8
        claude-opus-5 claude-opus-5-5 claude-fable-5 claude-fable-5-1 claude-fable-5-2
        """,
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
    """A model of a provider, and what its string sets.

    No fingerprint holds `transport`, `idle_timeout` and `schema_mode`, which only say how it is
    asked; None: nothing is said."""

    provider: str
    """The provider's name."""
    model: str
    """The model's name, without a route."""
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Parameters by field name of `Params`, None where `auto` is written."""
    route: str | None = None
    """Who runs the model behind a router."""
    transport: Literal["sse", "ws", "auto"] | None = None
    """How answers come: by server-sent events, over WebSockets, or by either."""
    idle_timeout: float | None = None
    """Seconds of silence; `math.inf`: no bound at all."""
    schema_mode: Structured | None = None
    """How a schema is sent."""
    written: str | None = field(default=None, compare=False)
    """What was written when that is a short name, without the keys of `FIELDS`."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about keys that have no effect."""

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
        fields = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        return f"{self}{write_query({**self.params, **fields})}"


def parse_model(
    text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str] | None = None
) -> tuple[ModelRef | None, list[str]]:
    """Returns the model that `text` names, or None and every reason why it names none. `aliases`
    are the project's own."""
    read = _read(text.strip(), providers, aliases or {})
    if read.messages:
        return None, read.messages
    row = providers[read.provider]
    fields = {name: read.values.pop(name, None) for name in FIELDS}
    effort = row.meant_reasoning(read.model, read.values.get("reasoning"))
    if effort is not None:
        read.values["reasoning"] = effort
    model = ModelRef(
        read.provider,
        read.model,
        read.values,
        read.route,
        **fields,
        written=read.written,
        warnings=(*read.warnings,),
    )
    messages = objections(model.model, model.params, model.transport, row)
    if read.spelt.get("reasoning") == "instant" and row.switch_of(model.model) is None:
        messages = [
            f"instant: {row.name}/{model.model} has no such switch; write an effort as reasoning",
            *messages,
        ]
    return (None, messages) if messages else (model, [])


def alias_problem(name: str, providers: Mapping[str, Provider]) -> str | None:
    """Returns what is wrong with the name of a project's alias."""
    if not _NAME.match(name):
        return f"'{name}' is no short name; use letters, digits, '.', _ and -"
    prefix, dot, _ = name.partition(".")
    if dot and prefix in providers:
        return f"'{name}' reads as a model of the provider {prefix}; choose another name"
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
    """Takes a string apart; `left` short names at most may lead to one another."""
    address, question, query = text.partition("?")
    address = address.strip()
    read = _read_query(query) if question else _Reading()
    name = address.partition(":")[0]
    if name in aliases or name in ALIASES:
        return _read_alias(address, read, providers, aliases, left)
    try:
        if name in TEST_MODELS:
            raise Refused(
                f"'{name}' is a test model of another program; write simulator/small, which "
                "costs nothing"
            )
        read.provider, read.model = _address(address, providers, aliases)
        if providers[read.provider].routed:
            read.model, read.route = _model_and_route(address, read.provider, read.model)
    except Refused as refused:
        read.messages.insert(0, str(refused))
    return read


def _model_and_route(address: str, provider: str, model: str) -> tuple[str, str | None]:
    """Returns the model and the route that a router's model names. Raises Refused."""
    model, colon, route = model.partition(":")
    lacks_route = bool(colon) and not route
    if lacks_route or not model:
        wanted = f"{provider}/{model}:<route>"
        raise Refused(f"'{address}' ends in a colon without a route; write {wanted}")
    return model, route or None


def _read_alias(
    address: str,
    read: _Reading,
    providers: Mapping[str, Provider],
    aliases: Mapping[str, str],
    left: int,
) -> _Reading:
    """Reads a short name, with what was `read` of its query over what the name means."""
    if not left:
        message = f"more than {_MOST_ALIASES} short names lead to one another; name the model"
        return _Reading(messages=[message])
    name, colon, route = address.partition(":")
    target = aliases.get(name)
    others: dict[str, str] = {}
    if target is None:
        target = ALIASES[name]
    else:
        # without itself, so that a project may give a known name to something else, and no circle
        # is endless
        others = {key: value for key, value in aliases.items() if key != name}
    base = _read(target, providers, others, left - 1)
    messages = [f"'{name}' means {target}: {message}" for message in base.messages]
    messages += read.messages
    if colon and not base.messages:
        if not route:
            messages.append(
                f"'{address}' ends in a colon without a route; write {name}, or {name}:<route>"
            )
        elif not providers[base.provider].routed:
            messages.append(f"'{name}' means {target}, which has no routes; leave out ':{route}'")
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


def _address(
    text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]
) -> tuple[str, str]:
    """Returns provider and model. Only a known provider is a prefix: models have slashes and dots
    too. Raises Refused."""
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
    """Returns provider and model as an address names them; `mark` is between them. Raises
    Refused."""
    if provider not in providers:
        raise Refused(refusal(provider, model))
    if not model.strip():
        what = "no model" if mark else "a provider and no model"
        model = _example_of(provider)
        example = f", as {provider}/{model}" if model else ""
        raise Refused(f"'{provider}{mark}' names {what}; write {provider}/<model>{example}")
    if any(character.isspace() for character in model):
        raise Refused(f"'{model}' is no model name: it holds a space")
    suffix = _SUFFIX.match(model)
    if suffix and provider in SHIPPED:
        effort = suffix[2]
        raise Refused(
            f"'.{effort}' is no part of a model's name; write "
            f"{provider}/{suffix[1]}?reasoning={effort}"
        )
    return provider, model


def _example_of(provider: str) -> str:
    """Returns a model of a provider, for a message; empty where none is known."""
    if provider == "simulator":
        return "small"
    return next((name for name, owner in MODELS.items() if owner == provider), "")


def _unknown(
    text: str, prefix: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]
) -> str:
    """Returns what to say of a string that names no model that is known."""
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
    meant = _meant_name(text, providers, {**ALIASES, **aliases, **MODELS})
    return meant or (
        f"'{text}' names no provider; write provider/model, like 'openai/{text}'. The "
        f"providers are {listed}"
    )


def _meant_name(
    text: str, providers: Mapping[str, Provider], short_names: Mapping[str, str]
) -> str | None:
    """Returns what to say of a string that is near to a name that is known."""
    suffix = _SUFFIX.match(text)
    if suffix and suffix[1] in short_names:
        return (
            f"'.{suffix[2]}' is no part of a model's name; write {suffix[1]}?reasoning={suffix[2]}"
        )
    prefix, dot, model = text.partition(".")
    near = nearest(prefix, providers, cutoff=0.75)
    if near and dot:
        return f"'{text}' names no provider; did you mean '{near}/{model}'?"
    near = nearest(text, short_names, cutoff=0.8)
    if near:
        return f"'{text}' is no short name of a model; did you mean '{near}'?"
    return None


def _hint(name: str, known: list[str]) -> str:
    """Returns the end of a sentence about an unknown name: the nearest that is known, if any."""
    near = nearest(name, known, cutoff=0.7)
    return f"; did you mean '{near}'?" if near else "."
