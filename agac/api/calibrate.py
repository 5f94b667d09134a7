"""Finds the threshold of a review or an escalation at which the rows that pass it are wrong seldom
enough, from what people decided, as a change of the workflow's file: `agac calibrate`."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.comparison import NoAnswer, Relation, relation
from agac.api.project import open_project
from agac.api.status import position_of, stored_run
from agac.api.sync import blocking
from agac.core.errors import ExitCode, SpecError, UsageError
from agac.core.statistics import Interval, proportion, sample_needed
from agac.core.text import split_lines
from agac.core.types import JSONValue, Report, inside
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.guards import Guard
from agac.spec.loader import load_workflow
from agac.spec.operations import Review
from agac.spec.paths import home_of
from agac.spec.project import Overrides
from agac.spec.project_files import required_text
from agac.spec.workflow import Stage
from agac.store.db import Database, select
from agac.store.runs import definition_of

_COMPARISON = re.compile(
    r"""
    \s* ([a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)+)  # a field of a stage
    \s* (<=?|>=?)
    \s* (-?[0-9.]+(?:[eE][+-]?[0-9]+)?) \s*
    """,
    re.VERBOSE,
)


class Threshold(NamedTuple):
    """A condition that compares a number of an answer with a constant. People look at the rows for
    which it is true; the others pass."""

    guard: Guard
    """The condition."""

    field: str
    """The path of the number, which begins with its stage."""

    sign: str
    """How it compares the number with the constant: `<`, `<=`, `>` or `>=`."""

    value: float
    """The constant."""

    start: int
    """The constant is `guard.text[start:end]`."""

    end: int

    @staticmethod
    def of(guard: Guard) -> Threshold:
        """Reads the threshold of a condition. Raises UsageError for any other condition."""
        found = _COMPARISON.fullmatch(guard.text)
        if found is None:
            text = guard.text.strip()
            what = f"`{text}` does not compare one number of a result with a constant"
            remedy = "Only conditions as `stage.field < 0.8` can be calibrated."
            raise UsageError(f"{guard.where}: {what}", remedy=remedy)
        return Threshold(guard, found[1], found[2], json.loads(found[3]), *found.span(3))

    def height(self, score: float) -> float:
        """Turns a number so that the rows above the threshold pass."""
        return score if self.sign[0] == "<" else -score

    def diff(self, text: str, value: float) -> str:
        """Makes the change of the workflow's file, which has this text, to another value, as `git
        apply` takes it. Raises UsageError unless the condition is written on one line as it is
        read."""
        where = self.guard.where
        guard = self.guard.text
        number = json.dumps(value)
        before = split_lines(text, ends=True)
        row = (where.line or 1) - 1
        line = before[row]
        begins = line.find(guard, (where.column or 1) - 1)
        if begins < 0:
            remedy = f"Write {number} there in the place of {guard[self.start : self.end]}."
            raise UsageError(f"{where}: the condition is not written on one line", remedy=remedy)
        after = list(before)
        after[row] = f"{line[: begins + self.start]}{number}{line[begins + self.end :]}"
        diff = unified_diff(before, after, f"a/{where.file}", f"b/{where.file}")
        return "".join(map(_diff_line, diff))


def _diff_line(line: str) -> str:
    """Writes a line of a diff, marked as git does if it is the end of a file without a line
    feed."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


class JudgedRow(NamedTuple):
    """A row that people were asked about."""

    score: float
    """The number that the condition looks at."""

    right: bool
    """True if they left its answer as it was."""

    drawn: bool
    """True if it was drawn for the sample."""


class CalibratedValue(NamedTuple):
    """What a threshold comes to."""

    value: float
    """The constant of the condition."""

    passing: int
    """Rows that pass it."""

    error: Interval
    """The share of these that is wrong."""

    drawn: int
    """Rows of the sample that tell of it."""

    looked_at: float
    """The share of all rows that people look at."""


def calibrated(
    threshold: Threshold,
    scores: Mapping[float, int],
    judged: Sequence[JudgedRow],
    target: float,
    edge: float,
) -> tuple[CalibratedValue | None, CalibratedValue | None]:
    """Computes what the threshold comes to as it is, and the one that lets the most rows pass with
    at most the share `target` of wrong ones among them; None: nothing passes, or too little is
    known. `scores` counts all rows by their number. The sample tells of the rows that pass the
    threshold `edge`, by Wilson's bound for so many drawn of so many. People looked at all other
    rows, so each of them is known.

    Thresholds are tried from the safest that the sample can judge on, and the first that fails ends
    the search: this order does not depend on what people decided, so the bound's confidence of 95 %
    holds for the threshold that is chosen."""
    rows = _KnownRows(threshold, threshold.height(edge), scores, judged)
    present = threshold.height(threshold.value)
    heights = {present, *(threshold.height(row.score) for row in judged)}
    judgments = [rows.judgment(height) for height in sorted(heights, reverse=True)]
    tried = [judgment for judgment in judgments if judgment is not None]
    first = _start([lowest for _, lowest in tried], target)
    best = None
    for value, _ in tried[first:]:
        if value.error.high > target:
            break
        best = value
    now = rows.judgment(present)
    return None if now is None else now[0], best


def _start(lowest: Sequence[float], target: float) -> int:
    """Finds the first threshold that is tried: one that would surely meet the target if all
    of its sample were right, half the target if there is one. `lowest` has the bounds of all."""
    for limit in (target / 2, target):
        for number, bound in enumerate(lowest):
            if bound <= limit:
                return number
    return len(lowest)


class _KnownRows:
    """What is known of the rows of a run, by their height. The lists are in ascending order."""

    def __init__(
        self,
        threshold: Threshold,
        edge: float,
        scores: Mapping[float, int],
        judged: Sequence[JudgedRow],
    ) -> None:
        self.threshold = threshold
        self.edge = edge
        """The height of the threshold with which the sample was drawn."""
        counted = sorted((threshold.height(score), count) for score, count in scores.items())
        self.heights = [height for height, _ in counted]
        self.sums = list(accumulate((count for _, count in counted), initial=0))
        """How many rows have less than each of these heights, and how many there are in all."""
        sample = [row for row in judged if row.drawn]
        shown = [row for row in judged if not row.drawn]
        self.drawn = self._heights(sample)
        self.drawn_wrong = self._heights(row for row in sample if not row.right)
        self.shown_right = self._heights(row for row in shown if row.right)

    def judgment(self, height: float) -> tuple[CalibratedValue, float] | None:
        """Computes what a threshold comes to, and the bound of its error if all of its sample were
        right; None: nothing passes, or too little is known."""
        edge = max(height, self.edge)
        rows = self._rows_above(height)
        unknown = self._rows_above(edge)
        sample = self._above(self.drawn, edge)
        if not rows or (unknown and not sample):
            return None
        shown_right = self._above(self.shown_right, height) - self._above(self.shown_right, edge)
        surely_wrong = max(rows - unknown - shown_right, 0)
        wrong = lowest = Interval(0, 0, 0)
        if unknown:
            whole = max(unknown, sample)
            wrong = proportion(self._above(self.drawn_wrong, edge), sample, of=whole)
            lowest = proportion(0, sample, of=whole)
        error = Interval(*((surely_wrong + unknown * share) / rows for share in wrong))
        looked_at = 1 - rows / self.sums[-1]
        value = CalibratedValue(self.threshold.height(height), rows, error, sample, looked_at)
        return value, lowest.high * unknown / rows

    def _heights(self, rows: Iterable[JudgedRow]) -> list[float]:
        return sorted(self.threshold.height(row.score) for row in rows)

    def _rows_above(self, height: float) -> int:
        """Counts the rows that pass a threshold."""
        return self.sums[-1] - self.sums[self._count_below(self.heights, height)]

    def _above(self, heights: Sequence[float], height: float) -> int:
        """Counts those of some rows that pass a threshold."""
        return len(heights) - self._count_below(heights, height)

    def _count_below(self, heights: Sequence[float], height: float) -> int:
        """Counts the heights that do not pass a threshold."""
        bisect = bisect_left if self.threshold.sign in ("<", ">") else bisect_right
        return bisect(heights, height)


@dataclass(frozen=True, slots=True)
class CalibrateReport(Report):
    """What people's decisions about a run say of a threshold."""

    workflow: str
    """The workflow."""

    stage: str
    """The stage whose condition it is."""

    run: int
    """The run whose decisions tell."""

    condition: str
    """The condition as it is written."""

    target: float
    """The share of the passing rows that may be wrong."""

    now: CalibratedValue | None
    """The threshold as it is; None: too little is known."""

    best: CalibratedValue | None
    """The threshold that meets the target; None: too little is known."""

    decided: int
    """Rows of the sample that tell."""

    waiting: int
    """Rows that wait for a decision; they count as wrong."""

    unapplied: int
    """Rows decided on since the last run; they count as wrong."""

    needed: int
    """So many rows of the sample have to tell at least."""

    diff: str
    """The change of the number in the workflow's file; empty: it is right as it is."""

    @property
    def exit_code(self) -> ExitCode:
        """3 if no threshold is known to meet the target."""
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
    """Finds the threshold of a review, or of a stage's escalation, that meets a share of errors
    among the rows that pass, from what people decided about the rows of the workflow's last run.
    Changes nothing. Raises UsageError for a condition that is no threshold."""
    opened = open_project(project, sound=True)
    loaded, problems = load_workflow(opened.spec, workflow, Overrides())
    if loaded is None:
        raise SpecError(problems)
    position_of(stage, [each.name for each in loaded.stages], "STAGE")
    condition = _condition(loaded.stages, stage, target)
    threshold = condition.threshold
    async with stored_run(opened.root, run, workflow) as (database, record):
        definition = await definition_of(database, record.id)
        recorded = {each.name: each for each in recorded_stages(definition)}
        edge = threshold.height(-inf)
        if condition.of_review:
            edge = _edge(threshold, recorded.get(stage), record.id, stage)
        positions = {name: each.index for name, each in recorded.items()}
        scores = await _scores(database, record.id, condition, positions)
        decisions = _Decisions(condition)
        await decisions.read(database, record.id, positions)
    now = best = None
    if scores:
        now, best = calibrated(threshold, scores, decisions.judged, target, edge)
    diff = ""
    if best and best.value != threshold.value:
        home = home_of(opened.root)
        file = threshold.guard.where.file
        diff = threshold.diff(required_text(home / file, file, home), best.value)
    return CalibrateReport(
        workflow=workflow,
        stage=stage,
        run=record.id,
        condition=threshold.guard.text.strip(),
        target=target,
        now=now,
        best=best,
        decided=decisions.decided,
        waiting=decisions.waiting,
        unapplied=decisions.unapplied,
        needed=sample_needed(target),
        diff=diff,
    )


async def _scores(
    database: Database,
    run: int,
    condition: _Condition,
    positions: Mapping[str, int],
) -> dict[float, int]:
    """Counts the rows of a run by the number that the condition looks at."""
    path = f"$.{'.'.join(condition.path)}"
    where = (path, run, condition.source_positions(positions))
    return dict(await select(database, "scores", tuple[float, int], *where))


class _Condition(NamedTuple):
    """The condition of a stage that is calibrated."""

    threshold: Threshold
    """The condition as a threshold."""

    sources: list[str]
    """The stages whose answers it looks at; the last one that a row went through counts."""

    reviews: list[str]
    """The reviews that tell of it: the stage itself or, for an escalation, those of the answers
    that it may replace."""

    of_review: bool
    """True if the condition is that of a review."""

    @property
    def path(self) -> list[str]:
        """The path of the number in an answer."""
        return self.threshold.field.split(".")[1:]

    def source_positions(self, positions: Mapping[str, int]) -> str:
        """Lists the positions of the sources in a run, as the store takes a list: JSON."""
        return json.dumps([positions[name] for name in self.sources if name in positions])


def _condition(stages: Sequence[Stage], name: str, target: float) -> _Condition:
    """Finds what there is to calibrate of a stage. Raises UsageError if it is nothing, and for a
    target that is no share."""
    by_name = {stage.name: stage for stage in stages}
    operation = by_name[name].operation
    escalation = by_name.get(f"{name}/escalate")
    of_review = isinstance(operation, Review)
    guard = operation.when if isinstance(operation, Review) else None
    if escalation is not None and not of_review:
        guard = escalation.guard
    remedy = "Name a stage with `review: {when: …}` or `escalate`, and a share, as 2%."
    if guard is None:
        raise UsageError(f"stage {name!r} has no condition", remedy=remedy)
    if not 0 < target < 1:
        raise UsageError(f"{target} is no share of rows", remedy=remedy)
    threshold = Threshold.of(guard)
    first = threshold.field.split(".")[0]
    conditional = escalation or by_name[name]
    sources = [first, *(late for late, amended in conditional.amended if amended == first)]
    reviews = [name] if of_review else _reviews_of(stages, name)
    return _Condition(threshold, sources, reviews, of_review)


def _reviews_of(stages: Sequence[Stage], name: str) -> list[str]:
    """Lists the reviews of a stage's answers."""
    return [
        stage.name
        for stage in stages
        if isinstance(stage.operation, Review) and stage.operation.edit == name
    ]


def _edge(threshold: Threshold, recorded: RecordedStage | None, run: int, stage: str) -> float:
    """Finds the threshold of a review with which a run was made: its sample is of what passed that
    one. Raises UsageError if the run was made with another condition."""
    operation = None if recorded is None else recorded.operation
    before = None
    if isinstance(operation, Review) and operation.when:
        before = Threshold.of(operation.when)
    if before is None or (before.field, before.sign) != (threshold.field, threshold.sign):
        what = f"run {run} was made with another condition at stage {stage!r}"
        remedy = "Run the workflow again, or name another run with --run."
        raise UsageError(what, remedy=remedy)
    return before.value


class _ShownRow(NamedTuple):
    """A row that was shown at a review. All but `how` are JSON."""

    why: str
    """Why it was shown."""

    how: str | None
    """How it passed the review: `auto`, `approved`, `manual`, `rejected`, or `decided` if no run
    applied the decision yet; None: it waits."""

    answer: str | None
    """The model's answer."""

    final: str | None
    """What the review came to."""


@dataclass(slots=True)
class _Decisions:
    """What people decided about the rows of a run."""

    condition: _Condition
    """The condition that is calibrated."""

    judged: list[JudgedRow] = field(default_factory=list)
    """The rows that tell of it."""

    waiting: int = 0
    """How many rows wait for a decision."""

    decided: int = 0
    """How many rows of the sample were decided on, and a run used that."""

    unapplied: int = 0
    """How many rows were decided on since the last run."""

    async def read(self, database: Database, run: int, positions: Mapping[str, int]) -> None:
        """Reads what came of the rows that were shown to people."""
        sources = self.condition.source_positions(positions)
        for review in self.condition.reviews:
            where = (run, review, positions.get(review), sources)
            shown = await select(database, "judged", tuple[Any, Any, Any, Any], *where)
            for columns in shown:
                self._count(_ShownRow(*columns))

    def _count(self, row: _ShownRow) -> None:
        """Counts a row, if its answer has a number that the condition looks at."""
        of_review = self.condition.of_review
        why = json.loads(row.why)
        is_drawn = "when" not in why and (not of_review or "sample" in why)
        answer = json.loads(row.answer or "null")
        score = inside(answer, self.condition.path)
        if not isinstance(score, int | float) or not (is_drawn or of_review):
            return
        is_right = relation(answer, _final_answer(row, why)) is Relation.EQUAL
        self.judged.append(JudgedRow(score, is_right, is_drawn))
        if row.how is None:
            self.waiting += 1
        elif row.how == "decided":
            self.unapplied += 1
        elif is_drawn:
            self.decided += 1


def _final_answer(row: _ShownRow, why: Mapping[str, Any]) -> JSONValue | NoAnswer:
    """Gives the answer that a review came to; MISSING if there is none, and if it was given again,
    as it says nothing of the first answer then."""
    if row.final is None or row.how not in ("approved", "manual"):
        return NoAnswer.MISSING
    if "redo" in why:
        return NoAnswer.MISSING
    final: JSONValue = json.loads(row.final)
    return final
