"""The page on which people decide, in a browser: by keyboard alone, with what an edit changes, and in two tabs."""

import json
import re
from collections.abc import Callable

import pytest
from looks import NARROW, assert_accessible, assert_fits
from playwright.sync_api import BrowserContext, Page, ViewportSize, expect
from support.monitor import Watched
from support.project import ProjectFolder

SCRIPT = "<img src=x onerror=alert(1)><script>alert(1)</script>"
SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]}, "sure": {"type": "boolean"}, "note": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["mood", "sure", "note", "tags"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture
def waits(project: ProjectFolder) -> ProjectFolder:
    """Three rows wait for a person."""
    project.write("schemas/mood.json", json.dumps(SCHEMA))
    stages = [
        {"name": "judge", "prompt": "${text}", "output_schema": "schemas/mood.json"},
        {"name": "approve", "needs": "judge", "review": {"show": ["text"]}},
    ]
    project.workflow(stages=stages, rows=[{"id": f"r-{n}", "text": f"{SCRIPT} {n}"} for n in (1, 2, 3)])
    assert project.run().exit_code == 0
    return project


def decisions(project: ProjectFolder) -> list[tuple[str, ...]]:
    return project.query("SELECT row_id, choice, reason, reviewer FROM decision ORDER BY id")


def shown(page: Page) -> str:
    return page.locator(".review h2").first.inner_text().split()[0]


def wait_for(page: Page, waiting: int) -> None:
    """Until the page says that so many rows wait, and listens to keys."""
    expect(page.get_by_text(f"{waiting} wait{'s' if waiting == 1 else ''} for a decision")).to_be_visible()
    page.wait_for_load_state()


def opened(page: Page, watched: Watched, path: str = "/review") -> Page:
    page.goto(watched.address)
    page.wait_for_url("**/")
    page.goto(watched.url + path)
    return page


def test_rows_are_decided_by_keyboard(
    page: Page, waits: ProjectFolder, watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGAC_REVIEWER", "Ada")
    opened(page, watch(waits, "--write"))
    wait_for(page, 3)
    expect(page.locator(".review pre").first).to_contain_text(SCRIPT)
    first = shown(page)
    page.keyboard.press("a")
    wait_for(page, 2)
    second = shown(page)
    page.keyboard.press("r")
    page.keyboard.type("never like that")
    page.keyboard.press("Enter")
    wait_for(page, 1)
    third = shown(page)
    page.keyboard.press("e")
    expect(page.get_by_label("mood")).to_be_focused()
    page.get_by_label("note").fill(f"{SCRIPT} seen")
    expect(page.locator("#difference ins").last).to_be_visible()
    expect(page.locator("#difference")).to_contain_text(re.compile("seen"))
    page.keyboard.press("Enter")  # decides nothing
    wait_for(page, 1)
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_text("Nothing is here.")).to_be_visible()
    found = {row: (choice, reason, who) for row, choice, reason, who in decisions(waits)}
    assert found == {
        first: ("approve", "", "Ada"), second: ("reject", "never like that", "Ada"), third: ("edit", "", "Ada")
    }  # fmt: skip
    ((value,),) = waits.query("SELECT value FROM decision WHERE choice = 'edit'")
    assert json.loads(value)["note"] == f"{SCRIPT} seen"
    assert waits.run().rows.done == 2


def test_the_second_of_two_tabs_sees_what_the_first_decided(
    page: Page, context: BrowserContext, waits: ProjectFolder, watch: Callable[..., Watched]
) -> None:
    watched = watch(waits, "--write")
    opened(page, watched)
    other = context.new_page()
    other.goto(page.url)
    for tab, name in ((page, "Ada"), (other, "Eve")):
        tab.get_by_label("Reviewer").fill(name)
    row = shown(page)
    page.get_by_role("button", name="Approve").click()
    wait_for(page, 2)
    other.get_by_label("Reason").fill("no")
    other.get_by_role("button", name="Reject").click()
    expect(other.get_by_role("alert")).to_contain_text("Somebody decided on this in the meantime")
    expect(other.get_by_text("Ada: approve")).to_be_visible()
    assert decisions(waits) == [(row, "approve", "", "Ada")]
    other.get_by_role("button", name="Override with reject").click()
    expect(other.get_by_text("2 wait for a decision")).to_be_visible()
    assert decisions(waits) == [(row, "approve", "", "Ada"), (row, "reject", "no", "Eve")]
    other.close()


def test_a_value_of_another_form_is_shown_again_with_why(
    context: BrowserContext, waits: ProjectFolder, watch: Callable[..., Watched]
) -> None:
    page = opened(context.new_page(), watch(waits, "--write"))  # a refusal is an error in a browser's log
    page.get_by_label("Reviewer").fill("Ada")
    page.get_by_label("tags").fill("[1")
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_role("alert")).to_contain_text("tags is no JSON")
    expect(page.get_by_label("tags")).to_have_value("[1")
    page.get_by_label("tags").fill("[1]")
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_role("alert")).to_contain_text("tags")
    assert decisions(waits) == []


def buttons(page: Page) -> list[str]:
    return page.locator(".decisions button").all_inner_texts()


@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, NARROW])
def test_what_can_be_done_is_in_sight_with_its_keys_and_the_next_row_comes_without_scrolling(
    page: Page, waits: ProjectFolder, watch: Callable[..., Watched], size: ViewportSize
) -> None:
    page.set_viewport_size(size)
    opened(page, watch(waits, "--write"))
    page.get_by_label("Reviewer").fill("Ada")
    assert buttons(page) == ["Approve a", "Edit e", "Reject r"]
    for one in page.locator(".decisions button").all():
        expect(one).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("link", name="Next row")).to_be_in_viewport(ratio=1)
    first = shown(page)
    page.get_by_role("button", name="Approve").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    wait_for(page, 2)
    assert shown(page) != first
    assert page.evaluate("scrollY") == 0
    expect(page.locator(".review h2").first).to_be_in_viewport(ratio=1)


def test_a_row_that_is_asked_blindly_has_no_key_to_approve(
    page: Page, waits: ProjectFolder, watch: Callable[..., Watched]
) -> None:
    path = waits.root / "workflows/reviews.yml"
    path.write_text(path.read_text("utf-8").replace("review:", "review:\n    blind: 1.0"), "utf-8")
    waits.write("schemas/mood.json", json.dumps(SCHEMA | {"title": "asked anew"}))
    waits.run()
    opened(page, watch(waits, "--write"))
    assert buttons(page) == ["Edit e", "Reject r"]
    page.keyboard.press("a")
    expect(page.get_by_text("The answer is not shown: give your own.")).to_be_visible()
    page.keyboard.press("e")
    expect(page.get_by_label("mood")).to_be_focused()
    assert decisions(waits) == []


@pytest.mark.parametrize("words", [(), ("--write",)])
def test_the_page_is_accessible_and_fits_a_narrow_window(
    page: Page, waits: ProjectFolder, watch: Callable[..., Watched], words: tuple[str, ...]
) -> None:
    opened(page, watch(waits, *words), "/review?workflow=reviews&state=waiting")
    assert_accessible(page)
    assert_fits(page)
    expect(page.get_by_role("button", name="Approve")).to_have_count(len(words))
    expect(page.get_by_text("agac review next -a reviews")).to_have_count(1 - len(words))
    page.keyboard.press("j")
    page.wait_for_url("**at=*")


def test_an_answer_is_asked_for_again_by_key_and_nobody_decides_twice(
    page: Page, waits: ProjectFolder, watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGAC_REVIEWER", "Ada")
    path = waits.root / "workflows/reviews.yml"
    path.write_text(
        path.read_text("utf-8").replace("review:", "review:\n    redo: {max: 1}\n    reviewers: 2"), "utf-8"
    )
    waits.run()
    opened(page, watch(waits, "--write"))
    wait_for(page, 3)
    row = shown(page)
    for who, left in (("Ada", 2), ("Eve", 2)):
        page.get_by_label("Reviewer").fill(who)
        page.keyboard.press("Escape")
        page.keyboard.press("d")
        page.keyboard.type("look at the tags")
        page.keyboard.press("Enter")
        wait_for(page, left)
        page.goto(page.url.partition("?")[0] + "?reviewer=Eve") if who == "Ada" else None
    waits.run()
    page.goto(page.url.partition("?")[0])
    wait_for(page, 3)
    page.get_by_role("link", name=row, exact=True).click()
    expect(page.get_by_text("Asked again: look at the tags")).to_be_visible()
    assert buttons(page) == ["Approve a", "Edit e", "Reject r"]
    assert_accessible(page)
