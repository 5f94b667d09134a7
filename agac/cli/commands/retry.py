"""`agac retry`."""

from __future__ import annotations

from typing import Literal

import click

from agac import api
from agac.cli import garbage, render, typed
from agac.cli.main import Globals
from agac.cli.options import read_budget
from agac.cli.shown.retry import choice_lines


@click.command(
    help="Try failed rows of a run (RUN: its number, or `last`) again, also those that an ordinary run leaves alone."
)
@click.argument("run", metavar="RUN")
@click.option("--row", "rows", metavar="ID", multiple=True, help="Only this row; may be given more than once.")
@click.option("--stage", metavar="NAME", help="Only rows that failed at this stage.")
@click.option("--error", metavar="KIND", help="Only rows that failed so, as SchemaMismatch.")
@click.option("--from", "from_stage", metavar="STAGE", help="Ask this stage and those after it anew, of done rows too.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), metavar="N", help="The most calls in flight.")
@click.option("--run-mode", type=click.Choice(["sync", "batch"]), help="Ask so, whatever the run was begun with.")
@click.option("--budget", metavar="USD", help="The most the run may spend: 5, or usd=5,tokens=100000,calls=2000.")
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="Stop when more rows than this failed.")
@click.option("--dry-run", is_flag=True, help="Show what would be tried again, and ask nothing.")
@click.option("--yes", is_flag=True, help="Go on without a question: done rows, and above confirm_above.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(
    settings: Globals,
    run: str,
    rows: tuple[str, ...],
    stage: str | None,
    error: str | None,
    from_stage: str | None,
    concurrency: int | None,
    run_mode: Literal["sync", "batch"] | None,
    budget: str | None,
    max_errors: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Exit codes as `agac run`."""
    from agac.cli.progress import progress

    choice = api.Retry(rows=api.row_ids(rows), stage=stage, error=error, from_stage=from_stage)
    found = api.retry_choice(run, choice, project=settings.project_dir)
    if dry_run:
        if as_json:
            render.print_json(found.as_json())
        else:
            render.print_text("\n".join(choice_lines(found)))
        return 0
    if found.done > 1 and not yes:
        _agree(found)
    options = api.RunOptions(
        concurrency=concurrency, budget=read_budget(budget), max_errors=max_errors, yes=yes, run_mode=run_mode
    )
    retry = api.retry
    garbage.from_here_on()
    report = retry(
        found.run,
        choice,
        options,
        project=settings.project_dir,
        watch=progress(settings.quiet),
        confirm=render.agreed,
        handle_signals=True,
    )
    render.print_run(report, typed.command_line(), quiet=settings.quiet or as_json)
    if as_json:
        render.print_json(report.as_json())
    return report.exit_code


def _agree(found: api.RetryChoice) -> None:
    """Done rows cost again: nobody does that by a slip."""
    said = f"{found.done:,} done rows of run {found.run} are asked anew"
    answer = render.agreed(f"{said}. Go on?")
    if not answer:
        raise api.UsageError(
            f"nothing was asked: {said}" if answer is None else "nothing was asked",
            remedy="Add --yes to go on, or look first with --dry-run.",
        )
