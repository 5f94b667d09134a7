# ruff: noqa: INP001
"""The pages of the documentation as data: their fenced blocks, and what a comment before a block says about it.

A comment on the lines before a block: `<!-- not run: reason -->`, `<!-- file: path -->`,
`<!-- killed: after 40 calls, 4 in flight -->`, `<!-- hub: owner/data_set/path -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_COMMENT = re.compile(r"<!-- ([a-z][a-z ]*?)(?:: (.*?))? -->\Z")
_GENERATED = re.compile(r"<!-- generated: ([^>]*?) -->\n(.*?)<!-- /generated -->", re.DOTALL)

DIRECTIVES = frozenset({"not run", "file", "killed", "hub"})


@dataclass(frozen=True)
class Block:
    """A fenced block. `first` and `last` are the indexes of its first and last line between the fences."""

    page: Path
    language: str
    directives: dict[str, str]
    text: str
    first: int
    last: int

    @property
    def where(self) -> str:
        """The place of the block, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.first + 1}"


def pages() -> list[Path]:
    """Every page, in the order in which a reader would meet them; an example's AgentCard is none."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in found if page.parent.name != "agentcards")]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text("utf-8").split("\n")
    found: list[Block] = []
    directives: dict[str, str] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith("```"):
            end = next(i for i in range(index + 1, len(lines)) if lines[i].startswith("```"))
            text = "\n".join(lines[index + 1 : end])
            found.append(Block(page, line[3:].strip(), directives, text, index + 1, end))
            directives, index = {}, end
        elif (comment := _COMMENT.match(line)) and comment[1] in DIRECTIVES:
            directives = {**directives, comment[1]: comment[2] or ""}
        elif line.strip():
            directives = {}
        index += 1
    return found


def generated(text: str) -> Iterator[re.Match[str]]:
    """The generated parts of a page: group 1 is what makes it, group 2 what stands there."""
    return _GENERATED.finditer(text)


def replace_generated(text: str, make: dict[str, str]) -> str:
    """The page with its generated parts made anew; `make` has the text for each."""
    return _GENERATED.sub(lambda m: f"<!-- generated: {m[1]} -->\n{make[m[1]]}<!-- /generated -->", text)
