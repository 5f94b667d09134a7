"""Replies that are almost JSON, written as what they were surely meant to be: `json_repair: true`."""

from __future__ import annotations

import json
import re

_BLOCK = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
_OPEN_FENCE = re.compile(r"\A```(?:json|JSON)?[ \t]*\r?\n")
_decode = json.JSONDecoder().raw_decode


def mended_json(text: str) -> str | None:
    """The object or array that `text` is, as JSON: a comma too many, other quotes, a missing end, words behind it.

    None when it does not begin as JSON does, alone or as the one fenced block, and when a value is missing in it:
    nothing is made out of prose, and nothing is filled in. Wants the extra `agac[json-repair]`.
    """
    bare = _bare(text)
    if not bare.startswith(("{", "[")):
        return None
    try:
        _, end = _decode(bare)
    except json.JSONDecodeError:
        return _repaired(bare)
    except (ValueError, RecursionError):
        return None
    another = any(mark in bare[end:] for mark in "{[")  # nobody knows which of the two is meant
    return None if another else bare[:end]


def _bare(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        return stripped
    blocks: list[str] = _BLOCK.findall(stripped)
    if not blocks:
        return _OPEN_FENCE.sub("", stripped).strip()
    return blocks[0].strip() if len(blocks) == 1 else ""


def _repaired(bare: str) -> str | None:
    from json_repair import loads

    try:
        value = loads(bare, skip_json_loads=True, strict=True)
        meant = isinstance(value, dict if bare[0] == "{" else list) and value
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if meant else None
    except (ValueError, RecursionError):
        return None
