"""What calls took: read row by row for telemetry.jsonl, and as histograms for summaries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.sql import sql

RANGE = 512
"""Rows read at once, as an export does."""

Timings = dict[tuple[str, str], dict[int, int]]
"""Histograms by stage and measure: bucket → count."""


class CallRecord(NamedTuple):
    """A call with the row that it was made for. Times in seconds, `cost` in USD.

    `event` is the invocation that made it, `endpoint` the key of who was asked.
    """

    row_key: int
    ordinal: int
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
    """Every call for the rows that stand in the input, in their order: those of some hundred rows at a time."""
    after = 0
    while True:
        with translated(database.path):
            ((upto,),) = await database.reader.execute_fetchall(sql("telemetry_upto"), (run, after, RANGE))
            if upto is None:
                return
            values: dict[str, Any] = {"run": run, "after": after, "upto": upto}
            found = await database.reader.execute_fetchall(sql("telemetry_attempts"), values)
        yield list(map(CallRecord._make, found))
        after = upto


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
