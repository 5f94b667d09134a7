"""Results that a person sets by hand: for one row, checked, kept over runs, and taken back."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from support.batched import put_batch, put_task
from support.project import ProjectFolder

import agac
from agac.store.lease import this_process

STAGES = [
    {
        "name": "classify",
        "prompt": "Review: ${text}",
        "output_schema": {"sentiment": "positive|negative", "why": "string"},
    },
    {"name": "reply", "needs": "classify", "prompt": "They feel ${classify.sentiment}: ${text}"},
]
ROWS = [{"id": f"r-{i}", "text": "the same for all" if i < 4 else f"other {i}"} for i in range(1, 7)]
SET = '{"sentiment": "negative", "why": "set by hand"}'


@pytest.fixture
def ran(project: ProjectFolder) -> ProjectFolder:
    project.workflow(stages=STAGES, rows=ROWS)
    assert project.run().exit_code == 0
    return project


def fixed(project: ProjectFolder, row: str = "r-2", value: str = SET, stage: str = "classify") -> agac.FixReport:
    return agac.fix("last", row, stage, value, reason="it is sarcasm", who="Ada", project=project.root)


def result_of(project: ProjectFolder, row: str, stage: str = "classify") -> dict[str, Any]:
    report = agac.inspect("last", row, stage=stage, project=project.root)
    assert report.rows is not None
    (found,) = report.rows[0]["stages"]
    return dict(found)


def other(value: str) -> dict[str, Any]:
    return dict(json.loads(value))


def test_a_result_is_set_for_one_row_and_what_follows_runs_again(ran: ProjectFolder) -> None:
    before = result_of(ran, "r-1")["result"]
    assert before != other(SET)
    report = fixed(ran)
    assert (report.value, report.go_on, report.reviewer) == (other(SET), "agac run -a reviews", "Ada")
    plan = agac.plan("reviews", project=ran.root)
    assert [(one.name, one.run) for one in plan.stages] == [("classify", 0), ("reply", 1)]
    again = ran.run()
    assert again.exit_code == 0
    assert again.rows.done == 6
    found = result_of(ran, "r-2")
    assert (found["result"], found["how"], found["answered_by"]["model"]) == (other(SET), ["manual"], "Ada")
    for row in ("r-1", "r-3"):  # the same task
        assert result_of(ran, row)["result"] == before
    assert "They feel negative" in str(result_of(ran, "r-2", "reply")["prompt"])
    ran.assert_sound()
    writes = ran.query("SELECT count(*) FROM result")
    assert ran.run().invocation["calls"] == 0
    assert ran.query("SELECT count(*) FROM result") == writes
    ran.assert_sound()


def test_it_survives_fresh_and_retry_until_it_is_taken_back(ran: ProjectFolder) -> None:
    first = result_of(ran, "r-2")["result"]
    fixed(ran)
    assert ran.run(fresh=True).exit_code == 0
    assert result_of(ran, "r-2")["result"] == other(SET)
    choice = agac.Retry(rows=("r-2",), from_stage="classify")
    assert agac.retry("last", choice, project=ran.root).exit_code == 0
    assert result_of(ran, "r-2")["result"] == other(SET)
    choice = agac.Retry(rows=("r-2",), from_stage="classify", discard=True)
    assert agac.retry("last", choice, project=ran.root).exit_code == 0
    assert result_of(ran, "r-2")["how"] == []
    assert ran.run().invocation["calls"] == 0
    assert result_of(ran, "r-2")["how"] == []
    fixed(ran)
    assert ran.run().exit_code == 0
    assert result_of(ran, "r-2")["result"] == other(SET)
    assert agac.retry("last", choice, project=ran.root).exit_code == 0
    found = result_of(ran, "r-2")
    assert (found["result"], found["how"]) == (first, [])
    ran.assert_sound()


def test_another_value_takes_the_place_of_the_first_and_the_first_can_come_back(ran: ProjectFolder) -> None:
    for value in (SET, SET.replace("hand", "Eve"), SET):
        fixed(ran, value=value)
        assert ran.run().exit_code == 0
        assert result_of(ran, "r-2")["result"] == other(value)
    ran.assert_sound()


def test_a_failed_row_gets_its_result_without_a_call(project: ProjectFolder) -> None:
    project.workflow(stages=[STAGES[0] | {"max_tokens": 1}], rows=2)
    assert project.run().exit_code == 3
    fixed(project, "r-1")
    plan = agac.plan("reviews", project=project.root)
    assert [(one.run, one.reuse) for one in plan.stages] == [(1, 1)]
    report = project.run(retry_failed=False)
    assert (report.rows.done, report.rows.failed, report.invocation["calls"]) == (1, 1, 0)
    assert [one["result"] for one in project.envelopes() if one["ok"]] == [other(SET)]
    project.assert_sound()


def test_a_changed_prompt_is_another_question_and_the_first_one_keeps_its_result(ran: ProjectFolder) -> None:
    fixed(ran)
    first = ran.run()
    ran.workflow(stages=[STAGES[0] | {"prompt": "Read: ${text}"}, STAGES[1]])
    assert ran.run().exit_code == 0
    assert result_of(ran, "r-2")["how"] == []
    ran.workflow(stages=STAGES)
    assert ran.run().summary["run"] == first.summary["run"]
    assert result_of(ran, "r-2")["result"] == other(SET)
    ran.assert_sound()


def test_functions_replicas_children_and_groups_have_results_to_set_too(project: ProjectFolder) -> None:
    project.write("tools/fields.py", "def grown(row):\n    return {**row, 'grown': 1}\n")
    stages: list[dict[str, Any]] = [
        {"name": "grow", "python": "tools/fields.py:grown"},
        {"name": "list", "needs": "grow", "prompt": "${text}", "replicas": 3, "vote": "kind",
         "output_schema": {"kind": "a|b", "parts": "list[string]"}},
        {"name": "each", "needs": "list", "explode": "list.parts", "prompt": "${item}",
         "output_schema": {"n": "integer"}},
        {"name": "all", "needs": "each", "group_by": "grown", "prompt": "${rows_json}"},
    ]  # fmt: skip
    project.workflow(stages=stages, rows=2)
    assert project.run().exit_code == 0
    fixed(project, "r-1", '{"id": "r-1", "text": "other", "grown": 2}', "grow")
    assert project.run().exit_code == 0
    fixed(project, "r-1", '{"kind": "a", "parts": ["one", "two"]}', "list")
    assert project.run().exit_code == 0
    fixed(project, "r-1/1", '{"n": 7}', "each")
    assert project.run().exit_code == 0
    group = project.query("SELECT id FROM row WHERE origin = 3 AND state = 1 AND id LIKE '%2%'")[0][0]
    fixed(project, group, "the sum is seven\n", "all")
    assert project.run().exit_code == 0
    assert result_of(project, "r-1/1", "each")["result"] == {"n": 7}
    assert result_of(project, group, "all")["result"] == "the sum is seven"
    assert project.query("SELECT id FROM row WHERE origin = 2 AND state = 1 AND id LIKE 'r-1/%'") == [
        ("r-1/0",),
        ("r-1/1",),
    ]
    project.assert_sound()
    assert project.run().invocation["calls"] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["r-2", "--stage", "classify", "--value", "wrong.json", "--reason", "x"], "error: --value: "),
        (["r-2", "--stage", "clasify", "--value", "set.json", "--reason", "x"], "Did you mean"),
        (["r-9", "--stage", "classify", "--value", "set.json", "--reason", "x"], "has no row 'r-9'"),
        (["r-2", "--stage", "classify", "--value", "set.json"], "--reason"),
        (["r-2", "--stage", "classify", "--value", "set.json", "--reason", ""], "--reason"),
        (["r-2", "--stage", "classify", "--reason", "x"], "--value"),
    ],
)
def test_what_cannot_be_set_is_refused(ran: ProjectFolder, given: list[str], said: str) -> None:
    ran.write("set.json", SET)
    ran.write("wrong.json", '{"sentiment": "mixed"}')
    refused = ran.agac("fix", "last", *given, env={"AGAC_REVIEWER": "Ada"}, code=2)
    assert said in refused.err
    assert ran.query("SELECT count(*) FROM decision") == [(0,)]


def test_a_row_in_a_batch_or_at_work_is_refused_and_so_is_nobody(
    ran: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(agac.UsageError, match="it is not known who decides"):
        agac.fix("last", "r-2", "classify", SET, project=ran.root)
    with ran.changed() as change:
        change("UPDATE row SET state = 0 WHERE id = 'r-2'")
        change("UPDATE lease SET holder = ?", this_process())
    with pytest.raises(agac.UsageError, match="is at work"):
        fixed(ran)
    with ran.changed() as change:
        change("UPDATE lease SET holder = ''")
        ((key,),) = ran.query("SELECT key FROM row WHERE id = 'r-2'")
    put_batch(ran)
    put_task(ran, key)
    with pytest.raises(agac.UsageError, match="has requests in a batch"):
        fixed(ran)


def test_the_command_says_who_set_what_and_what_to_type(ran: ProjectFolder) -> None:
    ran.write("set.json", SET)
    words = ("fix", "last", "r-2", "--stage", "classify")
    shown = ran.agac(*words, "--value", "set.json", "--reason", "sarcasm", env={"AGAC_REVIEWER": "Ada L."}, code=0).out
    assert "stage classify of row 'r-2' is set by hand, by Ada L." in shown
    assert "agac run -a reviews" in shown
    ran.agac("run", "-a", "reviews", code=0)
    assert "set by hand, by Ada L." in ran.agac("inspect", "last", "r-2", code=0).out
    words = (*words, "--value", "set.json", "--reason", "again", "--json")
    report = ran.agac(*words, env={"AGAC_REVIEWER": "Eve"}, code=0).json
    assert (report["value"], report["reviewer"], report["row"]) == (other(SET), "Eve", "r-2")
    lines = ran.query("SELECT choice, reviewer, reason, source FROM decision ORDER BY id")
    assert lines == [("edit", "Ada L.", "sarcasm", "fix"), ("edit", "Eve", "again", "fix")]


def test_a_value_has_to_meet_the_checks_of_its_stage(project: ProjectFolder) -> None:
    checks = {"classify.why != text": "The reason repeats the text of the row."}
    project.workflow(stages=[STAGES[0] | {"checks": checks}], rows=ROWS)
    assert project.run().exit_code == 0
    with pytest.raises(agac.UsageError, match="--value: The reason repeats"):
        fixed(project, value='{"sentiment": "negative", "why": "the same for all"}')
    assert fixed(project).value == other(SET)
