"""The conversation of a task with one model: what it is asked next, and how it ends. It can be made
again from the store: the opening messages, the replies as they came, the results of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from agac.core.errors import REPAIRED, ErrorType, RowError
from agac.core.types import (
    Fault,
    Finish,
    Message,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
)
from agac.engine.ask.attempts import TaskAttempts
from agac.engine.ask.connections import ModelConnection
from agac.engine.ask.validate import ValidReply, complaint
from agac.plan.stage import PlannedStage
from agac.spec.tools import AgentSpec
from agac.store.conversations import StoredCall, StoredTurn
from agac.store.history import reply_bytes
from agac.tools.tool_limits import cut

MAX_CALLS = 128
"""Tool calls of one reply that are made: as many as providers take tools, and far more than a model
has use for in one turn."""

MAX_REPETITIONS = 3
"""How many turns in a row that ask for the same, or fail alike, end a conversation."""

MAX_TURN_CHARS = 64_000
"""Characters in the results of a turn, if no tool's own `max_chars` is larger."""

ASK_FORM = "Give your answer now, in the form that was asked for, as JSON only."
"""Sent to the model under `structured_tool_policy: defer`, after it answered without the form."""

End = ValidReply | RowError
"""The end of a conversation."""


def how_ended(end: End | None) -> str | None:
    """Returns how a conversation ended, as the store keeps it with its last turn; None: it has not
    ended."""
    if end is None:
        return None
    if isinstance(end, ValidReply):
        return "done"
    return "failed"


@dataclass(slots=True)
class Turn:
    """A reply and its follow-up."""

    number: int
    """Its number among the turns of the task."""
    reply: Reply
    """The reply of the model."""
    results: list[ToolResult] | None = None
    """The results of its calls; None until the tools ran."""
    said: str = ""
    """The text that was sent back, if it called no tool."""


@dataclass(slots=True)
class TaskConversation:
    """A task's conversation with one model."""

    attempts: TaskAttempts
    """The attempts of the task."""
    request: Request
    """Its opening."""
    first: int
    """The number of its first turn."""
    turns: list[Turn] = field(default_factory=list)
    """Its turns so far."""
    repairs: int = 0
    """How many re-asks of the stage's `repair` are used up."""
    by_form: bool = False
    """True if an answer of the right form is asked for now, and no tools may be called."""
    bound: str = ""
    """The part of the row's budget that is used up, so that no tools are called any more."""
    durable: bool = True
    """True if its last turn is committed."""
    changed: bool = False
    """True if this invocation made a call that must not be repeated."""
    stored: dict[tuple[int, int], StoredCall] = field(default_factory=dict)
    """The stored calls of tools, by turn and place."""
    end: End | None = None
    """The end that stored turns came to."""
    raised: Exception | None = None
    """The exception that stops a child, and so this conversation."""

    @property
    def connection(self) -> ModelConnection:
        """The model that is asked."""
        return self.attempts.connection

    @property
    def stage(self) -> PlannedStage:
        """The stage whose tools these are."""
        return self.connection.stage

    @property
    def spec(self) -> AgentSpec:
        """The settings of the agent."""
        return self.stage.agent_spec or AgentSpec()

    @property
    def _without_schema(self) -> bool:
        """True if the form of the answer is not asked for yet."""
        return self.stage.defers_form and not self.by_form

    @property
    def _in_words(self) -> bool:
        """True if the form of the answer is described in instructions alone, the same in all of
        its requests."""
        return self.stage.says_schema_in_words(self.connection.model)

    @property
    def was_asked_again(self) -> bool:
        """True if an answer was quoted with what is wrong with it."""
        return any(turn.said not in ("", ASK_FORM) for turn in self.turns)

    @property
    def _is_last(self) -> bool:
        """True if its turns are used up: the model is asked once more, and may not call tools."""
        if self.bound:
            return True
        used = sum(turn.reply.goes_on for turn in self.turns)
        return used >= self.stage.settings.tooling.max_turns

    @property
    def _gives_tools(self) -> bool:
        """True if its policy allows tools at all."""
        return not (self.spec.structured == "no_tools" and self.stage.schema is not None)

    def refused(self, place: int) -> str | None:
        """Returns why a call of the last turn is not made, whatever it asks for. None: it may
        be."""
        if self.by_form or not self._gives_tools:
            return (
                "This call was not made: no tools are offered now. Give the answer in the "
                "form that was asked for."
            )
        if place >= MAX_CALLS:
            return (
                f"This call was not made: a reply may make {MAX_CALLS}. Ask for what is still "
                "needed in the next."
            )
        return None

    def next_request(self) -> Request:
        """Makes the next request to the model."""
        if self._is_last and self._without_schema:
            self.by_form = True
        messages: list[Message] = list(self.request.messages)
        for turn in self.turns:
            messages.append(turn.reply.message())
            if turn.results:
                messages.append(ToolMessage("tool", "", tuple(turn.results)))
            elif turn.said:
                messages.append(Message("user", turn.said))
        may_send_tools = (
            not self.by_form or self._in_words or self.connection.model.provider.tools_with_schema
        )
        return replace(
            self.request,
            messages=tuple(messages),
            schema=None if self._without_schema else self.request.schema,
            schema_in_words=self._in_words,
            tools=self.connection.tools if may_send_tools and self._gives_tools else (),
            tool_choice="none" if self._is_last or self.by_form else "auto",
            parallel_tools=self.spec.parallel,
        )

    def judge(self, reply: Reply) -> End | None:
        """Returns the result that a reply is, or why it is none; None: the conversation
        continues."""
        if reply.goes_on:
            return self._used_up() if self._is_last else self._repeated(reply)
        if reply.finish is Finish.TOOLS:
            whole = reply._replace(finish=Finish.STOP)
        else:
            whole = reply
        enforced = self.connection.enforced and not (self._without_schema or self._in_words)
        worth = self.connection.checker.check(
            whole, enforced=enforced, view=self.attempts.asked.row.view
        )
        may_go_on = self._without_schema and bool(reply.text.strip()) and not reply.calls
        if may_go_on and isinstance(worth, RowError) and worth.type in _OF_FORM:
            return None
        return worth

    def _used_up(self) -> RowError:
        """Returns the error of a model that asks for tools when it may not call any more."""
        max_turns = self.stage.settings.tooling.max_turns
        bound = self.bound or f"the turns of a conversation (max_turns: {max_turns})"
        message = (
            f"{bound} are used up, and the model did not answer when it was asked to without tools"
        )
        error_type = ErrorType.BUDGET_EXCEEDED if self.bound else ErrorType.TOOL_LOOP_LIMIT
        return RowError(error_type, message)

    def _repeated(self, reply: Reply) -> RowError | None:
        """Returns the error of a model that asks for the same in several turns in a row; None: it
        does not."""
        last = [reply.calls, *(turn.reply.calls for turn in self.turns[-MAX_REPETITIONS + 1 :])]
        if not reply.calls or len(last) != MAX_REPETITIONS:
            return None
        kinds = {tuple(sorted((call.name, call.arguments) for call in calls)) for calls in last}
        if len(kinds) != 1:
            return None
        turns = f"{MAX_REPETITIONS} turns in a row"
        message = f"the model asked for the same in {turns}: {shown(reply.calls)}"
        return RowError(ErrorType.TOOL_LOOP_LIMIT, message)

    def take(self, turn: Turn, judged: End | None) -> End | None:
        """Adds a turn. Returns how the conversation ends with it; None: it continues."""
        self.turns.append(turn)
        turn.results = None if judged is None and turn.reply.calls else []
        if judged is None and not turn.reply.goes_on:
            turn.said = ASK_FORM
            self.by_form = True
        if isinstance(judged, RowError) and self._asks_again(judged):
            turn.said = complaint(judged, wants_json=self.stage.wants_json)
            judged = None
        return judged

    def _asks_again(self, error: RowError) -> bool:
        """True if an answer with this error is quoted and asked for again, which is counted. The
        first one that lacks a form that was described in instructions alone does not count against
        `repair`: no provider held the model to it."""
        of_form = self._in_words and not self.by_form and error.type is ErrorType.SCHEMA_MISMATCH
        if error.type not in REPAIRED or not (of_form or self.repairs < self.stage.settings.repair):
            return False
        self.repairs += not of_form
        self.by_form = self.by_form or self._in_words
        return True

    def take_results(self, turn: Turn, results: list[ToolResult]) -> End | None:
        """Adds the results of the last turn's calls. Returns how the conversation ends with them;
        None: it continues."""
        turn.results = results
        failed = [_failures(last) for last in self.turns[-MAX_REPETITIONS:]]
        if failed[0] and failed.count(failed[0]) == MAX_REPETITIONS:
            what = "; ".join(f"{name}: {text}" for name, text in failed[0])
            turns = f"{MAX_REPETITIONS} turns in a row"
            message = f"calls failed alike in {turns}: {what}"
            return RowError(ErrorType.TOOL_LOOP_LIMIT, message)
        pairs = zip(turn.reply.calls, results, strict=True)
        broken = [f"{call.name}: {result.text}" for call, result in pairs if result.by_tool]
        if broken and self.stage.settings.tooling.on_failure == "fail":
            return RowError(
                ErrorType.TOOL_SERVER_ERROR, f"{broken[0]}; the stage has on_tool_failure: fail"
            )
        if self.spec.result_mode != "passthrough":
            turn.results = _bounded(
                results, max([MAX_TURN_CHARS, *(tool.max_chars for tool in self.spec.tools)])
            )
            return None
        for call, result in zip(turn.reply.calls, results, strict=True):
            if result.is_error:
                return RowError(ErrorType.TOOL_SERVER_ERROR, f"{call.name}: {result.text}")
        texts = [result.text for result in results]
        if not self.stage.wants_json:
            texts = ["\n\n".join(texts)]
        passed = Reply(texts[0], Finish.STOP, Usage(), turn.reply.model, others=tuple(texts[1:]))
        return self.connection.checker.check(passed, view=self.attempts.asked.row.view)

    def replay(self, stored: Sequence[StoredTurn], calls: Iterable[StoredCall]) -> None:
        """Takes stored turns as they were taken before."""
        self.stored = {(call.turn, call.place): call for call in calls}
        for old in stored:
            reply = self.connection.parse(old.status, {}, reply_bytes(old.reply) or b"")
            if isinstance(reply, Fault):  # which was a reply to the agac that stored it
                self.end = RowError(reply.type, reply.message)
                return
            self.next_request()  # which settles whether the form alone was asked for
            turn = Turn(old.number, reply)
            goes_on = old is not stored[-1] and reply.goes_on
            self.end = self.take(turn, None if goes_on else self.judge(reply))
            results = self._stored_results(turn)
            if turn.results is None and results is not None:
                self.end = self.take_results(turn, results)

    def _stored_results(self, turn: Turn) -> list[ToolResult] | None:
        """Returns the stored results of a turn's calls; None: some have none."""
        results = []
        for place, call in enumerate(turn.reply.calls):
            stored = self.stored.get((turn.number, place))
            if stored is None or stored.result is None:
                return None
            results.append(result_for(call, stored.result, stored.state))
        return results


_OF_FORM = (ErrorType.SCHEMA_MISMATCH, ErrorType.TRUNCATED)
"""Errors that do not matter in an answer that is given before its form is asked for."""


def result_for(call: ToolCall, text: str, state: str) -> ToolResult:
    """Makes the tool result to send for a call that ended in `state`."""
    return ToolResult(call.id, text, is_error=state != "done", by_tool=state == "error")


def _bounded(results: list[ToolResult], most: int) -> list[ToolResult]:
    """Cuts the results of a turn to `most` characters together: the longest are cut to the same
    length."""
    left = most + 100 * len(results)  # and their notes
    share = most
    why = f": a turn's results have {most:,} at most"
    for count, length in zip(
        range(len(results), 0, -1), sorted(len(one.text) for one in results), strict=True
    ):
        share = left // count
        if length > share:
            break
        left -= length
    return [replace(one, text=cut(one.text, share, why)) for one in results]


def shown(calls: Iterable[ToolCall]) -> str:
    """Shows calls in a message, up to 300 characters."""
    shown = ", ".join(f"{call.name}({call.arguments})" for call in calls)
    return shown if len(shown) <= 300 else f"{shown[:300]}…"


def _failures(turn: Turn) -> list[tuple[str, str]]:
    """Returns the names and results of a turn's calls if all of them failed, else nothing."""
    results = turn.results or []
    failed = [
        (call.name, one.text)
        for call, one in zip(turn.reply.calls, results, strict=False)
        if one.is_error
    ]
    return failed if results and len(failed) == len(results) else []
