"""A project's repository of git, read through git's plumbing: commits by their names, what two of them share, and the
files of a commit. Nothing is checked out, no file is touched, and no hook or filter of the repository runs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from agac.core.errors import UsageError

MAIN = ("main", "master", "origin/HEAD", "origin/main", "origin/master")
"""Where a repository keeps what was reviewed, the first of these that it has."""

_LFS = b"version https://git-lfs.github.com/spec/"
_LINK, _FILES = "120000", ("100644", "100755")
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git tells its hooks of a repository, which holds for the folder that they are started in alone."""

_WHOLE = (
    "Fetch the whole history (`git fetch --unshallow`; "
    "for GitHub's checkout `fetch-depth: 0`, in GitLab `GIT_DEPTH: 0`)."
)


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
        try:
            prefix, said = Repository(root, "", env)._ask("rev-parse", "--show-prefix")
        except FileNotFoundError:
            prefix, said = None, "git is not installed, or not on PATH"
        if prefix is None:
            what = f"{root} is in no git repository" if "not a git repository" in said else said
            raise UsageError(what, remedy="Name a folder with the other version in the place of a commit.")
        return Repository(root, prefix.removesuffix("\n"), env)

    def commit(self, ref: str) -> str:
        """The full name of the commit that a branch, a tag or an abbreviated name means. Raises UsageError."""
        names = [] if ref.startswith("-") else [ref, f"origin/{ref}"]  # a clone has no branches of its own but one
        found = (self._ask("rev-parse", "--verify", "--quiet", f"{one}^{{commit}}")[0] for one in names)
        if (name := next(filter(None, found), None)) is None:
            fetch = f"`git fetch origin {ref.removeprefix('origin/')}` gets what others pushed, as FETCH_HEAD"
            remedy = f"Name a branch, a tag, a commit or a folder; {fetch}."
            shallow = self._shallow()
            remedy += f" {_WHOLE}" if shallow else ""
            raise UsageError(f"{ref!r} is no commit of this repository{shallow}", remedy=remedy)
        return name.strip()

    def setting(self, name: str) -> str | None:
        """A setting of git, as it holds in the folder; None: it has none, or there is no git."""
        with suppress(FileNotFoundError):
            return self._ask("config", "--get", name)[0]
        return None

    def made_at(self, commit: str) -> float:
        """When a commit was made, in seconds since 1970."""
        return float((self._ask("rev-list", "--max-count=1", "--timestamp", commit)[0] or "0").split()[0])

    def main(self) -> str:
        """The name of what was reviewed. Raises UsageError: the repository has none of the usual names."""
        for name in MAIN:
            if self._ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")[0]:
                return name
        remedy = "Name the commit to compare with; in CI fetch the branch that the change is for first."
        raise UsageError(f"this repository has none of {', '.join(MAIN)}{self._shallow()}", remedy=remedy)

    def merge_base(self, ref: str) -> str:
        """The last commit that HEAD shares with `ref`. Raises UsageError."""
        if (name := self._ask("merge-base", "HEAD", self.commit(ref))[0]) is None:
            raise UsageError(f"HEAD and {ref} share no commit{self._shallow()}", remedy=_WHOLE)
        return name.strip()

    def merged_into(self, head: str | None) -> str | None:
        """The commit that `head` was merged into to make HEAD, as forges do for a job; None: HEAD is no such merge."""
        names = (self._ask("rev-list", "--parents", "--max-count=1", "HEAD")[0] or "").split()
        return names[1] if names[2:] == [head] else None

    def behind(self, commit: str, ref: str) -> int:
        """How many commits `ref` has that `commit` has not."""
        return int(self._ask("rev-list", "--count", f"{commit}..{ref}")[0] or 0)

    def entries(self, commit: str) -> list[Entry]:
        """The project's files in a commit, without submodules and agac's state; none where its folder is missing."""
        text = self._ask("ls-tree", "-r", "-z", "--full-tree", f"{commit}:{self.prefix}")[0] or ""
        lines = (line.partition("\t") for line in text.split("\0")[:-1])  # MODE blob NAME, and the path
        found = (Entry(header[:6], header.rpartition(" ")[2], path) for header, _, path in lines)
        kept = (one for one in found if one.mode in (_LINK, *_FILES))
        return [one for one in kept if not {"..", ".git", ".agac"} & set(PurePosixPath(one.path).parts)]

    def write(self, entries: Sequence[Entry], folder: Path) -> list[str]:
        """Writes files of a commit below a folder, as they are stored. Gives those whose content is in git LFS, and
        elsewhere: they are not written. Raises UsageError for a clone that lacks one."""
        pointers, in_order = list[str](), sorted(entries, key=lambda one: one.mode == _LINK)  # none is written through
        with tempfile.TemporaryFile() as made:
            names, command = "".join(f"{one.blob}\n" for one in in_order), self._words("cat-file", "--batch")
            subprocess.run(command, input=names.encode(), stdout=made, env=dict(self.env), check=False)  # noqa: S603
            made.seek(0)
            for mode, _, path in in_order:
                if len(header := made.readline().split()) != 3:  # a clone without contents, which cannot fetch this one
                    raise UsageError(f"git has no content of {path} in this clone", remedy="Run `git fetch --refetch`.")
                content, target = made.read(int(header[2]) + 1)[:-1], folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if content.startswith(_LFS):
                    pointers.append(path)
                elif mode == _LINK:
                    target.symlink_to(content.decode("utf-8", "surrogateescape"))
                else:
                    target.write_bytes(content)
        return pointers

    def _shallow(self) -> str:
        is_shallow = (self._ask("rev-parse", "--is-shallow-repository")[0] or "").strip() == "true"
        return ", of which this clone has the newest commits alone (it is shallow)" if is_shallow else ""

    def _words(self, *words: str) -> list[str]:
        return ["git", "-C", str(self.root), *words]

    def _ask(self, *words: str) -> tuple[str | None, str]:
        """What git printed, None where it refused; and its complaint on a line."""
        command = self._words(*words)
        ended = subprocess.run(command, capture_output=True, env=dict(self.env), check=False)  # noqa: S603 - git
        said = " ".join(ended.stderr.decode("utf-8", "replace").split())
        return None if ended.returncode else ended.stdout.decode("utf-8", "surrogateescape"), said
