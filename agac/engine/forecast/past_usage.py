"""What earlier runs of a workflow tell of the calls of its stages: tokens, how long calls took,
how many characters a token has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from agac.core.types import Outcome
from agac.engine.output.histograms import merged, quantile
from agac.plan.stage import PlannedStage
from agac.store import runs as store
from agac.store.db import Database
from agac.store.history import Timings, timings
from agac.store.records import FIRST, TURN
from agac.store.runs import Count, KeptEstimate

HISTORY_RUNS = (
    5  # the newest ones, which are looked at for one to compare with and for what calls took
)


class StageUsage(NamedTuple):
    """Means of a stage's calls: tokens in and out, the share from a cache, calls a task. `tasks`
    have ended."""

    given: float
    made: float
    calls: float
    cached: float
    tasks: int


class PastRun(NamedTuple):
    """The roll-ups of a run, and what each of its stages had been expected to take."""

    counts: list[Count]
    kept: Mapping[str, KeptEstimate]
    times: Timings


@dataclass(frozen=True, slots=True)
class PastUsage:
    """Of the newest runs of a workflow, the last one first. `tokens`: characters a token of a
    lane, in the mean. Nothing of it needs a look at every row."""

    runs: Sequence[PastRun] = ()
    tokens: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    async def read(
        database: Database | None, workflow: str, stages: Iterable[PlannedStage]
    ) -> PastUsage:
        """What the store knows; nothing without one."""
        if database is None:
            return PastUsage()
        numbers = (await store.run_ids(database, workflow))[:HISTORY_RUNS]
        runs = [
            PastRun(
                await store.counters(database, n),
                await store.estimates(database, n),
                await timings(database, n),
            )
            for n in numbers
        ]
        tokens = dict[str, float]()
        for lane in {stage.lane for stage in stages}:
            lengths = [known for known in await store.lane_lengths(database, lane) if known[1]]
            if lengths:
                tokens[lane] = fmean(characters / given for characters, given in lengths)
        return PastUsage(runs, tokens)

    def counts(self, stage: str) -> list[Count]:
        """All roll-ups of a stage."""
        return [count for run in self.runs for count in run.counts if count.stage == stage]

    def usage(self, stage: PlannedStage) -> StageUsage | None:
        """Of all the runs; None when none of the stage's calls was answered by its model."""
        return usage_of(self.counts(stage.name), stage)

    def longer(self, stage: PlannedStage, characters: float | None) -> float | None:
        """How many times as long as before the stage's requests are; None: not known."""
        kept = [
            one for run in self.runs if (one := run.kept.get(stage.name)) and one.lane == stage.lane
        ]
        tasks = sum(one.tasks for one in kept if one.characters)
        before = sum((one.characters or 0.0) * one.tasks for one in kept)
        if characters and before:
            return characters * tasks / before
        return None

    def part(self, stage: str, *outcomes: Outcome) -> float | None:
        """The part of the stage's tasks that ended so; None: none has ended."""
        ends = dict.fromkeys(Outcome, 0)
        for count in self.counts(stage):
            if count.outcome in ends:
                ends[Outcome(count.outcome)] += count.tasks
        if any(ends.values()):
            return sum(ends[one] for one in outcomes) / sum(ends.values())
        return None

    def seconds(self, stage: PlannedStage) -> float | None:
        """How long a call of the stage took, half of them no longer; else one of its lane; None:
        none was made."""
        lane = {stage.name} | {
            c.stage for run in self.runs for c in run.counts if c.model == stage.lane
        }
        for names in ({stage.name}, lane):
            found = merged(
                h
                for run in self.runs
                for (s, m), h in run.times.items()
                if s in names and m == "duration"
            )
            middle = quantile(found, 0.5)
            if middle is not None:
                return middle
        return None


def usage_of(counts: Iterable[Count], stage: PlannedStage) -> StageUsage | None:
    """What calls of a stage with its model took, by the roll-ups of some runs."""
    own = [c for c in counts if c.stage == stage.name]
    calls_made = (c for c in own if c.outcome == "call" and c.output_tokens)
    lane = stage.lane
    # by a more exact name
    answered = [c for c in calls_made if c.model == lane or c.model.startswith(f"{lane}-")]
    calls = sum(c.tasks for c in answered)
    if not calls:
        return None
    # answers that held, in all their number: the tasks that stand as done are fewer where rows
    # changed since
    held = sum(c.tasks for c in answered if not c.error_type)
    ended = held + sum(c.tasks for c in own if c.outcome == "failed") or calls
    begun = sum(c.tasks for c in own if c.outcome == TURN and c.error_type == FIRST and not c.model)
    if begun:
        if not any(c.tasks for c in own if c.outcome in ("done", "failed")):
            return None  # none of them has ended
        ended = begun  # of a conversation each turn is a call that holds
    given, made, cached = (
        sum(getattr(c, f"{kind}_tokens") for c in answered)
        for kind in ("input", "output", "cached")
    )
    # where others have a price, a call without one is a call whose tokens were not counted
    counted = sum(c.tasks - c.unpriced if c.cost else c.tasks for c in answered)
    return StageUsage(
        given / counted,
        made / counted,
        max(calls / ended, 1.0),
        cached / given if given else 0.0,
        ended,
    )
