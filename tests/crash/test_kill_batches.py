"""kill -9 before and after every step of a batch's life: one command finishes the run, nothing is paid for twice.

The moments are the arrows of a batch's life (DESIGN, batches): each has an effect at the provider or on the disk, and a
commit. Whoever dies between the two must find the effect again.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import ROWS, BatchCase
from support.server import Faulty, Server, simulator
from support.soak import few

from agac.core.errors import ExitCode

SUBMITTING = [
    "journal.plan.before", "journal.plan.after", "spool.finish.before", "spool.finish.after", "journal.built.after",
    "provider.upload.before", "provider.upload.after", "journal.uploaded.after", "journal.intend.before",
    "provider.create.before", "provider.create.after", "journal.submitted.before", "journal.submitted.after",
]  # fmt: skip

COLLECTING = [
    "provider.look.before", "provider.look.after", "journal.seen.after", "journal.step.before", "journal.step.after",
    "provider.download.before", "provider.download.amid", "provider.download.after", "journal.downloaded.before",
    "journal.downloaded.after", "results.lines.before", "results.put.before", "results.put.after",
    "journal.ingested.before", "journal.ingested.after", "journal.cleaned.before", "journal.cleaned.after",
    "os.rename:2", "os.scandir:1",
]  # fmt: skip
"""The last two fall into the writing of the outputs."""

CLEANING = [
    "provider.delete.before:1", "provider.delete.after:1", "provider.delete.before:2", "provider.delete.after:2",
]  # fmt: skip
"""Its input and its results lie at OpenAI as files, which are deleted one by one."""

UNREAD = ("journal.plan.before", "journal.plan.after")
"""So early the input is not read to its end, and `batch retrieve` says so."""

MOST_ROWS = 200
numbers = count(ROWS)


def apart(moments: list[str], api: str, shift: int) -> list[Any]:
    """Each moment with one of the two commands that go on, the other one with the other API."""
    chosen = []
    for number, moment in enumerate(moments, shift):
        command = "run" if number // 2 % 2 or moment in UNREAD else "retrieve"
        chosen.append(pytest.param(api, moment, command, id=f"{api}-{moment}-{command}"))
    return chosen


def of_both(moments: list[str]) -> list[Any]:
    """Each moment with one of the APIs; with both in `make soak`."""
    return few(apart(moments, "openai", 0), 4) + few(apart(moments, "anthropic", 2), 4, first=1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with simulator() as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The results of runs that nobody killed, of more rows than any other test has."""
    found = {}
    for api in ("openai", "anthropic"):
        case = BatchCase(tmp_path_factory.mktemp(api), server, api, rows=MOST_ROWS)
        case.finish("run")
        found[api] = case.project.envelopes()
    return found


@pytest.fixture
def case(api: str, server: Server, tmp_path: Path) -> BatchCase:
    """A project of its own. Nothing but the number of its requests tells one batch at Anthropic from another."""
    server.reset()
    rows = next(numbers) if api == "anthropic" else ROWS
    return BatchCase(tmp_path / "project", server, api, rows=rows)


OF_FILES = ["provider.upload.before", "provider.upload.after", "journal.uploaded.after"]
INLINE = [moment for moment in SUBMITTING if moment not in OF_FILES]


@pytest.mark.parametrize(("api", "moment", "command"), of_both(INLINE) + apart(OF_FILES, "openai", 0))
def test_a_command_that_is_killed_while_it_submits_a_batch_has_submitted_it_once(
    api: str, moment: str, command: str, case: BatchCase, undisturbed: dict[str, list[Any]]
) -> None:
    """Cases 2 to 5."""
    case.killed(moment, "run", "-a", "reviews")
    case.finish(command)
    case.assert_whole(undisturbed[api])


@pytest.mark.parametrize(("api", "moment", "command"), of_both(COLLECTING) + apart(CLEANING, "openai", 0))
def test_a_command_that_is_killed_while_it_takes_results_in_has_taken_them_once(
    api: str, moment: str, command: str, case: BatchCase, undisturbed: dict[str, list[Any]]
) -> None:
    """Cases 15, 16, 18, 19."""
    case.submit()
    case.killed(moment, *(["run", "-a", "reviews"] if command == "run" else ["batch", "retrieve"]))
    case.finish(command)
    case.assert_whole(undisturbed[api])


HALVING = [
    "provider.upload.after:1", "journal.halve.before:1", "journal.halve.after:1", "provider.upload.after:2",
    "journal.plan.after:2", "journal.halve.after:2",
]  # fmt: skip


@pytest.mark.parametrize("moment", HALVING)
def test_a_file_that_is_cut_for_its_size_is_cut_whenever_a_command_is_killed(
    moment: str, faulty: Faulty, tmp_path: Path
) -> None:
    """What was learned of the size is in the store: no row is lost, asked twice, or sent for ever."""
    case = BatchCase(tmp_path / "project", faulty([{"kind": "batch_too_large", "bytes": 1100}]), "openai")
    case.killed(moment, "run", "-a", "reviews")
    case.finish("run")
    assert {one["ok"] for one in case.project.envelopes()} == {True}
    assert case.account()["charged"] == ROWS
    assert case.account()["duplicates"] == 0
    assert case.account()["calls"]["upload"] <= 4 * ROWS


@pytest.mark.parametrize("moment", [*HALVING, "journal.reject.before:1", "journal.reject.after:1"])
def test_a_file_that_a_firewall_refuses_is_cut_whenever_a_command_is_killed(
    moment: str, faulty: Faulty, tmp_path: Path
) -> None:
    """The row that it refuses has failed; no other one is lost, asked twice, or sent for ever."""
    case = BatchCase(tmp_path / "project", faulty([{"kind": "batch_blocked", "match": "<script>"}]), "openai", rows=1)
    case.finish("run")
    case.project.rows([{"id": n, "text": "<script>" if n == 4 else f"text {n}"} for n in range(ROWS)])
    case.killed(moment, "run", "-a", "reviews")
    assert case.run("--wait").code == ExitCode.ROWS_FAILED
    assert case.project.query("SELECT id, error_type FROM row WHERE error_type IS NOT NULL") == [("4", "ProviderError")]
    assert case.account()["charged"] == ROWS
    assert case.account()["duplicates"] == 0
    assert case.account()["calls"]["upload"] <= 2 * ROWS


ANEW = [
    "results.put.after", "journal.ingested.before", "journal.ingested.after", "journal.plan.after",
    "journal.built.after", "provider.create.before", "provider.create.after", "journal.submitted.before",
]  # fmt: skip


@pytest.mark.parametrize(
    ("api", "moment"), few([("openai", one) for one in ANEW], 4) + few([("anthropic", one) for one in ANEW], 4, first=1)
)
def test_what_failed_in_a_batch_is_asked_once_more_whenever_a_command_is_killed(
    api: str, moment: str, faulty: Faulty, tmp_path: Path
) -> None:
    """Case 23, with kills: two lines fail at the provider, uncharged, and go into another batch."""
    server = faulty([{"kind": "batch_line_status", "status": 500, "lines": [2, 5], "at": [1]}])
    case = BatchCase(tmp_path / "project", server, api)
    case.submit()
    case.killed(moment, "batch", "retrieve")
    case.finish("retrieve")
    case.assert_whole(creates=2)
