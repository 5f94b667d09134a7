"""JSON Schemas as data: whether they are valid and local, and what they say of a place in a
value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from agac.core.errors import Path_

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

TYPES = ("string", "integer", "number", "boolean", "object", "array")
_DATA = frozenset({"enum", "const", "default", "examples"})
_BY_NAME = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)  # fmt: skip
"""Keywords whose value holds a schema for each name: whatever the name is, it is no keyword."""

WITHIN = _BY_NAME | {
    "items",
    "prefixItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
}
"""Keywords that hold schemas."""

KEYWORDS = (
    WITHIN - {"dependencies"}
    | _DATA
    | {
        "$schema",
        "$id",
        "$ref",
        "$comment",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$vocabulary",
        "type",
        "required",
        "minProperties",
        "maxProperties",
        "minItems",
        "maxItems",
        "uniqueItems",
        "title",
        "description",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "deprecated",
        "readOnly",
        "writeOnly",
        "dependentRequired",
        "minContains",
        "maxContains",
        "contentEncoding",
        "contentMediaType",
    }
)
"""Those of draft 2020-12, with `definitions`, which others know as `$defs`."""

FORMATS = frozenset(
    {
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uri-reference",
        "iri",
        "iri-reference",
        "uuid",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    }
)
"""Those that are checked."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MOST_ALTERNATIVES = 1_000  # of one place in a value; of more no place is known
LOCAL_HOPS = 20  # more references in a row than this only go round in a circle


def field_shape(field: str) -> dict[str, Any]:
    """Returns the JSON Schema of a result that holds one text."""
    return {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}


def subschemas(
    schema: Any,
    path: Path_ = (),
    *,
    names: bool = False,
    into: Callable[[str], bool] = lambda key: key not in _DATA,
) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Yields every mapping of a schema that can hold keywords, itself first, as far as they are in
    values of the keywords `into`: in all but `enum`, `default` and the like. `names`: the keys of
    this one are names."""
    if isinstance(schema, dict):
        if not names:
            yield path, schema
        for key, value in schema.items():
            if names or into(key):
                yield from subschemas(
                    value, (*path, key), names=not names and key in _BY_NAME, into=into
                )
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from subschemas(value, (*path, index), into=into)


def target(root: Mapping[str, Any], ref: str) -> Any:
    """Returns the part of the schema that a local reference (`#/…`, `#anchor` or `#`) points at,
    None if there is none."""
    anchor, *parts = unquote(ref.removeprefix("#")).split("/")
    found: Any = root
    if anchor:
        found = goals.of(root).by_anchor.get(anchor)
    for part in parts:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


@dataclass(frozen=True, slots=True)
class _Goals:
    """Where references of a schema can lead."""

    by_anchor: Mapping[str, Any]
    """The schemas that have an anchor."""

    pointers: tuple[str, ...]
    """The references to its definitions."""


class _LastGoals:
    """The goals of the schema that was asked for last: thousands of references of one schema are
    followed in a row."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, Any], _Goals] | None = None

    def of(self, root: Mapping[str, Any]) -> _Goals:
        """Returns the goals of a schema, which nobody changes."""
        if self._last is not None and self._last[0] is root:
            return self._last[1]
        by_anchor: dict[str, Any] = {}
        for _, sub in subschemas(root):
            for anchor in (sub.get("$anchor"), sub.get("$dynamicAnchor")):
                if isinstance(anchor, str):
                    by_anchor.setdefault(anchor, sub)
        homes = ("$defs", "definitions")
        pointers = tuple(
            pointer(home, name) for home in homes for name in mapping_of(root.get(home))
        )
        self._last = (root, _Goals(by_anchor, pointers))
        return self._last[1]


goals = _LastGoals()


class OpenShape(Exception):
    """A schema leaves open what is asked of it."""


def resolved(root: Mapping[str, Any], schema: Any) -> dict[str, Any] | None:
    """Returns the schema that a reference leads to, or the schema itself; None if it leads nowhere
    or is no mapping."""
    for _ in range(LOCAL_HOPS):
        if not isinstance(schema, dict):
            return None
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return schema
        schema = target(root, ref) if ref.startswith("#") else None
    return None


def alternatives(root: Mapping[str, Any], schema: Any, depth: int = 0) -> list[dict[str, Any]]:
    """Returns the alternatives of a schema, references followed. Raises OpenShape when they are not
    known."""
    found = resolved(root, schema)
    if found is None or depth > LOCAL_HOPS or "allOf" in found or "if" in found:
        raise OpenShape
    choices = found.get("anyOf") or found.get("oneOf")
    if not isinstance(choices, list) or "properties" in found:
        return [found]
    branches: list[dict[str, Any]] = []
    for choice in choices:
        branches += alternatives(root, choice, depth + 1)
        # definitions of which each names another one twice double them
        if len(branches) > MOST_ALTERNATIVES:
            raise OpenShape
    return branches


def own_names(root: Mapping[str, Any], schema: Any) -> frozenset[str]:
    names: set[str] = set()
    for branch in alternatives(root, schema):
        if "properties" in branch:
            if branch.get("additionalProperties") not in (None, False) or branch.get(
                "patternProperties"
            ):
                raise OpenShape
            names |= branch["properties"].keys()
        elif _may_hold(branch, "object") or _may_hold(branch, "array"):
            raise OpenShape
    return frozenset(names)


def step(root: Mapping[str, Any], schema: Any, part: str) -> list[Any]:
    """Returns the schemas of the member `part`, none when there is no such member."""
    found: list[Any] = []
    for branch in alternatives(root, schema):
        properties = branch.get("properties", {})
        if part in properties:
            found.append(properties[part])
        elif part.isdecimal() and _may_hold(branch, "array"):
            found.append(branch.get("items", True))
        else:
            own_names(root, branch)  # raises OpenShape where the branch may have the member
    return found


def _may_hold(schema: dict[str, Any], kind: str) -> bool:
    if "enum" in schema or "const" in schema:
        return False
    kinds = schema.get("type")
    return kinds is None or kind == kinds or (isinstance(kinds, list) and kind in kinds)


Fault: TypeAlias = "tuple[Path_, str]"  # what is wrong at a path within a schema

# What checking a value takes.

MAX_VISITS = 10_000
"""Parts of a schema that may look at one value. References that lead to a part twice, to a part
that does so, and so on, double the number each time: a schema of a few lines could look for hours.
"""

_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_EACH_PART = (
    "items",
    "prefixItems",
    "contains",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)


class SchemaCost(NamedTuple):
    """What checking a value against a schema costs."""

    visits: int
    """The parts of the schema that look at one value and those around it."""
    branches: int
    """The ways in which the schema leads back to itself there."""
    choices: int
    """The values that its largest `enum` lists."""


def schema_cost(body: Mapping[str, Any]) -> SchemaCost:
    """Returns the cost of a schema whose references can be followed; others count as nothing."""
    return _Count(body).of(body)


def _too_many_visits(body: Mapping[str, Any]) -> str | None:
    """Says why a schema would take too long for any value; None for another one."""
    visits = schema_cost(body).visits
    if visits <= MAX_VISITS:
        return None
    return (
        f"more than {MAX_VISITS:,} parts of the schema look at the same value; let fewer "
        "references and alternatives "
        "lead to parts that have references and alternatives themselves"
    )


class _Count:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, SchemaCost] = {}
        self._open: set[int] = set()

    def of(self, schema: Any) -> SchemaCost:
        if not isinstance(schema, Mapping):
            return SchemaCost(1, 0, 0)
        if id(schema) in self._open:
            # the library looks at a value once, however often references lead back
            return SchemaCost(0, 1, 0)
        if id(schema) not in self._known:
            self._open.add(id(schema))
            self._known[id(schema)] = self._counted(schema)
            self._open.discard(id(schema))
        return self._known[id(schema)]

    def _counted(self, schema: Mapping[str, Any]) -> SchemaCost:
        parts = [
            self.of(sub)
            for key in (*_SAME_VALUE, *_EACH_PART)
            for sub in _schemas(key, schema.get(key))
        ]
        references = [schema.get(key) for key in ("$ref", "$dynamicRef")]
        parts += [self.of(target(self._root, ref)) for ref in references if isinstance(ref, str)]
        fields = schema.get("properties")
        # each field is another value: the costliest counts
        if isinstance(fields, Mapping):
            costs = [self.of(sub) for sub in fields.values()]
        else:
            costs = []
        visits = (
            1 + sum(one.visits for one in parts) + max((one.visits for one in costs), default=0)
        )
        branches = sum(one.branches for one in parts) + max(
            (one.branches for one in costs), default=0
        )
        enum = schema.get("enum")
        choices = len(enum) if isinstance(enum, list) else 0
        choices = max([choices, *(one.choices for one in (*parts, *costs))])
        return SchemaCost(min(visits, MAX_VISITS + 1), min(branches, MAX_VISITS), choices)


def _schemas(key: str, value: Any) -> Iterable[Any]:
    """Returns the schemas that a keyword holds: one, several in a list, or one for each name."""
    if isinstance(value, list):
        return value
    if key in ("dependentSchemas", "patternProperties"):
        return value.values() if isinstance(value, Mapping) else ()
    return () if value is None else (value,)


# Patterns, and what checks values.

BACKTRACK_LIMIT = 1_000_000
"""How often matching a pattern may go back, which takes some 0.04 s; `^(?:(?!bad).)*$` goes back
once a character."""

_READS_ON = re.compile(
    r"\(\?<?[=!](?:[^()\\]|\\.|\([^()]*\))*?(?:[*+]|\{\d*,\}|\([^()]*\()|\\[1-9k].*[*+]", re.DOTALL
)
"""A repetition in a look-around or after a back-reference may read the whole text at each step:
`^(?:(?!.*bad).)*$`."""
_CHARACTERS = (
    100_000_000  # how many such patterns may read of a reply in all, which takes some 0.2 s
)
# how often patterns may go back in all texts of a reply together, which takes some 2 s
_ALL_STEPS = 50_000_000
GAVE_UP = "given up"  # what is said where a pattern has met its limit


class _Pattern:
    """`pattern` in a schema that has such a one: that one may go back less often in a long
    reply."""

    def __init__(self, most: int, limit: int, _: object, pattern: str, __: object) -> None:
        self._validator = _validator(
            {"pattern": pattern}, most if _READS_ON.search(pattern) else limit
        )

    def validate(self, instance: object) -> None:
        for error in self._validator.iter_errors(instance):
            raise ValueError(
                GAVE_UP if type(error.kind).__name__ == "BacktrackLimitExceeded" else error.message
            )


def _patterns(body: dict[str, Any], *keys: str) -> list[str]:
    found = (sub.get(key) for _, sub in subschemas(body) for key in keys)
    return [
        name
        for one in found
        for name in (one if isinstance(one, dict) else [one])
        if isinstance(name, str)
    ]


def _reads_on(body: dict[str, Any], key: str) -> bool:
    return any(map(_READS_ON.search, _patterns(body, key)))


def goes_back(body: dict[str, Any], *keys: str) -> bool:
    """True if matching a pattern under one of these keywords, `pattern` and `patternProperties`,
    may go back. Rust's ordinary engine reads a text once; look-arounds and back-references take
    another one, which goes back."""
    return any(map(_goes_back, _patterns(body, *keys)))


def _goes_back(pattern: str) -> bool:
    from jsonschema_rs import Draft202012Validator, RegexOptions

    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions())
    except ValueError:
        return True
    return False


def compiled(
    body: dict[str, Any], *, formats: bool = True, size: int = 1, texts: int = 1
) -> Draft202012Validator:
    """Returns the validator of a JSON Schema (draft 2020-12, whatever its `$schema` says): formats
    are checked, nothing is ever fetched, no pattern is matched for ever: of a value of `size`
    characters in so many `texts` all that go back are given up in time. Raises ValueError for a
    schema that cannot be compiled, or would take too long."""
    fault = _too_many_visits(body)
    if fault is not None:
        raise ValueError(fault)
    going_back = [*filter(_goes_back, _patterns(body, "pattern", "patternProperties"))]
    limit = min(_ALL_STEPS // (texts * max(len(going_back), 1)) + 1, BACKTRACK_LIMIT)
    most = min(_CHARACTERS // size + 1, limit)
    if _reads_on(body, "pattern"):
        keywords = {"pattern": partial(_Pattern, most, limit)}
    else:
        keywords = None
    of_all = most if _reads_on(body, "patternProperties") else limit
    return _validator(body, of_all, validate_formats=formats, offline=True, keywords=keywords)


def _validator(body: dict[str, Any], most: int, **options: Any) -> Draft202012Validator:
    # 0.04 s, and most commands check no schema
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions

    return Draft202012Validator(
        body, pattern_options=FancyRegexOptions(backtrack_limit=most), **options
    )


def compiles(body: dict[str, Any]) -> bool:
    """True if a schema can be compiled."""
    try:
        compiled(body)
    except ValueError:
        return False
    return True


UNQUOTED = "/~!$&'()*+,;=:@?"


def pointer(*parts: str) -> str:
    """Returns the reference to a place, written as it must be."""
    return "#/" + "/".join(
        quote(part.replace("~", "~0").replace("/", "~1"), safe=UNQUOTED) for part in parts
    )


def mapping_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
