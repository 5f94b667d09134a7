"""Which files a pattern names: in which order, and which never."""

import fnmatch
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.spec.paths import Unmatchable, fixed_part, is_pattern, matches, matching

FILES = [
    "a.csv", "b.csv", "c.txt", ".hidden.csv", "data/1.csv", "data/10.csv", "data/2.csv", "data/more/deep/x.csv",
    "data/more/y.csv", "data/.cache/z.csv", "other/[odd].csv", "other/o.csv", "ä/ü.csv",
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*.csv"], ["a.csv", "b.csv"]),
        (["?.csv"], ["a.csv", "b.csv"]),
        (["[!a].csv"], ["b.csv"]),
        ([".*.csv"], [".hidden.csv"]),
        (["data/*.csv"], ["data/1.csv", "data/10.csv", "data/2.csv"]),
        (["./data/*.csv"], ["data/1.csv", "data/10.csv", "data/2.csv"]),
        (["*/*.csv"], ["data/1.csv", "data/10.csv", "data/2.csv", "other/[odd].csv", "other/o.csv", "ä/ü.csv"]),
        (["data/**/*.csv"], ["data/1.csv", "data/10.csv", "data/2.csv", "data/more/deep/x.csv", "data/more/y.csv"]),
        (["data/**"], ["data/1.csv", "data/10.csv", "data/2.csv", "data/more/deep/x.csv", "data/more/y.csv"]),
        (["**/more/**/x.csv"], ["data/more/deep/x.csv"]),
        (["**/**/y.csv"], ["data/more/y.csv"]),
        (["data/.cache/*"], ["data/.cache/z.csv"]),
        (["other/[odd].csv"], ["other/[odd].csv"]),
        (["b.csv", "*.csv"], ["b.csv", "a.csv"]),
        (["data/more/**", "data/**"],
         ["data/more/deep/x.csv", "data/more/y.csv", "data/1.csv", "data/10.csv", "data/2.csv"]),
        (["a.csv", "a.csv"], ["a.csv"]),
        (["*.parquet"], []),
        (["nowhere/*.csv"], []),
    ],
)  # fmt: skip
def test_files_of_patterns_in_their_order(root: Path, patterns: list[str], expected: list[str]) -> None:
    assert list(matching(root, patterns)) == expected


def test_nothing_of_skipped_folders_is_taken(root: Path) -> None:
    (root / "l.csv").symlink_to(root / "other/o.csv")
    found = list(matching(root, ["**/*.csv"], [root / "data/more", root / "other"]))
    assert found == ["a.csv", "b.csv", "data/1.csv", "data/10.csv", "data/2.csv", "ä/ü.csv"]


def test_a_link_that_stays_inside_is_followed_where_it_is_named_and_not_by_two_stars(root: Path) -> None:
    (root / "now").symlink_to(root / "data/more")
    (root / "link.csv").symlink_to(root / "a.csv")
    (root / "data/circle").symlink_to(root / "data")
    assert list(matching(root, ["now/*.csv"])) == ["now/y.csv"]
    assert list(matching(root, ["*.csv"])) == ["a.csv", "b.csv", "link.csv"]
    assert not [path for path in matching(root, ["**/*.csv"]) if path.startswith(("now/", "data/circle"))]


@pytest.mark.parametrize("pattern", ["*.csv", "**/*.csv", "out.csv", "[o]ut.csv", "data/*/*.csv"])
def test_a_link_that_leads_out_is_refused(root: Path, tmp_path: Path, pattern: str) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away/x.csv").write_text("x")
    (root / "out.csv").symlink_to(tmp_path / "away/x.csv")
    (root / "data/away").symlink_to(tmp_path / "away")
    with pytest.raises(Unmatchable, match=r"'(out\.csv|data/away)' (is a link that )?leads out of"):
        list(matching(root, [pattern]))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_cannot_be_read_is_no_empty_one(root: Path) -> None:
    (root / "data").chmod(0)
    try:
        with pytest.raises(Unmatchable, match="the folder 'data/' cannot be read"):
            list(matching(root, ["data/*.csv"]))
    finally:
        (root / "data").chmod(0o755)


def test_files_are_found_while_they_are_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_into: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: looked_into.append(Path(folder).name) or scandir(folder))
    found = matching(root, ["**/*.csv"])
    assert [next(found), next(found), next(found)] == ["a.csv", "b.csv", "data/1.csv"]
    assert "other" not in looked_into


def test_what_is_a_pattern_and_where_it_begins_to_vary() -> None:
    fixed = {"a/b/*.csv": "a/b", "*.csv": ".", "a/**/b.csv": "a", "a/b.csv": "a", "x": "."}
    assert {pattern: str(fixed_part(pattern)) for pattern in fixed} == fixed
    assert [is_pattern(text) for text in ("a.csv", "a*", "a?", "[ab]", "a]")] == [False, True, True, True, False]


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "c.csv"]), min_size=1, max_size=4).map("/".join)
PATTERNS = st.lists(st.sampled_from(["a", "*", "?", "**", "[ab]", "*.csv", "ab"]), min_size=1, max_size=4).map("/".join)


@given(NAMES, PATTERNS)
def test_a_pattern_matches_what_its_parts_match(name: str, pattern: str) -> None:
    def fits(names: list[str], parts: list[str]) -> bool:
        if not parts:
            return not names
        if parts[0] == "**":
            return fits(names, parts[1:]) or bool(names and fits(names[1:], parts)) if parts[1:] else bool(names)
        return bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and fits(names[1:], parts[1:])

    assert matches(pattern, name) == fits(name.split("/"), pattern.split("/"))
