"""The pictures of the monitor in the documentation: AGAC_PICTURES=1 makes them again."""

import os
import time
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from playwright.sync_api import Browser, expect
from support.monitor import Watched, monitor
from support.pictures import ASSETS, PICTURES, optimised, size_of
from support.project import ProjectFolder
from support.server import simulator
from support.shop import FAULTS, FLAGS, run_shop
from support.soak import few


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("shop")
    again = bool(os.environ.get("AGAC_PICTURES"))
    environ = {"AGAC_REVIEWER": "Ada"}  # the name that decisions have
    with simulator(*(FLAGS if again else ()), faults=FAULTS, folder=folder / "faults") as server:
        project = run_shop(
            ProjectFolder(folder / "shop"), server.base_url, rows=60 if again else 28, began=time.time() - 900
        )
    with patch.dict(os.environ, environ), monitor(project, "--write") as started:
        yield started


@pytest.mark.parametrize("name", list(PICTURES) if os.environ.get("AGAC_PICTURES") else few(list(PICTURES), 3))
def test_each_picture_of_the_guides_shows_its_page(name: str, watched: Watched, browser: Browser) -> None:
    one = PICTURES[name]
    with browser.new_context(
        viewport={"width": one.width, "height": one.height}, color_scheme=one.scheme, timezone_id="UTC"
    ) as context:
        page = context.new_page()
        page.goto(watched.address)
        page.wait_for_url(watched.url + "/")
        page.goto(watched.url + one.path)
        expect(page.locator("h1")).to_contain_text(one.heading)
        if one.path == "/run/1":
            expect(page.locator("#charts canvas")).not_to_have_count(0)
        if one.shows:
            page.locator(one.shows).first.evaluate("one => one.scrollIntoView()")
        made = optimised(page.screenshot())
    shown = ASSETS / f"{name}.png"
    if os.environ.get("AGAC_PICTURES"):
        shown.write_bytes(made)
    assert size_of(made) == size_of(shown.read_bytes()), "of another size: AGAC_PICTURES=1 makes it again"
