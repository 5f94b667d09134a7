"""Row runs (`agac process`): a file of rows and a prompt in, a file of results out, without a
workflow file. A job is known by its OUTPUT; it is an `agac.Workflow` made in memory, and runs as
every workflow does."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from agac.api.adoption import adopt
from agac.api.job import (
    FILES,
    STDOUT,
    WRITTEN,
    Began,
    Job,
    ProcessOptions,
    Told,
    is_file,
    job_root,
    said,
    stored_path,
)
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
from agac.spec.inputs import INPUTS, PIPED, SCHEME
from agac.spec.paths import POSTGRES, project_root
from agac.spec.rules import Budget
from agac.store import runs
from agac.store.db import open_for_reading
from agac.store.rows import adopted_rows


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
    """Asks a model about each row of `input` and writes the results into the file `output`; called
    again it resumes. A folder without a project is its own. With the OUTPUT `-` no file is
    written: `tell` is given the lines of rows as they end. `began` is given the alias of the job.
    All others are those of `agac.run`, and so are the errors; an OUTPUT that this job did not
    write raises UsageError."""
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
    """What `process` with the same arguments would do: makes no calls, and keeps `show` rendered
    prompts."""
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
    `input` that it had, but for those that are given; their files are read again. If one of them
    changed, so that rows with answers would be asked again, `confirm` is asked first, unless `yes`
    is given. Raises UsageError for another run, and without a yes; otherwise as `process` does."""
    once = ProcessOptions(budget=budget, max_errors=max_errors, wait=wait, yes=yes, calls=calls)
    found = await _resumed(job, options, once, input, project_root(project), tell)
    return await _run(
        found, began, progress=progress, confirm=confirm, handle_signals=handle_signals
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
    """What `resume` with the same arguments would do: makes no calls, and keeps `show` rendered
    prompts."""
    found = await _resumed(job, options, ProcessOptions(), input, project_root(project), None)
    return await asynchronous(plan)(found, found.of_run(), show=show, project=found.root)


_EITHER = (("prompt", "template"), ("instruction", "agent_card"), ("json_schema", "schema_model"))
"""Options of which one takes the place of the other."""

_ONCE = ("fresh", "refetch", "refresh_tools", "stream", "wait", "yes", "export_traces")


async def _resumed(
    job: str | int,
    options: ProcessOptions | None,
    more: ProcessOptions,
    given_input: str | Path | None,
    root: Path,
    tell: Told | None,
) -> Job:
    """A job as it was, but for what `options` change, and `more`, which names no file. Raises as
    `resume` does."""
    changes = options or ProcessOptions()
    async with stored_run(root, job) as (_, record):
        given = given_flags(record)
    if "job" not in given:
        what = f"run {record.id} is not a row run, but one of the workflow {record.workflow!r}"
        raise UsageError(what, remedy=f"Resume it with: {go_on(record)}")
    stored = dict(given["job"])
    source, output = (_from(stored.pop(name), root) for name in ("input", "output"))
    if is_file(root / stored.get("instruction", "")):
        stored["instruction"] = str(root / stored["instruction"])
    stored |= {
        name: _from(stored[name], root) for name in FILES if isinstance(stored.get(name), str)
    }
    changed = changes.given() | more.given()
    for one, other in _EITHER:
        for name in ({one, other} - changed.keys()) if {one, other} & changed.keys() else ():
            stored.pop(name, None)
    stored |= changed | said(vars={**stored.get("vars", {}), **changed.get("vars", {})})
    if isinstance(stored.get("budget"), dict):
        stored["budget"] = Budget(**stored["budget"])
    once = {name: getattr(changes, name) or getattr(more, name) for name in _ONCE}
    calls = changes.calls if changes.calls != "ask" else more.calls
    source = source if given_input is None else str(given_input)
    found = await _ready(source, output, ProcessOptions(**stored, **once, calls=calls), root, tell)
    found.resumes = record.id
    if found.input == PIPED and given_input is None:
        found.piped = given.get("input")
    return found


def _from(stored: str, root: Path) -> str:
    """A stored path, as `stored_path` makes it, for the current folder."""
    if (
        stored in (PIPED, STDOUT)
        or POSTGRES.match(stored)
        or ("://" in stored and not stored.startswith(SCHEME))
    ):
        return stored
    return f"{SCHEME if stored.startswith(SCHEME) else ''}{root / stored.removeprefix(SCHEME)}"


async def _ready(
    source: str | Path | GivenRows,
    output: str,
    options: ProcessOptions,
    project: Path | str | None,
    tell: Told | None,
) -> Job:
    """The job, where it may write its OUTPUT; rows of a program are kept as piped ones are. Raises
    UsageError."""
    rows = None if isinstance(source, str | Path) else source
    job = Job(
        job_root(options, project),
        PIPED if rows is not None else str(source),
        output,
        options,
        tell,
    )
    if rows is not None:
        job.piped = str(await keep_rows(rows, job.root / INPUTS))
    if options.overwrite and options.resume:
        raise UsageError("--overwrite and --resume exclude each other", remedy="Keep one of them.")
    if not options.overwrite:
        async with open_for_reading(database_path(job.root)) as database:
            last = await runs.last_invocation(database, job.name) if database else None
            written = await runs.files_written(database, job.output) if database else []
        before = last.invocation.body.get("given", {}).get("job") if last else None
        there = job.file is not None and job.file.exists()
        job.adopts = before is None and there
        if job.adopts and not options.resume:
            what = f"{output} exists, and this job did not write it"
            raise UsageError(what, remedy=f"{_OVERWRITE} --resume adopts its results.")
        known = [one for run in written for one in run.files.values()]
        # what an invocation was to write that was killed before it noted that it did
        if before is None or any(run.shown for run in written):
            begun = {}
        else:
            begun = before
        for one in WRITTEN:
            path = Path(getattr(options, one) or "")
            if _is_foreign(path, known, job.name) and begun.get(one) != stored_path(
                str(path), job.root
            ):
                raise UsageError(f"{path} exists, and this job did not write it", remedy=_OVERWRITE)
        if before is not None and there and before["input"] != job.input:
            raise UsageError(
                f"{output} has the results of another INPUT, {before['input']}", remedy=_OVERWRITE
            )
        if options.resume is False and there:
            raise UsageError(
                f"{output} exists",
                remedy="Leave out --no-resume to resume the job, or add --overwrite.",
            )
    return job


def _is_foreign(path: Path, known: list[list[int]], job: str) -> bool:
    """Whether a file has anything that no run of the job wrote, by its stamps or as a summary
    says."""
    if not path.is_file() or not path.stat().st_size or stamp(path) in known:
        return False
    return getattr(read_summary(path.parent, path.name), "workflow", None) != job


_OVERWRITE = (
    "Name another file, or replace it with --overwrite; stored answers are reused all the same."
)


async def _run(job: Job, began: Began | None, **more: Any) -> RunReport:
    watcher, more["project"] = job.watcher, job.root
    watcher.tell_began = began
    try:
        report = await asynchronous(run)(job, job.of_run(), **more)
        if report.quote is not None:
            report = await _rest(job, report, report.quote, more)
    finally:
        watcher.close()
    if report.exit_code is not ExitCode.INTERRUPTED:
        await watcher.tell_others()
    async with stored_run(job.root, report.record.run) as (database, record):
        adopted = await adopted_rows(database, job.name, record.id)
        read = record.read_at is not None
        stage = (await runs.definition_of(database, record.id))["stages"][0]
        own = job.keys["stages"][0]
        keys = {name: value for name, value in stage.get("params", {}).items() if name not in own}
        model = f"{model_of(stage)}{write_query(keys)}"
        report = replace(report, job=job_summary(job, report, model, adopted, read=read))
    if job.options.summary_output is not None:
        write_whole(Path(job.options.summary_output), encode(report.summary, indent=True) + "\n")
    if watcher.kept and not report.copies:
        return replace(report, outputs=replace(report.outputs, copies=(watcher.kept,)))
    return report


async def _rest(job: Job, first: RunReport, quote: Quote, more: dict[str, Any]) -> RunReport:
    """The run of the rows after the `first` ones, where they are wanted at that price. Raises
    UsageError."""
    if job.options.run_mode == "batch":
        quote = quote._replace(usd=None, seconds=None)
    elif job.options.provider or job.options.stream:  # which have no batches
        quote = quote._replace(batch_usd=None)
    answer = more["confirm"](quote) if more["confirm"] is not None else None
    if not answer:
        shown = f":\n{quote}" if answer is None else ""
        what = (
            f"stopped after {counted(first.rows.done + first.rows.failed, 'row')}, which "
            f"are kept{shown}"
        )
        if job.options.work_dir:
            where = f" --work-dir {shlex.quote(job.options.work_dir)}"
        else:
            where = ""
        raise UsageError(
            what,
            remedy=f"Continue with: agac resume {job_alias(first.record.run)}{where} --yes",
        )
    if answer == "batch":
        job.options = replace(job.options, run_mode="batch")
        job.given["job"]["run_mode"] = "batch"
    job.given["job"].pop("quote", None)
    job.quotes = "made"
    job.watcher.tell_began = None
    before = first.invocation_record
    job.watcher.close()
    # which retries failed ones
    report = await asynchronous(run)(job, replace(job.of_run(), fresh=False), **more)
    after = report.invocation_record
    both = replace(
        after,
        continued=before.continued,
        rows=replace(after.rows, done=before.rows.done + after.rows.done),
        calls=replace(
            after.calls,
            count=before.calls.count + after.calls.count,
            retries=before.calls.retries + after.calls.retries,
        ),
    )
    return replace(report, invocation_record=both)


def job_summary(job: Job, report: RunReport, model: str, adopted: int, *, read: bool) -> JobSummary:
    """Makes what the summary of a row run says besides that of its run. `model`: with its keys;
    `adopted`: rows out of OUTPUT; `read`: all selected rows were."""
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
    """Tells what a row run was asked; `model`: with its keys."""
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
