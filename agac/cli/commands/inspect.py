"""`agac inspect`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.inspect import inspect_lines


@click.command(
    help="Look at a run (RUN: its number, or `last`), or at one of its rows by id: every stage, attempt, prompt, "
    "reply, error, time and cost."
)
@click.argument("run")
@click.argument("row", required=False)
@click.option("--stage", metavar="NAME", help="Only this stage.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, run: str, row: str | None, stage: str | None, as_json: bool) -> None:
    """Reads the store only."""
    report = api.inspect(run, row, stage=stage, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(inspect_lines(report)))
