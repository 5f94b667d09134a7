"""A hosted provider's cache of prompts, and the ends of prompts that caches know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from agac.simulator.kinds import JsonObject, as_object
from agac.simulator.model_calls import CacheUse, ModelCall, canonical

CHARACTERS = 4  # of a token
LIFETIMES = {"5m": 300.0, "1h": 3600.0}
"""Seconds that an entry of Anthropic's cache lives after its last use."""
MIN_CACHED = 1024  # tokens of the shortest prompt that a hosted provider caches
LOOK_BACK = 20  # blocks before a breakpoint among which Anthropic looks for an entry

PROMPT_KEYS = ("tools", "system", "instructions", "messages", "input")
"""The parts of a body that are a prompt, in a model's order."""

PromptEnds = list[tuple[bytes, int, str]]
"""Ends of prompts.

The name of all that is before, its tokens, and the lifetime of an entry there, empty for none.
"""


def prompt_parts(data: JsonObject) -> Iterator[tuple[str, str]]:
    """Gives the texts of a prompt, each with the lifetime of the cache entry to end there."""
    for key in PROMPT_KEYS:
        value = data.get(key) or ()
        for item in [value] if isinstance(value, str) else value:
            content = as_object(item).get("content")
            for block in content if isinstance(content, list) else [content or item]:
                yield block_part(block)


def block_part(block: Any) -> tuple[str, str]:
    """Returns the text of a block, and the lifetime that it asks for."""
    if not isinstance(block, dict):
        return f"{block}\n", ""
    mark = block.get("cache_control")
    lifetime = mark.get("ttl", "5m") if isinstance(mark, dict) else ""
    if block.get("type") == "text":
        return f"{block['text']}\n", lifetime
    rest = {key: value for key, value in block.items() if key != "cache_control"}
    return f"{canonical(rest)}\n", lifetime


def prompt_ends(data: JsonObject, block: int | None) -> tuple[int, PromptEnds]:
    """Returns how many tokens a prompt is, and its ends.

    They are after each `block` of tokens, or else (None) after its parts.
    """
    parts = [(text.encode("utf-8", "replace"), lifetime) for text, lifetime in prompt_parts(data)]
    length = sum(len(text) for text, _ in parts)
    if block is not None:
        prompt = b"".join(text for text, _ in parts)
        size = block * CHARACTERS
        starts = range(0, length - size + 1, size)
        parts = [(prompt[start : start + size], "5m") for start in starts]
    ends: PromptEnds = []
    position = 0
    beginning = f"{data['model']}/{data.get('prompt_cache_key')}/"
    digest = blake2b(beginning.encode(), digest_size=12)
    for text, lifetime in parts:
        digest.update(text)
        position += len(text)
        ends.append((digest.digest(), position // CHARACTERS, lifetime))
    return max(1, length // CHARACTERS), ends


class PromptCache:
    """Entries can be read once the first answer begins, until they are unused for a lifetime."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[float, float]] = {}
        """since and until when an entry can be read, by its name"""

    def look_up(
        self, call: ModelCall, size: int, ends: PromptEnds, now: float
    ) -> tuple[ModelCall, dict[bytes, str]]:
        """Returns the request, of so many tokens, with those read and written of them.

        Then the entries to keep when it is answered, with their lifetimes.
        """
        marked = [
            index
            for index, (_, tokens, lifetime) in enumerate(ends)
            if lifetime and tokens >= MIN_CACHED
        ]
        read = self._read_tokens(marked, ends, now)
        written: dict[str, int] = {}
        position = read
        for index in marked:
            _, tokens, lifetime = ends[index]
            written[lifetime] = written.get(lifetime, 0) + max(0, tokens - position)
            position = max(position, tokens)
        call = replace(call, prompt_tokens=size, cache=CacheUse(read, written))
        return call, {ends[index][0]: ends[index][2] for index in marked}

    def _read_tokens(self, marked: list[int], ends: PromptEnds, now: float) -> int:
        """Returns how many tokens come from the longest entry at, or before, a breakpoint."""
        for index in reversed(marked):
            for name, tokens, _ in reversed(ends[max(0, index - LOOK_BACK) : index + 1]):
                since, until = self.entries.get(name, (math.inf, 0.0))
                if since <= now < until:
                    return tokens
        return 0

    def keep(self, entries: Mapping[bytes, str], now: float) -> None:
        """Makes entries readable, or live longer."""
        for name, lifetime in entries.items():
            since, _ = self.entries.get(name, (now, 0.0))
            until = now + LIFETIMES.get(lifetime, LIFETIMES["5m"])
            self.entries[name] = (min(now, since), until)
