"""`checks`: conditions on results, which are asked again with what is wrong, and then fail as `CheckFailed`."""

import json
from typing import Any

import pytest
from scripted_server import Scripted, Step, deciding, scripted
from support.project import ProjectFolder

import agac
from agac.core.errors import ExitCode, SpecError
from agac.engine.invocation import Retry

SCHEMA = {"net": "integer", "total": "integer"}
CHECKS = {
    "bill.net <= bill.total": "net is more than the total",
    "bill.total <= int(row.most)": "the total is more than the row allows",
}


def bill(**keys: Any) -> dict[str, Any]:
    return {"name": "bill", "prompt": "Bill ${text}", "output_schema": SCHEMA, "checks": CHECKS, **keys}


def said(net: int, total: int) -> str:
    return json.dumps({"net": net, "total": total})


def bills(project: ProjectFolder, *most: int, text: str = "", stage: dict[str, Any] | None = None) -> None:
    """Rows with so much allowed each, all with the same text where one is given."""
    project.rows({"id": f"r-{n}", "text": text or f"t{n}", "most": one} for n, one in enumerate(most))
    project.workflow(stages=[stage or bill()])


def ran(project: ProjectFolder, *answers: str, **options: Any) -> tuple[agac.RunReport, Scripted]:
    with project.asking(scripted(*answers)) as server:
        return project.run(concurrency=1, **options), server


def errors(project: ProjectFolder) -> dict[str, tuple[str, str]]:
    return {one["id"]: (one["error"]["type"], one["error"]["message"]) for one in project.envelopes() if not one["ok"]}


def test_a_failed_check_is_asked_again_with_what_is_wrong(project: ProjectFolder) -> None:
    bills(project, 9)
    report, server = ran(project, said(20, 10), said(1, 2))
    assert report.exit_code == ExitCode.DONE
    assert [one["result"] for one in project.envelopes()] == [{"net": 1, "total": 2}]
    *_, reply, wrong = server.asked[1]["messages"]
    assert reply["content"] == said(20, 10)
    assert wrong["content"] == (
        "Your reply is not right. What is wrong:\n- net is more than the total\n"
        "- the total is more than the row allows\nReply again with the corrected JSON only."
    )
    shown = project.agac("inspect", "last", "r-0", code=0).out
    assert "Your reply is not right." in shown
    assert report.summary["stages"][0]["repaired"] == 1


def test_a_message_with_a_semicolon_is_one_complaint_also_where_it_is_inspected(project: ProjectFolder) -> None:
    message = 'net is more than the total; say "net" first; then the rest'
    checks = {"bill.net <= bill.total": message, "bill.total <= int(row.most)": "too much; look at the row"}
    bills(project, 9, stage=bill(checks=checks))
    _, server = ran(project, said(20, 10), said(1, 2))
    wanted = f"What is wrong:\n- {message}\n- too much; look at the row\nReply again"
    assert wanted in server.asked[1]["messages"][-1]["content"]
    (row,) = agac.inspect("last", "r-0", project=project.root).rows or []
    assert wanted in row["stages"][0]["attempts"][1]["asked_again_with"]


def test_then_the_row_fails_and_is_left_after_two_further_runs(project: ProjectFolder) -> None:
    bills(project, 9)
    calls = []
    for _ in range(4):
        report, server = ran(project, said(2, 1))
        assert report.exit_code == ExitCode.ROWS_FAILED
        calls.append(len(server.asked))
    assert calls == [2, 2, 2, 0]
    assert errors(project) == {"r-0": ("CheckFailed", "net is more than the total")}
    told = project.agac("run", "-a", "reviews", code=3)
    assert "CheckFailed" in told.out + told.err
    project.assert_sound()


def test_a_fallback_is_asked_and_mended_json_is_checked(project: ProjectFolder) -> None:
    bills(project, 9, stage=bill(repair=0, fallback=["local/other"], json_repair=True))
    report, server = ran(project, '{"net": 3, "total": 2,}', '{"net": 1, "total": 2,}')
    assert report.exit_code == ExitCode.DONE
    assert [one["model"] for one in server.asked] == ["small", "other"]


def test_each_row_is_judged_by_its_own_values(project: ProjectFolder) -> None:
    """Equal prompts share an answer as long as it holds for the row; the third row has to ask by itself."""
    bills(project, 9, 9, 5, text="same")
    report, server = ran(project, said(1, 8), said(1, 4))
    assert report.exit_code == ExitCode.DONE
    assert [one["result"]["total"] for one in project.envelopes()] == [8, 8, 4]
    assert len(server.asked) == 2


def test_changed_checks_ask_only_where_a_stored_answer_no_longer_holds(project: ProjectFolder) -> None:
    bills(project, 9, 9)
    with project.asking(deciding(lambda asked: Step(said(1, 3 + 4 * asked["messages"][-1]["content"].endswith("1"))))):
        project.run()
    stricter = bill(checks=[{"check": "bill.total < 5", "message": "too much"}])
    bills(project, 9, 9, stage=stricter)
    plan = agac.plan("reviews", project=project.root)
    assert [(one.run, one.reuse) for one in plan.stages] == [(1, 1)]
    assert list(plan.stages[0].reasons) == ["checks changed"]
    report, server = ran(project, said(1, 4))
    assert (report.exit_code, len(server.asked)) == (ExitCode.DONE, 1)
    assert [one["result"]["total"] for one in project.envelopes()] == [3, 4]
    bills(project, 9, 9, stage=bill(checks=[]))
    report, server = ran(project, "none")
    assert (report.exit_code, len(server.asked)) == (ExitCode.DONE, 0)


def test_replicas_are_checked_one_by_one(project: ProjectFolder) -> None:
    bills(project, 9, stage=bill(replicas=3, vote="total"))
    report, server = ran(project, said(1, 2), said(5, 3), said(1, 3), said(1, 2))
    assert report.exit_code == ExitCode.DONE
    assert len(server.asked) == 4
    assert [one["result"]["net"] for one in project.envelopes()] == [1]


def test_a_check_that_cannot_be_decided_has_failed(project: ProjectFolder) -> None:
    bills(project, 9, stage=bill(checks={"bill.net > int(text)": "net is too small"}, repair=0))
    ran(project, said(1, 2))
    kind, message = errors(project)["r-0"]
    assert (kind, message.startswith("net is too small (`int(text)` cannot be computed")) == ("CheckFailed", True)


def test_what_an_escalation_says_is_checked_by_the_name_of_its_stage(project: ProjectFolder) -> None:
    bills(project, 9, stage=bill(escalate={"when": "bill.net > 1", "model": "local/large"}, repair=0))
    report, server = ran(project, said(2, 3), said(2, 1))
    assert (report.exit_code, len(server.asked)) == (ExitCode.ROWS_FAILED, 2)
    assert errors(project)["r-0"] == ("CheckFailed", "net is more than the total")


def test_functions_are_checked_too(project: ProjectFolder) -> None:
    project.write("tools/f.py", 'def doubled(row):\n    return {"twice": 2 * int(row["most"])}\n')
    stage = {"name": "doubled", "python": "tools/f.py:doubled", "checks": {"doubled.twice < 10": "too much"}}
    project.rows([{"id": "a", "most": 4}, {"id": "b", "most": 5}])
    for _ in range(2):
        report = project.run(project.workflow(stages=[stage]))
        assert report.exit_code == ExitCode.ROWS_FAILED
        assert errors(project) == {"b": ("CheckFailed", "too much")}


def test_a_conversation_is_asked_again_too(project: ProjectFolder) -> None:
    project.write("tools/t.py", 'def look(q: str) -> str:\n    """Looks."""\n    return q\n')
    bills(project, 9, stage=bill(tools=["tools/t.py:look"]))
    report, server = ran(project, said(2, 1), said(1, 1))
    assert (report.exit_code, len(server.asked)) == (ExitCode.DONE, 2)
    assert "net is more than the total" in server.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("checks", "problem"),
    [
        ({"bil.net > 0": "x"}, ":11:5: stages[0].checks.bil.net > 0: at column 1: `bil`: no such field"),
        ([{"check": "bill.nett > 0", "message": "x"}], "stages[0].checks[0].check: "),
        ({"bill.net >": "x"}, "stages[0].checks"),
        ([{"check": "bill.net > 0"}], "message"),
        ({"bill.net": "x"}, "is never true or false"),
        ("bill.net > 0", "checks"),
    ],
)
def test_what_is_wrong_with_checks_is_said_at_their_place(project: ProjectFolder, checks: Any, problem: str) -> None:
    bills(project, 9, stage=bill(checks=checks))
    with pytest.raises(SpecError) as raised:
        project.plan()
    assert problem in "\n".join(map(str, raised.value.problems)), raised.value.problems


def test_what_asks_nothing_has_no_checks(project: ProjectFolder) -> None:
    bills(project, 9, stage={"name": "some", "filter": "true", "checks": {"true": "x"}})
    with pytest.raises(SpecError, match="a stage with filter asks no model; remove checks"):
        project.plan()


def test_a_retry_asks_again(project: ProjectFolder) -> None:
    bills(project, 9)
    ran(project, said(2, 1))
    with project.asking(scripted(said(1, 2))):
        assert agac.retry("last", Retry(), project=project.root).exit_code == ExitCode.DONE
