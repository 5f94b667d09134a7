"""The processes of agent programs, ended with all that they started, in whatever group these are
by now: a variable of their environment says to which working folder each belongs. As a program
(`python keeper.py FOLDER`) it waits for the end of its standard input, which comes also where agac
is killed, ends what is left, and removes FOLDER. It imports the standard library alone, to start
at once."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "AGAC_SESSION"  # the variable: its value is the path of the working folder


def marked(folder: Path) -> list[int]:
    """Returns the ids of the processes that belong to a working folder, or to one within it."""
    mark = f"{MARK}={folder}".encode()
    return [
        number
        for number, words in _environments()
        if any((one + b"/").startswith(mark + b"/") for one in words)
    ]


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or has ended
            yield int(place.name), (place / "environ").read_bytes().split(b"\0")
    if sys.platform == "darwin":
        listed = subprocess.run(
            ["/bin/ps", "-AEww", "-o", "pid=,command="], capture_output=True, check=False
        ).stdout
        yield from ((int(line.split()[0]), line.split()) for line in listed.split(b"\n") if line)


def end(folder: Path, sure: int = 1) -> None:
    """Ends the processes of a working folder, and of those within it, until `sure` looks in a row
    find none."""
    quiet = 0
    while (quiet := quiet + 1) <= sure:
        for process in marked(folder):
            quiet = 0
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.0 if quiet >= sure else 0.02)


if __name__ == "__main__":
    while os.read(0, 4096):
        pass
    end(Path(sys.argv[1]), 5)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
