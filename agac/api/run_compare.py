"""The results of two runs side by side: `agac compare`; how far results of the same rows agree,
and in which fields."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.status import find_run, stored_run
from agac.api.sync import blocking
from agac.core.errors import UsageError
from agac.core.types import JSONValue, Report, RowId, usd
from agac.engine.telemetry import calls_of, log_bucket, quantile, summarise
from agac.plan.changes import changes_of
from agac.plan.stage import ends_of
from agac.spec.paths import project_root
from agac.store.db import Database
from agac.store.history import RowPair, paired_rows, rows_asked, rows_beside
from agac.store.rows import FIRST, StageResult, results_of_rows
from agac.store.runs import counters, definition_of, run_record

MAX_FIELDS = 100
"""Fields of results that are counted apart; a difference in another one is told as one of the
whole result."""

_LARGEST = 1e300  # a larger number is no measurement, and not every float can hold it
_ALIKE = -1_000_000  # a bucket so low that its value is 0.0


@dataclass(slots=True)
class Agreement(Report):
    """How far results of the same rows agree: of `rows` that have both how many are `equal`; how
    many have one `alone`; the same of the `fields` of objects. Of `numbers`: in the mean the
    second is `drift` more than the first; 95 % lie `p95` apart at most, to 2 % of it."""

    JSON_KEYS = ("rows", "equal", "share", "alone", "numbers", "drift", "p95", "fields")

    rows: int = 0
    equal: int = 0
    alone: int = 0
    numbers: int = 0
    drift: float | None = None
    fields: dict[str, Agreement] = field(default_factory=dict)
    distances: Counter[int] = field(default_factory=Counter)

    def add(self, first: JSONValue, second: JSONValue) -> list[str | None]:
        """Counts the results of a row; gives the fields that differ, None for the whole."""
        self.rows = self.rows + 1
        self.equal = self.equal + (first == second)
        found = list[str | None]()
        if isinstance(first, dict) and isinstance(second, dict):
            for name in {**first, **second}:
                if name in self.fields or len(self.fields) < MAX_FIELDS:
                    differs = self.fields.setdefault(name, Agreement()).add(
                        first.get(name), second.get(name)
                    )
                    found += [name] if differs else []
        numbers = [
            float(one)
            for one in (first, second)
            if type(one) in (int, float) and abs(one) < _LARGEST
        ]
        if len(numbers) == 2:
            apart = numbers[1] - numbers[0]
            self.numbers = self.numbers + 1
            self.drift = (self.drift or 0.0) + (apart - (self.drift or 0.0)) / self.numbers
            self.distances[log_bucket(abs(apart)) if apart else _ALIKE] += 1
        return found or ([] if first == second else [None])

    @property
    def share(self) -> float | None:
        """The part of the rows whose results are equal."""
        return round(self.equal / self.rows, 4) if self.rows else None

    @property
    def p95(self) -> float | None:
        """What 95 % of the numbers lie apart at most."""
        return quantile(self.distances, 0.95)


class FieldChange(NamedTuple):
    """What differs of a row that is in both runs: `stage.field` of a result, or the `stage` where
    that is the whole."""

    id: RowId
    field: str
    before: JSONValue
    now: JSONValue


@dataclass(frozen=True, slots=True)
class ComparedStage(Report):
    """A stage of the second run, what it is called in the first one, its positions in both, how
    far they agree."""

    JSON_KEYS = ("stage=name", "before", "**agreement")

    name: str
    before: str
    positions: tuple[int, int]
    agreement: Agreement = field(default_factory=Agreement)

    def changes(
        self, pair: RowPair, results: Mapping[tuple[int, int], StageResult]
    ) -> Iterator[FieldChange]:
        """Counts a row that both runs have; gives what differs."""
        found = [
            results.get((key or 0, at)) for key, at in zip(pair[1:], self.positions, strict=True)
        ]
        first, second = texts = [one.value if one else None for one in found]
        values: list[Any] = [None if text is None else json.loads(text) for text in texts]
        if None not in texts:
            for name in self.agreement.add(*values):
                shown = values if name is None else [one.get(name) for one in values]
                yield FieldChange(
                    pair[0], self.name if name is None else f"{self.name}.{name}", *shown
                )
        elif first != second:
            self.agreement.alone += 1
            yield FieldChange(pair[0], self.name, *values)


@dataclass(frozen=True, slots=True)
class RunComparison(Report):
    """What the `first` and the `second` run were and took; how many `rows` are in both, `changed`,
    and in one alone; how far each of the `stages` that both have agrees; of the first rows what
    `changed`, and those in one run alone."""

    first: dict[str, Any]
    second: dict[str, Any]
    key: str | None
    stages: list[ComparedStage]
    rows: Counter[str] = field(
        default_factory=lambda: Counter(both=0, changed=0, only_first=0, only_second=0)
    )
    changed: list[FieldChange] = field(default_factory=list)
    only_first: list[RowId] = field(default_factory=list)
    only_second: list[RowId] = field(default_factory=list)

    def add(
        self, pair: RowPair, results: Mapping[tuple[int, int], StageResult], limit: int
    ) -> list[FieldChange]:
        """Counts a row; gives what differs where both runs have it."""
        if None not in pair:
            changes = [change for stage in self.stages for change in stage.changes(pair, results)]
            self.rows.update(both=1, changed=bool(changes))
            self.changed.extend(changes if self.rows["changed"] <= limit else [])
            return changes
        side, ids = (
            ("only_first", self.only_first)
            if pair[2] is None
            else ("only_second", self.only_second)
        )
        self.rows[side] += 1
        ids += [pair[0]] if self.rows[side] <= limit else []
        return []


@blocking
async def compare_runs(
    first: int | str, second: int | str, *, key: str | None = None, limit: int = 20,
    changed: Callable[[list[FieldChange]], None] | None = None, project: Path | str | None = None,
) -> RunComparison:  # fmt: skip
    """The stored results of two runs, by their numbers or `last`, of one workflow or of two. Rows
    are matched by id or, with `key`, by a field of their data. The report has the first `limit`
    changed rows; `changed` is told all of them, in the order of their ids. Makes no calls. Raises
    UsageError, also for runs that have nothing to compare."""
    async with stored_run(project_root(project), first) as (database, one):
        other = await find_run(database, None, second)
        if one.id == other.id:
            raise UsageError(
                f"both are run {one.id}", remedy="Name two runs: `agac runs` lists them."
            )
        stages = _stages(
            await definition_of(database, one.id), await definition_of(database, other.id)
        )
        if not stages:
            what = f"run {one.id} and run {other.id} have no stage of the same name"
            raise UsageError(
                what,
                remedy="Compare runs of one workflow, or of two whose results come from one stage.",
            )
        report = RunComparison(
            await side_of(database, one.id), await side_of(database, other.id), key, stages
        )
        async with aclosing(paired_rows(database, one.id, other.id, key)) as pages:
            async for pairs in pages:
                results = await results_of_rows(
                    database, [key for pair in pairs for key in pair[1:] if key]
                )
                for pair in pairs:
                    changes = report.add(pair, results, limit)
                    if changes and changed is not None:
                        changed(changes)
    if key is not None and not report.rows.total():
        raise UsageError(
            f"--key {key}: no row of these runs has it", remedy="Name a field of their inputs."
        )
    return report


@blocking
async def compare_page(
    first: int | str, second: int | str, *, after: str | None = None, limit: int = 200,
    project: Path | str | None = None,
) -> tuple[RunComparison, str | None]:  # fmt: skip
    """The same of so many rows by their ids alone, and the `after` of those behind them; None:
    there are none. However large the runs are, no more is read, and what is counted is counted of
    these rows. Raises UsageError."""
    async with stored_run(project_root(project), first) as (database, one):
        other = await find_run(database, None, second)
        stages = _stages(
            await definition_of(database, one.id), await definition_of(database, other.id)
        )
        report = RunComparison(
            await summarise(database, one), await summarise(database, other), None, stages
        )
        try:
            place, more = json.loads(after) if after else (FIRST, 0)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{after!r} is no place in a list", remedy="Begin with its first page."
            ) from error
        found = await rows_beside(
            database, first=one.id, second=other.id, after=place, more=more, most=limit
        )
        results = await results_of_rows(database, [key for row in found for key in row[2:] if key])
    for row_id, _, in_first, in_second in found:
        report.add((row_id, in_first, in_second), results, limit)
    return report, json.dumps(found[-1][:2]) if len(found) == limit else None


def _stages(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[ComparedStage]:
    """The stages of two definitions with one name, or renamed; or the two from which the results
    of both come."""
    old, new = ([stage["name"] for stage in one["stages"]] for one in (before, now))
    pairs = {name: name for name in new if name in old}
    pairs |= {one.now: one.before for one in changes_of(before, now) if one.what == "renamed"}
    if len(ends_of(before)) == len(ends_of(now)) == 1:
        was = old[ends_of(before)[0]]
        name = new[ends_of(now)[0]]
        pairs |= {name: was} if name not in pairs and was not in pairs.values() else {}
    places = {name: (old.index(pairs[name]), new.index(name)) for name in new if name in pairs}
    return [ComparedStage(name, pairs[name], both) for name, both in places.items()]


async def side_of(database: Database, run: int, stage: str | None = None) -> dict[str, Any]:
    """A run's summary, whose calls, times and failures may be a `stage`'s, and its dollars for
    1,000 rows asked."""
    summary = await summarise(database, await run_record(database, run))
    asked = await rows_asked(database, run)
    if stage is not None:
        own = next(one for one in summary["stages"] if one["name"] == stage)
        calls = calls_of([one for one in await counters(database, run) if one.stage == stage])
        asked = own["done"] + own["failed"]
        summary |= {
            "calls": calls,
            **{name: own[name] for name in ("model", "failed", "timing_ms")},
        }
    cost = summary["calls"]["cost_usd"]
    thousand = usd(1000 * cost / asked) if cost is not None and asked else None
    return {**summary, "rows_asked": asked, "usd_per_1000_rows": thousand}
