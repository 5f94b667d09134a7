"""Finding the project: light enough for commands that only read the store."""

from __future__ import annotations

from pathlib import Path

from agac.core.errors import UsageError

PROJECT_FILE = "agac.yml"


def find_project(start: Path, explicit: Path | None = None) -> Path:
    """The project's root: `explicit` when given, else the nearest folder with an agac.yml from `start` upward.

    Raises `UsageError` when there is none.
    """
    if explicit is not None:
        if (explicit / PROJECT_FILE).is_file():
            return explicit.resolve()
        raise UsageError(f"{explicit} has no {PROJECT_FILE}", remedy=f"Run `agac init {explicit}` to make a project.")
    here = start.resolve()
    for folder in (here, *here.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder
    raise UsageError(
        f"no {PROJECT_FILE} in {here} or any folder above it",
        remedy="Run `agac init` to make a project here, or name one with --project-dir.",
    )
