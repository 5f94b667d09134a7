"""Sends the messages of the outbox (`notify`) while a run is alive and at its end; calls
heartbeats, and reports standstills; `agac notify test`.

Nothing of this changes how a run ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agac.api.invocation_summary import UnsentMessages
from agac.api.notify_send import NotSent, send
from agac.api.notify_targets import drop_unnamed
from agac.api.project import Project, open_project
from agac.api.sync import blocking
from agac.core.errors import ExitCode, StoreError, UsageError
from agac.core.types import Report, iso
from agac.engine.ask.retry_policy import backoff
from agac.engine.batch.doctor import stuck_seconds
from agac.engine.invocation import Work
from agac.engine.notify import Notifier
from agac.spec.loader import load_workflow, workflow_names
from agac.spec.notify import NotifyTarget, target_words
from agac.store import batches, runs
from agac.store.db import Database, change, sql, write
from agac.store.runs import Notification

if TYPE_CHECKING:
    from agac.api.report import RunReport
    from agac.engine.run_state import Invocation

SEND_SECONDS = 5.0
"""The longest that one attempt takes, and all sending once a run has ended."""

LOOK_SECONDS = 5.0
"""So often a run that is alive looks for messages to send."""

BEAT_SECONDS = 60.0
"""So often the heartbeat of a run that is alive is called."""

STUCK_SECONDS = 1800.0
"""Without any progress of an invocation, after which a message says so."""

CLAIMED_SECONDS = 60.0
"""For which a message is left to the process that sends it."""

MAX_ATTEMPTS = 30
"""After so many attempts a message is given up."""

MAX_DELAY = 3600.0
"""Seconds between two attempts, at most."""

_log = logging.getLogger("agac.notify")


@asynccontextmanager
async def notifying(database: Database, work: Work, invocation: Invocation) -> AsyncIterator[None]:
    """Calls heartbeats and sends messages during the block, and at its end what is left, for a few
    seconds."""
    with suppress(StoreError):  # whatever works with the store meets it too, and reports it
        invocation.dropped_messages += await drop_unnamed(database, work)
    ended = asyncio.Event()
    watching = asyncio.ensure_future(_Watch(database, work, invocation, ended).run())
    try:
        yield
    except Exception:  # whatever it is, it is reported, and raised again
        notifier = invocation.notifier
        if notifier is not None:
            with suppress(StoreError):  # whatever works with the store meets it too
                await notifier.tell(
                    "failed",
                    f"event {notifier.event}",
                    f"run {notifier.run} stopped",
                    f"agac status {notifier.run}",
                )
        raise
    finally:
        ended.set()
        await asyncio.wait({watching})
        if not watching.cancelled() and (error := watching.exception()):
            _log.warning("nobody could be told: %s", error)


class _Watch:
    """Watches an invocation until it has `ended`."""

    def __init__(
        self, database: Database, work: Work, invocation: Invocation, ended: asyncio.Event
    ) -> None:
        self._database = database
        self._work = work
        self._invocation = invocation
        self._ended = ended
        self._beat_at = 0.0
        self._mark = ""
        self._moved_at = time.monotonic()
        self._logged = set[str]()

    async def run(self) -> None:
        """Calls heartbeats, and sends what is due, until the end; then sends what is left."""
        if self._work.plan.rules.notify:
            while not self._ended.is_set():
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._ended.wait()
        await self._ended.wait()
        await _report_standstill(self._database, self._invocation, 0.0, "")
        await _deliver(self._database, self._work)

    async def _look(self) -> None:
        """Does once what is to be done while a run is alive."""
        now = time.monotonic()
        totals = self._invocation.totals
        counted = (totals.calls.count, totals.rows.seen, totals.rows.settled, totals.tasks.done)
        mark = " ".join(map(str, counted))
        if mark != self._mark:
            self._mark = mark
            self._moved_at = now
        if self._beat_at <= now:
            self._beat_at = now + BEAT_SECONDS
            await self._call_heartbeats()
        still = now - self._moved_at
        # whatever works with the store meets its errors too; heartbeats continue
        with suppress(StoreError):
            await _report_standstill(self._database, self._invocation, still, mark)
            await _deliver(self._database, self._work, retry=False)

    async def _call_heartbeats(self) -> None:
        """Calls each heartbeat; logs a failure once."""
        for target in self._work.plan.rules.notify:
            if target.heartbeat is None:
                continue
            try:
                await send(self._work, Notification("", {}, target.stored()), SEND_SECONDS)
            except NotSent as error:
                message = f"the heartbeat {target.heartbeat} is not called: {error}"
                if message not in self._logged:
                    _log.warning("%s", message)
                self._logged.add(message)


async def _deliver(database: Database, work: Work, *, retry: bool = True) -> None:
    """Sends what is due for a few seconds, with `retry` again what did not arrive. After a kill a
    message is sent again, with the same id."""
    until = time.monotonic() + SEND_SECONDS
    while (left := until - time.monotonic()) > 0:
        due = await runs.due_notifications(database, time.time())
        await asyncio.gather(*(_attempt(database, work, message, left) for message in due))
        _, next_at, _ = await runs.notifications_left(database)
        if next_at is None or not retry:
            break
        if next_at - time.time() > until - time.monotonic():
            break
        await asyncio.sleep(max(next_at - time.time(), 0))


async def _attempt(database: Database, work: Work, message: Notification, seconds: float) -> None:
    """Claims a message, sends it, and stores what came of that. A crash before the end leaves it
    claimed for CLAIMED_SECONDS."""
    now = time.time()
    claim = (now + CLAIMED_SECONDS, message.id, now)
    claimed = await change(
        database, lambda writer: writer.execute(sql("notification_claim"), claim).rowcount
    )
    if not claimed:
        return  # another process sends it
    try:
        await send(work, message, seconds)
    except NotSent as error:
        next_at = _next_attempt(message, error)
        await write(database, "notification_ended", next_at, None, str(error), message.id)
    else:
        await write(database, "notification_ended", None, time.time(), None, message.id)


def _next_attempt(message: Notification, error: NotSent) -> float | None:
    """Chooses when to send a message again; None gives it up, which is logged."""
    attempts = message.attempts + 1
    if attempts < MAX_ATTEMPTS:
        delay = CLAIMED_SECONDS if error.lacks else min(backoff(attempts), MAX_DELAY)
        return time.time() + delay
    _log.warning(
        "the message %r to %s is given up after %d attempts: %s. It is not sent; try the target "
        "with `agac notify test`",
        message.body["message"],
        target_words(message.target),
        MAX_ATTEMPTS,
        error,
    )
    return None


async def _report_standstill(
    database: Database, invocation: Invocation, still: float, mark: str
) -> None:
    """Reports batches that are stuck, and an invocation that made no progress for `still` seconds,
    since this mark."""
    notifier = invocation.notifier
    if notifier is None or not notifier.targets:
        return
    has_batches = False
    if invocation.batches.touched:
        has_batches = await _report_stuck_batches(database, notifier)
    asking = any(stage.in_flight for stage in invocation.totals.stages.values())
    if still > STUCK_SECONDS and (asking or not has_batches):
        await notifier.tell(
            "stuck",
            f"event {notifier.event} at {mark}",
            f"run {notifier.run} has made no progress for {still / 60:.0f} minutes",
            f"agac status {notifier.run}",
        )


async def _report_stuck_batches(database: Database, notifier: Notifier) -> bool:
    """Reports batches of the workflow that have not moved for long; True if it has batches."""
    found = await batches.batches(database, workflow=notifier.workflow)
    for batch in found:
        seconds = stuck_seconds(batch, time.time())
        if seconds:
            hours = f"{seconds / 3600:.1f} h"
            await notifier.tell(
                "stuck",
                f"batch {batch.id} since {batch.moved_at}",
                f"batch {batch.id} of run {batch.run_id} has not moved for {hours}",
                "agac doctor",
            )
    return len(found) > 0


async def reported(
    database: Database, work: Work, invocation: Invocation, report: RunReport
) -> RunReport:
    """Adds to the report what was not sent, if anything. A failure after the end of the work is
    sent, too."""
    notifier = invocation.notifier
    if notifier and invocation.ended and report.exit_code is ExitCode.FAILED:
        await notifier.tell(
            "failed",
            f"event {notifier.event}",
            f"run {notifier.run} ended, and its results lack something",
            f"agac status {notifier.run}",
            exit_code=1,
        )
        await _deliver(database, work)
    left, _, error = await runs.notifications_left(database)
    record = report.invocation_record
    notes = replace(
        record.notes,
        notifications=UnsentMessages(left, error) if left else None,
        dropped_messages=tuple(invocation.dropped_messages),
    )
    return replace(report, invocation_record=replace(record, notes=notes))


@dataclass(frozen=True, slots=True)
class NotifyReport(Report):
    """The messages of a test."""

    messages: list[Notification]
    """One for each target; its `error` says why it did not arrive."""


@blocking
async def notify_test(
    workflows: Sequence[str] = (), *, project: Path | str | None = None
) -> NotifyReport:
    """Sends a message of the kind `test` to every target of these workflows, or of all; heartbeats
    are called. Raises UsageError if there are none, SpecError if agac.yml has problems."""
    opened = open_project(project, sound=True)
    targets: dict[NotifyTarget, str] = {}
    for name in workflows or workflow_names(opened.spec):
        workflow, _ = load_workflow(opened.spec, name)
        if workflow is not None:
            targets |= dict.fromkeys(workflow.rules.notify, name)
    if not targets:
        raise UsageError(
            "nobody is to be told: there is no `notify`", remedy="Add it to agac.yml or a workflow."
        )
    tests = [_test_target(opened, target, name) for target, name in targets.items()]
    return NotifyReport(await asyncio.gather(*tests))


async def _test_target(opened: Project, target: NotifyTarget, workflow: str) -> Notification:
    """Sends a test message to a target of a workflow; gives it, with the error if there was one."""
    now = time.time()
    body = {
        "id": f"msg_test_{now:.0f}",
        "kind": "test",
        "workflow": workflow,
        "run": None,
        "at": iso(now),
        "message": f"{workflow}: this is a test of `notify`",
        "next": f"agac run -a {workflow}",
    }
    message = Notification(str(body["id"]), body, target.stored(), 1)
    try:
        await send(opened, message, SEND_SECONDS)
    except NotSent as error:
        return message._replace(error=str(error))
    return message
