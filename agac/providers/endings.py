"""How servers say that an answer ended: each dialect's words, with what they mean and where each
is documented.

OpenAI's five words are not all that servers with its API use, and a word that is misread throws
away an answer that was paid for, or takes half an answer for a whole one. A new word is a new
line: the source says where to look it up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agac.core.errors import storable
from agac.core.types import FaultKind, Finish

AGAIN = FaultKind.RETRY
"""The server broke the answer off, through no fault of the request: asking again may bring a whole
one."""

Meaning = Finish | FaultKind


class AnswerEnd(NamedTuple):
    """Why an answer ended."""

    meaning: Meaning
    """A `Finish`, or AGAIN."""
    word: str = ""
    """The server's own word, cut after MAX_WORD characters; empty where it gives none."""


MAX_WORD = 80

_OPENAI = "platform.openai.com/docs/api-reference/chat/object"
_OPENAI_RESPONSES = "developers.openai.com/api/reference/responses, incomplete_details"
_ANTHROPIC = "platform.claude.com/docs/en/build-with-claude/handling-stop-reasons"
_BEDROCK = "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_MessageStopEvent.html"
_GEMINI = (
    "ai.google.dev/api/generate-content#FinishReason, "
    "googleapis.github.io/js-genai/enums/types.FinishReason.html"
)
_MISTRAL = "mistralai/client-python, docs/models/chatcompletionchoicefinishreason.md"
_DEEPSEEK = "api-docs.deepseek.com/api/create-chat-completion"
_ZHIPU = "docs.bigmodel.cn/api-reference, chat completions"
_COHERE = "docs.cohere.com/v2/reference/chat"
_COHERE_V1 = (
    "docs.cohere.com/v1/reference/chat; docs.oracle.com, CohereChatResponse.FinishReasonEnum"
)
_WATSONX = "ibm.github.io/watsonx-ai-node-sdk 1.7, TextChatResultChoice and TextGenResult"
_VLLM = "vllm-project/vllm, vllm/v1/engine/__init__.py"
_TGI = "huggingface/text-generation-inference, before pull request 2344"
_AI_SDK = "ai-sdk.dev/docs/reference/ai-sdk-core/generate-text, finishReason; opencode-ai 1.18.33"

_CHAT_WORDS: tuple[tuple[str, Meaning, str], ...] = (
    ("stop", Finish.STOP, _OPENAI),
    ("length", Finish.LENGTH, _OPENAI),
    ("content_filter", Finish.FILTER, _OPENAI),
    ("tool_calls", Finish.TOOLS, _OPENAI),
    ("function_call", Finish.TOOLS, _OPENAI),
    # engines
    ("eos_token", Finish.STOP, _TGI),
    ("stop_sequence", Finish.STOP, _TGI),
    ("abort", AGAIN, f"{_VLLM}; sgl-project/sglang, schedule_batch.py"),
    ("error", AGAIN, f"{_MISTRAL}; {_VLLM}"),
    ("repetition", AGAIN, f"{_VLLM} (repetition detection); BerriAI/litellm pull request 27101"),
    ("eos", Finish.STOP, "docs.together.ai/reference/chat-completions-1"),
    (
        "end",
        Finish.STOP,
        "earendil-works/pi issue 2107: compatible providers' word for a normal end",
    ),
    # Mistral, DeepSeek, Zhipu
    ("model_length", Finish.LENGTH, _MISTRAL),
    ("insufficient_system_resource", AGAIN, _DEEPSEEK),
    ("sensitive", Finish.FILTER, _ZHIPU),
    ("network_error", AGAIN, _ZHIPU),
    # Cohere, watsonx
    ("complete", Finish.STOP, _COHERE),
    ("tool_call", Finish.TOOLS, _COHERE),
    ("timeout", AGAIN, _COHERE),
    ("error_toxic", Finish.FILTER, _COHERE_V1),
    ("error_limit", Finish.LENGTH, _COHERE_V1),
    ("user_cancel", AGAIN, _COHERE_V1),
    ("token_limit", Finish.LENGTH, _WATSONX),
    ("time_limit", AGAIN, _WATSONX),
    ("cancelled", AGAIN, _WATSONX),
    # Gemini (in capitals)
    ("max_tokens", Finish.LENGTH, f"{_GEMINI}; {_COHERE}; {_WATSONX}"),
    ("safety", Finish.FILTER, _GEMINI),
    ("recitation", Finish.FILTER, _GEMINI),
    ("language", Finish.FILTER, _GEMINI),
    ("blocklist", Finish.FILTER, _GEMINI),
    ("prohibited_content", Finish.FILTER, _GEMINI),
    ("spii", Finish.FILTER, _GEMINI),
    ("image_safety", Finish.FILTER, _GEMINI),
    (
        "model_armor",
        Finish.FILTER,
        "cloud.google.com/vertex-ai, GenerateContentResponse.FinishReason",
    ),
    ("malformed_function_call", AGAIN, _GEMINI),
    ("malformed_response", AGAIN, _GEMINI),
    ("unexpected_tool_call", AGAIN, _GEMINI),
    ("too_many_tool_calls", AGAIN, _GEMINI),
    # other makers' words, which gateways leave as they are
    (
        "end_turn",
        Finish.STOP,
        "docs.x.ai/docs/api-reference; aws-samples/bedrock-access-gateway issue 11",
    ),
    ("tool_use", Finish.TOOLS, _ANTHROPIC),
    ("refusal", Finish.REFUSAL, _ANTHROPIC),
    ("model_context_window_exceeded", Finish.LENGTH, f"{_ANTHROPIC}; {_ZHIPU}"),
    ("max_output_tokens", Finish.LENGTH, _OPENAI_RESPONSES),
    ("guardrail_intervened", Finish.FILTER, _BEDROCK),
    ("content_filtered", Finish.FILTER, _BEDROCK),
    ("malformed_model_output", AGAIN, _BEDROCK),
    ("malformed_tool_use", AGAIN, _BEDROCK),
)

_MESSAGE_WORDS: tuple[tuple[str, Meaning, str], ...] = (
    ("end_turn", Finish.STOP, _ANTHROPIC),
    ("stop_sequence", Finish.STOP, _ANTHROPIC),
    ("max_tokens", Finish.LENGTH, _ANTHROPIC),
    ("model_context_window_exceeded", Finish.LENGTH, _ANTHROPIC),
    ("refusal", Finish.REFUSAL, _ANTHROPIC),
    ("tool_use", Finish.TOOLS, _ANTHROPIC),
    ("pause_turn", Finish.PAUSED, _ANTHROPIC),
)

_RESPONSE_WORDS: tuple[tuple[str, Meaning, str], ...] = (
    ("max_output_tokens", Finish.LENGTH, _OPENAI_RESPONSES),
    ("content_filter", Finish.FILTER, _OPENAI_RESPONSES),
)
"""Why a response is incomplete; `steered` and `max_messages` cannot happen here."""

_SESSION_WORDS: tuple[tuple[str, Meaning, str], ...] = (
    ("stop", Finish.STOP, _AI_SDK),
    ("length", Finish.LENGTH, _AI_SDK),
    ("content_filter", Finish.FILTER, _AI_SDK),
)


def _table(*words: Iterable[tuple[str, Meaning, str]]) -> dict[str, Meaning]:
    return {word: meaning for lines in words for word, meaning, _ in lines}


CHAT_ENDINGS: Mapping[str, Meaning] = _table(_CHAT_WORDS)

MESSAGE_ENDINGS: Mapping[str, Meaning] = _table(_CHAT_WORDS, _MESSAGE_WORDS)
"""Servers that speak Anthropic's protocol as a second one may keep the words of their first."""

RESPONSE_ENDINGS: Mapping[str, Meaning] = {
    word: meaning
    for word, meaning in _table(_CHAT_WORDS, _RESPONSE_WORDS).items()
    if meaning not in (Finish.STOP, Finish.TOOLS)  # what is incomplete has no good end
}

SESSION_ENDINGS: Mapping[str, Meaning] = _table(_SESSION_WORDS)


def ending(word: Any, endings: Mapping[str, Meaning]) -> AnswerEnd:
    """Returns what a server's word for the end of an answer means.

    Some servers say nothing (null or an empty text) of an answer that is whole: it is taken as it
    is. A word that is not in the table is `Finish.OTHER`, as it may stand for half an answer."""
    if not says_why(word):
        return AnswerEnd(Finish.STOP)
    if isinstance(word, str):
        shown = word
    else:
        shown = f"a value of the type {type(word).__name__}"
    return AnswerEnd(endings.get(_name(shown), Finish.OTHER), storable(shown[:MAX_WORD]))


def says_why(word: Any) -> bool:
    """Returns whether a server says why an answer ended, or fills in nothing, as some do until the
    end is there."""
    return word is not None and not (isinstance(word, str) and _name(word) in _NOTHING)


_NOTHING = frozenset({"", "null", "none", "unspecified"})
"""What stands for no word: JSON's null as other languages print it, and the name that protobuf
gives no value."""

_NEXT_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _name(word: str) -> str:
    """Returns a word as the tables write it: `toolCalls`, `TOOL-CALLS` and
    `FinishReason.TOOL_CALLS` are the same."""
    name = _NEXT_WORD.sub("_", word.strip()).lower().replace("-", "_").replace(" ", "_")
    return name.rpartition(".")[2].removeprefix("finish_reason_")
