"""The folder of results: where it may be, what it replaces, and what it leaves alone."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import small_files

from agac.core.errors import AgacError, ErrorType, RowError, UsageError
from agac.data.files import explained
from agac.data.json_formats import encode
from agac.data.sinks import OutputFolder, envelope


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_together_when_the_folder_is_left_and_others_stay_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "output" / "reviews"
    with OutputFolder(out, tmp_path) as output:
        assert output.path.is_dir()
        results, array, summary = (output.open(name) for name in ("results.jsonl", "results.json", "summary.json"))
        results.write({"id": 1})
        array.write_texts(['{"a": 1}'])
        array.write_texts(['{"a": 2}'])
        summary.write({"complete": True})
        with pytest.raises(ValueError, match=r"summary\.json holds one value"):
            summary.write(2)
        assert all(name.startswith(".agac-tmp-") for name in names(out))
    assert (out / "results.jsonl").read_text() == '{"id":1}\n'
    assert (out / "results.json").read_text() == '[\n{"a": 1},\n{"a": 2}\n]\n'
    assert (out / "summary.json").read_text() == '{\n  "complete": true\n}\n'
    mine = ["notes.md", "results.csv", ".agac-tmp-notes", ".agac-tmp-1-x-results.json", "results.jsonl.bak"]
    for name in mine:
        (out / name).write_text("mine")
    with OutputFolder(out, tmp_path) as output:
        output.open("results.jsonl").write({"id": 2})
        with pytest.raises(KeyError):
            output.open("../agac.yml")
    assert names(out) == sorted([*mine, "results.jsonl", "results.json", "summary.json"])
    assert {(out / name).read_text() for name in mine} == {"mine"}


def test_a_disk_that_is_too_full_for_one_file_replaces_none(tmp_path: Path) -> None:
    for name in ("results.jsonl", "results.json"):
        (tmp_path / name).write_text("old")

    def written() -> None:
        with OutputFolder(tmp_path, tmp_path) as output:
            output.open("results.jsonl").write("small")
            output.open("results.json").write("x" * 150_000)

    with small_files(), pytest.raises(AgacError) as caught:
        written()
    assert caught.value.message.startswith(f"{tmp_path / 'results.json'}: cannot be written: File too large")
    assert [(tmp_path / name).read_text() for name in ("results.jsonl", "results.json")] == ["old", "old"]
    assert names(tmp_path) == ["results.json", "results.jsonl"]


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ([errno.ENOSPC, errno.EDQUOT], "Free some space, then run `agac export`"),
        ([errno.EACCES, errno.EROFS], "Make the folder writable or choose another one with output.dir"),
        ([errno.EIO], "Check the output folder, then run `agac export`"),
    ],
)
def test_each_failure_of_the_disk_has_its_remedy(codes: list[int], words: str) -> None:
    for code in codes:
        with pytest.raises(AgacError, match="out: cannot be written") as caught, explained(Path("out")):
            raise OSError(code, "said the system")
        assert str(caught.value.remedy).startswith(words)


def test_a_folder_outside_of_the_project_is_refused_after_links_are_followed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "project-two").mkdir()
    for folder in (tmp_path, project / ".." / "out", tmp_path / "project-two"):
        with pytest.raises(UsageError, match="leads outside of") as caught:
            OutputFolder(folder, project)
        assert caught.value.remedy == "Choose a folder inside the project with output.dir."
    assert names(tmp_path) == ["project", "project-two"]
    (project / "real").mkdir()
    (tmp_path / "outside").mkdir()
    (project / "out").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="leads outside of"):
        OutputFolder(project / "out" / "reviews", project)
    assert names(tmp_path / "outside") == []
    (project / "inside").symlink_to(project / "real")
    with OutputFolder(project / "inside", project) as output:
        output.open("results.jsonl").write(1)
    assert names(project / "real") == ["results.jsonl"]
    (tmp_path / "link").symlink_to(project)
    OutputFolder(tmp_path / "link" / "made", tmp_path / "link")
    assert (project / "made").is_dir()


@pytest.mark.parametrize("name", ["results.jsonl", "summary.json"])
def test_a_file_in_the_way_of_the_folder_and_a_link_in_the_way_of_a_file_are_refused(tmp_path: Path, name: str) -> None:
    target, out = tmp_path / "target", tmp_path / "out"
    target.write_text("precious")
    for folder in (target, target / "reviews"):
        with pytest.raises(UsageError, match="target is a file"):
            OutputFolder(folder, tmp_path)
    out.mkdir()
    (out / name).symlink_to(target)
    with pytest.raises(UsageError, match="is a link"):
        OutputFolder(out, tmp_path)
    assert target.read_text() == "precious"


def test_an_envelope_has_exactly_its_keys_in_order() -> None:
    assert envelope("r1", 3, '{"a":[1]}', None, '{"a":1}') == (
        '{"id":"r1","row_number":3,"ok":true,"result":{"a":[1]},"error":null}'
    )
    error = RowError(ErrorType.INVALID_ROW, 'line 3: "x"\nü')
    failed = '{"id":7,"row_number":7,"ok":false,"result":null,'
    failed += '"error":{"type":"InvalidRow","message":"line 3: \\"x\\"\\nü"},"input":'
    assert envelope(7, 7, None, error, '{"text":"ü"}', include_input=True) == failed + '{"text":"ü"}}'
    assert envelope(7, 7, None, error, None, include_input=True) == failed + "null}"


texts = st.text(st.characters(exclude_categories=["Cs"]))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
)


@given(st.integers() | texts, st.integers(min_value=1), anything, st.none() | texts, st.dictionaries(texts, anything))
def test_an_envelope_is_one_line_of_json_whatever_is_in_it(
    row_id: int | str, number: int, result: Any, message: str | None, data: dict[str, Any]
) -> None:
    error = None if message is None else RowError(ErrorType.TIMEOUT, message)
    line = envelope(row_id, number, encode(result), error, encode(data), include_input=True)
    assert "\n" not in line
    assert list(json.loads(line).items()) == [
        ("id", row_id),
        ("row_number", number),
        ("ok", error is None),
        ("result", result),
        ("error", None if error is None else {"type": "Timeout", "message": message}),
        ("input", data),
    ]
