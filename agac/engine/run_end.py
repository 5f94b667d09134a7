"""The end of an invocation: what it commits, and the proof that no row vanished."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agac.core.keys import canonical
from agac.engine.ask.attempts import fields
from agac.engine.context import InvocationContext
from agac.engine.forecast.estimate import estimate, request_characters
from agac.engine.output.telemetry import cost_of
from agac.engine.run_state import Invocation, invocation_facts
from agac.engine.settle import Totals
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
    if totals.seen != totals.settled:
        raise AssertionError(f"{totals.seen} rows were read and {totals.settled} have an outcome")
    waiting = sum(one.rows for one in made if one.state == State.PENDING)
    if waiting != totals.made_parked:
        raise AssertionError(
            f"{waiting} rows that stages made have no outcome, {totals.made_parked} were left open"
        )
    for count in counts:
        if count.tasks < 0:
            raise AssertionError(
                f"{count.tasks} tasks of stage {count.stage!r} are counted as {count.outcome}"
            )


_NOTED = (
    "rows_done",
    "rows_failed",
    "rows_parked",
    "tasks_done",
    "tasks_reused",
    "calls",
    "given_up",
    "retries",
)
"""Counts of an invocation that its record keeps by their names."""


async def end_invocation(context: InvocationContext, invocation: Invocation) -> None:
    """Commits how the invocation ended."""
    totals = invocation.totals
    code = invocation.exit_code
    now = context.work.clocks.wall()
    event = context.places.event
    log_fields = fields(
        run=invocation.run, rows_done=totals.rows_done, rows_failed=totals.rows_failed
    )
    why = f"; {invocation.stop_signal.why}" if invocation.stop_signal.why else ""
    counts = (invocation.run, totals.rows_done, totals.rows_failed, why)
    _log.info("run %d: this invocation ended, %d rows done, %d failed%s", *counts, extra=log_fields)
    body = canonical(_record_of(context, invocation))
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


def _record_of(context: InvocationContext, invocation: Invocation) -> dict[str, Any]:
    """Returns what the store keeps of an invocation that ended."""
    totals = invocation.totals
    stop_signal = invocation.stop_signal
    record = invocation_facts(invocation) | {name: getattr(totals, name) for name in _NOTED}
    record["rows_seen"] = totals.seen
    if totals.short:
        record["rows_short"] = totals.short
    record["rows_left_failed"] = totals.left_failed + totals.failed_for_good
    record["cost_usd"] = cost_of(totals.cost, totals.unpriced)
    if totals.calls:
        record["serving"] = invocation.serving
    if totals.reviews:
        record["wait_for_people"] = totals.reviews
    if context.work.sharding is not None:
        record["taken"] = context.work.sharding.taken
    if not invocation.ended and stop_signal.stop is not None:
        record |= {"stop": stop_signal.stop.value, "stopped": stop_signal.why}
        last = totals.waiting_for
        if last is not None:
            record["waiting_for"] = {"type": last.type, "message": last.message}
    return record


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
            found = estimate(stage, own.requests, size, invocation.past, longer=1.0)
            about = stage.lane, found.basis, own.requests, None if stage.agent_spec else size
            took = found.calls, found.input_tokens, found.output_tokens, found.usd
            yield "estimate_keep", (invocation.run, stage.name, *about, *took)
