"""How often a task was asked: when its run asked it before, and what is known of why it was asked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agac.core.report import Moment, Report
from agac.core.types import Outcome
from agac.plan.definition import RecordedStage
from agac.spec.template import VARS
from agac.store.history import PastAttempts, TaskRecord

TOO_OLD = "the answer was older than max_age, or is no longer stored"


@dataclass(frozen=True, slots=True)
class Again(Report):
    """The last time that a task's run asked it before: with the `same` question, or with another one, and since when
    it is another: `because` says what is known of that."""

    JSON_KEYS = ("asked_at=at", "same_question=same", "because")

    at: Moment
    same: bool
    because: list[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run tells of a task: `present` is the asking that its outcome comes from, None when there is none, and
    `before` the last one of the others."""

    present: PastAttempts | None
    before: PastAttempts | None


def asked(askings: Sequence[PastAttempts], position: int, task: TaskRecord | None) -> Asked:
    """The askings of a stage of a row, of all of that row in the order of time."""
    own = [one for one in askings if one.stage == position]
    ended = task is not None and task.outcome != Outcome.REUSED
    present = next((one for one in reversed(own) if ended and task and one.fingerprint == task.fingerprint), None)
    return Asked(present, next((one for one in reversed(own) if one is not present), None))


def again(
    stages: Sequence[RecordedStage],
    position: int,
    fingerprint: bytes | None,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> Again | None:
    """The last time before. `fingerprint` is the present question's, `tasks` the row's by stage."""
    found = asked(askings, position, tasks.get(position))
    before = found.before
    if before is None:
        return None
    if before.fingerprint != fingerprint:
        return Again(before.at, same=False, because=_changed_since(stages, position, before, tasks, askings))
    return Again(before.at, same=True, because=[why_anew(found.present, answered=before.answered)])


Way = tuple[Sequence[RecordedStage], int, bytes | None, Mapping[int, TaskRecord], Sequence[PastAttempts]]
"""What `again` takes."""


def by_replica(
    stages: Sequence[RecordedStage],
    position: int,
    fingerprint: bytes | None,
    tasks: Mapping[int, TaskRecord],
    replicas: Mapping[tuple[int, int], TaskRecord],
    askings: Sequence[PastAttempts],
) -> Iterator[Way]:
    """The askings of a stage as if it were asked once: itself, or each of its replicas in turn. Of other stages with
    replicas the first one stands for all, since all have the same prompt."""
    first = {**tasks, **{stage: one for (stage, number), one in replicas.items() if number == 1}}
    elsewhere = [one for one in askings if one.stage != position and one.replica < 2]
    if stages[position].replicas == 1:
        yield stages, position, fingerprint, first, [one for one in askings if one.replica < 2]
        return
    for (stage, number), own in replicas.items():
        if stage == position:
            wanted = [one for one in askings if one.stage == position and one.replica == number]
            yield stages, position, own.fingerprint, {**first, position: own}, [*elsewhere, *wanted]


def why_anew(present: PastAttempts | None, *, answered: bool) -> str:
    """Why the very same question was asked again, after an asking that was `answered` or was not."""
    first = present.retry_from if present is not None else None
    if first is not None:
        return f"`agac retry --from {first}` asks anew"
    return TOO_OLD if answered else "it had no valid answer then"


def _changed_since(
    stages: Sequence[RecordedStage],
    position: int,
    before: PastAttempts,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> list[str]:
    """Within a run the workflow is the same: the row changed, or an answer that the prompt names."""
    names = [placeholder.name.partition(".")[0] for placeholder in stages[position].prompt.placeholders]
    before_it = [stage for stage in stages[:position] if stage.name in stages[position].ancestors]
    upstream = [stage for stage in before_it if stage.name in names]
    newer = [stage.name for stage in upstream if (task := tasks.get(stage.index)) and task.settled_at > before.at]
    found = [f"the answer of stage {name} changed" for name in newer]
    if not newer:
        return ["the row changed"]
    if not set(names) - {stage.name for stage in before_it} - {VARS}:
        return found
    return [
        *found,
        "the row changed" if _other_row(before_it, before, tasks, askings) else "perhaps the row too",
    ]


def _other_row(
    earlier: Sequence[RecordedStage],
    before: PastAttempts,
    tasks: Mapping[int, TaskRecord],
    askings: Sequence[PastAttempts],
) -> bool:
    """Whether a stage that sees nothing but the row was asked with another question then."""
    others = {stage.name for stage in earlier}
    for stage in earlier:
        alone = not others & {placeholder.name.partition(".")[0] for placeholder in stage.prompt.placeholders}
        then = [one for one in askings if one.stage == stage.index and one.at <= before.at]
        task = tasks.get(stage.index)
        if alone and then and task is not None and then[-1].fingerprint != task.fingerprint:
            return True
    return False
