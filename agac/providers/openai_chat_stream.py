"""The chunks of a streamed chat completion, put together into the completion that they describe.

Facts: platform.openai.com/docs/api-reference/chat-streaming, and what look-alikes do differently, read November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.types import JSONValue
from agac.providers.openai_errors import is_error

_KEPT = ("id", "created", "model", "system_fingerprint", "service_tier", "usage")
_THOUGHTS = ("reasoning_content", "reasoning")
"""What look-alikes call a piece of thinking."""

_NO_HEADERS: Mapping[str, str] = {}


class ChatAssembly:
    """A completion. It ends with `[DONE]`; a server that leaves this out must have said why the model stopped.

    The first choice counts, as it does where nothing is streamed.
    """

    __slots__ = ("_finish", "_frame", "_refused", "_texts", "answering", "begun", "done")

    def __init__(self) -> None:
        self.begun = False
        self.answering = False
        self.done = False
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
            return 200, _NO_HEADERS, self._frame
        message = {
            "role": "assistant",
            "content": "".join(self._texts) if self._texts or not self._refused else None,
            "refusal": "".join(self._refused) or None,
        }
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return 200, _NO_HEADERS, {**self._frame, "object": "chat.completion", "choices": [choice]}

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
