"""What batches cost: rows spooled and uploaded, results downloaded and ingested, and whether memory grows."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from figures import Figure
from processes import Server, Used, simulator
from sizes import Sizes
from workspace import Workspace, workspace

LOOKS = 0.2
"""Seconds between looks at whether the simulator has done its part, which is not measured."""


def batches(sizes: Sizes) -> Iterator[Figure]:
    """One stage in batches against the simulator, end to end: `agac run`, then `agac batch retrieve`."""
    peaks: list[tuple[float, float]] = []
    start = median(_measured(1)[0].wall for _ in range(sizes.runs))
    for rows in sizes.batched:
        sent, taken = _measured(rows)
        name = f"batches, {rows:,} rows"
        required = 4000.0 if rows == sizes.batched[0] else None
        yield Figure(name, "spool + upload", rows / max(sent.wall - start, 1e-3), "rows/s", at_least=required)
        yield Figure(name, "download + ingest", rows / max(taken.wall - start, 1e-3), "rows/s", at_least=required)
        yield Figure(name, "CPU a row, spool + upload", 1000 * sent.cpu / rows, "ms")
        yield Figure(name, "CPU a row, download + ingest", 1000 * taken.cpu / rows, "ms")
        yield Figure(name, "peak memory, agac run", sent.memory, "MB", at_most=250)
        yield Figure(name, "peak memory, agac batch retrieve", taken.memory, "MB", at_most=250)
        peaks.append((sent.memory, taken.memory))
    few, many = sizes.batched
    name = f"batches, {many:,} rows / {few:,} rows"
    yield Figure(name, "peak memory, agac run", peaks[1][0] / peaks[0][0], "", at_most=1.2)
    yield Figure(name, "peak memory, agac batch retrieve", peaks[1][1] / peaks[0][1], "", at_most=1.2)


def _measured(rows: int) -> tuple[Used, Used]:
    """What submitting takes, and taking in; what the simulator does between the two is not counted."""
    with TemporaryDirectory(prefix="agac-bench-") as state:
        flags = ("--state", str(Path(state) / "sim.db"))
        with simulator(Path(state), *flags) as server, workspace(server, rows) as space:
            _in_batches(space)
            sent = space.agac("run", "-a", "b")
            _until_done(server, rows)
            return sent, space.agac("batch", "retrieve")


def _in_batches(space: Workspace) -> None:
    project = space.root / "agac.yml"
    text = project.read_text("utf-8").replace("    structured:", "    batch: openai\n    structured:")
    project.write_text(text.replace("{model: stub/stub}", "{model: stub/stub, run_mode: batch}"), "utf-8")


def _until_done(server: Server, rows: int) -> None:
    """Waits until every request was answered and results lie there."""
    while True:
        with urllib.request.urlopen(server.base_url.removesuffix("/v1") + "/account") as answer:
            account = json.load(answer)["batches"]
        if account["charged"] >= rows and not account["open"]:
            return
        time.sleep(LOOKS)
