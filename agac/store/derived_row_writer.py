"""Writes the rows that stages make of other rows: children, groups, parts of groups and rows that
may equal others."""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agac.core.keys import shard_of
from agac.core.types import RowId, Shard
from agac.store import db, records
from agac.store.db import sql
from agac.store.rows import AWAY, State
from agac.store.write_batch import WriteBatch

MAX_CACHED_GROUPS = 100_000
"""Group keys kept in memory. Beyond that the cache is emptied, and keys are read again."""

SORT_OFFSET = 1 << 63
"""Member hashes are unsigned numbers of 64 bits; SQLite's are signed."""


def last_number(writer: sqlite3.Connection, statement: str) -> int:
    """Returns the highest number that is in use, by a statement that selects it alone."""
    return int(writer.execute(sql(statement)).fetchone()[0])


def counted_tasks(
    writer: sqlite3.Connection, keys: Sequence[int], names: Sequence[str]
) -> Counter[records.CounterKey]:
    """Counts the tasks of some rows as the roll-ups count them. `names` are the names of the
    stages by position."""
    counts: Counter[records.CounterKey] = Counter()
    for stage, outcome, error, part, agreement in db.fetch(
        writer, "tasks_counted", tuple[Any, ...], keys
    ):
        if part:
            counts[names[stage], records.PART, "", ""] += 1
            continue
        counts[names[stage], outcome, error or "", ""] += 1
        if agreement:
            counts[names[stage], records.AGREEMENT, agreement, ""] += 1
    return counts


class DerivedRowWriter:
    """Writes what stages make of rows in one run, inside a commit.

    Rows that are no longer made are not deleted: they become GONE, and come back under the same
    key. All that was made of them becomes GONE with them, down to the last generation.

    In a shard of a run, a group may belong to another shard. Such a group is no row of this
    shard: it stays PENDING here until the other shard was sent its members.
    """

    def __init__(
        self,
        run: int,
        event: int,
        stages: Sequence[str],
        makes: Mapping[int, str],
        shard: Shard | None = None,
    ) -> None:
        """`stages` are the names of the run's stages by position, `makes` what those of them
        make that make anything (`spec.graph.Makes`)."""
        self._run = run
        self._event = event
        self._stages = stages
        self._shard = shard
        kinds = set(makes.values())
        self._has_children = bool(kinds - {"groups"})
        self._has_groups = "groups" in kinds
        self._dedupes = "kept" in kinds
        # keys by the position of their stage and their id
        self._group_keys: dict[tuple[int, RowId], int] = {}
        # groups whose members changed in this commit
        self._opened: set[int] = set()
        # keys for the next new rows
        self._new_keys = itertools.count()

    def write(self, writer: sqlite3.Connection, batch: WriteBatch) -> None:
        """Writes the derived rows of a commit and adds to the roll-ups of the batch. Rows that
        left the input, or failed before any stage, lose all that was made of them."""
        if not (self._has_children or self._has_groups):
            return
        self._writer = writer
        self._batch = batch
        self._new_keys = itertools.count(last_number(writer, "row_key_max") + 1)
        self._opened.clear()
        if len(self._group_keys) > MAX_CACHED_GROUPS:
            self._group_keys.clear()
        failed = [change.key for change in batch.rows.changes if change.state is not State.PENDING]
        self._drop(batch.derived.gone)
        self._make_nothing_of([*batch.rows.leaving, *failed])
        for making in batch.derived.makings:
            self._replace(making)
        for made in batch.derived.children:
            self._put_children(made.row_key, made.origin, made.children)
        for distant in batch.derived.distant:
            self._put_distant(distant)
        writer.executemany(
            sql("part_put"), [self._part_values(part) for part in batch.derived.parts]
        )
        for group in batch.derived.cut:
            self._drop_stale_parts(group)
        reopened = [*batch.derived.reopened, *self._opened]
        writer.executemany(sql("made_open"), [(self._event, key) for key in reopened])
        writer.executemany(sql("reviews_outdated"), [(key,) for key in self._opened])

    def _drop_stale_parts(self, group: int) -> None:
        """Drops the parts of a group that this invocation did not write again."""
        stale = self._writer.execute(sql("parts_stale"), (group, self._event)).fetchall()
        self._drop([key for (key,) in stale])

    def _replace(self, making: records.DerivedRows) -> None:
        """Puts all that is made of one row in the place of what was made of it before."""
        key = making.row.key
        if self._has_children:
            self._replace_children(key, making)
        if self._has_groups:
            self._join(key, making.groups)
        if self._dedupes:
            self._writer.execute(sql("alike_drop"), (key,))
            for origin, candidate in making.alike.items():
                values = (
                    self._run,
                    origin,
                    candidate.hash,
                    key,
                    candidate.content,
                    candidate.state,
                )
                self._writer.execute(sql("alike_put"), values)

    def _replace_children(self, key: int, making: records.DerivedRows) -> None:
        """Puts the children that all stages make of a row in the place of earlier ones."""
        stored = self._writer.execute(sql("origins_of_children"), (key,))
        origins = {origin for (origin,) in stored}
        for origin in origins - making.children.keys() - making.alike.keys():
            self._put_children(key, origin, ())
        for origin, children in making.children.items():
            self._put_children(key, origin, children, new=origin not in origins)

    def _put_children(
        self, parent: int, origin: int, children: Sequence[records.Child], *, new: bool = False
    ) -> None:
        """Writes the children that one stage makes of a row. Children that did not change keep
        their rows. `new`: none are stored yet."""
        stored: Iterable[Any] = ()
        if not new:
            stored = self._writer.execute(sql("children_of"), (parent, origin))
        old = {index: (key, digest, state) for index, key, digest, state in stored}
        added = []
        changed = []
        for index, child in enumerate(children):
            key, digest, state = old.pop(index, (None, b"", 0))
            if key is None:
                added.append(self._child_values(parent, origin, index, child))
            elif digest != child.hash or state == State.GONE:
                changed.append((child.hash, child.data, self._event, key))
        self._writer.executemany(sql("child_put"), added)
        self._writer.executemany(sql("child_change"), changed)
        self._writer.executemany(sql("reviews_outdated"), [(key,) for *_, key in changed])
        self._drop([key for key, _, state in old.values() if state != State.GONE])

    def _child_values(
        self, parent: int, origin: int, index: int, child: records.Child
    ) -> tuple[Any, ...]:
        """Builds the values of `child_put` for a child with a new key."""
        descent = (self._event, parent, origin, index)
        key = next(self._new_keys)
        return (key, self._run, child.id, -1 - origin, child.hash, child.data, *descent)

    def _part_values(self, part: records.Part) -> tuple[Any, ...]:
        """Builds the values of `part_put` for a part of a group."""
        descent = (self._event, part.group, part.origin, -part.height)
        key = next(self._new_keys)
        return (key, self._run, part.id, -1 - part.origin, b"", part.data, *descent)

    def _make_nothing_of(self, keys: Sequence[int]) -> None:
        """Drops all that was made of some rows."""
        for some in db.slices(keys):
            if self._has_groups:
                memberships = db.fetch(self._writer, "memberships", tuple[int, int], some)
                self._opened.update(group for _, group in memberships)
                self._writer.executemany(sql("member_drop"), memberships)
            if self._dedupes:
                self._writer.executemany(sql("alike_drop"), [(key,) for key in some])
            self._drop(db.fetch(self._writer, "children_of_rows", int, some))

    def _drop(self, keys: Sequence[int]) -> None:
        """Makes some rows GONE, with their tasks and with all that was made of them."""
        for some in db.slices(keys):
            for counter, count in counted_tasks(self._writer, some, self._stages).items():
                self._batch.tally(counter).tasks -= count
            db.execute(self._writer, "row_gone", [(key,) for key in some])
            self._make_nothing_of(some)

    def _join(self, key: int, memberships: Mapping[int, records.Membership]) -> None:
        """Puts a row into its groups, and out of those that it left. All of them are open
        again."""
        stored = self._writer.execute(sql("groups_of"), (key,)).fetchall()
        left = []
        for group, origin, group_id in stored:
            self._opened.add(group)
            joined = memberships[origin].group if origin in memberships else None
            if type(joined) is not type(group_id) or joined != group_id:
                left.append((key, group))
        self._writer.executemany(sql("member_drop"), left)
        for origin, membership in memberships.items():
            self._put_member(self._group_key(origin, membership), membership, key)

    def _put_member(self, group: int, membership: records.Membership, key: int) -> None:
        """Writes one member of a group, which is open again."""
        self._opened.add(group)
        values = (
            group,
            membership.sort - SORT_OFFSET,
            key,
            membership.size,
            membership.failed,
        )
        self._writer.execute(sql("member_put"), values)

    def _put_distant(self, distant: records.DistantMember) -> None:
        """Writes a row of another shard and its membership. Its group is open again if the row
        changed or comes from another group."""
        # an occurrence that no other row of the same id has
        occurrence = (distant.origin + 1) * AWAY - 2 - distant.maker
        stored = self._find_row(distant.id, occurrence)
        key, old_text, old_group = stored or (next(self._new_keys), None, None)
        descent = (distant.entry, None, distant.origin, AWAY - distant.shard)
        values = (key, self._run, distant.id, occurrence, b"", distant.text, *descent)
        self._writer.execute(sql("part_put"), values)
        group = self._group_key(distant.origin, distant.place)
        if (old_text, old_group) == (distant.text, group):
            return
        if old_group not in (group, None):
            self._opened.add(old_group)
            self._writer.execute(sql("member_drop"), (key, old_group))
        self._put_member(group, distant.place, key)

    def _find_row(self, row_id: RowId, occurrence: int) -> tuple[Any, ...] | None:
        """Returns key, data and group of a stored row of the run."""
        values = (self._run, row_id, occurrence)
        row: tuple[Any, ...] | None = self._writer.execute(sql("row_find"), values).fetchone()
        return row

    def _group_key(self, origin: int, membership: records.Membership) -> int:
        """Returns the key of a group. The group is written when its first member comes."""
        is_cached = isinstance(membership.group, str)
        if is_cached and (origin, membership.group) in self._group_keys:
            return self._group_keys[origin, membership.group]
        stored = self._find_row(membership.group, -1 - origin)
        if stored is None:
            key = next(self._new_keys)
            self._put_group(key, origin, membership)
        else:
            key = int(stored[0])
        if is_cached:
            self._group_keys[origin, membership.group] = key
        return key

    def _put_group(self, key: int, origin: int, membership: records.Membership) -> None:
        """Writes a new group, marked as AWAY where it belongs to another shard."""
        index = 0 if self._is_in_shard(membership.group) else AWAY
        row = (key, self._run, membership.group, -1 - origin, b"", membership.data)
        self._writer.execute(sql("child_put"), (*row, self._event, None, origin, index))

    def _is_in_shard(self, row_id: RowId) -> bool:
        """True if the run has no shards, or the row belongs to the one that is run here."""
        if self._shard is None:
            return True
        return shard_of(row_id, self._shard.of) == self._shard.number
