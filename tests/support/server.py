"""The simulator in a thread or, where its speed is looked at, as a process of its own (forked, see commands.py)."""

import asyncio
import atexit
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agac.simulator.settings import Settings, setting_flags
from support.commands import template
from support.soak import SOAK


def told(*flags: str) -> str:
    """Flags of `agac simulate` as another process is told them."""
    known, given, waiting = (
        {flag.name: (name, flag.kind) for name, flag, _ in setting_flags()},
        dict[str, Any](),
        [*flags],
    )
    while waiting:
        name, kind = known[waiting.pop(0).removeprefix("--")]
        given[name] = False if kind is bool else kind(waiting.pop(0))
    return json.dumps(given, default=str)


@contextmanager
def started(*flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A simulator in an interpreter of its own, and its ready line; killed at the end of the block."""
    command = [sys.executable, "-m", "agac.simulator", told(*flags)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


class Server:
    """A running simulator."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._root = base_url.removesuffix("/v1")

    def account(self, query: str = "") -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._root}/account{query}", timeout=30) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def reset(self) -> None:
        request = urllib.request.Request(f"{self._root}/account/reset", data=b"", method="POST")
        urllib.request.urlopen(request, timeout=30).close()


Faulty = Callable[..., Server]
"""Starts a simulator with these faults and flags: the fixture `faulty`."""


@contextmanager
def simulator(*flags: str, faults: list[dict[str, Any]] | None = None, folder: Path | None = None) -> Iterator[Server]:
    """Starts a simulator for the block. `faults` are rules, written into `folder`."""
    if faults is not None:
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "faults.yml"
        path.write_text(yaml.safe_dump(faults), encoding="utf-8")
        flags = (*flags, "--faults", str(path))
    served = as_process if SOAK or set(flags[::2]) - {"--faults", "--batch-seconds"} else in_thread
    with served(told(*flags)) as base_url:
        yield Server(base_url)


@contextmanager
def as_process(settings: str) -> Iterator[str]:
    """Serves in a process of its own; the base URL."""
    (their_input, input_), (output, their_output) = os.pipe(), os.pipe()
    process = template().fork("simulator", [settings], Path.cwd(), os.environ, [their_input, their_output, 2])
    os.close(their_input)
    os.close(their_output)
    try:
        with os.fdopen(output, "rb") as lines:
            yield json.loads(lines.readline())["base_url"]
    finally:
        os.close(input_)
        process.wait(timeout=30)


@contextmanager
def in_thread(settings: str) -> Iterator[str]:
    """Serves in this process, which costs a tenth of a start; the base URL. For those whose speed is not looked at."""
    from aiohttp import web

    from agac.simulator.app import Simulator
    from agac.simulator.server import listen

    read = Settings.read(settings)
    runner = web.AppRunner(Simulator(read).app(), access_log=None, shutdown_timeout=0.05)

    async def begin() -> str:
        await runner.setup()
        return await listen(runner, read)

    loop = serving_loop()
    try:
        yield asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)


@cache
def serving_loop() -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread, to the end of this process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    atexit.register(loop.call_soon_threadsafe, loop.stop)
    return loop
