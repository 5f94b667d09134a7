"""Prints how a run ended: its rows and costs, its files, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agac.cli import terminal
from agac.cli.run_batches import batch_lines, next_lines, retrieved_line, undecided_lines
from agac.cli.run_counts import (
    agreement_lines,
    call_time,
    calls_line,
    conversation_lines,
    level_line,
    review_lines,
    serving_lines,
    timing_line,
)
from agac.cli.run_errors import error_lines, limit_lines
from agac.core.errors import ExitCode
from agac.core.text import duration, plain
from agac.core.types import Shard, counted

if TYPE_CHECKING:
    from agac.api.invocation_summary import InvocationSummary
    from agac.api.report import RunReport
    from agac.engine.invocation import Scope
    from agac.engine.summary import RunSummary


def print_run(report: RunReport, command: str, *, quiet: bool, scope: Scope | None = None) -> None:
    """Prints how a run ended: its rows and cost, its files, and what to do next.

    `command` resumes it; `scope` has the stages that were selected; `quiet` leaves all but
    faults out.
    """
    say_stop(report, command)
    if not quiet:
        _print_report(report, command, scope)
    for note in (*undecided_lines(report.invocation_record), *report.empty):
        terminal.say(str(note))
    if report.not_written is not None:
        terminal.say_error(
            report.not_written.message, str(report.not_written.remedy), word="not written"
        )


def _print_report(report: RunReport, command: str, scope: Scope | None) -> None:
    summary = report.record
    invocation = report.invocation_record
    terminal.print_lines(map(retrieved_line, invocation.batches.ingested))
    terminal.print_text("\n".join(summary_lines(report, command, scope)))
    if report.files:
        terminal.print_text(_results_line(report.files))
        terminal.print_lines(held_for_people_lines(report))
    if "shard" in summary.request.selection:
        terminal.print_text(terminal.shard_line(summary.complete, report.go_on))
    terminal.print_lines(guard_lines(summary, report.files))
    terminal.print_lines(_replaced_lines(report))
    terminal.print_lines(batch_lines(invocation))
    stopped = report.stopped is not None
    terminal.print_lines(next_lines(summary, invocation, command, stopped=stopped))


def _results_line(files: Sequence[Path]) -> str:
    """`Results: output/reviews/results.jsonl   (also: errors.jsonl, summary.json)`."""
    first, *others = files
    names = [
        file.name if file.parent == first.parent else terminal.from_here(file) for file in others
    ]
    also = f"   (also: {', '.join(names)})" if names else ""
    return f"Results: {terminal.from_here(first)}{also}"


def _replaced_lines(report: RunReport) -> Iterator[str]:
    """Yields which results of another run were replaced, and which edited files were kept."""
    before = report.replaced
    if before:
        run = f"run {before['run']} ({plain(before['input'])})"
        yield f"They replace the results of {run}. Restore those with: {before['again']}"
    if not report.edited:
        return
    edited = ", ".join(file.name for file in report.edited)
    copies = ", ".join(file.name for file in report.copies)
    if len(report.edited) == 1:
        yield f"{edited} was not as agac left it; that version is kept as {copies}"
    else:
        yield f"{edited} were not as agac left them; those versions are kept as {copies}"


def say_stop(report: RunReport, command: str) -> None:
    """Says why a run did not go to its end: a limit, an error, or Ctrl-C."""
    if report.stop in ("limit", "loss"):
        for line in limit_lines(report, command):
            terminal.say(line)
    elif report.stopped is not None:
        terminal.say_error(
            report.stopped,
            f"Nothing is lost. Fix the problem, then resume with: {command}",
            word="stopped",
        )
    elif report.exit_code is ExitCode.INTERRUPTED:
        for line in _interrupted_lines(report, command):
            terminal.say(line)


def _interrupted_lines(report: RunReport, command: str) -> Iterator[str]:
    invocation = report.invocation_record
    cancelled = invocation.unanswered.given_up
    if cancelled:
        yield counted(
            cancelled,
            "call in flight was cancelled. It may be billed, and the next run sends it again.",
            "calls in flight were cancelled. They may be billed, and the next run "
            "sends them again.",
        )
    yield f"Interrupted; every answer is stored. {terminal.sentence(finished_words(report))}"
    last = invocation.waiting_for
    if last:
        yield f"  The last call brought no answer: {terminal.first_line(last.message)}"
    yield f"  Resume with: {command}"


def finished_words(report: RunReport) -> str:
    """`719 of 2,400 rows are finished, 1,681 are open`: of all that are selected, where that is
    known."""
    rows = report.rows
    selected = report.invocation_record.notes.rows_selected
    ended = rows.total - rows.open
    total = rows.total
    about = ""
    if selected is not None:
        total = selected.rows
        about = "" if selected.exact else "about "
    are = "is" if ended == 1 else "are"
    return (
        f"{ended:,} of {about}{counted(total, 'row')} {are} finished, {about}{total - ended:,} open"
    )


def read_words(report: RunReport) -> str:
    """`2,400 rows`, or `1,024 of 2,400 rows read` where the run stopped before it had read all of
    them."""
    total = report.rows.total
    selected = report.invocation_record.notes.rows_selected
    if selected is None:
        return str(counted(total, "row"))
    about = "" if selected.exact else "about "
    return f"{total:,} of {about}{counted(selected.rows, 'row')} read"


def summary_lines(report: RunReport, command: str, scope: Scope | None) -> Iterator[str]:
    """Yields the summary of a run: rows, stages, calls, costs, times, open rows, errors."""
    summary = report.record
    invocation = report.invocation_record
    yield f"{_title(report)}: {read_words(report)}, {terminal.row_words(summary.rows)}"
    short = summary.odd.short_records
    if short:
        yield f"  {counted(short, 'record')} with fewer fields than the header"
    yield from map(level_line, summary.levels)
    if invocation.continued:
        yield _resumed_line(invocation)
    yield from ("", _stage_table(summary), "")
    aliases = [stage.alias for stage in summary.stages if stage.alias is not None]
    by_name = {alias["written"]: alias for alias in aliases}
    yield from map(terminal.short_name_line, by_name.values())
    yield from agreement_lines(summary.stages)
    yield from conversation_lines(summary)
    yield from review_lines(summary)
    if invocation.notes.not_recorded:
        yield terminal.sentence(invocation.notes.not_recorded)
    yield from _call_lines(summary, invocation)
    yield from unselected_lines(summary, invocation, command, scope)
    yield from error_lines(report, command)


def _title(report: RunReport) -> str:
    """`reviews, shard 1/4, run 3`, or the name of a job."""
    if report.job is not None:
        return report.job.alias
    summary = report.record
    shard = summary.request.selection.get("shard")
    part = f", shard {Shard(*shard)}" if shard else ""
    return f"{summary.workflow}{part}, run {summary.run}"


def _stage_table(summary: RunSummary) -> str:
    """Lays out a table of the stages with how many of their tasks had each outcome."""
    stages = summary.stages
    outcomes = terminal.outcome_names(terminal.TASK_OUTCOMES, [stage.tasks for stage in stages])
    rows = []
    for stage in stages:
        counts = [getattr(stage.tasks, outcome) for outcome in outcomes]
        rows.append([stage.name, stage.model, *counts])
    return terminal.table(["stage", "model", *outcomes], rows)


def _call_lines(summary: RunSummary, invocation: InvocationSummary) -> Iterator[str]:
    """Yields the calls of a run with their cost and times, and which calls were spared."""
    calls = invocation.calls
    kinds = (
        (calls.retries, "retry", "retries"),
        (calls.repairs, "re-ask", ""),
        (calls.fallbacks, "fallback", ""),
    )
    repeated = [counted(count, one, many) for count, one, many in kinds if count]
    after = [f"{', '.join(repeated)} in this invocation"] if repeated else []
    yield calls_line(summary.calls, after=after)
    timing = timing_line(summary)
    if calls.count and timing:
        seconds = summary.times.duration_s
        elapsed = call_time(1000 * seconds) if seconds < 60 else duration(seconds)
        yield f"{timing}; elapsed: {elapsed}"
    yield from serving_lines(summary.serving)
    if invocation.tasks.collapsed > 0.01 * max(1, invocation.rows.read):
        same = counted(invocation.tasks.collapsed, "task")
        had = "the same prompt as another task"
        yield f"Deduplicated: {same} had {had} and reused its answer"


def _resumed_line(invocation: InvocationSummary) -> str:
    """`Resumed: 3 rows were already finished; no calls were needed`."""
    calls = invocation.calls.count
    lost = invocation.lost_calls_at_most
    if invocation.complete:
        lost = min(lost, calls)  # the others had an answer
    words = []
    if invocation.rows.unchanged:
        rows = invocation.rows.unchanged
        words.append(counted(rows, "row was already finished", "rows were already finished"))
    if not calls and invocation.complete:
        words.append("no calls were needed")
    if lost:
        again = counted(
            lost, "call may be billed and is sent again", "calls may be billed and are sent again"
        )
        words.append(f"the previous invocation did not finish: up to {again}")
    return f"Resumed{': ' if words else ''}{'; '.join(words)}"


def guard_lines(summary: RunSummary, files: Sequence[Path]) -> Iterator[str]:
    """Yields how many rows guards dropped and skipped, at which stages."""
    from agac.data.sinks import FILTERED  # loads the sinks

    dropped = [_rows_at(stage.tasks.dropped, stage.name) for stage in summary.stages]
    repeated = summary.odd.repeated_ids
    if repeated is not None and repeated.rows:
        rule = f"on_duplicate_id: {repeated.on_duplicate_id}"
        dropped.insert(0, f"{counted(repeated.rows, 'row')} by {rule}")
    if any(dropped):
        reasons = [terminal.from_here(file) for file in files if file.name == FILTERED]
        listed = "".join(f"; why, for each: {name}" for name in reasons)
        yield f"Dropped: {', '.join(filter(None, dropped))}{listed}"
    skipped = [_rows_at(stage.tasks.skipped, stage.name) for stage in summary.stages]
    if any(skipped):
        yield f"Skipped: {', '.join(filter(None, skipped))}"


def _rows_at(rows: int, stage: str) -> str:
    """`3 rows at classify`; empty for none."""
    return f"{counted(rows, 'row')} at {stage}" if rows else ""


def held_for_people_lines(report: RunReport) -> Iterator[str]:
    """Yields how many rows the results hold while other rows wait for people."""
    if report.stopped is not None or report.invocation_record.complete or not report.files:
        return
    rows = report.rows
    ended = rows.done + rows.skipped + rows.failed
    whole = counted(rows.total - rows.dropped, "row")
    yield (
        f"{report.files[0].name} now holds {ended:,} of {whole}; the others follow "
        "once people have decided"
    )


def unselected_lines(
    summary: RunSummary, invocation: InvocationSummary, command: str, scope: Scope | None
) -> Iterator[str]:
    """Yields how many rows wait for stages that were not selected, and the command that
    finishes them."""
    stages = summary.stages
    if scope is not None and all(scope.may_ask(stage.name) for stage in stages):
        return
    # other open rows wait for people or batches
    for_people = sum(stage.review.waiting for stage in stages if stage.review is not None)
    waiting = invocation.rows.parked - invocation.batches.rows_in_batches - for_people
    if waiting <= 0:
        return
    names = _unselected(summary, scope)
    where = "a stage"
    if names:
        where = f"stage{'' if len(names) == 1 else 's'} {' and '.join(names)}"
    rows = counted(waiting, "row waits", "rows wait")
    them = "it" if waiting == 1 else "them"
    whole = terminal.without(command, "--stage", "--from", "--until")
    yield (
        f"Open: {rows} for {where}, which this command did not select. Finish {them} with: {whole}"
    )


def _unselected(summary: RunSummary, scope: Scope | None) -> list[str]:
    """Finds the stages that were not selected and to which more rows came than went through."""
    names = []
    arrived = summary.rows.done + summary.rows.open
    arrived += sum(stage.tasks.failed for stage in summary.stages)
    for stage in summary.stages:
        passed = stage.tasks.done + stage.tasks.reused
        is_short = arrived > passed + stage.tasks.failed
        if scope is not None and is_short and not scope.may_ask(stage.name):
            names.append(stage.name)
        arrived = passed
    return names
