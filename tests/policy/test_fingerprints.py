"""What decides an answer: pinned, so that nobody changes it by accident. A change asks every row of everybody again."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core import keys
from agac.core.types import Message, Params, Schema

SCHEMA = Schema("answer", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
MESSAGES = (Message("system", "Be brief."), Message("user", "Größe \u2028 🎉?"))
EVERY_PARAM = Params(
    temperature=0.5, top_p=0.9, max_tokens=100, presence_penalty=0.1, frequency_penalty=0.2, stop=("a", "b"), seed=7,
    reasoning="low", service_tier="flex",
)  # fmt: skip
LATER = {
    "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "verbosity": "low", "web_search": "on", "x_search": "on",
    "web_fetch": "2",
}  # fmt: skip
"""Parameters that came after fingerprints had been stored: without them nothing may change."""
BASE: dict[str, Any] = {"provider": "openai", "model": "gpt-5.4-mini", "params": EVERY_PARAM, "schema": SCHEMA}


def fingerprint(messages: tuple[Message, ...] = MESSAGES, *, replica: int = 0, salt: str = "", **changes: Any) -> bytes:
    return keys.Fingerprinter(**{**BASE, **changes}).fingerprint(messages, replica=replica, salt=salt)


def test_pinned() -> None:
    plain: dict[str, Any] = {"params": Params(), "schema": None}
    assert fingerprint().hex() == "90ccaae4e0e2f4a2027bb1c8b094978b"
    assert fingerprint(**plain).hex() == "b6299b6e2c2bd9deacb51ddb050ae6bc"
    assert fingerprint((Message("user", ""),), **plain).hex() == "54800554294cf81bd3bee067d6974f1b"
    assert fingerprint(replica=1).hex() == "f1a0766685402d30ccce86612b3087d6"
    assert fingerprint(salt="r-1").hex() == "6f62f174a360325d50b3c2f765c0468e"
    assert keys.row_hash('{"id":"r-1","text":"Größe"}').hex() == "4ed8d7aa4abb34a5bc231f0b8c13dd4a"
    assert keys.definition_hash({"b": [1, None], "a": {"ü": 1.5}}).hex() == "0321f76c73673ae0d3d9ed3d733cc481"


CHANGES: dict[str, dict[str, Any]] = {
    "provider": {"provider": "azure"},
    "model": {"model": "gpt-5.4"},
    "schema": {"schema": Schema("answer", {"type": "object"})},
    "no schema": {"schema": None},
    "replica": {"replica": 1},
    "salt": {"salt": "x"},
    "role": {"messages": (Message("user", "Be brief."), MESSAGES[1])},
    "text": {"messages": (MESSAGES[0], Message("user", "Größe ?"))},
    "no system": {"messages": MESSAGES[1:]},
    "order": {"messages": MESSAGES[::-1]},
    "one more": {"messages": (*MESSAGES, Message("assistant", ""))},
    **{f"param {f.name}": {"params": replace(EVERY_PARAM, **{f.name: LATER.get(f.name)})} for f in fields(Params)},
}


def test_every_ingredient_counts_and_no_two_changes_give_the_same() -> None:
    found = [fingerprint(), *(fingerprint(**more) for more in CHANGES.values())]
    assert len(set(found)) == len(found)


def test_the_name_of_a_schema_and_the_order_of_its_keys_do_not_count() -> None:
    assert fingerprint(schema=Schema("other", SCHEMA.body)) == fingerprint()
    assert fingerprint(schema=Schema("answer", dict(reversed(SCHEMA.body.items())))) == fingerprint()


def test_fingerprints_are_sixteen_bytes_the_same_each_time_and_count_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prints, before = keys.Fingerprinter(**BASE), fingerprint()
    assert prints.fingerprint(MESSAGES) == prints.fingerprint(MESSAGES) == before
    assert len(before) == keys.DIGEST_BYTES == 16
    assert keys.digest("\ud800") != keys.digest("\ud801")
    monkeypatch.setattr(keys, "FORMAT_VERSION", keys.FORMAT_VERSION + 1)
    assert fingerprint() != before


texts = st.text(max_size=6)


@given(st.lists(texts, min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=4))
def test_texts_are_not_run_together(one: list[str], other: list[str]) -> None:
    first, second = (fingerprint(tuple(Message("user", text) for text in some)) for some in (one, other))
    assert (first == second) == (one == other)


@given(st.dictionaries(texts, st.integers() | texts | st.none(), max_size=4))
def test_a_row_counts_in_the_order_of_its_fields(row: dict[str, Any]) -> None:
    turned = dict(reversed(row.items()))
    assert (keys.row_hash(keys.snapshot(row)) == keys.row_hash(keys.snapshot(turned))) == (list(row) == list(turned))
    assert keys.definition_hash(row) == keys.definition_hash(turned)
