"""Writes Markdown for comments of pull requests: tables, folded details, names and texts
(`core.text.escaped`)."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agac.cli import figures
from agac.core.errors import Problem
from agac.core.text import LINE_END, cropped, duration, escaped, squeezed, unlinked
from agac.core.types import counted, dollars
from agac.core.word_diff import as_markdown
from agac.engine.forecast.estimate import summed

if TYPE_CHECKING:
    from agac.api.diff import DiffReport
    from agac.api.findings import Findings, WorkflowFindings
    from agac.api.workflow_tests import CaseResult
    from agac.plan.changes import Change


def code(text: str) -> str:
    """Writes a name or a value within a line in backticks: nothing in it is read as Markdown."""
    shown = squeezed(text) or "(empty)"
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    if "`" in shown:
        return f"{ticks} {shown} {ticks}"
    return f"`{shown}`"


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()
) -> str:
    """Makes a table of cells that are Markdown already (`escaped`, `code`) or numbers; the columns
    `numbers` are aligned to the right."""
    at_right = set(numbers)
    marks = ["---:" if column in at_right else "---" for column in range(len(header))]
    lines = [header, marks, *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return re.sub(r"(?<!\\)\|", r"\\|", LINE_END.sub("<br>", text.rstrip("\r\n")))


def fold(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Yields details that can be opened, with a `summary` of one line; forges want blank lines
    around the Markdown in them."""
    shown = html.escape(unlinked(squeezed(summary)))  # a blank line would end the HTML
    yield from (f"<details><summary>{shown}</summary>", "", *lines, "", "</details>")


# What commands print as comments. Plans and their stages are the engine's own, or what
# `agac-pr.json` says of them.


def _prices(stages: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Makes columns, and their cells for each stage: its cost by calls, in batches and so on, and
    how long it takes."""
    ways = [
        way
        for way in figures.WAYS
        if any(stage.estimate.ways.get(way) is not None for stage in stages)
    ]
    rows = [_price_cells(stage, ways) for stage in stages]
    return [*(figures.WAYS[way] for way in ways), "time"], rows


def _price_cells(stage: Any, ways: Sequence[str]) -> list[str]:
    """Writes the costs and the time of a stage; nothing if it makes no calls."""
    estimate = stage.estimate
    if not estimate.calls:
        return [""] * (len(ways) + 1)
    cells = []
    for way in ways:
        usd = estimate.ways.get(way)
        cells.append("" if usd is None else dollars(usd, simulated=stage.simulated))
    seconds = estimate.seconds
    cells.append("unknown" if seconds is None else duration(max(seconds, 1)))
    return cells


def _cost_table(workflows: Iterable[Any]) -> list[str]:
    """Makes a table of all stages that ask models, of workflows with a `plan` and `changes`; no
    line if there is no such stage."""
    stages = [
        (workflow, stage)
        for workflow in workflows
        if workflow.plan
        for stage in workflow.plan.stages
        if stage.run_mode
    ]
    if not stages:
        return []
    more, prices = _prices([stage for _, stage in stages])
    rows = list[list[object]]()
    for (workflow, stage), cells in zip(stages, prices, strict=True):
        changed = [escaped(each.what) for each in workflow.changes if each.stage == stage.name]
        number = int if stage.exact else figures.InexactNumber
        rows.append(
            [
                code(workflow.workflow),
                code(stage.name),
                ", ".join(dict.fromkeys(changed)),
                stage.reuse,
                figures.bounds_words(stage),
                number(stage.estimate.input_tokens),
                number(stage.estimate.output_tokens),
                *cells,
            ]
        )
    header = ["workflow", "stage", "changed", "stay valid", "to run", "tokens in", "out", *more]
    return table(header, rows, numbers=range(3, len(header))).split("\n")


def diff_lines(report: DiffReport) -> Iterator[str]:
    """Yields the summary of `agac diff` first; what changed in each workflow is folded."""
    yield (
        f"**{counted(len(report.workflows), 'workflow')} changed: "
        f"{figures.counts_words(report.all)}**"
    )
    problems = list(report.problems)
    for diff in report.workflows:
        problems += diff.problems
    for lines in (_problems(problems), _cost_table(report.workflows)):
        if lines:
            yield from ("", *lines)
    if report.beside:
        yield from ("", "**Outside of workflows**", "", *_changes(report.beside))
    for diff in report.workflows:
        summary = f"{diff.workflow}: {diff.how}, {counted(len(diff.changes), 'change')}"
        yield from ("", *fold(summary, _changes(diff.changes)))
    yield from ("", f"<sub>Compared with {escaped(figures.version_words(report.against))}.</sub>")


def _problems(problems: Iterable[Problem], kind: str = "") -> list[str]:
    """Writes a line for each problem, of a `kind` or of its severity."""
    lines = list[str]()
    for problem in problems:
        message = problem.message
        if problem.path:
            message = f"{problem.path}: {message}"
        where = code(cropped(str(problem.where), 300))
        text = escaped(cropped(message, 2_000))
        lines.append(f"- **{kind or problem.severity}** {where}: {text}")
    return lines


def plan_lines(report: Any) -> Iterator[str]:
    """Yields a plan, or two of them side by side."""
    plan = getattr(report, "now", report)
    header, rows = figures.plan_rows(plan)
    more, prices = _prices(plan.stages)
    yield (
        f"**{escaped(plan.workflow)}: {counted(plan.rows['total'], 'row')}**, "
        f"{figures.cost_words(plan)}"
    )
    lines = [
        [code(str(stage)), code(str(model)), *cells, *others]
        for (stage, model, *cells), others in zip(rows, prices, strict=True)
    ]
    yield from ("", table([*header, *more], lines, numbers=range(2, len(header) + len(more))))
    against = getattr(report, "against", None)
    if against:
        names = ["", *figures.TOTALS]
        versions = figures.comparison_rows(report)
        yield from ("", table(names, versions, numbers=range(1, len(names))))
        yield from ("", f"<sub>Beside {escaped(figures.version_words(against))}.</sub>")


# The comment of a pull request, made of `agac-pr.json` alone, which another job wrote: whatever is
# in it is data.

MAX_COMMENT = 60_000
"""Characters of a comment, at most; forges take 65,536."""

COMMAND_OF_GITLAB = re.compile(r"(?m)^(\s*)/")
"""To GitLab a line of a comment that begins with a slash is a command, such as /merge."""

_MAX_TEXT = 4_000
"""Characters of a text that changed."""

_MAX_CHANGE = 10_000
"""Characters of a change."""

_MAX_FOLD = 20_000
"""Characters of all changes of a workflow."""

_MAX_SETTING = 600
"""Cells of a terminal of a setting that changed: a long one leaves room for the others."""

_REST = "`agac-pr.json`, which the job keeps, has all"


@dataclass(slots=True)
class _Section:
    """A part of a comment."""

    what: str
    """The word for one of its blocks."""

    blocks: list[str]
    """Its texts; the last ones are left out if there is no room."""

    head: Sequence[str] = ()
    """Lines before them."""

    opened: int = 20
    """More blocks than these are folded."""

    left: int = 0
    """How many blocks were left out."""

    @property
    def length(self) -> int:
        """Characters of all blocks."""
        return sum(map(len, self.blocks))

    def text(self) -> str:
        """Writes the section; nothing if there are no blocks."""
        count = len(self.blocks) + self.left
        if not count:
            return ""
        lines = [*self.head, *self.blocks]
        if self.left:
            lines += ["", f"*{self.left:,} more are not shown: {_REST}.*"]
        if count > self.opened:
            lines = list(fold(counted(count, self.what), lines))
        return "\n".join(lines).rstrip()

    def cut(self, characters: int) -> None:
        """Leaves out the last blocks, so many characters at least."""
        while characters > 0 and self.blocks:
            characters -= len(self.blocks.pop())
            self.left += 1


def comment_text(findings: Findings) -> str:
    """Writes the comment: its marker, a summary on a line, then details, the longest of which are
    cut if needed."""
    marker = f"<!-- agac:{quote(cropped(findings.project, 200), safe='/')} -->"
    footer = _footer(findings)
    if findings.quiet:
        return f"{marker}\nNo workflow changed. {footer}"
    headline = _headline(findings)
    sections = _sections(findings)
    while True:
        texts = [section.text() for section in sections]
        text = "\n\n".join([f"{marker}\n{headline}", *filter(None, texts), footer])
        longest = max(sections, key=lambda section: section.length)
        if len(text) <= MAX_COMMENT or not longest.blocks:
            return COMMAND_OF_GITLAB.sub(r"\1\\/", text)
        longest.cut(len(text) - MAX_COMMENT)


def _sections(findings: Findings) -> list[_Section]:
    """Makes the parts of the comment, in their order."""
    beside = ["**Outside of workflows**", ""]
    workflows = ["\n".join([*_workflow(each), ""]) for each in findings.workflows]
    costs = _cost_table(findings.workflows)
    failures = _failures(findings.tests)
    notes = [f"- {escaped(cropped(note, 2_000))}" for note in findings.notes]
    return [
        _Section("error", _problems(findings.told("error")), opened=100),
        _Section("change outside of workflows", _changes(findings.beside), beside, opened=50),
        _Section("stage", costs[2:], costs[:2]),
        _Section("workflow", workflows),
        _Section("failure", failures[2:], failures[:2]),
        _Section("warning", _warnings(findings), opened=5),
        _Section("note", notes, ["**Notes**", ""]),
    ]


def _warnings(findings: Findings) -> list[str]:
    """Writes a line for each warning, likely mistake and stale recording."""
    lines = [*_problems(findings.told("warning")), *_problems(findings.lint, "lint")]
    for test in findings.tests:
        for stale in test.stale:
            text = f"{test.name}: a recorded reply is not asked for: {stale}"
            lines.append(f"- {escaped(cropped(text, 2_000))}")
    return lines


def _headline(findings: Findings) -> str:
    """`2 workflows changed · 40 of 60 tasks run again (+$0.02) · 3 tests passed`."""
    parts = []
    errors = findings.told("error")
    if errors:
        parts.append(f"**{counted(len(errors), 'error')}**")
    parts.append(f"**{counted(len(findings.workflows), 'workflow')} changed**")
    if findings.beside:
        parts.append(f"**{counted(len(findings.beside), 'change')} outside of workflows**")
    if any(workflow.plan for workflow in findings.workflows):
        parts.append(f"{figures.counts_words(findings.all)}{_cost_delta(findings)}")
    breaks = _breaks(findings.workflows)
    if breaks:
        parts.append(f"**breaking for {escaped(breaks)}**")
    if findings.tests:
        parts.append(_tests_words(findings.tests))
    if findings.max_usd is not None:
        cap = f"`ci.max_usd` ({dollars(findings.max_usd, None)})"
        how = "not known to be within" if findings.usd is None else "above"
        parts.append(f"**{how} {cap}**" if findings.over else f"within {cap}")
    return " · ".join(parts)


def _tests_words(results: Sequence[CaseResult]) -> str:
    """`3 tests passed`, or how many failed."""
    failed = sum(result.result != "passed" for result in results)
    tests = counted(len(results), "test")
    return f"**{failed:,} of {tests} failed**" if failed else f"{tests} passed"


def _cost_delta(findings: Findings) -> str:
    """` (+$0.02)`: how much more a change costs; empty if that is nothing or unknown."""
    more = summed(workflow.usd_more for workflow in findings.workflows if workflow.plan)
    if not more or not round(more, 4):
        return ""
    return f" ({'-' if more < 0 else '+'}{dollars(abs(more))})"


def _workflow(findings: WorkflowFindings) -> Iterator[str]:
    """Yields what became of a workflow, with its changes folded."""
    changes = [counted(len(findings.changes), "change")] if findings.changes else []
    words = [", ".join([f"{findings.workflow}: {findings.how}", *changes])]
    if findings.plan:
        words.append(figures.counts_words(findings.plan))
    breaks = _breaks([findings])
    if breaks:
        words.append(f"breaking for {breaks}")
    summary = cropped("; ".join(words), 500)
    if changes:
        yield from fold(summary, _changes(findings.changes))
    else:
        yield escaped(summary)


def _breaks(workflows: Iterable[WorkflowFindings]) -> str:
    """Lists the readers that changes break."""
    readers = dict[str, None]()
    for workflow in workflows:
        for change in workflow.changes:
            readers |= dict.fromkeys(change.breaks)
    return cropped(", ".join(readers), 200)


def _changes(changes: Sequence[Change]) -> list[str]:
    """Writes a line for each change, as far as there is room."""
    lines = list[str]()
    room = _MAX_FOLD
    for change in changes:
        line = _change_line(change)
        room -= len(line)
        if room < 0:
            more = counted(len(changes) - len(lines), "more change")
            return [*lines, "", f"*{more}: {_REST}.*"]
        lines.append(line)
    return lines


def _change_line(change: Change) -> str:
    """Writes a change on a line of Markdown."""
    if change.what == "settings":
        change = replace(change, text=cropped(change.text, _MAX_SETTING))
    text = figures.change_words(change, as_markdown, escaped, _MAX_TEXT)
    if len(text) >= _MAX_CHANGE:
        text = f"{escaped(cropped(change.text, 200))} (too long to be shown)"
    return "- " + text.rstrip().replace("\n", "<br>\n  ")


def _failures(tests: Iterable[CaseResult]) -> list[str]:
    """Makes a table of what was not as tests expect."""
    cells = list[list[str]]()
    for test in tests:
        if test.result == "passed":
            continue
        if test.error:
            cells.append([test.name, "", "", "", test.error])
        for failure in test.failures:
            row = "" if failure.row is None else str(failure.row)
            cells.append([test.name, row, failure.stage or "", failure.expected, failure.got])
    rows = ([escaped(cropped(squeezed(text), 300)) for text in row] for row in cells)
    return table(["failed test", "row", "stage", "expected", "got"], rows).split("\n")


def _footer(findings: Findings) -> str:
    """Says what the change was compared with, and by which agac."""
    words = []
    version = findings.against
    if version is not None:
        words.append(f"Compared with {escaped(cropped(figures.version_words(version), 300))}.")
        commit = shlex.quote(version.commit[:8] if version.commit else version.ref)
        again = f"agac ci --event pull-request --against {commit}"
        if findings.untrusted:
            again += " --untrusted"
        words.append(f"See it with {code(cropped(again, 300))}.")
    if findings.head:
        words.append(f"Change {code(findings.head[:8])},")
    words.append(f"agac {code(cropped(findings.agac, 20))}.")
    return f"<sub>{' '.join(words)}</sub>"
