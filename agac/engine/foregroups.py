"""Groups in a forecast: who comes to them, and, once all have come, what is known of their tasks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from agac.core.keys import member_hash, snapshot
from agac.core.order import id_order
from agac.core.types import JSONValue, Row, RowId
from agac.engine.comparison import Comparison, Lot, WalkedRow
from agac.engine.contents import array
from agac.engine.forecast import Guess
from agac.engine.foremade import Made, is_told, text_of
from agac.engine.foreparts import Learn, PartForecaster, parts_of
from agac.engine.forepast import Past
from agac.engine.foretasks import TaskForecaster
from agac.engine.groups import MOST_ROWS
from agac.plan import reasons as why
from agac.plan.estimate import CHARACTERS_A_TOKEN
from agac.plan.prepare import Sight
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Levels
from agac.spec.template import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.batch import Membership, NewRow
from agac.store.rows import State
from agac.store.scratch import Held, Joining, Scratch
from agac.store.scratch import Lot as StoredLot

_PAGE = 512
_MOST = 8_000_000
"""Characters of the members of groups that are looked up together."""


@dataclass(slots=True)
class _Afloat:
    """Rows of which it is not known yet into which groups they come, with one for example."""

    need: str
    reason: str
    example: RowId
    rows: int = 0
    characters: int = 0
    parked: bool = False


class GroupForecaster:
    """The groups of all stages that make groups."""

    def __init__(
        self,
        levels: Levels[AnyStage],
        made: Made,
        tasks: TaskForecaster,
        comparison: Comparison,
        past: Past,
        scratch: Scratch,
        learn: Learn,
        variables: Mapping[str, JSONValue],
    ) -> None:
        self._levels, self._made, self._tasks = levels, made, tasks
        self._comparison, self._past, self._scratch, self._learn = comparison, past, scratch, learn
        self._vars = dict(variables)
        self._stages = {stage.name: stage for stage in levels.stages}
        self._kept_parts: dict[int, int] = {}
        self._afloat: dict[int, _Afloat] = {}

    def join(self, stage: PlannedStage, rows: Sequence[WalkedRow]) -> None:
        """These rows came to their end, and would be in groups of the stage."""
        self._scratch.begin()
        for row in rows:
            if not row.absent:
                self._join(stage, row)
        self._scratch.end()

    def _join(self, stage: PlannedStage, row: WalkedRow) -> None:
        making = None if row.failed or row.parked else self._made.making(row, stage)
        if row.failed or row.parked:
            making = self._made.lacking(row, stage)
        if making is None or (row.parked and not making.groups):
            self._float(stage, row)
        elif stage.index in making.groups:
            self._put(stage, row, making.groups[stage.index])

    def _put(self, stage: PlannedStage, row: WalkedRow, one: Membership) -> None:
        member = self._made.members[stage.index]
        need = reason = text = None
        lost = row.failed or row.parked
        characters, tokens = 0, one.size
        if not lost:
            text, lacking = text_of(member, row, self._stages)
            characters = (len(text) + lacking + 1) * row.times
            if not is_told(row, member):
                text, need = None, next((name for name in stage.needs if name in row.pending), stage.name)
                reason = row.pending.get(need, why.NOT_YET)
                tokens = characters // CHARACTERS_A_TOKEN + row.times
        joining = Joining(
            one.group, one.data, 0 if lost else row.times, row.times * row.failed, tokens, characters,
            row.parked and not row.failed, self._tasks.is_guess(row, stage), need, reason,
        )  # fmt: skip
        told = self._scratch.join(stage.index, joining)
        assert stage.group is not None
        if not lost and (stage.group.reduces or told):
            ids = [row.id] if row.times == 1 else [f"{row.id}/{place}" for place in range(row.times)]
            share = (tokens // row.times, characters // row.times, text)
            self._scratch.hold(stage.index, one.group, [Held(member_hash(name), name, *share) for name in ids])

    def _float(self, stage: PlannedStage, row: WalkedRow) -> None:
        need = next((name for name in stage.needs if name in row.pending), stage.name)
        afloat = self._afloat.setdefault(stage.index, _Afloat(need, row.pending.get(need, why.NOT_YET), row.id))
        afloat.rows += row.times
        afloat.parked = afloat.parked or row.parked
        if not row.parked:
            text, lacking = text_of(self._made.members[stage.index], row, self._stages)
            afloat.characters += (len(text) + lacking + 1) * row.times

    async def rows(self, stage: PlannedStage) -> AsyncIterator[list[WalkedRow]]:
        """The groups of the stage as rows, some at a time: those that are known, and in the end those that are not."""
        known = 0
        for page in self._scratch.lots(stage.index, _PAGE):
            some: list[tuple[WalkedRow, StoredLot]] = []
            characters = 0
            for lot in page:
                known += 1
                some.append((self._row(stage, lot.id, lot.fields), lot))
                characters += lot.characters
                if characters > _MOST:
                    yield await self._ready(stage, some)
                    some, characters = [], 0
            yield await self._ready(stage, some)
        if stage.index in self._afloat:
            yield self._unknown(stage, self._afloat[stage.index], known)

    def _row(self, stage: PlannedStage, group: RowId, fields: str) -> WalkedRow:
        new = NewRow(Row(group, 0, {}), 0, b"", fields, State.PENDING, origin=stage.index)
        sight = Sight(json.loads(fields), self._vars)
        return WalkedRow(new, None, {}, sight, self._levels.by_origin[stage.index], lot=Lot())

    async def _ready(self, stage: PlannedStage, some: Sequence[tuple[WalkedRow, StoredLot]]) -> list[WalkedRow]:
        """The groups with all that is known of their tasks."""
        rows = [row for row, _ in some]
        await self._learn(rows)
        large = []
        for row, lot in some:
            assert row.lot is not None
            assert stage.group is not None
            row.guessed, row.parked = bool(lot.guessed), bool(lot.parked)
            row.sight.own |= {ROWS_COUNT: lot.rows, ROWS_FAILED: lot.failed, ROWS_JSON: ""}
            row.lot.refused = _refused(stage, lot)
            if row.lot.refused is not None:
                continue
            if lot.need is not None:
                row.lot.reason = self._comparison.passed_on(stage, row, lot.need, lot.reason or why.NOT_YET)
                row.lot.characters = lot.characters
            if not stage.group.fits(lot.rows, lot.tokens):
                if self._tasks.lets_in(stage, row.sight):
                    large.append(row)
            elif lot.need is None:
                held = self._scratch.members(stage.index, lot.id)
                texts = sorted((id_order(one.id), one.text or "") for one in held)
                row.sight.own[ROWS_JSON] = array([text for _, text in texts])
        if large:
            parts = PartForecaster(stage, self._tasks, self._comparison, self._scratch, self._learn, self._vars)
            kept = await parts.cut(large)
            self._kept_parts[stage.index] = self._kept_parts.get(stage.index, 0) + kept
        return rows

    def _unknown(self, stage: PlannedStage, afloat: _Afloat, known: int) -> list[WalkedRow]:
        """One row that stands for the groups that are not known yet."""
        found, past = self._tasks.of(stage), self._past.each.get(stage.name)
        least = 0 if known else 1
        further = min(max(round(past) - known if past is not None else 0, least), afloat.rows)
        found.guess = Guess("groups", afloat.need, float(known + further), self._past.run if past is not None else None)
        found.exact = False
        reason = why.passed_on(afloat.reason, afloat.need)
        self._move(stage, afloat, reason, afloat.rows * known // (known + further))
        if not further:
            return []
        row = self._row(stage, afloat.example, snapshot({}))
        row.times, row.guessed, rows = further, True, max(afloat.rows // further, 1)
        row.sight.own |= {ROWS_COUNT: rows, ROWS_FAILED: 0, ROWS_JSON: ""}
        characters = afloat.characters // further
        parts = parts_of(stage, rows, characters // CHARACTERS_A_TOKEN)
        row.parked = afloat.parked
        row.lot = Lot(why.WAITS if afloat.parked else None, reason, characters=characters // (parts + 1), parts=parts)
        return [row]

    def _move(self, stage: PlannedStage, afloat: _Afloat, reason: str, rows: int) -> None:
        """So many of them come to groups that are known: each may change one that would be reused, and a part of it."""
        found = self._tasks.of(stage)
        changed = 0 if afloat.parked else min(found.reuse, rows)
        if changed:
            found.reuse -= changed
            found.asked(reason, afloat.example, times=changed)
        parts = 0 if afloat.parked else min(rows, self._kept_parts.get(stage.index, 0))
        found.parts += parts
        found.further += parts


def _refused(stage: PlannedStage, lot: StoredLot) -> str | None:
    """Why a group cannot be asked."""
    assert stage.group is not None
    if lot.parked:
        return why.WAITS
    if not lot.rows or (lot.failed and stage.group.incomplete == "fail"):
        return why.NOT_WHOLE
    return why.TOO_LARGE if lot.rows > MOST_ROWS and not stage.group.reduces else None
