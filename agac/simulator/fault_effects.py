"""The effects of faults: on errors, on answers, on what is sent, and on calls of batch APIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from agac.simulator.api_errors import ApiError, blocked_page, status_error
from agac.simulator.kinds import JsonObject
from agac.simulator.model_calls import ModelCall
from agac.simulator.replies import AnswerMessage, AnswerWriter, ModelAnswer
from agac.simulator.schema_keywords import validity
from agac.simulator.tool_calls import AskedTool


class Values(Protocol):
    """A rule, whose keys say more."""

    def value(self, key: str) -> Any:
        """Returns one of the keys of its kind, or the default."""


class AnsweredCall(NamedTuple):
    """A request that was answered: what faults of answers change."""

    call: ModelCall
    answer: ModelAnswer
    writer: AnswerWriter


AnswerEffect = Callable[[Values, AnsweredCall], ModelAnswer]


class Dropped(Exception):
    """The connection is closed without an answer."""


def slow_down(rule: Values, model: str) -> ApiError:
    message = f"Rate limit reached for {model}. Please slow down."
    return status_error(429, message=message)


def malformed_json(rule: Values, answered: AnsweredCall) -> ModelAnswer:
    """Takes the end off the content, or gives it a loose one: no JSON reader takes it."""
    text = (answered.answer.content or "").strip()
    is_enclosed = text[:1] in ('{["') and text[-1:] in ("}", "]", '"')
    broken = text[:-1] if is_enclosed else f'{{"answer": {text}'
    return ModelAnswer(broken, answered.answer.finish)


def wrong_schema(rule: Values, answered: AnsweredCall) -> ModelAnswer:
    """Answers with JSON that the call's schema refuses: as near as possible to the right one."""
    wrong: Any = {"unexpected": True}
    schema = answered.call.form.schema
    if schema is not None:
        candidates: list[Any] = [wrong, [], "unexpected", 17.5, None, True]
        with suppress(ValueError):
            right = json.loads(answered.answer.content or "")
            if isinstance(right, dict):
                candidates = [*nearly(right), *candidates]
        is_valid = validity(schema)
        wrong = next((value for value in candidates if not is_valid(value)), wrong)
    return ModelAnswer(json.dumps(wrong), answered.answer.finish)


def nearly(right: JsonObject) -> list[JsonObject]:
    """Returns the object without each of its keys, and with one too many."""
    parts = [{key: value for key, value in right.items() if key != left_out} for left_out in right]
    return [*parts, {**right, "unexpected": True}]


def half(answer: ModelAnswer, min_length: int = 0) -> str:
    content = answer.content or ""
    return content[: max(min_length, len(content) // 2)]


def early_cut(rule: Values, answered: AnsweredCall) -> ModelAnswer:
    first = AnswerMessage(half(answered.answer, 1), cut=rule.value("marked"))
    return replace(answered.answer, earlier=(first,))


def thinking(rule: Values, answered: AnsweredCall) -> ModelAnswer:
    if answered.answer.content is None:
        return answered.answer
    begin = "<think>" if rule.value("begun") else ""
    thought = '\nLet me think about it: {"so": 1} is no answer yet.\n'
    return replace(answered.answer, content=f"{begin}{thought}</think>{answered.answer.content}")


def refusing(rule: Values, answered: AnsweredCall) -> ModelAnswer:
    return ModelAnswer(None, refusal=rule.value("message") or "I'm sorry, I can't help with that.")


def same_calls(rule: Values, answered: AnsweredCall) -> ModelAnswer:
    """Repeats the calls of the last turn."""
    if not answered.call.turns:
        return answered.answer
    return replace(
        answered.answer, content=None, finish="tool_calls", calls=answered.call.turns[-1]
    )


def with_fields(**fields: Any) -> AnswerEffect:
    """Makes an effect that sets fields of the answer."""
    return lambda rule, answered: replace(answered.answer, **fields)


def with_calls(change: Callable[[AskedTool], AskedTool]) -> AnswerEffect:
    """Makes an effect that changes each of the answer's calls."""
    return lambda rule, answered: replace(
        answered.answer, calls=tuple(map(change, answered.answer.calls))
    )


GARBAGE = b"<html><body>upstream sent too much</body></html>"


def body_too_large(rule: Values, call: Any) -> ApiError | None:
    max_bytes = rule.value("bytes")
    if call.size <= max_bytes:
        return None
    message = f"The body has more than {max_bytes:,} bytes, the most."
    return ApiError(413, message, code="request_too_large")


def blocked(rule: Values, call: Any) -> ApiError | None:
    text = rule.value("match")
    if text is not None and not mentions(call.requests_sent(), text):
        return None
    return blocked_page(rule.value("status"))


def mentions(raw: bytes, text: str) -> bool:
    """True if JSON contains a text, in either way in which letters may be written."""
    forms = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return any(form.encode("utf-8", "replace") in raw for form in forms)


def no_response(rule: Values, dialect: Any, request: Any) -> bytes:
    message = rule.value("message") or "The model did not answer in time."
    line: bytes = dialect.failed_line(request, rule.value("code"), message)
    return line
