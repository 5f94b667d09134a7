"""JSON Schemas as data: whether they are valid and local, and what they say of a place in a
value."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from operator import is_not
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from agac.core.errors import Path_, did_you_mean, listed, nearest
from agac.core.types import Schema

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

TYPES = ("string", "integer", "number", "boolean", "object", "array")
_DATA = frozenset({"enum", "const", "default", "examples"})
_BY_NAME = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)  # fmt: skip
"""Keywords whose value holds a schema for each name: whatever the name is, it is no keyword."""

_WITHIN = _BY_NAME | {
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
    _WITHIN - {"dependencies"}
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

_OTHER_WORDS = {
    "additionalItems": "of an older draft and has no effect; write `items` beside `prefixItems`",
    "dependencies": "of an older draft; write `dependentRequired` or `dependentSchemas`",
    "$recursiveRef": "of an older draft and has no effect; write `$dynamicRef`",
    "$recursiveAnchor": "of an older draft and has no effect; write `$dynamicAnchor`",
    "id": "of an older draft and has no effect; write `$id`",
    "nullable": 'of OpenAPI and has no effect; write `type: [string, "null"]`',
    "example": "of OpenAPI and has no effect; write `examples`",
}
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

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
MOST_ALTERNATIVES = 1_000  # of one place in a value; of more no place is known
LOCAL_HOPS = 20  # more references in a row than this only go round in a circle


def field_shape(field: str) -> dict[str, Any]:
    """The JSON Schema of a result that holds one text."""
    return {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}


def subschemas(
    schema: Any,
    path: Path_ = (),
    *,
    names: bool = False,
    into: Callable[[str], bool] = lambda key: key not in _DATA,
) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Every mapping of a schema that can hold keywords, itself first, as far as they are in values
    of the keywords `into`: in all but `enum`, `default` and the like. `names`: the keys of this
    one are names."""
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
    """The part of the schema that a local reference (`#/…`, `#anchor` or `#`) points at, None if
    there is none."""
    anchor, *parts = unquote(ref.removeprefix("#")).split("/")
    found: Any = root
    if anchor:
        found = _goals.of(root).by_anchor.get(anchor)
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
        """The goals of a schema, which nobody changes."""
        if self._last is not None and self._last[0] is root:
            return self._last[1]
        by_anchor: dict[str, Any] = {}
        for _, sub in subschemas(root):
            for anchor in (sub.get("$anchor"), sub.get("$dynamicAnchor")):
                if isinstance(anchor, str):
                    by_anchor.setdefault(anchor, sub)
        homes = ("$defs", "definitions")
        pointers = tuple(
            _pointer(home, name) for home in homes for name in _mapping(root.get(home))
        )
        self._last = (root, _Goals(by_anchor, pointers))
        return self._last[1]


_goals = _LastGoals()


class _Open(Exception):
    """A schema leaves open what is asked of it."""


def resolved(root: Mapping[str, Any], schema: Any) -> dict[str, Any] | None:
    """The schema that a reference leads to, or the schema itself; None if it leads nowhere or is
    no mapping."""
    for _ in range(LOCAL_HOPS):
        if not isinstance(schema, dict):
            return None
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return schema
        schema = target(root, ref) if ref.startswith("#") else None
    return None


def _alternatives(root: Mapping[str, Any], schema: Any, depth: int = 0) -> list[dict[str, Any]]:
    """The alternatives of a schema, references followed. Raises _Open when they are not known."""
    found = resolved(root, schema)
    if found is None or depth > LOCAL_HOPS or "allOf" in found or "if" in found:
        raise _Open
    choices = found.get("anyOf") or found.get("oneOf")
    if not isinstance(choices, list) or "properties" in found:
        return [found]
    branches: list[dict[str, Any]] = []
    for choice in choices:
        branches += _alternatives(root, choice, depth + 1)
        # definitions of which each names another one twice double them
        if len(branches) > MOST_ALTERNATIVES:
            raise _Open
    return branches


def _own_names(root: Mapping[str, Any], schema: Any) -> frozenset[str]:
    names: set[str] = set()
    for branch in _alternatives(root, schema):
        if "properties" in branch:
            if branch.get("additionalProperties") not in (None, False) or branch.get(
                "patternProperties"
            ):
                raise _Open
            names |= branch["properties"].keys()
        elif _may_hold(branch, "object") or _may_hold(branch, "array"):
            raise _Open
    return frozenset(names)


def _step(root: Mapping[str, Any], schema: Any, part: str) -> list[Any]:
    """The schemas of the member `part`, none when there is no such member."""
    found: list[Any] = []
    for branch in _alternatives(root, schema):
        properties = branch.get("properties", {})
        if part in properties:
            found.append(properties[part])
        elif part.isdecimal() and _may_hold(branch, "array"):
            found.append(branch.get("items", True))
        else:
            _own_names(root, branch)  # raises _Open where the branch may have the member
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
    """`visits`: the parts of a schema that look at one value and at those around it. `branches`:
    the ways in which the schema leads back to itself there. `choices`: the values that its largest
    `enum` lists."""

    visits: int
    branches: int
    choices: int


def schema_cost(body: Mapping[str, Any]) -> SchemaCost:
    """The cost of a schema whose references can be followed; others count as nothing."""
    return _Count(body).of(body)


def _too_many_visits(body: Mapping[str, Any]) -> str | None:
    """Why a schema would take too long for any value; None for another one."""
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
    """The schemas that a keyword holds: one, several in a list, or one for each name."""
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
    """Whether matching a pattern under one of these keywords, `pattern` and `patternProperties`,
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
    """The validator of a JSON Schema (draft 2020-12, whatever its `$schema` says): formats are
    checked, nothing is ever fetched, no pattern is matched for ever: of a value of `size`
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
    """Whether a schema can be compiled."""
    try:
        compiled(body)
    except ValueError:
        return False
    return True


def schema_faults(body: dict[str, Any]) -> list[Fault]:
    """Everything wrong with a JSON Schema (draft 2020-12), as (path, sentence). Nothing is ever
    fetched."""
    refused: list[Fault] = []
    try:
        compiled(body)
    except (
        ValueError
    ) as error:  # jsonschema_rs.ValidationError has the path, its other errors do not
        message = f"this JSON Schema cannot be compiled: {getattr(error, 'message', error)}"
        refused = [(tuple(getattr(error, "instance_path", ())), message)]
    faults = _meta_faults(body) if refused else []
    for path, sub in subschemas(body):
        faults += _reference_faults(body, sub, path)
        faults += _pattern_faults(sub, path) if refused else ()
    if refused and not faults:  # a reference may lead to what else is data
        for path, sub in subschemas(body, into=lambda _: True):
            faults += [*_reference_faults(body, sub, path), *_pattern_faults(sub, path)]
    own = [
        (*path, "$id") for path, sub in subschemas(body) if path and isinstance(sub.get("$id"), str)
    ]
    if (
        own
        and (faults or refused)
        and all(path[-1] in ("$ref", "$dynamicRef") for path, _ in faults)
    ):
        message = (
            "a schema with an $id of its own is looked at apart from the rest by $ref and "
            "$anchor; remove it"
        )
        faults.append((own[0], message))
    return faults or refused


def schema_warnings(body: dict[str, Any]) -> list[Fault]:
    """What a schema that is none the worse for it has without effect, or with another one than its
    author may mean."""
    found: list[Fault] = []
    for path, sub in subschemas(body, into=_WITHIN.__contains__):
        for key in sub.keys() - KEYWORDS:
            if key in _OTHER_WORDS:
                found.append(((*path, key), f"{key!r} is {_OTHER_WORDS[key]}"))
            elif not key.startswith("x-"):
                match = nearest(key, KEYWORDS)
                if match:
                    remedy = f"did you mean {match!r}?"
                else:
                    remedy = "remove it, or let its name begin with x-"
                found.append(
                    (
                        (*path, key),
                        f"{key!r} is no keyword of JSON Schema and has no effect; {remedy}",
                    )
                )
        name = sub.get("format")
        draft = sub.get("$schema")
        if isinstance(name, str) and name not in FORMATS:
            remedy = did_you_mean(name, sorted(FORMATS), "formats that are")
            found.append(((*path, "format"), f"the format {name!r} is not checked; {remedy}"))
        if isinstance(draft, str) and draft.rstrip("#") != _DRAFT:
            message = (
                "the schema is read as draft 2020-12 whatever is said here; write "
                f"{_DRAFT}, or leave it out"
            )
            found.append(((*path, "$schema"), message))
    return found


def _meta_faults(body: dict[str, Any]) -> list[Fault]:
    """Where the schema is not what the meta-schema of draft 2020-12 says. Compiling checks the
    same, but says less."""
    # 0.1 s and 10 MB, which a schema that compiles does not need
    from jsonschema import Draft202012Validator

    faults: dict[Path_, str] = {}
    for error in Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(body):
        path = tuple(error.absolute_path)
        value = error.instance
        if len(error.message) <= 160:
            short = error.message
        else:
            short = error.message[:159] + "…"
        message = f"not a valid JSON Schema: {short}"
        if path[-1:] == ("type",) and isinstance(value, str):
            message = f"unknown type {value!r}; {did_you_mean(value, (*TYPES, 'null'), 'types')}"
        elif path[-1:] == ("items",) and isinstance(value, list):
            message = (
                "a list of schemas is `prefixItems` since draft 2020-12, and `items` is "
                "the schema of all others"
            )
        faults.setdefault(path, message)
    return list(faults.items())


def _reference_faults(root: dict[str, Any], sub: dict[str, Any], path: Path_) -> Iterator[Fault]:
    for key in ("$ref", "$dynamicRef"):
        ref = sub.get(key)
        if not isinstance(ref, str):
            continue
        if not ref.startswith("#"):
            yield (
                (*path, key),
                (
                    f"{ref!r} points outside this schema; only #/… is followed, nothing is ever "
                    "fetched"
                ),
            )
        elif target(root, ref) is None:
            known = _goals.of(root).pointers
            match = nearest(ref, known)
            if match:
                remedy = f"did you mean {match!r}?"
            else:
                remedy = f"there is: {listed(known, 'no $defs')}"
            yield (*path, key), f"{ref!r} does not exist; {remedy}"
        elif not _REFERENCE.fullmatch(ref):
            right = "#" + quote(unquote(ref[1:]), safe=_UNQUOTED)
            yield (
                (*path, key),
                f"{ref!r} has characters that a reference cannot have; write {right!r}",
            )
        elif _circle(root, sub):
            yield (*path, key), f"{ref!r} leads back to itself"


_UNQUOTED = "/~!$&'()*+,;=:@?"
_REFERENCE = re.compile(rf"#(?:[\w.\-{_UNQUOTED}]|%[0-9A-Fa-f]{{2}})*", re.ASCII)
"""What may stand in a reference as it is, RFC 3986."""


def _pointer(*parts: str) -> str:
    """The reference to a place, written as it must be."""
    return "#/" + "/".join(
        quote(part.replace("~", "~0").replace("/", "~1"), safe=_UNQUOTED) for part in parts
    )


def _circle(root: dict[str, Any], sub: Any) -> bool:
    for _ in range(LOCAL_HOPS):
        ref = _mapping(sub).get("$ref")
        if not isinstance(ref, str):
            return False
        sub = target(root, ref)
    return True


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pattern_faults(sub: dict[str, Any], path: Path_) -> Iterator[Fault]:
    """Patterns that cannot be compiled, in Python's words where Python refuses them too."""
    found = {(*path, "pattern"): sub.get("pattern")}
    found |= {
        (*path, "patternProperties", one): one for one in _mapping(sub.get("patternProperties"))
    }
    for at, pattern in found.items():
        if not compiles({"pattern": pattern} if isinstance(pattern, str) else {}):
            reason = "write it as in JavaScript, whose regular expressions JSON Schema uses"
            try:
                re.compile(str(pattern))
            except re.error as error:
                reason = str(error)
            if re.search(r"\{\d*,?\d{3,}\}", str(pattern)):
                reason = (
                    f"{reason}; a repetition such as {{1000}} can make it too large: use "
                    "maxLength instead"
                )
            yield at, f"{pattern!r} is not a regular expression: {reason}"


_KINDS = {
    "string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "object": "an object", "array": "a list", "null": "null",
}  # fmt: skip
NUMBERS = frozenset({"integer", "number"})


def kinds_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema without references allows; none when it allows any."""
    values = _choices(schema)
    if values is not None:
        return frozenset(map(kind_of, values))
    kinds = schema.get("type")
    return frozenset([kinds] if isinstance(kinds, str) else kinds or ()) & _KINDS.keys()


def _choices(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """The values that a schema lists, None when it lists none."""
    values: Sequence[Any] | None = schema.get(
        "enum", [schema["const"]] if "const" in schema else None
    )
    return values


def kind_of(value: Any) -> str:
    """The JSON type of a value; whole numbers are `integer`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
    return "object" if isinstance(value, Mapping) else "array"


def allows(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value that the schema allows can be equal to `value`, as CEL compares: 1 and 1.0
    are the same."""
    kind = kind_of(value)
    values = _choices(schema)
    if values is not None:
        return any(kind_of(one) == kind and one == value for one in values)
    return kind in kinds_of(schema) or (kind == "integer" and "number" in kinds_of(schema))


def kinds_in_words(kinds: Iterable[str]) -> str:
    """JSON types as they are said: `a number or text`."""
    return " or ".join(_KINDS[kind] for kind in sorted(kinds))


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What is at `path` in values that `body` describes; numbers are places in lists. `only` these
    ways are in it."""

    body: Mapping[str, Any]
    path: tuple[str, ...] = ()
    only: tuple[tuple[str, ...], ...] | None = None

    def names(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """The names that a way may go on with after `rest`: none when it ends there, None when
        they are not known. Listed properties count as all there are, unless the schema says
        `additionalProperties` or the like itself."""
        way = tuple(rest)
        below = [
            one[len(way)]
            for one in self.only or ()
            if len(one) > len(way) and one[: len(way)] == way
        ]
        if below:
            return frozenset(below)
        try:
            return frozenset().union(
                *(_own_names(self.body, schema) for schema in self._schemas(way))
            )
        except _Open:
            return None

    def _schemas(self, rest: Iterable[str]) -> list[Any]:
        """The schemas of what stands at the end of the way `rest`. Raises _Open."""
        at: list[Any] = [self.body]
        for part in (*self.path, *rest):
            at = [inner for schema in at for inner in _step(self.body, schema, part)]
        return at

    def missing(self, rest: Sequence[str | int]) -> tuple[int, frozenset[str]] | None:
        """Which part of the way `rest` is a name that is not there, and the names that are; None:
        none is known to be missing. Places in lists are not judged."""
        way = [str(part) for part in rest]
        for depth, part in enumerate(rest):
            if isinstance(part, int):
                continue
            names = self.names(way[:depth])
            if names is None or part not in names:
                return None if names is None else (depth, names)
        return None

    def optional(self, rest: Sequence[str]) -> int | None:
        """Which part of the way `rest` is a name that values may lack, as far as it is known: a
        field that a schema lists and does not require, or one of what may be something else than
        an object, such as null."""
        for depth, part in enumerate(rest):
            values = self.values(rest[:depth])
            if values is None:
                return None
            objects = [one for one in values if part in one.get("properties", {})]
            if any(part not in one.get("required", ()) for one in objects):
                return depth
            if objects and any("null" in kinds_of(one) for one in values):
                return depth
        return None

    def values(self, rest: Iterable[str] = ()) -> Sequence[Mapping[str, Any]] | None:
        """What may stand at the end of the way `rest`; None when that is not known."""
        try:
            found = [
                branch
                for schema in self._schemas(rest)
                for branch in _alternatives(self.body, schema)
            ]
        except _Open:
            return None
        return found if found and all(map(kinds_of, found)) else None

    def kinds(self, rest: Iterable[str] = ()) -> frozenset[str] | None:
        """The JSON types of what may stand there; None when they are not known."""
        values = self.values(rest)
        if values is None:
            return None
        return frozenset().union(*map(kinds_of, values))

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


# Whole numbers. To JSON Schema 2.0 is an integer as 2 is; to CEL, Python and databases it is
# another kind of number.

_MOST_KNOWN = 10_000
_EXACT = 2**63
"""From here on a whole number is no longer one to CEL."""


class WholeNumbers:
    """Where a schema says that a value is an integer."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._root = body
        nodes = [sub for _, sub in subschemas(body)]
        self._has_integers = any("integer" in kinds_of(sub) for sub in nodes)
        # places of a list from this one on have the same schema
        self._most_places = max((len(sub.get("prefixItems") or ()) for sub in nodes), default=0)
        self._known: dict[Path_, bool] = {}

    def of(self, value: Any) -> Any:
        """The valid value, with 2 for a 2.0 that the schema calls an integer; the same object
        where nothing changes."""
        try:
            return self._written(value, ()) if self._has_integers else value
        except RecursionError:  # nested more deeply than anybody looks
            return value

    def _written(self, value: Any, at: Path_) -> Any:
        if isinstance(value, float):
            is_whole = value.is_integer() and abs(value) < _EXACT and self._is_integer(at)
            return int(value) if is_whole else value
        if isinstance(value, dict):
            fields = {name: self._written(inner, (*at, name)) for name, inner in value.items()}
            if any(fields[name] is not value[name] for name in fields):
                return fields
            return value
        if isinstance(value, list):
            items = [
                self._written(inner, (*at, min(n, self._most_places)))
                for n, inner in enumerate(value)
            ]
            return items if any(map(is_not, items, value)) else value
        return value

    def _is_integer(self, at: Path_) -> bool:
        if at not in self._known:
            if len(self._known) >= _MOST_KNOWN:  # an object may have other names in each row
                self._known.clear()
            self._known[at] = self._says_integer(self._root, at, 0)
        return self._known[at]

    def _says_integer(self, schema: Any, way: Path_, depth: int) -> bool:
        """Whether what is at the end of the way is an integer in every value that the schema
        allows there, if it is a number."""
        found = resolved(self._root, schema)
        if found is None or depth > LOCAL_HOPS:
            return False
        if way:
            inner = _members_at(found, way[0])
            if inner and all(self._says_integer(one, way[1:], depth) for one in inner):
                return True
        elif kinds_of(found) & NUMBERS == {"integer"}:
            return True
        if any(self._says_integer(one, way, depth + 1) for one in found.get("allOf") or ()):
            return True
        holds: Set[str]
        if not way:
            holds = NUMBERS
        elif isinstance(way[0], str):
            holds = {"object"}
        else:
            holds = {"array"}
        return any(
            self._each_says_integer(found.get(word) or (), way, depth, holds)
            for word in ("anyOf", "oneOf")
        )

    def _each_says_integer(
        self, choices: Sequence[Any], way: Path_, depth: int, holds: Collection[str]
    ) -> bool:
        """The same of every alternative that may be meant; False when none may."""
        resolved_choices = [resolved(self._root, one) or {} for one in choices]
        meant = [
            one
            for one in resolved_choices
            if not kinds_of(one) or not kinds_of(one).isdisjoint(holds)
        ]
        return bool(meant) and all(self._says_integer(one, way, depth + 1) for one in meant)


def integers_of(
    schemas: Mapping[str, Schema | None], names: Iterable[str]
) -> dict[str, WholeNumbers]:
    """Where the schemas of those names have integers."""
    named = ((name, schemas.get(name)) for name in names)
    return {name: WholeNumbers(schema.body) for name, schema in named if schema is not None}


def _members_at(schema: Mapping[str, Any], part: str | int) -> list[Any]:
    """The schemas of which one is that of the member of an object, or of the element of a list."""
    if isinstance(part, int):
        first = schema.get("prefixItems") or ()
        return [first[part] if part < len(first) else schema.get("items")]
    properties = _mapping(schema.get("properties"))
    if part in properties:
        return [properties[part]]
    others = [
        *_mapping(schema.get("patternProperties")).values(),
        schema.get("additionalProperties"),
    ]
    return [one for one in others if one is not False]
