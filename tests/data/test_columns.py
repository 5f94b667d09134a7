"""Columns of tables: their kinds, their names, and the order in which they stand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import AgacError
from agac.data.tables import MAX_COLUMNS, Kind, Merger, Observed, bits_of, declared_fields, distinct, kind_of


def kind(*values: Any) -> Kind:
    bits = 0
    for value in values:
        bits |= bits_of(value)
    return kind_of(bits)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Kind.NOTHING),
        ([None], Kind.NOTHING),
        ([math.nan, math.inf, None], Kind.NOTHING),
        (["a", None], Kind.TEXT),
        ([True, None], Kind.BOOLEAN),
        ([1, -(2**63), 2**63 - 1], Kind.INTEGER),
        ([1, 2**63], Kind.MIXED),
        ([1, 0.5, math.nan], Kind.NUMBER),
        ([2**53, 0.5], Kind.NUMBER),
        ([2**53 + 1, 0.5], Kind.MIXED),
        ([-(2**53) - 1, 0.5], Kind.MIXED),
        ([{}, []], Kind.NESTED),
        ([1, "1"], Kind.MIXED),
        ([True, 1], Kind.MIXED),
        (["a", []], Kind.MIXED),
    ],
)
def test_the_kind_of_a_column(values: list[Any], expected: Kind) -> None:
    assert kind(*values) is expected


numbers = st.integers(min_value=-(2**70), max_value=2**70) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(numbers, min_size=1))
def test_a_column_of_numbers_changes_none_of_them(values: list[Any]) -> None:
    found = kind(*values)
    if found is Kind.NUMBER:
        assert [float(value) for value in values] == values
    elif found is Kind.INTEGER:
        assert all(type(value) is int and -(2**63) <= value < 2**63 for value in values)
    else:
        assert found is Kind.MIXED


DECLARED = [
    ({"type": "string"}, Kind.TEXT),
    ({"type": ["string", "null"]}, Kind.TEXT),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, Kind.INTEGER),
    ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, Kind.NUMBER),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, Kind.MIXED),
    ({"enum": ["a", None]}, Kind.TEXT),
    ({"const": 3}, Kind.INTEGER),
    ({"type": "array"}, Kind.NESTED),
    ({"type": "object"}, Kind.NESTED),
    ({"$ref": "#/$defs/n"}, Kind.NUMBER),
    ({"$ref": "#/$defs/r"}, Kind.NOTHING),
    ({"$ref": "#/nowhere"}, Kind.NOTHING),
    ({"$ref": "elsewhere.json"}, Kind.NOTHING),
    ({}, Kind.NOTHING),
    (True, Kind.NOTHING),
]


def test_what_a_schema_says_of_its_fields() -> None:
    properties = {f"p{place}": body for place, (body, _) in enumerate(DECLARED)}
    definitions = {"n": {"type": "number"}, "r": {"$ref": "#/$defs/r"}}
    found = declared_fields({"type": "object", "properties": properties, "$defs": definitions})
    assert [kind_of(bits) for bits in found.values()] == [kind for _, kind in DECLARED]
    assert declared_fields(None) == {}
    assert declared_fields({"type": "string"}) == {}
    assert declared_fields({"type": "object", "properties": ["x"]}) == {}
    referred = {"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"b": {}, "a": {}}}}}
    assert list(declared_fields(referred)) == ["b", "a"]


def columns(observed: Observed, merge: Any = "extend", id_field: str | None = None) -> dict[str, tuple[Kind, bool]]:
    found = observed.layout(merge, "say", id_field).columns
    return {column.name: (column.kind, column.declared) for column in found}


def test_fields_stand_in_the_order_in_which_rows_bring_them_with_kinds_of_the_schema() -> None:
    observed = Observed({"properties": {"score": {"type": "number"}}})
    for row in ({"b": 1}, {"a": 1, "b": 2}, {"score": "5"}):
        observed.row(row)
    observed.result({"score": 1, "more": 2})
    whole, text = (Kind.INTEGER, False), (Kind.TEXT, False)
    assert list(columns(observed).items()) == [  # a number stays one where this time all are whole
        ("b", whole), ("a", whole), ("score", text), ("say.score", (Kind.NUMBER, True)), ("more", whole),
        ("error", text),
    ]  # fmt: skip
    assert columns(observed, "update") == {  # a field that is updated may hold what the row or the result has
        "b": whole, "a": whole, "score": (Kind.MIXED, False), "more": whole, "error": text,
    }  # fmt: skip
    assert list(columns(Observed(None), "extend", "id")) == ["id", "result", "error"]  # although no row has one


def test_fields_that_are_data_are_refused() -> None:
    observed = Observed(None)
    observed.row({f"2024-{number}": 1 for number in range(MAX_COLUMNS)})
    with pytest.raises(AgacError, match="more than 10,000 different fields") as caught:
        observed.row({"one more": 1})
    assert caught.value.remedy is not None
    assert "results.jsonl holds rows of any form" in caught.value.remedy


@given(st.lists(st.sampled_from(["a", "A", "a_2", "A_2", "", "\0", "ß", "ẞ", "column", "İ"]), unique=True))
def test_names_for_databases_differ_in_more_than_their_case(names: list[str]) -> None:
    found = distinct(names)
    assert len({name.lower() for name in found}) == len(names)
    assert all(found)
    assert found[:1] == (names[:1] if names and names[0] not in ("", "\0") else ["column"] if names else [])


fields = st.dictionaries(st.sampled_from(["a", "b", "say", "say.a", "say.say.a", "result"]), st.integers(), max_size=4)


@given(fields, fields | st.text(), st.sampled_from(["extend", "append"]))
def test_nothing_is_lost_where_the_row_keeps_its_fields(row: dict[str, Any], value: Any, merge: Any) -> None:
    result = value if isinstance(value, dict) else {"result": value}
    merger = Merger(merge, "say", row, result)
    record = merger.record(row, value)
    assert record.items() >= row.items()
    added = {merger.origin[name]: record[name] for name in record if name not in row}
    assert added == ({"say": value} if merge == "append" else result)
    assert set(record) == set(merger.fields)
