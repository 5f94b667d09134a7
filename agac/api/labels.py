"""Selects the two sides of `agac eval`: the labels of a stage, which its workflow does not see, and
the answers that a run has for their rows; and compares them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from agac.api.comparison import ComparedAnswer, NoAnswer, compared
from agac.api.sampled_version import SampledVersion, refuse_unfit
from agac.core.errors import UsageError, listed
from agac.core.keys import canonical
from agac.core.types import JSONValue, RowId, inside
from agac.engine.invocation import Scope
from agac.engine.output.run_summary import share
from agac.plan.plan import Selection
from agac.plan.stage import PlannedStage
from agac.spec.graph import giving
from agac.spec.stage_models import LabelFile
from agac.spec.workflow import Workflow, WrittenStage
from agac.store.db import Database, slices
from agac.store.history import agreements, stage_took
from agac.store.rows import StageResult, State, StoredRow, results_of_rows, rows_by_id

MAX_CLASSES = 50
"""Labels that can be classes. If there are more, answers are right or wrong, and there are no
tables of classes."""


class LabelledAnswer(NamedTuple):
    """A label compared with the answer of a run."""

    line: ComparedAnswer
    """The label and the answer, both as text; the row is its number in the input."""

    unanimous: bool | None
    """True if all replicas agreed; None: there was no vote."""


class Took(NamedTuple):
    """What the answers of a stage took whenever they were asked."""

    tasks: int
    """How many tasks were asked."""

    usd: float | None
    """None: unknown."""

    seconds: float | None
    """Seconds of their calls; None: unknown."""


@dataclass(frozen=True, slots=True)
class StageLabels:
    """The labels of a stage, and where its answers are."""

    stage: PlannedStage
    """The stage."""

    expect: LabelFile
    """What its file says of the labels."""

    givers: Mapping[str, int]
    """The positions of the stages that may give the answer, by name; those that amend it first."""

    scope: Scope
    """The stages that have to be asked."""

    forms: Mapping[int, str]
    """The labels as they are compared, by the number of the row."""

    ids: Mapping[int, RowId]
    """The ids of the rows with a label, by their numbers."""

    unlabelled: int
    """How many rows have no label."""

    classes: list[str]
    """The labels that have figures of their own; none if they are no classes."""

    async def answers(
        self,
        database: Database,
        run: int,
        asked: Collection[int],
    ) -> AsyncIterator[LabelledAnswer]:
        """Compares the labels of the rows with these numbers with what a run answered."""
        ids = dict.fromkeys(self.ids[number] for number in asked)
        for some in slices(list(ids)):
            repetitions = await rows_by_id(database, run, some)
            rows = [row for same_id in repetitions.values() for row in same_id]
            keys = [row.key for row in rows]
            results = await results_of_rows(database, keys)
            votes = await agreements(database, keys)
            for row in rows:
                if row.ordinal is None or row.ordinal not in asked:
                    continue
                label = self.forms[row.ordinal]
                answer = self._answer(row, results)
                line = compared(row.ordinal, self.stage.name, label, answer, self._is_right)
                agreement = votes.get(row.key, {}).get(self.stage.index)
                unanimous = None if agreement is None else share(agreement) == 1
                yield LabelledAnswer(line, unanimous)

    async def took(self, database: Database, run: int) -> Took:
        """Adds up what the tasks took that gave the stage its answers, with those that were asked
        again."""
        parts = [await stage_took(database, run, position) for position in self.givers.values()]
        *amending, own = parts
        tasks, usd, seconds = own
        for more_tasks, more_usd, more_seconds in amending:
            if more_tasks:
                usd = _sum(usd, more_usd)
                seconds = _sum(seconds, more_seconds)
        return Took(tasks, usd, seconds)

    def _answer(
        self,
        row: StoredRow,
        results: Mapping[tuple[int, int], StageResult],
    ) -> str | NoAnswer:
        """Gives the answer of a row as it is compared. MISSING if a guard kept the row from the
        stage, or the run ended before it."""
        has_failed = row.state == State.FAILED and row.error_stage is not None
        if has_failed and row.error_stage in self.givers:
            return NoAnswer.FAILED
        for position in self.givers.values():
            result = results.get((row.key, position))
            if result is not None and result.value is not None:
                return self._form_of_answer(result.value)
        return NoAnswer.FAILED if has_failed else NoAnswer.MISSING

    def _form_of_answer(self, text: str) -> str:
        path = self.expect.field.split(".") if self.expect.field else ()
        return _form(inside(json.loads(text), path))

    def _is_right(self, label: str, answer: str) -> bool:
        """True if the answer is the label, or a number that is near enough to it."""
        if answer == label:
            return True
        try:
            return abs(float(answer) - float(label)) <= self.expect.tolerance
        except ValueError:
            return False


def read_labels(version: SampledVersion, named: str | None) -> StageLabels:
    """Reads the labels of the stage that is `named`, or of the only one that expects some. Raises
    UsageError if there is none, or no row has a label."""
    workflow = version.checked.workflow
    written = _expecting_stage(workflow, named)
    refuse_unfit(workflow, written.name)
    assert written.expect is not None
    expect = written.expect
    givers = giving(written.name, workflow.stages)
    positions = {stage.name: stage.index for stage in givers if stage.asks}
    forms: dict[int, str] = {}
    ids: dict[int, RowId] = {}
    unlabelled = 0
    for row in version.checked.rows(Selection(), labels=True):
        label = None if row.error is not None else (row.data or {}).get(expect.label)
        form = "" if label is None else _form(label)
        if form:
            forms[row.ordinal] = form
            ids[row.ordinal] = row.id
        else:
            unlabelled += 1
    if not forms:
        what = f"no row of {workflow.input.shown} has a label in {expect.label!r}"
        raise UsageError(what, remedy="Fill the column, or name another one in `expect`.")
    return StageLabels(
        stage=version.stage(written.name),
        expect=expect,
        givers=positions,
        scope=Scope(frozenset((*written.ancestors, *positions))),
        forms=forms,
        ids=ids,
        unlabelled=unlabelled,
        classes=_classes(forms, expect),
    )


def _expecting_stage(workflow: Workflow, named: str | None) -> WrittenStage:
    """Finds the stage that expects labels. Raises UsageError unless it is exactly one."""
    expecting = [stage for stage in workflow.asking if stage.expect is not None]
    chosen = [stage for stage in expecting if named in (None, stage.name)]
    if len(chosen) != 1:
        what = f"stages that have `expect`: {listed(stage.name for stage in expecting)}"
        remedy = "Name one with --stage; write `expect: {label: COLUMN, field: FIELD}` on it."
        raise UsageError(what, remedy=remedy)
    return chosen[0]


def _classes(forms: Mapping[int, str], expect: LabelFile) -> list[str]:
    """Lists the labels in their order, if they are classes: no numbers with a tolerance, and not
    too many."""
    if expect.tolerance:
        return []
    labels = sorted(set(forms.values()))
    return labels if len(labels) <= MAX_CLASSES else []


def _form(value: JSONValue) -> str:
    """Writes a label or an answer as it is compared: in lower case, without white space around
    it; 3.0 is 3."""
    text = value.strip().lower() if isinstance(value, str) else canonical(value)
    if len(text) >= 16:  # a longer number has more digits than a float
        return text
    with suppress(ValueError):
        return f"{float(text):.15g}"
    return text


def _sum(first: float | None, second: float | None) -> float | None:
    """Adds two figures; the sum is unknown if one is."""
    if first is None or second is None:
        return None
    return first + second
