"""Hints for a serving engine: what a request says of its place in a conversation, beside what it
asks. NVIDIA Dynamo takes some. They are added on the way out, so that no fingerprint, recording or
batch holds them."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any

from agac.core.types import Fault, JSONValue
from agac.providers.bodies import count, encode, json_of, loads, mapping, objects
from agac.providers.dialect import Begins, asking
from agac.providers.http import MOMENT, HttpReply, Sender, Sending
from agac.providers.provider import Provider
from agac.spec.rules import Timeout
from agac.spec.workflow import Stage

# Facts: docs.nvidia.com/dynamo 1.0 to 1.6 (agent hints, priority scheduling, session IDs) and
# ai-dynamo/dynamo's lib/llm/src/protocols/common/extensions.rs, read November 2026. An unknown hint
# is refused. `priority` is higher for what matters more, whatever the engine, from 1.1 on; before
# that `latency_sensitivity` orders the router's queue.

SESSIONS_SINCE = 3  # the minor version from which headers tell conversations apart
KEPT = 100  # replies of a kind from which the next one is foretold

Kind = tuple[int, bool]  # of a turn: how many were before it, and whether it may call tools


class HintingSender:
    """Sends as its `sender`, with hints for Dynamo 1.`minor` until refused; who opened `sender`
    closes it."""

    def __init__(self, sender: Sender, minor: int, stage: Stage, run: int) -> None:
        self._sender = sender
        self._minor = minor
        self._run = run
        self._repair = stage.settings.repair
        self._said = sum(one.role == "assistant" for one in stage.examples)
        self._agent = stage.agent_spec is not None
        self._seen = defaultdict[Kind, deque[tuple[int, bool]]](lambda: deque(maxlen=KEPT))
        self._refused = False

    async def send(
        self,
        wire: bytes,
        timeout: Timeout,
        *,
        within: float | None = None,
        fresh: bool = False,
        begins: Begins = None,
        through: Callable[..., Awaitable[HttpReply | Fault]] | None = None,
    ) -> HttpReply | Fault:
        """Sends as `Sender.send` does. Once hints are refused, requests go without. `through` is
        called in the sender's place."""
        send = through or self._sender.send
        if not self._refused:
            started = time.monotonic()
            kind, hints, headers = self._about(loads(wire))
            hinted = asking(wire, b'"nvext":' + encode({"agent_hints": hints}) + b",")
            came = await send(
                hinted, timeout, within=within, fresh=fresh, begins=begins, headers=headers
            )
            if not _refuses_hints(came, hints):
                self._learn(kind, came)
                return came
            self._stop()
            took = time.monotonic() - started
            within = None if within is None else max(MOMENT, within - took)
        return await send(wire, timeout, within=within, fresh=fresh, begins=begins)

    def _learn(self, kind: Kind, came: HttpReply | Fault) -> None:
        """Takes note of a reply's length, and of whether it calls tools."""
        if isinstance(came, Fault) or came.status != 200:
            return
        data = mapping(json_of(came.body))
        written = count(data.get("usage"), "completion_tokens")
        if written is None:
            return
        messages = [mapping(choice.get("message")) for choice in objects(data.get("choices"))]
        calls = any(message.get("tool_calls") for message in messages)
        self._seen[kind].append((written, calls))

    def _stop(self) -> None:
        """Sends no more hints, and says so once."""
        if not self._refused:
            words = "%s refuses hints and gets none from now on; is `version` of its backend right?"
            logging.getLogger("agac.hints").warning(words, self._sender.settings.provider.name)
        self._refused = True

    def _about(self, data: Mapping[str, Any]) -> tuple[Kind, dict[str, JSONValue], dict[str, str]]:
        """Returns the kind of turn that a request is, its hints, and of an agent's the headers
        with the ids of its conversation and of the run.

        A prefill of the next turn has to be asked for with this one, whose reply is unknown: it is
        asked for where tools may be called, after which another turn always comes, once half of
        such replies did."""
        roles = [message["role"] for message in data["messages"]]
        answers = [index for index, role in enumerate(roles) if role == "assistant"]
        replies = answers[self._said :]
        done = len(replies)
        may_call = "tools" in data and "tool_choice" not in data
        kind = (done, may_call)
        hints: dict[str, JSONValue] = {}
        if self._minor:
            hints["priority"] = 1 + done
        else:
            hints["latency_sensitivity"] = 1.0 + done
        seen = self._seen[kind]
        if seen:
            hints["osl"] = sorted(tokens for tokens, _ in seen)[(len(seen) - 1) * 3 // 4]
        if may_call and 2 * sum(called for _, called in seen) >= len(seen):
            hints["speculative_prefill"] = True
        headers = dict[str, str]()
        if self._agent and self._minor >= SESSIONS_SINCE:
            first = replies[0] if replies else None
            opening = encode([data["messages"][:first], data.get("seed")])
            headers = self._session_headers(opening, may_call=may_call)
        return kind, hints, headers

    def _session_headers(self, opening: bytes, *, may_call: bool) -> dict[str, str]:
        """Returns the headers that tell conversations apart, by how they open. The id is a hash:
        no row's id gets into a server's logs."""
        run_id = f"agac-{self._run}"
        headers = {
            "X-Dynamo-Session-ID": f"{run_id}-{blake2b(opening, digest_size=8).hexdigest()}",
            "X-Dynamo-Parent-Session-ID": run_id,
        }
        if not may_call and not self._repair:
            headers["X-Dynamo-Session-Final"] = "true"
        return headers


def _refuses_hints(came: HttpReply | Fault, hints: Mapping[str, JSONValue]) -> bool:
    """True if a server refuses a request for its hints: it names one of them."""
    if isinstance(came, Fault) or came.status not in (400, 422):
        return False
    return any(name.encode() in came.body for name in ("nvext", "agent_hints", *hints))


def hinting(sender: Sending, provider: Provider, stage: Stage, run: int) -> Sending | HintingSender:
    """Returns what sends a stage's requests: with hints where it is known of the server which ones
    it takes."""
    if (
        isinstance(sender, Sender)
        and provider.hints is not None
        and provider.dialect == "openai-chat"
    ):
        return HintingSender(sender, provider.hints, stage, run)
    return sender
