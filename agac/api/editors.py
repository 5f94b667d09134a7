"""What editors need to complete and check agac's files: JSON Schemas, and where they belong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agac.core.errors import UsageError
from agac.core.report import Report

if TYPE_CHECKING:
    from agac.spec.editorschemas import FileKind
    from agac.spec.workflow import ProjectSpec

FOLDER = Path(".agac") / "schemas"
"""Where a project keeps them: made by agac, not by hand, so beside its database and as little in git."""


@dataclass(frozen=True, slots=True)
class SchemasReport(Report):
    """Schemas that were written, and the settings with which VS Code finds them from the folder of agac.yml."""

    files: list[Path]
    settings: dict[str, Any]


def file_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 7) of a `workflow`, a `project` (agac.yml) or a `card`. Raises UsageError for others."""
    from agac.spec import editorschemas

    kinds: tuple[FileKind, ...] = get_args(editorschemas.FileKind)
    for known in kinds:
        if known == kind:
            return editorschemas.file_schema(known)
    raise UsageError(f"no schema of {kind!r}", remedy=f"Choose {', '.join(kinds)}.")


def write_schemas(*, project: Path | str | None = None) -> SchemasReport:
    """Writes all three into `.agac/schemas/` of the project, in place of older ones.

    Raises UsageError where there is no project, and AgacError when the folder cannot be written.
    """
    import json

    from agac.api.project import open_project
    from agac.data.atomic import AtomicFile, explained

    opened = open_project(project)
    folder = opened.root / FOLDER
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    patterns = _patterns(opened.spec)
    for kind in patterns:
        file = AtomicFile(folder / f"{kind}.json")
        try:
            file.write(json.dumps(file_schema(kind), ensure_ascii=False, indent=2) + "\n")
            file.commit()
        finally:
            file.abort()
    schemas = {(FOLDER / f"{kind}.json").as_posix(): found for kind, found in patterns.items()}
    return SchemasReport([folder / f"{kind}.json" for kind in patterns], {"yaml.schemas": schemas})


def _patterns(project: ProjectSpec) -> dict[str, list[str]]:
    """Which files each kind of schema is for. An AgentCard in Markdown is no YAML, so editors are not told of it."""
    folders = {"workflow": project.paths.workflows, "card": project.paths.agentcards}
    by_folder = {
        kind: [f"{project.shown(folder)}/*{suffix}" for suffix in (".yml", ".yaml")] for kind, folder in folders.items()
    }
    return {"workflow": by_folder["workflow"], "project": ["agac.yml"], "card": by_folder["card"]}
