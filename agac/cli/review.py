"""`agac review`, `agac fix` and `agac calibrate`: decisions of people about results."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.commands import CommandGroup
from agac.cli.compare import agreement_rows, percentage
from agac.core.errors import ExitCode, UsageError
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.api import (
        CalibrateReport,
        DecideReport,
        Decision,
        FixReport,
        ReviewItem,
        ReviewReport,
    )

KEYS = {"a": "approve", "e": "edit", "r": "reject", "d": "redo", "s": "skip", "q": "quit"}

file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
reviewer_option = click.option(
    "--reviewer", "who", metavar="NAME", help="Who decides; else AGAC_REVIEWER, or git's name."
)
queue_options = main.in_order(
    click.option("-a", "--workflow", metavar="NAME", help="Only of this workflow."),
    click.option("--stage", metavar="STAGE", help="Only of this review stage."),
)


@click.group(cls=CommandGroup, help="Decide on results that wait for people.")
def review() -> None: ...


@review.command(
    help="Show how many rows wait, what was decided, and how far people and the model agree."
)
@click.option("-a", "--workflow", metavar="NAME", help="Only of this workflow.")
@main.json_option
@click.pass_obj
def status(settings: main.Globals, workflow: str | None, *, as_json: bool) -> None:
    report = api.review_report(settings.project_dir, workflow=workflow)
    terminal.print_report(report, status_lines, as_json=as_json)


def status_lines(report: ReviewReport) -> Iterator[str]:
    """Yields how far people and the model agree at each stage."""
    for stage in report.stages:
        states = [f"{count:,} {state}" for state, count in stage.states.items()]
        yield (
            f"{stage.workflow}, {stage.stage}: {', '.join(states)}; {stage.rejected:,} rejected. "
            "People and the model:"
        )
        left = stage.states.get("waiting", 0) + stage.states.get("conflict", 0)
        if stage.is_gone and left:
            yield (
                "  No file has this stage any more, so no run takes decisions on "
                f"{counted(left, 'row')} up. Put the"
            )
            yield "  stage back to decide on them; `agac gc` drops them with their run."
        kinds = {"asked blindly": stage.blind, "sample": stage.sample, "others": stage.others}
        table = list[tuple[object, ...]]()
        for name, agreement in kinds.items():
            if agreement.rows:
                table += agreement_rows(name, agreement)
        yield terminal.table(("decided", "rows", "equal", "share", "in one", "drift", "p95"), table)
    if not report.stages:
        yield "No row came to a review yet."


@review.command(
    help="Write what waits into a csv, xlsx or jsonl FILE, to be filled in and imported."
)
@file_argument
@queue_options
@click.option("--force", is_flag=True, help="Replace the file.")
@main.json_option
@click.pass_obj
def export(settings: main.Globals, /, file: Path, *, as_json: bool, **which: Any) -> None:
    written = api.review_export(file, **which, project=settings.project_dir)
    if as_json:
        terminal.print_json({"file": str(file), "rows": written})
    else:
        wrote = f"Wrote {counted(written, 'review')} to {terminal.from_here(file)}"
        terminal.print_text(f"{wrote}. Fill in decision (approve,")
        terminal.print_text(
            f"edit, reject, redo), value, comment and reviewer, then: agac review import {file}"
        )


@review.command(
    name="import",
    help="Take the decisions of a FILE that `agac review export` wrote. Again is harmless.",
)
@file_argument
@reviewer_option
@click.option(
    "--partial", "some", is_flag=True, help="Take the good lines where others have a problem."
)
@click.option("--force", is_flag=True, help="Override what others decided.")
@main.json_option
@click.pass_obj
def import_(settings: main.Globals, /, file: Path, *, as_json: bool, **how: Any) -> int:
    """Exit 0 taken, 2 a line has a problem: without --partial nothing was taken."""
    report, problems = api.review_import(file, **how, project=settings.project_dir)
    if as_json:
        terminal.print_json(report.as_json() | {"problems": problems})
    else:
        for line in problems:
            terminal.say_error(line)
        if problems and not how["some"]:
            terminal.print_text("Nothing was taken.")
        else:
            terminal.print_lines(decided_lines(report))
    return ExitCode.USAGE if problems else ExitCode.DONE


def decided_lines(report: DecideReport) -> Iterator[str]:
    """Yields what became of decisions."""
    yield (
        f"{counted(report.taken, 'decision')} taken, {report.same:,} known already; `agac "
        "run` goes on with them"
    )
    if report.stale:
        yield (
            f"{counted(report.stale, 'decision')} not applied: the answer has changed "
            "since; export it again"
        )
    if report.conflicts:
        yield (
            f"In dispute: {counted(len(report.conflicts), 'row')}; --force overrides what "
            "others decided"
        )


@review.command(
    name="next", help="Decide on one row after the other at the terminal, the least sure first."
)
@queue_options
@reviewer_option
@click.pass_obj
def next_(settings: main.Globals, /, who: str | None, **which: Any) -> None:
    """Keys: a approve, e edit in $EDITOR, r reject, d redo (the model answers again), s skip, q
    quit."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        remedy = (
            "Elsewhere: agac review export decisions.csv, and agac review import decisions.csv."
        )
        raise UsageError("agac review next asks at a terminal", remedy=remedy)
    project = settings.project_dir
    who = api.reviewer(who, project=project)
    for item, waiting in _queue(project, who, which):
        if _decide_on(item, waiting, who, project) == "quit":
            break
    waiting = api.review_queue(project, limit=1, **which).waiting
    terminal.print_text(
        f"{counted(waiting, 'row waits', 'rows wait')}. `agac run` goes on with what was decided."
    )


def _decide_on(item: ReviewItem, waiting: int, who: str, project: Path | None) -> str:
    """Shows a review until a decision on it is taken, or it is skipped. Returns the word of the key
    that was pressed."""
    keys = {key: word for key, word in KEYS.items() if word in (*item.choices, "skip", "quit")}
    while True:
        terminal.print_lines(item_lines(item, waiting, keys))
        word = keys[_pressed(keys)]
        decision = _decision(item, word, who)
        if decision is None:
            return word
        problems = api.decide(project, [decision]).problems
        for problem in problems:
            terminal.say_error(problem.message)
        if not problems:
            return word


def _pressed(keys: Collection[str]) -> str:
    """Waits until one of these keys is pressed."""
    while True:
        for sign in click.getchar().lower():
            if sign in keys:
                return sign


def _queue(
    project: Path | None, who: str, which: dict[str, Any]
) -> Iterator[tuple[ReviewItem, int]]:
    """Yields what waits and this person has not decided on, each with how many rows wait; disputes
    come last."""
    for state in ("waiting", "conflict"):
        after = None
        while (
            page := api.review_queue(
                project, state=state, after=after, reviewer=who, limit=1, **which
            )
        ).items:
            yield page.items[0], page.waiting
            after = page.items[0].id


def item_lines(item: ReviewItem, waiting: int, keys: dict[str, str]) -> Iterator[str]:
    """Yields a review, and the keys that decide on it."""
    yield f"\n{item.workflow}, {item.stage}: row {item.row_id!r}   ({waiting:,} wait)"
    fields = islice(item.shown.items(), MAX_SHOWN)
    shown = [(_shown(name), _shown(value)) for name, value in fields]
    yield from islice(terminal.record_lines([shown], cut=False), 1, None)
    yield from _more(len(item.shown), "field")
    earlier = item.why.get("redo", ())
    for answer in earlier[:MAX_SHOWN]:
        yield f"before: {_shown(answer['answer'])}; asked again: {_shown(answer['comment'])}"
    yield from _more(len(earlier), "answer")
    answer = "(asked without the answer)" if item.blind else _shown(item.answer)
    yield f"{item.edit}: {answer}"
    decisions = item.decisions if item.state == "conflict" else ()
    yield from map(_decision_line, decisions[:MAX_SHOWN])
    yield from _more(len(decisions), "decision")
    yield "  ".join(f"[{key}] {word}" for key, word in keys.items())


def _decision_line(decision: Decision) -> str:
    """`kim: edit "good" (a comment)`."""
    line = f"{decision.reviewer}: {decision.choice}"
    if decision.value is not None:
        line += f" {_shown(decision.value)}"
    if decision.reason:
        line += f" ({_shown(decision.reason)})"
    return line


MAX_SHOWN = 100
"""Fields, earlier answers and decisions of a review that are shown at a terminal, at most."""


def _shown(value: Any) -> str:
    """Writes a value; a terminal gets the beginning of a long one."""
    return terminal.shortened(
        terminal.value_text(value), whole="in the file of `agac review export`"
    )


def _more(count: int, what: str) -> Iterator[str]:
    """Says how many of these are not shown, if any."""
    if count > MAX_SHOWN:
        yield (
            f"  and {counted(count - MAX_SHOWN, f'more {what}')}: see the file of `agac "
            "review export`"
        )


def _decision(item: ReviewItem, choice: str, who: str) -> Decision | None:
    """Asks for the value and the reason of a decision; None if it is not taken."""
    if choice in ("skip", "quit"):
        return None
    value: Any = None
    if choice == "edit":
        value = _edited(item)
        if value is None:
            return None
    reason = ""
    if choice != "approve":
        reason = click.prompt("Reason", default="", show_default=False)
    return api.Decision(item.id, choice, value, reason, who, "terminal", item.seen)


def _edited(item: ReviewItem) -> Any:
    """Opens an answer in the user's editor, and returns the new one; None if there is none."""
    text = ""
    if isinstance(item.answer, str):
        text = item.answer
    elif item.answer is not None:
        text = json.dumps(item.answer, ensure_ascii=False, indent=2)
    typed = click.edit(text, extension=".json" if item.schema else ".txt")
    if typed is None or item.schema is None:
        return typed
    try:
        return json.loads(typed)
    except ValueError as error:
        terminal.say_error(f"it is no JSON: {error}")
        return None


@click.command(
    help=(
        "Set the result that a stage has for a row by hand: it is checked, kept, and "
        "marked as `manual`."
    )
)
@click.argument("run", metavar="RUN")
@click.argument("row", metavar="ROW")
@click.option("--stage", metavar="STAGE", required=True, help="The stage.")
@click.option(
    "--value", type=click.File(), metavar="FILE", required=True, help="A file with it; - for stdin."
)
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept with it.")
@reviewer_option
@main.json_option
@click.pass_obj
def fix(settings: main.Globals, /, value: TextIO, *, as_json: bool, **given: Any) -> None:
    if not given["reason"]:
        raise click.UsageError("--reason is empty: say why")
    report = api.fix(**given, value=value.read(), project=settings.project_dir)
    terminal.print_report(report, fix_lines, as_json=as_json)


def fix_lines(report: FixReport) -> Iterator[str]:
    what = f"stage {report.stage} of row {report.row!r} is set by hand, by {report.reviewer}"
    yield f"{report.workflow}, run {report.run}: {what}"
    yield f"The next run puts it in, and runs what follows from it again: {report.go_on}"


@click.command(
    help=(
        "Find the threshold of a review, or of an escalation, that meets a target error, "
        "from decisions."
    )
)
@click.argument("stage", metavar="STAGE")
@click.option("-a", "--workflow", metavar="NAME", required=True, help="The workflow.")
@click.option(
    "--target", metavar="PERCENT", required=True, help="Of rows that pass so many may be wrong: 2%."
)
@click.option("--run", metavar="RUN", help="Use the decisions about this run; else the last one.")
@main.json_option
@click.pass_obj
def calibrate(settings: main.Globals, /, target: str, *, as_json: bool, **given: Any) -> int:
    """Exit 0 found, 3 no threshold is known to meet the target: decide on more rows. Prints a diff
    for `git apply`."""
    report = api.calibrate(
        **given, target=percentage(target, "--target"), project=settings.project_dir
    )
    terminal.print_report(report, calibrate_lines, as_json=as_json)
    return report.exit_code


def calibrate_lines(report: CalibrateReport) -> Iterator[str]:
    """Yields what decisions say of a threshold, and the change of the file."""
    waits = ""
    if report.waiting:
        waits = f"; {counted(report.waiting, 'row')} without one, which counts as wrong"
    sample = f"{counted(report.decided, 'decision')} on the sample{waits}"
    yield f"{report.workflow}, run {report.run}, stage {report.stage}: {report.condition}; {sample}"
    if report.unapplied:
        yield f"{report.unapplied:,} decided, not applied yet: agac run -a {report.workflow}"
    for word, threshold in (("now", report.now), ("best", report.best)):
        if threshold is not None:
            low, middle, high = threshold.error
            wrong = f"wrong {middle:.1%} ({low:.1%} to {high:.1%}, confidence 95 %)"
            yield (
                f"{word}: {threshold.value:g}: {threshold.passing:,} rows pass, {wrong}; "
                f"{threshold.looked_at:.1%} are looked at"
            )
    if report.best is None:
        yield (
            f"No threshold is known to meet {report.target:.4g}. Where no answer is wrong "
            f"it takes {report.needed:,}"
        )
        yield (
            "decisions on the sample, else more: raise `sample:`, run, and decide with "
            "agac review next."
        )
    if report.diff:
        yield report.diff.rstrip("\n")
    elif report.best:
        yield "The condition stays as it is."
    else:
        yield ""
