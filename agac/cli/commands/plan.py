"""`agac plan`."""

from __future__ import annotations

from typing import Any

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.options import choosing_rows, choosing_stages, read_variables


@click.command(help="Show what a run would ask, reuse and cost, and why. Asks nothing.")
@click.option(
    "-a", "--workflow", "workflows", metavar="NAME", required=True, multiple=True,
    help="The workflow: its name, or its file; may be given more than once.",
)  # fmt: skip
@choosing_rows
@click.option("--fresh", is_flag=True, help="As if nothing were reused.")
@click.option("--stage", metavar="NAME", help="Ask this stage only.")
@choosing_stages
@click.option("--show", type=click.IntRange(0), default=0, metavar="N", help="Print the first N rendered prompts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, /, workflows: tuple[str, ...], show: int, as_json: bool, **given: Any) -> None:
    """Reads files and the store only."""
    given |= {"vars": read_variables(given["vars"]), "retry_failed": not given.pop("no_retry_failed")}
    options = api.RunOptions(**given)
    plans = [api.plan_run(name, options, show=show, project=settings.project_dir) for name in workflows]
    render.print_plans(plans, workflows, as_json=as_json)
