"""Strict YAML: text in, plain data with positions and a list of Problems out. The only place that knows YAML.

PyYAML parses events; composing them is done here, because its own constructors follow YAML 1.1 (`on` is true, `012`
is ten), let a later duplicate key win, and expand aliases without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agac.core.errors import Path_, Problem, Where, key_path
from agac.core.types import JSONValue
from agac.spec.filetext import MAX_BYTES, read_text
from agac.spec.scalars import BadScalar, plain
from agac.spec.yamlwords import syntax_sentence

MAX_DEPTH = 50
"""Deeper nesting is a mistake or an attack; a workflow needs six levels, a JSON Schema some twenty."""

MAX_EXPANDED = 100_000
"""What all aliases of one file may expand to, counted in values (64 characters of text count as one more)."""

LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it (ten times as fast), else PyYAML's own."""

_CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class _Node:
    """A value with the mark (line, column from 1) where it starts; `keys` are the marks of a mapping's keys."""

    value: JSONValue
    mark: tuple[int, int]
    children: dict[str | int, _Node] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `data` is as much of it as could be read, None for an empty file."""

    shown: str
    data: JSONValue
    problems: list[Problem]
    root: _Node | None = None

    @property
    def empty(self) -> bool:
        """Nothing but white space and comments: not even a null was written."""
        return self.root is None and not self.problems

    def where(self, path: Path_, *, key: bool = False) -> Where:
        """The place of the value at `path` (of its key with `key`), or of the nearest parent that exists."""
        node = self.root
        if node is None:
            return Where(self.shown)
        mark = node.mark
        for depth, part in enumerate(path):
            child = node.children.get(part)
            if child is None:
                break
            last = depth == len(path) - 1
            mark = node.keys[part] if key and last and isinstance(part, str) else child.mark
            node = child
        return Where(self.shown, *mark)


def read_yaml(path: Path, shown: str, *, max_bytes: int = MAX_BYTES) -> Document:
    """Reads a file; everything wrong with it stands in the document's `problems`."""
    text, problem = read_text(path, shown, max_bytes=max_bytes)
    return parse_yaml(text, shown) if problem is None else Document(shown, None, [problem])


def parse_yaml(text: str, shown: str, *, first_line: int = 1, loader: type[Any] = LOADER) -> Document:
    """Reads one document from `text`, which starts at `first_line` of the file."""
    if (found := _CONTROL.search(text)) is not None:
        line = text.count("\n", 0, found.start())
        column = found.start() - text.rfind("\n", 0, found.start())
        message = (
            f"control character U+{ord(found[0]):04X} is not allowed; remove it or write it as an escape in quotes"
        )
        return Document(shown, None, [Problem(Where(shown, first_line + line, column), message)])
    composer = _Composer(shown, first_line)
    try:
        root = composer.compose(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Where(shown, mark.line + first_line, mark.column + 1) if mark else Where(shown)
        composer.problems.append(Problem(where, syntax_sentence(error, text, first_line)))
        return Document(shown, None, composer.problems)
    except _Refused:
        return Document(shown, None, composer.problems)
    return Document(shown, root.value if root else None, composer.problems, root)


class _Refused(Exception):
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
                    self._problem(event, "a second document starts here; put one document into each file", ())
                    return root
            elif isinstance(event, yaml.NodeEvent):
                root = None if _is_nothing(event) else self._node(event, events, ())
        return root

    def _node(self, event: Any, events: Iterator[Any], path: Path_) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.tag is not None:
            self._problem(
                event, f"tags are not supported; remove {_tag(event.tag)} and quote the value if needed", path
            )
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # unfinished: an alias to it from inside would never end
        node = self._value(event, events, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _value(self, event: Any, events: Iterator[Any], path: Path_) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if len(path) >= MAX_DEPTH:
            self._problem(event, f"nested more than {MAX_DEPTH} levels deep", path[:6])
            raise _Refused
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, events, path)
        return self._mapping(event, events, path)

    def _scalar(self, event: Any, path: Path_) -> _Node:
        text: str = event.value
        value: JSONValue = text
        if _is_plain(event):
            try:
                value = plain(text)
            except BadScalar as error:
                self._problem(event, str(error), path)
        return _Node(value, self._mark(event), weight=1 + len(text) // 64)

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
                self._problem(inner, f"duplicate key, first given on line {first}; keep one of them", (*path, key))
            elif key:
                values[key] = child.value
                node.children[key] = child
                node.keys[key] = mark
        return node

    def _key(self, event: Any, events: Iterator[Any], path: Path_) -> tuple[str, tuple[int, int]]:
        """A key is the text as it is written: `on`, `1` and `true` are the keys "on", "1" and "true"."""
        if not isinstance(event, yaml.ScalarEvent):
            self._problem(event, "a key must be plain text, not a list, a mapping or an alias", path)
            self._node(event, events, path)
            return "", self._mark(event)
        if not event.value:
            self._problem(event, "a key is empty; write a name before the ':'", path)
        elif event.tag is not None:
            self._problem(event, f"tags are not supported; remove {_tag(event.tag)}", path)
        return event.value, self._mark(event)

    def _alias(self, event: Any, path: Path_) -> _Node:
        if event.anchor not in self._anchors:
            self._problem(event, f"alias *{event.anchor} has no anchor &{event.anchor} before it", path)
            raise _Refused
        node = self._anchors[event.anchor]
        if node is None:
            self._problem(event, f"alias *{event.anchor} stands inside its own anchor and would never end", path)
            raise _Refused
        self._expanded += node.weight
        if self._expanded > MAX_EXPANDED:
            self._problem(event, f"aliases expand to more than {MAX_EXPANDED:,} values; write the content out", path)
            raise _Refused
        # the mark is the alias's own: that is where the user looks, and what he can change
        return _Node(node.value, self._mark(event), node.children, node.keys, node.weight)

    def _mark(self, event: Any) -> tuple[int, int]:
        return event.start_mark.line + self._first_line, event.start_mark.column + 1

    def _problem(self, event: Any, message: str, path: Path_) -> None:
        self.problems.append(Problem(Where(self._shown, *self._mark(event)), message, key_path(path)))


def _is_plain(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.style in (None, "") and event.tag is None


def _is_nothing(event: Any) -> bool:
    """For an empty file the parser makes a plain scalar without an extent."""
    return _is_plain(event) and not event.value


def _tag(tag: str) -> str:
    core = "tag:yaml.org,2002:"
    return f"!!{tag.removeprefix(core)}" if tag.startswith(core) else tag if tag.startswith("!") else f"!<{tag}>"
