"""New stores are copies of one whose migrations ran: to run them all costs as much as a short run does.

Each has a token of its own, as if they had run. Where a test counts commits or statements, or gives a database little
room, they do run, and so they do in the tests of the migrations (`REAL`).
"""

import os
import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from agac.core import state_files
from agac.store import db, writer

REAL = False
"""Whether all migrations run in each new store."""

_make_file = writer.make_file
_migrations = db.migrations = cache(db.migrations)
db.split_script = cache(db.split_script)


@cache
def made() -> tuple[bytes, bytes]:
    """A store in which the migrations ran, and its token."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "state.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            writer._prepare(path, connection)
            ((token,),) = connection.execute("SELECT token FROM project").fetchall()
        return path.read_bytes(), token.encode()


def place(path: Path) -> None:
    """Puts a new store there, whole or not at all; nothing where there is one, or where the disk refuses."""
    store, token = made()
    mode = state_files.file_mode(path)
    with suppress(OSError):
        file = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, mode & 0o666)
        try:
            if mode != 0o666:
                os.fchmod(file, mode)
            if os.write(file, store.replace(token, os.urandom(16).hex().encode())) == len(store):
                os.link(
                    f"/proc/self/fd/{file}", path, src_dir_fd=file
                )  # any descriptor: without one no link is followed
        finally:
            os.close(file)


def make_file(path: Path) -> None:
    """`state_files.make_file`, which makes a store that is ready where it would make an empty file."""
    if not REAL and db.migrations is _migrations and hasattr(os, "O_TMPFILE") and not path.exists():
        place(path)
    _make_file(path)


writer.make_file = make_file
