"""What OpenAI's two APIs, chat completions and responses, have in common on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agac.core.redact import Redactor
from agac.core.types import Fault, JSONValue, Message, Params
from agac.providers.errorrules import fault_of
from agac.providers.openai_errors import RULES, is_error, read_error
from agac.providers.provider import Provider
from agac.providers.reading import json_of


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
    error = read_error(data)
    return fault_of(error, RULES, status, headers, body, provider=provider, model=model, redactor=redactor)


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
