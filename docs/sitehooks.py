# ruff: noqa: INP001
"""What mkdocs does not do by itself, for `make docs`: the pages are written to be read in the repository too.

- A link to a file outside docs/ leads to a copy of that file in the site (the change log is a page of it).
- Anchors are made as repositories show them, so that one link works in both places.
- Each cell of a table knows the name of its column: on a phone it stands above or below the others (assets/site.css).
- Comments for the tests (`<!-- not run: … -->`) are left out; a file that a block shows becomes the block's title.
"""

from __future__ import annotations

import os
import re
import sys
from html import escape
from itertools import cycle
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pages import ROOT, pages

DOCS = ROOT / "docs"
CHANGES = ROOT / "CHANGELOG.md"
ASIDE = "files"
"""The site's folder for copies of files that lie outside docs/."""
WEIGHTS = {"guide/inputs": 8, "guide/": 4, "reference/": 2, "CHANGELOG": 0.1, "architecture": 0.2, "decisions/": 0.2}
"""What explains a thing is found before its history: by the beginning of a page's path. The others weigh 1."""
LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)\s#]+)(?P<rest>[^)\s]*\))")
CODE = re.compile(r"`([^`]+)`")
COMMENT = re.compile(r"<!-- (?:file: (?P<file>\S+)|[^>]*) -->")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as tests/docs/test_links.py knows them."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slug}
    return config


def slug(heading: str, _separator: str) -> str:
    """`what-it-costs` of `What it costs`."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what lies outside docs/ and is linked to from a page. Such a page may link further."""
    todo = [*(page for page in pages() if page.is_relative_to(DOCS)), CHANGES]
    files.append(added(CHANGES, config, InclusionLevel.INCLUDED))
    while todo:
        for target in outside(todo.pop()):
            if files.get_file_from_path(address(target)) is None:
                files.append(added(target, config, InclusionLevel.NOT_IN_NAV))
                todo += [target] if target.suffix == ".md" else []
    return files


def outside(page: Path) -> list[Path]:
    """The files outside docs/ that a page links to."""
    targets = [goal(page, match["path"]) for line in prose(page.read_text("utf-8")) for match in LINK.finditer(line)]
    return [target for target in targets if target and target.is_file() and not target.is_relative_to(DOCS)]


def added(source: Path, config: MkDocsConfig, inclusion: InclusionLevel) -> File:
    """A file of the repository as a file of the site."""
    return File.generated(config, address(source), abs_src_path=str(source), inclusion=inclusion)


def address(target: Path) -> str:
    """Where a file of the repository stands in the site's source."""
    if target == CHANGES:
        return CHANGES.name
    return target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else f"{ASIDE}/{target.relative_to(ROOT)}"


def goal(page: Path, link: str) -> Path | None:
    """The file of the repository that a link of a page leads to; None where it leads elsewhere."""
    target = (page.parent / link).resolve()
    return target if "://" not in link and target.is_relative_to(ROOT) else None


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as it is rendered, and how much it weighs in a search."""
    weights = (weight for start, weight in WEIGHTS.items() if page.file.src_uri.startswith(start))
    page.meta["search"] = {"boost": next(weights, 1)} if not page.file.src_uri.startswith(ASIDE) else {"exclude": True}
    source = Path(str(page.file.abs_src_path)).resolve()
    lines: list[str] = []
    title = ""
    for line in marked(markdown):
        if isinstance(line, Fence):
            lines.append(f'{line} title="{title}"' if title else str(line))
            title = ""
        elif isinstance(line, Prose) and (comment := COMMENT.fullmatch(line)):
            title = comment["file"] or title
        else:
            lines.append(rendered(line, source) if isinstance(line, Prose) else line)
    return "\n".join(lines)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as HTML, its tables with names for each cell."""
    return re.sub(r"<table>.*?</table>", labelled, html, flags=re.DOTALL)


def labelled(table: re.Match[str]) -> str:
    """`data-label` in every cell: the name of its column."""
    names = [
        re.sub(r"<[^>]+>", "", name).replace('"', "&quot;")
        for name in re.findall(r"<th\b[^>]*>(.*?)</th>", table[0], re.DOTALL)
    ]
    column = cycle(names)
    return re.sub(r"<td\b", lambda _: f'<td data-label="{next(column)}"', table[0])


def rendered(line: Prose, source: Path) -> str:
    """A line with its links as they have to be in the site; code in tables has the `|` that it stands for."""
    return CODE.sub(plain, LINK.sub(lambda match: moved(match, source), line))


def plain(match: re.Match[str]) -> str:
    """Code in a table: a bar stands there as `\\|`, or it would end the cell."""
    if r"\|" not in match[1]:
        return match[0]
    code = escape(match[1]).replace(r"\|", "&#124;")
    return f"<code>{code}</code>"


def moved(match: re.Match[str], source: Path) -> str:
    """A link as it has to be in the site."""
    target = goal(source, match["path"])
    if target is None or not target.is_file():
        return match[0]  # to another host, or broken: mkdocs says so
    here = PurePosixPath(address(source)).parent
    return f"{match['before']}{PurePosixPath(os.path.relpath(address(target), here))}{match['rest']}"


class Prose(str):
    """A line outside fences."""

    __slots__ = ()


class Fence(str):
    """The line that opens a fenced block."""

    __slots__ = ()


def marked(markdown: str) -> list[str]:
    """The lines of a page, told apart: Prose, Fence, and what stands in a fenced block."""
    found: list[str] = []
    within = False
    for line in markdown.split("\n"):
        fence = line.startswith("```")
        found.append(line if within else Fence(line) if fence else Prose(line))
        within ^= fence
    return found


def prose(markdown: str) -> list[str]:
    """The lines of a page outside its fenced blocks."""
    return [line for line in marked(markdown) if isinstance(line, Prose)]
