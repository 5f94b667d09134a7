"""What is measured. Each scenario gives its figures; every value is the median of its runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from batches import batches
from figures import Figure
from jobs import jobs
from operators import operators
from plans import plans
from processes import AGAC, BENCH, Account, Used, bare, measured, simulator, stub
from sizes import Sizes
from starts import prepare, starts
from watching import rates, watched
from workspace import Workspace, workspace, write_table

CONCURRENCY = 64


def throughput(sizes: Sizes) -> Iterator[Figure]:
    """Against a server that answers at once: what a row costs."""
    rows = sizes.throughput
    bares: list[tuple[Used, Account]] = []
    agacs: list[tuple[Used, Account]] = []
    with stub() as server, workspace(server, rows, concurrency=CONCURRENCY) as space:
        with workspace(server, 1, concurrency=CONCURRENCY) as one:
            agac_start, bare_start = _start_up(one, sizes), _middle(bare(one.table, server, 64) for _ in _times(sizes))
        server.account()
        for _ in _times(sizes):
            bares.append((bare(space.table, server, CONCURRENCY), server.account()))
            space.forget()
            agacs.append((space.agac("run", "-a", "b"), server.account()))
    bare_used, bare_seen = _middle(used for used, _ in bares), _account(seen for _, seen in bares)
    agac_used, agac_seen = _middle(used for used, _ in agacs), _account(seen for _, seen in agacs)
    bare_cpu = 1000 * (bare_used.cpu - bare_start.cpu) / rows
    agac_cpu = 1000 * (agac_used.cpu - agac_start.cpu) / rows
    name = f"throughput, {rows:,} rows, 0 ms"
    yield Figure(name, "bare loop, first to last request", bare_seen.rate, "rows/s")
    yield Figure(name, "agac, first to last request", agac_seen.rate, "rows/s")
    yield Figure(name, "agac / bare loop", agac_seen.rate / bare_seen.rate, "", at_least=0.5)
    wall = (bare_used.wall - bare_start.wall) / (agac_used.wall - agac_start.wall)
    yield Figure(name, "agac / bare loop, whole command but its start-up", wall, "")
    yield Figure(name, "bare loop, CPU a row", bare_cpu, "ms")
    yield Figure(name, "agac, CPU a row", agac_cpu, "ms", at_most=0.18)
    yield Figure(name, "agac's own CPU a row", agac_cpu - bare_cpu, "ms", at_most=0.25)
    yield Figure(name, "agac, start-up (a run of one row)", agac_start.cpu, "s CPU")
    yield Figure(name, "server's share of a core, bare loop", bare_seen.share, "")
    yield Figure(name, "server's share of a core, agac", agac_seen.share, "")


def latency(sizes: Sizes) -> Iterator[Figure]:
    """Against a server that takes its time: whether all of the concurrency is used."""
    rows = sizes.latency
    ideal = rows * sizes.latency_seconds / CONCURRENCY
    found: list[tuple[Used, Account]] = []
    with stub(sizes.latency_seconds) as server, workspace(server, rows, concurrency=CONCURRENCY) as space:
        with workspace(server, 1) as one:
            one.agac("run", "-a", "b")
        server.account()
        for _ in _times(sizes):
            space.forget()
            found.append((space.agac("run", "-a", "b"), server.account()))
    name = f"latency, {rows:,} rows, {1000 * sizes.latency_seconds:.0f} ms"
    span = median(seen.span for _, seen in found)
    yield Figure(name, "first to last request", span, "s")
    yield Figure(name, "the same / (rows x latency / concurrency)", span / ideal, "", at_most=1.05)
    yield Figure(name, "whole command", median(used.wall for used, _ in found), "s")
    beyond = median(used.wall - seen.span for used, seen in found)
    yield Figure(name, "whole command beyond first to last request", beyond, "s", at_most=1.0)
    wall = median(used.wall for used, _ in found)
    yield Figure(name, "whole command beyond rows x latency / concurrency", wall - ideal, "s")


def wide(sizes: Sizes) -> Iterator[Figure]:
    """Very many calls in flight: whether a row costs more for it."""
    rows, many = sizes.wide
    found: dict[int, tuple[Used, Account]] = {}
    a_row: dict[int, float] = {}
    with stub(sizes.latency_seconds) as server:
        for width, count in ((CONCURRENCY, sizes.latency), (many, rows)):
            with workspace(server, count, concurrency=width) as space, workspace(server, 1) as one:
                start = _start_up(one, sizes)
                server.account()
                used, seen = [], []
                for _ in _times(sizes):
                    space.forget()
                    used.append(space.agac("run", "-a", "b"))
                    seen.append(server.account())
            found[width] = _middle(used), _account(seen)
            a_row[width] = 1000 * (found[width][0].cpu - start.cpu) / count
    used_wide, seen_wide = found[many]
    ideal = rows * sizes.latency_seconds / many
    name = f"wide, {rows:,} rows, {many:,} in flight, {1000 * sizes.latency_seconds:.0f} ms"
    yield Figure(name, "first to last request", seen_wide.span, "s")
    yield Figure(name, "the same / (rows x latency / in flight)", seen_wide.span / ideal, "", at_most=1.06)
    yield Figure(name, "CPU a row", a_row[many], "ms")
    yield Figure(name, f"CPU a row / with {CONCURRENCY} in flight", a_row[many] / a_row[CONCURRENCY], "", at_most=1.2)
    yield Figure(name, "peak memory", used_wide.memory, "MB", at_most=100)


def memory(sizes: Sizes) -> Iterator[Figure]:
    """Whether memory grows with the rows."""
    peaks = []
    for rows in sizes.memory:
        with stub() as server, workspace(server, rows, concurrency=CONCURRENCY) as space:
            used = []
            for _ in _times(sizes):
                space.forget()
                used.append(space.agac("run", "-a", "b"))
        peaks.append(_middle(used).memory)
        yield Figure("memory", f"peak, {rows:,} rows", peaks[-1], "MB", at_most=120)
    few, many = sizes.memory
    yield Figure("memory", f"peak, {many:,} rows / {few:,} rows", peaks[1] / peaks[0], "", at_most=1.1)


def rerun(sizes: Sizes) -> Iterator[Figure]:
    """A finished run once more, unchanged and with one cell changed."""
    for rows, stages, most in zip(sizes.rerun, (1, 5), (1.0, 2.5), strict=True):
        name = f"run again, {rows:,} rows, {stages} stage{'s' * (stages > 1)}"
        with stub() as server, workspace(server, rows, stages=stages, concurrency=CONCURRENCY) as space:
            with workspace(server, 1, stages=stages, concurrency=CONCURRENCY) as one:
                start = _start_up(one, sizes, forget=False)
            space.agac("run", "-a", "b")
            server.account()
            again = _middle(space.agac("run", "-a", "b") for _ in _times(sizes))
            calls = server.account().requests
            write_table(space.table, rows, changed=rows // 2)
            changed = space.agac("run", "-a", "b")
            changed_calls = server.account().requests
        yield Figure(name, "CPU beyond start-up", again.cpu - start.cpu, "s", at_most=most)
        yield Figure(name, "the same a row", 1e6 * (again.cpu - start.cpu) / rows, "µs")
        yield Figure(name, "whole command", again.wall, "s")
        yield Figure(name, "calls", calls, "", at_most=0)
        yield Figure(name, "calls after one changed cell, a stage", changed_calls / stages, "", at_most=1)
        yield Figure(name, "CPU beyond start-up after that, outputs written anew", changed.cpu - start.cpu, "s")


def scale(sizes: Sizes) -> Iterator[Figure]:
    """Two stages over very many rows, once: whether anything grows but the database. The long run takes its time."""
    peaks, rates = [], []
    for rows in sizes.scale:
        name = f"scale, {rows:,} rows, 2 stages"
        with stub() as server, workspace(server, rows, stages=2, concurrency=CONCURRENCY) as space:
            used, seen = space.agac("run", "-a", "b"), server.account()
            size = space.database_bytes()
            again, calls = space.agac("run", "-a", "b"), server.account().requests
            write_table(space.table, rows, changed=rows // 2)
            changed, changed_calls = space.agac("run", "-a", "b"), server.account().requests
        peaks.append(used.memory)
        rates.append(seen.rate / 2)
        yield Figure(name, "rows through both stages", rates[-1], "rows/s")
        yield Figure(name, "peak memory", used.memory, "MB")
        yield Figure(name, "database a row", size / rows, "bytes")
        yield Figure(name, "run again, whole command", again.cpu, "s CPU")
        yield Figure(name, "calls of that", calls, "", at_most=0)
        yield Figure(name, "one changed cell, whole command", changed.cpu, "s CPU", at_most=15)
        yield Figure(name, "peak memory of that", changed.memory, "MB")
        yield Figure(name, "calls of that", changed_calls, "", at_most=2)
    few, many = sizes.scale
    name = f"scale, {many:,} rows / {few:,} rows"
    yield Figure(name, "peak memory", peaks[1] / peaks[0], "", at_most=1.1)
    yield Figure(name, "rows/s", rates[1] / rates[0], "", at_least=0.85)


def rate(sizes: Sizes) -> Iterator[Figure]:
    """Against a simulator that refuses what is too much, once: where a run settles, and whether it grows again."""
    rows, limit, seconds = sizes.rate
    name = f"rate, {rows:,} rows, a limit of {limit}/s"
    flags = ("--latency", "0.2", "--rpm", str(60 * limit), "--burst", str(limit))
    with TemporaryDirectory(prefix="agac-bench-") as folder, simulator(Path(folder), *flags) as server:
        with workspace(server, rows, concurrency=CONCURRENCY) as space, watched(server) as looks:
            space.agac("run", "-a", "b")
        settled = median(rates(looks, seconds)[int(2 * seconds) :] or [0.0])
    yield Figure(name, "calls accepted a second, once settled", settled, "rows/s")
    yield Figure(name, "the same, away from the limit", abs(settled / limit - 1), "", at_most=0.1)
    yield Figure(name, "share of calls refused", looks[-1].limited / looks[-1].requests, "", at_most=0.02)
    with TemporaryDirectory(prefix="agac-bench-") as folder, simulator(Path(folder), *flags) as server:
        lift = (seconds, 60 * 100 * limit)
        with workspace(server, 2 * rows, concurrency=CONCURRENCY) as space, watched(server, lift) as looks:
            space.agac("run", "-a", "b")
    grown = max(rates(looks, 1.0), default=0.0) / limit
    yield Figure(name, f"lifted after {seconds:g} s: most accepted a second / the old limit", grown, "", at_least=5)


def start_up(sizes: Sizes) -> Iterator[Figure]:
    """What one waits for before anything happens: every command, on a project whose run is done."""
    with stub() as server, workspace(server, 10) as space:
        prepare(space)
        for shown, program in {"python, nothing else": "pass", "import agac": "import agac"}.items():
            used = [measured([sys.executable, "-c", program], space.root) for _ in range(sizes.starts + 1)]
            yield Figure("start-up", shown, _middle(used[1:]).cpu, "s CPU")
        for start in starts():
            measured([*AGAC, *start.turn(0)], space.root)
            used = [measured([*AGAC, *start.turn(turn)], space.root) for turn in range(1, sizes.starts + 1)]
            yield Figure("start-up", start.shown, _middle(used).cpu, "s CPU", at_most=start.at_most)
            if start.at_most is not None:
                yield Figure("start-up", f"{start.shown}, best of {sizes.starts}", min(u.cpu for u in used), "s CPU")


def simulation(sizes: Sizes) -> Iterator[Figure]:
    """The simulator, asked by the raw client."""
    with TemporaryDirectory(prefix="agac-bench-") as folder, simulator(Path(folder)) as server:
        table, one = Path(folder) / "in.csv", Path(folder) / "one.csv"
        write_table(table, sizes.simulator)
        write_table(one, 1)
        start = _middle(bare(one, server, CONCURRENCY) for _ in _times(sizes))
        used = _middle(bare(table, server, CONCURRENCY) for _ in _times(sizes))
    yield Figure("simulator", "asked by the bare loop", sizes.simulator / (used.wall - start.wall), "requests/s")


def reading(sizes: Sizes) -> Iterator[Figure]:
    """Sources by themselves."""
    with TemporaryDirectory(prefix="agac-bench-") as folder:
        command = [sys.executable, BENCH / "reading.py", folder, str(sizes.reading), str(sizes.large_megabytes)]
        found = json.loads(subprocess.run([str(c) for c in command], check=True, capture_output=True).stdout)
    first = found.pop("first_record")
    for name, rate in found.items():
        yield Figure("reading", name, rate, "rows/s of CPU")
    yield Figure("reading", f"csv of {sizes.large_megabytes} MB, to its first row", 1000 * first, "ms")


SCENARIOS: dict[str, Callable[[Sizes], Iterator[Figure]]] = {
    "throughput": throughput,
    "latency": latency,
    "wide": wide,
    "memory": memory,
    "rerun": rerun,
    "plan": plans,
    "scale": scale,
    "rate": rate,
    "start-up": start_up,
    "simulator": simulation,
    "reading": reading,
    "operators": operators,
    "batches": batches,
    "process": jobs,
}
"""Every scenario by the name that `--only` takes."""


def _times(sizes: Sizes) -> range:
    return range(sizes.runs)


def _start_up(one: Workspace, sizes: Sizes, *, forget: bool = True) -> Used:
    """A run of one row: of one that is asked, or (without `forget`) of one that is done."""
    one.agac("run", "-a", "b")
    used = []
    for _ in _times(sizes):
        if forget:
            one.forget()
        used.append(one.agac("run", "-a", "b"))
    return _middle(used)


def _middle(runs: Iterator[Used] | list[Used]) -> Used:
    return Used(*(median(values) for values in zip(*runs, strict=True)))


def _account(runs: Iterator[Account]) -> Account:
    requests, span, cpu, first = (median(values) for values in zip(*runs, strict=True))
    return Account(int(requests), span, cpu, first)
