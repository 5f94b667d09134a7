"""A stage that asks each row several times: what its replicas are asked with, and what is made of their answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agac.core.keys import Fingerprinter, canonical
from agac.core.types import JSONValue, Message, Params
from agac.providers.abilities import unsendable
from agac.providers.provider import Provider


class Voted(NamedTuple):
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


def replica_prints(prints: Fingerprinter, messages: tuple[Message, ...], salt: str, replicas: int) -> tuple[bytes, ...]:
    """The fingerprints of a task's replicas, which are counted from 1."""
    return tuple(prints.fingerprint(messages, replica=k, salt=salt) for k in range(1, replicas + 1))


def takes_seed(provider: Provider) -> bool:
    """Whether a provider can be told a seed."""
    return not any(unsendable(("seed",), provider))


def seeded(params: Params, provider: Provider, replica: int) -> Params:
    """The parameters of a replica's request: its number is its seed, where the provider can be told one. 0: of a task
    that is asked once."""
    return replace(params, seed=replica) if replica and takes_seed(provider) else params


def outcome_of_vote(answers: Sequence[str], field: str | None) -> Voted:
    """What comes of answers (JSON, in the order of the replicas): without a `field` a list of them; else the first one
    that has the most frequent value there. Of several values that are as frequent the one that came first counts."""
    if field is None:
        return Voted(f"[{','.join(answers)}]")
    values = votes(answers, field)
    winner, count = Counter(values).most_common(1)[0]
    first = values.index(winner)
    return Voted(answers[first], first + 1, f"{count}/{len(answers)}")


def votes(answers: Sequence[str], field: str) -> list[str]:
    """What each answer (JSON) says in a field (`a.b` is the field b of a), as canonical JSON. One without says null."""
    return [canonical(_value(json.loads(answer), field)) for answer in answers]


def _value(answer: JSONValue, field: str) -> JSONValue:
    for part in field.split("."):
        if not isinstance(answer, dict):
            return None
        answer = answer.get(part)
    return answer


def share(agreement: str) -> float:
    """`2/3` as a number."""
    count, _, most = agreement.partition("/")
    return int(count) / int(most)
