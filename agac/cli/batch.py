"""`agac batch`, `agac doctor`, and what other commands print about batches."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli.main import Command, Globals, enable_gc, json_option, read_seconds
from agac.cli.terminal import (
    cost_of,
    counted,
    duration,
    first_line,
    is_watched,
    plain,
    price,
    print_json,
    print_report,
    say,
    sentence,
    table,
    without_switch,
)
from agac.core.report import iso

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
    print_report(report, lambda: status_lines(report), as_json=as_json)


@batch.command("list", help="List the open batches of all runs.")
@click.option("-a", "--workflow", metavar="NAME", help="Only batches of this workflow.")
@click.option("--all", "closed", is_flag=True, help="Include closed batches: ingested, rejected or never created.")
@json_option
@click.pass_obj
def list_(settings: Globals, workflow: str | None, closed: bool, as_json: bool) -> None:
    """Reads the store only."""
    report = api.batch_list(workflow, all=closed, project=settings.project_dir)
    print_report(report, lambda: list_lines(report, closed=closed), as_json=as_json)


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
    from agac.cli.progress import progress
    from agac.cli.run import print_retrieved

    given, call = one_batch(batch_id, flag_id), api.batch_retrieve
    enable_gc()
    report = call(given, project=settings.project_dir, watch=progress(settings.quiet), handle_signals=True)
    print_retrieved(report, quiet=settings.quiet or as_json)
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
    given, seconds = one_batch(batch_id, flag_id), read_seconds("--timeout", timeout)
    call = api.batch_wait
    enable_gc()
    if not settings.quiet and is_watched():
        say("Waiting; Ctrl-C stops waiting, and does not cancel the batches.")
    report = call(given, timeout=seconds, project=settings.project_dir, handle_signals=True)
    print_report(report, lambda: waited_lines(report), as_json=as_json, quiet=settings.quiet)
    return report.exit_code


@batch.command(
    "cancel", help="Cancel a batch at its provider, or all open ones of the last run. Finished requests are kept."
)
@batch_argument
@json_option
@click.pass_obj
def cancel(settings: Globals, batch_id: str | None, flag_id: str | None, as_json: bool) -> int:
    """Its finished requests are paid for: `agac batch retrieve` stores their answers."""
    given, call = one_batch(batch_id, flag_id), api.batch_cancel
    enable_gc()
    report = call(given, project=settings.project_dir)
    print_report(report, lambda: cancelled_lines(report), as_json=as_json, quiet=settings.quiet)
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
    call = api.doctor
    enable_gc()
    report = call(clean=clean, adopt=adopt, resubmit=resubmit, batch_id=batch_id, project=settings.project_dir)
    print_report(report, lambda: doctor_lines(report), as_json=as_json)
    return report.exit_code


STEP_WORDS = {"NEEDS_HUMAN": "needs a decision", "NOT_CREATED": "not created", "REJECTED": "failed"}
"""The status of a batch by its step, where that says more than the provider's last status."""


def status_word(line: BatchLine) -> str:
    """The status of a batch: the same words for every provider, and others for steps that no provider has."""
    return STEP_WORDS.get(line.step) or line.status or ("in_progress" if line.provider_id else "not submitted")


def status_lines(report: BatchReport) -> list[str]:
    """The state of batches: one in full, several in a line each, with what needs attention below."""
    lines = [f"not checked: {plain(first_line(reason))}" for reason in report.not_asked]
    if len(report.batches) == 1:
        lines += _one_in_full(report.batches[0], report.now)
    else:
        for line in report.batches:
            lines += [_short(line, report.now), *(f"  {note}" for note in _attention(line, short=True))]
        lines.append(_sum(report))
    lines += [_run_cost(report, run) for run in report.calls]
    if report.elsewhere:
        lines.append(f"Open batches of other runs: {report.elsewhere:,}; list them with: agac batch list")
    return lines


def _one_in_full(line: BatchLine, now: float) -> Iterator[str]:
    yield f"Batch job status: {status_word(line)}"
    yield f"{_name(line)}: {line.workflow}, run {line.run}, {line.stage} {line.number} of {line.of}, {line.model}"
    yield f"Requests: {_counts(line)}"
    if line.submitted_at is not None:
        yield f"Submitted: {iso(line.submitted_at)}, {_ago(line.submitted_at, now)}{_usual_time(line)}"
    if line.open and line.expires_at is not None and not line.ready:
        yield f"The provider gives up: {_when(line.expires_at, now)}"
    if line.open and line.deadline is not None and not line.ready:
        yield f"Deadline: {_when(line.deadline, now)}; requests not finished by then are cancelled"
    yield f"Cost: {_cost(line)}"
    if line.open and line.provider_id is not None:
        yield f"The provider deletes its results and files: {_deleted(line, now)}"
    if line.seen_at is not None and line.open:
        yield f"Last checked: {iso(line.seen_at)}, {_ago(line.seen_at, now)}"
    yield from _attention(line)


def _short(line: BatchLine, now: float) -> str:
    """One batch on one line."""
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
    return sentence(name_of({"id": line.id, "provider_id": line.provider_id}))


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
    """A time, and how far away it is."""
    return f"{iso(at)} ({f'in {duration(at - now)}' if at >= now else _ago(at, now)})"


def _ago(at: float, now: float) -> str:
    return f"{duration(max(0.0, now - at))} ago"


def _usual_time(line: BatchLine) -> str:
    """The time that other batches of its lane took."""
    if line.lane is None or not line.open or line.ready:
        return ""
    half, most = duration(line.lane.p50), duration(line.lane.p95)
    return f"; of {line.lane.batches:,} in this lane half took up to {half}, 95 % up to {most}"


def _sum(report: BatchReport) -> str:
    done, failed = (sum(getattr(line, name) or 0 for line in report.batches) for name in ("done", "failed"))
    total = counted(sum(line.total for line in report.batches), "request")
    ready = sum(line.ready for line in report.batches)
    waiting = sum(line.waits is not None for line in report.batches)
    words = f"{len(report.batches)} batches, {done:,} done, {failed:,} failed of {total}"
    todo = [f"{count:,} {word}" for count, word in ((ready, "ended"), (waiting, "not submitted")) if count]
    return f"{words}; {', '.join(todo)}: agac batch retrieve" if todo else words


def _run_cost(report: BatchReport, run: int) -> str:
    """The cost of a run so far, and the most that its open batches can add."""
    own = [line for line in report.batches if line.run == run and line.open]
    so_far = f"Cost of run {run} so far: {cost_of(report.calls[run])}"
    if not own:
        return so_far
    simulated = any(line.simulated for line in own)
    more = price(sum(line.held_usd or 0.0 for line in own), simulated=simulated)
    unknown = ", and requests of unknown price" if any(line.held_usd is None for line in own) else ""
    return f"{so_far}; open batches: up to {more}{unknown}"


def list_lines(report: BatchReport, *, closed: bool) -> list[str]:
    """Batches as a table."""
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


def waited_lines(report: WaitReport) -> list[str]:
    """The batches at the end of the wait."""
    lines = [
        f"Batch job status: {facts['status'] or 'not submitted'}; {name_of(facts)}: {_progress(facts)}"
        for facts in report.batches
    ]
    return [*lines, sentence(report.message)]


def cancelled_lines(report: CancelReport) -> list[str]:
    """The batches that are cancelled, and those that had ended before."""
    lines = [f"Cancelling {name_of(facts)}: {_progress(facts)}; finished requests are kept" for facts in report.asked]
    lines += [f"Not cancelled: {name_of(facts)} had already ended ({facts['status']})" for facts in report.kept]
    return [*lines, sentence(report.message)]


def _progress(facts: BatchFacts) -> str:
    counts = [f"{facts[word]:,} {word}" for word in ("done", "failed") if facts.get(word) is not None]
    return f"{', '.join(counts)} of {counted(facts['total'] or facts['requests'], 'request')}"


def doctor_lines(report: DoctorReport) -> list[str]:
    """The findings: what was repaired, and what needs a decision."""
    if not report.findings:
        return ["All is well: the store and the providers agree"]
    lines = []
    for finding in report.findings:
        lines.append(f"{'did' if finding['done'] else 'found'}: {plain(first_line(finding['message']))}")
        lines += [f"  {plain(finding['remedy'])}"] if finding["remedy"] else []
    return lines


BatchFacts = Mapping[str, Any]
"""A batch as `BatchLine.as_json` gives it, or some of that; the facts of an invocation; a summary."""

CLOSED = ("INGESTED", "CLEANED", "NOT_CREATED", "REJECTED")
"""Final steps of a batch, as in `store.batches`, which is slow to load."""

RESULT_WORDS = {
    "done": "done",
    "failed": "failed",
    "missing": "without an answer",
    "expired": "expired",
    "cancelled": "cancelled",
    "duplicate": "answered twice",
    "unknown": "not requested by agac",
    "malformed": "unreadable",
    "again": "sent again",
}
"""Outcomes of the lines of results, and the words for them."""


def name_of(facts: BatchFacts) -> str:
    """`batch 4 (batch_abc123)`: both names by which it can be given."""
    return f"batch {facts['id']}" + (f" ({plain(facts['provider_id'])})" if facts["provider_id"] else "")


def in_batch_words(task: BatchFacts) -> str:
    """The batch that has a row's task: `in batch 4 (batch_abc123) of run 1, submitted 2026-…`."""
    replica = f"replica {task['replica']}: " if "replica" in task else ""
    how = "waits for the same request in" if task["waits"] else "in"
    name = name_of({"id": task["batch"], "provider_id": task["provider_id"]})
    when = f"submitted {task['submitted_at']}" if task["submitted_at"] else "not submitted yet"
    repeated = f", round {task['round']}" if task["round"] > 1 else ""
    return f"{replica}{how} {name} of run {task['run']}, {when}{repeated}; agac batch status {task['batch']}"


def retrieved_line(facts: BatchFacts) -> str:
    """The outcomes of a batch that was retrieved."""
    counts = [f"{facts[key]:,} {word}" for key, word in RESULT_WORDS.items() if facts.get(key) or key == "done"]
    return f"Retrieved {name_of(facts)}: {', '.join(counts)}"


def batch_lines(invocation: BatchFacts) -> list[str]:
    """The batches that an invocation submitted, and those that wait."""
    submitted, waiting = invocation.get("batches") or (), invocation.get("waiting_batches") or ()
    still = [facts for facts in submitted if facts["step"] not in CLOSED]  # the others were reported while waiting
    return [*map(submitted_line, still), *map(waiting_line, waiting)]


def submitted_line(facts: BatchFacts) -> str:
    """`Submitted batch batch_abc123: 50,000 requests, 1 of 3, openai/gpt-5.4-mini, up to $12.40 at batch price`."""
    return f"Submitted batch {plain(facts['provider_id'] or str(facts['id']))}: {_content(facts)}"


def waiting_line(facts: BatchFacts) -> str:
    """A batch that was not submitted yet, why, and when that is retried."""
    why = plain(first_line(facts["waits"] or facts["note"] or "there is no room"))
    retried = f"; retried from {facts['try_at']} on" if facts.get("try_at") else ""
    return f"Waiting batch {facts['id']}: {_content(facts)}: {why}{retried}"


def _content(facts: BatchFacts) -> str:
    usd = price(facts["held_usd"], simulated=facts["simulated"])
    most = f"up to {usd} at batch price" if facts["held_usd"] is not None else usd
    return f"{counted(facts['requests'], 'request')}, {facts['number']} of {facts['of']}, {facts['model']}, {most}"


def undecided_lines(invocation: BatchFacts) -> list[str]:
    """The batches that need a decision, with the commands for it."""
    lines = []
    for facts in invocation.get("undecided_batches") or ():
        note = f": {plain(first_line(facts['note']))}" if facts["note"] else ""
        lines += [sentence(f"{name_of(facts)} needs your decision{note}"), f"  {sentence(facts['remedy'])}"]
    return lines


def next_lines(summary: BatchFacts, invocation: BatchFacts, command: str) -> Iterator[str]:
    """What is stale, deferred and waited for, and the commands to resume. `command`: that of the run."""
    for facts in invocation.get("stale") or ():
        usd = price(facts["held_usd"], simulated=bool(facts.get("simulated")))
        most = usd if facts["held_usd"] is None else f"up to {usd}"
        name = name_of({"id": facts["batch"], "provider_id": facts["provider_id"]})
        requests, are = counted(facts["requests"], "request"), "is" if facts["requests"] == 1 else "are"
        yield (
            f"Stale: {requests} in {name}, {most}, {are} no longer needed; "
            f"cancel the batch with: agac batch cancel {facts['batch']}"
        )
    deferred = invocation.get("tasks_held_back")
    if deferred and not invocation.get("stopped_at_limit"):
        do = "does" if deferred == 1 else "do"
        yield (
            f"Deferred: {counted(deferred, 'task')} {do} not fit in the budget until open batches are retrieved; "
            "the next `agac batch retrieve` tries again"
        )
    if awaited := [facts["batch"] for facts in invocation.get("waits_for") or ()]:
        batches, has = ("batch", "has") if len(awaited) == 1 else ("batches", "have")
        yield (
            f"Rows wait for {batches} {', '.join(map(str, awaited))} of an earlier run, which {has} the same requests "
            f"(`agac batch list`). When {'it has' if len(awaited) == 1 else 'they have'} ended, resume with: {command}"
        )
    if invocation.get("open_batches"):
        waiting = shlex.join([*shlex.split(without_switch(command, "--wait")), "--wait"])
        yield (
            f"{_finished(summary)} `agac batch status` shows progress, `agac batch retrieve` collects results; "
            f"`{waiting}` waits until every stage is done."
        )


def _finished(summary: BatchFacts) -> str:
    rows = summary["rows"]
    ended = rows["total"] - rows["open"]
    if not ended:
        return "No row is finished yet."
    return f"{ended:,} of {counted(rows['total'], 'row')} {'is' if ended == 1 else 'are'} finished."
