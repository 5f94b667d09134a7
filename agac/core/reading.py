"""Reads records from the JSON that `core.types.Report.as_json` makes of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def read_as(kind: type[Record], value: object) -> Record:
    """Reads a record from the JSON object that `as_json` makes of it.

    Keys that are missing give the defaults of their fields; unknown keys are left out. Raises
    ValueError where a key without a default is missing or a value has another type."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind.__name__} is no object")
    members = {}
    for part in _parts(cast("Hashable", kind)):
        if part.inline:
            # a part that may be missing is there as soon as one of its keys is
            if not part.optional or not part.keys.isdisjoint(value):
                members[part.name] = read_as(part.kind, value)
        elif part.key in value:
            members[part.name] = _value(part.kind, value[part.key], part.key)
        elif part.required:
            raise ValueError(f"{part.key} is missing")
    return kind(**members)


class _Part(NamedTuple):
    """One field of a record, and its key in JSON."""

    name: str
    """The name of the field."""

    key: str
    """Its key in the JSON."""

    kind: Any
    """The type of its value."""

    required: bool
    """True if the field has no default."""

    inline: bool
    """True if the keys of its record are in the object itself."""

    optional: bool
    """True if an inline record may be None."""

    keys: frozenset[str]
    """The keys of an inline record."""


@cache
def _parts(kind: Any) -> tuple[_Part, ...]:
    """Lists the fields of a record with their keys."""
    hints = get_type_hints(kind)
    required = _required(kind)
    parts = []
    for entry in _keys_of(kind):
        key, _, name = entry.partition("=")
        inline = key.startswith("**")
        key = key.removeprefix("**").removesuffix("?")
        name = name or key
        hint = hints[name]
        optional = False
        keys = frozenset[str]()
        if inline:
            hint, optional = _without_none(hint)
            keys = frozenset(part.key for part in _parts(hint))
        parts.append(_Part(name, key, hint, name in required, inline, optional, keys))
    return tuple(parts)


def _keys_of(kind: Any) -> Sequence[str]:
    """Lists the keys of a record as JSON_KEYS writes them."""
    if not is_dataclass(kind):
        return tuple(kind._fields)
    listed: tuple[str, ...] = getattr(kind, "JSON_KEYS", ())
    return listed or tuple(each.name for each in fields(kind))


def _required(kind: Any) -> set[str]:
    """Finds the fields of a record that have no default."""
    if not is_dataclass(kind):
        return {*kind._fields} - {*kind._field_defaults}
    return {
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    }


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Splits `X | None` into `X` and True; another type stays as it is, with False."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    inner = [one for one in get_args(hint) if one is not NoneType]
    whole: Any = Union[tuple(inner)]  # noqa: UP007 - of types that are known at run time only
    return whole, len(inner) < len(get_args(hint))


_SCALARS: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
}


def _value(hint: Any, value: Any, key: str) -> Any:
    """Reads a value of this type. Raises ValueError."""
    if hint is Any:
        return value
    if get_origin(hint) in (Union, UnionType):
        return _one_of(hint, value, key)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], one, key) for one in value)
    if get_origin(hint) is Mapping and isinstance(value, Mapping):
        return {name: _value(get_args(hint)[1], one, key) for name, one in value.items()}
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return read_as(hint, value)
    if type(value) in _SCALARS.get(hint, ()):
        return value
    raise ValueError(f"{key} is not the kind of fact that belongs there")


def _one_of(hint: Any, value: Any, key: str) -> Any:
    """Reads a value of one of several types; None where that is one of them."""
    inner, may_be_none = _without_none(hint)
    if value is None and may_be_none:
        return None
    if get_origin(inner) not in (Union, UnionType):
        return _value(inner, value, key)
    scalars = {one for kind in get_args(inner) for one in _SCALARS[kind]}
    if type(value) in scalars:
        return value
    raise ValueError(f"{key} is not the kind of fact that belongs there")
