"""`agac run`."""

from __future__ import annotations

from pathlib import Path

import click

from agac import api
from agac.cli import garbage, render
from agac.cli.main import Globals
from agac.cli.options import read_budget, read_variables


@click.command(help="Run a workflow. Run it again to go on: only what lacks an answer is asked.")
@click.option("-a", "--workflow", metavar="NAME", required=True, help="The workflow: its name, or its file.")
@click.option("--limit", type=click.IntRange(1), help="Only so many rows.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many rows first.")
@click.option("--input", "input_path", type=click.Path(path_type=Path), help="Read the rows from this file.")
@click.option("--model", help="Use this model for every stage: provider/model?key=value.")
@click.option("--var", "variables", metavar="NAME=VALUE", multiple=True, help="Change one of the workflow's vars.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="The most calls in flight; 1 is one by one.")
@click.option("--output", metavar="DIR", help="Folder for the results, relative to the project.")
@click.option("--fresh", is_flag=True, help="Ask everything anew: earlier results are not reused.")
@click.option("--budget", metavar="USD", help="The most the run may spend: 5, or usd=5,tokens=100000,calls=2000.")
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="Stop when more rows than this failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_obj
def command(
    settings: Globals,
    workflow: str,
    limit: int | None,
    offset: int,
    input_path: Path | None,
    model: str | None,
    variables: tuple[str, ...],
    concurrency: int | None,
    output: str | None,
    fresh: bool,
    budget: str | None,
    max_errors: int | None,
    as_json: bool,
) -> int:
    """Exit 0 all rows done, 1 stopped, 2 usage, 3 some rows failed, 4 stopped at a limit, 130 interrupted."""
    from agac.cli.progress import progress

    options = api.RunOptions(
        limit=limit,
        offset=offset,
        input=input_path,
        model=model,
        vars=read_variables(variables),
        concurrency=concurrency,
        output=output,
        fresh=fresh,
        budget=read_budget(budget),
        max_errors=max_errors,
    )
    run = api.run  # loads the engine
    garbage.from_here_on()
    report = run(workflow, options, project=settings.project_dir, watch=progress(settings.quiet), handle_signals=True)
    render.print_run(report, render.command_to_go_on(), quiet=settings.quiet, as_json=as_json)
    return report.exit_code
