"""What result files may hold: whatever it is, every task gets an end, and nothing is paid again that was answered."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance, failed
from support.server import Server
from support.soak import few

import agac

Fault = dict[str, Any]


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project with rows at a server with faults, and its batches submitted."""

    def start(
        *faults: Fault, rows: int = 10, seconds: float = 0.0, provider: Fault | None = None, **keys: Any
    ) -> BatchProject:
        project = batches_at(*faults, rows=rows, seconds=seconds, **(provider or {}))
        project.batched(**keys)
        report = project.run()
        assert report.exit_code == 0, report.stopped
        return project

    return start


def counts(report: agac.RetrieveReport) -> dict[str, int]:
    """What the lines of the one batch that was taken came to."""
    [one] = report.ingested
    return {name: value for name, value in one.items() if name not in ("id", "provider_id") and value}


def strange(project: BatchProject) -> list[bytes]:
    """The lines that were put aside."""
    files = (project.root / ".agac/batches").glob("*.strange")
    return [line for path in files for line in path.read_bytes().split(b"\n") if line]


ANTHROPIC = {"dialect": "anthropic", "batch": {"api": "anthropic", "grace": 0.5}}
TAKEN: dict[str, tuple[list[Fault], dict[str, int], tuple[int, int]]] = {
    "22: an error file of no bytes": ([{"kind": "batch_zero_error_file"}], {"done": 10}, (1, 10)),
    **{
        f"25: a line that is nobody's, {form}": (
            [{"kind": "batch_dup_line", "lines": [3]}, {"kind": "batch_foreign_line", "form": form}],
            {"done": 10, "duplicate": 1, "unknown" if form == "unknown" else "malformed": 1}, (1, 10),
        )
        for form in ("unknown", "null", "list", "no_custom_id", "not_utf8")
    },
    "26: one that cannot be read": ([{"kind": "batch_corrupt_line", "lines": [4]}],
                                    {"done": 9, "again": 1, "missing": 1, "malformed": 1}, (2, 11)),
    "27: expired": ([{"kind": "batch_expire", "after": 7}], {"done": 7, "again": 3, "expired": 3}, (2, 10)),
    "a body that is written as text": ([{"kind": "batch_body_text"}], {"done": 10}, (1, 10)),
    **{
        f"an error that is no answer, {code}": ([{"kind": "batch_line_error", "code": code, "lines": [1, 9]}],
                                                {"done": 8, "again": 2, word: 2}, (2, 10))
        for code, word in (("request_timeout", "unanswered"), ("batch_expired", "expired"),
                           ("batch_cancelled", "cancelled"))
    },
    "no answer": ([{"kind": "batch_line_zero", "lines": [1, 9]}], {"done": 8, "again": 2, "unanswered": 2}, (2, 10)),
    **{
        f"status {status}": ([{"kind": "batch_line_status", "status": status, "lines": [1, 9]}],
                             {"done": 8, "again": 2}, (2, 10))
        for status in (429, 503)
    },
}  # fmt: skip
TAKEN_OF_ANTHROPIC: dict[str, tuple[list[Fault], dict[str, int], tuple[int, int]]] = {
    "in another order": ([{"kind": "batch_shuffle"}, {"kind": "batch_bom"}, {"kind": "batch_blank_lines"}],
                         {"done": 10}, (1, 10)),
    "500": ([{"kind": "batch_line_status", "status": 500, "lines": [3]}], {"done": 9, "again": 1}, (2, 10)),
    "529": ([{"kind": "batch_line_status", "status": 529, "lines": [3]}], {"done": 9, "again": 1}, (2, 10)),
    "missing": ([{"kind": "batch_omit", "lines": [2, 5]}], {"done": 8, "again": 2, "missing": 2}, (2, 12)),
    "cannot be read": ([{"kind": "batch_corrupt_line", "lines": [4]}],
                       {"done": 9, "again": 1, "missing": 1, "malformed": 1}, (2, 11)),
    "expired": ([{"kind": "batch_expire", "after": 7}], {"done": 7, "again": 3, "expired": 3}, (2, 10)),
    "twice": ([{"kind": "batch_dup_line", "lines": [3]}], {"done": 10, "duplicate": 1}, (1, 10)),
    "nobody's": ([{"kind": "batch_foreign_line", "form": "null"}], {"done": 10, "malformed": 1}, (1, 10)),
    "torn": ([{"kind": "batch_truncate", "after_bytes": 500, "first": 1}], {"done": 10}, (1, 10)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "faults", "expected", "charged"),
    [pytest.param({}, *case, id=name) for name, case in TAKEN.items()]
    + few([pytest.param(ANTHROPIC, *case, id=f"anthropic, {name}") for name, case in TAKEN_OF_ANTHROPIC.items()], 2),
)
def test_every_row_has_its_answer_in_the_end(
    make: Make, server: Server, provider: Fault, faults: list[Fault], expected: dict[str, int], charged: tuple[int, int]
) -> None:
    """Lines that are not to be used are put aside, and only what was not answered is asked again; the numbers are
    those of cases."""
    project = make(*({"at": [1], **fault} if "first" not in fault else fault for fault in faults), provider=provider)
    told = counts(project.retrieve())
    [(kept,)] = project.query("SELECT counts FROM batch WHERE id = 1")
    assert {name: number for name, number in json.loads(kept).items() if number} == expected
    assert told == {name: number for name, number in expected.items() if name != "unanswered"}
    assert len(strange(project)) == expected.get("unknown", 0) + expected.get("malformed", 0)
    assert project.query("SELECT count(*) FROM attempt WHERE error_type IS NULL") == [(expected["done"],)]
    assert charged[1] > 10 or project.query("SELECT count(*) FROM attempt WHERE ambiguous = 1") == [(0,)]
    project.assert_ends_as_sync(server, charged, doubles=charged[1] - 10)


def test_in_another_order_with_a_mark_and_blank_lines(batches_at: Make, server: Server) -> None:
    """Case 20: rows whose contents hold what ends lines elsewhere are joined by their names."""
    project = batches_at({"kind": "batch_shuffle"}, {"kind": "batch_bom"}, {"kind": "batch_blank_lines"})
    texts = ["a\u2028b", "c\u2029d", "e\u0085f", "🙂 g", "h\r\ni", "j\nk", 'l"m\\', "n\tp", "q\x0br", "s"]
    project.rows({"id": f"s-{n}", "text": text} for n, text in enumerate(texts))
    project.submit({"name": "say", "prompt": "${text}", "model": "local/echo"})
    project.to_the_end()
    project.assert_as_sync(server, charged=(1, 10))
    assert strange(project) == []


@pytest.mark.parametrize("kind", ["batch_null_output", "batch_empty_output_id"])
def test_nothing_but_errors_and_no_output_file(make: Make, kind: str) -> None:
    """Case 21."""
    project = make({"kind": "batch_line_status", "status": 400}, {"kind": kind})
    report = project.retrieve()
    assert report.exit_code in (1, 3)
    assert counts(report) == {"failed": 10}
    assert project.charged() == (1, 0)
    assert set(failed(project).values()) == {"ProviderError"}
    assert len(failed(project)) == 10


def test_failed_lines_go_round_again_as_their_errors_say(make: Make) -> None:
    """Case 23, with counts that lie."""
    project = make(
        {"kind": "batch_line_status", "status": 400, "lines": [1, 2], "at": [1]},
        {"kind": "batch_line_status", "status": 500, "lines": [3], "at": [1]},
        {"kind": "batch_line_zero", "lines": [4], "at": [1]},
        {"kind": "batch_counts_lie"},
    )
    first = project.retrieve()
    assert counts(first) == {"done": 6, "failed": 2, "again": 2}
    assert [one["requests"] for one in first.submitted] == [2]
    assert project.to_the_end().exit_code == 3
    assert failed(project) == {"r-1": "ProviderError", "r-2": "ProviderError"}
    assert project.charged() == (2, 8)
    assert project.doubles() == 0


def test_lines_that_are_missing_are_sent_again_and_reported(make: Make, server: Server) -> None:
    """Case 24: they may have been paid for, which is said."""
    prices = {"small": {"input": 1.0, "output": 1.0}}
    fault = {"kind": "batch_omit", "lines": [2, 5], "at": [1]}
    project = make(fault, provider={"prices": prices}, defaults={"max_tokens": 100})
    assert counts(project.retrieve()) == {"done": 8, "again": 2, "missing": 2}
    project.to_the_end()
    assert (project.charged(), project.doubles()) == ((2, 12), 2)
    assert project.query("SELECT count(*), min(error_type) FROM attempt WHERE ambiguous = 1") == [(2, "BatchLost")]
    [(held,)] = project.query("SELECT sum(held_usd) FROM v_costs")
    assert held > 0
    assert "BatchLost" in project.agac("inspect", "last", "r-2").out
    project.assert_as_sync(server)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([{"lines": [1, 511, 512, 513, 600]}], {"done": 600, "duplicate": 5}),
        ([{}, {"kind": "batch_shuffle"}], {"done": 600}),
    ],
    ids=["some", "all, in another order"],
)
def test_a_line_that_is_there_twice_counts_once_wherever_it_stands(
    make: Make, server: Server, faults: list[Fault], expected: dict[str, int]
) -> None:
    """Also across the chunks in which lines are read."""
    project = make(*({"kind": "batch_dup_line", **fault} for fault in faults), rows=600)
    assert expected.items() <= counts(project.retrieve()).items()
    assert project.query("SELECT count(*), count(DISTINCT row_key) FROM attempt") == [(600, 600)]
    project.assert_as_sync(server, charged=(1, 600))


def test_a_batch_that_is_refused_for_a_line_fails_that_row_alone(make: Make) -> None:
    """Case 30. What the provider objects to is shown before it is taken."""
    fault = {"kind": "batch_reject", "line": 3, "code": "invalid_json_line", "message": "not a line", "at": [1]}
    project = make(fault)
    shown = project.agac("batch", "status").out
    assert shown.startswith("Batch job status: failed\n")
    assert "\nNote: line 3: not a line (invalid_json_line)\n" in shown
    assert project.agac("batch", "list", "--json").json["batches"][0]["status"] == "failed"
    project.agac("batch", "retrieve", code=0)
    assert project.steps() == ["REJECTED", "SUBMITTED"]
    assert "nothing was charged" in str(project.notes()[0])
    assert project.to_the_end().exit_code == 3
    assert failed(project) == {"r-3": "ProviderError"}
    [error] = project.envelopes(file="errors.jsonl")
    assert "line 3 was refused: not a line (invalid_json_line)" in error["error"]["message"]
    assert (project.charged(), project.account["rejected"], project.doubles()) == ((2, 9), 1, 0)


TWO_ROUNDS = {"batch": {"max_rounds": 2, "poll_interval": "0.05s"}}


def test_refused_again_and_again_for_a_line_it_ends_after_its_rounds(make: Make) -> None:
    """Those beside the line are sent in `max_rounds` batches, not in as many as it has lines."""
    project = make({"kind": "batch_reject", "line": 3, "code": "odd", "message": "not a line"}, defaults=TWO_ROUNDS)
    assert project.run(wait=True).exit_code == 3
    assert project.steps() == ["REJECTED"] * 2
    assert failed(project) == {f"r-{n}": "ProviderError" for n in range(1, 11)}
    messages = {one["error"]["message"].partition(":")[0] for one in project.envelopes(file="errors.jsonl")}
    assert messages == {"line 3 was refused", "local refused it as a whole, and nothing was charged"}
    assert project.charged() == (2, 0)


def test_a_batch_that_is_refused_as_a_whole_stops_the_run_and_leaves_its_rows(make: Make, server: Server) -> None:
    """Model, permission, billing: every other batch would be refused as well."""
    fault = {"kind": "batch_reject", "code": "model_not_found", "message": "no such deployment", "at": [1]}
    project = make(fault)
    stopped = project.agac("batch", "retrieve", code=1)
    assert "no such deployment (model_not_found)" in stopped.err + stopped.out
    assert "nothing was charged" in stopped.err + stopped.out
    assert project.steps() == ["REJECTED"]
    assert project.charged() == (1, 0)
    assert project.query("SELECT count(*) FROM row WHERE state = 0") == [(10,)]
    assert project.run().exit_code == 0
    project.assert_ends_as_sync(server, (2, 10))


def test_a_word_that_nobody_knows_is_no_end(make: Make, server: Server) -> None:
    """Case 38."""
    project = make({"kind": "batch_unknown_status", "word": "paused", "seconds": 3600})
    assert "'paused', which is no state that agac knows" in project.agac("batch", "retrieve", code=75).err
    assert "paused" in str(project.agac("batch", "status", "--json").json)
    advance(project.server, 3700)
    assert project.retrieve().exit_code == 0
    project.assert_as_sync(server, charged=(1, 10))


def test_a_row_that_fits_into_no_batch_fails_before_anything_is_sent(tmp_path: Path, server: Server) -> None:
    """Case 41."""
    project = BatchProject(tmp_path / "project", server)
    texts = ["x" * 9000 if n == 5 else f"number {n}" for n in range(12)]
    project.rows({"id": f"r-{n}", "text": text} for n, text in enumerate(texts))
    project.submit({"name": "say", "prompt": "${text}", "model": "local/echo"}, defaults={"batch": {"max_bytes": 4000}})
    assert project.to_the_end().exit_code == 3
    assert failed(project) == {"r-5": "InvalidRow"}
    [error] = project.envelopes(file="errors.jsonl")
    assert "a batch of local/echo takes 4,000" in error["error"]["message"]
    assert project.charged()[1] == 11
    assert project.query("SELECT max(bytes) <= 4000 FROM batch") == [(1,)]
    project.assert_sound()


@pytest.mark.parametrize(("status", "wait"), [(500, None), (429, 3000)])
def test_results_that_are_not_to_be_had_for_now_are_fetched_again(
    make: Make, server: Server, status: int, wait: int | None
) -> None:
    """By the same command, or by the next one; nothing is asked."""
    fault = {"kind": "batch_status", "op": "download", "status": status, "first": 1}
    project = make(fault | ({"retry_after": wait} if wait else {}))
    if wait:
        assert project.agac("batch", "retrieve").code in (0, 75)
        assert project.steps() == ["TERMINAL"]
        assert "could not be fetched" in str(project.notes()[0])
    assert counts(project.retrieve()) == {"done": 10}
    assert project.account["calls"]["download"] == 2
    project.assert_as_sync(server, charged=(1, 10))


def test_a_batch_of_anthropic_that_is_ended_keeps_what_it_did(make: Make, server: Server) -> None:
    project = make(provider=ANTHROPIC, seconds=100)
    advance(project.server, 40)
    assert project.retrieve().exit_code == 75
    agac.batch_cancel(project=project.root)
    assert counts(project.retrieve()) == {"done": 4, "cancelled": 6}
    project.run()
    advance(project.server, 101)
    project.assert_ends_as_sync(server, (2, 10))


@pytest.mark.parametrize("provider", [{}, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize("body", ["error", "array", "empty", "page"])
def test_results_without_a_line_of_ours_are_fetched_again_and_then_a_person_decides(
    make: Make, server: Server, monkeypatch: pytest.MonkeyPatch, body: str, provider: Fault
) -> None:
    """What was paid for is neither deleted nor bought again: not while junk comes, nor by a later command."""
    monkeypatch.setattr("agac.engine.batch.poll.LATE_FILES", (0.01,) * 4)
    project = make({"kind": "batch_junk", "body": body, "first": 7}, provider=provider)
    kept = project.account["kept"]
    assert project.retrieve().exit_code == 75
    downloads = 6 if body == "page" else 5  # a last line that is no JSON may have been cut
    assert (project.account["calls"]["download"], project.steps()) == (downloads, ["NEEDS_HUMAN"])
    [note] = project.notes()
    adopt = str(note).split("`")[1].split()
    assert adopt[:3] == ["agac", "doctor", "--adopt"]
    assert "may have been paid" in str(note)
    assert bool(strange(project)) == (body != "empty")
    project.run()
    assert (project.charged(), project.account["kept"]) == ((1, 10), kept)
    project.agac(*adopt[1:], code=0)
    assert counts(project.retrieve()) == {"done": 10}
    assert project.account["calls"]["download"] == 8
    project.assert_as_sync(server, charged=(1, 10))


@pytest.mark.parametrize("first", [1, 2])
def test_lines_that_come_with_a_later_download_are_not_bought_again(make: Make, server: Server, first: int) -> None:
    """And what had come before is counted once, also where prices are known."""
    prices = {"small": {"input": 1.0, "output": 1.0}}
    project = make({"kind": "batch_junk", "body": "half", "first": first}, provider={"prices": prices})
    assert counts(project.retrieve()) == {"done": 10}
    assert project.account["calls"]["download"] == first + 1
    assert project.query("SELECT abs(b.cost - sum(a.cost)) < 1e-9 FROM batch b, attempt a") == [(1,)]
    assert project.account["kept"] == 0
    project.assert_as_sync(server, charged=(1, 10))


def test_lines_that_never_come_are_lost_and_their_files_stay_at_the_provider(make: Make, server: Server) -> None:
    project = make({"kind": "batch_junk", "body": "half", "first": 3})
    assert counts(project.retrieve()) == {"done": 5, "again": 5, "missing": 5}
    assert project.account["calls"]["download"] == 3
    assert "5 results never came" in str(project.notes()[0])
    assert project.account["kept"] > 0
    project.assert_ends_as_sync(server, (2, 15), doubles=5)
    assert project.account["kept"] > 0
    assert project.agac("doctor", "--clean", code=0)
    assert project.account["kept"] == 0


def test_a_completed_batch_without_counts_or_results_is_a_persons_decision(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.batch.poll.LATE_FILES", ())
    project = make({"kind": "batch_null_output"})
    assert project.retrieve().exit_code == 75
    assert (project.steps(), project.charged()) == (["NEEDS_HUMAN"], (1, 10))


def test_a_download_never_fills_the_disk_nor_has_more_than_its_replies_may_have(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command begins anew where there was no room."""
    monkeypatch.setattr("agac.engine.batch.poll.LATE_FILES", (0.01,))
    project = make({"kind": "batch_junk", "body": "endless"}, rows=2, provider={"limits": {"reply_mb": 1}})
    with monkeypatch.context() as little:
        little.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=65 << 20))
        with pytest.raises(agac.AgacError, match="No space left on device"):
            project.retrieve()
    assert project.steps() == ["TERMINAL"]
    assert project.retrieve().exit_code == 75
    assert project.steps() == ["NEEDS_HUMAN"]
    assert max(path.stat().st_size for path in (project.root / ".agac/batches").iterdir()) < 2_400_000


@pytest.mark.parametrize("mode", ["sync", "batch"])
def test_a_reply_that_is_too_large_fails_its_row_alone_under_a_name_of_its_own(
    tmp_path: Path, server: Server, mode: str
) -> None:
    """It was paid for and would come again: it is tried in two further runs, and then left."""
    project = BatchProject(tmp_path / "large", server)
    project.provider(limits={"reply_mb": 1}, prices={"echo": {"input": 1.0, "output": 1.0}})
    project.rows({"id": f"r-{n}", "text": f"number {n} " * (200_000 if n == 3 else 1)} for n in range(1, 6))
    stage = {"name": "say", "prompt": "${text}", "model": "local/echo"}
    name = project.batched(stage, defaults={"run_mode": mode})
    for tries in (1, 2, 3, 3):
        project.run(name)
        assert mode == "sync" or project.to_the_end().exit_code == 3
        assert failed(project) == {"r-3": "ReplyTooLarge"}
        [error] = project.envelopes(file="errors.jsonl")
        assert "sent a reply of more than 1 MB" in error["error"]["message"]
        lost = project.query("SELECT error_type, ambiguous, reply IS NULL FROM attempt WHERE error_type IS NOT NULL")
        assert lost == [("ReplyTooLarge", 1, 1)] * tries
    assert len(project.output()) == 4
    assert "limits: {reply_mb}" in project.agac("run", "-a", name).out
