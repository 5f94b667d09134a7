"""The budgets of a plan, and what of them this run has spent before: budgets count over all invocations of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agac.engine.budget import Amount, Pot, Purse
from agac.engine.control import Control
from agac.plan.plan import Plan
from agac.spec.workflow import Budget
from agac.store.runs import Count


@dataclass(frozen=True, slots=True)
class Budgets:
    """Every budget that a plan has: named ones of the run, one a stage by its index and name, one for each row."""

    run: tuple[tuple[str, Budget], ...]
    stages: tuple[tuple[int, str, Budget], ...]
    row: Budget | None

    @staticmethod
    def of(plan: Plan) -> Budgets | None:
        """The plan's budgets; None when it has none."""
        rules = plan.rules
        named = (("budget of agac.yml", rules.project), ("budget of the run", rules.workflow))
        run = tuple((name, budget) for name, budget in named if budget)
        stages = tuple((stage.index, stage.name, stage.budget) for stage in plan.asking if stage.budget)
        return Budgets(run, stages, rules.row) if run or stages or rules.row else None

    @property
    def in_dollars(self) -> bool:
        """Whether one of them bounds dollars."""
        budgets = [*(b for _, b in self.run), *(b for _, _, b in self.stages), *([self.row] if self.row else [])]
        return any(budget.usd is not None for budget in budgets)

    def purse(self, control: Control, counts: Iterable[Count], lost_calls: int) -> Purse:
        """The purse of an invocation. `lost_calls`: calls of earlier ones that may have been billed and left nothing.

        Each of them counts at the mean cost of those that are known, and, since nobody knows of which stage it was, in
        every budget that it may belong to.
        """
        run, stages = self.pots(counts, lost_calls)
        return Purse(control, run=run, stages=stages, row=self.row)

    def pots(self, counts: Iterable[Count], lost_calls: int) -> tuple[list[Pot], dict[int, Pot]]:
        """The run's pots, and the stages' by index, each with what was spent of it before."""
        counts = [count for count in counts if count.outcome == "call"]
        run = [_loaded(Pot(name, budget), counts, lost_calls) for name, budget in self.run]
        stages = {}
        for index, name, budget in self.stages:
            own = [count for count in counts if count.stage == name]
            stages[index] = _loaded(Pot(f"budget of stage {name!r}", budget, name), own, lost_calls)
        return run, stages


def _loaded(pot: Pot, counts: Iterable[Count], lost_calls: int) -> Pot:
    """The pot with what was spent before."""
    known = unsure = priced = Amount()
    for c in counts:
        one = Amount(c.cost, c.input_tokens + c.output_tokens, c.tasks)
        known, held = known.plus(one), Amount(c.held_cost, c.held_tokens)
        unsure = unsure.plus(held)
        if c.cost or one.tokens or held.usd or held.tokens:  # refused calls cost nothing and tell nothing
            priced = priced.plus(one).plus(held)
    unsure = unsure.plus(_lost(priced, lost_calls))
    pot.spent, pot.unsure = known.plus(unsure), unsure
    pot.unpriced = 0 if priced.calls else lost_calls
    return pot


def _lost(priced: Amount, calls: int) -> Amount:
    """What lost calls may have cost: the mean of those whose cost is known."""
    if not priced.calls:
        return Amount(0.0, 0, calls)
    share = calls / priced.calls
    return Amount(priced.usd * share, math.ceil(priced.tokens * share), calls)


def facts(pots: Iterable[Pot]) -> list[dict[str, object]]:
    """Budgets for summaries: what is spent of them, and `held` what may be, by calls that left no answer."""
    return [_facts(pot) for pot in pots]


def _facts(pot: Pot) -> dict[str, object]:
    caps: Mapping[str, float | None] = {"usd": pot.budget.usd, "tokens": pot.budget.tokens, "calls": pot.budget.calls}
    known, unsure = pot.spent.plus(pot.unsure, -1)._asdict(), pot.unsure._asdict()
    return {"name": pot.name} | {
        unit: {"limit": cap, "spent": round(known[unit], 6), "held": round(unsure[unit], 6)}
        for unit, cap in caps.items()
        if cap is not None
    }
