"""`agac show` and `agac inspect`: the results of a run, a run in full, one of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import terminal
from agac.cli.inspect_row import row_lines
from agac.cli.inspect_words import (
    alias_lines,
    block_lines,
    compact_json,
    error_text,
    model_words,
    replicas_words,
)
from agac.cli.main import Globals, json_option, workflow_option
from agac.cli.run_errors import error_head
from agac.cli.status import next_step_lines, run_lines
from agac.core.keys import is_job, job_alias
from agac.core.reading import read_as
from agac.core.text import row_command
from agac.engine.summary import RunSummary

if TYPE_CHECKING:
    from agac.api.inspect import InspectReport


@click.command(
    help="Show a run (RUN: its number, or `last`), or one of its rows by id: every stage, attempt, "
    "prompt, reply, error, time and cost."
)
@click.argument("run")
@click.argument("row", required=False)
@click.option("--stage", metavar="NAME", help="Only this stage.")
@json_option
@click.pass_obj
def inspect(settings: Globals, run: str, row: str | None, stage: str | None, as_json: bool) -> None:
    report = api.inspect(run, row, stage=stage, project=settings.project_dir)
    terminal.print_report(
        report, lambda found: map(terminal.printable, inspect_lines(found)), as_json=as_json
    )


@click.command(
    help="Show the first results of a run (RUN: its number, or `last`) as a table. They come "
    "from the store, so an unfinished run has them too."
)
@click.argument("run", default="last")
@workflow_option
@click.option(
    "--row", metavar="ID", help="Only this row, in full: its result or its error, and its input."
)
@click.option(
    "--head",
    type=click.IntRange(1, 1_000),
    default=20,
    metavar="N",
    show_default=True,
    help="The first N results.",
)
@json_option
@click.pass_obj
def show(settings: Globals, /, run: str, workflow: str | None, as_json: bool, **which: Any) -> None:
    report = api.show(run, workflow, **which, project=settings.project_dir)
    terminal.print_report(report, lambda found: show_lines(found, **which), as_json=as_json)


def show_lines(report: InspectReport, row: str | None, head: int) -> Iterator[str]:
    """Yields the first results of a run as a table, or one result in full."""
    run = report.run
    results = [dict(_named_texts(result)) for result in report.rows or ()]
    yield f"{terminal.run_name(run['workflow'], run['run'])}: {run['state']}\n"
    if row is not None and not results:
        yield (
            f"No result of {row!r} is there. See what became of the row with: "
            f"{row_command(run['run'], row)}"
        )
    elif row is not None:
        yield from terminal.record_lines((result.items() for result in results), cut=False)
    elif results:
        yield _results_table(results)
    else:
        yield f"No row has a result{' yet' if run['rows']['open'] else ''}."
        yield from next_step_lines(api.StatusReport(report.project, 0, [run]))
    if len(results) == head:
        yield _more_line(run, head)


def _results_table(results: list[dict[str, str]]) -> str:
    """Makes a table of results, with a column for each name that one of them has."""
    names = dict.fromkeys(name for result in results for name in result if name != "row_number")
    header = [name.removeprefix("result.") for name in names]
    cells = [[result.get(name, "") for name in names] for result in results]
    return terminal.table(header, cells, one_line=True)


def _more_line(run: dict[str, Any], head: int) -> str:
    """Says how to see more than the first `head` results."""
    name = job_alias(run["run"]) if is_job(run["workflow"]) else run["workflow"]
    partial = "" if run["complete"] else " --partial"
    return (
        f"\nThe first {head:,}. More of them: --head N; one in full: --row ID; all in "
        f"a file: agac export --run {run['run']} --to {name}.csv{partial}"
    )


def _named_texts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name of each column of a result with its text; objects become several columns."""
    error = result["error"] and error_text(result["error"])
    for name, value in {**result, "error": error}.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                yield f"{name}.{key}", terminal.value_text(inner)
        elif value is not None and name != "ok":
            yield name, terminal.value_text(value)


def inspect_lines(report: InspectReport) -> Iterator[str]:
    """Yields a run with its stages and errors, or those of its rows that were named."""
    if report.rows is None:
        yield from _run_in_full(report.run)
    for number, row in enumerate(report.rows or ()):
        if number:
            yield ""
        yield from row_lines(report.run, row)


def _run_in_full(run: dict[str, Any]) -> Iterator[str]:
    """Yields the status of a run, the definition of its stages, and its errors."""
    yield from run_lines(run)
    for remote in run.get("remote", ()):
        version = remote["hash"] or "read where it is"
        if remote["commit"]:
            version = f"commit {remote['commit']}, {remote['name']}"
        yield f"Remote {remote['what']}: {remote['reference']} ({version})"
    for stage in run["definition"]["stages"]:
        yield ""
        yield from _stage_definition(stage)
    errors = read_as(RunSummary, run).errors
    if errors:
        yield from ("", "Errors:")
    for error in errors:
        example = error.example
        yield f"{error_head(error)}, e.g. {example.id!r}:"
        yield f"    {terminal.first_line(example.message)}"
        yield f"    {row_command(run['run'], example.id)}"
    yield from ("", f"Look at one row with: agac inspect {run['run']} ROW")


def _stage_definition(stage: dict[str, Any]) -> Iterator[str]:
    """Yields a stage: what it does or which model it asks, with what."""
    calls_no_model = "operation" in stage
    does = compact_json(stage["operation"]) if calls_no_model else model_words(stage)
    needs = stage["needs"] or ()
    if isinstance(needs, str):
        needs = (needs,)
    after = f", needs {', '.join(needs)}" if needs else ""
    yield f"Stage {stage['name']}: {does}{after}"
    if stage.get("when"):
        yield from block_lines(f"when (otherwise: {stage['otherwise']})", stage["when"])
    if not calls_no_model:
        yield from _request_lines(stage)


def _request_lines(stage: dict[str, Any]) -> Iterator[str]:
    """Yields what a stage asks its model."""
    yield from alias_lines(stage)
    replicas = replicas_words(stage)
    if replicas:
        yield f"  replicas: {replicas}"
    if stage["schema"]:
        yield f"  schema: {compact_json(stage['schema']['body'])}"
    if stage["system"]:
        yield from block_lines("instructions", stage["system"])
    for message in stage.get("messages", ()):
        yield from block_lines(f"message, {message['role']}", message["content"])
    yield from block_lines("prompt", stage["prompt"])
