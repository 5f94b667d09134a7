"""The project: `init`, `validate`, `lint`, `schema`, `gc`, `backup`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.terminal import (
    from_here,
    megabytes,
    print_json,
    print_report,
    print_text,
    say,
    table,
)
from agac.core.errors import ExitCode, Problem
from agac.core.keys import is_job, job_alias
from agac.core.types import counted
from agac.spec.paths import project_root

if TYPE_CHECKING:
    from agac.api.database import BackupReport, GcReport
    from agac.api.editor_schemas import SchemasReport
    from agac.store.history import RunLine


@click.command(help="Make a project that works at once, on the simulator: no key, no cost.")
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False)
)
@click.option(
    "--example", metavar="NAME", help="Make the project of this example, or add it to one."
)
@click.option("--list", "as_list", is_flag=True, help="Only list the examples.")
@main.json_option
@click.pass_obj
def init(
    settings: main.Globals, folder: Path, example: str | None, as_list: bool, as_json: bool
) -> None:
    """Refuses to overwrite any file. Prints the next steps, each of which works as it is
    printed."""
    if as_list:
        _print_examples(as_json=as_json)
        return
    files = api.init(folder, example)
    name = example or "reviews"
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in files]})
    elif not settings.quiet:
        for path in files:
            print_text(f"  {path}")
        _print_next_steps(folder, name)


def _print_examples(*, as_json: bool) -> None:
    """Prints the examples, and what each of them does."""
    examples = api.examples()
    if as_json:
        print_json(examples)
    else:
        print_text(table(["example", "what it does"], [*examples.items()]))
        print_text("\nMake one: agac init --example NAME [DIR]")


def _print_next_steps(folder: Path, name: str) -> None:
    """Prints what to type in a new project, for the workflow `name`."""
    steps = ["agac validate", f"agac run -a {name}", "agac status"]
    if folder != Path():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    print_text("\nNext, without a key and at no cost:\n" + "\n".join(f"  {step}" for step in steps))
    real = f"agac run -a {name} --model openai/gpt-5.4-mini --limit 5"
    print_text(f"\nWith a real model: put OPENAI_API_KEY=… into .env, then\n  {real}")


@click.command(help="Check workflows without running them: every problem of every file at once.")
@main.workflow_options(
    "Only this workflow, or several; otherwise all of the project.", required=False
)
@main.json_option
@click.pass_obj
def validate(settings: main.Globals, workflows: tuple[str, ...], as_json: bool) -> int:
    """Exit 2 when there is an error. Problems are the result, so they go to standard output."""
    report = api.validate(workflows, project=settings.project_dir)
    if as_json:
        print_json(report.as_json())
    else:
        terminal.print_problems(report.problems, sys.stdout)
        errors = sum(problem.severity == "error" for problem in report.problems)
        if not report.ok:
            say(terminal.styled(f"{counted(errors, 'problem')} found", "red"))
        elif not settings.quiet:
            print_text(
                f"{counted(len(report.workflows), 'workflow')} valid: "
                f"{', '.join(report.workflows) or 'none'}"
            )
    return ExitCode.DONE if report.ok else ExitCode.USAGE


@click.command(
    help=(
        "Find what is allowed and seldom meant: unused vars, secrets, models that move, "
        "missing budgets."
    )
)
@main.workflow_options(
    "Only this workflow, or several; otherwise all of the project.", required=False
)
@click.option(
    "--format", "form", type=click.Choice(["text", "github"]), default="text", help="How to print."
)
@main.json_option
@click.pass_obj
def lint(settings: main.Globals, workflows: tuple[str, ...], form: str, as_json: bool) -> int:
    """Exit 0 nothing was found, 1 something was, 2 a file has errors."""
    report = api.lint(workflows, project=settings.project_dir)
    problems = [*report.problems, *report.findings]
    if form == "github":
        lines = [_annotation(problem, settings) for problem in problems]
    else:
        lines = list(map(str, problems))
    if not lines and form == "text" and not settings.quiet:
        lines = [f"{counted(len(report.workflows), 'workflow')}: nothing found"]
    terminal.print_report(report, lambda _: lines, as_json=as_json, quiet=not lines)
    if report.problems:
        return ExitCode.USAGE
    if problems:
        return ExitCode.FAILED
    return ExitCode.DONE


def _annotation(problem: Problem, settings: main.Globals) -> str:
    """Writes a line that GitHub Actions shows next to that of the file, whose path is relative to
    the folder of the job."""
    rule = getattr(problem, "rule", None)
    where = problem.where
    file = terminal.from_here(project_root(settings.project_dir) / where.file)
    keys = {
        "file": file,
        "line": where.line,
        "col": where.column,
        "title": f"agac {rule or 'validate'}",
    }
    properties = ",".join(
        f"{key}={_escaped(str(value), ':,')}" for key, value in keys.items() if value is not None
    )
    message = problem.message
    if where.path:
        message = f"{where.path}: {message}"
    return f"::{'warning' if rule else 'error'} {properties}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    """Escapes what ends a line or, with `more`, a property of a workflow command."""
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{more}" else sign for sign in text)


KINDS = ("workflow", "project", "card", "test")


@click.command(
    help=(
        "Print the JSON Schema of workflows, agac.yml (project), AgentCards (card) or "
        "tests, for editors."
    )
)
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option(
    "--write",
    is_flag=True,
    help="Write all of them into .agac/schemas/, and show an editor's settings.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; a schema always is.")
@click.pass_obj
def schema(settings: main.Globals, kind: str | None, write: bool, as_json: bool) -> None:
    if write == (kind is not None):
        raise click.UsageError(f"Name one of {', '.join(KINDS)}, or give --write for all of them.")
    if kind is not None:
        print_json(api.file_schema(kind))
        return
    print_report(api.write_schemas(project=settings.project_dir), schema_lines, as_json=as_json)


def schema_lines(report: SchemasReport) -> Iterator[str]:
    """Yields the files that were written, and the settings of editors."""
    path, patterns = next(iter(report.settings["yaml.schemas"].items()))
    yield from (f"  {from_here(file)}" for file in report.files)
    yield (
        "\nVS Code, with the extension YAML (redhat.vscode-yaml): put this in "
        ".vscode/settings.json next to agac.yml"
    )
    yield from json.dumps(report.settings, ensure_ascii=False, indent=2).split("\n")
    yield "\nAny editor with a YAML language server: a first line in the workflow"
    yield f"# yaml-language-server: $schema={'../' * patterns[0].count('/')}{path}"


@click.command(
    help="Keep the most recently used runs of each workflow; delete older runs, answers that no "
    "kept run uses and rows that left the input, and free their space."
)
@click.option(
    "--keep-runs",
    metavar="N",
    type=click.IntRange(1),
    required=True,
    help="Keep N per workflow (or jobs).",
)
@main.workflow_option
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@main.json_option
@click.pass_obj
def gc(
    settings: main.Globals, keep_runs: int, workflow: str | None, dry_run: bool, as_json: bool
) -> None:
    """Refused while a run is at work; killed at any point, the same command finishes it."""
    report = main.long_running(api.gc)(
        keep_runs, workflow, dry_run=dry_run, project=settings.project_dir
    )
    print_report(report, gc_lines, as_json=as_json, quiet=settings.quiet)


def _run_of(line: RunLine) -> str:
    """`run 3 of reviews`, or `job_3`."""
    if is_job(line.workflow):
        return job_alias(line.id)
    return f"run {line.id} of {line.workflow}"


def gc_lines(report: GcReport) -> Iterator[str]:
    """Yields what was deleted and kept, and the size of the store."""
    cleared = report.cleared
    verb = "Would delete" if report.dry_run else "Deleted"
    for dropped in cleared.dropped:
        yield f"{verb} {_run_of(dropped.line)}: {counted(dropped.rows, 'row')}"
    parts = [
        (cleared.left_rows, "row", "left the input"),
        (cleared.gone_rows, "row", "stages no longer make"),
        (cleared.results, "answer", "no kept run uses"),
    ]
    for count, what, why in parts:
        if count:
            yield f"{verb} {counted(count, what)} that {why}"
    deleted = [len(cleared.dropped), cleared.left_rows, cleared.gone_rows, cleared.results]
    if not any(deleted):
        yield "Nothing to delete"
    if cleared.kept:
        yield f"Kept: {', '.join(map(_run_of, cleared.kept))}"
    before = megabytes(report.bytes_before)
    after = megabytes(report.bytes_after)
    if report.dry_run:
        yield f"Store: {before}"
    else:
        yield f"Store: {after}, before: {before}"


@click.command(help="Copy the database into FILE: whole and checked, also while a run is at work.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@main.json_option
@click.pass_obj
def backup(settings: main.Globals, file: Path, force: bool, as_json: bool) -> None:
    report = api.backup(file, force=force, project=settings.project_dir)
    print_report(report, backup_lines, as_json=as_json, quiet=settings.quiet)


def backup_lines(report: BackupReport) -> list[str]:
    """Says where the copy is, and how to restore it."""
    here = replace(
        report, database=Path(from_here(report.database)), file=Path(from_here(report.file))
    )
    return [
        f"{here.file}: {megabytes(report.bytes)}",
        f"Restore it, while no run is at work, with: {here.restore}",
    ]
