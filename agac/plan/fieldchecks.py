"""Fields that the keys of a stage name, against what its rows have: select, rename, explode, group_by and dedupe."""

from __future__ import annotations

from collections.abc import Iterator

from agac.core.errors import Problem
from agac.plan.fields import Sees
from agac.spec.fieldshapes import SINGLE, TEXT, FieldShape
from agac.spec.operations import Dedupe, Rename, Select
from agac.spec.schemavalues import kinds_in_words
from agac.spec.suggest import did_you_mean, nearest
from agac.spec.template import INDEX, ITEM, ROWS_COUNT, ROWS_FAILED, ROWS_JSON, VARS
from agac.spec.workflow import Workflow, WrittenStage

_Finding = tuple[str, bool]
"""A sentence, and whether it is only a warning."""


def check_fields(workflow: Workflow, stage: WrittenStage, sees: Sees) -> list[Problem]:
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


def _taken(does: Select | Rename, sees: Sees) -> Iterator[str]:
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


def _exploded(workflow: Workflow, way: tuple[str, ...], rows: Sees) -> Iterator[_Finding]:
    """What is wrong with the list of whose items rows are made, and with the names that these get."""
    wrong = list(_way(workflow, way, rows))
    yield from wrong
    if not wrong and (message := _no_list(way, rows)):
        yield message, False
    for name in (ITEM, INDEX):
        if name in rows.fields.shapes and name not in rows.fields.made:
            message = f"rows have a field {name!r}, and those that are made of items get agac's own {name!r}"
            yield f"{message}; rename the field first", False


def _no_list(way: tuple[str, ...], rows: Sees) -> str | None:
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


def _lists(way: tuple[str, ...], rows: Sees) -> list[str]:
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


def _way(workflow: Workflow, way: tuple[str, ...], rows: Sees) -> Iterator[_Finding]:
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


def _inside(way: tuple[str, ...], rows: Sees) -> Iterator[_Finding]:
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
