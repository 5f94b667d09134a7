"""JSON Schemas as data: whether they are valid and local, the short form, and what they say of a place in a value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from agac.core.errors import Path_, did_you_mean, listed, nearest
from agac.core.types import JSONValue

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

_DATA = frozenset({"enum", "const", "default", "examples"})

LOCAL_HOPS = 20
"""More references in a row than this only go round in a circle."""


def subschemas(schema: Any, path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Every mapping of a schema that can hold keywords, itself first; data such as `enum` and `default` is left out."""
    if isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key not in _DATA or (path and path[-1] in ("properties", "$defs", "definitions")):
                yield from subschemas(value, (*path, key))
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from subschemas(value, (*path, index))


def target(root: Mapping[str, Any], ref: str) -> Any:
    """The part of the schema that a local reference (`#/…`, `#anchor` or `#`) points at, None if there is none."""
    anchor, *parts = unquote(ref.removeprefix("#")).split("/")
    found: Any = root if not anchor else _anchored(root, anchor)
    for part in parts:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def _anchored(root: Mapping[str, Any], anchor: str) -> dict[str, Any] | None:
    return next((sub for _, sub in subschemas(root) if anchor in (sub.get("$anchor"), sub.get("$dynamicAnchor"))), None)


def property_names(body: dict[str, Any], path: Iterable[str] = ()) -> frozenset[str] | None:
    """The names that `${stage.<path>.…}` may go on with; None when the schema leaves them open.

    Properties that are listed count as all there are, unless the schema says `additionalProperties` or the like
    itself. An empty set: the value at `path` has no fields (it is a text, say). Numbers in `path` index arrays.
    """
    at = schemas_at(body, path)
    if at is None:
        return None
    names: set[str] = set()
    for schema in at:
        own = _own_names(body, schema)
        if own is None:
            return None
        names |= own
    return frozenset(names)


def schemas_at(body: dict[str, Any], path: Iterable[str]) -> list[Any] | None:
    """The schemas of the value at `path`; None when they are left open."""
    at: list[Any] = [body]
    for part in path:
        stepped = [_step(body, schema, part) for schema in at]
        if any(step is None for step in stepped):
            return None
        at = [schema for step in stepped if step is not None for schema in step]
    return at


def resolved(root: Mapping[str, Any], schema: Any) -> dict[str, Any] | None:
    """The schema that a reference leads to, or the schema itself; None if it leads nowhere or is no mapping."""
    for _ in range(LOCAL_HOPS):
        if not isinstance(schema, dict):
            return None
        if not isinstance(ref := schema.get("$ref"), str):
            return schema
        schema = target(root, ref) if ref.startswith("#") else None
    return None


def alternatives(root: dict[str, Any], schema: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The alternatives of a schema, references followed; None when they cannot be told."""
    found = resolved(root, schema)
    if found is None or depth > LOCAL_HOPS or "allOf" in found or "if" in found:
        return None
    choices = found.get("anyOf") or found.get("oneOf")
    if not isinstance(choices, list) or "properties" in found:
        return [found]
    branches: list[dict[str, Any]] = []
    for alternative in choices:
        inner = alternatives(root, alternative, depth + 1)
        if inner is None:
            return None
        branches += inner
    return branches


def _own_names(root: dict[str, Any], schema: Any) -> frozenset[str] | None:
    branches = alternatives(root, schema)
    if branches is None:
        return None
    names: set[str] = set()
    for branch in branches:
        if "properties" in branch:
            if branch.get("additionalProperties") not in (None, False) or branch.get("patternProperties"):
                return None
            names |= branch["properties"].keys()
        elif _may_hold(branch, "object") or _may_hold(branch, "array"):
            return None
    return frozenset(names)


def _step(root: dict[str, Any], schema: Any, part: str) -> list[Any] | None:
    """The schemas of the member `part`, none when there is no such member, None when that is left open."""
    branches = alternatives(root, schema)
    if branches is None:
        return None
    found: list[Any] = []
    for branch in branches:
        properties = branch.get("properties", {})
        if part in properties:
            found.append(properties[part])
        elif part.isdecimal() and _may_hold(branch, "array"):
            found.append(branch.get("items", True))
        elif _own_names(root, branch) is None:
            return None
    return found


def _may_hold(schema: dict[str, Any], kind: str) -> bool:
    if "enum" in schema or "const" in schema:
        return False
    kinds = schema.get("type")
    return kinds is None or kind == kinds or (isinstance(kinds, list) and kind in kinds)


_JSON_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_REFS = ("$ref", "$dynamicRef")

SchemaFault: TypeAlias = "tuple[Path_, str]"


def compiled(body: dict[str, Any]) -> Draft202012Validator:
    """The validator of a JSON Schema (draft 2020-12, whatever its `$schema` says): formats are checked, and nothing
    is ever fetched. Raises ValueError for a schema that cannot be compiled."""
    from jsonschema_rs import Draft202012Validator  # costs 0.04 s, and most commands check no schema

    return Draft202012Validator(body, validate_formats=True, offline=True)


def schema_faults(body: dict[str, Any]) -> list[SchemaFault]:
    """Everything wrong with a JSON Schema (draft 2020-12), as (path, sentence). Nothing is ever fetched."""
    refused = _compile_faults(body)
    faults = _meta_faults(body) if refused else []
    for path, sub in subschemas(body):
        faults += _reference_faults(body, sub, path)
        faults += _pattern_faults(sub, path) if refused else ()
    return faults or refused


def _meta_faults(body: dict[str, Any]) -> list[SchemaFault]:
    """Where the schema is not what the meta-schema of draft 2020-12 says. Compiling checks the same, but says less."""
    from jsonschema import Draft202012Validator  # 0.1 s and 10 MB, which a schema that compiles does not need

    validator = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    faults: dict[Path_, str] = {}
    for error in validator.iter_errors(body):
        path = tuple(error.absolute_path)
        faults.setdefault(path, _meta_sentence(path, error.instance, error.message))
    return list(faults.items())


def _meta_sentence(path: Path_, value: Any, message: str) -> str:
    if path[-1:] == ("type",) and isinstance(value, str):
        return f"unknown type {value!r}; {did_you_mean(value, _JSON_TYPES, 'types')}"
    short = message if len(message) <= 160 else message[:159] + "…"
    return f"not a valid JSON Schema: {short}"


def _reference_faults(root: dict[str, Any], sub: dict[str, Any], path: Path_) -> Iterator[SchemaFault]:
    for key in _REFS:
        ref = sub.get(key)
        if not isinstance(ref, str):
            continue
        if not ref.startswith("#"):
            yield (*path, key), f"{ref!r} points outside this schema; only #/… is followed, nothing is ever fetched"
        elif target(root, ref) is None:
            yield (*path, key), f"{ref!r} does not exist; {_near_ref(root, ref)}"
        elif _circle(root, sub):
            yield (*path, key), f"{ref!r} leads back to itself"


def _circle(root: dict[str, Any], sub: Any) -> bool:
    for _ in range(LOCAL_HOPS):
        if not isinstance(sub, dict) or not isinstance(ref := sub.get("$ref"), str):
            return False
        sub = target(root, ref)
    return True


def _near_ref(root: dict[str, Any], ref: str) -> str:
    known = [f"#/{home}/{name}" for home in ("$defs", "definitions") for name in _mapping(root.get(home))]
    match = nearest(ref, known)
    return f"did you mean {match!r}?" if match else f"there is: {', '.join(known) or 'no $defs'}"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pattern_faults(sub: dict[str, Any], path: Path_) -> Iterator[SchemaFault]:
    if isinstance(pattern := sub.get("pattern"), str) and (fault := _pattern_fault(pattern)):
        yield (*path, "pattern"), fault
    for name in _mapping(sub.get("patternProperties")):
        if fault := _pattern_fault(name):
            yield (*path, "patternProperties", name), fault


def _pattern_fault(pattern: str) -> str | None:
    """Why a pattern cannot be compiled, in Python's words where Python refuses it too."""
    try:
        compiled({"pattern": pattern})
    except ValueError:
        reason = "write it as in JavaScript, whose regular expressions JSON Schema uses"
    else:
        return None
    try:
        re.compile(pattern)
    except re.error as error:
        reason = str(error)
    return f"{pattern!r} is not a regular expression: {reason}"


def _compile_faults(body: dict[str, Any]) -> list[SchemaFault]:
    try:
        compiled(body)
    except ValueError as error:  # jsonschema_rs.ValidationError has the path, its other errors do not
        message = str(getattr(error, "message", error))
        return [(tuple(getattr(error, "instance_path", ())), f"this JSON Schema cannot be compiled: {message}")]
    return []


_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_NUMBERS = frozenset({"integer", "number"})


def values_at(body: dict[str, Any], path: Iterable[str]) -> list[Mapping[str, Any]] | None:
    """The alternatives, references followed, for the value at `path`; None when they are left open."""
    at = schemas_at(body, path)
    if at is None:
        return None
    found: list[Mapping[str, Any]] = []
    for schema in at:
        branches = alternatives(body, schema)
        if branches is None or not all(kinds_of(branch) for branch in branches):
            return None
        found += branches
    return found or None


def kinds_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema without references allows; none when it allows any."""
    if "const" in schema or "enum" in schema:
        return frozenset(kind_of(value) for value in schema.get("enum", (schema.get("const"),)))
    kinds = schema.get("type")
    return frozenset([kinds] if isinstance(kinds, str) else kinds or ()) & _KINDS.keys()


def kind_of(value: Any) -> str:
    """The JSON type of a value; whole numbers are `integer`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def allows(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value that the schema allows can be equal to `value`, as CEL compares: 1 and 1.0 are the same."""
    if "const" in schema or "enum" in schema:
        return any(
            kind_of(one) == kind_of(value) and one == value for one in schema.get("enum", (schema.get("const"),))
        )
    kind = kind_of(value)
    return kind in kinds_of(schema) or (kind == "integer" and "number" in kinds_of(schema))


def kinds_in_words(kinds: Iterable[str]) -> str:
    """JSON types as they are said: `a number or text`."""
    return " or ".join(_KINDS[kind] for kind in sorted(kinds))


def verdict(sign: str, name: str, schemas: list[Mapping[str, Any]], value: Any) -> str | None:
    """What is wrong with comparing a value of these schemas with `value`, None when it may be met."""
    kinds = frozenset().union(*(kinds_of(one) for one in schemas))
    if sign in ("==", "!=", "in"):
        if any(allows(one, value) for one in schemas):
            return None
        end = (
            "is always true" if sign == "!=" else "names a value that never comes" if sign == "in" else "is never true"
        )
        return f"{end}: {_why(name, schemas, kinds, value)}"
    wanted = _NUMBERS if type(value) in (int, float) else {"string"} if isinstance(value, str) else {"boolean"}
    return None if kinds & wanted else f"cannot be compared: {_why(name, schemas, kinds, value)}"


def _why(name: str, schemas: list[Mapping[str, Any]], kinds: frozenset[str], value: Any) -> str:
    choices = [one for schema in schemas for one in schema.get("enum", ())]
    if choices and all("enum" in schema for schema in schemas):
        texts = [one for one in choices if isinstance(one, str)]
        near = nearest(value, texts) if isinstance(value, str) else None
        meant = f"; did you mean {json.dumps(near, ensure_ascii=False)}?" if near else ""
        return f"{name} is one of {listed(json.dumps(one, ensure_ascii=False) for one in choices)}{meant}"
    remedy = ""
    if kinds == {"string"} and type(value) in (int, float):
        remedy = f"; write `double({name})`"
    elif kinds == {"string"} and isinstance(value, bool):
        remedy = f'; write `{name} == "{json.dumps(value)}"`'
    elif kinds == {"boolean"} and isinstance(value, str):
        remedy = f"; write `{name}` or `!{name}`"
    elif kinds <= _NUMBERS and isinstance(value, str):
        remedy = "; write the number without quotes"
    return f"{name} is {kinds_in_words(kinds) or 'something else'}{remedy}"


# The short way to say what a result looks like: `{sentiment: "positive|neutral|negative", tags: "string[]?"}`.
#
# A type is `string`, `integer`, `number`, `boolean`, `object` or `array`; `a|b|c` is a choice of texts; `T[]` a list,
# `(a|b)[]` a list of choices; a trailing `?` makes the field optional. A mapping is an object, a list of one an array.

TYPES = ("string", "integer", "number", "boolean", "object", "array")
_ALIASES = {"str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean"}
_ALIASES |= {"dict": "object", "map": "object", "list": "array", "date": "string", "enum": "a|b|c"}
# fmt: off
_KEYWORDS = frozenset({
    "$schema", "$id", "$ref", "$defs", "$comment", "$anchor", "$dynamicRef", "definitions", "type",
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "enum", "const",
    "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "title", "description", "default", "examples",
    "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "deprecated", "readOnly", "writeOnly", "dependentRequired", "dependentSchemas",
    "unevaluatedProperties", "unevaluatedItems", "minContains", "maxContains",
})
# fmt: on

ShorthandFault = tuple[Path_, str]
"""What is wrong at a path within the shorthand."""


def is_json_schema(body: dict[str, Any]) -> bool:
    """Whether a mapping is JSON Schema rather than shorthand, where `type` may also be the name of a field."""
    if isinstance(body.get("properties"), dict) or isinstance(body.get("$ref"), str) or "$schema" in body:
        return True
    if any(isinstance(body.get(key), list) for key in ("anyOf", "oneOf", "allOf", "enum")):
        return True
    kind = body.get("type")
    names = kind if isinstance(kind, list) else [kind]
    return all(name in (*TYPES, "null") for name in names) and body.keys() <= _KEYWORDS


def expand_shorthand(body: dict[str, Any], path: Path_ = ()) -> tuple[dict[str, JSONValue], list[ShorthandFault]]:
    """The JSON Schema of an object with these fields: closed, and with every field required that has no `?`."""
    faults: list[ShorthandFault] = []
    properties: dict[str, JSONValue] = {}
    required: list[str] = []
    for name, value in body.items():
        text = value.strip() if isinstance(value, str) else value
        if name.endswith("?"):
            faults.append(((*path, name), _optional_key(name, text)))
            continue
        optional = isinstance(text, str) and text.endswith("?")
        if not optional:
            required.append(name)
        properties[name] = _field(text[:-1] if optional else text, (*path, name), faults)
    schema: dict[str, JSONValue] = {"type": "object", "properties": properties}
    return {**schema, "required": required, "additionalProperties": False}, faults


def _optional_key(name: str, value: Any) -> str:
    meant = name.rstrip("? ")
    if isinstance(value, str):
        return f'the ? of an optional field stands after its type; write {meant}: "{value.rstrip("?")}?"'
    return f"a ? is not part of a field's name; make the whole a JSON Schema and leave {meant!r} out of required"


def _schema_inside(value: dict[str, Any], path: Path_) -> str | None:
    """A sentence when the mapping of a field reads as JSON Schema: the shorthand has no such words."""
    kind = value.get("type")
    if kind not in TYPES or not value.keys() <= _KEYWORDS:
        return None
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    field = f"[{kind}]" if path[-1:] == (0,) else kind
    says_it_all = len(value) == 1 or (kind not in ("object", "array") and "enum" not in value)
    short = f"write {name}: {field}, or " if says_it_all else ""
    return (
        f"this is the shorthand, in which {name!r} would be an object with a field 'type'; "
        f"{short}make the whole a JSON Schema with type: object and properties"
    )


def _field(value: Any, path: Path_, faults: list[ShorthandFault]) -> JSONValue:
    if isinstance(value, str):
        return _type(value.strip(), path, faults)
    if isinstance(value, dict) and value:
        if (fault := _schema_inside(value, path)) is not None:
            faults.append((path, fault))
            return {}
        inner, inner_faults = expand_shorthand(value, path)
        faults += inner_faults
        return inner
    if isinstance(value, list) and len(value) == 1:
        return {"type": "array", "items": _field(value[0], (*path, 0), faults)}
    faults.append((path, 'expected a type such as string, "a|b|c", "string[]", or a mapping of fields'))
    return {}


def _type(text: str, path: Path_, faults: list[ShorthandFault]) -> JSONValue:
    if text.endswith("[]"):
        return {"type": "array", "items": _type(text[:-2].strip(), path, faults)}
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if "|" in text:
        return _choice(text, path, faults)
    if text in TYPES:
        return {"type": text}
    meant = _ALIASES.get(text.lower()) or nearest(text, TYPES)
    remedy = f"did you mean {meant!r}?" if meant else f"types: {', '.join(TYPES)}; a choice is written a|b|c"
    faults.append((path, f"unknown type {text!r}; {remedy}" if text else f"has no type; {remedy}"))
    return {}


def _choice(text: str, path: Path_, faults: list[ShorthandFault]) -> JSONValue:
    choices = [choice.strip() for choice in text.split("|")]
    if not all(choices):
        faults.append((path, f"{text!r} has an empty choice; write the choices as a|b|c"))
    if mixed := [choice for choice in choices if choice in (*TYPES, "null") or choice.endswith(("[]", "?"))]:
        remedy = f"write an optional field as '{choices[0]}?'" if "null" in mixed else "write a JSON Schema with anyOf"
        faults.append((path, f"{text!r} mixes texts to choose from with the type {mixed[0]!r}; {remedy}"))
    twice = next((choice for choice in choices if choices.count(choice) > 1), None)
    if twice:
        faults.append((path, f"{text!r} names {twice!r} twice"))
    return {"type": "string", "enum": choices}


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What stands at `path` in values that `body` describes; numbers in a path are places in lists. `only`: of that no
    more than these ways into it are there."""

    body: Mapping[str, Any]
    path: tuple[str, ...] = ()
    only: tuple[tuple[str, ...], ...] | None = None

    def names(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """The names that a way may go on with after `rest`: none when it ends there, None when they are not known."""
        way = tuple(rest)
        below = [one[len(way)] for one in self.only or () if len(one) > len(way) and one[: len(way)] == way]
        return frozenset(below) or property_names(dict(self.body), (*self.path, *way))

    def missing(self, rest: Sequence[str | int]) -> tuple[int, frozenset[str]] | None:
        """Which part of the way `rest` is a name that is not there, and the names that are; None: none is known to be
        missing. Places in lists are not judged."""
        way = [str(part) for part in rest]
        for depth, part in enumerate(rest):
            if isinstance(part, int):
                continue
            names = self.names(way[:depth])
            if names is None or part not in names:
                return None if names is None else (depth, names)
        return None

    def values(self, rest: Iterable[str] = ()) -> list[Mapping[str, Any]] | None:
        """What may stand at the end of the way `rest`; None when that is not known."""
        return values_at(dict(self.body), (*self.path, *rest))

    def kinds(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """The JSON types of what may stand there; None when they are not known."""
        values = self.values(rest)
        return None if values is None else frozenset().union(*map(kinds_of, values))

    def inside(self, rest: Iterable[str]) -> FieldShape:
        """What is known at the end of the way `rest`."""
        return FieldShape(self.body, (*self.path, *rest))

    def limited(self, ways: Iterable[tuple[str, ...]]) -> FieldShape:
        """The same where only these ways into it are there."""
        only = tuple(ways)
        return self if () in only else replace(self, only=only)


UNKNOWN = FieldShape({})
TEXT = FieldShape({"type": "string"})
WHOLE_NUMBER = FieldShape({"type": "integer"})
SINGLE = FieldShape({"type": ["string", "number", "integer", "boolean", "null"]})
"""A cell of a table that holds no structures."""
