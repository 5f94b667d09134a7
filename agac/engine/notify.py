"""What somebody is told of a run (`notify`): lines of the outbox, each in the same commit as what
it tells of, which `api/notify` sends. A message holds counts and a command to type; nothing of any
row, and no secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agac.core.errors import ExitCode
from agac.core.keys import canonical, message_id, snapshot
from agac.core.types import counted, iso
from agac.engine.output.telemetry import calls_of
from agac.engine.stop_rules import StopReason
from agac.spec.notify import NotifyKind, NotifyTarget
from agac.store import runs
from agac.store.batches import BatchRecord, BatchStep, project_token
from agac.store.db import Database, change, sql
from agac.store.rows import State, made_counts

Lines = list[tuple[str, tuple[Any, ...]]]
"""Statements by name with their values."""

_SAID: dict[str, tuple[NotifyKind, str, str]] = {
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
    """Makes the messages of one invocation, for each of the `targets` that wants their kind."""

    database: Database
    workflow: str
    run: int
    event: int
    targets: tuple[NotifyTarget, ...]
    now: Callable[[], float]

    async def lines(
        self, kind: NotifyKind, about: str, what: str, then: str, **facts: Any
    ) -> Lines:
        """Messages that say `what`, and the command to type then. What was told `about` something
        is not told again."""
        wanted = [one for one in self.targets if kind in one.on and one.heartbeat is None]
        if not wanted:
            return []
        token = await project_token(self.database)
        at = self.now()
        found = Lines()
        head = {"kind": kind, "workflow": self.workflow, "run": self.run, "at": iso(at)}
        for target in (canonical(one.stored()) for one in wanted):
            name = message_id(token, f"{kind} {about}", target)
            body = snapshot(
                {"id": name, **head, "message": f"{self.workflow}: {what}", **facts, "next": then}
            )
            found.append(
                (
                    "notification_put",
                    (name, self.workflow, self.run, self.event, kind, body, target, at),
                )
            )
        return found

    async def tell(self, kind: NotifyKind, about: str, what: str, then: str, **facts: Any) -> None:
        """Puts messages into the outbox by themselves: of what no commit says, as that nothing
        happens."""
        found = await self.lines(kind, about, what, then, **facts)
        await change(
            self.database,
            lambda writer: [writer.execute(sql(name), values) for name, values in found],
        )

    async def ended(
        self, code: ExitCode, stop: StopReason | None, reviews: int, *, complete: bool
    ) -> Lines:
        """The end of the invocation, with so many open reviews: unless its user stopped it, or it
        waits for batches."""
        by_user = stop in (StopReason.INTERRUPT, StopReason.QUOTE)
        if not self.targets or by_user or not (stop or complete or reviews):
            return []
        if stop:
            how = "limit" if stop is StopReason.LIMIT else "failed"
        elif complete:
            how = "finished"
        else:
            how = "review"
        counts = await runs.counters(self.database, self.run)
        rows = runs.row_counts(counts)
        calls = calls_of(counts)
        made = sum(
            one.rows
            for one in await made_counts(self.database, self.run)
            if one.state == State.FAILED
        )
        if not stop and rows["failed"] + made:
            code = ExitCode.ROWS_FAILED
        kind, did, then = _SAID[how]
        words = ", ".join(
            f"{count:,} {name}" for name, count in rows.items() if count and name != "total"
        )
        said = (
            f"run {self.run} {did.format(reviews)}: "
            f"{counted(rows['total'], 'row')}{words and f', {words}'}"
        )
        facts = {"exit_code": int(code), "rows": rows, **({"waiting": reviews} if reviews else {})}
        facts |= {"cost_usd": calls.cost.usd, "cost_is_simulated": calls.cost.is_simulated}
        return await self.lines(kind, f"event {self.event}", said, then.format(self.run), **facts)

    async def batch(self, record: BatchRecord, to: BatchStep | None) -> Lines:
        """A step of a batch of the workflow."""
        if to not in _SAID:
            return []
        kind, did, then = _SAID[to]
        said = f"batch {record.id} of run {record.run_id} {did}"
        return await self.lines(
            kind, f"batch {record.id}", said, then, batch=record.id, requests=record.tasks
        )
