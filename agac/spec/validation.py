"""From data to a model: pydantic's errors become Problems at the place of the key, with a suggestion."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import getitem
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from agac.core.errors import Path_, Problem, did_you_mean, key_path, nearest
from agac.core.types import JSONValue
from agac.spec.yaml import Document

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[Any, ...]

_ROUNDS = 6
"""A wrong value is taken out, then missed, then its mapping goes: three rounds, and as many again one level up."""


def _salvaged(model: type[Model], data: JSONValue, error: ValidationError) -> Model | None:
    """The data as `model` without what is wrong in it; None when too little is left.

    What comes of it is never run: it only lets one `validate` find the problems of every file at once.
    """
    rest = copy.deepcopy(data)
    for _ in range(_ROUNDS):
        if not isinstance(rest, dict):
            return None
        errors = sorted(error.errors(include_url=False), key=lambda e: [str(part) for part in e["loc"]], reverse=True)
        for one in errors:
            _take_out(rest, one["loc"], missing=one["type"] == "missing")
        try:
            return model.model_validate(rest)
        except ValidationError as again:
            error = again
    return None


def _take_out(data: dict[str, Any], loc: Loc, *, missing: bool = False) -> None:
    """Takes a wrong value out of `data`, or the mapping in which one is missing. A list item keeps its place, so that
    positions stay right: it gets a name, or becomes an empty mapping."""
    if not loc:
        return
    parent = _at(data, loc[:-1])
    if loc[-1] == "[key]" and (not isinstance(parent, dict) or "[key]" not in parent):  # a key itself is wrong
        loc, parent = loc[:-1], _at(data, loc[:-2])
    if missing and len(loc) > 1 and isinstance(loc[-2], int) and isinstance(parent, dict):
        parent[loc[-1]] = f"unnamed{loc[-2]}"
    elif missing:
        _take_out(data, loc[:-1])
    elif isinstance(parent, dict):
        parent.pop(loc[-1], None)
    elif isinstance(parent, list) and loc[-1] < len(parent):
        if any(isinstance(item, dict) for item in parent) and not isinstance(parent[loc[-1]], dict):
            parent[loc[-1]] = {}
        else:
            _take_out(data, loc[:-1])


def _at(data: Any, loc: Iterable[Any]) -> Any:
    try:
        return reduce(getitem, loc, data)
    except (LookupError, TypeError):
        return None


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
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}

Hints = Mapping[str, str]
"""Sentences by unknown key."""


def validate(
    model: type[Model], document: Document, *, hints: Mapping[str, Hints] | None = None
) -> tuple[Model | None, list[Problem]]:
    """The document's data as `model`, and every problem that it has. What the reader refused is not reported twice.

    With problems the model is what could be salvaged, good only for finding more of them; None when that is nothing.

    `hints` are sentences for unknown keys that mean something elsewhere: by the path of their mapping, then by key.
    """
    data: Any = document.data
    data = {} if data is None else data
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        found = [_problem(model, document, dict(one), hints or {}) for one in error.errors(include_url=False)]
        refused = {problem.path for problem in document.problems}
        # `missing key 'name'` is left out where `nmae` of the same mapping is reported with its remedy
        meant = {(one.path.rpartition(".")[0], one.message) for one in found}
        left = [
            one
            for one in found
            if one.path not in refused
            and (one.path, one.message.replace("missing key ", "unknown key; did you mean ") + "?") not in meant
        ]
        return _salvaged(model, data, error), left


def _problem(
    model: type[BaseModel], document: Document, error: Mapping[str, Any], hints: Mapping[str, Hints]
) -> Problem:
    kind: str = error["type"]
    in_key = kind != "extra_forbidden" and error["loc"][-1:] == ("[key]",)  # pydantic's mark for a key of a mapping
    loc: Path_ = tuple(error["loc"][:-1] if in_key else error["loc"])
    where = document.where(loc, key=in_key or kind == "extra_forbidden" or error["input"] is None)
    if kind == "missing":
        return Problem(where, f"missing key {loc[-1]!r}", key_path(loc[:-1]))
    if kind == "extra_forbidden":
        key, near = str(loc[-1]), hints.get(key_path(loc[:-1]), {})
        known = known_keys(model, loc[:-1])
        message = near[key] if key in near else f"unknown key; {did_you_mean(key, known, 'known keys')}"
    else:
        message = _sentence(kind, error["input"], error.get("ctx", {}), str(error["msg"]))
    return Problem(where, message, key_path(loc))


def _sentence(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """What is wrong with a value; `message` is pydantic's own, which is used where there is no better."""
    if value is None:
        return "has no value; give one or remove the key"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {described(value)}"
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        given = repr(value) if isinstance(value, str) else f"{value:g}"  # a time as `2d`
        return f"must be {words} {context[limit]:g}, not {given}"
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
        if not isinstance(value, str):
            return f"expected {' or '.join(choices)}, got {described(value)}"
        match = nearest(value, choices)
        return f"unknown value {value!r}; {f'did you mean {match!r}?' if match else 'choose ' + ', '.join(choices)}"
    return "is empty; give a value or remove the key" if kind in ("string_too_short", "too_short") else message


def described(value: Any) -> str:
    """A value as the user wrote it, short, with its kind: `the text "abc"`, `the number 3`, `a list`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        short = value if len(value) <= 40 else value[:39] + "…"
        return f'the text "{short}"' if "\n" not in short else "a text of several lines"
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else "no value"


def known_keys(model: type[BaseModel], loc: Path_) -> list[str]:
    """The keys that the mapping at `loc` of a file may have."""
    found: Any = model
    for part in loc:
        if _is_model(found):
            known = found.model_fields.get(str(part))
            found = known and _stripped(known.annotation)
        else:
            args = get_args(found)
            found = _stripped(args[-1]) if args else None
    return list(found.model_fields) if _is_model(found) else []


def _stripped(annotation: Any) -> Any:
    """The type under `Annotated`, `Optional` and the like."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _stripped(args[0])
    if origin in (Union, UnionType):
        return _stripped(next(arg for arg in args if arg is not type(None)))
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
