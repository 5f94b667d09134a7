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
from agac.store.history import reply_bytes
from agac.store.rows import StoredCall, StoredTurn
from agac.tools.tool_limits import cut

# of one reply: as many as providers take tools, and far more than a model has use for in one turn
MOST_CALLS = 128
ALIKE = 3  # so many turns in a row that ask for the same, or fail alike, end a conversation
MAX_TURN_CHARS = 64_000  # of the results of a turn, where no tool's own `max_chars` is larger

ASK_FORM = "Give your answer now, in the form that was asked for, as JSON only."
"""What the model is told under `structured_tool_policy: defer`, once it has answered without the
form."""

End = ValidReply | RowError  # how a conversation ends


def how_ended(end: End | None) -> str | None:
    """How a conversation ended, as its last turn says in the store; None: it goes on."""
    if end is None:
        return None
    if isinstance(end, ValidReply):
        return "done"
    return "failed"


@dataclass(slots=True)
class Turn:
    """A reply, and what follows from it."""

    number: int
    """Its number among the turns of the task."""
    reply: Reply
    """The reply of the model."""
    results: list[ToolResult] | None = None
    """The results of its calls; None: they are still to be had."""
    said: str = ""
    """What the model was told then, if it called no tool."""


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
    """Whether an answer of the right form is asked for now, and no tools may be called."""
    bound: str = ""
    """What of the row's budget is used up, so that no tools are called any more."""
    durable: bool = True
    """Whether its last turn is committed."""
    changed: bool = False
    """Whether this invocation made a call that must not be repeated."""
    stored: dict[tuple[int, int], StoredCall] = field(default_factory=dict)
    """What is known of calls, by turn and place."""
    end: End | None = None
    """How stored turns ended."""
    raised: Exception | None = None
    """What stops a child, and so this."""

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
        """What makes it an agent."""
        return self.stage.agent_spec or AgentSpec()

    @property
    def _without_schema(self) -> bool:
        """Whether the form of the answer is not asked for yet."""
        return self.stage.defers_form and not self.by_form

    @property
    def _in_words(self) -> bool:
        """Whether the form of the answer is said as instructions alone, the same in all of its
        requests."""
        return self.stage.says_schema_in_words(self.connection.model)

    @property
    def was_asked_again(self) -> bool:
        """Whether an answer was quoted with what is wrong with it."""
        return any(turn.said not in ("", ASK_FORM) for turn in self.turns)

    @property
    def _is_last(self) -> bool:
        """Whether its turns are used up: the model is asked once more, and may not call tools."""
        return (
            bool(self.bound)
            or sum(turn.reply.goes_on for turn in self.turns)
            >= self.stage.settings.tooling.max_turns
        )

    @property
    def _gives_tools(self) -> bool:
        """Whether its policy lets it tell the model of tools at all."""
        return not (self.spec.structured == "no_tools" and self.stage.schema is not None)

    def refused(self, place: int) -> str | None:
        """Why a call of the last turn is not made, whatever it asks for."""
        if self.by_form or not self._gives_tools:
            return (
                "This call was not made: no tools are offered now. Give the answer in the "
                "form that was asked for."
            )
        too_many = (
            f"This call was not made: a reply may make {MOST_CALLS}. Ask for what is still "
            "needed in the next."
        )
        return too_many if place >= MOST_CALLS else None

    def next_request(self) -> Request:
        """What the model is asked now."""
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
        """The result that a reply is, or why it is none; None: the conversation goes on."""
        if reply.goes_on:
            return self._used_up() if self._is_last else self._repeated(reply)
        if reply.finish is Finish.TOOLS:
            whole = reply._replace(finish=Finish.STOP)
        else:
            whole = reply
        enforced = self.connection.enforced and not (self._without_schema or self._in_words)
        found = self.connection.checker.check(
            whole, enforced=enforced, view=self.attempts.asked.row.view
        )
        may_go_on = self._without_schema and bool(reply.text.strip()) and not reply.calls
        if may_go_on and isinstance(found, RowError) and found.type in _OF_FORM:
            return None
        return found

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
        """Returns the error of a model that asks for the same again and again; None: it does
        not."""
        last = [reply.calls, *(turn.reply.calls for turn in self.turns[-ALIKE + 1 :])]
        if not reply.calls or len(last) != ALIKE:
            return None
        kinds = {tuple(sorted((call.name, call.arguments) for call in calls)) for calls in last}
        if len(kinds) != 1:
            return None
        message = f"the model asked for the same in {ALIKE} turns in a row: {shown(reply.calls)}"
        return RowError(ErrorType.TOOL_LOOP_LIMIT, message)

    def take(self, turn: Turn, judged: End | None) -> End | None:
        """One more turn: how the conversation ends with it, if it does."""
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
        """Whether an answer with this error is quoted and asked for again, which is counted. The
        first one that lacks a form that was said in words alone takes nothing of `repair`: no
        provider held the model to it."""
        of_form = self._in_words and not self.by_form and error.type is ErrorType.SCHEMA_MISMATCH
        if error.type not in REPAIRED or not (of_form or self.repairs < self.stage.settings.repair):
            return False
        self.repairs += not of_form
        self.by_form = self.by_form or self._in_words
        return True

    def take_results(self, turn: Turn, results: list[ToolResult]) -> End | None:
        """What the calls of the last turn gave: how the conversation ends with them, if it does."""
        turn.results = results
        failed = [_failures(one) for one in self.turns[-ALIKE:]]
        if len(failed) == ALIKE and failed[0] and failed.count(failed[0]) == ALIKE:
            what = "; ".join(f"{name}: {text}" for name, text in failed[0])
            return RowError(
                ErrorType.TOOL_LOOP_LIMIT, f"calls failed alike in {ALIKE} turns in a row: {what}"
            )
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
        """Goes through stored turns as they were gone through before."""
        self.stored = {(call.turn, call.place): call for call in calls}
        for one in stored:
            reply = self.connection.parse(one.status, {}, reply_bytes(one.reply) or b"")
            if isinstance(reply, Fault):  # which was a reply to the agac that stored it
                self.end = RowError(reply.type, reply.message)
                return
            self.next_request()  # which settles whether the form alone was asked for
            turn = Turn(one.number, reply)
            goes_on = one is not stored[-1] and reply.goes_on
            self.end = self.take(turn, None if goes_on else self.judge(reply))
            known = [self.stored.get((one.number, place)) for place in range(len(reply.calls))]
            if turn.results is None and all(
                call is not None and call.result is not None for call in known
            ):
                pairs = zip(reply.calls, filter(None, known), strict=True)
                self.end = self.take_results(
                    turn, [told(call, old.result or "", old.state) for call, old in pairs]
                )


_OF_FORM = (ErrorType.SCHEMA_MISMATCH, ErrorType.TRUNCATED)
"""What does not matter in an answer that is given before its form is asked for."""


def told(call: ToolCall, text: str, state: str) -> ToolResult:
    """What the model is told of a call that is in this state."""
    return ToolResult(call.id, text, is_error=state != "done", by_tool=state == "error")


def _bounded(results: list[ToolResult], most: int) -> list[ToolResult]:
    """The results of a turn: where they are more than `most` characters together, all of the
    longest cut alike."""
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
    shown = ", ".join(f"{call.name}({call.arguments})" for call in calls)
    return shown if len(shown) <= 300 else f"{shown[:300]}…"


def _failures(turn: Turn) -> list[tuple[str, str]]:
    """What the calls of a turn said, where all of them failed."""
    results = turn.results or []
    failed = [
        (call.name, one.text)
        for call, one in zip(turn.reply.calls, results, strict=False)
        if one.is_error
    ]
    return failed if results and len(failed) == len(results) else []
