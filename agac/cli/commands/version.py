"""`agac version`."""

from __future__ import annotations

import platform

import click

from agac import __version__
from agac.cli import render


@click.command(help="Show the version of agac and of Python.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Prints one line, or JSON."""
    value = {"agac": __version__, "python": platform.python_version()}
    if as_json:
        render.print_json(value)
    else:
        render.print_text(f"agac {value['agac']} (Python {value['python']})")
