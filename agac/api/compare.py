"""Several models on the rows of a row run: a job for each of them, and how far their results
agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.job import STDOUT, WRITTEN, Job, ProcessOptions, job_root
from agac.api.process import process
from agac.api.report import RunReport
from agac.api.run import WORST_FIRST
from agac.api.run_compare import compare_runs
from agac.api.status import database_path
from agac.api.sync import asynchronous, calling
from agac.core.errors import AgacError, ExitCode, UsageError
from agac.engine.limits import BudgetBalance, loaded
from agac.spec.workflow import Budget
from agac.store import runs
from agac.store.db import open_for_reading


class ComparisonReport(NamedTuple):
    """How several models did: `models` in the `summary` has of each its `model`, `output`, and
    what its own summary has as `job`, `rows`, `calls` and `timing_ms`, or the `error` that ended
    it; as `agreement` the `rows` that it and the first one answered, the `share` of them with
    equal results, and that of each of the `fields` of objects. `exit_code` is the worst of theirs,
    `reports` are of those that ran."""

    summary: dict[str, Any]
    reports: list[RunReport]
    exit_code: ExitCode


def jobs_of(
    output: str, options: ProcessOptions, models: Sequence[str]
) -> list[tuple[str, ProcessOptions]]:
    """The OUTPUT and the options of each model's job; all files have the model in their names.
    Raises UsageError."""
    if output == STDOUT or options.to is not None:
        what = "OUTPUT -" if output == STDOUT else "the table of --to"
        raise UsageError(
            f"{what} cannot hold the results of several models", remedy="Name a file, and no table."
        )
    jobs: dict[str, tuple[str, ProcessOptions]] = {}
    for model in dict.fromkeys(models):
        name = short = re.sub(r"[^\w.-]+", "-", model).strip("-.")[:100]
        while name.casefold() in jobs:
            name = f"{short}-{len(jobs) + 1}"
        files: Any = {
            one: _named(path, name)
            for one in WRITTEN
            if (path := getattr(options, one)) is not None
        }
        jobs[name.casefold()] = _named(output, name), replace(options, model=model, **files)
    return list(jobs.values())


def _named(path: str, name: str) -> str:
    return str(Path(path).with_name(f"{Path(path).stem}.{name}{Path(path).suffix}"))


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
    """Runs `process` with the same arguments and each of the models in turn, whatever becomes of
    the others: results go into `results.MODEL.jsonl` beside the OUTPUT `results.jsonl`. `ended` is
    told each report, or error. A budget is for all of them: each may spend what the others left.
    Ctrl-C ends the comparison."""
    options = options or ProcessOptions()
    # all are at work before one is waited for
    if options.wait and options.run_mode == "batch" and not options.quote:
        sent = await asynchronous(compare)(
            input, output, replace(options, wait=False), models=models, **more
        )
        if sent.exit_code is ExitCode.INTERRUPTED:
            return sent
        options = replace(options, fresh=False)
        more = more | {"began": None}
    budget = options.budget
    lines = list[dict[str, Any]]()
    codes = []
    reports = list[RunReport]()
    jobs = jobs_of(str(output), options, models)
    for place, job in jobs:
        try:
            if isinstance(budget, Budget):
                root = job_root(job, more.get("project"))
                others = [Job(root, str(input), *one, None) for one in jobs if one[0] != place]
                job = replace(job, budget=await _left(budget, others))
            report = await asynchronous(process)(input, place, job, **more)
        except AgacError as error:
            lines.append({"model": job.model, "output": place, "error": str(error)})
            codes.append(error.exit_code)
            ended(error)
            continue
        ended(report)
        reports.append(report)
        codes.append(report.exit_code)
        facts = {name: report.summary[name] for name in ("job", "rows", "calls", "timing_ms")}
        if report is not reports[0]:
            agreement = await _agreement(reports[0], report)
        else:
            agreement = None
        lines.append({"model": job.model, "output": place, **facts, "agreement": agreement})
        if report.exit_code is ExitCode.INTERRUPTED:
            break
    code = min(codes, key=WORST_FIRST.index)
    return ComparisonReport(
        {"output": str(output), "models": lines, "exit_code": int(code)}, reports, code
    )


_HOW = (
    "budget",
    "max_errors",
    "max_retries",
    "parallel",
    "quote",
    "retry_delay",
    "row_timeout",
    "run_mode",
)
"""Options of a job with which it goes on in the same run."""


async def _left(budget: Budget, others: Sequence[Job]) -> Budget:
    """What is left of a budget after what the runs spent with which these jobs would go on."""
    counts = list[runs.Count]()
    for job in others:
        async with open_for_reading(database_path(job.root)) as database:
            last = await runs.last_invocation(database, job.name) if database else None
            if last:
                before = last.invocation.body.get("given", {}).get("job", {})
            else:
                before = {}
            how = dict.fromkeys(_HOW)
            if database is None or last is None or before | how != job.given["job"] | how:
                continue
            counts += await runs.counters(database, last.run)
    (balance,) = loaded([BudgetBalance("", budget)], counts, 0)
    caps: Any = {
        unit: cap and max(0, cap - getattr(balance.spent, unit))
        for unit, cap in asdict(budget).items()
    }
    return Budget(**caps)


async def _agreement(first: RunReport, other: RunReport) -> dict[str, Any]:
    """How many rows both have done, and which share of their results is equal."""
    runs_of_both = (one.summary["run"] for one in (first, other))
    found = (
        (await asynchronous(compare_runs)(*runs_of_both, limit=0, project=first.project))
        .stages[0]
        .agreement
    )
    shares = {name: one.share for name, one in found.fields.items()}
    return {"rows": found.rows, "share": found.share, "fields": shares}
