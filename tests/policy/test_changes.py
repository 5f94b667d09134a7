"""What differs between two definitions, in a reviewer's words: new names, other forms of answers, who reads them."""

from typing import Any

from agac.plan.changes import Change, changes_of

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string", "enum": ["good", "bad"]}, "score": {"type": "integer"}},
    "required": ["mood", "score"],
}


def stage(name: str, needs: Any = None, prompt: str = "${text}", **keys: Any) -> dict[str, Any]:
    body = {
        "name": name,
        "needs": needs,
        "system": None,
        "prompt": prompt,
        "schema": None,
        "model": "x/y",
        "params": {},
    }
    return body | keys


def definition(*stages: dict[str, Any], **keys: Any) -> dict[str, Any]:
    source = {"path": "a.csv", "format": "csv", "id_field": "id", "on_duplicate_id": "error"}
    return {"workflow": "w", "input": source, "vars": {}, "stages": list(stages), **keys}


JUDGE = stage("judge", schema={"name": "judge", "body": SCHEMA})
REPLY = stage(
    "reply", "judge", "Be ${judge.mood}, judge: ${text} ${judge}",
    when="judge.score > 2 && text != 'judge' && judges.x", explode="judge.list",
)  # fmt: skip
CLOSE = stage("close", ["judge", "reply"], messages=[{"role": "user", "content": "${reply} of ${judge.score}"}])


def texts(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [one.text for one in changes_of(before, after)]


def test_a_stage_with_another_name_is_found_again() -> None:
    rate = stage("rate", schema={"name": "rate", "body": SCHEMA})
    reply = stage(
        "reply", "rate", "Be ${rate.mood}, judge: ${text} ${rate}",
        when="rate.score > 2 && text != 'judge' && judges.x", explode="rate.list",
    )  # fmt: skip
    close = stage("close", ["rate", "reply"], messages=[{"role": "user", "content": "${reply} of ${rate.score}"}])
    assert texts(definition(JUDGE, REPLY, CLOSE), definition(rate, reply, close)) == ["stage judge is now rate"]
    after = definition(rate, {**reply, "name": "answer"}, {**close, "needs": ["rate", "answer"]})
    assert texts(definition(JUDGE, REPLY, CLOSE), after) == [
        "stage judge is now rate", "stage reply is now answer", "messages of close"
    ]  # fmt: skip
    before, after = (
        definition(JUDGE, REPLY, results=["judge", "reply"]),
        definition(rate, reply, results=["rate", "reply"]),
    )
    assert texts(before, after) == ["stage judge is now rate"]
    assert texts(definition(JUDGE), definition({**rate, "prompt": "Other"})) == [
        "stage rate is new",
        "stage judge is gone",
    ]


def test_agents_below_a_stage_with_another_name_go_with_it() -> None:
    child = stage("ask/clerk", prompt="${message}")
    after = stage("inquire", children=[{**child, "name": "inquire/clerk"}])
    assert texts(definition(stage("ask", children=[child])), definition(after)) == ["stage ask is now inquire"]


def of_schema(**properties: Any) -> Change:
    now = {**SCHEMA, "properties": properties, "required": [name for name in properties if name != "maybe"]}
    judge = {**JUDGE, "schema": {"name": "judge", "body": now}}
    found = changes_of(definition(JUDGE, REPLY, CLOSE), definition(judge, REPLY, CLOSE))
    (change,) = (one for one in found if one.stage == "judge")
    assert change.text == "schema of judge"
    return change


def test_who_reads_what_an_answer_no_longer_holds_is_named() -> None:
    mood, score = SCHEMA["properties"].values()  # type: ignore[attr-defined]
    found = of_schema(score=score)
    assert (found.fields, found.breaks) == (("mood is gone",), ("reply.prompt",))
    found = of_schema(mood=mood, score={"type": "string"}, more={"type": "null"})
    assert found.fields == ("more is new", "score was a whole number, is text")
    assert found.breaks == ("reply.when", "close.messages")
    found = of_schema(mood={"type": "string", "enum": ["good", "so-so"]}, score=score)
    assert (found.fields, found.breaks) == (("mood is no longer bad; may be so-so",), ())


def test_a_schema_that_holds_itself_and_odd_values_are_compared_in_no_time() -> None:
    fields = {f"f{i}": {"$ref": "#/$defs/node"} for i in range(12)} | {"one": {"enum": [[1], {"a": 2}, None, 3]}}
    node = {"type": "object", "properties": fields}
    bodies = [{"$ref": "#/$defs/node", "$defs": {"node": node | {"required": one}}} for one in (["one"], [])]
    (found,) = changes_of(*(definition(stage("judge", schema={"name": "x", "body": body})) for body in bodies))
    assert found.fields[:2] == ("one may be missing", "f0.one may be missing")


def test_a_field_that_may_be_missing_breaks_who_reads_it_and_the_results() -> None:
    judge = {**JUDGE, "schema": {"name": "judge", "body": {**SCHEMA, "required": ["score"]}}}
    (found,) = changes_of(definition(JUDGE), definition(judge))
    assert (found.fields, found.breaks) == (("mood may be missing",), ("output",))
    (found,) = changes_of(definition(judge), definition(JUDGE))
    assert (found.fields, found.breaks) == ((), ())


def test_an_answer_of_another_form_is_told_whatever_made_it_so() -> None:
    before = definition(stage("judge"), stage("reply", "judge", "${judge}"))
    after = definition(stage("judge", replicas=3), stage("reply", "judge", "${judge}"))
    of_judge = [one for one in changes_of(before, after) if one.fields]
    assert [(one.what, one.fields, one.breaks) for one in of_judge] == [
        ("answers", ("the answer was text, is a list",), ("reply.prompt",))
    ]
