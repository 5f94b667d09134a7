"""How pages look, to machines that look for people: accessible, and within the window."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize

NARROW: ViewportSize = {"width": 390, "height": 844}
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


SQUEEZED = """() => {
  const pen = document.createElement('canvas').getContext('2d')
  const own = cell => [...cell.childNodes].some(one => one.nodeType === 3 || one.matches('a, bdi, code, span, strong'))
  return [...document.querySelectorAll('td, th')].filter(one => one.offsetParent && own(one)).map(cell => {
    const style = getComputedStyle(cell)
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`
    const longest = Math.max(...cell.innerText.split(/[^\\p{L}\\p{N}]+/u).map(word => pen.measureText(word).width))
    const room = cell.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
    return [room + 1 < Math.min(longest, 150), cell.innerText]
  }).filter(([squeezed, text]) => squeezed && text.trim()).map(([_, text]) => text.slice(0, 60))
}"""
"""Texts of cells that are narrower than their longest word, or than 150 pixels, where a word is longer."""


def assert_fits(page: Page) -> None:
    """Fails where a narrow window has to be scrolled sideways, since tables scroll by themselves; where a cell is
    narrower than its words, in this window or in the one before."""
    before = page.viewport_size
    page.set_viewport_size(NARROW)
    page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )  # charts are drawn anew
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(one => !one.closest('.wide, pre')"
        " && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 200))"
    )
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW["width"], f"{page.url} is {width} pixels wide: {wide}"
    assert not (squeezed := page.evaluate(SQUEEZED)), f"{page.url} has narrow cells: {squeezed}"
    if before:
        page.set_viewport_size(before)
    assert not (squeezed := page.evaluate(SQUEEZED)), f"{page.url} has narrow cells: {squeezed}"
