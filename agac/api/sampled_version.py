"""Selects one side of a comparison that asks models: a version of a workflow, asked for some rows.
`agac try` and `agac eval` ask it. Its answers are stored, so later runs reuse them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agac.api.checked_workflow import CheckedWorkflow
from agac.api.plan import Confirm, ask, confirm_store, planned
from agac.api.prepare import BatchSettings, batching_of, reach_providers, work_of
from agac.api.project import Project, project_of
from agac.api.ready_workflow import made_ready
from agac.api.run import walk_through
from agac.api.run_options import RunOptions
from agac.api.sync import interruptible
from agac.api.watched_run import RowCount, Watch
from agac.core.errors import SpecError, UsageError
from agac.core.types import Row, RowId, counted, dollars
from agac.data.sources import place_of
from agac.engine.forecast.baseline import InvocationChoice
from agac.engine.forecast.estimate import summed
from agac.engine.forecast.forecasts import PlanReport
from agac.engine.invocation import Reading, Scope
from agac.engine.run_state import Invocation, InvocationGoal
from agac.plan.checks import missing_variables
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.stage import PlannedStage
from agac.spec.graph import homes
from agac.spec.workflow import Workflow
from agac.store.db import Database


@dataclass(frozen=True, slots=True)
class SampledVersion:
    """A version of a workflow of which some stages are asked, by calls, for chosen rows of the
    input. Its run writes no files."""

    opened: Project
    checked: CheckedWorkflow

    options: RunOptions
    """They change the version. Their `sample` is the number of chosen rows."""

    scope: Scope
    """The stages that are asked."""

    @staticmethod
    async def ready(
        workflow: Path | str,
        options: RunOptions,
        project: Path | str | None,
    ) -> SampledVersion:
        """Checks the version. Its scope are the stages that the options name. Raises SpecError,
        UsageError."""
        options = replace(options, run_mode="sync")
        opened = project_of(workflow, project)
        opened, checked, options = await made_ready(opened, workflow, options)
        missing = missing_variables(checked.models, checked.workflow)
        if missing:
            raise SpecError(missing)
        scope = options.scope([stage.name for stage in checked.workflow.stages])
        return SampledVersion(opened, checked, options, scope)

    @property
    def plan(self) -> Plan:
        """The plan of the version, as far as it is known before providers are reached."""
        checked = self.checked
        selection = self.options.selection()
        return make_plan(checked.workflow, checked.models, self.opened.root, selection, None)

    def stage(self, name: str) -> PlannedStage:
        """Finds a stage that asks a model."""
        return next(stage for stage in self.plan.asking if stage.name == name)

    def rows(self, chosen: Collection[RowId]) -> Callable[[], Iterator[Row]]:
        """Makes a reader of the rows of the input with these ids."""
        ids = frozenset(chosen)
        return lambda: (row for row in self.checked.rows(Selection()) if row.id in ids)

    async def forecast(self, database: Database, chosen: Collection[RowId]) -> PlanReport:
        """Plans what asking these rows would take."""
        return await planned(
            database, self.plan, InvocationChoice(scope=self.scope), self.rows(chosen)
        )

    async def ask(
        self,
        database: Database,
        chosen: Collection[RowId],
        flags: Mapping[str, Any],
        progress: Watch | bool,
        *,
        signals: bool,
    ) -> Invocation:
        """Asks these rows, in an invocation that keeps `flags`: what it takes to type the command
        again."""
        async with AsyncExitStack() as stack:
            providers, plan = await reach_providers(
                stack, self.opened, database, self.checked, self.options
            )
            request = BatchSettings(wait=self.options.wait, yes=self.options.yes)
            batching = batching_of(self.opened, providers, plan.workflow, request)
            work = work_of(
                self.opened,
                plan,
                batching,
                self.options,
                reading=Reading(self.rows(chosen), partial(place_of, self.checked.source)),
                scope=self.scope,
            )
            accepted = await confirm_store(database, work)
            invocation = Invocation(InvocationGoal({"trial": dict(flags)}, accepted=accepted))
            count = partial(RowCount, len(chosen), exact=True)
            warnings = list(self.checked.warnings)
            with interruptible(invocation.stop_signal, signals=signals):
                await walk_through(database, work, invocation, warnings, progress, count)
            return invocation


def confirm_price(
    confirm: Confirm | None,
    plans: Sequence[PlanReport],
    what: str,
    rows: int,
    bound: str = "",
) -> None:
    """Asks whether to make the calls, with what they are expected to cost. Raises UsageError unless
    the answer is yes. Asks nothing if there are no calls to make."""
    calls = sum(plan.calls for plan in plans)
    if not calls:
        return
    cost = summed(plan.usd for plan in plans)
    simulated = any(stage.simulated for plan in plans for stage in plan.stages if stage.run)
    price = "price not known"
    if cost is not None:
        price = dollars(cost, None, simulated=simulated, about="~")
    work = f"{what} takes {bound}{counted(calls, 'call')} for {counted(rows, 'row')}, {price}"
    remedy = "Add --yes to continue, or try fewer rows with --sample."
    ask(confirm, "no calls were made", work, "Continue?", remedy)


def refuse_unfit(workflow: Workflow, stage: str) -> None:
    """Raises UsageError for a stage whose answers cannot be compared row by row."""
    if stage not in [asking.name for asking in workflow.asking]:
        remedy = "Name a stage that has a prompt."
        raise UsageError(f"--stage {stage}: it asks no model", remedy=remedy)
    maker = homes(workflow.stages)[stage]
    if maker is None:
        return
    rows = f"it answers rows that the stage {maker} makes, and only rows of the input are compared"
    remedy = "Change the file, and run a sample (`agac run --sample 30`)."
    raise UsageError(f"--stage {stage}: {rows}", remedy=remedy)
