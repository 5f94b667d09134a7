"""What is made of a row that came to its end: children of a list's items, a place in a group, a
chance to be kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agac.core.keys import canonical, digest, member_hash, row_hash, snapshot
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import JSONValue, RowId
from agac.engine.walk.effects import plain
from agac.plan.render import RowView
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.graph import Level, Levels, amended_by, amended_name, seen_after
from agac.spec.operations import Dedupe, Join
from agac.spec.templates import INDEX, ITEM, SKIPPED
from agac.spec.workflow import Stage
from agac.store.records import Child, DedupeCandidate, DerivedRows, Membership, NewRow
from agac.store.rows import State


def inner(value: JSONValue | Mapping[str, JSONValue], path: Sequence[str]) -> JSONValue:
    """What stands in `value` at the end of a path of keys. Raises KeyError with the key that is
    not there."""
    found: object = value
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise KeyError(key)
        found = found[key]
    return found


MAX_CHILDREN = 100_000
"""The most items of one list: their rows are stored in one transaction, together with the end of
their parent."""


class DerivationFailed(Exception):
    """Nothing can be made of a row."""

    def __init__(self, stage: AnyStage, message: str) -> None:
        """`stage` is the one that shows it; `message` says why."""
        super().__init__(message)
        self.stage = stage
        self.message = message


@dataclass(frozen=True, slots=True)
class MemberView:
    """How a stage that groups rows looks at one of them."""

    stage: Stage
    """What it sees of a member: a stage in its place that groups nothing."""
    answers: tuple[str, ...] = ()
    """The stages whose results a member brings along: for a function all upstream, as for a row."""

    @staticmethod
    def of(stage: Stage, stages: Mapping[str, Stage]) -> MemberView:
        """Returns how `stage` looks at its members; `stages` are all of a plan or a definition, by
        name."""
        needed = [stages[need] for need in stage.needs]
        ancestors, rows_of = seen_after(needed, stages, stage.name)
        answers = dict.fromkeys(name for name in ancestors if stages[name].gives_answer)
        if stage.asks:
            answers = _nearest_answers(needed, stages)
        seeing = Stage(
            name=stage.name,
            index=stage.index,
            needs=stage.needs,
            ancestors=ancestors,
            rows_of=rows_of,
            visibility=stage.visibility,
            amended=amended_by(ancestors, stages),
        )
        return MemberView(seeing, tuple(answers))

    def text(self, view: RowView) -> str:
        """Returns a member as it is in `${rows_json}`: JSON of its fields and of the results that
        it brings."""
        limits = self.stage.visibility
        known = view.known(self.stage)
        data = {
            name: value
            for name, value in view.data(self.stage).items()
            if not (limits and limits.hides(name))
        }
        never = limits.never if limits else frozenset()
        brought = {
            name: plain(known[name]) for name in self.answers if name in known and name not in never
        }
        return snapshot({**data, **brought})


def _nearest_answers(needed: Sequence[Stage], stages: Mapping[str, Stage]) -> dict[str, None]:
    """Returns the names of the nearest stages upstream that ask a model, or join results; stages
    that ask none may be between."""
    answers = dict[str, None]()
    left = [*needed]
    while left:
        upstream = left.pop(0)
        if upstream.asks or isinstance(upstream.operation, Join):
            answers[amended_name(upstream.name, stages)] = None
        else:
            left += [stages[need] for need in upstream.needs]
    return answers


class RowDeriver:
    """Makes the rows that the stages of a plan derive from others, level by level."""

    def __init__(self, levels: Levels[AnyStage], ends: Collection[str] = ()) -> None:
        """`ends` are the stages whose results are written."""
        by_name = {stage.name: stage for stage in levels.stages}
        self._stages = levels.stages
        self.members = {
            stage.index: MemberView.of(stage, by_name)
            for stage in levels.stages
            if stage.group is not None
        }
        self._after = {
            level.maker.index: frozenset(maker.index for maker in level.makers)
            for level in levels.all
            if level.maker is not None and level.maker.makes == "rows"
        }
        self.to_ends = frozenset(
            stage.index
            for stage in levels.stages
            if stage.makes == "rows" and levels.leads_to(stage, ends)
        )
        """The functions whose lists replace a row where results are written, too."""

    def made(
        self,
        level: Level[AnyStage],
        view: RowView,
        row: NewRow,
        lists: Mapping[int, Sequence[Mapping[str, JSONValue]]],
        state: State,
        *,
        unknown: Collection[int] = (),
    ) -> DerivedRows:
        """Makes all that is derived from a row that ended in this state. `lists` are the rows that
        functions gave, by their stages' positions: what follows such a function is made of those.
        What the stages at the positions `unknown` make of it is left out. Raises DerivationFailed.
        """
        results = {name: plain(value) for name, value in view.results.items()}
        # the hash of all that is seen of the row
        content = digest(snapshot([list(view.forms.values()), results])).hex()
        children: dict[int, list[Child]] = {}
        for index, rows in lists.items():
            _check_size(self._stages[index], "the function gave a list of", len(rows))
            items = [snapshot(dict(fields)) for fields in rows]
            children[index] = _children(row.row.id, content, items)
        self._refuse_two_lists(lists)
        groups: dict[int, Membership] = {}
        alike: dict[int, DedupeCandidate] = {}
        passed_on = frozenset[int]().union(*(self._after[index] for index in lists))
        for maker in level.makers:
            if maker.index in passed_on or maker.index in unknown:
                continue
            if maker.makes == "items":
                items = [
                    snapshot({ITEM: item, INDEX: place})
                    for place, item in enumerate(_items(maker, view))
                ]
                children[maker.index] = _children(row.row.id, content, items)
            elif maker.makes == "groups":
                groups[maker.index] = self._membership(maker, view, row.row.id)
            else:
                values = [_value(maker, path, view, maker) for path in _paths(maker)]
                alike[maker.index] = DedupeCandidate(
                    digest(canonical(values)), bytes.fromhex(content), state
                )
        return DerivedRows(row, children, groups, alike)

    def _refuse_two_lists(self, lists: Collection[int]) -> None:
        """Raises DerivationFailed if the lists of two functions would replace the row where results
        are written."""
        to_ends = sorted(self.to_ends.intersection(lists))
        if len(to_ends) > 1:
            first, second = (self._stages[index] for index in to_ends[:2])
            message = (
                f"its function and that of {first.name!r} both gave lists, so that no row "
                "has the results of both"
            )
            raise DerivationFailed(second, f"{message}; let one of them follow the other")

    def waits_for(self, maker: AnyStage, view: RowView) -> str | None:
        """Returns the name of a result that is not known yet and decides what the stage makes of a
        row; None: all is known."""
        if not view.unknown:
            return None
        member = self.members.get(maker.index)
        looks = maker if member is None else member.stage
        for path in _paths(maker):
            made = path[0] in (ITEM, INDEX)
            name = path[0] if made or path[0] in looks.ancestors else looks.rows_of
            unknown = view.unknown_of(looks, [name] if name else ())
            if unknown is not None:
                return next(iter(view.unknown)) if made else unknown
        return None

    def lacking(self, level: Level[AnyStage], view: RowView, row: NewRow) -> DerivedRows:
        """Makes what is derived from a failed row: tells the groups that it would have joined that
        it is missing."""
        groups: dict[int, Membership] = {}
        for maker in level.makers:
            if maker.makes == "groups":
                try:
                    groups[maker.index] = self._membership(maker, view, row.row.id, failed=True)
                except DerivationFailed:
                    # its group is not known: it is only counted among the failed rows
                    continue
        return DerivedRows(row, groups=groups)

    def _membership(
        self, stage: AnyStage, view: RowView, row_id: RowId, *, failed: bool = False
    ) -> Membership:
        """Makes the membership of a row in its group."""
        member = self.members[stage.index]
        fields = dict[str, JSONValue]()
        values = list[JSONValue]()
        assert stage.group is not None
        for path in stage.group.fields:
            values.append(_value(stage, path, view, member.stage))
            within = fields
            for key in path[:-1]:
                deeper = within.setdefault(key, {})
                assert isinstance(deeper, dict)
                within = deeper
            within[path[-1]] = values[-1]
        size = 0
        if stage.group.max_tokens is not None and not failed:
            size = len(member.text(view)) // CHARACTERS_A_TOKEN + 1
        return Membership(_group_id(values), snapshot(fields), member_hash(row_id), size, failed)


def _paths(maker: AnyStage) -> Sequence[Sequence[str]]:
    """Returns the paths of all that decides what a stage makes of a row."""
    if maker.explode is not None:
        return [maker.explode]
    if maker.group is not None:
        return maker.group.fields
    if isinstance(maker, LocalStage) and isinstance(maker.operation, Dedupe):
        return maker.operation.fields
    return ()


def _children(parent: RowId, content: str, items: Sequence[str]) -> list[Child]:
    """Makes the children of a row with this content, of their data as JSON."""
    return [
        Child(f"{parent}/{place}", row_hash(f"{content}:{text}"), text)
        for place, text in enumerate(items)
    ]


def _items(stage: AnyStage, view: RowView) -> list[JSONValue]:
    """Returns the list whose items become rows; it is empty if the stage that gives it was
    skipped."""
    assert stage.explode is not None
    named = ".".join(stage.explode)
    value = _value(stage, stage.explode, view, stage, none=[])
    if not isinstance(value, list):
        words = {
            bool: "true or false",
            int: "a number",
            float: "a number",
            str: "text",
            dict: "an object",
        }
        kind = "null" if value is None else words.get(type(value), type(value).__name__)
        raise DerivationFailed(stage, f"{named} is {kind}, not a list")
    _check_size(stage, f"{named} is a list of", len(value))
    return value


def _value(
    stage: AnyStage,
    path: Sequence[str],
    view: RowView,
    looks: Stage,
    none: JSONValue = None,
) -> JSONValue:
    """Returns the value at a path for a row: a result upstream, or a field. `none` if the stage
    that it names was skipped."""
    if looks.rows_of not in view.forms:
        raise DerivationFailed(stage, f"the row did not come as far as stage {looks.rows_of!r}")
    results = view.known(looks)
    whole: Mapping[str, JSONValue] = results if path[0] in results else view.data(looks)
    if whole.get(path[0]) is SKIPPED:
        return none
    try:
        return inner(whole, path)
    except KeyError as missing:
        raise DerivationFailed(
            stage, f"{'.'.join(path)}: there is no {missing.args[0]!r}"
        ) from None


def _group_id(values: Sequence[JSONValue]) -> RowId:
    """Returns the id of a group: a single text or whole number itself, anything else as JSON of
    the list of values."""
    if not values:
        return "all"
    if len(values) == 1:
        value = values[0]
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number and isinstance(value, int) and abs(value) < 1 << 62:
            return value
        if isinstance(value, str) and not value.startswith("["):
            return value
    return canonical(list(values))


def _check_size(stage: AnyStage, what: str, count: int) -> None:
    """Raises DerivationFailed if one row would make too many."""
    if count > MAX_CHILDREN:
        raise DerivationFailed(
            stage, f"{what} {count:,} rows; {MAX_CHILDREN:,} are the most that one row may make"
        )
