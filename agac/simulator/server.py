"""A simulator as a process: listens, says where, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

from aiohttp import web

from agac.simulator.app import Simulator
from agac.simulator.settings import Settings, SimulatorError

PATIENCE = 1.0
"""Seconds that open requests get to end once the simulator is told to stop."""


def run_simulator(settings: Settings, on_ready: Callable[[str], None], *, exit_with_stdin: bool = False) -> None:
    """Serves until SIGINT or SIGTERM (or, with `exit_with_stdin`, until standard input ends), then returns.

    `on_ready` gets the base URL (`http://127.0.0.1:8123/v1`) once requests are answered. Raises SimulatorError for
    settings that make no sense and for a port that is taken.
    """
    asyncio.run(serve(settings, on_ready, exit_with_stdin=exit_with_stdin))


async def serve(settings: Settings, on_ready: Callable[[str], None], *, exit_with_stdin: bool = False) -> None:
    """`run_simulator` within a running loop, from the main thread."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(Simulator(settings).app(), access_log=None, shutdown_timeout=PATIENCE)
    await runner.setup()
    try:
        on_ready(await listen(runner, settings))
        if exit_with_stdin:
            threading.Thread(target=watch_stdin, args=(loop, stop), daemon=True).start()
        await stop.wait()
    finally:
        await runner.cleanup()


async def listen(runner: web.AppRunner, settings: Settings) -> str:
    """Binds the port; gives the base URL."""
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=4096).start()
    except OSError as error:
        problem = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        remedy = "stop what uses the port, or take another one (--port 0 takes any that is free)"
        raise SimulatorError([f"{problem}; {remedy}"], exit_code=1) from error
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Reads standard input to its end: whoever held the other side has gone, however it died."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
