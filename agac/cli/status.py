"""`agac status` and `agac runs`: the newest runs, one run in full, all runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli.main import Globals, json_option, workflow_option
from agac.cli.run import agreement_lines, level_line, status_remedy
from agac.cli.terminal import (
    ROW_OUTCOMES,
    TASK_OUTCOMES,
    cost_of,
    counted,
    first_line,
    from_here,
    megabytes,
    outcome_names,
    plain,
    print_report,
    row_words,
    selection_words,
    table,
)
from agac.core.errors import ExitCode
from agac.core.report import dollars

if TYPE_CHECKING:
    from agac.api.inspect import RunsReport
    from agac.api.status import StatusReport


@click.command(
    help="Show the newest runs, or one run (RUN: its number, or `last`) in full: rows done and failed, cost, next step."
)
@click.argument("run", required=False)
@workflow_option
@json_option
@click.pass_obj
def status(settings: Globals, run: str | None, workflow: str | None, as_json: bool) -> None:
    """RUN is a number, or `last`. Reads the store only."""
    report = api.status(workflow, run=run, project=settings.project_dir)
    print_report(
        report,
        lambda found: newest_lines(found, workflow) if run is None else run_status_lines(found),
        as_json=as_json,
    )


@click.command(help="List all runs, the one last worked on first, and what changed from one to the next.")
@workflow_option
@click.option("-n", "newest", metavar="N", type=click.IntRange(1), help="Only the newest N runs.")
@json_option
@click.pass_obj
def runs(settings: Globals, workflow: str | None, newest: int | None, as_json: bool) -> None:
    """Reads the store only."""
    report = api.runs(workflow, newest=newest, project=settings.project_dir)
    print_report(report, lambda found: runs_lines(found, workflow), as_json=as_json)


def newest_lines(report: StatusReport, workflow: str | None) -> list[str]:
    """The newest runs as a table, then the size of the store and what to do next."""
    if not report.runs:
        return [_no_run(workflow)]
    names = outcome_names(ROW_OUTCOMES, [run["rows"] for run in report.runs])
    rows = [[*_run_cells(run, names), run["started_at"]] for run in report.runs]
    lines = [table([*_run_header(names), "started"], rows), "", f"Store: {megabytes(report.database_bytes)}"]
    return [*lines, *next_step_lines(report.runs[0], report.project)]


def runs_lines(report: RunsReport, workflow: str | None) -> list[str]:
    """One line per run, the one last worked on first."""
    if not report.runs:
        return [_no_run(workflow)]
    names = outcome_names(ROW_OUTCOMES, [run["rows"] for run in report.runs])
    rows = [[*_run_cells(run, names), run["started_at"], run["last_worked_at"], changes_of(run)] for run in report.runs]
    lines = [table([*_run_header(names), "started", "last worked on", "changes"], rows)]
    lines += ["", f"Store: {megabytes(report.database_bytes)}"]
    left = report.total - len(report.runs)
    return [*lines, *([f"{counted(left, 'older run')} not shown: raise -n"] if left else [])]


def _no_run(workflow: str | None) -> str:
    what = f"The workflow {workflow!r} was not" if workflow else "No workflow was"
    return f"{what} run in this project yet. Start with: agac run -a {workflow or 'WORKFLOW'}"


def _run_header(names: Sequence[str]) -> list[str]:
    return ["run", "workflow", "state", "rows", *names, "calls", "cost"]


def _run_cells(run: dict[str, Any], names: Sequence[str]) -> list[object]:
    rows, calls = run["rows"], run["calls"]
    counts = [rows["total"], *(rows[name] for name in names), calls["count"]]
    return [run["run"], run["workflow"], run["state"], *counts, cost_of(calls)]


def changes_of(run: dict[str, Any]) -> str:
    """The selection of rows if not all, and the changes since the run before, in a few words."""
    words = [f"only {some}"] if (some := selection_words(run["selection"])) else []
    if run["compared_with"] is None:
        words.append("the first")
    else:
        words += [plain(change).replace("\n", " ") for change in run["changes"]] or ["same workflow"]
    return "; ".join(words)


def run_status_lines(report: StatusReport) -> Iterator[str]:
    """One run in full."""
    run = report.runs[0]
    yield from run_lines(run)
    yield ""
    yield f"Store: {megabytes(report.database_bytes)}"
    yield from next_step_lines(run, report.project)
    if _failed(run):
        yield f"Look at failed rows with: agac inspect {run['run']}"


def run_lines(run: dict[str, Any]) -> Iterator[str]:
    """A run: its state, its rows and stages, its calls, its last invocations."""
    some = selection_words(run["selection"])
    yield f"{run['workflow']}, run {run['run']}: {run['state']}"
    yield f"Input: {plain(run['input'])}{f' ({some})' if some else ''}   Output: {run['output']}"
    yield f"Started: {run['started_at']}   Last worked on: {run['last_worked_at']}"
    yield ""
    yield from _count_lines(run)
    yield ""
    yield from _call_lines(run)
    yield ""
    if run["invocations"]:
        header = ["invocation", "started", "ended", "result", "rows done", "failed", "calls"]
        yield table(header, [_invocation(invocation) for invocation in run["invocations"]])


def _count_lines(run: dict[str, Any]) -> Iterator[str]:
    """The outcomes of rows, and of tasks at each stage."""
    rows = run["rows"]
    names = outcome_names(TASK_OUTCOMES, run["stages"])
    header = ["stage", "model", *names, "calls", "tokens in", "out", "cost"]
    yield f"Rows: {rows['total']:,}, {row_words(rows)}"
    yield from map(level_line, run["levels"])
    yield ""
    yield table(header, [_stage(stage, names) for stage in run["stages"]])
    for stage in run["stages"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(stage["errors"].items(), key=lambda e: -e[1]))
        if kinds:
            yield f"Failed in {stage['name']}: {kinds}"
    yield from agreement_lines(run["stages"])


def _stage(stage: dict[str, Any], names: Sequence[str]) -> list[object]:
    calls = stage["calls"]
    tokens = [calls["input_tokens"], calls["output_tokens"]]
    return [stage["name"], stage["model"], *(stage[name] for name in names), calls["count"], *tokens, cost_of(calls)]


def _call_lines(run: dict[str, Any]) -> Iterator[str]:
    """Calls, tokens and cost of the whole run, and what calls without an answer may have cost."""
    calls, held = run["calls"], run["held"]
    notes = [f"{calls['failed']:,} of them failed"] if calls["failed"] else []
    notes += ["simulated"] if calls["simulated"] else []
    tokens_in = f"{calls['input_tokens']:,} tokens in"
    tokens_in += f" ({calls['cached_tokens']:,} cached)" if calls["cached_tokens"] else ""
    tokens_out = f"{calls['output_tokens']:,} out"
    tokens_out += f" ({calls['reasoning_tokens']:,} reasoning)" if calls["reasoning_tokens"] else ""
    note = f" ({'; '.join(notes)})" if notes else ""
    yield f"Calls: {calls['count']:,}{note}, {tokens_in}, {tokens_out}, {cost_of(calls)}"
    if held["cost_usd"] or held["tokens"]:
        cost = f"{dollars(held['cost_usd'])} ({held['tokens']:,} tokens)"
        yield f"Calls without an answer may have cost up to {cost} more"


INVOCATION_RESULTS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "stopped",
    ExitCode.ROWS_FAILED: "done, some rows failed",
    ExitCode.LIMIT: "stopped at a limit",
    ExitCode.NOT_READY: "not ready",
    ExitCode.INTERRUPTED: "interrupted",
}
"""The result of an invocation by its exit code."""


def _invocation(invocation: dict[str, Any]) -> list[object]:
    result = str(invocation["state"])
    if result == "ended":
        result = INVOCATION_RESULTS.get(invocation["exit_code"], f"exit code {invocation['exit_code']}")
    counts = [invocation.get(key, "-") for key in ("rows_done", "rows_failed", "calls")]
    return [invocation["number"], invocation["started_at"], invocation["ended_at"] or "-", result, *counts]


def _failed(run: dict[str, Any]) -> int:
    """Failed rows, of the input and of those that stages made."""
    return sum(int(one["rows"]["failed"]) for one in (run, *run["levels"]))


def next_step_lines(run: dict[str, Any], project: Path) -> list[str]:
    """What to do next: a command that works as it is printed."""
    number, last = run["run"], run["last_invocation"] or {}
    if run["state"] == "running":
        return [f"Run {number} is retrying: {_waiting_for(last)}"] if last.get("waiting_for") else []
    if newer := run.get("replaced_by"):
        return [f"Replaced by run {newer}. See it with: agac status {newer}"]
    if run["state"] in ("waiting", "killed") and run["open_batches"]:
        return _open_batches(number, run["open_batches"])
    if run["state"] != "finished":
        return list(_unfinished_lines(run, last))
    folder = from_here(project / run["output"])
    if not run["shown"]:
        return [f"The results of run {number} are not in {folder}. Write them there with: agac export --run {number}"]
    lines = []
    if run["not_written"]:
        lines = [f"Not written: {', '.join(run['not_written'])}. Write it with: agac export --run {number}"]
    if not _failed(run):
        return [*lines, f"Results of run {number}: {folder}/results.jsonl"]
    remedy = status_remedy(run, last.get("rows_left_failed", 0))
    return [*lines, f"{counted(_failed(run), 'row')} of run {number} failed: see {folder}/errors.jsonl{remedy}"]


def _unfinished_lines(run: dict[str, Any], last: dict[str, Any]) -> Iterator[str]:
    number, again = run["run"], run["go_on"]
    if last.get("exit_code") == ExitCode.LIMIT:
        yield f"Run {number} reached a limit: {plain(first_line(last.get('stopped') or 'budget or max_errors'))}"
        yield f"Raise it, then resume with: {again}"
        return
    if reason := last.get("stopped"):
        yield f"Run {number} stopped: {plain(first_line(reason))}"
    elif last.get("waiting_for"):
        yield f"The last call of run {number} brought no answer: {_waiting_for(last)}"
    yield f"Run {number} is not finished. Resume with: {again}"


def _waiting_for(last: dict[str, Any]) -> str:
    return plain(first_line(last["waiting_for"]["message"]))


def _open_batches(number: int, batches: dict[str, int]) -> list[str]:
    """The counts of the open batches of a run, and the commands for them."""
    what = counted(batches["batches"], "open batch", "open batches")
    counts = f"{batches['done']:,} done, {batches['failed']:,} failed of {counted(batches['requests'], 'request')}"
    waiting = f", {batches['waiting']:,} not submitted yet" if batches["waiting"] else ""
    return [
        f"Run {number} has {what}{waiting}: {counts} when last checked",
        "Check progress with: agac batch status. Collect results with: agac batch retrieve",
    ]
