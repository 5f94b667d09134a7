"""While a block is shown, what anybody writes to standard error appears above it: logs, warnings, other threads."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from agac.cli.live.block import Block
from agac.cli.live.text import harmless


class Above(io.TextIOBase):
    """Stands in for a terminal's stream: whole lines go above the block, a line's beginning waits for its end."""

    def __init__(self, block: Block, stream: TextIO) -> None:
        self._block, self._stream, self._begun = block, stream, ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the terminal."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the terminal's stream does with characters that it lacks."""
        return self._stream.errors

    def isatty(self) -> bool:
        """It is one."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """That of the terminal."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Takes any text."""
        whole, end, rest = (self._begun + text).rpartition("\n")
        self._begun = rest
        if end:
            self._block.above(harmless(whole))
        return len(text)

    def finish(self) -> None:
        """Writes what still waits for the end of its line."""
        if self._begun:
            self._block.above(harmless(self._begun))
            self._begun = ""


@contextmanager
def everything_above(block: Block) -> Iterator[None]:
    """Within it `sys.stderr` and every log handler that writes to it write above the block."""
    stream = sys.stderr
    stand_in = Above(block, stream)
    moved = [handler for handler in _handlers() if handler.stream is stream]
    sys.stderr = cast("TextIO", stand_in)
    for handler in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        stand_in.finish()
        sys.stderr = stream
        for handler in moved:
            handler.setStream(stream)


def _handlers() -> list[logging.StreamHandler[TextIO]]:
    loggers = [logging.getLogger(), logging.getLogger("agac")]
    return [h for logger in loggers for h in logger.handlers if isinstance(h, logging.StreamHandler)]
