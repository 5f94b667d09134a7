"""Files that cannot be read when their turn comes, and names that tell a format."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sources import opened

from agac.core.errors import AgacError, UsageError
from agac.data.sources import open_source
from agac.spec.inputs import SUFFIXES, format_of


def test_the_suffix_names_the_format_in_any_case() -> None:
    formats = {
        "a.csv": "csv", "a.TSV": "tsv", "a.json": "json", "a.jsonl": "jsonl", "a.ndjson": "jsonl", "a.txt": "txt",
        "a.parquet": "parquet", "a.CSV.gz": "csv", "a.JsonL.ZST": "jsonl", "a.gz": None, "a.xls": None, "a": None,
        "a.XLSX": "xlsx", "a.xlsm": "xlsx",
    }  # fmt: skip
    assert {name: format_of(name) for name in formats} == formats
    assert SUFFIXES.keys() <= {Path(name).suffix.lower() for name in formats}


def test_a_file_that_goes_away_between_opening_and_reading_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    source = opened(path)
    path.unlink()
    with pytest.raises(UsageError, match=r"^rows\.jsonl: no such file"):
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
    for record in open_source(folder / "rows.csv", "csv", "rows.csv").records():
        sink.write(record.data)
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=True)
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == '{"id":"r1","tëxt":"🦊"}\n'.encode()
