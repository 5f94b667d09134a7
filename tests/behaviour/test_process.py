"""Row runs: `agac process INPUT OUTPUT`, a job that is known by its OUTPUT, and the same from Python."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import duckdb
import pytest
import yaml
from scripted_server import Step, answering, scripted
from support.processes import interrupt, killed, listening, wait_until
from support.project import SENTIMENT, ProjectFolder, Ran
from support.server import Faulty, Server

import agac

PROMPT = "Review: ${text}"
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["a", "b"]}}, "required": ["label"]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def process(project: ProjectFolder, *words: str, code: int = 0, **more: Any) -> Ran:
    """`agac process data/rows.csv out.jsonl` with further words."""
    places = ("data/rows.csv", "out.jsonl", "--prompt", PROMPT)
    places = () if words and (not words[0].startswith("-") or words[0] == "--input") else places
    return project.agac("process", *places, *words, code=code, **more)


def test_it_writes_one_file_and_prints_the_summary_as_json(project: ProjectFolder) -> None:
    project.numbered(3)
    ran = process(project, "--id-field", "id", "--error-output", "e.jsonl", "--telemetry-output", "t.jsonl",
                  "--summary-output", "s.json", "--parallel", "1")  # fmt: skip
    found = lines(project.root / "out.jsonl")
    assert [(one["id"], one["row_number"], one["ok"]) for one in found] == [
        ("r-1", 1, True), ("r-2", 2, True), ("r-3", 3, True),
    ]  # fmt: skip
    assert list(found[0]) == ["id", "row_number", "ok", "result", "error"]
    assert isinstance(found[0]["result"], str)
    summary = ran.json
    assert summary == json.loads((project.root / "s.json").read_text("utf-8"))
    counts = ("job", "model", "template", "output_mode", "input_rows", "selected_rows", "processed_rows",
              "skipped_rows", "ok_rows", "failed_rows", "interrupted", "exit_code", "exit_reason")  # fmt: skip
    assert [summary[name] for name in counts] == [
        "job_1", "local/small", "<inline>", "text", 3, 3, 3, 0, 3, 0, False, 0, "done",
    ]  # fmt: skip
    assert summary["duration_ms"] >= 0
    assert summary["timing_ms"]["duration"]["p95"] > 0
    assert (project.root / "e.jsonl").read_text() == ""
    told = lines(project.root / "t.jsonl")
    assert [one["id"] for one in told] == ["r-1", "r-2", "r-3"]
    turn = told[0]["usage"]["turn"]
    assert turn["input_tokens"] > 0
    assert all(0 < one["timing"]["ttft_ms"] <= one["timing"]["time_to_response_ms"] for one in told), "streamed for it"
    assert summary["usage"]["prompt_tokens"] == sum(one["usage"]["turn"]["input_tokens"] for one in told)
    assert summary["usage"]["total_tokens"] == summary["calls"]["input_tokens"] + summary["calls"]["output_tokens"]
    assert summary["timing_ms"]["ttft"]["count"] == 3
    assert "Results: out.jsonl, e.jsonl, t.jsonl" in ran.err
    assert "job_1: resume with `agac resume job_1`" in ran.err
    assert not (project.root / "output").exists()
    quiet = process(project, "--id-field", "id", "--no-final-summary", "-q")
    assert (quiet.out, quiet.err) == ("", "")


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("data/rows.csv", "o.csv", "--id-field", "id"), "id,text,result,error\nr-1,I love number 1,Said"),
        (("data/rows.csv", "o.tsv", "--include-input", "--csv-safe"), "id\ttext\tresult\terror\n"),
        (("data/rows.csv", "o.json"), '[\n"Said'),
        (("data/rows.csv", "o.txt"), "Said"),
        (("--input", "data/rows.csv", "--output", "o.data", "--format", "jsonl"), '{"id":1,"row_number":1,"ok":true,'),
        (("data/rows.csv", "o.jsonl", "--merge", "append"), '{"id":1,"row_number":1,"ok":true,"result":{"id":"r-1",'),
        (("data/*.csv", "o.jsonl", "--include-input"), '{"id":1,"row_number":1,"ok":true,"result":"Said'),
        (("data/rows.csv", "o.jsonl", "--json-schema", "s.json"), '{"id":1,"row_number":1,"ok":true,"result":{"label"'),
        (("data/rows.csv", "o.jsonl", "--schema-model", "kinds:Kind"), '{"id":1,"row_number":1,"ok":true,"result":{"l'),
    ],
)  # fmt: skip
def test_every_format_and_option_has_its_place(project: ProjectFolder, words: tuple[str, ...], written: str) -> None:
    project.numbered(2)
    project.write("s.json", json.dumps(SCHEMA))
    project.write("kinds.py", "from pydantic import BaseModel\n\n\nclass Kind(BaseModel):\n    label: str\n")
    process(project, *words, "--prompt", "Said ${text}", "--limit", "1", "--no-final-summary")
    (made,) = project.root.glob("o.*")
    assert made.read_text("utf-8").startswith(written)


def test_rows_go_into_a_table_too(project: ProjectFolder) -> None:
    project.numbered(3)
    (below := project.root / "below").mkdir()
    words = ("../data/rows.csv", "o.csv", "--id-field", "id", "-p", "{text}", "-m", "simulator/echo", "--to")
    process(project, *words, "sqlite://../t.db?table=t", "--limit", "2", cwd=below)
    ran = process(project, *words, "sqlite://../t.db?table=t", cwd=below)
    assert project.agac("resume", ran.json["job"], code=0).json["skipped_rows"] == 3
    with closing(sqlite3.connect(project.root / "t.db")) as database:
        assert len(database.execute("SELECT id, result FROM t").fetchall()) == 3
    assert not list(project.root.glob("**/*.previous-2"))
    for wrong, said in (("t.db?tabel=t", "--to: unknown parameter"), ("o.csv?table=t", "is the database of --to")):
        assert said in process(project, *words, f"sqlite://{wrong}", code=2, cwd=below).err


def test_how_the_input_is_read_is_said_by_keys_of_a_workflow(project: ProjectFolder) -> None:
    text = "id;größe\nä;1\nä;2\nb;3\n".encode("cp1252")
    (project.root / "rows.dat").write_bytes(text)
    keys = ("o.jsonl", "--id-field", "id", "--prompt", "{größe}", "--model", "simulator/echo", "--overwrite")
    format_ = ("--read", "format=csv")
    how = ("--read", "delimiter=;", "--read", "encoding=cp1252", "--read", "on_duplicate_id=last")
    for source in ("rows.dat", "-"):
        refused = project.piped(text, "process", source, *keys, *how)
        assert (refused.code, "(`agac process`: --read format=csv)" in refused.err) == (2, True)
        assert project.piped(text, "process", source, *keys, *how, *format_).code == 0
        assert [one["result"] for one in lines(project.root / "o.jsonl")] == ["2", "3"]
    assert project.agac("resume", "job_2", code=0).json["processed_rows"] == 0
    for read, said in {"bom=1": "--read bom: unknown key", "delimiter=ab": "--read delimiter: 'ab' is no "}.items():
        assert said in project.agac("process", "rows.dat", *keys, *format_, "--read", read, code=2).err
    assert "--read x: write NAME=VALUE" in project.agac("process", "rows.dat", *keys, "--read", "x", code=2).err


def test_a_key_of_the_input_may_be_true_or_false(project: ProjectFolder) -> None:
    (folder := project.root / "year=2024").mkdir()
    duckdb.sql("SELECT 'x' AS t").write_parquet(str(folder / "rows.parquet"))
    keys = ("year=2024/rows.parquet", "o.jsonl", "--prompt", "{t} of {year}", "--model", "simulator/echo")
    project.agac("process", *keys, "--read", "hive=true", code=0)
    assert [one["result"] for one in lines(project.root / "o.jsonl")] == ["x of 2024"]
    refused = project.agac("process", *keys, "--overwrite", "--read", "hive=false", code=2)
    assert "year" in refused.err


def test_prompts_come_from_texts_files_and_variables(project: ProjectFolder) -> None:
    project.numbered(1)
    project.write("prompt.md", "${vars.a} ${vars.b} ${vars.c}: ${text}\n")
    project.write("b.txt", "of the file\n")
    project.write("vars.json", '{"a": "json", "b": "json", "c": "json"}')
    project.write("be.md", "Be brief with ${vars.a}.")
    ran = process(
        project, "data/rows.csv", "o.jsonl", "--template", "prompt.md", "--instruction", "be.md", "--vars-json",
        "vars.json", "--var-file", "b=b.txt", "--var", "a=typed", "--dry-run", "--limit", "5",
    )  # fmt: skip
    assert "[system]\nBe brief with typed.\n[user]\ntyped of the file json: I love number 1" in ran.out
    assert not (project.root / "o.jsonl").exists()
    ran = process(project, "data/rows.csv", "o.jsonl", "--instruction", "Be very brief.", "--dry-run")
    assert '[system]\nBe very brief.\n[user]\n{\n  "id": "r-1",\n  "text": "I love number 1"\n}' in ran.out
    assert not (project.root / ".agac/agac.db").exists()


REFUSED = {
    ("data/rows.csv", "data/rows.csv"): "is the INPUT",
    ("data/link.csv", "data/rows.csv"): "is the INPUT",
    ("data/*.csv", "data/new.csv"): "is one of the files of the INPUT",
    ("data/*.csv", "data/../data/new.csv"): "is one of the files of the INPUT",
    ("sqlite://d.db?table=t", "d.db", "--format", "csv"): "is the INPUT",
    ("data/rows.csv", ".agac/o.csv"): "belongs to agac or git",
    ("data/rows.csv", "foreign.jsonl"): "exists, and this job did not write it",
    ("data/rows.csv", "o.jsonl", "--error-output", "foreign.jsonl"): "exists, and this job did not write it",
    ("data/rows.csv", "o.jsonl", "--summary-output", "foreign.jsonl"): "exists, and this job did not write it",
    ("data/rows.csv", "-", "--telemetry-output", "foreign.jsonl"): "exists, and this job did not write it",
    ("data/rows.csv", "o.jsonl", "--error-output", "o.jsonl"): "is OUTPUT",
    ("data/rows.csv", "foreign.jsonl", "--template", "foreign.jsonl", "--overwrite"): "is a file that the job reads",
    ("data/rows.csv", "o.jsonl", "--save-workflow", "data/rows.csv", "--overwrite"): "is the INPUT",
    ("data/rows.csv", "o.jsonl", "--save-workflow", "o.jsonl"): "is OUTPUT",
    ("data/rows.csv", "o.jsonl", "--save-workflow", "w.yml", "--config", "job.yaml"): "has no address or key",
    ("data/rows.csv", "o.jsonl", "--config", "secret.yaml"): "has a user or a password in it",
    ("data/rows.csv", "o.jsonl", "--work-dir", "foreign.jsonl/x"): "cannot be made: Not a directory",
    ("data/rows.csv", "o.jsonl", "--var-file", "a=latin"): "latin:1:1: byte 0xe9 is not valid UTF-8",
    ("data/rows.csv", "o.what"): "its name tells no format",
    ("data/rows.csv", "o.jsonl.gz"): "results are not compressed",
    ("data/rows.csv", "postgres://u:hidden@h/d?table=t", "--format", "csv"): "OUTPUT is an address",
    ("data/rows.csv", "-", "--format", "csv"): "is written row by row",
    ("data/rows.csv", "nowhere/o.csv"): "there is no folder",
    ("data/rows.csv", "o.csv", "--template", "none.md"): "no such file",
    ("data/rows.csv", "o.csv", "--prompt", "x", "--template", "y"): "--prompt and --template both",
    ("data/rows.csv", "o.csv", "--json-schema", "x", "--schema-model", "a:B"): "--json-schema and --schema-model both",
    ("data/rows.csv", "o.csv", "third"): "unexpected argument: third",
    ("data/rows.csv",): "OUTPUT is missing",
    ("data/rows.csv", "o.csv", "--vars-json", "foreign.jsonl"): "not valid JSON",
    ("data/rows.csv", "o.csv", "--prompt", "${txt}"): "did you mean 'text'?",
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_is_refused_changes_nothing(project: ProjectFolder, words: tuple[str, ...]) -> None:
    path = project.numbered(2)
    os.link(path, project.root / "data/link.csv")
    project.write("foreign.jsonl", "mine\n")
    project.write("d.db", "")
    (project.root / "latin").write_bytes(b"\xe9")
    for name, address in (("job", "http://127.0.0.1:9/v1"), ("secret", "http://u:hidden@127.0.0.1:9/v1")):
        project.write(f"{name}.yaml", f"llm: {{provider: local, model: m, base_url: '{address}'}}")
    if ".agac" in words[-1]:
        (project.root / ".agac").mkdir()
    before = {one: one.read_bytes() for one in project.root.rglob("*") if one.is_file()}
    ran = process(project, *words, code=2)
    assert REFUSED[words] in ran.err
    assert "hidden" not in ran.err
    assert before == {one: one.read_bytes() for one in project.root.rglob("*") if one.is_file()}


def test_a_job_is_known_by_its_output(project: ProjectFolder, server: Server) -> None:
    """Another limit, prompt, schema or model goes on in the same file; what is unchanged is not asked again."""
    project.asks(server)
    project.numbered(4)
    server.reset()
    charged = []
    project.write("s.json", json.dumps(SCHEMA))
    output, previous = project.root / "out.jsonl", project.root / "out.jsonl.previous"
    contents = [b""]
    steps = [(), ("--limit", "2"), ("--limit", "4"), ("--json-schema", "s.json"), ("--model", "local/large"), ()]
    for words in steps:
        process(project, *words)
        charged.append(server.account()["charged"])
        contents.append(output.read_bytes())
        assert previous.exists() == (len(contents) > 2)
        assert previous.read_bytes() == contents[-2] if len(contents) > 2 else True
    assert charged == [4, 4, 4, 8, 12, 12]
    assert [len(one.splitlines()) for one in contents] == [0, 4, 2, 4, 4, 4, 4]
    process(project)
    assert output.read_bytes() == contents[-1], "nothing changed"
    assert sorted(one.name for one in project.root.glob("out*")) == ["out.jsonl", "out.jsonl.previous"]
    process(project, "--fresh")
    assert server.account()["charged"] == 16


def test_what_agac_did_not_write_is_replaced_only_on_purpose_and_kept(project: ProjectFolder) -> None:
    project.numbered(2)
    output = project.write("out.jsonl", "mine\n")
    assert "--overwrite" in process(project, code=2).err
    ran = process(project, "--overwrite")
    assert len(lines(output)) == 2
    assert (project.root / "out.jsonl.previous").read_text() == "mine\n"
    assert "is kept as out.jsonl.previous" in ran.err
    process(project, "--limit", "1")
    assert (project.root / "out.jsonl.previous").read_text() == "mine\n", "not agac's to delete"
    assert len(lines(project.root / "out.jsonl.previous-2")) == 2
    project.rows([{"id": "x", "text": "y"}], "data/other.csv")
    ran = process(project, "data/other.csv", "out.jsonl", code=2)
    assert "has the results of another INPUT, data/rows.csv" in ran.err
    assert "Leave out --no-resume" in process(project, "--no-resume", code=2).err
    process(project, "data/other.csv", "out.jsonl", "--overwrite", "--prompt", PROMPT)
    assert [one["row_number"] for one in lines(output)] == [1]


def test_a_torn_or_edited_output_is_made_again_from_the_store(project: ProjectFolder) -> None:
    """The file is never read: what is in it decides nothing, and what a user wrote into it is kept."""
    project.numbered(3)
    process(project)
    output = project.root / "out.jsonl"
    whole = output.read_bytes()
    output.write_bytes(whole[:-9])
    ran = process(project)
    assert output.read_bytes() == whole
    assert (ran.json["processed_rows"], ran.json["skipped_rows"]) == (0, 3)
    kept = project.root / "out.jsonl.previous"
    assert kept.read_bytes() == whole[:-9]
    kept.unlink()
    kept.symlink_to("nowhere")
    output.write_bytes(b"mine\n")
    process(project)
    assert (kept.is_symlink(), kept.with_name(f"{kept.name}-2").read_bytes()) == (True, b"mine\n")


@pytest.mark.parametrize("ends", ["kill", "interrupt"])
def test_a_jsonl_output_grows_and_is_whole_up_to_its_last_line(
    project: ProjectFolder, faulty: Faulty, ends: str
) -> None:
    project.configure(faulty([], "--latency", "0.05").base_url)
    project.numbered(60)
    output = project.root / "out.jsonl"
    words = ("process", "data/rows.csv", "out.jsonl", "--prompt", PROMPT, "--id-field", "id", "--parallel", "4")
    seen = 0
    for some in (6, 14, 24):
        started = listening(project.start(*words))
        wait_until(lambda: output.exists() and len(output.read_bytes().splitlines()) >= some, "rows", started)  # noqa: B023
        killed(started) if ends == "kill" else interrupt(started)
        if ends == "interrupt":
            out, err = started.communicate()
            assert (started.returncode, json.loads(out)["interrupted"]) == (130, True)
            assert "Resume with: agac resume job_1" in err.decode()
        text = output.read_text("utf-8")
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        assert len({one["id"] for one in found}) == len(found) >= max(some, seen)
        assert all(one["ok"] and one["result"] for one in found)
        seen = len(found)
    ran = project.agac("resume", "job_1", code=0)
    assert [one["row_number"] for one in lines(output)] == list(range(1, 61))
    assert ran.json["ok_rows"] == 60
    assert not (project.root / "out.jsonl.previous").exists()
    project.assert_sound()


def test_lines_of_a_text_output_are_those_of_the_input_but_for_its_end_and_for_a_selection(
    project: ProjectFolder,
) -> None:
    project.write("in.txt", "a\n\nb\nc\n\n\n")
    echo = ("--prompt", "{content}", "--model", "simulator/echo")
    process(project, "in.txt", "whole.txt", *echo)
    assert (project.root / "whole.txt").read_text("utf-8") == "a\n\nb\nc\n"
    process(project, "in.txt", "part.txt", *echo, "--offset", "1")
    assert (project.root / "part.txt").read_text("utf-8") == "b\nc\n"
    process(project, "in.txt", "part.jsonl", *echo, "--offset", "1")
    assert [one["row_number"] for one in lines(project.root / "part.jsonl")] == [2, 3]


def test_a_line_that_is_appended_is_one_line_however_the_model_wrote_it(project: ProjectFolder) -> None:
    project.numbered(3)
    places, output, grown = (project.root / "data/rows.csv", project.root / "out.jsonl"), project.root / "out.jsonl", []

    def answer(prompt: str) -> Step:
        number = int(prompt[-1])
        if number > 1:  # the rows before are in the file
            wait_until(lambda: output.exists() and len(lines(output)) == number - 1, "a row")
            grown.append(output.read_text("utf-8"))
        return Step('{\n  "label":\r\n "a"\n}')

    with answering(answer, project):
        options = agac.ProcessOptions(prompt=PROMPT, json_schema=SCHEMA, parallel=1)
        assert agac.process(*places, options, project=project.root).exit_code == 0
    assert [len(text.splitlines()) for text in grown] == [1, 2]
    assert [one["result"] for one in lines(output)] == [{"label": "a"}] * 3


@pytest.mark.parametrize("moment", ["os.rename:1", "committed:3", "os.rename:2"])
def test_killed_while_its_file_is_shown_it_keeps_what_was_there(project: ProjectFolder, moment: str) -> None:
    project.numbered(3)
    process(project)
    first = (project.root / "out.jsonl").read_bytes()
    words = ("data/rows.csv", "out.jsonl", "--prompt", "Now ${text}")
    project.agac("process", *words, kill=moment)
    kept, output = project.root / "out.jsonl.previous", project.root / "out.jsonl"
    assert first in [one.read_bytes() for one in (kept, output) if one.exists()]
    process(project, *words)
    assert len(lines(output)) == 3
    assert kept.read_bytes() == first
    assert not (project.root / "out.jsonl.previous-2").exists()


@pytest.mark.parametrize(("output", "moment"), [("out.csv", "os.rename:3"), ("out.jsonl", "os.rename:4")])
def test_killed_among_its_files_it_knows_them_as_its_own(project: ProjectFolder, output: str, moment: str) -> None:
    project.rows([{"id": "r-1", "text": "x"}] * 2)
    words = ("data/rows.csv", output, "--prompt", PROMPT, "--telemetry-output", "t.jsonl", "--error-output", "e.jsonl")
    project.agac("process", *words, "--id-field", "id", kill=moment)
    assert len(lines(project.root / "e.jsonl")) == 1
    assert project.agac("resume", "job_1", code=3).json["calls"]["count"] == 1
    project.write("e.jsonl", "mine")
    assert "e.jsonl exists, and this job did not write it" in process(project, *words, code=2).err


def test_standard_output_gets_each_row_once_when_it_ends(project: ProjectFolder) -> None:
    project.numbered(3)
    ran = process(project, "data/rows.csv", "-", "--prompt", PROMPT, "--limit", "2")
    assert sorted(json.loads(line)["row_number"] for line in ran.out.splitlines()) == [1, 2]
    ran = process(project, "data/rows.csv", "-", "--prompt", PROMPT)
    assert sorted(json.loads(line)["row_number"] for line in ran.out.splitlines()) == [1, 2, 3]
    ran = process(project, "data/rows.csv", "/dev/stdout", "--prompt", PROMPT)
    assert [json.loads(line)["row_number"] for line in ran.out.splitlines()] == [1, 2, 3]
    ran = project.piped(b'{"text": "x"}\n', "process", "-", "-", "--prompt", PROMPT)
    assert json.loads(ran.out)["ok"]
    assert not list(project.root.glob("-*"))


def test_failed_rows_are_no_success(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "number 2"}]).base_url)
    project.numbered(3)
    ran = process(project, "--error-output", "e.jsonl", "--include-input", code=3)
    assert [one["ok"] for one in lines(project.root / "out.jsonl")] == [True, False, True]
    (failed,) = lines(project.root / "e.jsonl")
    assert (failed["error"]["type"], failed["input"]["id"]) == ("Refused", "r-2")
    assert (ran.json["failed_rows"], ran.json["exit_code"]) == (1, 3)
    assert "see them with: agac inspect 1" in project.agac("status").out
    assert "was made by `agac process`" in project.agac("retry", "job_1", code=2).err


def test_failed_rows_stand_in_a_json_output_and_are_marked_in_text(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "number 2"}]).base_url)
    project.numbered(3)
    process(project, "data/rows.csv", "o.json", "--prompt", PROMPT, "--id-field", "id", code=3)
    found = json.loads((project.root / "o.json").read_text("utf-8"))
    assert [type(one) for one in found] == [str, dict, str]
    assert {key: found[1][key] for key in ("id", "row_number", "ok", "result")} == {
        "id": "r-2", "row_number": 2, "ok": False, "result": None,
    }  # fmt: skip
    assert found[1]["error"]["type"] == "Refused"
    process(project, "data/rows.csv", "o.txt", "--prompt", PROMPT, "--id-field", "id", code=3)
    text = (project.root / "o.txt").read_text("utf-8").split("\n")
    assert [line.startswith("[failed] Refused: ") for line in text] == [False, True, False, False]


@pytest.mark.parametrize(("content", "kind"), [('{"text": "one"}', str), ('[{"text": "one"}]', list)])
def test_one_json_object_in_gives_one_result_out_and_a_list_a_list(
    project: ProjectFolder, content: str, kind: type[Any]
) -> None:
    project.write("data/in.json", content)
    process(project, "data/in.json", "o.json", "--prompt", PROMPT)
    assert isinstance(json.loads((project.root / "o.json").read_text("utf-8")), kind)
    project.agac("export", "--run", "1", "--to", "again.json")
    assert (project.root / "again.json").read_bytes() == (project.root / "o.json").read_bytes()


def test_one_json_object_whose_row_fails_gives_one_envelope(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "one"}]).base_url)
    project.write("data/in.json", '{"text": "one"}')
    process(project, "data/in.json", "o.json", "--prompt", PROMPT, code=3)
    assert json.loads((project.root / "o.json").read_text("utf-8"))["error"]["type"] == "Refused"


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("Truncated", {"kind": "length"}),
    ("Refused", {"kind": "refusal"}),
    ("Filtered", {"kind": "filter"}),
    ("EmptyResponse", {"kind": "empty"}),
    ("SchemaMismatch", {"kind": "malformed_json"}),
    ("ProviderError", {"kind": "server_error", "status": 500}),
    ("ProviderError", {"kind": "bad_request"}),
    ("ProviderError", {"kind": "cut", "after_bytes": 300}),
    ("ProviderError", {"kind": "invalid_body"}),
    ("Timeout", {"kind": "hang"}),
]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=["whole", "streamed"])
def test_errors_are_what_they_are_and_nothing_of_them_is_a_result(
    project: ProjectFolder, faulty: Faulty, more: dict[str, Any]
) -> None:
    """A fault a row, for ever: each has its envelope, its kind, its line of telemetry; the job ends with 3."""
    rules = [{**fault, "match": f"number {n}.", "always": True} for n, (_, fault) in enumerate(FAULTS, 1)]
    project.configure(faulty(rules).base_url)
    project.rows({"id": f"r-{n}", "text": f"number {n}."} for n in range(1, len(FAULTS) + 2))
    options = agac.ProcessOptions(
        prompt=PROMPT,
        json_schema=SCHEMA,
        row_timeout=1.0,
        max_retries=2,
        telemetry_output=str(project.root / "t.jsonl"),
        **more,
    )
    report = agac.process(project.root / "data/rows.csv", project.root / "out.jsonl", options, project=project.root)
    found = lines(project.root / "out.jsonl")
    assert [one["error"] and one["error"]["type"] for one in found] == [*(kind for kind, _ in FAULTS), None]
    assert [one["ok"] for one in found] == [one["error"] is None for one in found]
    assert [one["result"] for one in found[:-1]] == [None] * len(FAULTS)
    assert [one["ok"] for one in lines(project.root / "t.jsonl")] == [one["ok"] for one in found]
    assert (report.exit_code, report.summary["failed_rows"], report.summary["ok_rows"]) == (3, len(FAULTS), 1)


def test_what_came_of_a_cut_reply_is_kept(project: ProjectFolder) -> None:
    """In the line that grows, in the file as it is in the end, in that of errors, and after runs that ask no more."""
    project.numbered(1)
    places, told = (project.root / "data/rows.csv", project.root / "out.jsonl"), []
    error = {"type": "Truncated", "message": ANY, "partial": "half a \u00fc re"}
    with project.asking(scripted(Step("half a \u00fc re", finish="length"))) as server:
        options = agac.ProcessOptions(prompt=PROMPT, error_output=str(project.root / "e.jsonl"))
        for _ in range(5):
            assert agac.process(*places, options, project=project.root).exit_code == 3
            found = [*lines(project.root / "out.jsonl"), *lines(project.root / "e.jsonl")]
            assert [one["error"] for one in found] == [error] * 2
        assert len(server.asked) < 5, "it is left alone"
        options = agac.ProcessOptions(prompt="Now ${text}")
        agac.process(places[0], "-", options, project=project.root, tell=told.extend)
    assert [json.loads(line)["error"] for line in told] == [error]


def test_a_second_interrupt_leaves_no_envelope_of_the_call_in_flight(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "hang", "match": "number 2", "first": 1}])
    project.configure(server.base_url)
    project.numbered(3)
    words = ("process", "data/rows.csv", "out.jsonl", "--prompt", PROMPT, "--stream")
    started = listening(project.start(*words))
    output = project.root / "out.jsonl"
    wait_until(lambda: output.exists() and server.account()["requests"] == 2, "the second call", started)
    interrupt(started)
    interrupt(started)
    out, err = started.communicate()
    assert started.returncode == 130
    assert (json.loads(out)["interrupted"], json.loads(out)["exit_reason"]) == (True, "interrupted")
    assert "1 call in flight was cancelled" in err.decode()
    assert [(one["id"], one["ok"]) for one in lines(output)] == [(1, True)]
    assert project.agac(*words, code=0).json["ok_rows"] == 3


def test_what_stops_a_job_says_how_it_goes_on(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "number"}]).base_url)
    project.numbered(40)
    ran = process(project, "--parallel", "1", code=1)
    assert "No more calls are made. Look at a row with `agac inspect 1`" in ran.err
    assert "Fix the problem, then resume with: agac resume job_1\n" in ran.err
    assert "stop_loss: false" not in ran.err
    assert [one["error"]["type"] for one in lines(project.root / "out.jsonl")] == ["Refused"] * 17
    ran = process(project, "--max-errors", "3", "--parallel", "1", "--offset", "1", code=4)
    (command,) = re.findall(r"`agac inspect 2`\), or allow them: agac (resume job_2 --max-errors \d+)", ran.err)
    assert project.agac(*command.split()).code in (3, 4)


def test_a_batch_comes_back_into_the_file(project: ProjectFolder) -> None:
    project.numbered(3)
    ran = process(project, "--run-mode", "batch", "--model", "simulator/small")
    assert (ran.json["ok_rows"], (project.root / "out.jsonl").exists()) == (0, False)
    assert "`agac resume job_1 --wait` waits" in ran.err
    project.agac("batch", "wait", code=0)
    assert "Results: out.jsonl\n" in project.agac("batch", "retrieve", code=0).out
    assert project.agac("resume", "job_1", "--wait", code=0).json["ok_rows"] == 3
    output = project.root / "out.jsonl"
    assert [one["ok"] for one in lines(output)] == [True] * 3
    output.unlink()
    project.agac("export", "--run", "job_1", code=0)
    assert len(lines(output)) == 3
    project.rows([{"id": "r-1", "text": "x"}] * 2)
    words = ("data/rows.csv", "dup.csv", "--prompt", PROMPT, "--id-field", "id", "--run-mode", "batch")
    process(project, *words, "--model", "simulator/small")
    project.agac("batch", "wait", code=0)
    ran = project.agac("batch", "retrieve", code=3)
    assert "DuplicateId: 1 row" in ran.out
    assert "Results: dup.csv\n" in ran.out


def test_an_empty_folder_keeps_its_state_and_says_so_once(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path / "bare")
    (project.root / "agac.yml").unlink()
    project.numbered(2)
    (project.root / "sub").mkdir()
    words = ("--model", "simulator/small", "--id-field", "id")
    assert "name one with --model, or write" in process(project, code=2).err
    assert "No agac.yml here: the state of this folder goes into .agac." in process(project, *words).err
    assert "No agac.yml" not in process(project, *words).err
    told = (
        ("status", "  1  job_1: out.jsonl  finished"), ("runs", "  1  job_1: out.jsonl  finished"),
        ("inspect job_1", "job_1: finished"), ("why job_1 r-1 result", "Review: I love"),
        ("status 1", "job_1: finished"), ("show 1", "job_1: finished"), ("inspect 1 r-1", "job_1, 'r-1' (row 1 "),
        ("resume 1 --dry-run", "job_1: 2 rows; resumes run 1"),
        ("sql SELECT~1~AS~one", "one"), ("doctor", "All is well"), ("gc --keep-runs 1", "Kept: job_1"),
    )  # fmt: skip
    for command, said in told:
        shown = project.agac(*(word.replace("~", " ") for word in command.split()), code=0).out
        assert said in shown
        assert "process-out-" not in shown, command
    ran = project.agac("resume", "job_1", cwd=project.root / "sub")
    assert ran.code == 0, ran.err
    assert len(lines(project.root / "out.jsonl")) == 2
    assert "is not a run" in project.agac("resume", "job_x", code=2).err
    project.agac("init")
    assert process(project, "--id-field", "id", "--model", "simulator/small").json["processed_rows"] == 0


def test_resume_is_for_row_runs(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    project.run()
    assert "Resume it with: agac run -a reviews" in project.agac("resume", "1", code=2).err


def test_a_workflow_is_saved_that_does_the_same(project: ProjectFolder) -> None:
    project.numbered(2)
    project.write("s.json", json.dumps(SCHEMA))
    words = ("--id-field", "id", "--json-schema", "s.json", "--model", "simulator/small", "--budget", "calls=9")
    process(project, *words, "--save-workflow", "workflows/saved.yml")
    saved = yaml.safe_load((project.root / "workflows/saved.yml").read_text("utf-8"))
    assert saved["stages"] == [
        {"name": "result", "prompt": PROMPT, "syntax": "auto", "output_schema": "s.json", "model": "simulator/small"}
    ]
    assert saved["budget"] == {"calls": 9}
    ran = project.agac("run", "saved", "--json", code=0)
    assert (ran.json["invocation"]["calls"], ran.json["rows"]["done"]) == (0, 2), "the same fingerprints"
    assert "exists" in process(project, *words, "--save-workflow", "workflows/saved.yml", code=2).err
    words = (*words, "--sql", "SELECT * FROM input LIMIT 1", "--instruction", "Be kind.\nBe brief.")
    process(project, *words, "--dry-run", "--save-workflow", "workflows/some.yml")
    assert "instructions: |-\n    Be kind.\n    Be brief.\n" in (project.root / "workflows/some.yml").read_text("utf-8")
    assert project.agac("run", "some", "--json", code=0).json["rows"]["total"] == 1, "no more rows are asked"


def test_progress_every_so_many_rows(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([], "--latency", "0.2").base_url)
    project.numbered(6)
    ran = process(project, "--parallel", "1", "--progress-every", "2")
    assert len(re.findall(r"^result .*/6", ran.err, re.M)) >= 2


def test_from_python(project: ProjectFolder) -> None:
    project.numbered(2)
    options = agac.ProcessOptions(prompt=PROMPT, json_schema=SCHEMA, limit=1)
    places = (project.root / "data/rows.csv", project.root / "out.jsonl")
    told: list[str] = []
    assert agac.process_plan(*places, options, project=project.root).calls == 1
    report = agac.process(*places, options, project=project.root, began=told.append)
    assert ([row.ok for row in report.results()], told, report.files) == ([True], ["job_1"], [places[1]])
    assert agac.resume("job_1", project=project.root).summary["skipped_rows"] == 1


CONFIG = {
    "llm": {"provider": "local", "model": "small", "temperature": 0.5, "max_tokens": 99},
    "processing": {"mode": "sequential"},
    "prompt": PROMPT,
    "output": {"format": "structured", "merge_strategy": "update", "schema": SENTIMENT},
}


def test_the_summary_names_the_model_with_its_keys(project: ProjectFolder, server: Server) -> None:
    project.numbered(1)
    model = "local/small?reasoning=low&seed=3"
    ran = process(project, "--model", model, "--summary-output", "summary.json", code=0)
    assert ran.json["model"] == "local/small?seed=3&reasoning=low"
    assert json.loads((project.root / "summary.json").read_text())["model"] == ran.json["model"]


def test_a_job_is_read_from_a_file(project: ProjectFolder, server: Server) -> None:
    """The address and the key of a provider may stand in it; options win over its keys."""
    project.numbered(2)
    llm = {**CONFIG["llm"], "base_url": server.base_url, "api_key": "${KEY_OF_TEST}"}  # type: ignore[dict-item]
    project.write("job.yaml", yaml.safe_dump({**CONFIG, "llm": llm}))
    words = ("process", "data/rows.csv", "out.csv", "--config", "job.yaml", "--limit", "1")
    server.reset()
    ran = project.agac(*words, env={"KEY_OF_TEST": "sk-of-the-test"}, code=0)
    assert (ran.json["model"], server.account()["requests"]) == ("local/small", 1)
    head, row = (project.root / "out.csv").read_text("utf-8").splitlines()
    assert head == "id,text,reason,sentiment,error"
    assert row.startswith("r-1,I love number 1,")
    stored = str(project.query("SELECT body FROM event"))
    assert "sk-of-the-test" not in stored
    assert "${KEY_OF_TEST}" in stored
    assert project.agac("resume", "job_1", env={"KEY_OF_TEST": "sk-of-the-test"}, code=0).json["skipped_rows"] == 1
    assert "typed" in project.agac(*words, "--prompt", "typed ${text}", "--dry-run", env={"KEY_OF_TEST": "x"}).out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"promt": "x"}, "unknown key; did you mean 'prompt'?"),
        ({"llm": {"api_key": "sk-plain"}}, "is written as the name of a variable"),
        ({"mode": "fast"}, "async"),
        ({"output": {"format": "text", "schema": {"a": "string"}}}, "a text has no schema"),
    ],
)
def test_what_is_wrong_with_a_job_file_is_said(project: ProjectFolder, change: dict[str, Any], said: str) -> None:
    project.numbered(1)
    project.write("job.yaml", yaml.safe_dump({**CONFIG, **change}))
    ran = process(project, "data/rows.csv", "o.csv", "--config", "job.yaml", code=2)
    assert "job.yaml:" in ran.err
    assert said in ran.err
    assert "sk-plain" not in ran.err.replace('"sk-plain"', "") or "api_key" not in change


EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs/examples").glob("*.yaml"))


def test_there_are_four_examples() -> None:
    assert [path.stem for path in EXAMPLES] == ["classification", "extraction", "summarization", "translation"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_its_first_line_says(project: ProjectFolder, path: Path) -> None:
    project.rows([{"id": "1", "text": "Ada met Alan in Paris"}, {"id": "2", "text": "It rains"}], "texts.csv")
    text = path.read_text("utf-8")
    project.write(path.name, text)
    words = text.splitlines()[0].removeprefix("# agac ").split()
    summary = project.agac(*words, code=0).json
    assert (summary["ok_rows"], summary["model"].split("?")[0]) == (2, "simulator/small")
    written = (project.root / words[2]).read_text("utf-8")
    if words[2].endswith(".csv"):
        keys = "id,text,result,error" if path.stem == "translation" else "id,text,sentiment,reason,error"
        assert written.splitlines()[0] == keys
    else:
        results = [json.loads(line)["result"] for line in written.splitlines()]
        assert all(isinstance(one, str) or set(one) == {"people", "places"} for one in results)
