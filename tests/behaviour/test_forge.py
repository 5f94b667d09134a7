"""One comment of a pull request, at forges that answer on loopback as GitHub and GitLab do."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forges import FakeForge, Fault, serving
from support.project import ProjectFolder, Ran
from support.repository import committed

from agac.api import AgacError, forge, post_comment
from agac.api.ci import read_findings
from agac.api.forge import CommentReport
from agac.cli.markdown import comment_text

MARKER = "<!-- agac:shop -->"
TEXT = f"{MARKER}\n**1 workflow changed**\n"


@pytest.fixture(params=["github", "gitlab"])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForge]:
    with serving(request.param) as found:
        used(found, monkeypatch)
        yield found


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForge]:
    with serving("github") as found:
        used(found, monkeypatch)
        yield found


@pytest.fixture
def gitlab(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForge]:
    with serving("gitlab") as found:
        used(found, monkeypatch)
        yield found


def used(at: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_EVENT_PATH", "CI_MERGE_REQUEST_IID", "CI_MERGE_REQUEST_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in at.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(forge, "WAITS", (0.0, 0.0))


def posted(at: FakeForge, text: str = TEXT, **more: Any) -> CommentReport:
    return post_comment(at.kind, text, **{"pull_request": at.number, **more})  # type: ignore[arg-type]


def refused(at: FakeForge, text: str = TEXT, **more: Any) -> AgacError:
    with pytest.raises(AgacError) as caught:
        posted(at, text, **more)
    assert at.token not in f"{caught.value.message} {caught.value.remedy}"
    assert caught.value.remedy
    return caught.value


def test_a_comment_is_made_once_and_then_updated_in_place(at: FakeForge) -> None:
    at.comment("Looks good to me.", by="alice")
    first = posted(at)
    assert (first.action, first.comment, at.bodies) == ("created", 1001, ["Looks good to me.", TEXT])
    second = posted(at, f"{TEXT}more\n")
    assert (second.action, second.comment, at.bodies) == ("updated", 1001, ["Looks good to me.", f"{TEXT}more\n"])


def test_projects_of_a_repository_have_a_comment_each(at: FakeForge) -> None:
    posted(at, "<!-- agac:shop -->\none")
    posted(at, "<!-- agac:shop/eu -->\ntwo")
    posted(at, "<!-- agac:shop -->\nthree")
    assert at.bodies == ["<!-- agac:shop -->\nthree", "<!-- agac:shop/eu -->\ntwo"]


def test_a_comment_of_somebody_else_with_the_marker_is_left(at: FakeForge) -> None:
    at.comment(f"{MARKER}\nmine", by="mallory")
    at.comment(f"> {MARKER}\nquoted", by="alice")
    posted(at)
    posted(at, f"{TEXT}again")
    assert at.bodies == [f"{MARKER}\nmine", f"> {MARKER}\nquoted", f"{TEXT}again"]


def test_of_several_of_our_own_the_oldest_alone_is_updated(at: FakeForge) -> None:
    at.comment(f"{MARKER}\nfirst")
    at.comment(f"{MARKER}\nsecond")
    assert posted(at).action == "updated"
    assert at.bodies == [TEXT, f"{MARKER}\nsecond"]


def test_comments_are_read_to_the_last_page(at: FakeForge) -> None:
    for number in range(230):
        at.comment(f"comment {number}", by="alice")
    at.comment(f"{MARKER}\nbefore")
    assert posted(at).action == "updated"
    assert at.bodies[-1] == TEXT
    assert sum(method == "GET" and "per_page" in path for method, path, _ in at.seen) == 3


def test_nobody_is_asked_who_we_are_while_no_comment_has_the_marker(at: FakeForge) -> None:
    posted(at)
    assert [method for method, _, _ in at.seen] == ["GET", "POST"]


def test_more_comments_than_are_read_are_an_error(at: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forge, "MOST_PAGES", 1)
    for _ in range(101):
        at.comment("hello", by="alice")
    assert refused(at).message == "100 comments, and none of agac"
    assert at.writes() == []


def test_a_user_of_github_who_is_gone_wrote_none_of_ours(github: FakeForge) -> None:
    github.comment(f"{MARKER}\nold", user=None)
    github.comment("", by="alice")
    github.comments[-1]["body"] = None
    assert posted(github).action == "created"


def test_with_nothing_to_say_only_an_earlier_comment_is_updated(at: FakeForge) -> None:
    report = posted(at, create=False)
    assert (report.action, report.why) == ("none", "there is nothing to say, and no earlier comment to update")
    assert at.bodies == []
    at.comment(f"{MARKER}\nbefore")
    assert posted(at, create=False).action == "updated"
    assert at.bodies == [TEXT]


def test_lines_that_gitlab_takes_for_commands_are_text(gitlab: FakeForge) -> None:
    posted(gitlab, f"{MARKER}\n/merge\n  /close\na/b\n")
    assert gitlab.bodies == [f"{MARKER}\n\\/merge\n  \\/close\na/b\n"]


def test_a_text_without_a_marker_is_never_sent(at: FakeForge) -> None:
    error = refused(at, "hello\n")
    assert (error.message, error.exit_code) == ("the comment does not begin with its marker, <!-- agac:PROJECT -->", 2)
    assert at.seen == []


# What forges refuse.


def test_a_token_that_only_reads_is_told_what_it_lacks(github: FakeForge, gitlab: FakeForge) -> None:
    github.read_only = gitlab.read_only = True
    error = refused(github)
    assert error.message == (
        'GitHub does not allow GITHUB_TOKEN to do this (403: {"message": "Resource not accessible by integration"})'
    )
    assert error.remedy == (
        "Give the job `permissions: {pull-requests: write}`. For a pull request from a fork the token only reads: "
        "comment from a second job, `on: workflow_run`."
    )
    assert error.exit_code == 2
    error = refused(gitlab)
    assert error.message == 'GitLab does not allow GITLAB_TOKEN to do this (403: {"message": "403 Forbidden"})'
    assert error.remedy == "Make a project access token with the role Reporter and the scope `api`."
    assert len(github.writes()) == len(gitlab.writes()) == 1


def test_a_wrong_token_is_told_which_one_is_meant(at: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN" if at.kind == "github" else "GITLAB_TOKEN", "another-one")
    error = refused(at)
    assert "does not know GIT" in error.message
    assert error.exit_code == 2
    monkeypatch.delenv("GITHUB_TOKEN" if at.kind == "github" else "GITLAB_TOKEN")
    monkeypatch.setenv("CI_JOB_TOKEN", "token-of-a-job")
    error = refused(at)
    assert error.message.endswith("_TOKEN is not set, or is no token")
    if at.kind == "gitlab":
        assert error.remedy == "It is a project access token with the scope `api`: CI_JOB_TOKEN cannot comment."


def test_a_pull_request_that_is_not_there_is_named(at: FakeForge) -> None:
    error = refused(at, pull_request=8)
    assert error.exit_code == 2
    assert "has nothing at /" in error.message
    assert "/8/" in error.message
    assert "404: " in error.message


def test_a_text_that_is_too_long_is_refused_by_the_forge_and_not_tried_again(at: FakeForge) -> None:
    error = refused(at, TEXT + "x" * 1_000_000)
    assert "too long (maximum is" in error.message
    assert error.exit_code == 1
    assert at.bodies == []
    assert len(at.writes()) == 1


def test_what_an_error_says_is_shown_without_the_token_and_on_one_line(at: FakeForge) -> None:
    at.faults = [Fault("POST", 400, f"line one\n\x1b[31m{at.token} " + "y" * 5000)]
    error = refused(at)
    assert "line one\\n\\x1b[31m[redacted] yyy" in error.message
    assert len(error.message) < 800


def test_a_number_that_is_none_is_no_bug(gitlab: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_MERGE_REQUEST_IID", "seven")
    assert refused(gitlab, pull_request=None).remedy == "Check CI_API_V4_URL."


def test_a_redirect_is_not_followed(at: FakeForge) -> None:
    with serving(at.kind) as other:
        at.faults = [Fault("GET", 301, {}, {"Location": f"{other.url}/elsewhere"})]
        assert refused(at).exit_code == 2
        assert other.seen == []


# What passes is tried again.


@pytest.mark.parametrize("status", [500, 502, 429])
def test_a_forge_that_fails_is_asked_again(at: FakeForge, status: int) -> None:
    at.faults = [Fault("GET", status, "<html>"), Fault("POST", status, "<html>")]
    assert posted(at).action == "created"
    assert at.bodies == [TEXT]


def test_a_comment_whose_answer_was_lost_is_not_made_twice(at: FakeForge) -> None:
    at.faults = [Fault("POST", path="s/7/", done=True)]  # not the question of who we are
    report = posted(at)
    assert (report.action, at.bodies) == ("updated", [TEXT])


def test_a_forge_that_goes_on_failing_is_an_error(at: FakeForge) -> None:
    at.faults = [Fault("GET", 503, {"message": "Unavailable"}, times=99)]
    error = refused(at)
    assert (error.exit_code, error.remedy) == (1, "Run the same command again later.")
    assert len(at.seen) == 3


def test_a_rate_limit_is_waited_for_within_bounds(github: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forge, "WAITS", (99.0, 99.0))
    limited = {"message": "You have exceeded a secondary rate limit"}
    github.faults = [
        Fault("GET", 403, limited, {"Retry-After": "0"}),
        Fault("GET", 403, {"message": "API limit"}, {"X-RateLimit-Remaining": "0", "Retry-After": "0"}),
    ]
    assert posted(github).action == "created"
    github.faults = [Fault("GET", 429, limited, {"Retry-After": "3600"})]
    github.seen.clear()
    assert "takes no call now (429: " in refused(github).message
    assert len(github.seen) == 1


def test_a_forge_that_cannot_be_reached_is_named(at: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_API_URL" if at.kind == "github" else "CI_API_V4_URL", "http://127.0.0.1:9")
    error = refused(at)
    assert error.message.endswith("(127.0.0.1) cannot be reached: connection refused")
    assert error.exit_code == 1


@pytest.mark.parametrize("body", ["<html>", {"comments": []}, [1], [{"id": 1}], {}, "[" * 100_000])
def test_what_is_no_answer_of_a_forge_is_an_error(at: FakeForge, body: Any) -> None:
    at.faults = [Fault("GET", 200, body, path="per_page")]
    if body == {}:  # a list without anything
        assert posted(at).action == "created"
        return
    assert "does not answer as the API of Git" in refused(at).message
    assert at.writes() == []


# Where the token goes.


@pytest.mark.parametrize(
    "address",
    ["http://forge.example/api", "https://user:secret@forge.example", "https://forge.example/?a=b", "ftp://forge.example",
     "forge.example", "https://", "https://forge.example:99999", "http://127.0.0.1.evil.example"],
)  # fmt: skip
def test_the_token_goes_to_no_address_that_others_read(
    at: FakeForge, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_API_URL" if at.kind == "github" else "CI_API_V4_URL", address)
    error = refused(at)
    assert error.message.endswith("is no plain https:// address, and the token is sent there")
    assert "secret" not in error.message


def test_a_server_of_ones_own_has_graphql_beside_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("github") as found:
        used(found, monkeypatch)
        found.comment(f"{MARKER}\nbefore")
        monkeypatch.setenv("GITHUB_API_URL", f"{found.url}/v3/")
        truth = found.answer
        found.answer = lambda method, target, *more: truth(method, target.removeprefix("/v3"), *more)  # type: ignore[method-assign]
        assert posted(found).action == "updated"
    assert [path.partition("?")[0] for _, path, _ in found.seen] == [
        "/v3/repos/team/shop/issues/7/comments", "/graphql", "/v3/repos/team/shop/issues/comments/1000",
    ]  # fmt: skip


# Which pull request it is.


def event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **content: Any) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(path))


def of_run(**more: Any) -> dict[str, Any]:
    repository = {"full_name": "mallory/shop", "owner": {"login": "mallory"}}
    return {"event": "pull_request", "head_repository": repository, "head_branch": "a b", "head_sha": "c0ffee",
            "pull_requests": [], **more}  # fmt: skip


def pull(number: int, sha: str = "c0ffee") -> dict[str, Any]:
    return {"number": number, "head": {"sha": sha, "ref": "a b", "user": {"login": "mallory"}}}


def test_the_number_is_of_the_event(at: FakeForge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if at.kind == "gitlab":
        monkeypatch.setenv("CI_MERGE_REQUEST_IID", "7")
    event(tmp_path, monkeypatch, action="synchronize", number=7, pull_request={"number": 7})
    report = posted(at, pull_request=None)
    assert (report.pull_request, report.action, at.bodies) == (7, "created", [TEXT])


def test_the_second_job_finds_the_pull_request_of_a_fork(
    github: FakeForge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event(tmp_path, monkeypatch, action="completed", workflow_run=of_run())
    github.pulls = [pull(6, "0ther"), pull(7)]
    assert posted(github, pull_request=None).pull_request == 7
    github.pulls = [pull(7, "newer")]
    report = posted(github, pull_request=None)
    assert (report.action, report.why) == ("none", "the pull request is closed, or has a newer commit")
    event(tmp_path, monkeypatch, workflow_run=of_run(head_repository=None))
    assert posted(github, pull_request=None).action == "none"
    github.pulls = [pull(6), pull(7)]
    event(tmp_path, monkeypatch, workflow_run=of_run())
    assert refused(github, pull_request=None).message == "several pull requests have this commit: [6, 7]"
    assert github.bodies == [TEXT]


def test_an_event_without_a_pull_request_is_told(
    github: FakeForge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(github, pull_request=None).remedy == "Name it: --pull-request N."
    for content in ("{", "[1]", '"text"'):
        (tmp_path / "event.json").write_text(content, encoding="utf-8")
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
        assert " is no JSON object: " in refused(github, pull_request=None).message
    for content in ({"ref": "refs/heads/main"}, {"workflow_run": of_run(event="push")}):
        event(tmp_path, monkeypatch, **content)
        assert refused(github, pull_request=None).message == "the event of this job is none of a pull request"
    assert github.seen == []


def test_a_project_that_nobody_names_is_told(at: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_REPOSITORY", "CI_PROJECT_ID", "CI_MERGE_REQUEST_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    assert refused(at).message in ("GITHUB_REPOSITORY is not set", "CI_PROJECT_ID is not set")


# The command, after `agac ci`.


@pytest.fixture
def found(project: ProjectFolder) -> ProjectFolder:
    """A project in which a prompt was changed, and what `agac ci` found of that."""
    project.rows({"id": f"r-{n}", "text": f"review {n}"} for n in range(3))
    project.workflow()
    git = committed(project)
    project.workflow(stages=[{"name": "classify", "prompt": "Another question: ${text} @everyone"}])
    git.commit()
    project.agac("ci", "--event", "pull-request", "--against", "main", code=0)
    return project


def commented(at: FakeForge, project: ProjectFolder, *words: str, code: int = 0, **env: str) -> Ran:
    """The command where nothing of the project is but the findings."""
    folder = project.root / ".agac/second_job"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(project.root / "agac-pr.json", folder)
    ran = project.agac(
        "ci", "comment", "--provider", at.kind, *words, env=at.environment() | env, cwd=folder, code=code
    )
    assert at.token not in ran.out + ran.err
    return ran


def test_the_command_posts_what_was_found(at: FakeForge, found: ProjectFolder) -> None:
    number = ["--pull-request", "7"] if at.kind == "github" else []
    assert commented(at, found, *number).out == "The comment 1000 of 7 was created\n"
    assert at.bodies == [comment_text(read_findings(found.root / "agac-pr.json"))]
    assert at.bodies[0].startswith("<!-- agac:. -->\n**1 workflow changed**")
    assert "@everyone" not in at.bodies[0]
    again = commented(at, found, *number, "--json", "--log-level", "debug")
    assert again.json == {
        "provider": at.kind, "pull_request": 7, "action": "updated", "comment": 1000, "why": "",
    }  # fmt: skip
    assert len(at.bodies) == 1


def test_the_command_is_quiet_where_nothing_of_agac_changed(at: FakeForge, found: ProjectFolder) -> None:
    found.agac("ci", "--event", "pull-request", "--against", "HEAD", code=0)
    ran = commented(at, found, "--pull-request", "7")
    assert ran.out == "No comment was written: there is nothing to say, and no earlier comment to update\n"
    at.comment("<!-- agac:. -->\nbefore")
    commented(at, found, "--pull-request", "7")
    assert at.bodies[0].startswith("<!-- agac:. -->\nNo workflow changed.")


def test_the_command_says_what_is_wrong(at: FakeForge, found: ProjectFolder) -> None:
    at.read_only = True
    ran = commented(at, found, "--pull-request", "7", code=2)
    assert ran.err.startswith(f"error: {'GitHub' if at.kind == 'github' else 'GitLab'} does not allow ")
    (found.root / "agac-pr.json").write_text('{"format": 2}', encoding="utf-8")
    assert "agac-pr.json: format: Input should be 1" in commented(at, found, "--pull-request", "7", code=2).err
    assert commented(at, found, "--pull-request", "0", code=2).err.startswith("error: ")
    assert len(at.writes()) == 1


def test_findings_of_a_fork_choose_neither_place_nor_markup(
    github: FakeForge, found: ProjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event(tmp_path, monkeypatch, workflow_run=of_run())
    github.pulls = [pull(7)]
    github.comment("<!-- agac:else --> a note of alice's", by="alice")
    file = found.root / "agac-pr.json"
    hostile = (
        "--> <!-- agac:else -->\n\n# <img src=x> @team/all https://evil.example\n\n[click](//evil.example)\n/close `"
    )
    keys = {"project": hostile, "head": hostile, "notes": [hostile], "pull_request": 8, "number": 8}
    whole = json.loads(file.read_text("utf-8")) | keys
    whole["workflows"][0] |= {"workflow": hostile, "problems": [], "plan": None}
    file.write_text(json.dumps(whole), encoding="utf-8")
    commented(github, found, GITHUB_EVENT_PATH=str(tmp_path / "event.json"))
    foreign, ours = github.bodies
    assert foreign == "<!-- agac:else --> a note of alice's"
    ours = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", ours)  # what is shown as it stands
    lines = [line for line in ours.splitlines() if not line.startswith("<details><summary>")]  # HTML to its end
    assert ours.count("-->") == 1
    assert "[click]" not in " ".join(lines)
    assert not any(line.startswith(("# ", "[")) for line in lines)
    for markup in ("<img", "@team", "https://evil"):
        assert markup not in ours
