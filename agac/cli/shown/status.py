"""`agac status` as lines of text: the newest runs, or one run in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.cli.shown.failed import status_remedy
from agac.cli.shown.layout import (
    ROW_OUTCOMES,
    TASK_OUTCOMES,
    first_line,
    from_here,
    money,
    outcome_names,
    row_words,
    table,
)
from agac.cli.shown.run import level_line
from agac.cli.shown.votes import agreement_lines
from agac.cli.shown.words import counted, megabytes, plain, selection_words
from agac.core.errors import ExitCode

if TYPE_CHECKING:
    from agac.api.reading import StatusReport

ENDS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "stopped",
    ExitCode.ROWS_FAILED: "done, some rows failed",
    ExitCode.LIMIT: "stopped at a limit",
    ExitCode.NOT_READY: "not ready",
    ExitCode.INTERRUPTED: "interrupted",
}
"""How an invocation ended, by its exit code."""


def status_lines(report: StatusReport, workflow: str | None) -> list[str]:
    """The newest runs as a table, then the size of the store and what to do next."""
    if not report.runs:
        what = f"The workflow {workflow!r} was not" if workflow else "Nothing was"
        return [f"{what} run in this project yet. Start with: agac run -a {workflow or 'WORKFLOW'}"]
    names = outcome_names(ROW_OUTCOMES, [run["rows"] for run in report.runs])
    header = ["run", "workflow", "state", "rows", *names, "calls", "cost", "started"]
    newest = report.runs[0]
    return [
        table(header, [_row(run, names) for run in report.runs]),
        "",
        f"Store: {megabytes(report.database_bytes)}",
        *next_lines(newest, report.project),
    ]


def _row(run: dict[str, Any], names: Sequence[str]) -> list[object]:
    rows, calls = run["rows"], run["calls"]
    counts = [rows["total"], *(rows[name] for name in names), calls["count"]]
    return [run["run"], run["workflow"], run["state"], *counts, money(calls), run["started_at"]]


def run_status_lines(report: StatusReport) -> list[str]:
    """One run in full."""
    run = report.runs[0]
    return [
        *head_lines(run),
        "",
        *count_lines(run),
        "",
        *call_lines(run),
        "",
        *invocation_lines(run),
        "",
        f"Store: {megabytes(report.database_bytes)}",
        *next_lines(run, report.project),
        *([f"Look at failed rows with: agac inspect {run['run']}"] if _failed(run) else []),
    ]


def head_lines(run: dict[str, Any]) -> list[str]:
    """Which run it is, and where it stands."""
    some = selection_words(run["selection"])
    return [
        f"{run['workflow']}, run {run['run']}: {run['state']}",
        f"Input: {plain(run['input'])}{f' ({some})' if some else ''}   Output: {run['output']}",
        f"Started: {run['started_at']}   Last worked on: {run['last_worked_at']}",
    ]


def count_lines(run: dict[str, Any]) -> list[str]:
    """Rows, and what became of them in each stage."""
    rows = run["rows"]
    names = outcome_names(TASK_OUTCOMES, run["stages"])
    header = ["stage", "model", *names, "calls", "tokens in", "out", "cost"]
    lines = [
        f"Rows: {rows['total']:,}, {row_words(rows)}",
        *(level_line(level) for level in run["levels"]),
        "",
        table(header, [_stage(stage, names) for stage in run["stages"]]),
    ]
    for stage in run["stages"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(stage["errors"].items(), key=lambda e: -e[1]))
        lines += [f"Failed in {stage['name']}: {kinds}"] if kinds else []
    return [*lines, *agreement_lines(run["stages"])]


def _open_batches(number: int, batches: dict[str, int]) -> list[str]:
    """What the batches of a run came to so far, and what goes on with them."""
    what = "1 open batch" if batches["batches"] == 1 else f"{batches['batches']:,} open batches"
    counts = f"{batches['done']:,} done, {batches['failed']:,} failed of {counted(batches['requests'], 'request')}"
    waiting = f", {batches['waiting']:,} not submitted yet" if batches["waiting"] else ""
    return [
        f"Run {number} has {what}{waiting}: {counts} when last asked",
        "Ask again with: agac batch status. Take what is ready with: agac batch retrieve",
    ]


def _failed(run: dict[str, Any]) -> int:
    """Failed rows, of the input and of those that stages made."""
    return sum(int(one["rows"]["failed"]) for one in (run, *run["levels"]))


def _stage(stage: dict[str, Any], names: Sequence[str]) -> list[object]:
    calls = stage["calls"]
    tokens = [calls["input_tokens"], calls["output_tokens"]]
    return [stage["name"], stage["model"], *(stage[name] for name in names), calls["count"], *tokens, money(calls)]


def call_lines(run: dict[str, Any]) -> list[str]:
    """Calls, tokens and cost of the whole run, and what calls without an answer may have cost."""
    calls, held = run["calls"], run["held"]
    notes = [f"{calls['failed']:,} of them failed"] if calls["failed"] else []
    notes += ["simulated"] if calls["simulated"] else []
    tokens_in = f"{calls['input_tokens']:,} tokens in"
    tokens_in += f" ({calls['cached_tokens']:,} cached)" if calls["cached_tokens"] else ""
    tokens_out = f"{calls['output_tokens']:,} out"
    tokens_out += f" ({calls['reasoning_tokens']:,} reasoning)" if calls["reasoning_tokens"] else ""
    note = f" ({'; '.join(notes)})" if notes else ""
    lines = [f"Calls: {calls['count']:,}{note}, {tokens_in}, {tokens_out}, {money(calls)}"]
    if held["cost_usd"] or held["tokens"]:
        lines.append(
            f"Calls of which no answer came may have cost up to ${held['cost_usd']:,.4f} "
            f"({held['tokens']:,} tokens) on top"
        )
    return lines


def invocation_lines(run: dict[str, Any]) -> list[str]:
    """The last invocations, the newest first."""
    header = ["invocation", "started", "ended", "how", "rows done", "failed", "calls"]
    rows = [_invocation(invocation) for invocation in run["invocations"]]
    return [table(header, rows)] if rows else []


def _invocation(invocation: dict[str, Any]) -> list[object]:
    counts = [invocation.get(key, "-") for key in ("rows_done", "rows_failed", "calls")]
    times = [invocation["started_at"], invocation["ended_at"] or "-"]
    return [invocation["number"], *times, how(invocation), *counts]


def how(invocation: dict[str, Any]) -> str:
    """How an invocation ended, in words."""
    if invocation["state"] != "ended":
        return str(invocation["state"])
    return ENDS.get(invocation["exit_code"], f"exit code {invocation['exit_code']}")


def next_lines(run: dict[str, Any], project: Path) -> list[str]:
    """What to do next: a command that works as it is printed."""
    number, again = run["run"], run["go_on"]
    left = (run["last_invocation"] or {}).get("rows_left_failed", 0)
    folder = from_here(project / run["output"])
    last = (run["last_invocation"] or {}).get("waiting_for")
    why = plain(first_line(last["message"])) if last else ""
    if run["state"] == "running":
        return [f"Run {number} is trying again: {why}"] if last else []
    if run.get("replaced_by"):
        newer = run["replaced_by"]
        return [f"Run {newer} took its place. Look at it with: agac status {newer}"]
    if run["state"] in ("waiting", "killed") and run["open_batches"]:
        return _open_batches(number, run["open_batches"])
    if run["state"] != "finished":
        if (run["last_invocation"] or {}).get("exit_code") == ExitCode.LIMIT:
            limit = plain(first_line((run["last_invocation"] or {}).get("stopped") or "budget or max_errors"))
            return [f"Run {number} met a limit: {limit}", f"Raise it, then go on with: {again}"]
        reason = (run["last_invocation"] or {}).get("stopped")
        stopped = [f"Run {number} stopped: {plain(first_line(reason))}"] if reason else []
        stopped += [f"The last call of run {number} brought no answer: {why}"] if last and not reason else []
        return [*stopped, f"Run {number} is not finished. Go on with: {again}"]
    if not run["shown"]:
        return [f"The results of run {number} are not in {folder}. Write them there with: agac export --run {number}"]
    lost = [f"Not written: {', '.join(run['not_written'])}. Write it with: agac export --run {number}"]
    lost = lost if run["not_written"] else []
    if _failed(run):
        failed = counted(_failed(run), "row")
        return [*lost, f"{failed} of run {number} failed: see {folder}/errors.jsonl{status_remedy(run, left)}"]
    return [*lost, f"Results of run {number}: {folder}/results.jsonl"]
