"""Decides who on this host may read what agac keeps: folders and files below `.agac` are their
owner's alone, whatever the umask is. If a group shares the folder they are also the group's.
Outputs elsewhere are made as the umask says."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

STATE = ".agac"
"""The name of the folder with a project's state."""

_OWN_FOLDER = 0o700
_OWN_FILE = 0o600
_GROUP_FOLDER = 0o2770
_GROUP_FILE = 0o660

_has_modes = os.name == "posix"
_log = logging.getLogger("agac.store")


def state_folder(path: Path) -> Path | None:
    """Finds the `.agac` that a path is in, or is; None if it is in none."""
    parts = path.parts
    return Path(*parts[: parts.index(STATE) + 1]) if STATE in parts else None


def make_folder(folder: Path) -> None:
    """Makes a folder of the state with those above it.

    Takes from others the right to read a `.agac` that an older agac made. Raises OSError."""
    state = state_folder(folder)
    if state is None or not _has_modes:
        folder.mkdir(parents=True, exist_ok=True)
        return
    state.parent.mkdir(parents=True, exist_ok=True)
    missing = [
        one for one in (folder, *folder.parents) if one.is_relative_to(state) and not one.exists()
    ]
    for one in reversed(missing):
        with suppress(FileExistsError):  # several may make it at once
            one.mkdir(_OWN_FOLDER)
            if one != state and _is_of_group(state):
                one.chmod(_GROUP_FOLDER)
    if not folder.is_dir():
        raise NotADirectoryError(20, os.strerror(20), str(folder))
    _tighten(state)


def make_file(path: Path) -> None:
    """Makes an empty file of the state if there is none.

    It is for code that would make it as the umask says. Raises OSError."""
    with suppress(FileExistsError):
        os.close(opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def opener(path: str, flags: int) -> int:
    """Opens a file of the state, as the `opener` of `open`."""
    mode = file_mode(Path(path))
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), mode & 0o666)
    if mode == _GROUP_FILE and flags & os.O_CREAT:
        with suppress(PermissionError):  # another one's, of the same group
            os.fchmod(descriptor, mode)
    return descriptor


def private_opener(path: str, flags: int) -> int:
    """Opens a file with content of the state, wherever it is, as the `opener` of `open`.

    It is its owner's alone from the start: who opened it once could continue to read."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), _OWN_FILE)


def file_mode(path: Path) -> int:
    """Gives the mode of a new file at a path: 0o666, which the umask cuts, outside of the state."""
    state = state_folder(path)
    if state is None or not _has_modes:
        return 0o666
    return _GROUP_FILE if _is_of_group(state) else _OWN_FILE


def _is_of_group(state: Path) -> bool:
    """True if a group shares the folder: it has its setgid bit and may read it (`chmod 2770`)."""
    try:
        return state.stat().st_mode & 0o2050 == 0o2050
    except FileNotFoundError:
        return False


# A folder that an older agac made is as wide as the umask was. It is narrowed once, first the
# folder itself: after that, others cannot replace anything in it.


def _tighten(state: Path) -> None:
    """Takes the rights of others from the state, or warns why that cannot be done."""
    denied = 0o007 if _is_of_group(state) else 0o077
    if not state.stat().st_mode & denied:
        return
    obstacle = _remove_rights(state, denied)
    if obstacle:
        what = "other users of this host may read it, and agac does not change that"
        _log.warning("%s %s: %s; its owner can: chmod -R go-rwx %s/", state, obstacle, what, state)
    else:
        _narrow(state, denied)


def _remove_rights(state: Path, denied: int) -> str:
    """Takes these rights from the folder itself; gives the obstacle to that, or nothing."""
    status = state.lstat()
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    try:
        state.chmod(stat.S_IMODE(status.st_mode) & ~denied)
    except OSError as error:
        return f"cannot be changed ({error.strerror})"
    return ""


def _narrow(folder: Path, denied: int) -> None:
    """Takes these rights from all that is ours in a folder.

    Nothing is opened: closing a file would end the locks that SQLite has on it in this process.
    Links, files of other users, and files that also have another name elsewhere stay."""
    for entry in os.scandir(folder):
        with suppress(OSError):  # removed meanwhile, or on a disk that takes no changes
            status = entry.stat(follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            if status.st_uid != os.geteuid() or not (is_folder or is_file):
                continue
            if status.st_mode & denied:
                Path(entry.path).chmod(stat.S_IMODE(status.st_mode) & ~denied)
            if is_folder:
                _narrow(Path(entry.path), denied)
