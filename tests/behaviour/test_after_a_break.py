"""What an invocation that was broken off leaves to the next one: retries to finish, calls that count in a budget."""

import threading

import pytest
from scripted_server import Step, answering
from support.processes import kill_at, killed, processes, wait_until
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac
from agac.core.errors import ExitCode

pytestmark = processes

ONE = {"name": "one", "prompt": "Say ${text}", "max_tokens": 100}
TWO = {"name": "two", "prompt": "Again ${text}: ${one}", "max_tokens": 100}


def kills(project: ProjectFolder, *words: str) -> None:
    """The command, killed at every commit in turn until it is not killed any more."""
    for number in range(1, 60):
        ran = project.agac(*words, env=kill_at(f"committed:{number}"))
        if ran.code == 2 and "nothing of run 1 can be retried" in ran.err:
            return  # the kill came after its very end
        if ran.code != -9:
            assert ran.code == 0, ran.err
            assert number > 1
            return
    raise AssertionError("it never came to its end")


def asked_since(project: ProjectFolder, stage: int, event: int) -> int:
    ((rows,),) = project.query(
        f"SELECT count(DISTINCT row_key) FROM attempt WHERE stage = {stage} AND event_id > {event} AND status = 200"
    )
    return int(rows)


def last_event(project: ProjectFolder) -> int:
    return int(project.query("SELECT max(id) FROM event")[0][0])


def test_a_killed_retry_is_finished_by_the_same_command(project: ProjectFolder, faulty: Faulty, server: Server) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "Say"}]).base_url)
    project.numbered(9)
    project.workflow(stages=[ONE, TWO], stop_loss=False)
    assert project.run().summary["rows"]["failed"] == 9
    project.configure(server.base_url)
    assert project.agac("retry", "last", "--concurrency", "2", env=kill_at("committed:4")).code == -9
    choice = agac.retry_choice("last", agac.Retry(), project=project.root)
    ((done,),) = project.query("SELECT count(*) FROM row WHERE state = 1")
    assert (choice.rows, choice.done) == (9 - done, 0)
    assert choice.open > 0
    kills(project, "retry", "last", "--concurrency", "2", "--yes")
    assert project.query("SELECT count(*) FROM row WHERE state = 1") == [(9,)]
    project.assert_sound()


@pytest.mark.parametrize("words", [("run", "-a", "reviews"), ("retry", "last", "--from", "one", "--yes")])
def test_what_a_killed_retry_opened_is_asked_anew_by_whatever_goes_on(
    project: ProjectFolder, words: tuple[str, ...]
) -> None:
    """The answers of before the retry are there, and must not be taken for the rows that it opened."""
    project.numbered(8)
    project.workflow(stages=[ONE, TWO])
    assert project.run().exit_code == ExitCode.DONE
    before = last_event(project)
    ran = project.agac("retry", "last", "--from", "one", "--yes", "--concurrency", "2", env=kill_at("committed:3"))
    assert ran.code == -9
    kills(project, *words, "--concurrency", "2")
    assert (asked_since(project, 0, before), asked_since(project, 1, before)) == (8, 8)
    project.assert_sound()
    event = last_event(project)
    assert project.run().invocation["calls"] == 0  # and once only
    assert asked_since(project, 0, event) == 0


def test_rows_wait_for_an_equal_task_only_as_long_as_it_fails_for_itself(project: ProjectFolder) -> None:
    """Row a has spent its budget before its second stage, which is row b's too: b asks for itself."""
    first_calls = iter([Step(status=500, headers={"retry-after-ms": "1"}, body="{}")])

    def answer(text: str) -> Step:
        if text == "a":
            return next(first_calls, Step("x"))
        if text == "b":
            waiting.wait(60)  # b comes to the second stage while a is at it
            return Step("x")
        waiting.set()
        return Step("no JSON")

    waiting = threading.Event()
    second = {"name": "two", "prompt": "${t2}", "output_schema": {"mood": "string"}, "repair": 2}
    with answering(answer, project):
        project.rows([{"id": "a", "text": "a", "t2": "same"}, {"id": "b", "text": "b", "t2": "same"}])
        project.workflow(
            stages=[{"name": "one", "prompt": "${text}"}, second], row_budget={"calls": 4}, stop_loss=False
        )
        project.run()
    errors = {line["id"]: line["error"]["type"] for line in project.envelopes()}
    assert errors == {"a": "BudgetExceeded", "b": "SchemaMismatch"}
    project.assert_sound()


def lost_calls(project: ProjectFolder, release: threading.Event, count: int, times: int = 1) -> None:
    """Kills a run `times` times, each time with `count` calls in flight, which are then answered to nobody."""

    def answer(text: str) -> Step:
        release.wait(60)
        return Step("x")

    with answering(answer) as server:
        project.configure(server.base_url, prices={"small": {"input": 1.0, "output": 10.0}})
        for _ in range(times):
            before = len(server.asked)
            process = project.start("run", "-a", "reviews", "--concurrency", str(count))
            wait_until(lambda: len(server.asked) >= before + count, "calls in flight", process)  # noqa: B023
            killed(process)
        release.set()


def test_calls_that_one_run_lost_do_not_count_in_the_budget_of_another(project: ProjectFolder, server: Server) -> None:
    project.numbered(20)
    project.workflow(stages=[ONE])
    lost_calls(project, threading.Event(), 8)
    project.configure(server.base_url)
    project.workflow(stages=[{**ONE, "prompt": "New: ${text}"}], budget={"calls": 20})
    report = project.run()
    assert (report.exit_code, report.invocation["calls"]) == (ExitCode.DONE, 20)
    assert report.invocation["lost_calls_at_most"] == 16  # it is said, all the same


@pytest.mark.parametrize("held", ["a call", "a batch"])
def test_only_calls_in_flight_are_lost_with_a_killed_invocation(
    project: ProjectFolder, faulty: Faulty, held: str
) -> None:
    """While only batches are at work nothing is said to be paid and asked again: they are found."""
    server = faulty([{"kind": "hang", "at": [5]}] if held == "a call" else [], "--batch-seconds", "100")
    project.configure(server.base_url, batch="openai")
    stages = [ONE, {"name": "two", "prompt": "Two ${text}", "run_mode": "batch", "batch": {"poll_interval": "0.05s"}}]
    project.workflow(rows=5, stages=stages)
    process = project.start("run", "-a", "reviews", "--wait", "--concurrency", "2")
    under_way = {
        "a call": lambda: server.account()["in_flight"] == 1,
        "a batch": lambda: server.account()["batches"]["calls"].get("poll", 0) > 2,
    }
    wait_until(under_way[held], held, process)
    killed(process)
    ran = project.agac("run", "-a", "reviews", "--json")
    assert (ran.json["invocation"]["lost_calls_at_most"] > 0) is (held == "a call")


def test_lost_calls_count_at_the_price_of_the_first_that_is_known(project: ProjectFolder) -> None:
    project.numbered(40)
    project.workflow(stages=[ONE], budget={"usd": 0.0095})
    lost_calls(project, threading.Event(), 8, times=3)
    with answering(lambda text: Step("x")) as server:
        project.configure(server.base_url, prices={"small": {"input": 1.0, "output": 10.0}})
        project.workflow(stages=[ONE], budget={"usd": 0.0095})
        report = project.run(concurrency=8)
    (budget,) = report.invocation["budgets"]
    one_call = (10 * 1.0 + 5 * 10.0) / 1e6
    assert budget["usd"]["held"] == pytest.approx(3 * 16 * one_call)
    assert budget["usd"]["held"] + budget["usd"]["spent"] <= 0.0095


def test_a_refusal_by_rate_inside_a_200_costs_nothing(project: ProjectFolder) -> None:
    refusals = iter([Step(body='{"error": {"code": 429, "message": "upstream rate limit"}}')] * 2)
    with answering(lambda text: next(refusals, Step("x"))) as server:
        project.configure(server.base_url, prices={"small": {"input": 1.0, "output": 10.0}})
        project.numbered(2)
        project.workflow(stages=[ONE], budget={"usd": 0.003})
        report = project.run(concurrency=1)
    assert report.exit_code == ExitCode.DONE
    assert report.invocation["budgets"][0]["usd"]["held"] == 0


def test_a_bad_key_after_a_limit_does_not_look_like_the_limit(project: ProjectFolder) -> None:
    stopped = threading.Event()

    def answer(text: str) -> Step:
        if text.endswith("number 1"):
            return Step(status=400, body='{"error": {"message": "no"}}')
        stopped.wait(1)  # long enough for the other's end; the order decides nothing but which text comes first
        return Step(status=401, body='{"error": {"message": "bad key"}}')

    with answering(answer, project):
        project.numbered(2)
        project.workflow(stages=[ONE], max_errors=0)
        report = project.run(concurrency=2)
    assert report.exit_code == ExitCode.LIMIT
    assert "max_errors is 0" in (report.stopped or "")
    assert "bad key" in (report.stopped or "")
