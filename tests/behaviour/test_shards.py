"""Runs in shards: what all of them come to together is what one run comes to."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.server import Server
from support.shards import Sharded

Make = Callable[..., Sharded]


@pytest.fixture
def make(tmp_path: Path, server: Server) -> Make:
    server.reset()
    return lambda name="first", **more: Sharded(tmp_path / name, server, **more)


def test_shards_together_are_one_run(make: Make, server: Server) -> None:
    project = make()
    project.workflow(rows=20)
    whole = project.unsharded()
    server.reset()
    project.shards(code=0)
    assert server.account()["requests"] == 20
    assert not (project.root / "output/reviews").exists()
    merged = project.merge(code=0)
    assert "Merged 3 shards of reviews: 20 done" in merged.out
    assert project.taken() == whole
    assert sorted(one.name for one in (project.root / ".agac/shards").iterdir()) == [
        "1-of-3", "2-of-3", "3-of-3", "merged",
    ]  # fmt: skip
