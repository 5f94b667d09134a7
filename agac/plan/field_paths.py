"""Checks of a path into a field of a row or into a result, where a key or a text names one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agac.core.errors import Problem, Where, did_you_mean, nearest
from agac.plan.scopes import Named, StageScope
from agac.spec.field_shapes import SINGLE, TEXT, FieldShape, kinds_in_words
from agac.spec.templates import ITEM


class Doubt(str):
    """A message that is only a warning: rows may have any field."""

    __slots__ = ()


def problem_of(where: Where, message: str) -> Problem:
    """Makes the problem of a message: a warning if that is a Doubt."""
    return Problem(where, message, "warning" if isinstance(message, Doubt) else "error")


def path_fault(path: tuple[str, ...], rows: StageScope) -> str | None:
    """Returns what is wrong with a path into a field of the row or into a result."""
    head = path[0]
    if head in rows.earlier and head in rows.fields.shapes:
        return (
            f"{head!r} could be the field of that name or the result of stage {head!r}; "
            "rename the one or the other"
        )
    if rows.has(head):
        return inner_fault(path, rows)
    label_fault = rows.label_fault(head)
    if label_fault:
        return label_fault
    return _unknown_head(path, rows)


def _unknown_head(path: tuple[str, ...], rows: StageScope) -> str | None:
    """Returns what is wrong with a path that begins with no known name."""
    head = path[0]
    written = ".".join(path)
    if len(path) > 1 and written in rows.fields.shapes:
        return f"the field {written!r} cannot be named here, for its dot; rename it first"
    if head in rows.every_stage:
        return f"names the stage {head!r}, which is not upstream of this one; add it to needs"
    if head in rows.workflow.disabled:
        return f"names the stage {head!r}, which is not enabled"
    names = rows.names()
    usable = Named(rows)
    if not rows.fields.open:
        hint = did_you_mean(head, names, among=usable)
        return f"names the field {head!r}, which rows do not have; {hint}"
    first = rows.first_lacking(path)
    if first is not None:
        hint = did_you_mean(written, first.names())
        return f"names the field {written!r}, which {first.words()} has; {hint}"
    near = nearest(head, names, among=usable)
    if near is None:
        return None
    return Doubt(
        f"{head!r} is no known name, unless rows have such a field; did you mean {near!r}?"
    )


def inner_fault(path: tuple[str, ...], rows: StageScope) -> str | None:
    """Returns why a path into a known field or result leads nowhere, as far as that is known."""
    head = path[0]
    rest = path[1:]
    if not rest:
        return None
    if head in rows.earlier and rows.earlier[head].shape is None:
        return (
            f"stage {head!r} answers with plain text, which has no field {rest[0]!r}; give "
            "it an output_schema"
        )
    shape = rows.shape((head,))
    if shape in (TEXT, SINGLE):
        return f"the column {head!r} holds text, which has no field {rest[0]!r}"
    for depth, part in enumerate(rest):
        before = ".".join(path[: depth + 1])
        kinds = shape.kinds(rest[:depth])
        if kinds is not None and "object" not in kinds:
            return _no_object(before, part, kinds)
        names = shape.names(rest[:depth])
        if names is None:
            return None
        if part not in names:
            known = [f"{before}.{name}" for name in sorted(names)]
            return f"{before}.{part}: no such field; {did_you_mean(f'{before}.{part}', known)}"
    return None


def _no_object(written: str, field: str, kinds: frozenset[str]) -> str:
    message = f"{written} is {kinds_in_words(kinds)}, which has no field {field!r}"
    if "array" not in kinds:
        return message
    return f"{message}; explode {written}, and then {ITEM}.{field}"


def no_list_fault(path: tuple[str, ...], rows: StageScope) -> str | None:
    """Returns why no rows can be made of the items of this value."""
    head = path[0]
    if head in rows.earlier and rows.earlier[head].shape is None:
        return (
            f"stage {head!r} answers with plain text, which has no items; "
            f"give it an output_schema with a field that is a list, and explode {head}.field"
        )
    shape = rows.shape(path)
    if shape in (TEXT, SINGLE):
        return (
            f"the column {head!r} holds text, not a list; make a list of it in a python "
            "stage before this one"
        )
    kinds = shape.kinds()
    if kinds is None or "array" in kinds:
        return None
    near_lists = [*_lists_in(path, rows), *_lists_in(path[:-1], rows)]
    hint = f"; did you mean {near_lists[0]!r}?" if near_lists else ""
    return f"{'.'.join(path)} is {kinds_in_words(kinds)}, not a list{hint}"


def _lists_in(path: tuple[str, ...], rows: StageScope) -> list[str]:
    """Returns the fields of the value at `path` that may be lists, as they are written."""
    if not path:
        return []
    paths = [(*path, name) for name in sorted(rows.shape(path).names() or ())]
    return [".".join(inner) for inner in paths if "array" in (rows.shape(inner).kinds() or ())]


def optional_fault(path: tuple[str, ...], rows: StageScope) -> str | None:
    """Returns the warning that answers may lack the field which a key of the stage names."""
    lack = possible_lack(path, rows)
    if lack is None:
        return None
    return Doubt(
        f"{'.'.join(path)}: {lack}, and a row fails here without it; make it required in the "
        "output_schema"
    )


def possible_lack(path: Sequence[str | int], rows: StageScope) -> str | None:
    """Returns in words whose answer may lack which part of a path into a result; None if nothing
    is known to be missing."""
    head = str(path[0])
    if head not in rows.earlier or head in rows.fields.shapes:
        return None
    shape = rows.earlier[head].shape
    if not shape:
        return None
    return optional_part(head, [str(part) for part in path[1:]], FieldShape(shape))


def optional_part(head: str, rest: Sequence[str], shape: FieldShape) -> str | None:
    """Returns in words which part of the path `rest` into the value `head` may be missing."""
    depth = shape.optional(rest)
    if depth is None:
        return None
    if depth == 0 and head != ITEM:
        owner = f"the answer of stage {head!r}"
    else:
        owner = ".".join([head, *rest[:depth]])
    return f"{owner} may lack {rest[depth]!r}"


def is_asked_for(path: Sequence[str | int], condition: str) -> bool:
    """True if a condition asks whether a part of a path is there: `has(tag.note)`, `"note" in
    tag`."""
    bare = re.sub(r"\s", "", condition).replace("'", '"')
    parts = [str(part) for part in path]
    beginnings = (".".join(parts[:end]) for end in range(2, len(parts) + 1))
    if any(f"has({beginning})" in bare for beginning in beginnings):
        return True
    return any(f'"{part}"in' in bare for part in parts[1:])
