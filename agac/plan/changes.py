"""The difference of two definitions in a reviewer's words: `agac runs`, `agac diff`. Stages that
only have another name are found again, and of answers in another form it is told which stages read
what they no longer hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agac.core.errors import key_path
from agac.core.types import JSONValue, Report
from agac.plan.diff import differing
from agac.plan.stage import recorded_stages
from agac.spec.field_shapes import TEXT, FieldShape, kinds_in_words
from agac.spec.graph import ESCALATED

Body = Mapping[str, Any]
Way = tuple[str, ...]

_NAMES = {"system": "instructions", "alias": "short name of the model"}
"""Parts of a stage, as they stand in a stored definition, and what users call them where that is
another word."""

_OF_ESCALATION = ("model", "parameters", "when", "short name of the model")
"""Parts that a stage which escalates does not share with the one that it is of."""

_TEMPLATES = ("prompt", "messages")
_CODE = ("when", "explode", "group_by", "operation")
"""Parts that may name results of other stages: as `${stage.field}`, and without signs around it."""

_MOST_WORDS = 20
"""Of names of stages, joined by `-` and `/`, so many words are looked at."""

_MOST_COMPARED = 50_000_000
"""Characters of stages among which those that only have another name are looked for, which takes a
second or two. Where more have been renamed at once, they are told as gone and new."""

_MOST_FIELDS = 200
"""Of two forms of answers so many fields are compared, those on top first: a schema may hold
itself."""


@dataclass(frozen=True, slots=True)
class Change(Report):
    """One difference, told on a line by `text`: of the workflow, or of a `stage`, by its present
    name. `what` is the part, in a user's words, `before` and `now` are what it says. Where answers
    have another form, `fields` says how, and `breaks` names who reads something that they may no
    longer hold (`reply.prompt`, `output`)."""

    text: str
    what: str
    stage: str | None = None
    before: JSONValue = None
    now: JSONValue = None
    fields: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()


def changes_of(before: Body, after: Body) -> list[Change]:
    """What `after` has that `before` had not: `model of classify: a → b`, `prompt of reply`,
    `vars: shop`, `input`."""
    found = [
        Change(
            f"input: {a} → {b}" if (part, key) == ("input", "path") else f"{part}.{key}",
            key,
            None,
            a,
            b,
        )
        for part in ("input", "rules", "output")
        for key, a, b in _values(before.get(part, {}), after.get(part, {}))
    ]
    # in a list each, as null is a value too
    names = differing(
        *({name: [value] for name, value in one["vars"].items()} for one in (before, after))
    )
    if names:
        was, now = ({name: one["vars"].get(name) for name in names} for one in (before, after))
        found.append(Change(f"vars: {', '.join(names)}", "vars", None, was, now))
    stages, renamed = _renamed(before["stages"], after["stages"])
    old, new = ({stage["name"]: stage for stage in one} for one in (stages, after["stages"]))
    found += [
        Change(f"stage {was} is now {name}", "renamed", name, was, name)
        for was, name in renamed.items()
    ]
    found += [Change(f"stage {name} is new", "new", name) for name in new if name not in old]
    found += [Change(f"stage {name} is gone", "gone", name) for name in old if name not in new]
    if old.keys() == new.keys() and list(old) != list(new):
        found.append(Change("order of the stages", "order", None, list(old), list(new)))
    ends = [[renamed.get(one, one) for one in before.get("results", ())], after.get("results", [])]
    if ends[0] != ends[1] or renamed.get(before.get("rows") or "", before.get("rows")) != after.get(
        "rows"
    ):
        found.append(Change("stages whose results are written", "output", None, *ends))
    parts = [
        part for name in new if name in old for part in _changed_parts(name, old[name], new[name])
    ]
    parts = [
        one
        for one in parts
        if one.what in _OF_ESCALATION or not (one.stage or "").endswith(ESCALATED)
    ]
    return found + _with_readers(parts, {**before, "stages": stages}, after)


def _values(old: Body, new: Body) -> list[tuple[str, Any, Any]]:
    return [(key, old.get(key), new.get(key)) for key in differing(old, new)]


def settings_changes(before: Body, after: Body, way: tuple[str, ...] = ()) -> Iterator[Change]:
    """How settings of agac.yml differ, each told by its path: `providers.local.base_url: a → b`."""
    for key, was, now in _values(before, after):
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from settings_changes(was, now, (*way, key))
        else:
            yield Change(
                f"{key_path((*way, key))}: {_shown(was)} → {_shown(now)}",
                "settings",
                None,
                was,
                now,
            )


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False)


def _changed_parts(name: str, old: Body, new: Body) -> Iterator[Change]:
    for key, a, b in sorted(_values(old, new), key=lambda one: one[0] != "model"):
        what = _NAMES.get(key, key)
        if key == "agent":
            yield from _tool_changes(name, a or {}, b or {})
        elif key == "model":
            yield Change(f"model of {name}: {a or 'none'} → {b or 'none'}", what, name, a, b)
        elif key not in ("params", "children"):
            yield Change(f"{what} of {name}", what, name, a, b)
        elif key == "params" and a is not None and b is not None:  # else one of them calls no model
            values = ", ".join(
                f"{one} {_shown(was)} → {_shown(now)}" for one, was, now in _values(a, b)
            )
            yield Change(f"parameters of {name}: {values}", "parameters", name, a, b)


def _tool_changes(name: str, old: Body, new: Body) -> Iterator[Change]:
    for tool, a, b in _values(
        *({tool["name"]: tool for tool in body.get("tools", ())} for body in (old, new))
    ):
        if a is None:
            how = "new"
        elif b is None:
            how = "gone"
        else:
            how = "changed"
        yield Change(f"tool {tool} of {name} is {how}", "tools", name, a, b)
    others = [key for key in differing(old, new) if key != "tools"] if old and new else []
    if others:
        was, now = ({key: one.get(key) for key in others} for one in (old, new))
        yield Change(f"tools of {name}: {', '.join(others)}", "tools", name, was, now)


# Stages with another name, and who reads what of which stage.


_SIGNS_BEFORE = ".\"'$/:"
_SIGNS_AFTER = "\"'(/:"
"""Signs next to which a word in an expression names no stage; nor does it within a longer word."""

_WORD = re.compile(r"\w+")
_JOINED = re.compile("[-/]+")
_WAY = re.compile(r"((?:\.[\w-]+)*)")
_PLACEHOLDER = re.compile(r"(?<=\$\{)([^.{}]+)((?:\.[\w-]+)*)(?=\})")


def _pattern(key: str, name: str) -> str:
    """What names the stage's result, or a field of it, in such a part of a stage."""
    word = re.escape(name)
    way = _WAY.pattern
    if key in _TEMPLATES:
        return rf"(?<=\$\{{){word}{way}(?=\}})"
    return rf"(?<![\w{re.escape(_SIGNS_BEFORE)}]){word}(?![\w{re.escape(_SIGNS_AFTER)}]){way}"


def _named_in(key: str, text: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """What `_pattern` finds of all these names in one pass: each name, and the way behind it."""
    if key in _TEMPLATES:
        yield from (
            (match[1], match[2]) for match in _PLACEHOLDER.finditer(text) if match[1] in names
        )
        return
    words = [*_WORD.finditer(text)]
    for place, first in enumerate(words):
        if text[first.start() - 1 : first.start()] in _SIGNS_BEFORE and first.start():
            continue
        end = first.start()
        for word in words[place : place + _MOST_WORDS]:
            if end > first.start() and not _JOINED.fullmatch(text, end, word.start()):
                break
            end = word.end()
            after = text[end : end + 1]
            if text[first.start() : end] in names and (not after or after not in _SIGNS_AFTER):
                way = _WAY.match(text, end)
                yield text[first.start() : end], way[1] if way else ""


def _mapped(stage: Body, change: Callable[[str, str], str]) -> dict[str, Any]:
    """The stage with all texts changed that may name others; `change` is told of which part each
    is."""

    def inner(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [inner(key, one) for one in value]
        if isinstance(value, dict):
            return {name: inner(key, one) for name, one in value.items()}
        return change(key, value) if isinstance(value, str) else value

    return {
        key: inner(key, value) if key in (*_TEMPLATES, *_CODE) else value
        for key, value in stage.items()
    }


def _renamed(
    before: Sequence[Body], after: Sequence[Body]
) -> tuple[Sequence[Body], dict[str, str]]:
    """The stages before by the names that they have now, and those that only have another name."""
    new = {stage["name"]: stage for stage in after}
    found = dict[str, str]()
    old = {stage["name"]: stage for stage in before}
    gone = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    size_of_gone = sum(len(json.dumps(old[name])) for name in gone)
    if gone and len(gone) * len(json.dumps(before)) + len(added) * size_of_gone > _MOST_COMPARED:
        return before, found
    for was in gone:
        for name in added:
            if _called(old[was], was, name) == new[name]:
                renamed = (_called(stage, was, name) for stage in old.values())
                old = {stage["name"]: stage for stage in renamed}
                found[was] = name
                added.remove(name)
                break
    return [*old.values()], found


def _called(stage: Body, was: str, name: str) -> dict[str, Any]:
    """A stage where another one, or it itself, has the new name."""
    new = _mapped(
        stage, lambda key, text: re.sub(_pattern(key, was), lambda match: f"{name}{match[1]}", text)
    )
    needs = stage.get("needs")
    new["needs"] = (
        [name if one == was else one for one in needs] if isinstance(needs, list) else needs
    )
    new |= {key: name for key in ("name", "needs") if stage.get(key) == was}
    if stage["name"] == was and "children" in stage:
        new["children"] = [
            {**one, "name": one["name"].replace(f"{was}/", f"{name}/", 1)}
            for one in stage["children"]
        ]
    # which stands in the stage
    if stage["name"] == was and (schema := stage.get("schema")) and schema["name"] == was:
        new["schema"] = {**schema, "name": name}
    return new


def _with_readers(parts: Sequence[Change], before: Body, after: Body) -> list[Change]:
    """The changes of stages, with those of the form of their answers told by their fields, and by
    who reads them."""
    old, new = ({one.name: one.shape for one in recorded_stages(body)} for body in (before, after))
    ends = frozenset(after.get("results", [after["stages"][-1]["name"]]))
    found = list(parts)
    changed = [
        name
        for name in new
        if name in old and old[name] != new[name] and not name.endswith(ESCALATED)
    ]
    readers_of = _readers(after, frozenset(changed))
    schemas = {one.stage: place for place, one in enumerate(parts) if one.what == "schema"}
    for name in changed:
        was, now = (
            TEXT if shape is None else FieldShape(shape) for shape in (old[name], new[name])
        )
        fields = list(_field_changes(was, now))
        if not fields:
            continue
        gone = [way for way, _, breaks in fields if breaks]
        readers = [
            part for part, way in readers_of[name] if any(way[: len(one)] == one for one in gone)
        ]
        breaks = tuple(dict.fromkeys([*readers, *(["output"] if name in ends and gone else [])]))
        said = tuple(f"{'.'.join(way) or 'the answer'} {text}" for way, text, _ in fields)
        place = schemas.get(name)
        if place is None:
            place = len(found)
            found.append(Change(f"answers of {name}", "answers", name))
        found[place] = replace(found[place], fields=said, breaks=breaks)
    return found


def _readers(after: Body, names: Collection[str]) -> dict[str, list[tuple[str, Way]]]:
    """Who reads what of these stages' answers, by their names: a part of a stage, and the way into
    them."""
    found: dict[str, list[tuple[str, Way]]] = {name: [] for name in names}
    for stage in after["stages"]:

        def note(key: str, text: str, reader: str = stage["name"]) -> str:
            for name, way in _named_in(key, text, names):
                found[name].append((f"{reader}.{key}", tuple(way.split(".")[1:])))
            return text

        _mapped(stage, note)
    return found


def _field_changes(old: FieldShape, new: FieldShape) -> Iterator[tuple[Way, str, bool]]:
    """How answers differ: where, in words, and whether who reads that may not find what was
    there."""
    ways: list[Way] = [()]
    for way in ways:  # which grow meanwhile
        before = old.kinds(way)
        now = new.kinds(way)
        if before is not None and now is not None and before != now:
            yield way, f"was {kinds_in_words(before)}, is {kinds_in_words(now)}", not now <= before
        was = _choices(old, way)
        values = _choices(new, way)
        if was is not None and values is not None and was != values:
            said = (("is no longer", was - values), ("may be", values - was))
            yield (
                way,
                "; ".join(f"{how} {', '.join(sorted(one))}" for how, one in said if one),
                False,
            )
        known = old.names(way)
        names = new.names(way)
        if known is None or names is None:
            continue
        yield from (((*way, name), "is gone", True) for name in sorted(known - names))
        yield from (((*way, name), "is new", False) for name in sorted(names - known))
        optional = known & names & (_required(old, way) - _required(new, way))
        yield from (((*way, name), "may be missing", True) for name in sorted(optional))
        ways += [(*way, name) for name in sorted(known & names)] if len(ways) < _MOST_FIELDS else []


def _choices(shape: FieldShape, way: Way) -> set[str] | None:
    """The values that may stand there; None: any."""
    values = shape.values(way) or ()
    known = values and all("enum" in one for one in values)
    if known:
        return {_shown(one) for value in values for one in value["enum"]}
    return None


def _required(shape: FieldShape, way: Way) -> set[str]:
    values = shape.values(way)
    if values:
        return set[str].intersection(*(set(one.get("required", ())) for one in values))
    return set()
