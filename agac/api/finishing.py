"""What it takes to finish a run that met a limit: what a dry run says is left, and which limit has room for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agac.engine.budget import Amount, Pot, Purse
from agac.plan.estimate import Estimate
from agac.plan.plan import Plan

MARGIN = 1.2
"""A limit that is proposed has a fifth more than the estimate says: rows differ."""

FURTHER_ERRORS = 10
"""A `max_errors` that is proposed has room for at least so many more."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """Rows without an outcome and, estimated, what they need. `usd` is None when a price is not known.

    What was reached, and what should do in its place: `budget` as `--budget` takes it, which is a stage's own when
    `stage` names it; or `max_errors`.
    """

    rows: int
    usd: float | None
    tokens: int
    calls: int
    budget: str | None = None
    stage: str | None = None
    max_errors: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return asdict(self)


def finishing(plan: Plan, needs: Sequence[Estimate], rows: int, purse: Purse | None, failed: int) -> Finishing:
    """The estimate. `rows` are open, `needs` is what is left of each stage; `failed` rows failed in this invocation."""
    whole = _amount(needs)
    usd = None if any(one.usd is None for one in needs) else round(whole.usd, 6)
    reached = purse.reached if purse else None
    if purse is None or reached is None:
        most = failed + max(failed, FURTHER_ERRORS)
        return Finishing(rows, usd, whole.tokens, whole.calls, max_errors=most)
    if reached.stage is None:
        return Finishing(rows, usd, whole.tokens, whole.calls, _enough(purse.of_run, whole, purse.missed))
    own = _amount([one for stage, one in zip(plan.stages, needs, strict=True) if stage.name == reached.stage])
    return Finishing(rows, usd, whole.tokens, whole.calls, _enough([reached], own, purse.missed), reached.stage)


def open_rows(summary: dict[str, Any], rows: int) -> int:
    """How many rows of an input of `rows` have no outcome."""
    settled: dict[str, int] = summary["rows"]
    return max(rows - sum(settled[outcome] for outcome in ("done", "skipped", "failed", "dropped")), 0)


def _amount(needs: Sequence[Estimate]) -> Amount:
    total = Amount()
    for one in needs:
        total = total.plus(Amount(one.usd or 0.0, one.input_tokens + one.output_tokens, one.calls))
    return total


def _enough(pots: Sequence[Pot], need: Amount, last: Amount) -> str:
    """Of each unit that they bound, enough for all of them: `--budget` takes the place of every budget of a run.

    `last` is the worst case of a call: it has to fit before the last one is made.
    """
    parts = []
    for unit, spent in pots[0].spent._asdict().items():
        wanted = spent + MARGIN * getattr(need, unit) + getattr(last, unit)
        caps = [cap for pot in pots if (cap := getattr(pot.budget, unit)) is not None]
        if caps:
            enough = max(min(caps), wanted)
            parts.append(f"{unit}={_rounded_up(enough) if unit == 'usd' else math.ceil(enough)}")
    return ",".join(parts)


def _rounded_up(usd: float) -> str:
    """Two digits that mean something, never less."""
    digits = 1 - math.floor(math.log10(usd))
    step = 10.0**-digits
    text = f"{math.ceil(usd / step - 1e-9) * step:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
