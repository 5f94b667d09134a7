"""The calls of tools that conversations ask for: which may be made, and what is stored of them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agac.core.errors import AgacError, ErrorType, RowError, storable
from agac.core.keys import is_job, job_alias
from agac.core.types import JSONValue, ToolCall, ToolResult
from agac.engine.ask.attempts import TaskAttempts
from agac.engine.ask.task_conversation import TaskConversation, Turn, result_for, shown
from agac.engine.context import InvocationContext
from agac.engine.stop_rules import RunStopped
from agac.plan.stage import PlannedStage
from agac.spec.rules import RowBudget
from agac.spec.tools import ToolSpec
from agac.store.conversations import StoredCall
from agac.store.records import TOOL, ToolCallRecord
from agac.tools.pool import ToolPool
from agac.tools.tool_context import CallScope, ToolOutcome
from agac.tools.tool_functions import NO_INTENT, Intent, ToolFailed

NOT_KNOWN = "It is not known whether this call was carried out, and it was not made again."
"""The result given to the model for an unknown call under `--skip-calls`."""

NOT_MADE = "This call was not made: no more tools can be called. Answer with what is known."
"""The result given to the model when the row has used up its tool calls."""


@dataclass
class BeginAnew(Exception):
    """Raised when a server lost its session with its state: a new one knows nothing of what was
    said before."""

    error: RowError
    """The error of the call that met it."""


class StoredIntent(Intent):
    """An intent that is a line of the store: after a kill the outcome of the call is unknown."""

    is_kept = True

    def __init__(self, calls: ToolCalls, talk: TaskConversation, turn: Turn, place: int) -> None:
        self._calls = calls
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
        self._before = attempts.talk.changed
        attempts.talk.changed = shown([self._turn.reply.calls[self._place]])
        self._talk.changed = True
        above = self._calls.intents.get(attempts.asked.fingerprint)
        if above is not None:
            above.note()
        self._calls.keep(self._talk, self._turn, self._place, "intent", None)

    async def begin(self) -> None:
        """See Intent. Raises ToolFailed once it is closed."""
        if not self._is_closed:
            self._times += 1
            self.note()
            try:
                await self._calls.durable()
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
        self._calls.keep(
            self._talk, self._turn, self._place, "refused" if old is None else old.state, None
        )
        if attempts.talk.changed == shown([self._turn.reply.calls[self._place]]):
            attempts.talk.changed = self._before

    def close(self) -> None:
        """See Intent."""
        self._is_closed = True


class AllowedCall(NamedTuple):
    """A call of a tool that may be made."""

    tool: ToolSpec
    """The tool."""
    arguments: dict[str, JSONValue]
    """Its arguments."""
    once: bool
    """True if it must not be repeated."""
    changes: bool
    """True if it, or the agent that it asks, changes something."""
    begun_before: bool
    """True if it changes something, and an earlier invocation began it."""


class MadeCall(NamedTuple):
    """A call of a tool that ended."""

    outcome: ToolOutcome
    """Its outcome."""
    intent: Intent
    """The intent that was stored before it was made."""
    at: float
    """When it began, in seconds since 1970."""
    took: float
    """How many seconds it took."""


class ToolCalls:
    """Makes the calls of tools of all conversations, and stores what they give. `pool` calls the
    tools, while agents are at work; `intents` are those of calls of agents that are under way, by
    the conversation of the agent that is called."""

    def __init__(self, context: InvocationContext, children: Mapping[str, PlannedStage]) -> None:
        """`children` are the agents that are tools, by name."""
        work = context.work
        self.choice = work.retry.calls if work.retry else work.tools.unknown_calls
        self.intents: dict[bytes, StoredIntent] = {}
        self.durable = context.ledger.durable
        self.pool: ToolPool
        self._children = children
        self._budget = context.plan.rules.row or RowBudget()
        self._workflow = context.plan.workflow
        self._run = context.places.run
        self._ledger = context.ledger
        self._stop_signal = context.stop_signal
        self._clocks = work.clocks
        self._clean = work.redactor.clean
        self._stops = context.stops

    async def used(
        self, talk: TaskConversation, turn: Turn, place: int, places: asyncio.Semaphore
    ) -> ToolResult | RowError:
        """Returns the result of a call, which may be an earlier one; or the error with which its
        row waits or fails. Raises BeginAnew."""
        call = turn.reply.calls[place]
        old = talk.stored.get((turn.number, place))
        if old is not None and old.result is not None:
            return result_for(call, old.result, old.state)
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
        """Returns a call that may be made, and counts it; else the result for the model in its
        place, or the error with which its row waits. Raises BeginAnew."""
        call = turn.reply.calls[place]
        index = talk.stage.index
        checked = talk.refused(place) or self.pool.check(index, call.name, call.arguments)
        if isinstance(checked, str):
            return self.keep(talk, turn, place, "refused", checked)
        open_call = old if old is not None and old.state != "refused" else None
        if open_call is None:  # else it was counted when it was begun
            active = talk.attempts.asked.row
            most = self._budget.tool_calls
            if most is not None and active.used.tool_calls >= most:
                talk.bound = f"row_budget: the {most} calls of tools of the row"
                return self.keep(talk, turn, place, "refused", NOT_MADE)
            active.used.tool_calls += 1
        tool, arguments = checked
        once = not self.pool.is_repeatable(index, tool)
        changes = self.changes(talk.stage, tool)
        if open_call is not None and (once or open_call.state == "lost"):
            decided = self._decided(talk, turn, place, lost=open_call.state == "lost")
            if decided is not None:
                return decided
        begun_before = changes and open_call is not None
        return AllowedCall(tool, arguments, once, changes, begun_before)

    async def _make_call(
        self, talk: TaskConversation, turn: Turn, place: int, allowed: AllowedCall
    ) -> MadeCall:
        """Calls a tool. Raises RunStopped if the tool is not available."""
        intent = StoredIntent(self, talk, turn, place) if allowed.changes else NO_INTENT
        at = self._clocks.wall()
        begun = self._clocks.monotonic()
        scope = CallScope(talk.stage.index, talk.attempts.asked.fingerprint, turn.number, place)
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
        """Returns the error of a call without a result. Raises BeginAnew if its server lost the
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
        """Stores and counts the outcome of a call, and returns the result for the model."""
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
        """Returns the result or the error of a call that was begun and has no end; None: it is
        made again. `lost`: its session was lost. Raises BeginAnew."""
        call = turn.reply.calls[place]
        if self.choice == "skip":
            return self.keep(talk, turn, place, "unknown", NOT_KNOWN)
        if lost:
            raise BeginAnew(
                RowError(ErrorType.TOOL_SERVER_ERROR, f"the server of {call.name} lost its session")
            )
        if self.choice == "ask":
            return self._unknown(talk, call, "what came of it is not known")
        return None

    def _unknown(self, talk: TaskConversation, call: ToolCall, why: str) -> RowError:
        """Returns the error of a call whose outcome is unknown, and which must not be repeated."""
        what = (
            f"{shown([call])} was begun, and {why}, so it is not called again without being asked"
        )
        options = (
            "--repeat-calls calls it again, --skip-calls tells the model that nobody knows "
            "whether it happened"
        )
        return self.undecided(talk.attempts, what, options)

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
        """Stores a call of a tool in a state, with its result for the model, which it returns."""
        call = turn.reply.calls[place]
        stage = talk.attempts.stage
        batch = self._ledger.batch
        text = None if text is None else storable(self._clean(text))
        active = talk.attempts.asked.row
        fingerprint = talk.attempts.asked.fingerprint
        record = ToolCallRecord(
            new=active.new,
            stage=stage.index,
            fingerprint=fingerprint,
            turn=turn.number,
            place=place,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            state=state,
            result=text,
            how=how,
            started_at=self._clocks.wall() if at is None else at,
            duration=took,
        )
        batch.calls.tool_calls.append(record)
        if active.notes is not None:
            active.notes.tools[fingerprint, turn.number, place] = record
        if text is not None:
            # a model may ask for a tool of any name
            is_known = call.name in {tool.name for tool in talk.spec.tools}
            served = how or ("" if state == "done" else state)
            key = (stage.name, TOOL, served, call.name if is_known else "")
            batch.tally(key).tasks += 1
        return result_for(call, text or "", state)

    def changes(self, stage: PlannedStage, tool: ToolSpec) -> bool:
        """True if a call, or the agent that it asks, changes something, so that it is repeated only
        if the user says so."""
        if self.pool.changes(stage.index, tool):
            return True
        if tool.kind != "agent":
            return False
        child = self._children[f"{stage.name}/{tool.source}"]
        tools = child.agent_spec.tools if child.agent_spec is not None else ()
        return any(self.changes(child, used) for used in tools)

    def undecided(self, attempts: TaskAttempts, what: str, options: str) -> RowError:
        """Returns the error of a row about whose tool call a user decides."""
        command = f"agac retry {self._run} --row {shlex.quote(str(attempts.asked.row.new.row.id))}"
        if is_job(self._workflow):
            command = f"agac resume {job_alias(self._run)}"
        return RowError(ErrorType.TOOL_OUTCOME_UNKNOWN, f"{what}. {command} {options}")
