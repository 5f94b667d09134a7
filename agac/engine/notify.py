"""Writes messages about a run (`notify`) into the outbox, each in the same commit as the event
that it is about; `api/notify` sends them.

A message has counts and a command to type, but nothing of any row, and no secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agac.core.errors import ExitCode
from agac.core.keys import canonical, message_id, snapshot
from agac.core.types import counted, iso
from agac.engine.output.run_summary import calls_of
from agac.engine.stop_rules import StopReason
from agac.spec.notify import NotifyKind, NotifyTarget
from agac.store import runs
from agac.store.batches import BatchRecord, BatchStep, project_token
from agac.store.db import Database, change, sql
from agac.store.rows import State, made_counts

Lines = list[tuple[str, tuple[Any, ...]]]
"""Statements by name with their values."""

_MESSAGES: dict[str, tuple[NotifyKind, str, str]] = {
    "finished": ("finished", "is finished", "agac inspect {}"),
    "limit": ("limit", "stopped at a limit", "agac status {}"),
    "failed": ("failed", "stopped", "agac status {}"),
    "review": ("review", "waits for {:,} decisions of people", "agac review next"),
    BatchStep.TERMINAL: ("batch_ended", "has ended", "agac batch retrieve"),
    BatchStep.REJECTED: ("batch_ended", "was refused", "agac batch status"),
    BatchStep.NEEDS_HUMAN: ("stuck", "needs a decision", "agac doctor"),
}
"""By how an invocation ended, or by the step of a batch: the kind of message, what happened, and
the next command."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """Makes the messages of one invocation."""

    database: Database
    """The store."""

    workflow: str
    """The name of the workflow."""

    run: int
    """The number of the run."""

    event: int
    """The number of the invocation."""

    targets: tuple[NotifyTarget, ...]
    """Who gets messages, and of which kinds."""

    now: Callable[[], float]
    """Gives the time in seconds since 1970."""

    async def lines(
        self, kind: NotifyKind, about: str, what: str, then: str, **facts: Any
    ) -> Lines:
        """Makes messages that say `what`, with `then`, the command to type.

        There is one message `about` a thing for each target, however often it is made."""
        targets = [
            target for target in self.targets if kind in target.on and target.heartbeat is None
        ]
        if not targets:
            return []
        token = await project_token(self.database)
        at = self.now()
        lines = Lines()
        head = {"kind": kind, "workflow": self.workflow, "run": self.run, "at": iso(at)}
        for stored in (canonical(target.stored()) for target in targets):
            name = message_id(token, f"{kind} {about}", stored)
            message = f"{self.workflow}: {what}"
            body = snapshot({"id": name, **head, "message": message, **facts, "next": then})
            values = (name, self.workflow, self.run, self.event, kind, body, stored, at)
            lines.append(("notification_put", values))
        return lines

    async def tell(self, kind: NotifyKind, about: str, what: str, then: str, **facts: Any) -> None:
        """Puts messages into the outbox in a commit of their own, since no other commit has what
        they are about."""
        lines = await self.lines(kind, about, what, then, **facts)
        await change(
            self.database,
            lambda writer: [writer.execute(sql(name), values) for name, values in lines],
        )

    async def ended(
        self, code: ExitCode, stop: StopReason | None, reviews: int, *, complete: bool
    ) -> Lines:
        """Makes the messages about the end of the invocation, with so many open reviews.

        There are none if the user stopped it, or if it waits for batches."""
        ending = _ending(stop, reviews, complete=complete)
        if not self.targets or ending is None:
            return []
        counts = await runs.counters(self.database, self.run)
        rows = runs.row_counts(counts)
        if not stop and (rows["failed"] or await self._any_made_failed()):
            code = ExitCode.ROWS_FAILED
        calls = calls_of(counts)
        facts: dict[str, Any] = {"exit_code": int(code), "rows": rows}
        if reviews:
            facts["waiting"] = reviews
        facts["cost_usd"] = calls.cost.usd
        facts["cost_is_simulated"] = calls.cost.is_simulated
        kind, event, then = _MESSAGES[ending]
        parts = [counted(rows["total"], "row")]
        parts += [f"{count:,} {name}" for name, count in rows.items() if count and name != "total"]
        text = f"run {self.run} {event.format(reviews)}: {', '.join(parts)}"
        return await self.lines(kind, f"event {self.event}", text, then.format(self.run), **facts)

    async def _any_made_failed(self) -> bool:
        """True if a row failed that a stage made."""
        counts = await made_counts(self.database, self.run)
        return any(count.rows for count in counts if count.state == State.FAILED)

    async def batch(self, record: BatchRecord, to: BatchStep | None) -> Lines:
        """Makes the messages about a step of a batch, if there are any about that step."""
        if to not in _MESSAGES:
            return []
        kind, event, then = _MESSAGES[to]
        text = f"batch {record.id} of run {record.run_id} {event}"
        return await self.lines(
            kind, f"batch {record.id}", text, then, batch=record.id, requests=record.tasks
        )


def _ending(stop: StopReason | None, reviews: int, *, complete: bool) -> str | None:
    """Names how an invocation ended, as `_MESSAGES` does; None: there is no message about it."""
    if stop in (StopReason.INTERRUPT, StopReason.QUOTE):
        return None
    if stop:
        return "limit" if stop is StopReason.LIMIT else "failed"
    if complete:
        return "finished"
    return "review" if reviews else None
