"""Batches of machines that are thrown away: another one goes on with them, and nothing is paid twice."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.machines import Machine, edit
from support.processes import asleep, asleep_at, ended
from support.server import Server

from agac.data.object_store import ObjectStore
from agac.engine.batch import control
from agac.store.writer import open_database

Start = Callable[..., Machine]
ELSEWHERE = "runner-7 0000-0000/pid:[1] 12 34"
"""A process of another machine."""


@pytest.fixture
def machine(server: Server, tmp_path: Path) -> Start:
    server.reset()
    return lambda name, **more: Machine(tmp_path / name, server, **more)


def silent(one: Machine, seconds: float = 3600.0) -> None:
    """What wrote the last entry is another machine, which has the lease; its last sign of life is so old."""
    last = one.log[-1]
    edit(last, holder=ELSEWHERE, free=False, at=json.loads(last.read_text("utf-8"))["at"] - seconds)


def configured(one: Machine, **remote: Any) -> None:
    keys = yaml.safe_load((one.project.root / "agac.yml").read_text("utf-8"))
    one.project.write("agac.yml", yaml.safe_dump({**keys, "remote": remote}))


def test_fresh_machines_go_on_with_what_others_submitted(machine: Start) -> None:
    first = machine("first")
    first.submit()
    assert "6 done" in machine("second").retrieve(code=0).out
    third = machine("third")
    told = third.agac("batch", "status", "--json", code=0).json["batches"]
    assert [(one["stage"], one["requests"]) for one in told] == [("reply", 6)]
    assert "reply" in machine("fourth").agac("batch", "list", code=0).out
    third.agac("batch", "wait", "--timeout", "20", code=0)
    third.retrieve(code=0)
    third.assert_whole(kept=first.before)
    last = machine("last")
    last.run(code=0)
    assert last.project.output() == third.project.output()
    last.assert_whole(kept=first.before)


def test_a_bucket_holds_the_state_too(machine: Start, bucket: dict[str, str]) -> None:
    first, second, third = (machine(name, env=bucket) for name in ("first", "second", "third"))
    first.submit()
    second.killed("remote.create.after:4", "batch", "retrieve")
    third.finish("retrieve")
    third.assert_whole(kept=first.before)
    doctor = third.agac("remote", "doctor", "--json", code=0).json
    assert doctor["control"] == {"reviews": "0 open batches; nobody works on it, ci was the last"}


def test_who_comes_back_with_an_old_disk_takes_what_others_left(machine: Start) -> None:
    first = machine("first")
    first.submit()
    second = machine("second")
    second.retrieve(code=0)
    assert first.steps() == ["SUBMITTED"]
    first.retrieve(code=0)
    assert len(first.project.query("SELECT id FROM run")) == 1
    first.assert_whole(kept=first.before)
    second.run(code=0)
    second.assert_whole(kept=first.before)


def test_a_machine_at_work_keeps_others_out(machine: Start) -> None:
    first = machine("first")
    first.submit()
    silent(first, seconds=60.0)
    second = machine("second")
    for command in (["run", "-a", "reviews"], ["batch", "retrieve"], ["batch", "cancel"]):
        refused = second.agac(*command, code=1)
        assert "is being run by ci (process 12 on runner-7, last sign of life" in refused.err
    assert "is being run by ci" in second.agac("doctor", code=1).out
    assert "reviews: 1 open batch; held by ci" in second.agac("remote", "doctor", code=0).out
    assert second.agac("batch", "status", "--json", code=0).json["batches"][0]["requests"] == 6
    silent(first)
    second.finish("retrieve")
    second.assert_whole(kept=first.before)


@pytest.mark.parametrize(("moment", "code"), [("remote.create.before:3", 1), ("journal.submitted.after:1", 0)])
def test_a_slow_machine_that_was_taken_over_asks_for_nothing(machine: Start, moment: str, code: int) -> None:
    """It wakes before its intent is in the log; or once its batch exists, with nothing left to do."""
    first, second = machine("first"), machine("second")
    slow = first.project.start("run", "-a", "reviews", env={**first.env, **asleep_at(moment)})
    try:
        asleep(slow)
        silent(first)
        second.run(code=0)
    finally:
        slow.send_signal(18)
    told = ended(slow)
    assert told.code == code
    assert "another machine took over workflow 'reviews' while this one was silent" in told.err
    second.finish("retrieve")
    second.assert_whole(kept=first.before + 1)
    first.run(code=0)
    first.assert_whole(kept=first.before + 1)


def test_after_a_silence_the_lease_is_proved_before_anything_is_paid(
    machine: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine("first")
    first.submit()
    remote = ObjectStore("../remote", first.project.root)

    async def hold() -> None:
        own = control.Control(remote, "reviews", "ci", [])
        lost = []
        own.lost = lost.append
        async with open_database(first.project.root / ".agac/agac.db") as database, own.held(database):
            held = len(first.log)
            await own.prove(database)
            assert len(first.log) == held, "it was there a moment ago"
            monkeypatch.setattr(control, "BEAT_SECONDS", -1.0)
            await own.prove(database)
            assert len(first.log) == held + 1
            (first.log[-1].parent / f"{held + 2:010d}").write_text("somebody's", encoding="utf-8")
            for _ in range(2):
                with pytest.raises(control.LeaseLost, match="another machine took over"):
                    await own.prove(database)
        assert len(lost) == 1
        assert len(first.log) == held + 2

    asyncio.run(hold())


def test_a_holder_shows_signs_of_life(machine: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine("first")
    first.submit()
    monkeypatch.setattr(control, "BEAT_SECONDS", 0.01)

    async def hold() -> None:
        own = control.Control(ObjectStore("../remote", first.project.root), "reviews", "ci", [])
        async with open_database(first.project.root / ".agac/agac.db") as database, own.held(database):
            held = len(first.log)
            async with asyncio.timeout(20):
                while len(first.log) < held + 2:
                    await asyncio.sleep(0.01)

    asyncio.run(hold())
    assert json.loads(first.log[-1].read_text("utf-8"))["free"]


POISON: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda entry: "{",
    "nested without end": lambda entry: "[" * 100_000,
    "a list": lambda entry: [entry],
    "too long": lambda entry: {**entry, "holder": "x" * control.MAX_ENTRY},
    "a writer who is not trusted": lambda entry: {**entry, "writer": "mallory"},
    "another workflow": lambda entry: {**entry, "workflow": "others"},
    "another number": lambda entry: {**entry, "number": 1},
    "a time to come": lambda entry: {**entry, "at": entry["at"] + 7200},
    "no time": lambda entry: {**entry, "at": "now"},
    "a way out": lambda entry: {**entry, "snapshot": "../../x"},
    "more than it should": lambda entry: {**entry, "more": 1},
}


def test_entries_that_are_none_are_said_and_not_believed(machine: Start) -> None:
    first = machine("first")
    first.submit()
    good = json.loads(first.log[-1].read_text("utf-8"))
    for number, poison in enumerate(POISON.values(), good["number"] + 1):
        bad = poison({**good, "number": number, "free": False, "batches": {}})
        path = first.log[-1].parent / f"{number:010d}"
        path.write_text(bad if isinstance(bad, str) else json.dumps(bad), encoding="utf-8")
    (path.parent / "readme").write_text("x", encoding="utf-8")
    second = machine("second")
    told = second.retrieve(code=0)
    for number in range(good["number"] + 1, good["number"] + 1 + len(POISON)):
        assert f"v1/control/reviews/{number:010d} is left out: it is" in told.err
    assert "its writer 'mallory' is not trusted" in told.err
    assert "6 done" in told.out
    machine("third").retrieve(code=0)


def test_a_log_of_which_nothing_can_be_believed_is_not_taken_for_none(machine: Start) -> None:
    first = machine("first")
    first.submit()
    for env, said in (({"AGAC_REMOTE_WRITER": "alice"}, "has no entry that can be believed"), ({}, "a newer agac")):
        if not env:
            edit(first.log[-1], format=2)
        for command in (["run", "-a", "reviews"], ["batch", "retrieve"], ["batch", "status"]):
            assert said in machine("second").agac(*command, env=env, code=1).err
        assert said in machine("second").agac("remote", "doctor", env=env, code=0).out
    assert first.account()["posts"] == 1


def test_what_is_not_what_an_entry_names_stops_before_anything_is_paid(machine: Start, server: Server) -> None:
    first = machine("first")
    first.submit()
    name = json.loads(first.log[-1].read_text("utf-8"))["snapshot"]
    snapshot = first.log[0].parents[2] / "snapshots/reviews" / name
    whole, asked = snapshot.read_bytes(), first.account()["posts"]
    for content in (whole[:-1], b"", None):
        snapshot.unlink(missing_ok=True)
        if content is not None:
            snapshot.write_bytes(content)
        for command in (["run", "-a", "reviews"], ["batch", "retrieve"]):
            refused = machine("second").agac(*command, code=1)
            assert "cannot be used: it is not the content that its name stands for" in refused.err
    snapshot.write_bytes(whole)
    assert first.account()["posts"] == asked
    machine("second").retrieve(code=0)


def test_without_the_state_a_job_of_ci_submits_nothing_that_is_paid(machine: Start) -> None:
    one = machine("one")
    configured(one, url="../remote")
    said = "CI is set, and stage 'classify' submits batches that are paid"
    assert said in one.run(code=2).err
    assert said in one.agac("plan", "-a", "reviews", code=0).err
    assert one.account()["posts"] == 0
    for keeps in ({"AGAC_KEEPS_DISK": "1"}, {"CI": "false"}):
        assert said not in one.agac("plan", "-a", "reviews", env=keeps, code=0).out
    one.run(env={"CI": ""}, code=0)
    assert "--no-submit" in one.retrieve(code=2).err
    one.agac("batch", "retrieve", "--no-submit", code=0)
    one.retrieve(env={"AGAC_KEEPS_DISK": "1"}, code=0)
    simulated = machine("simulated")
    simulated.project.write("agac.yml", "defaults: {model: simulator/small}\n")
    simulated.run(code=0)


def test_a_job_on_a_schedule_takes_them(machine: Start) -> None:
    first = machine("first")
    first.submit()
    for name in ("second", "third"):
        ran = machine(name).agac("ci", "--event", "schedule", code=0)
        assert "6 done" in ran.out
    assert "No batch is open" in machine("last").agac("ci", "--event", "schedule", code=0).out


def test_a_job_of_a_pull_request_submits_nothing(machine: Start) -> None:
    first = machine("first")
    first.submit()
    review = {"GITHUB_EVENT_NAME": "pull_request"}
    entries = len(first.log)
    for name, command in (("second", ["run", "-a", "reviews"]), ("third", ["batch", "retrieve"])):
        assert "this job only reads the remote" in machine(name).agac(*command, env=review, code=2).err
    assert machine("fourth").agac("batch", "status", "--json", env=review, code=0).json["batches"]
    assert len(first.log) == entries


def test_batches_from_before_there_was_a_state_are_in_it(machine: Start) -> None:
    first = machine("first")
    keys = (first.project.root / "agac.yml").read_text("utf-8")
    configured(first, url="../remote")
    first.run(env={"CI": ""}, code=0)
    first.project.write("agac.yml", keys)
    first.killed("remote.create.after:2", "batch", "retrieve")
    second = machine("second")
    second.finish("retrieve")
    second.assert_whole(kept=first.before)
