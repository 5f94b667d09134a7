"""Output files are made from the store, again whenever somebody asks."""

import shutil
from pathlib import Path

import pytest
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac

ECHO = {"model": "local/echo"}
SAY = [{"name": "say", "prompt": "${text}"}]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def finished(project: ProjectFolder, rows: int = 5) -> Path:
    project.numbered(rows)
    project.workflow(defaults=ECHO, stages=SAY)
    assert project.run().exit_code == 0
    return project.root / "output/reviews"


def test_whatever_makes_the_outputs_again_makes_the_same(project: ProjectFolder, faulty: Faulty) -> None:
    """A run that has nothing to do, the command, and an export that finds neither the workflow nor the input."""
    server = project.asks(faulty([{"kind": "refusal", "match": "number 77"}]))
    folder = project.root / "output/reviews"
    project.numbered(1300)
    project.workflow(defaults=ECHO, stages=SAY)
    project.run()
    before = contents(folder)
    assert b'"input":{"id":"r-77"' in before["errors.jsonl"]
    (folder / "results.json").unlink()
    assert project.run(retry_failed=False).invocation["calls"] == 0
    assert contents(folder) == before
    shutil.rmtree(folder)
    assert "results.jsonl" in project.agac("export", "-a", "reviews", code=0).out
    assert contents(folder) == before
    shutil.rmtree(folder)
    (project.root / "workflows/reviews.yml").unlink()
    (project.root / "data/rows.csv").unlink()
    summary, files = agac.export("reviews", project=project.root)
    assert contents(folder) == before
    assert (summary["rows"]["done"], summary["rows"]["failed"]) == (1289, 11)
    assert [path.name for path in files] == [
        "results.jsonl", "results.json", "errors.jsonl", "summary.json", "telemetry.jsonl",
    ]  # fmt: skip
    assert server.account()["requests"] == 1300


def test_an_older_run_and_a_preview_can_be_exported_again(project: ProjectFolder, server: Server) -> None:
    folder = finished(project)
    old = contents(folder)
    project.workflow(defaults=ECHO, stages=[{"name": "say", "prompt": "Again: ${text}"}])
    project.run()
    new = contents(folder)
    project.run(limit=2)
    preview = contents(folder / "preview")
    shutil.rmtree(folder / "preview")
    agac.export("reviews", project=project.root)
    assert contents(folder / "preview") == preview
    assert old["results.json"] != new["results.json"]
    agac.export("reviews", run=1, project=project.root)
    assert contents(folder) == old
    assert project.run().invocation["calls"] == 0
    assert contents(folder) == new


def test_an_unfinished_run_is_exported_only_when_that_is_asked_for(project: ProjectFolder, faulty: Faulty) -> None:
    """The run ended at its eighth call."""
    project.asks(faulty([{"kind": "unauthorized", "at": [8]}]))
    project.numbered(20)
    project.workflow(defaults=ECHO, stages=SAY)
    assert project.run(concurrency=1).exit_code == 1
    with pytest.raises(agac.UsageError, match="not finished") as refused:
        agac.export("reviews", project=project.root)
    assert "--partial" in (refused.value.remedy or "")
    assert not (project.root / "output").exists()
    summary, _ = agac.export("reviews", partial=True, project=project.root)
    assert summary["complete"] is False
    assert [e["row_number"] for e in project.envelopes()] == list(range(1, 8))
    assert all(e["ok"] for e in project.envelopes())
    assert project.envelopes(file="errors.jsonl") == []
    assert project.output(file="summary.json")["complete"] is False
    assert project.run().exit_code == 0
    assert len(project.envelopes()) == 20
    assert project.output(file="summary.json")["complete"] is True


def test_there_is_nothing_to_export_before_the_first_run(project: ProjectFolder) -> None:
    with pytest.raises(agac.UsageError, match="nothing was run"):
        agac.export("reviews", project=project.root)
    finished(project)
    with pytest.raises(agac.UsageError, match="no run of workflow 'other'"):
        agac.export("other", project=project.root)
    with pytest.raises(agac.UsageError, match="no run 7"):
        agac.export("reviews", run=7, project=project.root)


def test_two_workflows_in_one_folder_replace_each_other(project: ProjectFolder, server: Server) -> None:
    project.numbered(3)
    project.workflow("one", defaults=ECHO, stages=SAY, output={"dir": "output/shared"})
    project.workflow(
        "two", defaults=ECHO, stages=[{"name": "say", "prompt": "two: ${text}"}], output={"dir": "output/shared"}
    )
    project.run("one")
    project.run("two")
    assert project.output("shared")[0] == "two: I love number 1"
    project.run("one")
    assert project.output("shared")[0] == "I love number 1"
    assert server.account()["requests"] == 6


def test_results_go_into_another_file_and_format_and_leave_everything_else(
    project: ProjectFolder, server: Server, tmp_path: Path
) -> None:
    formats = ["csv", "tsv", "txt", "parquet"]
    project.numbered(700)
    project.workflow(defaults=ECHO, stages=SAY, output={"format": formats, "merge": "extend"})
    assert project.run().exit_code == 0
    folder = project.root / "output/reviews"
    before, run = contents(folder), project.query("SELECT * FROM run")
    for one in ("jsonl", "json", *formats):
        file = tmp_path / f"Mine.{one.upper()}"
        assert project.agac("export", "--to", str(file), "--run", "1", code=0).out == f"{file}\n"
        assert file.read_bytes() == before[f"results.{one}"]
        as_text = one.replace("parquet", "txt")
        printed = project.agac("export", "--to", "-", "--run", "1", "--format", as_text, code=0).out
        assert printed.encode() == before[f"results.{as_text}"]
    # of what the workflow does not ask for, after its input and itself are gone, and only as a whole
    project.workflow(
        "others", defaults=ECHO, stages=[{**SAY[0], "prompt": "x", "output_schema": dict.fromkeys("zb", "integer")}]
    )
    project.run("others")
    shutil.rmtree(project.root / "data")
    summary, (file,) = agac.export("others", to=tmp_path / "x", format="csv", project=project.root)
    assert file.read_text("utf-8").startswith("id,text,z,b,error\nr-1,I love number 1,")
    assert summary["rows"]["done"] == 700
    assert [contents(folder), project.query("SELECT * FROM run WHERE id = 1")] == [before, run]
    assert server.account()["requests"] == 701


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to x", "--to x: its name tells no format\n  Choose one with --format: jsonl, json, csv, tsv, txt,"),
        ("--to - --json", "--json and --to - both print on standard output"),
        ("--to x.csv --format xlsx", "--to x.csv: 'xlsx' is not a format"),
        ("--to there.csv", "there.csv exists\n  Name another file, or replace it with --force."),
        ("--to output --format csv", "output is a folder\n  Name a file in it: output/reviews.csv"),
        ("--to nowhere/x.csv", "there is no folder nowhere\n  mkdir -p nowhere"),
        ("--to output/reviews/results.json --force", "results.json is an output of the run"),
        ("--to .agac/agac.db --format csv --force", "agac.db is the database itself"),
        ("--format csv", "--format and --force are for --to FILE"),
        ("--to x.csv --run 1", "run 1 of reviews is not finished\n  Finish it with `agac run -a reviews --limit 2`"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_a_file_changes(
    words: str, said: str, refusing: tuple[ProjectFolder, dict[str, bytes]]
) -> None:
    project, before = refusing
    with pytest.raises(agac.UsageError, match="to='-'"):
        agac.export(to="-", format="csv", project=project.root)
    assert said in project.agac("export", *words.split(), code=2).err
    assert {**contents(project.root), **contents(project.root / "output/reviews")} == before


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProjectFolder, dict[str, bytes]]:
    """A project with a finished run and one that is not, and the content of its files."""
    project = ProjectFolder(tmp_path_factory.mktemp("refusing") / "project")
    project.workflow(rows=5, stages=[{"name": "keep", "select": ["text"]}])
    project.write("there.csv", "mine")
    project.run(limit=2)
    project.run()
    with project.changed() as ask:
        ask("UPDATE run SET finished_at = NULL WHERE id = 1")
    return project, {**contents(project.root), **contents(project.root / "output/reviews")}
