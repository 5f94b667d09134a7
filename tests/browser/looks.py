"""How pages look, to machines that look for people: accessible, and within the window."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

NARROW = {"width": 390, "height": 844}
"""A telephone's window, in pixels."""


def assert_accessible(page: Page) -> None:
    """Fails where axe-core finds anything serious, on light and on dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")  # colours fade over
        found = Axe().run(page, options={"resultTypes": ["violations"], "preload": False})  # it would fetch styles
        serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, f"{scheme}: {page.url}\n{found.generate_report()}"
    page.emulate_media(color_scheme="light")


def assert_fits(page: Page) -> None:
    """Fails where a narrow window has to be scrolled sideways: tables scroll by themselves."""
    before = page.viewport_size
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(one => !one.closest('.wide, pre')"
        " && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 200))"
    )
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW["width"], f"{page.url} is {width} pixels wide: {wide}"
    if before:
        page.set_viewport_size(before)
