"""Workflows and rows that are edited while batches are open: what is unchanged is had, what is not is told."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance, outcomes
from support.processes import kill_at
from support.server import Server

import agac
from agac.api.watched_run import WatchedRun
from agac.spec.json_schema import compiled

SECONDS = 100
A: dict[str, Any] = {"name": "a", "prompt": "A ${text}", "model": "local/echo"}
B: dict[str, Any] = {"name": "b", "prompt": "B ${a}", "model": "local/echo"}


@pytest.fixture
def project(batches_at: Make) -> Iterator[BatchProject]:
    """A project with ten rows whose batches take a while."""
    made = batches_at(seconds=SECONDS)
    yield made
    assert made.doubles() == 0


def edited(word: str) -> dict[str, Any]:
    """The stage with another prompt."""
    return A | {"prompt": f"{word} ${{text}}"}


def rows(project: BatchProject, *numbers: int, **texts: str) -> None:
    """These rows, some with a text of their own: `r3="new"`."""
    texts = {name.replace("r", "r-"): text for name, text in texts.items()}
    ids = [f"r-{number}" for number in numbers]
    project.rows({"id": id_, "text": texts.get(id_, f"I love number {id_[2:]}")} for id_ in ids)


def test_answers_that_a_broken_schema_held_up_are_taken_in_once_it_is_mended(
    project: BatchProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stages(schema: dict[str, Any]) -> list[dict[str, Any]]:
        return [A | {"output_schema": {"type": "object", "properties": {"label": schema}}}, B]

    broken = stages({"type": "string", "pattern": "(?>.)"})
    with monkeypatch.context() as older:  # an agac whose validator took what today's refuses
        older.setattr("agac.spec.output_schema.schema_faults", lambda _: [])
        older.setattr("agac.engine.ask.validate.compiled", lambda _, **rest: compiled({}))
        project.submit(*broken)
    advance(project.server, SECONDS)
    held = project.agac("batch", "retrieve", code=2)
    assert "the output_schema of stage 'a' cannot be compiled" in held.err
    assert "`agac batch retrieve` then takes in what batches answered" in held.err
    project.batched(*stages({"type": "string"}))
    project.agac("batch", "retrieve", code=0)
    assert project.to_the_end(seconds=SECONDS).run.summary["rows"]["done"] == 10
    assert project.charged()[0] == 2


def runs_of(project: BatchProject) -> list[tuple[int, str, int]]:
    """Run, step and tasks of each batch."""
    return project.query("SELECT run_id, state, tasks FROM batch ORDER BY id")


def test_retrieve_uses_what_is_recorded_and_no_file(project: BatchProject) -> None:
    project.submit(A, B, {**B, "name": "c", "prompt": "C ${b}"})
    project.workflow(stages=[{"name": "other", "prompt": "nothing alike"}], description="edited")
    (project.root / "data/rows.csv").unlink()
    advance(project.server, SECONDS)
    project.agac("batch", "retrieve", code=0)
    workflow = project.write("workflows/reviews.yml", "stages: [")
    advance(project.server, SECONDS)
    project.agac("batch", "retrieve", code=0)
    workflow.unlink()
    advance(project.server, SECONDS)
    project.agac("batch", "retrieve", code=0)
    assert outcomes(project) == [(f"r-{n}", True, f"C B A I love number {n}", None) for n in range(1, 11)]
    assert project.charged() == (3, 30)


def test_the_same_command_again_submits_nothing(project: BatchProject, server: Server) -> None:
    """How often and in which pieces it is asked changes neither run nor tasks."""
    settings = {"batch": {"max_requests": 3, "retry": "sync"}, "timeout": 7, "concurrency": 3}
    for changed in ({}, {}, settings):
        project.batched(A | changed, B)
        again = project.agac("run", "-a", "reviews")
        assert again.code == 0
        assert "No row is finished yet." in again.out
    assert runs_of(project) == [(1, "SUBMITTED", 10)]
    for _ in range(2):
        advance(project.server, SECONDS)
        assert project.agac("run", "-a", "reviews").code == 0
    assert project.output(file="summary.json")["complete"], "`run` takes in what has ended and goes on"
    project.assert_as_sync(server, charged=(2, 20))


def test_who_was_asked_is_done_whichever_equal_row_comes_first(project: BatchProject) -> None:
    """A row that was put before it with the same text reused the answer; after a sync stage, too."""
    project.rows({"id": id_, "text": text} for id_, text in (("r-3", "x"), ("r-4", "y")))
    project.submit(A | {"run_mode": "sync"}, B)
    ids = ("r-1", "x"), ("r-2", "y"), ("r-3", "x"), ("r-4", "y")
    project.rows({"id": id_, "text": text} for id_, text in ids)
    project.run()
    advance(project.server, SECONDS)
    report = project.run()
    assert [(one["done"], one["reused"]) for one in report.summary["stages"]] == [(2, 2), (2, 2)]
    found = project.query("SELECT row_id FROM v_results WHERE stage = 'b' AND outcome = 'done' ORDER BY 1")
    assert found == [("r-3",), ("r-4",)]
    assert (report.invocation["tasks_collapsed"], project.charged()) == (2, (1, 4))


def test_a_row_that_goes_on_after_its_batch_is_counted_once(batches_at: Make) -> None:
    """While a command waits: a stage before it shows no 20 of 10 rows, and no answer was reused by that."""
    seen: list[WatchedRun] = []

    async def watch(watched: WatchedRun) -> None:
        seen.append(watched)

    project, keep = batches_at(), {"name": "keep", "filter": "id != 'r-1'"}
    project.batched(keep, A | {"run_mode": "sync"}, B | {"when": "id != 'r-2'"}, {**A, "name": "c", "prompt": "C ${b}"})
    report = agac.run("reviews", agac.RunOptions(wait=True), project=project.root, progress=watch)
    counts = [(one.done, one.reused, one.skipped, one.dropped) for one in seen[0].invocation.totals.stages.values()]
    assert counts == [(9, 0, 0, 1), (9, 0, 0, 0), (8, 0, 1, 0), (9, 0, 0, 0)]
    assert report.invocation["tasks_reused"] == 0


def test_new_rows_join_without_a_question(project: BatchProject, server: Server) -> None:
    project.submit(A)
    rows(project, *range(1, 13))
    assert ": 2 requests, 1 of 1, local/echo" in project.agac("run", "-a", "reviews", code=0).out
    assert runs_of(project) == [(1, "SUBMITTED", 10), (1, "SUBMITTED", 2)]
    project.assert_ends_as_sync(server, (2, 12), seconds=SECONDS)


@pytest.mark.parametrize("edit", ["changed", "removed"])
def test_rows_that_are_no_longer_needed_are_reported(project: BatchProject, server: Server, edit: str) -> None:
    """What was removed leaves the outputs, and its answer is kept."""
    project.submit(A)
    if edit == "changed":
        rows(project, *range(1, 12), r9="another", r10="too")
    else:
        rows(project, *range(1, 9), 11)
    refused = project.agac("run", "-a", "reviews")
    assert refused.code == 2
    assert "no longer needs 2 of the requests in 1 open batch" in refused.err
    assert "agac batch cancel 1" in refused.err
    assert "--yes" in refused.err
    assert project.account["posts"] == 1
    agreed = project.agac("run", "-a", "reviews", "--yes")
    assert (agreed.code, agreed.err) == (0, "")
    assert "did not finish" not in agreed.out
    assert project.account["posts"] == 2
    charged = (2, 13 if edit == "changed" else 11)
    project.assert_ends_as_sync(server, charged, seconds=SECONDS)
    rows(project, *range(1, 12))
    assert project.run().exit_code == 0
    assert [one["id"] for one in project.envelopes()] == [f"r-{n}" for n in range(1, 12)]
    assert project.charged() == charged


@pytest.mark.parametrize("flags", [[], ["--yes"]])
@pytest.mark.parametrize(("edit", "charged"), [("changed", 10), ("removed", 7)])
def test_what_waits_for_room_goes_without_rows_that_changed(
    batches_at: Make, server: Server, flags: list[str], edit: str, charged: int
) -> None:
    """What was not sent when its rows changed costs nothing, and nobody is asked about it."""
    project = batches_at(seconds=SECONDS, limits={"enqueued_tokens": 80})
    project.submit(A)
    assert runs_of(project) == [(1, "SUBMITTED", 4), (1, "UPLOADED", 4), (1, "UPLOADED", 2)]
    if edit == "changed":
        rows(project, *range(1, 11), r8="another", r9="new", r10="too")
    else:
        rows(project, *range(1, 8))
    again = project.agac("run", "-a", "reviews", *flags)
    assert (again.code, again.err) == (0, "")
    assert "Stale" not in again.out
    found = runs_of(project)
    assert found[:3] == [(1, "SUBMITTED", 4), (1, "NOT_CREATED", 4), (1, "NOT_CREATED", 2)]
    assert project.agac("run", "-a", "reviews", *flags).code == 0
    assert runs_of(project) == found, "what is needed waits as it is"
    project.to_the_end(seconds=SECONDS)
    assert project.charged()[1] == charged
    project.assert_as_sync(server)


@pytest.mark.parametrize("step", ["BUILT", "CREATE_INTENT"])
def test_killed_before_it_was_submitted_it_goes_without_rows_that_changed(
    project: BatchProject, server: Server, step: str
) -> None:
    """Changed rows ask stage a again: what b was to ask of them is needless, though they have not come to b yet."""
    project.submit(A, B)
    advance(project.server, SECONDS)
    for number in [*range(1, 8)] * 4:
        project.agac("run", "-a", "reviews", env=kill_at(f"committed:{number}"))
        if project.steps()[-1] == step:
            break
    assert ({*project.steps()} - {"NOT_CREATED"}, project.account["created"]) == ({"CLEANED", step}, 1)
    rows(project, *range(1, 11), r9="another", r10="too")
    assert project.agac("run", "-a", "reviews", "--yes").code == 0
    project.assert_ends_as_sync(server, (4, 22), seconds=SECONDS)


def test_an_edited_prompt_is_submitted_on_yes_alone(project: BatchProject, server: Server) -> None:
    """The second wording was never agreed to; the third is, and nothing but it is sent."""
    project.provider(prices={"echo": {"input": 1.0, "output": 2.0, "batch": 0.5}})
    project.submit(A, defaults={"max_tokens": 100})
    project.batched(edited("Second"), defaults={"max_tokens": 100})
    refused = project.agac("run", "-a", "reviews")
    assert (refused.code, refused.out) == (2, "")
    assert "nothing was submitted: reviews no longer needs 10 of the requests in 1 open batch" in refused.err
    assert "$0.00" in refused.err
    assert "agac batch cancel 1" in refused.err
    assert (project.account["posts"], project.account["cancelled"]) == (1, 0)
    project.batched(edited("Third"), defaults={"max_tokens": 100})
    agreed = project.agac("run", "-a", "reviews", "--yes")
    assert (agreed.code, agreed.err) == (0, "")
    assert "did not finish" not in agreed.out
    assert project.account["posts"] == 2
    sent = [one for one in runs_of(project) if one[1] == "SUBMITTED"]
    assert [run for run, *_ in sent] == [1, sent[-1][0]]
    assert sent[-1][0] > 1
    assert project.to_the_end(seconds=SECONDS).run.summary["run"] == sent[-1][0]
    project.assert_as_sync(server, charged=(2, 20))
    assert project.account["cancelled"] == 0


def test_edited_back_it_is_as_if_nothing_had_been(project: BatchProject, server: Server) -> None:
    """A no, and none to ask, leave all as it was; a typed yes submits."""
    asked: list[str] = []
    project.submit(A)
    project.batched(edited("Another"))
    with pytest.raises(agac.UsageError):
        agac.run("reviews", project=project.root, confirm=lambda question: bool(asked.append(question)))
    project.agac("run", "-a", "reviews", code=2)
    project.batched(A)
    again = project.agac("run", "-a", "reviews")
    assert (again.code, again.err) == (0, "")
    assert project.account["posts"] == 1
    report = project.to_the_end(seconds=SECONDS)
    assert report.run.summary["run"] == 1
    project.assert_as_sync(server, charged=(1, 10))
    project.submit(edited("Third"))
    project.batched(edited("Fourth"))
    report = agac.run("reviews", project=project.root, confirm=lambda question: not asked.append(question))
    assert (report.exit_code, len(report.invocation["batches"])) == (0, 1)
    assert ["needs 10 of the requests in 1 open batch" in question for question in asked] == [True, True]


def test_an_edited_later_stage_keeps_what_is_enrolled(project: BatchProject, server: Server) -> None:
    """Only stage b changed: all of a is in flight, and had."""
    project.submit(A, B)
    project.batched(A, B | {"prompt": "Better ${a}"})
    ran = project.agac("run", "-a", "reviews")
    assert (ran.code, ran.err) == (0, "")
    assert project.account["posts"] == 1
    assert "not to be asked" not in ran.out
    advance(project.server, SECONDS)
    went_on = project.agac("run", "-a", "reviews")
    assert (went_on.code, went_on.err) == (0, "")
    assert runs_of(project)[1:] == [(2, "SUBMITTED", 10)]
    project.assert_ends_as_sync(server, (2, 20), seconds=SECONDS)


@pytest.mark.parametrize("named", [[], ["1"]])
def test_a_superseded_run_is_only_harvested(project: BatchProject, named: list[str]) -> None:
    """Its answers are kept and reused, and nothing is asked for it before its user says so; each command works."""
    project.submit(A, B)
    project.batched(edited("Second"), B)
    project.agac("run", "-a", "reviews", "--run-mode", "sync", code=0)
    written = project.output(), project.output(file="summary.json")
    advance(project.server, SECONDS)
    for ingested in (True, False):
        ran = project.agac("batch", "retrieve", *(named if ingested else ["1"]), code=0)
        assert ran.out.startswith("Retrieved batch 1 (") is ingested
        assert "The batches of run 1 are in; run 1 was superseded by run 2: nothing more is sent" in ran.err
    assert (project.steps(), project.charged()) == (["CLEANED"], (1, 30))
    assert (project.output(), project.output(file="summary.json")) == written
    assert "Run 1 was replaced by run 2. See it with: agac status 2\n" in project.agac("status", code=0).out
    ends = (("results with: agac ", ";"), ("anyway with: agac ", "\n"))
    export, resume = (ran.err.partition(before)[2].partition(end)[0].split() for before, end in ends)
    project.agac(*export, code=0)
    assert project.output(file="summary.json")["run"] == 1
    project.agac(*resume, code=0)
    assert runs_of(project)[1:] == [(1, "SUBMITTED", 10)]
    assert agac.batch_status(project=project.root).batches[0].batch.run_id == 1, "no other has open ones"
    project.batched(A, B)
    project.run()
    assert project.retrieve().superseded_by is None, "`run` worked on it last: now it supersedes the other"
    assert agac.status(run=2, project=project.root).runs[0]["replaced_by"] == 1
    assert project.to_the_end(seconds=SECONDS).run.summary["run"] == 1
    assert project.charged() == (2, 40)


def test_a_superseded_run_whose_batches_are_in_is_not_meant(project: BatchProject) -> None:
    """What took its place is, though that is finished and the other never will be."""
    project.submit(A, B)
    advance(project.server, SECONDS)
    project.run(project.batched(edited("Second"), B), yes=True)
    assert project.to_the_end(seconds=SECONDS).run.summary["run"] == 2
    ran = project.agac("batch", "retrieve", code=0)
    assert ("reviews, run 2: 10 rows, 10 done" in ran.out, ran.err) == (True, "")


@pytest.mark.parametrize(
    ("keys", "options", "newer"),
    [
        ({"stages": [edited("Second")]}, {}, 2), ({}, {"fresh": True}, 2), ({}, {}, None), ({}, {"limit": 4}, None),
        ({}, {"output": "output/elsewhere"}, None), ({}, {"vars": {"shop": "North"}}, None),
        ({"path": "data/b.csv"}, {}, None), ({"stages": [edited("Second") | {"run_mode": "batch"}]}, {}, None),
    ],
)  # fmt: skip
def test_what_supersedes_a_run(
    batches_at: Make, keys: dict[str, Any], options: dict[str, Any], newer: int | None
) -> None:
    """Another run of the same rows into the same folder, by `run` or `retry`, that has come to an answer; whichever of
    both was worked on last."""
    project = batches_at(seconds=SECONDS)
    (project.root / "data/b.csv").write_bytes((project.root / "data/rows.csv").read_bytes())
    first = {"stages": [A], "vars": {"shop": "South"}}
    project.run(project.workflow(**first))
    assert project.run(project.workflow(**{**first, **keys}), **options).exit_code == 0
    assert agac.status(run=1, project=project.root).runs[0]["replaced_by"] == newer
    if newer is not None and keys:
        project.workflow(**first)
        choice = agac.Retry(rows=("r-1",), from_stage="a")
        agac.retry(1, choice, agac.RunOptions(yes=True), project=project.root)
        found = [agac.status(run=run, project=project.root).runs[0]["replaced_by"] for run in (1, 2)]
        assert found == [None, 1]


def test_cancelling_what_is_stale_makes_room(project: BatchProject, server: Server) -> None:
    project.submit(A)
    project.batched(edited("Another"))
    project.agac("run", "-a", "reviews", code=2)
    advance(project.server, SECONDS / 2)
    project.agac("batch", "cancel", "1", code=0)
    ran = project.agac("run", "-a", "reviews")
    assert (ran.code, ran.err) == (0, "")
    project.assert_ends_as_sync(server, (2, 15), seconds=SECONDS)
    # what the cancelled one had finished is kept: the old prompt asks the other half
    project.submit(A)
    project.to_the_end(seconds=SECONDS)
    assert project.charged() == (3, 20)


def test_fresh_is_refused_while_batches_are_open(project: BatchProject) -> None:
    project.submit(A)
    for flags in ([], ["--yes"], ["--run-mode", "sync"]):
        refused = project.agac("run", "-a", "reviews", "--fresh", *flags)
        assert (refused.code, refused.out) == (2, "")
        assert "batch 1 is open" in refused.err
        assert "agac batch cancel 1" in refused.err
    assert project.query("SELECT count(*) FROM run") == [(1,)]
    assert project.charged() == (1, 0)
    project.to_the_end(seconds=SECONDS)
    for _ in range(2):  # it asks all of it anew, once
        assert project.run(fresh=True).exit_code == 0
        project.to_the_end(seconds=SECONDS)
        assert project.run().exit_code == 0
    assert project.charged() == (3, 30)
    project.server.reset()


def test_another_mode_does_not_ask_what_is_in_a_batch(project: BatchProject, server: Server) -> None:
    """Run mode is not part of what is the same: in flight counts as had, for calls too."""
    project.submit(A)
    rows(project, *range(1, 12))
    project.agac("run", "-a", "reviews", "--run-mode", "sync", code=0)
    assert project.server.account()["charged"] == 1
    assert runs_of(project) == [(1, "SUBMITTED", 10)]
    advance(project.server, SECONDS)
    project.agac("run", "-a", "reviews", "--run-mode", "sync", code=0)
    assert project.output(file="summary.json")["complete"]
    project.assert_as_sync(server, charged=(1, 11))


def test_a_limited_run_beside_open_batches(project: BatchProject, server: Server) -> None:
    """A selection is another run whose rows are in flight already; what it does not select is no edit."""
    project.submit(A)
    project.agac("run", "-a", "reviews", "--limit", "4", code=0)
    assert project.account["posts"] == 1
    advance(project.server, SECONDS)
    for flags in (["--limit", "4"], []):
        project.agac("run", "-a", "reviews", *flags, code=0)
    project.assert_as_sync(server, charged=(1, 10))


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "batch_expire", "after": 4},
        {"kind": "batch_line_status", "status": 400, "match": "number 3"},
        {"kind": "batch_line_status", "status": 500, "match": "number 3"},
        None,
    ],
)
def test_a_batch_that_another_run_waits_for_goes_wrong(
    batches_at: Make, server: Server, fault: dict[str, Any] | None
) -> None:
    """Whoever waited asks what is left; both runs together pay once. Without a fault its user ends it."""
    project = batches_at(*([{**fault, "at": [1]}] if fault else []), seconds=SECONDS)
    project.submit(A, B)
    project.batched(A, B | {"prompt": "Better ${a}"})
    assert project.run().exit_code == 0
    assert runs_of(project) == [(1, "SUBMITTED", 10)]
    advance(project.server, SECONDS if fault else SECONDS * 0.4)
    if fault is None:
        agac.batch_cancel(1, project=project.root)
    assert project.run().exit_code == 0
    if fault is not None:
        project.retrieve(1)
    else:
        assert [one[2] for one in runs_of(project)] == [10, 6, 4]
    for _ in range(6):
        advance(project.server, SECONDS)
        if (rows := project.run().summary["rows"])["done"] == rows["total"]:
            break
    assert (project.charged()[1], project.doubles()) == (20, 0)
    project.assert_as_sync(server)
