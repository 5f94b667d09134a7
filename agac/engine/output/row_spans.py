"""The spans of one row's trace, made of what was noted of it, as records of agac's own: no package
of OpenTelemetry is loaded here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from agac.core.errors import RowError, storable
from agac.core.types import Message
from agac.engine.ask.attempts import MOST_CHARACTERS
from agac.engine.walk.effects import ActiveRow, RowNotes, ToolKey, TracedCall
from agac.plan.plan import Plan

Attributes = dict[str, Any]

PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Providers that the conventions call otherwise than agac does."""


@dataclass(slots=True)
class SpanNode:
    """A span of a row's trace."""

    above: int
    """The position of the span that it is in; the first one's is its own."""
    name: str
    """What it is called."""
    start: float
    """When it began, in seconds since 1970."""
    end: float
    """When it ended."""
    attributes: Attributes
    """What is said of it."""


class RowSpans:
    """Makes the spans of a row: itself, stages, calls of models and tools. What a child agent did
    is in its tool call."""

    def __init__(self, plan: Plan, clean: Callable[[str], str], notes: RowNotes) -> None:
        self._stages = plan.stages
        self._workflow = plan.workflow
        self._with_texts = plan.rules.otel_prompts
        self._clean = clean
        self._notes = notes
        self._ends = {end.stage: end for end in notes.ends if not end.replica}
        self._nodes: list[SpanNode] = []
        self._of_stages: dict[int, int] = {}
        self._of_tools: dict[ToolKey, int] = {}

    def nodes(
        self, row: ActiveRow, outcome: str, error: RowError | None, now: float
    ) -> list[SpanNode]:
        """Returns all spans, the row's first, each as long as all that is in it."""
        origin = row.new.origin
        attributes = {
            "agac.row.id": self._shown(str(row.new.row.id)),
            "agac.row.number": row.new.row.ordinal or None,
            "agac.outcome": outcome,
            "agac.row.made_by": None if origin is None else self._stages[origin].name,
        }
        self._add(0, f"row {self._workflow}", self._notes.begun, now, attributes, error)
        for index in self._ends:
            self._stage(index)
        for traced in self._notes.calls:
            self._call(traced)
        for key in self._notes.tools:
            self._tool(key)
        for node in reversed(self._nodes[1:]):
            above = self._nodes[node.above]
            above.start = min(above.start, node.start)
            above.end = max(above.end, node.end)
        return self._nodes

    def _shown(self, text: str) -> str:
        """Cleans a text of secrets, and of what may not be in a message of the protocol."""
        return storable(self._clean(text))

    def _text(self, text: str | None) -> str:
        """Returns a text of the row's as far as it is sent; nothing where texts are not."""
        if not text or not self._with_texts:
            return ""
        return self._shown(text)[:MOST_CHARACTERS]

    def _add(
        self,
        above: int,
        name: str,
        start: float,
        end: float,
        attributes: Attributes,
        error: RowError | None = None,
    ) -> int:
        """Adds a span and returns its position."""
        if error:
            attributes = attributes | {
                "error.type": error.type.value,
                "agac.error.message": self._text(error.message),
            }
        self._nodes.append(SpanNode(above, name, start, end, attributes))
        return len(self._nodes) - 1

    def _stage(self, index: int) -> int:
        """Returns the position of a stage's span, which is added if it is not there yet."""
        position = self._of_stages.get(index)
        if position is not None:
            return position
        end = self._ends.get(index)
        name = self._stages[index].name
        attributes = {"agac.stage": name}
        if end is None:
            start = self._notes.begins.get(index, inf)
            position = self._add(0, f"stage {name}", start, 0.0, attributes)
        else:
            start = self._notes.begins.get(index, end.at)
            attributes["agac.outcome"] = end.outcome.value
            attributes["agac.how"] = end.result.how if end.result else ""
            position = self._add(0, f"stage {name}", start, end.at, attributes, end.error)
        self._of_stages[index] = position
        return position

    def _above(self, fingerprint: bytes, stage: int) -> int:
        """Returns what a task's calls are in: its stage, or the tool call that is a child agent."""
        caller = self._notes.callers.get(fingerprint)
        if caller is not None and caller in self._notes.tools:
            return self._tool(caller)
        return self._stage(stage)

    def _tool(self, key: ToolKey) -> int:
        """Returns the position of a tool call's span, which is added if it is not there yet."""
        position = self._of_tools.get(key)
        if position is not None:
            return position
        record = self._notes.tools[key]
        name = self._shown(record.name)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": self._shown(record.call_id),
            "agac.tool.state": record.state,
            "agac.tool.served": record.how,
            "error.type": "" if record.state in ("done", "intent") else f"tool_{record.state}",
            "gen_ai.tool.call.arguments": self._text(record.arguments),
            "gen_ai.tool.call.result": self._text(record.result),
        }
        start = record.started_at
        end = start + (record.duration or 0.0)
        above = self._above(record.fingerprint, record.stage)
        position = self._add(above, f"execute_tool {name}", start, end, attributes)
        self._of_tools[key] = position
        return position

    def _call(self, traced: TracedCall) -> None:
        """Adds the span of a call of a model."""
        call = traced.call
        attributes = _call_attributes(traced)
        for way, messages in traced.texts.items():
            attributes[f"gen_ai.{way}.messages"] = self._messages(messages)
        above = self._above(call.attempt.fingerprint, call.attempt.stage)
        start = call.times.started_at
        end = start + call.times.duration
        self._add(above, f"chat {traced.asked}", start, end, attributes, call.error)

    def _messages(self, messages: Iterable[Message]) -> str:
        """Returns messages as the conventions have them: JSON."""
        shown = list[Attributes]()
        for message in messages:
            parts = list[Attributes]()
            if message.text:
                parts.append({"type": "text", "content": self._text(message.text)})
            parts += (
                {
                    "type": "tool_call",
                    "id": call.id,
                    "name": call.name,
                    "arguments": self._text(call.arguments),
                }
                for call in getattr(message, "calls", ())
            )
            parts += (
                {
                    "type": "tool_call_response",
                    "id": result.call_id,
                    "response": self._text(result.text),
                }
                for result in getattr(message, "results", ())
            )
            shown.append({"role": message.role, "parts": parts})
        return json.dumps(shown, ensure_ascii=False) if shown else ""


def model_attributes(provider: str, asked: str, answered: str, simulated: bool) -> Attributes:
    """Returns who was asked, in spans as in metrics."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(provider, provider),
        "gen_ai.request.model": asked,
        "gen_ai.response.model": answered,
        "agac.simulated": simulated or None,
    }


def _call_attributes(traced: TracedCall) -> Attributes:
    """Returns what is said of a call. What is as usual is left out: each attribute takes time to
    encode."""
    call = traced.call
    attempt = call.attempt
    usage = call.usage
    endpoint = call.endpoint
    return model_attributes(endpoint.provider, traced.asked, endpoint.model, endpoint.simulated) | {
        "gen_ai.response.finish_reasons": (traced.finish,) if traced.finish else None,
        "gen_ai.response.time_to_first_chunk": call.times.ttft,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "http.response.status_code": call.status if call.error else None,
        "agac.cost": call.cost,
        "agac.attempt": attempt.number if attempt.number > 1 else None,
        "agac.replica": attempt.replica or None,
        "agac.purpose": attempt.purpose if attempt.purpose != "ask" else None,
        "agac.service_tier": call.service_tier,
    }
