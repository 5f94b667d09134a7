"""The summary of a run, in words: rows, stages, calls, errors, what to do about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.cli.shown.advice import advice
from agac.cli.shown.failed import remedy_lines
from agac.cli.shown.layout import TASK_OUTCOMES, first_line, from_here, money, outcome_names, row_words, table
from agac.cli.shown.parked import parked_line
from agac.cli.shown.timing import timing_line
from agac.cli.shown.votes import agreement_lines
from agac.cli.shown.words import counted, plain

if TYPE_CHECKING:
    from agac.api.ending import RunReport
    from agac.engine.scope import Scope


def run_lines(
    summary: dict[str, Any], invocation: dict[str, Any], command: str, errors_file: Path | None, scope: Scope | None
) -> list[str]:
    """The summary of a run as lines of text."""
    rows = summary["rows"]
    lines = [f"{summary['workflow']}, run {summary['run']}: {counted(rows['total'], 'row')}, {row_words(rows)}"]
    lines += [level_line(level) for level in summary["levels"]]
    if invocation["continued"]:
        lines.append(_continued(invocation))
    names = outcome_names(TASK_OUTCOMES, summary["stages"])
    stages = [[stage["name"], stage["model"], *(stage[name] for name in names)] for stage in summary["stages"]]
    lines += ["", table(["stage", "model", *names], stages), ""]
    lines += [short_name_line(alias) for alias in _aliases(summary["stages"])]
    lines += agreement_lines(summary["stages"])
    lines.append(_calls_line(summary["calls"], invocation))
    if invocation["calls"] and (timing := timing_line(summary)):
        lines.append(timing)
    if invocation["tasks_collapsed"] > 0.01 * max(1, invocation["rows_read"]):
        same = counted(invocation["tasks_collapsed"], "task")
        lines.append(f"Asked once: {same} had the very prompt of another one and took its answer")
    if parked := _left_out(summary, invocation, scope):
        lines.append(parked_line(summary, parked, command, scope))
    lines += _error_lines(summary, command, invocation, errors_file)
    return lines


def _left_out(summary: dict[str, Any], invocation: dict[str, Any], scope: Scope | None) -> int:
    """How many rows are open because a stage was not to be asked; others wait for batches."""
    if scope is not None and all(scope.may_ask(stage["name"]) for stage in summary["stages"]):
        return 0
    left: int = invocation["rows_parked"] - invocation.get("rows_in_batches", 0)
    return max(left, 0)


def level_line(level: dict[str, Any]) -> str:
    """What became of the rows that a stage made."""
    what = {"items": "child row", "rows": "listed row", "kept": "kept row", "groups": "group"}[level["makes"]]
    rows = level["rows"]
    counts = f", {row_words(rows)}" if rows["total"] else ""
    return f"  {level['stage']}: {counted(rows['total'], what)}{counts}"


def guard_lines(summary: dict[str, Any], files: Sequence[Path]) -> list[str]:
    """At which stages rows left, and the file that lists them; at which they went on without being asked."""
    from agac.data.sinks import FILTERED  # loads the sinks

    lines = []
    listed = "".join(f"; why, for each: {from_here(file)}" for file in files if file.name == FILTERED)
    for name, what, where in (("dropped", "Dropped", listed), ("skipped", "Passed over", "")):
        counts = [f"{counted(stage[name], 'row')} at {stage['name']}" for stage in summary["stages"] if stage[name]]
        lines += [f"{what}: {', '.join(counts)}{where}"] if counts else []
    return lines


def replaced_lines(report: RunReport) -> list[str]:
    """Whose results the files held before, and which of them somebody had changed."""
    lines = []
    if before := report.replaced:
        lines.append(f"They replaced those of run {before['run']} ({plain(before['input'])}), which come back with: "
                     f"{before['again']}")  # fmt: skip
    if report.edited:
        names = ", ".join(file.name for file in report.edited)
        lines.append(f"Somebody had changed {names} since the last run; what stood there was replaced")
    return lines


def _aliases(stages: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Short names of models and what they mean, each once."""
    return list({alias["written"]: alias for stage in stages if (alias := stage.get("alias"))}.values())


def short_name_line(alias: dict[str, str]) -> str:
    """`Model sonnet = anthropic/claude-…`: what a short name stood for."""
    return f"Model {alias['written']} = {alias['means']}"


def _continued(invocation: dict[str, Any]) -> str:
    unchanged = invocation["rows_unchanged"]
    facts = [f"{counted(unchanged, 'row')} {'was' if unchanged == 1 else 'were'} settled already"] if unchanged else []
    if not invocation["calls"] and invocation["complete"]:
        facts.append("nothing had to be asked")
    lost = invocation["lost_calls_at_most"]
    if lost:
        facts.append(
            f"the last invocation broke off: at most {counted(lost, 'call')} in flight may have been paid for "
            f"and {'is' if lost == 1 else 'are'} asked again"
        )
    return "Went on" + (": " + "; ".join(facts) if facts else "")


def _calls_line(calls: dict[str, Any], invocation: dict[str, Any]) -> str:
    extra = [
        f"{invocation[key]:,} {one if invocation[key] == 1 else many}"
        for key, one, many in (
            ("retries", "retry", "retries"),
            ("repairs", "re-ask", "re-asks"),
            ("fallbacks", "fallback", "fallbacks"),
        )
        if invocation[key]
    ]
    notes = ["simulated"] if calls["simulated"] else []
    if extra:
        notes.append(f"{', '.join(extra)} in this invocation")
    note = f" ({'; '.join(notes)})" if notes else ""
    tokens = f"{calls['input_tokens']:,} tokens in, {calls['output_tokens']:,} out"
    return f"Calls: {calls['count']:,}{note}, {tokens}, {money(calls)}"


def _error_lines(
    summary: dict[str, Any], command: str, invocation: dict[str, Any], errors_file: Path | None
) -> list[str]:
    if not summary["errors"]:
        return []
    lines = ["", "Errors:"]
    for error in summary["errors"]:
        example = error["example"]
        place = f" in {error['stage']}" if error["stage"] else ""
        lines.append(
            f"  {error['type']}{place}: {counted(error['rows'], 'row')}, "
            f"e.g. {example['id']!r} (row {example['row_number']}):"
        )
        lines.append(f"    {first_line(example['message'])}")
        todo = advice(error, summary["run"])
        lines += [f"    {todo}"] if todo else []
    if errors_file is not None:
        lines.append(f"  All of them, with their input: {from_here(errors_file)}")
    left, at_limit = invocation["rows_left_failed"], invocation["stopped_at_limit"]
    return [*lines, *remedy_lines(summary, command, left, at_limit=at_limit)]
