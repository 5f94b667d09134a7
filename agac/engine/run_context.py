"""Builds what the parts of an invocation share: budgets, stop rules, proof of writing, traces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agac.core.keys import canonical
from agac.core.types import Outcome
from agac.engine.ask.limits import BudgetLimiter, balances_of
from agac.engine.ask.review import Reviews, reviewings
from agac.engine.batch.coordinator import has_batches
from agac.engine.context import InvocationContext, RowFacts, WriteProof
from agac.engine.invocation import InvocationRef, ReopenedRows, Retry, Work
from agac.engine.run_state import Invocation, invocation_start
from agac.engine.settle import Settler
from agac.engine.stop_rules import StopRules, StopSignal
from agac.engine.totals import StageTotals, Totals
from agac.engine.walk.replay import RowViews
from agac.plan.plan import Plan
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database
from agac.store.decisions import discarded_at, fixes_of, redos_of
from agac.store.rows import first_event_since
from agac.store.runs import Count
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.engine.output.otlp import Traces

_log = logging.getLogger("agac.run")


async def open_context(
    database: Database, work: Work, invocation: Invocation, ledger: Ledger, event: int
) -> InvocationContext:
    """Makes what the parts share: budgets with what was spent of them, rules that stop the
    invocation, and what is known of rows."""
    plan = work.plan
    totals = invocation.totals
    stop_signal = invocation.stop_signal
    run = invocation.run
    counts = await runs.counters(database, run)
    totals.stages |= {stage.name: StageTotals() for stage in plan.stages}
    if work.retry is None and await runs.was_read(database, run):
        totals.rows.expected = runs.row_counts(counts)["total"]
    balances = balances_of(plan, counts, await runs.lost_calls(database, run, event))
    if balances or plan.rules.row:
        invocation.budgets = BudgetLimiter(stop_signal, balances, plan.rules.row)
    stops = _stop_rules(plan, stop_signal, counts)
    batched = await has_batches(database, plan)
    places = InvocationRef(database, run, event)
    settler = Settler(ledger, totals, plan.stages, work.clocks.wall, stops, plan.rules.keep_replies)
    redos = await redos_of(database, plan.workflow, _discarded_before(work.retry))
    reviews = None
    if reviewings(plan):
        last_discard = await discarded_at(database, plan.workflow)
        reviews = Reviews(work, places, ledger, settler, last_discard, redos)
    facts = canonical(invocation_start(invocation).as_json())
    names = [stage.name for stage in plan.stages]
    return InvocationContext(
        work=work,
        places=places,
        ledger=ledger,
        stop_signal=stop_signal,
        totals=totals,
        stops=stops,
        settler=settler,
        proof=WriteProof(ledger, _written_folders(work, batched=batched), facts),
        budgets=invocation.budgets,
        views=RowViews(plan.stages, plan.vars, database),
        row_facts=RowFacts(
            cutoffs=_cutoffs(plan, work.clocks.wall()),
            opened=await _opened_rows(database, plan, run, invocation.goal.retry),
            batched=batched,
            fixes=await fixes_of(database, plan.workflow, run, names),
            redos=redos,
        ),
        reviews=reviews,
        traces=await _traces(work, places, totals),
        notifier=invocation.notifier,
    )


def _discarded_before(retry: Retry | None) -> float:
    """Returns the time before which decisions are discarded, in seconds since 1970; 0: none are."""
    if retry is not None and retry.discard:
        return retry.since
    return 0.0


def _stop_rules(plan: Plan, stop_signal: StopSignal, counts: Iterable[Count]) -> StopRules:
    """Returns the rules that stop a run, which know the tasks done by earlier invocations."""
    done: Counter[str] = Counter()
    for count in counts:
        done[count.stage] += count.tasks if count.outcome == Outcome.DONE else 0
    rules = plan.rules
    return StopRules(stop_signal, done, stop_loss=rules.stop_loss, max_errors=rules.max_errors)


def _written_folders(work: Work, *, batched: bool) -> tuple[Path, ...]:
    """Returns the folders that an invocation writes into."""
    plan = work.plan
    folders = [work.root / work.output_dir]
    if plan.output.to is not None and not plan.selection.partial:
        database_file = plan.output.to.path
        if database_file is not None:
            folders.append(database_file.parent)
    if batched:
        folders.append(work.batching.folder)
    return tuple(folders)


def _cutoffs(plan: Plan, now: float) -> dict[int, float]:
    """Returns the time before which a stored answer is too old, by stages that limit the age."""
    return {
        stage.index: now - stage.settings.max_age
        for stage in plan.asking
        if stage.settings.max_age is not None
    }


async def _opened_rows(
    database: Database, plan: Plan, run: int, retry: Retry | None
) -> ReopenedRows | None:
    """Returns which rows a retry opened, and what continued it; None: there is no retry."""
    if retry is None:
        return None
    first = await first_event_since(database, run, retry.since)
    return ReopenedRows(first, retry.position(plan), retry.since)


async def _traces(work: Work, places: InvocationRef, totals: Totals) -> Traces | None:
    """Opens the sending of traces and metrics, if they are asked for; tests of workflows send none.
    If something is missing, it is logged."""
    settings = work.hooks.otel if work.hooks.answers is None else None
    if settings is None:
        return None
    lack = settings.refused
    try:
        if not lack:
            # an extra, which takes a quarter of a second to load
            from agac.engine.output.otlp import Traces

            return Traces(settings, work, places, await project_token(places.database), totals)
    except ModuleNotFoundError as missing:
        lack = f"they need {missing.name}, which is not installed: "
        lack += "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    except (ValueError, RuntimeError) as wrong:  # a variable that the SDK cannot use
        lack = work.redactor.clean(str(wrong))
    _log.warning("no traces or metrics are sent: %s", lack)
    return None
