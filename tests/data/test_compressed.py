"""Compressed files: told by what they hold, unpacked piece by piece, and torn ones are never taken for whole ones."""

import bz2
import gzip
import json
import lzma
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


SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
"""A frame without content, as pzstd writes one before each other frame."""


def test_frames_without_content_are_passed_over_wherever_they_are(tmp_path: Path) -> None:
    first, second = zstandard.compress(b'{"a": 1}\n'), zstandard.compress(b'{"a": 2}\n')
    other = SKIPPED.replace(b"\x50", b"\x5f", 1)
    for name in ("rows.jsonl.zst", "rows.jsonl"):
        path = tmp_path / name
        path.write_bytes(SKIPPED + first + other + second + SKIPPED)
        assert [record.data for record in opened(path, "x").records()] == [{"a": 1}, {"a": 2}]
        path.write_bytes((SKIPPED + first)[:-3])
        with pytest.raises(AgacError, match="the file is cut off: its compressed data has no end"):
            list(opened(path, "x").records())


@pytest.mark.parametrize("bits", [27, 28, 31])
def test_a_window_that_takes_too_much_memory_is_said_with_its_option(tmp_path: Path, bits: int) -> None:
    how = zstandard.ZstdCompressionParameters.from_level(3, window_log=bits)
    packer = zstandard.ZstdCompressor(compression_params=how).compressobj()
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"a": 1}\n') + packer.compress(b'{"a": 2}\n') + packer.flush())
    if bits == 27:
        assert [record.data for record in opened(path, "x").records()] == [{"a": 1}, {"a": 2}]
        return
    with pytest.raises(AgacError) as caught:
        list(opened(path, "x").records())
    needed = f"unpacking it needs {1 << (bits - 20):,} MiB of memory, and agac gives it 128"
    assert caught.value.message == f"x: it was compressed with `zstd --long={bits}`; {needed}"
    assert (
        caught.value.remedy == f"Unpack it first (zstd -d --long={bits}), or compress it again with at most --long=27."
    )


@pytest.mark.parametrize(("program", "pack"), [("bzip2", bz2.compress), ("xz", lzma.compress)])
def test_what_another_program_compressed_is_said_to_be_that(tmp_path: Path, program: str, pack: Pack) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(pack(b'{"a": 1}\n'))
    with pytest.raises(UsageError, match=f"x: it is compressed by {program}, which agac does not read"):
        opened(path, "x")


def test_a_frame_that_needs_a_dictionary_is_not_called_damaged(tmp_path: Path) -> None:
    words = [f"{number}, and word {number} of a text\n".encode() for number in range(300)]
    dictionary = zstandard.train_dictionary(1024, words)
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor(dict_data=dictionary).compress(b'{"a": 1}\n'))
    with pytest.raises(AgacError, match=f"x: it was compressed with a dictionary, number {dictionary.dict_id()}"):
        list(opened(path, "x").records())


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
