"""What the tasks of a stage will take: calls, tokens and dollars, by earlier runs or by guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

from agac.core.keys import snapshot
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import JSONValue, Report, Usage, Usd, dollars_in_all, usd
from agac.engine.forecast.past_usage import PastUsage
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.prices import BATCH, cheapest_price, cost, dearest_price
from agac.providers.provider import Price, Provider
from agac.spec.field_shapes import kinds_of
from agac.spec.json_schema import resolved
from agac.spec.tools import AgentSpec
from agac.store.records import Seconds

Way = Literal["sync", "batch", "flex"]
WAYS: tuple[Way, ...] = ("sync", "batch", "flex")
Ways = Annotated[
    dict[str, float | None],
    lambda ways: {way: None if one is None else usd(one) for way, one in ways.items()},
]


@dataclass(frozen=True, slots=True)
class CostEstimate(Report):
    """What the tasks of a stage will take. Where the model's price depends on the hour, dollars
    are those of the dearest."""

    calls: int
    """How many calls are expected."""
    input_tokens: int
    """Expected tokens of all requests."""
    output_tokens: int
    """Expected tokens of all replies."""
    usd: Usd | None
    """Expected dollars; None: the price is not known."""
    usd_at_most: Usd | None
    """Dollars if every reply is as long as it may be; None: the price is not known, or nothing
    bounds the replies."""
    basis: Literal["history", "sample", "guess", "local"]
    """What the figures rest on."""
    past_tasks: int = 0
    """How many tasks of earlier runs they rest on."""
    ways: Ways = field(default_factory=dict)
    """Expected dollars by calls (`sync`), in batches, and with service_tier=flex; None: unknown,
    or not on offer."""
    seconds: Seconds | None = None
    """How long it takes; None: unknown."""
    usd_off_peak: Usd | None = None
    """`usd` at the cheapest hour, if that is another price."""


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
    known = past.usage(stage)
    request_tokens = (characters or 0.0) / (past.tokens.get(stage.lane) or CHARACTERS_A_TOKEN)
    if known is None:
        size = _guessed_size(stage, request_tokens)
    else:
        if stage.agent_spec is None and stage.runtime is None and not rough:
            longer = past.longer(stage, characters) or longer
        size = TaskSize(known.calls, request_tokens, known.made, known.cached)
        # what turns add counts more than the length of the first request
        takes_turns = bool(stage.agent_spec or stage.runtime)
        if longer is not None or characters is None or takes_turns:
            size = size._replace(given=known.given * (longer or 1.0))
    paid = tasks * part * size.calls
    calls = round(paid)
    usage = Usage(size.given, size.made, size.given * size.cached)  # type: ignore[arg-type]  # means, which are no whole numbers
    model = stage.models[0]
    ways = {way: _dollars(model, paid, usage, way) for way in WAYS}
    whole = ways[stage.settings.run_mode]
    off_peak = _dollars(model, paid, usage, stage.settings.run_mode, cheapest_price)
    offered = {"batch": stage.provider.batch is not None, "flex": ways["flex"] != ways["sync"]}
    return CostEstimate(
        calls=calls,
        input_tokens=round(calls * size.given),
        output_tokens=round(calls * size.made),
        usd=whole,
        usd_at_most=_at_most(stage, tasks, size.given) if exact else None,
        basis="guess" if known is None else "history",
        past_tasks=known.tasks if known else 0,
        ways={way: usd if offered.get(way, True) else None for way, usd in ways.items()},
        usd_off_peak=off_peak if off_peak != whole else None,
    )


class TaskSize(NamedTuple):
    """What a task of a stage takes, in the mean."""

    calls: float
    """How many calls."""
    given: float
    """Tokens of the request of a call."""
    made: float
    """Tokens of its reply."""
    cached: float
    """The share of the request that comes from a cache."""


def _guessed_size(stage: PlannedStage, request_tokens: float) -> TaskSize:
    """Guesses what a task takes when no call of the stage was answered yet. A free answer is taken
    to be half as long as its request, another one to be of its usual shape."""
    if stage.shape is not None:
        made = len(snapshot(dummy_answer(stage.answer_shape))) / CHARACTERS_A_TOKEN
    else:
        made = min(request_tokens / 2, 250.0)
    most = stage.params.max_tokens
    if most:
        made = min(made, most)
    if stage.agent_spec is not None:  # it asks for tools once, and then answers
        turns = GUESSED_TURNS + stage.defers_form  # the form takes a turn of its own
        given = _grown(stage, request_tokens, turns, _guessed_turn(stage.agent_spec))
        return TaskSize(turns, given, (made + GUESSED_CALL * (turns - 1)) / turns, 0.0)
    if stage.runtime is not None:  # all the calls of a session are counted as one
        given = GUESSED_TURNS * (request_tokens + GUESSED_SESSION)
        return TaskSize(1.0, given, made + GUESSED_CALL, 0.0)
    return TaskSize(1.0, request_tokens, made, 0.0)


def _guessed_turn(agent: AgentSpec) -> float:
    """Guesses how many tokens a turn that asks for a tool adds to a conversation."""
    if agent.mode != "stub" or not agent.stubs:
        return GUESSED_CALL + GUESSED_RESULT
    stubs = [len(snapshot(stub)) / CHARACTERS_A_TOKEN for stub in agent.stubs.values()]
    return GUESSED_CALL + min(fmean(stubs), GUESSED_RESULT)


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


GUESSED_TURNS = 2
"""Calls of a conversation of which nothing is known: one asks for tools, one answers."""
GUESSED_SESSION = 4_000.0
"""Tokens with which each call of OpenCode begins: it describes its tools."""
GUESSED_CALL = 25.0
"""Tokens of the turn that asks for tools."""
GUESSED_RESULT = 500.0
"""Tokens that the tool calls of such a turn give; stubs are no longer than they are written."""


def _grown(stage: PlannedStage, given: float, turns: int, a_turn: float) -> float:
    """Mean tokens of a request in a conversation of so many turns: with its tools, and what each
    turn adds."""
    tools = (stage.agent_spec or AgentSpec()).tools
    characters = sum(len(snapshot(tool.parameters)) + len(tool.description) for tool in tools)
    return given + characters / CHARACTERS_A_TOKEN + a_turn * (turns - 1) / 2


def summed(dollars: Iterable[float | None]) -> float | None:
    """The sum; None where one of them is not known."""
    known = list(dollars)
    if None in known:
        return None
    return dollars_in_all(one or 0.0 for one in known)


def _at_most(stage: PlannedStage, tasks: int, given: float) -> float | None:
    """Returns the dollars when all models, all re-asks and longest replies are needed; what calls
    take over costs as calls. None: nothing bounds them."""
    rules = stage.settings.batch
    waits = rules.deadline is None or rules.on_deadline == "wait"
    first: Way = "batch" if stage.settings.run_mode == "batch" and waits else "sync"
    again: Way = "sync" if rules.retry == "sync" else first
    takes_turns = stage.agent_spec is not None or stage.settings.tooling.program is not None
    calls = tasks * stage.most_turns if takes_turns else tasks
    costs = []
    for position, model in enumerate(stage.models):
        most = model.params.max_tokens
        if most is None or model.server_tools:  # what these find is read too
            return None
        longest = _longest_request(stage, given, most)
        way = again if position else first
        costs.append(_dollars(model, calls, Usage(round(longest), most), way))
        # a re-ask has a complaint after the prompt and the last reply
        repair = Usage(round(longest + most + 300), most)
        costs.append(_dollars(model, tasks * stage.settings.repair, repair, again))
    return summed(costs)


def _longest_request(stage: PlannedStage, given: float, most: int) -> float:
    """Returns the mean tokens of a request when each turn calls one tool, whose result is as long
    as it may be, and each reply has as many tokens as `most`."""
    if stage.settings.tooling.program is not None:
        return stage.settings.tooling.program.context
    if stage.agent_spec is None:
        return given
    characters = max((tool.max_chars for tool in stage.agent_spec.tools), default=0)
    return _grown(stage, given, stage.most_turns, most + characters / CHARACTERS_A_TOKEN)


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


TEXT = "x" * 60
"""A field of text: a dozen words."""
FREE = "x" * 1000
"""An answer without a schema."""
USUAL_LENGTH = 2
"""Of a list of unknown length: items in an answer, or rows that a function gives."""


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
