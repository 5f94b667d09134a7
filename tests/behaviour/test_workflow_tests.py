"""`agac test`: workflows on the rows of their tests, offline: with replies of a file, or as they were recorded."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from support.processes import processes
from support.project import ProjectFolder, to_its_end
from support.shipped import ROOT

import agac
from agac.api import workflow_tests
from agac.core import keys
from agac.testing import simulator

pytestmark = processes

KEY = "sk-live-0123456789abcdef"
ROWS = [{"id": "r-1", "text": "a good tent"}, {"id": "r-2", "text": "a bad lamp"}]
GOOD, BAD = {"sentiment": "positive", "reason": "good"}, {"sentiment": "negative", "reason": "bad"}
REPLIES = [{"match": "tent", "reply": GOOD}, {"stage": "classify", "row": "r-2", "reply": BAD}]
TOOLS = '''
from pathlib import Path

def look(q: str, deep: bool = False) -> str:
    """Looks something up."""
    with Path(__file__).with_name("looked").open("a") as file:
        file.write(q)
    return f"found {q}"
'''


def written(project: ProjectFolder, name: str = "reviews", **body: Any) -> Path:
    """A test in its file."""
    text = yaml.safe_dump({"rows": ROWS, **body}, sort_keys=False)
    return project.write(f"tests/workflows/{name}.yml", text)


def outcomes(project: ProjectFolder, **given: Any) -> list[Any]:
    """The tests as they ended."""
    return agac.run_tests(project=project.root, **given).tests


@contextmanager
def counting() -> Iterator[tuple[str, list[int]]]:
    """An address at which nobody answers, and a list that grows with each connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        came: list[int] = []

        def accept() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return
                came.append(1)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", came
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def reviews(project: ProjectFolder) -> ProjectFolder:
    project.configure()
    project.workflow(rows=1)
    return project


def test_replies_of_the_file_are_answers_and_nothing_is_left_behind(reviews: ProjectFolder) -> None:
    each = ['classify.sentiment == (id == "r-1" ? "positive" : "negative")', 'result.reason != "" && row.text != ""']
    schema = {"sentiment": "string", "reason": "string"}
    expect = {"rows": {"done": 2}, "results": 2, "each": each, "output_schema": schema, "calls": 2, "usd": 1.0}
    written(reviews, replies=REPLIES, expect=expect)
    (one,) = outcomes(reviews)
    assert (one.result, one.name, one.calls, one.failures, one.error) == ("passed", "reviews", 2, [], None)
    assert one.usd is not None
    assert one.usd > 0
    assert not (reviews.root / ".agac").exists()
    assert not (reviews.root / "output").exists()


def test_a_wrong_key_of_a_reply_and_a_value_of_no_form_are_told_by_their_places(reviews: ProjectFolder) -> None:
    written(reviews, rows=[], replies=[{"stag": "classify", "reply": "Yes"}])
    said = reviews.agac("test", code=2).err
    assert "rows: is empty" in said
    assert "replies[0].stag: unknown key; did you mean 'stage'?" in said


def test_a_failure_says_row_stage_expected_got_and_what_was_asked(reviews: ProjectFolder) -> None:
    expect = {"each": ['classify.sentiment == "positive"'], "rows": {"done": 3}, "results": 3, "calls": 1, "usd": 0.0}
    written(
        reviews,
        replies=REPLIES,
        expect={**expect, "output_schema": {"sentiment": "positive|neutral", "reason": "string"}},
    )
    junit = reviews.root / "junit.xml"
    assert "mkdir -p" in reviews.agac("test", "--junit", "nowhere/junit.xml", code=2).err
    ran = reviews.agac("test", "--junit", str(junit), code=3)
    of_row = """\
  row r-2, stage classify
    expected: classify.sentiment == "positive"
    got:      {"classify.sentiment": "negative"}
    asked:    Review: a bad lamp
"""
    assert of_row in ran.out
    assert ran.out.startswith("failed: reviews\n  the run\n    expected: 3 rows done\n    got:      2 rows done\n")
    assert "expected: at most 1 calls\n    got:      2 calls\n" in ran.out
    assert "expected: at most $0.0\n" in ran.out
    assert "expected: a result of the schema\n    got:      sentiment: " in ran.out
    assert ran.out.endswith("0 of 1 test passed, 2 calls\n")
    suite = ET.parse(junit).getroot()
    assert (suite.tag, suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("testsuite", "1", "1", "0")
    messages = [one.get("message") for one in suite.iter("failure")]
    assert 'row r-2: expected classify.sentiment == "positive", got {"classify.sentiment": "negative"}' in messages
    found = reviews.agac("test", "--json", code=3).json
    assert (found["ok"], [one["result"] for one in found["tests"]]) == (False, ["failed"])
    of_rows = [one for one in found["tests"][0]["failures"] if one["row"] == "r-2"]
    assert of_rows[-1] | {"got": ""} == {
        "expected": 'classify.sentiment == "positive"', "got": "", "row": "r-2", "stage": "classify",
        "prompt": "Review: a bad lamp",
    }  # fmt: skip


@pytest.mark.parametrize("replies", ["recorded", [{"match": "something else", "reply": GOOD}]])
def test_a_call_without_a_reply_fails_its_row_and_never_goes_out(project: ProjectFolder, replies: Any) -> None:
    with counting() as (address, came):
        project.configure(address, api_key="${NOWHERE_SET}")
        project.workflow(rows=1, defaults={"fallback": ["openai/gpt-5.4-mini"]})
        written(project, replies=replies)
        (one,) = outcomes(project)
        assert (one.result, one.error) == ("failed", None)

        what = one.failures[0]
        assert (what.row, what.stage, what.prompt) == ("r-1", "classify", "Review: a good tent")
        assert "nothing was sent" in what.got
        assert "is for this call" in what.got or "record it: `agac test --record`" in what.got
        assert not came


def test_the_simulator_answers_for_every_dialect_without_a_key(project: ProjectFolder) -> None:
    with counting() as (address, came):
        rows = {
            name: {"dialect": name, "base_url": address, "api_key": "${NOWHERE_SET}"}
            for name in ("openai-chat", "openai-responses", "anthropic")
        }
        project.write("agac.yml", yaml.safe_dump({"providers": rows}))
        stages = [
            {"name": name.replace("-", "_"), "prompt": "Review: ${text}", "model": f"{name}/m?max_tokens=500",
             "output_schema": {"sentiment": "positive|negative"}, "run_mode": "batch" if name == "none" else "sync"}
            for name in rows
        ]  # fmt: skip
        project.workflow(stages=stages, rows=1)
        written(project, expect={"rows": {"done": 2}, "each": ['anthropic.sentiment != ""'], "calls": 6})
        (one,) = outcomes(project)
        assert (one.result, one.failures, one.calls, came) == ("passed", [], 6, [])


def test_what_was_recorded_once_answers_for_ever_and_holds_no_secret(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KEY", KEY)
    script = [{"match": "tent", "reply": GOOD | {"reason": f"the key is {KEY}"}}, {"reply": BAD}]
    with simulator(script=script) as sim:
        project.configure(sim.base_url, api_key="${LOCAL_KEY}")
        project.workflow(rows=1)
        written(project, replies="recorded", expect={"each": ['reason != "" || true']})
        assert [one.result for one in outcomes(project)] == ["failed"]
        assert not sim.requests
        recorded = project.agac("test", "--record", env={"LOCAL_KEY": KEY}, code=0)
        assert "wrote tests/workflows/recorded/reviews.jsonl\n1 of 1 test passed, 2 calls" in recorded.out
        assert len(sim.requests) == 2
        (again,) = outcomes(project, record=True)
        assert (again.result, len(sim.requests)) == ("passed", 2)
    file = project.root / "tests/workflows/recorded/reviews.jsonl"
    lines = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
    assert [(one["stage"], one["row"], one["provider"], one["model"]) for one in lines] == [
        ("classify", "r-1", "local", "small"), ("classify", "r-2", "local", "small"),
    ]  # fmt: skip
    assert lines[1]["request"]["messages"][-1] == {"role": "user", "text": "Review: a bad lamp"}
    assert set(lines[1]["request"]) == {"messages", "schema", "params"}
    assert KEY not in file.read_text("utf-8")
    assert "[redacted]" in file.read_text("utf-8")
    monkeypatch.delenv("LOCAL_KEY")
    (one,) = outcomes(project)
    assert (one.result, one.calls, one.stale) == ("passed", 2, [])
    monkeypatch.setattr(keys, "FORMAT_VERSION", 99)  # of fingerprints
    assert [one.result for one in outcomes(project)] == ["passed"]


def test_a_stale_recording_is_named_with_what_changed(project: ProjectFolder) -> None:
    with simulator(script=[{"reply": GOOD}]) as sim:
        project.configure(sim.base_url)
        project.workflow(rows=1)
        written(project, replies="recorded")
        assert [one.result for one in outcomes(project, record=True)] == ["passed"]
    stage = {
        "name": "classify",
        "prompt": "The review: ${text}",
        "output_schema": {"sentiment": "string", "reason": "string"},
    }
    project.workflow(stages=[stage])
    (one,) = outcomes(project)
    assert one.result == "failed"
    assert "what is recorded is stale: messages and schema changed, " in one.failures[0].got
    assert "{+The +}" in one.failures[0].got or "[-Review-]{+The review+}" in one.failures[0].got
    assert one.stale == ["stage classify, row r-1", "stage classify, row r-2"]
    assert "stale: reviews: stage classify, row r-1 is not asked for" in project.agac("test", code=3).out
    with simulator(script=[{"reply": GOOD}]) as sim:
        project.configure(sim.base_url)
        assert [one.result for one in outcomes(project, record=True)] == ["passed"]
        assert len(sim.requests) == 2
    (one,) = outcomes(project)
    assert (one.result, one.stale) == ("passed", [])


def test_turns_and_results_of_tools_are_recorded_and_no_tool_runs_again(project: ProjectFolder) -> None:
    project.write("tools/t.py", TOOLS)
    script = [{"turn": 1, "calls": [{"name": "look", "arguments": {"q": "tents"}}]}, {"turn": 2, "reply": "a tent"}]
    stage = {"name": "ask", "prompt": "${text}", "tools": {"tools/t.py:look": {}}}
    with simulator(script=script) as sim:
        project.configure(sim.base_url)
        project.workflow(stages=[stage], rows=1)
        written(project, replies="recorded", rows=ROWS[:1], expect={"each": ['ask == "a tent"'], "calls": 2})
        (one,) = outcomes(project, record=True)
        assert (one.error, one.failures, one.result) == (None, [], "passed")
    assert (project.root / "tools/looked").read_text() == "tents"
    lines = (project.root / "tests/workflows/recorded/reviews.jsonl").read_text("utf-8").splitlines()
    (turn,) = [one for one in map(json.loads, lines) if len(one["request"]["messages"]) > 2]
    assert turn["request"]["messages"][-1]["results"][0]["text"] == "found tents"
    (one,) = outcomes(project)
    assert (one.error, one.failures, one.calls) == (None, [], 2)
    assert (project.root / "tools/looked").read_text() == "tents"


def test_a_recording_holds_line_separators_of_unicode_as_they_are(project: ProjectFolder) -> None:
    odd = "a\u2028b\u2029c\x85d\x0ce\x1cf"
    project.write("tools/t.py", TOOLS)
    script = [{"turn": 1, "calls": [{"name": "look", "arguments": {"q": odd}}]}, {"turn": 2, "reply": odd}]
    stage = {"name": "ask", "prompt": "${text}", "tools": {"tools/t.py:look": {}}}
    with simulator(script=script) as sim:
        project.configure(sim.base_url)
        project.workflow(stages=[stage], rows=1)
        expect = {"each": [f"ask == {json.dumps(odd)}"], "calls": 2}
        written(project, replies="recorded", rows=[{"id": "r-1", "text": odd}], expect=expect)
        assert [(one.error, one.result) for one in outcomes(project, record=True)] == [(None, "passed")]
        assert (project.root / "tools/looked").read_text("utf-8") == odd
        assert [(one.error, one.result) for one in outcomes(project, record=True)] == [(None, "passed")]
        assert len(sim.requests) == 2
    assert [(one.error, one.result, one.stale) for one in outcomes(project)] == [(None, "passed", [])]
    files = [project.root / f"tests/workflows/recorded/reviews{name}.jsonl" for name in ("", "_calls")]
    assert [len(file.read_text("utf-8").split("\n")) for file in files] == [3, 2]


def test_tools_are_stubs_unless_a_test_says_live(project: ProjectFolder) -> None:
    project.write("tools/t.py", TOOLS)
    project.configure()
    stage = {"name": "ask", "prompt": "${text}", "tools": {"tools/t.py:look": {}}}
    project.workflow(stages=[stage], rows=1)
    replies = [
        {"turn": 1, "calls": [{"name": "look", "arguments": {"q": "x"}}]},
        {"turn": 2, "match": "", "reply": "done"},
    ]
    del replies[1]["match"]
    written(project, rows=ROWS[:1], replies=replies, tool_stubs={"look": "a stub"})
    written(project, "reviews.live", rows=ROWS[:1], replies=replies, tools_mode="live")
    assert [(one.result, one.error) for one in outcomes(project, word="reviews")] == [("passed", None)] * 2
    assert (project.root / "tools/looked").read_text() == "x"


def test_snapshots_are_written_on_demand_and_differences_are_shown(reviews: ProjectFolder) -> None:
    written(reviews, replies=REPLIES, expect={"snapshot": True})
    (one,) = outcomes(reviews)
    assert [what.got for what in one.failures] == ["none; write them with `agac test --update`"]
    assert "wrote tests/workflows/snapshots/reviews.json\n" in reviews.agac("test", "--update", code=0).out
    snapshot = json.loads((reviews.root / "tests/workflows/snapshots/reviews.json").read_text("utf-8"))
    assert snapshot == {"r-1": {"result": GOOD}, "r-2": {"result": BAD}}
    assert outcomes(reviews)[0].result == "passed"
    assert outcomes(reviews, update=True)[0].written == []
    replies = [REPLIES[0], {"reply": BAD | {"reason": "dull"}}]
    written(reviews, replies=replies, rows=[*ROWS, {"id": "r-3", "text": "x"}], expect={"snapshot": True})
    failures = outcomes(reviews)[0].failures
    assert [(what.row, what.expected) for what in failures] == [("r-2", "the snapshot"), ("r-3", "the snapshot")]
    assert "[-bad-]{+dull+}" in failures[0].got
    assert failures[0].prompt == "Review: a bad lamp"


def test_rows_that_fail_and_runs_that_stop_are_failures(reviews: ProjectFolder) -> None:
    replies = [{"row": "r-1", "reply": GOOD}, {"row": "r-2", "reply": "no JSON"}]
    written(reviews, replies=replies)
    (one,) = outcomes(reviews)
    assert [(what.row, what.expected) for what in one.failures] == [("r-2", "a result")]
    assert one.failures[0].got.startswith("SchemaMismatch: ")
    written(reviews, replies=replies, expect={"rows": {"done": 1, "failed": 1}})
    assert outcomes(reviews)[0].result == "passed"


def test_rows_that_leave_are_no_results_and_what_was_skipped_is_not_judged(reviews: ProjectFolder) -> None:
    stage = {"name": "classify", "prompt": "${text}", "when": 'id != "r-1"'}
    for otherwise, rows in (("drop", {"done": 1, "dropped": 1}), ("skip", {"done": 1, "skipped": 1})):
        reviews.workflow(stages=[stage | {"otherwise": otherwise}])
        expect = {"rows": rows, "each": ['result == "well"'], "results": rows["done"] + rows.get("skipped", 0)}
        written(reviews, replies=[{"reply": "well"}], expect=expect)
        (one,) = outcomes(reviews)
        assert (one.error, one.failures) == (None, [])


def test_problems_of_files_are_told_at_once_and_nothing_runs(reviews: ProjectFolder) -> None:
    written(reviews, "one", workflow="review", rows="data/nothing.csv", expect={"each": ["classify.x ==", "1 +"]})
    written(reviews, "two", rows=[], expect={"snapshots": True}, reply="x")
    ran = reviews.agac("test", code=2)
    for part in (
        "no workflow 'review'; did you mean 'reviews'?",
        "unknown key; did you mean 'snapshot'?",
        "expect.each[0]",
        "expect.each[1]",
        "is empty; give a value or remove the key",
    ):
        assert part in ran.err, part
    assert "tests/workflows/one.yml:2:11: workflow: no workflow" in ran.err
    (reviews.root / "tests/workflows/one.yml").unlink()
    (reviews.root / "tests/workflows/two.yml").unlink()
    assert "there are no tests" in reviews.agac("test", code=2).err
    written(reviews)
    assert "There are reviews." in reviews.agac("test", "-k", "nope", code=2).err
    assert "no workflow 'nope'" in reviews.agac("test", "-a", "nope", code=2).err
    assert "1 of 1 test passed" in reviews.agac("test", "-a", "reviews", "-k", "rev", code=0).out


def test_a_workflow_that_cannot_run_is_an_error_of_its_test(reviews: ProjectFolder) -> None:
    reviews.workflow(stages=[{"name": "classify", "prompt": "${nothing.at.all}", "needs": "nobody"}])
    written(reviews)
    (one,) = outcomes(reviews)
    assert one.result == "error"
    assert "nobody" in one.error
    assert "error: reviews\n  " in reviews.agac("test", code=3).out


@pytest.mark.parametrize("schema", [{}, {"output_schema": {"sentiment": "string", "reason": "string"}}])
def test_no_program_of_a_stage_is_started(project: ProjectFolder, schema: dict[str, Any]) -> None:
    project.configure()
    project.write("run.sh", f"#!/bin/sh\ntouch {project.root}/started\n").chmod(0o755)
    runtime = {"name": "opencode", "command": "./run.sh", "version": "1.18.33"}
    project.workflow(rows=1, stages=[{"name": "classify", "prompt": "${text}", "runtime": runtime, **schema}])
    written(project, "reviews.simulated")
    written(project, "reviews.answered", replies=[{"reply": GOOD}], expect={"each": ["result != null"], "calls": 2})
    written(project, "reviews.missing", replies=[{"row": "r-1", "reply": GOOD}])
    found = {one.name.partition(".")[2]: one for one in outcomes(project)}
    assert {name: one.result for name, one in found.items()} == {
        "simulated": "passed", "answered": "passed", "missing": "failed",
    }  # fmt: skip
    assert "none of the test's replies is for this call" in found["missing"].failures[0].got
    assert not (project.root / "started").exists()


def test_recorded_replies_that_a_test_does_not_use_are_not_read(reviews: ProjectFolder) -> None:
    written(reviews)
    reviews.write("tests/workflows/recorded/reviews.jsonl", "no recorded call\n")
    (passed,) = outcomes(reviews)
    assert (passed.result, passed.error) == ("passed", None)


def test_a_bug_that_one_test_meets_is_its_result(reviews: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    written(reviews, "reviews.bad", expect={"snapshot": True})
    written(reviews, "reviews.good")

    def of_snapshot(*_: Any) -> Any:
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(workflow_tests, "_snapshot_failures", of_snapshot)
    bad, good = outcomes(reviews)
    assert (bad.result, good.result) == ("error", "passed")
    assert "this is a bug in agac: ZeroDivisionError. The details are in" in bad.error
    assert "of the test" not in bad.error, "what it holds may be anybody's"


def test_good_tests_run_where_the_file_of_another_is_bad(reviews: ProjectFolder, tmp_path: Path) -> None:
    written(reviews, "reviews")
    written(reviews, "bad", workflow="nothing")
    ran = reviews.agac("test", "--junit", str(tmp_path / "tests.xml"), code=2)
    assert "1 of 1 test passed" in ran.out
    assert "tests/workflows/bad.yml:6:11: workflow: no workflow 'nothing'" in ran.err
    suite = ET.parse(tmp_path / "tests.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("2", "1")
    report = agac.run_tests(project=reviews.root)
    assert (report.ok, len(report.problems)) == (False, 1)


def test_the_shipped_tests_pass(tmp_path: Path) -> None:
    tests = agac.run_tests(project=ROOT).tests
    assert {one.name: one.result for one in tests} == dict.fromkeys(
        ("product_reviews", "product_reviews.all", "repo_questions"), "passed"
    )


def test_the_pytest_plugin_runs_workflows_and_loads_agac_when_it_is_used(reviews: ProjectFolder) -> None:
    reviews.write(
        "test_mine.py",
        f"""
import sys

def test_nothing_is_loaded():
    assert not {{"pydantic", "aiohttp", "agac.engine", "sqlite3"}} & set(sys.modules)

def test_reviews(agac_workflow):
    ran = agac_workflow("reviews", rows={ROWS!r}, replies={REPLIES!r})
    assert [row.result["sentiment"] for row in ran.rows] == ["positive", "negative"]
    assert (ran.calls, ran.rows[0].prompts, ran.report.rows.done) == (2, {{"classify": "Review: a good tent"}}, 2)
    assert agac_workflow("reviews", rows={ROWS!r}).rows[1].seen["classify"]["reason"]
""",
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    ran = to_its_end(words, reviews.root)
    assert "2 passed" in ran.out, ran.out + ran.err


def test_conditions_see_the_answer_that_counts(project: ProjectFolder) -> None:
    doubtful = {"when": 'classify.sentiment == "negative"', "model": "simulator/large"}
    stage = {"name": "classify", "prompt": "${text}", "output_schema": {"sentiment": "string", "reason": "string"}}
    project.workflow(stages=[{**stage, "escalate": doubtful}])
    second = {"stage": "classify/escalate", "reply": {**BAD, "reason": "asked again"}}
    each = ["result == classify", 'classify.reason == (id == "r-2" ? "asked again" : "good")']
    written(project, replies=[second, *REPLIES], expect={"rows": {"done": 2}, "each": each})
    (case,) = outcomes(project)
    assert case.failures == []
