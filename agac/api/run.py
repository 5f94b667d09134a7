"""Running workflows: from names and flags to an ended invocation; `agac retry`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agac.api.inspect import refuse_foreign, write_traces
from agac.api.notify import notifying, reported
from agac.api.plan import (
    Confirm,
    compare_input,
    confirm_changes,
    confirm_cost,
    confirm_stale,
    confirm_store,
    moved_names,
    remote_moves,
)
from agac.api.progress import display, show_reply, warnings_only
from agac.api.project import (
    CheckedWorkflow,
    Project,
    RunOptions,
    check_all,
    defined,
    made_ready,
    open_project,
    project_of,
)
from agac.api.report import (
    RowCount,
    RunReport,
    Watch,
    counted_or_estimated,
    report_of,
    show_progress,
    stale_facts,
)
from agac.api.share import controlled, ended, pull_in, push_at_end
from agac.api.status import find_rows, given_flags, go_on, position_of, shard_folders, stored_run
from agac.api.sync import blocking, calling, interruptible
from agac.core.arguments import typed
from agac.core.errors import (
    AgacError,
    ErrorType,
    ExitCode,
    LeaseHeld,
    Problem,
    SpecError,
    UsageError,
)
from agac.core.keys import canonical, is_job
from agac.core.text import row_command
from agac.core.types import Report, Row, counted
from agac.data.frames import GivenRows, each_row, frame, library
from agac.data.json_formats import encode
from agac.data.sinks import drop_previous
from agac.data.sources import keep_rows, place_of
from agac.data.tables import Kind, TableColumn
from agac.engine.batch.coordinator import Stale
from agac.engine.export import keep_previous, target_of
from agac.engine.invocation import Answers, Batching, Clocks, Retry, Scope, ShownReplies, Work
from agac.engine.run import Invocation, run_once
from agac.engine.telemetry import otel_settings
from agac.plan.checks import missing_variables
from agac.plan.plan import Plan, Selection, make_plan, restored_plan, run_settings
from agac.plan.reach import reach
from agac.plan.stage import LocalStage, PlannedStage
from agac.providers.provider import Provider
from agac.spec.inputs import INPUTS
from agac.spec.json_schema import compiles
from agac.spec.loader import BuiltWorkflow, WorkflowSource, load_workflow, workflow_files
from agac.spec.operations import Python
from agac.spec.paths import STORE, project_root, work_dir
from agac.spec.project_models import ExecutorFile
from agac.spec.workflow import Overrides, family
from agac.store import runs
from agac.store.batches import project_token, unfinished_batches
from agac.store.db import Database
from agac.store.packs import KnownAnswers
from agac.store.rows import chosen_counts
from agac.store.writer import open_database

if TYPE_CHECKING:
    from agac.engine.workers.pool import RunExecutor

FOLDER = "batches"  # where batches' files lie, beside the database

_log = logging.getLogger("agac.api")

Workflow = BuiltWorkflow  # `agac.Workflow`


@calling
async def run(
    workflow: WorkflowSource,
    options: RunOptions | None = None,
    *,
    input: Path | str | GivenRows | None = None,  # noqa: A002 - the option's name
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """`agac.run` of a workflow: see `agac.api.agents.arun`."""
    options = options or RunOptions()
    options = replace(options, input=options.input if input is None else input)
    opened = project_of(workflow, project)
    return await invoke(
        opened, workflow, options, None, confirm, progress, handle_signals=handle_signals
    )


async def invoke(
    opened: Project,
    workflow: WorkflowSource,
    options: RunOptions,
    retry: Retry | None,
    confirm: Confirm | None,
    progress: Watch | bool,
    *,
    handle_signals: bool = False,
    answers: Answers | None = None,
    in_block: bool = False,
) -> RunReport:
    """One invocation: of the input's rows, or of those that a `retry` chooses; its `answers` may
    come from elsewhere. A project whose state is in another folder has no outputs written.
    `in_block`: see `ray_map`."""
    opened, checked, options = await made_ready(
        opened, workflow, options, retry.run if retry else None
    )
    checked = _of_block(checked, options) if in_block else checked
    elsewhere = opened.state != opened.root
    if elsewhere:
        output = replace(checked.workflow.output, dir=opened.state / "output", to=None)
        checked = replace(checked, workflow=replace(checked.workflow, output=output))
    missing = missing_variables(checked.models, checked.workflow)
    if missing:
        raise SpecError(missing)
    scope = options.scope([stage.name for stage in checked.workflow.stages])
    if options.export_traces:
        refuse_foreign(Path(options.export_traces))
    built = workflow if isinstance(workflow, Workflow) else None
    invocation = Invocation(given=options.given() | dict(built.given if built else {}))
    for stage in checked.workflow.asking if options.stream else ():
        if stage.run_mode == "batch":
            what = f"--stream: stage {stage.name!r} is asked in batches, whose replies come whole"
            raise UsageError(what, remedy="Leave out --stream, or add --run-mode sync.")
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(opened.store))
        work = await ready_work(stack, database, opened, checked, options, confirm)
        if work.plan.selection.shard is not None and answers is None and not elsewhere:
            from agac.api.merge import sharded

            work = await stack.enter_async_context(sharded(opened, database, work, checked))
        asks = work.plan.asking if answers is None else ()
        control = await stack.enter_async_context(
            controlled(opened, database, work.plan.workflow, asks)
        )
        work = replace(
            work, batching=replace(work.batching, control=control), scope=scope, retry=retry
        )
        work = replace(work, watcher=built.watcher if built else None, answers=answers)
        if answers is None and not options.stream:
            work = replace(
                work, executor=await executor_of(opened, database, work.plan, options.executor)
            )
        # somebody tries something
        if elsewhere or answers is not None or "trial" in invocation.given:
            work = replace(work, plan=replace(work.plan, rules=replace(work.plan.rules, notify=())))
        plan = work.plan
        left = None
        warnings = [*checked.warnings, *await moved_names(database, checked.workflow, plan)]
        count: Callable[[], RowCount | None] = partial(
            counted_or_estimated, checked, plan.selection
        )
        if retry is None:
            warnings += await remote_moves(database, opened, checked.workflow)
        else:
            if canonical(await runs.definition_of(database, retry.run)) != canonical(plan.body):
                raise UsageError(
                    f"run {retry.run} was made from another version of workflow {plan.workflow!r}",
                    remedy=(
                        f"`agac run -a {plan.workflow}` runs the present one and reuses "
                        "what still holds."
                    ),
                )
            invocation.chosen = await chosen_counts(database, retry.run, retry)
            count = partial(RowCount, sum(rows for _, _, rows in invocation.chosen), exact=True)
        if options.replay is not None:
            await _refuse_replay(database, plan.workflow, options.replay)
        if options.fresh:
            await _refuse_fresh(database, plan.workflow)
        if retry is None and not elsewhere:
            warnings += await _shards_here(database, opened, plan)
            left, text = await compare_input(database, plan, work.rows, opened.root)
            warnings += [Problem(plan.input.where, text, "warning")] if text else []
        invocation.accepted = await confirm_store(database, work, accept=options.accept_store)
        if not options.yes:
            if built is not None and built.resumes is not None:
                await confirm_changes(database, work, built.resumes, confirm)
            work = await confirm_cost(database, work, confirm, built.quotes if built else None)
        if left is not None and left.most_left:
            keep_previous(plan.output.dir)
        if options.stream:
            progress = warnings_only if progress else False
        with interruptible(invocation.stop_signal, signals=handle_signals):
            await walk_through(database, work, invocation, warnings, progress, count)
        writes = not elsewhere and work.sharding is None
        selected = count if retry is None else None
        report = await report_of(
            database, work, invocation, warnings, checked.workflow, writes=writes, count=selected
        )
        report = await reported(database, work, invocation, report)
        if not elsewhere:
            report = await ended(database, opened, work, invocation, report)
        if left is not None and not left.most_left and invocation.complete:
            drop_previous(plan.output.dir)
        if options.export_traces:
            await write_traces(
                database,
                invocation.run,
                Path(options.export_traces).absolute(),
                work.redactor.clean,
            )
        return report


async def ready_work(
    stack: AsyncExitStack,
    database: Database,
    opened: Project,
    checked: CheckedWorkflow,
    options: RunOptions,
    confirm: Confirm | None,
) -> Work:
    """What an invocation is about. Its providers can be reached, and its replies are shown, until
    the `stack` ends."""
    names = {one.provider.name for models in checked.models.values() for one in models}
    providers = await stack.enter_async_context(
        reachable(opened, database, checked.workflow.name, names)
    )
    models = {
        name: tuple(one.at(providers) for one in models) for name, models in checked.models.items()
    }
    most = 1 if options.stream else options.concurrency
    plan = make_plan(checked.workflow, models, opened.root, options.selection(), most)
    batching = batching_of(opened, providers, plan.workflow, options, confirm)
    work = work_of(
        opened,
        plan,
        batching,
        partial(checked.rows, plan.selection),
        partial(place_of, checked.source),
    )
    work = replace(work, discards=options.discard_decisions)
    work = replace(
        work, fresh=options.fresh, refresh_tools=options.refresh_tools, calls=options.calls
    )
    if options.stream:
        replies = ShownReplies(show_reply, work.redactor)
        stack.callback(replies.ended, "", "broken off")
        work = replace(work, replies=replies)
    return work


async def _shards_here(database: Database, opened: Project, plan: Plan) -> list[Problem]:
    """A word before the first whole run of a workflow in a project whose rows may have been paid
    in shards."""
    never = plan.selection.shard is not None or is_job(plan.workflow)
    there = [] if never else shard_folders((opened.root / STORE).parent)
    if not there or await runs.run_ids(database, plan.workflow):
        return []
    what = (
        f"shards of this project have stores of their own ({there[0].parent}): no answer "
        "of theirs is used here; "
    )
    return [
        Problem(
            plan.input.where,
            f"{what}`agac merge -a {plan.workflow}` writes what they made",
            "warning",
        )
    ]


async def _refuse_replay(database: Database, workflow: str, run: int) -> None:
    """Raises UsageError where a run cannot give calls of tools; of jobs, each a workflow of its
    own, any other may."""
    known = await runs.read_run(database, run)
    if known is None or (
        known.workflow != workflow and not (is_job(known.workflow) and is_job(workflow))
    ):
        if known is None:
            what = "there is no such run"
        else:
            what = f"it is a run of {known.workflow}, not of {workflow},"
        raise UsageError(
            f"--run {run}: {what} to take calls of tools from", remedy="`agac runs` lists them."
        )


async def _refuse_fresh(database: Database, workflow: str) -> None:
    """Raises UsageError while batches of the workflow are open: what they hold would be asked, and
    paid, twice."""
    found = [one for one in await unfinished_batches(database, workflow) if one.open]
    if not found:
        return
    numbers = ", ".join(str(one.id) for one in found)
    if len(found) == 1:
        which = f"batch {numbers} is"
    else:
        which = f"batches {numbers} are"
    raise UsageError(
        f"{which} open: --fresh would send their requests again",
        remedy="retrieve them first (agac batch retrieve), or cancel them: "
        + "; ".join(f"agac batch cancel {one.id}" for one in found),
    )


# The parts of an invocation, as `agac batch retrieve`, `cancel` and `agac doctor` put them together
# too.


@asynccontextmanager
async def reachable(
    opened: Project, database: Database, workflow: str, names: Iterable[str] = ()
) -> AsyncIterator[Mapping[str, Provider]]:
    """The project's providers, agac's own one started where one of these `names`, or an open
    batch, needs it."""
    needed = {*names, *(one.provider for one in await unfinished_batches(database, workflow))}
    if not any(row.embedded for name, row in opened.providers.items() if name in needed):
        yield opened.providers
        return
    async with opened.simulator() as placed:
        yield {name: placed(row) if row.embedded else row for name, row in opened.providers.items()}


def batching_of(
    opened: Project,
    providers: Mapping[str, Provider],
    workflow: str,
    options: RunOptions | None = None,
    confirm: Confirm | None = None,
    *,
    only: int | None = None,
    retrieves: int | None = None,
    only_takes: bool = False,
) -> Batching:
    """What an invocation needs for its batches."""
    options = options or RunOptions()

    async def agree(stale: Stale) -> bool:
        """Whether anything may be submitted beside batches that hold what is no longer asked.
        Raises UsageError where nobody can say yes; who retrieves is not asked, and submits
        nothing."""
        if options.yes or retrieves is not None:
            return options.yes
        confirm_stale(workflow, stale_facts(stale, providers), confirm)
        return True

    return Batching(
        providers=providers,
        recorded=partial(recorded_plan, opened, providers, functions=False),
        folder=opened.store.with_name(FOLDER),
        confirm_stale=agree,
        wait=options.wait,
        only_batch=only,
        resume_run=retrieves,
        only_takes=only_takes,
    )


async def executor_of(
    opened: Project, database: Database, plan: Plan, chosen: Literal["ray", "local"] | None
) -> RunExecutor | None:
    """Who carries out calls and functions, where that is not this process alone: as `chosen`, else
    as agac.yml says."""
    if chosen == "local":
        settings = None
    else:
        settings = opened.spec.file.executor or (ExecutorFile() if chosen else None)
    if settings is None and not await runs.given_calls(database, plan.workflow):
        return None
    from agac.engine.workers.pool import RunExecutor, WorkerSetup

    agents = [
        one.agent_spec
        for stage in plan.asking
        for one in family(stage)
        if one.agent_spec is not None
    ]
    local = [stage.operation for stage in plan.stages if isinstance(stage, LocalStage)]
    providers = [
        one.provider for stage in plan.asking for model in family(stage) for one in model.models
    ]
    remote = opened.env.get("AGAC_REMOTE") or opened.spec.file.remote.url
    setup = WorkerSetup(
        root=str(opened.root),
        providers=opened.spec.file.providers,
        asked=sorted({one.name for one in providers}),
        simulators={
            one.name: (one.base_url, one.simulator_key) for one in providers if one.embedded
        },
        remote=remote,
        functions=[
            *(one.function for one in local if isinstance(one, Python)),
            *(tool for agent in agents for tool in agent.tools if tool.kind == "function"),
        ],
        token=await project_token(database) or "",
    )
    if settings is None:
        return RunExecutor(ExecutorFile(), setup, None)
    return RunExecutor(settings, setup, import_module("agac.engine.workers.ray").open_workers)


async def recorded_plan(
    opened: Project,
    providers: Mapping[str, Provider],
    database: Database,
    run: int,
    *,
    functions: bool = True,
) -> Plan:
    """The plan of a run as it was stored; without `functions` it is only good for reading answers.
    Raises UsageError where its functions, schemas or providers are not what they were, and for a
    run that is older than such plans."""
    record = await runs.run_record(database, run)
    settings = await runs.run_settings_of(database, run)
    if settings is None:
        problem = f"run {run} was made by an older agac, which did not store its settings"
        raise UsageError(problem, remedy=f"run it again: agac run -a {record.workflow}")
    definition = await runs.definition_of(database, run)
    with ExitStack() as stack:
        if await runs.control_known(database, record.workflow) is not None:
            stack.enter_context(_explained_as_stored(run))
            _refuse_unnamed(opened, record, definition, settings)
        plan = restored_plan(
            record.workflow, definition, settings, providers, opened.root, functions=functions
        )
    broken = {
        stage.name
        for stage in plan.asking
        if stage.schema is not None and not compiles(stage.schema.body)
    }
    if not broken:
        return plan
    # an older agac, or an older validator, accepted these schemas, and answers may have been paid
    # for since
    workflow, _ = load_workflow(opened.spec, plan.workflow, Overrides())
    if workflow:
        mended = {one.name: one.schema for one in workflow.asking if one.name in broken}
    else:
        mended = {}
    stages = (
        replace(one, judge=mended.get(one.name)) if isinstance(one, PlannedStage) else one
        for one in plan.stages
    )
    return replace(plan, stages=tuple(stages))


@contextmanager
def _explained_as_stored(run: int) -> Iterator[None]:
    """Raises AgacError for a run of the remote in which something has another form than agac gives
    it."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        AssertionError,
        RecursionError,
    ) as error:
        what = (
            f"run {run}, which is in the remote, is not stored as agac stores runs: "
            f"{str(error)[:100]}"
        )
        remedy = "find out who wrote it into the remote; `agac run` makes a new run"
        raise AgacError(what, remedy=remedy) from error


def _refuse_unnamed(
    opened: Project,
    record: runs.RunRecord,
    definition: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Raises UsageError where a run, which anyone who may write into the remote can have given,
    would start, import or connect to something that the files of the project do not name for its
    workflow."""
    wanted = reach(definition, settings)
    if wanted and workflow_files(opened.spec, record.workflow):
        workflow, models, _ = defined(opened, record.workflow, Overrides())
        if workflow is not None and all(stage.name in models for stage in workflow.calling):
            now = make_plan(workflow, models, opened.root, Selection(), None)
            named = reach(now.body, run_settings(now, opened.root))
            wanted = {thing: words for thing, words in wanted.items() if thing not in named}
    if wanted:
        first = min(wanted.values())
        what = (
            f"run {record.id} of the remote would use {first}, which the files of "
            f"{record.workflow!r} do not name"
        )
        remedy = (
            "put it back into them, if it was there; if not, find out who wrote the run "
            "into the remote"
        )
        raise UsageError(what, remedy=remedy)


def work_of(
    project: Project,
    plan: Plan,
    batching: Batching,
    rows: Callable[[], Iterator[Row]],
    place: Callable[[int], str],
) -> Work:
    """What an invocation of a plan is about, of all its stages."""
    return Work(
        plan=plan,
        rows=rows,
        place=place,
        output_dir=project.spec.shown(target_of(plan)),
        fresh=False,
        scope=Scope(),
        retry=None,
        root=project.root,
        redactor=project.redactor(),
        clocks=Clocks(),
        env=project.env,
        batching=batching,
        web=project.remote,
        functions=project.spec.functions,
        otel=otel_settings(plan.rules, os.environ),
    )


async def walk_through(
    database: Database,
    work: Work,
    invocation: Invocation,
    warnings: list[Problem],
    progress: Watch | bool,
    count: Callable[[], RowCount | None],
) -> None:
    """The invocation itself, with its `progress` while it goes on; `count` says how many rows it
    is about."""
    plan = work.plan
    watching: asyncio.Task[Any] | None = None
    if progress is not False:
        watch = display() if progress is True else progress
        watching = asyncio.ensure_future(
            show_progress(watch, plan, invocation, count, warnings, database)
        )
    try:
        async with notifying(database, work, invocation):
            await run_once(database, work, invocation)
    except BaseExceptionGroup as group:
        # an AgacError if there is one, since what follows it is its consequence
        first: BaseException = group.subgroup(AgacError) or group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
            # what shows the work must not cost the work
            if not watching.cancelled() and watching.exception():
                _log.warning("progress could not be shown: %s", watching.exception())


# Several workflows in one command: all are checked before the first one runs.

WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    ExitCode.USAGE,
    ExitCode.LIMIT,
    ExitCode.NOT_READY,
    ExitCode.ROWS_FAILED,
    ExitCode.DONE,
)
"""Of several ends the one that comes first here is reported."""

# ends after which the next workflow runs
GOING_ON = (ExitCode.DONE, ExitCode.ROWS_FAILED, ExitCode.NOT_READY)


@typed
def run_several(
    workflows: Sequence[str],
    options: RunOptions,
    *,
    tell: Callable[[RunReport], None],
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> ExitCode:
    """Runs workflows one after the other, until one does not come to its end. `tell` gets each
    report at once. Raises SpecError with the problems of all of them before anything is asked."""
    if len(workflows) > 1:
        check_all(workflows, options, project)
    codes = []
    for workflow in workflows:
        end = run(
            workflow,
            options,
            project=project,
            progress=progress,
            confirm=confirm,
            handle_signals=handle_signals,
        )
        tell(end)
        codes.append(end.exit_code)
        if end.exit_code not in GOING_ON:
            break
    return min(codes, key=WORST_FIRST.index)


# Rows in blocks: a workflow as a function for Ray Data.

_OF_ROWS = ("input", "output", "limit", "offset", "sample", "sql")
_TEXTS = [TableColumn(name, Kind.TEXT) for name in ("id", "result", "error", "message", "input")]
_COLUMNS = [*_TEXTS, TableColumn("row_number", Kind.INTEGER), TableColumn("ok", Kind.BOOLEAN)]
# what this process knows of the remote, by the project's root
_known = cache(lambda root: KnownAnswers())


@typed
def ray_map(
    workflow: str, *, project: Path | str | None = None, options: RunOptions | None = None
) -> Callable[[Any], Any]:
    """A workflow as a function for Ray Data: `dataset.map_batches(agac.ray_map("reviews"),
    batch_size=100)`. It gives the columns `id`, `result` (JSON), `error` (its type), `message`,
    `input` (JSON), `row_number` (in its block, from 1) and `ok`. A row that failed is a row; rows
    that did not end, as at a limit, raise AgacError, and the same again resumes. The workers have
    the project at the same path as here, and keys in their own environment. Raises UsageError for
    options that no block has, and where pyarrow is missing."""
    library("pyarrow", "agac.ray_map")
    options = options or RunOptions()
    wrong = [name for name in _OF_ROWS if getattr(options, name)]
    if wrong:
        raise UsageError(
            f"agac.ray_map: options.{wrong[0]} is not for blocks",
            remedy="Choose rows in the dataset.",
        )
    return partial(_mapped, workflow, project_root(project), replace(options, executor="local"))


def _mapped(workflow: str, root: Path, options: RunOptions, block: Any) -> Any:
    """The final rows of a block, a dict of columns or a frame, as a table of pyarrow."""
    if isinstance(block, Mapping):
        block = [dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True)]
    rows = list(each_row(block))
    found: Iterable[Any]
    if rows:
        found = _run_block(workflow, root, options, rows).results()
    else:
        found = ()
    return frame(
        "pyarrow",
        _COLUMNS,
        [
            [
                str(one.id),
                None if one.result is None else encode(one.result),
                one.error and str(one.error.type),
                one.error and one.error.message,
                encode(one.input),
                one.row_number,
                one.ok,
            ]
            for one in found
        ],
    )


@calling
async def _run_block(
    workflow: str, root: Path, options: RunOptions, rows: list[dict[str, Any]]
) -> RunReport:
    """The run of these rows, in one store for all processes of this machine."""
    state = work_dir(root / STORE.parent / "ray" / socket.gethostname(), root)
    opened = replace(open_project(root, bare=True, sound=True), state=state)
    known = _known(root)
    options = replace(options, input=await keep_rows(rows, state / INPUTS))
    if opened.spec.file.remote.push == "auto":
        await pull_in(opened, [workflow], options, known)
    while True:
        # another process has a block of the same rows, whose answers will be these
        with suppress(LeaseHeld):
            report = await invoke(opened, workflow, options, None, None, False, in_block=True)
            break
        await asyncio.sleep(0.5)
    async with open_database(opened.store) as database:
        await push_at_end(database, opened, known)
    if report.rows.open:
        what = (
            f"{counted(report.rows.open, 'row')} of a block did not end: "
            f"{report.stopped or 'batches are open'}"
        )
        raise AgacError(
            what, remedy="Mend that, or raise the limit; the same dataset mapped again resumes."
        )
    return replace(report, project=state, kind=None)


def _of_block(checked: CheckedWorkflow, options: RunOptions) -> CheckedWorkflow:
    """The workflow as the one of these rows. Raises UsageError for what no block can do."""
    flow = checked.workflow
    whole = [stage.name for stage in flow.stages if stage.makes in ("groups", "kept")]
    if whole:
        remedy = "Let a workflow of its own read all rows."
        raise UsageError(
            f"stage {whole[0]!r} has to see all rows, and these come in blocks", remedy=remedy
        )
    if options.budget is None and any(
        (flow.rules.project, flow.rules.workflow, *(one.budget for one in flow.asking))
    ):
        remedy = "Say what each block may spend: options=agac.RunOptions(budget=0.50)."
        raise UsageError(
            "a budget is that of one run, and each block of rows is one", remedy=remedy
        )
    name = f"{flow.name}~{Path(flow.input.path).stem[-16:]}"
    return replace(checked, workflow=replace(flow, name=name))


# Taking rows of a run up again: those that failed, also where an ordinary run leaves them, or named
# ones.


@dataclass(frozen=True, slots=True)
class RetryChoice(Report):
    """What a retry would take up. `by_error` counts rows by where and how they failed; `done` are
    done ones, `open` ones the same retry opened before it was broken off. `calls_at_least` counts
    one call for each row and stage that is surely asked. `go_on` is the command that goes on with
    all rows of the run."""

    run: int
    workflow: str
    rows: int
    done: int
    open: int
    by_error: list[dict[str, Any]]
    stages: list[str]
    calls_at_least: int
    go_on: str


@blocking
async def retry_choice(
    run: int | str, choice: Retry, *, project: Path | str | None = None
) -> RetryChoice:
    """What `retry` with this choice would take up. Reads the store only."""
    found, _, _ = await _chosen(project_root(project), run, choice)
    return found


@calling
async def retry(
    run: int | str,
    choice: Retry,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Takes the chosen rows of a run up again. `options` may bound it (`budget`, `max_errors`,
    `concurrency`) and say its `run_mode`. Raises UsageError when nothing is chosen, and when the
    workflow's files changed since."""
    opened = open_project(project)
    found, record, due = await _chosen(opened.root, run, choice)
    if not found.rows and _begun(record, choice) is None:
        raise UsageError(
            f"nothing of run {found.run} can be retried",
            remedy=(
                f"See what failed with: agac inspect {found.run}. Rerun done rows with "
                "--from STAGE."
            ),
        )
    if given_flags(record).get("in_python"):
        maker = "by `agac process`" if "job" in given_flags(record) else "in Python"
        what = f"the workflow of run {record.id} was made {maker}"
        raise UsageError(
            what, remedy=f"Run it from there, which asks failed rows again: {go_on(record)}"
        )
    options = options or RunOptions()
    before = RunOptions.of_given(given_flags(record))
    merged = replace(
        before, budget=options.budget, max_errors=options.max_errors, yes=options.yes,
        concurrency=before.concurrency if options.concurrency is None else options.concurrency,
        run_mode=before.run_mode if options.run_mode is None else options.run_mode,
    )  # fmt: skip
    return await invoke(
        opened, record.workflow, merged, due, confirm, progress, handle_signals=handle_signals
    )


def _begun(record: runs.RunRecord, choice: Retry) -> float | None:
    """When the same retry began, if it was the run's last invocation and did not come to its
    end."""
    last = record.invocation
    earlier = last.body.get("retry") if last else None
    if last and earlier and last.exit_code not in (0, 3) and choice.same_choice(earlier):
        return float(earlier["since"])
    return None


async def _chosen(
    root: Path, run: int | str, choice: Retry
) -> tuple[RetryChoice, runs.RunRecord, Retry]:
    """What the retry takes up, its run, and the retry that the engine is given: answers count from
    now on, or from the beginning of the same retry that did not come to its end."""
    async with stored_run(root, run) as (database, record):
        bodies = (await runs.definition_of(database, record.id))["stages"]
        replicas = {str(stage["name"]): int(stage.get("replicas", 1)) for stage in bodies}
        names = list(replicas)
        flags = (
            ("--stage", choice.stage, names, "stage"),
            ("--from", choice.from_stage, names, "stage"),
        )
        for flag, name, known, what in (
            *flags,
            ("--error", choice.error, list(map(str, ErrorType)), "kind"),
        ):
            if name is not None:
                position_of(name, known, flag, what)
        begun = _begun(record, choice)
        due = replace(choice, run=record.id, since=time.time() if begun is None else begun)
        counts = await chosen_counts(database, record.id, due)
        if choice.rows:
            ids = list(
                dict.fromkeys(row.id for row in await find_rows(database, record.id, choice.rows))
            )
            if not counts:
                filtered = " in that way" if choice.stage or choice.error else ""
                raise UsageError(
                    f"row{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))} of run "
                    f"{record.id} did not fail{filtered}",
                    remedy=(
                        f"Look at it with: {row_command(record.id, ids[0])}. Rerun done "
                        "rows with --from STAGE."
                    ),
                )
    rows = sum(count for _, _, count in counts)
    done = sum(count for stage, _, count in counts if stage is None)
    again = names[names.index(choice.from_stage) :] if choice.from_stage else []
    found = RetryChoice(
        record.id,
        record.workflow,
        rows,
        done,
        open=sum(count for stage, _, count in counts if stage == ""),
        by_error=[
            {"stage": stage, "type": error, "rows": count}
            for stage, error, count in counts
            if stage
        ],
        stages=again,
        calls_at_least=rows * sum(replicas[name] for name in again) if again else rows - done,
        go_on=go_on(record),
    )
    return found, record, due
