"""Batches as values: which are open, how each is at its provider, what it waits for, and what can be done about it."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agac.api.project import Project, embedded_address, open_project
from agac.api.status import blocking, database_path, go_on, refuse_unknown, workflow_name
from agac.core.errors import AgacError, StoreError, UsageError
from agac.core.types import Fault, Moment, Report
from agac.engine.telemetry import calls_of
from agac.providers.batch import BatchError, BatchState, ProviderBatch
from agac.providers.provider import Provider
from agac.spec.paths import project_root
from agac.spec.workflow import BatchRules
from agac.store import batches
from agac.store.batches import AT_PROVIDER, CLOSED, BatchRecord, BatchStep, BatchView, LaneTimes, Observation
from agac.store.db import Database, open_database, open_for_reading
from agac.store.runs import counters, definition_of, read_run, run_settings_of

if TYPE_CHECKING:
    from agac.providers.control_plane import BatchApi  # loads aiohttp

STUCK_AFTER = BatchRules().stuck_after
"""Seconds without a count that moved, in runs of which it is not known."""

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
    """A batch. Times in seconds since 1970 (ISO in JSON), durations in seconds, money in USD.

    `step` is where it stands in agac's own life cycle, `status` how it stood at the provider when it was last `seen_at`
    (None: the provider has not got it), `provider_status` the provider's own word for that. `waits` says why it was not
    submitted, `try_at` when that is tried again. `held_usd` is the most that its answers can cost, `cost_usd` what they
    did; None where no price is known. `stuck`: no count moved for long. `remedy` is what can be done.
    """

    id: int
    provider_id: str | None
    workflow: str
    run: int
    stage: str
    model: str
    provider: str
    step: str
    status: str | None
    provider_status: str | None
    requests: int
    number: int
    of: int
    done: int | None
    failed: int | None
    total: int
    age_s: float | None
    submitted_at: Moment | None
    expires_at: Moment | None
    deadline: Moment | None
    results_until: Moment | None
    stuck: bool
    stuck_for_s: float | None
    cost_usd: float | None
    held_usd: float | None
    simulated: bool
    waits: str | None
    note: str | None
    remedy: str | None
    seen_at: Moment | None = None
    try_at: Moment | None = None
    cancelling: bool = False
    lane: LaneTimes | None = None

    @property
    def open(self) -> bool:
        """Whether anything is to come of it."""
        return self.step not in CLOSED

    @property
    def ready(self) -> bool:
        """Whether it has ended at its provider and waits to be taken."""
        return _has_ended(self.step, self.status)


async def batch_lines(
    database: Database,
    providers: Mapping[str, Provider],
    found: Sequence[BatchView],
    objections: Mapping[int, str] | None = None,
) -> list[BatchLine]:
    """Batches as they are shown; `providers` say whose answers are simulated, `objections` why some were refused."""
    now = time.time()
    about: dict[int, _Run] = {}
    lanes: dict[tuple[str, str, str], LaneTimes | None] = {}
    lines = []
    for view in found:
        one = view.batch
        lane = (one.provider, one.account, one.model)
        if one.run_id not in about:
            about[one.run_id] = await _about(database, one.run_id)
        if lane not in lanes:
            lanes[lane] = await batches.lane_times(database, *lane)
        simulated = one.provider in providers and providers[one.provider].simulated
        line = _line(view, about[one.run_id], lanes[lane], simulated, now)
        lines.append(replace(line, note=line.note or (objections or {}).get(line.id)))
    return lines


class _Run(NamedTuple):
    """What lines need of a run: its stages' names, each one's seconds until a batch is called stuck, and the command
    that resumes it."""

    stages: list[str]
    stuck_after: list[float]
    again: str


async def _about(database: Database, run: int) -> _Run:
    record = await read_run(database, run)
    assert record is not None
    stages = [stage["name"] for stage in (await definition_of(database, run))["stages"]]
    settings = await run_settings_of(database, run)
    rules = [stage.get("batch") or {} for stage in settings["stages"]] if settings else [{} for _ in stages]
    return _Run(stages, [rule.get("stuck_after", STUCK_AFTER) for rule in rules], go_on(record))


def _line(view: BatchView, run: _Run, lane: LaneTimes | None, simulated: bool, now: float) -> BatchLine:
    one = view.batch
    still = _stands_still(one, now)
    submitted_at = one.submitted_at if one.provider_id is not None else None  # a refused one is tried again
    # one that closed before anything could be taken from it ran nothing
    cost = 0.0 if one.cost is None and one.state in CLOSED and one.ingested_at is None else one.cost
    stuck = still is not None and still >= run.stuck_after[one.stage]
    return BatchLine(
        id=one.id,
        provider_id=one.provider_id,
        workflow=view.workflow,
        run=one.run_id,
        stage=run.stages[one.stage],
        model=one.lane,
        provider=one.provider,
        step=one.state,
        status=one.status,
        provider_status=one.word,
        requests=one.tasks,
        number=view.number,
        of=view.among,
        done=one.done,
        failed=one.failed,
        total=one.total or one.tasks,  # some count none while they validate
        age_s=_since(submitted_at, now),
        submitted_at=submitted_at,
        expires_at=one.expires_at,
        deadline=one.deadline,
        results_until=one.results_until,
        stuck=stuck,
        stuck_for_s=still if stuck else None,
        cost_usd=cost,
        held_usd=one.held_usd if one.priced and one.state not in CLOSED else None,
        simulated=simulated,
        waits=(one.note or UNSENT[one.state]) if one.state in UNSENT else None,
        note=None if one.state in UNSENT else one.note,
        remedy=_remedy(view, run, stuck=stuck),
        seen_at=one.seen_at,
        try_at=one.try_at,
        cancelling=one.cancel_at is not None and one.state not in CLOSED,
        lane=lane,
    )


def _since(at: float | None, now: float) -> float | None:
    """Seconds from then to now; a clock that was set back makes none of them negative."""
    return None if at is None else round(max(0.0, now - at), 3)


def _has_ended(step: str, status: str | None) -> bool:
    """Whether a batch that is not ingested has come to its end at its provider."""
    if step != BatchStep.SUBMITTED:
        return step in AT_PROVIDER
    return status is not None and BatchState(status).is_terminal


def _stands_still(one: BatchRecord, now: float) -> float | None:
    """For how long no count of a batch moved that its provider works on; None of any other. Where the provider tells no
    counts before the end, it stands still once it is older than it was to become."""
    if one.state != BatchStep.SUBMITTED or _has_ended(one.state, one.status):
        return None
    if one.done is None and one.failed is None:
        return _since(one.expires_at, now) if one.expires_at is not None and now > one.expires_at else None
    return _since(one.moved_at if one.moved_at is not None else one.submitted_at, now)


def _remedy(view: BatchView, run: _Run, *, stuck: bool) -> str | None:
    """What can be done, each with its command."""
    one = view.batch
    if one.state == BatchStep.NEEDS_HUMAN and one.provider_id is not None:
        return f"send its requests again, and pay for them again, with: agac doctor --resubmit --batch-id {one.id}"
    if one.state == BatchStep.NEEDS_HUMAN:
        return (
            f"look for it in the provider's list of batches; where it is: agac doctor --adopt ID --batch-id {one.id}; "
            f"where it is not: agac doctor --resubmit --batch-id {one.id}"
        )
    if one.state in UNSENT:
        return "the next `agac batch retrieve` tries to submit it"
    if one.state == BatchStep.REJECTED:
        return f"nothing was charged; fix the problem, then run: {run.again}"
    if stuck:
        sync = shlex.join([*shlex.split(run.again), "--run-mode", "sync"])
        return (
            f"wait, or cancel it with: agac batch cancel {one.id}; finished requests are kept, collected with: "
            f"agac batch retrieve; the rest is sent at once with: {sync}"
        )
    return "take it with: agac batch retrieve" if _has_ended(one.state, one.status) else None


# Looking at batches: those that are open, asked for at their providers, or all that there were.


@dataclass(frozen=True, slots=True)
class BatchReport(Report):
    """Batches, oldest first, and by run what all its calls cost that are in. `not_asked`: why the providers of some
    could not be asked, so that what is shown of those is what was known before. `now` is when it was made; `elsewhere`
    are open batches of other runs."""

    JSON_KEYS = ("project", "batches", "runs", "not_asked", "open_elsewhere=elsewhere")

    project: Path
    now: float
    batches: list[BatchLine]
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    not_asked: list[str] = field(default_factory=list)
    elsewhere: int = 0

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What the calls of each run took."""
        return [{"run": run, "calls": calls} for run, calls in self.calls.items()]


@blocking
async def batch_status(batch_id: str | int | None = None, *, project: Path | str | None = None) -> BatchReport:
    """How a batch stands (our number of it, or the provider's id), or the open ones of the run that submitted last.

    Asks the providers of those that they have got, and keeps what they say. Where one cannot be asked, what is known is
    given with the reason. Raises UsageError for an id that no batch has, and when no batch is open.
    """
    root = project_root(project)
    opened, why_not = _opened(root)
    async with open_for_reading(database_path(root)) as database:
        if database is None:
            raise nothing_submitted()
        found = await chosen_batches(database, None if batch_id is None else str(batch_id))
        submitted = [view.batch for view in found if view.batch.state == BatchStep.SUBMITTED]
        seen, reasons = await _ask_providers(opened, submitted) if opened else ({}, [why_not])
        if seen:
            try:
                async with open_database(database_path(root)) as writable:
                    now = time.time()
                    changes = [_observed(one, seen[one.id], now) for one in submitted if one.id in seen]
                    await batches.write_seen(writable, changes)
            except StoreError as error:
                reasons.append(f"what the providers say could not be kept: {error.message}")
        objections = {number: "; ".join(map(_objection, one.errors)) for number, one in seen.items() if one.errors}
        found = await stored_again(database, found)
        lines = await batch_lines(database, opened.providers if opened else {}, found, objections)
        runs = sorted({line.run for line in lines})
        calls = {run: calls_of(await counters(database, run)) for run in runs}
        counts = await batches.open_batches(database)
        elsewhere = sum(one.batches for run, one in counts.items() if run not in runs)
    return BatchReport(root, time.time(), lines, calls, reasons, elsewhere)


@blocking
async def batch_list(
    workflow: str | None = None,
    *,
    all: bool = False,  # noqa: A002 - the flag's name
    project: Path | str | None = None,
) -> BatchReport:
    """The open batches of every run, or of a workflow's; with `all` the closed ones too. Asks nobody.

    Raises UsageError for a workflow that neither has a file nor was ever run.
    """
    root, workflow = project_root(project), workflow_name(workflow)
    opened, _ = _opened(root)
    async with open_for_reading(database_path(root)) as database:
        await refuse_unknown(database, root, workflow)
        if database is None:
            return BatchReport(root, time.time(), [])
        found = await batches.batches(database, workflow=workflow, closed=all)
        lines = await batch_lines(database, opened.providers if opened else {}, found)
    return BatchReport(root, time.time(), lines)


def _opened(root: Path) -> tuple[Project | None, str]:
    """The project with its providers; where its files cannot be read, why."""
    try:
        opened = open_project(root)
        wrong = next((str(problem) for problem in opened.problems if problem.severity == "error"), None)
    except AgacError as error:
        opened, wrong = None, error.message
    if opened is not None and wrong is None:
        return opened, ""
    return None, f"agac.yml cannot be used: {wrong}; `agac validate` says all of it"


async def stored_again(database: Database, found: Sequence[BatchView]) -> list[BatchView]:
    """The same batches as they are stored now."""
    wanted = {view.batch.id for view in found}
    views = [
        view
        for run in sorted({view.batch.run_id for view in found})
        for view in await batches.batches(database, run=run, closed=True)
    ]
    return [view for view in views if view.batch.id in wanted]


async def chosen_batches(database: Database, named: str | None) -> list[BatchView]:
    """The batch that is named by our number or the provider's id; without a name the open ones of the run that
    submitted last. Raises UsageError when there is none."""
    if named is not None:
        found = await batches.batches(database, named=named, closed=True)
        if not found:
            raise UsageError(
                f"no batch {named!r} in this project",
                remedy="Batches are named by their number or by the provider's id. `agac batch list --all` lists them.",
            )
        return found
    run = await batches.last_submitting_run(database)
    if run is None:
        raise nothing_submitted()
    found = await batches.batches(database, run=run)
    if not found:
        record = await read_run(database, run)
        raise UsageError(
            f"run {run}{f' of {record.workflow}' if record else ''} has no open batches",
            remedy=f"All that was submitted is in. Look at the run with: agac status {run}",
        )
    return found


def nothing_submitted() -> UsageError:
    """What is said where no batch was ever submitted."""
    return UsageError(
        "no batch was submitted in this project yet",
        remedy="`run_mode: batch` in a workflow, or `agac run -a WORKFLOW --run-mode batch`, submits batches.",
    )


# The state of batches at their providers: asked for, and kept in the store. No batch is moved to another step here.

AT_ONCE = 8
"""Requests to one provider that may be under way: they take a moment each, and its limits are not ours alone."""


async def _ask_providers(opened: Project, batches: Sequence[BatchRecord]) -> tuple[dict[int, ProviderBatch], list[str]]:
    """How submitted batches stand, by number; and why some could not be asked for, each reason once."""
    from agac.providers.batch_apis import open_batch_api  # loads the client

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
                tasks = [(one, group.create_task(look(one))) for one in batches if one.provider == name]
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
    return replace(provider, base_url=await stack.enter_async_context(embedded_address(opened.root)))


def _objection(error: BatchError) -> str:
    place = f"line {error.line}: " if error.line is not None else ""
    return f"{place}{error.message} ({error.code})"


def _observed(one: BatchRecord, seen: ProviderBatch, now: float) -> Observation:
    moved = (one.status, one.done, one.failed) != (seen.state.value, seen.done, seen.failed)
    return Observation(
        id=one.id,
        provider_id=seen.id,
        status=seen.state.value,
        word=seen.word,
        total=seen.total,
        done=seen.done,
        failed=seen.failed,
        moved=moved,
        expires_at=seen.expires_at,
        results_until=seen.results_until,
        ended_at=seen.ended_at,
        now=now,
    )
