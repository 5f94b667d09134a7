"""telemetry.jsonl: a line for each row for which a call was made, with when, how long, how many tokens and by whom.

Written from the store, as all outputs are: some hundred rows are held at a time. The lines are put together as text,
since a million of them are written: what repeats from call to call is made once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from agac.data.jsontext import encode
from agac.data.sinks import Sink
from agac.plan.replicas import share
from agac.store.db import Database
from agac.store.history import CallRecord, EndpointRecord, agreements, calls_by_row, endpoints
from agac.store.rows import WALKED, State
from agac.store.runs import definition_of

SCHEMA = "agac.usage/v1"
"""The name of the shape of `usage`: raised when something is renamed or means something else."""

NULL = "null"
_OK: dict[int, str] = {**dict.fromkeys(map(int, WALKED), "true"), State.FAILED: "false"}
_MOST_PIECES = 4096


async def write_telemetry(database: Database, run: int, sink: Sink) -> None:
    """Writes the whole of telemetry.jsonl."""
    async for lines in telemetry_lines(database, run):
        sink.write_texts(lines)


async def telemetry_lines(database: Database, run: int) -> AsyncIterator[list[str]]:
    """The lines of telemetry.jsonl, without line ends, in input order, then those of rows that stages made: those of
    some hundred rows at a time.

    A row that left the input, or is no longer made, has none, and none has a row whose results were all there already.
    """
    definition = await definition_of(database, run)
    writer = LineWriter([stage["name"] for stage in definition["stages"]], await endpoints(database))
    votes = any(stage.get("vote") for stage in definition["stages"])
    async for calls in calls_by_row(database, run):
        yield writer.lines(calls, await agreements(database, {call.row_key for call in calls}) if votes else {})


class LineWriter:
    """Makes lines of calls. `stages` are the names of the run's stages, as the store counts them."""

    def __init__(self, stages: Sequence[str], known: dict[int, EndpointRecord]) -> None:
        self._stages, self._known = stages, known
        self._heads: dict[tuple[object, ...], str] = {}
        self._seconds: dict[int, str] = {}

    def lines(self, calls: Iterable[CallRecord], agreed: Mapping[int, Mapping[int, str]]) -> list[str]:
        """A line for each row; its calls stand one after the other, stage by stage. `agreed`: by the row's key and the
        stage's position, how many replicas agreed of how many, as `2/3`."""
        return [self._line(list(own), agreed.get(key)) for key, own in groupby(calls, itemgetter(0))]

    def _line(self, calls: list[CallRecord], agreed: Mapping[int, str] | None) -> str:
        row = calls[0]
        attempts = ",".join(map(self._attempt, calls))
        number = NULL if row.ordinal is None else row.ordinal
        return (
            f'{{"id":{encode(row.row_id)},"row_number":{number},"ok":{_OK.get(row.state, NULL)},'
            f'"timing":{self._timing(calls)},"usage":{{"schema":"{SCHEMA}","turn":{_turn(calls)},'
            f'"provider_attempts":[{attempts}]}}{self._agreement(agreed) if agreed else ""}}}'
        )

    def _agreement(self, agreed: Mapping[int, str]) -> str:
        """The share of replicas that said what the vote decided, by stage."""
        shares = {self._stages[stage]: round(share(told), 4) for stage, told in sorted(agreed.items())}
        return f',"agreement":{encode(shares)}'

    def _timing(self, calls: list[CallRecord]) -> str:
        """Of the newest invocation that asked for the row, waits between its calls included."""
        if len(calls) == 1:
            return self._times(calls[0].started_at, calls[0].duration, calls[0].ttft, calls[0].time_to_response)
        newest = max(call.event for call in calls)
        own = sorted((call for call in calls if call.event == newest), key=lambda call: call.started_at)
        start = own[0].started_at
        lasted = max(call.started_at + call.duration for call in own) - start
        first = next((call.started_at - start + call.ttft for call in own if call.ttft is not None), None)
        told = (c.started_at - start + c.time_to_response for c in reversed(own) if c.time_to_response is not None)
        return self._times(start, lasted, first, next(told, None))

    def _times(self, start: float, duration: float, ttft: float | None, response: float | None) -> str:
        return (
            f'{{"start":"{self._iso(start)}","duration_ms":{duration * 1000:.1f},'
            f'"ttft_ms":{_ms(ttft)},"time_to_response_ms":{_ms(response)}}}'
        )

    def _attempt(self, call: CallRecord) -> str:
        given, cached, made, thought, cost = call.took
        fresh = None if given is None or cached is None else given - cached
        return (
            f'{self._head(call)}"start":"{self._iso(call.started_at)}","duration_ms":{call.duration * 1000:.1f},'
            f'"ttft_ms":{_ms(call.ttft)},"time_to_response_ms":{_ms(call.time_to_response)},'
            f'"prompt":{{"total":{NULL if given is None else given},"uncached":{NULL if fresh is None else fresh},'
            f'"cache_read":{NULL if cached is None else cached}}},'
            f'"completion":{{"total":{NULL if made is None else made},'
            f'"reasoning":{NULL if thought is None else thought}}},'
            f'"cost_usd":{NULL if cost is None else round(cost, 9)}}}'
        )

    def _head(self, call: CallRecord) -> str:
        """What says which call it was: the same for nearly all calls of a stage."""
        key = (call.stage, call.event, call.number, call.purpose, call.endpoint, call.status, call.error_type,
               call.service_tier, call.replica)  # fmt: skip
        head = self._heads.get(key)
        if head is None:
            asked = self._known[call.endpoint]
            facts = {
                "stage": self._stages[call.stage],
                "invocation": call.event,
                **({"replica": call.replica} if call.replica else {}),
                "attempt": call.number,
                "purpose": call.purpose,
                "provider": asked.provider,
                "model": asked.model,
                "simulated": asked.simulated,
                "http_status": call.status,
                "error": call.error_type,
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
    """All that the row took in this run: every stage, attempt and invocation. null: nobody said."""
    took = calls[0].took
    if len(calls) > 1:
        took = tuple(map(_sum, zip(*(call.took for call in calls), strict=True)))
    given, cached, made, thought, cost = took
    return (
        f'{{"input_tokens":{NULL if given is None else given},"output_tokens":{NULL if made is None else made},'
        f'"cached_tokens":{NULL if cached is None else cached},'
        f'"reasoning_tokens":{NULL if thought is None else thought},'
        f'"cost_usd":{NULL if cost is None else round(cost, 9)}}}'
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ms(seconds: float | None) -> str:
    return NULL if seconds is None else f"{seconds * 1000:.1f}"
