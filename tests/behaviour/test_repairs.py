"""Answers of the wrong form: asked again so often and no more, mended where that is wanted, and always on record."""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Step, run_at, scripted
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

import agac
from agac.core.errors import SpecError

GOOD = '{"sentiment":"positive","reason":"it is"}'
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
FREE = {"status": 500, "headers": {"retry-after-ms": "1"}, "body": '{"error": {"message": "out of order"}}'}


def bad(number: int) -> str:
    return json.dumps({"sentiment": f"grade {number}"})


def attempts(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT number, purpose, error_type FROM attempt ORDER BY id")


def hows(project: ProjectFolder) -> list[str]:
    return [how for (how,) in project.query("SELECT how FROM result ORDER BY id")]


@pytest.mark.parametrize("repair", [0, 1, 3])
@pytest.mark.parametrize("kind", ["malformed_json", "wrong_schema"])
def test_an_answer_that_is_always_wrong_is_asked_for_once_and_again_repair_times(
    project: ProjectFolder, faulty: Faulty, kind: str, repair: int
) -> None:
    server = project.asks(faulty([{"kind": kind}]))
    report = project.run(project.workflow(rows=2, stages=[{**STAGE, "repair": repair}]), concurrency=1)
    assert report.exit_code == 3
    assert server.account()["requests"] == 2 * (1 + repair)
    one = [(n, "ask" if n == 1 else "repair", "SchemaMismatch") for n in range(1, repair + 2)]
    assert attempts(project) == one * 2
    assert (report.invocation["calls"], report.invocation["repairs"]) == (2 * (1 + repair), 2 * repair)
    assert {e["error"]["type"] for e in project.envelopes(file="errors.jsonl")} == {"SchemaMismatch"}
    project.assert_sound()


def test_repair_is_once_where_nobody_says_otherwise_and_can_be_set_for_all_stages(project: ProjectFolder) -> None:
    for keys, calls in (({}, 2), ({"defaults": {"repair": 2}}, 3), ({"defaults": {"repair": 0}}, 1)):
        with project.asking(scripted(bad(1))) as server:
            project.numbered(1)
            project.run(project.workflow(stages=[STAGE], **keys), fresh=True)
            assert len(server.asked) == calls


def test_a_re_ask_holds_the_original_the_last_reply_and_its_complaint_however_often(project: ProjectFolder) -> None:
    stage = {**STAGE, "instructions": "Be brief.", "repair": 5, "max_tokens": 77}
    report, (first, *others) = run_at(project, *(bad(n) for n in range(1, 5)), GOOD, stages=[stage])
    assert (report.exit_code, len(others), report.invocation["repairs"]) == (0, 4, 4)
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    for number, body in enumerate(others, 1):
        original, (reply, complaint) = body["messages"][:2], body["messages"][2:]
        assert original == first["messages"]
        assert reply == {"role": "assistant", "content": bad(number)}
        assert complaint["role"] == "user"
        assert f'"grade {number}" is not one of "positive", "neutral", "negative"' in complaint["content"]
        assert '"reason" is a required property' in complaint["content"]
        assert f"grade {number - 1}" not in json.dumps(body)
        assert {key: value for key, value in body.items() if key != "messages"} == {
            key: value for key, value in first.items() if key != "messages"
        }
    assert hows(project) == ["repair"]
    (stage,) = report.summary["stages"]
    assert (stage["done"], stage["repaired"], stage["json_repaired"], stage["by_fallback"]) == (1, 1, 0, 0)


def test_every_question_of_a_task_is_tried_again_on_its_own_account(project: ProjectFolder) -> None:
    """Five server errors and twenty refusals by rate before each wrong reply: the hard cap, reached exactly."""
    question = [*[Step(**FREE)] * 5, *[Step(status=429, headers={"retry-after-ms": "1"}, body="{}")] * 20]
    steps = [*question, bad(1), *question, bad(2), *question, bad(3), Step(status=400, body="{}")]
    report, asked = run_at(project, *steps, stages=[{**STAGE, "repair": 2}])
    assert (report.exit_code, len(asked)) == (3, 3 * 26)
    assert [number for number, *_ in attempts(project)] == list(range(1, 79))
    assert project.envelopes()[0]["error"]["type"] == "SchemaMismatch"
    project.assert_sound()


def test_no_task_is_sent_more_often_than_its_cap(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agac.engine.ask.caller.max_calls", lambda *_: 4)
    report, asked = run_at(project, Step(**FREE), rows=2, stages=[STAGE])
    assert (report.exit_code, len(asked)) == (3, 2 * 4)
    assert project.query("SELECT count(*) FROM attempt") == [(8,)]
    error = project.envelopes()[0]["error"]
    assert (error["type"], "4 times" in error["message"]) == ("ProviderError", True)
    project.assert_sound()


SLIP = "{'sentiment': 'positive', 'reason': 'it is',}"
ENDS: dict[str, tuple[list[str | Step], dict[str, Any], list[str], str | None]] = {
    "a re-ask that is refused ends the repairs": (
        [bad(1), Step("I would rather not.", finish="refusal")], {"repair": 5}, [], "Refused",
    ),
    "what is not to be mended is asked again": ([SLIP, GOOD], {}, ["repair"], None),
    "what cannot be mended is asked again and may be mended then": (
        ["I think it is positive.", SLIP], {"json_repair": True}, ["repair,json_repair"], None,
    ),
    "a reply that was cut is never mended": (
        [Step(GOOD[:-1], finish="length")], {"json_repair": True}, [], "Truncated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_what_an_answer_of_the_wrong_form_comes_to(project: ProjectFolder, case: str) -> None:
    steps, keys, how, error = ENDS[case]
    report, asked = run_at(project, *steps, stages=[{**STAGE, **keys}])
    assert (report.exit_code, len(asked)) == (3 if error else 0, len(steps))
    assert hows(project) == how
    assert (project.envelopes()[0]["error"] or {}).get("type") == error


JSON = {"name": "classify", "prompt": "JSON of ${text}", "reply": "json"}


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": [1, null]}', {"a": [1, None]}), ("```json\n[1]\n```", [1]), ("3", 3), ('"x"', "x"), ("null", None)],
)
def test_a_reply_that_has_to_be_json_is_its_value(project: ProjectFolder, text: str, value: Any) -> None:
    _, [body] = run_at(project, text, stages=[JSON])
    assert "response_format" not in body
    [envelope] = project.envelopes()
    assert (envelope["ok"], envelope["result"]) == (True, value)
    _, asked = run_at(project, text, stages=[{**JSON, "reply": "text"}])
    assert (project.output(), len(asked)) == ([text], 1)
    _, asked = run_at(project, text, stages=[{"name": "classify", "prompt": "JSON of ${text}"}])
    assert (project.output(), len(asked)) == ([text], 0), "text is what a reply is where nobody says otherwise"


def test_a_reply_that_should_be_json_is_asked_again_and_mended_as_one_with_a_schema_is(project: ProjectFolder) -> None:
    steps, stage = ["It is good.", '{"a": NaN}', '{"a": 1}'], {**JSON, "repair": 2}
    report, asked = run_at(project, *steps, stages=[stage])
    assert (report.exit_code, project.output(), hows(project)) == (0, [{"a": 1}], ["repair"])
    complaint = asked[1]["messages"][-1]["content"]
    assert "the reply is not JSON" in complaint
    assert complaint.endswith("Reply again with the corrected JSON only.")
    found = agac.inspect("last", "r-1", project=project.root).rows
    assert found is not None
    assert found[0]["stages"][0]["attempts"][1]["asked_again_with"] == complaint
    why = agac.why("last", "r-1", "classify", project=project.root).as_json()
    assert why["made_of"]["reply"] == "json"
    _, asked = run_at(project, "{'a': 2,}", stages=[{**stage, "prompt": "Other", "json_repair": True}])
    assert (project.output(), len(asked)) == ([{"a": 2}], 1)
    report, asked = run_at(project, "No.", stages=[{**stage, "prompt": "No"}])
    assert (report.exit_code, len(asked), attempts(project)[-1]) == (3, 3, (3, "repair", "SchemaMismatch"))


def test_json_repair_mends_without_a_call_and_says_so_and_what_it_cannot_mend_fails_its_row(
    project: ProjectFolder,
) -> None:
    broken = ["{" * 3000, "[" * 100_000, '{"sentiment": NaN,}', '{"reason": "\\ud800",}', '{"sentiment": }']
    stage = {**STAGE, "json_repair": True, "repair": 0}
    report, asked = run_at(project, *broken, SLIP, rows=8, stages=[stage], stop_loss=False)
    assert (report.exit_code, len(asked)) == (3, 8)
    assert project.output() == [json.loads(GOOD)] * 3
    assert hows(project) == ["json_repair"] * 3
    assert attempts(project) == [(1, "ask", "SchemaMismatch")] * 5 + [(1, "ask", None)] * 3
    (stage,) = report.summary["stages"]
    assert (stage["done"], stage["json_repaired"], stage["repaired"], stage["failed"]) == (3, 3, 0, 5)
    project.assert_sound()


def test_an_integer_that_the_model_writes_with_a_point_is_one_to_guards_checks_and_outputs(
    project: ProjectFolder,
) -> None:
    counts = {
        "name": "count",
        "prompt": "Count ${text}",
        "output_schema": {"n": "integer"},
        "checks": {"count.n + 1 == 3": "say two"},
    }
    even = {"name": "even", "prompt": "${count.n} is even", "when": "count.n % 2 == 0", "model": "local/echo"}
    keys = {"stages": [counts, even], "output": {"stages": ["count", "even"]}}
    report, asked = run_at(project, '{"n": 2.0}', "fine", **keys)
    assert (report.exit_code, len(asked)) == (0, 2)
    assert json.dumps(project.output()) == '[{"count": {"n": 2}, "even": "fine"}]'
    assert asked[1]["messages"][-1]["content"] == "2 is even"


def test_json_repair_without_its_library_is_said_before_any_call(
    project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "json_repair", None)
    project.workflow(rows=1, stages=[{**STAGE, "json_repair": True}])
    with pytest.raises(SpecError) as raised:
        project.run()
    (problem,) = raised.value.problems
    assert problem.path == "stages[0].json_repair"
    assert problem.where.line is not None
    assert ", which is not installed: pip install 'json-repair>=0." in problem.message
    assert server.account()["requests"] == 0


def test_a_library_that_is_too_old_is_said_before_any_call(
    project: ProjectFolder, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "old/json_repair-0.30.dist-info").mkdir(parents=True)
    (tmp_path / "old/json_repair-0.30.dist-info/METADATA").write_text("Name: json-repair\nVersion: 0.30\n", "utf-8")
    (tmp_path / "old/json_repair.py").write_text("def loads(json_str): ...\n", encoding="utf-8")
    project.workflow(rows=1, stages=[{**STAGE, "json_repair": True}])
    for command in ("run", "validate"):
        ended = project.fresh_agac(command, "-a", "reviews", env={"PYTHONPATH": str(tmp_path / "old")})
        assert ended.code == 2
        assert ", and 0.30 is installed: pip install 'json-repair>=0." in ended.err + ended.out
    assert server.account()["requests"] == 0


def test_keep_replies_failed_keeps_what_may_have_to_be_looked_at(project: ProjectFolder) -> None:
    for keep, kept in (("all", 5), ("failed", 3)):
        with project.asking(
            scripted(GOOD, bad(1), GOOD, SLIP, Step(status=400, body='{"error": {"message": "no"}}'))
        ) as server:
            project.workflow(rows=4, stages=[{**STAGE, "json_repair": True}], keep_replies=keep)
            project.run(concurrency=1, fresh=True)
            assert len(server.asked) == 5
        rows = project.query("SELECT error_type, reply FROM attempt ORDER BY id DESC LIMIT 5")[::-1]
        assert [error for error, _ in rows] == [None, "SchemaMismatch", None, None, "ProviderError"]
        assert sum(reply is not None for _, reply in rows) == kept
        if keep == "failed":  # the reply that was refused, the one that was mended, the error
            texts = [text(reply) for _, reply in rows if reply is not None]
            assert "grade 1" in texts[0]
            assert "'sentiment': 'positive'" in texts[1]
            assert "no" in texts[2]


def text(reply: str | bytes) -> str:
    return zlib.decompress(reply).decode() if isinstance(reply, bytes) else reply


def test_what_was_mended_or_repaired_is_reused_like_any_answer(project: ProjectFolder) -> None:
    with project.asking(scripted(SLIP, bad(1), GOOD)) as server:
        project.run(project.workflow(rows=2, stages=[{**STAGE, "json_repair": True}]), concurrency=1)
        assert hows(project) == ["json_repair", "repair"]
        again = project.run(project.workflow(stages=[{**STAGE, "repair": 3}]))
        assert (again.exit_code, again.invocation["calls"], len(server.asked)) == (0, 0, 3)
    (stage,) = again.summary["stages"]
    assert (stage["done"] + stage["reused"], stage["repaired"], stage["json_repaired"]) == (2, 1, 1)
