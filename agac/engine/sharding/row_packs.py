"""The final rows of shards: put into packs in their order, and merged as one run would have
written them."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeVar

from agac.core.errors import AgacError, ErrorType
from agac.core.types import Shard, strict_json
from agac.engine.output.export import rows_of_run
from agac.engine.output.output_lines import filtered_lines, order_key
from agac.engine.output.run_outputs import PLAIN_MERGES, Outputs
from agac.engine.sharding.folder import ShardFolder, ShardManifest
from agac.store.db import Database
from agac.store.packs import MAX_VALUES, refuse_unsound_sources
from agac.store.rows import ExportRow, State
from agac.store.runs import RunRecord

T = TypeVar("T")
Kind = Literal["rows", "failed", "filtered"]

FULL_BYTES = 256_000_000  # of text: one pack of each shard is in memory when they are merged
LEAST_BYTES = 256_000
PAGE = 500  # rows that are given at a time


async def rows_with_keys(
    database: Database, run: RunRecord, root: Path
) -> dict[Kind, AsyncIterator[tuple[Any, Any]]]:
    """All that files are made of: `rows`, those that `failed` beside them, and lines of `filtered`
    ones; each with a key, by which they are in order, and which no other part of the run has."""
    outputs = Outputs(run, root, 0)
    formed = outputs.tables or outputs.merge not in PLAIN_MERGES
    ended = await rows_of_run(database, run, outputs, formed=formed)

    async def written() -> AsyncIterator[tuple[Any, Any]]:
        async for rows in ended.rows(database, run.id):
            for row in rows:
                yield order_key(0, row.ordinal, row.id), _written(row)

    async def failed() -> AsyncIterator[tuple[Any, Any]]:
        async for level, rows in ended.failed(database, run.id):
            for row in rows:
                yield order_key(level, None if level else row.ordinal, row.id), _written(row)

    async def filtered() -> AsyncIterator[tuple[Any, Any]]:
        async for some in filtered_lines(database, run):
            for one in some:
                yield one[0], one

    return {"rows": written(), "failed": failed(), "filtered": filtered()}


def _written(row: ExportRow) -> Sequence[Any]:
    """A row as a line holds it: as before there were sources, where none are wanted."""
    return row if row.sources is not None else row[:-1]


async def put_rows(
    database: Database, run: RunRecord, root: Path, folder: ShardFolder, of: int
) -> dict[Kind, tuple[str, ...]]:
    """Puts all that a run's files are made of, of one of so many shards; gives the names of the
    packs, by what is in them, in their order."""
    packs = dict[Kind, tuple[str, ...]]()
    full = max(LEAST_BYTES, min(2_000_000, FULL_BYTES // of))
    for kind, rows in (await rows_with_keys(database, run, root)).items():
        names = list[str]()
        lines = list[bytes]()
        size = 0
        async for one in rows:
            lines.append(json.dumps(one).encode())
            size += len(lines[-1])
            if size > full:
                names.append(await folder.put_pack("rows", b"\n".join(lines)))
                lines = []
                size = 0
        packs[kind] = (
            *names,
            *([await folder.put_pack("rows", b"\n".join(lines))] if lines else []),
        )
    return packs


class ShardRows:
    """Reads the rows of all shards in the order of the input, as `FinalRows` reads those of a
    run."""

    def __init__(self, folder: ShardFolder, manifests: Sequence[ShardManifest]) -> None:
        self._folder = folder
        self._manifests = manifests

    async def rows(self, _: Database, __: int) -> AsyncIterator[list[ExportRow]]:
        """All rows that are written, some hundred at a time."""
        async for some in self._pages("rows", _row):
            yield some

    async def failed(self, _: Database, __: int) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """The failed rows that `rows` does not come to."""
        async for some in self._pages("failed", _row):
            yield 0, some

    async def filtered(self) -> AsyncIterator[list[tuple[Any, str]]]:
        """The lines of rows that a stage made leave, each after its key."""
        async for some in self._pages("filtered", _filtered):
            yield some

    async def _pages(self, kind: Kind, read: Callable[[Any], T]) -> AsyncIterator[list[T]]:
        """What packs of a kind hold, merged by the keys, which no two shards share."""
        waiting = []
        page = list[T]()
        for number, manifest in enumerate(self._manifests):
            lines = self._lines(manifest.status.shard, manifest.packs.get(kind, ()), read)
            first = await anext(lines, None)
            if first is not None:
                waiting.append((first[0], number, first[1], lines))
        heapq.heapify(waiting)
        while waiting:
            _, number, told, lines = waiting[0]
            page.append(told)
            more = await anext(lines, None)
            if more is None:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, (more[0], number, more[1], lines))
            if len(page) == PAGE or not waiting:
                yield page
                page = []

    async def _lines(
        self, shard: Shard, packs: Sequence[str], read: Callable[[Any], T]
    ) -> AsyncIterator[tuple[tuple[int | str, ...], T]]:
        """The lines of packs, each after its key. Raises AgacError for one that no shard writes."""
        remedy = f"restore it, or move it away and run shard {shard} again, which costs nothing"
        for name in packs:
            for line in BytesIO(await self._folder.pack("rows", name, remedy)):
                try:
                    key, told = strict_json(line, MAX_VALUES)
                    yield _key(key), read(told)
                except (ValueError, TypeError) as error:
                    what = (
                        f"{self._folder.remote.url}/{self._folder.path}/rows/{name}.pack "
                        "cannot be used"
                    )
                    raise AgacError(
                        f"{what}: a line is no row: {str(error)[:100]}", remedy=remedy
                    ) from None


# What a line holds, which another machine wrote: its texts come into output files as they are.

_MOST = 1 << 62
_HOW = re.compile(r"[a-z_ ]{1,30}|[0-9]{1,9}/[0-9]{1,9}( of [0-9]{1,9})?")
_STATES = frozenset(State)
_ERRORS = frozenset(ErrorType)


def _key(told: Any) -> tuple[int | str, ...]:
    """The key of `export.order_key`. Raises ValueError."""
    if (
        isinstance(told, list)
        and 2 <= len(told) <= 3
        and all(isinstance(one, int | str) for one in told)
    ):
        level, place, *row_id = told
        is_text = [isinstance(one, str) for one in row_id]
        if type(level) is int and isinstance(place, int) and is_text in ([], [place]):
            return tuple(told)
    raise ValueError("its key is none")


def _row(told: Any) -> ExportRow:
    """A row of an export. Raises ValueError and TypeError."""
    row = ExportRow(*told)
    texts = row.value, row.error_message
    ways: list[Any] = [*(row.how or {}).values()]
    is_sound = [
        row.ordinal is None or _is_number(row.ordinal),
        isinstance(row.id, str) or _is_number(row.id),
        row.state in _STATES,
        row.error_type is None or row.error_type in _ERRORS,
        all(text is None or isinstance(text, str) for text in texts),
        _is_number(row.key),
        row.form is None or isinstance(row.form, dict),
        row.made in (0, 1),
        all(isinstance(way, str) and _HOW.fullmatch(way) for way in ways),
    ]
    if not all(is_sound):
        raise ValueError("it has values that no row has")
    for sources in (row.sources or {}).values():
        refuse_unsound_sources(sources)
    strict_json(row.data, MAX_VALUES)
    if row.value is not None and row.state != State.FAILED:
        strict_json(row.value, MAX_VALUES)
    return row


def _filtered(told: Any) -> tuple[Any, str]:
    """A line of filtered.jsonl after its key. Raises ValueError and TypeError."""
    key, line = told
    if not isinstance(strict_json(line, MAX_VALUES), dict) or "\n" in line:
        raise ValueError("it is no line of a file")
    return _key(key), line


def _is_number(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST
