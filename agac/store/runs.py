"""Runs, their invocations and their roll-ups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from agac.core.keys import canonical, snapshot
from agac.store.db import Database, translated
from agac.store.sql import sql

KILLED = 137
"""The exit code that is noted for an invocation that could not say one: 128 + SIGKILL."""


UNWRITTEN = [-1, -1]
"""In `exported_files` a table that could not be written: no file ever is so, so that the next run tries again."""


class Invocation(NamedTuple):
    """One call of `agac run`. `ended_at` is None while it runs, and for ever when it was killed."""

    id: int
    at: float
    ended_at: float | None
    exit_code: int | None
    body: dict[str, Any]


class RunRecord(NamedTuple):
    """A run as it is stored. Times in seconds since 1970, UTC.

    `outputs` is what is written beside the JSON files, and how. `exported_files` is what the output files were when
    they showed `exported_revision`: name → [bytes, mtime in ns].
    """

    id: int
    workflow: str
    selection: dict[str, Any]
    output_dir: str
    include_input: bool
    outputs: dict[str, Any]
    fresh_since: float | None
    created_at: float
    finished_at: float | None
    revision: int
    exported_revision: int | None
    exported_files: dict[str, list[int]]
    invocation: Invocation | None


class Count(NamedTuple):
    """One roll-up: how many tasks (or rows, or calls) ended in this way, and what they took."""

    stage: str
    outcome: str
    error_type: str
    model: str
    tasks: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: float
    unpriced: int
    simulated: int
    held_cost: float
    held_tokens: int


class RunIdentity(NamedTuple):
    """What makes two invocations the same run."""

    workflow: str
    definition_hash: bytes
    selection: str


async def keep_definition(database: Database, identity: RunIdentity, body: str, now: float) -> None:
    """Stores the resolved workflow, once for all runs that share it."""
    assert database.writer is not None
    with translated(database.path):
        values = (identity.definition_hash, identity.workflow, body, now)
        await database.writer.execute(sql("definition_keep"), values)


async def newest_run(database: Database, identity: RunIdentity) -> int | None:
    """The run that `agac run` continues."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("run_newest"), identity))
    return int(found[0][0]) if found else None


class OutputPlace(NamedTuple):
    """Where and how a run's outputs are written; no part of its identity. `outputs` is canonical JSON."""

    output_dir: str
    include_input: bool
    outputs: str


async def make_run(database: Database, identity: RunIdentity, where: OutputPlace, *, fresh: bool, now: float) -> int:
    """A new run; `fresh`: only results made from now on are reused in it."""
    assert database.writer is not None
    with translated(database.path):
        values = (*identity, *where, now if fresh else None, now)
        cursor = await database.writer.execute(sql("run_make"), values)
    assert cursor.lastrowid is not None
    return cursor.lastrowid


async def retarget_run(database: Database, run: int, where: OutputPlace) -> None:
    """Notes where this invocation wants its outputs, and how."""
    values = {"dir": where.output_dir, "include": where.include_input, "outputs": where.outputs, "run": run}
    await write(database, "run_retarget", values)


class Written(NamedTuple):
    """What a run left in its output folder, as `RunRecord.exported_files` has it. `shown`: no run wrote there since."""

    run: int
    shown: bool
    files: dict[str, list[int]]


async def files_written(database: Database, output_dir: str) -> list[Written]:
    """What the runs that write into a folder left there."""
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql("run_files"), (output_dir,))
    return [Written(run, bool(shown), json.loads(files)) for run, shown, files in found]


async def begin_invocation(database: Database, run: int, body: dict[str, Any], now: float) -> int:
    """Records that an invocation begins, and gives its number."""
    assert database.writer is not None
    with translated(database.path):
        cursor = await database.writer.execute(sql("event_make"), (run, "invocation", now, canonical(body)))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


async def end_invocation(database: Database, event: int, exit_code: int, body: dict[str, Any], now: float) -> None:
    """Records how an invocation ended."""
    await write(database, "event_end", (now, exit_code, canonical(body), event))


async def last_invocation(database: Database, workflow: str) -> tuple[int, Invocation] | None:
    """The newest invocation of a workflow, whichever of its runs it was about, and the number of that run."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("invocation_last"), (workflow,)))
    if not found:
        return None
    run, event, at, ended_at, exit_code, body = found[0]
    return run, Invocation(event, at, ended_at, exit_code, json.loads(body))


async def write(database: Database, statement: str, values: Sequence[Any] | dict[str, Any]) -> None:
    """Runs one small writing statement by name, in a transaction of its own."""
    assert database.writer is not None
    with translated(database.path):
        await database.writer.execute(sql(statement), values)


async def read_run(database: Database, run: int) -> RunRecord | None:
    """A run with its last invocation, or None."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("run_read"), (run,)))
    if not found:
        return None
    row = found[0]
    fresh_since, created_at, finished_at, revision, exported_revision, files, event, at, ended_at, code, body = row[6:]
    last = Invocation(event, at, ended_at, code, json.loads(body)) if event is not None else None
    return RunRecord(
        row[0], row[1], json.loads(row[2]), row[3], bool(row[4]), json.loads(row[5]),
        fresh_since, created_at, finished_at, revision, exported_revision, json.loads(files or "{}"), last,
    )  # fmt: skip


async def run_ids(database: Database, workflow: str | None) -> list[int]:
    """The runs of a workflow, or of all, newest first."""
    statement, values = ("run_ids", ()) if workflow is None else ("run_ids_of_workflow", (workflow,))
    with translated(database.path):
        return [row[0] for row in await database.reader.execute_fetchall(sql(statement), values)]


async def was_read(database: Database, run: int) -> bool:
    """Whether an invocation of the run read its input to the end."""
    with translated(database.path):
        return bool(await database.reader.execute_fetchall(sql("run_was_read"), (run,)))


async def note_reading(database: Database, run: int, at: float | None) -> None:
    """A pass over the input begins (`at` None), or came to its end."""
    await write(database, "run_reading", (at, run))


async def input_read_at(database: Database, run: int) -> float | None:
    """When the input of a run was read to its end, in seconds since 1970; None: it was not, or is being read."""
    with translated(database.path):
        ((at,),) = await database.reader.execute_fetchall(sql("run_read_at"), (run,))
    return None if at is None else float(at)


async def lost_calls(database: Database, run: int, at_work: int = 0) -> int:
    """Calls that killed or cut off invocations of a run, other than `at_work`, may have paid for without leaving a
    trace, at most."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("lost_calls"), (run, at_work))
    return int(row[0] or 0)


async def waiting_for(database: Database, event: int) -> dict[str, str] | None:
    """Why the last call of an invocation brought no answer; None when it did, or when others made many since."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("call_last"), (event,)))
    if not found or not found[0][0]:
        return None
    return {"type": found[0][1], "message": found[0][2]}


async def definition_of(database: Database, run: int) -> dict[str, Any]:
    """The resolved workflow that a run was made from."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("definition_body"), (run,))
    body: dict[str, Any] = json.loads(row[0])
    return body


async def keep_manner(database: Database, run: int, manner: dict[str, Any]) -> None:
    """Notes how a run goes about its definition (`plan.run_settings.run_settings`)."""
    await write(database, "run_manner", (snapshot(manner), run))


async def manner_of(database: Database, run: int) -> dict[str, Any] | None:
    """How a run goes about its definition; None: it was made before that was kept."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("run_manner_read"), (run,))
    manner: dict[str, Any] | None = json.loads(row[0]) if row[0] is not None else None
    return manner


def row_counts(counts: Iterable[Count]) -> dict[str, int]:
    """Rows by outcome; `present` is all of them that stand in the input, `open` those without an outcome."""
    found = dict.fromkeys(("present", "done", "skipped", "failed", "dropped"), 0)
    for count in counts:
        if count.stage == "":
            found[count.outcome] += count.tasks
    return found | {"open": 2 * found["present"] - sum(found.values())}


async def counters(database: Database, run: int) -> list[Count]:
    """The roll-ups of a run."""
    with translated(database.path):
        return [Count(*row) for row in await database.reader.execute_fetchall(sql("counters"), (run,))]
