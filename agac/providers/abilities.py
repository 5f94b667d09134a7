"""What a provider can be told: why a model cannot be asked with some parameters, and what to write
instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agac.providers.known_providers import SHIPPED
from agac.providers.provider import SERVER_TOOLS, Provider, Switch
from agac.providers.table import DIALECTS

# Asked before anything is sent: a provider's row and its dialect know, never its name.

# parameters that OpenAI's API does not have and some look-alikes do
EXTRAS = ("top_k", "min_p", "repetition_penalty")
SAMPLING = ("temperature", "top_p", "top_k")


def objections(
    model: str, params: Mapping[str, Any], transport: str | None, provider: Provider
) -> list[str]:
    """Returns why a model cannot be asked so; `params` by field name of `Params`, None where
    nothing is to be sent."""
    names = [name for name, value in params.items() if value is not None]
    reasons = [*unsendable(names, provider, model), *_of_uses(params, provider)]
    reasoning = params.get("reasoning")
    if reasoning is not None:
        why = _of_reasoning(model, reasoning, provider)
        if why:
            reasons.append(f"reasoning={reasoning}: {provider.name}/{model} {why}")
    reasons += of_tier(params.get("service_tier"), provider)
    if transport in ("ws", "auto") and DIALECTS[provider.dialect].socket_asks is None:
        reasons.append(
            f"transport={transport}: {provider.name} is asked over HTTP alone; leave it out, "
            "or ask through the Responses API (responses/…)"
        )
    return reasons


def _of_uses(params: Mapping[str, Any], provider: Provider) -> Iterator[str]:
    """Yields why the uses of a tool that the provider runs cannot be bounded."""
    if provider.uses_bound:
        return
    for name in SERVER_TOOLS:
        if name in provider.server_tools and params.get(name) not in (None, "on"):
            uses = params[name]
            yield f"{name}={uses}: {provider.name} takes no number of uses; write {name}=on"


def unsendable(names: Iterable[str], provider: Provider, model: str = "") -> Iterator[str]:
    """Yields parameters for which the provider's API has no word, or which the model refuses,
    where one is named."""
    refused = DIALECTS[provider.dialect].refused
    for name in names:
        if name in refused:
            yield f"{name}: {refused[name]}"
        elif _has_no_parameter(name, provider):
            yield f"{name}: {provider.name} has no such parameter; leave it out"
        elif name in SERVER_TOOLS and name not in provider.server_tools:
            yield (
                f"{name}: {provider.name} runs no such tool that agac knows of; name a model of "
                f"{_runners_of(name)}, or leave it out and give the stage a tool of its own"
            )
        elif name in SAMPLING and model.startswith(provider.unsampled):
            yield f"{name}: {provider.name}/{model} refuses it, as newer models do; leave it out"


def _has_no_parameter(name: str, provider: Provider) -> bool:
    """True if the provider is known to lack a parameter that others have."""
    if name == "seed":
        return not provider.seeds
    return name in EXTRAS and provider.extras is not None and name not in provider.extras


def _runners_of(tool: str) -> str:
    """Returns the providers that run a tool, as words."""
    rows = [row for row in SHIPPED.values() if tool in row.server_tools and not row.simulated]
    return " or ".join(row.name for row in rows)


def _of_reasoning(model: str, value: str, provider: Provider) -> str | None:
    """Returns why a model cannot be told to think so, and what to write; None: it can be."""
    switch = provider.switch_of(model)
    efforts = ", ".join(provider.efforts or ("none", "minimal", "low", "medium", "high"))
    if value.isdigit():
        if switch is not None and switch.tokens:
            return None
        return f"takes no number of tokens; write an effort: {efforts}"
    if value in ("on", "off"):
        return _of_switch(switch, value, efforts)
    if switch is None:
        return None
    if not switch.efforts:
        if switch.tokens:
            return "takes no effort; write how many tokens it may think for, as reasoning=2048"
        return "thinks or does not; write reasoning=on or reasoning=off"
    if provider.efforts is None or value in provider.efforts:
        return None
    return f"has no such effort; its efforts are {efforts}"


def _of_switch(switch: Switch | None, value: str, efforts: str) -> str | None:
    """Returns why a model's thinking cannot be turned on, or off; None: it can be."""
    if switch is None:
        return (
            "has no such switch that agac knows; write an effort: none, minimal, low, medium, high"
        )
    if (switch.on if value == "on" else switch.off) is not None:
        return None
    if value == "on" and switch.tokens:
        return "is told how many tokens it may think for; write reasoning=2048"
    return f"always thinks; write an effort: {efforts}"


def of_budget(reasoning: str | None, max_tokens: int | None) -> Iterator[str]:
    """Yields why so many tokens cannot be thought with: they are a part of the reply's."""
    if reasoning is None or max_tokens is None or not reasoning.isdigit():
        return
    if int(reasoning) >= max_tokens:
        yield (
            f"reasoning={reasoning}: it is a part of max_tokens, {max_tokens}; raise "
            "max_tokens above it"
        )


def of_tier(value: str | None, provider: Provider) -> Iterator[str]:
    """Yields why a service tier cannot be had of a provider."""
    tiers = provider.service_tiers
    if value is None or tiers is None or value in tiers:
        return
    if tiers:
        known = f"its tiers are {', '.join(tiers)}"
    else:
        known = "it has no tiers; leave service_tier out"
    yield f"service_tier={value}: {provider.name} has no such tier; {known}"
