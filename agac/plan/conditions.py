"""Checks of the conditions of stages: names that are none, comparisons that are never true."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agac.core.errors import Problem
from agac.plan.field_paths import is_asked_for, possible_lack
from agac.plan.scopes import GROUP_NAMES, StageScope
from agac.spec.graph import PARTS, stage_of
from agac.spec.guard_checks import GuardScope
from agac.spec.guards import Guard
from agac.spec.operations import Filter, Review
from agac.spec.templates import AGREEMENT, ROWS_COUNT, ROWS_FAILED
from agac.spec.workflow import WrittenStage


def condition_problems(scope: StageScope) -> list[Problem]:
    """Returns what is wrong with the conditions that decide about rows, and with the checks of the
    stage's own result."""
    stage = scope.stage
    problems = list[Problem]()
    for guard in _conditions(stage):
        problems += _guard_problems(scope, guard)
    if stage_of(stage.name) == stage.name:  # the parts of a stage have the same checks
        for check in stage.checks:
            problems += _check_problems(scope, check.guard)
    return problems


def _conditions(stage: WrittenStage) -> Iterator[Guard]:
    """Yields the guard of the stage, unless agac wrote it, and the condition of what it does."""
    guard = stage.guard
    if guard is not None:
        written_by_agac = PARTS in guard.names and stage.parts
        if not written_by_agac:
            yield guard
    match stage.operation:
        case Filter(condition):
            yield condition
        case Review(when=condition) if condition is not None:
            yield condition


def _guard_problems(scope: StageScope, guard: Guard) -> list[Problem]:
    """Returns what is wrong with a condition that decides about rows or groups."""
    fault = _label_fault(scope, guard) or _member_fault(scope, guard)
    if fault is not None:
        return [fault]
    first = scope.every_stage.get(scope.stage.amends or "")
    is_voted = first is not None and first.vote is not None
    own_names = (
        *(GROUP_NAMES if scope.stage.group is not None else ()),
        *((AGREEMENT,) if is_voted else ()),
    )
    return _lack_warnings(scope, guard) + _scope_problems(scope, guard, None, own_names)


def _check_problems(scope: StageScope, guard: Guard) -> list[Problem]:
    """Returns what is wrong with a check of the stage's own result."""
    fault = _label_fault(scope, guard) or _member_fault(scope, guard)
    if fault is not None:
        return [fault]
    return _scope_problems(scope, guard, scope.stage, ())


def _label_fault(scope: StageScope, guard: Guard) -> Problem | None:
    """Returns the error of a condition that names a column of labels."""
    for name in guard.names:
        fault = scope.label_fault(name)
        if fault:
            return Problem(guard.where, fault)
    return None


def _member_fault(scope: StageScope, guard: Guard) -> Problem | None:
    """Returns the error of a condition of groups that names something of their members."""
    if scope.stage.group is None:
        return None
    for name in guard.names:
        if name not in scope.fields.shapes and scope.rows.has(name):
            visible = ", ".join([*scope.fields.shapes, ROWS_COUNT])
            return Problem(
                guard.where,
                f"`{name}`: a group has many rows, each with its own {name!r}; "
                f"a guard of groups sees {visible} and {ROWS_FAILED}",
            )
    return None


def _scope_problems(
    scope: StageScope, guard: Guard, checked: WrittenStage | None, own_names: tuple[str, ...]
) -> list[Problem]:
    """Returns the problems of the names and comparisons in a condition. `checked` is the stage
    whose own result it looks at, if any; `own_names` are agac's."""
    fields = scope.fields
    return GuardScope(
        text=guard.text,
        where=guard.where,
        columns=fields.shapes.keys(),
        closed=not fields.open,
        stages=_ResultShapes(scope.earlier, checked),
        variables=scope.workflow.vars.keys(),
        others=_OtherStages(scope),
        extra=own_names,
        fields=fields.typed,
        every_stage=scope.every_stage,
    ).problems()


def _lack_warnings(scope: StageScope, guard: Guard) -> list[Problem]:
    """Returns warnings of fields that a condition reads, that answers may lack, and that it does
    not ask for first."""
    by_path: dict[str, Problem] = {}
    for chain in guard.chains:
        if is_asked_for(chain, guard.text):
            continue
        lack = possible_lack(chain, scope)
        if lack is None:
            continue
        path = ".".join(map(str, chain))
        remedy = f"write `has({path}) && …`, or make it required in the output_schema"
        message = f"`{path}`: {lack}, and a row fails here without it; {remedy}"
        by_path[path] = Problem(guard.where, message, "warning")
    return list(by_path.values())


class _ResultShapes(Mapping[str, Mapping[str, Any] | None]):
    """What is known of the results of stages, by their names."""

    def __init__(self, earlier: Mapping[str, WrittenStage], checked: WrittenStage | None) -> None:
        """`checked` is the stage whose own result a check looks at, if it is one."""
        self._earlier = earlier
        self._checked = checked

    def __contains__(self, name: object) -> bool:
        return name in self._earlier or self._is_checked(name)

    def __getitem__(self, name: str) -> Mapping[str, Any] | None:
        if self._checked is not None and name == self._checked.name:
            return self._checked.answer_shape
        return self._earlier[name].shape

    def __iter__(self) -> Iterator[str]:
        yield from self._earlier
        if self._checked is not None and self._checked.name not in self._earlier:
            yield self._checked.name

    def __len__(self) -> int:
        return len([*iter(self)])

    def _is_checked(self, name: object) -> bool:
        return self._checked is not None and name == self._checked.name


@dataclass(frozen=True, slots=True)
class _OtherStages(Container[str]):
    """The stages that are not upstream of a stage, and those that are not enabled."""

    scope: StageScope

    def __contains__(self, name: object) -> bool:
        scope = self.scope
        if name in scope.workflow.disabled:
            return True
        if name in scope.fields.shapes or name in scope.earlier:
            return False
        return name in scope.every_stage
