"""One comment of a pull request: the action's step and GitLab's job, at forges that answer on loopback as they do."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.action import Ended, post
from support.forges import FakeForge, Fault, serving
from support.services import services, starts_service

from agac.api.findings import Findings, WorkflowFindings
from agac.cli.markdown import comment_text

MARKER = "<!-- agac:shop -->"


def findings(project: str = "shop", *, quiet: bool = False, note: str = "") -> Findings:
    """What `agac ci` may have found; `note` tells two of them apart."""
    workflows = [] if quiet else [WorkflowFindings(workflow="reviews", how="new", changes=[], problems=[])]
    return Findings(project=project, workflows=workflows, notes=[note] if note else [])


TEXT = comment_text(findings()) + "\n"


@pytest.fixture(params=["github", "gitlab"])
@starts_service
def at(request: pytest.FixtureRequest) -> Iterator[FakeForge]:
    with serving(request.param) as forge:
        yield forge


@pytest.fixture
@starts_service
def github() -> Iterator[FakeForge]:
    with serving("github") as forge:
        yield forge


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def posted(at: FakeForge, folder: Path, found: Findings | None = None, event: Any = None, code: int = 0) -> Ended:
    """Posts what was found, in a job; it ends with this code, or with any other than 0 for -1."""
    whole = (found or findings()).model_dump_json()
    (folder / "agac-pr.json").write_text(whole, encoding="utf-8")
    ran = post(at, folder, event)
    assert (ran.returncode if code >= 0 else -bool(ran.returncode)) == code, ran.stdout + ran.stderr
    assert at.token not in ran.stdout + ran.stderr
    return ran


def test_a_comment_is_made_once_and_then_updated_in_place(at: FakeForge, folder: Path) -> None:
    at.comment("Looks good to me.", by="alice")
    posted(at, folder)
    assert at.bodies == ["Looks good to me.", TEXT]
    later = findings(note="more")
    posted(at, folder, later)
    assert at.bodies == ["Looks good to me.", comment_text(later) + "\n"]


def test_it_is_found_among_all_comments_by_its_marker_and_its_author(at: FakeForge, folder: Path) -> None:
    others = [f"{MARKER}\nmine", f"> {MARKER}\nquoted", "<!-- agac:shop/eu -->\nanother project's"]
    at.comment(others[0], by="mallory")
    at.comment(others[1])
    at.comment(others[2])
    talk = [f"comment {number}" for number in range(110)]
    for text in talk:
        at.comment(text, by="alice")
    at.comment(f"{MARKER}\nfirst")
    at.comment(f"{MARKER}\nsecond")
    at.comment("<!-- agac:other -->\nof a later job")
    posted(at, folder)
    assert at.bodies == [*others, *talk, TEXT, f"{MARKER}\nsecond", "<!-- agac:other -->\nof a later job"]
    assert len(at.writes()) == 1


def test_a_user_of_github_who_is_gone_wrote_none_of_ours(github: FakeForge, folder: Path) -> None:
    github.comment(f"{MARKER}\nold", user=None)
    github.comment("", by="alice")
    github.comments[-1]["body"] = None
    posted(github, folder)
    assert github.bodies[2:] == [TEXT]


def test_with_nothing_to_say_only_an_earlier_comment_is_updated(at: FakeForge, folder: Path) -> None:
    nothing = findings(quiet=True)
    posted(at, folder, nothing)
    assert at.bodies == []
    at.comment(f"{MARKER}\nbefore")
    posted(at, folder, nothing)
    assert at.bodies == [comment_text(nothing) + "\n"]
    assert at.bodies[0].startswith(f"{MARKER}\nNo workflow changed.")


@services
def test_no_list_of_processes_shows_the_token(folder: Path) -> None:
    with serving("gitlab") as gitlab:
        posted(gitlab, folder)
        words = (folder.parent / "programs/words").read_text("utf-8")
        assert words.count("merge_requests/7/notes") == 2
        assert gitlab.token not in words


def test_a_token_that_may_not_comment_fails_the_job(at: FakeForge, folder: Path) -> None:
    at.read_only = True
    assert "403" in posted(at, folder, code=-1).stderr
    assert at.bodies == []


@services
def test_a_redirect_is_not_followed_with_the_token(folder: Path) -> None:
    with serving("gitlab") as gitlab, serving("gitlab") as other:
        gitlab.faults = [Fault("GET", 301, {}, {"Location": f"{other.url}/elsewhere"}, times=99)]
        posted(gitlab, folder, code=-1)
        assert (gitlab.writes(), other.seen) == ([], [])


def test_a_forge_that_fails_is_asked_again(at: FakeForge, folder: Path) -> None:
    at.faults = [Fault("GET", 502, "<html>"), Fault("POST", 500, "<html>")]
    posted(at, folder)
    assert at.bodies == [TEXT]


def test_a_forge_that_goes_on_failing_fails_the_job(at: FakeForge, folder: Path) -> None:
    at.faults = [Fault("GET", 503, {"message": "Unavailable"}, times=99)]
    posted(at, folder, code=-1)
    assert len(at.seen) == 4


def test_a_comment_whose_answer_was_lost_is_not_made_twice(at: FakeForge, folder: Path) -> None:
    at.faults = [Fault("POST", path="s/7/", done=True)]  # not the question of who we are
    posted(at, folder)
    assert at.bodies == [TEXT]


@pytest.mark.parametrize("body", ["<html>", "[1]"])
def test_what_is_no_answer_of_a_forge_fails_the_job(at: FakeForge, folder: Path, body: str) -> None:
    at.faults = [Fault("GET", 200, body, path="per_page", times=99)]
    posted(at, folder, code=-1)
    assert at.writes() == []


# The second job, for pull requests from forks.


def of_run(**more: Any) -> dict[str, Any]:
    repository = {"full_name": "mallory/shop", "owner": {"login": "mallory"}}
    run = {"event": "pull_request", "head_repository": repository, "head_branch": "@a b", "head_sha": "c0ffee"}
    return {"workflow_run": {**run, "pull_requests": [], **more}}


def pull(number: int, sha: str = "c0ffee") -> dict[str, Any]:
    return {"number": number, "head": {"sha": sha, "ref": "@a b", "user": {"login": "mallory"}}}


def test_the_second_job_finds_the_pull_request_of_a_fork(github: FakeForge, folder: Path) -> None:
    github.pulls = [pull(6, "0ther"), pull(7)]
    posted(github, folder, event=of_run())
    assert github.bodies == [TEXT]
    none = "No comment was written: not exactly one open pull request has the commit c0ffee.\n"
    for pulls, event in (
        ([pull(7, "newer")], of_run()),
        ([pull(6), pull(7)], of_run()),
        ([pull(7)], of_run(head_repository=None)),
    ):
        github.pulls = pulls
        assert posted(github, folder, event=event).stdout == none
    assert len(github.writes()) == 1


def test_an_event_without_a_pull_request_is_told(github: FakeForge, folder: Path) -> None:
    for event in ({"ref": "refs/heads/main"}, of_run(event="push")):
        ran = posted(github, folder, event=event, code=2)
        assert ran.stderr == "The event of this job is none of a pull request.\n"
    assert github.seen == []


HOSTILE = (
    "--> <!-- agac:else -->\n\n# <img src=x> @team/all https://evil.example\n\n[click](//evil.example)\n"
    "/close `$(touch hacked)`"
)


def test_findings_of_a_fork_choose_neither_place_nor_markup(at: FakeForge, folder: Path) -> None:
    at.comment("<!-- agac:else --> a note of alice's", by="alice")
    at.pulls = [pull(7)]
    whole = findings().model_dump(mode="json")
    whole |= {"project": HOSTILE, "head": HOSTILE, "notes": [HOSTILE], "pull_request": 8, "number": 8}
    whole["workflows"][0] |= {"workflow": HOSTILE}
    (folder / "agac-pr.json").write_text(json.dumps(whole), encoding="utf-8")
    ran = post(at, folder, of_run())
    assert ran.returncode == 0, ran.stderr
    assert list(folder.parent.rglob("hacked")) == []
    foreign, ours = at.bodies
    assert foreign == "<!-- agac:else --> a note of alice's"
    ours = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", ours)  # what is shown as it stands
    lines = [line for line in ours.splitlines() if not line.startswith("<details><summary>")]  # HTML to its end
    assert ours.count("-->") == 1
    assert "[click]" not in " ".join(lines)
    assert not any(line.lstrip().startswith(("# ", "[", "/")) for line in lines)
    for markup in ("<img", "@team", "https://evil"):
        assert markup not in ours


def test_findings_that_are_none_are_not_posted(at: FakeForge, folder: Path) -> None:
    (folder / "agac-pr.json").write_text('{"format": 2}', encoding="utf-8")
    ran = post(at, folder)
    assert (ran.returncode, at.seen) == (2, [])
    assert "agac-pr.json: format: Input should be 1" in ran.stderr
