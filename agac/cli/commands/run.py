"""`agac run`."""

from __future__ import annotations

from typing import Any

import click

from agac import api
from agac.cli import garbage, render, typed
from agac.cli.main import Globals
from agac.cli.options import choosing_rows, choosing_stages, read_budget, read_variables


@click.command(help="Run a workflow. Run it again to go on: only what lacks an answer is asked.")
@click.option(
    "-a", "--workflow", "workflows", metavar="NAME", required=True, multiple=True,
    help="The workflow: its name, or its file. Several run one after the other.",
)  # fmt: skip
@choosing_rows
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), metavar="N", help="The most calls in flight; 1 is one by one."
)
@click.option("--output", type=click.Path(), metavar="DIR", help="Folder for the results, relative to the project.")
@click.option("--fresh", is_flag=True, help="Ask everything anew: earlier results are not reused.")
@click.option("--stage", metavar="NAME", help="Ask this stage only; rows that lack what it needs stay open.")
@choosing_stages
@click.option("--budget", metavar="USD", help="The most the run may spend: 5, or usd=5,tokens=100000,calls=2000.")
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="Stop when more rows than this failed.")
@click.option("--dry-run", is_flag=True, help="Show what would be asked and what it costs, as `agac plan` does.")
@click.option("--show", type=click.IntRange(0), default=0, metavar="N", help="With --dry-run: the first N prompts.")
@click.option("--yes", is_flag=True, help="Go on without asking, also above confirm_above and beside stale batches.")
@click.option("--wait", is_flag=True, help="With batches: stay, and go through all stages to the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; a list for several workflows.")
@click.pass_obj
def command(
    settings: Globals, /, workflows: tuple[str, ...], as_json: bool, dry_run: bool, show: int, **given: Any
) -> int:
    """Exit 0 all rows done, 1 stopped, 2 usage, 3 some rows failed, 4 stopped at a limit, 130 interrupted."""
    from agac.cli.progress import progress

    given |= {"vars": read_variables(given["vars"]), "budget": read_budget(given["budget"])}
    given["retry_failed"] = not given.pop("no_retry_failed")
    options = api.RunOptions(**given)
    if show and not dry_run:
        raise click.UsageError("--show N prints prompts of a dry run: add --dry-run, or use `agac plan`")
    if dry_run:
        plans = [api.plan_run(name, options, show=show, project=settings.project_dir) for name in workflows]
        render.print_plans(plans, workflows, as_json=as_json)
        return 0
    run = api.run_several  # loads the engine
    garbage.from_here_on()
    ended: list[api.RunReport] = []

    def tell(report: api.RunReport) -> None:
        scope = options.scope([stage["name"] for stage in report.summary["stages"]])
        again = typed.command_to_go_on(report.summary["workflow"], workflows)
        render.print_run(report, again, quiet=settings.quiet or as_json, scope=scope)
        ended.append(report)

    raised = True
    try:
        code = run(
            workflows,
            options,
            tell=tell,
            project=settings.project_dir,
            watch=progress(settings.quiet),
            confirm=render.agreed,
            handle_signals=True,
        )
        raised = False
    finally:
        _print_ended(ended, workflows, len(ended) if raised else len(ended) - 1, as_json=as_json)
    return code


def _print_ended(ended: list[api.RunReport], workflows: tuple[str, ...], last: int, *, as_json: bool) -> None:
    """What came to an end, also when the one after it raised, and which workflows nobody got to after the `last`."""
    left = workflows[last + 1 :]
    if ended and left:  # else it was refused as a whole
        render.say("\n".join(typed.lines_for_left(workflows[last], left, workflows)))
    if as_json and ended:
        found = [report.as_json() for report in ended]
        render.print_json(found if len(workflows) > 1 else found[0])
