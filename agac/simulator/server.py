"""A simulator as a process: it listens, says where, and serves until it is stopped.

An embedded one is a child process, which reads our end of its standard input: when we end, even by
kill -9, the pipe closes and the child ends too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from agac.core.arguments import typed
from agac.simulator.kinds import Texts
from agac.simulator.settings import Settings, SimulatorError

if TYPE_CHECKING:
    from aiohttp import web

HOST = "127.0.0.1"  # the simulator has no login, so it serves this machine alone
KEY_VARIABLE = "AGAC_SIMULATOR_KEY"
"""A variable of the child: other users see its command, and not its environment."""
SHUTDOWN_S = 1.0  # seconds that open requests get to end once the simulator is stopped
STAND_INS: list[str] = []
"""Base URLs of simulators of this process: the last one is used for every embedded one."""
START_SECONDS = 30.0
STOP_SECONDS = 5.0
MAX_ERROR_LENGTH = 2000


def run_simulator(
    settings: Settings,
    on_ready: Callable[[str], None],
    *,
    key: str = "",
    exit_with_stdin: bool = False,
) -> None:
    """Serves until SIGINT or SIGTERM or, with `exit_with_stdin`, the end of standard input.

    To be called in the main thread. `on_ready` gets the base URL (`http://127.0.0.1:8123/v1`) once
    requests are answered. With a `key`, that is for who sends it in the header SIMULATOR_KEY.
    Raises SimulatorError for settings that make no sense and for a port in use.
    """
    gc.disable()  # nothing of what is imported is garbage
    from aiohttp import web  # the user of an embedded simulator does without

    from agac.simulator.app import Simulator

    gc.enable()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        runner = web.AppRunner(
            Simulator(settings, key).app(), access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        await runner.setup()
        try:
            on_ready(await listen(runner, settings))
            if exit_with_stdin:
                threading.Thread(target=watch_stdin, args=(loop, stop), daemon=True).start()
            await stop.wait()
        finally:
            await runner.cleanup()

    asyncio.run(serve())


async def listen(runner: web.AppRunner, settings: Settings) -> str:
    from aiohttp import web

    try:
        await web.TCPSite(runner, HOST, settings.port, backlog=4096).start()
    except OSError as error:
        problem = f"cannot listen on {HOST}:{settings.port}: {error.strerror or error}"
        remedy = "stop what uses the port, or take another one (--port 0 takes any that is free)"
        raise SimulatorError([f"{problem}; {remedy}"], exit_code=1) from error
    return f"http://{HOST}:{runner.addresses[0][1]}/v1"


def watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Reads standard input to its end: then the process at the other end is gone."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


@typed
@asynccontextmanager
async def embedded_simulator(settings: Settings | None = None, key: str = "") -> AsyncIterator[str]:
    """Starts a simulator until the block ends; gives its base URL, or raises SimulatorError.

    Ctrl-C does not reach it. With a `key` it answers who sends that in the header SIMULATOR_KEY,
    else every user of this machine.
    """
    command = [sys.executable, "-P", "-m", "agac.simulator", (settings or Settings()).written()]
    environ = child_environment(key)
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=errors, env=environ, start_new_session=True
        )
        try:
            yield await read_base_url(process, errors)
        finally:
            await asyncio.shield(stop_process(process))


def child_environment(key: str) -> Texts:
    environ = dict(os.environ)
    root = Path(__file__).parents[2]
    if "site-packages" not in root.parts:  # so that this package is found where it is not installed
        paths = [environ.get("PYTHONPATH"), str(root)]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # aiohttp reads the machine's certificates, twice, when it is imported: that is a fifth of the
    # time that a start takes
    environ["SSL_CERT_FILE"] = os.devnull
    environ["SSL_CERT_DIR"] = os.devnull
    environ[KEY_VARIABLE] = key
    return environ


async def read_base_url(process: Process, errors: IO[bytes]) -> str:
    """Waits for the child's ready line; raises SimulatorError with its errors if none comes."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        return str(json.loads(line)["base_url"])
    except TimeoutError as error:
        reason = f"the embedded simulator was not ready after {START_SECONDS:g} s"
        raise SimulatorError([reason], exit_code=1) from error
    except ValueError as error:
        code = await process.wait()
        errors.seek(0)
        text = (
            errors.read()[-MAX_ERROR_LENGTH:]
            .decode(errors="replace")
            .strip()
            .removeprefix("error: ")
        )
        raise SimulatorError(
            text.split("\nerror: ") if text else [f"it ended with {code}"], exit_code=code
        ) from error


async def stop_process(process: Process) -> None:
    """Ends the child: by its input's end, and if that does not help, by force."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
