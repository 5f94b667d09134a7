"""Groups that one call does not hold, in a forecast: which parts they are cut into, and which of them have a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from agac.core.keys import member_hash, snapshot
from agac.core.order import id_order
from agac.core.types import JSONValue, Row
from agac.engine.comparison import Comparison, WalkedRow
from agac.engine.contents import array
from agac.engine.foreprompts import Task
from agac.engine.foretasks import TaskForecaster
from agac.engine.parts import call_size, part_id
from agac.plan import reasons as why
from agac.plan.prepare import Sight
from agac.plan.stage import PlannedStage
from agac.plan.standin import stand_in
from agac.plan.tree import Node, NodeId, Tree, tree
from agac.spec.template import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.batch import NewRow
from agac.store.rows import State
from agac.store.scratch import Held, Part, Scratch

_SOME = 64
_MEASURED = 20_000
"""Members that are cut to learn into how many parts still more of them would be."""

Learn = Callable[[Sequence[WalkedRow]], Awaitable[None]]
"""Looks up what became of rows before."""


class _Wanted(NamedTuple):
    part: Part
    row: WalkedRow
    task: Task


@dataclass(frozen=True, slots=True)
class PartForecaster:
    """Cuts the large groups of one stage."""

    stage: PlannedStage
    tasks: TaskForecaster
    comparison: Comparison
    scratch: Scratch
    learn: Learn
    variables: dict[str, JSONValue]

    async def cut(self, groups: Sequence[WalkedRow]) -> int:
        """Says of each group what it is asked about, or how many of its parts would be asked before. Gives how many
        parts have their results."""
        tops = {number: self._cut(number, group) for number, group in enumerate(groups)}
        for height in range(1, max(top.id.height for top in tops.values())):
            for parts in self.scratch.parts(height, _SOME):
                await self._some(parts, groups)
        for number, group in enumerate(groups):
            assert group.lot is not None
            values = self.scratch.values(number, tops[number].children)
            texts = [value for value in values if value is not None]
            if len(texts) == len(values):
                group.sight.own[ROWS_JSON] = array(texts)
            else:
                group.lot.characters = self._result * len(values)
                group.lot.reason = group.lot.reason or self.comparison.reason(self.stage, group, b"")
        lots = [group.lot for group in groups if group.lot is not None]
        return self.scratch.forget_parts() - sum(lot.parts + lot.in_flight for lot in lots)

    @property
    def _result(self) -> int:
        """Characters of a result that is not there yet."""
        return len(snapshot(stand_in(self.stage)))

    def _cut(self, number: int, group: WalkedRow) -> Node:
        growing, last = Tree(call_size(self.stage)), None
        for one in self._held(group):
            for node in growing.add(one.sort, one.tokens):
                self._put(number, last)
                last = node
        for node in growing.close():
            self._put(number, last)
            last = node
        assert last is not None
        return last

    def _put(self, number: int, node: Node | None) -> None:
        if node is not None:
            children = tuple(tuple(child) for child in node.children)
            self.scratch.put_part(Part(number, *node.id, node.rows, children))

    def _held(self, group: WalkedRow, low: int = 0, high: int = (1 << 64) - 1) -> Iterator[Held]:
        return self.scratch.members(self.stage.index, group.id, low, high)

    async def _some(self, parts: Sequence[Part], groups: Sequence[WalkedRow]) -> None:
        wanted = []
        for part in parts:
            group = groups[part.lot]
            texts, characters = self._contents(part, group)
            row = self._row(part, group)
            if texts is None:
                self._lacks(group)
                row.sight.own[ROWS_JSON] = ""
                self.tasks.prompts.measure(self.stage, row.sight, row.id, characters)
            else:
                row.sight.own[ROWS_JSON] = array(texts)
                task = self.tasks.prompts.known(self.stage, row.sight, row.id)
                if task is not None:
                    wanted.append(_Wanted(part, row, task))
                elif group.lot is not None:
                    group.lot.refused = why.MISSING_FIELD
        await self._look_up(wanted, groups)

    async def _look_up(self, wanted: Sequence[_Wanted], groups: Sequence[WalkedRow]) -> None:
        await self.learn([one.row for one in wanted])
        earlier = await self.tasks.earlier(self.stage, [one.task.fingerprint for one in wanted])
        flying = await self.tasks.in_flight([one.task.fingerprint for one in wanted])
        for part, row, task in wanted:
            group = groups[part.lot]
            assert group.lot is not None
            left = self.comparison.left(self.stage, row, task.fingerprint)
            if task.fingerprint in earlier:
                self.scratch.part_came_to(part, earlier[task.fingerprint].value)
            elif task.fingerprint in flying:
                group.lot.in_flight += 1
            elif left is not None:
                group.lot.refused = left
            else:
                self._lacks(group)
                if task.request is not None:
                    self.tasks.prompts.show(self.stage, row.id, task.request)

    def _lacks(self, group: WalkedRow) -> None:
        assert group.lot is not None
        group.lot.parts += 1

    def _row(self, part: Part, group: WalkedRow) -> WalkedRow:
        """The part as a row."""
        node = NodeId(part.height, part.low, part.high, part.after)
        new = NewRow(Row(part_id(group.id, node), 0, {}), 0, b"", "", State.PENDING, origin=self.stage.index)
        sight = Sight(group.sight.forms[None], self.variables)
        sight.own |= {ROWS_COUNT: len(part.children) or part.rows, ROWS_FAILED: 0}
        return WalkedRow(new, None, {}, sight, group.level)

    def _contents(self, part: Part, group: WalkedRow) -> tuple[list[str] | None, int]:
        """The texts that a part is asked about, None where they are not there yet; and their characters."""
        if part.children:
            values = self.scratch.values(part.lot, part.children)
            texts = [value for value in values if value is not None]
            return (texts, 0) if len(texts) == len(values) else (None, self._result * len(values))
        held = list(islice(self._held(group, part.low, part.high), part.after, part.after + part.rows))
        told = sorted((id_order(one.id), one.text) for one in held if one.text is not None)
        return ([text for _, text in told] if len(told) == len(held) else None), sum(one.characters + 1 for one in held)


def parts_of(stage: PlannedStage, rows: int, tokens: int) -> int:
    """About how many parts a group of so many rows and tokens is cut into; none where one call holds it."""
    if stage.group is None or not stage.group.reduces or stage.group.fits(rows, tokens):
        return 0
    measured = min(rows, _MEASURED)
    members = ((place, tokens // rows) for place in sorted(member_hash(number) for number in range(measured)))
    return round((sum(1 for _ in tree(members, call_size(stage))) - 1) * rows / measured)
