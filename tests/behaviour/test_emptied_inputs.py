"""Rows that leave the input take their results with them: not all of them by mistake, nor most of them unseen."""

from pathlib import Path

import pytest
from support.project import ProjectFolder
from support.server import Server

from agac.core.errors import UsageError

HEADER = "id,text\n"
SAY = [{"name": "say", "prompt": "${text}"}]
ECHO = {"model": "local/echo"}
PREVIOUS = ["errors.previous.jsonl", "results.previous.json", "results.previous.jsonl", "summary.previous.json"]


@pytest.fixture
def finished(project: ProjectFolder, server: Server) -> ProjectFolder:
    """Ten rows with results, as JSON and csv."""
    project.run(project.workflow(rows=10, defaults=ECHO, stages=SAY, output={"format": "csv"}))
    return project


def contents(project: ProjectFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (project.root / "output/reviews").iterdir() if path.is_file()}


def previous(project: ProjectFolder) -> list[str]:
    return sorted(name for name in contents(project) if ".previous." in name)


def workflow(project: ProjectFolder, prompt: str = "${text}", **keys: object) -> str:
    stages = [{**SAY[0], "prompt": prompt}]
    return project.workflow(defaults=ECHO, stages=stages, output={"format": "csv"}, **keys)


@pytest.mark.parametrize("how", ["same", "edited prompt", "fresh", "json", "patterns"])
def test_an_input_that_lost_all_its_rows_replaces_nothing(how: str, finished: ProjectFolder) -> None:
    before, flags = contents(finished), ["--fresh"] if how == "fresh" else []
    finished.write("data/rows.csv", HEADER)
    if how == "edited prompt":
        workflow(finished, "again ${text}")
    elif how == "json":
        flags = ["--input", str(finished.write("data/none.json", "[]"))]
    elif how == "patterns":
        workflow(finished, path="data/*.csv")
    ran = finished.agac("run", "-a", "reviews", *flags, code=2)
    assert "the input has no rows, and output/reviews holds the results of 10 rows: nothing is replaced" in ran.err
    assert "`input: {allow_empty: true}` in workflows/reviews.yml" in ran.err
    assert contents(finished) == before
    assert finished.query("SELECT count(*) FROM row WHERE ordinal IS NOT NULL") == [(10,)]
    assert "the run would end with exit code 2" in finished.agac("plan", "-a", "reviews", *flags, code=0).err
    finished.numbered(10)
    finished.agac("run", "-a", workflow(finished), code=0)
    assert contents(finished) == before


def test_an_input_may_be_empty_where_the_workflow_says_so(finished: ProjectFolder) -> None:
    finished.write("data/rows.csv", HEADER)
    workflow(finished, input={"allow_empty": True})
    ran = finished.agac("run", "-a", "reviews", code=0)
    assert "10 of the 10 rows with results in output/reviews are no longer in the input" in ran.err
    assert contents(finished)["results.jsonl"] == b""
    assert len(finished.envelopes(file="results.previous.jsonl")) == 10
    assert finished.query("SELECT count(*) FROM run") == [(1,)]  # the key makes no other run
    workflow(finished)
    finished.agac("run", "-a", "reviews", code=0)  # nothing is left to be taken away
    finished.numbered(5)
    finished.agac("run", "-a", "reviews", code=0)
    assert previous(finished) == []


def test_an_emptied_input_that_was_read_for_another_folder(
    finished: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.walk.input_rows.CLOCK_GRAIN", 0)
    finished.write("data/rows.csv", HEADER)
    assert finished.run(workflow(finished), output="output/other").exit_code == 0
    with pytest.raises(UsageError, match="nothing is replaced"):
        finished.run()


def test_an_empty_input_that_takes_nothing_away_is_no_error(project: ProjectFolder, server: Server) -> None:
    project.write("data/rows.csv", HEADER)
    name = workflow(project)
    for _ in range(2):
        project.agac("run", "-a", name, code=0)
    project.numbered(3)
    stages = [{"name": "keep", "filter": "text == 'none'"}, *SAY]
    project.agac("run", "-a", project.workflow(defaults=ECHO, stages=SAY), code=0)
    project.agac("run", "-a", project.workflow(defaults=ECHO, stages=stages), code=0)  # a filter
    project.agac("run", "-a", "reviews", "--offset", "3", "--limit", "1", code=0)  # a selection
    assert previous(project) == []


@pytest.mark.parametrize("how", ["removed", "renamed", "edited prompt"])
def test_results_stay_beside_those_of_an_input_that_lost_most_of_its_rows(
    how: str, finished: ProjectFolder, server: Server
) -> None:
    before = contents(finished)
    rows = [{"id": f"r-{i}", "text": f"I love number {i}"} for i in range(1, 5)]
    if how == "renamed":  # six of ten have another id
        rows += [{"id": f"x-{i}", "text": f"I love number {i}"} for i in range(5, 11)]
    finished.rows(rows)
    if how == "edited prompt":
        workflow(finished, "again ${text}")
    words = "6 of the 10 rows with results in output/reviews are no longer in the input"
    assert words in finished.agac("plan", "-a", "reviews", code=0).err
    assert previous(finished) == []
    assert words in finished.agac("run", "-a", "reviews", code=0).err
    after = contents(finished)
    assert set(PREVIOUS) < set(previous(finished))
    for name in before:
        assert after[Path(name).stem + ".previous" + Path(name).suffix] == before[name]
    assert len(finished.envelopes()) == len(rows)
    finished.rows([*rows[:3], {"id": "new", "text": "another one"}])
    finished.agac("run", "-a", "reviews", code=0)
    assert contents(finished)["results.previous.csv"] == before["results.csv"]  # and not those in between
    finished.numbered(5)  # again half of them
    assert "no longer" not in finished.agac("run", "-a", "reviews", code=0).err
    assert previous(finished) == []


def test_rows_that_changed_or_failed_have_not_left(finished: ProjectFolder, server: Server) -> None:
    finished.rows([{"id": f"r-{i}", "text": f"another text {i}"} for i in range(1, 11)])
    assert finished.agac("run", "-a", "reviews", "--budget", "calls=3", code=4).err.count("no longer") == 0
    assert "no longer" not in finished.agac("run", "-a", "reviews", code=0).err
    finished.numbered(5)
    assert "no longer" not in finished.agac("run", "-a", "reviews", code=0).err  # half of them is not most
    assert previous(finished) == []


def test_rows_that_repeat_an_id_have_not_left(finished: ProjectFolder) -> None:
    workflow(finished, input={"on_duplicate_id": "suffix"})
    finished.rows([{"id": "same", "text": f"number {i}"} for i in range(10)])
    finished.agac("run", "-a", "reviews", code=0)
    finished.rows([{"id": "same", "text": f"number {i}"} for i in range(9)])
    assert "no longer" not in finished.agac("run", "-a", "reviews", code=0).err
