"""Every call that was made, kept with what it brought, cost and took, and counted."""

from __future__ import annotations

from collections import Counter

from agac.engine.flight import Flight
from agac.engine.quantiles import bucket_of
from agac.engine.routes import record_call
from agac.engine.totals import Totals
from agac.plan.stage import AnyStage
from agac.spec.workflow import KeepReplies
from agac.store.batch import Call, TimingKey
from agac.store.ledger import Ledger


class CallBook:
    """Puts calls into a run's ledger."""

    def __init__(self, ledger: Ledger, totals: Totals, keep_replies: KeepReplies) -> None:
        self._ledger, self._totals, self._keeps_all = ledger, totals, keep_replies == "all"

    def keep(self, flight: Flight, stage: AnyStage, fingerprint: bytes, call: Call, replica: int = 0) -> None:
        """Stores what one call brought and cost, whatever comes of it."""
        batch = self._ledger.batch
        cost = record_call(batch, flight.new, stage, fingerprint, call, replica, keep_all=self._keeps_all)
        if call.answered:
            _time(batch.timings, stage.name, call)
        self._ledger.count_call()
        self.count(call, cost, stage)

    def count(self, call: Call, cost: float | None, stage: AnyStage) -> None:
        """Counts a call for this invocation."""
        totals, own = self._totals, self._totals.stage(stage.name)
        own.cost += cost or 0.0
        own.unpriced += cost is None
        own.simulated += call.endpoint.simulated
        if call.status is not None and call.status < 500 and not call.refused:
            totals.waiting_for = None
        totals.calls += 1
        totals.retries += call.again
        totals.repairs += call.purpose == "repair"
        totals.fallbacks += call.purpose == "fallback" and not call.again
        totals.ambiguous += call.ambiguous
        totals.input_tokens += call.usage.input_tokens or 0
        totals.output_tokens += call.usage.output_tokens or 0
        totals.cost += cost or 0.0
        totals.unpriced += cost is None
        totals.simulated += call.endpoint.simulated


def _time(timings: Counter[TimingKey], stage: str, call: Call) -> None:
    """Counts how long an answered call took."""
    timings[stage, "duration", bucket_of(call.duration)] += 1
    if call.ttft is not None:
        timings[stage, "ttft", bucket_of(call.ttft)] += 1
    if call.time_to_response is not None:
        timings[stage, "time_to_response", bucket_of(call.time_to_response)] += 1
