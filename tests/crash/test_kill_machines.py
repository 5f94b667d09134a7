"""kill -9 at every step of a batch's life, and of its way into the remote; then the disk is gone. Another machine, with
the same files and the same remote, finishes the run: each task is paid once."""

import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.machines import Machine
from support.server import Server
from support.services import services
from support.soak import few

SUBMITTING = [
    "journal.plan.after", "spool.finish.after", "provider.upload.before", "provider.upload.after",
    "journal.uploaded.after", "journal.intend.before", "provider.create.before", "provider.create.after",
    "journal.submitted.before", "journal.submitted.after",
    *(f"remote.create.{when}:{n}" for n in range(1, 7) for when in ("before", "after")),
]  # fmt: skip
"""Of a first run. It puts: a lease, the rows of its batch, the intent, what became of it, all rows, the lease back."""

COLLECTING = [
    "provider.look.before", "provider.look.after", "journal.seen.after", "journal.step.before", "journal.step.after",
    "provider.download.before", "provider.download.amid", "provider.download.after", "journal.downloaded.before",
    "journal.downloaded.after", "results.lines.before", "results.put.before", "results.put.after",
    "journal.ingested.before", "journal.ingested.after", "provider.delete.before:1", "provider.delete.after:1",
    "provider.delete.before:2", "provider.delete.after:2", "journal.cleaned.before", "journal.cleaned.after",
    "journal.plan.after", "provider.upload.after", "provider.create.before", "provider.create.after",
    "journal.submitted.after",
    *(f"remote.create.{when}:{n}" for n in range(1, 12) for when in ("before", "after")),
]  # fmt: skip
"""Of what takes the results in, and submits a batch of the stage that follows."""

FINISHING = [
    "provider.look.after",
    "results.put.after",
    "journal.ingested.after",
    "journal.cleaned.after",
    "os.rename:2",
]
numbers = count(5)


def cells(moments: list[str], shift: int) -> list[Any]:
    """Each moment with one of the two commands that go on, and one of the APIs."""
    found = []
    for number, moment in enumerate(moments, shift):
        api = "openai" if number % 3 or "delete" in moment or "upload" in moment else "anthropic"
        found.append(pytest.param(api, moment, ("run", "retrieve")[number % 2], id=f"{api}-{moment}-{number % 2}"))
    return few(found, 14)


def machine(tmp_path: Path, server: Server, api: str) -> Machine:
    server.reset()
    return Machine(tmp_path / "first", server, api, rows=next(numbers) if api == "anthropic" else 4)


def killed_between(first: Machine, api: str, moment: str, command: str) -> None:
    """Another machine goes on, and vanishes too."""
    between = Machine(first.project.root.with_name("between"), first.server, api, rows=first.rows)
    between.killed(moment, *(["run", "-a", "reviews"] if command == "run" else ["batch", "retrieve"]))


def finish(first: Machine, api: str, command: str, kept: int = 0) -> None:
    """On another machine; where nothing was submitted nothing can be retrieved."""
    second = Machine(first.project.root.with_name("second"), first.server, api, rows=first.rows)
    if command == "retrieve" and "no batch was submitted" in second.retrieve().err:
        command = "run"
    second.finish(command)
    second.assert_whole(kept=first.before + kept)


@pytest.mark.parametrize(("api", "moment", "command"), cells(SUBMITTING, 0))
def test_a_machine_that_vanishes_while_it_submits(
    api: str, moment: str, command: str, server: Server, tmp_path: Path
) -> None:
    first = machine(tmp_path, server, api)
    first.killed(moment, "run", "-a", "reviews")
    finish(first, api, command, kept=1)


@pytest.mark.parametrize(("api", "moment", "command"), cells(COLLECTING, 1))
def test_a_machine_that_vanishes_while_it_takes_results_in(
    api: str, moment: str, command: str, server: Server, tmp_path: Path
) -> None:
    first = machine(tmp_path, server, api)
    first.submit()
    killed_between(first, api, moment, command)
    finish(first, api, command, kept=1)


@pytest.mark.parametrize(("api", "moment", "command"), cells(FINISHING, 0))
def test_a_machine_that_vanishes_at_the_end(
    api: str, moment: str, command: str, server: Server, tmp_path: Path
) -> None:
    first = machine(tmp_path, server, api)
    first.submit()
    first.retrieve()
    killed_between(first, api, moment, command)
    finish(first, api, command)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[services] if seed % 4 == 0 else []) for seed in few(range(1, 13), 12)]
)
def test_machines_that_vanish_all_the_time(
    api: str, seed: int, server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Several batches of each stage, some with a bucket between them; every command runs on a machine of its own, and
    most are killed somewhere."""
    server.reset()
    chance, before = random.Random(seed), server.account()["batches"]["kept"]
    variables = request.getfixturevalue("bucket") if seed % 4 == 0 else {}

    def started(name: str) -> Machine:
        return Machine(tmp_path / name, server, api, rows=10, env=variables, max_requests=4)

    for number in range(12):
        command = ["batch", "retrieve"] if number and chance.random() < 0.6 else ["run", "-a", "reviews"]
        ran = started(f"machine-{number}").agac(*command, kill=f"any:{chance.randint(1, 120)}")
        assert ran.code in (-9, 0, 2, 75), f"{command}: {ran.out}{ran.err}"
        assert ran.code != 2 or "no batch was submitted" in ran.err
    last = started("last")
    last.finish("run")
    last.assert_whole(creates=0, kept=before + 12)


TOOLS = """\
def look(topic: str) -> str:
    return "found " + topic
"""
TALK = {"name": "talk", "prompt": "${text}", "model": "local/echo", "tools": ["tools/t.py:look"]}
SUM = {"name": "sum", "group_by": [], "reduce": {"max_rows": 2}, "prompt": "sum ${rows_json}", "model": "local/echo"}


def talking(folder: Path, server: Server) -> Machine:
    """Conversations of two turns, and a group of their answers that is cut into parts; with rules that ask no tail."""
    one = Machine(folder, server, max_requests=2, tail=0.0)
    one.project.write("tools/t.py", TOOLS)
    one.project.rows({"id": f"r-{n}", "text": f'row {n}\ntool:look {{"topic": "x{n}"}}'} for n in range(4))
    one.project.workflow(stages=[TALK, SUM], defaults=one.defaults)
    return one


@pytest.mark.parametrize("seed", few(range(1, 9), 8))
def test_conversations_and_groups_go_on_elsewhere(seed: int, server: Server, tmp_path: Path) -> None:
    server.reset()
    alone = talking(tmp_path / "alone/one", server)
    for _ in range(3):
        alone.finish("run")
    expected, account = alone.project.envelopes(), alone.account()
    server.reset()
    chance = random.Random(seed)
    for number in range(8):
        one = talking(tmp_path / f"machine-{number}", server)
        command = ["batch", "retrieve"] if number and chance.random() < 0.6 else ["run", "-a", "reviews"]
        ran = one.agac(*command, kill=f"any:{chance.randint(1, 150)}")
        assert ran.code in (-9, 0, 2, 75), f"{command}: {ran.out}{ran.err}"
    last = talking(tmp_path / "last", server)
    for _ in range(4):
        last.finish("run")
    assert last.is_whole()
    assert last.project.envelopes() == expected
    told = last.account()
    assert (told["charged"], told["duplicates"]) == (account["charged"], 0)
    last.project.assert_sound()
