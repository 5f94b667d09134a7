"""What comes of the answers of replicas: the vote, and the list of all where none is wanted."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.keys import canonical, replicas_fingerprint
from agac.engine.decide.votes import outcome_of_vote
from agac.engine.output.run_summary import share
from agac.spec.operations import Vote

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
ANSWERS = st.lists(
    st.fixed_dictionaries({"label": VALUES}, optional={"why": st.text(max_size=3)}), min_size=2, max_size=9
)


@given(ANSWERS)
def test_the_first_answer_with_the_most_frequent_value_is_taken_whole(answers: list[dict[str, Any]]) -> None:
    texts = [json.dumps(answer) for answer in answers]
    voted = outcome_of_vote(texts, Vote("label"), len(texts))
    labels = [canonical(answer["label"]) for answer in answers]
    most = max(Counter(labels).values())
    winners = [place for place, label in enumerate(labels) if Counter(labels)[label] == most]
    assert (voted.replica, voted.text) == (winners[0] + 1, texts[winners[0]])
    assert voted.agreement == f"{most}/{len(answers)}"
    assert share(voted.agreement) == most / len(answers)


@pytest.mark.parametrize(
    ("answers", "field", "replica", "agreement"),
    [
        (['{"a":1}', '{"a":2}', '{"a":2}'], "a", 2, "2/3"),
        (['{"a":1}', '{"a":2}', '{"a":2}', '{"a":1}'], "a", 1, "2/4"),  # a tie: the value that came first
        (['{"a":{"x":1,"y":2}}', '{"a":{"y":2,"x":1}}'], "a", 1, "2/2"),  # the order of keys says nothing
        (['{"a":{"b":"n"}}', '{"a":{"b":"y"}}', '{"a":{"b":"y"}}'], "a.b", 2, "2/3"),
        (['{"a":true}', '{"a":1}', '{"a":1}'], "a", 2, "2/3"),  # true is not 1
        (['{"b":0}', '{"a":null}', '{"a":7}'], "a", 1, "2/3"),  # none is null
        (['{"a":[1]}', '{"a":"x"}'], "a.b", 1, "2/2"),
    ],
)  # fmt: skip
def test_votes_by_hand(answers: list[str], field: str, replica: int, agreement: str) -> None:
    voted = outcome_of_vote(answers, Vote(field), len(answers))
    assert (voted.replica, voted.agreement) == (replica, agreement)


def test_the_fingerprint_of_a_vote_follows_from_its_replicas_and_what_is_made_of_them() -> None:
    prints = [b"a" * 16, b"b" * 16]
    assert replicas_fingerprint(prints, "label").hex() == "ccc9cc4096005a80730018a644c45e94"
    others = [(prints[::-1], "label"), (prints[:1], "label"), (prints, None), (prints, "other")]
    assert len({replicas_fingerprint(prints, "label"), *(replicas_fingerprint(*one) for one in others)}) == 5
