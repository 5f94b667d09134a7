"""The difference of two definitions in a reviewer's words: `agac runs`, `agac diff`.

Stages that only have another name are recognized. For answers that have another form, the change
names the stages that read what is no longer there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from agac.core.errors import key_path
from agac.core.types import JSONValue, Report
from agac.plan.answer_changes import AnswerFieldChange, Way, field_changes
from agac.plan.diff import differing, shown_value
from agac.plan.renames import Body, names_in, renamed_stages, with_texts
from agac.plan.stage import recorded_stages
from agac.spec.field_shapes import TEXT, FieldShape
from agac.spec.graph import ESCALATED

_NAMES = {"system": "instructions", "alias": "short name of the model"}
"""What users call parts of a stage that have another name in a stored definition."""

_OF_ESCALATION = ("model", "parameters", "when", "short name of the model")
"""Parts in which a stage that escalates differs from the stage that it belongs to."""


@dataclass(frozen=True, slots=True)
class Change(Report):
    """One difference of two definitions."""

    text: str
    """The difference on one line."""
    what: str
    """The part that differs, in a user's words."""
    stage: str | None = None
    """The present name of the stage; None: the workflow itself differs."""
    before: JSONValue = None
    """What the part said."""
    now: JSONValue = None
    """What the part says."""
    fields: tuple[str, ...] = ()
    """How fields of answers differ, if those have another form."""
    breaks: tuple[str, ...] = ()
    """Who reads something that answers may no longer hold: `reply.prompt`, `output`."""


class _Difference(NamedTuple):
    """A key whose values differ."""

    key: str
    before: Any
    now: Any


def changes_of(before: Body, after: Body) -> list[Change]:
    """Returns what `after` has that `before` had not: `model of classify: a → b`, `prompt of
    reply`, `vars: shop`, `input`."""
    old_stages, new_names = renamed_stages(before["stages"], after["stages"])
    old = {stage["name"]: stage for stage in old_stages}
    new = {stage["name"]: stage for stage in after["stages"]}
    changes = [
        *_setting_parts(before, after),
        *_variable_changes(before["vars"], after["vars"]),
        *(
            Change(f"stage {old_name} is now {name}", "renamed", name, old_name, name)
            for old_name, name in new_names.items()
        ),
        *_stage_lists(old, new),
        *_output_changes(before, after, new_names),
    ]
    parts = [
        change
        for name in new
        if name in old
        for change in _changed_parts(name, old[name], new[name])
        if change.what in _OF_ESCALATION or not name.endswith(ESCALATED)
    ]
    return changes + _with_readers(parts, {**before, "stages": old_stages}, after)


def _setting_parts(before: Body, after: Body) -> Iterator[Change]:
    """Yields the changes of the input, the rules and the output."""
    for part in ("input", "rules", "output"):
        for key, was, now in _differences(before.get(part, {}), after.get(part, {})):
            text = f"{part}.{key}"
            if text == "input.path":
                text = f"input: {was} → {now}"
            yield Change(text, key, None, was, now)


def _variable_changes(before: Body, after: Body) -> Iterator[Change]:
    """Yields one change of all variables that differ."""
    absent = object()
    names = [
        name
        for name in sorted(before.keys() | after.keys())
        if before.get(name, absent) != after.get(name, absent)  # null is a value too
    ]
    if names:
        was = {name: before.get(name) for name in names}
        now = {name: after.get(name) for name in names}
        yield Change(f"vars: {', '.join(names)}", "vars", None, was, now)


def _stage_lists(old: Body, new: Body) -> Iterator[Change]:
    """Yields the stages that are new or gone, and another order of all of them."""
    yield from (Change(f"stage {name} is new", "new", name) for name in new if name not in old)
    yield from (Change(f"stage {name} is gone", "gone", name) for name in old if name not in new)
    if old.keys() == new.keys() and list(old) != list(new):
        yield Change("order of the stages", "order", None, list(old), list(new))


def _output_changes(before: Body, after: Body, new_names: Mapping[str, str]) -> Iterator[Change]:
    """Yields a change of the stages whose results are written, and of the rows."""
    old_ends = [new_names.get(name, name) for name in before.get("results", ())]
    new_ends = after.get("results", [])
    old_rows = before.get("rows")
    if old_rows:
        old_rows = new_names.get(old_rows, old_rows)
    if old_ends != new_ends or old_rows != after.get("rows"):
        yield Change("stages whose results are written", "output", None, old_ends, new_ends)


def _differences(old: Body, new: Body) -> list[_Difference]:
    return [_Difference(key, old.get(key), new.get(key)) for key in differing(old, new)]


def settings_changes(before: Body, after: Body, way: tuple[str, ...] = ()) -> Iterator[Change]:
    """Yields how settings of agac.yml differ, each with its path: `providers.local.base_url: a →
    b`."""
    for key, was, now in _differences(before, after):
        path = (*way, key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from settings_changes(was, now, path)
        else:
            text = f"{key_path(path)}: {shown_value(was)} → {shown_value(now)}"
            yield Change(text, "settings", None, was, now)


def _changed_parts(name: str, old: Body, new: Body) -> Iterator[Change]:
    """Yields the changes of one stage, its model first."""
    for key, was, now in sorted(_differences(old, new), key=lambda part: part.key != "model"):
        what = _NAMES.get(key, key)
        match key:
            case "agent":
                yield from _tool_changes(name, was or {}, now or {})
            case "model":
                text = f"model of {name}: {was or 'none'} → {now or 'none'}"
                yield Change(text, what, name, was, now)
            case "params":
                if was is not None and now is not None:  # otherwise one of them calls no model
                    yield _parameter_change(name, was, now)
            case "children":
                pass  # an agent that another calls is among its tools
            case _:
                yield Change(f"{what} of {name}", what, name, was, now)


def _parameter_change(name: str, old: Body, new: Body) -> Change:
    values = ", ".join(
        f"{key} {shown_value(was)} → {shown_value(now)}" for key, was, now in _differences(old, new)
    )
    return Change(f"parameters of {name}: {values}", "parameters", name, dict(old), dict(new))


def _tool_changes(name: str, old: Body, new: Body) -> Iterator[Change]:
    old_tools = {tool["name"]: tool for tool in old.get("tools", ())}
    new_tools = {tool["name"]: tool for tool in new.get("tools", ())}
    for tool, was, now in _differences(old_tools, new_tools):
        if was is None:
            how = "new"
        elif now is None:
            how = "gone"
        else:
            how = "changed"
        yield Change(f"tool {tool} of {name} is {how}", "tools", name, was, now)
    if not old or not new:
        return
    keys = [key for key in differing(old, new) if key != "tools"]
    if keys:
        was = {key: old.get(key) for key in keys}
        now = {key: new.get(key) for key in keys}
        yield Change(f"tools of {name}: {', '.join(keys)}", "tools", name, was, now)


def _with_readers(parts: Sequence[Change], before: Body, after: Body) -> list[Change]:
    """Returns the changes of stages; those of the form of answers have their fields, and who reads
    these."""
    changes = list(parts)
    old_shapes = {stage.name: stage.shape for stage in recorded_stages(before)}
    new_shapes = {stage.name: stage.shape for stage in recorded_stages(after)}
    changed = [
        name
        for name in new_shapes
        if name in old_shapes
        and old_shapes[name] != new_shapes[name]
        and not name.endswith(ESCALATED)
    ]
    written = frozenset(after.get("results", [after["stages"][-1]["name"]]))
    reads_of = _reads(after, frozenset(changed))
    positions = {
        change.stage: index for index, change in enumerate(parts) if change.what == "schema"
    }
    for name in changed:
        fields = list(field_changes(_shape(old_shapes[name]), _shape(new_shapes[name])))
        if not fields:
            continue
        position = positions.get(name)
        if position is None:
            position = len(changes)
            changes.append(Change(f"answers of {name}", "answers", name))
        changes[position] = replace(
            changes[position],
            fields=tuple(f"{'.'.join(field.way) or 'the answer'} {field.text}" for field in fields),
            breaks=_broken_readers(fields, reads_of[name], is_written=name in written),
        )
    return changes


def _shape(body: Mapping[str, Any] | None) -> FieldShape:
    return TEXT if body is None else FieldShape(body)


class _Read(NamedTuple):
    """A part of a stage, and where in an answer it reads."""

    part: str
    way: Way


def _broken_readers(
    fields: Sequence[AnswerFieldChange], reads: Sequence[_Read], *, is_written: bool
) -> tuple[str, ...]:
    """Returns who reads a field that answers may no longer hold, `output` included if they are
    written."""
    gone = [field.way for field in fields if field.breaks]
    readers = [read.part for read in reads if any(read.way[: len(way)] == way for way in gone)]
    if is_written and gone:
        readers.append("output")
    return tuple(dict.fromkeys(readers))


def _reads(after: Body, names: Collection[str]) -> dict[str, list[_Read]]:
    """Returns who reads what of these stages' answers, by the stages' names."""
    reads_of: dict[str, list[_Read]] = {name: [] for name in names}
    for stage in after["stages"]:

        def note(key: str, text: str, reader: str = stage["name"]) -> str:
            for name, path in names_in(key, text, names):
                reads_of[name].append(_Read(f"{reader}.{key}", tuple(path.split(".")[1:])))
            return text

        with_texts(stage, note)
    return reads_of
