"""Faults on purpose: the table of all kinds, and what each of them does.

The checks of a faults file, the command's help and the guide are made of `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from agac.simulator.api_errors import (
    ApiError,
    blocked_page,
    request_too_large,
    retry_headers,
    status_error,
    unknown_model,
)
from agac.simulator.fault_effects import (
    GARBAGE,
    AnsweredCall,
    Dropped,
    blocked,
    body_too_large,
    early_cut,
    half,
    malformed_json,
    no_response,
    refusing,
    same_calls,
    slow_down,
    thinking,
    with_calls,
    with_fields,
    wrong_schema,
)
from agac.simulator.kinds import JsonObject
from agac.simulator.replies import ModelAnswer

CALL_SELECTORS = ("at", "first", "attempts", "rate", "always")
BATCH_SELECTORS = ("at", "first", "attempts", "rate", "match", "always")
LINE_SELECTORS = ("at", "first", "attempts", "rate", "match", "lines", "always")
SELECTORS = ("rate", "at", "match", "first", "attempts", "always")

PHASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "error": ("an error instead of an answer, in batches too; nothing is charged", SELECTORS),
    "wait": ("before the answer", SELECTORS),
    "answer": ("another answer, in batches too; it is charged", SELECTORS),
    "sending": ("while the answer is sent; it is charged", SELECTORS),
    "call": ("one call of a batch API", CALL_SELECTORS),
    "created": ("a batch, from its creation on", BATCH_SELECTORS),
    "checked": ("a batch, when its input is checked", BATCH_SELECTORS),
    "ended": ("a batch, when it ends", BATCH_SELECTORS),
    "result": (
        "a request of a batch, instead of its answer; nothing is charged",
        LINE_SELECTORS,
    ),
    "line": ("the result line of a request of a batch", LINE_SELECTORS),
    "list": ("every list", ("always",)),
}
"""When faults take effect: the meaning of a phase, and the keys by which a rule selects."""

BATCH_PHASES = ("created", "checked", "ended")
LINE_PHASES = ("result", "line")
SINGLE_PHASES = ("error", "wait", "answer", "sending")  # of requests outside of batches

OPERATIONS = ("create", "upload", "poll", "download", "cancel", "list", "delete", "files")
"""The calls of a batch API, each counted by itself: `files` lists files or shows one."""

FOREIGN_FORMS = ("unknown", "null", "list", "no_custom_id", "not_utf8")
"""The lines that `batch_foreign_line` adds, which are no result of any request."""

JUNK_BODIES = ("error", "array", "half", "empty", "page", "endless")
"""The bodies that `batch_junk` sends for results.

An error, the lines as an array, half of them, nothing, a page of HTML, or an endless line.
"""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One line of a faults file, which applies where all its conditions hold."""

    kind: str
    index: int = field(default=0, compare=False)
    """its place in the file"""
    rate: float | None = None
    """the share of requests that it hits"""
    at: frozenset[int] | None = None
    """The numbers from 1 of single requests as they come in.

    For batches, those of the calls of one operation: of `create`, where it is about batches and
    their requests.
    """
    match: str | None = None
    """a text within the messages, or a batch's requests"""
    first: int | None = None
    """how often it hits the same question; for batches it counts calls, as `at` does"""
    lines: Collection[int] | None = None
    """numbers of a batch's requests, from 1"""
    values: JsonObject = field(default_factory=dict)
    """the keys of its kind"""

    @property
    def phase(self) -> str:
        return FAULTS[self.kind].phase

    @property
    def effect(self) -> Callable[..., Any] | None:
        return FAULTS[self.kind].effect

    def value(self, key: str) -> Any:
        """Returns one of the keys of its kind, or the default."""
        return self.values.get(key, FAULTS[self.kind].defaults.get(key))

    def selects(self, seed: int, number: int, attempt: int, content: bytes) -> bool:
        """True if it is meant for the content that is sent with this number, for the n-th time."""
        if self.at is not None and number not in self.at:
            return False
        if self.first is not None and attempt > self.first:
            return False
        return self.rate is None or chance(seed, self.index, content, attempt) < self.rate

    def stored(self) -> JsonObject:
        """Returns its kind and keys as a batch stores them."""
        stored: JsonObject = {"kind": self.kind, "index": self.index, **self.values}
        if self.phase in LINE_PHASES:
            lines = sorted(self.lines) if self.lines is not None else None
            stored |= {"match": self.match, "lines": lines, "rate": self.rate}
        return stored


def chance(seed: int, index: int, question: bytes, attempt: int) -> float:
    """Returns a number from 0 to 1: the same whenever a question is sent for the same time."""
    content = f"{seed}/{index}/{attempt}/".encode() + question
    return int.from_bytes(blake2b(content, digest_size=8).digest()) / 2**64


class KnownFault:
    """A row of the table: a kind of fault.

    `effect` does what its phase is about:

    - error: makes the error of (rule, model); without an effect it is the error of the `status`
    - wait, sending: sends something else of (rule, Channel)
    - answer: makes another answer of (rule, AnsweredCall)
    - call: of (rule, BatchCall), the exception that the call ends with or the seconds that it
      waits, None if the rule spares it; of downloads it sends something else
    - result: makes the line of (rule, dialect, BatchRequest)

    Other phases have none: a batch is asked for its faults where they show.
    """

    def __init__(
        self,
        phase: str,
        meaning: str,
        keys: str = "",
        effect: Callable[..., Any] | None = None,
        /,
        **defaults: Any,
    ) -> None:
        self.phase = phase
        self.meaning = meaning
        self.effect = effect
        self.defaults = defaults
        self.keys = tuple(keys.split())
        """the keys that it takes, besides those that select"""
        self.all_keys = (*PHASES[phase][1], *self.keys)


def error_of(rule: FaultRule, model: str = "") -> ApiError:
    """Makes the error of a rule."""
    error: ApiError
    if rule.effect is not None and rule.phase == "error":
        error = rule.effect(rule, model)
    else:
        kind, code, message = (rule.value(key) for key in ("type", "code", "message"))
        error = status_error(rule.value("status"), kind=kind, code=code, message=message)
    error.message = rule.value("message") or error.message
    seconds = rule.value("retry_after")
    if seconds is not None:
        error.headers |= retry_headers(seconds, in_ms=bool(rule.value("in_ms")))
    return error


def changed_answer(rule: FaultRule, answered: AnsweredCall) -> ModelAnswer:
    """Returns the answer as a rule of the phase `answer` leaves it; others do not change it."""
    if rule.phase != "answer" or rule.effect is None:
        return answered.answer
    changed: ModelAnswer = rule.effect(rule, answered)
    return changed


FAULTS: dict[str, KnownFault] = {
    "rate_limit": KnownFault(
        "error", "429: too many requests", "retry_after in_ms message", slow_down
    ),
    "quota": KnownFault(
        "error",
        "429: the account's quota is used up",
        "message",
        status=429,
        code="insufficient_quota",
        message="You exceeded your current quota, please check your plan and billing details.",
    ),
    "too_large": KnownFault(
        "error",
        "429: the request alone needs more tokens than the account has in a minute",
        "message",
        lambda rule, model: request_too_large(model),
    ),
    "blocked": KnownFault(
        "error",
        "403: a firewall's page of HTML in the place of the API's answer",
        "",
        lambda rule, model: blocked_page(),
    ),
    "server_error": KnownFault(
        "error", "500, or another `status`", "status retry_after in_ms message", status=500
    ),
    "unauthorized": KnownFault("error", "401: the key is refused", "message", status=401),
    "not_found": KnownFault(
        "error", "404: no such model", "message", lambda rule, model: unknown_model(model)
    ),
    "bad_request": KnownFault(
        "error", "400: the request is refused, with this `code`", "code message", status=400
    ),
    "slow_first_byte": KnownFault(
        "wait", "the answer takes `seconds` longer", "seconds", seconds=1.0
    ),
    "hang": KnownFault(
        "wait",
        "no answer ever comes, and nothing is charged",
        "",
        lambda rule, channel: channel.hang(),
    ),
    "cut": KnownFault(
        "sending",
        "the connection closes: before the answer, or after `after_bytes` of it",
        "after_bytes",
        lambda rule, channel: channel.cut(rule.value("after_bytes")),
    ),
    "invalid_body": KnownFault(
        "sending", "the body is a page of HTML", "", lambda rule, channel: channel.send(GARBAGE)
    ),
    "malformed_json": KnownFault("answer", "the text is not valid JSON", "", malformed_json),
    "wrong_schema": KnownFault(
        "answer", "the text is JSON that does not fit the schema", "", wrong_schema
    ),
    "length": KnownFault(
        "answer",
        "the text is cut in the middle, as by a limit of tokens",
        "",
        lambda rule, answered: ModelAnswer(half(answered.answer), "length"),
    ),
    "refusal": KnownFault("answer", "the model refuses to answer", "message", refusing),
    "filter": KnownFault(
        "answer",
        "a filter withholds the text",
        "",
        lambda rule, answered: ModelAnswer("", "content_filter"),
    ),
    "empty": KnownFault(
        "answer",
        "the text is empty",
        "",
        lambda rule, answered: ModelAnswer("", "stop"),
    ),
    "early_cut": KnownFault(
        "answer",
        "a response has a first message that was cut, then the answer",
        "marked",
        early_cut,
        marked=True,
    ),
    "zero_usage": KnownFault(
        "answer", "the usage says 0 for each count of tokens", "", with_fields(counts_nothing=True)
    ),
    "ending": KnownFault(
        "answer",
        "the answer ends with this `word`, or without one (null)",
        "word",
        lambda rule, answered: replace(answered.answer, has_word=True, word=rule.value("word")),
    ),
    "thinks": KnownFault(
        "answer",
        "the text begins with thinking in `<think>` marks; without `begun` only the last",
        "begun",
        thinking,
        begun=True,
    ),
    "two_answers": KnownFault(
        "answer",
        "a response has two messages that differ, both right",
        "",
        lambda rule, answered: answered.writer.second_answer(answered.call, answered.answer),
    ),
    "unknown_tool": KnownFault(
        "answer",
        "calls name a tool that is not on offer",
        "",
        with_calls(lambda asked: asked._replace(name="no_such_tool")),
    ),
    "bad_arguments": KnownFault(
        "answer",
        "the arguments of calls are not valid JSON",
        "",
        with_calls(lambda asked: asked._replace(arguments=asked.arguments[:-1])),
    ),
    "wrong_arguments": KnownFault(
        "answer",
        "the arguments of calls are none that the tools name",
        "",
        with_calls(lambda asked: asked._replace(arguments='{"unexpected": 17.5}')),
    ),
    "tool_loop": KnownFault(
        "answer", "the calls of the last turn again, whatever came of them", "", same_calls
    ),
    "calls_stop": KnownFault(
        "answer", "calls come as if the model had stopped", "", with_fields(finish="stop")
    ),
    "pause": KnownFault(
        "answer",
        "a message pauses (`pause_turn`); it is to be sent back",
        "",
        with_fields(content="One moment.", finish="pause", calls=()),
    ),
    "stream_error": KnownFault(
        "sending",
        "an error ends the answer halfway; with `failed` a response ends as failed",
        "code message failed",
        lambda rule, channel: channel.fail(error_of(rule), as_response=rule.value("failed")),
        status=500,
        code="server_error",
        failed=False,
    ),
    "batch_drop_before": KnownFault(
        "call",
        "the connection closes, and nothing happened",
        "op",
        lambda rule, call: Dropped(),
        op="create",
        when="before",
    ),
    "batch_drop_after": KnownFault(
        "call",
        "it happens, and the connection closes without an answer",
        "op",
        lambda rule, call: Dropped(),
        op="create",
        when="after",
    ),
    "batch_status": KnownFault(
        "call",
        "an error, before the call has its effect or after (`when`); 500 by default",
        "op status when retry_after in_ms type code message",
        lambda rule, call: error_of(rule),
        op="create",
        status=500,
        when="before",
    ),
    "batch_too_large": KnownFault(
        "call",
        "413 for an upload, or a create (`op`), of more than so many `bytes`",
        "op bytes",
        body_too_large,
        op="upload",
        bytes=10_000,
        when="before",
    ),
    "batch_blocked": KnownFault(
        "call",
        "a firewall's page (403, or `status`) for an upload, or a create (`op`), of "
        "requests that hold the text of `match`; of any without",
        "op status match",
        blocked,
        op="upload",
        status=403,
        when="received",
    ),
    "batch_slow": KnownFault(
        "call",
        "the call waits `seconds` before its effect",
        "op seconds",
        lambda rule, call: rule.value("seconds"),
        op="create",
        seconds=1.0,
        when="before",
    ),
    "batch_truncate": KnownFault(
        "call",
        "a download ends with the connection, after half of it or `after_bytes`",
        "after_bytes",
        lambda rule, call: call.cut(rule.value("after_bytes")),
        op="download",
    ),
    "batch_junk": KnownFault(
        "call",
        "a download comes with status 200 and is no whole file of results: see `body`",
        "body",
        lambda rule, call: call.send_junk(rule.value("body")),
        op="download",
        body="error",
    ),
    "batch_file_lag": KnownFault(
        "call", "`times` creates do not find an uploaded file", "times", op="upload", times=2
    ),
    "batch_list_lag": KnownFault(
        "created",
        "the list leaves the batch out for `seconds` after its creation",
        "seconds",
        seconds=90.0,
    ),
    "batch_get_404": KnownFault(
        "created", "it is not found for `seconds` after its creation", "seconds", seconds=60.0
    ),
    "batch_no_metadata": KnownFault("created", "its metadata is not echoed"),
    "batch_reject": KnownFault(
        "checked", "it fails its validation, with this code, line and message", "code line message"
    ),
    "batch_enqueued_cap": KnownFault(
        "checked",
        "it is refused if more than `tokens` of its model would wait then",
        "tokens",
        tokens=0,
    ),
    "batch_expire": KnownFault(
        "ended", "it expires with half of it done, or `after` N requests", "after"
    ),
    "batch_stuck": KnownFault(
        "created",
        "it stays finalizing, or at another `word`, until it is cancelled; `after` N requests",
        "word after",
    ),
    "batch_unknown_status": KnownFault(
        "created",
        "its status is an unknown `word` for `seconds` after its creation",
        "word seconds",
        word="paused",
        seconds=3600.0,
    ),
    "batch_counts_lie": KnownFault("ended", "its counts say that all went well"),
    "batch_counts_short": KnownFault("created", "its counts leave out a third of its requests"),
    "batch_null_output": KnownFault("ended", "it is done and names no output file"),
    "batch_empty_output_id": KnownFault("ended", "the id of its output file is an empty text"),
    "batch_zero_error_file": KnownFault("ended", "it has an error file with nothing in it"),
    "batch_gone": KnownFault("ended", "its results are deleted before they are fetched"),
    "batch_shuffle": KnownFault("ended", "its results come in another order"),
    "batch_bom": KnownFault("ended", "its results begin with a byte order mark"),
    "batch_blank_lines": KnownFault("ended", "an empty line follows each of its results"),
    "batch_foreign_line": KnownFault(
        "ended",
        "one result line is of a request that was never sent, or has another `form`",
        "form",
        form="unknown",
    ),
    "batch_line_status": KnownFault(
        "result",
        "it gets this status instead of an answer, 500 by default",
        "status type code message",
        status=500,
    ),
    "batch_line_zero": KnownFault(
        "result",
        "it gets status 0, an empty body, and no error",
        "",
        lambda rule, dialect, request: dialect.zero_line(request),
    ),
    "batch_line_error": KnownFault(
        "result",
        "it gets no response but an error code, `request_timeout` by default",
        "code message",
        no_response,
        code="request_timeout",
    ),
    "batch_omit": KnownFault(
        "line", "the request is answered and charged, and its line is missing"
    ),
    "batch_dup_line": KnownFault("line", "its line comes twice"),
    "batch_corrupt_line": KnownFault("line", "its line is cut in the middle"),
    "batch_body_text": KnownFault("line", "the body of its answer is JSON within a text"),
    "batch_paged": KnownFault(
        "list", "a page of a list holds at most `size`, one by default", "size", size=1
    ),
}
"""Every kind of fault. The order is that of the guide and of messages."""
