"""Bodies are encoded member by member, those that stay the same once: the bytes are those of encoding them whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agac.providers.bodies import Encoder, encode

texts = st.text()  # lone surrogates too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(st.sampled_from(["model", "messages", "response_format", "é", "\ud800"]), values)


@given(st.lists(bodies, max_size=4))
def test_bodies_have_the_bytes_that_they_have_when_they_are_encoded_whole(wires: list[dict[str, Any]]) -> None:
    encoder = Encoder()
    for wire in [*wires, *wires]:
        assert encoder.encode(wire) == encode(wire)


def test_an_equal_value_that_is_another_object_is_encoded_anew() -> None:
    encoder = Encoder()
    assert encoder.encode({"a": 1, "b": [1]}) == b'{"a":1,"b":[1]}'
    assert (encoder.encode({"a": True, "b": [1.0]}), encoder.encode({})) == (b'{"a":true,"b":[1.0]}', b"{}")
