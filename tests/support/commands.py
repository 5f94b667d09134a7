"""`agac` commands as processes that are forked from one which has loaded everything: real ones, and cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.processes import KILLER, kill_at
from support.project import Ran, clean_environment


class Commands:
    """Runs commands, one at a time. `folder` is for what they print."""

    def __init__(self, template: subprocess.Popen[str], folder: Path) -> None:
        self._template, self._folder = template, folder

    def run(self, root: Path, *arguments: str, kill: str = "", env: Mapping[str, str] | None = None) -> Ran:
        """One command to its end, or to the moment at which it kills itself (`kill`, see killed/batchmoments.py)."""
        out, err = self._folder / "out", self._folder / "err"
        asked = {
            "arguments": arguments,
            "folder": str(root),
            "env": {"AGAC_TEST_KILL": f"{kill}:1" if kill and ":" not in kill else kill, **(env or {})},
            "out": str(out),
            "err": str(err),
        }
        stdin, stdout = self._template.stdin, self._template.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        return Ran(int(stdout.readline()), out.read_text("utf-8"), err.read_text("utf-8"))


@contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    """The template, for the block."""
    template = subprocess.Popen(
        [sys.executable, f"{KILLER}/template.py"],
        env=clean_environment(kill_at("")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Commands(template, folder)
    finally:
        assert template.stdin is not None
        assert template.stdout is not None
        template.stdin.close()
        template.wait(timeout=30)
        template.stdout.close()
