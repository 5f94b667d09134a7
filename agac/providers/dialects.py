"""Every dialect by its name, and what a provider can be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agac.providers import anthropic, openai
from agac.providers.provider import Provider
from agac.providers.wire import Dialect

DIALECTS: dict[str, Dialect] = {
    "openai-chat": openai.CHAT,
    "openai-responses": openai.RESPONSES,
    "anthropic": anthropic.MESSAGES,
}

# Asked before anything is sent: a provider's row and its dialect know, never its name.

EXTRAS = ("top_k", "min_p", "repetition_penalty")
"""Parameters that OpenAI's API does not have and some look-alikes do."""

SAMPLING = ("temperature", "top_p", "top_k")


def objections(model: str, params: Mapping[str, Any], transport: str | None, provider: Provider) -> list[str]:
    """Why a model cannot be asked so; `params` by field name of `Params`, None where nothing is to be sent."""
    found = [*unsendable((name for name, value in params.items() if value is not None), provider, model)]
    if (reasoning := params.get("reasoning")) is not None and (why := _of_reasoning(model, reasoning, provider)):
        found.append(f"reasoning={reasoning}: {provider.name}/{model} {why}")
    found += of_tier(params.get("service_tier"), provider)
    if transport in ("ws", "auto") and DIALECTS[provider.dialect].socket_asks is None:
        found.append(
            f"transport={transport}: {provider.name} is asked over HTTP alone; leave it out, "
            "or ask through the Responses API (responses/…)"
        )
    return found


def unsendable(names: Iterable[str], provider: Provider, model: str = "") -> Iterator[str]:
    """Parameters for which the provider's API has no word, or which the model refuses, where one is named."""
    refused = DIALECTS[provider.dialect].refused
    for name in names:
        if name in refused:
            yield f"{name}: {refused[name]}"
        elif name == "seed" and not provider.seeds:
            yield f"seed: {provider.name} has no such parameter; leave it out"
        elif name in EXTRAS and provider.extras is not None and name not in provider.extras:
            yield f"{name}: {provider.name} has no such parameter; leave it out"
        elif name in SAMPLING and model.startswith(provider.unsampled):
            yield f"{name}: {provider.name}/{model} refuses it, as newer models do; leave it out"


def _of_reasoning(model: str, value: str, provider: Provider) -> str | None:
    """Why a model cannot be told to think so, and what to write; None: it can be."""
    switch = provider.switch_of(model)
    efforts = ", ".join(provider.efforts or ("none", "minimal", "low", "medium", "high"))
    if value.isdigit():
        counts = switch is not None and switch.tokens
        return None if counts else f"takes no number of tokens; write an effort: {efforts}"
    if switch is None:
        no_switch = "has no such switch that agac knows; write an effort: none, minimal, low, medium, high"
        return no_switch if value in ("on", "off") else None
    if value in ("on", "off"):
        if (switch.on if value == "on" else switch.off) is not None:
            return None
        if value == "on" and switch.tokens:
            return "is told how many tokens it may think for; write reasoning=2048"
        return f"always thinks; write an effort: {efforts}"
    if not switch.efforts:
        if switch.tokens:
            return "takes no effort; write how many tokens it may think for, as reasoning=2048"
        return "thinks or does not; write reasoning=on or reasoning=off"
    known = provider.efforts is None or value in provider.efforts
    return None if known else f"has no such effort; its efforts are {efforts}"


def of_budget(reasoning: str | None, max_tokens: int | None) -> Iterator[str]:
    """Why so many tokens cannot be thought with: they are a part of the reply's."""
    if reasoning is not None and reasoning.isdigit() and max_tokens is not None and int(reasoning) >= max_tokens:
        yield f"reasoning={reasoning}: it is a part of max_tokens, {max_tokens}; raise max_tokens above it"


def of_tier(value: str | None, provider: Provider) -> Iterator[str]:
    """Why a service tier cannot be had of a provider."""
    tiers = provider.service_tiers
    if value is not None and tiers is not None and value not in tiers:
        known = f"its tiers are {', '.join(tiers)}" if tiers else "it has no tiers; leave service_tier out"
        yield f"service_tier={value}: {provider.name} has no such tier; {known}"
