"""Makes the summary of a run as it is in the store."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agac.core.errors import ErrorType
from agac.core.reading import read_as
from agac.core.types import Outcome, dollars_in_all, iso
from agac.engine.output.histograms import merged, quantile
from agac.engine.stage_summary import (
    CallCost,
    CallCounts,
    CallTimes,
    ConversationCounts,
    EarlyVotes,
    MendedAnswers,
    ReviewCounts,
    StageSummary,
    TaskOutcomes,
    TimeQuantiles,
    TokenCounts,
    ToolCallCounts,
    VoteAgreement,
    cost_of,
)
from agac.engine.stored_invocation import ServingFacts
from agac.engine.summary import (
    EngineCache,
    ErrorSummary,
    FailedRow,
    MadeRows,
    OddRecords,
    RepeatedIds,
    RowCounts,
    RunRequest,
    RunSummary,
    RunTimes,
    ServingSummary,
    TaskSums,
)
from agac.plan.stage import model_of, recorded_stages
from agac.store import rows as store
from agac.store.db import Database
from agac.store.decisions import open_reviews
from agac.store.history import (
    Timings,
    timings,
)
from agac.store.records import AGREEMENT, FIRST, HOW, TOOL, TURN
from agac.store.runs import (
    Count,
    RunRecord,
    counters,
    definition_of,
    row_counts,
    run_duration,
    run_serving,
    short_records,
)


async def summarise(database: Database, run: RunRecord) -> RunSummary:
    """Makes the summary of a run as it is in the store now."""
    counts = await counters(database, run.id)
    times = await timings(database, run.id)
    definition = await definition_of(database, run.id)
    rows = RowCounts(**row_counts(counts))
    levels = await _levels(database, run, definition)
    reviewing = any("review" in stage.get("operation", ()) for stage in definition["stages"])
    waiting = await open_reviews(database, run.workflow, run.id) if reviewing else {}
    stages = tuple(_stage(stage, counts, times, waiting) for stage in definition["stages"])
    seconds = await run_duration(database, run.id)
    return RunSummary(
        workflow=run.workflow,
        run=run.id,
        complete=run.finished_at is not None,
        times=RunTimes(iso(run.created_at), iso(run.finished_at), round(max(0.0, seconds), 3)),
        tasks=TaskSums(
            processed=sum(stage.tasks.done + stage.tasks.failed for stage in stages),
            reused=sum(stage.tasks.reused for stage in stages),
        ),
        request=RunRequest(definition["input"]["path"], run.selection, output_of(run)),
        rows=rows,
        odd=await _odd_records(database, run, definition["input"]["on_duplicate_id"], rows),
        levels=levels,
        stages=stages,
        calls=calls_of(counts),
        timing_ms=_timing_ms(times, None),
        serving=serving_of(
            [read_as(ServingFacts, facts) for facts in await run_serving(database, run.id)]
        ),
        errors=_errors(counts, await _examples(database, run, rows, levels)),
    )


async def _levels(
    database: Database, run: RunRecord, definition: Mapping[str, Any]
) -> tuple[MadeRows, ...]:
    """Counts the rows of each stage that made any, or may make children or groups."""
    made = await store.made_counts(database, run.id)
    levels = []
    for stage in recorded_stages(definition):
        rows = RowCounts(**store.present(made, stage.index))
        if stage.makes is not None and (rows.total or stage.makes != "rows"):
            levels.append(MadeRows(stage.name, stage.makes, rows))
    return tuple(levels)


async def _odd_records(
    database: Database, run: RunRecord, rule: str, rows: RowCounts
) -> OddRecords:
    """Counts what was odd in the input; `rule` says what becomes of repeated ids."""
    repeated = None
    if rule in ("first", "last") and rows.dropped:
        repeated = RepeatedIds(rule, (await store.count_repeated(database, run.id))[0])
    return OddRecords(repeated, await short_records(database, run.id) or 0)


async def _examples(
    database: Database, run: RunRecord, rows: RowCounts, levels: Iterable[MadeRows]
) -> list[store.ErrorExample]:
    """Finds an example of each way in which rows failed, of the input first."""
    examples = []
    if rows.failed:
        examples += await store.error_examples(database, run.id)
    if any(level.rows.failed for level in levels):
        known = {(example.error_type, example.stage) for example in examples}
        examples += [
            example
            for example in await store.made_examples(database, run.id)
            if (example.error_type, example.stage) not in known
        ]
    return examples


def output_of(run: RunRecord) -> str | None:
    """Returns the folder or file with a run's outputs, `-` for standard output; None for a task
    from Python, which has none."""
    has_none = run.outputs.get("places") == {} and run.output_dir != "-"
    return None if has_none else run.output_dir


def _errors(
    counts: Iterable[Count], examples: Iterable[store.ErrorExample]
) -> tuple[ErrorSummary, ...]:
    """Counts how rows failed, most frequent first, each with its first row."""
    tasks = Counter[tuple[str | None, str]]()
    for count in counts:
        tasks[count.stage, count.error_type] += count.tasks if count.outcome == "failed" else 0
    rows = {}
    for example in examples:
        if example.stage is None:
            rows[example] = example.rows
        else:
            rows[example] = tasks[example.stage, example.error_type]
    return tuple(
        ErrorSummary(
            example.error_type,
            example.stage,
            rows[example],
            FailedRow(example.row_id, example.ordinal, example.message),
        )
        for example in sorted(rows, key=rows.__getitem__, reverse=True)
    )


def _stage(
    stage: dict[str, Any], counts: list[Count], times: Timings, waiting: Mapping[str, int]
) -> StageSummary:
    """Makes the summary of a stage. `waiting`: rows that wait for people, by stage."""
    name = stage["name"]
    of_stage = [count for count in counts if count.stage == name]
    tasks = Counter[str]()
    ways = Counter[str]()
    for count in of_stage:
        tasks[count.outcome] += count.tasks
        for way in count.error_type.split(",") if count.outcome == HOW else ():
            ways[way] += count.tasks
    answered = {
        count.model for count in of_stage if count.outcome == "call" and not count.error_type
    }
    reviewed = "review" in stage.get("operation", ())
    return StageSummary(
        name=name,
        model=model_of(stage),
        alias=stage.get("alias"),
        answered_by=tuple(sorted(answered)),
        tasks=TaskOutcomes(**{outcome.value: tasks[outcome] for outcome in Outcome}),
        mended=MendedAnswers(
            ways["repair"], ways["json_repair"], ways["fallback"], ways["misformatted"]
        ),
        timing_ms=_timing_ms(times, name),
        agreement=_agreement(of_stage, stage["vote"]) if stage.get("vote") else None,
        agent=_conversations(of_stage) if "agent" in stage else None,
        review=_review(of_stage, waiting.get(name, 0)) if reviewed else None,
    )


def _review(counts: Iterable[Count], waiting: int) -> ReviewCounts:
    """Counts how rows passed the stage at which people decide; `waiting` rows wait."""
    ways = dict.fromkeys(("auto", "approved", "manual", "rejected"), 0)
    for count in counts:
        if count.outcome == AGREEMENT or count.error_type == ErrorType.REJECTED:
            ways[count.error_type.lower()] += count.tasks
    return ReviewCounts(waiting, **ways)


_SERVED = ("coalesced", "cached", "stub", "replayed", "error", "refused", "unknown")
"""Ways to serve calls of tools besides running them, and ways to fail."""


def _conversations(counts: Iterable[Count]) -> ConversationCounts:
    """Counts the conversations of a stage."""
    counts = list(counts)
    turns = [count for count in counts if count.outcome == TURN]
    served = Counter[str]()
    for count in counts:
        served[count.error_type] += count.tasks if count.outcome == TOOL else 0
    ran = served[""] + served["error"]
    dedup = None
    if ran:
        dedup = round((ran + served["coalesced"] + served["cached"]) / ran, 2)
    return ConversationCounts(
        conversations=sum(
            count.tasks for count in turns if count.error_type == FIRST and not count.model
        ),
        turns=sum(count.tasks for count in turns),
        tool_calls=ToolCallCounts(served.total(), ran, *(served[way] for way in _SERVED)),
        failing_tools=_failing_tools(counts) or None,
        dedup=dedup,
    )


def _failing_tools(counts: Iterable[Count]) -> dict[str, int]:
    """Returns the tools of which no call worked, each with how many failed."""
    ended: dict[str, Counter[str]] = defaultdict(Counter)
    for count in counts:
        if count.outcome == TOOL and count.model:
            ended[count.model][count.error_type] += count.tasks
    worked = ("", "cached", "stub", "replayed")  # equal calls share failures, too
    return {
        name: ways["error"]
        for name, ways in sorted(ended.items())
        if ways["error"] and not any(ways[way] for way in worked)
    }


def _agreement(counts: Iterable[Count], vote: Any) -> VoteAgreement:
    """Counts how far the replicas of a stage's rows agreed."""
    votes = [
        (share(count.error_type), count.tasks)
        for count in counts
        if count.outcome == AGREEMENT and count.tasks
    ]
    return VoteAgreement(
        rows=sum(rows for _, rows in votes),
        mean=_mean(votes),
        unanimous=_mean([(float(part == 1), rows) for part, rows in votes]),
        early=EarlyVotes(mean_asked(counts)) if "lead" in vote else None,
    )


def mean_asked(counts: Iterable[Count]) -> float | None:
    """Returns how many replicas were asked for a vote, on average; None: no vote has ended."""
    votes = [
        (float(re.findall(r"\d+", count.error_type)[-1]), count.tasks)
        for count in counts
        if count.outcome == AGREEMENT and "/" in count.error_type
    ]
    return _mean(votes)


def _mean(values: Sequence[tuple[float, int]]) -> float | None:
    """Returns the average of values that so many rows have; None without rows."""
    rows = sum(times for _, times in values)
    if not rows:
        return None
    return round(sum(value * times for value, times in values) / rows, 4)


def _timing_ms(times: Timings, stage: str | None) -> CallTimes:
    """Returns how long answered calls took, of one stage or of all."""
    return CallTimes(
        duration=_quantiles(times, stage, "duration"),
        ttft=_quantiles(times, stage, "ttft"),
        time_to_response=_quantiles(times, stage, "time_to_response"),
    )


def _quantiles(times: Timings, stage: str | None, measure: str) -> TimeQuantiles:
    """Returns the quantiles of a measure of calls, of one stage or of all."""
    histogram = merged(
        counts
        for (of_stage, of_measure), counts in times.items()
        if of_measure == measure and stage in (None, of_stage)
    )
    return TimeQuantiles(
        sum(histogram.values()),
        _milliseconds(quantile(histogram, 0.5)),
        _milliseconds(quantile(histogram, 0.95)),
    )


def _milliseconds(seconds: float | None) -> float | None:
    """Turns seconds into milliseconds."""
    return None if seconds is None else round(seconds * 1000, 1)


def serving_of(invocations: Sequence[ServingFacts]) -> ServingSummary:
    """Adds up how well prefix caches and slots were used in the invocations of a run."""
    known = _added(facts.known for facts in invocations)
    first = _added(facts.first for facts in invocations)
    seconds = _added(facts.seconds for facts in invocations)
    addresses = dict.fromkeys(address for facts in invocations for address in facts.engines)
    engines = {
        address: _added(facts.engines.get(address, (0, 0)) for facts in invocations)
        for address in addresses
    }
    return ServingSummary(
        prefix_hit=_part(*known),
        prefix_hit_without_first=_part(known[0] - first[0], known[1] - first[1]),
        prefill_tokens=known[0] - known[1] if known[0] else None,
        first_calls=sum(facts.first_calls for facts in invocations),
        slots=invocations[-1].slots if invocations else None,
        slot_utilisation=_part(*seconds),
        engines=tuple(
            EngineCache(address, int(seen), int(had), _part(seen, had))
            for address, (seen, had) in engines.items()
        ),
    )


def _added(pairs: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Adds up pairs."""
    firsts, seconds = zip((0, 0), *pairs, strict=True)
    return sum(firsts), sum(seconds)


def _part(whole: float, some: float) -> float | None:
    """Returns the part that `some` is of the whole; None: there is nothing."""
    return round(some / whole, 4) if whole else None


def calls_of(counts: Iterable[Count]) -> CallCounts:
    """Adds up the calls among some roll-ups of a run."""
    calls = [count for count in counts if count.outcome == "call"]
    simulated = sum(count.simulated for count in calls)
    unpriced = sum(count.unpriced for count in calls)
    return CallCounts(
        count=sum(count.tasks for count in calls),
        failed=sum(count.tasks for count in calls if count.error_type),
        simulated=simulated,
        tokens=_tokens_of(calls),
        server_tools=sum(count.server_tools for count in calls),
        cost=CallCost(
            usd=cost_of(dollars_in_all(count.cost for count in calls), unpriced),
            is_simulated=simulated > 0,
            unpriced=unpriced,
        ),
    )


def _tokens_of(calls: Sequence[Count]) -> TokenCounts:
    """Adds up the tokens of calls."""
    return TokenCounts(
        input=sum(count.input_tokens for count in calls),
        cached=sum(count.cached_tokens for count in calls),
        output=sum(count.output_tokens for count in calls),
        reasoning=sum(count.reasoning_tokens for count in calls),
        cache_write=sum(count.cache_write_tokens for count in calls),
    )


def share(agreement: str) -> float:
    """Returns `2/3` as a number; the same for `2/3 of 5`, where two of those asked have no
    vote."""
    count, most, *_ = re.findall(r"\d+", agreement)
    return int(count) / int(most)
