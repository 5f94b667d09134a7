"""What is an answer and what is not: cut, refused, filtered, empty and misshapen replies are never results."""

import json
import zlib
from typing import Any

import pytest
from scripted_server import run_at, scripted
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty

GOOD = '{"sentiment":"positive","reason":"it is"}'


def attempts(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT number, purpose, status, error_type FROM attempt ORDER BY id")


@pytest.mark.parametrize(
    ("kind", "error"),
    [("length", "Truncated"), ("refusal", "Refused"), ("filter", "Filtered"), ("empty", "EmptyResponse")],
)
def test_a_reply_that_is_no_answer_fails_under_its_own_name_and_is_not_asked_again(
    project: ProjectFolder, faulty: Faulty, kind: str, error: str
) -> None:
    words = {"message": "I would rather not."} if kind == "refusal" else {}
    server = faulty([{"kind": kind, "match": "number 2", **words}])
    project.configure(server.base_url)
    project.numbered(3)
    project.workflow()
    report = project.run()
    assert report.exit_code == 3
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


@pytest.mark.parametrize("kind", ["length", "refusal", "filter", "empty", "wrong_schema", "malformed_json"])
def test_no_bad_reply_is_ever_a_result_of_a_chain(project: ProjectFolder, faulty: Faulty, kind: str) -> None:
    project.configure(faulty([{"kind": kind, "rate": 0.4}], "--seed", "3").base_url)
    project.numbered(40)
    stage = {"prompt": "${text}", "output_schema": SENTIMENT}
    project.workflow(stages=[{"name": "first", **stage}, {"name": "second", **stage, "prompt": "${first.reason}"}])
    for _ in range(3):
        project.run()
    results = [json.loads(value) for (value,) in project.query("SELECT value FROM result")]
    assert results
    assert all(set(r) == {"sentiment", "reason"} for r in results)
    assert all(r["sentiment"] in ("positive", "neutral", "negative") for r in results)
    ok = [e for e in project.envelopes() if e["ok"]]
    assert project.output() == [e["result"] for e in ok]
    project.assert_sound()


def test_an_invalid_answer_is_asked_for_once_more_with_its_errors_quoted(project: ProjectFolder) -> None:
    bad = '{"sentiment":"excellent"}'
    report, (first, second) = run_at(project, bad, GOOD)
    assert (report.exit_code, report.invocation["repairs"]) == (0, 1)
    assert second["messages"][: len(first["messages"])] == first["messages"]
    reply, complaint = second["messages"][len(first["messages"]) :]
    assert reply == {"role": "assistant", "content": bad}
    assert complaint["role"] == "user"
    assert '"excellent" is not one of "positive", "neutral", "negative"' in complaint["content"]
    assert '"reason" is a required property' in complaint["content"]
    assert second["response_format"] == first["response_format"]
    assert project.output() == [json.loads(GOOD)]
    assert attempts(project) == [(1, "ask", 200, "SchemaMismatch"), (2, "repair", 200, None)]


def test_a_repaired_answer_is_stored_under_the_original_question(project: ProjectFolder) -> None:
    with scripted('{"sentiment":"excellent"}', GOOD) as server:
        project.configure(server.base_url)
        project.rows([{"id": "a", "text": "same"}, {"id": "b", "text": "same"}])
        project.workflow()
        project.run()
        assert project.query("SELECT count(DISTINCT fingerprint) FROM attempt") == [(1,)]
        assert project.query("SELECT fingerprint FROM result") == project.query(
            "SELECT DISTINCT fingerprint FROM attempt"
        )
        project.rows([{"id": name, "text": "same"} for name in "abc"])
        project.run()
        assert len(server.asked) == 2
    assert [e["ok"] for e in project.envelopes()] == [True] * 3
    assert project.query("SELECT model FROM endpoint WHERE id = (SELECT endpoint_id FROM result)") == [("small-2",)]


def test_an_answer_that_stays_invalid_fails_and_both_replies_are_kept(project: ProjectFolder) -> None:
    replies = ('{"sentiment":"excellent","reason":"x"}', '{"sentiment":"splendid","reason":"y"}')
    report, asked = run_at(project, *replies)
    assert (report.exit_code, len(asked)) == (3, 2)
    (envelope,) = project.envelopes(file="errors.jsonl")
    assert envelope["error"]["type"] == "SchemaMismatch"
    assert "splendid" in envelope["error"]["message"]
    kept = [reply for (reply,) in project.query("SELECT reply FROM attempt ORDER BY id")]
    assert "excellent" in kept[0]
    assert "splendid" in kept[1]
    assert attempts(project) == [(1, "ask", 200, "SchemaMismatch"), (2, "repair", 200, "SchemaMismatch")]


def test_a_long_reply_is_kept_deflated(project: ProjectFolder) -> None:
    run_at(project, json.dumps({"sentiment": "positive", "reason": "very " * 2000}))
    ((reply,),) = project.query("SELECT reply FROM attempt")
    assert len(reply) < 1000
    assert "very very" in json.loads(zlib.decompress(reply))["choices"][0]["message"]["content"]


def test_bare_and_fenced_json_is_an_answer(project: ProjectFolder) -> None:
    texts = [GOOD, f"\n  {GOOD}\n", f"```json\n{GOOD}\n```", f"```\n{GOOD}\n```\n", f"```JSON\r\n{GOOD}\r\n```"]
    report, asked = run_at(project, *texts, rows=len(texts))
    assert (report.exit_code, len(asked)) == (0, len(texts))
    assert project.output() == [json.loads(GOOD)] * len(texts)


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


def test_a_plain_text_answer_is_kept_as_it_is(project: ProjectFolder) -> None:
    text = '  He said "$5 for ${x}"\u2028\n\ttab \u0000 nul, ünïcode 🎉  '
    assert run_at(project, text, stages=[{"name": "say", "prompt": "${text}"}])[0].exit_code == 0
    assert project.output() == [text]


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


def test_an_answer_is_held_to_the_whole_schema(project: ProjectFolder) -> None:
    schema = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 2},
            "day": {"type": "string", "format": "date"},
        },
        "required": ["tags", "day"],
    }
    stage = {"name": "tag", "prompt": "${text}", "output_schema": schema}
    run_at(project, '{"tags":["ok","NO","x"],"day":"2026-02-30"}', stages=[stage])
    message = project.envelopes()[0]["error"]["message"]
    for word in ("tags[1]", '"NO" does not match', "has more than 2 items", "day", "2026-02-30"):
        assert word in message
