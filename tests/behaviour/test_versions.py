"""A project as it was: its files by a branch, a tag, a commit or a folder, read without a checkout."""

import shutil
from pathlib import Path

import pytest
from support.project import ProjectFolder
from support.repository import Git, committed

from agac.api.checked_workflow import check_workflow
from agac.api.project import Project, open_project
from agac.api.versions import project_at, version_of
from agac.core.errors import UsageError
from agac.plan.plan import Selection
from agac.spec.project import Overrides


def prompt_of(opened: Project, name: str = "reviews") -> str:
    checked, problems = check_workflow(opened, name, Overrides())
    assert checked is not None, problems
    return checked.workflow.stages[0].prompt.text


def rows_of(opened: Project, name: str = "reviews") -> list[object]:
    checked, problems = check_workflow(opened, name, Overrides())
    assert checked is not None, problems
    return [row.id for row in checked.rows(Selection())]


def says(project: ProjectFolder, prompt: str) -> None:
    project.workflow(stages=[{"name": "classify", "prompt": prompt}])


@pytest.fixture
def two(project: ProjectFolder) -> tuple[ProjectFolder, Git]:
    """main says `Before`, the branch `Now`, and the working tree `Dirty`."""
    project.numbered(2)
    says(project, "Before ${text}")
    git = committed(project)
    git("tag", "v1")
    says(project, "Now ${text}")
    git.commit()
    says(project, "Dirty ${text}")
    return project, git


def test_files_are_those_of_the_commit_and_the_tree_is_not_touched(two: tuple[ProjectFolder, Git]) -> None:
    project, git = two
    status, opened = git("status", "--porcelain"), open_project(project.root)
    assert version_of(None, opened).ref == git("rev-parse", "main")
    for ref, prompt in (
        ("main", "Before"), ("v1", "Before"), (git("rev-parse", "--short", "main"), "Before"), ("HEAD", "Now"),
        (version_of(None, opened).ref, "Before"),
    ):  # fmt: skip
        with project_at(ref, opened) as other:
            assert prompt_of(other) == f"{prompt} ${{text}}"
            assert other.store == opened.store
            assert other.root != opened.root
        assert not other.root.exists()
    assert prompt_of(opened) == "Dirty ${text}"
    assert git("status", "--porcelain") == status


def test_the_merge_base_is_told_with_how_far_main_went_on(two: tuple[ProjectFolder, Git]) -> None:
    project, git = two
    git("stash", "-q")
    git("checkout", "-q", "main")
    git.commit("somebody else's")
    git("checkout", "-q", "change")
    found = version_of(None, open_project(project.root))
    assert found.as_json() == {
        "ref": git("rev-parse", "v1"), "commit": git("rev-parse", "v1"), "made_at": "2026-01-02T03:04:05Z",
        "main": "main", "behind": 1,
    }  # fmt: skip


def test_rows_are_those_of_git_where_it_has_them_else_of_the_working_tree(project: ProjectFolder) -> None:
    project.numbered(3).rename(project.root / "data/unknown.csv")
    project.numbered(2)
    project.write("data/part-1.csv", "id,text\np-1,one\n")
    project.write("data/unused.csv", "id,text\nu,one\n")
    project.workflow("known")
    project.workflow("unknown", path="data/unknown.csv")
    project.workflow("parts", path="data/part-*.csv")
    Git.begun(project.root)
    project.write(".gitignore", "/.agac/\ndata/unknown.csv\n")
    Git(project.root).commit()
    project.numbered(5)
    project.write("data/part-2.csv", "id,text\np-2,two\n")
    with project_at("HEAD", open_project(project.root)) as other:
        assert rows_of(other, "known") == ["r-1", "r-2"]
        assert rows_of(other, "unknown") == ["r-1", "r-2", "r-3"]
        assert rows_of(other, "parts") == ["p-1"]
        assert not (other.root / "data/unused.csv").exists()


def test_a_project_may_be_a_folder_of_its_repository(tmp_path: Path) -> None:
    git = Git.begun(tmp_path / "all")
    project = ProjectFolder(tmp_path / "all/teams/größe")
    project.numbered(1)
    says(project, "Before ${text}")
    (tmp_path / "all/workflows").mkdir()
    (tmp_path / "all/workflows/other.yml").write_text("stages: []\n")
    git.commit()
    says(project, "Now ${text}")
    with project_at("main", open_project(project.root)) as other:
        assert prompt_of(other) == "Before ${text}"
        assert not (other.root / "teams").exists()


def test_a_folder_stands_for_a_version_too(two: tuple[ProjectFolder, Git], tmp_path: Path) -> None:
    project, _ = two
    shutil.copytree(project.root, tmp_path / "copy", ignore=shutil.ignore_patterns("data", ".git"))
    says(project, "Later ${text}")
    with project_at(str(tmp_path / "copy"), open_project(project.root)) as other:
        assert prompt_of(other) == "Dirty ${text}"
        assert rows_of(other) == ["r-1", "r-2"]
        assert other.store == project.root / ".agac/agac.db"


def test_links_and_executables_are_what_they_were(project: ProjectFolder) -> None:
    project.numbered(1)
    project.write("prompts/long.md", "A prompt: ${text}")
    (project.root / "prompts/short.md").symlink_to("long.md")
    project.workflow(stages=[{"name": "classify", "prompt": "prompts/short.md"}])
    committed(project)
    with project_at("main", open_project(project.root)) as other:
        assert prompt_of(other) == "A prompt: ${text}"
        assert (other.root / "prompts/short.md").is_symlink()


def test_a_pointer_of_git_lfs_is_told(project: ProjectFolder) -> None:
    project.numbered(2)
    says(project, "Say ${text}")
    project.write("data/rows.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n")
    committed(project)
    project.numbered(2)
    with project_at("main", open_project(project.root)) as other:
        assert rows_of(other) == ["r-1", "r-2"]
        (problem,) = other.problems
    assert str(problem).startswith("data/rows.csv: warning: its content at main is in git LFS, which is not read;")


def test_what_git_cannot_say_is_a_sentence_with_a_remedy(
    project: ProjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.numbered(1)
    says(project, "Say ${text}")
    opened = open_project(project.root)

    def refused(ref: str | None, what: str, remedy: str, opened: Project = opened) -> None:
        with pytest.raises(UsageError, match=what) as error:
            version_of(ref, opened)
        assert remedy in (error.value.remedy or "")

    refused(None, "is in no git repository", "Name a folder")
    git = Git.begun(project.root)
    refused(None, "this repository has none of main, master", "fetch the branch")
    first = git.commit()
    refused("nothing", "'nothing' is no commit of this repository", "git fetch origin nothing")
    refused("--all", "'--all' is no commit", "Name a branch")
    git("checkout", "-q", "--orphan", "alone")
    git.commit("another first")
    refused(None, "HEAD and main share no commit", "git fetch --unshallow")
    git("checkout", "-q", "main")
    git.commit()
    git("clone", "-q", "--depth", "1", f"file://{project.root}", str(tmp_path / "shallow"))
    shallow = open_project(tmp_path / "shallow")
    refused(first, "of which this clone has the newest commits alone", "git fetch origin", shallow)
    assert version_of("main", shallow).commit == version_of("origin/main", shallow).commit
    refused("origin/nothing", "'origin/nothing' is no commit", "`git fetch origin nothing`", shallow)
    git("-C", str(tmp_path / "shallow"), "branch", "-m", "mine")
    assert version_of("main", shallow).commit == version_of("mine", shallow).commit
    project.write("elsewhere/agac.yml", "")
    inner = open_project(project.root / "elsewhere")
    with pytest.raises(UsageError, match=r"main has no agac.yml in elsewhere/"), project_at("main", inner):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    refused("main", "git is not installed", "Name a folder")


def test_a_hook_of_git_may_ask(two: tuple[ProjectFolder, Git], monkeypatch: pytest.MonkeyPatch) -> None:
    project, _ = two
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", ".git/index")
    with project_at("main", open_project(project.root)) as other:
        assert prompt_of(other) == "Before ${text}"
