"""Results by fingerprint: what was answered before and need not be asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agac.store.db import Database, translated
from agac.store.sql import padded, sql, sql_many


class EarlierResult(NamedTuple):
    """A result in the store; `value` is its JSON text."""

    id: int
    value: str


async def earlier_results(database: Database, prints: Sequence[bytes], since: float) -> dict[bytes, EarlierResult]:
    """The newest result of each fingerprint that has one made at or after `since` (seconds since 1970)."""
    values = padded(list(prints))
    with translated(database.path):
        statement = sql_many("results_by_fingerprint", len(values))
        found = await database.reader.execute_fetchall(statement, (since, *values))
    return {fingerprint: EarlierResult(result_id, value) for fingerprint, result_id, value in found}


async def newest_result(database: Database) -> int:
    """The id of the last result, 0 when there is none."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("result_id_max"))
    return int(row[0])
