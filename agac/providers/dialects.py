"""Every dialect that agac speaks, by the name that agac.yml gives it."""

from __future__ import annotations

from agac.providers import anthropic, openai_chat, openai_responses
from agac.providers.base import Dialect

DIALECTS: dict[str, Dialect] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
}
