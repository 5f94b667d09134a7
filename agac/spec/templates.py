"""Texts with placeholders, `${name}` or as another syntax writes them: compiled once, and rendered
for each row."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from agac.core.errors import Problem, Where
from agac.core.json_text import json_encoder
from agac.core.types import JSONValue, Visible

# A template is compiled once, whatever its syntax, and rendered in one pass for each row: what a
# value contains is never expanded again. dollar: `$5` and `"$ref"` stay as they are, `$${` gives
# `${`. mustache: `{{` counts only before a name and `}}`, `\\{{name}}` gives `{{name}}`. brace:
# `{name}`; `{{` and the `}}` that belongs to it give single braces, as in Python's `str.format`,
# and every other brace stays, so that JSON may be written either way.

Syntax = Literal["auto", "dollar", "mustache", "brace"]
"""How a text marks what is replaced. auto: as the first of `${name}`, `{{name}}` and `{name}` that
the text holds."""

FORMS: dict[Syntax, str] = {"dollar": "${%s}", "mustache": "{{%s}}", "brace": "{%s}"}

_compact = json_encoder()
_indented = json.JSONEncoder(ensure_ascii=False, indent=2).encode

# the name under which a guard sees all fields of the row: for odd names, and to ask whether there
# is one
ROW = "row"
# the share of a vote's replicas that agree, for the guard of a stage that amends its result
AGREEMENT = "agreement"
ROW_JSON = "row_json"
VARS = "vars"
ITEM = "item"
INDEX = "index"
"""What a child row is made of, and its place among its parent's children: fields of the row."""

ROWS_JSON = "rows_json"
ROWS_COUNT = "rows_count"
ROWS_FAILED = "rows_failed"
"""A group's members as a list, how many they are, and how many more failed before they came here.
"""

_PLACEHOLDER = re.compile(r"\$(?:(?P<escaped>\$(?=\{))|\{(?P<braced>[^{}\n]*)\}|(?=\{))")
"""A name in braces, of any characters but `{`, `}` and newline; or a `${` that is not closed."""

_MUSTACHE = re.compile(
    r"(?<!\\)(?P<slashes>\\*)\{\{[ \t]*(?P<name>[^\W\d]\w*(?:[ .-]\w+)*)[ \t]*\}\}"
)
"""A name of words, which points, hyphens and single spaces join: columns of tables are called
`first name`."""

_BRACE = re.compile(r"\{(?P<name>[^\W\d]\w*(?:\.\w+)*)\}|\{\{|\}\}|[{}]")
"""A name of words, which points join; or other braces, doubled ones as one."""


class MissingField(Exception):
    """A row lacks what a template asks for. `visible` are the names that it does have."""

    def __init__(self, name: str, visible: Iterable[str]) -> None:
        super().__init__(name)
        self.name = name
        self.visible = tuple(visible)

    def __str__(self) -> str:
        return f"${{{self.name}}} is missing; visible are: {', '.join(self.visible) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `${name}`, and where it stands."""

    name: str
    where: Where


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled text."""

    text: str
    """The text with dollars, whatever the `syntax` was. It is stored: a prompt that only changes
    its syntax is the same prompt."""
    placeholders: tuple[Placeholder, ...]
    pieces: tuple[str, ...]
    """Its literal parts, with an empty string for each value."""
    slots: tuple[tuple[int, str, tuple[str, ...]], ...]
    """For each value its index in `pieces`, its name, and the name split at its dots."""
    syntax: Syntax = "dollar"

    def render(self, visible: Visible) -> str:
        """Returns the text with every placeholder replaced: strings verbatim, other values as
        compact JSON. Raises `MissingField` for the first name that `visible` cannot resolve."""
        pieces = list(self.pieces)
        for index, name, parts in self.slots:
            try:
                value = visible[name]
            except KeyError:
                value = dotted(visible, name, parts)
            pieces[index] = value if type(value) is str else as_text(value)
        return "".join(pieces)


class Skipped(Enum):
    """Stands for the result of a stage whose guard said no: an empty text in prompts, null in
    guards and in JSON; and for one that somebody rejected, which the stages after the review see
    as skipped."""

    SKIPPED = "skipped"
    REJECTED = "rejected"


SKIPPED, REJECTED = Skipped
NO_TEXT = Template("", (), ("",), ())  # the template of a stage that sends nothing


def as_text(value: JSONValue) -> str:
    """Returns a value as it stands in a prompt: strings verbatim, others as compact JSON, nothing
    for a skipped result."""
    if isinstance(value, str):
        return value
    return "" if value is SKIPPED else _compact(value)


def dotted(visible: Visible, name: str, parts: tuple[str, ...]) -> JSONValue:
    """Follows `a.b.0.c` through objects and arrays. Raises `MissingField` where the way ends."""
    head, *rest = parts
    try:
        value = visible[head]
        for part in rest if value is not SKIPPED else ():
            if isinstance(value, dict):
                value = value[part]
            elif isinstance(value, list) and part.isdecimal():
                value = value[int(part)]
            else:
                raise MissingField(name, visible)
    except (KeyError, IndexError, ValueError):
        raise MissingField(name, visible) from None
    return value


class _Mark(NamedTuple):
    """What is replaced in a text."""

    start: int
    end: int
    name: str | None = None
    """The name of the value that replaces it."""
    literal: str = ""
    """The text that replaces it if there is no name."""
    fault: str = ""
    """Why it cannot be replaced."""


def _dollar_marks(text: str, *, stored: bool = False) -> Iterator[_Mark]:
    """Yields those of `${name}` and `$${`; in a `stored` text `${}` is a `$` that stands right
    before a value."""
    for match in _PLACEHOLDER.finditer(text):
        start, end = match.span()
        name = (match["braced"] or "").strip()
        if name:
            yield _Mark(start, end, name)
        elif match["escaped"] is not None or (stored and match["braced"] is not None):
            yield _Mark(start, end, literal="$")
        elif match["braced"] is None:
            excerpt = text[start : start + 24].partition("\n")[0]
            message = (
                f"placeholder is never closed: {excerpt!r}; add the }} or write $${{ for "
                f"the text ${{"
            )
            yield _Mark(start, end, fault=message)
        else:
            message = "empty placeholder ${}; name a field, or write $${} for the text ${}"
            yield _Mark(start, end, fault=message)


def _mustache_marks(text: str) -> Iterator[_Mark]:
    """Yields those of `{{name}}`, and of backslashes right before it: each two are one, a single
    one keeps it as a text."""
    for match in _MUSTACHE.finditer(text):
        start, brace = match.span("slashes")
        if brace > start:
            yield _Mark(start, brace, literal="\\" * ((brace - start) // 2))
        escaped = (brace - start) % 2
        yield (
            _Mark(brace, brace + 1, literal="{")
            if escaped
            else _Mark(brace, match.end(), match["name"])
        )


def _brace_marks(text: str) -> Iterator[_Mark]:
    """Returns those of `{name}`, and of doubled braces that belong together."""
    found = list[_Mark]()  # where a brace was opened, and whether doubled
    opened = list[tuple[int, bool]]()
    at = 0
    while match := _BRACE.search(text, at):
        start, at = match.span()
        doubled = at - start == 2
        if match["name"]:
            found.append(_Mark(start, at, match["name"]))
        elif match[0][0] == "{":
            opened.append((start, doubled))
        elif not doubled or (opened and not opened[-1][1]):
            # ends a single one, and doubled ones in that have no end
            at = start + 1
            single = next(
                (place for place in reversed(range(len(opened))) if not opened[place][1]),
                len(opened),
            )
            del opened[single:]
        elif opened:
            begun, _ = opened.pop()
            found += [_Mark(begun, begun + 2, literal="{"), _Mark(start, at, literal="}")]
    return iter(sorted(found))


MARKS: dict[Syntax, Callable[[str], Iterator[_Mark]]] = {
    "dollar": _dollar_marks, "mustache": _mustache_marks, "brace": _brace_marks,
}  # fmt: skip


def compile_template(
    text: str, where: Where, syntax: Syntax = "dollar"
) -> tuple[Template | None, list[Problem]]:
    """Returns the template of a text that starts at `where`, or None and what is wrong with it."""
    # the first that replaces or escapes a name; doubled braces alone are in any JSON
    if syntax == "auto":
        used = (
            a
            for a, marks in MARKS.items()
            if any(m.name or (m.literal and a != "brace") for m in marks(text))
        )
        syntax = next(used, "dollar")
    return _assembled(text, where, syntax, MARKS[syntax](text))


def _assembled(
    text: str, at: Where, syntax: Syntax, marks: Iterable[_Mark]
) -> tuple[Template | None, list[Problem]]:
    pieces: list[str] = []
    slots: list[tuple[int, str, tuple[str, ...]]] = []
    placeholders: list[Placeholder] = []
    problems: list[Problem] = []
    places = Places(text, at)
    end = 0
    for mark in marks:
        pieces.append(text[end : mark.start])
        end = mark.end
        if mark.fault:
            problems.append(Problem(places.at(mark.start), mark.fault))
            continue
        if mark.name is not None:
            slots.append((len(pieces), mark.name, tuple(mark.name.split("."))))
            placeholders.append(Placeholder(mark.name, places.at(mark.start)))
        pieces.append(mark.literal)
    pieces.append(text[end:])
    if problems:
        return None, problems
    if syntax == "dollar":
        dollars = text
    else:
        dollars = _with_dollars(pieces, {index: name for index, name, _ in slots})
    return Template(dollars, tuple(placeholders), tuple(pieces), tuple(slots), syntax), []


def _with_dollars(pieces: Sequence[str], names: Mapping[int, str]) -> str:
    """Returns the text of these pieces as `sound_template` reads it; `names` are those of values,
    by their places."""
    written = ""
    literal = ""
    for index, piece in enumerate(pieces):
        literal += piece
        if index in names:
            bare = literal.rstrip("$")
            written += (
                literal_text(bare) + "${}" * (len(literal) - len(bare)) + f"${{{names[index]}}}"
            )
            literal = ""
    return written + literal_text(literal)


class Places:
    """The places of characters of a text that starts at `start`: their lines and columns in a text
    that is lines of a file, else that of the text's key."""

    def __init__(self, text: str, start: Where) -> None:
        self._text = text
        self._start = start
        self._line_ends: list[int] | None = None

    def at(self, offset: int) -> Where:
        """Returns the place of one character."""
        start = self._start
        if start.path or start.line is None:
            return start
        if self._line_ends is None:
            self._line_ends = [match.start() for match in re.finditer("\n", self._text)]
        above = bisect_left(self._line_ends, offset)
        line_end = self._line_ends[above - 1] if above else -1
        return Where(start.file, start.line + above, offset - line_end)


def sound_template(text: str, where: Where) -> Template:
    """Returns the template of a text that agac wrote, or stored: with dollars, every placeholder
    is closed and named."""
    template, problems = _assembled(text, where, "dollar", _dollar_marks(text, stored=True))
    assert template is not None, problems
    return template


def literal_text(text: str) -> str:
    """Returns a text as a template has it in which nothing is a placeholder."""
    return text.replace("${", "$${")


def in_syntax(message: str, syntax: Syntax) -> str:
    """Returns a message that writes placeholders with dollars, with the same as the syntax writes
    them."""
    if syntax == "dollar":
        return message
    return _BRACED.sub(lambda match: FORMS[syntax] % match[1], message)


_BRACED = re.compile(r"\$\{([^{}\n]+)\}")
ALL_ALIKE = "names no field: every row asks the same; name a field of the row, as ${text}"
"""Said of a prompt that is the same for all rows."""


def default_prompt(needs: Sequence[str], where: Where) -> Template:
    """Returns the prompt of a stage without one: the row, and what the stages that it follows
    answered."""
    if len(needs) == 1:
        named = [f"${{{needs[0]}}}"]
    else:
        named = [f"{need}:\n${{{need}}}" for need in needs]
    return sound_template("\n\n".join([f"${{{ROW_JSON}}}", *named]), where)


def group_prompt(where: Where) -> Template:
    """Returns the prompt of a stage without one that is asked once a group: its members."""
    return sound_template(f"${{{ROWS_JSON}}}", where)


class VisibleRow(Mapping[str, JSONValue]):
    """What a stage's template sees of one row: `vars`, results by stage name, `row_json`, then the
    row's fields. It keeps references, no copies: results that are added to `results` later are
    visible too."""

    __slots__ = ("_data", "_results", "_row_json", "_vars")

    def __init__(
        self,
        data: Mapping[str, JSONValue],
        results: Mapping[str, JSONValue],
        variables: Mapping[str, JSONValue],
    ) -> None:
        self._data = data
        self._results = results
        self._vars = variables
        self._row_json: str | None = None

    def __getitem__(self, name: str) -> JSONValue:
        if name in self._results:
            return self._results[name]
        if name == ROW_JSON:
            if self._row_json is None:
                self._row_json = _indented(self._data)
            return self._row_json
        if name == VARS:
            return self._vars
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        own = [*self._results, *([VARS] if self._vars else []), ROW_JSON]
        yield from (name for name in self._data if name not in own)
        yield from own

    def __len__(self) -> int:
        return sum(1 for _ in self)
