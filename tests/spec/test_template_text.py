"""Templates: what each syntax replaces, values that arrive as they are, and nothing that is expanded twice."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import Where
from agac.spec.templates import (
    MissingField,
    Syntax,
    Template,
    VisibleRow,
    compile_template,
    default_prompt,
    sound_template,
)

HERE = Where("w.yml", 3, 5, "stages[0].prompt")


def compiled(text: str, syntax: Syntax = "dollar") -> Template:
    template, problems = compile_template(text, HERE, syntax)
    assert problems == []
    assert template is not None
    return template


def filled(syntax: Syntax, text: str, data: dict[str, Any]) -> str:
    """The text of a row, which what a run stores of the template gives too."""
    template = compiled(text, syntax)
    found = template.render(VisibleRow(data, {}, {}))
    assert sound_template(template.text, HERE).render(VisibleRow(data, {}, {})) == found
    return found


def rendered(text: str, data: dict[str, Any], results: dict[str, Any] | None = None, **variables: Any) -> str:
    return compiled(text).render(VisibleRow(data, results or {}, variables))


@pytest.mark.parametrize(
    "text", ["costs $5", '{"$ref": "#/x"}', "$$", "$", "$name", "a $ {b}", "100%", "{braces}", "{{double}}", "é\n\tö"]
)
def test_only_dollar_brace_is_a_placeholder(text: str) -> None:
    assert compiled(text).placeholders == ()
    assert rendered(text, {"name": "x", "b": "y"}) == text


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        ("$${x}", "1", "${x}"), ("a $${", "1", "a ${"), ("$$${x}", "1", "$${x}"), ("$${x} ${x}", "1", "${x} 1"),
        ("$$ ${x}", "1", "$$ 1"), ("<${x}>", "text", "<text>"), ("<${x}>", "", "<>"), ("<${x}>", "${x}", "<${x}>"),
        ("<${x}>", "$${", "<$${>"), ("<${x}>", 5, "<5>"), ("<${x}>", 0.1, "<0.1>"), ("<${x}>", True, "<true>"),
        ("<${x}>", None, "<null>"), ("<${x}>", [1, "é"], '<[1,"é"]>'), ("<${x}>", "line\nline", "<line\nline>"),
        ("<${x}>", {"a": {"b": None}}, '<{"a":{"b":null}}>'),
    ],
)  # fmt: skip
def test_two_dollars_escape_strings_go_in_verbatim_and_other_values_as_compact_json(
    text: str, x: object, expected: str
) -> None:
    assert rendered(text, {"x": x}) == expected


def test_what_a_name_finds() -> None:
    odd = {"first name": "1", "a-b": "2", "日本": "3", "a'b": "4"}
    assert rendered("${ first name }${a-b}${日本}${a'b}", odd) == "1234"  # spaces around it are trimmed
    data = {"user": {"name": "Ada", "tags": ["x", {"y": 1}]}}
    assert rendered("${user.name} ${user.tags.0} ${user.tags.1.y} ${user.tags}", data) == 'Ada x 1 ["x",{"y":1}]'
    assert rendered("${user.name}", {"user.name": "flat", **data}) == "flat"  # the whole name comes before its dots
    text, results = "${classify} ${classify.sentiment} ${vars.tone} ${review}", {"classify": {"sentiment": "good"}}
    assert rendered(text, {"review": "r"}, results, tone="kind") == '{"sentiment":"good"} good kind r'
    assert rendered("${classify}", {"classify": "column"}, {"classify": "result"}) == "result"


def test_row_json_is_indented_not_escaped_and_holds_the_row_alone() -> None:
    data = {"id": 1, "text": "é", "row_json": "own"}
    assert rendered("${row_json}", data, {"classify": "x"}, tone="y") == json.dumps(data, indent=2, ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("revew", {"review": "x"}), ("review.text", {"review": "x"}), ("user.mail", {"user": {"name": "x"}}),
        ("user.name", {"user": None}), ("tags.2", {"tags": [1, 2]}), ("tags.-1", {"tags": [1, 2]}),
        ("tags.x", {"tags": [1, 2]}), ("tags." + "9" * 5000, {"tags": [1]}), ("vars.x", {}), ("classify", {}),
    ],
)  # fmt: skip
def test_what_a_row_lacks_is_named_with_what_is_visible(name: str, data: dict[str, Any]) -> None:
    with pytest.raises(MissingField) as caught:
        rendered(f"a ${{{name}}}", data)
    assert caught.value.name == name
    assert set(caught.value.visible) == {*data, "row_json"}
    assert str(caught.value) == f"${{{name}}} is missing; visible are: {', '.join([*data, 'row_json'])}"


def test_visible_names_hold_everything_once() -> None:
    row = VisibleRow({"a": 1, "classify": 2}, {"classify": 3}, {"x": 1})
    assert list(row) == ["a", "classify", "vars", "row_json"]
    assert len(row) == 4


def test_placeholders_and_problems_of_a_file_have_their_own_place_and_those_of_a_value_its_place() -> None:
    template, problems = compile_template("first\nsecond ${\n${ } ${ok}", Where("p.md", 1, 1))
    assert template is None
    assert [str(problem) for problem in problems] == [
        "p.md:2:8: placeholder is never closed: '${'; add the } or write $${ for the text ${",
        "p.md:3:1: empty placeholder ${}; name a field, or write $${} for the text ${}",
    ]
    template, _ = compile_template("a\n  ${x}", Where("p.md", 4, 1))
    assert template is not None
    assert [(p.name, str(p.where)) for p in template.placeholders] == [("x", "p.md:5:3")]
    assert [p.where for p in compiled("a\n  ${x}").placeholders] == [HERE]
    for text in ("${a{b}}", "${a\nb}", "${", "x ${a"):
        _, [problem] = compile_template(text, HERE)
        assert (problem.where, "placeholder is never closed" in problem.message) == (HERE, True)


def test_the_default_prompt_is_the_row_and_then_what_the_stage_before_said() -> None:
    row = VisibleRow({"a": 1}, {"classify": {"s": "good"}}, {})
    assert default_prompt((), HERE).render(row) == '{\n  "a": 1\n}'
    assert default_prompt(("classify",), HERE).render(row) == '{\n  "a": 1\n}\n\n{"s":"good"}'


ROW = {"word": "W", "first name": "F", "a": {"b": [1, {"c": "é"}]}, "naïve": "N", "x-y": "{word} {{word}} ${word}"}


@pytest.mark.parametrize(
    ("syntax", "text", "expected"),
    [
        ("brace", '{word}: {{"es": "..."}}', 'W: {"es": "..."}'),
        ("brace", '{word}: {"es": "..."}', 'W: {"es": "..."}'),
        ("brace", '{word} {{"es": 1}} {"es": 2}', 'W {"es": 1} {"es": 2}'),
        ("brace", '{{"a": {{"b": {word}}}}}', '{"a": {"b": W}}'), ("brace", '{"a":{"b":{word}}}', '{"a":{"b":W}}'),
        ("brace", '{{"a": {"b": 1}}} {"a": {{"b": 1}}}', '{"a": {"b": 1}} {"a": {"b": 1}}'),
        ("brace", '{{"a": "}"}} {"a": "}}"} {"a": "{{"}', '{"a": "}"} {"a": "}}"} {"a": "{{"}'),
        ("brace", "{{word}} {{{word}}} {{{{word}}}}", "{word} {W} {{word}}"), ("brace", "${word} $5", "$W $5"),
        ("brace", "{a.b.1.c} {naïve} {} { word } {first name} {1} {a-b}", "é N {} { word } {first name} {1} {a-b}"),
        ("brace", "{{ }} {{ } } {{ { }} } }", "{ } {{ } } {{ { }} } }"), ("brace", "{x {{y}", "{x {{y}"),
        ("mustache", "{{word}} {{ word }} {{first name}} {{x-y}}", f"W W F {ROW['x-y']}"),
        ("mustache", "{{a.b.1.c}} {{a.b}} {{naïve}} {{a}}", 'é [1,{"c":"é"}] N {"b":[1,{"c":"é"}]}'),
        ("mustache", '{"a":{{word}}} {{"es": "..."}} {word} ${word}', '{"a":W} {{"es": "..."}} {word} ${word}'),
        ("mustache", "{{{word}}} ${{word}} $${{word}}", "{W} $W $$W"),
        ("mustache", "{{}} {{1}} {{ }}", "{{}} {{1}} {{ }}"),
        ("mustache", "{{#if x}} {{a +b}} {{word\n}} {{word}", "{{#if x}} {{a +b}} {{word\n}} {{word}"),
        ("mustache", r"\{{word}} \\{{word}} \\\{{word}} \n \{{", r"{{word}} \W \{{word}} \n \{{"),
        ("auto", "${word} {{word}} {word}", "W {{word}} {word}"), ("auto", "$5 {{word}} {word}", "$5 W {word}"),
        ("auto", '$5 {{"es": 1}} {word}', '$5 {"es": 1} W'), ("auto", "${{word}} {", "$W {"),
        ("auto", '{{"es": 1}} {"a": {}}', '{{"es": 1}} {"a": {}}'), ("auto", "$${word} {word}", "${word} {word}"),
        ("auto", r"\{{word}} {word}", "{{word}} {word}"), ("auto", "nothing", "nothing"),
    ],
)  # fmt: skip
def test_what_each_syntax_replaces_and_what_it_leaves(syntax: Syntax, text: str, expected: str) -> None:
    assert filled(syntax, text, ROW) == expected


def test_a_place_in_a_file_is_that_of_the_placeholder_in_every_syntax() -> None:
    for syntax, text in (("mustache", "one\n {{x}} \\{{z}} {{y}}"), ("brace", "one\n {x} {{z}}\n{y}")):
        template, _ = compile_template(text, Where("p.md", 4, 1), syntax)  # type: ignore[arg-type]
        assert template is not None
        places = [str(one.where) for one in template.placeholders]
        assert places == ["p.md:5:2", "p.md:5:15" if syntax == "mustache" else "p.md:6:1"]


_dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_names = st.text(st.characters(exclude_characters="{}\n", exclude_categories=("Cs",)), min_size=1).filter(
    lambda name: name == name.strip() and name not in ("vars", "row_json") and name
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_names, _json, min_size=1, max_size=4), st.text())
def test_any_value_arrives_as_it_is(data: dict[str, Any], between: str) -> None:
    between = between.replace("${", "$ {").rstrip("$")
    text = between.join(f"${{{name}}}" for name in data)
    shown = [value if isinstance(value, str) else _dumped(value) for value in data.values()]
    assert rendered(text, data) == between.join(shown)


@given(st.text(alphabet="${}a. \n"))
def test_any_text_compiles_or_says_why(text: str) -> None:
    template, problems = compile_template(text, HERE)
    assert (template is None) == bool(problems)


@given(st.text())
def test_escaped_text_comes_back_as_it_was_and_a_value_is_never_expanded_again(value: str) -> None:
    assert rendered(value.replace("${", "$${"), {}) == value
    assert rendered("${a}${b}", {"a": "${b}" + value, "b": "B"}) == "${b}" + value + "B"


_words = st.from_regex(r"[^\W\d]\w{0,5}", fullmatch=True).filter(lambda name: name not in ("vars", "row_json"))
_texts = st.text(st.sampled_from('${}\\ab1. "é\n') | st.characters(exclude_categories=("Cs",)))
_FORMS: dict[Syntax, str] = {"dollar": "${%s}", "mustache": "{{%s}}", "brace": "{%s}"}
_MUSTACHE = re.compile(r"(\\*)(\{\{[ \t]*[^\W\d]\w*(?:[ .-]\w+)*[ \t]*\}\})")
_LITERAL: dict[Syntax, Callable[[str], str]] = {
    "dollar": lambda text: text.replace("${", "$${"),
    "mustache": lambda text: re.sub(r"(\\+)\Z", r"\1\1", _MUSTACHE.sub(r"\1\1\\\2", text)),
    "brace": lambda text: text.replace("{", "{{").replace("}", "}}"),
}
"""A text as each syntax has it written before a placeholder. (A dollar right before a value is for the two others; of
braces in `brace` each has its counterpart.)"""


@given(st.sampled_from(list(_FORMS)), st.dictionaries(_words, _json, min_size=1, max_size=3), st.lists(_texts))
def test_any_row_and_any_text_come_through_in_every_syntax(
    syntax: Syntax, data: dict[str, Any], texts: list[str]
) -> None:
    written, expected = "", ""
    for (name, value), text in zip(data.items(), [*texts, "", "", ""], strict=False):
        literal = text.rstrip("$") if syntax == "dollar" else text
        if syntax == "brace":
            literal = "{" * text.count("}") + text + "}" * text.count("{")
        written += _LITERAL[syntax](literal) + _FORMS[syntax] % name
        expected += literal + (value if isinstance(value, str) else _dumped(value))
    assert filled(syntax, written, data) == expected


@given(_texts)
def test_a_text_without_a_name_in_braces_is_the_same_in_every_syntax(text: str) -> None:
    plain = re.sub(r"(?<=\{)\w", "-", text).replace("${", "$")
    assert filled("mustache", plain, {}) == filled("dollar", plain, {}) == plain
    single = re.sub(r"\{\{+", "{", plain)
    assert filled("brace", single, {}) == filled("auto", single, {}) == single


@given(_json.filter(lambda value: not re.search(r"[{}]", json.dumps(list(_strings(value))))), _words)
def test_json_stays_as_it_is_with_its_braces_doubled_or_not(value: Any, name: str) -> None:
    written = json.dumps(value, ensure_ascii=False)
    for text in (written, _LITERAL["brace"](written)):
        assert filled("brace", f"{{{name}}} {text}", {name: "{x}"}) == f"{{x}} {written}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value
