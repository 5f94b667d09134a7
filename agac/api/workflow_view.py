"""Workflows as pages of the monitor show them: their names, and one with its file, cards, graph,
problems and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agac.api.graph import graph
from agac.api.project import Project, project_of
from agac.api.status import database_path, names_of_files
from agac.api.sync import asynchronous, blocking
from agac.core.errors import any_error
from agac.plan.stage import stage_body
from agac.spec.agent_cards import find_card
from agac.spec.loader import find_workflow, in_order, load_workflow, read_workflow
from agac.spec.paths import Unusable, home_of, project_root
from agac.spec.project import Overrides
from agac.spec.project_files import read_bytes
from agac.store.db import open_for_reading
from agac.store.history import RunLine, run_lines

NEWEST_RUNS = 20
"""So many runs are on the page of a workflow."""


@blocking
async def workflow_view(name: str, *, project: Path | str | None = None) -> dict[str, Any]:
    """Describes a workflow as its file is now.

    The keys are its `name`, the `path` and `text` of the file, its `cards` by name, its `graph`
    with the counts of its last run, its `stages` as runs keep them, `problems` and its newest
    `runs`. With an error among the problems there is no graph and no stage. Changes nothing. Raises
    UsageError for a workflow without a file."""
    opened = project_of(name, project)
    path = find_workflow(opened.spec, name)
    home = home_of(opened.root)
    loaded, problems = load_workflow(opened.spec, name, Overrides())
    async with open_for_reading(database_path(opened.root)) as database:
        lines = await run_lines(database, path.stem) if database else []
    report = None
    stages = []
    if loaded is not None and not any_error(problems):
        report = await asynchronous(graph)(name, project=project)
        stages = [stage_body(stage) for stage in loaded.stages]
    return {
        "name": path.stem,
        "path": opened.spec.shown(path),
        "text": _shown_text(path, home),
        "cards": _card_texts(opened, path, home),
        "graph": report,
        "stages": stages,
        "problems": [str(problem) for problem in in_order(problems)],
        "runs": lines[:NEWEST_RUNS],
    }


@blocking
async def workflow_names(
    project: Path | str | None = None,
) -> dict[str, tuple[bool, RunLine | None]]:
    """Lists every workflow that has a file or was ever run: whether it has a file, and the run
    last worked on."""
    root = project_root(project)
    async with open_for_reading(database_path(root)) as database:
        lines = await run_lines(database, None) if database else []
    last = {line.workflow: line for line in reversed(lines)}
    files = names_of_files(root)
    return {name: (name in files, last.get(name)) for name in sorted({*files, *last})}


def _card_texts(opened: Project, path: Path, home: Path) -> dict[str, str]:
    """Reads the cards that a workflow names, by their names; a missing one is left out."""
    file, _, _ = read_workflow(path, opened.spec.shown(path), home)
    if file is None:
        return {}
    cards = {
        stage.agent: find_card(stage.agent, opened.spec)[0] for stage in file.stages if stage.agent
    }
    return {name: _shown_text(card, home) for name, card in cards.items() if card is not None}


def _shown_text(file: Path, home: Path) -> str:
    """Gives the text of a file of the project, or why it cannot be read."""
    try:
        return read_bytes(file, file.name, home).decode("utf-8", "replace")
    except Unusable as error:
        return str(error.problem)
