"""Prompts and instructions: texts with placeholders, `${name}` or as another syntax writes them,
here or in files."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple, cast

from agac.core.errors import Problem, Where, any_error, did_you_mean
from agac.core.json_text import json_encoder
from agac.core.types import JSONValue, Visible
from agac.spec.paths import MAX_LENGTH, OutsideProject, Unusable, existing_file, inside
from agac.spec.project_files import read_text

# A template is compiled once, whatever its syntax, and rendered in one pass for each row: what a
# value contains is never expanded again. dollar: `$5` and `"$ref"` stay as they are, `$${` gives
# `${`. mustache: `{{` counts only before a name and `}}`, `\\{{name}}` gives `{{name}}`. brace:
# `{name}`; `{{` and the `}}` that belongs to it give single braces, as in Python's `str.format`,
# and every other brace stays, so that JSON may be written either way.

Syntax = Literal["auto", "dollar", "mustache", "brace"]
"""How a text marks what is replaced. auto: as the first of `${name}`, `{{name}}` and `{name}` that
the text holds."""

_FORMS: dict[Syntax, str] = {"dollar": "${%s}", "mustache": "{{%s}}", "brace": "{%s}"}

_compact = json_encoder()
_indented = json.JSONEncoder(ensure_ascii=False, indent=2).encode

_NO_VALUE = re.compile("env|clientDisplay|executionEnvironment.*|internal:.*")
"""Placeholders that AgentCards may hold elsewhere, and that have no value in a run."""

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
    """A compiled text. `pieces` are its literal parts, with an empty string where a value goes;
    each of `slots` is (index in pieces, name, the name split at its dots). `text` is the same with
    dollars, whatever the `syntax` was: so it is stored, and a prompt that only changes its syntax
    is the same prompt."""

    text: str
    placeholders: tuple[Placeholder, ...]
    pieces: tuple[str, ...]
    slots: tuple[tuple[int, str, tuple[str, ...]], ...]
    syntax: Syntax = "dollar"

    def render(self, visible: Visible) -> str:
        """The text with every placeholder replaced: strings verbatim, other values as compact
        JSON. Raises `MissingField` for the first name that `visible` cannot resolve."""
        pieces = list(self.pieces)
        for index, name, parts in self.slots:
            try:
                value = visible[name]
            except KeyError:
                value = _dotted(visible, name, parts)
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
    """A value as it stands in a prompt: strings verbatim, others as compact JSON, nothing for a
    skipped result."""
    if isinstance(value, str):
        return value
    return "" if value is SKIPPED else _compact(value)


def _dotted(visible: Visible, name: str, parts: tuple[str, ...]) -> JSONValue:
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
    """What is replaced in a text: by the value of `name`, or else by `literal`; `fault`: why it
    cannot be."""

    start: int
    end: int
    name: str | None = None
    literal: str = ""
    fault: str = ""


def _dollar_marks(text: str, *, stored: bool = False) -> Iterator[_Mark]:
    """Those of `${name}` and `$${`; in a `stored` text `${}` is a `$` that stands right before a
    value."""
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
    """Those of `{{name}}`, and of backslashes right before it: each two are one, a single one
    keeps it as a text."""
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
    """Those of `{name}`, and of doubled braces that belong together."""
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


_MARKS: dict[Syntax, Callable[[str], Iterator[_Mark]]] = {
    "dollar": _dollar_marks, "mustache": _mustache_marks, "brace": _brace_marks,
}  # fmt: skip


def compile_template(
    text: str, where: Where, syntax: Syntax = "dollar"
) -> tuple[Template | None, list[Problem]]:
    """The template of a text that starts at `where`, or None and what is wrong with it."""
    # the first that replaces or escapes a name; doubled braces alone are in any JSON
    if syntax == "auto":
        used = (
            a
            for a, marks in _MARKS.items()
            if any(m.name or (m.literal and a != "brace") for m in marks(text))
        )
        syntax = next(used, "dollar")
    return _assembled(text, where, syntax, _MARKS[syntax](text))


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
    """The text of these pieces as `sound_template` reads it; `names` are those of values, by their
    places."""
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
        """The place of one character."""
        start = self._start
        if start.path or start.line is None:
            return start
        if self._line_ends is None:
            self._line_ends = [match.start() for match in re.finditer("\n", self._text)]
        above = bisect_left(self._line_ends, offset)
        line_end = self._line_ends[above - 1] if above else -1
        return Where(start.file, start.line + above, offset - line_end)


def sound_template(text: str, where: Where) -> Template:
    """The template of a text that agac wrote, or stored: with dollars, every placeholder is closed
    and named."""
    template, problems = _assembled(text, where, "dollar", _dollar_marks(text, stored=True))
    assert template is not None, problems
    return template


def literal_text(text: str) -> str:
    """A text as a template has it in which nothing is a placeholder."""
    return text.replace("${", "$${")


def in_syntax(message: str, syntax: Syntax) -> str:
    """A message that writes placeholders with dollars, with the same as the syntax writes them."""
    if syntax == "dollar":
        return message
    return _BRACED.sub(lambda match: _FORMS[syntax] % match[1], message)


_BRACED = re.compile(r"\$\{([^{}\n]+)\}")
_FOREIGN = re.compile(
    r"\$\{(?P<dollar>[^${}\n]+)\}|\{\{(?P<mustache>[^${}\n]+)\}\}|(?<!\{)\{(?P<brace>[^${}\n]+)\}(?!\})"
    r"|(?<![$\w\\])\$([^\W\d]\w*(?:\.\w+)*)"
)
"""`${review}`, `{{review}}` and `{review}`, each of which a syntax reads, and `$review`, which
none does."""

_DOTTED = re.compile(r"[\w.]+")


def foreign_placeholders(
    template: Template,
    where: Where,
    names: Container[str],
    said: Syntax | None,
    *,
    any_field: bool = False,
) -> list[Problem]:
    """Finds placeholders that another syntax than the template's would read, and that are sent as
    they are written: those of known `names`, and with `any_field`, where rows may have fields of
    any name, the others.

    `said` is the syntax that a file names, None where none does. If it says which placeholders
    count, these are warnings. If it is `auto`, or there are placeholders that the template reads,
    they are errors; but a single `{name}` that may be prose is one in `auto` alone."""
    unsure = said == "auto" or (said is None and bool(template.placeholders))
    problems: dict[str, Problem] = {}
    for text, name, syntax in _foreign(template):
        known = _is_known(name, names)
        readable = unsure and syntax is not None and syntax in _reading(name)
        may_be_field = any_field and (said == "auto" or syntax != "brace")
        if readable and (known or may_be_field):
            problems[text] = Problem(where, _two_kinds(text, template, str(syntax)))
        elif known or (any_field and readable):
            ways = ", or ".join(_ways_to_name(name, template.syntax, syntax))
            problems[text] = Problem(where, f"{text} is sent as it stands; {ways}", "warning")
        elif readable and syntax != "brace" and template.placeholders:
            message = f"{text} is sent as it stands; no field has this name"
            problems[text] = Problem(where, message, "warning")
    for text in _programs(template):
        if text not in problems and _names_any(text, names):
            message = (
                f"{text} is sent as it stands; prompts have no filters or conditions, only "
                "values of fields"
            )
            problems[text] = Problem(where, message, "warning")
    return list(problems.values())


def _is_known(name: str, names: Container[str]) -> bool:
    """True for a known name, and for a way such as `review.text` into one."""
    if name in names:
        return True
    return _DOTTED.fullmatch(name) is not None and name.partition(".")[0] in names


def _names_any(text: str, names: Container[str]) -> bool:
    """True if one of the words of a text is a known name."""
    return any(word in names for word in re.findall(r"\w+", text))


_PROGRAM = re.compile(
    r"\{\{\s*[#^&>][^{}\n]{1,200}\}\}|\{\{[^{}|\n]{1,200}\|[^{}\n]{1,200}\}\}|\{%[^{}\n]{1,200}%\}"
)


def _programs(template: Template) -> Iterator[str]:
    """What Jinja and Mustache read as more than a value, in the literal parts: `{{ a | upper }}`,
    `{% if a %}`."""
    for piece in template.pieces:
        for match in _PROGRAM.finditer(piece):
            yield match[0]


def _foreign(template: Template) -> Iterator[tuple[str, str, Syntax | None]]:
    """What looks like a placeholder in the literal parts: as it is written, its name, and the
    syntax that reads it."""
    for before, piece in zip(("", *template.pieces), template.pieces, strict=False):
        for match in _FOREIGN.finditer(piece):
            if before in ("$", "{") and match.start() == 0:
                continue  # $${name}: it is meant as it is written
            name = match[match.lastindex or 0]
            syntax = cast("Syntax | None", match.lastgroup)
            yield match[0], name.strip() if syntax == "mustache" else name, syntax


def _two_kinds(text: str, template: Template, other: str) -> str:
    if template.placeholders:
        own = f" than {_FORMS[template.syntax] % template.placeholders[0].name}"
    else:
        own = ""
    return (
        f"{text} is a placeholder of another kind{own}; write all placeholders alike, or say by "
        f"`syntax` which kind counts: {template.syntax} or {other}"
    )


def _ways_to_name(name: str, own: Syntax, other: Syntax | None) -> list[str]:
    """What one can do for the value of `name`, by syntaxes that read such a name."""
    reading = _reading(name)
    all_as = "write all placeholders as {} with `syntax: {}`"
    if own in reading:
        ways = [f"write {_FORMS[own] % name} for its value"]
    else:
        ways = []
    if other is not None and other != own and other in reading:
        ways.append(all_as.format(_FORMS[other] % "name", other))
    return ways or ["rename the field", all_as.format(_FORMS["dollar"] % "name", "dollar")]


def _reading(name: str) -> list[Syntax]:
    """The syntaxes that read such a name."""
    return [
        one for one, marks in _MARKS.items() if any(mark.name for mark in marks(_FORMS[one] % name))
    ]


ALL_ALIKE = "names no field: every row asks the same; name a field of the row, as ${text}"
"""Said of a prompt that is the same for all rows."""


def default_prompt(needs: Sequence[str], where: Where) -> Template:
    """What a stage without a prompt sends: the row, and what the stages that it follows
    answered."""
    if len(needs) == 1:
        named = [f"${{{needs[0]}}}"]
    else:
        named = [f"{need}:\n${{{need}}}" for need in needs]
    return sound_template("\n\n".join([f"${{{ROW_JSON}}}", *named]), where)


def group_prompt(where: Where) -> Template:
    """What a stage without a prompt sends that is asked once a group: its members."""
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


_SUFFIX = re.compile(r"[\w)]\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
"""How a single word ends that is the name of a file."""

_OF_TEXTS = re.compile(
    r"[\w)]\.(?:md|markdown|mdx|txt|text|rst|prompt|j2|jinja2?|tmpl|tpl|hbs|mustache|ya?ml|json)\Z",
    re.IGNORECASE,
)
"""How a name with spaces ends: suffixes of files with texts, which sentences seldom end with."""

_STARTS = ("/", "~/", "./", "../")

_ON_WINDOWS = re.compile(r"[A-Za-z]:\\|\\\\\w|\.{1,2}\\\w")
"""How a path on Windows begins: `C:\\`, the name of a machine behind two backslashes, or `.\\`."""

PlacedText = tuple[str, Where]
"""A text and where it starts: at its key, or, where it is a file of its own, at the first line of
that."""


def text_or_file(value: str, root: Path, where: Where) -> PlacedText:
    """The text itself or, where it names an existing file of the project, that file's text. Raises
    Unusable, also for what looks like a path (`prompts/x.md`, `my notes.md`) and names nothing: it
    is no prompt."""
    own = value, where
    if "\n" in value or len(value) > MAX_LENGTH or "${" in value:
        return own
    try:
        is_file = inside(root, value).is_file()
    except OutsideProject:
        # a text that may not be a path, unless it happens to be one, or behind a link
        is_file = "\0" not in value and os.path.lexists(root / value)
    if is_file:
        return template_file(value, root, where)
    if not _looks_like_path(value, root):
        return own
    try:
        return template_file(value, root, where)
    except Unusable as error:
        stop = "" if error.problem.message.endswith("?") else "."
        message = f"{error.problem.message}{stop} If it is a text, end it with a full stop"
        raise Unusable(replace(error.problem, message=message)) from None


def _looks_like_path(value: str, root: Path) -> bool:
    """True for one line that is rather the name of a file than a text: by its suffix, a slash, or
    how it begins."""
    value = value.strip()
    if set(value) & set("{}\0") or "://" in value or value[-1:] in (*".!?:;,", ""):
        return False
    if _ON_WINDOWS.match(value):
        return True
    if not any(map(str.isspace, value)):
        return bool("/" in value or _SUFFIX.search(value))
    if _OF_TEXTS.search(value) or value.startswith(_STARTS):
        return True
    folder = value.rpartition("/")[0]
    try:
        return bool(folder) and inside(root, folder).is_dir()
    except OutsideProject:
        return False


def template_file(value: str, root: Path, where: Where) -> PlacedText:
    """The text of a file that must exist. Raises Unusable."""
    path = existing_file(value, root, where)
    return placed_file(path, path.relative_to(root.resolve()).as_posix(), where, root)


def placed_file(path: Path, shown: str, where: Where, root: Path | None) -> PlacedText:
    """The text of a file that is `shown` in messages; `where` it is named; `root` is that of its
    project, None for a file that a user typed or that was fetched. Raises Unusable."""
    text = read_text(path, shown, root)
    if not text.strip():
        raise Unusable(Problem(where, f"{shown} is empty"))
    return text.rstrip("\n"), Where(shown, 1, 1)


# Instructions are the same for every row. `${vars.x}` is filled in each of them; in a card's,
# `{{x}}` too, from the same variables and the card's own facts. What is filled in is never read
# again.

_BRACES = re.compile(r"(\\?)\{\{([^{}\n]*)\}\}")


def braced(text: str, where: Where) -> Iterator[tuple[str, Where]]:
    """The names in double braces of a card's instruction, and where they stand."""
    places = Places(text, where)
    for match in _BRACES.finditer(text):
        if not match[1]:
            yield match[2].strip(), places.at(match.start())


def fill(
    source: PlacedText,
    variables: Mapping[str, JSONValue],
    facts: Mapping[str, str] | None = None,
    syntax: Syntax = "dollar",
) -> tuple[str | None, list[Problem]]:
    """The text with every placeholder replaced, or None where one cannot be, and what is wrong.
    `facts`, if any, are for double braces."""
    text, where = source
    template, problems = compile_template(text, where, syntax)
    if template is None:
        return None, problems
    for placeholder in template.placeholders:
        message = _cannot_fill(placeholder.name, variables, in_card=facts is not None)
        if message is not None:
            problems.append(Problem(placeholder.where, in_syntax(message, template.syntax)))
    if facts is not None:
        known = {**variables, **facts}
        places = Places(text, where)
        # `${…}` has no braces inside: none of them reaches over a piece's end
        for match in _BRACES.finditer(text):
            if not match[1] and match[2].strip() not in known:
                message = _unknown(match[0], match[2].strip(), known)
                problems.append(Problem(places.at(match.start()), message))

        def fact(match: re.Match[str]) -> str:
            if match[1]:
                return match[0][1:]
            return as_text(known.get(match[2].strip()))

        template = replace(
            template, pieces=tuple(_BRACES.sub(fact, piece) for piece in template.pieces)
        )
    else:
        problems += foreign_placeholders(template, where, (VARS,), syntax)
    return (None if any_error(problems) else template.render({VARS: variables})), problems


def _cannot_fill(name: str, variables: Mapping[str, JSONValue], *, in_card: bool) -> str | None:
    head, *rest = name.split(".")
    if head == VARS:
        with suppress(MissingField):
            if rest:
                _dotted({VARS: variables}, name, (head, *rest))
                return None
        known = [f"{VARS}.{key}" for key in variables]
        return f"unknown variable ${{{name}}}; {did_you_mean(name, known, 'variables')}"
    if in_card and name in variables:
        return f"in a card a variable of the workflow is {{{{{name}}}}}"
    if head in variables:
        return f"a variable of the workflow is ${{{VARS}.{name}}}"
    message = f"instructions are the same for every row; move ${{{name}}} into prompt"
    if in_card:
        return f"{message}; in a card a variable of the workflow is {{{{{name}}}}}"
    return message


def _unknown(shown: str, name: str, known: Iterable[str]) -> str:
    if _NO_VALUE.fullmatch(name):
        return f"{shown} has no value in a run; remove it, or write \\{shown} to keep the text"
    remedy = did_you_mean(name, known, "known")
    stop = "" if remedy.endswith("?") else "."
    declare = "Declare it in `variables` of the card or `vars` of the workflow"
    return (
        f"unknown placeholder {shown}; {remedy}{stop} {declare}, or write \\{shown} to "
        "keep the text"
    )
