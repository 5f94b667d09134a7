"""The input's rows in chunks, with repeated ids judged as a run would judge them, without storing anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, closing
from itertools import islice

from agac.core.types import Row, RowId
from agac.engine.intake import CHUNK_ROWS, read_chunk
from agac.spec.workflow import InputSpec, OnDuplicateId
from agac.store.batch import NewRow
from agac.store.rows import SeenIds, State

Rows = Callable[[], Iterator[Row]]
"""Begins to read the input, each time it is called."""


async def judged_chunks(rows: Rows, source: InputSpec) -> AsyncGenerator[tuple[list[NewRow], int], None]:
    """Each chunk, and how many further rows would be dropped. Reads the input twice where an id's last row counts."""
    with ExitStack() as stack:
        seen = stack.enter_context(closing(SeenIds())) if source.id_field else None
        all_ids = None
        if seen is not None and source.on_duplicate_id == "last":
            all_ids = stack.enter_context(closing(SeenIds()))
            await asyncio.to_thread(_count, rows(), all_ids)
        reader = rows()
        while chunk := await asyncio.to_thread(read_chunk, reader):
            if seen is None:
                yield chunk, 0
            else:
                times = await asyncio.to_thread(_times, [new.row.id for new in chunk], seen, all_ids)
                kept = _judged(chunk, times, source.on_duplicate_id)
                yield kept, len(chunk) - len(kept)


def _count(rows: Iterator[Row], all_ids: SeenIds) -> None:
    while ids := [row.id for row in islice(rows, CHUNK_ROWS)]:
        all_ids.times(ids)


def _times(ids: list[RowId], seen: SeenIds, all_ids: SeenIds | None) -> list[int]:
    """How often each id came before; or comes after, where `all_ids` knows how often it comes."""
    before = seen.times(ids)
    if all_ids is None:
        return before
    return [total - times - 1 for total, times in zip(all_ids.totals(ids), before, strict=True)]


def _judged(chunk: list[NewRow], times: list[int], on_duplicate: OnDuplicateId) -> list[NewRow]:
    kept = []
    for new, others in zip(chunk, times, strict=True):
        if others and on_duplicate in ("first", "last"):
            continue
        if others and on_duplicate == "suffix":
            new.row = new.row._replace(id=f"{new.row.id}#{others + 1}")
        elif others:
            new.state = State.FAILED
        kept.append(new)
    return kept
