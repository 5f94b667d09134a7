"""Standard output is for results: what functions of the user's print goes to standard error.

`sys.stdout` is exchanged while a Runner is open, and decides at each use: what runs in the context of a call, and every
thread that was started since, prints to standard error; all others print where they did.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, cast
from weakref import WeakSet

_in_call: ContextVar[bool] = ContextVar("_in_call", default=False)
_open = 0
_lock = threading.Lock()


class _Switch:
    """Stands for `sys.stdout`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._spared = WeakSet(threading.enumerate())  # not their idents, which the next thread gets again

    def __getattr__(self, name: str) -> Any:
        theirs = _in_call.get() or threading.current_thread() not in self._spared
        return getattr(sys.stderr if theirs else self.stream, name)


@contextmanager
def exchanged() -> Iterator[None]:
    """Within it `user_code` has an effect."""
    global _open
    with _lock:
        _open += 1
        if _open == 1 and sys.stdout is not None:
            sys.stdout = cast("TextIO", _Switch(sys.stdout))
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0 and isinstance(sys.stdout, _Switch):
                sys.stdout = sys.stdout.stream


@contextmanager
def user_code() -> Iterator[None]:
    """Within it, in this task or thread, code of the user's runs."""
    token = _in_call.set(True)
    try:
        yield
    finally:
        _in_call.reset(token)
