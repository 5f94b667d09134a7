"""Some lines at the bottom of a terminal that are painted over and over, with everything else above them.

The cursor rests at the start of the first line, not below the last: wherever the terminal moves text when it is
resized, the cursor goes with its line, and painting goes on from there. So nothing has to be known of how it wraps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
TO_LINE_END, TO_SCREEN_END = "\x1b[K", "\x1b[J"
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
"""Around what is painted: a terminal may be narrower already than it says, and then cuts lines off instead of wrapping
them. That is no loss, since the next picture fits."""


class Block:
    """Lines that stay below what is written. `write` takes text for the terminal and sends it at once.

    Threads may call it. Once it is closed nothing is painted any more.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lock = threading.RLock()
        self._lines: tuple[str, ...] = ()
        self._hidden = self._closed = False

    def paint(self, lines: Sequence[str], *, anew: bool = False) -> None:
        """Shows these lines, each shorter than the terminal is wide; nothing is written when they are shown already,
        unless all are to be painted `anew`."""
        with self._lock:
            if self._closed or (tuple(lines) == self._lines and not anew):
                return
            self._lines = tuple(lines)
            before = "" if self._hidden else HIDE
            self._hidden = True
            self._write(before + self._painted())

    def above(self, text: str) -> None:
        """Writes whole lines above the block; they scroll away as usual."""
        with self._lock:
            lines = "".join(f"{line}{TO_LINE_END}\n" for line in text.split("\n"))
            self._write("\r" + (TO_SCREEN_END if self._lines else "") + lines + self._painted())

    def rest(self) -> None:
        """Takes the block away and gives the cursor back, until it is painted again."""
        with self._lock:
            if self._hidden:
                self._write("\r" + TO_SCREEN_END + SHOW)
            self._lines, self._hidden = (), False

    def close(self) -> None:
        """Takes the block away for good and gives the cursor back."""
        with self._lock:
            self.rest()
            self._closed = True

    def _painted(self) -> str:
        if not self._lines:
            return ""
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        body = "\n".join(line + TO_LINE_END for line in self._lines)
        return "\r" + NO_WRAP + body + TO_SCREEN_END + WRAP + "\r" + up
