"""Scores the answers of a stage against labels that its workflow does not see, model by model, on
the same rows: `agac eval`. The answers are stored, and reused by whatever asks the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from agac.api.comparison import ComparedAnswer, Relation
from agac.api.labels import LabelledAnswer, StageLabels, read_labels
from agac.api.plan import Confirm
from agac.api.run import WORST_FIRST
from agac.api.run_options import RunOptions
from agac.api.sampled_version import SampledVersion, confirm_price
from agac.api.sync import calling
from agac.api.watched_run import Watch
from agac.core.errors import ExitCode, UsageError, listed
from agac.core.statistics import Interval, paired_difference, proportion
from agac.core.types import Report, RowId, Usd
from agac.engine.run_state import Invocation
from agac.spec.project import StageChange
from agac.store.db import Database
from agac.store.writer import open_database

FAILED = "(failed)"
"""The column of a table of answers for rows that failed."""

ANOTHER = "(another)"
"""The column for answers that are no label."""


@dataclass(frozen=True, slots=True)
class ModelQuality(Report):
    """How well a model did. None: unknown, or it does not exist. `precision`, `recall` and
    `confusion` are empty if labels are no classes."""

    model: str
    """The model."""

    run: int
    """The run that asked it."""

    simulated: bool
    """True if the simulator answered."""

    stopped: str | None
    """Why it ended early."""

    judged: int
    """Rows with a right or a wrong answer. Others were not asked: a guard kept them, or the run
    ended."""

    right: int
    """How many of these are right."""

    failed: int
    """Rows that failed; they are judged, and wrong."""

    accuracy: Interval | None
    """The share of right answers."""

    difference: Interval | None
    """By how much its accuracy exceeds that of the first model, on the rows that were judged for
    both."""

    agreement: Interval | None
    """The share of rows whose replicas all agreed."""

    usd_per_1000_rows: Usd | None
    """What its answers cost, whenever they were asked."""

    seconds_per_1000_rows: float | None
    """The seconds of calls that they took."""

    precision: dict[str, Interval | None]
    """Of the answers that name a class the share that is right."""

    recall: dict[str, Interval | None]
    """Of the labels of a class the share that was found."""

    confusion: dict[str, dict[str, int]]
    """Rows by label and answer."""


@dataclass(frozen=True, slots=True)
class Evaluation(Report):
    """The answers of a stage scored against labels."""

    workflow: str
    """The workflow."""

    stage: str
    """The stage whose answers were scored."""

    label: str
    """The column of the labels."""

    field: str | None
    """The field of the answers that is compared; None: the whole answer."""

    rows: int
    """Rows that have a label."""

    unlabelled: int
    """Rows that have none."""

    asked: int
    """Rows that were drawn."""

    models: list[ModelQuality]
    """The models in the order in which they were asked."""

    minimum: Mapping[str, float]
    """What the lower bounds of figures have to reach."""

    missed: list[str]
    """Which model does not reach which of these."""

    exit_code: ExitCode
    """The worst of the models' exit codes, or 3 for a minimum that is missed or rows that
    failed."""


@calling
async def evaluate(
    workflow: Path | str,
    *,
    models: Sequence[str] = (),
    stage: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    minimum: Mapping[str, float] | None = None,
    yes: bool = False,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> Evaluation:
    """Asks the stage that has `expect` (of several: `stage`), and those before it, about the rows
    that have a label, or `sample` of them drawn with `seed`, with one of the models after the other
    (default: that of the files).

    `minimum` has what the lower bounds of `accuracy`, `agreement`, `precision.CLASS` or
    `recall.CLASS` have to reach. Shows the price and asks before the first call, unless `yes`.
    Raises UsageError, SpecError."""
    options = RunOptions(sample=1, seed=seed, yes=yes)
    files = await SampledVersion.ready(workflow, options, project)
    labels = read_labels(files, stage)
    minimum = minimum or {}
    _refuse_unknown_figures(labels, minimum)
    name = labels.stage.name
    rows = _drawn(labels, sample, seed)
    ids = list(dict.fromkeys(labels.ids[row] for row in rows))
    ready = partial(SampledVersion.ready, workflow, project=project)
    versions = await _versions(ready, replace(options, sample=len(rows)), labels, models)
    flags: dict[str, Any] = {"command": "eval", "stage": name, "model": list(models)}
    flags |= {"sample": sample, "seed": seed}
    qualities = _Qualities(labels, frozenset(rows))
    async with open_database(files.opened.store) as database:
        if not yes:
            forecasts = [await version.forecast(database, ids) for version in versions.values()]
            bound = "at most " if len(models) > 1 else ""
            confirm_price(confirm, forecasts, f"evaluating {name}", len(rows), bound)
        for model, version in versions.items():
            ended = await version.ask(database, ids, flags, progress, signals=handle_signals)
            await qualities.add(database, model, version, ended)
            if ended.exit_code is ExitCode.INTERRUPTED:
                break
    return qualities.report(files.checked.workflow.name, minimum)


async def _versions(
    ready: Callable[[RunOptions], Awaitable[SampledVersion]],
    options: RunOptions,
    labels: StageLabels,
    models: Sequence[str],
) -> dict[str, SampledVersion]:
    """Makes a version for each model, or one with that of the files."""
    versions: dict[str, SampledVersion] = {}
    for model in dict.fromkeys(models) or [labels.stage.lane]:
        change = StageChange(labels.stage.name, model, None) if models else None
        version = await ready(replace(options, change=change))
        versions[model] = replace(version, scope=labels.scope)
    return versions


def _drawn(labels: StageLabels, sample: int | None, seed: int) -> list[int]:
    """Draws the numbers of the rows to ask: a sample is the first part of a larger one."""
    rows = sorted(labels.forms)
    Random(seed).shuffle(rows)  # noqa: S311 - chance, not secrecy
    return rows[:sample]


def _refuse_unknown_figures(labels: StageLabels, minimum: Mapping[str, float]) -> None:
    """Raises UsageError for a minimum of a figure that does not exist, or that is no share."""
    figures = ["accuracy"]
    if labels.stage.vote:
        figures.append("agreement")
    for figure, label in product(("precision", "recall"), labels.classes):
        figures.append(f"{figure}.{label}")
    for name, least in minimum.items():
        if name not in figures or not 0 < least <= 1:
            what = f"--min {name}={least:g}: give a share of the rows, such as 0.9, for a figure"
            raise UsageError(what, remedy=f"Figures are {listed(figures)}.")


def _missed(models: Sequence[ModelQuality], minimum: Mapping[str, float]) -> Iterator[str]:
    """Says which model does not reach which minimum."""
    for quality, (name, least) in product(models, minimum.items()):
        figure, _, label = name.partition(".")
        interval: Any = getattr(quality, figure)
        if label:
            interval = interval[label]
        if interval is None:
            yield f"{quality.model}: {name} is not known, and has to reach {least:g}"
        elif interval.low < least:
            low = f"surely above {interval.low:.4g} only"
            yield f"{quality.model}: {name} is {low}, and has to reach {least:g}"


class _Qualities:
    """The figures of models, in the order in which they are asked."""

    def __init__(self, labels: StageLabels, asked: Collection[int]) -> None:
        self.models = list[ModelQuality]()
        self._labels = labels
        self._asked = asked
        self._first: Mapping[RowId, bool] = {}
        self._codes = list[ExitCode]()

    async def add(
        self,
        database: Database,
        model: str,
        version: SampledVersion,
        ended: Invocation,
    ) -> None:
        """Judges the answers that an invocation got from a model."""
        labels = self._labels
        judged = _Judged(labels.classes)
        async for answer in labels.answers(database, ended.run, self._asked):
            judged.count(answer)
        took = await labels.took(database, ended.run)
        table = judged.table()
        quality = ModelQuality(
            model=model,
            run=ended.run,
            simulated=version.stage(labels.stage.name).provider.simulated,
            stopped=ended.stop_signal.why or None,
            judged=len(judged.right),
            right=judged.hits,
            failed=judged.failed,
            accuracy=_share(judged.hits, len(judged.right)),
            difference=_difference(judged.right, self._first),
            agreement=_share(judged.votes[True], judged.votes.total()),
            usd_per_1000_rows=_per_thousand(took.usd, took.tasks),
            seconds_per_1000_rows=_rounded(_per_thousand(took.seconds, took.tasks)),
            precision=_precision(table),
            recall={label: _share(row[label], sum(row.values())) for label, row in table.items()},
            confusion=table,
        )
        if not self.models:
            self._first = judged.right
        self.models.append(quality)
        self._codes.append(ended.exit_code)

    def report(self, workflow: str, minimum: Mapping[str, float]) -> Evaluation:
        """Reports the evaluation of all models that were asked."""
        missed = list(_missed(self.models, minimum))
        return Evaluation(
            workflow=workflow,
            stage=self._labels.stage.name,
            label=self._labels.expect.label,
            field=self._labels.expect.field,
            rows=len(self._labels.forms),
            unlabelled=self._labels.unlabelled,
            asked=len(self._asked),
            models=self.models,
            minimum=minimum,
            missed=missed,
            exit_code=self.exit_code(missed if minimum else None),
        )

    def exit_code(self, missed: Sequence[str] | None) -> ExitCode:
        """Gives the worst of the models' exit codes; if all are fine, 3 for a minimum that is
        `missed` or, without any minimum (None), for rows that failed."""
        worst = min(self._codes, key=WORST_FIRST.index)
        if worst is not ExitCode.DONE:
            return worst
        if missed is None and any(quality.failed for quality in self.models):
            return ExitCode.ROWS_FAILED
        return ExitCode.ROWS_FAILED if missed else ExitCode.DONE


@dataclass(slots=True)
class _Judged:
    """How the answers of a model were judged."""

    classes: Sequence[str]
    """The labels that have figures of their own."""

    right: dict[RowId, bool] = field(default_factory=dict)
    """True for a right answer, False for a wrong one, by the number of the row."""

    failed: int = 0
    """How many rows failed."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows by label and answer."""

    votes: Counter[bool] = field(default_factory=Counter)
    """Votes by whether all replicas agreed."""

    def count(self, answer: LabelledAnswer) -> None:
        """Counts an answer. A row that was not asked is not judged."""
        line = answer.line
        if line.relation is Relation.ONLY_FIRST:
            return
        self.right[line.row] = line.relation is Relation.EQUAL
        self.failed += line.relation is Relation.FAILED
        self.pairs[line.first, self._column(line)] += 1
        if answer.unanimous is not None:
            self.votes[answer.unanimous] += 1

    def _column(self, line: ComparedAnswer) -> str:
        if line.relation is Relation.FAILED:
            return FAILED
        answer: str = line.second
        return answer if answer in self.classes else ANOTHER

    @property
    def hits(self) -> int:
        """How many answers are right."""
        return sum(self.right.values())

    def table(self) -> dict[str, dict[str, int]]:
        """Counts the rows by label and answer, each label with all answers that occur."""
        others = {answer for _, answer in self.pairs} - {*self.classes}
        columns = [*self.classes, *sorted(others)]
        table: dict[str, dict[str, int]] = {}
        for label in self.classes:
            table[label] = {answer: self.pairs[label, answer] for answer in columns}
        return table


def _precision(table: Mapping[str, Mapping[str, int]]) -> dict[str, Interval | None]:
    """Computes, of the answers that name each label, the share that is right."""
    shares: dict[str, Interval | None] = {}
    for label, row in table.items():
        answered = sum(other[label] for other in table.values())
        shares[label] = _share(row[label], answered)
    return shares


def _difference(right: Mapping[RowId, bool], first: Mapping[RowId, bool]) -> Interval | None:
    """Computes by how much the accuracy of a model exceeds that of the first, on rows judged for
    both."""
    both = Counter((right[row], first[row]) for row in right.keys() & first.keys())
    if not both:
        return None
    kinds = ((True, True), (True, False), (False, True), (False, False))
    return paired_difference(*(both[kind] for kind in kinds))


def _share(hits: int, rows: int) -> Interval | None:
    return proportion(hits, rows) if rows else None


def _per_thousand(total: float | None, tasks: int) -> float | None:
    """Computes what 1,000 rows take, if so many tasks take `total`."""
    if not total:
        return total
    return 1000 / (tasks or 1) * total


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds else seconds
