"""Running a workflow: from names and flags to an ended invocation."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agac.api.checking import Checked, checked_workflow
from agac.api.finishing import Finishing, finishing
from agac.api.project import Project, open_project
from agac.api.reading import database_path
from agac.core.errors import AgacError, ExitCode, Problem, SpecError, UsageError
from agac.core.types import Row
from agac.data.sinks import check_folder
from agac.data.sources import read_rows
from agac.engine.budgets import facts as budget_facts
from agac.engine.control import Stop
from agac.engine.export import export_run, files_of, is_shown
from agac.engine.run import Invocation, run_once
from agac.engine.summary import summarise
from agac.engine.work import Clocks, Work
from agac.plan.check import missing_variables
from agac.plan.plan import Plan, ResolvedModel, Selection, make_plan
from agac.simulator.embedded import embedded_simulator
from agac.simulator.settings import SimulatorError
from agac.spec.inout import output_folder
from agac.spec.workflow import Budget, Overrides, Workflow
from agac.store import runs
from agac.store.db import Database, open_database

_log = logging.getLogger("agac.api")

PREVIEW = "preview"
"""Folder, inside the output folder, of a run over a selection."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What one invocation changes. `limit` and `offset` select rows; `output` replaces the workflow's folder."""

    limit: int | None = None
    offset: int = 0
    input: Path | None = None
    model: str | None = None
    vars: dict[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    output: str | None = None
    fresh: bool = False
    budget: Budget | None = None
    max_errors: int | None = None
    yes: bool = False


@dataclass(frozen=True, slots=True)
class RunReport:
    """How an invocation ended: `summary` is the run's (what summary.json holds), `invocation` what this one did.

    `stop` says why it ended before its rows did: `interrupt`, `fatal`, `limit` or `loss`; `stopped` is that in words.
    At a limit `finishing` estimates what the open rows need.
    """

    summary: dict[str, Any]
    invocation: dict[str, Any]
    exit_code: ExitCode
    files: list[Path]
    stopped: str | None = None
    warnings: list[Problem] = field(default_factory=list)
    stop: str | None = None
    finishing: Finishing | None = None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return {
            **self.summary,
            "invocation": self.invocation,
            "exit_code": int(self.exit_code),
            "files": [str(file) for file in self.files],
            "stop": self.stop,
            "stopped": self.stopped,
            "finishing": self.finishing.as_json() if self.finishing else None,
        }


@dataclass(frozen=True, slots=True)
class Watched:
    """What a watcher sees while rows are worked on; `total` is the number of rows once it is known."""

    workflow: str
    invocation: Invocation
    count_rows: Callable[[], int]
    warnings: list[Problem]


Watch = Callable[[Watched], Awaitable[None]]
"""A coroutine that shows progress until it is cancelled."""


def run(
    workflow: str,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Runs a workflow, or goes on with it. See `run_async`."""
    task = run_async(workflow, options, project=project, watch=watch, handle_signals=handle_signals)
    return asyncio.run(task)


async def run_async(
    workflow: str,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Runs what is left of a workflow's rows and writes its outputs when all of them have an outcome.

    Killed at any point, the same call goes on. `handle_signals`: SIGINT and SIGTERM end it in good order (main thread
    only). Raises SpecError for problems in files, UsageError for wrong options, AgacError for everything else that a
    user can mend; failed rows are no exception but `exit_code` 3.
    """
    options = options or RunOptions()
    opened = open_project(project)
    checked = checked_workflow(opened, workflow, _overrides(options))
    if options.output is not None:
        checked = replace(checked, workflow=_with_output(checked, opened, options.output))
    missing = missing_variables(checked.models, checked.workflow)
    if missing:
        raise SpecError(missing)
    invocation = Invocation(given=_given(options))
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(_embedded(checked.models))
        selection = Selection(options.limit, options.offset)
        plan = make_plan(checked.workflow, models, opened.root, selection, options.concurrency)
        database = await stack.enter_async_context(open_database(database_path(opened.root)))
        with _interruptible(invocation) if handle_signals else nullcontext():
            await _run(database, opened, checked, plan, options, invocation, watch)
        return await _report(database, opened, checked, invocation)


async def _run(
    database: Database,
    project: Project,
    checked: Checked,
    plan: Plan,
    options: RunOptions,
    invocation: Invocation,
    watch: Watch | None,
) -> None:
    folder = plan.output.dir / PREVIEW if plan.selection.partial else plan.output.dir
    check_folder(folder, project.root)  # what would be in the way of the results is found before they are paid for
    work = Work(
        plan=plan,
        rows=lambda: selected_rows(checked, plan.selection),
        output_dir=project.spec.shown(folder),
        fresh=options.fresh,
        redactor=project.redactor(),
        clocks=Clocks(),
        env=project.env,
    )
    watching: asyncio.Task[Any] | None = None
    if watch is not None:
        seen = Watched(plan.workflow, invocation, lambda: _count(checked, plan.selection), checked.warnings)
        watching = asyncio.ensure_future(watch(seen))
    try:
        await run_once(database, work, invocation)
    except BaseExceptionGroup as group:
        raise _first_known(group) from group
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
            if not watching.cancelled() and watching.exception():  # what shows the work must not cost the work
                _log.warning("progress could not be shown: %s", watching.exception())


def _first_known(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure behind a group: an AgacError if there is one, since what follows it is its consequence."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, AgacError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def selected_rows(checked: Checked, selection: Selection) -> Iterator[Row]:
    """The selected rows, streamed; every call reads the input anew."""
    rows = read_rows(checked.source, checked.workflow.input.id_field, selection.offset)
    return rows if selection.limit is None else itertools.islice(rows, selection.limit)


def _count(checked: Checked, selection: Selection) -> int:
    records = checked.source.records(selection.offset)
    return sum(1 for _ in (records if selection.limit is None else itertools.islice(records, selection.limit)))


async def _report(database: Database, project: Project, checked: Checked, invocation: Invocation) -> RunReport:
    record = await runs.read_run(database, invocation.run)
    assert record is not None
    summary = await summarise(database, record)
    files = files_of(record, project.root)
    stop = invocation.control.stop if not invocation.complete else None
    # A finished run replaces outputs, and one that met a limit of its user's: a run that a bad key stopped must not
    # empty the folder of an earlier one.
    replaced = invocation.complete or stop is Stop.LIMIT
    if replaced and not is_shown(record, project.root):
        await export_run(database, record, project.root, summary)
    code = invocation.exit_code
    if code is ExitCode.DONE and summary["rows"]["failed"]:
        code = ExitCode.ROWS_FAILED
    fault = invocation.control.fault
    return RunReport(
        summary,
        _facts(invocation),
        code,
        files if replaced else [],
        (fault.message if fault else invocation.control.reason or None) if stop else None,
        checked.warnings,
        stop.value if stop else None,
        await _finishing(checked, record, summary, invocation) if stop is Stop.LIMIT else None,
    )


async def _finishing(
    checked: Checked, record: runs.RunRecord, summary: dict[str, Any], invocation: Invocation
) -> Finishing:
    selection = Selection(record.selection.get("limit"), record.selection.get("offset", 0))
    rows = await asyncio.to_thread(_count, checked, selection)
    pots = invocation.purse.pots if invocation.purse else ()
    return finishing(summary, rows, checked.workflow.rules, pots)


def _facts(invocation: Invocation) -> dict[str, Any]:
    totals = invocation.totals
    return {
        "continued": invocation.continued,
        "complete": invocation.complete,
        "lost_calls_at_most": invocation.lost_calls,
        "rows_read": totals.seen,
        "rows_unchanged": totals.unchanged,
        "rows_done": totals.rows_done,
        "rows_failed": totals.rows_failed,
        "rows_left_failed": totals.left_failed,
        "tasks_asked": totals.tasks_done,
        "tasks_reused": totals.tasks_reused,
        "tasks_collapsed": totals.collapsed,
        "calls": totals.calls,
        "retries": totals.retries,
        "repairs": totals.repairs,
        "calls_given_up": totals.given_up,
        "calls_perhaps_billed_without_answer": totals.ambiguous + totals.given_up,
        "cost_usd": round(totals.cost, 6),
        "budgets": budget_facts(invocation.purse.pots) if invocation.purse else [],
    }


def _given(options: RunOptions) -> dict[str, Any]:
    """What was changed, by the name of its flag. `--fresh` is not part of it: who goes on does not begin anew."""
    given = {
        "limit": options.limit,
        "offset": options.offset,
        "input": str(options.input) if options.input else None,
        "model": options.model,
        "var": options.vars,
        "concurrency": options.concurrency,
        "output": options.output,
    }
    return {name: value for name, value in given.items() if value}


def _overrides(options: RunOptions) -> Overrides:
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit {options.limit}: take at least one row")
    if options.concurrency is not None and options.concurrency < 1:
        raise UsageError(f"--concurrency {options.concurrency}: at least one call has to be in flight")
    if options.offset < 0:
        raise UsageError(f"--offset {options.offset}: skip no fewer than zero rows")
    if options.max_errors is not None and options.max_errors < 0:
        raise UsageError(f"--max-errors {options.max_errors}: give 0 or more")
    return Overrides(
        vars=options.vars,
        model=options.model,
        concurrency=options.concurrency,
        input=options.input,
        budget=options.budget,
        max_errors=options.max_errors,
    )


def _with_output(checked: Checked, project: Project, text: str) -> Workflow:
    folder = output_folder(text, project.spec, checked.workflow.input)
    return replace(checked.workflow, output=replace(checked.workflow.output, dir=folder))


@asynccontextmanager
async def _embedded(models: Mapping[str, ResolvedModel]) -> AsyncIterator[dict[str, ResolvedModel]]:
    """Starts the simulator where a model needs it, and fills in its address."""
    if not any(model.provider.embedded for model in models.values()):
        yield dict(models)
        return
    try:
        async with embedded_simulator() as base_url:
            yield {
                name: replace(model, provider=replace(model.provider, base_url=base_url))
                if model.provider.embedded
                else model
                for name, model in models.items()
            }
    except SimulatorError as error:
        raise AgacError("the simulator did not start: " + "; ".join(error.problems)) from error


@contextmanager
def _interruptible(invocation: Invocation) -> Iterator[None]:
    """SIGINT and SIGTERM ask the run to stop in good order; the second one at once."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, invocation.control.interrupt)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
