"""`agac ui --export DIR`: a run as static pages, as a whole or not at all, whatever its rows are called."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support.odd_rows import IDS, LONG, SCRIPT, run_odd_rows
from support.project import ProjectFolder

import agac
from agac.api import monitor
from agac.web import static_pages
from agac.web.static_pages import export_pages

OURS = re.compile(r"(index|errors|(rows|failed|made-\d+)-\d+|row-\d+)\.html|agac-export\.json")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ProjectFolder:
    """A project with two runs, and the pages of the first one in `pages`."""
    project = ProjectFolder(tmp_path_factory.mktemp("rows") / "project")
    run_odd_rows(project, "One: ${text}", "Again: ${text}")
    ran = project.agac("ui", "--export", "pages", "--run", "1", "--json", code=0)
    told = {"run": 1, "workflow": "reviews", "listed": 9, "row_pages": 9}
    assert ran.json == {"folder": str(project.root / "pages"), **told}
    return project


def links_of(text: str) -> set[str]:
    return {unquote(one) for one in re.findall(r'(?:href|src)="([^"#]*)"', text)}


def test_names_of_files_are_ours_and_every_link_leads_to_one(exported: ProjectFolder) -> None:
    folder = exported.root / "pages"
    names = [path.name for path in folder.iterdir() if path.name != "static"]
    assert len(names) == len(IDS) + 5
    assert all(map(OURS.fullmatch, names)), names
    for page in folder.glob("*.html"):
        for link in links_of(page.read_text("utf-8")):
            assert (folder / link).is_file(), f"{page.name}: {link!r}"
            assert (folder / link).resolve().is_relative_to(folder.resolve())
    assert (
        sorted(path.name for path in exported.root.iterdir() if "passwd" in path.name or "agac-tmp" in path.name) == []
    )


def test_the_pages_are_those_of_the_monitor(exported: ProjectFolder) -> None:
    folder = exported.root / "pages"
    assert "One: text of" in "".join(page.read_text("utf-8") for page in folder.glob("row-*.html"))
    assert any(LONG in page.read_text("utf-8") for page in folder.glob("row-*.html"))
    assert all("<script>alert" not in page.read_text("utf-8") for page in folder.glob("*.html"))
    index = (folder / "index.html").read_text("utf-8")
    assert "Run 1" in index
    assert 'data-curves="{' in index, "what charts draw"
    assert "form_token" not in index
    assert "SchemaMismatch in judge: 1 row" in (folder / "errors.html").read_text("utf-8")


def test_an_export_replaces_an_export_and_nothing_else(exported: ProjectFolder) -> None:
    (exported.root / "pages/rows-7.html").write_text("of an earlier one", "utf-8")
    assert "Wrote 9 rows of run 2" in exported.agac("ui", "--export", "pages", code=0).out
    assert not (exported.root / "pages/rows-7.html").exists()
    assert json.loads((exported.root / "pages/agac-export.json").read_text("utf-8"))["run"] == 2
    (exported.root / "mine").mkdir()
    (exported.root / "mine/notes.txt").write_text("mine", "utf-8")
    (exported.root / "link").symlink_to(exported.root / "mine")
    for folder, what in (("mine", "holds what no export wrote"), ("link", "cannot be a folder"), (".", "holds what"),
                         ("agac.yml", "cannot be a folder"), ("no/such/place", "cannot be a folder")):  # fmt: skip
        assert what in exported.agac("ui", "--export", folder, code=2).err
    assert (exported.root / "mine/notes.txt").read_text("utf-8") == "mine"
    assert "no run 9" in exported.agac("ui", "--export", "new", "--run", "9", code=2).err
    assert "--export goes with --run" in exported.agac("ui", "--run", "1", code=2).err
    assert "--export goes with --run" in exported.agac("ui", "--export", "new", "--port", "80", code=2).err
    assert not (exported.root / "new").exists()


def test_an_export_that_breaks_off_leaves_what_was_there(
    exported: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in exported.root.iterdir())
    mark = (exported.root / "pages/agac-export.json").read_bytes()

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(static_pages.StaticPages, "write", broken)
    with pytest.raises(agac.AgacError, match="No space left"):
        export_pages(exported.root / "pages", 1, project=exported.root)
    assert sorted(path.name for path in exported.root.iterdir()) == before
    assert (exported.root / "pages/agac-export.json").read_bytes() == mark


def test_lists_are_cut_into_pages_and_rows_are_sampled(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_pages, "PER_PAGE", 10)
    monkeypatch.setattr(static_pages, "MAX_LISTED", 40)
    monkeypatch.setattr(static_pages, "SAMPLE", 5)
    project.workflow(stages=[{"name": "pick", "select": ["id", "text"]}], rows=55)
    project.run()
    told = export_pages(project.root / "pages", project=project.root)
    assert (told["listed"], told["row_pages"]) == (40, 5)
    folder: Path = project.root / "pages"
    assert sorted(path.name for path in folder.glob("rows-*")) == [f"rows-{n}.html" for n in (1, 2, 3, 4)]
    pages = [(folder / f"rows-{n}.html").read_text("utf-8") for n in (1, 2, 3, 4)]
    assert ['rel="next"' in page for page in pages] == [True, True, True, False]
    assert [page.count("row-") for page in pages] == [2, 1, 1, 1]
    assert SCRIPT not in pages[0]
    assert "At most 40 rows are listed" in pages[0]


def test_a_run_at_work_is_refused(exported: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = monitor.arun

    async def at_work(*given: Any, **options: Any) -> monitor.MonitoredRun:
        found = await real(*given, **options)
        return replace(found, report={**found.report, "state": "running"})

    monkeypatch.setattr(monitor, "arun", at_work)
    with pytest.raises(agac.UsageError, match="run 2 is at work"):
        export_pages(exported.root / "new", project=exported.root)
    assert not (exported.root / "new").exists()
