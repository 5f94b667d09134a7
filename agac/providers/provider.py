"""What agac knows about an endpoint: the columns of the provider table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agac.core.keys import SIMULATOR_KEY, account_mark

Structured = Literal["json_schema", "json_object", "none"]
"""How a provider can be held to a schema: by the schema itself, to JSON of any shape, or only by
being told."""

SERVER_TOOLS = ("web_search", "x_search", "web_fetch")
"""Tools that providers run, where they are asked to: fields of `Params`."""

Caching = Literal["none", "automatic", "openai", "anthropic"]
"""How a prompt's beginning is kept for later calls: not that we know; without being asked; by a
key, and by OpenAI's marks where a model wants them; by Anthropic's marks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an account may use; None: not limited by us."""

    concurrency: int | None = None
    """Calls at once."""
    rpm: int | None = None
    """Requests a minute."""
    tpm: int | None = None
    """Tokens a minute."""
    enqueued_tokens: int | None = None
    """Prompt tokens that may wait in batches of one model at once; None: not known, what a lane
    shows is learned."""
    reply_mb: int = 16
    """Megabytes of one decoded reply."""

    @property
    def reply_bytes(self) -> int:
        """Bytes of one decoded reply, at most."""
        return self.reply_mb * 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    """Of a token of the prompt."""
    output: float
    """Of a token of the answer."""
    cached_input: float | None = None
    """Of a token that a cache had; None: it costs what others do."""
    batch: float | None = None
    """The factor for batches; None: unknown."""
    flex: float | None = None
    """The factor for the service tier `flex`; None: unknown, full price."""
    priority: float | None = None
    """The factor for the service tier `priority`; None: unknown, full price."""
    above: tuple[tuple[int, Price], ...] = ()
    """From so many input tokens on, all tokens of the call have the other price; the highest such
    step counts."""
    cache_write: float | None = None
    """Of a token that is written to a cache; None: it costs what others do."""
    cache_write_1h: float | None = None
    """The same where it stays for an hour; None: as `cache_write`."""
    uses: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Of 1,000 uses of a tool that the provider runs, by its name."""


@dataclass(frozen=True, slots=True)
class Switch:
    """How a model's thinking is turned on and off."""

    on: Mapping[str, Any] | None
    """Added to the request to turn it on; None: it cannot be."""
    off: Mapping[str, Any] | None
    """Added to the request to turn it off; None: it cannot be."""
    efforts: bool = False
    """True if it takes efforts too."""
    tokens: bool = False
    """True if it takes a number of tokens to think with."""


FindsBy = Literal["key", "file", "count"]
"""How a batch is found of which we never learned the id: by our own key, which it echoes; by its
input file, which is its alone; by nothing but the number of its requests and the time (Anthropic),
to be confirmed by a result's id."""


@dataclass(frozen=True, slots=True)
class BatchTraits:
    """The batch API of a provider, as data: the column `batch` of the provider table. Sizes in
    bytes, times in seconds. Every number has its source where it is set."""

    api: str
    """The key of its implementation in `batch_apis.BATCH_APIS`."""
    max_requests: int = 50_000
    """Requests of a batch, at most."""
    max_bytes: int = 200_000_000
    """Bytes of the input, of the file or of the body, at most."""
    max_open: int | None = None
    """Batches (or their files) that may be open at once; None: unknown."""
    windows: tuple[str, ...] = ("24h",)
    """The completion windows that may be asked for, the default first."""
    endpoint_prefix: str = "/v1"
    """The prefix of a dialect's path in a line's `url` and a batch's `endpoint`."""
    finds_by: FindsBy = "key"
    """How a batch is found whose id is unknown."""
    filters: str | None = None
    """The parameter by which the list is asked for our key alone (`metadata[agac_intent]`); None:
    it is paged through. What comes is compared all the same."""
    pages: bool = True
    """True if the list has pages; else its end may be missing, and what is absent from it may
    still exist."""
    grace: float = 600.0
    """How long a batch may take to show up in the list after it was created."""
    expires: bool = True
    """True if the provider gives up what is not done in the window."""
    results_kept: float | None = 30 * 86_400.0
    """How long results can be fetched, from the creation of the batch; None: not known."""
    price_factor: float = 0.5
    """What its prices are multiplied by where agac.yml names no other factor."""
    unsupported: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Parameters (fields of `Params`) that batches do not take, each with what to do instead."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One endpoint and what is known about it."""

    name: str
    """The name that model strings and agac.yml have for it."""
    dialect: str
    """The key of its dialect in `agac.providers.table.DIALECTS`."""
    base_url: str
    """The address before the dialect's path, without a slash at its end. Empty: embedded and not
    yet started. `${VAR}` in a shipped row is what the user's environment says."""
    key_variable: str | None = None
    """The environment variable that holds the key; None: no key is sent, unless agac.yml gives
    one."""
    key_optional: bool = False
    """True if it can be asked without a key."""
    api_key: str | None = field(default=None, repr=False)
    """The key itself."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Sent with every request, after the dialect's own."""
    structured: Structured = "json_schema"
    """How it can be held to a schema."""
    strict_schema: bool = False
    """True if it knows OpenAI's `strict: true`; it is sent for schemas inside that subset."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The wire name of the parameter `max_tokens`."""
    max_tokens: int = 4096
    """The `max_tokens` that is sent where nothing is said, by a dialect that cannot do without."""
    renames: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Wire names of other parameters where they differ from OpenAI's."""
    extras: tuple[str, ...] | None = None
    """Which parameters beyond OpenAI's it takes (`top_k`, `min_p`, `repetition_penalty`); None:
    unknown, all sent."""
    seeds: bool = True
    """True if it can be told a seed; False: it refuses it. (Where the dialect has no word for it,
    none is sent.)"""
    service_tiers: tuple[str, ...] | None = None
    """The service tiers that it has; None: unknown, any is sent."""
    efforts: tuple[str, ...] | None = None
    """The efforts of thinking that it knows; None: unknown, any is sent."""
    unsampled: tuple[str, ...] = ()
    """How the names of models begin that refuse `temperature`, `top_p` and `top_k`."""
    routed: bool = False
    """True if it hands calls on to the provider named after a colon: `model:route`."""
    switches: Mapping[str, Switch] = field(default_factory=dict, hash=False)
    """How thinking is turned on and off, by model; `*`: any other. A model that has none takes
    efforts."""
    stream_usage: bool = True
    """True if it is asked to count the tokens of a stream (`stream_options`); False: it refuses
    that."""
    server_tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Tools that it runs itself, by the names of `Params`: what is put among a request's tools."""
    source_list: str | None = None
    """What a Responses API is asked to `include`, so that a search tells of all pages that it
    found; None: nothing."""
    uses_bound: str | None = None
    """The parameter that bounds the uses of such a tool in a call; None: none that we know."""
    tool_prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    """US dollars for 1,000 uses of such a tool."""
    tools: bool = True
    """True if it takes tools."""
    tools_with_schema: bool = False
    """True if it takes tools and a schema in one request; False: a grammar would keep the model
    from calling, or it is refused."""
    call_ids: str = r".{1,64}|.*__thought__.*"
    """The ids of tools' calls that it takes back, as a pattern. OpenAI's APIs take 64 characters,
    and many of those who look like them do. LiteLLM keeps Gemini's signature in a longer id, which
    is no use to it when it is cut."""
    cache: Caching = "none"
    """How it keeps a prompt's beginning for later calls."""
    cache_min_tokens: Mapping[str, int] = field(default_factory=lambda: {"": 1024}, hash=False)
    """The shortest beginning of a prompt that is kept, by how the names of models begin."""
    marked: str | None = None
    """Models of which only a beginning that ends at a mark is kept (OpenAI's): a pattern of their
    names."""
    limits: Limits = field(default_factory=Limits)
    """What the user allows; the shipped rows leave it open, since it differs by account."""
    prices: Mapping[str, Price] = field(default_factory=dict, hash=False)
    """Prices by model that win over the price library's."""
    price_id: str | None = None
    """The provider's name in the price library; None: only `prices` counts. A route is added to
    it."""
    tiers_priced: bool = False
    """True if the price library has the prices of its service tiers too."""
    simulated: bool = False
    """True if its replies come from no model: shown as simulated, and its costs as
    `simulated $`."""
    embedded: bool = False
    """True if agac starts it by itself for the time of a run."""
    batch: BatchTraits | None = None
    """Its batch API; None: sync only."""
    engine: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """Of a serving engine of the user's own: what it calls the counters of prompt tokens, and of
    those that its prefix cache had, without `_total`, newest name first (`backend.engine_counts`);
    None: a service, which has no such."""
    hints: int | None = None
    """The minor version of Dynamo 1 whose hints it is sent (`providers.hints`); None: none."""
    offline: bool = False
    """True if nothing is ever sent to it: its calls are answered in its place."""
    missing_variables: tuple[str, ...] = ()
    """Variables that the row needs and the environment lacks: an error as soon as the provider is
    used."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Values never to be shown: the key, what the environment put into a header or the URL,
    headers that log in."""
    header_values: tuple[str, ...] = field(default=(), repr=False)
    """Values of headers as agac.yml writes them: in no message, log or stored error, but perhaps
    words of an answer."""

    @property
    def account(self) -> str:
        """A mark that tells its accounts apart and holds nothing secret. The port of an embedded
        one is another each time."""
        return account_mark("" if self.embedded else self.base_url, self.api_key)

    def at_simulator(self, base_url: str, key: str = "") -> Provider:
        """Returns the row of an embedded one that runs at `base_url` and answers requests with
        `key`; empty: it answers all."""
        headers = {**self.headers, SIMULATOR_KEY: key} if key else self.headers
        return replace(self, base_url=base_url, headers=headers)

    @property
    def simulator_key(self) -> str:
        """What an embedded one wants to be sent; empty: nothing."""
        return self.headers.get(SIMULATOR_KEY, "")

    @property
    def without_batches(self) -> str:
        """What can be done where batches are to be asked for and it has none that agac knows."""
        api = "openai"
        words = "OpenAI's Batch API"
        if self.dialect == "anthropic":
            api = "anthropic"
            words = "Anthropic's Message Batches API"
        return (
            f"write `run_mode: sync` there, or, if the endpoint speaks {words}, "
            f"`providers: {{{self.name}: {{batch: {api}}}}}` in agac.yml"
        )

    def switch_of(self, model: str) -> Switch | None:
        """Returns how a model's thinking is turned on and off, None when it has no switch. `model`
        may hold a route."""
        name = model.partition(":")[0] if self.routed else model
        return self.switches.get(name) or self.switches.get("*")

    def least_cached(self, model: str) -> int | None:
        """Returns the tokens from which the beginning of a prompt is kept; None: none is, as far
        as we know."""
        if self.cache == "none":
            return None
        starts = [start for start in self.cache_min_tokens if model.startswith(start)]
        return self.cache_min_tokens[max(starts, key=len)]

    def meant_reasoning(self, model: str, value: str | None) -> str | None:
        """Returns `off` as the effort `none` where there is no switch, and the other way round."""
        switch = self.switch_of(model)
        if value == "off" and switch is None:
            return "none"
        if value == "none" and not self._has_effort_none(switch):
            return "off"
        return value

    def _has_effort_none(self, switch: Switch | None) -> bool:
        """True if a model with this switch takes the effort `none`."""
        if switch is None:
            return True
        return switch.efforts and (self.efforts is None or "none" in self.efforts)
