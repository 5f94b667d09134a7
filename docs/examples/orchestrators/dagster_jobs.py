"""Jobs of Dagster: one runs a workflow and submits its batches, one takes what has ended, each on its schedule.

Nothing waits in between: `agac batch list` knows which runs have open batches, so the second job needs no word from the
first. The project's folder with `.agac` in it has to be where the jobs run. Dagster reads annotations as they stand:
no `from __future__ import annotations` here.
"""

import os
from collections.abc import Callable
from typing import Any

from agac_command import Agac, AgacFailed
from dagster import (
    AssetMaterialization,
    Backoff,
    Config,
    Definitions,
    Failure,
    OpExecutionContext,
    RetryPolicy,
    ScheduleDefinition,
    job,
    op,
)

AGAIN = RetryPolicy(max_retries=3, delay=300, backoff=Backoff.EXPONENTIAL)
ONE_AT_A_TIME = {"dagster/concurrency_key": "agac"}  # a second process on a workflow would be refused


class AgacConfig(Config):
    """Where the project is, which workflow runs, how many rows may fail."""

    project: str = os.environ.get("AGAC_PROJECT", "/srv/reviews")
    workflow: str = "nightly"
    most_failed: int = 10


def called(command: Callable[[], Any]) -> Any:
    """What a command gives; where it failed, Dagster tries again only what may work without anybody's help."""
    try:
        return command()
    except AgacFailed as failed:
        raise Failure(str(failed), metadata={"exit_code": failed.code}, allow_retries=failed.again) from failed


def tell(context: OpExecutionContext, report: dict[str, Any]) -> None:
    """A complete run is an asset that others wait for."""
    if report["complete"]:
        metadata = {"run": report["run"], "failed": report["rows"]["failed"], "folder": report["output"]}
        context.log_event(AssetMaterialization(["agac", report["workflow"]], metadata=metadata))


@op(retry_policy=AGAIN, tags=ONE_AT_A_TIME)
def agac_run(context: OpExecutionContext, config: AgacConfig) -> None:
    """`agac run`: to the end, or until its batches are submitted."""
    tell(context, called(lambda: Agac(config.project).run(config.workflow, most_failed=config.most_failed)))


@op(retry_policy=AGAIN, tags=ONE_AT_A_TIME)
def agac_retrieve(context: OpExecutionContext, config: AgacConfig) -> None:
    """`agac batch retrieve` for each run with open batches; that nothing is ready (exit code 75) is no failure."""
    agac = Agac(config.project)
    for run in called(agac.open_runs):
        report = called(lambda: agac.retrieve(run, config.most_failed))  # noqa: B023 - called at once
        if report is None:
            context.log.info("run %s waits for its batches", run)
        else:
            tell(context, report)


@job
def agac_nightly() -> None:
    agac_run()


@job
def agac_batches() -> None:
    agac_retrieve()


defs = Definitions(
    jobs=[agac_nightly, agac_batches],
    schedules=[
        ScheduleDefinition(job=agac_nightly, cron_schedule="0 1 * * *"),
        ScheduleDefinition(job=agac_batches, cron_schedule="*/10 * * * *"),
    ],
)
