"""Static pages of a run, opened from a file: no server, no other host, nothing in the console."""

from pathlib import Path

import pytest
from looks import assert_accessible, assert_fits
from playwright.sync_api import Page, expect
from support.odd_rows import IDS, SCRIPT, run_odd_rows
from support.project import ProjectFolder
from support.soak import few

from agac.web import static_pages
from agac.web.static_pages import export_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = run_odd_rows(ProjectFolder(tmp_path_factory.mktemp("rows") / "project"))
    project.agac("ui", "--export", "pages of run 1", "--run", "1", code=0)
    return project.root / "pages of run 1"


def test_an_export_is_read_from_page_to_page(page: Page, pages: Path) -> None:
    page.goto((pages / "index.html").as_uri())
    expect(page.locator("h1")).to_have_text("Run 1 of reviews")
    expect(page.locator(".uplot")).not_to_have_count(0)  # the charts are drawn of data in the page
    expect(page.locator("svg.agac-graph")).to_be_visible()
    page.get_by_role("link", name="Rows", exact=True).first.click()
    expect(page.get_by_role("region", name="Rows").get_by_role("row")).to_have_count(1 + len(IDS))
    page.get_by_role("link", name=SCRIPT).click()
    expect(page.locator("h1")).to_have_text(f"Row {SCRIPT}")
    expect(page.get_by_role("region", name="Calls of invocation 1").locator("rect")).to_have_count(2)
    page.get_by_role("link", name="Errors").click()
    page.get_by_role("link", name="failing").click()
    expect(page.get_by_text("SchemaMismatch in judge").first).to_be_visible()
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def unfolded(page: Page, address: str) -> None:
    """Opens a page, and all in it that is folded."""
    page.goto(address, wait_until="domcontentloaded")
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def test_no_link_of_any_kind_of_page_is_dead(
    page: Page, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_pages, "PER_PAGE", 3)
    project.configure()
    stages = [
        {"name": "plan", "prompt": "${text}", "output_schema": {"parts": ["string"]}},
        {"name": "part", "prompt": "${item}", "explode": "plan.parts"},
        {"name": "sum", "group_by": "kind", "prompt": "${rows_json}"},
        {"name": "check", "needs": "sum", "python": "failing.py:odd"},
    ]
    project.write("failing.py", "def odd(row):\n    raise ValueError(row['kind'])\n")
    project.workflow(stages=stages, rows=[{"id": f"r-{n}", "text": f"text {n}", "kind": str(n % 2)} for n in range(4)])
    project.run()
    folder = Path(export_pages(project.root / "pages", project=project.root)["folder"])
    pages, own = sorted(folder.glob("*.html")), sorted(folder.glob("row-*.html"))
    assert len(pages) < 30
    seen: set[str] = set()
    for start in [one.as_uri() for one in pages if one not in own[1:]]:
        unfolded(page, start)
        links = page.locator("a[href]:not([href^='#'])")
        targets = links.evaluate_all("all => all.map(one => one.href)")
        assert targets
        assert "" not in links.evaluate_all("all => all.map(one => one.getAttribute('href'))")
        for place, target in enumerate(targets):
            if target in seen:
                continue
            seen.add(target)
            links.nth(place).click()
            page.wait_for_url(target)
            expect(page.locator("h1")).not_to_be_empty()
            unfolded(page, start)
    assert seen == {one.as_uri() for one in pages}


@pytest.mark.parametrize("name", few(["index", "rows-1", "failed-1", "errors", "row-1"], 2))
def test_each_static_page_is_accessible_and_fits_a_narrow_window(name: str, page: Page, pages: Path) -> None:
    page.goto((pages / f"{name}.html").as_uri())
    assert_accessible(page)
    assert_fits(page)


def test_a_static_page_runs_nothing_but_its_own_files(page: Page, pages: Path, tmp_path: Path) -> None:
    page.goto((pages / "rows-1.html").as_uri())
    page.evaluate("document.body.append(Object.assign(document.createElement('a'), {id: 'x'}))")
    policy = page.locator('meta[http-equiv="Content-Security-Policy"]').get_attribute("content") or ""
    assert "script-src 'self' file:;" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
