"""What shards cost: N shards of one input as processes of this machine, merged; and what one that is killed pays twice.

    python bench/shards.py --rows 1000000 --shards 16          rows/s, CPU a row, peak memory, bytes, the merge
    python bench/shards.py --rows 100000 --shards 16 --kill    one shard is killed at half, and one loses its disk too
    python bench/shards.py --rows 100000 --shards 4 --compare  the same rows in one process; are the results equal?
    python bench/shards.py --rows 100000 --shards 4 --kill --latency 0.2    the same, at the pace of a provider
    python bench/shards.py --rows 1000 --shards 4 --server simulator    whose answers never travel

The server is a process of its own, and the remote a folder. CPU is that of all shards; without the server's. `--keep
FOLDER` leaves the project there. Trust what is counted more than seconds: shards and server share the cores. Answers go
to the remote every 15 seconds: a shard that is killed sooner, and loses its disk, pays for all of them again.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Figure, machine, machine_line, text_table
from processes import AGAC, Server, Used, simulator, stub
from workspace import Workspace, workspace, write_table

WATCHED_S = 0.005
"""Seconds between looks at how far a shard is that is to be killed."""
READERS = 65_536
"""A shard of so many reads the whole input, and keeps next to nothing of it."""


class Shards:
    """A project whose rows are worked on by so many shards."""

    def __init__(self, space: Workspace, server: Server, shards: int) -> None:
        self.space, self.shards, self._server, self._asked = space, shards, server, 0
        self.remote = space.root / "remote"
        with (space.root / "agac.yml").open("a", encoding="utf-8") as file:
            file.write("remote: {url: remote}\n")

    def run(self, number: int, of: int = 0) -> Used:
        """One shard to its end."""
        return self.agac("run", "-a", "b", "--shard", f"{number}/{of or self.shards}")

    def agac(self, *arguments: str, half: Path | None = None, rows: int = 0) -> Used:
        """A command to its end; or, with the store of a shard, until half of so many rows are done in it: then it is
        killed. Raises RuntimeError when it fails."""
        said = self.space.root / f"{'-'.join(arguments).replace('/', '-of-')}.log"
        environment = {**os.environ, "AGAC_REMOTE_WRITER": "bench"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with said.open("w+b") as log:
            began = time.perf_counter()
            words = [*AGAC, "-q", *arguments]
            process = subprocess.Popen(words, cwd=self.space.root, env=environment, stdout=log, stderr=log)
            while half is not None and done(half) < rows // 2:
                time.sleep(WATCHED_S)
            if half is not None:
                process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != (0 if half is None else -signal.SIGKILL):
                log.seek(0)
                raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}: {log.read().decode()}")
        unit = 1024 if sys.platform == "linux" else 2**20
        return Used(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)

    def folder(self, number: int) -> Path:
        """Where the store of a shard is."""
        return self.space.root / ".agac" / "shards" / f"{number}-of-{self.shards}"

    def asked(self) -> int:
        """Requests since the last call of this method, by the server's account."""
        with urllib.request.urlopen(self._server.base_url.removesuffix("/v1") + "/account") as answer:
            said = json.load(answer)
        if "simulated" not in said:
            return int(said["requests"])  # the stub forgets what it told
        before, self._asked = self._asked, int(said["requests"])
        return self._asked - before


def done(store: Path) -> int:
    """Rows of a store that are done; 0 before there is one."""
    try:
        with closing(sqlite3.connect(f"file:{store / 'agac.db'}?mode=ro", uri=True)) as asking:
            return int(asking.execute("SELECT count(*) FROM row WHERE state = 1").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def size(folder: Path, names: str = "*") -> int:
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(names) if path.is_file())


def rows_of(shards: Shards, number: int) -> int:
    """How many rows a shard has, by its store."""
    with closing(sqlite3.connect(f"file:{shards.folder(number) / 'agac.db'}?mode=ro", uri=True)) as asking:
        return int(asking.execute("SELECT count(*) FROM row").fetchone()[0])


def killed(shards: Shards, number: int, rows: int, *, disk: bool) -> Iterator[Figure]:
    """A shard that is killed at half of its rows, and run again; with `disk` its store is lost too."""
    of, folder = shards.shards, shards.folder(number)
    shards.asked()
    until = shards.agac("run", "-a", "b", "--shard", f"{number}/{of}", half=folder, rows=rows // of)
    before, had = shards.asked(), done(folder)
    if disk:
        shutil.rmtree(folder)
    used = shards.run(number)
    after, whole = shards.asked(), rows_of(shards, number)
    name = f"a shard of {whole:,} rows killed, {'its disk lost' if disk else 'its store kept'}"
    yield Figure(name, "killed after", until.wall, "s")
    yield Figure(name, "rows in its store when it was killed", had, "rows")
    yield Figure(name, "requests before", before, "")
    yield Figure(name, "requests of the same command again", after, "")
    yield Figure(name, "asked twice", before + after - whole, "")
    yield Figure(name, "whole command again", used.wall, "s")


def measure(shards: Shards, rows: int, at_once: int, *, kill: bool, compare: bool) -> Iterator[Figure]:
    """All figures, one after the other."""
    of, name = shards.shards, f"{rows:,} rows, {shards.shards} shards"
    left = list(range(1, of + 1))
    if kill:
        yield from killed(shards, left.pop(0), rows, disk=False)
        yield from killed(shards, left.pop(0), rows, disk=True)
    asked_by = {number: rows_of(shards, number) for number in range(1, of + 1 - len(left))}
    shards.asked()
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        used = list(pool.map(shards.run, left))
    wall = time.perf_counter() - began
    asked = shards.asked()
    took = {number: rows_of(shards, number) for number in left}
    cpu, its = sum(one.cpu for one in used), max(1, sum(took.values()))
    yield Figure(name, "rows of the largest shard", max((*took.values(), *asked_by.values())), "rows")
    yield Figure(name, "asked more than once", asked - its, "")
    yield Figure(name, f"rows, {at_once} shards at once", its / wall, "rows/s")
    yield Figure(name, "CPU of these shards, start and reading with it", cpu, "s")
    yield Figure(name, "the same a row", 1e6 * cpu / its, "µs")
    yield Figure(name, "peak memory of a shard, the most", max(one.memory for one in used), "MB")
    few, many = reading(shards)
    read = max(0.0, many - few) / rows
    yield Figure(name, "reading the whole input in each shard, CPU a row of the input", 1e6 * read, "µs")
    yield Figure(name, "start of a shard, CPU", few, "s")
    yield Figure(name, "stores, bytes a row", size(shards.space.root / ".agac" / "shards") / rows, "B")
    answers, ours = size(shards.remote / "v1" / "bench"), shards.remote / "v1" / "shards" / "b"
    yield Figure(name, "answers in the remote, bytes a row", answers / rows, "B")
    kinds = {True: [0, 0], False: [0, 0]}
    for path in filter(Path.is_file, ours.rglob("*")):
        kind = kinds["rows" in path.relative_to(ours).parts]
        kind[:] = [kind[0] + 1, kind[1] + path.stat().st_size]
    yield Figure(name, "finished rows in the remote, bytes a row", kinds[True][1] / rows, "B")
    yield Figure(name, "other objects of the shards in the remote", kinds[False][0], "")
    yield Figure(name, "the same, kB", kinds[False][1] / 1000, "kB")
    merged = shards.agac("merge", "-a", "b", "--of", str(of))
    yield Figure(name, "agac merge", merged.wall, "s")
    yield Figure(name, "agac merge, CPU a row", 1e6 * merged.cpu / rows, "µs")
    yield Figure(name, "agac merge, peak memory", merged.memory, "MB")
    results = shards.space.root / "output" / "b" / "results.jsonl"
    yield Figure(name, "results.jsonl, lines", lines(results), "", at_least=rows)
    yield Figure(name, "results.jsonl, bytes a row", results.stat().st_size / rows, "B")
    if compare:
        kept = results.rename(results.with_name("merged"))
        alone = shards.agac("run", "-a", "b")
        yield Figure(name, "the same in one process, rows", rows / alone.wall, "rows/s")
        yield Figure(name, "the same in one process, CPU a row", 1e6 * alone.cpu / rows, "µs")
        yield Figure(name, "the same in one process, peak memory", alone.memory, "MB")
        equal = filecmp.cmp(kept, results, shallow=False)
        yield Figure(name, "results.jsonl is that of one process", equal, "", at_least=1)


def reading(shards: Shards) -> tuple[float, float]:
    """Seconds of CPU of a shard that keeps next to nothing of one row, and of all rows."""
    root, took = shards.space.root, []
    text = (root / "workflows" / "b.yml").read_text("utf-8")
    for name, path in (("one", "one.csv"), ("all", "in.csv")):
        (root / "workflows" / f"{name}.yml").write_text(text.replace("in.csv", path), encoding="utf-8")
    write_table(root / "one.csv", 1)
    for name in ("one", "all"):
        took.append(shards.agac("run", "-a", name, "--shard", f"1/{READERS}").cpu)
    return took[0], took[1]


def lines(path: Path) -> int:
    """Lines of a file, read in blocks."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


@contextmanager
def serving(kind: str, latency: float) -> Iterator[Server]:
    """The server in a process of its own."""
    with TemporaryDirectory(prefix="agac-bench-") as folder, ExitStack() as open_:
        if kind == "simulator":
            yield open_.enter_context(simulator(Path(folder), "--latency", str(latency)))
        else:
            yield open_.enter_context(stub(latency))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and prints each figure as soon as it is known."""
    parser = argparse.ArgumentParser(description="What shards cost.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--at-once", type=int, default=2, help="shards that run at the same time")
    parser.add_argument("--concurrency", type=int, default=64, help="calls in flight of a shard")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that a call takes")
    parser.add_argument("--server", choices=("stub", "simulator"), default="stub")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the project is left")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures for machines")
    asked = parser.parse_args(arguments)
    if asked.kill and asked.shards < 3:
        parser.error("--kill takes two shards of at least three")
    print(machine_line(machine()), flush=True)
    figures = []
    with (
        serving(asked.server, asked.latency) as server,
        workspace(server, asked.rows, concurrency=asked.concurrency) as space,
    ):
        shards = Shards(space, server, asked.shards)
        for figure in measure(shards, asked.rows, asked.at_once, kill=asked.kill, compare=asked.compare):
            figures.append(figure)
            print("  ".join(filter(None, figure.cells())), flush=True)
        if asked.keep is not None:
            shutil.copytree(space.root, asked.keep, dirs_exist_ok=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps([figure.as_json() for figure in figures], indent=1), encoding="utf-8")
    print(f"\n{text_table(figures)}")
    raise SystemExit(any(figure.kept is False for figure in figures))


if __name__ == "__main__":
    main()
