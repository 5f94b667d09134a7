"""The functions that open what a project's files name: no link out of it, regular files alone, within a bound."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agac.core.errors import SpecError
from agac.data.files import write_in_project
from agac.spec import project_files
from agac.spec.paths import Unusable, home_of
from agac.spec.project_files import MAX_BYTES, copy_file, files_hash, files_in, place_to_write, read_bytes, read_text

CANARY = "canary-of-another-project"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project beside a file and a folder that are none of it."""
    root = tmp_path / "project"
    (root / "folder").mkdir(parents=True)
    (root / "folder/inner.txt").write_text("inner")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.txt").write_text(CANARY)
    return root


def linked(target: str) -> Callable[[Path], None]:
    """What puts a link to `target` in the place of a file."""
    return lambda path: path.symlink_to(target)


def bound(path: Path) -> None:
    """Puts a socket in the place of a file; its path is short, whatever the folder is called."""
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


OUT = "leads out of the project, by its path or by a link; name a file inside it, or put a copy in the link's place"
IN_PLACE = "not a file; put a regular file in its place"
REFUSED = {
    "a link out": (linked("../outside/secret.txt"), OUT),
    "a link out by way of another": (linked("folder/../../outside/secret.txt"), OUT),
    "a device": (linked("/dev/null"), OUT),
    "a circle": (linked("file.txt"), "circle"),
    "a folder": (Path.mkdir, f"is a folder, {IN_PLACE}"),
    "a pipe": (os.mkfifo, f"is a named pipe, {IN_PLACE}"),
    "a link to a pipe": (lambda path: (os.mkfifo(path.with_name("p")), path.symlink_to("p")), "is a named pipe"),
    "a socket": (bound, f"is a socket, {IN_PLACE}"),
    "what git keeps": (lambda path: (path.with_name(".git").mkdir(), (path.with_name(".git") / "config").touch(),
                                     path.symlink_to(".git/config")), "is agac's or git's own"),
    "an environment file": (lambda path: (path.with_name(".env").touch(), path.symlink_to(".env")),
                            "is an environment file"),
}  # fmt: skip


@pytest.mark.parametrize(("prepare", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_ordinary_file_of_the_project_is_neither_read_nor_written(
    root: Path, prepare: Callable[[Path], object], why: str
) -> None:
    path = root / "file.txt"
    prepare(path)
    with pytest.raises(Unusable, match=r"file\.txt") as error:
        read_text(path, "file.txt", root)
    assert why in str(error.value) or "symbolic links" in str(error.value)
    with pytest.raises(SpecError) as refused:
        write_in_project(path, "new", "file.txt", root)
    assert str(refused.value.problems[0]).startswith("file.txt: cannot be written: it ")
    assert (root.parent / "outside/secret.txt").read_text() == CANARY
    assert {one.name for one in (root.parent / "outside").iterdir()} == {"secret.txt"}


def test_a_link_in_the_place_of_a_folder_leads_nowhere(root: Path) -> None:
    (root / "linked").symlink_to("../outside")
    with pytest.raises(Unusable, match="leads out of the project"):
        read_text(root / "linked/secret.txt", "linked/secret.txt", root)
    for name in ("linked/secret.txt", "linked/new.txt", "linked/deep/new.txt"):
        with pytest.raises(SpecError):
            write_in_project(root / name, "new", name, root)
    assert files_in(root / "linked", root) == []
    assert [one.name for one in (root.parent / "outside").iterdir()] == ["secret.txt"]
    assert (root.parent / "outside/secret.txt").read_text() == CANARY


def test_links_inside_the_project_are_followed_also_from_a_linked_project(root: Path, tmp_path: Path) -> None:
    (root / "file.txt").symlink_to("folder/inner.txt")
    (root / "linked").symlink_to("folder")
    (tmp_path / "way").symlink_to("project")
    for project in (root, tmp_path / "way"):
        for name in ("file.txt", "linked/inner.txt", "folder/inner.txt"):
            assert read_text(project / name, name, project) == "inner"
        assert [one.name for one in files_in(project / "linked", project)] == ["inner.txt"]
    write_in_project(root / "file.txt", "new", "file.txt", root)
    assert (root / "file.txt").is_symlink()
    assert (root / "folder/inner.txt").read_text() == "new"
    write_in_project(root / "linked/made/new.txt", "new", "linked/made/new.txt", root)
    assert (root / "folder/made/new.txt").read_text() == "new"


@pytest.mark.parametrize("name", ["folder/inner.txt", "top.txt"])
def test_a_link_that_comes_between_the_look_and_the_opening_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (root / "top.txt").write_text("inner")
    (root.parent / "outside/inner.txt").write_text(CANARY)
    look = project_files.real_path

    def then_swapped(path: Path, project: Path) -> Path:
        real = look(path, project)
        place = root / Path(name).parts[0]
        place.rename(root / "away")
        place.symlink_to("../outside" if place.name == "folder" else "../outside/secret.txt")
        return real

    monkeypatch.setattr(project_files, "real_path", then_swapped)
    with pytest.raises(Unusable, match="cannot be read"):
        read_text(root / name, name, root)


def test_no_more_than_the_bound_is_read(root: Path) -> None:
    file = root / "file.txt"
    file.write_text("x" * 10)
    assert read_bytes(file, "file.txt", root, most=10) == b"x" * 10
    with pytest.raises(Unusable, match="10 bytes are more than the 9 that are read; put data into an input file"):
        read_bytes(file, "file.txt", root, most=9)
    os.truncate(file, 10 * MAX_BYTES)
    with pytest.raises(Unusable, match="50,000,000 bytes are more than the 5,000,000"):
        read_text(file, "file.txt", root)


def test_a_file_that_a_user_typed_may_be_anywhere_but_is_a_file(root: Path) -> None:
    (root / "link").symlink_to("../outside/secret.txt")
    assert read_text(root / "link", "link", None) == CANARY
    os.mkfifo(root / "pipe")
    for path, kind in ((root / "pipe", "a named pipe"), (Path("/dev/null"), "a device"), (root, "a folder")):
        with pytest.raises(Unusable, match=f"is {kind}, not a file"):
            read_text(path, "typed", None)


def test_hashes_and_copies_hold_files_of_the_project_alone(root: Path, tmp_path: Path) -> None:
    (root / "folder/script").write_text("run")
    (root / "folder/script").chmod(0o755)
    copy_file(str(root / "folder/script"), str(tmp_path / "script"), root=root)
    assert (tmp_path / "script").read_text() == "run"
    assert os.access(tmp_path / "script", os.X_OK)
    (root / ".env").write_text(f"KEY={CANARY}")
    (root / "folder/env").symlink_to("../.env")
    (root / "folder/out").symlink_to("../../outside/secret.txt")
    os.mkfifo(root / "folder/pipe")
    for name in ("env", "out", "pipe"):
        with pytest.raises(OSError, match=name):
            copy_file(str(root / "folder" / name), str(tmp_path / name), root=root)
        assert not (tmp_path / name).exists()
    with pytest.raises(ValueError, match="leads out of"):
        files_hash(root, ["folder/o*"])


def test_a_place_to_write_may_be_new(root: Path) -> None:
    assert place_to_write(root / "new/file.txt", "new/file.txt", root) == (root / "new/file.txt").resolve()


def test_a_file_in_the_state_folder_moves_no_project_elsewhere(root: Path) -> None:
    (root / ".agac").mkdir()
    (root / ".agac/home").write_text(str(root.parent / "outside"))
    assert home_of(root) == root.parent / "outside"  # a folder with nothing but state
    (root / "agac.yml").touch()
    assert home_of(root) == root
    (root / "agac.yml").unlink()
    (root / ".agac/home").rename(root / "home")
    (root / ".agac/home").symlink_to("../home")
    assert home_of(root) == root
