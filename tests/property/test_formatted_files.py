"""`agac fmt` on YAML in any layout: what is loaded and every comment stay, and formatted text is formatted."""

import io
import re
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.spec.format import formatted
from agac.spec.yaml import parse_yaml

WORDS = st.sampled_from(
    ["one", "two words", "a: b", "# no comment", "${text}", "", " x", "it's", "[1, 2]", "tab\there"]
)
LINES = st.lists(st.sampled_from(["text", "  deeper", "", "# a line", "- item", "k: v"]), min_size=1, max_size=5)
KEYS = st.sampled_from(["name", "prompt", "stages", "a b", "x-y", "when"])
VALUES: Any = st.recursive(
    WORDS | st.integers() | LINES,
    lambda inner: st.tuples(st.just("list"), st.lists(inner, max_size=4)) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


class Author:
    """Writes a value as YAML as somebody may who cares for no layout; `choose` draws from a list."""

    def __init__(self, choose: Callable[[list[Any]], Any]) -> None:
        self.choose, self.out = choose, io.StringIO()

    def between(self, column: int) -> None:
        for _ in range(self.choose([0, 0, 0, 1, 3])):
            self.out.write(self.choose(["\n", "   \n", " " * self.choose([0, 1, 3, column]) + "#a comment \n"]))

    def ending(self) -> str:
        return str(self.choose(["\n", "\n", "  \n", " # at the end\n"]))

    def block(self, value: Any, column: int, *, begun: bool = False) -> None:
        """A mapping or list whose entries begin at this column; `begun`: the first stands behind a dash."""
        entries = list(value.items()) if isinstance(value, dict) else [(None, one) for one in value[1]]
        for key, one in entries:
            if not begun:
                self.between(column)
                self.out.write(" " * column)
            begun = False
            gap = " " * self.choose([1, 1, 2, 4])
            self.out.write("-" if key is None else f"{key}:")
            self.value(one, column, gap, item=key is None)

    def value(self, one: Any, column: int, gap: str, *, item: bool) -> None:
        inner = column + self.choose([1, 2, 4])
        if isinstance(one, tuple | dict) and len(one if isinstance(one, dict) else one[1]):
            if item and self.choose([True, False]):
                self.out.write(gap)
                return self.block(one, column + 1 + len(gap), begun=True)
            self.out.write(self.ending())
            same = isinstance(one, tuple) and not item and self.choose([True, False])
            return self.block(one, column if same else inner)
        if isinstance(one, list):  # a text of these lines
            deep = next((line for line in one if line), "").startswith(" ")
            step = self.choose([1, 2, 4])
            told = str(step) if deep or self.choose([True, False]) else ""
            self.out.write(gap + self.choose("|>") + told + self.choose(["", "+", "-"]) + "\n")
            return self.out.writelines(f"{' ' * (column + step)}{line}".rstrip(" ") + "\n" for line in one)
        if isinstance(one, str):
            quoted = yaml.safe_dump(one, default_style='"', width=10_000).strip()
            if " " in one.strip() and "\t" not in one:
                quoted = quoted.replace(" ", "\n" + " " * inner, 1) if one[0] != " " and self.choose([0, 1]) else quoted
            return self.flow(gap, quoted)
        return self.flow(gap, "[]" if isinstance(one, tuple) else "{}" if isinstance(one, dict) else str(one))

    def flow(self, gap: str, text: str) -> None:
        self.out.write(gap + text + self.ending())


def comments(text: str) -> list[str]:
    return re.findall("#a comment|# at the end", text)


@campaign(test=100, soak=3000)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), st.data())
def test_what_is_loaded_stays_and_formatted_text_is_formatted(value: Any, data: st.DataObject) -> None:
    author = Author(lambda choices: data.draw(st.sampled_from(choices)))
    author.block(value, data.draw(st.sampled_from([0, 0, 0, 2])))
    text = author.out.getvalue()
    before = parse_yaml(text, "w.yml")
    if before.problems:  # two comments may make of a text one that cannot be read
        return
    after = formatted(text, "w.yml")
    assert parse_yaml(after, "w.yml").data == before.data
    assert formatted(after, "w.yml") == after
    assert comments(after) == comments(text)
    assert after.endswith("\n") or not text.endswith("\n")


def test_levels_of_four_become_levels_of_two() -> None:
    text = "a:\n    b:\n        # of c\n        c: [1,\n            2]\n        d: |\n          text\n"
    text += "    # of b\n    e:\n        -   f: 1\n"
    wanted = "a:\n  b:\n    # of c\n    c: [1,\n        2]\n    d: |\n      text\n  # of b\n  e:\n    - f: 1\n"
    assert formatted(text, "w.yml") == wanted
