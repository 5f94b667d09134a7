"""Replicas of a task vote: which answer wins, and how many agree with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from agac.core.keys import canonical
from agac.core.types import JSONValue


class VoteResult(NamedTuple):
    """What is made of the answers of replicas: JSON, and whose answer it is, from 1; 0: a list of all of them.

    `agreement`: how many of them say what it says, of how many, as `2/3`; None where they did not vote.
    """

    text: str
    replica: int = 0
    agreement: str | None = None

    @property
    def note(self) -> str | None:
        """What the store keeps of a vote beside its result, JSON."""
        return canonical({"agreement": self.agreement, "replica": self.replica}) if self.agreement else None


def outcome_of_vote(answers: Sequence[str], field: str | None) -> VoteResult:
    """What comes of answers (JSON, in the order of the replicas): without a `field` a list of them; else the first one
    that has the most frequent value there. Of several values that are as frequent the one that came first counts."""
    if field is None:
        return VoteResult(f"[{','.join(answers)}]")
    values = votes(answers, field)
    winner, count = Counter(values).most_common(1)[0]
    first = values.index(winner)
    return VoteResult(answers[first], first + 1, f"{count}/{len(answers)}")


def votes(answers: Sequence[str], field: str) -> list[str]:
    """What each answer (JSON) says in a field (`a.b` is the field b of a), as canonical JSON. One without says null."""

    def inside(value: JSONValue, part: str) -> JSONValue:
        return value.get(part) if isinstance(value, dict) else None

    return [canonical(reduce(inside, field.split("."), json.loads(answer))) for answer in answers]


def share(agreement: str) -> float:
    """`2/3` as a number."""
    count, _, most = agreement.partition("/")
    return int(count) / int(most)
