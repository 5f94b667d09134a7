"""Replies that no model should give: each fails its own row at most, is stored, and stops nothing."""

import json
from typing import Any

import pytest
from scripted_server import Step, scripted
from support.project import ProjectFolder

ANSWER = {"sentiment": "positive", "reason": "r"}
LONE = "\ud83d"


def reply(content: str | None, **more: Any) -> Step:
    message = {"role": "assistant", "content": content, "refusal": more.get("refusal")}
    choice = {"index": 0, "finish_reason": more.get("finish", "stop"), "message": message}
    usage = {"prompt_tokens": more.get("tokens", 10), "completion_tokens": 5, "total_tokens": 15}
    wire = {"id": "x", "model": more.get("model", "small"), "choices": [choice], "usage": usage}
    return Step(body=json.dumps({key: value for key, value in wire.items() if key not in more.get("without", ())}))


CASES: dict[str, tuple[Step, str | None]] = {
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


@pytest.mark.parametrize("case", CASES)
def test_an_odd_reply_is_stored_and_fails_at_most_its_row(project: ProjectFolder, case: str) -> None:
    answer, error = CASES[case]
    project.workflow(rows=1)
    with project.asking(scripted(answer)) as server:
        report = project.run()
        assert report.exit_code == (3 if error else 0)
        assert [e["type"] for e in report.summary["errors"]] == ([error] if error else [])
        assert project.query("SELECT count(*) FROM attempt") == [(len(server.asked),)]
        project.assert_sound()


def test_a_number_beyond_floats_is_judged_exactly(project: ProjectFolder) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.01}}, "required": ["n"]}
    project.workflow(rows=1, stages=[{"name": "count", "prompt": "${text}", "output_schema": schema}])
    with project.asking(scripted(reply('{"n": 1' + "0" * 400 + "}"))):
        report = project.run()
    assert report.summary["errors"] == []
    assert project.query("SELECT count(*) FROM attempt") == [(1,)]
    assert [one["result"] for one in project.envelopes()] == [{"n": 10**400}]


def test_a_billed_reply_without_usage_is_unpriced_and_not_free(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    with project.asking(
        scripted(reply('{"sentiment": "odd"}', without=["usage"])), prices={"small": {"input": 1.0, "output": 2.0}}
    ):
        report = project.run()
    calls = report.summary["calls"]
    assert (calls["count"], calls["cost_usd"], calls["calls_without_price"]) == (2, None, 2)
    assert report.invocation["cost_usd"] is None
