"""Derived rows and groups in a dry run: what is known of them, else a guess from the earlier run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from agac.core.keys import id_order, member_hash, snapshot
from agac.core.types import JSONValue, Row, RowId
from agac.engine.derived_rows import DerivationFailed, MemberView, RowDeriver, inner
from agac.engine.dry_answers import CountedOutcomes, StoredAnswers
from agac.engine.effects import descended
from agac.engine.estimate import CHARACTERS_A_TOKEN, TEXT, dummy_answer
from agac.engine.executor import LevelStages
from agac.engine.forecast import Baseline, BaselineCounts, ForecastRow, GroupTask, Guess, StageForecast, source_of
from agac.engine.groups import GroupCut, call_size, part_id, unusable
from agac.engine.replay import array
from agac.plan import diff as why
from agac.plan.reduce_tree import NodeId, TreeNode, tree
from agac.plan.render import Prepared, RowView
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Levels
from agac.spec.templates import INDEX, ITEM, ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.records import Child, DerivedRows, Membership, NewRow
from agac.store.rows import State
from agac.store.scratch import ForecastGroup, ForecastMember, GroupInput, Scratch, ScratchPart

# Rows that a run would make, in a dry run: as many as are known, else as many as the last run made.

PARENT = "what it is made of"


class ForecastDeriver:
    """Makes the rows that a run would make. `fail` is told of a row of which nothing can be made."""

    def __init__(
        self,
        levels: Levels[AnyStage],
        found: Sequence[StageForecast],
        counts: BaselineCounts,
        fail: Callable[[ForecastRow, DerivationFailed], None],
    ) -> None:
        self._levels, self._found, self._counts, self._fail = levels, found, counts, fail
        self._makers = RowDeriver(levels)
        self._by_name = {stage.name: stage for stage in levels.stages}
        self._left: dict[int, float] = defaultdict(float)
        self._fed = {origin: frozenset(m.index for m in level.makers) for origin, level in levels.by_origin.items()}

    @property
    def members(self) -> Mapping[int, MemberView]:
        """How stages that group rows look at them, by the stages' positions."""
        return self._makers.members

    def feeds(self, row: ForecastRow, maker: AnyStage) -> bool:
        """Whether the stage makes rows of this one: not of one in whose place a function gave others."""
        own = not row.dropped and maker.index in self._fed[row.level.origin]
        return own and not any(maker.index in self._fed[index] for index in row.lists)

    def made(self, row: ForecastRow) -> DerivedRows:
        """What is made of a row, as far as it is known, or what would have been made of a lost one."""
        if row.making is None:
            known = {index: rows for index, rows in row.lists.items() if rows is not None}
            unknown = {one.index for one in row.level.makers if self._makers.waits_for(one, row.view) is not None}
            unknown.update(*(self._fed[index] for index in row.lists))
            while row.making is None:
                try:
                    level, view = row.level, row.view
                    row.making = self._makers.made(level, view, row.new, known, State.DONE, unknown=unknown)
                except DerivationFailed as fault:
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
            made = self._makers.lacking(row.level, row.view, row.new)
        return made.groups.get(maker.index)

    def items(self, maker: AnyStage, row: ForecastRow) -> Iterator[ForecastRow]:
        """The children that `explode` makes of a row; of one that fails, what they would be."""
        made = self.made(row)
        if maker.index in made.broods:
            for child in made.broods[maker.index]:
                yield self._child(maker, row, child, descended(row.view, maker, json.loads(child.data)))
        elif row.unmade is not maker:
            yield from self._guessed(maker, row, descended(row.view, maker, {ITEM: self._item(maker), INDEX: 0}))

    def listed(self, row: ForecastRow) -> Iterator[ForecastRow]:
        """The rows that functions gave in the place of this one."""
        made = self.made(row)
        for index, rows in row.lists.items():
            maker = self._levels.stages[index]
            if rows is None:
                yield from self._guessed(maker, row, row.view.child({}))
            elif index in made.broods:
                for child, fields in zip(made.broods[index], rows, strict=True):
                    yield self._child(maker, row, child, descended(row.view, maker, fields))

    def kept(self, maker: AnyStage, row: ForecastRow, content: bytes, times: int = 1) -> ForecastRow:
        """The row as it goes on after a stage that keeps the first of equal ones; or as many of which it is not known
        which they are."""
        made = self._child(maker, row, Child(row.id, content, "{}"), descended(row.view, maker, {}))
        made.times = times
        made.guessed = made.guessed or not content
        need = next((need for need in maker.needs if need in row.view.unknown), None)
        if need is not None:
            made.view.unknown[maker.name] = row.view.unknown[need]
        return made

    def _child(self, maker: AnyStage, row: ForecastRow, child: Child, view: RowView) -> ForecastRow:
        new = NewRow(Row(child.id, 0, {}), 0, child.hash, child.data, State.PENDING, origin=maker.index)
        made = ForecastRow(child.id, view, new=new, level=self._levels.by_origin[maker.index])
        made.blocked = set(row.blocked)
        made.times, made.guessed, made.failed, made.parked = row.times, row.guessed, row.failed, row.parked
        made.absent = row.failed is not None or row.absent
        if row.lost:
            made.blocked.add(maker.name)
            made.group = GroupTask(refused=why.upstream_blocked(next(iter(row.blocked), maker.name)))
        if maker.makes == "items" and made.view.unknown:
            made.view.unknown.pop(ITEM, None)
            made.view.unknown.pop(INDEX, None)
        return made

    def _guessed(self, maker: AnyStage, row: ForecastRow, view: RowView) -> Iterator[ForecastRow]:
        """One row that stands for those that will be made, as many as the last run made of each."""
        times = self.times(maker, row)
        if times:
            place = f"{row.id}/0" if maker.makes != "kept" else row.id
            made = self._child(maker, row, Child(place, b"", "{}"), view)
            made.times, made.guessed = times, True
            if maker.makes == "items":
                reason = next(iter(row.view.unknown.values()), PARENT)
                made.view.unknown[ITEM] = made.view.unknown[INDEX] = reason
            yield made

    def times(self, maker: AnyStage, row: ForecastRow) -> int:
        """For how many rows a guess stands: fractions are passed on to the next row."""
        each = self._counts.each.get(maker.name)
        source = maker.name if maker.makes == "rows" else self._makers.waits_for(maker, row.view)
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


def is_known(row: ForecastRow, member: MemberView) -> bool:
    """Whether all is known of a row that the request of its group is made of."""
    unknown = row.view.unknown
    return not row.guessed and not any(name in unknown for name in (*member.answers, member.rows_of))


def text_of(member: MemberView, row: ForecastRow, stages: Mapping[str, AnyStage]) -> tuple[str, int]:
    """A member of a group as its prompt has it, and how many characters it lacks of what is not there yet."""
    view = row.view
    lacking = (stages[name] for name in member.answers if name in view.unknown and name not in view.results)
    return member.text(view), sum(len(json.dumps(dummy_answer(stage))) for stage in lacking)


# Groups in a dry run: who comes to them, and, once all have come, what is known of their tasks and of their parts.

_PAGE = 512
_SOME = 64
_MAX_CHARACTERS = 8_000_000
"""Characters of the members of groups that are looked up together."""

_MEASURED = 20_000
"""Members that are cut to learn into how many parts still more of them would be."""

Learn = Callable[[Sequence[ForecastRow]], Awaitable[None]]
"""Looks up what became of rows before."""


@dataclass(slots=True)
class _UnassignedRows:
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
        does: Mapping[int | None, LevelStages[ForecastRow]],
        made: ForecastDeriver,
        outcomes: CountedOutcomes,
        answers: StoredAnswers,
        baseline: Baseline,
        counts: BaselineCounts,
        scratch: Scratch,
        learn: Learn,
        variables: Mapping[str, JSONValue],
    ) -> None:
        self._levels, self._does, self._made, self._outcomes, self._answers = levels, does, made, outcomes, answers
        self._baseline, self._counts, self._scratch, self._learn = baseline, counts, scratch, learn
        self._vars = dict(variables)
        self._stages = {stage.name: stage for stage in levels.stages}
        self._kept_parts: dict[int, int] = {}
        self._unassigned: dict[int, _UnassignedRows] = {}

    def join(self, stage: PlannedStage, rows: Sequence[ForecastRow]) -> None:
        """These rows came to their end, and would be in groups of the stage."""
        self._scratch.begin()
        for row in rows:
            if not row.absent:
                self._join(stage, row)
        self._scratch.end()

    def _join(self, stage: PlannedStage, row: ForecastRow) -> None:
        membership = self._made.membership(row, stage)
        if membership is not None:
            self._put(stage, row, membership)
        elif row.failed is None:
            self._add_unassigned(stage, row)

    def _put(self, stage: PlannedStage, row: ForecastRow, one: Membership) -> None:
        member, unknown = self._made.members[stage.index], row.view.unknown
        need = reason = text = None
        characters, tokens = 0, one.size
        if not row.lost:
            text, lacking = text_of(member, row, self._stages)
            characters = (len(text) + lacking + 1) * row.times
            if not is_known(row, member):
                text, need = None, next((name for name in stage.needs if name in unknown), stage.name)
                reason = unknown.get(need, why.NOT_YET)
                tokens = characters // CHARACTERS_A_TOKEN + row.times
        failed = row.failed is not None
        joining = GroupInput(
            one.group, one.data, 0 if row.lost else row.times, row.times * failed, tokens, characters,
            row.parked is not None and not failed, self._outcomes.is_guess(row, stage), need, reason,
        )  # fmt: skip
        all_known = self._scratch.join(stage.index, joining)
        assert stage.group is not None
        if not row.lost and (stage.group.reduces or all_known):
            ids = [row.id] if row.times == 1 else [f"{row.id}/{place}" for place in range(row.times)]
            share = (tokens // row.times, characters // row.times, text)
            held = [ForecastMember(member_hash(name), name, *share) for name in ids]
            self._scratch.hold(stage.index, one.group, held)

    def _add_unassigned(self, stage: PlannedStage, row: ForecastRow) -> None:
        unknown = row.view.unknown
        need = next((name for name in stage.needs if name in unknown), stage.name)
        first = _UnassignedRows(need, unknown.get(need, why.NOT_YET), row.id)
        unassigned = self._unassigned.setdefault(stage.index, first)
        unassigned.rows += row.times
        unassigned.parked = unassigned.parked or row.parked is not None
        if row.parked is None:
            text, lacking = text_of(self._made.members[stage.index], row, self._stages)
            unassigned.characters += (len(text) + lacking + 1) * row.times

    async def rows(self, stage: PlannedStage) -> AsyncIterator[list[ForecastRow]]:
        """The groups of the stage as rows, some at a time: those that are known, and in the end those that are not."""
        known = 0
        for page in self._scratch.groups(stage.index, _PAGE):
            some: list[tuple[ForecastRow, ForecastGroup]] = []
            characters = 0
            for group in page:
                known += 1
                some.append((self._row(stage, group.id, group.fields), group))
                characters += group.characters
                if characters > _MAX_CHARACTERS:
                    yield await self._ready(stage, some)
                    some, characters = [], 0
            yield await self._ready(stage, some)
        if stage.index in self._unassigned:
            yield self._unknown(stage, self._unassigned[stage.index], known)

    def _row(self, stage: PlannedStage, group: RowId, fields: str) -> ForecastRow:
        new = NewRow(Row(group, 0, {}), 0, b"", fields, State.PENDING, origin=stage.index)
        view, level = RowView(json.loads(fields), self._vars), self._levels.by_origin[stage.index]
        return ForecastRow(group, view, new=new, level=level, group=GroupTask())

    async def _ready(self, stage: PlannedStage, some: Sequence[tuple[ForecastRow, ForecastGroup]]) -> list[ForecastRow]:
        """The groups with all that is known of their tasks."""
        rows = [row for row, _ in some]
        await self._learn(rows)
        large = []
        for row, group in some:
            assert row.group is not None
            assert stage.group is not None
            row.guessed, row.parked = bool(group.guessed), stage if group.parked else None
            row.view.own |= {ROWS_COUNT: group.rows, ROWS_FAILED: group.failed, ROWS_JSON: ""}
            row.group.refused = _refused(stage, group)
            if row.group.refused is not None:
                continue
            if group.need is not None:
                reason = self._baseline.passed_on(stage, row, group.need, group.reason or why.NOT_YET)
                row.view.unknown[ROWS_JSON] = reason
                row.group.characters = group.characters
            if not stage.group.fits(group.rows, group.tokens):
                if self._does[stage.index].lets_in(row.view, stage):
                    large.append(row)
            elif group.need is None:
                held = self._scratch.members(stage.index, group.id)
                texts = sorted((id_order(one.id), one.text or "") for one in held)
                row.view.own[ROWS_JSON] = array([text for _, text in texts])
        if large:
            parts = PartForecaster(stage, self._answers, self._baseline, self._scratch, self._learn, self._vars)
            kept = await parts.cut(large)
            self._kept_parts[stage.index] = self._kept_parts.get(stage.index, 0) + kept
        return rows

    def _unknown(self, stage: PlannedStage, unassigned: _UnassignedRows, known: int) -> list[ForecastRow]:
        """One row that stands for the groups that are not known yet."""
        found, past = self._outcomes.of(stage), self._counts.each.get(stage.name)
        least = 0 if known else 1
        further = min(max(round(past) - known if past is not None else 0, least), unassigned.rows)
        run = self._counts.run if past is not None else None
        found.guess = Guess("groups", unassigned.need, float(known + further), run)
        found.exact = False
        reason = why.passed_on(unassigned.reason, unassigned.need)
        self._move(stage, unassigned, reason, unassigned.rows * known // (known + further))
        if not further:
            return []
        row = self._row(stage, unassigned.example, snapshot({}))
        row.times, row.guessed, rows = further, True, max(unassigned.rows // further, 1)
        row.view.own |= {ROWS_COUNT: rows, ROWS_FAILED: 0, ROWS_JSON: ""}
        row.view.unknown[ROWS_JSON] = reason
        characters = unassigned.characters // further
        parts = parts_of(stage, rows, characters // CHARACTERS_A_TOKEN)
        row.parked = stage if unassigned.parked else None
        refused = why.WAITS if unassigned.parked else None
        row.group = GroupTask(refused, characters=characters // (parts + 1), parts=parts)
        return [row]

    def _move(self, stage: PlannedStage, unassigned: _UnassignedRows, reason: str, rows: int) -> None:
        """So many of them come to groups that are known: each may change one that would be reused, and a part of it."""
        found = self._outcomes.of(stage)
        changed = 0 if unassigned.parked else min(found.reuse, rows)
        if changed:
            found.reuse -= changed
            found.asked(reason, unassigned.example, times=changed)
        parts = 0 if unassigned.parked else min(rows, self._kept_parts.get(stage.index, 0))
        found.parts += parts
        found.further += parts


def _refused(stage: PlannedStage, group: ForecastGroup) -> str | None:
    """Why a group cannot be run."""
    assert stage.group is not None
    if group.parked:
        return why.WAITS
    reasons = {"failed": why.NOT_WHOLE, "incomplete": why.NOT_WHOLE, "large": why.TOO_LARGE, None: None}
    return reasons[unusable(stage.group, group.rows, group.failed)]


class _LookedFor(NamedTuple):
    part: ScratchPart
    row: ForecastRow
    task: Prepared


@dataclass(frozen=True, slots=True)
class PartForecaster:
    """Cuts the groups of one stage that one call does not hold."""

    stage: PlannedStage
    answers: StoredAnswers
    baseline: Baseline
    scratch: Scratch
    learn: Learn
    variables: dict[str, JSONValue]

    async def cut(self, groups: Sequence[ForecastRow]) -> int:
        """Says of each group what it is about, or how many of its parts would be run before. Gives how many parts have
        their results."""
        tops = {number: self._cut(number, group) for number, group in enumerate(groups)}
        for height in range(1, max(top.id.height for top in tops.values())):
            for parts in self.scratch.parts(height, _SOME):
                await self._some(parts, groups)
        for number, group in enumerate(groups):
            assert group.group is not None
            values = self.scratch.values(number, tops[number].children)
            texts = [value for value in values if value is not None]
            if len(texts) == len(values):
                group.view.own[ROWS_JSON] = array(texts)
            else:
                group.group.characters = self._result * len(values)
                reason = self.baseline.reason(self.stage, group, b"")
                group.view.unknown.setdefault(ROWS_JSON, reason)
        tasks = [group.group for group in groups if group.group is not None]
        return self.scratch.forget_parts() - sum(task.parts + task.in_batch for task in tasks)

    @property
    def _result(self) -> int:
        """Characters of a result that is not there yet."""
        return len(snapshot(dummy_answer(self.stage)))

    def _cut(self, number: int, group: ForecastRow) -> TreeNode:
        cut = GroupCut(self.stage, partial(self._put, number))
        for one in self._held(group):
            cut.add(one.sort, one.tokens)
        return cut.close()

    def _put(self, number: int, node: TreeNode) -> None:
        children = tuple(tuple(child) for child in node.children)
        self.scratch.put_part(ScratchPart(number, *node.id, node.rows, children))

    def _held(self, group: ForecastRow, low: int = 0, high: int = (1 << 64) - 1) -> Iterator[ForecastMember]:
        return self.scratch.members(self.stage.index, group.id, low, high)

    async def _some(self, parts: Sequence[ScratchPart], groups: Sequence[ForecastRow]) -> None:
        wanted = []
        for part in parts:
            group = groups[part.group]
            texts, characters = self._contents(part, group)
            row = self._row(part, group)
            if texts is None:
                self._lacks(group)
                row.view.own[ROWS_JSON] = ""
                self.answers.prompts.measure(self.stage, row.view, row.id, characters)
            else:
                row.view.own[ROWS_JSON] = array(texts)
                task = self.answers.prompts.known(self.stage, row.view, row.id)
                if task is not None:
                    wanted.append(_LookedFor(part, row, task))
                elif group.group is not None:
                    group.group.refused = why.MISSING_FIELD
        await self._look_up(wanted, groups)

    async def _look_up(self, wanted: Sequence[_LookedFor], groups: Sequence[ForecastRow]) -> None:
        await self.learn([one.row for one in wanted])
        prints = [one.task.fingerprint for one in wanted]
        earlier = await self.answers.earlier(self.stage, prints)
        in_batch = await self.answers.in_batch(prints)
        for part, row, task in wanted:
            group = groups[part.group]
            assert group.group is not None
            if task.fingerprint in earlier:
                self.scratch.part_came_to(part, earlier[task.fingerprint].value)
            elif task.fingerprint in in_batch:
                group.group.in_batch += 1
            elif self.baseline.left(self.stage, row, task.fingerprint) is not None:
                group.group.refused = self.baseline.left_reason(self.stage, row)
            else:
                self._lacks(group)
                self.answers.prompts.show(self.stage, row.id, task.request)

    def _lacks(self, group: ForecastRow) -> None:
        assert group.group is not None
        group.group.parts += 1

    def _row(self, part: ScratchPart, group: ForecastRow) -> ForecastRow:
        """The part as a row."""
        node = NodeId(part.height, part.low, part.high, part.after)
        new = NewRow(Row(part_id(group.id, node), 0, {}), 0, b"", "", State.PENDING, origin=self.stage.index)
        view = RowView(group.view.forms[None], self.variables)
        view.own |= {ROWS_COUNT: len(part.children) or part.rows, ROWS_FAILED: 0}
        return ForecastRow(new.row.id, view, new=new, level=group.level)

    def _contents(self, part: ScratchPart, group: ForecastRow) -> tuple[list[str] | None, int]:
        """The texts that a part is about, None where they are not there yet; and their characters."""
        if part.children:
            values = self.scratch.values(part.group, part.children)
            texts = [value for value in values if value is not None]
            return (texts, 0) if len(texts) == len(values) else (None, self._result * len(values))
        held = list(islice(self._held(group, part.low, part.high), part.after, part.after + part.rows))
        known = sorted((id_order(one.id), one.text) for one in held if one.text is not None)
        whole = [text for _, text in known] if len(known) == len(held) else None
        return whole, sum(one.characters + 1 for one in held)


def parts_of(stage: PlannedStage, rows: int, tokens: int) -> int:
    """About how many parts a group of so many rows and tokens is cut into; none where one call holds it."""
    if stage.group is None or not stage.group.reduces or stage.group.fits(rows, tokens):
        return 0
    measured = min(rows, _MEASURED)
    members = ((place, tokens // rows) for place in sorted(member_hash(number) for number in range(measured)))
    return round((sum(1 for _ in tree(members, call_size(stage))) - 1) * rows / measured)
