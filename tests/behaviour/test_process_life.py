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
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["a", "b"]}}, "required": ["label"]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def process(project: ProjectFolder, *words: str, code: int = 0, **more: Any) -> Ran:
    places = ("data/rows.csv", "out.jsonl", "--prompt", PROMPT, "--id-field", "id")
    return project.agac("process", *places, *words, code=code, **more)


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
        "nothing was adopted: out.jsonl was not written by this job; it has results of 2 rows of the input that fit",
        "4 empty, failed or unfit; 1 of other rows; 1 repeated further down, where the last line counts",
        "its torn last line is left out", 'The commonest: 2 × "x". For example ', "'r-3': \"x\"", "Add --yes",
    ):  # fmt: skip
        assert said in ran.err, said
    assert file.read_text("utf-8") == text
    assert "This plan is without them" in process(project, "--resume", "--dry-run").err
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
        assert lines(file)[0]["result"] == result
        assert "Adopted: the answers of 1 row" in ran.err
    else:
        assert "nothing was adopted: out.jsonl was not written by this job; it has results of 0 rows" in ran.err
        assert lines(file)[0]["result"] == result


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (envelope("r-1", "x") + "{\n" + envelope("r-2", "x"), (), "out.jsonl, line 2 is not the result of a row: "),
        ('{"text": "x"}\n', (), "line 1 is not the result of a row: it has no 'id'. Nothing was adopted"),
        (envelope(True, "x"), (), "line 1 is not the result of a row: its `id` is no id"),
        (envelope(1 << 70, "x"), (), "line 1 is not the result of a row"),
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
