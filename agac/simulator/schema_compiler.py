"""JSON Schemas, compiled to shapes that write values.

A schema is compiled once: references are followed, `allOf` is merged, alternatives are spread. Its
shape then writes any number of values. Where its keywords are more than shapes can keep by
themselves (`unsure`), each value is checked with jsonschema before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any

from agac.simulator.kinds import JsonObject
from agac.simulator.schema_keywords import (
    TYPES,
    is_sure,
    merge,
    read_types,
    resolve,
    telling,
    validity,
)
from agac.simulator.schema_values import (
    FORMATS,
    Draft,
    NumberRange,
    SchemaError,
    TextPattern,
    text_of,
)

ENDLESS = math.inf  # the height of a shape that has no finite value
FLAT = 4  # below this depth only what must be is written
MAX_SHAPES = 20_000
MAX_DEPTH = 100
UNIQUE_TRIES = 20


class ValueShape:
    """Writes the values of one kind of schema."""

    is_null = False
    """true if nothing but null comes of it"""

    def measure(self) -> float:
        """Returns how deep its smallest value nests, by the shapes below: ENDLESS without any."""
        return 0

    def draw(self, draft: Draft, depth: int, name: str) -> Any:
        """Makes a value for the property `name` ("" for none), if there is any."""


@dataclass(slots=True, eq=False)
class SharedShape:
    """The shape of all equal schemas, so that recursion ends."""

    shape: ValueShape = field(default_factory=ValueShape)
    height: float = ENDLESS

    @property
    def is_finite(self) -> bool:
        return self.height < ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        """Makes a value, which counts among those that a draft may hold."""
        draft.left -= 1
        return self.shape.draw(draft, depth, name)


def can_grow(draft: Draft, depth: int) -> bool:
    """True if more may be written than must be."""
    return depth < FLAT and draft.left > 0


@dataclass
class ReferenceShape(ValueShape):
    """A schema elsewhere in the document."""

    target: SharedShape

    def measure(self) -> float:
        return self.target.height

    def draw(self, draft: Draft, depth: int, name: str) -> Any:
        return self.target.write(draft, depth, name)


@dataclass
class AlternativesShape(ValueShape):
    """One of some schemas; null is taken seldom when there is anything else."""

    branches: list[SharedShape]

    def measure(self) -> float:
        return min((branch.height for branch in self.branches), default=ENDLESS)

    def draw(self, draft: Draft, depth: int, name: str) -> Any:
        possible = [branch for branch in self.branches if branch.is_finite]
        if not can_grow(draft, depth):
            flattest = min(possible, key=lambda branch: branch.height)
            return flattest.write(draft, depth, name)
        others = [branch for branch in possible if not branch.shape.is_null]
        if others and draft.random.random() < 0.9:
            possible = others
        return draft.one_of(possible).write(draft, depth, name)


@dataclass
class LeafShape(ValueShape):
    """A value with no others in it."""

    make: Callable[[Draft, str], Any]
    """makes it for a property"""
    is_possible: bool = True
    is_null: bool = False

    def measure(self) -> float:
        return 0 if self.is_possible else ENDLESS

    def draw(self, draft: Draft, depth: int, name: str) -> Any:
        return self.make(draft, name)


def fixed(values: Sequence[Any]) -> LeafShape:
    """Returns the shape of one of some values."""
    return LeafShape(lambda draft, _: draft.choose(values), bool(values), values == [None])


@dataclass
class ObjectShape(ValueShape):
    """An object: what is required, and more of it while there is room."""

    named: dict[str, SharedShape]
    others: SharedShape
    """the shape of properties that are not named"""
    required: list[str]
    min_size: int
    max_size: float
    is_map: bool
    """true if it gets keys that are not named"""

    def measure(self) -> float:
        needed = [self.named.get(key, self.others).height for key in self.required]
        missing = max(0, self.min_size - len(needed))
        spare = [part.height for key, part in self.named.items() if key not in self.required]
        if self.others.is_finite:
            spare += [self.others.height] * missing
        if max(len(needed), self.min_size) > self.max_size or len(spare) < missing:
            return ENDLESS
        return 1 + max((*needed, *sorted(spare)[:missing]), default=0)

    def draw(self, draft: Draft, depth: int, name: str) -> Any:
        is_generous = can_grow(draft, depth)
        chosen = self.chosen(draft, is_generous)
        keys = [key for key in self.named if key in chosen]
        keys += [key for key in self.required if key not in self.named]
        wanted = len(keys) + 2 if is_generous and self.is_map else self.min_size
        if self.others.is_finite:
            missing = min(max(self.min_size, wanted), self.max_size) - len(keys)
            keys += self.invented(draft, keys, int(missing))
        return {key: self.named.get(key, self.others).write(draft, depth + 1, key) for key in keys}

    def chosen(self, draft: Draft, is_generous: bool) -> set[str]:
        """Returns the keys that are required, and others: first the ones that lead least deep."""
        chosen = set(self.required)
        optional = [key for key in self.named if self.named[key].is_finite and key not in chosen]
        for key in sorted(optional, key=lambda key: self.named[key].height):
            if len(chosen) >= self.max_size:
                break
            is_needed = len(chosen) < self.min_size
            if is_needed or (is_generous and draft.random.random() < 0.8):
                chosen.add(key)
        return chosen

    def invented(self, draft: Draft, taken: list[str], count: int) -> list[str]:
        """Returns so many keys of the prompt's words that are not taken."""
        keys: list[str] = []
        for number in range(1, count + 1):
            word = draft.one_of(draft.words).lower()
            is_taken = word in taken or word in keys or word in self.named
            keys.append(f"{word}_{number}" if is_taken else word)
        return keys


@dataclass
class ListShape(ValueShape):
    """A list: `first` by place, then `rest` for the others."""

    first: list[SharedShape]
    rest: SharedShape
    min_size: int
    max_size: float
    is_unique: bool

    def shape_at(self, index: int) -> SharedShape:
        return self.first[index] if index < len(self.first) else self.rest

    def longest(self) -> float:
        """Returns how long a list can be."""
        for index in range(len(self.first) + 1):
            if not self.shape_at(index).is_finite:
                return min(self.max_size, index)
        return self.max_size

    def measure(self) -> float:
        if self.min_size > self.longest():
            return ENDLESS
        needed = [shape.height for shape in (*self.first, self.rest)[: self.min_size]]
        return 1 + max(needed, default=0)

    def draw(self, draft: Draft, depth: int, name: str) -> Any:
        wanted = self.min_size
        if can_grow(draft, depth):
            wanted = max(wanted, len(self.first), 1 + draft.below(max(1, 3 - depth)))
        values: list[Any] = []
        seen: set[str] = set()
        for index in range(int(min(wanted, self.longest()))):
            for _ in range(UNIQUE_TRIES if self.is_unique else 1):
                value = self.shape_at(index).write(draft, depth + 1, name)
                key = json.dumps(value, sort_keys=True) if self.is_unique else ""
                if not self.is_unique or key not in seen:
                    seen.add(key)
                    values.append(value)
                    break
        return values


class SchemaCompiler:
    """Compiles one document."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.shapes: dict[str, SharedShape] = {}
        self.unsure = False
        """true if values must be validated"""
        self.root = self.shape(document)
        self._measure()
        if not self.root.is_finite:
            raise SchemaError("no finite value can satisfy it")

    def _measure(self) -> None:
        """Finds the heights: one that stays endless has no finite value."""
        changed = True
        while changed:
            changed = False
            for shared in self.shapes.values():
                height = shared.shape.measure()
                if height < shared.height:
                    shared.height = height
                    changed = True

    @cached_property
    def valid(self) -> Callable[[Any], bool]:
        """Tells whether a value satisfies the document; raises SchemaError for a wrong one."""
        return validity(self.document)

    def has_property(self, name: str) -> bool:
        """True if the document is an object that names a property."""
        shape = self.root.shape
        return isinstance(shape, ObjectShape) and name in shape.named

    def shape(self, schema: Any, depth: int = 0) -> SharedShape:
        """Returns the shape of a schema."""
        key = json.dumps(schema, sort_keys=True)
        shared = self.shapes.get(key)
        if shared is None:
            if len(self.shapes) > MAX_SHAPES or depth > MAX_DEPTH:
                raise SchemaError("it is too large or too deep for the simulator")
            shared = SharedShape()
            self.shapes[key] = shared
            expanded = self.expand(telling(schema), 0)
            self.unsure = self.unsure or not is_sure(expanded)
            shared.shape = self.compile(expanded, depth + 1)
        return shared

    def shape_or_text(self, schema: Any, depth: int) -> SharedShape:
        """Returns the shape of a schema; texts for one that says nothing."""
        return self.shape({"type": "string"} if schema in (True, {}) else schema, depth)

    def expand(self, schema: JsonObject, depth: int) -> JsonObject:
        """Returns the schema with `allOf`, and a reference that has company, merged into it."""
        if depth > MAX_DEPTH:
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
        merged = reduce(merge, [self.inline(part, depth + 1) for part in parts], rest)
        return self.expand(merged, depth + 1)

    def inline(self, schema: JsonObject, depth: int) -> JsonObject:
        """Returns the schema with a lone reference replaced by what it refers to."""
        schema = self.expand(schema, depth)
        if "$ref" not in schema:
            return schema
        return self.inline(telling(resolve(self.document, schema["$ref"])), depth + 1)

    def compile(self, schema: JsonObject, depth: int) -> ValueShape:
        """Compiles a schema without annotations and `allOf`."""
        if "$ref" in schema:
            return ReferenceShape(self.shape(resolve(self.document, schema["$ref"]), depth))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self.branches(schema, keyword, depth)
        if "const" in schema or "enum" in schema:
            return fixed(self.fixed_values(schema))
        types = read_types(schema)
        if len(types) != 1:
            return self.alternatives(({**schema, "type": name} for name in types), depth)
        return self.compile_type(types[0], schema, depth)

    def compile_type(self, name: str, schema: JsonObject, depth: int) -> ValueShape:
        match name:
            case "object":
                return self.compile_object(schema, depth)
            case "array":
                return self.compile_list(schema, depth)
            case "string":
                return self.compile_text(schema)
            case "boolean":
                return LeafShape(lambda draft, _: draft.random.random() < 0.5)
            case "null":
                return fixed([None])
        numbers = NumberRange(schema, whole=name == "integer")
        return LeafShape(numbers.draw, not numbers.is_empty)

    def alternatives(self, schemas: Iterable[Any], depth: int) -> ValueShape:
        return AlternativesShape([self.shape(schema, depth) for schema in schemas])

    def branches(self, schema: JsonObject, keyword: str, depth: int) -> ValueShape:
        """Compiles `anyOf` or `oneOf`; what is next to it holds in every branch."""
        rest = {key: value for key, value in schema.items() if key != keyword}
        if not rest:
            return self.alternatives(schema[keyword], depth)
        self.unsure = True
        return self.alternatives((merge(rest, branch) for branch in schema[keyword]), depth)

    def fixed_values(self, schema: JsonObject) -> Sequence[Any]:
        """Returns the values of `const` or `enum` that the other keywords allow."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        others = {key: value for key, value in schema.items() if key != "const"}
        if set(others) - {"enum", "type"} or ("const" in schema and "enum" in schema):
            # references of the other keywords point into the document
            document = self.document if isinstance(self.document, dict) else {}
            is_valid = validity(document | others)
            return [value for value in values if is_valid(value)]
        if "type" not in others:
            return list(values)
        types = [TYPES[name] for name in read_types(others)]
        return [value for value in values if any(is_type(value) for is_type in types)]

    def compile_object(self, schema: JsonObject, depth: int) -> ValueShape:
        named = {
            name: self.shape(part, depth) for name, part in schema.get("properties", {}).items()
        }
        further = schema.get("additionalProperties", True)
        return ObjectShape(
            named,
            self.shape_or_text(further, depth),
            required=list(dict.fromkeys(schema.get("required", ()))),
            min_size=int(schema.get("minProperties", 0)),
            max_size=schema.get("maxProperties", math.inf),
            is_map=further not in (True, {}) and not named,
        )

    def compile_list(self, schema: JsonObject, depth: int) -> ValueShape:
        first = schema.get("prefixItems", [])
        further = schema.get("items", True)
        if isinstance(further, list):  # what `prefixItems` was before
            first = further
            further = schema.get("additionalItems", True)
        return ListShape(
            [self.shape(part, depth) for part in first],
            self.shape_or_text(further, depth),
            min_size=int(schema.get("minItems", 0)),
            max_size=schema.get("maxItems", math.inf),
            is_unique=bool(schema.get("uniqueItems", False)),
        )

    def compile_text(self, schema: JsonObject) -> ValueShape:
        """Compiles a text: by its pattern or its format, or of the prompt's words."""
        min_length = int(schema.get("minLength", 0))
        max_length = schema.get("maxLength", math.inf)
        form = schema.get("format")
        make: Callable[[Draft, str], str]
        make = partial(text_of, min_length=min_length, max_length=max_length)
        if "pattern" in schema:
            self.unsure = self.unsure or form is not None
            pattern = TextPattern(schema["pattern"])
            make = partial(pattern.text, min_length=min_length, max_length=max_length)
        elif isinstance(form, str) and form in FORMATS:
            self.unsure = self.unsure or min_length > 0 or max_length < math.inf
            return LeafShape(lambda draft, _: FORMATS[form](draft))
        return LeafShape(make, min_length <= max_length)
