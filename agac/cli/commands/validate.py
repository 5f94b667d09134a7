"""`agac validate`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.core.errors import ExitCode


@click.command(help="Check workflows without running them: every problem of every file at once.")
@click.option(
    "-a", "--workflow", "workflows", metavar="NAME", multiple=True,
    help="Only this workflow, or several; otherwise all of the project.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, workflows: tuple[str, ...], as_json: bool) -> int:
    """Exit 2 when there is an error."""
    report = api.validate(workflows, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_check(report.workflows, report.problems, ok=report.ok, quiet=settings.quiet)
    return ExitCode.DONE if report.ok else ExitCode.USAGE
