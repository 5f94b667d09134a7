"""What stands in the output folder, to the byte; and odd values on the whole way from a file to a result."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import scripted
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.soak import campaign

ECHO = {"model": "local/echo"}
SAY = [{"name": "say", "prompt": "${text}"}]


def raw(project: ProjectFolder, file: str, folder: str = "reviews") -> str:
    return (project.root / "output" / folder / file).read_bytes().decode()


def mixed(project: ProjectFolder, faulty: Faulty, **keys: Any) -> None:
    """Three rows: done, refused, done."""
    project.configure(faulty([{"kind": "refusal", "match": "two", "message": "no"}]).base_url)
    project.rows([{"id": "a", "text": "one"}, {"id": "b", "text": "two"}, {"id": "c", "text": "thrée"}])
    project.workflow(defaults=ECHO, stages=SAY, **keys)
    assert project.run().exit_code == 3


def test_every_file_to_the_byte_and_errors_disappear_with_their_causes(project: ProjectFolder, faulty: Faulty) -> None:
    mixed(project, faulty)
    refused = '{"type":"Refused","message":"the model refused: no"}'
    assert raw(project, "results.jsonl") == (
        '{"id":"a","row_number":1,"ok":true,"result":"one","error":null}\n'
        f'{{"id":"b","row_number":2,"ok":false,"result":null,"error":{refused}}}\n'
        '{"id":"c","row_number":3,"ok":true,"result":"thrée","error":null}\n'
    )
    assert raw(project, "results.json") == '[\n"one",\n"thrée"\n]\n'
    assert raw(project, "errors.jsonl") == (
        f'{{"id":"b","row_number":2,"ok":false,"result":null,"error":{refused},"input":{{"id":"b","text":"two"}}}}\n'
    )
    assert sorted(path.name for path in (project.root / "output/reviews").iterdir()) == [
        "errors.jsonl", "results.json", "results.jsonl", "summary.json", "telemetry.jsonl",
    ]  # fmt: skip
    check_summary(project.output(file="summary.json"))
    project.rows([{"id": "a", "text": "one"}, {"id": "b", "text": "2"}, {"id": "c", "text": "thrée"}])
    report = project.run()
    assert (report.exit_code, report.summary["errors"]) == (0, [])
    assert raw(project, "errors.jsonl") == ""
    assert project.output() == ["one", "2", "thrée"]


def check_summary(summary: dict[str, Any]) -> None:
    assert (summary["workflow"], summary["complete"]) == ("reviews", True)
    assert summary["rows"] == {"total": 3, "done": 2, "skipped": 0, "failed": 1, "dropped": 0, "open": 0}
    (stage,) = summary["stages"]
    times = stage.pop("timing_ms")
    assert times == summary["timing_ms"]
    assert times["duration"]["count"] == 3
    assert 0 < times["duration"]["p50"] <= times["duration"]["p95"]
    assert times["ttft"] == {"count": 0, "p50": None, "p95": None}
    assert stage == {
        "name": "say", "model": "local/echo", "alias": None, "answered_by": ["local/echo"],
        "done": 2, "reused": 0, "failed": 1, "skipped": 0, "dropped": 0,
        "repaired": 0, "json_repaired": 0, "by_fallback": 0,
    }  # fmt: skip
    assert (summary["calls"]["count"], summary["calls"]["failed"], summary["calls"]["simulated"]) == (3, 1, 3)
    assert summary["calls"]["input_tokens"] > 0
    (error,) = summary["errors"]
    assert (error["type"], error["stage"], error["rows"]) == ("Refused", "say", 1)
    assert error["example"] == {"id": "b", "row_number": 2, "message": "the model refused: no"}


def test_the_input_stands_last_when_it_is_wanted_and_taking_it_out_costs_nothing(
    project: ProjectFolder, faulty: Faulty
) -> None:
    mixed(project, faulty, output={"include_input": True})
    for envelope, text in zip(project.envelopes(), ("one", "two", "thrée"), strict=True):
        assert list(envelope) == ["id", "row_number", "ok", "result", "error", "input"]
        assert envelope["input"] == {"id": envelope["id"], "text": text}
    assert [list(e)[-1] for e in project.envelopes(file="errors.jsonl")] == ["input"]
    assert project.output() == ["one", "thrée"]
    project.workflow(defaults=ECHO, stages=SAY)
    assert project.run(retry_failed=False).invocation["calls"] == 0
    assert "input" not in project.envelopes()[0]


def test_results_are_the_last_stage_only_and_tell_nothing_of_the_simulator(project: ProjectFolder) -> None:
    project.numbered(2)
    judge = {"name": "judge", "prompt": "${text}", "output_schema": SENTIMENT}
    project.run(project.workflow(stages=[judge, {**SAY[0], "model": "local/echo"}]))
    assert project.output() == ["I love number 1", "I love number 2"]
    project.run(project.workflow(stages=[judge]))
    assert "simul" not in raw(project, "results.jsonl") + raw(project, "results.json")
    assert all(set(result) == {"sentiment", "reason"} for result in project.output())


def test_an_empty_input_and_rows_that_all_fail_give_empty_files(project: ProjectFolder, faulty: Faulty) -> None:
    project.write("data/rows.csv", "id,text\n")
    project.workflow(defaults=ECHO, stages=SAY)
    assert project.run().exit_code == 0
    assert [raw(project, name) for name in ("results.jsonl", "results.json", "errors.jsonl")] == ["", "[]\n", ""]
    project.asks(faulty([{"kind": "refusal"}]))
    project.numbered(3)
    assert project.run().exit_code == 3
    assert project.output() == []
    assert len(project.envelopes(file="errors.jsonl")) == 3


def test_a_stopped_run_leaves_the_outputs_of_the_one_before(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "unauthorized", "at": list(range(6, 100))}]))
    project.run(project.workflow(rows=5, defaults=ECHO, stages=SAY))
    before = raw(project, "results.jsonl")
    project.numbered(20)
    report = project.run()
    assert report.exit_code == 1
    assert report.files == []
    assert raw(project, "results.jsonl") == before


ODD = {
    "line separators": "a\u2028b\u2029c\x85d",
    "nul": "a\x00b",
    "every control character": "".join(map(chr, range(32))) + "\x7f",
    "beyond the plane": "🎉 𝔘𝔫𝔦 \U0010ffff",
    "right to left": "\u202eabc\u202c",
    "combining": "e\u0301 is not é",
    "quotes": "\"'`\\ {} ${x} $$ %s <a&b>",
    "byte order mark": "\ufeffa",
    "newlines": "a\nb\r\nc\rd",
    "spaces": "  a  ",
    "six megabytes": "ünï " * 1_000_000 + "end",  # a reply may have 16
}


def test_odd_texts_and_ids_come_through_unchanged(project: ProjectFolder, server: Server) -> None:
    names = [*ODD.values(), "1", "1.0", "01", "null", "#", "a#2", "ID", "id"]
    rows = [{"id": name[:100], "text": f"{n} {name}"} for n, name in enumerate(names)]
    texts = [row["text"] for row in rows]
    project.rows(rows, "data/rows.jsonl")
    project.workflow(defaults=ECHO, stages=SAY, path="data/rows.jsonl", output={"include_input": True})
    assert project.run().exit_code == 0
    assert project.output() == [envelope["input"]["text"] for envelope in project.envelopes()] == texts
    assert [envelope["id"] for envelope in project.envelopes()] == [row["id"] for row in rows]
    assert project.run().invocation["rows_unchanged"] == len(texts)
    project.rows(rows[::-1], "data/rows.jsonl")
    project.run()
    assert [envelope["id"] for envelope in project.envelopes()] == [row["id"] for row in rows[::-1]]
    assert server.account()["requests"] == len(names)
    project.assert_sound()


def test_numbers_keep_their_digits(project: ProjectFolder) -> None:
    numbers = '{"big": 18446744073709551617, "small": 1e-7, "f": 1.10, "z": -0.0}'
    project.write("data/rows.jsonl", f'{{"id": 123456789012345678901234567890, "text": {numbers}}}\n')
    project.workflow(defaults=ECHO, stages=SAY, path="data/rows.jsonl", output={"include_input": True})
    assert project.run().exit_code == 0
    assert project.output() == ['{"big":18446744073709551617,"small":1e-07,"f":1.1,"z":-0.0}']
    assert '"id":"123456789012345678901234567890"' in raw(project, "results.jsonl")
    assert '"id":123456789012345678901234567890' in raw(project, "results.jsonl")


def test_a_result_with_large_numbers_and_any_key_order_is_written_as_it_came(project: ProjectFolder) -> None:
    answer = '{"z":18446744073709551617,"a":[1.5,-0.0,1e-7],"m":{"y":null,"x":true}}'
    schema = {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}
    with project.asking(scripted(answer)):
        project.workflow(rows=1, stages=[{"name": "count", "prompt": "${text}", "output_schema": schema}])
        assert project.run().exit_code == 0
    assert (
        raw(project, "results.json")
        == '[\n{"z":18446744073709551617,"a":[1.5,-0.0,1e-07],"m":{"y":null,"x":true}}\n]\n'
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc\u2028é", max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def test_any_value_is_the_same_in_prompt_store_and_output(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("values")
    numbers = iter(range(10**6))

    @campaign(test=10, soak=200)
    @given(st.lists(values, min_size=1, max_size=6))
    def holds(some: list[Any]) -> None:
        project = ProjectFolder(base / str(next(numbers)))
        project.configure(server.base_url)
        project.rows([{"id": str(n), "value": value} for n, value in enumerate(some)], "data/rows.jsonl")
        stages = [{"name": "say", "prompt": "v: ${value}"}]
        project.workflow(defaults=ECHO, stages=stages, path="data/rows.jsonl", output={"include_input": True})
        assert project.run().exit_code == 0
        for envelope, value in zip(project.envelopes(), some, strict=True):
            said = envelope["result"].removeprefix("v: ")
            assert (said if isinstance(value, str) else json.loads(said)) == value
            assert envelope["input"]["value"] == value

    holds()


def test_a_run_says_whose_results_it_replaced_and_how_they_come_back(project: ProjectFolder) -> None:
    project.numbered(3)
    project.rows([{"id": "x", "text": "other"}], "data/other.csv")
    project.workflow(defaults=ECHO, stages=SAY)
    assert project.run().replaced is None
    full = raw(project, "results.jsonl")
    other = project.agac("run", "-a", "reviews", "--input", "data/other.csv")
    again = "They replace the results of run 1 (data/rows.csv). Restore those with: agac export --run 1\n"
    assert other.out.endswith(again), other.out
    assert len(project.envelopes()) == 1
    assert "Results of run 2: output/reviews/results.jsonl" in project.agac("status").out
    assert project.agac("export", "--run", "1").code == 0
    assert raw(project, "results.jsonl") == full
    status = project.agac("status")
    where = "The results of run 2 are not in output/reviews. Write them there with: agac export --run 2\n"
    assert status.out.endswith(where), status.out
    told = project.agac("run", "-a", "reviews", "--input", "data/other.csv", "--json").json["replaced"]
    assert told == {"run": 1, "input": "data/rows.csv", "again": "agac export --run 1"}


def test_the_results_of_a_run_at_its_limit_come_back_with_partial(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "two"}]).base_url)
    project.rows([{"id": str(n), "text": "one" if n < 2 else "two"} for n in range(9)])
    project.workflow(defaults=ECHO, stages=SAY, max_errors=1, stop_loss=False)
    assert project.run(concurrency=1).exit_code == 4
    replaced = project.run(input=project.rows([{"id": "x", "text": "other"}], "data/other.csv")).replaced
    assert replaced is not None
    assert replaced["again"] == "agac export --run 1 --partial"
    project.agac(*replaced["again"].split()[1:], code=0)


def test_nothing_is_said_to_be_replaced_that_was_not_there(project: ProjectFolder) -> None:
    project.workflow(rows=2, defaults=ECHO, stages=SAY)
    for limit in (1, 2):
        assert project.run(limit=limit).replaced is None  # a preview replaces previews
    project.run()
    for path in (project.root / "output/reviews").glob("*.*"):
        path.unlink()
    report = project.run(project.workflow(defaults=ECHO, stages=[{"name": "say", "prompt": "again ${text}"}]))
    assert (report.replaced, report.edited) == (None, ())
    assert "replaced" not in project.agac("run", "-a", "reviews").out


def test_a_file_that_somebody_changed_is_replaced_and_kept_as_a_copy(project: ProjectFolder, server: Server) -> None:
    project.run(project.workflow(rows=2, defaults=ECHO, stages=SAY, output={"format": "csv"}))
    table = project.root / "output/reviews/results.csv"
    before = table.read_text()
    table.write_text("sorted by hand")
    ran = project.agac("run", "-a", "reviews")
    assert ran.out.endswith("results.csv was not as agac left it; that version is kept as results.edited.csv\n")
    assert table.read_text() == before
    assert "as agac left" not in project.agac("run", "-a", "reviews").out
    table.write_text("and again")
    (table.parent / "results.jsonl").unlink()
    assert project.run().copies == (table.with_name("results.edited-2.csv"),)
    table.write_text("a third time")
    project.agac("export", "-a", "reviews", code=0)
    kept = [table.with_name(f"results.edited{end}.csv").read_text() for end in ("", "-2", "-3")]
    assert kept == ["sorted by hand", "and again", "a third time"]
    assert server.account()["requests"] == 2


def test_a_file_of_the_users_own_is_kept_as_a_copy(project: ProjectFolder, server: Server) -> None:
    own = project.write("output/reviews/results.csv", "mine")
    project.run(project.workflow(rows=2, defaults=ECHO, stages=SAY, output={"format": "csv"}))
    assert own.with_name("results.edited.csv").read_text() == "mine"
    own = project.write("output/reviews/results.tsv", "mine")
    project.run(project.workflow(defaults=ECHO, stages=SAY, output={"format": "tsv"}))
    assert own.with_name("results.edited.tsv").read_text() == "mine"
    assert server.account()["requests"] == 2


def test_a_price_that_nobody_knows_is_unknown_everywhere(project: ProjectFolder) -> None:
    project.workflow(rows=2, defaults=ECHO, stages=SAY)
    ran = project.agac("run", "-a", "reviews")
    assert "2 calls of unknown cost\n" in ran.out
    assert "$" not in ran.out
    assert "$" not in project.agac("status", "last").out
    summary = project.output(file="summary.json")
    assert (summary["calls"]["cost_usd"], summary["calls"]["calls_without_price"]) == (None, 2)
    again = project.agac("run", "-a", "reviews", "--json").json
    assert (again["invocation"]["cost_usd"], again["invocation"]["calls"]) == (0, 0)
    assert project.agac("run", "-a", "reviews", "--fresh", "--json").json["invocation"]["cost_usd"] is None


def test_one_known_price_is_a_sum_beside_the_number_of_unknown_ones(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices={"echo": {"input": 1000.0, "output": 0.0}})
    project.numbered(1)
    project.workflow(defaults=ECHO, stages=[*SAY, {"name": "more", "prompt": "${say}", "model": "local/small"}])
    calls = project.run().summary["calls"]
    assert calls["cost_usd"] > 0
    assert calls["calls_without_price"] == 1
    assert " and 1 call of unknown cost" in project.agac("run", "-a", "reviews").out
