"""A vote that ends once an answer leads: beside a plain model that asks one replica after the other."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import ErrorType, RowError
from agac.engine.decide.votes import VoteResult, outcome_of_vote, votes
from agac.engine.output.run_summary import share
from agac.spec.operations import Match, Vote

REPLIES = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=40, max_size=40)


def one_by_one(replies: list[str | None], lead: int, most: int) -> tuple[int, str | None]:
    """How many are asked, and the answer that leads; None where none does."""
    counts: Counter[str] = Counter()
    for asked, reply in enumerate(replies[:most], 1):
        counts.update([reply] if reply is not None else [])
        ranked = [*counts.most_common(2), ("", 0), ("", 0)]
        if ranked[0][1] - ranked[1][1] >= lead:
            return asked, ranked[0][0]
    return most, None


def in_rounds(replies: list[str | None], vote: Vote, most: int) -> tuple[list[int], VoteResult | RowError]:
    """How many are asked in each round, and what comes of it."""
    texts = [None if reply is None else json.dumps(reply) for reply in replies]
    rounds: list[int] = []
    while isinstance(found := outcome_of_vote(texts[: sum(rounds)], vote, most), int):
        assert found > 0
        rounds.append(found)
    return rounds, found


@given(REPLIES, st.integers(1, 5), st.integers(0, 30))
def test_no_more_are_asked_than_one_by_one_and_the_same_answer_wins(
    replies: list[str | None], lead: int, more: int
) -> None:
    most = lead + more
    rounds, found = in_rounds(replies, Vote(lead=lead), most)
    asked, winner = one_by_one(replies, lead, most)
    assert rounds[0] == lead
    assert sum(rounds) <= asked <= most
    if winner is None:
        assert isinstance(found, RowError)
        assert found.type is ErrorType.NO_CONSENSUS
        assert f"of {sum(rounds)} asked" in found.message
        counts = Counter(one for one in replies[: sum(rounds)] if one is not None)
        ahead = [count for _, count in counts.most_common(2)] + [0, 0]
        assert ahead[0] - ahead[1] + most - sum(rounds) < lead  # whatever the others would have said
        return
    assert isinstance(found, VoteResult)
    assert (sum(rounds), json.loads(found.text)) == (asked, winner)
    assert replies.index(winner) == found.replica - 1
    cast = [one for one in replies[:asked] if one is not None]
    of_all = f" of {asked}" if len(cast) < asked else ""
    assert found.agreement == f"{cast.count(winner)}/{len(cast)}{of_all}"
    assert share(found.agreement) == cast.count(winner) / len(cast)


@given(REPLIES, st.integers(1, 4), st.integers(0, 10), st.integers(0, 10))
def test_a_larger_bound_begins_with_the_same_replicas(
    replies: list[str | None], lead: int, fewer: int, more: int
) -> None:
    """What was asked for a smaller `replicas` is asked for a larger one, too: nothing is paid twice."""
    first, _ = in_rounds(replies, Vote(lead=lead), lead + fewer)
    second, _ = in_rounds(replies, Vote(lead=lead), lead + fewer + more)
    assert sum(second) >= sum(first)
    assert second[: len(first)] == first


def said(match: Match, *values: object) -> int:
    """How many of these are different."""
    return len({*votes([json.dumps(value) for value in values], Vote(match=match))})


@pytest.mark.parametrize(
    ("match", "alike", "other"),
    [
        ("exact", ["Yes", "Yes"], "yes"),
        ("exact", [{"a": 1, "b": 2}, {"b": 2, "a": 1}], {"a": 1}),
        ("normalized", ["Yes", " yes.", "\u201cYES\u201d!", "'yes'"], "no"),
        ("normalized", ["a  b\n c", "A B C"], "a bc"),
        ("normalized", ["straße", "STRASSE?"], "strase"),
        ("normalized", ["-5", "-5."], "5"),
        ("normalized", [".5", '".5"'], "5"),
        ("normalized", ["?!", "?!"], ""),
        ("normalized", [{"a": "Yes  sir"}, {"a": "yes sir"}], {"a": "yes"}),
        ("structured", ['{"a": 1, "b": 2}', ' {"b":2,"a":1}\n', {"a": 1, "b": 2}], '{"a": 1}'),
        ("structured", ["[1]", [1]], "[2]"),
    ],
)  # fmt: skip
def test_which_values_are_the_same(match: Match, alike: list[object], other: object) -> None:
    assert said(match, *alike) == 1
    assert said(match, alike[0], other) == 2


def test_what_has_no_vote() -> None:
    texts = [json.dumps(text) for text in ("{}", "no JSON", "[1", "NaN")]
    assert votes([*texts, None], Vote(match="structured")) == ["{}", None, None, None, None]
    assert votes(['"abc"', '"abcd"', '{"a":1}', '{"a":"b"}'], Vote(max_length=7)) == [
        '"abc"',
        '"abcd"',
        '{"a":1}',
        None,
    ]
    assert votes(['"abc"', '"abcd"'], Vote(max_length=3)) == ['"abc"', None]


def test_nothing_leads_and_nobody_votes() -> None:
    texts = ['"a"', '"b"', None, '"a"']
    found = outcome_of_vote(texts, Vote(lead=3), 5)
    assert isinstance(found, RowError)
    assert found.message == 'no answer leads by 3 votes: "a" 2, "b" 1; 3 of 4 asked have a vote'
    found = outcome_of_vote([None, None], Vote(lead=1), 2)
    assert isinstance(found, RowError)
    assert found.message == "no answer leads by 1 votes: there are none; 0 of 2 asked have a vote"
