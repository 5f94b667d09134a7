"""A folder or a bucket in which several machines keep objects: they are created once, and read within bounds."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from agac.core.errors import AgacError, UsageError, lack_of


class ObjectStore:
    """The objects at an address: a folder, relative to `root`, or a bucket as `s3://BUCKET/PREFIX`, whose login and
    endpoint the environment tells (`AWS_…`). Their names are like `v1/ci/abc.pack`. Raises UsageError for an address
    that is none, and where a package is missing; all else AgacError where it cannot be reached, or refuses."""

    def __init__(self, url: str, root: Path) -> None:
        for package in ("obstore", "zstandard"):
            if lack := lack_of(f"the remote {url}", package):
                raise UsageError(lack)
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url

        self.url = url
        atexit.unregister(_wait)
        atexit.register(_wait)
        again: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        try:
            is_folder = "://" not in url
            self._store: Any = LocalStore(root / url, mkdir=True) if is_folder else from_url(url, retry_config=again)
        except (BaseError, OSError, ValueError) as error:
            remedy = "Write a folder, or s3://BUCKET/PREFIX."
            raise UsageError(f"the remote {url} cannot be opened: {_first_line(error)}", remedy=remedy) from error

    async def create(self, name: str, content: bytes) -> bool:
        """Puts an object whole or not at all; False where it is there: of several who create one, one is told True."""
        from obstore import exceptions, put_async

        with self._explained(f"{name} cannot be written"):
            try:
                await put_async(self._store, name, content, mode="create")
            except exceptions.AlreadyExistsError:
                return False
        return True

    async def read(self, name: str, most: int) -> bytes | None:
        """The content of an object; None where it is not there, or longer than `most` bytes."""
        from obstore import get_async

        with self._explained(f"{name} cannot be read"):
            try:
                found = await get_async(self._store, name)
            except FileNotFoundError:
                return None
            return None if found.meta["size"] > most else bytes(await found.bytes_async())

    async def sizes(self, folder: str, after: str | None = None) -> dict[str, int]:
        """All objects below a folder (`v1/ci`) by their names, each with its bytes; those `after` a name."""
        import obstore

        with self._explained(f"{folder} cannot be listed"):
            found = obstore.list(self._store, folder, offset=after)
            return {one["path"]: one["size"] async for some in found for one in some}

    async def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder."""
        import obstore

        with self._explained(f"{folder} cannot be listed"):
            found = await obstore.list_with_delimiter_async(self._store, folder)
            return [one.rpartition("/")[2] for one in found["common_prefixes"]]

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            remedy = "check its address, the login, and what that may do: agac remote doctor"
            raise AgacError(f"the remote {self.url}: {what}: {_first_line(error)}", remedy=remedy) from error


def _wait() -> None:
    """Waits until no thread of obstore is in Python, for a second at most. One that comes back from handing over a
    result while the interpreter ends aborts the process: seen with obstore 0.12, in one of three short commands."""
    until = time.monotonic() + 1.0
    while len(sys._current_frames()) > threading.active_count() and time.monotonic() < until:
        time.sleep(0.001)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
