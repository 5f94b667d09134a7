"""Reuse of stored answers: since when they count for a row, and which of them it takes.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

from typing import TypeVar

from agac.core.errors import RowError
from agac.core.types import Outcome
from agac.engine.ask.validate import is_of_row
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.workflow import Stage
from agac.store.batches import ReadyTask
from agac.store.rows import PriorTask

Stored = TypeVar("Stored")


def answers_since(
    stage: AnyStage,
    *,
    run_since: float,
    now: float,
    keeps_old: bool,
    again_from: int | None,
    again_since: float,
) -> float:
    """Returns from when on stored answers of the stage count for a row, in seconds since 1970.

    `run_since` holds for all stages of the run. `keeps_old`: answers that grew older than
    `max_age` while the row waited still count. A retry runs the stages from the position
    `again_from` on again: of these only answers made at or after `again_since` count."""
    since = run_since
    if isinstance(stage, PlannedStage) and stage.settings.max_age is not None and not keeps_old:
        since = max(since, now - stage.settings.max_age)
    return since_of_retry(stage.index, since, again_from, again_since)


def since_of_retry(
    position: int, since: float, again_from: int | None, again_since: float
) -> float:
    """Returns from when on answers of the stage at `position` count, if a retry runs the stages
    from `again_from` on again; `since` holds without one."""
    if again_from is not None and position >= again_from:
        return max(since, again_since)
    return since


def keeps_old_answer(stage: AnyStage, prior: PriorTask | None, *, waited: bool) -> bool:
    """True if a row that `waited` for a batch or for people had an answer of the stage then."""
    if not waited:
        return False
    if stage.replicas > 1:
        return True  # each replica has an answer of its own
    return prior is not None and prior.outcome in (Outcome.DONE, Outcome.REUSED)


def is_answer_of_batch(ready: ReadyTask | None) -> bool:
    """True if a batch that the row's own task was in brought an answer which the row has not taken
    yet."""
    return ready is not None and ready.enrolled and ready.then_do is None and ready.error is None


def failure_of_batch(stage: Stage, ready: ReadyTask | None) -> RowError | None:
    """Returns the error that a batch brought for a task, if nothing more is tried for it. A task
    that waited for an equal one of another row is not bound by what checks found in that row."""
    if ready is None or ready.then_do is not None or ready.error is None:
        return None
    if ready.enrolled or not is_of_row(stage, ready.error):
        return ready.error
    return None


def taken_answer(
    stored: Stored | None, wrong: RowError | None, *, is_of_batch: bool
) -> Stored | RowError | None:
    """Returns the stored answer that a row takes, or None if the task has to be asked.

    `wrong` is what the stage's checks find in the answer for this row. A wrong answer that a batch
    brought for the row itself (`is_of_batch`) is its failure: no other check saw it with this row.
    Any other wrong answer is right for the row that asked for it, and is no answer for this one."""
    if wrong is None:
        return stored
    return wrong if is_of_batch else None
