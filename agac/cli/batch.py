"""`agac batch` and `agac doctor`: the batches of a project at their providers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import terminal
from agac.cli.commands import CommandGroup
from agac.cli.main import Globals, executor_option, json_option, long_running
from agac.cli.run_batches import retrieved_line, undecided_lines
from agac.cli.run_report import print_run
from agac.core.errors import ExitCode
from agac.core.reading import read_as
from agac.core.text import duration, plain
from agac.core.types import counted, iso
from agac.engine.stage_summary import CallCost

if TYPE_CHECKING:
    from agac.api.batches import BatchLine, BatchReport
    from agac.api.retrieve import CancelReport, DoctorReport, RetrieveReport, WaitReport
    from agac.store.batches import BatchView


@click.group(
    cls=CommandGroup,
    help=(
        "Follow batches, retrieve their results, cancel them. ID is agac's number of a "
        "batch, or the provider's id."
    ),
)
def batch() -> None:
    """The batches that `agac run` submits with `run_mode: batch`."""


def batch_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a batch an argument or a flag. Raises UsageError where two are given."""

    @wraps(command)
    def with_one(*values: Any, batch_id: str | None, flag_id: str | None, **others: Any) -> Any:
        if batch_id is not None and flag_id is not None and batch_id != flag_id:
            raise click.UsageError(
                f"{batch_id} and --batch-id {flag_id} name two batches", click.get_current_context()
            )
        return command(*values, batch_id=flag_id if batch_id is None else batch_id, **others)

    flag = click.option("--batch-id", "flag_id", metavar="ID", help="The same as ID.")
    return click.argument("batch_id", metavar="[ID]", required=False)(flag(with_one))


@batch.command(
    "status",
    short_help="Show the state of batches at their providers.",
    help=(
        "Show the state of a batch at its provider; without ID, of the open ones of the "
        "last run, or else its last."
    ),
)
@batch_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the provider's own words.")
@click.pass_obj
def status(settings: Globals, batch_id: str | None, as_json: bool) -> None:
    """Exit 2 when there is none. A provider that does not answer is not an error: the stored state
    is shown."""
    terminal.print_report(
        api.batch_status(batch_id, project=settings.project_dir), status_lines, as_json=as_json
    )


@batch.command("list", help="List the open batches of all runs.")
@click.option("-a", "--workflow", metavar="NAME", help="Only batches of this workflow.")
@click.option(
    "--all",
    "closed",
    is_flag=True,
    help="Include closed batches: ingested, rejected or never created.",
)
@json_option
@click.pass_obj
def list_(settings: Globals, workflow: str | None, closed: bool, as_json: bool) -> None:
    report = api.batch_list(workflow, all=closed, project=settings.project_dir)
    terminal.print_report(report, lambda found: list_lines(found, closed=closed), as_json=as_json)


@batch.command(
    "retrieve",
    short_help="Retrieve finished batches and run the next stages.",
    help="Retrieve finished batches, run the next stages, submit new batches, and write the "
    "results when all rows are finished; without ID, for all batches of the last run.",
)
@batch_argument
@click.option(
    "--run",
    metavar="RUN",
    help="This run (its number, or `last`), also where a newer one replaced it.",
)
@click.option(
    "--no-submit",
    is_flag=True,
    help="Only store finished answers: submit no batches and make no calls.",
)
@executor_option
@json_option
@click.pass_obj
def retrieve(
    settings: Globals,
    batch_id: str | None,
    run: str | None,
    no_submit: bool,
    executor: Any,
    as_json: bool,
) -> int:
    """Exit 0 when a batch was retrieved or all rows are finished, 75 when no batch was ready; else
    as `agac run`."""
    if batch_id is not None and run is not None:
        raise click.UsageError(
            "--run takes all batches of a run: leave out ID", click.get_current_context()
        )
    report = long_running(api.retrieve)(
        batch_id, run=run, submit=not no_submit, executor=executor, project=settings.project_dir,
        progress=not settings.quiet, handle_signals=True,
    )  # fmt: skip
    _print_retrieved(report, quiet=settings.quiet or as_json)
    if as_json:
        terminal.print_json(report.as_json())
    return report.exit_code


def _print_retrieved(report: RetrieveReport, *, quiet: bool) -> None:
    """Says what became of batches, and of the run that they are of."""
    invocation = report.run.invocation_record
    waits = report.exit_code is ExitCode.NOT_READY and not report.ready
    is_told = False
    if report.superseded_by is not None:
        if not quiet:
            terminal.print_lines(map(retrieved_line, report.ingested))
    elif not waits:
        from agac.engine.invocation import Scope  # the engine is loaded by now

        print_run(report.run, report.again, quiet=quiet, scope=Scope())
        is_told = report.run.record.complete or bool(invocation.batches.open)
    if not quiet and not is_told:
        terminal.say(terminal.sentence(report.message))
    for line in undecided_lines(invocation) if waits else ():
        terminal.say(line)


@batch.command(
    "wait",
    help="Wait until a batch has ended, or all open ones of the last run. Retrieves nothing.",
)
@batch_argument
@click.option(
    "--timeout", metavar="TIME", help="Wait at most: 90, 30m, 12h. The exit code is 75 then."
)
@json_option
@click.pass_obj
def wait(settings: Globals, batch_id: str | None, timeout: str | None, as_json: bool) -> int:
    seconds = None if timeout is None else _seconds(timeout)
    call = long_running(api.batch_wait)
    if not settings.quiet and sys.stderr.isatty():
        terminal.say("Waiting; Ctrl-C stops waiting, and does not cancel the batches.")
    report = call(batch_id, timeout=seconds, project=settings.project_dir)
    terminal.print_report(report, waited_lines, as_json=as_json, quiet=settings.quiet)
    return report.exit_code


def _seconds(timeout: str) -> float:
    """Reads a number of seconds, or a time as in agac's files."""
    from agac.spec import validation  # loads pydantic

    try:
        if timeout.replace(".", "", 1).isdigit():
            return float(timeout)
        return float(validation.duration(timeout))
    except ValueError as error:
        raise click.UsageError(f"--timeout {timeout}: {error}") from None


@batch.command(
    "cancel",
    help=(
        "Cancel a batch at its provider, or all open ones of the last run. Finished "
        "requests are kept."
    ),
)
@batch_argument
@json_option
@click.pass_obj
def cancel(settings: Globals, batch_id: str | None, as_json: bool) -> int:
    """Its finished requests are paid for: `agac batch retrieve` stores their answers."""
    report = long_running(api.batch_cancel)(batch_id, project=settings.project_dir)
    terminal.print_report(report, cancelled_lines, as_json=as_json, quiet=settings.quiet)
    return report.exit_code


@click.command(
    help="Compare the store with the providers: adopt batches of agac that it does not know, find "
    "lost ones, check abandoned ones, list leftover files. Reports what it changed."
)
@click.option(
    "--clean", is_flag=True, help="Delete agac's files at the providers that no batch needs."
)
@click.option(
    "--adopt", metavar="ID", help="Link the batch that agac could not find to this provider batch."
)
@click.option(
    "--resubmit", is_flag=True, help="The batch or its results are lost: send its requests again."
)
@click.option(
    "--batch-id",
    metavar="ID",
    help="With --adopt or --resubmit: which batch, where several need a decision.",
)
@click.option(
    "--install",
    is_flag=True,
    help="Only show what agac needs to be installed, and what is missing.",
)
@json_option
@click.pass_obj
def doctor(settings: Globals, /, install: bool, as_json: bool, **given: Any) -> int:
    """Exit 0 when all is well or was repaired, 75 when a batch needs a decision, 1 when a provider
    failed."""
    if install:
        from agac.cli.installation import print_installation

        return print_installation(as_json=as_json)
    if given["adopt"] is not None and given["resubmit"]:
        raise click.UsageError(
            "--adopt and --resubmit exclude one another", click.get_current_context()
        )
    if given["batch_id"] is not None and given["adopt"] is None and not given["resubmit"]:
        raise click.UsageError(
            "--batch-id goes with --adopt or --resubmit", click.get_current_context()
        )
    report = long_running(api.doctor)(project=settings.project_dir, **given)
    terminal.print_report(report, doctor_lines, as_json=as_json)
    return report.exit_code


STEP_WORDS = {"NEEDS_HUMAN": "needs a decision", "NOT_CREATED": "not created", "REJECTED": "failed"}
"""The status of a batch by its step, where that says more than the provider's last status."""


def status_word(batch: BatchView) -> str:
    """Says the status of a batch: the same words for every provider, and others for steps that no
    provider has."""
    word = STEP_WORDS.get(batch.state) or batch.status
    if word:
        return word
    return "in_progress" if batch.provider_id else "not submitted"


def status_lines(report: BatchReport) -> Iterator[str]:
    """Yields the state of batches, and the cost of their runs so far with the most that open
    batches can add.

    One batch is described in full; several have a line each, with what needs attention below.
    """
    yield from (f"not checked: {plain(terminal.first_line(reason))}" for reason in report.not_asked)
    lines = report.batches
    if len(lines) == 1:
        yield from _one_in_full(lines[0], report.now)
    else:
        for line in lines:
            yield _short(line, report.now)
            yield from (f"  {note}" for note in _attention(line, short=True))
        yield _all_batches_line(lines)
    for run, calls in (facts.values() for facts in report.runs):
        cost = terminal.cost_of(read_as(CallCost, calls))
        yield f"Cost of run {run} so far: {cost}{_open_cost(lines, run)}"
    if report.elsewhere:
        yield f"Open batches of other runs: {report.elsewhere:,}; list them with: agac batch list"


def _all_batches_line(lines: Sequence[BatchLine]) -> str:
    """`3 batches, 12 done, 1 failed of 40 requests; 1 ended: agac batch retrieve`."""
    done = sum(line.batch.done or 0 for line in lines)
    failed = sum(line.batch.failed or 0 for line in lines)
    total = counted(sum(line.total for line in lines), "request")
    words = f"{len(lines)} batches, {done:,} done, {failed:,} failed of {total}"
    ready = _ready_words(lines)
    return f"{words}; {ready}: agac batch retrieve" if ready else words


def _ready_words(lines: Sequence[BatchLine]) -> str:
    """`1 ended, 2 not submitted`: the batches that `agac batch retrieve` would work on."""
    words = []
    ended = sum(line.ready for line in lines)
    if ended:
        words.append(f"{ended:,} ended")
    unsent = sum(line.waits is not None for line in lines)
    if unsent:
        words.append(f"{unsent:,} not submitted")
    return ", ".join(words)


def _open_cost(lines: Sequence[BatchLine], run: int) -> str:
    """`; open batches: up to $0.02`: the most that open batches of a run add to its cost."""
    still_open = [line for line in lines if line.batch.run_id == run and line.batch.open]
    if not still_open:
        return ""
    usd = sum(line.held_usd or 0.0 for line in still_open)
    most = terminal.price(usd, simulated=any(line.simulated for line in still_open))
    if any(line.held_usd is None for line in still_open):
        return f"; open batches: up to {most}, and requests of unknown price"
    return f"; open batches: up to {most}"


def _one_in_full(line: BatchLine, now: float) -> Iterator[str]:
    """Yields all about one batch."""
    batch = line.batch
    run = terminal.run_name(batch.workflow, batch.run_id)
    yield f"Batch job status: {status_word(batch)}"
    yield f"{terminal.sentence(_name(batch))}: {run}, {_place(batch)}, {batch.lane}"
    yield f"Requests: {_counts(line)}"
    yield from _time_lines(line, now)
    yield f"Cost: {_cost(line)}"
    if batch.open and batch.provider_id is not None:
        yield f"The provider deletes its results and files: {_deleted(batch, now)}"
    if batch.open and batch.seen_at is not None:
        yield f"Last checked: {iso(batch.seen_at)}, {_ago(batch.seen_at, now)}"
    yield from _attention(line)


def _time_lines(line: BatchLine, now: float) -> Iterator[str]:
    """Yields when a batch was submitted, and until when it may be at work."""
    batch = line.batch
    is_running = batch.open and not line.ready
    if line.submitted_at is not None:
        usual = _usual_words(line) if is_running else ""
        yield f"Submitted: {iso(line.submitted_at)}, {_ago(line.submitted_at, now)}{usual}"
    if is_running and batch.expires_at is not None:
        yield f"The provider gives up: {_when(batch.expires_at, now)}"
    if is_running and batch.deadline is not None:
        yield f"Deadline: {_when(batch.deadline, now)}; requests not finished by then are cancelled"


def _usual_words(line: BatchLine) -> str:
    """Says how long other batches of the lane took, as far as there were any."""
    lane = line.lane
    if lane is None:
        return ""
    half = duration(lane.p50_s)
    most = duration(lane.p95_s)
    return f"; of {lane.batches:,} in this lane half took up to {half}, 95 % up to {most}"


def _short(line: BatchLine, now: float) -> str:
    """Writes a batch on one line."""
    batch = line.batch
    parts = [
        f"Batch job status: {status_word(batch)}",
        f"{terminal.sentence(_name(batch))}, {_place(batch)}",
    ]
    parts += [batch.lane, _counts(line)]
    if line.submitted_at is not None:
        parts.append(f"{duration(max(0.0, now - line.submitted_at))} old")
    if batch.open and batch.deadline is not None and not line.ready:
        parts.append(f"deadline {_when(batch.deadline, now)}")
    parts.append(_cost(line))
    if batch.open and batch.provider_id is not None:
        parts.append(f"results and files deleted {_deleted(batch, now)}")
    return plain("; ".join(parts))


def _attention(line: BatchLine, *, short: bool = False) -> Iterator[str]:
    """Yields what needs attention. `short`: without what all such batches need."""
    if line.waits:
        retried = ""
        if line.batch.try_at is not None:
            retried = f"; retried from {iso(line.batch.try_at)} on"
        yield f"Not submitted: {plain(terminal.first_line(line.waits))}{retried}"
    if line.stuck_for_s is not None:
        yield f"Stuck: no progress for {duration(line.stuck_for_s)}"
    if line.cancelling and not line.ready:
        yield "Cancelling; finished requests are kept"
    if line.note:
        yield f"Note: {plain(terminal.first_line(line.note))}"
    is_usual = line.ready or bool(line.waits)
    if line.remedy and not (short and is_usual):
        yield f"Next: {plain(line.remedy)}"


def _name(batch: BatchView) -> str:
    return terminal.batch_name(batch.id, batch.provider_id)


def _place(batch: BatchView) -> str:
    return f"{batch.stage_name} {batch.number} of {batch.among}"


def _counts(line: BatchLine, *, unit: bool = False) -> str:
    """`1,204 done, 3 failed of 50,000`, with the word `requests` or not, and without counts that
    are not reported."""
    counts = {"done": line.batch.done, "failed": line.batch.failed}
    requests = counted(line.total, "request")
    reported = [f"{count:,} {word}" for word, count in counts.items() if count is not None]
    if reported:
        total = requests if unit else f"{line.total:,}"
        return f"{', '.join(reported)} of {total}"
    if line.batch.provider_id:
        return requests
    return f"{requests}, none sent yet"


def _cost(line: BatchLine) -> str:
    if line.cost_usd is None and line.held_usd is not None:
        return f"up to {terminal.price(line.held_usd, simulated=line.simulated)}"
    return terminal.price(line.cost_usd, simulated=line.simulated)


def _deleted(batch: BatchView, now: float) -> str:
    if batch.results_until is not None:
        return _when(batch.results_until, now)
    return "at a time that it does not report"


def _when(at: float, now: float) -> str:
    """`2026-01-02T10:00:00Z (in 3 h)`, or how long ago it was."""
    distance = f"in {duration(at - now)}" if at >= now else _ago(at, now)
    return f"{iso(at)} ({distance})"


def _ago(at: float, now: float) -> str:
    return f"{duration(max(0.0, now - at))} ago"


def list_lines(report: BatchReport, *, closed: bool) -> list[str]:
    """Lists batches as a table, with what needs attention below."""
    if not report.batches and closed:
        return ["No batch was submitted yet"]
    if not report.batches:
        return ["No open batches. --all includes closed ones"]
    header = [
        "batch",
        "at the provider",
        "workflow",
        "run",
        "stage",
        "model",
        "status",
        "done",
        "failed",
        "of",
        "cost",
    ]
    rows = []
    notes = []
    for line in report.batches:
        batch = line.batch
        rows.append(
            [
                batch.id,
                batch.provider_id or "-",
                batch.workflow,
                batch.run_id,
                batch.stage_name,
                batch.lane,
                status_word(batch),
                "-" if batch.done is None else batch.done,
                "-" if batch.failed is None else batch.failed,
                line.total,
                _cost(line),
            ]
        )
        if batch.open:
            notes += [f"Batch {batch.id}: {note}" for note in _attention(line, short=True)]
    lines = [terminal.table(header, rows)]
    if notes:
        lines += ["", *notes]
    return lines


def waited_lines(report: WaitReport) -> Iterator[str]:
    for line in report.batches:
        status = line.batch.status or "not submitted"
        yield f"Batch job status: {status}; {_name(line.batch)}: {_counts(line, unit=True)}"
    yield terminal.sentence(report.message)


def cancelled_lines(report: CancelReport) -> Iterator[str]:
    """Yields which batches are cancelled, and which had ended."""
    for line in report.asked:
        if line.batch.provider_id is None:
            yield f"Dropped {_name(line.batch)}: {counted(line.total, 'request')}, none sent"
        else:
            yield (
                f"Cancelling {_name(line.batch)}: {_counts(line, unit=True)}; finished "
                "requests are kept"
            )
    for line in report.kept:
        yield f"Not cancelled: {_name(line.batch)} had already ended ({line.batch.status})"
    yield terminal.sentence(report.message)


def doctor_lines(report: DoctorReport) -> Iterator[str]:
    """Yields what was found and changed, with what to do next."""
    if not report.findings:
        yield "All is well: the store and the providers agree"
    for finding in report.findings:
        yield f"{'did' if finding.done else 'found'}: {plain(terminal.first_line(finding.message))}"
        if finding.remedy:
            yield f"  {plain(finding.remedy)}"


def in_batch_words(task: Mapping[str, Any]) -> str:
    """`in batch 4 (batch_abc123) of run 1, submitted 2026-…`: which batch has a row's task."""
    replica = f"replica {task['replica']}: " if "replica" in task else ""
    how = "waits for the same request in" if task["waits"] else "in"
    name = terminal.batch_name(task["batch"], task["provider_id"])
    when = "not submitted yet"
    if task["submitted_at"]:
        when = f"submitted {task['submitted_at']}"
    repeated = f", round {task['round']}" if task["round"] > 1 else ""
    return (
        f"{replica}{how} {name} of run {task['run']}, {when}{repeated}; agac batch status "
        f"{task['batch']}"
    )
