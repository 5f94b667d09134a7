"""What forges tell a job of its event: the variables, and the file, as GitHub and GitLab write them."""

import json
from typing import Any

from support.project import ProjectFolder
from support.repository import Git


def pull_request(project: ProjectFolder, *, fork: bool = False) -> dict[str, str]:
    """Of GitHub, for the branch that is checked out, into main."""
    git = Git(project.root)
    sides: dict[str, Any] = {
        "base": {"ref": "main", "sha": git("rev-parse", "main"), "repo": {"full_name": "team/reviews"}},
        "head": {"ref": "change", "sha": git("rev-parse", "HEAD"), "repo": {"full_name": "team/reviews"}},
    }
    if fork:
        sides["head"]["repo"] = {"full_name": "somebody/reviews", "fork": True}
    return _github(project, "pull_request", {"action": "opened", "number": 7, "pull_request": {"number": 7, **sides}})


def push(project: ProjectFolder, before: str, branch: str = "main") -> dict[str, str]:
    """Of GitHub, for a push to a branch."""
    after = Git(project.root)("rev-parse", "HEAD")
    of = {"full_name": "team/reviews", "default_branch": "main"}
    return _github(project, "push", {"ref": f"refs/heads/{branch}", "before": before, "after": after, "repository": of})


def _github(project: ProjectFolder, name: str, body: dict[str, Any]) -> dict[str, str]:
    file = project.write(".agac/event.json", json.dumps(body))
    return {"CI": "true", "GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file)}


def merge_request(*, fork: bool = False) -> dict[str, str]:
    """Of GitLab."""
    return {
        "CI": "true", "CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_IID": "7",
        "CI_COMMIT_SHA": "b" * 40, "CI_MERGE_REQUEST_PROJECT_ID": "1",
        "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "2" if fork else "1", "CI_MERGE_REQUEST_DIFF_BASE_SHA": "a" * 40,
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
    }  # fmt: skip
