"""Sessions of OpenCode: what a session says as it comes, the document that is kept of it, and the
reply or the fault that is read of that."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agac.core.errors import ErrorType, storable
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, Finish, JSONValue, Reply, Request, Usage
from agac.providers import keeper
from agac.providers.bodies import count, json_of, mapping, text
from agac.providers.dialect import Assembly, Dialect, believable
from agac.providers.endings import MAX_WORD, SESSION_ENDINGS, ending
from agac.providers.error_bodies import read_openai_error
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS
from agac.providers.thinking import without_thinking

LINE = 16_000_000
"""Bytes of an event, at most, and characters of an answer."""
EVENTS = 1_000_000
"""Characters of the events of a session that are kept."""
TEXT = 20_000
"""Characters of a text in an event that are kept."""
STDERR = 4_000
"""Characters of a session's errors that are kept."""

LOCKED = "database is locked"
"""What a program says that finds its data folder in use."""


@dataclass(slots=True)
class Transcript:
    """What a session says, as it comes, and what it comes to."""

    most: tuple[int, int]
    """At most so many calls of the model, and tokens of a request."""
    clean: Callable[[bytes], bytes]
    """Takes keys out, before anything is cut."""
    failure: tuple[ErrorType, str] | None = None
    """The kind of error for which the session was ended, and why."""
    session: str | None = None
    """The id of the session."""
    texts: list[str] = field(default_factory=list)
    """The texts of its last step."""
    long: int = 0
    """The characters of those texts."""
    finish: str = ""
    """Why its last step ended, in OpenCode's word."""
    calls: int = 0
    """Calls of the model that ended."""
    error: JSONValue = None
    """The last error that it reported."""
    usage: dict[str, int | None] = field(default_factory=dict)
    """Tokens, by the names of `Usage`; None: unknown."""
    events: list[JSONValue] = field(default_factory=list)
    """The events that are kept, with long texts cut."""
    left: int = EVENTS
    """Characters of events that may still be kept."""
    stderr: bytes = b""
    """The end of what the program wrote to its standard error."""

    def take(self, line: bytes) -> None:
        """Takes one line of the program's output; what is no event is left out."""
        event = mapping(json_of(self.clean(line)))
        part = mapping(event.get("part"))
        kind = text(event, "type")
        session = text(event, "sessionID")
        if not self.session:
            self.session = session if session.isidentifier() else None
        if kind == "step_start":
            self.texts = []
            self.long = 0
            self.finish = ""
        elif kind == "text":
            self._take_text(storable(text(part, "text")))
        elif kind == "error":
            self.error = _shortened(event.get("error")) or {"name": "error"}
        elif kind == "step_finish":
            self._take_call(mapping(part.get("tokens")), text(part, "reason"))
        shown = _shortened(event)
        self.left -= len(json.dumps(shown))
        if kind and self.left >= 0:
            self.events.append(shown)

    def _take_text(self, written: str) -> None:
        """Takes a text of the answer; one that is too long fails the session."""
        self.texts.append(written)
        self.long += len(written)
        if self.long > LINE:
            self.failure = (
                ErrorType.REPLY_TOO_LARGE,
                f"its answer had more than {LINE:,} characters",
            )

    def _take_call(self, tokens: dict[str, Any], reason: str) -> None:
        """Takes a call of the model that ended; one too many, or too large, fails the session."""
        call, prompt_tokens = _usage_of_call(tokens)
        for name in _COUNTED:
            number = getattr(call, name)
            before = self.usage.get(name, 0)
            # what one call did not count is unknown for the whole session
            self.usage[name] = None if number is None or before is None else before + number
        self.calls += 1
        self.finish = reason
        max_calls, max_tokens = self.most
        if reason == "tool-calls" and self.calls >= max_calls:
            why = f"it asked for tools after max_turns, {max_calls - 1}"
            self.failure = ErrorType.TOOL_LOOP_LIMIT, why
        elif prompt_tokens > max_tokens:
            why = (
                f"a request had {prompt_tokens:,} tokens, more than `runtime.context`, "
                f"{max_tokens:,}"
            )
            self.failure = ErrorType.BUDGET_EXCEEDED, why

    async def follow(
        self, process: Process, prompt: str, folder: Path, seconds: float | None
    ) -> None:
        """Gives the prompt, and takes what comes until the program ends, or is to be ended."""
        works = (_write_prompt(process, prompt), self._note(process), _end_rest(process, folder))
        others = [asyncio.ensure_future(work) for work in works]
        try:
            async with asyncio.timeout(seconds):
                assert process.stdout is not None
                while self.failure is None and (line := await process.stdout.readline()):
                    self.take(line)
                if self.failure is None:
                    await asyncio.gather(*others)
        except TimeoutError:
            self.failure = ErrorType.TIMEOUT, f"it took longer than {seconds:g} s"
        except ValueError:
            self.failure = ErrorType.REPLY_TOO_LARGE, f"an event had more than {LINE:,} bytes"
        finally:
            for other in others:
                other.cancel()

    async def _note(self, process: Process) -> None:
        """Keeps the end of the program's standard error."""
        assert process.stderr is not None
        while piece := await process.stderr.read(STDERR):
            self.stderr = (self.stderr + piece)[-2 * STDERR :]

    def body(self, status: int | None, seconds: float) -> dict[str, JSONValue]:
        """Returns the document that is kept."""
        return {
            "runtime": "opencode",
            "session": self.session,
            "exit": status,
            "failure": self.failure,
            "failed": self.error,
            "finish": self.finish,
            "text": "\n".join(self.texts),
            "calls": self.calls,
            "usage": self.usage,
            "seconds": round(seconds, 3),
            "events": self.events,
            "cut": self.left < 0,
            "stderr": storable(self.clean(self.stderr)[-STDERR:].decode("utf-8", "replace")),
        }


def _usage_of_call(tokens: dict[str, Any]) -> tuple[Usage, int]:
    """Returns the counts of a call, and the tokens of its request: `input` is without what a cache
    had, `output` without what was thought."""
    cache = mapping(tokens.get("cache"))
    read = count(cache, "read") or 0
    written = count(cache, "write") or 0
    thought = count(tokens, "reasoning") or 0
    prompt = (count(tokens, "input") or 0) + read + written
    output = (count(tokens, "output") or 0) + thought
    return believable(Usage(prompt, output, read, thought, written), wrote=True), prompt


def answered(answer: str) -> dict[str, JSONValue]:
    """Returns the document of a session that took one call of the model and ended with this
    answer, for tests of workflows."""
    session = Transcript((2, 1), bytes, session="simulated", texts=[answer], finish="stop", calls=1)
    return session.body(0, 0.0)


_COUNTED = (
    *("input_tokens", "output_tokens"),
    *("cached_tokens", "reasoning_tokens", "cache_write_tokens"),
)
"""The fields of `Usage` that a session counts, in its order."""


def _shortened(value: Any, depth: int = 50) -> Any:
    """Returns an event with its long texts cut, and what lies deep in it."""
    if not depth:
        return "…"
    if isinstance(value, dict):
        return {key: _shortened(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner, depth - 1) for inner in value]
    if not isinstance(value, str) or len(value) <= TEXT:
        return value
    return f"{value[:TEXT]}… ({len(value):,} characters)"


async def _write_prompt(process: Process, prompt: str) -> None:
    """Gives the prompt on standard input, which has no limit; the program begins once that ends."""
    assert process.stdin is not None
    with suppress(ConnectionError):  # it has ended
        process.stdin.write(prompt.encode("utf-8", "replace"))
        await process.stdin.drain()
    process.stdin.close()


async def _end_rest(process: Process, folder: Path) -> None:
    """Once the program has ended, ends what it left, which may hold its pipes open."""
    await process.wait()
    await asyncio.to_thread(keeper.end, folder)


# What sessions are asked, and what came of them, as a dialect.


def _build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """Returns what a session is asked: its prompt, and what continues an earlier session."""
    prompts = [message.text for message in request.messages if message.role == "user"]
    if len(prompts) == 1:
        return {"prompt": prompts[0]}
    return {"prompt": prompts[0], "session": request.session or "", "said": prompts[-1]}


def _read(doc: Any, status: int, provider: Provider, model: str) -> Reply | Fault:
    """Returns what became of a session: a reply where the program ended well and its last step is
    an answer."""
    usage = _usage_in(doc)
    failure = doc.get("failure")
    if failure:
        message = f"the session was ended: {failure[1]}"
        return Fault(FaultKind.TASK, ErrorType(failure[0]), message, ambiguous=True, usage=usage)
    error = mapping(doc.get("failed"))
    has_failed = bool(error) or doc.get("exit") != 0
    if has_failed and _was_locked(doc, error):
        message = "OpenCode's own database was locked"
        return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, usage=usage)
    refused = _refusal_in(error, provider, model)
    if isinstance(refused, Fault):
        return replace(refused, usage=usage)
    if refused is not None:
        return refused
    if has_failed:
        message = _exit_message(doc, error)
    else:
        reply = _reply_in(doc, usage, provider, model)
        if reply is not None:
            return reply
        word = text(doc, "finish")
        last = f": its last step ended with {word[:MAX_WORD]!r}" if word else ""
        message = f"OpenCode ended well, and without an answer{last}"
    return Fault(
        FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, ambiguous=True, retries=1, usage=usage
    )


def _usage_in(doc: Any) -> Usage | None:
    """Returns the tokens of a session; None: it made no call."""
    counts = mapping(doc.get("usage"))
    if not counts:
        return None
    prompt, output, read, thought, written = (count(counts, name) for name in _COUNTED)
    return Usage(prompt, output, read, thought, written)


def _was_locked(doc: Any, error: dict[str, Any]) -> bool:
    """True if the program found its data folder in use."""
    return LOCKED in text(doc, "stderr") or LOCKED in json.dumps(error)


def _refusal_in(error: dict[str, Any], provider: Provider, model: str) -> Reply | Fault | None:
    """Returns what the model's server answered, where the error of a session holds that."""
    data = mapping(error.get("data"))
    status = data.get("statusCode")
    if type(status) is not int or status < 400:
        return None
    body = text(data, "responseBody").encode("utf-8", "replace")
    headers = {
        name.lower(): str(value) for name, value in mapping(data.get("responseHeaders")).items()
    }
    return DIALECTS[provider.dialect].parse(status, headers, body, provider, model, Redactor())


def _exit_message(doc: Any, error: dict[str, Any]) -> str:
    """Returns why a program ended badly: the error's words, or the last line that it wrote."""
    why = text(mapping(error.get("data")), "message") or text(error, "name")
    if not why:
        why = text(doc, "stderr").strip().rpartition("\n")[2]
    ended = f"OpenCode ended with exit status {doc.get('exit')}"
    return f"{ended}: {why}" if why else ended


def _reply_in(doc: Any, usage: Usage | None, provider: Provider, model: str) -> Reply | None:
    """Returns the answer of a session whose last step is one."""
    word = text(doc, "finish")
    finish = ending(word, SESSION_ENDINGS).meaning
    if not word or not isinstance(finish, Finish) or finish is Finish.OTHER:
        return None
    answer = without_thinking(text(doc, "text"), cut=finish is Finish.LENGTH)
    return Reply(
        answer,
        finish,
        usage or Usage(),
        model,
        simulated=provider.simulated,
        session=text(doc, "session") or None,
    )


OPENCODE = Dialect(
    path="",
    refused={},
    headers=lambda _: {},
    build=_build,
    shaping=lambda *_: None,
    read=_read,
    read_error=read_openai_error,
    rules=(),
    rates=lambda _: None,
    assembly=Assembly,
)
