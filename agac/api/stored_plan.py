"""Makes the plan of an earlier run again from what the store keeps of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from agac.api.checked_workflow import defined
from agac.api.project import Project
from agac.core.errors import AgacError, UsageError
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.reach import reach
from agac.plan.restored_plan import restored_plan
from agac.plan.run_settings import run_settings
from agac.plan.stage import PlannedStage
from agac.providers.provider import Provider
from agac.spec.json_schema import compiles
from agac.spec.loader import load_workflow, workflow_files
from agac.spec.project import Overrides
from agac.store import runs
from agac.store.db import Database


async def recorded_plan(
    opened: Project,
    providers: Mapping[str, Provider],
    database: Database,
    run: int,
    *,
    functions: bool = True,
) -> Plan:
    """Makes the plan of a run again as it was stored. Without `functions` it is only good for
    reading answers. Raises UsageError if its functions, schemas or providers are no longer what
    they were, and for a run that is older than such plans."""
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
    present = {}
    if workflow:
        present = {stage.name: stage.schema for stage in workflow.asking if stage.name in broken}
    stages = tuple(
        replace(stage, judge=present.get(stage.name)) if isinstance(stage, PlannedStage) else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


@contextmanager
def _explained_as_stored(run: int) -> Iterator[None]:
    """Raises AgacError for a run of the remote that does not have the form in which agac stores
    runs."""
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
    """Raises UsageError if a run would start, import or connect to something that the files of the
    project do not name for its workflow: anybody who may write into the remote may have made
    it."""
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
