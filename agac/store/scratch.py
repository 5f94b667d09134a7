"""What a dry run has to remember of all rows, and a run of their ids: in a temporary database, on
disk if long."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from agac.core.types import RowId
from agac.store.db import transaction

_TABLES = """
CREATE TABLE seen (id PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE candidate (maker INTEGER, hash BLOB, PRIMARY KEY (maker, hash)) WITHOUT ROWID;
CREATE TABLE forecast_group (maker INTEGER, id, fields TEXT, rows INTEGER, failed INTEGER, tokens
INTEGER,
    characters INTEGER, parked INTEGER, guessed INTEGER, need TEXT, reason TEXT, PRIMARY KEY
    (maker, id)) WITHOUT ROWID;
CREATE TABLE member (maker INTEGER, group_id, sort INTEGER, id, tokens INTEGER, characters
INTEGER, text TEXT);
CREATE TABLE node (group_number INTEGER, height INTEGER, low INTEGER, high INTEGER, after
INTEGER, rows INTEGER,
    children TEXT, value TEXT, PRIMARY KEY (group_number, height, low, after));
"""
_JOIN = """
INSERT INTO forecast_group VALUES (:maker, :id, :fields, :rows, :failed, :tokens, :characters,
    :parked, :guessed, :need, :reason)
ON CONFLICT DO UPDATE SET rows = rows + excluded.rows, failed = failed + excluded.failed,
    tokens = tokens + excluded.tokens, characters = characters + excluded.characters,
    parked = max(parked, excluded.parked), guessed = max(guessed, excluded.guessed),
    need = coalesce(need, excluded.need), reason = coalesce(reason, excluded.reason)
RETURNING need
"""
_SIGNED = 1 << 63
# in the place of the position of a stage, where it does not matter which one asks
OF_ANY_STAGE = -1


class ForecastGroup(NamedTuple):
    """One or several equal rows that come to a group, or all that came to it."""

    id: RowId
    fields: str
    rows: int
    failed: int
    tokens: int
    characters: int
    parked: bool
    guessed: bool
    need: str | None
    """The stage on whose answer the question about the group depends; None: that answer is
    known."""
    reason: str | None
    """Why that stage is asked."""


class ForecastMember(NamedTuple):
    """A member of a group."""

    sort: int
    """64 bits by which members are sorted, unsigned."""
    id: RowId
    tokens: int
    characters: int
    text: str | None


class ScratchPart(NamedTuple):
    """A part of a large group: the id of a node of its tree, and what the node holds."""

    group: int
    """The number of the group."""
    height: int
    low: int
    high: int
    after: int
    rows: int
    children: tuple[tuple[int, ...], ...]


class Scratch:
    """Values that were seen, and the members of groups, by the position of the stage that asks."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(f"PRAGMA journal_mode = MEMORY; {_TABLES}")
        self._sorted = False

    def close(self) -> None:
        """Forgets everything."""
        self._db.close()

    def times(self, ids: Sequence[RowId], step: int = 1) -> list[int]:
        """For each id, how often it came by now, itself included; with a `step` of -1, how often
        it comes after."""
        self._db.execute("BEGIN")
        try:  # mostly all are new, and this takes a third of the time
            self._db.executemany(
                "INSERT OR ROLLBACK INTO seen VALUES (?, 1)", [(row_id,) for row_id in ids]
            )
            found = [1] * len(ids)
        except sqlite3.IntegrityError:
            self._db.execute("BEGIN")
            found = [self.count(row_id, step) for row_id in ids]
        self._db.execute("COMMIT")
        return found

    def count(self, row_id: RowId, step: int = 1) -> int:
        """Returns how often an id has come by now, itself included; with a `step` of -1, how often
        it comes after."""
        statement = (
            "INSERT INTO seen VALUES (?, 1) ON CONFLICT (id) DO UPDATE SET times = times + "
            "? RETURNING times"
        )
        times: int = self._db.execute(statement, (row_id, step)).fetchone()[0]
        return times

    def has_come(self, row_id: RowId) -> bool:
        """True if an id came already."""
        return self._db.execute("SELECT 1 FROM seen WHERE id = ?", (row_id,)).fetchone() is not None

    def new(self, maker: int, digests: Iterable[bytes]) -> int:
        """Counts the values that did not come to the stage before, or among them."""
        statement = "INSERT OR IGNORE INTO candidate VALUES (?, ?)"
        return self._db.executemany(statement, [(maker, one) for one in digests]).rowcount

    def join(self, maker: int, joining: ForecastGroup) -> bool:
        """Adds to a group. Whether all is known of those that came to it so far."""
        (need,) = self._db.execute(_JOIN, {**joining._asdict(), "maker": maker}).fetchone()
        return need is None

    def hold(self, maker: int, group: RowId, members: Sequence[ForecastMember]) -> None:
        """Keeps members of a group, where it may be asked about them, or in parts."""
        values = [(maker, group, one.sort - _SIGNED, *one[1:]) for one in members]
        self._db.executemany("INSERT INTO member VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def at_once(self) -> AbstractContextManager[None]:
        """Writes all that the block writes in one transaction, which is faster."""
        return transaction(self._db)

    def groups(self, maker: int, some: int) -> Iterator[list[ForecastGroup]]:
        """Yields all groups of a stage by their ids, some at a time."""
        if not self._sorted:
            self._db.execute("CREATE INDEX member_sort ON member (maker, group_id, sort)")
            self._sorted = True
        statement = (
            "SELECT id, fields, rows, failed, tokens, characters, parked, guessed, need, reason "
            "FROM forecast_group WHERE maker = ? AND id > ? ORDER BY id LIMIT ?"
        )
        after: RowId = -(1 << 63)
        while found := [
            ForecastGroup(*row) for row in self._db.execute(statement, (maker, after, some))
        ]:
            yield found
            after = found[-1].id

    def members(
        self, maker: int, group: RowId, low: int = 0, high: int = 2 * _SIGNED - 1
    ) -> Iterator[ForecastMember]:
        """Yields the members of a group from one hash to another, in the order of their hashes."""
        statement = (
            "SELECT sort, id, tokens, characters, text FROM member "
            "WHERE maker = ? AND group_id = ? AND sort BETWEEN ? AND ? ORDER BY sort, rowid"
        )
        for row in self._db.execute(statement, (maker, group, low - _SIGNED, high - _SIGNED)):
            yield ForecastMember(row[0] + _SIGNED, *row[1:])

    def put_part(self, part: ScratchPart) -> None:
        """Remembers a part of a large group."""
        low = part.low - _SIGNED
        high = part.high - _SIGNED
        values = (
            part.group,
            part.height,
            low,
            high,
            part.after,
            part.rows,
            json.dumps(part.children),
            None,
        )
        self._db.execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def parts(self, height: int, some: int) -> Iterator[list[ScratchPart]]:
        """Yields the parts of all groups at hand of one height, some at a time."""
        after = 0
        statement = (
            "SELECT rowid, group_number, height, low, high, after, rows, children FROM node "
            "WHERE height = ? AND rowid > ? ORDER BY rowid LIMIT ?"
        )
        while found := self._db.execute(statement, (height, after, some)).fetchall():
            after = found[-1][0]
            yield [
                ScratchPart(
                    group,
                    height,
                    low + _SIGNED,
                    high + _SIGNED,
                    tie,
                    rows,
                    tuple(map(tuple, json.loads(children))),
                )
                for _, group, _, low, high, tie, rows, children in found
            ]

    def part_came_to(self, part: ScratchPart, value: str) -> None:
        """Notes the result of a part, as JSON."""
        key = (value, part.group, part.height, part.low - _SIGNED, part.after)
        self._db.execute(
            (
                "UPDATE node SET value=? WHERE group_number = ? AND height = ? AND low = ? AND "
                "after = ?"
            ),
            key,
        )

    def values(self, group: int, parts: Sequence[Sequence[int]]) -> list[str | None]:
        """Returns the results of these parts of a group, in their order; None if one is unknown."""
        statement = (
            "SELECT value FROM node WHERE group_number = ? AND height = ? AND low = ? AND after = ?"
        )
        keys = [(group, height, low - _SIGNED, after) for height, low, _, after in parts]
        return [self._db.execute(statement, key).fetchone()[0] for key in keys]

    def forget_parts(self) -> int:
        """Forgets the parts of the groups at hand, which are finished. Returns how many there
        were."""
        return self._db.execute("DELETE FROM node").rowcount
