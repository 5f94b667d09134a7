"""Running a workflow: from names and flags to an ended invocation."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.batching import batching_of, reachable, refuse_fresh
from agac.api.confirming import Confirm, confirm_cost
from agac.api.counting import estimated_rows
from agac.api.embedding import embedded
from agac.api.ending import RunReport, report_of
from agac.api.following import Following
from agac.api.options import RunOptions
from agac.api.piping import ready_workflow
from agac.api.planning import PlannedTasks, input_tasks, stored_tasks
from agac.api.project import Project, open_project
from agac.api.reading import database_path
from agac.api.selecting import selected_rows
from agac.api.shortnames import moved_names
from agac.api.watching import RowCount, Watch, Watched, uncounted
from agac.core.errors import AgacError, Problem, SpecError
from agac.core.types import Row
from agac.data.sources import place_of
from agac.engine.outputs import PREVIEW
from agac.engine.run import Invocation, run_once
from agac.engine.scope import Retry, Scope
from agac.engine.work import Batching, Clocks, Work
from agac.plan.check import missing_variables
from agac.plan.plan import Plan, make_plan
from agac.store.db import Database, open_database
from agac.store.rows import chosen_counts

_log = logging.getLogger("agac.api")


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
        models = await stack.enter_async_context(embedded(checked.models, opened.root))
        plan = make_plan(checked.workflow, models, opened.root, options.selection(), options.concurrency)
        database = await stack.enter_async_context(open_database(database_path(opened.root)))
        moved = await moved_names(database, checked.workflow, plan)
        checked = replace(checked, warnings=[*checked.warnings, *moved])
        if agree is not None:
            await agree(database, plan)
        if options.fresh:
            await refuse_fresh(database, plan.workflow)
        if retry is not None:
            invocation.chosen = await chosen_counts(database, retry.run, retry)
        if not options.yes:
            await confirm_cost(checked, plan, database, scope, fresh=options.fresh, retry=retry, confirm=confirm)

        def count_of() -> RowCount | None:
            return estimated_rows(checked, plan.selection) if chosen is None else RowCount(chosen, exact=True)

        with interruptible(invocation) if handle_signals else nullcontext():
            providers = await stack.enter_async_context(reachable(opened, plan, database))
            batching = batching_of(opened, providers, plan.workflow, options, confirm)
            work = work_of(
                opened, plan, batching, lambda: selected_rows(checked, plan.selection),
                partial(place_of, checked.source), fresh=options.fresh, scope=scope, retry=retry,
            )  # fmt: skip
            await walk_through(database, work, invocation, checked.warnings, watch, count_of)

        async def tasks_left() -> tuple[int, list[PlannedTasks]]:
            unretried = replace(scope, retry_failed=False)
            if retry is not None:
                return 0, await stored_tasks(database, plan, invocation.run, scope, retry=retry)
            return await input_tasks(database, plan, invocation.run, unretried, work.rows)

        return await report_of(
            database, opened.root, plan, invocation,
            warnings=checked.warnings, tasks_left=tasks_left, retry=retry, providers=providers,
            workflow=checked.workflow,
        )  # fmt: skip


def work_of(
    project: Project,
    plan: Plan,
    batching: Batching,
    rows: Callable[[], Iterator[Row]],
    place: Callable[[int], str],
    *,
    fresh: bool = False,
    scope: Scope | None = None,
    retry: Retry | None = None,
) -> Work:
    """What an invocation of a plan is about."""
    folder = plan.output.dir / PREVIEW if plan.selection.partial else plan.output.dir
    return Work(
        plan=plan,
        rows=rows,
        place=place,
        output_dir=project.spec.shown(folder),
        fresh=fresh,
        scope=scope or Scope(),
        retry=retry,
        root=project.root,
        redactor=project.redactor(),
        clocks=Clocks(),
        env=project.env,
        batching=batching,
    )


async def walk_through(
    database: Database,
    work: Work,
    invocation: Invocation,
    warnings: list[Problem],
    watch: Watch | None,
    count: Callable[[], RowCount | None] | None,
) -> None:
    """The invocation itself, shown to `watch` while it goes on; `count` says how many rows it is about."""
    plan = work.plan
    watching: asyncio.Task[Any] | None = None
    if watch is not None:
        upstream = {stage.name: stage.ancestors for stage in plan.stages}
        told = count or (lambda: None)
        following = Following(database, invocation, [stage.name for stage in plan.stages])
        stages = uncounted(plan.stages)
        seen = Watched(plan.workflow, invocation, told, warnings, upstream, stages, following.counts)
        watching = asyncio.ensure_future(following.shown(watch, seen))
    try:
        await run_once(database, work, invocation)
    except BaseExceptionGroup as group:
        raise first_known(group) from group
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
            if not watching.cancelled() and watching.exception():  # what shows the work must not cost the work
                _log.warning("progress could not be shown: %s", watching.exception())


def first_known(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure behind a group: an AgacError if there is one, since what follows it is its consequence."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, AgacError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


@contextmanager
def interruptible(invocation: Invocation) -> Iterator[None]:
    """SIGINT and SIGTERM ask the run to stop in good order; the second one at once."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, invocation.control.interrupt)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
