"""Other commands and options beside batches: waiting for them, parts of a workflow, retries, exports, previews."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.batched import store
from support.batchrun import BatchProject, Make, advance
from support.server import Server

import agac

SECONDS = 100
A: dict[str, Any] = {"name": "a", "prompt": "A ${text}", "model": "local/echo"}
B: dict[str, Any] = {"name": "b", "prompt": "B ${a}", "model": "local/echo"}
C: dict[str, Any] = {"name": "c", "prompt": "C ${b}", "model": "local/echo"}


@pytest.fixture
def make(batches_at: Make) -> Iterator[Make]:
    """Makes a project with ten rows whose batches take a while; nothing is paid twice."""
    made: list[BatchProject] = []

    def start(*faults: dict[str, Any], **keys: Any) -> BatchProject:
        made.append(batches_at(*faults, seconds=SECONDS))
        made[-1].batched(A, B, C, **keys)
        return made[-1]

    yield start
    assert [project.doubles() for project in made] == [0] * len(made)


def done(project: BatchProject) -> list[int]:
    """How many results each stage has."""
    found = dict(project.query("SELECT stage, count(*) FROM task WHERE outcome IN ('done', 'reused') GROUP BY 1"))
    return [found.get(stage, 0) for stage in range(3)]


def test_waiting_takes_nothing(make: Make) -> None:
    project = make(defaults={"batch": {"poll_interval": 0.05}})
    project.run()
    waited = project.agac("batch", "wait", "--timeout", "0.01", code=75)
    assert "1 of 1 have not ended yet" in waited.out
    assert project.steps() == ["SUBMITTED"]
    advance(project.server, SECONDS)
    waited = project.agac("batch", "wait", "--timeout", "1h", "--json", code=0)
    assert waited.json["ready"] is True
    assert project.steps() == ["SUBMITTED"]
    assert project.account["calls"].get("download", 0) == 0
    project.agac("batch", "wait", "nothing", code=2)
    assert project.retrieve().exit_code == 0


def test_a_part_of_the_stages(make: Make, server: Server) -> None:
    """A plan sends nothing; `--until a` submits a alone; what follows is for the next command. A row's time is not that
    of its batches."""
    project = make(row_timeout=0.5)
    for arguments in (["run", "-a", "reviews", "--dry-run"], ["plan", "-a", "reviews"], ["validate"]):
        project.agac(*arguments, code=0)
    assert project.account["files"] == project.account["posts"] == 0
    assert project.run(until="a").exit_code == 0
    project.agac("plan", "-a", "reviews", code=0)
    advance(project.server, SECONDS)
    assert project.run(until="a").exit_code == 0
    assert (done(project), project.account["posts"]) == ([10, 0, 0], 1)
    assert project.run().exit_code == 0
    project.assert_ends_as_sync(server, (3, 30), seconds=SECONDS)


def test_failed_rows_are_tried_again_in_a_batch(make: Make, server: Server) -> None:
    project = make({"kind": "batch_line_status", "status": 400, "lines": [2, 3], "at": [1]})
    project.run()
    report = project.to_the_end(seconds=SECONDS)
    assert (report.exit_code, report.again) == (3, "agac run -a reviews")
    assert [one["id"] for one in project.envelopes(file="errors.jsonl")] == ["r-2", "r-3"]
    project.agac("run", "-a", "reviews", "--no-retry-failed", code=3)
    assert project.account["posts"] == 3
    assert ": 2 requests, 1 of 1" in project.agac("retry", "last", code=0).out
    for _ in range(4):
        advance(project.server, SECONDS)
        report = project.retrieve()
    assert report.run.summary["rows"]["done"] == 10
    assert project.charged()[1] == 30
    project.assert_as_sync(server)


def test_a_run_is_not_complete_while_a_retried_row_of_a_stage_is_in_a_batch(make: Make) -> None:
    project = make({"kind": "batch_line_status", "status": 400, "lines": [2, 3], "at": [1]})
    project.batched({"name": "d", "dedupe": ["id"]}, {"name": "c", "prompt": "C ${text}", "model": "local/echo"})
    project.run()
    assert project.to_the_end(seconds=SECONDS).exit_code == 3
    report = agac.retry("last", agac.Retry(), project=project.root)
    assert (report.summary["complete"], project.steps()[-1]) == (False, "SUBMITTED")
    assert "finished" not in project.agac("status", code=0).out
    ended = project.to_the_end(seconds=SECONDS)
    assert (ended.exit_code, ended.run.summary["complete"]) == (0, True)
    assert len(project.envelopes()) == 10


def test_a_retry_asks_groups_that_wait_for_others_once_those_came(batches_at: Make) -> None:
    """Both fail until a run leaves them alone. The groups of the second stage wait for those of the first, which fail
    again; were they not opened by the retry, they would have to wait for another one each time."""
    project = batches_at({"kind": "refusal", "first": 6}, seconds=SECONDS)
    one = {"name": "one", "group_by": ["id"], "prompt": "one ${rows_json}", "model": "local/echo"}
    two = {**one, "name": "two", "needs": [], "group_by": [], "prompt": "two ${rows_json}"}
    project.batched(one, two, rows=1, output={"stages": "two"})
    for _ in range(4):
        project.run()
        project.to_the_end(seconds=SECONDS)
    before = project.account["charged"]
    assert agac.retry("last", agac.Retry(), project=project.root).summary["complete"] is False
    project.to_the_end(seconds=SECONDS)
    assert project.account["charged"] - before == 2
    assert project.run().invocation["calls"] == 0


def test_what_is_finished_is_exported_on_demand_alone(make: Make) -> None:
    project = make(defaults={"batch": {"max_requests": 5}})
    project.run()
    advance(project.server, SECONDS)
    project.retrieve(1)
    for _ in range(2):
        advance(project.server, SECONDS)
        project.retrieve(max(number for (number,) in project.query("SELECT id FROM batch WHERE state = 'SUBMITTED'")))
    assert project.query("SELECT state, count(*) FROM row GROUP BY 1 ORDER BY 1") == [(0, 5), (1, 5)]
    assert not (project.root / "output/reviews").exists()
    project.agac("export", "-a", "reviews", "--partial", code=0)
    assert len(project.envelopes()) == 5
    project.to_the_end(seconds=SECONDS)
    assert len(project.envelopes()) == 10


def test_a_preview_goes_to_its_own_folder(make: Make) -> None:
    project = make()
    project.run(limit=3)
    project.to_the_end(seconds=SECONDS)
    assert len(project.envelopes("reviews/preview")) == 3
    assert not (project.root / "output/reviews/results.jsonl").exists()
    project.run()
    assert project.query("SELECT tasks FROM batch ORDER BY id DESC LIMIT 1") == [(7,)]
    project.to_the_end(seconds=SECONDS)
    assert project.charged()[1] == 30


def test_outputs_of_an_earlier_run_stay_until_the_new_one_is_done(make: Make) -> None:
    """Its last stage is asked anew, in a batch, where a retry says so."""
    project = make()
    project.run()
    project.to_the_end(seconds=SECONDS)
    before = (project.root / "output/reviews/results.jsonl").read_bytes()
    project.batched(A, B, C | {"prompt": "Better ${b}"})
    assert project.run().exit_code == 0
    assert (project.root / "output/reviews/results.jsonl").read_bytes() == before
    advance(project.server, SECONDS)
    assert project.retrieve().exit_code == 0
    assert (project.root / "output/reviews/results.jsonl").read_bytes() != before
    assert project.charged() == (4, 40)
    project.agac("retry", "last", "--from", "c", "--yes", code=0)
    project.to_the_end(seconds=SECONDS)
    assert (project.account["posts"], project.account["charged"]) == (5, 50)
    project.server.reset()


def test_a_project_that_was_moved_goes_on(make: Make) -> None:
    project = make()
    project.run()
    moved = project.root.rename(project.root.with_name("moved"))
    advance(project.server, SECONDS)
    report = agac.retrieve(project=moved)
    assert report.exit_code == 0
    assert [one["done"] for one in report.ingested] == [10]
    project.root = moved
    project.to_the_end(seconds=SECONDS)
    assert project.charged() == (3, 30)


def test_a_function_that_was_edited_while_batches_are_open(make: Make, server: Server) -> None:
    """`agac batch retrieve` takes nothing in that could not be gone on with; `agac run` goes by the files: a is
    unchanged and had, what follows is new."""
    project = make()
    project.write("tools/f.py", "def up(row):\n    return {'t': row['a'].upper()}\n")
    project.submit(A, {"name": "f", "python": "tools/f.py:up"}, B | {"prompt": "B ${f.t}"})
    advance(project.server, SECONDS)
    project.write("tools/f.py", "def up(row):\n    return {'t': row['a'].lower()}\n")
    assert "tools/f.py" in project.agac("batch", "retrieve", code=2).err
    project.agac("batch", "status", code=0)
    ran = project.agac("run", "-a", "reviews")
    assert (ran.code, ran.err) == (0, "")
    project.assert_ends_as_sync(server, (2, 20), seconds=SECONDS)


@pytest.mark.parametrize("command", ["retrieve", "run"])
def test_a_result_that_grew_old_while_a_later_batch_ran_is_kept(make: Make, command: str) -> None:
    """`max_age` is about results of earlier runs: what a row had in this one, it has."""
    project = make()
    project.submit(A | {"max_age": "1h"}, B, C)
    for _ in range(3):
        advance(project.server, SECONDS)
        if command == "run":
            project.run()
        else:
            project.retrieve()
        with store(project) as database:
            database.execute("UPDATE result SET created_at = created_at - 7200")
    assert project.charged() == (3, 30)
    assert project.output(file="summary.json")["complete"]


@pytest.mark.parametrize("reuse", ["never", "row"])
def test_rows_that_share_no_answers_are_enrolled_each(make: Make, server: Server, reuse: str) -> None:
    project = make()
    project.rows({"id": f"r-{n}", "text": "the same"} for n in range(6))
    project.submit(A | {"reuse": reuse}, B | {"reuse": reuse})
    project.assert_ends_as_sync(server, (2, 12), seconds=SECONDS, doubles=10)
    assert project.run().exit_code == 0
    assert project.account["posts"] == 2
    project.server.reset()


def test_what_the_first_command_was_given_holds_for_all_that_follow(make: Make) -> None:
    project = make()
    project.batched(A, B | {"prompt": "B ${a} ${vars.tone}"}, vars={"tone": "calm"})
    ran = project.agac("run", "-a", "reviews", "--var", "tone=wild", "--output", "elsewhere")
    assert "`agac run -a reviews --var tone=wild --output elsewhere --wait` waits until every stage is done" in ran.out
    for _ in range(2):
        advance(project.server, SECONDS)
        project.agac("batch", "retrieve", code=0)
    lines = (project.root / "elsewhere/results.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 10
    assert all("wild" in line for line in lines)
    assert not (project.root / "output").exists()
