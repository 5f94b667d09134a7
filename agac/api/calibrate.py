"""`agac calibrate`: the threshold of a review or an escalation at which what passes without it is
wrong seldom enough, from what people decided, as a change of the workflow's file."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.project import open_project
from agac.api.status import position_of, stored_run
from agac.api.sync import blocking
from agac.core.errors import ExitCode, SpecError, UsageError
from agac.core.statistics import Interval, proportion, sample_needed
from agac.core.text import split_lines
from agac.core.types import Report, inside
from agac.plan.stage import recorded_stages
from agac.spec.guards import Guard
from agac.spec.loader import load_workflow
from agac.spec.operations import Review
from agac.spec.paths import home_of
from agac.spec.project_files import required_text
from agac.spec.workflow import Overrides, Stage
from agac.store.db import select
from agac.store.runs import definition_of

_COMPARISON = re.compile(
    r"\s*([a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)+)\s*(<=?|>=?)\s*(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*"
)


class Threshold(NamedTuple):
    """A condition that compares a number field with a constant: rows for which it holds are
    looked at, the others pass. The field begins with its stage; the constant is
    `guard.text[start:end]`."""

    guard: Guard
    field: str
    sign: str
    value: float
    start: int
    end: int

    @staticmethod
    def of(guard: Guard) -> Threshold:
        """The threshold of a condition. Raises UsageError where it is no such comparison."""
        found = _COMPARISON.fullmatch(guard.text)
        if found is None:
            what = (
                f"{guard.where}: `{guard.text.strip()}` does not compare one number of a "
                "result with a constant"
            )
            raise UsageError(
                what, remedy="Only conditions as `stage.field < 0.8` can be calibrated."
            )
        return Threshold(guard, found[1], found[2], json.loads(found[3]), *found.span(3))

    def height(self, score: float) -> float:
        """How far up a number stands: those above the threshold pass."""
        return score if self.sign[0] == "<" else -score

    def diff(self, text: str, value: float) -> str:
        """The change of the workflow's file, which has this text, to another value, as `git apply`
        takes it. Raises UsageError where the condition is not written on one line as it is read."""
        where = self.guard.where
        guard = self.guard.text
        lines = split_lines(text, ends=True)
        row = (where.line or 1) - 1
        number = json.dumps(value)
        now = list(lines)
        begins = lines[row].find(guard, (where.column or 1) - 1)
        if begins < 0:
            remedy = f"Write {number} there in the place of {guard[self.start : self.end]}."
            raise UsageError(f"{where}: the condition is not written on one line", remedy=remedy)
        now[row] = f"{now[row][: begins + self.start]}{number}{now[row][begins + self.end :]}"
        found = unified_diff(lines, now, f"a/{where.file}", f"b/{where.file}")
        return "".join(
            one if one.endswith("\n") else f"{one}\n\\ No newline at end of file\n" for one in found
        )


class JudgedRow(NamedTuple):
    """A row to be looked at: its number, and whether the answer was `right`; `drawn`: it is one of
    the sample."""

    score: float
    right: bool
    drawn: bool


class CalibratedValue(NamedTuple):
    """What a threshold comes to: how many rows are `passing`, which share of those is wrong, of
    how many rows of the sample that is known, and the share of all rows that is `looked_at`."""

    value: float
    passing: int
    error: Interval
    drawn: int
    looked_at: float


def calibrated(
    threshold: Threshold,
    scores: Mapping[float, int],
    judged: Sequence[JudgedRow],
    target: float,
    edge: float,
) -> tuple[CalibratedValue | None, CalibratedValue | None]:
    """The threshold as it is, and the one that lets the most rows pass with at most the share
    `target` of wrong ones among them; None: nothing passes, or too little is known. `scores`: the
    numbers of all rows, each with its rows. The sample tells of rows that pass the threshold
    `edge`, by Wilson's bound for so many drawn of so many; the others were all looked at, so that
    each of them is known.

    Thresholds are tried from the safest that the sample can judge on, and the first that fails
    ends it: this order does not hang on what people said, so that the bound's confidence of 95 %
    holds for the one that is chosen."""
    at = bisect_left if threshold.sign in ("<", ">") else bisect_right
    places, rows_at = zip(
        *sorted((threshold.height(score), rows) for score, rows in scores.items()), strict=True
    )
    sums = [0, *accumulate(rows_at)]
    drawn, wrong, right = (
        sorted(
            threshold.height(one.score)
            for one in judged
            if one.drawn is is_drawn and one.right in kinds
        )
        for is_drawn, kinds in ((True, (True, False)), (True, (False,)), (False, (True,)))
    )

    def found(height: float) -> tuple[CalibratedValue, float] | None:
        """What the threshold comes to, and how sure the sample could be at most: its bound if all
        of it were right."""
        now = max(height, threshold.height(edge))
        rows, unknown = (int(sums[-1] - sums[at(places, one)]) for one in (height, now))
        sample, missed = (len(some) - at(some, now) for some in (drawn, wrong))
        if not rows or (unknown and not sample):
            return None
        surely = max(rows - unknown - at(right, now) + at(right, height), 0)
        known, sure = (
            proportion(hits, sample, of=max(unknown, sample)) if unknown else Interval(0, 0, 0)
            for hits in (missed, 0)
        )
        error = Interval(*((surely + unknown * share) / rows for share in known))
        value = CalibratedValue(threshold.height(height), rows, error, sample, 1 - rows / sums[-1])
        return value, sure.high * unknown / rows

    present = threshold.height(threshold.value)
    best = None
    heights = sorted({present, *(threshold.height(one.score) for one in judged)}, reverse=True)
    tried = [one for one in map(found, heights) if one is not None]
    starts = [
        n for most in (target / 2, target) for n, (_, bound) in enumerate(tried) if bound <= most
    ]
    for value, _ in tried[starts[0] :] if starts else ():
        if value.error.high > target:
            break
        best = value
    now = found(present)
    return now and now[0], best


@dataclass(frozen=True, slots=True)
class CalibrateReport(Report):
    """What people's decisions about a run say of a threshold. `now`: as it is, `best`: the one
    that meets the `target`; None: too little is known. `decided` rows of the sample tell, at least
    `needed` have to, and `waiting` ones count as wrong, as do `unapplied` ones, which were decided
    on since the last run. `diff` changes the number in the workflow's file; empty: it is right as
    it is."""

    workflow: str
    stage: str
    run: int
    condition: str
    target: float
    now: CalibratedValue | None
    best: CalibratedValue | None
    decided: int
    waiting: int
    unapplied: int
    needed: int
    diff: str

    @property
    def exit_code(self) -> ExitCode:
        """3 where no threshold is known to meet the target."""
        return ExitCode.DONE if self.best else ExitCode.ROWS_FAILED


@blocking
async def calibrate(
    stage: str,
    workflow: str,
    target: float,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
) -> CalibrateReport:
    """The threshold of a review, or of a stage's escalation, that meets a share of errors among
    the rows that pass, by what people decided about the rows of the workflow's last run. Changes
    nothing. Raises UsageError for a condition that is no threshold."""
    opened = open_project(project, sound=True)
    loaded, problems = load_workflow(opened.spec, workflow, Overrides())
    if loaded is None:
        raise SpecError(problems)
    position_of(stage, [one.name for one in loaded.stages], "STAGE")
    threshold, sources, asks = _condition(loaded.stages, stage, target)
    async with stored_run(opened.root, run, workflow) as (database, record):
        recorded = {
            one.name: one for one in recorded_stages(await definition_of(database, record.id))
        }
        made = recorded[stage].operation if stage in recorded else None
        of_review = asks == [stage]
        if of_review:
            edge = _edge(threshold, made, record.id, stage)
        else:
            edge = threshold.height(-inf)
        places = json.dumps([recorded[one].index for one in sources if one in recorded])
        path = threshold.field.split(".")[1:]
        scores = dict(
            await select(
                database, "scores", tuple[float, int], f"$.{'.'.join(path)}", record.id, places
            )
        )
        judged = list[JudgedRow]()
        waiting = 0
        decided = 0
        unapplied = 0
        for name in asks:
            about = record.id, name, recorded[name].index if name in recorded else None, places
            for why, how, answer, final in await select(
                database, "judged", tuple[Any, Any, Any, Any], *about
            ):
                asked = json.loads(why)
                value = json.loads(answer or "null")
                drawn = "when" not in asked and (not of_review or "sample" in asked)
                score = inside(value, path)
                if isinstance(score, int | float) and (drawn or of_review):
                    right = (
                        how in ("approved", "manual")
                        and json.loads(final) == value
                        and "redo" not in asked
                    )
                    judged.append(JudgedRow(score, right, drawn))
                    waiting += how is None
                    unapplied += how == "decided"
                    decided += drawn and how not in (None, "decided")
    now, best = calibrated(threshold, scores, judged, target, edge) if scores else (None, None)
    is_other = best is not None and best.value != threshold.value
    shown = threshold.guard.where.file
    diff = ""
    if best and is_other:
        home = home_of(opened.root)
        diff = threshold.diff(required_text(home / shown, shown, home), best.value)
    figures = now, best, decided, waiting, unapplied, sample_needed(target), diff
    return CalibrateReport(
        workflow, stage, record.id, threshold.guard.text.strip(), target, *figures
    )


def _condition(
    stages: Sequence[Stage], name: str, target: float
) -> tuple[Threshold, list[str], list[str]]:
    """The threshold of a stage, the stages whose answers it looks at (the last one that a row met
    counts), and the reviews that tell of it: itself, or for an escalation those of the answers
    that it may replace."""
    by_name = {one.name: one for one in stages}
    does = by_name[name].operation
    at = by_name.get(f"{name}/escalate", by_name[name])
    if isinstance(does, Review):
        guard = does.when
    elif at.name != name:
        guard = at.guard
    else:
        guard = None
    if guard is None or not 0 < target < 1:
        if guard is None:
            what = f"stage {name!r} has no condition"
        else:
            what = f"{target} is no share of rows"
        raise UsageError(
            what, remedy="Name a stage with `review: {when: …}` or `escalate`, and a share, as 2%."
        )
    threshold = Threshold.of(guard)
    first = threshold.field.split(".")[0]
    asks = [
        one.name
        for one in stages
        if isinstance(one.operation, Review) and one.operation.edit == name
    ]
    sources = [first, *(late for late, one in at.amended if one == first)]
    return threshold, sources, [name] if isinstance(does, Review) else asks


def _edge(threshold: Threshold, made: object, run: int, stage: str) -> float:
    """The threshold of a review with which a run was made: its sample is of what passed that
    one."""
    if isinstance(made, Review) and made.when:
        was = Threshold.of(made.when)
    else:
        was = None
    if was is None or was[1:3] != threshold[1:3]:
        what = f"run {run} was made with another condition at stage {stage!r}"
        raise UsageError(what, remedy="Run the workflow again, or name another run with --run.")
    return was.value
