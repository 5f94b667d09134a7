"""Why a task has to be asked: what differs from the last time its row's stage was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FRESH = "--fresh"
NEW_ROW = "new row"
ROW_CHANGED = "row changed"
NEW_STAGE = "new stage"
NOT_YET = "not asked yet"
FAILED = "failed before"
TOO_OLD = "too old"
DROPPED = "answer no longer stored"


def upstream_changed(name: str) -> str:
    """The stage before gave, or will give, another answer."""
    return f"upstream {name} changed"


def definition_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], variables: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[str]:
    """What differs between two definitions of one stage, in words. `variables` are those of both workflows."""
    changes = []
    if (before["prompt"], before["system"]) != (after["prompt"], after["system"]):
        changes.append("prompt changed")
    if before.get("messages") != after.get("messages"):
        changes.append("messages changed")
    if _shape(before) != _shape(after):
        changes.append("schema changed")
    if (before["model"], before["params"]) != (after["model"], after["params"]):
        changes.append("model changed")
    if before.get("reuse", "content") != after.get("reuse", "content"):
        changes.append("reuse changed")
    if not changes and _used(_texts(before), variables[0]) != _used(_texts(after), variables[1]):
        changes.append("vars changed")
    return changes


def _shape(stage: Mapping[str, Any]) -> Any:
    return stage["schema"]["body"] if stage["schema"] else None


def _texts(stage: Mapping[str, Any]) -> str:
    """Every text in which a variable may be named."""
    return "\n".join([stage["prompt"], *(one["content"] for one in stage.get("messages", ()))])


def _used(prompt: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that a prompt names, with their values."""
    return {name: value for name, value in variables.items() if f"${{vars.{name}" in prompt}
