"""`agac schema --write` as lines of text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agac.cli.shown.layout import from_here

if TYPE_CHECKING:
    from agac.api.editors import SchemasReport


def schemas_lines(report: SchemasReport) -> list[str]:
    """The files, and what to put where so that an editor uses them."""
    files = [f"  {from_here(file)}" for file in report.files]
    schema, patterns = next(iter(report.settings["yaml.schemas"].items()))
    upwards = "../" * patterns[0].count("/")
    return [
        *files,
        "",
        "VS Code, with the extension YAML (redhat.vscode-yaml): put this into .vscode/settings.json beside agac.yml",
        *json.dumps(report.settings, ensure_ascii=False, indent=2).split("\n"),
        "",
        "Any editor with a YAML language server: a first line in the workflow",
        f"# yaml-language-server: $schema={upwards}{schema}",
    ]
