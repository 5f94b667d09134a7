"""The one place where an outcome is decided and written: every road, sync or batch, ends here.

Nothing here waits: what is settled joins the ledger's next commit, with its counts, in one transaction.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from agac.core.errors import ANSWER_FAILURES, RowError
from agac.core.types import Outcome
from agac.engine.totals import Totals
from agac.plan.plan import PlannedStage
from agac.store.batch import Attempt, Call, NewRow, Result, RowEnd, TaskEnd
from agac.store.ledger import Ledger
from agac.store.rows import PriorTask, State

COMPRESS_FROM = 1024
"""Bytes. Shorter replies are stored as they came: deflating them costs time and saves nothing."""


@dataclass(slots=True)
class Flight:
    """A row at work. `prior` holds what became of its tasks earlier in this run, by stage index."""

    new: NewRow
    prior: dict[int, PriorTask] = field(default_factory=dict)


class Settler:
    """Writes outcomes of one run into its ledger, and counts them."""

    def __init__(
        self, ledger: Ledger, totals: Totals, stages: tuple[PlannedStage, ...], clock: Callable[[], float]
    ) -> None:
        self._ledger, self._totals, self._stages, self._clock = ledger, totals, stages, clock

    def call(self, flight: Flight, stage: PlannedStage, fingerprint: bytes, call: Call) -> None:
        """Stores what one call brought and cost, whatever comes of it."""
        batch = self._ledger.batch
        batch.attempts.append(Attempt(flight.new, stage.index, fingerprint, call, stored_reply(call.body)))
        model = f"{call.endpoint.provider}/{call.endpoint.model}"
        error = call.error.type.value if call.error else ""
        simulated = call.endpoint.simulated
        # A refused call (429, 500) has no usage and costs nothing: only an answer without a price is unpriced.
        cost = 0.0 if call.usage.input_tokens is None and call.error else call.cost
        batch.tally((stage.name, "call", error, model)).add_call(call.usage, cost, simulated)
        batch.calls += 1
        self._count_call(call, cost)
        self._ledger.touch()

    def given_up(self) -> None:
        """A call was cut off before its answer came: nothing is known of it but that it was sent."""
        self._totals.given_up += 1

    def _count_call(self, call: Call, cost: float | None) -> None:
        totals = self._totals
        totals.calls += 1
        totals.retries += call.number > 1 and call.purpose == "ask"
        totals.repairs += call.purpose == "repair"
        totals.ambiguous += call.ambiguous
        totals.input_tokens += call.usage.input_tokens or 0
        totals.output_tokens += call.usage.output_tokens or 0
        totals.cost += cost or 0.0
        totals.unpriced += cost is None
        totals.simulated += call.endpoint.simulated

    def task_done(self, flight: Flight, stage: PlannedStage, result: Result, outcome: Outcome) -> None:
        """A task has its result: `done` when it was asked for it, `reused` when the answer was there."""
        batch = self._ledger.batch
        prior = flight.prior.get(stage.index)
        if outcome is Outcome.DONE:
            batch.results.append(result)
            self._totals.tasks_done += 1
        else:
            self._totals.tasks_reused += 1
            if prior and prior.result_id == result.id and result.id and prior.fingerprint == result.fingerprint:
                return  # it is written already
        self._uncount(stage, prior)
        batch.tally((stage.name, outcome.value, "", "")).count += 1
        task = TaskEnd(flight.new, stage.index, result.fingerprint, outcome, result, None, 0, self._clock())
        batch.tasks.append(task)
        self._ledger.touch()

    def row_failed(self, flight: Flight, stage: PlannedStage, fingerprint: bytes | None, error: RowError) -> None:
        """A task failed, and with it its row: the stages that follow have nothing to work on."""
        batch = self._ledger.batch
        prior = flight.prior.get(stage.index)
        failures = 0
        if error.type in ANSWER_FAILURES:
            failures = 1 + (prior.failures if prior and prior.fingerprint == fingerprint else 0)
        self._uncount(stage, prior)
        batch.tally((stage.name, Outcome.FAILED.value, error.type.value, "")).count += 1
        task = TaskEnd(flight.new, stage.index, fingerprint, Outcome.FAILED, None, error, failures, self._clock())
        batch.tasks.append(task)
        self._forget_after(flight, stage)
        batch.ends.append(RowEnd(flight.new, State.FAILED, None, stage.name, error))
        batch.tally(("", Outcome.FAILED.value, error.type.value, "")).count += 1
        self._totals.rows_failed += 1
        self._totals.last_error = (error, flight.new.row.id)
        self._ledger.touch()

    def row_done(self, flight: Flight, result: Result) -> None:
        """A row went through all stages; `result` is the last one's."""
        batch = self._ledger.batch
        batch.ends.append(RowEnd(flight.new, State.DONE, result, None, None))
        batch.tally(("", Outcome.DONE.value, "", "")).count += 1
        self._totals.rows_done += 1
        self._ledger.touch()

    def _uncount(self, stage: PlannedStage, prior: PriorTask | None) -> None:
        """A task that is settled again is counted once."""
        if prior is not None:
            error = prior.error.type.value if prior.error else ""
            self._ledger.batch.tally((stage.name, prior.outcome.value, error, "")).count -= 1

    def _forget_after(self, flight: Flight, stage: PlannedStage) -> None:
        """What an earlier content of the row reached beyond this stage is no longer true."""
        for index, prior in flight.prior.items():
            if index > stage.index:
                self._ledger.batch.forgotten.append((flight.new.key, index))
                self._uncount(self._stages[index], prior)


def stored_reply(body: bytes | None) -> str | bytes | None:
    """A reply as the store keeps it: text while that is short, deflated when that is smaller."""
    if body is None:
        return None
    if len(body) >= COMPRESS_FROM:
        return zlib.compress(body, 1)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return zlib.compress(body, 1)
