"""`agac graph`."""

from __future__ import annotations

from pathlib import Path

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals


@click.command(
    help="Draw a workflow: its stages, what they need, and what became of the rows of its last run. SVG on standard "
    "output, for a file or a pipe, unless told otherwise."
)
@click.option("-a", "--workflow", metavar="NAME", help="The workflow: its name, or its file.")
@click.option("--run", "number", type=int, metavar="N", help="The workflow as it was in run N, with its counts.")
@click.option("--mermaid", is_flag=True, help="Mermaid text instead, as Markdown pages draw it.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write the drawing there."
)
@click.option("--json", "as_json", is_flag=True, help="Print what would be drawn as JSON.")
@click.pass_obj
def command(
    settings: Globals, workflow: str | None, number: int | None, mermaid: bool, file: Path | None, as_json: bool
) -> None:
    """Reads the workflow and the store; asks nobody."""
    if as_json and (mermaid or file is not None):
        raise click.UsageError("--json goes alone: it prints what would be drawn.", click.get_current_context())
    report = api.graph(workflow, run=number, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_drawing(report, file, mermaid=mermaid, quiet=settings.quiet)
