"""Sends OpenTelemetry traces and metrics by OTLP over HTTP: a trace for each row that failed, and
for a sample of the others.

Spans are made after the fact. While a row walks, its outcomes are noted (`RowNotes`); at its end
its failure, or a hash of its id, decides whether spans are made of the notes. A thread sends them:
nothing waits for it, and what it has no room for is left out. Nothing else of agac loads
OpenTelemetry's packages. Names are those of its GenAI conventions
(`opentelemetry-semantic-conventions` 0.66b2); what these have no name for is `agac.…`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as data
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from agac.core.errors import RowError
from agac.core.keys import share_of, trace_ids
from agac.core.types import Message, Reply
from agac.engine.ask.attempts import TaskAttempts
from agac.engine.ask.rate_limiter import Lane
from agac.engine.invocation import InvocationRef, Work
from agac.engine.output.row_spans import Attributes, RowSpans, model_attributes
from agac.engine.output.telemetry import OtelSettings
from agac.engine.totals import Totals
from agac.engine.walk.effects import ActiveRow, RowNotes, TracedCall
from agac.store.history import calls_of_row
from agac.store.records import Call

_log = logging.getLogger("agac.otel")

TOKENS = [4.0**power for power in range(14)]
SECONDS = [0.01 * 2**power for power in range(14)]
"""The bounds that the conventions give for the histograms of tokens and of seconds."""

MOST_ROWS = 4096
"""Rows whose spans may wait to be sent."""

MOST_SPANS = 512
"""Spans of a request, about."""

EVERY = 1.0
"""Seconds between two looks at what is to be sent."""

METRICS_EVERY = 60.0
"""Seconds between two sendings of metrics."""

AT_THE_END = 3.0
"""Seconds that the end of a run waits at most for what is left to be sent."""

Point = tuple[Attributes, float]
"""A value of a metric, with the attributes that tell it from others."""

_FAILED = Status(StatusCode.ERROR)
_UNSET = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope("agac")
_CUMULATIVE = data.AggregationTemporality.CUMULATIVE


def _context(trace: int, span: int) -> SpanContext:
    """Makes the context of a span that is sent."""
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _said(attributes: Attributes) -> Attributes:
    """Returns the attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None and value != ""}


class FixedResource(Resource):
    """A resource that is hashed by its identity.

    The encoder asks each span's resource for its hash, which otherwise is made of all its
    attributes."""

    def __hash__(self) -> int:
        return id(self)


class Traces:
    """Takes the traces and the metrics of one invocation, and sends them in a thread. `close`
    it."""

    def __init__(
        self, settings: OtelSettings, work: Work, places: InvocationRef, token: str, totals: Totals
    ) -> None:
        self.plan = work.plan
        self.clean = work.redactor.clean
        self._wall = work.clocks.wall
        self._database = places.database
        self._totals = totals
        self.identity = (token, places.run, places.event)
        self.invocation = _context(*trace_ids(*self.identity))
        self._began = self._wall()
        self.lanes: Mapping[str, Lane] = {}
        """The lanes at work, by name."""
        self._tallies: dict[tuple[Any, ...], list[float]] = {}
        """Histograms by label, kind and model: the sum, the least and the greatest value, and how
        many values lie within each bound."""
        attributes: Attributes = {
            "service.name": "agac",
            "agac.workflow": work.plan.workflow,
            "agac.run": places.run,
        }
        # names of the environment take precedence
        resource = Resource.create(attributes).merge(OTELResourceDetector().detect())
        self._resource = FixedResource(resource.attributes, resource.schema_url)
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
        """Begins the notes of a row that is taken up. Each walk of it is a trace of its own."""
        return RowNotes(
            self._wall(), (*self.identity, row.new.origin, row.new.row.id, row.new.occurrence)
        )

    def called(self, attempts: TaskAttempts, call: Call, reply: Reply | None) -> None:
        """Notes a call that ended."""
        model = attempts.connection.model.model
        notes = attempts.asked.row.notes
        self.count(model, call)
        if notes is not None:
            texts: Mapping[str, Sequence[Message]] = {}
            if self.plan.rules.otel_prompts:
                texts = {
                    "input": attempts.request.messages,
                    "output": (reply.message(),) if reply else (),
                }
            notes.calls.append(TracedCall(call, model, reply.finish if reply else None, texts))

    def count(self, model: str, call: Call, *, in_batch: bool = False) -> None:
        """Counts what a call of a model took; the time of one in a batch is left out."""
        by = call.endpoint.provider, model, call.endpoint.model, call.endpoint.simulated
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
                call.times.duration,
            )

    def _tally(self, key: tuple[Any, ...], bounds: Sequence[float], value: float) -> None:
        """Adds a value to a histogram."""
        histogram = self._tallies.get(key)
        if histogram is None:
            histogram = self._tallies[key] = [0.0, inf, 0.0, *[0] * (len(bounds) + 1)]
        histogram[0] += value
        histogram[1] = min(histogram[1], value)
        histogram[2] = max(histogram[2], value)
        histogram[3 + bisect_left(bounds, value)] += 1

    async def ended(self, row: ActiveRow) -> None:
        """Sends the spans of a row that came to its end or waits, unless it was not sampled.

        A row that waits is walked again later: if no call was made for it, nothing is sent."""
        notes = row.notes
        if notes is None or self._spans is None:
            return
        outcome = _outcome(row)
        if outcome == "waiting" and not notes.calls:
            return
        # rows that failed are all sent
        if outcome != "failed":
            share = share_of("trace", "", row.new.row.id)
            if share >= self.plan.rules.otel_sample:
                return
        if row.ready:
            notes.calls += await self._calls_in_batches(row, notes)
        error = row.failed[1] if row.failed is not None and not row.dropped else None
        self._put(self._row_spans(row, notes, outcome, error))

    async def _calls_in_batches(self, row: ActiveRow, notes: RowNotes) -> list[TracedCall]:
        """Returns the lines of batches that were answered before the row was taken up again."""
        fingerprints = {fingerprint for _, _, fingerprint in row.ready}
        calls = [record.call for record in await calls_of_row(self._database, row.new.key)]
        return [
            TracedCall(call, call.endpoint.model)
            for call in calls
            if call.attempt.fingerprint in fingerprints and call.times.started_at < notes.begun
        ]

    def _row_spans(
        self, row: ActiveRow, notes: RowNotes, outcome: str, error: RowError | None
    ) -> list[ReadableSpan]:
        """Returns the spans of a row's trace."""
        nodes = RowSpans(self.plan, self.clean, notes).nodes(row, outcome, error, self._wall())
        trace, first = notes.ids
        contexts = [_context(trace, first ^ number) for number in range(len(nodes))]
        return [
            self.span(
                node.name,
                context,
                node.start,
                node.end,
                node.attributes,
                contexts[node.above] if position else None,
            )
            for position, (context, node) in enumerate(zip(contexts, nodes, strict=True))
        ]

    def span(
        self, name: str, context: SpanContext, start: float, end: float, attributes: Attributes,
        above: SpanContext | None = None,
    ) -> ReadableSpan:  # fmt: skip
        """Makes a span that has ended. The first one of a row is linked to its invocation."""
        is_first_of_row = not above and context is not self.invocation
        links = (Link(self.invocation),) if is_first_of_row else ()
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
        """Hands spans to the thread that sends them, unless it has too many."""
        if len(self._queue) < MOST_ROWS:
            self._queue.append(spans)
        else:
            self._lost("more is to be sent than the collector takes")

    async def close(self) -> None:
        """Sends what is left, for as long as the end of a run may wait."""
        counts = {
            "agac.rows.done": self._totals.rows.done,
            "agac.rows.failed": self._totals.rows.failed,
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
        """Sends what there is every few seconds, until `close`."""
        exporters = (self._spans, self._metrics)
        loggers = [logging.getLogger(type(exporter).__module__) for exporter in exporters]
        for logger in loggers:
            logger.addFilter(self._hear)
        while not self._closing.wait(EVERY):
            self._send(at_end=False)
        self._send(at_end=True)
        for logger in loggers:
            logger.removeFilter(self._hear)

    def _hear(self, record: logging.LogRecord) -> bool:
        """Keeps the faults that exporters log, so that they are logged once, in our words."""
        if record.thread == self._thread.ident:
            self._why = record.getMessage().partition(" encountered while ")[0]
        return record.thread != self._thread.ident

    def _lost(self, why: str) -> None:
        """Logs once that not everything is sent."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "traces and metrics cannot all be sent: %s; the run goes on without them",
                self.clean(why),
            )

    def _send(self, *, at_end: bool) -> None:
        """Sends the spans that wait, and the metrics if it is time."""
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
        """Returns all metrics, counted from the beginning of the invocation."""
        times = (int(self._began * 1e9), time.time_ns())
        rows = self._totals.rows
        rows_by_outcome = {
            "done": rows.done,
            "failed": rows.failed,
            "skipped": rows.skipped,
            "dropped": rows.dropped + rows.filtered,
            "unchanged": rows.unchanged,
        }
        row_points: list[Point] = [
            ({"agac.outcome": outcome}, count) for outcome, count in rows_by_outcome.items()
        ]
        cost_points: list[Point] = [
            ({"agac.stage": name, "agac.simulated": stage.spent.simulated > 0}, stage.spent.usd)
            for name, stage in list(self._totals.stages.items())
        ]
        wait_points: list[Point] = [
            ({"agac.lane": name}, lane.waited) for name, lane in self.lanes.items()
        ]
        metrics = [
            self._sum("agac.rows", "{row}", times, row_points, is_monotonic=False),
            self._sum("agac.cost", "USD", times, cost_points),
            self._sum("agac.lane.wait", "s", times, wait_points),
            self._histogram(
                "gen_ai.client.token.usage", "{token}", times, "gen_ai.token.type", TOKENS
            ),
            self._histogram("gen_ai.client.operation.duration", "s", times, "error.type", SECONDS),
        ]
        return data.MetricsData(
            [data.ResourceMetrics(self._resource, [data.ScopeMetrics(_SCOPE, metrics, "")], "")]
        )

    def _sum(
        self,
        name: str,
        unit: str,
        times: tuple[int, int],
        points: Iterable[Point],
        *,
        is_monotonic: bool = True,
    ) -> data.Metric:
        """Makes a metric of sums. `times`: its beginning and now, in ns since 1970."""
        base: Attributes = {"agac.workflow": self.plan.workflow}
        sums = [data.NumberDataPoint(base | about, *times, value) for about, value in points]
        return data.Metric(name, "", unit, data.Sum(sums, _CUMULATIVE, is_monotonic=is_monotonic))

    def _histogram(
        self, name: str, unit: str, times: tuple[int, int], label: str, bounds: Sequence[float]
    ) -> data.Metric:
        """Makes a metric of the histograms of a label. `times` are those of `_sum`."""
        base: Attributes = {"agac.workflow": self.plan.workflow}
        points = [
            data.HistogramDataPoint(
                _said(base | {label: kind} | model_attributes(*by)),
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
        return data.Metric(name, "", unit, data.Histogram(points, _CUMULATIVE))


def _outcome(row: ActiveRow) -> str:
    """Names how a row ended, or that it waits."""
    if row.stays_open:
        return "waiting"
    if row.dropped:
        return "dropped"
    if row.failed is not None:
        return "failed"
    return "done" if row.reached or row.lists else "skipped"
