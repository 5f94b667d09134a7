"""How long one call of a model may take."""

from __future__ import annotations

from agac.core.types import Params
from agac.spec.workflow import Timeout

DEFAULT_TIMEOUT = Timeout(connect=10.0, first_byte=None, total=600.0)
"""Seconds. No bound on the first byte: an answer that is not streamed sends its first byte when it is finished."""

FLEX_FACTOR = 1.5
"""How much longer a call of the tier flex may take: OpenAI advises 15 minutes in place of its SDKs' 10
(developers.openai.com/api/docs/guides/flex-processing, read November 2026), which are our default too."""


def call_timeout(written: Timeout | None, params: Params) -> Timeout:
    """The bounds of a call: the stage's over the defaults, and longer for flex, which waits for room."""
    wanted = written or DEFAULT_TIMEOUT
    factor = FLEX_FACTOR if params.service_tier == "flex" else 1.0
    return Timeout(
        connect=wanted.connect or DEFAULT_TIMEOUT.connect,
        first_byte=None if wanted.first_byte is None else wanted.first_byte * factor,
        total=(wanted.total or DEFAULT_TIMEOUT.total or 0.0) * factor,
    )
