"""telemetry.jsonl and the timing of summaries: a line an attempted row, and quantiles that agree with every call."""

import json
import math
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from behaviour.scripted_server import Step, scripted
from support.processes import kill_at
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

from agac.cli.run_counts import timing_line
from agac.core.reading import read_as
from agac.engine.output.histograms import RELATIVE_ERROR
from agac.engine.summary import RunSummary

TWO_STAGES = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}, found ${classify.sentiment}"},
]
GOOD = '{"sentiment":"positive","reason":"it is"}'
BAD = '{"sentiment":"excellent","reason":"r"}'
TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


def telemetry(project: ProjectFolder) -> list[dict[str, Any]]:
    return project.envelopes(file="telemetry.jsonl")


def seconds(iso: str) -> float:
    assert iso.endswith("Z")
    return datetime.fromisoformat(iso).timestamp()


def test_a_line_for_each_row_in_the_order_of_the_input(project: ProjectFolder) -> None:
    before = time.time()
    project.workflow(rows=({"id": f'ü "{i}"\n', "text": f"number {i}"} for i in range(600)), stages=TWO_STAGES)
    report = project.run(concurrency=64)
    lines = telemetry(project)
    assert [line["id"] for line in lines] == [line["id"] for line in project.envelopes()]
    assert [line["row_number"] for line in lines] == list(range(1, 601))
    for line in lines:
        assert list(line) == ["id", "row_number", "ok", "timing", "usage"]
        assert line["ok"] is True
        assert list(line["timing"]) == ["start", "duration_ms", "ttft_ms", "time_to_response_ms"]
        assert before - 1 <= seconds(line["timing"]["start"]) <= time.time()
        assert line["timing"]["duration_ms"] > 0
        assert (line["timing"]["ttft_ms"], line["timing"]["time_to_response_ms"]) == (None, None)
        assert line["usage"]["schema"] == "agac.usage/v1"
        assert [a["stage"] for a in line["usage"]["provider_attempts"]] == ["classify", "reply"]
        assert all(a["simulated"] for a in line["usage"]["provider_attempts"])
    for name in TOKENS:
        assert sum(line["usage"]["turn"][name] or 0 for line in lines) == report.summary["calls"][name], name


def test_every_attempt_stands_beside_the_sum(project: ProjectFolder) -> None:
    steps = [Step(status=500, headers={"retry-after-ms": "5"}, body="{}"), Step(BAD), Step(GOOD), Step("fine")]
    with project.asking(scripted(*steps)):
        project.run(project.workflow(rows=1, stages=TWO_STAGES))
    (line,) = telemetry(project)
    attempts = line["usage"]["provider_attempts"]
    assert [(a["stage"], a["attempt"], a["purpose"], a["http_status"], a["error"]) for a in attempts] == [
        ("classify", 1, "ask", 500, "ProviderError"),
        ("classify", 2, "ask", 200, "SchemaMismatch"),
        ("classify", 3, "repair", 200, None),
        ("reply", 1, "ask", 200, None),
    ]
    assert {(a["provider"], a["model"], a["simulated"]) for a in attempts[1:]} == {("local", "small-2", False)}
    assert line["usage"]["turn"]["input_tokens"] == 30
    assert line["usage"]["turn"]["output_tokens"] == 15
    assert [a["prompt"]["total"] for a in attempts] == [None, 10, 10, 10]
    assert [a["completion"]["total"] for a in attempts] == [None, 5, 5, 5]
    assert line["timing"]["start"] == attempts[0]["start"]
    assert line["timing"]["duration_ms"] >= sum(a["duration_ms"] for a in attempts) + 5 - 1


def test_who_was_not_asked_has_no_line(project: ProjectFolder) -> None:
    project.rows(
        [{"id": "a", "text": "x"}, {"id": "b", "text": "x"}, {"id": "a", "text": "again"}, {"id": "c", "text": "y"}]
    )
    project.run(project.workflow(stages=[{"name": "one", "prompt": "${text}"}]), concurrency=1)
    assert [line["id"] for line in project.envelopes()] == ["a", "b", "a", "c"]
    called = [line["id"] for line in telemetry(project) if line["usage"]]
    assert called == ["a", "c"]  # b took a's answer, the second a is no row


def test_a_row_that_failed_before_a_call_has_a_line_without_times(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", '{"id":"a","text":"x"}\n{"id":"b"}\nno row\n{"id":"d","text":"y"}\n')
    project.write("data/lists.jsonl", '{"id":"a","texts":["x",{},"y"]}\n')
    project.workflow(path="data/rows.jsonl", stages=[{"name": "one", "prompt": "${text}"}])
    assert project.run(concurrency=1).rows.failed == 2
    lines = telemetry(project)
    assert [(line["row_number"], line["id"], line["ok"], bool(line["timing"])) for line in lines] == [
        (1, "a", True, True), (2, "b", False, False), (3, 3, False, False), (4, "d", True, True),
    ]  # fmt: skip
    assert lines[1] == {"id": "b", "row_number": 2, "ok": False, "timing": {}, "usage": {}}
    stages = [{"name": "part", "explode": "texts", "prompt": "${item.text} is ${item}"}]
    project.workflow("lists", path="data/lists.jsonl", stages=stages)
    assert project.run("lists").rows.failed == 0
    made = project.envelopes("lists", file="telemetry.jsonl")
    assert [(line["row_number"], line["ok"], line["usage"]) for line in made] == [(1, False, {})] * 3


def test_rows_that_a_limit_left_open_have_no_outcome_yet(project: ProjectFolder) -> None:
    project.workflow(rows=3, stages=TWO_STAGES)
    assert project.agac("run", "-a", "reviews", "--concurrency", "1", "--budget", "calls=3").code == 4
    assert [(line["id"], line["ok"]) for line in telemetry(project)] == [("r-1", True), ("r-2", None)]
    assert project.run(concurrency=1).exit_code == 0
    lines = telemetry(project)
    assert [line["ok"] for line in lines] == [True, True, True]
    first, second = lines[1]["usage"]["provider_attempts"]
    assert first["invocation"] < second["invocation"]
    assert lines[1]["timing"]["start"] == second["start"]  # of the invocation that asked it last
    assert lines[1]["timing"]["duration_ms"] == second["duration_ms"]
    assert lines[1]["usage"]["turn"]["input_tokens"] == first["prompt"]["total"] + second["prompt"]["total"]


def test_an_answer_of_flex_and_a_failed_row_have_a_line_with_the_time_in_utc(project: ProjectFolder) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    choice = {"index": 0, "message": {"role": "assistant", "content": GOOD}, "finish_reason": "stop"}
    body = json.dumps({"model": "m", "choices": [choice], "usage": usage, "service_tier": "flex \ud800"})
    with project.asking(scripted(Step(body=body), Step(BAD))):
        project.workflow(rows=2, defaults={"repair": 0})
        assert project.run(concurrency=1).exit_code == 3
    good, bad = telemetry(project)
    (attempt,) = good["usage"]["provider_attempts"]
    assert attempt["service_tier"].startswith("flex")
    assert attempt["prompt"] == {"total": 10, "uncached": 6, "cache_read": 4}
    assert good["usage"]["turn"]["cached_tokens"] == 4
    assert (bad["ok"], bad["usage"]["provider_attempts"][0]["error"]) == (False, "SchemaMismatch")
    (tier, first), (_, second) = project.query("SELECT service_tier, started_at FROM attempt ORDER BY id")
    assert tier == attempt["service_tier"]
    for line, started in ((good, first), (bad, second)):
        shown = datetime.fromtimestamp(math.floor(started * 1000) / 1000, UTC).isoformat(timespec="milliseconds")
        assert line["timing"]["start"] == shown.replace("+00:00", "Z")


def test_an_unchanged_run_writes_nothing(project: ProjectFolder, server: Server) -> None:
    project.run(project.workflow(rows=5, telemetry={"ttft": True}))
    file = project.root / "output/reviews/telemetry.jsonl"
    before, asked = (file.stat().st_mtime_ns, file.read_bytes()), server.account()["requests"]
    counted = project.query("SELECT * FROM timing ORDER BY 1, 2, 3, 4")
    report = project.run()
    assert (file.stat().st_mtime_ns, file.read_bytes()) == before
    assert server.account()["requests"] == asked
    assert project.query("SELECT * FROM timing ORDER BY 1, 2, 3, 4") == counted
    assert report.summary["timing_ms"]["ttft"]["count"] == 5
    file.unlink()
    project.run()
    assert file.read_bytes() == before[1]  # all of it comes from the store


def test_streaming_for_the_first_token_asks_nothing_again(project: ProjectFolder, server: Server) -> None:
    plain = project.run(project.workflow(rows=4, stages=TWO_STAGES))
    assert plain.summary["timing_ms"]["ttft"] == {"count": 0, "p50": None, "p95": None}
    asked = server.account()["requests"]
    again = project.run(project.workflow(stages=TWO_STAGES, telemetry={"ttft": True}))
    assert server.account()["requests"] == asked
    assert again.summary["run"] == plain.summary["run"]
    fresh = project.run(fresh=True)
    assert fresh.exit_code == 0
    for line in telemetry(project):
        calls = line["usage"]["provider_attempts"]
        assert all(0 < call["ttft_ms"] <= call["time_to_response_ms"] <= call["duration_ms"] for call in calls)
        times = line["timing"]
        assert times["ttft_ms"] == calls[0]["ttft_ms"]
        assert calls[0]["duration_ms"] < times["time_to_response_ms"] <= times["duration_ms"]
    attempts = [s["attempts"][0] for s in project.agac("inspect", "last", "r-1", "--json").json["rows"][0]["stages"]]
    assert all(0 < one["ttft_s"] <= one["time_to_response_s"] <= one["duration_s"] for one in attempts)
    assert project.agac("inspect", "last", "r-1").out.count(" ms (first token ") == 2
    assert "first token" not in project.agac("inspect", str(plain.summary["run"]), "r-1").out
    for stage in fresh.summary["stages"]:
        assert stage["timing_ms"]["ttft"]["count"] == 4
        assert 0 < stage["timing_ms"]["ttft"]["p50"] <= stage["timing_ms"]["ttft"]["p95"]


def test_the_project_can_ask_for_the_first_token_and_a_workflow_decline(project: ProjectFolder, server: Server) -> None:
    settings = project.root / "agac.yml"
    settings.write_text(settings.read_text("utf-8") + "telemetry: {ttft: true}\n", encoding="utf-8")
    project.workflow(rows=1)
    assert project.run().summary["timing_ms"]["ttft"]["count"] == 1
    project.workflow(telemetry={"ttft": False})
    assert project.run(fresh=True).summary["timing_ms"]["ttft"]["count"] == 0


def test_the_file_can_be_left_out_and_one_of_its_name_that_is_not_ours_stays(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=2))
    report = project.run(project.workflow(telemetry={"file": False}))
    assert report.summary["run"] == 1
    names = {file.name for file in (project.root / "output/reviews").iterdir()}
    assert names == {"results.jsonl", "results.json", "errors.jsonl", "summary.json"}
    assert {file.name for file in report.files} == names
    file = project.write("output/reviews/telemetry.jsonl", "mine\n")
    project.run()
    assert file.read_text("utf-8") == "mine\n"
    project.run(project.workflow(telemetry={"file": True, "ttft": False}))
    assert len(telemetry(project)) == 2  # the store had it all the time


def exact(values: list[float], share: float) -> float:
    return sorted(values)[math.floor(share * (len(values) - 1))] * 1000


def agrees(project: ProjectFolder, summary: dict[str, Any]) -> None:
    """The histograms say what all answered calls in the store say."""
    for number, stage in enumerate(summary["stages"]):
        query = "SELECT duration FROM attempt WHERE status < 400 AND stage = ?"
        took = [duration for (duration,) in project.query(query, number)]
        told = stage["timing_ms"]["duration"]
        assert told["count"] == len(took)
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            assert told[name] == pytest.approx(exact(took, share), abs=RELATIVE_ERROR * exact(took, share) + 0.06)
    everything = [duration for (duration,) in project.query("SELECT duration FROM attempt WHERE status < 400")]
    told = summary["timing_ms"]["duration"]
    assert told["count"] == len(everything)
    p95 = exact(everything, 0.95)
    assert told["p95"] == pytest.approx(p95, abs=RELATIVE_ERROR * p95 + 0.06)


@pytest.mark.usefixtures("short_pauses")
def test_quantiles_agree_with_the_calls_over_several_invocations(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "server_error", "rate": 0.2}], "--latency", "0.005"))
    project.workflow(rows=40, stages=TWO_STAGES)
    soon, words = {"AGAC_TEST_BACK_OFF": "0.01"}, ["run", "-a", "reviews", "--concurrency", "4"]
    project.agac(*words, "--budget", "calls=45", env=soon, code=4)
    project.agac(*words, env=soon | kill_at("committed:6"), code=-9)
    agrees(project, project.run().summary)


def test_dropped_runs_leave_no_histogram(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=2))
    project.run(project.workflow(vars={"more": "1"}), fresh=True)
    assert {run for (run,) in project.query("SELECT run_id FROM timing")} == {1, 2}
    assert project.agac("gc", "--keep-runs", "1").code == 0
    assert {run for (run,) in project.query("SELECT run_id FROM timing")} == {2}


def test_the_summary_says_how_long_a_call_takes(project: ProjectFolder) -> None:
    project.workflow(rows=3, stages=TWO_STAGES, telemetry={"ttft": True})
    first = project.agac("run", "-a", "reviews").out
    (line,) = [line for line in first.splitlines() if line.startswith("Time per call: ")]
    assert re.fullmatch(r"Time per call: classify \S+ \w+ \(p95 .*; first token .*, p95 .*\), reply .*", line), line
    assert re.search(r"\); elapsed: [\d.]+ m?s$", line)
    assert "Time per call" not in project.agac("run", "-a", "reviews").out  # nothing was asked
    summary = project.output(file="summary.json")
    done = sum(stage["done"] + stage["failed"] for stage in summary["stages"])
    assert summary["tasks"] == {"processed": done, "reused": 0}
    assert done > 0
    (took,) = project.query("SELECT ended_at - at FROM event WHERE kind = 'invocation' ORDER BY id LIMIT 1")
    assert summary["duration_s"] == pytest.approx(took[0], abs=0.001)


def timed(*milliseconds: float) -> str | None:
    """The line of stages that took so long."""
    times = [{"count": 1, "p50": one, "p95": one} for one in milliseconds]
    stages = [{"duration": one, "ttft": {"count": 0}} for one in times]
    summary = {"workflow": "w", "run": 1, "rows": {}}
    summary["stages"] = [{"name": f"s{n}", "timing_ms": one} for n, one in enumerate(stages, 1)]
    return timing_line(read_as(RunSummary, summary))


def test_times_have_two_digits_that_mean_something_and_the_slowest_stages_are_named() -> None:
    for milliseconds, said in (
        (0.2, "under 1 ms"), (7.4, "7 ms"), (412.0, "0.41 s"), (1234.0, "1.2 s"), (12_340.0, "12 s"), (3.1e5, "310 s"),
    ):  # fmt: skip
        assert timed(milliseconds) == f"Time per call: s1 {said} (p95 {said})"
    line = timed(*(1000.0 * number for number in range(1, 8))) or ""
    assert "s1 " not in line
    assert "s2 " not in line
    assert line.endswith("s7 7.0 s (p95 7.0 s), and 2 faster ones")
    assert timed() is None


def test_a_large_run_has_the_file_only_when_it_is_asked_for(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.output.run_outputs.TELEMETRY_ROWS", 5)
    file = project.root / "output/reviews/telemetry.jsonl"
    project.workflow(rows=5)
    assert file in project.run().files
    assert len(telemetry(project)) == 5
    project.numbered(6)
    assert file not in project.run().files
    assert not file.exists()
    report = project.run(project.workflow(telemetry={"file": True}))
    assert (report.invocation["calls"], file in report.files) == (0, True)
    assert len(telemetry(project)) == 6
