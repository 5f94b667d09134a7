"""`agac card show`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.options import read_variables


@click.group(help="Look at AgentCards.")
def command() -> None:
    """Has one subcommand so far."""


@command.command("show", help="Show what the model will see of an AgentCard.")
@click.argument("name")
@click.option("--var", "variables", metavar="NAME=VALUE", multiple=True, help="A variable that the card uses.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(settings: Globals, name: str, variables: tuple[str, ...], as_json: bool) -> None:
    """The instruction goes to standard output as it is sent."""
    report = api.show_card(name, variables=read_variables(variables), project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_card(report)
