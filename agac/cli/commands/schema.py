"""`agac schema`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.editors import schemas_lines

KINDS = ("workflow", "project", "card")


@click.command(help="Print the JSON Schema of workflows, of agac.yml (project) or of AgentCards (card), for editors.")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option("--write", is_flag=True, help="Write all of them into .agac/schemas/, and show an editor's settings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; a schema always is.")
@click.pass_obj
def command(settings: Globals, kind: str | None, write: bool, as_json: bool) -> None:
    """A schema needs no project; --write does."""
    if write == (kind is not None):
        raise click.UsageError(f"Name one of {', '.join(KINDS)}, or give --write for all of them.")
    if kind is not None:
        render.print_json(api.file_schema(kind))
        return
    report = api.write_schemas(project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(schemas_lines(report)))
