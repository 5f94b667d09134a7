"""Answers in a test of a workflow instead of providers: the simulator, the replies of its file, or
replies that were recorded once. Nothing is sent except while a test is recorded."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agac.core.errors import AgacError, ErrorType
from agac.core.keys import canonical, digest
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, JSONValue, RowId
from agac.core.word_diff import as_text, word_diff
from agac.data.files import writable_place, write_in_project
from agac.engine.invocation import OutgoingCall
from agac.providers.http import HttpReply
from agac.simulator import anthropic, chat, openai
from agac.simulator.api_errors import ApiError
from agac.simulator.replies import MARK, AnswerWriter
from agac.simulator.tool_calls import ScriptRule
from agac.spec.project_files import MAX_RECORDED, required_text
from agac.spec.rules import Timeout
from agac.spec.test_files import ReplyFile

_APIS = {
    "openai-chat": (chat.CHAT, chat.CHAT_PARAMETERS),
    "anthropic": (anthropic.MESSAGES, anthropic.PARAMETERS),
    "openai-responses": (openai.RESPONSES, openai.RESPONSES_PARAMETERS),
}
"""The simulator's API for each dialect, and the parameters that it knows: those of other servers
are left out."""

Answer = HttpReply | Fault

SHOWN = 160
"""Characters that are shown of a difference between a recorded request and the new one."""


def _missing(call: OutgoingCall, reason: str) -> Fault:
    """Makes the fault for a call that has no answer."""
    where = f"stage {call.stage.name!r}, row {call.row_id!r}"
    return Fault(FaultKind.TASK, ErrorType.PROVIDER_ERROR, f"{where}: {reason}; nothing was sent")


class SimulatedAnswers:
    """Answers by the simulator, or by `rules`: then a call that none of them is for is an
    error."""

    calls: Path | None = None
    goes_out = False

    def __init__(self, rules: Sequence[ReplyFile] | None = None) -> None:
        self._rules = rules
        self._writer = AnswerWriter()

    async def send(
        self, call: OutgoingCall, real: Any, wire: bytes, timeout: Timeout, **how: Any
    ) -> Answer:
        """Answers a call, as `Answers` says."""
        writer = self._writer
        if self._rules is not None:
            rule = self._rule_for(call, self._rules)
            if rule is None:
                return _missing(call, "none of the test's replies is for this call")
            calls = [dict(each) for each in rule.calls]
            writer = AnswerWriter(script=[ScriptRule(reply=rule.reply, calls=calls)])
        if call.stage.runtime is not None:
            return _session_answer(call, wire, writer)
        return _api_answer(call, wire, writer)

    def _rule_for(self, call: OutgoingCall, rules: Sequence[ReplyFile]) -> ReplyFile | None:
        """Finds the first reply that is for a call."""
        for rule in rules:
            if rule.is_for(call.stage.name, call.row_id, call.request):
                return rule
        return None


def _api_answer(call: OutgoingCall, wire: bytes, writer: AnswerWriter) -> Answer:
    """Answers a request in its provider's dialect."""
    api, parameters = _APIS[call.model.provider.dialect]
    data = {key: value for key, value in json.loads(wire).items() if key in parameters}
    try:
        request = api.read(json.dumps(data).encode(), 0, {"anthropic-version": "any"})
        return HttpReply(200, MARK, api.body(request, writer.answer(request)), 0.0)
    except ApiError as error:
        return HttpReply(error.status, MARK, json.dumps(api.error(error)).encode(), 0.0)


def _session_answer(call: OutgoingCall, wire: bytes, writer: AnswerWriter) -> Answer:
    """Answers for a session of OpenCode with the writer's answer to the last message: no program
    is started."""
    # it imports what starts programs, which only such stages need
    from agac.providers.opencode_session import answered

    session = json.loads(wire)
    schema = call.stage.schema
    request: dict[str, Any] = {
        "model": call.model.model,
        "messages": [{"role": "user", "content": session.get("said") or session["prompt"]}],
    }
    if schema is not None:
        form = {"name": "answer", "schema": schema.body}
        request["response_format"] = {"type": "json_schema", "json_schema": form}
    try:
        answer = writer.answer(chat.CHAT.read(json.dumps(request).encode(), 0, {}))
    except ApiError as error:
        return _missing(call, error.message)
    return HttpReply(200, MARK, json.dumps(answered(answer.content or "")).encode(), 0.0)


def as_data(value: Any) -> JSONValue:
    """Makes JSON of a request, or of a recording, without what is at its default: what later
    versions add changes no key."""
    if is_dataclass(value):
        values = ((each, getattr(value, each.name)) for each in fields(value))
        return {each.name: as_data(inner) for each, inner in values if inner != each.default}
    if isinstance(value, dict):
        return {key: as_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(inner) for inner in value]
    return value


@dataclass(frozen=True)
class Recording:
    """A recorded call."""

    stage: str
    """Its stage."""

    row: RowId
    """The id of its row."""

    provider: str
    """The name of the provider."""

    model: str
    """The name of the model."""

    request: dict[str, JSONValue]
    """The whole request with its turns."""

    reply: JSONValue
    """The body of the reply."""

    @cached_property
    def key(self) -> bytes:
        """The same for all calls that get this reply; it does not depend on a format of
        fingerprints."""
        return digest(canonical([self.provider, self.model, self.request]))

    def difference(self, other: Recording) -> str:
        """Says what `other` asks differently: which parts, and the words."""
        old = self._parts()
        new = other._parts()
        parts = [part for part in {**old, **new} if old.get(part) != new.get(part)]
        texts = (canonical({part: each.get(part) for part in parts}) for each in (old, new))
        return f"{' and '.join(parts)} changed, {as_text(word_diff(*texts), width=SHOWN)}"

    def _parts(self) -> dict[str, JSONValue]:
        """The parts that make two calls different."""
        return {"model": f"{self.provider}/{self.model}", **self.request}


class Cassette:
    """Answers with the recorded replies of a test.

    `file` has a line of JSON for each call, and `tools` what tools returned, as stubs. Replies come
    in their order; of equal calls the last one is repeated. With the `redactor` of the run, calls
    without a reply are sent, and what comes back is recorded; what tools return is then noted in
    `calls`."""

    def __init__(
        self, file: Path, root: Path, redactor: Redactor | None, calls: Path | None
    ) -> None:
        """Reads the file of the project at `root`, if it exists. Raises AgacError if it cannot be
        read, or has a line that is no recorded call."""
        self._root = root
        self.file = file
        self.tools = file.with_name(f"{file.stem}_calls.jsonl")
        self.calls = calls
        self._redactor = redactor
        self._seen = Counter[bytes]()
        self._used = set[int]()
        self.goes_out = redactor is not None
        if redactor is not None:  # before anything is paid
            for path in (file, self.tools):
                writable_place(path, self._shown(path), root)
        lines = self._lines_of(file)
        try:
            self._recordings = [Recording(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            remedy = "Delete the file, and run `agac test --record`."
            raise AgacError(
                f"{file.name} holds no recorded calls: {error}", remedy=remedy
            ) from None

    def _lines_of(self, file: Path) -> list[str]:
        """Reads the lines of a recording; none if there is no file. Raises SpecError."""
        if not os.path.lexists(file):
            return []
        text = required_text(file, self._shown(file), self._root, most=MAX_RECORDED)
        return [line for line in text.split("\n") if line]

    def _shown(self, file: Path) -> str:
        """The name of a file in messages."""
        if file.is_relative_to(self._root):
            return file.relative_to(self._root).as_posix()
        return file.name

    @property
    def unused(self) -> list[Recording]:
        """Recordings that were not asked for."""
        return [each for n, each in enumerate(self._recordings) if n not in self._used]

    async def send(
        self, call: OutgoingCall, real: Any, wire: bytes, timeout: Timeout, **how: Any
    ) -> Answer:
        """Answers a call, as `Answers` says."""
        asked = self._recording(call, None)
        recorded = self._next_reply(asked)
        if recorded is not None:
            return HttpReply(200, {}, json.dumps(recorded.reply).encode(), 0.0)
        if self._redactor is None:
            return _missing(
                call,
                f"no reply is recorded for this call{self._stale_words(asked)}; record it: "
                "`agac test --record`",
            )
        answer: Answer = await real(wire, timeout, **how)
        if isinstance(answer, HttpReply) and answer.status == 200:
            self._used.add(len(self._recordings))
            self._recordings.append(self._recording(call, json.loads(answer.body)))
        return answer

    def _next_reply(self, asked: Recording) -> Recording | None:
        """Finds the recorded reply for a call, and notes that it is used. While recording, each
        reply is for one call."""
        same = [n for n, each in enumerate(self._recordings) if each.key == asked.key]
        seen = self._seen[asked.key]
        self._seen[asked.key] += 1
        if not same or (self._redactor is not None and seen >= len(same)):
            return None
        number = same[min(seen, len(same) - 1)]
        self._used.add(number)
        return self._recordings[number]

    def _stale_words(self, asked: Recording) -> str:
        """Says how a call differs from a recorded one of the same stage and row, if there is
        one."""
        for recorded in self.unused:
            if (recorded.stage, str(recorded.row)) == (asked.stage, str(asked.row)):
                return f" (what is recorded is stale: {recorded.difference(asked)})"
        return ""

    def _recording(self, call: OutgoingCall, reply: JSONValue) -> Recording:
        """Makes the recording of a call, without secrets."""
        text = json.dumps([as_data(replace(call.request, prefix=None)), reply])
        if self._redactor is not None:
            text = self._redactor.clean(text)
        request, reply = json.loads(text)
        model = call.model
        return Recording(
            call.stage.name, call.row_id, model.provider.name, model.model, request, reply
        )

    def write(self) -> list[Path]:
        """Keeps the recordings that were asked for, and what tools returned. Gives the files that
        exist then."""
        kept = [self._recordings[number] for number in self._used]
        kept.sort(key=lambda recording: (recording.stage, str(recording.row)))
        texts = {
            self.file: [json.dumps(as_data(each), ensure_ascii=False) for each in kept],
            self.tools: sorted(self._tool_results()),
        }
        written = [path for path, lines in texts.items() if lines]
        for path in written:
            text = "\n".join(texts[path]) + "\n"
            write_in_project(path, text, self._shown(path), self._root)
        return written

    def _tool_results(self) -> set[str]:
        """Reads what tools returned, before and now, as lines."""
        lines = {*self._lines_of(self.tools)}
        if self.calls is not None and self.calls.is_file():  # agac wrote it, in a folder of its own
            text = required_text(self.calls, self.calls.name, None, most=MAX_RECORDED)
            lines |= {*text.split("\n")} - {""}
        return lines
