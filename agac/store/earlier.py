"""The same row and stage in earlier runs: what a fingerprint is compared with."""

from __future__ import annotations

import json
from typing import NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.sql import sql


class StoredTask(NamedTuple):
    """A row of a run with what became of one of its tasks; the task's columns are None where there is none.

    `value`, `how`, `answered_at`, `provider`, `model` are the result's; times in seconds since 1970.
    """

    run: int
    row_key: int
    data: str
    fingerprint: bytes | None
    outcome: str | None
    error_type: str | None
    error_message: str | None
    settled_at: float | None
    how: str | None
    answered_at: float | None
    provider: str | None
    model: str | None


class Asking(NamedTuple):
    """One question of a stage in one invocation. `at`: its last attempt, in seconds since 1970; `answered`: one of them
    had a valid answer; `retry_from`: the invocation was a retry that asked from this stage on anew."""

    stage: int
    fingerprint: bytes
    at: float
    answered: bool
    retry_from: str | None
    replica: int = 0


async def stored_task(database: Database, run: int, row_id: RowId, stage: int) -> StoredTask | None:
    """A row's task in a run; None when the run has no such row."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("task_of_row"), (stage, run, row_id)))
    return StoredTask(*found[0]) if found else None


async def runs_before(database: Database, run: int, row_id: RowId) -> list[int]:
    """Earlier runs of the same workflow that have a row with this id, the newest first."""
    with translated(database.path):
        rows = await database.reader.execute_fetchall(sql("runs_with_row_before"), (run, run, row_id))
    return [row[0] for row in rows]


async def askings_of_row(database: Database, row_key: int) -> list[Asking]:
    """Every question that a row's stages were asked with, once for each invocation, in the order of time."""
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql("askings_of_row"), (row_key,))
    return [
        Asking(stage, fingerprint, at, bool(answered), json.loads(retry)["from_stage"] if retry else None, replica)
        for stage, fingerprint, at, answered, retry, replica in found
    ]
