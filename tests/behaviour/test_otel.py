"""Traces and metrics by OpenTelemetry's protocol, as a collector on loopback gets them."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from behaviour.scripted_server import Step, scripted
from support.batchrun import BatchProject, Make, advance
from support.collector import Collector, Span, collecting
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty

from agac.core.keys import share_of
from agac.engine.output.telemetry import OtelSettings, otel_settings
from agac.spec.rules import RunRules
from agac.testing import simulator

TWO_STAGES = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "max_tokens": 90},
    {"name": "reply", "prompt": "Answer ${text}, found ${classify.sentiment}", "needs": "classify"},
]
GOOD = '{"sentiment":"positive","reason":"it is"}'
BAD = '{"sentiment":"excellent","reason":"r"}'
ALL: dict[str, Any] = {"telemetry": {"sample": 1}}
SECRET = "sk-of-nobody-0123456789"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which everything is sent that this process runs."""
    with collecting() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def calls(span: Span) -> list[tuple[Any, ...]]:
    """What is said of the calls below a span: which attempt (none: the first), why, and how they failed."""
    keys = ("agac.attempt", "agac.purpose", "http.response.status_code", "error.type")
    return [tuple(one.attributes.get(key) for key in keys) for one in span.find("chat ")]


def test_a_row_is_a_trace_of_its_stages_and_calls(project: ProjectFolder, collector: Collector) -> None:
    project.run(project.workflow(rows=3, stages=TWO_STAGES, **ALL))
    rows = collector.rows()
    assert rows.keys() == {line["id"] for line in project.envelopes()}
    for row in rows.values():
        assert row.outline == {
            "row reviews": [{"stage classify": ["chat small"]}, {"stage reply": ["chat small"]}],
        }
        assert (row["agac.outcome"], row["agac.row.number"] in (1, 2, 3)) == ("done", True)
        for call in row.find("chat "):
            taken = call["gen_ai.usage.input_tokens"], call["gen_ai.usage.output_tokens"]
            assert all(tokens > 0 for tokens in taken)
            assert (call.kind, call["gen_ai.operation.name"], call["gen_ai.response.finish_reasons"]) == (
                3,
                "chat",
                ["stop"],
            )
            assert call["gen_ai.provider.name"] == "local"
            assert call["gen_ai.request.model"] == call["gen_ai.response.model"] == "small"
            assert call["agac.simulated"] is True
    (whole,) = collector.trees("invoke_workflow reviews")
    assert {link for row in rows.values() for link in row.links} == {(whole.trace, whole.id)}
    assert (whole["agac.rows.done"], whole["agac.rows.failed"]) == (3, 0)
    assert all(whole.start <= row.start <= row.end <= whole.end for row in rows.values())
    about = {"service.name": "agac", "agac.workflow": "reviews", "agac.run": 1}
    assert about.items() <= collector.resource.items()
    assert not any(b"number 1" in body or b"messages" in body for body in collector.bodies)  # neither prompt nor reply


def test_every_attempt_is_a_span_and_a_failure_is_always_sent(project: ProjectFolder, collector: Collector) -> None:
    steps = [
        Step(status=500, headers={"retry-after-ms": "5"}, body="{}"),
        Step(BAD),
        Step(GOOD),
        Step("no", finish="length"),
    ]
    with project.asking(scripted(*steps)):
        project.run(project.workflow(rows=1, stages=TWO_STAGES, telemetry={"sample": 0}))
    (row,) = collector.trees()
    assert calls(row) == [
        (None, None, 500, "ProviderError"),
        (2, None, 200, "SchemaMismatch"),
        (3, "repair", None, None),
        (None, None, 200, "Truncated"),
    ]
    assert [one.failed for one in row.find("chat ")] == [True, True, False, True]
    assert (row["agac.outcome"], row["error.type"], row.failed) == ("failed", "Truncated", True)
    assert [(one["agac.outcome"], one.failed) for one in row.find("stage")] == [("done", False), ("failed", True)]
    assert [one["agac.how"] for one in row.find("stage classify")] == ["repair"]
    assert row.find("chat ")[-1]["gen_ai.response.finish_reasons"] == ["length"]
    assert not any("message" in key for one in collector.spans for key in one.attributes)


def test_the_sample_is_drawn_by_ids_and_the_same_again(project: ProjectFolder, collector: Collector) -> None:
    project.workflow(rows=200, telemetry={"sample": 0.1})
    project.run()
    drawn = collector.rows().keys()
    assert drawn == {line["id"] for line in project.envelopes() if share_of("trace", "", line["id"]) < 0.1}
    assert 5 < len(drawn) < 40
    first = {one.trace for one in collector.trees()}
    collector.spans.clear()
    project.run(fresh=True)
    assert collector.rows().keys() == drawn
    assert first.isdisjoint(one.trace for one in collector.trees())
    collector.spans.clear()
    project.run()  # nothing is left to do
    assert collector.trees() == []


def test_metrics_are_the_counts_of_the_summary(project: ProjectFolder, collector: Collector, server: Faulty) -> None:
    project.asks(server, prices={"small": {"input": 1.0, "output": 2.0}}, limits={"rpm": 20_000})
    report = project.run(project.workflow(rows=30, stages=TWO_STAGES))
    assert collector.value("agac.rows", outcome="done") == 30
    assert collector.value("agac.rows", outcome="failed") == 0
    assert sum(value for _, value in collector.points("agac.cost")) == pytest.approx(
        report.summary["calls"]["cost_usd"]
    )
    assert collector.value("agac.lane.wait", lane="local/small") > 0  # they are spaced out
    for kind in ("input", "output"):
        point = collector.value("gen_ai.client.token.usage", **{"gen_ai.token.type": kind})
        assert (point.sum, point.count) == (report.summary["calls"][f"{kind}_tokens"], 60)
        assert sum(point.bucket_counts) == 60
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    took = collector.value("gen_ai.client.operation.duration", **{"gen_ai.request.model": "small"})
    assert (took.count, 0 < took.min <= took.max <= took.sum) == (60, True)
    assert collector.metrics["gen_ai.client.operation.duration"].unit == "s"


TOOLS = '''
def look(q: str) -> str:
    """Looks something up."""
    return f"found {q}"
'''
CHILD = "---\nname: helper\nfunction_tools: tools/t.py:look\n---\nHelp.\n"
BOSS = "---\nname: boss\nagents: [helper]\nfunction_tools: tools/t.py:look\n---\nAsk the helper.\n"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize("prompts", [False, True])
def test_agents_have_conversations_with_tools_and_agents_in_them(
    project: ProjectFolder, collector: Collector, prompts: bool
) -> None:
    project.configure()
    project.write("tools/t.py", TOOLS)
    project.write("agentcards/helper.md", CHILD)
    project.write("agentcards/boss.md", BOSS)
    rules = [
        {"match": "Help.", "turn": 1, "calls": [call("look", q="the sea")]},
        {"match": "Help.", "turn": 2, "reply": "it is found"},
        {"turn": 1, "calls": [call("agent__helper", message="what is it?"), call("look", q="a hill")]}, {"reply": "so"},
    ]  # fmt: skip
    with simulator(script=rules):
        stage = {"agent": "boss", "name": "ask", "prompt": "${text}"}
        project.run(project.workflow(stages=[stage], rows=1, telemetry={"sample": 1, "prompts": prompts}))
    (row,) = collector.trees()
    (talk,) = row.find("stage ask")
    assert sorted(one.name for one in talk.children) == [
        "chat small", "chat small", "execute_tool agent__helper", "execute_tool look",
    ]  # fmt: skip
    (asked,) = talk.find("execute_tool agent__helper")
    child, (look,) = asked, asked.find("execute_tool look")
    assert child.outline == {"execute_tool agent__helper": ["chat small", "execute_tool look", "chat small"]}
    assert (look["gen_ai.tool.name"], look["agac.tool.state"], bool(look["gen_ai.tool.call.id"])) == (
        "look",
        "done",
        True,
    )
    assert [one["gen_ai.response.finish_reasons"] for one in child.find("chat")] == [["tools"], ["stop"]]
    texts = {key for one in collector.spans for key in one.attributes if "messages" in key or "tool.call." in key}
    assert texts - {"gen_ai.tool.call.id"} == (
        {f"gen_ai.{one}" for one in ("input.messages", "output.messages", "tool.call.arguments", "tool.call.result")}
        if prompts else set()
    )  # fmt: skip
    if prompts:
        assert (look["gen_ai.tool.call.arguments"], look["gen_ai.tool.call.result"]) == (
            '{"q": "the sea"}',
            "found the sea",
        )
        (said,) = json.loads(child.find("chat")[-1]["gen_ai.output.messages"])
        assert said == {"role": "assistant", "parts": [{"type": "text", "content": "it is found"}]}
        given = json.loads(child.find("chat")[-1]["gen_ai.input.messages"])
        assert [one["role"] for one in given] == ["system", "user", "assistant", "tool"]
        assert given[-1]["parts"][0]["response"] == "found the sea"


def test_secrets_are_taken_out_of_texts(
    project: ProjectFolder, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KEY", SECRET)
    with project.asking(scripted("ok"), api_key="${LOCAL_KEY}"):
        rows = [{"id": SECRET, "text": f"it is {SECRET}"}]
        project.run(project.workflow(rows=rows, stages=[{"name": "a", "prompt": "${text}"}],
                                     telemetry={"sample": 1, "prompts": True}))  # fmt: skip
    (row,) = collector.trees()
    assert "[redacted]" in row.find("chat")[0]["gen_ai.input.messages"]
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_names_that_no_message_can_hold_are_sent_as_they_can_be(
    project: ProjectFolder, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    project.configure()
    project.write("tools/t.py", TOOLS)
    stage = {"name": "ask", "prompt": "${text}", "tools": ["tools/t.py:look"]}
    with simulator(script=[{"turn": 1, "calls": [call("no\ud800", q="x")]}, {"reply": "so"}]):
        project.run(project.workflow(stages=[stage], rows=1, **ALL))
    (row,) = collector.trees()
    (tool,) = row.find("execute_tool")
    assert (tool["gen_ai.tool.name"], tool["agac.tool.state"], tool.failed) == ("no?", "refused", True)
    assert caplog.records == []


def test_replicas_are_calls_of_their_stage(project: ProjectFolder, collector: Collector) -> None:
    stage = {**TWO_STAGES[0], "replicas": 3, "vote": "sentiment"}
    project.run(project.workflow(rows=2, stages=[stage], **ALL))
    for row in collector.rows().values():
        (only,) = row.children
        assert sorted(one["agac.replica"] for one in only.children) == [1, 2, 3]


def test_children_of_a_list_are_traces_of_their_own(project: ProjectFolder, collector: Collector) -> None:
    stages = [
        {"name": "plan", "prompt": "${text}", "output_schema": {"questions": ["string"]}},
        {"name": "answer", "explode": "plan.questions", "prompt": "${item}"},
    ]
    with project.asking(scripted('{"questions": ["a", "b"]}', "ok")):
        project.run(project.workflow(rows=1, stages=stages, **ALL))
    rows = collector.rows()
    (parent,) = [row for row in rows.values() if "agac.row.made_by" not in row.attributes]
    made = [row for row in rows.values() if row is not parent]
    assert [(one["agac.row.made_by"], one.outline) for one in made] == [
        ("answer", {"row reviews": [{"stage answer": ["chat small"]}]}),
    ] * 2  # fmt: skip


def test_a_stage_that_reuses_or_is_passed_over_has_no_call(project: ProjectFolder, collector: Collector) -> None:
    project.run(project.workflow(rows=2, stages=TWO_STAGES))
    collector.spans.clear()
    more = [*TWO_STAGES, {"name": "never", "prompt": "${text}", "when": "false"}]
    project.run(project.workflow(stages=more, **ALL))
    for row in collector.rows().values():
        assert {one.name: one["agac.outcome"] for one in row.children} == {
            "stage classify": "reused", "stage reply": "reused", "stage never": "skipped",
        }  # fmt: skip
        assert row.find("chat") == []


BATCHED = [
    {"name": "first", "prompt": "${text}", "model": "local/echo", "run_mode": "sync"},
    {"name": "second", "prompt": "B ${first}", "model": "local/echo"},
]


def test_a_line_of_a_batch_is_a_call_that_lasts_as_long(batches_at: Make, collector: Collector) -> None:
    project: BatchProject = batches_at(seconds=100)
    project.submit(*BATCHED, rows=3, **ALL)
    assert [(row["agac.outcome"], row.outline) for row in collector.rows().values()] == [
        ("waiting", {"row reviews": [{"stage first": ["chat echo"]}]})
    ] * 3  # fmt: skip
    collector.spans.clear()
    collector.metrics.clear()
    advance(project.server, 100)
    project.to_the_end()
    rows = collector.rows()
    assert len(rows) == 3
    for row in rows.values():
        (line,) = row.find("chat")
        assert (line.name, line["agac.service_tier"]) == ("chat echo", "batch")
        assert [one.name for one in row.children] == ["stage second"]
        assert line.end > line.start
        assert row["agac.outcome"] == "done"
    assert collector.value("gen_ai.client.token.usage", **{"gen_ai.token.type": "input"}).count == 3
    assert not collector.metrics["gen_ai.client.operation.duration"].histogram.data_points


def test_a_killed_run_sends_whole_traces_and_the_next_one_the_rest(
    project: ProjectFolder, collector: Collector
) -> None:
    project.workflow(rows=40, stages=TWO_STAGES, **ALL)
    project.agac("run", "-a", "reviews", "--concurrency", "4", env=collector.environment, kill="commit:9")
    collector.trees()  # each span has its parent
    before = {one["agac.row.id"] for one in collector.trees()}
    collector.spans.clear()
    project.agac("run", "-a", "reviews", env=collector.environment, code=0)
    stored = {line["id"] for line in project.envelopes()}
    assert collector.rows().keys() | before <= stored
    assert len(stored) == 40
    assert collector.rows()
    project.assert_sound()


def test_log_records_of_a_row_name_its_trace(
    project: ProjectFolder, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "agac")
    with project.asking(scripted(Step(status=500, headers={"retry-after-ms": "5"}, body="{}"), "ok")):
        project.run(project.workflow(rows=1, stages=[{"name": "a", "prompt": "${text}"}], **ALL))
    (row,) = collector.trees()
    told = [vars(one)["fields"] for one in caplog.records if "row" in vars(one).get("fields", {})]
    assert len(told) == 3
    assert {(one["trace_id"], one["span_id"]) for one in told} == {(row.trace, row.id)}


@pytest.mark.parametrize("trouble", ["refuses", "hangs", "is not there"])
def test_a_collector_in_trouble_stops_nothing_and_is_told_once(
    project: ProjectFolder, collector: Collector, trouble: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("agac.engine.output.otlp.AT_THE_END", 0.2)
    if trouble == "refuses":
        collector.answers = 400
    elif trouble == "hangs":
        collector.hangs = threading.Event()
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    report = project.run(project.workflow(rows=20, **ALL))
    assert (report.exit_code, report.summary["rows"]["done"]) == (0, 20)
    (told,) = [one for one in caplog.records if one.name.startswith(("agac.otel", "opentelemetry"))]
    assert told.getMessage().startswith("traces and metrics cannot all be sent: ")
    assert told.getMessage().endswith("; the run goes on without them")


def test_nothing_is_loaded_where_nothing_is_sent() -> None:
    look = "import sys, agac.api.run; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_and_grpc_are_told_and_the_run_goes_on(
    project: ProjectFolder, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    project.workflow(rows=1, **ALL)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    project.run()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.delitem(sys.modules, "agac.engine.output.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    assert project.run(fresh=True).exit_code == 0
    first, second = [one.getMessage() for one in caplog.records if "no traces" in one.getMessage()]
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and agac sends by HTTP: set it to http/protobuf" in first
    assert "pip install opentelemetry-sdk" in second
    assert collector.spans == []


ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
BOTH = OtelSettings(True, True, "")


@pytest.mark.parametrize(
    ("rules", "env", "found"),
    [
        ({}, {}, None),
        ({}, ON, BOTH),
        ({"otel": False}, ON, None),
        ({"otel": True}, {}, BOTH),
        ({}, {**ON, "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({"otel": True}, {"OTEL_SDK_DISABLED": "true"}, None),
        ({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, BOTH._replace(metrics=False)),
        ({}, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, BOTH._replace(traces=False)),
        ({}, {**ON, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, None),
    ],
)  # fmt: skip
def test_what_is_sent_follows_the_files_and_the_usual_variables(
    rules: dict[str, Any], env: dict[str, str], found: OtelSettings | None
) -> None:
    assert otel_settings(RunRules(**rules), env) == found
