"""`agac doctor`: the store held against the provider, what was lost found, what is undecided told and decided."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from support.batchrun import BATCHES, BatchProject, Make, advance
from support.server import Server

import agac

SECONDS = 100
KEYS = {"LOCAL_KEY": "first-key"}
SAY: dict[str, Any] = {"name": "say", "prompt": "Tell of ${text}", "model": "local/echo"}


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project with ten rows; nothing is submitted yet."""

    def start(*faults: dict[str, Any], **provider: Any) -> BatchProject:
        project = batches_at(*faults, seconds=SECONDS, **provider)
        project.batched(SAY)
        return project

    return start


def kinds(project: BatchProject, **options: Any) -> list[tuple[str, bool]]:
    """What doctor finds, and whether it set it right."""
    return [(one.kind, one.done) for one in agac.doctor(project=project.root, **options).findings]


def test_adopting_a_batch_of_another_size_is_refused(make: Make) -> None:
    """This one cannot be seen: the list may be cut."""
    project = make({"kind": "batch_drop_after", "first": 1}, {"kind": "batch_list_lag", "seconds": 5000})
    project.provider(batch={**BATCHES, "pages": False})
    project.run()
    other = BatchProject(project.root.with_name("other"), project.server)
    other.numbered(3)
    other.submit(SAY)
    [(foreign,)] = other.query("SELECT provider_id FROM batch")
    assert "3 requests" in project.agac("doctor", "--adopt", foreign, code=2).err
    assert project.steps() == ["NEEDS_HUMAN"]


def test_with_nothing_to_decide_all_is_well_and_a_decision_is_refused(make: Make) -> None:
    project = make()
    assert project.agac("doctor").code in (0, 2)
    project.run()
    ran = project.agac("doctor")
    assert (ran.code, ran.err, ran.out) == (0, "", "All is well: the store and the providers agree\n")
    for arguments in (["--adopt", "batch_x"], ["--resubmit"], ["--resubmit", "--batch-id", "1"]):
        refused = project.agac("doctor", *arguments)
        assert refused.code == 2, arguments
        assert "decision" in refused.err
    assert project.steps() == ["SUBMITTED"]
    project.to_the_end(seconds=SECONDS)
    assert project.agac("doctor", "--json").json["findings"] == []


def test_a_batch_whose_answer_was_lost_is_taken_over(make: Make, server: Server) -> None:
    """It shows late in the list: `run` cannot wait so long, doctor finds it."""
    project = make({"kind": "batch_drop_after", "first": 1}, {"kind": "batch_list_lag", "seconds": 90})
    project.provider(batch={**BATCHES, "grace": 600})
    assert project.agac("run", "-a", "reviews").code in (0, 75)
    assert project.steps() == ["CREATE_INTENT"]
    assert kinds(project) == [("lost", False)]
    advance(project.server, 91)
    assert kinds(project) == [("adopted", True)]
    assert kinds(project) == []
    project.to_the_end(seconds=SECONDS)
    assert (project.charged(), project.account["posts"]) == ((1, 10), 1)
    project.assert_as_sync(server)


def test_a_batch_that_was_given_up_and_is_there_is_ended_and_its_answers_kept(make: Make, server: Server) -> None:
    """The list showed it later than anybody waits: it was asked again, and what the first one finished is not lost."""
    project = make({"kind": "batch_drop_after", "first": 1}, {"kind": "batch_list_lag", "seconds": 5000, "at": [1]})
    project.run()
    assert project.account["posts"] == 2, "after its grace it was taken for absent"
    advance(project.server, 6000)
    assert project.to_the_end().exit_code == 0
    found = agac.doctor(project=project.root)
    assert [(one.kind, one.done) for one in found.findings] == [("given_up", True), ("stale_file", False)]
    assert found.exit_code == 0
    assert kinds(project, clean=True) == [("stale_file", True)]
    assert kinds(project) == []
    project.assert_as_sync(server, charged=(2, 20), doubles=10)


def test_files_that_no_batch_needs_are_listed_and_deleted_on_demand(make: Make) -> None:
    """An upload whose answer was lost is done again; the first file is of no use."""
    project = make({"kind": "batch_status", "op": "delete", "status": 500, "first": 2})
    project.run()
    project.to_the_end(seconds=SECONDS)
    kept = project.account["kept"]
    assert project.steps() == ["INGESTED"]
    assert kept >= 1
    assert project.agac("doctor", "--clean").code in (0, 1)
    for _ in range(5):
        if not project.account["kept"] and project.steps() == ["CLEANED"]:
            break
        project.agac("doctor", "--clean")
        project.agac("batch", "retrieve")
    assert project.account["kept"] == 0
    assert project.steps() == ["CLEANED"]
    assert project.charged() == (1, 10)


def test_files_of_open_batches_and_of_others_are_left(make: Make) -> None:
    project = make()
    project.run()
    other = BatchProject(project.root.with_name("other"), project.server)
    other.numbered(4)
    other.submit(SAY)
    kept = project.account["kept"]
    for one in (project, other):
        assert kinds(one, clean=True) == []
    assert project.account["kept"] == kept
    project.to_the_end(seconds=SECONDS)
    other.to_the_end()
    assert project.charged() == (2, 14)


LOST: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, str], tuple[str, ...]]] = {
    "a key that is not set": (lambda row: None, {}, ("LOCAL_KEY",)),
    "a provider that was removed": (lambda row: row.clear(), KEYS, ("local", "agac.yml")),
    "a provider without batches": (lambda row: row.pop("batch"), KEYS, ("local", "agac.yml")),
    "a provider that is not there": (lambda row: row.update(base_url="http://127.0.0.1:9/v1"), KEYS, ("local",)),
}
"""What is lost, by an edit of the provider or of the environment, and words that name it."""


@pytest.mark.parametrize("what", LOST)
def test_what_is_lost_is_named_and_nothing_is_changed(make: Make, what: str) -> None:
    edit, env, words = LOST[what]
    project = make(api_key="${LOCAL_KEY}")
    project.agac("run", "-a", "reviews", env=KEYS, code=0)
    advance(project.server, SECONDS)
    stored = "SELECT state, attempt FROM batch"
    before, whole = project.query(stored), (project.root / "agac.yml").read_text()
    body = yaml.safe_load(whole)
    edit(body["providers"]["local"])
    body["providers"] = {name: row for name, row in body["providers"].items() if row}
    project.write("agac.yml", yaml.safe_dump(body))
    commands = [["batch", "retrieve"], ["doctor"], ["batch", "status"], ["batch", "list"]]
    if what != "a provider that is not there":  # which is decided before it is asked for
        commands.append(["batch", "cancel"])
    for command in commands:
        looks = command[1:] in (["status"], ["list"])
        ran = project.agac(*command, env=env)
        assert ran.code in ((0,) if looks else (1, 2, 75)), (command, ran)
        assert looks or [word for word in words if word not in ran.err + ran.out] == []
        assert "Traceback" not in ran.err
        assert "bug in agac" not in ran.err
    assert (project.query(stored), project.account["cancelled"]) == (before, 0)
    project.write("agac.yml", whole)
    project.agac("batch", "retrieve", env=KEYS, code=0)
    assert project.charged() == (1, 10)
