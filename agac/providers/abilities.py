"""What a provider can be told, asked before anything is sent: its row and its dialect know, never its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agac.providers.dialects import DIALECTS
from agac.providers.provider import Provider

EXTRAS = ("top_k", "min_p", "repetition_penalty")
"""Parameters that OpenAI's API does not have and some look-alikes do."""

_SWITCHES = ("on", "off")


def objections(model: str, params: Mapping[str, Any], transport: str | None, provider: Provider) -> list[str]:
    """Why a model cannot be asked so; `params` by field name of `Params`, None where nothing is to be sent."""
    return [
        *unsendable((name for name, value in params.items() if value is not None), provider),
        *_of_reasoning(model, params.get("reasoning"), provider),
        *of_tier(params.get("service_tier"), provider),
        *_of_transport(transport, provider),
    ]


def unsendable(names: Iterable[str], provider: Provider) -> Iterator[str]:
    """Parameters for which the provider's API has no word."""
    refused = DIALECTS[provider.dialect].refused
    for name in names:
        if name in refused:
            yield f"{name}: {refused[name]}"
        elif name == "seed" and not provider.seeds:
            yield f"seed: {provider.name} has no such parameter; leave it out"
        elif name in EXTRAS and provider.extras is not None and name not in provider.extras:
            yield f"{name}: {provider.name} has no such parameter; leave it out"


def _of_reasoning(model: str, value: str | None, provider: Provider) -> Iterator[str]:
    if value is None:
        return
    switch = provider.switch_of(model)
    if value in _SWITCHES and switch is None:
        yield (
            f"reasoning={value}: {provider.name}/{model} has no such switch that agac knows; "
            "write an effort: none, minimal, low, medium, high"
        )
    elif value not in _SWITCHES and switch is not None and not switch.efforts:
        yield f"reasoning={value}: {provider.name}/{model} thinks or does not; write reasoning=on or reasoning=off"


def of_tier(value: str | None, provider: Provider) -> Iterator[str]:
    """Why a service tier cannot be had of a provider."""
    tiers = provider.service_tiers
    if value is not None and tiers is not None and value not in tiers:
        known = f"its tiers are {', '.join(tiers)}" if tiers else "it has no tiers; leave service_tier out"
        yield f"service_tier={value}: {provider.name} has no such tier; {known}"


def _of_transport(value: str | None, provider: Provider) -> Iterator[str]:
    if value in ("ws", "auto") and not DIALECTS[provider.dialect].websocket:
        yield (
            f"transport={value}: {provider.name} is asked over HTTP alone; leave it out, "
            "or ask through the Responses API (responses/…)"
        )
