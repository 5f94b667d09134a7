"""Which schemas Anthropic refuses before any model is asked, and what a model reads in those that it does not.

Facts: platform.claude.com, Structured outputs, and what the anthropic SDK 2.12 makes of schemas, read November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

TOO_MUCH = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("maxItems", "uniqueItems"),
}
"""Keywords that a type cannot be held to."""

UNKNOWN = ("oneOf", "not", "if", "then", "else", "patternProperties", "prefixItems", "contains", "dependentRequired")
MOST_OPTIONAL = 24
MOST_UNIONS = 16


TOLD = re.compile(r"\{[A-Za-z]+: .*\}\Z", re.DOTALL)
BOUND = re.compile(r"([A-Za-z]+): ")
BOUNDS = frozenset((*(name for names in TOO_MUCH.values() for name in names), "minItems", "format", "pattern"))
"""What SDKs move out of a schema into a description: a model reads it there."""


@lru_cache(maxsize=256)
def check_schema(text: str) -> str | None:
    """Why a schema is refused, None when it is not. `text` is its JSON, so that each schema is looked at once."""
    schema = json.loads(text)
    nodes = list(nodes_of(schema))
    problem = next((problem for node in nodes for problem in problems_of(node)), None)
    if problem is not None:
        return problem
    optional = sum(len(set(node.get("properties") or ()) - set(node.get("required") or ())) for node in nodes)
    if optional > MOST_OPTIONAL:
        return f"Schema has {optional} optional parameters, the limit is {MOST_OPTIONAL}"
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
    return f"Schema has {unions} union types, the limit is {MOST_UNIONS}" if unions > MOST_UNIONS else None


def problems_of(node: dict[str, Any]) -> Iterator[str]:
    """What is not allowed in one schema."""
    kinds = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    if "object" in kinds and node.get("additionalProperties") is not False:
        yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
    for kind in kinds:
        found = [name for name in TOO_MUCH.get(str(kind), ()) if name in node]
        if found:
            yield f"For '{kind}' type, properties {', '.join(found)} are not supported"
    if "array" in kinds and node.get("minItems", 0) not in (0, 1):
        yield "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    yield from (f"'{name}' is not supported" for name in UNKNOWN if name in node)
    if not node.keys() & {"type", "anyOf", "allOf", "$ref", "enum", "const"}:
        yield "Schema must have a 'type', 'anyOf', 'allOf', '$ref', 'enum' or 'const'"


def nodes_of(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and those within it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("properties", "$defs", "definitions"):
        parts = schema.get(keyword)
        for part in parts.values() if isinstance(parts, dict) else ():
            yield from nodes_of(part)
    yield from nodes_of(schema.get("items"))
    for keyword in ("anyOf", "allOf"):
        for part in schema.get(keyword) or ():
            yield from nodes_of(part)


@lru_cache(maxsize=256)
def as_meant(text: str) -> Any:
    """A schema (its JSON) with the bounds that its descriptions end in, as in `A mark.\n\n{minimum: 1, maximum: 5}`."""
    schema = json.loads(text)
    for node in list(nodes_of(schema)):
        node.update(bounds_told(node.get("description")))
    return schema


def bounds_told(description: Any) -> dict[str, Any]:
    """The bounds at the end of a description; none where it ends in something else."""
    found = TOLD.search(description) if isinstance(description, str) else None
    rest, bounds = found[0][1:] if found else "", {}
    while name := BOUND.match(rest):
        try:
            bounds[name[1]], end = json.JSONDecoder().raw_decode(rest, name.end())
        except ValueError:
            return {}
        rest = rest[end:].removeprefix(", ")
    return bounds if rest == "}" and bounds.keys() <= BOUNDS else {}
