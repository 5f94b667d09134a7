"""Tries a changed stage for a sample of rows, and compares its answers with the stored ones of the
version before: `agac try`. A trial is a run of a selection that asks this stage only and writes no
files; later runs reuse its answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from agac.api.comparison import IN_BOTH
from agac.api.plan import Confirm
from agac.api.run_compare import ComparedStage, RunComparison, side_of
from agac.api.run_options import RunOptions
from agac.api.sampled_version import SampledVersion, confirm_price, refuse_unfit
from agac.api.status import given_flags
from agac.api.sync import calling
from agac.api.watched_run import Watch
from agac.core.errors import ExitCode, SpecError, UsageError, Where
from agac.core.keys import canonical
from agac.core.statistics import Interval, proportion
from agac.core.types import Report, RowId
from agac.engine.run_state import Invocation
from agac.plan.plan import Plan, Selection
from agac.spec.paths import Unusable
from agac.spec.project import StageChange
from agac.spec.rules import Budget
from agac.spec.text_files import PlacedText, placed_file
from agac.store import runs
from agac.store.db import Database, slices
from agac.store.rows import StoredRow, export_rows, results_of_rows, rows_by_id
from agac.store.writer import open_database

FIRST_ROWS = 30
"""The default of `sample`, and the rows of the first round of a trial with `within`."""


@dataclass(frozen=True, slots=True)
class StageTrial(Report):
    """What a trial of a stage came to."""

    workflow: str
    """The workflow."""

    stage: str
    """The stage that was tried."""

    rows: int
    """Rows with a stored answer of another version."""

    tried: int
    """How many of these were asked."""

    failed: int
    """How many of those that were asked failed."""

    altered: Interval | None
    """The share of rows whose answer changed; None: unknown."""

    comparison: RunComparison
    """The comparison of the rows that have both answers."""

    rest: int
    """Rows that were not tried."""

    rest_usd: float | None
    """What it would cost to ask them; None: unknown."""

    simulated: bool
    """True if the simulator answers for it."""

    stopped: str | None
    """Why the trial ended early; None: it did not."""

    exit_code: ExitCode
    """That of the run, or 3 if rows failed."""


@calling
async def trial(
    workflow: Path | str,
    stage: str,
    *,
    prompt: Path | str | None = None,
    model: str | None = None,
    tool_stubs: str | None = None,
    sample: int | None = None,
    within: float | None = None,
    seed: int = 0,
    budget: Budget | float | None = None,
    limit: int = 20,
    yes: bool = False,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> StageTrial:
    """Asks the stage as it is in the files, or with the prompt of a file or another model, for
    `sample` rows (default 30) that have a stored answer of another version, and compares the
    answers. With `within` (0.01: one percent of the rows) it asks more rows, round by round, until
    the share of rows with another answer is known so closely, or `sample` rows or the budget are
    used up. `tool_stubs` is a file with stand-ins for tools. The report has the first `limit`
    changed rows. Tells the price and asks before the first call, unless `yes`. Raises UsageError,
    SpecError."""
    if within is not None and not 0 < within < 1:
        raise UsageError(f"--within {within:.4%}: give a share of the rows, such as 1%")
    change = StageChange(stage, model, None if prompt is None else _text(Path(prompt)))
    how: dict[str, Any] = {"budget": budget, "yes": yes, "change": change, "tool_stubs": tool_stubs}
    options = RunOptions(stage=stage, sample=sample or FIRST_ROWS, seed=seed, **how)
    version = await SampledVersion.ready(workflow, options, project)
    refuse_unfit(version.checked.workflow, stage)
    async with open_database(version.opened.store) as database:
        before = await _answers_before(database, version.plan, stage)
        most = _max_rows(sample, within, len(before.keys))
        version = replace(version, options=replace(version.options, sample=most))
        work = _Trial(database, version, stage, before, _shuffled(before.keys, seed), most, within)
        if not yes:
            forecast = await version.forecast(database, work.ids[:most])
            bound = "at most " if within else ""
            confirm_price(confirm, [forecast], f"trying {stage}", most, bound)
        flags = _flags(change, prompt, tool_stubs, within) | {"sample": most, "seed": seed}
        asks: dict[str, Any] = {"flags": flags, "progress": progress, "signals": handle_signals}
        return await work.done(partial(version.ask, database, **asks), limit)


def _flags(
    change: StageChange,
    prompt: Path | str | None,
    tool_stubs: str | None,
    within: float | None,
) -> dict[str, Any]:
    """Lists the flags of the command that the user would type for this trial."""
    flags = {
        "stage": change.stage,
        "prompt": None if prompt is None else str(prompt),
        "model": change.model,
        "within": f"{within:.4%}" if within else None,
    }
    if tool_stubs:
        flags["tool_stubs"] = tool_stubs
    return flags


def _text(file: Path) -> PlacedText:
    """Reads the prompt of a file. Raises SpecError."""
    try:
        return placed_file(file, str(file), Where("--prompt"), None)
    except Unusable as error:
        raise SpecError([error.problem]) from None


def _max_rows(sample: int | None, within: float | None, rows: int) -> int:
    """Computes how many of the `rows` that have an answer may be asked."""
    if sample:
        return min(sample, rows)
    if within:
        return rows
    return min(FIRST_ROWS, rows)


def _shuffled(ids: Iterable[RowId], seed: int) -> list[RowId]:
    """Puts the ids in the order in which they are asked: a sample is the first part of a larger
    one."""
    shuffled = sorted(ids, key=str)
    Random(seed).shuffle(shuffled)  # noqa: S311 - chance, not secrecy
    return shuffled


class _EarlierAnswers(NamedTuple):
    """The answers that a run of another version has for a stage: the first side."""

    run: int
    """The number of the run."""

    position: int
    """The position of the stage in this run."""

    keys: dict[RowId, int]
    """The keys of the rows that have an answer, by their ids."""


async def _answers_before(database: Database, plan: Plan, stage: str) -> _EarlierAnswers:
    """Selects the newest run of another version that has answers of the stage and is no trial; runs
    of all rows come before those of a selection. Raises UsageError if there is none."""
    candidates = list[tuple[bool, int, int]]()
    present = canonical(plan.body)
    for run in await runs.run_ids(database, plan.workflow):
        record = await runs.run_record(database, run)
        definition = await runs.definition_of(database, run)
        names = [body["name"] for body in definition["stages"]]
        is_usable = stage in names and "trial" not in given_flags(record)
        if is_usable and canonical(definition) != present:
            partial_run = Selection(**record.selection).partial
            candidates.append((partial_run, run, names.index(stage)))
    for _, run, position in sorted(candidates, key=lambda candidate: candidate[0]):
        keys = await _answered(database, run, position)
        if keys:
            return _EarlierAnswers(run, position, keys)
    what = f"{plan.workflow} has no stored answers of another version of the stage {stage}"
    run_it = f"Run it (agac run -a {plan.workflow})"
    remedy = f"{run_it}, then change its file, or name --prompt or --model."
    raise UsageError(what, remedy=remedy)


async def _answered(database: Database, run: int, position: int) -> dict[RowId, int]:
    """Reads the keys of the rows of the input that have an answer of the stage, by id."""
    keys: dict[RowId, int] = {}
    async for page in export_rows(database, run):
        results = await results_of_rows(database, [row.key for row in page])
        for row in page:
            result = results.get((row.key, position))
            if result is not None and result.value is not None:
                keys[row.id] = row.key
    return keys


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trial at work."""

    database: Database
    """The store."""

    version: SampledVersion
    """The version that is tried."""

    stage: str
    """The stage that is tried."""

    before: _EarlierAnswers
    """The answers that it is compared with."""

    ids: Sequence[RowId]
    """The rows with an earlier answer, in the order in which they are asked."""

    most: int
    """At most so many of these are asked."""

    within: float | None
    """How closely the share of altered rows has to be known; None: all rows are asked at once."""

    async def done(
        self,
        ask: Callable[[Sequence[RowId]], Awaitable[Invocation]],
        limit: int,
    ) -> StageTrial:
        """Asks rows until the share of altered ones is known as closely as it has to be, or the
        rows or the budget are used up, and reports the last comparison."""
        first = await side_of(self.database, self.before.run, self.stage)
        size = min(FIRST_ROWS, self.most) if self.within else self.most
        while True:
            invocation = await ask(self.ids[:size])
            comparison = await self._compared(first, invocation.run, self.ids[:size], limit)
            altered = self._altered(comparison)
            if size == self.most or not invocation.ended or self._is_sure(altered):
                return await self._report(invocation, size, comparison, altered)
            size = self._next_size(altered, size)

    async def _compared(
        self,
        first: dict[str, Any],
        run: int,
        ids: Sequence[RowId],
        limit: int,
    ) -> RunComparison:
        """Compares the rows that have an answer in both runs."""
        second = await side_of(self.database, run, self.stage)
        positions = (self.before.position, self.version.stage(self.stage).index)
        stages = [ComparedStage(self.stage, self.stage, positions)]
        comparison = RunComparison(first, second, None, stages)
        earlier = self.before.keys
        for some in slices(list(ids)):
            rows = await rows_by_id(self.database, run, some)
            pairs = [(row_id, earlier[row_id], _first_key(rows[row_id])) for row_id in rows]
            keys = [key for _, first_key, second_key in pairs for key in (first_key, second_key)]
            results = await results_of_rows(self.database, keys)
            for pair in pairs:
                lines = comparison.compared(pair, results)
                if lines[0].relation in IN_BOTH:
                    comparison.count(lines, limit)
        return comparison

    def _altered(self, comparison: RunComparison) -> Interval | None:
        """Estimates the share of all rows that the trial would alter."""
        both = comparison.rows["both"]
        if not both:
            return None
        return proportion(comparison.rows["changed"], both, of=len(self.ids))

    def _is_sure(self, altered: Interval | None) -> bool:
        """True if the share of altered rows is known as closely as it has to be."""
        if self.within is None:
            return True
        return altered is not None and altered.reach <= self.within

    def _next_size(self, altered: Interval | None, size: int) -> int:
        """Computes how many rows the next round has: as many as would be enough if the share stays
        what it is, and at most twice as many as this round."""
        share = altered.middle if altered else 0.5
        within = self.within or 1
        rows = len(self.ids)

        def is_enough(asked: int) -> bool:
            return proportion(round(share * asked), asked, of=rows).reach <= within

        enough = bisect_left(range(rows), True, lo=size + 1, key=is_enough)
        return min(self.most, 2 * size, enough)

    async def _report(
        self,
        invocation: Invocation,
        size: int,
        comparison: RunComparison,
        altered: Interval | None,
    ) -> StageTrial:
        """Reports the trial, and what it would cost to ask the other rows."""
        plan = await self.version.forecast(self.database, self.ids)
        rest = next(stage for stage in plan.stages if stage.name == self.stage)
        failed = comparison.second["failed"]
        exit_code = invocation.exit_code
        if exit_code is ExitCode.DONE and failed:
            exit_code = ExitCode.ROWS_FAILED
        return StageTrial(
            workflow=plan.workflow,
            stage=self.stage,
            rows=len(self.ids),
            tried=size,
            failed=failed,
            altered=altered,
            comparison=comparison,
            rest=rest.run,
            rest_usd=rest.estimate.usd,
            simulated=rest.simulated,
            stopped=invocation.stop_signal.why or None,
            exit_code=exit_code,
        )


def _first_key(repetitions: Sequence[StoredRow]) -> int:
    """Gives the key of the first of the rows that have the same id."""
    return min(repetitions, key=lambda row: row.occurrence).key
