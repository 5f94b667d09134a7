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
    from agac.store.batches import BatchCount

TICK_SECONDS = 0.125
"""Seconds between two pictures on a terminal."""

NOTEBOOK_SECONDS = 0.5
"""Seconds between two pictures in a notebook, where each is a message to the browser."""

LOG_CHECK_SECONDS = 1.0
"""Seconds between two checks whether plain lines are due."""


def display() -> Watch:
    """Returns what shows the progress of a run here: in a notebook, on a terminal, elsewhere."""
    if "IPython" in sys.modules and import_module("rich.console").Console().is_jupyter:
        return in_notebook
    if is_live(sys.stderr, os.environ):
        return on_terminal
    return plainly


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """True if lines may be painted over: on a terminal that can, used by a person."""
    in_ci = environ.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb") and not in_ci


async def on_terminal(watched: WatchedRun) -> None:
    """Shows one line per stage at the bottom of the terminal, until cancelled."""
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
                style = LineStyle(size.columns - 1, stream.encoding)
                lines = run_lines(snapshot, rates, style, max(1, size.lines - 1))
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
    """Shows the lines below the cell that runs, until cancelled; the last ones stay."""
    observed = ObservedRun(watched)
    style = LineStyle(None, "utf-8")
    handle: Any = import_module("IPython.display").DisplayHandle()

    def paint(show: Callable[..., None]) -> None:
        lines = run_lines(*observed.look(time.monotonic()), style)
        show({"text/plain": "\n".join(lines)}, raw=True)

    show = handle.display
    try:
        while True:
            paint(show)
            show = handle.update
            await asyncio.sleep(NOTEBOOK_SECONDS)
    finally:
        paint(show)


async def plainly(
    watched: WatchedRun,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    every: int | None = None,
) -> None:
    """Prints whole lines for files, pipes and logs of CI, until cancelled: now and then, or once
    per `every` settled rows."""
    observed = ObservedRun(watched)
    style = LineStyle(None, sys.stderr.encoding, bars=False)
    log = _PlainLog(clock(), every)
    while True:
        await sleep(LOG_CHECK_SECONDS if every is None else TICK_SECONDS)
        now = clock()
        snapshot, rates = observed.look(now)
        if log.is_due(snapshot, now):
            print("\n".join(run_lines(snapshot, rates, style)), file=sys.stderr, flush=True)


class _PlainLog:
    """Decides when lines are printed into a log."""

    def __init__(self, now: float, every: int | None) -> None:
        """`every`: lines are due after so many more settled rows, not by time."""
        self._every = every
        self._printed_at = now
        self._printed_share = 0.0
        self._printed_rows = 0
        self._waiting_at = -inf
        self._was_stopping = False

    def is_due(self, snapshot: Snapshot, now: float) -> bool:
        """True if lines are to be printed now: for progress, for calls that bring no answer, or
        because the run begins to stop."""
        has_progress = self._has_progress(snapshot, now)
        is_waiting = self._is_waiting(snapshot, now)
        begins_to_stop = snapshot.stopping and not self._was_stopping
        self._was_stopping = snapshot.stopping
        return has_progress or is_waiting or begins_to_stop

    def _has_progress(self, snapshot: Snapshot, now: float) -> bool:
        """True if enough rows were settled, or enough time has passed, since lines were printed."""
        share = None
        if snapshot.rows and snapshot.rows.rows:
            share = snapshot.settled / snapshot.rows.rows
        if self._every is not None:
            is_due = snapshot.settled // self._every > self._printed_rows // self._every
        else:
            has_grown = share is None or round(share - self._printed_share, 6) >= PLAIN_SHARE
            is_due = now - self._printed_at >= (PLAIN_SECONDS if has_grown else PLAIN_SILENCE)
        if is_due:
            self._printed_at = now
            self._printed_share = share or 0.0
            self._printed_rows = snapshot.settled
        return is_due

    def _is_waiting(self, snapshot: Snapshot, now: float) -> bool:
        """True if calls bring no answer, and this was not printed lately."""
        if snapshot.waiting_for is None and not snapshot.waits:
            return False
        if now - self._waiting_at < PLAIN_SILENCE:
            return False
        self._waiting_at = now
        return True


async def warnings_only(watched: WatchedRun) -> None:
    """Shows only the warnings of a run, because its replies are shown or its progress is not."""
    ObservedRun(watched)


def show_reply(text: str) -> None:
    """Shows a piece of a reply on standard error. A reader that has gone does not end the call."""
    with suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


class ObservedRun:
    """Observes a run for its watcher: rates, the number of rows, and since when no answer comes.
    Prints the run's warnings first."""

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
        """Returns the run at this moment, in seconds of any clock, and the rate of each stage. Rows
        are counted during the first calls, in a daemon thread for which the end of the run does not
        wait."""
        if self._counting is None:
            count = self._watched.count_rows
            self._counting = threading.Thread(
                target=lambda: self._counted.append(count()), daemon=True
            )
            self._counting.start()
        if self._began is None:
            self._began = now
        snapshot = self._watched.snapshot(self._counted[0] if self._counted else None)
        snapshot = replace(snapshot, elapsed=now - self._began)
        rates = {
            stage.name: rate(self._settled[stage.name], now, stage.counts.settled)
            for stage in snapshot.stages
        }
        if not self._waits_long(snapshot, now):
            snapshot = replace(snapshot, waiting_for=None)
        return snapshot, rates

    def _waits_long(self, snapshot: Snapshot, now: float) -> bool:
        """True if no answer has come for WAITING_SECONDS."""
        if snapshot.waiting_for is None:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since >= WAITING_SECONDS


RATE_SECONDS = 20.0
"""Seconds over which a rate is measured: it follows a lane that slows down, and does not jump with
every reply."""

PLAIN_SECONDS = 10.0
PLAIN_SHARE = 0.1
PLAIN_SILENCE = 60.0
"""A log gets a line after ten seconds and a tenth more of the rows, or after a minute; one about
unanswered calls or a stop at once."""

WAITING_SECONDS = 1.0
"""Seconds without an answer after which retries are shown; one among many calls does not matter."""


def rate(seen: deque[tuple[float, int]], now: float, count: int) -> float:
    """Returns rows per second over the last `RATE_SECONDS`, 0.0 before anything is known. Adds
    `count` to what was `seen`."""
    if not seen or now - seen[-1][0] >= RATE_SECONDS / 100:
        seen.append((now, count))
    while len(seen) > 2 and now - seen[1][0] >= RATE_SECONDS:
        seen.popleft()
    since, before = seen[0]
    return (count - before) / (now - since) if now > since else 0.0


BAR = 10
"""Cells of a bar."""

WIDE_BAR = 20
"""Cells of a bar on a wide terminal."""

WIDE = 140
"""Columns from which on a terminal is wide."""

SHOWN_ELAPSED = 5.0
"""Seconds after which the time of a run is shown; a short run needs no clock."""

MIN_DETAIL = 8
"""Cells for the row of an error, below which it is left out rather than cut."""


@dataclass(frozen=True, slots=True)
class LineStyle:
    """The form in which lines are drawn."""

    width: int | None
    """Cells of a line; None: any number."""
    encoding: str | None
    """The encoding of the stream."""
    bars: bool = True
    """True to draw bars."""

    @property
    def mark(self) -> str:
        """The sign for text that was cut off."""
        return "…" if is_unicode(self.encoding) else "~"

    def bar(self, share: float) -> str:
        """Draws a bar of which this share is full."""
        length = WIDE_BAR if self.width is not None and self.width >= WIDE else BAR
        full = int(min(1.0, share) * length)
        on, off = ("█", "░") if is_unicode(self.encoding) else ("#", "-")
        return on * full + off * (length - full)


def run_lines(
    snapshot: Snapshot, rates: dict[str, float], style: LineStyle, max_lines: int | None = None
) -> list[str]:
    """Returns one line per stage, then those of the whole run. If there are more than `max_lines`,
    idle stages share one line."""
    notes = _notes(snapshot, style)
    shown = list(snapshot.stages)
    if max_lines is not None:
        shown = _most_active(shown, max(1, max_lines - len(notes)))
    hidden = len(snapshot.stages) - len(shown)
    if hidden:
        notes.insert(0, f"+ {hidden} more stages")
    names = [on_one_line(stage.name, style.encoding) for stage in shown]
    widest = max(map(cells, names), default=0)
    if style.width is not None:
        widest = min(widest, max(6, style.width // 4))
        notes = [cropped(note, style.width, style.mark) for note in notes]
    lines = []
    for name, stage in zip(names, shown, strict=True):
        title = padded(cropped(name, widest, style.mark), widest)
        lines.append(stage_line(title, stage, rates.get(stage.name, 0.0), style))
    return [*lines, *notes][:max_lines]


def _most_active(stages: list[StageSnapshot], lines: int) -> list[StageSnapshot]:
    """Returns the stages that are shown in so many lines, one of which is for all others: those
    that have something to do, if there are any."""
    if len(stages) <= lines:
        return stages
    moving = [stage for stage in stages if stage.counts.in_flight or not _is_finished(stage)]
    return (moving or stages)[: max(0, lines - 1)]


def _notes(snapshot: Snapshot, style: LineStyle) -> list[str]:
    """Returns the lines about the whole run."""
    notes = [_batch_note(batch, style) for batch in snapshot.batches]
    if snapshot.unusable and snapshot.last_error is not None:
        is_shown_with_stage = any(stage.counts.failed for stage in snapshot.stages)
        last = "" if is_shown_with_stage else _last_error(snapshot, style)
        notes.append(f"unusable rows {snapshot.unusable:,}{last}")
    if snapshot.stopping:
        notes.append(f"stopping: waiting for {_awaited(snapshot)}")
    else:
        if snapshot.waiting_for is not None:
            notes.append(f"retrying: {on_one_line(snapshot.waiting_for.message, style.encoding)}")
        if snapshot.waits:
            notes.append(waits_text(snapshot.waits))
    if snapshot.elapsed is not None and snapshot.elapsed >= SHOWN_ELAPSED:
        notes.append(f"elapsed {duration(snapshot.elapsed)}")
    return notes


def _batch_note(batch: BatchCount, style: LineStyle) -> str:
    """Returns the line about open batches of one stage."""
    counts = f"{batch.done:,}/{batch.requests:,} done"
    if batch.failed:
        counts += f", {batch.failed:,} failed"
    batches = counted(batch.batches, "batch", "batches")
    return f"{on_one_line(batch.stage, style.encoding)}: {batches} {batch.status}, {counts}"


def _awaited(snapshot: Snapshot) -> str:
    """Tells what a run that stops waits for."""
    if not snapshot.in_flight:
        # a batch that is being submitted, a server of tools that is to end
        return "what was begun (Ctrl-C again ends it)"
    return f"{counted(snapshot.in_flight, 'call')} in flight (Ctrl-C again cancels them)"


def _parts(stage: StageSnapshot, rate: float) -> dict[str, str]:
    """Returns what a stage's line says after its rows, in order."""
    parts = {"rate": f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"}
    left = _rows_left(stage)
    if left is not None and rate > 0 and not stage.waits_for_batches:
        parts["eta"] = f"ETA {duration(left / rate)}"
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


def _rows_left(stage: StageSnapshot) -> int | None:
    """Returns how many rows the stage still gets; None if that is unknown, or it has finished."""
    if stage.total is None or _is_finished(stage):
        return None
    return stage.total.rows - stage.settled


def _is_finished(stage: StageSnapshot) -> bool:
    """True if all rows of the stage are settled."""
    total = stage.total
    return total is not None and total.exact and stage.settled >= total.rows


_PARTS_BY_IMPORTANCE = ("guard", "rate", "cost", "eta", "errors")
"""The parts of a line in the order in which they are left out. The rate follows from the ETA."""


def stage_line(name: str, stage: StageSnapshot, rate: float, style: LineStyle) -> str:
    """Returns the line of one stage. If it is too long, first the bar is left out and the last
    error is cut, then the least important parts are left out."""
    with_bar, without_bar = _heads(name, stage, style)
    parts = _parts(stage, rate)
    detail = _last_error(stage.counts, style)
    if style.width is None:
        return " | ".join([with_bar, *parts.values()]) + detail
    choices = [(with_bar, parts), (without_bar, parts)]
    for left_out in _PARTS_BY_IMPORTANCE:
        parts = {key: text for key, text in parts.items() if key != left_out}
        choices.append((without_bar, parts))
    for head, kept in choices:
        line = " | ".join([head, *kept.values()])
        room = style.width - cells(line)
        if room < 0:
            continue
        if "errors" not in kept:  # the name of an error is only shown with their count
            return line
        return line + _cut_detail(detail, room, style)
    return cropped(without_bar, style.width, style.mark)


def _heads(name: str, stage: StageSnapshot, style: LineStyle) -> tuple[str, str]:
    """Returns the beginning of a stage's line with its bar, if bars are drawn, and without."""
    if stage.total is None:
        head = f"{name} {stage.settled:,} rows"
        return head, head
    share = stage.settled / stage.total.rows if stage.total.rows else 1.0
    about = "" if stage.total.exact else "~"
    counts = f"{stage.settled:,}/{about}{stage.total.rows:,} ({share:.1%})"
    head = f"{name} {counts}"
    if not style.bars:
        return head, head
    return f"{name} {style.bar(share)} {counts}", head


def _last_error(of: StageTotals | Snapshot, style: LineStyle) -> str:
    """Returns the last error of a stage or a run, in parentheses, or an empty text."""
    if of.last_error is None:
        return ""
    error, row = of.last_error
    return f" (last: {error.type}, row {on_one_line(str(row), style.encoding)})"


def _cut_detail(detail: str, room: int, style: LineStyle) -> str:
    """Cuts the last error to `room` cells: without its row if little room is left for it, and
    leaves it out if its type does not fit."""
    if cells(detail) <= room:
        return detail
    kind = detail.partition(", row ")[0]
    if cells(kind) + len(", row ") + MIN_DETAIL <= room:
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
    """Returns a `rich.live` at the bottom of a terminal; text and logs for standard error appear
    above it meanwhile. Between two pictures the cursor is at the start of the first line, not
    behind the last one: when the terminal is resized and wraps lines differently, the cursor moves
    with its line, and the next picture begins there."""
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
            above = [each for each in renderables if not isinstance(each, Control)]
            is_shown = self.is_started and bool(self.get_renderable())
            if not is_shown:
                return [raw("\r" + TO_SCREEN_END), *above]
            lines = str(self.get_renderable()).split("\n")
            body = "\n".join(line + TO_LINE_END for line in lines)
            up = UP.format(len(lines) - 1) if len(lines) > 1 else ""
            picture = raw("\r" + NO_WRAP + body + TO_SCREEN_END + WRAP + "\r" + up)
            if above:
                return [raw("\r" + TO_SCREEN_END), *above, picture]
            return [picture]

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
    """Returns the terminal's own size, else that of the environment, else the usual one."""
    with suppress(OSError):
        size = os.get_terminal_size(stream.fileno())
        if all(size):
            return size
    return shutil.get_terminal_size()


def in_foreground(stream: TextIO) -> bool:
    """True if this job may paint on the terminal: a job in the background (`bg`, `&`) leaves it to
    the shell."""
    if os.name != "posix":
        return True
    with suppress(OSError):
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    return True  # it is not the terminal that this job belongs to


@contextmanager
def _on_stop(live: Live) -> Iterator[None]:
    """Restores the terminal before Ctrl-Z stops the process; after `fg` the lines are painted
    again. Leaves a program's own handler as it is."""
    loop = asyncio.get_running_loop()
    stop = getattr(signal, "SIGTSTP", None)
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
