"""Rows that stages made, taken up again: scopes, retries, ages, selections, interruptions."""

import json
from typing import Any

import pytest
from scripted_server import Step, answering
from support.batched import store
from support.made import asked, assert_all_sound, made, outcomes, parts, ran, settled, values
from support.processes import interrupt, listening, wait_until
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.soak import few

import agac
from agac.core.errors import UsageError

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
PLAN = {"name": "plan", "prompt": "plan ${id}", "output_field": "word"}
EACH = {"name": "each", "explode": "items", "prompt": "each ${id} ${item}", "needs": "plan"}
CHECK = {"name": "check", "prompt": "check ${each}\n!"}
SUM = {"name": "sum", "group_by": ["item"], "prompt": "sum ${item} ${rows_count}: ${rows_json}", "needs": "check"}
TITLE = {"name": "title", "prompt": "title ${sum}"}
ALL = [PLAN, EACH, CHECK, SUM, TITLE]
REDUCED = [EACH | {"needs": []}, SUM | {"needs": "each", "reduce": {"max_rows": 4}}]
REFUSED = {"kind": "refusal", "match": "check each a y\n!"}
"""One child's second stage is refused."""
ROWS = {"a": ["x", "y"], "b": ["y"], "c": ["x", "z"]}
CALLS = {"plan": 3, "each": 5, "check": 5, "sum": 3, "title": 3}


@pytest.fixture
def project(project: ProjectFolder) -> ProjectFolder:
    """A project whose stages make rows of the lists of three."""
    lists(project, ROWS)
    workflow(project)
    return project


def lists(project: ProjectFolder, rows: dict[str, Any]) -> None:
    project.rows([{"id": id_, "items": items} for id_, items in rows.items()], PATH)


def workflow(project: ProjectFolder, stages: list[dict[str, Any]] = ALL, **keys: Any) -> None:
    project.workflow(path=PATH, stages=stages, stop_loss=False, **({"defaults": ECHO} | keys))


def calls(project: ProjectFolder) -> dict[str, int]:
    """Calls by stage so far, in all runs of these stages."""
    names = [stage["name"] for stage in ALL]
    return {names[i]: n for i, n in project.query("SELECT stage, count(*) FROM attempt GROUP BY stage ORDER BY stage")}


def retry(project: ProjectFolder, **choice: Any) -> agac.RunReport:
    report = agac.retry("last", agac.Retry(**choice), project=project.root)
    assert_all_sound(project)
    return report


def test_stage_asks_that_stage_alone(project: ProjectFolder) -> None:
    project.run(until="each")
    report = project.run(from_stage="sum")
    assert (report.exit_code, report.invocation["calls"]) == (0, 0), "a group waits for members that are open"
    lists(project, {**ROWS, "d": ["x"]})
    for stage, count in (("check", 5), ("sum", 0)):
        before = calls(project)
        assert project.run(stage=stage).exit_code == 0
        assert calls(project).get(stage, 0) - before.get(stage, 0) == count
        assert sum(calls(project).values()) - sum(before.values()) == count
        assert_all_sound(project)
    report = settled(project)
    assert report.invocation["calls"] == 1 + 1 + 1 + 3 + 3
    assert report.summary["complete"]


def test_retry_forces_made_rows_that_a_run_leaves_alone(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([REFUSED | {"first": 4}]))
    for count, tries_again in ((19, True), (0, False), (1, True), (1, True), (0, True)):
        report = project.run(retry_failed=tries_again)
        assert (report.exit_code, report.invocation["calls"]) == (3, count)
        assert tries_again or report.invocation["rows_left_failed"] == 1
        assert_all_sound(project)
    for row in ("b/0", "a/7", "nobody"):
        with pytest.raises(UsageError, match=row):
            retry(project, rows=(row,))
    assert retry(project).invocation["calls"] == 1
    report = retry(project)
    assert report.exit_code == 0
    assert report.invocation["calls"] == 1 + 1 + 1, "the child, its group and what follows"
    assert made(project, "each") == dict.fromkeys(["a/0", "a/1", "b/0", "c/0", "c/1"], "done")
    assert json.loads(values(project, "sum")["y"].partition(": ")[2])[0]["check"] == "check each a y\n!"
    with pytest.raises(UsageError, match="nothing of run 1"):
        retry(project)
    assert asked(project) == 0


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        ({"rows": ("a/1",)}, 1), ({"rows": ("a",)}, 1), ({"rows": ("c/0", "a/1")}, 2), ({"stage": "check"}, 1),
        ({"stage": "each"}, 1), ({"error": "Truncated"}, 1), ({"error": "Refused"}, 1), ({}, 2),
    ],
)  # fmt: skip
def test_retry_chooses_made_rows(project: ProjectFolder, faulty: Faulty, choice: dict[str, Any], count: int) -> None:
    project.asks(faulty([REFUSED, {"kind": "length", "match": "each c x"}]))
    assert ran(project).exit_code == 3
    assert agac.retry_choice("last", agac.Retry(**choice), project=project.root).rows == count
    report = retry(project, **choice)
    assert (report.exit_code, report.invocation["calls"]) == (3, count)


@pytest.mark.parametrize(
    ("stage", "rows", "again"),
    [
        ("title", (), 3), ("sum", (), 6), ("check", (), 11), ("each", (), 16), ("plan", (), 19),
        ("each", ("b",), 4), ("check", ("a/0",), 3),
    ],
)  # fmt: skip
def test_retry_from_a_stage_asks_it_and_what_follows_of_these_rows_anew(
    project: ProjectFolder, stage: str, rows: tuple[str, ...], again: int
) -> None:
    assert asked(project) == 19
    report = retry(project, from_stage=stage, rows=rows)
    assert (report.exit_code, report.invocation["calls"]) == (0, again)
    assert report.summary["complete"]
    assert asked(project) == 0


def test_retry_from_a_stage_that_reduces(project: ProjectFolder) -> None:
    lists(project, {f"r{n}": [n % 3] for n in range(40)})
    workflow(project, REDUCED)
    first = asked(project)
    assert first > 40 + 10
    report = retry(project, from_stage="sum")
    assert (report.exit_code, report.invocation["calls"]) == (0, first - 40)
    assert asked(project) == 0


def test_a_failed_part_is_retried(project: ProjectFolder) -> None:
    bad = ['"r7"']

    def answer(text: str) -> Step:
        if text.startswith("sum") and any(word in text for word in bad):
            return Step(text, finish="length")
        return Step(f"S{len(text)}" if text.startswith("sum") else text)

    with project.asking(answering(answer)):
        lists(project, {f"r{n}": [1] for n in range(20)})
        workflow(project, [*REDUCED, TITLE], defaults={})
        for count in (None, 1, 1, 0):
            report = ran(project)
            assert report.exit_code == 3
            assert count is None or report.invocation["calls"] == count
        assert retry(project).invocation["calls"] == 1
        bad.clear()
        report = retry(project, stage="sum")
        assert report.exit_code == 0
        assert 3 <= report.invocation["calls"] <= 6
        assert set(parts(project).values()) == {"done"}
        assert asked(project) == 0


def test_fresh_asks_everything_anew_and_is_continued_when_it_was_stopped(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "unauthorized", "at": [30]}]))
    assert asked(project) == 19
    assert project.run(fresh=True, concurrency=1).exit_code == 1
    assert_all_sound(project)
    report = settled(project)
    assert (report.exit_code, report.summary["run"]) == (0, 2)
    assert server.account()["requests"] == 19 + 19 + 1
    assert asked(project, fresh=True) == 19
    assert project.run().summary["run"] == 3


@pytest.mark.parametrize("stage", few([*CALLS], 4))
def test_answers_older_than_max_age_are_asked_again(project: ProjectFolder, stage: str) -> None:
    lists(project, ROWS)
    workflow(project, [one | ({"max_age": "7d"} if one["name"] == stage else {}) for one in ALL])
    assert asked(project) == 19
    position = [one["name"] for one in ALL].index(stage)
    with store(project) as database:
        database.execute(
            "UPDATE result SET created_at = created_at - 8 * 86400 "
            "WHERE id IN (SELECT result_id FROM task WHERE stage = ?)", (position,),
        )  # fmt: skip
    assert settled(project).exit_code == 0
    assert calls(project) == CALLS | {stage: 2 * CALLS[stage]}


def stopped_amid_a_call(project: ProjectFolder, server: Server, *command: str) -> None:
    """Ctrl-C twice while a call hangs; the provider answers everything afterwards."""
    process = listening(project.start(*command, "--concurrency", "4"))
    wait_until(lambda: server.account()["faults"].get("hang", 0) >= 1, "a call that hangs", process)
    for _ in range(2):
        interrupt(process)
    assert process.wait(60) == 130
    process.communicate()
    assert_all_sound(project)


@pytest.mark.parametrize("stage", few([*CALLS], 4, 1))
def test_a_run_that_is_interrupted_at_any_level_is_gone_on_with(
    project: ProjectFolder, faulty: Faulty, stage: str
) -> None:
    server = project.asks(faulty([{"kind": "hang", "match": f"{stage} ", "first": 1}]))
    stopped_amid_a_call(project, server, "run", "-a", "reviews")
    project.asks(faulty([]))
    assert settled(project).exit_code == 0
    assert calls(project) == CALLS
    assert outcomes(project, "title") == {"x": "done", "y": "done", "z": "done"}


def test_an_interrupted_retry_of_made_rows_is_gone_on_with(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "hang", "match": "check ", "at": list(range(24, 34))}]))
    assert asked(project) == 19
    stopped_amid_a_call(project, server, "retry", "last", "--from", "each", "--yes")
    project.asks(faulty([]))
    assert settled(project).exit_code == 0
    assert calls(project) == CALLS | {stage: 2 * CALLS[stage] for stage in ("each", "check", "sum", "title")}


def test_children_of_a_parent_that_is_open_wait(project: ProjectFolder, faulty: Faulty) -> None:
    """Its list may be another one once it has been asked: what was made of it before is not asked, and not written."""
    project.asks(faulty([{"kind": "refusal", "match": "each a x"}]))
    stages = [{"name": "plan", "prompt": "plan ${word}"}, EACH]
    rows = [{"id": "a", "word": "1", "items": ["x", "y"]}, {"id": "b", "word": "1", "items": ["z"]}]
    project.rows(rows, PATH)
    workflow(project, stages)
    assert ran(project).exit_code == 3
    project.rows([{"id": "a", "word": "2", "items": ["q"]}, rows[1]], PATH)
    report = project.run(stage="each")
    assert (report.invocation["calls"], report.summary["rows"]["open"]) == (0, 1)
    assert project.agac("export", "--run", "1", "--partial").code == 0
    assert [line["id"] for line in project.envelopes()] == ["b/0"]
    assert asked(project) == 2
    assert [line["id"] for line in project.envelopes()] == ["a/0", "b/0"]
