"""Row runs (`agac process`): a file of rows and a prompt in, a file of results out, without a
workflow file. A job is known by its OUTPUT; it is an `agac.Workflow` made in memory, and runs as
every workflow does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agac.api.adoption import adopt
from agac.api.ended_rows import Began, Told
from agac.api.invocation_summary import InvocationSummary
from agac.api.job import FILES, WRITTEN, Job, is_address, is_file, job_root, stored_path
from agac.api.job_options import ProcessOptions
from agac.api.job_summary import JobCache, JobRequest, JobRows, JobSummary, JobUsage
from agac.api.plan import Confirm, Quote, plan
from agac.api.report import RunReport
from agac.api.run import run
from agac.api.status import database_path, given_flags, go_on, stored_run
from agac.api.sync import asynchronous, blocking, calling
from agac.api.watched_run import Watch
from agac.core.errors import ExitCode, UsageError
from agac.core.keys import job_alias
from agac.core.types import counted
from agac.data.files import stamp, write_whole
from agac.data.frames import GivenRows
from agac.data.json_formats import encode
from agac.data.sources import keep_rows
from agac.engine.forecast.forecasts import PlanReport
from agac.engine.invocation import UnknownCalls
from agac.engine.output.output_folder import read_summary
from agac.plan.stage import model_of
from agac.providers.model_string import write_query
from agac.spec.database_urls import SCHEME
from agac.spec.inputs import INPUTS, PIPED
from agac.spec.paths import project_root
from agac.spec.rules import Budget
from agac.store import runs
from agac.store.db import open_for_reading
from agac.store.rows import adopted_rows
from agac.store.runs import WrittenFiles


@calling
async def process(
    input: str | Path | GivenRows,  # noqa: A002 - the option's name
    output: str | Path,
    options: ProcessOptions | None = None,
    *,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
    began: Began | None = None,
    tell: Told | None = None,
) -> RunReport:
    """Asks a model about each row of `input` and writes the results into the file `output`. Called
    again, it resumes. A folder without a project becomes one. With the OUTPUT `-` no file is
    written: `tell` is given the lines of rows as they end. `began` is given the alias of the job.
    All others are those of `agac.run`, and so are the errors. Raises UsageError also for an OUTPUT
    that this job did not write."""
    job = await _ready(input, str(output), options or ProcessOptions(), project, tell)
    if job.adopts:
        await adopt(job, confirm)
    return await _run(job, began, progress=progress, confirm=confirm, handle_signals=handle_signals)


@blocking
async def process_plan(
    input: str | Path | GivenRows,  # noqa: A002 - the option's name
    output: str | Path,
    options: ProcessOptions | None = None,
    *,
    show: int = 0,
    project: Path | str | None = None,
) -> PlanReport:
    """Plans what `process` with the same arguments would do, without any call. Keeps `show`
    rendered prompts."""
    job = await _ready(input, str(output), options or ProcessOptions(), project, None)
    if job.adopts:
        await adopt(job, None, dry=True)
    return await asynchronous(plan)(job, job.of_run(), show=show, project=job.root)


@calling
async def resume(
    job: str | int,
    options: ProcessOptions | None = None,
    *,
    input: str | Path | None = None,  # noqa: A002 - the option's name
    budget: Budget | float | None = None,
    max_errors: int | None = None,
    wait: bool = False,
    yes: bool = False,
    calls: UnknownCalls = "ask",
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
    began: Began | None = None,
    tell: Told | None = None,
) -> RunReport:
    """Resumes a row run by its alias (`job_3`) or the number of its run, with the options and the
    `input` that it had, except those that are given here. Files are read again. If one of them
    changed, so that rows with answers would be asked again, `confirm` is asked first, unless `yes`
    is given. Raises UsageError for another run, and without a yes; otherwise as `process` does."""
    once = ProcessOptions(budget=budget, max_errors=max_errors, wait=wait, yes=yes, calls=calls)
    resumed = await _resumed(job, options, once, input, project_root(project), tell)
    return await _run(
        resumed, began, progress=progress, confirm=confirm, handle_signals=handle_signals
    )


@blocking
async def resume_plan(
    job: str | int,
    options: ProcessOptions | None = None,
    *,
    input: str | Path | None = None,  # noqa: A002
    show: int = 0,
    project: Path | str | None = None,
) -> PlanReport:
    """Plans what `resume` with the same arguments would do, without any call. Keeps `show`
    rendered prompts."""
    resumed = await _resumed(job, options, ProcessOptions(), input, project_root(project), None)
    return await asynchronous(plan)(resumed, resumed.of_run(), show=show, project=resumed.root)


_ALTERNATIVES = (
    ("prompt", "template"),
    ("instruction", "agent_card"),
    ("json_schema", "schema_model"),
)
"""Options of which one replaces the other when a job is resumed."""

_ONCE = ("fresh", "refetch", "refresh_tools", "stream", "wait", "yes", "export_traces")
"""Options of one invocation, which a job does not keep."""

_OVERWRITE = (
    "Name another file, or replace it with --overwrite; stored answers are reused all the same."
)


async def _resumed(
    job: str | int,
    options: ProcessOptions | None,
    more: ProcessOptions,
    new_input: str | Path | None,
    root: Path,
    tell: Told | None,
) -> Job:
    """Makes a job again as it was, except for what `options` change, and `more`, which names no
    file. Raises as `resume` does."""
    changes = options or ProcessOptions()
    async with stored_run(root, job) as (_, record):
        given = given_flags(record)
    if "job" not in given:
        what = f"run {record.id} is not a row run, but one of the workflow {record.workflow!r}"
        raise UsageError(what, remedy=f"Resume it with: {go_on(record)}")
    stored = dict(given["job"])
    source = _typed_again(stored.pop("input"), root)
    output = _typed_again(stored.pop("output"), root)
    stored = _changed(_with_typed_paths(stored, root), changes.given() | more.given())
    if isinstance(stored.get("budget"), dict):
        stored["budget"] = Budget(**stored["budget"])
    once = {name: getattr(changes, name) or getattr(more, name) for name in _ONCE}
    calls = changes.calls if changes.calls != "ask" else more.calls
    if new_input is not None:
        source = str(new_input)
    merged = ProcessOptions(**stored, **once, calls=calls)
    resumed = await _ready(source, output, merged, root, tell)
    resumed.resumes = record.id
    if resumed.input == PIPED and new_input is None:
        resumed.piped = given.get("input")
    return resumed


def _with_typed_paths(stored: dict[str, Any], root: Path) -> dict[str, Any]:
    """Returns the stored options with paths for the current folder."""
    options = dict(stored)
    if is_file(root / options.get("instruction", "")):
        options["instruction"] = str(root / options["instruction"])
    for name in FILES:
        if isinstance(options.get(name), str):
            options[name] = _typed_again(options[name], root)
    return options


def _typed_again(stored: str, root: Path) -> str:
    """Returns a stored path, as `stored_path` makes it, for the current folder."""
    if is_address(stored):
        return stored
    scheme = SCHEME if stored.startswith(SCHEME) else ""
    return f"{scheme}{root / stored.removeprefix(SCHEME)}"


def _changed(stored: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Replaces stored options by those that are given, and removes those that these exclude.
    Variables are replaced one by one."""
    options = dict(stored)
    for alternatives in _ALTERNATIVES:
        chosen = changes.keys() & set(alternatives)
        if chosen:
            for name in set(alternatives) - chosen:
                options.pop(name, None)
    variables = {**stored.get("vars", {}), **changes.get("vars", {})}
    return {**options, **changes, "vars": variables}


async def _ready(
    source: str | Path | GivenRows,
    output: str,
    options: ProcessOptions,
    project: Path | str | None,
    tell: Told | None,
) -> Job:
    """Makes a job that may write its OUTPUT. Rows of a program are kept as piped ones are. Raises
    UsageError."""
    root = job_root(options, project)
    if isinstance(source, str | Path):
        job = Job(root, str(source), output, options, tell)
    else:
        job = Job(root, PIPED, output, options, tell)
        job.piped = str(await keep_rows(source, job.root / INPUTS))
    if options.overwrite and options.resume:
        raise UsageError("--overwrite and --resume exclude each other", remedy="Keep one of them.")
    if not options.overwrite:
        await _refuse_foreign_files(job, output)
    return job


async def _refuse_foreign_files(job: Job, output: str) -> None:
    """Raises UsageError if the job would replace a file that it did not write. Notes whether it
    adopts the results of such an OUTPUT."""
    options = job.options
    before = None
    written = list[WrittenFiles]()
    async with open_for_reading(database_path(job.root)) as database:
        if database is not None:
            written = await runs.files_written(database, job.output)
            last = await runs.last_invocation(database, job.name)
            before = last.invocation.body.get("given", {}).get("job") if last else None
    exists = job.file is not None and job.file.exists()
    job.adopts = before is None and exists
    if job.adopts and not options.resume:
        what = f"{output} exists, and this job did not write it"
        raise UsageError(what, remedy=f"{_OVERWRITE} --resume adopts its results.")
    _refuse_further_files(job, written, before)
    if not exists:
        return
    if before is not None and before["input"] != job.input:
        raise UsageError(
            f"{output} has the results of another INPUT, {before['input']}", remedy=_OVERWRITE
        )
    if options.resume is False:
        raise UsageError(
            f"{output} exists",
            remedy="Leave out --no-resume to resume the job, or add --overwrite.",
        )


def _refuse_further_files(
    job: Job, written: Sequence[WrittenFiles], before: Mapping[str, Any] | None
) -> None:
    """Raises UsageError if a file besides OUTPUT was not written by the job, which was made
    `before` with these options."""
    stamps = [file_stamp for run in written for file_stamp in run.files.values()]
    # an invocation that was killed may not have noted what it wrote
    unnoted = {} if before is None or any(run.shown for run in written) else before
    for option in WRITTEN:
        path = Path(getattr(job.options, option) or "")
        is_unnoted = unnoted.get(option) == stored_path(str(path), job.root)
        if not is_unnoted and _is_foreign(path, stamps, job.name):
            raise UsageError(f"{path} exists, and this job did not write it", remedy=_OVERWRITE)


def _is_foreign(path: Path, stamps: list[list[int]], job: str) -> bool:
    """True if a file has content that no run of the job wrote, by its stamps or as a summary
    says."""
    if not path.is_file() or not path.stat().st_size:
        return False
    if stamp(path) in stamps:
        return False
    return getattr(read_summary(path.parent, path.name), "workflow", None) != job


async def _run(job: Job, began: Began | None, **more: Any) -> RunReport:
    """Runs a job, the rows after a quote included, and writes its summary."""
    watcher = job.watcher
    watcher.tell_began = began
    more["project"] = job.root
    try:
        report = await asynchronous(run)(job, job.of_run(), **more)
        if report.quote is not None:
            report = await _rest(job, report, report.quote, more)
    finally:
        watcher.close()
    if report.exit_code is not ExitCode.INTERRUPTED:
        await watcher.tell_others()
    report = await _with_job_summary(job, report)
    if job.options.summary_output is not None:
        write_whole(Path(job.options.summary_output), encode(report.summary, indent=True) + "\n")
    if watcher.kept and not report.copies:
        return replace(report, outputs=replace(report.outputs, copies=(watcher.kept,)))
    return report


async def _with_job_summary(job: Job, report: RunReport) -> RunReport:
    """Adds to the report of a run what the summary of a row run says besides."""
    async with stored_run(job.root, report.record.run) as (database, record):
        adopted = await adopted_rows(database, job.name, record.id)
        stage = (await runs.definition_of(database, record.id))["stages"][0]
    written_keys = job.keys["stages"][0]
    params = {
        name: value for name, value in stage.get("params", {}).items() if name not in written_keys
    }
    model = f"{model_of(stage)}{write_query(params)}"
    is_read = record.read_at is not None
    return replace(report, job=job_summary(job, report, model, adopted, read=is_read))


async def _rest(job: Job, first: RunReport, quote: Quote, more: dict[str, Any]) -> RunReport:
    """Runs the rows after the `first` ones, if they are wanted at that price. Raises UsageError if
    they are not."""
    if job.options.run_mode == "batch":
        quote = quote._replace(usd=None, seconds=None)
    elif job.options.provider or job.options.stream:  # which have no batches
        quote = quote._replace(batch_usd=None)
    answer = more["confirm"](quote) if more["confirm"] is not None else None
    if not answer:
        raise _stopped_after(job, first, quote if answer is None else None)
    if answer == "batch":
        job.options = replace(job.options, run_mode="batch")
        job.given["job"]["run_mode"] = "batch"
    job.given["job"].pop("quote", None)
    job.quotes = "made"
    job.watcher.tell_began = None
    job.watcher.close()
    # without --fresh, which would ask the first rows again
    report = await asynchronous(run)(job, replace(job.of_run(), fresh=False), **more)
    both = _added(first.invocation_record, report.invocation_record)
    return replace(report, invocation_record=both)


def _stopped_after(job: Job, first: RunReport, quote: Quote | None) -> UsageError:
    """Returns the error for a job that is not continued after its first rows. It shows the `quote`
    if nobody was asked."""
    rows = counted(first.rows.done + first.rows.failed, "row")
    shown = f":\n{quote}" if quote is not None else ""
    where = ""
    if job.options.work_dir:
        where = f" --work-dir {shlex.quote(job.options.work_dir)}"
    return UsageError(
        f"stopped after {rows}, which are kept{shown}",
        remedy=f"Continue with: agac resume {job_alias(first.record.run)}{where} --yes",
    )


def _added(before: InvocationSummary, after: InvocationSummary) -> InvocationSummary:
    """Adds what the first rows took to what the others took. Failed rows are not added, because
    they were tried again."""
    return replace(
        after,
        continued=before.continued,
        rows=replace(after.rows, done=before.rows.done + after.rows.done),
        calls=replace(
            after.calls,
            count=before.calls.count + after.calls.count,
            retries=before.calls.retries + after.calls.retries,
        ),
    )


def job_summary(job: Job, report: RunReport, model: str, adopted: int, *, read: bool) -> JobSummary:
    """Makes what the summary of a row run says besides that of its run. `model` comes with its
    keys; `adopted` rows came out of OUTPUT; `read`: all selected rows were read."""
    record = report.record
    rows = record.rows
    tokens = record.calls.tokens
    did = report.invocation_record.rows
    processed = did.done + did.failed
    reason = report.exit_code.name.lower()
    if report.exit_code is ExitCode.DONE and rows.open:
        reason = "waiting"
    return JobSummary(
        alias=job_alias(record.run),
        request=_job_request(job, model),
        rows=JobRows(
            input=rows.total if read and not record.request.selection else None,
            selected=rows.total if read else None,
            processed=processed,
            skipped=max(0, rows.total - rows.open - processed),
            ok=rows.done + rows.skipped,
            failed=rows.failed,
            adopted=adopted,
        ),
        duration_ms=round(1000 * record.times.duration_s, 1),
        interrupted=report.exit_code is ExitCode.INTERRUPTED,
        exit_code=int(report.exit_code),
        exit_reason=reason,
        usage=JobUsage(
            prompt=tokens.input,
            completion=tokens.output,
            reasoning=tokens.reasoning,
            total=tokens.input + tokens.output,
        ),
        cache=JobCache(tokens.cached, tokens.cache_write),
    )


def _job_request(job: Job, model: str) -> JobRequest:
    """Describes what a row run was asked; `model` comes with its keys."""
    options = job.options
    has_schema = options.json_schema or options.schema_model
    return JobRequest(
        model=model,
        input=job.input,
        output=job.output,
        template=options.template or ("<inline>" if options.prompt else "<default>"),
        json_schema=options.json_schema,
        schema_model=options.schema_model,
        instruction=options.instruction,
        agent_card=options.agent_card,
        agent=options.agent,
        sql=options.sql,
        variables=sorted(options.vars),
        output_mode="structured" if has_schema else "text",
    )
