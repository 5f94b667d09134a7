"""Estimates what the rows without an outcome need, and a limit that is enough for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from agac.core.types import Report, Usd
from agac.engine.ask.limits import Amount, BudgetBalance, BudgetLimiter
from agac.engine.forecast.forecasts import PlanReport, needed

MARGIN = 1.2
"""A proposed limit is a fifth above the estimate, since rows differ."""


@dataclass(frozen=True, slots=True)
class Finishing(Report):
    """Rows without an outcome and, estimated, what they need."""

    rows: int
    """How many rows have no outcome."""
    usd: Usd | None
    """Dollars that they need; None: a price is not known."""
    tokens: int
    """Tokens that they need."""
    calls: int
    """Calls that they need."""
    budget: str | None = None
    """What should be enough for the budget that was reached, as `--budget` takes it."""
    stage: str | None = None
    """The stage whose own budget was reached."""
    max_errors: int | None = None
    """What should be enough for `max_errors`, if that was reached."""
    held_usd: Usd | None = None
    """The most that calls of unknown cost may take beyond `usd`, if such calls go on; None without
    such calls."""
    held_tokens: int = 0
    """The most tokens that calls of unknown cost may take beyond `tokens`."""


def finishing(left: PlanReport, rows: int, failed: int, limiter: BudgetLimiter | None) -> Finishing:
    """Estimates what `left`, the plan of so many open `rows`, needs.

    It proposes a value for the budget that was reached; if none was, for `max_errors`, which was
    reached with so many `failed` rows."""
    need = needed(left.stages)
    reached = limiter.reached if limiter else None
    if limiter is None or reached is None:
        most = failed + max(failed, 10)  # room for as many errors again, and for ten at least
        return Finishing(rows, left.usd, need.tokens, need.calls, max_errors=most)
    if reached.stage is not None:
        balances = [reached]
        need_of_budget = needed(stage for stage in left.stages if stage.name == reached.stage)
    else:
        balances = [balance for balance in limiter.balances if balance.stage is None]
        need_of_budget = need
    held = _held(balances[0], need_of_budget.calls)
    return Finishing(
        rows,
        left.usd,
        need.tokens,
        need.calls,
        budget=_enough(balances, need_of_budget.plus(held), limiter),
        stage=reached.stage,
        held_usd=held.usd or None,
        held_tokens=held.tokens,
    )


def _held(balance: BudgetBalance, calls: int) -> Amount:
    """Estimates the worst case of those of so many further calls whose cost will be unknown: the
    same share as of the calls before."""
    share = calls / max(balance.spent.calls, 1)
    return Amount(balance.unconfirmed.usd * share, ceil(balance.unconfirmed.tokens * share), 0)


def _enough(balances: Sequence[BudgetBalance], need: Amount, limiter: BudgetLimiter) -> str:
    """Returns as `--budget` takes it what is enough for all of these budgets, and for what others
    hold, in each unit that they bound.

    `--budget` takes the place of every budget of a run. The worst case of a call has to fit before
    the last one is made."""
    parts = []
    for unit, spent in balances[0].spent._asdict().items():
        caps = [getattr(balance.budget, unit) for balance in balances]
        caps = [cap for cap in caps if cap is not None]
        if not caps:
            continue
        others = max(getattr(limiter.elsewhere(balance), unit) for balance in balances)
        wanted = spent + others + MARGIN * getattr(need, unit) + getattr(limiter.missed, unit)
        enough = max(min(caps), wanted)
        parts.append(f"{unit}={_rounded_up(enough) if unit == 'usd' else ceil(enough)}")
    return ",".join(parts)


def _rounded_up(usd: float) -> str:
    """Rounds up to two digits that mean something."""
    digits = 1 - floor(log10(usd))
    step = 10.0**-digits
    text = f"{ceil(usd / step - 1e-9) * step:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
