"""Some stages only, some rows again, several workflows at once: each pays for just what was asked for."""

from typing import Any

import pytest
from support.batched import store
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

import agac
from agac.core.errors import ExitCode, UsageError

TWO: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}, found ${classify.sentiment}"},
]
THREE = [*TWO, {"name": "close", "prompt": "End ${text} ${reply}"}]


def retry(project: ProjectFolder, run: int | str = "last", **choice: Any) -> agac.RunReport:
    return agac.retry(run, agac.Retry(**choice), project=project.root)


def stages(project: ProjectFolder) -> dict[str, int]:
    """Calls by stage so far."""
    names = [stage["name"] for stage in THREE]
    return {names[i]: n for i, n in project.query("SELECT stage, count(*) FROM attempt GROUP BY stage")}


def test_until_leaves_the_later_stages_open_and_a_plain_run_finishes_them(project: ProjectFolder) -> None:
    first = project.run(project.workflow(rows=8, stages=THREE), until="classify")
    assert (first.exit_code, first.invocation["rows_parked"], first.summary["rows"]["open"]) == (0, 8, 8)
    assert (first.summary["complete"], first.files) == (False, [])
    assert stages(project) == {"classify": 8}
    second = project.run(until="reply")
    assert (second.exit_code, second.summary["run"]) == (0, first.summary["run"])
    assert stages(project) == {"classify": 8, "reply": 8}
    last = project.run()
    assert (last.exit_code, last.summary["rows"]["done"], last.summary["complete"]) == (0, 8, True)
    assert stages(project) == {"classify": 8, "reply": 8, "close": 8}
    assert last.summary["run"] == first.summary["run"]
    project.assert_sound()


def test_stage_asks_that_stage_alone(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=4, stages=THREE), until="classify")
    project.numbered(6)  # two rows more: they lack what `reply` needs
    report = project.run(stage="reply")
    assert stages(project) == {"classify": 4, "reply": 4}
    assert report.invocation["rows_parked"] == 6
    report = project.run(from_stage="reply")
    assert stages(project) == {"classify": 4, "reply": 4, "close": 4}
    assert (report.summary["rows"]["done"], report.invocation["rows_parked"]) == (4, 2)
    project.assert_sound()


def test_a_scope_that_means_nothing_is_refused(project: ProjectFolder) -> None:
    project.workflow(rows=1, stages=THREE)
    scopes: list[tuple[dict[str, Any], str]] = [
        ({"stage": "clasify"}, "there is no such stage"),
        ({"until": "x"}, "there is no such stage"),
        ({"stage": "reply", "until": "close"}, "only stage"),
        ({"from_stage": "close", "until": "classify"}, "comes after"),
        ({"stage": "reply", "fresh": True}, "--fresh"),
    ]
    for options, words in scopes:
        with pytest.raises(UsageError, match=words):
            project.run(**options)


def test_no_retry_failed_leaves_failures_as_they_are(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 2"}]))
    project.workflow(rows=4)
    assert project.run().exit_code == ExitCode.ROWS_FAILED
    report = project.run(retry_failed=False)
    assert (report.exit_code, report.invocation["calls"], report.invocation["rows_left_failed"]) == (3, 0, 1)
    assert project.run().invocation["calls"] == 1


def test_retry_forces_what_a_run_leaves_alone(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 2", "first": 4}]))
    project.workflow(rows=4)
    for calls in (4, 1, 1, 0):
        assert project.run().invocation["calls"] == calls
    report = retry(project)
    assert (report.exit_code, report.invocation["calls"]) == (3, 1)
    report = retry(project)
    assert (report.exit_code, report.invocation["calls"], report.summary["rows"]["done"]) == (0, 1, 4)
    assert [line["id"] for line in project.envelopes()] == ["r-1", "r-2", "r-3", "r-4"]
    with pytest.raises(UsageError, match="nothing of run 1"):
        retry(project)
    project.assert_sound()


def test_retry_chooses_by_row_stage_and_kind_of_error(project: ProjectFolder, faulty: Faulty) -> None:
    bad = {"refusal": ("Review: I love number 2", "Answer I love number 4"), "length": ("Review: I love number 3",)}
    project.asks(faulty([{"kind": kind, "match": match} for kind, matches in bad.items() for match in matches]))
    project.workflow(rows=6, stages=TWO)
    assert project.run().summary["rows"]["failed"] == 3
    assert retry(project, stage="reply").invocation["rows_read"] == 1
    assert retry(project, error="Refused").invocation["rows_read"] == 2
    assert retry(project, error="Truncated").invocation["rows_read"] == 1
    assert retry(project, rows=("r-3", "r-4", "r-5")).invocation["rows_read"] == 2
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"error": "Refusd"}, "no such kind"),
        ({"run": 9}, "no run 9"),
        ({"rows": ("r-5",)}, "row 'r-5' of run 1 did not fail"),
    ]
    for choice, words in wrong:
        with pytest.raises(UsageError, match=words):
            retry(project, **choice)
    project.assert_sound()


def test_retry_from_a_stage_asks_it_and_what_follows_anew(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=5, stages=THREE))
    choice = agac.retry_choice("last", agac.Retry(from_stage="reply"), project=project.root)
    assert (choice.rows, choice.done, choice.stages, choice.calls_at_least) == (5, 5, ["reply", "close"], 10)
    assert stages(project) == {"classify": 5, "reply": 5, "close": 5}
    report = retry(project, from_stage="reply", rows=("r-2",))
    assert (report.exit_code, report.summary["complete"]) == (0, True)
    assert stages(project) == {"classify": 5, "reply": 6, "close": 6}
    retry(project, from_stage="classify")
    assert stages(project) == {"classify": 10, "reply": 11, "close": 11}
    assert project.run().invocation["calls"] == 0
    project.assert_sound()


def test_a_dry_retry_changes_nothing_and_another_definition_is_not_retried(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 2"}]))
    project.run(project.workflow(rows=3))
    ran = project.agac("retry", "last", "--dry-run", "--json")
    assert (ran.code, ran.json["rows"], ran.json["calls_at_least"]) == (0, 1, 1)
    assert ran.json["by_error"] == [{"stage": "classify", "type": "Refused", "rows": 1}]
    assert "1 row would be run again" in project.agac("retry", "1", "--dry-run").out
    assert stages(project) == {"classify": 3}
    assert "--yes" in project.agac("retry", "1", "--from", "classify", code=2).err
    project.workflow(stages=[{"name": "classify", "prompt": "Other: ${text}"}])
    with pytest.raises(UsageError, match="another version of workflow"):
        retry(project)


def test_whose_answers_are_taken_again(project: ProjectFolder) -> None:
    project.rows([{"id": str(i), "text": "the same"} for i in range(4)])
    one = {"name": "classify", "prompt": "Review: ${text}"}
    assert project.run(project.workflow(stages=[one])).invocation["calls"] == 1
    by_row = one | {"reuse": "row"}
    project.workflow(stages=[by_row])
    for options in ({}, {"model": "local/other"}, {"fresh": True}):
        assert project.run(**options).invocation["calls"] == 4
    project.workflow("again", stages=[by_row])
    assert project.run("again").invocation["calls"] == 0  # the same rows, the same prompt
    never = one | {"reuse": "never"}
    project.workflow("never", stages=[never, TWO[1] | {"prompt": "Answer ${classify}"}])
    assert project.run("never", until="classify").invocation["calls"] == 4
    before = stages(project)["classify"]
    assert project.run("never").exit_code == 0
    assert stages(project)["classify"] == before, "not even then is a row paid for twice in its run"
    assert project.run(project.workflow("once", stages=[never])).invocation["calls"] == 4


def test_answers_older_than_max_age_are_asked_again(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=6, stages=[TWO[0] | {"max_age": "7d"}, TWO[1]]))
    assert project.run().invocation["calls"] == 0
    with store(project) as database:
        database.execute("UPDATE result SET created_at = created_at - 8 * 86400 WHERE id % 2 = 0")
    old = {i for (i,) in project.query("SELECT t.row_key FROM task t JOIN result v ON v.id = t.result_id "
                                       "WHERE t.stage = 0 AND v.id % 2 = 0")}  # fmt: skip
    before = stages(project)
    assert project.run().exit_code == 0
    assert stages(project)["classify"] - before["classify"] == len(old) > 0
    assert project.run().invocation["calls"] == 0
    project.assert_sound()


def test_several_workflows_run_one_after_the_other(project: ProjectFolder, server: Server) -> None:
    project.workflow("one", rows=3)
    project.workflow("two", stages=[{"name": "say", "prompt": "Say ${text}"}])
    ran = project.agac("run", "-a", "one", "-a", "two", "--json", code=0)
    assert [(run["workflow"], run["rows"]["done"]) for run in ran.json] == [("one", 3), ("two", 3)]
    assert len(project.envelopes("one")) == len(project.envelopes("two")) == 3
    server.reset()
    project.workflow("two", stages=[{"name": "say", "promt": "Say ${text}"}])
    assert "promt" in project.agac("run", "-a", "one", "-a", "two", "--fresh", code=2).err
    for flags in (["-a", "one", "-a", "one"], ["-a", "one", "-a", "nope"], ["-a", "one", "-a", "two", "--output", "x"]):
        assert project.agac("run", *flags).code == 2
    assert server.account()["requests"] == 0, "nothing runs when one of them is broken"


def test_the_worst_of_several_ends_is_told_and_a_limit_stops_the_rest(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "Bad"}]))
    project.workflow("bad", rows=3, stages=[{"name": "say", "prompt": "Bad ${text}"}])
    project.workflow("good", stages=[{"name": "say", "prompt": "Good ${text}"}])
    ran = project.agac("run", "-a", "bad", "-a", "good", "--json")
    assert (ran.code, [run["exit_code"] for run in ran.json]) == (3, [3, 0])
    ran = project.agac("run", "-a", "bad", "-a", "good", "--max-errors", "0", "--json", "--fresh")
    assert (ran.code, [run["exit_code"] for run in ran.json]) == (4, [4])
