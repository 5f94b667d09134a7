"""`agac data`."""

from __future__ import annotations

import sys

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.data import data_lines


@click.command(
    help="Look at an input: its format and size, its columns with their types, its first rows. INPUT is a file, "
    "several, a pattern in quotes, sqlite://DATABASE?table=NAME (or ?query=SELECT …), or - for standard input."
)
@click.argument("inputs", type=click.Path(), metavar="INPUT...", nargs=-1, required=True)
@click.option("--format", metavar="NAME", help="Read it as csv, tsv, json, jsonl, txt, parquet or files.")
@click.option(
    "--rows", type=click.IntRange(0), default=5, metavar="N", show_default=True, help="Show the first N rows."
)
@click.option(
    "--look-at", type=click.IntRange(1), default=1_000, metavar="N", show_default=True,
    help="Tell types from the first N rows.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(
    settings: Globals,
    inputs: tuple[str, ...],
    format: str | None,  # noqa: A002 - the flag's name
    rows: int,
    look_at: int,
    as_json: bool,
) -> None:
    """A file, several, a pattern in quotes, sqlite://DATABASE?query=SELECT …, or - for standard input."""
    report = api.show_data(inputs, format=format, rows=rows, look_at=look_at, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(data_lines(report, cut=sys.stdout.isatty())))
