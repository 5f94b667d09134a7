"""The pages of rows, comparisons and workflows in a browser."""

from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest
from looks import assert_accessible, assert_fits
from playwright.sync_api import Page, expect
from support.monitor import Watched, monitor
from support.odd_rows import IDS, LONG, SCRIPT, run_odd_rows
from support.project import ProjectFolder
from support.soak import few


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A monitor of two runs over rows with odd ids."""
    project = ProjectFolder(tmp_path_factory.mktemp("rows") / "project")
    run_odd_rows(project, "One: ${text}", "Again: ${text}")
    with monitor(project) as started:
        yield started


@pytest.fixture
def opened(page: Page, watched: Watched) -> Callable[[str], Page]:
    """Opens a path of the monitor."""
    page.goto(watched.address)
    page.wait_for_url("**/")

    def goto(path: str) -> Page:
        page.goto(watched.url + path)
        return page

    return goto


def row_of(name: str) -> str:
    return f"/run/1/row?{urlencode({'id': name})}"


@pytest.mark.parametrize(
    "path",
    few([row_of("long"), row_of(SCRIPT), row_of("failing"), row_of("שלום עולם"), "/run/2/why?id=long&stage=judge",
     "/run/1/rows", "/run/1/rows?state=failed", "/run/1/errors", "/compare", "/compare?first=1&second=2",
     "/workflows", "/workflow?name=reviews", "/workflow?name=reviews&plan=1"], 3),
)  # fmt: skip
def test_each_page_is_accessible_and_fits_a_narrow_window(path: str, opened: Callable[[str], Page]) -> None:
    page = opened(path)
    expect(page.locator("h1")).not_to_have_text("Error 500")
    assert_accessible(page)
    assert_fits(page)


def test_filters_are_set_kept_in_the_address_and_taken_back(opened: Callable[[str], Page]) -> None:
    page = opened("/run/1/rows")
    rows = page.get_by_role("region", name="Rows").get_by_role("row")
    expect(rows).to_have_count(1 + len(IDS))
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Show").press("Enter")  # by keyboard
    page.wait_for_url("**state=failed**")
    expect(rows).to_have_count(2)
    expect(page.get_by_label("State")).to_have_value("failed")
    page.get_by_label("State").select_option("")
    page.get_by_label("Text").fill("text of =1")
    page.get_by_label("Text").press("Enter")
    expect(page.get_by_role("link", name="=1+1")).to_be_visible()
    expect(rows).to_have_count(2)
    page.go_back()
    expect(page.get_by_role("link", name="failing")).to_be_visible()
    page.get_by_role("link", name="errors").click()
    expect(page.get_by_role("heading", name="SchemaMismatch in judge: 1 row")).to_be_visible()
    page = opened("/run/1/rows")
    page.get_by_label("Sorted by").select_option("id")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**sort=id**")
    names = page.get_by_role("region", name="Rows").get_by_role("link").all_inner_texts()
    assert names == sorted(names)
    assert set(names) == set(IDS)


def test_the_trace_of_a_row_shows_its_calls_one_after_the_other(opened: Callable[[str], Page]) -> None:
    page = opened(row_of("failing"))
    calls = page.get_by_role("region", name="Calls of invocation 1")
    expect(calls.get_by_role("row")).to_have_count(3)  # with the titles
    first, second = (calls.locator("rect").nth(place).bounding_box() for place in (0, 1))
    assert first
    assert second
    assert first["width"] > 1
    assert second["x"] >= first["x"] + first["width"] - 2
    page.get_by_text("Reply of attempt 2").click()
    expect(page.get_by_text("It was asked again with")).to_be_visible()


def test_a_text_of_a_user_stays_a_text_in_its_own_direction(opened: Callable[[str], Page]) -> None:
    page = opened(row_of(SCRIPT))
    expect(page.locator("h1")).to_have_text(f"Row {SCRIPT}")
    assert page.locator("main script").count() == 0
    page = opened(row_of("long"))
    assert page.locator("pre", has_text="word word").first.text_content() == LONG
    page = opened(row_of("שלום עולם"))
    assert page.locator("h2 bdi").first.evaluate("one => getComputedStyle(one).unicodeBidi") == "isolate"


def test_a_drawing_follows_the_switch_of_light_and_dark(opened: Callable[[str], Page]) -> None:
    page = opened("/workflow?name=reviews")
    box = page.locator("svg.agac-graph rect.box").first
    assert box.evaluate("one => getComputedStyle(one).fill") == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Light or dark").click()
    assert box.evaluate("one => getComputedStyle(one).fill") == "rgb(22, 27, 34)"
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Light or dark").click()
    assert box.evaluate("one => getComputedStyle(one).fill") == "rgb(255, 255, 255)"


def test_from_a_comparison_one_comes_to_a_row_and_to_why_it_was_asked(opened: Callable[[str], Page]) -> None:
    page = opened("/compare?first=1&second=2")
    page.get_by_role("link", name=IDS[0]).first.click()
    expect(page.locator("h1")).to_have_text(f"Row {IDS[0]}")
    page.get_by_role("link", name="Why it was asked").first.click()
    expect(page.get_by_text("Compared with run 1.")).to_be_visible()


def test_what_looks_at_pages_finds_what_is_wrong(page: Page) -> None:
    page.set_content('<main><img src="data:,"><p>text</p></main>')
    with pytest.raises(AssertionError, match="alt"):
        assert_accessible(page)
    page.set_content('<main><div class="x">' + "w" * 500 + "</div></main>")
    with pytest.raises(AssertionError, match="pixels wide"):
        assert_fits(page)
    style = '<meta name="viewport" content="width=device-width"><style>td { overflow-wrap: anywhere }</style>'
    page.set_content(f'{style}<main><table style="width: 40px"><td>unreadable<td>text</table></main>')
    with pytest.raises(AssertionError, match=r"narrow cells.*unreadable"):
        assert_fits(page)
