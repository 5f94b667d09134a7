"""The batch APIs that agac speaks, by the name that a provider's column `batch` gives them. This loads no SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agac.core.errors import UsageError
from agac.core.redact import Redactor
from agac.providers import anthropic_batch, openai_batch
from agac.providers.anthropic_batch import AnthropicBatches
from agac.providers.batch import BatchApi, BatchLines, BatchTraits
from agac.providers.openai_batch import OpenAIBatches
from agac.providers.provider import Provider

BATCH_APIS: dict[str, Callable[[Provider, BatchTraits, Redactor], BatchApi]] = {
    "openai": OpenAIBatches,
    "anthropic": AnthropicBatches,
}

LINES: Mapping[str, BatchLines] = {"openai": openai_batch, "anthropic": anthropic_batch}
"""How the requests and results of each are written; pure modules."""


def open_batch_api(provider: Provider, redactor: Redactor) -> BatchApi:
    """The batches of a provider's account. Loads the provider's SDK; close it when done.

    Raises:
        UsageError: the provider has no batches, or its address, a header, a proxy or certificates cannot be used.
        AgacError: the SDK is not installed.
    """
    if provider.batch is None:
        raise UsageError(
            f"{provider.name} has no batches",
            remedy=f"Write `run_mode: sync`, or `batch: openai` for {provider.name} in agac.yml if it speaks them.",
        )
    return BATCH_APIS[provider.batch.api](provider, provider.batch, redactor)
