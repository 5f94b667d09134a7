"""Writes telemetry.jsonl, and says whether OpenTelemetry is sent anything."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agac.data.json_formats import encode
from agac.engine.output.run_summary import share
from agac.spec.rules import RunRules
from agac.store import rows as store
from agac.store.db import Database
from agac.store.history import (
    CalledRow,
    CallRecord,
    RowCalls,
    agreements,
    calls_by_row,
)
from agac.store.records import Call, CallTiming
from agac.store.rows import State
from agac.store.runs import (
    definition_of,
)

if TYPE_CHECKING:
    from agac.data.sinks import JsonSink  # it brings every format; `agac status` writes none

# telemetry.jsonl has a line for each row for which a call was made, with when, how long, how many
# tokens and by which model; and for each row that failed before one.
#
# It is written from the store, as all outputs are: some hundred rows are held at a time. The lines
# are put together as text, since there may be a million of them: what repeats from call to call is
# made once.

SCHEMA = "agac.usage/v1"
"""The name of the shape of `usage`: raised when something is renamed or means something else."""

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


# `output.otlp` sends traces and metrics by OpenTelemetry's protocol, and is loaded only then.

_OTLP = "OTEL_EXPORTER_OTLP"


class OtelSettings(NamedTuple):
    """The signals that are sent."""

    traces: bool
    """True if traces are sent."""

    metrics: bool
    """True if metrics are sent."""

    refused: str
    """Why they cannot be sent as the environment asks for it; empty: they can."""


def otel_settings(rules: RunRules, env: Mapping[str, str]) -> OtelSettings | None:
    """Returns what is sent, by a workflow's rules and the process's variables, of which the SDK
    reads some; None: nothing."""
    if rules.otel is False or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    sent = [signal for signal in ("TRACES", "METRICS") if _is_sent(signal, rules, env)]
    if not sent:
        return None
    refused = ""
    protocols = [env.get(f"{_OTLP}_{signal}_PROTOCOL") for signal in sent]
    if "grpc" in [protocol or env.get(f"{_OTLP}_PROTOCOL") for protocol in protocols]:
        todo = (
            "set it to http/protobuf, and the address to that of the collector's "
            "HTTP port, 4318 as a rule"
        )
        refused = f"{_OTLP}_PROTOCOL is grpc, and agac sends by HTTP: {todo}"
    return OtelSettings("TRACES" in sent, "METRICS" in sent, refused)


def _is_sent(signal: str, rules: RunRules, env: Mapping[str, str]) -> bool:
    """True if a workflow's rules or the process's variables ask for a signal."""
    addresses = (env.get(f"{_OTLP}_ENDPOINT"), env.get(f"{_OTLP}_{signal}_ENDPOINT"))
    if not rules.otel and not any(addresses):
        return False
    return env.get(f"OTEL_{signal}_EXPORTER", "otlp") == "otlp"
