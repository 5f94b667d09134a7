"""The final rows of shards: put into packs in their order, and merged as one run would have written them."""

from __future__ import annotations

import heapq
import json
from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from agac.core.types import Shard
from agac.engine.export import PLAIN_MERGES, Outputs, filtered_lines, order_key, rows_of_run
from agac.engine.sharding.folder import ShardFolder, ShardManifest
from agac.store.db import Database
from agac.store.rows import ExportRow
from agac.store.runs import RunRecord

FULL_BYTES, LEAST_BYTES = 256_000_000, 256_000  # of text: one pack of each shard is in memory when they are merged
PAGE = 500  # rows that are given at a time


async def rows_with_keys(database: Database, run: RunRecord, root: Path) -> dict[str, AsyncIterator[tuple[Any, Any]]]:
    """All that files are made of: `rows`, those that `failed` beside them, and lines of `filtered` ones; each with a
    key, by which they are in order, and which no other part of the run has."""
    outputs = Outputs(run, root, 0)
    formed = outputs.tables or outputs.merge not in PLAIN_MERGES
    ended = await rows_of_run(database, run, outputs, formed=formed)

    async def written() -> AsyncIterator[tuple[Any, Any]]:
        async for rows in ended.rows(database, run.id):
            for row in rows:
                yield order_key(0, row.ordinal, row.id), row

    async def failed() -> AsyncIterator[tuple[Any, Any]]:
        async for level, rows in ended.failed(database, run.id):
            for row in rows:
                yield order_key(level, None if level else row.ordinal, row.id), row

    async def filtered() -> AsyncIterator[tuple[Any, Any]]:
        async for some in filtered_lines(database, run):
            for one in some:
                yield one[0], one

    return {"rows": written(), "failed": failed(), "filtered": filtered()}


async def put_rows(
    database: Database, run: RunRecord, root: Path, folder: ShardFolder, of: int
) -> dict[str, tuple[str, ...]]:
    """Puts all that a run's files are made of, of one of so many shards; gives the names of the packs, by what is in
    them, in their order."""
    packs, full = dict[str, tuple[str, ...]](), max(LEAST_BYTES, min(2_000_000, FULL_BYTES // of))
    for kind, rows in (await rows_with_keys(database, run, root)).items():
        names, lines, size = list[str](), list[bytes](), 0
        async for one in rows:
            lines.append(json.dumps(one).encode())
            size += len(lines[-1])
            if size > full:
                names.append(await folder.put_pack("rows", b"\n".join(lines)))
                lines, size = [], 0
        packs[kind] = (*names, *([await folder.put_pack("rows", b"\n".join(lines))] if lines else []))
    return packs


class ShardRows:
    """Reads the rows of all shards in the order of the input, as `FinalRows` reads those of a run."""

    def __init__(self, folder: ShardFolder, manifests: Sequence[ShardManifest]) -> None:
        self._folder, self._manifests = folder, manifests

    async def rows(self, _: Database, __: int) -> AsyncIterator[list[ExportRow]]:
        """All rows that are written, some hundred at a time."""
        async for some in self._pages("rows"):
            yield [ExportRow(*one) for one in some]

    async def failed(self, _: Database, __: int) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """The failed rows that `rows` does not come to."""
        async for some in self._pages("failed"):
            yield 0, [ExportRow(*one) for one in some]

    async def filtered(self) -> AsyncIterator[list[tuple[Any, str]]]:
        """The lines of rows that a stage made leave, each after its key."""
        async for some in self._pages("filtered"):
            yield some

    async def _pages(self, kind: str) -> AsyncIterator[list[Any]]:
        """What packs of a kind hold, merged by the keys, which no two shards share."""
        waiting, page = [], []
        for number, manifest in enumerate(self._manifests):
            lines = self._lines(Shard(manifest.status.number, manifest.status.of), manifest.packs.get(kind, ()))
            if (first := await anext(lines, None)) is not None:
                waiting.append((first[0], number, first[1], lines))
        heapq.heapify(waiting)
        while waiting:
            _, number, told, lines = waiting[0]
            page.append(told)
            if (more := await anext(lines, None)) is None:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, (more[0], number, more[1], lines))
            if len(page) == PAGE or not waiting:
                yield page
                page = []

    async def _lines(self, shard: Shard, packs: Sequence[str]) -> AsyncIterator[tuple[Any, Any]]:
        for name in packs:
            remedy = f"restore it, or move it away and run shard {shard} again, which costs nothing"
            for line in BytesIO(await self._folder.pack("rows", name, remedy)):
                yield json.loads(line)
