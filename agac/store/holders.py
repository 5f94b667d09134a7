"""Who holds a lease: naming this process, and telling whether another one still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

STALE_SECONDS = 60.0
"""Without a sign of life for so long a holder counts as gone, wherever it is."""


def is_alive(holder: str, age: float) -> bool:
    """Whether somebody holds a lease whose last sign of life is `age` seconds old.

    A clock that was set back makes the age negative: that is no proof of death, so it counts as fresh.
    """
    return bool(holder) and age < STALE_SECONDS and not is_dead(holder)


def this_process() -> str:
    """Names this process so that another one on the same machine can tell whether it still lives."""
    return f"{socket.gethostname()} {_boot_id()}/{_pid_namespace()} {os.getpid()} {_started(os.getpid())}"


def is_dead(holder: str) -> bool:
    """Whether the holder surely no longer runs. Unknown (another machine) counts as alive."""
    parts = holder.split(" ")
    if len(parts) != 4 or parts[0] != socket.gethostname():
        return False
    _, machine, pid, started = parts
    boot, _, namespace = machine.partition("/")
    if boot != _boot_id():
        return True  # the machine was started again since
    if namespace != _pid_namespace():
        return False  # another container: its process numbers mean nothing here
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # alive, another user's
    return _started(int(pid)) != started or _is_zombie(int(pid))  # the number was given to another process


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else "-"  # proc(5): starttime is field 22, the third after the name is 3


def _is_zombie(pid: int) -> bool:
    return _stat_fields(pid)[:1] == ["Z"]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "-"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"


def shown(holder: str) -> str:
    """A holder in words."""
    parts = holder.split(" ")
    return f"process {parts[2]} on {parts[0]}" if len(parts) == 4 else holder
