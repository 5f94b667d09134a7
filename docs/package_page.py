# ruff: noqa: INP001
"""What a build adds to pyproject.toml: the package's page, and the addresses of the project. The repository has no
address that could be written down yet, so whoever makes a package says it (CI does):

    AGAC_REPOSITORY=https://forge.example/us/agac make package

Then `project.urls` lead there, and links of the README to files lead to the files of this version's tag. Without it
there are no urls, and such links are plain words: on the page of a package they would lead nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FILE_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?![\w+.-]+:|#|//)([^)\s]+)\)")


def page(text: str, files: str | None) -> str:
    """The text of a page whose links to files begin with `files` (an address that has a place for `blob` or `raw`)."""

    def link(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        return f"{picture}[{words}]({files.format('raw' if picture else 'blob')}/{path})" if files else words

    return FILE_LINK.sub(link, text)


class PackagePage(MetadataHookInterface):
    """The build backend asks it for what `dynamic` names."""

    def update(self, metadata: dict[str, Any]) -> None:
        home = os.environ.get("AGAC_REPOSITORY", "").rstrip("/")
        text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
        files = f"{home}/{{}}/v{metadata['version']}"
        metadata["readme"] = {"content-type": "text/markdown", "text": page(text, files if home else None)}
        if home:
            pages = {"Documentation": "docs/README.md", "Changelog": "CHANGELOG.md"}
            metadata["urls"] = {"Source": home, "Issues": f"{home}/issues"}
            metadata["urls"] |= {name: f"{files.format('blob')}/{path}" for name, path in pages.items()}
