"""Progress of a run: one line per stage that changes on a terminal, plain lines now and then
elsewhere.

classify ████████░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 12s | $0.84 | errors 3 (last:
SchemaMismatch, row r-1089)"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any, TextIO

from agac.core.text import (
    cells,
    cropped,
    duration,
    is_unicode,
    on_one_line,
    padded,
    plain,
    waits_text,
)
from agac.core.types import counted, dollars

if TYPE_CHECKING:
    from rich.live import Live

    from agac.api.watched_run import RowCount, Snapshot, StageSnapshot, Watch, WatchedRun
    from agac.engine.totals import StageTotals

TICK_SECONDS = 0.125  # between two pictures on a terminal
NOTEBOOK_SECONDS = 0.5  # the same in a notebook: each picture is a message to the browser
LOG_CHECK_SECONDS = 1.0  # between two checks whether plain lines are due


def display() -> Watch:
    """What shows the progress of a run here: in a notebook, on a terminal, elsewhere."""
    if "IPython" in sys.modules and import_module("rich.console").Console().is_jupyter:
        return in_notebook
    if is_live(sys.stderr, os.environ):
        return on_terminal
    return plainly


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether lines may be painted over: on a terminal that can, used by a person."""
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb") and not in_ci


async def on_terminal(watched: WatchedRun) -> None:
    """Show one line per stage at the bottom of the terminal, until it is cancelled."""
    stream = sys.stderr
    live = live_lines(stream)
    painted: tuple[os.terminal_size, list[str]] | None = None
    try:
        with _on_stop(live):
            observed = ObservedRun(watched)
            while True:
                await asyncio.sleep(TICK_SECONDS)
                if not in_foreground(stream):
                    live.stop()
                    continue
                snapshot, rates = observed.look(time.monotonic())
                size = terminal_size(stream)
                lines = run_lines(
                    snapshot,
                    rates,
                    LineStyle(size.columns - 1, stream.encoding),
                    max(1, size.lines - 1),
                )
                if (size, lines) != painted or not live.is_started:
                    painted = size, lines
                    live.start()
                    # in a thread: a terminal that is held with Ctrl-S takes nothing, and the run
                    # must not wait for it
                    await asyncio.to_thread(live.update, "\n".join(lines), refresh=True)
    finally:
        sys.stderr.flush()  # the beginning of a line that was not ended
        live.stop()


async def in_notebook(watched: WatchedRun) -> None:
    """Show the lines below the cell that runs, until it is cancelled; the last ones stay."""
    observed = ObservedRun(watched)
    style = LineStyle(None, "utf-8")
    below: Any = import_module("IPython.display").DisplayHandle()
    paint = below.display
    try:
        while True:
            paint(
                {"text/plain": "\n".join(run_lines(*observed.look(time.monotonic()), style))},
                raw=True,
            )
            paint = below.update
            await asyncio.sleep(NOTEBOOK_SECONDS)
    finally:
        paint(
            {"text/plain": "\n".join(run_lines(*observed.look(time.monotonic()), style))}, raw=True
        )


async def plainly(
    watched: WatchedRun,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    every: int | None = None,
) -> None:
    """Whole lines for files, pipes and logs of CI, until cancelled; now and then, or per `every`
    settled rows."""
    observed = ObservedRun(watched)
    style = LineStyle(None, sys.stderr.encoding, bars=False)
    printed_at = clock()
    printed_share = 0.0
    printed_rows = 0
    waiting_at = -inf
    was_stopping = False
    while True:
        await sleep(LOG_CHECK_SECONDS if every is None else TICK_SECONDS)
        now = clock()
        snapshot, rates = observed.look(now)
        if snapshot.rows and snapshot.rows.rows:
            share = snapshot.settled / snapshot.rows.rows
        else:
            share = None
        grown = PLAIN_SHARE if share is None else round(share - printed_share, 6)
        is_due = now - printed_at >= (PLAIN_SECONDS if grown >= PLAIN_SHARE else PLAIN_SILENCE)
        if every is not None:
            is_due = snapshot.settled // every > printed_rows // every
        is_waiting = (
            snapshot.waiting_for is not None or bool(snapshot.waits)
        ) and now - waiting_at >= PLAIN_SILENCE
        if is_due:
            printed_at = now
            printed_share = share or 0.0
            printed_rows = snapshot.settled
        if is_waiting:
            waiting_at = now
        begins_to_stop = snapshot.stopping and not was_stopping
        was_stopping = snapshot.stopping
        if is_due or is_waiting or begins_to_stop:
            print("\n".join(run_lines(snapshot, rates, style)), file=sys.stderr, flush=True)


async def warnings_only(watched: WatchedRun) -> None:
    """Shows the warnings of a run whose replies are shown, or whose progress is not."""
    ObservedRun(watched)


def show_reply(text: str) -> None:
    """Show a piece of a reply on standard error. Who reads no more costs no call."""
    with suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


class ObservedRun:
    """A run as its watcher knows it: rates, counted rows, and since when no answer comes. Says the
    run's warnings."""

    def __init__(self, watched: WatchedRun) -> None:
        self._watched = watched
        self._waiting_since: float | None = None
        self._began: float | None = None
        self._settled: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._counted: list[RowCount | None] = []
        self._counting: threading.Thread | None = None
        for warning in watched.warnings:
            print(plain(str(warning)), file=sys.stderr)

    def look(self, now: float) -> tuple[Snapshot, dict[str, float]]:
        """The run at this moment, in seconds of any clock, and the rate of each stage. Rows are
        counted next to the first calls, in a daemon thread that the end of the run does not wait
        for."""
        if self._counting is None:
            count = self._watched.count_rows
            self._counting = threading.Thread(
                target=lambda: self._counted.append(count()), daemon=True
            )
            self._counting.start()
        self._began = now if self._began is None else self._began
        snapshot = self._watched.snapshot(self._counted[0] if self._counted else None)
        snapshot = replace(snapshot, elapsed=now - self._began)
        rates = {
            stage.name: rate(self._settled[stage.name], now, stage.counts.settled)
            for stage in snapshot.stages
        }
        if snapshot.waiting_for is None:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        if self._waiting_since is None or now - self._waiting_since < WAITING_SECONDS:
            snapshot = replace(snapshot, waiting_for=None)
        return snapshot, rates


RATE_SECONDS = 20.0
"""The rate is that of the last 20 s: it follows a lane that slows down, and does not jump with
every reply."""

PLAIN_SECONDS = 10.0
PLAIN_SHARE = 0.1
PLAIN_SILENCE = 60.0
"""A log gets a line after ten seconds and a tenth more of the rows, or a minute; one about
unanswered calls or a stop at once."""

# retries are shown when no answer has come for this time: one among many calls does not matter
WAITING_SECONDS = 1.0


def rate(seen: deque[tuple[float, int]], now: float, count: int) -> float:
    """Rows per second over the last `RATE_SECONDS`, 0.0 before anything is known; `count` joins
    what was `seen`."""
    if not seen or now - seen[-1][0] >= RATE_SECONDS / 100:
        seen.append((now, count))
    while len(seen) > 2 and now - seen[1][0] >= RATE_SECONDS:
        seen.popleft()
    since, before = seen[0]
    return (count - before) / (now - since) if now > since else 0.0


BAR = 10
WIDE_BAR = 20
WIDE = 140  # the bar is longer from this number of columns on
SHOWN_ELAPSED = (
    5.0  # seconds after which it is said how long a run is at work: a short one needs no clock
)
LEAST_DETAIL = 8  # cells of an error below which its row is left out rather than cut


@dataclass(frozen=True, slots=True)
class LineStyle:
    """The room for lines: `width` in cells, None for any; `encoding` of the stream; `bars`:
    whether to draw bars."""

    width: int | None
    encoding: str | None
    bars: bool = True

    @property
    def mark(self) -> str:
        """The sign for text that was cut off."""
        return "…" if is_unicode(self.encoding) else "~"

    def bar(self, share: float) -> str:
        """A bar of which this share is full."""
        length = WIDE_BAR if self.width is not None and self.width >= WIDE else BAR
        full = int(min(1.0, share) * length)
        on, off = ("█", "░") if is_unicode(self.encoding) else ("#", "-")
        return on * full + off * (length - full)


def run_lines(
    snapshot: Snapshot, rates: dict[str, float], style: LineStyle, max_lines: int | None = None
) -> list[str]:
    """One line per stage, then those of the whole run. Of more than `max_lines`, idle stages share
    one line."""
    notes = []
    for batch in snapshot.batches:
        counts = f"{batch.done:,}/{batch.requests:,} done" + (
            f", {batch.failed:,} failed" if batch.failed else ""
        )
        batches = counted(batch.batches, "batch", "batches")
        notes.append(
            f"{on_one_line(batch.stage, style.encoding)}: {batches} {batch.status}, {counts}"
        )
    if snapshot.unusable and snapshot.last_error is not None:
        shown_with_a_stage = any(stage.counts.failed for stage in snapshot.stages)
        last = "" if shown_with_a_stage else _last_error(snapshot, style)
        notes.append(f"unusable rows {snapshot.unusable:,}{last}")
    if snapshot.waiting_for is not None and not snapshot.stopping:
        notes.append(f"retrying: {on_one_line(snapshot.waiting_for.message, style.encoding)}")
    if snapshot.waits and not snapshot.stopping:
        notes.append(waits_text(snapshot.waits))
    if snapshot.stopping:
        calls = counted(snapshot.in_flight, "call")
        waits = f"{calls} in flight (Ctrl-C again cancels them)"
        # a batch that is being submitted, a server of tools that is to end
        if not snapshot.in_flight:
            waits = "what was begun (Ctrl-C again ends it)"
        notes.append(f"stopping: waiting for {waits}")
    if snapshot.elapsed is not None and snapshot.elapsed >= SHOWN_ELAPSED:
        notes.append(f"elapsed {duration(snapshot.elapsed)}")
    room = None if max_lines is None else max(1, max_lines - len(notes))
    shown = list(snapshot.stages)
    if room is not None and len(shown) > room:
        moving = [stage for stage in shown if stage.counts.in_flight or not _finished(stage)]
        shown = (moving or shown)[: max(0, room - 1)]
        notes.insert(0, f"+ {len(snapshot.stages) - len(shown)} more stages")
    names = [on_one_line(stage.name, style.encoding) for stage in shown]
    widest = max((cells(name) for name in names), default=0)
    if style.width is not None:
        widest = min(widest, max(6, style.width // 4))
        notes = [cropped(note, style.width, style.mark) for note in notes]
    lines = [
        stage_line(
            padded(cropped(name, widest, style.mark), widest),
            stage,
            rates.get(stage.name, 0.0),
            style,
        )
        for name, stage in zip(names, shown, strict=True)
    ]
    return [*lines, *notes][:max_lines]


def _parts(stage: StageSnapshot, rate: float) -> dict[str, str]:
    """What a stage's line says besides its rows, in its order."""
    parts = {"rate": f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"}
    if (
        stage.total is not None
        and rate > 0
        and not _finished(stage)
        and not stage.waits_for_batches
    ):
        parts["eta"] = f"ETA {duration((stage.total.rows - stage.settled) / rate)}"
    counts = stage.counts
    by_guard = {"skipped": counts.skipped, "dropped": counts.dropped}
    if any(by_guard.values()):
        parts["guard"] = ", ".join(f"{word} {count:,}" for word, count in by_guard.items() if count)
    parts["cost"] = "price unknown"
    if counts.spent.usd or not counts.spent.unpriced:
        unknown = " + unknown prices" if counts.spent.unpriced else ""
        parts["cost"] = (
            dollars(counts.spent.usd, None, simulated=counts.spent.simulated > 0) + unknown
        )
    if counts.failed:
        parts["errors"] = f"errors {counts.failed:,}"
    return parts


def stage_line(name: str, stage: StageSnapshot, rate: float, style: LineStyle) -> str:
    """One stage. Where it is too long, first the last error is cut, then the least important parts
    are left out."""
    full = bare = f"{name} {stage.settled:,} rows"
    if stage.total is not None:
        share = stage.settled / stage.total.rows if stage.total.rows else 1.0
        counts = (
            f"{stage.settled:,}/{'' if stage.total.exact else '~'}{stage.total.rows:,} "
            f"({share:.1%})"
        )
        if style.bars:
            full = f"{name} {style.bar(share)} {counts}"
        else:
            full = f"{name} {counts}"
        bare = f"{name} {counts}"
    parts = _parts(stage, rate)
    detail = _last_error(stage.counts, style)
    if style.width is None:
        return " | ".join([full, *parts.values()]) + detail
    choices = [(full, parts)]
    for least in ("", "guard", "rate", "cost", "eta", "errors"):  # the rate follows from the ETA
        parts = {key: text for key, text in parts.items() if key != least}
        choices.append((bare, parts))
    for head, kept in choices:
        line = " | ".join([head, *kept.values()])
        room = style.width - cells(line)
        if room >= 0:
            # the name of an error is shown with the count of errors only
            if "errors" in kept:
                return line + _cut_detail(detail, room, style)
            return line
    return cropped(bare, style.width, style.mark)


def _finished(stage: StageSnapshot) -> bool:
    return stage.total is not None and stage.total.exact and stage.settled >= stage.total.rows


def _last_error(of: StageTotals | Snapshot, style: LineStyle) -> str:
    if of.last_error is None:
        return ""
    error, row = of.last_error
    return f" (last: {error.type}, row {on_one_line(str(row), style.encoding)})"


def _cut_detail(detail: str, room: int, style: LineStyle) -> str:
    """The last error in `room` cells: without its row when little is left of it, and not at all
    without its type."""
    if cells(detail) <= room:
        return detail
    kind = detail.partition(", row ")[0]
    if cells(kind) + len(", row ") + LEAST_DETAIL <= room:
        return cropped(detail, room - 1, style.mark) + ")"
    return f"{kind})" if cells(kind) < room else ""


TO_LINE_END = "\x1b[K"
TO_SCREEN_END = "\x1b[J"
UP = "\x1b[{}A"
NO_WRAP = "\x1b[?7l"
WRAP = "\x1b[?7h"
"""Around the lines: a terminal may be narrower already than it reports, and then cuts lines off
instead of wrapping them. Nothing is lost, since the next picture fits."""


def live_lines(stream: TextIO) -> Live:
    """`rich.live` at the bottom of a terminal; text and logs for standard error appear above it
    meanwhile. Between two pictures the cursor is at the start of the first line, not behind the
    last one: when the terminal is resized and wraps lines differently, the cursor moves with its
    line, and the next picture begins there."""
    from rich.console import Console, ConsoleRenderable
    from rich.control import Control
    from rich.live import Live
    from rich.segment import ControlType, Segment

    def raw(text: str) -> Control:
        control = Control()
        control.segment = Segment(text, None, [(ControlType.CARRIAGE_RETURN,)])
        return control

    class LinesWithCursorOnTop(Live):
        def process_renderables(
            self, renderables: list[ConsoleRenderable]
        ) -> list[ConsoleRenderable]:
            if self.is_started and self.get_renderable():
                lines = str(self.get_renderable()).split("\n")
            else:
                lines = []
            body = "\n".join(line + TO_LINE_END for line in lines)
            up = UP.format(len(lines) - 1) if len(lines) > 1 else ""
            if lines:
                picture = [raw("\r" + NO_WRAP + body + TO_SCREEN_END + WRAP + "\r" + up)]
            else:
                picture = []
            above = [one for one in renderables if not isinstance(one, Control)]
            return [*([raw("\r" + TO_SCREEN_END), *above] if above or not lines else []), *picture]

    console = Console(
        file=stream,
        force_terminal=True,
        force_interactive=True,
        soft_wrap=True,
        markup=False,
        highlight=False,
        emoji=False,
    )
    return LinesWithCursorOnTop(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False
    )


def terminal_size(stream: TextIO) -> os.terminal_size:
    """The terminal's own size; else that of the environment; else the usual one."""
    with suppress(OSError):
        size = os.get_terminal_size(stream.fileno())
        if all(size):
            return size
    return shutil.get_terminal_size()


def in_foreground(stream: TextIO) -> bool:
    """Whether this job may paint on the terminal: a job in the background (`bg`, `&`) leaves it to
    the shell."""
    if os.name != "posix":
        return True
    with suppress(OSError):
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    return True  # it is not the terminal that this job belongs to


@contextmanager
def _on_stop(live: Live) -> Iterator[None]:
    """Ctrl-Z restores the terminal before the process stops; after `fg` the lines are painted
    again."""
    loop = asyncio.get_running_loop()
    stop = getattr(signal, "SIGTSTP", None)
    # else that of the program does as it likes
    on_main = threading.current_thread() is threading.main_thread()
    if stop is None or not on_main or signal.getsignal(stop) is not signal.SIG_DFL:
        yield
        return

    def pause() -> None:
        live.stop()
        loop.remove_signal_handler(stop)
        # with its own meaning: the process stops here until it is continued
        signal.raise_signal(stop)
        loop.add_signal_handler(stop, pause)

    loop.add_signal_handler(stop, pause)
    loop.add_signal_handler(signal.SIGCONT, live.stop)  # also after SIGSTOP, which has no handler
    try:
        yield
    finally:
        loop.remove_signal_handler(stop)
        loop.remove_signal_handler(signal.SIGCONT)
