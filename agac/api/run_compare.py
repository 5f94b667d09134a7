"""Compares the stored results of two runs row by row, for `agac compare` and for the monitor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.comparison import Agreement, ComparedAnswer, NoAnswer, compared
from agac.api.status import find_run, stored_run
from agac.api.sync import blocking
from agac.core.errors import UsageError
from agac.core.types import JSONValue, Report, RowId, usd
from agac.engine.output.run_summary import calls_of, summarise
from agac.plan.changes import changes_of
from agac.plan.stage import ends_of
from agac.spec.paths import project_root
from agac.store.db import Database
from agac.store.history import RowPair, paired_rows, rows_asked, rows_beside
from agac.store.rows import FIRST, StageResult, results_of_rows
from agac.store.runs import counters, definition_of, run_record

Results = Mapping[tuple[int, int], StageResult]
"""Results by the key of their row and the position of their stage."""


class FieldChange(NamedTuple):
    """A difference between the answers that two runs have for a row."""

    id: RowId
    """The id of the row."""

    field: str
    """`stage.field` of an answer, or `stage` if the whole answer differs."""

    before: JSONValue
    """The first answer; None also if the first run has none."""

    now: JSONValue
    """The second answer; None also if the second run has none."""


@dataclass(frozen=True, slots=True)
class ComparedStage(Report):
    """A stage that two runs have, and how far its answers agree."""

    JSON_KEYS = ("stage=name", "before", "**agreement")

    name: str
    """Its name in the second run."""

    before: str
    """Its name in the first run."""

    positions: tuple[int, int]
    """Its positions in the first and in the second run."""

    agreement: Agreement = field(default_factory=Agreement)
    """How far the answers agree."""

    def compared(self, pair: RowPair, results: Results) -> ComparedAnswer:
        """Compares the answers that both runs have for a row."""
        row_id, first_key, second_key = pair
        first_position, second_position = self.positions
        first = _answer(results, first_key, first_position)
        second = _answer(results, second_key, second_position)
        return compared(row_id, self.name, first, second)

    def count(self, line: ComparedAnswer) -> Iterator[FieldChange]:
        """Counts a line of the comparison, and gives what differs in it."""
        for name in self.agreement.count(line.first, line.second, line.relation):
            if name is None:
                yield FieldChange(line.row, self.name, _shown(line.first), _shown(line.second))
                continue
            before = line.first.get(name)
            now = line.second.get(name)
            yield FieldChange(line.row, f"{self.name}.{name}", before, now)


def _answer(results: Results, key: int | None, position: int) -> JSONValue:
    """Gives the answer of the stage at a position for the row with a key."""
    result = None if key is None else results.get((key, position))
    if result is None or result.value is None:
        return NoAnswer.MISSING
    return json.loads(result.value)


def _shown(answer: JSONValue) -> JSONValue:
    """Gives the answer as reports have it: None if it is missing."""
    return None if isinstance(answer, NoAnswer) else answer


def _no_rows() -> Counter[str]:
    return Counter(both=0, changed=0, only_first=0, only_second=0)


@dataclass(frozen=True, slots=True)
class RunComparison(Report):
    """The comparison of two runs."""

    first: dict[str, Any]
    """The summary of the first run, and what it took."""

    second: dict[str, Any]
    """The same of the second run."""

    key: str | None
    """The field by which rows are matched; None: by their ids."""

    stages: list[ComparedStage]
    """The stages that both runs have."""

    rows: Counter[str] = field(default_factory=_no_rows)
    """How many rows are in both runs, changed, or in one run only."""

    changed: list[FieldChange] = field(default_factory=list)
    """What changed in the first rows that did."""

    only_first: list[RowId] = field(default_factory=list)
    """The first ids of rows that only the first run has."""

    only_second: list[RowId] = field(default_factory=list)
    """The first ids of rows that only the second run has."""

    def add(self, pair: RowPair, results: Results, limit: int) -> list[FieldChange]:
        """Compares and counts a row. Returns what changed if both runs have it; the report keeps
        the first `limit` rows of each kind."""
        row_id, first_key, second_key = pair
        if second_key is None:
            self._count_alone("only_first", self.only_first, row_id, limit)
            return []
        if first_key is None:
            self._count_alone("only_second", self.only_second, row_id, limit)
            return []
        return self.count(self.compared(pair, results), limit)

    def compared(self, pair: RowPair, results: Results) -> list[ComparedAnswer]:
        """Compares a row that both runs have, stage by stage."""
        return [stage.compared(pair, results) for stage in self.stages]

    def count(self, lines: Iterable[ComparedAnswer], limit: int) -> list[FieldChange]:
        """Counts the lines of a row, one for each of the stages. Returns what changed."""
        changes = list[FieldChange]()
        for stage, line in zip(self.stages, lines, strict=True):
            changes.extend(stage.count(line))
        self.rows.update(both=1, changed=bool(changes))
        if self.rows["changed"] <= limit:
            self.changed.extend(changes)
        return changes

    def _count_alone(self, side: str, ids: list[RowId], row_id: RowId, limit: int) -> None:
        self.rows[side] += 1
        if self.rows[side] <= limit:
            ids.append(row_id)


@blocking
async def compare_runs(
    first: int | str,
    second: int | str,
    *,
    key: str | None = None,
    limit: int = 20,
    changed: Callable[[list[FieldChange]], None] | None = None,
    project: Path | str | None = None,
) -> RunComparison:
    """Compares the stored results of two runs, which are named by their numbers or `last`, of one
    workflow or of two. Rows are matched by id or, with `key`, by a field of their data. The report
    has the first `limit` changed rows; `changed` gets all of them, in the order of their ids. Makes
    no calls. Raises UsageError, also if the runs have nothing to compare."""
    async with stored_run(project_root(project), first) as (database, run):
        other = await find_run(database, None, second)
        if run.id == other.id:
            remedy = "Name two runs: `agac runs` lists them."
            raise UsageError(f"both are run {run.id}", remedy=remedy)
        stages = await _common_stages(database, run.id, other.id)
        if not stages:
            what = f"run {run.id} and run {other.id} have no stage of the same name"
            remedy = "Compare runs of one workflow, or of two whose results come from one stage."
            raise UsageError(what, remedy=remedy)
        before = await side_of(database, run.id)
        now = await side_of(database, other.id)
        report = RunComparison(before, now, key, stages)
        async with aclosing(paired_rows(database, run.id, other.id, key)) as pages:
            async for pairs in pages:
                results = await results_of_rows(database, list(_keys(pairs)))
                for pair in pairs:
                    changes = report.add(pair, results, limit)
                    if changes and changed is not None:
                        changed(changes)
    if key is not None and not report.rows.total():
        remedy = "Name a field of their inputs."
        raise UsageError(f"--key {key}: no row of these runs has it", remedy=remedy)
    return report


@blocking
async def compare_page(
    first: int | str,
    second: int | str,
    *,
    after: str | None = None,
    limit: int = 200,
    project: Path | str | None = None,
) -> tuple[RunComparison, str | None]:
    """Compares the next `limit` rows of two runs, matched by id, and gives the `after` of the rows
    behind them; None: there are none. No more rows are read than these, and counts are of these
    rows. Raises UsageError."""
    async with stored_run(project_root(project), first) as (database, run):
        other = await find_run(database, None, second)
        stages = await _common_stages(database, run.id, other.id)
        before = (await summarise(database, run)).as_json()
        now = (await summarise(database, other)).as_json()
        report = RunComparison(before, now, None, stages)
        row_id, repetition = _page_start(after)
        bounds = {"after": row_id, "more": repetition, "most": limit}
        rows = await rows_beside(database, first=run.id, second=other.id, **bounds)
        pairs = [(row_id, in_first, in_second) for row_id, _, in_first, in_second in rows]
        results = await results_of_rows(database, list(_keys(pairs)))
    for pair in pairs:
        report.add(pair, results, limit)
    is_last = len(rows) < limit
    return report, None if is_last else json.dumps(rows[-1][:2])


def _page_start(after: str | None) -> tuple[Any, Any]:
    """Reads the id and the repetition after which a page begins. Raises UsageError."""
    if not after:
        return FIRST, 0
    try:
        row_id, repetition = json.loads(after)
    except (ValueError, TypeError) as error:
        remedy = "Begin with its first page."
        raise UsageError(f"{after!r} is no place in a list", remedy=remedy) from error
    return row_id, repetition


def _keys(pairs: Iterable[RowPair]) -> Iterator[int]:
    """Reads the keys of the rows of both runs."""
    for _, first_key, second_key in pairs:
        if first_key:
            yield first_key
        if second_key:
            yield second_key


async def _common_stages(database: Database, first: int, second: int) -> list[ComparedStage]:
    """Finds the stages that two runs have, in the order of the second."""
    before = await definition_of(database, first)
    now = await definition_of(database, second)
    return _matched_stages(before, now)


def _matched_stages(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[ComparedStage]:
    """Matches the stages of two definitions: those with the same name, those that were renamed, and
    the two that give the results if each definition has one that does."""
    old_names = [stage["name"] for stage in before["stages"]]
    new_names = [stage["name"] for stage in now["stages"]]
    old_name = {name: name for name in new_names if name in old_names}
    for change in changes_of(before, now):
        if change.what == "renamed":
            old_name[change.now] = change.before
    old_ends = ends_of(before)
    new_ends = ends_of(now)
    if len(old_ends) == len(new_ends) == 1:
        old_end = old_names[old_ends[0]]
        new_end = new_names[new_ends[0]]
        if new_end not in old_name and old_end not in old_name.values():
            old_name[new_end] = old_end
    stages = list[ComparedStage]()
    for position, name in enumerate(new_names):
        if name in old_name:
            positions = (old_names.index(old_name[name]), position)
            stages.append(ComparedStage(name, old_name[name], positions))
    return stages


async def side_of(database: Database, run: int, stage: str | None = None) -> dict[str, Any]:
    """Summarises a run, with its cost for 1,000 rows that were asked. With `stage` the calls,
    times and failures are those of this stage."""
    summary = await summarise(database, await run_record(database, run))
    asked = await rows_asked(database, run)
    of_stage: dict[str, Any] = {}
    if stage is not None:
        of_named = next(entry for entry in summary.stages if entry.name == stage)
        counts = [count for count in await counters(database, run) if count.stage == stage]
        asked = of_named.tasks.done + of_named.tasks.failed
        summary = replace(summary, calls=calls_of(counts), timing_ms=of_named.timing_ms)
        of_stage = {"model": of_named.model, "failed": of_named.tasks.failed}
    cost = summary.calls.cost.usd
    thousand = usd(1000 * cost / asked) if cost is not None and asked else None
    return {**summary.as_json(), **of_stage, "rows_asked": asked, "usd_per_1000_rows": thousand}
