"""Stages at which people decide (`review:`): rows wait, decisions are kept by what was shown, the next run goes on."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from scripted_server import Scripted, Step, deciding
from support.project import ProjectFolder
from support.soak import only_in_soak

import agac
from agac.api import monitor, monitored_rows
from agac.engine.walk.effects import ActiveRow
from agac.engine.walk.executor import Executor
from agac.store.snapshot import make_snapshot, take_snapshot

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "confidence": {"type": "number"}},
    "required": ["label", "confidence"],
    "additionalProperties": False,
}
CLASSIFY = {"name": "classify", "prompt": "classify ${text}", "output_schema": SCHEMA}
REPLY = {"name": "reply", "prompt": "reply ${classify.label}"}


def answer(asked: dict[str, Any]) -> Step:
    """To `classify low-3`, as sure as the text says: `{"label": "L3", "confidence": 0.3}`."""
    what, _, text = asked["messages"][-1]["content"].partition(" ")
    if what != "classify":
        return Step(f"{what}: {text}")
    number = int(text.rpartition("-")[2])
    return Step(json.dumps({"label": f"L{number}", "confidence": number / 10}))


@pytest.fixture
def model(project: ProjectFolder) -> Iterator[Scripted]:
    with project.asking(deciding(answer)) as server:
        yield server


def review(project: ProjectFolder, numbers: list[int], *after: dict[str, Any], **keys: Any) -> None:
    """A workflow that classifies rows, reviews what came of it and does what stands `after`."""
    project.rows([{"id": f"r{number}", "text": f"text-{number}"} for number in numbers])
    approve = {"name": "approve", "review": keys}
    project.workflow(stages=[CLASSIFY, approve, *(after or (REPLY,))])


def waiting(project: ProjectFolder, state: str = "waiting") -> dict[str, agac.ReviewItem]:
    """The reviews in a state, by row."""
    return {one.row_id: one for one in agac.review_queue(project.root, state=state, limit=1000).items}


def decide(project: ProjectFolder, row: str, choice: str, value: Any = None, **keys: Any) -> agac.DecideReport:
    items: dict[str, agac.ReviewItem] = {}
    for state in ("applied", "decided", "conflict", "waiting"):
        items |= waiting(project, state)
    force = keys.pop("force", False)
    made = agac.Decision(items[row].id, choice, value, reviewer=keys.pop("reviewer", "anna"), **keys)
    return agac.decide(project.root, [made], force=force)


def results(project: ProjectFolder) -> dict[str, Any]:
    return {one["id"]: one["result"] for one in project.envelopes()}


def test_rows_that_meet_the_condition_wait_and_the_others_go_on(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 9], when="classify.confidence < 0.8")
    report = project.run()
    assert (report.exit_code, report.invocation["complete"], report.rows.done, report.rows.open) == (0, False, 1, 1)
    item = waiting(project)["r3"]
    assert (item.stage, item.edit, item.answer) == ("approve", "classify", {"label": "L3", "confidence": 0.3})
    assert (item.shown, item.sure) == ({"id": "r3", "text": "text-3"}, 0.3)
    assert item.why == {"when": "classify.confidence < 0.8", "values": {"classify.confidence": 0.3}}
    assert item.choices == ("approve", "edit", "reject")
    assert decide(project, "r3", "approve").taken == 1
    report = project.run()
    assert (report.exit_code, report.invocation["complete"], report.rows.done) == (0, True, 2)
    assert results(project) == {"r3": "reply: L3", "r9": "reply: L9"}
    assert len(model.asked) == 4
    project.assert_sound()


def test_results_and_summary_are_of_the_run_that_waits_for_people(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 9], when="false")
    assert project.run().exit_code == 0
    assert set(results(project)) == {"r3", "r9"}
    review(project, [3, 9], when="true")
    ran = project.agac("run", "-a", "reviews")
    told = json.loads((project.root / "output/reviews/summary.json").read_text())
    assert (ran.code, told["run"], told["complete"], told["rows"]["open"]) == (0, 2, False, 2)
    assert project.envelopes() == []
    assert "results.jsonl now holds 0 of 2 rows; the others follow once people have decided\n" in ran.out
    assert "They replace the results of run 1" in ran.out
    status = project.agac("status").out
    assert "Run 2: 2 decisions are up to people. Decide with: agac review next -a reviews. " in status
    assert "is not finished" not in status
    decide(project, "r3", "approve")
    project.run()
    assert set(results(project)) == {"r3"}
    decide(project, "r9", "approve")
    assert project.run().invocation["complete"]
    assert set(results(project)) == {"r3", "r9"}
    assert json.loads((project.root / "output/reviews/summary.json").read_text())["complete"]


def test_an_edited_value_is_what_later_stages_and_outputs_see(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    assert decide(project, "r3", "edit", {"label": "X", "confidence": 1}).taken == 1
    wrong = decide(project, "r4", "edit", {"label": 7})
    assert (wrong.taken, len(wrong.problems)) == (0, 1)
    assert decide(project, "r4", "approve").taken == 1
    assert project.run().invocation["complete"]
    assert results(project) == {"r3": "reply: X", "r4": "reply: L4"}
    project.assert_sound()


def test_the_monitor_says_how_many_wait(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3])
    project.run()
    said = asyncio.run(monitor.arun(1, project=project.root)).advice
    assert said[0] == monitor.Advice("1 row waits for a decision", "agac review next -a reviews")
    decide(project, "r3", "approve")
    project.run()
    said = asyncio.run(monitor.arun(1, project=project.root)).advice
    assert "agac review next" not in str(said)


@pytest.mark.parametrize(("on_reject", "code"), [("drop", 0), ("fail", 3), ("skip", 0)])
def test_a_rejected_result(project: ProjectFolder, model: Scripted, on_reject: str, code: int) -> None:
    review(project, [3], on_reject=on_reject)
    project.run()
    decide(project, "r3", "reject", reason="nonsense")
    report = project.run()
    assert report.exit_code == code
    (envelope,) = project.envelopes() or [{}]
    if on_reject == "drop":
        assert (report.rows.dropped, envelope) == (1, {})
        assert project.envelopes(file="filtered.jsonl")[0]["when"] == "rejected by anna: nonsense"
    elif on_reject == "fail":
        assert envelope["error"]["type"] == "Rejected"
        assert "rejected by anna: nonsense" in envelope["error"]["message"]
        (group,) = asyncio.run(monitored_rows.aerrors(1, project=project.root))
        assert group.advice.command.endswith("--error Rejected --discard-decisions")
    else:
        assert envelope["result"] == "reply: "
    assert project.run().exit_code == code
    project.assert_sound()


def test_rows_that_wait_are_not_walked_again(
    project: ProjectFolder, model: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    review(project, [3, 4])
    project.run()
    decide(project, "r3", "approve")
    walked: list[str] = []
    walk = Executor.walk

    async def noted(self: Executor, row: ActiveRow) -> None:
        walked.append(str(row.new.row.id))
        await walk(self, row)

    monkeypatch.setattr(Executor, "walk", noted)
    report = project.run()
    assert walked == ["r3"]
    assert (report.rows.done, report.rows.open, report.invocation["rows_parked"]) == (1, 1, 1)
    assert report.summary["stages"][1]["review"] == {
        "waiting": 1, "auto": 0, "approved": 1, "manual": 0, "rejected": 0,
    }  # fmt: skip
    project.assert_sound()


def test_the_commands_say_how_many_wait_and_what_to_type(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 9], when="classify.confidence < 0.8")
    dry = project.agac("plan", "-a", "reviews", code=0)
    assert "approve" in dry.out
    ran = project.agac("run", "-a", "reviews", code=0)
    line = "1 row waits for a person; decide with: agac review next -a reviews"
    assert line in ran.out
    assert "Reviewed at approve: 1 auto" in ran.out
    assert "did not select" not in ran.out
    status = project.agac("status", "last", code=0).out
    assert line in status
    assert "reviews, run 1: waiting" in status
    dry = project.agac("plan", "-a", "reviews", code=0)
    assert "approve: 1 blocked: waits for a person" in dry.out
    assert project.agac("run", "-a", "reviews", "--json", code=0).json["complete"] is False


def test_a_decision_that_is_changed_later_is_taken_up(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r4", "reject")
    project.run()
    assert results(project) == {"r3": "reply: L3"}
    assert decide(project, "r3", "edit", {"label": "Y", "confidence": 0}).taken == 1
    assert decide(project, "r4", "approve").taken == 1
    report = project.run()
    assert report.rows.done == 2
    assert results(project) == {"r3": "reply: Y", "r4": "reply: L4"}
    project.assert_sound()


def test_two_people_have_to_say_the_same_and_a_third_settles_a_conflict(
    project: ProjectFolder, model: Scripted
) -> None:
    review(project, [3, 4], reviewers=2, agree="label")
    project.run()
    decide(project, "r3", "approve")
    assert decide(project, "r3", "approve").same == 1
    assert project.run().rows.done == 0
    assert decide(project, "r3", "edit", {"label": "L3", "confidence": 1}, reviewer="ben").conflicts == []
    decide(project, "r4", "approve")
    assert len(decide(project, "r4", "reject", reviewer="ben").conflicts) == 1
    assert project.run().rows.done == 1
    assert list(waiting(project, "conflict")) == ["r4"]
    decide(project, "r4", "approve", reviewer="cleo")
    assert project.run().rows.done == 2
    project.assert_sound()


def test_different_decisions_are_kept_and_shown_and_one_may_override_them(
    project: ProjectFolder, model: Scripted
) -> None:
    review(project, [3])
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r3", "reject", reviewer="ben", reason="no")
    (item,) = waiting(project, "conflict").values()
    assert [(one.reviewer, one.choice) for one in item.decisions] == [("anna", "approve"), ("ben", "reject")]
    assert project.run().rows.open == 1
    assert decide(project, "r3", "approve", reviewer="cleo", force=True).taken == 1
    assert decide(project, "r3", "approve", reviewer="cleo", force=True).same == 1
    assert project.run().rows.done == 1


@pytest.mark.parametrize("on_timeout", ["approve", "reject", "wait"])
def test_after_its_time_a_row_goes_on_without_people(
    project: ProjectFolder, model: Scripted, on_timeout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    review(project, [3], timeout="5d", on_timeout=on_timeout)
    project.run()
    assert project.run().rows.open == 1
    with project.changed() as change:
        change("UPDATE review SET due = 1.0")
    report = project.run()
    assert (report.rows.done, report.rows.dropped, report.rows.open) == {
        "approve": (1, 0, 0), "reject": (0, 1, 0), "wait": (0, 0, 1),
    }[on_timeout]  # fmt: skip
    project.assert_sound()


def test_a_blind_row_is_asked_for_a_value_and_measures_the_model(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4], blind="100%")
    project.run()
    assert [(one.answer, one.blind) for one in waiting(project).values()] == [(None, True)] * 2
    assert "without the answer" in decide(project, "r3", "approve").problems[0].message
    decide(project, "r3", "edit", {"label": "L3", "confidence": 0.3})
    decide(project, "r4", "edit", {"label": "B", "confidence": 0.4})
    project.run()
    (stage,) = agac.review_report(project.root).stages
    assert (stage.stage, stage.blind.rows, stage.blind.equal, stage.others.rows) == ("approve", 2, 1, 0)
    assert stage.blind.fields["label"].equal == 1
    assert results(project) == {"r3": "reply: L3", "r4": "reply: B"}


def test_a_sample_is_drawn_by_the_id_and_is_the_same_in_each_run(project: ProjectFolder, model: Scripted) -> None:
    review(project, list(range(40, 90)), when="false", sample="20 %")
    project.run()
    drawn = set(waiting(project))
    assert 2 < len(drawn) < 20
    assert {one.why["sample"] for one in waiting(project).values()} == {0.2}
    review(project, list(range(50, 95)), when="false", sample=0.2)
    project.run()
    assert {one for one in waiting(project) if int(one[1:]) < 90} == {one for one in drawn if int(one[1:]) >= 50}


def test_a_decision_is_about_what_was_shown_and_comes_back_with_it(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    old = waiting(project)["r3"]
    decide(project, "r3", "edit", {"label": "E", "confidence": 0})
    project.rows([{"id": "r3", "text": "other-5"}, {"id": "r4", "text": "text-4"}])
    project.run()
    assert {row: one.answer["label"] for row, one in waiting(project).items()} == {"r3": "L5", "r4": "L4"}
    assert list(waiting(project, "stale")) == ["r3"]
    late = agac.Decision(old.id, "reject", reviewer="ben", seen=old.seen)
    assert (agac.decide(project.root, [late]).stale, project.run().rows.open) == (1, 2)
    wrong = agac.Decision(waiting(project)["r3"].id, "reject", reviewer="ben", seen=old.seen)
    assert (agac.decide(project.root, [wrong]).stale, project.run().rows.open) == (1, 2)
    decide(project, "r4", "approve")
    agac.decide(project.root, [agac.Decision(old.id, "reject", reviewer="anna")])  # and ben said so too
    project.rows([{"id": "r3", "text": "text-3"}, {"id": "r4", "text": "text-4"}])
    report = project.run()
    assert (report.rows.done, report.rows.dropped) == (1, 1)
    project.assert_sound()


def test_another_prompt_with_the_same_answer_asks_nobody_twice(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4, 5])
    project.run()
    decide(project, "r3", "edit", {"label": "E", "confidence": 0})
    project.run()
    changed = {**CLASSIFY, "prompt": "classify again ${text}"}
    project.workflow(stages=[changed, {"name": "approve", "review": {}}, REPLY])
    report = project.run()
    assert (report.summary["run"], report.rows.done, report.rows.open) == (2, 1, 2)
    assert {one.run for one in waiting(project).values()} == {2}
    assert waiting(project, "stale") == {}
    decide(project, "r4", "approve")
    decide(project, "r5", "approve")
    project.run()
    assert results(project) == {"r3": "reply: E", "r4": "reply: L4", "r5": "reply: L5"}


@pytest.mark.parametrize("how", ["fresh", "retry"])
def test_decisions_are_lost_only_where_that_is_asked_for(project: ProjectFolder, model: Scripted, how: str) -> None:
    review(project, [3, 4])
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r4", "reject")
    project.run()
    again = ("run", "-a", "reviews", "--fresh") if how == "fresh" else ("retry", "last", "--from", "classify", "--yes")
    project.agac(*again, code=0)
    assert project.query("SELECT count(*) FROM review WHERE state = 'waiting'") == [(0,)]
    more = () if how == "fresh" else ("--row", "r3")
    project.agac(*again, *more, "--discard-decisions", code=0)
    assert set(waiting(project)) == ({"r3", "r4"} if how == "fresh" else {"r3"})
    assert project.run().rows.open == (2 if how == "fresh" else 1)
    decide(project, "r3", "approve")
    project.run()
    assert results(project) == {"r3": "reply: L3"}
    assert project.agac("run", "-a", "reviews", "--discard-decisions").code == 2


def test_outputs_say_how_people_had_to_do_with_results(project: ProjectFolder, model: Scripted) -> None:
    project.rows([{"id": f"r{number}", "text": f"text-{number}"} for number in (3, 4, 9)])
    approve = {"name": "approve", "review": {"when": "classify.confidence < 0.8"}}
    project.workflow(stages=[CLASSIFY, approve], output={"how": True})
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r4", "edit", {"label": "X", "confidence": 1})
    project.run()
    assert {one["id"]: one["how"] for one in project.envelopes()} == {
        "r3": {"approve": "approved"}, "r4": {"approve": "manual"}, "r9": {"approve": "auto"},
    }  # fmt: skip
    assert results(project)["r4"] == {"label": "X", "confidence": 1}
    shown = project.agac("inspect", "last", "r4", code=0).out
    assert "of earlier content" not in shown
    assert "reviewed: manual, by anna" in shown
    assert project.agac("why", "last", "r4", "approve").code == 0


def test_rows_of_lists_and_groups_are_reviewed_too(project: ProjectFolder, model: Scripted) -> None:
    project.rows([{"id": "a", "items": [3, 4]}, {"id": "b", "items": [5]}], "data/rows.jsonl")
    stages = [
        {"name": "classify", "explode": "items", "prompt": "classify n-${item}", "output_schema": SCHEMA},
        {"name": "approve", "review": {"show": ["item"]}},
        {"name": "sum", "group_by": [], "prompt": "sum ${rows_json}"},
        {"name": "last", "review": {"choices": ["approve", "reject"]}},
    ]
    project.workflow(stages=stages, path="data/rows.jsonl")
    project.run()
    assert {row: one.shown for row, one in waiting(project).items()} == {
        "a/0": {"item": 3}, "a/1": {"item": 4}, "b/0": {"item": 5},
    }  # fmt: skip
    decide(project, "a/0", "edit", {"label": "E", "confidence": 1})
    decide(project, "a/1", "reject")
    assert not project.run().invocation["complete"]
    decide(project, "b/0", "approve")
    project.run()
    (item,) = waiting(project).values()
    assert (item.row_id, item.stage) == ("all", "last")
    assert '"label":"E"' in item.answer
    assert '"L4"' not in item.answer
    decide(project, "all", "approve")
    assert project.run().invocation["complete"]
    project.assert_sound()


def test_a_review_before_a_group_holds_it_back(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4], {"name": "sum", "group_by": [], "prompt": "sum ${rows_json}"})
    project.run()
    decide(project, "r3", "approve")
    assert not any(one["messages"][-1]["content"].startswith("sum") for one in model.asked)
    project.run()
    decide(project, "r4", "approve")
    assert project.run().invocation["complete"]


def test_an_escalated_answer_is_what_people_decide_on(project: ProjectFolder, model: Scripted) -> None:
    project.rows([{"id": "r3", "text": "text-3"}])
    escalated = {**CLASSIFY, "escalate": {"when": "classify.confidence < 0.5", "model": "local/large"}}
    project.workflow(stages=[escalated, {"name": "approve", "review": {}}, REPLY])
    project.run()
    assert waiting(project)["r3"].edit == "classify"
    decide(project, "r3", "edit", {"label": "X", "confidence": 0})
    project.run()
    assert results(project) == {"r3": "reply: X"}


def test_agreement_of_replicas_decides_who_waits(project: ProjectFolder, model: Scripted) -> None:
    project.rows([{"id": "r3", "text": "text-3"}])
    voted = {**CLASSIFY, "replicas": 3, "vote": "label"}
    for when, rows in (("agreement < 1.0", 0), ("agreement >= 1.0", 1)):
        project.workflow(stages=[voted, {"name": "approve", "review": {"when": when}}])
        assert project.run().rows.open == rows


@only_in_soak
def test_ten_thousand_decisions_twice_are_once(project: ProjectFolder, model: Scripted) -> None:
    review(project, list(range(100)))
    project.run()
    with project.changed() as change:
        change(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9900) "
            "INSERT INTO review SELECT randomblob(16), workflow, stage, 'x' || i, run_id, row_key, seen, why, blind, "
            "'waiting', sure, due, alone, at FROM n, (SELECT * FROM review LIMIT 1)"
        )
    page, keys = agac.review_queue(project.root, limit=4000), list[str]()
    while True:
        keys += [one.id for one in page.items]
        if page.next is None:
            break
        page = agac.review_queue(project.root, limit=4000, after=page.next)
    assert (len(set(keys)), page.waiting) == (10_000, 10_000)
    made = [agac.Decision(key, "approve", reviewer="anna", source="file") for key in keys]
    first, second = agac.decide(project.root, made), agac.decide(project.root, made)
    assert (first.taken, second.taken, second.same) == (10_000, 0, 10_000)
    assert project.query("SELECT count(*) FROM decision") == [(10_000,)]


def test_an_edited_value_has_to_meet_the_checks_of_its_stage(project: ProjectFolder, model: Scripted) -> None:
    project.rows([{"id": "r3", "text": "text-3"}])
    checked = {**CLASSIFY, "checks": {'classify.label != text && classify.label != "bad"': "label is bad"}}
    project.workflow(stages=[checked, {"name": "approve", "review": {}}, REPLY])
    project.run()
    for label in ("bad", "text-3"):
        (problem,) = decide(project, "r3", "edit", {"label": label, "confidence": 1}).problems
        assert "label is bad" in problem.message
    assert decide(project, "r3", "edit", {"label": "good", "confidence": 1}).taken == 1
    project.run()
    assert results(project) == {"r3": "reply: good"}


def test_a_value_that_the_schema_no_longer_takes_is_asked_for_anew(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3])
    project.run()
    decide(project, "r3", "edit", {"label": "X", "confidence": 7})
    bounded = {**SCHEMA, "properties": {**SCHEMA["properties"], "confidence": {"type": "number", "maximum": 1}}}
    project.workflow(stages=[{**CLASSIFY, "output_schema": bounded}, {"name": "approve", "review": {}}, REPLY])
    assert project.run().rows.open == 1
    assert list(waiting(project)) == ["r3"]
    decide(project, "r3", "edit", {"label": "Y", "confidence": 1})
    project.run()
    assert results(project) == {"r3": "reply: Y"}


def test_who_changes_their_mind_back_is_heard(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    assert [decide(project, "r3", choice).taken for choice in ("approve", "reject", "approve", "approve")] == [
        1,
        1,
        1,
        0,
    ]
    for choice, who in (("approve", "anna"), ("reject", "ben"), ("approve", "anna"), ("approve", "anna")):
        said = decide(project, "r4", choice, reviewer=who, force=True)
    assert (said.taken, said.same) == (0, 1)
    assert decide(project, "r4", "reject").taken == 1  # of who overrode the others last
    assert project.run().rows.dropped == 1
    assert results(project) == {"r3": "reply: L3"}


def test_blind_rows_are_asked_without_anything_of_the_answer(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3], when='classify.label != "x"', blind=1.0)
    project.run()
    assert "L3" not in json.dumps(waiting(project)["r3"].as_json())
    review(project, [3], show=["text", "classify.label"], blind=1.0)
    with pytest.raises(agac.SpecError, match="`blind` rows come without the answer, and `show` has 'classify'"):
        project.run()


def test_what_other_machines_decided_comes_once_and_nothing_is_lost(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4, 5])
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r4", "edit", {"label": "x", "confidence": 1.0})
    store = project.root / ".agac/agac.db"
    name, content = make_snapshot(store, [1])
    project.run()
    again = agac.Decision(waiting(project, "applied")["r3"].id, "reject", reviewer="anna")
    assert agac.decide(project.root, [again]).taken == 1
    said = "SELECT key, choice, seen FROM decision JOIN review USING (key) ORDER BY decision.id"
    before = project.query(said)
    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        for number in (1, 2):
            take_snapshot(content, "reviews", number, name, {}, writer)
    assert project.query(said) == before
    assert waiting(project).keys() == {"r5"}
    assert project.run().rows.dropped == 1  # as anna said here last
    decide(project, "r5", "reject")
    project.run()
    assert results(project) == {"r4": "reply: x"}


def test_a_retry_discards_what_one_of_two_people_said_and_disputes(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4], reviewers=2)
    project.run()
    for row, who in (("r3", "anna"), ("r4", "anna"), ("r4", "ben")):
        decide(project, row, "approve" if who == "ben" else "reject", reviewer=who)
    agac.retry(1, agac.Retry(from_stage="classify", discard=True), project=project.root)
    assert waiting(project).keys() == {"r3", "r4"}
    assert [one.decisions for one in waiting(project).values()] == [(), ()]
    decide(project, "r3", "reject", reviewer="ben")
    assert project.run().rows.open == 2


def test_that_the_time_of_a_row_is_over_is_noted_once(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3], reviewers=2, timeout="5d", on_timeout="approve")
    project.run()
    decide(project, "r3", "reject")
    with project.changed() as change:
        change("UPDATE review SET due = 1.0")
    for _ in range(3):
        assert agac.retry(1, agac.Retry(from_stage="classify"), project=project.root).rows.done == 1
    assert project.query("SELECT source FROM decision ORDER BY id") == [("api",), ("timeout",)]
    decide(project, "r3", "reject", reviewer="ben")
    assert project.run().rows.dropped == 1


def test_nobody_is_asked_what_a_run_asked_that_another_took_the_place_of(
    project: ProjectFolder, model: Scripted
) -> None:
    review(project, [3, 4])
    project.run()
    project.workflow(stages=[CLASSIFY, REPLY])
    assert project.run().invocation["complete"]
    assert (waiting(project), set(waiting(project, "stale"))) == ({}, {"r3", "r4"})
    assert agac.review_queue(project.root).waiting == 0
    assert project.agac("status", "1", "--json", code=0).json["runs"][0]["stages"][1]["review"]["waiting"] == 0
    review(project, [3, 4])
    assert project.run().rows.open == 2
    assert set(waiting(project)) == {"r3", "r4"}
    review(project, [3], when="true")  # of which r4 left
    project.run()
    assert (set(waiting(project)), set(waiting(project, "stale"))) == ({"r3"}, {"r4"})
    stages = project.agac("status", "last", "--json", code=0).json["runs"][0]["stages"]
    assert stages[1]["review"]["waiting"] == agac.review_queue(project.root).waiting == 1


def test_a_preview_leaves_the_questions_of_the_whole_run(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4])
    project.run()
    project.agac("run", "-a", "reviews", "--limit", "1", code=0)
    assert set(waiting(project)) == {"r3", "r4"}


def test_a_row_in_dispute_goes_on_after_its_time(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3], reviewers=2, timeout="5d", on_timeout="approve")
    project.run()
    decide(project, "r3", "approve")
    decide(project, "r3", "reject", reviewer="ben")
    assert project.run().rows.open == 1
    with project.changed() as change:
        change("UPDATE review SET due = 1.0")
    for _ in range(2):
        assert project.run().rows.done == 1
    project.assert_sound()


def test_who_decided_is_not_asked_again(project: ProjectFolder, model: Scripted) -> None:
    review(project, [3, 4, 5], reviewers=2)
    project.run()
    decide(project, "r3", "approve")
    first = agac.review_queue(project.root, reviewer="anna", limit=1)
    assert (first.items[0].row_id in ("r4", "r5"), first.waiting) == (True, 2)
    assert agac.review_queue(project.root, reviewer="ben").waiting == agac.review_queue(project.root).waiting == 3
    agac.retry(1, agac.Retry(from_stage="classify", discard=True), project=project.root)
    assert agac.review_queue(project.root, reviewer="anna").waiting == 3


def test_the_words_of_a_plan_and_the_counts_of_a_review(project: ProjectFolder) -> None:
    def said(**keys: Any) -> str:
        review(project, [3, 4], **keys)
        return project.agac("plan", "-a", "reviews", code=0).out

    with project.asking(
        deciding(lambda asked: Step('{"label": "x", "confidence": 0.5}' if asked["messages"][1:] else "{"))
    ):
        assert "approve: 2 rows: its `when` says who waits for a decision, by an answer that is not known yet" in said(
            when="true"
        )
        assert "approve: 2 rows: each waits for a decision" in said(redo={})
        assert "classify may be asked up to 2 times again for a row" in said(redo={})
        assert "a sample of 5 % waits" in said(sample="5%")
        review(project, [3, 4], when="false")
        project.run()
    stages = project.agac("status", "last", "--json", code=0).json["runs"][0]["stages"]
    assert [one["repaired"] for one in stages] == [2, 0, 0]


def test_reviews_of_a_workflow_that_was_removed_are_said_to_be_taken_up_by_no_run(
    project: ProjectFolder, model: Scripted
) -> None:
    review(project, [3, 4])
    project.run()
    assert "No file has this stage any more" not in project.agac("review", "status", code=0).out
    file = project.root / "workflows/reviews.yml"
    text = file.read_text("utf-8")
    file.unlink()
    told = project.agac("review", "status", code=0).out
    assert "No file has this stage any more, so no run takes decisions on 2 rows up." in told
    assert "Put the" in told
    assert "`agac gc` drops them with their run." in told
    file.write_text(text.replace("name: approve", "name: other"), "utf-8")
    assert agac.review_report(project.root).stages[0].is_gone
    file.write_text("stages: [", "utf-8")
    assert not agac.review_report(project.root).stages[0].is_gone, "it cannot be known"
