"""A project's repository of git, read through git's plumbing: commits by their names, what two of
them share, and the files of a commit. Nothing is checked out, no file of the project is touched,
and no hook or filter runs.

A change that somebody proposes shapes the working tree, so git never looks for a repository by
itself: agac finds the folder `.git`, which git lets no commit hold, and names it. Git then reads
no configuration but that folder's own, fetches nothing, and follows no replaced object. Paths that
git prints are checked before anything is written there."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from agac.core.errors import UsageError
from agac.core.text import plain
from agac.spec.paths import STATE_FOLDERS, OutsideProject, inside

MAIN = {
    "main": "refs/heads/main",
    "master": "refs/heads/master",
    "origin/HEAD": "refs/remotes/origin/HEAD",
    "origin/main": "refs/remotes/origin/main",
    "origin/master": "refs/remotes/origin/master",
}
"""Where a repository keeps what was reviewed, the first of these that it has, with the full name
of the ref: a tag may have the short name too."""

MAX_OUTPUT = 64 << 20
"""Bytes that git may print for one question: some 500,000 files of a commit."""

_PIECE = 1 << 20
_MAX_POINTER = 4096  # bytes of the file `.git`, and of a link
_LFS = b"version https://git-lfs.github.com/spec/"
_LINK = "120000"
_FILES = ("100644", "100755")

_ISOLATED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_NO_LAZY_FETCH": "1",  # from git 2.45 on
    "GIT_ALLOW_PROTOCOL": "none",  # no transport has this name: nothing is fetched by any version
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""What git is told by its environment (git 2.52, "git(1)", ENVIRONMENT VARIABLES)."""

_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.alternateRefsCommand=",
    "core.pager=cat",
    "protocol.allow=never",
    "submodule.recurse=false",
)
"""Settings that win over those of the repository (`git -c`)."""

_WHOLE = (
    "Fetch the whole history (`git fetch --unshallow`; "
    "for GitHub's checkout `fetch-depth: 0`, in GitLab `GIT_DEPTH: 0`)."
)
_REMEDY = "Name a folder with the other version, as a path (`../before`), in the place of a commit."


class Entry(NamedTuple):
    """A file of a commit."""

    mode: str
    blob: str
    path: str
    """Its path relative to the project."""


@dataclass(frozen=True, slots=True)
class Git:
    """The program git, asked about one repository and nothing else."""

    program: str
    """Its absolute path."""
    git_dir: Path | None
    """The repository's own folder; None: only the user's settings are asked for."""
    env: Mapping[str, str]
    """The user's environment."""

    @staticmethod
    def found(top: Path | None, git_dir: Path | None, env: Mapping[str, str]) -> Git:
        """Finds the program. Raises UsageError where there is none, or where it is a file below
        `top`, the working tree."""
        program = shutil.which("git", path=env.get("PATH"))
        if program is None:
            raise UsageError("git is not installed, or not on PATH", remedy=_REMEDY)
        path = Path(program).absolute()
        if top is not None and path.resolve().is_relative_to(top):
            remedy = "Take relative folders, and those of the project, out of PATH."
            raise UsageError(
                f"the first git on PATH is a file of the working tree: {path}", remedy=remedy
            )
        return Git(str(path), git_dir, env)

    def setting(self, name: str) -> str | None:
        """Returns a setting as it holds for the user in this repository; None: there is none. It
        is only read, so the user's own files count here, and nothing in them is started."""
        command = [self.program, "-C", Path.cwd().anchor, "config", "--get", name]
        if self.git_dir is not None:
            command[1:3] = [f"--git-dir={self.git_dir}"]
        own = {
            key: value
            for key, value in self.env.items()
            if not key.startswith("GIT_") or "CONFIG" in key
        }
        ended = subprocess.run(  # noqa: S603
            command, capture_output=True, env={**own, "LC_ALL": "C"}, check=False
        )
        if ended.returncode:
            return None
        return ended.stdout.decode("utf-8", "replace")

    def ask(self, *words: str) -> str | None:
        """Returns what git printed; None if it refused. Raises UsageError for more than MAX_OUTPUT
        bytes."""
        with self.started(*words) as process:
            assert process.stdout is not None
            printed = process.stdout.read(MAX_OUTPUT + 1)
            if len(printed) > MAX_OUTPUT:
                process.kill()
                remedy = "Name a commit with fewer files, or a folder that holds the version."
                raise UsageError(
                    f"git {words[0]} printed more than {MAX_OUTPUT:,} bytes", remedy=remedy
                )
        if process.returncode:
            return None
        return printed.decode("utf-8", "surrogateescape")

    @contextmanager
    def started(
        self, *words: str, stdin: IO[bytes] | int = subprocess.DEVNULL
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Git at work for the block, which it does not outlive; its output is a pipe."""
        settings = [word for one in _SETTINGS for word in ("-c", one)]
        command = [self.program, "--no-pager", f"--git-dir={self.git_dir}", *settings, *words]
        # hooks and jobs set some
        own = {key: value for key, value in self.env.items() if not key.startswith("GIT_")}
        with subprocess.Popen(  # noqa: S603 - git, with words of ours and names that were checked
            command,
            cwd=self.git_dir,
            env={**own, **_ISOLATED},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository in which the folder of a project lies."""

    prefix: str
    """The project's folder in it: empty, or `reviews/`."""
    git: Git

    @staticmethod
    def of(root: Path, env: Mapping[str, str]) -> Repository:
        """Returns the one around this folder. Raises UsageError: there is none, it is of another
        user, or there is no git."""
        folder = root.resolve()
        top, git_dir = _found_above(folder)
        below = folder.relative_to(top).as_posix()
        return Repository("" if below == "." else f"{below}/", Git.found(top, git_dir, env))

    def commit(self, ref: str) -> str:
        """Returns the full name of the commit that a branch, a tag or an abbreviated name means.
        Raises UsageError."""
        name = self.commit_or_none(ref)
        if name is None:
            fetch = (
                f"`git fetch origin {ref.removeprefix('origin/')}` gets what others "
                "pushed, as FETCH_HEAD"
            )
            remedy = f"Name a branch, a tag, a commit or a folder; {plain(fetch)}."
            shallow = self._shallow()
            remedy += f" {_WHOLE}" if shallow else ""
            raise UsageError(f"{ref!r} is no commit of this repository{shallow}", remedy=remedy)
        return name

    def commit_or_none(self, ref: str) -> str | None:
        """Returns the full name of the commit that `ref` means; None: it means none."""
        if not _can_be_name(ref):
            return None
        for name in (ref, f"origin/{ref}"):  # a clone has no branches of its own but one
            commit = self._resolved(name)
            if commit:
                return commit
        return None

    def made_at(self, commit: str) -> float:
        """When a commit was made, in seconds since 1970."""
        return float(
            (self.git.ask("rev-list", "--max-count=1", "--timestamp", commit) or "0").split()[0]
        )

    def main(self) -> tuple[str, str]:
        """Returns the name of what was reviewed, as people write it, and its commit. Raises
        UsageError: the repository has none of the usual names."""
        for name, ref in MAIN.items():
            commit = self._resolved(ref)
            if commit:
                return name, commit
        remedy = (
            "Name the commit to compare with; in CI fetch the branch that the change is for first."
        )
        raise UsageError(
            f"this repository has none of {', '.join(MAIN)}{self._shallow()}", remedy=remedy
        )

    def merge_base(self, commit: str, shown: str) -> str:
        """Returns the last commit that HEAD shares with `commit`, which messages call `shown`.
        Raises UsageError."""
        name = self.git.ask("merge-base", "HEAD", commit)
        if name is None:
            raise UsageError(f"HEAD and {shown} share no commit{self._shallow()}", remedy=_WHOLE)
        return name.strip()

    def merged_into(self, head: str | None) -> str | None:
        """Returns the commit that `head` was merged into to make HEAD, as forges do for a job;
        None: HEAD is no such merge."""
        names = (self.git.ask("rev-list", "--parents", "--max-count=1", "HEAD") or "").split()
        return names[1] if names[2:] == [head] else None

    def behind(self, commit: str, other: str) -> int:
        """Counts the commits that the commit `other` has and `commit` does not."""
        return int(self.git.ask("rev-list", "--count", f"{commit}..{other}") or 0)

    def entries(self, commit: str) -> list[Entry]:
        """Returns the project's files in a commit, without submodules, agac's state, and files
        that no path of a project can name; none where its folder is missing. Raises UsageError for
        paths that lead out of the project."""
        text = self.git.ask("ls-tree", "-r", "-z", "--full-tree", f"{commit}:{self.prefix}") or ""
        entries = list[Entry]()
        for line in text.split("\0")[:-1]:  # MODE blob NAME, and the path
            header, _, path = line.partition("\t")
            refuse_path(path, commit)
            entry = Entry(header[:6], header.rpartition(" ")[2], path)
            if entry.mode in (_LINK, *_FILES) and not _is_state(path):
                entries.append(entry)
        return entries

    def at_top(self, commit: str) -> dict[str, str]:
        """Returns the names that a commit has in the project's folder, agac's state included, and
        what stands for the content of each."""
        text = self.git.ask("ls-tree", "-z", "--full-tree", f"{commit}:{self.prefix}") or ""
        lines = (line.partition("\t") for line in text.split("\0")[:-1])
        return {path: header for header, _, path in lines}

    def write(self, entries: Sequence[Entry], folder: Path) -> list[str]:
        """Writes files of a commit below a folder, as they are stored: links last. Gives those
        whose content is in git LFS, and elsewhere: they are not written. Raises UsageError for a
        clone that lacks one, and for a file that cannot be written."""
        pointers = list[str]()
        with tempfile.TemporaryFile() as names:
            in_order = sorted(entries, key=lambda entry: entry.mode == _LINK)
            names.write("".join(f"{entry.blob}\n" for entry in in_order).encode())
            names.seek(0)
            with self.git.started("cat-file", "--batch", stdin=names) as process:
                assert process.stdout is not None
                for entry in in_order:
                    if not _write_next(entry, process.stdout, folder):
                        pointers.append(entry.path)
        return pointers

    def _resolved(self, name: str) -> str | None:
        text = self.git.ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return text.strip() if text else None

    def _shallow(self) -> str:
        is_shallow = (self.git.ask("rev-parse", "--is-shallow-repository") or "").strip() == "true"
        if is_shallow:
            return ", of which this clone has the newest commits alone (it is shallow)"
        return ""


def user_name(root: Path, env: Mapping[str, str]) -> str | None:
    """git's `user.name` as it holds in a folder; None: it has none, or there is no git."""
    try:
        top, git_dir = _found_above(root.resolve())
    except UsageError:
        top = None
        git_dir = None
    try:
        return Git.found(top, git_dir, env).setting("user.name")
    except UsageError:
        return None


# Finding the repository: git would take a folder of the change for one that holds files with the
# right names.


def _found_above(folder: Path) -> tuple[Path, Path]:
    """Returns the nearest folder with `.git`, from `folder` upward, and the repository's own
    folder. Raises UsageError."""
    for top in (folder, *folder.parents):
        git = top / ".git"
        if os.path.lexists(git):
            git_dir = _git_dir(git)
            _refuse_foreign(git_dir, folder)
            return top, git_dir
    raise UsageError(f"{folder} is in no git repository", remedy=_REMEDY)


def _git_dir(git: Path) -> Path:
    """Returns the folder that `.git` is, or names, as in a worktree or a submodule. Raises
    UsageError."""
    git_dir = git
    try:
        if git.is_file():
            with git.open("rb") as file:
                text = file.read(_MAX_POINTER).decode("utf-8", "surrogateescape")
            git_dir = git.parent / text.removeprefix("gitdir:").strip()
        if stat.S_ISREG((git_dir / "HEAD").stat().st_mode):
            return git_dir.resolve()
    except (OSError, ValueError):
        pass  # said below: whatever is wrong, no repository can be read there
    raise UsageError(f"{git} is no repository of git that can be read", remedy=_REMEDY)


def _refuse_foreign(git_dir: Path, folder: Path) -> None:
    """Raises UsageError where the repository is neither ours, nor root's, nor of the one who owns
    the project."""
    if not hasattr(os, "getuid"):
        return
    if git_dir.stat().st_uid not in (os.getuid(), 0, folder.stat().st_uid):
        remedy = f"{_REMEDY} Or make the repository yours."
        raise UsageError(
            f"the repository {git_dir} around the project belongs to another user", remedy=remedy
        )


def _can_be_name(ref: str) -> bool:
    """False for what is no name of a commit, and could not be handed to git as one."""
    if not ref.strip() or ref.startswith("-") or "\0" in ref:
        return False
    try:
        os.fsencode(ref)
    except UnicodeEncodeError:
        return False
    return True


# What a commit holds: paths and contents that anybody may have made, and not with git.


def refuse_path(path: str, commit: str) -> None:
    """Raises UsageError for a path of a commit that leads out of the folder that it is relative
    to."""
    parts = path.split("/")
    leads_out = not {"", ".", ".."}.isdisjoint(parts)
    if os.name == "nt":
        leads_out = leads_out or not {"\\", ":"}.isdisjoint(path)
    if leads_out:
        remedy = (
            "No project has such a file, and git makes none: look at who made the commit, "
            "and compare with another."
        )
        raise UsageError(
            f"commit {commit[:12]} holds a file with the path {plain(repr(path))}", remedy=remedy
        )


def _is_state(path: str) -> bool:
    return not {part.casefold() for part in PurePosixPath(path).parts}.isdisjoint(STATE_FOLDERS)


_HEADER = re.compile(rb"[0-9a-f]+ blob ([0-9]+)\n\Z")  # NAME blob SIZE


def _write_next(entry: Entry, content: IO[bytes], folder: Path) -> bool:
    """Writes a file of which git prints the content next. False: it is a pointer of git LFS.
    Raises UsageError."""
    header = _HEADER.match(content.readline(_MAX_POINTER))
    if header is None:  # a clone without contents, which cannot fetch this one
        raise UsageError(
            f"git has no content of {plain(entry.path)} in this clone",
            remedy="Run `git fetch --refetch`.",
        )
    size = int(header[1])
    first = content.read(min(size, _PIECE))
    rest = _pieces(content, size - len(first))
    is_pointer = first.startswith(_LFS)
    if not is_pointer and (target := _target(entry.path, folder)) is not None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if entry.mode == _LINK:
                _write_link(target, first, folder)
            else:
                _write_file(target, first, rest)
        except OSError as error:
            what = f"{plain(entry.path)} of the commit cannot be written: {error.strerror or error}"
            raise UsageError(
                what, remedy="Make room there, or compare with another commit."
            ) from None
    for _ in rest:
        pass  # what was not written has to be read, too
    content.read(1)  # the line end after each content
    return not is_pointer


def _pieces(content: IO[bytes], size: int) -> Iterator[bytes]:
    """Yields the next `size` bytes."""
    while size > 0 and (piece := content.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


def _target(path: str, folder: Path) -> Path | None:
    """Returns where a file is written; None: no path of a project can name it (`~notes.md`), so
    nothing can miss it. Raises UsageError for a file below a link of the same commit."""
    try:
        target = inside(folder, path)
    except OutsideProject:
        return None
    if target != folder / path:
        remedy = "git makes no such commit: look at who made it, and compare with another."
        raise UsageError(f"{plain(path)} lies below a link of the same commit", remedy=remedy)
    return target


def _write_file(target: Path, first: bytes, rest: Iterator[bytes]) -> None:
    with target.open("xb") as file:
        file.write(first)
        for piece in rest:
            file.write(piece)


def _write_link(target: Path, content: bytes, folder: Path) -> None:
    """Makes a link that stays inside the folder by its words. Others are not made: what is read
    through them is refused in the present version, too."""
    text = content.decode("utf-8", "surrogateescape")
    if not text or len(content) >= _MAX_POINTER or "\0" in text or Path(text).is_absolute():
        return
    if Path(os.path.normpath(target.parent / text)).is_relative_to(folder):
        target.symlink_to(text)
