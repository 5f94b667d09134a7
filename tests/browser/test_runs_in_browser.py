"""The monitor's own pages in a browser."""

from collections.abc import Callable

from playwright.sync_api import Page, expect
from support.monitor import Watched
from support.project import ProjectFolder


def test_the_address_leads_to_the_runs(page: Page, finished: ProjectFolder, watch: Callable[..., Watched]) -> None:
    page.goto(watch(finished).address)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("cell", name="finished")).to_be_visible()
    assert "/t/" not in page.url


def test_light_and_dark_are_switched_and_kept(
    page: Page, project: ProjectFolder, watch: Callable[..., Watched]
) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(watch(project).address)
    page.wait_for_url("**/")
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_command_is_copied(page: Page, project: ProjectFolder, watch: Callable[..., Watched]) -> None:
    page.goto(watch(project).address)
    page.get_by_role("button", name="Copy: agac run").click()
    expect(page.locator("#said")).to_have_text("Copied: agac run -a WORKFLOW")
    assert page.evaluate("navigator.clipboard.readText()") == "agac run -a WORKFLOW"
