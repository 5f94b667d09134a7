"""The history of rows, for reports: rows with their tasks and calls, and the invocations of a
run."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from agac.core.types import Moment, Report, RowId
from agac.store.db import Database, Reads, first, keyed, nested, reads, select, sql, translated
from agac.store.records import Call
from agac.store.rows import EXPORT_RANGE, StoredRow, made_counts, rows_of_keys
from agac.store.runs import InvocationRecord


class RunLine(NamedTuple):
    """A run among others."""

    id: int
    """Its number."""
    workflow: str
    """The name of its workflow."""
    definition_hash: bytes
    """The hash of its definition."""
    fresh_since: float | None
    """From when on results count, in seconds since 1970; None: all count."""
    last_at: Moment
    """When an invocation of it last began or ended."""
    partial: bool
    """True if it is of a selection of rows."""


class TaskRecord(NamedTuple):
    """A task that ended, with its result and the endpoint that gave it, if it has one."""

    stage: int
    """The position of its stage."""
    fingerprint: bytes | None
    """Its fingerprint, if one was made."""
    outcome: str
    """Its outcome."""
    error_type: str | None
    """The type of its error."""
    error_message: str | None
    """The message of its error."""
    failures: int
    """How many of its answers failed."""
    settled_at: float
    """When it ended, in seconds since 1970."""
    result_id: int | None
    """The number of its result."""
    value: str | None
    """The result, as JSON."""
    how: str | None
    """How the result came about, as in `records.Result.how`."""
    created_at: float | None
    """When the result was made, in seconds since 1970."""
    provider: str | None
    """The provider that gave it."""
    base_url: str | None
    """The provider's address."""
    model: str | None
    """The model that gave it."""
    simulated: bool | None
    """True if a simulator gave it."""
    note: str | None
    """Why the stage was skipped: JSON with `when` and `values`."""
    replica: int = 0
    """The number of the task's replica; 0 if it has none."""
    sources: str | None = None
    """The sources of the result, as JSON."""


class CalledRow(NamedTuple):
    """A row for which calls were made, or which failed before one."""

    row_key: int
    """Its key."""
    ordinal: int | None
    """The position in the input of it, or of the row that it descends from. None: it is a group,
    or a part of one."""
    row_id: RowId
    """Its id."""
    state: int
    """Its state."""


@dataclass(frozen=True, slots=True)
class CallRecord(Report):
    """A call as it is read back."""

    JSON_KEYS = (
        "fingerprint",
        "provider=call.endpoint.provider",
        "model=call.endpoint.model",
        "base_url=call.endpoint.base_url",
        "simulated=call.endpoint.simulated",
        "started_at=call.times.started_at",
        "duration_s=call.times.duration",
        "ttft_s=call.times.ttft",
        "time_to_response_s=call.times.time_to_response",
        "http_status=call.status",
        "service_tier=call.service_tier",
        "input_tokens=call.usage.input_tokens",
        "cached_tokens=call.usage.cached_tokens",
        "output_tokens=call.usage.output_tokens",
        "reasoning_tokens=call.usage.reasoning_tokens",
        "cost_usd=call.cost",
        "perhaps_billed=call.ambiguous",
    )

    invocation: int
    """The invocation that made it."""
    call: Call
    """The call, without what is not stored of it."""
    row: CalledRow | None = None
    """The row that it was made for, where the statement reads that."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its task, as hexadecimal digits."""
        return self.call.attempt.fingerprint.hex()


class Origin(NamedTuple):
    """The run and the row for which a result was asked."""

    run: int
    """The number of the run."""
    row_id: RowId
    """The id of the row."""


class PastAttempts(NamedTuple):
    """The calls of a stage with one request in one invocation."""

    stage: int
    """The position of the stage."""
    fingerprint: bytes
    """The fingerprint of the task."""
    at: float
    """When the last of them was made, in seconds since 1970."""
    answered: bool
    """True if one of them had a valid answer."""
    retry_from: str | None
    """The stage from which the invocation ran the stages again, if it was such a retry."""
    replica: int = 0
    """The number of the task's replica; 0 if it has none."""


# row key, how many
spans_of_row: Reads[[int, int], list[dict[str, Any]]] = reads("spans_of_row", dict[str, Any])
run_lines: Reads[[str | None], list[RunLine]] = reads("run_lines", RunLine)  # workflow, or all
definitions: Reads[[Sequence[bytes]], dict[bytes, dict[str, Any]]] = reads(
    "definitions_read", tuple[bytes, dict[str, Any]], dict
)
# run, how many
invocations: Reads[[int, int], list[InvocationRecord]] = reads("invocations_read", InvocationRecord)
parts_of: Reads[[int], list[StoredRow]] = reads("parts_look", StoredRow)
ids_from: Reads[[int, int, int], list[RowId]] = reads("ids_from", Any)  # run, first, how many
# row key, failed, how many
member_ids: Reads[[int, bool, int], list[RowId]] = reads("member_ids", Any)
groups_of_row: Reads[[int], list[tuple[int, RowId]]] = reads(
    "groups_of",
    tuple[int, int, RowId],
    lambda found: [(origin, group) for _, origin, group in found],
)
"""By a row's key: the position of the stage that made each, and its id."""

# row key, stage, parts, how many
_ids_below: Reads[[int, int, bool, int], list[RowId]] = reads("ids_below", Any)
tasks_of_row: Reads[[int], list[TaskRecord]] = reads("tasks_look", TaskRecord)  # row key
turns_of_row: Reads[[int], list[tuple[int, dict[str, Any]]]] = reads(
    "turns_of_row", tuple[int, dict[str, Any]]
)
"""Of a row's key: the position of the stage, and a turn as reports have it, with its calls of
tools."""

calls_of_row: Reads[[int], list[CallRecord]] = reads("calls_of_row", CallRecord)
past_attempts: Reads[[int], list[PastAttempts]] = reads("attempts_by_request", PastAttempts)
runs_before: Reads[[int, RowId], list[int]] = reads("runs_with_row_before", int)  # run, row id


rows_with_ids: Reads[[int, Sequence[RowId]], list[StoredRow]] = reads("rows_look", StoredRow)
"""Every row of a run with one of these ids, repetitions too, in input order, then those that
stages made."""


class Below(NamedTuple):
    """The rows that a stage made of a row."""

    origin: int
    """The position of the stage."""
    parts: bool
    """True if they are parts of a group; else they are children."""
    states: dict[int, int]
    """How many of them are in each state."""
    ids: list[RowId]
    """The ids of the first ones."""


async def rows_above(database: Database, row: StoredRow) -> list[StoredRow]:
    """Reads the row of which a row was made, the one of which that was made, and so on up to a row
    of the input or a group."""
    rows = [row]
    while (parent := rows[-1].parent_key) is not None:
        rows.append((await rows_of_keys(database, [parent]))[parent])
    return rows[1:]


async def rows_below(database: Database, key: int, most: int) -> list[Below]:
    """Reads what stages made of a row, with at most so many ids of each stage."""
    found = await select(database, "rows_below", tuple[int, bool, int, int], key)
    counts = nested(((origin, parts), state, count) for origin, parts, state, count in found)
    below = []
    for (origin, parts), states in counts.items():
        below.append(
            Below(origin, parts, states, await _ids_below(database, key, origin, parts, most))
        )
    return below


async def origins(database: Database, results: Sequence[int]) -> dict[int, Origin]:
    """Finds where results were asked for: result → run and row. Reads all tasks, which takes
    about half a second for a million rows. A result is missing here when its row changed since or
    is no longer stored."""
    if results:
        found = await select(database, "results_asked", tuple[int, int, RowId], results)
    else:
        found = []
    return keyed(Origin._make)(found)


def reply_bytes(stored: str | bytes | None) -> bytes | None:
    """Returns a raw reply as it came, or None if none was kept."""
    if stored is None:
        return None
    if isinstance(stored, str):
        return stored.encode()
    return zlib.decompress(stored)


def reply_text(stored: str | bytes | None) -> str | None:
    """Returns a raw reply as text, or None if none was kept. Bytes that are no UTF-8 are shown as
    escapes."""
    raw = reply_bytes(stored)
    if raw is None:
        return None
    return raw.decode("utf-8", "backslashreplace")


# What calls took: read row by row for telemetry.jsonl, and as histograms for summaries.

Timings = dict[tuple[str, str], dict[int, int]]  # histograms by stage and measure: bucket → count


class RowCalls(NamedTuple):
    """A row and all calls that were made for it."""

    row: CalledRow
    """The row."""
    calls: list[CallRecord]
    """Its calls, stage by stage, the earliest first; none if it failed before one."""


async def calls_by_row(database: Database, run: int) -> AsyncIterator[list[RowCalls]]:
    """Reads each row for which calls were made, and rows that failed before one, some hundred at
    a time: those of the input in order, then, stage by stage, those that stages made."""
    makers = sorted({count.origin for count in await made_counts(database, run)})
    made = (
        ("telemetry_made_upto", "telemetry_made", "telemetry_made_uncalled"),
        attrgetter("row.row_key"),
    )
    of_input = (
        ("telemetry_upto", "telemetry_attempts", "telemetry_uncalled"),
        attrgetter("row.ordinal", "row.row_key"),
    )
    of_makers = [(*made, {"run": run, "origin": origin}) for origin in makers]
    for (end, calls, others), order, rows in [(*of_input, {"run": run}), *of_makers]:
        after: Any = 0
        while (
            upto := first(await select(database, end, Any, *rows.values(), after, EXPORT_RANGE))
        ) is not None:
            called = await select(database, calls, CallRecord, **rows, after=after, upto=upto)
            uncalled = await select(database, others, CalledRow, **rows, after=after, upto=upto)
            grouped = (list(records) for _, records in groupby(called, attrgetter("row.row_key")))
            with_calls = [RowCalls(_row_of(records), records) for records in grouped]
            yield list(merge(with_calls, (RowCalls(row, []) for row in uncalled), key=order))
            after = upto


def _row_of(calls: Sequence[CallRecord]) -> CalledRow:
    """Returns the row of calls that were read with it."""
    row = calls[0].row
    assert row is not None
    return row


# what a row of two runs is called, its key in each; None: it is in one
RowPair = tuple[RowId, int | None, int | None]


async def paired_rows(
    database: Database, first: int, second: int, field: str | None
) -> AsyncGenerator[list[RowPair]]:
    """Reads the rows of two runs in pairs, some hundred at a time, as they are at one moment, in
    the order of their ids, or of the text in one of their fields; derived rows too. Of several rows
    with the same name the first of one run is paired with the first of the other. Rows that left
    the input, or were left out since they repeat an id, are not among them."""
    values = {"first": first, "second": second, "field": field}
    with translated(database.path):
        cursor = await database.reader.at_once(
            lambda reader: reader.execute(sql("rows_paired"), values)
        )
        try:
            while found := await database.reader.at_once(lambda _: cursor.fetchmany(EXPORT_RANGE)):
                yield found
        finally:
            await database.reader.at_once(lambda _: cursor.close())


rows_beside = reads("rows_beside", tuple[Any, int, int | None, int | None])
"""A row's id, its repetition, and its key in each of two runs. By their names: the `first` and the
`second` run; what they come `after`: an id, and the repetition of it (`more`); how many at `most`.
"""

rows_asked: Reads[[int], int] = reads("rows_asked", int, lambda found: found[0])
"""For how many rows of a run calls were made, those that stages made too."""


stage_took: Reads[[int, int], tuple[int, float | None, float | None]] = reads(
    "stage_took", tuple[int, float | None, float | None], itemgetter(0)
)
"""How many tasks were asked for the answers of a stage (its position) of a run, in USD, in seconds
of calls."""


agreements: Reads[[Sequence[int]], dict[int, dict[int, str]]] = reads(
    "agreements", tuple[int, int, str], nested
)
"""How many replicas agreed in the votes of these rows, by row and the stage's position: `2/3`,
say."""

timings: Reads[[int], Timings] = reads(
    "timings", tuple[str, str, int, int], lambda found: nested((one[:2], *one[2:]) for one in found)
)
