"""Batches as values: how each stands, what it waits for, and what can be done about it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agac.api.reports import go_on
from agac.core.report import Moment, Report
from agac.engine.batch.states import AT_PROVIDER, BatchStep
from agac.providers.batches import BatchState
from agac.providers.provider import Provider
from agac.spec.rounds import BatchRules
from agac.store import batches
from agac.store.batches import CLOSED, BatchRecord, BatchView, LaneTimes
from agac.store.db import Database
from agac.store.runs import definition_of, manner_of, read_run

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
    said: Mapping[int, str] | None = None,
) -> list[BatchLine]:
    """Batches as they are shown; `providers` say whose answers are simulated, `said` is what they told of some batches
    just now."""
    now = time.time()
    runs = {run: await _about(database, run) for run in {view.batch.run_id for view in found}}
    lanes: dict[tuple[str, str, str], LaneTimes | None] = {}
    lines = []
    for view in found:
        one = view.batch
        lane = (one.provider, one.account, one.model)
        if lane not in lanes:
            lanes[lane] = await batches.lane_times(database, *lane)
        simulated = one.provider in providers and providers[one.provider].simulated
        line = _line(view, runs[one.run_id], lanes[lane], simulated, now)
        lines.append(replace(line, note=line.note or said.get(line.id)) if said else line)
    return lines


@dataclass(frozen=True, slots=True)
class _Run:
    """What lines want to know of a run: its stages' names, each one's seconds until a batch is called stuck, and the
    command that goes on with it."""

    stages: list[str]
    patience: list[float]
    again: str


async def _about(database: Database, run: int) -> _Run:
    record = await read_run(database, run)
    assert record is not None
    stages = [stage["name"] for stage in (await definition_of(database, run))["stages"]]
    manner = await manner_of(database, run)
    rules = [stage.get("batch") or {} for stage in manner["stages"]] if manner else [{} for _ in stages]
    return _Run(stages, [rule.get("stuck_after", STUCK_AFTER) for rule in rules], go_on(record))


def _line(view: BatchView, run: _Run, lane: LaneTimes | None, simulated: bool, now: float) -> BatchLine:
    one = view.batch
    still = _stands_still(one, now)
    submitted_at = one.submitted_at if one.provider_id is not None else None  # a refused one is tried again
    stuck = still is not None and still >= run.patience[one.stage]
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
        cost_usd=_cost(one),
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


def _cost(one: BatchRecord) -> float | None:
    """What a batch cost by now. One that closed before anything could be taken from it ran nothing."""
    return 0.0 if one.cost is None and one.state in CLOSED and one.ingested_at is None else one.cost


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
        return f"ask its requests again, and pay for them again, with: agac doctor --resubmit --batch-id {one.id}"
    if one.state == BatchStep.NEEDS_HUMAN:
        return (
            f"look for it in the provider's list of batches; where it is: agac doctor --adopt ID --batch-id {one.id}; "
            f"where it is not: agac doctor --resubmit --batch-id {one.id}"
        )
    if one.state in UNSENT:
        return "the next `agac batch retrieve` tries to submit it"
    if one.state == BatchStep.REJECTED:
        return f"nothing was charged; mend what is wrong, then: {run.again}"
    if stuck:
        sync = shlex.join([*shlex.split(run.again), "--run-mode", "sync"])
        return (
            f"wait on, or end it with: agac batch cancel {one.id}; what is finished is kept, and taken with: "
            f"agac batch retrieve; the rest is asked at once with: {sync}"
        )
    return "take it with: agac batch retrieve" if _has_ended(one.state, one.status) else None
