"""The monitor's pages of a row, of two runs, and of workflows, as a browser gets them over HTTP."""

import csv
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

import pytest
from scripted_server import Step, deciding
from support.monitor import Watched, monitor
from support.odd_rows import IDS, LONG, SCRIPT, run_odd_rows
from support.project import ProjectFolder

import agac

SHOWN = {"main", "h1", "h2", "h3", "p", "table", "td", "th", "pre", "code", "a", "svg", "button"}


class Read(HTMLParser):
    """A page as it is read: its `text`, the `links`, how often each tag opens, and whatever runs or styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.links, self.tags, self.wrong = "", list[str](), dict[str, int](), list[str]()
        self.commands = list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        given = dict(attrs)
        if tag == "a":
            self.links.append(given["href"] or "")
        if "data-copy" in given:
            self.commands.append(given["data-copy"] or "")
        if (tag == "script" and "src" not in given) or tag == "style" or "style" in given:
            self.wrong.append(f"{tag} {given}")
        self.wrong += [name for name in given if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ProjectFolder:
    """Two runs over the odd rows, the second one with another prompt."""
    project = ProjectFolder(tmp_path_factory.mktemp("rows") / "project")
    return run_odd_rows(project, "One: ${text}", "Again: ${text}")


@pytest.fixture(scope="module")
def watched(folder: ProjectFolder) -> Iterator[Watched]:
    with monitor(folder) as started:
        yield started


def read(watched: Watched, path: str, status: int = 200) -> Read:
    answer = watched.get(path)
    assert answer.status == status, answer.text
    found = Read(answer.text)
    assert found.wrong == []
    return found


def row_path(name: str, run: int = 1) -> str:
    return f"/run/{run}/row?{urlencode({'id': name})}"


@pytest.mark.parametrize("name", IDS)
def test_a_row_of_any_id_has_its_page(name: str, watched: Watched) -> None:
    page = read(watched, row_path(name))
    assert f"Row {name}" in page.text
    assert f"text of {name}" in page.text or name == "long"
    dash = "-- " if name.startswith("-") else ""
    assert [one for one in page.commands if one.startswith(f"agac inspect 1 {dash}")]
    linked = next(link for link in page.links if "/why?" in link)
    assert f"Row {name} of run 1" in read(watched, linked).text


def test_a_row_page_shows_what_was_asked_and_answered(watched: Watched) -> None:
    page = read(watched, row_path("-dash"))
    assert "One: text of -dash" in page.text
    assert f"Reply: {SCRIPT} One: text of -dash" in page.text, "the second prompt has the first answer"
    assert SCRIPT in page.text
    assert "prompt_tokens" in page.text, "the raw reply"
    assert {"bad", "judge", "reply", "done"} <= set(re.split(r"\W+", page.text))
    assert page.tags["rect"] == 2, "a bar for each call"


def test_a_long_text_is_whole_on_the_page_of_its_row(watched: Watched) -> None:
    page = read(watched, row_path("long"))
    assert LONG in page.text
    assert 'the guard id != "long" was not true' in page.text
    assert "skipped" in page.text


def test_a_failed_row_shows_each_attempt_and_what_it_was_asked_again_with(watched: Watched) -> None:
    page = read(watched, row_path("failing"))
    assert "SchemaMismatch in judge" in page.text
    assert "repair" in page.text
    assert page.text.count("Reply of attempt") == 2
    assert "agac retry --row failing 1" in page.commands
    assert page.text.count("no JSON <script>") >= 2


def test_what_is_not_there_is_said_with_the_remedy(watched: Watched) -> None:
    assert "run 1 has no row 'nobody'" in read(watched, row_path("nobody"), 404).text
    assert "no run 9" in read(watched, row_path("long", 9), 404).text
    assert "there is no such stage" in read(watched, "/run/1/why?id=long&stage=no", 404).text
    assert "is not a run" in read(watched, "/compare?first=x&second=2", 404).text
    assert "is no place in a list" in read(watched, "/compare?first=1&second=2&after=[1]", 404).text
    assert "leads out of the project" in read(watched, "/workflow?name=..%2F..%2Fetc%2Fpasswd", 404).text
    assert "no workflow 'nothing'" in read(watched, "/workflow?name=nothing", 404).text


def test_why_names_what_differs_from_the_run_before(watched: Watched) -> None:
    page = read(watched, f"/run/2/why?id={quote(IDS[0])}&stage=judge")
    assert "Compared with run 1" in page.text
    assert "-One: text of" in page.text
    assert "+Again: text of" in page.text


def listed(watched: Watched, **filters: str) -> list[str]:
    """The ids on the page with these filters."""
    page = read(watched, f"/run/1/rows?{urlencode(filters)}")
    return [parse_qs(urlsplit(link).query)["id"][0] for link in page.links if link.startswith("/run/1/row?")]


def test_rows_are_listed_and_filtered_by_the_address(watched: Watched) -> None:
    assert listed(watched) == IDS
    assert listed(watched, state="failed") == ["failing"]
    assert listed(watched, state="skipped", stage="reply") == ["long"]
    assert listed(watched, error="SchemaMismatch", stage="judge") == ["failing"]
    assert listed(watched, text="text of =1") == ["=1+1"]
    assert listed(watched, id="<scr") == [SCRIPT]
    assert listed(watched, sort="id") == sorted(IDS)
    assert listed(watched, state="open") == []
    assert "No row is like this." in read(watched, "/run/1/rows?state=open").text
    assert "is no state of a row" in read(watched, "/run/1/rows?state=nice", 404).text
    assert "cannot be sorted by" in read(watched, "/run/1/rows?sort=cost", 404).text


def test_a_list_has_cut_texts_and_keeps_its_filters(watched: Watched) -> None:
    answer = watched.get("/run/1/rows?state=skipped&text=word&sort=id")
    page = Read(answer.text)
    assert 0 < page.text.count("word") < 40
    assert "<option selected>skipped</option>" in answer.text
    assert 'name="text" value="word"' in answer.text
    assert f"{watched.url}/run/1/rows.csv?state=skipped&text=word&sort=id" in page.links


def test_a_list_as_csv_has_no_formulas(watched: Watched) -> None:
    answer = watched.get("/run/1/rows.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="run-1-rows.csv"'
    lines = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [line["id"] for line in lines] == ["'" + one if one[0] in "=-" else one for one in IDS]
    assert lines[-1]["state"] == "failed"
    assert lines[-1]["error"] == "SchemaMismatch"
    few = list(csv.DictReader(io.StringIO(watched.get("/run/1/rows.csv?state=skipped&stage=reply").text, newline="")))
    assert [line["id"] for line in few] == ["long"]
    assert watched.get("/run/1/rows.csv?state=nice").status == 404


def test_pages_of_a_list_are_complete_and_its_csv_is_all_of_them(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path / "many")
    project.workflow(stages=[{"name": "pick", "select": ["id"]}], rows=2100)
    project.run()
    with monitor(project) as many:
        path, found, pages = "/run/1/rows", list[str](), 0
        while path:
            page = read(many, path)
            found += [link.partition("id=")[2] for link in page.links if link.startswith("/run/1/row?")]
            path = next((link.removeprefix(many.url) for link in page.links if "after=" in link), "")
            pages += 1
            assert pages < 60
        assert found == [f"r-{n}" for n in range(1, 2101)]
        text = many.get("/run/1/rows.csv").text
        assert [line["id"] for line in csv.DictReader(io.StringIO(text, newline=""))] == found


def test_errors_are_grouped_with_an_example_and_what_tries_them_again(watched: Watched) -> None:
    page = read(watched, "/run/1/errors")
    assert "SchemaMismatch in judge: 1 row" in page.text
    assert "the reply is not JSON" in page.text
    assert "agac retry 1 --stage judge --error SchemaMismatch" in page.commands
    assert row_path("failing") in page.links
    assert listed(watched, **dict(parse_qsl(next(one for one in page.links if "error=" in one).partition("?")[2]))) == [
        "failing"
    ]


def test_two_runs_are_chosen_and_compared(watched: Watched) -> None:
    assert "Compare" in read(watched, "/compare").text
    page = read(watched, "/compare?first=1&second=2")
    assert f"Of the {len(IDS)} rows of this page" in page.text
    assert "8 changed" in page.text
    assert SCRIPT in page.text
    assert "agac compare 1 2" in page.commands
    assert row_path(IDS[0], 2) in page.links or any("/run/2/row?id=a/b" in link for link in page.links)
    after = quote(json.dumps(["long", 0]))
    assert "Of the 1 row of this page" in read(watched, f"/compare?first=1&second=2&after={after}").text


def test_a_workflow_has_its_files_its_graph_and_its_runs(watched: Watched) -> None:
    assert "/workflow?name=reviews" in read(watched, "/workflows").links
    page = read(watched, "/workflow?name=reviews")
    assert "One: " not in page.text
    assert "Again: ${text}" in page.text, "its YAML"
    assert "8 done1 failed" in page.text.replace("\n", "")
    assert {"/run/1", "/run/2", "/compare?first=1&second=2"} <= set(page.links)
    assert "expected" not in page.text
    planned = read(watched, "/workflow?name=reviews&plan=1")
    assert f"{len(IDS)} rows of the input" in planned.text


def test_drawings_have_their_looks_in_a_file(watched: Watched) -> None:
    style = watched.get("/static/graph.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "[data-theme=dark] .agac-graph .done" in style.text


AGENT = '''
def look(q: str) -> str:
    """Looks something up."""
    return "found <b>" + q
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A run with an agent whose answers are exploded and grouped again, asked of the simulator."""
    project = ProjectFolder(tmp_path_factory.mktemp("made") / "project")
    project.write("tools/t.py", AGENT)
    call = "tool:look " + json.dumps({"q": "topic"})
    echo = {"model": "simulator/echo"}
    stages = [
        {"name": "talk", "prompt": "${text}", "tools": ["tools/t.py:look"]},
        {"name": "say", "needs": "talk", "explode": "items", "prompt": "${id}:${item}", "replicas": 2, **echo},
        {"name": "sum", "needs": "say", "group_by": ["topic"], "prompt": "${topic}: ${rows_json}", **echo},
    ]
    rows = [{"id": "r-1", "topic": "t", "items": ["x", "y"], "text": f"row\n\n{call}"}]
    project.rows(rows, "data/rows.jsonl")
    project.workflow(path="data/rows.jsonl", stages=stages)
    project.run()
    with monitor(project) as started:
        yield started


def test_the_row_of_an_agent_shows_turns_and_calls_of_tools_in_its_trace(made: Watched) -> None:
    page = read(made, row_path("r-1"))
    assert "Turn 1: 1 call of tools" in page.text
    assert "found <b>topic" in page.text
    kinds = re.findall(r"^talk(ask|turn|tool)", page.text, re.MULTILINE)
    assert kinds == ["ask", "tool", "turn"]


def test_rows_that_stages_made_are_linked_with_what_they_are_made_of(made: Watched) -> None:
    page = read(made, row_path("r-1"))
    assert "2 made by say (child): 2 done" in page.text
    child = read(made, next(link for link in page.links if "r-1%2F0" in link or "r-1/0" in link))
    assert "Made bysay (child)" in child.text
    assert "Replica 2: done" in child.text
    assert row_path("r-1") in child.links
    group = read(made, next(link for link in child.links if "/row?id=" in link and "r-1" not in link))
    assert "A group of 2 rows" in group.text
    names = [parse_qs(urlsplit(link).query)["id"][0] for link in group.links if "/row?id=" in link]
    assert names == ["r-1/0", "r-1/1"]
    page = read(made, "/run/1/rows?made_by=say")
    assert [link for link in page.links if "/row?id=" in link] == [link for link in group.links if "/row?id=" in link]


def test_what_people_decided_about_a_row_is_marked(project: ProjectFolder) -> None:
    stages = [
        {"name": "judge", "prompt": "One: ${text}", "output_schema": {"mood": "string"}},
        {"name": "look", "needs": "judge", "review": {"when": "id != 'r-3'"}},
    ]
    project.workflow(stages=stages, rows=3)
    project.run()
    item = next(one for one in agac.review_queue(project=project.root).items if one.row_id == "r-1")
    edit = agac.Decision(item.id, "edit", {"mood": "fine"}, "it is", "ann", "api", item.seen)
    agac.decide(project.root, [edit])
    project.run()
    with monitor(project) as started:
        pages = {name: read(started, row_path(name)) for name in ("r-1", "r-2", "r-3")}
    assert "look done manual" in " ".join(pages["r-1"].text.split())
    assert "answered by people/ann ·" in pages["r-1"].text
    assert "agac review next" in pages["r-2"].commands
    assert "look done auto" in " ".join(pages["r-3"].text.split())
    assert "agac review next" not in pages["r-3"].commands


HUGE = 300_000
"""Characters of a value, three times as many as a page shows of one."""


@pytest.fixture
def huge(project: ProjectFolder) -> Iterator[ProjectFolder]:
    """A review of a row with a huge value, thirty long ones and a thousand short ones; its answer has a huge part."""
    schema = {"type": "object", "properties": {"label": {"type": "string"}, "text": {"type": "string"}}}
    row = {"id": "r-1", "text": "short\u200b", "huge": "h" * HUGE, **{f"long{n}": "l" * 90_000 for n in range(30)}}
    project.rows([row | {f"f{n}": n for n in range(1_000)}])
    project.workflow(
        stages=[
            {"name": "judge", "prompt": "One: ${text}", "output_schema": schema},
            {"name": "look", "review": {}},
        ]
    )
    answer = json.dumps({"label": "a\u200bb", "text": "t" * HUGE})
    with project.asking(deciding(lambda _: Step(answer))):
        project.run()
        yield project


@pytest.mark.parametrize("words", [(), ("--write",)])
def test_a_review_page_is_bounded_as_the_page_of_the_row_is(huge: ProjectFolder, words: tuple[str, ...]) -> None:
    with monitor(huge, *words) as started:
        for path in ("/review", row_path("r-1"), "/run/1/rows"):
            answer = started.get(path)
            assert answer.status == 200
            assert len(answer.text) < 1_300_000, path
            assert "\u200b" not in re.sub(r'(value|data-before|data-copy)="[^"]*"', "", answer.text), path
        page = read(started, "/review")
    assert "more characters)" in page.text
    assert "And 833 more, which this page does not show." in page.text
    assert "short\\u200b" in page.text
    assert "a\\u200bb" in page.text
    assert ("agac review export decisions.csv" in page.commands) is bool(words)


def test_a_part_that_is_too_long_for_the_page_stays_as_it_is_when_another_is_edited(huge: ProjectFolder) -> None:
    (item,) = agac.review_queue(huge.root).items
    with monitor(huge, "--write") as started:
        page = started.get("/review").text
        assert 'name="text.label"' in page
        assert 'name="text.text"' not in page
        mark = re.search(r'name="mark" value="([^"]*)"', page)
        assert mark is not None
        form = {"id": item.id, "mark": mark[1], "choice": "edit", "reviewer": "ann", "text.label": "fine"}
        assert started.post("/review", form).status == 303
    (item,) = agac.review_queue(huge.root, state="decided").items
    assert item.decisions[0].value == {"label": "fine", "text": "t" * HUGE}


def test_a_form_has_the_exact_value_and_the_page_says_what_is_not_seen_in_it(huge: ProjectFolder) -> None:
    with monitor(huge, "--write") as started:
        page = started.get("/review").text
    assert 'name="text.label" value="a\u200bb" data-before="a\u200bb"' in page
    assert "It has characters that are not seen in the field; here they are escapes:" in page
