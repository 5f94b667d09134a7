"""Every page is typed word for word into one shell, in an empty folder, and shows what its commands print."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path

import consoles
import pytest
import yaml
from consoles import file_of, has_commands, matches, refreshed, steps
from pages import DIRECTIVES, ROOT, Block, blocks, pages
from pictures import pictures, words_of
from support.commands import template
from support.processes import processes
from support.server import simulator

pytestmark = processes

NOT_FORKED = ROOT / "docs/guide/getting-started.md"
"""The `agac` of this page is the one that pip installed."""

WITH_CONSOLES = [page for page in pages() if has_commands(page)]


@contextmanager
def simulated(home: Path, rules: str, environment: dict[str, str]) -> Iterator[str]:
    """A simulator with faults, in the place of the one that is a process of its own."""
    with simulator(faults=yaml.safe_load(rules), folder=home) as server:
        yield server.base_url


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_CONSOLES, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page != NOT_FORKED:
        monkeypatch.setattr(consoles, "COMMANDS", template().typed)
    monkeypatch.setattr(consoles, "simulator", simulated)
    before = page.read_text("utf-8")
    if "$ curl " in before and shutil.which("curl") is None:
        pytest.skip("this page shows curl, which is not here")
    if "<!-- hub: " in before:
        pytest.importorskip("huggingface_hub", reason="this page reads hf://: pip install huggingface-hub")
    after = refreshed(page, before, tmp_path / "home")
    changes = unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0)
    assert after == before, "\n".join(["run: python docs/generate.py", *changes])


def test_the_pictures_of_the_front_page_show_what_a_terminal_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "COMMANDS", template().typed)
    for path, made in pictures(tmp_path / "home").items():
        assert words_of(path.read_text("utf-8")) == words_of(made), "run: python docs/generate.py"
        assert not re.search(r"href|<image|@import|url\((?!#)", made), "a picture needs nothing else"
        assert 'role="img" aria-label="' in made
        for page in ("README.md", "docs/README.md"):
            assert f"assets/{path.name})" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_block_names_its_language_and_one_that_is_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"console", "yaml", "json", "markdown", "python", "sh", "text"}
        assert block.directives.keys() <= DIRECTIVES
        if "not run" in block.directives:
            assert len(block.directives["not run"]) > 10, block.where
            assert not any(step.shown for step in steps(block)), f"{block.where}: shows output that nobody compares"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_file_that_a_page_shows_has_its_name_where_a_reader_sees_it(page: Path) -> None:
    for block in blocks(page):
        if path := file_of(block):
            before = "\n".join(page.read_text("utf-8").split("\n")[: block.first])
            near = re.sub(r"<!-- .*? -->", "", before).split()[-60:]
            assert path in block.text.partition("\n")[0] or f"`{path}`" in " ".join(near), f"{block.where}: {path}"


EXTRAS = {
    r"\bparquet\b": "duckdb",
    r"\.zst\b": "zstandard",
    "json_repair: true": "json-repair",
    "hf://": "huggingface-hub",
} | {f"import {name}": name for name in ("pandas", "polars", "pyarrow")}


@pytest.mark.parametrize("page", WITH_CONSOLES, ids=name_of)
def test_what_else_has_to_be_installed_is_said_before_it_is_needed(page: Path) -> None:
    lines = page.read_text("utf-8").split("\n")
    for block in blocks(page):
        if block.language in ("console", "yaml", "python"):
            for sign, package in EXTRAS.items():
                if re.search(sign, re.sub(r"# .*", "", block.text)):
                    before = "\n".join(lines[: block.first])
                    assert re.search(rf"pip install [\w -]*\b{package}\b", before), f"{block.where}: {package}"


def test_the_command_that_is_typed_is_the_one_that_pip_installed() -> None:
    script = shutil.which("agac", path=str(Path(sys.executable).parent))
    assert script is not None, "agac is not installed in this environment: pip install -e '.[dev]'"
    program = "import agac; print(agac.__file__)"
    where = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert Path(where.strip()).parent == ROOT / "agac"


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
        (['look({"q": "x"}): done in 0 ms: so'], ['look({"q": "x"}): done in 1,234 ms: so'], True),
        (['look({"q": "x"}): done, stub in 0 ms: so'], ['look({"q": "x"}): done, stub in 12 ms: no'], False),
        (["2 batches; the previous one took 12s"], ["2 batches; the previous one took 1m 03s"], True),
        (["Prefix cache: 93.1% of prompt tokens; slots: 82%"], ["Prefix cache: 90.0% of prompt tokens"], True),
    ],
)
def test_only_what_differs_from_run_to_run_is_left_out_of_the_comparison(
    shown: list[str], out: list[str], same: bool
) -> None:
    assert matches(shown, out, loose=False) is same
