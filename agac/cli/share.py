"""`agac push`, `agac pull` and `agac remote doctor`: answers that a team shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.commands import CommandGroup
from agac.core.errors import ExitCode
from agac.core.types import counted, dollars

if TYPE_CHECKING:
    from agac.api.merge import MergeReport
    from agac.api.remote_doctor import RemoteReport
    from agac.api.share import PullReport, PushReport


@click.command(
    help=(
        "Put your own answers into the team's remote, as AGAC_REMOTE_WRITER. Nothing there "
        "is replaced."
    )
)
@main.json_option
@click.pass_obj
def push(settings: main.Globals, as_json: bool) -> None:
    report = main.long_running(api.push)(project=settings.project_dir)
    terminal.print_report(report, _pushed, as_json=as_json, quiet=settings.quiet)


def _pushed(report: PushReport) -> Iterator[str]:
    """Yields what was pushed, and what was not."""
    cost = f" ({dollars(report.usd)})" if report.usd else ""
    yield f"Pushed {counted(report.answers, 'answer')}{cost} to {report.remote} as {report.writer}"
    if report.there:
        yield f"{report.there:,} were there"
    if report.kept:
        yield (
            f"{report.kept:,} stay here: too long, with a secret, or of an address that "
            "agac.yml does not name"
        )


@click.command(
    help="Take the answers that workflows would ask for out of the team's remote. Makes no calls."
)
@main.workflow_options("Only for this workflow; may be given more than once.", required=False)
@main.json_option
@click.pass_obj
def pull(settings: main.Globals, workflows: tuple[str, ...], as_json: bool) -> None:
    report = main.long_running(api.pull)(workflows, project=settings.project_dir)
    terminal.print_report(report, _pulled, as_json=as_json, quiet=settings.quiet)


def _pulled(report: PullReport) -> Iterator[str]:
    """Yields what was pulled, and of whom."""
    whose = "".join(f"; {count:,} of {writer}" for writer, count in report.writers.items())
    cost = f" ({dollars(report.usd)})" if report.usd else ""
    yield f"Pulled {counted(report.answers, 'answer')}{cost} from {report.remote}{whose}"
    if report.unfit:
        yield f"{report.unfit:,} were left: the stages of today would not take them"
    yield from map(str, report.problems)


@click.group(cls=CommandGroup, help="Look at the folder or bucket in which a team shares answers.")
def remote() -> None:
    """Has the subcommands about the remote that `remote` of agac.yml names."""


@remote.command(
    "doctor", help="Show whose answers are in the remote, and try what you may do there."
)
@main.json_option
@click.pass_obj
def doctor(settings: main.Globals, as_json: bool) -> int:
    """Exit 0 fine, 1 where what is there can be replaced."""
    report = api.remote_doctor(project=settings.project_dir)
    terminal.print_report(report, _looked, as_json=as_json, quiet=settings.quiet)
    if report.create_only is False:
        return ExitCode.FAILED
    return ExitCode.DONE


def _looked(report: RemoteReport) -> Iterator[str]:
    """Yields whose answers are in the remote, and what may be done there."""
    for writer, packs in report.packs.items():
        trusted = "" if writer in report.trust else ", not trusted"
        yield f"{writer}: {counted(packs, 'pack')}{trusted}"
    for workflow, state in report.control.items():
        yield f"Batches of {workflow}: {state}"
    if report.create_only is not None:
        lasts = "can be replaced: do not use this remote"
        if report.create_only:
            lasts = "is never replaced"
        yield f"You may push as {report.writer}; what is there {lasts}"
    if report.forges:
        yield (
            "Your login may write in the folder of every writer: to trust one of them is "
            "to trust all who have it"
        )
    yield from map(str, report.problems)


@click.command(
    help="Write the outputs of a run in shards, once all of them are complete. Makes no calls."
)
@main.workflow_options("The workflow: its name, or its file.")
@click.option(
    "--of",
    type=click.IntRange(1),
    metavar="N",
    help="How many shards, where there are several such runs.",
)
@main.row_options
@main.model_option
@click.option("-o", "--output", type=click.Path(), metavar="DIR", help="Folder for the results.")
@main.json_option
@click.pass_obj
def merge(
    settings: main.Globals,
    /,
    workflows: tuple[str, ...],
    of: int | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Takes the options of the runs, which say which run is meant."""
    options = api.RunOptions(**given | {"vars": main.read_variables(given["vars"])})
    code = ExitCode.DONE
    for name in workflows:
        report = main.long_running(api.merge)(name, options, of=of, project=settings.project_dir)
        terminal.print_report(report, _merged, as_json=as_json, quiet=settings.quiet)
        code = max(code, report.exit_code)
    return code


def _merged(report: MergeReport) -> Iterator[str]:
    """Yields what was merged, and where the results are."""
    yield (
        f"Merged {counted(report.shards, 'shard')} of {report.record.workflow}: "
        f"{terminal.row_words(report.record.rows)}"
    )
    yield f"Results: {', '.join(terminal.from_here(file) for file in report.files)}"
    if report.not_written is not None:
        yield f"not written: {report.not_written.message}. {report.not_written.remedy}"
