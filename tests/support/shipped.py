"""The workflows that agac ships, in a copy of the project that the repository is."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from support.project import ProjectFolder

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("agac.yml", "workflows", "agentcards", "schemas", "prompts", "data", "tools")


def shipped_project(folder: Path) -> ProjectFolder:
    """The copy."""
    project = ProjectFolder(folder)
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, project.root / name)
    return project


def of_file(name: str) -> Any:
    """A schema of the project."""
    return json.loads((ROOT / "schemas" / name).read_text("utf-8"))


def misfits(schema: Any, found: Iterable[Any]) -> list[str]:
    """What is wrong with values that should fit a schema."""
    checker = Draft202012Validator(schema, format_checker=FormatChecker())
    return [error.message for one in found for error in checker.iter_errors(one)]
