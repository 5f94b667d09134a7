"""kill -9 around each step of a batch that goes ahead of others: it is made once, and nothing is paid for twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.primed import AFTER, TOKENS, PrimedCase
from support.server import Server, simulator
from support.soak import few

MOMENTS = [
    "journal.plan.before:2", "journal.plan.after:2", "journal.plan.after:3", "spool.finish.before:2",
    "journal.built.after:2", "journal.intend.before:2", "provider.create.before:2", "provider.create.after:2",
    "journal.submitted.before:3", "journal.submitted.after:4", "spool.finish.after:3", "journal.built.after:3",
    "journal.remark.before", "journal.remark.after", "journal.step.after:2", "journal.downloaded.after:2",
    "results.put.after:2", "journal.ingested.after:2", "journal.intend.after:3", "provider.create.before:3",
    "provider.create.after:3", "journal.submitted.before:5",
]  # fmt: skip

ROWS = 2 * AFTER + 30
"""So many that one goes ahead also where only the first batch was whole."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with simulator() as server:
        yield server


@pytest.mark.parametrize("moment", few(MOMENTS, 5))
def test_whoever_is_killed_beside_a_primer_goes_on_with_it(moment: str, server: Server, tmp_path: Path) -> None:
    server.reset()
    case = PrimedCase(tmp_path / "project", server, rows=ROWS)
    case.killed(moment, "run", "-a", "reviews", "--wait")
    case.finish("run")
    created, primers = case.project.query("SELECT count(*), sum(primer = id) FROM batch WHERE provider_id IS NOT NULL")[
        0
    ]
    case.assert_whole(creates=created)
    read, written = (sum(one) for one in zip(*case.cached(), strict=True))
    assert (primers, written) == (1, TOKENS)
    assert read in (29 * TOKENS, 129 * TOKENS)
