"""Budgets, stop-loss and max_errors: a run stops by itself, keeps everything, and says what finishing needs."""

from itertools import product
from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.soak import few

from agac.core.errors import ExitCode, SpecError
from agac.spec.workflow import Budget

STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "max_tokens": 200}
PRICES = {"small": {"input": 1.0, "output": 2.0}}


def priced(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)


def spent(project: ProjectFolder) -> tuple[float, int, int]:
    (found,) = project.query(
        "SELECT coalesce(sum(cost), 0), coalesce(sum(input_tokens + output_tokens), 0), count(*) FROM attempt"
    )
    return found  # type: ignore[return-value]


BUDGETS: list[tuple[str, dict[str, Any]]] = list(
    product(["workflow", "project", "stage", "command"], [{"usd": 0.006}, {"tokens": 3_000}, {"calls": 17}])
)


@pytest.mark.parametrize(("place", "budget"), few(BUDGETS, 2))
def test_a_budget_is_never_exceeded_and_the_run_can_be_finished(
    budget: dict[str, Any], place: str, project: ProjectFolder, server: Server
) -> None:
    priced(project, server)
    project.numbered(200)
    stage = STAGE | ({"budget": budget} if place == "stage" else {})
    project.workflow(stages=[stage], **({"budget": budget} if place == "workflow" else {}))
    if place == "project":
        text = (project.root / "agac.yml").read_text("utf-8")
        project.write("agac.yml", text + f"budget: {budget}\n")
    given = {"budget": Budget(**budget)} if place == "command" else {}
    report = project.run(concurrency=64, **given)
    assert (report.exit_code, report.stop) == (ExitCode.LIMIT, "limit")
    usd, tokens, calls = spent(project)
    cap = Budget(**budget)
    assert cap.usd is None or 0.5 * cap.usd < usd <= cap.usd
    assert cap.tokens is None or 0.5 * cap.tokens < tokens <= cap.tokens
    assert cap.calls is None or calls == cap.calls
    assert report.summary["complete"] is False
    done = report.summary["rows"]["done"]
    assert 0 < done < 200
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


@pytest.mark.parametrize("rate", [0.3, 0.6])
def test_retries_and_cut_connections_count_within_the_budget(
    rate: float, project: ProjectFolder, faulty: Faulty
) -> None:
    server = faulty([{"kind": "cut", "rate": rate / 3}, {"kind": "server_error", "rate": rate / 3, "retry_after": 0},
                     {"kind": "wrong_schema", "rate": rate / 3}])  # fmt: skip
    priced(project, server)
    project.workflow(rows=150, stages=[STAGE], budget={"usd": 0.008, "calls": 120}, stop_loss=False)
    assert project.run(concurrency=64).exit_code == ExitCode.LIMIT
    usd, _, calls = spent(project)
    (held,) = project.query("SELECT sum(held_cost) FROM counter")[0]
    assert usd + (held or 0) <= 0.008
    assert calls <= 120
    assert server.account()["charged"] <= 120


def test_a_row_budget_fails_the_row_alone(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "wrong_schema", "match": "number 3"}]))
    report = project.run(project.workflow(rows=5, stages=[STAGE | {"repair": 5}], row_budget={"calls": 2}))
    assert report.exit_code == ExitCode.ROWS_FAILED
    (failed,) = [line for line in project.envelopes() if not line["ok"]]
    assert (failed["id"], failed["error"]["type"]) == ("r-3", "BudgetExceeded")
    assert spent(project)[2] == 4 + 2


def test_a_dollar_budget_wants_a_bound_and_a_price_and_says_which_lines_to_add(project: ProjectFolder) -> None:
    project.workflow(rows=2, budget={"usd": 1})
    with pytest.raises(SpecError) as caught:
        project.run()
    words = [str(problem) for problem in caught.value.problems]
    assert any("add `max_tokens: 1000`" in word for word in words)
    assert any("providers: {local: {prices: {small: {input: 1.00, output: 2.00}}}}" in word for word in words)
    assert project.agac("validate").code == 2


def test_max_errors_stops_and_keeps_what_is_done(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 1"}]))
    report = project.run(project.workflow(rows=60, max_errors=3, stop_loss=False), concurrency=1)
    assert (report.exit_code, report.summary["rows"]["failed"]) == (ExitCode.LIMIT, 4)
    assert "max_errors is 3" in (report.stopped or "")
    assert len(project.envelopes()) == report.summary["rows"]["done"] + 4
    unbounded = project.run(max_errors=100)
    assert (unbounded.exit_code, unbounded.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 11)
    project.workflow("none", stages=[{"name": "say", "prompt": "Say ${text}"}])
    ran = project.agac("run", "-a", "none", "--concurrency", "1", "--max-errors", "0", "--json", code=4)
    assert (ran.json["rows"]["failed"], ran.json["calls"]["count"]) == (1, 1)


def test_stop_loss_ends_a_run_that_fails_alike_from_the_start(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "always": True}]))
    report = project.run(project.workflow(rows=500), concurrency=8)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "loss")
    assert "17 of the first 17 outcomes of stage 'classify' are Refused" in (report.stopped or "")
    assert not (project.root / "output/reviews").exists()  # nothing good is replaced
    assert report.invocation["calls"] <= 17 + 2 * 8
    project.workflow(stop_loss=False)
    assert project.run(concurrency=8).summary["rows"]["failed"] == 500


def test_stop_loss_counts_a_question_once_however_many_rows_share_it(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "bad"}]))
    rows = [{"id": str(i), "text": "bad"} for i in range(30)]
    project.workflow(rows=[*rows, *({"id": str(i), "text": "good" + str(i)} for i in range(30, 40))])
    report = project.run(concurrency=4)
    assert (report.exit_code, report.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 30)
    assert report.invocation["calls"] == 11


@pytest.mark.parametrize("alike", [16, 17])
def test_stop_loss_wants_more_than_80_percent_of_20(alike: int, project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "bad"}]))
    texts = [*("good" for _ in range(20 - alike)), *("bad" for _ in range(alike)), *("good" for _ in range(10))]
    project.workflow(rows=({"id": str(i), "text": f"{text} {i}"} for i, text in enumerate(texts)))
    report = project.run(concurrency=1)
    assert (report.stop, report.invocation["calls"]) == (("loss", 20) if alike == 17 else (None, 30))


def test_stop_loss_never_ends_a_run_of_few_rows(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "always": True}]))
    project.workflow(rows=16)
    assert project.run().exit_code == ExitCode.ROWS_FAILED


def test_stop_loss_says_what_fails_where_and_how_to_turn_it_off(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([]))
    project.workflow(rows=40)
    assert project.agac("run", "-a", "reviews").code == 0
    before = (project.root / "output/reviews/results.jsonl").read_bytes()
    project.rows([{"id": str(i), "text": str(i)} for i in range(40)], "data/rows.jsonl")
    project.workflow(stages=[STAGE | {"prompt": "Review: ${tekst}"}], path="data/rows.jsonl")  # some rows may have it
    ran = project.agac("run", "-a", "reviews", "--concurrency", "1", code=1)
    for words in ("17 of the first 17 outcomes of stage 'classify' are MissingTemplateField", "row '16' for example",
                  "stop_loss: false", "resume with: agac run -a reviews --concurrency 1"):  # fmt: skip
        assert words in ran.err
    assert (project.root / "output/reviews/results.jsonl").read_bytes() == before


@pytest.mark.parametrize("rules", [{"max_errors": 0}, {"budget": {"calls": 4}, "max_errors": 0}])
def test_calls_in_flight_at_a_limit_finish_however_long_they_take(
    rules: dict[str, Any], project: ProjectFolder, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.run.DRAIN_SECONDS", 0.0)  # what calls in flight get after a Ctrl-C
    project.asks(faulty([{"kind": "refusal", "match": "number 1"}, {"kind": "slow_first_byte", "seconds": 0.4}]))
    project.numbered(9)
    report = project.run(project.workflow(**rules), concurrency=4)
    assert report.exit_code == ExitCode.LIMIT
    assert report.invocation["calls_given_up"] == 0
    assert report.summary["rows"]["done"] == 3


def test_stop_loss_leaves_a_stage_alone_that_has_shown_that_it_works(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "bad"}]))
    rows = [{"id": str(i), "text": "good" + str(i)} for i in range(30)]
    project.workflow(rows=[*rows, *({"id": str(i), "text": "bad" + str(i)} for i in range(30, 60))])
    first = project.run(concurrency=1)
    assert (first.exit_code, first.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 30)
    second = project.run(concurrency=1)  # only the bad ones are tried again
    assert (second.exit_code, second.invocation["calls"]) == (ExitCode.ROWS_FAILED, 30)


def test_a_budget_that_cannot_be_read_is_refused(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    for text in ("", "0", "-1", "x", "calls=1.5", "usd=1,usd=2", "euro=3"):
        assert "--budget" in project.agac("run", "-a", "reviews", "--budget", text, code=2).err
