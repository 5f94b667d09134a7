"""Strict YAML: what is read, what is refused, and where the finger points."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import UsageError
from agac.spec.yaml import LOADER, MAX_DEPTH, Document, parse_yaml, read_yaml, yaml_text

LOADERS = [pytest.param(LOADER, id="libyaml"), pytest.param(yaml.SafeLoader, id="pure")]


def words(document: Document) -> list[str]:
    return [str(problem) for problem in document.problems]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"), ("true", True), ("False", False),
        ("'true'", "true"), ("1e-3", 0.001), ("1E5", 100000.0), (".5", 0.5), ("-3", -3), ("+3", 3), ("0", 0),
        ("0o14", 12), ("0x1f", 31), ("'012'", "012"), ("1_000", "1_000"), ("0b11", "0b11"), ("1:30", "1:30"),
        ("12:30:45", "12:30:45"), ("2024-01-31", "2024-01-31"), ("2024-01-31T10:00:00Z", "2024-01-31T10:00:00Z"),
        ("1.2.3", "1.2.3"), ("~", None), ("null", None), ("", None), ("'~'", "~"), ("=", "="), ("nope", "nope"),
        ("- x", ["x"]), ("é 中 😀", "é 中 😀"),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(loader: type, text: str, value: object) -> None:
    document = parse_yaml(
        f"a: {text}\n" if not text.startswith("-") or text == "-3" else f"a:\n  {text}\n", "f", loader=loader
    )
    assert words(document) == []
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


@pytest.mark.parametrize("loader", LOADERS)
def test_keys_are_the_text_that_was_written_and_mistakes_of_one_file_come_together(loader: type) -> None:
    for key in ("on", "yes", "1", "true", "null", "2024-01-01", "1.5"):
        assert parse_yaml(f"{key}: x\n", "f", loader=loader).data == {key: "x"}
    document = parse_yaml("a: 012\nb: !x 1\nc: 1\nc: 2\nd: .nan\n", "f", loader=loader)
    assert [problem.where.line for problem in document.problems] == [1, 2, 4, 5]


def test_an_unknown_escape_in_quotes_says_what_to_write() -> None:
    [problem] = parse_yaml('a: "\\d"\n', "f").problems
    assert str(problem).startswith("f:1:5: unknown escape in double quotes; write \\\\ for a backslash, or use single")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_empty_and_no_mistake(text: str) -> None:
    document = parse_yaml(text, "f")
    assert (document.empty, document.data, document.problems) == (True, None, [])
    assert not parse_yaml("null\n", "f").empty


def test_anchors_and_aliases_give_equal_values() -> None:
    document = parse_yaml("a: &x {k: [1, 2]}\nb: *x\nc: [*x, *x]\n", "f")
    assert words(document) == []
    assert document.data == {"a": {"k": [1, 2]}, "b": {"k": [1, 2]}, "c": [{"k": [1, 2]}] * 2}


def test_deep_nesting_and_aliases_of_aliases_are_refused_before_they_expand() -> None:
    for opener in ("[", "{a: "):
        assert f"nested more than {MAX_DEPTH} levels deep" in words(parse_yaml(opener * 5000, "f"))[0]
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(15)]
    [problem] = parse_yaml("\n".join(lines), "f").problems
    assert problem.message == "aliases expand to more than 100,000 values; write the content out"
    assert problem.where.line == 6
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n"  # a long text counts by its length
    assert "aliases expand" in words(parse_yaml(text, "f"))[0]


def test_a_byte_order_mark_and_windows_lines_read_like_any_file(tmp_path: Path) -> None:
    file = tmp_path / "f.yml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\nb2: 3\r\n")
    document = read_yaml(file, "f.yml", tmp_path)
    assert words(document) == []
    assert document.data == {"a": 1, "b": "x\ny\n", "b2": 3}
    assert str(document.where(("b2",), key=True)) == "f.yml:5:1"


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda file: file.write_bytes("a: 1\nbé: ".encode() + b"\xff\n"),
         "f.yml:2:5: byte 0xff is not valid UTF-8; save the file as UTF-8"),
        (lambda file: file.write_text("a: 1\n", "utf-16"), "f.yml:1:1: this is UTF-16; save the file as UTF-8"),
        (lambda file: (file.touch(), os.truncate(file, 100_000_000)),
         "f.yml: 100,000,000 bytes are more than the 5,000,000 that are read; put data into an input file"),
        (os.mkfifo, "f.yml: is a named pipe, not a file; put a regular file in its place"),  # and nobody waits for it
        (lambda file: None, "f.yml: cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_file_is_refused(prepare: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    prepare(tmp_path / "f.yml")
    assert words(read_yaml(tmp_path / "f.yml", "f.yml", tmp_path)) == [said]


def test_places_of_keys_values_and_missing_things() -> None:
    document = parse_yaml("stages:\n  - name: a\n    prompt: x\n  - name: b\n", "w.yml")
    paths = [("stages", 0, "prompt"), ("stages", 1), ("stages", 1, "model"), ("nothing", "here")]
    assert [str(document.where(path)) for path in paths] == ["w.yml:3:13", "w.yml:4:5", "w.yml:4:5", "w.yml:1:1"]
    assert str(document.where(("stages", 0, "prompt"), key=True)) == "w.yml:3:5"
    document = parse_yaml("a: 1\na: 2\n", "card.md", first_line=2)  # lines of front matter are those of its file
    assert words(document) == ["card.md:3:1: a: duplicate key, first given on line 2; keep one of them"]


# libyaml keeps YAML 1.1's idea of what breaks a line, so these are refused
_text = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029\ufffe\uffff"))
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text.filter(bool), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(_text.filter(bool), _values, max_size=5))
def test_json_is_read_as_what_it_means(data: dict[str, object]) -> None:
    document = parse_yaml(json.dumps(data, ensure_ascii=False), "f")
    assert words(document) == []
    assert document.data == data


_any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=60) | st.sampled_from([
    "1e3", "08", "0o17", "0x1F", "1.5e3", ".inf", "~", "yes", "2024-01-01", "<<", "- x", "a: b", "# c",
    "x" * 200 + " y" * 100, "a\x85b", "a\u2028b", "a\u2029b", " a \n b", "a\n\n", "\n", "\r\n", "\ufeff",
    "\x00", "---", "...", "%x", "\tx",
])  # fmt: skip


@given(st.dictionaries(_any_text.filter(bool), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_any_text.filter(bool), inner, max_size=4),
    max_leaves=12,
), max_size=4))  # fmt: skip
def test_what_is_written_as_yaml_is_read_as_the_same(data: dict[str, Any]) -> None:
    assert parse_yaml(yaml_text(data), "f").data == data


@pytest.mark.parametrize("data", [{"a": "\ud800"}, {"": 1}, {"a": float("nan")}, {"a": 10**500}])
def test_what_no_yaml_file_can_hold_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="this cannot be written as YAML: "):
        yaml_text(data)


@given(st.text())
def test_no_text_makes_the_reader_raise(text: str) -> None:
    document = parse_yaml(text, "f")
    for problem in document.problems:
        assert problem.where.line is not None
        assert problem.message
