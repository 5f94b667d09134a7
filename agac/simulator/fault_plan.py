"""The rules of a faults file: which of them apply to a request, a call or a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agac.simulator.fault_effects import mentions
from agac.simulator.faults import (
    BATCH_PHASES,
    FAULTS,
    LINE_PHASES,
    SINGLE_PHASES,
    FaultRule,
)
from agac.simulator.kinds import JsonObject
from agac.simulator.model_calls import ModelCall


class FaultPlan:
    """Picks the faults of requests and of batches."""

    def __init__(self, rules: Sequence[FaultRule], seed: int = 0) -> None:
        self.seed = seed
        self.rules = [rule for rule in rules if rule.phase in SINGLE_PHASES]
        self.batch_rules = [rule for rule in rules if rule.phase not in SINGLE_PHASES]
        self.sent: dict[bytes, int] = {}
        """how often each question was sent, if a rule needs it"""
        self.counts_attempts = any(
            rule.rate is not None or rule.first is not None for rule in self.rules
        )
        self.reads_text = any(rule.match is not None for rule in self.rules)

    def pick(self, number: int, call: ModelCall) -> FaultRule | None:
        """Returns the first rule that applies to the request with this number."""
        question = b""
        attempt = 1
        text = "\n".join(text for _, text in call.messages) if self.reads_text else ""
        if self.counts_attempts:
            question = call.question
            attempt = self.sent.get(question, 0) + 1
            self.sent[question] = attempt
        for rule in self.rules:
            fits = rule.match is None or rule.match in text
            if fits and rule.selects(self.seed, number, attempt, question):
                return rule
        return None

    def of_call(self, operation: str, number: int) -> list[FaultRule]:
        """Returns what goes wrong with the n-th call of an operation.

        That is all slowness, and then the first other rule that applies.
        """
        slow: list[FaultRule] = []
        others: list[FaultRule] = []
        for rule in self.batch_rules:
            if rule.phase != "call" or rule.value("op") != operation:
                continue
            if rule.selects(self.seed, number, number, operation.encode()):
                (slow if rule.kind == "batch_slow" else others).append(rule)
        return slow + others[:1]

    def of_batch(self, number: int, contains: Callable[[str], bool]) -> list[JsonObject]:
        """Returns every rule that applies to the batch of the n-th create, as it is stored."""
        return [
            rule.stored() for rule in self.batch_rules if self._is_for_batch(rule, number, contains)
        ]

    def _is_for_batch(self, rule: FaultRule, number: int, contains: Callable[[str], bool]) -> bool:
        if rule.phase in LINE_PHASES:  # their `rate` and `match` are about single requests
            return replace(rule, rate=None).selects(self.seed, number, number, b"create")
        if rule.phase not in BATCH_PHASES:
            return False
        if not rule.selects(self.seed, number, number, b"create"):
            return False
        return rule.match is None or contains(rule.match)

    def of_line(
        self, rules: Sequence[FaultRule], number: int, raw: bytes, custom_id: str
    ) -> list[FaultRule]:
        """Returns those of a batch's `line_rules` that apply to a request.

        All about its line, and the first that replaces its answer.
        """
        picked: list[FaultRule] = []
        for rule in rules:
            if rule.lines is not None and number not in rule.lines:
                continue
            if rule.match is not None and not mentions(raw, rule.match):
                continue
            if rule.phase == "result" and any(other.phase == "result" for other in picked):
                continue
            if rule.selects(self.seed, number, 1, custom_id.encode()):
                picked.append(rule)
        return picked

    @property
    def page_size(self) -> int | None:
        """The most that a page of a list holds, if a rule makes it small."""
        sizes = (rule.value("size") for rule in self.batch_rules if rule.phase == "list")
        return next(sizes, None)


def line_rules(stored: list[JsonObject]) -> list[FaultRule]:
    """Returns the stored rules of one batch about its requests."""
    return [
        FaultRule(
            rule["kind"],
            rule["index"],
            rate=rule["rate"],
            match=rule["match"],
            lines=rule["lines"],
            values=rule,
        )
        for rule in stored
        if FAULTS[rule["kind"]].phase in LINE_PHASES
    ]
