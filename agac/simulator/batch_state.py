"""A batch: what was requested, how far it is at a moment, and the words of its provider."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from agac.simulator.kinds import JsonObject, Texts

DAY = 86_400.0
RESULTS_KEPT = 29 * DAY  # how long results are kept that have no file of their own


@dataclass(slots=True)
class Batch:
    """A batch. Times are seconds by the simulator's clock, sizes are bytes.

    The state file holds these fields as JSON.
    """

    id: str
    family: str
    """openai, azure or anthropic"""
    endpoint: str
    input_id: str
    """the file of its requests"""
    created_at: float
    seconds: float
    """how long all of it takes"""
    expires_at: float | None
    metadata: Texts | None = None
    faults: list[JsonObject] = field(default_factory=list)
    """the rules that were picked for it"""
    number: int = 0
    """which create it was, from 1"""
    model: str = ""
    validated: bool = False
    total: int = 0
    """how many requests it has"""
    enqueued_tokens: int = 0
    executed: int = 0
    """how many requests are done: the good ones and the bad ones"""
    read: int = 0
    """how much of the input was read by then"""
    out_size: int = 0
    err_size: int = 0
    good: int = 0
    """how many requests were answered, and charged"""
    bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cancel_at: float | None = None
    ended: str = ""
    """empty, completed, failed, expired or cancelled"""
    ended_at: float | None = None
    output_id: str | None = None
    error_id: str | None = None
    errors: list[JsonObject] = field(default_factory=list)
    """what is wrong with the input, as the provider lists it"""
    seq: int = 0
    """its place among all batches of the state file"""

    def fault(self, kind: str) -> JsonObject | None:
        """Returns the first of its faults of a kind."""
        return next((rule for rule in self.faults if rule["kind"] == kind), None)

    def hidden_by(self, kind: str, now: float) -> bool:
        """True while a fault with `seconds` applies, which count from the creation."""
        rule = self.fault(kind)
        return rule is not None and now < self.created_at + rule["seconds"]

    @property
    def reachable(self) -> int:
        """The number of its requests that will ever be done."""
        reachable = [self.total]
        stuck = self.fault("batch_stuck")
        if stuck is not None:
            stuck_after = self.total if self.stuck_status == "finalizing" else 0
            reachable.append(value_or(stuck.get("after"), stuck_after))
        expiring = self.fault("batch_expire")
        if expiring is not None:
            reachable.append(value_or(expiring.get("after"), self.total // 2))
        return min(reachable)

    @property
    def stuck_status(self) -> str:
        """The status at which it stays, empty for a batch that continues."""
        rule = self.fault("batch_stuck")
        return (rule.get("word") or "finalizing") if rule else ""

    def status(self, now: float) -> str:
        """Its status, in OpenAI's words or in those of a fault."""
        masked = self.masked_status(now)
        if masked:
            return masked
        if self.ended:
            return self.ended
        if self.cancel_at is not None:
            return "cancelling"
        if self.stuck_status == "validating" or not self.validated:
            return "validating"
        if self.stuck_status and self.executed >= self.reachable:
            return self.stuck_status
        return "finalizing" if self.executed >= self.total else "in_progress"

    def masked_status(self, now: float) -> str:
        """An unknown status, for as long as a fault says it."""
        rule = self.fault("batch_unknown_status")
        return str(rule["word"]) if rule and self.hidden_by("batch_unknown_status", now) else ""

    def request(self, number: int, custom_id: str) -> BatchRequest:
        """Returns what names one of its requests, which are numbered from 1."""
        mark = blake2b(f"{self.id}/{number}".encode(), digest_size=12).hexdigest()
        return BatchRequest(custom_id, mark)

    def due(self, now: float) -> int:
        """Returns how many requests are done by then: evenly over its time.

        Cancelled batches do no more.
        """
        if self.cancel_at is not None:
            return self.executed
        until = now if self.expires_at is None else min(now, self.expires_at)
        passed = until - self.created_at
        if self.seconds <= 0 or passed >= self.seconds:
            return self.reachable
        share = max(0.0, passed) / self.seconds
        return min(self.reachable, math.floor(self.total * share + 1e-9))

    def ending(self, now: float) -> tuple[str, float] | None:
        """Returns how and when it ends, None if it does not end by now."""
        if self.cancel_at is not None:
            return "cancelled", self.cancel_at
        if self.stuck_status:
            return None
        done_at = self.created_at + max(0.0, self.seconds)
        if self.expires_at is not None and done_at > self.expires_at:
            return ("expired", self.expires_at) if now >= self.expires_at else None
        if now < done_at:
            return None
        return ("expired" if self.fault("batch_expire") else "completed"), done_at

    def is_behind(self, now: float) -> bool:
        """True if work is due that is not done."""
        if not self.validated:
            return self.stuck_status != "validating" or self.cancel_at is not None
        return self.executed < self.due(now) or self.ending(now) is not None


def value_or(value: Any, default: Any) -> Any:
    """Returns the value, or the default for None."""
    return default if value is None else value


class BatchRequest(NamedTuple):
    """One request of a batch, as its line of results names it."""

    custom_id: str
    mark: str
    """the part of the provider's ids for it that differs from all others"""


@dataclass(slots=True)
class BatchOrder:
    """The content of a create's body."""

    endpoint: str
    input_id: str = ""
    """the uploaded file with the requests"""
    metadata: Texts | None = None
    requests: list[bytes] | None = None
    """the requests, one line each, where they are in the body: they are checked by then"""
