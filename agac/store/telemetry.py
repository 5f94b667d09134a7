"""What calls took: read row by row for telemetry.jsonl, and as histograms for summaries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.made import made_counts
from agac.store.sql import padded, sql, sql_many

RANGE = 512
"""Rows read at once, as an export does."""

Timings = dict[tuple[str, str], dict[int, int]]
"""Histograms by stage and measure: bucket → count."""


class CallRecord(NamedTuple):
    """A call with the row that it was made for. Times in seconds, `cost` in USD. `ordinal` is the position in the input
    of that row, or of the one that it descends from; None: a group, or a part of one.

    `event` is the invocation that made it, `endpoint` the key of who was asked.
    """

    row_key: int
    ordinal: int | None
    row_id: RowId
    state: int
    stage: int
    event: int
    number: int
    purpose: str
    endpoint: int
    status: int | None
    error_type: str | None
    started_at: float
    duration: float
    ttft: float | None
    time_to_response: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost: float | None
    service_tier: str | None
    replica: int = 0

    @property
    def took(self) -> tuple[float | None, ...]:
        """Input, cached, output and reasoning tokens, and the cost."""
        return self.input_tokens, self.cached_tokens, self.output_tokens, self.reasoning_tokens, self.cost


class EndpointRecord(NamedTuple):
    """Who was asked."""

    id: int
    provider: str
    model: str
    simulated: bool


async def calls_by_row(database: Database, run: int) -> AsyncIterator[list[CallRecord]]:
    """Every call for the rows that stand in the input, in their order, then for those that stages made, stage by stage,
    in the order in which they were made: those of some hundred rows at a time."""
    async for calls in _calls(database, "telemetry_upto", "telemetry_attempts", {"run": run}):
        yield calls
    for origin in sorted({count.origin for count in await made_counts(database, run)}):
        async for calls in _calls(database, "telemetry_made_upto", "telemetry_made", {"run": run, "origin": origin}):
            yield calls


async def _calls(database: Database, end: str, statement: str, rows: dict[str, int]) -> AsyncIterator[list[CallRecord]]:
    """The calls for `rows`, range by range; `end` is the statement that says where one ends."""
    after = 0
    while True:
        with translated(database.path):
            ((upto,),) = await database.reader.execute_fetchall(sql(end), (*rows.values(), after, RANGE))
            if upto is None:
                return
            found = await database.reader.execute_fetchall(sql(statement), {**rows, "after": after, "upto": upto})
        yield list(map(CallRecord._make, found))
        after = upto


async def agreements(database: Database, keys: Iterable[int]) -> dict[int, dict[int, str]]:
    """How many replicas agreed in the votes of these rows, by row and the stage's position: `2/3`, say."""
    wanted = padded(list(keys))
    with translated(database.path):
        rows = await database.reader.execute_fetchall(sql_many("agreements", len(wanted)), wanted)
    found: dict[int, dict[int, str]] = {}
    for key, stage, told in rows:
        found.setdefault(key, {})[stage] = told
    return found


async def endpoints(database: Database) -> dict[int, EndpointRecord]:
    """Everyone who was ever asked, by key."""
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql("endpoints_read"))
    return {key: EndpointRecord(key, provider, model, bool(simulated)) for key, provider, model, simulated in found}


async def timings(database: Database, run: int) -> Timings:
    """The histograms of how long a run's calls took."""
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql("timings"), (run,))
    histograms: Timings = {}
    for stage, measure, bucket, count in found:
        histograms.setdefault((stage, measure), {})[bucket] = count
    return histograms
