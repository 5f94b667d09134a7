"""OpenTelemetry: a trace for each row that failed and for a sample of the others, and metrics,
sent by OTLP over HTTP. Spans are made after the fact. While a row walks, what it comes to is noted
beside it (`RowNotes`); at its end its failure, or a hash of its id, decides whether spans are made
of that. A thread sends them: nothing waits for it, and what there is no room for is left out.
Nothing else of agac loads OpenTelemetry's packages. Names are those of its GenAI conventions
(`opentelemetry-semantic-conventions` 0.66b2); what these have no name for is `agac.…`."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as data
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agac.core.errors import ErrorType, RowError, storable
from agac.core.keys import share_of, trace_ids
from agac.core.types import Message, Reply, Usage
from agac.engine.attempts import MOST_CHARACTERS, TaskAttempts
from agac.engine.effects import ActiveRow, RowNotes, ToolKey, TracedCall
from agac.engine.invocation import InvocationRef, Work
from agac.engine.rate_limiter import Lane
from agac.engine.settle import Totals
from agac.engine.telemetry import OtelSettings
from agac.store.history import AttemptRecord, attempts_of_row
from agac.store.records import Call, Endpoint

_log = logging.getLogger("agac.otel")

PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Providers that the conventions call otherwise than agac does."""

TOKENS = [4.0**power for power in range(14)]
SECONDS = [0.01 * 2**power for power in range(14)]
"""The bounds that the conventions give for the histograms of tokens and of seconds."""

MOST_ROWS = 4096  # that wait to be sent; and spans of a request, about
MOST_SPANS = 512
EVERY = 1.0
METRICS_EVERY = 60.0
AT_THE_END = 3.0
"""Seconds between two looks at what is to be sent, between two sendings of metrics, and how long
the end of a run waits at most for the last of it."""

Attributes = dict[str, Any]
_FAILED = Status(StatusCode.ERROR)
_UNSET = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope("agac")
_CUMULATIVE = data.AggregationTemporality.CUMULATIVE


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _said(attributes: Attributes) -> Attributes:
    """Those that have a value."""
    return {name: value for name, value in attributes.items() if value is not None and value != ""}


def _model(provider: str, asked: str, answered: str, simulated: bool) -> Attributes:
    """Who was asked, in spans as in metrics."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(provider, provider),
        "gen_ai.request.model": asked,
        "gen_ai.response.model": answered,
        "agac.simulated": simulated or None,
    }


class FixedResource(Resource):
    """The encoder asks each span's resource for its hash, which is made of all that it holds."""

    def __hash__(self) -> int:
        return id(self)


class Traces:
    """Takes the traces and the metrics of one invocation. `lanes` are those at work, by name.
    `close` it."""

    def __init__(
        self, settings: OtelSettings, work: Work, places: InvocationRef, token: str, totals: Totals
    ) -> None:
        self.plan = work.plan
        self.clean = work.redactor.clean
        self._wall = work.clocks.wall
        self._database = places.database
        self._totals = totals
        self.identity = (token, places.run, places.event)
        self.invocation, self._began = _context(*trace_ids(*self.identity)), self._wall()
        self.lanes: Mapping[str, Lane] = {}
        self._tallies: dict[tuple[Any, ...], list[float]] = {}
        own: Attributes = {
            "service.name": "agac",
            "agac.workflow": work.plan.workflow,
            "agac.run": places.run,
        }
        # the environment's names come last
        known = Resource.create(own).merge(OTELResourceDetector().detect())
        self._resource = FixedResource(known.attributes, known.schema_url)
        self._spans = OTLPSpanExporter() if settings.traces else None
        self._metrics = OTLPMetricExporter() if settings.metrics else None
        self._queue = deque[list[ReadableSpan]]()
        self._next = time.monotonic() + METRICS_EVERY
        self._closing = threading.Event()
        self._why = ""
        self._warned = False
        self._thread = threading.Thread(target=self._send_all, name="agac-otel", daemon=True)
        self._thread.start()

    def begin(self, row: ActiveRow) -> RowNotes:
        """The notes of a row that is taken up. Each walk of it is a trace of its own."""
        return RowNotes(
            self._wall(), (*self.identity, row.new.origin, row.new.row.id, row.new.occurrence)
        )

    def called(self, attempts: TaskAttempts, call: Call, reply: Reply | None) -> None:
        """A call ended."""
        model = attempts.connection.model.model
        notes = attempts.active.notes
        self.count(model, call)
        if notes is not None:
            made = attempts.stage.index, attempts.fingerprint, attempts.replica, model, call
            texts: Mapping[str, Sequence[Message]] = {}
            if self.plan.rules.otel_prompts:
                texts = {
                    "input": attempts.request.messages,
                    "output": (reply.message(),) if reply else (),
                }
            notes.calls.append(TracedCall(*made, reply.finish if reply else None, texts))

    def count(self, asked: str, call: Call, *, in_batch: bool = False) -> None:
        """Counts what a call took; of one in a batch not for how long."""
        by = call.endpoint.provider, asked, call.endpoint.model, call.endpoint.simulated
        for kind, tokens in (
            ("input", call.usage.input_tokens),
            ("output", call.usage.output_tokens),
        ):
            if tokens is not None:
                self._tally(("gen_ai.token.type", kind, *by), TOKENS, tokens)
        if not in_batch:
            self._tally(
                ("error.type", call.error.type.value if call.error else "", *by),
                SECONDS,
                call.duration,
            )

    def _tally(self, key: tuple[Any, ...], bounds: Sequence[float], value: float) -> None:
        found = self._tallies.get(key)
        if found is None:  # the sum, the least, the most, and how many lie within each bound
            found = self._tallies[key] = [0.0, inf, 0.0, *[0] * (len(bounds) + 1)]
        found[0] += value
        found[1], found[2] = min(found[1], value), max(found[2], value)
        found[3 + bisect_left(bounds, value)] += 1

    async def ended(self, row: ActiveRow) -> None:
        """A row came to its end, or to where it waits: it is walked again then, so without a call
        nothing is sent."""
        notes = row.notes
        failed = row.failed if not row.dropped else None
        waits = row.stays_open
        if notes is None or self._spans is None or (waits and not notes.calls):
            return
        if (waits or failed is None) and share_of(
            "trace", "", row.new.row.id
        ) >= self.plan.rules.otel_sample:
            return
        if row.ready:
            prints = {fingerprint for _, _, fingerprint in row.ready}
            found = await attempts_of_row(self._database, row.new.key)
            notes.calls += [
                _in_batch(one)
                for one in found
                if one.fingerprint in prints and one.started_at < notes.begun
            ]
        if row.dropped:
            went = "dropped"
        elif row.reached or row.lists:
            went = "done"
        else:
            went = "skipped"
        if waits:
            outcome = "waiting"
        elif failed:
            outcome = "failed"
        else:
            outcome = went
        self._put(row_spans(self, row, notes, outcome, failed[1] if failed else None, self._wall()))

    def span(
        self, name: str, context: SpanContext, start: float, end: float, attributes: Attributes,
        above: SpanContext | None = None,
    ) -> ReadableSpan:  # fmt: skip
        """A span that is whole; the first one of a row is linked to its invocation."""
        links: tuple[Link, ...]
        if above or context is self.invocation:
            links = ()
        else:
            links = (Link(self.invocation),)
        return ReadableSpan(
            name,
            context,
            above,
            self._resource,
            _said(attributes),
            links=links,
            kind=SpanKind.CLIENT if "gen_ai.request.model" in attributes else SpanKind.INTERNAL,
            status=_FAILED if attributes.get("error.type") else _UNSET,
            start_time=int(start * 1e9),
            end_time=int(max(start, end) * 1e9),
            instrumentation_scope=_SCOPE,
        )

    def _put(self, spans: list[ReadableSpan]) -> None:
        if len(self._queue) < MOST_ROWS:
            self._queue.append(spans)
        else:
            self._lost("more is to be sent than the collector takes")

    async def close(self) -> None:
        """Sends what is left, for as long as the end of a run may wait."""
        counts = {
            "agac.rows.done": self._totals.rows_done,
            "agac.rows.failed": self._totals.rows_failed,
        }
        name = f"invoke_workflow {self.plan.workflow}"
        about = {"gen_ai.operation.name": "invoke_workflow", **counts}
        if self._spans is not None:
            self._put([self.span(name, self.invocation, self._began, self._wall(), about)])
        self._closing.set()
        await asyncio.to_thread(self._thread.join, AT_THE_END)
        if self._thread.is_alive():
            self._lost(self._why or f"the collector takes longer than {AT_THE_END:.0f} s")
            self._queue.clear()  # it ends by itself, once the request under way has

    # From here on everything runs in the thread.

    def _send_all(self) -> None:
        loggers = [logging.getLogger(type(one).__module__) for one in (self._spans, self._metrics)]
        for logger in loggers:
            logger.addFilter(self._hear)
        while not self._closing.wait(EVERY):
            self._send(at_end=False)
        self._send(at_end=True)
        for logger in loggers:
            logger.removeFilter(self._hear)

    def _hear(self, record: logging.LogRecord) -> bool:
        """What exporters log of their faults is told once, in our words."""
        if record.thread == self._thread.ident:
            self._why = record.getMessage().partition(" encountered while ")[0]
        return record.thread != self._thread.ident

    def _lost(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "traces and metrics cannot all be sent: %s; the run goes on without them",
                self.clean(why),
            )

    def _send(self, *, at_end: bool) -> None:
        sent = True
        while self._queue and self._spans is not None:
            spans: list[ReadableSpan] = []
            while self._queue and len(spans) < MOST_SPANS:
                spans += self._queue.popleft()
            sent &= self._spans.export(spans).name == "SUCCESS"
        if self._metrics is not None and (at_end or time.monotonic() >= self._next):
            self._next = time.monotonic() + METRICS_EVERY
            sent &= self._metrics.export(self._measured()).name == "SUCCESS"
        if not sent:
            self._lost(self._why)

    def _measured(self) -> data.MetricsData:
        """All metrics as they stand, counted from the beginning of the invocation."""
        totals = self._totals
        times = (int(self._began * 1e9), time.time_ns())
        metrics = list[data.Metric]()
        base: Attributes = {"agac.workflow": self.plan.workflow}

        def add(
            name: str, unit: str, values: Iterable[tuple[Attributes, float]], *, counts: bool = True
        ) -> None:
            found = [data.NumberDataPoint(base | about, *times, value) for about, value in values]
            metrics.append(
                data.Metric(name, "", unit, data.Sum(found, _CUMULATIVE, is_monotonic=counts))
            )

        rows = {
            "done": totals.rows_done,
            "failed": totals.rows_failed,
            "skipped": totals.rows_skipped,
            "dropped": totals.rows_dropped + totals.rows_filtered,
            "unchanged": totals.unchanged,
        }
        stages = list(totals.stages.items())
        add(
            "agac.rows", "{row}", (({"agac.outcome": one}, rows[one]) for one in rows), counts=False
        )
        add(
            "agac.cost",
            "USD",
            (({"agac.stage": n, "agac.simulated": s.simulated > 0}, s.cost) for n, s in stages),
        )
        add(
            "agac.lane.wait",
            "s",
            (({"agac.lane": n}, lane.waited) for n, lane in self.lanes.items()),
        )
        for name, unit, label, bounds in (
            ("gen_ai.client.token.usage", "{token}", "gen_ai.token.type", TOKENS),
            ("gen_ai.client.operation.duration", "s", "error.type", SECONDS),
        ):
            found = [
                data.HistogramDataPoint(
                    _said(base | {label: kind} | _model(*by)),
                    *times,
                    int(sum(counts)),
                    total,
                    [*map(int, counts)],
                    bounds,
                    low,
                    high,
                )
                for (of, kind, *by), (total, low, high, *counts) in list(self._tallies.items())
                if of == label
            ]
            metrics.append(data.Metric(name, "", unit, data.Histogram(found, _CUMULATIVE)))
        return data.MetricsData(
            [data.ResourceMetrics(self._resource, [data.ScopeMetrics(_SCOPE, metrics, "")], "")]
        )


def row_spans(
    traces: Traces,
    row: ActiveRow,
    notes: RowNotes,
    outcome: str,
    error: RowError | None,
    now: float,
) -> list[ReadableSpan]:
    """A row's spans: itself, stages, calls of models and tools; a child agent's are in its tool
    call."""
    stages = traces.plan.stages
    texts = traces.plan.rules.otel_prompts
    calls = notes.calls
    ends = {one.stage: one for one in notes.ends if not one.replica}
    nodes: list[list[Any]] = []

    def shown(said: str) -> str:
        return storable(traces.clean(said))  # as what may be in a message of the protocol, too

    def text(said: str | None) -> str:
        return shown(said)[:MOST_CHARACTERS] if said and texts else ""

    def add(
        above: int,
        name: str,
        start: float,
        end: float,
        about: Attributes,
        error: RowError | None = None,
    ) -> int:
        if error:
            failed = {"error.type": error.type.value, "agac.error.message": text(error.message)}
        else:
            failed = {}
        nodes.append([above, name, start, end, about | failed])
        return len(nodes) - 1

    @cache
    def stage(index: int) -> int:
        end = ends.get(index)
        name = stages[index].name
        start = notes.begins.get(index, end.at if end else inf)
        about = {"agac.stage": name}
        if end is not None:
            about |= {
                "agac.outcome": end.outcome.value,
                "agac.how": end.result.how if end.result else "",
            }
        return add(
            0,
            f"stage {name}",
            start,
            end.at if end else 0.0,
            about,
            error=end.error if end else None,
        )

    def above_of(fingerprint: bytes, index: int) -> int:
        caller = notes.callers.get(fingerprint)
        if caller is not None and caller in notes.tools:
            return tool(caller)
        return stage(index)

    @cache
    def tool(key: ToolKey) -> int:
        one = notes.tools[key]
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": shown(one.name),
            "gen_ai.tool.call.id": shown(one.call_id),
            "agac.tool.state": one.state,
            "agac.tool.served": one.how,
            "error.type": "" if one.state in ("done", "intent") else f"tool_{one.state}",
            "gen_ai.tool.call.arguments": text(one.arguments),
            "gen_ai.tool.call.result": text(one.result),
        }
        end = one.started_at + (one.duration or 0.0)
        return add(
            above_of(one.fingerprint, one.stage),
            f"execute_tool {shown(one.name)}",
            one.started_at,
            end,
            about,
        )

    made_by = None if row.new.origin is None else stages[row.new.origin].name
    number = row.new.row.ordinal or None
    about = {
        "agac.row.id": shown(str(row.new.row.id)),
        "agac.row.number": number,
        "agac.outcome": outcome,
    }
    about |= {"agac.row.made_by": made_by}
    add(0, f"row {traces.plan.workflow}", notes.begun, now, about, error=error)
    for index in ends:
        stage(index)
    for one in calls:
        about = _of_call(one)
        about |= {
            f"gen_ai.{way}.messages": _messages(said, text) for way, said in one.texts.items()
        }
        start = one.call.started_at
        above = above_of(one.fingerprint, one.stage)
        add(
            above,
            f"chat {one.asked}",
            start,
            start + one.call.duration,
            about,
            error=one.call.error,
        )
    for key in notes.tools:
        tool(key)
    return _nested(traces, nodes, *notes.ids)


def _nested(
    traces: Traces, nodes: Sequence[list[Any]], trace: int, first: int
) -> list[ReadableSpan]:
    """Spans of nodes, each of which has the place of the one above it: that lasts as long as all
    that is in it."""
    for above, _, start, end, *_ in reversed(nodes[1:]):
        nodes[above][2:4] = min(nodes[above][2], start), max(nodes[above][3], end)
    own = [_context(trace, first ^ number) for number in range(len(nodes))]
    return [
        traces.span(name, context, start, end, about, None if context is own[0] else own[above])
        for context, (above, name, start, end, about) in zip(own, nodes, strict=True)
    ]


def _of_call(one: TracedCall) -> Attributes:
    """What is said of a call; what is as it mostly is says nothing: each attribute takes time to
    encode."""
    call, usage = one.call, one.call.usage
    return _model(
        call.endpoint.provider, one.asked, call.endpoint.model, call.endpoint.simulated
    ) | {
        "gen_ai.response.finish_reasons": (one.finish,) if one.finish else None,
        "gen_ai.response.time_to_first_chunk": call.ttft,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "http.response.status_code": call.status if call.error else None,
        "agac.cost": call.cost,
        "agac.attempt": call.number if call.number > 1 else None,
        "agac.replica": one.replica or None,
        "agac.purpose": call.purpose if call.purpose != "ask" else None,
        "agac.service_tier": call.service_tier,
    }


def _messages(given: Iterable[Message], text: Callable[[str], str]) -> str:
    """Messages as the conventions have them: JSON."""
    found = list[Attributes]()
    for one in given:
        parts: list[Attributes] = [{"type": "text", "content": text(one.text)}] if one.text else []
        calls = getattr(one, "calls", ())
        results = getattr(one, "results", ())
        parts += (
            {"type": "tool_call", "id": c.id, "name": c.name, "arguments": text(c.arguments)}
            for c in calls
        )
        parts += (
            {"type": "tool_call_response", "id": r.call_id, "response": text(r.text)}
            for r in results
        )
        found.append({"role": one.role, "parts": parts})
    return json.dumps(found, ensure_ascii=False) if found else ""


def _in_batch(one: AttemptRecord) -> TracedCall:
    """A line of a batch as the call that it was."""
    if one.error_type:
        error = RowError(ErrorType(one.error_type), one.error_message or "")
    else:
        error = None
    endpoint = Endpoint(one.provider, one.base_url, one.model, one.simulated)
    usage = Usage(one.input_tokens, one.output_tokens, one.cached_tokens, one.reasoning_tokens)
    took = one.started_at, one.duration, one.status, error, one.ambiguous, usage, one.cost
    call = Call(one.number, endpoint, one.purpose, *took, service_tier=one.service_tier)
    return TracedCall(one.stage, one.fingerprint, one.replica, one.model, call)
