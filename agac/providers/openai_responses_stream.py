"""The events of a streamed response (by SSE or WebSocket), put together into the response that they describe.

Facts: the openai SDK 3.52's `ResponseStreamEvent` and `ResponsesServerEvent`, read November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.types import JSONValue

_ANSWER = frozenset(("response.output_text.delta", "response.refusal.delta"))
_THOUGHT = frozenset(("response.reasoning_text.delta", "response.reasoning_summary_text.delta"))
_LAST = frozenset(("response.completed", "response.incomplete", "response.failed"))
_NO_HEADERS: Mapping[str, str] = {}


class ResponseAssembly:
    """A response: its last event carries it whole. Some servers leave `output` empty there; then the items' own events
    fill it."""

    __slots__ = ("_body", "_headers", "_items", "_status", "answering", "begun", "done")

    def __init__(self) -> None:
        self.begun = False
        self.answering = False
        self.done = False
        self._items: list[Any] = []
        self._status = 200
        self._headers = _NO_HEADERS
        self._body: JSONValue = None

    def take(self, event: Any) -> None:
        """One event."""
        if self.done or not isinstance(event, dict):
            return
        kind = event.get("type")
        if not isinstance(kind, str):
            if event.get("error"):  # as a gateway says it
                self._failed(event)
        elif kind in _ANSWER:
            self.answering = self.answering or bool(event.get("delta"))
            self.begun = self.begun or self.answering
        elif kind in _THOUGHT:
            self.begun = self.begun or bool(event.get("delta"))
        elif kind == "response.output_item.done":
            self._items.append(event.get("item"))
        elif kind in _LAST:
            self._ended(event.get("response"))
        elif kind == "error":
            self._failed(event)

    def finish(self) -> bool:
        """Whether the last event was there."""
        return self.done

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """The response, or the error that came in its place."""
        return self._status, self._headers, self._body

    def _ended(self, response: Any) -> None:
        self.done = True
        if isinstance(response, dict) and not response.get("output") and self._items:
            response = {**response, "output": self._items}
        self._body = response

    def _failed(self, event: dict[str, Any]) -> None:
        """An `error` event: flat over SSE; with `error`, `status` and the headers within over a WebSocket."""
        self.done = True
        error = event.get("error")
        if not isinstance(error, dict):
            error = {name: event.get(name) for name in ("code", "message", "param")}
        self._body = {"error": error}
        status, said = event.get("status"), error.get("headers")
        if type(status) is int and 400 <= status < 600:
            self._status = status
        if isinstance(said, dict):
            self._headers = {str(name).lower(): value for name, value in said.items() if isinstance(value, str)}
