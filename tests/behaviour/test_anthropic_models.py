"""Anthropic's dialect, from a workflow to its results: the same rows and money, streamed or not, and the same end."""

from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

transports = pytest.mark.parametrize("transport", ["", "?transport=sse"], ids=["body", "sse"])
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "repair": 0}


def serve(project: ProjectFolder, server: Server, query: str = "", **provider: Any) -> None:
    project.configure(server.base_url, dialect="anthropic", **provider)
    agac_yml = project.root / "agac.yml"
    agac_yml.write_text(agac_yml.read_text("utf-8").replace("model: local/small", f"model: local/small{query}"))


def errors(project: ProjectFolder) -> list[tuple[str, str]]:
    return [(line["error"]["type"], line["error"]["message"]) for line in project.envelopes(file="errors.jsonl")]


def test_streamed_or_not_the_results_and_the_money_are_the_same(project: ProjectFolder, server: Server) -> None:
    project.numbered(20)
    project.workflow()
    prices = {"small": {"input": 1.0, "output": 5.0}}
    serve(project, server, prices=prices)
    first = project.run()
    results = project.output()
    assert (first.invocation["rows_done"], first.exit_code) == (20, 0)
    serve(project, server, "?transport=sse", prices=prices)
    again = project.run(fresh=True)
    assert project.output() == results
    assert again.invocation["cost_usd"] == first.invocation["cost_usd"] > 0
    assert server.account()["refused"] == 0


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "none"])
def test_schemas_are_kept_to_however_they_are_told(project: ProjectFolder, server: Server, structured: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "score": {"type": "integer", "minimum": 1, "maximum": 5},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2, "maxItems": 3},
        },
        "required": ["score", "tags"],
    }
    project.numbered(8)
    project.workflow(stages=[{**STAGE, "instructions": "You judge.", "output_schema": schema}])
    serve(project, server, structured=structured)
    assert project.run().invocation["rows_done"] == 8
    assert server.account()["requests"] == 8


BROKEN: dict[str, list[dict[str, Any]]] = {
    "overloaded": [{"kind": "server_error", "status": 529, "retry_after": 0.01, "first": 1}],
    "a rate": [{"kind": "rate_limit", "retry_after": 0.01, "first": 1}],
    "the server's trouble": [{"kind": "server_error", "status": 500, "first": 1}],
    "overloaded amid the answer": [{"kind": "stream_error", "code": "overloaded_error", "first": 1}],
    "trouble amid the answer": [{"kind": "stream_error", "first": 1}],
    "cut at once": [{"kind": "cut", "first": 1}],
    "cut amid the answer": [{"kind": "cut", "after_bytes": 400, "first": 1}],
    "garbage": [{"kind": "invalid_body", "first": 1}],
}


@transports
@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_on_the_way_is_asked_again(
    project: ProjectFolder, faulty: Faulty, transport: str, name: str
) -> None:
    server = faulty(BROKEN[name])
    project.numbered(3)
    project.workflow()
    serve(project, server, transport)
    report = project.run()
    assert (report.invocation["rows_done"], report.exit_code) == (3, 0)
    assert server.account()["requests"] >= 6


@transports
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (
            {"kind": "length"},
            ("Truncated", "the reply was cut at the limit of tokens; raise max_tokens or ask for less"),
        ),
        ({"kind": "filter"}, ("Refused", "the model refused: category general_harms")),
        ({"kind": "refusal", "message": "Not this."}, ("Refused", "the model refused: Not this.")),
        ({"kind": "empty"}, ("EmptyResponse", "the reply is empty")),
    ],
)
def test_a_reply_that_is_none_is_never_done(
    project: ProjectFolder,
    faulty: Faulty,
    transport: str,
    fault: dict[str, Any],
    error: tuple[str, str],
) -> None:
    server = faulty([{**fault, "always": True}])
    project.numbered(1)
    project.workflow(stages=[STAGE])
    serve(project, server, transport)
    assert project.run().invocation["rows_failed"] == 1
    assert errors(project) == [error]


@pytest.mark.parametrize("kind", ["malformed_json", "wrong_schema"])
def test_an_unusable_answer_is_asked_for_again(project: ProjectFolder, faulty: Faulty, kind: str) -> None:
    server = faulty([{"kind": kind, "at": [1]}])
    project.numbered(2)
    project.workflow(stages=[{**STAGE, "repair": 2}])
    serve(project, server)
    assert project.run().invocation["rows_done"] == 2
    assert server.account()["refused"] == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "quota"}, "answered 429 (enforced_spend_limit_reached)"),
        ({"kind": "unauthorized"}, "answered 401 (authentication_error)"),
        (
            {"kind": "bad_request", "message": "Your credit balance is too low to access the Anthropic API."},
            "Your credit balance is too low to access the Anthropic API.",
        ),
    ],
)
def test_what_every_row_would_meet_stops_the_run(
    project: ProjectFolder, faulty: Faulty, fault: dict[str, Any], words: str
) -> None:
    server = faulty([{**fault, "always": True}])
    project.numbered(50)
    project.workflow()
    serve(project, server, limits={"concurrency": 2})
    ran = project.agac("run", "-a", "reviews", code=1)
    assert words in " ".join(ran.err.split())
    assert server.account()["requests"] <= 4


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?seed=1", "seed: Anthropic's API has no such parameter"),
        ("?presence_penalty=1", "presence_penalty: Anthropic's API has no such parameter"),
        ("?reasoning=minimal", "reasoning=minimal: local/small has no such effort; its efforts are low, medium, high"),
        ("?reasoning=2048&max_tokens=2000", "reasoning=2048: it is a part of max_tokens, 2000; raise max_tokens above"),
        ("?transport=ws", "transport=ws: local is asked over HTTP alone"),
    ],
)
def test_what_it_has_no_word_for_is_refused_before_anything_is_sent(
    project: ProjectFolder, server: Server, query: str, words: str
) -> None:
    project.numbered(1)
    project.workflow()
    serve(project, server, query)
    ran = project.agac("run", "-a", "reviews", code=2)
    assert words in " ".join(ran.err.split())
    assert server.account()["requests"] == 0


def test_replicas_differ_without_seeds(project: ProjectFolder, server: Server) -> None:
    project.numbered(2)
    project.workflow(stages=[{**STAGE, "replicas": 3}])
    serve(project, server)
    assert project.run().invocation["rows_done"] == 2
    account = server.account()
    assert (account["requests"], account["refused"]) == (6, 0)


def test_the_embedded_simulator_speaks_it_too(project: ProjectFolder) -> None:
    project.configure()
    project.numbered(3)
    project.workflow()
    for query in (
        "",
        "?transport=sse",
        "?reasoning=high&max_tokens=300",
        "?reasoning=2048",
        "?temperature=0.2&top_k=5",
    ):
        report = project.run(model=f"simulator-anthropic/small{query}", fresh=True)
        assert (report.invocation["rows_done"], report.exit_code) == (3, 0)
