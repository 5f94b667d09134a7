"""A run over time, as curves of the monitor: rows, calls, timings, lanes and budgets."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Any

from agac.api.monitor import READ_SECONDS, run_budgets
from agac.api.status import stored_run
from agac.core.types import Outcome, Report
from agac.engine.ask.limits import Amount, BudgetBalance
from agac.engine.output.histograms import RATIO, quantile
from agac.spec.paths import project_root
from agac.store import roll_ups
from agac.store.db import Database
from agac.store.records import LaneSample
from agac.store.runs import RunRecord

POINTS = 240
"""Points of a curve, at most."""

COLUMNS = (*Outcome, "calls", "failed_calls", "input_tokens", "output_tokens", "cost_usd")
"""What is counted of each minute, in the order of the statement `minutes_of`."""


@dataclass(frozen=True, slots=True)
class RunCurves(Report):
    """A run over time."""

    run: int
    """The run's number."""
    step_s: int
    """Seconds of a step."""
    at: tuple[float, ...]
    """The beginnings of the steps, in seconds since 1970."""
    lines: dict[str, list[Any]]
    """A number for each step, by name: COLUMNS, which are rows of the input by outcome (a row that
    is run again counts -1 for its earlier outcome) and calls of all stages; `p50_ms` and `p95_ms`
    of calls that were answered in the last minute with any (None: there is none)."""
    lane_step_s: float
    """Seconds between two samples of a lane, at least."""
    lanes: dict[str, list[LaneSample]]
    """Samples by lane."""
    budgets: dict[str, dict[str, list[float]]]
    """By name and unit: what was `spent` by the end of each step, and the `limit`."""


async def acurves(run: int | str = "last", *, project: Path | str | None = None) -> RunCurves:
    """Reads a run over time, in at most POINTS steps. Raises UsageError for a run that does not
    exist."""
    async with stored_run(project_root(project), run, seconds=READ_SECONDS) as (database, record):
        first, until = await _time_span(database, record)
        step = max(1, -(-int(until // 60 + 1 - first) // POINTS))
        span = {
            "run": record.id,
            "since": first // step * step,
            "step": step,
            "until": until // 60 + 1,
        }
        minutes = await roll_ups.minutes_of(database, **span)
        timings = defaultdict[int, Counter[int]](Counter)
        for point, bucket, count in await roll_ups.minute_timings_of(database, **span):
            timings[point][4 * bucket] += count
        lane_step = max(2.0, (until - 60 * first) / POINTS)
        lanes = await _lanes(database, record.id, first, lane_step, until)
        balances = await run_budgets(database, record)
    sums = defaultdict[int, list[Any]](lambda: [0] * len(COLUMNS))
    for point, _, *numbers in minutes:
        sums[point] = list(map(add, sums[point], numbers))
    points = sorted(sums.keys() | timings)
    lines: dict[str, list[Any]] = {
        name: [sums[point][column] for point in points] for column, name in enumerate(COLUMNS)
    }
    for percent in (50, 95):
        quantiles = [quantile(timings[point], percent / 100) for point in points]
        lines[f"p{percent}_ms"] = list(map(_milliseconds, quantiles))
    budgets = dict(spent for each in balances for spent in _spent(each, minutes, points))
    return RunCurves(
        run=record.id,
        step_s=60 * step,
        at=tuple(60.0 * step * point for point in points),
        lines=lines,
        lane_step_s=lane_step,
        lanes=lanes,
        budgets=budgets,
    )


async def _time_span(database: Database, record: RunRecord) -> tuple[int, float]:
    """Returns the minute in which a run began to work, and the second in which it ended, or now."""
    begun = await roll_ups.first_minute(database, record.id)
    first = max(int(record.created_at // 60), begun or 0)
    last = record.invocation
    ended = last.ended_at if last is not None else None
    return first, ended or time.time()


async def _lanes(
    database: Database, run: int, first: int, step: float, until: float
) -> dict[str, list[LaneSample]]:
    """Reads the samples of each lane."""
    lanes = defaultdict(list)
    # a minute earlier: calls are counted when they are stored, perhaps in the next minute
    since = 60 * (first - 1)
    for sample in await roll_ups.lanes_of(database, run=run, since=since, step=step, until=until):
        lanes[sample.lane].append(sample)
    return dict(lanes)


def _spent(
    balance: BudgetBalance, minutes: Iterable[Any], at: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields how each unit of a budget was spent, by the steps `at`, with the unit's title."""
    steps = defaultdict[int, Amount](Amount)
    for point, stage, *numbers in minutes:
        if balance.holds_for(stage):
            calls, _, tokens_in, tokens_out, usd = numbers[-5:]
            steps[point] = steps[point].plus(Amount(usd, tokens_in + tokens_out, calls))
    sums = accumulate((steps[point] for point in at), Amount.plus)
    for unit, *spent in zip(Amount._fields, *sums, strict=True):
        limit = getattr(balance.budget, unit)
        if limit is not None:
            title = f"{balance.name}, {unit}"
            yield title, {"spent": [round(sum_, 6) for sum_ in spent], "limit": [limit] * len(at)}


def _milliseconds(seconds: float | None) -> float | None:
    """Returns a quantile in milliseconds. It was measured with four buckets in one and is given
    as the first of the four; the result is the middle of them."""
    if seconds is None:
        return None
    return round(float(1000 * seconds * RATIO**1.5), 1)
