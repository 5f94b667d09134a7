"""Batches at work: taken in, waited for, ended, and put right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from agac.api.confirming import Confirm, confirm_stale
from agac.api.embedding import embedded_address
from agac.api.options import RunOptions
from agac.api.project import Project
from agac.core.errors import UsageError
from agac.engine.batch.batches import Stale
from agac.engine.work import Batching
from agac.plan.plan import Plan
from agac.plan.run_settings import restored_plan
from agac.providers.batchapis import open_batch_api
from agac.providers.provider import Provider
from agac.store import runs
from agac.store.batches import CLOSED, unfinished_batches
from agac.store.db import Database

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
        agree=partial(_agree, workflow, providers, options, confirm, retrieves is not None),
        stays=options.wait,
        only=only,
        retrieves=retrieves,
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
    told = [
        {
            "batch": record.id,
            "provider_id": record.provider_id,
            "requests": count,
            "held_usd": record.held_usd * count / max(record.tasks, 1) if record.priced else None,
            "simulated": record.provider in providers and providers[record.provider].simulated,
        }
        for record, count in stale
    ]
    confirm_stale(workflow, told, confirm)
    return True


async def recorded_plan(
    opened: Project, providers: Mapping[str, Provider], database: Database, run: int, *, functions: bool = True
) -> Plan:
    """The plan of a run as it was stored; without `functions` it is only good for reading answers.

    Raises UsageError where its functions, schemas or providers are not what they were, and for a run that is older than
    such plans.
    """
    record = await runs.read_run(database, run)
    manner = await runs.manner_of(database, run)
    assert record is not None
    if manner is None:
        raise UsageError(
            f"run {run} was made by an older agac, which did not store how it asks",
            remedy=f"run it again: agac run -a {record.workflow}",
        )
    definition = await runs.definition_of(database, run)
    return restored_plan(record.workflow, definition, manner, providers, opened.root, functions=functions)


async def refuse_fresh(database: Database, workflow: str) -> None:
    """Raises UsageError while batches of the workflow are open: what they hold would be asked, and paid, twice."""
    found = [one for one in await unfinished_batches(database, workflow) if one.state not in CLOSED]
    if not found:
        return
    numbers = ", ".join(str(one.id) for one in found)
    which = f"batch {numbers} is" if len(found) == 1 else f"batches {numbers} are"
    raise UsageError(
        f"{which} open: --fresh would ask again what they hold",
        remedy="take them first (agac batch retrieve), or end them: "
        + "; ".join(f"agac batch cancel {one.id}" for one in found),
    )
