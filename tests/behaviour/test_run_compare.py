"""`agac compare RUN RUN`: results side by side, what each run took, and the page that opens offline."""

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from html.parser import HTMLParser
from typing import Any

import pytest
from scripted_server import Step, answering
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.api.comparison import MAX_FIELDS, Agreement
from agac.api.run_compare import FieldChange, compare_page
from agac.cli import compare
from agac.store.db import sql

SHAPE = {"mood": "string", "score": "number", "note": "string?"}
STAGE = {"name": "judge", "prompt": "One: ${text}", "output_schema": SHAPE}
NASTY = "<script>alert(1)</script> & \x1b[31m"
Answer = Callable[[int], dict[str, Any]]


def ran(project: ProjectFolder, answer: Answer, workflow: str = "reviews", **stage: Any) -> None:
    """Runs the workflow; `answer` gives the result of each row by its number."""
    with answering(lambda text: Step(json.dumps(answer(int(text.rsplit(" ", 1)[-1])))), project):
        project.workflow(workflow, stages=[STAGE | stage])
        project.run(workflow)


def judged(number: int) -> dict[str, Any]:
    return {"mood": "good", "score": number, "note": "a note of some words"}


def differing(changes: dict[int, dict[str, Any]]) -> Answer:
    return lambda number: judged(number) | changes.get(number, {})


def compared(project: ProjectFolder, first: int = 1, second: int = 2, **keys: Any) -> agac.RunComparison:
    return agac.compare_runs(first, second, project=project.root, **keys)


@pytest.fixture
def two(project: ProjectFolder) -> ProjectFolder:
    """Run 1 of ten rows and run 2 of nine, which says otherwise of three."""
    project.numbered(10)
    ran(project, judged)
    project.numbered(9)
    changes: dict[int, dict[str, Any]] = {2: {"note": "a note of other words"}, 3: {"score": 5.5}, 4: {"mood": NASTY}}
    ran(project, differing(changes), prompt="Again: ${text}")
    return project


def test_what_agrees_and_what_changed_is_shown(two: ProjectFolder) -> None:
    lines = two.agac("compare", "1", "2", code=0).out.splitlines()
    assert lines[:8] == [
        "reviews, run 1 compared with reviews, run 2",
        "9 rows in both, 3 changed; 1 only in run 1, 0 only in run 2",
        "",
        "result       rows  equal  share  in one  drift   p95",
        "judge           9      6  66.7%       0",
        "judge.mood      9      8  88.9%       0",
        "judge.score     9      8  88.9%       0  0.2778  0",
        "judge.note      9      8  88.9%       0",
    ]
    assert [line.split(",")[0] for line in lines[9:11]] == [
        "run 1: 10 calls of unknown cost", "run 2: 9 calls of unknown cost"
    ]  # fmt: skip
    assert lines[12:] == [
        "row  field        difference",
        "r-2  judge.note   a note of [-some-]{+other+} words",
        "r-3  judge.score  3 → 5.5",
        "r-4  judge.mood   [-good-]{+<script>alert(1)</script> & \\x1b[31m+}",
        "Only in run 1: r-10",
    ]
    assert "1 of 3 changed rows. More of them: --limit N" in two.agac("compare", "1", "last", "--limit", "1").out


def test_json_and_python_have_all_of_it(two: ProjectFolder) -> None:
    found = two.agac("compare", "1", "2", "--json", code=0).json
    assert found == compared(two).as_json()
    assert found["rows"] == {"both": 9, "changed": 3, "only_first": 1, "only_second": 0}
    (stage,) = found["stages"]
    assert (stage["stage"], stage["share"], stage["fields"]["score"]["drift"]) == (
        "judge", 0.6667, pytest.approx(2.5 / 9),
    )  # fmt: skip
    assert found["changed"][1] == {"id": "r-3", "field": "judge.score", "before": 3, "now": 5.5}
    assert (found["only_first"], found["first"]["stages"][0]["model"]) == (["r-10"], "local/small")


def test_cost_is_that_of_a_thousand_rows_that_were_asked(project: ProjectFolder, server: Server) -> None:
    project.asks(server, prices={"*": {"input": 1.0, "output": 2.0}})
    project.run(project.workflow(rows=4))
    project.run(project.workflow(rows=5, vars={"other": "definition"}))  # it reuses four answers
    report = compared(project)
    for side, asked in ((report.first, 4), (report.second, 1)):
        assert (side["rows_asked"], side["rows"]["done"]) == (asked, 4 if asked == 4 else 5)
        assert side["usd_per_1000_rows"] == pytest.approx(side["calls"]["cost_usd"] * 1000 / asked)
        assert side["timing_ms"]["duration"]["p50"] > 0
        assert f"${side['usd_per_1000_rows']:.4f} for 1,000 rows" in "\n".join(compare.comparison_lines(report))
    assert (report.rows["both"], report.stages[0].agreement.share) == (4, 1.0)


def test_a_row_that_has_a_result_in_one_run_alone_is_changed(project: ProjectFolder) -> None:
    project.numbered(3)
    ran(project, judged)
    ran(project, differing({2: {"score": "none"}}), prompt="Again: ${text}")
    report = compared(project)
    (stage,) = report.stages
    assert (stage.agreement.rows, stage.agreement.equal, stage.agreement.alone) == (2, 2, 1)
    assert [(one.id, one.field, one.before, one.now) for one in report.changed] == [("r-2", "judge", judged(2), None)]


def test_two_workflows_are_matched_by_a_field_and_by_their_only_stage(project: ProjectFolder) -> None:
    project.rows([{"id": f"a{i}", "sku": i, "text": f"number {i}"} for i in (1, 2, 3)])
    ran(project, judged)
    project.rows([{"id": f"b{i}", "sku": i, "text": f"number {i}"} for i in (4, 3, 2)])
    ran(project, differing({3: {"mood": "bad"}}), "others", name="rate", prompt="Rate: ${text}")
    assert compared(project).rows == {"both": 0, "changed": 0, "only_first": 3, "only_second": 3}
    report = compared(project, key="sku")
    assert (report.stages[0].name, report.stages[0].before) == ("rate", "judge")
    assert (report.only_first, report.only_second) == (["1"], ["4"])
    assert [(one.id, one.field) for one in report.changed] == [("3", "rate.mood")]
    with pytest.raises(agac.UsageError, match="--key nothing: no row of these runs has it"):
        compared(project, key="nothing")


def test_rows_that_stages_made_are_compared_and_a_renamed_stage(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", json.dumps({"id": "r", "items": [1, 2, 3]}))
    for name, word in (("say", "a"), ("tell", "b")):
        stage = {"name": name, "explode": "items", "prompt": "Say ${item}"}
        last = {"name": "last", "prompt": f"Repeat ${{{name}}}"}
        with answering(lambda text, word=word: Step(word if text == "Say 2" else text), project):
            project.run(project.workflow(path="data/rows.jsonl", stages=[stage, last]), fresh=True)
    report = compared(project)
    assert [(one.name, one.before) for one in report.stages] == [("tell", "say"), ("last", "last")]
    assert [(one.id, one.field, one.before, one.now) for one in report.changed] == [
        ("r/1", "tell", "a", "b"), ("r/1", "last", "Repeat a", "Repeat b")
    ]  # fmt: skip
    assert report.rows["both"] == 4


def test_what_cannot_be_compared_is_said(two: ProjectFolder) -> None:
    assert "both are run 2" in two.agac("compare", "2", "last", code=2).err
    assert "no run 7" in two.agac("compare", "1", "7", code=2).err
    stages = [{"name": "a", "prompt": "${text}"}, {"name": "b", "prompt": "${text}"}]
    with answering(lambda _: Step("x"), two):
        two.run(two.workflow("others", stages=stages, output={"stages": ["a", "b"]}))
    assert "run 1 and run 3 have no stage of the same name" in two.agac("compare", "1", "3", code=2).err


class Page(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.text = list[tuple[str, dict[str, str | None]]](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_opens_offline_and_shows_hostile_text_as_text(two: ProjectFolder) -> None:
    ended = two.agac("compare", "1", "2", "--html", "page.html", code=0)
    assert "Wrote page.html" in ended.err
    text = (two.root / "page.html").read_text("utf-8")
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    assert not any(name in ("src", "href") or name.startswith("on") for _, attrs in page.tags for name in attrs)
    policy = next(attrs["content"] or "" for _, attrs in page.tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert not [one for one in ("url(", "@import", "://") if one in text]
    assert {"name": "color-scheme", "content": "light dark"} in [attrs for _, attrs in page.tags]
    assert "<script>alert(1)</script> & \\x1b[31m" in page.text
    assert "a note of <del>some</del><ins>other</ins> words" in text
    assert not (two.root / "page.csv").exists()
    assert "page.html exists" in two.agac("compare", "1", "2", "--html", "page.html", code=2).err
    two.agac("compare", "1", "2", "--html", "page.html", "--force", code=0)
    assert sorted(one.name for one in two.root.glob("*page*")) == ["page.html"]


def test_rows_beyond_those_of_the_page_are_in_a_csv_file(
    two: ProjectFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agac.cli.main import cli

    monkeypatch.setattr(compare, "PAGE_ROWS", 1)
    ran(
        two, differing({2: {"note": "=HYPERLINK(1)"}, 3: {"score": -3}, 4: {"mood": "a\r\nb"}}), prompt="Third: ${text}"
    )
    monkeypatch.chdir(two.root)
    with pytest.raises(SystemExit):
        cli(["compare", "1", "3", "--html", "my page.html"])
    page = Page((two.root / "my page.html").read_text("utf-8"))
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a"] == ["./my%20page.csv"]
    assert "2 more changed rows" in page.text
    with (two.root / "my page.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["id", "field", "before", "now"], ["r-3", "judge.score", "3", "-3"], ["r-4", "judge.mood", "good", "a\r\nb"]
        ]  # fmt: skip


def test_numbers_of_any_size_and_many_fields_are_counted() -> None:
    found = Agreement()
    for first, second in ((1, 2), (1.5, 1.5), (10**400, 1), (float("inf"), 2), (True, 1.0), ("1", 1), (1, 31)):
        found.add(first, second)
    assert (found.rows, found.numbers, found.drift) == (7, 3, pytest.approx(31 / 3))
    assert found.p95 == pytest.approx(1, rel=0.021)
    many = Agreement()
    names = {str(number): number for number in range(MAX_FIELDS + 50)}
    assert many.add(names, names | {"0": 1}) == ["0"]
    assert many.add(names, names | {str(MAX_FIELDS + 1): -1}) == [None]
    assert len(many.fields) == MAX_FIELDS


def test_pages_of_a_comparison_together_are_the_whole(two: ProjectFolder) -> None:
    whole = compared(two)
    after, changed, first = None, list[FieldChange](), list[int | str]()
    counts, pages = whole.rows - whole.rows, 0
    while pages == 0 or after is not None:
        page, after = compare_page(1, 2, after=after, limit=3, project=two.root)
        changed, first, pages = changed + page.changed, first + page.only_first, pages + 1
        counts += page.rows
    assert pages == 4
    assert {name: counts[name] for name in whole.rows} == whole.rows
    assert (sorted(changed), first) == (sorted(whole.changed), whole.only_first)
    assert page.first["run"] == 1
    assert page.stages[0].agreement.rows == 1  # of this page alone


def test_a_page_of_a_comparison_reads_no_more_than_it_gives(two: ProjectFolder) -> None:
    values = {"first": 1, "second": 2, "after": "", "more": 0, "most": 3}
    with closing(sqlite3.connect(two.root / ".agac/agac.db")) as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN " + sql("rows_beside"), values).fetchall()
    found = [str(line[-1]) for line in plan if "row" in str(line[-1])]
    assert [line for line in found if "USING INDEX row_id (run_id=? AND (id,occurrence)>(?,?))" in line] == found[:2]
