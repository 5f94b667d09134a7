"""A real PostgreSQL server in a temporary folder, reached by a socket in it, with a password."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.processes import wait_until
from support.services import starts

PASSWORD = "p@ss:wörd/%1?"


def programs() -> Path | None:
    """The folder with the programs of the newest server that is installed."""
    found = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


class PostgresServer:
    """A running server. `address` has the password as `${PGSECRET}`; `env` has the variable."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.env = folder, {"PGSECRET": PASSWORD}
        self.host = quote(str(folder), safe="")
        self.database = "postgres"

    @property
    def address(self) -> str:
        return self.address_of("tester")

    def address_of(self, user: str) -> str:
        return f"postgres://{user}:${{PGSECRET}}@{self.host}/{self.database}"

    def connect(self) -> Any:
        import psycopg

        about = {"host": str(self.folder), "user": "tester", "password": PASSWORD}
        return psycopg.connect(**about, dbname=self.database, autocommit=True)

    def fresh(self, name: str) -> None:
        """Goes on in an empty database."""
        self.database = "postgres"
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}"')
        self.database = name

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs statements one after the other; gives what the last one finds."""
        with self.connect() as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def serving() -> Iterator[PostgresServer]:
    """Starts a server; its files are gone afterwards. Skips the test where there is none to start."""
    starts("PostgreSQL")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="agac-pg-", dir="/tmp"))  # a path that is short enough for a socket
    how: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL}
    if os.geteuid() == 0:  # the server refuses to be started by root
        how |= {"user": "nobody", "group": "nogroup", "extra_groups": []}
        shutil.chown(folder, "nobody", "nogroup")
        folder.chmod(0o755)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    try:
        made = [
            found / "initdb",
            "-D",
            folder / "data",
            "-U",
            "tester",
            "-A",
            "scram-sha-256",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        made += ["--locale=C", "--pwfile", secret]
        subprocess.run(made, check=True, timeout=120, **how)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = PostgresServer(folder)
        log = (folder / "log").open("wb")
        with log, subprocess.Popen([found / "postgres", "-D", folder / "data", *flags], stderr=log, **how) as process:
            try:
                wait_until((folder / ".s.PGSQL.5432").exists, "the server listens")
                wait_until(lambda: b"ready to accept" in (folder / "log").read_bytes(), "the server is ready")
                yield server
            finally:
                process.send_signal(3)  # an immediate shutdown: nothing of it is kept
    finally:
        shutil.rmtree(folder, ignore_errors=True)
