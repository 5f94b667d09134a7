"""Reviews in files: written for spreadsheets, filled in by people, and taken back, all of it or nothing."""

import csv
import json
import sys
import termios
from pathlib import Path
from typing import Any

import click
import openpyxl
import pytest
from support.processes import wait_until
from support.project import ProjectFolder, command
from support.terminals import PseudoTerminal

import agac
from agac.cli import main, review
from agac.core.types import JSONValue

SCHEMA = {"sentiment": "positive|negative", "why": "string"}
STAGES = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SCHEMA},
    {"name": "approve", "needs": "classify", "review": {"show": ["text"], "blind": "30%"}},
]
ROWS = [{"id": f"r-{i}", "text": f"=cmd|' /C calc'!A{i}\x07, \"übel\"\rund\nzwei"} for i in range(1, 11)]


@pytest.fixture
def waits(project: ProjectFolder) -> ProjectFolder:
    project.workflow(stages=STAGES, rows=ROWS, path="data/rows.jsonl")
    report = project.run()
    assert (report.exit_code, report.invocation["complete"]) == (0, False)
    return project


def read(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".xlsx":
        head, *rows = openpyxl.load_workbook(file).active.iter_rows()
        assert all(cell.data_type != "f" for row in rows for cell in row)
        return [{name.value: cell.value for name, cell in zip(head, row, strict=True)} for row in rows]
    text = file.read_text("utf-8-sig")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines(keepends=True)))


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    if file.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for line in (list(lines[0]), *(list(one.values()) for one in lines)):
            book.active.append(line)
        book.save(file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    else:
        with file.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)


def decided(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT row_id, choice, value, reason, reviewer, source FROM decision ORDER BY id")


@pytest.mark.parametrize("kind", ["csv", "xlsx", "jsonl"])
def test_a_file_goes_out_and_comes_back(waits: ProjectFolder, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"reviews.{kind}"
    assert agac.review_export(file, project=waits.root) == 10
    lines = read(file)
    blind = [one for one in lines if not one["proposal"]]
    assert 0 < len(blind) < 10
    assert {str(one["decision"] or "") for one in lines} == {""}
    for one in lines:
        shown = str(one["shown.text"])
        assert shown.startswith("=" if kind == "jsonl" else "'="), shown
        assert "übel" in shown
    set_to = {"sentiment": "negative", "why": "=1+1"}
    for place, one in enumerate(lines):
        if one in blind:
            one |= {"decision": "edit", "value": json.dumps(set_to) if kind != "jsonl" else set_to}
        elif place != 9:
            one |= {"decision": "Approve", "comment": "fine", "reviewer": "Eve"}
    write(file, lines)
    report, wrong = agac.review_import(file, who="Ada", project=waits.root)
    assert (wrong, report.problems) == ([], [])
    open_lines = [one for one in lines if not one["decision"]]
    assert (report.taken, report.same, report.stale, report.conflicts) == (10 - len(open_lines), 0, 0, [])
    before = decided(waits)
    assert {one[1:] for one in before} == {
        ("edit", json.dumps(set_to, separators=(",", ":")), "", "Ada", "file"),
        ("approve", None, "fine", "Eve", "file"),
    }
    again, _ = agac.review_import(file, who="Ada", project=waits.root)
    assert (again.taken, again.same) == (0, report.taken)
    assert decided(waits) == before
    assert waits.run().rows.done == report.taken


def test_all_lines_are_checked_first_and_nothing_is_taken_half(waits: ProjectFolder, tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    agac.review_export(file, project=waits.root)
    lines = read(file)
    shown, blind = ([one for one in lines if bool(one["proposal"]) is seen] for seen in (True, False))
    shown[0] |= {"decision": "approve"}
    shown[1] |= {"decision": "maybe"}
    shown[2] |= {"decision": "edit"}
    shown[3] |= {"decision": "edit", "value": '{"sentiment": "mixed", "why": ""}'}
    shown[4] |= {"value": '{"sentiment": "negative", "why": ""}'}
    blind[0] |= {"decision": "approve"}
    lines.append({**lines[0], "review_id": "r-" + "0" * 32, "decision": "reject", "value": ""})
    write(file, lines)
    ran = waits.agac("review", "import", str(file), "--reviewer", "Ada", code=2)
    said = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(said) == 6
    assert all(f"{file}:" in line for line in said)
    places = [int(line.partition(f"{file}:")[2].partition(":")[0]) for line in said]
    assert places == sorted(places)
    assert decided(waits) == []
    ran = waits.agac("review", "import", str(file), "--reviewer", "Ada", "--partial", code=2)
    assert "1 decision taken" in ran.out
    assert [one[1] for one in decided(waits)] == ["approve"]


def test_what_has_changed_since_is_not_applied_and_two_people_are_in_dispute(
    waits: ProjectFolder, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    agac.review_export(first, project=waits.root)
    lines = read(first)
    for one in lines:
        one |= {"decision": "reject"}
    write(first, lines)
    write(second, [one | {"decision": "edit", "value": '{"sentiment": "negative", "why": "x"}'} for one in lines])
    assert agac.review_import(first, who="Ada", project=waits.root)[0].taken == 10
    report, _ = agac.review_import(second, who="Eve", project=waits.root)
    assert len(report.conflicts) == 10
    forced, _ = agac.review_import(second, who="Eve", force=True, project=waits.root)
    assert (forced.taken, forced.conflicts) == (10, [])
    waits.workflow(stages=[STAGES[0] | {"prompt": "Now: ${text}"}, STAGES[1]], rows=ROWS, path="data/rows.jsonl")
    waits.run()
    stale = agac.review_import(first, who="Zoe", project=waits.root)[0]
    assert stale.stale > 0


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("a.txt", "", "no format has this ending"), ("a.csv", "review_id,value\nx,y\n", "there is no column 'decision'")],
)
def test_files_of_another_form_are_refused(waits: ProjectFolder, name: str, text: str, said: str) -> None:
    waits.write(name, text)
    assert said in waits.agac("review", "import", name, "--reviewer", "Ada", code=2).err
    if name == "a.csv":
        assert "exists" in waits.agac("review", "export", name, code=2).err


def test_many_decisions_are_taken_once(project: ProjectFolder, tmp_path: Path) -> None:
    project.workflow(stages=[STAGES[0], STAGES[1] | {"review": {"show": ["text"]}}], rows=600)
    project.run()
    file = tmp_path / "reviews.jsonl"
    assert agac.review_export(file, project=project.root) == 600  # more than a page of the queue
    write(file, [one | {"decision": "approve"} for one in read(file)])
    for taken, same in ((600, 0), (0, 600)):
        report, _ = agac.review_import(file, who="Ada", project=project.root)
        assert (report.taken, report.same) == (taken, same)


def test_rows_are_decided_one_by_one_at_a_terminal(waits: ProjectFolder, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf \'%s\' \'{"sentiment": "negative", "why": "typed"}\' > "$1"\n')
    editor.chmod(0o755)
    waits.workflow(stages=[STAGES[0], STAGES[1] | {"review": {"show": ["text"]}}], rows=ROWS, path="data/rows.jsonl")
    waits.run()
    env = {"EDITOR": str(editor), "AGAC_REVIEWER": "Ada"}
    terminal = PseudoTerminal(command(["review", "next", "-a", "reviews"]), waits.root, env, 100, 24)
    try:
        asks = r"\[a\] approve .*\[q\] quit"
        for keys, then in ((b"xa", asks), (b"s", asks), (b"r", "Reason"), (b"e", "Reason"), (b"q", "")):
            terminal.until(asks) if keys == b"xa" else None
            # keys that come before it listens are dropped: nobody decides on what they have not seen
            wait_until(lambda: not termios.tcgetattr(terminal._ours)[3] & termios.ICANON, "a key is read")
            terminal.press(keys)
            terminal.until(then) if then else None
            if then == "Reason":
                terminal.press(b"no\r")
                terminal.until(asks)
        assert terminal.ended() == 0
    finally:
        terminal.close()
    assert [one[1:] for one in decided(waits)] == [
        ("approve", None, "", "Ada", "terminal"),
        ("reject", None, "no", "Ada", "terminal"),
        ("edit", '{"sentiment":"negative","why":"typed"}', "no", "Ada", "terminal"),
    ]
    assert len({one[0] for one in decided(waits)}) == 3
    assert "agac review export decisions.csv" in waits.agac("review", "next", code=2).err


def test_at_a_terminal_nobody_is_asked_twice_and_disputes_come_last(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = STAGES[1] | {"review": {"show": ["text"], "reviewers": 2}}
    project.workflow(stages=[STAGES[0], asks], rows=ROWS[:3], path="data/rows.jsonl")
    project.run()
    items = agac.review_queue(project.root).items
    said = (items[0], "approve", "Ben"), (items[2], "reject", "Ben"), (items[2], "approve", "Cleo")
    for item, choice, who in said:
        agac.decide(project.root, [agac.Decision(item.id, choice, reviewer=who)])
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    keys = iter("a" * 3)
    monkeypatch.setattr(click, "getchar", lambda: next(keys))
    for again in (False, True):
        main.cli(["--project-dir", str(project.root), "review", "next", "--reviewer", "Ada"], standalone_mode=False)
        shown = capsys.readouterr().out
        assert [shown.count(repr(one.row_id)) for one in items] == [0 if again else 1] * 3
        assert "row 1" not in shown
        assert ("Ben: reject" in shown, "1 row waits" in shown) == (not again, True)
    assert len([one for one in decided(project) if one[4] == "Ada"]) == 3


def test_the_status_tells_blind_decisions_from_others(waits: ProjectFolder) -> None:
    assert "No row came" in waits.agac("review", "status", "-a", waits.workflow("other"), code=0).out
    for item in agac.review_queue(waits.root).items[:9]:
        said = ("edit", {"sentiment": "negative", "why": "x"}) if item.blind else ("approve", None)
        agac.decide(waits.root, [agac.Decision(item.id, *said, reviewer="Ada")])
    shown = waits.agac("review", "status", code=0).out
    assert "reviews, approve: 9 decided, 1 waiting; 0 rejected" in shown
    assert "asked blindly.sentiment" in shown
    (stage,) = waits.agac("review", "status", "--json", code=0).json["stages"]
    assert stage["blind"]["rows"] + stage["others"]["rows"] == 9
    assert stage["others"]["share"] == 1.0


def test_of_a_huge_review_a_terminal_shows_a_bounded_part_and_says_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: dict[str, JSONValue] = {f"f{number}": "x" * 100_000 for number in range(1_000)}
    said = tuple(agac.Decision("", "edit", "v" * 100_000, "r" * 100_000, "Ada") for _ in range(500))
    redo: JSONValue = [{"answer": "b" * 100_000, "comment": "c" * 100_000}] * 500
    item = agac.ReviewItem(
        "00", "w", 1, "look", "judge", "r-1", shown, "a" * 1_000_000, None, ("approve",), {"redo": redo}, False,
        "conflict", 0.5, 0.0, said, "",
    )  # fmt: skip
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = "\n".join(review.item_lines(item, 1, {"a": "approve"}))
    assert len(text) < 1_500_000
    for left in ("and 900 more fields", "and 400 more answers", "and 400 more decisions"):
        assert f"{left}: see the file of `agac review export`" in text
    assert "… (1,000,000 characters: all of them in the file of `agac review export`)" in text


@pytest.mark.parametrize("ending", ["csv", "xlsx"])
def test_a_sheet_shows_what_nobody_would_see_and_a_proposal_that_is_copied_means_the_same(
    project: ProjectFolder, tmp_path: Path, ending: str
) -> None:
    rows = [{"id": "r-1", "text": "a\u200bb \U000e0041 \u2764\ufe0f"}]
    schema = {"type": "object", "properties": {"why": {"const": "x\u200b\U000e0041"}}, "required": ["why"]}
    stages = [STAGES[0] | {"output_schema": schema}, {"name": "approve", "review": {"show": ["text"]}}]
    project.workflow(stages=stages, rows=rows, path="data/rows.jsonl")
    project.run()
    file = tmp_path / f"decisions.{ending}"
    assert agac.review_export(file, project=project.root) == 1
    if ending == "csv":
        (line,) = csv.DictReader(file.read_text("utf-8-sig").splitlines())
    else:
        names, cells = openpyxl.load_workbook(file)["rows"].iter_rows(values_only=True)
        line = dict(zip(names, cells, strict=True))
    assert line["shown.text"] == "a\\u200bb \\U000e0041 \u2764\ufe0f"
    assert line["proposal"].isascii()
    assert json.loads(line["proposal"]) == {"why": "x\u200b\U000e0041"}
