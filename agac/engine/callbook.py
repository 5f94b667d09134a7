"""Every call that was made, kept with what it brought, cost and took, and counted."""

from __future__ import annotations

import zlib
from collections import Counter

from agac.engine.flight import Flight
from agac.engine.quantiles import bucket_of
from agac.engine.totals import Totals
from agac.plan.stage import AnyStage
from agac.spec.workflow import KeepReplies
from agac.store.batch import Attempt, Call, TimingKey
from agac.store.ledger import Ledger

COMPRESS_FROM = 1024
"""Bytes. Shorter replies are stored as they came: deflating them costs time and saves nothing."""


class CallBook:
    """Puts calls into a run's ledger."""

    def __init__(self, ledger: Ledger, totals: Totals, keep_replies: KeepReplies) -> None:
        self._ledger, self._totals, self._keeps_all = ledger, totals, keep_replies == "all"

    def keep(self, flight: Flight, stage: AnyStage, fingerprint: bytes, call: Call, replica: int = 0) -> None:
        """Stores what one call brought and cost, whatever comes of it."""
        batch = self._ledger.batch
        kept = call.body if self._keeps_all or call.error or call.mended else None
        batch.attempts.append(Attempt(flight.new, stage.index, fingerprint, call, stored_reply(kept), replica))
        model = f"{call.endpoint.provider}/{call.endpoint.model}"
        error = call.error.type.value if call.error else ""
        simulated = call.endpoint.simulated
        cost = 0.0 if call.free else call.cost
        tally = batch.tally((stage.name, "call", error, model))
        tally.add_call(call.usage, cost, simulated)
        tally.held_cost += call.held_usd
        tally.held_tokens += call.held_tokens
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
