"""Paths that files of a project name: always inside the project, whatever links and dots they go through."""

from __future__ import annotations

from pathlib import Path

MAX_LENGTH = 1_000


class OutsideProject(ValueError):
    """A path that a file of the project may not name; the message says why and what to write instead."""


def inside(root: Path, text: str, *, base: Path | None = None) -> Path:
    """The absolute path of `text` with all links followed; it need not exist.

    `text` is relative to `base` (the project root when None). Raises `OutsideProject` for everything that does not
    end inside `root`: `..`, absolute paths, `~`, links that lead out, NUL.
    """
    if "\0" in text or len(text) > MAX_LENGTH:
        raise OutsideProject("is not a path")
    if text.startswith("~") or Path(text).is_absolute():
        raise OutsideProject(f"{text!r} is not relative; paths are relative to the project's root and stay inside it")
    try:
        real_root = root.resolve()
        path = ((base or root) / text).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links, or a name that the file system refuses
        raise OutsideProject(f"{text!r} cannot be followed: {error.__class__.__name__}") from None
    if any(part.is_symlink() for part in (path, *path.parents)):  # from Python 3.13 on a loop is left as it is
        raise OutsideProject(f"{text!r} cannot be followed: its links lead in a circle")
    if not path.is_relative_to(real_root):
        raise OutsideProject(f"{text!r} leads out of the project; name a path inside it")
    return path


def lies_in(path: Path, folder: Path) -> bool:
    """Whether `path` is `folder` or below it."""
    return path == folder or path.is_relative_to(folder)
