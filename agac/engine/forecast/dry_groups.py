"""Derived rows and groups in a dry run: as many as are known, else as many as the earlier run
made."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

from agac.core.errors import ErrorType, RowError
from agac.core.keys import id_order, member_hash, snapshot
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import JSONValue, Row, RowId
from agac.engine.forecast.estimate import TEXT, USUAL_LENGTH, dummy_answer
from agac.engine.forecast.forecast_rows import ForecastRow
from agac.engine.forecast.forecasts import Guess
from agac.engine.forecast.made_before import source_of
from agac.engine.forecast.stored_answers import StoredAnswers
from agac.engine.walk.derived_rows import DerivationFailed, RowDeriver, inner
from agac.engine.walk.effects import descended
from agac.engine.walk.executor import LevelStages
from agac.engine.walk.groups import call_size, part_id, unusable
from agac.engine.walk.reduction_tree import NodeId, TreeNode, tree
from agac.engine.walk.replay import array
from agac.plan import diff as why
from agac.plan.render import Prepared, RowView
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.graph import Levels
from agac.spec.templates import INDEX, ITEM, ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.records import Child, DerivedRows, Membership, NewRow
from agac.store.rows import EarlierResult, State
from agac.store.scratch import ForecastGroup, ForecastMember, ScratchPart

PARENT = "what it is made of"


class ForecastDeriver:
    """Makes the rows that a run would make."""

    def __init__(self, levels: Levels[AnyStage], answers: StoredAnswers) -> None:
        self._levels = levels
        self._answers = answers
        self._deriver = RowDeriver(levels)
        self._by_name = {stage.name: stage for stage in levels.stages}
        self._left: dict[int, float] = defaultdict(float)
        self._fed = {
            origin: frozenset(m.index for m in level.makers)
            for origin, level in levels.by_origin.items()
        }

    def feeds(self, row: ForecastRow, maker: AnyStage) -> bool:
        """Whether the stage makes rows of this one: not of one in whose place a function gave
        others."""
        own = not row.dropped and maker.index in self._fed[row.level.origin]
        return own and not any(maker.index in self._fed[index] for index in row.lists)

    def made(self, row: ForecastRow) -> DerivedRows:
        """What is made of a row, as far as it is known, or was lost. A row of which nothing can be
        made fails."""
        if row.making is not None:
            return row.making
        known = {index: rows for index, rows in row.lists.items() if rows is not None}
        unknown = {
            one.index
            for one in row.level.makers
            if self._deriver.waits_for(one, row.view) is not None
        }
        unknown.update(*(self._fed[index] for index in row.lists))
        while True:
            try:
                row.making = self._deriver.made(
                    row.level, row.view, row.new, known, State.DONE, unknown=unknown
                )
            except DerivationFailed as fault:
                if not row.lost:
                    row.unmade = fault.stage
                    row.fail(fault.stage, RowError(ErrorType.INVALID_ROW, fault.message))
                    self._answers.of(fault.stage).block(why.NOT_MADE, row.id, row.times)
                unknown.add(fault.stage.index)
                known.pop(fault.stage.index, None)
            else:
                return row.making

    def membership(self, row: ForecastRow, maker: AnyStage) -> Membership | None:
        """The group of the stage that the row comes to, or that lacks it; None where that is not
        known."""
        made = None if row.lost else self.made(row)
        if made is None or row.lost:  # it may have become lost just now
            made = self._deriver.lacking(row.level, row.view, row.new)
        return made.groups.get(maker.index)

    def member(self, stage: AnyStage, row: ForecastRow) -> tuple[str, int, bool]:
        """A row as its group's prompt has it, its characters with those that will come, and
        whether all is known."""
        view = row.view
        member = self._deriver.members[stage.index]
        missing = [
            name for name in member.answers if name in view.unknown and name not in view.results
        ]
        text = member.text(view)
        known = not row.guessed and view.unknown_of(member.stage, member.answers) is None
        characters = (
            len(text)
            + sum(len(json.dumps(dummy_answer(self._by_name[name].shape))) for name in missing)
            + 1
        )
        return text, characters, known and member.stage.rows_of not in view.unknown

    def items(self, maker: AnyStage, row: ForecastRow) -> Iterator[ForecastRow]:
        """The children that `explode` makes of a row; of one that fails, what they would be."""
        made = self.made(row)
        if maker.index in made.children:
            for child in made.children[maker.index]:
                yield self._child(
                    maker, row, child, descended(row.view, maker, json.loads(child.data))
                )
        elif row.unmade is not maker:
            yield from self._guessed(
                maker, row, descended(row.view, maker, {ITEM: self._usual(maker)[0], INDEX: 0})
            )

    def listed(self, row: ForecastRow) -> Iterator[ForecastRow]:
        """The rows that functions gave in the place of this one."""
        made = self.made(row)
        for index, rows in row.lists.items():
            maker = self._levels.stages[index]
            if rows is None:
                yield from self._guessed(maker, row, row.view.child(row.view.data(maker)))
            elif index in made.children:
                for child, fields in zip(made.children[index], rows, strict=True):
                    yield self._child(maker, row, child, descended(row.view, maker, fields))

    def kept(
        self, maker: AnyStage, row: ForecastRow, content: bytes, times: int = 1
    ) -> ForecastRow:
        """The row as it goes on after a stage that keeps the first of equal ones; or as many, not
        known which."""
        made = self._child(maker, row, Child(row.id, content, "{}"), descended(row.view, maker, {}))
        made.times = times
        made.guessed = made.guessed or not content
        need = next((need for need in maker.needs if need in row.view.unknown), None)
        if need is not None:
            made.view.unknown[maker.name] = row.view.unknown[need]
        return made

    def _child(self, maker: AnyStage, row: ForecastRow, child: Child, view: RowView) -> ForecastRow:
        new = NewRow(
            Row(child.id, 0, {}), 0, child.hash, child.data, State.PENDING, origin=maker.index
        )
        made = ForecastRow(new, view, level=self._levels.by_origin[maker.index])
        made.blocked = row.blocked
        made.times = row.times
        made.guessed = row.guessed
        made.failed = row.failed
        made.parked = row.parked
        made.absent = row.failed is not None or row.absent
        if row.lost:
            made.blocked |= {maker.name}
            made.is_group = True
            made.refused = why.upstream_blocked(next(iter(row.blocked), maker.name))
        if maker.makes == "items" and made.view.unknown:
            made.view.unknown.pop(ITEM, None)
            made.view.unknown.pop(INDEX, None)
        return made

    def _guessed(self, maker: AnyStage, row: ForecastRow, view: RowView) -> Iterator[ForecastRow]:
        """One row that stands for those that will be made, as many as the last run made of each."""
        times = self.times(maker, row)
        if times:
            made = self._child(maker, row, Child(f"{row.id}/0", b"", "{}"), view)
            made.times = times
            made.guessed = True
            if maker.makes == "items":
                reason = next(iter(row.view.unknown.values()), PARENT)
                made.view.unknown[ITEM] = made.view.unknown[INDEX] = reason
            yield made

    def times(self, maker: AnyStage, row: ForecastRow) -> int:
        """For how many rows a guess stands: fractions are passed on to the next row."""
        each = self._answers.baseline.made.each.get(maker.name)
        found = self._answers.of(maker)
        source: str | None
        if maker.makes == "rows":
            source = maker.name
        else:
            source = self._deriver.waits_for(maker, row.view)
        run = self._answers.baseline.made.run if each is not None else None
        if each is not None:
            number = each
        elif maker.makes == "kept":
            number = 1.0
        else:
            number = float(len(self._usual(maker)))
        found.guess = Guess(
            maker.makes or "items", source or source_of(maker) or maker.name, number, run
        )
        if maker.makes != "rows":
            found.exact = False
        self._answers.unsure_after(maker)
        self._left[maker.index] += number * row.times
        whole = int(self._left[maker.index] + 1e-6)
        self._left[maker.index] -= whole
        return whole

    def _usual(self, maker: AnyStage) -> list[JSONValue]:
        """What a list would be of which the stage makes rows, where nobody knows it."""
        path = maker.explode or ("",)
        source = self._by_name.get(path[0])
        try:
            if source is not None:
                found = inner(dummy_answer(source.shape), path[1:])
            else:
                found = None
        except KeyError:
            found = None
        if isinstance(found, list) and found:
            return found
        return [TEXT] * USUAL_LENGTH


# Groups in a dry run: who comes to them, and, once all have come, what is known of their tasks and
# of their parts.

_PAGE = 512
_SOME = 64


@dataclass(slots=True)
class UnassignedRows:
    """Rows of which it is not known yet into which groups they come, with one for example."""

    need: str
    reason: str
    example: RowId
    rows: int = 0
    characters: int = 0
    parked: bool = False


class GroupForecaster:
    """The groups of all stages that make groups, and the parts of those that one call does not
    hold."""

    def __init__(
        self,
        levels: Levels[AnyStage],
        does: Mapping[int | None, LevelStages[ForecastRow]],
        deriver: ForecastDeriver,
        answers: StoredAnswers,
        waiting: Collection[int],
    ) -> None:
        """`waiting` are the positions of stages that make nothing in the run, as rows before stay
        open."""
        self._levels = levels
        self._does = does
        self._deriver = deriver
        self._answers = answers
        self._baseline = answers.baseline
        self._scratch = answers.scratch
        self._vars = dict(answers.baseline.plan.vars)
        self._kept_parts: dict[int, int] = defaultdict(int)
        self._unassigned: dict[int, UnassignedRows] = {}
        self._waiting = waiting

    def join(self, stage: AnyStage, rows: Sequence[ForecastRow]) -> None:
        """These rows came to their end, and would be in groups of the stage."""
        with self._scratch.at_once():
            for row in rows:
                if row.absent:
                    continue
                membership = self._deriver.membership(row, stage)
                if membership is not None:
                    self._put(stage, row, membership)
                elif row.failed is None:
                    need, reason = self._need(stage, row)
                    unassigned = self._unassigned.setdefault(
                        stage.index, UnassignedRows(need, reason, row.id)
                    )
                    unassigned.rows += row.times
                    unassigned.parked = unassigned.parked or row.parked is not None
                    if row.parked is None:
                        _, characters, _ = self._deriver.member(stage, row)
                        unassigned.characters += characters * row.times

    def _need(self, stage: AnyStage, row: ForecastRow) -> tuple[str, str]:
        """The stage on whose answer it hangs what is asked about the row, and why that has to be
        asked for."""
        need = next((name for name in stage.needs if name in row.view.unknown), stage.name)
        return need, row.view.unknown.get(need, why.NOT_YET)

    def _put(self, stage: AnyStage, row: ForecastRow, one: Membership) -> None:
        need = reason = text = None
        characters = 0
        tokens = one.size
        failed = row.failed is not None
        if not row.lost:
            text, characters, known = self._deriver.member(stage, row)
            characters *= row.times
            if not known:
                text, (need, reason) = None, self._need(stage, row)
                tokens = characters // CHARACTERS_A_TOKEN + row.times
        joining = ForecastGroup(
            one.group,
            one.data,
            0 if row.lost else row.times,
            row.times * failed,
            tokens,
            characters,
            row.parked is not None and not failed,
            self._answers.is_guess(row, stage),
            need,
            reason,
        )
        all_known = self._scratch.join(stage.index, joining)
        assert stage.group is not None
        if not row.lost and (stage.group.reduces or all_known):
            if row.times == 1:
                ids = [row.id]
            else:
                ids = [f"{row.id}/{place}" for place in range(row.times)]
            share = (tokens // row.times, characters // row.times, text)
            held = [ForecastMember(member_hash(name), name, *share) for name in ids]
            self._scratch.hold(stage.index, one.group, held)

    async def rows(self, stage: AnyStage) -> AsyncIterator[list[ForecastRow]]:
        """The groups of the stage as rows, some at a time: those that are known, and in the end
        those that are not."""
        known = 0
        for page in self._scratch.groups(stage.index, _PAGE):
            some: list[tuple[ForecastRow, ForecastGroup]] = []
            characters = 0
            for group in page:
                known += 1
                some.append((self._row(stage, group.id, group.fields), group))
                characters += group.characters
                if characters > 8_000_000:  # of members that are looked up together
                    yield await self._ready(stage, some)
                    some = []
                    characters = 0
            yield await self._ready(stage, some)
        if stage.index in self._unassigned:
            yield self._unknown(stage, self._unassigned[stage.index], known)

    def _row(self, stage: AnyStage, group: RowId, fields: str) -> ForecastRow:
        new = NewRow(Row(group, 0, {}), 0, b"", fields, State.PENDING, origin=stage.index)
        view = RowView(json.loads(fields), self._vars)
        level = self._levels.by_origin[stage.index]
        return ForecastRow(new, view, level=level, is_group=True)

    async def _ready(
        self, stage: AnyStage, some: Sequence[tuple[ForecastRow, ForecastGroup]]
    ) -> list[ForecastRow]:
        """The groups with all that is known of their tasks."""
        rows = [row for row, _ in some]
        for row in rows:
            row.waits_for_others = stage.index in self._waiting
        await self._baseline.learn(rows)
        large = []
        assert stage.group is not None
        for row, group in some:
            row.guessed = bool(group.guessed)
            row.parked = stage if group.parked else None
            row.view.own |= {ROWS_COUNT: group.rows, ROWS_FAILED: group.failed, ROWS_JSON: ""}
            large_reason = why.TOO_LARGE if stage.asks else why.TOO_LARGE_FOR_FUNCTION
            reasons = {
                "failed": why.NOT_WHOLE,
                "incomplete": why.NOT_WHOLE,
                "large": large_reason,
                None: None,
            }
            refused = reasons[unusable(stage.group, group.rows, group.failed)]
            row.refused = why.WAITS if group.parked else refused
            if row.refused is not None:
                continue
            if group.need is not None:
                reason = self._baseline.why.passed_on(
                    stage, row, group.need, group.reason or why.NOT_YET
                )
                row.view.unknown[ROWS_JSON] = reason
                row.characters = group.characters
            if not stage.group.fits(group.rows, group.tokens):
                if self._does[stage.index].lets_in(row.view, stage):
                    large.append(row)
            elif group.need is None:
                held = self._scratch.members(stage.index, group.id)
                texts = sorted((id_order(one.id), one.text or "") for one in held)
                row.view.own[ROWS_JSON] = array([text for _, text in texts])
        if large:
            assert isinstance(stage, PlannedStage)
            self._kept_parts[stage.index] += await self._cut(stage, large)
        return rows

    def _unknown(
        self, stage: AnyStage, unassigned: UnassignedRows, known: int
    ) -> list[ForecastRow]:
        """One row that stands for groups not known yet: each may change, with a part, one that
        would be reused."""
        found = self._answers.of(stage)
        past = self._baseline.made.each.get(stage.name)
        least = 0 if known else 1
        further = min(max(round(past) - known if past is not None else 0, least), unassigned.rows)
        run = self._baseline.made.run if past is not None else None
        found.guess = Guess("groups", unassigned.need, float(known + further), run)
        found.exact = False
        reason = why.passed_on(unassigned.reason, unassigned.need)
        if unassigned.parked:
            to_known = 0
        else:
            to_known = unassigned.rows * known // (known + further)
        changed = min(found.reuse, to_known)
        parts = min(to_known, self._kept_parts[stage.index])
        after = self._answers.unsure_after(stage)
        before = found.reuse
        if changed:
            found.reuse -= changed
            found.asked(reason, unassigned.example, times=changed)
            for one in after:  # of the groups that change, and of what is made of them
                if one.stage.asks:
                    moved = min(one.reuse, ceil(one.reuse * changed / before))
                else:
                    moved = 0
                if moved:
                    one.reuse -= moved
                    one.asked(
                        why.upstream_changed(stage.name),
                        unassigned.example,
                        one.stage.replicas,
                        moved,
                    )
        found.parts += parts
        found.further += parts
        if not further:
            return []
        row = self._row(stage, unassigned.example, snapshot({}))
        row.times = further
        row.guessed = True
        rows = max(unassigned.rows // further, 1)
        row.view.own |= {ROWS_COUNT: rows, ROWS_FAILED: 0, ROWS_JSON: ""}
        row.view.unknown[ROWS_JSON] = reason
        characters = unassigned.characters // further
        parts = parts_of(stage, rows, characters // CHARACTERS_A_TOKEN)
        row.parked = stage if unassigned.parked else None
        row.refused = why.WAITS if unassigned.parked else None
        row.characters = characters // (parts + 1)
        row.parts = parts
        return [row]

    async def _cut(self, stage: PlannedStage, groups: Sequence[ForecastRow]) -> int:
        """Cuts groups too large for a call: what each is about, and its parts to be run. Gives
        parts with results."""
        tops: list[TreeNode] = []
        for number, group in enumerate(groups):
            members = self._scratch.members(stage.index, group.id)
            nodes = tree(((one.sort, one.tokens) for one in members), call_size(stage))
            top = next(nodes)
            for node in nodes:
                children = tuple(tuple(child) for child in top.children)
                self._scratch.put_part(ScratchPart(number, *top.id, top.rows, children))
                top = node
            tops.append(top)
        result = len(snapshot(dummy_answer(stage.shape)))  # characters of one that is not there yet
        for height in range(1, max(top.id.height for top in tops)):
            for parts in self._scratch.parts(height, _SOME):
                await self._look_parts_up(stage, parts, groups, result)
        for number, group in enumerate(groups):
            texts = self._values(number, tops[number].children)
            if texts is not None:
                group.view.own[ROWS_JSON] = array(texts)
            else:
                group.characters = result * len(tops[number].children)
                group.view.unknown.setdefault(
                    ROWS_JSON, self._baseline.why.reason(stage, group, b"")
                )
        return self._scratch.forget_parts() - sum(group.parts + group.in_batch for group in groups)

    def _values(self, group: int, parts: Sequence[Sequence[int]]) -> list[str] | None:
        """What parts of a group came to; None where that is not known of one of them."""
        values = self._scratch.values(group, parts)
        texts = [value for value in values if value is not None]
        return texts if len(texts) == len(values) else None

    async def _look_parts_up(
        self,
        stage: PlannedStage,
        parts: Sequence[ScratchPart],
        groups: Sequence[ForecastRow],
        result: int,
    ) -> None:
        """Counts parts of groups that would be asked, and keeps the results of those that were."""
        wanted: list[tuple[ScratchPart, ForecastRow, Prepared]] = []
        answers = self._answers
        scratch = self._scratch
        for part in parts:
            group = groups[part.group]
            node = NodeId(part.height, part.low, part.high, part.after)
            new = NewRow(
                Row(part_id(group.id, node), 0, {}), 0, b"", "", State.PENDING, origin=stage.index
            )
            row = ForecastRow(new, RowView(group.view.forms[None], self._vars), level=group.level)
            row.view.own |= {ROWS_COUNT: len(part.children) or part.rows, ROWS_FAILED: 0}
            if part.children:
                texts = self._values(part.group, part.children)
                characters = result * len(part.children)
            else:
                within = scratch.members(stage.index, group.id, part.low, part.high)
                held = list(islice(within, part.after, part.after + part.rows))
                known = sorted((id_order(one.id), one.text) for one in held if one.text is not None)
                texts = [text for _, text in known] if len(known) == len(held) else None
                characters = sum(one.characters + 1 for one in held)
            if texts is None:
                group.parts += 1
                row.view.own[ROWS_JSON] = ""
                answers.measure(stage, row, characters)
                continue
            row.view.own[ROWS_JSON] = array(texts)
            task = answers.prompt(stage, row)
            if task is not None:
                wanted.append((part, row, task))
            else:
                group.refused = why.MISSING_FIELD
        await self._baseline.learn([row for _, row, _ in wanted])
        for part, row, _ in wanted:
            row.stays = groups[part.group].stays
        prints = [task.fingerprint for _, _, task in wanted]
        earlier = await self._earlier(stage, wanted)
        in_batch = await answers.in_batch(prints)
        for part, row, task in wanted:
            of_group = groups[part.group]
            if task.fingerprint in earlier:
                scratch.part_came_to(part, earlier[task.fingerprint].value)
            elif task.fingerprint in in_batch:
                of_group.in_batch += 1
            elif self._baseline.left(stage, row, task.fingerprint) is not None:
                of_group.refused = self._baseline.why.left(stage, row)
            else:
                of_group.parts += 1
                answers.show(stage, row.id, task.messages)

    async def _earlier(
        self, stage: PlannedStage, wanted: Sequence[tuple[ScratchPart, ForecastRow, Prepared]]
    ) -> dict[bytes, EarlierResult]:
        """Returns the results of parts that count, by their fingerprints."""
        prints: dict[float, list[bytes]] = defaultdict(list)
        for _, row, task in wanted:
            prints[self._baseline.since(stage, row)].append(task.fingerprint)
        found: dict[bytes, EarlierResult] = {}
        for since, some in prints.items():
            found |= await self._answers.earlier(stage, some, since)
        return found


def parts_of(stage: AnyStage, rows: int, tokens: int) -> int:
    """About how many parts a group of so many rows and tokens is cut into; none where one call
    holds it."""
    if stage.group is None or not stage.group.reduces or stage.group.fits(rows, tokens):
        return 0
    assert isinstance(stage, PlannedStage)
    measured = min(rows, 20_000)  # they tell into how many parts still more would be cut
    members = (
        (place, tokens // rows)
        for place in sorted(member_hash(number) for number in range(measured))
    )
    return round((sum(1 for _ in tree(members, call_size(stage))) - 1) * rows / measured)
