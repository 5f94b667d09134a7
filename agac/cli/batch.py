"""`agac batch` and `agac doctor`: the batches of a project at their providers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli.main import Command, Globals, json_option, long_running
from agac.cli.run import print_run, undecided_lines
from agac.cli.terminal import (
    batch_name,
    cost_of,
    counted,
    duration,
    first_line,
    plain,
    price,
    print_json,
    print_report,
    say,
    sentence,
    table,
)
from agac.core.errors import ExitCode
from agac.core.types import iso

if TYPE_CHECKING:
    from agac.api.batches import BatchLine, BatchReport
    from agac.api.retrieve import CancelReport, DoctorReport, WaitReport


@click.group(
    help="Follow batches, retrieve their results, cancel them. ID is agac's number of a batch, or the provider's id."
)
def batch() -> None:
    """The batches that `agac run` submits with `run_mode: batch`."""


def batch_argument(command: Command) -> Command:
    """A batch may be given as argument, or by a flag."""
    command = click.option("--batch-id", "flag_id", metavar="ID", help="The same as ID.")(command)
    return click.argument("batch_id", metavar="[ID]", required=False)(command)


def one_batch(batch_id: str | None, flag_id: str | None) -> str | None:
    """The batch that was given, or None. Raises UsageError where two were given."""
    if batch_id is not None and flag_id is not None and batch_id != flag_id:
        raise click.UsageError(f"{batch_id} and --batch-id {flag_id} name two batches", click.get_current_context())
    return batch_id if batch_id is not None else flag_id


@batch.command(
    "status",
    short_help="Show the state of batches at their providers.",
    help="Show the state of a batch at its provider; without ID, of the open ones of the last run.",
)
@batch_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the provider's own words.")
@click.pass_obj
def status(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> None:
    """Exit 2 when there is none. A provider that does not answer is not an error: the stored state is shown."""
    report = api.batch_status(one_batch(batch_id, flag_id), project=settings.project_dir)
    print_report(report, status_lines, as_json=as_json)


@batch.command("list", help="List the open batches of all runs.")
@click.option("-a", "--workflow", metavar="NAME", help="Only batches of this workflow.")
@click.option("--all", "closed", is_flag=True, help="Include closed batches: ingested, rejected or never created.")
@json_option
@click.pass_obj
def list_(settings: Globals, workflow: str | None, closed: bool, as_json: bool) -> None:
    """Reads the store only."""
    report = api.batch_list(workflow, all=closed, project=settings.project_dir)
    print_report(report, lambda found: list_lines(found, closed=closed), as_json=as_json)


@batch.command(
    "retrieve",
    short_help="Retrieve finished batches and run the next stages.",
    help="Retrieve finished batches, run the next stages, submit new batches, and write the results when all rows are "
    "finished; without ID, for all batches of the last run.",
)
@batch_argument
@json_option
@click.pass_obj
def retrieve(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> int:
    """Exit 0 when a batch was retrieved or all rows are finished, 75 when no batch was ready; else as `agac run`."""
    from agac.cli.progress import progress  # loads asyncio

    given = one_batch(batch_id, flag_id)
    report = long_running(api.batch_retrieve)(
        given, project=settings.project_dir, watch=progress(settings.quiet), handle_signals=True
    )
    run, quiet = report.run, settings.quiet or as_json
    waits = report.exit_code is ExitCode.NOT_READY and not report.ready
    if run is not None and not waits:
        from agac.engine.invocation import Scope  # the engine is loaded by now

        print_run(run, report.again, quiet=quiet, scope=Scope())
    if not quiet and (run is None or waits or not (run.summary["complete"] or run.invocation["open_batches"])):
        say(sentence(report.message))
    if run is not None and waits:
        for line in undecided_lines(run.invocation):
            say(line)
    if as_json:
        print_json(report.as_json())
    return report.exit_code


@batch.command("wait", help="Wait until a batch has ended, or all open ones of the last run. Retrieves nothing.")
@batch_argument
@click.option("--timeout", metavar="TIME", help="Wait at most: 90, 30m, 12h. The exit code is 75 then.")
@json_option
@click.pass_obj
def wait(settings: Globals, batch_id: str | None, flag_id: str | None, timeout: str | None, as_json: bool) -> int:
    """Exit 0 when they have ended, 75 past the timeout."""
    given, seconds = one_batch(batch_id, flag_id), None
    if timeout is not None:
        from agac.spec import validation  # loads pydantic

        try:  # a number of seconds, or a time as in agac's files
            plain_seconds = timeout.replace(".", "", 1).isdigit()
            seconds = float(timeout) if plain_seconds else float(validation.duration(timeout))
        except ValueError as error:
            raise click.UsageError(f"--timeout {timeout}: {error}") from None
    call = long_running(api.batch_wait)
    if not settings.quiet and sys.stderr.isatty():
        say("Waiting; Ctrl-C stops waiting, and does not cancel the batches.")
    report = call(given, timeout=seconds, project=settings.project_dir, handle_signals=True)
    print_report(report, waited_lines, as_json=as_json, quiet=settings.quiet)
    return report.exit_code


@batch.command(
    "cancel", help="Cancel a batch at its provider, or all open ones of the last run. Finished requests are kept."
)
@batch_argument
@json_option
@click.pass_obj
def cancel(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> int:
    """Its finished requests are paid for: `agac batch retrieve` stores their answers."""
    report = long_running(api.batch_cancel)(one_batch(batch_id, flag_id), project=settings.project_dir)
    print_report(report, cancelled_lines, as_json=as_json, quiet=settings.quiet)
    return report.exit_code


@click.command(
    help="Compare the store with the providers: adopt batches of agac that it does not know, find lost ones, check "
    "abandoned ones, list leftover files. Reports what it changed."
)
@click.option("--clean", is_flag=True, help="Delete agac's files at the providers that no batch needs.")
@click.option("--adopt", metavar="ID", help="Link the batch that agac could not find to this provider batch.")
@click.option("--resubmit", is_flag=True, help="The batch or its results are lost: send its requests again.")
@click.option(
    "--batch-id", metavar="ID", help="With --adopt or --resubmit: which batch, where several need a decision."
)
@json_option
@click.pass_obj
def doctor(
    settings: Globals, clean: bool, adopt: str | None, resubmit: bool, batch_id: str | None, as_json: bool
) -> int:
    """Exit 0 when all is well or was repaired, 75 when a batch needs a decision, 1 when a provider failed."""
    if adopt is not None and resubmit:
        raise click.UsageError("--adopt and --resubmit exclude one another", click.get_current_context())
    if batch_id is not None and adopt is None and not resubmit:
        raise click.UsageError("--batch-id goes with --adopt or --resubmit", click.get_current_context())
    report = long_running(api.doctor)(
        clean=clean, adopt=adopt, resubmit=resubmit, batch_id=batch_id, project=settings.project_dir
    )
    print_report(report, doctor_lines, as_json=as_json)
    return report.exit_code


STEP_WORDS = {"NEEDS_HUMAN": "needs a decision", "NOT_CREATED": "not created", "REJECTED": "failed"}
"""The status of a batch by its step, where that says more than the provider's last status."""


def status_word(line: BatchLine) -> str:
    """The status of a batch: the same words for every provider, and others for steps that no provider has."""
    return STEP_WORDS.get(line.step) or line.status or ("in_progress" if line.provider_id else "not submitted")


def _still_possible(lines: list[BatchLine]) -> str:
    """What open batches can cost at most."""
    most = price(sum(line.held_usd or 0.0 for line in lines), simulated=any(line.simulated for line in lines))
    unknown = ", and requests of unknown price" if any(line.held_usd is None for line in lines) else ""
    return f"; open batches: up to {most}{unknown}"


def status_lines(report: BatchReport) -> Iterator[str]:
    """The state of batches: one in full, several in a line each, with what needs attention below, and the cost of their
    runs so far, with the most that open batches can add."""
    yield from (f"not checked: {plain(first_line(reason))}" for reason in report.not_asked)
    batches = report.batches
    if len(batches) == 1:
        yield from _one_in_full(batches[0], report.now)
    else:
        for line in batches:
            yield _short(line, report.now)
            yield from (f"  {note}" for note in _attention(line, short=True))
        done, failed = (sum(getattr(line, name) or 0 for line in batches) for name in ("done", "failed"))
        total = counted(sum(line.total for line in batches), "request")
        ready, waiting = sum(line.ready for line in batches), sum(line.waits is not None for line in batches)
        todo = [f"{count:,} {word}" for count, word in ((ready, "ended"), (waiting, "not submitted")) if count]
        words = f"{len(batches)} batches, {done:,} done, {failed:,} failed of {total}"
        yield f"{words}; {', '.join(todo)}: agac batch retrieve" if todo else words
    for run, calls in report.calls.items():
        own = [line for line in batches if line.run == run and line.open]
        yield f"Cost of run {run} so far: {cost_of(calls)}{_still_possible(own) if own else ''}"
    if report.elsewhere:
        yield f"Open batches of other runs: {report.elsewhere:,}; list them with: agac batch list"


def _one_in_full(line: BatchLine, now: float) -> Iterator[str]:
    running = line.open and not line.ready
    yield f"Batch job status: {status_word(line)}"
    yield f"{_name(line)}: {line.workflow}, run {line.run}, {line.stage} {line.number} of {line.of}, {line.model}"
    yield f"Requests: {_counts(line)}"
    if line.submitted_at is not None:
        usual = ""
        if running and line.lane is not None:  # the time that other batches of its lane took
            half, most = duration(line.lane.p50), duration(line.lane.p95)
            usual = f"; of {line.lane.batches:,} in this lane half took up to {half}, 95 % up to {most}"
        yield f"Submitted: {iso(line.submitted_at)}, {_ago(line.submitted_at, now)}{usual}"
    if running and line.expires_at is not None:
        yield f"The provider gives up: {_when(line.expires_at, now)}"
    if running and line.deadline is not None:
        yield f"Deadline: {_when(line.deadline, now)}; requests not finished by then are cancelled"
    yield f"Cost: {_cost(line)}"
    if line.open and line.provider_id is not None:
        yield f"The provider deletes its results and files: {_deleted(line, now)}"
    if line.seen_at is not None and line.open:
        yield f"Last checked: {iso(line.seen_at)}, {_ago(line.seen_at, now)}"
    yield from _attention(line)


def _short(line: BatchLine, now: float) -> str:
    parts = [f"Batch job status: {status_word(line)}", f"{_name(line)}, {line.stage} {line.number} of {line.of}"]
    parts += [line.model, _counts(line)]
    if line.submitted_at is not None:
        parts.append(f"{duration(max(0.0, now - line.submitted_at))} old")
    if line.open and line.deadline is not None and not line.ready:
        parts.append(f"deadline {_when(line.deadline, now)}")
    parts.append(_cost(line))
    if line.open and line.provider_id is not None:
        parts.append(f"results and files deleted {_deleted(line, now)}")
    return plain("; ".join(parts))


def _attention(line: BatchLine, *, short: bool = False) -> Iterator[str]:
    """The problems of a batch, and what to do about them; `short`: only unusual ones."""
    if line.waits:
        retried = f"; retried from {iso(line.try_at)} on" if line.try_at is not None else ""
        yield f"Not submitted: {plain(first_line(line.waits))}{retried}"
    if line.stuck and line.stuck_for_s is not None:
        yield f"Stuck: no progress for {duration(line.stuck_for_s)}"
    if line.cancelling and not line.ready:
        yield "Cancelling; finished requests are kept"
    if line.note:
        yield f"Note: {plain(first_line(line.note))}"
    if line.remedy and not (short and (line.ready or line.waits)):
        yield f"Next: {plain(line.remedy)}"


def _name(line: BatchLine) -> str:
    return sentence(batch_name(line.id, line.provider_id))


def _counts(line: BatchLine) -> str:
    """`1,204 done, 3 failed of 50,000`; counts that the provider does not report are left out."""
    found = [f"{count:,} {word}" for count, word in ((line.done, "done"), (line.failed, "failed")) if count is not None]
    if found:
        return f"{', '.join(found)} of {line.total:,}"
    return counted(line.total, "request") + ("" if line.provider_id else ", none sent yet")


def _cost(line: BatchLine) -> str:
    """The cost, or the most that it can be."""
    if line.cost_usd is None and line.held_usd is not None:
        return f"up to {price(line.held_usd, simulated=line.simulated)}"
    return price(line.cost_usd, simulated=line.simulated)


def _deleted(line: BatchLine, now: float) -> str:
    return _when(line.results_until, now) if line.results_until is not None else "at a time that it does not report"


def _when(at: float, now: float) -> str:
    return f"{iso(at)} ({f'in {duration(at - now)}' if at >= now else _ago(at, now)})"


def _ago(at: float, now: float) -> str:
    return f"{duration(max(0.0, now - at))} ago"


def list_lines(report: BatchReport, *, closed: bool) -> list[str]:
    if not report.batches:
        return ["No batch was submitted yet" if closed else "No open batches. --all includes closed ones"]
    header = ["batch", "at the provider", "workflow", "run", "stage", "model", "status", "done", "failed", "of", "cost"]
    rows = [
        [
            line.id, line.provider_id or "-", line.workflow, line.run, line.stage, line.model, status_word(line),
            *("-" if count is None else count for count in (line.done, line.failed)), line.total,
            _cost(line),
        ]
        for line in report.batches
    ]  # fmt: skip
    notes = [
        f"Batch {line.id}: {note}" for line in report.batches if line.open for note in _attention(line, short=True)
    ]
    return [table(header, rows), *(["", *notes] if notes else [])]


def waited_lines(report: WaitReport) -> Iterator[str]:
    for facts in report.batches:
        name, status = batch_name(facts["id"], facts["provider_id"]), facts["status"] or "not submitted"
        yield f"Batch job status: {status}; {name}: {_progress(facts)}"
    yield sentence(report.message)


def cancelled_lines(report: CancelReport) -> Iterator[str]:
    for facts in (*report.asked, *report.kept):
        name = batch_name(facts["id"], facts["provider_id"])
        if facts in report.kept:
            yield f"Not cancelled: {name} had already ended ({facts['status']})"
        else:
            yield f"Cancelling {name}: {_progress(facts)}; finished requests are kept"
    yield sentence(report.message)


def _progress(facts: Mapping[str, Any]) -> str:
    counts = [f"{facts[word]:,} {word}" for word in ("done", "failed") if facts.get(word) is not None]
    return f"{', '.join(counts)} of {counted(facts['total'] or facts['requests'], 'request')}"


def doctor_lines(report: DoctorReport) -> Iterator[str]:
    """The findings: what was repaired, and what needs a decision."""
    if not report.findings:
        yield "All is well: the store and the providers agree"
    for finding in report.findings:
        yield f"{'did' if finding['done'] else 'found'}: {plain(first_line(finding['message']))}"
        if finding["remedy"]:
            yield f"  {plain(finding['remedy'])}"


def in_batch_words(task: Mapping[str, Any]) -> str:
    """The batch that has a row's task: `in batch 4 (batch_abc123) of run 1, submitted 2026-…`."""
    replica = f"replica {task['replica']}: " if "replica" in task else ""
    how = "waits for the same request in" if task["waits"] else "in"
    name = batch_name(task["batch"], task["provider_id"])
    when = f"submitted {task['submitted_at']}" if task["submitted_at"] else "not submitted yet"
    repeated = f", round {task['round']}" if task["round"] > 1 else ""
    return f"{replica}{how} {name} of run {task['run']}, {when}{repeated}; agac batch status {task['batch']}"
