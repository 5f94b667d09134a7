"""The statements of `queries.sql` and the migrations, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MANY = "(:many)"


@cache
def statements() -> dict[str, str]:
    """Every statement of `queries.sql` by its name."""
    text = (files(__package__) / "queries.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return dict(zip(parts[1::2], (part.strip().rstrip(";") for part in parts[2::2]), strict=True))


def sql(name: str) -> str:
    """The statement called `name`."""
    return statements()[name]


@cache
def sql_many(name: str, count: int) -> str:
    """The statement called `name` with `count` placeholders in place of `(:many)`.

    Use `padded` for the values: only a few sizes exist then, and SQLite's statement cache keeps working.
    """
    return sql(name).replace(_MANY, f"({','.join('?' * count)})")


def padded(values: Sequence[bytes] | Sequence[int] | Sequence[str | int]) -> list[bytes | int | str | None]:
    """`values` filled up with NULL, which equals nothing, to the next of a few sizes."""
    size = 8
    while size < len(values):
        size *= 2
    return [*values, *([None] * (size - len(values)))]


def migrations() -> list[tuple[int, str]]:
    """All migrations in order: their number and their statements."""
    folder = files(__package__) / "migrations"
    found = [(int(f.name[:4]), f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".sql")]
    return sorted(found)


def split_script(script: str) -> list[str]:
    """The statements of a migration. A semicolon ends a statement only at the end of a line."""
    bare = re.sub(r"--[^\n]*", "", script)
    return [part.strip() for part in re.split(r";\s*(?:\n|\Z)", bare) if part.strip()]
