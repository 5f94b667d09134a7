"""Has imported all that batches need, and forks: each child is a process of its own that runs one `agac` command.

Reads a JSON line for each (arguments, folder, env; out and err: files), and writes a line with the child's exit code,
negative for a signal. A fresh interpreter would spend more than a second of CPU time on every command to load it all.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
from importlib import import_module
from typing import Any

LOADED = (
    "anthropic", "openai", "httpx2", "agac.api.doctoring", "agac.api.retrieving", "agac.api.running",
    "agac.cli.batch", "agac.cli.main", "agac.cli.run",
    "agac.cli.progress", "agac.cli.terminal", "agac.providers.anthropic_batch", "agac.providers.openai_batch",
)  # fmt: skip

PATIENCE = 90
"""Seconds after which a command that does not end says where it is, and is ended with 1."""


def command(asked: dict[str, Any]) -> None:
    """A child's whole life. Python's own end is left out but where coverage writes what it saw: it would touch, and
    so copy, all that was loaded."""
    import sitecustomize

    from agac.cli.main import main

    os.setsid()
    os.chdir(asked["folder"])
    os.environ.update(asked["env"], PWD=asked["folder"])
    for number, name in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    sys.argv = ["agac", *asked["arguments"]]
    sitecustomize.begin()
    try:
        main()
    except SystemExit as end:
        if "coverage" in sys.modules:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))


def serve() -> None:
    """Until its input ends."""
    for name in LOADED:
        import_module(name)
    gc.freeze()
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            command(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
