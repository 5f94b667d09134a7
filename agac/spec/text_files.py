"""Reads texts that a key holds itself, or as the name of a file of the project."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from agac.core.errors import Problem, Where
from agac.spec.paths import MAX_LENGTH, OutsideProject, Unusable, existing_file, inside
from agac.spec.project_files import read_text

_FILE_SUFFIX = re.compile(r"[\w)]\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
"""The end of a single word that is the name of a file."""

_TEXT_SUFFIX = re.compile(
    r"[\w)]\.(?:md|markdown|mdx|txt|text|rst|prompt|j2|jinja2?|tmpl|tpl|hbs|mustache|ya?ml|json)\Z",
    re.IGNORECASE,
)
"""The end of a name with spaces: suffixes of files with texts, which sentences seldom end with."""

_PATH_STARTS = ("/", "~/", "./", "../")

_WINDOWS_START = re.compile(r"[A-Za-z]:\\|\\\\\w|\.{1,2}\\\w")
"""The start of a path on Windows: `C:\\`, the name of a machine after two backslashes, or `.\\`."""

PlacedText = tuple[str, Where]
"""A text and where it starts: at its key, or at the first line of a file of its own."""


def text_or_file(value: str, root: Path, where: Where) -> PlacedText:
    """Returns the text itself or, if it names an existing file of the project, that file's text.
    Raises Unusable, also for what looks like a path (`prompts/x.md`, `my notes.md`) and names
    nothing: it is no prompt."""
    if "\n" in value or len(value) > MAX_LENGTH or "${" in value:
        return value, where
    try:
        is_file = inside(root, value).is_file()
    except OutsideProject:
        # a text that may not be a path, unless it happens to be one, or behind a link
        is_file = "\0" not in value and os.path.lexists(root / value)
    if is_file:
        return template_file(value, root, where)
    if not _looks_like_path(value, root):
        return value, where
    try:
        return template_file(value, root, where)
    except Unusable as error:
        stop = "" if error.problem.message.endswith("?") else "."
        message = f"{error.problem.message}{stop} If it is a text, end it with a full stop"
        raise Unusable(replace(error.problem, message=message)) from None


def _looks_like_path(value: str, root: Path) -> bool:
    """True for one line that is the name of a file rather than a text: by its suffix, a slash, or
    its start."""
    value = value.strip()
    if set(value) & set("{}\0") or "://" in value:
        return False
    if not value or value.endswith((*".!?:;,",)):
        return False
    if _WINDOWS_START.match(value):
        return True
    if not any(map(str.isspace, value)):
        return "/" in value or _FILE_SUFFIX.search(value) is not None
    if _TEXT_SUFFIX.search(value) or value.startswith(_PATH_STARTS):
        return True
    folder = value.rpartition("/")[0]
    try:
        return bool(folder) and inside(root, folder).is_dir()
    except OutsideProject:
        return False


def template_file(value: str, root: Path, where: Where) -> PlacedText:
    """Returns the text of a file that must exist. Raises Unusable."""
    path = existing_file(value, root, where)
    return placed_file(path, path.relative_to(root.resolve()).as_posix(), where, root)


def placed_file(path: Path, shown: str, where: Where, root: Path | None) -> PlacedText:
    """Returns the text of a file that is `shown` in messages and named at `where`. `root` is that
    of its project; None: a user typed it, or it was fetched. Raises Unusable."""
    text = read_text(path, shown, root)
    if not text.strip():
        raise Unusable(Problem(where, f"{shown} is empty"))
    return text.rstrip("\n"), Where(shown, 1, 1)
