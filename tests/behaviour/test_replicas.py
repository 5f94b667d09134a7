"""`replicas` and `vote`: a row asked several times at one stage, and what is made of the answers."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from scripted_server import Step, deciding
from support.processes import killed, listening, wait_until
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac
from agac.core.errors import ExitCode
from agac.engine.invocation import Retry

LABELS = {"label": "good|bad|ugly", "why": "string"}


def classify(replicas: int = 3, **keys: Any) -> dict[str, Any]:
    return {"name": "classify", "prompt": "Review: ${text}", "output_schema": LABELS, "replicas": replicas, **keys}


def said(label: str, why: str = "") -> Step:
    return Step(json.dumps({"label": label, "why": why}))


def by_seed(**labels: str) -> Callable[[dict[str, Any]], Step]:
    """Answers by the seed: `s1="bad"`; what the seed was is in `why`."""
    return lambda asked: said(labels[f"s{asked['seed']}"], f"seed {asked['seed']}")


def things(project: ProjectFolder, count: int) -> None:
    """Rows of which the simulator has no opinion: what it says of them goes by the seed."""
    project.rows({"id": f"r-{n}", "text": f"thing {n}"} for n in range(1, count + 1))


def voted(project: ProjectFolder, rows: int, replicas: int = 3, **keys: Any) -> None:
    """So many rows, each asked so often, and a vote on the label."""
    things(project, rows)
    project.workflow(stages=[classify(replicas, vote="label", **keys)])


def tasks(project: ProjectFolder, run: int) -> Counter[tuple[int, str]]:
    return Counter(project.query("SELECT replica, outcome FROM v_results WHERE run = ?", run))


def counted_agreement(project: ProjectFolder, run: int) -> dict[str, int]:
    sql = "SELECT agreement, count(*) FROM v_results WHERE run = ? AND agreement IS NOT NULL GROUP BY 1"
    return dict(project.query(sql, run))


def sound(project: ProjectFolder, run: int) -> None:
    """The roll-ups say what a scan says."""
    project.assert_sound()
    rolled = "SELECT error_type, count FROM counter WHERE run_id = ? AND outcome = 'agreement' AND count <> 0"
    assert dict(project.query(rolled, run)) == counted_agreement(project, run)


def test_each_row_is_asked_so_often_and_each_time_with_another_seed(project: ProjectFolder, server: Server) -> None:
    voted(project, 5)
    report = project.run()
    assert (report.exit_code, server.account()["requests"], report.invocation["calls"]) == (ExitCode.DONE, 15, 15)
    (stage,) = report.summary["stages"]
    assert (stage["done"], stage["reused"], stage["failed"]) == (5, 0, 0)
    assert tasks(project, 1) == {(replica, "done"): 5 for replica in range(4)}
    answers = "SELECT count(DISTINCT row_id || result) FROM v_results WHERE replica > 0"
    assert project.query(answers)[0][0] > 5  # the simulator goes by the seed
    for envelope in project.envelopes():
        of_row = project.query("SELECT result FROM v_results WHERE row_id = ? AND replica > 0", envelope["id"])
        answers = [json.loads(text) for (text,) in of_row]
        labels = Counter(answer["label"] for answer in answers)
        assert labels[envelope["result"]["label"]] == max(labels.values())
        assert envelope["result"] in answers
    sound(project, 1)
    stored = "SELECT (SELECT count(*) FROM task), (SELECT count(*) FROM result), revision FROM run"
    before = project.query(stored)
    assert [(one.run, one.reuse) for one in agac.plan("reviews", project=project.root).stages] == [(0, 5)]
    again = project.run()
    assert (again.summary["run"], again.invocation["calls"], again.invocation["rows_unchanged"]) == (1, 0, 5)
    assert project.query(stored) == before


def test_without_a_vote_the_result_is_the_list_and_later_stages_see_it(project: ProjectFolder) -> None:
    with project.asking(
        deciding(lambda asked: said("bad", f"seed {asked.get('seed')}") if "seed" in asked else Step("done"))
    ) as provider:
        things(project, 1)
        after = {"name": "after", "prompt": "First: ${classify.0.why}, all: ${classify}"}
        project.workflow(stages=[classify(2), after], output={"stages": ["classify", "after"], "format": "csv"})
        report = project.run()
    assert report.exit_code == ExitCode.DONE, report
    both = [{"label": "bad", "why": "seed 1"}, {"label": "bad", "why": "seed 2"}]
    assert project.output() == [{"classify": both, "after": "done"}]
    (prompt,) = [asked["messages"][0]["content"] for asked in provider.asked if "seed" not in asked]
    assert prompt.startswith("First: seed 1, all: [{")
    assert "agreement" not in report.summary["stages"][0]
    assert counted_agreement(project, 1) == {}


def test_plain_text_and_output_field(project: ProjectFolder) -> None:
    with project.asking(deciding(lambda asked: Step(" yes " if asked["seed"] > 1 else "no"))):
        things(project, 1)
        plain = {"name": "plain", "prompt": "${text}", "replicas": 2}
        field = {"name": "field", "prompt": "${text}!", "replicas": 3, "output_field": "verdict", "vote": "verdict"}
        project.workflow(stages=[plain, {**field, "needs": []}])
        assert project.run().exit_code == ExitCode.DONE
    assert project.output() == [{"plain": ["no", " yes "], "field": {"verdict": "yes"}}]


def test_a_provider_without_seeds_is_sent_none(project: ProjectFolder, server: Server) -> None:
    with project.asking(deciding(lambda _: said("good")), seeds=False) as provider:
        voted(project, 2)
        assert project.run().exit_code == ExitCode.DONE
    assert [asked.get("seed") for asked in provider.asked] == [None] * 6
    assert counted_agreement(project, 1) == {"3/3": 2}
    project.asks(server, dialect="openai-responses")
    assert project.run(fresh=True).exit_code == ExitCode.DONE
    assert server.account()["requests"] == 6
    assert counted_agreement(project, 2) == {"3/3": 2}


def test_one_replica_is_as_none(project: ProjectFolder, server: Server) -> None:
    things(project, 2)
    project.workflow(stages=[{key: value for key, value in classify().items() if key != "replicas"}])
    assert project.run().summary["run"] == 1
    again = project.run(project.workflow(stages=[classify(1)]))
    assert (again.summary["run"], again.invocation["calls"], server.account()["requests"]) == (1, 0, 2)
    assert "replicas" not in project.query("SELECT body FROM definition")[0][0]


def test_more_replicas_ask_only_those_that_are_new(project: ProjectFolder, server: Server) -> None:
    voted(project, 4)
    project.run()
    project.workflow(stages=[classify(5, vote="label")])
    (stage,) = agac.plan("reviews", project=project.root).stages
    assert (stage.run, stage.estimate.calls) == (4, 8)
    assert list(stage.reasons) == ["replicas changed"]
    report = project.run()
    assert (report.summary["run"], report.invocation["calls"]) == (2, 8)
    assert tasks(project, 2) == {
        (0, "done"): 4, (1, "reused"): 4, (2, "reused"): 4, (3, "reused"): 4, (4, "done"): 4, (5, "done"): 4,
    }  # fmt: skip
    fewer = project.run(project.workflow(stages=[classify(2, vote="label")]))
    assert (fewer.summary["run"], fewer.invocation["calls"]) == (3, 0)
    assert tasks(project, 3) == {(0, "reused"): 4, (1, "reused"): 4, (2, "reused"): 4}
    assert server.account()["duplicates"] == 0
    for run in (1, 2, 3):
        assert sum(counted_agreement(project, run).values()) == 4
        sound(project, run)


def test_another_vote_asks_nothing_and_gc_drops_what_nobody_needs(project: ProjectFolder, server: Server) -> None:
    voted(project, 3)
    project.run()
    project.workflow(stages=[classify(3)])
    assert agac.plan("reviews", project=project.root).calls == 0
    report = project.run()
    assert (report.summary["run"], report.invocation["calls"], server.account()["requests"]) == (2, 0, 9)
    assert [len(result) for result in project.output()] == [3, 3, 3]
    sound(project, 2)
    project.agac("gc", "--keep-runs", "1", code=0)
    assert project.query("SELECT run, count(*) FROM v_results GROUP BY 1") == [(2, 12)]
    project.workflow(stages=[classify(4)])
    assert project.run().invocation["calls"] == 3
    project.assert_sound()


def test_a_replica_that_fails_fails_the_task_and_it_alone_is_asked_again(project: ProjectFolder) -> None:
    refusing = True

    def answer(asked: dict[str, Any]) -> Step:
        return Step("", 400, body='{"error": {"message": "no"}}') if refusing and asked["seed"] == 2 else said("good")

    with project.asking(deciding(answer)) as provider:
        voted(project, 2)
        first = project.run()
        assert first.exit_code == ExitCode.ROWS_FAILED
        (stage,) = first.summary["stages"]
        assert (stage["done"], stage["failed"]) == (0, 2)
        assert stage["agreement"] == {"rows": 0, "mean": None, "unanimous": None}
        assert all(one["error"]["message"].startswith("replica 2: ") for one in project.envelopes(file="errors.jsonl"))
        assert tasks(project, 1) == {(0, "failed"): 2, (1, "done"): 2, (2, "failed"): 2, (3, "done"): 2}
        sound(project, 1)
        asked, refusing = len(provider.asked), False
        second = project.run()
        assert second.exit_code == ExitCode.DONE
        assert [one["seed"] for one in provider.asked[asked:]] == [2, 2]
    assert tasks(project, 1) == {(0, "done"): 2, (1, "done"): 2, (2, "done"): 2, (3, "done"): 2}
    assert second.summary["stages"][0]["agreement"] == {"rows": 2, "mean": 1.0, "unanimous": 1.0}
    sound(project, 1)


def test_a_refused_answer_is_left_alone_as_that_of_any_task(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        return Step("{", finish="length") if asked["seed"] == 3 else said("good")

    with project.asking(deciding(answer)) as provider:
        voted(project, 1)
        for calls in (3, 1, 1, 0):
            before = len(provider.asked)
            assert project.run().exit_code == ExitCode.ROWS_FAILED
            assert len(provider.asked) - before == calls
    assert "replica 3" in project.envelopes(file="errors.jsonl")[0]["error"]["message"]


def test_equal_rows_share_their_replicas_unless_reuse_keeps_them_apart(project: ProjectFolder) -> None:
    project.rows({"id": f"r-{n}", "text": "the same"} for n in range(6))
    report = project.run(project.workflow(stages=[classify(2, vote="label")]))
    (stage,) = report.summary["stages"]
    assert (report.invocation["calls"], stage["done"] + stage["reused"]) == (2, 6)
    assert report.invocation["tasks_collapsed"] == 5
    assert project.query("SELECT count(*) FROM result") == [(3,)]
    project.workflow(stages=[classify(2, vote="label", reuse="row")])
    for run in (2, 3):
        fresh = project.run(fresh=True)
        assert (fresh.summary["run"], fresh.invocation["calls"]) == (run, 12)
    for run in (1, 2, 3):
        sound(project, run)


def test_a_retry_from_the_stage_asks_all_replicas_again(project: ProjectFolder, server: Server) -> None:
    voted(project, 3)
    project.run()
    choice = Retry(rows=("r-2",), from_stage="classify")
    assert agac.retry_choice("last", choice, project=project.root).calls_at_least == 3
    report = agac.retry("last", choice, project=project.root)
    assert (report.exit_code, report.invocation["calls"]) == (ExitCode.DONE, 3)
    assert tasks(project, 1) == {(replica, "done"): 3 for replica in range(4)}
    why = agac.why("last", "r-2", "classify", project=project.root)
    assert why.again is not None
    assert (why.again.same_question, why.again.because) == (True, ["`agac retry --from classify` asks anew"])
    assert agac.why("last", "r-1", "classify", project=project.root).again is None
    sound(project, 1)


def test_a_changed_row_that_a_guard_now_passes_over_keeps_no_replicas(project: ProjectFolder) -> None:
    voted(project, 3, 2, when='text != "gone"')
    project.run()
    text = (project.root / "data/rows.csv").read_text("utf-8").replace("thing 2", "gone")
    project.write("data/rows.csv", text)
    report = project.run()
    assert report.summary["stages"][0]["skipped"] == 1
    assert project.query("SELECT replica, outcome FROM v_results WHERE row_id = 'r-2'") == [(0, "skipped")]
    assert report.summary["stages"][0]["agreement"]["rows"] == 2
    for rows in (2, 3):  # of which the second has its votes back
        things(project, rows)
        report = project.run()
        assert (report.invocation["calls"], report.summary["stages"][0]["agreement"]["rows"]) == (0, rows)
    sound(project, 1)


def test_budgets_bound_replicas_too(project: ProjectFolder, server: Server) -> None:
    things(project, 4)
    report = project.run(project.workflow(stages=[classify(3, vote="label")], budget={"calls": 7}))
    assert (report.exit_code, server.account()["requests"]) == (ExitCode.LIMIT, 7)
    sound(project, report.summary["run"])
    project.workflow(stages=[classify(3, vote="label")], budget={"calls": 12})
    assert project.run().exit_code == ExitCode.DONE
    assert server.account()["requests"] == 12
    assert tasks(project, 1) == {(replica, "done"): 4 for replica in range(4)}
    sound(project, 1)
    report = project.run(project.workflow(stages=[classify(3, vote="label")], row_budget={"calls": 2}), fresh=True)
    assert (report.exit_code, server.account()["requests"]) == (ExitCode.ROWS_FAILED, 12 + 8)
    assert all(one["error"]["type"] == "BudgetExceeded" for one in project.envelopes(file="errors.jsonl"))
    sound(project, 2)


def test_a_fallback_is_asked_with_the_replica_s_seed(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        return Step("", finish="content_filter") if asked["model"] == "small" else said("good")

    with project.asking(deciding(answer)) as provider:
        things(project, 1)
        project.workflow(stages=[classify(2, vote="label", fallback=["local/large"])])
        assert project.run().exit_code == ExitCode.DONE
    assert Counter((asked["model"], asked["seed"]) for asked in provider.asked) == {
        ("small", 1): 1, ("small", 2): 1, ("large", 1): 1, ("large", 2): 1,
    }  # fmt: skip


def test_agreement_in_summary_status_and_telemetry(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        split = "thing 1" in asked["messages"][-1]["content"] and asked["seed"] == 3
        return said("ugly" if split else "good")

    with project.asking(deciding(answer)):
        voted(project, 2)
        logged = ("--log-level", "debug", "--log-format", "json", "--log-file", "log")
        project.agac(*logged, "run", "-a", "reviews", code=0)
    log = [json.loads(line) for line in (project.root / "log").read_text("utf-8").split("\n") if line]
    assert sorted(one["replica"] for one in log if "request" in one) == [1, 1, 2, 2, 3, 3]
    for summary in (project.output(file="summary.json"), project.agac("status", "1", "--json").json["runs"][0]):
        assert summary["stages"][0]["agreement"] == {"rows": 2, "mean": 0.8333, "unanimous": 0.5}
    line = "Agreement at classify: 0.83 on average, 50% of 2 rows unanimous"
    for words in (("status", "1"), ("run", "-a", "reviews")):
        assert line in project.agac(*words).out.split("\n")
    lines = project.envelopes(file="telemetry.jsonl")
    assert [one["agreement"] for one in lines] == [{"classify": 0.6667}, {"classify": 1.0}]
    assert [sorted(a["replica"] for a in one["usage"]["provider_attempts"]) for one in lines] == [[1, 2, 3]] * 2


def test_inspect_shows_each_replica_and_the_vote(project: ProjectFolder) -> None:
    """The first answer of the majority is the result."""
    with project.asking(deciding(by_seed(s1="bad", s2="good", s3="good"))) as provider:
        voted(project, 1)
        project.run()
    assert sorted(asked["seed"] for asked in provider.asked) == [1, 2, 3]
    assert project.output() == [{"label": "good", "why": "seed 2"}]
    assert counted_agreement(project, 1) == {"2/3": 1}
    (stage,) = project.agac("inspect", "last", "r-1", "--json").json["rows"][0]["stages"]
    assert (stage["outcome"], stage["stale"], stage["result"]["why"]) == ("done", False, "seed 2")
    replicas = [(one["replica"], one["outcome"], one["stale"], one["result"]["label"]) for one in stage["replicas"]]
    assert replicas == [(1, "done", False, "bad"), (2, "done", False, "good"), (3, "done", False, "good")]
    assert stage["vote"] == {
        "field": "label", "agreement": 0.6667, "taken": 2,
        "values": [{"value": "good", "replicas": [2, 3]}, {"value": "bad", "replicas": [1]}],
    }  # fmt: skip
    assert [(one["replica"], one["of_earlier_content"]) for one in stage["attempts"]] == [(n, False) for n in (1, 2, 3)]
    shown = project.agac("inspect", "last", "r-1").out
    assert '  vote on label: "good" by 2 and 3, "bad" by 1; agreement 0.67, the result is that of replica 2' in shown
    assert "for replica 3: ask" in shown
    assert "  replicas: 3, vote on label\n" in project.agac("inspect", "last").out
    why = project.agac("why", "last", "r-1", "classify")
    assert "  replicas: 3, vote on label\n" in why.out
    assert "This run ran it before" not in why.out


def test_re_asks_belong_to_their_replica(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        first = len(asked["messages"]) == 1
        return Step('{"label": 7}') if asked["seed"] == 2 and first else said("good", f"seed {asked['seed']}")

    with project.asking(deciding(answer)):
        voted(project, 1, 2)
        report = project.run()
    assert report.summary["stages"][0]["repaired"] == 1
    (stage,) = project.agac("inspect", "last", "r-1", "--json").json["rows"][0]["stages"]
    attempts = [(one["replica"], one["purpose"], one["asked_again_with"] is not None) for one in stage["attempts"]]
    assert attempts == [(1, "ask", False), (2, "ask", False), (2, "repair", True)]
    assert [one["how"] for one in stage["replicas"]] == [[], ["repair"]]


def test_the_plan_of_a_first_run_counts_calls_and_dollars_of_replicas(project: ProjectFolder, server: Server) -> None:
    price = {"small": {"input": 1.0, "output": 2.0}}
    project.configure(server.base_url, prices=price)
    things(project, 10)
    after = {"name": "after", "prompt": "${classify.label}", "replicas": 2, "max_tokens": 50}
    once = [{**classify(1), "max_tokens": 50}, {**after, "replicas": 1}]
    project.workflow(stages=once)
    plain = agac.plan("reviews", project=project.root)
    project.workflow(stages=[classify(4, vote="label", max_tokens=50), after])
    plan = agac.plan("reviews", project=project.root)
    assert [stage.estimate.calls for stage in plan.stages] == [40, 20]
    worst = [
        (a.estimate.usd_at_most or 0) / (b.estimate.usd_at_most or 1)
        for a, b in zip(plan.stages, plain.stages, strict=True)
    ]
    assert worst == [pytest.approx(4), pytest.approx(2)]


def test_a_stage_after_a_known_vote_is_planned_from_it(project: ProjectFolder, server: Server) -> None:
    voted(project, 3)
    project.run()
    after = {"name": "after", "prompt": "It is ${classify.label}"}
    project.workflow(stages=[classify(3, vote="label"), after])
    plan = agac.plan("reviews", project=project.root, show=3)
    labels = [result["label"] for result in project.output()]
    assert [prompt.messages[0].text for prompt in plan.prompts] == [f"It is {label}" for label in labels]


def test_what_was_answered_when_a_run_stops_amid_a_row_is_kept(project: ProjectFolder, faulty: Faulty) -> None:
    """A fatal fault amid the replicas of a row: those that were answered are kept."""
    project.asks(faulty([{"kind": "unauthorized", "at": [2]}]))
    voted(project, 1)
    assert project.run(concurrency=1).exit_code == ExitCode.FAILED
    stored = project.query("SELECT count(*) FROM result")[0][0]
    assert stored in (1, 2)
    second = project.run()
    assert second.exit_code == ExitCode.DONE
    assert second.invocation["calls"] == 3 - stored
    sound(project, 1)


def test_rows_that_stages_make_and_groups_have_replicas_too(project: ProjectFolder, server: Server) -> None:
    project.rows({"id": f"r-{n}", "kind": "xy"[n % 2], "text": f"thing {n}"} for n in range(6))
    parts = {"name": "parts", "prompt": "${text}", "output_schema": {"list": "string[]"}, "replicas": 2, "vote": "list"}
    judge = {"name": "judge", "explode": "parts.list", "prompt": "${text}: ${item}", "output_schema": LABELS}
    total = {"name": "total", "needs": "parts", "group_by": "kind", "prompt": "${rows_json}", "output_schema": LABELS}
    often = {"replicas": 3, "vote": "label"}
    project.workflow(stages=[parts, {**judge, **often}, {**total, **often}], output={"stages": "judge"})
    report = project.run()
    assert report.exit_code == ExitCode.DONE
    votes = dict(project.query("SELECT stage, count(*) FROM v_results WHERE agreement IS NOT NULL GROUP BY 1"))
    rows = {stage["name"]: stage["agreement"]["rows"] for stage in report.summary["stages"]}
    assert rows == votes == {"parts": 6, "judge": votes["judge"], "total": 2}
    assert server.account()["duplicates"] == 0
    assert project.run().invocation["calls"] == 0
    before = server.account()["requests"]
    text = (project.root / "data/rows.csv").read_text("utf-8").replace("thing 5", "another")
    project.write("data/rows.csv", text)
    again = project.run()
    assert server.account()["requests"] - before == again.invocation["calls"] < before
    asked = {stage["name"]: stage["agreement"]["rows"] for stage in again.summary["stages"]}
    made = project.query("SELECT count(*) FROM row WHERE origin = 1 AND place >= 0 AND state <> 6")[0][0]
    assert asked == {"parts": 6, "judge": made, "total": 2}


def test_what_a_kill_may_have_cost_knows_of_replicas(project: ProjectFolder, faulty: Faulty) -> None:
    """One open row, killed with all of its replicas under way: each of them may have been billed."""
    server = project.asks(faulty([], "--latency", "30"))
    voted(project, 1, 5, repair=0)
    process = listening(project.start("run", "-a", "reviews"))
    wait_until(lambda: server.account()["requests"] == 5, "five calls", process)
    killed(process)
    body = json.loads(project.query("SELECT body FROM event WHERE kind = 'invocation'")[0][0])
    assert body["billed_a_row"] >= 5
