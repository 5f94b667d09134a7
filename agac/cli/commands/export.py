"""`agac export`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import garbage, render
from agac.cli.main import Globals


@click.command(help="Write a run's output files again, from the store.")
@click.option("-a", "--workflow", metavar="NAME", help="The newest run of this workflow.")
@click.option("--run", "number", type=int, metavar="N", help="The run with this number.")
@click.option("--partial", is_flag=True, help="Also when some rows have no outcome yet.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_obj
def command(settings: Globals, workflow: str | None, number: int | None, partial: bool, as_json: bool) -> None:
    """Prints the files that were written."""
    export = api.export
    garbage.from_here_on()
    summary, files = export(workflow, run=number, partial=partial, project=settings.project_dir)
    if as_json:
        render.print_json({**summary, "files": [str(file) for file in files]})
    else:
        render.print_text("\n".join(str(file) for file in files))
