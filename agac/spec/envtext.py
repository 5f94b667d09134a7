"""`${VAR}` and `${VAR:default}` in the texts of agac.yml and of a card's front matter."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^{}]*))?\}")


def expand(text: str, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """`text` with its variables replaced once, and the names of those that are unset and have no default."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name: str = match[1]
        default: str | None = match[2]
        found = env.get(name, default)
        if found is None:
            missing.append(name)
            return match[0]
        return found

    return _VARIABLE.sub(value, text), missing
