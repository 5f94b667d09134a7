"""`agac ci` in the jobs of forges: real repositories, the real command, and events as the forges write them."""

import json
from typing import Any

import pytest
from support.events import merge_request, pull_request, push
from support.project import SENTIMENT, ProjectFolder, Ran
from support.repository import Git, committed
from support.server import Server

from agac.api.ci import Event, event_of, read_findings
from agac.cli.markdown import MOST, comment_text
from agac.core.errors import UsageError

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}: ${classify.sentiment}"},
]
CHANGED = [STAGES[0], {**STAGES[1], "prompt": "Answer kindly ${text}: ${classify.sentiment}"}]
TEST = "rows: [{id: a, text: I love it}]\n"


@pytest.fixture
def ran(project: ProjectFolder, server: Server) -> ProjectFolder:
    """Ten rows of main are done; a branch is begun."""
    project.asks(server, prices={"small": {"input": 1, "output": 2}}, batch="openai")
    project.numbered(10)
    project.run(project.workflow(stages=STAGES))
    project.write("tests/workflows/reviews.yml", TEST)
    committed(project)
    return project


def ci(project: ProjectFolder, code: int, *words: str, **env: str) -> Ran:
    return project.agac("ci", *words, env=env, code=code)


def test_a_pull_request_is_told_in_one_comment(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    Git(ran.root).commit()
    summary = ran.root / ".agac/summary.md"
    ended = ci(ran, 0, **pull_request(ran), GITHUB_STEP_SUMMARY=str(summary))
    first, headline, *rest = ended.out.splitlines()
    assert first == "<!-- agac:. -->"
    assert headline == (
        "**1 workflow changed** · 10 stored results stay valid; 10 tasks would run, $0.0005 (+$0.0005) · 1 test passed"
    )
    assert "- prompt of reply: Answer **kindly** " in ended.out
    assert rest[-1].startswith("<sub>Compared with the last commit shared with main (")
    findings = read_findings(ran.root / "agac-pr.json")
    assert comment_text(findings) + "\n" == summary.read_text() == ended.out
    assert (findings.workflows[0].usd_more or 0) > 0


def test_nothing_changed_is_a_line(ran: ProjectFolder) -> None:
    marker, line = ci(ran, 0, **pull_request(ran)).out.splitlines()
    assert marker == "<!-- agac:. -->"
    assert line.startswith("No workflow changed. <sub>Compared with")
    assert read_findings(ran.root / "agac-pr.json").quiet


def test_findings_of_others_are_read_within_bounds(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ci(ran, 0, **pull_request(ran))
    file = ran.root / "agac-pr.json"
    whole = json.loads(file.read_text())
    for keys, said in (
        ({"format": 2}, "format: Input should be 1"),
        ({"workflows": [{}]}, "workflows[0].workflow: Field required"),
        ({"max_usd": float("nan")}, "max_usd: Input should be a finite number"),
        ({"against": {"ref": "a", "made_at": 1e300}}, "against: Value error, made_at is not a moment"),
    ):
        file.write_text(json.dumps(whole | keys))
        with pytest.raises(UsageError, match=said.replace("[", r"\[")):
            read_findings(file)
    file.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="recursion limit"):
        read_findings(file)
    file.write_bytes(b" " * 10_000_001)
    with pytest.raises(UsageError, match="more than 10,000,000 bytes"):
        read_findings(file)


def test_a_comment_is_cut_where_it_is_too_long(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ci(ran, 0, **pull_request(ran))
    found = read_findings(ran.root / "agac-pr.json")
    many = [found.workflows[0].model_copy(update={"workflow": f"reviews_{n}"}) for n in range(300)]
    text = comment_text(found.model_copy(update={"workflows": many}))
    assert MOST - 2_000 < len(text) <= MOST
    assert " more are not shown: `agac-pr.json`, which the job keeps, has all.*" in text


def test_the_forge_says_what_it_is_for() -> None:
    expected = Event("pull-request", "a" * 40, "b" * 40, "main")
    assert event_of(merge_request()) == expected
    assert event_of(merge_request(fork=True)) == expected._replace(foreign=True)
    push = {"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"}
    assert event_of(push | {"CI_COMMIT_BEFORE_SHA": "a", "CI_COMMIT_SHA": "b"}) == Event("merge", "a", "b", "main")
    with pytest.raises(UsageError, match="nothing is done for 'push'"):
        event_of(push | {"CI_COMMIT_BRANCH": "other"})
    assert event_of({"GITHUB_EVENT_NAME": "schedule"}) == Event("schedule")
    with pytest.raises(UsageError, match="no forge says"):
        event_of({})
    with pytest.raises(UsageError, match="with your secrets"):
        event_of({"GITHUB_EVENT_NAME": "pull_request_target"})


# After a merge, and on a schedule.


def pushed(project: ProjectFolder, before: str) -> dict[str, str]:
    """A push to main, on a machine that keeps its disk."""
    return push(project, before) | {"AGAC_KEEPS_DISK": "1"}


def test_what_was_merged_is_run_and_nothing_else(ran: ProjectFolder) -> None:
    git = Git(ran.root)
    ran.workflow("others", stages=[{**STAGES[0], "prompt": "Other: ${text}"}])
    ran.workflow("unchanged", stages=STAGES[:1])
    ran.run("unchanged")
    before = git.commit()
    assert "others, run 3: 10 rows" in ci(ran, 0, **pushed(ran, before)).out
    ran.workflow(stages=CHANGED)
    git.commit()
    ended = ci(ran, 0, **pushed(ran, before))
    assert "reviews, run 4: 10 rows, 10 done" in ended.out
    assert "others" not in ended.out + ended.err
    assert ci(ran, 0, **pushed(ran, git("rev-parse", "HEAD"))).out == "Nothing to run.\n"
    ran.numbered(12)
    ended = ci(ran, 0, "--json", **pushed(ran, git("rev-parse", "HEAD")))
    assert {one["workflow"]: one["rows"]["done"] for one in ended.json} == {
        "others": 12,
        "reviews": 12,
        "unchanged": 12,
    }


def test_the_worst_end_is_the_commands_and_the_others_are_run(ran: ProjectFolder) -> None:
    ran.workflow("aaa", stages=[{**STAGES[0], "prompt": "Other ${text}", "max_tokens": 100}], budget={"usd": 0.000001})
    ran.workflow("bbb", stages=STAGES[:1], input={"path": "data/none.csv"})
    ran.workflow(stages=CHANGED)
    ended = ci(ran, 2, "--event", "merge", **pushed(ran, "0" * 40))
    assert "stopped at a limit" in ended.err, ended.err
    assert "data/none.csv" in ended.err
    assert "reviews, run 3: 10 rows, 10 done" in ended.out


def test_nothing_is_paid_on_a_disk_that_is_thrown_away(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ended = ci(ran, 2, **pushed(ran, "0" * 40) | {"AGAC_KEEPS_DISK": ""})
    assert "the answers that this job pays for would be lost with its machine" in ended.err


def test_batches_are_retrieved_on_a_schedule(ran: ProjectFolder) -> None:
    scheduled = {"GITHUB_EVENT_NAME": "schedule"}
    assert ci(ran, 0, **scheduled).out == "No batch is open.\n"
    ran.workflow(stages=CHANGED, run_mode="batch")
    ended = ci(ran, 0, **pushed(ran, "0" * 40))
    assert "Submitted batch" in ended.out
    for _ in range(10):
        if (ended := ci(ran, 0, **scheduled)).out == "No batch is open.\n":
            break
        assert "reviews" in ended.out + ended.err
    assert ran.agac("status", "-a", "reviews", "--json").json["runs"][0]["complete"]
