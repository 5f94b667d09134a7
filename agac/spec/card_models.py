"""Every mapping of an AgentCard's front matter as one frozen model, as `spec/models` has those of
workflow files."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.core.errors import did_you_mean
from agac.spec import card_checks
from agac.spec import validation as check
from agac.spec.card_checks import CAMEL_CASE, CARD_HINTS
from agac.spec.file_model import FileModel, NonEmpty, Paths, key
from agac.spec.project_models import TARGET, ApiKey, Headers, ServerName, Target
from agac.spec.tools import MAX_TURNS, StructuredTools


class RequestParamsFile(FileModel):
    """Sampling and service parameters of a card, and bounds of its conversations."""

    max_tokens: int | None = key("The most tokens that a reply may have.", ge=1)
    temperature: float | None = key("Sampling temperature.", ge=0, le=2)
    top_p: float | None = key("Nucleus sampling; also written topP.", ge=0, le=1)
    top_k: int | None = key("Of how many tokens one is chosen; also written topK.", ge=1)
    min_p: float | None = key(
        "How likely a token must be beside the likeliest; also written minP.", ge=0, le=1
    )
    repetition_penalty: float | None = key("Also written repetitionPenalty.", gt=0)
    presence_penalty: float | None = key("Also written presencePenalty.", ge=-2, le=2)
    frequency_penalty: float | None = key("Also written frequencyPenalty.", ge=-2, le=2)
    stop_sequences: list[NonEmpty] | None = key("Texts that end a reply.", min_length=1)
    service_tier: Literal["auto", "default", "flex", "priority", "standard_only", "fast"] | None = (
        key("Service tier; `fast` means priority.")
    )
    max_iterations: int | None = key(
        f"The most replies in a conversation; else {MAX_TURNS}.", ge=1, le=1_000
    )
    parallel_tool_calls: bool = key(
        "Whether the model may ask for several tools at once.", default=True
    )
    structured_tool_policy: StructuredTools = key(
        (
            "How tools go with a schema: in each request (`always`), in the last alone (`defer`), "
            "`no_tools`, or `auto`."
        ),
        default="auto",
    )
    tool_result_mode: Annotated[
        Literal["postprocess", "passthrough"], BeforeValidator(card_checks.result_mode)
    ] = key(
        (
            "With a tool's result the model goes on (`postprocess`), or it is the row's "
            "(`passthrough`)."
        ),
        default="postprocess",
    )
    streaming_timeout: float | None = key("Seconds that a streamed answer may be silent.", gt=0)
    structured_schema: dict[str, Any] | None = key(
        "JSON Schema of the result, where the stage has no output_schema."
    )
    metadata: dict[str, Any] | None = key("Not sent.")


class McpConnectFile(FileModel):
    """An MCP server of a card's own."""

    name: ServerName | None = key(
        "Its name, where servers are a list; made of the target when left out."
    )
    target: Target | None = key(TARGET)
    description: NonEmpty | None = key("What it is for.")
    headers: Headers = key("Headers for its URL; secrets as `${VARIABLE}`.", default={})
    access_token: ApiKey | None = key("Sent as `Authorization: Bearer`; as `${VARIABLE}`.")
    auth: dict[str, Any] | None = key("Nobody can log in while rows run: `{oauth: false}`.")
    management: Annotated[Literal["client"], BeforeValidator(card_checks.managed_here)] = key(
        "By agac.", default="client"
    )
    connector_id: Annotated[NonEmpty, AfterValidator(card_checks.no_connector)] | None = key(
        "Not supported."
    )
    defer_loading: bool = key("Without effect.", default=False)
    protocol_mode: Literal["auto", "modern", "legacy"] = key(
        "Without effect: each is understood.", default="auto"
    )

    def faults(self) -> Iterator[str]:
        target = self.target or ""
        if not target:
            yield "names no target; give a URL, or the command that starts the server"
        if (self.headers or self.access_token) and not target.startswith(("https://", "http://")):
            yield "headers and tokens are for a URL, and target is a command; remove them"
        check.header_value(f"Bearer {self.access_token or ''}")
        if self.access_token and any(name.lower() == "authorization" for name in self.headers):
            yield "access_token is the header Authorization, which is given too; keep one of them"
        if self.auth and self.auth.get("oauth") and not (self.access_token or self.headers):
            yield (
                "nobody can log in while rows run; give an access_token or headers in "
                "place of oauth"
            )


class FunctionToolFile(FileModel):
    """A function of the project as a tool."""

    entrypoint: NonEmpty = Field(
        description="`file.py:function`, relative to the card or to the project."
    )
    variant: Literal["code"] | None = key("Without effect: how a chat shows its calls.")
    code_arg: NonEmpty = key("Without effect, as `variant`.", default="code")
    language: NonEmpty = key("Without effect, as `variant`.", default="python")


_WrittenFunctions = NonEmpty | list[NonEmpty | FunctionToolFile] | FunctionToolFile
_WrittenServers = dict[NonEmpty, McpConnectFile] | list[McpConnectFile]
_HISTORY = "Without effect: rows share no history."


def _kind(value: Any) -> Any:
    """Returns the kind of a card, in any case of its letters."""
    kind = value.lower() if isinstance(value, str) else value
    if kind == "smart":
        message = (
            "`type: smart` is not supported: no model makes agents in a run; write `type: "
            "agent` and `agents`"
        )
        raise check.refused(message)
    if kind == "a2a":
        raise check.refused(
            f"`type: {value}` is not supported yet; write a card of type agent, or a tool "
            "that asks it"
        )
    if isinstance(kind, str) and kind not in CARD_MODELS:
        raise check.refused(f"unknown type {value!r}; {did_you_mean(value, CARD_MODELS, 'types')}")
    return kind


_ANY_CASE = BeforeValidator(_kind)  # its letters may be large or small


class CardKeys(FileModel):
    """What the front matter of an AgentCard may hold, whatever its type."""

    type: str = Field(description="Kind of the card.")
    name: NonEmpty | None = key("Name; the file's name when left out.")
    description: NonEmpty | None = key(
        "What the agent is for; where it is a tool, what the model is told."
    )
    instruction: NonEmpty | None = key("System message; instead of the text below.")
    schema_version: int = key("Version of the card format.", default=1, ge=1, le=1)
    default: bool = key("The card to take where a folder holds several.", default=False)
    tool_only: bool = key("Only other agents may call it: no stage may name it.", default=False)

    def faults(self) -> Iterator[str]:
        if self.default and self.tool_only:
            yield "default and tool_only exclude each other; remove one of them"


class AskingKeys(CardKeys):
    """The same of one that asks a model itself."""

    model: NonEmpty | None = key("Model as `provider/model?key=value`.")
    request_params: Annotated[RequestParamsFile, BeforeValidator(card_checks.camel_case)] = key(
        "Sampling and service parameters, and bounds of its conversations.",
        default=RequestParamsFile(),
    )
    messages: Paths | None = key("Files of messages that stand before the prompt.", min_length=1)
    api_key: ApiKey | None = key("The variable of its provider's key, as `${VARIABLE}`.")


class TalkingKeys(AskingKeys):
    """The same of one that may have a history elsewhere."""

    use_history: bool = key(_HISTORY, default=False)
    save_trajectory: bool = key(
        "Without effect; agac keeps every turn in its store.", default=False
    )
    human_input: Annotated[bool, AfterValidator(card_checks.nobody_there)] = key(
        "Must be false.", default=False
    )


class ServedKeys(TalkingKeys):
    """The same of one that may use MCP servers."""

    servers: list[ServerName] = key("MCP servers of agac.yml that the model may use.", default=[])
    tools: dict[NonEmpty, list[NonEmpty]] = key(
        "By server, the tools that may be called, or patterns.", default={}
    )
    resources: dict[NonEmpty, list[NonEmpty]] = key(
        "Without effect: only a server's tools are used.", default={}
    )
    prompts: dict[NonEmpty, list[NonEmpty]] = key(
        "Without effect: only a server's tools are used.", default={}
    )


class CardFile(ServedKeys):
    """The front matter of an AgentCard of type agent."""

    type: Annotated[Literal["agent"], _ANY_CASE] = key("Kind of the card.", default="agent")
    function_tools: Annotated[
        list[FunctionToolFile],
        BeforeValidator(card_checks.entrypoints, json_schema_input_type=_WrittenFunctions),
    ] = key("Functions that the model may call, as `file.py:function`.", default=[])
    mcp_connect: Annotated[
        dict[ServerName, McpConnectFile],
        BeforeValidator(card_checks.named_servers, json_schema_input_type=_WrittenServers),
    ] = key("MCP servers of its own, by name.", default={})
    agents: list[NonEmpty] = key("Other cards that the model may call as tools.", default=[])
    max_parallel: int | None = key("The most calls of each of its agents at a time.", gt=0)
    child_timeout_sec: float | None = key(
        "Seconds that a call of one of its agents may take.", gt=0
    )
    tool_input_schema: dict[str, Any] | None = key(
        "JSON Schema of what it is given as a tool; else a `message`."
    )
    skills: Annotated[
        list[NonEmpty], BeforeValidator(check.paths, json_schema_input_type=str | list[str])
    ] = key("Folders of skills that the model may read; none when left out.", default=[])
    variables: dict[NonEmpty, str] = key(
        "Values for `{{name}}` that neither `vars` nor --var give.", default={}
    )
    history_source: Literal["none", "messages", "child", "orchestrator"] = key(
        _HISTORY, default="none"
    )
    history_merge_target: Literal["none", "child", "orchestrator"] = key(_HISTORY, default="none")
    shell: Annotated[bool, AfterValidator(card_checks.no_shell)] = key(
        "Must be false.", default=False
    )
    cwd: NonEmpty | None = key("Without effect: no model is given a shell.")
    tool_hooks: Annotated[dict[str, Any], AfterValidator(card_checks.no_hooks)] = key(
        "Not supported.", default={}
    )
    lifecycle_hooks: Annotated[dict[str, Any], AfterValidator(card_checks.no_hooks)] = key(
        "Not supported.", default={}
    )
    commands: dict[str, Any] = key("Without effect: nobody types in a run.", default={})
    max_display_instances: int = key("Without effect: it is for a display.", default=20, gt=0)
    trim_tool_history: bool = key("Without effect: prefixes would not be the same.", default=False)
    subagents: Annotated[bool, AfterValidator(card_checks.no_subagents)] = key(
        "Must be false.", default=False
    )
    subagent_model: NonEmpty | None = key("Without effect: each agent's card says its own model.")
    harness_tools: Annotated[bool, AfterValidator(card_checks.no_harness)] = key(
        "Must be false.", default=False
    )


# Cards that are made of other cards.

_Members = Annotated[list[NonEmpty], Field(min_length=1)]
_OtherMembers = Annotated[_Members, AfterValidator(card_checks.no_agent_twice)]
_NoMessages = Annotated[Paths, AfterValidator(card_checks.no_messages)]


class ChainFile(CardKeys):
    """The front matter of a chain: each agent is given the reply of the one before."""

    type: Annotated[Literal["chain"], _ANY_CASE] = Field(description="Kind of the card.")
    sequence: _Members = Field(description="chain: the cards that are asked one after the other.")
    cumulative: bool = key(
        "chain: each is given the message and all replies so far.", default=False
    )


class ParallelFile(CardKeys):
    """The front matter of agents that are asked the same side by side."""

    type: Annotated[Literal["parallel"], _ANY_CASE] = Field(description="Kind of the card.")
    fan_out: _OtherMembers = Field(description="parallel: the cards that are asked side by side.")
    fan_in: NonEmpty | None = key(
        "parallel: the card that makes one answer of theirs; they are joined without."
    )
    include_request: bool = key(
        "parallel: whether `fan_in` is given the message, too.", default=True
    )

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.fan_in is None and "include_request" in self.model_fields_set:
            yield "include_request says what fan_in is given; add fan_in, or remove include_request"


class EvaluatorOptimizerFile(CardKeys):
    """The front matter of an agent whose answer is judged and asked for again until it is good
    enough."""

    type: Annotated[Literal["evaluator_optimizer"], _ANY_CASE] = Field(
        description="Kind of the card."
    )
    generator: NonEmpty = Field(description="evaluator_optimizer: the card that answers.")
    evaluator: NonEmpty = Field(description="evaluator_optimizer: the card that judges the answer.")
    min_rating: Literal["POOR", "FAIR", "GOOD", "EXCELLENT"] = key(
        "evaluator_optimizer: the rating that is good enough.", default="GOOD"
    )
    max_refinements: int = key(
        "evaluator_optimizer: how often the answer is asked for again at most.",
        default=3,
        ge=1,
        le=20,
    )
    refinement_instruction: NonEmpty | None = key(
        "evaluator_optimizer: what is said when it is asked for again."
    )
    messages: _NoMessages | None = key(
        "evaluator_optimizer: not supported here; they belong to the generator's card."
    )


class RouterFile(ServedKeys):
    """The front matter of a model that chooses which agent is asked."""

    type: Annotated[Literal["router"], _ANY_CASE] = Field(description="Kind of the card.")
    agents: _OtherMembers = Field(
        description="router: the cards of which one is chosen, by their descriptions."
    )


class OrchestratorFile(TalkingKeys):
    """The front matter of a model that plans, and asks other agents step by step."""

    type: Annotated[Literal["orchestrator"], _ANY_CASE] = Field(description="Kind of the card.")
    agents: _OtherMembers = Field(description="orchestrator: the cards that it may ask.")
    plan_type: Literal["full", "iterative"] = key(
        "orchestrator: whether all steps are planned at first, or one after the other.",
        default="full",
    )
    plan_iterations: int = key(
        "orchestrator, iterative_planner: how many turns it has at most.", default=5, ge=1
    )


class IterativePlannerFile(AskingKeys):
    """The front matter of a model that plans one step at a time."""

    type: Annotated[Literal["iterative_planner"], _ANY_CASE] = Field(
        description="Kind of the card."
    )
    agents: _OtherMembers = Field(description="iterative_planner: the cards that it may ask.")
    plan_iterations: Annotated[int, AfterValidator(card_checks.turns_or_none)] = key(
        "iterative_planner: how many turns it has at most; -1: no limit of its own.", default=-1
    )


class MakerFile(CardKeys):
    """The front matter of an agent that is asked until one answer leads by `k` votes."""

    type: Annotated[Literal["maker"], _ANY_CASE] = Field(description="Kind of the card.")
    worker: NonEmpty = Field(description="MAKER: the card that is asked.")
    k: int = key("MAKER: by how many votes an answer has to lead.", default=3, ge=1)
    max_samples: int = key(
        "MAKER: how often the worker is asked at most.", default=50, ge=1, le=100
    )
    match_strategy: Literal["exact", "normalized", "structured"] = key(
        "MAKER: when two answers are the same.", default="exact"
    )
    red_flag_max_length: int | None = key("MAKER: a reply of more characters has no vote.", ge=1)
    messages: _NoMessages | None = key(
        "MAKER: not supported here; they belong to the worker's card."
    )

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.max_samples < self.k:
            yield (
                f"nobody leads by {self.k} votes of {self.max_samples}; raise max_samples, "
                "or lower k"
            )


CARD_MODELS: dict[str, type[CardKeys]] = {
    "agent": CardFile,
    "chain": ChainFile,
    "parallel": ParallelFile,
    "evaluator_optimizer": EvaluatorOptimizerFile,
    "router": RouterFile,
    "orchestrator": OrchestratorFile,
    "iterative_planner": IterativePlannerFile,
    "maker": MakerFile,
}
"""The front matter of cards by their type, in small letters."""

MEMBERS = ("sequence", "fan_out", "fan_in", "generator", "evaluator", "worker", "agents")
"""The keys of cards that name other cards."""


def model_of(written: object) -> tuple[type[CardKeys], dict[str, dict[str, str]]]:
    """Returns the model of the front matter with this `type`, or the nearest one, else of agents';
    and sentences for unknown keys, by the path of their mapping: for those that cards of other
    types have."""
    if isinstance(written, str):
        near = get_close_matches(written.lower(), CARD_MODELS, 1, 0.75)
    else:
        near = []
    return _model_of(near[0] if near else "agent")


@cache
def _model_of(kind: str) -> tuple[type[CardKeys], dict[str, dict[str, str]]]:
    model = CARD_MODELS[kind]
    found = dict(CARD_HINTS[""])
    for other, keys in CARD_MODELS.items():
        for name in keys.model_fields:
            found.setdefault(
                name, f"`{name}` is a key of `type: {other}`, and this card is of type {kind}"
            )
    if not issubclass(model, AskingKeys):
        for name in (*CardFile.model_fields, *CAMEL_CASE.values(), "temperature"):
            found[name] = (
                f"`{name}` is for a card that asks a model itself, as a card of type {kind} "
                "does not; "
            )
            found[name] += "write it into those it names"
    return model, CARD_HINTS | {"": found}


# What the model of a planner is told before its card's instruction.
_PLANNER = """You answer a request by letting other agents work: each of your tools asks one of them.
An agent knows nothing but what you write to it, so give it all that it needs.
{}
Take what you answer from what the agents found. What none of them could find out, say that it is not known."""  # noqa: E501
_PLANS = {
    "full": """Before the first call write down all steps: which agent does what, and which need the results of others.
Then ask for all steps at once that need nothing that is missing, and so on. Change a step only where a result shows
that it was wrong.""",  # noqa: E501
    "iterative": """Plan one step at a time: what is to be done next follows from the request and from all results.
Ask an agent for that step, look at what it gives, and go on until nothing is missing.""",  # noqa: E501
}
NO_LIMIT = 1_000  # turns of a planner that has no limit of its own: what bounds it is `row_budget`


def as_agent(keys: CardKeys) -> tuple[CardKeys, str]:
    """Returns the agent that a router or planner is: cards it may ask are its tools; it is told to
    plan. Others stay."""
    same = {
        name: getattr(keys, name)
        for name in keys.model_fields_set & CardFile.model_fields.keys() - {"type"}
    }
    if isinstance(keys, RouterFile):
        return CardFile().model_copy(update=same | {"agents": []}), ""
    if not isinstance(keys, OrchestratorFile | IterativePlannerFile):
        return keys, ""
    turns = [keys.plan_iterations if keys.plan_iterations > 0 else NO_LIMIT]
    turns += [keys.request_params.max_iterations] if keys.request_params.max_iterations else []
    params = keys.request_params.model_copy(update={"max_iterations": min(turns)})
    plan = keys.plan_type if isinstance(keys, OrchestratorFile) else "iterative"
    return CardFile().model_copy(update=same | {"request_params": params}), _PLANNER.format(
        _PLANS[plan]
    )
