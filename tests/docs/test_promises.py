"""Each promise of the pages on security names the test that holds it."""

import re

import pytest
from pages import ROOT

PAGES = {
    "SECURITY.md": ("## What agac promises", "## What it cannot"),
    "docs/guide/ci.md": ("## What a change cannot do", "## After a merge"),
}
"""The pages, and between which headings their promises are."""

TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("page", PAGES)
def test_each_promise_is_held_by_a_test_that_exists(page: str) -> None:
    begin, end = PAGES[page]
    text = (ROOT / page).read_text("utf-8").partition(f"{begin}\n")[2].partition(f"{end}\n")[0]
    promises = re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
    assert len(promises) > 5
    for promise in promises:
        tests = TEST.findall(promise)
        assert tests, promise
        for file, name in tests:
            assert re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), name
