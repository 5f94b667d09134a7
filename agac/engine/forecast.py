"""What a dry run counts, and the earlier run that it compares with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agac.core.errors import RowError
from agac.core.types import Request, RowId
from agac.engine.effects import RowProgress
from agac.engine.invocation import Retry, Scope
from agac.engine.retry_policy import is_left
from agac.plan import diff as why
from agac.plan.diff import stage_changes
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.levels import Level, Makes
from agac.store.db import Database
from agac.store.records import DerivedRows, NewRow
from agac.store.rows import PriorTask, State, StoredRow, made_by_id, made_counts, parent_count, prior_tasks
from agac.store.runs import Count, RunRecord, counters

# What a run would do, as numbers: per stage how many tasks would be run, reused, or not be run, and why.

SAMPLE = 200
"""Rendered requests of a stage that are measured."""


KEPT = 50_000
"""Values that are kept: up to so many the count is exact, beyond it is an estimate within a percent or so."""


class Distinct:
    """Counts different digests. When too many are kept, only those stay that end in one more zero bit: by chance each
    second one, so that each stands for twice as many."""

    def __init__(self) -> None:
        self._kept: set[bytes] = set()
        self._bits = 0

    def add(self, digest: bytes) -> None:
        """Adds one; digests are as good as random."""
        if int.from_bytes(digest[-4:], "big") & ((1 << self._bits) - 1):
            return
        self._kept.add(digest)
        while len(self._kept) > KEPT:
            self._bits += 1
            mask = (1 << self._bits) - 1
            self._kept = {kept for kept in self._kept if not int.from_bytes(kept[-4:], "big") & mask}

    def count(self) -> int:
        """How many different ones were added."""
        return len(self._kept) << self._bits


@dataclass(slots=True)
class Reason:
    """How many tasks for this reason, and a row for example."""

    count: int
    example: RowId


class Guess(NamedTuple):
    """What is taken for the number of rows that a stage will make, where that is not known before `waits_for` has
    answered, or was called: `number` of each row, or, of groups, of them all. `run` tells it; None: nothing does."""

    makes: Makes
    waits_for: str
    number: float
    run: int | None


@dataclass(slots=True)
class StageForecast:
    """What would become of a stage's tasks. `run` are asked, at most: one after a new answer may turn out the same, and
    `undecided` of them have a guard that looks at an answer which is not there yet. `further` counts the questions
    beyond one for each of them: replicas, and `parts` of groups that one call does not hold. Of those `in_flight` the
    question is in a batch already: it is neither asked nor paid again.

    `exact`: how many tasks come to the stage is known; else it rests on a guess, which is its own or one upstream.
    """

    name: str
    run: int = 0
    further: int = 0
    reuse: int = 0
    blocked: int = 0
    skipped: int = 0
    dropped: int = 0
    undecided: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)
    blocked_reasons: dict[str, Reason] = field(default_factory=dict)
    sampled: int = 0
    characters: int = 0
    different: Distinct = field(default_factory=Distinct)
    known: int = 0
    parts: int = 0
    exact: bool = True
    guess: Guess | None = None
    in_flight: int = 0

    def asked(self, reason: str, row_id: RowId, questions: int = 1, times: int = 1) -> None:
        """As many more as `times` says that would be asked, each with so many questions."""
        self.run += times
        self.further += (questions - 1) * times
        _add(self.reasons, reason, row_id, times)

    def block(self, reason: str, row_id: RowId, times: int = 1) -> None:
        """As many more as `times` says that cannot be asked."""
        self.blocked += times
        _add(self.blocked_reasons, reason, row_id, times)

    def measure(self, request: Request, further: int = 0) -> None:
        """One more request of the sample; `further` characters will be in it that are not there yet."""
        self.sampled += 1
        self.characters += further + sum(len(part.text) for one in request.messages for part in one.parts)

    @property
    def collapsed(self) -> int:
        """Tasks, of those whose prompt is known, that would take the answer of an equal one."""
        return max(self.known - self.different.count(), 0)

    @property
    def questions(self) -> int:
        """How many questions would be asked: one for each task that takes no equal one's answer, one a replica, and
        one for each part of a group."""
        asked = self.run - self.collapsed
        replicas = self.further - self.parts
        return asked + self.parts + round(replicas * asked / self.run) if self.run else 0


def _add(reasons: dict[str, Reason], name: str, row_id: RowId, times: int) -> None:
    found = reasons.get(name)
    if found is None:
        reasons[name] = Reason(times, row_id)
    else:
        found.count += times


class SamplePrompt(NamedTuple):
    """A rendered request that would be sent."""

    row_id: RowId
    stage: str
    request: Request


@dataclass(slots=True)
class Forecast:
    """What a run would do. `unusable` rows are never asked, `dropped` ones repeat an id."""

    stages: list[StageForecast]
    rows: int = 0
    unusable: int = 0
    dropped: int = 0
    prompts: list[SamplePrompt] = field(default_factory=list)


# The run that a dry run compares with: what became of its rows, how many rows its stages made, and what differs.


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """The last run to compare with. `continued`: it is the run that `agac run` would continue."""

    record: RunRecord
    definition: Mapping[str, Any]
    continued: bool


@dataclass(slots=True)
class GroupTask:
    """What is known of the task of a row at the stage that made it, before it is looked up. `refused`: why it cannot be
    run. Where what it is about is not there yet, `characters` are what that comes to. `parts` would be run before it,
    and `in_batch` others are in batches."""

    refused: str | None = None
    characters: int = 0
    parts: int = 0
    in_batch: int = 0


@dataclass(slots=True, kw_only=True)
class ForecastRow(RowProgress):
    """A row of a dry run. `old` is the same row in the run compared with, `tasks` are what became of its tasks there,
    by the stage's position then; both are known once it is `learned`.

    `blocked` are the stages that cannot be run for it; where it is not `chosen` it is
    left as it is. `absent`: what it is made of fails, so that it will not be.
    `times`: it stands for so many rows of which nothing else is known (`guessed`). `ended`: it went through its stages.
    Where the stages of its level are not one chain, `begun` are the positions of those whose tasks began, and
    `open_needs` how many needs of each have no outcome yet. `never_began` are the stages that a row which left the run
    before never came to. `making` is what is made of it; it fails at `unmade`, of
    which nothing can be made.
    """

    new: NewRow
    level: Level[AnyStage]
    old: StoredRow | None = None
    tasks: dict[int, PriorTask] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    absent: bool = False
    times: int = 1
    guessed: bool = False
    learned: bool = False
    ended: bool = False
    group: GroupTask | None = None
    begun: set[int] = field(default_factory=set)
    open_needs: dict[str, int] = field(default_factory=dict)
    never_began: set[str] = field(default_factory=set)
    making: DerivedRows | None = None
    unmade: AnyStage | None = None
    chosen: bool = True

    @property
    def lost(self) -> bool:
        """Whether nothing is made of the row in this run: a stage of it, or of what it is made of, fails or waits."""
        return self.failed is not None or self.parked is not None


class Baseline:
    """A plan beside the last run, if there is one. `now` is in seconds since 1970."""

    def __init__(
        self,
        plan: Plan,
        before: BaselineRun | None,
        *,
        scope: Scope,
        fresh: bool,
        now: float,
        retry: Retry | None = None,
    ) -> None:
        """`retry`: only the rows that it chooses are worked on."""
        self.retry = retry
        self._again_from = next((s.index for s in plan.stages if retry and s.name == retry.from_stage), None)
        self._plan, self._before, self._scope, self._fresh, self._now = plan, before, scope, fresh, now
        self.continued = before is not None and before.continued and not fresh
        stages = before.definition["stages"] if before else []
        self.position = {stage["name"]: index for index, stage in enumerate(stages)}
        """Where the stages stood in the run compared with, by name."""
        self._changes = [self._definition_changes(stage) for stage in plan.stages]

    def since(self, stage: AnyStage, *, chosen: bool = True) -> float:
        """From when on the stage's results are taken, for rows that are `chosen` or not."""
        if chosen and self.retry is not None and self._again_from is not None and stage.index >= self._again_from:
            return self.retry.since
        run = self._before.record.fresh_since if self._before and self.continued else None
        oldest = 0.0 if isinstance(stage, LocalStage) or stage.max_age is None else self._now - stage.max_age
        return max(run or 0.0, oldest)

    def never_began(self, stage: AnyStage, row: ForecastRow) -> bool:
        """Whether the row, as it still is, left the run before this stage of another branch began."""
        old = row.old
        left = self.continued and old is not None and old.state == State.FILTERED and old.hash == row.new.hash
        return left and self._prior(stage, row) is None

    def left(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> RowError | None:
        """The error of a task that failed and is not tried again; None when it is, or did not fail."""
        prior = self._prior(stage, row)
        if not self.continued or prior is None or prior.error is None or prior.fingerprint != fingerprint:
            return None
        if self.retry is not None:
            return None if row.chosen else prior.error
        return prior.error if is_left(prior) or not self._scope.tries_again(stage.name) else None

    def left_reason(self, stage: AnyStage, row: ForecastRow) -> str:
        """Why a task that is `left` is not tried again."""
        prior = self._prior(stage, row)
        return why.LEFT if prior is not None and is_left(prior) else why.NOT_RETRIED

    def chooses(self, row: ForecastRow) -> bool:
        """Whether a row that a stage makes is worked on: one that a retry did not choose has to be new or changed."""
        retry, old = self.retry, row.old
        if retry is None or old is None or row.view.unknown or old.state == State.PENDING:
            return True
        if old.hash != row.new.hash and row.group is None:
            return True
        named = not retry.rows or any(row.id == one or str(row.id).startswith(f"{one}/") for one in retry.rows)
        if old.state != State.FAILED:
            return named and self._again_from is not None and retry.stage is None and retry.error is None
        return named and retry.stage in (None, old.error_stage) and retry.error in (None, old.error_type)

    def reason(self, stage: AnyStage, row: ForecastRow, fingerprint: bytes) -> str:
        """Why the first stage of a row that has to be run is run."""
        if self._fresh:
            return why.FRESH
        if row.old is None:
            return why.NEW_ROW
        changes = self._changes[stage.index]
        if changes is None:
            return why.NEW_STAGE
        if changes:
            return ", ".join(changes)
        if row.old.hash != row.new.hash:
            return why.ROW_CHANGED
        return _reason_of_task(stage, self._prior(stage, row), fingerprint)

    def passed_on(self, stage: AnyStage, row: ForecastRow, need: str, reason: str) -> str:
        """Why a stage is run after one that is run for this reason: it never was, or what it follows may change."""
        if reason in (why.NEW_ROW, why.FRESH, why.NOT_YET):
            return reason
        if self._changes[stage.index] is None:
            return why.NEW_STAGE
        return why.NOT_YET if self._prior(stage, row) is None else why.upstream_changed(need)

    def _prior(self, stage: AnyStage, row: ForecastRow) -> PriorTask | None:
        position = self.position.get(stage.name)
        return None if position is None else row.tasks.get(position)

    def _definition_changes(self, stage: AnyStage) -> list[str] | None:
        """What changed in the stage's definition; None: it is new."""
        if self._before is None:
            return []
        definition = self._before.definition
        if stage.name not in self.position:
            return None
        before, after = definition["stages"][self.position[stage.name]], self._plan.body["stages"][stage.index]
        return stage_changes(before, after, (definition["vars"], self._plan.body["vars"]))


def _reason_of_task(stage: AnyStage, prior: PriorTask | None, fingerprint: bytes) -> str:
    if prior is None:
        return why.NOT_YET
    if isinstance(stage, LocalStage):
        return why.FAILED if prior.error is not None else why.DROPPED
    if prior.fingerprint != fingerprint and stage.makes == "groups":
        return why.MEMBERS_CHANGED
    if prior.fingerprint != fingerprint and stage.needs and stage.reuse != "never":
        return why.upstream_changed(", ".join(stage.needs))
    if prior.error is not None:
        return why.FAILED
    return why.TOO_OLD if stage.max_age is not None else why.DROPPED


class BaselineOutcomes:
    """What became of rows in the run compared with."""

    def __init__(self, database: Database | None, before: BaselineRun | None, baseline: Baseline) -> None:
        self._db, self._before, self._baseline = database, before, baseline

    async def learn(self, rows: Sequence[ForecastRow]) -> None:
        """Looks up what became of these rows and of their tasks: one look-up for the rows of each maker."""
        if self._db is None or self._before is None:
            return
        by_maker: dict[str | None, list[ForecastRow]] = {}
        for row in rows:
            row.learned = True
            by_maker.setdefault(row.level.maker.name if row.level.maker else None, []).append(row)
        for maker, own in by_maker.items():
            position = self._baseline.position.get(maker) if maker is not None else None
            if position is not None:
                stored = await made_by_id(self._db, self._before.record.id, position, [row.id for row in own])
                for row in own:
                    row.old = stored.get(row.id)
                    row.chosen = self._baseline.chooses(row)
        keys = {row.old.key: row for row in rows if row.old is not None}
        for key, tasks in (await prior_tasks(self._db, list(keys))).items() if keys else ():
            keys[key].tasks = tasks


@dataclass(frozen=True, slots=True)
class BaselineCounts:
    """How many rows the run compared with made, for those that a dry run cannot know: `each` by the name of the stage
    that makes rows, of each row that came to it; of groups, how many there are in all. `run` None: nothing is known.
    `listing` are the positions of the stages whose functions gave lists."""

    run: int | None = None
    each: Mapping[str, float] = field(default_factory=dict)
    listing: frozenset[int] = frozenset()


def source_of(stage: AnyStage) -> str | None:
    """The stage upstream that gives what this one makes its rows of."""
    if stage.explode is not None:
        return stage.explode[0] if stage.explode[0] in stage.ancestors else stage.rows_of
    return stage.name if stage.makes in ("rows", "kept") else None


async def baseline_counts(database: Database | None, before: BaselineRun | None, plan: Plan) -> BaselineCounts:
    """What the run compared with made."""
    makers = [stage for stage in plan.stages if stage.makes is not None]
    if database is None or before is None or not makers:
        return BaselineCounts()
    positions = {stage["name"]: index for index, stage in enumerate(before.definition["stages"])}
    run = before.record.id
    made: dict[int, int] = {}
    for one in await made_counts(database, run):
        made[one.origin] = made.get(one.origin, 0) + one.rows
    counts = await counters(database, run)
    each: dict[str, float] = {}
    listing = set()
    for stage in makers:
        position = positions.get(stage.name)
        number = made.get(position, 0) if position is not None else 0
        in_place = 0
        if position is not None and stage.makes == "rows" and number:
            listing.add(stage.index)
            in_place = _tasks(counts, stage.name, "done", "reused") - await parent_count(database, run, position)
        found = _each(stage, number, in_place, counts)
        if found is not None:
            each[stage.name] = found
    return BaselineCounts(run, each, frozenset(listing))


def _each(stage: AnyStage, made: int, in_place: int, counts: Sequence[Count]) -> float | None:
    """How many rows came of each; `in_place` are those that a function left in their places. None: not known."""
    if stage.makes == "groups":
        return float(made) if made else None
    source = source_of(stage)
    if source is None:
        return None
    dropped = _tasks(counts, source, "dropped") if source == stage.name else 0
    came = _tasks(counts, source, "done", "reused") + dropped
    return (made + in_place) / came if came else None


def _tasks(counts: Sequence[Count], stage: str, *outcomes: str) -> int:
    return sum(count.tasks for count in counts if count.stage == stage and count.outcome in outcomes)
