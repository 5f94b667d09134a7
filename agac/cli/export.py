"""`agac export`: writes the output files of a run again, or its results elsewhere."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from agac import api
from agac.cli import main
from agac.cli.terminal import (
    print_json,
    print_text,
)


@click.command(
    help=(
        "Write a run's output files again, from the store; with --to its results into a "
        "file of their own."
    )
)
@click.option("-a", "--workflow", metavar="NAME", help="The newest run of this workflow.")
@click.option("--run", metavar="RUN", help="The run with this number, or `last`.")
@click.option("--partial", is_flag=True, help="Also when some rows have no outcome yet.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write only the results; - prints them.",
)
@click.option(
    "--format",
    metavar="NAME",
    help="With --to: jsonl, json, csv, tsv, txt or parquet; else by its suffix.",
)
@click.option("--force", is_flag=True, help="With --to: replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_obj
def export(settings: main.Globals, /, workflow: str | None, as_json: bool, **how: Any) -> None:
    if how["to"] is None and (how["format"] or how["force"]):
        raise click.UsageError(
            "--format and --force are for --to FILE", click.get_current_context()
        )
    printed = str(how["to"]) in ("-", "/dev/stdout")
    if printed and as_json:
        raise click.UsageError(
            "--json and --to - both print on standard output", click.get_current_context()
        )
    if printed:
        _print_results(settings, workflow, how)
        return
    summary, files = main.long_running(api.export)(workflow, **how, project=settings.project_dir)
    names = [str(file) for file in files]
    if as_json:
        print_json({**summary, "files": names})
    else:
        print_text("\n".join(names))


def _print_results(settings: main.Globals, workflow: str | None, how: dict[str, Any]) -> None:
    """Prints the results of a run: exactly, but on a terminal with escapes."""
    with tempfile.TemporaryDirectory(prefix="agac-export-") as folder:
        how |= {"to": Path(folder, "results"), "format": how["format"] or "jsonl"}
        _, files = main.long_running(api.export)(workflow, **how, project=settings.project_dir)
        if sys.stdout.isatty():
            print_text(files[0].read_text("utf-8", "replace").rstrip("\n"))
            return
        with files[0].open("rb") as results:
            shutil.copyfileobj(results, sys.stdout.buffer)
