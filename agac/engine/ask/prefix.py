"""What all requests of a stage begin with: who warms a cache with it, and how much of it was found
there."""

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
"""Rows from which a call that goes alone pays on an engine of one's own, which computes what is
not in its cache for all of the others beside each other. Where a cache is paid for, it is twice as
many as go at a time."""

KEY_CALLS = 12
"""Calls a minute with one key of OpenAI's cache: of more, about 15, some go to machines without it
(developers.openai.com/api/docs/guides/prompt-caching, read November 2026)."""

PATIENCE = 20.0
"""Seconds after which the prefix is taken to be in the cache although its first call, which is not
streamed, still writes its answer."""


class PrefixGate:
    """Lets the first call with a prefix go alone. With its first token the prefix is in the cache,
    and all others go; one that fails makes way for the next. `first` is what those took that went
    alone."""

    def __init__(self) -> None:
        self.warm = False
        self.first = list[Usage]()
        self._alone = CallLimit(1)
        self._late: asyncio.TimerHandle | None = None

    async def enter(self) -> bool:
        """Waits until it may go; whether it goes alone."""
        await self._alone.enter()
        if not self.warm:
            self._late = asyncio.get_running_loop().call_later(PATIENCE, self.open)
        return not self.warm

    def open(self) -> None:
        """The first token came."""
        if not self.warm:
            self.warm = True
            self._alone.leave(math.inf)

    def leave(self, answer: Reply | Fault | None) -> None:
        """A call that went alone is over; `answer` is what it brought."""
        if self._late is not None:
            self._late.cancel()
        if isinstance(answer, Reply):
            self.open()
            self.first.append(answer.usage)
        self._alone.leave()


@dataclass(slots=True)
class Prefix:
    """The prefix of a stage's requests to one model, named `mark`. `keys` of a cache have gates;
    None: no wait."""

    mark: str
    keys: list[tuple[SharedPrefix, PrefixGate | None]]

    def of(self, request: Request) -> tuple[SharedPrefix, PrefixGate | None]:
        """The key of a request: rows are spread over all, a conversation stays with its own."""
        if len(self.keys) == 1:
            return self.keys[0]
        row = request.messages[self.keys[0][0].messages].text
        return self.keys[zlib.crc32(row.encode("utf-8", "replace")) % len(self.keys)]


def _least(stage: PlannedStage, model: PlannedModel) -> int | None:
    """Tokens that all requests have to begin with to be kept in a cache; None: they are not to
    be."""
    is_same = stage.settings.warm_prefix and not any(
        one.content.placeholders for one in stage.examples
    )
    is_same = is_same and stage.runtime is None
    if is_same:
        return model.provider.least_cached(model.model)
    return None


def prefix_of(stage: PlannedStage, model: PlannedModel, work: Work) -> Prefix | None:
    """The prefix that is worth asking a cache for; None: it is too short, or there is none."""
    least = _least(stage, model)
    if least is None:
        return None
    first = opening(stage, {})
    agent = agent_body(stage)
    cache = model.provider.cache
    # of the same bytes too, and nothing marks its end
    head = stage.prompt.pieces[0] if cache == "automatic" else ""
    texts = [*(one.text for one in first), str(agent["tools"]) if agent else "", head]
    if sum(map(len, texts)) < least * CHARACTERS_A_TOKEN:
        return None
    limits = model.provider.limits
    most = work.plan.concurrency
    slots = min(limits.concurrency or most, stage.settings.concurrency or most)
    rows = FEW_ROWS if model.provider.engine else 2 * slots
    alone = slots > 1 and stage.settings.run_mode == "sync" and _has_rows(work, rows)
    if not alone and slots > 1 and agent is None and cache == "anthropic":
        return None  # all would pay for writing what none reads
    mark = prefix_mark(model.lane, first, agent, stage.schema)
    if limits.rpm and cache == "openai":
        shards = math.ceil(limits.rpm / KEY_CALLS)
    else:
        shards = 1
    keys = (
        SharedPrefix(len(first), f"agac:{mark}" + (f":{shard}" if shards > 1 else ""))
        for shard in range(shards)
    )
    return Prefix(mark, [(key, PrefixGate() if alone else None) for key in keys])


def _has_rows(work: Work, least: int) -> bool:
    """Whether an invocation has so many rows; those of the store are not counted."""
    if work.retry is None and work.batching.resume_run is None:
        with suppress(AgacError, OSError):  # the walk says what is wrong with them
            return sum(1 for _ in islice(work.reading.rows(), least)) >= least
    return True


async def engine_tokens(work: Work) -> Mapping[str, tuple[float, float] | None]:
    """What engines of the user's own count that a plan's models are asked at (`engine_counts`), by
    address."""
    asked = (
        one.provider for stage in work.plan.asking for one in stage.models if one.provider.engine
    )
    rows = {one.base_url: one for one in asked}
    return {
        address: await engine_counts(row, work.env, work.redactor) for address, row in rows.items()
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
