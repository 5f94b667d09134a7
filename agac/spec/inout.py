"""Where the results of a workflow go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agac.core.errors import Problem, UsageError
from agac.spec.inputs import STATE_FOLDERS
from agac.spec.models import WorkflowFile
from agac.spec.paths import OutsideProject, inside, lies_in
from agac.spec.targets import table_target
from agac.spec.workflow import InputSpec, OutputSpec, ProjectSpec
from agac.spec.yamlfile import Document


def output_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, source: InputSpec | None
) -> tuple[OutputSpec | None, list[Problem]]:
    """Where the results of the workflow `name` go, or why they may not go there."""
    written = file.output
    folder = project.paths.output / name
    refused = {}
    try:
        folder = inside(project.root, written.dir) if written.dir is not None else folder
        refused["dir"] = _output_refusal(folder, project, source)
    except OutsideProject as error:
        refused["dir"] = str(error)
    target = None
    if written.to is not None:
        target, refused["to"] = table_target(written.to, project, folder, source)
        target = target and replace(target, where=document.where(("output", "to")))
    problems = [
        Problem(document.where(("output", key)), message, f"output.{key}")
        for key, message in refused.items()
        if message
    ]
    if problems:
        return None, problems
    formats, where = tuple(written.format), document.where(("output", "format"))
    return OutputSpec(folder, written.include_input, formats, target, written.merge, written.csv_safe, where), []


def output_folder(text: str, project: ProjectSpec, source: InputSpec) -> Path:
    """The folder that `--output` names, relative to the project. Raises `UsageError` when results may not go there."""
    try:
        folder = inside(project.root, text)
        message = _output_refusal(folder, project, source)
    except OutsideProject as error:
        message = str(error)
    if message:
        raise UsageError(f"--output {text}: {message}", remedy="Name a folder inside the project.")
    return folder


def _output_refusal(folder: Path, project: ProjectSpec, source: InputSpec | None) -> str:
    """Why results may not go to `folder`: files there are replaced, so nothing of the project's own may be in it."""
    remedy = "results need a folder of their own, as output/reviews"
    if folder == project.root:
        return f"is the project's root; {remedy}"
    own = [project.paths.workflows, project.paths.agentcards, project.paths.schemas]
    state = [project.root / name for name in STATE_FOLDERS]
    for kept in [*own, *state, project.root / "data", project.root / "prompts"]:
        if lies_in(kept, folder):
            return f"{project.shown(folder)} holds the project's own files ({project.shown(kept)}); {remedy}"
    if any(lies_in(folder, kept) for kept in state):
        return f"{project.shown(folder)} belongs to agac or git; {remedy}"
    if source is not None and lies_in(source.path, folder):
        return f"{project.shown(folder)} holds the input file; {remedy}"
    if folder.exists() and not folder.is_dir():
        return f"{project.shown(folder)} is a file, and results need a folder; move it away, or name another folder"
    return ""
