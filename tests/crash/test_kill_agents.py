"""kill -9 in the middle of many conversations, by calls and in batches: each goes on from its last stored turn, nothing
is paid twice but what was under way (in batches: nothing), and no call with side effects is repeated without being
asked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batchcase import BatchCase, assert_ended
from support.processes import killed, quiet_account, wait_until
from support.project import ProjectFolder
from support.server import Server, simulator
from support.soak import SOAK, few

import agac

TOOLS = '''
import os
import time
from pathlib import Path

def look(q: str) -> str:
    """Looks something up."""
    return f"found {q}"

def send(to: str) -> str:
    """Sends a letter, which takes a while."""
    time.sleep(0.02)
    file = os.open(Path(__file__).with_name("sent"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{to}\\n".encode())
    os.close(file)
    time.sleep(0.02)
    return f"sent to {to}"
'''
STAGE = {
    "name": "talk",
    "prompt": "${text}",
    "tools": {"tools/t.py:look": {}, "tools/t.py:send": {"side_effects": True}},
}


def talks(rows: int) -> list[dict[str, str]]:
    """Rows of two, three and four turns, of which all but the shortest send a letter in their second."""
    turns = [
        'tool:look {{"q": "{0}"}}',
        'tool:send {{"to": "{0}"}}\ntool:look {{"q": "{0}"}}',
        'tool:look {{"q": "x{0}"}}',
    ]
    return [
        {"id": f"r-{n}", "text": "\n\n".join([f"row {n}", *(one.format(n) for one in turns[: 1 + n % 3])])}
        for n in range(rows)
    ]


def lengths(rows: int) -> list[int]:
    return [2 + n % 3 for n in range(rows)]


def sent(project: ProjectFolder) -> Counter[str]:
    """How many letters went to whom."""
    path = project.root / "tools/sent"
    return Counter(path.read_text().splitlines() if path.exists() else [])


def decide(project: ProjectFolder) -> int:
    """Does what the user is asked for: looks which letters went out, and says so. Gives how many were asked for."""
    found = project.query(
        "SELECT r.id FROM task t JOIN row r ON r.key = t.row_key WHERE t.error_type = 'ToolOutcomeUnknown'"
    )
    known = sent(project)
    for calls in ("skip", "repeat"):
        rows = tuple(row for (row,) in found if (row.removeprefix("r-") in known) == (calls == "skip"))
        if rows:
            agac.retry("last", agac.Retry(rows=rows, calls=calls), project=project.root)
    return len(found)


def assert_talked(project: ProjectFolder, rows: int) -> None:
    """Every row has its one conversation, whole, and its letter once."""
    assert [one["id"] for one in project.envelopes() if one["ok"]] == [f"r-{n}" for n in range(rows)]
    assert sent(project) == Counter(str(n) for n in range(rows) if n % 3)
    found = project.query(
        "SELECT r.id, max(a.number), count(*), max(a.conversation) FROM agent_turn a JOIN row r ON r.key = a.row_key "
        "GROUP BY a.fingerprint"
    )
    assert sorted(found) == sorted((f"r-{n}", turns, turns, 1) for n, turns in enumerate(lengths(rows)))
    project.assert_sound()


# by calls

MANY = 1000 if SOAK else 40
CONCURRENCY = 8


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    with simulator("--latency", "0.01") as server:
        yield server


@pytest.mark.parametrize("seed", range(3 if SOAK else 1))
def test_many_conversations_go_on_from_their_last_stored_turns(seed: int, slow: Server, tmp_path: Path) -> None:
    """Killed in the middle, and again while they go on; a tool in the middle of a call is the user's to decide."""
    slow.reset()
    chance, project, total = random.Random(seed), ProjectFolder(tmp_path / "project"), sum(lengths(MANY))
    project.asks(slow)
    project.write("tools/t.py", TOOLS)
    project.workflow(stages=[STAGE], rows=talks(MANY), defaults={"concurrency": CONCURRENCY})
    lost = 0
    for share in (0.1, 0.4, 0.7):
        until = int(total * share) + chance.randint(0, 9)
        process = project.start("run", "-a", "reviews")
        wait_until(lambda: slow.account()["requests"] >= until, f"{until} requests", process)  # noqa: B023
        killed(process)
        charged, ((stored,),) = quiet_account(slow)["charged"], project.query("SELECT count(*) FROM agent_turn")
        assert lost <= charged - stored <= lost + 2 * CONCURRENCY
        lost = charged - stored
        for row, letters in sent(project).items():
            assert letters == 1, row
        project.assert_sound()
    asked = list[int]()
    while len(asked) < 4:
        ran = project.agac("run", "-a", "reviews", "--json")
        assert all(letters == 1 for letters in sent(project).values())
        asked.append(decide(project))
        if not asked[-1]:
            break
    assert ran.code == 0, ran.err
    assert_talked(project, MANY)
    account = slow.account()
    assert account["charged"] == total + lost
    assert account["duplicates"] == lost
    assert account["distinct"] == total


# in batches

SUBMITTING = [
    "journal.plan.after", "spool.finish.before", "spool.finish.after", "journal.built.after", "provider.create.before",
    "provider.create.after", "journal.submitted.before", "journal.submitted.after",
]  # fmt: skip
COLLECTING = [
    "provider.look.after", "journal.seen.after", "provider.download.amid", "provider.download.after",
    "journal.downloaded.before", "journal.downloaded.after", "results.lines.before", "results.put.before",
    "results.put.after", "journal.ingested.before", "journal.ingested.after", "journal.cleaned.before",
    "journal.cleaned.after",
]  # fmt: skip
ROWS = 3
TURNS = sum(lengths(ROWS))
MADE = {1: 3, 2: 4, 3: 1}
"""How many calls of tools follow each turn of these rows."""

CELLS = [
    *((api, command, turn, moment) for api in ("openai", "anthropic") for turn in MADE
      for command in ("run", "retrieve") for moment in [*SUBMITTING, *COLLECTING]),
    *(("openai", "retrieve", turn, f"tool.call.{when}:{number}")
      for turn, calls in MADE.items() for number in range(1, calls + 1) for when in ("before", "after")),
]  # fmt: skip


@pytest.mark.parametrize(("api", "command", "turn", "moment"), few(CELLS, 83))
def test_conversations_in_batches_survive_being_killed_at_any_arrow_of_any_turn(
    api: str, command: str, turn: int, moment: str, slow: Server, tmp_path: Path
) -> None:
    """By a command that stays, or by one of those that take a turn each."""
    slow.reset()  # which leaves files of batches; only tests that leave none ask this server
    case = BatchCase(tmp_path / "project", slow, api, rows=ROWS)
    project = case.project
    project.write("tools/t.py", TOOLS)
    project.workflow(stages=[STAGE], rows=talks(ROWS), defaults=case.defaults)
    if command == "run":
        case.killed(f"{moment}:{turn}", "run", "-a", "reviews", "--wait")
    else:
        case.submit()
        for _ in range(turn - 1):
            assert_ended(case.retrieve())
        case.killed(moment, "batch", "retrieve")
    for _ in range(3):
        case.run("--wait")
        if not decide(project):
            break
    assert_talked(project, ROWS)
    account = case.account()
    assert (account["charged"], account["duplicates"], account["open"], account["kept"]) == (TURNS, 0, 0, 0)
    assert slow.account()["charged"] == 0
    case.assert_clean()
