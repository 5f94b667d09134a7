"""State of batches that machines leave to each other in the remote (`remote: {control: true}`), for
machines that are thrown away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

from agac.api.project import Project
from agac.api.share import remote_of, writer_of
from agac.api.status import this_shard
from agac.core.errors import LeaseHeld, UsageError
from agac.engine.batch.control import Control
from agac.plan.stage import PlannedStage
from agac.spec.loader import workflow_names
from agac.store.db import Database
from agac.store.writer import open_database


def _paid_in_batches(stages: Iterable[PlannedStage]) -> list[str]:
    """Returns the names of the stages that pay for batches."""
    in_batches = [stage for stage in stages if stage.settings.run_mode == "batch"]
    return [
        stage.name
        for stage in in_batches
        if not all(model.provider.simulated for model in stage.models)
    ]


def loses_disk(env: Mapping[str, str]) -> bool:
    """True for a job of CI, whose machine is thrown away after it."""

    def is_set(name: str) -> bool:
        return env.get(name, "").lower() not in ("", "0", "false")

    return is_set("CI") and not is_set("AGAC_KEEPS_DISK")


def refusal_in_ci(opened: Project, stages: Iterable[PlannedStage]) -> UsageError | None:
    """Returns the error for a process that may not submit the batches of these stages, because
    what is paid would be lost with its disk; else None."""
    paid = _paid_in_batches(stages)
    if not paid or not loses_disk(opened.env) or opened.spec.file.remote.control:
        return None
    what = (
        f"CI is set, and stage {paid[0]!r} submits batches that are paid: with this "
        "machine they would be lost"
    )
    remedy = (
        "Keep their state in the remote: `remote: {control: true}` in agac.yml. Where "
        ".agac outlives the job set "
    )
    return UsageError(
        what,
        remedy=f"{remedy}AGAC_KEEPS_DISK=1. Or add --run-mode sync (or, to retrieve, --no-submit).",
    )


@asynccontextmanager
async def controlled(
    opened: Project, database: Database, workflow: str, stages: Iterable[PlannedStage] | None = None
) -> AsyncIterator[Control | None]:
    """Holds the workflow among all machines for the block, if agac.yml says so, and takes what
    another machine left of its batches. If none of its `stages` pays for batches, it is only held
    while something is left. Raises UsageError if batches may not be submitted from here, LeaseHeld
    if another machine works on it."""
    refusal = refusal_in_ci(opened, stages or ())
    if refusal:
        raise refusal
    is_on = opened.spec.file.remote.control and opened.state == opened.root
    paid = stages is None or bool(_paid_in_batches(stages))
    if not is_on or not (paid or await control_of(opened, workflow, "").last()):
        yield None
    else:
        control = control_of(opened, workflow, writer_of(opened))
        async with control.held(database):
            yield control


def control_of(opened: Project, workflow: str, writer: str) -> Control:
    """Returns the state of a workflow's batches in the remote."""
    return Control(remote_of(opened), workflow, writer, opened.spec.file.remote.trust, this_shard())


async def adopt_all(opened: Project) -> None:
    """Takes in what other machines left of batches, for all workflows. A workflow that a process of
    this machine works on has that already."""
    if opened.spec.file.remote.control:
        async with open_database(opened.store) as database:
            for workflow in workflow_names(opened.spec):
                control = control_of(opened, workflow, opened.env.get("AGAC_REMOTE_WRITER", ""))
                with suppress(LeaseHeld):
                    await control.adopt(database, await control.last())
