"""A simulator, looked at while it is asked: what it charged and refused, every half second."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from processes import Server

EVERY = 0.5
"""Seconds."""


class Look(NamedTuple):
    """The account at one moment: `at` in seconds."""

    at: float
    requests: int
    charged: int
    limited: int


@contextmanager
def watched(server: Server, lift: tuple[float, int] | None = None) -> Iterator[list[Look]]:
    """The looks at a simulator, growing. `lift`: so many seconds after the start it gets another limit a minute."""
    looks, ended = [_look(server)], threading.Event()

    def watch() -> None:
        lifted = lift is None
        while not ended.wait(EVERY):
            looks.append(_look(server))
            if lift is not None and not lifted and looks[-1].requests and looks[-1].at - _began(looks) >= lift[0]:
                lifted = True
                _limit(server, lift[1])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()
        looks.append(_look(server))


def rates(looks: list[Look], span: float) -> list[float]:
    """Calls charged a second, over `span` seconds up to each look after the first `span` seconds of work."""
    begun = [look for look in looks if look.charged and look.at <= _finished(looks)]
    found = []
    for index, look in enumerate(begun):
        earlier = [other for other in begun[:index] if look.at - other.at >= span]
        if earlier:
            found.append((look.charged - earlier[-1].charged) / (look.at - earlier[-1].at))
    return found


def _began(looks: list[Look]) -> float:
    return next(look.at for look in looks if look.requests)


def _finished(looks: list[Look]) -> float:
    return next(look.at for look in looks if look.charged == looks[-1].charged)


def _root(server: Server) -> str:
    return server.base_url.removesuffix("/v1")


def _look(server: Server) -> Look:
    with urllib.request.urlopen(_root(server) + "/account") as answer:
        said = json.load(answer)
    return Look(time.monotonic(), said["requests"], said["charged"], said["limited"])


def _limit(server: Server, rpm: int) -> None:
    body = json.dumps({"rpm": rpm}).encode()
    urllib.request.urlopen(urllib.request.Request(_root(server) + "/account/limits", data=body, method="POST")).close()
