"""The state of batches at their providers: asked for, and kept in the store. No batch is moved to another step here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from agac.api.project import Project, embedded_address
from agac.core.errors import AgacError
from agac.core.types import Fault
from agac.providers.batch import BatchApi, BatchError, ProviderBatch
from agac.providers.batch_apis import open_batch_api
from agac.providers.provider import Provider
from agac.store.batches import (
    BatchRecord,
    Observation,
    write_seen,
)
from agac.store.db import Database

AT_ONCE = 8
"""Requests to one provider that may be under way: they take a moment each, and its limits are not ours alone."""


async def ask_providers(opened: Project, batches: Sequence[BatchRecord]) -> tuple[dict[int, ProviderBatch], list[str]]:
    """How submitted batches stand, by number; and why some could not be asked for, each reason once."""
    seen: dict[int, ProviderBatch] = {}
    reasons: dict[str, None] = {}
    async with AsyncExitStack() as stack:
        for name in dict.fromkeys(one.provider for one in batches):
            own = [one for one in batches if one.provider == name]
            try:
                provider = await _reachable(opened, name, stack)
                api = open_batch_api(provider, opened.redactor())
            except AgacError as error:
                reasons[f"{name} could not be asked: {error.message}"] = None
                continue
            stack.push_async_callback(api.close)
            for one, found in zip(own, await _look(api, own), strict=True):
                if isinstance(found, ProviderBatch):
                    seen[one.id] = found
                else:
                    reasons[_why_not(one, found, provider)] = None
    return seen, list(reasons)


async def _reachable(opened: Project, name: str, stack: AsyncExitStack) -> Provider:
    """The provider, started where it is agac's own. Raises AgacError."""
    provider = opened.providers.get(name)
    if provider is None:
        raise AgacError("it is no longer in agac.yml")
    if provider.missing_variables:
        raise AgacError(f"{', '.join(provider.missing_variables)} is not set")
    if not provider.embedded:
        return provider
    return replace(provider, base_url=await stack.enter_async_context(embedded_address(opened.root)))


async def _look(api: BatchApi, batches: Sequence[BatchRecord]) -> list[ProviderBatch | Fault]:
    room = asyncio.Semaphore(AT_ONCE)

    async def look(one: BatchRecord) -> ProviderBatch | Fault:
        assert one.provider_id is not None
        async with room:
            return await api.look(one.provider_id)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(look(one)) for one in batches]
    return [task.result() for task in tasks]


def _why_not(one: BatchRecord, fault: Fault, provider: Provider) -> str:
    why = f"batch {one.id} could not be asked for at {one.provider}: {fault.message}"
    return why if one.account == provider.account else f"{why}; it was submitted with another key or to another address"


async def keep(
    database: Database, batches: Sequence[BatchRecord], seen: Mapping[int, ProviderBatch], now: float
) -> None:
    """Stores what was seen of these batches."""
    found = [_observed(one, seen[one.id], now) for one in batches if one.id in seen]
    await write_seen(database, found)


def objections(seen: Mapping[int, ProviderBatch]) -> dict[int, str]:
    """Why providers refused batches as a whole, by batch."""
    return {number: "; ".join(map(_objection, one.errors)) for number, one in seen.items() if one.errors}


def _objection(error: BatchError) -> str:
    place = f"line {error.line}: " if error.line is not None else ""
    return f"{place}{error.message} ({error.code})"


def _observed(one: BatchRecord, seen: ProviderBatch, now: float) -> Observation:
    moved = (one.status, one.done, one.failed) != (seen.state.value, seen.done, seen.failed)
    return Observation(
        id=one.id,
        provider_id=seen.id,
        status=seen.state.value,
        word=seen.word,
        total=seen.total,
        done=seen.done,
        failed=seen.failed,
        moved=moved,
        expires_at=seen.expires_at,
        results_until=seen.results_until,
        ended_at=seen.ended_at,
        now=now,
    )
