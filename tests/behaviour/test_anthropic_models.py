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


BROKEN: list[dict[str, Any]] = [
    {"kind": "server_error", "status": 529, "retry_after": 0.01},
    {"kind": "rate_limit", "retry_after": 0.01},
    {"kind": "server_error", "status": 500},
    {"kind": "stream_error", "code": "overloaded_error"},
    {"kind": "stream_error"},
    {"kind": "cut"},
    {"kind": "cut", "after_bytes": 400},
    {"kind": "invalid_body"},
]


@transports
def test_what_breaks_on_the_way_is_asked_again(project: ProjectFolder, faulty: Faulty, transport: str) -> None:
    """Once for each row: overloaded, a rate, trouble, the same amid the answer, cut at once or amid it, garbage."""
    server = faulty([{**fault, "match": f"number {n}", "first": 1} for n, fault in enumerate(BROKEN, 1)])
    project.numbered(len(BROKEN))
    project.workflow()
    serve(project, server, transport)
    report = project.run()
    assert (report.invocation["rows_done"], report.exit_code) == (len(BROKEN), 0)
    assert server.account()["requests"] >= 2 * len(BROKEN)


NO_REPLIES: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"kind": "length"}, ("Truncated", "the reply was cut at the limit of tokens; raise max_tokens or ask for less")),
    ({"kind": "filter"}, ("Refused", "the model refused: category general_harms")),
    ({"kind": "refusal", "message": "Not this."}, ("Refused", "the model refused: Not this.")),
    ({"kind": "empty"}, ("EmptyResponse", "the reply is empty")),
]


@transports
def test_a_reply_that_is_none_is_never_done(project: ProjectFolder, faulty: Faulty, transport: str) -> None:
    faults = [{**fault, "match": f"number {n}", "always": True} for n, (fault, _) in enumerate(NO_REPLIES, 1)]
    project.numbered(len(NO_REPLIES))
    project.workflow(stages=[STAGE], stop_loss=False)
    serve(project, faulty(faults), transport)
    assert project.run().invocation["rows_failed"] == len(NO_REPLIES)
    assert errors(project) == [error for _, error in NO_REPLIES]


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


def test_what_it_has_no_word_for_is_refused_before_anything_is_sent(project: ProjectFolder, server: Server) -> None:
    project.numbered(1)
    project.workflow()
    for query, words in (
        ("?seed=1", "seed: Anthropic's API has no such parameter"),
        ("?presence_penalty=1", "presence_penalty: Anthropic's API has no such parameter"),
        ("?reasoning=minimal", "reasoning=minimal: local/small has no such effort; its efforts are low, medium, high"),
        ("?reasoning=2048&max_tokens=2048", "reasoning=2048: it is a part of max_tokens, 2048; raise max_tokens above"),
        ("?transport=ws", "transport=ws: local is asked over HTTP alone"),
    ):
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
