"""Every dialect by its name, and what puts its streamed events together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agac.providers import anthropic, openai_chat, openai_responses
from agac.providers.provider import Provider, Switch
from agac.providers.wire import Assembly, Dialect

DIALECTS: dict[str, Dialect] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
}


# Answers that come piece by piece: each dialect's events, put together into the body that its `parse` reads.
#
# So there is one `parse`, whatever the transport, and what is stored of a reply is the same, streamed or not.


class WatchedStream:
    """An answer being put together, and when it began. Times are `time.monotonic()` seconds."""

    __slots__ = ("answering_at", "assembly", "begun_at")

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.begun_at: float | None = None
        self.answering_at: float | None = None

    def take(self, event: Any) -> None:
        """One event, now."""
        self.assembly.take(event)
        if self.answering_at is None and self.assembly.begun:
            now = time.monotonic()
            self.begun_at = self.begun_at or now
            if self.assembly.answering:
                self.answering_at = now


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a dialect streams. `asks` is put into a body behind its `{` to ask for a stream; `assembly` begins an answer.

    `asks_usage` goes with `asks` where a provider has to be told to count the tokens of a stream. `socket_asks` is put
    there instead for a WebSocket; None: the dialect has none.
    """

    asks: bytes
    assembly: Callable[[], Assembly]
    asks_usage: bytes = b""
    socket_asks: bytes | None = None


STREAMS: dict[str, Streaming] = {
    "openai-chat": Streaming(
        asks=b'"stream":true,',
        asks_usage=b'"stream_options":{"include_usage":true},',
        assembly=openai_chat.ChatAssembly,
    ),
    "openai-responses": Streaming(
        asks=b'"stream":true,',
        assembly=openai_responses.ResponseAssembly,
        socket_asks=b'"type":"response.create",',
    ),
    "anthropic": Streaming(asks=b'"stream":true,', assembly=anthropic.MessageAssembly),
}
"""How each dialect streams, by its name in `DIALECTS`."""


def asking(wire: bytes, how: bytes) -> bytes:
    """The body of a request, which is a JSON object that is not empty, with `how` at its beginning."""
    return b"{" + how + wire[1:]


# What a provider can be told, asked before anything is sent: its row and its dialect know, never its name.

EXTRAS = ("top_k", "min_p", "repetition_penalty")
"""Parameters that OpenAI's API does not have and some look-alikes do."""

SAMPLING = ("temperature", "top_p", "top_k")

_SWITCHES = ("on", "off")


def objections(model: str, params: Mapping[str, Any], transport: str | None, provider: Provider) -> list[str]:
    """Why a model cannot be asked so; `params` by field name of `Params`, None where nothing is to be sent."""
    return [
        *unsendable((name for name, value in params.items() if value is not None), provider, model),
        *_of_reasoning(model, params.get("reasoning"), provider),
        *of_tier(params.get("service_tier"), provider),
        *_of_transport(transport, provider),
    ]


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


def _of_reasoning(model: str, value: str | None, provider: Provider) -> Iterator[str]:
    """Why a model cannot be told to think so."""
    if value is None:
        return
    switch, name = provider.switch_of(model), f"reasoning={value}: {provider.name}/{model}"
    if value.isdigit():
        if switch is None or not switch.tokens:
            yield f"{name} takes no number of tokens; write an effort: {_efforts(provider)}"
    elif value in _SWITCHES and switch is None:
        yield f"{name} has no such switch that agac knows; write an effort: none, minimal, low, medium, high"
    elif switch is not None and value in _SWITCHES and (switch.on if value == "on" else switch.off) is None:
        yield f"{name} {_only_else(value, switch, provider)}"
    elif switch is not None and value not in _SWITCHES:
        if not switch.efforts and not switch.tokens:
            yield f"{name} thinks or does not; write reasoning=on or reasoning=off"
        elif not switch.efforts:
            yield f"{name} takes no effort; write how many tokens it may think for, as reasoning=2048"
        elif provider.efforts is not None and value not in provider.efforts:
            yield f"{name} has no such effort; its efforts are {_efforts(provider)}"


def _only_else(value: str, switch: Switch, provider: Provider) -> str:
    """What to write where thinking cannot be turned on, or off, alone."""
    if value == "on" and switch.tokens:
        return "is told how many tokens it may think for; write reasoning=2048"
    return f"always thinks; write an effort: {_efforts(provider)}"


def _efforts(provider: Provider) -> str:
    return ", ".join(provider.efforts or ("none", "minimal", "low", "medium", "high"))


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


def _of_transport(value: str | None, provider: Provider) -> Iterator[str]:
    if value in ("ws", "auto") and not DIALECTS[provider.dialect].websocket:
        yield (
            f"transport={value}: {provider.name} is asked over HTTP alone; leave it out, "
            "or ask through the Responses API (responses/…)"
        )
