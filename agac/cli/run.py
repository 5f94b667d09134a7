"""`agac run` and `agac retry`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.plan import print_plans
from agac.cli.run_report import print_run
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.spec.rules import Budget


def read_budget(text: str | None) -> Budget | None:
    """Reads `--budget 5` or `--budget usd=5,tokens=100000,calls=2000`."""
    if text is None:
        return None
    from agac.spec.rules import Budget

    limits: dict[str, float] = {}
    for part in text.split(","):
        unit, sign, number = part.partition("=")
        unit = unit.strip()
        if not sign:
            unit = "usd"
            number = part
        if unit not in ("usd", "tokens", "calls") or unit in limits:
            raise click.UsageError(
                f"--budget {text}: write 5 for dollars, or usd=5,tokens=100000,calls=2000"
            )
        limits[unit] = _read_limit(text, unit, number)
    return Budget(limits.get("usd"), _whole(limits.get("tokens")), _whole(limits.get("calls")))


def _read_limit(text: str, unit: str, number: str) -> float:
    """Reads the number of one unit of `--budget TEXT`."""
    try:
        value = float(number.strip().lstrip("$").replace("_", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15 or (unit != "usd" and value != int(value)):
        kind = "a number above 0" if unit == "usd" else "a whole number above 0"
        raise click.UsageError(f"--budget {text}: {unit} takes {kind}")
    return value


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


@click.command(help="Run a workflow. Run it again to resume: only tasks without an answer are run.")
@main.workflow_options("The workflow: its name, or its file. Several run one after the other.")
@main.row_options
@main.model_option
@main.concurrency_option
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="DIR",
    help="Folder for the results, relative to the project.",
)
@click.option("--fresh", is_flag=True, help="Run every task again; do not reuse earlier results.")
@click.option(
    "--discard-decisions",
    is_flag=True,
    help="With --fresh: what people decided does not count any more.",
)
@click.option(
    "--stage", metavar="NAME", help="Run only this stage; rows that lack what it needs stay open."
)
@main.stage_options
@main.budget_option
@main.max_errors_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be called and what it costs, as `agac plan` does.",
)
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --dry-run: the first N prompts.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation (cost above confirm_above, stale batches).",
)
@click.option("--wait", is_flag=True, help="Wait for batches and run all stages to the end.")
@click.option(
    "--stream", is_flag=True, help="Make one call at a time, and show each reply as it is written."
)
@main.traces_option
@main.executor_option
@click.option(
    "--accept-store",
    is_flag=True,
    help="Continue although another or a newer store wrote the results.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as JSON; a list for several workflows.",
)
@click.pass_obj
def run(
    settings: main.Globals,
    /,
    workflows: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    show: int,
    **flags: Any,
) -> int:
    """Exit 0 all rows done, 1 stopped, 2 usage, 3 some rows failed, 4 stopped at a limit, 130
    interrupted."""
    flags |= {"vars": main.read_variables(flags["vars"]), "budget": read_budget(flags["budget"])}
    flags["retry_failed"] = not flags.pop("no_retry_failed")
    options = api.RunOptions(**flags)
    if show and not dry_run:
        raise click.UsageError(
            "--show N prints prompts of a dry run: add --dry-run, or use `agac plan`"
        )
    root = settings.project_dir
    if dry_run:
        plans = [api.plan(name, options, show=show, project=root) for name in workflows]
        return print_plans(plans, workflows, as_json=as_json)
    reports: list[api.RunReport] = []

    def print_ended(report: api.RunReport) -> None:
        scope = options.scope([stage.name for stage in report.record.stages])
        command = terminal.command_to_resume(report.record.workflow, workflows)
        print_run(report, command, quiet=settings.quiet or as_json, scope=scope)
        if options.export_traces:
            terminal.say(f"Traces: {options.export_traces}")
        reports.append(report)

    raised = True
    try:
        code = main.long_running(api.run_several)(
            workflows,
            options,
            tell=print_ended,
            project=root,
            progress=not settings.quiet,
            confirm=terminal.confirmed,
            handle_signals=True,
        )
        raised = False
    finally:  # also when a later workflow raised an error
        if reports:  # without one the command was refused as a whole
            _say_not_run(workflows, len(reports) + raised)
        if as_json and reports:
            _print_summaries(reports, workflows)
    return code


def _print_summaries(reports: list[api.RunReport], workflows: tuple[str, ...]) -> None:
    """Prints the summary of a run as JSON; a list where several workflows were asked for."""
    summaries = [report.as_json() for report in reports]
    if len(workflows) > 1:
        terminal.print_json(summaries)
    else:
        terminal.print_json(summaries[0])


def _say_not_run(workflows: tuple[str, ...], begun: int) -> None:
    """Says which workflows were not run, since one of those that were begun stopped."""
    left = workflows[begun:]
    if not left:
        return
    words = shlex.split(terminal.command_to_resume(left[0], workflows, fresh=True))
    for name in left[1:]:
        words += ["-a", name]
    terminal.say(
        f"Not run, since {workflows[begun - 1]} stopped before: {', '.join(left)}\n"
        f"  Run with: {shlex.join(words)}"
    )


calls_options = main.in_order(  # what to do about calls of tools that may or may not have happened
    click.option(
        "--repeat-calls",
        "calls",
        flag_value="repeat",
        help="Make calls of tools again of which nobody knows.",
    ),
    click.option(
        "--skip-calls",
        "calls",
        flag_value="skip",
        help="Go on without these calls; the model is told so.",
    ),
)


@click.command(
    help=(
        "Run failed rows of a run (RUN: its number, or `last`) again, also those that "
        "`agac run` leaves."
    )
)
@click.argument("run", metavar="RUN")
@click.option(
    "--row", "rows", metavar="ID", multiple=True, help="Only this row; may be given more than once."
)
@click.option("--stage", metavar="NAME", help="Only rows that failed at this stage.")
@click.option(
    "--error", metavar="KIND", help="Only rows that failed with this error, such as SchemaMismatch."
)
@click.option(
    "--from",
    "from_stage",
    metavar="STAGE",
    help="Rerun this stage and those after it, of done rows too.",
)
@click.option(
    "--discard-decisions",
    "discard",
    is_flag=True,
    help="What people decided about these rows is void.",
)
@calls_options
@main.concurrency_option
@click.option(
    "--run-mode",
    type=click.Choice(["sync", "batch"]),
    help="Use this mode, whatever the run started with.",
)
@main.executor_option
@main.budget_option
@main.max_errors_option
@click.option("--dry-run", is_flag=True, help="Show what would be run again, and make no calls.")
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation (done rows, cost above confirm_above)."
)
@main.json_option
@click.pass_obj
def retry(settings: main.Globals, /, run: str, dry_run: bool, as_json: bool, **flags: Any) -> int:
    """Exits as `agac run` does."""
    from agac.api.plan import ask  # loads the API

    filters = {name: flags.pop(name) for name in ("stage", "error", "from_stage", "discard")}
    selection = api.Retry(
        rows=api.row_ids(flags.pop("rows")), calls=flags.pop("calls") or "ask", **filters
    )
    choice = api.retry_choice(run, selection, project=settings.project_dir)
    if dry_run:
        terminal.print_report(choice, retry_lines, as_json=as_json)
        return 0
    if choice.done > 1 and not flags["yes"]:
        what = f"{choice.done:,} done rows of run {choice.run} will be rerun"  # and paid again
        remedy = "Add --yes to continue, or look first with --dry-run."
        ask(terminal.confirmed, "no calls were made", what, "Continue?", remedy)
    options = api.RunOptions(**flags | {"budget": read_budget(flags["budget"])})
    report = main.long_running(api.retry)(
        choice.run, selection, options, project=settings.project_dir, progress=not settings.quiet,
        confirm=terminal.confirmed, handle_signals=True,
    )  # fmt: skip
    command = choice.go_on  # for what else failed
    if report.record.rows.open:
        command = terminal.typed_command()
    print_run(report, command, quiet=settings.quiet or as_json)
    if as_json:
        terminal.print_json(report.as_json())
    return report.exit_code


def retry_lines(choice: api.RetryChoice) -> Iterator[str]:
    """Yields which rows a retry would run again, from which stage, and its calls."""
    yield f"Run {choice.run} of {choice.workflow}: {counted(choice.rows, 'row')} would be run again"
    for error in choice.by_error:
        yield f"  {error['stage']}: {error['type']}, {counted(error['rows'], 'row')}"
    if choice.open:
        yield f"  left open when this retry was interrupted: {counted(choice.open, 'row')}"
    if choice.done:
        yield f"  not failed: {counted(choice.done, 'row')}"
    if choice.stages:
        yield f"Will be rerun: {', '.join(choice.stages)}"
    yield f"Calls: at least {choice.calls_at_least:,}"
