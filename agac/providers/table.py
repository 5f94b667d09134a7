"""The providers that agac knows, as data: one row each. What a provider can do is asked of its row, never of its name.

A row is a default, not a promise: agac.yml can say otherwise. Endpoints, keys and abilities are from the providers' API
references, read November 2026. Where a reference leaves an ability to the model behind the endpoint, the row takes the
weaker one: an answer is always validated here, so a weak row costs a few re-asks and a wrong strong one every row.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from agac.providers import batchtraits
from agac.providers.provider import Price, Provider, Switch

_chat = partial(Provider, dialect="openai-chat")
"""A row of what speaks chat completions, as most do."""

SIMULATOR_PRICE = Price(input=0.25, cached_input=0.025, output=2.0, batch=0.5)
"""What a simulated token would cost: the order of a small hosted model, so that cost reports have something to show."""

SIMULATOR = _chat(
    name="simulator",
    base_url="",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    prices={"*": SIMULATOR_PRICE},
    simulated=True,
    embedded=True,
    batch=batchtraits.SIMULATOR,
)

OPENAI = _chat(
    # platform.openai.com/docs/api-reference/chat: `max_tokens` is deprecated and refused by reasoning models
    name="openai",
    base_url="https://api.openai.com/v1",
    key_variable="OPENAI_API_KEY",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    service_tiers=("auto", "default", "flex", "priority"),
    price_id="openai",
    tiers_priced=True,
    batch=batchtraits.OPENAI,
)

GENERIC = _chat(
    # whatever speaks chat completions; agac.yml can say more about it than two variables can
    name="generic",
    base_url="${GENERIC_BASE_URL}",
    key_variable="GENERIC_API_KEY",
    key_optional=True,
    structured="json_object",
)

_THINKING = Switch(on={"thinking": {"type": "enabled"}}, off={"thinking": {"type": "disabled"}})

_IN_TEMPLATE = Switch(
    on={"chat_template_kwargs": {"enable_thinking": True}}, off={"chat_template_kwargs": {"enable_thinking": False}}
)

_ADAPTIVE = {"thinking": {"type": "adaptive"}}
_DISABLED = {"thinking": {"type": "disabled"}}
_COUNTED = Switch(on=None, off=_DISABLED, tokens=True)
"""A model that thinks when it is told for how many tokens."""

_ALWAYS = Switch(on=_ADAPTIVE, off=None, efforts=True)
"""A model that cannot be kept from thinking."""

ANTHROPIC = Provider(
    # platform.claude.com/docs/en/api/messages; which model takes what: build-with-claude/thinking-troubleshooting,
    # build-with-claude/effort and the models' migration guides. Models from 4.7 on refuse sampling parameters
    name="anthropic",
    dialect="anthropic",
    base_url="https://api.anthropic.com/v1",
    key_variable="ANTHROPIC_API_KEY",
    # what can be answered without a stream within the time that the API allows for it
    max_tokens=16_384,
    seeds=False,
    service_tiers=("auto", "standard_only"),
    efforts=("low", "medium", "high", "xhigh", "max"),
    unsampled=(
        "claude-opus-4-7",
        "claude-opus-4-8",
        "claude-opus-5",
        "claude-sonnet-5",
        "claude-haiku-5",
        "claude-fable",
        "claude-mythos",
    ),
    switches={
        **dict.fromkeys(
            ("claude-haiku-4-5", "claude-haiku-4-5-20251001", "claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
            _COUNTED,
        ),
        **dict.fromkeys(("claude-opus-4-5", "claude-opus-4-5-20251101"), replace(_COUNTED, efforts=True)),
        **dict.fromkeys(
            (
                "claude-opus-5-5",
                "claude-fable-5",
                "claude-fable-5-1",
                "claude-fable-5-2",
                "claude-mythos-5",
                "claude-mythos-5-1",
                "claude-mythos-5-2",
                "claude-mythos-preview",
            ),
            _ALWAYS,
        ),
        "claude-sonnet-5-5": Switch(on=_ADAPTIVE, off={"thinking": {"type": "between_tools"}}, efforts=True),
        "*": Switch(on=_ADAPTIVE, off=_DISABLED, efforts=True),
    },
    price_id="anthropic",
    batch=batchtraits.ANTHROPIC,
)

LOOK_ALIKES: dict[str, Provider] = {
    "anthropic": replace(
        ANTHROPIC,
        name="",
        base_url="",
        key_variable=None,
        structured="json_object",
        max_tokens=4096,
        service_tiers=None,
        switches={**ANTHROPIC.switches, "*": Switch(on=_ADAPTIVE, off=_DISABLED, efforts=True, tokens=True)},
        price_id=None,
        batch=None,
    )
}
"""What a row of agac.yml begins with, by its dialect, where it is not that of an ordinary look-alike."""

SHIPPED: dict[str, Provider] = {
    row.name: row
    for row in (
        SIMULATOR,
        # the same simulator, asked through the Responses API
        replace(SIMULATOR, name="simulator-responses", dialect="openai-responses"),
        # and through Anthropic's
        replace(
            LOOK_ALIKES["anthropic"],
            name="simulator-anthropic",
            structured="json_schema",
            service_tiers=("auto", "standard_only"),
            prices={"*": SIMULATOR_PRICE},
            simulated=True,
            embedded=True,
            batch=replace(batchtraits.ANTHROPIC, unsupported={}),
        ),
        OPENAI,
        # the same models, account and prices by OpenAI's other API
        replace(OPENAI, name="responses", dialect="openai-responses"),
        ANTHROPIC,
        _chat(
            # ai.google.dev/gemini-api/docs/openai: response_format takes json_schema; an error's body is a list of one
            name="gemini",
            base_url="https://generativelanguage.googleapis.com/v1beta/openai",
            key_variable="GEMINI_API_KEY",
            extras=(),
            # github.com/Vali-98/ChatterUI/issues/227: `Unknown name "seed": Cannot find field`
            seeds=False,
            price_id="google",
        ),
        _chat(
            # docs.mistral.ai/api: `random_seed`; unknown fields are refused with 422; json_schema is offered
            name="mistral",
            base_url="https://api.mistral.ai/v1",
            key_variable="MISTRAL_API_KEY",
            renames={"seed": "random_seed"},
            extras=(),
            service_tiers=(),
            # github.com/avante-corp/avante.nvim/issues/2347: refused too, and the usage comes without it
            stream_usage=False,
            price_id="mistral",
        ),
        _chat(
            # console.groq.com/docs/structured-outputs: json_schema for a few models only, JSON mode for all
            name="groq",
            base_url="https://api.groq.com/openai/v1",
            key_variable="GROQ_API_KEY",
            structured="json_object",
            max_tokens_field="max_completion_tokens",
            extras=(),
            service_tiers=("auto", "flex"),
            price_id="groq",
        ),
        _chat(
            # openrouter.ai/docs: json_schema depends on the model's host; errors can come with status 200
            name="openrouter",
            base_url="https://openrouter.ai/api/v1",
            key_variable="OPENROUTER_API_KEY",
            structured="json_object",
            price_id="openrouter",
        ),
        _chat(
            # docs.together.ai/docs/json-mode: depends on the model
            name="together",
            base_url="https://api.together.xyz/v1",
            key_variable="TOGETHER_API_KEY",
            structured="json_object",
            price_id="together",
        ),
        _chat(
            # docs.fireworks.ai/structured-responses: both modes for every model, by grammar
            name="fireworks",
            base_url="https://api.fireworks.ai/inference/v1",
            key_variable="FIREWORKS_API_KEY",
            price_id="fireworks",
        ),
        _chat(
            # api-docs.deepseek.com/guides/json_mode: JSON mode only
            name="deepseek",
            base_url="https://api.deepseek.com/v1",
            key_variable="DEEPSEEK_API_KEY",
            structured="json_object",
            extras=(),
            service_tiers=(),
            price_id="deepseek",
        ),
        _chat(
            # docs.x.ai/docs/guides/structured-outputs: json_schema for every current model
            name="xai",
            base_url="https://api.x.ai/v1",
            key_variable="XAI_API_KEY",
            extras=(),
            price_id="x-ai",
        ),
        _chat(
            # huggingface.co/docs/inference-providers: `model:route` names who runs the model. The switches are those
            # that the hosts of these models take, by the tables of fast-agent 0.10
            name="hf",
            base_url="https://router.huggingface.co/v1",
            key_variable="HF_TOKEN",
            structured="json_object",
            routed=True,
            service_tiers=(),
            switches={
                "moonshotai/Kimi-K2.5": _THINKING,
                "moonshotai/Kimi-K2.6": Switch(on={}, off={"chat_template_kwargs": {"thinking": False}}),
                "Qwen/Qwen3.5-397B-A17B": _IN_TEMPLATE,
                "Qwen/Qwen3.6-35B-A3B": _IN_TEMPLATE,
                "google/gemma-4-31B-it": _IN_TEMPLATE,
            },
            price_id="huggingface",
        ),
        _chat(
            # platform.moonshot.ai/docs: thinking is on unless it is disabled; kimi-k3 takes efforts
            name="moonshot",
            base_url="https://api.moonshot.ai/v1",
            key_variable="MOONSHOT_API_KEY",
            structured="json_object",
            extras=(),
            service_tiers=(),
            switches={"kimi-k2.5": _THINKING, "kimi-k2.6": _THINKING},
            price_id="moonshotai",
        ),
        _chat(
            # docs.z.ai/guides/capabilities/thinking-mode: `thinking`; newer models take efforts too
            name="zai",
            base_url="https://api.z.ai/api/paas/v4",
            key_variable="ZAI_API_KEY",
            structured="json_object",
            extras=(),
            service_tiers=(),
            switches={"*": replace(_THINKING, efforts=True)},
            price_id="zai",
        ),
        _chat(
            # alibabacloud.com/help/en/model-studio: `enable_thinking` beside OpenAI's parameters; JSON mode
            name="aliyun",
            base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            key_variable="DASHSCOPE_API_KEY",
            structured="json_object",
            service_tiers=(),
            switches={"*": Switch(on={"enable_thinking": True}, off={"enable_thinking": False}, efforts=True)},
        ),
        replace(
            # learn.microsoft.com/azure/foundry/openai: the v1 API; a model is the name of a deployment
            OPENAI,
            name="azure",
            base_url="${AZURE_OPENAI_ENDPOINT}/openai/v1",
            key_variable="AZURE_OPENAI_API_KEY",
            price_id="azure",
            tiers_priced=False,
            batch=batchtraits.AZURE,
        ),
        Provider(
            # the address and the variable are those of fast-agent 0.10; what it is held to is not known
            name="metaai",
            dialect="openai-responses",
            base_url="https://api.meta.ai/v1",
            key_variable="META_AI_API_KEY",
            structured="json_object",
            service_tiers=(),
        ),
        _chat(
            # github.com/ollama/ollama docs/openai.md: json_schema is turned into a grammar; no key
            name="ollama",
            base_url="http://127.0.0.1:11434/v1",
            extras=(),
            service_tiers=(),
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
"""The rows that come with agac, by name."""
