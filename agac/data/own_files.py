"""Checks that a file or a port of this machine belongs to this user, so that it may be trusted."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"
"""The state of a socket that listens, in Linux's tables of sockets."""


class NotOurs(Exception):
    """A file that another user may have written, or a port on which another one may listen. Its
    text says why."""


def own_bytes(file: Path, most: int) -> bytes:
    """Returns the content of a regular file of this user, at most `most` bytes long, that no other
    user but root can have written or replaced.

    Raises NotOurs, and FileNotFoundError if it is not there."""
    try:
        return _read(file, most)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotOurs(f"{file} cannot be read: {error.strerror or error}") from error


def _read(file: Path, most: int) -> bytes:
    real = Path(os.path.realpath(file))
    file = Path(os.path.abspath(file))  # noqa: PTH100 - links are looked at
    expected = _checked_status(file)
    if real != file:
        expected = _checked_status(real)
    handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not os.path.samestat(os.fstat(handle), expected):
            raise NotOurs(f"{real} was replaced while it was read")
        content = opened.read(most + 1)
    if len(content) > most:
        raise NotOurs(f"{real} is larger than {most} bytes")
    return content


def _checked_status(file: Path) -> os.stat_result:
    """Returns the status of a file. Raises NotOurs unless it and the folders above it are those of
    this user or of root."""
    above = os.lstat(file.anchor)
    out_of_reach = False  # True once there is a folder that no other user can enter
    for path in (*reversed(file.parents), file):
        status = os.lstat(path)
        if not out_of_reach and _may_be_replaced_in(above):
            raise NotOurs(f"{path.parent} can be written by other users")
        if status.st_uid not in (0, os.geteuid()):
            raise NotOurs(f"{path} belongs to another user ({status.st_uid})")
        if stat.S_ISLNK(status.st_mode) and status.st_uid != 0:
            raise NotOurs(f"{path} is a link")
        if stat.S_ISDIR(status.st_mode):
            out_of_reach |= not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH)
        above = status
    if not stat.S_ISLNK(status.st_mode):  # a link is root's
        _check_file(file, status, out_of_reach=out_of_reach)
    return status


def _may_be_replaced_in(folder: os.stat_result) -> bool:
    """True if other users may replace what is in a folder; in a sticky one only who owns it."""
    is_sticky = bool(folder.st_mode & stat.S_ISVTX)
    return _is_writable_by_others(folder) and not is_sticky


def _is_writable_by_others(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _check_file(file: Path, status: os.stat_result, *, out_of_reach: bool) -> None:
    """Raises NotOurs unless this is a regular file that only this user and root can write."""
    if not stat.S_ISREG(status.st_mode):
        raise NotOurs(f"{file} is not a regular file")
    if status.st_uid != os.geteuid():
        raise NotOurs(f"{file} belongs to another user ({status.st_uid})")
    if _is_writable_by_others(status) and not out_of_reach:
        raise NotOurs(f"{file} can be written by other users")


def listener_of(address: str) -> int | None:
    """Returns the id of the user who listens at `host:port`, another one than ours if there are
    several. Returns None if no user does on this machine, or if it is unknown."""
    host, _, port = address.rpartition(":")
    try:
        known = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        with socket.socket(known[0][0], socket.SOCK_DGRAM) as probe:  # which sends nothing
            probe.connect(known[0][4])
            if probe.getsockname()[0] != known[0][4][0]:  # another machine's
                return None
    except (OSError, ValueError):
        return None
    owners = _owners_of(int(port))
    others = owners - {os.geteuid()}
    return next(iter(others or owners), None)


def _owners_of(port: int) -> set[int]:
    """Returns the ids of the users who listen at a port."""
    owners = set[int]()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):  # other systems have none
            for line in table.read_text("ascii").removesuffix("\n").split("\n")[1:]:
                _, local, _, state, *fields = line.split()
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                    owners.add(int(fields[3]))
    return owners
