"""Checks files against their models: pydantic's errors as Problems at the place of the key, with a
suggestion."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from agac.core.errors import Path_, Problem, did_you_mean, key_path, nearest
from agac.core.types import JSONValue
from agac.spec.validation import NO_VALUE, NULL_REFUSED
from agac.spec.yaml import Document

Model = TypeVar("Model", bound=BaseModel)

_ROUNDS = 6
"""A wrong value is taken out, then missed, then its mapping goes: three rounds, and as many again
one level up."""


def _salvaged(model: type[Model], data: JSONValue, error: ValidationError) -> Model | None:
    """Returns the data as `model` without what is wrong in it; None when too little is left.
    What comes of it is never run: it only lets one `validate` find the problems of every file
    at once."""
    rest = copy.deepcopy(data)
    for _ in range(_ROUNDS if isinstance(rest, dict) else 0):
        errors = sorted(
            error.errors(include_url=False),
            key=lambda e: [str(part) for part in e["loc"]],
            reverse=True,
        )
        for one in errors:
            _take_out(rest, _way(one["loc"]), missing=one["type"] == "missing")
        try:
            return model.model_validate(rest)
        except ValidationError as again:
            error = again
    return None


def _way(loc: Path_) -> Path_:
    return tuple(part for part in loc if not _FORM.match(str(part)))


def _take_out(data: dict[str, Any], loc: tuple[Any, ...], *, missing: bool = False) -> None:
    """Takes a wrong value out of `data`, or the mapping in which one is missing. A list item keeps
    its place, so that positions stay right: it gets a name, or becomes an empty mapping."""
    *way, last = loc or (None,)
    parent: Any = data
    try:
        parent = reduce(operator.getitem, way, parent)
    except (LookupError, TypeError):  # it was taken out before
        parent = None
    if _take_from(parent, last, way[-1] if way else None, missing=missing):
        return
    if way and (parent is not None or last == "[key]"):
        _take_out(data, tuple(way))


def _take_from(parent: Any, key: Any, position: Any, *, missing: bool) -> bool:
    """Takes a value out of the mapping or list that holds it; False if that is not possible.
    `position` is that of the parent within its own."""
    if isinstance(parent, dict):
        if missing and isinstance(position, int):
            parent[key] = f"unnamed{position}"
            return True
        if not missing and (key in parent or key != "[key]"):
            parent.pop(key, None)
            return True
    if isinstance(parent, list) and dict in map(type, parent) and type(parent[key]) is not dict:
        parent[key] = {}
        return True
    return False


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than_equal": "at most",
}
# pydantic's marks for one of several forms
_FORM = re.compile(r"constrained-str\Z|(list|dict|literal|function-\w+)\[")
Hints = Mapping[str, str]  # sentences by unknown key


def validate(
    model: type[Model], document: Document, *, hints: Mapping[str, Hints] | None = None
) -> tuple[Model | None, list[Problem]]:
    """Returns the document's data as `model`, and every problem that it has. What the reader
    refused is not reported twice. With problems the model is what could be salvaged, good only for
    finding more of them; None when that is nothing. `hints` are sentences for unknown keys that
    mean something elsewhere: by the path of their mapping, with `[]` for each place of a list,
    then by key. A `null` of a key that may be left out is as if the key were not there; where
    nothing is written behind a key, a value was forgotten."""
    data: Any = {} if document.data is None else document.data
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        given = _without_nulls(data, document, error)
        if given != data:
            return validate(model, replace(document, data=given), hints=hints)
        found = [
            _problem(model, document, dict(one), hints or {})
            for one in error.errors(include_url=False)
        ]
        refused = {problem.path for problem in document.problems}
        # `missing key 'name'` is left out where `nmae` of the same mapping is reported with its
        # remedy
        meant = {(one.path.rpartition(".")[0], one.message) for one in found}
        slips = [
            (one.path, f"{one.message.replace('missing key ', 'unknown key; did you mean ')}?")
            for one in found
        ]
        left = [
            one
            for one, slip in zip(found, slips, strict=True)
            if one.path not in refused and slip not in meant
        ]
        return _salvaged(model, data, error), left


def _without_nulls(data: Any, document: Document, error: ValidationError) -> Any:
    """Returns the data without the keys that are null and may be left out."""
    found = [
        _way(one["loc"]) for one in error.errors(include_url=False) if one["type"] == NULL_REFUSED
    ]
    nulls = [path for path in found if not document.is_blank(path)]
    rest = copy.deepcopy(data) if nulls else data
    for path in nulls:
        _take_out(rest, path)
    return rest


def _problem(
    model: type[BaseModel], document: Document, error: Mapping[str, Any], hints: Mapping[str, Hints]
) -> Problem:
    kind: str = error["type"]
    # pydantic's mark for a key of a mapping
    in_key = kind != "extra_forbidden" and error["loc"][-1:] == ("[key]",)
    loc = _way(error["loc"][:-1] if in_key else error["loc"])
    if kind == "missing":
        return document.problem(loc[:-1], f"missing key {loc[-1]!r}")
    if kind == "extra_forbidden":
        key = str(loc[-1])
        near = hints.get(re.sub(r"\[\d+\]", "[]", key_path(loc[:-1])), {})
        known = known_keys(model, loc[:-1])
        if key in near:
            message = near[key]
        else:
            message = f"unknown key; {did_you_mean(key, known, 'known keys')}"
    else:
        message = _sentence(kind, error["input"], error.get("ctx", {}), str(error["msg"]))
    return document.problem(
        loc, message, key=in_key or kind == "extra_forbidden" or error["input"] is None
    )


def _sentence(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """Says what is wrong with a value; `message` is pydantic's own, the last resort."""
    if value is None:
        return NO_VALUE
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {described(value)}"
    if kind in _BOUNDS:
        given = repr(value) if isinstance(value, str) else f"{value:g}"  # a time as `2d`
        return f"must be {_BOUNDS[kind]} {next(iter(context.values())):g}, not {given}"
    if kind == "literal_error":
        choices = [
            choice.strip("'")
            for choice in str(context["expected"]).replace(" or ", ", ").split(", ")
        ]
        if not isinstance(value, str):
            return f"expected {' or '.join(choices)}, got {described(value)}"
        match = nearest(value, choices)
        return (
            f"unknown value {value!r}; "
            f"{f'did you mean {match!r}?' if match else 'choose ' + ', '.join(choices)}"
        )
    if kind in ("string_too_short", "too_short"):
        return "is empty; give a value or remove the key"
    return message


def described(value: Any) -> str:
    """Returns a value as the user wrote it, short, with its kind: `the text "abc"`, `the number
    3`, `a list`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        short = value if len(value) <= 40 else value[:39] + "…"
        if "\n" not in short:
            return f'the text "{short}"'
        return "a text of several lines"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return "no value"


def known_keys(model: type[BaseModel], loc: Path_) -> list[str]:
    """Returns the keys that the mapping at `loc` of a file may have."""
    found: Any = model
    for part in loc:
        is_model = isinstance(found, type) and issubclass(found, BaseModel)
        found = _stripped(found.model_fields[part].annotation if is_model else get_args(found)[-1])
    return list(found.model_fields)


def _stripped(annotation: Any) -> Any:
    """Returns the type under `Annotated`, `Optional` and the like."""
    origin = get_origin(annotation)
    args = get_args(annotation)
    if origin is Annotated:
        return _stripped(args[0])
    if origin in (Union, UnionType):
        return _stripped(
            next(arg for arg in args if arg is not type(None) and get_origin(arg) is not Literal)
        )
    return annotation
