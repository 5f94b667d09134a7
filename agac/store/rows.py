"""Reads rows and their tasks from the store: rows of the input and rows that stages made, in ranges
and by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Outcome, RowId
from agac.store.db import Database, Reads, by, first, grouped, keyed, nested, reads, select, slices

T = TypeVar("T")


class State(IntEnum):
    """The state of a row in a run. A row that changed or is tried again is PENDING again."""

    PENDING = 0
    """It is open."""
    DONE = 1
    """It has a result."""
    FAILED = 2
    """It failed."""
    DROPPED = 3
    """It was left out: its id is repeated, under `on_duplicate_id: first` or `last`."""
    FILTERED = 4
    """A guard made it leave."""
    SKIPPED = 5
    """It went through, but its guards left it without a result."""
    GONE = 6
    """A stage made it, and no longer makes it."""


OUTCOME_OF: dict[int, Outcome] = {
    State.DONE: Outcome.DONE,
    State.FAILED: Outcome.FAILED,
    State.DROPPED: Outcome.DROPPED,
    State.FILTERED: Outcome.DROPPED,
    State.SKIPPED: Outcome.SKIPPED,
}
"""The outcome under which rows that ended are counted."""

WALKED = frozenset({State.DONE, State.FILTERED, State.SKIPPED})
"""States of rows that went through their stages without a failure."""

EXPORT_RANGE = 512
"""Rows that an export reads at once: a long snapshot would keep the write-ahead log from being
emptied."""


async def _pages(
    database: Database,
    statement: str,
    record: type[T],
    after: Any = 0,
    position: str = "ordinal",
    **values: Any,
) -> AsyncIterator[list[T]]:
    """Reads what a statement selects after a position, at most EXPORT_RANGE rows at a time
    and never none."""
    while found := await select(
        database, statement, record, **values, after=after, limit=EXPORT_RANGE
    ):
        yield found
        if len(found) < EXPORT_RANGE:
            return
        after = getattr(found[-1], position)


class StoredRow(NamedTuple):
    """A row as it was stored. The fields from `data` on have values only if the statement reads
    them."""

    key: int
    """Its key."""
    id: RowId
    """Its id."""
    occurrence: int
    """Which of the rows with the same id it is, from 0."""
    ordinal: int | None
    """Its position in the input. None: it left the input, or a stage made it."""
    hash: bytes
    """The hash of its data."""
    state: int
    """Its state."""
    error_type: str | None
    """The type of its error."""
    error_message: str | None
    """The message of its error."""
    error_stage: str | None
    """The stage at which it failed; None for an error of the input itself."""
    seen: int
    """The invocation that last placed, made or opened it."""
    result_id: int | None
    """The number of its result."""
    data: str = ""
    """Its data as JSON."""
    origin: int | None = None
    """The position of the stage that made it; None for a row of the input."""
    parent_key: int | None = None
    """The key of the row of which it was made; None for a group."""
    place: int | None = None
    """Its place among the children of its parent, from 0; below 0 for a part of a group."""
    parent_state: int | None = None
    """The state of its parent."""
    chosen: int = 1
    """1 if a retry chose it, else 0."""


class PriorTask(NamedTuple):
    """A task that ended earlier in this run."""

    row_key: int
    """The key of its row."""
    stage: int
    """The position of its stage."""
    fingerprint: bytes | None
    """Its fingerprint, if one was made."""
    outcome: Outcome
    """Its outcome."""
    result_id: int | None
    """The number of its result."""
    error: RowError | None
    """Why it failed."""
    failures: int
    """How many of its answers failed."""
    agreement: str | None = None
    """How many of its replicas agreed, as `2/3`."""


class StageResult(NamedTuple):
    """The result of a stage for a row."""

    value: str | None
    """The result as JSON; None if the stage keeps nothing or failed."""
    skipped: bool
    """True if the stage's guard did not let the row in."""


class EarlierResult(NamedTuple):
    """A result in the store."""

    id: int
    """Its number."""
    value: str
    """The result as JSON."""


rows_at: Reads[[int, int, int], list[StoredRow]] = reads("rows_at", StoredRow)  # run, first, last
# run, row id, first, last
rows_of_id: Reads[[int, RowId, int, int], list[StoredRow]] = reads("rows_of_id", StoredRow)
rows_with_results: Reads[[int, Sequence[RowId]], int] = reads(
    "rows_with_results", int, lambda found: found[0]
)
rows_of_keys: Reads[[Sequence[int]], dict[int, StoredRow]] = reads(
    "rows_of_keys", StoredRow, by("key")
)
last_number: Reads[[int], int] = reads("number_last", int, lambda found: found[0] or 0)
newest_result: Reads[[], int] = reads("result_id_max", int, first)


rows_by_id: Reads[[int, Sequence[RowId]], dict[RowId, list[StoredRow]]] = reads(
    "rows_by_id", StoredRow, lambda found: grouped(found, lambda row: row.id)
)
"""Every repetition of each of these ids of a run, by id."""


async def kept_rows(database: Database, run: int, ids: Sequence[RowId]) -> dict[RowId, int | None]:
    """Finds the row that is kept of each id that came several times, under `on_duplicate_id`: its
    number."""
    by_id = await rows_by_id(database, run, ids) if ids else {}
    return {
        row_id: old.ordinal for row_id, same in by_id.items() for old in same if not old.occurrence
    }


async def prior_tasks(database: Database, keys: Sequence[int]) -> dict[int, dict[int, PriorTask]]:
    """Reads the outcomes of the tasks of these rows: row key → stage → task."""
    return nested(
        (one.row_key, one.stage, one)
        for one in await select(database, "tasks_of_rows", PriorTask, keys)
    )


async def aged_rows(
    database: Database, keys: Sequence[int], cutoffs: Mapping[int, float]
) -> set[int]:
    """Finds which of these rows have a result that is too old; `cutoffs` are seconds since 1970, by
    stage."""
    found: set[int] = set()
    for stage, cutoff in cutoffs.items():
        found.update(await select(database, "rows_aged", int, stage, cutoff, keys))
    return found


results_of_rows: Reads[[Sequence[int]], dict[tuple[int, int], StageResult]] = reads(
    "results_of_rows",
    tuple[int, int, str | None, bool],
    lambda found: {(key, stage): StageResult(*result) for key, stage, *result in found},
)
"""By the row's key and the stage's position."""

why_filtered: Reads[[Sequence[int]], dict[int, tuple[int, str]]] = reads(
    "rows_filtered", tuple[int, int, str], keyed(tuple)
)
"""By row: the position of the stage that made it leave, and its note: JSON, of a guard with `when`
and `values`."""

earlier_results: Reads[[Sequence[bytes], float, str], dict[bytes, EarlierResult]] = reads(
    "results_by_fingerprint", tuple[bytes, int, str], keyed(EarlierResult._make)
)
"""The newest result of each fingerprint that has one made at or after a time (seconds since 1970),
for a workflow."""

# when, in seconds since 1970, and how; by the rows that asked
Failures = dict[int, tuple[float, RowError]]
replica_failures: Reads[[Sequence[bytes]], dict[bytes, Failures]] = reads(
    "replicas_failed",
    tuple[bytes, int, float, str, str],
    lambda found: nested(
        (one, row, (at, RowError(ErrorType(error), text))) for one, row, at, error, text in found
    ),
)
"""Of replicas with these fingerprints."""

adopted_rows: Reads[[str, int], int] = reads("rows_adopted", int, first)  # workflow, run

count_repeated: Reads[[int], list[int]] = reads("rows_repeated", int)
"""How many rows of a run's input were left out since they repeat an id."""

leaving_rows: Reads[[int, int, int, int, int], list[tuple[int, int, str | None]]] = reads(
    "rows_leaving", tuple[int, int, str | None]
)
"""By a run, the last position of the input, the position from which rows moved, the invocation
that met the others, and how many at most: (key, state, error type)."""


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Chooses the rows of a retry: by ids (none: all), by stage and kind of error of failed ones;
    with `from_stage` done ones too. Also those that invocations from `since` (seconds since 1970)
    left open: the same retry opened them."""

    rows: tuple[RowId, ...] = ()
    stage: str | None = None
    error: str | None = None
    from_stage: str | None = None
    since: float = 0.0


# run, since
first_event_since: Reads[[int, float], int] = reads(
    "first_event_since", int, lambda found: found[0] or 0
)


def all_rows(database: Database, run: int) -> AsyncIterator[list[StoredRow]]:
    """Reads every row of a run, some hundred at a time, those that stages made too."""
    return _pages(database, "rows_all", StoredRow, position="key", run=run)


async def rows_of_retry(
    database: Database, run: int, choice: RowChoice, *, others: bool = False
) -> AsyncIterator[list[StoredRow]]:
    """Reads the chosen rows in the order of the input, or all that are usable, some hundred at a
    time."""
    async for rows in _pages(
        database, "rows_of_retry", StoredRow, **_chosen(run, choice), others=others
    ):
        found = [
            row._replace(chosen=row.chosen and (not choice.rows or row.id in choice.rows))
            for row in rows
        ]
        some = [row for row in found if others or row.chosen]
        if some:
            yield some


async def chosen_counts(
    database: Database, run: int, choice: RowChoice
) -> list[tuple[str | None, str | None, int]]:
    """Counts the chosen rows: (stage where they failed, kind of error, rows); (None, None, n) for
    done ones, ("", None, n) for open ones."""
    values = _chosen(run, choice)
    if not choice.rows:
        return await select(
            database, "rows_chosen_count", tuple[str | None, str | None, int], **values
        )
    found: Counter[tuple[str | None, str | None]] = Counter()
    for row_id in choice.rows:
        for stage, error, count in await select(
            database, "row_chosen_count", tuple[str | None, str | None, int], **values, id=row_id
        ):
            found[stage, error] += count
    return [(stage, error, count) for (stage, error), count in found.items()]


def _chosen(run: int, choice: RowChoice) -> dict[str, Any]:
    """Returns the values of the statements that read the rows of a choice."""
    done_too = choice.from_stage is not None and choice.stage is None and choice.error is None
    return {
        "run": run,
        "done_too": done_too,
        "stage": choice.stage,
        "error": choice.error,
        "since": choice.since,
    }


# Rows that stages made.


class MadeCount(NamedTuple):
    """How many rows that one stage made are in one state."""

    origin: int
    """The position of the stage."""
    state: int
    """The state."""
    rows: int
    """How many rows."""


class GroupSize(NamedTuple):
    """The size of a group."""

    rows: int
    """Its members that did not fail."""
    tokens: int
    """The tokens of these."""
    failed: int
    """Its members that failed."""


class MemberRow(NamedTuple):
    """A member of a group."""

    sort: int
    """Its position among the members: 64 bits, signed."""
    key: int
    """Its key."""
    size: int
    """Its tokens."""
    id: RowId
    """Its id."""
    maker: int
    """The position of the stage that made it; -1 for a row of the input."""
    text: str | None
    """For a row of another shard its text in the group's call, "" if it failed."""


class OpenPart(NamedTuple):
    """A part of a large group that is to be asked."""

    key: int
    """Its key."""
    id: str
    """Its id."""
    data: str
    """Its members as JSON."""
    group: int
    """The key of the group."""


class DedupeRow(NamedTuple):
    """A row at a stage that keeps the first of equals, with its state there. `child_…`: what was
    made of it before."""

    hash: bytes
    key: int
    content: bytes
    came_as: int
    state: int
    id: RowId
    origin: int | None
    result_id: int | None
    child_hash: bytes | None
    child_state: int | None


made_rows: Reads[[int, int, int, bool, int], list[StoredRow]] = reads("made_rows", StoredRow)
"""By a run, the position of the stage, a key after which to begin, whether done ones too, and how
many at most."""


children_of_parents: Reads[..., list[StoredRow]] = reads("children_of_parents", StoredRow)
"""Open rows that a stage made of some rows in one invocation. By name: `run`, `origin` (the
stage's position), `event`; `parents`, JSON: of each its key and a place among its children, from
which on they are given; `limit`: so many."""

made_counts: Reads[[int], list[MadeCount]] = reads("made_counts", MadeCount)
parent_count: Reads[[int, int], int] = reads("made_parents", int, first)  # run, stage
# run, stage, height
open_parts: Reads[[int, int, int, int, int], list[OpenPart]] = reads("parts_open", OpenPart)
failed_part: Reads[[int], tuple[str, str, str] | None] = reads(
    "parts_failed", tuple[str, str, str], first
)
made_by_id: Reads[[int, int, Sequence[RowId]], dict[RowId, StoredRow]] = reads(
    "made_by_id", StoredRow, by("id")
)
group_sizes: Reads[[Sequence[int]], dict[int, GroupSize]] = reads(  # row keys
    "group_sizes", tuple[Any, ...], keyed(GroupSize._make)
)
part_values: Reads[[int, int, Sequence[str]], dict[str, str]] = reads(
    "part_values", tuple[str, str], dict
)
# run, stage, ids
any_open_part: Reads[[int, int, Sequence[str]], bool] = reads("parts_waiting", int, bool)
dedupe_firsts: Reads[[int, int, bytes, int], dict[bytes, DedupeRow]] = reads(
    "alike_firsts", DedupeRow, by("hash")
)
"""By a run, a stage, the hash after which to begin, and how many at most: the first row of each
hash."""

dedupe_page: Reads[[int, int, bytes, int, bytes, int], list[DedupeRow]] = reads(
    "alike_page", DedupeRow
)
"""By a run, a stage, the hash and key after which to begin, the last hash, and how many at most."""

FIRST = -(1 << 63)
LAST = (1 << 63) - 1  # the ends of what members are sorted by

members: Reads[[int, int, int, int, bool, int], list[MemberRow]] = reads("members_page", MemberRow)
"""By the key of a group, the hash and key after which to begin, the last hash, whether those that
failed too, and how many at most."""

AWAY = -(1 << 20)
"""The place of groups that are in other shards; the numbers below it are those of members that are
there, by shard."""

any_changed_away: Reads[[int, int], bool] = reads("away_changed", int, bool)  # run, stage
distant_left: Reads[[int, int, int, int], list[int]] = reads("distant_left", int)
"""By a run, a stage, a place and the number under which what is there now was told: the keys of
some of the others."""


def present(counts: Sequence[MadeCount], origin: int) -> dict[str, int]:
    """Counts the rows of a maker by outcome, as `runs.row_counts` does those of the input."""
    by_state = {
        state: sum(c.rows for c in counts if c.origin == origin and c.state == state)
        for state in State
    }
    return {
        "total": sum(by_state.values()),
        "done": by_state[State.DONE],
        "skipped": by_state[State.SKIPPED],
        "failed": by_state[State.FAILED],
        "dropped": by_state[State.FILTERED] + by_state[State.DROPPED],
        "open": by_state[State.PENDING],
    }


# Rows for the output files.


SourcesByStage = dict[str, JSONValue]
"""By the names of stages, lists of `core.types.WebSource` as JSON has them."""


class ExportRow(NamedTuple):
    """One row as an export needs it; `data` and `value` are JSON texts, but `value` of a failed
    row is what came of a reply that was cut. `form`: the fields that the row had in the end, where
    they are not its own alone. `made`: by a stage. `ordinal`: of the row of the input above it;
    None: a group. `how` people had to do with its results, by stage; None: it is not asked for.
    `sources`: those of its answers, by stage, in the same way."""

    ordinal: int | None
    id: RowId
    state: int
    data: str
    value: str | None
    error_type: str | None
    error_message: str | None
    key: int
    form: dict[str, JSONValue] | None = None
    made: bool = False
    how: dict[str, str] | None = None
    sources: SourcesByStage | None = None

    @property
    def error(self) -> RowError | None:
        """Why it failed, with what came of a reply that was cut; None: it did not."""
        if self.state != State.FAILED:
            return None
        return RowError(
            ErrorType(self.error_type or ErrorType.INVALID_ROW),
            self.error_message or "",
            self.value or "",
        )


class ErrorExample(NamedTuple):
    """The first row that failed in a certain way, and how many did."""

    error_type: str
    row_id: RowId
    ordinal: int | None
    message: str
    stage: str | None
    rows: int


error_examples: Reads[[int], list[ErrorExample]] = reads("row_examples", ErrorExample)
# of rows that stages made
made_examples: Reads[[int], list[ErrorExample]] = reads("made_examples", ErrorExample)


def export_rows(database: Database, run: int) -> AsyncIterator[list[ExportRow]]:
    """Reads all rows of the input in order, some hundred at a time."""
    return _pages(database, "rows_export", ExportRow, run=run)


async def rows_of_results(
    database: Database, keys: Sequence[int], origin: int = -1
) -> AsyncIterator[list[ExportRow]]:
    """The rows with these keys, in their order, as far as the stage at `origin` made them (-1: the
    input)."""
    for some in slices(keys):
        found = {
            row.key: row for row in await select(database, "row_export", ExportRow, some, origin)
        }
        yield [found[key] for key in some if key in found]


def group_rows(
    database: Database, run: int, origin: int, statement: str = "groups_export"
) -> AsyncIterator[list[ExportRow]]:
    """All groups that a stage made, by their ids, some hundred at a time; or its rows that another
    statement finds."""
    return _pages(database, statement, ExportRow, FIRST, "id", run=run, origin=origin)


child_counts: Reads[[Sequence[int]], dict[tuple[int, int], int]] = reads(
    "child_counts",
    tuple[int, int, int],
    lambda found: {(key, origin): count for key, origin, count in found},
)
"""How many children of each row there are, by its key and the position of the stage that made
them."""


row_usages: Reads[[Sequence[int]], dict[int, tuple[Any, ...]]] = reads(
    "rows_usage", tuple[Any, ...], keyed(tuple)
)
"""What the calls for rows came to, by their keys: how many were answered, tokens in the order of
`Usage`, and the cost; None: no provider said. Of rows for which no call was made nothing."""

rows_how: Reads[[Sequence[int]], dict[int, dict[int, str]]] = reads(
    "rows_how", tuple[int, int, str], nested
)
"""How people had to do with results of these rows: key → position of the stage → auto, approved,
manual or rejected."""

rows_sources: Reads[[Sequence[int]], list[tuple[int, int, str]]] = reads(
    "rows_sources", tuple[int, int, str]
)
"""The sources of answers of these rows: key, position of the stage, JSON."""

partial_replies: Reads[[Sequence[int]], dict[int, str]] = reads(
    "partial_replies", tuple[int, str], dict
)
"""What came of replies that were cut, by the keys of the rows that failed so."""


async def children_export(
    database: Database, keys: Sequence[int], *, origin: int, after: int = -1, limit: int = -1
) -> list[tuple[int, int, ExportRow]]:
    """A stage's children of these rows: (key of the parent, place, child), in order; so many at
    most after a place."""
    found = await select(database, "children_export", tuple[Any, ...], origin, after, keys, limit)
    return [(row[0], row[1], ExportRow(*row[2:])) for row in found]


async def failed_rows(
    database: Database, run: int, origin: int | None
) -> AsyncIterator[list[ExportRow]]:
    """The failed rows of the input in order, or those that a stage made by id, some hundred at a
    time."""
    all_rows = export_rows(database, run)
    if origin is not None:
        all_rows = group_rows(database, run, origin, "made_failed")
    async for some in all_rows:
        yield [row for row in some if row.state == State.FAILED]
