"""What one command over a file (`agac process`, from jsonl to jsonl) takes: its start, its calls, its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from figures import Figure
from processes import Server, Used, stub
from sizes import Sizes
from workspace import COLUMNS, cells, workspace

PARALLEL = 8


def jobs(sizes: Sizes) -> Iterator[Figure]:
    """A short job, one against a server that takes its time, and two long ones, once each."""
    rows, *many = sizes.jobs
    with stub() as server:
        short = [_job(server, 20) for _ in range(sizes.runs)]
        yield Figure("process, 20 rows, 0 ms", "whole command", median(one.wall for one in short), "s", at_most=1.0)
    with stub(sizes.latency_seconds) as server:
        used, ideal = _job(server, rows), rows * sizes.latency_seconds / PARALLEL
        beyond = used.wall - _job(server, 1).wall + sizes.latency_seconds
    name = f"process, {rows:,} rows, {1000 * sizes.latency_seconds:.0f} ms, --parallel {PARALLEL}"
    yield Figure(name, "whole command", used.wall, "s")
    yield Figure(name, "the same beyond start-up / (rows x latency / parallel)", beyond / ideal, "", at_most=1.1)
    peaks = []
    for count in many:
        with stub() as server:
            used = _job(server, count, parallel=64)
        peaks.append(used.memory)
        yield Figure(f"process, {count:,} rows, 0 ms", "rows, whole command", count / used.wall, "rows/s")
        yield Figure(f"process, {count:,} rows, 0 ms", "peak memory", used.memory, "MB")
    name = f"process, {many[1]:,} rows / {many[0]:,} rows"
    yield Figure(name, "peak memory", peaks[1] / peaks[0], "", at_most=1.2)


def _job(server: Server, rows: int, parallel: int = PARALLEL) -> Used:
    """One job over so many rows; each begins from nothing."""
    with workspace(server, 0) as space:
        with (space.root / "in.jsonl").open("w", encoding="utf-8") as file:
            for row in range(rows):
                file.write(json.dumps(dict(zip(COLUMNS, cells(row), strict=True))) + "\n")
        words = ("--prompt", "Review: {review}", "--parallel", str(parallel), "--no-final-summary")
        return space.agac("process", "in.jsonl", "out.jsonl", *words)
