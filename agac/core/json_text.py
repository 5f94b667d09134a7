"""JSON read strictly, and written fast."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import encoder
from math import isfinite

from agac.core.types import JSONValue, first_repeated


def json_encoder(*, sort_keys: bool = False, allow_nan: bool = True) -> Callable[[JSONValue], str]:
    """Makes a function that writes JSON without spaces, not ASCII-escaped.

    `json.JSONEncoder(…).encode` does the same, but makes an encoder in each call, which takes
    longer than writing a prompt. A value that holds itself is a RecursionError."""
    plain = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, allow_nan=allow_nan
    )
    make = getattr(encoder, "c_make_encoder", None)
    if make is None:  # Python without its C modules
        return plain.encode
    escape = encoder.encode_basestring
    pieces = make(None, plain.default, escape, None, ":", ",", sort_keys, False, allow_nan)
    return lambda value: "".join(pieces(value, 0))


def unique_keys(pairs: list[tuple[str, JSONValue]]) -> dict[str, JSONValue]:
    """Makes a JSON object of these pairs, as an `object_pairs_hook`.

    Raises ValueError for a key that is there twice: readers differ in which value counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = first_repeated(name for name, _ in pairs) or ""
        raise ValueError(f"a key is given twice in one object: {twice[:80]!r}")
    return members


def refuse_constant(name: str) -> None:
    """Raises ValueError for `NaN` and the like, as a `parse_constant`."""
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError("a number is larger than any that can be stored")
    return number


_strict_decode = json.JSONDecoder(
    parse_float=_finite, parse_constant=refuse_constant, object_pairs_hook=unique_keys
).decode


_TEXT_IN_JSON = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def has_more_values(json_text: str, most: int) -> bool:
    """True if JSON has more than `most` values.

    It counts them before they are in memory: each takes some 60 bytes."""
    signs = ",[{"
    if sum(map(json_text.count, signs)) <= most:
        return False
    outside = _TEXT_IN_JSON.sub("", json_text)
    return sum(map(outside.count, signs)) > most


def strict_json(content: str | bytes, most: int) -> JSONValue:
    """Reads JSON from elsewhere, of at most `most` values.

    Raises ValueError if it is not JSON, has a key twice in an object or a number that is not
    finite, is too long or is nested too deeply."""
    text = content if isinstance(content, str) else content.decode()
    if has_more_values(text, most):
        raise ValueError(f"it has more than {most:,} values")
    try:
        return _strict_decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
