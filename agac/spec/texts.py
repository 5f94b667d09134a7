"""Texts that a workflow holds itself or keeps in a file: `instructions`, `prompt`, `template`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agac.core.errors import Problem, Where
from agac.spec.filetext import read_text
from agac.spec.paths import MAX_LENGTH, OutsideProject, inside
from agac.spec.suggest import did_you_mean

_SUFFIXES = (".md", ".markdown", ".txt")
_STARTS = ("/", "~/", "./", "../")


@dataclass(frozen=True, slots=True)
class Source:
    """A text and where it starts; `is_file` when that is a file of its own, so that every line has a place."""

    text: str
    where: Where
    is_file: bool


def text_or_file(value: str, root: Path, where: Where, key: str) -> tuple[Source | None, list[Problem]]:
    """The text itself or, where it names an existing file of the project, that file's text.

    A single word that looks like a path (`prompts/x.md`) and names nothing is a Problem, not a prompt.
    """
    if "\n" in value or len(value) > MAX_LENGTH or "${" in value:
        return Source(value, where, False), []
    looks_like_path = not any(map(str.isspace, value)) and (value.endswith(_SUFFIXES) or value.startswith(_STARTS))
    try:
        path = inside(root, value)
    except OutsideProject as error:
        if looks_like_path or _names_something(root, value):
            return None, [Problem(where, str(error), key)]
        return Source(value, where, False), []
    if path.is_file():
        return _file(path, root, where, key)
    if looks_like_path:
        return None, [_missing(value, path, root, where, key)]
    return Source(value, where, False), []


def template_file(value: str, root: Path, where: Where, key: str) -> tuple[Source | None, list[Problem]]:
    """The text of a file that must exist."""
    try:
        path = inside(root, value)
    except OutsideProject as error:
        return None, [Problem(where, str(error), key)]
    if not path.is_file():
        return None, [_missing(value, path, root, where, key)]
    return _file(path, root, where, key)


def _names_something(root: Path, value: str) -> bool:
    """Whether a text that may not be a path happens to be one, outside the project or behind a link."""
    return "\0" not in value and os.path.lexists(root / value)


def _file(path: Path, root: Path, where: Where, key: str) -> tuple[Source | None, list[Problem]]:
    shown = path.relative_to(root.resolve()).as_posix()
    text, problem = read_text(path, shown)
    if problem is not None:
        return None, [problem]
    text = text.rstrip("\n")
    if not text.strip():
        return None, [Problem(where, f"{shown} is empty", key)]
    return Source(text, Where(shown, 1, 1), True), []


def _missing(value: str, path: Path, root: Path, where: Where, key: str) -> Problem:
    return Problem(where, f"no such file: {value!r}; {near_files(path, root)}", key)


def near_files(path: Path, root: Path) -> str:
    """What was probably meant: a file with a like name beside `path`, or what its folder holds."""
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    known = sorted(file.relative_to(root.resolve()).as_posix() for file in folder.iterdir() if file.is_file())
    wanted = path.relative_to(root.resolve()).as_posix()
    return did_you_mean(wanted, known, f"files in {folder.relative_to(root.resolve()).as_posix()}/")
