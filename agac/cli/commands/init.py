"""`agac init`."""

from __future__ import annotations

from pathlib import Path

import click

from agac import api
from agac.cli import render


@click.command(help="Make a project that works at once, on the simulator: no key, no cost.")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(folder: Path, as_json: bool) -> None:
    """Refuses to overwrite any file."""
    made = api.init(folder)
    if as_json:
        render.print_json({"folder": str(folder), "files": [str(path) for path in made]})
    else:
        render.print_init(folder, made)
