"""Prepares standard output and standard error, so that writing to them cannot end a command in a
crash."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

STANDARD_OUTPUT = "standard output"
"""The file name of errors on it."""


class _Stream(io.TextIOWrapper):
    """Standard output or standard error.

    What cannot be written on standard error is lost: no stream is left to report it. An error on
    standard output says where it happened (`filename`), for the code that reports it."""

    def write(self, text: str) -> int:
        return self._guarded(super().write, text) or 0

    def flush(self) -> None:
        self._guarded(super().flush)

    def _guarded(self, work: Callable[..., Any], *text: str) -> Any:
        try:
            return work(*text)
        except OSError as error:
            if isinstance(error, BrokenPipeError) or self is not sys.stderr:
                error.filename = STANDARD_OUTPUT
                raise


def prepare_streams() -> None:
    """Prepares the standard streams: a terminal or a pipe that cannot show a character gets an
    escape for it, never a crash.

    A stream that the caller has closed is replaced by one that nothing can be written to; a file
    opened later would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest free number
        stream = getattr(sys, name) or open(number, "r" if name == "stdin" else "w")  # noqa: SIM115, PTH123
        if name != "stdin":
            stream = _stream(stream.detach(), stream)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # of which `shutil` learns the size of the terminal


def _stream(file: Any, like: Any) -> _Stream:
    """Opens a stream with the settings of another one."""
    return _Stream(
        file, like.encoding, "backslashreplace", None, like.line_buffering, like.write_through
    )


def keep_output() -> None:
    """Keeps standard output for agac's own results from now on: what other code writes goes to
    standard error."""
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = _stream(kept, sys.stdout)
