"""What is the same, and what is asked again."""

import json
from typing import Any

from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

ECHO = {"model": "local/echo"}
DRAFT = {"name": "draft", "prompt": "Draft: ${text}"}
POLISH = {"name": "polish", "prompt": "Polish: ${draft}"}


def rows(*numbers: int, **columns: str) -> list[dict[str, str]]:
    return [{"id": f"r-{n}", "text": f"text {n}", **columns} for n in numbers]


def echo(project: ProjectFolder, **keys: Any) -> str:
    """A workflow whose results are its prompts."""
    return project.workflow(defaults=ECHO, stages=keys.pop("stages", [DRAFT]), **keys)


def ids(project: ProjectFolder) -> list[Any]:
    return [envelope["id"] for envelope in project.envelopes()]


def asked(project: ProjectFolder, server: Server, **options: Any) -> int:
    """Runs, checks that nothing is left undone, and gives the number of calls."""
    server.reset()
    report = project.run(**options)
    assert report.exit_code == 0
    project.assert_sound()
    requests: int = server.account()["requests"]
    assert report.invocation["calls"] == requests
    return requests


def test_an_edited_prompt_makes_a_new_run_and_one_edited_back_goes_on_with_its_first_for_nothing(
    project: ProjectFolder, server: Server
) -> None:
    echo(project, rows=rows(1, 2, 3), stages=[DRAFT, POLISH])
    assert asked(project, server) == 6
    first = (project.root / "output/reviews/results.jsonl").read_bytes()
    echo(project, stages=[DRAFT, {**POLISH, "prompt": "Polish well: ${draft}"}])
    server.reset()
    report = project.run()
    assert report.summary["run"] == 2
    assert server.account()["requests"] == 3
    assert [(s["done"], s["reused"]) for s in report.summary["stages"]] == [(0, 3), (3, 0)]
    assert project.output() == [f"Polish well: Draft: text {n}" for n in (1, 2, 3)]
    project.assert_sound()
    echo(project, stages=[DRAFT, POLISH])
    assert asked(project, server) == 0
    assert project.run().summary["run"] == 1
    assert (project.root / "output/reviews/results.jsonl").read_bytes() == first


def test_the_same_workflow_goes_on_with_its_run_whatever_its_rows_are(project: ProjectFolder, server: Server) -> None:
    echo(project, rows=rows(1, 2, 3, 4), input={"allow_empty": True})
    assert not project.run().invocation["continued"]
    again = project.run()
    assert (again.invocation["continued"], again.summary["run"], server.account()["requests"]) == (True, 1, 4)
    for some, calls in ((rows(1, 3, 4), 0), (rows(1, 2, 3, 4), 0), ([*rows(1, 2), {"id": "r-3", "text": "new"}], 1)):
        project.rows(some)
        assert asked(project, server) == calls
        assert project.run().summary["run"] == 1
        assert ids(project) == [row["id"] for row in some]
        assert project.output() == [f"Draft: {row['text']}" for row in some]
    project.write("data/rows.csv", "id,text\n")
    assert asked(project, server) == 0
    assert project.envelopes() == project.output() == []


def test_a_selection_is_a_run_of_its_own_whose_answers_the_full_run_reuses(
    project: ProjectFolder, server: Server
) -> None:
    echo(project, rows=rows(*range(1, 11)))
    assert asked(project, server, limit=3) == 3
    assert not (project.root / "output/reviews/results.jsonl").exists()
    assert len(project.envelopes("reviews/preview")) == 3
    assert asked(project, server, limit=3, offset=2) == 2
    assert [e["row_number"] for e in project.envelopes("reviews/preview")] == [3, 4, 5]
    assert asked(project, server) == 5
    assert len(project.envelopes()) == 10
    assert asked(project, server, limit=3) == 0
    numbers = [project.run(**options).summary["run"] for options in ({"limit": 3}, {"limit": 3, "offset": 2}, {})]
    assert numbers == [1, 2, 3]


def test_the_same_prompt_is_asked_once_and_reused(project: ProjectFolder, server: Server) -> None:
    echo(project, rows=[{"id": f"r-{n}", "text": "same"} for n in range(600)], stages=[DRAFT, POLISH])
    report = project.run()
    assert server.account()["requests"] == 2
    assert [(s["done"], s["reused"]) for s in report.summary["stages"]] == [(1, 599)] * 2
    assert project.output() == ["Polish: Draft: same"] * 600
    assert asked(project, server) == 0
    texts = [f"text {n % 300}" for n in range(900)]  # equal ones are in other chunks
    echo(project, rows=[{"id": f"r-{n}", "text": text} for n, text in enumerate(texts)])
    said = project.agac("run", "-a", "reviews", code=0)
    assert "Deduplicated: 600 tasks had the same prompt as another task" in said.out
    assert server.account()["requests"] == 300
    assert project.output() == [f"Draft: {text}" for text in texts]


def test_equal_prompts_share_the_failure_of_the_first(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "refusal", "match": "bad"}]))
    echo(project, rows=[{"id": f"r-{n}", "text": "bad" if n % 2 else f"good {n}"} for n in range(400)])
    assert project.run().exit_code == 3
    assert server.account()["requests"] == 201
    failed = project.envelopes(file="errors.jsonl")
    assert {(e["error"]["type"], e["input"]["text"]) for e in failed} == {("Refused", "bad")}
    assert len(failed) == 200
    project.assert_sound()
    project.run()
    assert server.account()["requests"] == 202
    project.assert_sound()


def test_what_is_left_is_asked_again_when_its_prompt_changes(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "refusal", "match": "bad"}]))
    echo(project, rows=[{"id": "1", "text": "bad", "note": "a"}])
    for _ in range(4):
        project.run()
    assert server.account()["requests"] == 3
    project.rows([{"id": "1", "text": "bad", "note": "b"}])
    project.run()
    assert server.account()["requests"] == 3, "a cell that the prompt does not show changes nothing"
    project.rows([{"id": "1", "text": "very bad", "note": "b"}])
    for _ in range(5):
        project.run()
    assert server.account()["requests"] == 6
    project.rows([{"id": "1", "text": "good", "note": "b"}])
    assert project.run().exit_code == 0
    project.assert_sound()


def test_what_is_left_is_reported_until_fresh_asks_for_it_also_when_its_row_was_away(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "refusal", "match": "text 2"}]))
    echo(project, rows=rows(1, 2, 3))
    for _ in range(3):
        project.run()
    server.reset()
    project.rows(rows(1, 3))
    assert project.run().exit_code == 0
    project.rows(rows(1, 2, 3))
    said = project.agac("run", "-a", "reviews", code=3)
    assert server.account()["requests"] == 0
    assert "1 row failed too often and is not retried automatically" in said.out
    assert "agac retry 1" in said.out
    assert "; force a retry with: agac retry 1\n" in project.agac("status").out
    assert project.envelopes(file="errors.jsonl")[0]["error"]["type"] == "Refused"
    project.assert_sound()
    project.run(fresh=True)
    assert server.account()["requests"] == 3


def test_a_failure_that_is_not_the_answers_is_tried_by_every_run_until_it_passes(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "bad_request", "match": "number 2", "first": 5}]))
    project.workflow(rows=3)
    for calls in (3, 4, 5, 6, 7):
        report = project.run()
        assert report.exit_code == 3
        assert report.summary["errors"][0]["type"] == "ProviderError"
        assert server.account()["requests"] == calls
        project.assert_sound()
    assert [project.run().exit_code for _ in range(2)] == [0, 0]
    assert server.account()["requests"] == 8
    assert all(e["ok"] for e in project.envelopes())
    assert project.envelopes(file="errors.jsonl") == []
    project.assert_sound()


def test_vars_and_models_make_another_run(project: ProjectFolder, server: Server) -> None:
    project.rows(rows(1, 2))
    echo(project, vars={"tone": "warm"}, stages=[{"name": "draft", "prompt": "${text}, ${vars.tone}"}])
    warm, cold, small, large = {"vars": {"tone": "warm"}}, {"vars": {"tone": "cold"}}, "local/small", "local/echo"
    choices: list[dict[str, Any]] = [{}, cold, {"model": small}, warm, {"model": large}, cold]
    assert [project.run(**options).summary["run"] for options in choices] == [1, 2, 3, 1, 1, 2]
    assert server.account()["requests"] == 6
    assert project.output() == ["text 1, cold", "text 2, cold"]


FULL: dict[str, Any] = {
    "name": "classify",
    "instructions": "Be strict.",
    "prompt": "Review: ${text}",
    "output_schema": SENTIMENT,
    "temperature": 0.5,
    "max_tokens": 300,
}


def replaced(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**FULL, **changes}.items() if value is not None}


IN_THE_FINGERPRINT = {
    "instructions": replaced(instructions="Be lenient."),
    "no instructions": replaced(instructions=None),
    "prompt": replaced(prompt="Opinion: ${text}"),
    "schema": replaced(output_schema={**SENTIMENT, "reason": "string?"}),
    "no schema": replaced(output_schema=None),
    "temperature": replaced(temperature=0.6),
    "no temperature": replaced(temperature=None),
    "max_tokens": replaced(max_tokens=301),
    "model": replaced(model="local/large"),
    "parameter of the model": replaced(model="local/small?seed=7"),
    "provider": replaced(model="other/small"),
}


NOT_IN_THE_FINGERPRINT = {
    "name of the stage": replaced(name="judge"),
    "timeout": replaced(timeout={"connect": 5, "total": 50}),
    "concurrency": replaced(concurrency=1),
    "run mode": replaced(run_mode="sync"),
    "place of the text": replaced(prompt="prompts/ask.md", instructions="prompts/strict.md"),
    "form of the model": replaced(model="local.small", temperature=0.5),
    "form of a parameter": replaced(model="local/small?temperature=0.5", temperature=None),
    "form of the schema": replaced(output_schema="schemas/sentiment.json"),
}
SAID_OF_THE_WORKFLOW: list[dict[str, Any]] = [
    {"description": "Something else."}, {"output": {"dir": "output/other"}}, {"output": {"include_input": True}},
]  # fmt: skip
SAID_OF_THE_PROVIDER: list[dict[str, Any]] = [
    {"prices": {"small": {"input": 1.0, "output": 2.0}}}, {"limits": {"concurrency": 3, "rpm": 100_000}},
    {"structured": "json_object"}, {"headers": {"x-team": "data"}}, {"api_key": "${NO_KEY}"},
]  # fmt: skip


def test_what_decides_an_answer_asks_again_and_nothing_else_does(project: ProjectFolder, server: Server) -> None:
    """Of what asks nothing, only another name, of the stage or of its schema, makes another run."""
    project.write("agac.yml", two_providers(server.base_url))
    project.rows(rows(1, 2))
    project.write("prompts/ask.md", "Review: ${text}")
    project.write("prompts/strict.md", "Be strict.")
    project.write(".env", "NO_KEY=a-key-of-nobody\n")
    project.workflow(stages=[FULL])
    assert asked(project, server) == 2
    body = json.loads(project.query("SELECT body FROM definition")[0][0])["stages"][0]["schema"]["body"]
    project.write("schemas/sentiment.json", json.dumps(body, indent=4, sort_keys=True))
    for change, stage in IN_THE_FINGERPRINT.items():
        project.workflow(stages=[stage])
        assert (change, asked(project, server)) == (change, 2)
    for change, stage in NOT_IN_THE_FINGERPRINT.items():
        project.workflow(stages=[stage])
        assert (change, asked(project, server)) == (change, 0)
        renamed = change in ("name of the stage", "form of the schema")
        assert (project.run().summary["run"] != 1) == renamed, change
    project.workflow(stages=[FULL])
    for options in ({"concurrency": 1}, {"output": "output/elsewhere"}):
        assert (asked(project, server, **options), project.run(**options).summary["run"]) == (0, 1)
    here, there = (project.root / "output" / name / "results.jsonl" for name in ("reviews", "elsewhere"))
    assert here.read_bytes() == there.read_bytes()
    for keys in SAID_OF_THE_WORKFLOW:
        project.workflow(stages=[FULL], **keys)
        assert (asked(project, server), project.run().summary["run"]) == (0, 1), keys
    for provider in SAID_OF_THE_PROVIDER:
        project.configure(server.base_url.replace("127.0.0.1", "localhost"), **provider)
        assert (asked(project, server), project.run().summary["run"]) == (0, 1), provider


def two_providers(address: str) -> str:
    row = f"{{dialect: openai-chat, base_url: '{address}', structured: json_schema}}"
    return f"providers:\n  local: {row}\n  other: {row}\ndefaults: {{model: local/small}}\n"
