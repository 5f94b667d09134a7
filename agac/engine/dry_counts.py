"""What a run would do, as numbers: per stage how many tasks would be run, reused, or not be run, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from agac.core.types import Request, RowId
from agac.spec.levels import Makes

SAMPLE = 200
"""Rendered requests of a stage that are measured."""


KEPT = 50_000
"""Values that are kept: up to so many the count is exact, beyond it is an estimate within a percent or so."""


class Distinct:
    """Counts different digests. When too many are kept, only those stay that end in one more zero bit: by chance each
    second one, so that each stands for twice as many."""

    def __init__(self) -> None:
        self._kept: set[bytes] = set()
        self._bits = 0

    def add(self, digest: bytes) -> None:
        """Adds one; digests are as good as random."""
        if int.from_bytes(digest[-4:], "big") & ((1 << self._bits) - 1):
            return
        self._kept.add(digest)
        while len(self._kept) > KEPT:
            self._bits += 1
            mask = (1 << self._bits) - 1
            self._kept = {kept for kept in self._kept if not int.from_bytes(kept[-4:], "big") & mask}

    def count(self) -> int:
        """How many different ones were added."""
        return len(self._kept) << self._bits


@dataclass(slots=True)
class Reason:
    """How many tasks for this reason, and a row for example."""

    count: int
    example: RowId


class Guess(NamedTuple):
    """What is taken for the number of rows that a stage will make, where that is not known before `waits_for` has
    answered, or was called: `number` of each row, or, of groups, of them all. `run` tells it; None: nothing does."""

    makes: Makes
    waits_for: str
    number: float
    run: int | None


@dataclass(slots=True)
class StageForecast:
    """What would become of a stage's tasks. `run` are asked, at most: one after a new answer may turn out the same, and
    `undecided` of them have a guard that looks at an answer which is not there yet. `further` counts the questions
    beyond one for each of them: replicas, and `parts` of groups that one call does not hold. Of those `in_flight` the
    question is in a batch already: it is neither asked nor paid again.

    `exact`: how many tasks come to the stage is known; else it rests on a guess, which is its own or one upstream.
    """

    name: str
    run: int = 0
    further: int = 0
    reuse: int = 0
    blocked: int = 0
    skipped: int = 0
    dropped: int = 0
    undecided: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)
    blocked_reasons: dict[str, Reason] = field(default_factory=dict)
    sampled: int = 0
    characters: int = 0
    different: Distinct = field(default_factory=Distinct)
    known: int = 0
    parts: int = 0
    exact: bool = True
    guess: Guess | None = None
    in_flight: int = 0

    def asked(self, reason: str, row_id: RowId, questions: int = 1, times: int = 1) -> None:
        """As many more as `times` says that would be asked, each with so many questions."""
        self.run += times
        self.further += (questions - 1) * times
        _add(self.reasons, reason, row_id, times)

    def block(self, reason: str, row_id: RowId, times: int = 1) -> None:
        """As many more as `times` says that cannot be asked."""
        self.blocked += times
        _add(self.blocked_reasons, reason, row_id, times)

    def measure(self, request: Request, further: int = 0) -> None:
        """One more request of the sample; `further` characters will be in it that are not there yet."""
        self.sampled += 1
        self.characters += further + sum(len(part.text) for one in request.messages for part in one.parts)

    @property
    def collapsed(self) -> int:
        """Tasks, of those whose prompt is known, that would take the answer of an equal one."""
        return max(self.known - self.different.count(), 0)

    @property
    def questions(self) -> int:
        """How many questions would be asked: one for each task that takes no equal one's answer, one a replica, and
        one for each part of a group."""
        asked = self.run - self.collapsed
        replicas = self.further - self.parts
        return asked + self.parts + round(replicas * asked / self.run) if self.run else 0


def _add(reasons: dict[str, Reason], name: str, row_id: RowId, times: int) -> None:
    found = reasons.get(name)
    if found is None:
        reasons[name] = Reason(times, row_id)
    else:
        found.count += times


class Prompt(NamedTuple):
    """A rendered request that would be sent."""

    row_id: RowId
    stage: str
    request: Request


@dataclass(slots=True)
class Forecast:
    """What a run would do. `unusable` rows are never asked, `dropped` ones repeat an id."""

    stages: list[StageForecast]
    rows: int = 0
    unusable: int = 0
    dropped: int = 0
    prompts: list[Prompt] = field(default_factory=list)
