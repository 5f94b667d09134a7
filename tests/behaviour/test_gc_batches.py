"""Nothing is dropped that an open batch needs, and what closed ones left goes with their runs."""

import pytest
from support.batched import put_batch, put_task, store, unsent
from support.project import ProjectFolder

import agac


@pytest.fixture
def two(project: ProjectFolder) -> ProjectFolder:
    """Two finished runs of a workflow over six rows."""
    project.numbered(6)
    for prompt in ("Review: ${text}", "Opinion: ${text}"):
        assert project.run(project.workflow(stages=[{"name": "classify", "prompt": prompt}])).exit_code == 0
    return project


def counts(project: ProjectFolder) -> dict[str, int]:
    """How much of run 1 there is."""
    questions = {
        "runs": "SELECT count(*) FROM run WHERE id = 1",
        "rows": "SELECT count(*) FROM row WHERE run_id = 1",
        "batches": "SELECT count(*) FROM batch WHERE run_id = 1",
        "tasks": "SELECT count(*) FROM batch_task WHERE run_id = 1",
    }
    return {name: project.query(question)[0][0] for name, question in questions.items()}


def keys_of_run_1(project: ProjectFolder) -> list[int]:
    return [key for (key,) in project.query("SELECT key FROM row WHERE run_id = 1 ORDER BY key")]


def test_a_run_with_an_open_batch_or_with_tasks_that_wait_for_one_stays(two: ProjectFolder) -> None:
    for step in ("PLANNED", "BUILT", "CREATE_INTENT", "SUBMITTED", "DOWNLOADED", "NEEDS_HUMAN"):
        columns = unsent(step) if step in ("PLANNED", "BUILT", "CREATE_INTENT") else {"state": step}
        put_batch(two, **{"id": 1, **columns})
        for dry_run in (True, False):
            assert agac.gc(1, dry_run=dry_run, project=two.root).cleared.dropped == [], step
        assert counts(two) == {"runs": 1, "rows": 6, "batches": 1, "tasks": 0}, step
        with store(two) as database:
            database.execute("DELETE FROM batch")
    put_batch(two, state="CLEANED")
    for key in keys_of_run_1(two):
        put_task(two, key)
    for state in (0, 1):
        with store(two) as database:
            database.execute("UPDATE batch_task SET state = ?", (state,))
        assert agac.gc(1, project=two.root).cleared.dropped == []
        assert counts(two) == {"runs": 1, "rows": 6, "batches": 1, "tasks": 6}


@pytest.mark.parametrize("task", [{"state": 3}, {"state": 2}, {"state": 2, "then_do": "run"}])
def test_a_run_whose_batches_are_closed_goes_with_all_that_is_on_record_of_them(
    two: ProjectFolder, task: dict[str, object]
) -> None:
    for step in ("INGESTED", "CLEANED", "NOT_CREATED", "REJECTED"):
        put_batch(two, state=step)
    for key in keys_of_run_1(two):
        put_task(two, key, **task)
    put_batch(two, run_id=2, state="CLEANED")
    put_task(two, two.query("SELECT max(key) FROM row")[0][0], run_id=2, batch_id=5, state=3)
    assert [doomed.line.id for doomed in agac.gc(1, project=two.root).cleared.dropped] == [1]
    assert counts(two) == {"runs": 0, "rows": 0, "batches": 0, "tasks": 0}
    assert two.query("SELECT id, run_id FROM batch") == [(5, 2)], "what is on record of a kept run stays"
    assert two.query("SELECT run_id FROM batch_task") == [(2,)]
    two.assert_sound()


def test_an_answer_that_no_row_has_taken_up_yet_stays(two: ProjectFolder) -> None:
    key = two.query("SELECT max(key) FROM row WHERE run_id = 2")[0][0]
    put_batch(two, run_id=2, state="INGESTED")
    put_task(two, key, run_id=2, state=2, fingerprint=b"answered in a ba")
    with store(two) as database:
        database.execute(
            "INSERT INTO result (fingerprint, value, endpoint_id, created_at) VALUES (?, '\"paid\"', 1, 1.0)",
            (b"answered in a ba",),
        )
    agac.gc(1, project=two.root)
    assert two.query("SELECT value FROM result WHERE fingerprint = ?", b"answered in a ba") == [('"paid"',)]
    with store(two) as database:
        database.execute("UPDATE batch_task SET state = 3")
    assert agac.gc(1, project=two.root).cleared.results == 1
    assert two.query("SELECT value FROM result WHERE fingerprint = ?", b"answered in a ba") == []


def test_rows_that_left_the_input_stay_while_a_batch_of_their_run_is_open(two: ProjectFolder) -> None:
    two.numbered(4)
    assert two.run().exit_code == 0
    left = [key for (key,) in two.query("SELECT key FROM row WHERE run_id = 2 AND ordinal IS NULL")]
    assert len(left) == 2
    put_batch(two, run_id=2)
    for key in left:
        put_task(two, key, run_id=2)
    report = agac.gc(1, project=two.root)
    assert (report.cleared.left_rows, len(two.query("SELECT 1 FROM row WHERE run_id = 2"))) == (0, 6)
    with store(two) as database:
        database.execute("UPDATE batch SET state = 'CLEANED'")
        database.execute("UPDATE batch_task SET state = 3")
    assert agac.gc(1, project=two.root).cleared.left_rows == 2
    assert two.query("SELECT count(*) FROM batch_task") == [(0,)]
    two.assert_sound()
