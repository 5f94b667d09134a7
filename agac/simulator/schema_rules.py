"""The schemas that providers refuse: OpenAI's strict mode, and Anthropic's structured outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from agac.simulator.kinds import JsonObject, as_object
from agac.simulator.schema_keywords import listed

NUMBER_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
UNSUPPORTED_BOUNDS: dict[str, tuple[str, ...]] = {
    "integer": NUMBER_BOUNDS,
    "number": NUMBER_BOUNDS,
    "string": ("minLength", "maxLength"),
    "array": ("maxItems", "uniqueItems"),
}
UNSUPPORTED_KEYWORDS = (
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "prefixItems",
    "contains",
    "dependentRequired",
)
TELLING_KEYWORDS = {"type", "anyOf", "allOf", "$ref", "enum", "const"}
NESTING = ("anyOf", "allOf")  # keywords with lists of schemas that Anthropic looks at
MAX_OPTIONAL = 24
MAX_UNIONS = 16

DESCRIBED_BOUNDS = re.compile(r"\{[A-Za-z]+: .*\}\Z", re.DOTALL)
BOUND = re.compile(r"([A-Za-z]+): ")
BOUNDS = frozenset(("minItems", "format", "pattern")).union(*UNSUPPORTED_BOUNDS.values())
"""The keywords that SDKs move out of a schema into a description: a model reads it there."""


def walk_schema(
    schema: Any, lists: tuple[str, ...], path: tuple[str, ...] = ()
) -> Iterator[tuple[Any, Any]]:
    """Gives a schema and those within it, each with its path.

    `lists` are the keywords with lists of schemas to follow.
    """
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in ("properties", "$defs", "definitions"):
        for key, part in as_object(schema.get(keyword)).items():
            yield from walk_schema(part, lists, (*path, keyword, key))
    yield from walk_schema(schema.get("items"), lists, (*path, "items"))
    for keyword in lists:
        for index, part in enumerate(listed(schema.get(keyword))):
            yield from walk_schema(part, lists, (*path, keyword, str(index)))


def strict_problem(schema: Any) -> str | None:
    """Returns why OpenAI's strict mode refuses a schema.

    It wants objects that are closed, and all properties required.
    """
    if not (isinstance(schema, dict) and schema.get("type") == "object"):
        return "schema must be a JSON Schema of 'type: \"object\"'"
    for path, node in walk_schema(schema, ("anyOf", "prefixItems")):
        if "object" not in listed(node.get("type")) and "properties" not in node:
            continue
        if node.get("additionalProperties") is not False:
            missing = "'additionalProperties' is required to be supplied and to be false"
            return f"In context={path}, {missing}"
        key = optional_property(node)
        if key is not None:
            missing = "'required' is required to be supplied and to be an array including every key"
            return f"In context={path}, {missing} in properties. Missing '{key}'"
    return None


def optional_property(node: JsonObject) -> str | None:
    """Returns the first property that is not required."""
    properties = node.get("properties")
    required = node.get("required")
    if not isinstance(properties, dict):
        return None
    names = required if isinstance(required, list) else []
    return next((str(key) for key in properties if key not in names), None)


@lru_cache(maxsize=256)
def schema_problem(text: str) -> str | None:
    """Returns why Anthropic refuses a schema, None if it does not.

    `text` is its JSON, so that each schema is checked once.
    """
    nodes = [node for _, node in walk_schema(json.loads(text), NESTING)]
    for node in nodes:
        for problem in node_problems(node):
            return problem
    optional = sum(
        len(set(node.get("properties") or ()) - set(node.get("required") or ())) for node in nodes
    )
    if optional > MAX_OPTIONAL:
        return f"Schema has {optional} optional parameters, the limit is {MAX_OPTIONAL}"
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
    if unions > MAX_UNIONS:
        return f"Schema has {unions} union types, the limit is {MAX_UNIONS}"
    return None


def node_problems(node: JsonObject) -> Iterator[str]:
    kinds = listed(node.get("type"))
    if "object" in kinds and node.get("additionalProperties") is not False:
        yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
    for kind in kinds:
        bounds = [name for name in UNSUPPORTED_BOUNDS.get(str(kind), ()) if name in node]
        if bounds:
            yield f"For '{kind}' type, properties {', '.join(bounds)} are not supported"
    if "array" in kinds and node.get("minItems", 0) not in (0, 1):
        yield "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    for name in UNSUPPORTED_KEYWORDS:
        if name in node:
            yield f"'{name}' is not supported"
    if not node.keys() & TELLING_KEYWORDS:
        yield "Schema must have a 'type', 'anyOf', 'allOf', '$ref', 'enum' or 'const'"


@lru_cache(maxsize=256)
def schema_with_described_bounds(text: str) -> Any:
    """Returns a schema (of its JSON) with the bounds that its descriptions end in.

    Such a description is `A mark.\\n\\n{minimum: 1, maximum: 5}`.
    """
    schema = json.loads(text)
    for _, node in list(walk_schema(schema, NESTING)):
        node.update(described_bounds(node.get("description")))
    return schema


def described_bounds(description: Any) -> JsonObject:
    """Returns the bounds at the end of a description; none if it ends in something else."""
    if not isinstance(description, str):
        return {}
    end = DESCRIBED_BOUNDS.search(description)
    rest = end[0][1:] if end else ""
    bounds: JsonObject = {}
    while name := BOUND.match(rest):
        try:
            bounds[name[1]], length = json.JSONDecoder().raw_decode(rest, name.end())
        except ValueError:
            return {}
        rest = rest[length:].removeprefix(", ")
    return bounds if rest == "}" and bounds.keys() <= BOUNDS else {}
