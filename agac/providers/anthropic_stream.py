"""The events of a streamed message, put together into the message that they describe.

Facts: platform.claude.com/docs/en/build-with-claude/streaming and the `RawMessageStreamEvent` of the anthropic SDK
2.12, read November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agac.core.types import JSONValue

_NO_HEADERS: Mapping[str, str] = {}
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Where a block keeps what a delta brings. Others belong to tools and citations, which are not asked for."""


class MessageAssembly:
    """A message. It ends with `message_stop`, or with an `error` in its place."""

    __slots__ = ("_blocks", "_error", "_frame", "answering", "begun", "done")

    def __init__(self) -> None:
        self.begun = False
        self.answering = False
        self.done = False
        self._frame: dict[str, JSONValue] = {}
        self._blocks: dict[int, tuple[dict[str, Any], list[tuple[str, str]]]] = {}
        self._error: JSONValue = None

    def take(self, event: Any) -> None:
        """One event."""
        if self.done or not isinstance(event, dict):
            return
        kind = event.get("type")
        if kind == "message_start" and isinstance(message := event.get("message"), dict):
            self._frame = dict(message)
        elif kind == "content_block_start":
            self._begin(event.get("index"), event.get("content_block"))
        elif kind == "content_block_delta":
            self._add(event.get("index"), event.get("delta"))
        elif kind == "message_delta":
            self._tell(event.get("delta"), event.get("usage"))
        elif kind == "message_stop":
            self.done = True
        elif event.get("error"):  # a gateway may leave the type out
            self.done, self._error = True, {"type": "error", **event}

    def finish(self) -> bool:
        """Whether the last event was there."""
        return self.done

    def result(self) -> tuple[int, Mapping[str, str], JSONValue]:
        """The message, or the error that came in its place."""
        if self._error is not None:
            return 200, _NO_HEADERS, self._error
        blocks = [_whole(block, pieces) for _, (block, pieces) in sorted(self._blocks.items())]
        return 200, _NO_HEADERS, {**self._frame, "content": blocks}

    def _begin(self, index: Any, block: Any) -> None:
        if type(index) is int and isinstance(block, dict):
            self._blocks[index] = (dict(block), [])
            for name in ("text", "thinking"):
                self._heard(name, block.get(name))

    def _add(self, index: Any, delta: Any) -> None:
        if type(index) is not int or not isinstance(delta, dict):
            return
        kind = delta.get("type")
        name = _PIECES.get(kind) if isinstance(kind, str) else None
        piece = delta.get(name) if name else None
        if name and isinstance(piece, str) and piece:
            # a block that was never begun is one of text, or of thinking
            begun: dict[str, Any] = {"type": "text" if name == "text" else "thinking"}
            self._blocks.setdefault(index, (begun, []))[1].append((name, piece))
            self._heard(name, piece)

    def _heard(self, name: str, piece: Any) -> None:
        """Notes that a token came."""
        if isinstance(piece, str) and piece and name != "signature":
            self.begun = True
            self.answering = self.answering or name == "text"

    def _tell(self, delta: Any, usage: Any) -> None:
        """Why it stopped, and the counts, which replace those of the beginning."""
        if isinstance(delta, dict):
            self._frame |= delta
            if delta.get("stop_reason") == "refusal":
                self.begun = self.answering = True
        if isinstance(usage, dict):
            before = self._frame.get("usage")
            counts = {name: value for name, value in usage.items() if value is not None}
            self._frame["usage"] = {**(before if isinstance(before, dict) else {}), **counts}


def _whole(block: dict[str, Any], pieces: list[tuple[str, str]]) -> dict[str, Any]:
    """A block with all its pieces."""
    for name in dict.fromkeys(name for name, _ in pieces):
        begun = block.get(name)
        rest = "".join(piece for kind, piece in pieces if kind == name)
        block = {**block, name: (begun if isinstance(begun, str) else "") + rest}
    return block
