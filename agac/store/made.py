"""Rows that stages made, read: those that need work, their descent, the members of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agac.core.types import RowId
from agac.store.db import Database, translated
from agac.store.rows import State, StoredRow
from agac.store.sql import padded, sql, sql_many


class MadeRow(NamedTuple):
    """A row that a stage made, as it stands. `seen` is the invocation that last made or opened it."""

    key: int
    id: RowId
    hash: bytes
    data: str
    state: int
    error_type: str | None
    error_message: str | None
    error_stage: str | None
    result_id: int | None
    parent_key: int | None
    place: int
    seen: int
    parent_state: int | None = None


class Ancestor(NamedTuple):
    """Any row, for what was made of it. `origin` None: it is the input's."""

    key: int
    id: RowId
    ordinal: int | None
    data: str
    origin: int | None
    parent_key: int | None
    place: int | None
    state: int


class MadeCount(NamedTuple):
    """How many rows of one maker stand in one way. Errors: '' for none."""

    origin: int
    state: int
    error_stage: str
    error_type: str
    rows: int


class GroupSize(NamedTuple):
    """What a group is made of: `rows` and `tokens` of those that did not fail."""

    rows: int
    tokens: int
    failed: int


class Member(NamedTuple):
    """A member of a group; `sort` is 64 bits, signed."""

    sort: int
    key: int
    size: int
    id: RowId


class OpenPart(NamedTuple):
    """A part of a large group that is to be asked."""

    key: int
    id: str
    data: str
    group: int


class AlikeRow(NamedTuple):
    """A row at a stage that keeps the first of equal ones, and the state in which it came there. `child_…`: what was
    made of it before, if anything was."""

    hash: bytes
    key: int
    content: bytes
    came_as: int
    state: int
    id: RowId
    origin: int | None
    result_id: int | None
    child_hash: bytes | None
    child_state: int | None


async def made_rows(
    database: Database, run: int, origin: int, after: int, limit: int, *, done_too: bool
) -> list[MadeRow]:
    """Some rows of a maker by their keys: open and failed ones, or all."""
    values = {"run": run, "origin": origin, "after": after, "limit": limit, "done_too": done_too}
    with translated(database.path):
        return [MadeRow(*row) for row in await database.reader.execute_fetchall(sql("made_rows"), values)]


async def made_counts(database: Database, run: int) -> list[MadeCount]:
    """How the rows stand that stages made."""
    with translated(database.path):
        return [MadeCount(*row) for row in await database.reader.execute_fetchall(sql("made_counts"), (run,))]


async def made_by_id(database: Database, run: int, origin: int, ids: Sequence[RowId]) -> dict[RowId, StoredRow]:
    """The rows of a maker with these ids, parts of groups too, by id."""
    wanted = padded(list(ids))
    with translated(database.path):
        statement = sql_many("made_by_id", len(wanted))
        found = await database.reader.execute_fetchall(statement, (run, -1 - origin, *wanted))
    return {row[1]: StoredRow(*row) for row in found}


async def parent_count(database: Database, run: int, origin: int) -> int:
    """Of how many rows this maker made others."""
    with translated(database.path):
        (row,) = await database.reader.execute_fetchall(sql("made_parents"), (run, origin))
    return int(row[0])


async def rows_of_keys(database: Database, keys: Sequence[int]) -> dict[int, Ancestor]:
    """Some rows by their keys."""
    wanted = padded(list(keys))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("rows_of_keys", len(wanted)), wanted)
    return {row[0]: Ancestor(*row) for row in found}


async def root_ordinals(database: Database, keys: Sequence[int]) -> dict[int, int | None]:
    """The position in the input of the row that each of these descends from; None: of one in no row, or of a group."""
    rows = await rows_of_keys(database, keys) if keys else {}
    above = sorted({row.parent_key for row in rows.values() if row.parent_key is not None})
    roots = await root_ordinals(database, above) if above else {}
    return {key: row.ordinal if row.parent_key is None else roots[row.parent_key] for key, row in rows.items()}


async def group_sizes(database: Database, groups: Sequence[int]) -> dict[int, GroupSize]:
    """How large these groups are, by key; one without members is not in it."""
    wanted = padded(list(groups))
    with translated(database.path):
        found = await database.reader.execute_fetchall(sql_many("group_sizes", len(wanted)), wanted)
    return {key: GroupSize(rows, tokens, failed) for key, rows, tokens, failed in found}


FIRST = -(1 << 63)
LAST = (1 << 63) - 1
"""The ends of what members are sorted by."""


async def members(
    database: Database, group: int, limit: int, *, after: tuple[int, int] = (FIRST, 0), upto: int = LAST
) -> list[Member]:
    """Some members of a group that did not fail, by their hashes: those after a (hash, key), up to a hash."""
    values = (group, *after, upto, limit)
    with translated(database.path):
        return [Member(*row) for row in await database.reader.execute_fetchall(sql("members_page"), values)]


async def open_parts(database: Database, run: int, origin: int, height: int, after: int, limit: int) -> list[OpenPart]:
    """Some parts of one height, by their keys."""
    values = (run, origin, -height, after, limit)
    with translated(database.path):
        return [OpenPart(*row) for row in await database.reader.execute_fetchall(sql("parts_open"), values)]


async def part_values(database: Database, run: int, origin: int, ids: Sequence[str]) -> dict[str, str]:
    """What these parts of groups came to, by id: JSON texts; those without a result are not in it."""
    names: list[RowId] = list(ids)
    wanted = padded(names)
    with translated(database.path):
        found = await database.reader.execute_fetchall(
            sql_many("part_values", len(wanted)), (run, -1 - origin, *wanted)
        )
    return dict(found)  # type: ignore[arg-type]


async def any_open_part(database: Database, run: int, origin: int, ids: Sequence[str]) -> bool:
    """Whether one of these parts of groups has no end yet."""
    wanted = padded(list(ids))
    with translated(database.path):
        statement = sql_many("parts_waiting", len(wanted))
        return bool(await database.reader.execute_fetchall(statement, (run, -1 - origin, *wanted)))


async def failed_part(database: Database, group: int) -> tuple[str, str, str] | None:
    """The kind of error, the message and the id of a part of a group that failed."""
    with translated(database.path):
        found = list(await database.reader.execute_fetchall(sql("parts_failed"), (group,)))
    return (found[0][0], found[0][1], found[0][2]) if found else None


async def alike_page(database: Database, run: int, origin: int, after: tuple[bytes, int], limit: int) -> list[AlikeRow]:
    """Some rows of a stage that keeps the first of equal ones, equal ones side by side."""
    values = (run, origin, *after, limit)
    with translated(database.path):
        return [AlikeRow(*row) for row in await database.reader.execute_fetchall(sql("alike_page"), values)]


def present(counts: Sequence[MadeCount], origin: int) -> dict[str, int]:
    """The rows of a maker by outcome, as `runs.row_counts` gives those of the input."""
    by_state = {state: sum(c.rows for c in counts if c.origin == origin and c.state == state) for state in State}
    return {
        "present": sum(by_state.values()),
        "done": by_state[State.DONE],
        "skipped": by_state[State.SKIPPED],
        "failed": by_state[State.FAILED],
        "dropped": by_state[State.FILTERED] + by_state[State.DROPPED],
        "open": by_state[State.PENDING],
    }
