"""Compressed files: told by what they hold, unpacked piece by piece, and torn ones are never taken for whole ones."""

import gzip
import json
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from support.sources import opened

from agac.core.errors import AgacError, UsageError

Pack = Callable[[bytes], bytes]
PACKS = {".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.fixture(params=PACKS)
def suffix(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def lines(count: int) -> bytes:
    chance = random.Random(2)
    return "".join(json.dumps({"id": n, "x": chance.random()}) + "\n" for n in range(count)).encode()


def test_a_file_that_is_cut_anywhere_is_never_taken_for_a_whole_one(suffix: str, tmp_path: Path) -> None:
    packed = PACKS[suffix](lines(200))
    path = tmp_path / f"rows.jsonl{suffix}"
    for size in range(0, len(packed), 7):
        path.write_bytes(packed[:size])
        with pytest.raises(AgacError, match=r"^rows\.jsonl\.\w+: (the file is cut off|is empty|is not what its name)"):
            list(opened(path).records())


def test_rows_before_the_cut_are_given_and_damage_is_reported(suffix: str, tmp_path: Path) -> None:
    packed = bytearray(PACKS[suffix](lines(20_000)))
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(packed[:-10])
    records = opened(path).records()
    assert next(records).data == json.loads(lines(1))
    with pytest.raises(AgacError, match="the file is cut off: its compressed data has no end") as caught:
        list(records)
    assert caught.value.remedy == "Get the file again, then run again."
    for place in (len(packed) // 2, len(packed) // 2 + 1):
        packed[place] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(AgacError, match=r"the compressed data is damaged|the file is cut off"):
        list(opened(path).records())


def test_parts_that_were_put_together_are_one_file_and_what_it_begins_with_tells_whatever_its_name(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(PACKS[suffix](b'{"a": 1}\n') + PACKS[suffix](b"") + PACKS[suffix](b'{"a": 2}\n'))
    assert [record.data for record in opened(path, "x").records()] == [{"a": 1}, {"a": 2}]
    path = tmp_path / "rows.csv"
    path.write_bytes(PACKS[suffix](b"\xef\xbb\xbfid,t\r\n1,x\r\n"))
    source = opened(path, "rows.csv")
    assert source.columns() == ("id", "t")
    assert [record.data for record in source.records()] == [{"id": "1", "t": "x"}]


@pytest.mark.parametrize(("content", "words"), [(b"", "is empty"), (b"id\n1\n", "is not what its name says")])
def test_a_name_that_promises_too_much_is_refused(suffix: str, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / f"rows.csv{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        opened(path, "rows.csv.x")
    assert caught.value.message == f"rows.csv.x: {words}, a {suffix} file"


def test_what_unpacks_to_a_thousand_times_its_size_takes_no_more_memory(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.txt{suffix}"
    path.write_bytes(PACKS[suffix](b"x" * 60 + b"\n" + (b" " * 1023 + b"\n") * 50_000))
    tracemalloc.start()
    try:
        assert len(list(opened(path).records())) == 1
        assert tracemalloc.get_traced_memory()[1] < 24_000_000
    finally:
        tracemalloc.stop()


def test_without_zstandard_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv.zst"
    path.write_bytes(zstandard.compress(b"id\n1\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UsageError, match=r"rows\.csv\.zst: unpacking needs zstandard>=0.22, which is not"):
        opened(path, "rows.csv.zst")
