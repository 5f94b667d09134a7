"""Paths that a project's files name end inside the project."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.spec.paths import OutsideProject, inside


def test_paths_within_the_project_are_resolved_and_all_others_refused(tmp_path: Path) -> None:
    for text in ("a.md", "a/b.md", "./a.md", "a/../b.md", "a b/ü.md", "not/there", "."):
        assert inside(tmp_path, text) == (tmp_path / text).resolve()
    for text in ("..", "../x", "a/../../x", "/etc/passwd", "~", "~/x", "~root/x", "a\0b", "x" * 2000, "x" * 500):
        with pytest.raises(OutsideProject):
            inside(tmp_path, text)
    with pytest.raises(OutsideProject, match="is not relative"):
        inside(tmp_path, str(tmp_path / "a.md"))  # absolute, though it leads into the project


def test_links_are_followed_before_judging_also_those_to_the_project(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (root / "out").symlink_to(outside)
    (root / "in").symlink_to(root / "real")
    (root / "loop").symlink_to(root / "loop")
    assert inside(root, "in/x") == root / "real/x"
    for text in ("out/x", "out", "in/../../outside/x", "loop/x"):
        with pytest.raises(OutsideProject):
            inside(root, text)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert inside(tmp_path / "link", "a.md") == tmp_path / "real/a.md"


def test_a_base_folder_is_where_the_path_starts_and_the_root_where_it_must_stay(tmp_path: Path) -> None:
    assert inside(tmp_path, "../x.md", base=tmp_path / "schemas") == tmp_path / "x.md"
    with pytest.raises(OutsideProject):
        inside(tmp_path, "../../x.md", base=tmp_path / "schemas")


@given(st.text(alphabet="./~a\0\\ é", max_size=30))
def test_no_text_leads_out(text: str) -> None:
    root = Path("/nonexistent/project")
    try:
        path = inside(root, text)
    except OutsideProject:
        return
    assert path.is_relative_to(root)
