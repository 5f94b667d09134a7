"""Prompt templates: text in which only `${name}` is replaced, written in a workflow or kept in a file."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from agac.core.errors import Problem, Where, did_you_mean
from agac.core.types import JSONValue, Visible
from agac.spec.paths import MAX_LENGTH, OutsideProject, inside, read_text

# `$5` and `"$ref"` stay as they are, `$${` gives `${`. A template is compiled once and rendered in one pass for each
# row: what a value contains is never expanded again.

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_indented = json.JSONEncoder(ensure_ascii=False, indent=2).encode

ROW_JSON = "row_json"
VARS = "vars"
ITEM, INDEX = "item", "index"
"""What a child row is made of, and its place among its parent's children: fields of the row."""

ROWS_JSON, ROWS_COUNT, ROWS_FAILED = "rows_json", "rows_count", "rows_failed"
"""A group's members as a list, how many they are, and how many more failed before they came here."""


class PromptTemplate(string.Template):
    """`string.Template` in which a placeholder has braces and a name of any characters but `{`, `}` and newline."""

    pattern: ClassVar[Any] = (  # the base class compiles it
        r"\$(?:(?P<escaped>\$(?=\{))|\{(?P<braced>[^{}\n]*)\}|(?P<named>(?!))|(?P<invalid>(?=\{)))"
    )


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
    """One `${name}`: `offset` counts characters of the template's text from 0."""

    name: str
    offset: int
    where: Where


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled text. `pieces` are its literal parts, with an empty string where a value goes; each of `slots` is
    (index in pieces, name, the name split at its dots)."""

    text: str
    placeholders: tuple[Placeholder, ...]
    pieces: tuple[str, ...]
    slots: tuple[tuple[int, str, tuple[str, ...]], ...]

    def render(self, visible: Visible) -> str:
        """The text with every placeholder replaced: strings verbatim, other values as compact JSON.

        Raises `MissingField` for the first name that `visible` cannot resolve.
        """
        pieces = list(self.pieces)
        for index, name, parts in self.slots:
            try:
                value = visible[name]
            except KeyError:
                value = _dotted(visible, name, parts)
            pieces[index] = value if type(value) is str else as_text(value)
        return "".join(pieces)

    def with_pieces(self, change: Callable[[str], str]) -> Template:
        """The same template with each literal part replaced by what `change` gives for it."""
        return replace(self, pieces=tuple(map(change, self.pieces)))


class Skipped(Enum):
    """Stands for the result of a stage whose guard said no: an empty text in prompts, null in guards and in JSON."""

    SKIPPED = "skipped"


SKIPPED = Skipped.SKIPPED


NO_TEXT = Template("", (), ("",), ())
"""The template of a stage that sends nothing."""


def as_text(value: JSONValue) -> str:
    """A value as it stands in a prompt: strings verbatim, others as compact JSON, nothing for a skipped result."""
    if isinstance(value, str):
        return value
    return "" if value is SKIPPED else _compact(value)


def _dotted(visible: Visible, name: str, parts: tuple[str, ...]) -> JSONValue:
    """Follows `a.b.0.c` through objects and arrays. Raises `MissingField` where the way ends."""
    head, *rest = parts
    try:
        value = visible[head]
        if value is SKIPPED:
            return SKIPPED
        for part in rest:
            value = value[int(part)] if isinstance(value, list) and part.isdecimal() else _member(value, part)
    except (KeyError, IndexError, ValueError):
        raise MissingField(name, visible) from None
    return value


def _member(value: JSONValue, part: str) -> JSONValue:
    if isinstance(value, dict):
        return value[part]
    raise KeyError(part)


def compile_template(
    text: str, where: Where, *, positions: bool = False, path: str = ""
) -> tuple[Template | None, list[Problem]]:
    """The template of `text`, or None and what is wrong with it.

    `positions`: the text is a file's and starts at `where`, so that placeholders get a line and column of their own;
    otherwise they carry `where` itself.
    """
    pieces: list[str] = []
    slots: list[tuple[int, str, tuple[str, ...]]] = []
    placeholders: list[Placeholder] = []
    problems: list[Problem] = []
    end = 0
    for match in PromptTemplate.pattern.finditer(text):
        spot = spot_of(text, match.start(), where) if positions else where
        pieces.append(text[end : match.start()])
        end = match.end()
        if match["escaped"] is not None:
            pieces.append("$")
        elif match["braced"] is None:
            problems.append(Problem(spot, _unclosed(text, match.start()), path))
        elif not (name := match["braced"].strip()):
            problems.append(Problem(spot, "empty placeholder ${}; name a field, or write $${} for the text ${}", path))
        else:
            slots.append((len(pieces), name, tuple(name.split("."))))
            placeholders.append(Placeholder(name, match.start(), spot))
            pieces.append("")
    pieces.append(text[end:])
    if problems:
        return None, problems
    return Template(text, tuple(placeholders), tuple(pieces), tuple(slots)), []


def _unclosed(text: str, offset: int) -> str:
    excerpt = text[offset : offset + 24].splitlines()[0]
    return f"placeholder is never closed: {excerpt!r}; add the }} or write $${{ for the text ${{"


def spot_of(text: str, offset: int, start: Where) -> Where:
    """The place of the character at `offset` of a text that starts at `start`, the first column of its line."""
    line = text.count("\n", 0, offset)
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return Where(start.file, (start.line or 1) + line, column)


def default_prompt(needs: Sequence[str], where: Where) -> Template:
    """What a stage without a prompt sends: the row, and what the stages that it follows answered."""
    named = [f"${{{needs[0]}}}"] if len(needs) == 1 else [f"{need}:\n${{{need}}}" for need in needs]
    text = "\n\n".join([f"${{{ROW_JSON}}}", *named])
    template, _ = compile_template(text, where)
    assert template is not None
    return template


def group_prompt(where: Where) -> Template:
    """What a stage without a prompt sends that is asked once a group: its members."""
    template, _ = compile_template(f"${{{ROWS_JSON}}}", where)
    assert template is not None
    return template


def row_json(data: Mapping[str, JSONValue]) -> str:
    """A row's fields as JSON with two-space indent, not ASCII-escaped."""
    return _indented(data)


class VisibleRow(Mapping[str, JSONValue]):
    """What a stage's template sees of one row: `vars`, results by stage name, `row_json`, then the row's fields.

    It keeps references, no copies: results that are added to `results` later are visible too.
    """

    __slots__ = ("_data", "_results", "_row_json", "_vars")

    def __init__(
        self, data: Mapping[str, JSONValue], results: Mapping[str, JSONValue], variables: Mapping[str, JSONValue]
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
                self._row_json = row_json(self._data)
            return self._row_json
        if name == VARS:
            return self._vars
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """Everything that can be asked for by its first name: the row's fields, results, `vars`, `row_json`."""
        own = [*self._results, *([VARS] if self._vars else []), ROW_JSON]
        return [*(name for name in self._data if name not in own), *own]


def visible_row(
    data: Mapping[str, JSONValue], results: Mapping[str, JSONValue], variables: Mapping[str, JSONValue]
) -> VisibleRow:
    """The names a stage's template can use for one row."""
    return VisibleRow(data, results, variables)


_SUFFIXES = (".md", ".markdown", ".txt")
_STARTS = ("/", "~/", "./", "../")


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text and where it starts; `is_file` when that is a file of its own, so that every line has a place."""

    text: str
    where: Where
    is_file: bool


def text_or_file(value: str, root: Path, where: Where, key: str) -> tuple[ReadText | None, list[Problem]]:
    """The text itself or, where it names an existing file of the project, that file's text.

    A single word that looks like a path (`prompts/x.md`) and names nothing is a Problem, not a prompt.
    """
    if "\n" in value or len(value) > MAX_LENGTH or "${" in value:
        return ReadText(value, where, False), []
    looks_like_path = not any(map(str.isspace, value)) and (value.endswith(_SUFFIXES) or value.startswith(_STARTS))
    try:
        path = inside(root, value)
    except OutsideProject as error:
        if looks_like_path or _names_something(root, value):
            return None, [Problem(where, str(error), key)]
        return ReadText(value, where, False), []
    if path.is_file() or looks_like_path:
        return template_file(value, root, where, key)
    return ReadText(value, where, False), []


def template_file(value: str, root: Path, where: Where, key: str) -> tuple[ReadText | None, list[Problem]]:
    """The text of a file that must exist."""
    path = existing_file(value, root, where, key)
    return (None, [path]) if isinstance(path, Problem) else _file(path, root, where, key)


def _names_something(root: Path, value: str) -> bool:
    """Whether a text that may not be a path happens to be one, outside the project or behind a link."""
    return "\0" not in value and os.path.lexists(root / value)


def _file(path: Path, root: Path, where: Where, key: str) -> tuple[ReadText | None, list[Problem]]:
    shown = path.relative_to(root.resolve()).as_posix()
    text, problem = read_text(path, shown)
    if problem is not None:
        return None, [problem]
    text = text.rstrip("\n")
    if not text.strip():
        return None, [Problem(where, f"{shown} is empty", key)]
    return ReadText(text, Where(shown, 1, 1), True), []


def existing_file(value: str, root: Path, where: Where, key: str, *, base: Path | None = None) -> Path | Problem:
    """The file of the project that `value` names, relative to `base` (the root when None); or why there is none."""
    try:
        path = inside(root, value, base=base)
    except OutsideProject as error:
        return Problem(where, str(error), key)
    if not path.is_file():
        return Problem(where, f"no such file: {value!r}; {near_files(path, root)}", key)
    return path


def near_files(path: Path, root: Path) -> str:
    """What was probably meant: a file with a like name beside `path`, or what its folder holds."""
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    known = sorted(file.relative_to(root.resolve()).as_posix() for file in folder.iterdir() if file.is_file())
    wanted = path.relative_to(root.resolve()).as_posix()
    return did_you_mean(wanted, known, f"files in {folder.relative_to(root.resolve()).as_posix()}/")
