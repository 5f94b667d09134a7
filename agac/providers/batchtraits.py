"""What is known about the batches of each provider, as data: numbers with their sources, read November 2026."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from agac.providers.batches import BatchTraits

DAY = 86_400.0

_OWN_TIER = MappingProxyType({"service_tier": "a batch is a service tier of its own, with its own price; leave it out"})
"""openai.com/api/pricing and platform.claude.com/docs/en/api/service-tiers list batches beside the other tiers."""

ANTHROPIC = BatchTraits(
    # platform.claude.com/docs/en/build-with-claude/batch-processing: 100,000 requests or 256 MB, results
    # for 29 days; the object has no field for anything of ours. Grace: retrieving a batch answered
    # 404 for minutes after its creation (github.com/anthropics/anthropic-sdk-python/issues/1432)
    api="anthropic",
    max_requests=100_000,
    max_bytes=256_000_000,
    finds_by="count",
    grace=1800.0,
    results_kept=29 * DAY,
    unsupported=_OWN_TIER,
)

GENERIC: dict[str, BatchTraits] = {
    # whoever looks alike: nobody promised that metadata is echoed, how long files are kept, or that batches are cheaper
    "openai": BatchTraits(api="openai", grace=600.0, results_kept=None, price_factor=1.0),
    "anthropic": replace(ANTHROPIC, price_factor=1.0),
}
"""What agac.yml's `batch: NAME` stands for where the provider has no row of its own that says more."""

OPENAI = replace(
    # the openai SDK 3.52, batches.create and files.create: 50,000 requests, 200 MB, 24h, 16 pairs of metadata, which
    # the list echoes; input files are kept for 30 days, and nothing else is said of results
    GENERIC["openai"],
    grace=20.0,
    results_kept=30 * DAY,
    price_factor=0.5,
    unsupported=_OWN_TIER,
)

AZURE = replace(
    # learn.microsoft.com/azure/ai-foundry/openai/how-to/batch: 100,000 requests, 200 MB, 500 files in a resource;
    # what takes longer than 24 hours goes on. Whether the list echoes metadata is not said: by the input file then
    GENERIC["openai"],
    max_requests=100_000,
    max_open=500,
    expires=False,
    price_factor=0.5,
    unsupported=_OWN_TIER,
)

SIMULATOR = replace(OPENAI, unsupported={})
