"""The effects of faults: on errors, on answers, on what is sent, and on calls of batch APIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from agac.simulator.api_errors import ApiError, blocked_page, status_error
from agac.simulator.batch_state import BatchDialect, BatchRequest
from agac.simulator.model_calls import ModelCall
from agac.simulator.replies import AnswerMessage, AnswerWriter, ModelAnswer
from agac.simulator.schema_keywords import validity
from agac.simulator.tool_calls import AskedTool


class Values(Protocol):
    """A rule, whose keys say more."""

    def value(self, key: str) -> Any:
        """Returns one of the keys of its kind, or the default."""


class Exchange(Protocol):
    """A request and its answer on the way to the client: what faults of sending need."""

    async def hang(self) -> None:
        """Sends nothing until the client has left."""

    async def cut(self, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after so many bytes of the answer."""

    async def fail(self, error: ApiError, *, as_response: bool) -> None:
        """Sends an answer that turns into an error halfway."""

    async def send(self, body: bytes) -> None:
        """Sends this instead of the answer."""


class BatchApiCall(Protocol):
    """A call of a batch API: what its faults need."""

    @property
    def size(self) -> int:
        """The length of its body in bytes."""

    def requests_sent(self) -> bytes:
        """Returns the requests for a batch that it holds."""


class Download(Protocol):
    """A file of results on the way to the client."""

    async def cut(self, after_bytes: int | None) -> Any:
        """Sends the file until there, or half of it, and drops the connection."""

    async def send_junk(self, form: str) -> Any:
        """Sends one of JUNK_BODIES."""


class Dropped(Exception):
    """The connection is closed without an answer."""


def slow_down(rule: Values, model: str) -> ApiError:
    message = f"Rate limit reached for {model}. Please slow down."
    return status_error(429, message=message)


def malformed_json(
    rule: Values, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter
) -> ModelAnswer:
    """Takes the end off the content, or gives it a loose one: no JSON reader takes it."""
    text = (answer.content or "").strip()
    is_enclosed = text[:1] in ('{["') and text[-1:] in ("}", "]", '"')
    broken = text[:-1] if is_enclosed else f'{{"answer": {text}'
    return ModelAnswer(broken, answer.finish)


def wrong_schema(
    rule: Values, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter
) -> ModelAnswer:
    """Answers with JSON that the call's schema refuses: as near as possible to the right one."""
    candidates: list[Any] = [{"unexpected": True}, [], "unexpected", 17.5, None, True]
    if call.form.schema is None:
        return ModelAnswer(json.dumps(candidates[0]), answer.finish)
    with suppress(ValueError):
        right = json.loads(answer.content or "")
        if isinstance(right, dict):
            candidates = [*nearly(right), *candidates]
    is_valid = validity(call.form.schema)
    wrong = next((value for value in candidates if not is_valid(value)), {"unexpected": True})
    return ModelAnswer(json.dumps(wrong), answer.finish)


def nearly(right: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the object without each of its keys, and with one too many."""
    parts = [{key: value for key, value in right.items() if key != left_out} for left_out in right]
    return [*parts, {**right, "unexpected": True}]


def half(answer: ModelAnswer, min_length: int = 0) -> str:
    content = answer.content or ""
    return content[: max(min_length, len(content) // 2)]


def early_cut(
    rule: Values, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter
) -> ModelAnswer:
    first = AnswerMessage(half(answer, 1), cut=rule.value("marked"))
    return replace(answer, earlier=(first,))


def thinking(
    rule: Values, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter
) -> ModelAnswer:
    if answer.content is None:
        return answer
    begin = "<think>" if rule.value("begun") else ""
    thought = '\nLet me think about it: {"so": 1} is no answer yet.\n'
    return replace(answer, content=f"{begin}{thought}</think>{answer.content}")


def refusing(
    rule: Values, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter
) -> ModelAnswer:
    return ModelAnswer(None, refusal=rule.value("message") or "I'm sorry, I can't help with that.")


def same_calls(
    rule: Values, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter
) -> ModelAnswer:
    """Repeats the calls of the last turn."""
    if not call.turns:
        return answer
    return replace(answer, content=None, finish="tool_calls", calls=call.turns[-1])


def with_fields(**fields: Any) -> Callable[..., ModelAnswer]:
    """Makes an effect that sets fields of the answer."""
    return lambda rule, call, answer, writer: replace(answer, **fields)


def with_calls(change: Callable[[AskedTool], AskedTool]) -> Callable[..., ModelAnswer]:
    """Makes an effect that changes each of the answer's calls."""
    return lambda rule, call, answer, writer: replace(
        answer, calls=tuple(map(change, answer.calls))
    )


GARBAGE = b"<html><body>upstream sent too much</body></html>"


def body_too_large(rule: Values, call: BatchApiCall) -> ApiError | None:
    max_bytes = rule.value("bytes")
    if call.size <= max_bytes:
        return None
    message = f"The body has more than {max_bytes:,} bytes, the most."
    return ApiError(413, message, code="request_too_large")


def blocked(rule: Values, call: BatchApiCall) -> ApiError | None:
    text = rule.value("match")
    if text is not None and not mentions(call.requests_sent(), text):
        return None
    return blocked_page(rule.value("status"))


def mentions(raw: bytes, text: str) -> bool:
    """True if JSON contains a text, in either way in which letters may be written."""
    forms = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return any(form.encode("utf-8", "replace") in raw for form in forms)


def no_response(rule: Values, dialect: BatchDialect, request: BatchRequest) -> bytes:
    message = rule.value("message") or "The model did not answer in time."
    return dialect.failed_line(request, rule.value("code"), message)
