"""Says in words why a guard fails for the values of a row, and what to write instead."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agac.spec.cel import CelNode
from agac.spec.guard_checks import ARITHMETIC
from agac.spec.guard_text import METHODS

Sides = Sequence[tuple[str, Any]]
"""The operands of an operation, or the arguments of a call: each as it is written, and its
value."""

_NUMERIC = {"int": "^-?[0-9]+$", "uint": "^[0-9]+$", "double": "^-?[0-9]+([.][0-9]+)?$"}
_FORMS = {"timestamp": '"2026-01-31T12:00:00Z"', "duration": '"1h30m"'}
_A_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.][0-9]*)?(?:[eE][+-]?[0-9]+)?")


def failed_call(node: CelNode, sides: Sides, what: str) -> str:
    """Says what to write instead of a function's call; `what` says why it fails."""
    function = node.value
    name, value = sides[0]
    if function in _NUMERIC:
        remedy = _numeric_remedy(function, name, value)
        if remedy is not None:
            return f"{what}{remedy}"
    if function in _FORMS:
        return f"{what}; a {function} is written as {_FORMS[function]}"
    if node.kind == "method" and function in METHODS and not isinstance(value, str):
        return f"{what}; `{function}` is for texts{_text_remedy(function, name, value)}"
    if function == "matches":
        return f"{what}; the pattern is no regular expression"
    return what


def _numeric_remedy(function: str, name: str, value: Any) -> str | None:
    """Returns the remedy where a value is converted to a number, None where there is none."""
    if isinstance(value, bool):
        return f"; write `{name} ? 1 : 0`"
    if not isinstance(value, str):
        return None
    if function != "double" and _A_NUMBER.fullmatch(value):
        return f", which is no whole number of 64 bits; write `double({name})`"
    return f', which is no number; write `{name}.matches("{_NUMERIC[function]}") && …`'


def _text_remedy(function: str, name: str, value: Any) -> str:
    """Returns the remedy where a function of texts is called of another value."""
    if isinstance(value, bool | int | float):
        return f": write `string({name}).{function}(…)`"
    if isinstance(value, list):
        return f": write `{name}.exists(item, item.{function}(…))`"
    return ""


def failed_operation(
    node: CelNode, text: str, sides: Sides, what: str, error: Exception, as_doubles: str
) -> str:
    """Says what to write instead of an operation, which is written as `text`; `what` says why it
    fails, `as_doubles` is the same with numbers that have a point."""
    if node.value in ("&&", "||", "!", "?:"):
        name, value = next((side for side in sides if not isinstance(side[1], bool)), sides[0])
        return f"`{name}` is {described(value)}, not true or false; {as_condition(value, name)}"
    if isinstance(error, ZeroDivisionError):
        return f"{what}; division by zero"
    if isinstance(error, ArithmeticError):
        return f"{what}; beyond 64 bits"
    if node.value in ARITHMETIC:
        return f"{what}; {_arithmetic_remedy(node.value, sides, as_doubles)}"
    if node.value == "in":
        (name, _), (container, value) = sides
        remedy = f": write `{container}.contains({name})`" if isinstance(value, str) else ""
        return f"{what}; `in` looks into lists and objects{remedy}"
    return f"{what}{_comparison_remedy(text, sides)}"


def _comparison_remedy(text: str, sides: Sides) -> str:
    """Says what is wrong with comparing these values in the operation `text`, and the remedy."""
    texts = [(name, value) for name, value in sides if isinstance(value, str)]
    # values of csv files are texts
    if len(texts) == 1 and any(type(value) in (int, float) for _, value in sides):
        name, value = texts[0]
        if name.startswith(("'", '"')):
            return f", not a text; write {name} without quotes"
        if not _A_NUMBER.fullmatch(value):
            return ", which is no number; compare it with a text in quotes"
        remedy = text.replace(name, f"double({name})")
        return f", not a number (values of csv files are text); write `{remedy}`"
    if any(value != value for _, value in sides if isinstance(value, float)):
        return "; what is not a number is neither smaller nor larger"
    if len(sides) > 1:
        return "; values of different kinds can only be told apart with `==` and `!=`"
    return ""


def _arithmetic_remedy(sign: str, sides: Sides, as_doubles: str) -> str:
    """Says what to write instead of arithmetic; `as_doubles` is the same with numbers that have a
    point."""
    if len(sides) == 1:
        return f"`{sign}` takes a number: write `{sign}double({sides[0][0]})` of a text that is one"
    if any(not _is_number(value) for _, value in sides):
        others = ", two texts or two lists" if sign == "+" else ""
        return f"`{sign}` takes two numbers{others}"
    if sign == "%":
        name = next((name for name, value in sides if not isinstance(value, int)), sides[0][0])
        return f"`%` takes whole numbers: write `int({name})`"
    return f"`{sign}` takes two whole numbers or two with a point: write `{as_doubles}`"


def _is_number(value: Any) -> bool:
    """True for a number, and for a text that `double` reads as one."""
    if isinstance(value, str):
        return _A_NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def skipped(name: str) -> str:
    """Returns the sentence for the result of a stage that the row skipped."""
    return f"{name} was skipped for this row; write `{name} != null && …`"


def as_condition(value: Any, name: str) -> str:
    """Says how to make a condition of a value that is neither true nor false."""
    if not re.match(r'[\w.]+(?:\["[^"]*"\])?\Z', name):
        return "compare it with a value"
    if isinstance(value, str):
        written = json.dumps(value if len(value) < 30 else "…", ensure_ascii=False)
        return f"compare it: `{name} == {written}`"
    if isinstance(value, int | float):
        return f"compare it: `{name} > 0`"
    if value is None:
        return f"write `{name} != null`"
    return f"write `size({name}) > 0`"


def described(value: Any) -> str:
    """Describes a value in a sentence: `the text "12"`, `a list of 3`."""
    match value:
        case str():
            short = value if len(value) <= 40 else value[:39] + "…"
            return f"the text {json.dumps(short, ensure_ascii=False)}"
        case None | True | False:
            return json.dumps(value)
        case int() | float():
            return "not a number (NaN)" if value != value else f"the number {value}"
        case list():
            return f"a list of {len(value)}"
        case Mapping():
            return f"an object of {len(value)} fields"
    return f"a value of type {type(value).__name__}"


def foreign_kind(value: Any) -> str | None:
    """Names the kind of value that the library cannot take; None if none is known."""
    match value:
        case Mapping() if any(not isinstance(key, str) for key in value):
            return "an object with a key that is no text"
        case Mapping():
            return _first_foreign(value.values())
        case list() | tuple():
            return _first_foreign(value)
        case str():
            return "half a surrogate pair" if _has_half_pair(value) else None
        case int():
            return "a whole number of more than 308 digits" if abs(value) >= 10**308 else None
        case None | float():
            return None
    return f"a value of type {type(value).__name__}"


def _first_foreign(values: Iterable[Any]) -> str | None:
    """Returns the first kind in these values that the library cannot take."""
    return next((kind for kind in map(foreign_kind, values) if kind is not None), None)


def _has_half_pair(text: str) -> bool:
    """True if a text has half a surrogate pair, which no encoding can write."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def reason_of(error: Exception) -> str:
    """Returns the library's words, where they say more than that something does not fit."""
    if isinstance(error, TypeError) or "Undefined variable" in str(error):
        return "its values do not fit together"
    return str(error).split(". ")[0].partition("\n")[0]
