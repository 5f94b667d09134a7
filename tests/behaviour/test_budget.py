"""What counts in a budget, over all invocations of a run, and what is left behind when it is reached."""

import json
from itertools import product
from typing import Any

import pytest
from support.processes import ended, interrupt, kill_at, wait_until
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.soak import few

from agac.api.retries import retry
from agac.core.errors import ExitCode, SpecError, UsageError
from agac.engine.invocation import Retry
from agac.spec.rules import Budget
from agac.store.db import migrations

STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "max_tokens": 200}
REPLY = {"name": "reply", "needs": "classify", "prompt": "Reply to ${text}", "max_tokens": 100}
UNBOUNDED = {key: value for key, value in STAGE.items() if key != "max_tokens"}
PRICES = {"small": {"input": 1.0, "output": 2.0}, "large": {"input": 10.0, "output": 20.0}}
DEAR = {"small": {"input": 1000.0, "output": 2000.0}}
KINDS: list[dict[str, Any]] = [{"usd": 0.004}, {"tokens": 3_500}, {"calls": 17}]
ALL_KINDS = {"usd": 0.004, "tokens": 3_500, "calls": 70}


def limits(report: Any, name: str = "budget of the run") -> dict[str, Any]:
    (found,) = [budget for budget in report.invocation["budgets"] if budget["name"] == name]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(("place", "budget"), few([*product(["workflow", "project", "stage", "command"], KINDS)], 2))
def test_a_budget_is_never_exceeded_and_the_run_can_be_finished(
    budget: dict[str, Any], place: str, project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices=PRICES)
    stage = STAGE | ({"budget": budget} if place == "stage" else {})
    project.workflow(rows=200, stages=[stage], **({"budget": budget} if place == "workflow" else {}))
    if place == "project":
        project.write("agac.yml", (project.root / "agac.yml").read_text("utf-8") + f"budget: {budget}\n")
    given = {"budget": Budget(**budget)} if place == "command" else {}
    report = project.run(concurrency=64, **given)
    assert (report.exit_code, report.stop) == (ExitCode.LIMIT, "limit")
    [(usd, tokens, calls)] = project.query("SELECT sum(cost), sum(input_tokens + output_tokens), count(*) FROM attempt")
    assert 0.5 * budget.get("usd", usd) < usd <= budget.get("usd", usd)
    assert 0.5 * budget.get("tokens", tokens) < tokens <= budget.get("tokens", tokens)
    assert calls == budget.get("calls", calls)
    done = report.summary["rows"]["done"]
    assert (report.summary["complete"], 0 < done < 200) == (False, True)
    assert len(project.envelopes()) == done  # what is finished is written
    assert report.finishing is not None
    assert report.finishing.rows == 200 - done
    again = project.run(concurrency=64, **given)
    assert (again.exit_code, again.invocation["calls"]) == (ExitCode.LIMIT, 0)
    project.workflow(stages=[STAGE])
    project.configure(server.base_url, prices=PRICES)
    finished = project.run()
    assert (finished.exit_code, finished.summary["rows"]["done"]) == (ExitCode.DONE, 200)
    account = server.account()
    assert (account["charged"], account["duplicates"]) == (200, 0)
    project.assert_sound()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(("rate", "budget"), few([*product([0.2, 0.5], [*KINDS[:2], ALL_KINDS])], 2))
def test_the_provider_never_charges_more_than_the_budget_whatever_fails(
    budget: dict[str, Any], rate: float, project: ProjectFolder, faulty: Faulty
) -> None:
    faults = [{"kind": "cut"}, {"kind": "server_error", "retry_after": 0.01},
              {"kind": "rate_limit", "retry_after": 0.01}, {"kind": "wrong_schema"}]  # fmt: skip
    server = project.asks(faulty([{**fault, "rate": rate / 4} for fault in faults]), prices=PRICES)
    report = project.run(project.workflow(rows=150, stages=[STAGE], budget=budget, stop_loss=False), concurrency=64)
    account = server.account()
    given, made = account["prompt_tokens"], account["completion_tokens"]
    assert (given * 1.0 + made * 2.0) / 1e6 <= budget.get("usd", 1e9)
    assert given + made <= budget.get("tokens", 1e9)
    assert account["requests"] <= budget.get("calls", 1e9)
    [(spent,)] = project.query("SELECT sum(cost + held_cost) FROM counter")
    assert spent <= budget.get("usd", 1e9)
    assert (report.exit_code, report.summary["rows"]["done"] > 0) == (ExitCode.LIMIT, True)
    project.assert_sound()
    finished = project.run(concurrency=64, budget=Budget(usd=10))
    assert finished.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED)  # so many faults may outlast all retries
    assert finished.summary["rows"]["open"] == 0
    [(answered, different)] = project.query("SELECT count(*), count(DISTINCT fingerprint) FROM result")
    assert answered == different  # nothing that was answered was asked again


def test_running_again_at_the_limit_says_so_without_a_call_and_changes_nothing(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "bad_request", "match": "number 2"}]))
    first = project.run(project.workflow(rows=100, stages=[STAGE], budget={"calls": 40}), concurrency=8)
    assert first.summary["rows"]["failed"] > 0
    states = "SELECT id, state, error_type, error_stage FROM row WHERE state <> 0 ORDER BY id"
    folder = project.root / "output/reviews"
    before = project.query(states), [(folder / f"{name}.jsonl").read_bytes() for name in ("results", "errors")]
    requests = server.account()["requests"]
    again = project.run(concurrency=8)
    assert (again.exit_code, again.invocation["calls"]) == (ExitCode.LIMIT, 0)
    assert server.account()["requests"] == requests
    after = project.query(states), [(folder / f"{name}.jsonl").read_bytes() for name in ("results", "errors")]
    assert after == before
    assert again.summary["rows"] == first.summary["rows"]
    project.assert_sound()


@pytest.mark.usefixtures("short_pauses")
def test_what_calls_without_an_answer_may_have_cost_counts_in_the_next_invocation(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([{"kind": "cut", "match": "number 3"}]), prices=PRICES)
    facts = limits(project.run(project.workflow(rows=5, stages=[STAGE], budget={"usd": 1})))["usd"]
    assert facts["held"] > 0.0012  # three tries of 200 tokens for $2 a million
    [(spent, held)] = project.query("SELECT sum(cost), sum(held_cost) FROM counter")
    assert (facts["spent"], facts["held"]) == (pytest.approx(spent, abs=1e-6), pytest.approx(held, abs=1e-6))
    assert limits(project.run(budget=Budget(usd=1)))["usd"]["held"] > facts["held"]
    tight = project.run(budget=Budget(usd=spent + held))
    assert (tight.exit_code, tight.invocation["calls"]) == (ExitCode.LIMIT, 0)


def test_calls_that_a_kill_may_have_lost_count(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([], "--latency", "0.05"), prices=PRICES)
    project.workflow(rows=60, stages=[STAGE], budget={"calls": 100, "usd": 1})
    # as many of these commits as there are migrations are theirs
    at = f"commit:{len(migrations()) + 7}"
    ended(project.start("run", "-a", "reviews", "--concurrency", "4", env=kill_at(at)))
    [(known,)] = project.query("SELECT count(*) FROM attempt")
    report = project.run(concurrency=4)
    assert report.exit_code == ExitCode.DONE
    lost = report.invocation["lost_calls_at_most"]
    assert 0 < lost <= 8
    facts = limits(report)
    assert (facts["calls"]["held"], facts["calls"]["spent"]) == (lost, 60)
    mean = 0 if known == 0 else facts["usd"]["held"] / lost
    assert mean == pytest.approx(facts["usd"]["spent"] / 60, rel=0.5)


def test_calls_that_a_second_ctrl_c_gave_up_count(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "hang", "match": "number"}]))
    project.workflow(rows=20, stages=[STAGE], budget={"calls": 4})
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
    project.workflow(rows=50, stages=[STAGE], budget={"calls": 30})
    project.write("agac.yml", (project.root / "agac.yml").read_text("utf-8") + "budget: {calls: 10}\n")
    report = project.run(concurrency=4)
    assert (report.exit_code, report.summary["calls"]["count"]) == (ExitCode.LIMIT, 10)
    assert "budget of agac.yml" in (report.stopped or "")
    report = project.run(concurrency=4, budget=Budget(calls=35))
    assert (report.exit_code, report.summary["calls"]["count"]) == (ExitCode.LIMIT, 35)
    for _ in range(2):  # a finished run is not stopped by a budget that is used up
        assert project.run(budget=Budget(calls=50)).exit_code == ExitCode.DONE


def test_the_command_that_is_printed_finishes_the_run(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.workflow(rows=80, stages=[STAGE], budget={"usd": 0.002, "calls": 1_000})
    ran = project.agac("run", "-a", "reviews", "--budget", "usd=0.002", code=4)
    assert "stopped at a limit: the budget of the run is used up: the next call might exceed it" in ran.err
    (line,) = [line for line in ran.err.splitlines() if "Resume with: " in line]
    words = line.split("Resume with: agac ")[1].split()
    assert words.count("--budget") == 1
    assert "80 done" in project.agac(*words, code=0).out


def test_a_reached_stage_budget_names_the_stage_and_what_should_do(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.workflow(rows=40, stages=[STAGE, REPLY | {"budget": {"calls": 10}}], budget={"usd": 5})
    ran = project.agac("run", "-a", "reviews", "--concurrency", "4", code=4)
    assert "the budget of stage 'reply' is used up" in ran.err
    assert "raise `budget` of stage 'reply' to {calls: " in ran.err
    assert "--budget" not in ran.err
    wanted = int(ran.err.split("to {calls: ")[1].split("}")[0])
    project.workflow(stages=[STAGE, REPLY | {"budget": {"calls": wanted}}], budget={"usd": 5})
    assert project.agac("run", "-a", "reviews").code == 0


def test_the_json_tells_what_stopped_the_run_and_what_finishing_needs(project: ProjectFolder) -> None:
    project.workflow(rows=30, stages=[STAGE], budget={"calls": 10})
    found = project.agac("run", "-a", "reviews", "--json").json
    assert (found["exit_code"], found["stop"], found["complete"]) == (4, "limit", False)
    budgets = [{"name": "budget of the run", "calls": {"limit": 10, "spent": 10, "held": 0}}]
    assert found["invocation"]["budgets"] == budgets
    needed = found["finishing"]
    assert (needed["rows"], needed["calls"], needed["stage"], needed["max_errors"]) == (20, 20, None, None)
    assert needed["budget"].startswith("calls=")


def test_a_row_budget_fails_the_row_alone(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "wrong_schema", "match": "number 3"}]))
    report = project.run(project.workflow(rows=5, stages=[STAGE | {"repair": 5}], row_budget={"calls": 2}))
    assert report.exit_code == ExitCode.ROWS_FAILED
    (failed,) = [line for line in project.envelopes() if not line["ok"]]
    assert (failed["id"], failed["error"]["type"]) == ("r-3", "BudgetExceeded")
    assert project.query("SELECT count(*) FROM attempt") == [(4 + 2,)]


def test_a_budget_wants_what_bounds_it_and_says_which_lines_to_add(project: ProjectFolder, faulty: Faulty) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        (UNBOUNDED, {"usd": 1}, ["max_tokens: 1000", "{local: {prices: {small: {input: 1.00, output: 2.00}}}}"]),
        (UNBOUNDED, {"tokens": 5_000}, ["max_tokens"]),
        (UNBOUNDED, {"calls": 5}, []),
    ]
    for stage, budget, lacks in cases:
        project.workflow(rows=2, stages=[stage], budget=budget)
        problems = [line for line in project.agac("validate", code=2 if lacks else 0).out.splitlines() if lacks]
        assert len(problems) == len(lacks)
        assert all(any(words in problem for problem in problems) for words in lacks)
    assert project.run().exit_code == ExitCode.DONE
    # a fallback counts, and needs a price of its own
    server = project.asks(faulty([{"kind": "refusal", "match": "number 1"}]), prices={"small": PRICES["small"]})
    project.workflow(rows=9, stages=[STAGE | {"fallback": ["local/large"]}], budget={"usd": 0.5})
    with pytest.raises(SpecError) as caught:
        project.run()
    (problem,) = caught.value.problems
    assert problem.path == "stages[0].fallback"
    assert "{large: {input: 1.00, output: 2.00}}" in problem.message
    project.configure(server.base_url, prices=PRICES)
    report = project.run()
    [(dear,)] = project.query("SELECT sum(cost) FROM counter WHERE model LIKE '%large%'")
    assert limits(report)["usd"]["spent"] == pytest.approx(report.summary["calls"]["cost_usd"])
    assert dear > 0


def test_a_budget_that_cannot_be_read_is_refused(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    for text in ("", "0", "-1", "x", "calls=1.5", "usd=1,usd=2", "euro=3"):
        assert "--budget" in project.agac("run", "-a", "reviews", "--budget", text, code=2).err


def test_a_retry_that_meets_the_limit_leaves_done_rows_done(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=20, stages=[STAGE, REPLY]))
    project.agac("retry", "last", "--from", "reply", "--yes", "--budget", "calls=45", "--concurrency", "1", code=4)
    assert project.query("SELECT state, count(*) FROM row GROUP BY state") == [(1, 20)]
    assert len(project.envelopes()) == 20
    project.assert_sound()


def test_a_retry_is_asked_about_above_confirm_above(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=DEAR)
    project.run(project.workflow(rows=20, stages=[STAGE]))
    project.workflow(stages=[STAGE], confirm_above={"usd": 0.1})
    asked, choice, questions = server.account()["requests"], Retry(from_stage="classify"), list[str]()
    with pytest.raises(UsageError, match=r"reviews is expected to cost \$[\d.]+; confirm_above is \$0\.10"):
        retry("last", choice, project=project.root)
    assert server.account()["requests"] == asked
    report = retry("last", choice, project=project.root, confirm=lambda text: not questions.append(text))
    assert (report.exit_code, len(questions), server.account()["requests"]) == (ExitCode.DONE, 1, 2 * asked)
    expected = float(questions[0].split("$")[1].split(";")[0])
    assert expected == pytest.approx(report.invocation["cost_usd"], rel=0.3)


@pytest.mark.parametrize(
    ("dialect", "query"),
    [
        ("openai-chat", ""),
        ("openai-chat", "?transport=sse"),
        ("openai-responses", ""),
        ("anthropic", "?transport=sse"),
    ],
)
@pytest.mark.parametrize("budget", [{"usd": 0.002}, {"tokens": 1_500}])
def test_answers_that_count_no_tokens_are_not_free(
    project: ProjectFolder, faulty: Faulty, dialect: str, query: str, budget: dict[str, Any]
) -> None:
    """Each counts at its worst case: the budget stops the run no later than it would with true counts."""
    server = project.asks(faulty([{"kind": "zero_usage", "always": True}]), dialect=dialect, prices=PRICES)
    stage = {**STAGE, "model": f"local/small{query}"}
    report = project.run(project.workflow(rows=20, stages=[stage], budget=budget), concurrency=1)
    assert (report.exit_code, report.stop) == (ExitCode.LIMIT, "limit")
    account, done = server.account(), report.summary["rows"]["done"]
    assert 0 < done < 20
    assert account["prompt_tokens"] + account["completion_tokens"] <= budget.get("tokens", 1e9)
    [(unit, cap)] = budget.items()
    facts = limits(report)[unit]
    assert facts["spent"] == 0
    assert 0.5 * cap < facts["held"] <= cap
    assert report.summary["calls"]["calls_without_price"] == done
    again = project.run()
    assert (again.exit_code, again.invocation["calls"]) == (ExitCode.LIMIT, 0)


@pytest.mark.parametrize("always", [{"always": True}, {"rate": 0.3}])
@pytest.mark.parametrize("budget", [{"usd": 0.002}, {"tokens": 1_500}])
def test_the_budget_that_is_proposed_is_enough_where_answers_count_no_tokens(
    project: ProjectFolder, faulty: Faulty, always: dict[str, Any], budget: dict[str, Any]
) -> None:
    project.asks(faulty([{"kind": "zero_usage", **always}]), prices=PRICES)
    report = project.run(project.workflow(rows=20, stages=[STAGE], budget=budget), concurrency=1)
    assert report.finishing is not None
    [(unit, cap)] = (part.split("=") for part in str(report.finishing.budget).split(","))
    again = project.run(project.workflow(rows=20, stages=[STAGE], budget={unit: json.loads(cap)}), concurrency=1)
    assert (again.exit_code, again.summary["rows"]["done"]) == (ExitCode.DONE, 20)


def test_what_finishing_needs_names_the_most_that_calls_without_counts_may_take(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([{"kind": "zero_usage", "always": True}]), prices=PRICES)
    report = project.run(project.workflow(rows=20, stages=[STAGE], budget={"usd": 0.002}), concurrency=1)
    spent, held = report.invocation["calls"], report.invocation["budgets"][0]["usd"]["held"]
    assert report.finishing is not None
    assert report.finishing.held_usd == pytest.approx(held / spent * report.finishing.calls)
    shown = project.agac("run", "-a", "reviews", code=ExitCode.LIMIT)
    assert f"{spent} calls of unknown cost\n" in shown.out
    assert " tokens) more for calls of unknown cost\n" in shown.err


def test_a_provider_that_costs_nothing_stays_free_where_it_counts_no_tokens(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([{"kind": "zero_usage", "always": True}]), prices={"small": {"input": 0, "output": 0}})
    report = project.run(project.workflow(rows=5, stages=[STAGE], budget={"usd": 0.000001}))
    assert (report.exit_code, report.summary["rows"]["done"]) == (ExitCode.DONE, 5)
    assert (limits(report)["usd"]["held"], report.summary["calls"]["calls_without_price"]) == (0, 0)
