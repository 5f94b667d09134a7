"""A batch ended by its user."""

from __future__ import annotations

from agac.core.errors import AgacError, UsageError
from agac.engine.batch.collect import NOT_CANCELLED
from agac.engine.batch.find import UNSURE
from agac.engine.batch.states import AT_PROVIDER, BatchStep
from agac.engine.batch.tending import Tending
from agac.store.batches import BatchRecord

ENDED = "run"
"""What becomes of the tasks that it had not finished: nothing, before the user runs the workflow again."""


async def end(tended: Tending, record: BatchRecord) -> bool:
    """Ends a batch wherever it stands: whether anything was to be ended. Killed anywhere: decided is decided, the next
    look at it asks its provider again."""
    journal, note = tended.scene.journal, "its user ended it before it was created"
    step = BatchStep(record.state)
    if step in (BatchStep.PLANNED, BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED):
        ended = await journal.release(record, BatchStep.NOT_CREATED, ENDED, note)
        tended.collector.forget_files(ended)
        return True
    if step is BatchStep.CREATE_INTENT:
        record = await tended.submitter.look_for(record)
        if record.state == BatchStep.CREATE_INTENT:
            raise UsageError(
                f"whether batch {record.id} exists is not known yet: {record.note or 'it may still show up'}",
                remedy="run `agac doctor`, then the same command again",
            )
        return await end(tended, record)
    if step not in AT_PROVIDER or step is not BatchStep.SUBMITTED:
        return False
    if record.note == UNSURE:
        raise UsageError(
            f"batch {record.id} was taken for ours by its size alone, and may be somebody else's",
            remedy="its results will tell: wait until it has ended",
        )
    record = await tended.collector.cancel(await journal.cancel(record, ENDED))
    if (record.note or "").startswith(NOT_CANCELLED):
        raise AgacError(
            f"batch {record.id} runs on: {record.note}",
            remedy="it is decided, and the next command that looks at it asks again; to be sure run this one again",
        )
    await tended.collector.observe(record)
    return True
