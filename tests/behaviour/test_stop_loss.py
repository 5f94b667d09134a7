"""max_errors and stop-loss: a run in which too much fails stops by itself, and keeps everything."""

from typing import Any

import pytest
from support.project import ProjectFolder
from support.server import Faulty

from agac.core.errors import ExitCode

ALWAYS = {"kind": "refusal", "always": True}
BAD = {"kind": "refusal", "match": "bad"}


def texts(*words: tuple[str, int]) -> list[dict[str, Any]]:
    """So many rows with each word in a text of their own."""
    found = [word for word, count in words for _ in range(count)]
    return [{"id": str(number), "text": f"{word} {number}"} for number, word in enumerate(found)]


def test_max_errors_stops_and_keeps_what_is_done(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 1"}]))
    report = project.run(project.workflow(rows=60, max_errors=3, stop_loss=False), concurrency=1)
    assert (report.exit_code, report.summary["rows"]["failed"]) == (ExitCode.LIMIT, 3)
    assert "max_errors is 3" in (report.stopped or "")
    assert len(project.envelopes()) == report.summary["rows"]["done"] + 3
    unbounded = project.run(max_errors=100)
    assert (unbounded.exit_code, unbounded.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 11)
    project.workflow("none", stages=[{"name": "say", "prompt": "Say ${text}"}])
    for most in ("0", "1"):
        words = ["--concurrency", "1", "--max-errors", most, "--fresh", "--json"]
        ran = project.agac("run", "-a", "none", *words, code=4)
        assert (ran.json["rows"]["failed"], ran.json["calls"]["count"]) == (1, 1)


def test_stop_loss_ends_a_run_that_fails_alike_from_the_start(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([ALWAYS]))
    report = project.run(project.workflow(rows=500), concurrency=8)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "loss")
    assert "17 of the first 17 outcomes of stage 'classify' are Refused" in (report.stopped or "")
    assert not (project.root / "output/reviews").exists()  # nothing good is replaced
    assert report.invocation["calls"] <= 17 + 2 * 8
    project.workflow(stop_loss=False)
    assert project.run(concurrency=8).summary["rows"]["failed"] == 500
    project.workflow("few", rows=16)
    assert project.run("few").exit_code == ExitCode.ROWS_FAILED, "never ends a run of few rows"


def test_stop_loss_counts_a_question_once_however_many_rows_share_it(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([BAD]))
    rows = [{"id": str(i), "text": "bad"} for i in range(30)]
    report = project.run(project.workflow(rows=[*rows, *({"id": f"g{i}", "text": f"good{i}"} for i in range(10))]))
    assert (report.exit_code, report.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 30)
    assert report.invocation["calls"] == 11


@pytest.mark.parametrize("alike", [16, 17])
def test_stop_loss_wants_more_than_80_percent_of_20(alike: int, project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([BAD]))
    project.workflow(rows=texts(("good", 20 - alike), ("bad", alike), ("good", 10)))
    report = project.run(concurrency=1)
    assert (report.stop, report.invocation["calls"]) == (("loss", 20) if alike == 17 else (None, 30))


def test_stop_loss_leaves_a_stage_alone_that_has_shown_that_it_works(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([BAD]))
    project.workflow(rows=texts(("good", 30), ("bad", 30)))
    for failed in (0, 30):  # the second time only the bad ones are tried again
        report = project.run(concurrency=1)
        assert (report.exit_code, report.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 30)
        assert report.invocation["calls"] == 60 - failed


def test_stop_loss_says_what_fails_where_and_how_to_turn_it_off(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=40))
    before = (project.root / "output/reviews/results.jsonl").read_bytes()
    stage = {"name": "classify", "prompt": "Review: ${tekst}"}  # one row has it
    rows = [{"id": str(i), "text": str(i)} for i in range(40)]
    project.workflow(rows=[*rows, {"id": "40", "tekst": "x"}], stages=[stage], path="data/rows.jsonl")
    ran = project.agac("run", "-a", "reviews", "--concurrency", "1", code=1)
    for words in ("17 of the first 17 outcomes of stage 'classify' are MissingTemplateField", "row '16' for example",
                  "stop_loss: false", "resume with: agac run -a reviews --concurrency 1"):  # fmt: skip
        assert words in ran.err
    assert (project.root / "output/reviews/results.jsonl").read_bytes() == before


@pytest.mark.parametrize("rules", [{"max_errors": 0}, {"budget": {"calls": 4}, "max_errors": 0}])
def test_calls_in_flight_at_a_limit_finish_however_long_they_take(
    rules: dict[str, Any], project: ProjectFolder, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.walk.row_walk.DRAIN_SECONDS", 0.0)  # what calls in flight get after a Ctrl-C
    project.asks(faulty([{"kind": "refusal", "match": "number 1"}, {"kind": "slow_first_byte", "seconds": 0.4}]))
    report = project.run(project.workflow(rows=9, **rules), concurrency=4)
    assert report.exit_code == ExitCode.LIMIT
    assert report.invocation["calls_given_up"] == 0
    assert report.summary["rows"]["done"] == 3
