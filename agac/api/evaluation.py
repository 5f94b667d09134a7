"""`agac eval`: the answers of a stage held against labels that its workflow does not see, model by model, on the same
rows. What the models answer is stored, and reused by whatever asks the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from agac.api.plan import Confirm
from agac.api.project import RunOptions
from agac.api.report import Watch
from agac.api.run import WORST_FIRST
from agac.api.sampled_version import SampledVersion, confirm_price, refuse_unfit
from agac.api.sync import calling
from agac.core.errors import ExitCode, UsageError, listed
from agac.core.keys import canonical
from agac.core.statistics import Interval, paired_difference, proportion
from agac.core.types import JSONValue, Report, RowId, Usd, inside
from agac.engine.invocation import Scope
from agac.engine.telemetry import share
from agac.plan.plan import Selection
from agac.spec.graph import giving
from agac.spec.workflow import StageChange
from agac.store.db import Database, slices
from agac.store.history import agreements, stage_took
from agac.store.rows import State, results_of_rows, rows_by_id
from agac.store.writer import open_database

MAX_CLASSES = 50
"""Labels that are told apart. Where there are more, answers are right or wrong, and there are no tables of them."""

FAILED, ANOTHER = "(failed)", "(another)"  # stand in a table for a row that failed, and for an answer that is no label


@dataclass(frozen=True, slots=True)
class ModelQuality(Report):
    """How a model did. Of the `judged` rows so many are `right`; those that `failed` are wrong. Others were not asked,
    for a guard kept them or the run ended. `difference`: by how much its accuracy exceeds that of the first model, on
    the rows that were judged for both; `agreement`: the part of the rows whose replicas all agreed. Dollars, and
    seconds of calls, are what its answers took whenever they were asked. Of a class `precision` is the part of its
    answers that is right, `recall` the part of its labels that was found; `confusion` counts rows by label and answer.
    They are empty where labels are no classes. None: unknown, or not there. `stopped`: why it ended early."""

    model: str
    run: int
    simulated: bool
    stopped: str | None
    judged: int
    right: int
    failed: int
    accuracy: Interval | None
    difference: Interval | None
    agreement: Interval | None
    usd_per_1000_rows: Usd | None
    seconds_per_1000_rows: float | None
    precision: dict[str, Interval | None]
    recall: dict[str, Interval | None]
    confusion: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Evaluation(Report):
    """The answers of a `stage` (their `field`; None: all of each) held against the column `label`, which so many `rows`
    have and `unlabelled` ones lack; `asked` of them were drawn. `missed`: which model lies below the `minimum`."""

    workflow: str
    stage: str
    label: str
    field: str | None
    rows: int
    unlabelled: int
    asked: int
    models: list[ModelQuality]
    minimum: Mapping[str, float]
    missed: list[str]
    exit_code: ExitCode


@calling
async def evaluate(
    workflow: Path | str, *, models: Sequence[str] = (), stage: str | None = None, sample: int | None = None,
    seed: int = 0, minimum: Mapping[str, float] | None = None, yes: bool = False, project: Path | str | None = None,
    progress: Watch | bool = False, confirm: Confirm | None = None, handle_signals: bool = False,
) -> Evaluation:  # fmt: skip
    """Asks the stage that has `expect` (of several: `stage`), and those before it, about the rows that have a label, or
    `sample` of them drawn with `seed`, with one of the models after the other (default: that of the files). `minimum`
    has what the lower bounds of `accuracy`, `agreement`, `precision.CLASS` or `recall.CLASS` have to reach. Tells the
    price and asks before the first call, unless `yes`. Raises UsageError, SpecError."""
    options, minimum = RunOptions(sample=1, seed=seed, yes=yes), minimum or {}
    files = await SampledVersion.ready(workflow, options, project)
    labels = _Labels(files, stage, minimum)
    name, rows = labels.stage.name, sorted(labels.forms)
    Random(seed).shuffle(rows)  # noqa: S311 - chance, not secrecy
    rows = rows[:sample]
    ids, versions = list(dict.fromkeys(labels.ids[row] for row in rows)), dict[str, SampledVersion]()
    for model in dict.fromkeys(models) or [labels.stage.lane]:
        change = StageChange(name, model, None) if models else None
        changed = replace(options, sample=len(rows), change=change)
        versions[model] = replace(await SampledVersion.ready(workflow, changed, project), scope=labels.scope)
    given = {"command": "eval", "stage": name, "model": list(models), "sample": sample, "seed": seed}
    found, codes, first = list[ModelQuality](), list[ExitCode](), dict[int, bool]()
    async with open_database(files.opened.store) as database:
        if not yes:
            forecasts = [await one.forecast(database, ids) for one in versions.values()]
            confirm_price(confirm, forecasts, f"evaluating {name}", len(rows), "at most " if models[1:] else "")
        for model, version in versions.items():
            ended = await version.ask(database, ids, given, progress, signals=handle_signals)
            facts = (model, ended.run, version.stage(name).provider.simulated, ended.stop_signal.why or None)
            judged = await labels.judged(database, ended.run, frozenset(rows))
            took = await labels.took(database, ended.run)
            found.append(_quality(facts, judged, first, labels, took))
            first = first if found[1:] else judged.right
            codes.append(ended.exit_code)
            if codes[-1] is ExitCode.INTERRUPTED:
                break
    missed, code = [], min(codes, key=WORST_FIRST.index)
    for one, (what, least) in product(found, minimum.items()):
        figures, _, of_class = what.partition(".")
        figure: Any = getattr(one, figures)
        if (figure := figure[of_class] if of_class else figure) is None or figure.low < least:
            low = "not known" if figure is None else f"surely above {figure.low:.4g} only"
            missed.append(f"{one.model}: {what} is {low}, and has to reach {least:g}")
    if code is ExitCode.DONE and (missed if minimum else any(one.failed for one in found)):
        code = ExitCode.ROWS_FAILED
    return Evaluation(
        files.checked.workflow.name, name, labels.expect.label, labels.expect.field, len(labels.forms),
        labels.unlabelled, len(rows), found, minimum, missed, code,
    )  # fmt: skip


def _form(value: JSONValue) -> str:
    """A label, or an answer, as they are compared: in lower case, without white space around it; 3.0 is 3."""
    text = value.strip().lower() if isinstance(value, str) else canonical(value)
    with suppress(ValueError):
        return f"{float(text):.15g}" if len(text) < 16 else text
    return text


class _Judged(NamedTuple):
    """By the number of a row whether its answer is right; rows by label and answer; whether all replicas agreed."""

    right: dict[int, bool]
    pairs: Counter[tuple[str, str]]
    votes: Counter[bool]


class _Labels:
    """The labels of a stage: their `forms`, and the ids of their rows, by the rows' numbers; what they tell apart."""

    def __init__(self, version: SampledVersion, named: str | None, minimum: Mapping[str, float]) -> None:
        """Those of the stage that is `named`, or of the only one that expects some. Raises UsageError where there is
        none, and for a minimum of figures that there are not."""
        workflow = version.checked.workflow
        expecting = [one for one in workflow.asking if one.expect is not None]
        what = f"stages that have `expect`: {listed(one.name for one in expecting)}"
        if len(expecting := [one for one in expecting if named in (None, one.name)]) != 1:
            raise UsageError(what, remedy="Name one with --stage; write `expect: {label: COLUMN, field: FIELD}` on it.")
        (written,) = expecting
        refuse_unfit(workflow, written.name)
        assert written.expect is not None
        self.stage, self.expect = version.stage(written.name), written.expect
        self.giving = {one.name: one.index for one in giving(written.name, workflow.stages) if one.asks}
        self.scope = Scope(frozenset((*written.ancestors, *self.giving)))
        self.forms, self.ids, self.unlabelled = dict[int, str](), dict[int, RowId](), 0
        for row in version.checked.rows(Selection(), labels=True):
            label = (row.data or {}).get(self.expect.label)
            if row.error is not None or label is None or not (form := _form(label)):
                self.unlabelled += 1
            else:
                self.forms[row.ordinal], self.ids[row.ordinal] = form, row.id
        if not self.forms:
            what = f"no row of {workflow.input.shown} has a label in {self.expect.label!r}"
            raise UsageError(what, remedy="Fill the column, or name another one in `expect`.")
        classes = sorted(set(self.forms.values())) if not self.expect.tolerance else []
        self.classes = classes if len(classes) <= MAX_CLASSES else []
        figures = ["accuracy", *(["agreement"] if self.stage.vote else [])]
        figures += [f"{what}.{one}" for what in ("precision", "recall") for one in self.classes]
        for name, least in minimum.items():
            if name not in figures or not 0 < least <= 1:
                what = f"--min {name}={least:g}: give a share of the rows, such as 0.9, for a figure"
                raise UsageError(what, remedy=f"Figures are {listed(figures)}.")

    async def judged(self, database: Database, run: int, asked: Collection[int]) -> _Judged:
        """What a run came to for the rows with these numbers."""
        at, found = self.stage.index, _Judged({}, Counter(), Counter())
        for ids in slices(list(dict.fromkeys(self.ids[row] for row in asked))):
            rows = [row for same in (await rows_by_id(database, run, ids)).values() for row in same]
            keys = [row.key for row in rows]
            results, votes = await results_of_rows(database, keys), await agreements(database, keys)
            for row in rows:
                given = (results.get((row.key, index)) for index in self.giving.values())
                value = next((one.value for one in given if one and one.value is not None), None)
                value = None if row.state == State.FAILED and row.error_stage in self.giving else value
                ended = value is not None or (row.state == State.FAILED and row.error_stage is not None)
                if ended and row.ordinal is not None and row.ordinal in asked:
                    label, answer = self.forms[row.ordinal], FAILED if value is None else self._answer(value)
                    found.right[row.ordinal] = value is not None and (answer == label or self._is_near(answer, label))
                    found.pairs[label, answer if answer in (FAILED, *self.classes) else ANOTHER] += 1
                    found.votes.update(share(one) == 1 for stage, one in votes.get(row.key, {}).items() if stage == at)
        return found

    async def took(self, database: Database, run: int) -> tuple[int, float | None, float | None]:
        """How many tasks gave the stage its answers, and their USD and seconds, with those that were asked again."""
        *again, first = [await stage_took(database, run, index) for index in self.giving.values()]
        tasks, usd, seconds = first
        for _, more_usd, more_seconds in (one for one in again if one[0]):
            usd = None if usd is None or more_usd is None else usd + more_usd
            seconds = None if seconds is None or more_seconds is None else seconds + more_seconds
        return tasks, usd, seconds

    def _answer(self, text: str) -> str:
        return _form(inside(json.loads(text), self.expect.field.split(".") if self.expect.field else ()))

    def _is_near(self, answer: str, label: str) -> bool:
        try:
            return abs(float(answer) - float(label)) <= self.expect.tolerance
        except ValueError:
            return False


def _quality(
    facts: tuple[str, int, bool, str | None], judged: _Judged, first: Mapping[int, bool], labels: _Labels,
    took: tuple[int, float | None, float | None],
) -> ModelQuality:  # fmt: skip
    """What was judged of a model with these facts, beside the `first` one, and what its tasks took."""
    (right, pairs, votes), (tasks, dollars, seconds) = judged, took
    hits, thousand = sum(right.values()), 1000 / (tasks or 1)
    both = Counter((right[row], first[row]) for row in right.keys() & first.keys())
    counts = [both[pair] for pair in ((True, True), (True, False), (False, True), (False, False))]
    columns = [*labels.classes, *sorted({answer for _, answer in pairs} - {*labels.classes})]
    table = {one: {made: pairs[one, made] for made in columns} for one in labels.classes}
    return ModelQuality(
        *facts, len(right), hits, sum(count for (_, answer), count in pairs.items() if answer == FAILED),
        _part(hits, len(right)), paired_difference(*counts) if both else None, _part(votes[True], votes.total()),
        dollars and thousand * dollars, seconds and round(thousand * seconds, 3),
        {one: _part(own[one], sum(made[one] for made in table.values())) for one, own in table.items()},
        {one: _part(own[one], sum(own.values())) for one, own in table.items()}, table,
    )  # fmt: skip


def _part(hits: int, rows: int) -> Interval | None:
    return proportion(hits, rows) if rows else None
