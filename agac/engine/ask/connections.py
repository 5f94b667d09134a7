"""The connections of a stage to its models: all of a call that is fixed for the run, and how one
is sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import ClassVar

from agac.core.errors import ErrorType, RowError, storable
from agac.core.redact import Redactor
from agac.core.text import CHARACTERS_A_TOKEN
from agac.core.types import Fault, FaultKind, Reply, Request, ToolDefinition, Usage
from agac.engine.ask import limits
from agac.engine.ask.limits import Amount, WorstCase
from agac.engine.ask.prefix import Prefix, prefix_of
from agac.engine.ask.rate_limiter import CallLimit, Lane, LanePermit
from agac.engine.ask.retry_policy import RowDeadline
from agac.engine.ask.validate import Checker, ValidReply
from agac.engine.invocation import Work
from agac.engine.stop_rules import StopSignal
from agac.plan.render import RowView
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.abilities import unsendable
from agac.providers.bodies import Encoder
from agac.providers.dialect import Begins, Dialect
from agac.providers.hints import HintingSender, hinting
from agac.providers.http import HttpReply, Sending, open_sender
from agac.providers.prices import cost, price_of
from agac.providers.provider import Price
from agac.providers.structured import is_enforced
from agac.providers.table import DIALECTS
from agac.spec.rules import Timeout
from agac.spec.tools import Runtime
from agac.spec.workflow import family
from agac.store.records import Attempt, Call, CallTiming, Endpoint


@dataclass(frozen=True)
class Route:
    """A stage and one of its models: how requests are written and replies read."""

    stage: PlannedStage
    """The stage."""
    model: PlannedModel
    """The model."""
    checker: Checker
    """Checks the replies of the stage."""
    redactor: Redactor
    """Removes secrets from what comes back."""
    most: WorstCase | None
    """Bounds the cost of a request. None: there is no budget."""
    prefix: Prefix | None = field(default=None, kw_only=True)
    """The beginning of all requests, if the provider is asked to cache it."""
    _encoder: Encoder = field(default_factory=Encoder, init=False, repr=False, compare=False)

    @cached_property
    def dialect(self) -> Dialect:
        """The dialect of the model's provider."""
        return DIALECTS[self.model.provider.dialect]

    @cached_property
    def enforced(self) -> bool:
        """True if the provider itself holds the model to the stage's schema."""
        schema = self.stage.schema
        return schema is not None and is_enforced(schema, self.model.provider, self.dialect.shaping)

    @cached_property
    def base_url(self) -> str:
        """The provider's address as it may be shown and stored."""
        return self.redactor.clean(self.model.provider.base_url)

    def price(self, service_tier: str | None, at: float) -> Price | None:
        """Returns the model's price in a service tier at a time (seconds since 1970), or None if
        it is unknown. The price library is loaded with the first reply, which takes a third of a
        second."""
        return price_of(self.model.provider, self.model.model, service_tier, at)

    @cached_property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The stage's tools as the model sees them: one value, which is described and encoded
        once."""
        if self.stage.agent_spec:
            return tuple(tool.definition for tool in self.stage.agent_spec.tools)
        return ()

    def body(self, request: Request) -> bytes:
        """Writes a request in the provider's dialect: the same bytes for a call and for a line of
        a batch."""
        if self.prefix is not None:
            request = replace(request, prefix=self.prefix.of(request)[0])
        return self._encoder.encode(
            self.dialect.build(request, self.model.model, self.model.provider)
        )

    def worst_case(self, body: bytes) -> Amount:
        """Returns the most that a request can cost."""
        return self.most.of(body) if self.most else limits.NOTHING

    def parse(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply | Fault:
        """Reads a response."""
        model = self.model
        return self.dialect.parse(status, headers, body, model.provider, model.model, self.redactor)

    def check(self, reply: Reply, view: RowView | None) -> ValidReply | RowError:
        """Returns the result that a reply is for the row of this view, or why it is none."""
        return self.checker.check(reply, enforced=self.enforced, view=view)

    def endpoint(self, reply: Reply | None) -> Endpoint:
        """Returns who answered; if nobody did (None), who was asked."""
        provider = self.model.provider
        if reply is None:
            return Endpoint(provider.name, self.base_url, self.model.model, provider.simulated)
        return Endpoint(
            provider.name,
            self.base_url,
            storable(reply.model),
            reply.simulated or provider.simulated,
        )

    def call(
        self,
        attempt: Attempt,
        answer: Reply | Fault,
        status: int | None,
        body: bytes | None,
        times: CallTiming,
    ) -> Call:
        """Makes the record of a call, at the price that the tier that served it had then. Whether
        the reply is a result is for the caller to add."""
        usage = answer.usage
        if isinstance(answer, Reply):
            reply: Reply | None = answer
            tier = answer.service_tier
            ambiguous = refused = False
        else:
            reply = tier = None
            ambiguous = answer.ambiguous
            refused = answer.kind is FaultKind.PAUSE
        known_cost = None
        if usage is not None:
            provider = self.model.provider
            price = price_of(provider, self.model.model, tier, times.started_at)
            known_cost = cost(usage, price)
        return Call(
            attempt,
            self.endpoint(reply),
            times,
            status,
            None if tier is None else storable(tier),
            ambiguous=ambiguous,
            usage=usage or Usage(),
            cost=known_cost,
            body=body,
            refused=refused,
        )


def request_for_model(
    model: PlannedModel, request: Request, position: int, replica: int
) -> Request:
    """Returns the request for the stage's model at `position`. A request is made for the first
    model; others have parameters of their own. The number of a replica (0: the task has none) is
    its seed if the provider takes one."""
    if not position and not replica:
        return request
    has_seed = replica and not any(unsendable(("seed",), model.provider))
    return replace(
        request, params=replace(model.params, seed=replica) if has_seed else model.params
    )


Sent = tuple[Reply | Fault, Call]
"""The answer to a request, and the record of the call that brought it."""


@dataclass(frozen=True)
class ModelConnection(Route):
    """A stage's connection to one of its models: all of a call that is fixed for the run."""

    by_workers: ClassVar[bool] = True
    """True if a worker may send its calls."""

    sender: Sending | HintingSender
    """Sends the requests. Stages on one provider share it."""
    lane: Lane
    """Holds calls back for the model. Stages on one model share it."""
    stage_limit: CallLimit
    """The stage's own bound on calls at a time."""
    uncommitted: CallLimit
    """The bound on calls that are not durable yet."""
    wall: Callable[[], float]
    """Returns the time, in seconds since 1970."""
    transport: str
    """How the sender asks: `body`, `sse`, `ws` or `auto`."""
    through: Callable[..., Awaitable[HttpReply | Fault]] | None = field(default=None, kw_only=True)
    """Sends in the place of the sender."""

    @cached_property
    def timeout(self) -> Timeout:
        """The time limits of a call. A limit on silences in the model's string comes first."""
        bounds = self.model.timeout
        silence = self.model.idle_timeout
        if silence is None:
            return bounds
        return replace(bounds, first_byte=None if silence == math.inf else silence)

    async def send(
        self,
        attempt: Attempt,
        request: Request,
        body: bytes,
        deadline: RowDeadline,
        cut_off: Callable[[], None],
        *,
        fresh: bool = False,
        begins: Begins = None,
    ) -> Sent:
        """Waits for its turn, then for the answer to `body`, which `request` is encoded as. What
        comes back holds no secret: a server may quote what we sent.

        The call counts as uncommitted until its attempt is durable; when none comes of it, it is
        taken off here. `cut_off` is called when the call was sent and its answer is no longer
        awaited; `fresh`: it takes no pooled connection; `begins` is called with the first token of
        a stream. Raises RunStopped when the run stops before the call is sent, RowDeadlineExceeded
        when the row's time is over before that."""
        lane = self.lane
        permit = await deadline.wait(self._enter(body))
        started_at = self.wall()
        http = await self._carry(body, deadline, cut_off, fresh=fresh, begins=begins)
        if isinstance(http, Fault):
            if http.type is ErrorType.TIMEOUT and deadline.over:
                # which says nothing about the server
                http = replace(http, message=str(deadline))
            else:
                lane.heard(permit, http)
            times = CallTiming(started_at, self.wall() - started_at)
            return http, self.call(attempt, http, http.status, None, times)
        clean = self.redactor.clean_bytes(http.body)
        answer = self.parse(http.status, http.headers, clean)
        rates = self.dialect.rates(http.headers)
        if rates is not None:
            lane.observe(permit, rates, answer.delay if isinstance(answer, Fault) else None)
        lane.heard(permit, answer)
        if isinstance(answer, Reply):
            status: int | None = http.status
            times = CallTiming(started_at, http.duration, http.ttft, http.time_to_response)
        else:
            status = answer.status
            times = CallTiming(started_at, http.duration)
        return answer, self.call(attempt, answer, status, clean, times)

    async def _carry(
        self,
        body: bytes,
        deadline: RowDeadline,
        cut_off: Callable[[], None],
        *,
        fresh: bool,
        begins: Begins,
    ) -> HttpReply | Fault:
        """Sends, and gives back the places of the call in the stage and in the lane; the one among
        the uncommitted calls only if it brings nothing."""
        send = self.through or self.sender.send
        try:
            return await send(
                body, self.timeout, within=deadline.left(), fresh=fresh, begins=begins
            )
        except BaseException as ended:
            # a cancelled call, too, gives its place back; others do with their commit
            self.uncommitted.leave()
            if isinstance(ended, asyncio.CancelledError):
                cut_off()
            raise
        finally:
            self.lane.leave()
            self.stage_limit.leave()

    async def _enter(self, body: bytes) -> LanePermit:
        """Waits for a place in the stage, then among the calls that are not durable, then in the
        lane. A call that does not get all of them, as it is cancelled or the run stops, gives its
        places back."""
        await self.stage_limit.enter()
        try:
            await self.uncommitted.enter()
            try:
                return await self.lane.enter(
                    len(body) // CHARACTERS_A_TOKEN + (self.model.params.max_tokens or 0)
                )
            except BaseException:
                self.uncommitted.leave()
                raise
        except BaseException:
            self.stage_limit.leave()
            raise


@dataclass(frozen=True)
class WarmingConnection(ModelConnection):
    """A connection whose first call goes alone, if others are spared what it writes into a cache:
    what all requests of the stage begin with."""

    async def send(
        self,
        attempt: Attempt,
        request: Request,
        body: bytes,
        deadline: RowDeadline,
        cut_off: Callable[[], None],
        *,
        fresh: bool = False,
        begins: Begins = None,
    ) -> Sent:
        """Sends as every connection does, once a call that warms the prefix is under way."""
        assert self.prefix is not None
        gate = self.prefix.of(request)[1]
        goes_alone = False
        if gate is not None and not gate.warm:
            goes_alone = await deadline.wait(gate.enter())
        if gate is None or not goes_alone:
            return await super().send(
                attempt, request, body, deadline, cut_off, fresh=fresh, begins=begins
            )
        answer = None
        try:
            answer, call = await super().send(
                attempt, request, body, deadline, cut_off, fresh=fresh, begins=gate.open
            )
        finally:
            gate.leave(answer)
        return answer, call


@dataclass(frozen=True)
class ProgramConnection(ModelConnection):
    """A stage's connection to a program of this machine, which asks the model by itself."""

    by_workers: ClassVar[bool] = False

    @cached_property
    def dialect(self) -> Dialect:
        """The dialect of the program."""
        from agac.providers.opencode_session import OPENCODE  # only stages with a program need it

        return OPENCODE

    @cached_property
    def enforced(self) -> bool:
        """False: no program holds its model to a schema."""
        return False


def _kind_of(program: Runtime | None, prefix: Prefix | None) -> type[ModelConnection]:
    """Chooses the kind of connection for a stage that a program runs, or with such a prefix."""
    if program is not None:
        return ProgramConnection
    return ModelConnection if prefix is None else WarmingConnection


Connections = dict[int, tuple[ModelConnection, ...]]
"""Each stage's connections, its model's first, by the stage's index."""


@asynccontextmanager
async def open_connections(
    work: Work,
    run: int,
    uncommitted: CallLimit,
    stop_signal: StopSignal,
    waits: Callable[[str, float], None],
) -> AsyncIterator[Connections]:
    """Opens the connections of all stages, and of the agents that are their tools. `waits` is told
    of each long wait."""
    async with AsyncExitStack() as stack:
        opener = ConnectionOpener(work, run, uncommitted, stop_signal, waits, stack)
        stages = chain.from_iterable(map(family, work.plan.asking))
        yield {stage.index: await opener.open(stage) for stage in stages}


class ConnectionOpener:
    """Opens connections. Calls to one model share its lane, those of stages and of fallbacks; calls
    to one provider share its sender. A program has a sender of its own. `closing` closes all
    senders."""

    def __init__(
        self,
        work: Work,
        run: int,
        uncommitted: CallLimit,
        stop_signal: StopSignal,
        waits: Callable[[str, float], None],
        closing: AsyncExitStack,
    ) -> None:
        rules = work.plan.rules
        budgets = [balance.budget for balance in limits.balances_of(work.plan)]
        if rules.row:
            budgets.append(rules.row)
        self._work = work
        self._run = run
        self._uncommitted = uncommitted
        self._stop_signal = stop_signal
        self._waits = waits
        self._closing = closing
        self._has_budgets = bool(budgets)
        self._in_dollars = any(budget.usd is not None for budget in budgets)
        self._streams = bool(work.hooks.replies or rules.ttft)
        self._senders: dict[tuple[str, str, str], Sending] = {}
        self._lanes: dict[tuple[str, str], Lane] = {}

    async def open(self, stage: PlannedStage) -> tuple[ModelConnection, ...]:
        """Opens the connections of a stage, to its model first. Raises UsageError if one cannot be
        opened."""
        program = stage.settings.tooling.program
        at_once = stage.settings.concurrency or math.inf
        if program is not None:
            at_once = min(at_once, program.max_agents)
        stage_limit = CallLimit(at_once)
        checker = Checker(stage)
        connections = list[ModelConnection]()
        for model in stage.models:
            transport = self._transport(model)
            if program is None:
                sender = self._sender(model, transport)
            else:
                sender = await self._program(stage, model, program, transport)
            prefix = prefix_of(stage, model, self._work)
            connection = _kind_of(program, prefix)(
                stage=stage,
                model=model,
                checker=checker,
                redactor=self._work.redactor,
                most=self._worst_case(stage, model),
                prefix=prefix,
                sender=hinting(sender, model.provider, stage, self._run),
                lane=self._lane(model),
                stage_limit=stage_limit,
                uncommitted=self._uncommitted,
                wall=self._work.clocks.wall,
                transport=transport,
            )
            connections.append(connection)
        return tuple(connections)

    def _transport(self, model: PlannedModel) -> str:
        """Chooses how the model is asked. Silences are bounded only within a stream, so a bound on
        them asks for one."""
        bounds_silence = model.idle_timeout not in (None, math.inf)
        return model.transport or ("sse" if self._streams or bounds_silence else "body")

    def _sender(self, model: PlannedModel, transport: str) -> Sending:
        """Returns the sender that all calls to the model's provider share."""
        key = (model.provider.name, model.provider.base_url, transport)
        if key not in self._senders:
            self._senders[key] = self._new_sender(model, transport)
        return self._senders[key]

    def _new_sender(self, model: PlannedModel, transport: str) -> Sending:
        """Opens a sender, which is closed with the others."""
        work = self._work
        heard = work.hooks.replies.piece if work.hooks.replies else None
        sender = open_sender(model.provider, transport, work.redactor, work.env, heard)
        self._closing.push_async_callback(sender.close)
        return sender

    async def _program(
        self, stage: PlannedStage, model: PlannedModel, how: Runtime, transport: str
    ) -> Sending:
        """Starts the program of a stage, unless the answers of a test are in its place."""
        work = self._work
        if work.hooks.answers is not None and not work.hooks.answers.goes_out:
            return self._new_sender(model, transport)
        from agac.providers.opencode import open_program  # only stages with a program need it

        about = (model.provider, model.model, model.params), (stage.system, stage.schema)
        turns = stage.settings.tooling.max_turns
        program = await open_program(how, turns, *about, work.root, work.env, work.redactor)
        self._closing.push_async_callback(program.close)
        return program

    def _lane(self, model: PlannedModel) -> Lane:
        """Returns the lane that all calls to the model share."""
        key = (model.lane, model.provider.base_url)
        if key not in self._lanes:
            known = model.provider.limits
            self._lanes[key] = Lane(
                known.concurrency or self._work.plan.concurrency,
                rpm=known.rpm,
                tpm=known.tpm,
                clock=self._work.clocks.monotonic,
                stop_signal=self._stop_signal,
                waits=partial(self._waits, model.lane),
            )
        return self._lanes[key]

    def _worst_case(self, stage: PlannedStage, model: PlannedModel) -> WorstCase | None:
        """Makes the bound on the cost of a call, or None if there are no budgets."""
        if not self._has_budgets:
            return None
        program = stage.settings.tooling.program
        return WorstCase(
            model,
            in_dollars=self._in_dollars,
            session=(stage.most_turns, program.context) if program else None,
            wall=self._work.clocks.wall,
        )
