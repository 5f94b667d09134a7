"""Batches that an older version wrote for a provider's cache: they are read, priced and replaced as any others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.batchcase import BatchCase, assert_ended
from support.batched import store
from support.project import python
from support.server import Server, simulator

PRICE = {"input": 1.0, "cached_input": 0.1, "cache_write": 1.25, "cache_write_1h": 2.0, "output": 4.0, "batch": 0.5}
LONG = "Be kind. " * 500
TOKENS = len(LONG) // 4

OLDER_RUN = """
import json, os, signal, sys
from agac import api
from agac.engine.batch import lifecycle

root, last_step, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
plain_body, write = lifecycle.BatchFormat.body, lifecycle.Journal.write
requests, steps = [], []

def marked_body(self, request):
    requests.append(request)
    body = json.loads(plain_body(self, request))
    if len(requests) > 1:
        mark = {"type": "ephemeral", "ttl": "1h"}
        body["system"] = [{"type": "text", "text": body["system"], "cache_control": mark}]
    return json.dumps(body).encode()

async def write_until(self, record, statement, *others, **values):
    after = await write(self, record, statement, *others, **values)
    steps.append(statement)
    if steps.count(last_step) == batches:
        os.kill(os.getpid(), signal.SIGKILL)
    return after

lifecycle.BatchFormat.body, lifecycle.Journal.write = marked_body, write_until
api.run("reviews", project=root)
"""
"""A run whose requests, but for the first one, ask for an hour in the cache; killed once so many batches came to a
step."""


class OlderCase(BatchCase):
    """Three rows, each in a batch of its own: one that is plain, one that fills the cache, one that is to read it."""

    def __init__(self, folder: Path, server: Server) -> None:
        super().__init__(folder, server, "anthropic", rows=3, poll_interval=0.02, max_requests=1)
        self.connect("anthropic", cache="anthropic", prices={"small": PRICE})

    def write(self, **batch: object) -> None:
        stage = {"name": "say", "instructions": LONG, "prompt": "Say ${text}", "max_tokens": 20, "repair": 0}
        self.project.workflow(stages=[stage], defaults={"run_mode": "batch", "batch": {"grace": 0.1, **batch}})

    def leave(self, step: str, batches: int) -> None:
        """A run as an older version left it, killed after so many batches came to a step."""
        ran = python(self.project.root, "-c", OLDER_RUN, str(self.project.root), step, str(batches))
        assert ran.code == -9, ran.err
        with store(self.project) as database:
            database.execute("UPDATE batch SET primer = 2 WHERE id > 1")

    def cached(self) -> list[tuple[int, int]]:
        """Tokens that each answered batch read from the cache, and wrote to it."""
        return self.project.query(
            "SELECT a.cached_tokens, a.cache_write_tokens FROM batch_task t JOIN attempt a USING (row_key) "
            "JOIN batch b ON b.id = t.batch_id WHERE b.state <> 'NOT_CREATED' ORDER BY b.id"
        )

    def assert_priced(self) -> None:
        """Each answer costs what its tokens cost, where those written stay for an hour."""
        for given, cached, written, made, usd in self.project.query(
            "SELECT input_tokens, cached_tokens, cache_write_tokens, output_tokens, cost FROM attempt"
        ):
            units = (given - cached - written) + 0.1 * cached + 2 * written + 4 * made
            assert usd == pytest.approx(units * PRICE["batch"] / 1e6)


@contextmanager
def older(folder: Path) -> Iterator[OlderCase]:
    with simulator("--batch-seconds", "60") as server:
        yield OlderCase(folder / "project", server)


def test_what_an_older_version_sent_is_read_and_priced(tmp_path: Path) -> None:
    with older(tmp_path) as case:
        case.leave("submitted", 3)
        case.advance(61)
        assert_ended(case.retrieve())
        assert case.cached() == [(0, 0), (0, TOKENS), (TOKENS, 0)]
        case.assert_priced()
        case.assert_whole(creates=3)


@pytest.mark.parametrize(
    ("command", "moment"),
    [("run", ""), ("retrieve", ""), ("run", "journal.step.after"), ("run", "provider.create.after")],
)
def test_a_batch_that_waits_for_the_cache_is_replaced_by_a_plain_one(command: str, moment: str, tmp_path: Path) -> None:
    with older(tmp_path) as case:
        case.leave("built", 3)
        assert case.steps() == ["SUBMITTED", "SUBMITTED", "BUILT"]
        if moment:
            case.killed(moment, "run", "-a", "reviews")
        assert (case.run() if command == "run" else case.retrieve()).code in (0, 75)
        assert case.steps() == ["SUBMITTED", "SUBMITTED", "NOT_CREATED", "SUBMITTED"]
        case.advance(61)
        case.finish(command)
        assert case.cached() == [(0, 0), (0, TOKENS), (0, 0)]
        case.assert_priced()
        case.assert_whole(creates=3)


def test_a_batch_that_was_to_fill_the_cache_is_replaced_by_a_plain_one(tmp_path: Path) -> None:
    with older(tmp_path) as case:
        case.leave("built", 2)
        assert case.steps()[:2] == ["SUBMITTED", "BUILT"]
        case.run()
        assert case.steps()[1] == "NOT_CREATED"
        case.advance(61)
        case.finish("run")
        assert case.cached() == [(0, 0)] * 3
        case.assert_whole(creates=3)
