"""The fields of a row as each stage sees them, and the placeholders and keys that name them."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import repeat
from operator import contains
from typing import Any, NamedTuple

from agac.core.errors import Problem, Where, did_you_mean, listed, nearest
from agac.data.sources import FirstRows
from agac.spec import templates
from agac.spec.field_shapes import SINGLE, TEXT, UNKNOWN, WHOLE_NUMBER, FieldShape, kinds_in_words
from agac.spec.graph import PARTS, is_hidden, seen_after, stage_of
from agac.spec.guard_checks import GuardScope
from agac.spec.guards import Guard
from agac.spec.operations import Dedupe, Filter, Python, Rename, Review, Select
from agac.spec.templates import (
    AGREEMENT,
    INDEX,
    ITEM,
    ROW_JSON,
    ROWS_COUNT,
    ROWS_FAILED,
    ROWS_JSON,
    VARS,
)
from agac.spec.workflow import Workflow, WrittenStage

TEXT_FORMATS = ("csv", "tsv", "txt", "files")  # formats of inputs in which every field is text
_OF_GROUPS = (ROWS_JSON, ROWS_COUNT, ROWS_FAILED)


@dataclass(frozen=True)
class Fields:
    """The fields of rows: `shapes` are the known ones in order; `open`: there are others; `made`
    by agac, of items. `first` are rows of the input that were looked at, where rows still have its
    fields."""

    shapes: Mapping[str, FieldShape]
    open: bool = False
    made: frozenset[str] = frozenset()
    first: FirstRows | None = None

    @cached_property
    def typed(self) -> Mapping[str, FieldShape]:
        """The shapes by which more is known of a value than that it is a single one."""
        return {name: shape for name, shape in self.shapes.items() if shape != SINGLE}

    def with_items(self, made: Sequence[tuple[FieldShape, str | None]]) -> Fields:
        """The fields of a row that is made of an item of a list, perhaps of rows made so; `made`
        has each item, and the field of the row in which the list stood, if it is one of that."""
        if not made:
            return self
        lists = {own for _, own in made}
        kept = {name: shape for name, shape in self.shapes.items() if name not in lists}
        shapes = {**kept, ITEM: made[-1][0], INDEX: WHOLE_NUMBER}
        return replace(self, shapes=shapes, made=self.made | {ITEM, INDEX})


OPEN = Fields({}, open=True)  # rows of which nothing is known


class Earlier(Mapping[str, WrittenStage]):
    """The stages whose results a stage may name, by name. Thousands of stages each see thousands
    of others, so that no dict is made of them; `stages` may become more meanwhile."""

    def __init__(
        self, names: Sequence[str], stages: Mapping[str, WrittenStage], viewer: str
    ) -> None:
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


class _Shapes(Mapping[str, Mapping[str, Any] | None]):
    """What is known of the results of stages, by their names: of `own`, too, where a check looks
    at its own result."""

    def __init__(self, earlier: Mapping[str, WrittenStage], own: WrittenStage | None) -> None:
        self._earlier = earlier
        self._own = own

    def __contains__(self, name: object) -> bool:
        return name in self._earlier or (self._own is not None and name == self._own.name)

    def __getitem__(self, name: str) -> Mapping[str, Any] | None:
        if self._own is not None and name == self._own.name:
            return self._own.answer_shape
        return self._earlier[name].shape

    def __iter__(self) -> Iterator[str]:
        yield from self._earlier
        if self._own is not None and self._own.name not in self._earlier:
            yield self._own.name

    def __len__(self) -> int:
        return len([*iter(self)])


class Unsure(NamedTuple):
    """Stages after which rows may be others, by name: `dropping` ones let rows leave, `renaming`
    ones name fields."""

    dropping: frozenset[str] = frozenset()
    renaming: frozenset[str] = frozenset()


NOTHING_UNSURE = Unsure()


@dataclass(frozen=True, slots=True)
class StageScope:
    """What a stage, or a group of a member, may name: results of the stages `earlier`, and fields.
    `every_stage` has those of the whole workflow by name. `incoming` is the same of the rows that
    come to a stage that makes others of them; None: they are those that it works on."""

    workflow: Workflow
    stage: WrittenStage
    earlier: Mapping[str, WrittenStage]
    fields: Fields
    every_stage: Mapping[str, WrittenStage]
    incoming: StageScope | None = None
    unsure: Unsure = NOTHING_UNSURE

    @property
    def own(self) -> tuple[str, ...]:
        """agac's own names in the stage's texts."""
        return (ROW_JSON,) if self.stage.group is None else _OF_GROUPS

    @property
    def rows(self) -> StageScope:
        """The scope of the rows that come to the stage: of the members, for a stage that is run
        once per group."""
        if self.stage.group and self.incoming:
            return self.incoming
        return self

    def has(self, name: str) -> bool:
        """Whether rows have a field or a result of this name."""
        return name in self.earlier or name in self.fields.shapes

    def names(self, *more: str) -> tuple[str, ...]:
        """The names of fields and of all stages, and these: the same at each stage, so that
        `nearest` is fast, which is told by `Named` which of them count."""
        return tuple(dict.fromkeys((*self.fields.shapes, *self.every_stage, *more)))

    def label(self, name: str) -> str | None:
        """What is said of a name that is a column of labels, which no stage sees; None: it is
        none."""
        if name not in self.workflow.labels or self.rows.has(name) or self.has(name):
            return None
        # fields of any name
        if any(isinstance(one.operation, Python) for one in self.rows.earlier.values()):
            return None
        return (
            f"{name!r} holds labels (`expect`), which no stage sees; compare answers with "
            "them by `agac eval`"
        )

    def lacking(self, way: Sequence[str], *, kept: bool = False) -> FirstRows | None:
        """The first rows of the input if none of them has what this way names, and each row comes
        to the stage; where they have to have `kept` their names, also only then."""
        first = self.rows.fields.first
        stage = self.stage
        if first is None or stage.guard is not None or not first.lack(way):
            return None
        earlier = self.rows.earlier
        if isinstance(earlier, Earlier):
            upstream = earlier.upstream
        else:
            upstream = frozenset(earlier)
        if not upstream.isdisjoint(self.unsure.dropping) or (
            kept and not upstream.isdisjoint(self.unsure.renaming)
        ):
            return None
        return first

    def shape(self, path: tuple[str, ...]) -> FieldShape:
        """What is known of the value at the end of a path into a result, or into a field."""
        if path[0] in self.earlier:
            body = self.earlier[path[0]].shape
            if body is None:
                return TEXT
            return FieldShape(body).inside(path[1:])
        return self.fields.shapes.get(path[0], UNKNOWN).inside(path[1:])


@dataclass(frozen=True, slots=True)
class Named(Collection[str]):
    """The names that a stage, or a group of a member, may use: fields, results, and `more`."""

    scope: StageScope
    more: Collection[str] = ()

    def __contains__(self, name: object) -> bool:
        return name in self.scope.fields.shapes or name in self.scope.earlier or name in self.more

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.scope.fields.shapes, *self.scope.earlier, *self.more)))

    def __len__(self) -> int:
        return len([*iter(self)])


def stage_scopes(workflow: Workflow, rows: Fields) -> Iterator[StageScope]:
    """What each stage sees, in the order in which a row meets them; `rows` are the fields of the
    input's rows."""
    every_stage = {stage.name: stage for stage in workflow.stages}
    unsure = Unsure(
        frozenset(stage.name for stage in workflow.stages if stage.may_drop),
        frozenset(
            stage.name for stage in workflow.stages if isinstance(stage.operation, Rename | Python)
        ),
    )
    stages: dict[str, WrittenStage] = {}
    forms: dict[str, Fields] = {}
    items: dict[str, tuple[FieldShape, str | None]] = {}
    groups: dict[str, Fields] = {}

    def seen(stage: WrittenStage, ancestors: Sequence[str], rows_of: str | None) -> StageScope:
        earlier = Earlier(ancestors, every_stage, stage.name)
        fields = next((groups[name] for name in groups if name in earlier.upstream), rows)
        begun: Container[str] = ()
        if rows_of is not None:
            fields = forms[rows_of]
            begun = {rows_of, *(stages[rows_of].ancestors if items else ())}
        made = [
            one for name, one in items.items() if name in earlier.upstream and name not in begun
        ]
        return StageScope(
            workflow, stage, earlier, fields.with_items(made), every_stage, None, unsure
        )

    for stage in workflow.stages:
        if stage.group is not None:
            members = seen(
                stage,
                *seen_after([stages[n] for n in stage.needs if n in stages], stages, stage.name),
            )
            shapes = {}  # those that the members are grouped by, each at its path in a member
            for name in dict.fromkeys(way[0] for way in stage.group.fields):
                shapes[name] = members.shape((name,)).limited(
                    [w[1:] for w in stage.group.fields if w[0] == name]
                )
            groups[stage.name] = Fields(shapes)
            scope = StageScope(
                workflow, stage, {}, groups[stage.name], every_stage, members, unsure
            )
        else:
            scope = seen(stage, stage.ancestors, stage.rows_of)
        if stage.explode is not None and stage.group is None:
            items[stage.name] = _item(stage.explode, scope)
            fields = scope.fields.with_items([items[stage.name]])
            scope = StageScope(workflow, stage, scope.earlier, fields, every_stage, scope, unsure)
        yield scope
        stages[stage.name], fields = stage, scope.fields
        changed = _changed(stage, fields)
        if changed is not None:
            forms[stage.name] = changed


def _changed(stage: WrittenStage, fields: Fields) -> Fields | None:
    """The fields of rows after a stage that changes them; None: it does not."""
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


def _item(path: tuple[str, ...], scope: StageScope) -> tuple[FieldShape, str | None]:
    """What is known of the items of the list at `path`, and the row's field that it stands in, if
    it is one of that."""
    exploded = scope.shape(path)
    kinds = exploded.kinds()
    of_row = len(path) == 1 and path[0] not in scope.earlier
    return UNKNOWN if kinds and "array" not in kinds else exploded.inside(["0"]), path[
        0
    ] if of_row else None


def check_placeholders(
    workflow: Workflow, columns: tuple[str, ...] | None, first: FirstRows | None = None
) -> list[Problem]:
    """Every placeholder that nothing can satisfy, and every key that names a field that rows do
    not have. `columns` are the input's declared ones, None when rows bring theirs: then a name
    that none of the `first` rows has is an error, and another unknown one a warning, as some may
    have it."""
    problems = list[Problem]()
    read = set[str]()
    shapes = {"sqlite": SINGLE, "xlsx": SINGLE, **dict.fromkeys(TEXT_FORMATS, TEXT)}
    # what a statement makes may be anything
    if workflow.input.sql is None:
        shape = shapes.get(str(workflow.input.format), UNKNOWN)
    else:
        shape = UNKNOWN
    fields = Fields({}, open=True, first=first)
    if columns is not None:
        fields = Fields(dict.fromkeys(columns, shape), first=first)
    for scope in stage_scopes(workflow, fields):
        stage, does = scope.stage, scope.stage.operation
        problems += [
            _problem(stage.at(key), message) for key, message in _key_findings(scope) if message
        ]
        if stage_of(stage.name) not in read:  # else its texts are those of the stage that it is of
            problems += _texts(scope)
        read.add(stage_of(stage.name))
        problems += _hidden_names(scope)
        if stage.guard and not (PARTS in stage.guard.names and stage.parts):
            written = stage.guard
        else:
            written = None
        problems += _condition(scope, written) if written else []
        problems += _condition(scope, does.guard) if isinstance(does, Filter) else []
        problems += _condition(scope, does.when) if isinstance(does, Review) and does.when else []
        for check in stage.checks if stage_of(stage.name) == stage.name else ():
            problems += _condition(scope, check.guard, own=True)
    return problems


def _texts(scope: StageScope) -> list[Problem]:
    """What is wrong with the placeholders of the prompt and of the messages before it."""
    stage = scope.stage
    known = Named(scope, scope.own)
    path = stage.at("prompt").path
    path = f"{stage.path}.prompt" if path.startswith(stage.path) else path  # else it was typed
    problems = list[Problem]()
    foreign = list[Problem]()
    seen = set[str]()
    any_field = scope.fields.open and stage.group is None
    for place, template in [
        (path, stage.prompt),
        *((one.path, one.content) for one in stage.examples),
    ]:
        for placeholder in template.placeholders:
            if placeholder.name in seen:
                message = None
            else:
                message = _placeholder(placeholder.name, scope)
            seen.add(placeholder.name)
            # which lets no row through that lacks it
            if isinstance(message, _Doubt) and stage.guard:
                if _is_looked_for(placeholder.name.split("."), stage.guard.text):
                    message = None
                else:
                    message = message
            if message:
                problem = _problem(replace(placeholder.where, path=place), message)
                problems.append(
                    replace(problem, message=templates.in_syntax(message, template.syntax))
                )
        at = replace(stage.at("prompt"), path=place)
        found = templates.foreign_placeholders(
            template, at, known, stage.syntax, any_field=any_field
        )
        problems += found
        foreign += found
    if stage.asks_all_alike and not foreign:
        message = templates.in_syntax(templates.ALL_ALIKE, stage.prompt.syntax)
        problems.append(Problem(stage.at("prompt"), message, "warning"))
    return problems


class _Doubt(str):
    """A message that is only a warning: rows may have any field."""

    __slots__ = ()


def _problem(where: Where, message: str) -> Problem:
    return Problem(where, message, "warning" if isinstance(message, _Doubt) else "error")


def _key_findings(scope: StageScope) -> Iterator[tuple[str, str | None]]:
    """Every field named by a key of the stage that its rows do not have, or that is not what the
    key needs."""
    stage, does, rows = scope.stage, scope.stage.operation, scope.incoming or scope
    if stage.explode is not None:
        yield (
            "explode",
            _way(stage.explode, rows)
            or _no_list(stage.explode, rows)
            or _optional(stage.explode, rows),
        )
        for name in (ITEM, INDEX):
            if name in rows.fields.shapes and name not in rows.fields.made:
                message = (
                    f"rows have a field {name!r}, and those that are made of items get "
                    f"agac's own {name!r}"
                )
                yield "explode", f"{message}; rename the field first"
    if stage.group is not None:
        yield from (
            ("group_by", _way(way, rows) or _optional(way, rows)) for way in stage.group.fields
        )
        for name in dict.fromkeys(way[0] for way in stage.group.fields):
            if name in (*_OF_GROUPS, VARS):
                yield (
                    "group_by",
                    (
                        f"{name!r} is a name of agac's own in the prompt of a group; rename the "
                        "field first"
                    ),
                )
    if isinstance(does, Dedupe):
        yield from (("dedupe", _way(way, rows) or _optional(way, rows)) for way in does.fields)
    if isinstance(does, Review):
        yield from (("review", message) for message in _unfit_review(does, scope))
    if isinstance(does, Select | Rename):
        yield from ((does.key, message) for message in _unfit_change(does, scope))


def _unfit_change(does: Select | Rename, scope: StageScope) -> Iterator[str]:
    """Fields that are to be kept or renamed and are not there, or cannot have their new names."""
    new_names = does.names if isinstance(does, Rename) else {}
    have = scope.fields.shapes
    for name in does.fields if isinstance(does, Select) else new_names:
        hidden = scope.label(name)
        if hidden:
            yield hidden
        elif name not in have and not scope.fields.open:
            yield f"names the field {name!r}, which rows do not have; {did_you_mean(name, have)}"
        elif name not in have and (first := scope.lacking((name,))) is not None:
            yield (
                f"names the field {name!r}, which {first.words()} has; "
                f"{did_you_mean(name, first.names())}"
            )
    kept = have.keys() - new_names.keys()
    for old, new in new_names.items():
        if new in kept and not scope.fields.open:
            yield f"{old!r} cannot become {new!r}: rows have that field already"


def _unfit_review(does: Review, scope: StageScope) -> Iterator[str | None]:
    """What people cannot be asked or shown."""
    judged = scope.earlier[does.edit]
    if judged.operation is not None:
        message = f"{does.edit!r} asks no model, so that there is no answer to decide on"
        yield f"{message}; name a stage that asks one as `edit`, or add one before this stage"
    elif judged.shape == {} and judged.output_schema is None and "edit" in does.choices:
        message = f"{does.edit!r} has no output_schema, by which an edited value could be checked"
        yield f"{message}; give it one, or write `choices: [approve, reject]`"
    yield from (_way(way, scope) for way in does.show)
    if does.blind and any(way[0] == does.edit for way in does.show):
        yield (
            f"`blind` rows come without the answer, and `show` has {does.edit!r}; remove "
            "the one or the other"
        )
    if does.agree is not None:
        yield _inside((does.edit, *does.agree.split(".")), scope)


def _no_list(way: tuple[str, ...], rows: StageScope) -> str | None:
    """Why rows cannot be made of the items of this value."""
    head = way[0]
    if head in rows.earlier and rows.earlier[head].shape is None:
        message = f"stage {head!r} answers with plain text, which has no items"
        return (
            f"{message}; give it an output_schema with a field that is a list, and explode "
            f"{head}.field"
        )
    shape = rows.shape(way)
    if shape in (TEXT, SINGLE):
        return (
            f"the column {head!r} holds text, not a list; make a list of it in a python "
            "stage before this one"
        )
    kinds = shape.kinds()
    if kinds is None or "array" in kinds:
        return None
    lists = [  # in the same place, and right below it
        ".".join((*start, name))
        for start in (way, way[:-1])
        for name in sorted((rows.shape(start).names() if start else None) or ())
        if "array" in (rows.shape((*start, name)).kinds() or ())
    ]
    hint = f"; did you mean {lists[0]!r}?" if lists else ""
    return f"{'.'.join(way)} is {kinds_in_words(kinds)}, not a list{hint}"


def _way(way: tuple[str, ...], rows: StageScope) -> str | None:
    """What is wrong with a way into a field of the row, or into a result."""
    head = way[0]
    rest = way[1:]
    written = ".".join(way)
    fields = rows.fields.shapes
    if head in rows.earlier and head in fields:
        return (
            f"{head!r} could be the field of that name or the result of stage {head!r}; "
            "rename the one or the other"
        )
    if rows.has(head):
        return _inside(way, rows)
    hidden = rows.label(head)
    if hidden:
        return hidden
    if rest and written in fields:
        return f"the field {written!r} cannot be named here, for its dot; rename it first"
    if head in rows.every_stage:
        return f"names the stage {head!r}, which is not upstream of this one; add it to needs"
    if head in rows.workflow.disabled:
        return f"names the stage {head!r}, which is not enabled"
    known = rows.names()
    counting = Named(rows)
    if not rows.fields.open:
        return (
            f"names the field {head!r}, which rows do not have; "
            f"{did_you_mean(head, known, among=counting)}"
        )
    first = rows.lacking(way)
    if first is not None:
        return (
            f"names the field {written!r}, which {first.words()} has; "
            f"{did_you_mean(written, first.names())}"
        )
    near = nearest(head, known, among=counting)
    if near:
        return _Doubt(
            f"{head!r} is no known name, unless rows have such a field; did you mean {near!r}?"
        )
    return None


def _optional(way: tuple[str, ...], rows: StageScope) -> str | None:
    """That answers may lack the field that a key of the stage names."""
    lacks = _may_lack(way, rows)
    if lacks is None:
        return None
    return _Doubt(
        f"{'.'.join(way)}: {lacks}, and a row fails here without it; make it required in the "
        "output_schema"
    )


def _may_lack(way: Sequence[str | int], rows: StageScope) -> str | None:
    """Whose answer may lack which part of a way into a result; None where nothing is known to be
    missing."""
    head = str(way[0])
    rest = [str(part) for part in way[1:]]
    if (
        head not in rows.earlier
        or head in rows.fields.shapes
        or not (shape := rows.earlier[head].shape)
    ):
        return None
    return _lacking_part(head, rest, FieldShape(shape))


def _lacking_part(head: str, rest: Sequence[str], shape: FieldShape) -> str | None:
    depth = shape.optional(rest)
    if depth is None:
        return None
    if depth == 0 and head != ITEM:
        whose = f"the answer of stage {head!r}"
    else:
        whose = ".".join([head, *rest[:depth]])
    return f"{whose} may lack {rest[depth]!r}"


def _is_looked_for(way: Sequence[str | int], text: str) -> bool:
    """Whether a condition asks if a part of a way is there: `has(tag.note)`, or `"note" in tag`."""
    bare = re.sub(r"\s", "", text).replace("'", '"')
    parts = [str(part) for part in way]
    written = (".".join(parts[:end]) for end in range(2, len(parts) + 1))
    return any(f"has({one})" in bare for one in written) or any(
        f'"{part}"in' in bare for part in parts[1:]
    )


def _inside(way: tuple[str, ...], rows: StageScope) -> str | None:
    """Where a way ends too early, as far as that is known."""
    head = way[0]
    rest = way[1:]
    if rest and head in rows.earlier and rows.earlier[head].shape is None:
        return (
            f"stage {head!r} answers with plain text, which has no field {rest[0]!r}; give "
            "it an output_schema"
        )
    start = rows.shape((head,))
    if rest and start in (TEXT, SINGLE):
        return f"the column {head!r} holds text, which has no field {rest[0]!r}"
    for depth, part in enumerate(rest):
        before = ".".join(way[: depth + 1])
        kinds = start.kinds(rest[:depth])
        names = start.names(rest[:depth])
        if kinds is not None and "object" not in kinds:
            if "array" in kinds:
                more = f"; explode {before}, and then {ITEM}.{part}"
            else:
                more = ""
            return f"{before} is {kinds_in_words(kinds)}, which has no field {part!r}{more}"
        if names is None:
            return None
        if part not in names:
            known = [f"{before}.{name}" for name in sorted(names)]
            return f"{before}.{part}: no such field; {did_you_mean(f'{before}.{part}', known)}"
    return None


def _condition(scope: StageScope, guard: Guard, *, own: bool = False) -> list[Problem]:
    """Names in a stage's condition that are none, comparisons never true. `own`: it is a check of
    its own result."""
    stage = scope.stage
    workflow = scope.workflow
    fields = scope.fields
    hidden = next(filter(None, map(scope.label, guard.names)), None)
    if hidden:
        return [Problem(guard.where, hidden)]
    of_members = [
        name for name in guard.names if name not in fields.shapes and scope.rows.has(name)
    ]
    if stage.group is not None and of_members:
        words = f"a group has many rows, each with its own {of_members[0]!r}"
        names = ", ".join([*fields.shapes, ROWS_COUNT])
        message = f"`{of_members[0]}`: {words}; a guard of groups sees {names} and {ROWS_FAILED}"
        return [Problem(guard.where, message)]
    doubts = [] if own else _condition_doubts(guard, scope)
    return (
        doubts
        + GuardScope(
            text=guard.text,
            where=guard.where,
            columns=fields.shapes.keys(),
            closed=not fields.open,
            stages=_Shapes(scope.earlier, stage if own else None),
            variables=workflow.vars.keys(),
            others=_Others(scope),
            extra=() if own else (*(_OF_GROUPS if stage.group is not None else ()), *_voted(scope)),
            fields=fields.typed,
            every_stage=scope.every_stage,
        ).problems()
    )


def _condition_doubts(guard: Guard, scope: StageScope) -> list[Problem]:
    """Warnings of fields that a condition reads, that answers may lack, and that it does not ask
    for first."""
    found: dict[str, Problem] = {}
    for chain in guard.chains:
        if _is_looked_for(chain, guard.text) or (lacks := _may_lack(chain, scope)) is None:
            continue
        way = ".".join(map(str, chain))
        remedy = f"write `has({way}) && …`, or make it required in the output_schema"
        message = f"`{way}`: {lacks}, and a row fails here without it; {remedy}"
        found[way] = Problem(guard.where, message, "warning")
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Others(Container[str]):
    """The stages that are not upstream of a stage, and those that are not enabled."""

    scope: StageScope

    def __contains__(self, name: object) -> bool:
        scope = self.scope
        if name in scope.workflow.disabled:
            return True
        return (
            name in scope.every_stage
            and name not in scope.fields.shapes
            and name not in scope.earlier
        )


def _voted(scope: StageScope) -> tuple[str, ...]:
    """The name of the agreement, where the stage amends a result that replicas voted for."""
    first = scope.every_stage.get(scope.stage.amends or "")
    return (AGREEMENT,) if first is not None and first.vote else ()


def _hidden_names(scope: StageScope) -> list[Problem]:
    """Names of `visible` that are none: a slip there would send what was to stay."""
    limits = scope.stage.visibility
    stage = scope.stage
    rows = scope.rows
    if limits is None or rows.fields.open:
        return []
    fields = dict.fromkeys((*rows.fields.shapes, *scope.fields.shapes))
    known: dict[str, Collection[str]] = {"only": fields, "never": Named(rows, fields)}
    every = tuple(dict.fromkeys((*fields, *scope.every_stage)))
    return [
        Problem(
            replace(stage.at("visible"), path=f"{stage.path}.visible.{key}"),
            f"names {name!r}, which does not exist; {did_you_mean(name, every, among=known[key])}",
        )
        for key, names in (("only", limits.only or ()), ("never", limits.never))
        for name in sorted(names)
        if name not in known[key]
    ]


def _placeholder(name: str, scope: StageScope) -> str | None:
    """What is wrong with one placeholder: nothing, as soon as something is known by its name."""
    head, _, rest = name.partition(".")
    written = f"${{{name}}}"
    limits = scope.stage.visibility
    columns = scope.fields.shapes
    hidden = limits is not None and (
        head in limits.never if head in scope.earlier else limits.hides(head)
    )
    if hidden and name not in scope.own and head != VARS:
        return (
            f"{written} is hidden from this stage by `visible`; leave it out of the "
            "prompt, or make it visible"
        )
    if name in columns:
        if name not in scope.earlier and name not in (VARS, ROW_JSON):
            return _lacking_placeholder(name, scope)
        if name in scope.earlier:
            other = f"the result of stage {name!r}"
        else:
            other = f"agac's own {name!r}"
        return f"{written} could be the input's column or {other}; rename the one or the other"
    if head in scope.earlier:
        shape = scope.earlier[head].shape
        if rest and shape is None:
            message = (
                f"stage {head!r} answers with plain text, which has no field {rest!r}; "
                "give it an output_schema"
            )
            return f"{written}: {message}"
        if rest:
            return _placeholder_inside(name, FieldShape(shape or {}))
        return None
    if head == VARS and rest:
        variable = rest.split(".")[0]
        return _no_such("variable", name, variable, list(scope.workflow.vars), "vars.")
    if name in scope.own:
        return None
    label = scope.label(head)
    if label:
        return f"{written}: {label}"
    if head in columns:
        if columns[head] in (TEXT, SINGLE):
            return (
                f"{written}: the column {head!r} holds text, which has no field {rest!r}; "
                f"write ${{{head}}}"
            )
        return _placeholder_inside(name, columns[head]) or _lacking_placeholder(name, scope)
    return _unknown_placeholder(name, head, scope)


def _placeholder_inside(name: str, shape: FieldShape) -> str | None:
    """A way into a field or a result, as far as it is known."""
    head, *rest = name.split(".")
    missing = shape.missing(tuple(rest))
    if missing is None:
        return _optional_inside(name, shape)
    depth, names = missing
    before = ".".join([head, *rest[:depth]])
    if not names:
        return f"${{{name}}}: no such field; {before} is a single value; write ${{{before}}}"
    return _no_such("field", name, rest[depth], sorted(names), f"{before}.")


def _lacking_placeholder(name: str, scope: StageScope) -> str | None:
    """What is wrong with a name of the input's fields that none of its first rows has. The fields
    of groups may be of results."""
    if scope.stage.group is not None:
        return None
    head = name.partition(".")[0]
    if head in scope.fields.made or (first := scope.lacking(name.split("."), kept=True)) is None:
        return None
    message = f"${{{name}}}: {first.words()} has such a field; {did_you_mean(name, first.names())}"
    if first.complete:
        return message
    return f"{message}. If later rows have it, guard the stage: when: has(row.{head})"


def _optional_inside(name: str, shape: FieldShape) -> str | None:
    """That answers may lack what a placeholder names."""
    head, *rest = name.split(".")
    lacks = _lacking_part(head, rest, shape)
    if lacks is None:
        return None
    return _Doubt(
        f"${{{name}}}: {lacks}, and a row fails here without it; make it required in the "
        "output_schema, or take the placeholder out"
    )


def _unknown_placeholder(name: str, head: str, scope: StageScope) -> str | None:
    """A name that nothing is known by; a row may still have it."""
    workflow = scope.workflow
    written = f"${{{name}}}"
    variables = _dotted_variables(tuple(workflow.vars))
    if scope.stage.group is not None:
        if head == ROW_JSON or scope.rows.has(head):
            what = "what they have is" if head == ROW_JSON else f"{head!r} is"
            return f"{written}: a group has many rows; {what} in ${{{ROWS_JSON}}}, for each of them"
        return _no_such(
            "field of a group", name, name, (*scope.fields.shapes, *_OF_GROUPS, *variables)
        )
    if head in scope.every_stage:
        return (
            f"{written} names a stage that is not upstream of {scope.stage.name!r}; "
            "stages see only those that they need, and what those need"
        )
    if head in workflow.disabled:
        return f"{written} names the stage {head!r}, which is not enabled"
    if not scope.fields.open:
        more = (ROW_JSON, *variables)
        return _no_such(
            "field", name, name, scope.names(*more), among=Named(scope, dict.fromkeys(more))
        )
    message = _lacking_placeholder(name, scope)
    if message is not None:
        return message
    # rows may have any field: only a near miss of a name that surely exists is worth a word
    among = Named(scope, dict.fromkeys(variables))
    near = nearest(name, scope.names(*variables), cutoff=0.8, among=among)
    message = f"{written} is no known name, unless rows have such a field; did you mean '{near}'?"
    return _Doubt(message) if near else None


@lru_cache(maxsize=4)
def _dotted_variables(names: tuple[str, ...]) -> tuple[str, ...]:
    """The workflow's variables as placeholders name them."""
    return tuple(f"{VARS}.{name}" for name in names)


def _no_such(
    what: str,
    written: str,
    name: str,
    known: Sequence[str],
    prefix: str = "",
    among: Collection[str] | None = None,
) -> str | None:
    if name in (known if among is None else among):
        return None
    near = nearest(name, known, among=among)
    if near:
        hint = f"did you mean '{prefix}{near}'?"
    else:
        hint = f"known are: {listed(known if among is None else among)}"
    return f"${{{written}}}: no such {what}; {hint}"
