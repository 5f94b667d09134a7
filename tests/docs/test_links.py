"""Links within the documentation lead somewhere, and every page can be reached."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from pages import ROOT, pages

PAGES = [*pages(), ROOT / "CHANGELOG.md", ROOT / "changelog.d/README.md"]
TEXTS = sorted({*PAGES, *(ROOT / "docs").rglob("*.md")})
"""Pages, and cards of examples."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [link for link in LINK.findall(prose) if "://" not in link]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there_and_it_is_of_agac_alone(page: Path) -> None:
    links_lead_somewhere(page)
    named_tests_are_there(page)
    text = page.read_text("utf-8")
    if page.is_relative_to(ROOT / "docs"):
        assert not re.search(r"/(?:work|tmp|root)/|issue \d|(?<!\w)#\d+\b", text)
    if page.parent == ROOT / "docs/guide":
        assert text.split("\n")[2].startswith("After this page you "), "what its reader can do afterwards"


def links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs/README.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)} | {index, ROOT / "README.md"}
    assert {page for page in pages() if page.name != "benchmarks.md"} <= reached


def named_tests_are_there(page: Path) -> None:
    for path, name in re.findall(r"\b(tests/[\w/]+\.py)::(\w+)", page.read_text("utf-8")):
        found = (ROOT / path).read_text("utf-8")
        assert re.search(rf"def {name}\(|^{name} = ", found, re.MULTILINE), f"{page.name}: {path}::{name}"


def test_every_failure_mode_has_a_test_or_a_reason_why_it_cannot_be() -> None:
    modes = [
        (name, mode)
        for subject in yaml.safe_load((ROOT / "docs/failure-modes.yml").read_text("utf-8")).values()
        for name, mode in subject.items()
    ]
    assert Counter(name[0] for name, _ in modes) == Counter(
        C=8, T=7, R=12, B=8, X=7, P=6, A=6, M=4, F=5, E=5, U=4, Z=10
    )
    assert len(dict(modes)) == len(modes)
    for name, mode in modes:
        assert mode["trouble"], name
        assert mode.get("absent") or (mode["does"] and mode["tests"]), name
