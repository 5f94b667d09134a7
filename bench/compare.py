"""What `agac compare` takes on two runs of a workflow, of which the second has other answers for a tenth of the rows.

python bench/compare.py               100,000 rows
python bench/compare.py --rows 1000   fewer
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from statistics import median

from figures import machine, machine_line
from processes import stub
from workspace import workspace

OTHERS = """UPDATE result SET value = json_set(value, '$.reason', 'Another reason ' || id)
WHERE id % 10 = 0 AND id IN (SELECT result_id FROM row WHERE run_id = 2)"""
COMMANDS = (("1", "2"), ("1", "2", "--key", "review"), ("1", "2", "--html", "page.html", "--force"))


def main() -> None:
    """Runs the workflow twice, and measures."""
    parser = argparse.ArgumentParser(description="Measure agac compare.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=3, help="how often each is measured")
    given = parser.parse_args()
    print(machine_line(machine()), flush=True)
    with stub() as server, workspace(server, given.rows) as space:
        space.agac("run", "-a", "b")
        file = space.root / "workflows" / "b.yml"
        file.write_text(file.read_text("utf-8").replace("Review: ", "Said: "), encoding="utf-8")
        space.agac("run", "-a", "b")
        with closing(sqlite3.connect(space.root / ".agac" / "agac.db")) as database, database:
            database.execute(OTHERS)
        for command in COMMANDS:
            used = [space.agac("compare", *command) for _ in range(given.times)]
            wall, cpu = median(one.wall for one in used), median(one.cpu for one in used)
            memory, shown = max(one.memory for one in used), " ".join(("agac compare", *command))
            print(f"{shown}: {wall:.1f} s, {cpu:.1f} s of CPU, {memory:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
