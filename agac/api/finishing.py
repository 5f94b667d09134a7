"""What it takes to finish a run that met a limit: an estimate from what its finished rows took."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from agac.engine.budget import Pot
from agac.spec.workflow import RunRules


@dataclass(frozen=True, slots=True)
class Finishing:
    """Rows without an outcome and, estimated, what they need: None where nothing is known yet.

    `budget` is the value of `--budget` that should do, None when a budget of the run is not what stopped it.
    """

    rows: int
    usd: float | None
    tokens: int | None
    calls: int | None
    budget: str | None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return asdict(self)


def finishing(summary: dict[str, Any], rows: int, rules: RunRules, pots: Iterable[Pot]) -> Finishing:
    """The estimate. `rows` is how many the input has; `summary` is the run's."""
    counts, calls = summary["rows"], summary["calls"]
    settled = counts["done"] + counts["failed"] + counts["dropped"]
    left = max(rows - settled, 0)
    finished = counts["done"] + counts["failed"]
    if not finished:
        return Finishing(left, None, None, None, None)
    share = left / finished
    usd = None if calls["calls_without_price"] else calls["cost_usd"] * share
    tokens = math.ceil((calls["input_tokens"] + calls["output_tokens"]) * share)
    more = math.ceil(calls["count"] * share)
    run = next((pot for pot in pots if pot.budget in (rules.project, rules.workflow)), None)
    return Finishing(left, None if usd is None else round(usd, 6), tokens, more, _enough(run, usd, tokens, more))


def _enough(pot: Pot | None, usd: float | None, tokens: int, calls: int) -> str | None:
    """What of a budget's units it has, each with a fifth more than the estimate says, as `--budget` takes it."""
    if pot is None:
        return None
    spent, cap = pot.spent, pot.budget
    parts = []
    if cap.usd is not None:
        if usd is None:
            return None
        parts.append(f"usd={_rounded_up(max(cap.usd, spent.usd + 1.2 * usd)):g}")
    if cap.tokens is not None:
        parts.append(f"tokens={math.ceil(max(cap.tokens, spent.tokens + 1.2 * tokens))}")
    if cap.calls is not None:
        parts.append(f"calls={math.ceil(max(cap.calls, spent.calls + 1.2 * calls))}")
    return ",".join(parts)


def _rounded_up(usd: float) -> float:
    """Two digits that mean something, never less."""
    if usd <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(usd)) - 1)
    return math.ceil(usd / step) * step
