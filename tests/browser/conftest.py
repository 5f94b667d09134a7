"""A real Chromium on a real `agac ui`. A page that logs an error, or asks another host for anything, fails."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect, sync_playwright
from support.monitor import Watched, monitor
from support.project import ProjectFolder
from support.services import starts, starts_service

expect.set_options(timeout=30_000)  # on a busy machine; nothing is expected to take nearly so long


def chromium_of(player: Playwright) -> str | None:
    """The program: what AGAC_CHROMIUM names, playwright's own, or the one of the system."""
    found = [os.environ.get("AGAC_CHROMIUM"), player.chromium.executable_path, shutil.which("chromium")]
    return next((path for path in found if path and Path(path).exists()), None)


# Of a module, not of the session: while playwright works, its event loop is that of the thread, and no other test of
# this worker could run one. (This folder is no package: that scope would be the session.)
@pytest.fixture(scope="module")
@starts_service
def browser() -> Iterator[Browser]:
    starts("a browser")
    with sync_playwright() as player:
        program = chromium_of(player)
        if program is None:
            pytest.skip(
                "no Chromium is here: set AGAC_CHROMIUM, run `playwright install chromium`, or install Debian's"
            )
        with player.chromium.launch(executable_path=program, args=["--no-sandbox"]) as launched:
            yield launched


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Starts `agac ui` on a project, with these flags."""
    with ExitStack() as started:
        yield lambda project, *words: started.enter_context(monitor(project, *words))


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context() as made:
        made.set_default_timeout(20_000)
        made.grant_permissions(["clipboard-read", "clipboard-write"])
        yield made


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page of a fresh browser. What it must not do is looked at when the test ends."""
    wrong: list[str] = []
    opened = context.new_page()

    def logged(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(f"{message.type}: {message.text} ({message.location})")

    def asked(url: str) -> None:
        if urlsplit(url).hostname not in ("127.0.0.1", "", None):
            wrong.append(f"a request to {url}")

    opened.on("console", logged)
    opened.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    opened.on("request", lambda request: asked(request.url))
    yield opened
    assert wrong == []


@pytest.fixture
def finished(project: ProjectFolder) -> ProjectFolder:
    """A project with a run that ended."""
    project.workflow(rows=12)
    project.run()
    return project
