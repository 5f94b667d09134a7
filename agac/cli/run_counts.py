"""Says what the stages of a run did: rows, calls, tools, votes, times. Also for `agac status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from agac.cli import terminal
from agac.core.errors import ErrorType
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.engine.stage_summary import CallCounts, ConversationCounts, StageSummary
    from agac.engine.summary import MadeRows, RunSummary, ServingSummary


def calls_line(
    calls: CallCounts,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    *,
    details: bool = False,
) -> str:
    """`Calls: 12 (simulated; 2 retries in this invocation), 800 tokens in, 90 out, simulated
    $0.0123`; with `details` also the tokens that were cached, and those of reasoning."""
    notes = [*before, *(["simulated"] if calls.simulated else []), *after]
    tokens = calls.tokens
    cached = f" ({tokens.cached:,} cached)" if details and tokens.cached else ""
    reasoning = f" ({tokens.reasoning:,} reasoning)" if details and tokens.reasoning else ""
    words = f"{tokens.input:,} tokens in{cached}, {tokens.output:,} out{reasoning}"
    if calls.server_tools:
        words += f", {counted(calls.server_tools, 'use')} of providers' tools"
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"Calls: {calls.count:,}{note}, {words}, {terminal.cost_of(calls.cost)}"


_MADE_ROW = {"items": "child row", "rows": "listed row", "kept": "kept row", "groups": "group"}
"""What a row is called that a stage made, by what the stage makes."""


def level_line(level: MadeRows, so_far: bool = False) -> str:
    """Counts the rows that a stage made, or those that it made `so_far`, by outcome."""
    rows = level.rows
    counts = f", {terminal.row_words(rows)}" if rows.total else ""
    made = counted(rows.total, _MADE_ROW[level.makes])
    return f"  {level.stage}: {made}{' so far' * so_far}{counts}"


def agreement_lines(stages: Iterable[StageSummary]) -> Iterator[str]:
    """Yields how far replicas agreed, by stage."""
    for stage in stages:
        votes = stage.agreement
        if votes is None or votes.mean is None or votes.unanimous is None:
            continue
        unanimous = f"{votes.unanimous:.0%} of {counted(votes.rows, 'row')} unanimous"
        asked = ""
        if votes.early is not None and votes.early.asked is not None:
            asked = f"; {votes.early.asked:.3g} asked on average"
        yield f"Agreement at {stage.name}: {votes.mean:.2f} on average, {unanimous}{asked}"


def review_lines(summary: RunSummary) -> Iterator[str]:
    """Yields how rows passed the stages at which people decide, and what to type if some wait."""
    for stage in summary.stages:
        if stage.review is None:
            continue
        ways = {way: count for way, count in stage.review.as_json().items() if count}
        if not ways:
            continue
        waiting = ways.pop("waiting", 0)
        passed = ", ".join(f"{count:,} {way}" for way, count in ways.items()) or "none"
        yield f"Reviewed at {stage.name}: {passed}"
        if waiting:
            wait = counted(waiting, "row waits", "rows wait")
            decide = f"agac review next -a {summary.workflow}"
            yield f"  {wait} for a person; decide with: {decide}"


NEEDS_TOOLS = (
    "If its rows need their tools, write `on_tool_failure: fail` into the stage, and run "
    "it with --fresh"
)
"""What to do about rows that were answered although a tool failed in all of its calls; a plain run
reuses them."""


_SERVED = {
    "coalesced": "coalesced",
    "cached": "cached",
    "stub": "stubbed",
    "replayed": "replayed",
    "error": "failed",
    "refused": "refused",
    "unknown": "skipped",
}
"""How calls of tools ended, in words."""


def conversation_lines(summary: RunSummary) -> Iterator[str]:
    """`Tools at ask: 20 calls, 9 executed, 11 coalesced, 1 failed; 40 turns in 20
    conversations`."""
    rows_failed = {
        error.stage for error in summary.errors if error.type == ErrorType.TOOL_SERVER_ERROR
    }
    for stage in summary.stages:
        agent = stage.agent
        if agent is None or not agent.turns:
            continue
        yield f"Tools at {stage.name}: {_tool_words(agent)}; {_turn_words(agent)}"
        failing = agent.failing_tools or {}
        for name, failed in failing.items():
            calls = "its one call" if failed == 1 else f"all of its {failed:,} calls"
            yield f"  {name} failed in {calls}"
        if failing and stage.name not in rows_failed:
            yield f"  {NEEDS_TOOLS}"


def _tool_words(agent: ConversationCounts) -> str:
    """`20 calls, 9 executed, 11 coalesced, 1 failed`."""
    tools = agent.tool_calls
    counts = tools.as_json()
    kinds = "".join(f", {counts[key]:,} {word}" for key, word in _SERVED.items() if counts[key])
    each = ""
    if agent.dedup is not None and agent.dedup > 1:
        each = f" ({agent.dedup:.1f} calls each)"
    return f"{counted(tools.requested, 'call')}, {tools.executed:,} executed{each}{kinds}"


def _turn_words(agent: ConversationCounts) -> str:
    """`40 turns in 20 conversations`."""
    return f"{counted(agent.turns, 'turn')} in {counted(agent.conversations, 'conversation')}"


def timing_line(summary: RunSummary) -> str | None:
    """`Time per call: classify 0.41 s (p95 1.2 s), reply 0.9 s (p95 2.3 s)`; None without calls."""
    measured = [stage for stage in summary.stages if stage.timing_ms.duration.count]
    # only the slowest five are shown, in the order of the workflow
    slowest = sorted(measured, key=lambda stage: -(stage.timing_ms.duration.p95 or 0.0))[:5]
    parts = [_timing_words(stage) for stage in measured if stage in slowest]
    left_out = len(measured) - len(parts)
    more = f", and {left_out} faster ones" if left_out else ""
    if parts:
        return f"Time per call: {', '.join(parts)}{more}"
    return None


def _timing_words(stage: StageSummary) -> str:
    """`reply 0.9 s (p95 2.3 s; first token 0.2 s, p95 0.4 s)`."""
    whole = stage.timing_ms.duration
    first = stage.timing_ms.ttft
    token = ""
    if first.count:
        token = f"; first token {_known_time(first.p50)}, p95 {_known_time(first.p95)}"
    return f"{stage.name} {_known_time(whole.p50)} (p95 {_known_time(whole.p95)}{token})"


def _known_time(milliseconds: float | None) -> str:
    """Says the time of a call, or `unknown`: several shards do not record it."""
    return "unknown" if milliseconds is None else call_time(milliseconds)


def serving_lines(serving: ServingSummary) -> Iterator[str]:
    """`Prefix cache: 93.1% of prompt tokens (94.9% without the first call), 850 computed; slots:
    82% of 8 in use`, and what engines count themselves, which others may use too. Nothing where no
    cache was to be warmed."""
    if serving.first_calls:
        if serving.prefix_hit is None:
            hit = "the provider does not say what it had"
        else:
            hit = f"{serving.prefix_hit:.1%} of prompt tokens"
        if serving.prefix_hit_without_first is not None:
            rest = f"{serving.prefix_hit_without_first:.1%} without the first call"
            hit += f" ({rest}), {serving.prefill_tokens or 0:,} computed"
        yield (
            f"Prefix cache: {hit}; slots: {serving.slot_utilisation or 0:.0%} of "
            f"{serving.slots or 0:,} in use"
        )
    for engine in serving.engines:
        hit = "none" if engine.prefix_hit is None else f"{engine.prefix_hit:.1%}"
        yield (
            f"  {engine.address} counted itself: {hit} of {engine.prompt_tokens:,} prompt "
            "tokens from its cache"
        )


def call_time(milliseconds: float) -> str:
    """Writes the time of a call in two digits: `7 ms`, `0.41 s`, `12 s`, `310 s`."""
    if milliseconds < 100:
        if milliseconds >= 1:
            return f"{milliseconds:.0f} ms"
        return "under 1 ms"
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s"
