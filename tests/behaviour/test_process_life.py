"""The life of a job: results that it adopts, a work dir of its own, files that it may not touch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Step, answering
from support.project import ProjectFolder, Ran

import agac

PROMPT = "Review: ${text}"
WORDS = ("process", "data/rows.csv", "out.jsonl", "--prompt", PROMPT, "--id-field", "id")
FILES = ("out.jsonl", "out.jsonl.previous")
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["a", "b"]}}, "required": ["label"]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def process(project: ProjectFolder, *words: str, code: int = 0, **more: Any) -> Ran:
    return project.agac(*WORDS, *words, code=code, **more)


def envelope(row: object, result: object, *, ok: object = True) -> str:
    return json.dumps({"id": row, "row_number": 1, "ok": ok, "result": result, "error": None}) + "\n"


def test_results_of_an_unknown_file_are_adopted_and_never_paid(project: ProjectFolder) -> None:
    """What is empty, failed, torn or of another row is asked; and nobody else has what was adopted."""
    project.numbered(8)
    found = [("r-1", "x"), ("r-2", " "), ("r-3", "old"), ("r-4", 4), ("r-3", "x"), ("r-5", None), ("r-99", "y")]
    text = "".join(envelope(*one) for one in found) + envelope("r-6", "z", ok=False) + '{"id": "r-7", "ok": tr'
    file = project.write("out.jsonl", text)
    assert "--resume adopts its results" in (ran := process(project, code=2)).err
    assert "replace it with --overwrite" in ran.err
    ran = process(project, "--resume", code=2)
    for said in (
        "nothing was adopted: out.jsonl has 2 results for rows of the input; 4 empty, failed or unfit; 1 of other rows",
        "; 1 repeated further down, where the last line counts; 1 torn at the end; the commonest: 2 × ",
        '× "x"; for example \'r-1\': "x", \'r-3\': "x"',
        "Add --yes to adopt them, or replace the file with --overwrite",
    ):
        assert said in ran.err, said
    assert file.read_text("utf-8") == text
    assert "this plan is without what --resume adopts: out.jsonl has 2" in process(project, "--resume", "--dry-run").err
    asked: list[str] = []

    def answer(prompt: str) -> Step:
        asked.append(prompt.split("number ")[1])
        return Step("new")

    with answering(answer, project):
        options = agac.ProcessOptions(prompt=PROMPT, id_field="id", resume=True, limit=4)
        places = (project.root / "data/rows.csv", file)
        questions: list[str] = []

        def yes(question: str) -> bool:
            questions.append(question)
            return True

        report = agac.process(*places, options, project=project.root, confirm=yes)
        assert (report.summary["adopted_rows"], sorted(asked), len(questions)) == (2, ["2", "4"], 1)
        assert {one["id"]: one["result"] for one in lines(file)} == {
            "r-1": "x", "r-2": "new", "r-3": "x", "r-4": "new",
        }  # fmt: skip
        assert (project.root / "out.jsonl.previous").read_text("utf-8") == text
        asked.clear()
        options = agac.ProcessOptions(prompt=PROMPT, id_field="id")
        assert agac.process_plan(*places, options, project=project.root).calls == 4, "another selection, the same job"
        assert agac.process(*places, options, project=project.root).summary["adopted_rows"] == 2
        assert sorted(asked) == ["5", "6", "7", "8"]
        asked.clear()
        agac.process(places[0], project.root / "other.jsonl", options, project=project.root)
        assert sorted(asked) == ["1", "3"], "what was adopted is the answer of this job alone"
        asked.clear()
        agac.process(*places, agac.ProcessOptions(prompt="Now ${text}: number 0", id_field="id"), project=project.root)
        assert len(asked) == 8, "another prompt"
        asked.clear()
        report = agac.process(
            *places, agac.ProcessOptions(prompt=PROMPT, id_field="id", fresh=True), project=project.root
        )
        assert (len(asked), report.summary["adopted_rows"]) == (8, 0), "--fresh alone pays again"
    assert "  adopted: it stood in out.jsonl; nothing was asked" in project.agac("inspect", "1", "r-1", code=0).out
    assert "answered by: adopted/out.jsonl (adopted)" in project.agac("why", "1", "r-1", "result", code=0).out
    project.assert_sound()


@pytest.mark.parametrize(
    ("words", "result", "adopted"),
    [
        (("--json-schema", "s.json"), {"label": "a"}, 1),
        (("--json-schema", "s.json"), {"label": "c"}, 0),
        (("--json-schema", "s.json"), '{"label": "a"}', 0),
        (("--reply", "json"), [1, {"a": None}], 1),
        (("--reply", "json"), 0, 1),
        (("--reply", "json"), {}, 0),
        ((), "\x9b31m\u202e", 1),
        ((), {"label": "a"}, 0),
        ((), "", 0),
    ],
)
def test_only_what_fits_the_job_is_adopted(
    project: ProjectFolder, words: tuple[str, ...], result: object, adopted: int
) -> None:
    project.numbered(2)
    project.write("s.json", json.dumps(SCHEMA))
    file = project.write("out.jsonl", envelope("r-1", result))
    ran = process(project, "--resume", "--yes", "--limit", "1", *words, code=0 if adopted else 2)
    if adopted:
        assert ran.json["adopted_rows"] == 1
        assert not {"\x9b", "\u202e"} & set(ran.err), "control characters of a file are shown as escapes"
        assert lines(file)[0]["result"] == result
        assert "Adopted: the answers of 1 row" in ran.err
    else:
        assert "nothing was adopted: out.jsonl has 0 results for rows of the input" in ran.err
        assert lines(file)[0]["result"] == result


# Which row a result from elsewhere is of.


def line(row: object, row_number: int | None, result: str, **more: object) -> str:
    """A line as other programs write it."""
    number = {} if row_number is None else {"row_number": row_number}
    return json.dumps({"id": row, **number, "ok": True, "result": result, "error": None, **more}) + "\n"


@pytest.mark.parametrize("words", [(), ("--read", "delimiter=,")])
def test_without_ids_nothing_is_adopted(project: ProjectFolder, words: tuple[str, ...]) -> None:
    """Rows then only have numbers, and programs count differently: csv rows from 2, for example."""
    project.rows([{"text": "one"}, {"text": "two"}])
    file = project.write("out.jsonl", line(2, 2, "of one") + line(3, 3, "of two"))
    before = file.read_bytes()
    ran = project.agac(
        "process", "data/rows.csv", "out.jsonl", "--prompt", "{text}", "--resume", "--yes", *words, code=2
    )
    assert "nothing was adopted" in ran.err
    assert "name the field with the ids with --id-field" in ran.err
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["1", "2", "3"], line(2, 2, "a") + line(3, 3, "b") + line(4, 4, "c")),
        (["1", "2", "3"], line(0, 0, "a") + line(1, 1, "b") + line(2, 2, "c")),
        (["1", "2", "3"], line(0, None, "a") + line(1, None, "b") + line(2, None, "c")),
        (["1", "2", "3"], line(2, None, "a") + line(3, None, "b") + line(4, None, "c")),
        (["3", "1", "2"], line(1, 1, "a") + line(2, 2, "b") + line(3, 3, "c")),
        (["3", "1", "2"], line(1, None, "a") + line(2, None, "b") + line(3, None, "c")),
    ],
)
def test_row_numbers_of_another_program_are_no_ids(project: ProjectFolder, ids: list[str], text: str) -> None:
    project.rows([{"id": one, "text": f"text {one}"} for one in ids])
    file = project.write("out.jsonl", text)
    ran = process(project, "--resume", "--yes", code=2)
    assert "nothing was adopted: out.jsonl has 0 results for rows of the input" in ran.err
    assert "with row numbers for ids, which are not values of 'id'" in ran.err
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["7", "8"], line(7, None, "of 7") + line(8, None, "of 8")),
        (["1", "2"], line(1, 2, "of 1") + line(2, 3, "of 2")),
        (["1", "2"], line(1, 1, "of 1") + line(2, 2, "of 2")),
        (["2", "1"], line("1", 1, "of 1") + line("2", 2, "of 2")),
        (["2", "1"], line(1, 1, "of 1", input={"text": "text 1"}) + line(2, 2, "of 2", input={"text": "text 2"})),
    ],
)
def test_an_integer_is_the_id_with_its_digits(project: ProjectFolder, ids: list[str], text: str) -> None:
    """Also where it could be a row number, if both mean the same row or the line's input is the row."""
    project.rows([{"id": one, "text": f"text {one}"} for one in ids])
    file = project.write("out.jsonl", text)
    ran = process(project, "--resume", "--yes", code=0)
    assert (ran.json["adopted_rows"], ran.json["usage"]["total_tokens"]) == (2, 0)
    assert [(one["id"], one["result"]) for one in lines(file)] == [(one, f"of {one}") for one in ids]


@pytest.mark.parametrize(
    ("about", "adopted"),
    [
        ({"text": "text 2"}, False),
        ({"id": 2, "text": "text 1"}, False),
        ({"id": 1, "text": "text 1"}, True),
        ({"id": "1", "number": "1.50", "empty": None, "flag": True}, True),
        ({"number": 1.5, "empty": ""}, True),
        ({"number": 2}, False),
        ({"empty": "full"}, False),
        ({"another": "x"}, True),
        (None, True),
        ("text 1", True),
        ("Review: text 1", True),
        ("Review: text 2", False),
        (["text 1"], False),
    ],
)
def test_a_line_whose_input_is_another_row_is_not_adopted(project: ProjectFolder, about: object, adopted: bool) -> None:
    rows = [{"id": str(one), "text": f"text {one}", "number": "1.5", "empty": "", "flag": "true"} for one in (1, 2)]
    project.rows(rows)
    project.write("out.jsonl", line("1", 1, "old", input=about) + line("2", 2, "older"))
    ran = process(project, "--resume", "--yes", code=0)
    assert ran.json["adopted_rows"] == 1 + adopted
    assert ("1 with an `input` that is not the row's" in ran.err) is not adopted


def test_results_with_their_input_are_adopted_after_the_store_was_lost(project: ProjectFolder) -> None:
    project.numbered(3)
    process(project, "--include-input", code=0)
    for path in (project.root / ".agac").glob("agac.db*"):
        path.unlink()
    ran = process(project, "--include-input", "--resume", "--yes", code=0)
    assert (ran.json["adopted_rows"], ran.json["usage"]["total_tokens"]) == (3, 0)


def test_killed_at_any_moment_it_pays_nothing_that_it_adopted_and_loses_no_file(project: ProjectFolder) -> None:
    project.numbered(4)
    texts = [envelope("r-1", "old") + envelope("r-3", "older"), "mine\n"]
    output, mine = (project.write(name, text) for name, text in zip(FILES, texts, strict=True))
    asked: list[str] = []

    def answer(prompt: str) -> Step:
        asked.append(prompt[-1])
        return Step("new")

    moment, ended = 0, -9
    with answering(answer, project):
        while ended == -9:
            moment += 1
            ended = project.agac(*WORDS, "--resume", "--yes", "--parallel", "1", kill=f"any:{moment}").code
            kept = [path.read_text("utf-8") for path in project.root.glob("out.jsonl*")]
            assert all(text in kept for text in texts)
            found = output.read_text("utf-8") if output.exists() else ""
            assert all(json.loads(line)["ok"] for line in found[: found.rfind("\n") + 1].splitlines())
    assert (ended, moment > 5, mine.read_text("utf-8")) == (0, True, "mine\n")
    assert [one["result"] for one in lines(output)] == ["old", "new", "older", "new"]
    assert set(asked) == {"2", "4"}
    assert len(asked) <= 2 + moment
    project.assert_sound()


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (envelope("r-1", "x") + "{\n" + envelope("r-2", "x"), (), "out.jsonl, line 2 is not the result of a row: "),
        ('{"text": "x"}\n', (), "line 1 is not the result of a row: it has no 'id'. Nothing was adopted"),
        (envelope(True, "x"), (), "line 1 is not the result of a row: its `id` is no id"),
        (envelope(1 << 70, "x"), (), "line 1 is not the result of a row"),
        (envelope("\ud800", "x"), (), "line 1 is not the result of a row"),
        (envelope("r-1", "x") + "\n", (), "line 2 is not the result of a row"),
        (envelope("r-1", "x"), ("--fresh",), "--resume adopts a jsonl file that was written without --merge"),
        (envelope("r-1", "x"), ("--merge", "append"), "--resume adopts a jsonl file"),
        (envelope("r-1", "x"), ("--format", "json"), "--resume adopts a jsonl file"),
    ],
)
def test_a_damaged_file_is_not_adopted(project: ProjectFolder, text: str, words: tuple[str, ...], said: str) -> None:
    project.numbered(2)
    file = project.write("out.jsonl", text)
    assert said in process(project, "--resume", "--yes", *words, code=2).err
    assert file.read_text("utf-8") == text


def test_a_work_dir_has_the_state_and_the_settings_of_the_project(project: ProjectFolder, tmp_path: Path) -> None:
    project.numbered(3)
    project.write("models.py", "from pydantic import BaseModel\n\n\nclass Label(BaseModel):\n    label: str\n")
    work, places = tmp_path / "work", (project.root / "data/rows.csv", project.root / "out.jsonl")
    options = agac.ProcessOptions(
        prompt=PROMPT, id_field="id", schema_model="models:Label", model="simulator/small", work_dir=str(work)
    )
    first = agac.process(*places, options, project=project.root)
    assert (first.summary["ok_rows"], first.warnings) == (3, [])
    assert not (project.root / ".agac").exists()
    project.rows([{"id": "r-1", "text": "new"}, {"id": "r-3", "text": "I love number 3"}, {"id": "r-4", "text": "x"}])
    mine = work / "mine.txt"
    mine.write_text("x")
    words = ("--work-dir", str(work), "--schema-model", "models:Label", "--model", "simulator/small")
    ran = process(project, *words, "--overwrite")
    said = "of the rows of the input, since run 1: 1 added, 1 changed, 1 gone"
    assert ran.err.index(said) < ran.err.index(f"resume with `agac resume job_1 --project-dir {work}`")
    assert ran.json["skipped_rows"] == 1
    assert project.agac("resume", "job_1", "--work-dir", str(work), cwd=tmp_path, code=0).json["skipped_rows"] == 3
    for command in ("status", "inspect job_1 r-1", "why job_1 r-1 result", "sql SELECT(1)", "gc --keep-runs 1", "runs"):
        assert project.agac(*command.split(), "--project-dir", str(work), cwd=tmp_path, code=0).out
    assert agac.resume("job_1", project=work).summary["ok_rows"] == 3
    assert mine.exists()
    assert [path.name for path in (project.root / ".agac").glob("*")] == []


@pytest.mark.parametrize(
    ("output", "words", "said"),
    [
        ("link.jsonl", (), "link.jsonl: is a link; agac does not write through links"),
        ("data", (), "data is a folder\n  Name a file in it:"),
        ("out.jsonl", ("--overwrite", "--resume"), "--overwrite and --resume exclude each other"),
        ("/proc/out.jsonl", (), "/proc: cannot be written"),
    ],
)
def test_an_output_that_cannot_be_one(project: ProjectFolder, output: str, words: tuple[str, ...], said: str) -> None:
    rows = project.numbered(1)
    (project.root / "link.jsonl").symlink_to(rows)
    text = rows.read_text("utf-8")
    ran = project.agac("process", "data/rows.csv", output, *words)
    assert ran.code in (1, 2)
    assert said in ran.err
    assert rows.read_text("utf-8") == text


@pytest.mark.parametrize(
    ("files", "output", "said"),
    [
        ({"work/notes.txt": ""}, "out.jsonl", "work is not empty, and no work dir of agac\n  Name an empty folder"),
        ({"work/manifest.json": '{"shards": []}'}, "out.jsonl", "work is the work dir of another tool"),
        ({"work": ""}, "out.jsonl", "--work-dir: Directory 'work' is a file"),
        ({}, "work/out.jsonl", "work/out.jsonl: belongs to agac or git"),
    ],
)
def test_a_work_dir_is_empty_or_ours(project: ProjectFolder, files: dict[str, str], output: str, said: str) -> None:
    project.numbered(1)
    for name, text in files.items():
        project.write(name, text)
    ran = project.agac("process", "data/rows.csv", output, "--work-dir", "work", code=2)
    assert said in ran.err
    assert [(project.root / name).read_text() for name in files] == list(files.values())


# A job whose files changed since it was answered.

TEMPERATE = "defaults: {model: simulator/small, temperature: 0.5}\n"


@pytest.mark.parametrize(
    ("words", "path", "before", "now", "said"),
    [
        (("--template", "p.txt"), "p.txt", "Rate {{text}}", "Judge {{text}}", "prompt of result"),
        (("--prompt", "{text}", "--json-schema", "s.json"), "s.json", '{"a": "string"}', '{"b": "string"}',
         "schema of result"),
        (("--prompt", "{text}", "--instruction", "i.md"), "i.md", "Be kind.", "Be brief.", "instructions of result"),
        (("--prompt", "{text}", "--agent-card", "c.yml"), "c.yml", "instruction: Tag.", "instruction: Sort.",
         "instructions of result"),
        (("--prompt", "{text}"), "agac.yml", "defaults: {model: simulator/small}\n", TEMPERATE,
         "parameters of result: temperature none → 0.5"),
        (("--prompt", "{text}"), "agac.yml", "defaults: {model: simulator/small}\n",
         "defaults: {model: simulator/large}\n", "model of result: simulator/small → simulator/large"),
    ],
)  # fmt: skip
def test_a_resumed_job_asks_answered_rows_again_only_after_a_yes(
    words: tuple[str, ...], path: str, before: str, now: str, said: str, project: ProjectFolder
) -> None:
    """Whichever file or setting changed; without a yes no call is made and no run begins."""
    project.numbered(3)
    project.write(path, before)
    project.agac("process", "data/rows.csv", "out.jsonl", "--id-field", "id", "--limit", "2", *words, code=0)
    kept = (project.root / "out.jsonl").read_bytes()
    project.write(path, now)
    ran = project.agac("resume", "job_1", code=2)
    told = "no calls were made: 2 rows that job_1 answered would be asked again, since this changed: "
    assert f"{told}{said}. In all, 2 calls for " in ran.err
    assert "Add --yes to ask them again. To keep their answers, undo the change first." in ran.err
    assert (project.root / "out.jsonl").read_bytes() == kept
    assert "job_2" not in ran.err
    project.write(path, before)
    assert project.agac("resume", "job_1", code=0).json["processed_rows"] == 0, "what was undone asks nothing"
    project.write(path, now)
    ran = project.agac("resume", "job_1", "--yes", code=0)
    assert (ran.json["job"], ran.json["processed_rows"]) == ("job_2", 2)
    ran = project.agac("resume", "job_1", code=0)
    assert ran.json["processed_rows"] == 0, "those answers are there now"


def test_a_resumed_job_says_in_python_what_would_be_asked_again(project: ProjectFolder) -> None:
    project.numbered(2)
    template = project.write("p.txt", "Rate {{text}}")
    options = agac.ProcessOptions(template=str(template))
    agac.process(project.root / "data/rows.csv", project.root / "out.jsonl", options, project=project.root)
    template.write_text("Judge {{text}}")
    questions: list[str] = []

    def answer_no(question: str) -> bool:
        questions.append(question)
        return False

    with pytest.raises(agac.UsageError, match="no calls were made"):
        agac.resume("job_1", project=project.root, confirm=answer_no)
    assert questions[0].startswith("2 rows that job_1 answered would be asked again")
    assert agac.resume("job_1", project=project.root, yes=True).invocation["calls"] == 2


def test_a_resumed_job_asks_no_question_when_only_rows_changed(project: ProjectFolder) -> None:
    project.numbered(2)
    words = ("process", "data/rows.csv", "out.jsonl", "--id-field", "id", "--prompt", "{text}")
    project.agac(*words, code=0)
    project.rows([{"id": "r-1", "text": "new"}, {"id": "r-2", "text": "I love number 2"}])
    assert project.agac("resume", "job_1", code=0).json["processed_rows"] == 1
