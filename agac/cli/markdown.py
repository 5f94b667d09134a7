"""Markdown for comments of pull requests: tables, folded details, names and texts
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
    marks = ["---:" if place in at_right else "---" for place in range(len(header))]
    lines = [header, marks, *([_cell(one) for one in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return re.sub(r"(?<!\\)\|", r"\\|", LINE_END.sub("<br>", text.rstrip("\r\n")))


def fold(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Details that can be opened, with a `summary` of one line; forges want blank lines around the
    Markdown in them."""
    shown = html.escape(unlinked(squeezed(summary)))  # a blank line would end the HTML
    yield from (f"<details><summary>{shown}</summary>", "", *lines, "", "</details>")


# What commands print as comments. Plans and their stages are the engine's own, or what
# `agac-pr.json` says of them.


def _prices(found: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Returns what each stage comes to by calls, in batches and so on, and how long it takes."""
    ways = [
        way for way in figures.WAYS if any(one.estimate.ways.get(way) is not None for one in found)
    ]
    rows = list[list[str]]()
    for stage in found:
        one = stage.estimate
        known = (one.ways.get(way) for way in ways)
        cells = ["" if usd is None else dollars(usd, simulated=stage.simulated) for usd in known]
        time = "unknown" if one.seconds is None else duration(max(one.seconds, 1))
        rows.append([*cells, time] if one.calls else [""] * (len(ways) + 1))
    return [*(figures.WAYS[way] for way in ways), "time"], rows


def _cost_table(workflows: Iterable[Any]) -> list[str]:
    """Yields a table of all stages that ask models, of workflows with a `plan` and `changes`."""
    stages = [
        (some, one) for some in workflows if some.plan for one in some.plan.stages if one.run_mode
    ]
    (more, prices), rows = _prices([one for _, one in stages]), list[list[object]]()
    for (some, one), cells in zip(stages, prices, strict=True):
        what = ", ".join(
            dict.fromkeys(
                escaped(change.what) for change in some.changes if change.stage == one.name
            )
        )
        tokens = (one.estimate.input_tokens, one.estimate.output_tokens)
        counts = map(int if one.exact else figures.InexactNumber, tokens)
        rows.append(
            [
                code(some.workflow),
                code(one.name),
                what,
                one.reuse,
                figures.bounds_words(one),
                *counts,
                *cells,
            ]
        )
    header = ["workflow", "stage", "changed", "stay valid", "to run", "tokens in", "out", *more]
    if rows:
        return table(header, rows, numbers=range(3, len(header))).split("\n")
    return []


def diff_lines(report: DiffReport) -> Iterator[str]:
    """Yields the summary of `agac diff` first; what changed in each workflow is folded."""
    yield (
        f"**{counted(len(report.workflows), 'workflow')} changed: "
        f"{figures.counts_words(report.all)}**"
    )
    problems = [
        *report.problems,
        *(problem for one in report.workflows for problem in one.problems),
    ]
    for lines in (_problems(problems), _cost_table(report.workflows)):
        if lines:
            yield from ("", *lines)
    if report.beside:
        yield from ("", "**Outside of workflows**", "", *_changes(report.beside))
    for one in report.workflows:
        said = f"{one.workflow}: {one.how}, {counted(len(one.changes), 'change')}"
        yield from ("", *fold(said, _changes(one.changes)))
    yield from ("", f"<sub>Compared with {escaped(figures.version_words(report.against))}.</sub>")


def _problems(problems: Iterable[Problem], kind: str = "") -> list[str]:
    lines = list[str]()
    for one in problems:
        told = escaped(cropped(f"{one.path}: {one.message}" if one.path else one.message, 2_000))
        lines.append(f"- **{kind or one.severity}** {code(cropped(str(one.where), 300))}: {told}")
    return lines


def plan_lines(report: Any) -> Iterator[str]:
    """Yields a plan, or two of them side by side."""
    plan = getattr(report, "now", report)
    (header, rows), (more, prices) = figures.plan_rows(plan), _prices(plan.stages)
    yield (
        f"**{escaped(plan.workflow)}: {counted(plan.rows['total'], 'row')}**, "
        f"{figures.cost_words(plan)}"
    )
    cells = [
        [code(one) if isinstance(one, str) and at < 2 else one for at, one in enumerate(row)]
        for row in rows
    ]
    lines = [[*row, *others] for row, others in zip(cells, prices, strict=True)]
    yield from ("", table([*header, *more], lines, numbers=range(2, len(header) + len(more))))
    against = getattr(report, "against", None)
    if against:
        names = ["", *figures.TOTALS]
        versions = figures.comparison_rows(report)
        yield from ("", table(names, versions, numbers=range(1, len(names))))
        yield from ("", f"<sub>Beside {escaped(figures.version_words(against))}.</sub>")


# The comment of a pull request, made of `agac-pr.json` alone, which another job wrote: whatever is
# in it is data.

MOST = 60_000  # characters of a comment; forges take 65,536
COMMAND_OF_GITLAB = re.compile(r"(?m)^(\s*)/")
"""To GitLab a line of a comment that begins with a slash is a command, such as /merge."""

_MOST_TEXT = 4_000  # of a text that changed, of a change, of a workflow
_MOST_CHANGE = 10_000
_MOST_FOLD = 20_000
_MOST_SETTING = 600  # cells
_REST = "`agac-pr.json`, which the job keeps, has all"


@dataclass(slots=True)
class _Section:
    """A part of a comment. More than `opened` blocks are folded; the last ones are left out where
    there is no room."""

    what: str
    blocks: list[str]
    head: Sequence[str] = ()
    opened: int = 20
    left: int = 0

    def text(self) -> str:
        """Writes the section; nothing where there are no blocks."""
        if self.left:
            more = ["", f"*{self.left:,} more are not shown: {_REST}.*"]
        else:
            more = []
        lines = [*self.head, *self.blocks, *more]
        count = len(self.blocks) + self.left
        if count > self.opened:
            lines = list(fold(counted(count, self.what), lines))
        else:
            lines = lines
        return "\n".join(lines).rstrip() if count else ""


def comment_text(found: Findings) -> str:
    """Writes the comment: its marker, a summary on a line, then details, the longest of which is
    cut where needed."""
    marker = f"<!-- agac:{quote(cropped(found.project, 200), safe='/')} -->"
    footer = _footer(found)
    if found.quiet:
        return f"{marker}\nNo workflow changed. {footer}"
    stale = [
        f"{one.name}: a recorded reply is not asked for: {what}"
        for one in found.tests
        for what in one.stale
    ]
    warnings = [*_problems(found.told("warning")), *_problems(found.lint, "lint")]
    warnings += [f"- {escaped(cropped(one, 2_000))}" for one in stale]
    costs = _cost_table(found.workflows)
    failures = _failures(found.tests)
    sections = [
        _Section("error", _problems(found.told("error")), opened=100),
        _Section(
            "change outside of workflows",
            _changes(found.beside),
            ["**Outside of workflows**", ""],
            opened=50,
        ),
        _Section("stage", costs[2:], costs[:2]),
        _Section("workflow", ["\n".join([*_workflow(one), ""]) for one in found.workflows]),
        _Section("failure", failures[2:], failures[:2]),
        _Section("warning", warnings, opened=5),
        _Section(
            "note", [f"- {escaped(cropped(one, 2_000))}" for one in found.notes], ["**Notes**", ""]
        ),
    ]
    while True:
        text = "\n\n".join(
            [
                f"{marker}\n{_headline(found)}",
                *filter(None, (one.text() for one in sections)),
                footer,
            ]
        )
        longest = max(sections, key=lambda one: sum(map(len, one.blocks)))
        beyond = len(text) - MOST
        if beyond <= 0 or not longest.blocks:
            return COMMAND_OF_GITLAB.sub(r"\1\\/", text)
        while beyond > 0 and longest.blocks:
            beyond -= len(longest.blocks.pop())
            longest.left += 1


def _headline(found: Findings) -> str:
    """`2 workflows changed · 40 of 60 tasks run again (+$0.02) · 3 tests passed`."""
    parts = []
    errors = found.told("error")
    if errors:
        parts.append(f"**{counted(len(errors), 'error')}**")
    parts.append(f"**{counted(len(found.workflows), 'workflow')} changed**")
    if found.beside:
        parts.append(f"**{counted(len(found.beside), 'change')} outside of workflows**")
    if any(workflow.plan for workflow in found.workflows):
        parts.append(f"{figures.counts_words(found.all)}{_cost_delta(found)}")
    breaks = _breaks(found.workflows)
    if breaks:
        parts.append(f"**breaking for {escaped(breaks)}**")
    if found.tests:
        failed = sum(test.result != "passed" for test in found.tests)
        tests = counted(len(found.tests), "test")
        parts.append(f"**{failed:,} of {tests} failed**" if failed else f"{tests} passed")
    if found.max_usd is not None:
        cap = f"`ci.max_usd` ({dollars(found.max_usd, None)})"
        how = "not known to be within" if found.usd is None else "above"
        parts.append(f"**{how} {cap}**" if found.over else f"within {cap}")
    return " · ".join(parts)


def _cost_delta(found: Findings) -> str:
    """` (+$0.02)`: how much more a change costs; empty where that is nothing or unknown."""
    more = summed(workflow.usd_more for workflow in found.workflows if workflow.plan)
    if not more or not round(more, 4):
        return ""
    return f" ({'-' if more < 0 else '+'}{dollars(abs(more))})"


def _workflow(found: WorkflowFindings) -> Iterator[str]:
    changes = [counted(len(found.changes), "change")] if found.changes else []
    words = [", ".join([f"{found.workflow}: {found.how}", *changes])]
    if found.plan:
        words.append(figures.counts_words(found.plan))
    breaks = _breaks([found])
    if breaks:
        words.append(f"breaking for {breaks}")
    said = cropped("; ".join(words), 500)
    if changes:
        yield from fold(said, _changes(found.changes))
    else:
        yield escaped(said)


def _breaks(found: Iterable[WorkflowFindings]) -> str:
    return cropped(
        ", ".join(
            dict.fromkeys(reader for one in found for it in one.changes for reader in it.breaks)
        ),
        200,
    )


def _changes(found: Sequence[Change]) -> list[str]:
    """Returns a line for each change, as far as there is room."""
    lines = list[str]()
    room = _MOST_FOLD
    for one in found:
        if one.what == "settings":  # a long one leaves room for the others
            one = replace(one, text=cropped(one.text, _MOST_SETTING))
        text = figures.change_words(one, as_markdown, escaped, _MOST_TEXT)
        if len(text) < _MOST_CHANGE:
            text = text
        else:
            text = f"{escaped(cropped(one.text, 200))} (too long to be shown)"
        lines.append("- " + text.rstrip().replace("\n", "<br>\n  "))
        room -= len(lines[-1])
        if room < 0:
            return [
                *lines[:-1],
                "",
                f"*{counted(len(found) - len(lines) + 1, 'more change')}: {_REST}.*",
            ]
    return lines


def _failures(tests: Iterable[CaseResult]) -> list[str]:
    cells = list[list[str]]()
    for one in (one for one in tests if one.result != "passed"):
        if one.error:
            cells.append([one.name, "", "", "", one.error])
        cells += [
            [
                one.name,
                "" if what.row is None else str(what.row),
                what.stage or "",
                what.expected,
                what.got,
            ]
            for what in one.failures
        ]
    rows = ([escaped(cropped(squeezed(text), 300)) for text in row] for row in cells)
    return table(["failed test", "row", "stage", "expected", "got"], rows).split("\n")


def _footer(found: Findings) -> str:
    words = []
    version = found.against
    if version is not None:
        commit = shlex.quote(version.commit[:8] if version.commit else version.ref)
        words.append(f"Compared with {escaped(cropped(figures.version_words(version), 300))}.")
        again = (
            "agac ci --event pull-request --against "
            f"{commit}{' --untrusted' if found.untrusted else ''}"
        )
        words.append(f"See it with {code(cropped(again, 300))}.")
    words.append(
        f"{f'Change {code(found.head[:8])}, ' if found.head else ''}agac "
        f"{code(cropped(found.agac, 20))}."
    )
    return f"<sub>{' '.join(words)}</sub>"
