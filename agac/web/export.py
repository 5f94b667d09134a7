"""A run as static pages, which open from a file: `agac ui --export`. The same templates, with
other links."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup

from agac import api
from agac.api import monitor
from agac.api.drawing_svg import page_style
from agac.api.monitor import RowFilters
from agac.api.row_report import row_page
from agac.api.sync import asynchronous, blocking
from agac.core.errors import UsageError
from agac.data.files import PREFIX, explained
from agac.spec.paths import project_root
from agac.web.app import STATIC
from agac.web.pages import curves_of
from agac.web.rendering import page_text

PER_PAGE = 500
MOST_LISTED = 100_000
MOST_FAILED = 1000
SAMPLE = 200
"""Rows of a page; those of the input, or made by one stage, that are listed; failed ones that have
pages of their own, and about how many of the others."""

MARK = "agac-export.json"
"""The file by which a folder is known as one that may be replaced."""


@blocking
async def export_pages(
    folder: Path, run: int | str = "last", *, project: Path | str | None = None
) -> dict[str, Any]:
    """Writes a run as static pages into a folder, which comes to be as a whole or not at all: it
    may be new, empty, or an earlier export, which is replaced. Gives how many rows are `listed`,
    of which `row_pages` have pages of their own. Raises UsageError for any other folder, and for a
    run that is at work."""
    root = project_root(project)
    folder = folder.absolute()
    about = await monitor.arun(run, project=root)
    number = about.record.run
    workflow = about.record.workflow
    if about.report["state"] == "running":
        raise UsageError(f"run {number} is at work", remedy="Export it when it has ended.")
    with (
        explained(folder, "Name a folder elsewhere, or make room there."),
        _replacing(folder) as made,
    ):
        pages = StaticPages(root, about, made)
        told = {
            "run": number,
            "workflow": workflow,
            "listed": await pages.write_all(),
            "row_pages": len(pages.rows),
        }
        (made / MARK).write_text(json.dumps(told) + "\n", "utf-8")
    return {"folder": str(folder), **told}


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside another one, whose place it takes when the block ends. Who is killed
    leaves it, or between two renames the one that was there, under a name that begins with PREFIX.
    """
    if not folder.parent.is_dir() or folder.is_symlink() or folder.is_file():
        raise UsageError(
            f"{folder} cannot be a folder", remedy="Name a new one in a folder that is there."
        )
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UsageError(
            f"{folder} holds what no export wrote", remedy="Name an empty folder, or a new one."
        )
    made, old = (
        folder.with_name(f"{PREFIX}{os.getpid()}-{number}-{folder.name}") for number in (0, 1)
    )
    try:
        made.mkdir()
        yield made
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (made, old):
            shutil.rmtree(left, ignore_errors=True)


class StaticPages:
    """The pages of a run in a folder. Their names are words and numbers of ours, whatever rows and
    stages are called. `rows`: the pages of single rows, by the text of the id."""

    def __init__(self, project: Path, about: monitor.MonitoredRun, folder: Path) -> None:
        self.project = project
        self.about = about
        summary = about.record
        self.run = summary.run
        self.folder = folder
        self.rows: dict[str, str] = {}
        at = f"/run/{self.run}"
        self.lists = [("rows", f"{at}/rows", "Rows", RowFilters(), summary.rows.total)]
        self.lists += [
            (
                f"made-{place}",
                f"{at}/made/{place}",
                f"Rows made by {level.stage}",
                RowFilters(made_by=level.stage),
                level.rows.total,
            )
            for place, level in enumerate(summary.levels)
        ]
        self.lists.insert(
            0, ("failed", f"{at}/rows?state=failed", "Failed rows", RowFilters(state="failed"), 0)
        )
        self.places = {"/": "index.html", at: "index.html", f"{at}/errors": "errors.html"}
        self.places |= {path: f"{name}-1.html" for name, path, *_ in self.lists}
        listed = ((path, title) for _, path, title, *_ in self.lists)
        self.navigation = [(at, "Run"), *listed, (f"{at}/errors", "Errors")]

    def link(self, path: str) -> str:
        """The file of a path of the monitor; nothing where there is none. What is no path stays as
        it is."""
        if path.startswith(f"/run/{self.run}/row?"):
            return self.rows.get(parse_qs(urlsplit(path).query)["id"][0], "")
        if path[:1] != "/" or path.startswith("/static/"):
            return path.removeprefix("/")
        return self.places.get(path, "")

    def write(self, file: str, template: str, title: str, **context: Any) -> None:
        """A page as a file."""
        about = {
            "project": self.project.name,
            "path": "",
            "static": True,
            "link": self.link,
            "run": self.run,
        }
        text = page_text(
            template, {**about, "navigation": self.navigation, "title": title, **context}
        )
        (self.folder / file).write_text(text, "utf-8")

    async def write_all(self) -> int:
        """Writes them, one after the other: memory does not grow with the rows. Gives how many
        rows are listed."""
        shutil.copytree(STATIC, self.folder / "static")
        (self.folder / "static/graph.css").write_text(page_style(), "utf-8")
        counts = [await self._list(*one) for one in self.lists]
        for row_id, file in self.rows.items():
            record, found = await asynchronous(row_page)(self.run, row_id, project=self.project)
            self.write(file, "row.html", f"Row {row_id}", run=record, rows=found)
        groups = await monitor.aerrors(self.run, project=self.project)
        self.write("errors.html", "errors.html", "Errors", groups=groups)
        curves = curves_of(await monitor.acurves(self.run, project=self.project))
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

    async def _list(self, name: str, path: str, title: str, filters: RowFilters, total: int) -> int:
        """The pages of a list, of which some rows, or failed ones, get pages; gives how many rows
        they have."""
        most = MOST_LISTED if total else MOST_FAILED
        every = min(total, most) // SAMPLE or 1
        note = (
            f"At most {most:,} rows are listed. Rows with a link have a page of their own: "
            f"at most {MOST_FAILED:,} "
        )
        note += (
            f"of those that failed, and about {SAMPLE} others. `agac inspect {self.run} "
            "ROW` prints all of any row."
        )
        number = 1
        seen = 0
        after = None
        while number == 1 or (after is not None and seen < most):
            page = await monitor.arows(self.run, filters, after, PER_PAGE, project=self.project)
            chosen = (one for place, one in enumerate(page.rows, seen) if place % every == 0)
            self.rows |= {
                str(one["id"]): f"row-{one['key']}.html"
                for one in chosen
                if str(one["id"]) not in self.rows
            }
            seen = seen + len(page.rows)
            after = page.next
            if after is not None and seen < most:
                following = f"{name}-{number + 1}.html"
            else:
                following = None
            start = f"{name}-1.html" if number > 1 else None
            context = {
                "page": page,
                "limit": PER_PAGE,
                "note": note,
                "start": start,
                "next": following,
            }
            self.write(f"{name}-{number}.html", "rows.html", title, **context)
            number += 1
        return seen
