"""Why a task has to be run: what differs from the last time."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
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
REJECTED = "rejected by a person"
FAILED_IN_BATCH = "failed in a batch"
MISSING_FIELD = "field missing"
EMPTY_PROMPT = "prompt is empty"
GUARD_FAILS = "when cannot be decided"
UNFIT = "the row lacks a field"
NOT_MADE = "list missing or not a list"
NOT_WHOLE = "rows of the group failed"
OTHERS_WAIT = "waits for rows before it"
WAITS = "rows of the group are not to be asked"
OF_THE_ROW = frozenset({MISSING_FIELD, GUARD_FAILS, UNFIT, NOT_MADE})
"""Why a task cannot be asked, whatever else is asked: its row has to change, or what names its
fields."""

TOO_LARGE = "too many rows for one call; add `reduce`"
TOO_LARGE_FOR_FUNCTION = "too many rows for a function; group by one more field first"


def passed_on(reason: str, name: str) -> str:
    """Returns why the stages after `name` are run, if it is run for this reason."""
    if reason in (NEW_ROW, FRESH, NOT_YET):
        return reason
    return upstream_changed(name)


def upstream_changed(name: str) -> str:
    """Returns the reason that the stage before gave, or will give, another answer."""
    return f"upstream {name} changed"


def upstream_blocked(name: str) -> str:
    """Returns the reason that the stage before cannot be run, whose result this one needs."""
    return f"upstream {name} blocked"


PROMPT = "prompt changed"
INSTRUCTIONS = "instructions changed"
VARS = "vars changed"
OTHER_TEXT = (PROMPT, INSTRUCTIONS, VARS)
"""Reasons for which requests have another length than those before."""

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
    """Returns why one stage with these two definitions has to be run. `variables` are those of the
    two workflows."""
    changed = set(differing(before, after))
    if "agent" in changed and _only_reads_differ(before.get("agent"), after.get("agent")):
        changed ^= {"agent", "reads"}  # files that tools read, and not the tools
    if "operation" in before or "operation" in after:
        return _reasons(_OF_ALL, changed)
    if _schema_body(before) == _schema_body(after):
        changed.discard("schema")  # its name alone
    by_variables = "system" in changed and _differ_by_variables(
        before["system"], after["system"], variables
    )
    if by_variables:
        changed.discard("system")
    reasons = _reasons((*_OF_ALL, *_OF_ASKING, *sorted(changed - _NO_REASONS)), changed)
    if not reasons:
        by_variables |= _used(before, variables[0]) != _used(after, variables[1])
    return [*reasons, VARS] if by_variables else reasons


def _reasons(keys: Iterable[str], changed: Collection[str]) -> list[str]:
    """Returns the changed ones of these parts as reasons, each once."""
    reasons = (f"{_REASONS.get(key, key)} changed" for key in keys if key in changed)
    return list(dict.fromkeys(reasons))


def _only_reads_differ(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    return differing(before or {}, after or {}) == ["reads"]


def _schema_body(stage: Mapping[str, Any]) -> Any:
    schema = stage["schema"]
    return schema and schema["body"]


def value_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str], what: str = "{}"
) -> list[dict[str, Any]]:
    """Returns those of the names whose values differ, with both values; `what` is how a name is
    shown."""
    return [
        {"what": what.format(name), "before": before.get(name), "now": now.get(name)}
        for name in names
        if before.get(name) != now.get(name)
    ]


def shown_value(value: Any) -> str:
    """Returns a value as a line shows it: text as it is, others as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False)


def text_diff(before: str, now: str) -> list[str]:
    """Returns the lines of two texts that differ, with one around them, as `diff -u` does."""
    return list(
        difflib.unified_diff(
            split_lines(before), split_lines(now), "before", "now", lineterm="", n=1
        )
    )


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the keys whose values differ, sorted. A key that is left out is null."""
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _differ_by_variables(
    before: str | None, after: str | None, variables: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> bool:
    """True if instructions differ only in values of variables, which are stored as they were
    filled in."""
    if before is None or after is None:
        return False
    new_texts = _new_texts(*variables)
    if not new_texts or "" in new_texts:
        return False
    longest_first = sorted(new_texts, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", before)
    ends = {0}  # in `after`: where what `before` may have become ends so far
    for part in parts:
        texts = {part, *new_texts.get(part, ())}
        ends = {end + len(text) for end in ends for text in texts if after.startswith(text, end)}
    return len(after) in ends


def _new_texts(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, set[str]]:
    """Returns the texts of variables that have other values now, each with those that it may have
    become."""
    texts: dict[str, set[str]] = {}
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            texts.setdefault(as_text(old[name]), set()).add(as_text(new[name]))
    return texts


def _used(stage: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables that the texts of a stage name, with their values."""
    messages = (message["content"] for message in stage.get("messages", ()))
    texts = "\n".join([stage["prompt"], *messages])
    return {name: value for name, value in variables.items() if f"${{vars.{name}" in texts}
