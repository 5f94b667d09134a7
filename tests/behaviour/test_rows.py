"""Rows by their ids: repeated, missing, unusable; and any sequence of edits to a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.project import ProjectFolder
from support.server import Server
from support.soak import campaign, few

import agac
from agac.api.watched_run import WatchedRun
from agac.core.types import counted
from agac.engine.walk import input_rows

ECHO = {"model": "local/echo"}
DRAFT = {"name": "draft", "prompt": "Draft: ${text}"}
MODES = ["error", "first", "last", "suffix"]


def echo(project: ProjectFolder, mode: str = "error", *, id_field: str | None = "id", **keys: Any) -> str:
    source, output = {"on_duplicate_id": mode, "id_field": id_field}, {"include_input": True}
    return project.workflow(defaults=ECHO, stages=[DRAFT], input=source, output=output, **keys)


def named(*ids: str) -> list[dict[str, str]]:
    """Rows with these ids, each with a text that says where it was written first."""
    return [{"id": name, "text": f"{name} at {place}"} for place, name in enumerate(ids, 1)]


def seen(project: ProjectFolder) -> list[tuple[Any, int, str]]:
    """Id, row number, and the result or the name of the error."""
    return [(e["id"], e["row_number"], e["result"] or e["error"]["type"]) for e in project.envelopes()]


def settled(project: ProjectFolder, server: Server, calls: int) -> agac.RunReport:
    """Runs twice: the first time with just so many calls, the second time without doing anything."""
    server.reset()
    report = project.run()
    assert server.account()["requests"] == calls
    project.assert_sound()
    before = project.query("SELECT * FROM row ORDER BY key"), project.query("SELECT * FROM task")
    again = project.run()
    assert server.account()["requests"] == calls
    assert again.summary["rows"] == report.summary["rows"]
    assert (project.query("SELECT * FROM row ORDER BY key"), project.query("SELECT * FROM task")) == before
    project.assert_sound()
    rows = report.summary["rows"]
    assert rows["total"] == rows["done"] + rows["failed"] + rows["dropped"]
    return report


def test_a_repeated_id_fails_the_later_row_and_names_the_first(project: ProjectFolder, server: Server) -> None:
    echo(project, rows=named("a", "b", "a", "a"))
    report = settled(project, server, 2)
    assert report.exit_code == 3
    assert seen(project) == [
        ("a", 1, "Draft: a at 1"), ("b", 2, "Draft: b at 2"), ("a", 3, "DuplicateId"), ("a", 4, "DuplicateId"),
    ]  # fmt: skip
    errors = project.envelopes(file="errors.jsonl")
    assert [e["input"] for e in errors] == [{"id": "a", "text": "a at 3"}, {"id": "a", "text": "a at 4"}]
    for error in errors:
        assert error["error"]["message"].startswith("id 'a' was used by row 1 already; ")
        assert "on_duplicate_id" in error["error"]["message"]


@pytest.mark.parametrize(
    ("mode", "given", "kept"),
    [
        ("first", "a b a c", {1: "a", 2: "b", 4: "c"}),
        ("last", "a b a a c", {2: "b", 4: "a", 5: "c"}),
        ("suffix", "a b a a b", {1: "a", 2: "b", 3: "a#2", 4: "a#3", 5: "b#2"}),
    ],
)
def test_repeated_ids_are_dropped_or_get_a_suffix(
    project: ProjectFolder, server: Server, mode: str, given: str, kept: dict[int, str]
) -> None:
    names = given.split()
    echo(project, mode, rows=named(*names))
    report = settled(project, server, len(kept))
    assert seen(project) == [(name, n, f"Draft: {names[n - 1]} at {n}") for n, name in kept.items()]
    counts = {"total": len(names), "done": len(kept), "dropped": len(names) - len(kept)}
    assert report.summary["rows"] == {**counts, "skipped": 0, "failed": 0, "open": 0}
    assert report.exit_code == 0
    place = {name: number for number, name in kept.items()}
    left = {number: place[name] for number, name in enumerate(names, 1) if number not in kept and mode != "suffix"}
    if not left:
        assert "repeated_ids" not in report.summary
        return
    why = [(e["row_number"], e["on_duplicate_id"], e["kept_row"]) for e in project.envelopes(file="filtered.jsonl")]
    assert why == [(number, mode, place) for number, place in left.items()]
    assert report.summary["repeated_ids"] == {"on_duplicate_id": mode, "rows": len(left)}
    rows = agac.inspect("last", "a", project=project.root).rows or []
    assert {row["row_number"]: row["kept_row"] for row in rows if row["state"] == "dropped"} == left
    shown = project.agac("run", "-a", "reviews").out
    assert f"Dropped: {counted(len(left), 'row')} by on_duplicate_id: {mode}; why, for each: output/" in shown
    assert [row["stages"] for row in rows if row["state"] == "dropped"] == [[]] * len(rows[1:])
    for number in left:
        assert (
            "  left before any stage: its id is that of row " in project.agac("inspect", "last", names[number - 1]).out
        )


def test_a_suffix_that_is_taken_is_passed_over(project: ProjectFolder, server: Server) -> None:
    echo(project, "suffix", rows=named("a", "a#2", "a", "a#3", "a", "a#2"))
    settled(project, server, 6)
    found = [e["id"] for e in project.envelopes()]
    assert len(set(found)) == 6
    assert found[:3] == ["a", "a#2", "a#3"]


@pytest.mark.parametrize("mode", MODES)
def test_when_the_first_disappears_the_next_takes_its_place_and_may_be_edited(
    project: ProjectFolder, server: Server, mode: str
) -> None:
    echo(project, mode, rows=named("a", "b", "a", "a"))
    settled(project, server, 4 if mode == "suffix" else 2)
    project.rows(named("a", "b", "a", "a")[1:])
    settled(project, server, 1 if mode in ("error", "first") else 0)
    kept = {
        "error": [("b", 1, "Draft: b at 2"), ("a", 2, "Draft: a at 3"), ("a", 3, "DuplicateId")],
        "first": [("b", 1, "Draft: b at 2"), ("a", 2, "Draft: a at 3")],
        "last": [("b", 1, "Draft: b at 2"), ("a", 3, "Draft: a at 4")],
        "suffix": [("b", 1, "Draft: b at 2"), ("a", 2, "Draft: a at 3"), ("a#2", 3, "Draft: a at 4")],
    }
    assert seen(project) == kept[mode]
    if mode == "error":
        assert "row 2 " in project.envelopes(file="errors.jsonl")[0]["error"]["message"]
    rows = [*named("a", "b", "a")[1:], {"id": "a", "text": "new"}]
    project.rows(rows)  # a repetition that is edited is no row of its own
    settled(project, server, 1 if mode in ("last", "suffix") else 0)
    project.rows([{"id": "z", "text": "other"}, *rows])
    settled(project, server, 1)
    if mode == "error":
        [error] = project.envelopes(file="errors.jsonl")
        assert error["input"]["text"] == "new"
        assert "row 3 " in error["error"]["message"], "the first row moved with the file"


def test_numbers_and_strings_are_different_ids(project: ProjectFolder, server: Server) -> None:
    project.write("data/rows.jsonl", '{"text": "no id"}\n{"id": "1", "text": "text"}\n{"id": 1, "text": "number"}\n')
    echo(project, path="data/rows.jsonl")
    settled(project, server, 1)
    envelopes = project.envelopes()
    assert [e["id"] for e in envelopes] == [1, "1", "1"]
    assert [e["error"]["type"] if e["error"] else None for e in envelopes] == ["MissingIdField", None, "DuplicateId"]


def test_a_row_without_its_id_fails_and_is_mended_by_an_edit(project: ProjectFolder, server: Server) -> None:
    project.write("data/rows.jsonl", '{"id": "a", "text": "one"}\n{"text": "two"}\n{"id": null, "text": "three"}\n')
    echo(project, path="data/rows.jsonl")
    settled(project, server, 1)
    errors = project.envelopes(file="errors.jsonl")
    assert [(e["id"], e["error"]["type"], e["input"]) for e in errors] == [
        (2, "MissingIdField", {"text": "two"}),
        (3, "MissingIdField", {"id": None, "text": "three"}),
    ]
    assert errors[0]["error"]["message"].startswith("data/rows.jsonl:2:")
    project.write("data/rows.jsonl", '{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    assert settled(project, server, 1).exit_code == 0
    assert seen(project) == [("a", 1, "Draft: one"), ("b", 2, "Draft: two")]


def test_a_ragged_row_fails_with_its_place_and_is_mended_by_an_edit(project: ProjectFolder, server: Server) -> None:
    project.write("data/rows.csv", "id,text\na,one\nb,two,too much\nc,three\n")
    echo(project)
    report = settled(project, server, 2)
    assert report.exit_code == 3
    assert [e["ok"] for e in project.envelopes()] == [True, False, True]
    (error,) = project.envelopes(file="errors.jsonl")
    assert (error["row_number"], error["error"]["type"], error["input"]) == (2, "InvalidRow", None)
    assert error["error"]["message"].startswith("data/rows.csv:3:")
    project.write("data/rows.csv", "id,text\na,one\nb,two\nc,three\n")
    assert settled(project, server, 1).exit_code == 0
    assert [e["id"] for e in project.envelopes()] == ["a", "b", "c"]


def test_a_line_that_is_no_json_fails_with_its_place_and_its_answer_is_kept(
    project: ProjectFolder, server: Server
) -> None:
    good = '{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n{"id": "c", "text": "three"}\n'
    project.write("data/rows.jsonl", good)
    echo(project, path="data/rows.jsonl")
    settled(project, server, 3)
    project.write("data/rows.jsonl", good.replace(' "two"}', ""))
    assert settled(project, server, 0).exit_code == 3
    (error,) = project.envelopes(file="errors.jsonl")
    assert (error["id"], error["row_number"], error["error"]["type"], error["input"]) == (2, 2, "InvalidJSON", None)
    assert error["error"]["message"].startswith("data/rows.jsonl:2:")
    project.write("data/rows.jsonl", '{"id": "z", "text": "new"}\n{"id": "a", "text": "one"}\nrubbish\n')
    settled(project, server, 1)
    (error,) = project.envelopes(file="errors.jsonl")
    assert error["error"]["message"].startswith("data/rows.jsonl:3:")
    project.write("data/rows.jsonl", good)
    assert settled(project, server, 0).exit_code == 0


# Any sequence of edits.


@dataclass(frozen=True)
class Line:
    """A row of the file; texts are few, so that prompts repeat."""

    id: str
    text: str
    tone: str

    def cells(self) -> dict[str, str]:
        return {"id": self.id, "text": self.text, "tone": self.tone}


lines = st.builds(Line, st.sampled_from("abcdefgh"), st.sampled_from("pqrst"), st.sampled_from("xy"))
distinct = st.lists(lines, max_size=9, unique_by=lambda line: line.id)
edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "move", "change", "repeat", "reverse"]), st.integers(0, 30),
        st.integers(0, 30), lines,
    ),
    max_size=3,
)  # fmt: skip
invocations = st.lists(st.tuples(edits, st.none() | st.integers(0, 8)), min_size=1, max_size=4)


def edited(rows: list[Line], changes: list[tuple[str, int, int, Line]]) -> list[Line]:
    rows = list(rows)
    for what, here, there, line in changes:
        if what == "insert" or not rows:
            rows.insert(here % (len(rows) + 1), line)
            continue
        place = here % len(rows)
        match what:
            case "delete":
                rows.pop(place)
            case "move":
                moved = rows.pop(place)
                rows.insert(there % (len(rows) + 1), moved)
            case "change":
                rows[place] = Line(rows[place].id, line.text, line.tone)
            case "repeat":
                rows.insert(there % (len(rows) + 1), Line(rows[place].id, line.text, line.tone))
            case "reverse":
                rows.reverse()
    return rows


@dataclass
class Expected:
    """What a file comes to under a mode, worked out without any of agac's code."""

    asked: list[Line] = field(default_factory=list)
    failed: int = 0
    dropped: int = 0

    @staticmethod
    def of(rows: list[Line], mode: str | None) -> Expected:
        found = Expected()
        for place, line in enumerate(rows):
            before = any(other.id == line.id for other in rows[:place])
            after = any(other.id == line.id for other in rows[place + 1 :])
            if mode == "error" and before:
                found.failed += 1
            elif (mode == "first" and before) or (mode == "last" and after):
                found.dropped += 1
            else:
                found.asked.append(line)
        return found

    def prompts(self) -> set[str]:
        drafts = {f"Draft: {line.text}" for line in self.asked}
        return drafts | {f"Polish ({line.tone}): Draft: {line.text}" for line in self.asked}


STAGES = [DRAFT, {"name": "polish", "prompt": "Polish (${tone}): ${draft}"}]


@contextmanager
def chunks_of(rows: int) -> Iterator[None]:
    """Chunks so small that a few rows have borders among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_rows, "CHUNK_ROWS", rows)
        yield


def write(project: ProjectFolder, rows: list[Line], mode: str | None) -> None:
    text = "".join(f"{line.id},{line.text},{line.tone}\n" for line in rows)
    project.write("data/rows.csv", "id,text,tone\n" + text)
    source = {"id_field": "id", "on_duplicate_id": mode} if mode else {"id_field": None}
    project.workflow(defaults=ECHO, stages=STAGES, input=source, output={"include_input": True})


def interrupted_run(project: ProjectFolder, after: int) -> agac.RunReport:
    """A run that is asked to stop once so many rows were settled; it may be faster than that."""

    async def watch(watched: WatchedRun) -> None:
        while watched.invocation.totals.rows.settled < after:
            await asyncio.sleep(0)
        watched.invocation.stop_signal.interrupt()

    return agac.run("reviews", agac.RunOptions(concurrency=2), project=project.root, progress=watch)


def files(project: ProjectFolder) -> list[bytes]:
    folder = project.root / "output/reviews"
    return [(folder / name).read_bytes() for name in ("results.jsonl", "results.json", "errors.jsonl")]


@pytest.mark.parametrize("mode", few([None, *MODES], 2))
def test_any_edits_cost_what_was_never_answered_and_give_what_a_new_project_gives(
    mode: str | None, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base: Path = tmp_path_factory.mktemp("edits")
    numbers = iter(range(10**6))

    @campaign(test=3, soak=100)
    @given(rows=distinct, history=invocations, chunk=st.sampled_from([1, 2, 3, 256]))
    def holds(rows: list[Line], history: list[tuple[Any, int | None]], chunk: int) -> None:
        project = ProjectFolder(base / str(next(numbers)))
        project.configure(server.base_url)
        answered: set[str] = set()
        with chunks_of(chunk):
            for changes, stop_after in history:
                rows = edited(rows, changes)
                write(project, rows, mode)
                if stop_after is not None:
                    interrupted_run(project, stop_after)
                    answered = {value.strip('"') for (value,) in project.query("SELECT value FROM result")}
                    project.assert_sound()
                expected = Expected.of(rows, mode)
                server.reset()
                report = project.run()
                assert server.account()["requests"] == len(expected.prompts() - answered)
                answered |= expected.prompts()
                counts = {"done": len(expected.asked), "failed": expected.failed, "dropped": expected.dropped}
                assert report.summary["rows"] == {"total": len(rows), **counts, "skipped": 0, "open": 0}
                project.assert_sound()
                server.reset()
                project.run()
                assert server.account()["requests"] == 0
            new = ProjectFolder(base / str(next(numbers)))
            new.configure(server.base_url)
            write(new, rows, mode)
            new.run()
        assert files(project) == files(new)

    holds()


def test_a_repeated_id_names_the_files_of_both_rows(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "1"}, {"id": "b", "text": "2"}], "data/in/1.csv")
    project.write("data/in/2.csv", "id,text\n")
    project.rows([{"id": "c", "text": "3"}, {"id": "b", "text": "4"}, {"id": "c", "text": "5"}], "data/in/3.csv")
    project.workflow(path="data/in/*.csv")
    hint = "give each row its own id, or set input.on_duplicate_id: first | last | suffix"
    hint += " (`agac process`: --read on_duplicate_id=last)"
    expected = [
        f"data/in/3.csv: row 2: id 'b' was used by data/in/1.csv: row 2 already; {hint}",
        f"data/in/3.csv: row 3: id 'c' was used by data/in/3.csv: row 1 already; {hint}",
    ]
    for _ in range(2):
        assert project.run().exit_code == 3
        assert [one["error"]["message"] for one in project.envelopes(file="errors.jsonl")] == expected
    project.run(project.workflow(path=["data/in/3.csv", "data/in/1.csv"]), fresh=True)
    assert [one["error"]["message"].partition(";")[0] for one in project.envelopes(file="errors.jsonl")] == [
        "data/in/3.csv: row 3: id 'c' was used by data/in/3.csv: row 1 already",
        "data/in/1.csv: row 2: id 'b' was used by data/in/3.csv: row 2 already",
    ]
