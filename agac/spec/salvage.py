"""Reading on after a mistake: what is wrong is taken out of the data, so that the rest of the files is checked too.

What comes of it is never run: it only lets one `validate` find the problems of every file at once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agac.core.types import JSONValue

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
