"""Output files are views of the store: whatever becomes of them, the next command makes them again."""

import shutil
from pathlib import Path

import pytest
from support.processes import kill_at
from support.project import ProjectFolder
from support.server import Server

FILES = ("results.jsonl", "results.json", "errors.jsonl", "summary.json", "telemetry.jsonl")


@pytest.fixture
def finished(project: ProjectFolder, server: Server) -> dict[str, bytes]:
    """A finished run with a failed row; what its files hold."""
    project.rows([{"id": f"r-{i}", "text": f"I love number {i}"} for i in [*range(1, 40), 7]])
    assert project.run(project.workflow()).exit_code == 3
    server.reset()
    return contents(project)


def contents(project: ProjectFolder) -> dict[str, bytes]:
    return {file: (project.root / "output/reviews" / file).read_bytes() for file in FILES}


def is_half_written(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def is_overwritten(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"number", b"NUMBER").replace(b"run", b"RUN"))


HARMS = {
    "is removed": Path.unlink,
    "is emptied": lambda path: path.write_bytes(b""),
    "is half written": is_half_written,
    "is overwritten": is_overwritten,
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_makes_an_output_file_again_that(
    harm: str, project: ProjectFolder, server: Server, finished: dict[str, bytes]
) -> None:
    for file in FILES:
        HARMS[harm](project.root / "output/reviews" / file)
        assert project.run().exit_code == 3
        assert contents(project) == finished, file
    if harm == "is removed":
        shutil.rmtree(project.root / "output/reviews")
        project.run()
        assert contents(project) == finished
    assert server.account()["requests"] == 0


@pytest.mark.parametrize("moment", [f"{event}:{n}" for event in ("os.rename", "os.scandir") for n in (1, 2, 3, 4, 5)])
def test_a_killed_export_leaves_each_file_old_or_new_and_the_next_command_mends_them(
    moment: str, project: ProjectFolder, server: Server, finished: dict[str, bytes]
) -> None:
    """`os.rename`: before a file takes its place, `os.scandir`: right after that."""
    text = (project.root / "data/rows.csv").read_text().replace("number 3\n", "number three\n")
    project.write("data/rows.csv", text)
    assert project.agac("run", "-a", "reviews", env=kill_at(moment)).code == -9
    torn = contents(project)
    server.reset()
    assert project.run().exit_code == 3
    whole = contents(project)
    for file in FILES:
        assert torn[file] in (finished[file], whole[file])
    assert whole["results.jsonl"] != finished["results.jsonl"]
    assert server.account()["requests"] == 0
    assert {path.name for path in (project.root / "output/reviews").iterdir()} == set(FILES)


@pytest.mark.parametrize(
    ("moment", "by"),
    [
        *((one, "export") for one in ("statement:5", "os.rename:1", "os.rename:3", "os.scandir:4")),
        ("os.rename:2", "run"),
    ],
)  # fmt: skip
def test_a_killed_export_command_can_be_given_again_and_a_run_mends_it_too(
    moment: str, by: str, project: ProjectFolder, server: Server, finished: dict[str, bytes]
) -> None:
    is_half_written(project.root / "output/reviews/results.json")
    assert project.agac("export", "-a", "reviews", env=kill_at(moment)).code == -9
    assert project.agac(by, "-a", "reviews").code == (0 if by == "export" else 3)
    assert contents(project) == finished
    assert server.account()["requests"] == 0
    project.assert_sound()


def test_killed_before_its_end_was_noted_a_run_is_not_shown_as_finished(project: ProjectFolder, server: Server) -> None:
    """All rows are settled, but only the next invocation knows that nothing more is in the input."""
    project.numbered(5)
    project.workflow()
    assert project.agac("run", "-a", "reviews", env=kill_at("os.rename:1")).code == -9
    assert project.query("SELECT finished_at IS NULL FROM run") == [(0,)]
    project.numbered(300)
    assert project.agac("run", "-a", "reviews", env=kill_at("committed:2")).code == -9
    assert "not finished" in project.agac("export", "-a", "reviews", code=2).err
    assert project.agac("export", "-a", "reviews", "--partial").code == 0
    assert (project.output(file="summary.json")["complete"], project.run().exit_code) == (False, 0)
    assert project.output(file="summary.json")["complete"] is True
    assert len(project.envelopes()) == 300
