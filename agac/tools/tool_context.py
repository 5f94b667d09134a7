"""What tools are run with, and what comes of their calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agac.core.errors import AgacError, RowError
from agac.core.redact import Redactor
from agac.core.types import ToolCall
from agac.spec.tools import ToolSpec
from agac.spec.workflow import Stage
from agac.store.conversations import RecordedCall
from agac.store.writer import ToolCache
from agac.tools.tool_arguments import Arguments
from agac.tools.tool_functions import Intent

if TYPE_CHECKING:
    from agac.data.remote import RemoteContents


class CallScope(NamedTuple):
    """To what a call of a tool belongs.

    The last three name a call for ever, so a tool that takes an idempotency key gets them."""

    stage: int
    """The index of the stage."""
    fingerprint: bytes
    """The fingerprint of the task."""
    turn: int
    """The number of the reply in the conversation, from 0."""
    call: int
    """The number of the call in the reply, from 0."""


class ToolOutcome(NamedTuple):
    """What came of a call."""

    text: str
    """The result for the model."""
    error: bool = False
    """True if the tool failed, or was not run."""
    how: Literal["", "coalesced", "cached", "stub", "replayed"] = ""
    """What served the call; empty if the tool was run for it."""
    lost: RowError | None = None
    """The error with which the row fails."""
    anew: bool = False
    """True if the conversation starts again before its row fails, a few times, unless something
    was done that must not be repeated."""
    made: bool = True
    """False if the call was surely not made."""
    unknown: bool = False
    """True if it is unknown whether the call was carried out: it was given up or broke off."""


@dataclass(slots=True)
class ToolCounts:
    """What became of a tool's calls."""

    requested: int = 0
    """Calls that models asked for."""
    executed: int = 0
    """Executions, with all tries."""
    coalesced: int = 0
    cache_hits: int = 0
    errors: int = 0
    timeouts: int = 0
    truncated: int = 0
    wait_s: float = 0.0
    """Seconds of waiting for the rate and for places."""
    exec_s: float = 0.0
    """Seconds of execution."""


StandIn = Literal["", "stub", "replayed"]
"""What serves calls in place of a tool, if anything does."""


def stand_in_of(stage: Stage, spec: ToolSpec) -> StandIn:
    """Returns what serves the calls of a tool in its place, by the agent's mode; "" for nothing."""
    agent = stage.agent_spec
    assert agent is not None
    if agent.mode == "stub" and (spec.kind != "agent" or spec.name in agent.stubs):
        return "stub"
    if agent.mode == "replay" and spec.kind != "agent":
        return "replayed"
    return ""


Run = Callable[[Arguments, CallScope, Intent], Awaitable[str | ToolOutcome]]
"""Runs a tool once and returns its result, or all that came of it. It begins the intent when all
that it waits for is there. Raises ToolFailed, ToolLost; AgacError ends the run."""

RunChild = Callable[[ToolSpec, Arguments, CallScope, Intent], Awaitable[ToolOutcome]]
"""Asks an agent that is called as a tool."""

Recorded = Callable[[int, CallScope], Awaitable[tuple[Sequence[RecordedCall], Sequence[ToolCall]]]]
"""Returns the calls that a run made at the place of this one, and those made before it in its
conversation."""

Elsewhere = Callable[[ToolSpec, Arguments, str, float, bool, Intent], Awaitable[str]]
"""Calls a function, with the key that identifies this call and a time limit in seconds, counted
from its beginning; the flag: it may be called again if its outcome is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What tools need of the invocation that runs them."""

    root: Path
    redactor: Redactor
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits; raises `stops` once no call is to begin."""
    go_on: Callable[[], object] = bool
    """Raises `stops` once no call is to begin."""
    stops: type[Exception] = AgacError
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """A program's functions, by the `source` of their tools."""
    web: RemoteContents | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """What `${VAR}` of servers means."""
    run_child: RunChild | None = None
    elsewhere: Elsewhere | None = None
    """Calls the functions of files, if other processes do."""
    later: ToolCache | None = None
    """Keeps results for later runs."""
    record: Path | None = None
    """The file that calls are added to."""
    recorded: Recorded | None = None
