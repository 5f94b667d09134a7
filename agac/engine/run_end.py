"""The end of an invocation: what it commits, and the proof that no row vanished."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agac.core.keys import canonical
from agac.engine.ask.attempts import fields
from agac.engine.context import InvocationContext
from agac.engine.forecast.estimate import estimate, request_characters
from agac.engine.run_state import Invocation, invocation_start
from agac.engine.stored_invocation import (
    InvocationCounts,
    StoppedInvocation,
    StoredFault,
    StoredInvocation,
    TakenPacks,
)
from agac.engine.totals import Totals
from agac.plan.plan import Plan
from agac.store import runs
from agac.store.decisions import asked_by
from agac.store.rows import MadeCount, State
from agac.store.runs import Count

_log = logging.getLogger("agac.run")


def assert_accounted(totals: Totals, made: Sequence[MadeCount], counts: Iterable[Count]) -> None:
    """Raises AssertionError where rows that were to be worked on have no outcome though the run
    came to its end: those that were read, those that stages made (but for parked ones); or where a
    roll-up counts what is not there."""
    if totals.rows.seen != totals.rows.settled:
        raise AssertionError(
            f"{totals.rows.seen} rows were read and {totals.rows.settled} have an outcome"
        )
    waiting = sum(one.rows for one in made if one.state == State.PENDING)
    if waiting != totals.rows.made_parked:
        raise AssertionError(
            f"{waiting} rows that stages made have no outcome, {totals.rows.made_parked} were "
            "left open"
        )
    for count in counts:
        if count.tasks < 0:
            raise AssertionError(
                f"{count.tasks} tasks of stage {count.stage!r} are counted as {count.outcome}"
            )


async def end_invocation(context: InvocationContext, invocation: Invocation) -> None:
    """Commits how the invocation ended."""
    totals = invocation.totals
    code = invocation.exit_code
    now = context.work.clocks.wall()
    event = context.places.event
    log_fields = fields(
        run=invocation.run, rows_done=totals.rows.done, rows_failed=totals.rows.failed
    )
    why = f"; {invocation.stop_signal.why}" if invocation.stop_signal.why else ""
    counts = (invocation.run, totals.rows.done, totals.rows.failed, why)
    _log.info("run %d: this invocation ended, %d rows done, %d failed%s", *counts, extra=log_fields)
    body = canonical(_record_of(context, invocation).as_json())
    statements: list[tuple[str, Any]] = [("event_end", (now, code, body, event))]
    statements += _estimates(context.plan, invocation)
    notifier = invocation.notifier
    if notifier is not None:
        stop = None if invocation.ended else invocation.stop_signal.stop
        statements += await notifier.ended(code, stop, totals.reviews, complete=invocation.complete)
    if invocation.complete:
        statements.append(("run_finish", (now, invocation.run)))
    if invocation.ended:
        statements += await _superseded_reviews(context, invocation.run)
    await context.ledger.end(*statements)


def _record_of(context: InvocationContext, invocation: Invocation) -> StoredInvocation:
    """Returns what the store keeps of an invocation that ended."""
    totals = invocation.totals
    sharding = context.work.sharding
    return StoredInvocation(
        start=invocation_start(invocation),
        counts=InvocationCounts.of(totals),
        serving=invocation.calls.serving if totals.calls.count else None,
        wait_for_people=totals.reviews,
        packs=TakenPacks(sharding.taken) if sharding is not None else None,
        stop=_stop_of(invocation),
    )


def _stop_of(invocation: Invocation) -> StoppedInvocation | None:
    """Returns why an invocation stopped before its end; None: it did not."""
    stop_signal = invocation.stop_signal
    if invocation.ended or stop_signal.stop is None:
        return None
    fault = invocation.totals.calls.waiting_for
    return StoppedInvocation(
        stop_signal.stop.value,
        stop_signal.why,
        StoredFault(fault.type, fault.message) if fault is not None else None,
    )


async def _superseded_reviews(
    context: InvocationContext, run: int
) -> list[tuple[str, tuple[str, int]]]:
    """Returns the statements that withdraw the questions of runs that this one replaced."""
    workflow = context.plan.workflow
    database = context.places.database
    return [
        ("reviews_superseded", (workflow, earlier))
        for earlier in await asked_by(database, workflow)
        if earlier != run and await runs.superseded_by(database, earlier) is not None
    ]


def _estimates(plan: Plan, invocation: Invocation) -> Iterator[tuple[str, Any]]:
    """What the stages were expected to take, by what was known before and by the requests that
    were made: the next plan compares the lengths of its requests with these. It costs no second
    look at the rows."""
    for stage in plan.asking:
        own = invocation.totals.stages[stage.name]
        if own.requests:
            size = request_characters(stage, own.characters / own.requests)
            found = estimate(stage, own.requests, size, invocation.calls.past, longer=1.0)
            about = stage.lane, found.basis, own.requests, None if stage.agent_spec else size
            took = found.calls, found.input_tokens, found.output_tokens, found.usd
            yield "estimate_keep", (invocation.run, stage.name, *about, *took)
