"""What would be made of rows that came to their end: items and listed rows, as far as they are known, else a guess."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from agac.core.types import JSONValue, Row
from agac.engine.comparison import Lot, WalkedRow
from agac.engine.effects import descended
from agac.engine.forecast import Guess, StageForecast
from agac.engine.forepast import Past, source_of
from agac.engine.lineage import inner
from agac.engine.making import Makers, Member, NotMade
from agac.plan import reasons as why
from agac.plan.prepare import Sight
from agac.plan.standin import TEXT, stand_in
from agac.plan.steps import AnyStage, PlannedStage
from agac.spec.levels import Levels
from agac.spec.template import INDEX, ITEM
from agac.store.batch import Child, Making, NewRow
from agac.store.rows import State

UPSTREAM = "what it is made of"


class Made:
    """Makes the rows that a run would make."""

    def __init__(self, levels: Levels[AnyStage], found: Sequence[StageForecast], past: Past) -> None:
        self._levels, self._found, self._past = levels, found, past
        self._makers = Makers(levels)
        self._by_name = {stage.name: stage for stage in levels.stages}
        self._left: dict[int, float] = defaultdict(float)
        self._fed = {origin: frozenset(m.index for m in level.makers) for origin, level in levels.by_origin.items()}
        self._only = {
            (origin, maker.index): replace(level, makers=(maker,))
            for origin, level in levels.by_origin.items()
            for maker in level.makers
        }

    @property
    def members(self) -> Mapping[int, Member]:
        """How stages that group rows look at them, by the stages' positions."""
        return self._makers.members

    def feeds(self, row: WalkedRow, maker: AnyStage) -> bool:
        """Whether the stage makes rows of this one: not of one in whose place a function gave others."""
        own = not row.gone and maker.index in self._fed[row.level.origin]
        return own and not any(maker.index in self._fed[index] for index in row.lists)

    def making(self, row: WalkedRow, maker: AnyStage) -> Making | None:
        """What the stage makes of the row, if it comes to a good end; None where that is not known yet, or where
        nothing can be made of it: then it fails."""
        if self._is_open(row, maker):
            return None
        try:
            return self._makers.made(self._only[row.level.origin, maker.index], row.sight, row.new, {}, State.DONE)
        except NotMade:
            if not row.failed and not row.parked:
                row.failed = True
                self._found[maker.index].block(why.NOT_MADE, row.id, row.times)
            return None

    def lacking(self, row: WalkedRow, maker: AnyStage) -> Making:
        """The group that lacks this row, where it is known which."""
        return self._makers.lacking(self._only[row.level.origin, maker.index], row.sight, row.new)

    def _is_open(self, row: WalkedRow, maker: AnyStage) -> bool:
        """Whether what is made of the row hangs on an answer that is not there yet."""
        return self._waits_for(row, maker) is not None

    def _waits_for(self, row: WalkedRow, maker: AnyStage) -> str | None:
        """The stage on whose answer it hangs what is made of the row; None where it is known."""
        eyes = self.members.get(maker.index, maker)
        return next((name for path in _paths(maker) if (name := waits_for(row, path, eyes)) is not None), None)

    def items(self, maker: AnyStage, row: WalkedRow) -> Iterator[WalkedRow]:
        """The children that `explode` makes of a row; of one that fails, what they would be."""
        lost = row.failed or row.parked
        known = self.making(row, maker)
        if known is not None:
            for child in known.broods[maker.index]:
                yield self._child(maker, row, child, descended(row.sight, maker, json.loads(child.data)))
        elif lost or not row.failed:
            yield from self._guessed(maker, row, descended(row.sight, maker, {ITEM: self._item(maker), INDEX: 0}))

    def listed(self, row: WalkedRow) -> Iterator[WalkedRow]:
        """The rows that functions gave in the place of this one."""
        for index, rows in row.lists.items():
            maker = self._levels.stages[index]
            if rows is None:
                yield from self._guessed(maker, row, row.sight.child({}))
                continue
            try:
                known = self._makers.made(replace(row.level, makers=()), row.sight, row.new, {index: rows}, State.DONE)
            except NotMade:
                row.failed = True
                self._found[index].block(why.NOT_MADE, row.id, row.times)
                continue
            for child, fields in zip(known.broods[index], rows, strict=True):
                yield self._child(maker, row, child, descended(row.sight, maker, fields))

    def kept(self, maker: AnyStage, row: WalkedRow, content: bytes, times: int = 1) -> WalkedRow:
        """The row as it goes on after a stage that keeps the first of equal ones; or as many of which it is not known
        which they are."""
        made = self._child(maker, row, Child(row.id, content, "{}"), descended(row.sight, maker, {}))
        made.times = times
        made.guessed = made.guessed or not content
        need = next((need for need in maker.needs if need in row.pending), None)
        if need is not None:
            made.pending[maker.name] = row.pending[need]
        return made

    def _child(self, maker: AnyStage, row: WalkedRow, child: Child, sight: Sight) -> WalkedRow:
        new = NewRow(Row(child.id, 0, {}), 0, child.hash, child.data, State.PENDING, origin=maker.index)
        made = WalkedRow(new, None, {}, sight, self._levels.by_origin[maker.index])
        made.pending, made.blocked = dict(row.pending), set(row.blocked)
        made.times, made.guessed, made.failed, made.parked = row.times, row.guessed, row.failed, row.parked
        made.absent = row.failed or row.absent
        if row.failed or row.parked:
            made.blocked.add(maker.name)
            made.lot = Lot(refused=why.upstream_blocked(next(iter(row.blocked), maker.name)))
        if maker.makes == "items":
            made.pending.pop(ITEM, None)
            made.pending.pop(INDEX, None)
        return made

    def _guessed(self, maker: AnyStage, row: WalkedRow, sight: Sight) -> Iterator[WalkedRow]:
        """One row that stands for those that will be made, as many as the last run made of each."""
        times = self.times(maker, row)
        if times:
            place = f"{row.id}/0" if maker.makes != "kept" else row.id
            made = self._child(maker, row, Child(place, b"", "{}"), sight)
            made.times, made.guessed = times, True
            if maker.makes == "items":
                made.pending[ITEM] = made.pending[INDEX] = next(iter(row.pending.values()), UPSTREAM)
            yield made

    def times(self, maker: AnyStage, row: WalkedRow) -> int:
        """For how many rows a guess stands: fractions are passed on to the next row."""
        each = self._past.each.get(maker.name)
        source = maker.name if maker.makes == "rows" else self._waits_for(row, maker)
        guess = Guess(maker.makes or "items", source or source_of(maker) or maker.name, 1.0, None)
        if each is not None:
            guess = guess._replace(number=each, run=self._past.run)
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
            found = inner(stand_in(source), path[1:]) if source is not None else None
        except KeyError:
            return TEXT
        return found[0] if isinstance(found, list) and found else TEXT


def waits_for(row: WalkedRow, path: Sequence[str], eyes: AnyStage | Member) -> str | None:
    """The stage on whose answer it hangs what a path names; None where that is known."""
    name = path[0] if path[0] in eyes.ancestors or path[0] in (ITEM, INDEX) else eyes.rows_of
    if name not in row.pending:
        return None
    return next(iter(row.pending)) if name in (ITEM, INDEX) else name


def is_told(row: WalkedRow, member: Member) -> bool:
    """Whether all is known of a row that its group is asked about."""
    return not row.guessed and not any(name in row.pending for name in (*member.answers, member.rows_of))


def text_of(member: Member, row: WalkedRow, stages: Mapping[str, AnyStage]) -> tuple[str, int]:
    """A member of a group as its prompt has it, and how many characters it lacks of what is not there yet."""
    lacking = (stages[name] for name in member.answers if name in row.pending and name not in row.sight.results)
    return member.text(row.sight), sum(len(json.dumps(stand_in(stage))) for stage in lacking)


def _paths(maker: AnyStage) -> Sequence[Sequence[str]]:
    if maker.explode is not None:
        return [maker.explode]
    if isinstance(maker, PlannedStage):
        return maker.group.fields if maker.group else ()
    return getattr(maker.operation, "fields", ())
