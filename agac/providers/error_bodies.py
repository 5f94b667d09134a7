"""Errors as servers write them: read from the JSON of a body, whatever its shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agac.providers.bodies import http_status, items, json_of, mapping, objects, text
from agac.providers.waits import asked_delay, headers_within, reset_delay, seconds_until


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error's JSON says, whatever its shape."""

    message: str = ""
    """The server's own words."""
    type: str = ""
    """The kind of error, in the server's own name."""
    code: str = ""
    """The error's code, in the server's own name."""
    status: int | None = None
    """The HTTP status that the body names."""
    delay: float | None = None
    """Seconds to wait that the body names."""
    meaning: str = ""
    """A meaning that rules know in addition to codes, as `error_rules.NO_JSON`."""

    @property
    def name(self) -> str:
        """The code, or the type where there is no code."""
        return self.code or self.type


def is_error(data: Any) -> bool:
    """True if a body is an error. Look-alikes send errors with status 200: OpenRouter at the top
    or in the choice, others with `object: error`."""
    if isinstance(data, list):
        return bool(data) and is_error(data[0])
    if not isinstance(data, dict):
        return False
    if data.get("error") or data.get("object") == "error":
        return True
    if isinstance(_choice_error(data), dict):
        return True
    if data.get("choices"):
        return False
    return bool(mapping(data.get("base_resp")).get("status_code"))  # MiniMax's


_FRAME_PARAMS = re.compile(
    r"(?:body\.)?"
    r"(?:(?P<model>model)|response_format\b.*|text\.format\b.*|tools\b.*|tool_choice\b.*"
    r"|functions\b.*)\Z"
)
"""Parameters of a request that are the same for every row."""


def read_openai_error(data: Any) -> ErrorBody:
    """Returns the error within a body: OpenAI's object, a list of one (Gemini), a bare text,
    FastAPI's `detail`, a choice's, or what another server said to a gateway that quotes it."""
    data = mapping(data[0] if isinstance(data, list) and data else data)
    error = _read_error(data)
    for _ in range(_MAX_QUOTED):
        quoted = _quoted_error(data)
        if quoted is None:
            break
        data = quoted
        error = _overlaid(error, _read_error(quoted))
    return error


def _overlaid(outer: ErrorBody, inner: ErrorBody) -> ErrorBody:
    """Returns what a quoted error says, and of the error around it what the quoted one lacks."""
    return ErrorBody(
        message=inner.message or outer.message,
        type=inner.type or outer.type,
        code=inner.code or outer.code,
        status=inner.status or outer.status,
        delay=outer.delay if inner.delay is None else inner.delay,
    )


_MAX_QUOTED = 3
"""How many errors within one another are read: a gateway quotes a gateway, which quotes a server.
"""


def _quoted_error(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the body with the error of another server that an error quotes: as an object, in a
    list, or as a text."""
    error = data.get("error")
    if isinstance(error, dict) and isinstance(error.get("error"), (dict, str)):
        return error
    listed = objects(data.get("errors"))
    if not error and listed:
        return {"error": listed[0]}
    words = text(error, "message")
    if not words and isinstance(error, str):
        words = error
    quoted: Any = words or data.get("message")
    if isinstance(quoted, str) and quoted.lstrip().startswith("{"):
        quoted = json_of(quoted.encode("utf-8", "replace"))
    return _as_error(quoted) if isinstance(quoted, dict) else None


def _as_error(quoted: dict[str, Any]) -> dict[str, Any]:
    """Returns a quoted object as a body with an error."""
    if not is_error(quoted) and "message" in quoted:
        return {"error": quoted}
    return quoted


def _read_error(data: dict[str, Any]) -> ErrorBody:
    """Returns the error of a body, without what it quotes."""
    error = data.get("error") or _choice_error(data)
    if isinstance(error, dict):
        return _read_object(error, data)
    refused = mapping(data.get("base_resp"))
    if refused:  # MiniMax: platform.minimax.io/docs/api-reference/errorcode
        code = f"base_resp.{refused.get('status_code')}"[:40]
        return ErrorBody(text(refused, "status_msg"), code=code)
    code = _code(data) or text(data, "reason")  # TGI's
    kind = text(data, "type") or text(data, "error_type")
    if isinstance(error, str):
        return ErrorBody(error, kind, code, _status_in(data), _delay_in(data))
    details = data.get("detail")
    listed = objects(details)
    if listed and not data.get("message"):
        return _read_details(listed, kind, code)
    # Mistral and vLLM put the error's fields at the top; FastAPI servers say `detail`
    words = data.get("message") or details or ""
    return ErrorBody(str(words), kind, code, _status_in(data), _delay_in(data))


def _read_details(details: list[dict[str, Any]], kind: str, code: str) -> ErrorBody:
    """Returns what FastAPI says of a request that does not fit: what is wrong at each of its
    fields."""
    words = []
    for detail in details:
        field = ".".join(str(part) for part in items(detail.get("loc")))
        problem = text(detail, "msg") or text(detail, "message") or str(detail)
        words.append(f"{field}: {problem}" if field else problem)
        code = code or _code_of_param(field)
    return ErrorBody("; ".join(words), kind, code)


def _read_object(error: dict[str, Any], data: Mapping[str, Any]) -> ErrorBody:
    """Returns what an error says that is an object, as OpenAI's are."""
    code = _code(error) or _code_of_param(text(error, "param"))
    delay = None
    metadata = mapping(error.get("metadata"))
    if metadata.get("reasons"):
        # OpenRouter: 403, with the reasons for which the input was flagged
        code = "moderation_flagged"
    quoted = headers_within(metadata.get("headers"))
    if quoted:
        # OpenRouter: the headers of the server that answered it
        delay = asked_delay(quoted) or reset_delay(quoted)
    for detail in objects(error.get("details")):
        code = _code_of_detail(detail) or code
        delay = seconds_until(text(detail, "retryDelay")) or delay
    delay = delay or _delay_in(error) or _delay_in(metadata) or _delay_in(data)
    kind = text(error, "type") or text(error, "status")
    status = _status_in(error) or _status_in(data)
    return ErrorBody(text(error, "message"), kind, code, status, delay)


def _code_of_detail(detail: Mapping[str, Any]) -> str:
    """Returns what one of Gemini's details says: a refused key, or a quota of the day, for which a
    wait of a minute does not help."""
    if detail.get("reason") == "API_KEY_INVALID":
        return "API_KEY_INVALID"
    quotas = [text(violation, "quotaId") for violation in objects(detail.get("violations"))]
    if any("PerDay" in quota for quota in quotas):
        return "daily_quota_exceeded"
    return ""


_STATUS_FIELDS = ("code", "status_code", "http_status_code", "status")
"""Where a body repeats its HTTP status, which a stream has no other place for: OpenRouter and
vLLM, Cerebras, Hugging Face, Mistral."""


_DELAY_FIELDS = (
    *("retry_after", "retry_after_seconds", "resets_in_seconds", "resets_at", "estimated_time"),
)
"""Where a body says when to come back: gateways; a plan's quota at OpenAI, as a wait or a moment;
Hugging Face."""


def _delay_in(error: Mapping[str, Any]) -> float | None:
    """Returns the seconds to wait that a body names; None: it names none."""
    for name in _DELAY_FIELDS:
        written = error.get(name)
        if isinstance(written, (int, float, str)):
            wait = seconds_until(str(written))
            if wait is not None:
                return wait
    return None


def _status_in(error: Mapping[str, Any]) -> int | None:
    """Returns the HTTP status of an error that a body names; None: it names none."""
    for name in _STATUS_FIELDS:
        status = http_status(error.get(name), 400)
        if status:
            return status
    return None


def _code(error: Mapping[str, Any]) -> str:
    """Returns an error's code: a text, or a number of the provider's own that is no HTTP status."""
    code = error.get("code")
    if type(code) is int and 1000 <= code < 100_000:
        return str(code)
    return text(error, "code")


def _code_of_param(param: str) -> str:
    """Returns what is wrong with a request's frame, which some servers name by its parameter, with
    or without a code."""
    of_frame = _FRAME_PARAMS.match(param)
    if of_frame is None:
        return ""
    if of_frame["model"]:
        return "invalid_model"
    return "invalid_json_schema"


def _choice_error(data: dict[str, Any]) -> Any:
    """Returns the error of the first choice, where there is one."""
    return mapping(next(iter(items(data.get("choices"))), None)).get("error")


def read_anthropic_error(data: Any) -> ErrorBody:
    """Returns the error within a body. The forms of look-alikes and gateways, which are OpenAI's,
    are understood too."""
    error = read_openai_error(data)
    code = text(mapping(mapping(data).get("error")).get("details"), "error_code")
    return replace(error, code=code) if code else error
