"""Whom a run tells how it stands (`notify`): the kinds of messages, and a target as a plan has
it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from agac.core.errors import Where

NotifyKind = Literal["finished", "failed", "limit", "stuck", "review", "batch_ended"]
KINDS: tuple[NotifyKind, ...] = get_args(NotifyKind)
WAYS = ("webhook", "apprise", "command", "heartbeat")
"""The keys of which a target has one: where its messages go."""


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """Who is notified. One of `webhook`, `apprise`, `command` and `heartbeat` is set; `${VAR}` in
    it is looked up when a message is sent."""

    on: tuple[NotifyKind, ...] = KINDS
    """The events that are reported."""
    webhook: str | None = None
    secret: str | None = None
    apprise: str | None = None
    command: tuple[str, ...] | None = None
    heartbeat: str | None = None
    """Called every minute, whatever happens."""
    where: Where = field(default=Where(""), compare=False)

    def stored(self) -> dict[str, Any]:
        """Returns what sending a message takes; nothing of it is a secret."""
        own = {
            name: getattr(self, name)
            for name in ("webhook", "secret", "apprise", "command", "heartbeat")
        }
        return {name: value for name, value in own.items() if value}


def target_words(stored: Mapping[str, Any]) -> str:
    """`webhook ${HOOK_URL}`: a stored target as people read it, without its secret."""
    way = next(one for one in WAYS if one in stored)
    written = stored[way]
    return f"{way} {written if isinstance(written, str) else shlex.join(written)}"
