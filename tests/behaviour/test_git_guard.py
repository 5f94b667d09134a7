"""git is asked about repositories and commits that a stranger shapes: it believes, fetches and starts nothing."""

import os
from pathlib import Path

import pytest
from support.project import ProjectFolder
from support.repository import Git, committed

from agac import api
from agac.api.ci import check_change, workflows_to_run
from agac.api.ci_events import Event
from agac.api.fix import reviewer
from agac.api.project import open_project
from agac.api.versions import project_at, version_of
from agac.core.errors import UsageError
from agac.spec.git import Entry, Repository

LOOKS_LIKE_A_REPOSITORY = {
    "HEAD": "ref: refs/heads/main\n",
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[user]\n\tname = The Change\n",
    "objects/info/packs": "",
    "refs/heads/.keep": "",
}
"""Files of a project that have the names of a repository's own."""


def asked(project: ProjectFolder) -> Repository:
    return Repository.of(project.root, os.environ)


@pytest.fixture
def simple(project: ProjectFolder) -> ProjectFolder:
    project.numbered(1)
    project.workflow(stages=[{"name": "classify", "prompt": "Say ${text}"}])
    return project


def test_files_of_a_change_are_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git.begun(tmp_path / "all")
    project = ProjectFolder(tmp_path / "all/team")
    project.numbered(1)
    project.workflow(stages=[{"name": "classify", "prompt": "Say ${text}"}])
    for name, text in LOOKS_LIKE_A_REPOSITORY.items():
        project.write(name, text)
    commit = git.commit()
    repository = asked(project)
    assert (repository.prefix, repository.commit("main")) == ("team/", commit)
    assert api.diff("main", project=project.root, untrusted=True).unchanged == ["reviews"]
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    with pytest.raises(UsageError, match="not known who decides"):
        reviewer(project=project.root)
    git("config", "user.name", "A Person")
    assert reviewer(project=project.root) == "A Person"


def test_settings_of_the_user_and_variables_of_git_start_nothing(
    simple: ProjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = committed(simple)("rev-parse", "main")
    written = tmp_path / "written-by-git"
    settings = tmp_path / "settings"
    settings.write_text(f"[trace2]\n\teventTarget = {written}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(settings))
    monkeypatch.setenv("GIT_TRACE2_EVENT", str(written))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path))
    assert version_of("main", open_project(simple.root)).commit == commit
    assert not written.exists()


def test_nothing_is_fetched_for_a_clone_without_contents(simple: ProjectFolder, tmp_path: Path) -> None:
    git = committed(simple)
    git("config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{simple.root}", str(tmp_path / "clone"))
    clone = Git(tmp_path / "clone")
    missing = clone("rev-list", "--objects", "--all", "--missing=print")
    repository = Repository.of(clone.root, os.environ)
    commit = repository.commit("change")
    with pytest.raises(UsageError, match="git has no content of"):
        repository.write(repository.entries(commit), tmp_path)
    assert clone("rev-list", "--objects", "--all", "--missing=print") == missing
    assert "?" in missing


def test_a_replaced_commit_is_the_one_that_was_reviewed(simple: ProjectFolder) -> None:
    git = committed(simple)
    first = git("rev-parse", "main")
    simple.write("prompts/other.md", "Other")
    second = git.commit()
    git("replace", first, second)
    assert "prompts/other.md" in git("ls-tree", "-r", "--name-only", first)
    assert "prompts/other.md" not in [entry.path for entry in asked(simple).entries(first)]


def test_a_tag_with_the_name_of_the_main_branch_is_not_taken_for_it(simple: ProjectFolder) -> None:
    git = committed(simple)
    first = git("rev-parse", "main")
    simple.write("prompts/other.md", "Other")
    git.commit()
    git("tag", "main", "change")
    assert version_of(None, open_project(simple.root)).commit == first


def test_git_itself_is_no_file_of_the_change(simple: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(simple)
    program = simple.root / "bin/git"
    started = simple.root / "started"
    simple.write("bin/git", f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(UsageError, match="first git on PATH is a file of the working tree"):
        asked(simple)
    assert not started.exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_refused(simple: ProjectFolder) -> None:
    committed(simple)
    os.chown(simple.root / ".git", 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        asked(simple)
    os.chown(simple.root, 12345, 12345)  # as in a container, where all of a checkout is of one other user
    assert asked(simple).prefix == ""


@pytest.mark.parametrize("text", ["", "gitdir: ", "gitdir: nowhere", "gitdir: a\0b", "x" * 5000, "gitdir: /"])
def test_a_file_that_names_no_repository_is_refused(simple: ProjectFolder, text: str) -> None:
    simple.write(".git", text)
    with pytest.raises(UsageError, match="is no repository of git that can be read"):
        asked(simple)


def test_worktrees_are_read(simple: ProjectFolder, tmp_path: Path) -> None:
    git = committed(simple)
    git("worktree", "add", "-q", str(tmp_path / "beside"), "main")
    opened = open_project(tmp_path / "beside")
    assert version_of("HEAD", opened).commit == git("rev-parse", "main")


# What a commit holds.


@pytest.mark.parametrize("path", ["{outside}", "../outside", "a/../../outside", "./a", "a//b"])
def test_a_path_that_leads_out_is_refused_and_nothing_is_written(
    simple: ProjectFolder, tmp_path: Path, path: str
) -> None:
    git = committed(simple)
    path = path.format(outside=tmp_path / "outside")
    commit = git.tree(("100644", "agac.yml", b""), ("100644", path, b"text"))
    for call in (
        lambda: api.diff(commit, project=simple.root),
        lambda: api.plan_against(commit, "reviews", project=simple.root),
    ):
        with pytest.raises(UsageError, match="holds a file with the path") as error:
            call()
        assert error.value.remedy
    assert not (tmp_path / "outside").exists()


def test_nothing_is_written_below_a_link_or_twice(simple: ProjectFolder, tmp_path: Path) -> None:
    git = committed(simple)
    repository = asked(simple)
    folder = tmp_path / "new"
    (folder / "inner").mkdir(parents=True)
    (folder / "link").symlink_to("inner")
    blob = git("rev-parse", "main:agac.yml")
    for entries, why in (
        ([Entry("100644", blob, "link/file")], "lies below a link"),
        ([Entry("100644", blob, "file"), Entry("100644", blob, "file")], "file of the commit cannot be written"),
        ([Entry("100644", blob, "a"), Entry("100644", blob, "a/b")], "a/b of the commit cannot be written"),
        ([Entry("100644", git("rev-parse", "main^{tree}"), "t")], "git has no content of t"),
    ):
        with pytest.raises(UsageError, match=why):
            repository.write(entries, folder)
    assert not any((folder / "inner").iterdir())


def test_links_that_lead_out_and_names_that_no_path_has_are_left_out(simple: ProjectFolder, tmp_path: Path) -> None:
    git = committed(simple)
    texts = {"up": b"../..", "absolute": str(tmp_path).encode(), "empty": b"", "null": b"a\0b", "inside": b"agac.yml"}
    entries = sorted(("120000", name, text) for name, text in texts.items())
    commit = git.tree(("100644", ".agac", b"state"), ("100644", "agac.yml", b""), *entries, ("100644", "~n", b"text"))
    with project_at(commit, open_project(simple.root)) as other:
        assert sorted(path.name for path in other.root.iterdir()) == ["agac.yml", "inside"]


def test_a_large_file_is_written_whole(simple: ProjectFolder, tmp_path: Path) -> None:
    git = committed(simple)
    content = b"0123456789abcdef" * 200_000  # more than is read at once
    commit = git.tree(("100644", "large.bin", content), ("100644", "small.txt", b"small\n"))
    repository = asked(simple)
    repository.write(repository.entries(commit), tmp_path)
    assert (tmp_path / "large.bin").read_bytes() == content
    assert (tmp_path / "small.txt").read_bytes() == b"small\n"


# What a version is called.


@pytest.mark.parametrize("ref", ["", " "])
@pytest.mark.parametrize(
    "words",
    [
        ["diff"], ["plan", "-a", "reviews", "--against"], ["ci", "--event", "pull-request", "--against"],
        ["ci", "--event", "merge", "--against"], ["ci", "--event", "schedule", "--against"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_version_is_refused(simple: ProjectFolder, words: list[str], ref: str) -> None:
    committed(simple)
    ended = simple.agac(*words, ref)
    assert ended.code == 2
    assert "the version to compare with is empty" in ended.err
    assert not (simple.root / "agac-pr.json").exists()


def test_an_empty_version_of_a_caller_or_a_job_is_refused(simple: ProjectFolder) -> None:
    committed(simple)
    for call in (
        lambda: api.diff("", project=simple.root),
        lambda: api.plan_against("", "reviews", project=simple.root),
        lambda: check_change(Event("pull-request", base=""), project=simple.root),
        lambda: check_change(Event("pull-request"), against="", project=simple.root),
        lambda: workflows_to_run(Event("merge", base=""), project=simple.root),
    ):
        with pytest.raises(UsageError, match="the version to compare with is empty"):
            call()


def test_a_folder_of_the_change_does_not_take_the_place_of_a_branch(
    simple: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = committed(simple)
    simple.workflow(stages=[{"name": "classify", "prompt": "Say ${text} otherwise"}])
    for name in ("main", "gone"):
        simple.write(f"{name}/agac.yml", "")
        simple.write(f"{name}/workflows/reviews.yml", (simple.root / "workflows/reviews.yml").read_text())
    monkeypatch.chdir(simple.root)
    assert [one.how for one in api.diff("main").workflows] == ["changed"]
    assert api.diff("./main").against.ref == "./main"
    with pytest.raises(UsageError, match="'gone' is no commit of this repository, and is a folder") as error:
        api.diff("gone")
    assert "./gone" in (error.value.remedy or "")
    assert git("status", "--porcelain")


@pytest.mark.parametrize(
    ("ref", "why"), [(".", "is the project itself"), ("./nothing", "holds no agac.yml"), ("a\0b", "no commit"),
                     ("\ud800", "no commit"), ("--output=x", "no commit")],
)  # fmt: skip
def test_what_names_no_version_is_refused(
    simple: ProjectFolder, monkeypatch: pytest.MonkeyPatch, ref: str, why: str
) -> None:
    committed(simple)
    monkeypatch.chdir(simple.root)
    with pytest.raises(UsageError, match=why):
        api.diff(ref)
