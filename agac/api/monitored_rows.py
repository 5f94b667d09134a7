"""What the monitor shows of the rows of a run, as values: pages of them, and how they failed.

Each reader takes READ_SECONDS at most; lists use an index."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.monitor import READ_SECONDS, Advice
from agac.api.status import go_on, position_of, remedy_of, stored_run
from agac.core.errors import UsageError
from agac.core.types import Outcome, Report, RowId
from agac.spec.paths import project_root
from agac.store import roll_ups, runs
from agac.store.db import Database
from agac.store.roll_ups import IndexedRows
from agac.store.rows import State

LOOK_SECONDS = 0.15
"""Seconds for which rows are looked at for one page."""

_FAILURES_READ = 200
"""Rows that failed in one way whose messages are read."""

_MESSAGES_SHOWN = 20
"""Messages of one way to fail that are shown."""

_EXAMPLES = 5
"""Ids of rows that are shown with a message."""

_ANY = 0b111111
_STATES = {
    "open": 1 << State.PENDING,
    "done": 1 << State.DONE,
    "failed": 1 << State.FAILED,
    "skipped": 1 << State.SKIPPED,
    "dropped": 1 << State.DROPPED | 1 << State.FILTERED,
}
"""The states that each word means, as bits."""

_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d[\d.,:_-]*")
"""The parts of messages in which messages of one kind differ: numbers and quoted texts."""


@dataclass(frozen=True, slots=True)
class RowFilters:
    """A choice of the rows that are listed, and their order."""

    state: str | None = None
    """open, done, failed, dropped or skipped; with a `stage` the outcome of its task, which may
    also be reused."""
    stage: str | None = None
    """The stage whose outcome is meant."""
    error: str | None = None
    """A type of error."""
    id: str | None = None
    """The beginning of ids."""
    text: str | None = None
    """A text in the input, the result or the message."""
    made_by: str | None = None
    """The stage that made the rows; None: rows of the input."""
    sort: str | None = None
    """One of `RowPage.sorts`; None: the first."""

    @property
    def are_failed(self) -> bool:
        """True if only failed rows are listed."""
        return self.state == "failed" or (self.error is not None and self.state is None)

    def sorts(self) -> tuple[str, ...]:
        """Returns the orders that an index gives for these rows."""
        if self.id:
            return ("id",)
        if self.are_failed:
            return ("error", "id")
        return ("place", "id")


@dataclass(frozen=True, slots=True)
class RowPage(Report):
    """A page of rows."""

    run: int
    """The run's number."""
    rows: tuple[dict[str, Any], ...]
    """Rows, each with key, id, occurrence, number (its place in the input), state, stage (where it
    failed), error, message, input and result (JSON; these three cut after 160 characters), and of
    its calls in this run: calls, cost_usd, cost_is_simulated, duration_s, input_tokens,
    output_tokens."""
    next: str | None
    """The `after` of the next page; None: there is none. A page that is not full has a next one if
    the time for one page ended before."""
    looked: int
    """How many rows were looked at."""
    sorted_by: str
    """The order of the rows."""
    sorts: tuple[str, ...]
    """The orders that an index gives: place, id or error. Open rows by place come last first."""


class AlikeErrors(NamedTuple):
    """Messages that differ only in numbers and quoted texts."""

    message: str
    """One of them."""
    rows: int
    """How many rows have such a message."""
    examples: tuple[RowId, ...]
    """Ids of some of these rows."""


@dataclass(frozen=True, slots=True)
class ErrorGroup(Report):
    """Rows that failed at one stage with one type of error."""

    stage: str | None
    """The stage; None: they failed before any."""
    type: str
    """The type of error."""
    rows: int
    """The number of rows."""
    looked: int
    """How many of them were looked at for the messages."""
    messages: tuple[AlikeErrors, ...]
    """Their messages, the most frequent first."""
    advice: Advice
    """What tries them again."""


async def arows(
    run: int | str = "last",
    filters: RowFilters | None = None,
    after: str | None = None,
    limit: int = 50,
    *,
    project: Path | str | None = None,
) -> RowPage:
    """Reads a page of the rows of a run, beginning behind the place `after`. A row that is added
    while pages are read is on a later page or on none; no row is on two. Raises UsageError for
    what does not exist, and for an order that no index gives."""
    filters = filters or RowFilters()
    _refuse_unknown_state(filters)
    async with stored_run(project_root(project), run, seconds=READ_SECONDS) as (database, record):
        names = [body["name"] for body in (await runs.definition_of(database, record.id))["stages"]]
        made_by = _position(filters.made_by, names, "made_by")
        position = _position(filters.stage, names, "stage")
        sort = _sort_of(filters)
        values = _values_of(filters, record.id, made_by, position)
        sources = await _in_order(database, record.id, filters, sort, made_by)
        try:
            keys, following, looked = await roll_ups.page_of(
                database, sources, values, after, limit, LOOK_SECONDS
            )
        except (ValueError, TypeError) as wrong:
            raise UsageError(
                f"{after!r} is no place in this list", remedy="Begin at its first page."
            ) from wrong
        shown = await roll_ups.rows_shown(database, keys) if keys else {}
    return RowPage(
        run=record.id,
        rows=tuple(shown[key] for key in keys if key in shown),
        next=following,
        looked=looked,
        sorted_by=sort,
        sorts=filters.sorts(),
    )


def _refuse_unknown_state(filters: RowFilters) -> None:
    """Raises UsageError for a word that is no state of rows, or with a stage of tasks."""
    state = filters.state
    if state is None or state in _STATES:
        return
    if filters.stage and state == Outcome.REUSED:
        return
    raise UsageError(f"{state!r} is no state of a row", remedy=f"States are: {', '.join(_STATES)}.")


def _position(name: str | None, names: Sequence[str], what: str) -> int | None:
    """Returns the position of a stage, or None for no name. Raises UsageError for an unknown
    one."""
    return None if name is None else position_of(name, names, what)


def _sort_of(filters: RowFilters) -> str:
    """Returns the order in which rows are listed. Raises UsageError if no index gives it."""
    sorts = filters.sorts()
    sort = filters.sort or sorts[0]
    if sort not in sorts:
        raise UsageError(
            f"these rows cannot be sorted by {sort}", remedy=f"They can by: {', '.join(sorts)}."
        )
    return sort


def _values_of(
    filters: RowFilters, run: int, made_by: int | None, position: int | None
) -> dict[str, Any]:
    """Returns the values of the statements that read a page."""
    all_states = filters.stage or filters.state is None
    return {
        "run": run,
        "origin": made_by,
        "error": filters.error or "",
        "text": _like(filters.text),
        "states": _ANY if all_states else _STATES[filters.state or ""],
        "position": position,
        "outcome": "failed" if filters.are_failed else filters.state or "",
    }


async def _in_order(
    database: Database, run: int, filters: RowFilters, sort: str, made_by: int | None
) -> list[IndexedRows]:
    """Returns the readings of an index that give the rows in their order, one after the other."""
    of_input = made_by is None
    if sort == "id":
        return roll_ups.in_id_order(filters.id or None)
    if sort == "error":
        statement = "rows_failed_so" if of_input else "rows_made_failed_so"
        return [
            IndexedRows(statement, [kind, stage], {"kind": kind, "failed_at": stage or None})
            for kind, stage in await _ways_to_fail(database, run, filters)
        ]
    if filters.state == "open" and filters.stage is None and of_input:
        return [roll_ups.FROM_THE_END]
    return [IndexedRows("rows_by_place" if of_input else "rows_made_by", [], {})]


async def _ways_to_fail(database: Database, run: int, filters: RowFilters) -> list[tuple[str, str]]:
    """Returns the types of errors and the stages that rows failed with and the filters let
    through, in order."""
    ways = sorted((kind, stage) for stage, kind in await _failures(database, run))
    return [
        (kind, stage)
        for kind, stage in ways
        if filters.error in (None, kind) and filters.stage in (None, stage)
    ]


def _like(text: str | None) -> str | None:
    """Makes a pattern that finds a text within JSON, where quotes and backslashes are written with
    a backslash."""
    escaped = re.sub(r"([\\%_])", r"\\\1", json.dumps(text or "", ensure_ascii=False)[1:-1])
    return f"%{escaped}%" if escaped else None


# Errors.


async def _failures(database: Database, run: int) -> Counter[tuple[str, str]]:
    """Counts failed rows by stage and type of error, from roll-ups. Those before any stage ('') may
    also have failed at a stage."""
    failures = Counter[tuple[str, str]]()
    at_stages = Counter[str]()
    for count in await runs.counters(database, run):
        if count.outcome == Outcome.FAILED:
            failures[count.stage, count.error_type] += count.tasks
            at_stages[count.error_type] += count.tasks if count.stage else 0
    for _, stage, kind, rows in await roll_ups.made_failures(database, run):
        failures["", kind] += rows
        failures[stage, kind] += 0
    for kind, rows in at_stages.items():
        failures["", kind] = max(failures["", kind] - rows, 0)
    return failures


async def aerrors(
    run: int | str = "last", *, project: Path | str | None = None
) -> tuple[ErrorGroup, ...]:
    """Reads how the rows of a run failed, the most frequent way first, with messages, ids of some
    rows, and what to do. Raises UsageError for a run that does not exist."""
    groups = []
    async with stored_run(project_root(project), run, seconds=READ_SECONDS) as (database, record):
        for (name, kind), count in (await _failures(database, record.id)).items():
            stage = name or None
            read = await roll_ups.failures_like(database, record.id, kind, stage, _FAILURES_READ)
            if read:
                rows = max(count, len(read))
                messages = tuple(_alike(read))
                advice = _remedy(record, stage, kind)
                groups.append(ErrorGroup(stage, kind, rows, len(read), messages, advice))
    return tuple(sorted(groups, key=lambda group: group.rows, reverse=True))


def _alike(failures: Sequence[tuple[RowId, str | None]]) -> list[AlikeErrors]:
    """Puts failures together whose messages differ only in numbers and quoted texts, the most
    frequent first."""
    groups: dict[str, list[tuple[RowId, str]]] = defaultdict(list)
    for row_id, message in failures:
        groups[_VARIES.sub("…", message or "")].append((row_id, message or ""))
    return [
        AlikeErrors(
            message=group[0][1],
            rows=len(group),
            examples=tuple(row_id for row_id, _ in group[:_EXAMPLES]),
        )
        for group in sorted(groups.values(), key=len, reverse=True)[:_MESSAGES_SHOWN]
    ]


def _remedy(record: runs.RunRecord, stage: str | None, kind: str) -> Advice:
    """Returns the command that tries rows again which failed so."""
    retry = f"agac retry {record.id} --stage {stage} --error {kind}"
    by_need = {
        "input": Advice("resumes the run, once the input is corrected", go_on(record)),
        "schema": Advice("runs them, once the output_schema requires the field", go_on(record)),
        "budget": Advice("tries them again, once a row may spend more", retry),
        "calls": Advice(
            "tries them again, and makes their calls of tools again", f"{retry} --repeat-calls"
        ),
        "people": Advice(
            "discards what people decided, and asks them again", f"{retry} --discard-decisions"
        ),
        "again": Advice("tries them again", retry),
    }
    return by_need[remedy_of(kind, stage)]
