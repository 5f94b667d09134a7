"""What goes wrong with batches, and when: at a call of the API, with a whole batch, or with some of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agac.simulator.faults import chance

OPERATIONS = ("create", "upload", "poll", "download", "cancel", "list", "delete", "files")
"""The calls of a batch API, each counted by itself: `files` lists files or looks at one."""

CALL_KINDS: dict[str, tuple[str, ...]] = {
    "batch_drop_before": ("op",),
    "batch_drop_after": ("op",),
    "batch_status": ("op", "status", "when", "retry_after", "in_ms", "type", "code", "message"),
    "batch_slow": ("op", "seconds"),
    "batch_truncate": ("after_bytes",),
    "batch_file_lag": ("times",),
}
"""Faults of one call, with the keys of each. `batch_truncate` is about downloads, `batch_file_lag` about uploads."""

BATCH_KINDS: dict[str, tuple[str, ...]] = {
    "batch_list_lag": ("seconds",),
    "batch_get_404": ("seconds",),
    "batch_no_metadata": (),
    "batch_reject": ("code", "line", "message"),
    "batch_enqueued_cap": ("tokens",),
    "batch_expire": ("after",),
    "batch_stuck": ("word", "after"),
    "batch_unknown_status": ("word", "seconds"),
    "batch_counts_lie": (),
    "batch_null_output": (),
    "batch_empty_output_id": (),
    "batch_zero_error_file": (),
    "batch_gone": (),
    "batch_shuffle": (),
    "batch_bom": (),
    "batch_blank_lines": (),
    "batch_foreign_line": ("form",),
}
"""Faults of a batch as a whole, picked when it is created."""

LINE_KINDS: dict[str, tuple[str, ...]] = {
    "batch_line_status": ("status", "type", "code", "message"),
    "batch_line_zero": (),
    "batch_line_error": ("code", "message"),
    "batch_omit": (),
    "batch_dup_line": (),
    "batch_corrupt_line": (),
    "batch_body_text": (),
}
"""Faults of requests within a batch: of those that are named by `lines`, `match` or `rate`, or of all."""

LIST_KINDS: dict[str, tuple[str, ...]] = {"batch_paged": ("size",)}
"""Faults of lists, which always apply."""

FORMS = ("unknown", "null", "list", "no_custom_id", "not_utf8")
"""Which lines `batch_foreign_line` adds that are no result of any request."""

KINDS = CALL_KINDS | BATCH_KINDS | LINE_KINDS | LIST_KINDS

SELECTORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CALL_KINDS, ("at", "first", "attempts", "rate", "always")),
    **dict.fromkeys(BATCH_KINDS, ("at", "first", "attempts", "rate", "match", "always")),
    **dict.fromkeys(LINE_KINDS, ("at", "first", "attempts", "rate", "match", "lines", "always")),
    **dict.fromkeys(LIST_KINDS, ("always",)),
}
"""By which keys a rule of each kind says when it applies."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "batch_drop_before": {"op": "create"},
    "batch_drop_after": {"op": "create"},
    "batch_status": {"op": "create", "status": 500, "when": "before"},
    "batch_slow": {"op": "create", "seconds": 1.0},
    "batch_truncate": {"op": "download"},
    "batch_file_lag": {"op": "upload", "times": 2},
    "batch_list_lag": {"seconds": 90.0},
    "batch_get_404": {"seconds": 60.0},
    "batch_enqueued_cap": {"tokens": 0},
    "batch_unknown_status": {"word": "paused", "seconds": 3600.0},
    "batch_foreign_line": {"form": "unknown"},
    "batch_line_status": {"status": 500},
    "batch_line_error": {"code": "request_timeout"},
    "batch_paged": {"size": 1},
}


@dataclass(frozen=True, slots=True)
class BatchRule:
    """One line of a faults file that is about batches. The conditions that are set must all hold.

    `at` and `first` number the calls of one operation (those that create, for faults of batches and their requests);
    `lines` numbers the requests of a batch, from 1; `values` are the keys of its kind.
    """

    kind: str
    index: int
    at: frozenset[int] | None = None
    first: int | None = None
    rate: float | None = None
    match: str | None = None
    lines: frozenset[int] | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def applies(self, number: int, seed: int, op: str) -> bool:
        """Whether it is meant for the call with this number."""
        drawn = self.rate is None or self.kind in LINE_KINDS
        return (
            (self.at is None or number in self.at)
            and (self.first is None or number <= self.first)
            and (drawn or chance(seed, self.index, op.encode(), number) < (self.rate or 0.0))
        )

    def told(self) -> dict[str, Any]:
        """Its kind and keys as a batch keeps them."""
        picked: dict[str, Any] = {"kind": self.kind, "index": self.index} | self.values
        if self.kind in LINE_KINDS:
            lines = sorted(self.lines) if self.lines is not None else None
            picked |= {"match": self.match, "lines": lines, "rate": self.rate}
        return picked


@dataclass(frozen=True, slots=True)
class BatchFaults:
    """The rules about batches of a faults file."""

    rules: Sequence[BatchRule] = ()
    seed: int = 0

    def of_call(self, op: str, number: int) -> list[BatchRule]:
        """What goes wrong with the n-th call of an operation: slowness, and the first other rule that applies."""
        rules = [
            rule
            for rule in self.rules
            if rule.kind in CALL_KINDS and rule.values["op"] == op and rule.applies(number, self.seed, op)
        ]
        slow = [rule for rule in rules if rule.kind == "batch_slow"]
        return slow + [rule for rule in rules if rule.kind != "batch_slow"][:1]

    def of_batch(self, number: int, contains: Callable[[str], bool]) -> list[dict[str, Any]]:
        """All that goes wrong with the batch of the n-th create: every rule that applies does."""
        return [
            rule.told()
            for rule in self.rules
            if (rule.kind in BATCH_KINDS or rule.kind in LINE_KINDS)
            and rule.applies(number, self.seed, "create")
            and (rule.match is None or rule.kind in LINE_KINDS or contains(rule.match))
        ]

    @property
    def page(self) -> int | None:
        """The most that a page of a list holds, where a rule makes it small."""
        return next((rule.values["size"] for rule in self.rules if rule.kind == "batch_paged"), None)
