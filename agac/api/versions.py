"""Another version of a project, by a branch, a tag, a commit or a folder: its files as they were, opened beside the
store and the environment that there are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agac.api.project import Project, open_project
from agac.core.errors import Problem, UsageError, Where
from agac.core.types import Moment, Report
from agac.spec import loader
from agac.spec.git import Repository
from agac.spec.inputs import DATABASES, SUFFIXES, suffix_of
from agac.spec.paths import PROJECT_FILE, matches

_OF_ROWS = (SUFFIXES.keys() - {".json", ".txt"}) | DATABASES
"""Suffixes of files that hold rows, if anything: of another version those alone are read that a workflow names."""

_IN_LFS = (
    "its content at {} is in git LFS, which is not read; where it is an input the rows of the working tree are taken, "
    "for all else name a folder with that version (`git worktree add FOLDER {}`)"
)


@dataclass(frozen=True, slots=True)
class Version(Report):
    """What a project is compared with: the `ref` that was typed, or a commit that was chosen, which is the `merge_base`
    with `main` there; where that is a commit its name and when it was made, and how many commits main has more."""

    ref: str
    commit: str | None = None
    made_at: Moment | None = None
    main: str | None = None
    behind: int | None = None


def merge_base(project: Project) -> str:
    """The commit that the working tree's HEAD shares with main (or master, or those of origin). Raises UsageError."""
    repository = Repository.of(project.state, os.environ)
    return repository.merge_base(repository.main())


def version_of(ref: str | None, project: Project) -> Version:
    """What `ref` means: a folder that holds a project, else a commit; None: the merge base. Raises UsageError."""
    if ref is not None and (Path(ref) / PROJECT_FILE).is_file():
        return Version(ref)
    repository = Repository.of(project.state, os.environ)
    main = repository.main() if ref is None else None
    commit = repository.named(ref or repository.merge_base(main or ""))
    behind = repository.behind(commit.name, main) if main else None
    return Version(ref or commit.name, commit.name, commit.made_at, main, behind)


@contextmanager
def project_at(ref: str, project: Project) -> Iterator[Project]:
    """The project as it was at `ref`, for the block: with its files, the store, environment and fetched content of
    `project`, and the working tree's inputs where git does not have them. Raises UsageError, SpecError."""
    version = version_of(ref, project)
    if version.commit is None:
        yield open_project(project.state, files=Path(ref).resolve(), untrusted=project.untrusted)
        return
    repository = Repository.of(project.state, os.environ)
    entries = repository.entries(version.commit)
    if not any(one.path == PROJECT_FILE for one in entries):
        where = f"in {repository.prefix}" if repository.prefix else "at the top of the repository"
        raise UsageError(f"{ref} has no {PROJECT_FILE} {where}", remedy="Name a commit in which the project is there.")
    rows = [one for one in entries if suffix_of(one.path) in _OF_ROWS]
    with tempfile.TemporaryDirectory(prefix="agac-") as made, repository.writer() as write:
        folder = Path(made).resolve()
        pointers = write([one for one in entries if suffix_of(one.path) not in _OF_ROWS], folder)
        opened = open_project(project.state, files=folder, untrusted=project.untrusted)
        named = [text for text in loader.input_paths(opened.spec) if text.strip("/.")]
        pointers += write([one for one in rows if any(_reads(text, one.path) for text in named)], folder)
        message = _IN_LFS.format(ref, ref)
        problems = [Problem(Where(path), message, "warning") for path in pointers]
        yield replace(opened, problems=[*opened.problems, *problems])


def _reads(text: str, path: str) -> bool:
    """Whether an input of this path or pattern, or of a folder, reads the file."""
    text = text.removeprefix("./").rstrip("/")
    return path == text or path.startswith(f"{text}/") or matches(text, path)
