"""Conversations: a stage with tools asks its model, calls the tools that the model asks for, sends
their results, and so on until it answers. `TaskConversation` decides the next request; `Agents`
sends, calls and stores. A reply is durable before the next request is made of it, and before a call
that must not be repeated. Such a call is stored as intended first, once nothing is left to wait for
but the call itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from agac.core.errors import ErrorType, RowError
from agac.core.keys import called_agent
from agac.core.types import Fault, JSONValue, Request, ToolCall, ToolResult
from agac.engine.ask.agent_calls import BeginAnew, StoredIntent, ToolCalls
from agac.engine.ask.answers import Answer, TaskRequest
from agac.engine.ask.attempts import CapReached, NextTurn, TaskAttempts
from agac.engine.ask.caller import Caller
from agac.engine.ask.connections import ModelConnection, request_for_model
from agac.engine.ask.limits import BlockedByBatches, RowBudgetExceeded
from agac.engine.ask.retry_policy import RowDeadlineExceeded
from agac.engine.ask.task_conversation import (
    ASK_FORM,
    End,
    TaskConversation,
    Turn,
    how_ended,
    shown,
)
from agac.engine.context import InvocationContext
from agac.engine.settle import how_answered, stored_reply
from agac.engine.stop_rules import RunStopped
from agac.plan.render import Preparer
from agac.providers.citations import sources_of_turns
from agac.spec.rules import RowBudget
from agac.spec.tools import ToolSpec
from agac.spec.workflow import family
from agac.store.conversations import (
    RecordedCall,
    StoredCall,
    StoredTurn,
    calls_since,
    newest_turns,
    recorded_calls,
    turns_used,
)
from agac.store.records import FIRST, TURN, AgentTurn, Result
from agac.store.writer import ToolCache
from agac.tools.pool import ToolPool, open_tools
from agac.tools.tool_context import CallScope, Elsewhere, ToolContext, ToolOutcome
from agac.tools.tool_functions import Intent

# where results of tools are noted, a file a workflow (`tools_mode: record`)
RECORDED = Path("tools") / "recorded"

MOST_AT_ONCE = 8
"""How many calls of one turn are made at the same time."""

MOST_ANEW = 2
"""How often a conversation begins again after its server lost the session."""


@asynccontextmanager
async def open_agents(
    context: InvocationContext, caller: Caller, since: float, elsewhere: Elsewhere | None = None
) -> AsyncIterator[Agents | None]:
    """Opens the tools of a plan's stages, and what asks those stages by a caller. None: no stage
    has tools. Earlier conversations count that began at `since` (seconds since 1970) or later.
    Raises UsageError if a tool cannot be opened."""
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
        web=work.tools.web,
        functions=work.tools.functions,
        run_child=agents.run_child,
        sleep=context.stop_signal.sleep,
        go_on=context.stop_signal.check,
        stops=RunStopped,
        later=ToolCache(database, context.ledger, clock, clock() if work.tools.refresh else 0.0),
        recorded=agents.recorded,
        elsewhere=elsewhere,
        record=(work.hooks.answers and work.hooks.answers.calls)
        or work.root / RECORDED / f"{context.plan.workflow}.jsonl",
    )
    async with agents.at_work(open_tools(stages, tools)):
        yield agents


class Agents:
    """Asks the models of stages with tools."""

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
        self.calls = ToolCalls(context, self._children)
        self._preparer = Preparer(tuple(self._children.values()), plan.vars, context.places.run)
        self._database = context.places.database
        self._workflow = context.plan.workflow
        self._run = context.places.run
        self._ledger = context.ledger
        self._stop_signal = context.stop_signal
        self._clocks = context.work.clocks
        self._stored: dict[bytes, tuple[list[StoredTurn], list[StoredCall]]] = {}
        self._open: dict[bytes, TaskConversation] = {}
        self.durable = context.ledger.durable

    @asynccontextmanager
    async def at_work(self, tools: AbstractAsyncContextManager[ToolPool]) -> AsyncIterator[None]:
        """Opens the tools, some of which ask these agents."""
        async with tools as self.calls.pool:
            yield

    def ask(self, asked: TaskRequest) -> Awaitable[Answer | RowError]:
        """Asks a stage with tools. See AnswerSource."""
        return self.answer(self._caller.begin(asked))

    async def answer(self, attempts: TaskAttempts) -> Answer | RowError:
        """Gets the answer at the end of a conversation: of a stored one that has no end yet, or of
        a new one."""
        models = self._caller.connections[attempts.connection.stage.index]
        attempts.position = await self._find_stored(attempts, models)
        attempts.connection = models[attempts.position]
        await self._count_earlier(attempts)
        return await self._caller.ask_in_turn(attempts, self._ask_model)

    async def _count_earlier(self, attempts: TaskAttempts) -> None:
        """Counts the turns and the calls of tools that the row made in earlier invocations."""
        if self._budget.turns is None and self._budget.tool_calls is None:
            return
        active = attempts.asked.row
        used = active.used
        fingerprint = attempts.asked.fingerprint
        index = attempts.stage.index
        _, calls = self._stored.get(fingerprint, ((), ()))
        stages = set(active.settled)
        if fingerprint in self._stored:
            stages.add(index)
        stages -= used.counted
        used.counted |= stages | {index}
        for stage, turns, tool_calls in await turns_used(
            self._database, active.new.key, fingerprint
        ):
            if stage in stages:
                used.turns += turns
                used.tool_calls += tool_calls
        made = sum(call.state != "refused" for call in calls)
        used.tool_calls = max(used.tool_calls, made)

    async def _find_stored(self, attempts: TaskAttempts, models: Sequence[ModelConnection]) -> int:
        """Looks for a stored conversation that can be continued, and remembers it. Returns the
        position of its model, or that of the model to ask first."""
        fingerprint = attempts.asked.fingerprint
        turns = await newest_turns(self._database, fingerprint, self._workflow)
        if not turns:
            return attempts.position
        first = turns[0]
        last = turns[-1]
        attempts.talk.turns = last.number
        is_old = self._is_too_old(attempts, first)
        if last.ended == "lost" or (is_old and last.ended == "done"):
            return attempts.position
        if first.at < attempts.asked.row.takes_since(attempts.stage.index, self._since):
            return attempts.position
        calls = await calls_since(self._database, fingerprint, self._workflow, first.number)
        lost_memory = self._note_changes(attempts, calls) and last.ended != "done"
        lanes = [connection.model.lane for connection in models]
        # a part of it was dropped
        is_broken = last.ended == "failed" or first.number != first.conversation
        if is_broken or is_old or lost_memory or first.model not in lanes[attempts.position :]:
            return attempts.position
        self._stored[fingerprint] = turns, calls
        return lanes.index(first.model, attempts.position)

    def _is_too_old(self, attempts: TaskAttempts, first: StoredTurn) -> bool:
        """True if a conversation began before the stage's `max_age`."""
        max_age = attempts.stage.settings.max_age
        return max_age is not None and first.at < self._clocks.wall() - max_age

    def _note_changes(self, attempts: TaskAttempts, calls: Iterable[StoredCall]) -> bool:
        """Notes the last of these calls that changed something. True if one was made by a tool
        with a memory, which is lost with the process."""
        stage = attempts.connection.stage
        lost_memory = False
        for call in calls:
            checked = self.calls.pool.check(stage.index, call.name, call.arguments)
            if call.state == "refused" or isinstance(checked, str):
                continue
            tool, _ = checked
            if self.calls.choice != "skip" and self.calls.pool.remembers(stage.index, tool):
                lost_memory = True
            if self.calls.changes(stage, tool):
                attempts.talk.changed = shown([ToolCall("", call.name, call.arguments)])
        return lost_memory

    async def _ask_model(self, attempts: TaskAttempts, request: Request) -> Answer | RowError:
        """Gets one model's answer, at the end of a conversation."""
        opening = request_for_model(
            attempts.connection.model, request, attempts.position, attempts.asked.replica
        )
        stored = self._stored.pop(attempts.asked.fingerprint, None)
        if stored is None and attempts.talk.changed:
            if self.calls.choice != "repeat":
                what = (
                    f"{attempts.talk.changed} was called in a conversation without an answer; a "
                    "new one may call it again"
                )
                return self.calls.undecided(attempts, what, "--repeat-calls begins a new one")
            attempts.talk.changed = ""
        answer: Answer | RowError | None = None
        for tried in range(MOST_ANEW + 1):
            talk = TaskConversation(attempts, opening, attempts.talk.turns + 1)
            if stored is not None:
                turns, calls = stored
                talk.first = turns[0].number
                talk.replay(turns, calls)
                stored = None
            answer = await self._talk(talk, tried)
            if answer is not None:
                break
        assert answer is not None
        if isinstance(answer, RowError):  # an equal task may be next, and goes by what is stored
            await self.durable()
        return answer

    async def _talk(self, talk: TaskConversation, tried: int) -> Answer | RowError | None:
        """Leads a conversation to its end. None: its server lost the session, and it begins
        again."""
        fingerprint = talk.attempts.asked.fingerprint
        self._open[fingerprint] = talk
        try:
            return await self._to_the_end(talk)
        except BeginAnew as lost:
            return self._lost(talk, lost.error, tried)
        except (RowDeadlineExceeded, RowBudgetExceeded, CapReached, BlockedByBatches):
            await self.durable()
            raise
        finally:
            del self._open[fingerprint]
            await self.calls.pool.end(fingerprint)

    async def run_child(
        self, tool: ToolSpec, arguments: Mapping[str, JSONValue], scope: CallScope, intent: Intent
    ) -> ToolOutcome:
        """Gets an agent's answer to what another one asks it, for the row that asks. What it
        changes, its own calls change, which begin the `intent` too; all else continues from the
        store."""
        talk = self._open[scope.fingerprint]
        child = self._children[f"{talk.stage.name}/{tool.source}"]
        active = talk.attempts.asked.row
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
            self.calls.intents[own] = intent
        if active.notes is not None:
            active.notes.callers[own] = (scope.fingerprint, scope.turn, scope.call)
        try:
            attempts = self._caller.begin(TaskRequest(active, child, prepared, own))
            attempts.talk.of = talk.attempts.stage
            answer = await self.answer(attempts)
        except (RunStopped, BlockedByBatches) as stopped:
            talk.raised = stopped
            # with no result
            return ToolOutcome("", lost=RowError(ErrorType.PROVIDER_ERROR, "the run stops"))
        finally:
            self.calls.intents.pop(own, None)
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
        """Returns the calls that a run recorded for the task whose conversation this is, and those
        before this call in it."""
        talk = self._open[scope.fingerprint]
        attempts = talk.attempts
        new = attempts.asked.row.new
        recorded = await recorded_calls(
            self._database,
            run=run,
            id=new.row.id,
            occurrence=new.occurrence,
            stage=attempts.stage.name,
            replica=attempts.asked.replica,
            agent=talk.stage.name if attempts.talk.of else "",
        )
        *earlier, current = talk.turns
        before = [call for turn in earlier for call in turn.reply.calls]
        return recorded, [*before, *current.reply.calls[: scope.call]]

    def _lost(self, talk: TaskConversation, error: RowError, tried: int) -> RowError | None:
        """Returns the error for a conversation whose server lost its session, or None to begin it
        again."""
        attempts = talk.attempts
        if attempts.talk.changed and (talk.changed or self.calls.choice != "repeat"):
            what = (
                f"{error.message}; {attempts.talk.changed} was called before, and a new "
                "conversation may call it again"
            )
            return self.calls.undecided(
                attempts, what, "--repeat-calls begins one, --skip-calls goes on with a new session"
            )
        self._ledger.batch.calls.turn_ends.append(
            ("lost", attempts.asked.fingerprint, talk.turns[-1].number)
        )
        attempts.talk.changed = ""
        return error if tried == MOST_ANEW else None

    async def _to_the_end(self, talk: TaskConversation) -> Answer | RowError:
        """Takes turns until the conversation ends, or cannot continue for now."""
        end = talk.end
        self._note_end(talk, end)  # where a batch brought it
        while end is None:
            last = talk.turns[-1] if talk.turns else None
            if last is not None and last.results is None:
                end = await self._use_tools(talk, last)
            if end is None:
                end = await self._take_turn(talk)
        if isinstance(end, RowError):
            return end
        attempts = talk.attempts
        reply = talk.turns[-1].reply
        how = how_answered("repair" if talk.was_asked_again else "ask", attempts.position, end)
        endpoint = talk.connection.endpoint(reply)
        now = self._clocks.wall()
        sources = sources_of_turns(turn.reply for turn in talk.turns)
        return Answer(
            Result(attempts.asked.fingerprint, end.text, endpoint, now, how=how, sources=sources),
            end.value,
        )

    async def _take_turn(self, talk: TaskConversation) -> End | None:
        """Asks the model once more. An error that keeps it from answering leaves the conversation
        open."""
        if not talk.durable:
            await self.durable()
        used_up = self._count_turn(talk)
        if used_up is not None:
            return used_up
        attempts = talk.attempts
        if attempts.talk.in_batch:
            raise NextTurn(talk.next_request(), attempts.position, len(talk.turns))
        attempts.request = talk.next_request()
        attempts.ambiguous = 0
        attempts.purpose = _purpose_of_turn(talk)
        reply, worth = await self._caller.send(attempts, talk.judge)
        if isinstance(reply, Fault):
            return worth
        attempts.talk.turns += 1
        talk.durable = False
        end = talk.take(Turn(attempts.talk.turns, reply), worth)
        self._keep_turn(talk, end)
        return end

    def _count_turn(self, talk: TaskConversation) -> RowError | None:
        """Counts one more turn of the row; the error of a row that has none left."""
        most = self._budget.turns
        active = talk.attempts.asked.row
        if most is not None:
            left = most - max(active.used.turns, len(talk.turns))
            used = f"row_budget: the {most} turns of the row"
            if left <= 0:
                message = f"{used} are used up; raise row_budget.turns"
                return RowError(ErrorType.BUDGET_EXCEEDED, message)
            if left == 1 and not talk.bound:
                talk.bound = used
        active.used.turns += 1
        return None

    def _keep_turn(self, talk: TaskConversation, end: End | None) -> None:
        """Stores and counts the last turn of a conversation."""
        attempts = talk.attempts
        stage = attempts.stage
        call = attempts.last
        assert call is not None
        child = talk.stage.name if attempts.talk.of else ""
        turn = AgentTurn(
            new=attempts.asked.row.new,
            stage=stage.index,
            fingerprint=attempts.asked.fingerprint,
            number=attempts.talk.turns,
            conversation=talk.first,
            model=talk.connection.model.lane,
            agent=child,
            attempt=call.attempt.number,
            at=self._clocks.wall(),
            status=call.status or 0,
            reply=stored_reply(call.body or b""),
            ended=how_ended(end),
        )
        batch = self._ledger.batch
        batch.calls.turns.append(turn)
        is_first = len(talk.turns) == 1
        batch.tally((stage.name, TURN, FIRST if is_first else "", child)).tasks += 1

    async def _use_tools(self, talk: TaskConversation, turn: Turn) -> End | None:
        """Makes the calls of the last turn, and stores what they give."""
        self._stop_signal.check()
        places = asyncio.Semaphore(MOST_AT_ONCE)
        works = [
            self.calls.used(talk, turn, place, places) for place in range(len(turn.reply.calls))
        ]
        durable = [] if talk.durable else [self.durable()]
        together = asyncio.gather(*works, *durable, return_exceptions=True)
        found = await talk.attempts.asked.row.deadline.wait(together)
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
            self._ledger.batch.calls.turn_ends.append(
                (how, talk.attempts.asked.fingerprint, talk.turns[-1].number)
            )


def _purpose_of_turn(talk: TaskConversation) -> str:
    """Says why the next request of a conversation is made, as its call is recorded."""
    attempts = talk.attempts
    if attempts.talk.of:
        return "child"
    if not talk.turns:
        return "fallback" if attempts.position else "ask"
    return "turn" if talk.turns[-1].said in ("", ASK_FORM) else "repair"
