"""What a run came to, as one value: printed for people, written to summary.json, given by `--json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from agac.core.report import iso
from agac.core.types import Outcome
from agac.engine.quantiles import Histogram, merged, quantile
from agac.plan.definition import model_of, recorded_stages
from agac.plan.replicas import share
from agac.store.batch import AGREEMENT, HOW
from agac.store.db import Database
from agac.store.history import Timings, timings
from agac.store.rows import ErrorExample, MadeCount, error_examples, made_counts, made_examples, present
from agac.store.runs import Count, RunRecord, counters, definition_of, row_counts


async def summarise(database: Database, run: RunRecord) -> dict[str, Any]:
    """The summary of a run as it stands in the store now."""
    counts, times = await counters(database, run.id), await timings(database, run.id)
    definition = await definition_of(database, run.id)
    rows, made = row_counts(counts), await made_counts(database, run.id)
    levels = _levels(definition, made)
    examples = await error_examples(database, run.id) if rows["failed"] else []
    if any(level["rows"]["failed"] for level in levels):
        known = {(example.error_type, example.stage) for example in examples}
        examples += [e for e in await made_examples(database, run.id) if (e.error_type, e.stage) not in known]
    return {
        "workflow": run.workflow,
        "run": run.id,
        "complete": run.finished_at is not None,
        "started_at": iso(run.created_at),
        "finished_at": iso(run.finished_at),
        "input": definition["input"]["path"],
        "selection": run.selection,
        "output": run.output_dir,
        "rows": _told(rows),
        "levels": levels,
        "stages": [_stage(stage, counts, times) for stage in definition["stages"]],
        "calls": calls_of(counts),
        "timing_ms": _timing_ms(times, None),
        "errors": [
            {
                "type": example.error_type,
                "stage": example.stage,
                "rows": _failed(counts, example),
                "example": {"id": example.row_id, "row_number": example.ordinal, "message": example.message},
            }
            for example in sorted(examples, key=lambda e: -_failed(counts, e))
        ],
    }


def _outcomes(counts: Iterable[Count]) -> Counter[str]:
    found: Counter[str] = Counter()
    for count in counts:
        if count.outcome not in ("call", HOW, AGREEMENT):
            found[count.outcome] += count.tasks
    return found


def _failed(counts: list[Count], example: ErrorExample) -> int:
    """Rows that failed so; without a stage it was the input itself, else all that did at the stage."""
    if example.stage is None:
        return example.rows
    failed = (c for c in counts if c.stage == example.stage and c.outcome == "failed")
    return sum(c.tasks for c in failed if c.error_type == example.error_type)


def _told(rows: dict[str, int]) -> dict[str, int]:
    """Rows by outcome, all of them as `total`."""
    return {"total": rows["present"], **{name: rows[name] for name in ("done", "skipped", "failed", "dropped", "open")}}


def _levels(definition: dict[str, Any], counts: list[MadeCount]) -> list[dict[str, Any]]:
    """The rows that stages made, by outcome: of each stage that made any, or may make children or groups."""
    found = []
    for stage in recorded_stages(definition):
        rows = present(counts, stage.index)
        if stage.makes is not None and (rows["present"] or stage.makes != "rows"):
            found.append({"stage": stage.name, "makes": stage.makes, "rows": _told(rows)})
    return found


def _stage(stage: dict[str, Any], counts: list[Count], times: Timings) -> dict[str, Any]:
    own = [c for c in counts if c.stage == stage["name"]]
    tasks = _outcomes(own)
    answered = {c.model for c in own if c.outcome == "call" and not c.error_type}
    return {
        "name": stage["name"],
        "model": model_of(stage),
        "alias": stage.get("alias"),
        "answered_by": sorted(answered),
        "done": tasks[Outcome.DONE],
        "reused": tasks[Outcome.REUSED],
        "failed": tasks[Outcome.FAILED],
        "skipped": tasks[Outcome.SKIPPED],
        "dropped": tasks[Outcome.DROPPED],
        "repaired": _how(own, "repair"),
        "json_repaired": _how(own, "json_repair"),
        "by_fallback": _how(own, "fallback"),
        "timing_ms": _timing_ms(times, stage["name"]),
        **({"agreement": agreement_of(own)} if stage.get("vote") else {}),
    }


def agreement_of(counts: Iterable[Count]) -> dict[str, Any]:
    """How far the replicas of a stage's rows agreed, in the mean and with all of them; null while no row has voted."""
    told = [(share(c.error_type), c.tasks) for c in counts if c.outcome == AGREEMENT and c.tasks]
    rows = sum(tasks for _, tasks in told)
    alike = sum(tasks for one, tasks in told if one == 1)
    return {
        "rows": rows,
        "mean": round(sum(one * tasks for one, tasks in told) / rows, 4) if rows else None,
        "unanimous": round(alike / rows, 4) if rows else None,
    }


def _timing_ms(times: Timings, stage: str | None) -> dict[str, Any]:
    """How long answered calls took, of one stage or of all: half of them no longer than p50, 95 % than p95."""
    return {
        measure: _quantiles(merged(h for (s, m), h in times.items() if m == measure and stage in (None, s)))
        for measure in ("duration", "ttft", "time_to_response")
    }


def _quantiles(histogram: Histogram) -> dict[str, Any]:
    shares = {"p50": quantile(histogram, 0.5), "p95": quantile(histogram, 0.95)}
    found = {name: None if value is None else round(value * 1000, 1) for name, value in shares.items()}
    return {"count": sum(histogram.values()), **found}


def _how(counts: list[Count], way: str) -> int:
    """Answers that came about in this way, among others."""
    return sum(c.tasks for c in counts if c.outcome == HOW and way in c.error_type.split(","))


def cost_of(known: float, unpriced: int) -> float | None:
    """USD of calls: what is `known`; None where nothing is, since calls were made whose price is not."""
    return round(known, 6) if known or not unpriced else None


def calls_of(counts: Iterable[Count]) -> dict[str, Any]:
    """Calls, tokens and USD among some roll-ups of a run."""
    calls = [c for c in counts if c.outcome == "call"]
    simulated = sum(c.simulated for c in calls)
    return {
        "count": sum(c.tasks for c in calls),
        "failed": sum(c.tasks for c in calls if c.error_type),
        "simulated": simulated,
        "input_tokens": sum(c.input_tokens for c in calls),
        "cached_tokens": sum(c.cached_tokens for c in calls),
        "output_tokens": sum(c.output_tokens for c in calls),
        "reasoning_tokens": sum(c.reasoning_tokens for c in calls),
        "cost_usd": cost_of(sum(c.cost for c in calls), sum(c.unpriced for c in calls)),
        "cost_is_simulated": simulated > 0,
        "calls_without_price": sum(c.unpriced for c in calls),
    }
