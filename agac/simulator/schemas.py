"""JSON Schema to shapes: references followed, `allOf` merged, alternatives spread, all once for each schema."""

from __future__ import annotations

import json
import math
from functools import reduce
from typing import Any

from agac.simulator import shapes
from agac.simulator.keywords import count_of, has_type, list_of, number, read_types
from agac.simulator.merging import SchemaError, merge, resolve
from agac.simulator.patterns import parse_pattern
from agac.simulator.quantities import FORMATS
from agac.simulator.shapes import ENDLESS, Link, Shape
from agac.simulator.validity import validity
from agac.simulator.words import names

ANNOTATIONS = names(
    "$schema $id $anchor $comment $defs definitions title description default examples example deprecated readOnly "
    "writeOnly nullable contentEncoding contentMediaType"
)
"""Keywords that say nothing about which values are right. (`nullable` allows null, and need not be used.)"""

SURE = names(
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


class Compiler:
    """Compiles one document. `root` is its shape; `unsure` whether values must be validated."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.links: dict[str, Link] = {}
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

    def link(self, schema: Any, depth: int = 0) -> Link:
        """The place of a schema's shape; equal schemas share one, so that recursion ends."""
        if not isinstance(schema, dict | bool):
            raise SchemaError(f"{json.dumps(schema)[:40]} is not a schema; a schema is an object, true or false")
        key = json.dumps(schema, sort_keys=True)
        found = self.links.get(key)
        if found is None:
            if len(self.links) > MOST_SHAPES or depth > DEEPEST:
                raise SchemaError("it is too large or too deep for the simulator")
            found = self.links[key] = Link()
            found.target = self.shape(schema, depth + 1)
        return found

    def shape(self, schema: dict[str, Any] | bool, depth: int) -> Shape:
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

    def branches(self, schema: dict[str, Any], keyword: str, depth: int) -> Shape:
        """`anyOf` and `oneOf`: each alternative with what stands beside them."""
        rest = {key: value for key, value in schema.items() if key != keyword}
        self.unsure = self.unsure or bool(rest)
        found = list_of(schema, keyword)
        return shapes.AnyOf(tuple(self.link(merge(rest, branch) if rest else branch, depth) for branch in found))

    def fixed(self, schema: dict[str, Any]) -> Shape:
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

    def typed(self, schema: dict[str, Any], depth: int) -> Shape:
        """A schema that says its type, or whose keywords tell it."""
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

    def properties(self, schema: dict[str, Any], depth: int) -> Shape:
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

    def items(self, schema: dict[str, Any], depth: int) -> Shape:
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

    def text(self, schema: dict[str, Any]) -> Shape:
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
