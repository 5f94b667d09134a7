"""`vote: {lead: 3}`: a row is asked until one answer leads all others by three votes, and no more."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from scripted_server import Scripted, Step, deciding
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.core.errors import ExitCode

LABELS = {"label": "good|bad|ugly", "why": "string"}


def classify(replicas: int = 9, lead: int = 3, **keys: Any) -> dict[str, Any]:
    vote = {"field": "label", "lead": lead}
    stage = {"name": "classify", "prompt": "Review: ${text}", "output_schema": LABELS, "repair": 0}
    return stage | {"replicas": replicas, "vote": vote} | keys


def said(label: str, why: str = "") -> Step:
    return Step(json.dumps({"label": label, "why": why}))


def by_seed(*labels: str | Step) -> Callable[[dict[str, Any]], Step]:
    """Answers by the seed, from 1; the last one for every further one."""

    def answer(asked: dict[str, Any]) -> Step:
        label = labels[min(asked["seed"], len(labels)) - 1]
        return said(label, f"seed {asked['seed']}") if isinstance(label, str) else label

    return answer


def rows(project: ProjectFolder, *texts: str) -> None:
    project.rows({"id": f"r-{n}", "text": text} for n, text in enumerate(texts, 1))


def seeds(provider: Scripted) -> list[int]:
    return sorted(asked["seed"] for asked in provider.asked)


def plan_stage(project: ProjectFolder, **options: Any) -> dict[str, Any]:
    report = agac.plan("reviews", agac.RunOptions(**options), project=project.root)
    found: dict[str, Any] = report.as_json()["stages"][0]
    return found


def test_as_many_are_asked_as_the_lead_takes(project: ProjectFolder) -> None:
    with project.asking(deciding(by_seed("bad", "good", "good", "bad", "good", "good", "good"))) as provider:
        rows(project, "thing")
        project.workflow(stages=[classify()])
        report = project.run()
    assert report.exit_code == ExitCode.DONE, report
    assert seeds(provider) == [1, 2, 3, 4, 5, 6, 7]
    assert project.output() == [{"label": "good", "why": "seed 2"}]
    assert project.query("SELECT agreement FROM v_results WHERE replica = 0") == [("5/7",)]
    (stage,) = report.summary["stages"]
    assert stage["agreement"] == {"rows": 1, "mean": 0.7143, "unanimous": 0.0, "asked": 7.0}
    assert (
        "Agreement at classify: 0.71 on average, 0% of 1 row unanimous; 7 asked on average"
        in project.agac("status", "1").out
    )
    (shown,) = project.agac("inspect", "last", "r-1", "--json").json["rows"][0]["stages"]
    assert shown["vote"] == {
        "field": "label", "agreement": 0.7143, "taken": 2, "lead": 3, "without": [],
        "values": [{"value": "good", "replicas": [2, 3, 5, 6, 7]}, {"value": "bad", "replicas": [1, 4]}],
    }  # fmt: skip
    assert [one["replica"] for one in shown["replicas"]] == [1, 2, 3, 4, 5, 6, 7]
    out = project.agac("inspect", "last", "r-1").out
    assert '"good" by 2, 3, 5, 6 and 7, "bad" by 1 and 4; votes 5:2 of 7 asked; agreement 0.71, the result is' in out
    assert "  replicas: 9 at most, vote on label, lead 3\n" in project.agac("inspect", "last").out
    assert "  replicas: 9 at most, vote on label, lead 3\n" in project.agac("why", "last", "r-1", "classify").out
    project.assert_sound()


def test_where_all_agree_only_so_many_are_asked_and_a_larger_lead_pays_only_the_rest(project: ProjectFolder) -> None:
    with project.asking(deciding(by_seed("good"))) as provider:
        rows(project, "thing", "thing", "other")  # equal rows share
        project.workflow(stages=[classify()])
        assert project.run().exit_code == ExitCode.DONE
        assert len(provider.asked) == 6
        for replicas, lead, more in ((9, 5, 4), (50, 5, 0), (7, 2, 0), (50, 6, 2)):
            before = len(provider.asked)
            project.workflow(stages=[classify(replicas, lead)])
            run, least = (2, more // 2) if more else (0, 0)
            stage = plan_stage(project)
            assert (stage["run"] - stage["collapsed"], stage["run"] + stage["reuse"]) == (run, 3)
            assert stage["spared"] == (replicas - lead) * stage["run"], least
            assert project.run().exit_code == ExitCode.DONE
            assert len(provider.asked) - before == more
            project.assert_sound()


def test_where_none_leads_the_row_fails_and_more_replicas_go_on_from_there(project: ProjectFolder) -> None:
    with project.asking(deciding(by_seed("good", "bad", "good", "bad", "bad"))) as provider:
        rows(project, "thing")
        project.workflow(stages=[classify(4, 3)])
        report = project.run()
        assert report.exit_code == ExitCode.ROWS_FAILED
        assert seeds(provider) == [1, 2, 3]  # the fourth could not decide it
        (error,) = project.envelopes(file="errors.jsonl")
        message = 'no answer leads by 3 votes: "good" 2, "bad" 1; 3 of 3 asked have a vote'
        assert error["error"] == {"type": "NoConsensus", "message": message}
        shown = project.agac("inspect", "last", "r-1").out
        assert f"  error: NoConsensus: {message}\n" in shown
        assert "  Replica 3: done\n" in shown
        assert "  Replica 4" not in shown
        stage = plan_stage(project)
        assert (stage["run"], stage["blocked"]) == (0, 1)
        assert [one["reason"] for one in stage["blocked_reasons"]] == [
            "no answer of its replicas leads as far as it has to"
        ]
        again = project.run()
        assert (again.exit_code, len(provider.asked)) == (ExitCode.ROWS_FAILED, 3)
        project.workflow(stages=[classify(20, 3)])
        assert (plan_stage(project)["run"], plan_stage(project)["spared"]) == (1, 15)
        assert project.run().exit_code == ExitCode.DONE
    assert seeds(provider) == [1, 2, 3, 4, 5, 6, 7]
    assert project.output() == [{"label": "bad", "why": "seed 2"}]
    project.assert_sound()


def test_replies_that_are_none_count_as_asked_and_are_never_paid_twice(project: ProjectFolder) -> None:
    broken = Step('{"label": "other"}')
    with project.asking(deciding(by_seed("good", broken, "good", broken, "good"))) as provider:
        rows(project, "thing")
        project.workflow(stages=[classify(9, 3)])
        report = project.run()
        assert (report.exit_code, seeds(provider)) == (ExitCode.DONE, [1, 2, 3, 4, 5])
        assert project.query("SELECT agreement FROM v_results WHERE replica = 0") == [("3/3 of 5",)]
        assert report.summary["stages"][0]["agreement"] == {"rows": 1, "mean": 1.0, "unanimous": 1.0, "asked": 5.0}
        outcomes = dict(project.query("SELECT replica, outcome FROM v_results"))
        assert outcomes == {0: "done", 1: "done", 2: "failed", 3: "done", 4: "failed", 5: "done"}
        (shown,) = project.agac("inspect", "last", "r-1", "--json").json["rows"][0]["stages"]
        assert shown["vote"]["without"] == [2, 4]
        assert "votes 3 of 5 asked" in project.agac("inspect", "last", "r-1").out
        rows(project, "thing", "thing")  # what failed for another row is known for this one, too
        assert (plan_stage(project)["run"], plan_stage(project)["reuse"]) == (0, 2)
        assert project.run().exit_code == ExitCode.DONE
        assert len(provider.asked) == 5
        project.workflow(stages=[classify(12, 4)])
        assert (plan_stage(project)["run"], plan_stage(project)["estimate"]["calls"]) != (0, 0)
        assert project.run().exit_code == ExitCode.DONE
    assert seeds(provider) == [1, 2, 3, 4, 5, 6]
    project.assert_sound()


def test_a_retry_asks_replies_that_were_none_once_more(project: ProjectFolder) -> None:
    replies = {"now": [Step("no JSON")]}
    with project.asking(deciding(lambda asked: by_seed("good", *replies["now"], "bad")(asked))) as provider:
        rows(project, "thing")
        project.workflow(stages=[classify(3, 2)])
        assert project.run().exit_code == ExitCode.ROWS_FAILED
        assert seeds(provider) == [1, 2, 3]
        assert project.run().exit_code == ExitCode.ROWS_FAILED
        assert len(provider.asked) == 3
        replies["now"] = [said("good")]
        assert project.agac("retry", "last", code=0)
    assert seeds(provider) == [1, 2, 2, 3]
    assert project.query("SELECT agreement FROM v_results WHERE replica = 0") == [("2/2",)]
    project.assert_sound()


def test_a_fault_that_is_no_answer_fails_the_row_and_is_asked_for_again(project: ProjectFolder) -> None:
    faults = [Step("", status=400, body='{"error": {"message": "no"}}')]
    answer = by_seed("good")
    with project.asking(
        deciding(lambda asked: faults.pop() if faults and asked["seed"] == 2 else answer(asked))
    ) as provider:
        rows(project, "thing")
        project.workflow(stages=[classify(9, 3)])
        assert project.run().exit_code == ExitCode.ROWS_FAILED
        (error,) = project.envelopes(file="errors.jsonl")
        assert error["error"]["message"].startswith("replica 2: ")
        assert project.run().exit_code == ExitCode.DONE
    assert seeds(provider) == [1, 2, 2, 3]


def test_the_whole_answer_may_vote_and_too_long_ones_do_not(project: ProjectFolder) -> None:
    replies = by_seed(Step("Yes."), Step("yes" + " indeed" * 9), Step(" YES"), Step("no"), Step("'yes'"))
    with project.asking(deciding(replies)) as provider:
        rows(project, "thing")
        stage = {"name": "say", "prompt": "${text}", "replicas": 9}
        project.workflow(stages=[stage | {"vote": {"lead": 2, "match": "normalized", "max_length": 12}}])
        assert project.run().exit_code == ExitCode.DONE
        assert seeds(provider) == [1, 2, 3]
        assert project.output() == ["Yes."]
        shown = project.agac("inspect", "last", "r-1").out
        assert 'vote on the answer: "yes" by 1 and 3; votes 2 of 3 asked; agreement 1.00' in shown
        exact = {"match": "exact", "max_length": 12}
        project.workflow(stages=[stage | {"vote": exact}])  # of all
        assert project.run().exit_code == ExitCode.DONE
    assert len(provider.asked) == 9
    assert project.output() == ["'yes'"]


def test_its_agreement_is_what_escalations_and_reviews_look_at(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        if asked["model"] == "large":
            return said("ugly")
        split = "split" in asked["messages"][-1]["content"] and asked["seed"] == 1
        return said("bad" if split else "good")

    with project.asking(deciding(answer)) as provider:
        rows(project, "plain", "split")
        escalate = {"when": "agreement < 0.9", "model": "local/large"}
        project.workflow(stages=[classify(9, 2, escalate=escalate)])
        assert project.run().exit_code == ExitCode.DONE
    assert [one["label"] for one in project.output()] == ["good", "ugly"]
    assert Counter(asked["model"] for asked in provider.asked) == {"small": 2 + 4, "large": 1}
    project.assert_sound()


def test_in_batches_each_round_has_as_many_lines_as_are_lacking(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, batch="openai")
    rows(project, *(f"thing {n}" for n in range(8)))
    project.workflow(stages=[classify(20, 2)], defaults={"run_mode": "batch", "batch": {"max_rounds": 1}})
    report = project.run(wait=True)
    assert report.exit_code == ExitCode.DONE, report
    asked = project.query("SELECT row_id, max(replica) FROM v_results GROUP BY 1 ORDER BY 1")
    lines = [tasks for (tasks,) in project.query("SELECT tasks FROM batch ORDER BY id")]
    assert lines[0] == 16  # two of each
    assert sum(lines) == sum(most for _, most in asked)
    assert len(lines) > 1
    batched = project.output()
    assert project.run(wait=True).invocation["calls"] == 0
    project.assert_sound()
    by_calls = project.run(run_mode="sync", fresh=True)
    assert (by_calls.exit_code, by_calls.invocation["calls"]) == (ExitCode.DONE, sum(lines))
    assert project.output() == batched


def test_a_plan_says_from_how_many_calls_to_how_many(project: ProjectFolder, server: Server) -> None:
    rows(project, *(f"thing {n}" for n in range(10)))
    project.workflow(stages=[classify(9, 3)])
    stage = plan_stage(project)
    assert (stage["run"], stage["spared"], stage["estimate"]["calls"]) == (10, 60, 50)  # a guess: four in five agree
    assert (
        "classify: 30 to 90 calls: no more for a row once an answer leads by 3"
        in project.agac("plan", "-a", "reviews").out
    )
    report = project.run()
    asked = report.invocation["calls"]
    assert 30 < asked <= 90
    again = plan_stage(project, fresh=True)
    took = report.summary["stages"][0]["agreement"]["asked"]
    assert again["estimate"]["calls"] == pytest.approx(10 * took, abs=2)
    assert 3 < took < 9


def test_retry_from_its_stage_asks_all_anew(project: ProjectFolder, server: Server) -> None:
    rows(project, "thing")
    project.workflow(stages=[classify(20, 2)])
    asked = project.run().invocation["calls"]
    before = server.account()["requests"]
    project.agac("retry", "last", "--from", "classify", code=0)
    assert server.account()["requests"] - before == asked
    project.assert_sound()


def test_failures_that_a_check_of_the_row_finds_bind_the_plan_as_they_bind_the_run(project: ProjectFolder) -> None:
    check = {"check": "row.text == 'never'", "message": "the row is another one; so it fails"}
    with project.asking(deciding(by_seed("good"))) as provider:
        rows(project, "thing", "other", "third", "fourth")
        project.workflow(stages=[classify(3, 2, checks=[check])])
        report = project.run()
        asked = len(provider.asked)
        assert (report.exit_code, asked) == (ExitCode.ROWS_FAILED, 8)
        stage = plan_stage(project)
        assert (stage["run"], stage["blocked"]) == (0, 4)
        project.workflow(stages=[classify(3, 2, checks=[check])], confirm_above={"usd": 0.000001})
        ran = project.agac("run", "-a", "reviews")  # nothing is asked, so that nothing has to be confirmed
        assert ran.code == ExitCode.ROWS_FAILED, ran.out + ran.err
        assert len(provider.asked) == asked
        assert "agac retry" in ran.out
    project.assert_sound()
