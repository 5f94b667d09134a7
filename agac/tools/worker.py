"""A process that calls one function for rows that come in by a pipe. Started by `agac.tools.processes`.

Both ways: 8 bytes of length, then a pickle. In: rows. Out: `True` when the function is there, then for each row a
`Returned` or a `FunctionFailed`; a UsageError instead when the function cannot be had.
"""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from agac.core.errors import UsageError
from agac.spec.python_code import FunctionRef
from agac.tools.functions import Function, is_awaited, load_function, outcome_of
from agac.tools.values import Record

LENGTH = 8
WATCH = 1.0
"""Seconds between looks whether agac is still there; a call may take hours after it was killed."""


def main(told: dict[str, Any]) -> None:
    """Works until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for agac, which decides what becomes of calls
    rows, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed, by C libraries and child processes too
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    threading.Thread(target=_watch, args=(told["parent"],), daemon=True).start()
    root = Path(told["root"])
    ref = FunctionRef(Path(told["file"]), told["shown"], told["name"], told["async"], bytes.fromhex(told["hash"]))
    try:
        function = _called_here(load_function(ref, root), ref)
    except UsageError as error:
        _put(answers, (error.message, error.remedy, getattr(error, "__notes__", [])))
        return
    _put(answers, True)
    while len(head := rows.read(LENGTH)) == LENGTH:
        row: Record = pickle.loads(rows.read(int.from_bytes(head, "big")))  # noqa: S301  (agac's own)
        _put(answers, outcome_of(function, row, root, str(ref)))


def frame(value: Any) -> bytes:
    """A value as it goes through the pipe."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH, "big") + body


def _called_here(function: Function, ref: FunctionRef) -> Function:
    """A function that is awaited has an event loop of its own here, the same for all rows."""
    if not is_awaited(function, ref):
        return function
    import asyncio

    async def awaited(row: Record) -> Any:
        value = function(row)
        return await value if inspect.isawaitable(value) else value

    loop = asyncio.Runner()
    return lambda row: loop.run(awaited(row))


def _put(answers: BinaryIO, value: Any) -> None:
    try:
        answers.write(frame(value))
        answers.flush()
    except BrokenPipeError:  # agac is gone
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(WATCH)
    os._exit(1)
