"""The functions and operators of CEL that guards can use, held against the language's definition: texts that are not
ASCII, numbers at their bounds, times with an offset, elements that fail."""

from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import Where
from agac.core.types import Schema
from agac.spec.cel import CelProgram, parse
from agac.spec.field_shapes import integers_of
from agac.spec.guards import Evaluator, GuardFailed, compile_guard
from agac.spec.tool_stubs import stub_answer

PLACE = Where("workflows/w.yml")
ROW: dict[str, Any] = {
    "t": "äöü", "emoji": "😀x", "combined": "e\u0301", "long": "ä" * 70_000, "empty": "", "n": 2,
    "half": 2.5, "flag": True,
    "xs": ["ä", 1, None, ["öö"]], "texts": ["a", "ää", "日本語"], "ns": ["one", 3], "o": {"ä": 1, "ö": 2},
    "nothing": None,
    "big": 2**63 - 1, "small": -(2**63),
}  # fmt: skip

AS_DEFINED: list[tuple[str, Any]] = [
    # size: code points of a text, elements of a list, fields of an object
    ("size(t)", 3), ("t.size()", 3), ("size(emoji)", 2), ("size(combined)", 2), ("size(long)", 70_000),
    ("size(empty)", 0), ('"äöü".size()', 3), ("size(xs)", 4), ("size(o)", 2), ("size([t, t])", 2), ("size({})", 0),
    ("size(xs[0])", 1), ("size(xs[3])", 1), ("size(xs[3][0])", 2), ("size(t + emoji)", 5), ("size([t][0])", 3),
    ("size(texts.filter(x, size(x) > 1))", 2), ("texts.map(x, size(x))", [1, 2, 3]), ("size(string(size(long)))", 5),
    ('size(o["ä"] == 1 ? t : empty)', 3), ("texts.exists_one(x, x.size() == 3)", True),
    ("size( t // all\n )", 3), ("size(bytes(t))", 6), ("size(r'\\ä')", 2),
    # texts
    ('t.contains("ö")', True), ('t.contains("")', True), ('t.startsWith("ä")', True), ('t.endsWith("ü")', True),
    ('emoji.startsWith("😀")', True), ('"é".contains(combined)', False), ('t.matches("^...$")', True),
    ('t.matches("ö")', True), ('"ÄB".matches("(?i)^äb$")', True), ('"a\\nb".matches("a.b")', False),
    ('"a\\nb".matches("(?s)a.b")', True), ('"a\\nb".matches("^b")', False), ('"x\\n".matches("^x$")', False),
    ('"ä" > "z"', True), ('"😀" > "\\uffff"', True), ('t + emoji == "äöü😀x"', True),
    # string
    ("string(1)", "1"), ("string(0.1)", "0.1"), ("string(t)", "äöü"), ("string(flag)", "true"),
    ("string(!flag)", "false"), ("string(big)", "9223372036854775807"), ("string(xs.exists(x, x == 1))", "true"),
    ('string(timestamp("2026-01-31T12:00:00Z"))', "2026-01-31T12:00:00Z"),
    ('string(timestamp("2026-01-31T12:00:00.500+01:00"))', "2026-01-31T11:00:00.5Z"),
    ('string(duration("1h30m"))', "5400s"), ('string(duration("-1500ms"))', "-1.5s"),
    ('string(duration("1us"))', "0.000001s"), ('string(duration("0s"))', "0s"),
    ('string(flag) + string(n) + string(duration("1m"))', "true260s"),
    # int, uint, double
    ('int("-5")', -5), ('int("9223372036854775807")', 2**63 - 1), ('int("-9223372036854775808")', -(2**63)),
    ("int(1.9)", 1), ("int(-1.9)", -1), ('double("1e3")', 1000.0), ('double("-0.5")', -0.5),
    ("-9223372036854775808 == small", True), ("big > -9223372036854775808", True),
    ("7 / 2", 3), ("-7 / 2", -3), ("-7 % 3", -1), ("1.0 / 0.0 > 1e300", True), ("n == 2.0", True), ("n < half", True),
    ("n in [2.0]", True), ("double(n) + 0.5 == half", True), ('n == "2"', False), ("[1, 2] == [1.0, 2.0]", True),
    # times
    ('timestamp("2026-01-31T12:00:00+02:00").getHours()', 10), ('timestamp("2026-01-31T12:00:00Z").getHours()', 12),
    ('timestamp("2026-01-01T00:30:00+01:00").getFullYear()', 2025), ('timestamp("2026-01-31T12:00:00Z").getMonth()', 0),
    ('timestamp("2026-01-31T12:00:00Z").getDate()', 31), ('timestamp("2026-01-31T12:00:00Z").getDayOfMonth()', 30),
    ('timestamp("2026-02-01T12:00:00Z").getDayOfWeek()', 0), ('timestamp("2026-01-31T12:00:00Z").getDayOfYear()', 30),
    ('timestamp("2026-01-31T12:00:00.25-00:30").getMilliseconds()', 250),
    ('timestamp("2026-01-31T12:00:00+02:00") == timestamp("2026-01-31T10:00:00Z")', True),
    ('timestamp("2026-01-31T12:00:00Z") - timestamp("2026-01-31T10:00:00Z") == duration("2h")', True),
    ('timestamp("2026-01-31T12:00:00.000000001+01:00") > timestamp("2026-01-31T11:00:00Z")', True),
    ('duration("1h30m").getMinutes()', 90), ('duration("1h30m").getSeconds()', 5400), ('duration("90m").getHours()', 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), AS_DEFINED, ids=[text for text, _ in AS_DEFINED])
def test_an_expression_comes_to_what_cel_says(text: str, value: Any) -> None:
    found = CelProgram(text).execute(ROW)
    assert (found, type(found)) == (value, type(value))


FAILING = [
    'int("12.0")', 'int(" 12")', 'int("٣")', 'int("")', 'int("9223372036854775808")', "int(1e19)", "uint(-1)",
    'double("1,5")', 'double("")', "big + 1", "1 / 0", "n + half", "7.0 % 2.0", "string(nothing)", "string(xs)",
    "size(n)",
    "size(nothing)", 'timestamp("2026-01-31")', 'timestamp("2026-01-31T12:00:00")',
    'timestamp("2026-02-30T00:00:00+01:00")', "timestamp(n)",
    'duration("1d")', 'duration("90")', '"x" in t', "t[0]", "xs[-1]",
]  # fmt: skip


@pytest.mark.parametrize("text", FAILING)
def test_an_expression_fails_where_cel_says_so_with_a_sentence(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    guard, _ = compile_guard(f"({text}) == 1", PLACE)
    assert guard is not None
    with pytest.raises(GuardFailed) as failed:
        Evaluator(guard).test(ROW)
    assert "agac_" not in str(failed.value)
    assert capfd.readouterr() == ("", "")


OTHERWISE: list[tuple[str, Any]] = [
    ('"٣".matches("^\\\\d$")', True), ('t.matches("^\\\\w+$")', True), ("string(1.0)", "1"),
    ("string(1e21)", "1" + "0" * 21),
    ("9007199254740993 == 9007199254740992.0", True),
]  # fmt: skip
"""Where the library differs from CEL still: docs/guide/guards.md says so."""


@pytest.mark.parametrize(("text", "value"), OTHERWISE, ids=[text for text, _ in OTHERWISE])
def test_what_the_guide_says_to_differ_differs(text: str, value: Any) -> None:
    assert CelProgram(text).execute(ROW) == value


ELEMENTS: list[tuple[str, bool]] = [
    ("ns.exists(x, x > 2)", True), ("ns.all(x, x > 5)", False), ("ns.exists(x, x == 3)", True),
    ("!ns.exists(x, x > 2)", False), ("flag && ns.exists(x, x > 2)", True), ("ns.exists(x, x > 2) || ns[0] > 1", True),
    ("ns.exists(x, x > 9) || flag", True), ("ns.all(x, x > 2) && !flag", False), ("ns[0] > 1 || flag", True),
    ("[ns, ns].all(y, y.exists(x, x > 2))", True), ("texts.exists(x, size(x) == 3 && ns.exists(y, y > 2))", True),
    ("o.exists(k, k > 1 || o[k] == 2)", True), ("ns.exists(x, x > 2) ? flag : !flag", True),
    ("flag ? ns.all(x, x > 5) : flag", False), ("ns.exists(x, x > 2) == flag", True),
    ("[ns.exists(x, x > 2)][0]", True),
    ('string(ns.all(x, x > 5)) == "false"', True), ("(ns.exists(x, x > 2) && !flag) != flag", True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "holds"), ELEMENTS, ids=[text for text, _ in ELEMENTS])
def test_an_element_that_fails_counts_only_where_no_other_one_decides(text: str, holds: bool) -> None:
    guard, _ = compile_guard(text, PLACE)
    assert guard is not None
    assert Evaluator(guard).test(ROW) is holds


@pytest.mark.parametrize("text", ["ns.exists(x, x > 9)", "ns.all(x, x > 2)", "ns.exists_one(x, x > 2)"])
def test_an_element_that_fails_is_said_where_no_other_one_decides(text: str) -> None:
    guard, _ = compile_guard(text, PLACE)
    assert guard is not None
    with pytest.raises(GuardFailed, match="`x > "):
        Evaluator(guard).test(ROW)


def test_integers_of_a_stored_result_are_whole_numbers() -> None:
    body = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}
    integers = integers_of({"s": Schema("s", body), "t": None}, ["s", "t", "row"])
    for text, holds in (("s.n % 2 == 0", True), ("s.n + 1 > 5 || t.n == 1.0", True), ("s.n == 2.0", True)):
        guard, _ = compile_guard(text, PLACE)
        assert guard is not None
        assert Evaluator(guard, integers=integers).test({"s": {"n": 2.0, "x": 2.0}, "t": {"n": 1.0}}) is holds
    guard, _ = compile_guard("s.x % 2 == 0", PLACE)
    assert guard is not None
    with pytest.raises(GuardFailed, match="write `int"):
        Evaluator(guard, integers=integers).test({"s": {"n": 2.0, "x": 2.0}})


def test_stubs_of_tools_count_characters_too(tmp_path: Path) -> None:
    assert stub_answer({"cel": "size(args.city) == 4"}, "weather", {"city": "Köln"}, tmp_path).text == "true"


@pytest.mark.parametrize("text", [text for text, _ in AS_DEFINED])
def test_the_parts_of_an_expression_lie_side_by_side(text: str) -> None:
    for node in parse(text).walk():
        places = [node.start, *(place for part in node.parts for place in (part.start, part.end)), node.end]
        assert places == sorted(places)
