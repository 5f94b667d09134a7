"""A workflow over rows, from the first run to the tenth."""

from support.project import ProjectFolder
from support.server import Server


def test_every_row_gets_an_envelope_in_input_order_and_another_run_asks_and_writes_nothing(
    project: ProjectFolder, server: Server
) -> None:
    project.numbered(30)
    assert project.run(project.workflow()).exit_code == 0
    envelopes = project.envelopes()
    assert [e["id"] for e in envelopes] == [f"r-{i}" for i in range(1, 31)]
    assert [list(e) for e in envelopes] == [["id", "row_number", "ok", "result", "error"]] * 30
    assert project.output() == [e["result"] for e in envelopes]
    assert server.account()["charged"] == 30
    project.assert_sound()
    tables = ("row", "task", "result")
    before = [project.query(f"SELECT * FROM {table}") for table in tables]
    stamp = (project.root / "output/reviews/results.jsonl").stat().st_mtime_ns
    assert project.run().invocation["rows_unchanged"] == 30
    assert server.account()["requests"] == 30
    assert [project.query(f"SELECT * FROM {table}") for table in tables] == before
    assert (project.root / "output/reviews/results.jsonl").stat().st_mtime_ns == stamp
