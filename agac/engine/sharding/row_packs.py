"""Puts the final rows of shards into packs, and merges them as one run would have written them."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeVar

from agac.core.errors import AgacError, ErrorType
from agac.core.json_text import strict_json
from agac.core.types import Shard
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

FULL_BYTES = 256_000_000
"""Bytes of text of one pack of each shard together: they are in memory when they are merged."""

LEAST_BYTES = 256_000
"""Bytes of text that a full pack has at least."""

PAGE = 500
"""Rows that are yielded at a time."""


async def rows_with_keys(
    database: Database, run: RunRecord, root: Path
) -> dict[Kind, AsyncIterator[tuple[Any, Any]]]:
    """Reads all that files are made of: `rows`, those that `failed` on other levels, and lines of
    `filtered` ones.

    Each has a key that no other part of the run has, and they are in the order of the keys."""
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
        async for lines in filtered_lines(database, run):
            for line in lines:
                yield line[0], line

    return {"rows": written(), "failed": failed(), "filtered": filtered()}


def _written(row: ExportRow) -> Sequence[Any]:
    """Returns a row as a line holds it: without sources, as older versions wrote it, if none are
    wanted."""
    return row if row.sources is not None else row[:-1]


async def put_rows(
    database: Database, run: RunRecord, root: Path, folder: ShardFolder, of: int
) -> dict[Kind, tuple[str, ...]]:
    """Puts all that the files of a shard are made of into packs; `of` is the number of shards.

    Returns the names of the packs in their order, by what is in them."""
    packs = dict[Kind, tuple[str, ...]]()
    full = max(LEAST_BYTES, min(2_000_000, FULL_BYTES // of))
    for kind, rows in (await rows_with_keys(database, run, root)).items():
        names = list[str]()
        lines = list[bytes]()
        size = 0
        async for row in rows:
            lines.append(json.dumps(row).encode())
            size += len(lines[-1])
            if size > full:
                names.append(await folder.put_pack("rows", b"\n".join(lines)))
                lines = []
                size = 0
        if lines:
            names.append(await folder.put_pack("rows", b"\n".join(lines)))
        packs[kind] = tuple(names)
    return packs


class ShardRows:
    """Reads the rows of all shards in the order of the input, as `FinalRows` reads those of a
    run."""

    def __init__(self, folder: ShardFolder, manifests: Sequence[ShardManifest]) -> None:
        self._folder = folder
        self._manifests = manifests

    async def rows(self, _: Database, __: int) -> AsyncIterator[list[ExportRow]]:
        """Reads all rows that are written, some hundred at a time."""
        async for page in self._pages("rows", _row):
            yield page

    async def failed(self, _: Database, __: int) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """Reads the failed rows that `rows` does not reach."""
        async for page in self._pages("failed", _row):
            yield 0, page

    async def filtered(self) -> AsyncIterator[list[tuple[Any, str]]]:
        """Reads the lines of rows that a stage filtered out, each with its key before it."""
        async for page in self._pages("filtered", _filtered):
            yield page

    async def _pages(self, kind: Kind, read: Callable[[Any], T]) -> AsyncIterator[list[T]]:
        """Reads the packs of a kind, merged by the keys, which no two shards share."""
        waiting = []
        page = list[T]()
        for number, manifest in enumerate(self._manifests):
            lines = self._lines(manifest.status.shard, manifest.packs.get(kind, ()), read)
            first = await anext(lines, None)
            if first is not None:
                waiting.append((first[0], number, first[1], lines))
        heapq.heapify(waiting)
        while waiting:
            _, number, entry, lines = waiting[0]
            page.append(entry)
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
        """Reads the lines of packs, each with its key before it. Raises AgacError for a line that
        no shard writes."""
        remedy = f"restore it, or move it away and run shard {shard} again, which costs nothing"
        for name in packs:
            for line in BytesIO(await self._folder.pack("rows", name, remedy)):
                try:
                    key, entry = strict_json(line, MAX_VALUES)
                    yield _key(key), read(entry)
                except (ValueError, TypeError) as error:
                    what = (
                        f"{self._folder.remote.url}/{self._folder.path}/rows/{name}.pack "
                        "cannot be used"
                    )
                    raise AgacError(
                        f"{what}: a line is no row: {str(error)[:100]}", remedy=remedy
                    ) from None


# Another machine wrote the lines: their texts come into output files as they are.

_MOST = 1 << 62
_HOW = re.compile(r"[a-z_ ]{1,30}|[0-9]{1,9}/[0-9]{1,9}( of [0-9]{1,9})?")
_STATES = frozenset(State)
_ERRORS = frozenset(ErrorType)


def _key(value: Any) -> tuple[int | str, ...]:
    """Reads a key of `output_lines.order_key`. Raises ValueError."""
    if not _is_key(value):
        raise ValueError("its key is none")
    return tuple(value)


def _is_key(value: Any) -> bool:
    """True for `[level, ordinal]` and `[level, true if the id is a text, id]`."""
    if not isinstance(value, list) or not 2 <= len(value) <= 3:
        return False
    if type(value[0]) is not int or not isinstance(value[1], int):
        return False
    if len(value) == 2:
        return True
    return isinstance(value[2], int | str) and isinstance(value[2], str) == value[1]


def _row(value: Any) -> ExportRow:
    """Reads a row of an export. Raises ValueError and TypeError."""
    row = ExportRow(*value)
    if not _is_sound(row):
        raise ValueError("it has values that no row has")
    for sources in (row.sources or {}).values():
        refuse_unsound_sources(sources)
    strict_json(row.data, MAX_VALUES)
    if row.value is not None and row.state != State.FAILED:
        strict_json(row.value, MAX_VALUES)
    return row


def _is_sound(row: ExportRow) -> bool:
    """True if the values of a row are ones that rows have."""
    texts = (row.value, row.error_message)
    ways: list[Any] = [*(row.how or {}).values()]
    checks = [
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
    return all(checks)


def _filtered(value: Any) -> tuple[Any, str]:
    """Reads a line of filtered.jsonl with its key before it. Raises ValueError and TypeError."""
    key, line = value
    if not isinstance(strict_json(line, MAX_VALUES), dict) or "\n" in line:
        raise ValueError("it is no line of a file")
    return _key(key), line


def _is_number(value: Any) -> bool:
    """True for a whole number that the store can hold."""
    return type(value) is int and -_MOST < value < _MOST
