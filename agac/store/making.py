"""What stages make of rows, written inside a commit: children, members of groups, rows that may be like others.

Rows that are no longer made are not deleted: they are GONE, and come back under the same key. Everything that was made
of them goes with them, down to the last generation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agac.core.types import RowId
from agac.store.batch import AGREEMENT, PART, Child, CounterKey, Making, Membership, Part, Tally, WriteBatch
from agac.store.rows import State
from agac.store.sql import padded, sql, sql_many

_SLICE = 512


class Descent:
    """Writes what is made of rows in one run. `stages` are the names of its stages by position, `makes` what those make
    that make anything (`spec.levels.Makes`)."""

    def __init__(self, run: int, event: int, stages: Sequence[str], makes: Mapping[int, str]) -> None:
        self._run, self._event, self._stages = run, event, stages
        kinds = set(makes.values())
        self._children, self._groups, self._kept = bool(kinds - {"groups"}), "groups" in kinds, "kept" in kinds
        self._any = bool(makes)
        self._keys: dict[tuple[int, RowId], int] = {}

    def write(self, writer: sqlite3.Connection, batch: WriteBatch) -> None:
        """Writes all that a commit says of it; of rows that left the input, or failed before any stage, nothing is made
        any longer. Adds to the roll-ups of the batch."""
        if not self._any:
            return
        commit = _Commit(self, writer, batch.tally)
        commit.vanish(batch.gone)
        commit.nothing_of([*batch.leaving, *(c.key for c in batch.changes if c.state is not State.PENDING)])
        for making in batch.makings:
            commit.make(making)
        for brood in batch.broods:
            commit.children(brood.row_key, brood.origin, brood.children)
        commit.parts(batch.parts, batch.cut)
        commit.reopen([*batch.reopened, *commit.opened])

    @property
    def has_children(self) -> bool:
        """Whether any row can have children."""
        return self._children

    @property
    def has_groups(self) -> bool:
        """Whether any row can be in a group."""
        return self._groups

    @property
    def keeps(self) -> bool:
        """Whether any stage keeps the first of equal rows."""
        return self._kept

    @property
    def place(self) -> tuple[int, int]:
        """The run and the invocation."""
        return self._run, self._event

    def stage(self, position: int) -> str:
        """The name of a stage."""
        return self._stages[position]

    @property
    def known(self) -> dict[tuple[int, RowId], int]:
        """Keys of groups by the position of their stage and their id."""
        if len(self._keys) > 100_000:
            self._keys.clear()
        return self._keys


class _Commit:
    def __init__(self, descent: Descent, writer: sqlite3.Connection, tally: Callable[[CounterKey], Tally]) -> None:
        self._descent, self._writer, self._tally = descent, writer, tally
        self._run, self._event = descent.place
        self._next = int(writer.execute(sql("row_key_max")).fetchone()[0]) + 1
        self.opened: set[int] = set()  # groups whose members changed

    def make(self, making: Making) -> None:
        """What is made of one row, in the place of what was made of it before."""
        key, descent = making.row.key, self._descent
        if descent.has_children:
            origins = {origin for (origin,) in self._writer.execute(sql("origins_of_children"), (key,))}
            for origin in origins - making.broods.keys() - making.alike.keys():
                self.children(key, origin, ())
            for origin, children in making.broods.items():
                self.children(key, origin, children, new=origin not in origins)
        if descent.has_groups:
            self._join(key, making.groups)
        if descent.keeps:
            self._writer.execute(sql("alike_drop"), (key,))
            for origin, alike in making.alike.items():
                self._writer.execute(sql("alike_put"), (self._run, origin, alike.hash, key, alike.content, alike.state))

    def children(self, parent: int, origin: int, children: Sequence[Child], *, new: bool = False) -> None:
        """The children that a stage makes of a row: those that are as they were stay as they stand."""
        found = () if new else self._writer.execute(sql("children_of"), (parent, origin))
        old = {place: (key, digest, state) for place, key, digest, state in found}
        made, changed = [], []
        for place, child in enumerate(children):
            known = old.pop(place, None)
            if known is None:
                occurrence = -1 - origin
                descent = (self._event, parent, origin, place)
                made.append((self._next, self._run, child.id, occurrence, child.hash, child.data, *descent))
                self._next += 1
            elif known[1] != child.hash or known[2] == State.GONE:
                changed.append((child.hash, child.data, self._event, known[0]))
        self._writer.executemany(sql("child_put"), made)
        self._writer.executemany(sql("child_change"), changed)
        self.vanish([key for key, _, state in old.values() if state != State.GONE])

    def nothing_of(self, keys: Sequence[int]) -> None:
        """Nothing is made of these rows any longer."""
        for some in _slices(keys):
            values = padded(list(some))
            if self._descent.has_groups:
                self._leave(some)
            if self._descent.keeps:
                self._writer.executemany(sql("alike_drop"), [(key,) for key in some])
            if self._descent.has_children or self._descent.has_groups:
                found = self._writer.execute(sql_many("children_of_rows", len(values)), values).fetchall()
                self.vanish([key for (key,) in found])

    def vanish(self, keys: Sequence[int]) -> None:
        """These rows are gone, with their tasks and with all that was made of them."""
        for some in _slices(keys):
            values = padded(list(some))
            for stage, outcome, error, part, agreement in self._writer.execute(
                sql_many("tasks_counted", len(values)), values
            ):
                name = self._descent.stage(stage)
                self._tally((name, PART if part else outcome, "" if part else error or "", "")).count -= 1
                if agreement and not part:
                    self._tally((name, AGREEMENT, agreement, "")).count -= 1
            one_by_one = [(key,) for key in some]
            self._writer.executemany(sql("tasks_drop"), one_by_one)
            self._writer.executemany(sql("row_gone"), one_by_one)
            self.nothing_of(some)

    def _join(self, key: int, wanted: Mapping[int, Membership]) -> None:
        """The groups that a row is in now. Those that it joins or leaves are open again."""
        left = []
        for group, origin, group_id in self._writer.execute(sql("groups_of"), (key,)).fetchall():
            self.opened.add(group)
            now = wanted[origin].group if origin in wanted else None
            if type(now) is not type(group_id) or now != group_id:
                left.append((key, group))
        self._writer.executemany(sql("member_drop"), left)
        for origin, one in wanted.items():
            group = self._group(origin, one)
            self.opened.add(group)
            self._writer.execute(sql("member_put"), (group, one.sort - (1 << 63), key, one.size, one.failed))

    def _leave(self, keys: Sequence[int]) -> None:
        values = padded(list(keys))
        found: list[Any] = self._writer.execute(sql_many("memberships", len(values)), values).fetchall()
        self.opened.update(group for _, group in found)
        self._writer.executemany(sql("member_drop"), found)

    def _group(self, origin: int, one: Membership) -> int:
        known = self._descent.known
        key = known.get((origin, one.group)) if isinstance(one.group, str) else None
        if key is not None:
            return key
        found = self._writer.execute(sql("group_find"), (self._run, one.group, -1 - origin)).fetchone()
        if found is None:
            key, self._next = self._next, self._next + 1
            occurrence = -1 - origin
            values = (key, self._run, one.group, occurrence, b"", one.data, self._event, None, origin, 0)
            self._writer.execute(sql("child_put"), values)
        else:
            key = int(found[0])
        if isinstance(one.group, str):
            known[origin, one.group] = key
        return key

    def parts(self, parts: Sequence[Part], cut: Sequence[int]) -> None:
        """What large groups are cut into; of those in `cut` no other part is left."""
        rows = []
        for part in parts:
            occurrence, place = -1 - part.origin, -part.height
            descent = (self._event, part.group, part.origin, place)
            rows.append((self._next, self._run, part.id, occurrence, b"", part.data, *descent))
            self._next += 1
        self._writer.executemany(sql("part_put"), rows)
        for group in cut:
            self.vanish([key for (key,) in self._writer.execute(sql("parts_stale"), (group, self._event)).fetchall()])

    def reopen(self, keys: Iterable[int]) -> None:
        """These rows are to be worked on again."""
        self._writer.executemany(sql("made_open"), [(self._event, key) for key in keys])


def _slices(keys: Sequence[int]) -> Iterable[Sequence[int]]:
    return (keys[start : start + _SLICE] for start in range(0, len(keys), _SLICE))
