"""The providers that agac knows, as data: one row each. What a provider can do is asked of its row, never of its name.

A row is a default, not a promise: agac.yml can say otherwise. Endpoints, keys and abilities are from the providers' API
references, read November 2026. Where a reference leaves an ability to the model behind the endpoint, the row takes the
weaker one: an answer is always validated here, so a weak row costs a few re-asks and a wrong strong one every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Structured = Literal["json_schema", "json_object", "none"]
"""How a provider can be held to a schema: by the schema itself, to JSON of any shape, or only by being told."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an account may use at once and a minute; None: not limited by us."""

    concurrency: int | None = None
    rpm: int | None = None
    tpm: int | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `cached_input` None: cached tokens cost what others do.

    `batch`, `flex`, `priority` are factors for that mode and those service tiers; None: not known, full price.

    `above`: from so many input tokens on, all tokens of the call have the other price; the highest such step counts.
    """

    input: float
    output: float
    cached_input: float | None = None
    batch: float | None = None
    flex: float | None = None
    priority: float | None = None
    above: tuple[tuple[int, Price], ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """How a model's thinking is turned on and off: what is added to the request. `efforts`: it takes those too."""

    on: Mapping[str, Any]
    off: Mapping[str, Any]
    efforts: bool = False


@dataclass(frozen=True, slots=True)
class Provider:
    """One endpoint and what is known about it."""

    name: str
    """How model strings and agac.yml call it."""
    dialect: str
    """The key of its dialect in `agac.providers.dialects.DIALECTS`."""
    base_url: str
    """What stands before the dialect's path, without a slash at its end. Empty: embedded and not yet started. `${VAR}`
    in a shipped row is what the user's environment says."""
    key_variable: str | None = None
    """The environment variable that holds the key; None: no key is sent, unless agac.yml gives one."""
    key_optional: bool = False
    """Can be asked without a key."""
    api_key: str | None = field(default=None, repr=False)
    """The key itself."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Sent with every request, after the dialect's own."""
    structured: Structured = "json_schema"
    """How a schema is enforced."""
    strict_schema: bool = False
    """Knows OpenAI's `strict: true`; it is sent for schemas that lie inside that subset."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The wire name of `max_tokens`."""
    renames: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Wire names of other parameters where they differ from OpenAI's."""
    extras: tuple[str, ...] | None = None
    """Which parameters beyond OpenAI's it takes (`top_k`, `min_p`, `repetition_penalty`); None: not known, all are
    sent."""
    service_tiers: tuple[str, ...] | None = None
    """The service tiers that it has; None: not known, any is sent."""
    routed: bool = False
    """Hands calls on to whoever is named after a colon: `model:route`."""
    switches: Mapping[str, Switch] = field(default_factory=dict, hash=False)
    """How thinking is turned on and off, by model; `*`: any other. A model that has none takes efforts."""
    stream_usage: bool = True
    """Is to be told that a stream should count its tokens (`stream_options`); False: it refuses to be told."""
    limits: Limits = field(default_factory=Limits)
    """What the user allows; the shipped rows leave it open, since it differs by account."""
    prices: Mapping[str, Price] = field(default_factory=dict, hash=False)
    """Prices by model that win over the price library's."""
    price_id: str | None = None
    """The provider's name in the price library; None: only `prices` counts. A route is added to it."""
    tiers_priced: bool = False
    """The price library has the prices of its service tiers too."""
    simulated: bool = False
    """Its replies come from no model: shown as simulated, and its costs as `simulated $`."""
    embedded: bool = False
    """agac starts it by itself for the time of a run."""
    batch: str | None = None
    """The batch API it speaks; None: sync only."""
    missing_variables: tuple[str, ...] = ()
    """Variables that the row needs and the environment lacks: an error as soon as the provider is used."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values that must never be shown: the key, and whatever came from the environment into a header or the URL."""

    def switch_of(self, model: str) -> Switch | None:
        """How a model's thinking is turned on and off, None when it has no switch. `model` may hold a route."""
        name = model.partition(":")[0] if self.routed else model
        return self.switches.get(name) or self.switches.get("*")

    def meant_reasoning(self, model: str, value: str | None) -> str | None:
        """`off` as the effort `none` where there is no switch, and the other way round."""
        switch = self.switch_of(model)
        if value == "off" and switch is None:
            return "none"
        return "off" if value == "none" and switch is not None and not switch.efforts else value


SIMULATOR_PRICE = Price(input=0.25, cached_input=0.025, output=2.0, batch=0.5)
"""What a simulated token would cost: the order of a small hosted model, so that cost reports have something to show."""

SIMULATOR = Provider(
    name="simulator",
    dialect="openai-chat",
    base_url="",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    prices={"*": SIMULATOR_PRICE},
    simulated=True,
    embedded=True,
)

SIMULATOR_RESPONSES = replace(SIMULATOR, name="simulator-responses", dialect="openai-responses")
"""The same simulator, asked through the Responses API."""

OPENAI = Provider(
    # platform.openai.com/docs/api-reference/chat: `max_tokens` is deprecated and refused by reasoning models
    name="openai",
    dialect="openai-chat",
    base_url="https://api.openai.com/v1",
    key_variable="OPENAI_API_KEY",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    service_tiers=("auto", "default", "flex", "priority"),
    price_id="openai",
    tiers_priced=True,
)

RESPONSES = replace(OPENAI, name="responses", dialect="openai-responses")
"""The same models, account and prices by OpenAI's other API."""

GEMINI = Provider(
    # ai.google.dev/gemini-api/docs/openai: response_format takes json_schema; an error's body is a list of one
    name="gemini",
    dialect="openai-chat",
    base_url="https://generativelanguage.googleapis.com/v1beta/openai",
    key_variable="GEMINI_API_KEY",
    extras=(),
    price_id="google",
)

MISTRAL = Provider(
    # docs.mistral.ai/api: `random_seed`; unknown fields are refused with 422; json_schema is offered
    name="mistral",
    dialect="openai-chat",
    base_url="https://api.mistral.ai/v1",
    key_variable="MISTRAL_API_KEY",
    renames={"seed": "random_seed"},
    extras=(),
    service_tiers=(),
    # github.com/avante-corp/avante.nvim/issues/2347: refused too, and the usage comes without it
    stream_usage=False,
    price_id="mistral",
)

GROQ = Provider(
    # console.groq.com/docs/structured-outputs: json_schema for a few models only, JSON mode for all
    name="groq",
    dialect="openai-chat",
    base_url="https://api.groq.com/openai/v1",
    key_variable="GROQ_API_KEY",
    structured="json_object",
    max_tokens_field="max_completion_tokens",
    extras=(),
    service_tiers=("auto", "flex"),
    price_id="groq",
)

OPENROUTER = Provider(
    # openrouter.ai/docs: json_schema depends on the model's host; errors can come with status 200
    name="openrouter",
    dialect="openai-chat",
    base_url="https://openrouter.ai/api/v1",
    key_variable="OPENROUTER_API_KEY",
    structured="json_object",
    price_id="openrouter",
)

TOGETHER = Provider(
    # docs.together.ai/docs/json-mode: depends on the model
    name="together",
    dialect="openai-chat",
    base_url="https://api.together.xyz/v1",
    key_variable="TOGETHER_API_KEY",
    structured="json_object",
    price_id="together",
)

FIREWORKS = Provider(
    # docs.fireworks.ai/structured-responses: both modes for every model, by grammar
    name="fireworks",
    dialect="openai-chat",
    base_url="https://api.fireworks.ai/inference/v1",
    key_variable="FIREWORKS_API_KEY",
    price_id="fireworks",
)

DEEPSEEK = Provider(
    # api-docs.deepseek.com/guides/json_mode: JSON mode only
    name="deepseek",
    dialect="openai-chat",
    base_url="https://api.deepseek.com/v1",
    key_variable="DEEPSEEK_API_KEY",
    structured="json_object",
    extras=(),
    service_tiers=(),
    price_id="deepseek",
)

XAI = Provider(
    # docs.x.ai/docs/guides/structured-outputs: json_schema for every current model
    name="xai",
    dialect="openai-chat",
    base_url="https://api.x.ai/v1",
    key_variable="XAI_API_KEY",
    extras=(),
    price_id="x-ai",
)

OLLAMA = Provider(
    # github.com/ollama/ollama docs/openai.md: json_schema is turned into a grammar; no key
    name="ollama",
    dialect="openai-chat",
    base_url="http://127.0.0.1:11434/v1",
    extras=(),
    service_tiers=(),
)

_THINKING = Switch(on={"thinking": {"type": "enabled"}}, off={"thinking": {"type": "disabled"}})
_IN_TEMPLATE = Switch(
    on={"chat_template_kwargs": {"enable_thinking": True}}, off={"chat_template_kwargs": {"enable_thinking": False}}
)

HUGGINGFACE = Provider(
    # huggingface.co/docs/inference-providers: `model:route` names who runs the model. The switches are those that the
    # hosts of these models take, by the tables of fast-agent 0.10
    name="hf",
    dialect="openai-chat",
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
)

MOONSHOT = Provider(
    # platform.moonshot.ai/docs: thinking is on unless it is disabled; kimi-k3 takes efforts
    name="moonshot",
    dialect="openai-chat",
    base_url="https://api.moonshot.ai/v1",
    key_variable="MOONSHOT_API_KEY",
    structured="json_object",
    extras=(),
    service_tiers=(),
    switches={"kimi-k2.5": _THINKING, "kimi-k2.6": _THINKING},
    price_id="moonshotai",
)

ZAI = Provider(
    # docs.z.ai/guides/capabilities/thinking-mode: `thinking`; newer models take efforts too
    name="zai",
    dialect="openai-chat",
    base_url="https://api.z.ai/api/paas/v4",
    key_variable="ZAI_API_KEY",
    structured="json_object",
    extras=(),
    service_tiers=(),
    switches={"*": replace(_THINKING, efforts=True)},
    price_id="zai",
)

ALIYUN = Provider(
    # alibabacloud.com/help/en/model-studio: `enable_thinking` beside OpenAI's parameters; JSON mode
    name="aliyun",
    dialect="openai-chat",
    base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    key_variable="DASHSCOPE_API_KEY",
    structured="json_object",
    service_tiers=(),
    switches={"*": Switch(on={"enable_thinking": True}, off={"enable_thinking": False}, efforts=True)},
)

AZURE = Provider(
    # learn.microsoft.com/azure/foundry/openai: the v1 API; a model is the name of a deployment
    name="azure",
    dialect="openai-chat",
    base_url="${AZURE_OPENAI_ENDPOINT}/openai/v1",
    key_variable="AZURE_OPENAI_API_KEY",
    strict_schema=True,
    max_tokens_field="max_completion_tokens",
    extras=(),
    service_tiers=("auto", "default", "flex", "priority"),
    price_id="azure",
)

META = Provider(
    # the address and the variable are those of fast-agent 0.10; what it is held to is not known
    name="metaai",
    dialect="openai-responses",
    base_url="https://api.meta.ai/v1",
    key_variable="META_AI_API_KEY",
    structured="json_object",
    service_tiers=(),
)

GENERIC = Provider(
    # whatever speaks chat completions; agac.yml can say more about it than two variables can
    name="generic",
    dialect="openai-chat",
    base_url="${GENERIC_BASE_URL}",
    key_variable="GENERIC_API_KEY",
    key_optional=True,
    structured="json_object",
)

OPENRESPONSES = replace(
    GENERIC,
    name="openresponses",
    dialect="openai-responses",
    base_url="${OPENRESPONSES_BASE_URL}",
    key_variable="OPENRESPONSES_API_KEY",
)
"""Whatever speaks the Responses API."""

SHIPPED: dict[str, Provider] = {
    row.name: row
    for row in (
        SIMULATOR,
        SIMULATOR_RESPONSES,
        OPENAI,
        RESPONSES,
        GEMINI,
        MISTRAL,
        GROQ,
        OPENROUTER,
        TOGETHER,
        FIREWORKS,
        DEEPSEEK,
        XAI,
        HUGGINGFACE,
        MOONSHOT,
        ZAI,
        ALIYUN,
        AZURE,
        META,
        OLLAMA,
        GENERIC,
        OPENRESPONSES,
    )
}
"""The rows that come with agac, by name."""
