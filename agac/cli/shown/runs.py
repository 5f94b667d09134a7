"""`agac runs` as lines of text: a table, and what changed from one run to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agac.cli.shown.layout import ROW_OUTCOMES, money, outcome_names, table
from agac.cli.shown.words import counted, megabytes, plain, selection_words

if TYPE_CHECKING:
    from agac.api.looking import RunsReport


def runs_lines(report: RunsReport, workflow: str | None) -> list[str]:
    """One line a run, the one last worked on first."""
    if not report.runs:
        what = f"The workflow {workflow!r} was not" if workflow else "Nothing was"
        return [f"{what} run in this project yet. Start with: agac run -a {workflow or 'WORKFLOW'}"]
    names = outcome_names(ROW_OUTCOMES, [run["rows"] for run in report.runs])
    header = ["run", "workflow", "state", "rows", *names, "calls", "cost", "started", "last worked on"]
    lines = [table([*header, "against the run before"], [_line(run, names) for run in report.runs])]
    left = report.total - len(report.runs)
    lines += ["", f"Store: {megabytes(report.database_bytes)}"]
    lines += [f"{counted(left, 'older run')} not shown: raise -n"] if left else []
    return lines


def _line(run: dict[str, Any], names: Sequence[str]) -> list[object]:
    rows, calls = run["rows"], run["calls"]
    counts = [rows["total"], *(rows[name] for name in names), calls["count"]]
    times = [run["started_at"], run["last_worked_at"]]
    return [run["run"], run["workflow"], run["state"], *counts, money(calls), *times, against(run)]


def against(run: dict[str, Any]) -> str:
    """Which rows it takes where not all, and what changed since the run before, in a few words."""
    words = [f"only {some}"] if (some := selection_words(run["selection"])) else []
    if run["compared_with"] is None:
        words.append("the first")
    else:
        words += [plain(change).replace("\n", " ") for change in run["changes"]] or ["same workflow"]
    return "; ".join(words)
