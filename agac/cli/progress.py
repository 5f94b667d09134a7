"""Live progress while a run goes on: one line that changes on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agac.api.running import Watched

TERMINAL_SECONDS = 0.2
PLAIN_SECONDS = 5.0
BAR = 12


def progress(quiet: bool) -> Callable[[Watched], Awaitable[None]] | None:
    """A watcher for `api.run`; None when nothing is to be shown."""
    if quiet:
        return None
    return _on_terminal if sys.stderr.isatty() else _plainly


async def _on_terminal(watched: Watched) -> None:
    _warn(watched)
    total: list[int] = []
    # a daemon, so that nobody waits for it: counting a large file may take longer than the run
    threading.Thread(target=lambda: total.append(watched.count_rows()), daemon=True).start()
    from rich.console import Console  # a tenth of a second that only a terminal needs
    from rich.live import Live
    from rich.text import Text

    started = time.monotonic()
    console = Console(file=sys.stderr, highlight=False)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(TERMINAL_SECONDS)
            line = progress_line(watched, total[0] if total else None, time.monotonic() - started)
            live.update(Text(shown_in(console.encoding, line), no_wrap=True, overflow="crop"), refresh=True)


async def _plainly(watched: Watched) -> None:
    _warn(watched)
    started = time.monotonic()
    while True:
        await asyncio.sleep(PLAIN_SECONDS)
        print(progress_line(watched, None, time.monotonic() - started), file=sys.stderr, flush=True)


def _warn(watched: Watched) -> None:
    for warning in watched.warnings:
        print(warning, file=sys.stderr)


def shown_in(encoding: str, line: str) -> str:
    """The line with its bar in characters that the terminal has."""
    return line if encoding.lower().startswith("utf") else line.replace("█", "#").replace("░", "-")


def progress_line(watched: Watched, total: int | None, seconds: float) -> str:
    """`reviews ████░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 12s | 84,120 tokens | $0.84 | errors 3 (last: …)`."""
    totals = watched.invocation.totals
    settled, worked = totals.settled, totals.settled - totals.unchanged
    rate = worked / seconds if seconds > 0 else 0.0
    parts = [f"{watched.workflow} {_share(settled, total)}", f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"]
    if total is not None and rate > 0:
        parts.append(f"ETA {duration((total - settled) / rate)}")
    # what may be cropped on a narrow terminal comes last
    if totals.rows_failed and totals.last_error:
        error, row_id = totals.last_error
        parts.append(f"errors {totals.rows_failed:,} (last: {error.type}, row {row_id})")
    cost = f"${totals.cost:,.2f}" + (" + unknown prices" if totals.unpriced else "")
    parts.append(f"simulated {cost}" if totals.simulated else cost)
    parts.append(f"{totals.input_tokens + totals.output_tokens:,} tokens")
    if watched.invocation.control.stop is not None:
        parts.append("stopping: waiting for calls in flight (Ctrl-C again gives them up)")
    return " | ".join(parts)


def _share(settled: int, total: int | None) -> str:
    if not total:
        return f"{settled:,} rows"
    share = min(1.0, settled / total)
    full = int(share * BAR)
    return f"{'█' * full}{'░' * (BAR - full)} {settled:,}/{total:,} ({share:.1%})"


def duration(seconds: float) -> str:
    """`42s`, `3m 12s`, `2h 05m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
