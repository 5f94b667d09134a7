"""What json and jsonl files do that no other format can: values that no later part could keep, torn files, shapes."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign
from support.sources import opened

from agac.core.errors import ErrorType, UsageError
from agac.data import files as lines
from agac.data import json_formats
from agac.data.files import Record
from agac.data.sources import read_rows


def read(folder: Path, content: bytes | str, suffix: str) -> list[Record]:
    path = folder / f"rows.{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(opened(path).records())


def problem(record: Record, kind: ErrorType = ErrorType.INVALID_ROW) -> str:
    assert record.data is None
    assert record.error is not None
    assert record.error.type is kind
    return record.error.message


UNUSABLE = [
    ('{"a": NaN}', "NaN is not a JSON value; write null or a string"),
    ('{"a": [1, -Infinity]}', "-Infinity is not a JSON value; write null or a string"),
    ('{"a": 1e999}', "the number 1e999 is too large; write null or a string"),
    ('{"a": ' + "9" * 5000 + "}", "an integer has more than 4300 digits; write it as a string"),
    ('{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" stands twice in one object; keep one of them'),
    ('{"a": {"b": ["x", "\\ud800"]}}', 'the field "a.b[1]" holds half of a surrogate pair'),
    ('{"\\udfff": 1}', "a key holds half of a surrogate pair"),
    ('{"a": {"\\uDC00": 1}}', 'a key of "a" holds half of a surrogate pair'),
    ('{"a": ' + "[" * 250 + "]" * 250 + "}", "the value is nested deeper than 200 levels"),
    ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "the value is nested deeper than 200 levels"),
]


@pytest.mark.parametrize(("text", "words"), UNUSABLE, ids=[words[:30] for _, words in UNUSABLE])
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_value_that_cannot_be_kept_costs_its_own_row_only(tmp_path: Path, suffix: str, text: str, words: str) -> None:
    good = '{"good": "\\ud83e\\udd8a \\u0000"}'
    content = f"[{good},\n{text},\n{good}]" if suffix == "json" else f"{good}\n{text}\n{good}"
    records = read(tmp_path, content, suffix)
    assert [record.data for record in records] == [{"good": "🦊 \0"}, None, {"good": "🦊 \0"}]
    assert problem(records[1]).startswith(f"rows.{suffix}:2: {words}")


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_what_is_no_object_is_refused_by_its_kind(tmp_path: Path, suffix: str) -> None:
    texts = {
        "[1]": "a list", "1.5": "a number", "12": "a number", '"x"': "a string", "true": "a boolean", "null": "null",
        '{"i": 1, "f": 1.0, "big": 123456789012345678901234567890, "small": 5e-324, "zero": -0.0}': "",
    }  # fmt: skip
    *refused, good = read(tmp_path, f"[{','.join(texts)}]" if suffix == "json" else "\n".join(texts), suffix)
    what = "element" if suffix == "json" else "line"
    for record, kind in zip(refused, texts.values(), strict=False):
        assert problem(record).startswith(f"rows.{suffix}:{record.line}: the {what} is {kind}, not an object")
    assert json.dumps(good.data) == list(texts)[-1]  # numbers keep their kind and size


def test_integer_ids_become_strings_and_others_fail_the_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    values = ["7", "123456789012345678901", '"x"', "1.0", "true", "null", "[]", "{}", '""']
    path.write_text("".join(f'{{"id": {value}}}\n' for value in values) + '{"review_id": 1}\n')
    rows = list(read_rows(opened(path, "rows.jsonl"), "id"))
    assert [row.id for row in rows] == ["7", "123456789012345678901", "x", 4, 5, 6, 7, 8, 9, 10]
    assert [row.error.message.partition(";")[0] for row in rows if row.error] == [
        'rows.jsonl:4: the id field "id" is a number', 'rows.jsonl:5: the id field "id" is a boolean',
        'rows.jsonl:6: the id field "id" is null', 'rows.jsonl:7: the id field "id" is a list',
        'rows.jsonl:8: the id field "id" is an object', 'rows.jsonl:9: the id field "id" is empty',
        'rows.jsonl:10: the id field "id" is missing',
    ]  # fmt: skip
    assert {row.error.type for row in rows if row.error} == {ErrorType.MISSING_ID_FIELD}
    (*_, last) = read_rows(opened(path), "reveiw_id")
    assert last.error is not None
    assert last.error.message == 'rows.jsonl:10: the id field "reveiw_id" is missing; did you mean "review_id"?'


# json lines


def test_a_line_that_is_no_json_says_where_it_stops_being_so(tmp_path: Path) -> None:
    records = read(tmp_path, '{"a": 1}\n\n{"a": 1,}\n{"a": 2}\n', "jsonl")
    assert problem(records[1], ErrorType.INVALID_JSON).startswith("rows.jsonl:3: not valid JSON: ")
    assert problem(records[1], ErrorType.INVALID_JSON).endswith("; write one object a line")
    assert records[2] == Record(3, {"a": 2}, None, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": 1}\n{"a": "to', "the file ends inside this line"),
        ('{"a": 1}\n{"a": 1}\r{"a": 2}', "end lines with LF, not CR alone"),
        ('{"a": 1}\n{"a": 1}{"a": 2}\n', "write one object a line"),
        ('{"a": 1}\n\0\0\0\0', "the file ends inside this line"),
        ('{"a": 1}\n[{"a": 1}]\n', "if the file is one JSON array, set format: json"),
    ],
)
def test_a_common_mistake_in_json_lines_is_named(tmp_path: Path, content: str, words: str) -> None:
    records = read(tmp_path, content, "jsonl")
    assert records[0].data == {"a": 1}
    assert records[1].error is not None
    assert records[1].error.message.endswith(words)


def test_a_line_beyond_the_bound_costs_one_row_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"a": 1}\n'
    monkeypatch.setattr(lines, "MAX_RECORD_BYTES", len(line))
    long = json.dumps({"a": "x" * 5000})
    records = read(tmp_path, f"{line}{long}\n{line}{long}", "jsonl")
    assert [record.data for record in records] == [{"a": 1}, None, {"a": 1}, None]
    assert problem(records[3]) == f"rows.jsonl:4: the line is longer than {len(line)} bytes"


# json


def test_a_file_may_hold_one_row_or_none(tmp_path: Path) -> None:
    assert read(tmp_path, '\n {"a": [1]}\n', "json") == [Record(1, {"a": [1]}, None, 2)]
    assert read(tmp_path, " [ ] \n", "json") == []
    assert read(tmp_path, "", "jsonl") == read(tmp_path, b"\xef\xbb\xbf", "jsonl") == []


@pytest.mark.parametrize("content", ["", " \n\t ", b"\xef\xbb\xbf", "12", '"x"', "null", "id,text\n", b"\xff{}"])
def test_a_json_file_that_is_no_array_and_no_object_is_refused(tmp_path: Path, content: bytes | str) -> None:
    with pytest.raises(UsageError, match=r"rows\.json: (is empty|holds neither a JSON array nor an object)") as caught:
        read(tmp_path, content, "json")
    empty = not str(content).strip() or content == b"\xef\xbb\xbf"
    assert caught.value.remedy == ("Write [] for no rows." if empty else "Write an array of objects.")


def test_json_lines_under_the_name_of_json_get_the_remedy(tmp_path: Path) -> None:
    records = read(tmp_path, '{"a": 1}\n{"a": 2}\n', "json")
    assert records[0].data == {"a": 1}
    assert problem(records[1], ErrorType.INVALID_JSON) == (
        "rows.json:2: text follows after the end of the object; it is not read; for one object a line set format: jsonl"
    )
    assert len(records) == 2


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("", "the file ends inside the array; its closing bracket is missing"),
        (",", "the file ends inside the array; its closing bracket is missing"),
        (', {"a": "x', 'the file ends inside the element that begins on line 2 with "{"; nothing after it can be read'),
        (', "x\\', 'the file ends inside the element that begins on line 2 with "\\""; nothing after it can be read'),
        (",]", "a comma stands before the closing bracket"),
        (' {"a": 2}]', 'expected a comma or the closing bracket, found "{"; nothing after it can be read'),
        ("] x", "text follows after the end of the array; it is not read"),
        (', {"a" 2}]', "not valid JSON: Expecting ':' delimiter (line 2, 6 characters into the element)"),
        (", tru", "not valid JSON: Expecting value (line 2, 1 characters into the element)"),
        (', {"a": 2}}]', 'expected a comma or the closing bracket, found "}"; nothing after it can be read'),
    ],
)
def test_a_broken_array_gives_the_good_rows_then_one_that_says_where(tmp_path: Path, tail: str, words: str) -> None:
    *good, broken = read(tmp_path, '[\n{"a": 1}' + tail, "json")
    assert good[0].data == {"a": 1}
    assert all(record.error is None for record in good)
    assert problem(broken, ErrorType.INVALID_JSON) == f"rows.json:2: {words}"


def test_an_element_that_is_no_json_but_ends_where_it_should_does_not_cost_the_others(tmp_path: Path) -> None:
    records = read(tmp_path, '[{"a": 1},\n{"a": 2,},\n{"a": True},\n{"a": 4}]', "json")
    assert [record.data for record in records] == [{"a": 1}, None, None, {"a": 4}]
    assert problem(records[2], ErrorType.INVALID_JSON).startswith(
        "rows.json:3: not valid JSON: Expecting value (line 3"
    )


def test_an_array_cut_anywhere_gives_its_whole_rows_and_one_error(tmp_path: Path) -> None:
    rows = [{"id": 1, "t": "a]},{"}, {"id": 2, "t": "ü🦊\\"}, {"id": 3, "t": {"x": [1, 2]}}]
    content = json.dumps(rows, ensure_ascii=False).encode()
    for length in range(1, len(content)):
        *good, broken = read(tmp_path, content[:length], "json")
        assert [record.data for record in good] == rows[: len(good)]
        assert broken.error is not None, length
        assert broken.error.message.startswith("rows.json:1: ")
    assert len(good) == 3


def test_an_element_beyond_the_bound_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_formats, "MAX_RECORD_BYTES", 5000)
    monkeypatch.setattr(json_formats, "CHUNK", 1000)
    for long in ('"' + "x" * 20_000, "1" * 20_000, "[" + "[]," * 20_000):
        records = read(tmp_path, f'[{{"a": 1}}, {{"b": 2}}, {long}', "json")
        assert [record.data for record in records] == [{"a": 1}, {"b": 2}, None]
        assert "there are more than 5000 characters in the element" in problem(records[2], ErrorType.INVALID_JSON)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**63, max_value=2**90)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
row_lists = st.lists(st.dictionaries(keys, values, max_size=5), max_size=8)


@given(row_lists, st.booleans(), st.sampled_from([None, 1]), st.integers(min_value=1, max_value=40))
@campaign(test=40, soak=1000)
def test_rows_are_read_as_they_were_written_however_the_pieces_of_an_array_fall(
    rows: list[dict[str, Any]], ascii_only: bool, indent: int | None, chunk: int
) -> None:
    elements = [json.dumps(row, ensure_ascii=ascii_only, indent=indent) for row in rows]
    begins = [2 + sum(element.count("\n") + 1 for element in elements[:place]) for place in range(len(rows))]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_formats, "CHUNK", chunk)
        patch.setattr(json_formats, "MAX_CHUNK", chunk)
        records = read(Path(folder), "[\n" + ",\n".join(elements) + "]", "json")
        for newline in ("\n", "\r\n"):
            content = "".join(json.dumps(row, ensure_ascii=ascii_only) + newline for row in rows)
            assert [record.data for record in read(Path(folder), content, "jsonl")] == rows
    assert [record.data for record in records] == rows
    assert [record.line for record in records] == begins
