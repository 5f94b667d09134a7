"""Where the texts of a stored stage name other stages, and which stages only have another name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

Body = Mapping[str, Any]
"""A stage of a stored definition, or all of one."""

_TEMPLATES = ("prompt", "messages")
_CODE = ("when", "explode", "group_by", "operation")
"""Parts that may name results of other stages: templates as `${stage.field}`, code without signs
around it."""

_MAX_WORDS = 20
"""The most words, joined by `-` and `/`, that are looked at as the name of a stage."""

_MAX_COMPARED = 50_000_000
"""The most characters of stages among which renamed ones are looked for, which takes a second or
two. If more were renamed at once, they are reported as gone and new."""

_SIGNS_BEFORE = ".\"'$/:"
_SIGNS_AFTER = "\"'(/:"
"""Signs next to which a word in an expression names no stage; nor does it within a longer word."""

_WORD = re.compile(r"\w+")
_JOINED = re.compile("[-/]+")
_PATH = re.compile(r"((?:\.[\w-]+)*)")
_PLACEHOLDER = re.compile(r"(?<=\$\{)([^.{}]+)((?:\.[\w-]+)*)(?=\})")


def _pattern(key: str, name: str) -> str:
    """Returns the pattern of the stage's result, or a field of it, in such a part of a stage."""
    word = re.escape(name)
    path = _PATH.pattern
    if key in _TEMPLATES:
        return rf"(?<=\$\{{){word}{path}(?=\}})"
    return rf"(?<![\w{re.escape(_SIGNS_BEFORE)}]){word}(?![\w{re.escape(_SIGNS_AFTER)}]){path}"


def names_in(key: str, text: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields what `_pattern` finds of all these names in one pass: each name, and the path behind
    it."""
    if key in _TEMPLATES:
        for match in _PLACEHOLDER.finditer(text):
            if match[1] in names:
                yield match[1], match[2]
        return
    words = [*_WORD.finditer(text)]
    for position, first in enumerate(words):
        start = first.start()
        if start > 0 and text[start - 1] in _SIGNS_BEFORE:
            continue
        for end in _ends_of_names(text, words[position : position + _MAX_WORDS]):
            name = text[start:end]
            sign_after = text[end : end + 1]
            if name in names and (not sign_after or sign_after not in _SIGNS_AFTER):
                path = _PATH.match(text, end)
                yield name, path[1] if path else ""


def _ends_of_names(text: str, words: Sequence[re.Match[str]]) -> Iterator[int]:
    """Yields where a name that begins with the first of these words may end."""
    end: int | None = None
    for word in words:
        if end is not None and not _JOINED.fullmatch(text, end, word.start()):
            return
        end = word.end()
        yield end


def with_texts(stage: Body, change: Callable[[str, str], str]) -> dict[str, Any]:
    """Returns the stage with all texts changed that may name others. `change` gets the part of the
    stage and the text."""

    def changed(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [changed(key, inner) for inner in value]
        if isinstance(value, dict):
            return {name: changed(key, inner) for name, inner in value.items()}
        return change(key, value) if isinstance(value, str) else value

    return {
        key: changed(key, value) if key in (*_TEMPLATES, *_CODE) else value
        for key, value in stage.items()
    }


def renamed_stages(
    before: Sequence[Body], after: Sequence[Body]
) -> tuple[Sequence[Body], dict[str, str]]:
    """Returns the stages before by the names that they have now, and the new names of those that
    only have another name."""
    new = {stage["name"]: stage for stage in after}
    old = {stage["name"]: stage for stage in before}
    new_names = dict[str, str]()
    gone = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    size_of_gone = sum(len(json.dumps(old[name])) for name in gone)
    if gone and len(gone) * len(json.dumps(before)) + len(added) * size_of_gone > _MAX_COMPARED:
        return before, new_names
    for old_name in gone:
        for name in added:
            if _with_name(old[old_name], old_name, name) == new[name]:
                renamed = (_with_name(stage, old_name, name) for stage in old.values())
                old = {stage["name"]: stage for stage in renamed}
                new_names[old_name] = name
                added.remove(name)
                break
    return [*old.values()], new_names


def _with_name(stage: Body, old_name: str, name: str) -> dict[str, Any]:
    """Returns a stage as it is once a stage, which may be itself, has the new name."""

    def replaced(key: str, text: str) -> str:
        return re.sub(_pattern(key, old_name), lambda match: f"{name}{match[1]}", text)

    renamed = with_texts(stage, replaced)
    renamed["needs"] = _with_name_in_needs(stage.get("needs"), old_name, name)
    if stage["name"] == old_name:
        renamed["name"] = name
        if "children" in stage:
            renamed["children"] = [
                {**child, "name": child["name"].replace(f"{old_name}/", f"{name}/", 1)}
                for child in stage["children"]
            ]
        schema = stage.get("schema")
        if schema and schema["name"] == old_name:  # one that is written in the stage
            renamed["schema"] = {**schema, "name": name}
    return renamed


def _with_name_in_needs(needs: Any, old_name: str, name: str) -> Any:
    """Returns `needs` of a stage, which older definitions hold as one name."""
    if isinstance(needs, list):
        return [name if need == old_name else need for need in needs]
    return name if needs == old_name else needs
