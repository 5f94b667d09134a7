"""Reports an error that agac did not foresee: writes a file that can be attached to an issue."""

from __future__ import annotations

import platform
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from agac.core.errors import Problem, Where


class BugWords(NamedTuple):
    """A message about an error that agac did not foresee."""

    what: str
    """The error."""

    remedy: str
    """Where the report is, and what to do."""


def bug_report(error: Exception, command: str = "") -> BugWords:
    """Writes a report with the traceback into a new folder for temporary files, which only the
    user can read."""
    report = Path(tempfile.mkdtemp(prefix="agac-bug-")) / "report.txt"
    version = import_module("agac").__version__  # the package itself imports this one
    head = f"agac {version}\nPython {platform.python_version()}\n{command}\n\n"
    text = head + "".join(traceback.format_exception(error))
    report.write_text(text, encoding="utf-8", errors="backslashreplace")
    what = f"this is a bug in agac: {type(error).__name__}: {error}"
    return BugWords(what, f"The details are in {report}; please report them.")


def bug_problem(error: Exception, where: str) -> Problem:
    """Writes the report, and gives the error as a problem of the file, workflow or project that was
    looked at.

    The problem leaves out the text of the error, which may quote what the file holds: a problem may
    be shown to everybody."""
    return Problem(
        Where(where), f"this is a bug in agac: {type(error).__name__}. {bug_report(error).remedy}"
    )
