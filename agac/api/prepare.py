"""Prepares one invocation: checks what can be checked, reaches providers, and builds its Work once.

Nothing was paid, and no output has changed, when `prepared` gives what it built."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agac.api.batch_control import controlled
from agac.api.before_run import compare_input, moved_names, warnings_before
from agac.api.checked_workflow import CheckedWorkflow
from agac.api.plan import (
    FIRST_ROWS,
    Confirm,
    asks_first_rows_alone,
    by_calls,
    confirm_stale,
)
from agac.api.progress import show_reply
from agac.api.project import Project
from agac.api.ready_workflow import made_ready
from agac.api.report import stale_facts
from agac.api.run_options import RunOptions
from agac.api.stored_plan import recorded_plan
from agac.api.trace_files import refuse_foreign
from agac.api.watched_run import RowCount, counted_or_estimated
from agac.core.errors import Problem, SpecError, UsageError
from agac.core.keys import canonical, is_job
from agac.data.sources import place_of
from agac.engine.batch.control import Control
from agac.engine.batch.coordinator import Stale
from agac.engine.invocation import (
    Answers,
    Batching,
    Clocks,
    Hooks,
    Reading,
    Retry,
    Scope,
    ShownReplies,
    ToolUse,
    Work,
)
from agac.engine.output.run_outputs import target_of
from agac.engine.output.telemetry import otel_settings
from agac.engine.walk.input_rows import LeftRows
from agac.plan.checks import missing_variables
from agac.plan.plan import Plan, make_plan
from agac.plan.stage import LocalStage
from agac.providers.provider import Provider
from agac.spec.loader import BuiltWorkflow, WorkflowSource
from agac.spec.operations import Python
from agac.spec.project_models import ExecutorFile
from agac.spec.workflow import family
from agac.store import runs
from agac.store.batches import project_token, unfinished_batches
from agac.store.db import Database
from agac.store.rows import chosen_counts
from agac.store.writer import open_database

if TYPE_CHECKING:
    from agac.engine.sharding.shard_run import ShardRun
    from agac.engine.workers.pool import RunExecutor, WorkerSetup

FOLDER = "batches"
"""The folder of batches' files, next to the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationRequest:
    """A request for one invocation, besides a workflow and options."""

    retry: Retry | None = None
    """The rows of a stored run to take up again; None: rows of the input."""

    answers: Answers | None = None
    """Answers of a workflow test, in place of those of models."""

    narrow: Callable[[CheckedWorkflow, RunOptions], CheckedWorkflow] | None = None
    """Changes the checked workflow before it is planned. Raises UsageError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Facts of the store and the input about an invocation before it begins."""

    warnings: list[Problem]
    """What to warn of before the first call."""

    count: Callable[[], RowCount | None]
    """Counts the rows of the invocation, as far as that is cheap."""

    chosen: list[tuple[str | None, str | None, int]]
    """The rows of a retry, as `chosen_counts` has them."""

    left: LeftRows | None
    """How many rows with results left the input; None: that was not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """An invocation that may begin once a person has agreed to it."""

    opened: Project
    """The project."""

    database: Database
    """Open until the block of `prepared` ends."""

    checked: CheckedWorkflow
    """The workflow, checked."""

    options: RunOptions
    """The options, with the input that was kept."""

    built: BuiltWorkflow | None
    """The workflow, if a program built it."""

    plan: Plan
    """The plan of the whole invocation; `work` may be that of its first rows alone."""

    work: Work
    """What the invocation works on."""

    elsewhere: bool
    """True if the state is in a folder of its own, so that no outputs are written."""

    inspection: Inspection
    """Facts of the store and the input."""

    @property
    def given(self) -> dict[str, object]:
        """The options with which the same invocation can be made again."""
        return self.options.given() | dict(self.built.given if self.built else {})

    @property
    def quotes(self) -> str | None:
        """When the first rows are run and the rest is quoted: see BuiltWorkflow."""
        return self.built.quotes if self.built else None


@asynccontextmanager
async def prepared(
    opened: Project,
    workflow: WorkflowSource,
    options: RunOptions,
    request: InvocationRequest,
    confirm: Confirm | None,
) -> AsyncIterator[PreparedRun]:
    """Prepares an invocation for the block. Raises SpecError, UsageError, LeaseHeld."""
    retried = request.retry.run if request.retry else None
    opened, checked, options = await made_ready(opened, workflow, options, retried)
    if request.narrow is not None:
        checked = request.narrow(checked, options)
    elsewhere = opened.state != opened.root
    if elsewhere:
        checked = _written_into(opened.state, checked)
    _refuse_impossible(checked, options)
    built = workflow if isinstance(workflow, BuiltWorkflow) else None
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(opened.store))
        work = await _build_work(stack, opened, database, checked, options, request, confirm, built)
        plan = work.plan
        inspection = await _inspected(opened, database, checked, work, options, elsewhere=elsewhere)
        quotes = built.quotes if built is not None and not options.yes else None
        if await asks_first_rows_alone(database, work, quotes):
            first_alone = replace(work.reading, first=FIRST_ROWS)
            work = replace(work, plan=by_calls(work.plan), reading=first_alone)
        yield PreparedRun(
            opened=opened,
            database=database,
            checked=checked,
            options=options,
            built=built,
            plan=plan,
            work=work,
            elsewhere=elsewhere,
            inspection=inspection,
        )


async def _build_work(
    stack: AsyncExitStack,
    opened: Project,
    database: Database,
    checked: CheckedWorkflow,
    options: RunOptions,
    request: InvocationRequest,
    confirm: Confirm | None,
    built: BuiltWorkflow | None,
) -> Work:
    """Plans an invocation and builds its Work. Providers, a shard and the remote's control are held
    until the `stack` ends."""
    providers, plan = await reach_providers(stack, opened, database, checked, options)
    elsewhere = opened.state != opened.root
    is_test = request.answers is not None
    sharding = None
    if plan.selection.shard is not None and not is_test and not elsewhere:
        sharding = await _held_shard(stack, opened, database, plan, fresh=options.fresh)
    pays = () if is_test else plan.asking
    control = await stack.enter_async_context(controlled(opened, database, plan.workflow, pays))
    executor = None
    if not is_test and not options.stream:
        executor = await executor_of(opened, database, plan, options.executor)
    is_trial = built is not None and "trial" in built.given
    if elsewhere or is_test or is_trial:
        plan = _without_messages(plan)
    settings = BatchSettings(wait=options.wait, yes=options.yes, confirm=confirm)
    batching = batching_of(
        opened, providers, plan.workflow, settings, control=control, sharding=sharding
    )
    read = sharding.read if sharding is not None else None
    rows = partial(checked.rows, plan.selection, read=read)
    hooks = Hooks(
        watcher=built.watcher if built else None,
        replies=_shown_replies(stack, opened) if options.stream else None,
        answers=request.answers,
        executor=executor,
    )
    return work_of(
        opened,
        plan,
        batching,
        options,
        reading=Reading(rows, partial(place_of, checked.source)),
        scope=options.scope([stage.name for stage in checked.workflow.stages]),
        retry=request.retry,
        hooks=hooks,
    )


async def _inspected(
    opened: Project,
    database: Database,
    checked: CheckedWorkflow,
    work: Work,
    options: RunOptions,
    *,
    elsewhere: bool,
) -> Inspection:
    """Looks at what the store and the input say about an invocation. Raises UsageError if it may
    not begin."""
    plan = work.plan
    retry = work.retry
    warnings = [*checked.warnings, *await moved_names(database, checked.workflow, plan)]
    chosen: list[tuple[str | None, str | None, int]] = []
    count: Callable[[], RowCount | None] = partial(counted_or_estimated, checked, plan.selection)
    if retry is None:
        warnings += await warnings_before(database, opened, checked, plan)
    else:
        await _refuse_changed(database, plan, retry)
        chosen = await chosen_counts(database, retry.run, retry)
        count = partial(RowCount, sum(rows for _, _, rows in chosen), exact=True)
    if options.replay is not None:
        await _refuse_replay(database, plan.workflow, options.replay)
    if options.fresh:
        await _refuse_fresh(database, plan.workflow)
    left = None
    if retry is None and not elsewhere:
        left, text = await compare_input(database, plan, work.reading.rows, opened.root)
        if text:
            warnings.append(Problem(plan.input.where, text, "warning"))
    return Inspection(warnings=warnings, count=count, chosen=chosen, left=left)


async def _held_shard(
    stack: AsyncExitStack, opened: Project, database: Database, plan: Plan, *, fresh: bool
) -> ShardRun:
    """Holds the shard of the plan's selection until the stack ends."""
    from agac.api.merge import sharded

    return await stack.enter_async_context(sharded(opened, database, plan, fresh=fresh))


def _written_into(state: Path, checked: CheckedWorkflow) -> CheckedWorkflow:
    """Returns the workflow with its results in the state folder, and in no table."""
    output = replace(checked.workflow.output, dir=state / "output", to=None)
    return replace(checked, workflow=replace(checked.workflow, output=output))


def _without_messages(plan: Plan) -> Plan:
    """Returns the plan without `notify`, for trials and tests."""
    return replace(plan, rules=replace(plan.rules, notify=()))


def _shown_replies(stack: AsyncExitStack, opened: Project) -> ShownReplies:
    """Shows replies as they come, until the stack ends."""
    replies = ShownReplies(show_reply, opened.redactor())
    stack.callback(replies.ended, "", "broken off")
    return replies


# Options that cannot be carried out.


def _refuse_impossible(checked: CheckedWorkflow, options: RunOptions) -> None:
    """Raises SpecError for variables that are not set, UsageError for options that exclude each
    other."""
    missing = missing_variables(checked.models, checked.workflow)
    if missing:
        raise SpecError(missing)
    if options.export_traces:
        refuse_foreign(Path(options.export_traces))
    if not options.stream:
        return
    for stage in checked.workflow.asking:
        if stage.settings.run_mode == "batch":
            what = f"--stream: stage {stage.name!r} is asked in batches, whose replies come whole"
            raise UsageError(what, remedy="Leave out --stream, or add --run-mode sync.")


async def _refuse_changed(database: Database, plan: Plan, retry: Retry) -> None:
    """Raises UsageError for a retry of a run that another version of the workflow made."""
    if canonical(await runs.definition_of(database, retry.run)) == canonical(plan.body):
        return
    raise UsageError(
        f"run {retry.run} was made from another version of workflow {plan.workflow!r}",
        remedy=(f"`agac run -a {plan.workflow}` runs the present one and reuses what still holds."),
    )


async def _refuse_replay(database: Database, workflow: str, run: int) -> None:
    """Raises UsageError if a run cannot give calls of tools: it is a run of another workflow.
    Jobs are workflows of their own, and may take calls of any other job."""
    record = await runs.read_run(database, run)
    if record is None:
        what = "there is no such run"
    elif record.workflow == workflow or (is_job(record.workflow) and is_job(workflow)):
        return
    else:
        what = f"it is a run of {record.workflow}, not of {workflow},"
    raise UsageError(
        f"--run {run}: {what} to take calls of tools from", remedy="`agac runs` lists them."
    )


async def _refuse_fresh(database: Database, workflow: str) -> None:
    """Raises UsageError while batches of the workflow are open: their requests would be sent, and
    paid, twice."""
    batches = [batch for batch in await unfinished_batches(database, workflow) if batch.open]
    if not batches:
        return
    numbers = ", ".join(str(batch.id) for batch in batches)
    if len(batches) == 1:
        which = f"batch {numbers} is"
    else:
        which = f"batches {numbers} are"
    raise UsageError(
        f"{which} open: --fresh would send their requests again",
        remedy="retrieve them first (agac batch retrieve), or cancel them: "
        + "; ".join(f"agac batch cancel {batch.id}" for batch in batches),
    )


# The parts of an invocation. `agac batch retrieve`, `cancel`, `try` and `agac doctor` use them too.


async def reach_providers(
    stack: AsyncExitStack,
    opened: Project,
    database: Database,
    checked: CheckedWorkflow,
    options: RunOptions,
) -> tuple[Mapping[str, Provider], Plan]:
    """Reaches the providers until the `stack` ends, and plans the workflow with them."""
    names = {model.provider.name for models in checked.models.values() for model in models}
    providers = await stack.enter_async_context(
        reachable(opened, database, checked.workflow.name, names)
    )
    models = {
        stage: tuple(model.at(providers) for model in models)
        for stage, models in checked.models.items()
    }
    concurrency = 1 if options.stream else options.concurrency
    plan = make_plan(checked.workflow, models, opened.root, options.selection(), concurrency)
    return providers, plan


@asynccontextmanager
async def reachable(
    opened: Project, database: Database, workflow: str, names: Iterable[str] = ()
) -> AsyncIterator[Mapping[str, Provider]]:
    """Gives the project's providers for the block. Starts agac's own one if one of these `names`,
    or an open batch, needs it."""
    unfinished = await unfinished_batches(database, workflow)
    needed = {*names, *(batch.provider for batch in unfinished)}
    if not any(row.embedded for name, row in opened.providers.items() if name in needed):
        yield opened.providers
        return
    async with opened.simulator() as placed:
        yield {name: placed(row) if row.embedded else row for name, row in opened.providers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Settings of one invocation for batches."""

    wait: bool = False
    """True to wait until all batches have ended."""

    yes: bool = False
    """True to submit next to stale batches without a question."""

    confirm: Confirm | None = None
    """Asks a person; None: nobody is there."""

    only: int | None = None
    """The one batch to take in; None: all that have ended."""

    retrieves: int | None = None
    """The stored run whose batches are taken in; None: the rows are those of the input."""

    only_takes: bool = False
    """True to store what has ended, and to submit nothing."""


def batching_of(
    opened: Project,
    providers: Mapping[str, Provider],
    workflow: str,
    request: BatchSettings,
    *,
    control: Control | None = None,
    sharding: ShardRun | None = None,
) -> Batching:
    """Makes what an invocation needs for its batches."""

    async def agree(stale: Stale) -> bool:
        """True if anything may be submitted while batches with requests that are no longer needed
        are open. A command that retrieves submits nothing, and is not asked. Raises UsageError if
        nobody can say yes."""
        if request.yes or request.retrieves is not None:
            return request.yes
        confirm_stale(workflow, stale_facts(stale, providers), request.confirm)
        return True

    return Batching(
        providers=providers,
        recorded=partial(recorded_plan, opened, providers, functions=False),
        folder=opened.store.with_name(FOLDER),
        confirm_stale=agree,
        wait=request.wait,
        only_batch=request.only,
        resume_run=request.retrieves,
        only_takes=request.only_takes,
        control=control,
        sharding=sharding,
    )


async def executor_of(
    opened: Project, database: Database, plan: Plan, chosen: Literal["ray", "local"] | None
) -> RunExecutor | None:
    """Makes what carries out calls and functions: as `chosen`, else as agac.yml says. Returns None
    if this process alone does."""
    settings = None
    if chosen != "local":
        settings = opened.spec.file.executor or (ExecutorFile() if chosen else None)
    if settings is None and not await runs.given_calls(database, plan.workflow):
        return None
    from agac.engine.workers.pool import RunExecutor

    setup = await _worker_setup(opened, database, plan)
    if settings is None:
        return RunExecutor(ExecutorFile(), setup, None)
    return RunExecutor(settings, setup, import_module("agac.engine.workers.ray").open_workers)


async def _worker_setup(opened: Project, database: Database, plan: Plan) -> WorkerSetup:
    """Describes what workers need: the providers that are asked, and the functions that are
    called."""
    from agac.engine.workers.pool import WorkerSetup

    members = [member for stage in plan.asking for member in family(stage)]
    providers = [model.provider for member in members for model in member.models]
    simulators = {
        provider.name: (provider.base_url, provider.simulator_key)
        for provider in providers
        if provider.embedded
    }
    operations = [stage.operation for stage in plan.stages if isinstance(stage, LocalStage)]
    functions = [each.function for each in operations if isinstance(each, Python)]
    agents = [member.agent_spec for member in members if member.agent_spec is not None]
    tools = [tool for agent in agents for tool in agent.tools if tool.kind == "function"]
    return WorkerSetup(
        root=str(opened.root),
        providers=opened.spec.file.providers,
        asked=sorted({provider.name for provider in providers}),
        simulators=simulators,
        remote=opened.env.get("AGAC_REMOTE") or opened.spec.file.remote.url,
        functions=[*functions, *tools],
        token=await project_token(database) or "",
    )


NO_HOOKS = Hooks()
"""Nothing follows an invocation, and it asks its providers itself."""


def work_of(
    opened: Project,
    plan: Plan,
    batching: Batching,
    options: RunOptions,
    *,
    reading: Reading,
    scope: Scope,
    retry: Retry | None = None,
    hooks: Hooks = NO_HOOKS,
) -> Work:
    """Builds the Work of an invocation."""
    return Work(
        plan=plan,
        reading=reading,
        output_dir=opened.spec.shown(target_of(plan)),
        fresh=options.fresh,
        scope=scope,
        retry=retry,
        root=opened.root,
        redactor=opened.redactor(),
        clocks=Clocks(),
        env=opened.env,
        batching=batching,
        tools=ToolUse(
            web=opened.remote,
            functions=opened.spec.functions,
            refresh=options.refresh_tools,
            unknown_calls=options.calls,
        ),
        hooks=replace(hooks, otel=otel_settings(plan.rules, os.environ)),
        discards=options.discard_decisions,
    )
