"""`agac plan`."""

from __future__ import annotations

from typing import Any

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.options import read_variables


@click.command(help="Show what a run would ask, reuse and cost, and why. Asks nothing.")
@click.option(
    "-a", "--workflow", "workflows", metavar="NAME", required=True, multiple=True,
    help="The workflow: its name, or its file; may be given more than once.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="Only so many rows.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many rows first.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only so many rows, drawn by chance.")
@click.option("--seed", type=int, metavar="N", help="Draws another sample; 0 when left out.")
@click.option("--input", metavar="INPUT", help="Read the rows from here: a file, a pattern in quotes, - for stdin.")
@click.option("--model", help="Use this model for every stage: provider/model?key=value.")
@click.option("--var", "vars", metavar="NAME=VALUE", multiple=True, help="Change one of the workflow's vars.")
@click.option("--fresh", is_flag=True, help="As if nothing were reused.")
@click.option("--stage", metavar="NAME", help="Ask this stage only.")
@click.option("--from", "from_stage", metavar="STAGE", help="Ask this stage and those after it only.")
@click.option("--until", metavar="STAGE", help="Ask no stage after this one.")
@click.option("--no-retry-failed", is_flag=True, help="Leave failed rows as they are.")
@click.option("--show", type=click.IntRange(0), default=0, metavar="N", help="Print the first N rendered prompts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, /, workflows: tuple[str, ...], show: int, as_json: bool, **given: Any) -> None:
    """Reads files and the store only."""
    given |= {"vars": read_variables(given["vars"]), "retry_failed": not given.pop("no_retry_failed")}
    options = api.RunOptions(**given)
    plans = [api.plan_run(name, options, show=show, project=settings.project_dir) for name in workflows]
    render.print_plans(plans, workflows, as_json=as_json)
