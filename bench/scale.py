"""What workers of a Ray cluster carry and cost: rows a second over 1, 2, 4 and 8 of them, beside `--executor local`.

    python bench/scale.py                       all of it: some twelve minutes
    python bench/scale.py --only waiting --workers 1 2 --rounds 5

All workers are on this machine, in a cluster that is started for the time. Two kinds of rows: *waiting* ones, a call of
a server that takes its time, of which each worker has so many under way (`--slots`); and *computing* ones, whose
`python:` stage takes so much CPU (`--cpu`), then a call that is answered at once. (In one process they have as many
`processes` as there are workers.) In each round all sizes take their turns, and a ratio is that of two runs of one
round; printed are medians. Seconds are those from the first to the last request at the server; CPU is what the system
counts meanwhile for the process of the command (the driver) and for the workers, so that no start is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

from figures import machine, machine_line
from processes import AGAC, Server, environment, stub
from workspace import Workspace, workspace, write_table

TICKS = os.sysconf("SC_CLK_TCK")
LOOK = 0.1  # seconds between two looks at the CPU of processes
COMPUTING = """
import time

def work(row):
    end = time.thread_time() + {seconds}
    while time.thread_time() < end:
        pass
    return row
"""


class Measured(NamedTuple):
    """Rows a second from the first to the last request, and milliseconds of CPU a row meanwhile; the server's share of
    a core."""

    rate: float
    driver: float
    workers: float
    server: float


class Watch(threading.Thread):
    """Notes the CPU of a process, and of the workers of a cluster, while the process runs. `seen`: time, and both."""

    def __init__(self, process: subprocess.Popen[bytes], raylet: int | None) -> None:
        super().__init__(daemon=True)
        self._process, self._raylet = process, raylet
        self._before: dict[int, float] = {}
        self._now: dict[int, float] = {}
        self.seen: list[tuple[float, float, float]] = []

    def run(self) -> None:
        """Until the process ends."""
        while self._process.poll() is None:
            for pid in children(self._raylet) if self._raylet else ():
                with suppress(OSError, IndexError):
                    if "_Actor" in Path(f"/proc/{pid}/cmdline").read_text():
                        self._now[pid] = cpu(pid)
                        self._before.setdefault(pid, self._now[pid])
            with suppress(OSError, IndexError):
                workers = sum(self._now.values()) - sum(self._before.values())
                self.seen.append((time.time(), cpu(self._process.pid), workers))
            time.sleep(LOOK)

    def between(self, first: float, last: float) -> tuple[float, float]:
        """What both used between two moments."""
        near = [min(self.seen, key=lambda one: abs(one[0] - at)) for at in (first, last)]
        return near[1][1] - near[0][1], near[1][2] - near[0][2]


def cpu(pid: int) -> float:
    """Seconds of CPU that a process used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def cluster(cpus: int) -> Iterator[int]:
    """A cluster of this machine that takes so many workers; gives the process that starts them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    told = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
    ray.init(address="local", num_cpus=cpus, logging_level="ERROR", **told)
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        below = children(os.getpid())
        yield next(pid for pid in below if "raylet" in Path(f"/proc/{pid}/comm").read_text())
    finally:
        del os.environ["RAY_ADDRESS"]
        ray.shutdown()


def run(space: Workspace, server: Server, executor: str, raylet: int | None, concurrency: int) -> Measured:
    """One run from nothing."""
    space.forget()
    server.account()
    words = [*AGAC, "-q", "run", "-a", "b", "--executor", executor, "--concurrency", str(concurrency)]
    with (space.root / "stderr").open("wb") as said:
        process = subprocess.Popen(words, cwd=space.root, env=environment(), stdout=subprocess.DEVNULL, stderr=said)
        watch = Watch(process, raylet)
        watch.start()
        if process.wait():
            raise RuntimeError((space.root / "stderr").read_text("utf-8"))
    watch.join()
    told = server.account()
    driver, workers = (1e3 * used / told.requests for used in watch.between(told.first, told.first + told.span))
    return Measured(told.rate, driver, workers, told.share)


def scaled(name: str, asked: argparse.Namespace, raylet: int) -> None:
    """One kind of rows, over all numbers of workers and in one process; prints a line for each."""
    waits = name == "waiting"
    found: dict[tuple[str, int], list[Measured]] = {}
    with stub(asked.latency if waits else 0.0) as server, workspace(server, 0) as space:
        settings, workflow = (space.root / "agac.yml").read_text(), (space.root / "workflows/b.yml").read_text()
        (space.root / "tools").mkdir()
        (space.root / "tools/own.py").write_text(COMPUTING.format(seconds=asked.cpu))
        for _ in range(asked.rounds):
            for workers in asked.workers:
                write_table(space.table, workers * (asked.rows if waits else asked.computing))
                (space.root / "agac.yml").write_text(
                    f"{settings}executor: {{workers: {workers}, chunk: {asked.chunk}}}\n"
                )
                for executor in ("ray", "local"):
                    own = f", processes: {workers}" if executor == "local" else ""
                    stage = f"stages:\n  - {{name: own, python: tools/own.py:work{own}}}\n"
                    text = workflow if waits else workflow.replace("stages:\n", stage)
                    (space.root / "workflows/b.yml").write_text(text)
                    one = run(space, server, executor, raylet, workers * asked.slots)
                    found.setdefault((executor, workers), []).append(one)
    what = f"{1e3 * asked.latency:g} ms, {asked.slots} at a time" if waits else f"{1e3 * asked.cpu:g} ms of CPU"
    print(
        f"\n{name} rows ({what} a worker)\n{'':8} workers    rows/s  of linear  driver ms/row  workers ms/row  server"
    )
    for (executor, workers), all_of_it in found.items():
        first = found[executor, asked.workers[0]]
        linear = [asked.workers[0] * one.rate / (workers * of.rate) for one, of in zip(all_of_it, first, strict=True)]
        rate, driver, others, share = (median(values) for values in zip(*all_of_it, strict=True))
        print(
            f"{executor:8} {workers:7} {rate:9,.0f} {median(linear):10.3f} {driver:14.2f} {others:15.2f} {share:7.1%}",
            flush=True,
        )  # fmt: skip


async def chunks(asked: argparse.Namespace) -> None:
    """What one chunk costs, from its way to the worker until the last reply is back: prints a line for each size."""
    from agac.engine.workers.pool import CallItem, Chunk, WorkerSetup
    from agac.engine.workers.ray import open_workers
    from agac.spec.project_models import ExecutorFile, ProviderSpec
    from agac.spec.rules import Timeout

    numbers, prompt = count(1), json.dumps({"model": "stub", "messages": [{"role": "user", "content": "a" * 900}]})
    print(f"\nchunks of calls that are answered at once, {asked.repeats} each\n calls   wall ms  driver ms  worker ms")
    with stub() as server, tempfile.TemporaryDirectory() as folder:
        stubbed = ProviderSpec(dialect="openai-chat", base_url=server.base_url)
        setup = WorkerSetup(folder, {"stub": stubbed}, asked=["stub"])
        async with open_workers(ExecutorFile(workers=1), setup, {}) as (worker,):
            pid = (await worker.hello()).pid
            for size in asked.sizes:
                walls, before = [], (time.process_time(), cpu(pid))
                for number in range(asked.repeats):
                    items = [CallItem(next(numbers), "stub", "body", prompt.encode(), Timeout()) for _ in range(size)]
                    began, left = time.perf_counter(), size
                    await worker.take(Chunk(f"{size}-{number}", tuple(items), time.time() + 60))
                    while left:
                        left -= len(await worker.collect())
                    walls.append(time.perf_counter() - began)
                used = (time.process_time() - before[0], cpu(pid) - before[1])
                driver, its = (1e3 * one / asked.repeats for one in used)
                print(f"{size:6} {1e3 * median(walls):9.1f} {driver:10.2f} {its:10.2f}", flush=True)


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description="What workers of a Ray cluster carry, and what they cost.")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=800, help="waiting rows for each worker")
    parser.add_argument("--computing", type=int, default=200, help="computing rows for each worker")
    parser.add_argument("--slots", type=int, default=16, help="rows that each worker has under way")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that a waiting row's call takes")
    parser.add_argument("--cpu", type=float, default=0.02, help="seconds of CPU of a computing row")
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 50, 200], help="chunks that are measured alone")
    parser.add_argument("--repeats", type=int, default=100, help="how many of them")
    kinds = ("waiting", "computing", "chunks")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="chunks: what one of them costs")
    asked = parser.parse_args()
    print(machine_line(machine()), flush=True)
    with cluster(max(asked.workers)) as raylet:
        for name in kinds[:2]:
            if name in asked.only:
                scaled(name, asked, raylet)
        if "chunks" in asked.only:
            asyncio.run(chunks(asked))


if __name__ == "__main__":
    main()
