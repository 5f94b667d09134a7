"""Real repositories of git around a project."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.project import ProjectFolder

_WHO = {f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_WHEN = {f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")}
_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


@dataclass(frozen=True)
class Git:
    """A repository at `root`, on the branch main."""

    root: Path

    @staticmethod
    def begun(root: Path) -> "Git":
        git = Git(root)
        root.mkdir(parents=True, exist_ok=True)
        git("init", "-q", "-b", "main")
        (root / ".gitignore").write_text("/.agac/\n/output/\n")
        return git

    def __call__(self, *words: str) -> str:
        """What git prints."""
        env = {**os.environ, **_WHO, **_WHEN, **_ALONE}
        ended = subprocess.run(["git", *words], cwd=self.root, env=env, capture_output=True, check=True, text=True)
        return ended.stdout.strip()

    def tree(self, *entries: tuple[str, str, bytes]) -> str:
        """A commit of files with these modes, paths and contents, whatever the paths are; gives its name."""
        lines = b""
        for mode, path, content in entries:
            blob = self._stored(content, "hash-object", "-w", "--stdin")
            lines += f"{mode} {path}".encode() + b"\0" + bytes.fromhex(blob)
        tree = self._stored(lines, "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
        return self("commit-tree", "-m", "made by hand", tree)

    def _stored(self, content: bytes, *words: str) -> str:
        ended = subprocess.run(["git", *words], cwd=self.root, input=content, capture_output=True, check=True)
        return ended.stdout.decode().strip()

    def commit(self, what: str = "a change") -> str:
        """All that is there, in a commit; gives its name."""
        self("add", "-A")
        self("commit", "-q", "--allow-empty", "-m", what)
        return self("rev-parse", "HEAD")


def committed(project: ProjectFolder) -> Git:
    """The project as it is, as the first commit of main; then a branch is begun."""
    git = Git.begun(project.root)
    git.commit("the first")
    git("checkout", "-q", "-b", "change")
    return git
