"""What a program gives to public functions and records: held to their annotations before anything is done with it."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache, wraps
from pathlib import Path, PurePath
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from agac.core.errors import UsageError, listed

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN = 60  # so many characters of a wrong value are shown
_SECRET = {"headers", "env", "key", "provider"}
"""Arguments whose value may hold a secret: it is not shown."""

_WORDS: dict[Any, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "True or False", type(None): "None",
    dict: "a dict", list: "a list", tuple: "a tuple", type: "a class",
}  # fmt: skip

_OF_AGAC = {
    "BuiltWorkflow": "an agac.Workflow",
    "NamedWorkflow": "an agac.Workflow",
    "Frame": "a frame",
}
"""The words for classes that programs know by another name."""


def typed(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, which refuses arguments of a wrong type with UsageError before it begins. A function that is awaited
    refuses them when it is."""
    name = function.__name__

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
        refuse_types(f"agac.{name}", bound, _hints(function))

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return awaited  # type: ignore[return-value]  # what it gives is T, which is awaited

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check(args, kwargs)
        return function(*args, **kwargs)

    return call


def refuse_fields(record: Any) -> None:
    """Raises UsageError for the first field of a public dataclass whose value is not of the type that it has there."""
    kind: Any = type(record)
    given = {one.name: getattr(record, one.name) for one in fields(record)}
    refuse_types(f"agac.{kind.__name__}", given, _hints(kind))


def refuse_keys_of(door: str, keys: Mapping[str, Any], kind: type) -> None:
    """The same for keys of a TypedDict that `door` was given."""
    refuse_types(door, keys, _hints(kind))


def refuse_types(door: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raises UsageError for the first value that does not fit its hint: names it, what it is, and what is wanted."""
    for name, value in given.items():
        if name not in hints or fits(value, hints[name]):
            continue
        shown = "" if name in _SECRET else f"{value!r:.{_SHOWN}}, "
        what = f"{door}: {name} is {shown}of type {type(value).__name__}"
        raise UsageError(what, remedy=f"Give {wanted(hints[name])}.")


@cache
def _hints(annotated: Any) -> dict[str, Any]:
    """The hints of a function's named arguments, or of a class."""
    hints = get_type_hints(annotated)
    if isinstance(annotated, type):
        return hints
    various = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = [
        name
        for name, one in inspect.signature(annotated).parameters.items()
        if one.kind not in various
    ]
    return {name: hints[name] for name in named if name in hints}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotation's type. What an iterable gives, as rows, is not looked at; a hint that says
    nothing about values at run time takes each."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Annotated:
        return fits(value, inner[0])
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    kind = origin or hint
    if not isinstance(kind, type) or kind in (Any, object):
        return True  # Any, a type variable, a name of a recursive type
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str | bytes) and issubclass(kind, Iterable) and kind not in (str, bytes):
        return False  # each character would be taken for an item
    return isinstance(value, kind) and _fit_inside(value, kind, inner)


def _fit_inside(value: Any, kind: type, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and issubclass(kind, Mapping) and inner:
        return all(fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items())
    if isinstance(value, list | tuple) and inner and issubclass(kind, Collection):
        return all(fits(one, inner[0]) for one in value)
    return True


def wanted(hint: Any) -> str:
    """The values that a hint takes, as a message names them: `a whole number or None`."""
    *before, last = dict.fromkeys(_words(hint))
    return f"{', '.join(before)} or {last}" if before else last


def _words(hint: Any) -> list[str]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return [word for one in inner for word in _words(one)]
    if origin is Annotated:
        return _words(inner[0])
    if origin is Literal:
        return [repr(one) for one in inner]
    kind = origin or hint
    if kind in _WORDS and not inner:
        return [_WORDS[kind]]
    if not isinstance(kind, type):
        return ["another value"]
    return [_class_words(kind) or _container(kind, inner) or f"a {kind.__name__}"]


def _class_words(kind: type) -> str | None:
    """The words for a class of agac, and for a path."""
    if issubclass(kind, PurePath):
        return "a path"
    if not kind.__module__.startswith("agac."):
        return None
    return _OF_AGAC.get(kind.__name__, f"an agac.{kind.__name__}")


def _container(kind: type, inner: tuple[Any, ...]) -> str | None:
    """The words for a kind of many values, or a function."""
    if kind.__name__ == "Callable":
        return "a function"
    if issubclass(kind, Mapping):
        told = inner and inner[1] != Any
        return f"a mapping of {_plural(inner[0])} to {_plural(inner[1])}" if told else "a mapping"
    if issubclass(kind, AsyncIterable):
        return f"an async iterable of {_plural(inner[0])}" if inner else "an async iterable"
    if issubclass(kind, Collection):
        return f"a list of {_plural(inner[0])}" if inner else "a list"
    if not issubclass(kind, Iterable):
        return None
    return f"an iterable of {_plural(inner[0])}" if inner else "an iterable"


def _plural(hint: Any) -> str:
    named = {str: "texts", int: "whole numbers", float: "numbers", Path: "paths"}
    if get_origin(hint) in (Union, types.UnionType):
        return listed(dict.fromkeys(_plural(one) for one in get_args(hint))).replace(", ", " or ")
    if issubclass(get_origin(hint) or object, Mapping):
        return "mappings"
    if isinstance(hint, type) and hint not in named:
        return f"agac.{hint.__name__}" if hint.__module__.startswith("agac.") else hint.__name__
    return named.get(hint, "values")
