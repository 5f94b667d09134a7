"""Live progress while a run goes on: a line a stage that changes on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from agac.api.watching import RowCount, Snapshot, Watched
    from agac.cli.live.block import Block

TICK_SECONDS = 0.125
"""A terminal is painted at most so often: enough to look alive, far too little to cost anything."""

LOOK_SECONDS = 1.0
"""So often it is asked whether a log is due for lines."""

USUAL_SIZE = os.terminal_size((80, 24))


def progress(quiet: bool) -> Callable[[Watched], Awaitable[None]] | None:
    """A watcher for `api.run`; None when nothing is to be shown."""
    if quiet:
        return None
    return on_terminal if is_live(sys.stderr, os.environ) else plainly


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether lines may be painted over: on a terminal that can, with somebody in front of it."""
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb") and not in_ci


async def on_terminal(watched: Watched) -> None:
    """A line a stage at the bottom of the terminal, until it is cancelled."""
    from agac.cli.live.above import everything_above
    from agac.cli.live.block import Block
    from agac.cli.live.lines import Paper, run_lines

    stream, seen, size = sys.stderr, _Seen(watched), None
    block = Block(lambda text: _send(stream, text))
    with _resizing() as resized, closing(block), _stopping(block, resized), everything_above(block):
        _warn(watched)
        while True:
            await _next_tick(resized)
            if not in_front(stream):
                block.rest()
                continue
            snapshot, rates = seen.look(time.monotonic())
            before, size = size, terminal_size(stream, os.environ)
            paper = Paper(size.columns - 1, stream.encoding)
            lines = run_lines(snapshot, rates, paper, max(1, size.lines - 1))
            # in a thread: a terminal that is held with Ctrl-S takes nothing, and the run must not stand still for it
            await asyncio.to_thread(block.paint, lines, anew=size != before)


async def plainly(
    watched: Watched,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Whole lines without control characters, for files, pipes and the logs of CI, until it is cancelled."""
    from agac.cli.live.lines import Paper, run_lines
    from agac.cli.live.pace import Log

    _warn(watched)
    seen, log = _Seen(watched), Log(clock())
    while True:
        await sleep(LOOK_SECONDS)
        now = clock()
        snapshot, rates = seen.look(now)
        told = log.first_told(now, waiting=snapshot.waiting_for is not None)
        if log.due(now, _share(snapshot)) or told:
            paper = Paper(None, sys.stderr.encoding, bars=False)
            print("\n".join(run_lines(snapshot, rates, paper)), file=sys.stderr, flush=True)


class _Seen:
    """What a watcher has seen so far: rates, and the number of rows once it was counted."""

    def __init__(self, watched: Watched) -> None:
        from agac.cli.live.pace import Rate, Waiting

        self._watched, self._new_rate, self._waiting = watched, Rate, Waiting()
        self._rates: dict[str, Rate] = {}
        self._counted: list[RowCount | None] = []
        self._counting: threading.Thread | None = None

    def look(self, now: float) -> tuple[Snapshot, dict[str, float]]:
        """The run at this moment, in seconds of any clock, and the rate of each stage."""
        self._count()
        snapshot = self._watched.snapshot(self._counted[0] if self._counted else None)
        rates = {
            stage.name: self._rates.setdefault(stage.name, self._new_rate()).observe(now, stage.worked)
            for stage in snapshot.stages
        }
        if not self._waiting.long(now, waiting=snapshot.waiting_for is not None):
            snapshot = replace(snapshot, waiting_for=None)
        return snapshot, rates

    def _count(self) -> None:
        """Has the rows counted beside the first calls: in a daemon, so that nobody waits for it."""
        if self._counting is None:
            self._counting = threading.Thread(
                target=lambda: self._counted.append(self._watched.count_rows()), daemon=True
            )
            self._counting.start()


def _share(snapshot: Snapshot) -> float | None:
    return snapshot.settled / snapshot.rows.rows if snapshot.rows and snapshot.rows.rows else None


def _send(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _warn(watched: Watched) -> None:
    for warning in watched.warnings:
        print(warning, file=sys.stderr)


def terminal_size(stream: TextIO, environ: Mapping[str, str]) -> os.terminal_size:
    """As the terminal says it; else as the environment does; else the usual one."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        size = os.terminal_size((0, 0))
    said = [int(text) if (text := environ.get(name, "")).isdecimal() else 0 for name in ("COLUMNS", "LINES")]
    columns, lines = (a or b or c for a, b, c in zip(size, said, USUAL_SIZE, strict=True))
    return os.terminal_size((columns, lines))


def in_front(stream: TextIO) -> bool:
    """Whether the terminal is ours to paint on: a job in the background (`bg`, `&`) leaves it to the shell."""
    if os.name != "posix":
        return True
    with suppress(OSError):
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    return True  # it is not the terminal that this job belongs to


@contextmanager
def _stopping(block: Block, resized: asyncio.Event) -> Iterator[None]:
    """Ctrl-Z gives a clean terminal back before the process stops; going on begins with a new picture."""
    loop, stop = asyncio.get_running_loop(), getattr(signal, "SIGTSTP", None)
    if stop is None or signal.getsignal(stop) is not signal.SIG_DFL:
        yield
        return

    def pause() -> None:
        block.rest()
        loop.remove_signal_handler(stop)
        signal.raise_signal(stop)  # with its own meaning: the process stands here until somebody lets it go on
        loop.add_signal_handler(stop, pause)

    def go_on() -> None:
        block.rest()  # also where nobody asked whether it may be stopped
        resized.set()

    loop.add_signal_handler(stop, pause)
    loop.add_signal_handler(signal.SIGCONT, go_on)
    try:
        yield
    finally:
        loop.remove_signal_handler(stop)
        loop.remove_signal_handler(signal.SIGCONT)


@contextmanager
def _resizing() -> Iterator[asyncio.Event]:
    """An event that is set when the terminal has another size. Where no signal tells, the next tick sees it."""
    resized, loop = asyncio.Event(), asyncio.get_running_loop()
    number = getattr(signal, "SIGWINCH", None)
    with suppress(NotImplementedError, RuntimeError, ValueError):
        if number is not None:
            loop.add_signal_handler(number, resized.set)
    try:
        yield resized
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            if number is not None:
                loop.remove_signal_handler(number)


async def _next_tick(resized: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(TICK_SECONDS):
            await resized.wait()
    resized.clear()
