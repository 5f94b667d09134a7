"""What counts in a budget, over all invocations of a run, and what is left behind when it is reached."""

from typing import Any

import pytest
from support.processes import ended, interrupt, kill_at, wait_until
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

from agac.api.run import retry
from agac.core.errors import ExitCode, SpecError, UsageError
from agac.engine.invocation import Retry
from agac.spec.workflow import Budget
from agac.store.db import migrations

STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "max_tokens": 200}
PRICES = {"small": {"input": 1.0, "output": 2.0}, "large": {"input": 10.0, "output": 20.0}}


def limits(report: Any, name: str = "budget of the run") -> dict[str, Any]:
    (found,) = [budget for budget in report.invocation["budgets"] if budget["name"] == name]
    return found  # type: ignore[no-any-return]


def outputs(project: ProjectFolder) -> dict[str, bytes]:
    folder = project.root / "output/reviews"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("budget", [{"usd": 0.004}, {"tokens": 3_500}, {"usd": 0.004, "tokens": 3_500, "calls": 70}])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_the_provider_never_charges_more_than_the_budget(
    budget: dict[str, Any], rate: float, project: ProjectFolder, faulty: Faulty
) -> None:
    faults = [{"kind": "cut", "rate": rate / 4}, {"kind": "server_error", "rate": rate / 4, "retry_after": 0},
              {"kind": "rate_limit", "rate": rate / 4, "retry_after": 0.002},
              {"kind": "wrong_schema", "rate": rate / 4}]  # fmt: skip
    server = faulty(faults)
    project.configure(server.base_url, prices=PRICES)
    project.numbered(150)
    project.workflow(stages=[STAGE], budget=budget, stop_loss=False)
    report = project.run(concurrency=64)
    account = server.account()
    given, made = account["prompt_tokens"], account["completion_tokens"]
    assert (given * 1.0 + made * 2.0) / 1e6 <= budget.get("usd", 1e9)
    assert given + made <= budget.get("tokens", 1e9)
    assert account["requests"] <= budget.get("calls", 1e9)
    assert report.exit_code == ExitCode.LIMIT
    assert report.summary["rows"]["done"] > 0
    project.assert_sound()
    finished = project.run(concurrency=64, budget=Budget(usd=10))
    assert finished.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED)  # so many faults may outlast all retries
    assert finished.summary["rows"]["open"] == 0
    answered = project.query("SELECT count(*), count(DISTINCT fingerprint) FROM result")[0]
    assert answered[0] == answered[1]  # nothing that was answered was asked again


def test_running_again_at_the_limit_says_so_without_a_call_and_changes_nothing(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = faulty([{"kind": "bad_request", "match": "number 2"}])
    project.configure(server.base_url)
    project.numbered(100)
    project.workflow(stages=[STAGE], budget={"calls": 40})
    first = project.run(concurrency=8)
    assert first.summary["rows"]["failed"] > 0
    before, states = outputs(project), project.query("SELECT id, state, error_type, error_stage FROM row ORDER BY id")
    requests = server.account()["requests"]
    again = project.run(concurrency=8)
    assert (again.exit_code, again.invocation["calls"]) == (ExitCode.LIMIT, 0)
    assert server.account()["requests"] == requests
    assert project.query("SELECT id, state, error_type, error_stage FROM row WHERE state <> 0 ORDER BY id") == [
        state for state in states if state[1]
    ]
    after = outputs(project)
    assert after["results.jsonl"] == before["results.jsonl"]
    assert after["errors.jsonl"] == before["errors.jsonl"]
    assert again.summary["rows"] == first.summary["rows"]
    project.assert_sound()


def test_a_finished_run_is_not_stopped_by_a_budget_that_is_used_up(project: ProjectFolder) -> None:
    project.numbered(10)
    project.workflow(stages=[STAGE], budget={"calls": 10})
    assert project.run().exit_code == ExitCode.DONE
    assert project.run().exit_code == ExitCode.DONE


def test_what_calls_without_an_answer_may_have_cost_counts_in_the_next_invocation(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = faulty([{"kind": "cut", "match": "number 3"}])
    project.configure(server.base_url, prices=PRICES)
    project.numbered(5)
    project.workflow(stages=[STAGE], budget={"usd": 1})
    first = project.run()
    facts = limits(first)["usd"]
    assert facts["held"] > 0.0012  # three tries of 200 tokens for $2 a million
    spent, held = project.query("SELECT sum(cost), sum(held_cost) FROM counter")[0]
    assert (facts["spent"], facts["held"]) == (pytest.approx(spent, abs=1e-6), pytest.approx(held, abs=1e-6))
    second = limits(project.run(budget=Budget(usd=1)))["usd"]
    assert second["held"] > facts["held"]
    tight = project.run(budget=Budget(usd=spent + held))
    assert (tight.exit_code, tight.invocation["calls"]) == (ExitCode.LIMIT, 0)


def test_calls_that_a_kill_may_have_lost_count(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([], "--latency", "0.05")
    project.configure(server.base_url, prices=PRICES)
    project.numbered(60)
    project.workflow(stages=[STAGE], budget={"calls": 100, "usd": 1})
    # as many of these commits as there are migrations are theirs
    at = f"commit:{len(migrations()) + 4}"
    process = project.start("run", "-a", "reviews", "--concurrency", "4", env=kill_at(at))
    ended(process)
    known = project.query("SELECT count(*) FROM attempt")[0][0]
    report = project.run(concurrency=4)
    assert report.exit_code == ExitCode.DONE
    lost = report.invocation["lost_calls_at_most"]
    assert 0 < lost <= 8
    facts = limits(report)
    assert (facts["calls"]["held"], facts["calls"]["spent"]) == (lost, 60)
    mean = 0 if known == 0 else facts["usd"]["held"] / lost
    assert mean == pytest.approx(facts["usd"]["spent"] / 60, rel=0.5)


def test_calls_that_a_second_ctrl_c_gave_up_count(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "hang", "match": "number"}])
    project.configure(server.base_url)
    project.numbered(20)
    project.workflow(stages=[STAGE], budget={"calls": 4})
    process = project.start("run", "-a", "reviews", "--concurrency", "4")
    wait_until(lambda: server.account()["in_flight"] == 4, "four calls in flight", process)
    interrupt(process)
    interrupt(process)
    ran = ended(process)
    assert ran.code == 130
    assert "4 calls in flight were cancelled" in ran.err
    report = project.run(concurrency=4)
    assert (report.exit_code, report.invocation["calls"]) == (ExitCode.LIMIT, 0)
    assert limits(report)["calls"] == {"limit": 4, "spent": 0, "held": 4}


def test_the_tighter_of_two_budgets_holds_and_the_command_line_takes_the_place_of_both(project: ProjectFolder) -> None:
    project.numbered(50)
    project.workflow(stages=[STAGE], budget={"calls": 30})
    text = (project.root / "agac.yml").read_text("utf-8")
    project.write("agac.yml", text + "budget: {calls: 10}\n")
    report = project.run(concurrency=4)
    assert (report.exit_code, report.summary["calls"]["count"]) == (ExitCode.LIMIT, 10)
    assert "budget of agac.yml" in (report.stopped or "")
    report = project.run(concurrency=4, budget=Budget(calls=35))
    assert (report.exit_code, report.summary["calls"]["count"]) == (ExitCode.LIMIT, 35)


def test_the_command_that_is_printed_finishes_the_run(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.numbered(80)
    project.workflow(stages=[STAGE], budget={"usd": 0.002, "calls": 1_000})
    ran = project.agac("run", "-a", "reviews", "--budget", "usd=0.002")
    assert ran.code == 4
    assert "stopped at a limit: the budget of the run is used up: the next call might exceed it" in ran.err
    (line,) = [line for line in ran.err.splitlines() if "Resume with: " in line]
    words = line.split("Resume with: agac ")[1].split()
    assert words.count("--budget") == 1
    again = project.agac(*words)
    assert (again.code, "80 done" in again.out) == (0, True), again.err


def test_a_reached_stage_budget_names_the_stage_and_what_should_do(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.numbered(40)
    second = {"name": "reply", "needs": "classify", "prompt": "Reply to ${text}", "max_tokens": 100}
    project.workflow(stages=[STAGE, second | {"budget": {"calls": 10}}], budget={"usd": 5})
    ran = project.agac("run", "-a", "reviews", "--concurrency", "4", code=4)
    assert "the budget of stage 'reply' is used up" in ran.err
    assert "raise `budget` of stage 'reply' to {calls: " in ran.err
    assert "--budget" not in ran.err
    wanted = int(ran.err.split("to {calls: ")[1].split("}")[0])
    project.workflow(stages=[STAGE, second | {"budget": {"calls": wanted}}], budget={"usd": 5})
    assert project.agac("run", "-a", "reviews").code == 0


def test_the_json_tells_what_stopped_the_run_and_what_finishing_needs(project: ProjectFolder) -> None:
    project.numbered(30)
    project.workflow(stages=[STAGE], budget={"calls": 10})
    found = project.agac("run", "-a", "reviews", "--json").json
    assert (found["exit_code"], found["stop"], found["complete"]) == (4, "limit", False)
    budgets = [{"name": "budget of the run", "calls": {"limit": 10, "spent": 10, "held": 0}}]
    assert found["invocation"]["budgets"] == budgets
    needed = found["finishing"]
    assert (needed["rows"], needed["calls"], needed["stage"], needed["max_errors"]) == (20, 20, None, None)
    assert needed["budget"].startswith("calls=")


def test_a_fallback_counts_and_needs_a_price_of_its_own(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "refusal", "match": "number 1"}])
    project.configure(server.base_url, prices={"small": PRICES["small"]})
    project.numbered(9)
    stage = STAGE | {"fallback": ["local/large"]}
    project.workflow(stages=[stage], budget={"usd": 0.5})
    with pytest.raises(SpecError) as caught:
        project.run()
    (problem,) = caught.value.problems
    assert problem.path == "stages[0].fallback"
    assert "{large: {input: 1.00, output: 2.00}}" in problem.message
    project.configure(server.base_url, prices=PRICES)
    report = project.run()
    dear = project.query("SELECT sum(cost) FROM counter WHERE model LIKE '%large%'")[0][0]
    assert limits(report)["usd"]["spent"] == pytest.approx(report.summary["calls"]["cost_usd"])
    assert dear > 0


def test_a_token_budget_wants_a_bound_but_no_price(project: ProjectFolder) -> None:
    project.numbered(2)
    unbounded = {key: value for key, value in STAGE.items() if key != "max_tokens"}
    project.workflow(stages=[unbounded], budget={"tokens": 5_000})
    with pytest.raises(SpecError) as caught:
        project.run()
    assert [p.message.count("max_tokens") for p in caught.value.problems] == [1]
    project.workflow(stages=[unbounded], budget={"calls": 5})
    assert project.run().exit_code == ExitCode.DONE


def test_a_retry_that_meets_the_limit_leaves_done_rows_done(project: ProjectFolder) -> None:
    project.numbered(20)
    second = {"name": "reply", "needs": "classify", "prompt": "Reply to ${text}", "max_tokens": 100}
    project.workflow(stages=[STAGE, second])
    project.run()
    project.agac("retry", "last", "--from", "reply", "--yes", "--budget", "calls=45", "--concurrency", "1", code=4)
    assert project.query("SELECT state, count(*) FROM row GROUP BY state") == [(1, 20)]
    assert len(project.envelopes()) == 20
    project.assert_sound()


def test_a_retry_is_asked_about_above_confirm_above(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 2000.0}})
    project.numbered(20)
    project.workflow(stages=[STAGE])
    project.run()
    project.workflow(stages=[STAGE], confirm_above={"usd": 0.1})
    asked = server.account()["requests"]
    with pytest.raises(UsageError, match=r"reviews is expected to cost \$[\d.]+; confirm_above is \$0\.10"):
        retry("last", Retry(from_stage="classify"), project=project.root)
    assert server.account()["requests"] == asked
    questions = []
    report = retry(
        "last", Retry(from_stage="classify"), project=project.root, confirm=lambda text: not questions.append(text)
    )
    assert (report.exit_code, len(questions), server.account()["requests"]) == (ExitCode.DONE, 1, 2 * asked)
    expected = float(questions[0].split("$")[1].split(";")[0])
    assert expected == pytest.approx(report.invocation["cost_usd"], rel=0.3)
