"""A project's repository of git, read through git's plumbing: commits by their names, what two of them share, and the
files of a commit. Nothing is checked out, no file is touched, and no hook or filter of the repository runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from agac.core.errors import UsageError

MAIN = ("main", "master", "origin/HEAD", "origin/main", "origin/master")
"""Where a repository keeps what was reviewed, the first of these that it has."""

_LFS = b"version https://git-lfs.github.com/spec/"
_FILE, _EXECUTABLE, _LINK = "100644", "100755", "120000"
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git tells its hooks of a repository, which holds for the folder that they are started in alone."""


class Commit(NamedTuple):
    """A commit by its full name, and when it was made, in seconds since 1970."""

    name: str
    made_at: float


class Entry(NamedTuple):
    """A file of a commit. `path` is relative to the project."""

    mode: str
    blob: str
    path: str


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository in which the folder of a project lies: `prefix` is empty, or where (`reviews/`)."""

    root: Path
    prefix: str
    env: Mapping[str, str]

    @staticmethod
    def of(root: Path, env: Mapping[str, str]) -> Repository:
        """The one around this folder. Raises UsageError: there is none, or no git."""
        env = {**{name: value for name, value in env.items() if name not in _OF_HOOKS}, "LC_ALL": "C"}
        code, prefix, said = Repository(root, "", env)._ask("rev-parse", "--show-prefix")
        if code and "not a git repository" in said:
            remedy = "Name a folder with the other version in the place of a commit, or work in a clone."
            raise UsageError(f"{root} is in no git repository", remedy=remedy)
        if code:
            raise UsageError(f"git cannot read the repository of {root}: {said}")
        return Repository(root, prefix.removesuffix("\n"), env)

    def commit(self, ref: str) -> Commit | None:
        """The commit that a branch, a tag or an abbreviated name means; None: there is none of this name."""
        code, name, _ = self._ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if code:
            return None
        header = self._ask("cat-file", "commit", name.strip())[1].partition("\n\n")[0]
        made = next((line for line in header.split("\n") if line.startswith("committer ")), "committer x 0 +0000")
        return Commit(name.strip(), float(made.split()[-2]))

    def named(self, ref: str) -> Commit:
        """The same, of a name that has to be one. Raises UsageError."""
        if ref.startswith("-") or (found := self.commit(ref)) is None:
            remedy = f"Name a branch, a tag, a commit or a folder; `git fetch origin {ref}` gets what others pushed."
            raise UsageError(f"{ref!r} is no commit of this repository{self._shallow()}", remedy=remedy)
        return found

    def main(self) -> str:
        """The name of what was reviewed. Raises UsageError: the repository has none of the usual names."""
        if (found := next((name for name in MAIN if self.commit(name)), None)) is None:
            remedy = "Name the commit to compare with; in CI fetch the branch that the change is for first."
            raise UsageError(f"this repository has none of {', '.join(MAIN)}{self._shallow()}", remedy=remedy)
        return found

    def merge_base(self, ref: str) -> str:
        """The last commit that HEAD shares with `ref`. Raises UsageError."""
        code, name, _ = self._ask("merge-base", "HEAD", self.named(ref).name)
        if code:
            remedy = "Fetch the whole history (`git fetch --unshallow`; in GitHub's checkout `fetch-depth: 0`)."
            raise UsageError(f"HEAD and {ref} share no commit{self._shallow()}", remedy=remedy)
        return name.strip()

    def behind(self, commit: str, ref: str) -> int:
        """How many commits `ref` has that `commit` has not."""
        return int(self._ask("rev-list", "--count", f"{commit}..{ref}")[1].strip() or 0)

    def entries(self, commit: str) -> list[Entry]:
        """The files of the project in a commit: not those of submodules, nor agac's own state; none where the commit
        does not have its folder."""
        place = f"{commit}:{self.prefix}" if self.prefix else commit
        _, text, _ = self._ask("ls-tree", "-r", "-z", "--full-tree", place)
        lines = (line.partition("\t") for line in text.split("\0")[:-1])  # MODE blob NAME, and the path
        found = (Entry(header[:6], header.rpartition(" ")[2], path) for header, _, path in lines)
        kept = (one for one in found if one.mode in (_FILE, _EXECUTABLE, _LINK))
        return [one for one in kept if not {"..", ".git", ".agac"} & set(PurePosixPath(one.path).parts)]

    @contextmanager
    def writer(self) -> Iterator[Callable[[list[Entry], Path], list[str]]]:
        """Within it a function that writes files of a commit below a folder, as they are stored. It gives those whose
        content is in git LFS, and elsewhere: they are not written."""
        command, pipe = ["git", "-C", str(self.root), "cat-file", "--batch"], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=dict(self.env)) as process:  # noqa: S603 - git
            given, made = process.stdin, process.stdout
            assert given is not None
            assert made is not None

            def write(entries: list[Entry], folder: Path) -> list[str]:
                in_order = sorted(entries, key=lambda one: one.mode == _LINK)  # nothing is written through links
                return [one.path for one in in_order if _write(one, folder, given, made)]

            yield write
            given.close()

    def _shallow(self) -> str:
        shallow = self._ask("rev-parse", "--is-shallow-repository")[1].strip() == "true"
        return ", of which this clone has the newest commits alone (it is shallow)" if shallow else ""

    def _ask(self, *words: str) -> tuple[int, str, str]:
        """The exit code, what git printed, and its complaint on a line."""
        try:
            words = ("git", "-C", str(self.root), *words)
            ended = subprocess.run(words, capture_output=True, env=dict(self.env), check=False)  # noqa: S603 - git
        except FileNotFoundError:
            remedy = "Install git, or name a folder with the other version in the place of a commit."
            raise UsageError("git is not installed, or not on PATH", remedy=remedy) from None
        said = " ".join(ended.stderr.decode("utf-8", "replace").split())
        return ended.returncode, ended.stdout.decode("utf-8", "surrogateescape"), said


def _write(entry: Entry, folder: Path, given: IO[bytes], made: IO[bytes]) -> bool:
    """Writes one file; whether its content is in git LFS instead."""
    given.write(f"{entry.blob}\n".encode())
    given.flush()
    header = made.readline().split()
    if len(header) != 3:  # a clone that leaves contents out, and cannot fetch this one
        remedy = "Fetch it, as `git fetch --refetch` does."
        raise UsageError(f"git has no content of {entry.path} in this clone", remedy=remedy)
    left, target = int(header[2]), folder / entry.path
    start = made.read(min(left, len(_LFS)))
    left -= len(start)
    if start == _LFS:
        made.read(left + 1)
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == _LINK:
        target.symlink_to((start + made.read(left)).decode("utf-8", "surrogateescape"))
    else:
        with target.open("wb") as file:
            file.write(start)
            while left and (part := made.read(min(left, 1 << 20))):
                left -= len(part)
                file.write(part)
    made.read(1)  # the line end after each content
    return False
