"""Rows that a run would make, in a dry run: as many as are known, else as many as the last run made."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from agac.core.types import JSONValue, Row
from agac.engine.baseline import BaselineCounts, ForecastRow, GroupTask, source_of
from agac.engine.dry_counts import Guess, StageForecast
from agac.engine.effects import descended
from agac.engine.lineage import inner
from agac.engine.making import Makers, Member, NotMade
from agac.plan import reasons as why
from agac.plan.estimate import TEXT, dummy_answer
from agac.plan.prepare import Sight
from agac.plan.stage import AnyStage
from agac.spec.levels import Levels
from agac.spec.template import INDEX, ITEM
from agac.store.batch import Child, Making, Membership, NewRow
from agac.store.rows import State

PARENT = "what it is made of"


class ForecastDeriver:
    """Makes the rows that a run would make. `fail` is told of a row of which nothing can be made."""

    def __init__(
        self,
        levels: Levels[AnyStage],
        found: Sequence[StageForecast],
        counts: BaselineCounts,
        fail: Callable[[ForecastRow, NotMade], None],
    ) -> None:
        self._levels, self._found, self._counts, self._fail = levels, found, counts, fail
        self._makers = Makers(levels)
        self._by_name = {stage.name: stage for stage in levels.stages}
        self._left: dict[int, float] = defaultdict(float)
        self._fed = {origin: frozenset(m.index for m in level.makers) for origin, level in levels.by_origin.items()}

    @property
    def members(self) -> Mapping[int, Member]:
        """How stages that group rows look at them, by the stages' positions."""
        return self._makers.members

    def feeds(self, row: ForecastRow, maker: AnyStage) -> bool:
        """Whether the stage makes rows of this one: not of one in whose place a function gave others."""
        own = not row.dropped and maker.index in self._fed[row.level.origin]
        return own and not any(maker.index in self._fed[index] for index in row.lists)

    def made(self, row: ForecastRow) -> Making:
        """What is made of a row, as far as it is known, or what would have been made of a lost one."""
        if row.making is None:
            known = {index: rows for index, rows in row.lists.items() if rows is not None}
            unknown = {one.index for one in row.level.makers if self._makers.waits_for(one, row.sight) is not None}
            unknown.update(*(self._fed[index] for index in row.lists))
            while row.making is None:
                try:
                    level, sight = row.level, row.sight
                    row.making = self._makers.made(level, sight, row.new, known, State.DONE, unknown=unknown)
                except NotMade as fault:
                    if not row.lost:
                        row.unmade = fault.stage
                        self._fail(row, fault)
                    unknown.add(fault.stage.index)
                    known.pop(fault.stage.index, None)
        return row.making

    def membership(self, row: ForecastRow, maker: AnyStage) -> Membership | None:
        """The group of the stage that the row comes to, or that lacks it; None where that is not known."""
        made = None if row.lost else self.made(row)
        if made is None or row.lost:  # it may have become lost just now
            made = self._makers.lacking(row.level, row.sight, row.new)
        return made.groups.get(maker.index)

    def items(self, maker: AnyStage, row: ForecastRow) -> Iterator[ForecastRow]:
        """The children that `explode` makes of a row; of one that fails, what they would be."""
        made = self.made(row)
        if maker.index in made.broods:
            for child in made.broods[maker.index]:
                yield self._child(maker, row, child, descended(row.sight, maker, json.loads(child.data)))
        elif row.unmade is not maker:
            yield from self._guessed(maker, row, descended(row.sight, maker, {ITEM: self._item(maker), INDEX: 0}))

    def listed(self, row: ForecastRow) -> Iterator[ForecastRow]:
        """The rows that functions gave in the place of this one."""
        made = self.made(row)
        for index, rows in row.lists.items():
            maker = self._levels.stages[index]
            if rows is None:
                yield from self._guessed(maker, row, row.sight.child({}))
            elif index in made.broods:
                for child, fields in zip(made.broods[index], rows, strict=True):
                    yield self._child(maker, row, child, descended(row.sight, maker, fields))

    def kept(self, maker: AnyStage, row: ForecastRow, content: bytes, times: int = 1) -> ForecastRow:
        """The row as it goes on after a stage that keeps the first of equal ones; or as many of which it is not known
        which they are."""
        made = self._child(maker, row, Child(row.id, content, "{}"), descended(row.sight, maker, {}))
        made.times = times
        made.guessed = made.guessed or not content
        need = next((need for need in maker.needs if need in row.sight.unknown), None)
        if need is not None:
            made.sight.unknown[maker.name] = row.sight.unknown[need]
        return made

    def _child(self, maker: AnyStage, row: ForecastRow, child: Child, sight: Sight) -> ForecastRow:
        new = NewRow(Row(child.id, 0, {}), 0, child.hash, child.data, State.PENDING, origin=maker.index)
        made = ForecastRow(child.id, sight, new=new, level=self._levels.by_origin[maker.index])
        made.blocked = set(row.blocked)
        made.times, made.guessed, made.failed, made.parked = row.times, row.guessed, row.failed, row.parked
        made.absent = row.failed is not None or row.absent
        if row.lost:
            made.blocked.add(maker.name)
            made.group = GroupTask(refused=why.upstream_blocked(next(iter(row.blocked), maker.name)))
        if maker.makes == "items" and made.sight.unknown:
            made.sight.unknown.pop(ITEM, None)
            made.sight.unknown.pop(INDEX, None)
        return made

    def _guessed(self, maker: AnyStage, row: ForecastRow, sight: Sight) -> Iterator[ForecastRow]:
        """One row that stands for those that will be made, as many as the last run made of each."""
        times = self.times(maker, row)
        if times:
            place = f"{row.id}/0" if maker.makes != "kept" else row.id
            made = self._child(maker, row, Child(place, b"", "{}"), sight)
            made.times, made.guessed = times, True
            if maker.makes == "items":
                reason = next(iter(row.sight.unknown.values()), PARENT)
                made.sight.unknown[ITEM] = made.sight.unknown[INDEX] = reason
            yield made

    def times(self, maker: AnyStage, row: ForecastRow) -> int:
        """For how many rows a guess stands: fractions are passed on to the next row."""
        each = self._counts.each.get(maker.name)
        source = maker.name if maker.makes == "rows" else self._makers.waits_for(maker, row.sight)
        guess = Guess(maker.makes or "items", source or source_of(maker) or maker.name, 1.0, None)
        if each is not None:
            guess = guess._replace(number=each, run=self._counts.run)
        found = self._found[maker.index]
        found.guess = guess
        if maker.makes != "rows":
            found.exact = False
        self._left[maker.index] += guess.number * row.times
        whole = int(self._left[maker.index] + 1e-6)
        self._left[maker.index] -= whole
        return whole

    def _item(self, maker: AnyStage) -> JSONValue:
        """What an item may look like."""
        path = maker.explode or ()
        source = self._by_name.get(path[0])
        try:
            found = inner(dummy_answer(source), path[1:]) if source is not None else None
        except KeyError:
            return TEXT
        return found[0] if isinstance(found, list) and found else TEXT


def is_known(row: ForecastRow, member: Member) -> bool:
    """Whether all is known of a row that the request of its group is made of."""
    unknown = row.sight.unknown
    return not row.guessed and not any(name in unknown for name in (*member.answers, member.rows_of))


def text_of(member: Member, row: ForecastRow, stages: Mapping[str, AnyStage]) -> tuple[str, int]:
    """A member of a group as its prompt has it, and how many characters it lacks of what is not there yet."""
    sight = row.sight
    lacking = (stages[name] for name in member.answers if name in sight.unknown and name not in sight.results)
    return member.text(sight), sum(len(json.dumps(dummy_answer(stage))) for stage in lacking)
