"""From data to a model: pydantic's errors become Problems at the place of the key, with a suggestion."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from agac.core.errors import Path_, Problem, did_you_mean, key_path, nearest
from agac.core.types import JSONValue
from agac.spec.yaml import Document

# What comes of it is never run: it only lets one `validate` find the problems of every file at once.

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[Any, ...]

_ROUNDS = 6
"""A wrong value is taken out, then missed, then its mapping goes: three rounds, and as many again one level up."""


def salvage(model: type[Model], data: JSONValue, error: ValidationError) -> Model | None:
    """The data as `model` without what is wrong in it; None when too little is left."""
    rest = copy.deepcopy(data)
    for _ in range(_ROUNDS):
        if not isinstance(rest, dict):
            return None
        for one in sorted(
            error.errors(include_url=False), key=lambda e: [str(part) for part in e["loc"]], reverse=True
        ):
            _take_out(rest, one["loc"], missing=one["type"] == "missing")
        try:
            return model.model_validate(rest)
        except ValidationError as again:
            error = again
    return None


def _take_out(data: dict[str, Any], loc: Loc, *, missing: bool) -> None:
    if not loc:
        return
    parent = _at(data, loc[:-1])
    if loc[-1] == "[key]" and (not isinstance(parent, dict) or "[key]" not in parent):  # a key itself is wrong
        loc, parent = loc[:-1], _at(data, loc[:-2])
    if missing:
        _fill(data, parent, loc)
    elif isinstance(parent, dict):
        parent.pop(loc[-1], None)
    elif isinstance(parent, list) and loc[-1] < len(parent):
        _replace_item(data, parent, loc)


def _fill(data: dict[str, Any], parent: Any, loc: Loc) -> None:
    """A list item keeps its place, so that positions stay right: it gets a name. Another mapping goes."""
    if len(loc) > 1 and isinstance(loc[-2], int) and isinstance(parent, dict):
        parent[loc[-1]] = f"unnamed{loc[-2]}"
    else:
        _take_out(data, loc[:-1], missing=False)


def _replace_item(data: dict[str, Any], parent: list[Any], loc: Loc) -> None:
    if any(isinstance(item, dict) for item in parent) and not isinstance(parent[loc[-1]], dict):
        parent[loc[-1]] = {}
    else:
        _take_out(data, loc[:-1], missing=False)


def _at(data: Any, loc: Iterable[Any]) -> Any:
    for part in loc:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


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
        refused = {problem.path for problem in document.problems}
        problems = [_problem(model, document, dict(one), hints or {}) for one in error.errors(include_url=False)]
        left = [problem for problem in _without_misspelt(problems) if problem.path not in refused]
        return salvage(model, data, error), left


def _without_misspelt(problems: list[Problem]) -> list[Problem]:
    """Leaves out `missing key 'name'` where `nmae` of the same mapping is reported with its remedy."""
    meant = {(p.path.rpartition(".")[0], p.message) for p in problems if "did you mean" in p.message}
    return [
        p
        for p in problems
        if not (p.message.startswith("missing key ") and (p.path, _misspelt(p.message[12:])) in meant)
    ]


def _misspelt(quoted_key: str) -> str:
    return f"unknown key; did you mean {quoted_key}?"


def _problem(
    model: type[BaseModel], document: Document, error: Mapping[str, Any], hints: Mapping[str, Hints]
) -> Problem:
    kind: str = error["type"]
    in_key = kind != "extra_forbidden" and error["loc"][-1:] == ("[key]",)  # pydantic's mark for a key of a mapping
    loc: Path_ = tuple(error["loc"][:-1] if in_key else error["loc"])
    where = document.where(loc, key=in_key or kind == "extra_forbidden" or error["input"] is None)
    if kind == "extra_forbidden":
        message = _unknown_key(str(loc[-1]), known_keys(model, loc[:-1]), hints.get(key_path(loc[:-1]), {}))
    elif kind == "missing":
        message = f"missing key {loc[-1]!r}"
        return Problem(where, message, key_path(loc[:-1]))
    else:
        message = _sentence(kind, error)
    return Problem(where, message, key_path(loc))


def _unknown_key(key: str, known: list[str], hints: Hints) -> str:
    if key in hints:
        return hints[key]
    return f"unknown key; {did_you_mean(key, known, 'known keys')}"


def _sentence(kind: str, error: Mapping[str, Any]) -> str:
    value, context = error["input"], error.get("ctx", {})
    if value is None:
        return "has no value; give one or remove the key"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {described(value)}"
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        given = repr(value) if isinstance(value, str) else f"{value:g}"  # a time as `2d`
        return f"must be {words} {context[limit]:g}, not {given}"
    if kind == "literal_error":
        return _choice(value, str(context["expected"]))
    if kind in ("string_too_short", "too_short"):
        return "is empty; give a value or remove the key"
    return str(error["msg"])


def _choice(value: Any, expected: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    if isinstance(value, str):
        match = nearest(value, choices)
        remedy = f"did you mean {match!r}?" if match else f"choose {', '.join(choices)}"
        return f"unknown value {value!r}; {remedy}"
    return f"expected {' or '.join(choices)}, got {described(value)}"


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
        found = _inner(found, part)
        if found is None:
            return []
    return list(found.model_fields) if _is_model(found) else []


def _inner(annotation: Any, part: str | int) -> Any:
    if _is_model(annotation):
        known = annotation.model_fields.get(str(part))
        return None if known is None else _strip(known.annotation)
    args = get_args(annotation)
    return _strip(args[-1]) if args else None


def _strip(annotation: Any) -> Any:
    """The type under `Annotated`, `Optional` and the like."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _strip(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return _strip(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
