"""The order of row ids, wherever something is ordered by id and not by where it stood."""

from __future__ import annotations

from agac.core.types import RowId

IdOrder = tuple[tuple[int, int, str], ...]


def id_order(row_id: RowId) -> IdOrder:
    """Sorts ids part by part, as `/` parts them: whole numbers by their size, before text. `a/2` is before `a/10`."""
    if isinstance(row_id, int):
        return ((0, row_id, ""),)
    parts = row_id.split("/")
    return tuple((0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts)
