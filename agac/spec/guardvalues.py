"""Evaluating a guard for one row. Only what it reads is handed over: converting a row costs more than the rest."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from agac.spec.celtext import Chain, shown
from agac.spec.guardfaults import FAILURES, explain, not_a_flag
from agac.spec.guards import Guard, cel_library

ROW = "row"
"""The name under which a guard sees all fields of the row: for odd names, and to ask whether there is one."""

MAX_SHOWN = 80
"""Characters of a value that stand beside a guard in `filtered.jsonl`."""


class GuardFailed(Exception):
    """The guard is neither true nor false for this row. `message` says why and what to write instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Evaluator:
    """A guard made ready for many rows. `stages` are the names that stand for results: null means skipped."""

    def __init__(self, guard: Guard, *, stages: Collection[str] = ()) -> None:
        self._guard = guard
        self._stages = frozenset(stages)
        self._program = cel_library().compile(guard.text)
        self._picked = [(name, _members(guard.chains, name)) for name in guard.names]

    def test(self, visible: Mapping[str, Any]) -> bool:
        """Whether the guard holds for what `visible` shows: fields, results, `vars`, and `row` with all fields.

        Whole numbers beyond 64 bits count as the double nearest to them; a Decimal as a double. Raises `GuardFailed`.
        """
        try:
            result = self._program.execute(self._handed(visible))
        except FAILURES as error:
            raise GuardFailed(explain(self._guard, visible, self._stages, error)) from None
        if isinstance(result, bool):
            return result
        raise GuardFailed(not_a_flag(self._guard, result, self._stages))

    def values(self, visible: Mapping[str, Any]) -> dict[str, Any]:
        """What the guard read, by the way it is written: texts and structures cut to 80 characters, what is not there
        left out."""
        found: dict[str, Any] = {}
        for chain in self._guard.chains:
            try:
                found[shown(chain)] = _cut(_value(visible, chain))
            except (LookupError, TypeError):
                continue
        return found

    def _handed(self, visible: Mapping[str, Any]) -> dict[str, Any]:
        handed: dict[str, Any] = {}
        for name, members in self._picked:
            try:
                value = visible[name]
            except KeyError:
                continue  # the guard may never come to ask for it
            if members is not None and isinstance(value, Mapping):
                value = {member: value[member] for member in members if member in value}
            handed[name] = value
        return handed


def _members(chains: tuple[Chain, ...], name: str) -> tuple[str, ...] | None:
    """The fields that the guard reads of `name`; None when it may read them all."""
    members = [chain[1] if len(chain) > 1 else None for chain in chains if chain[0] == name]
    texts = tuple(member for member in members if isinstance(member, str))
    return tuple(dict.fromkeys(texts)) if len(texts) == len(members) else None


def _value(visible: Mapping[str, Any], chain: Chain) -> Any:
    """Raises LookupError or TypeError where the way ends."""
    value: Any = visible
    for part in chain:
        if isinstance(value, str):
            raise TypeError
        value = value[part]
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, bool | float | None):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > MAX_SHOWN:
        return text[: MAX_SHOWN - 1] + "…"
    return value if isinstance(value, str | int | list | dict) else text
