"""Since when stored answers count, and which of them a row takes: the table that runs and plans share."""

from dataclasses import replace
from typing import Any

import pytest

from agac.core.errors import ErrorType, RowError
from agac.core.types import Outcome
from agac.engine.decide.reuse import (
    answers_since,
    failure_of_batch,
    is_answer_of_batch,
    keeps_old_answer,
    taken_answer,
)
from agac.plan.stage import PlannedStage
from agac.spec.workflow import Stage, StageSettings
from agac.store.batches import ReadyTask
from agac.store.rows import PriorTask

STAGE = Stage(name="one", index=3, needs=())
WRONG = RowError(ErrorType.CHECK_FAILED, "no")
REFUSED = RowError(ErrorType.REFUSED, "no")


def planned(max_age: float | None) -> Any:
    stage = object.__new__(PlannedStage)
    object.__setattr__(stage, "index", 3)
    object.__setattr__(stage, "settings", StageSettings(max_age=max_age))
    return stage


@pytest.mark.parametrize(
    ("max_age", "keeps_old", "again_from", "since"),
    [
        (None, False, None, 10.0),  # of --fresh
        (60.0, False, None, 40.0),
        (95.0, False, None, 10.0),  # --fresh is later
        (60.0, True, None, 10.0),  # they grew old while the row waited
        (None, False, 3, 70.0),
        (None, False, 4, 10.0),  # a retry from a later stage on
        (60.0, True, 0, 70.0),
        (20.0, False, 0, 80.0),  # a broken retry that is continued, and answers that are too old by now
    ],
)
def test_since_when_answers_count(max_age: float | None, keeps_old: bool, again_from: int | None, since: float) -> None:
    found = answers_since(
        planned(max_age), run_since=10.0, now=100.0, keeps_old=keeps_old, again_from=again_from, again_since=70.0
    )
    assert found == since


@pytest.mark.parametrize(
    ("outcome", "replicas", "waited", "keeps"),
    [
        (Outcome.DONE, 1, True, True),
        (Outcome.REUSED, 1, True, True),
        (Outcome.DONE, 1, False, False),
        (Outcome.FAILED, 1, True, False),
        (None, 1, True, False),  # it was not asked yet
        (None, 3, True, True),  # one of its replicas may have been
        (None, 3, False, False),
    ],
)
def test_which_rows_keep_answers_that_grew_old(
    outcome: Outcome | None, replicas: int, waited: bool, keeps: bool
) -> None:
    prior = PriorTask(1, 3, b"", outcome, None, None, 0) if outcome else None
    assert keeps_old_answer(replace(STAGE, replicas=replicas), prior, waited=waited) == keeps


def ready(then_do: str | None = None, *, enrolled: bool = True, error: RowError | None = None) -> ReadyTask:
    return ReadyTask(1, 3, 0, b"a", 0, 0, 0, then_do, enrolled, None, error)


@pytest.mark.parametrize(
    ("task", "is_answer", "failure"),
    [
        (None, False, None),
        (ready(), True, None),
        (ready(enrolled=False), False, None),  # an equal task was in the batch
        (ready(error=REFUSED), False, REFUSED),
        (ready(enrolled=False, error=REFUSED), False, REFUSED),
        (ready("repair", error=REFUSED), False, None),
        (ready("run"), False, None),
    ],
)
def test_what_batches_brought(task: ReadyTask | None, is_answer: bool, failure: RowError | None) -> None:
    assert is_answer_of_batch(task) == is_answer
    assert failure_of_batch(STAGE, task) == failure


@pytest.mark.parametrize(
    ("stored", "wrong", "is_of_batch", "taken"),
    [
        ("yes", None, False, "yes"),
        ("yes", None, True, "yes"),
        (None, None, True, None),
        ("yes", WRONG, False, None),  # right for the row that asked, not for this one
        ("yes", WRONG, True, WRONG),
    ],
)
def test_stored_answers(stored: str | None, wrong: RowError | None, is_of_batch: bool, taken: Any) -> None:
    assert taken_answer(stored, wrong, is_of_batch=is_of_batch) == taken
