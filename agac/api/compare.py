"""Runs several models on the rows of a row run, with a job for each of them, and compares their
results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.job import STDOUT, WRITTEN, Job, job_root
from agac.api.job_options import ProcessOptions
from agac.api.process import process
from agac.api.report import RunReport
from agac.api.run import WORST_FIRST
from agac.api.run_compare import compare_runs
from agac.api.status import database_path
from agac.api.sync import asynchronous, calling
from agac.core.errors import AgacError, ExitCode, UsageError
from agac.core.keys import job_alias
from agac.engine.ask.limits import BudgetBalance, loaded
from agac.spec.rules import Budget
from agac.store import runs
from agac.store.db import open_for_reading


class ComparisonReport(NamedTuple):
    """How several models did."""

    models: list[dict[str, Any]]
    """Of each its `model`, its `output`, and either the `error` that ended it or, of its own
    summary, `job`, `rows`, `calls` and `timing_ms`. The `agreement` has the `rows` that it and the
    first one answered, the `share` of these with equal results, and the share for each of the
    `fields` of objects."""

    reports: list[RunReport]
    """The reports of the models that ran."""

    exit_code: ExitCode
    """The worst of theirs."""

    output: str
    """The file or folder of all outputs, as it was given."""

    @property
    def summary(self) -> dict[str, Any]:
        """What `agac process` prints as JSON."""
        return {"output": self.output, "models": self.models, "exit_code": int(self.exit_code)}


def jobs_of(
    output: str,
    options: ProcessOptions,
    models: Sequence[str],
) -> list[tuple[str, ProcessOptions]]:
    """Makes the OUTPUT and the options of each model's job. All files have the model in their
    names. Raises UsageError."""
    if output == STDOUT or options.to is not None:
        what = "OUTPUT -" if output == STDOUT else "the table of --to"
        remedy = "Name a file, and no table."
        raise UsageError(f"{what} cannot hold the results of several models", remedy=remedy)
    jobs: dict[str, tuple[str, ProcessOptions]] = {}
    for model in dict.fromkeys(models):
        short = re.sub(r"[^\w.-]+", "-", model).strip("-.")[:100]
        name = short
        while name.casefold() in jobs:
            name = f"{short}-{len(jobs) + 1}"
        files: dict[str, Any] = {}
        for option in WRITTEN:
            path = getattr(options, option)
            if path is not None:
                files[option] = _with_name(path, name)
        jobs[name.casefold()] = _with_name(output, name), replace(options, model=model, **files)
    return list(jobs.values())


def _with_name(path: str, name: str) -> str:
    """Adds a name before the suffix of a path."""
    file = Path(path)
    return str(file.with_name(f"{file.stem}.{name}{file.suffix}"))


@calling
async def compare(
    input: str | Path,  # noqa: A002 - the option's name
    output: str | Path,
    options: ProcessOptions | None = None,
    *,
    models: Sequence[str],
    ended: Callable[[RunReport | AgacError], None] = lambda _: None,
    **more: Any,
) -> ComparisonReport:
    """Runs `process` with the same arguments and each of the models in turn, even if another one
    fails: results go into `results.MODEL.jsonl` next to the OUTPUT `results.jsonl`. `ended` gets
    each report, or error. A budget is for all of them: each may spend what the others left. Ctrl-C
    ends the comparison."""
    options = options or ProcessOptions()
    is_waiting = options.wait and options.run_mode == "batch"
    if is_waiting and not options.quote:  # all batches are sent before the first is waited for
        sending = replace(options, wait=False)
        sent = await asynchronous(compare)(input, output, sending, models=models, **more)
        if sent.exit_code is ExitCode.INTERRUPTED:
            return sent
        options = replace(options, fresh=False)
        more |= {"began": None}
    lines = list[dict[str, Any]]()
    codes = list[ExitCode]()
    reports = list[RunReport]()
    jobs = jobs_of(str(output), options, models)
    for job_output, job in jobs:
        try:
            job = await _within_budget(str(input), job_output, jobs, more.get("project"))
            report = await asynchronous(process)(input, job_output, job, **more)
        except AgacError as error:
            lines.append({"model": job.model, "output": job_output, "error": str(error)})
            codes.append(error.exit_code)
            ended(error)
            continue
        ended(report)
        reports.append(report)
        codes.append(report.exit_code)
        lines.append({"model": job.model, "output": job_output, **await _facts(reports[0], report)})
        if report.exit_code is ExitCode.INTERRUPTED:
            break
    code = min(codes, key=WORST_FIRST.index)
    return ComparisonReport(lines, reports, code, str(output))


_OF_AN_INVOCATION = (
    "budget",
    "max_errors",
    "max_retries",
    "parallel",
    "quote",
    "retry_delay",
    "row_timeout",
    "run_mode",
)
"""Options of a job that may change while it continues the same run."""


async def _within_budget(
    source: str,
    output: str,
    jobs: Sequence[tuple[str, ProcessOptions]],
    project: Path | str | None,
) -> ProcessOptions:
    """Gives the options of the job that writes `output`, with what the other jobs left of the
    budget."""
    options = dict(jobs)[output]
    if not isinstance(options.budget, Budget):
        return options
    root = job_root(options, project)
    others = [
        Job(root, source, other_output, other_options, None)
        for other_output, other_options in jobs
        if other_output != output
    ]
    return replace(options, budget=await _left(options.budget, others))


async def _left(budget: Budget, others: Sequence[Job]) -> Budget:
    """Computes what is left of a budget after the runs that these jobs would continue."""
    counts = list[runs.Count]()
    for job in others:
        async with open_for_reading(database_path(job.root)) as database:
            if database is None:
                continue
            last = await runs.last_invocation(database, job.name)
            if last is None:
                continue
            before = last.invocation.body.get("given", {}).get("job", {})
            ignored = dict.fromkeys(_OF_AN_INVOCATION)
            if before | ignored == job.given["job"] | ignored:
                counts += await runs.counters(database, last.run)
    (balance,) = loaded([BudgetBalance("", budget)], counts, 0)
    caps: dict[str, Any] = {}
    for unit, cap in asdict(budget).items():
        caps[unit] = cap and max(0, cap - getattr(balance.spent, unit))
    return Budget(**caps)


async def _facts(first: RunReport, report: RunReport) -> dict[str, Any]:
    """Lists what the summary says of a model that ran: parts of its own summary, and how far its
    results agree with those of the first model."""
    record = report.record
    facts = {
        "job": job_alias(record.run),
        "rows": record.rows._asdict(),
        "calls": record.calls.as_json(),
        "timing_ms": record.timing_ms.as_json(),
    }
    if report is first:
        return {**facts, "agreement": None}
    runs_of_both = (first.record.run, record.run)
    compared = await asynchronous(compare_runs)(*runs_of_both, limit=0, project=first.project)
    agreement = compared.stages[0].agreement
    fields = {name: of_field.share for name, of_field in agreement.fields.items()}
    shares = {"rows": agreement.rows, "share": agreement.share, "fields": fields}
    return {**facts, "agreement": shares}
