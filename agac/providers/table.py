"""The providers that agac knows as rows of data, with agac.yml's over them; what they can be told;
dialects by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agac.core.errors import Problem, Where
from agac.providers import anthropic, openai, openai_responses
from agac.providers.provider import SERVER_TOOLS, BatchTraits, Limits, Price, Provider, Switch

if TYPE_CHECKING:
    from agac.spec.project_models import ProviderSpec

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

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Locate = Callable[[tuple[str, ...]], Where]
"""The place of a key of agac.yml, by its path (`("providers", "local", "base_url")`)."""

_PLAIN = Provider(name="", dialect="", base_url="", structured="json_object")
"""What a row of agac.yml begins with whose dialect has no other beginning."""


def build_providers(
    specs: Mapping[str, ProviderSpec], env: Mapping[str, str], locate: Locate | None = None
) -> tuple[dict[str, Provider], list[Problem]]:
    """All providers by name: the shipped rows with the rows of agac.yml over them. `locate` points
    Problems at lines. A variable that is not set is no Problem here: it is on the row's
    `missing_variables`, for whoever uses the row."""
    providers = {name: _filled(row, env) for name, row in SHIPPED.items()}
    problems: list[Problem] = []
    for name, spec in specs.items():
        found = list(_troubles(name, spec))
        for keys, message in found:
            path = ("providers", name, *keys)
            where = locate(path) if locate else Where("agac.yml", path=".".join(path))
            problems.append(Problem(where, message))
        if not found:
            providers[name] = _overlay(name, spec, env)
    return providers, problems


def _troubles(name: str, spec: ProviderSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with a row of agac.yml: the key that it is about, and the words."""
    shipped = SHIPPED.get(name)
    if spec.dialect is None and shipped is None:
        yield (), f"dialect is missing; write one of {', '.join(sorted(DIALECTS))}"
    if spec.base_url is None and shipped is None:
        yield (
            (),
            (
                "base_url is missing; write the address before the dialect's path, like "
                "https://host/v1"
            ),
        )
    if spec.base_url is not None and (trouble := url_trouble(spec.base_url)):
        yield ("base_url",), trouble
    said = spec.batch
    if said is None:
        return
    dialect = spec.dialect or (shipped.dialect if shipped else None)
    if said.api == "openai":
        if said.finds_by == "count":
            yield (
                ("batch", "finds_by"),
                "OpenAI's batches are found by their key or their file; write key or file",
            )
        return
    if said.api == "anthropic" and dialect not in (None, "anthropic"):
        yield (
            ("batch",),
            f"Anthropic's batches hold messages, but the dialect is {dialect}; write batch: openai",
        )
    for key in sorted(
        said.model_fields_set - {"api", *(_INLINE if said.api == "anthropic" else ())}
    ):
        yield ("batch", key), f"means nothing where api is {said.api}; remove it"


_INLINE = ("max_requests", "max_bytes", "pages", "grace", "results_kept")
"""What can differ between those who take requests inline, as Anthropic does."""


def url_trouble(text: str) -> str | None:
    """What is wrong with a base URL as written; one that begins with a variable is judged where it
    is used."""
    if text.startswith("${"):
        return None
    parts = urlsplit(text)
    if not parts.netloc:
        return f"'{text}' is no address; it starts with https:// (or http://) and names a host"
    if parts.query or parts.fragment:
        return f"'{text}' goes on after the path; the dialect's own path is put at its end"
    for dialect in DIALECTS.values():
        if parts.path.rstrip("/").endswith(dialect.path):
            return (
                "the dialect adds its path itself; write "
                f"{text.rstrip('/').removesuffix(dialect.path)}"
            )
    return None


_SAID_AS_IT_IS = ("structured", "seeds", "tools", "tools_with_schema", "cache")
"""Columns that are keys of agac.yml, and replace what is known."""


def _overlay(name: str, spec: ProviderSpec, env: Mapping[str, str]) -> Provider:
    """The row of agac.yml, over the shipped one of that name if there is one."""
    base = SHIPPED.get(name) or LOOK_ALIKES.get(spec.dialect or "") or _PLAIN
    row = replace(
        base,
        name=name,
        dialect=spec.dialect or base.dialect,
        cache_min_tokens={"": spec.cache_min_tokens}
        if spec.cache_min_tokens is not None
        else base.cache_min_tokens,
        **{
            name: getattr(base if getattr(spec, name) is None else spec, name)
            for name in _SAID_AS_IT_IS
        },
        limits=Limits(**dict(spec.limits)),
        tool_prices={**base.tool_prices, **spec.tool_prices},
        prices={
            **base.prices,
            **{model: Price(**dict(price)) for model, price in spec.prices.items()},
        },
        batch=_batch(spec, base),
        # an embedded provider that is given an address is somebody's own server
        embedded=base.embedded and spec.base_url is None,
    )
    if spec.api_key is not None:
        only = _VARIABLE.fullmatch(spec.api_key)
        row = replace(row, key_variable=only[1] if only else None)
    return _filled(row, env, address=spec.base_url, key=spec.api_key, headers=spec.headers)


_LOGIN = re.compile(r"auth|api-?key|token|secret|cookie|password", re.IGNORECASE)


def _filled(
    row: Provider,
    env: Mapping[str, str],
    *,
    address: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Provider:
    """The row with what the environment says. `address`, `key` and `headers` are agac.yml's, with
    their `${VAR}`."""
    missing: list[str] = []
    values: list[str] = []

    def value(name: str) -> str:
        # keys are pasted into .env files: a line break at the end is never part of one
        found = env.get(name, "").strip()
        (values if found else missing).append(found or name)
        return found

    def fill(text: str) -> str:
        return _VARIABLE.sub(lambda match: value(match[1]), text)

    base_url = ""
    if not address:
        base_url = re.sub(r"(?<!:)/{2,}", "/", fill(row.base_url))
        values.clear()  # a shipped row's address that a user's variable names is no secret
    api_key = ""
    if key is not None:
        api_key = fill(key)
    elif row.key_variable and (not row.key_optional or env.get(row.key_variable, "").strip()):
        api_key = value(row.key_variable)
    sent = {name: fill(header) for name, header in headers.items()}
    logins = [
        word
        for name, text in sent.items()
        if _LOGIN.search(name)
        for word in (text, text.rpartition(" ")[2])
    ]
    return replace(
        row,
        base_url=(fill(address) if address else base_url).rstrip("/"),
        api_key=api_key or None,
        headers={**row.headers, **sent},
        missing_variables=tuple(dict.fromkeys(missing)),
        secrets=tuple(dict.fromkeys([*values, *([api_key] if api_key else []), *logins])),
        header_values=tuple(dict.fromkeys(sent.values())),
    )


def _batch(spec: ProviderSpec, base: Provider) -> BatchTraits | None:
    """The batch API as agac.yml tells it: over the provider's own row of the same API, else over
    all that speak it."""
    known = base.batch
    if known is not None and spec.base_url is not None and not base.simulated:
        # somebody's gateway: whether it hands our key through, and how late its list is, nobody has
        # said
        known = replace(known, grace=max(known.grace, GENERIC_BATCHES[known.api].grace))
    said = spec.batch
    if said is None:
        return known
    if said.api == "none":
        return None
    if known is not None and known.api == said.api:
        traits = known
    else:
        traits = GENERIC_BATCHES[said.api]
    changes: dict[str, Any] = {
        name: getattr(said, name) for name in said.model_fields_set - {"api"}
    }
    if said.windows is not None:
        changes["windows"] = tuple(said.windows)
    return replace(traits, **changes)


# Providers that agac does not reach, by the names that model strings have for them: why, and what
# to write instead.
#
# An entry of agac.yml's `providers` with such a name makes it an ordinary provider.

_SUBSCRIPTION = (
    "signs in with a person's subscription, which a run cannot do; use responses/{model} "
    "with an API key"
)

ELSEWHERE: dict[str, str] = {
    "anthropic-vertex": "is not supported: it signs in with Google's credentials; write "
    "anthropic/{model}, with a key of Anthropic's own",
    "bedrock": "is not supported: it signs requests in a way of its own; put an "
    "OpenAI-compatible gateway before it and name that under providers in agac.yml",
    "codexresponses": _SUBSCRIPTION,
    "copilot": _SUBSCRIPTION,
    "fast-agent": "means another program's test models; write simulator/small, which costs nothing",
    "google": "is not supported yet: Google's own API comes in a later version; write "
    "gemini/{model}, which reaches the same models over its OpenAI-compatible address",
    "googleoai": "is called gemini here; write gemini/{model}",
    "tensorzero": "is a gateway of your own; name it under providers in agac.yml with dialect "
    "openai-chat and base_url "
    "http://127.0.0.1:3000/openai/v1, and its functions as tensorzero::function_name::{model}",
    "test": (
        "has no models; write simulator/small, and `agac simulate` for slow answers, set "
        "replies and faults"
    ),
}


def refusal(provider: str, model: str) -> str:
    """The whole sentence for a model string that names such a provider."""
    return f"provider '{provider}' {ELSEWHERE[provider].format(model=model or '…')}"


DIALECTS = {
    "openai-chat": openai.CHAT,
    "openai-responses": openai_responses.RESPONSES,
    "anthropic": anthropic.MESSAGES,
}

# Asked before anything is sent: a provider's row and its dialect know, never its name.

# parameters that OpenAI's API does not have and some look-alikes do
EXTRAS = ("top_k", "min_p", "repetition_penalty")
SAMPLING = ("temperature", "top_p", "top_k")


def objections(
    model: str, params: Mapping[str, Any], transport: str | None, provider: Provider
) -> list[str]:
    """Why a model cannot be asked so; `params` by field name of `Params`, None where nothing is to
    be sent."""
    found = [
        *unsendable((name for name, value in params.items() if value is not None), provider, model)
    ]
    counted = [
        name
        for name in SERVER_TOOLS
        if params.get(name) not in (None, "on") and name in provider.server_tools
    ]
    if not provider.uses_bound:
        found += [
            f"{name}={params[name]}: {provider.name} takes no number of uses; write {name}=on"
            for name in counted
        ]
    reasoning = params.get("reasoning")
    if reasoning is not None and (why := _of_reasoning(model, reasoning, provider)):
        found.append(f"reasoning={reasoning}: {provider.name}/{model} {why}")
    found += of_tier(params.get("service_tier"), provider)
    if transport in ("ws", "auto") and DIALECTS[provider.dialect].socket_asks is None:
        found.append(
            f"transport={transport}: {provider.name} is asked over HTTP alone; leave it out, "
            "or ask through the Responses API (responses/…)"
        )
    return found


def unsendable(names: Iterable[str], provider: Provider, model: str = "") -> Iterator[str]:
    """Parameters for which the provider's API has no word, or which the model refuses, where one
    is named."""
    refused = DIALECTS[provider.dialect].refused
    for name in names:
        if name in refused:
            yield f"{name}: {refused[name]}"
        elif name == "seed" and not provider.seeds:
            yield f"seed: {provider.name} has no such parameter; leave it out"
        elif name in EXTRAS and provider.extras is not None and name not in provider.extras:
            yield f"{name}: {provider.name} has no such parameter; leave it out"
        elif name in SERVER_TOOLS and name not in provider.server_tools:
            who = [
                row.name
                for row in SHIPPED.values()
                if name in row.server_tools and not row.simulated
            ]
            yield (
                f"{name}: {provider.name} runs no such tool that agac knows of; name a model of "
                f"{' or '.join(who)}, or leave it out and give the stage a tool of its own"
            )
        elif name in SAMPLING and model.startswith(provider.unsampled):
            yield f"{name}: {provider.name}/{model} refuses it, as newer models do; leave it out"


def _of_reasoning(model: str, value: str, provider: Provider) -> str | None:
    """Why a model cannot be told to think so, and what to write; None: it can be."""
    switch = provider.switch_of(model)
    efforts = ", ".join(provider.efforts or ("none", "minimal", "low", "medium", "high"))
    if value.isdigit():
        counts = switch is not None and switch.tokens
        if counts:
            return None
        return f"takes no number of tokens; write an effort: {efforts}"
    if switch is None:
        no_switch = (
            "has no such switch that agac knows; write an effort: none, minimal, low, medium, high"
        )
        return no_switch if value in ("on", "off") else None
    if value in ("on", "off"):
        if (switch.on if value == "on" else switch.off) is not None:
            return None
        if value == "on" and switch.tokens:
            return "is told how many tokens it may think for; write reasoning=2048"
        return f"always thinks; write an effort: {efforts}"
    if not switch.efforts:
        if switch.tokens:
            return "takes no effort; write how many tokens it may think for, as reasoning=2048"
        return "thinks or does not; write reasoning=on or reasoning=off"
    known = provider.efforts is None or value in provider.efforts
    if known:
        return None
    return f"has no such effort; its efforts are {efforts}"


def of_budget(reasoning: str | None, max_tokens: int | None) -> Iterator[str]:
    """Why so many tokens cannot be thought with: they are a part of the reply's."""
    if (
        reasoning is not None
        and reasoning.isdigit()
        and max_tokens is not None
        and int(reasoning) >= max_tokens
    ):
        yield (
            f"reasoning={reasoning}: it is a part of max_tokens, {max_tokens}; raise "
            "max_tokens above it"
        )


def of_tier(value: str | None, provider: Provider) -> Iterator[str]:
    """Why a service tier cannot be had of a provider."""
    tiers = provider.service_tiers
    if value is not None and tiers is not None and value not in tiers:
        if tiers:
            known = f"its tiers are {', '.join(tiers)}"
        else:
            known = "it has no tiers; leave service_tier out"
        yield f"service_tier={value}: {provider.name} has no such tier; {known}"
