"""How long calls took, as a line of text."""

from __future__ import annotations

from typing import Any

MOST_STAGES = 5


def timing_line(summary: dict[str, Any]) -> str | None:
    """`Time a call: classify 0.41 s (p95 1.2 s), reply 0.9 s (p95 2.3 s)`; None where nothing was measured.

    Of many stages the slowest ones.
    """
    measured = [stage for stage in summary["stages"] if stage["timing_ms"]["duration"]["count"]]
    if not measured:
        return None
    slowest = sorted(measured, key=lambda stage: -stage["timing_ms"]["duration"]["p95"])[:MOST_STAGES]
    parts = [f"{stage['name']} {_stage(stage['timing_ms'])}" for stage in measured if stage in slowest]
    left_out = len(measured) - len(parts)
    return f"Time a call: {', '.join(parts)}" + (f", and {left_out} faster ones" if left_out else "")


def _stage(times: dict[str, Any]) -> str:
    whole, first = times["duration"], times["ttft"]
    told = f"p95 {_seconds(whole['p95'])}"
    if first["count"]:
        told += f"; first token {_seconds(first['p50'])}, p95 {_seconds(first['p95'])}"
    return f"{_seconds(whole['p50'])} ({told})"


def _seconds(milliseconds: float) -> str:
    """Two digits that mean something: `7 ms`, `0.41 s`, `12 s`, `310 s`."""
    if milliseconds < 100:
        return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "under 1 ms"
    seconds = milliseconds / 1000
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
