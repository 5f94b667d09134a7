"""Why a task has to be run: what differs from the last time."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agac.core.text import split_lines
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

PEOPLE = "waits for a person"
REDO = "somebody wants another answer"
NOT_IN_SCOPE = "not selected"
LEFT = "failed too often"
NO_LEAD = "no answer of its replicas leads as far as it has to"
NOT_RETRIED = "failed before, not tried again (--no-retry-failed)"
FAILED_IN_BATCH = "failed in a batch"
MISSING_FIELD = "field missing"
EMPTY_PROMPT = "prompt is empty"
GUARD_FAILS = "when cannot be decided"
UNFIT = "the row lacks a field"
NOT_MADE = "list missing or not a list"
NOT_WHOLE = "rows of the group failed"
WAITS = "rows of the group are not to be asked"
OF_THE_ROW = frozenset({MISSING_FIELD, GUARD_FAILS, UNFIT, NOT_MADE})
"""Why a task cannot be asked, whatever else is asked: its row has to change, or what names its
fields."""

TOO_LARGE = "too many rows for one call; add `reduce`"
TOO_LARGE_FOR_FUNCTION = "too many rows for a function; group by one more field first"


def passed_on(reason: str, name: str) -> str:
    """Why the stages after `name` are run, which is run for this reason."""
    if reason in (NEW_ROW, FRESH, NOT_YET):
        return reason
    return upstream_changed(name)


def upstream_changed(name: str) -> str:
    """The stage before gave, or will give, another answer."""
    return f"upstream {name} changed"


def upstream_blocked(name: str) -> str:
    """The stage before cannot be run, and this one needs its result."""
    return f"upstream {name} blocked"


PROMPT = "prompt changed"
INSTRUCTIONS = "instructions changed"
VARS = "vars changed"
# reasons for which requests are of another length than those before
OTHER_TEXT = (PROMPT, INSTRUCTIONS, VARS)

_OF_ALL = ("when", "otherwise", "explode", "group_by", "reduce", "incomplete", "operation")
"""The parts of a stage's definition that any stage has, in the order in which their changes are
reported."""

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
"""Those of stages that call a model; other parts follow them."""

_REASONS = {
    "otherwise": "when",
    "operation": "what it does",
    "system": "instructions",
    "vote": "replicas",
    "params": "model",
    "agent": "tools",
}
"""What is reported as changed where it is not the part's own name."""

_NO_REASONS = {"name", "needs", "alias", "children"}
"""Parts that decide no answer by themselves: an agent that another calls is among its tools."""


def stage_changes(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    variables: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> list[str]:
    """Why one stage with these two definitions has to be run. `variables` are those of both
    workflows."""
    asks = "operation" not in before and "operation" not in after
    changed = set(differing(before, after))
    old_shape, new_shape = (
        one["schema"] and one["schema"]["body"] if asks else None for one in (before, after)
    )
    if old_shape == new_shape:
        changed.discard("schema")  # its name alone
    by_vars = (
        asks
        and "system" in changed
        and _differ_by_vars(before["system"], after["system"], variables)
    )
    if by_vars:
        changed.discard("system")
    if "agent" in changed and differing(before.get("agent") or {}, after.get("agent") or {}) == [
        "reads"
    ]:
        changed ^= {"agent", "reads"}  # files that tools read, and not the tools
    parts = [*_OF_ALL, *([*_OF_ASKING, *sorted(changed - _NO_REASONS)] if asks else [])]
    found = list(
        dict.fromkeys(f"{_REASONS.get(key, key)} changed" for key in parts if key in changed)
    )
    if asks and (
        by_vars or (not found and _used(before, variables[0]) != _used(after, variables[1]))
    ):
        found.append(VARS)
    return found


def value_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str], what: str = "{}"
) -> list[dict[str, Any]]:
    """Of these names those whose values differ, with both values; `what` is how a name is shown."""
    both = [(name, before.get(name), now.get(name)) for name in names]
    return [{"what": what.format(name), "before": a, "now": b} for name, a, b in both if a != b]


def text_diff(before: str, now: str) -> list[str]:
    """The lines of two texts that differ, with one around them, as `diff -u` shows them."""
    return list(
        difflib.unified_diff(
            split_lines(before), split_lines(now), "before", "now", lineterm="", n=1
        )
    )


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, sorted. A key that is left out is null."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _differ_by_vars(
    before: str | None, after: str | None, known: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> bool:
    """Whether the instructions are the same but for values of variables, which are stored as they
    were filled in."""
    values: dict[
        str, set[str]
    ] = {}  # the texts that were filled in and are others now, with what they may be now
    old, new = known
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            values.setdefault(as_text(old[name]), set()).add(as_text(new[name]))
    if before is None or after is None or not values or "" in values:
        return False
    places = {0}  # in `after`, up to where it is what `before` could have become
    for part in re.split(
        f"({'|'.join(map(re.escape, sorted(values, key=len, reverse=True)))})", before
    ):
        texts = {part, *values.get(part, ())}
        places = {
            place + len(text) for place in places for text in texts if after.startswith(text, place)
        }
    return len(after) in places


def _used(stage: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that the texts of a stage name, with their values."""
    texts = "\n".join([stage["prompt"], *(one["content"] for one in stage.get("messages", ()))])
    return {name: value for name, value in variables.items() if f"${{vars.{name}" in texts}
