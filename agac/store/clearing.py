"""One clearing of the store: which runs go, in which order, and what it came to."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from agac.store.batches import runs_in_batches
from agac.store.collect import Collector
from agac.store.db import Database, translated
from agac.store.history import RunLine, run_lines
from agac.store.lease import lease_held
from agac.store.runs import definition_of
from agac.store.sql import sql
from agac.store.used import Bits, Read, unused_results, used_endpoints, used_results

_log = logging.getLogger("agac.store")


@dataclass(frozen=True, slots=True)
class Doomed:
    """A run that is dropped, and how many rows it has."""

    line: RunLine
    rows: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was dropped, or would be: runs with their rows, rows of `kept` runs that left the input, those that stages
    made of them and no longer make, results."""

    kept: list[RunLine] = field(default_factory=list)
    dropped: list[Doomed] = field(default_factory=list)
    left_rows: int = 0
    gone_rows: int = 0
    results: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs that go, and those that stay; of `tidied` ones the rows that left the input go too."""

    doomed: list[RunLine]
    kept: list[RunLine]
    tidied: set[int]


def choose(lines: list[RunLine], keep: int, workflow: str | None, needed: Collection[int] = ()) -> Choice:
    """Keeps of each workflow the `keep` runs last worked on, `lines` being in that order; with `workflow` only of it.

    The newest run over the whole input stays in any case: nobody wants a preview to cost him a night's answers. So do
    the runs that are `needed`, with all their rows: what is open in a batch is paid for.
    """
    concerned = [line for line in lines if workflow in (None, line.workflow)]
    stay = {line.id for line in lines} - {line.id for line in concerned}
    tidied: set[int] = set()
    for name in {line.workflow for line in concerned}:
        own = [line for line in concerned if line.workflow == name]
        whole = [line for line in own if not line.partial]
        tidied |= {line.id for line in [*own[:keep], *whole[:1]]}
    stay |= tidied | set(needed)
    tidied -= set(needed)
    doomed = [line for line in lines if line.id not in stay]
    return Choice(doomed, [line for line in lines if line.id in stay], tidied)


async def would_clear(database: Database, keep: int, workflow: str | None) -> Cleared:
    """What `clear` would drop now. Changes nothing."""

    async def read(work: Callable[[sqlite3.Connection], Any]) -> Any:
        with translated(database.path):
            return await database.reader.at_once(work)

    choice = choose(await run_lines(database), keep, workflow, await runs_in_batches(database))
    dropped = [Doomed(line, (await _row_count(read, line.id))[0]) for line in choice.doomed]
    tidied = [await _row_count(read, number) for number in choice.tidied]
    used = await _used(read, choice, workflow)
    results = [len(some) async for some in unused_results(read, used)]
    left, gone = sum(left for _, left, _ in tidied), sum(gone for _, _, gone in tidied)
    return Cleared(choice.kept, dropped, left, gone, sum(results))


async def clear(database: Database, keep: int, workflow: str | None, clock: Callable[[], float]) -> Cleared:
    """Keeps of each workflow (or of the one named) the `keep` runs last worked on; drops what no kept run needs.

    Gives free space back to the file system. Raises LeaseHeld while any workflow is at work: results are shared.
    """
    async with AsyncExitStack() as stack:
        with translated(database.path):
            names = [name for (name,) in await database.reader.execute_fetchall(sql("leases_known"))]
        leases = [await stack.enter_async_context(lease_held(database, name, clock)) for name in names]
        choice = choose(await run_lines(database), keep, workflow, await runs_in_batches(database))
        if not choice.kept:
            return Cleared()
        collector = Collector(database, leases, clock)
        about = {"keep_runs": keep, "workflow": workflow, "dropped": [line.id for line in choice.doomed]}
        await collector.begin(choice.kept[0].id, about)
        cleared = await _drop(database, collector, choice, workflow)
        left = {"left_rows": cleared.left_rows, "gone_rows": cleared.gone_rows}
        await collector.end({**about, "results": cleared.results, **left})
        await collector.give_back_space()
    return cleared


async def _drop(database: Database, collector: Collector, choice: Choice, workflow: str | None) -> Cleared:
    cleared = Cleared(choice.kept)
    for line in choice.doomed:
        stages = [stage["name"] for stage in (await definition_of(database, line.id))["stages"]]
        _log.info("dropping run %d of %s", line.id, line.workflow)
        cleared.dropped.append(Doomed(line, await collector.drop_run(line.id, stages)))
    left = [await collector.drop_left_rows(number) for number in sorted(choice.tidied)]
    await collector.drop_batch_tasks()
    used = await _used(collector.read, choice, workflow)
    results = 0
    async for some in unused_results(collector.read, used):
        await collector.drop_results(some)
        results += len(some)
    await collector.drop_unused(await used_endpoints(collector.read))
    rows, gone = sum(rows for rows, _ in left), sum(gone for _, gone in left)
    return replace(cleared, left_rows=rows, gone_rows=gone, results=results)


async def _used(read: Read, choice: Choice, workflow: str | None) -> Bits:
    kept = {line.id for line in choice.kept}
    return await used_results(read, kept, kept - choice.tidied, workflow)


async def _row_count(read: Read, run: int) -> tuple[int, int, int]:
    def count(connection: sqlite3.Connection) -> tuple[int, int, int]:
        rows, left, gone = connection.execute(sql("gc_row_count"), (run,)).fetchone()
        return rows, left, gone

    found: tuple[int, int, int] = await read(count)
    return found
