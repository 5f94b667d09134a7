"""Running a workflow: from names and flags to an ended invocation."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agac.api.checking import Checked
from agac.api.confirming import Confirm, confirm_cost
from agac.api.counting import estimated_rows
from agac.api.embedding import embedded
from agac.api.finishing import Finishing, finishing, open_tasks
from agac.api.options import RunOptions
from agac.api.piping import ready_workflow
from agac.api.project import Project, open_project
from agac.api.reading import database_path
from agac.api.selecting import count_rows, selected_rows
from agac.api.shortnames import moved_names
from agac.api.watching import RowCount, Watch, Watched, uncounted
from agac.core.errors import AgacError, ExitCode, Problem, SpecError
from agac.data.sources import place_of
from agac.engine.budgets import facts as budget_facts
from agac.engine.control import Stop
from agac.engine.export import Exported, export_run, files_of, is_shown
from agac.engine.outputs import PREVIEW
from agac.engine.retries import tasks_of_retry
from agac.engine.run import Invocation, run_once
from agac.engine.scope import Retry, Scope
from agac.engine.summary import cost_of, summarise
from agac.engine.work import Clocks, Work
from agac.plan.check import missing_variables
from agac.plan.plan import Plan, make_plan
from agac.spec.workflow import Workflow
from agac.store import runs
from agac.store.db import Database, open_database
from agac.store.made import made_counts
from agac.store.retries import chosen_counts

_log = logging.getLogger("agac.api")


@dataclass(frozen=True, slots=True)
class RunReport:
    """How an invocation ended: `summary` is the run's (what summary.json holds), `invocation` what this one did.

    `stop` says why it ended before its rows did: `interrupt`, `fatal`, `limit` or `loss`; `stopped` is that in words.
    At a limit `finishing` estimates what the open rows need. `not_written` is why a table could not be written beside
    the `files`; `replaced` is the run whose results they replaced, `edited` are those that somebody had changed.
    `empty` are the stages that were to have a result (`on_empty`) and have none.
    """

    summary: dict[str, Any]
    invocation: dict[str, Any]
    exit_code: ExitCode
    files: list[Path]
    stopped: str | None = None
    warnings: list[Problem] = field(default_factory=list)
    stop: str | None = None
    finishing: Finishing | None = None
    not_written: AgacError | None = None
    replaced: dict[str, Any] | None = None
    edited: tuple[Path, ...] = ()
    empty: list[Problem] = field(default_factory=list)

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
            "not_written": _told(self.not_written),
            "replaced": self.replaced,
            "edited": [str(file) for file in self.edited],
            "empty": [{"severity": problem.severity, "message": problem.message} for problem in self.empty],
        }


def _told(error: AgacError | None) -> dict[str, Any] | None:
    return None if error is None else {"message": error.message, "remedy": error.remedy}


def run(
    workflow: str,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Runs a workflow, or goes on with it. See `run_async`."""
    task = run_async(workflow, options, project=project, watch=watch, confirm=confirm, handle_signals=handle_signals)
    return asyncio.run(task)


async def run_async(
    workflow: str,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Runs what is left of a workflow's rows and writes its outputs when all of them have an outcome.

    Killed at any point, the same call goes on. `confirm` is asked whether to go on above `confirm_above`; without it
    such a run is refused unless `options.yes`. `handle_signals`: SIGINT and SIGTERM end it in good order (main thread
    only). Raises SpecError for problems in files, UsageError for wrong options, AgacError for everything else that a
    user can mend; failed rows are no exception but `exit_code` 3.
    """
    options = options or RunOptions()
    opened = open_project(project)
    return await invoke(opened, workflow, options, confirm=confirm, watch=watch, handle_signals=handle_signals)


async def invoke(
    opened: Project,
    workflow: str,
    options: RunOptions,
    *,
    retry: Retry | None = None,
    chosen: int | None = None,
    agree: Callable[[Database, Plan], Awaitable[None]] | None = None,
    confirm: Confirm | None = None,
    watch: Watch | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """One invocation: of the input's rows, or of those that a `retry` chooses, `chosen` in number. `agree` may refuse
    by raising."""
    checked, options = ready_workflow(opened, workflow, options)
    missing = missing_variables(checked.models, checked.workflow)
    if missing:
        raise SpecError(missing)
    scope = options.scope([stage.name for stage in checked.workflow.stages])
    invocation = Invocation(given=options.given())
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(embedded(checked.models))
        plan = make_plan(checked.workflow, models, opened.root, options.selection(), options.concurrency)
        database = await stack.enter_async_context(open_database(database_path(opened.root)))
        moved = await moved_names(database, checked.workflow, plan)
        checked = replace(checked, warnings=[*checked.warnings, *moved])
        if agree is not None:
            await agree(database, plan)
        if retry is not None:
            invocation.chosen = await chosen_counts(database, retry.run, retry)
        if not options.yes:
            await confirm_cost(checked, plan, database, scope, fresh=options.fresh, retry=retry, confirm=confirm)
        with _interruptible(invocation) if handle_signals else nullcontext():
            work = _work(opened, checked, plan, options.fresh, scope, retry)
            await _run(database, work, checked, invocation, watch, chosen)
        return await _report(database, opened, checked, plan, retry, invocation)


def _work(project: Project, checked: Checked, plan: Plan, fresh: bool, scope: Scope, retry: Retry | None) -> Work:
    folder = plan.output.dir / PREVIEW if plan.selection.partial else plan.output.dir
    return Work(
        plan=plan,
        rows=lambda: selected_rows(checked, plan.selection),
        place=partial(place_of, checked.source),
        output_dir=project.spec.shown(folder),
        fresh=fresh,
        scope=scope,
        retry=retry,
        root=project.root,
        redactor=project.redactor(),
        clocks=Clocks(),
        env=project.env,
    )


async def _run(
    database: Database, work: Work, checked: Checked, invocation: Invocation, watch: Watch | None, chosen: int | None
) -> None:
    plan = work.plan

    def count() -> RowCount | None:
        return estimated_rows(checked, plan.selection) if chosen is None else RowCount(chosen, exact=True)

    watching: asyncio.Task[Any] | None = None
    if watch is not None:
        upstream = {stage.name: stage.ancestors for stage in plan.stages}
        seen = Watched(plan.workflow, invocation, count, checked.warnings, upstream, uncounted(plan.stages))
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


async def _report(
    database: Database, project: Project, checked: Checked, plan: Plan, retry: Retry | None, invocation: Invocation
) -> RunReport:
    record = await runs.read_run(database, invocation.run)
    assert record is not None
    summary = await summarise(database, record)
    rows = summary["rows"]["total"]
    exported = Exported(files_of(record, project.root, rows))
    stop = invocation.control.stop if not invocation.complete else None
    # A finished run replaces outputs, and one that met a limit of its user's: a run that a bad key stopped must not
    # empty the folder of an earlier one.
    replaced = invocation.complete or stop is Stop.LIMIT
    if replaced and not is_shown(record, project.root, rows):
        exported = await export_run(database, record, project.root, summary)
    code = invocation.exit_code
    if exported.not_written is not None:
        code = ExitCode.FAILED
    elif code is ExitCode.DONE and any(one["rows"]["failed"] for one in (summary, *summary["levels"])):
        code = ExitCode.ROWS_FAILED
    empty = _empty(checked.workflow, summary) if invocation.complete else []
    if code in (ExitCode.DONE, ExitCode.ROWS_FAILED) and any(one.severity == "error" for one in empty):
        code = ExitCode.FAILED
    return RunReport(
        summary,
        _facts(invocation),
        code,
        exported.files if replaced else [],
        invocation.control.why or None if stop else None,
        checked.warnings,
        stop.value if stop else None,
        await _finishing(database, checked, plan, retry, summary, invocation) if stop is Stop.LIMIT else None,
        exported.not_written,
        await _replaced(database, exported),
        exported.edited,
        empty,
    )


def _empty(workflow: Workflow, summary: dict[str, Any]) -> list[Problem]:
    """The stages that were to have a result and have none, in a run that had rows."""
    if not summary["rows"]["total"]:
        return []
    found = []
    for stage, told in zip(workflow.stages, summary["stages"], strict=True):
        if stage.on_empty is not None and not told["done"] + told["reused"]:
            message = f"no row has a result of stage {stage.name!r}"
            severity: Literal["error", "warning"] = "error" if stage.on_empty == "error" else "warning"
            found.append(Problem(stage.at("on_empty"), message, f"{stage.path}.on_empty", severity))
    return found


async def _replaced(database: Database, exported: Exported) -> dict[str, Any] | None:
    """The run whose results stood in the folder, its input, and the command that writes them there again."""
    before = await runs.read_run(database, exported.replaced) if exported.replaced is not None else None
    if before is None:
        return None
    source = (await runs.definition_of(database, before.id))["input"]["path"]
    flag = "" if before.finished_at is not None else " --partial"
    return {"run": before.id, "input": source, "again": f"agac export --run {before.id}{flag}"}


async def _finishing(
    database: Database,
    checked: Checked,
    plan: Plan,
    retry: Retry | None,
    summary: dict[str, Any],
    invocation: Invocation,
) -> Finishing:
    totals = invocation.totals
    counts = await runs.counters(database, invocation.run)
    if retry is None:
        count = await asyncio.to_thread(count_rows, checked, plan.selection)
        rows, tasks = open_tasks(summary, count)
    else:
        chosen = sum(count for _, _, count in invocation.chosen)
        rows = max(chosen - totals.rows_done - totals.rows_failed, 0)
        share = rows / chosen if chosen else 0.0
        made = await made_counts(database, invocation.run)
        asked = tasks_of_retry(plan, retry, invocation.chosen, made, runs.row_counts(counts)["present"])
        tasks = [math.ceil(count * share) for count in asked.values()]
    return finishing(plan, counts, rows, tasks, invocation.purse, totals.rows_failed)


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
        "rows_skipped": totals.rows_skipped,
        "rows_dropped": totals.rows_filtered + totals.rows_dropped,
        "rows_left_failed": totals.left_failed + totals.failed_for_good,
        "rows_parked": totals.rows_parked,
        "tasks_asked": totals.tasks_done,
        "tasks_reused": totals.tasks_reused,
        "tasks_collapsed": totals.collapsed,
        "calls": totals.calls,
        "retries": totals.retries,
        "repairs": totals.repairs,
        "fallbacks": totals.fallbacks,
        "waiting_for": {"type": again.type, "message": again.message} if (again := totals.waiting_for) else None,
        "calls_given_up": totals.given_up,
        "calls_perhaps_billed_without_answer": totals.ambiguous + totals.given_up,
        "stopped_at_limit": invocation.control.stop is Stop.LIMIT and not invocation.ended,
        "cost_usd": cost_of(totals.cost, totals.unpriced),
        "budgets": budget_facts(invocation.purse.pots) if invocation.purse else [],
    }


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
