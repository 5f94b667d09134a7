"""JSON as agac reads and writes it: strict where the standard library is generous.

Refused, because no later part could keep them: NaN and infinities, numbers that overflow, integers of more than 4300
digits, an object with the same key twice, lone surrogates, values nested deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from agac.core.types import JSONValue

MAX_DEPTH = 200
"""Deep enough for any real data, shallow enough that no recursive reader or writer after us can overflow."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


class Unusable(ValueError):
    """Well-formed JSON with a value that agac refuses; the message says which and what to write instead."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise Unusable(f"the key {quoted(twice)} stands twice in one object; keep one of them")
    return found


def _constant(name: str) -> float:
    raise Unusable(f"{name} is not a JSON value; write null or a string")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Unusable(f"the number {_cut(text)} is too large; write null or a string")
    return number


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_indented = json.JSONEncoder(ensure_ascii=False, indent=2, allow_nan=False)


def decode_at(text: str, position: int) -> tuple[JSONValue, int]:
    """The value that begins at `position`, and where it ends.

    Raises JSONDecodeError for what is not JSON, Unusable for what agac refuses.
    """
    try:
        value, end = _decoder.raw_decode(text, position)
    except (json.JSONDecodeError, Unusable):
        raise
    except RecursionError:
        raise Unusable(f"the value is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        # the interpreter's own limit against quadratic conversion
        raise Unusable("an integer has more than 4300 digits; write it as a string") from None
    _refuse_what_cannot_be_kept(text, position, end, value)
    return value, end


def decode(text: str) -> JSONValue:
    """The one value that `text` holds, white space around it allowed. Raises as `decode_at` does."""
    value, end = decode_at(text, len(text) - len(text.lstrip(" \t\r\n")))
    rest = text[end:].strip(" \t\r\n")
    if rest:
        raise json.JSONDecodeError("Extra data", text, len(text) - len(text[end:].lstrip(" \t\r\n")))
    return value


def _refuse_what_cannot_be_kept(text: str, start: int, end: int, value: JSONValue) -> None:
    # a surrogate can only have come from an escape, and n levels need 2n characters: most records are not walked
    if text.find("\\u", start, end) >= 0:
        field = _field_with_surrogate(value)
        if field is not None:
            raise Unusable(f"{field} holds half of a surrogate pair, which no UTF-8 text can; replace it")
    if end - start > 2 * MAX_DEPTH and _brackets(text, start, end) > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise Unusable(f"the value is nested deeper than {MAX_DEPTH} levels")


def _brackets(text: str, start: int, end: int) -> int:
    return text.count("[", start, end) + text.count("{", start, end)


def _depth(value: JSONValue) -> int:
    level = [value]
    depth = 0
    while level:
        level = [child for parent in level for child in _children(parent)]
        depth += 1
    return depth - 1


def _children(value: JSONValue) -> list[JSONValue]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _field_with_surrogate(root: JSONValue) -> str | None:
    stack: list[tuple[str, JSONValue]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str) and _SURROGATE.search(value):
            return f"the field {quoted(path)}" if path else "the value"
        if isinstance(value, dict):
            if any(_SURROGATE.search(key) for key in value):
                return f"a key of {quoted(path)}" if path else "a key"
            stack.extend((f"{path}.{key}" if path else key, child) for key, child in value.items())
        elif isinstance(value, list):
            stack.extend((f"{path}[{place}]", child) for place, child in enumerate(value))
    return None


def encode(value: JSONValue, *, indent: bool = False) -> str:
    """JSON of `value`: not ASCII-escaped, in one line unless `indent`; a number that JSON cannot hold becomes null."""
    encoder = _indented if indent else _compact
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_finite(value))


def _finite(value: JSONValue) -> JSONValue:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    return value


def kind_of(value: JSONValue) -> str:
    """What a decoded value is, in words: `a list`, `null`."""
    return _NAMES.get(type(value), "null")


def quoted(text: str) -> str:
    """`text` in double quotes, cut to what fits a message, with surrogates and control characters escaped."""
    return json.dumps(_cut(text), ensure_ascii=not text.isprintable())


def _cut(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
