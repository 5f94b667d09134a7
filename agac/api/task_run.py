"""`agac.run` and `agac.stream`: runs a workflow, or asks a task of each of some rows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import copy_context
from pathlib import Path
from typing import Any, Unpack, overload

from agac.api.plan import Confirm
from agac.api.report import RunReport
from agac.api.run import run as run_workflow
from agac.api.run_options import RunOptions
from agac.api.sync import INTERRUPTS, Interrupts, asynchronous, calling, iterating
from agac.api.task_keys import TaskKeys, refuse_for_workflow
from agac.api.task_workflow import AgentResult, AgentRun, Inputs, prompt_task
from agac.api.watched_run import Watch
from agac.core.errors import AgacError, UsageError
from agac.core.types import counted
from agac.data.frames import GivenRows
from agac.spec.loader import WorkflowSource


@overload
async def arun(
    workflow: WorkflowSource,
    options: RunOptions | None = None,
    *,
    input: Path | str | GivenRows | None = None,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """A workflow."""


@overload
async def arun(*, task: str, inputs: Inputs, **keys: Unpack[TaskKeys]) -> AgentRun:
    """A task."""


async def arun(
    workflow: Any = None, options: Any = None, *, task: Any = None, inputs: Any = None, **keys: Any
) -> Any:
    """Runs what is left of a workflow's rows and writes its outputs; or asks a `task` of each of
    the rows `inputs`.

    After a kill at any point, the same call resumes; Ctrl-C stops it in good order, then
    KeyboardInterrupt is raised. Of a workflow, `input` replaces its own input and that of the
    options: rows, or where they are. `progress`: whether to show it on standard error as the
    command does, or below a notebook's cell; or what shows it. `confirm` is asked whether to run
    above `confirm_above`; without it such a run is refused unless `options.yes`.
    `handle_signals`: SIGINT and SIGTERM stop it in good order, and a report is returned (main
    thread only).

    A `task` is a prompt with the rows' fields as `{field}`, `${field}` or `{{field}}`; `TaskKeys`
    lists its other arguments. The same call again pays nothing.

    Raises SpecError for problems in files and keys, UsageError for wrong options, AgacError for
    everything else that a user can mend; failed rows raise nothing: they are counted in the
    report, or have an `error`."""
    if (workflow is None) == (task is None):
        remedy = "Give a workflow, or a task with its rows: agac.run(task='…', inputs=rows)."
        raise UsageError("agac.run takes either a workflow or a task", remedy=remedy)
    if task is None:
        refuse_for_workflow(keys if inputs is None else {"inputs": inputs})
        return await asynchronous(run_workflow)(workflow, options, **keys)
    if options is not None:
        keys["options"] = options
    prepared = await prompt_task(task, inputs, keys)
    results = AgentRun()
    results.report = await prepared.run()
    async for page in prepared.task.results(prepared.root):
        results += page
    return results


run = calling(arun)


async def astream(
    task: str, inputs: Inputs, **keys: Unpack[TaskKeys]
) -> AsyncGenerator[AgentResult]:
    """Yields the results of a task as its rows end; those of rows that ended in an earlier run of
    it come last.

    Arguments and errors are those of `arun`; if rows are left, as at a budget, an AgacError that
    says why follows the results. If the caller leaves early, no new call begins: those in flight
    are finished and stored, and the same call resumes. With `contextlib.aclosing` around the
    awaited form that happens at once."""
    prepared = await prompt_task(task, inputs, dict(keys))
    built = prepared.task
    interrupts = INTERRUPTS.get(None) or Interrupts()
    context = copy_context()
    context.run(INTERRUPTS.set, interrupts)
    work = interrupts.task = asyncio.create_task(prepared.run(), context=context)
    work.add_done_callback(lambda _: built.news.set())
    try:
        ended = False
        while not ended:
            await built.news.wait()
            built.news.clear()
            ended = work.done()
            async with aclosing(built.followed(prepared.root)) as pages:
                async for page in pages:
                    for result in page:
                        yield result
        report = await work
        async with aclosing(built.results(prepared.root, unfollowed=True)) as pages:
            async for page in pages:
                for result in page:
                    yield result
        if not interrupts.count:
            _refuse_open_rows(report)
    except GeneratorExit:
        if not interrupts.count:
            interrupts.interrupt()
        raise
    finally:
        if isinstance(sys.exception(), asyncio.CancelledError):
            work.cancel()
        await asyncio.wait({work})


stream = iterating(astream)


def _refuse_open_rows(report: RunReport) -> None:
    """Raises AgacError if rows are left, so that nobody takes a part for the whole."""
    if not report.rows.open:
        return
    reason = report.stopped or "their batches are open"
    raise AgacError(
        f"{counted(report.rows.open, 'row')} of the task did not end: {reason}",
        remedy="Raise the limit, or wait; the same call resumes it.",
    )
