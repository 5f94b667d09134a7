"""A batch of one request goes ahead of others and brings what all begin with into the cache, where that is a gain."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import assert_ended
from support.batched import store
from support.primed import AFTER, PRICE, ROWS, TOKENS, PrimedCase
from support.server import simulator

REST = ROWS - AFTER - 1


@contextmanager
def primed(folder: Path, *faults: dict[str, Any], seconds: float = 0.0, **more: Any) -> Iterator[PrimedCase]:
    with simulator("--batch-seconds", str(seconds), faults=list(faults), folder=folder / "faults") as server:
        yield PrimedCase(folder / "project", server, **more)


def planned(case: PrimedCase) -> dict[str, Any]:
    """What `agac plan` says of the stage."""
    found: dict[str, Any] = json.loads(case.agac("plan", "-a", "reviews", "--json").out)["stages"][0]
    return found


def test_after_some_requests_one_goes_alone_and_the_others_find_what_it_brought(tmp_path: Path) -> None:
    with primed(tmp_path) as case:
        found = planned(case)
        each = TOKENS * PRICE["batch"] / 1e6
        saved = (REST + 1) * each - 2 * each - REST * each / 10
        most = case.undiscounted_at_most(found["estimate"]["input_tokens"])
        assert found["batches"]["primer"] == pytest.approx(
            {"tokens": TOKENS, "saves_usd": saved, "risks_usd": (REST + 1) * each}, abs=1e-6
        )
        assert found["estimate"]["usd_at_most"] == pytest.approx(most + (REST + 1) * each, rel=1e-3)
        said = case.agac("plan", "-a", "reviews").out
        assert (
            f"with `--wait` a primer goes ahead: up to ${saved:.4f} less, ~1,125 tokens cached, one more queue" in said
        )
        assert_ended(case.run("--wait"))
        assert case.batches() == [(AFTER, None), (1, 2), (REST, 2)]
        assert case.cached() == [(0, 0), (0, TOKENS), (REST * TOKENS, 0)]
        case.assert_whole(creates=3)
        for given, cached, written, made, usd in case.project.query(
            "SELECT input_tokens, cached_tokens, cache_write_tokens, output_tokens, cost FROM attempt"
        ):
            units = (given - cached - written) + 0.1 * cached + 2 * written + 4 * made
            assert usd == pytest.approx(units * PRICE["batch"] / 1e6)


CASES: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("its user does not want it", {"warm_prefix": False}, {}, ROWS),
    ("what all begin with is short", {"instructions": "Be kind."}, {}, ROWS),
    ("the provider keeps nothing", {}, {"cache": "none"}, ROWS),
    ("nobody has to ask for it", {}, {"cache": "automatic"}, ROWS),
    ("a deadline leaves no time for it", {"batch": {"deadline": "8h"}}, {}, ROWS),
    ("what is cached costs the same", {}, {"prices": {"small": {**PRICE, "cached_input": 1.0}}}, ROWS),
    ("no price is known", {}, {"prices": {}}, ROWS),
    ("there are few requests", {}, {}, AFTER),
]


@pytest.mark.parametrize(("stage", "provider", "rows"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_none_goes_ahead_where(tmp_path: Path, stage: dict[str, Any], provider: dict[str, Any], rows: int) -> None:
    with primed(tmp_path, rows=rows, stage=stage, provider=provider) as case:
        assert planned(case)["batches"]["primer"] is None
        assert "primer" not in case.agac("plan", "-a", "reviews").out
        assert_ended(case.run("--wait"))
        assert case.batches() == [(rows, None)]


def test_none_goes_ahead_of_calls_nor_where_nobody_waits(tmp_path: Path) -> None:
    with primed(tmp_path) as case:
        case.submit()
        assert case.batches() == [(ROWS, None)]
        case.finish("retrieve")
        case.assert_whole()
        case.keys["prompt"] = "Tell ${text}"
        case.write()
        assert_ended(case.run("--wait", "--run-mode", "sync"))
        assert len(case.steps()) == 1


def held_up(case: PrimedCase) -> None:
    """A run is killed whose primer is at the provider while those that follow it are whole."""
    case.killed("journal.built.after:3", "run", "-a", "reviews", "--wait")
    assert case.batches() == [(AFTER, None), (1, 2), (REST, 2)]
    assert case.steps() == ["SUBMITTED", "SUBMITTED", "BUILT"]


def test_another_process_goes_on_waiting_and_sends_them_then(tmp_path: Path) -> None:
    with primed(tmp_path, seconds=60) as case:
        held_up(case)
        held = case.project.query("SELECT held_usd / tasks FROM batch ORDER BY id")
        assert held[2][0] > 1.5 * held[0][0], "written for an hour, its beginning costs twice the price at most"
        assert case.retrieve().code == 75
        assert case.notes()[2] == "batch 2 brings what its requests begin with into the cache first"
        case.advance(61)
        assert_ended(case.retrieve())
        assert case.steps() == ["CLEANED", "CLEANED", "SUBMITTED"]
        case.advance(61)
        assert_ended(case.retrieve())
        assert case.cached() == [(0, 0), (0, TOKENS), (REST * TOKENS, 0)]
        case.assert_whole(creates=3)


def test_who_is_done_asks_no_primer_for_a_few_more_rows_and_finds_what_is_still_there(tmp_path: Path) -> None:
    with primed(tmp_path) as case:
        assert_ended(case.run("--wait"))
        case.rows = ROWS + 5
        case.project.numbered(case.rows)
        assert_ended(case.run("--wait"))
        assert case.batches()[3:] == [(5, 2)]
        assert case.cached()[3:] == [(5 * TOKENS, 0)]
        case.assert_whole(creates=4)


FAILURES: dict[str, list[dict[str, Any]]] = {
    "expires": [{"kind": "batch_expire", "after": 0, "at": [2]}],
    "fails": [{"kind": "batch_line_status", "status": 500, "lines": [1], "at": [2]}],
}


@pytest.mark.parametrize("fault", FAILURES)
def test_others_go_plain_after_one_that_left_nothing(tmp_path: Path, fault: str) -> None:
    with primed(tmp_path, *FAILURES[fault]) as case:
        assert_ended(case.run("--wait"))
        assert case.batches() == [(AFTER, None), (1, 2), (REST, 2), (1, None), (REST, None)]
        assert case.steps()[2] == "NOT_CREATED"
        assert case.notes()[2] == "batch 2 left nothing in the cache: its tasks go into another"
        assert {(read or 0) + (written or 0) for read, written in case.cached()} == {0}
        case.assert_whole(creates=4)


def test_one_that_needs_its_user_holds_nobody(tmp_path: Path) -> None:
    with primed(tmp_path) as case:
        held_up(case)
        change(case, "UPDATE batch SET state = 'NEEDS_HUMAN', provider_id = NULL WHERE id = 2")
        assert "Batch 2 needs your decision" in case.retrieve().err
        assert case.steps()[2:] == ["NOT_CREATED", "SUBMITTED"]
        assert case.batches()[3] == (REST, None)


def test_one_that_ended_long_ago_is_of_no_use(tmp_path: Path) -> None:
    with primed(tmp_path) as case:
        held_up(case)
        case.killed("journal.ingested.after:2", "batch", "retrieve")
        change(case, "UPDATE batch SET ended_at = ended_at - 4000")
        case.finish("run")
        assert case.batches() == [(AFTER, None), (1, 2), (REST, 2), (REST, None)]
        case.assert_whole(creates=3)


def change(case: PrimedCase, statement: str) -> None:
    with store(case.project) as database:
        database.execute(statement)
