"""`agac diff`: what a change of the project's files does, for people, for comments, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.core.errors import ExitCode
from agac.core.text import plain
from agac.core.types import counted, dollars
from agac.core.word_diff import Span, as_text, word_diff

if TYPE_CHECKING:
    from agac.api.diff import DiffReport, WorkflowDiff
    from agac.api.versions import Version
    from agac.engine.estimate import PlanReport
    from agac.plan.changes import Change


@click.command(help="Show what changed since REF, what stays valid, and what a run would cost. Makes no calls.")
@click.argument("ref", metavar="[REF]", required=False)
@click.option("-a", "--workflow", "workflows", metavar="NAME", multiple=True, help="Only this workflow; repeatable.")
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", help="How to print.")
@main.json_option
@click.pass_obj
def diff(settings: main.Globals, ref: str | None, workflows: tuple[str, ...], form: str, as_json: bool) -> int:
    """Exit 0 fine, 2 the present version has problems."""
    report = api.diff(ref, workflows, project=settings.project_dir)
    if form == "markdown" and not as_json:
        from agac.cli.markdown import diff_lines as lines
    else:
        lines = diff_lines
    terminal.print_report(report, lines, as_json=as_json or form == "json")
    return ExitCode.DONE if report.ok else ExitCode.USAGE


def version_words(version: Version) -> str:
    """`v1 (1a2b3c4d, 2026-01-02)`, `the last commit shared with main (1a2b3c4d, 2026-01-02; main has 3 more)`."""
    if version.commit is None:
        return version.ref
    name = f"the last commit shared with {version.main}" if version.main else version.ref
    more = f"; {version.main} has {counted(version.behind, 'more commit')}" if version.behind else ""
    return f"{name} ({version.commit[:8]}, {version.as_json()['made_at'][:10]}{more})"


def diff_lines(report: DiffReport) -> Iterator[str]:
    yield f"Compared with {version_words(report.against)}"
    yield from map(str, report.problems)
    for one in report.workflows:
        yield from ("", f"{one.workflow}: {one.how}")
        lines = [*map(str, one.problems), *(change_words(change, as_text, plain) for change in one.changes)]
        yield from (f"  {line}" for part in [*lines, *counts_words(one)] for line in part.splitlines())
    if report.unchanged:
        yield from ("", f"Unchanged: {', '.join(report.unchanged)}")


def change_words(change: Change, differing: Callable[[list[Span]], str], shown: Callable[[str], str]) -> str:
    """A change with what differs of its text, or with what becomes of an answer's fields and of who reads them."""
    text, before, now = shown(change.text), change.before, change.now
    if change.what == "renamed":
        return f"{text}; its stored results stay valid"
    if change.fields:
        broken = f"; breaking for {', '.join(change.breaks)}" if change.breaks else ""
        return f"{text}: {shown('; '.join(change.fields) + broken)}"
    if change.stage and isinstance(before, str) and isinstance(now, str) and "→" not in change.text:
        return f"{text}: {differing(word_diff(before, now))}"
    return text


def counts_words(found: WorkflowDiff) -> Iterator[str]:
    """What stays valid, what would run, and at what price."""
    if found.plan is not None and found.all is not None:
        parts = [f"{one.stage} {one}" for one in found.stages if one.most != 0] if len(found.stages) > 1 else []
        where = f" ({', '.join(parts)})" if parts else ""
        valid = counted(found.all.valid, "stored result stays valid", "stored results stay valid")
        yield f"{valid}; {found.all} tasks would run{where}, {cost_words(found.plan)}"


def cost_words(plan: PlanReport) -> str:
    """What a plan is expected to cost."""
    if plan.usd is None:
        return "price not known"
    simulated = any(one.simulated for one in plan.stages if one.run)
    return dollars(plan.usd, simulated=simulated, about="" if plan.exact else "~")
