"""What differs between two definitions of a workflow, in a few words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = {
    "system": "instructions",
    "prompt": "prompt",
    "messages": "messages",
    "alias": "short name of the model",
    "schema": "schema",
    "params": "parameters",
    "needs": "needs",
    "reuse": "reuse",
}
"""Parts of a stage, as they stand in a stored definition, and what users call them."""


def definition_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What `after` has that `before` had not: `model of classify: a → b`, `prompt of reply`, `vars: shop`, `input`."""
    return [*_input(before, after), *_vars(before["vars"], after["vars"]), *_stages(before["stages"], after["stages"])]


def _input(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = before["input"], after["input"]
    if old["path"] != new["path"]:
        yield f"input: {old['path']} → {new['path']}"
    for key in sorted((old.keys() | new.keys()) - {"path"}):
        if old.get(key) != new.get(key):
            yield f"input.{key}"


def _vars(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    changed = [name for name in sorted(old.keys() | new.keys()) if name not in old or name not in new]
    changed = sorted([*changed, *(name for name in old.keys() & new.keys() if old[name] != new[name])])
    if changed:
        yield f"vars: {', '.join(changed)}"


def _stages(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    old, new = ({stage["name"]: stage for stage in stages} for stages in (before, after))
    yield from (f"stage {name} is new" for name in new if name not in old)
    yield from (f"stage {name} is gone" for name in old if name not in new)
    if old.keys() == new.keys() and list(old) != list(new):
        yield "order of the stages"
    for name in new:
        if name in old:
            yield from _stage(name, old[name], new[name])


def _stage(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old.get("model") != new.get("model"):
        yield f"model of {name}: {old.get('model', 'none')} → {new.get('model', 'none')}"
    for key in sorted((old.keys() | new.keys()) - {"name", "model"}):
        if old.get(key) != new.get(key):
            which = f": {', '.join(_params(old[key], new[key]))}" if key == "params" else ""
            yield f"{_NAMES.get(key, key)} of {name}{which}"


def _params(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
