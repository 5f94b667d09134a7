"""Model strings: `provider/model?key=value&…`, read in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from agac.providers.table import Provider

REASONING = ("none", "minimal", "low", "medium", "high", "xhigh")
SERVICE_TIERS = ("auto", "default", "flex", "priority")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of a provider, and the parameters that its string sets, by field name of `Params`."""

    provider: str
    model: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not low <= value <= high:
            raise ValueError
        return value

    read.__doc__ = f"a number from {low:g} to {high:g}"
    return read


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


READERS: dict[str, Callable[[str], Any]] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "max_tokens": _positive,
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "seed": _whole,
    "reasoning": _one_of(REASONING),
    "service_tier": _one_of(SERVICE_TIERS, fast="priority"),
}
"""The keys of a model string, each with what reads its value; the reader's docstring says what it takes."""

SPELLINGS = {"temp": "temperature", "topP": "top_p", "maxTokens": "max_tokens"}
"""Other ways to write a key."""


def parse_model(text: str, providers: Mapping[str, Provider]) -> tuple[ModelRef | None, list[str]]:
    """The model that `text` names, or None and every reason why it names none."""
    address, question, query = text.strip().partition("?")
    params, messages = _query(query) if question else ({}, [])
    provider, model, trouble = _address(address.strip(), providers)
    if trouble:
        return None, [trouble, *messages]
    if messages:
        return None, messages
    return ModelRef(provider, model, params), []


def _address(text: str, providers: Mapping[str, Provider]) -> tuple[str, str, str | None]:
    """Provider, model, and what is wrong. Only a known provider is a prefix: models have slashes and dots too."""
    prefix, slash, rest = text.partition("/")
    if slash and prefix in providers:
        return _named(prefix, rest, "/")
    # the longest first: a provider's own name may hold a dot
    for name in sorted(providers, key=len, reverse=True):
        if text == name or text.startswith(f"{name}."):
            return _named(name, text[len(name) + 1 :], text[len(name) : len(name) + 1] or "/")
    return "", "", _unknown(text, prefix if slash else "", providers)


def _named(provider: str, model: str, mark: str) -> tuple[str, str, str | None]:
    if not model.strip():
        return "", "", f"'{provider}{mark}' names no model; write {provider}/<model>"
    if any(character.isspace() for character in model):
        return "", "", f"'{model}' is no model name: it holds a space"
    return provider, model, None


def _unknown(text: str, prefix: str, providers: Mapping[str, Provider]) -> str:
    if not text:
        return "no model is named; write provider/model, like openai/gpt-5.4-mini"
    listed = ", ".join(sorted(providers))
    if prefix:
        hint = _hint(prefix, [*providers])
        return f"unknown provider '{prefix}'{hint} The providers are {listed}; agac.yml can add others"
    near = get_close_matches(text.partition(".")[0], providers, n=1, cutoff=0.75)
    if near and "." in text:
        return f"'{text}' names no provider; did you mean '{near[0]}/{text.partition('.')[2]}'?"
    return f"'{text}' names no provider; write provider/model, like 'openai/{text}'. The providers are {listed}"


def _query(text: str) -> tuple[dict[str, Any], list[str]]:
    params: dict[str, Any] = {}
    messages: list[str] = []
    written: dict[str, str] = {}
    for pair in text.split("&"):
        key, equals, value = pair.partition("=")
        name = SPELLINGS.get(key, key)
        if not equals:
            messages.append(f"'{pair}' after ? is no key=value pair")
        elif name not in READERS:
            messages.append(_unknown_key(key))
        elif name in written:
            same = written[name] == key
            messages.append(f"{name} is given twice" + ("" if same else f", as {written[name]} and as {key}"))
        else:
            written[name] = key
            _read(name, unquote(value), params, messages)
    return params, messages


def _read(name: str, value: str, params: dict[str, Any], messages: list[str]) -> None:
    reader = READERS[name]
    try:
        params[name] = reader(value)
    except ValueError:
        messages.append(f"{name}={value}: expected {reader.__doc__}")


def _unknown_key(key: str) -> str:
    hint = _hint(key, [*READERS, *SPELLINGS])
    return f"unknown key '{key}'{hint} The keys are {', '.join(READERS)}"


def _hint(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else "."
