"""Replicas of a task vote: which answer wins, how many agree with it, and how many more have to be
asked.

All functions are pure. A run and a plan both decide with them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical
from agac.core.types import JSONValue, inside
from agac.engine.ask.validate import parsed
from agac.engine.output.run_summary import share
from agac.spec.operations import Vote

ReplicaAnswers = Sequence[str | None]
"""The answers of replicas in their order, JSON. None: the reply was no answer."""

MAX_SHOWN = 3
"""Values that a message names, the most frequent first."""

MAX_SHOWN_LENGTH = 60
"""Characters of each of them."""


class VoteResult(NamedTuple):
    """What is made of the answers of replicas."""

    text: str
    """The result, JSON."""
    replica: int = 0
    """The replica whose answer it is, from 1. 0: it is the list of all answers."""
    agreement: str | None = None
    """How many answers say the same as it, of how many: `2/3`, or `2/3 of 5` if only 3 of 5 have a
    vote. None: there was no vote."""

    @property
    def share(self) -> float | None:
        """The agreement as a number from 0 to 1."""
        return share(self.agreement) if self.agreement else None

    @property
    def note(self) -> str | None:
        """What the store keeps of a vote with its result, JSON."""
        if self.agreement is None:
            return None
        return canonical({"agreement": self.agreement, "replica": self.replica})


class Reviewed(VoteResult):
    """A result that came to a review. `agreement` is how it passed: `auto`, `approved`, `manual`
    or `rejected`."""

    @property
    def note(self) -> str | None:
        """What the store keeps of a review with its result, JSON."""
        return canonical({"review": self.agreement})


def outcome_of_vote(
    answers: ReplicaAnswers, vote: Vote | None, most: int
) -> VoteResult | RowError | int:
    """Decides what comes of the answers so far, of `most` replicas in all.

    Returns a result; or an error if no value leads as far as it has to, whatever the replicas left
    would say; or the number of replicas to ask next: as many as it takes if all of these agree
    with the most frequent value. Without a `vote` the result is the list of all answers. Of
    several values that are as frequent the first one wins."""
    left = most - len(answers)
    if vote is None:
        return left or VoteResult(f"[{','.join(filter(None, answers))}]")
    values = votes(answers, vote)
    ranked = Counter(value for value in values if value is not None).most_common()
    lacking = _lacking(ranked, vote, left)
    if 0 < lacking <= left:
        return lacking
    if lacking > 0 or not ranked:
        return _no_consensus(ranked, vote, len(values))
    winner, count = ranked[0]
    first = values.index(winner)
    return VoteResult(answers[first] or "", first + 1, _agreement(ranked, count, len(values)))


def _lacking(ranked: Sequence[tuple[str, int]], vote: Vote, left: int) -> int:
    """Returns how many more votes the most frequent value needs; without a `lead` all replicas are
    asked."""
    if not vote.lead:
        return left
    counts = [count for _, count in ranked[:2]]
    first, second = [*counts, 0, 0][:2]
    return vote.lead - (first - second)


def _agreement(ranked: Sequence[tuple[str, int]], count: int, asked: int) -> str:
    cast = sum(number for _, number in ranked)
    agreement = f"{count}/{cast}"
    return agreement if cast == asked else f"{agreement} of {asked}"


def _no_consensus(ranked: Sequence[tuple[str, int]], vote: Vote, asked: int) -> RowError:
    cast = sum(number for _, number in ranked)
    shown = ", ".join(
        f"{value[:MAX_SHOWN_LENGTH]} {number}" for value, number in ranked[:MAX_SHOWN]
    )
    words = f"{shown or 'there are none'}; {cast} of {asked} asked have a vote"
    return RowError(ErrorType.NO_CONSENSUS, f"no answer leads by {vote.lead or 1} votes: {words}")


def votes(answers: ReplicaAnswers, vote: Vote) -> list[str | None]:
    """Returns what each answer says in the vote, as canonical JSON. None: it has no vote. An
    answer without the field votes for null."""
    return [None if answer is None else _vote_of(answer, vote) for answer in answers]


def _vote_of(answer: str, vote: Vote) -> str | None:
    value: JSONValue = json.loads(answer)
    if vote.max_length is not None:
        length = len(value) if isinstance(value, str) else len(answer)
        if length > vote.max_length:
            return None
    if vote.field is not None:
        value = inside(value, vote.field.split("."))
    if vote.match == "structured" and isinstance(value, str):
        try:
            return canonical(parsed(value)[1])
        except ValueError:
            return None
    if vote.match == "normalized":
        value = _normalized(value)
    return canonical(value)


_QUOTES = "\"'`“”‘’«»"
_END_MARKS = f"{_QUOTES}.,;:!?…。！？ "


def _normalized(value: JSONValue) -> str:
    """Returns a text without what does not count in it: case, white space, quotes around it and
    marks at its end."""
    written = value if isinstance(value, str) else canonical(value)
    text = " ".join(written.casefold().split())
    bare = text.lstrip(_QUOTES).rstrip(_END_MARKS)
    return bare or text
