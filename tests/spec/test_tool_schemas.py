"""What models are told of tools: schemas and names that every provider takes, and what comes back."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.types import Message, Request
from agac.providers.known_providers import SHIPPED
from agac.providers.table import DIALECTS
from agac.spec.tool_schemas import sent_name, sent_parameters
from agac.spec.tools import ToolSpec

TAKEN = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
TEXT: dict[str, Any] = {"type": "string"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "object"}, {"type": "object", "properties": {}}),
    (of(a={"type": "object"}), of(a={"type": "object", "properties": {}})),
    (of(a={"type": "array"}), of(a={"type": "array", "items": {}})),
    (of(a={"type": ["array", "null"]}), of(a={"type": ["array", "null"], "items": {}})),
    (
        of(a={"type": "array", "items": {"type": "array"}}),
        of(a={"type": "array", "items": {"type": "array", "items": {}}}),
    ),
    (of(a={"anyOf": [{"type": "array"}, TEXT]}), of(a={"anyOf": [{"type": "array", "items": {}}, TEXT]})),
    (
        of(a={"type": "object", "additionalProperties": {"type": "object"}}),
        of(
            a={
                "type": "object",
                "properties": {},
                "additionalProperties": {"type": "object", "properties": {}},
            }
        ),
    ),
    (of(**{"ids[]": TEXT}) | {"required": ["ids[]"]}, of(ids__=TEXT) | {"required": ["ids__"]}),
    (of(a=of(**{"$filter": TEXT})), of(a=of(_filter=TEXT))),
    (of(größe=TEXT), of(gr__e=TEXT)),
]


@pytest.mark.parametrize(("schema", "sent"), SENT, ids=lambda schema: json.dumps(schema)[:60])
def test_what_providers_refuse_is_filled_in_or_renamed(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    before = json.dumps(schema)
    told = sent_parameters(schema)
    assert told.schema == sent
    assert told.changes
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        of(a=TEXT),
        of(),
        of(a={"type": "array", "items": TEXT}),
        of(a={"type": "array", "items": False, "prefixItems": [TEXT]}),
        {},
        of(a={"default": {"type": "object"}, "type": "string"}),
        of(a={"enum": [{"type": "array"}]}),
    ],
)
def test_a_schema_that_all_take_is_told_as_it_is(schema: dict[str, Any]) -> None:
    told = sent_parameters(schema)
    assert told.schema is schema
    assert (told.own_names, told.changes) == ({}, ())


def test_arguments_come_back_under_the_tools_own_names() -> None:
    told = sent_parameters(of(**{"ids[]": TEXT, "where": of(**{"a.b": TEXT})}))
    given = {"ids__": "1", "where": {"a_b": "2"}, "more": [{"a_b": 3}]}
    assert told.restored(given) == {"ids[]": "1", "where": {"a.b": "2"}, "more": [{"a.b": 3}]}


def test_names_that_would_be_the_same_are_kept_apart() -> None:
    told = sent_parameters(of(**{"a[]": TEXT, "a__": TEXT, "a()": TEXT}))
    properties: Any = told.schema["properties"]
    assert len(properties) == 3
    assert "a__" in properties
    assert told.restored(dict.fromkeys(properties, 1)) == {"a[]": 1, "a__": 1, "a()": 1}


def test_a_pointer_into_properties_keeps_their_names() -> None:
    schema = of(**{"a[]": TEXT, "b": {"$ref": "#/properties/a[]"}})
    assert sent_parameters(schema).schema is schema


def test_a_schema_that_is_too_deep_is_left_alone() -> None:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(100_000):
        schema = {"type": "array", "items": schema}
    assert sent_parameters(schema).schema is schema


@given(st.dictionaries(st.text(max_size=90), st.just(TEXT), max_size=6))
def test_every_name_is_taken_and_comes_back(properties: dict[str, Any]) -> None:
    told = sent_parameters({"type": "object", "properties": properties, "required": list(properties)})
    sent: Any = told.schema
    assert all(TAKEN.match(name) for name in sent["properties"])
    assert sorted(sent["required"]) == sorted(sent["properties"])
    assert told.restored(dict.fromkeys(sent["properties"], 0)) == dict.fromkeys(properties, 0)


@given(st.text(max_size=90), st.text(max_size=90))
def test_tools_keep_names_of_their_own(one: str, other: str) -> None:
    assert TAKEN.match(sent_name(one))
    assert (sent_name(one) == sent_name(other)) == (one == other)


@pytest.mark.parametrize("row", ["openai", "responses", "anthropic"])
def test_every_dialect_sends_what_all_take(row: str) -> None:
    spec = ToolSpec(
        "größe[]", "Looks.", of(**{"ids[]": {"type": "array"}, "where": {"type": "object"}}), "function", "s"
    )
    provider = SHIPPED[row]
    request = Request((Message("user", "Look."),), tools=(spec.definition,))
    wire = json.dumps(DIALECTS[provider.dialect].build(request, "m", provider))
    assert "ids[]" not in wire
    assert "gr\u00f6" not in wire
    assert '"items": {}' in wire
    assert '"properties": {}' in wire
