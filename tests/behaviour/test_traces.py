"""`--export-traces`: a file for each row, with its calls, turns and tools."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.project import ProjectFolder

import agac
from agac.testing import simulator

TOOL = '''
def look(q: str) -> str:
    """Looks something up."""
    return f"found {q}"
'''
ODD = ["../x", "a b", "a_b", "A_b", "é" * 90, "..", "a/1"]
"""Ids that are no file names, or one and the same where case does not count."""


def traces(folder: Path) -> dict[Any, dict[str, Any]]:
    """By id, through the manifest, which names every file that is there."""
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text("utf-8").split("\n") if line]
    names = [line["file"] for line in lines]
    assert sorted([*names, "manifest.jsonl"]) == sorted(path.name for path in folder.iterdir())
    assert len({name.lower() for name in names}) == len(names)
    assert all(name.isascii() and not name.startswith(".") and len(name) < 80 for name in names)
    return {line["id"]: json.loads((folder / line["file"]).read_text("utf-8")) for line in lines}


def test_each_row_has_a_file_with_what_was_said_and_called(project: ProjectFolder, tmp_path: Path) -> None:
    project.configure()
    project.write("tools/t.py", TOOL)
    project.workflow(
        rows=[{"id": one, "text": "text"} for one in ODD],
        stages=[{"name": "ask", "prompt": "${text} ${id}", "tools": ["tools/t.py:look"]}],
    )
    script = [{"turn": 1, "calls": [{"name": "look", "arguments": {"q": "x"}}]}, {"reply": "done"}]
    with simulator(script=script):
        report = project.run(export_traces=str(tmp_path / "traces"), limit=6)
    assert report.exit_code == 0
    found = traces(tmp_path / "traces")
    assert set(found) == set(ODD[:6])
    for trace in found.values():
        [stage] = trace["stages"]
        first, second = stage["turns"]
        [called] = first["calls"]
        assert (called["name"], called["arguments"], called["state"]) == ("look", '{"q": "x"}', "done")
        assert (called["result"], second["calls"], second["ended"], stage["result"]) == ("found x", [], "done", "done")
        assert [message["role"] for message in stage["prompt"]] == ["user"]
        assert [attempt["number"] for attempt in stage["attempts"]] == [first["attempt"], second["attempt"]]
        assert trace["state"] == "done"


def test_traces_of_rows_that_stages_made_and_of_a_row_run(project: ProjectFolder, tmp_path: Path) -> None:
    project.workflow(
        rows=2,
        stages=[
            {"name": "plan", "output_schema": {"parts": "string[]"}},
            {"name": "say", "explode": "plan.parts", "prompt": "${item}"},
        ],
    )
    assert project.run(export_traces=str(tmp_path / "made")).exit_code == 0
    made = traces(tmp_path / "made")
    assert sorted(one["relation"] for one in made.values()) == sorted(["input", "input", *["child"] * (len(made) - 2)])
    flags = ["--export-traces", str(tmp_path / "job"), "--parallel", "2", "--sample", "2", "--max-errors", "1"]
    ran = project.agac("process", "data/rows.csv", "out.jsonl", "-p", "{{text}}", "-m", "simulator/small", *flags)
    assert ran.code == 0, ran.err
    assert len(traces(tmp_path / "job")) == 2


def test_a_folder_with_files_of_others_is_refused_before_anything_is_asked(
    project: ProjectFolder, tmp_path: Path
) -> None:
    project.workflow(rows=2)
    folder = tmp_path / "traces"
    assert project.run(export_traces=str(folder)).exit_code == 0
    assert project.run(export_traces=str(folder)).exit_code == 0  # its own are replaced
    for name, text in (("notes.md", ""), ("manifest.jsonl", '{"id": 1}\n'), ("manifest.jsonl", "[]\n"), ("sub", None)):
        other = tmp_path / f"{name}-{text}".replace("/", "").strip()
        other.mkdir()
        (other / name).mkdir() if text is None else (other / name).write_text(text)
        with pytest.raises(agac.UsageError, match=f"{name} was made by no export"):
            project.run(export_traces=str(other), fresh=True)
        assert text is None or (other / name).read_text() == text
    with pytest.raises(agac.UsageError, match="a file was made by no export"):
        project.run(export_traces=str(folder / "manifest.jsonl"))
    assert project.query("SELECT count(*) FROM attempt") == [(2,)]
