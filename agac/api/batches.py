"""Batches as values: which are open, how each is at its provider, what it waits for, and what can
be done about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.batch_control import adopt_all
from agac.api.project import Project, open_project
from agac.api.status import database_path, go_on, refuse_unknown, workflow_name
from agac.api.sync import blocking
from agac.core.errors import AgacError, StoreError, UsageError
from agac.core.types import Fault, Moment, Report
from agac.engine.batch.doctor import has_ended, stuck_seconds
from agac.engine.batch.submit import UNSURE
from agac.engine.output.run_summary import calls_of
from agac.providers.batch import MOST_REASONS, ProviderBatch
from agac.providers.batch_apis import open_batch_api
from agac.providers.batch_calls import BatchApi
from agac.providers.provider import Provider
from agac.spec.paths import project_root
from agac.store import batches
from agac.store.batches import BatchRecord, BatchStep, BatchView, LaneTimes
from agac.store.db import Database, change, open_for_reading, sql
from agac.store.runs import counters, run_record, superseded_by
from agac.store.writer import open_database

UNSENT: Mapping[str, str] = {
    BatchStep.PLANNED: "it is being filled",
    BatchStep.BUILT: "it is not submitted yet",
    BatchStep.UPLOAD_INTENT: "its upload did not come to its end",
    BatchStep.UPLOADED: "it is not submitted yet",
    BatchStep.CREATE_INTENT: "whether the provider has it is to be found out",
}
"""Steps before the provider has a batch, and why it waits if nothing better is known."""


@dataclass(frozen=True, slots=True)
class BatchLine(Report):
    """A stored batch, and what follows from it now. Times are seconds since 1970 (ISO in JSON),
    durations are seconds, money is US dollars."""

    JSON_KEYS = (
        "id=batch.id",
        "provider_id=batch.provider_id",
        "workflow=batch.workflow",
        "run=batch.run_id",
        "stage=batch.stage_name",
        "model=batch.lane",
        "provider=batch.provider",
        "step=batch.state",
        "status=batch.status",
        "provider_status=batch.word",
        "requests=batch.tasks",
        "number=batch.number",
        "of=batch.among",
        "done=batch.done",
        "failed=batch.failed",
        "total",
        "age_s",
        "submitted_at",
        "expires_at=batch.expires_at",
        "deadline=batch.deadline",
        "results_until=batch.results_until",
        "stuck",
        "stuck_for_s",
        "cost_usd",
        "held_usd",
        "simulated",
        "waits",
        "note",
        "remedy",
        "seen_at=batch.seen_at",
        "try_at=batch.try_at",
        "cancelling",
        "lane",
    )

    batch: BatchView
    """The batch as it is stored."""
    total: int
    """Its requests, as the provider counts them."""
    submitted_at: Moment | None
    """When it was submitted; None: the provider has not got it."""
    age_s: float | None
    """How long ago that was."""
    stuck_for_s: float | None
    """How long no count has changed; None: not for long."""
    cost_usd: float | None
    """What its answers cost; None: no price is known."""
    held_usd: float | None
    """The most that its answers can cost; None: no price is known."""
    simulated: bool
    """True if the simulator has it: nothing is paid."""
    waits: str | None
    """Why it was not submitted yet."""
    note: str | None
    """What to know about it, if anything."""
    remedy: str | None
    """What can be done, if anything."""
    cancelling: bool
    """True while the provider cancels it."""
    lane: LaneTimes | None
    """How long batches of this kind took."""

    @property
    def stuck(self) -> bool:
        """True if no count has changed for long."""
        return self.stuck_for_s is not None

    @property
    def ready(self) -> bool:
        """True if it has ended at its provider and waits to be taken."""
        return has_ended(self.batch)

    @property
    def may_cancel(self) -> bool:
        """True if it can be cancelled: it is open, has not ended, and needs no decision first."""
        if not self.batch.open or self.cancelling or self.ready:
            return False
        return self.batch.state != BatchStep.NEEDS_HUMAN and self.batch.note != UNSURE

    @property
    def next(self) -> str:
        """The next thing that happens to it, in words."""
        batch = self.batch
        retrieve = "agac batch retrieve"
        if not batch.open:
            if batch.ingested_at:
                return "nothing: its answers are in"
            return f"nothing: {batch.note or 'it is closed'}"
        needs_user = self.stuck or self.note or batch.state == BatchStep.NEEDS_HUMAN
        if self.remedy and needs_user:
            return self.remedy
        if self.ready:
            return f"its answers are taken by the command that is at work, or by: {retrieve}"
        if self.cancelling:
            return "it is being cancelled; what it finished is taken then"
        if self.waits:
            return self.waits
        return f"its provider works on it; it is looked at while a command waits, or by: {retrieve}"


async def batch_lines(
    database: Database,
    providers: Mapping[str, Provider],
    stored: Sequence[BatchView],
    objections: Mapping[int, str] | None = None,
) -> list[BatchLine]:
    """Describes batches as they are shown. `providers` tell whose answers are simulated,
    `objections` why providers refused some, by number."""
    now = time.time()
    runs = {batch.run_id for batch in stored}
    again = {run: go_on(await run_record(database, run)) for run in runs}
    account_lanes = {batch.account_lane for batch in stored}
    lanes = {lane: await batches.lane_times(database, *lane) for lane in account_lanes}
    simulated = {name for name, provider in providers.items() if provider.simulated}
    return [
        _batch_line(
            batch,
            now,
            again[batch.run_id],
            lanes[batch.account_lane],
            (objections or {}).get(batch.id),
            simulated=batch.provider in simulated,
        )
        for batch in stored
    ]


def _batch_line(
    batch: BatchView,
    now: float,
    again: str,
    lane: LaneTimes | None,
    objection: str | None,
    *,
    simulated: bool,
) -> BatchLine:
    """Describes one batch. `again` is the command that resumes its run."""
    unsent = UNSENT.get(batch.state)
    # one that was refused is submitted again
    submitted_at = batch.submitted_at if batch.provider_id is not None else None
    age = None if submitted_at is None else round(max(0.0, now - submitted_at), 3)
    stuck_for = stuck_seconds(batch, now)
    return BatchLine(
        batch=batch,
        total=batch.total or batch.tasks,  # some count none while they validate
        submitted_at=submitted_at,
        age_s=age,
        stuck_for_s=stuck_for,
        cost_usd=0.0 if _ran_nothing(batch) else batch.cost,
        held_usd=batch.held_usd if batch.priced and batch.open else None,
        simulated=simulated,
        waits=(batch.note or unsent) if unsent else None,
        note=None if unsent else batch.note or objection or None,
        remedy=_remedy(batch, again, stuck=stuck_for is not None),
        cancelling=batch.cancel_at is not None and batch.open,
        lane=lane,
    )


def _ran_nothing(batch: BatchView) -> bool:
    """True for a batch that was closed before anything could be taken from it."""
    return batch.cost is None and not batch.open and batch.ingested_at is None


def _remedy(batch: BatchRecord, again: str, *, stuck: bool) -> str | None:
    """Returns what can be done about a batch, with the commands. `again` resumes its run."""
    resubmit = (
        "send its requests again, and pay for them again, with: agac doctor --resubmit "
        f"--batch-id {batch.id}"
    )
    if batch.state == BatchStep.NEEDS_HUMAN and batch.provider_id is not None:
        return resubmit
    if batch.state == BatchStep.TERMINAL and batch.note:  # why its results could not be taken
        return f"take it with: agac batch retrieve; if its results are gone for good, {resubmit}"
    if batch.state == BatchStep.NEEDS_HUMAN:
        return (
            "look for it in the provider's list of batches; where it is: agac doctor --adopt ID "
            f"--batch-id {batch.id}; where it is not: agac doctor --resubmit --batch-id {batch.id}"
        )
    if batch.state in UNSENT:
        return "the next `agac batch retrieve` tries to submit it"
    if batch.state == BatchStep.REJECTED:
        return f"nothing was charged; fix the problem, then run: {again}"
    if stuck:
        return (
            f"wait, or cancel it with: agac batch cancel {batch.id}; finished requests are "
            "kept, collected with: "
            f"agac batch retrieve; the rest is sent at once with: {again} --run-mode sync"
        )
    if has_ended(batch):
        return "take it with: agac batch retrieve"
    return None


# Looking at batches: those that are open, asked for at their providers, or all that there were.


@dataclass(frozen=True, slots=True)
class BatchReport(Report):
    """Batches, the oldest first, and what their runs cost."""

    JSON_KEYS = ("project", "batches", "runs", "not_asked", "open_elsewhere=elsewhere")

    project: Path
    """The project's folder."""
    now: float
    """When the report was made."""
    batches: list[BatchLine]
    """The batches."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Their runs, with the calls that are in."""
    not_asked: list[str] = field(default_factory=list)
    """Why some providers could not be asked; their batches are shown as they were."""
    elsewhere: int = 0
    """The number of open batches of other runs."""


@blocking
async def batch_status(
    batch_id: str | int | None = None, *, only_open: bool = False, project: Path | str | None = None
) -> BatchReport:
    """Looks at a batch (agac's number of it, or the provider's id), or at the open ones of the run
    that submitted last; if none is open, at its last one. Asks the providers about the batches that
    they have, and keeps what they say. If one cannot be asked, what is known is returned with the
    reason. Raises UsageError for an id that no batch has, and if no batch was made; with
    `only_open` also if none is open."""
    root = project_root(project)
    opened, why_not = await _opened(root)
    async with open_for_reading(database_path(root)) as database:
        if database is None:
            raise no_batch_yet()
        chosen = await chosen_batches(database, batch_id, closed=not only_open)
        if opened is None:
            seen: dict[int, ProviderBatch] = {}
            reasons = [why_not]
        else:
            submitted = [batch for batch in chosen if batch.state == BatchStep.SUBMITTED]
            seen, reasons = await _ask_providers(opened, submitted)
        if seen:
            try:
                await _keep_seen(root, seen)
            except StoreError as error:
                reasons.append(f"what the providers say could not be kept: {error.message}")
        objections = {
            number: "; ".join(map(str, state.errors[:MOST_REASONS]))
            for number, state in seen.items()
        }
        chosen = await stored_again(database, chosen)
        lines = await batch_lines(database, opened.providers if opened else {}, chosen, objections)
        runs = sorted({batch.run_id for batch in chosen})
        calls = [
            {"run": run, "calls": calls_of(await counters(database, run)).as_json()} for run in runs
        ]
        counts = await batches.open_batches(database)
        elsewhere = sum(count.batches for run, count in counts.items() if run not in runs)
    return BatchReport(root, time.time(), lines, calls, reasons, elsewhere)


async def _keep_seen(root: Path, seen: Mapping[int, ProviderBatch]) -> None:
    """Stores what providers say of batches. It takes no lease, because no batch is moved to another
    step."""
    async with open_database(database_path(root)) as database:
        now = time.time()
        states = [state.stored() | {"id": number, "now": now} for number, state in seen.items()]
        await change(database, lambda writer: writer.executemany(sql("batch_seen"), states))


@blocking
async def batch_list(
    workflow: str | None = None,
    *,
    all: bool = False,  # noqa: A002 - the flag's name
    project: Path | str | None = None,
) -> BatchReport:
    """Lists the open batches of every run, or of one workflow; with `all` the closed ones too. Asks
    no provider. Raises UsageError for a workflow that has no file and was never run."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    opened, _ = await _opened(root)
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return BatchReport(root, time.time(), [])
        stored = await batches.batches(database, workflow=workflow, closed=all)
        lines = await batch_lines(database, opened.providers if opened else {}, stored)
    return BatchReport(root, time.time(), lines)


async def _opened(root: Path) -> tuple[Project | None, str]:
    """Opens the project and takes what other machines left in the remote. If its files cannot be
    used, returns None and why."""
    try:
        opened = open_project(root)
    except AgacError as error:
        return None, _unusable(error.message)
    errors = [problem for problem in opened.problems if problem.severity == "error"]
    if errors:
        return None, _unusable(str(errors[0]))
    await adopt_all(opened)
    return opened, ""


def _unusable(reason: str) -> str:
    """Tells why the providers of a project cannot be asked."""
    return f"the project cannot be used: {reason}; `agac validate` says all of it"


async def stored_again(database: Database, earlier: Sequence[BatchView]) -> list[BatchView]:
    """Reads the same batches of one run again, as they are stored now."""
    ids = {batch.id for batch in earlier}
    stored = await batches.batches(database, run=earlier[0].run_id, closed=True)
    return [batch for batch in stored if batch.id in ids]


async def chosen_batches(
    database: Database, batch_id: str | int | None, *, closed: bool = False
) -> list[BatchView]:
    """Returns the batch that is named by agac's number or the provider's id; without a name the
    open ones of the run that submitted last, or (`closed`) the last one that it had. Raises
    UsageError if there is none."""
    if batch_id is not None:
        named = await batches.batches(database, named=str(batch_id), closed=True)
        if not named:
            raise UsageError(
                f"no batch {str(batch_id)!r} in this project",
                remedy=(
                    "Batches are named by their number or by the provider's id. `agac "
                    "batch list --all` lists them."
                ),
            )
        return named
    run = await last_run(database)
    open_ones = await batches.batches(database, run=run)
    if open_ones:
        return open_ones
    if closed:
        every = await batches.batches(database, run=run, closed=True)
        return [max(every, key=lambda batch: (batch.submitted_at or 0.0, batch.id))]
    workflow = (await run_record(database, run)).workflow
    raise UsageError(
        f"run {run} of {workflow} has no open batches",
        remedy=f"All that was submitted is in. Look at the run with: agac status {run}",
    )


async def last_run(database: Database) -> int:
    """Returns the run that is meant if none is named: of those with open batches the one that
    submitted last, else of those that continue by batches. A superseded run is only meant if there
    is no other. Raises UsageError if there is no run."""
    ranked = await batches.runs_with_batches(database)
    if not ranked:
        raise no_batch_yet()
    with_open_batches = [run for run, rank in ranked if rank == 0]
    for run in with_open_batches or [run for run, _ in ranked]:
        if await superseded_by(database, run) is None:
            return run
    return ranked[0][0]


def no_batch_yet() -> UsageError:
    """Returns the error for a project in which no batch was ever submitted."""
    return UsageError(
        "no batch was submitted in this project yet",
        remedy=(
            "`run_mode: batch` in a workflow, or `agac run -a WORKFLOW --run-mode batch`, "
            "submits batches."
        ),
    )


# Asks providers for the state of batches. No batch is moved to another step here.

AT_ONCE = 8
"""Requests to one provider at the same time: each takes a moment, and others share its limits."""


async def _ask_providers(
    opened: Project, submitted: Sequence[BatchRecord]
) -> tuple[dict[int, ProviderBatch], list[str]]:
    """Returns the states of submitted batches, by number; and why some could not be asked for, each
    reason once."""
    seen: dict[int, ProviderBatch] = {}
    reasons: dict[str, None] = {}
    room = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:
        for name in dict.fromkeys(batch.provider for batch in submitted):
            try:
                provider = await _reachable(opened, name, stack)
                api = open_batch_api(provider, opened.redactor())
            except AgacError as error:
                reasons[f"{name} could not be asked: {error.message}"] = None
                continue
            stack.push_async_callback(api.close)
            of_provider = [batch for batch in submitted if batch.provider == name]
            for batch, state in await _look(api, of_provider, room):
                if isinstance(state, ProviderBatch):
                    seen[batch.id] = state
                else:
                    reasons[_why_not_seen(batch, state, provider)] = None
    return seen, list(reasons)


async def _look(
    api: BatchApi, submitted: Sequence[BatchRecord], room: asyncio.Semaphore
) -> list[tuple[BatchRecord, ProviderBatch | Fault]]:
    """Asks one provider for its batches, several at the same time."""

    async def look(batch: BatchRecord) -> ProviderBatch | Fault:
        assert batch.provider_id is not None
        async with room:
            return await api.look(batch.provider_id)

    async with asyncio.TaskGroup() as group:
        tasks = [(batch, group.create_task(look(batch))) for batch in submitted]
    return [(batch, task.result()) for batch, task in tasks]


def _why_not_seen(batch: BatchRecord, fault: Fault, provider: Provider) -> str:
    """Tells why the state of a batch is unknown."""
    why = f"batch {batch.id} could not be asked for at {batch.provider}: {fault.message}"
    if batch.account != provider.account:
        why += "; it was submitted with another key or to another address"
    return why


async def _reachable(opened: Project, name: str, stack: AsyncExitStack) -> Provider:
    """Returns the provider, and starts it if it is the simulator. Raises AgacError."""
    provider = opened.providers.get(name)
    if provider is None:
        raise AgacError("it is no longer in agac.yml")
    if provider.missing_variables:
        raise AgacError(f"{', '.join(provider.missing_variables)} is not set")
    if not provider.embedded:
        return provider
    placed = await stack.enter_async_context(opened.simulator())
    return placed(provider)
