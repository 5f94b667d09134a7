"""`agac doctor`: the store held against the provider, what was lost found, what is undecided told and decided."""

import json
import urllib.request
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
    return [(one["kind"], one["done"]) for one in agac.doctor(project=project.root, **options).findings]


def at_provider(project: BatchProject) -> list[dict[str, Any]]:
    """The batches that the server has."""
    with urllib.request.urlopen(f"{project.server.base_url}/batches?limit=100", timeout=30) as response:
        found: list[dict[str, Any]] = json.load(response)["data"]
    return found


def undecided(make: Make, *faults: dict[str, Any]) -> BatchProject:
    """A batch that was asked for, is there, and cannot be seen: its list may be cut."""
    project = make({"kind": "batch_drop_after", "first": 1}, {"kind": "batch_list_lag", "seconds": 5000}, *faults)
    project.provider(batch={**BATCHES, "pages": False})
    return project


def test_all_is_well(make: Make) -> None:
    project = make()
    without = project.agac("doctor")
    assert without.code in (0, 2)
    project.run()
    ran = project.agac("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out
    assert project.agac("doctor", "--json").json["findings"] == []
    project.to_the_end(seconds=SECONDS)
    assert project.agac("doctor", "--json").json["findings"] == []
    assert project.charged() == (1, 10)


def test_what_cannot_be_proved_waits_for_a_human(make: Make, server: Server) -> None:
    project = undecided(make)
    ran = project.agac("run", "-a", "reviews", code=75)
    assert project.steps() == ["NEEDS_HUMAN"]
    assert "agac doctor" in ran.out + ran.err
    for _ in range(2):
        project.agac("batch", "retrieve", code=75)
    doctor = project.agac("doctor", code=75)
    assert "agac doctor --adopt ID --batch-id 1" in doctor.out
    assert "agac doctor --resubmit --batch-id 1" in doctor.out
    assert project.account["posts"] == 1
    advance(project.server, 6000)
    [there] = at_provider(project)
    adopted = project.agac("doctor", "--adopt", there["id"], code=0)
    assert there["id"] in adopted.out
    assert project.steps() == ["SUBMITTED"]
    project.to_the_end()
    assert (project.charged(), project.account["posts"]) == ((1, 10), 1)
    project.assert_as_sync(server)


def test_resubmitting_asks_again_and_says_what_it_may_cost(make: Make, server: Server) -> None:
    project = undecided(make)
    project.provider(batch={**BATCHES, "pages": False}, prices={"echo": {"input": 1.0, "output": 2.0}})
    project.submit(SAY, defaults={"max_tokens": 100})
    told = project.agac("doctor").out
    assert "twice" in told
    assert "$0.0" in told
    project.agac("doctor", "--resubmit", code=0)
    project.assert_ends_as_sync(server, (2, 20), seconds=SECONDS, doubles=10)


def test_adopting_what_is_not_it_is_refused(make: Make) -> None:
    project = undecided(make)
    project.run()
    for wrong in ("batch_nothing", "", "file-1"):
        refused = project.agac("doctor", "--adopt", wrong)
        assert refused.code == 2, wrong
        assert refused.err.startswith("error: ")
    assert project.steps() == ["NEEDS_HUMAN"]
    other = BatchProject(project.root.with_name("other"), project.server)
    other.numbered(3)
    other.submit(SAY)
    [(foreign,)] = other.query("SELECT provider_id FROM batch")
    refused = project.agac("doctor", "--adopt", foreign, code=2)
    assert "3 requests" in refused.err
    assert project.steps() == ["NEEDS_HUMAN"]


def test_with_nothing_to_decide_a_decision_is_refused(make: Make) -> None:
    project = make()
    project.run()
    for arguments in (["--adopt", "batch_x"], ["--resubmit"], ["--resubmit", "--batch-id", "1"]):
        refused = project.agac("doctor", *arguments)
        assert refused.code == 2, arguments
        assert "decision" in refused.err
    project.agac("doctor", "--adopt", "x", "--resubmit", code=2)
    project.agac("doctor", "--batch-id", "1", code=2)
    assert project.steps() == ["SUBMITTED"]


def test_a_batch_whose_answer_was_lost_is_taken_over(make: Make, server: Server) -> None:
    """It shows late in the list: `run` cannot wait so long, doctor finds it."""
    project = make({"kind": "batch_drop_after", "first": 1}, {"kind": "batch_list_lag", "seconds": 90})
    project.provider(batch={**BATCHES, "grace": 600})
    ran = project.agac("run", "-a", "reviews")
    assert ran.code in (0, 75)
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
    report = project.to_the_end()
    assert report.exit_code == 0
    found = agac.doctor(project=project.root)
    assert [(one["kind"], one["done"]) for one in found.findings] == [("given_up", True), ("stale_file", False)]
    assert found.exit_code == 0
    assert kinds(project, clean=True) == [("stale_file", True)]
    assert kinds(project) == []
    project.assert_as_sync(server, charged=(2, 20), doubles=10)


def test_files_that_lie_there_for_nothing_are_told_and_deleted_on_demand(make: Make) -> None:
    """An upload whose answer was lost is done again; the first file is of no use."""
    project = make({"kind": "batch_status", "op": "delete", "status": 500, "first": 2})
    project.run()
    project.to_the_end(seconds=SECONDS)
    kept = project.account["kept"]
    assert project.steps() == ["INGESTED"]
    assert kept >= 1
    report = project.agac("doctor", "--clean")
    assert report.code in (0, 1)
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


def test_a_key_of_another_account_stops_at_once_and_decides_nothing(make: Make, server: Server) -> None:
    """Case 34: what another key does not see is not lost."""
    project = make(api_key="${LOCAL_KEY}")
    project.agac("run", "-a", "reviews", env=KEYS, code=0)
    other = {"LOCAL_KEY": "second-key"}
    for arguments in (["batch", "status"], ["batch", "list"], ["doctor"]):
        ran = project.agac(*arguments, env=other)
        assert "first-key" not in ran.out + ran.err
        assert "second-key" not in ran.out + ran.err
    assert project.account["posts"] == 1
    advance(project.server, SECONDS)
    project.agac("batch", "retrieve", env=KEYS, code=0)
    project.write("agac.yml", (project.root / "agac.yml").read_text().replace("${LOCAL_KEY}", "none"))
    project.assert_as_sync(server)


def test_a_key_that_is_missing_is_named(make: Make) -> None:
    project = make(api_key="${LOCAL_KEY}")
    project.agac("run", "-a", "reviews", env=KEYS, code=0)
    for command in (["batch", "retrieve"], ["run", "-a", "reviews"], ["batch", "cancel"], ["doctor"]):
        refused = project.agac(*command)
        assert refused.code in (1, 2), refused
        assert "LOCAL_KEY" in refused.err + refused.out
        assert "Traceback" not in refused.err
    assert project.steps() == ["SUBMITTED"]
    assert project.account["cancelled"] == 0
    advance(project.server, SECONDS)
    project.agac("batch", "retrieve", env=KEYS, code=0)
    assert project.charged() == (1, 10)


@pytest.mark.parametrize("how", ["removed", "without batches"])
def test_a_provider_that_agac_yml_lost_is_named(make: Make, how: str) -> None:
    project = make()
    project.run()
    advance(project.server, SECONDS)
    whole = (project.root / "agac.yml").read_text()
    body = yaml.safe_load(whole)
    if how == "removed":
        del body["providers"]
    else:
        del body["providers"]["local"]["batch"]
    project.write("agac.yml", yaml.safe_dump(body))
    for command in (["batch", "retrieve"], ["batch", "cancel"], ["doctor"]):
        refused = project.agac(*command)
        assert refused.code in (1, 2), refused
        assert "local" in refused.err + refused.out
        assert "agac.yml" in refused.err + refused.out
        assert "Traceback" not in refused.err
        assert "bug in agac" not in refused.err
    project.agac("batch", "status", code=0)
    project.agac("batch", "list", code=0)
    project.write("agac.yml", whole)
    project.agac("batch", "retrieve", code=0)
    assert project.charged() == (1, 10)


def test_a_provider_that_is_not_there_is_said_and_nothing_is_changed(make: Make) -> None:
    project = make()
    project.run()
    before = project.query("SELECT state, attempt, cancel_at FROM batch")
    whole = (project.root / "agac.yml").read_text()
    project.write("agac.yml", whole.replace(project.server.base_url, "http://127.0.0.1:9/v1"))
    for command, codes in ((["batch", "retrieve"], (1, 75)), (["batch", "status"], (0,)), (["doctor"], (1,))):
        ran = project.agac(*command)
        assert ran.code in codes, (command, ran)
        assert "local" in ran.out + ran.err
        assert "bug in agac" not in ran.err
    assert project.query("SELECT state, attempt, cancel_at FROM batch") == before
    project.write("agac.yml", whole)
    project.to_the_end(seconds=SECONDS)
    assert project.charged() == (1, 10)
