"""JSON Schemas, compiled to the shapes of `schema_values`: references followed, `allOf` merged, alternatives spread.

A schema is compiled once. Where its keywords are more than shapes can keep by themselves (`unsure`), each value is
checked with jsonschema before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import reduce
from typing import Any
from urllib.parse import unquote

from agac.simulator import schema_values as shapes
from agac.simulator.schema_values import ENDLESS, FORMATS, Number, ShapeLink, ValueShape, parse_pattern, word_set


class SchemaError(ValueError):
    """A schema that no reply can be made for: wrong in itself, or beyond the simulator."""


def resolve(document: Any, reference: Any) -> Any:
    """What a reference such as `#/$defs/item` points at."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaError(f"$ref {json.dumps(reference)[:80]} must point into the schema itself, such as #/$defs/item")
    found = document
    for step in reference[2:].split("/") if len(reference) > 1 else []:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise SchemaError(f"$ref {json.dumps(reference)[:80]} points at nothing")
    if not isinstance(found, dict | bool):
        raise SchemaError(f"$ref {json.dumps(reference)[:80]} points at something that is no schema")
    return found


def merge(one: Any, other: Any) -> Any:
    """A schema that holds where both do, as nearly as keywords allow: its values are validated before use."""
    if one is False or other is False:
        return False
    if one is True or other is True:
        return other if one is True else one
    if not isinstance(one, dict) or not isinstance(other, dict):
        raise SchemaError("what allOf, anyOf and oneOf list must be schemas")
    merged = dict(one)
    for keyword, value in other.items():
        merged[keyword] = joined(keyword, merged[keyword], value) if keyword in merged else value
    return closed(merged, one, other)


def joined(keyword: str, one: Any, other: Any) -> Any:
    """One keyword that both schemas have."""
    if one == other:
        return one
    join = JOINS.get(keyword)
    if join is None:
        return other
    try:
        return join(one, other)
    except (TypeError, AttributeError) as error:
        raise SchemaError(f"{keyword} has a value that it cannot have") from error


def closed(merged: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Without the optional properties that one of the two does not know and forbids."""
    for schema in (one, other):
        named = merged.get("properties")
        if schema.get("additionalProperties") is False and isinstance(named, dict):
            known = schema.get("properties") or {}
            merged["properties"] = {key: value for key, value in named.items() if key in known}
    return merged


def join_types(one: Any, other: Any) -> list[str]:
    """Types that both allow; an integer is a number."""
    left, right = ([types] if isinstance(types, str) else list(types) for types in (one, other))
    both = [name for name in left if name in right]
    numeric = {"number", "integer"}
    if numeric & set(left) and numeric & set(right) and not numeric & set(both):
        both.append("integer")
    return both


def join_properties(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Properties of both; what both name must satisfy both."""
    joined_ones = {
        key: {"allOf": [one[key], other[key]]} for key in one.keys() & other.keys() if one[key] != other[key]
    }
    return {**one, **other, **joined_ones}


def join_branches(one: list[Any], other: list[Any]) -> list[Any]:
    """Every pair of alternatives."""
    if len(one) * len(other) > 100:
        raise SchemaError("it has too many combinations of alternatives for the simulator")
    return [merge(left, right) for left in one for right in other]


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "type": join_types,
    "properties": join_properties,
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "enum": lambda one, other: [value for value in one if value in other],
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
    "items": lambda one, other: {"allOf": [one, other]},
    "additionalProperties": lambda one, other: (one is not False and other is not False) and {"allOf": [one, other]},
    "uniqueItems": lambda one, other: one or other,
    "anyOf": join_branches,
    "oneOf": join_branches,
    "allOf": lambda one, other: [*one, *other],
}
"""How a keyword of both schemas becomes one; other keywords take the second's value."""


TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
HINTS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Which type a schema without one most likely means."""


def number(schema: dict[str, Any], *, whole: bool) -> Number:
    """A number, or an integer when `whole`."""
    low, over = bound(schema, "minimum", "exclusiveMinimum", max)
    high, under = bound(schema, "maximum", "exclusiveMaximum", min)
    step = number_of(schema, "multipleOf")
    if step is not None and step <= 0:
        raise SchemaError("multipleOf must be more than 0")
    return Number(whole, low, high, over, under, step)


def bound(
    schema: dict[str, Any], within: str, beyond: str, tighter: Callable[[Fraction, Fraction], Fraction]
) -> tuple[Fraction | None, bool]:
    """The tighter of an inclusive and an exclusive bound, and whether it is the exclusive one."""
    inclusive, exclusive = number_of(schema, within), number_of(schema, beyond)
    if inclusive is None or exclusive is None:
        return (inclusive, False) if exclusive is None else (exclusive, True)
    return (exclusive, True) if tighter(inclusive, exclusive) == exclusive else (inclusive, False)


def number_of(schema: dict[str, Any], keyword: str) -> Fraction | None:
    """A number keyword, exactly as it was written; None when it is not there."""
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SchemaError(f"{keyword} must be a number")
    return Fraction(repr(value))


def count_of(schema: dict[str, Any], keyword: str, default: float) -> float:
    """A keyword that counts."""
    value = schema.get(keyword)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise SchemaError(f"{keyword} must be a whole number of 0 or more")
    return int(value)


def list_of(schema: dict[str, Any], keyword: str, least: int = 1) -> list[Any]:
    """A keyword that lists."""
    value = schema.get(keyword, [])
    if not isinstance(value, list) or len(value) < least:
        raise SchemaError(f"{keyword} must be a list" + (" with something in it" if least else ""))
    return value


def read_types(schema: dict[str, Any]) -> list[str]:
    """The types a schema allows; without any, the one that its keywords fit, else text."""
    said = schema.get("type")
    if said is None:
        return [next((name for name, keywords in HINTS.items() if keywords & set(schema)), "string")]
    types = said if isinstance(said, list) else [said]
    for name in types:
        if name not in TYPES:
            raise SchemaError(f"type {json.dumps(name)[:40]} does not exist; known: {', '.join(TYPES)}")
    return types


def has_type(value: Any, name: str) -> bool:
    """Whether a JSON value is of a type."""
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return name == "number" or value == int(value)


def validity(schema: Any) -> Callable[[Any], bool]:
    """Whether a value satisfies a schema, by the reference implementation."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and most schemas do without
    from jsonschema.exceptions import SchemaError as Wrong
    from jsonschema.validators import validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except Wrong as error:
        raise SchemaError(error.message) from error
    validator = kind(schema)
    return lambda value: bool(validator.is_valid(value))


ANNOTATIONS = word_set(
    "$schema $id $anchor $comment $defs definitions title description default examples example deprecated readOnly "
    "writeOnly nullable contentEncoding contentMediaType"
)
"""Keywords that say nothing about which values are right. (`nullable` allows null, and need not be used.)"""

SURE = word_set(
    "$ref type enum const properties required additionalProperties items minItems maxItems prefixItems anyOf "
    "minLength maxLength format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf pattern minProperties "
    "maxProperties"
)
"""Keywords that shapes keep by themselves; where others stand, every value is validated before it is used."""

MOST_SHAPES = 20_000
DEEPEST = 100


def telling(schema: Any) -> dict[str, Any]:
    """A schema without its annotations; true is one that says nothing, false one that nothing satisfies."""
    if isinstance(schema, dict):
        return {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    return {} if schema is True else {"enum": []}


class SchemaCompiler:
    """Compiles one document. `root` is its shape; `unsure` whether values must be validated."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.links: dict[str, ShapeLink] = {}
        self.unsure = False
        self.root = self.link(document)
        self.settle_heights()
        if self.root.height() == ENDLESS:
            raise SchemaError("no finite value can satisfy it")

    def settle_heights(self) -> None:
        """Works out how deep the smallest value of each shape nests; what stays endless has none."""
        changed = True
        while changed:
            changed = False
            for link in self.links.values():
                height = link.target.height() if link.target else ENDLESS
                if height < link.known:
                    link.known = height
                    changed = True

    def link(self, schema: Any, depth: int = 0) -> ShapeLink:
        """The place of a schema's shape; equal schemas share one, so that recursion ends."""
        if not isinstance(schema, dict | bool):
            raise SchemaError(f"{json.dumps(schema)[:40]} is not a schema; a schema is an object, true or false")
        key = json.dumps(schema, sort_keys=True)
        found = self.links.get(key)
        if found is None:
            if len(self.links) > MOST_SHAPES or depth > DEEPEST:
                raise SchemaError("it is too large or too deep for the simulator")
            found = self.links[key] = ShapeLink()
            found.target = self.shape(schema, depth + 1)
        return found

    def shape(self, schema: dict[str, Any] | bool, depth: int) -> ValueShape:
        """The shape of one schema."""
        plain = self.expand(telling(schema), 0)
        self.unsure = self.unsure or not SURE.issuperset(plain) or ("$ref" in plain and len(plain) > 1)
        if "$ref" in plain:
            return self.link(resolve(self.document, plain["$ref"]), depth)
        for keyword in ("anyOf", "oneOf"):
            if keyword in plain:
                return self.branches(plain, keyword, depth)
        if "const" in plain or "enum" in plain:
            return self.fixed(plain)
        return self.typed(plain, depth)

    def expand(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """The schema with `allOf`, and with a reference that has company, merged into it."""
        if depth > DEEPEST:
            raise SchemaError("its allOf and $ref lead back to themselves")
        together = list(list_of(schema, "allOf")) if "allOf" in schema else []
        if "$ref" in schema and len(schema) > 1:
            together.append(resolve(self.document, schema["$ref"]))
        if not together:
            return schema
        self.unsure = True
        rest = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        parts = [telling(part) for part in together]
        if len(parts) == 1 and not rest:
            return self.expand(parts[0], depth + 1)
        inlined = [self.inline(part, depth + 1) for part in parts]
        return self.expand(reduce(merge, inlined, rest), depth + 1)

    def inline(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """The schema with a lone reference replaced by what it refers to, so that it can be merged."""
        schema = self.expand(schema, depth)
        if "$ref" not in schema:
            return schema
        return self.inline(telling(resolve(self.document, schema["$ref"])), depth + 1)

    def branches(self, schema: dict[str, Any], keyword: str, depth: int) -> ValueShape:
        """`anyOf` and `oneOf`: each alternative merged with the other keywords."""
        rest = {key: value for key, value in schema.items() if key != keyword}
        self.unsure = self.unsure or bool(rest)
        found = list_of(schema, keyword)
        return shapes.AnyOf(tuple(self.link(merge(rest, branch) if rest else branch, depth) for branch in found))

    def fixed(self, schema: dict[str, Any]) -> ValueShape:
        """`const` and `enum`: those of the values that the other keywords allow."""
        values = [schema["const"]] if "const" in schema else list_of(schema, "enum", least=0)
        others = {key: value for key, value in schema.items() if key != "const"}
        if set(others) - {"enum", "type"} or ("const" in schema and "enum" in schema):
            valid = validity(self.document | others if isinstance(self.document, dict) else others)
            values = [value for value in values if valid(value)]
        elif "type" in others:
            types = read_types(others)
            values = [value for value in values if any(has_type(value, name) for name in types)]
        return shapes.OneOf(tuple(values))

    def typed(self, schema: dict[str, Any], depth: int) -> ValueShape:
        """A schema that has a type, or whose keywords imply one."""
        types = read_types(schema)
        if len(types) != 1:
            return shapes.AnyOf(tuple(self.link({**schema, "type": name}, depth) for name in types))
        match types[0]:
            case "object":
                return self.properties(schema, depth)
            case "array":
                return self.items(schema, depth)
            case "string":
                return self.text(schema)
            case "boolean":
                return shapes.Truth()
            case "null":
                return shapes.OneOf((None,))
            case name:
                return number(schema, whole=name == "integer")

    def properties(self, schema: dict[str, Any], depth: int) -> ValueShape:
        """An object."""
        named = schema.get("properties", {})
        if not isinstance(named, dict):
            raise SchemaError("properties must be an object")
        required = list_of(schema, "required", least=0)
        if not all(isinstance(name, str) for name in required):
            raise SchemaError("required must be a list of property names")
        others = schema.get("additionalProperties", True)
        return shapes.Properties(
            named={name: self.link(part, depth) for name, part in named.items()},
            required=tuple(dict.fromkeys(required)),
            others=self.link({"type": "string"} if others in (True, {}) else others, depth),
            least=count_of(schema, "minProperties", 0),
            most=count_of(schema, "maxProperties", math.inf),
            invents=others not in (True, {}),
        )

    def items(self, schema: dict[str, Any], depth: int) -> ValueShape:
        """A list; a list under `items` is what `prefixItems` is today."""
        first = list_of(schema, "prefixItems", least=0)
        rest = schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        return shapes.Items(
            first=tuple(self.link(part, depth) for part in first),
            rest=self.link({"type": "string"} if rest in (True, {}) else rest, depth),
            least=count_of(schema, "minItems", 0),
            most=count_of(schema, "maxItems", math.inf),
            unique=bool(schema.get("uniqueItems", False)),
        )

    def text(self, schema: dict[str, Any]) -> ValueShape:
        """A string."""
        least, most = count_of(schema, "minLength", 0), count_of(schema, "maxLength", math.inf)
        pattern, name = schema.get("pattern"), schema.get("format")
        if pattern is not None:
            if not isinstance(pattern, str):
                raise SchemaError("pattern must be a string")
            self.unsure = self.unsure or name is not None
            try:
                compiled, tree = parse_pattern(pattern)
            except ValueError as error:
                raise SchemaError(str(error)) from error
            return shapes.Patterned(compiled, tree, int(least), most)
        if isinstance(name, str) and name in FORMATS:
            self.unsure = self.unsure or least > 0 or most < math.inf
            return shapes.Formatted(FORMATS[name])
        return shapes.Words(int(least), most)


def walk_schema(schema: Any, lists: tuple[str, ...], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """A schema and those within it, each with its path; `lists` are the keywords with lists of schemas to follow."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in ("properties", "$defs", "definitions"):
        parts = schema.get(keyword)
        for key, part in parts.items() if isinstance(parts, dict) else ():
            yield from walk_schema(part, lists, (*path, keyword, key))
    yield from walk_schema(schema.get("items"), lists, (*path, "items"))
    for keyword in lists:
        parts = schema.get(keyword)
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from walk_schema(part, lists, (*path, keyword, str(place)))


def strict_problem(schema: Any) -> str | None:
    """Why OpenAI's strict mode refuses a schema: objects that are open or have properties that are not required."""
    if not (isinstance(schema, dict) and schema.get("type") == "object"):
        return "schema must be a JSON Schema of 'type: \"object\"'"
    for path, node in walk_schema(schema, ("anyOf", "prefixItems")):
        types, properties, required = node.get("type"), node.get("properties"), node.get("required")
        if "object" not in (types if isinstance(types, list) else [types]) and "properties" not in node:
            continue
        if node.get("additionalProperties") is not False:
            return f"In context={path}, 'additionalProperties' is required to be supplied and to be false"
        for key in properties if isinstance(properties, dict) else ():
            if not isinstance(required, list) or key not in required:
                return (
                    f"In context={path}, 'required' is required to be supplied and to be an array including every key "
                    f"in properties. Missing '{key}'"
                )
    return None
