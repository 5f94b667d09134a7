"""Measures what a newcomer waits for: from `git clone` to the first results, with nothing in the package cache.

    python bench/first_result.py     clones this repository, runs `make demo` in the clone, says how long it took

It needs git, make and a package index: a figure of its own, not a scenario of bench/run.py. What is cloned is the last
commit. Exits with 1 when it took longer than was promised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Figure, machine, machine_line, text_table

ROOT = Path(__file__).resolve().parent.parent
PROMISED = 120.0
"""Seconds from the clone to the first results."""
RESULTS = Path("output/product_reviews")


def main() -> int:
    """Gives the exit code."""
    print(machine_line(machine()), flush=True)
    with TemporaryDirectory(prefix="agac-first-") as folder:
        figures = measure(Path(folder))
    print(f"\n{text_table(figures)}")
    return 0 if figures[-1].kept else 1


def measure(folder: Path) -> list[Figure]:
    """Clones, installs and runs in a folder that is empty. Raises RuntimeError when there are no results at the end."""
    environment = newcomer(folder)
    began = time.perf_counter()
    step(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), "agac"], folder, environment)
    cloned = time.perf_counter()
    clone = folder / "agac"
    step(["make", "demo"], clone, environment)
    ended = time.perf_counter()
    rows = json.loads((clone / RESULTS / "summary.json").read_text("utf-8"))["rows"]
    lines = len((clone / RESULTS / "results.jsonl").read_text("utf-8").splitlines())
    if not 0 < rows["total"] == rows["done"] == lines:
        raise RuntimeError(f"make demo ended well, but without results: {rows}, {lines} lines")
    again = time.perf_counter()
    step(["make", "demo"], clone, environment)
    name = "first result"
    return [
        Figure(name, "git clone", cloned - began, "s"),
        Figure(name, f"make demo: install, {rows['done']} rows done", ended - cloned, "s"),
        Figure(name, "make demo once more", time.perf_counter() - again, "s"),
        Figure(name, "from the clone to the first results", ended - began, "s", at_most=PROMISED),
    ]


def newcomer(folder: Path) -> dict[str, str]:
    """The environment of somebody who never had agac: no cache, no virtual environment, no settings of Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "MAKE"))}
    path = [part for part in kept.get("PATH", "").split(os.pathsep) if Path(part) != Path(sys.executable).parent]
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CACHE_DIR": str(folder / "no-cache"),
        "XDG_CACHE_HOME": str(folder / "no-cache"),
    }


def step(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Runs a command, and shows it with what it says. Raises RuntimeError when it fails."""
    print(f"$ {' '.join(command)}", flush=True)
    code = subprocess.run(command, cwd=folder, env=environment).returncode
    if code != 0:
        raise RuntimeError(f"{command} ended with {code}")


if __name__ == "__main__":
    raise SystemExit(main())
