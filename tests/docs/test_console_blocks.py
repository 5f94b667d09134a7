"""Every console and Python block of every page is run, in a copy of the example project, and shows what is printed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import consoles
import pytest
import yaml
from consoles import matches, refreshed, steps
from pages import DIRECTIVES, ROOT, Block, blocks, pages
from support.commands import template
from support.server import simulator

TYPED = ROOT / "docs/guide/getting-started.md"
"""`test_getting_started.py` types this page into one shell."""

WITH_CONSOLES = [
    page for page in pages() if page != TYPED and any(block.language in ("console", "python") for block in blocks(page))
]


@contextmanager
def simulated(home: Path, rules: str, environment: dict[str, str]) -> Iterator[str]:
    """A simulator with faults, in the place of the one that is a process of its own."""
    with simulator(faults=yaml.safe_load(rules), folder=home) as server:
        yield server.base_url


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_CONSOLES, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `agac` is forked; the one of `test_getting_started.py` is not."""
    monkeypatch.setattr(consoles, "COMMANDS", template().typed)
    monkeypatch.setattr(consoles, "simulator", simulated)
    before = page.read_text("utf-8")
    if "$ curl " in before and shutil.which("curl") is None:
        pytest.skip("this page shows curl, which is not here")
    after = refreshed(page, before, tmp_path / "home")
    assert after.split("\n") == before.split("\n"), "run: python docs/generate.py"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_block_names_its_language_and_one_that_is_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"console", "yaml", "json", "markdown", "python", "text"}
        assert block.directives.keys() <= DIRECTIVES
        if "not run" in block.directives:
            assert len(block.directives["not run"]) > 10, block.where
            assert not any(step.shown for step in steps(block)), f"{block.where}: shows output that nobody compares"


def test_the_readme_shows_a_run_a_crash_and_a_real_model() -> None:
    commands = [
        step.command for block in blocks(ROOT / "README.md") if block.language == "console" for step in steps(block)
    ]
    assert {"make demo", "make test", "agac run -a product_reviews"} <= set(commands)
    assert any("OPENAI_API_KEY" in command and "--model openai/" in command for command in commands)
    text = (ROOT / "README.md").read_text("utf-8")
    assert "Killed\n" in text
    assert "the previous invocation did not finish: up to" in text
    assert len(text.split("\n")) < 160


def test_commands_and_their_output_are_told_apart() -> None:
    text = "$ one \\\n  more\nout\n\n$ two\n$ three\nlast"
    found = steps(Block(ROOT / "README.md", "console", {}, text, 0, 7))
    assert [(step.command, step.shown, step.gap) for step in found] == [
        ("one \\\n  more", ["out"], 1),
        ("two", [], 0),
        ("three", ["last"], 0),
    ]


@pytest.mark.parametrize(
    ("shown", "out", "same"),
    [
        (["run 1: 60 rows, 60 done"], ["run 1: 60 rows, 60 done"], True),
        (["run 1: 60 rows, 60 done"], ["run 1: 60 rows, 59 done"], False),
        (["started 2026-11-20T23:50:05Z"], ["started 2027-01-01T00:00:00Z"], True),
        (["first", "...", "last"], ["first", "a", "b", "last"], True),
        (["first", "..."], ["other", "a"], False),
        ([], ["something"], False),
        (["Resumed: 20 rows"], ["Resumed: 19 rows"], False),
    ],
)
def test_only_what_differs_from_run_to_run_is_left_out_of_the_comparison(
    shown: list[str], out: list[str], same: bool
) -> None:
    assert matches(shown, out, loose=False) is same
