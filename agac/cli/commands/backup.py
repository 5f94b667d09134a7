"""`agac backup`."""

from __future__ import annotations

from pathlib import Path

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.keeping import backup_lines


@click.command(help="Copy the database into FILE: whole and checked, also while a run is at work.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, file: Path, force: bool, as_json: bool) -> None:
    """Says the size, and how to put the copy back."""
    report = api.backup(file, force=force, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    elif not settings.quiet:
        render.print_text("\n".join(backup_lines(report)))
