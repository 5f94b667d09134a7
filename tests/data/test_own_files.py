"""Which files and ports of this machine are followed: those that no other user can have written or opened."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agac.data.own_files import NotOurs, listener_of, own_bytes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes and owners are those of POSIX")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users can read, in one where all can write and replace only what is theirs."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def named(folder: Path, mode: int = 0o644) -> Path:
    """A file that names a cluster."""
    file = folder / "cluster"
    file.write_text("10.0.0.1:6379")
    file.chmod(mode)
    return file


def test_a_file_that_only_this_user_can_write_is_read(shared: Path) -> None:
    assert own_bytes(named(shared), 100) == b"10.0.0.1:6379"
    (shared / "sticky").mkdir()
    (shared / "sticky").chmod(0o1777)
    assert own_bytes(named(shared / "sticky"), 100) == b"10.0.0.1:6379"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_file_in_a_folder_that_others_can_write_is_not_read(mode: int, shared: Path) -> None:
    (shared / "ray" / "deeper").mkdir(parents=True)
    file = named(shared / "ray" / "deeper")
    (shared / "ray").chmod(mode)
    with pytest.raises(NotOurs, match=f"{shared}/ray can be written by other users"):
        own_bytes(file, 100)
    shared.chmod(0o700)  # nobody else gets to it
    assert own_bytes(file, 100) == b"10.0.0.1:6379"


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_can_write_is_not_read(mode: int, shared: Path) -> None:
    with pytest.raises(NotOurs, match="cluster can be written by other users"):
        own_bytes(named(shared, mode), 100)


def test_a_link_is_not_followed(shared: Path) -> None:
    (shared / "there").mkdir()
    named(shared / "there")
    (shared / "file").symlink_to(shared / "there" / "cluster")
    (shared / "here").symlink_to(shared / "there")
    expected = NotOurs if os.geteuid() else FileNotFoundError  # links of root are root's own affair
    for path in (shared / "file", shared / "here" / "cluster", shared / "here" / "none"):
        if os.geteuid() or path.name == "none":
            with pytest.raises(expected):
                own_bytes(path, 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["file", "folder", "link", "folder's link"])
def test_what_belongs_to_another_user_is_not_read(what: str, shared: Path) -> None:
    (shared / "there").mkdir()
    file = named(shared / "there")
    (shared / "linked").symlink_to(file)
    (shared / "links").symlink_to(shared / "there")
    given = {"file": file, "folder": file.parent, "link": shared / "linked", "folder's link": shared / "links"}
    os.chown(given[what], 12345, 12345, follow_symlinks=False)
    read = {"link": shared / "linked", "folder's link": shared / "links" / "cluster"}
    with pytest.raises(NotOurs, match=r"belongs to another user \(12345\)"):
        own_bytes(read.get(what, file), 100)


def test_what_is_no_regular_file_or_too_large_is_not_read(shared: Path) -> None:
    os.mkfifo(shared / "pipe")
    for path in (shared / "pipe", shared):
        with pytest.raises(NotOurs, match="is not a regular file"):
            own_bytes(path, 100)
    with pytest.raises(NotOurs, match="is larger than 12 bytes"):
        own_bytes(named(shared), 12)
    with pytest.raises(FileNotFoundError):
        own_bytes(shared / "none" / "cluster", 100)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux says who listens")
def test_who_listens_at_a_port_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert listener_of(address) == os.geteuid()
    assert listener_of(address) is None
    assert listener_of("no address") is None
