"""`agac diff`: what a change of the project's files does, for people, for comments, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.core.errors import ExitCode
from agac.core.text import plain
from agac.core.types import counted, dollars
from agac.core.word_diff import Span, as_text, value_diff

if TYPE_CHECKING:
    from agac.api.diff import DiffReport
    from agac.api.run_compare import Agreement, RunComparison
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


@click.command(help="Compare the results of two runs (their numbers, or `last`), row by row. Makes no calls.")
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@click.option("--key", metavar="FIELD", help="Match rows by this field of theirs, and not by id.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Show so many changed rows.")
@main.json_option
@click.pass_obj
def compare(settings: main.Globals, /, as_json: bool, **which: Any) -> None:
    report = api.compare_runs(**which, project=settings.project_dir)
    terminal.print_report(report, lambda found: (*comparison_lines(found), *changed_lines(found)), as_json=as_json)


def comparison_lines(report: RunComparison) -> Iterator[str]:
    """Counts, how far each stage and field agrees, and what the runs took."""
    runs, rows, by = (report.first, report.second), report.rows, f" by {report.key}" if report.key else ""
    ended = [f"{one['workflow']}, run {one['run']}{'' if one['complete'] else ' (not finished)'}" for one in runs]
    yield " compared with ".join(ended)
    alone = [f"{rows[f'only_{name}']:,} only in run {getattr(report, name)['run']}" for name in ("first", "second")]
    yield f"{counted(rows['both'], 'row')} in both{by}, {rows['changed']:,} changed; {', '.join(alone)}\n"
    table = [line for one in report.stages for line in _agreement_rows(one.name, one.agreement)]
    yield terminal.table(("result", "rows", "equal", "share", "in one", "drift", "p95"), table) + "\n"
    for one in runs:
        times = one["timing_ms"]["duration"]
        words = map(
            _known,
            (one["usd_per_1000_rows"], times["p50"], times["p95"]),
            (", ${:,.4f} for 1,000 rows", ", calls of {:,.0f} ms", " (p95 {:,.0f} ms)"),
        )
        yield f"run {one['run']}: {terminal.cost_of(one['calls'])}{''.join(words)}"


def _agreement_rows(name: str, found: Agreement) -> Iterator[tuple[object, ...]]:
    share, *drift = map(_known, (found.share, found.drift, found.p95), ("{:.1%}", "{:.4g}", "{:.4g}"))
    yield name, found.rows, found.equal, share, found.alone, *drift
    for field, one in found.fields.items():
        yield from _agreement_rows(f"{name}.{field}", one)


def _known(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def changed_lines(report: RunComparison) -> Iterator[str]:
    """What changed in the first rows, and rows of one run alone."""
    text = partial(value_diff, differing=partial(as_text, width=300), shown=plain, most=1_000)
    rows = [(str(one.id), one.field, text(one.before, one.now)) for one in report.changed]
    yield "\n" + terminal.table(("row", "field", "difference"), rows) if rows else ""
    if (shown := len({one.id for one in report.changed})) < report.rows["changed"]:
        yield f"{shown:,} of {report.rows['changed']:,} changed rows. More of them: --limit N"
    for ids, run in ((report.only_first, report.first), (report.only_second, report.second)):
        yield from [f"Only in run {run['run']}: {plain(', '.join(map(str, ids)))}"] if ids else []


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
    return f"{text}: {value_diff(before, now, differing, shown)}"


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
