"""`agac diff`, `agac compare`, `agac try` and `agac eval`: what changes do, and how good answers
are."""

from __future__ import annotations

import csv
import html
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.figures import change_words, counts_words, version_words
from agac.core.errors import ExitCode
from agac.core.reading import read_as
from agac.core.text import plain, split_lines
from agac.core.types import counted
from agac.core.word_diff import as_html, as_text, value_diff
from agac.data.files import AtomicFile, refuse_target, write_whole
from agac.data.text_formats import safe_cell_text
from agac.engine.summary import RunSummary

if TYPE_CHECKING:
    from agac.api.comparison import Agreement
    from agac.api.diff import DiffReport
    from agac.api.evaluation import Evaluation, ModelQuality
    from agac.api.run_compare import FieldChange, RunComparison
    from agac.api.trial import StageTrial
    from agac.core.statistics import Interval


@click.command(
    help="Show what changed since REF, what stays valid, and what a run would cost. Makes no calls."
)
@click.argument("ref", metavar="[REF]", required=False)
@click.option(
    "-a",
    "--workflow",
    "workflows",
    metavar="NAME",
    multiple=True,
    help="Only this workflow; repeatable.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    help="How to print.",
)
@main.json_option
@click.pass_obj
def diff(
    settings: main.Globals, ref: str | None, workflows: tuple[str, ...], form: str, as_json: bool
) -> int:
    """Exit 0 fine, 2 the present version has problems."""
    report = api.diff(ref, workflows, project=settings.project_dir)
    lines = diff_lines
    print_lines: Callable[[str], None] = terminal.print_text
    if form == "markdown":
        from agac.cli import markdown

        lines = markdown.diff_lines
        print_lines = terminal.print_markdown
    terminal.print_report(report, lines, as_json=as_json or form == "json", text=print_lines)
    return ExitCode.DONE if report.ok else ExitCode.USAGE


@click.command(
    help="Compare the results of two runs (their numbers, or `last`), row by row. Makes no calls."
)
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@click.option("--key", metavar="FIELD", help="Match rows by this field of theirs, and not by id.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Show so many changed rows.",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    type=Path,
    help="Write a page with 2,000 rows, and a csv with more.",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@main.json_option
@click.pass_obj
def compare(
    settings: main.Globals, /, page: Path | None, force: bool, as_json: bool, **which: Any
) -> None:
    if page is None:
        report = api.compare_runs(**which, project=settings.project_dir)
    else:
        html_page = ComparePage(page, force=force)
        report = api.compare_runs(**which, changed=html_page.add, project=settings.project_dir)
        for file in html_page.written(comparison_lines(report)):
            terminal.say(f"Wrote {terminal.from_here(file)}")
    terminal.print_report(
        report, lambda found: (*comparison_lines(found), *changed_lines(found)), as_json=as_json
    )


def comparison_lines(report: RunComparison) -> Iterator[str]:
    """Yields counts, how far each stage and field agrees, and what the runs took."""
    rows = report.rows
    first = read_as(RunSummary, report.first)
    second = read_as(RunSummary, report.second)
    yield f"{_run_words(first)} compared with {_run_words(second)}"
    by = f" by {report.key}" if report.key else ""
    yield (
        f"{counted(rows['both'], 'row')} in both{by}, {rows['changed']:,} changed; "
        f"{rows['only_first']:,} only in run {first.run}, "
        f"{rows['only_second']:,} only in run {second.run}\n"
    )
    table = list[tuple[object, ...]]()
    for stage in report.stages:
        table += agreement_rows(stage.name, stage.agreement)
    header = ("result", "rows", "equal", "share", "in one", "drift", "p95")
    yield terminal.table(header, table) + "\n"
    yield _took_words(first, report.first["usd_per_1000_rows"])
    yield _took_words(second, report.second["usd_per_1000_rows"])


def _run_words(run: RunSummary) -> str:
    """`reviews, run 3 (not finished)`."""
    name = terminal.run_name(run.workflow, run.run)
    return name if run.complete else f"{name} (not finished)"


def _took_words(run: RunSummary, usd_per_1000_rows: float | None) -> str:
    """`run 3: $0.40, $2.00 for 1,000 rows, calls of 800 ms (p95 2,000 ms)`."""
    times = run.timing_ms.duration
    words = [
        terminal.cost_of(run.calls.cost),
        _known(usd_per_1000_rows, ", ${:,.4f} for 1,000 rows"),
        _known(times.p50, ", calls of {:,.0f} ms"),
        _known(times.p95, " (p95 {:,.0f} ms)"),
    ]
    return f"run {run.run}: {''.join(words)}"


def agreement_rows(name: str, agreement: Agreement) -> Iterator[tuple[object, ...]]:
    """Yields the line of a stage in a table of agreements, and a line for each of its fields."""
    yield (
        name,
        agreement.rows,
        agreement.equal,
        _known(agreement.share, "{:.1%}"),
        agreement.alone,
        _known(agreement.drift, "{:.4g}"),
        _known(agreement.p95, "{:.4g}"),
    )
    for field, inner in agreement.fields.items():
        yield from agreement_rows(f"{name}.{field}", inner)


def _known(value: float | None, form: str) -> str:
    """Writes a figure; nothing for an unknown one."""
    return "" if value is None else form.format(value)


def changed_lines(report: RunComparison, more: str = "--limit N, --html FILE") -> Iterator[str]:
    """Yields what changed in the first rows, and rows of one run alone."""
    text = partial(value_diff, differing=partial(as_text, width=300), shown=plain, most=1_000)
    rows = [
        (str(change.id), change.field, text(change.before, change.now)) for change in report.changed
    ]
    yield ""
    if rows:
        yield terminal.table(("row", "field", "difference"), rows)
    shown = len({change.id for change in report.changed})
    if shown < report.rows["changed"]:
        yield f"{shown:,} of {report.rows['changed']:,} changed rows. More of them: {more}"
    for ids, run in ((report.only_first, report.first), (report.only_second, report.second)):
        if ids:
            yield f"Only in run {run['run']}: {plain(', '.join(map(str, ids)))}"


_REMEDY = "Name a file elsewhere, or make room there."

PAGE_ROWS = 2_000
"""Changed rows of a page, at most."""

PAGE_TEXT = 4_000
"""Characters of a value from its first difference on, at most."""

# Nothing may be loaded or sent: what models wrote is shown, whatever it is.
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>agac compare</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em } table { border-collapse: collapse; width: 100% }
th, td { border-top: 1px solid #8888; padding: .3em; text-align: left; vertical-align: top; overflow-wrap: anywhere }
td:last-child { white-space: pre-wrap } pre { overflow-x: auto }
del { background: light-dark(#fdd, #612) } ins { background: light-dark(#dfd, #152); text-decoration: none }
</style><h1>agac compare</h1>
"""  # noqa: E501


class ComparePage:
    """Takes changed rows one by one: the first are for the page, which opens offline, more for a
    csv file next to it.

    Raises UsageError if one of the files exists, unless `force`."""

    def __init__(self, path: Path, *, force: bool) -> None:
        self._files = path.with_suffix(".html"), path.with_suffix(".csv")
        for file in self._files:
            refuse_target(file, {}, "compare.html", force=force)
        self._rows = 0
        self._table = list[str]()
        self._csv = AtomicFile(self._files[1], _REMEDY)
        click.get_current_context().call_on_close(self._csv.abort)
        self._writer = csv.writer(SimpleNamespace(write=self._csv.append))
        self._writer.writerow(("id", "field", "before", "now"))

    def add(self, changes: list[FieldChange]) -> None:
        """Takes a row: of long values the page has the parts that differ, the csv file has them
        whole."""
        self._rows += 1
        for change in changes:
            if self._rows > PAGE_ROWS:
                self._writer.writerow(map(safe_cell_text, change))
            else:
                diff = value_diff(change.before, change.now, as_html, _in_html, PAGE_TEXT)
                row_id = _in_html(str(change.id))
                self._table.append(f"<tr><td>{row_id}<td>{_in_html(change.field)}<td>{diff}\n")

    def written(self, lines: Iterable[str]) -> Iterator[Path]:
        """Writes the page, which begins with these lines, and the csv file if there are more rows.
        Yields both paths."""
        page, more = self._files
        if self._rows > PAGE_ROWS:
            self._csv.commit()
            what = counted(self._rows - PAGE_ROWS, "more changed row")
            self._table.append(f'<tr><td colspan=3><a href="./{quote(more.name)}">{what}</a>')
            yield more
        shown = f"<pre>{_in_html(chr(10).join(lines))}</pre>\n"
        head = f"{_HEAD}{shown}<table><tr><th>Row<th>Field<th>Difference\n"
        write_whole(page, f"{head}{''.join(self._table)}</table>\n", _REMEDY)
        yield page


def _in_html(text: str) -> str:
    return html.escape(plain(text))


@click.command(
    name="try",
    help=(
        "Ask a changed stage for a sample of rows, beside the stored answers of the version before."
    ),
)
@click.option("-a", "--workflow", metavar="NAME", required=True, help="The workflow.")
@click.option(
    "--stage", metavar="STAGE", required=True, help="The stage to try, as it is in the files."
)
@click.option("--prompt", type=click.Path(dir_okay=False), metavar="FILE", help="Try this prompt.")
@click.option("-m", "--model", metavar="MODEL", help="Try this model.")
@main.tool_stubs_option
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Ask N random rows (default 30), with --within at most.",
)
@click.option(
    "--within",
    metavar="PERCENT",
    help="Ask until the share of altered rows is known this closely: 1%.",
)
@click.option(
    "--seed", type=int, default=0, metavar="N", help="Random seed of the sample; default 0."
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Show so many changed rows.",
)
@main.budget_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of the price.")
@main.json_option
@click.pass_obj
def try_(settings: main.Globals, /, workflow: str, stage: str, as_json: bool, **given: Any) -> int:
    """Exit 0 all rows answered, 1 stopped, 2 usage, 3 some rows failed, 4 stopped at a limit, 130
    interrupted."""
    from agac.cli.run import read_budget

    given["budget"] = read_budget(given["budget"])
    if given["within"]:
        given["within"] = percentage(given["within"], "--within")
    report = main.long_running(api.trial)(
        workflow,
        stage,
        **given,
        project=settings.project_dir,
        progress=not settings.quiet,
        confirm=terminal.confirmed,
        handle_signals=True,
    )
    terminal.print_report(report, trial_lines, as_json=as_json)
    return report.exit_code


def percentage(text: str, flag: str) -> float:
    """`1%` as 0.01."""
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise click.UsageError(f"{flag} {text}: give a percentage, such as 1%") from None


def trial_lines(report: StageTrial) -> Iterator[str]:
    """Yields what a trial changed, and what the rest would cost."""
    compared = report.comparison
    altered = report.altered
    yield from comparison_lines(compared)
    yield ""
    if report.failed:
        yield (
            f"Failed: {counted(report.failed, 'row')}; look at them with: agac inspect "
            f"{compared.second['run']}"
        )
    missing = report.tried - report.failed - compared.rows["both"]
    if missing:
        yield (
            f"Not compared: {counted(missing, 'row')}: left the input, without stored "
            "results upstream, or not asked"
        )
    if report.stopped:
        yield f"Stopped: {report.stopped}"
    if altered is not None:
        rest = "none are left to ask"
        if report.rest:
            cost = terminal.price(report.rest_usd, simulated=report.simulated)
            rest = f"the rest would cost {cost}"
        yield (
            f"Alters {altered.middle:.1%} ± {100 * altered.reach:.1f} of the "
            f"{report.rows:,} rows; {rest}"
        )
    yield from changed_lines(compared, "--limit N")


@click.command(
    name="eval",
    help="Hold answers of models against the labels of rows: accuracy, classes, cost, time.",
)
@click.option("-a", "--workflow", metavar="NAME", required=True, help="The workflow.")
@click.option(
    "-m", "--model", "models", metavar="MODEL", multiple=True, help="Ask this model; repeatable."
)
@click.option("--stage", metavar="STAGE", help="The stage to judge, where several have `expect`.")
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Ask N random rows of those with a label."
)
@click.option(
    "--seed", type=int, default=0, metavar="N", help="Random seed of the sample; default 0."
)
@click.option(
    "--min", "least", metavar="FIGURE=SHARE", multiple=True,
    help=(
"Fail where the interval of accuracy, agreement, precision.CLASS or recall.CLASS "
"begins lower; repeatable."
),
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of the price.")
@main.json_option
@click.pass_obj
def eval(  # noqa: A001 - the command's name
    settings: main.Globals, /, workflow: str, least: tuple[str, ...], as_json: bool, **given: Any
) -> int:  # fmt: skip
    """Exit 0 judged, 1 stopped, 2 usage, 3 below --min, or without it some rows failed, 4 stopped
    at a limit, 130 interrupted."""
    minimum = {}
    try:
        for figure in least:
            name, _, share = figure.rpartition("=")
            minimum[name] = float(share)
    except ValueError:
        raise click.UsageError(
            f"--min {' '.join(least)}: give a figure and a share, such as accuracy=0.9"
        ) from None
    report = main.long_running(api.evaluate)(
        workflow,
        minimum=minimum,
        **given,
        project=settings.project_dir,
        progress=not settings.quiet,
        confirm=terminal.confirmed,
        handle_signals=True,
    )
    terminal.print_report(report, evaluation_lines, as_json=as_json)
    return report.exit_code


def _interval(interval: Interval | None, sign: str = "") -> str:
    """`81.7% (70.1% to 89.4%)`; with the sign `+` also above 0."""
    if interval is None:
        return ""
    low = f"{interval.low:{sign}.1%}"
    return f"{interval.middle:{sign}.1%} ({low} to {interval.high:{sign}.1%})"


EVALUATION_COLUMNS = (
    "model",
    "run",
    "judged",
    "failed",
    "accuracy",
    "to the first",
    "replicas agree",
    "1,000 rows",
    "calls",
)


def evaluation_lines(report: Evaluation) -> Iterator[str]:
    """Yields how well the answers of models fit the labels: a table of all, then each by class."""
    what = f"the field {report.field} of its answers" if report.field else "its answers"
    label = plain(report.label)
    yield f"{report.workflow}, stage {report.stage}: {what} beside the labels in {label}"
    left = ""
    if report.unlabelled:
        left = f"; {counted(report.unlabelled, 'row')} without a label left out"
    yield f"{report.asked:,} of {counted(report.rows, 'row')} with a label asked{left}\n"
    yield terminal.table(EVALUATION_COLUMNS, [_model_cells(model) for model in report.models])
    for model in report.models:
        yield from _class_lines(model, report.asked)
    yield from (f"Below --min: {line}" for line in report.missed)


def _model_cells(model: ModelQuality) -> list[object]:
    """Makes the line of a model in the table of an evaluation."""
    return [
        model.model,
        model.run,
        model.judged,
        model.failed,
        _interval(model.accuracy),
        _interval(model.difference, "+"),
        _interval(model.agreement),
        _known(model.usd_per_1000_rows, "${:,.4f}"),
        _known(model.seconds_per_1000_rows, "{:,.1f} s"),
    ]


def _class_lines(model: ModelQuality, asked: int) -> Iterator[str]:
    """Yields which answers a model gave for each label, with precision and recall."""
    simulated = " (its dollars are simulated)" if model.simulated else ""
    yield f"\n{model.model}{simulated}"
    missing = asked - model.judged
    if missing:
        why = model.stopped or "a guard kept them, or they wait for batches"
        yield f"Not judged: {counted(missing, 'row')}: {why}"
    rows = []
    for label, counts in model.confusion.items():
        precision = _interval(model.precision[label])
        recall = _interval(model.recall[label])
        rows.append((label, *counts.values(), precision, recall))
    if not rows:
        yield "  no classes"
        return
    answers = next(iter(model.confusion.values()))
    yield terminal.table(("label", *answers, "precision", "recall"), rows)


def diff_lines(report: DiffReport) -> Iterator[str]:
    """Yields what changed, workflow by workflow, and what a run would cost."""
    yield f"Compared with {version_words(report.against)}"
    yield from map(str, report.problems)
    if report.beside:
        yield from ("", "Outside of workflows")
        yield from _indented(change_words(change, as_text, plain) for change in report.beside)
    for diff in report.workflows:
        yield from ("", f"{diff.workflow}: {diff.how}")
        yield from _indented(map(str, diff.problems))
        yield from _indented(change_words(change, as_text, plain) for change in diff.changes)
        if diff.plan:
            yield from _indented([counts_words(diff.plan, stages=True)])
    if report.unchanged:
        yield from ("", f"Unchanged: {', '.join(report.unchanged)}")


def _indented(texts: Iterable[str]) -> Iterator[str]:
    """Yields the lines of texts, indented."""
    for text in texts:
        for line in split_lines(plain(text)):
            yield f"  {line}"
