"""Markdown for comments of pull requests: tables, folded details, names and texts (`core.text.escaped`)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agac.cli import figures
from agac.cli.figures import TOTALS, comparison_rows, plan_rows
from agac.core.errors import Problem
from agac.core.text import escaped, plain, unlinked
from agac.core.types import counted
from agac.core.word_diff import as_markdown
from agac.engine.estimate import PlanReport

if TYPE_CHECKING:
    from agac.api.diff import DiffReport


def code(text: str) -> str:
    """A name or a value within a line, in backticks: nothing in it is read as Markdown."""
    shown = plain(" ".join(text.split())) or "(empty)"
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{ticks} {shown} {ticks}" if "`" in shown else f"`{shown}`"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> str:
    """A table of cells that are Markdown already (`escaped`, `code`), or numbers. `numbers` are the columns, from 0,
    that stand at the right."""
    at_right = set(numbers)
    marks = ["---:" if place in at_right else "---" for place in range(len(header))]
    lines = [header, marks, *([_cell(one) for one in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return re.sub(r"(?<!\\)\|", r"\\|", "<br>".join(text.splitlines()))


def fold(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Details that are shown when somebody opens them. `summary` is plain text of one line; around the lines, which are
    Markdown, forges want blank ones."""
    yield from (f"<details><summary>{html.escape(unlinked(summary))}</summary>", "", *lines, "", "</details>")


# What commands print as comments.


def diff_lines(report: DiffReport) -> Iterator[str]:
    """The summary of `agac diff` first; what changed in each workflow is folded."""
    yield f"**{counted(len(report.workflows), 'workflow')} changed: {figures.counts_words(report.all)}**"
    yield from _problem_lines(report.problems)
    header = ("Workflow", "Stage", "Stay valid", "To run", "Expected cost")
    stages = [(one.workflow, stage) for one in report.workflows if one.plan for stage in one.plan.stages]
    rows = [
        [code(name), code(one.name), one.reuse, figures.bounds_words(one), figures.cost_words(PlanReport(name, [one]))]
        for name, one in stages
        if one.stage.asks
    ]
    yield from ("", table(header, rows, numbers=(2, 3, 4))) if rows else ()
    for one in report.workflows:
        yield from _problem_lines(one.problems)
        texts = (figures.change_words(change, as_markdown, escaped) for change in one.changes)
        lines = ["- " + text.rstrip().replace("\n", "<br>\n  ") for text in texts]
        yield from ("", *fold(f"{one.workflow}: {one.how}, {counted(len(lines), 'change')}", lines))
    yield from ("", f"<sub>Compared with {escaped(figures.version_words(report.against))}.</sub>")


def _problem_lines(problems: Sequence[Problem]) -> Iterator[str]:
    lines = [f"- **{one.severity}** {code(str(one.where))} {escaped(one.message)}" for one in problems]
    yield from ("", *lines) if lines else ()


def plan_lines(report: Any) -> Iterator[str]:
    """A plan, or two of them side by side."""
    plan = getattr(report, "now", report)
    header, rows = plan_rows(plan)
    yield f"**{escaped(plan.workflow)}: {counted(plan.rows['total'], 'row')}**, {figures.cost_words(plan)}"
    cells = [[code(one) if isinstance(one, str) and at < 2 else one for at, one in enumerate(row)] for row in rows]
    yield from ("", table(header, cells, numbers=range(2, len(header))))
    if against := getattr(report, "against", None):
        yield from ("", table(["", *TOTALS], comparison_rows(report), numbers=range(1, len(TOTALS) + 1)))
        yield from ("", f"<sub>Beside {escaped(figures.version_words(against))}.</sub>")
