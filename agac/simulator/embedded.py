"""A simulator that lives as long as its user: a child process, started and stopped here.

A process of its own, so that neither competes with the other for the interpreter. It reads our end of its standard
input: when we end, even by kill -9, the pipe closes and the child ends too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from agac.simulator.settings import Settings, SimulatorError

START_SECONDS = 30.0
STOP_SECONDS = 5.0
LONGEST_ERROR = 2000


@asynccontextmanager
async def embedded_simulator(settings: Settings | None = None) -> AsyncIterator[str]:
    """A running simulator's base URL, such as `http://127.0.0.1:40123/v1`; it is stopped when the block ends.

    Ctrl-C in a terminal does not reach the child: it is in a session of its own and ends after its user. Raises
    SimulatorError when it does not start.
    """
    settings = settings or Settings()
    with tempfile.TemporaryFile() as errors:
        process = await start_process(settings, errors)
        try:
            yield await read_base_url(process, errors)
        finally:
            await asyncio.shield(stop_process(process))


async def start_process(settings: Settings, errors: IO[bytes]) -> asyncio.subprocess.Process:
    """The child, its input and output in our hands; what it says on standard error goes to a file."""
    if settings.faults is not None:
        settings = replace(settings, faults=settings.faults.absolute())
    if settings.state is not None:
        settings = replace(settings, state=settings.state.absolute())
    command = ["-P", "-m", "agac.simulator", *settings.arguments(), "--ready-line", "--exit-with-stdin"]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        env=child_environment(os.environ),
        start_new_session=True,
    )


def child_environment(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Our environment, with this package findable where it is not installed."""
    root = Path(__file__).parents[2]
    found = dict(environ)
    if "site-packages" not in root.parts:
        found["PYTHONPATH"] = os.pathsep.join(path for path in (found.get("PYTHONPATH"), str(root)) if path)
    return found


async def read_base_url(process: asyncio.subprocess.Process, errors: IO[bytes]) -> str:
    """Waits for the child's ready line; raises SimulatorError with what it said when none comes."""
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        return str(json.loads(line)["base_url"])
    except TimeoutError as error:
        reason = f"the embedded simulator was not ready after {START_SECONDS:g} s"
        raise SimulatorError([reason], exit_code=1) from error
    except ValueError as error:
        code = await process.wait()
        errors.seek(0)
        said = errors.read()[-LONGEST_ERROR:].decode(errors="replace").strip().removeprefix("error: ")
        raise SimulatorError(said.split("\nerror: ") if said else [f"it ended with {code}"], exit_code=code) from error


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Ends the child: by its input's end, and if it does not listen, by force."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
