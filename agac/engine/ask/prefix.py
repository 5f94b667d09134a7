"""The prefix that all requests of a stage share: which call warms a cache with it, and how much of
it was found there."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agac.core.errors import AgacError
from agac.core.keys import prefix_mark
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import Fault, Reply, Request, SharedPrefix, Usage
from agac.engine.ask.rate_limiter import CallLimit
from agac.engine.invocation import Work
from agac.engine.stored_invocation import ServingFacts
from agac.engine.totals import Totals
from agac.plan.stage import PlannedModel, PlannedStage, agent_body, opening
from agac.providers.backend import engine_counts

FEW_ROWS = 3
"""Rows from which it pays to send a first call alone to an engine of one's own: without it the
engine computes the prefix for all of the others at the same time. Where a cache is paid for, it
takes twice as many rows as calls go at a time."""

KEY_CALLS = 12
"""Calls per minute with one key of OpenAI's cache. Of more, about 15, some go to machines without
it (developers.openai.com/api/docs/guides/prompt-caching, read November 2026)."""

WARM_AFTER_S = 20.0
"""Seconds after which the prefix is assumed to be in the cache although the answer of its first
call, which is not streamed, has not come yet."""


class PrefixGate:
    """Lets the first call with a prefix go alone. With its first token the prefix is in the cache,
    and all others go; if it fails, the next goes alone. `first` is the usage of the calls that went
    alone."""

    def __init__(self) -> None:
        self.warm = False
        self.first = list[Usage]()
        self._alone = CallLimit(1)
        self._late: asyncio.TimerHandle | None = None

    async def enter(self) -> bool:
        """Waits until a call may go. True if it goes alone."""
        await self._alone.enter()
        if not self.warm:
            self._late = asyncio.get_running_loop().call_later(WARM_AFTER_S, self.open)
        return not self.warm

    def open(self) -> None:
        """Lets all calls go: the first token came."""
        if not self.warm:
            self.warm = True
            self._alone.leave(math.inf)

    def leave(self, answer: Reply | Fault | None) -> None:
        """Ends a call that went alone; `answer` is what it brought."""
        if self._late is not None:
            self._late.cancel()
        if isinstance(answer, Reply):
            self.open()
            self.first.append(answer.usage)
        self._alone.leave()


@dataclass(slots=True)
class Prefix:
    """The prefix of a stage's requests to one model."""

    mark: str
    """Its name."""
    keys: list[tuple[SharedPrefix, PrefixGate | None]]
    """Its keys in the cache, each with a gate; None: no call waits."""

    def of(self, request: Request) -> tuple[SharedPrefix, PrefixGate | None]:
        """Returns the key of a request, and its gate. Rows are spread over all keys; a
        conversation keeps its key."""
        if len(self.keys) == 1:
            return self.keys[0]
        row = request.messages[self.keys[0][0].messages].text
        return self.keys[zlib.crc32(row.encode("utf-8", "replace")) % len(self.keys)]


def _least(stage: PlannedStage, model: PlannedModel) -> int | None:
    """Returns the length in tokens from which a prefix is kept in a cache. None: the requests of
    the stage share none, or it is not to be kept."""
    if not stage.settings.warm_prefix or stage.runtime is not None:
        return None
    if any(example.content.placeholders for example in stage.examples):
        return None
    return model.provider.least_cached(model.model)


def prefix_of(stage: PlannedStage, model: PlannedModel, work: Work) -> Prefix | None:
    """Returns the prefix that is worth asking a cache for. None: it is too short, or there is
    none."""
    least = _least(stage, model)
    if least is None:
        return None
    first = opening(stage, {})
    agent = agent_body(stage)
    cache = model.provider.cache
    # an automatic cache keeps the same bytes too, and nothing marks the end of the prefix
    head = stage.prompt.pieces[0] if cache == "automatic" else ""
    texts = [*(message.text for message in first), str(agent["tools"]) if agent else "", head]
    if sum(map(len, texts)) < least * CHARACTERS_A_TOKEN:
        return None
    slots = _slots(stage, model, work)
    goes_alone = _goes_alone(stage, model, work, slots)
    if not goes_alone and slots > 1 and agent is None and cache == "anthropic":
        return None  # all would pay for writing what none reads
    mark = prefix_mark(model.lane, first, agent, stage.schema)
    shards = 1
    if model.provider.limits.rpm and cache == "openai":
        shards = math.ceil(model.provider.limits.rpm / KEY_CALLS)
    names = [f"agac:{mark}" + (f":{shard}" if shards > 1 else "") for shard in range(shards)]
    keys = [SharedPrefix(len(first), name) for name in names]
    return Prefix(mark, [(key, PrefixGate() if goes_alone else None) for key in keys])


def _slots(stage: PlannedStage, model: PlannedModel, work: Work) -> int:
    """Returns how many calls of the stage go to the model at a time."""
    most = work.plan.concurrency
    return min(model.provider.limits.concurrency or most, stage.settings.concurrency or most)


def _goes_alone(stage: PlannedStage, model: PlannedModel, work: Work, slots: int) -> bool:
    """True if the first call with a prefix is to go alone, so that others find it in the cache."""
    if slots <= 1 or stage.settings.run_mode != "sync":
        return False
    return _has_rows(work, FEW_ROWS if model.provider.engine else 2 * slots)


def _has_rows(work: Work, least: int) -> bool:
    """True if an invocation has so many rows; those of the store are not counted."""
    if work.retry is None and work.batching.resume_run is None:
        with suppress(AgacError, OSError):  # the walk says what is wrong with them
            return sum(1 for _ in islice(work.reading.rows(), least)) >= least
    return True


async def engine_tokens(work: Work) -> Mapping[str, tuple[float, float] | None]:
    """Reads what engines of the user's own count that a plan's models are asked at
    (`engine_counts`), by address."""
    models = [model for stage in work.plan.asking for model in stage.models]
    engines = {model.provider.base_url: model.provider for model in models if model.provider.engine}
    return {
        address: await engine_counts(provider, work.env, work.redactor)
        for address, provider in engines.items()
    }


def serving_facts(
    prefixes: Mapping[str, Prefix],
    slots: int,
    totals: Totals,
    engines: Iterable[tuple[str, Any, Any]],
) -> ServingFacts:
    """Returns how well caches and slots were used in an invocation.

    `engines` are addresses with what their engines counted before and after it."""
    first_calls = [
        usage
        for prefix in prefixes.values()
        for _, gate in prefix.keys
        if gate is not None
        for usage in gate.first
    ]
    known = [
        (usage.input_tokens or 0, usage.cached_tokens)
        for usage in first_calls
        if usage.cached_tokens is not None
    ]
    seconds = totals.seconds
    return ServingFacts(
        known=(totals.prompts.tokens, totals.prompts.cached),
        first_calls=len(first_calls),
        first=tuple(sum(column) for column in zip((0, 0), *known, strict=True)),
        slots=slots,
        seconds=(round(slots * (seconds.last_at - seconds.first_at), 3), round(seconds.busy, 3)),
        engines=_counted_by_engines(engines),
        prefixes={stage: prefix.mark for stage, prefix in prefixes.items()},
    )


def _counted_by_engines(engines: Iterable[tuple[str, Any, Any]]) -> dict[str, tuple[float, ...]]:
    """Returns by address what engines counted during an invocation. One that was started again
    meanwhile is left out."""
    counted = {}
    for address, before, after in engines:
        if before is None or after is None:
            continue
        pair = tuple(now - then for then, now in zip(before, after, strict=True))
        if min(pair) >= 0:
            counted[address] = pair
    return counted
