"""Replies that are almost JSON, read as what they were surely meant to be: `json_repair: true`."""

from __future__ import annotations

import re
from typing import Any

_BLOCK = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)


def mended_json(text: str) -> Any:
    """The object or array in `text`, its slips mended (a comma too many, a quote too few, words around one block).

    None when nothing in it begins as JSON does: nothing is made out of prose. Wants the extra `agac[json-repair]`.
    """
    from json_repair import loads

    block = _BLOCK.search(text)
    bare = (block.group(1) if block else text).strip()
    start = min((at for at in (bare.find("{"), bare.find("[")) if at >= 0), default=-1)
    if start < 0:
        return None
    value: Any = loads(bare[start:])
    return value if isinstance(value, (dict, list)) and value else None
