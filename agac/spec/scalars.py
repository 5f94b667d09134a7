"""Plain YAML scalars by the rules of YAML 1.2, so that `yes`, `on`, `1:30` and dates stay the text that was written."""

from __future__ import annotations

import math
import re

from agac.core.types import JSONValue

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_FIRST = frozenset("0123456789+-.~nNtTfF")

MAX_DIGITS = 400
"""Longer numbers are no numbers that anybody meant; Python itself refuses to read more than 4,300 digits."""


class BadScalar(ValueError):
    """A plain scalar that is refused because it reads as something else than its author sees."""


def plain(text: str) -> JSONValue:
    """The value of a plain (unquoted) scalar. Raises `BadScalar` with a sentence for the user."""
    if text and text[0] not in _FIRST:
        return text
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    return _number(text)


def _number(text: str) -> JSONValue:
    if _INT.match(text):
        return _integer(text)
    if _OCTAL.match(text):
        return int(text, 8)
    if _HEX.match(text):
        return int(text, 16)
    if _NOT_FINITE.match(text):
        raise BadScalar(f"{text} is not a number that can be used; give a finite number, or quote it to mean the text")
    if _FLOAT.match(text):
        return _float(text)
    return text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0":
        short = digits.lstrip("0") or "0"
        raise BadScalar(
            f'{text} has a leading zero; write "{text}" in quotes to keep it as text, or {short} for the number'
        )
    if len(digits) > MAX_DIGITS:
        raise BadScalar(f"this number has {len(digits)} digits; quote it to mean the text")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadScalar(f"{text} is too large for a number; quote it to mean the text")
    return value
