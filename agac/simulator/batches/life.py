"""How far a batch is at a moment: pure, from what was asked for, its faults and the clock."""

from __future__ import annotations

import math

from agac.simulator.batches.records import Batch


def due(batch: Batch, now: float) -> int:
    """How many of its requests are done by then: evenly from its creation on, over the seconds that it takes. A batch
    that was cancelled does no more than it had done."""
    if batch.cancel_at is not None:
        return batch.executed
    passed = (now if batch.expires_at is None else min(now, batch.expires_at)) - batch.created_at
    if batch.seconds <= 0 or passed >= batch.seconds:
        return most(batch)
    return min(most(batch), math.floor(batch.total * max(0.0, passed) / batch.seconds + 1e-9))


def most(batch: Batch) -> int:
    """How many of its requests will ever be done."""
    limits = [batch.total]
    if (rule := batch.fault("batch_expire")) is not None:
        limits.append(batch.total // 2 if rule.get("after") is None else rule["after"])
    if (rule := batch.fault("batch_stuck")) is not None:
        everything = batch.total if stuck_word(batch) == "finalizing" else 0
        limits.append(everything if rule.get("after") is None else rule["after"])
    return min(limits)


def ending(batch: Batch, now: float) -> tuple[str, float] | None:
    """How and when it ends, None while it does not."""
    if batch.cancel_at is not None:
        return "cancelled", batch.cancel_at
    if stuck_word(batch):
        return None
    done_at = batch.created_at + max(0.0, batch.seconds)
    if batch.expires_at is not None and done_at > batch.expires_at:
        return ("expired", batch.expires_at) if now >= batch.expires_at else None
    if now < done_at:
        return None
    return ("expired" if batch.fault("batch_expire") else "completed"), done_at


def stuck_word(batch: Batch) -> str:
    """The state at which it stays, empty for a batch that goes on."""
    rule = batch.fault("batch_stuck")
    return (rule.get("word") or "finalizing") if rule else ""


def validates(batch: Batch) -> bool:
    """Whether its input is ever looked at."""
    return stuck_word(batch) != "validating"


def word(batch: Batch, now: float) -> str:
    """Its state, in OpenAI's words or in those of a fault."""
    if batch.ended or batch.cancel_at is not None:
        plain = batch.ended or "cancelling"
    elif stuck := stuck_word(batch):
        there = stuck == "validating" or (batch.validated and batch.executed >= most(batch))
        plain = stuck if there else working(batch)
    else:
        plain = working(batch)
    return masked(batch, now) or plain


def working(batch: Batch) -> str:
    """The state of a batch that goes on."""
    if not batch.validated:
        return "validating"
    return "finalizing" if batch.executed >= batch.total else "in_progress"


def masked(batch: Batch, now: float) -> str:
    """A word that nobody knows, for as long as a fault says it."""
    rule = batch.fault("batch_unknown_status")
    return str(rule["word"]) if rule and now < batch.created_at + rule["seconds"] else ""
