"""Rows made from rows: children of lists, members of groups, and the first of equal rows (`dedupe`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, digest, member_hash, row_hash, snapshot
from agac.core.types import JSONValue, Row, RowId
from agac.engine.effects import ActiveRow, plain
from agac.engine.estimate import CHARACTERS_A_TOKEN
from agac.engine.invocation import InvocationRef
from agac.engine.stop_rules import StopSignal
from agac.plan.render import RowView
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.levels import Level, Levels, seen_after
from agac.spec.operations import Dedupe
from agac.spec.templates import INDEX, ITEM, SKIPPED
from agac.spec.workflow import Stage
from agac.store.records import Child, Children, DedupeCandidate, DerivedRows, Membership, NewRow
from agac.store.rows import DedupeRow, PriorTask, State, dedupe_page, prior_tasks, rows_of_keys
from agac.store.writer import Ledger

if TYPE_CHECKING:  # it loads the HTTP client, and reading commands need this module too
    from agac.engine.settle import Settler

# What is made of a row that came to its end: children of a list's items, a place in a group, a chance to be kept.


def inner(value: JSONValue | Mapping[str, JSONValue], path: Sequence[str]) -> JSONValue:
    """What stands in `value` at the end of a path of keys. Raises KeyError with the key that is not there."""
    found: object = value
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise KeyError(key)
        found = found[key]
    return found


MAX_CHILDREN = 100_000
"""Items of one list that are taken: their rows are stored in one transaction, together with the end of their parent."""


class DerivationFailed(Exception):
    """Nothing can be made of the row: the stage at which that shows, and the error."""

    def __init__(self, stage: AnyStage, error: RowError) -> None:
        super().__init__(error.message)
        self.stage, self.error = stage, error


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView(Stage):
    """How a stage that groups rows looks at one of them: with the eyes of a stage in its place that groups nothing.

    `answers` are the stages whose results a member brings along.
    """

    answers: tuple[str, ...] = ()

    @staticmethod
    def of(stage: Stage, stages: Mapping[str, Stage]) -> MemberView:
        """How `stage` looks at its members; `stages` are all of a plan's or a definition's, by name."""
        needed = [stages[need] for need in stage.needs]
        ancestors, rows_of = seen_after(needed, stages)
        return MemberView(
            name=stage.name,
            index=stage.index,
            needs=stage.needs,
            ancestors=ancestors,
            rows_of=rows_of,
            visibility=stage.visibility,
            answers=tuple(_answers(needed, stages)),
        )

    def text(self, sight: RowView) -> str:
        """The member as it stands in `${rows_json}`: its fields and the results that it brings, JSON."""
        limits, known = self.visibility, sight.known(self)
        data = {name: value for name, value in sight.data(self).items() if not (limits and limits.hides(name))}
        never = limits.never if limits else frozenset()
        brought = {name: plain(known[name]) for name in self.answers if name in known and name not in never}
        return snapshot({**data, **brought})


def _answers(needed: Sequence[Stage], stages: Mapping[str, Stage]) -> dict[str, None]:
    """The stages that ask a model and are followed, perhaps by way of others."""
    found: dict[str, None] = {}
    left = list(needed)
    while left:
        stage = left.pop(0)
        if stage.asks:
            found[stage.name] = None
        else:
            left += [stages[need] for need in stage.needs]
    return found


class RowDeriver:
    """What the stages of a plan make of rows, level by level. `ends` are the stages whose results are written."""

    def __init__(self, levels: Levels[AnyStage], ends: Collection[str] = ()) -> None:
        by_name = {stage.name: stage for stage in levels.stages}
        self._stages = levels.stages
        self.members = {
            stage.index: MemberView.of(stage, by_name)
            for stage in levels.stages
            if isinstance(stage, PlannedStage) and stage.group is not None
        }
        self._after = {
            level.maker.index: frozenset(maker.index for maker in level.makers)
            for level in levels.all
            if level.maker is not None and level.maker.makes == "rows"
        }
        self.to_ends = frozenset(
            stage.index for stage in levels.stages if stage.makes == "rows" and levels.leads_to(stage, ends)
        )
        """The functions whose lists stand in the place of a row also where results are written."""

    def made(
        self,
        level: Level[AnyStage],
        sight: RowView,
        row: NewRow,
        lists: Mapping[int, Sequence[Mapping[str, JSONValue]]],
        state: State,
        *,
        unknown: Collection[int] = (),
    ) -> DerivedRows:
        """All that is made of a row that went through, to this state. `lists` are the rows that functions gave, by
        their stages' positions: what follows such a function is made of those. What the stages at the positions
        `unknown` make of it is left out. Raises NotMade."""
        content = _content(sight)
        broods = self._of_lists(row.row.id, content, lists)
        groups: dict[int, Membership] = {}
        alike: dict[int, DedupeCandidate] = {}
        passed_on = frozenset[int]().union(*(self._after[index] for index in lists))
        for maker in level.makers:
            if maker.index in passed_on or maker.index in unknown:
                continue
            if maker.makes == "items":
                items = [snapshot({ITEM: item, INDEX: place}) for place, item in enumerate(_items(maker, sight))]
                broods[maker.index] = _brood(row.row.id, content, items)
            elif maker.makes == "groups":
                groups[maker.index] = self._membership(maker, sight, row.row.id)
            else:
                alike[maker.index] = _alike(maker, sight, content, state)
        return DerivedRows(row, broods, groups, alike)

    def _of_lists(
        self, row_id: RowId, content: str, lists: Mapping[int, Sequence[Mapping[str, JSONValue]]]
    ) -> dict[int, list[Child]]:
        found = {}
        for index, rows in lists.items():
            stage = self._stages[index]
            if len(rows) > MAX_CHILDREN:
                raise DerivationFailed(stage, _too_many(stage, "the function gave a list of", len(rows)))
            found[index] = _brood(row_id, content, [snapshot(dict(one)) for one in rows])
        apart = sorted(self.to_ends.intersection(lists))
        if len(apart) > 1:
            one, other = (self._stages[index] for index in apart[:2])
            message = f"its function and that of {one.name!r} both gave lists, so that no row has the results of both"
            raise DerivationFailed(other, _unfit(other, f"{message}; let one of them follow the other"))
        return found

    def waits_for(self, maker: AnyStage, sight: RowView) -> str | None:
        """The name of what is not known yet and decides what the stage makes of a row; None where all is known."""
        if not sight.unknown:
            return None
        eyes = self.members.get(maker.index, maker)
        return next((name for path in _paths(maker) if (name := _unknown_in(path, eyes, sight)) is not None), None)

    def lacking(self, level: Level[AnyStage], sight: RowView, row: NewRow) -> DerivedRows:
        """What is made of a row that failed: groups know that they lack it, as far as it is known which."""
        groups: dict[int, Membership] = {}
        for maker in level.makers:
            if maker.makes == "groups":
                try:
                    groups[maker.index] = self._membership(maker, sight, row.row.id, failed=True)
                except DerivationFailed:
                    continue  # what it is grouped by is not known: it is counted among the failed rows alone
        return DerivedRows(row, groups=groups)

    def _membership(self, stage: AnyStage, sight: RowView, row_id: RowId, *, failed: bool = False) -> Membership:
        member = self.members[stage.index]
        assert stage.group is not None
        values = [_value(stage, path, sight, member) for path in stage.group.fields]
        fields: dict[str, JSONValue] = {}
        for path, value in zip(stage.group.fields, values, strict=True):
            _put(fields, path, value)
        size = 0
        if stage.group.max_tokens is not None and not failed:
            size = len(member.text(sight)) // CHARACTERS_A_TOKEN + 1
        return Membership(_group_id(values), snapshot(fields), member_hash(row_id), size, failed)


def _paths(maker: AnyStage) -> Sequence[Sequence[str]]:
    """What the stage looks at in a row to say what it makes of it."""
    if maker.explode is not None:
        return [maker.explode]
    if maker.group is not None:
        return maker.group.fields
    return maker.operation.fields if isinstance(maker, LocalStage) and isinstance(maker.operation, Dedupe) else ()


def _unknown_in(path: Sequence[str], eyes: AnyStage | MemberView, sight: RowView) -> str | None:
    """The stage on whose answer it hangs what a path names; None where that is known."""
    name = path[0] if path[0] in eyes.ancestors or path[0] in (ITEM, INDEX) else eyes.rows_of
    if name not in sight.unknown:
        return None
    return next(iter(sight.unknown)) if name in (ITEM, INDEX) else name


def _brood(parent: RowId, content: str, items: Sequence[str]) -> list[Child]:
    return [Child(f"{parent}/{place}", row_hash(f"{content}:{text}"), text) for place, text in enumerate(items)]


def _content(sight: RowView) -> str:
    """Stands for all that is seen of a row."""
    return digest(
        snapshot([list(sight.forms.values()), {name: plain(value) for name, value in sight.results.items()}])
    ).hex()


def _alike(stage: AnyStage, sight: RowView, content: str, state: State) -> DedupeCandidate:
    assert isinstance(stage, LocalStage)
    assert isinstance(stage.operation, Dedupe)
    values = [_value(stage, path, sight, stage) for path in stage.operation.fields]
    return DedupeCandidate(digest(canonical(values)), bytes.fromhex(content), state)


def _items(stage: AnyStage, sight: RowView) -> list[JSONValue]:
    """The list whose items become rows; none where what holds it was skipped."""
    assert stage.explode is not None
    named = ".".join(stage.explode)
    value = _value(stage, stage.explode, sight, stage, none=[])
    if not isinstance(value, list):
        raise DerivationFailed(stage, _unfit(stage, f"{named} is {_kind(value)}, not a list"))
    if len(value) > MAX_CHILDREN:
        raise DerivationFailed(stage, _too_many(stage, f"{named} is a list of", len(value)))
    return value


def _value(
    stage: AnyStage, path: Sequence[str], sight: RowView, eyes: AnyStage | MemberView, none: JSONValue = None
) -> JSONValue:
    """What a path names for a row: a result upstream, or a field. `none` where the stage that it names was skipped."""
    if eyes.rows_of not in sight.forms:
        raise DerivationFailed(stage, _unfit(stage, f"the row did not come as far as stage {eyes.rows_of!r}"))
    results = sight.known(eyes)
    whole: Mapping[str, JSONValue] = results if path[0] in results else sight.data(eyes)
    if whole.get(path[0]) is SKIPPED:
        return none
    try:
        return inner(whole, path)
    except KeyError as missing:
        raise DerivationFailed(stage, _unfit(stage, f"{'.'.join(path)}: there is no {missing.args[0]!r}")) from None


def _put(fields: dict[str, JSONValue], path: Sequence[str], value: JSONValue) -> None:
    for key in path[:-1]:
        within = fields.setdefault(key, {})
        assert isinstance(within, dict)
        fields = within
    fields[path[-1]] = value


def _group_id(values: Sequence[JSONValue]) -> RowId:
    """Text and whole numbers stand for themselves; everything else as JSON of the list of values."""
    if not values:
        return "all"
    (value, *others) = values
    if not others and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62:
        return value
    if not others and isinstance(value, str) and not value.startswith("["):
        return value
    return canonical(list(values))


def _kind(value: JSONValue) -> str:
    if value is None:
        return "null"
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "an object"}
    return words.get(type(value), type(value).__name__)


def _unfit(stage: AnyStage, message: str) -> RowError:
    return RowError(ErrorType.INVALID_ROW, f"stage {stage.name!r}: {message}")


def _too_many(stage: AnyStage, what: str, count: int) -> RowError:
    return _unfit(stage, f"{what} {count:,} rows; {MAX_CHILDREN:,} are the most that one row may make")


# Of rows that are alike the first one goes on (`dedupe`): decided once all of them are there.

PAGE = 512
_LAST_KEY = 1 << 62

Order = tuple[int, ...]
"""Where a row stands: the position in the input of the row that it descends from, then the places of those between."""


class Deduplicator:
    """Decides for one stage which rows go on. What was decided before and still holds is not written again."""

    def __init__(
        self, places: InvocationRef, ledger: Ledger, settler: Settler, control: StopSignal, stage: AnyStage
    ) -> None:
        assert isinstance(stage, LocalStage)
        assert isinstance(stage.operation, Dedupe)
        self._db, self._run, _ = places
        self._ledger, self._settler, self._control, self._stage = ledger, settler, control, stage
        self._fields = stage.operation.body()["dedupe"]

    async def decide(self) -> None:
        """All rows that came to the stage, some hundred at a time; more than that which are alike are read twice."""
        after = (b"", 0)
        while self._control.stop is None and (page := await self._page(after)):
            last = page[-1].hash
            whole = page if len(page) < PAGE else [row for row in page if row.hash != last]
            if whole:
                orders = await self._orders([row.key for rows in _repeated(whole) for row in rows])
                firsts = {digest: _first(list(rows), orders) for digest, rows in groupby(whole, attrgetter("hash"))}
                await self._write(whole, firsts)
                after = (whole[-1].hash, _LAST_KEY)
            else:
                await self._many(last)
                after = (last, _LAST_KEY)

    async def _page(self, after: tuple[bytes, int]) -> list[DedupeRow]:
        return await dedupe_page(self._db, self._run, self._stage.index, after, PAGE)

    async def _many(self, digest: bytes) -> None:
        """So many are alike that they are not held at once."""
        first: tuple[Order, DedupeRow] | None = None
        async for rows in self._alike(digest):
            orders = await self._orders([row.key for row in rows])
            own = _first(rows, orders)
            if first is None or orders[own.key] < first[0]:
                first = orders[own.key], own
        assert first is not None
        async for rows in self._alike(digest):
            await self._write(rows, {digest: first[1]})

    async def _alike(self, digest: bytes):  # type: ignore[no-untyped-def]
        key = 0
        while rows := [row for row in await self._page((digest, key)) if row.hash == digest]:
            yield rows
            key = rows[-1].key

    async def _orders(self, keys: Sequence[int]) -> dict[int, Order]:
        """Where these rows stand."""
        if not keys:
            return {}
        rows = await rows_of_keys(self._db, keys)
        above = await self._orders(sorted({row.parent_key for row in rows.values() if row.parent_key is not None}))
        return {
            key: (row.ordinal or 0,) if row.parent_key is None else (*above[row.parent_key], row.place or 0)
            for key, row in rows.items()
        }

    async def _write(self, rows: Sequence[DedupeRow], firsts: dict[bytes, DedupeRow]) -> None:
        changed = [(row, row.key == firsts[row.hash].key) for row in rows if self._is_new(row, firsts[row.hash])]
        prior = await prior_tasks(self._db, [row.key for row, _ in changed])
        for row, goes_on in changed:
            flight = self._flight(row, prior.get(row.key, {}))
            if goes_on:
                self._settler.local_done(flight, self._stage)
                self._ledger.batch.broods.append(
                    Children(row.key, self._stage.index, [Child(row.id, row.content, "{}")])
                )
                self._settler.row_moved(flight, row.state, State(row.came_as), row.result_id)
            else:
                note = canonical({"dedupe": self._fields, "first": firsts[row.hash].id, "values": {}})
                self._settler.task_dropped(flight, self._stage, note)
                self._ledger.batch.broods.append(Children(row.key, self._stage.index, ()))
                self._settler.row_moved(flight, row.state, State.FILTERED, row.result_id)
        if changed:
            await self._ledger.durable()

    def _is_new(self, row: DedupeRow, first: DedupeRow) -> bool:
        """Whether what becomes of the row is not what is stored, its note of who is first included."""
        if row.key != first.key:
            return row.state != State.FILTERED or self._is_new(first, first)
        return row.state == State.FILTERED or row.child_state in (None, State.GONE) or row.child_hash != row.content

    def _flight(self, row: DedupeRow, prior: dict[int, PriorTask]) -> ActiveRow:
        return ActiveRow(NewRow(Row(row.id, 0, {}), 0, b"", "", State(row.state), row.key, row.origin), prior)


def _repeated(rows: Sequence[DedupeRow]) -> list[list[DedupeRow]]:
    found = [list(own) for _, own in groupby(rows, attrgetter("hash"))]
    return [own for own in found if len(own) > 1]


def _first(rows: Sequence[DedupeRow], orders: dict[int, Order]) -> DedupeRow:
    return rows[0] if len(rows) == 1 else min(rows, key=lambda row: orders[row.key])
