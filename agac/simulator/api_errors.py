"""Errors that a request gets instead of a reply, in OpenAI's words."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field

from agac.simulator.kinds import Texts
from agac.simulator.settings import Refusal


@dataclass(eq=False)
class ApiError(Exception):
    """A request that gets an error, in the words of OpenAI's error object."""

    status: int
    message: str
    _: KW_ONLY
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Texts = field(default_factory=dict)
    page: bytes | None = None
    """A page of HTML that comes in the place of the error: something before the API sent it."""


SERVER_ERROR = "The server had an error while processing your request. Sorry about that!"
STATUS_ERRORS = {
    400: ("invalid_request_error", None, "The request was not understood."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", None, "You may not use this."),
    404: ("invalid_request_error", None, "There is no such thing."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please slow down."),
    503: ("server_error", "server_is_overloaded", "The server is overloaded or not ready yet."),
}
"""Type, code and message of each status, where a rule says nothing else.

Other statuses are server errors.
"""

QUOTA_CODES = {
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "insufficient_quota",
}
"""Codes whose type is `insufficient_quota`."""

PAGE = b"<html><head><title>%s</title></head><body>%s</body></html>"
"""A page in the place of an API's answer, with a title and a text."""


def status_error(
    status: int, *, kind: str | None = None, code: str | None = None, message: str | None = None
) -> ApiError:
    """Returns the error of a status, with what OpenAI says about it where nothing is given."""
    usual = STATUS_ERRORS.get(status, ("server_error", None, SERVER_ERROR))
    usual_kind, usual_code, usual_message = usual
    if code in QUOTA_CODES:
        usual_kind = "insufficient_quota"
    return ApiError(
        status, message or usual_message, kind=kind or usual_kind, code=code or usual_code
    )


def unknown_model(model: str) -> ApiError:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return ApiError(404, message, code="model_not_found")


def blocked_page(status: int = 403) -> ApiError:
    """Returns what a firewall before the API answers, to whatever it takes for an attack."""
    title = f"{status} {'Forbidden' if status == 403 else 'Request refused'}".encode()
    return ApiError(status, "Request blocked.", page=PAGE % (title, b"Request blocked."))


def request_too_large(model: str) -> ApiError:
    """Returns the refusal of a request that needs more tokens than an account has in a minute."""
    message = (
        f"Request too large for {model} on tokens per min (TPM): Limit 30000, Requested 47522. "
        "The input or output tokens must be reduced in order to run successfully."
    )
    return ApiError(429, message, kind="tokens", code="rate_limit_exceeded")


def limit_error(refusal: Refusal, model: str) -> ApiError:
    unit = "RPM" if refusal.unit == "requests" else "TPM"
    used = (
        f"{model} on {refusal.unit} per min ({unit}): Limit {refusal.limit}, "
        f"Used {refusal.used}, Requested {refusal.requested}"
    )
    error = ApiError(429, "", kind=refusal.unit, code="rate_limit_exceeded")
    if math.isinf(refusal.wait):
        error.message = (
            f"Request too large for {used}. It must be reduced in order to run successfully."
        )
    else:
        error.message = f"Rate limit reached for {used}. Please try again in {refusal.wait:.3f}s."
        error.headers = retry_headers(refusal.wait, in_ms=True)
        error.headers["retry-after"] = str(math.ceil(refusal.wait))
    return error


def retry_headers(seconds: float, *, in_ms: bool) -> Texts:
    """Returns when to try again: in whole milliseconds, or in seconds."""
    if in_ms:
        return {"retry-after-ms": str(math.ceil(seconds * 1000))}
    return {"retry-after": f"{seconds:g}"}


def missing(param: str) -> ApiError:
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def invalid(place: str, expected: str, code: str | None = None) -> ApiError:
    message = f"Invalid '{place}': expected {expected}."
    return ApiError(400, message, code=code, param=place)
