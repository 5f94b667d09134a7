"""The Responses API and Anthropic's Messages, over every transport, from a workflow to its results: the same rows, the
same money and the same end."""

import json
from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

TRANSPORTS = ["", "?transport=sse", "?transport=ws", "?transport=auto"]
transports = pytest.mark.parametrize("transport", TRANSPORTS, ids=["body", "sse", "ws", "auto"])
WAYS = [("openai-responses", one) for one in TRANSPORTS] + [("anthropic", one) for one in TRANSPORTS[:2]]
ways = pytest.mark.parametrize(("dialect", "transport"), WAYS)
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "repair": 0}


def serve(
    project: ProjectFolder, server: Server, query: str = "", dialect: str = "openai-responses", **provider: Any
) -> None:
    project.configure(server.base_url, dialect=dialect, **provider)
    agac_yml = project.root / "agac.yml"
    agac_yml.write_text(agac_yml.read_text("utf-8").replace("model: local/small", f"model: local/small{query}"))


def errors(project: ProjectFolder) -> list[tuple[str, str]]:
    return [(line["error"]["type"], line["error"]["message"]) for line in project.envelopes(file="errors.jsonl")]


@ways
def test_every_way_brings_the_same_results_for_the_same_money(
    project: ProjectFolder, server: Server, dialect: str, transport: str
) -> None:
    project.workflow(rows=20)
    prices = {"small": {"input": 1.0, "output": 5.0}}
    serve(project, server, dialect=dialect, prices=prices)
    first = project.run()
    results, account = project.output(), server.account()
    serve(project, server, transport, dialect, prices=prices)
    again = project.run(fresh=True)
    assert (again.invocation["rows_done"], again.exit_code) == (20, 0)
    assert project.output() == results
    assert server.account()["charged"] == 2 * account["charged"]
    assert again.invocation["cost_usd"] == first.invocation["cost_usd"] > 0
    assert server.account()["refused"] == 0


@transports
def test_the_message_that_is_valid_is_the_answer(project: ProjectFolder, faulty: Faulty, transport: str) -> None:
    """Marked as cut or not, and be it mendable: the whole one is taken, at once."""
    server = faulty([{"kind": "early_cut", "at": [1, 2]}, {"kind": "early_cut", "marked": False, "always": True}])
    project.workflow(rows=6, stages=[{**STAGE, "json_repair": True}])
    serve(project, server, transport)
    assert project.run().invocation["rows_done"] == 6
    assert server.account()["requests"] == 6
    assert all(line["result"]["sentiment"] == "positive" for line in project.envelopes())


@transports
def test_two_valid_messages_are_no_answer_and_a_second_one_is_asked_for(
    project: ProjectFolder, faulty: Faulty, transport: str
) -> None:
    server = faulty([{"kind": "two_answers", "first": 2}])
    project.workflow(rows=2, stages=[STAGE])
    serve(project, server, transport)
    assert project.run().invocation["rows_failed"] == 2
    assert set(errors(project)) == {
        ("SchemaMismatch", "the reply holds 2 messages that are valid and differ; nobody knows which one is meant")
    }
    project.workflow(stages=[{**STAGE, "repair": 1}])
    assert project.run().invocation["rows_done"] == 2
    assert server.account()["requests"] == 2 * (1 + 2)


def test_without_a_schema_two_messages_are_never_joined(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "early_cut", "marked": False, "at": 1}, {"kind": "early_cut", "always": True}])
    project.workflow(rows=2, stages=[{"name": "reply", "prompt": "Answer: ${text}", "repair": 0}])
    serve(project, server, limits={"concurrency": 1})
    report = project.run()
    assert report.invocation["rows_done"] == 1, "the one marked as cut is no answer, so one is left"
    assert report.invocation["rows_failed"] == 1
    assert errors(project)[0][0] == "SchemaMismatch"


BROKEN: list[dict[str, Any]] = [
    {"kind": "rate_limit", "retry_after": 0.01},
    {"kind": "server_error", "status": 503, "retry_after": 0.01},
    {"kind": "server_error", "status": 500, "retry_after": 0.01},
    {"kind": "stream_error"},
    {"kind": "stream_error", "failed": True},
    {"kind": "cut"},
    {"kind": "cut", "after_bytes": 400},
    {"kind": "invalid_body"},
]
OVERLOADED = [
    {"kind": "server_error", "status": 529, "retry_after": 0.01},
    {"kind": "stream_error", "code": "overloaded_error"},
]


@ways
def test_what_breaks_on_the_way_is_asked_again(
    project: ProjectFolder, faulty: Faulty, dialect: str, transport: str
) -> None:
    """Once for each row: a rate, trouble, an error amid the answer, cut at once or amid it, garbage. The first three
    are not billed."""
    faults = BROKEN if dialect == "openai-responses" else [one for one in BROKEN if "failed" not in one] + OVERLOADED
    server = faulty([{**fault, "match": f"number {n}", "first": 1} for n, fault in enumerate(faults, 1)])
    project.workflow(rows=len(faults))
    serve(project, server, transport, dialect)
    report = project.run()
    assert (report.invocation["rows_done"], report.exit_code) == (len(faults), 0)
    account = server.account()
    assert account["requests"] >= 2 * len(faults)
    if dialect == "openai-responses":
        assert account["charged"] == account["requests"] - 3


NO_REPLIES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "length"}, "the reply was cut at the limit of tokens; raise max_tokens or ask for less"),
    ({"kind": "filter"}, "the model refused: category general_harms"),
    ({"kind": "refusal", "message": "Not this."}, "the model refused: Not this."),
    ({"kind": "empty"}, "the reply is empty"),
]


@ways
def test_a_reply_that_is_none_is_never_done(
    project: ProjectFolder, faulty: Faulty, dialect: str, transport: str
) -> None:
    faults = [{**fault, "match": f"number {n}", "always": True} for n, (fault, _) in enumerate(NO_REPLIES, 1)]
    project.workflow(rows=len(NO_REPLIES), stages=[STAGE], stop_loss=False)
    serve(project, faulty(faults), transport, dialect)
    assert project.run().invocation["rows_failed"] == len(NO_REPLIES)
    filtered = "Refused" if dialect == "anthropic" else "Filtered"
    assert [name for name, _ in errors(project)] == ["Truncated", filtered, "Refused", "EmptyResponse"]
    if dialect == "anthropic":
        assert [message for _, message in errors(project)] == [message for _, message in NO_REPLIES]


@pytest.mark.parametrize("dialect", ["openai-responses", "anthropic"])
@pytest.mark.parametrize("structured", ["json_schema", "json_object", "none"])
def test_schemas_are_kept_to_however_they_are_told(
    project: ProjectFolder, server: Server, dialect: str, structured: str
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "score": {"type": "integer", "minimum": 1, "maximum": 5},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2, "maxItems": 3},
        },
        "required": ["score", "tags"],
    }
    project.workflow(rows=8, stages=[{**STAGE, "instructions": "You judge.", "output_schema": schema}])
    serve(project, server, dialect=dialect, structured=structured)
    assert project.run().invocation["rows_done"] == 8
    account = server.account()
    assert (account["requests"], account["refused"]) == (8, 0)


REFUSED = {
    "openai-responses": {
        f"?{name}=1": f"{name}: the Responses API has no such parameter"
        for name in ("seed", "presence_penalty", "frequency_penalty")
    },
    "anthropic": {
        "?seed=1": "seed: Anthropic's API has no such parameter",
        "?presence_penalty=1": "presence_penalty: Anthropic's API has no such parameter",
        "?reasoning=minimal": "reasoning=minimal: local/small has no such effort; its efforts are low, medium, high",
        "?reasoning=2048&max_tokens=2048": "reasoning=2048: it is a part of max_tokens, 2048; raise max_tokens above",
        "?transport=ws": "transport=ws: local is asked over HTTP alone",
    },
}


@pytest.mark.parametrize("dialect", REFUSED)
def test_what_a_dialect_has_no_word_for_is_refused_before_anything_is_sent(
    project: ProjectFolder, server: Server, dialect: str
) -> None:
    project.workflow(rows=1)
    for query, words in REFUSED[dialect].items():
        serve(project, server, query, dialect)
        assert words in " ".join(project.agac("run", "-a", "reviews", code=2).err.split())
    assert server.account()["requests"] == 0


def test_the_embedded_simulator_speaks_every_dialect(project: ProjectFolder) -> None:
    project.configure()
    project.workflow(rows=3)
    queries = ("", "?transport=sse", "?reasoning=high&max_tokens=300", "?reasoning=2048", "?temperature=0.2&top_k=5")
    for model in (
        *("simulator/small", "simulator-responses/small", "simulator-responses/small?transport=ws"),
        *(f"simulator-anthropic/small{query}" for query in queries),
    ):
        report = project.run(model=model, fresh=True)
        assert (report.invocation["rows_done"], report.exit_code) == (3, 0)
    assert json.loads((project.root / "output/reviews/summary.json").read_text("utf-8"))["calls"]["simulated"]


@pytest.mark.parametrize("kind", ["malformed_json", "wrong_schema"])
def test_an_unusable_answer_is_asked_for_again(project: ProjectFolder, faulty: Faulty, kind: str) -> None:
    server = faulty([{"kind": kind, "at": [1]}])
    project.workflow(rows=2, stages=[{**STAGE, "repair": 2}])
    serve(project, server, dialect="anthropic")
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
    project.workflow(rows=50)
    serve(project, server, dialect="anthropic", limits={"concurrency": 2})
    assert words in " ".join(project.agac("run", "-a", "reviews", code=1).err.split())
    assert server.account()["requests"] <= 4


def test_an_idle_bound_streams_and_ends_a_silence(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "hang", "first": 1}])
    project.workflow(rows=1)
    serve(project, server, "?streaming_timeout=0.1")
    assert project.run().invocation["rows_done"] == 1
    assert server.account()["requests"] == 2
