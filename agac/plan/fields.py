"""The fields of a row as each stage of a workflow sees them, as far as files tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agac.spec.fieldshapes import SINGLE, TEXT, UNKNOWN, WHOLE_NUMBER, FieldShape
from agac.spec.grouping import Group
from agac.spec.levels import seen_after
from agac.spec.operations import Python, Rename, Select
from agac.spec.template import INDEX, ITEM
from agac.spec.workflow import Workflow, WrittenStage

TEXT_FORMATS = ("csv", "tsv", "txt", "files")
"""Formats of inputs in which every field is text."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of rows: `shapes` are those that are known, in their order; `open`: rows may have any other. `made`
    are those that agac gave to rows that it made of items."""

    shapes: Mapping[str, FieldShape]
    open: bool = False
    made: frozenset[str] = frozenset()

    def with_item(self, item: FieldShape, own: str | None) -> Fields:
        """The fields of a row that is made of an item of a list, which stood in `own` if that is one of the row's."""
        kept = {name: shape for name, shape in self.shapes.items() if name != own}
        shapes = {**kept, ITEM: item, INDEX: WHOLE_NUMBER}
        return Fields(shapes, self.open, self.made | {ITEM, INDEX})

    def selected(self, names: Iterable[str]) -> Fields:
        """Those with these names, and no others."""
        kept = tuple(names)
        return Fields({name: self.shapes.get(name, UNKNOWN) for name in kept}, made=self.made & frozenset(kept))

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """The same with other names: old name → new one."""
        new = {names.get(name, name): shape for name, shape in self.shapes.items()}
        if self.open:
            new |= {name: UNKNOWN for name in names.values() if name not in new}
        return Fields(new, self.open, self.made - names.keys())


OPEN = Fields({}, open=True)
"""Rows of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Sees:
    """What a stage, or a group of a member, may name: results of the stages `earlier`, and fields. `incoming` is the
    same of the rows that come to a stage that makes others of them; None: they are those that it works on."""

    earlier: Mapping[str, WrittenStage]
    fields: Fields
    incoming: Sees | None = None

    def shape(self, path: tuple[str, ...]) -> FieldShape:
        """What is known of what stands at the end of a way: into a result, or into a field."""
        if path[0] in self.earlier:
            body = self.earlier[path[0]].shape
            return TEXT if body is None else FieldShape(body).inside(path[1:])
        return self.fields.shapes.get(path[0], UNKNOWN).inside(path[1:])


def input_fields(workflow: Workflow, columns: tuple[str, ...] | None) -> Fields:
    """The fields of the input's rows. `columns` are its declared ones, None when rows bring theirs."""
    if columns is None:
        return OPEN
    shape = {"sqlite": SINGLE, **dict.fromkeys(TEXT_FORMATS, TEXT)}.get(str(workflow.input.format), UNKNOWN)
    return Fields(dict.fromkeys(columns, shape))


@dataclass(slots=True)
class Eyes:
    """What the stages of a workflow see, asked for in the order in which a row meets them."""

    rows: Fields
    _stages: dict[str, WrittenStage] = field(default_factory=dict)
    _forms: dict[str, Fields] = field(default_factory=dict)
    _items: dict[str, tuple[FieldShape, str | None]] = field(default_factory=dict)
    _groups: dict[str, Fields] = field(default_factory=dict)

    def of(self, stage: WrittenStage) -> Sees:
        """What the stage sees; stages before it were asked for."""
        sees = self._of(stage)
        self._stages[stage.name] = stage
        does = stage.operation
        if isinstance(does, Select):
            self._forms[stage.name] = sees.fields.selected(does.fields)
        elif isinstance(does, Rename):
            self._forms[stage.name] = sees.fields.renamed(does.names)
        elif isinstance(does, Python):
            self._forms[stage.name] = OPEN
        return sees

    def _of(self, stage: WrittenStage) -> Sees:
        if stage.group is not None:
            needs = [self._stages[need] for need in stage.needs if need in self._stages]
            members = self._seen(*seen_after(needs, self._stages))
            self._groups[stage.name] = group_fields(stage.group, members)
            return Sees({}, self._groups[stage.name], members)
        sees = self._seen(stage.ancestors, stage.rows_of)
        if stage.explode is None:
            return sees
        exploded = sees.shape(stage.explode)
        kinds = exploded.kinds()
        item = UNKNOWN if kinds and "array" not in kinds else exploded.inside(["0"])
        of_row = len(stage.explode) == 1 and stage.explode[0] not in sees.earlier
        self._items[stage.name] = (item, stage.explode[0] if of_row else None)
        return Sees(sees.earlier, sees.fields.with_item(*self._items[stage.name]), sees)

    def _seen(self, ancestors: tuple[str, ...], rows_of: str | None) -> Sees:
        earlier = {name: self._stages[name] for name in ancestors}
        begun: frozenset[str] = frozenset()
        fields = next((self._groups[name] for name in self._groups if name in earlier), self.rows)
        if rows_of is not None:
            fields = self._forms[rows_of]
            begun = frozenset((*self._stages[rows_of].ancestors, rows_of))
        for name, (item, own) in self._items.items():
            if name in earlier and name not in begun:
                fields = fields.with_item(item, own)
        return Sees(earlier, fields)


def group_fields(group: Group, members: Sees) -> Fields:
    """The fields of a group: those that its members are grouped by, each where it stands in a member."""
    shapes = {}
    for name in dict.fromkeys(way[0] for way in group.fields):
        ways = [way[1:] for way in group.fields if way[0] == name]
        shapes[name] = members.shape((name,)).limited(ways)
    return Fields(shapes)
