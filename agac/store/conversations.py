"""Reads conversations from the store: their turns, and the calls of tools in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agac.store.db import Reads, keyed, reads


class StoredTurn(NamedTuple):
    """A turn of a conversation, as `records.AgentTurn`."""

    number: int
    """Its number among all turns of the task's conversations, from 1."""
    conversation: int
    """The number of the first turn of its conversation."""
    model: str
    """The model that answered."""
    at: float
    """When it came, in seconds since 1970."""
    status: int
    """The HTTP status."""
    reply: str | bytes
    """The body of the response, as the store keeps it."""
    ended: str | None
    """How the conversation ended with it: done, failed or lost. None if it continues."""


class StoredCall(NamedTuple):
    """A call of a tool, as `records.ToolCallRecord`."""

    turn: int
    """The number of the turn that made it."""
    place: int
    """Which of the turn's calls it is."""
    name: str
    """The tool's name."""
    arguments: str
    """The arguments as JSON."""
    state: str
    """intent, done, error, refused, unknown or lost."""
    result: str | None
    """The result for the model."""


class RecordedCall(NamedTuple):
    """A call of a tool that was made, with the result that the model got."""

    name: str
    """The tool's name."""
    arguments: str
    """The arguments as JSON."""
    result: str
    """The result."""
    error: bool
    """True if the call failed."""


# run, row id, occurrence, stage, replica, agent: by their names
recorded_calls = reads("recorded_calls", RecordedCall)
# fingerprint, workflow
newest_turns: Reads[[bytes, str], list[StoredTurn]] = reads("newest_turns", StoredTurn)
# the number of a task's last turn, and of the first one of its conversation
LastTurn = tuple[int, int]
last_turns: Reads[[Sequence[bytes], str], dict[bytes, LastTurn]] = reads(
    "last_turns", tuple[bytes, int, int], keyed(tuple)
)
# the same, and a turn
calls_since: Reads[[bytes, str, int], list[StoredCall]] = reads("calls_since", StoredCall)
# row
turns_used: Reads[[int, bytes], list[tuple[int, int, int]]] = reads(
    "turns_used", tuple[int, int, int]
)
