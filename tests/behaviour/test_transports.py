"""The second dialect and every transport, from a workflow to its results: the same rows, money and end."""

import json
from itertools import product
from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.soak import few

TRANSPORTS = ["", "?transport=sse", "?transport=ws", "?transport=auto"]
transports = pytest.mark.parametrize("transport", TRANSPORTS, ids=["body", "sse", "ws", "auto"])
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "repair": 0}


def serve(project: ProjectFolder, server: Server, transport: str = "", **provider: Any) -> None:
    project.configure(server.base_url, dialect="openai-responses", **provider)
    agac_yml = project.root / "agac.yml"
    agac_yml.write_text(agac_yml.read_text("utf-8").replace("model: local/small", f"model: local/small{transport}"))


def errors(project: ProjectFolder) -> list[tuple[str, str]]:
    return [(line["error"]["type"], line["error"]["message"]) for line in project.envelopes(file="errors.jsonl")]


@transports
def test_every_transport_brings_the_same_results_for_the_same_money(
    project: ProjectFolder, server: Server, transport: str
) -> None:
    project.workflow(rows=20)
    serve(project, server)
    first = project.run()
    results, account = project.output(), server.account()
    serve(project, server, transport)
    again = project.run(fresh=True)
    assert (again.invocation["rows_done"], again.exit_code) == (20, 0)
    assert project.output() == results
    assert server.account()["charged"] == 2 * account["charged"]
    assert again.invocation["cost_usd"] == first.invocation["cost_usd"]


def test_what_one_transport_brought_is_not_asked_again_over_another(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=5)
    for transport in TRANSPORTS:
        serve(project, server, transport)
        project.run()
    assert server.account()["requests"] == 5


def test_each_slot_has_a_socket_of_its_own_and_keeps_it(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([], "--latency", "0.01")
    project.workflow(rows=40)
    serve(project, server, "?transport=ws", limits={"concurrency": 4})
    assert project.run().invocation["rows_done"] == 40
    account = server.account()
    assert (account["requests"], account["max_in_flight"]) == (40, 4)
    assert account["sockets"] == 4


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


BROKEN: dict[str, list[dict[str, Any]]] = {
    "an error amid the answer": [{"kind": "stream_error", "first": 1}],
    "a response that failed": [{"kind": "stream_error", "failed": True, "first": 1}],
    "cut at once": [{"kind": "cut", "first": 1}],
    "cut amid the answer": [{"kind": "cut", "after_bytes": 1500, "first": 1}],
    "garbage": [{"kind": "invalid_body", "first": 1}],
    "a rate": [{"kind": "rate_limit", "retry_after": 0.01, "first": 1}],
    "overloaded": [{"kind": "server_error", "status": 503, "retry_after": 0.01, "first": 1}],
}


@pytest.mark.parametrize(("transport", "name"), few(list(product(TRANSPORTS, BROKEN)), 3))
def test_what_breaks_on_the_way_is_asked_again(
    project: ProjectFolder, faulty: Faulty, transport: str, name: str
) -> None:
    server = faulty(BROKEN[name])
    project.workflow(rows=3)
    serve(project, server, transport)
    report = project.run()
    assert (report.invocation["rows_done"], report.exit_code) == (3, 0)
    account = server.account()
    assert account["requests"] >= 6
    unbilled = name in ("a rate", "overloaded")
    assert account["charged"] == (3 if unbilled else account["requests"])


@transports
def test_a_reply_that_is_none_is_never_done(project: ProjectFolder, faulty: Faulty, transport: str) -> None:
    kinds = {"length": "Truncated", "filter": "Filtered", "refusal": "Refused", "empty": "EmptyResponse"}
    server = faulty([{"kind": kind, "match": f"number {n}"} for n, kind in enumerate(kinds, 1)])
    project.workflow(rows=len(kinds), stages=[STAGE])
    serve(project, server, transport)
    assert project.run().invocation["rows_failed"] == len(kinds)
    assert [name for name, _ in errors(project)] == list(kinds.values())


def test_without_websockets_auto_streams_and_ws_stops_with_the_remedy(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([], "--no-websocket")
    project.workflow(rows=3)
    serve(project, server, "?transport=auto")
    assert project.run().invocation["rows_done"] == 3
    serve(project, server, "?transport=ws")
    ran = project.agac("run", "-a", "reviews", "--fresh", code=1)
    assert "accepts no WebSocket" in ran.err
    assert "transport=auto" in ran.err


def test_the_budget_holds_over_sockets_too(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=30, budget={"calls": 10})
    serve(project, server, "?transport=ws")
    assert project.run().exit_code == 4
    assert server.account()["requests"] == 10


def test_json_mode_and_bare_instructions_work_over_responses(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=2, stages=[{**STAGE, "instructions": "You judge."}])
    for structured in ("json_object", "none"):
        serve(project, server, structured=structured)
        assert project.run(fresh=True).invocation["rows_done"] == 2
    assert server.account()["refused"] == 0


def test_what_responses_has_no_word_for_is_refused_before_anything_is_sent(
    project: ProjectFolder, server: Server
) -> None:
    project.workflow(rows=1)
    for name in ("seed", "presence_penalty", "frequency_penalty"):
        serve(project, server, f"?{name}=1")
        ran = project.agac("run", "-a", "reviews", code=2)
        assert f"{name}: the Responses API has no such parameter" in " ".join(ran.err.split())
    assert server.account()["requests"] == 0


def test_the_embedded_simulator_speaks_both_dialects(project: ProjectFolder) -> None:
    project.configure()
    project.workflow(rows=3)
    for model in ("simulator/small", "simulator-responses/small", "simulator-responses/small?transport=ws"):
        report = project.run(model=model, fresh=True)
        assert (report.invocation["rows_done"], report.exit_code) == (3, 0)
    assert json.loads((project.root / "output/reviews/summary.json").read_text("utf-8"))["calls"]["simulated"]


def test_an_idle_bound_streams_and_ends_a_silence(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "hang", "first": 1}])
    project.workflow(rows=1)
    serve(project, server, "?streaming_timeout=0.1")
    assert project.run().invocation["rows_done"] == 1
    assert server.account()["requests"] == 2


def test_a_run_that_is_killed_amid_its_sockets_goes_on(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([], "--latency", "0.01")
    project.workflow(rows=300)
    serve(project, server, "?transport=ws", limits={"concurrency": 8})
    killed = project.start("run", "-a", "reviews")
    while server.account()["charged"] < 60:
        assert killed.poll() is None, killed.stderr.read() if killed.stderr else ""
    killed.kill()
    killed.communicate()
    assert project.agac("run", "-a", "reviews").code == 0
    assert len(project.envelopes()) == 300
    account = server.account()
    assert account["distinct"] == 300
    assert account["duplicates"] <= 2 * 8
