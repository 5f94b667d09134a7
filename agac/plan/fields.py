"""The fields of a row as each stage sees them, and the placeholders and keys that name them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agac.core.errors import Problem, Where, did_you_mean, nearest
from agac.spec.guard_checks import check_guard
from agac.spec.guards import Guard
from agac.spec.json_schema import SINGLE, TEXT, UNKNOWN, WHOLE_NUMBER, FieldShape, kinds_in_words
from agac.spec.levels import seen_after
from agac.spec.operations import Dedupe, Filter, Group, Python, Rename, Select
from agac.spec.templates import INDEX, ITEM, ROW_JSON, ROWS_COUNT, ROWS_FAILED, ROWS_JSON, VARS, Placeholder, Template
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
class StageScope:
    """What a stage, or a group of a member, may name: results of the stages `earlier`, and fields. `incoming` is the
    same of the rows that come to a stage that makes others of them; None: they are those that it works on."""

    earlier: Mapping[str, WrittenStage]
    fields: Fields
    incoming: StageScope | None = None

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
class StageScopes:
    """What the stages of a workflow see, asked for in the order in which a row meets them."""

    rows: Fields
    _stages: dict[str, WrittenStage] = field(default_factory=dict)
    _forms: dict[str, Fields] = field(default_factory=dict)
    _items: dict[str, tuple[FieldShape, str | None]] = field(default_factory=dict)
    _groups: dict[str, Fields] = field(default_factory=dict)

    def of(self, stage: WrittenStage) -> StageScope:
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

    def _of(self, stage: WrittenStage) -> StageScope:
        if stage.group is not None:
            needs = [self._stages[need] for need in stage.needs if need in self._stages]
            members = self._seen(*seen_after(needs, self._stages))
            self._groups[stage.name] = group_fields(stage.group, members)
            return StageScope({}, self._groups[stage.name], members)
        sees = self._seen(stage.ancestors, stage.rows_of)
        if stage.explode is None:
            return sees
        exploded = sees.shape(stage.explode)
        kinds = exploded.kinds()
        item = UNKNOWN if kinds and "array" not in kinds else exploded.inside(["0"])
        of_row = len(stage.explode) == 1 and stage.explode[0] not in sees.earlier
        self._items[stage.name] = (item, stage.explode[0] if of_row else None)
        return StageScope(sees.earlier, sees.fields.with_item(*self._items[stage.name]), sees)

    def _seen(self, ancestors: tuple[str, ...], rows_of: str | None) -> StageScope:
        earlier = {name: self._stages[name] for name in ancestors}
        begun: frozenset[str] = frozenset()
        fields = next((self._groups[name] for name in self._groups if name in earlier), self.rows)
        if rows_of is not None:
            fields = self._forms[rows_of]
            begun = frozenset((*self._stages[rows_of].ancestors, rows_of))
        for name, (item, own) in self._items.items():
            if name in earlier and name not in begun:
                fields = fields.with_item(item, own)
        return StageScope(earlier, fields)


def group_fields(group: Group, members: StageScope) -> Fields:
    """The fields of a group: those that its members are grouped by, each where it stands in a member."""
    shapes = {}
    for name in dict.fromkeys(way[0] for way in group.fields):
        ways = [way[1:] for way in group.fields if way[0] == name]
        shapes[name] = members.shape((name,)).limited(ways)
    return Fields(shapes)


_Finding = tuple[str, bool]
"""A sentence, and whether it is only a warning."""


def check_fields(workflow: Workflow, stage: WrittenStage, sees: StageScope) -> list[Problem]:
    """Every field named by a key of the stage that its rows do not have, or that is not what the key needs."""
    rows, does = sees.incoming or sees, stage.operation
    found: list[tuple[str, _Finding]] = []
    if stage.explode is not None:
        found += [("explode", one) for one in _exploded(workflow, stage.explode, rows)]
    if stage.group is not None:
        ways = stage.group.fields
        found += [("group_by", one) for way in ways for one in _way(workflow, way, rows)]
        found += [("group_by", one) for one in _names_of_groups(ways)]
    if isinstance(does, Dedupe):
        found += [("dedupe", one) for way in does.fields for one in _way(workflow, way, rows)]
    if isinstance(does, Select | Rename):
        key = "select" if isinstance(does, Select) else "rename"
        found += [(key, (message, False)) for message in _taken(does, sees)]
    return [
        Problem(stage.at(key), message, f"{stage.path}.{key}", "warning" if warn else "error")
        for key, (message, warn) in found
    ]


def _taken(does: Select | Rename, sees: StageScope) -> Iterator[str]:
    """Fields that a stage takes, or renames, and that no row has; new names that rows have already."""
    if sees.fields.open:
        return
    have = sees.fields.shapes
    wanted = does.fields if isinstance(does, Select) else tuple(does.names)
    yield from (
        f"names the field {name!r}, which rows do not have; {did_you_mean(name, have)}"
        for name in wanted
        if name not in have
    )
    if isinstance(does, Rename):
        kept = have.keys() - does.names.keys()
        taken = [(old, new) for old, new in does.names.items() if new in kept]
        yield from (f"{old!r} cannot become {new!r}: rows have that field already" for old, new in taken)


def _exploded(workflow: Workflow, way: tuple[str, ...], rows: StageScope) -> Iterator[_Finding]:
    """What is wrong with the list of whose items rows are made, and with the names that these get."""
    wrong = list(_way(workflow, way, rows))
    yield from wrong
    if not wrong and (message := _no_list(way, rows)):
        yield message, False
    for name in (ITEM, INDEX):
        if name in rows.fields.shapes and name not in rows.fields.made:
            message = f"rows have a field {name!r}, and those that are made of items get agac's own {name!r}"
            yield f"{message}; rename the field first", False


def _no_list(way: tuple[str, ...], rows: StageScope) -> str | None:
    written, head = ".".join(way), way[0]
    if head in rows.earlier and rows.earlier[head].shape is None:
        message = f"stage {head!r} answers with plain text, which has no items"
        return f"{message}; give it an output_schema with a field that is a list, and explode {head}.field"
    shape = rows.shape(way)
    if shape in (TEXT, SINGLE):
        return f"the column {head!r} holds text, not a list; make a list of it in a python stage"
    kinds = shape.kinds()
    if kinds is None or "array" in kinds:
        return None
    lists = _lists(way, rows)
    hint = f"; did you mean {lists[0]!r}?" if lists else ""
    return f"{written} is {kinds_in_words(kinds)}, not a list{hint}"


def _lists(way: tuple[str, ...], rows: StageScope) -> list[str]:
    """The lists in the same place, and right below it."""
    found = []
    for start in (way, way[:-1]):
        names = rows.shape(start).names() if start else None
        for name in sorted(names or ()):
            kinds = rows.shape((*start, name)).kinds()
            found += [".".join((*start, name))] if kinds and "array" in kinds else []
    return found


def _names_of_groups(ways: tuple[tuple[str, ...], ...]) -> Iterator[_Finding]:
    for name in dict.fromkeys(way[0] for way in ways):
        if name in (ROWS_JSON, ROWS_COUNT, ROWS_FAILED, VARS):
            yield f"{name!r} is a name of agac's own in the prompt of a group; rename the field first", False


def _way(workflow: Workflow, way: tuple[str, ...], rows: StageScope) -> Iterator[_Finding]:
    """What is wrong with a way into a field of the row, or into a result."""
    head, rest, written = way[0], way[1:], ".".join(way)
    fields = rows.fields.shapes
    if head in rows.earlier and head in fields:
        message = f"{head!r} could be the field of that name or the result of stage {head!r}"
        yield f"{message}; rename the one or the other", False
    elif head in rows.earlier or head in fields:
        yield from _inside(way, rows)
    elif rest and written in fields:
        yield f"the field {written!r} cannot be named here, for its dot; rename it first", False
    elif any(stage.name == head for stage in workflow.stages):
        yield f"names the stage {head!r}, which is not upstream of this one; add it to needs", False
    elif head in workflow.disabled:
        yield f"names the stage {head!r}, which is not enabled", False
    elif not rows.fields.open:
        known = [*fields, *rows.earlier]
        yield f"names the field {head!r}, which rows do not have; {did_you_mean(head, known)}", False
    elif near := nearest(head, [*fields, *rows.earlier]):
        yield f"{head!r} is no known name, unless rows have such a field; did you mean {near!r}?", True


def _inside(way: tuple[str, ...], rows: StageScope) -> Iterator[_Finding]:
    """Where a way ends too early, as far as that is known."""
    head, rest = way[0], way[1:]
    if rest and head in rows.earlier and rows.earlier[head].shape is None:
        message = f"stage {head!r} answers with plain text, which has no field {rest[0]!r}; give it an output_schema"
        yield message, False
        return
    start: FieldShape = rows.shape((head,))
    if rest and start in (TEXT, SINGLE):
        yield f"the column {head!r} holds text, which has no field {rest[0]!r}", False
        return
    for depth, part in enumerate(rest):
        before, kinds, names = ".".join(way[: depth + 1]), start.kinds(rest[:depth]), start.names(rest[:depth])
        if kinds is not None and "object" not in kinds:
            more = f"; explode {before}, and then {ITEM}.{part}" if "array" in kinds else ""
            yield f"{before} is {kinds_in_words(kinds)}, which has no field {part!r}{more}", False
            return
        if names is None:
            return
        if part not in names:
            known = [f"{before}.{name}" for name in sorted(names)]
            yield f"{before}.{part}: no such field; {did_you_mean(f'{before}.{part}', known)}", False
            return


_FOREIGN = re.compile(r"\{\{\s*([\w.]+)\s*\}\}|(?<!\{)\{([\w.]+)\}(?!\})")
"""`{{review}}` and `{review}`, as other tools write it: agac sends them as they stand."""

_OF_GROUPS = (ROWS_JSON, ROWS_COUNT, ROWS_FAILED)


@dataclass(frozen=True, slots=True)
class _Visible:
    """What a stage's texts may name. `own` are agac's own names. `rows` is what the rows show that come to it: those of
    the members, for a stage that is asked once a group."""

    workflow: Workflow
    stage: WrittenStage
    sees: StageScope

    @property
    def own(self) -> tuple[str, ...]:
        return (ROW_JSON,) if self.stage.group is None else _OF_GROUPS

    @property
    def rows(self) -> StageScope:
        return self.sees.incoming if self.stage.group and self.sees.incoming else self.sees

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.sees.fields.shapes)


def check_placeholders(workflow: Workflow, columns: tuple[str, ...] | None) -> list[Problem]:
    """Every placeholder that nothing can satisfy. `columns` are the input's declared ones, None when rows bring theirs:
    then an unknown name is a warning, since some rows may have it."""
    problems: list[Problem] = []
    scopes = StageScopes(input_fields(workflow, columns))
    for stage in workflow.stages:
        visible = _Visible(workflow, stage, scopes.of(stage))
        problems += check_fields(workflow, stage, visible.sees)
        known = {*visible.columns, *visible.sees.earlier, *visible.own}
        seen: set[str] = set()
        texts = [(f"{stage.path}.prompt", stage.prompt), *((one.path, one.content) for one in stage.examples)]
        for path, template in texts:
            for placeholder in template.placeholders:
                if placeholder.name not in seen:
                    seen.add(placeholder.name)
                    problems += _check(placeholder, visible, path)
            problems += _foreign(template, stage.at("prompt"), path, known)
        problems += _hidden_names(visible)
        problems += _guard(visible)
    return problems


def _guard(visible: _Visible) -> list[Problem]:
    """Names in the stage's conditions that are none, and comparisons that are never true."""
    guard, does = visible.stage.guard, visible.stage.operation
    found = _condition(visible, guard, "when") if guard else []
    return found + (_condition(visible, does.guard, "filter") if isinstance(does, Filter) else [])


def _condition(visible: _Visible, guard: Guard, key: str) -> list[Problem]:
    stage, workflow = visible.stage, visible.workflow
    if stage.group is not None:
        many = [name for name in guard.names if name not in visible.columns and _of_members(name, visible.rows)]
        if many:
            words = f"a group has many rows, each with its own {many[0]!r}"
            names = ", ".join([*visible.columns, ROWS_COUNT])
            message = f"`{many[0]}`: {words}; a guard of groups sees {names} and {ROWS_FAILED}"
            return [Problem(guard.where, message, f"{stage.path}.{key}")]
    fields = visible.sees.fields
    stages = [other.name for other in workflow.stages if other.name not in fields.shapes]
    return check_guard(
        guard,
        columns=None if fields.open and not fields.shapes else visible.columns,
        open_columns=fields.open,
        stages={name: other.shape for name, other in visible.sees.earlier.items()},
        variables=list(workflow.vars),
        path=f"{stage.path}.{key}",
        others=[*(name for name in stages if name not in visible.sees.earlier), *workflow.disabled],
        extra=_OF_GROUPS if stage.group is not None else (),
        fields={name: shape for name, shape in fields.shapes.items() if shape != SINGLE},
    )


def _of_members(name: str, members: StageScope) -> bool:
    return name in members.earlier or name in members.fields.shapes


def _hidden_names(visible: _Visible) -> list[Problem]:
    """Names of `visible` that are none: a slip there would send what was to stay."""
    limits, stage, rows = visible.stage.visibility, visible.stage, visible.rows
    if limits is None or rows.fields.open:
        return []
    fields = [*rows.fields.shapes, *(name for name in visible.columns if name not in rows.fields.shapes)]
    known = {"only": fields, "never": [*fields, *(name for name in rows.earlier if name not in fields)]}
    return [
        Problem(
            stage.at("visible"),
            f"names {name!r}, which does not exist; {did_you_mean(name, known[key])}",
            f"{stage.path}.visible.{key}",
        )
        for key, names in (("only", limits.only or ()), ("never", limits.never))
        for name in sorted(names)
        if name not in known[key]
    ]


def _check(placeholder: Placeholder, visible: _Visible, path: str) -> list[Problem]:
    """What is wrong with one placeholder: nothing, as soon as something is known by its name."""
    name = placeholder.name
    head, _, rest = name.partition(".")
    if _is_hidden(name, head, visible):
        message = f"${{{name}}} is hidden from this stage by `visible`; leave it out of the prompt, or make it visible"
        return [Problem(placeholder.where, message, path)]
    if name in visible.columns:
        return _clash(placeholder, visible, path)
    if head in visible.sees.earlier:
        return _result_field(placeholder, visible.sees.earlier[head], rest, path)
    if head == VARS and rest:
        return _known(placeholder, rest.split(".")[0], list(visible.workflow.vars), "variable", path, prefix="vars.")
    if name in visible.own:
        return []
    if head in visible.columns:
        return _field(placeholder, head, visible.sees.fields.shapes[head], tuple(rest.split(".")), path)
    if visible.stage.group is not None:
        return _not_of_groups(placeholder, visible, head, path)
    return _nowhere(placeholder, visible, head, path)


def _is_hidden(name: str, head: str, visible: _Visible) -> bool:
    limits = visible.stage.visibility
    if limits is None or name in visible.own or head == VARS:
        return False
    return head in limits.never if head in visible.sees.earlier else limits.hides(head)


def _clash(placeholder: Placeholder, visible: _Visible, path: str) -> list[Problem]:
    """A column of the input that has the name of something else."""
    name = placeholder.name
    by_name = name in visible.sees.earlier
    if not by_name and name not in (VARS, ROW_JSON):
        return []
    other = f"the result of stage {name!r}" if by_name else f"agac's own {name!r}"
    message = f"${{{name}}} could be the input's column or {other}; rename the one or the other"
    return [Problem(placeholder.where, message, path)]


def _field(placeholder: Placeholder, head: str, shape: FieldShape, rest: tuple[str, ...], path: str) -> list[Problem]:
    if shape in (TEXT, SINGLE):
        way = ".".join(rest)
        message = f"${{{placeholder.name}}}: the column {head!r} holds text, which has no field {way!r}"
        return [Problem(placeholder.where, f"{message}; write ${{{head}}}", path)]
    return _placeholders_inside(placeholder, head, shape, rest, path)


def _placeholders_inside(
    placeholder: Placeholder, head: str, shape: FieldShape, rest: tuple[str, ...], path: str
) -> list[Problem]:
    """A way into a field or a result, as far as it is known."""
    if (missing := shape.missing(rest)) is None:
        return []
    depth, names = missing
    before = ".".join([head, *rest[:depth]])
    if not names:
        message = f"${{{placeholder.name}}}: no such field; {before} is a single value; write ${{{before}}}"
        return [Problem(placeholder.where, message, path)]
    return _known(placeholder, rest[depth], sorted(names), "field", path, prefix=f"{before}.")


def _result_field(placeholder: Placeholder, stage: WrittenStage, rest: str, path: str) -> list[Problem]:
    shape = stage.shape
    if not rest:
        return []
    if shape is None:
        message = f"stage {stage.name!r} answers with plain text, which has no field {rest!r}; give it an output_schema"
        return [Problem(placeholder.where, f"${{{placeholder.name}}}: {message}", path)]
    return _placeholders_inside(placeholder, stage.name, FieldShape(shape), tuple(rest.split(".")), path)


def _not_of_groups(placeholder: Placeholder, visible: _Visible, head: str, path: str) -> list[Problem]:
    """A name that only a group's rows have, or nobody."""
    names = [*visible.columns, *_OF_GROUPS, *(f"vars.{name}" for name in visible.workflow.vars)]
    if head == ROW_JSON or _of_members(head, visible.rows):
        what = "what they have is" if head == ROW_JSON else f"{head!r} is"
        message = f"${{{placeholder.name}}}: a group has many rows; {what} in ${{{ROWS_JSON}}}, for each of them"
        return [Problem(placeholder.where, message, path)]
    return _known(placeholder, placeholder.name, names, "field of a group", path)


def _nowhere(placeholder: Placeholder, visible: _Visible, head: str, path: str) -> list[Problem]:
    """A name that nothing is known by; a row may still have it."""
    if any(stage.name == head for stage in visible.workflow.stages):
        message = (
            f"${{{placeholder.name}}} names a stage that is not upstream of {visible.stage.name!r}; "
            "stages see only those that they need, and what those need"
        )
        return [Problem(placeholder.where, message, path)]
    if head in visible.workflow.disabled:
        message = f"${{{placeholder.name}}} names the stage {head!r}, which is not enabled"
        return [Problem(placeholder.where, message, path)]
    variables = [f"vars.{name}" for name in visible.workflow.vars]
    names = [*visible.columns, *visible.sees.earlier, ROW_JSON, *variables]
    if visible.sees.fields.open:
        return _perhaps(placeholder, names, path)
    return _known(placeholder, placeholder.name, names, "field", path)


def _perhaps(placeholder: Placeholder, names: list[str], path: str) -> list[Problem]:
    """Rows may have any field: only a near miss of a name that surely exists is worth a word."""
    near = difflib.get_close_matches(placeholder.name, [n for n in names if n != ROW_JSON], 1, cutoff=0.8)
    if not near:
        return []
    message = f"${{{placeholder.name}}} is no known name, unless rows have such a field; did you mean '{near[0]}'?"
    return [Problem(placeholder.where, message, path, "warning")]


def _known(
    placeholder: Placeholder, name: str, names: list[str], what: str, path: str, *, prefix: str = ""
) -> list[Problem]:
    if name in names:
        return []
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known are: {', '.join(names) or 'none'}"
    return [Problem(placeholder.where, f"${{{placeholder.name}}}: no such {what}; {hint}", path)]


def _foreign(template: Template, where: Where, path: str, names: Collection[str]) -> list[Problem]:
    """A warning for each that would name a field or a result, were it written in agac's way. Others may be meant."""
    found = {}
    for before, piece in zip(("", *template.pieces), template.pieces, strict=False):
        for match in _FOREIGN.finditer(piece):
            if before == "$" and match.start() == 0:
                continue  # $${name}, which says that it is meant as it stands
            name = match[1] or match[2]
            if name.partition(".")[0] in names or name in names:
                found[match[0]] = name
    return [
        Problem(where, f"{text} is sent as it stands; write ${{{name}}} for its value", path, "warning")
        for text, name in found.items()
    ]
