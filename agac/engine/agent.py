"""Conversations: a stage with tools asks its model, calls the tools that it asks for, tells it
what they gave, and so on until it answers. What decides the next request is in
`TaskConversation`. `Agents` sends, calls and stores. A reply is durable before the next request is
made of it, and before a call that must not be repeated; that is stored as intended first, once
nothing is waited for but the call itself."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agac.core.errors import AgacError, ErrorType, RowError, storable
from agac.core.keys import called_agent, is_job, job_alias
from agac.core.types import (
    Fault,
    JSONValue,
    Request,
    ToolCall,
    ToolResult,
)
from agac.engine.answers import Answer, TaskRequest
from agac.engine.attempts import CapReached, NextTurn, TaskAttempts
from agac.engine.caller import Caller
from agac.engine.connections import ModelConnection, request_for_model
from agac.engine.context import InvocationContext
from agac.engine.limits import BlockedByBatches, RowBudgetExceeded, RunStopped
from agac.engine.retry_policy import RowDeadlineExceeded
from agac.engine.settle import how_answered, stored_reply
from agac.engine.task_conversation import (
    ASK_FORM,
    End,
    TaskConversation,
    Turn,
    how_ended,
    shown,
    told,
)
from agac.plan.render import Preparer
from agac.plan.stage import PlannedStage
from agac.providers.citations import sources_of_turns
from agac.spec.tools import ToolSpec
from agac.spec.workflow import RowBudget, family
from agac.store.records import FIRST, TOOL, TURN, AgentTurn, Result, ToolCallRecord
from agac.store.rows import (
    RecordedCall,
    StoredCall,
    StoredTurn,
    calls_since,
    newest_turns,
    recorded_calls,
    turns_used,
)
from agac.store.writer import ToolCache
from agac.tools.pool import (
    CallScope,
    Elsewhere,
    ToolContext,
    ToolOutcome,
    ToolPool,
    open_tools,
)
from agac.tools.tool_functions import NO_INTENT, Intent, ToolFailed

# where results of tools are noted, a file a workflow (`tools_mode: record`)
RECORDED = Path("tools") / "recorded"

MOST_AT_ONCE = 8  # calls of one turn that are made at the same time
MOST_ANEW = 2  # so often a conversation begins anew whose server lost its session

NOT_KNOWN = "It is not known whether this call was carried out, and it was not made again."
"""What the model is told of such a call, where the user says so."""

NOT_MADE = "This call was not made: no more tools can be called. Answer with what is known."
"""What the model is told where the row may call no more."""


@dataclass
class BeginAnew(Exception):
    """The session of a server is lost with its state: what was said before means nothing to a new
    one."""

    error: RowError


@asynccontextmanager
async def open_agents(
    context: InvocationContext, caller: Caller, since: float, elsewhere: Elsewhere | None = None
) -> AsyncIterator[Agents | None]:
    """Opens the tools of a plan's stages and what asks those stages by a caller; None: no stage
    has tools. Raises UsageError when a tool cannot be had. `since`: earlier conversations count
    that began then or later, in seconds since 1970."""
    work = context.work
    stages = [stage for stage in context.plan.asking if stage.agent_spec is not None]
    if not stages:
        yield None
        return
    agents = Agents(context, caller, since)
    database = context.places.database
    clock = work.clocks.wall
    tools = ToolContext(
        root=work.root,
        redactor=work.redactor,
        monotonic=work.clocks.monotonic,
        env=work.env,
        web=work.web,
        functions=work.functions,
        run_child=agents.run_child,
        sleep=context.stop_signal.sleep,
        go_on=context.stop_signal.check,
        stops=RunStopped,
        later=ToolCache(database, context.ledger, clock, clock() if work.refresh_tools else 0.0),
        recorded=agents.recorded,
        elsewhere=elsewhere,
        record=(work.answers and work.answers.calls)
        or work.root / RECORDED / f"{context.plan.workflow}.jsonl",
    )
    async with agents.at_work(open_tools(stages, tools)):
        yield agents


class StoredIntent(Intent):
    """An intent that is a line of the store: a kill after it leaves the question what came of the
    call."""

    is_kept = True

    def __init__(self, agents: Agents, talk: TaskConversation, turn: Turn, place: int) -> None:
        self._agents = agents
        self._talk = talk
        self._turn = turn
        self._place = place
        self._before = ""
        self._is_closed = False
        self._times = 0

    def note(self) -> None:
        """Writes the line, and that of the call of the agent whose conversation this is, into the
        next commit."""
        if self.is_begun:
            return
        attempts = self._talk.attempts
        self.is_begun = True
        self._before = attempts.changed
        attempts.changed = shown([self._turn.reply.calls[self._place]])
        self._talk.changed = True
        above = self._agents.intents.get(attempts.fingerprint)
        if above is not None:
            above.note()
        self._agents.keep(self._talk, self._turn, self._place, "intent", None)

    async def begin(self) -> None:
        """See Intent. Raises ToolFailed once it is closed."""
        if not self._is_closed:
            self._times += 1
            self.note()
            try:
                await self._agents.durable()
            except BaseException:
                self.withdraw()
                raise
        if self._is_closed:
            self.withdraw()
            raise ToolFailed("the call was given up before it was made")

    def withdraw(self) -> None:
        """See Intent: an earlier call in its place may have been made."""
        if not self.is_begun or self._times > 1:
            return
        self.is_begun = False
        self._times = 0
        old = self._talk.stored.get((self._turn.number, self._place))
        attempts = self._talk.attempts
        self._agents.keep(
            self._talk, self._turn, self._place, "refused" if old is None else old.state, None
        )
        if attempts.changed == shown([self._turn.reply.calls[self._place]]):
            attempts.changed = self._before

    def close(self) -> None:
        """See Intent."""
        self._is_closed = True


class AllowedCall(NamedTuple):
    """A call of a tool that may be made."""

    tool: ToolSpec
    """The tool."""
    arguments: dict[str, JSONValue]
    """What it is called with."""
    once: bool
    """Whether it must not be repeated."""
    changes: bool
    """Whether it, or the agent that it asks, changes something."""
    begun_before: bool
    """Whether it changes something, and an earlier invocation began it."""


class MadeCall(NamedTuple):
    """A call of a tool that ended."""

    outcome: ToolOutcome
    """What came of it."""
    intent: Intent
    """What was stored before it was made."""
    at: float
    """When it began, in seconds since 1970."""
    took: float
    """How many seconds it took."""


class Agents:
    """Asks the models of stages with tools. `pool` calls the tools, while agents are `at_work`;
    `intents` are those of calls of agents that are under way, by the conversation of the agent
    that is called."""

    def __init__(self, context: InvocationContext, caller: Caller, since: float) -> None:
        plan = context.plan
        self._caller = caller
        self._since = since
        self._budget = plan.rules.row or RowBudget()
        self._children = {
            child.name: child
            for stage in plan.asking
            for child in family(stage)
            if child is not stage
        }
        self._preparer = Preparer(tuple(self._children.values()), plan.vars, context.places.run)
        self._database = context.places.database
        self._workflow = context.plan.workflow
        self._run = context.places.run
        self._ledger = context.ledger
        self._stop_signal = context.stop_signal
        self._clocks = context.work.clocks
        self._clean = context.work.redactor.clean
        self._stops = context.stops
        if context.work.retry:
            self._choice = context.work.retry.calls
        else:
            self._choice = context.work.calls
        self._stored: dict[bytes, tuple[list[StoredTurn], list[StoredCall]]] = {}
        self._open: dict[bytes, TaskConversation] = {}
        self.intents: dict[bytes, StoredIntent] = {}
        self.durable = context.ledger.durable
        self.pool: ToolPool

    @asynccontextmanager
    async def at_work(self, tools: AbstractAsyncContextManager[ToolPool]) -> AsyncIterator[None]:
        """Opens the tools, some of which ask these agents."""
        async with tools as self.pool:
            yield

    def ask(self, asked: TaskRequest) -> Awaitable[Answer | RowError]:
        """Asks a stage with tools. See AnswerSource."""
        return self.answer(self._caller.begin(asked))

    async def answer(self, attempts: TaskAttempts) -> Answer | RowError:
        """Gets the answer at the end of a conversation: of one that is stored and not at its end,
        or of a new one."""
        models = self._caller.connections[attempts.connection.stage.index]
        attempts.position = await self._found(attempts, models)
        attempts.connection = models[attempts.position]
        await self._count_earlier(attempts)
        return await self._caller.in_turn(attempts, self._ask_model)

    async def _count_earlier(self, attempts: TaskAttempts) -> None:
        """Counts the turns and the calls of tools that the row made in earlier invocations."""
        active = attempts.active
        own = attempts.fingerprint
        if self._budget.turns is None and self._budget.tool_calls is None:
            return
        index, (_, calls) = attempts.stage.index, self._stored.get(own, ((), ()))
        stages = active.settled.union([index] if own in self._stored else ()) - active.counted
        active.counted |= stages | {index}
        for stage, turns, made in await turns_used(self._database, active.new.key, own):
            active.turns += turns * (stage in stages)
            active.tool_calls += made * (stage in stages)
        active.tool_calls = max(active.tool_calls, sum(call.state != "refused" for call in calls))

    async def _found(self, attempts: TaskAttempts, models: Sequence[ModelConnection]) -> int:
        """Looks for the stored conversation that goes on: the position of its model."""
        own = attempts.fingerprint
        index = attempts.connection.stage.index
        turns = await newest_turns(self._database, own, self._workflow)
        if not turns:
            return attempts.position
        first = turns[0]
        last = turns[-1]
        attempts.turns = last.number
        active = attempts.active
        stage = attempts.stage
        old = stage.max_age is not None and first.at < self._clocks.wall() - stage.max_age
        again = first.at < active.takes_since(stage.index, self._since)
        if again or last.ended == "lost" or (old and last.ended == "done"):
            return attempts.position
        calls = await calls_since(self._database, own, self._workflow, first.number)
        forgotten = False
        for call in calls:
            found = self.pool.check(index, call.name, call.arguments)
            if call.state == "refused" or isinstance(found, str):
                continue
            forgotten |= (
                last.ended != "done"
                and self._choice != "skip"
                and self.pool.remembers(index, found[0])
            )
            if self._changes(attempts.connection.stage, found[0]):
                attempts.changed = shown([ToolCall("", call.name, call.arguments)])
        lanes = [connection.model.lane for connection in models]
        # of which a part was dropped
        broken = last.ended == "failed" or first.number != first.conversation
        if broken or old or forgotten or first.model not in lanes[attempts.position :]:
            return attempts.position
        self._stored[own] = turns, calls
        return lanes.index(first.model, attempts.position)

    def _changes(self, stage: PlannedStage, tool: ToolSpec) -> bool:
        """Whether a call, or the agent it asks, changes something, so that it is made again only
        by who is asked."""
        if tool.kind == "agent":
            child = self._children[f"{stage.name}/{tool.source}"]
        else:
            child = None
        if child is not None and child.agent_spec is not None:
            own = child.agent_spec.tools
        else:
            own = ()
        return self.pool.changes(stage.index, tool) or any(
            self._changes(child, one) for one in own if child
        )

    async def _ask_model(self, attempts: TaskAttempts, request: Request) -> Answer | RowError:
        """One model's answer, at the end of a conversation."""
        opening = request_for_model(
            attempts.connection.model, request, attempts.position, attempts.replica
        )
        known = self._stored.pop(attempts.fingerprint, None)
        if known is None and attempts.changed:
            if self._choice != "repeat":
                what = (
                    f"{attempts.changed} was called in a conversation without an answer; a "
                    "new one may call it again"
                )
                return self._undecided(attempts, what, "--repeat-calls begins a new one")
            attempts.changed = ""
        answer: Answer | RowError | None = None
        for tried in range(MOST_ANEW + 1):
            talk = TaskConversation(attempts, opening, attempts.turns + 1)
            if known is not None:
                talk.first = known[0][0].number
                talk.replay(*known)
                known = None
            self._open[attempts.fingerprint] = talk
            try:
                answer = await self._to_the_end(talk)
            except BeginAnew as lost:
                answer = self._lost(talk, lost.error, tried)
            except (RowDeadlineExceeded, RowBudgetExceeded, CapReached, BlockedByBatches):
                await self.durable()
                raise
            finally:
                del self._open[attempts.fingerprint]
                await self.pool.end(attempts.fingerprint)
            if answer is not None:
                break
        assert answer is not None
        if isinstance(answer, RowError):  # an equal task may be next, and goes by what is stored
            await self.durable()
        return answer

    async def run_child(
        self, tool: ToolSpec, arguments: Mapping[str, JSONValue], scope: CallScope, intent: Intent
    ) -> ToolOutcome:
        """An agent's answer to what another one asks it, for the row that asks. What it changes,
        its own calls change, which begin the `intent`, too; all else goes on from the store."""
        talk = self._open[scope.fingerprint]
        child = self._children[f"{talk.stage.name}/{tool.source}"]
        active = talk.attempts.active
        prepared = self._preparer.prepare(
            child, self._preparer.view(dict(arguments)), active.new.row.id
        )
        if isinstance(prepared, RowError):
            return ToolOutcome(prepared.message, error=True)
        refusal = prepared.refusal
        if refusal is not None:
            return ToolOutcome(refusal.message, error=True)
        own = called_agent(scope.fingerprint, scope.turn, scope.call, prepared.fingerprint)
        if isinstance(intent, StoredIntent):
            self.intents[own] = intent
        if active.notes is not None:
            active.notes.callers[own] = (scope.fingerprint, scope.turn, scope.call)
        try:
            attempts = self._caller.begin(TaskRequest(active, child, prepared, own))
            attempts.of = talk.attempts.stage
            answer = await self.answer(attempts)
        except (RunStopped, BlockedByBatches) as stopped:
            talk.raised = stopped
            # with no result
            return ToolOutcome("", lost=RowError(ErrorType.PROVIDER_ERROR, "the run stops"))
        finally:
            self.intents.pop(own, None)
        if isinstance(answer, Answer):
            return ToolOutcome(
                answer.value if isinstance(answer.value, str) else answer.result.value
            )
        ends_row = answer.type in (ErrorType.BUDGET_EXCEEDED, ErrorType.TOOL_OUTCOME_UNKNOWN)
        lost = answer if ends_row or active.deadline.over else None
        return ToolOutcome(f"{tool.source} gave no answer: {answer.message}", error=True, lost=lost)

    async def recorded(
        self, run: int, scope: CallScope
    ) -> tuple[list[RecordedCall], list[ToolCall]]:
        """The calls that a run recorded for the task whose conversation this is, and those before
        this call in it."""
        talk = self._open[scope.fingerprint]
        of, new, (*earlier, now) = talk.attempts, talk.attempts.active.new, talk.turns
        where = {
            "stage": of.stage.name,
            "replica": of.replica,
            "agent": talk.stage.name if of.of else "",
        }
        calls = await recorded_calls(
            self._database, run=run, id=new.row.id, occurrence=new.occurrence, **where
        )
        return calls, [
            *(call for turn in earlier for call in turn.reply.calls),
            *now.reply.calls[: scope.call],
        ]

    def _lost(self, talk: TaskConversation, error: RowError, tried: int) -> RowError | None:
        """Why a conversation whose server lost its session ends; None: it begins anew."""
        attempts = talk.attempts
        if attempts.changed and (talk.changed or self._choice != "repeat"):
            what = (
                f"{error.message}; {attempts.changed} was called before, and a new "
                "conversation may call it again"
            )
            return self._undecided(
                attempts, what, "--repeat-calls begins one, --skip-calls goes on with a new session"
            )
        self._ledger.batch.turn_ends.append(("lost", attempts.fingerprint, talk.turns[-1].number))
        attempts.changed = ""
        return error if tried == MOST_ANEW else None

    def _undecided(self, attempts: TaskAttempts, what: str, options: str) -> RowError:
        command = f"agac retry {self._run} --row {shlex.quote(str(attempts.active.new.row.id))}"
        if is_job(self._workflow):
            command = f"agac resume {job_alias(self._run)}"
        else:
            command = command
        return RowError(ErrorType.TOOL_OUTCOME_UNKNOWN, f"{what}. {command} {options}")

    async def _to_the_end(self, talk: TaskConversation) -> Answer | RowError:
        """Takes turns until the conversation ends, or cannot go on for now."""
        end = talk.end
        self._note_end(talk, end)  # where a batch brought it
        while end is None:
            last = talk.turns[-1] if talk.turns else None
            if last is not None and last.results is None:
                end = await self._use_tools(talk, last)
            if end is None:
                end = await self._ask(talk)
        if isinstance(end, RowError):
            return end
        attempts = talk.attempts
        reply = talk.turns[-1].reply
        how = how_answered("repair" if talk.was_asked_again else "ask", attempts.position, end)
        endpoint = talk.connection.endpoint(reply)
        now = self._clocks.wall()
        sources = sources_of_turns(turn.reply for turn in talk.turns)
        return Answer(
            Result(attempts.fingerprint, end.text, endpoint, now, how=how, sources=sources),
            end.value,
        )

    async def _ask(self, talk: TaskConversation) -> End | None:
        """One more turn; the error with which it cannot be had leaves the conversation open."""
        if not talk.durable:
            await self.durable()
        attempts = talk.attempts
        first = not talk.turns
        most = self._budget.turns
        if most is not None:
            left = most - max(attempts.active.turns, len(talk.turns))
            used = f"row_budget: the {most} turns of the row"
            if left <= 0:
                return RowError(
                    ErrorType.BUDGET_EXCEEDED, f"{used} are used up; raise row_budget.turns"
                )
            talk.bound = talk.bound or (used if left == 1 else "")
        attempts.active.turns += 1
        if attempts.in_batch:
            raise NextTurn(talk.next_request(), attempts.position, len(talk.turns))
        attempts.request = talk.next_request()
        attempts.ambiguous = 0
        purpose = "ask" if not attempts.position else "fallback"
        if first or talk.turns[-1].said in ("", ASK_FORM):
            next_turn = "turn"
        else:
            next_turn = "repair"
        if attempts.of:
            attempts.purpose = "child"
        else:
            attempts.purpose = purpose if first else next_turn
        reply, judged = await self._caller.reply(attempts, talk.judge)
        if isinstance(reply, Fault):
            return judged
        call = attempts.last
        attempts.turns = attempts.turns + 1
        talk.durable = False
        assert call is not None
        end = talk.take(Turn(attempts.turns, reply), judged)
        batch, stage, child = (
            self._ledger.batch,
            attempts.stage,
            talk.stage.name if attempts.of else "",
        )
        batch.turns.append(
            AgentTurn(
                attempts.active.new, stage.index, attempts.fingerprint, attempts.turns, talk.first,
                talk.connection.model.lane, child, call.number, self._clocks.wall(),
                call.status or 0, stored_reply(call.body) or "", how_ended(end),
            )
        )  # fmt: skip
        batch.tally((stage.name, TURN, FIRST if first else "", child)).tasks += 1
        return end

    async def _use_tools(self, talk: TaskConversation, turn: Turn) -> End | None:
        """Makes the calls of the last turn, and stores what they give."""
        self._stop_signal.check()
        places = asyncio.Semaphore(MOST_AT_ONCE)
        works = [self._used(talk, turn, place, places) for place in range(len(turn.reply.calls))]
        durable = [] if talk.durable else [self.durable()]
        together = asyncio.gather(*works, *durable, return_exceptions=True)
        found = await talk.attempts.active.deadline.wait(together)
        talk.durable = True
        for one in (talk.raised, *found):
            if isinstance(one, BaseException):
                raise one
        errors = [one for one in found if isinstance(one, RowError)]
        if errors:
            return errors[0]
        end = talk.take_results(turn, [one for one in found if isinstance(one, ToolResult)])
        self._note_end(talk, end)
        return end

    def _note_end(self, talk: TaskConversation, end: End | None) -> None:
        """Stores that a conversation ended with its last turn, which is stored already, if it
        did."""
        how = how_ended(end)
        if how is not None:
            self._ledger.batch.turn_ends.append(
                (how, talk.attempts.fingerprint, talk.turns[-1].number)
            )

    async def _used(
        self, talk: TaskConversation, turn: Turn, place: int, places: asyncio.Semaphore
    ) -> ToolResult | RowError:
        """Returns what a call gave, or gave before; or the error with which its row waits or
        fails. Raises BeginAnew."""
        call = turn.reply.calls[place]
        old = talk.stored.get((turn.number, place))
        if old is not None and old.result is not None:
            return told(call, old.result, old.state)
        async with places:
            allowed = self._allowed(talk, turn, place, old)
            if not isinstance(allowed, AllowedCall):
                return allowed
            made = await self._make_call(talk, turn, place, allowed)
        outcome = made.outcome
        # its intent stays
        if outcome.unknown and (made.intent.is_begun or allowed.begun_before):
            if allowed.once:
                return self._unknown(talk, call, outcome.text)
            return RowError(
                ErrorType.TIMEOUT, f"{outcome.text}; the next run makes the same call again"
            )
        if outcome.lost is not None:
            return self._lost_call(talk, turn, place, made, outcome.lost)
        return await self._keep_outcome(talk, turn, place, made)

    def _allowed(
        self, talk: TaskConversation, turn: Turn, place: int, old: StoredCall | None
    ) -> AllowedCall | ToolResult | RowError:
        """Returns a call that may be made, and counts it; else what the model is told in its place,
        or the error with which its row waits. Raises BeginAnew."""
        call = turn.reply.calls[place]
        index = talk.stage.index
        checked = talk.refused(place) or self.pool.check(index, call.name, call.arguments)
        if isinstance(checked, str):
            return self.keep(talk, turn, place, "refused", checked)
        open_call = old if old is not None and old.state != "refused" else None
        if open_call is None:  # else it was counted when it was begun
            active = talk.attempts.active
            most = self._budget.tool_calls
            if most is not None and active.tool_calls >= most:
                talk.bound = f"row_budget: the {most} calls of tools of the row"
                return self.keep(talk, turn, place, "refused", NOT_MADE)
            active.tool_calls += 1
        tool, arguments = checked
        once = not self.pool.is_repeatable(index, tool)
        changes = self._changes(talk.stage, tool)
        if open_call is not None and (once or open_call.state == "lost"):
            decided = self._decided(talk, turn, place, lost=open_call.state == "lost")
            if decided is not None:
                return decided
        begun_before = changes and open_call is not None
        return AllowedCall(tool, arguments, once, changes, begun_before)

    async def _make_call(
        self, talk: TaskConversation, turn: Turn, place: int, allowed: AllowedCall
    ) -> MadeCall:
        """Calls a tool. Raises RunStopped if the tool cannot be had."""
        intent = StoredIntent(self, talk, turn, place) if allowed.changes else NO_INTENT
        at = self._clocks.wall()
        begun = self._clocks.monotonic()
        scope = CallScope(talk.stage.index, talk.attempts.fingerprint, turn.number, place)
        try:
            outcome = await self.pool.call(allowed.tool, allowed.arguments, scope, intent)
        except (AgacError, RunStopped) as error:
            # calls of models that were sent are paid for
            if isinstance(error, AgacError):
                self._stop_signal.lose_input(error)
            raise RunStopped from None
        finally:
            intent.close()
        return MadeCall(outcome, intent, at, self._clocks.monotonic() - begun)

    def _lost_call(
        self, talk: TaskConversation, turn: Turn, place: int, made: MadeCall, error: RowError
    ) -> RowError:
        """Returns the error of a call that gave nothing. Raises BeginAnew if its server lost the
        session."""
        if not made.outcome.made:
            made.intent.withdraw()
        if made.outcome.anew:
            self.keep(talk, turn, place, "lost", None, at=made.at, took=made.took)
            raise BeginAnew(error)
        return error

    async def _keep_outcome(
        self, talk: TaskConversation, turn: Turn, place: int, made: MadeCall
    ) -> ToolResult:
        """Stores and counts what a call gave, and returns what the model is told."""
        outcome = made.outcome
        if not outcome.how:  # it was made, and not answered by a stub or an equal call
            name = turn.reply.calls[place].name
            failure = self._clean(outcome.text) if outcome.error else None
            self._stops.tool_called(talk.stage.name, name, failure)
        state = "error" if outcome.error else "done"
        result = self.keep(
            talk, turn, place, state, outcome.text, outcome.how, at=made.at, took=made.took
        )
        if made.intent.is_begun:  # a kill that comes now would leave a question
            await self.durable()
        return result

    def _decided(
        self, talk: TaskConversation, turn: Turn, place: int, *, lost: bool
    ) -> ToolResult | RowError | None:
        """What becomes of a call that was begun and has no end; None: it is made again. `lost`:
        with its session, of which a new one knows nothing. Raises BeginAnew."""
        call = turn.reply.calls[place]
        if self._choice == "skip":
            return self.keep(talk, turn, place, "unknown", NOT_KNOWN)
        if lost:
            raise BeginAnew(
                RowError(ErrorType.TOOL_SERVER_ERROR, f"the server of {call.name} lost its session")
            )
        if self._choice == "ask":
            return self._unknown(talk, call, "what came of it is not known")
        return None

    def _unknown(self, talk: TaskConversation, call: ToolCall, why: str) -> RowError:
        what = (
            f"{shown([call])} was begun, and {why}, so it is not called again without being asked"
        )
        options = (
            "--repeat-calls calls it again, --skip-calls tells the model that nobody knows "
            "whether it happened"
        )
        return self._undecided(talk.attempts, what, options)

    def keep(
        self,
        talk: TaskConversation,
        turn: Turn,
        place: int,
        state: str,
        text: str | None,
        how: str = "",
        *,
        at: float | None = None,
        took: float | None = None,
    ) -> ToolResult:
        """Stores a call of a tool in a state, with what the model is told of it."""
        call = turn.reply.calls[place]
        stage = talk.attempts.stage
        batch = self._ledger.batch
        text = None if text is None else storable(self._clean(text))
        active = talk.attempts.active
        at = self._clocks.wall() if at is None else at
        own = talk.attempts.fingerprint, turn.number, place
        record = ToolCallRecord(
            active.new,
            stage.index,
            *own,
            call.id,
            call.name,
            call.arguments,
            state,
            text,
            how,
            at,
            took,
        )
        batch.tool_calls.append(record)
        if active.notes is not None:
            active.notes.tools[own] = record
        if text is not None:
            # a model may say any
            if call.name in {tool.name for tool in talk.spec.tools}:
                name = call.name
            else:
                name = ""
            batch.tally(
                (stage.name, TOOL, how or ("" if state == "done" else state), name)
            ).tasks += 1
        return told(call, text or "", state)
