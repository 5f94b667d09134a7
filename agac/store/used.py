"""Which results and endpoints are in use: found out in short readings, kept as one bit for each result."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any

from agac.store.sql import sql

RANGE = 8192
"""Keys in one reading: some hundredths of a second."""

Read = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]
"""Runs a reading and gives what it gives, as `Collector.read` does."""


class Bits:
    """A set of numbers from 0 to `last`: 1.25 MB for ten million."""

    def __init__(self, last: int) -> None:
        self._bytes = bytearray(last // 8 + 1)

    def add(self, number: int) -> None:
        """Puts a number in."""
        self._bytes[number >> 3] |= 1 << (number & 7)

    def __contains__(self, number: int) -> bool:
        return bool(self._bytes[number >> 3] & 1 << (number & 7))


async def used_results(read: Read, runs: Collection[int], with_left: Collection[int], workflow: str | None) -> Bits:
    """The results to which rows of these runs refer; rows that left the input only in the runs `with_left`. Also those
    that came in a batch, and that no row has taken up yet.

    With `workflow`, also those that rows of other workflows asked for and no longer refer to: their old content may
    come back, and would be asked again.
    """
    last_key, last_result, last_attempt = await read(_ends)
    used = Bits(last_result)
    async for rows in _ranges(read, "gc_references", last_key):
        for run, left, result in rows:
            if run in runs and (not left or run in with_left):
                used.add(result)
    async for rows in _ranges(read, "batches_results", await read(_last_task)):
        for run, result in rows:
            if run in runs:
                used.add(result)
    if workflow is not None:
        async for rows in _ranges(read, "gc_asked_elsewhere", last_attempt, workflow):
            for (result,) in rows:
                used.add(result)
    return used


async def unused_results(read: Read, used: Bits) -> AsyncIterator[list[int]]:
    """The results that are not in `used`, some thousand at a time."""
    _, last_result, _ = await read(_ends)
    async for rows in _ranges(read, "gc_results", last_result):
        unused = [result for (result,) in rows if result not in used]
        if unused:
            yield unused


async def used_endpoints(read: Read) -> set[int]:
    """The endpoints that results and attempts name."""
    _, last_result, last_attempt = await read(_ends)
    found: set[int] = set()
    for statement, last in (("gc_result_endpoints", last_result), ("gc_attempt_endpoints", last_attempt)):
        async for rows in _ranges(read, statement, last):
            found.update(endpoint for (endpoint,) in rows)
    return found


async def _ranges(read: Read, statement: str, last: int, workflow: str | None = None) -> AsyncIterator[Iterable[Any]]:
    for after in range(0, last, RANGE):
        values = {"after": after, "upto": after + RANGE, "workflow": workflow}
        yield await read(partial(_fetched, statement, values))


def _fetched(statement: str, values: dict[str, Any], connection: sqlite3.Connection) -> list[Any]:
    return connection.execute(sql(statement), values).fetchall()


def _ends(connection: sqlite3.Connection) -> tuple[int, int, int]:
    key, result, attempt = connection.execute(sql("gc_ends")).fetchone()
    return key, result, attempt


def _last_task(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute(sql("batches_last_task")).fetchone()
    return int(last)
