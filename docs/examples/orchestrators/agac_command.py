"""`agac` as an orchestrator calls it: a command in a process of its own, and what its exit code asks for.

It imports nothing but Python's own library, so that agac may be installed somewhere else: AGAC_COMMAND names the
program then, such as /opt/agac/bin/agac.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DONE, FAILED, USAGE, ROWS_FAILED, LIMIT, NOT_READY, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130
REASONS = {
    FAILED: "the run cannot go on",
    USAGE: "a command, a flag or a file of the project is wrong; nothing was asked",
    ROWS_FAILED: "rows failed; errors.jsonl says why, and the same command tries them again",
    LIMIT: "a limit was reached: a budget or max_errors; what was answered is kept",
    INTERRUPTED: "it was interrupted; what was answered is kept",
}
AGAIN = {FAILED, INTERRUPTED}
"""Codes after which the same command may help without anybody doing anything: a server was away, another process
worked on the workflow, the machine was switched off. All other codes ask for a person."""


class AgacFailed(Exception):
    """A command did not do what it was called for. `code` is its exit code, negative where a signal ended it; with
    `again` the orchestrator may try it again by itself: what was answered is not asked a second time."""

    def __init__(self, words: Sequence[str], code: int) -> None:
        reason = REASONS.get(code, "it was killed" if code < 0 else "this exit code is not known")
        super().__init__(f"agac {' '.join(words)} ended with {code}: {reason}; the log of this task has its messages")
        self.code, self.again = code, code in AGAIN or code < 0


class Agac:
    """Commands in the folder of one project; `stop` ends the one that runs, as Ctrl-C does."""

    def __init__(self, project: str | Path) -> None:
        self.project = Path(project)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, workflow: str, *flags: str, most_failed: int = 0) -> dict[str, Any]:
        """`agac run`: the report of `--json`, of a run that is `complete` or waits for its batches. Raises AgacFailed,
        where rows failed only for more than `most_failed` of them."""
        words = ["run", "-a", workflow, "--yes", *flags]
        return _accepted(words, self._report(words), most_failed)

    def retrieve(self, run: int, most_failed: int = 0) -> dict[str, Any] | None:
        """`agac batch retrieve` for a run by its number: its report once it is complete, None while batches are open.
        Raises AgacFailed as `run` does."""
        words = ["batch", "retrieve", "--run", str(run)]
        report = self._report(words)
        return _accepted(words, report["run"], most_failed) if report and report["run"]["complete"] else None

    def open_runs(self) -> list[int]:
        """The numbers of the runs that have open batches, smallest first."""
        return sorted({batch["run"] for batch in self._report(["batch", "list"])["batches"]})

    def stop(self) -> None:
        """Tells a command to end: it keeps what was answered, and ends with INTERRUPTED."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _report(self, words: list[str]) -> dict[str, Any]:
        """What a command prints with `--json`; nothing where it is not ready. Its messages go to the log of the task:
        they are written to standard error, which is inherited."""
        command = [os.environ.get("AGAC_COMMAND", "agac"), *words, "--json"]
        self._process = subprocess.Popen(command, cwd=self.project, stdout=subprocess.PIPE)
        try:
            out, _ = self._process.communicate()
        except BaseException:  # the orchestrator ends this task: the command must not go on without it
            self.stop()
            self._process.communicate()
            raise
        code = self._process.returncode
        if code == NOT_READY:
            return {}
        if code not in (DONE, ROWS_FAILED):
            raise AgacFailed(words, code)
        report: dict[str, Any] = json.loads(out)
        return report


def _accepted(words: Sequence[str], run: dict[str, Any], most_failed: int) -> dict[str, Any]:
    if run["rows"]["failed"] > most_failed:
        raise AgacFailed(words, ROWS_FAILED)
    return run
