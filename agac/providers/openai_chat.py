"""OpenAI chat completions, as OpenAI and compatible servers have it: `build`, `parse`, and the stream put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault, Finish, JSONValue, Message, Params, Reply, Request, Usage
from agac.providers.error_tables import OPENAI_RULES, fault_of, is_error, rate_state, read_openai_error
from agac.providers.provider import Provider
from agac.providers.wire import NO_HEADERS, Assembly, count, json_of, reply_of, shape_of, unreadable


def headers(provider: Provider) -> dict[str, str]:
    """The key as a bearer token."""
    return {"Authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}


def told(params: Params, names: Iterable[tuple[str, str]], provider: Provider) -> dict[str, JSONValue]:
    """Those of the parameters that are set. `names` are their fields with OpenAI's names for them."""
    wire: dict[str, JSONValue] = {}
    for name, wire_name in names:
        if (value := getattr(params, name)) is not None:
            wire[provider.renames.get(name, wire_name)] = list(value) if isinstance(value, tuple) else value
    return wire


def messages_with(instruction: str | None, messages: Iterable[Message]) -> list[dict[str, str]]:
    """Messages on the wire, the first one, a system message, ending with `instruction`, where there is one."""
    wire = [{"role": m.role, "content": "".join([p.text for p in m.parts])} for m in messages]
    if instruction is None:
        return wire
    if wire and wire[0]["role"] == "system":
        wire[0]["content"] += "\n\n" + instruction
    else:
        wire.insert(0, {"role": "system", "content": instruction})
    return wire


def body_of(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Any | Fault:
    """The JSON of an answer that is no error, or what its error means, whatever the status it came with."""
    data = json_of(body)
    if 200 <= status < 300 and not is_error(data):
        return data
    error = read_openai_error(data)
    return fault_of(error, OPENAI_RULES, status, headers, body, provider=provider, model=model, redactor=redactor)


def said(parts: Any, kind: str) -> tuple[str, str | None]:
    """The text of a message's parts of type `kind`, and its refusal where there is one. Thinking belongs to neither."""
    texts: list[str] = []
    refusal: str | None = None
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == kind and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            refusal = refusal or part["refusal"] or None
    return "".join(texts), refusal


# Facts: platform.openai.com/docs/api-reference/chat, and what look-alikes do differently, read November 2026.

__all__ = ["build", "headers", "parse", "path", "rates", "refused", "websocket"]

path = "/chat/completions"

websocket = False

refused: Mapping[str, str] = {
    "verbosity": "only the Responses API is asked for it here; write responses/…, or leave it out"
}
"""What else a look-alike takes stands in its row; OpenAI takes all of it."""

rates = rate_state

_PARAMS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("stop", "stop"),
    ("seed", "seed"),
    ("service_tier", "service_tier"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
)

_FINISH = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
    "content_filter": Finish.FILTER,
    "safety": Finish.FILTER,
    "recitation": Finish.FILTER,
    "prohibited_content": Finish.FILTER,
    "refusal": Finish.REFUSAL,
}
"""What servers call the end of an answer; names beyond OpenAI's five are look-alikes'. Anything else is OTHER."""


def build(request: Request, model: str, provider: Provider) -> dict[str, JSONValue]:
    """The body of POST /chat/completions."""
    shape, params = shape_of(request.schema, provider), request.params
    wire: dict[str, JSONValue] = {"model": model, "messages": messages_with(shape.instruction, request.messages)}
    wire |= told(params, _PARAMS, provider)
    if params.max_tokens is not None:
        wire[provider.max_tokens_field] = params.max_tokens
    wire |= _reasoning(params.reasoning, model, provider)
    if shape.response_format is not None:
        wire["response_format"] = shape.response_format
    return wire


def _reasoning(value: str | None, model: str, provider: Provider) -> Mapping[str, JSONValue]:
    """How much the model thinks: an effort, or its switch turned on or off."""
    if value is None:
        return {}
    switch = provider.switch_of(model)
    if switch is not None and value in ("on", "off"):
        return (switch.on if value == "on" else switch.off) or {}
    return {provider.renames.get("reasoning", "reasoning_effort"): value}


def parse(
    status: int, headers: Mapping[str, str], body: bytes, *, provider: Provider, model: str, redactor: Redactor
) -> Reply | Fault:
    """A chat completion, or why there is none. A 2xx whose body holds an `error` is read as that error."""
    data = body_of(status, headers, body, provider=provider, model=model, redactor=redactor)
    if isinstance(data, Fault):
        return data
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list):
        return unreadable(provider, status, "a body that is no chat completion")
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}
    text, refusal = _answer(choice.get("message"))
    reason = choice.get("finish_reason")
    finish = _FINISH.get(reason.lower(), Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    usage = _usage(data.get("usage"))
    return reply_of(data, [text], finish, usage=usage, refusal=refusal, provider=provider, model=model)


def _answer(message: Any) -> tuple[str, str | None]:
    """The answer's text and the refusal. Thinking (`reasoning_content`, parts of type thinking) belongs to neither."""
    if not isinstance(message, dict):
        return "", None
    content, refusal = message.get("content"), message.get("refusal")
    text, refused_with = (content, None) if isinstance(content, str) else said(content, "text")
    return text, refusal if isinstance(refusal, str) and refusal else refused_with


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    given = count(usage, "prompt_tokens")
    made = count(usage, "completion_tokens")
    cached = count(usage.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:  # DeepSeek's name for it
        cached = count(usage, "prompt_cache_hit_tokens")
    thought = count(usage.get("completion_tokens_details"), "reasoning_tokens")
    if thought and given is not None and made is not None and usage.get("total_tokens") == given + made + thought:
        made += thought  # xAI counts thinking beside the completion, not within it
    return Usage(given, made, cached, thought)


# Facts: platform.openai.com/docs/api-reference/chat-streaming, and what look-alikes do differently, read November 2026.

_KEPT = ("id", "created", "model", "system_fingerprint", "service_tier", "usage")
_THOUGHTS = ("reasoning_content", "reasoning")
"""What look-alikes call a piece of thinking."""


class ChatAssembly(Assembly):
    """A completion. It ends with `[DONE]`; a server that leaves this out must have said why the model stopped.

    The first choice counts, as it does where nothing is streamed.
    """

    __slots__ = ("_finish", "_frame", "_refused", "_texts")

    def __init__(self) -> None:
        super().__init__()
        self._frame: dict[str, JSONValue] = {}
        self._texts: list[str] = []
        self._refused: list[str] = []
        self._finish: JSONValue = None

    def take(self, event: Any) -> None:
        """One chunk; `None` stands for `[DONE]`."""
        if self.done:
            return
        if event is None:
            self.done = True
        elif is_error(event):
            self.done = True
            self._frame = {"error": event["error"]} if isinstance(event, dict) and event.get("error") else event
        elif isinstance(event, dict):
            self._frame.update((name, event[name]) for name in _KEPT if event.get(name) is not None)
            choices = event.get("choices")
            for choice in choices if isinstance(choices, list) else ():
                if isinstance(choice, dict) and choice.get("index") in (0, None):
                    self._choice(choice)

    def finish(self) -> bool:
        """Whether the answer is whole: its end was said."""
        return self.done or self._finish is not None

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """The completion, or the error that came in its place."""
        if is_error(self._frame):
            return 200, NO_HEADERS, self._frame
        message = {
            "role": "assistant",
            "content": "".join(self._texts) if self._texts or not self._refused else None,
            "refusal": "".join(self._refused) or None,
        }
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return 200, NO_HEADERS, {**self._frame, "object": "chat.completion", "choices": [choice]}

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            for name, pieces in (("content", self._texts), ("refusal", self._refused)):
                if isinstance(piece := delta.get(name), str) and piece:
                    pieces.append(piece)
                    self.begun = self.answering = True
            self.begun = self.begun or any(isinstance(delta.get(name), str) and delta[name] for name in _THOUGHTS)
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
