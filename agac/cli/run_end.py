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
    """Print how a run ended: rows, cost, what to do next. `scope`: the stages that were
    selected."""
    summary = report.record
    invocation = report.invocation_record
    files = report.files
    say_stop(report, command)
    if not quiet:
        terminal.print_lines(map(retrieved_line, invocation.batches.ingested))
        terminal.print_text("\n".join(summary_lines(report, command, scope)))
        if files:
            names = (
                file.name if file.parent == files[0].parent else terminal.from_here(file)
                for file in files[1:]
            )
            also = f"   (also: {', '.join(names)})" if files[1:] else ""
            terminal.print_text(f"Results: {terminal.from_here(files[0])}{also}")
            terminal.print_lines(held_for_people_lines(report))
        if "shard" in summary.request.selection:
            terminal.print_text(terminal.shard_line(summary.complete, report.go_on))
        terminal.print_lines(guard_lines(summary, files))
        before = report.replaced
        if before:
            which = f"run {before['run']} ({plain(before['input'])})"
            terminal.print_text(
                f"They replace the results of {which}. Restore those with: {before['again']}"
            )
        edited = ", ".join(file.name for file in report.edited)
        if edited:
            one = len(report.edited) == 1
            copies = ", ".join(file.name for file in report.copies)
            was, kept = ("was", "that version is") if one else ("were", "those versions are")
            terminal.print_text(
                f"{edited} {was} not as agac left {'it' if one else 'them'}; {kept} kept as "
                f"{copies}"
            )
        terminal.print_lines(batch_lines(invocation))
        terminal.print_lines(
            next_lines(summary, invocation, command, stopped=report.stopped is not None)
        )
    for note in (*undecided_lines(invocation), *report.empty):
        terminal.say(str(note))
    if report.not_written is not None:
        terminal.say_error(
            report.not_written.message, str(report.not_written.remedy), word="not written"
        )


def say_stop(report: RunReport, command: str) -> None:
    invocation = report.invocation_record
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
        cancelled = invocation.unanswered.given_up
        if cancelled:
            one = "call in flight was cancelled. It may be billed, and the next run sends it again."
            many = (
                "calls in flight were cancelled. They may be billed, and the next run "
                "sends them again."
            )
            terminal.say(counted(cancelled, one, many))
        terminal.say(
            f"Interrupted; every answer is stored. {terminal.sentence(finished_words(report))}"
        )
        last = invocation.waiting_for
        if last:
            terminal.say(f"  The last call brought no answer: {terminal.first_line(last.message)}")
        terminal.say(f"  Resume with: {command}")


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
    summary = report.record
    invocation = report.invocation_record
    stages = summary.stages
    shard = summary.request.selection.get("shard")
    part = f", shard {Shard(*shard)}" if shard else ""
    if report.job is not None:
        run = report.job.alias
    else:
        run = f"{summary.workflow}{part}, run {summary.run}"
    yield f"{run}: {read_words(report)}, {terminal.row_words(summary.rows)}"
    short = summary.odd.short_records
    if short:
        yield f"  {counted(short, 'record')} with fewer fields than the header"
    yield from map(level_line, summary.levels)
    if invocation.continued:
        yield _resumed_line(invocation)
    names = terminal.outcome_names(terminal.TASK_OUTCOMES, [stage.tasks for stage in stages])
    counts = [
        [stage.name, stage.model, *(getattr(stage.tasks, name) for name in names)]
        for stage in stages
    ]
    yield from ("", terminal.table(["stage", "model", *names], counts), "")
    aliases = [stage.alias for stage in stages if stage.alias is not None]
    yield from map(terminal.short_name_line, {one["written"]: one for one in aliases}.values())
    yield from agreement_lines(stages)
    yield from conversation_lines(summary)
    yield from review_lines(summary)
    if invocation.notes.not_recorded:
        yield terminal.sentence(invocation.notes.not_recorded)
    words = (
        (invocation.calls.retries, "retry", "retries"),
        (invocation.calls.repairs, "re-ask", ""),
        (invocation.calls.fallbacks, "fallback", ""),
    )
    extra = [counted(count, one, many) for count, one, many in words if count]
    yield calls_line(
        summary.calls, after=[f"{', '.join(extra)} in this invocation"] if extra else ()
    )
    timing = timing_line(summary)
    if invocation.calls.count and timing:
        lasted = summary.times.duration_s
        yield f"{timing}; elapsed: {call_time(1000 * lasted) if lasted < 60 else duration(lasted)}"
    yield from serving_lines(summary.serving)
    if invocation.tasks.collapsed > 0.01 * max(1, invocation.rows.read):
        same = counted(invocation.tasks.collapsed, "task")
        had = "the same prompt as another task"
        yield f"Deduplicated: {same} had {had} and reused its answer"
    yield from unselected_lines(summary, invocation, command, scope)
    yield from error_lines(report, command)


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
    from agac.data.sinks import FILTERED  # loads the sinks

    listed = "".join(
        f"; why, for each: {terminal.from_here(file)}" for file in files if file.name == FILTERED
    )
    dropped = [(stage.name, stage.tasks.dropped) for stage in summary.stages]
    skipped = [(stage.name, stage.tasks.skipped) for stage in summary.stages]
    repeated = summary.odd.repeated_ids
    words = [f"{counted(rows, 'row')} at {name}" for name, rows in dropped if rows]
    if repeated is not None and repeated.rows:
        by_rule = f"by on_duplicate_id: {repeated.on_duplicate_id}"
        words.insert(0, f"{counted(repeated.rows, 'row')} {by_rule}")
    if words:
        yield f"Dropped: {', '.join(words)}{listed}"
    words = [f"{counted(rows, 'row')} at {name}" for name, rows in skipped if rows]
    if words:
        yield f"Skipped: {', '.join(words)}"


def held_for_people_lines(report: RunReport) -> Iterator[str]:
    """How many rows the results hold that were written while others wait for people."""
    if report.stopped is None and not report.invocation_record.complete and report.files:
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
    """How many rows wait, for which stages that were not selected, and the command that finishes
    them."""
    stages = summary.stages
    # other open rows wait for batches
    people = sum(stage.review.waiting for stage in stages if stage.review is not None)
    in_batches = invocation.batches.rows_in_batches
    waiting = max(0, invocation.rows.parked - in_batches - people)
    if not waiting or (scope is not None and all(scope.may_ask(stage.name) for stage in stages)):
        return
    names = _unselected(summary, scope)
    if names:
        where = f"stage{'' if len(names) == 1 else 's'} {' and '.join(names)}"
    else:
        where = "a stage"
    many = counted(waiting, "row waits", "rows wait")
    them = "it" if waiting == 1 else "them"
    whole = terminal.without(command, "--stage", "--from", "--until")
    yield (
        f"Open: {many} for {where}, which this command did not select. Finish {them} with: {whole}"
    )


def _unselected(summary: RunSummary, scope: Scope | None) -> list[str]:
    """Finds the stages that were not selected and to which more rows came than went through."""
    names = []
    come = summary.rows.done + summary.rows.open
    come += sum(stage.tasks.failed for stage in summary.stages)
    for stage in summary.stages:
        through = stage.tasks.done + stage.tasks.reused
        is_short = come > through + stage.tasks.failed
        if scope is not None and is_short and not scope.may_ask(stage.name):
            names.append(stage.name)
        come = through
    return names
