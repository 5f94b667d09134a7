"""What a plan says: tasks that would run and why, their tokens, dollars and batches, and a limit
that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

from agac.core.errors import Problem
from agac.core.keys import snapshot
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import JSONValue, Message, Report, RowId, Usage, Usd, dollars_in_all, usd
from agac.engine.limits import Amount, BudgetBalance, BudgetLimiter
from agac.engine.past_usage import PastUsage
from agac.plan.diff import OF_THE_ROW
from agac.plan.stage import AnyStage, PlannedModel, PlannedStage
from agac.providers.prices import BATCH, cheapest_price, cost, dearest_price
from agac.providers.provider import BatchTraits, Price, Provider
from agac.spec.field_shapes import kinds_of
from agac.spec.json_schema import resolved
from agac.spec.operations import Makes
from agac.spec.tools import AgentSpec
from agac.spec.workflow import BatchRules, RunMode
from agac.store.batches import LaneTimes
from agac.store.history import Seconds

Way = Literal["sync", "batch", "flex"]
WAYS: tuple[Way, ...] = ("sync", "batch", "flex")
Ways = Annotated[
    dict[str, float | None],
    lambda ways: {way: None if one is None else usd(one) for way, one in ways.items()},
]


@dataclass(frozen=True, slots=True)
class CostEstimate(Report):
    """What the tasks of a stage will take. `usd` None: the price is not known; `usd_at_most` needs
    max_tokens too. It rests on `past_tasks` of earlier runs. `ways`: the same by calls (`sync`),
    in batches, and with service_tier=flex; None: unknown, or not on offer. `seconds`; None:
    unknown. Where the model's price depends on the hour, dollars are those of the dearest, and
    `usd_off_peak` is `usd` at the cheapest."""

    calls: int
    input_tokens: int
    output_tokens: int
    usd: Usd | None
    usd_at_most: Usd | None
    basis: Literal["history", "sample", "guess", "local"]
    past_tasks: int = 0
    ways: Ways = field(default_factory=dict)
    seconds: Seconds | None = None
    usd_off_peak: Usd | None = None


LOCAL = CostEstimate(0, 0, 0, 0.0, 0.0, "local", seconds=0.0)  # of a stage that asks no model


def estimate(
    stage: PlannedStage,
    tasks: int,
    characters: float | None,
    past: PastUsage,
    *,
    longer: float | None,
    part: float = 1.0,
    exact: bool = True,
    rough: bool = False,
) -> CostEstimate:
    """What `tasks` will take, each replica of one being one; `part` of them is expected to be
    asked. `characters`: of a request, in the mean of a sample; None when nothing could be
    rendered. The history's input counts by how many times as long these requests are, or where it
    is said (`longer`; None: they are others), or nothing could be rendered. `exact`: the number
    of tasks rests on no guess; `rough`: texts of requests do."""
    most = stage.params.max_tokens
    known = past.usage(stage)
    expected = tasks * part
    learned = past.tokens.get(stage.lane)
    given = (characters or 0.0) / (learned or CHARACTERS_A_TOKEN)
    a_task = 1.0
    cached = 0.0
    if known is not None:
        _, made, a_task, cached, _ = known
        if stage.agent_spec is None and stage.runtime is None and not rough:
            longer = past.longer(stage, characters) or longer
        # what turns add counts more
        if longer is not None or characters is None or stage.agent_spec or stage.runtime:
            given = known.given * (longer or 1.0)
    else:
        # a free answer is taken to be half as long as its request, another one to be of its usual
        # shape
        shaped = len(snapshot(dummy_answer(stage.answer_shape))) / CHARACTERS_A_TOKEN
        made = shaped if stage.shape is not None else min(given / 2, 250.0)
        made = min(made, most) if most else made
        agent = stage.agent_spec
        if agent is not None:  # it asks for tools once, and then answers
            stubs = [
                len(snapshot(stub)) / CHARACTERS_A_TOKEN
                for stub in agent.stubs.values()
                if agent.mode == "stub"
            ]
            if stubs:
                added = GUESSED_CALL + min(fmean(stubs), GUESSED_RESULT)
            else:
                added = GUESSED_CALL + GUESSED_RESULT
            turns = GUESSED_TURNS + stage.defers_form  # which takes one of its own
            a_task = turns
            given = _grown(stage, given, turns, added)
            made = (made + GUESSED_CALL * (turns - 1)) / turns
        elif stage.runtime is not None:  # all the calls of a session are counted as one
            given = GUESSED_TURNS * (given + GUESSED_SESSION)
            made = made + GUESSED_CALL
    paid = expected * a_task
    calls = round(paid)
    usage = Usage(given, made, given * cached)  # type: ignore[arg-type]  # means, which are no whole numbers
    model = stage.models[0]
    mode = stage.run_mode
    ways = {way: _dollars(model, paid, usage, way) for way in WAYS}
    whole = ways[mode]
    at_most = _at_most(stage, tasks, given) if exact else None
    off_peak = _dollars(model, paid, usage, mode, cheapest_price)
    off_peak = off_peak if off_peak != whole else None
    offered = {"batch": stage.provider.batch is not None, "flex": ways["flex"] != ways["sync"]}
    return CostEstimate(
        calls=calls,
        input_tokens=round(calls * given),
        output_tokens=round(calls * made),
        usd=whole,
        usd_at_most=at_most,
        basis="guess" if known is None else "history",
        past_tasks=known.tasks if known else 0,
        ways={way: one if offered.get(way, True) else None for way, one in ways.items()},
        usd_off_peak=off_peak,
    )


def request_characters(stage: PlannedStage, texts: float) -> float:
    """Of a request whose messages have so many: with its schema, which a simulator counts as
    tokens only in words."""
    if stage.schema is None or (
        stage.provider.simulated and not stage.says_schema_in_words(stage.models[0])
    ):
        return texts
    return texts + len(str(stage.schema.body))


def call_seconds(
    stage: PlannedStage, found: CostEstimate, concurrency: int, a_call: float | None
) -> float | None:
    """How long the calls of a stage take, so many at once, by its lane's limits and the seconds
    that a call takes."""
    limits = stage.provider.limits
    paces = (
        (60, found.calls, limits.rpm), (60, found.input_tokens, limits.tpm),
        (a_call or 0.0, found.calls, min(concurrency, limits.concurrency or concurrency)),
    )  # fmt: skip
    if a_call is not None:
        return max(each * many / by for each, many, by in paces if by)
    return None


# calls of a conversation of which nothing is known: one that asks for tools, one that answers
GUESSED_TURNS = 2

GUESSED_SESSION = 4_000.0  # tokens with which each call of OpenCode begins: it tells of its tools
GUESSED_CALL = 25.0  # tokens of the turn that asks for tools
GUESSED_RESULT = (
    500.0  # tokens that the calls of such a turn give; stubs are no longer than they are written
)


def _grown(stage: PlannedStage, given: float, turns: int, a_turn: float) -> float:
    """Mean tokens of a request in a conversation of so many turns: with its tools, and what each
    turn adds."""
    tools = (stage.agent_spec or AgentSpec()).tools
    told = sum(len(snapshot(tool.parameters)) + len(tool.description) for tool in tools)
    return given + told / CHARACTERS_A_TOKEN + a_turn * (turns - 1) / 2


def summed(dollars: Iterable[float | None]) -> float | None:
    """The sum; None where one of them is not known."""
    known = list(dollars)
    if None in known:
        return None
    return dollars_in_all(one or 0.0 for one in known)


def _at_most(stage: PlannedStage, tasks: int, given: float) -> float | None:
    """Dollars when all models, all re-asks and longest replies are needed; what calls take over
    costs as calls."""
    costs = []
    asked = given
    rules = stage.batch
    waits = rules.deadline is None or rules.on_deadline == "wait"
    way: Way = "batch" if stage.run_mode == "batch" and waits else "sync"
    again: Way = "sync" if rules.retry == "sync" else way
    for position, model in enumerate(stage.models):
        most = model.params.max_tokens
        if most is None or model.server_tools:  # what these find is read too
            return None
        calls = tasks
        # one call of a tool a turn, whose result is as long as it may be
        if stage.agent_spec is not None:
            longest = (
                max((tool.max_chars for tool in stage.agent_spec.tools), default=0)
                / CHARACTERS_A_TOKEN
            )
            calls = tasks * stage.most_turns
            given = _grown(stage, asked, stage.most_turns, most + longest)
        program = stage.tooling.program
        if program is not None:
            calls = tasks * stage.most_turns
            given = program.context
        costs.append(_dollars(model, calls, Usage(round(given), most), again if position else way))
        # with what a re-ask says beside the prompt and the last reply
        repair = Usage(round(given + most + 300), most)
        costs.append(_dollars(model, tasks * stage.repair, repair, again))
    return summed(costs)


def _dollars(
    model: PlannedModel, calls: float, usage: Usage, way: Way,
    price_of: Callable[[Provider, str, str | None], Price | None] = dearest_price,
) -> float | None:  # fmt: skip
    if way == "batch" and model.provider.batch is not None:
        batch = BATCH
    else:
        batch = None
    tier = "flex" if way == "flex" else batch or model.params.service_tier
    if calls:
        one = cost(usage, price_of(model.provider, model.model, tier))
    else:
        one = 0.0
    return None if one is None else one * calls


TEXT = "x" * 60  # a field of text: a dozen words
FREE = "x" * 1000  # an answer without a schema


USUAL_LENGTH = (
    2  # of a list of which nothing is said: items in an answer, or rows that a function gives
)


def dummy_answer(shape: Mapping[str, Any] | None) -> JSONValue:
    """What an answer of this shape might be, a plain text without one. Lists are half way between
    `minItems` and `maxItems`, but not much above the least, or of just that where it stands alone;
    texts in them are half as long."""
    return FREE if shape is None else _of_shape(shape, shape)


def _of_shape(body: Any, root: Mapping[str, Any], text: str = TEXT, depth: int = 0) -> JSONValue:
    found = resolved(root, body) or {}
    values = found.get("enum")
    if values:
        return values[0]
    if isinstance(found.get("properties"), dict) and depth < 6:
        return {
            name: _of_shape(inner, root, text, depth + 1)
            for name, inner in found["properties"].items()
        }
    if "array" in (kinds := kinds_of(found)) and depth < 6:
        least = found.get("minItems", 0)
        more = min(found.get("maxItems", least or 2 * USUAL_LENGTH) - least, 2 * USUAL_LENGTH)
        return [_of_shape(found.get("items"), root, TEXT[::2], depth + 1)] * max(
            round(least + more / 2), 1
        )
    if "string" in kinds or not kinds & {"boolean", "integer", "number"}:
        return text
    return True if "boolean" in kinds else 1


# Into how many batches the requests of a stage are cut, and of what size.

# bytes of a line beside the texts and the schema of its request: its name, its address, the
# parameters
AROUND = 400


@dataclass(frozen=True, slots=True)
class PlannedBatches(Report):
    """The batches of a stage: how many, of what size, in which window the provider ends them, and
    how long those of the lane took that ended, in seconds: half up to `p50_s`, 95 % up to
    `p95_s`."""

    count: int
    requests_at_most: int
    completion_window: str
    ended_before: int = 0
    p50_s: float | None = None
    p95_s: float | None = None


def most_requests(rules: BatchRules, traits: BatchTraits) -> int:
    """Requests in a batch."""
    return min(traits.max_requests, rules.max_requests or traits.max_requests)


def most_bytes(rules: BatchRules, traits: BatchTraits) -> int:
    """Bytes of a batch. Without a wish of the user's a tenth of what the provider takes is left
    free."""
    return min(rules.max_bytes or traits.max_bytes * 9 // 10, traits.max_bytes)


def planned_batches(
    stage: PlannedStage,
    requests: int,
    characters: float | None,
    times: LaneTimes | None,
) -> PlannedBatches | None:
    """The batches of a stage; None where it is not asked so. `characters`: of a request, schema
    included, in the mean; None where nothing is known of them. `times` are those of earlier
    batches of its lane."""
    traits = stage.provider.batch
    if stage.run_mode != "batch" or traits is None:
        return None
    fitting = int(most_bytes(stage.batch, traits) / ((characters or 0.0) + AROUND))
    most = max(min(most_requests(stage.batch, traits), fitting), 1)
    took: tuple[Any, ...]
    if times:
        took = (times.batches, round(times.p50_s, 3), round(times.p95_s, 3))
    else:
        took = ()
    window = stage.batch.completion_window or traits.windows[0]
    return PlannedBatches(ceil(requests / most), min(most, requests), window, *took)


@dataclass(frozen=True, slots=True)
class PlannedRounds(Report):
    """The conversations of a stage in batches: each turn is a round, `expected` ones in the mean.
    `wait_s` is how long they take, as earlier batches did. What the same costs in batches, which
    read little from caches, and by calls that read each turn's beginning from one, in dollars;
    None: a price, or a tier, is not known."""

    expected: float
    at_most: int
    wait_s: float | None
    batch_usd: Usd | None
    sync_usd: Usd | None
    flex_usd: Usd | None


def planned_rounds(
    stage: PlannedStage, tasks: int, found: CostEstimate, times: LaneTimes | None
) -> PlannedRounds:
    """The rounds of a stage with tools that is asked in batches."""
    provider = stage.provider
    model = stage.models[0].model
    calls = max(found.calls, 1)
    turns = found.calls / tasks
    given = found.input_tokens / calls
    made = found.output_tokens / calls
    if provider.cache != "none":
        again = given * (1 - 1 / max(turns, 1.0)) * 2 / 3
    else:
        again = 0.0
    usage = Usage(round(given), round(made), round(again))
    usd = {tier: cost(usage, dearest_price(provider, model, tier)) for tier in (None, "flex")}
    by_calls, flex = (None if one is None else one * calls for one in usd.values())
    wait = times.p50_s * turns if times else None
    flex = flex if flex != by_calls else None
    return PlannedRounds(round(turns, 1), stage.most_turns, wait, found.usd, by_calls, flex)


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
    """What would become of a stage's tasks, and what that takes. `run` are asked, at most: one
    after a new answer may turn out the same, and `undecided` of them have a guard that looks at an
    answer which is not there yet. `further` counts the questions beyond one for each of them:
    replicas (`spared` of these may not be needed, in a vote that ends once an answer leads), and
    `parts` of groups that one call does not hold. Of those `in_flight` the question is in a batch
    already: it is neither asked nor paid again.

    `exact`: how many tasks come to the stage is known; else it rests on a guess, which is its own
    or one upstream. `sure` are run whatever answers that are not there yet say; of `reuse`,
    `again` are run if rows fail elsewhere; of `run`, those in `remote` are answered there.
    `aliases` are the short names of its models, as {written, means, meant}; `meant` is what the
    first one stood for in the run compared with, where that is something else. `batches` are those
    of a stage that is asked in batches, `rounds` those of one with tools."""

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
    run: int = 0
    sure: int = 0
    again: int = 0
    further: int = 0
    answered: int = 0
    """Of `run`, tasks of rows that the run compared with answered at this stage."""
    reuse: int = 0
    blocked: int = 0
    skipped: int = 0
    dropped: int = 0
    undecided: int = 0
    reasons: Annotated[dict[str, Reason], by_count] = field(default_factory=dict)
    blocked_reasons: Annotated[dict[str, Reason], by_count] = field(default_factory=dict)
    sampled: int = 0
    characters: int = 0
    rough: bool = False  # some of what was measured is not there yet, and of an assumed size
    collapsed: int = (
        0  # tasks, of those whose prompt is known, that would take the answer of an equal one
    )
    parts: int = 0
    spared: int = 0
    exact: bool = True
    guess: Guess | None = None
    in_flight: int = 0
    remote: int = 0
    estimate: CostEstimate = LOCAL
    aliases: tuple[dict[str, str | None], ...] = ()
    batches: PlannedBatches | None = None
    rounds: PlannedRounds | None = None

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
            return self.stage.run_mode
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
    """What a run would do. `continues` is the run that it would go on with; `compared_with` the
    one compared with, from which these keys of the input differ: `input_changes`. `rows`: the
    `total` of the input, of which `unusable` ones are never asked, `dropped` ones repeat an id and
    `short` ones, if any, have fewer fields than the header. `budgets`: each with what this run has
    spent of it, and in `enough` whether what is expected fits. `confirm_above` in dollars, None: a
    run asks no question first. `prompts` are the rendered ones that were requested."""

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
    stages: list[StageForecast]
    continues: int | None = None
    compared_with: int | None = None
    input_changes: list[str] = field(default_factory=list)
    confirm_above: float | None = None
    rows: dict[str, int] = field(default_factory=lambda: {"total": 0, "unusable": 0, "dropped": 0})
    prompts: list[SamplePrompt] = field(default_factory=list)
    budgets: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

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
        rows = self.rows
        reasons = [(one.name, *each) for one in self.stages for each in one.blocked_reasons.items()]
        if any(
            one.run or one.reuse or one.skipped or one.dropped or one.in_flight
            for one in self.stages
        ):
            return None
        left = rows["total"] - rows["dropped"]
        if left and rows["unusable"] == left:
            return "none of the rows can be used"
        rows_own = ((name, why, reason) for name, why, reason in reasons if why in OF_THE_ROW)
        return (
            "; ".join(
                f"{name}: {why} (row {reason.example!r} for example)"
                for name, why, reason in rows_own
            )
            or None
        )

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


MARGIN = 1.2  # a limit that is proposed has a fifth more than the estimate says: rows differ


@dataclass(frozen=True, slots=True)
class Finishing(Report):
    """Rows without an outcome and, estimated, what they need. `usd` is None when a price is not
    known. What was reached, and what should do in its place: `budget` as `--budget` takes it (a
    `stage`'s own), or `max_errors`."""

    rows: int
    usd: Usd | None
    tokens: int
    calls: int
    budget: str | None = None
    stage: str | None = None
    max_errors: int | None = None
    held_usd: Usd | None = None
    """The most that calls of unknown cost may take beyond `usd`, if such calls go on; None without
    such calls."""
    held_tokens: int = 0
    """The most tokens that calls of unknown cost may take beyond `tokens`."""


def finishing(left: PlanReport, rows: int, failed: int, limiter: BudgetLimiter | None) -> Finishing:
    """What is `left` to do of so many open `rows`, and a limit for the one reached when so many
    had `failed`."""
    need = needed(left.stages)
    usd = left.usd
    reached = limiter.reached if limiter else None
    if limiter is None or reached is None:
        most = failed + max(failed, 10)  # room for at least so many more
        return Finishing(rows, usd, need.tokens, need.calls, max_errors=most)
    own = need
    balances = [one for one in limiter.balances if one.stage is None]
    if reached.stage is not None:
        own = needed(one for one in left.stages if one.name == reached.stage)
        balances = [reached]
    held = _held(balances[0], own.calls)
    enough = _enough(balances, own.plus(held), limiter)
    return Finishing(
        rows,
        usd,
        need.tokens,
        need.calls,
        enough,
        reached.stage,
        held_usd=held.usd or None,
        held_tokens=held.tokens,
    )


def _held(balance: BudgetBalance, calls: int) -> Amount:
    """What so many calls to come hold, if as many of them as of those before have an unknown cost:
    their worst case."""
    share = calls / max(balance.spent.calls, 1)
    return Amount(balance.unconfirmed.usd * share, ceil(balance.unconfirmed.tokens * share), 0)


def _enough(balances: Sequence[BudgetBalance], need: Amount, limiter: BudgetLimiter) -> str:
    """Of each unit that they bound, enough for all of them, and for what others hold: `--budget`
    takes the place of every budget of a run. The worst case of a call has to fit before the last
    one is made."""
    parts = []
    for unit, spent in balances[0].spent._asdict().items():
        others = max(getattr(limiter.elsewhere(one), unit) for one in balances)
        wanted = spent + others + MARGIN * getattr(need, unit) + getattr(limiter.missed, unit)
        caps = [cap for one in balances if (cap := getattr(one.budget, unit)) is not None]
        if caps:
            enough = max(min(caps), wanted)
            parts.append(f"{unit}={_rounded_up(enough) if unit == 'usd' else ceil(enough)}")
    return ",".join(parts)


def _rounded_up(usd: float) -> str:
    """Two digits that mean something, never less."""
    digits = 1 - floor(log10(usd))
    step = 10.0**-digits
    text = f"{ceil(usd / step - 1e-9) * step:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
