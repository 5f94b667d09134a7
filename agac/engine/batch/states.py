"""The life of a batch, as a table: which step may follow which. Each step is one committed transition.

    PLANNED ─► BUILT ─► UPLOAD_INTENT ─► UPLOADED ─► CREATE_INTENT ─► SUBMITTED
            SUBMITTED ─► TERMINAL ─► DOWNLOADED ─► INGESTED ─► CLEANED

Providers that take requests inline pass over the upload pair. Aside: NOT_CREATED, REJECTED, NEEDS_HUMAN.
"""

from __future__ import annotations

from enum import StrEnum


class BatchStep(StrEnum):
    """A step of a batch's life. What a crash leaves in each is gone on with from it by the next command."""

    PLANNED = "PLANNED"  # tasks join it; its file is being written. A crash: the tasks go into another one
    BUILT = "BUILT"  # its file is whole and on the disk; nothing of it is known outside
    UPLOAD_INTENT = "UPLOAD_INTENT"  # its file is about to lie at the provider, or lies there: it is looked for
    UPLOADED = "UPLOADED"
    CREATE_INTENT = "CREATE_INTENT"  # it is about to exist, or exists and costs: it is looked for
    SUBMITTED = "SUBMITTED"  # it exists, and we know its name
    TERMINAL = "TERMINAL"  # nothing will happen to it any more: what it left is fetched
    DOWNLOADED = "DOWNLOADED"  # its results lie on this machine
    INGESTED = "INGESTED"  # each of its tasks has an end
    CLEANED = "CLEANED"  # its files are deleted, here and there
    NOT_CREATED = "NOT_CREATED"  # it never came to exist: its tasks go into another one
    REJECTED = "REJECTED"  # refused as a whole: nothing ran, nothing was charged
    NEEDS_HUMAN = "NEEDS_HUMAN"  # nobody can tell whether it exists, or what it cost is lost: somebody decides


_ON: dict[BatchStep, frozenset[BatchStep]] = {
    BatchStep.PLANNED: frozenset({BatchStep.BUILT, BatchStep.NOT_CREATED}),
    BatchStep.BUILT: frozenset({BatchStep.UPLOAD_INTENT, BatchStep.CREATE_INTENT, BatchStep.NOT_CREATED}),
    BatchStep.UPLOAD_INTENT: frozenset({BatchStep.UPLOADED, BatchStep.NOT_CREATED}),
    BatchStep.UPLOADED: frozenset({BatchStep.CREATE_INTENT, BatchStep.BUILT, BatchStep.NOT_CREATED}),
    BatchStep.CREATE_INTENT: frozenset(
        {BatchStep.SUBMITTED, BatchStep.UPLOADED, BatchStep.BUILT, BatchStep.REJECTED, BatchStep.NEEDS_HUMAN}
    ),
    BatchStep.SUBMITTED: frozenset(
        {
            BatchStep.TERMINAL,
            BatchStep.REJECTED,
            BatchStep.UPLOADED,
            BatchStep.BUILT,
            BatchStep.CREATE_INTENT,
            BatchStep.NEEDS_HUMAN,
        }
    ),
    BatchStep.TERMINAL: frozenset({BatchStep.DOWNLOADED, BatchStep.NEEDS_HUMAN, BatchStep.CREATE_INTENT}),
    BatchStep.DOWNLOADED: frozenset({BatchStep.INGESTED, BatchStep.TERMINAL, BatchStep.CREATE_INTENT}),
    BatchStep.INGESTED: frozenset({BatchStep.CLEANED}),
    BatchStep.CLEANED: frozenset(),
    BatchStep.NOT_CREATED: frozenset(),
    BatchStep.REJECTED: frozenset(),
    BatchStep.NEEDS_HUMAN: frozenset({BatchStep.SUBMITTED, BatchStep.NOT_CREATED}),
}

WAITING = frozenset({BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED, BatchStep.CREATE_INTENT})
"""Steps on the way to the provider: what is found in them is submitted, or waits until there is room."""

AT_PROVIDER = frozenset({BatchStep.SUBMITTED, BatchStep.TERMINAL, BatchStep.DOWNLOADED})
"""Steps at which it exists at the provider and has not been ingested."""


def may_follow(before: BatchStep, after: BatchStep) -> bool:
    """Whether a batch may go from one step to another."""
    return after in _ON[before]
