"""Seconds, CPU and memory of an OpenCode agent, several at once, against the simulator. Not in `bench/run.py`, since it
needs the program from npm.

    python bench/opencode.py PATH_OF_OPENCODE [AGENTS …]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import agac
from agac.providers import keeper

TASK = 'Read ${name}.\ntool:read {"filePath": "a.txt"}\n\nThen say what it holds.'
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Watched(threading.Thread):
    """Looks at the processes of sessions four times a second: the most memory of one and of all, in MiB, their CPU."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.one, self.all, self.cpu = folder, 0.0, 0.0, dict[int, float]()
        self.ended = threading.Event()

    def run(self) -> None:
        """Until it is ended."""
        while not self.ended.wait(0.25):
            sizes = []
            for process in (one for base in self.folder.glob("agac-agents-*") for one in keeper.marked(base)):
                with suppress(OSError):
                    sizes.append(int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE / 2**20)
                    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    self.cpu[process] = (int(words[11]) + int(words[12])) / TICKS
            self.one, self.all = max([self.one, *sizes]), max(self.all, sum(sizes))


def measured(program: str, at_once: int, tasks: int) -> dict[str, float]:
    """What so many tasks take, so many at once."""
    tempfile.tempdir = None
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tempfile.tempdir = folder  # where sessions work
        (root / "agac.yml").touch()
        (root / "given").mkdir()
        (root / "given/a.txt").write_text("hello\n")
        watched, started = Watched(root), time.monotonic()
        watched.start()
        runtime = agac.OpenCodeRuntime(
            model="simulator/small", command=program, max_agents=at_once, files="given", context=64_000
        )
        rows = [{"name": f"the file, {number}"} for number in range(tasks)]
        ran = agac.run(task=TASK, inputs=rows, runtime=runtime, project=root, timeout=600)  # type: ignore[call-overload]
        took = time.monotonic() - started
        watched.ended.set()
        watched.join()
        assert all(one.error is None for one in ran), ran[0].error
        return {
            "at_once": at_once, "tasks": tasks, "seconds": round(took, 1), "seconds_a_task": round(took / tasks, 2),
            "cpu_a_task": round(sum(watched.cpu.values()) / tasks, 2), "mib_an_agent": round(watched.one),
            "mib_in_all": round(watched.all),
        }  # fmt: skip


if __name__ == "__main__":
    for number in map(int, sys.argv[2:] or ("1", "4", "16")):
        print(json.dumps(measured(sys.argv[1], number, max(2 * number, 4))), flush=True)
