"""Answers as packs of a remote hold them."""

from typing import Any

from agac.store.packs import PackedAnswer


def answer(**keys: Any) -> PackedAnswer:
    """An answer with these keys, and usual values for all others."""
    given = {
        "fingerprint": b"f" * 16, "value": '"text"', "at": 1000.0, "how": "", "provider": "local", "base_url": "u",
        "model": "m", "input_tokens": 1, "output_tokens": None, "cost": 0.5, "writer": "ci",
    }  # fmt: skip
    return PackedAnswer(**{**given, **keys})
