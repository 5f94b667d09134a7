"""The providers that agac knows, as rows of data: their batches, their models' switches, their
endpoints and abilities."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from agac.providers.provider import BatchTraits, Price, Provider, Switch

# What is known about the batches of each provider, as data: numbers with their sources, read
# November 2026.

_OWN_TIER = MappingProxyType(
    {"service_tier": "a batch is a service tier of its own, with its own price; leave it out"}
)
"""openai.com/api/pricing and platform.claude.com/docs/en/api/service-tiers list batches beside the
other tiers."""

ANTHROPIC_BATCHES = BatchTraits(
    # platform.claude.com/docs/en/build-with-claude/batch-processing: 100,000 requests or 256 MB,
    # results for 29 days; the object has no field for anything of ours. Grace: retrieving a batch
    # answered 404 for minutes after its creation
    # (github.com/anthropics/anthropic-sdk-python/issues/1432)
    api="anthropic",
    max_requests=100_000,
    max_bytes=256_000_000,
    finds_by="count",
    grace=1800.0,
    results_kept=29 * 86_400.0,
    unsupported=_OWN_TIER,
)

GENERIC_BATCHES: dict[str, BatchTraits] = {
    # look-alikes: it is not promised that metadata is echoed, how long files are kept, or that
    # batches are cheaper
    "openai": BatchTraits(api="openai", grace=600.0, results_kept=None, price_factor=1.0),
    "anthropic": replace(ANTHROPIC_BATCHES, price_factor=1.0),
}
"""What agac.yml's `batch: NAME` stands for where the provider has no row of its own that says
more."""

# the openai SDK 3.52, batches.create and files.create: 50,000 requests, 200 MB, 24h, 16 pairs of
# metadata, which the list echoes; input files are kept for 30 days, and nothing else is said of
# results
OPENAI_BATCHES = replace(
    GENERIC_BATCHES["openai"],
    grace=20.0,
    results_kept=30 * 86_400.0,
    price_factor=0.5,
    unsupported=_OWN_TIER,
)

AZURE_BATCHES = replace(
    # learn.microsoft.com/azure/ai-foundry/openai/how-to/batch: 100,000 requests, 200 MB, 500 files
    # in a resource; what takes longer than 24 hours goes on. Whether the list echoes metadata is
    # not said: by the input file then
    GENERIC_BATCHES["openai"],
    max_requests=100_000,
    max_open=500,
    expires=False,
    price_factor=0.5,
    unsupported=_OWN_TIER,
)

# The providers that agac knows, as data: one row each. What a provider can do is asked of its row,
# never of its name.
#
# A row is a default, not a promise: agac.yml can say otherwise. Endpoints, keys and abilities are
# from the providers' API references, read November 2026. Where a reference leaves an ability to the
# model behind the endpoint, the row takes the weaker one: an answer is always validated here, so a
# weak row costs a few re-asks, a wrong strong one all.

# a row of what speaks chat completions, as most do
_chat = partial(Provider, dialect="openai-chat")

SIMULATOR_PRICE = Price(input=0.25, cached_input=0.025, output=2.0, batch=0.5)
"""What a simulated token would cost: the order of a small hosted model, so that cost reports have
something to show."""

SIMULATOR = _chat(
    name="simulator",
    base_url="",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    prices={"*": SIMULATOR_PRICE},
    simulated=True,
    embedded=True,
    batch=replace(OPENAI_BATCHES, unsupported={}),
    tools_with_schema=True,
    cache="openai",
)

# platform.openai.com/docs/api-reference/chat: `max_tokens` is deprecated and refused by reasoning
# models
OPENAI = _chat(
    name="openai",
    base_url="https://api.openai.com/v1",
    key_variable="OPENAI_API_KEY",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    service_tiers=("auto", "default", "flex", "priority"),
    price_id="openai",
    tiers_priced=True,
    batch=OPENAI_BATCHES,
    tools_with_schema=True,
    # developers.openai.com/api/docs/guides/prompt-caching: from GPT-5.6 on a prefix is found at
    # breakpoints alone
    cache="openai",
    marked=r"gpt-(5\.([6-9]|\d\d)|[6-9]|\d\d)",
    # github.com/camel-ai/camel/issues/2215 and github.com/V1ki/dsh-plugin-subscriptions/issues/29:
    # it makes longer ones
    call_ids=r".{1,64}",
)

# whatever speaks chat completions; agac.yml can say more about it than two variables can
GENERIC = _chat(
    name="generic",
    base_url="${GENERIC_BASE_URL}",
    key_variable="GENERIC_API_KEY",
    key_optional=True,
    structured="json_object",
)

_THINKING = Switch(on={"thinking": {"type": "enabled"}}, off={"thinking": {"type": "disabled"}})

_IN_TEMPLATE = Switch(
    on={"chat_template_kwargs": {"enable_thinking": True}},
    off={"chat_template_kwargs": {"enable_thinking": False}},
)

_ADAPTIVE = {"thinking": {"type": "adaptive"}}
_DISABLED = {"thinking": {"type": "disabled"}}
_COUNTING = (
    "claude-haiku-4-5",
    "claude-haiku-4-5-20251001",
    "claude-sonnet-4-5",
    "claude-sonnet-4-5-20250929",
)
# a model that thinks when it is told for how many tokens
_COUNTED = Switch(on=None, off=_DISABLED, tokens=True)

_ALWAYS_THINKING = (
    *("claude-opus-5-5", "claude-fable-5", "claude-fable-5-1", "claude-fable-5-2"),
    *("claude-mythos-5", "claude-mythos-5-1", "claude-mythos-5-2", "claude-mythos-preview"),
)
_ALWAYS = Switch(on=_ADAPTIVE, off=None, efforts=True)

ANTHROPIC = Provider(
    # platform.claude.com/docs/en/api/messages; which model takes what:
    # build-with-claude/thinking-troubleshooting, build-with-claude/effort and the models' migration
    # guides. Models from 4.7 on refuse sampling parameters
    name="anthropic",
    dialect="anthropic",
    base_url="https://api.anthropic.com/v1",
    key_variable="ANTHROPIC_API_KEY",
    # what can be answered without a stream within the time that the API allows for it
    max_tokens=16_384,
    seeds=False,
    service_tiers=("auto", "standard_only"),
    efforts=("low", "medium", "high", "xhigh", "max"),
    price_id="anthropic",
    batch=ANTHROPIC_BATCHES,
    unsampled=(
        *(
            "claude-opus-4-7",
            "claude-opus-4-8",
            "claude-opus-5",
            "claude-sonnet-5",
            "claude-haiku-5",
        ),
        *("claude-fable", "claude-mythos"),
    ),
    switches={
        **dict.fromkeys(_COUNTING, _COUNTED),
        **dict.fromkeys(
            ("claude-opus-4-5", "claude-opus-4-5-20251101"), replace(_COUNTED, efforts=True)
        ),
        **dict.fromkeys(_ALWAYS_THINKING, _ALWAYS),
        "claude-sonnet-5-5": Switch(
            on=_ADAPTIVE, off={"thinking": {"type": "between_tools"}}, efforts=True
        ),
        "*": Switch(on=_ADAPTIVE, off=_DISABLED, efforts=True),
    },
    # agents-and-tools/tool-use/web-search-tool and web-fetch-tool: later versions run code too, on
    # newer models alone
    server_tools={
        name: {"type": f"{name}_{version}", "name": name}
        for name, version in (("web_search", "20250305"), ("web_fetch", "20250910"))
    },
    uses_bound="max_uses",
    tool_prices={"web_search": 10.0, "web_fetch": 0.0},
    tools_with_schema=True,
    # its own message: tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'
    call_ids=r"[a-zA-Z0-9_-]+",
    # platform.claude.com/docs/en/build-with-claude/prompt-caching: what is shorter is not kept, and
    # nothing says so
    cache="anthropic",
    cache_min_tokens={
        **dict.fromkeys(("claude-opus-5", "claude-fable", "claude-mythos"), 512),
        "": 1024,
        "claude-opus-4-7": 2048,
        **dict.fromkeys(("claude-opus-4-5", "claude-opus-4-6", "claude-haiku-4-5"), 4096),
    },
)

LOOK_ALIKES: dict[str, Provider] = {
    "anthropic": replace(
        ANTHROPIC,
        name="",
        base_url="",
        key_variable=None,
        structured="json_object",
        max_tokens=4096,
        cache="none",
        service_tiers=None,
        price_id=None,
        batch=None,
        server_tools={},
        uses_bound=None,
        tool_prices={},
        switches={
            **ANTHROPIC.switches,
            "*": Switch(on=_ADAPTIVE, off=_DISABLED, efforts=True, tokens=True),
        },
    )
}
"""What a row of agac.yml begins with, by its dialect, where it is not that of an ordinary
look-alike."""

# developers.openai.com/api/docs/guides/tools-web-search and /pricing: $10 for 1,000 searches;
# ResponseIncludable of the openai SDK 3.52: the pages that were found are told to those who ask
_SEARCHES: dict[str, Any] = {
    "server_tools": {"web_search": {"type": "web_search"}},
    "source_list": "web_search_call.action.sources",
    "tool_prices": {"web_search": 10.0},
}

SHIPPED: dict[str, Provider] = {
    row.name: row
    for row in (
        SIMULATOR,
        # the same simulator, asked through the Responses API
        replace(SIMULATOR, name="simulator-responses", dialect="openai-responses", **_SEARCHES),
        # and through Anthropic's
        replace(
            LOOK_ALIKES["anthropic"],
            name="simulator-anthropic",
            structured="json_schema",
            cache="anthropic",
            service_tiers=("auto", "standard_only"),
            prices={"*": SIMULATOR_PRICE},
            simulated=True,
            embedded=True,
            batch=replace(ANTHROPIC_BATCHES, unsupported={}),
            server_tools=ANTHROPIC.server_tools,
            uses_bound=ANTHROPIC.uses_bound,
            tool_prices=ANTHROPIC.tool_prices,
        ),
        OPENAI,
        # the same models, account and prices by OpenAI's other API
        replace(OPENAI, name="responses", dialect="openai-responses", **_SEARCHES),
        ANTHROPIC,
        # ai.google.dev/gemini-api/docs/openai: response_format takes json_schema; an error's body
        # is a list of one seeds: github.com/Vali-98/ChatterUI/issues/227, `Unknown name "seed":
        # Cannot find field`
        _chat(
            name="gemini",
            base_url="https://generativelanguage.googleapis.com/v1beta/openai",
            key_variable="GEMINI_API_KEY",
            extras=(),
            seeds=False,
            price_id="google",
            cache="automatic",
            cache_min_tokens={
                "": 4096,
                **dict.fromkeys(("gemini-2.5-flash", "gemini-3-flash"), 1024),
            },
        ),
        # docs.mistral.ai/api: `random_seed`; unknown fields are refused with 422; json_schema is
        # offered stream_usage: github.com/avante-corp/avante.nvim/issues/2347, refused too, and the
        # usage comes without it call_ids: github.com/langchain-ai/langchain/pull/24668, `must be
        # a-z, A-Z, 0-9, with a length of 9`
        _chat(
            name="mistral",
            base_url="https://api.mistral.ai/v1",
            key_variable="MISTRAL_API_KEY",
            renames={"seed": "random_seed"},
            extras=(),
            service_tiers=(),
            stream_usage=False,
            price_id="mistral",
            call_ids=r"[a-zA-Z0-9]{9}",
        ),
        # console.groq.com/docs/structured-outputs: json_schema for a few models only, JSON mode for
        # all
        _chat(
            name="groq",
            base_url="https://api.groq.com/openai/v1",
            key_variable="GROQ_API_KEY",
            structured="json_object",
            max_tokens_field="max_completion_tokens",
            extras=(),
            service_tiers=("auto", "flex"),
            price_id="groq",
        ),
        # openrouter.ai/docs: json_schema depends on the model's host; errors can come with status
        # 200
        _chat(
            name="openrouter",
            base_url="https://openrouter.ai/api/v1",
            key_variable="OPENROUTER_API_KEY",
            structured="json_object",
            price_id="openrouter",
        ),
        # docs.together.ai/docs/json-mode: depends on the model
        _chat(
            name="together",
            base_url="https://api.together.xyz/v1",
            key_variable="TOGETHER_API_KEY",
            structured="json_object",
            price_id="together",
        ),
        # docs.fireworks.ai/structured-responses: both modes for every model, by grammar
        _chat(
            name="fireworks",
            base_url="https://api.fireworks.ai/inference/v1",
            key_variable="FIREWORKS_API_KEY",
            price_id="fireworks",
        ),
        # api-docs.deepseek.com/guides/json_mode: JSON mode only
        _chat(
            name="deepseek",
            base_url="https://api.deepseek.com/v1",
            key_variable="DEEPSEEK_API_KEY",
            structured="json_object",
            extras=(),
            service_tiers=(),
            price_id="deepseek",
            cache="automatic",
        ),
        # docs.x.ai/docs/guides/structured-outputs: json_schema for every current model
        _chat(
            name="xai",
            base_url="https://api.x.ai/v1",
            key_variable="XAI_API_KEY",
            extras=(),
            price_id="x-ai",
            tools_with_schema=True,
            cache="automatic",
        ),
        # docs.x.ai/developers/tools: by the Responses API alone; /developers/pricing: $5 for 1,000
        # of each
        Provider(
            name="xai-responses",
            dialect="openai-responses",
            base_url="https://api.x.ai/v1",
            key_variable="XAI_API_KEY",
            price_id="x-ai",
            tools_with_schema=True,
            cache="automatic",
            server_tools={name: {"type": name} for name in ("web_search", "x_search")},
            tool_prices={"web_search": 5.0, "x_search": 5.0},
        ),
        _chat(
            # huggingface.co/docs/inference-providers: `model:route` names who runs the model. The
            # switches are those that the hosts of these models take, by the tables of fast-agent
            # 0.10
            name="hf",
            base_url="https://router.huggingface.co/v1",
            key_variable="HF_TOKEN",
            structured="json_object",
            routed=True,
            service_tiers=(),
            price_id="huggingface",
            switches={
                "moonshotai/Kimi-K2.5": _THINKING,
                "moonshotai/Kimi-K2.6": Switch(
                    on={}, off={"chat_template_kwargs": {"thinking": False}}
                ),
                "Qwen/Qwen3.5-397B-A17B": _IN_TEMPLATE,
                "Qwen/Qwen3.6-35B-A3B": _IN_TEMPLATE,
                "google/gemma-4-31B-it": _IN_TEMPLATE,
            },
        ),
        # platform.moonshot.ai/docs: thinking is on unless it is disabled; kimi-k3 takes efforts
        _chat(
            name="moonshot",
            base_url="https://api.moonshot.ai/v1",
            key_variable="MOONSHOT_API_KEY",
            structured="json_object",
            extras=(),
            service_tiers=(),
            switches={"kimi-k2.5": _THINKING, "kimi-k2.6": _THINKING},
            price_id="moonshotai",
            cache="automatic",
        ),
        # docs.z.ai/guides/capabilities/thinking-mode: `thinking`; newer models take efforts too
        _chat(
            name="zai",
            base_url="https://api.z.ai/api/paas/v4",
            key_variable="ZAI_API_KEY",
            structured="json_object",
            extras=(),
            service_tiers=(),
            switches={"*": replace(_THINKING, efforts=True)},
            price_id="zai",
            cache="automatic",
        ),
        # alibabacloud.com/help/en/model-studio: `enable_thinking` beside OpenAI's parameters; JSON
        # mode
        _chat(
            name="aliyun",
            base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            key_variable="DASHSCOPE_API_KEY",
            structured="json_object",
            service_tiers=(),
            switches={
                "*": Switch(
                    on={"enable_thinking": True}, off={"enable_thinking": False}, efforts=True
                )
            },
        ),
        replace(
            # learn.microsoft.com/azure/foundry/openai: the v1 API; a model is the name of a
            # deployment
            OPENAI,
            name="azure",
            base_url="${AZURE_OPENAI_ENDPOINT}/openai/v1",
            key_variable="AZURE_OPENAI_API_KEY",
            price_id="azure",
            tiers_priced=False,
            batch=AZURE_BATCHES,
        ),
        # the address and the variable are those of fast-agent 0.10; what it is held to is not known
        Provider(
            name="metaai",
            dialect="openai-responses",
            base_url="https://api.meta.ai/v1",
            key_variable="META_AI_API_KEY",
            structured="json_object",
            service_tiers=(),
        ),
        # github.com/ollama/ollama docs/openai.md: json_schema is turned into a grammar; no key
        _chat(
            name="ollama",
            base_url="http://127.0.0.1:11434/v1",
            extras=(),
            service_tiers=(),
            cache="automatic",
        ),
        # docs.vllm.ai, docs.sglang.ai: both hold a model to a schema by a grammar; a key only where
        # the server asks for one. The counters: vLLM's v1/metrics/loggers.py (the second name is
        # older), SGLang's metrics/collector.py
        _chat(
            name="vllm",
            base_url="http://127.0.0.1:8000/v1",
            key_variable="VLLM_API_KEY",
            key_optional=True,
            service_tiers=(),
            cache="automatic",
            switches={"*": replace(_IN_TEMPLATE, efforts=True)},
            engine=(
                ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
                ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
            ),
        ),
        _chat(
            name="sglang",
            base_url="http://127.0.0.1:30000/v1",
            key_variable="SGLANG_API_KEY",
            key_optional=True,
            service_tiers=(),
            cache="automatic",
            switches={"*": replace(_IN_TEMPLATE, efforts=True)},
            engine=(("sglang:prompt_tokens",), ("sglang:cached_tokens",)),
        ),
        # docs.nvidia.com/dynamo: engines behind one address. Some of its chat processors drop a
        # schema without a word (github.com/ai-dynamo/dynamo/pull/10330). The counters are the sums
        # of two of its histograms
        _chat(
            name="dynamo",
            base_url="http://127.0.0.1:8000/v1",
            key_variable="DYNAMO_API_KEY",
            key_optional=True,
            structured="json_object",
            service_tiers=(),
            cache="automatic",
            switches={"*": replace(_IN_TEMPLATE, efforts=True)},
            engine=(
                ("dynamo_frontend_input_sequence_tokens_sum",),
                ("dynamo_frontend_cached_tokens_sum",),
            ),
        ),
        GENERIC,
        # whatever speaks the Responses API
        replace(
            GENERIC,
            name="openresponses",
            dialect="openai-responses",
            base_url="${OPENRESPONSES_BASE_URL}",
            key_variable="OPENRESPONSES_API_KEY",
        ),
    )
}
