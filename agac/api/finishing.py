"""What it takes to finish a run that met a limit: an estimate from what its finished rows took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agac.engine.budget import Amount, Pot, Purse

MARGIN = 1.2
"""A limit that is proposed has a fifth more than the estimate says: rows differ."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """Rows without an outcome and, estimated, what they need: None where nothing is known yet.

    What was reached, and what should do in its place: `budget` as `--budget` takes it, which is a stage's own when
    `stage` names it; or `max_errors`.
    """

    rows: int
    usd: float | None
    tokens: int | None
    calls: int | None
    budget: str | None = None
    stage: str | None = None
    max_errors: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return asdict(self)


def finishing(summary: dict[str, Any], rows: int, purse: Purse | None, failed: int) -> Finishing:
    """The estimate. `rows` is how many the input has, `failed` how many failed in this invocation."""
    counts, calls = summary["rows"], summary["calls"]
    finished = counts["done"] + counts["failed"]
    left = max(rows - finished - counts["dropped"], 0)
    reached = purse.reached if purse else None
    if not finished:
        return Finishing(left, None, None, None, stage=reached.stage if reached else None)
    share = left / finished
    usd = None if calls["calls_without_price"] else round(calls["cost_usd"] * share, 6)
    tokens = math.ceil((calls["input_tokens"] + calls["output_tokens"]) * share)
    more = math.ceil(calls["count"] * share)
    if purse is None or reached is None:
        return Finishing(left, usd, tokens, more, max_errors=math.ceil(failed * (1 + MARGIN * share)))
    if reached.stage is not None:
        return Finishing(left, usd, tokens, more, _enough([reached], share, purse.missed), reached.stage)
    return Finishing(left, usd, tokens, more, _enough(purse.of_run, share, purse.missed))


def _enough(pots: Sequence[Pot], share: float, last: Amount) -> str:
    """Of each unit that they bound, enough for all of them: `--budget` takes the place of every budget of a run.

    `last` is the worst case of a call: it has to fit before the last one is made.
    """
    parts = []
    for unit, spent in pots[0].spent._asdict().items():
        need = spent * (1 + MARGIN * share) + getattr(last, unit)
        caps = [cap for pot in pots if (cap := getattr(pot.budget, unit)) is not None]
        if caps:
            enough = max(min(caps), need)
            parts.append(f"{unit}={_rounded_up(enough) if unit == 'usd' else math.ceil(enough)}")
    return ",".join(parts)


def _rounded_up(usd: float) -> str:
    """Two digits that mean something, never less."""
    digits = 1 - math.floor(math.log10(usd))
    step = 10.0**-digits
    text = f"{math.ceil(usd / step - 1e-9) * step:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
