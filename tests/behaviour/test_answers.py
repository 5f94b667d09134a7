"""What is an answer and what is not: cut, refused, filtered, empty and misshapen replies are never results."""

import json
from typing import Any

import pytest
from scripted_server import Step, run_at, scripted
from support.made import tried
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty

import agac
from agac.core.errors import ExitCode

STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
GOOD = '{"sentiment":"positive","reason":"it is"}'


@pytest.mark.parametrize(
    ("kind", "error"),
    [("length", "Truncated"), ("refusal", "Refused"), ("filter", "Filtered"), ("empty", "EmptyResponse")],
)
def test_a_reply_that_is_no_answer_fails_under_its_own_name_and_is_asked_for_in_two_further_runs_and_then_left(
    project: ProjectFolder, faulty: Faulty, kind: str, error: str
) -> None:
    words = {"message": "I would rather not."} if kind == "refusal" else {}
    server = faulty([{"kind": kind, "match": "number 2", **words}])
    project.configure(server.base_url)
    project.numbered(3)
    project.workflow()
    assert project.run().exit_code == 3
    assert server.account()["requests"] == 3
    assert [e["ok"] for e in project.envelopes()] == [True, False, True]
    failed = project.envelopes()[1]
    assert (failed["error"]["type"], failed["result"]) == (error, None)
    assert failed["error"]["message"]
    assert words.get("message", "") in failed["error"]["message"], "a refusal is quoted"
    assert len(project.output()) == 2
    assert project.query("SELECT count(*) FROM result") == [(2,)]
    kept = project.query("SELECT error_type, reply, output_tokens FROM attempt WHERE error_type IS NOT NULL")
    assert [(e, tokens is not None) for e, _, tokens in kept] == [(error, True)]
    assert "chat.completion" in kept[0][1]
    project.assert_sound()
    assert tried(project, 4) == [(1, 0), (1, 1), (0, 1), (0, 1)]


NO_ANSWERS = [
    (f"Here is the JSON: {GOOD}", "is not JSON"),
    (f"{GOOD}\nI hope that helps.", "is not JSON"),
    (f"```json\n{GOOD}\n```\nI hope that helps.", "is not JSON"),
    (f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```", "is not JSON"),
    (f"{GOOD}{GOOD}", "is not JSON"),
    (GOOD[:-1], "is not JSON"),
    (GOOD.replace('"it is"', "NaN"), "NaN"),
    (GOOD.replace('"it is"', "Infinity"), "Infinity"),
    (GOOD.replace('"it is"', "1e999"), "is not JSON"),
    (GOOD.replace('"it is"', '"\\ud800"'), "surrogate"),
    (GOOD.replace('{"', '{"reason":"other","'), "twice"),
    (GOOD.replace('"it is"', "[" * 100_000), "is not JSON"),
    (GOOD.replace('"it is"', "[" * 500 + "]" * 500), ""),
    (GOOD.replace('"it is"', "9" * 5000), "is not JSON"),
    ("[]", 'is not of type "object"'),
    ("null", 'is not of type "object"'),
    ('"positive"', 'is not of type "object"'),
    ('{"sentiment":"positive"}', '"reason" is a required property'),
    ('{"sentiment":"positive","reason":null}', 'reason: null is not of type "string"'),
    ('{"sentiment":"Positive","reason":""}', '"Positive" is not one of "positive"'),
    (GOOD.replace("}", ',"more":1}'), "more"),
]


def test_what_is_not_of_the_asked_form_is_no_answer(project: ProjectFolder) -> None:
    replies = [text for text, _ in NO_ANSWERS for _ in range(2)]
    report, asked = run_at(project, *replies, rows=len(NO_ANSWERS), stop_loss=False)
    assert (report.exit_code, len(asked)) == (3, len(replies))
    for envelope, (text, said) in zip(project.envelopes(), NO_ANSWERS, strict=True):
        assert envelope["error"]["type"] == "SchemaMismatch", text[:100]
        assert said in envelope["error"]["message"], text[:100]
        assert len(envelope["error"]["message"]) < 2000, text[:100]
    assert project.output() == []
    project.assert_sound()


def test_a_recursive_schema_with_a_deep_answer_does_not_end_the_run(project: ProjectFolder) -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    deep = '{"next":' * 180 + "null" + "}" * 180
    stage = {"name": "nest", "prompt": "${text}", "output_schema": schema}
    report, _ = run_at(project, deep, rows=2, stages=[stage])
    assert report.exit_code in (0, 3)
    assert report.summary["rows"]["open"] == 0
    project.assert_sound()


ANSWER = {"sentiment": "positive", "reason": "r"}
LONE = "\ud83d"


def reply(content: str | None, **more: Any) -> Step:
    message = {"role": "assistant", "content": content, "refusal": more.get("refusal")}
    choice = {"index": 0, "finish_reason": more.get("finish", "stop"), "message": message}
    usage = {"prompt_tokens": more.get("tokens", 10), "completion_tokens": 5, "total_tokens": 15}
    wire = {"id": "x", "model": more.get("model", "small"), "choices": [choice], "usage": usage}
    return Step(body=json.dumps({key: value for key, value in wire.items() if key not in more.get("without", ())}))


ENDINGS: list[tuple[str | None, str | None, str]] = [
    # a word, the error of a row whose answer ends so, and what its message says
    (None, None, ""),
    ("", None, ""),
    ("eos_token", None, ""),
    ("model_length", "Truncated", "cut at the limit of tokens"),
    ("SPII", "Filtered", "filter stopped the reply ('SPII')"),
    ("tired", "ProviderError", "cannot tell whether the reply is whole: it ended with 'tired'"),
    ("insufficient_system_resource", "ProviderError", "broke the answer off: it ended with 'insufficient_system_res"),
]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(("mode", "query"), [("sync", ""), ("sync", "?transport=sse"), ("batch", "")])
@pytest.mark.parametrize(("word", "error", "says"), ENDINGS)
def test_how_an_answer_ended_decides_what_becomes_of_it(
    project: ProjectFolder, faulty: Faulty, word: str | None, error: str | None, says: str, mode: str, query: str
) -> None:
    rules = [{"kind": "ending", "word": word, "match": "number 1"}]
    project.asks(faulty(rules), batch={"api": "openai", "grace": 0.5})
    project.workflow(rows=3, stages=[{**STAGE, "model": f"local/small{query}", "run_mode": mode}], stop_loss=False)
    project.run(wait=mode == "batch")
    rows = project.envelopes()
    assert [one["ok"] for one in rows] == [error is None, True, True]
    if error is not None:
        assert rows[0]["error"]["type"] == error
        assert says in rows[0]["error"]["message"]
    project.assert_sound()


@pytest.mark.parametrize(("mode", "query"), [("sync", ""), ("sync", "?transport=sse"), ("batch", "")])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("form", ["json", "text"])
def test_thinking_in_the_text_of_a_reply_costs_no_further_call_and_is_not_in_the_result(
    project: ProjectFolder, faulty: Faulty, form: str, begun: bool, mode: str, query: str
) -> None:
    server = project.asks(faulty([{"kind": "thinks", "begun": begun}]), batch={"api": "openai", "grace": 0.5})
    schema = {"output_schema": SENTIMENT} if form == "json" else {}
    stage = {"name": "classify", "prompt": "Review: ${text}", "model": f"local/small{query}", "run_mode": mode}
    report = project.run(project.workflow(rows=2, stages=[{**stage, **schema}]), wait=mode == "batch")
    assert report.exit_code == ExitCode.DONE
    account = server.account()
    assert account["charged"] + account["batches"]["charged"] == 2
    for result in project.output():
        assert "think" not in json.dumps(result)
        assert set(result) == {"sentiment", "reason"} if form == "json" else isinstance(result, str)


def test_the_error_for_a_reply_that_is_not_json_shows_how_it_begins(project: ProjectFolder) -> None:
    text = "I would say that it is good. " * 100
    _, asked = run_at(project, text, text, stages=[STAGE])
    message = project.envelopes()[0]["error"]["message"]
    assert "the reply is not JSON" in message
    assert f"(it begins with {text[:80]!r})" in message
    assert text[:100] not in message
    assert f"it begins with {text[:80]!r}" in asked[1]["messages"][-1]["content"]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("mode", ["sync", "batch"])
def test_an_answer_that_a_server_broke_off_is_asked_again(project: ProjectFolder, faulty: Faulty, mode: str) -> None:
    server = project.asks(
        faulty([{"kind": "ending", "word": "abort", "match": "number 2", "first": 1}]), batch={"api": "openai"}
    )
    report = project.run(
        project.workflow(rows=3, stages=[{**STAGE, "run_mode": mode}]), wait=mode == "batch", concurrency=1
    )
    assert (report.exit_code, report.summary["rows"]["done"]) == (ExitCode.DONE, 3)
    account = server.account()
    assert account["charged"] + account["batches"]["charged"] == 4
    [(calls, perhaps)] = project.query("SELECT count(*), sum(ambiguous) FROM attempt")
    assert (calls, perhaps) == (4, 1)


ODD: dict[str, tuple[Step, str | None]] = {
    "a lone surrogate in a refusal": (reply(None, refusal=f"no {LONE}"), "Refused"),
    "a lone surrogate in a refused text": (reply(f"no {LONE}", finish="refusal"), "Refused"),
    "a lone surrogate in the model's name": (reply(json.dumps(ANSWER), model=f"m{LONE}"), None),
    "a lone surrogate in an error": (
        Step(status=400, body=json.dumps({"error": {"message": f"bad {LONE}", "type": "x"}})),
        "ProviderError",
    ),
    "a lone surrogate in a value": (reply(json.dumps({**ANSWER, "reason": LONE})), "SchemaMismatch"),
    "more tokens than a column holds": (reply(json.dumps(ANSWER), tokens=10**20), None),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_reply_is_stored_and_fails_at_most_its_row(project: ProjectFolder, case: str) -> None:
    answer, error = ODD[case]
    report, asked = run_at(project, answer)
    assert report.exit_code == (3 if error else 0)
    assert [e["type"] for e in report.summary["errors"]] == ([error] if error else [])
    assert project.query("SELECT count(*) FROM attempt") == [(len(asked),)]
    project.assert_sound()


def test_a_number_beyond_floats_is_judged_exactly(project: ProjectFolder) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.01}}, "required": ["n"]}
    stage = {"name": "count", "prompt": "${text}", "output_schema": schema}
    report, asked = run_at(project, '{"n": 1' + "0" * 400 + "}", stages=[stage])
    assert (report.summary["errors"], len(asked)) == ([], 1)
    assert [one["result"] for one in project.envelopes()] == [{"n": 10**400}]


def test_a_billed_reply_without_usage_is_unpriced_and_not_free(project: ProjectFolder) -> None:
    prices = {"prices": {"small": {"input": 1.0, "output": 2.0}}}
    report, _ = run_at(project, reply('{"sentiment": "odd"}', without=["usage"]), provider=prices)
    calls = report.summary["calls"]
    assert (calls["count"], calls["cost_usd"], calls["calls_without_price"]) == (2, None, 2)
    assert report.invocation["cost_usd"] is None


DAY = {"type": "string", "format": "date"}
CLOSED = {"type": "object", "additionalProperties": False, "required": ["day"]}


@pytest.mark.parametrize(("schema", "done"), [(DAY, True), ({**DAY, "maxLength": 20}, False)])
def test_what_fails_by_format_alone_stays_done_with_a_note_where_the_provider_enforced_the_schema(
    project: ProjectFolder, schema: dict[str, Any], done: bool
) -> None:
    stage = {"name": "day", "output_schema": {**CLOSED, "properties": {"day": schema}}, "repair": 0}
    project.numbered(1)
    project.workflow(stages=[stage])
    project.write(".env", "OPENAI_API_KEY=sk-test-123\n")
    with scripted('{"day": "31.01.2026"}') as server:
        row = {"openai": {"base_url": server.base_url, "dialect": "openai-chat"}}
        project.write("agac.yml", json.dumps({"providers": row, "defaults": {"model": "openai/gpt-5-mini"}}))
        checked = agac.validate(project=project.root).problems
        for found in (checked, agac.plan("reviews", project=project.root).warnings):
            loose = [one.message for one in found if "is not held to this schema" in one.message]
            assert [one.split(";")[0].split(": ", 1)[1] for one in loose] == (
                [] if done else ["`maxLength` is not known there (at day)"]
            )
        report = project.run()
    [one] = project.envelopes()
    assert (report.exit_code, one["ok"]) == ((0, True) if done else (3, False))
    [summed] = report.summary["stages"]
    assert summed.get("misformatted") == (1 if done else None)
    assert ("with a text that lacks its `format`" in project.agac("inspect", "last", "r-1", code=0).out) is done


def test_stored_results_are_never_judged_again(project: ProjectFolder) -> None:
    model = "from pydantic import BaseModel, field_validator\n\nclass It(BaseModel):\n    a: str\n"
    project.write("models.py", model)
    stages = [{"name": "a", "output_schema": "python:models.It"}]
    report, asked = run_at(project, '{"a": "x"}', rows=3, stages=stages)
    assert (report.exit_code, len(asked)) == (0, 3)
    project.write("models.py", model + '    @field_validator("a")\n    def no(cls, value):\n        raise ValueError\n')
    again = project.run()
    assert (again.exit_code, again.summary["rows"]["done"]) == (0, 3)
