"""Choosing a format, and what is said when there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agac.core.errors import AgacError, UsageError
from agac.data.sources import open_source
from agac.spec.inputs import SUFFIXES


@pytest.mark.parametrize("suffix", [*sorted(SUFFIXES.keys() - {".parquet"}), ".CSV", ".JsonL"])
def test_the_suffix_names_the_format_in_any_case(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_text('{"id": 1}\n')
    expected = {".csv": '{"id": 1}', ".tsv": '{"id": 1}', ".txt": "line_number"}.get(suffix.lower(), 1)
    source = open_source(path, None, path.name)
    columns = source.columns()
    assert (columns[0] if columns else next(source.records()).data["id"]) == expected  # type: ignore[index]


def test_the_format_that_is_given_wins_over_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('{"id": 1}\n')
    assert next(open_source(path, "jsonl", path.name).records()).data == {"id": 1}


def test_an_unknown_suffix_lists_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    path.write_text("")
    with pytest.raises(UsageError, match=r"^rows\.xlsx: the suffix \.xlsx names no known format$") as caught:
        open_source(path, None, "rows.xlsx")
    assert caught.value.remedy == "Rename the file or set input.format to one of: csv, tsv, json, jsonl, txt, parquet."


def test_a_name_without_a_suffix_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("")
    with pytest.raises(UsageError, match=r"^rows: the name has no suffix$"):
        open_source(path, None, "rows")


def test_a_missing_file_is_missing_whatever_its_suffix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rows\.xlsx: no such file") as caught:
        open_source(tmp_path / "rows.xlsx", None, "data/rows.xlsx")
    assert caught.value.remedy == "Check the path of the input."


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"daat/rows\.csv: no such file") as caught:
        open_source(tmp_path / "daat" / "rows.csv", None, "daat/rows.csv")
    assert caught.value.remedy == "There is no folder daat."


def test_an_unknown_format_is_refused_with_a_near_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'^rows\.csv: unknown format "jsonI"$') as caught:
        open_source(tmp_path / "rows.csv", "jsonI", "rows.csv")
    assert caught.value.remedy == "Did you mean json? Known formats: csv, tsv, json, jsonl, txt, parquet."


def test_a_file_that_goes_away_between_opening_and_reading_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    source = open_source(path, None, "rows.jsonl")
    path.unlink()
    with pytest.raises(UsageError, match=r"rows\.jsonl: no such file"):
        list(source.records())


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here whose reading fails")
def test_a_reading_that_fails_is_reported_without_a_traceback() -> None:
    with pytest.raises(AgacError, match=r"^mem: reading failed: ") as caught:
        open_source(Path("/proc/self/mem"), "jsonl", "mem")
    assert caught.value.remedy == "Check the disk, then run again."


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("id,tëxt\nr1,🦊\n".encode())
    program = """
import sys
from pathlib import Path
from agac.data.sinks import OutputFolder
from agac.data.sources import open_source
folder = Path(sys.argv[1])
with OutputFolder(folder / "out", folder) as output:
    sink = output.open("results.jsonl")
    for record in open_source(folder / "rows.csv", None, "rows.csv").records():
        sink.write(record.data)
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=True)
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == '{"id":"r1","tëxt":"🦊"}\n'.encode()
