"""What every sink promises. A new file adds one line to `SINKS`."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import AgacError, UsageError
from agac.data.sinks import FILES, JsonSink

Values = list[Any]


def lines(text: str) -> Values:
    return [json.loads(line) for line in text.split("\n")[:-1]]


def array(text: str) -> Values:
    found: Values = json.loads(text)
    return found


def document(text: str) -> Values:
    return [json.loads(text)] if text else []


@dataclass(frozen=True)
class Member:
    """A file, how its values are read back, and how many it holds."""

    name: str
    read: Callable[[str], Values]
    many: bool = True

    def open(self, folder: Path) -> JsonSink:
        return FILES[self.name](folder / self.name)

    def values(self, folder: Path) -> Values:
        return self.read((folder / self.name).read_bytes().decode())

    def some(self) -> Values:
        return [{"number": number, "text": "ü🦊"} for number in range(5 if self.many else 1)]


SINKS = [
    Member("results.jsonl", lines),
    Member("errors.jsonl", lines),
    Member("filtered.jsonl", lines),
    Member("telemetry.jsonl", lines),
    Member("results.json", array),
    Member("summary.json", document, many=False),
]


@pytest.fixture(params=SINKS, ids=lambda member: member.name)
def member(request: pytest.FixtureRequest) -> Member:
    found: Member = request.param
    return found


def fill(sink: JsonSink, values: Values) -> None:
    for value in values:
        sink.write(value)


def written(member: Member, folder: Path, values: Values) -> Values:
    """The values, read back from the file that they were written into."""
    sink = member.open(folder)
    fill(sink, values)
    sink.commit()
    return member.values(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_file_is_in_this_suite() -> None:
    assert sorted(FILES) == sorted(member.name for member in SINKS)


def test_values_come_back_in_the_order_of_writing(member: Member, tmp_path: Path) -> None:
    assert written(member, tmp_path, member.some()) == member.some()


def test_text_that_is_json_already_is_the_same_value(member: Member, tmp_path: Path) -> None:
    sink = member.open(tmp_path)
    for value in member.some():
        sink.write_texts([json.dumps(value, indent=2).replace("\n", "\r\n")])
    sink.commit()
    assert member.values(tmp_path) == member.some()


def test_many_texts_at_a_time_are_the_same_as_one_by_one(member: Member, tmp_path: Path) -> None:
    texts = [json.dumps(value) for value in member.some()]
    one, many = tmp_path / "one", tmp_path / "many"
    for folder in (one, many):
        folder.mkdir()
    first, second = member.open(one), member.open(many)
    for text in texts:
        first.write_texts([text])
    second.write_texts(texts[:1])
    second.write_texts([])
    second.write_texts(texts[1:])
    for sink in (first, second):
        sink.commit()
    assert (many / member.name).read_bytes() == (one / member.name).read_bytes()
    assert member.values(many) == member.some()


def test_a_text_over_several_lines_is_one_value_among_many(member: Member, tmp_path: Path) -> None:
    sink = member.open(tmp_path)
    sink.write_texts([json.dumps(value, indent=2) for value in member.some()])
    sink.commit()
    assert member.values(tmp_path) == member.some()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        {},
        [],
        {"a": {"b": [1, 2.5, True, None, 2**70]}},
        "ünïcödé 日本語 🦊",
        "two\nlines\r\nand \u2028 \u2029 \x85 \x00 \x7f",
        'quotes " and \\',
        "half a pair \ud83d here",
        {"\udc00": "\ud800\ud800"},
    ],
)
def test_any_value_comes_back(member: Member, tmp_path: Path, value: Any) -> None:
    assert written(member, tmp_path, [value]) == [value]


def test_numbers_that_json_cannot_hold_become_null(member: Member, tmp_path: Path) -> None:
    value = {"a": float("nan"), "b": [float("inf"), -float("inf"), 1.0], "c": (float("nan"),)}
    assert written(member, tmp_path, [value]) == [{"a": None, "b": [None, None, 1.0], "c": [None]}]


def test_the_file_is_utf8_for_people_and_ends_its_last_line(member: Member, tmp_path: Path) -> None:
    written(member, tmp_path, member.some())
    content = (tmp_path / member.name).read_bytes()
    assert "ü🦊".encode() in content
    assert b"\\u" not in content
    assert content.endswith(b"\n")
    assert b"\r" not in content


def test_a_file_without_values_is_still_written(member: Member, tmp_path: Path) -> None:
    member.open(tmp_path).commit()
    assert member.values(tmp_path) == []


def test_nothing_is_to_be_seen_before_the_commit(member: Member, tmp_path: Path) -> None:
    (tmp_path / member.name).write_text("old")
    sink = member.open(tmp_path)
    fill(sink, member.some())
    sink.finish()
    assert (tmp_path / member.name).read_text() == "old"
    sink.commit()
    assert member.values(tmp_path) == member.some()
    assert names(tmp_path) == [member.name]


def test_an_abort_keeps_the_old_file_and_leaves_nothing(member: Member, tmp_path: Path) -> None:
    (tmp_path / member.name).write_text("old")
    sink = member.open(tmp_path)
    fill(sink, member.some())
    sink.abort()
    assert (tmp_path / member.name).read_text() == "old"
    assert names(tmp_path) == [member.name]


def test_an_abort_after_the_commit_does_nothing(member: Member, tmp_path: Path) -> None:
    sink = member.open(tmp_path)
    fill(sink, member.some())
    sink.commit()
    sink.abort()
    assert member.values(tmp_path) == member.some()


@pytest.mark.skipif(sys.platform == "win32", reason="no umask here")
def test_the_file_is_readable_by_whom_the_umask_allows(member: Member, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        member.open(tmp_path).commit()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / member.name).stat().st_mode) == 0o640


def test_a_link_or_a_folder_in_its_place_is_refused(member: Member, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    (tmp_path / member.name).symlink_to(target)
    with pytest.raises(UsageError, match="is a link; agac does not write through links"):
        member.open(tmp_path)
    (tmp_path / member.name).unlink()
    (tmp_path / member.name).mkdir()
    with pytest.raises(UsageError, match="is not a file, so it cannot be replaced"):
        member.open(tmp_path)
    assert target.read_text() == "precious"
    assert names(tmp_path) == sorted(["elsewhere", member.name])


def test_a_folder_that_is_not_there_is_reported(member: Member, tmp_path: Path) -> None:
    with pytest.raises(AgacError, match="cannot be written: No such file or directory"):
        member.open(tmp_path / "missing")


WRITER = """
import sys
from pathlib import Path
from agac.data.sinks import FILES

path = Path(sys.argv[1])
sink = FILES[path.name](path)
sink.write({"text": "x" * 3_000_000})
print("open", flush=True)
if sys.stdin.readline():
    sink.commit()
    print("committed", flush=True)
"""


def writer(path: Path) -> subprocess.Popen[str]:
    """A real process with an open sink; a line on its stdin makes it commit."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_killed_writer_leaves_the_old_file_and_the_next_commit_cleans_up(member: Member, tmp_path: Path) -> None:
    (tmp_path / member.name).write_text("old")
    with writer(tmp_path / member.name) as process:
        process.kill()
    assert (tmp_path / member.name).read_text() == "old"
    assert [name.startswith(".agac-tmp-") for name in names(tmp_path)] == [True, False]
    assert written(member, tmp_path, member.some()) == member.some()
    assert names(tmp_path) == [member.name]


def test_a_writer_that_still_lives_is_not_cleaned_away(member: Member, tmp_path: Path) -> None:
    with writer(tmp_path / member.name) as process:
        assert written(member, tmp_path, member.some()) == member.some()
        out, _ = process.communicate("go on\n")
    assert out == "committed\n"
    assert member.values(tmp_path) == [{"text": "x" * 3_000_000}]
    assert names(tmp_path) == [member.name]


FULL = """
import resource, sys
from pathlib import Path
from agac.core.errors import AgacError
from agac.data.sinks import FILES

path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sink = FILES[path.name](path)
try:
    sink.write({"text": "x" * int(sys.argv[2])})
    sink.commit()
except AgacError as error:
    sink.abort()
    print(error.message, error.remedy, sep="\\n")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes here")
@pytest.mark.parametrize("size", [150_000, 3_000_000], ids=["met-at-commit", "met-while-writing"])
def test_a_full_disk_keeps_the_old_file_and_names_the_remedy(member: Member, tmp_path: Path, size: int) -> None:
    path = tmp_path / member.name
    path.write_text("old")
    process = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(size)], capture_output=True, text=True, check=True
    )
    message, remedy = process.stdout.splitlines()
    assert message.startswith(f"{path}: cannot be written: File too large")
    assert remedy == "Free some space, then run `agac export`: all results are safe in the store."
    assert path.read_text() == "old"
    assert names(tmp_path) == [member.name]


LOOP = """
import itertools, sys
from pathlib import Path
from agac.data.sinks import FILES

path = Path(sys.argv[1])
for number in itertools.count():
    sink = FILES[path.name](path)
    sink.write({"number": number, "text": "x" * 500_000})
    sink.commit()
    print(number, flush=True)
"""


def test_a_file_is_whole_whenever_its_writer_is_killed(member: Member, tmp_path: Path) -> None:
    for commits in range(1, 4):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP, str(tmp_path / member.name)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(commits):
                last = int(process.stdout.readline())
            process.kill()
        (value,) = member.values(tmp_path)
        assert value["number"] >= last
        assert value["text"] == "x" * 500_000
