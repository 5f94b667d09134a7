"""What the rows without an outcome need, and a limit that is enough for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from agac.core.types import Report, Usd
from agac.engine.ask.limits import Amount, BudgetBalance, BudgetLimiter
from agac.engine.forecast.forecasts import PlanReport, needed

MARGIN = 1.2  # a limit that is proposed has a fifth more than the estimate says: rows differ


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
    """What is `left` to do of so many open `rows`, and a limit for the one reached when so many
    had `failed`."""
    need = needed(left.stages)
    usd = left.usd
    reached = limiter.reached if limiter else None
    if limiter is None or reached is None:
        most = failed + max(failed, 10)  # room for at least so many more
        return Finishing(rows, usd, need.tokens, need.calls, max_errors=most)
    own = need
    balances = [one for one in limiter.balances if one.stage is None]
    if reached.stage is not None:
        own = needed(one for one in left.stages if one.name == reached.stage)
        balances = [reached]
    held = _held(balances[0], own.calls)
    enough = _enough(balances, own.plus(held), limiter)
    return Finishing(
        rows,
        usd,
        need.tokens,
        need.calls,
        enough,
        reached.stage,
        held_usd=held.usd or None,
        held_tokens=held.tokens,
    )


def _held(balance: BudgetBalance, calls: int) -> Amount:
    """What so many calls to come hold, if as many of them as of those before have an unknown cost:
    their worst case."""
    share = calls / max(balance.spent.calls, 1)
    return Amount(balance.unconfirmed.usd * share, ceil(balance.unconfirmed.tokens * share), 0)


def _enough(balances: Sequence[BudgetBalance], need: Amount, limiter: BudgetLimiter) -> str:
    """Of each unit that they bound, enough for all of them, and for what others hold: `--budget`
    takes the place of every budget of a run. The worst case of a call has to fit before the last
    one is made."""
    parts = []
    for unit, spent in balances[0].spent._asdict().items():
        others = max(getattr(limiter.elsewhere(one), unit) for one in balances)
        wanted = spent + others + MARGIN * getattr(need, unit) + getattr(limiter.missed, unit)
        caps = [cap for one in balances if (cap := getattr(one.budget, unit)) is not None]
        if caps:
            enough = max(min(caps), wanted)
            parts.append(f"{unit}={_rounded_up(enough) if unit == 'usd' else ceil(enough)}")
    return ",".join(parts)


def _rounded_up(usd: float) -> str:
    """Two digits that mean something, never less."""
    digits = 1 - floor(log10(usd))
    step = 10.0**-digits
    text = f"{ceil(usd / step - 1e-9) * step:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
