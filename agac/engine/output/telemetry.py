"""What a run did: telemetry.jsonl, the summary, quantiles of call times; and what of it
OpenTelemetry is sent."""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agac.core.errors import ErrorType
from agac.core.reading import read_as
from agac.core.types import Outcome, dollars_in_all, iso
from agac.data.json_formats import encode
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
from agac.spec.rules import RunRules
from agac.store import rows as store
from agac.store.db import Database
from agac.store.decisions import open_reviews
from agac.store.history import (
    CalledRow,
    CallRecord,
    RowCalls,
    Timings,
    agreements,
    calls_by_row,
    timings,
)
from agac.store.records import AGREEMENT, FIRST, HOW, TOOL, TURN, Call, CallTiming
from agac.store.rows import State
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

if TYPE_CHECKING:
    from agac.data.sinks import JsonSink  # it brings every format; `agac status` writes none

# telemetry.jsonl: a line for each row for which a call was made, with when, how long, how many
# tokens and by whom; and for each that failed before one.
#
# Written from the store, as all outputs are: some hundred rows are held at a time. The lines are
# put together as text, since a million of them are written: what repeats from call to call is made
# once.

# the name of the shape of `usage`: raised when something is renamed or means something else
SCHEMA = "agac.usage/v1"
NULL = "null"
_OK: dict[int, str] = {**dict.fromkeys(map(int, store.WALKED), "true"), State.FAILED: "false"}
_MOST_PIECES = 4096


async def write_telemetry(database: Database, run: int, sink: JsonSink) -> None:
    """Writes the whole of telemetry.jsonl: rows in input order, then those that stages made. A row
    that failed before a call has empty `timing` and `usage`. A row that left the input, or is no
    longer made, has no line, and none has a row whose results were all there already."""
    definition = await definition_of(database, run)
    writer = LineWriter([stage["name"] for stage in definition["stages"]])
    votes = any(stage.get("vote") for stage in definition["stages"])
    async for rows in calls_by_row(database, run):
        asked = [one.row.row_key for one in rows if one.calls]
        agreed = await agreements(database, asked) if votes else {}
        sink.write_texts([writer.line(one, agreed.get(one.row.row_key)) for one in rows])


def uncalled_line(row: CalledRow) -> str:
    """The line of a row that failed before a call."""
    return (
        f'{{"id":{encode(row.row_id)},"row_number":{_or_null(row.ordinal)},'
        '"ok":false,"timing":{},"usage":{}}'
    )


class LineWriter:
    """Makes lines of calls. `stages` are the names of the run's stages, as the store counts
    them."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._stages = stages
        self._heads: dict[tuple[object, ...], str] = {}
        self._seconds: dict[int, str] = {}

    def line(self, of: RowCalls, agreed: Mapping[int, str] | None) -> str:
        """Makes the line of a row, with its calls stage by stage. `agreed`: by the stage's
        position, how many replicas said what the vote decided, of how many, as `2/3`."""
        row, calls = of
        if not calls:
            return uncalled_line(row)
        agreement = ""
        attempts = ",".join(map(self._attempt, calls))
        if agreed:
            shares = {
                self._stages[stage]: round(share(votes), 4)
                for stage, votes in sorted(agreed.items())
            }
            agreement = f',"agreement":{encode(shares)}'
        return (
            f'{{"id":{encode(row.row_id)},"row_number":{_or_null(row.ordinal)},'
            f'"ok":{_OK.get(row.state, NULL)},'
            f'"timing":{self._timing(calls)},"usage":{{"schema":"{SCHEMA}","turn":{_turn(calls)},'
            f'"provider_attempts":[{attempts}]}}{agreement}}}'
        )

    def _timing(self, calls: list[CallRecord]) -> str:
        """Of the newest invocation that asked for the row, waits between its calls included."""
        if len(calls) == 1:
            return "{" + self._times(calls[0].call.times) + "}"
        newest = max(record.invocation for record in calls)
        of_newest = [record.call.times for record in calls if record.invocation == newest]
        own = sorted(of_newest, key=lambda times: times.started_at)
        start = own[0].started_at
        lasted = max(times.started_at + times.duration for times in own) - start
        first = next(
            (times.started_at - start + times.ttft for times in own if times.ttft is not None),
            None,
        )
        responses = (
            times.started_at - start + times.time_to_response
            for times in reversed(own)
            if times.time_to_response is not None
        )
        return "{" + self._times(CallTiming(start, lasted, first, next(responses, None))) + "}"

    def _times(self, times: CallTiming) -> str:
        return (
            f'"start":"{self._iso(times.started_at)}",'
            f'"duration_ms":{times.duration * 1000:.1f},'
            f'"ttft_ms":{_ms(times.ttft)},"time_to_response_ms":{_ms(times.time_to_response)}'
        )

    def _attempt(self, record: CallRecord) -> str:
        call = record.call
        given, cached, made, thought, cost = _took(call)
        fresh = None if given is None or cached is None else given - cached
        return (
            f"{self._head(record)}{self._times(call.times)},"
            f'"prompt":{{"total":{_or_null(given)},"uncached":{_or_null(fresh)},"cache_read":{_or_null(cached)}}},'
            f'"completion":{{"total":{_or_null(made)},"reasoning":{_or_null(thought)}}},'
            f'"cost_usd":{NULL if cost is None else round(cost, 9)}}}'
        )

    def _head(self, record: CallRecord) -> str:
        """Says which call it was: the same for nearly all calls of a stage."""
        call = record.call
        attempt = call.attempt
        endpoint = call.endpoint
        error_type = None if call.error is None else call.error.type.value
        key = (
            attempt.stage,
            record.invocation,
            attempt.number,
            attempt.purpose,
            endpoint,
            call.status,
            error_type,
            call.service_tier,
            attempt.replica,
        )
        head = self._heads.get(key)
        if head is None:
            facts = {
                "stage": self._stages[attempt.stage],
                "invocation": record.invocation,
                **({"replica": attempt.replica} if attempt.replica else {}),
                "attempt": attempt.number,
                "purpose": attempt.purpose,
                "provider": endpoint.provider,
                "model": endpoint.model,
                "simulated": endpoint.simulated,
                "http_status": call.status,
                "error": error_type,
                "service_tier": call.service_tier,
            }
            if len(self._heads) >= _MOST_PIECES:
                self._heads.clear()
            head = self._heads[key] = encode(facts)[:-1] + ","
        return head

    def _iso(self, seconds: float) -> str:
        """Wall-clock time, UTC, to the millisecond."""
        whole = int(seconds)
        text = self._seconds.get(whole)
        if text is None:
            if len(self._seconds) >= _MOST_PIECES:
                self._seconds.clear()
            text = self._seconds[whole] = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(whole))
        return f"{text}{int((seconds - whole) * 1000):03d}Z"


def _turn(calls: list[CallRecord]) -> str:
    """All that the row took in this run: every stage, attempt and invocation. null: not
    reported."""
    took = _took(calls[0].call)
    if len(calls) > 1:
        known = (
            [one for one in column if one is not None]
            for column in zip(*(_took(record.call) for record in calls), strict=True)
        )
        took = tuple(sum(column) if column else None for column in known)
    given, cached, made, thought, cost = took
    usd = NULL if cost is None else round(cost, 9)
    return (
        f'{{"input_tokens":{_or_null(given)},"output_tokens":{_or_null(made)},'
        f'"cached_tokens":{_or_null(cached)},'
        f'"reasoning_tokens":{_or_null(thought)},"cost_usd":{usd}}}'
    )


def _took(call: Call) -> tuple[float | None, ...]:
    """Returns the input, cached, output and reasoning tokens of a call, and its cost."""
    usage = call.usage
    return (
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        call.cost,
    )


def _or_null(number: float | None) -> float | str:
    return NULL if number is None else number


def _ms(seconds: float | None) -> str:
    return NULL if seconds is None else f"{seconds * 1000:.1f}"


# Quantiles of durations from a histogram of fixed size: buckets whose bounds grow by a fixed ratio
# (as in DDSketch).
#
# A bucket holds what lies in (RATIO ** (number - 1), RATIO ** number] seconds, and answers with the
# value in it that is at most RELATIVE_ERROR away from both ends. Histograms of the same quantity
# are merged by adding their counts, so the parts may be counted apart: commit by commit, invocation
# by invocation, stage by stage.

RELATIVE_ERROR = 0.02
"""A quantile that lies between SHORTEST and LONGEST is at most this share of itself beside the
true one."""

RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)

SHORTEST = 1e-4
LONGEST = 1e5
"""Seconds. What is shorter or longer is counted in the first or the last bucket: about 520 buckets
lie between."""

Histogram = Mapping[int, int]  # how many values fell into each bucket
_LOG_RATIO = math.log(RATIO)


def bucket_of(seconds: float) -> int:
    """The number of the bucket into which a duration falls."""
    return log_bucket(min(max(seconds, SHORTEST), LONGEST))


def log_bucket(value: float) -> int:
    """The number of the bucket into which a value above 0 falls, of any size."""
    return math.ceil(math.log(value) / _LOG_RATIO)


def quantile(histogram: Histogram, share: float) -> float | None:
    """The value in seconds below which `share` of all lie (0.5: the median), None of an empty
    histogram. Of n values in order it is the one at position floor(share * (n - 1)), counted from
    0."""
    left = math.floor(share * (sum(histogram.values()) - 1))
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left < 0:
            return 2 * RATIO**bucket / (RATIO + 1)
    return None


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """One histogram of everything that several have counted."""
    return sum(map(Counter, histograms), Counter())


async def summarise(database: Database, run: RunRecord) -> RunSummary:
    """Makes the summary of a run as it is in the store now."""
    counts = await counters(database, run.id)
    times = await timings(database, run.id)
    definition = await definition_of(database, run.id)
    rows = RowCounts(**row_counts(counts))
    levels = await _levels(database, run, definition)
    reviewing = any("review" in stage.get("operation", ()) for stage in definition["stages"])
    if reviewing:
        waiting = await open_reviews(database, run.workflow, run.id)
    else:
        waiting = {}
    stages = tuple(_stage(stage, counts, times, waiting) for stage in definition["stages"])
    seconds = await run_duration(database, run.id)
    return RunSummary(
        workflow=run.workflow,
        run=run.id,
        complete=run.finished_at is not None,
        times=RunTimes(iso(run.created_at), iso(run.finished_at), round(max(0.0, seconds), 3)),
        tasks=TaskSums(
            processed=sum(one.tasks.done + one.tasks.failed for one in stages),
            reused=sum(one.tasks.reused for one in stages),
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
    """The folder or file with a run's outputs, `-` for standard output; None of a task from
    Python, which has none."""
    nowhere = run.outputs.get("places") == {} and run.output_dir != "-"
    return None if nowhere else run.output_dir


def _errors(
    counts: Iterable[Count], examples: Iterable[store.ErrorExample]
) -> tuple[ErrorSummary, ...]:
    """Counts how rows failed, most frequent first, each with its first row."""
    tasks = Counter[tuple[str | None, str]]()
    for count in counts:
        tasks[count.stage, count.error_type] += count.tasks if count.outcome == "failed" else 0
    rows = {
        one: one.rows if one.stage is None else tasks[one.stage, one.error_type] for one in examples
    }
    return tuple(
        ErrorSummary(
            one.error_type, one.stage, rows[one], FailedRow(one.row_id, one.ordinal, one.message)
        )
        for one in sorted(rows, key=rows.__getitem__, reverse=True)
    )


def _stage(
    stage: dict[str, Any], counts: list[Count], times: Timings, waiting: Mapping[str, int]
) -> StageSummary:
    """Makes the summary of a stage. `waiting`: rows that wait for people, by stage."""
    name = stage["name"]
    own = [count for count in counts if count.stage == name]
    tasks = Counter[str]()
    ways = Counter[str]()
    for count in own:
        tasks[count.outcome] += count.tasks
        for way in count.error_type.split(",") if count.outcome == HOW else ():
            ways[way] += count.tasks
    answered = {one.model for one in own if one.outcome == "call" and not one.error_type}
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
        agreement=_agreement(own, stage["vote"]) if stage.get("vote") else None,
        agent=_conversations(own) if "agent" in stage else None,
        review=_review(own, waiting.get(name, 0)) if reviewed else None,
    )


def _review(counts: Iterable[Count], waiting: int) -> ReviewCounts:
    """Counts how rows passed the stage at which people decide; `waiting` rows wait."""
    ways = dict.fromkeys(("auto", "approved", "manual", "rejected"), 0)
    for count in counts:
        if count.outcome == AGREEMENT or count.error_type == ErrorType.REJECTED:
            ways[count.error_type.lower()] += count.tasks
    return ReviewCounts(waiting, **ways)


_SERVED = ("coalesced", "cached", "stub", "replayed", "error", "refused", "unknown")
"""What serves calls of tools besides running them, and how they fail."""


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
        conversations=sum(c.tasks for c in turns if c.error_type == FIRST and not c.model),
        turns=sum(count.tasks for count in turns),
        tool_calls=ToolCallCounts(served.total(), ran, *(served[key] for key in _SERVED)),
        failing_tools=_failing_tools(counts) or None,
        dedup=dedup,
    )


def _failing_tools(counts: Iterable[Count]) -> dict[str, int]:
    """The tools of which no call worked, each with how many failed."""
    ended: dict[str, Counter[str]] = defaultdict(Counter)
    for count in counts:
        if count.outcome == TOOL and count.model:
            ended[count.model][count.error_type] += count.tasks
    worked = ("", "cached", "stub", "replayed")  # an equal call shares a failure, too
    return {
        name: states["error"]
        for name, states in sorted(ended.items())
        if states["error"] and not any(states[one] for one in worked)
    }


def _agreement(counts: Iterable[Count], vote: Any) -> VoteAgreement:
    """Counts how far the replicas of a stage's rows agreed."""
    votes = [(share(c.error_type), c.tasks) for c in counts if c.outcome == AGREEMENT and c.tasks]
    return VoteAgreement(
        rows=sum(tasks for _, tasks in votes),
        mean=_mean(votes),
        unanimous=_mean([(float(one == 1), tasks) for one, tasks in votes]),
        early=EarlyVotes(mean_asked(counts)) if "lead" in vote else None,
    )


def mean_asked(counts: Iterable[Count]) -> float | None:
    """How many replicas were asked for a vote, in the mean; None: none has ended."""
    votes = [c for c in counts if c.outcome == AGREEMENT and "/" in c.error_type]
    return _mean([(float(re.findall(r"\d+", c.error_type)[-1]), c.tasks) for c in votes])


def _mean(values: Sequence[tuple[float, int]]) -> float | None:
    rows = sum(times for _, times in values)
    if rows:
        return round(sum(one * times for one, times in values) / rows, 4)
    return None


def _timing_ms(times: Timings, stage: str | None) -> CallTimes:
    """Counts how long answered calls took, of one stage or of all."""
    found = {}
    for measure in ("duration", "ttft", "time_to_response"):
        histogram = merged(h for (s, m), h in times.items() if m == measure and stage in (None, s))
        found[measure] = TimeQuantiles(
            sum(histogram.values()),
            _milliseconds(quantile(histogram, 0.5)),
            _milliseconds(quantile(histogram, 0.95)),
        )
    return CallTimes(**found)


def _milliseconds(seconds: float | None) -> float | None:
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
    firsts, seconds = zip((0, 0), *pairs, strict=True)
    return sum(firsts), sum(seconds)


def _part(whole: float, some: float) -> float | None:
    return round(some / whole, 4) if whole else None


def calls_of(counts: Iterable[Count]) -> CallCounts:
    """Adds up the calls among some roll-ups of a run."""
    calls = [count for count in counts if count.outcome == "call"]
    simulated = sum(one.simulated for one in calls)
    unpriced = sum(one.unpriced for one in calls)
    return CallCounts(
        count=sum(one.tasks for one in calls),
        failed=sum(one.tasks for one in calls if one.error_type),
        simulated=simulated,
        tokens=TokenCounts(
            input=sum(one.input_tokens for one in calls),
            cached=sum(one.cached_tokens for one in calls),
            output=sum(one.output_tokens for one in calls),
            reasoning=sum(one.reasoning_tokens for one in calls),
            cache_write=sum(one.cache_write_tokens for one in calls),
        ),
        server_tools=sum(one.server_tools for one in calls),
        cost=CallCost(
            usd=cost_of(dollars_in_all(one.cost for one in calls), unpriced),
            is_simulated=simulated > 0,
            unpriced=unpriced,
        ),
    )


def share(agreement: str) -> float:
    """`2/3` as a number; of `2/3 of 5`, where two of those asked have no vote, the same."""
    count, most, *_ = re.findall(r"\d+", agreement)
    return int(count) / int(most)


# What is sent by OpenTelemetry's protocol: `engine.otlp` does so, and is loaded only then.


class OtelSettings(NamedTuple):
    """Which signals are sent. `refused`: why they cannot be sent as the environment asks for it."""

    traces: bool
    metrics: bool
    refused: str


def otel_settings(rules: RunRules, env: Mapping[str, str]) -> OtelSettings | None:
    """What is sent, by a workflow's rules and the process's variables, of which the SDK reads
    some; None: nothing."""
    base = "OTEL_EXPORTER_OTLP"
    sent = set[str]()
    refused = ""
    if rules.otel is False or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    for signal in ("TRACES", "METRICS"):
        asked = rules.otel or env.get(f"{base}_ENDPOINT") or env.get(f"{base}_{signal}_ENDPOINT")
        if asked and env.get(f"OTEL_{signal}_EXPORTER", "otlp") == "otlp":
            sent.add(signal)
            if (env.get(f"{base}_{signal}_PROTOCOL") or env.get(f"{base}_PROTOCOL")) == "grpc":
                todo = (
                    "set it to http/protobuf, and the address to that of the collector's "
                    "HTTP port, 4318 as a rule"
                )
                refused = f"{base}_PROTOCOL is grpc, and agac sends by HTTP: {todo}"
    if sent:
        return OtelSettings("TRACES" in sent, "METRICS" in sent, refused)
    return None
