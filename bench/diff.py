"""What `agac diff` and `agac plan --against` take on a workflow whose rows are stored, after an edit of the last
stage's prompt, and of the first's, after which every row is open at both.

    python bench/diff.py               100,000 rows of two stages
    python bench/diff.py --rows 1000   fewer
"""

from __future__ import annotations

import argparse
import subprocess
from statistics import median

from figures import machine, machine_line
from processes import stub
from workspace import Workspace, workspace

COMMANDS = (("diff",), ("plan", "-a", "b", "--against", "HEAD"))


def main() -> None:
    """Runs the workflow once, then edits, and measures."""
    parser = argparse.ArgumentParser(description="Measure agac diff and agac plan --against.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=3, help="how often each is measured")
    given = parser.parse_args()
    print(f"{machine_line(machine())}\nEach may take 10 s on 100,000 rows.", flush=True)
    with stub() as server, workspace(server, given.rows, stages=2) as space:
        space.agac("run", "-a", "b")
        (space.root / ".gitignore").write_text("/.agac/\n/output/\nstderr\n")
        for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "run")):
            who = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
            subprocess.run(["git", *who, *words], cwd=space.root, check=True)
        for what, old, new in (("last", "Stage 1", "Stage one"), ("first", "Review: ", "Said: ")):
            file = space.root / "workflows" / "b.yml"
            file.write_text(file.read_text("utf-8").replace(old, new), encoding="utf-8")
            for command in COMMANDS:
                measure(space, command, what, given.times)


def measure(space: Workspace, command: tuple[str, ...], edited: str, times: int) -> None:
    """Prints one line."""
    used = [space.agac(*command) for _ in range(times)]
    wall, cpu = median(one.wall for one in used), median(one.cpu for one in used)
    memory, shown = max(one.memory for one in used), " ".join(("agac", *command))
    print(f"{shown}, {edited} prompt edited: {wall:.1f} s, {cpu:.1f} s of CPU, {memory:.0f} MB")


if __name__ == "__main__":
    main()
