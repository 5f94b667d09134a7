"""Rows by their ids: which stored row an input row is, and what becomes of a row whose id came before.

Repetitions are counted in the order of the input. What is stored of a pass that is under way is what this pass placed
already and what it has not met yet; `is_placed` tells the two apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import RowId
from agac.spec.workflow import OnDuplicateId
from agac.store.batch import NewRow
from agac.store.db import Database
from agac.store.rows import State, StoredRow, last_positions, rows_by_id, rows_of_id

PROBES = 8
"""Ids of the form `id#2` that are looked up at a time for a repeated id."""

KEPT_IDS = 10_000
"""Repeated ids of which is kept in memory how often they came; of others it is looked up again."""


class Places(NamedTuple):
    """Which run and which invocation rows are placed for."""

    database: Database
    run: int
    event: int


@dataclass(slots=True)
class Met:
    """An id before a chunk: how often this pass met it and where first, and its stored rows that were not met yet."""

    count: int
    first: int
    free: dict[int, StoredRow]


class Repeats:
    """Finds rows by id, chunk by chunk: `look_up` a chunk, `place` each of its rows in order, then `keep`.

    `moved_from` is the position from which on this pass places rows by id; before it they stand as stored.
    """

    def __init__(self, places: Places, policy: OnDuplicateId, place: Callable[[int], str]) -> None:
        """`place` names a row by its ordinal."""
        self._db, self._run, self._event = places
        self._policy, self._named = policy, place
        self.moved_from: int | None = None
        self._often: dict[RowId, tuple[int, int]] = {}  # how often an id was met, and where first
        self._numbers: dict[RowId, int] = {}  # the last number given to an id under `suffix`
        self._met: dict[RowId, Met] = {}
        self._last: dict[RowId, int] = {}
        self._taken: Counter[RowId] = Counter()

    def is_placed(self, old: StoredRow) -> bool:
        """Whether this pass met the row already."""
        assert self.moved_from is not None
        return old.ordinal is not None and (old.ordinal < self.moved_from or old.seen == self._event)

    async def last_positions(self, chunk: list[NewRow]) -> dict[RowId, int]:
        """Where each of the chunk's ids comes last; empty unless the last one is to stay."""
        if self._policy != "last":
            return {}
        return await last_positions(self._db, [new.row.id for new in chunk])

    async def look_up(self, chunk: list[NewRow]) -> None:
        """Learns what is known of a chunk's ids. An id that comes often is not read as a whole each time."""
        wanted = Counter(new.row.id for new in chunk)
        unknown = [row_id for row_id in wanted if row_id not in self._often]
        stored = await rows_by_id(self._db, self._run, unknown) if unknown else {}
        self._met = {row_id: self._met_among(stored.get(row_id, [])) for row_id in unknown}
        for row_id in wanted.keys() - self._met.keys():
            count, first = self._often[row_id]
            rows = await rows_of_id(self._db, self._run, row_id, count, count + wanted[row_id])
            self._met[row_id] = Met(count, first, self._free(rows))
        self._last = await self.last_positions(chunk)
        self._taken = Counter()

    async def place(self, new: NewRow) -> StoredRow | None:
        """Decides what the row is: its occurrence, perhaps another id or an end. Gives the stored row that it is."""
        row = new.row
        met = self._met[row.id]
        repetition = new.occurrence = met.count + self._taken[row.id]
        met.first = min(met.first or row.ordinal, row.ordinal)
        self._taken[row.id] += 1
        if repetition and self._policy == "suffix":
            return await self._name_apart(new)
        self._judge(new, repetition, met.first)
        return met.free.get(new.occurrence)

    def keep(self) -> None:
        """Remembers which ids came more than once."""
        if len(self._often) >= KEPT_IDS:
            self._often.clear()
        for row_id, met in self._met.items():
            if met.count + self._taken[row_id] > 1:
                self._often[row_id] = (met.count + self._taken[row_id], met.first)

    def _free(self, rows: list[StoredRow]) -> dict[int, StoredRow]:
        return {old.occurrence: old for old in rows if not self.is_placed(old)}

    def _met_among(self, rows: list[StoredRow]) -> Met:
        placed = [old.ordinal or 0 for old in rows if self.is_placed(old)]
        return Met(len(placed), min(placed, default=0), self._free(rows))

    def _judge(self, new: NewRow, repetition: int, first: int) -> None:
        """What becomes of a row whose id was met before, or (under `last`) will be met again."""
        row = new.row
        if self._policy == "last":
            stays = self._last.get(row.id) == row.ordinal
            new.occurrence = 0 if stays else repetition + 1
            new.state = new.state if stays else State.DROPPED
        elif repetition == 0:
            return
        elif self._policy == "first":
            new.state = State.DROPPED
        else:
            place = self._named(row.ordinal)
            where = "" if place == f"row {row.ordinal}" else f"{place}: "  # the envelope has the number alone
            used = f"{where}id {row.id!r} was used by {self._named(first)} already"
            message = f"{used}; give each row its own id, or set "
            error = RowError(ErrorType.DUPLICATE_ID, message + "input.on_duplicate_id: first | last | suffix")
            new.row, new.state = row._replace(error=error), State.FAILED

    async def _name_apart(self, new: NewRow) -> StoredRow | None:
        """Gives a repeated row the first free id of `id#2`, `id#3`, …, and what is stored under that."""
        row_id, new.occurrence = new.row.id, 0
        number = self._numbers.get(row_id, 1)
        while True:
            names: list[RowId] = [f"{row_id}#{n}" for n in range(number + 1, number + 1 + PROBES)]
            stored = await rows_by_id(self._db, self._run, names)
            for name in names:
                number += 1
                rows = stored.get(name, [])
                if not self._taken[name] and not any(self.is_placed(old) for old in rows):
                    self._number(row_id, number)
                    self._taken[name] += 1
                    new.row = new.row._replace(id=name)
                    return next((old for old in rows if old.occurrence == 0), None)

    def _number(self, row_id: RowId, number: int) -> None:
        if len(self._numbers) >= KEPT_IDS:
            self._numbers.clear()
        self._numbers[row_id] = number
