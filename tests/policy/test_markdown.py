"""Text of files and models in a comment: it is shown as it is, and a forge finds nothing in it to link or to run."""

import re

from hypothesis import given
from hypothesis import strategies as st

from agac.cli.markdown import code, fold, table
from agac.core.text import escaped

HOSTILE = "ask @everyone, see #12 and https://evil.example/x?a=1 <img src=x onerror=y> [click](javascript:1) | `b` *c*"


def test_nobody_is_mentioned_and_nothing_is_linked_or_read_as_html() -> None:
    shown = escaped(HOSTILE)
    assert not re.search(r"[@#]\w|://|www\.|<|(?<!\\)[\[\]*|]", shown)
    assert escaped("www.example.org !7 ~label %3") == "www\u2060.example.org !\u20607 \\~\u2060label %\u20603"
    assert escaped("# no heading\n- no list\n1. none\n-----") == "\\# no heading\n\\- no list\n1\u2060. none\n\\-----"
    assert escaped("a_b\x1b[31m") == "a\\_b\\\\x1b\\[31m"


def test_a_table_keeps_its_columns() -> None:
    made = table(["stage", "run"], [[escaped("a|b\nc"), 1200], [code("x|y"), 3]], numbers=[1])
    assert made == "| stage | run |\n| --- | ---: |\n| a\\|b<br>c | 1,200 |\n| `x\\|y` | 3 |"


def test_code_ends_where_it_ends() -> None:
    assert code("a `b` ``c``") == "``` a `b` ``c`` ```"
    assert code("") == "`(empty)`"


def test_a_fold_has_a_summary_of_plain_text() -> None:
    assert list(fold("a <b> @c", ["x"])) == [
        "<details><summary>a &lt;b&gt; @\u2060c</summary>", "", "x", "", "</details>"
    ]  # fmt: skip


@given(st.text(alphabet=st.sampled_from("a1@#!~|`*_[]()<>:/\\\n .-&")))
def test_any_text_is_harmless(text: str) -> None:
    shown = escaped(text)
    assert not re.search(r"[@#!~]\w|://|<", shown)
    assert shown.count("\n") == text.count("\n")
    assert not re.search(r"`{3}", code(text).strip("` ")) or "```" in text
    (line,) = table(["x"], [[shown]]).splitlines()[2:]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 2
