"""`agac graph`: draws a workflow as SVG or Mermaid text."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.terminal import (
    print_json,
    print_text,
)
from agac.core.text import is_unicode
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.api.graph import GraphReport


@click.command(
    help="Draw a workflow: its stages, their needs, and the outcomes of its last run. Prints an "
    "SVG for a file or a pipe, and Mermaid text on a terminal; see --mermaid and --output."
)
@main.workflow_options("The workflow: its name, or its file.", required=False)
@click.option(
    "--run",
    metavar="RUN",
    help="The workflow as it was in a run (its number, or `last`), with its counts.",
)
@click.option("--mermaid", is_flag=True, help="Mermaid text instead, as Markdown pages draw it.")
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the drawing to this file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the content of the drawing as JSON.")
@click.pass_obj
def graph(
    settings: main.Globals,
    workflows: tuple[str, ...],
    run: str | None,
    mermaid: bool,
    file: Path | None,
    as_json: bool,
) -> None:
    if as_json and (mermaid or file is not None):
        raise click.UsageError(
            "--json excludes --mermaid and --output.", click.get_current_context()
        )
    if len(workflows) > 1:
        raise click.UsageError(f"agac graph takes one workflow, not {len(workflows)}")
    report = api.graph(next(iter(workflows), None), run=run, project=settings.project_dir)
    if as_json:
        print_json(report.as_json())
    else:
        print_drawing(report, file, mermaid=mermaid, quiet=settings.quiet)


def print_drawing(report: GraphReport, file: Path | None, *, mermaid: bool, quiet: bool) -> None:
    """Writes a workflow as a drawing into a file, or prints it. A terminal gets Mermaid text: it
    shows no SVG."""
    mermaid = mermaid or (file is None and sys.stdout.isatty())
    text = report.svg()
    if mermaid:
        text = report.mermaid()
        _warn_if_large(text, len(report.edges()))
    if file is not None:
        api.save_drawing(text, file)
        if not quiet:
            print_text(str(file))
        return
    # other characters become their numbers, as each of the two forms has them
    if not is_unicode(sys.stdout.encoding):
        sign = "#" if mermaid else "&#"
        text = re.sub(r"[^\x00-\x7f]", lambda match: f"{sign}{ord(match[0])};", text)
    print_text(text.rstrip("\n"))


def _warn_if_large(text: str, edges: int) -> None:
    """Warns of Mermaid text that most pages do not draw."""
    if edges <= MERMAID_EDGES and len(text) <= MERMAID_CHARACTERS:
        return
    message = (
        f"{counted(edges, 'line')} in {counted(len(text), 'character')}: pages draw Mermaid "
        f"text of {MERMAID_EDGES} lines and {MERMAID_CHARACTERS:,} characters at most, unless "
        "their maxEdges and maxTextSize say otherwise; the SVG has no such limit"
    )
    terminal.say_error(message, word="warning", colour="yellow")


MERMAID_EDGES = 500
MERMAID_CHARACTERS = 50_000
"""The largest drawing of a page with Mermaid's default settings (`maxEdges`, `maxTextSize`)."""
