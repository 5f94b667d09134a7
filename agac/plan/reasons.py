"""Why a task has to be asked: what differs from the last time its row's stage was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agac.spec.template import as_text

FRESH = "--fresh"
NEW_ROW = "new row"
ROW_CHANGED = "row changed"
NEW_STAGE = "new stage"
NOT_YET = "not asked yet"
FAILED = "failed before"
TOO_OLD = "too old"
DROPPED = "answer no longer stored"
MEMBERS_CHANGED = "rows of the group changed"

PROMPT, INSTRUCTIONS, VARS = "prompt changed", "instructions changed", "vars changed"
OTHER_TEXT = (PROMPT, INSTRUCTIONS, VARS)
"""Reasons for which requests are of another length than those before."""

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


def definition_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], variables: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[str]:
    """What differs between two definitions of one stage, in words. `variables` are those of both workflows."""
    changes = []
    if any(before.get(key) != after.get(key) for key in ("when", "otherwise")):
        changes.append("when changed")
    makes = [key for key in ("explode", "group_by", "reduce", "incomplete") if before.get(key) != after.get(key)]
    changes += [f"{key} changed" for key in makes]
    if "operation" in before or "operation" in after:
        return changes if before.get("operation") == after.get("operation") else [*changes, "what it does changed"]
    other_prompt, other_system = before["prompt"] != after["prompt"], before["system"] != after["system"]
    by_vars = other_system and _differ_by_vars(before["system"], after["system"], variables)
    if other_prompt:
        changes.append(PROMPT)
    if other_system and not by_vars:
        changes.append(INSTRUCTIONS)
    if before.get("messages") != after.get("messages"):
        changes.append("messages changed")
    if before.get("visible") != after.get("visible"):
        changes.append("visible changed")
    if before.get("output_field") != after.get("output_field"):
        changes.append("output_field changed")
    if any(before.get(key) != after.get(key) for key in ("replicas", "vote")):
        changes.append("replicas changed")
    if _shape(before) != _shape(after):
        changes.append("schema changed")
    if (before["model"], before["params"]) != (after["model"], after["params"]):
        changes.append("model changed")
    if before.get("reuse", "content") != after.get("reuse", "content"):
        changes.append("reuse changed")
    if by_vars or (not changes and _used(_texts(before), variables[0]) != _used(_texts(after), variables[1])):
        changes.append(VARS)
    return changes


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


def _texts(stage: Mapping[str, Any]) -> str:
    """Every text in which a variable may be named."""
    return "\n".join([stage["prompt"], *(one["content"] for one in stage.get("messages", ()))])


def _used(prompt: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that a prompt names, with their values."""
    return {name: value for name, value in variables.items() if f"${{vars.{name}" in prompt}
