"""Guards: what can be read, what is asked for, what is wrong at load, and what a row makes of it."""

import datetime as dt
from decimal import Decimal
from typing import Any

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.core.errors import Where
from agac.spec.cel import CelProgram, Chain, parse, shown
from agac.spec.field_shapes import TEXT
from agac.spec.guard_checks import GuardScope
from agac.spec.guard_cost import MAX_STEPS, CostMeter, TooManySteps, pattern_size, plain_room, weight_of
from agac.spec.guard_text import FUNCTIONS, MAX_LENGTH
from agac.spec.guards import FAILURES, STORED, Evaluator, Guard, GuardFailed, compile_guard

PLACE = Where("workflows/w.yml", 7, 11, "stages[1].when")


def guard_of(text: str) -> Guard:
    guard, problems = compile_guard(text, PLACE)
    assert guard is not None, [problem.message for problem in problems]
    assert not problems
    return guard


def refused(text: str) -> list[str]:
    guard, problems = compile_guard(text, PLACE)
    assert guard is None
    assert all((one.where, one.severity) == (PLACE, "error") for one in problems)
    assert all("\n" not in one.message and "<input>" not in one.message for one in problems)
    return [problem.message for problem in problems]


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ('classify.sentiment == "negative"', ["classify.sentiment"]),
        ('row["odd name"] == "x" && row.plain == 1', ['row["odd name"]', "row.plain"]),
        ("x.items[0].name == x.items[i].name", ["x.items[0].name", "x.items", "i"]),
        ("has(x.y) && !has(x.y.z)", ["x.y", "x.y.z"]),
        ("size(x) > 0 && x.startsWith(y.z)", ["x", "y.z"]),
        ("xs.all(x, x.ok && x.n > low)", ["xs", "low"]),
        ("x.exists(x, x > 1) || x == 2", ["x"]),
        ("xs.filter(x, x.ys.exists(y, y == x.n && z)).size() > 1", ["xs", "z"]),
        ("xs.map(x, x > a, x + b) == c", ["xs", "a", "b", "c"]),
        ('\'a.b\' == "c == d" || r\'\\\' == """e\n"f" """ // g == h', []),
        ("a ? b : c ? {k: v} == m : [e] == l", ["a", "b", "c", "k", "v", "m", "e", "l"]),
        ("type(a) == string || type(a) in [int, double]", ["a"]),
        ("((a)).b == -c.d", ["a.b", "c.d"]),
        ("a . b [ 'c' ] == 1", ["a.b.c"]),
        (r'row["\u00e9\n"] == 1', ['row["é\\n"]']),
        ("a[-1] == 1", ["a"]),
        ("row.type == 1 && a.for == 2", ["row.type", "a.for"]),
        ('a["in"] == a["null"]', ['a["in"]', 'a["null"]']),
        ("true", []),
    ],
)
def test_a_guard_knows_what_it_reads(text: str, ways: list[str]) -> None:
    guard = guard_of(text)
    assert [shown(chain) for chain in guard.chains] == ways
    assert guard.names == tuple(dict.fromkeys(chain[0] for chain in guard.chains))
    assert (guard.text, guard.where) == (text, PLACE)


_NAMES = st.sampled_from(["a", "b", "classify", "row", "i", "_x1"])
_FIELDS = st.sampled_from(["sentiment", "for", "x", "size", "b"])
_KEYS = st.sampled_from(["odd name", 'quo"te', "a.b", "==", "é", "\\", "// no", "\n"])
_BOUND = st.sampled_from(["p", "q"])
Made = tuple[str, frozenset[Chain], frozenset[str]]
"""Text, what it reads, names that its macros bind."""


def _quoted(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@st.composite
def _ways(draw: st.DrawFn, bound: tuple[str, ...]) -> Made:
    name = draw(st.sampled_from(bound)) if bound and draw(st.booleans()) else draw(_NAMES)
    text, chain = name, [name]
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["field", "key", "index"]))
        part: str | int
        if kind == "field":
            part = draw(_FIELDS)
            text += draw(st.sampled_from([".", " . "])) + str(part)
        else:
            part = draw(_KEYS) if kind == "key" else draw(st.integers(0, 9))
            text += f"[{_quoted(part) if isinstance(part, str) else part}]"
        chain.append(part)
    return text, frozenset() if name in bound else frozenset({tuple(chain)}), frozenset()


_LITERALS = st.sampled_from(
    ["1", "-2", "1.5", "0x1F", "3u", ".5", "1e3", "true", "null", '"a && b"', "'it\\'s'", "r'\\d'", '"""x"y"""', "b'z'"]
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3, bound: tuple[str, ...] = ()) -> Made:
    def inner(names: tuple[str, ...] = bound) -> Made:
        return draw(expressions(depth - 1, names))

    kind = draw(
        st.sampled_from(["way", "literal", "has", "two", "one", "if", "call", "method", "macro", "list", "map"])
    )
    if depth == 0 or kind == "way":
        return draw(_ways(bound))
    if kind == "literal":
        return draw(_LITERALS), frozenset(), frozenset()
    if kind == "has":
        text, chains, _ = draw(_ways(bound))
        field = draw(_FIELDS)
        return f"has({text}.{field})", frozenset((*chain, field) for chain in chains), frozenset()
    if kind == "macro":
        (over, left, under), name = inner(), draw(_BOUND)
        body, right, more = inner((*bound, name))
        macro = draw(st.sampled_from(["all", "exists", "exists_one", "map", "filter"]))
        return f"({over}).{macro}({name}, {body})", left | right, under | more | {name}
    parts = [inner() for _ in range({"one": 1, "method": 2, "call": 1, "if": 3}.get(kind, 2))]
    texts = [f"({text})" if kind != "list" else text for text, _, _ in parts]
    sign = draw(st.sampled_from(["&&", "||", "==", "!=", "<", ">=", "in", "+", "-", "*", "%"]))
    shape = {
        "one": "!{0}",
        "two": f"{{0}} {sign} {{1}}",
        "if": "{0} ? {1} : {2}",
        "call": draw(st.sampled_from(["size({0})", "string({0})", "type({0})"])),
        "method": "{0}.contains({1})",
        "list": "[{0}, {1}]",
        "map": "{{{0}: {1}}}",
    }[kind]
    end = draw(st.sampled_from(["", " ", " // x == y\n"]))
    chains, names = [frozenset().union(*(part[place] for part in parts)) for place in (1, 2)]
    return shape.format(*texts) + end, chains, names


@campaign(test=100, soak=5000)
@given(made=expressions())
def test_what_is_read_is_exactly_what_was_put_in(made: Made) -> None:
    text, chains, bound = made
    guard = guard_of(f"({text}) == 1")
    assert (set(guard.chains), set(guard.names)) == (chains, set(cel.compile(text).variables()) - bound)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["1", "true", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["sentiment", "x", "b"]), inner),
    max_leaves=6,
)


@campaign(test=100, soak=5000)
@given(made=expressions(), row=st.dictionaries(st.sampled_from(["a", "b", "classify", "i", "_x1"]), _VALUES))
def test_a_row_makes_true_or_false_or_a_sentence(made: Made, row: dict[str, Any]) -> None:
    guard, _ = compile_guard(made[0], PLACE)
    if guard is None:
        return  # a number or a list: refused at load
    evaluator = Evaluator(guard, stages=["classify"])
    visible = {**row, "row": row}
    evaluator.values(visible)
    try:
        outcome: bool | str = evaluator.test(visible)
    except GuardFailed as failed:
        outcome = str(failed)
    if isinstance(outcome, str):
        assert outcome
        assert "overload" not in outcome
    else:
        try:
            expected = CelProgram(made[0]).execute(visible)
        except FAILURES:
            return  # an element decides, though another one fails
        assert outcome is expected  # handing over less changes nothing


@given(text=st.text(alphabet=st.sampled_from(list("ab.1 =&|!()[]\"'\\${}?:<>é\n")), max_size=12))
def test_any_text_is_a_guard_or_a_sentence(text: str) -> None:
    guard, problems = compile_guard(text, PLACE)
    assert (guard is None) == bool(problems)
    assert all(problem.message and "<input>" not in problem.message for problem in problems)


SLIPS = {
    "a = 1": "at column 3: `=` compares nothing; write `==`",
    "a === 1": "at column 3: `===` is written `==`",
    "a <> 1": "at column 3: `<>` is written `!=`",
    "a & b": "at column 3: a single `&` means nothing; write `&&`",
    "a | b": "at column 3: a single `|` means nothing; write `||`",
    "a == 1 and b": "at column 8: `and` is written `&&`",
    "a or b": "at column 3: `or` is written `||`",
    "not a": "at column 1: `not` is written `!`: `!x`, and `!(x in y)` for `x not in y`",
    "a is null": "at column 3: `is` is written `==`: `x == null`",
    "a == None": "at column 6: CEL has no `None`; write `null`",
    "a == True": "at column 6: CEL has no `True`; write `true`",
    "${ review } == 1": "at column 1: `${ review }` stands in prompts; in a guard write `review`",
    "a?.b == 1": "at column 2: `?.` and `??` do not exist here; write `has(x.y) && x.y …`",
    '"abc == a': "at column 1: a text is never closed: '\"abc == a'; add the \"",
    r'a == "\d"': r"at column 6: a text has `\d`, which stands for nothing; write `\\d`, or r before the text",
    "(a == 1": "at column 1: `(` is never closed; add the `)`",
    "a == 1)": "at column 7: `)` closes nothing; remove it, or add the `(`",
    "a ==": "at column 5: the guard ends too early; something is missing after `==`",
    "a == 1 b": "at column 8: `b` is not expected here; `==`, `&&` or `||` may be missing before it",
    "a == == b": "at column 6: `==` is not expected here; a value may be missing before it",
    "größe == 1": 'at column 1: names have the letters A to Z, digits and _; write `row["größe"]`',
    "a.größe == 1": 'at column 3: names have the letters A to Z, digits and _; write `["größe"]` for `.größe`',
    "a.`b c` == 1": 'at column 3: a name in backticks is written `row["b c"]`',
    "as == 1": 'at column 1: `as` is a reserved word of CEL; write `row["as"]` for the field',
    "a.in == 1": 'at column 3: `in` is a word of CEL; write `["in"]` for the field',
    "a.0 == 1": "at column 2: an element of a list is written `[0]`, counted from 0",
    "a ==\u00a01": "at column 5: the blank U+00A0 is none that CEL knows; write a plain space",
    "a == 9223372036854775808":
     "at column 6: the number is larger than 64 bits can hold; compare with a smaller one, or with a double (1e20)",
    "has(a)": 'at column 5: `has` takes a field: `has(row.name)`, or `"odd name" in row`',
    "a.exists(1, true)": "at column 10: the first argument names the element: `x.exists(item, item.ok)`",
    "d == 2026-01-31":
     'at column 6: `2026-01-31` is a subtraction of numbers; write a date in quotes: `"2026-01-31"`',
    "d >= 2026-01 && true":
     'at column 6: `2026-01` is a subtraction of numbers; write a date in quotes: `"2026-01"`',
    "d in [2026-1-31]":
     'at column 7: `2026-1-31` is a subtraction of numbers; write a date in quotes: `"2026-1-31"`',
    "xs.exists(x, x.d < (2026 - 01 - 31))":
     'at column 20: `2026-01-31` is a subtraction of numbers; write a date in quotes: `"2026-01-31"`',
    "d == 01/31/2026":
     'at column 6: `01/31/2026` is a division of numbers; write a date in quotes: `"01/31/2026"`',
    "31-01-2026 != d":
     'at column 1: `31-01-2026` is a subtraction of numbers; write a date in quotes: `"31-01-2026"`',
    "phone == 555-1234":
     'at column 10: `555-1234` is a subtraction of numbers; write a text in quotes: `"555-1234"`, '
     "and what is meant so with spaces: `555 - 1234`",
    "code in [007]": 'at column 10: `007` is the number 7; write a text in quotes: `"007"`',
    "d > 2026-01-31T12:00:00Z":
     'at column 5: a time is written in quotes: `timestamp("2026-01-31T12:00:00Z")`',
    "  ": 'the guard is empty; write a condition, as `FIELD == "value"`, or leave `when` out',
    "a &&\n b = 1": "at line 2, column 4 of the guard: `=` compares nothing; write `==`",
    ".a == 1": "at column 1: a name starts with a dot; write it without",
    "T{a: 1} == 1": "at column 1: message types (`Name{…}`) do not exist in guards; compare fields",
    "size(a)": "the guard gives a value, not true or false; compare it with a value",
    "a + 1": "the guard gives a value, not true or false; compare it with a value",
    "string == 'x'": "at column 1: `string` is a type in CEL; write `row.string` for the field of that name",
    "a.startswith('x')": "at column 1: unknown function `startswith`; did you mean 'startsWith'?",
    "startsWith(a, 'x')": "at column 1: `startsWith` is written after a dot: `x.startsWith(…)`",
    "len(a) > 1": "at column 1: unknown function `len`; write `size(x)`",
    "a.int() > 1": "at column 1: `int` takes one value: `int(x)`",
    "all(a, b)": "at column 1: `all` takes a list, a name for its element and an expression: `x.all(item, item.ok)`",
    "a.matches('[')": "at column 11: '[' is no regular expression: unclosed character class",
    "a.matches('(?=b)a')":
     "at column 11: '(?=b)a' is no regular expression: look-around, "
     "including look-ahead and look-behind, is not supported",
    "a.matches('(a{999}){999}')":
     "at column 11: '(a{999}){999}' is no regular expression: "
     "it is too large; repeat less in it",
    "!" * (MAX_LENGTH + 1):
     "the guard is longer than 10,000 characters; compute a field in a python stage and test that",
    "(" * 60 + "a" + ")" * 60: "at column 51: brackets are nested too deeply; split the expression",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), SLIPS.items(), ids=[text[:20] for text in SLIPS])
def test_a_slip_has_its_remedy(text: str, message: str) -> None:
    assert refused(text) == [message]


def test_all_slips_come_at_once_and_an_unknown_function_lists_those_of_cel() -> None:
    assert refused("a = 1 and not b or c == foo(${x})") == [
        "at column 3: `=` compares nothing; write `==`",
        "at column 7: `and` is written `&&`",
        "at column 11: `not` is written `!`: `!x`, and `!(x in y)` for `x not in y`",
        "at column 17: `or` is written `||`",
        "at column 29: `${x}` stands in prompts; in a guard write `x`",
    ]
    known = "functions: size, has, contains, startsWith"
    assert refused("frobnicate(a)")[0].startswith(f"at column 1: unknown function `frobnicate`; {known}")
    assert len(refused("foo(a) == True && bar(b) == None")) == 4


_TIME = 'timestamp("2026-01-31T12:00:00Z")'
_CALLS = {
    "size": ["size([1])", '"a".size()'],
    "has": ['has({"a": 1}.a)'],
    **{name: [f'"abc".{name}("a")'] for name in ("contains", "startsWith", "endsWith", "matches")},
    **{name: [f"[1].{name}(x, x > 0)"] for name in ("all", "exists", "exists_one", "existsOne", "map", "filter")},
    **{name: [f'{name}("1")'] for name in ("int", "uint", "double", "bytes", "type", "dyn")},
    "string": ["string(1.5)"],
    "timestamp": [_TIME],
    "duration": ['duration("1h30m")'],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_is_known_exists(name: str) -> None:
    for call in _CALLS.get(name, [f"{_TIME}.{name}()"]):
        assert Evaluator(guard_of(f"({call}) != null")).test({})


SCHEMA = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": ["positive", "negative"]},
        "score": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
    },
    "$defs": {
        "part": {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"enum": ["good", "bad"]}}}
    },
}


def checked(text: str, **changes: Any) -> list[str]:
    seen: dict[str, Any] = {
        "columns": ("id", "review", "price", "odd name"),
        "closed": True,
        "stages": {"classify": SCHEMA, "reply": None, "clean": {}, "check-tone": None},
        "variables": ["limit"],
        "others": ["later"],
        "fields": dict.fromkeys(("id", "review", "price", "odd name"), TEXT),
    }
    found = GuardScope(text=guard_of(text).text, where=PLACE, **{**seen, **changes}).problems()
    assert all(one.where == PLACE for one in found)
    return [("warning: " if one.severity == "warning" else "") + one.message for one in found]


FINE = [
    'classify.sentiment == "negative" && review != ""',
    "row != {}",
    'classify.sentiment in ["positive", "negative"] && "negative" == classify.sentiment',
    'classify.parts[0].name == "x" && classify.parts.exists(p, p.name == "x" && p.kind != "bad")',
    "clean.xs.exists(classify, classify.x == 1) && clean.xs.all(x, x.ys.all(y, y.z == x.z))",
    "classify.parts.filter(p, p.name != '').map(p, p.whatever).size() > 0",
    "classify.score >= 3 && classify.score == 3.0 && classify.urgent",
    'classify.note == null || classify.note == "x"', 'reply == "yes" && reply != null && reply.contains("x")',
    "clean.anything.at[3].all == 1",
    'row["odd name"] == "x" && has(row.price) && double(price) > 10.0 && "id" in row', "vars.limit > 1",
    "classify == null || !classify.urgent", "true",
]  # fmt: skip
FAULTS = {
    'reviw == ""': "at column 1: `reviw`: no such field; did you mean 'review'?",
    'row.reviw == ""': "at column 1: `row.reviw`: no such field; did you mean 'review'?",
    'odd == ""': "at column 1: `odd`: no such field; write `row[\"odd name\"]` for the column 'odd name'",
    "classify.sentimnt == 1": "at column 1: `classify.sentimnt`: no such field; did you mean 'classify.sentiment'?",
    "!has(classify.sentimnt)": "at column 6: `classify.sentimnt`: no such field; did you mean 'classify.sentiment'?",
    "classify.parts[0].nam == ''":
     "at column 1: `classify.parts[0].nam`: no such field; did you mean 'classify.parts[0].name'?",
    "classify.parts.exists(p, p.nam == '')":
     "at column 26: `classify.parts[0].nam`: no such field; did you mean 'classify.parts[0].name'?",
    'classify.parts.all(p, p.kind == "goood")':
     'at column 23: `p.kind == "goood"` is never true: p.kind is one of "good", "bad"; did you mean "good"?',
    "classify.sentiment.x == 1":
     "at column 1: `classify.sentiment.x`: no such field; classify.sentiment is a single value",
    "reply.text == ''": "at column 1: `reply.text`: stage 'reply' answers with plain text, which has no fields; "
     "give it an output_schema",
    "review.x == ''": "at column 1: `review.x`: the column 'review' holds text, which has no fields",
    "later == ''": "at column 1: stage 'later' is not upstream of this one; add it to `needs`",
    "vars.limt == 1": "at column 1: `vars.limt`: no such variable; did you mean 'limit'?",
    'classify.sentiment == "negativ"':
     'at column 1: `classify.sentiment == "negativ"` is never true: classify.sentiment is one of '
     '"positive", "negative"; did you mean "negative"?',
    'true || "negativ" != classify.sentiment':
     'at column 9: `"negativ" != classify.sentiment` is always true: classify.sentiment is one of '
     '"positive", "negative"; did you mean "negative"?',
    'classify.sentiment in ["positive", "neutral"]':
     'at column 1: `classify.sentiment in ["positive", "neutral"]` names a value that never comes: '
     'classify.sentiment is one of "positive", "negative"',
    'classify.score == "3"': 'at column 1: `classify.score == "3"` is never true: classify.score is a whole number; '
     "write the number without quotes",
    'classify.score > "3"':
     'at column 1: `classify.score > "3"` cannot be compared: classify.score is a whole number; '
     "write the number without quotes",
    'classify.urgent == "true"':
     'at column 1: `classify.urgent == "true"` is never true: classify.urgent is true or false; '
     "write `classify.urgent` or `!classify.urgent`",
    "price > 10": "at column 1: `price > 10` cannot be compared: price is text; write `double(price)`",
    "10 == row.price": "at column 1: `10 == row.price` is never true: row.price is text; write `double(row.price)`",
    "price == true": 'at column 1: `price == true` is never true: price is text; write `price == "true"`',
    "!classify.score": "at column 2: `classify.score` is never true or false; compare it with a value",
    "reply": "at column 1: `reply` is never true or false; compare it with a value",
}  # fmt: skip


SUMS = {
    "type": "object",
    "properties": {
        "n": {"type": "number"}, "count": {"type": "integer"}, "day": {"type": "string", "format": "date"},
        "xs": {"type": "array", "items": {"type": ["number", "null"]}}, "x": {"type": ["number", "string"]},
    },
}  # fmt: skip
POINT = "CEL computes with two whole numbers or with two that have a point, and"
COMPUTED = [
    ("s.n + 1 > 0", 1, f"`s.n + 1` fails in some rows: {POINT} s.n may be either; write `double(s.n) + 1.0`"),
    ("1.5 < (s.n - s.count) / 2", 7,
     (f"`(s.n - s.count) / 2` fails in some rows: {POINT} s.n may be either; "
     "write `(double(s.n) - double(s.count)) / 2.0`")),
    ("s.n % 2 == 0", 1,
     "`s.n % 2` fails in some rows: `%` takes whole numbers, and s.n may be either; write `int(s.n)`"),
    ("s.xs.all(e, e * 2.0 > 1.0)", 13,
     f"`e * 2.0` fails in some rows: {POINT} e may be either; write `double(e) * 2.0`"),
    ("double(s.n) + 1.0 > 0", 0, ""), ("s.count + 1 > 0 && s.count % 2 == 0", 0, ""), ("s.n > 1 && s.n != 2.5", 0, ""),
    ("s.x + 1 > 0", 0, ""), ("int(s.n) % 2 == 0", 0, ""), ("s.day + '' == s.day", 0, ""),
]  # fmt: skip
"""Guards, the columns of what may fail, and why."""


AMBIGUOUS = "could be the input's column or the result of stage 'classify'; rename the one or the other"
OPEN = {"columns": (), "closed": False}
CHECKED: list[tuple[str, dict[str, Any], list[str]]] = [
    *((text, {}, []) for text in FINE),
    *((text, {}, [message]) for text, message in FAULTS.items()),
    ("reviw == 1", {"closed": False}, [
        "warning: at column 1: `reviw` is no known name, unless rows have such a field; did you mean 'review'?"
    ]),
    ("clasify == 1", OPEN, [
        "warning: at column 1: `clasify` is no known name, unless rows have such a field; did you mean 'classify'?"
    ]),
    ("whatever == 1", OPEN, []),
    ("classify.sentimnt == 1", OPEN, [
        "at column 1: `classify.sentimnt`: no such field; did you mean 'classify.sentiment'?"
    ]),
    ("classify == null", {"columns": ("classify",)}, [f"at column 1: `classify` {AMBIGUOUS}"]),
    ("rows_count > 1 && rows_failed == 0", {"extra": ("rows_count", "rows_failed")}, []),
    ("rows_cont > 1", {"extra": ("rows_count",)}, [
        "at column 1: `rows_cont`: no such field; did you mean 'rows_count'?"
    ]),
    ("price > 10 && review.x == 1", {"fields": {}}, []),
    *((text, {"stages": {"s": SUMS}}, [f"warning: at column {at}: {message}"] if message else [])
      for text, at, message in COMPUTED),
    ("s.day > 5", {"stages": {"s": SUMS}}, [
        "at column 1: `s.day > 5` cannot be compared: s.day is text; write the value in quotes"
    ]),
    ("check-tone == 1", {"closed": True}, [
        "at column 1: `check`: a guard reads the `-` of stage 'check-tone' as minus; rename the stage",
        "at column 7: `tone`: a guard reads the `-` of stage 'check-tone' as minus; rename the stage",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "changes", "messages"), CHECKED)
def test_what_no_row_can_satisfy_is_said_at_load(text: str, changes: dict[str, Any], messages: list[str]) -> None:
    assert checked(text, **changes) == messages


def test_everything_that_is_wrong_comes_at_once() -> None:
    assert len(checked('reviw == "" && classify.sentimnt == 1 && classify.sentiment == "negativ" && vars.x')) == 4


def failed(text: str, /, **row: Any) -> str:
    with pytest.raises(GuardFailed) as caught:
        Evaluator(guard_of(text), stages=["reply", "classify"]).test({**row, "row": row})
    return str(caught.value)


def holds(text: str, /, **row: Any) -> bool:
    return Evaluator(guard_of(text)).test({**row, "row": row})


def test_true_and_false_and_numbers_of_every_size_and_kind() -> None:
    assert holds('a.b == "x" && row["odd name"] != 3', a={"b": "x"}, **{"odd name": 4})
    assert not holds("has(row.x) && x > 1", y=1)
    assert holds("reply == null || reply.x == 1", reply=None)
    assert holds("xs.all(x, x.n < limit)", xs=[{"n": 1}, {"n": 2}], limit=3)
    assert holds('"x" in row && size(row) == 2', x=1, y=2)
    assert holds("classify.sentiment == 1 && row.b == 2", classify={"sentiment": 1, "x": object()}, b=2, c=object())
    assert holds("a == b + 1", a=2**63 - 1, b=2**63 - 2)
    assert holds("a > 1 && a != 1", a=2**64 - 1)
    assert holds("a > 1 && a == 18446744073709551616.0", a=2**64)
    assert holds("a < 0.0", a=-(2**200))
    assert holds("a == 1 && a == 1.0 && b > 1", a=1.0, b=1.5)
    assert holds("a > 1.0", a=Decimal("1.5"))
    assert holds("a > 1e300", a=float("inf"))
    assert not holds("a == a", a=float("nan"))
    assert holds("a == null && b.c[1].d == null", a=None, b={"c": [1, {"d": None}]})


_KINDS = "`{}` takes two whole numbers or two with a point: write"
REMEDIES: list[tuple[str, dict[str, Any], str, str]] = [
    ("n % 2 == 0", {"n": 2.5}, "n is the number 2.5", "`%` takes whole numbers: write `int(n)`"),
    ("n + 1 > 0", {"n": 2.0}, "n is the number 2.0", f"{_KINDS.format('+')} `double(n) + 1.0`"),
    ("n + 1u > 0", {"n": 2}, "n is the number 2", f"{_KINDS.format('+')} `double(n) + 1.0`"),
    ("n * half > 0.0", {"n": 2, "half": 0.5}, "n is the number 2 and half is the number 0.5",
     f"{_KINDS.format('*')} `double(n) * double(half)`"),
    ("price + 1 > 3", {"price": "2.5"}, 'price is the text "2.5"', f"{_KINDS.format('+')} `double(price) + 1.0`"),
    ('day - "2026-01-31" == 1', {"day": "2026-02-01"}, 'day is the text "2026-02-01"', "`-` takes two numbers"),
    ("xs + 1 == xs", {"xs": [1]}, "xs is a list of 1", "`+` takes two numbers, two texts or two lists"),
    ("-price > 1", {"price": "2"}, 'price is the text "2"',
     "`-` takes a number: write `-double(price)` of a text that is one"),
    ('n.contains("5")', {"n": 15}, "n is the number 15", "`contains` is for texts: write `string(n).contains(…)`"),
    ('flag.contains("t")', {"flag": True}, "flag is true",
     "`contains` is for texts: write `string(flag).contains(…)`"),
    ('xs.contains("t")', {"xs": ["t"]}, "xs is a list of 1",
     "`contains` is for texts: write `xs.exists(item, item.contains(…))`"),
    ('o.contains("t")', {"o": {"t": 1}}, "o is an object of 1 fields", "`contains` is for texts"),
    ("int(flag) == 1", {"flag": True}, "flag is true", "write `flag ? 1 : 0`"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "row", "value", "remedy"), REMEDIES, ids=[text for text, *_ in REMEDIES])
def test_a_remedy_is_one_that_works(text: str, row: dict[str, Any], value: str, remedy: str) -> None:
    part = text.partition(" == ")[0].partition(" > ")[0]
    assert failed(text, **row) == f"`{part}` cannot be computed: {value}; {remedy}"


def test_a_text_that_is_no_number_is_not_to_be_read_as_one() -> None:
    said = failed("day > 5", day="2026-02-01")
    assert said.endswith('day is the text "2026-02-01", which is no number; compare it with a text in quotes')
    said = failed("int(n) == 2", n="2.0")
    assert said.endswith('n is the text "2.0", which is no whole number of 64 bits; write `double(n)`')


FAILED: list[tuple[str, dict[str, Any], str]] = [
    ('reply.text == "x"', {"reply": None}, "reply was skipped for this row; write `reply != null && …`"),
    ("size(reply) > 1", {"reply": None}, "reply was skipped for this row; write `reply != null && …`"),
    ("reply", {"reply": None}, "reply was skipped for this row; write `reply != null && …`"),
    ("price > 10.0", {"price": "12"},
     ('`price > 10.0` cannot be computed: price is the text "12", not a number (values of csv files are text); '
     "write `double(price) > 10.0`")),
    ("(reply == null || reply.x == 1) && price > 10", {"reply": None, "price": "5"},
     ('`price > 10` cannot be computed: price is the text "5", not a number (values of csv files are text); '
     "write `double(price) > 10`")),
    ("double(price) > 10.0", {"price": "cheap"},
     ('`double(price)` cannot be computed: price is the text "cheap", which is no number; '
     'write `price.matches("^-?[0-9]+([.][0-9]+)?$") && …`')),
    ("price > 10", {"id": "1"},
     "`price` is missing in this row; it has: id; write `has(row.price) && …` where it may be missing"),
    ('row["odd name"] == 1', {"id": "1"},
     '`row` has no field "odd name"; it has: id; write `"odd name" in row && …` where it may be missing'),
    ("classify.sentiment == 1", {"classify": {"score": 1}}, ('`classify` has no field "sentiment"; it has: score; '
     "write `has(classify.sentiment) && …` where it may be missing")),
    ("a.b.c == 1", {"a": {"b": None}}, 'a.b has no "c": a.b is null; write `a.b != null && …`'),
    ("a.b == 1", {"a": "x"}, '`a` is the text "x", which has no field "b"'),
    ("a.b == 1", {"a": [1]}, '`a` is a list, which has no field "b"; write `a[0]` or `a.exists(item, …)`'),
    ("a[2] == 1", {"a": [1]}, "`a` has 1 elements, none at 2 (counted from 0); write `size(a) > 2 && …`"),
    ("a.all(x, x.n > 1)", {"a": [{"n": 2}, {"m": 1}]},
     '`x` has no field "n"; it has: m; write `has(x.n) && …` where it may be missing'),
    ("a.all(x, x > 1)", {"a": 5}, "`a.all(x, x > 1)`: a is the number 5; `all` goes over a list"),
    ('"x" in a', {"a": "xyz"},
     ('`"x" in a` cannot be computed: a is the text "xyz"; `in` looks into lists and objects: '
     'write `a.contains("x")`')),
    ("flag", {"flag": "yes"}, '`flag` is the text "yes", not true or false; compare it: `flag == "yes"`'),
    ("n && true", {"n": 3}, "`n` is the number 3, not true or false; compare it: `n > 0`"),
    ("a / b == 1", {"a": 1, "b": 0},
     "`a / b` cannot be computed: a is the number 1 and b is the number 0; division by zero"),
    ("a + 1 > 0", {"a": 2**63 - 1}, f"`a + 1` cannot be computed: a is the number {2**63 - 1}; beyond 64 bits"),
    ("a > 1.0", {"a": float("nan")},
     "`a > 1.0` cannot be computed: a is not a number (NaN); what is not a number is neither smaller nor larger"),
    ("a == 1", {"a": dt.date(2026, 1, 1)},
     "`a` holds a value of type date, which guards cannot read; give it as text or number"),
    ("a == 'x'", {"a": "\ud800"},
     "`a` holds half a surrogate pair, which guards cannot read; give it as text or number"),
    ("a > 1", {"a": 10**400},
     "`a` holds a whole number of more than 308 digits, which guards cannot read; give it as text or number"),
    ('timestamp(a) < timestamp("2026-01-01T00:00:00Z")', {"a": "soon"},
     '`timestamp(a)` cannot be computed: a is the text "soon"; a timestamp is written as "2026-01-31T12:00:00Z"'),
    ("a.matches(b)", {"a": "x", "b": "("},
     ('`a.matches(b)` cannot be computed: a is the text "x" and b is the text "("; '
     "the pattern is no regular expression")),
    ("a.all(x, x > 1)", {"a": [*range(2, 5000), "x"]},
     "`a.all(x, x > 1)` cannot be computed: its values do not fit together"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "row", "message"), FAILED, ids=[text for text, _, _ in FAILED])
def test_a_row_that_does_not_fit_is_said_in_its_own_words(text: str, row: dict[str, Any], message: str) -> None:
    assert failed(text, **row) == message


def test_values_are_those_that_the_guard_read() -> None:
    guard = guard_of(
        'classify.sentiment == "x" && row["odd name"] == note && absent == 1 && xs.size() > 0 && whole == n'
    )
    row = {"classify": {"sentiment": "y", "other": 1}, "note": "n" * 500, "xs": list(range(100)), "whole": {"a": [1]}}
    values = Evaluator(guard).values({**row, "n": None, "row": {"odd name": 1.5}})
    assert values == {
        "classify.sentiment": "y",
        'row["odd name"]': 1.5,
        "note": "n" * 79 + "…",
        "xs": str(list(range(100)))[:79] + "…",
        "whole": {"a": [1]},
        "n": None,
    }


def test_no_pattern_is_matched_for_ever() -> None:
    row = {"a": "a" * 100_000 + "b", "b": "^(a+)+$"}
    for text in ('a.matches("^(a+)+$")', "a.matches(b)", '[a, a].exists(x, x.matches("(a|a)*$") && x == b)'):
        assert Evaluator(guard_of(text)).test(row) is False


# What takes too long is refused before it is begun: the library cannot be stopped.

TOO_LONG = "takes more than 10,000,000 steps"
NUMBERS = "[" + ", ".join(map(str, range(500))) + "]"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c > -1)))", "at column 1: "),
        (f"n == 1 && {NUMBERS}.all(a, {NUMBERS}.all(b, a + b + size({NUMBERS}) > 0))", "at column 11: "),
        (f"{NUMBERS}.map(a, {NUMBERS}).size() > 0", "at column 1: "),
        (f"rows.exists(row, {NUMBERS}.all(a, {NUMBERS}.exists(b, {NUMBERS}.exists(c, a == c))))", "at column 1: "),
    ],
)
def test_macros_over_written_lists_that_take_too_long_are_refused_at_load(text: str, place: str) -> None:
    (message,) = refused(text)
    assert message.startswith(place)
    assert f"{TOO_LONG} for each row; test fewer elements" in message


LONG_ROWS = [
    ("xs.all(a, xs.all(b, a <= b || a > b))", {"xs": [*range(3_000)]}, "xs is a list of 3000"),
    ("xs.filter(a, a > 0).size() > 0", {"xs": [*range(20_000)]}, "xs is a list of 20000"),
    ("xs.map(a, a).size() > 0", {"xs": ["x" * 50] * 5_000}, "xs is a list of 5000"),
    ("xs.exists(a, xs.map(b, b) == a)", {"xs": [*range(900)]}, "xs is a list of 900"),
    ("row.xs.all(a, row.xs.all(b, a in row.xs))", {"row": {"xs": [*range(500)]}}, "row.xs is a list of 500"),
    ("os.all(o, os.all(p, p.t.contains(o.t)))", {"os": [{"t": "x" * 5_000}] * 200}, "os is a list of 200"),
    ("o.exists(k, o.exists(l, o[k] == o[l]))", {"o": {str(n): n for n in range(2_000)}}, "o is an object of 2000"),
    ("x.matches('[a-f]{100}z')", {"x": "g" * 2_000_000}, "x is the text"),
    ("ps.all(p, p.matches(p + 'x'))", {"ps": ["x"] * 100}, "ps is a list of 100"),
    ("os.all(o, o.xs.all(a, o.xs.all(b, a != b)))", {"os": [{"xs": [*range(400)]}] * 20}, "os is a list of 20"),
]


@pytest.mark.parametrize(("text", "row", "why"), LONG_ROWS, ids=[text for text, _, _ in LONG_ROWS])
def test_a_row_for_which_a_guard_takes_too_long_fails_with_the_reason(text: str, row: dict[str, Any], why: str) -> None:
    with pytest.raises(GuardFailed) as failed:
        Evaluator(guard_of(text)).test(row)
    assert f"{TOO_LONG}: {why}" in str(failed.value)
    assert str(failed.value).endswith("macros inside one another, or compute it in a python stage")


def test_patterns_are_not_even_measured_where_that_alone_takes_too_many_steps() -> None:
    """What refuses a guard may take no longer than what it allows."""
    guard = guard_of("ps.exists(p, 'a'.matches(p))")
    patterns = ["z" * 1_000] * 800  # each is refused only after it was measured: 0.4 s for all of them
    meter = CostMeter({"ps": patterns})
    with pytest.raises(TooManySteps):
        meter.count(parse(guard.text))
    assert meter.steps < MAX_STEPS + 16 * 800_000


def test_ordinary_lists_are_no_matter() -> None:
    orders = [{"items": [{"price": 3}] * (2_000 if number == 5 else 5)} for number in range(500)]
    assert Evaluator(guard_of("orders.all(o, o.items.all(i, i.price > 0))")).test({"orders": orders})
    assert Evaluator(guard_of("xs.all(a, xs.exists(b, b == a))")).test({"xs": [*range(300)]})
    assert Evaluator(guard_of("xs.filter(x, x > 5).size() > 3")).test({"xs": [*range(1_500)]})
    assert Evaluator(guard_of("!xs.exists(x, x < 0)")).test({"xs": [*range(100_000)]})
    assert Evaluator(guard_of("text.matches('(?i)refund|money back')")).test({"text": "x" * 100_000 + "Refund"})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("size(xs) < 1000 && xs.all(a, xs.all(b, a <= b || a > b))", False),
        ("size(xs) > 1000 || xs.all(a, xs.all(b, a <= b || a > b))", True),
        ("(n == 2 || n == 3) && size(xs) > 1 && xs.all(a, xs.all(b, a <= b || a > b))", False),
    ],
)
def test_a_part_that_decides_before_spares_the_part_that_takes_too_long(text: str, holds: bool) -> None:
    assert Evaluator(guard_of(text)).test({"xs": [*range(3_000)], "n": 1}) is holds


def test_why_a_guard_fails_is_looked_for_no_longer_than_the_guard_may_take() -> None:
    row = {"xs": [*range(1_000), "one"], "ys": [*range(100_000)]}
    with pytest.raises(GuardFailed) as failed:
        Evaluator(guard_of("xs.all(a, a >= 0 || size(ys) == 3)")).test(row)
    shown_part = "`xs.all(a, a >= 0 || size(ys) == 3)` cannot be computed: its values do not fit together"
    assert str(failed.value) == shown_part


@campaign(test=100, soak=5000)
@given(made=expressions(), row=st.dictionaries(_NAMES, _VALUES), times=st.integers(1, 200))
def test_what_needs_no_count_never_takes_too_many_steps(made: Made, row: dict[str, Any], times: int) -> None:
    tree = parse(f"({made[0]}) == 1")
    room = plain_room(tree)
    rows = {name: [value] * times for name, value in row.items()}
    if sum(weight_of(value, room) for value in rows.values()) <= room:
        assert CostMeter(rows).count(tree) <= MAX_STEPS


PATTERNS = [
    ("abc", 4),
    ("a{20}b", 22),
    ("(ab){3,5}", 11),
    ("[a-z]{2}[]x]", 4),
    (r"\w+ \[", 5),
    ("(?i)(a|b)", 5),
    ("(", 1),
]


@pytest.mark.parametrize(("pattern", "parts"), PATTERNS)
def test_the_size_of_a_pattern_is_that_with_its_repetitions_written_out(pattern: str, parts: int) -> None:
    assert pattern_size(pattern).parts == parts
    assert pattern_size(pattern).compiled >= parts


def test_every_remedy_for_arithmetic_can_be_computed() -> None:
    for text in ("double(n) + 1.0 > 0", "int(n) % 2 == 0", "double(n) * double(half) > 0.0"):
        assert holds(text, n=2.0, half=0.5)
        assert holds(text, n=2, half=1)


def test_a_recorded_guard_keeps_its_arithmetic() -> None:
    guard, problems = compile_guard("d == 2026-01-31", STORED)
    assert (guard is not None, problems) == (True, [])
    for text in ("n == 1000 - 5", "n > 60*60*24", "n - 1 - 2026 == 5", 'd == "2026-01-31"', "n == 2026-13"):
        guard_of(text)


def test_a_recorded_guard_that_takes_too_long_fails_each_row() -> None:
    text = f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c > -1)))"
    guard, problems = compile_guard(text, STORED)
    assert guard is not None
    assert not problems
    with pytest.raises(GuardFailed, match=TOO_LONG):
        Evaluator(guard).test({})
