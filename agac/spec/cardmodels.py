"""The keys of AgentCards: see `models`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import modelchecks as check
from agac.spec.cardwords import CAMEL_CASE
from agac.spec.filemodel import FileModel, NonEmpty


def _camel(value: Any) -> Any:
    """Reads the camelCase spellings that cards may use; both spellings of one key are left for `extra` to refuse."""
    if not isinstance(value, dict):
        return value
    return {key if (snake := CAMEL_CASE.get(key)) is None or snake in value else snake: v for key, v in value.items()}


class RequestParamsFile(FileModel):
    """Sampling and service parameters of a card."""

    max_tokens: int | None = Field(default=None, ge=1, description="The most tokens that a reply may have.")
    temperature: float | None = Field(default=None, ge=0, le=2, description="Sampling temperature.")
    top_p: float | None = Field(default=None, ge=0, le=1, description="Nucleus sampling; also written topP.")
    top_k: int | None = Field(default=None, ge=1, description="Of how many tokens one is chosen; also written topK.")
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="How likely a token must be beside the likeliest; also written minP."
    )
    repetition_penalty: float | None = Field(default=None, gt=0, description="Also written repetitionPenalty.")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, description="Also written presencePenalty.")
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, description="Also written frequencyPenalty.")
    stop_sequences: list[NonEmpty] | None = Field(default=None, min_length=1, description="Texts that end a reply.")
    service_tier: Literal["auto", "default", "flex", "priority", "standard_only", "fast"] | None = Field(
        default=None, description="Service tier; `fast` means priority."
    )


_AnyCase = Literal["agent"] | Annotated[str, Field(pattern="^[Aa][Gg][Ee][Nn][Tt]$")]


class CardFile(FileModel):
    """The front matter of an AgentCard of type agent."""

    type: Annotated[Literal["agent"], BeforeValidator(check.in_small_letters, json_schema_input_type=_AnyCase)] = Field(
        default="agent", description="Kind of the card."
    )
    name: NonEmpty | None = Field(default=None, description="Name; the file's name when left out.")
    description: NonEmpty | None = Field(default=None, description="What the agent is for.")
    instruction: NonEmpty | None = Field(default=None, description="System message; instead of the text below.")
    model: NonEmpty | None = Field(default=None, description="Model as `provider/model?key=value`.")
    request_params: Annotated[RequestParamsFile, BeforeValidator(_camel)] = Field(
        default=RequestParamsFile(), description="Sampling and service parameters."
    )
    messages: Annotated[list[NonEmpty], BeforeValidator(check.paths, json_schema_input_type=str | list[str])] | None = (
        Field(default=None, min_length=1, description="Files of messages that stand before the prompt.")
    )
    schema_version: int = Field(default=1, ge=1, le=1, description="Version of the card format.")
    default: bool = Field(default=False, description="No meaning in a workflow: the stage names its card.")
    tool_only: Annotated[bool, AfterValidator(check.not_tool_only)] = Field(default=False, description="Must be false.")
    use_history: bool = Field(default=False, description="Rows share no history; true only warns.")
    human_input: Annotated[bool, AfterValidator(check.nobody_there)] = Field(
        default=False, description="Must be false."
    )
