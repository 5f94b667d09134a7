"""Finds what is wrong with a JSON Schema: keywords, references, patterns, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from agac.core.errors import Path_, did_you_mean, listed, nearest
from agac.spec.json_schema import (
    DRAFT,
    FORMATS,
    KEYWORDS,
    LOCAL_HOPS,
    TYPES,
    UNQUOTED,
    WITHIN,
    Fault,
    compiled,
    compiles,
    goals,
    mapping_of,
    subschemas,
    target,
)

_OTHER_WORDS = {
    "additionalItems": "of an older draft and has no effect; write `items` beside `prefixItems`",
    "dependencies": "of an older draft; write `dependentRequired` or `dependentSchemas`",
    "$recursiveRef": "of an older draft and has no effect; write `$dynamicRef`",
    "$recursiveAnchor": "of an older draft and has no effect; write `$dynamicAnchor`",
    "id": "of an older draft and has no effect; write `$id`",
    "nullable": 'of OpenAPI and has no effect; write `type: [string, "null"]`',
    "example": "of OpenAPI and has no effect; write `examples`",
}


def schema_faults(body: dict[str, Any]) -> list[Fault]:
    """Finds everything wrong with a JSON Schema (draft 2020-12), as (path, sentence). Nothing is
    ever fetched."""
    refused = _compile_faults(body)
    faults = _meta_faults(body) if refused else []
    for path, sub in subschemas(body):
        faults += _reference_faults(body, sub, path)
        if refused:
            faults += _pattern_faults(sub, path)
    if refused and not faults:  # a reference may lead to what is data elsewhere
        for path, sub in subschemas(body, into=lambda _: True):
            faults += [*_reference_faults(body, sub, path), *_pattern_faults(sub, path)]
    if faults or refused:
        faults += _identity_faults(body, faults)
    return faults or refused


def _compile_faults(body: dict[str, Any]) -> list[Fault]:
    """Finds why a schema cannot be compiled."""
    try:
        compiled(body)
    except ValueError as error:
        # jsonschema_rs.ValidationError has the path, its other errors do not
        message = f"this JSON Schema cannot be compiled: {getattr(error, 'message', error)}"
        return [(tuple(getattr(error, "instance_path", ())), message)]
    return []


def _identity_faults(body: dict[str, Any], faults: Sequence[Fault]) -> Iterator[Fault]:
    """Yields the first `$id` inside of a schema if nothing but references is wrong."""
    if any(path[-1] not in ("$ref", "$dynamicRef") for path, _ in faults):
        return
    for path, sub in subschemas(body):
        if path and isinstance(sub.get("$id"), str):
            message = (
                "a schema with an $id of its own is looked at apart from the rest by $ref and "
                "$anchor; remove it"
            )
            yield (*path, "$id"), message
            return


def schema_warnings(body: dict[str, Any]) -> list[Fault]:
    """Finds what has no effect in a valid schema, or another one than its author may mean."""
    found: list[Fault] = []
    for path, sub in subschemas(body, into=WITHIN.__contains__):
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
        if isinstance(draft, str) and draft.rstrip("#") != DRAFT:
            message = (
                "the schema is read as draft 2020-12 whatever is said here; write "
                f"{DRAFT}, or leave it out"
            )
            found.append(((*path, "$schema"), message))
    return found


def _meta_faults(body: dict[str, Any]) -> list[Fault]:
    """Finds where the schema is not what the meta-schema of draft 2020-12 says. Compiling checks
    the same, but says less."""
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
            known = goals.of(root).pointers
            match = nearest(ref, known)
            if match:
                remedy = f"did you mean {match!r}?"
            else:
                remedy = f"there is: {listed(known, 'no $defs')}"
            yield (*path, key), f"{ref!r} does not exist; {remedy}"
        elif not _REFERENCE.fullmatch(ref):
            right = "#" + quote(unquote(ref[1:]), safe=UNQUOTED)
            yield (
                (*path, key),
                f"{ref!r} has characters that a reference cannot have; write {right!r}",
            )
        elif _circle(root, sub):
            yield (*path, key), f"{ref!r} leads back to itself"


_REFERENCE = re.compile(rf"#(?:[\w.\-{UNQUOTED}]|%[0-9A-Fa-f]{{2}})*", re.ASCII)
"""What may stand in a reference as it is, RFC 3986."""


def _circle(root: dict[str, Any], sub: Any) -> bool:
    for _ in range(LOCAL_HOPS):
        ref = mapping_of(sub).get("$ref")
        if not isinstance(ref, str):
            return False
        sub = target(root, ref)
    return True


def _pattern_faults(sub: dict[str, Any], path: Path_) -> Iterator[Fault]:
    """Patterns that cannot be compiled, in Python's words where Python refuses them too."""
    found = {(*path, "pattern"): sub.get("pattern")}
    found |= {
        (*path, "patternProperties", one): one for one in mapping_of(sub.get("patternProperties"))
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
