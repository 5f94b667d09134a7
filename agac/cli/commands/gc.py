"""`agac gc`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import garbage, render
from agac.cli.main import Globals
from agac.cli.shown.keeping import gc_lines


@click.command(
    help="Keep of each workflow the runs last worked on; drop older ones, answers that no kept run uses and rows that "
    "left the input, and give the space back."
)
@click.option("--keep-runs", metavar="N", type=click.IntRange(1), required=True, help="Keep so many of each workflow.")
@click.option("-a", "--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--dry-run", is_flag=True, help="Only say what would be dropped.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, keep_runs: int, workflow: str | None, dry_run: bool, as_json: bool) -> None:
    """Refused while a run is at work; killed at any point, the same command finishes it."""
    gc = api.gc
    garbage.from_here_on()
    report = gc(keep_runs, workflow, dry_run=dry_run, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    elif not settings.quiet:
        render.print_text("\n".join(gc_lines(report)))
