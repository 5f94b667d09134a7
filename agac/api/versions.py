"""Selects what a project is compared with: a version of its files by a branch, a tag, a commit or a
folder, and the project as it was there."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
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
from agac.spec.test_files import FOLDER

_OF_ROWS = (SUFFIXES.keys() - {".json", ".txt"}) | DATABASES
"""Suffixes of files that can only hold rows. Of another version those are read that a workflow
names, and no others."""

_IN_LFS = (
    "its content at {0} is in git LFS, which is not read; where it is an input the rows of the "
    "working tree are taken, for all else name a folder with that version "
    "(`git worktree add FOLDER {0}`)"
)

_FOLDER = re.compile(r"\.{1,2}(?:[/\\]|\Z)|[/\\]|[A-Za-z]:[/\\]")


@dataclass(frozen=True, slots=True)
class Version(Report):
    """What a project is compared with."""

    ref: str
    """As it was typed, or the commit that was chosen."""

    commit: str | None = None
    """The name of the commit; None: it is a folder."""

    made_at: Moment | None = None
    """When the commit was made."""

    main: str | None = None
    """The branch with which a commit that was chosen is shared."""

    behind: int | None = None
    """How many commits this branch has more."""


def refuse_empty(ref: str | None) -> None:
    """Raises UsageError for a version that is given and empty, as an unset variable of a job is: it
    would be the working tree, in which nothing differs from itself."""
    if ref is not None and not ref.strip():
        named = "Name a branch, a tag, a commit or a folder"
        remedy = f"{named}; where a variable names it, see that it is set."
        raise UsageError("the version to compare with is empty", remedy=remedy)


def version_of(ref: str | None, project: Project) -> Version:
    """Finds what `ref` means: a folder that holds a project if it is written as a path
    (`../before`), else a commit. None is the commit that the working tree's HEAD shares with main
    (or master, or those of origin). Raises UsageError."""
    refuse_empty(ref)
    if ref is not None and _FOLDER.match(ref):
        return _folder_version(ref, project)
    repository = Repository.of(project.state, os.environ)
    if ref is None:
        main, newest = repository.main()
        shared = repository.merge_base(newest, main)
        made_at = repository.made_at(shared)
        return Version(shared, shared, made_at, main, repository.behind(shared, newest))
    if repository.commit_or_none(ref) is None and (Path(ref) / PROJECT_FILE).is_file():
        change = "a change could bring a folder with the name of a branch"
        remedy = f"For the folder write ./{ref}; {change}."
        what = f"{ref!r} is no commit of this repository, and is a folder"
        raise UsageError(what, remedy=remedy)
    commit = repository.commit(ref)
    return Version(ref, commit, repository.made_at(commit))


def _folder_version(ref: str, project: Project) -> Version:
    """Checks a folder with another version. Raises UsageError."""
    remedy = "Name a folder that holds another version of the project."
    if not (Path(ref) / PROJECT_FILE).is_file():
        raise UsageError(f"{ref} holds no {PROJECT_FILE}", remedy=remedy)
    if Path(ref).resolve() == project.root.resolve():
        what = f"{ref} is the project itself, in which nothing differs"
        raise UsageError(what, remedy=remedy)
    return Version(ref)


@contextmanager
def project_at(ref: str, project: Project) -> Iterator[Project]:
    """Opens the project as it was at `ref`, for the block: with its files, the store, environment
    and fetched content of `project`, and the working tree's inputs if git does not have them.
    Raises UsageError, SpecError."""
    commit = version_of(ref, project).commit
    if commit is None:
        files = Path(ref).resolve()
        yield open_project(project.state, files=files, untrusted=project.untrusted)
        return
    repository = Repository.of(project.state, os.environ)
    entries = repository.entries(commit)
    if not any(entry.path == PROJECT_FILE for entry in entries):
        where = "at the top of the repository"
        if repository.prefix:
            where = f"in {repository.prefix}"
        remedy = "Name a commit in which the project is there."
        raise UsageError(f"{ref} has no {PROJECT_FILE} {where}", remedy=remedy)
    with tempfile.TemporaryDirectory(prefix="agac-") as temporary:
        folder = Path(temporary).resolve()
        texts = [entry for entry in entries if not _holds_rows(entry.path)]
        pointers = repository.write(texts, folder)
        opened = open_project(project.state, files=folder, untrusted=project.untrusted)
        inputs = loader.input_paths(opened.spec)
        rows = [entry for entry in entries if _holds_rows(entry.path)]
        named = [entry for entry in rows if _is_input(entry.path, inputs)]
        pointers += repository.write(named, folder)
        warnings = [Problem(Where(path), _IN_LFS.format(ref), "warning") for path in pointers]
        yield replace(opened, problems=[*opened.problems, *warnings])


def _holds_rows(path: str) -> bool:
    """True if the file can only hold rows. Files of tests may be recorded replies."""
    return suffix_of(path) in _OF_ROWS and not path.startswith(f"{FOLDER}/")


def _is_input(path: str, inputs: Iterable[str]) -> bool:
    """True if an input is this file, a folder that has it, or a pattern that matches it."""
    return any(path.startswith(f"{text}/") or matches(text, path) for text in inputs)
