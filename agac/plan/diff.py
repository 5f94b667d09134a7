"""Why a task has to be run: what differs from the last time, and what differs between two definitions."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agac.spec.templates import as_text

FRESH = "--fresh"
NEW_ROW = "new row"
ROW_CHANGED = "row changed"
NEW_STAGE = "new stage"
NOT_YET = "not asked yet"
FAILED = "failed before"
TOO_OLD = "too old"
DROPPED = "answer no longer stored"
MEMBERS_CHANGED = "rows of the group changed"

NOT_IN_SCOPE = "not selected"
LEFT = "failed too often"
NOT_RETRIED = "failed before, not tried again (--no-retry-failed)"
MISSING_FIELD = "field missing"
GUARD_FAILS = "when cannot be decided"
UNFIT = "the row lacks a field"
NOT_MADE = "list missing or not a list"
NOT_WHOLE = "rows of the group failed"
WAITS = "rows of the group are not to be asked"
TOO_LARGE = "too many rows for one call; add `reduce`"


def passed_on(reason: str, name: str) -> str:
    """Why what follows the stage `name` is asked, which is asked for this reason."""
    return reason if reason in (NEW_ROW, FRESH, NOT_YET) else upstream_changed(name)


def upstream_changed(name: str) -> str:
    """The stage before gave, or will give, another answer."""
    return f"upstream {name} changed"


def upstream_blocked(name: str) -> str:
    """The stage before cannot be asked, so that this one has nothing to follow."""
    return f"upstream {name} blocked"


PROMPT, INSTRUCTIONS, VARS = "prompt changed", "instructions changed", "vars changed"
OTHER_TEXT = (PROMPT, INSTRUCTIONS, VARS)
"""Reasons for which requests are of another length than those before."""

_NAMES = {"system": "instructions", "alias": "short name of the model", "params": "parameters"}
"""Parts of a stage, as they stand in a stored definition, and what users call them where that is another word."""

_OF_ALL = ("when", "otherwise", "explode", "group_by", "reduce", "incomplete", "operation")
"""The parts of a stage's definition that any stage has, in the order in which their changes are told."""

_OF_ASKING = (
    "prompt",
    "system",
    "messages",
    "visible",
    "output_field",
    "replicas",
    "vote",
    "schema",
    "model",
    "params",
)
"""Those of stages that ask a model; what is not here follows them."""

_REASONS = {
    "otherwise": "when",
    "operation": "what it does",
    "system": "instructions",
    "vote": "replicas",
    "params": "model",
}
"""What is said to have changed where it is not the part's own name."""

_NO_REASONS = {"name", "needs", "alias"}
"""Parts that decide no answer by themselves."""


def workflow_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What `after` has that `before` had not: `model of classify: a → b`, `prompt of reply`, `vars: shop`, `input`."""
    variables = _differing(*({name: [value] for name, value in one["vars"].items()} for one in (before, after)))
    return [
        *_input(before["input"], after["input"]),
        *([f"vars: {', '.join(variables)}"] if variables else []),
        *_stages(before["stages"], after["stages"]),
    ]


def stage_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], variables: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[str]:
    """Why one stage with these two definitions has to be asked. `variables` are those of both workflows."""
    asks = "operation" not in before and "operation" not in after
    changed = set(_differing(before, after))
    if asks and _shape(before) == _shape(after):
        changed.discard("schema")  # its name alone
    by_vars = asks and "system" in changed and _differ_by_vars(before["system"], after["system"], variables)
    if by_vars:
        changed.discard("system")
    parts = [*_OF_ALL, *([*_OF_ASKING, *sorted(changed - _NO_REASONS)] if asks else [])]
    found = list(dict.fromkeys(f"{_REASONS.get(key, key)} changed" for key in parts if key in changed))
    if asks and (by_vars or (not found and _used(before, variables[0]) != _used(after, variables[1]))):
        found.append(VARS)
    return found


def value_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str], what: str = "{}"
) -> list[dict[str, Any]]:
    """Of these names those whose values differ, with both values; `what` is how a name is told."""
    return [
        {"what": what.format(name), "before": before.get(name), "now": now.get(name)}
        for name in names
        if before.get(name) != now.get(name)
    ]


def text_diff(before: str, now: str) -> list[str]:
    """The lines of two texts that differ, with one around them, as `diff -u` shows them."""
    return list(difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", lineterm="", n=1))


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, sorted. A key that is left out is null."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _input(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["path"] != new["path"]:
        yield f"input: {old['path']} → {new['path']}"
    yield from (f"input.{key}" for key in _differing(old, new) if key != "path")


def _stages(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    old, new = ({stage["name"]: stage for stage in stages} for stages in (before, after))
    yield from (f"stage {name} is new" for name in new if name not in old)
    yield from (f"stage {name} is gone" for name in old if name not in new)
    if old.keys() == new.keys() and list(old) != list(new):
        yield "order of the stages"
    for name in new:
        if name in old:
            yield from _parts(name, old[name], new[name])


def _parts(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old.get("model") != new.get("model"):
        yield f"model of {name}: {old.get('model', 'none')} → {new.get('model', 'none')}"
    for key in _differing(old, new):
        if key == "params":
            if key in old and key in new:  # else one of them asks no model, which is said
                yield f"{_NAMES[key]} of {name}: {', '.join(_params(old[key], new[key]))}"
        elif key != "model":
            yield f"{_NAMES.get(key, key)} of {name}"


def _params(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}" for name in _differing(old, new))


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _differ_by_vars(
    before: str | None, after: str | None, variables: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> bool:
    """Whether the instructions are the same but for values of variables, which are stored as they were filled in."""
    values = _other_values(*variables)
    if before is None or after is None or not values or "" in values:
        return False
    places = {0}  # in `after`, up to where it is what `before` could have become
    for part in re.split(f"({'|'.join(map(re.escape, sorted(values, key=len, reverse=True)))})", before):
        texts = {part, *values.get(part, ())}
        places = {place + len(text) for place in places for text in texts if after.startswith(text, place)}
    return len(after) in places


def _other_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, set[str]]:
    """The texts that variables filled in before and that are others now, with what they may be now."""
    found: dict[str, set[str]] = {}
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            found.setdefault(as_text(before[name]), set()).add(as_text(after[name]))
    return found


def _shape(stage: Mapping[str, Any]) -> Any:
    return stage["schema"]["body"] if stage["schema"] else None


def _used(stage: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that the texts of a stage name, with their values."""
    texts = "\n".join([stage["prompt"], *(one["content"] for one in stage.get("messages", ()))])
    return {name: value for name, value in variables.items() if f"${{vars.{name}" in texts}
