"""What a plan says: of each stage which tasks would run and why, and of all stages together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from agac.core.errors import Problem
from agac.core.types import Message, Report, RowId, Usd
from agac.engine.ask.limits import Amount
from agac.engine.forecast.estimate import LOCAL, WAYS, CostEstimate, Ways, summed
from agac.engine.forecast.planned_batches import PlannedBatches, PlannedRounds
from agac.plan.diff import OF_THE_ROW
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.operations import Makes
from agac.spec.rules import RunMode
from agac.store.records import Seconds

# What a plan says of all its stages, and a limit that should be enough for what is left.


@dataclass(slots=True)
class Reason:
    """How many tasks for this reason, and a row for example."""

    count: int
    example: RowId


def by_count(reasons: Mapping[str, Reason]) -> list[dict[str, Any]]:
    """Reasons as `--json` prints them: the most frequent one first."""
    ordered = sorted(reasons.items(), key=lambda item: -item[1].count)
    return [
        {"reason": name, "tasks": reason.count, "example": reason.example}
        for name, reason in ordered
    ]


class Guess(NamedTuple):
    """What is taken for the number of rows that a stage will make, where that is not known before
    `waits_for` has answered, or was called: `number` of each row, or, of groups, of them all.
    `run` tells it; None: nothing does."""

    makes: Makes
    waits_for: str
    number: float
    run: int | None


@dataclass(slots=True)
class StageForecast(Report):
    """What would become of a stage's tasks, and what that takes."""

    JSON_KEYS = (
        "name=stage.name",
        "model=stage.lane",
        "run_mode",
        "aliases",
        "run",
        "reuse",
        "blocked",
        "skipped",
        "dropped",
        "undecided",
        "in_flight",
        "remote",
        "reasons",
        "blocked_reasons",
        "collapsed",
        "parts",
        "spared",
        "exact",
        "guess",
        "sampled",
        "estimate",
        "simulated",
        "batches",
        "rounds",
        "least",
        "most",
    )

    stage: AnyStage
    """The stage."""
    run: int = 0
    """Tasks that are asked, at most: one after a new answer may turn out the same."""
    sure: int = 0
    """Of `run`, tasks that are run whatever answers that are not there yet say."""
    again: int = 0
    """Of `reuse`, tasks that are run if rows fail elsewhere."""
    further: int = 0
    """Questions beyond one for each task: those of replicas, and of `parts`."""
    answered: int = 0
    """Of `run`, tasks of rows that the run compared with answered at this stage."""
    reuse: int = 0
    """Tasks whose stored answer is taken."""
    blocked: int = 0
    """Tasks that cannot be asked."""
    skipped: int = 0
    """Tasks that a guard skips."""
    dropped: int = 0
    """Rows that a guard drops."""
    undecided: int = 0
    """Of `run`, tasks whose guard looks at an answer that is not there yet."""
    reasons: Annotated[dict[str, Reason], by_count] = field(default_factory=dict)
    """Why tasks are run."""
    blocked_reasons: Annotated[dict[str, Reason], by_count] = field(default_factory=dict)
    """Why tasks cannot be asked."""
    sampled: int = 0
    """Requests whose length was measured."""
    characters: int = 0
    """Characters of those requests."""
    rough: bool = False
    """Whether some of what was measured is not there yet, and of an assumed size."""
    collapsed: int = 0
    """Tasks, of those whose prompt is known, that would take the answer of an equal one."""
    parts: int = 0
    """Questions for parts of groups that one call does not hold."""
    spared: int = 0
    """Questions of replicas that may not be needed, in a vote that ends once an answer leads."""
    exact: bool = True
    """Whether it is known how many tasks come to the stage; else it rests on a guess, which is its
    own or one upstream."""
    guess: Guess | None = None
    """What is taken for the number of rows that the stage will make, if it is not known."""
    in_flight: int = 0
    """Tasks whose question is in a batch already: it is neither asked nor paid again."""
    remote: int = 0
    """Of `run`, tasks that are answered in the remote."""
    estimate: CostEstimate = LOCAL
    """What the tasks will take."""
    aliases: tuple[dict[str, str | None], ...] = ()
    """The short names of its models, as {written, means, meant}; `meant` is what the first one
    stood for in the run compared with, if that is something else."""
    batches: PlannedBatches | None = None
    """The batches of a stage that is asked in batches."""
    rounds: PlannedRounds | None = None
    """The rounds of one with tools that is asked in batches."""

    def asked(
        self,
        reason: str,
        row_id: RowId,
        questions: int = 1,
        times: int = 1,
        spared: int | None = None,
    ) -> None:
        """As many more as `times` says that would be asked, each with so many questions, of which
        so many may be `spared`; None: as many as the vote of a stage can spare."""
        if spared is None and questions > 1 and (vote := self.stage.vote) is not None and vote.lead:
            spared = self.stage.replicas - vote.lead
        self.run += times
        self.further += (questions - 1) * times
        self.spared += (spared or 0) * times
        self.reasons.setdefault(reason, Reason(0, row_id)).count += times

    def block(self, reason: str, row_id: RowId, times: int = 1) -> None:
        """As many more as `times` says that cannot be asked."""
        self.blocked += times
        self.blocked_reasons.setdefault(reason, Reason(0, row_id)).count += times

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @property
    def has_work(self) -> bool:
        """Whether any row comes past the stage, or into a call of it."""
        counts = (self.run, self.reuse, self.skipped, self.dropped, self.in_flight)
        return any(counts)

    @property
    def least(self) -> int:
        """So many tasks ask a model at least."""
        if self.stage.asks:
            return max(self.sure - self.collapsed, 0)
        return 0

    @property
    def most(self) -> int | None:
        """So many do at most; None: how many rows come to the stage is a guess."""
        if not self.exact and self.stage.asks:
            return None
        return (self.run + self.again - self.collapsed) * self.stage.asks

    @property
    def run_mode(self) -> RunMode | None:
        """How it is asked; None: it asks no model."""
        if isinstance(self.stage, PlannedStage):
            return self.stage.settings.run_mode
        return None

    @property
    def simulated(self) -> bool:
        """Whether its calls cost nothing."""
        return isinstance(self.stage, PlannedStage) and self.stage.provider.simulated

    @property
    def questions(self) -> int:
        """How many questions would be asked: one a task that none equals, a replica, and a part of
        a group."""
        asked = self.run - self.collapsed
        replicas = self.further - self.parts
        if self.run:
            return asked + self.parts + round(replicas * asked / self.run)
        return 0


class SamplePrompt(NamedTuple):
    """A rendered request that would be sent."""

    row: RowId
    stage: str
    messages: tuple[Message, ...]


class PlanTotals:
    """What the `stages` of a plan come to, each with its `estimate`: of a `PlanReport`, or as a
    file has them."""

    __slots__ = ()
    stages: Any

    @property
    def exact(self) -> bool:
        """Whether the number of tasks is known of all stages that ask; else it rests on a guess."""
        return all(one.exact for one in self.stages if one.run_mode)

    @property
    def usd(self) -> Usd | None:
        """Expected dollars; None when a price is not known."""
        return summed(one.estimate.usd for one in self.stages)

    @property
    def valid(self) -> int:
        """Stored answers of models that are reused."""
        return sum(one.reuse for one in self.stages if one.run_mode)

    @property
    def least(self) -> int:
        """So many tasks ask a model at least."""
        return sum(one.least for one in self.stages)

    @property
    def most(self) -> int | None:
        """So many do at most; None: that is not known."""
        known = [one.most for one in self.stages if one.most is not None]
        return sum(known) if len(known) == len(self.stages) else None


@dataclass(slots=True)
class PlanReport(PlanTotals, Report):
    """What a run would do."""

    JSON_KEYS = (
        "workflow",
        "continues",
        "compared_with",
        "rows",
        "segments",
        "stages",
        "exact",
        "calls",
        "input_tokens",
        "output_tokens",
        "usd",
        "usd_at_most",
        "ways",
        "seconds",
        "budgets",
        "confirm_above",
        "wants_yes",
        "prompts",
        "least",
        "most",
        "valid",
        "blocked",
    )

    workflow: str
    """The workflow's name."""
    stages: list[StageForecast]
    """What is known of each stage."""
    continues: int | None = None
    """The run that it would continue."""
    compared_with: int | None = None
    """The run that it is compared with."""
    input_changes: list[str] = field(default_factory=list)
    """The keys of the input that differ from those of the run compared with."""
    confirm_above: float | None = None
    """Dollars above which a run asks for confirmation; None: it asks no question."""
    rows: dict[str, int] = field(default_factory=lambda: {"total": 0, "unusable": 0, "dropped": 0})
    """The `total` of the input, of which `unusable` ones are never asked, `dropped` ones repeat an
    id and `short` ones, if any, have fewer fields than the header."""
    prompts: list[SamplePrompt] = field(default_factory=list)
    """The rendered prompts that were requested."""
    budgets: list[dict[str, Any]] = field(default_factory=list)
    """Each budget with what this run has spent of it, and in `enough` whether what is expected
    fits."""
    warnings: list[Problem] = field(default_factory=list)
    """What is allowed and seldom meant."""

    @property
    def segments(self) -> list[list[str]]:
        """Stages that a row walks through in one go, by name: it waits at one that is asked in
        batches."""
        found: list[list[str]] = [[]]
        for one in self.stages:
            found[-1].append(one.name)
            if one.run_mode == "batch":
                found.append([])
        return [names for names in found if names]

    @property
    def blocked(self) -> str | None:
        """Why no row comes to a result, where none can: each fails before a model is asked for
        it."""
        if any(stage.has_work for stage in self.stages):
            return None
        left = self.rows["total"] - self.rows["dropped"]
        if left and self.rows["unusable"] == left:
            return "none of the rows can be used"
        sentences = [
            f"{stage.name}: {why} (row {reason.example!r} for example)"
            for stage in self.stages
            for why, reason in stage.blocked_reasons.items()
            if why in OF_THE_ROW
        ]
        return "; ".join(sentences) or None

    @property
    def wants_yes(self) -> bool:
        """Whether the run would ask for confirmation: it costs more than `confirm_above`, or
        nobody knows."""
        return self.confirm_above is not None and (
            self.usd is None or needed(self.stages).usd > self.confirm_above
        )

    @property
    def usd_at_most(self) -> Usd | None:
        """Dollars when every reply is as long as it may be and every re-ask is needed; None when
        nothing bounds it, as where it is not known how many tasks come to a stage."""
        asking = [one for one in self.stages if one.run_mode and (one.run or not one.exact)]
        if not self.exact:
            return None
        return summed(one.estimate.usd_at_most for one in asking)

    @property
    def ways(self) -> Ways:
        """Expected dollars if all stages were asked so, as far as they can: see `CostEstimate`."""
        found = [one.estimate.ways for one in self.stages if one.stage.asks]
        sums = {
            way: summed(one["sync"] if one[way] is None else one[way] for one in found)
            for way in WAYS
        }
        return {
            way: usd if any(one[way] is not None for one in found) else None
            for way, usd in sums.items()
        }

    @property
    def seconds(self) -> Seconds | None:
        """How long it takes, at the speed of earlier calls and batches; None: that of a stage is
        not known."""
        return summed(one.estimate.seconds for one in self.stages)

    @property
    def calls(self) -> int:
        """Expected calls."""
        return sum(one.estimate.calls for one in self.stages)

    @property
    def input_tokens(self) -> int:
        """Expected tokens of all prompts."""
        return sum(one.estimate.input_tokens for one in self.stages)

    @property
    def output_tokens(self) -> int:
        """Expected tokens of all answers."""
        return sum(one.estimate.output_tokens for one in self.stages)


def needed(stages: Iterable[StageForecast]) -> Amount:
    """What the stages will take, without those whose price is not known."""
    total = Amount()
    for one in (stage.estimate for stage in stages):
        total = total.plus(Amount(one.usd or 0.0, one.input_tokens + one.output_tokens, one.calls))
    return total
