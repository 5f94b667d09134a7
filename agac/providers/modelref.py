"""Model strings: `provider/model:route?key=value&…`, or a short name; every one of them is read here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, cast

from agac.providers.abilities import objections
from agac.providers.aliases import ALIASES, MODELS
from agac.providers.elsewhere import ELSEWHERE, refusal
from agac.providers.modelkeys import EFFORTS, FIELDS, Query, read_query, write_query
from agac.providers.provider import Provider, Structured
from agac.providers.table import SHIPPED

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
    read = _read(text.strip(), providers, aliases or {})
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


def _read(text: str, providers: Mapping[str, Provider], aliases: Mapping[str, str]) -> _Read:
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
    base = _read(target, providers, {key: value for key, value in aliases.items() if key != name and own is not None})
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
