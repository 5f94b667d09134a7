"""Fragments of the change log are well formed: one file a change, for users."""

from pathlib import Path

import pytest
from fragments import FOLDER, fragments, problems_of, released
from pages import ROOT, replace_generated


@pytest.mark.parametrize("path", fragments(), ids=lambda path: path.name)
def test_a_fragment_is_well_formed(path: Path) -> None:
    assert problems_of(path) == []


def test_nothing_else_lies_among_the_fragments() -> None:
    assert {path for path in FOLDER.iterdir() if path.name != "README.md"} == set(fragments())


def test_the_changelog_holds_every_fragment() -> None:
    words = " ".join((ROOT / "CHANGELOG.md").read_text("utf-8").split())
    for path in fragments():
        assert " ".join(path.read_text("utf-8").split()) in words


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("spine.new.md", "It works.\n", "name it what-it-is.KIND.md"),
        ("spine.md", "It works.\n", "name it what-it-is.KIND.md"),
        ("spine.added.md", "\n", "is empty"),
        ("spine.added.md", "It works\n", "ends with a full stop"),
        ("spine.added.md", "It works.", "ends with a full stop"),
        ("spine.added.md", "it works.\n", "starts with a capital letter"),
        ("spine.added.md", "Word " * 200 + ".\n", "are enough to say what changed"),
    ],
)
def test_a_bad_fragment_is_told_apart(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    (found,) = problems_of(path)
    assert problem in found


def test_a_release_dates_what_was_unreleased() -> None:
    head, older = (
        "# Changes\n\n## Unreleased\n\n<!-- generated: unreleased -->\n",
        "\n## 0.0.9 (2026-01-02)\n\nOlder.\n",
    )
    text = released(f"{head}\n### Added\n\n- It is new.\n<!-- /generated -->\n{older}", "0.1.0", "2026-12-01")
    assert text.startswith(f"{head}\n<!-- /generated -->\n\n## 0.1.0 (2026-12-01)\n\n### Added\n\n- It is new.\n")
    assert text.endswith(f".\n{older}")
    assert [replace_generated(text, {"unreleased": "\n"})] == [text]
