"""`row_timeout`: how long one row may take from its first call on, whatever it waits for."""

from typing import Any

import pytest
from scripted_server import Step, scripted
from support.project import ProjectFolder
from support.server import Faulty

GOOD = '{"sentiment":"positive","reason":"it is"}'
SAY: dict[str, Any] = {"name": "say", "prompt": "${text}"}


def attempts(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT number, purpose, error_type, ambiguous FROM attempt ORDER BY id")


def test_the_call_in_flight_is_cut_off_and_kept_as_perhaps_billed(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "hang"}]))
    project.write(
        "agac.yml", (project.root / "agac.yml").read_text("utf-8") + "row_timeout: 500\n"
    )  # which is replaced
    project.workflow(rows=1, stages=[{**SAY, "fallback": ["local/b", "local/c"]}], row_timeout=1.5)
    report = project.run()
    assert report.exit_code == 3
    assert server.account()["requests"] == 1, "no fallback is asked when the time is over"
    assert attempts(project) == [(1, "ask", "Timeout", 1)]
    assert report.invocation["calls_perhaps_billed_without_answer"] == 1
    error = project.envelopes()[0]["error"]
    assert error["type"] == "Timeout"
    assert "row_timeout" in error["message"]
    assert "1.5 s" in error["message"]
    assert project.query("SELECT error_message LIKE '%row_timeout%' FROM attempt") == [(1,)]
    project.assert_sound()


def test_a_time_out_of_the_call_is_named_as_such(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "hang"}]))
    project.run(project.workflow(rows=1, stages=[{**SAY, "timeout": 0.2}], row_timeout=1.7))
    assert server.account()["requests"] == 2  # 0.2 s, a pause of 0.5 s, 0.2 s; the next pause takes a second
    messages = [message for (message,) in project.query("SELECT error_message FROM attempt")]
    assert ["timeout.total" in message for message in messages] == [True, True]
    assert "row_timeout" in project.envelopes()[0]["error"]["message"]


@pytest.mark.parametrize("status", [429, 500])
def test_nobody_waits_for_a_retry_that_would_come_too_late(project: ProjectFolder, status: int) -> None:
    with project.asking(scripted(Step(status=status, headers={"retry-after": "300"}, body="{}"))) as server:
        project.workflow(rows=1, stages=[SAY], row_timeout=60)
        assert project.run().exit_code == 3
        assert len(server.asked) == 1
    assert project.envelopes()[0]["error"]["type"] == "Timeout"


def test_the_time_runs_through_all_stages_of_the_row(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "hang", "match": "Answer"}]))
    project.workflow(rows=1, stages=[SAY, {"name": "reply", "prompt": "Answer ${say}"}], row_timeout=1.5)
    project.run()
    assert server.account()["requests"] == 2
    (failed,) = project.query("SELECT stage, error_type FROM attempt WHERE error_type IS NOT NULL")
    assert failed == (1, "Timeout")
    duration = project.query("SELECT max(started_at + duration) - min(started_at) FROM attempt")[0][0]
    assert duration < 60  # not its time-out's ten minutes


def test_waiting_for_the_first_call_does_not_count(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([], "--latency", "0.05"), limits={"concurrency": 1})
    report = project.run(project.workflow(rows=30, stages=[SAY], row_timeout=1.0), concurrency=30)
    assert report.exit_code == 0  # the last of them waited for a second and a half
    assert report.summary["rows"]["done"] == 30


def test_another_row_with_the_same_question_has_its_own_time(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "hang", "first": 1}]))
    project.workflow(rows=[{"id": "a", "text": "same"}, {"id": "b", "text": "same"}], stages=[SAY], row_timeout=1.5)
    report = project.run(concurrency=1)
    assert [envelope["ok"] for envelope in project.envelopes()] == [False, True]
    assert server.account()["requests"] == 2
    again = project.run()
    assert (again.exit_code, again.invocation["calls"]) == (0, 0)  # the answer is there by now
    assert report.summary["rows"]["failed"] == 1
