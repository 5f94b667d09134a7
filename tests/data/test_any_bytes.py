"""Whatever a file holds, reading it ends, drops nothing, and says file and line."""

import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.core.errors import UsageError
from agac.data import json_formats
from agac.data.files import Source
from agac.data.sources import FORMATS, open_source, read_rows
from agac.spec.data_specs import InputFormat

CORPUS = [
    b'id,text\n1,"a"\n2,"b\nc"\n3,d\n',
    b"id\ttext\n1\ta\n2\tb\n",
    b'[{"id": 1, "t": "a"}, {"id": 2, "t": [1, {"x": null}]}]',
    b'{"id": 1}\n{"id": "\\ud83e\\udd8a"}\n',
    b'\xef\xbb\xbf[{"id": NaN}, {"id": 1, "id": 2}, {"id": "\\ud800"}, 1e999]',
    '[{"ü": "🦊\u2028\x00"}]'.encode(),
    b"\x00" * 40,
    b"\xff\xfe\x00",
    b'"' * 33,
    b"[" * 3000,
    b"\r\r\n\n\r,,,\r",
    b"{}{}{}",
    b"[{},,{}]",
    b"[\\]",
]


def usable(path: Path, name: InputFormat) -> Source | None:
    """The source, or None when the file is refused as a whole, with words."""
    try:
        return open_source(path, name, "rows")
    except UsageError as refusal:
        told = refusal
    assert told.message.startswith("rows:")
    assert told.remedy
    return None


def check(content: bytes, name: InputFormat) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.write_bytes(content)
        source = usable(path, name)
        if source is None:
            return
        records = list(source.records())
        rows = list(read_rows(source, None))
    assert [record.ordinal for record in records] == list(range(1, len(records) + 1))
    assert [row.ordinal for row in rows] == [record.ordinal for record in records]
    for record in records:
        known = [None, {"line_number": record.line}] if name == "txt" else [None]
        assert (record.data in known) == (record.error is not None)
        assert record.line is not None
        assert 1 <= record.line <= content.count(b"\n") + content.count(b"\r") + 1
        if record.error is not None:
            assert re.match(rf"rows:{record.line}: .", record.error.message)
            record.error.message.encode()


TEXTS = sorted(FORMATS.keys() - {"parquet", "xlsx"})
"""Those are read by libraries, whole or not at all: tests/data/test_parquet.py, test_xlsx.py."""


@pytest.mark.parametrize("name", TEXTS)
def test_broken_and_mutilated_files_are_accounted_for(name: InputFormat) -> None:
    for broken in CORPUS:
        check(broken, name)
    generator = random.Random(7)
    for _ in range(400):
        content = bytearray(generator.choice(CORPUS))
        for _ in range(generator.randint(1, 4)):
            place = generator.randrange(len(content) + 1)
            content[place : place + generator.randint(0, 2)] = generator.choice(
                [b"", b'"', b"\\", b"\n", b"\r", b",", b"{", b"]", b"\xff", b"\x00", b"\xc3", b"[", b"}"]
            )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_formats, "CHUNK", generator.choice([1, 3, 1000]))
            check(bytes(content), name)


@given(st.binary(max_size=200), st.sampled_from(TEXTS))
@campaign(test=100, soak=5000)
def test_any_bytes_are_accounted_for(content: bytes, name: InputFormat) -> None:
    check(content, name)
