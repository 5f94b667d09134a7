"""Strict YAML: text in, plain data with positions and a list of Problems out. The only place that
knows YAML. Scalars follow YAML 1.2; `${VAR}` comes from the environment."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import yaml
from yaml import MarkedYAMLError

from agac.core.errors import Path_, Problem, UsageError, Where, key_path
from agac.core.keys import canonical
from agac.core.types import JSONValue
from agac.spec.paths import Refused, Unusable
from agac.spec.project_files import read_text

_WORDS: Mapping[str, JSONValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_FIRST = frozenset("0123456789+-.~nNtTfF")

MAX_DIGITS = 400
"""Longer numbers are no numbers that anybody meant; Python itself refuses to read more than 4,300
digits."""


def plain(text: str) -> JSONValue:
    """Reads a plain (unquoted) scalar by the rules of YAML 1.2, so that `yes`, `on`, `1:30` and
    dates stay the text that was written. Raises `Refused` with a sentence for the user."""
    if text and text[0] not in _FIRST:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch("[-+]?[0-9]+", text):
        return _whole_number(text)
    if re.fullmatch("0o[0-7]+|0x[0-9a-fA-F]+", text):
        return int(text, 0)
    if _NOT_FINITE.fullmatch(text):
        raise Refused(
            f"{text} is not a number that can be used; give a finite number, or quote it to "
            "mean the text"
        )
    if not _FLOAT.fullmatch(text):
        return text
    value = float(text)
    if math.isinf(value):
        raise Refused(f"{text} is too large for a number; quote it to mean the text")
    return value


def _whole_number(text: str) -> int:
    """Reads a whole number. Raises `Refused` for one that may be meant as text."""
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0":
        short = digits.lstrip("0") or "0"
        remedy = f'write "{text}" in quotes to keep it as text, or {short} for the number'
        raise Refused(f"{text} has a leading zero; {remedy}")
    if len(digits) > MAX_DIGITS:
        raise Refused(f"this number has {len(digits)} digits; quote it to mean the text")
    return int(text)


_UNQUOTED = "; put quotes around text that has [ ] { } or , in it"
_BY_PROBLEM = {
    "mapping values are not allowed": (
        "a ':' is not allowed here; put quotes around text that contains ': ', or indent this "
        "line as much as the one above"
    ),
    "expected ':'": (
        "expected a ':' after the key; check the quotes and the indentation of this line"
    ),
    "sequence entries are not allowed": (
        "a '-' is not allowed here; start the list on a line of its own"
    ),
    "block mapping keys are not allowed": (
        "a key is not allowed here; start the mapping on a line of its own"
    ),
    "did not find expected key": (
        "expected a key here; check the indentation and the quotes of the lines above"
    ),
    "<document start>": (
        "something is left over after the end of the document; check the brackets and "
        "quotes before it"
    ),
    "but found '<block mapping start>'": "expected a key here; check the indentation of this line",
    "expected <block end>": (
        "expected a key here; check the indentation and the quotes of the lines above"
    ),
    "did not find expected '-' indicator": (
        "expected a '-' here: all items of a list start in the same column"
    ),
    "expected ',' or '}'": "expected ',' or '}' here" + _UNQUOTED,
    "expected ',' or ']'": "expected ',' or ']' here" + _UNQUOTED,
    "node content": "expected a value here; check the brackets and the '-' signs",
    "unexpected end of stream": "the file ends inside a quoted text",
    "unknown escape character": (
        "unknown escape in double quotes; write \\\\ for a backslash, or use single quotes"
    ),
    "undefined tag handle": "tags are not supported; remove the '!…' and quote the value if needed",
    "duplicate anchor": "this anchor exists already; give it another name",
    "found duplicate": "this directive stands twice; keep one of them",
    "expected comment or line break": (
        "only |, >, |-, >- and the like may stand here; start the text on the next line"
    ),
    "chomping or indentation": (
        "only |, >, |-, >- and the like may stand here; start the text on the next line"
    ),
    "incompatible YAML document": "only YAML 1.1 and 1.2 are read; remove the %YAML line",
}
_OPENERS = {"flow mapping": "'{'", "flow sequence": "'['", "quoted scalar": "quote"}


def _syntax_sentence(error: MarkedYAMLError, text: str, first_line: int) -> str:
    """Says what is wrong and what to do, for one syntax error in `text`, which starts at
    `first_line` of its file."""
    problem = error.problem or "not valid YAML"
    mark = error.problem_mark
    if mark is not None:
        line = "".join(text.split("\n")[mark.line : mark.line + 1])
        character = line[mark.column : mark.column + 1]
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent or character == "\t" or "tab character" in problem:
            return "a tab cannot indent in YAML; use spaces"
        if "cannot start any token" in problem:
            return f"a value cannot start with {character!r}; put quotes around it"
    sentence = _first_match(_BY_PROBLEM, problem) or f"not valid YAML: {problem}"
    opener = _first_match(_OPENERS, error.context or "")
    if opener is None or error.context_mark is None:
        return sentence
    return f"{sentence}; the {opener} was opened on line {error.context_mark.line + first_line}"


def _first_match(words: Mapping[str, str], message: str) -> str | None:
    """Returns the words for the first key that is a part of a message of the parser."""
    return next((value for part, value in words.items() if part in message), None)


# PyYAML parses events; composing them is done here, because its own constructors follow YAML 1.1
# (`on` is true, `012` is ten), let a later duplicate key win, and expand aliases without a bound.

# deeper nesting is a mistake or an attack; a workflow needs six levels, a JSON Schema some twenty
MAX_DEPTH = 50

MAX_EXPANDED = 100_000
"""What all aliases of one file may expand to, counted in values (64 characters of text count as
one more)."""

LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it (ten times as fast), else PyYAML's own."""

_CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OTHER_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
"""Characters that end a line in YAML 1.1, and in libyaml, and none in YAML 1.2 and in editors."""


@dataclass(slots=True)
class _Node:
    """A value with its place."""

    value: JSONValue
    mark: tuple[int, int]
    """The line and column, from 1, where it starts."""
    children: dict[str | int, _Node] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The marks of a mapping's keys."""
    weight: int = 1
    """The number of values in it (64 characters of text count as one more)."""
    blank: bool = False
    """True if nothing is written where the value should be, which YAML reads as null."""


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document."""

    shown: str
    """The path of its file as users see it."""
    data: JSONValue
    """As much of the content as could be read, None for an empty file."""
    problems: list[Problem]
    root: _Node | None = None
    """The content with places; None where it was not read from a file."""
    places: Mapping[str, Where] = field(default_factory=dict)
    """The places of keys that were not read from a file: by the key's path or its name, and of all
    others by an empty one."""

    @property
    def empty(self) -> bool:
        """True if there is nothing but white space and comments: not even a null was written."""
        return self.root is None and self.data is None and not self.problems

    def where(self, path: Path_, *, key: bool = False) -> Where:
        """Returns the place of the value at `path` (of its key with `key`), or of the nearest
        parent that exists."""
        node = self.root
        if node is None:
            return self._given_place(path)
        mark = node.mark
        for depth, part in enumerate(path):
            child = node.children.get(part)
            if child is None:
                break
            is_last = depth == len(path) - 1
            if key and is_last and isinstance(part, str):
                mark = node.keys[part]
            else:
                mark = child.mark
            node = child
        return Where(self.shown, *mark, key_path(path))

    def _given_place(self, path: Path_) -> Where:
        """Returns the place of the value at `path` where the document was not read from a file."""
        for depth in range(len(path), 0, -1):
            place = self.places.get(key_path(path[:depth]))
            if place is not None:
                return _place_below(place, path[depth:])
        for depth, part in enumerate(path, 1):
            place = self.places.get(str(part))
            if place is not None:
                return _place_below(place, path[depth:])
        return self.places.get("") or Where(self.shown, path=key_path(path))

    def is_blank(self, path: Path_) -> bool:
        """True if the key at `path` has nothing behind it: `key:`, and not `key: null`."""
        node = self.root
        for part in path:
            node = node.children.get(part) if node is not None else None
        return node is not None and node.blank

    def problem(self, path: Path_, message: str, *, key: bool = False) -> Problem:
        """Returns a problem with the value at `path`, or with its key."""
        return Problem(self.where(path, key=key), message)


def _place_below(place: Where, path: Path_) -> Where:
    """Returns the place of the value at `path` below a key with this place."""
    return replace(place, path=key_path(path)) if path else place


def read_yaml(path: Path, shown: str, root: Path | None) -> Document:
    """Reads a file of the project at `root`, or one that a user typed (None); everything wrong
    with it stands in the document's `problems`."""
    try:
        return parse_yaml(read_text(path, shown, root), shown)
    except Unusable as error:
        return Document(shown, None, [error.problem])


def parse_yaml(
    text: str, shown: str, *, first_line: int = 1, loader: type[Any] = LOADER
) -> Document:
    """Reads one document from `text`, which starts at `first_line` of the file."""
    found = _CONTROL.search(text) or _OTHER_LINE_ENDS.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start())
        column = found.start() - text.rfind("\n", 0, found.start())
        remedy = "remove it or write it as an escape in quotes"
        message = f"control character U+{ord(found[0]):04X} is not allowed; {remedy}"
        if _OTHER_LINE_ENDS.match(found[0]):
            code = f"{ord(found[0]):04x}"
            message = (
                f"U+{code.upper()} ends a line for some YAML readers only; remove it, or "
                f'write "\\u{code}" in quotes'
            )
        return Document(shown, None, [Problem(Where(shown, first_line + line, column), message)])
    composer = _Composer(shown, first_line)
    try:
        root = composer.compose(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark:
            where = Where(shown, mark.line + first_line, mark.column + 1)
        else:
            where = Where(shown)
        composer.problems.append(Problem(where, _syntax_sentence(error, text, first_line)))
        return Document(shown, None, composer.problems)
    except _Stopped:
        return Document(shown, None, composer.problems)
    return Document(shown, root.value if root else None, composer.problems, root)


class _Writer(yaml.SafeDumper):
    """Writes texts so that `parse_yaml` reads them back: those of several lines in blocks, as
    people do."""

    def ignore_aliases(self, data: Any) -> bool:
        """No value is written as an alias of another."""
        return True

    def text(self, value: str) -> yaml.Node:
        """Returns a text, in quotes where it would be read as another value without them."""
        style = "|" if "\n" in value else None
        try:
            if plain(value) != value or _OTHER_LINE_ENDS.search(value):
                style = '"'
        except Refused:
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Writer.add_representer(str, _Writer.text)


def yaml_text(data: JSONValue) -> str:
    """Returns a YAML file that holds `data`, as `parse_yaml` reads it. Raises UsageError for what
    no YAML file can hold."""
    text: str = yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=120)
    read = parse_yaml(text, "")
    if read.problems or canonical(read.data) != canonical(data):
        if read.problems:
            why = read.problems[0].message
        else:
            why = "it would be read as something else"
        remedy = (
            "Leave out what no text can hold, such as half of a surrogate pair, or an empty key."
        )
        raise UsageError(f"this cannot be written as YAML: {why}", remedy=remedy)
    return text


class _Stopped(Exception):
    """Reading cannot go on; the reason is already among the problems."""


class _Composer:
    """Builds nodes from the events of one document and notes what is wrong with it."""

    def __init__(self, shown: str, first_line: int) -> None:
        self.problems: list[Problem] = []
        self._shown = shown
        self._first_line = first_line
        self._anchors: dict[str, _Node | None] = {}
        self._expanded = 0

    def compose(self, events: Iterator[Any]) -> _Node | None:
        root: _Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._problem(
                        event, "a second document starts here; put one document into each file", ()
                    )
                    return root
            elif isinstance(event, yaml.NodeEvent):
                # an empty file holds one plain scalar without an extent
                if _is_plain(event) and not event.value:
                    root = None
                else:
                    root = self._node(event, events, ())
        return root

    def _node(self, event: Any, events: Iterator[Any], path: Path_) -> _Node:
        """Builds the node that begins with an event."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.tag is not None:
            remedy = f"remove {_tag(event.tag)} and quote the value if needed"
            self._problem(event, f"tags are not supported; {remedy}", path)
        if event.anchor is not None:
            # unfinished: an alias to it from inside would never end
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, path)
        elif len(path) >= MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} levels deep", path[:6])
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, events, path)
        else:
            node = self._mapping(event, events, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, path: Path_) -> _Node:
        """Builds the node of an alias, which has the content of its anchor."""
        anchor = event.anchor
        if anchor not in self._anchors:
            self._refuse(event, f"alias *{anchor} has no anchor &{anchor} before it", path)
        node = self._anchors[anchor]
        if node is None:
            message = f"alias *{anchor} stands inside its own anchor and would never end"
            self._refuse(event, message, path)
        self._expanded += node.weight
        if self._expanded > MAX_EXPANDED:
            message = f"aliases expand to more than {MAX_EXPANDED:,} values; write the content out"
            self._refuse(event, message, path)
        # the mark is the alias's own: that is where the user looks, and what he can change
        return _Node(node.value, self._mark(event), node.children, node.keys, node.weight)

    def _scalar(self, event: Any, path: Path_) -> _Node:
        """Builds the node of a text, a number or another single value."""
        value: JSONValue = event.value
        is_plain = _is_plain(event)
        if is_plain:
            try:
                value = plain(event.value)
            except Refused as error:
                self._problem(event, str(error), path)
        blank = is_plain and not event.value
        return _Node(value, self._mark(event), weight=1 + len(event.value) // 64, blank=blank)

    def _sequence(self, event: Any, events: Iterator[Any], path: Path_) -> _Node:
        items: list[JSONValue] = []
        node = _Node(items, self._mark(event))
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            index = len(items)
            child = self._node(inner, events, (*path, index))
            items.append(child.value)
            node.children[index] = child
            node.weight += child.weight
        return node

    def _mapping(self, event: Any, events: Iterator[Any], path: Path_) -> _Node:
        values: dict[str, JSONValue] = {}
        node = _Node(values, self._mark(event))
        while not isinstance(inner := next(events), yaml.MappingEndEvent):
            key, mark = self._key(inner, events, path)
            merge = key == "<<" and _is_plain(inner)
            child = self._node(next(events), events, (*path, key))
            node.weight += child.weight
            if merge:
                self._problem(inner, "merge keys (<<) are not supported; write the keys out", path)
            elif key in values:
                first = node.keys[key][0]
                self._problem(
                    inner,
                    f"duplicate key, first given on line {first}; keep one of them",
                    (*path, key),
                )
            elif key:
                values[key] = child.value
                node.children[key] = child
                node.keys[key] = mark
        return node

    def _key(self, event: Any, events: Iterator[Any], path: Path_) -> tuple[str, tuple[int, int]]:
        """Returns a key is the text as it is written: `on`, `1` and `true` are the keys "on", "1"
        and "true"."""
        if not isinstance(event, yaml.ScalarEvent):
            self._problem(
                event, "a key must be plain text, not a list, a mapping or an alias", path
            )
            self._node(event, events, path)
            return "", self._mark(event)
        if not event.value:
            self._problem(event, "a key is empty; write a name before the ':'", path)
        elif event.tag is not None:
            self._problem(event, f"tags are not supported; remove {_tag(event.tag)}", path)
        return event.value, self._mark(event)

    def _mark(self, event: Any) -> tuple[int, int]:
        return event.start_mark.line + self._first_line, event.start_mark.column + 1

    def _problem(self, event: Any, message: str, path: Path_) -> None:
        self.problems.append(
            Problem(Where(self._shown, *self._mark(event), key_path(path)), message)
        )

    def _refuse(self, event: Any, message: str, path: Path_) -> NoReturn:
        self._problem(event, message, path)
        raise _Stopped


def _is_plain(event: Any) -> TypeGuard[yaml.ScalarEvent]:
    return isinstance(event, yaml.ScalarEvent) and event.style in (None, "") and event.tag is None


def _tag(tag: str) -> str:
    core = "tag:yaml.org,2002:"
    if tag.startswith(core):
        return f"!!{tag.removeprefix(core)}"
    if tag.startswith("!"):
        return tag
    return f"!<{tag}>"


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^{}]*))?\}")


def expand(text: str, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """`text` with `${VAR}` and `${VAR:default}` replaced once, and the names of those that are
    unset and have no default: of agac.yml and of a card's front matter."""
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        found: str | None = env.get(match[1], match[2])
        if found is None:
            missing.append(match[1])
        return match[0] if found is None else found

    return _VARIABLE.sub(value, text), missing


class Unresolved(dict[str, str]):
    """The environment of files that may not look into it: texts keep their `${VAR}`. `shown` is
    how they keep it."""

    def __init__(self, shown: Callable[[str], str] = str) -> None:
        super().__init__()
        self._shown = shown

    def get(self, key: str, default: Any = None, /) -> Any:
        """Returns what the text says for a variable that is not set, else the variable itself."""
        if default is None:
            return self._shown(f"${{{key}}}")
        return default
