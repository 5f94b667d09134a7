"""`agac status` and `agac runs`: the newest runs, one run in full, all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.completion import named_here
from agac.cli.main import Globals, json_option, workflow_option
from agac.cli.run_counts import (
    agreement_lines,
    calls_line,
    conversation_lines,
    level_line,
    review_lines,
    serving_lines,
)
from agac.core.errors import ExitCode, UsageError
from agac.core.keys import is_job, job_alias
from agac.core.reading import read_as
from agac.core.text import plain, waits_text
from agac.core.types import counted, dollars
from agac.engine.stage_summary import CallCounts
from agac.engine.summary import RowCounts, RunSummary
from agac.spec.notify import target_words

if TYPE_CHECKING:
    from agac.api.inspect import RunsReport
    from agac.api.notify import NotifyReport
    from agac.api.shard_states import ShardsReport
    from agac.api.status import StatusReport


@click.command(
    help=(
        "Show the newest runs, or one run (RUN: its number, or `last`) in full: rows done "
        "and failed, cost, next step."
    )
)
@click.argument("run", required=False)
@workflow_option
@click.option(
    "--shards",
    is_flag=True,
    help="Show all shards of the newest run in shards, as the remote has them.",
)
@json_option
@click.pass_obj
def status(
    settings: Globals, run: str | None, workflow: str | None, shards: bool, as_json: bool
) -> None:
    if shards:
        if run is not None:
            raise UsageError(
                "--shards is about the newest run in shards",
                remedy=f"Leave out {run}, or --shards.",
            )
        sharded = api.shard_status(workflow, project=settings.project_dir)
        terminal.print_report(sharded, shards_lines, as_json=as_json)
        return
    report = api.status(workflow, run=run, project=settings.project_dir)
    terminal.print_report(
        report,
        lambda found: newest_lines(found, workflow) if run is None else run_status_lines(found),
        as_json=as_json,
    )


@click.command(
    help="List all runs, the one last worked on first, and what changed from one to the next."
)
@workflow_option
@click.option("-n", "newest", metavar="N", type=click.IntRange(1), help="Only the newest N runs.")
@json_option
@click.pass_obj
def runs(settings: Globals, workflow: str | None, newest: int | None, as_json: bool) -> None:
    report = api.runs(workflow, newest=newest, project=settings.project_dir)
    terminal.print_report(report, lambda found: runs_lines(found, workflow), as_json=as_json)


def shards_lines(report: ShardsReport) -> Iterator[str]:
    """Yields runs in shards, each as a table, with what to do about shards that neither work nor
    have finished."""
    if not report.runs:
        whose = "from a writer that `remote: {trust: […]}` of agac.yml names"
        yield (
            f"No run has shards in {report.remote} {whose}. Start with: agac run -a "
            "WORKFLOW --shard 1/4"
        )
    for run in report.runs:
        states = ", ".join(f"{count} {state}" for state, count in run["states"].items())
        yield f"{run['workflow']} in {counted(len(run['shards']), 'shard')}: {states}"
        all_shards = run | {"shard": "all", "state": "", "seen_at": "", "by": ""}
        yield terminal.table(
            ["shard", "state", "rows", "done", "failed", "open", "calls", "cost", "seen", "by"],
            [_shard_cells(shard) for shard in [*run["shards"], all_shards]],
        )
        for shard in run["shards"]:
            if shard["next"]:
                why = f" ({plain(terminal.first_line(shard['why']))})" if shard["why"] else ""
                state = f"{shard['state']}{why}"
                yield f"Shard {shard['shard']} is {state}. Go on with: {shard['next']}"
        if run["next"]:
            yield f"All have finished. Write their results with: {run['next']}\n"
        else:
            yield ""


def _shard_cells(shard: Mapping[str, Any]) -> list[object]:
    """Makes the line of a shard, or of all, in a table."""
    cost = "unknown"
    if shard["usd"] is not None:
        cost = dollars(shard["usd"], simulated=shard["simulated"])
    return [
        shard["shard"],
        shard["state"],
        *(shard["rows"].get(name, 0) for name in ("total", "done", "failed", "open")),
        shard["calls"],
        cost,
        shard["seen_at"] or "-",
        plain(shard["by"]) or "-",
    ]


def newest_lines(report: StatusReport, workflow: str | None) -> list[str]:
    """Lists the newest runs, and what to type next."""
    sharded = list(sharded_lines(report))
    if sharded and not report.runs:
        return sharded
    lines = _runs_table(report, workflow, {"started": itemgetter("started_at")})
    return [*lines, *(next_step_lines(report) if report.runs else ()), *sharded]


def sharded_lines(report: StatusReport | RunsReport) -> Iterator[str]:
    """Yields runs in shards that have stores here: how many rows they have, and where they were
    merged."""
    for run in report.sharded:
        here = len(run["shards"])
        rows = RowCounts(**run["rows"])
        merged = run["merged"]
        which = "all here"
        if here != run["of"]:
            which = f"{here} of them here: {', '.join(run['shards'])}"
        counts = f"{counted(rows.total, 'row')}, {terminal.row_words(rows)}"
        yield f"{run['workflow']} was run in {counted(run['of'], 'shard')} ({which}): {counts}"
        if merged is None:
            yield (
                f"  Not merged here. See all shards with: agac status --shards -a {run['workflow']}"
            )
        else:
            wrote = ""
            if merged["rows"]:
                written = RowCounts(**merged["rows"])
                wrote = f": {counted(written.total, 'row')}, {terminal.row_words(written)}"
            yield f"  Merged into {terminal.from_here(report.project / merged['output'])}{wrote}"


def runs_lines(report: RunsReport, workflow: str | None) -> list[str]:
    """Lists all runs, and runs in shards that have stores here."""
    left = report.total - len(report.runs)
    started = itemgetter("started_at")
    worked = itemgetter("last_worked_at")
    sharded = list(sharded_lines(report))
    if sharded and not report.runs:
        return sharded
    lines = _runs_table(
        report, workflow, {"started": started, "last worked on": worked, "changes": changes_of}
    )
    return [
        *lines,
        *([f"{counted(left, 'older run')} not shown: raise -n"] if left else []),
        *sharded,
    ]


def _runs_table(
    report: StatusReport | RunsReport,
    workflow: str | None,
    more: Mapping[str, Callable[[dict[str, Any]], object]],
) -> list[str]:
    """Lists runs as a table with `more` columns, and the size of the store."""
    if not report.runs:
        what = f"The workflow {workflow!r} was not" if workflow else "No workflow was"
        begin = f"Start with: agac run -a {workflow or 'WORKFLOW'}"
        return [f"{what} run in this project yet. {named_here(begin, click.get_current_context())}"]
    counts = [read_as(RowCounts, run["rows"]) for run in report.runs]
    names = terminal.outcome_names(terminal.ROW_OUTCOMES, counts)
    rows = []
    for run, outcomes in zip(report.runs, counts, strict=True):
        calls = read_as(CallCounts, run["calls"])
        workflow_or_job = run["workflow"]
        if is_job(run["workflow"]):
            workflow_or_job = f"{job_alias(run['run'])}: {run['output']}"
        rows.append(
            [
                run["run"],
                workflow_or_job,
                run["state"],
                outcomes.total,
                *(getattr(outcomes, name) for name in names),
                calls.count,
                terminal.cost_of(calls.cost),
                *(value(run) for value in more.values()),
            ]
        )
    header = ["run", "workflow", "state", "rows", *names, "calls", "cost", *more]
    return [terminal.table(header, rows), "", _size_line(report)]


def _size_line(report: StatusReport | RunsReport) -> str:
    return f"Store: {terminal.megabytes(report.database_bytes)}"


def changes_of(run: dict[str, Any]) -> str:
    """Says in a few words which rows were selected if not all, and what changed since the run
    before."""
    words = []
    some = terminal.selection_words(run["selection"])
    if some:
        words.append(f"only {some}")
    if run["compared_with"] is None:
        words.append("the first")
    elif run["changes"]:
        words += [plain(change).replace("\n", " ") for change in run["changes"]]
    else:
        words.append("same workflow")
    return "; ".join(words)


def run_status_lines(report: StatusReport) -> Iterator[str]:
    """Yields one run in full, and what to type next."""
    run = report.runs[0]
    yield from run_lines(run)
    yield from ("", _size_line(report))
    yield from next_step_lines(report)
    if read_as(RunSummary, run).any_row_failed:
        yield f"Look at failed rows with: agac inspect {run['run']}"


def run_lines(run: dict[str, Any]) -> Iterator[str]:
    """Yields a run: its state, its rows and stages, its calls, its last invocations."""
    summary = read_as(RunSummary, run)
    request = summary.request
    some = terminal.selection_words(dict(request.selection))
    held = run["held"]
    yield f"{terminal.run_name(summary.workflow, summary.run)}: {run['state']}"
    yield (
        f"Input: {plain(request.input)}{f' ({some})' if some else ''}   Output: "
        f"{request.output or 'none'}"
    )
    yield f"Started: {summary.times.started_at}   Last worked on: {run['last_worked_at']}"
    yield from _row_lines(run, summary)
    yield ""
    yield from _stage_lines(summary)
    yield ""
    failed = summary.calls.failed
    before = [f"{failed:,} of them failed"] if failed else []
    yield calls_line(summary.calls, before, details=True)
    yield from serving_lines(summary.serving)
    if held["cost_usd"] or held["tokens"]:
        cost = f"{dollars(held['cost_usd'])} ({held['tokens']:,} tokens)"
        yield f"Calls of unknown cost may have cost up to {cost} more"
    yield ""
    if run["invocations"]:
        header = ["invocation", "started", "ended", "result", "rows done", "failed", "calls"]
        yield terminal.table(header, list(map(_invocation, run["invocations"])))


def _row_lines(run: dict[str, Any], summary: RunSummary) -> Iterator[str]:
    """Yields the rows of the input, and those that stages made, by outcome."""
    rows = summary.rows
    is_read = run["input_read_at"] is not None
    so_far = "" if is_read else " read so far"
    yield f"\nRows: {rows.total:,}{so_far}, {terminal.row_words(rows)}"
    # more rows can be made of rows that are still to be read, open, or tried again
    grows = run["state"] != "finished" and (not is_read or rows.open > 0 or rows.failed > 0)
    for level in summary.levels:
        yield level_line(level, so_far=grows)
        grows = grows or level.rows.open > 0


def _stage_lines(summary: RunSummary) -> Iterator[str]:
    """Yields a table of the stages, how their rows failed, and what else they did."""
    stages = summary.stages
    names = terminal.outcome_names(terminal.TASK_OUTCOMES, [stage.tasks for stage in stages])
    table = []
    for stage in stages:
        calls = stage.details.calls if stage.details is not None else CallCounts()
        outcomes = [getattr(stage.tasks, name) for name in names]
        took = [calls.count, calls.tokens.input, calls.tokens.output, terminal.cost_of(calls.cost)]
        table.append([stage.name, stage.model, *outcomes, *took])
    yield terminal.table(["stage", "model", *names, "calls", "tokens in", "out", "cost"], table)
    for stage in stages:
        errors = stage.details.errors if stage.details is not None else {}
        kinds = ", ".join(
            f"{count:,} {kind}" for kind, count in sorted(errors.items(), key=lambda e: -e[1])
        )
        if kinds:
            yield f"Failed in {stage.name}: {kinds}"
    yield from agreement_lines(stages)
    yield from conversation_lines(summary)
    yield from review_lines(summary)


def _invocation(invocation: Mapping[str, Any]) -> list[object]:
    """Makes the line of an invocation in a table."""
    result = str(invocation["state"])
    if result == "ended":
        code = invocation.get("exit_code")
        result = INVOCATION_RESULTS.get(code, f"exit code {code}")  # type: ignore[arg-type]
    return [
        invocation["number"],
        invocation["started_at"],
        invocation["ended_at"] or "-",
        result,
        *(invocation.get(key, "-") for key in ("rows_done", "rows_failed", "calls")),
    ]


INVOCATION_RESULTS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "stopped",
    ExitCode.ROWS_FAILED: "done, some rows failed",
    ExitCode.LIMIT: "stopped at a limit",
    ExitCode.NOT_READY: "not ready",
    ExitCode.INTERRUPTED: "interrupted",
}


def next_step_lines(report: StatusReport) -> Iterator[str]:
    """Yields what the first run of a report waits for or why it stopped, and what to type next."""
    run = report.runs[0]
    number = run["run"]
    last = run["last_invocation"] or {}
    state = run["state"]
    newer = run.get("replaced_by")
    if state == "running":
        yield from _running_lines(number, last)
    elif newer:
        yield f"Run {number} was replaced by run {newer}. See it with: agac status {newer}"
    elif state in ("waiting", "killed") and _has_submitted(run):
        yield from _open_batches_lines(run)
    elif state == "finished":
        yield from _finished_lines(report)
    elif state == "waiting" and last.get("wait_for_people"):
        yield _people_line(run, last["wait_for_people"])
    elif last.get("exit_code") == ExitCode.LIMIT:
        limit = terminal.first_line(last.get("stopped") or "budget or max_errors")
        yield f"Run {number} reached a limit: {plain(limit)}"
        yield f"Raise it, then resume with: {run['go_on']}"
    else:
        yield from _unfinished_lines(run, last)


def _people_line(run: Mapping[str, Any], waiting: int) -> str:
    """Says how many decisions a run waits for, and how to take them."""
    decisions = counted(waiting, "decision is", "decisions are")
    decide = f"agac review next -a {run['workflow']}"
    return (
        f"Run {run['run']}: {decisions} up to people. Decide with: {decide}. "
        f"Then resume with: {run['go_on']}"
    )


def _running_lines(number: int, last: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a run at work waits for."""
    waits = last.get("waits")
    if waits:
        yield f"Run {number} is {waits_text(waits)}"
    fault = _unanswered(last)
    if fault:
        yield f"Run {number} is retrying: {fault}"


def _unanswered(last: Mapping[str, Any]) -> str:
    """Says why the last call of an invocation brought no answer; empty if it did."""
    if last.get("waiting_for"):
        return plain(terminal.first_line(last["waiting_for"]["message"]))
    return ""


def _has_submitted(run: Mapping[str, Any]) -> bool:
    """True if a run has open batches, and did not stop before one of them was submitted."""
    batches = run["open_batches"]
    if not batches:
        return False
    stopped = (run["last_invocation"] or {}).get("stopped")
    return not (stopped and batches["waiting"] == batches["batches"])


def _open_batches_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """Yields how far open batches are, and how to follow them."""
    batches = run["open_batches"]
    what = counted(batches["batches"], "open batch", "open batches")
    unsent = ""
    if batches["waiting"]:
        unsent = f", {batches['waiting']:,} not submitted yet"
    requests = counted(batches["requests"], "request")
    counts = f"{batches['done']:,} done, {batches['failed']:,} failed of {requests}"
    yield f"Run {run['run']} has {what}{unsent}: {counts} when last checked"
    yield "Check progress with: agac batch status. Collect results with: agac batch retrieve"


def _unfinished_lines(run: Mapping[str, Any], last: Mapping[str, Any]) -> Iterator[str]:
    """Yields why a run is not finished, as far as it is known, and how to resume it."""
    number = run["run"]
    reason = last.get("stopped")
    fault = _unanswered(last)
    if reason:
        yield f"Run {number} stopped: {plain(terminal.first_line(reason))}"
    elif fault:
        yield f"The last call of run {number} brought no answer: {fault}"
    yield f"Run {number} is not finished. Resume with: {run['go_on']}"


def _finished_lines(report: StatusReport) -> Iterator[str]:
    """Yields where the results of a finished run are, and what to do about its failed rows."""
    run = report.runs[0]
    number = run["run"]
    failed = read_as(RunSummary, run).failed_rows
    folder = terminal.from_here(report.project / (run["output"] or ""))
    errors = f"see {folder}/errors.jsonl"
    results = f"{folder}/results.jsonl"
    if run["go_on"].startswith("agac resume "):  # a row run writes a file, and no folder
        errors = f"see them with: agac inspect {number}"
        results = folder
    if run["output"] is None:
        errors = f"see them with: agac inspect {number}"
        results = f"agac show {number}"
    if "shard" in run["selection"]:
        yield terminal.shard_line(run["complete"], run["go_on"])
        return
    if not run["shown"]:
        yield (
            f"The results of run {number} are not in {folder}. Write them there with: agac "
            f"export --run {number}"
        )
        return
    if run["not_written"]:
        yield (
            f"Not written: {', '.join(run['not_written'])}. Write it with: agac export "
            f"--run {number}"
        )
    if failed:
        remedy = _remedy(run, report.rows_by_remedy)
        yield f"{counted(failed, 'row')} of run {number} failed: {errors}{remedy}"
    else:
        yield f"Results of run {number}: {results}"


def _remedy(run: dict[str, Any], by_remedy: Mapping[str, int]) -> str:
    """Says what to do about failed rows, as the end of a sentence that says how many they are."""
    left = (run["last_invocation"] or {}).get("rows_left_failed", 0)
    again = run["go_on"]
    if by_remedy["again"] > left:
        return f", then run: {again}"
    if by_remedy["calls"]:
        return f"; {terminal.calls_remedy(run['run'], run['workflow'])}"
    if left:
        return f"; force a retry with: agac retry {run['run']}"
    first = "fix these rows in the input"
    if by_remedy["schema"]:
        first = "make the field that they lack required in output_schema"
    elif by_remedy["budget"]:
        first = "raise row_budget"
    return f"; {first}, then run: {again}"


@click.command(
    help="Try who is told of runs (`test`): send a message that says so to every target."
)
@click.argument("what", metavar="test", type=click.Choice(["test"]))
@click.option(
    "-a", "--workflow", "workflows", metavar="NAME", multiple=True, help="Only its targets."
)
@main.json_option
@click.pass_obj
def notify(settings: main.Globals, what: str, workflows: tuple[str, ...], as_json: bool) -> int:
    """Exit 0, or 1 if a message did not arrive."""
    report = main.long_running(api.notify_test)(workflows, project=settings.project_dir)
    terminal.print_report(report, notify_lines, as_json=as_json)
    if any(message.error for message in report.messages):
        return ExitCode.FAILED
    return ExitCode.DONE


def notify_lines(report: NotifyReport) -> Iterator[str]:
    """Yields which targets got the message."""
    lines = [
        [message.body["workflow"], target_words(message.target), message.error or "sent"]
        for message in report.messages
    ]
    yield terminal.table(["workflow", "target", "state"], lines)
