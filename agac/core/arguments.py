"""Checks values that a program passes to public functions and records against their annotations."""

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

_MAX_SHOWN = 60
"""Characters of a wrong value that a message shows."""

_SECRET = {"headers", "env", "key", "provider"}
"""Arguments whose value may hold a secret: messages do not show it."""

_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_UNIONS = (Union, types.UnionType)

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    dict: "a dict",
    list: "a list",
    tuple: "a tuple",
    type: "a class",
}

_PLURALS: dict[Any, str] = {str: "texts", int: "whole numbers", float: "numbers", Path: "paths"}

_AGAC_WORDS = {
    "BuiltWorkflow": "an agac.Workflow",
    "NamedWorkflow": "an agac.Workflow",
    "Frame": "a frame",
}
"""Words for classes that programs know by another name."""


def typed(function: Callable[P, T]) -> Callable[P, T]:
    """Wraps `function` so that it raises UsageError for arguments of a wrong type before it begins.

    A coroutine function raises when it is awaited, not when it is called."""
    name = function.__name__

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        refuse_types(f"agac.{name}", arguments, _hints(function))

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return awaited  # type: ignore[return-value]  # it returns T, which is awaited

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check(args, kwargs)
        return function(*args, **kwargs)

    return call


def refuse_fields(record: Any) -> None:
    """Raises UsageError for the first field of a public dataclass whose value has a wrong type."""
    kind: Any = type(record)
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    refuse_types(f"agac.{kind.__name__}", values, _hints(kind))


def refuse_keys_of(function_name: str, keys: Mapping[str, Any], kind: type) -> None:
    """Raises UsageError for the first of `keys` whose value does not fit the TypedDict `kind`."""
    refuse_types(function_name, keys, _hints(kind))


def refuse_types(owner: str, values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raises UsageError for the first value that does not fit its hint.

    The message begins with `owner`, names the value and its type, and says what is wanted."""
    for name, value in values.items():
        if name not in hints or fits(value, hints[name]):
            continue
        shown = "" if name in _SECRET else f"{value!r:.{_MAX_SHOWN}}, "
        message = f"{owner}: {name} is {shown}of type {type(value).__name__}"
        raise UsageError(message, remedy=f"Give {wanted(hints[name])}.")


@cache
def _hints(annotated: Any) -> dict[str, Any]:
    """Reads the hints of a class, or of a function's named arguments."""
    hints = get_type_hints(annotated)
    if isinstance(annotated, type):
        return hints
    parameters = inspect.signature(annotated).parameters
    named = [name for name, parameter in parameters.items() if parameter.kind not in _VARIADIC]
    return {name: hints[name] for name in named if name in hints}


def fits(value: Any, hint: Any) -> bool:
    """True if `value` is of the type that an annotation names.

    The items of an iterable, such as rows, are not looked at. A hint that means nothing at run
    time fits every value."""
    origin, arguments, is_checkable = _parts_of(hint)
    if origin in _UNIONS:
        return any(fits(value, member) for member in arguments)
    if origin is Annotated:
        return fits(value, arguments[0])
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if not is_checkable:
        return True
    kind = origin or hint
    return _is_instance(value, kind) and _items_fit(value, kind, arguments)


@cache
def _parts_of(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Takes a hint apart: its origin, its arguments, and if `isinstance` can test for it."""
    origin = get_origin(hint)
    return origin, get_args(hint), _is_checkable(origin or hint)


def _is_checkable(kind: Any) -> bool:
    """True if `isinstance` can test for `kind`.

    It cannot for Any, a type variable or the name of a recursive type, and not for a protocol
    that is not for run time."""
    if not isinstance(kind, type) or kind in (Any, object):
        return False
    is_protocol = getattr(kind, "_is_protocol", False)
    return not is_protocol or getattr(kind, "_is_runtime_protocol", False)


def _is_instance(value: Any, kind: type) -> bool:
    """Does as `isinstance`, but for numbers, which no bool is, and for texts as iterables."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str | bytes) and kind not in (str, bytes) and issubclass(kind, Iterable):
        return False  # each character would be taken for an item
    return isinstance(value, kind)


def _items_fit(value: Any, kind: type, arguments: tuple[Any, ...]) -> bool:
    """True if the keys, values and items of a collection fit the arguments of its type."""
    if not arguments:
        return True
    if isinstance(value, Mapping) and issubclass(kind, Mapping):
        key_hint, value_hint = arguments
        return all(fits(key, key_hint) and fits(item, value_hint) for key, item in value.items())
    if isinstance(value, list | tuple) and issubclass(kind, Collection):
        return all(fits(item, arguments[0]) for item in value)
    return True


def wanted(hint: Any) -> str:
    """Names the values that a hint takes, for a message: `a whole number or None`."""
    *first, last = dict.fromkeys(_words(hint))
    return f"{', '.join(first)} or {last}" if first else last


def _words(hint: Any) -> list[str]:
    """Lists the words for each kind of value that a hint takes."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in _UNIONS:
        return [word for member in arguments for word in _words(member)]
    if origin is Annotated:
        return _words(arguments[0])
    if origin is Literal:
        return [repr(choice) for choice in arguments]
    return [_type_words(origin or hint, arguments)]


def _type_words(kind: Any, arguments: tuple[Any, ...]) -> str:
    """Names a type with its arguments: `a list of texts`."""
    if kind in _WORDS and not arguments:
        return _WORDS[kind]
    if not isinstance(kind, type):
        return "another value"
    return _class_words(kind) or _container_words(kind, arguments) or f"a {kind.__name__}"


def _class_words(kind: type) -> str | None:
    """Names a class of agac, or a path; None for other classes."""
    if issubclass(kind, PurePath):
        return "a path"
    if not kind.__module__.startswith("agac."):
        return None
    return _AGAC_WORDS.get(kind.__name__, f"an agac.{kind.__name__}")


def _container_words(kind: type, arguments: tuple[Any, ...]) -> str | None:
    """Names a function or a kind of collection with its items; None for other classes."""
    if kind.__name__ == "Callable":
        return "a function"
    if issubclass(kind, Mapping):
        return _mapping_words(arguments)
    if issubclass(kind, AsyncIterable):
        name = "an async iterable"
    elif issubclass(kind, Collection):
        name = "a list"
    elif issubclass(kind, Iterable):
        name = "an iterable"
    else:
        return None
    return f"{name} of {_plural(arguments[0])}" if arguments else name


def _mapping_words(arguments: tuple[Any, ...]) -> str:
    if not arguments or arguments[1] == Any:
        return "a mapping"
    return f"a mapping of {_plural(arguments[0])} to {_plural(arguments[1])}"


def _plural(hint: Any) -> str:
    """Names several values that fit a hint: `texts or paths`."""
    origin = get_origin(hint)
    if origin in _UNIONS:
        members = dict.fromkeys(_plural(member) for member in get_args(hint))
        return listed(members).replace(", ", " or ")
    if issubclass(origin or object, Mapping):
        return "mappings"
    if hint in _PLURALS or not isinstance(hint, type):
        return _PLURALS.get(hint, "values")
    is_of_agac = hint.__module__.startswith("agac.")
    return f"agac.{hint.__name__}" if is_of_agac else hint.__name__
