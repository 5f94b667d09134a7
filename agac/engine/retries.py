"""How many tasks a retry asks at most: of the rows that it takes up again, and of what is made of those."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agac.engine.scope import Retry
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage
from agac.spec.levels import Level, Levels, levels_of
from agac.store.rows import MadeCount, State

Chosen = tuple[str | None, str | None, int]
"""Rows of the input that are taken up again, as `store.retries.chosen_counts` has them."""


def tasks_of_retry(
    plan: Plan, retry: Retry, chosen: Sequence[Chosen], made: Sequence[MadeCount] = (), rows: int = 0
) -> dict[str, int]:
    """How many tasks of each stage a retry asks at most, by name. `made` says how the rows stand that stages made,
    `rows` how many the input has."""
    return _Tasks(plan, retry, made, rows).count(chosen)


class _Tasks:
    def __init__(self, plan: Plan, retry: Retry, made: Sequence[MadeCount], rows: int) -> None:
        self._levels: Levels[AnyStage] = levels_of(plan.stages)
        self._names = [stage.name for stage in plan.stages]
        self._retry, self._made = retry, made
        self._found = dict.fromkeys(self._names, 0.0)
        self._present: dict[int | None, int] = {None: rows}
        for one in made:
            self._present[one.origin] = self._present.get(one.origin, 0) + one.rows
        self._after = {stage.name: self._followers(stage) for stage in plan.stages}

    def count(self, chosen: Sequence[Chosen]) -> dict[str, int]:
        """All tasks, by the name of their stage."""
        for failed_at, _, rows in chosen:
            self._walk(self._levels.all[0], rows, self._asked(failed_at))
        for one in self._made if not (self._retry.rows or self._takes_all) else ():
            failed_at = one.error_stage if one.state == State.FAILED else "" if one.state == State.PENDING else None
            level = self._levels.by_origin.get(one.origin)
            if level is not None and failed_at is not None and self._is_chosen(one):
                self._walk(level, one.rows, self._asked(failed_at))
        return {name: round(tasks) for name, tasks in self._found.items()}

    @property
    def _takes_all(self) -> bool:
        """Whether every row is taken up again, and so what is made of it."""
        return self._retry.from_stage is not None and self._retry.stage is None and self._retry.error is None

    def _is_chosen(self, one: MadeCount) -> bool:
        """Whether the retry chooses rows that stand so."""
        failed = self._retry.stage in (None, one.error_stage) and self._retry.error in (None, one.error_type)
        return failed or one.state == State.PENDING

    def _asked(self, failed_at: str | None) -> frozenset[str]:
        """The stages that are asked for a row that failed at this one; "" for an open row, None for a done one."""
        again = self._retry.from_stage
        anew = self._names[self._names.index(again) :] if again is not None else []
        if failed_at == "":
            return frozenset(self._names)
        return frozenset(anew) | (self._after[failed_at] if failed_at is not None else frozenset())

    def _followers(self, first: AnyStage) -> frozenset[str]:
        """The stage and all that follow it, perhaps by way of others."""
        found = {first.name}
        for stage in self._levels.stages:
            if found.intersection(stage.needs):
                found.add(stage.name)
        return frozenset(found)

    def _walk(self, level: Level[AnyStage], rows: float, asked: Collection[str]) -> None:
        """So many rows of a level go through these of its stages, and so does what is made of them."""
        for stage in level.stages:
            if stage.name in asked:
                self._found[stage.name] += rows
        before = self._present.get(level.origin, 0)
        for below in self._below(level):
            there = self._present.get(below.origin, 0)
            each = there / before if before else 1.0
            assert below.maker is not None
            further = min(rows, max(there, 1)) if below.maker.makes == "groups" else rows * each
            self._walk(below, further, asked)

    def _below(self, level: Level[AnyStage]) -> list[Level[AnyStage]]:
        """The levels whose rows are made of this one's."""
        listing = [stage for stage in level.stages if stage.makes == "rows" and self._present.get(stage.index)]
        return [self._levels.by_origin[maker.index] for maker in (*level.makers, *listing)]
