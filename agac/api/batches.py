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

from agac.api.project import Project, open_project
from agac.api.share import adopt_all
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
"""Steps before the provider has a batch, and why it waits where nothing better is known."""


@dataclass(frozen=True, slots=True)
class BatchLine(Report):
    """A stored batch, and what follows from it now. Times in seconds since 1970 (ISO in JSON),
    durations in seconds, money in USD. `total` counts its requests as the provider does,
    `submitted_at` is None of one that the provider has not got. `stuck_for_s`: no count moved for
    so long. `waits` says why it was not submitted. `held_usd` is the most that its answers can
    cost, `cost_usd` what they did; None where no price is known. `remedy` is what can be done."""

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
    total: int
    submitted_at: Moment | None
    age_s: float | None
    stuck_for_s: float | None
    cost_usd: float | None
    held_usd: float | None
    simulated: bool
    waits: str | None
    note: str | None
    remedy: str | None
    cancelling: bool
    lane: LaneTimes | None

    @property
    def stuck(self) -> bool:
        """Whether no count moved for long."""
        return self.stuck_for_s is not None

    @property
    def ready(self) -> bool:
        """Whether it has ended at its provider and waits to be taken."""
        return has_ended(self.batch)

    @property
    def may_cancel(self) -> bool:
        """Whether it can be cancelled: it is open, has not ended, and nobody has to decide about
        it first."""
        unsure = self.batch.state == BatchStep.NEEDS_HUMAN or self.batch.note == UNSURE
        return self.batch.open and not (self.cancelling or self.ready or unsure)

    @property
    def next(self) -> str:
        """What happens next, in words."""
        one = self.batch
        by = "agac batch retrieve"
        if not one.open:
            if one.ingested_at:
                return "nothing: its answers are in"
            return f"nothing: {one.note or 'it is closed'}"
        if self.remedy and (self.stuck or self.note or one.state == BatchStep.NEEDS_HUMAN):
            return self.remedy
        if self.ready:
            return f"its answers are taken by the command that is at work, or by: {by}"
        if self.cancelling:
            return "it is being cancelled; what it finished is taken then"
        return (
            self.waits
            or f"its provider works on it; it is looked at while a command waits, or by: {by}"
        )


async def batch_lines(
    database: Database,
    providers: Mapping[str, Provider],
    found: Sequence[BatchView],
    objections: Mapping[int, str] | None = None,
) -> list[BatchLine]:
    """Batches as they are shown; `providers` say whose answers are simulated, `objections` why
    some were refused."""
    now = time.time()
    again = {run: go_on(await run_record(database, run)) for run in {one.run_id for one in found}}
    lanes = {
        lane: await batches.lane_times(database, *lane)
        for lane in {one.account_lane for one in found}
    }
    lines = []
    for one in found:
        unsent = UNSENT.get(one.state)
        # a refused one is tried again
        submitted_at = one.submitted_at if one.provider_id is not None else None
        # one that closed before anything could be taken from it ran nothing
        ran_nothing = one.cost is None and not one.open and one.ingested_at is None
        stuck_for = stuck_seconds(one, now)
        line = BatchLine(
            batch=one,
            total=one.total or one.tasks,  # some count none while they validate
            submitted_at=submitted_at,
            age_s=None if submitted_at is None else round(max(0.0, now - submitted_at), 3),
            stuck_for_s=stuck_for,
            cost_usd=0.0 if ran_nothing else one.cost,
            held_usd=one.held_usd if one.priced and one.open else None,
            simulated=one.provider in providers and providers[one.provider].simulated,
            waits=(one.note or unsent) if unsent else None,
            note=None if unsent else one.note or (objections or {}).get(one.id) or None,
            remedy=_remedy(one, again[one.run_id], stuck=stuck_for is not None),
            cancelling=one.cancel_at is not None and one.open,
            lane=lanes[one.account_lane],
        )
        lines.append(line)
    return lines


def _remedy(one: BatchRecord, again: str, *, stuck: bool) -> str | None:
    """What can be done, each with its command; `again` resumes the run."""
    resubmit = (
        "send its requests again, and pay for them again, with: agac doctor --resubmit "
        f"--batch-id {one.id}"
    )
    if one.state == BatchStep.NEEDS_HUMAN and one.provider_id is not None:
        return resubmit
    if one.state == BatchStep.TERMINAL and one.note:  # what was in the way of its results
        return f"take it with: agac batch retrieve; if its results are gone for good, {resubmit}"
    if one.state == BatchStep.NEEDS_HUMAN:
        return (
            "look for it in the provider's list of batches; where it is: agac doctor --adopt ID "
            f"--batch-id {one.id}; where it is not: agac doctor --resubmit --batch-id {one.id}"
        )
    if one.state in UNSENT:
        return "the next `agac batch retrieve` tries to submit it"
    if one.state == BatchStep.REJECTED:
        return f"nothing was charged; fix the problem, then run: {again}"
    if stuck:
        return (
            f"wait, or cancel it with: agac batch cancel {one.id}; finished requests are "
            "kept, collected with: "
            f"agac batch retrieve; the rest is sent at once with: {again} --run-mode sync"
        )
    if has_ended(one):
        return "take it with: agac batch retrieve"
    return None


# Looking at batches: those that are open, asked for at their providers, or all that there were.


@dataclass(frozen=True, slots=True)
class BatchReport(Report):
    """Batches, oldest first, and by run what all its calls cost that are in. `not_asked`: why the
    providers of some could not be asked, and show what was known. `now` is when it was made;
    `elsewhere` are other runs'."""

    JSON_KEYS = ("project", "batches", "runs", "not_asked", "open_elsewhere=elsewhere")

    project: Path
    now: float
    batches: list[BatchLine]
    runs: list[dict[str, Any]] = field(default_factory=list)
    not_asked: list[str] = field(default_factory=list)
    elsewhere: int = 0


@blocking
async def batch_status(
    batch_id: str | int | None = None, *, only_open: bool = False, project: Path | str | None = None
) -> BatchReport:
    """How a batch stands (our number of it, or the provider's id), or the open ones of the run
    that submitted last; where none is open, its last one. Asks the providers of those that they
    have got, and keeps what they say. Where one cannot be asked, what is known is given with the
    reason. Raises UsageError for an id that no batch has, and when no batch was made; with
    `only_open` also when none is open."""
    root = project_root(project)
    opened, why_not = await _opened(root)
    async with open_for_reading(database_path(root)) as database:
        if database is None:
            raise no_batch_yet()
        found = await chosen_batches(database, batch_id, closed=not only_open)
        submitted = [one for one in found if one.state == BatchStep.SUBMITTED]
        seen, reasons = await _ask_providers(opened, submitted) if opened else ({}, [why_not])
        if seen:
            try:
                async with open_database(database_path(root)) as writable:
                    now = time.time()
                    reports = [
                        one.stored() | {"id": number, "now": now} for number, one in seen.items()
                    ]
                    # no step of a batch changes, so that it takes no lease
                    await change(
                        writable, lambda writer: writer.executemany(sql("batch_seen"), reports)
                    )
            except StoreError as error:
                reasons.append(f"what the providers say could not be kept: {error.message}")
        objections = {
            number: "; ".join(map(str, one.errors[:MOST_REASONS])) for number, one in seen.items()
        }
        found = await stored_again(database, found)
        lines = await batch_lines(database, opened.providers if opened else {}, found, objections)
        runs = sorted({one.run_id for one in found})
        took = []
        for run in runs:
            calls = calls_of(await counters(database, run))
            took.append({"run": run, "calls": calls.as_json()})
        counts = await batches.open_batches(database)
        elsewhere = sum(one.batches for run, one in counts.items() if run not in runs)
    return BatchReport(root, time.time(), lines, took, reasons, elsewhere)


@blocking
async def batch_list(
    workflow: str | None = None,
    *,
    all: bool = False,  # noqa: A002 - the flag's name
    project: Path | str | None = None,
) -> BatchReport:
    """The open batches of every run, or of a workflow's; with `all` the closed ones too. Asks
    nobody. Raises UsageError for a workflow that neither has a file nor was ever run."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    opened, _ = await _opened(root)
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return BatchReport(root, time.time(), [])
        found = await batches.batches(database, workflow=workflow, closed=all)
        lines = await batch_lines(database, opened.providers if opened else {}, found)
    return BatchReport(root, time.time(), lines)


async def _opened(root: Path) -> tuple[Project | None, str]:
    """The project with its providers, and with what other machines left; where its files cannot be
    read, why."""
    try:
        opened = open_project(root)
        wrong = next(
            (str(problem) for problem in opened.problems if problem.severity == "error"), None
        )
    except AgacError as error:
        opened = None
        wrong = error.message
    if opened is not None and wrong is None:
        await adopt_all(opened)
        return opened, ""
    return None, f"the project cannot be used: {wrong}; `agac validate` says all of it"


async def stored_again(database: Database, found: Sequence[BatchView]) -> list[BatchView]:
    """The same batches of one run as they are stored now."""
    wanted = {one.id for one in found}
    stored = await batches.batches(database, run=found[0].run_id, closed=True)
    return [one for one in stored if one.id in wanted]


async def chosen_batches(
    database: Database, batch_id: str | int | None, *, closed: bool = False
) -> list[BatchView]:
    """The batch that is named by our number or the provider's id; without a name the open ones of
    the run that submitted last, or (`closed`) the last of those that it had. Raises UsageError
    when there is none."""
    if batch_id is not None:
        found = await batches.batches(database, named=str(batch_id), closed=True)
        if not found:
            raise UsageError(
                f"no batch {str(batch_id)!r} in this project",
                remedy=(
                    "Batches are named by their number or by the provider's id. `agac "
                    "batch list --all` lists them."
                ),
            )
        return found
    run = await last_run(database)
    found = await batches.batches(database, run=run)
    if not found and closed:
        every = await batches.batches(database, run=run, closed=True)
        return [max(every, key=lambda one: (one.submitted_at or 0.0, one.id))]
    if not found:
        what = f"run {run} of {(await run_record(database, run)).workflow} has no open batches"
        raise UsageError(
            what, remedy=f"All that was submitted is in. Look at the run with: agac status {run}"
        )
    return found


async def last_run(database: Database) -> int:
    """The run that is meant where none is named: the one that submitted last of those with open
    batches; else of those that go on by batches. One that was superseded is meant for its open
    batches alone. Raises UsageError for none."""
    ranked = await batches.runs_with_batches(database)
    if not ranked:
        raise no_batch_yet()
    for run in [run for run, rank in ranked if rank == 0] or [run for run, _ in ranked]:
        if await superseded_by(database, run) is None:
            return run
    return ranked[0][0]


def no_batch_yet() -> UsageError:
    """What is said where no batch was ever submitted."""
    return UsageError(
        "no batch was submitted in this project yet",
        remedy=(
            "`run_mode: batch` in a workflow, or `agac run -a WORKFLOW --run-mode batch`, "
            "submits batches."
        ),
    )


# The state of batches at their providers: asked for, and kept in the store. No batch is moved to
# another step here.

AT_ONCE = 8
"""Requests to one provider that may be under way: they take a moment each, and its limits are not
ours alone."""


async def _ask_providers(
    opened: Project, batches: Sequence[BatchRecord]
) -> tuple[dict[int, ProviderBatch], list[str]]:
    """The states of submitted batches, by number; and why some could not be asked for, each reason
    once."""
    seen: dict[int, ProviderBatch] = {}
    reasons: dict[str, None] = {}
    room = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:
        for name in dict.fromkeys(one.provider for one in batches):
            try:
                provider = await _reachable(opened, name, stack)
                api = open_batch_api(provider, opened.redactor())
            except AgacError as error:
                reasons[f"{name} could not be asked: {error.message}"] = None
                continue
            stack.push_async_callback(api.close)

            async def look(one: BatchRecord, api: BatchApi = api) -> ProviderBatch | Fault:
                assert one.provider_id is not None
                async with room:
                    return await api.look(one.provider_id)

            async with asyncio.TaskGroup() as group:
                tasks = [
                    (one, group.create_task(look(one))) for one in batches if one.provider == name
                ]
            for one, task in tasks:
                found = task.result()
                if isinstance(found, ProviderBatch):
                    seen[one.id] = found
                    continue
                why = f"batch {one.id} could not be asked for at {one.provider}: {found.message}"
                if one.account != provider.account:
                    why += "; it was submitted with another key or to another address"
                reasons[why] = None
    return seen, list(reasons)


async def _reachable(opened: Project, name: str, stack: AsyncExitStack) -> Provider:
    """The provider, started where it is agac's own. Raises AgacError."""
    provider = opened.providers.get(name)
    if provider is None:
        raise AgacError("it is no longer in agac.yml")
    if provider.missing_variables:
        raise AgacError(f"{', '.join(provider.missing_variables)} is not set")
    if not provider.embedded:
        return provider
    placed = await stack.enter_async_context(opened.simulator())
    return placed(provider)
