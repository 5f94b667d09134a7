"""Who answers in a test of a workflow, in the place of providers: the simulator, the replies of
its file, or replies that were recorded once. Nothing goes out but while a test is recorded."""

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
"""How the simulator speaks each dialect, and the parameters that it knows: those of other servers
are left out."""

Came = HttpReply | Fault

SHOWN = 160
"""Characters that are shown of a difference between a recorded request and the one that is made."""


def _missing(call: OutgoingCall, what: str) -> Fault:
    place = f"stage {call.stage.name!r}, row {call.row_id!r}"
    return Fault(FaultKind.TASK, ErrorType.PROVIDER_ERROR, f"{place}: {what}; nothing was sent")


class SimulatedAnswers:
    """Answers of the simulator, or those of `rules`: then a call that none of them is for is an
    error."""

    calls: Path | None = None
    goes_out = False

    def __init__(self, rules: Sequence[ReplyFile] | None = None) -> None:
        self._rules = rules
        self._writer = AnswerWriter()

    async def send(
        self, call: OutgoingCall, real: Any, wire: bytes, timeout: Timeout, **how: Any
    ) -> Came:
        """As `Answers` says."""
        stage = call.stage.name
        row = call.row_id
        writer = self._writer
        if self._rules is not None:
            rule = next((one for one in self._rules if one.is_for(stage, row, call.request)), None)
            if rule is None:
                return _missing(call, "none of the test's replies is for this call")
            writer = AnswerWriter(
                script=[ScriptRule(reply=rule.reply, calls=[dict(one) for one in rule.calls])]
            )
        if call.stage.runtime is not None:
            return _session(call, wire, writer)
        api, known = _APIS[call.model.provider.dialect]
        data = {key: value for key, value in json.loads(wire).items() if key in known}
        try:
            asked = api.read(json.dumps(data).encode(), 0, {"anthropic-version": "any"})
            return HttpReply(200, MARK, api.body(asked, writer.answer(asked)), 0.0)
        except ApiError as error:
            return HttpReply(error.status, MARK, json.dumps(api.error(error)).encode(), 0.0)


def _session(call: OutgoingCall, wire: bytes, writer: AnswerWriter) -> Came:
    """What a session of OpenCode comes to with the writer's answer to what was said last: no
    program is started."""
    # and what runs programs, where a stage has one
    from agac.providers.opencode_session import answered

    asked = json.loads(wire)
    schema = call.stage.schema
    request: dict[str, Any] = {"model": call.model.model}
    request["messages"] = [{"role": "user", "content": asked.get("said") or asked["prompt"]}]
    if schema is not None:
        form = {"name": "answer", "schema": schema.body}
        request["response_format"] = {"type": "json_schema", "json_schema": form}
    try:
        answer = writer.answer(chat.CHAT.read(json.dumps(request).encode(), 0, {}))
    except ApiError as error:
        return _missing(call, error.message)
    return HttpReply(200, MARK, json.dumps(answered(answer.content or "")).encode(), 0.0)


def as_data(value: Any) -> JSONValue:
    """A request, or a recording, as JSON, without what is at its default: what later versions add
    changes no key."""
    if is_dataclass(value):
        given = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: as_data(what) for one, what in given if what != one.default}
    if isinstance(value, dict):
        return {key: as_data(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(one) for one in value]
    return value


@dataclass(frozen=True)
class Recording:
    """A recorded call: its stage, row and model, the whole request with its turns, and the body of
    the reply."""

    stage: str
    row: RowId
    provider: str
    model: str
    request: dict[str, JSONValue]
    reply: JSONValue

    @cached_property
    def key(self) -> bytes:
        """Which calls get this reply: no format of fingerprints is in it."""
        return digest(canonical([self.provider, self.model, self.request]))

    def difference(self, other: Recording) -> str:
        """What `other` asks differently: which parts, and the words."""
        old, new = (
            {"model": f"{one.provider}/{one.model}", **one.request} for one in (self, other)
        )
        parts = [part for part in {**old, **new} if old.get(part) != new.get(part)]
        texts = (canonical({part: one.get(part) for part in parts}) for one in (old, new))
        return f"{' and '.join(parts)} changed, {as_text(word_diff(*texts), width=SHOWN)}"


class Cassette:
    """The recorded replies of a test: a `file` with a line of JSON for each call, and `tools`,
    what tools gave, as stubs. Replies come in their order, of equal calls the last again and
    again. With the `redactor` of the run calls without a reply go out, and what comes is recorded;
    what tools give is then noted in `calls`."""

    def __init__(
        self, file: Path, root: Path, redactor: Redactor | None, calls: Path | None
    ) -> None:
        """Reads the file of the project at `root`, if it is there. Raises AgacError where it
        cannot be read, or has a line that is no recorded call."""
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
        """The lines of a recording, none where there is no file. Raises SpecError."""
        if not os.path.lexists(file):
            return []
        shown = self._shown(file)
        return [
            line
            for line in required_text(file, shown, self._root, most=MAX_RECORDED).split("\n")
            if line
        ]

    def _shown(self, file: Path) -> str:
        if file.is_relative_to(self._root):
            return file.relative_to(self._root).as_posix()
        return file.name

    @property
    def unused(self) -> list[Recording]:
        """Recordings that were not asked for."""
        return [one for place, one in enumerate(self._recordings) if place not in self._used]

    async def send(
        self, call: OutgoingCall, real: Any, wire: bytes, timeout: Timeout, **how: Any
    ) -> Came:
        """As `Answers` says."""
        asked = self._asked(call, None)
        places = [n for n, one in enumerate(self._recordings) if one.key == asked.key]
        seen = self._seen[asked.key]
        self._seen[asked.key] += 1
        if places and (self._redactor is None or seen < len(places)):
            self._used.add(place := places[min(seen, len(places) - 1)])
            return HttpReply(200, {}, json.dumps(self._recordings[place].reply).encode(), 0.0)
        if self._redactor is None:
            near = [
                one
                for one in self.unused
                if (one.stage, str(one.row)) == (asked.stage, str(asked.row))
            ]
            if near:
                stale = f" (what is recorded is stale: {near[0].difference(asked)})"
            else:
                stale = ""
            return _missing(
                call,
                f"no reply is recorded for this call{stale}; record it: `agac test --record`",
            )
        came: Came = await real(wire, timeout, **how)
        if isinstance(came, HttpReply) and came.status == 200:
            self._used.add(len(self._recordings))
            self._recordings.append(self._asked(call, json.loads(came.body)))
        return came

    def _asked(self, call: OutgoingCall, reply: JSONValue) -> Recording:
        """A call as it is recorded: without secrets."""
        model = call.model
        row = call.row_id
        text = json.dumps([as_data(replace(call.request, prefix=None)), reply])
        request, reply = json.loads(
            self._redactor.clean(text) if self._redactor is not None else text
        )
        return Recording(call.stage.name, row, model.provider.name, model.model, request, reply)

    def write(self) -> list[Path]:
        """Keeps the recordings that were asked for, and what tools gave: the files that there are
        then."""
        kept = sorted(
            (self._recordings[place] for place in self._used),
            key=lambda one: (one.stage, str(one.row)),
        )
        calls = {*self._lines_of(self.tools)}
        if self.calls is not None and self.calls.is_file():  # agac wrote it, in a folder of its own
            calls |= {
                *required_text(self.calls, self.calls.name, None, most=MAX_RECORDED).split("\n")
            } - {""}
        texts = {
            self.file: [json.dumps(as_data(one), ensure_ascii=False) for one in kept],
            self.tools: sorted(calls),
        }
        for path in (found := [path for path, lines in texts.items() if lines]):
            write_in_project(path, "\n".join(texts[path]) + "\n", self._shown(path), self._root)
        return found
