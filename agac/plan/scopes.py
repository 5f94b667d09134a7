"""What each stage may name: fields of the rows that come to it, and results of earlier stages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from operator import contains
from typing import NamedTuple

from agac.data.sources import FirstRows
from agac.spec.field_shapes import SINGLE, TEXT, UNKNOWN, WHOLE_NUMBER, FieldShape
from agac.spec.graph import is_hidden, seen_after
from agac.spec.operations import Group, Python, Rename, Select
from agac.spec.templates import INDEX, ITEM, ROW_JSON, ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.spec.workflow import Workflow, WrittenStage

GROUP_NAMES = (ROWS_JSON, ROWS_COUNT, ROWS_FAILED)
"""agac's own names in the prompt of a stage that is run once per group."""


class Item(NamedTuple):
    """An item of a list that `explode` makes a row of."""

    shape: FieldShape
    """What is known of the item."""
    list_field: str | None
    """The field of the row that is the list; None: the list is inside a field or a result."""


@dataclass(frozen=True)
class Fields:
    """The fields of rows."""

    shapes: Mapping[str, FieldShape]
    """The known fields in order, with what is known of their values."""
    open: bool = False
    """True if rows may have other fields, too."""
    made: frozenset[str] = frozenset()
    """The fields that agac made of items."""
    first: FirstRows | None = None
    """The first rows of the input, as long as rows still have its fields."""

    @cached_property
    def typed(self) -> Mapping[str, FieldShape]:
        """The shapes that tell more of a value than that it is a single one."""
        return {name: shape for name, shape in self.shapes.items() if shape != SINGLE}

    def with_items(self, items: Sequence[Item]) -> Fields:
        """Returns the fields of a row made of an item; `items` has one for each `explode`."""
        if not items:
            return self
        lists = {item.list_field for item in items}
        kept = {name: shape for name, shape in self.shapes.items() if name not in lists}
        shapes = {**kept, ITEM: items[-1].shape, INDEX: WHOLE_NUMBER}
        return replace(self, shapes=shapes, made=self.made | {ITEM, INDEX})


OPEN = Fields({}, open=True)
"""The fields of rows that may have any."""


def input_fields(
    workflow: Workflow, columns: tuple[str, ...] | None, first: FirstRows | None
) -> Fields:
    """Returns the fields of the input's rows. `columns` are the declared ones; None: unknown."""
    if columns is None:
        return Fields({}, open=True, first=first)
    return Fields(dict.fromkeys(columns, _column_shape(workflow)), first=first)


def _column_shape(workflow: Workflow) -> FieldShape:
    if workflow.input.sql is not None:
        return UNKNOWN  # a statement may make anything
    match workflow.input.format:
        case "csv" | "tsv" | "txt" | "files":
            return TEXT
        case "sqlite" | "xlsx":
            return SINGLE
    return UNKNOWN


class Earlier(Mapping[str, WrittenStage]):
    """The stages whose results a stage may name, by name.

    No dict is made of them: thousands of stages each see thousands of others. The mapping of all
    stages may grow meanwhile."""

    def __init__(
        self, names: Sequence[str], stages: Mapping[str, WrittenStage], viewer: str
    ) -> None:
        """`names` are the upstream stages that the stage `viewer` sees, hidden ones included."""
        self.upstream = frozenset(names)
        self._names = names
        self._stages = stages
        self._viewer = viewer

    def __contains__(self, name: object) -> bool:
        return name in self.upstream and not is_hidden(str(name), self._viewer)

    def __getitem__(self, name: str) -> WrittenStage:
        if name not in self:
            raise KeyError(name)
        return self._stages[name]

    def __iter__(self) -> Iterator[str]:
        if not any(map(contains, self._names, repeat("/"))):  # none is hidden
            return iter(self._names)
        return (name for name in self._names if not is_hidden(name, self._viewer))

    def __len__(self) -> int:
        return len([*iter(self)])


class Unsure(NamedTuple):
    """The stages after which rows may differ from those of the input, by name."""

    dropping: frozenset[str] = frozenset()
    """Stages that may let rows leave."""
    renaming: frozenset[str] = frozenset()
    """Stages that may give fields other names."""


NOTHING_UNSURE = Unsure()


@dataclass(frozen=True, slots=True)
class StageScope:
    """What a stage, or a member of its group, may name."""

    workflow: Workflow
    stage: WrittenStage
    earlier: Mapping[str, WrittenStage]
    """The stages whose results it may name."""
    fields: Fields
    """The fields that it may name."""
    every_stage: Mapping[str, WrittenStage]
    """All stages of the workflow by name."""
    incoming: StageScope | None = None
    """The scope of the rows that come to a stage which makes others of them; None: they are those
    that it works on."""
    unsure: Unsure = NOTHING_UNSURE

    @property
    def own_names(self) -> tuple[str, ...]:
        """agac's own names in the stage's texts."""
        return (ROW_JSON,) if self.stage.group is None else GROUP_NAMES

    @property
    def rows(self) -> StageScope:
        """The scope of the rows that come to the stage: those of the group's members, if it is run
        once per group."""
        if self.stage.group and self.incoming:
            return self.incoming
        return self

    def has(self, name: str) -> bool:
        """True if rows have a field or a result of this name."""
        return name in self.earlier or name in self.fields.shapes

    def names(self, *more: str) -> tuple[str, ...]:
        """Returns the names of fields and of all stages, and `more`.

        They are the same at each stage, so that `nearest` is fast; `Named` tells it which of them
        count."""
        return tuple(dict.fromkeys((*self.fields.shapes, *self.every_stage, *more)))

    def label_fault(self, name: str) -> str | None:
        """Returns the message for a name of a column of labels, which no stage sees; None: it is
        none."""
        if name not in self.workflow.labels or self.rows.has(name) or self.has(name):
            return None
        upstream = self.rows.earlier.values()
        if any(isinstance(stage.operation, Python) for stage in upstream):
            return None  # functions may make fields of any name
        return (
            f"{name!r} holds labels (`expect`), which no stage sees; compare answers with "
            "them by `agac eval`"
        )

    def first_lacking(self, path: Sequence[str], *, same_names: bool = False) -> FirstRows | None:
        """Returns the first rows of the input if none of them has a value at `path` and each of
        them comes to the stage; None otherwise.

        `same_names`: only if fields surely have the names that they have in the input."""
        first = self.rows.fields.first
        if first is None or self.stage.guard is not None or not first.lack(path):
            return None
        earlier = self.rows.earlier
        upstream = earlier.upstream if isinstance(earlier, Earlier) else frozenset(earlier)
        if not upstream.isdisjoint(self.unsure.dropping):
            return None
        if same_names and not upstream.isdisjoint(self.unsure.renaming):
            return None
        return first

    def shape(self, path: tuple[str, ...]) -> FieldShape:
        """Returns what is known of the value at the end of a path into a result or a field."""
        if path[0] not in self.earlier:
            return self.fields.shapes.get(path[0], UNKNOWN).inside(path[1:])
        body = self.earlier[path[0]].shape
        if body is None:
            return TEXT
        return FieldShape(body).inside(path[1:])


@dataclass(frozen=True, slots=True)
class Named(Collection[str]):
    """The names that a stage may use: its fields, results, and `more`."""

    scope: StageScope
    more: Collection[str] = ()

    def __contains__(self, name: object) -> bool:
        return name in self.scope.fields.shapes or name in self.scope.earlier or name in self.more

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.scope.fields.shapes, *self.scope.earlier, *self.more)))

    def __len__(self) -> int:
        return len([*iter(self)])


def stage_scopes(workflow: Workflow, rows: Fields) -> Iterator[StageScope]:
    """Yields what each stage sees, in the order in which a row meets them; `rows` are the fields
    of the input's rows."""
    scopes = _Scopes(workflow, rows)
    for stage in workflow.stages:
        yield scopes.next_scope(stage)


class _Scopes:
    """Makes the scopes of a workflow's stages, one after the other."""

    def __init__(self, workflow: Workflow, rows: Fields) -> None:
        self._workflow = workflow
        self._rows = rows
        self._every_stage = {stage.name: stage for stage in workflow.stages}
        self._unsure = _unsure(workflow)
        self._stages: dict[str, WrittenStage] = {}
        """The stages whose scopes were made."""
        self._changed: dict[str, Fields] = {}
        """The fields of rows after each stage that changes them."""
        self._items: dict[str, Item] = {}
        """What each stage with `explode` makes rows of."""
        self._groups: dict[str, Fields] = {}
        """The fields of the groups that each stage with `group_by` makes."""

    def next_scope(self, stage: WrittenStage) -> StageScope:
        """Makes the scope of the stage that follows those before it."""
        if stage.group is not None:
            scope = self._group_scope(stage, stage.group)
        else:
            scope = self._row_scope(stage, stage.ancestors, stage.rows_of)
            if stage.explode is not None:
                scope = self._item_scope(stage, stage.explode, scope)
        self._stages[stage.name] = stage
        changed = _fields_after(stage, scope.fields)
        if changed is not None:
            self._changed[stage.name] = changed
        return scope

    def _row_scope(
        self, stage: WrittenStage, ancestors: Sequence[str], rows_of: str | None
    ) -> StageScope:
        """Makes the scope of rows that come to the stage after `ancestors`; the stage `rows_of`
        changed their fields last."""
        earlier = Earlier(ancestors, self._every_stage, stage.name)
        upstream = earlier.upstream
        counted: set[str] = set()  # stages whose items the fields have already
        if rows_of is None:
            groups = (fields for name, fields in self._groups.items() if name in upstream)
            fields = next(groups, self._rows)
        else:
            fields = self._changed[rows_of]
            if self._items:
                counted = {rows_of, *self._stages[rows_of].ancestors}
        items = [
            item for name, item in self._items.items() if name in upstream and name not in counted
        ]
        return self._scope(stage, earlier, fields.with_items(items))

    def _group_scope(self, stage: WrittenStage, group: Group) -> StageScope:
        """Makes the scope of a stage that is run once per group."""
        needs = [self._stages[name] for name in stage.needs if name in self._stages]
        members = self._row_scope(stage, *seen_after(needs, self._stages, stage.name))
        shapes = {}  # the fields that members are grouped by, each at its path in a member
        for name in dict.fromkeys(path[0] for path in group.fields):
            inner = [path[1:] for path in group.fields if path[0] == name]
            shapes[name] = members.shape((name,)).limited(inner)
        self._groups[stage.name] = Fields(shapes)
        return self._scope(stage, {}, self._groups[stage.name], members)

    def _item_scope(
        self, stage: WrittenStage, list_path: tuple[str, ...], rows: StageScope
    ) -> StageScope:
        """Makes the scope of a stage that works on the items of a list in each of the `rows`."""
        item = _item(list_path, rows)
        self._items[stage.name] = item
        return self._scope(stage, rows.earlier, rows.fields.with_items([item]), rows)

    def _scope(
        self,
        stage: WrittenStage,
        earlier: Mapping[str, WrittenStage],
        fields: Fields,
        incoming: StageScope | None = None,
    ) -> StageScope:
        return StageScope(
            self._workflow, stage, earlier, fields, self._every_stage, incoming, self._unsure
        )


def _unsure(workflow: Workflow) -> Unsure:
    dropping = frozenset(stage.name for stage in workflow.stages if stage.may_drop)
    renaming = frozenset(
        stage.name for stage in workflow.stages if isinstance(stage.operation, Rename | Python)
    )
    return Unsure(dropping, renaming)


def _fields_after(stage: WrittenStage, fields: Fields) -> Fields | None:
    """Returns the fields of rows after a stage that changes them; None: it does not."""
    match stage.operation:
        case Select(names):
            kept = {name: fields.shapes.get(name, UNKNOWN) for name in names}
            return Fields(kept, made=fields.made & kept.keys(), first=fields.first)
        case Rename(new_names):
            renamed = {new_names.get(name, name): shape for name, shape in fields.shapes.items()}
            if fields.open:
                renamed |= {name: UNKNOWN for name in new_names.values() if name not in renamed}
            return replace(fields, shapes=renamed, made=fields.made - new_names.keys())
        case Python():
            return OPEN
    return None


def _item(list_path: tuple[str, ...], rows: StageScope) -> Item:
    """Returns the items of the list at this path in rows."""
    exploded = rows.shape(list_path)
    kinds = exploded.kinds()
    surely_no_list = kinds and "array" not in kinds
    shape = UNKNOWN if surely_no_list else exploded.inside(["0"])
    is_field = len(list_path) == 1 and list_path[0] not in rows.earlier
    return Item(shape, list_path[0] if is_field else None)
