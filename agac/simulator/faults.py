"""What goes wrong, and when: rules, the first of which that applies wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from agac.simulator.asks import Ask

KINDS: dict[str, tuple[str, ...]] = {
    "rate_limit": ("retry_after", "in_ms", "message"),
    "quota": ("message",),
    "server_error": ("status", "retry_after", "in_ms", "message"),
    "unauthorized": ("message",),
    "not_found": ("message",),
    "bad_request": ("code", "message"),
    "slow_first_byte": ("seconds",),
    "hang": (),
    "cut": ("after_bytes",),
    "invalid_body": (),
    "malformed_json": (),
    "wrong_schema": (),
    "length": (),
    "refusal": ("message",),
    "filter": (),
    "empty": (),
    "early_cut": ("marked",),
    "two_answers": (),
    "stream_error": ("code", "message", "failed"),
}
"""Every kind of fault, with the keys that only it takes."""

ERROR_KINDS = frozenset(
    {"rate_limit", "quota", "server_error", "unauthorized", "not_found", "bad_request"},
)
"""Faults that answer with an error status: no model works, nothing is charged."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a faults file. The conditions that are set must all hold; with none, the rule always applies.

    `rate` is a share of all requests, `at` numbers them from 1 as they come in, `match` is a text within the messages,
    `first` counts how often the same question was asked. `retry_after` and `seconds` are seconds; `in_ms` tells
    `retry_after` in milliseconds, as `retry-after-ms`. `after_bytes` is how much of the body still comes, None not even
    the head of the response. `marked`: a message that was cut early says so itself; `failed`: a stream ends in a
    response that failed, instead of an error.
    """

    kind: str
    rate: float | None = None
    at: frozenset[int] | None = None
    match: str | None = None
    first: int | None = None
    status: int = 500
    retry_after: float | None = None
    in_ms: bool = False
    seconds: float = 1.0
    after_bytes: int | None = None
    message: str | None = None
    code: str | None = None
    marked: bool = True
    failed: bool = False


@dataclass(slots=True)
class FaultPlan:
    """Picks the fault of each request; remembers how often each question was asked, where a rule needs it."""

    rules: Sequence[Rule]
    seed: int = 0
    asked: dict[bytes, int] = field(default_factory=dict)
    counts_attempts: bool = field(init=False)
    reads_text: bool = field(init=False)

    def __post_init__(self) -> None:
        self.counts_attempts = any(rule.rate is not None or rule.first is not None for rule in self.rules)
        self.reads_text = any(rule.match is not None for rule in self.rules)

    def pick(self, number: int, ask: Ask) -> Rule | None:
        """The fault of the request with this number, or None."""
        question, text, attempt = b"", ask.all_text if self.reads_text else "", 1
        if self.counts_attempts:
            question = ask.question
            attempt = self.asked[question] = self.asked.get(question, 0) + 1
        for index, rule in enumerate(self.rules):
            if self._applies(rule, index, number, question, attempt, text):
                return rule
        return None

    def reset(self) -> None:
        """Forgets how often anything was asked."""
        self.asked.clear()

    def _applies(self, rule: Rule, index: int, number: int, question: bytes, attempt: int, text: str) -> bool:
        return (
            (rule.at is None or number in rule.at)
            and (rule.first is None or attempt <= rule.first)
            and (rule.match is None or rule.match in text)
            and (rule.rate is None or chance(self.seed, index, question, attempt) < rule.rate)
        )


def chance(seed: int, index: int, question: bytes, attempt: int) -> float:
    """A number from 0 to 1 that is the same whenever the same question is asked for the same time."""
    drawn = blake2b(f"{seed}/{index}/{attempt}/".encode() + question, digest_size=8).digest()
    return int.from_bytes(drawn) / 2**64
