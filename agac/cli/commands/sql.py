"""`agac sql`."""

from __future__ import annotations

import shutil
import sys

import click

from agac import api
from agac.cli import render
from agac.cli.live.text import is_unicode
from agac.cli.main import Globals
from agac.cli.shown.sql import Rows, csv_lines, json_lines, text_lines, views_lines


@click.command(help="Ask the store a question in SQL: one SELECT. Without QUERY, the views that there are to ask.")
@click.argument("words", metavar="[QUERY]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, an object a row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Print the first N rows at most.")
@click.pass_obj
def command(settings: Globals, words: tuple[str, ...], as_json: bool, as_csv: bool, limit: int | None) -> None:
    """QUERY in quotes, or - for standard input."""
    if len(words) > 1:
        raise click.UsageError("put the query in quotes: agac sql 'SELECT …'", click.get_current_context())
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude one another", click.get_current_context())
    if not words:
        _print_views(as_json)
        return
    with api.sql(words[0], project=settings.project_dir) as answer:
        rows = Rows(answer, limit)
        if as_json:
            lines = json_lines(rows, only_ascii=not is_unicode(sys.stdout.encoding))
        elif as_csv:
            lines = csv_lines(rows)
        else:
            lines = text_lines(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        render.print_lines(lines)
    if rows.more and not settings.quiet:
        render.say(f"Only the first {limit:,}: there are more.")


def _print_views(as_json: bool) -> None:
    if as_json:
        render.print_json([{"name": v.name, "meaning": v.meaning, "columns": v.columns} for v in api.views()])
    else:
        render.print_lines(views_lines(api.views()))
