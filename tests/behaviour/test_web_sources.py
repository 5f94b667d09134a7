"""The sources of searches that providers run: kept with each answer, and written where a workflow asks for them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import pytest
import yaml
from scripted_server import Step, scripted
from support.monitor import monitor
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.services import services
from support.shards import Sharded

import agac
from agac.providers.citations import MESSAGE_SOURCES, sources_of

SAY = {"name": "say", "prompt": "${text}"}
ASKED = {"output": {"dir": "output/reviews", "sources": True}}
MODELS = {
    "openai-chat": "simulator/small:online",
    "openai-responses": "simulator-responses/small?web_search=on",
    "anthropic": "simulator-anthropic/small?web_search=on",
}
dialects = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def of_stage(envelope: dict[str, Any], stage: str = "say") -> list[dict[str, Any]]:
    """The sources that a line of results.jsonl has for a stage."""
    found = envelope["sources"][stage]
    assert all(set(one) == {"url", "title", "cited", "quote", "start", "end"} for one in found)
    return list(found)


def assert_searched(envelope: dict[str, Any]) -> None:
    cited, found = of_stage(envelope)
    assert (cited["cited"], found["cited"]) == (True, False)
    assert cited["url"].startswith("https://simulated.example/")
    assert found["url"] == f"{cited['url']}/more"
    assert cited["title"]
    assert (cited["start"], cited["end"]) == (0, len(envelope["result"]))


@dialects
@pytest.mark.parametrize("way", ["call", "stream", "batch"])
def test_an_answer_keeps_its_sources_and_a_reused_one_has_them_still(
    project: ProjectFolder, model: str, way: str
) -> None:
    also = "&" if "?" in model else "?"
    model = f"{model}{also}transport=sse" if way == "stream" else model
    mode = {"defaults": {"run_mode": "batch"}} if way == "batch" else {}
    project.workflow(rows=2, stages=[{**SAY, "model": model}], **ASKED, **mode)
    project.run(wait=way == "batch")
    first = project.envelopes()
    assert len(first) == 2
    for one in first:
        assert_searched(one)
    project.workflow("later", stages=[{**SAY, "model": model}], output={"sources": True}, **mode)
    again = project.run("later")
    assert again.invocation["calls"] == 0
    assert project.envelopes("later") == first


def test_nothing_is_written_of_them_where_no_workflow_asks(project: ProjectFolder) -> None:
    model = MODELS["anthropic"]
    project.workflow(rows=1, stages=[{**SAY, "model": model}])
    project.run()
    (line,) = project.envelopes()
    assert list(line) == ["id", "row_number", "ok", "result", "error"]
    project.workflow(rows=1, stages=[{**SAY, "model": model}], **ASKED)
    assert project.run().invocation["calls"] == 0, "they are there all the same"
    assert_searched(project.envelopes()[0])


def test_an_answer_without_a_search_has_none(project: ProjectFolder) -> None:
    project.workflow(rows=1, stages=[SAY], **ASKED)
    project.run()
    assert project.envelopes()[0]["sources"] == {}
    assert project.query("SELECT sources FROM result") == [(None,)]


def test_tables_have_them_in_a_column(project: ProjectFolder, faulty: Faulty) -> None:
    output = {**ASKED["output"], "format": ["csv", "parquet", "txt"], "to": "sqlite://data/out.db?table=said"}
    rows = [{"id": "r-1", "text": "lamps", "sources": "own"}, {"id": "r-2", "text": "refuse me", "sources": "own"}]
    project.asks(faulty([{"kind": "refusal", "match": "refuse"}]))
    project.workflow(rows=rows, stages=[{**SAY, "model": "local/small:online"}], output=output)
    project.run()
    told = project.envelopes()[0]["sources"]
    folder = project.root / "output/reviews"
    with duckdb.connect() as connection:
        for file in ("results.csv", "results.parquet"):
            found = connection.sql(f"SELECT * FROM '{folder / file}' ORDER BY id")
            assert found.columns == ["id", "text", "sources", "result", "say.sources", "error"]
            first, failed = found.fetchall()
            assert json.loads(first[4]) == told
            assert (first[2], failed[4]) == ("own", None)
    with closing(sqlite3.connect(project.root / "data/out.db")) as connection:
        assert json.loads(connection.execute('SELECT "say.sources" FROM said ORDER BY id').fetchone()[0]) == told
    assert (folder / "results.txt").read_text("utf-8").startswith(project.envelopes()[0]["result"])


TOOLS = '''
def look(q: str) -> str:
    """Looks something up."""
    return f"found {q}"
'''
TALK = {**SAY, "tools": ["tools/t.py:look"]}
TURNS = 'tool:look {"q": "a"}\n\ntool:look {"q": "b"}'


@pytest.mark.parametrize("way", ["call", "stream", "batch"])
@pytest.mark.parametrize("model", [MODELS["openai-responses"], MODELS["anthropic"]], ids=["responses", "anthropic"])
def test_a_conversation_has_the_sources_of_all_of_its_turns(project: ProjectFolder, model: str, way: str) -> None:
    """The simulator refuses a page, or a reference to one, that does not come back as it was sent."""
    project.write("tools/t.py", TOOLS)
    model = f"{model}&transport=sse" if way == "stream" else model
    mode = {"defaults": {"run_mode": "batch"}} if way == "batch" else {}
    project.workflow(rows=[{"id": "r-1", "text": TURNS}], stages=[{**TALK, "model": model}], **ASKED, **mode)
    assert project.run(wait=way == "batch").exit_code == 0
    (line,) = project.envelopes()
    found = of_stage(line)
    assert len({one["url"] for one in found}) == len(found) == 6, "two pages of each of three turns"
    assert [one["cited"] for one in found] == [True, *[False] * 5]
    assert (found[0]["start"], found[1]["start"]) == (0, None)


def test_a_killed_conversation_goes_on_with_the_sources_of_its_first_turns(tmp_path: Path) -> None:
    stages, turns = [{**TALK, "model": MODELS["anthropic"]}], 0
    for moment in range(10, 60):
        project = ProjectFolder(tmp_path / str(moment))
        project.write("tools/t.py", TOOLS)
        project.workflow(rows=[{"id": "r-1", "text": TURNS}], stages=stages, **ASKED)
        project.agac("run", "-a", "reviews", kill=f"any:{moment}", code=-9)
        ((turns,),) = project.query("SELECT count(*) FROM agent_turn")
        if turns:
            break
    assert 0 < turns < 3
    assert project.run().exit_code == 0
    assert len(of_stage(project.envelopes()[0])) == 6


def test_an_answer_asked_for_again_has_the_sources_of_the_first_reply(project: ProjectFolder) -> None:
    schema = {"mood": "good|bad"}
    cited = {"type": "web_search_result_location", "url": "https://a.example/", "title": "A", "cited_text": "x"}
    wrong, right = (
        {"type": "text", "text": json.dumps({"mood": mood}), "citations": [{**cited, "encrypted_index": "z"}] * first}
        for mood, first in (("odd", True), ("good", False))
    )
    steps = (Step(body=json.dumps({"content": [one], "stop_reason": "end_turn"})) for one in (wrong, right))
    with scripted(*steps) as server:
        project.write("agac.yml", yaml.safe_dump({"providers": {"anthropic": {"base_url": server.base_url}}}))
        project.write(".env", "ANTHROPIC_API_KEY=sk-1\n")
        stage = {**SAY, "model": "anthropic/claude-haiku-4-5?web_search=5", "output_schema": schema}
        project.workflow(rows=1, stages=[stage], **ASKED)
        assert project.run().exit_code == 0
    (source,) = of_stage(project.envelopes()[0])
    assert (source["url"], source["cited"], source["start"]) == ("https://a.example/", True, None)


def test_a_vote_has_the_sources_of_the_answer_that_was_taken(project: ProjectFolder) -> None:
    stage = {**SAY, "model": MODELS["anthropic"], "replicas": 3, "output_schema": {"mood": "good|bad"}}
    project.workflow(rows=1, stages=[stage], **ASKED)
    assert project.run().exit_code == 0
    assert [one["cited"] for one in of_stage(project.envelopes()[0])] == [True, False]


def test_people_and_programs_see_the_sources_of_a_row(project: ProjectFolder) -> None:
    project.workflow(rows=1, stages=[{**SAY, "model": MODELS["anthropic"]}])
    report = project.run()
    told = project.agac("inspect", "last", "r-1", "--json", code=0).json["rows"][0]["stages"][0]["sources"]
    shown = project.agac("inspect", "last", "r-1", code=0).out
    assert f"cited: {told[0]['url']}   {told[0]['title']}" in shown
    assert f"found: {told[1]['url']}" in shown
    (row,) = agac.show("last", row="r-1", project=project.root).rows
    assert row["sources"] == {"say": told}
    assert "sources" not in agac.show("last", project=project.root).rows[0]
    (result,) = report.results()
    assert [one._asdict() for one in result.sources["say"]] == told
    (answer,) = agac.run(task="{input}", inputs=["x"], model=MODELS["anthropic"], project=project.root)
    assert [(one.cited, one.url[:26]) for one in answer.sources] == [
        (True, "https://simulated.example/"), (False, "https://simulated.example/"),
    ]  # fmt: skip


def test_a_recorded_reply_holds_its_sources(project: ProjectFolder) -> None:
    project.workflow(rows=1, stages=[{**SAY, "model": MODELS["anthropic"]}], **ASKED)
    test = {"rows": [{"id": "r-1", "text": "lamps"}], "replies": "recorded", "expect": {"calls": 1}}
    project.write("tests/workflows/reviews.yml", yaml.safe_dump(test))
    project.agac("test", "--record", code=0)
    (line,) = (project.root / "tests/workflows/recorded/reviews.jsonl").read_text("utf-8").split("\n")[:-1]
    found = sources_of(json.loads(line)["reply"], MESSAGE_SOURCES, "")
    assert [one.cited for one in found] == [True, False]
    project.agac("test", code=0)


def test_a_row_run_writes_the_sources_of_each_row_as_it_ends(project: ProjectFolder) -> None:
    project.numbered(3)
    words = ("process", "data/rows.csv", "--prompt", "{{text}}", "--model", MODELS["anthropic"], "--sources")
    project.agac(*words[:2], "out.jsonl", *words[2:], code=0)
    lines = [json.loads(line) for line in (project.root / "out.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 3
    for one in lines:
        assert [page["cited"] for page in of_stage(one, "result")] == [True, False]
    told = project.agac(*words[:2], "-", *words[2:], code=0).out
    assert sorted(json.loads(line)["id"] for line in told.splitlines()) == [1, 2, 3]
    assert {line["id"]: line for line in map(json.loads, told.splitlines())} == {line["id"]: line for line in lines}


def test_a_source_that_is_no_web_page_is_never_a_link(project: ProjectFolder) -> None:
    pages = [
        {"url": "javascript:alert(1)", "title": "a\x1b[31mb\n\u202ec"},
        {"url": "https://a.example/\u202e", "title": "B"},
        {"url": "https://a.example/?<b>\"'", "title": "<script>"}, {"url": "file:///etc/hosts"},
    ]  # fmt: skip
    choice = {"message": {"content": "Lamps glow."}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "search_results": pages, "model": "m"})
    with scripted(Step(body=body)) as server:
        project.configure(server.base_url)
        project.workflow(rows=1, stages=[SAY], **ASKED)
        project.run()
    assert [one["url"] for one in of_stage(project.envelopes()[0])] == [one["url"] for one in pages]
    shown = project.agac("inspect", "last", "r-1", code=0).out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    with monitor(project) as watched:
        page = watched.get(f"/run/1/row?{urlencode({'id': 'r-1'})}").text
    links = [one.partition('"')[0] for one in page.split('href="')[1:]]
    assert [one for one in links if "a.example" in one] == ["https://a.example/?&lt;b&gt;&#34;&#39;"]
    assert not [one for one in links if one.startswith(("javascript:", "file:"))]
    assert "javascript:alert(1)" in page
    assert "<script>" not in page.partition("<h4>Sources</h4>")[2].partition("</ul>")[0]


@services
def test_shards_merge_to_the_lines_of_one_run(tmp_path: Path, server: Server) -> None:
    server.reset()
    project = Sharded(tmp_path / "first", server, of=2)
    project.workflow(rows=6, stages=[{**SAY, "model": "local/small:online"}], **ASKED)
    whole = project.unsharded()
    assert whole["results.jsonl"].count(b"simulated.example") >= 12
    project.shards(code=0)
    project.merge(code=0)
    assert project.taken() == whole


@services
def test_an_answer_that_a_colleague_pulls_brings_its_sources(tmp_path: Path, server: Server) -> None:
    server.reset()
    lines = []
    for name, command in (("first", "push"), ("second", "pull")):
        project = Sharded(tmp_path / name, server)
        project.workflow(rows=2, stages=[{**SAY, "model": "local/small:online"}], **ASKED)
        if command == "pull":
            project.agac("pull", env=project.env, code=0)
            server.reset()
        project.agac("run", "-a", "reviews", "--yes", env=project.env, code=0)
        lines.append(project.envelopes())
        project.agac("push", env=project.env, code=0)
    assert server.account()["requests"] == 0
    assert lines[0] == lines[1]
    assert_searched(lines[0][0])
