"""`agac doctor`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import garbage, render
from agac.cli.main import Globals
from agac.cli.shown.batches import doctor_lines


@click.command(
    help="Compare the store with the providers: take over batches of ours that it does not know, name lost ones, look "
    "at those that were given up, list files that lie there for nothing. Says what it did."
)
@click.option("--clean", is_flag=True, help="Delete our files at the providers that nothing needs any more.")
@click.option("--adopt", metavar="ID", help="This batch at the provider is the one that nobody could find.")
@click.option("--resubmit", is_flag=True, help="It is not there, or what it left is lost: ask its requests again.")
@click.option(
    "--batch-id", metavar="ID", help="With --adopt or --resubmit: which batch, where several want a decision."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(
    settings: Globals, clean: bool, adopt: str | None, resubmit: bool, batch_id: str | None, as_json: bool
) -> int:
    """Exit 0 when all is well or was set right, 75 when a batch waits for a decision, 1 when a provider failed."""
    if adopt is not None and resubmit:
        raise click.UsageError("--adopt and --resubmit exclude one another", click.get_current_context())
    if batch_id is not None and adopt is None and not resubmit:
        raise click.UsageError("--batch-id goes with --adopt or --resubmit", click.get_current_context())
    doctor = api.doctor
    garbage.from_here_on()
    report = doctor(clean=clean, adopt=adopt, resubmit=resubmit, batch_id=batch_id, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(doctor_lines(report)))
    return report.exit_code
