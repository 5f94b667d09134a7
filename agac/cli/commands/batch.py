"""`agac batch`: what became of what was submitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agac import api
from agac.cli import garbage, render
from agac.cli.main import Globals
from agac.cli.options import read_seconds
from agac.cli.shown import batches as shown

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(help="Follow batches, take what is ready, end them. ID is agac's number of a batch, or the provider's id.")
def command() -> None:
    """What `agac run` submits with `run_mode: batch`."""


def naming_one(command: Command) -> Command:
    """A batch may be named in its place, or by a flag."""
    command = click.option("--batch-id", "flag_id", metavar="ID", help="The same as ID.")(command)
    return click.argument("batch_id", metavar="[ID]", required=False)(command)


def the_one(batch_id: str | None, flag_id: str | None) -> str | None:
    """The batch that was named; None: none was. Raises UsageError where two were."""
    if batch_id is not None and flag_id is not None and batch_id != flag_id:
        raise click.UsageError(f"{batch_id} and --batch-id {flag_id} name two batches", click.get_current_context())
    return batch_id if batch_id is not None else flag_id


@command.command(
    "status",
    short_help="Show how batches stand at their providers.",
    help="Show how a batch stands at its provider; without ID, the open ones of the last run.",
)
@naming_one
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the provider's own words.")
@click.pass_obj
def status(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> None:
    """Exit 2 when there is none. A provider that cannot be asked is no error: what is known is shown."""
    report = api.batch_status(the_one(batch_id, flag_id), project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(shown.status_lines(report)))


@command.command("list", help="List the open batches of all runs.")
@click.option("-a", "--workflow", metavar="NAME", help="Only batches of this workflow.")
@click.option("--all", "closed", is_flag=True, help="Those, too, that are in or never came to be.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(settings: Globals, workflow: str | None, closed: bool, as_json: bool) -> None:
    """Reads the store only."""
    report = api.batch_list(workflow, all=closed, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(shown.list_lines(report, closed=closed)))


@command.command(
    "retrieve",
    short_help="Take what is ready, and go on with it.",
    help="Take what is ready, go on with the stages that follow, submit what comes next, and write the results when "
    "all is done; without ID, for all batches of the last run.",
)
@naming_one
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def retrieve(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> int:
    """Exit 0 when anything went on or all is done, 75 when nothing was ready; else as `agac run`."""
    from agac.cli.progress import progress

    named, run = the_one(batch_id, flag_id), api.batch_retrieve
    garbage.from_here_on()
    report = run(
        named,
        project=settings.project_dir,
        watch=progress(settings.quiet),
        handle_signals=True,
    )
    render.print_retrieved(report, quiet=settings.quiet or as_json)
    if as_json:
        render.print_json(report.as_json())
    return report.exit_code


@command.command("wait", help="Wait until a batch has ended, or all open ones of the last run. Takes nothing.")
@naming_one
@click.option("--timeout", metavar="TIME", help="Wait no longer: 90, 30m, 12h. The exit code is 75 then.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def wait(settings: Globals, batch_id: str | None, flag_id: str | None, timeout: str | None, as_json: bool) -> int:
    """Exit 0 when they have ended, 75 past the timeout."""
    named, patience = the_one(batch_id, flag_id), read_seconds("--timeout", timeout)
    run = api.batch_wait
    garbage.from_here_on()
    if not settings.quiet and render.is_watched():
        render.say("Waiting; Ctrl-C ends the waiting, not the batches.")
    report = run(named, timeout=patience, project=settings.project_dir, handle_signals=True)
    if as_json:
        render.print_json(report.as_json())
    elif not settings.quiet:
        render.print_text("\n".join(shown.waited_lines(report)))
    return report.exit_code


@command.command(
    "cancel", help="End a batch at its provider, or all open ones of the last run. What is finished is kept."
)
@naming_one
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def cancel(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> int:
    """Its finished requests are paid for: `agac batch retrieve` takes them."""
    named, run = the_one(batch_id, flag_id), api.batch_cancel
    garbage.from_here_on()
    report = run(named, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    elif not settings.quiet:
        render.print_text("\n".join(shown.cancelled_lines(report)))
    return report.exit_code
