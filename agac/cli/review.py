"""`agac diff`: what a change of the project's files does, for people, for comments, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.core.errors import ExitCode
from agac.core.text import cropped, plain
from agac.core.types import counted, dollars
from agac.core.word_diff import Span, as_text, word_diff

if TYPE_CHECKING:
    from agac.api.diff import DiffReport
    from agac.api.versions import Version
    from agac.engine.estimate import PlanReport, StageForecast
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
        lines += [counts_words(one.plan, stages=True)] if one.plan else []
        yield from (f"  {line}" for text in lines for line in text.splitlines())
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
    if "→" in change.text or change.what in ("new", "gone", "tools", "schema", "vars"):
        return text
    if isinstance(before, str) and isinstance(now, str) and " " in before + now:
        return f"{text}: {differing(word_diff(before, now))}"
    both = ("none" if one is None else one if isinstance(one, str) else json.dumps(one) for one in (before, now))
    return f"{text}: {shown(' → '.join(cropped(one, 100) for one in both))}"


def counts_words(plan: PlanReport, *, stages: bool = False) -> str:
    """What stays valid, what would run (at which `stages`), and at what price."""
    parts = [f"{one.name} {bounds_words(one)}" for one in plan.stages if one.stage.asks and one.most != 0]
    where = f" ({', '.join(parts)})" if stages and len(plan.stages) > 1 and parts else ""
    valid = counted(plan.valid, "stored result stays valid", "stored results stay valid")
    return f"{valid}; {bounds_words(plan)} tasks would run{where}, {cost_words(plan)}"


def bounds_words(found: StageForecast | PlanReport) -> str:
    """`10`, `10 to 20`, `at least 10`."""
    least, most = found.least, found.most
    return f"at least {least:,}" if most is None else f"{least:,}" if most == least else f"{least:,} to {most:,}"


def cost_words(plan: PlanReport) -> str:
    """What a plan is expected to cost."""
    if plan.usd is None:
        return "price not known"
    simulated = any(one.simulated for one in plan.stages if one.run)
    return dollars(plan.usd, simulated=simulated, about="" if plan.exact else "~")
