"""`agac why`: says what a task was asked, and what changed since the last time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import terminal
from agac.cli.batch import in_batch_words
from agac.cli.inspect_words import compact_json, replicas_words, skip_words
from agac.cli.main import Globals, json_option
from agac.core.text import row_command
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.api.why import TaskInputs, WhyReport


@click.command(
    help="Show the request of a row (ROW: its id) of a run (RUN: its number, or `last`) at a "
    "stage, and what changed since the last time."
)
@click.argument("run", metavar="RUN")
@click.argument("row", metavar="ROW")
@click.argument("stage", metavar="STAGE")
@json_option
@click.pass_obj
def why(settings: Globals, run: str, row: str, stage: str, as_json: bool) -> None:
    report = api.why(run, row, stage, project=settings.project_dir)
    terminal.print_report(
        report, lambda found: map(terminal.printable, why_lines(found)), as_json=as_json
    )


def why_lines(report: WhyReport) -> Iterator[str]:
    """Yields the request of a row at a stage, its outcome, and what changed since the last time."""
    now = report.now
    task_json = now.as_json()
    name = terminal.run_name(report.workflow, now.run)
    yield f"{name}, row {report.row_id!r}, stage {report.stage}"
    yield ""
    if task_json["passed_over"]:
        yield f"outcome: {task_json['outcome']}, {task_json['settled_at']}"
        yield skip_words(task_json["passed_over"])
    else:
        yield from _task_lines(now, task_json)
    yield ""
    yield from _again_lines(report)
    yield from _change_lines(report)


def _again_lines(report: WhyReport) -> Iterator[str]:
    """Yields why the run ran a task again, if it did."""
    again = report.again
    if again is None:
        return
    when = f"This run ran it before, {again.as_json()['asked_at']}"
    because = ", ".join(again.because)
    if report.now.passed_over is not None:
        yield f"{when}; since then: {because}."
    elif again.same_question:
        yield f"{when}, with the same request; run again because {because}."
    else:
        yield f"{when}, with another request; since then: {because}."
        yield "  The earlier request is not stored."


def _task_lines(task: TaskInputs, task_json: dict[str, Any]) -> Iterator[str]:
    """Yields how a task ended, and what its fingerprint is made of. `task_json`: its JSON."""
    operation = task.stage.operation
    if operation is None or task_json["fingerprint"]:
        yield f"fingerprint: {task_json['fingerprint'] or 'none: no request could be made'}"
    if task_json["in_batch"]:
        yield in_batch_words(task_json["in_batch"])
    yield _outcome_line(task, task_json)
    if task_json["error"]:
        yield f"error: {task_json['error']['type']}: {task_json['error']['message']}"
    if task_json["answered_by"] and operation is None:
        how = f" ({task_json['how']})" if task_json["how"] else ""
        yield f"answered by: {task_json['answered_by']}{how}, {task_json['answered_at']}"
    if task.turns:
        yield _conversation_line(task)
    yield ""
    if operation is not None:
        yield f"This stage calls no model. It does: {compact_json(operation.body())}"
        return
    yield "The fingerprint is made of:"
    yield from _fingerprint_lines(task, task_json)


def _outcome_line(task: TaskInputs, task_json: dict[str, Any]) -> str:
    """Says how a task ended, if it did."""
    if task_json["outcome"] is not None:
        return f"outcome: {task_json['outcome']}, {task_json['settled_at']}"
    if task_json["in_batch"] or task.turns:
        return "outcome: none yet"
    return "outcome: not run yet"


def _conversation_line(task: TaskInputs) -> str:
    """`conversation: 3 turns, 2 x search; see agac inspect 1 a`."""
    calls = Counter(call["name"] for turn in task.turns for call in turn["calls"])
    tools = ", ".join(f"{count} x {name}" for name, count in calls.items()) or "no tools"
    turns = counted(len(task.turns), "turn")
    return f"conversation: {turns}, {tools}; see {row_command(task.run, task.history.row.id)}"


def _fingerprint_lines(task: TaskInputs, task_json: dict[str, Any]) -> Iterator[str]:
    """Yields the parts of a request that make its fingerprint."""
    parts = task_json["made_of"]
    schema = parts["schema"]
    yield f"  model: {parts['model']}"
    yield f"  params: {json.dumps(parts['params']) if parts['params'] else 'none'}"
    if schema:
        yield f"  schema: {schema['name']} ({schema['hash']})"
    else:
        yield "  schema: none"
    replicas = replicas_words(parts)
    if replicas:
        yield f"  replicas: {replicas}"
    if parts["salt"]:
        yield f"  reuse: {parts['reuse']}, separated by {parts['salt']}"
    if parts["messages"] is None:
        lack = "none" if task_json["outcome"] is None else "cannot be shown"
        yield f"  messages: {lack}: {task.missing}"
    for message in parts["messages"] or ():
        yield f"  {message['role']}:"
        lines = terminal.shortened(message["text"]).split("\n")
        yield from (f"    {line}".rstrip() for line in lines)


def _change_lines(report: WhyReport) -> Iterator[str]:
    """Yields what changed since the earlier run of the same task, if there was one."""
    now = report.now
    before = report.before
    if before is None:
        if report.again is None:
            yield "No earlier run has run this stage for this row."
        return
    run = f"run {before.run}"
    reason = before.passed_over
    is_guarded = reason is not None or now.passed_over is not None
    is_same = now.fingerprint is not None and now.fingerprint == before.fingerprint
    if is_guarded:
        then = f"{before.outcome}: {skip_words(reason)}" if reason else "it was run"
        yield f"In {run}: {then}"
    elif is_same and report.anew is None:
        yield f"Nothing changed since {run}: its answer is reused."
        return
    elif is_same:
        yield f"Nothing changed since {run}, but the task was run again: {report.anew}."
        return
    if report.differences:
        yield f"Changes since {run}:"
    elif not is_guarded:
        yield _nothing_to_show(now, run)
    for difference in report.differences:
        yield from _difference_lines(difference)


def _nothing_to_show(now: TaskInputs, run: str) -> str:
    """Says why no change since `run` can be listed."""
    if now.stage.operation is not None:
        return f"Neither the stage nor the row's own fields changed since {run}."
    if now.fingerprint is None:
        return f"It was run in {run}."
    return f"The fingerprint changed since {run}, but the request of that run cannot be rebuilt."


def _difference_lines(difference: dict[str, Any]) -> Iterator[str]:
    """Yields one difference: of long texts the lines that differ."""
    if "diff" in difference:
        yield f"  {difference['what']}:"
        text = terminal.shortened("\n".join(difference["diff"][2:]))
        yield from (f"    {line}" for line in text.split("\n"))
    else:
        before = compact_json(difference["before"])
        yield f"  {difference['what']}: {before} → {compact_json(difference['now'])}"
