"""The simulator as a process of its own (forked, see commands.py), shared by runs that are killed."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from agac.simulator.settings import setting_flags
from support.commands import template


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
    (their_input, input_), (output, their_output) = os.pipe(), os.pipe()
    process = template().fork("simulator", [told(*flags)], Path.cwd(), os.environ, [their_input, their_output, 2])
    os.close(their_input)
    os.close(their_output)
    try:
        with os.fdopen(output, "rb") as lines:
            yield Server(json.loads(lines.readline())["base_url"])
    finally:
        os.close(input_)
        process.wait(timeout=30)
