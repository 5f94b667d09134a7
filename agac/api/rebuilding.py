"""What the stages of a stored row saw of it: the fields that it had there, and the results upstream; of a row that a
stage made also what those saw of which it was made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from agac.core.keys import definition_hash, local_fingerprint
from agac.core.types import Message, Outcome, RowId
from agac.engine.contents import Contents, array
from agac.engine.lineage import Lineage
from agac.engine.making import Member
from agac.engine.repeats import Places
from agac.plan.definition import RecordedStage
from agac.plan.prepare import Sight
from agac.spec.levels import levels_of
from agac.spec.template import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.db import Database
from agac.store.history import RowRecord, TaskRecord, parts_of, rows_above
from agac.store.rows import GroupSize, StageResult, group_sizes


def walked(stages: Sequence[RecordedStage], origin: int | None) -> tuple[RecordedStage, ...]:
    """The stages that rows go through which the stage at `origin` made; None: rows of the input."""
    return levels_of(stages).by_origin[origin].stages


async def rebuilt(database: Database, run: int, stages: Sequence[RecordedStage], row: RowRecord) -> Rebuilt:
    """The row as its first stage saw it."""
    lineage = Lineage(stages, stages[0].variables, database)
    own = frozenset(stage.name for stage in walked(stages, row.origin))
    if row.origin is None:
        return Rebuilt(lineage, lineage.begun(row.data, None, None), own, is_readable=json.loads(row.data) is not None)
    maker = stages[row.origin]
    if maker.group is None:
        assert row.parent_key is not None
        parents = await lineage.ended([row.parent_key])
        return Rebuilt(lineage, lineage.begun(row.data, row.origin, parents[row.parent_key]), own)
    member = Member.of(maker, {stage.name: stage for stage in stages})
    contents = Contents(Places(database, run, 0), lineage, member, maker.index)
    group, texts = row, None
    if row.parent_key is not None:
        (group,) = await rows_above(database, row.key)
        texts = await contents.of_part(group.key, row.data)
        size = GroupSize(len(texts or ()), 0, 0)
    else:
        size = (await group_sizes(database, [row.key])).get(row.key, GroupSize(0, 0, 0))
        if maker.group.fits(size.rows, size.tokens):
            texts = await contents.of_members(row.key)
        else:
            texts = await contents.of_parts(await _highest_parts(database, row.key))
    sight = lineage.begun(group.data, None, None)
    sight.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
    if texts is not None:
        sight.own[ROWS_JSON] = array(texts)
    return Rebuilt(lineage, sight, own)


async def _highest_parts(database: Database, group: int) -> list[str]:
    """The parts of a large group that are parts of no other one, in the order of what they hold."""
    bodies = {part.id: json.loads(part.data) for part in await parts_of(database, group)}
    below = {name for body in bodies.values() for name in body["parts"]}
    highest = [(body["low"], body["after"], str(name)) for name, body in bodies.items() if name not in below]
    return [name for _, _, name in sorted(highest)]


class Rebuilt:
    """One row, stage after stage: `learn` what became of each before the next is asked about. `sight` is what its first
    stage saw, `own` are the names of the stages that it goes through: of others upstream it was made."""

    def __init__(self, lineage: Lineage, sight: Sight, own: frozenset[str], *, is_readable: bool = True) -> None:
        self.is_readable = is_readable
        self._lineage, self._sight, self._own = lineage, sight, own
        self._passed: set[str] = set()

    def learn(self, stage: RecordedStage, task: TaskRecord | None) -> None:
        """What became of a stage: `task` None when nothing did, or when what did is of an earlier row."""
        if task is not None and task.outcome in (Outcome.SKIPPED, Outcome.DONE, Outcome.REUSED):
            self._passed.add(stage.name)
            self._lineage.replay(self._sight, stage, StageResult(task.value, task.outcome == Outcome.SKIPPED))

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Which of these stages did not let the row through, as far as it is known."""
        return [name for name in names if name in self._own and name not in self._passed]

    def lacking(self, stage: RecordedStage) -> str | None:
        """The first stage upstream of which nothing is known."""
        return next(iter(self.unknown(stage.ancestors)), None)

    def messages(self, stage: RecordedStage) -> tuple[Message, ...]:
        """What the stage asks of the row. Raises MissingField."""
        return stage.messages(self._sight)

    def fingerprint(self, stage: RecordedStage, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes | None:
        """The fingerprint of a stage that was asked with these messages; None of one that has none."""
        if stage.operation is None:
            return stage.fingerprint(messages, row_id, run)
        if not stage.is_kept:
            return None
        return local_fingerprint(definition_hash(stage.operation.body()), self._sight.given(stage))
