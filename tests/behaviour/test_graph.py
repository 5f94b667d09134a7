"""`agac graph`: the stages as they are connected, with what became of the rows of the last run."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from support.project import ProjectFolder
from support.terminals import on_pty

import agac

ROWS = [{"id": f"r-{n}", "kind": "bad" if n % 2 else "good", "price": str(n)} for n in range(1, 6)]
STAGES: list[dict[str, Any]] = [
    {"name": "start", "prompt": "s ${id}"},
    {"name": "left", "needs": "start", "prompt": "l ${start}", "when": 'kind == "bad"'},
    {"name": "right", "needs": "start", "prompt": "r ${start}"},
    {"name": "far", "needs": "right", "prompt": "f ${right}", "when": "int(price) > 1", "otherwise": "drop"},
    {"name": "join", "needs": ["left", "far"], "prompt": "j ${left} ${far}"},
]
EDGES = [
    ("data/rows.csv", "start"), ("start", "left"), ("start", "right"), ("right", "far"), ("left", "join"),
    ("far", "join"), ("join", "output/reviews"),
]  # fmt: skip


@pytest.fixture
def branching(project: ProjectFolder) -> ProjectFolder:
    """A workflow of two branches, in one of which rows are dropped, and which was not run yet."""
    project.rows(ROWS)
    project.workflow(stages=STAGES)
    return project


def drawn(svg: str) -> str:
    """Every text of a drawing that a reader sees, a line each."""
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return "\n".join(text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text"))


def test_stages_are_drawn_as_they_need_each_other_before_any_run(branching: ProjectFolder) -> None:
    report = agac.graph("reviews", project=branching.root)
    assert [(edge.source, edge.target) for edge in report.edges()] == EDGES
    assert (report.run, report.rows, report.title) == (None, None, "reviews")
    assert all(node.counts is None for node in report.nodes())
    text = drawn(report.svg())
    assert 'local/small\nwhen kind == "bad"\nelse skipped' in text
    assert "when int(price) > 1\nelse dropped" in text
    assert not (branching.root / ".agac").exists()


def test_a_review_says_in_plain_words_who_waits_and_no_word_is_cut(project: ProjectFolder) -> None:
    when = 'kind in ["a refund", "a return", "a complaint"] && int(price) > 100 && text.contains("a lawyer of ours")'
    about = {"when": when, "sample": "2%", "blind": "10%", "reviewers": 2, "agree": "mood", "show": ["text"]}
    schema = {"mood": "good|bad"}
    judge = {"name": "judge", "prompt": "${text}", "output_schema": schema}
    project.workflow(stages=[judge, {"name": "approve", "needs": "judge", "review": about}], rows=1)
    (_, stage) = agac.graph("reviews", project=project.root).stages
    words = ["people decide on judge", f"when {when}", "reviewers 2", "sample 2 %", "blind 10 %"]
    assert (stage.label_lines, stage.does) == (words, ", ".join(words))
    svg = agac.graph("reviews", project=project.root).svg()
    shown = drawn(svg).split("\n")
    first = shown.index(words[0])
    assert " ".join(shown[first + 1 : shown.index("reviewers 2")]).removesuffix("…") in f"when {when}"
    assert [line for line in shown if line.endswith("…")] in ([], [shown[first + 3]])
    assert "a lawyer of ours" in svg  # in the tool tip


def test_counts_are_those_of_the_last_run(branching: ProjectFolder) -> None:
    branching.run()
    report = branching.agac("graph", "-a", "reviews", "--json").json
    assert report["run"] == 1
    assert report["rows"] == {"total": 5, "done": 4, "skipped": 0, "failed": 0, "dropped": 1, "open": 0}
    assert {one["name"]: {k: n for k, n in one["counts"].items() if n} for one in report["stages"]} == {
        "start": {"done": 5},
        "left": {"done": 3, "skipped": 2},
        "right": {"done": 5},
        "far": {"done": 4, "dropped": 1},
        "join": {"done": 4},
    }
    ran = branching.agac("graph", "-a", "reviews")
    assert (ran.code, ran.err) == (0, "")
    assert 'aria-label="reviews, run 1"' in ran.out
    assert drawn(ran.out).count("1 dropped") == 2


def test_a_run_is_drawn_as_its_workflow_was_then(branching: ProjectFolder) -> None:
    branching.run()
    branching.workflow(stages=[*STAGES[:1], {"name": "new", "prompt": "n ${start}"}])
    now = agac.graph("reviews", project=branching.root)
    assert [(one.name, one.counts is not None) for one in now.stages] == [("start", True), ("new", False)]
    then = agac.graph(run=1, project=branching.root)
    assert [one.name for one in then.stages] == [one["name"] for one in STAGES]
    assert [(edge.source, edge.target) for edge in then.edges()] == EDGES
    (branching.root / "workflows/reviews.yml").unlink()
    assert branching.agac("graph", "--run", "1", "--mermaid").out == then.mermaid()


def test_results_of_several_stages_meet_in_the_output_which_may_be_called_like_a_stage(
    branching: ProjectFolder,
) -> None:
    branching.workflow(stages=STAGES[:4], output={"stages": ["start", "far"]})
    edges = [(e.source, e.target) for e in agac.graph("reviews", project=branching.root).edges()]
    assert edges[-2:] == [("start", "output/reviews"), ("far", "output/reviews")]
    branching.run()
    edges = [(e.source, e.target) for e in agac.graph(run=1, project=branching.root).edges()]
    assert edges[-2:] == [("start", "output/reviews"), ("far", "output/reviews")]
    branching.workflow(stages=[{**STAGES[0], "name": "output"}], output={"dir": "output"})
    alike = agac.graph("reviews", project=branching.root)
    assert [(edge.source, edge.target) for edge in alike.edges()][-1] == ("output", "output ")


def test_stages_that_ask_no_model_say_what_they_do_and_nothing_is_imported_and_no_key_needed(
    project: ProjectFolder,
) -> None:
    project.rows(ROWS)
    project.write("tools/clean.py", "raise SystemExit('imported')\n\ndef tidy(row):\n    return row\n")
    stages = [
        {"name": "tidy", "python": "tools/clean.py:tidy"},
        {"name": "dear", "filter": "price > 2"},
        {"name": "few", "select": ["id", "kind"]},
        {"name": "named", "rename": {"kind": "sort"}},
        {"name": "ask", "prompt": "${sort}"},
    ]
    provider = "{dialect: openai-chat, base_url: 'http://127.0.0.1:1/v1', api_key: '${NOT_SET_API_KEY}'}"
    project.write("agac.yml", f"providers: {{far: {provider}}}\ndefaults: {{model: far/large}}\n")
    project.workflow(stages=stages)
    report = agac.graph("reviews", project=project.root)
    assert [(one.kind, one.does) for one in report.stages] == [
        ("python", "tools/clean.py:tidy"), ("filter", "price > 2"), ("select", "id, kind"), ("rename", "kind → sort"),
        ("ask", "far/large"),
    ]  # fmt: skip


def test_it_is_saved_whole_over_an_older_drawing_and_over_nothing_else(branching: ProjectFolder) -> None:
    first = branching.agac("graph", "-a", "reviews", "-o", "reviews.svg")
    assert (first.code, first.out, first.err) == (0, "reviews.svg\n", "")
    branching.run()
    branching.agac("graph", "-a", "reviews", "-o", "reviews.svg")
    saved = (branching.root / "reviews.svg").read_text("utf-8")
    assert saved == agac.graph("reviews", project=branching.root).svg()
    before = (branching.root / "workflows/reviews.yml").read_bytes()
    refused = branching.agac("graph", "-a", "reviews", "-o", "workflows/reviews.yml", code=2)
    assert "is there already, and is no drawing" in refused.err
    assert (branching.root / "workflows/reviews.yml").read_bytes() == before
    nowhere = branching.agac("graph", "-a", "reviews", "-o", "no folder/x.svg", code=2)
    assert "mkdir -p 'no folder'" in nowhere.err
    assert [path.name for path in branching.root.iterdir() if path.name.startswith(".agac-tmp")] == []


def test_of_a_run_with_open_rows_those_that_wait_are_counted(branching: ProjectFolder) -> None:
    branching.run(until="right")
    found = {one.name: one.counts or {} for one in agac.graph(run=1, project=branching.root).stages}
    waiting = {name: counts["waiting"] for name, counts in found.items()}
    assert waiting == {"start": 0, "left": 0, "right": 0, "far": 4, "join": 0}
    assert "4 waiting" in drawn(agac.graph(run=1, project=branching.root).svg())
    branching.run()
    assert "waiting" not in str(agac.graph(run=1, project=branching.root).as_json())


def test_a_terminal_gets_mermaid_text(branching: ProjectFolder) -> None:
    for words in ([], ["--mermaid"]):
        with on_pty(branching.root, "graph", "-a", "reviews", *words, columns=200) as terminal:
            assert terminal.ended() == 0
        assert terminal.seen.startswith("flowchart TD")
        assert "<svg" not in terminal.seen


@pytest.mark.parametrize("form", [(), ("--mermaid",)], ids=["svg", "mermaid"])
def test_in_a_plain_locale_the_drawing_is_the_same_in_ascii(project: ProjectFolder, form: tuple[str, ...]) -> None:
    project.rows(ROWS)
    project.workflow(stages=[{"name": "ask", "prompt": "${id}", "when": 'kind == "größe 日本"'}])
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    plain = project.fresh_agac("graph", "-a", "reviews", *form, env=env)
    assert plain.code == 0
    assert plain.out.isascii()
    if form:
        assert "gr#246;#223;e #26085;#26412;" in plain.out
    else:
        assert "größe 日本" in drawn(plain.out)


def test_mermaid_text_that_pages_refuse_comes_with_a_warning(project: ProjectFolder) -> None:
    project.rows(ROWS)
    project.workflow(stages=[{"name": f"s{n}", "prompt": "${id}", "needs": []} for n in range(251)])
    ran = project.agac("graph", "-a", "reviews", "--mermaid", code=0)
    assert ran.out.count(" --> ") == 502
    assert re.match(r"warning: 502 lines in [\d,]+ characters: pages draw Mermaid text of 500 lines", ran.err)
    assert project.agac("graph", "-a", "reviews").err == ""


def test_what_cannot_be_drawn_is_refused_in_words(branching: ProjectFolder) -> None:
    branching.workflow("broken", stages=[{"name": "a", "prompt": "x", "needs": "b"}])
    branching.run()
    for words, expected in (
        ((), "agac graph -a "),
        (("-a", "revews"), "did you mean 'reviews'?"),
        (("--run", "7"), "no run 7"),
        (("-a", "others", "--run", "1"), "no run 1 of workflow 'others'"),
        (("-a", "reviews", "--json", "--mermaid"), "--json excludes"),
        (("-a", "broken"), "stage 'a' needs 'b', which does not exist"),
    ):
        ran = branching.agac("graph", *words, code=2)
        assert expected in ran.err
        assert ran.out == ""


def test_a_plan_says_how_a_row_walks_and_what_a_guard_cannot_decide_yet(branching: ProjectFolder) -> None:
    stages = [*STAGES[:2], {**STAGES[2], "when": 'start != "x"'}, *STAGES[3:]]
    branching.workflow(stages=stages)
    plan = branching.agac("plan", "-a", "reviews")
    assert plan.code == 0
    assert "Stages:\n  start\n  start → left\n  start → right → far\n  left, far → join\n" in plan.out
    assert "  right: 5 of them may skip it: its `when` needs an answer that is not known yet\n" in plan.out
    header = next(line for line in plan.out.splitlines() if line.startswith("stage "))
    assert header.split()[:6] == ["stage", "model", "run", "reuse", "skipped", "dropped"]
    told = branching.agac("plan", "-a", "reviews", "--json").json
    assert told["segments"] == [[stage["name"] for stage in stages]]


def test_the_end_of_a_run_says_who_left_and_where_they_are_listed(branching: ProjectFolder) -> None:
    ran = branching.agac("run", "-a", "reviews")
    assert "Dropped: 1 row at far; why, for each: output/reviews/filtered.jsonl\n" in ran.out
    assert "Skipped: 2 rows at left\n" in ran.out
    assert Path(branching.root, "output/reviews/filtered.jsonl").is_file()
    header = next(line for line in ran.out.splitlines() if line.startswith("stage "))
    assert header.split() == ["stage", "model", "done", "reused", "failed", "skipped", "dropped"]
    listed = branching.agac("status").out.splitlines()[0].split()
    assert "dropped" in listed
    assert "skipped" not in listed
