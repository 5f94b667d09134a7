"""Writes a run as static pages, which open from a file: `agac ui --export`. The templates are the
same, the links differ."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup

from agac import api
from agac.api import monitor, monitored_rows, run_curves
from agac.api.drawing_svg import page_style
from agac.api.monitored_rows import RowFilters
from agac.api.row_report import row_page
from agac.api.sync import asynchronous, blocking
from agac.core.errors import UsageError
from agac.data.files import PREFIX, explained
from agac.spec.paths import project_root
from agac.web.app import STATIC
from agac.web.rendering import page_text
from agac.web.run_pages import curves_of

PER_PAGE = 500
"""Rows of a page."""

MAX_LISTED = 100_000
"""Rows of the input, or made by one stage, that are listed, at most."""

MAX_FAILED = 1000
"""Failed rows that have pages of their own, at most."""

SAMPLE = 200
"""About so many of the other rows have pages of their own."""

MARK = "agac-export.json"
"""The file by which a folder is known as one that may be replaced."""


@blocking
async def export_pages(
    folder: Path, run: int | str = "last", *, project: Path | str | None = None
) -> dict[str, Any]:
    """Writes a run as static pages into a folder, which appears as a whole or not at all: it may be
    new, empty, or an earlier export, which is replaced.

    Returns how many rows are `listed`, of which `row_pages` have pages of their own. Raises
    UsageError for any other folder, and for a run that is at work."""
    root = project_root(project)
    folder = folder.absolute()
    about = await monitor.arun(run, project=root)
    number = about.record.run
    if about.report["state"] == "running":
        raise UsageError(f"run {number} is at work", remedy="Export it when it has ended.")
    with (
        explained(folder, "Name a folder elsewhere, or make room there."),
        _replacing(folder) as new,
    ):
        pages = StaticPages(root, about, new)
        facts = {
            "run": number,
            "workflow": about.record.workflow,
            "listed": await pages.write_all(),
            "row_pages": len(pages.rows),
        }
        (new / MARK).write_text(json.dumps(facts) + "\n", "utf-8")
    return {"folder": str(folder), **facts}


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Makes a new folder next to another one, whose place it takes when the block ends. Raises
    UsageError for a folder that may not be replaced.

    A kill leaves the new folder, or between two renames the old one, under a name that begins with
    PREFIX."""
    _refuse_other_folders(folder)
    new = folder.with_name(f"{PREFIX}{os.getpid()}-0-{folder.name}")
    old = folder.with_name(f"{PREFIX}{os.getpid()}-1-{folder.name}")
    try:
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _refuse_other_folders(folder: Path) -> None:
    """Raises UsageError unless a folder is new, empty or an earlier export."""
    if not folder.parent.is_dir() or folder.is_symlink() or folder.is_file():
        raise UsageError(
            f"{folder} cannot be a folder", remedy="Name a new one in a folder that is there."
        )
    if not folder.exists() or (folder / MARK).is_file():
        return
    if any(folder.iterdir()):
        raise UsageError(
            f"{folder} holds what no export wrote", remedy="Name an empty folder, or a new one."
        )


class _RowList(NamedTuple):
    """A list of rows, of so many pages as it needs."""

    name: str
    """What the names of its files begin with."""

    path: str
    """Its path in the monitor."""

    title: str
    filters: RowFilters

    total: int
    """How many rows it has; 0: unknown."""


class StaticPages:
    """The pages of a run in a folder.

    Their names are words and numbers of ours, whatever rows and stages are called. `rows` are the
    pages of single rows, by the text of the id."""

    def __init__(self, project: Path, about: monitor.MonitoredRun, folder: Path) -> None:
        self.project = project
        self.about = about
        self.run = about.record.run
        self.folder = folder
        self.rows: dict[str, str] = {}
        self._path = f"/run/{self.run}"
        self.lists = self._row_lists()
        self.files = {
            "/": "index.html",
            self._path: "index.html",
            f"{self._path}/errors": "errors.html",
            **{each.path: f"{each.name}-1.html" for each in self.lists},
        }
        """The pages by their paths in the monitor."""
        self.navigation = [
            (self._path, "Run"),
            *((each.path, each.title) for each in self.lists),
            (f"{self._path}/errors", "Errors"),
        ]

    def _row_lists(self) -> list[_RowList]:
        """Lists the lists of rows: failed ones, those of the input, and those that stages made."""
        summary = self.about.record
        path = self._path
        failed = RowFilters(state="failed")
        lists = [
            _RowList("failed", f"{path}/rows?state=failed", "Failed rows", failed, 0),
            _RowList("rows", f"{path}/rows", "Rows", RowFilters(), summary.rows.total),
        ]
        for number, level in enumerate(summary.levels):
            filters = RowFilters(made_by=level.stage)
            title = f"Rows made by {level.stage}"
            made = f"{path}/made/{number}"
            lists.append(_RowList(f"made-{number}", made, title, filters, level.rows.total))
        return lists

    def link(self, path: str) -> str:
        """Gives the file of a path of the monitor, nothing if there is none. What is no path stays
        as it is."""
        if path.startswith(f"{self._path}/row?"):
            return self.rows.get(parse_qs(urlsplit(path).query)["id"][0], "")
        if path[:1] != "/" or path.startswith("/static/"):
            return path.removeprefix("/")
        return self.files.get(path, "")

    def write(self, file: str, template: str, title: str, **context: Any) -> None:
        """Writes a page as a file."""
        shared = {
            "project": self.project.name,
            "path": "",
            "static": True,
            "link": self.link,
            "run": self.run,
            "navigation": self.navigation,
            "title": title,
        }
        (self.folder / file).write_text(page_text(template, {**shared, **context}), "utf-8")

    async def write_all(self) -> int:
        """Writes all pages, one after the other: memory does not grow with the rows. Returns how
        many rows are listed."""
        shutil.copytree(STATIC, self.folder / "static")
        (self.folder / "static/graph.css").write_text(page_style(), "utf-8")
        counts = [await self._write_list(each) for each in self.lists]
        for row_id, file in self.rows.items():
            record, rows = await asynchronous(row_page)(self.run, row_id, project=self.project)
            self.write(file, "row.html", f"Row {row_id}", run=record, rows=rows)
        groups = await monitored_rows.aerrors(self.run, project=self.project)
        self.write("errors.html", "errors.html", "Errors", groups=groups)
        curves = curves_of(await run_curves.acurves(self.run, project=self.project))
        graph = Markup((await api.agraph(run=self.run, project=self.project)).svg(styled=False))  # noqa: S704
        self.write(
            "index.html",
            "run.html",
            f"Run {self.run}",
            run=self.about,
            graph=graph,
            curves=curves,
            live=None,
            source=json.dumps(curves),
            actions=[],
        )
        return sum(counts[1:])

    async def _write_list(self, rows: _RowList) -> int:
        """Writes the pages of a list, and chooses the rows that get pages of their own. Returns how
        many rows it lists."""
        limit = MAX_LISTED if rows.total else MAX_FAILED
        step = min(rows.total, limit) // SAMPLE or 1
        note = (
            f"At most {limit:,} rows are listed. Rows with a link have a page of their own: "
            f"at most {MAX_FAILED:,} of those that failed, and about {SAMPLE} others. "
            f"`agac inspect {self.run} ROW` prints all of any row."
        )
        seen = 0
        number = 1
        after = None
        has_more = True
        while has_more:
            page = await monitored_rows.arows(
                self.run, rows.filters, after, PER_PAGE, project=self.project
            )
            for position, row in enumerate(page.rows, seen):
                if position % step == 0:
                    self.rows.setdefault(str(row["id"]), f"row-{row['key']}.html")
            seen += len(page.rows)
            after = page.next
            has_more = after is not None and seen < limit
            self.write(
                f"{rows.name}-{number}.html",
                "rows.html",
                rows.title,
                page=page,
                limit=PER_PAGE,
                note=note,
                start=f"{rows.name}-1.html" if number > 1 else None,
                next=f"{rows.name}-{number + 1}.html" if has_more else None,
            )
            number += 1
        return seen
