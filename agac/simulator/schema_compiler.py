"""JSON Schemas, compiled to shapes that write values: references followed, `allOf` merged, alternatives spread. A
schema is compiled once; its shape then writes any number of values. Where its keywords are more than shapes can keep by
themselves (`unsure`), each value is checked with jsonschema before it is used."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote

from agac.simulator.schema_values import (
    FORMATS,
    Draft,
    matching_text,
    number_writer,
    text_of,
    word_set,
)

ENDLESS = math.inf  # the height of a shape that has no finite value
FLAT = 4  # below this depth only what must be is written
MOST_SHAPES = 20_000
DEEPEST = 100


class SchemaError(ValueError):
    """A schema that no reply can be made for: wrong in itself, or beyond the simulator."""


def listed(value: Any) -> list[Any]:
    """A list, or the one thing that stands for it."""
    return value if isinstance(value, list) else [value]


def resolve(document: Any, reference: Any) -> Any:
    """What a reference such as `#/$defs/item` points at."""
    quoted = f"$ref {json.dumps(reference)[:80]}"
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaError(f"{quoted} must point into the schema itself, such as #/$defs/item")
    found = document
    for step in reference[2:].split("/") if len(reference) > 1 else []:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise SchemaError(f"{quoted} points at nothing")
    if not isinstance(found, dict | bool):
        raise SchemaError(f"{quoted} points at something that is no schema")
    return found


def merge(one: Any, other: Any) -> dict[str, Any]:
    """A schema that holds where both do, as nearly as keywords allow: its values are validated before use."""
    one, other = telling(one), telling(other)
    merged = dict(one)
    for keyword, value in other.items():
        if keyword not in one or keyword not in JOINS:
            merged[keyword] = value
        elif one[keyword] != value:
            merged[keyword] = JOINS[keyword](one[keyword], value)
    for schema in (
        one,
        other,
    ):  # without the optional properties that one of the two does not know and forbids
        named, known = merged.get("properties"), schema.get("properties") or {}
        if schema.get("additionalProperties") is False and isinstance(named, dict):
            merged["properties"] = {key: value for key, value in named.items() if key in known}
    return merged


def join_types(one: Any, other: Any) -> list[str]:
    """Types that both allow; an integer is a number."""
    left, right = listed(one), listed(other)
    both = [name for name in left if name in right]
    numeric = {"number", "integer"}
    if numeric & set(left) and numeric & set(right) and not numeric & set(both):
        both.append("integer")
    return both


def join_properties(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Properties of both; what both name must satisfy both."""
    shared = {
        key: {"allOf": [one[key], other[key]]}
        for key in one.keys() & other.keys()
        if one[key] != other[key]
    }
    return {**one, **other, **shared}


def join_branches(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) * len(other) > 100:
        raise SchemaError("it has too many combinations of alternatives for the simulator")
    return [merge(left, right) for left in one for right in other]


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "type": join_types,
    "properties": join_properties,
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "enum": lambda one, other: [value for value in one if value in other],
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "items": lambda one, other: {"allOf": [one, other]},
    "additionalProperties": lambda one, other: (
        (one is not False and other is not False) and {"allOf": [one, other]}
    ),
    "uniqueItems": lambda one, other: one or other,
    "anyOf": join_branches,
    "oneOf": join_branches,
    "allOf": lambda one, other: [*one, *other],
}
"""How a keyword of both schemas becomes one; other keywords take the second's value."""

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: TYPES["number"](value) and value == int(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}

HINTS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Which type a schema without one most likely means."""

NUMBER = (lambda value: TYPES["number"](value) and math.isfinite(value), "a number")
COUNT = (lambda value: TYPES["integer"](value) and value >= 0, "a whole number of 0 or more")
FULL_LIST = (lambda value: TYPES["array"](value) and value != [], "a list with something in it")
KEYWORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(HINTS["number"], NUMBER),
    **dict.fromkeys(
        word_set("minLength maxLength minItems maxItems minProperties maxProperties"), COUNT
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), FULL_LIST),
    **dict.fromkeys(("enum", "prefixItems"), (TYPES["array"], "a list")),
    "multipleOf": (lambda value: NUMBER[0](value) and value > 0, "more than 0"),
    "properties": (TYPES["object"], "an object"),
    "required": (
        lambda value: TYPES["array"](value) and all(map(TYPES["string"], value)),
        "a list of property names",
    ),
    "pattern": (TYPES["string"], "a string"),
    "type": (
        lambda value: all(name in [*TYPES] for name in listed(value)),
        f"of {', '.join(TYPES)}",
    ),
}


def read_types(schema: dict[str, Any]) -> list[str]:
    """The types a schema allows; without any, the one that its keywords fit, else text."""
    hinted = (name for name, keywords in HINTS.items() if keywords & schema.keys())
    return listed(schema["type"]) if "type" in schema else [next(hinted, "string")]


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


def telling(schema: Any) -> dict[str, Any]:
    """A schema without its annotations; true is one that says nothing, false one that nothing satisfies."""
    if isinstance(schema, bool):
        return {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise SchemaError(
            f"{json.dumps(schema)[:40]} is not a schema; a schema is an object, true or false"
        )
    for keyword in schema.keys() & KEYWORDS.keys():
        fits, wanted = KEYWORDS[keyword]
        if not fits(schema[keyword]):
            raise SchemaError(f"{keyword} must be {wanted}")
    return {key: value for key, value in schema.items() if key not in ANNOTATIONS}


@dataclass(slots=True, eq=False)
class ValueShape:
    """Writes the values of a schema. `height` is how deep the smallest value nests, `ENDLESS` without any; `measure`
    works it out from the shapes below. `draw` makes a value for the property `name` ("" for none), at a depth, if there
    is any. `named` are an object's properties; from an `only_null` nothing but null comes."""

    height: float = ENDLESS
    measure: Callable[[], float] = lambda: 0
    draw: Callable[[Draft, int, str], Any] = lambda draft, depth, name: None
    named: Mapping[str, ValueShape] = field(default_factory=dict)
    only_null: bool = False

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        """A value, which counts among those that a draft may hold."""
        draft.left -= 1
        return self.draw(draft, depth, name)


class SchemaCompiler:
    """Compiles one document. `root` is its shape; `unsure` whether values must be validated."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.shapes: dict[str, ValueShape] = {}
        self.unsure = False
        self.root = self.shape(document)
        changed = True
        while changed:  # a shape whose height stays endless has no finite value
            changed = False
            for shape in self.shapes.values():
                if (height := shape.measure()) < shape.height:
                    shape.height, changed = height, True
        if self.root.height == ENDLESS:
            raise SchemaError("no finite value can satisfy it")

    @cached_property
    def valid(self) -> Callable[[Any], bool]:
        """Whether a value satisfies the document; raises SchemaError for one that is wrong in itself."""
        return validity(self.document)

    def shape(self, schema: Any, depth: int = 0) -> ValueShape:
        """The shape of a schema; equal schemas share one, so that recursion ends."""
        key = json.dumps(schema, sort_keys=True)
        found = self.shapes.get(key)
        if found is None:
            if len(self.shapes) > MOST_SHAPES or depth > DEEPEST:
                raise SchemaError("it is too large or too deep for the simulator")
            found = self.shapes[key] = ValueShape()
            self.fill(found, self.expand(telling(schema), 0), depth + 1)
        return found

    def expand(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """The schema with `allOf`, and with a reference that has company, merged into it."""
        if depth > DEEPEST:
            raise SchemaError("its allOf and $ref lead back to themselves")
        together = list(schema.get("allOf", ()))
        if "$ref" in schema and len(schema) > 1:
            together.append(resolve(self.document, schema["$ref"]))
        if not together:
            return schema
        self.unsure = True
        rest = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        parts = [telling(part) for part in together]
        if len(parts) == 1 and not rest:
            return self.expand(parts[0], depth + 1)
        return self.expand(
            reduce(merge, [self.inline(part, depth + 1) for part in parts], rest), depth + 1
        )

    def inline(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """The schema with a lone reference replaced by what it refers to, so that it can be merged."""
        schema = self.expand(schema, depth)
        if "$ref" not in schema:
            return schema
        return self.inline(telling(resolve(self.document, schema["$ref"])), depth + 1)

    def fill(self, shape: ValueShape, schema: dict[str, Any], depth: int) -> None:
        self.unsure = self.unsure or not SURE.issuperset(schema)
        branching = next((keyword for keyword in ("anyOf", "oneOf") if keyword in schema), "")
        if "$ref" in schema:
            target = self.shape(resolve(self.document, schema["$ref"]), depth)
            shape.draw, shape.measure = target.write, lambda: target.height
        elif branching:
            rest = {key: value for key, value in schema.items() if key != branching}
            self.unsure = self.unsure or bool(rest)
            branches = schema[branching]
            self.alternatives(
                shape, (merge(rest, branch) if rest else branch for branch in branches), depth
            )
        elif "const" in schema or "enum" in schema:
            self.fixed(shape, self.listed_values(schema))
        elif len(types := read_types(schema)) != 1:
            self.alternatives(shape, ({**schema, "type": name} for name in types), depth)
        elif types[0] == "object":
            self.properties(shape, schema, depth)
        elif types[0] == "array":
            self.items(shape, schema, depth)
        elif types[0] == "string":
            self.text(shape, schema)
        elif types[0] == "boolean":
            shape.draw = lambda draft, depth, name: draft.random.random() < 0.5
        elif types[0] == "null":
            self.fixed(shape, [None])
        else:
            self.number(shape, schema, whole=types[0] == "integer")

    def alternatives(self, shape: ValueShape, schemas: Iterable[Any], depth: int) -> None:
        """One of some schemas; null is taken seldom when there is anything else."""
        branches = [self.shape(schema, depth) for schema in schemas]

        def draw(draft: Draft, depth: int, name: str) -> Any:
            possible = [branch for branch in branches if branch.height < ENDLESS]
            if depth >= FLAT or draft.left <= 0:
                return min(possible, key=lambda branch: branch.height).write(draft, depth, name)
            others = [branch for branch in possible if not branch.only_null]
            if others and draft.random.random() < 0.9:
                possible = others
            return draft.one_of(possible).write(draft, depth, name)

        shape.draw = draw
        shape.measure = lambda: min((branch.height for branch in branches), default=ENDLESS)

    def listed_values(self, schema: dict[str, Any]) -> list[Any]:
        """`const` and `enum`: those of the values that the other keywords allow."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        others = {key: value for key, value in schema.items() if key != "const"}
        if set(others) - {"enum", "type"} or ("const" in schema and "enum" in schema):
            valid = validity(self.document | others if isinstance(self.document, dict) else others)
            return [value for value in values if valid(value)]
        types = read_types(others) if "type" in others else None
        return (
            values
            if types is None
            else [value for value in values if any(TYPES[name](value) for name in types)]
        )

    def fixed(self, shape: ValueShape, values: list[Any]) -> None:
        """One of some values; without any, there is no value at all."""
        shape.draw = lambda draft, depth, name: draft.choose(values)
        shape.measure = lambda: 0 if values else ENDLESS
        shape.only_null = values == [None]

    def number(self, shape: ValueShape, schema: dict[str, Any], *, whole: bool) -> None:
        said = {
            keyword: Fraction(repr(schema[keyword])) for keyword in HINTS["number"] & schema.keys()
        }
        low, high = (
            [said.get(f"m{end}imum"), said.get(f"exclusiveM{end}imum")] for end in ("in", "ax")
        )
        draw = number_writer(whole, low, high, said.get("multipleOf"))
        shape.draw, shape.measure = draw or shape.draw, lambda: 0 if draw else ENDLESS

    def properties(self, shape: ValueShape, schema: dict[str, Any], depth: int) -> None:
        """An object: what is required, and more of it while there is room; a map alone gets keys that are not named."""
        required = dict.fromkeys(schema.get("required", ()))
        allowed = schema.get("additionalProperties", True)
        named = shape.named = {
            name: self.shape(part, depth) for name, part in schema.get("properties", {}).items()
        }
        others = self.shape({"type": "string"} if allowed in (True, {}) else allowed, depth)
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", math.inf)
        is_map = allowed not in (True, {}) and not named

        def measure() -> float:
            needed = [named.get(key, others).height for key in required]
            missing = max(0, int(least) - len(needed))
            spare = [part.height for key, part in named.items() if key not in required]
            if others.height < ENDLESS:
                spare += [others.height] * missing
            if len(needed) > most or least > most or len(spare) < missing:
                return ENDLESS
            return 1 + max((*needed, *sorted(spare)[:missing]), default=0)

        def draw(draft: Draft, depth: int, name: str) -> Any:
            generous = depth < FLAT and draft.left > 0
            # those required, and of the others the ones that lead least deep
            chosen = set(required)
            optional = [
                key for key, part in named.items() if part.height < ENDLESS and key not in chosen
            ]
            for key in sorted(optional, key=lambda key: named[key].height):
                if len(chosen) < most and (
                    len(chosen) < least or (generous and draft.random.random() < 0.8)
                ):
                    chosen.add(key)
            keys = [key for key in named if key in chosen] + [
                key for key in required if key not in named
            ]
            invented = len(keys)
            wanted = min(max(least, len(keys) + 2 if generous and is_map else 0), most)
            while len(keys) < wanted and others.height < ENDLESS:
                word = draft.one_of(draft.words).lower()
                keys.append(
                    f"{word}_{len(keys) - invented + 1}" if word in keys or word in named else word
                )
            return {key: named.get(key, others).write(draft, depth + 1, key) for key in keys}

        shape.draw, shape.measure = draw, measure

    def items(self, shape: ValueShape, schema: dict[str, Any], depth: int) -> None:
        """A list: `first` by place, then `rest` for the others. A list under `items` is what `prefixItems` is today."""
        prefix, further = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(further, list):
            prefix, further = further, schema.get("additionalItems", True)
        first = [self.shape(part, depth) for part in prefix]
        rest = self.shape({"type": "string"} if further in (True, {}) else further, depth)
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        unique = bool(schema.get("uniqueItems", False))

        def longest() -> float:
            ends = (place for place, shape in enumerate((*first, rest)) if shape.height == ENDLESS)
            return float(min(most, next(ends, math.inf)))

        def measure() -> float:
            if least > longest():
                return ENDLESS
            needed = [shape.height for shape in (*first, rest)[: int(least)]]
            return 1 + max(needed, default=0)

        def draw(draft: Draft, depth: int, name: str) -> Any:
            wanted = least
            if depth < FLAT and draft.left > 0:
                wanted = max(wanted, len(first), 1 + draft.below(max(1, 3 - depth)))
            values: list[Any] = []
            seen: set[str] = set()
            for place in range(int(min(wanted, longest()))):
                shape = first[place] if place < len(first) else rest
                for _ in range(20 if unique else 1):
                    value = shape.write(draft, depth + 1, name)
                    key = json.dumps(value, sort_keys=True) if unique else ""
                    if not unique or key not in seen:
                        seen.add(key)
                        values.append(value)
                        break
            return values

        shape.draw, shape.measure = draw, measure

    def text(self, shape: ValueShape, schema: dict[str, Any]) -> None:
        """A string, by its pattern or its format, or of the prompt's words."""
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength", math.inf)
        pattern, form = schema.get("pattern"), schema.get("format")
        shape.measure = lambda: 0 if least <= most else ENDLESS
        if pattern is not None:
            self.unsure = self.unsure or form is not None
            parser: Any = importlib.import_module("re._parser")  # the tree is nowhere public
            try:
                compiled, tree = re.compile(pattern), parser.parse(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                raise SchemaError(
                    f"pattern {pattern!r} is no regular expression: {error}"
                ) from error
            shape.draw = lambda draft, depth, name: matching_text(
                compiled, tree, draft, least, most
            )
        elif isinstance(form, str) and form in FORMATS:
            self.unsure = self.unsure or least > 0 or most < math.inf
            shape.draw, shape.measure = lambda draft, depth, name: FORMATS[form](draft), lambda: 0
        else:
            shape.draw = lambda draft, depth, name: text_of(draft, name, least, most)


def walk_schema(
    schema: Any, lists: tuple[str, ...], path: tuple[str, ...] = ()
) -> Iterator[tuple[Any, Any]]:
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
        if "object" not in listed(types) and "properties" not in node:
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
