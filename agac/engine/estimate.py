"""What tasks will take: tokens, dollars and batches, and how many tasks a retry runs at most."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, NamedTuple

from agac.core.types import JSONValue, Usage
from agac.engine.invocation import Retry
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage, PlannedModel, PlannedStage
from agac.providers.batch import BatchTraits
from agac.providers.prices import BATCH, cost, price_of
from agac.spec.levels import Level, Levels, levels_of
from agac.spec.workflow import BatchRules
from agac.store.rows import MadeCount, State
from agac.store.runs import Count

# What tasks will take: tokens and dollars, from a stage's history where it has one, else from sampled renders.

CHARACTERS_A_TOKEN = 4
"""What English text comes to with common tokenizers."""

WITHOUT_SCHEMA = 250
"""Tokens of a free answer whose length nothing tells."""

COMPLAINT = 300
"""Tokens of what a re-ask says beside the prompt and the last reply."""

Basis = Literal["history", "sample", "guess", "local"]


@dataclass(frozen=True, slots=True)
class History:
    """What calls of one stage with one model took before, in the mean. `calls_a_task` is 1 when none was repeated."""

    calls: int
    input_tokens: float
    output_tokens: float
    calls_a_task: float


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What the tasks of a stage will take. `usd` None: the price is not known; `usd_at_most` needs max_tokens too."""

    calls: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    usd_at_most: float | None
    basis: Basis

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return {
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "usd": None if self.usd is None else round(self.usd, 6),
            "usd_at_most": None if self.usd_at_most is None else round(self.usd_at_most, 6),
            "basis": self.basis,
        }


LOCAL = CostEstimate(0, 0, 0, 0.0, 0.0, "local")
"""Of a stage that asks no model."""


def history(counts: Iterable[Count], stage: str, lane: str) -> History | None:
    """A stage's history among the roll-ups of earlier runs; None when none of its calls was answered by the model."""
    own = [c for c in counts if c.stage == stage]
    answered = [c for c in own if c.outcome == "call" and c.output_tokens and _same_model(c.model, lane)]
    calls = sum(c.tasks for c in answered)
    if not calls:
        return None
    # answers that held, in all their number: the tasks that stand as done are fewer where rows changed since
    held = sum(c.tasks for c in answered if not c.error_type)
    ended = held + sum(c.tasks for c in own if c.outcome == "failed") or calls
    return History(
        calls,
        sum(c.input_tokens for c in answered) / calls,
        sum(c.output_tokens for c in answered) / calls,
        max(calls / ended, 1.0),
    )


def _same_model(answered: str, lane: str) -> bool:
    """Whether the model that answered is the one asked for, perhaps by a more exact name."""
    return answered == lane or answered.startswith(f"{lane}-")


def estimate(
    stage: PlannedStage, tasks: int, characters: float | None, past: History | None, *, same_prompt: bool
) -> CostEstimate:
    """What `tasks` will take, each replica of one being one. `characters`: of a request, in the mean of a sample; None
    when nothing could be rendered.

    The history's input counts while the prompt is the same (`same_prompt`), or nothing could be rendered.
    """
    made, basis = _output(stage, past)
    use_past = past is not None and (same_prompt or characters is None)
    given = past.input_tokens if past and use_past else (characters or 0.0) / CHARACTERS_A_TOKEN
    calls = round(tasks * (past.calls_a_task if past else 1.0))
    return CostEstimate(
        calls=calls,
        input_tokens=round(calls * given),
        output_tokens=round(calls * made),
        usd=_dollars(stage.models[0], calls, given, made, batch=stage.run_mode == "batch"),
        usd_at_most=_at_most(stage, tasks, given),
        basis=basis,
    )


def _output(stage: PlannedStage, past: History | None) -> tuple[float, Basis]:
    if past is not None:
        return past.output_tokens, "history"
    guess = WITHOUT_SCHEMA if stage.schema is None else _tokens_of_shape(stage.schema.body)
    most = stage.params.max_tokens
    return (min(guess, most) if most else guess), "guess"


def _tokens_of_shape(body: dict[str, Any]) -> int:
    """A rough size of an answer of this shape: its names and a short value each."""
    names = json.dumps(body).count('"type"')
    return 10 + 15 * names


def _at_most(stage: PlannedStage, tasks: int, given: float) -> float | None:
    """Dollars when every model is asked, every re-ask is needed, and every reply is as long as it may be. Where calls
    take over what batches leave, they cost what calls do."""
    costs = []
    rules = stage.batch
    batch = stage.run_mode == "batch" and (rules.deadline is None or rules.on_deadline == "wait")
    again = batch and rules.retry != "sync"
    for position, model in enumerate(stage.models):
        most = model.params.max_tokens
        if most is not None:
            costs.append(_dollars(model, tasks, given, most, batch=again if position else batch))
            costs.append(_dollars(model, tasks * stage.repair, given + most + COMPLAINT, most, batch=again))
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == 2 * len(stage.models) else None


def _dollars(model: PlannedModel, calls: int, given: float, made: float, *, batch: bool) -> float | None:
    if not calls:
        return 0.0
    tier = BATCH if batch and model.provider.batch is not None else model.params.service_tier
    price = price_of(model.provider, model.model, tier)
    one = cost(Usage(round(given), round(made)), price)
    return None if one is None else one * calls


TEXT = "x" * 60
"""A field of text: a dozen words."""

FREE = "x" * 1000
"""An answer without a schema."""


def dummy_answer(stage: AnyStage) -> JSONValue:
    """What the stage might answer."""
    return FREE if stage.shape is None else _of_shape(stage.shape, 0)


def _of_shape(body: Any, depth: int) -> JSONValue:
    if not isinstance(body, dict) or depth > 8:
        return TEXT
    if body.get("enum"):
        return body["enum"][0]
    if isinstance(body.get("properties"), dict):
        return {name: _of_shape(inner, depth + 1) for name, inner in body["properties"].items()}
    match body.get("type"):
        case "array":
            return [_of_shape(body.get("items"), depth + 1)] * max(1, body.get("minItems", 1) if depth == 0 else 1)
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return TEXT


# Into how many batches the requests of a stage are cut, and of what size.

AROUND = 400
"""Bytes of a line beside the texts and the schema of its request: its name, its address, the parameters."""


class Cuts(NamedTuple):
    """So many batches, of `requests` at most."""

    batches: int
    requests: int


def most_requests(rules: BatchRules, traits: BatchTraits) -> int:
    """Requests in a batch."""
    return min(traits.max_requests, rules.max_requests or traits.max_requests)


def most_bytes(rules: BatchRules, traits: BatchTraits) -> int:
    """Bytes of a batch. Without a wish of the user's a tenth of what the provider takes is left free."""
    return min(rules.max_bytes or traits.max_bytes * 9 // 10, traits.max_bytes)


def cuts(stage: PlannedStage, requests: int, characters: float | None) -> Cuts:
    """The batches of a stage; none where it asks nothing so. `characters`: of a request, schema included, in the mean;
    None where nothing is known of them."""
    traits = stage.provider.batch
    if stage.run_mode != "batch" or traits is None or not requests:
        return Cuts(0, 0)
    fitting = int(most_bytes(stage.batch, traits) / ((characters or 0.0) + AROUND))
    most = max(min(most_requests(stage.batch, traits), fitting), 1)
    return Cuts(ceil(requests / most), min(most, requests))


# How many tasks a retry asks at most: of the rows that it takes up again, and of what is made of those.

Chosen = tuple[str | None, str | None, int]
"""Rows of the input that are taken up again, as `store.retries.chosen_counts` has them."""


def tasks_of_retry(
    plan: Plan, retry: Retry, chosen: Sequence[Chosen], made: Sequence[MadeCount] = (), rows: int = 0
) -> dict[str, int]:
    """How many tasks of each stage a retry asks at most, by name. `made` says how the rows stand that stages made,
    `rows` how many the input has."""
    return _Tasks(plan, retry, made, rows).count(chosen)


class _Tasks:
    def __init__(self, plan: Plan, retry: Retry, made: Sequence[MadeCount], rows: int) -> None:
        self._levels: Levels[AnyStage] = levels_of(plan.stages)
        self._names = [stage.name for stage in plan.stages]
        self._retry, self._made = retry, made
        self._found = dict.fromkeys(self._names, 0.0)
        self._present: dict[int | None, int] = {None: rows}
        for one in made:
            self._present[one.origin] = self._present.get(one.origin, 0) + one.rows
        self._after = {stage.name: self._followers(stage) for stage in plan.stages}

    def count(self, chosen: Sequence[Chosen]) -> dict[str, int]:
        """All tasks, by the name of their stage."""
        for failed_at, _, rows in chosen:
            self._walk(self._levels.all[0], rows, self._asked(failed_at))
        for one in self._made if not (self._retry.rows or self._takes_all) else ():
            failed_at = one.error_stage if one.state == State.FAILED else "" if one.state == State.PENDING else None
            level = self._levels.by_origin.get(one.origin)
            if level is not None and failed_at is not None and self._is_chosen(one):
                self._walk(level, one.rows, self._asked(failed_at))
        return {name: round(tasks) for name, tasks in self._found.items()}

    @property
    def _takes_all(self) -> bool:
        """Whether every row is taken up again, and so what is made of it."""
        return self._retry.from_stage is not None and self._retry.stage is None and self._retry.error is None

    def _is_chosen(self, one: MadeCount) -> bool:
        """Whether the retry chooses rows that stand so."""
        failed = self._retry.stage in (None, one.error_stage) and self._retry.error in (None, one.error_type)
        return failed or one.state == State.PENDING

    def _asked(self, failed_at: str | None) -> frozenset[str]:
        """The stages that are asked for a row that failed at this one; "" for an open row, None for a done one."""
        again = self._retry.from_stage
        anew = self._names[self._names.index(again) :] if again is not None else []
        if failed_at == "":
            return frozenset(self._names)
        return frozenset(anew) | (self._after[failed_at] if failed_at is not None else frozenset())

    def _followers(self, first: AnyStage) -> frozenset[str]:
        """The stage and all that follow it, perhaps by way of others."""
        found = {first.name}
        for stage in self._levels.stages:
            if found.intersection(stage.needs):
                found.add(stage.name)
        return frozenset(found)

    def _walk(self, level: Level[AnyStage], rows: float, asked: Collection[str]) -> None:
        """So many rows of a level go through these of its stages, and so does what is made of them."""
        for stage in level.stages:
            if stage.name in asked:
                self._found[stage.name] += rows
        before = self._present.get(level.origin, 0)
        for below in self._below(level):
            there = self._present.get(below.origin, 0)
            each = there / before if before else 1.0
            assert below.maker is not None
            further = min(rows, max(there, 1)) if below.maker.makes == "groups" else rows * each
            self._walk(below, further, asked)

    def _below(self, level: Level[AnyStage]) -> list[Level[AnyStage]]:
        """The levels whose rows are made of this one's."""
        listing = [stage for stage in level.stages if stage.makes == "rows" and self._present.get(stage.index)]
        return [self._levels.by_origin[maker.index] for maker in (*level.makers, *listing)]
