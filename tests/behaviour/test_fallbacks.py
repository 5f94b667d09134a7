"""The models after the first: when they are asked, with what, how often, and what is remembered of it."""

import json
from typing import Any

import pytest
import yaml
from scripted_server import Step, scripted
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.soak import few

import agac

GOOD = '{"sentiment":"positive","reason":"it is"}'
BAD = '{"sentiment":"excellent","reason":"r"}'
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
LATER = {"retry-after-ms": "1"}
REFUSED = Step(status=429, headers=LATER, body='{"error": {"message": "too fast"}}')
BROKEN = Step(status=500, headers=LATER, body='{"error": {"message": "out of order"}}')


def providers(project: ProjectFolder, **addresses: str) -> None:
    """Each name a provider of its own."""
    row = {"dialect": "openai-chat", "structured": "json_schema"}
    table = {name: {**row, "base_url": address} for name, address in addresses.items()}
    project.write("agac.yml", yaml.safe_dump({"providers": table}))


def run_two(
    project: ProjectFolder, *steps: str | Step, rows: int = 1, **stage: Any
) -> tuple[agac.RunReport, list[dict[str, Any]]]:
    """Runs the stage with a second model, both at a server that gives these steps to one call after the other: the
    report, and the bodies of the requests."""
    with scripted(*steps) as server:
        providers(project, one=server.base_url, two=server.base_url)
        project.numbered(rows)
        project.workflow(stages=[{**STAGE, "model": ["one/a", "two/b"], **stage}])
        return project.run(concurrency=1), server.asked


def models(asked: list[dict[str, Any]]) -> str:
    """The letters of the models that were asked."""
    return "".join(body["model"] for body in asked)


def attempts(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query(
        "SELECT a.number, a.purpose, e.provider || '/' || e.model, a.error_type FROM attempt a "
        "JOIN endpoint e ON e.id = a.endpoint_id ORDER BY a.id"
    )


ALWAYS = [
    # what every model answers, calls to each without re-asks, whether re-asks come on top, the row's error
    (REFUSED, 21, False, "RateLimited"),
    (BROKEN, 6, False, "ProviderError"),
    (Step(BAD), 1, True, "SchemaMismatch"),
    (Step("It is positive."), 1, True, "SchemaMismatch"),
    (Step("I would rather not.", finish="refusal"), 1, False, "Refused"),
    (Step(GOOD, finish="length"), 1, False, "Truncated"),
    (Step("", finish="content_filter"), 1, False, "Filtered"),
    (Step(""), 1, False, "EmptyResponse"),
    (Step(status=400, body='{"error": {"code": "context_length_exceeded"}}'), 1, False, "ProviderError"),
]


@pytest.mark.parametrize("fallbacks", [0, 2])
@pytest.mark.parametrize("repair", few([0, 1, 3], 2))
@pytest.mark.parametrize(("step", "calls", "repaired", "error"), ALWAYS)
def test_what_always_fails_is_asked_so_often_of_each_model(
    project: ProjectFolder, step: Step, calls: int, repaired: bool, error: str, repair: int, fallbacks: int
) -> None:
    each = calls + (repair if repaired else 0)
    with scripted(step) as server:
        names = ["one", "two", "three"][: 1 + fallbacks]
        providers(project, **dict.fromkeys(names, server.base_url))
        project.numbered(1)
        models = [f"{name}/m-{name}" for name in names]
        project.workflow(stages=[{**STAGE, "model": models, "repair": repair}])
        report = project.run()
        asked = [body["model"] for body in server.asked]
    assert report.exit_code == 3
    assert asked == [f"m-{name}" for name in names for _ in range(each)]
    assert [number for number, *_ in attempts(project)] == list(range(1, each * len(names) + 1))
    assert {e for *_, e in attempts(project)} == {error}
    assert report.invocation["calls"] == report.summary["calls"]["count"] == each * len(names)
    assert report.invocation["fallbacks"] == fallbacks
    found = project.envelopes()[0]["error"]
    assert found["type"] == error
    before = "; ".join(f"{model}: {error}" for model in models[:-1])
    assert found["message"].endswith(f"(before that, {before})") or not fallbacks
    project.assert_sound()


FIRST_FAILS = [
    ([*[REFUSED] * 21], 21),
    ([*[BROKEN] * 6], 6),
    ([BAD, BAD], 2),
    ([Step("no", finish="refusal")], 1),
    ([BAD, Step("no", finish="refusal")], 2),
    ([Step(GOOD, finish="length")], 1),
    ([Step(status=400, body='{"error": {"code": "content_filter"}}')], 1),
    ([Step(status=429, headers={"retry-after": "86400"}, body="{}")], 1),
]


@pytest.mark.parametrize(("steps", "before"), FIRST_FAILS)
def test_the_next_model_answers_what_the_first_did_not(
    project: ProjectFolder, steps: list[str | Step], before: int
) -> None:
    report, asked = run_two(project, *steps, GOOD, model="one/a", fallback=["two/b", "two/c"])
    assert (report.exit_code, models(asked)) == (0, "a" * before + "b")
    assert project.output() == [json.loads(GOOD)]
    assert attempts(project)[-1] == (before + 1, "fallback", "two/small-2", None)
    assert project.query("SELECT how FROM result") == [("fallback",)]
    (stage,) = report.summary["stages"]
    assert (stage["done"], stage["by_fallback"], stage["model"]) == (1, 1, "one/a")
    assert stage["answered_by"] == ["two/small-2"]
    assert report.invocation["fallbacks"] == 1
    project.assert_sound()


def test_the_fallback_is_asked_the_original_question_with_parameters_of_its_own(project: ProjectFolder) -> None:
    first_model, second_model = "one/a?seed=1&reasoning=low", "two/b?temperature=0.5"
    own = {"model": first_model, "fallback": second_model, "max_tokens": 99, "instructions": "Be brief."}
    _, (first, repair, fallback) = run_two(project, BAD, BAD, GOOD, **own)
    assert len(repair["messages"]) == 4
    assert fallback["messages"] == first["messages"]
    assert fallback["response_format"] == first["response_format"]
    assert (first["seed"], first["reasoning_effort"], first["max_tokens"]) == (1, "low", 99)
    kept = {key: value for key, value in fallback.items() if key not in ("messages", "response_format")}
    assert kept == {"model": "b", "temperature": 0.5, "max_tokens": 99}


def test_a_fallback_is_repaired_too(project: ProjectFolder) -> None:
    report, asked = run_two(project, BAD, BAD, BAD, GOOD)
    assert models(asked) == "aabb"
    assert asked[3]["messages"][: len(asked[0]["messages"])] == asked[0]["messages"]
    assert [purpose for _, purpose, *_ in attempts(project)] == ["ask", "repair", "fallback", "repair"]
    assert project.query("SELECT how FROM result") == [("repair,fallback",)]
    (stage,) = report.summary["stages"]
    assert (stage["repaired"], stage["by_fallback"]) == (1, 1)


def test_each_model_is_sent_the_schema_in_the_way_that_it_knows(project: ProjectFolder) -> None:
    with scripted(BAD, BAD, GOOD) as server:
        row = {"dialect": "openai-chat", "base_url": server.base_url}
        table = {"strong": {**row, "structured": "json_schema"}, "weak": {**row, "structured": "none"}}
        project.write("agac.yml", yaml.safe_dump({"providers": table}))
        project.numbered(1)
        project.workflow(stages=[{**STAGE, "model": ["strong/a", "weak/b"]}])
        assert "1 re-ask, 1 fallback in this invocation" in project.agac("run", "-a", "reviews", code=0).out
        assert "response_format" in server.asked[0]
        assert "response_format" not in server.asked[2]
        assert "sentiment" in server.asked[2]["messages"][0]["content"]


def test_an_answer_of_a_fallback_is_found_again_under_the_first_models_question(project: ProjectFolder) -> None:
    with scripted(Step("no", finish="refusal"), GOOD) as server:
        providers(project, one=server.base_url, two=server.base_url)
        project.numbered(1)
        project.workflow(stages=[{**STAGE, "model": ["one/a", "two/b"]}])
        project.run()
        assert project.query("SELECT count(DISTINCT fingerprint) FROM attempt") == [(1,)]
        stored = project.query("SELECT e.provider FROM result r JOIN endpoint e ON e.id = r.endpoint_id")
        assert stored == [("two",)]
        project.workflow(stages=[{**STAGE, "model": "one/a"}])  # who else may be asked is no part of the question
        report = project.run()
        assert (report.exit_code, report.invocation["calls"], len(server.asked)) == (0, 0, 2)


GONE = '{"error": {"message": "no such model", "code": "model_not_found"}}'


@pytest.mark.parametrize(
    ("steps", "asked", "said"),
    [
        ([Step(status=401, body='{"error": {"message": "not you"}}'), GOOD], "a", "not you"),
        ([Step(status=404, body='{"error": {"message": "not you"}}'), GOOD], "a", "not you"),
        ([Step("no", finish="refusal"), Step(status=404, body=GONE)], "ab", "`b`"),
        ([Step(status=429, headers={"retry-after": "86400"}, body="{}")], "ab", "1,440 minutes"),
    ],
    ids=["a key", "no such thing", "no such fallback", "a wait of hours at the last model"],
)
def test_what_every_call_would_meet_stops_the_run_whoever_else_could_be_asked(
    project: ProjectFolder, steps: list[str | Step], asked: str, said: str
) -> None:
    report, bodies = run_two(project, *steps, rows=5)
    assert (report.exit_code, report.stop, models(bodies)) == (1, "fatal", asked)
    assert said in (report.stopped or "")
    assert report.summary["rows"]["failed"] == 0


def test_a_fallback_on_the_simulator_is_started_and_marked(project: ProjectFolder) -> None:
    with scripted(Step("no", finish="refusal")) as server:
        providers(project, one=server.base_url)
        project.numbered(3)
        project.workflow(stages=[{**STAGE, "model": ["one/a", "simulator/small"]}])
        report = project.run()
        assert len(server.asked) == 3
    assert report.exit_code == 0
    assert report.summary["calls"]["simulated"] == 3
    assert report.summary["stages"][0]["by_fallback"] == 3
    project.assert_sound()


def test_a_missing_key_of_a_fallback_is_said_before_any_call(project: ProjectFolder, server: Server) -> None:
    project.numbered(1)
    project.workflow(stages=[{**STAGE, "fallback": "openai/gpt-5.4-mini"}])
    ended = project.agac("run", "-a", "reviews", code=2)
    assert "OPENAI_API_KEY" in ended.err
    assert "fallback" in ended.err
    assert server.account()["requests"] == 0


def test_two_stages_and_a_fallback_on_one_model_share_its_lane(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "refusal", "match": "Review:"}], "--latency", "0.02")
    calm = faulty([], "--latency", "0.02")
    row = {"dialect": "openai-chat", "structured": "json_schema"}
    table = {
        "one": {**row, "base_url": server.base_url},
        "two": {**row, "base_url": calm.base_url, "limits": {"concurrency": 2}},
    }
    project.write("agac.yml", yaml.safe_dump({"providers": table}))
    project.numbered(12)
    second = {"name": "reply", "prompt": "Answer ${text}: ${classify.reason}", "model": "two/b"}
    project.workflow(stages=[{**STAGE, "model": ["one/a", "two/b"]}, second], stop_loss=False)
    assert project.run(concurrency=12).exit_code == 0
    assert calm.account()["requests"] == 24
    assert calm.account()["max_in_flight"] <= 2
