"""Running workflows: from names and flags to an ended invocation; retries, and batches at work."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agac.api.inspect import moved_names
from agac.api.options import RunOptions, position_of
from agac.api.plan import (
    Confirm,
    confirm_cost,
    confirm_stale,
    estimated_rows,
    estimates,
    input_tasks,
    stored_tasks,
)
from agac.api.project import (
    CheckedWorkflow,
    Project,
    check_workflow,
    embedded,
    embedded_address,
    open_project,
    ready_workflow,
    selected_rows,
)
from agac.api.report import BatchFollower, RowCount, RunReport, Watch, WatchedRun, report_of, uncounted
from agac.api.status import database_path, find_rows, find_run
from agac.core.errors import AgacError, ErrorType, ExitCode, Problem, SpecError, UsageError, any_error
from agac.core.keys import canonical
from agac.core.report import Report
from agac.core.types import Row
from agac.data.sources import place_of
from agac.engine.batch.coordinator import Stale
from agac.engine.estimate import CostEstimate
from agac.engine.export import PREVIEW
from agac.engine.invocation import Batching, Clocks, Retry, Scope, Work
from agac.engine.run import Invocation, run_once
from agac.plan.checks import missing_variables
from agac.plan.plan import Plan, make_plan, restored_plan
from agac.providers.batch_apis import open_batch_api
from agac.providers.provider import Provider
from agac.spec.loader import in_order
from agac.spec.paths import project_root
from agac.store import runs
from agac.store.batches import CLOSED, unfinished_batches
from agac.store.db import Database, open_database, open_for_reading
from agac.store.rows import RowRecord, chosen_counts

FOLDER = "batches"
"""Where batches' files lie, beside the database."""


@asynccontextmanager
async def reachable(
    opened: Project, plan: Plan | None, database: Database, workflow: str | None = None, also: Iterable[str] = ()
) -> AsyncIterator[Mapping[str, Provider]]:
    """The project's providers, agac's own one started where the plan, an open batch of the workflow, or one of `also`
    needs it."""
    name = plan.workflow if plan is not None else workflow
    asked = [one.provider for stage in (plan.asking if plan else ()) for one in stage.models]
    started = next((one.base_url for one in asked if one.embedded and one.base_url), None)
    if started is not None:
        yield _with_address(opened.providers, started)
        return
    named = {one.provider for one in await unfinished_batches(database, name)} if name is not None else set()
    named |= {*also, *(one.name for one in asked)}
    if any(one in opened.providers and opened.providers[one].embedded for one in named):
        async with embedded_address(opened.root) as address:
            yield _with_address(opened.providers, address)
        return
    yield opened.providers


def _with_address(providers: Mapping[str, Provider], address: str) -> dict[str, Provider]:
    return {name: replace(one, base_url=address) if one.embedded else one for name, one in providers.items()}


def batching_of(
    opened: Project,
    providers: Mapping[str, Provider],
    workflow: str,
    options: RunOptions,
    confirm: Confirm | None,
    *,
    only: int | None = None,
    retrieves: int | None = None,
) -> Batching:
    """What an invocation needs for its batches."""
    return Batching(
        providers=providers,
        open_api=partial(_open, opened),
        recorded=partial(recorded_plan, opened, providers, functions=False),
        folder=opened.root / ".agac" / FOLDER,
        confirm_stale=partial(_agree, workflow, providers, options, confirm, retrieves is not None),
        wait=options.wait,
        only_batch=only,
        resume_run=retrieves,
    )


def _open(opened: Project, provider: Provider):  # type: ignore[no-untyped-def]
    return open_batch_api(provider, opened.redactor())


async def _agree(
    workflow: str,
    providers: Mapping[str, Provider],
    options: RunOptions,
    confirm: Confirm | None,
    silent: bool,
    stale: Stale,
) -> bool:
    """Whether anything may be submitted beside batches that hold what is no longer asked. Raises UsageError where
    nobody can say yes; who retrieves is not asked, and submits nothing."""
    if options.yes:
        return True
    if silent:
        return False
    reports = [
        {
            "batch": record.id,
            "provider_id": record.provider_id,
            "requests": count,
            "held_usd": record.held_usd * count / max(record.tasks, 1) if record.priced else None,
            "simulated": record.provider in providers and providers[record.provider].simulated,
        }
        for record, count in stale
    ]
    confirm_stale(workflow, reports, confirm)
    return True


async def recorded_plan(
    opened: Project, providers: Mapping[str, Provider], database: Database, run: int, *, functions: bool = True
) -> Plan:
    """The plan of a run as it was stored; without `functions` it is only good for reading answers.

    Raises UsageError where its functions, schemas or providers are not what they were, and for a run that is older than
    such plans.
    """
    record = await runs.read_run(database, run)
    settings = await runs.run_settings_of(database, run)
    assert record is not None
    if settings is None:
        raise UsageError(
            f"run {run} was made by an older agac, which did not store its settings",
            remedy=f"run it again: agac run -a {record.workflow}",
        )
    definition = await runs.definition_of(database, run)
    return restored_plan(record.workflow, definition, settings, providers, opened.root, functions=functions)


async def refuse_fresh(database: Database, workflow: str) -> None:
    """Raises UsageError while batches of the workflow are open: what they hold would be asked, and paid, twice."""
    found = [one for one in await unfinished_batches(database, workflow) if one.state not in CLOSED]
    if not found:
        return
    numbers = ", ".join(str(one.id) for one in found)
    which = f"batch {numbers} is" if len(found) == 1 else f"batches {numbers} are"
    raise UsageError(
        f"{which} open: --fresh would send their requests again",
        remedy="retrieve them first (agac batch retrieve), or cancel them: "
        + "; ".join(f"agac batch cancel {one.id}" for one in found),
    )


# Running a workflow: from names and flags to an ended invocation.

_log = logging.getLogger("agac.api")

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on an event loop of its own: uvloop's, which takes less CPU a call, where it installs."""
    try:
        import uvloop  # 0.03 s, and commands that call nobody do without
    except ImportError:  # Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


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
    return run_loop(task)


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

        async def tasks_left() -> tuple[int, list[CostEstimate]]:
            unretried = replace(scope, retry_failed=False)
            if retry is not None:
                return 0, estimates(await stored_tasks(database, plan, invocation.run, scope, retry=retry))
            rows, left = await input_tasks(database, plan, invocation.run, unretried, work.rows)
            return rows, estimates(left)

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
        count_rows = count or (lambda: None)
        following = BatchFollower(database, invocation, [stage.name for stage in plan.stages])
        stages = uncounted(plan.stages)
        seen = WatchedRun(plan.workflow, invocation, count_rows, warnings, upstream, stages, following.counts)
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
        loop.add_signal_handler(number, invocation.stop_signal.interrupt)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# Several workflows in one command: all are checked before the first one runs.

WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    ExitCode.LIMIT,
    ExitCode.NOT_READY,
    ExitCode.ROWS_FAILED,
    ExitCode.DONE,
)  # fmt: skip
"""Of several ends the one that comes first here is reported."""

GOING_ON = (ExitCode.DONE, ExitCode.ROWS_FAILED, ExitCode.NOT_READY)
"""Ends after which the next workflow runs."""


def run_several(
    workflows: Sequence[str],
    options: RunOptions,
    *,
    tell: Callable[[RunReport], None],
    project: Path | str | None = None,
    watch: Watch | None = None,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> ExitCode:
    """Runs workflows one after the other, until one does not come to its end. `tell` gets each report at once.

    Raises SpecError with the problems of all of them before anything is asked.
    """
    if len(workflows) > 1:
        _check(workflows, options, project)
    codes = []
    for workflow in workflows:
        report = run(workflow, options, project=project, watch=watch, confirm=confirm, handle_signals=handle_signals)
        tell(report)
        codes.append(report.exit_code)
        if report.exit_code not in GOING_ON:
            break
    return min(codes, key=WORST_FIRST.index)


def _check(workflows: Sequence[str], options: RunOptions, project: Path | str | None) -> None:
    repeated = {name for name in workflows if workflows.count(name) > 1}
    if repeated:
        raise UsageError(f"-a {sorted(repeated)[0]} is given twice", remedy="Name each workflow once.")
    if options.output is not None:
        raise UsageError("--output is one folder, and there are several workflows", remedy="Run them one by one.")
    opened = open_project(project)
    problems = list(opened.problems)
    for workflow in workflows:
        checked, found = check_workflow(opened, workflow, options.overrides(), partial=options.selection().partial)
        problems += found
        if checked is not None:
            _check_scope(options, checked)
    if any_error(problems):
        raise SpecError(in_order(problems))


def _check_scope(options: RunOptions, checked: CheckedWorkflow) -> None:
    workflow = checked.workflow
    try:
        options.scope([stage.name for stage in workflow.stages])
    except UsageError as error:
        raise UsageError(f"{workflow.name}: {error.message}", remedy=error.remedy) from error


# Taking rows of a run up again: those that failed, also where an ordinary run leaves them, or named ones.


@dataclass(frozen=True, slots=True)
class RetryChoice(Report):
    """What a retry would take up. `by_error` counts rows by where and how they failed; `done` are done ones, `open`
    ones the same retry opened before it was broken off.

    `calls_at_least` counts one call for each row and stage that is surely asked.
    """

    run: int
    workflow: str
    rows: int
    done: int
    open: int
    by_error: list[dict[str, Any]]
    stages: list[str]
    calls_at_least: int


def retry_choice(run: int | str, choice: Retry, *, project: Path | str | None = None) -> RetryChoice:
    """What `retry` with this choice would take up. Reads the store only."""
    root = project_root(project)
    return asyncio.run(_chosen(root, run, choice))[0]


def retry(
    run: int | str,
    choice: Retry,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Takes the chosen rows of a run up again. `options` may bound it (`budget`, `max_errors`, `concurrency`)
    and say its `run_mode`.

    Raises UsageError when nothing is chosen, and when the workflow's files no longer are what the run was made from.
    """
    return run_loop(_retry(run, choice, options or RunOptions(), project, watch, confirm, handle_signals))


async def _retry(
    run: int | str,
    choice: Retry,
    options: RunOptions,
    project: Path | str | None,
    watch: Watch | None,
    confirm: Confirm | None,
    handle_signals: bool,
) -> RunReport:
    opened = open_project(project)
    found, record, due = await _chosen(opened.root, run, choice)
    if not found.rows and not _goes_on(record, choice):
        raise UsageError(
            f"nothing of run {found.run} can be retried",
            remedy=f"See what failed with: agac inspect {found.run}. Rerun done rows with --from STAGE.",
        )
    given: dict[str, Any] = record.invocation.body.get("given", {}) if record.invocation else {}
    merged = replace(RunOptions.of_given(given), budget=options.budget, max_errors=options.max_errors, yes=options.yes)
    if options.concurrency is not None:
        merged = replace(merged, concurrency=options.concurrency)
    if options.run_mode is not None:
        merged = replace(merged, run_mode=options.run_mode)

    async def agree(database: Database, plan: Plan) -> None:
        if canonical(await runs.definition_of(database, record.id)) != canonical(plan.body):
            raise UsageError(
                f"run {record.id} was made from another version of workflow {record.workflow!r}",
                remedy=f"`agac run -a {record.workflow}` runs the present one and reuses what still holds.",
            )

    return await invoke(
        opened,
        record.workflow,
        merged,
        retry=due,
        chosen=found.rows,
        agree=agree,
        confirm=confirm,
        watch=watch,
        handle_signals=handle_signals,
    )


def _since(record: runs.RunRecord, choice: Retry) -> float:
    """From when on answers count: from now, or from the beginning of the same retry that did not come to its end."""
    if _goes_on(record, choice) and record.invocation:
        return float(record.invocation.body["retry"]["since"])
    return time.time()


def _goes_on(record: runs.RunRecord, choice: Retry) -> bool:
    """Whether the run's last invocation was the same retry, and did not come to its end."""
    last = record.invocation
    earlier = last.body.get("retry") if last else None
    return bool(last and earlier and last.exit_code not in (0, 3) and choice.same_choice(earlier))


async def _chosen(root: Path, run: int | str, choice: Retry) -> tuple[RetryChoice, runs.RunRecord, Retry]:
    async with open_for_reading(database_path(root)) as database:
        record = await find_run(database, None, run)
        assert database is not None
        bodies = (await runs.definition_of(database, record.id))["stages"]
        stages = {stage["name"]: int(stage.get("replicas", 1)) for stage in bodies}
        _retrying_check(choice, list(stages))
        due = replace(choice, run=record.id, since=_since(record, choice))
        counts = await chosen_counts(database, record.id, due)
        if choice.rows:
            found = await find_rows(database, record.id, choice.rows)
            if not counts:
                _refuse_rows(record, choice, found)
    return _as_choice(record, choice, stages, counts), record, due


def _refuse_rows(record: runs.RunRecord, choice: Retry, found: Sequence[RowRecord]) -> None:
    """Says that the named rows are there, and that none of them failed so."""
    ids = list(dict.fromkeys(row.id for row in found))
    filtered = " in that way" if choice.stage or choice.error else ""
    first = shlex.join(["--", str(ids[0])] if str(ids[0]).startswith("-") else [str(ids[0])])
    raise UsageError(
        f"row{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))} of run {record.id} did not fail{filtered}",
        remedy=f"Look at it with: agac inspect {record.id} {first}. Rerun done rows with --from STAGE.",
    )


def _as_choice(
    record: runs.RunRecord,
    choice: Retry,
    stages: Mapping[str, int],
    counts: Sequence[tuple[str | None, str | None, int]],
) -> RetryChoice:
    """`stages`: how often each is asked of a row, by name."""
    rows = sum(count for _, _, count in counts)
    done = sum(count for stage, _, count in counts if stage is None)
    names = list(stages)
    again = names[names.index(choice.from_stage) :] if choice.from_stage else []
    at_least = rows * sum(stages[name] for name in again) if again else rows - done
    opened = sum(count for stage, _, count in counts if stage == "")
    by_error = [{"stage": s, "type": e, "rows": n} for s, e, n in counts if s]
    return RetryChoice(record.id, record.workflow, rows, done, opened, by_error, again, at_least)


def _retrying_check(choice: Retry, stages: list[str]) -> None:
    if choice.stage is not None:
        position_of(choice.stage, stages, "--stage")
    if choice.from_stage is not None:
        position_of(choice.from_stage, stages, "--from")
    if choice.error is not None and choice.error not in set(ErrorType):
        near = get_close_matches(choice.error, list(ErrorType), 1)
        hint = f"Did you mean {near[0]!s}?" if near else f"The kinds are: {', '.join(ErrorType)}."
        raise UsageError(f"--error {choice.error}: there is no such kind of error", remedy=hint)
