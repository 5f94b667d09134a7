"""What `agac plan` costs, which walks every row without asking anybody."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from figures import Figure
from processes import stub
from sizes import Sizes
from workspace import WORKFLOW, Workspace, workspace

GROUPED = """\
  - name: overview
    group_by: [product]
    reduce: {max_rows: 100}
    prompt: "What do these ${rows_count} say? ${rows_json}"
"""
PLAN = ("plan", "-a", "b")


def plans(sizes: Sizes) -> Iterator[Figure]:
    """Plans of a first run, of a finished one, of one whose prompt was edited, and of one group cut into parts."""
    rows = sizes.rerun[0]
    with stub() as server, workspace(server, rows) as space, workspace(server, 1) as one:
        taken = [("a first run", _more(space, one, sizes))]
        for each in (space, one):
            each.agac("run", "-a", "b")
        taken.append(("unchanged", _more(space, one, sizes)))
        for each in (space, one):
            file = each.root / "workflows" / "b.yml"
            file.write_text(file.read_text("utf-8").replace("Review: ", "Said: "), encoding="utf-8")
        taken.append(("an edited prompt", _more(space, one, sizes)))
        for each in (space, one):
            (each.root / "workflows" / "b.yml").write_text(WORKFLOW + GROUPED, encoding="utf-8")
        taken.append(("grouped, 100 rows a call", _more(space, one, sizes)))
    for what, seconds in taken:
        yield Figure(f"plan, {rows:,} rows", f"{what}, CPU a row beyond start-up", 1e6 * seconds / rows, "µs")


def _more(space: Workspace, one: Workspace, sizes: Sizes) -> float:
    """Seconds of CPU beyond the plan of one row."""
    few, many = (median(each.agac(*PLAN).cpu for _ in range(sizes.runs)) for each in (one, space))
    return many - few
