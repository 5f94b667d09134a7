"""Another version of a project, by a branch, tag, commit or folder, beside the store and environment there are."""

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
from agac.spec.test_files import FOLDER

_OF_ROWS = (SUFFIXES.keys() - {".json", ".txt"}) | DATABASES
"""Suffixes of files that hold rows, if anything: of another version those alone are read that a workflow names."""

_IN_LFS = (
    "its content at {0} is in git LFS, which is not read; where it is an input the rows of the working tree are taken, "
    "for all else name a folder with that version (`git worktree add FOLDER {0}`)"
)


def _holds_rows(path: str) -> bool:
    return suffix_of(path) in _OF_ROWS and not path.startswith(f"{FOLDER}/")  # there are recorded replies


@dataclass(frozen=True, slots=True)
class Version(Report):
    """What a project is compared with: the `ref` that was typed, or a commit that was chosen, which is shared with
    `main` there; where that is a commit its name and when it was made, and how many commits main has more."""

    ref: str
    commit: str | None = None
    made_at: Moment | None = None
    main: str | None = None
    behind: int | None = None


def version_of(ref: str | None, project: Project) -> Version:
    """What `ref` means: a folder that holds a project, else a commit; None: the one that the working tree's HEAD shares
    with main (or master, or those of origin). Raises UsageError."""
    if ref is not None and (Path(ref) / PROJECT_FILE).is_file():
        return Version(ref)
    repository = Repository.of(project.state, os.environ)
    if ref is not None:
        commit = repository.commit(ref)
        return Version(ref, commit, repository.made_at(commit))
    commit = repository.merge_base(main := repository.main())
    return Version(commit, commit, repository.made_at(commit), main, repository.behind(commit, main))


@contextmanager
def project_at(ref: str, project: Project) -> Iterator[Project]:
    """The project as it was at `ref`, for the block: with its files, the store, environment and fetched content of
    `project`, and the working tree's inputs where git does not have them. Raises UsageError, SpecError."""
    if (commit := version_of(ref, project).commit) is None:
        yield open_project(project.state, files=Path(ref).resolve(), untrusted=project.untrusted)
        return
    repository = Repository.of(project.state, os.environ)
    entries = repository.entries(commit)
    if not any(one.path == PROJECT_FILE for one in entries):
        where = f"in {repository.prefix}" if repository.prefix else "at the top of the repository"
        raise UsageError(f"{ref} has no {PROJECT_FILE} {where}", remedy="Name a commit in which the project is there.")
    with tempfile.TemporaryDirectory(prefix="agac-") as made:
        folder = Path(made).resolve()
        pointers = repository.write([one for one in entries if not _holds_rows(one.path)], folder)
        opened = open_project(project.state, files=folder, untrusted=project.untrusted)
        named = loader.input_paths(opened.spec)
        rows = (one for one in entries if _holds_rows(one.path))
        read = [
            one for one in rows if any(one.path.startswith(f"{text}/") or matches(text, one.path) for text in named)
        ]
        pointers += repository.write(read, folder)
        problems = [Problem(Where(path), _IN_LFS.format(ref), "warning") for path in pointers]
        yield replace(opened, problems=[*opened.problems, *problems])
