"""The lines of progress as a table: what they say of a run, at every width; and when a plain log gets them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agac.api import progress
from agac.api.progress import LineStyle, ObservedRun, rate, run_lines
from agac.api.watched_run import RowCount, Snapshot, WatchedRun
from agac.cli.terminal import harmless
from agac.core.errors import ErrorType, RowError
from agac.core.text import cells, cropped, duration, on_one_line
from agac.engine.run_state import Invocation
from agac.engine.stop_rules import StopReason
from agac.engine.totals import Spending, StageTotals

MISMATCH = RowError(ErrorType.SCHEMA_MISMATCH, "x")


def watched(total: int | None = 10_000, exact: bool = True, **stages: dict[str, Any]) -> WatchedRun:
    invocation = Invocation()
    invocation.totals.stages = {name: StageTotals(**counts) for name, counts in stages.items()}
    counted = None if total is None else RowCount(total, exact)
    names = list(stages)
    return WatchedRun("reviews", invocation, lambda: counted, [], {name: names[:i] for i, name in enumerate(names)})


def test_a_stage_that_waits_for_batches_shows_no_progress_of_its_guard() -> None:
    """Neither 5 of 40 at once nor an end that follows from it; what follows a batch stage has no end either."""
    run = watched(40, classify={"dropped": 5}, reply={"done": 3})
    assert "classify" in lines(run)[0]
    assert "5/40" in lines(run)[0]
    first, second = lines(replace(run, in_batches=["classify"]))
    assert "0/35 (0.0%)" in first
    assert "3/35" in second
    assert "ETA" not in first + second


def lines(
    run: WatchedRun, width: int | None = 139, rate: float = 45.2, encoding: str = "utf-8", **paper: Any
) -> list[str]:
    snapshot = run.snapshot(run.count_rows())
    return run_lines(snapshot, {stage.name: rate for stage in snapshot.stages}, LineStyle(width, encoding, **paper))


def classify(**more: Any) -> dict[str, Any]:
    return {"done": 1244, "failed": 3, "spent": Spending(0.84), "last_error": (MISMATCH, "r-1089"), **more}


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (159, ("classify ██░░░░░░░░░░░░░░░░░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 13s | $0.84 "
              "| errors 3 (last: SchemaMismatch, row r-1089)")),
        (139, ("classify █░░░░░░░░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 13s | $0.84 "
              "| errors 3 (last: SchemaMismatch, row r-1089)")),
        (107, ("classify █░░░░░░░░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 13s | $0.84 "
              "| errors 3 (last: SchemaMismatch)")),
        (90, "classify █░░░░░░░░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 13s | $0.84 | errors 3"),
        (79, "classify █░░░░░░░░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 13s | $0.84 | errors 3"),
        (70, "classify 1,247/10,000 (12.5%) | 45/s | ETA 3m 13s | $0.84 | errors 3"),
        (59, "classify 1,247/10,000 (12.5%) | ETA 3m 13s | errors 3"),
        (45, "classify 1,247/10,000 (12.5%) | errors 3"),
        (39, "classify 1,247/10,000 (12.5%)"),
        (20, "class… 1,247/10,000…"),
        (1, "…"),
    ],
)  # fmt: skip
def test_a_line_gives_up_what_says_least_when_it_gets_narrow(width: int, line: str) -> None:
    assert lines(watched(classify=classify()), width) == [line]


def test_no_line_is_ever_wider_than_the_terminal_and_the_row_of_the_last_error_is_cut_before_its_type() -> None:
    run = watched(größe=classify(last_error=(MISMATCH, "行" * 80)), a_stage_with_a_very_long_name_indeed=classify())
    run.invocation.stop_signal.stop = StopReason.INTERRUPT
    for width in range(1, 200):
        for encoding in ("utf-8", "ascii"):
            assert all(cells(line) <= width for line in lines(run, width, encoding=encoding))
    (line,) = lines(watched(classify=classify(last_error=(MISMATCH, "r-" + "9" * 100))), 125)
    assert line.endswith("| errors 3 (last: SchemaMismatch, row r-99999999999999…)")
    assert len(line) <= 125


def test_the_number_of_rows_is_shown_as_well_as_it_is_known() -> None:
    for total, exact, share in (
        (None, True, "1,247 rows"),
        (10_000, True, "█░░░░░░░░░ 1,247/10,000 (12.5%)"),
        (10_000, False, "█░░░░░░░░░ 1,247/~10,000 (12.5%)"),
    ):
        (line,) = lines(watched(total, exact, classify=classify()))
        assert line.startswith(f"classify {share} | 45/s | ")
        assert ("ETA" in line) is (total is not None)
    assert lines(watched(10, classify={"done": 10})) == ["classify ██████████ 10/10 (100.0%) | 45/s | $0.00"]
    run = watched(10, classify={"done": 11})  # more than were counted are no longer a share
    run.invocation.totals.rows.seen = 12
    assert lines(run)[0].startswith("classify 11 rows | ")
    run.invocation.totals.rows.all_read = True
    assert lines(run)[0].startswith("classify █████████░ 11/12 (91.7%) | ")


def test_rows_that_failed_or_left_do_not_come_to_a_later_stage_and_skipped_ones_are_settled() -> None:
    run = watched(100, classify={"done": 40, "failed": 10}, reply={"done": 30, "reused": 5})
    run.invocation.totals.rows.unusable = 4
    assert [line.split(" | ")[0] for line in lines(run)] == [
        "classify █████░░░░░ 50/96 (52.1%)",
        "reply    ████░░░░░░ 35/86 (40.7%)",
    ]
    run = watched(100, first={"done": 40, "dropped": 10}, reply={"done": 5, "skipped": 30}, last={"done": 30})
    assert [line.rpartition(" | ")[0] for line in lines(run)] == [
        "first █████░░░░░ 50/100 (50.0%) | 45/s | ETA 1s | dropped 10",
        "reply ███░░░░░░░ 35/90 (38.9%) | 45/s | ETA 1s | skipped 30",
        "last  ███░░░░░░░ 30/90 (33.3%) | 45/s | ETA 1s",
    ]
    assert lines(run, 50)[1] == "reply 35/90 (38.9%) | 45/s | ETA 1s | $0.00"


def test_the_rate_and_what_is_left_count_rows_that_are_passed_over() -> None:
    run = watched(1000, reply={"done": 5, "skipped": 895})
    (stage,) = run.snapshot(run.count_rows()).stages
    assert (stage.settled, stage.counts.settled, stage.total) == (900, 900, RowCount(1000, exact=True))
    assert "ETA 10s" in lines(run, rate=10.0)[0]
    run.invocation.totals.rows.unchanged = 50  # rows that need nothing do not count for the rate
    (stage,) = run.snapshot(run.count_rows()).stages
    assert (stage.settled, stage.counts.settled) == (950, 900)


def test_a_branch_does_not_wait_for_rows_that_left_in_another() -> None:
    """`right` is not upstream of `left`: what was dropped there is known to stay away once its rows have ended."""
    run = watched(100, left={"done": 80}, right={"done": 70, "dropped": 30}, join={"done": 70})
    run = replace(run, upstream={"left": [], "right": [], "join": ["left", "right"]})
    totals = run.invocation.totals
    totals.rows.done, totals.rows.filtered = 70, 30
    assert [(s.settled, s.total and s.total.rows) for s in run.snapshot(run.count_rows()).stages] == [
        (80, 80),
        (100, 100),
        (70, 70),
    ]


def test_money_is_real_simulated_or_unknown() -> None:
    told = [
        lines(watched(10, s={"done": 1, "spent": spent}))[0].split(" | ")[3]
        for spent in (
            Spending(1234.5), Spending(0.0123), Spending(0.5, simulated=3), Spending(0.5, unpriced=1),
            Spending(unpriced=1),
        )
    ]  # fmt: skip
    assert told == ["$1,234.50", "$0.0123", "simulated $0.50", "$0.50 + unknown prices", "price unknown"]


def test_unusable_rows_stopping_and_why_no_answer_comes_have_lines_of_their_own() -> None:
    run = watched(100, classify={"done": 1, "in_flight": 3}, reply={"in_flight": 1})
    totals = run.invocation.totals
    totals.rows.unusable, totals.last_error = 2, (RowError(ErrorType.DUPLICATE_ID, "x"), "r-7")
    run.invocation.stop_signal.stop = StopReason.INTERRUPT
    assert lines(run)[2:] == [
        "unusable rows 2 (last: DuplicateId, row r-7)",
        "stopping: waiting for 4 calls in flight (Ctrl-C again cancels them)",
    ]
    run.invocation.stop_signal.stop = StopReason.QUOTE
    assert len(lines(run)) == 3, "nobody stopped it"
    run = watched(classify=classify())
    run.invocation.totals.calls.waiting_for = RowError(ErrorType.PROVIDER_ERROR, "local cannot be\nreached: refused")
    assert lines(run)[1:] == ["retrying: local cannot be\\nreached: refused"]
    assert lines(run, 26)[1:] == ["retrying: local cannot be…"]
    run.invocation.totals.calls.waiting_for, now = None, time.time()
    run.invocation.totals.waits = {"openai/a": now + 60, "openai/b": now + 600, "local/c": now - 1}
    end = f"{datetime.fromtimestamp(int(now + 600), UTC).astimezone():%H:%M:%S}"
    assert lines(run)[1:] == [f"waiting for openai until {end}"]
    run.invocation.stop_signal.interrupt()
    assert [line[:9] for line in lines(run)[1:]] == ["stopping:"]


def test_more_stages_than_lines_are_told_together() -> None:
    run = watched(10, **{f"s{i}": {"done": 10 if i < 5 else 0, "in_flight": int(i == 5)} for i in range(20)})
    run.invocation.totals.rows.all_read, run.invocation.totals.rows.seen = True, 10
    snapshot = run.snapshot()
    shown = run_lines(snapshot, {}, LineStyle(79, "utf-8"), 4)
    assert [line.split()[0] for line in shown] == ["s5", "s6", "s7", "+"]
    assert shown[-1] == "+ 17 more stages"
    assert len(run_lines(snapshot, {}, LineStyle(79, "utf-8"), 1)) == 1


def test_without_unicode_lines_are_ascii_and_ids_are_escaped() -> None:
    (line,) = lines(watched(classify=classify(last_error=(MISMATCH, "größe\x1b[31m\n"))), 150, encoding="ascii")
    assert line.startswith("classify ##------------------ 1,247/10,000 (12.5%)")
    assert line.endswith(r"(last: SchemaMismatch, row gr\xf6\xdfe\x1b[31m\n)")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252", None, "no-such-encoding"])
def test_a_line_can_be_written_in_every_encoding(encoding: str | None) -> None:
    line = on_one_line("größe 行 \ud800 \x07\t\n", encoding)
    line.encode("ascii" if encoding in (None, "no-such-encoding") else encoding)
    assert "\n" not in line
    assert "\x07" not in line


@pytest.mark.parametrize(("seconds", "notes"), [(None, []), (4.9, []), (75.2, ["elapsed 1m 15s"])])
def test_a_run_says_how_long_it_is_at_work(seconds: float | None, notes: list[str]) -> None:
    snapshot = Snapshot("reviews", (), None, 0, 0, None, stopping=False, elapsed=seconds)
    assert run_lines(snapshot, {}, LineStyle(80, "utf-8")) == notes


def test_text_cannot_command_a_terminal_its_width_is_counted_in_cells_and_times_are_read_at_a_glance() -> None:
    assert harmless("\x1b[31mred\x1b[0m\n\tfine") == "\\x1b[31mred\\x1b[0m\n\tfine"  # not a colour of agac's own
    assert harmless("\x1b]0;title\x07\x1b[2J") == r"\x1b]0;title\x07\x1b[2J"
    assert harmless("abc\u202efed\r") == "abc\\u202efed\\x0d"
    assert (cells("行列"), cells("e\u0301"), cells("abc")) == (4, 1, 3)
    assert cropped("行列式", 5) == "行列…"
    assert cropped("行列式", 4) == "行…"
    times = {0.9: "0s", 59: "59s", 192: "3m 12s", 3600: "1h 00m", 7512: "2h 05m", 200_000: "2d 07h"}
    assert {seconds: duration(seconds) for seconds in times} == times


def test_the_rate_is_that_of_the_last_twenty_seconds() -> None:
    seen: deque[tuple[float, int]] = deque()
    assert rate(seen, 0.0, 0) == 0.0
    assert rate(seen, 10.0, 1000) == 100.0
    for second in range(11, 41):
        found = rate(seen, float(second), 1000 + second - 10)
    assert found == pytest.approx(1.0)


def test_calls_that_are_made_again_are_told_of_when_no_answer_comes_between_them() -> None:
    run = watched(classify=classify())
    observed, shown = ObservedRun(run), []
    for now, again in ((0.0, True), (0.9, True), (1.0, True), (1.1, False), (1.2, True), (2.1, True), (2.3, True)):
        run.invocation.totals.calls.waiting_for = MISMATCH if again else None
        shown.append(observed.look(now)[0].waiting_for is not None)
    assert shown == [False, False, True, False, False, False, True]


class Over(Exception):
    pass


@pytest.mark.parametrize(
    ("done", "waiting", "said_at"),
    [
        (lambda second: 10 * second, [], [10, 20, 30, 40, 50, 60, 70, 80]),  # a tenth of the rows in ten seconds
        (lambda second: 5 * second, [], [20, 40, 60, 80]),  # in twenty
        (lambda second: second, [], [60]),  # a minute in any case
        (lambda second: 0, [*range(3, 13), *range(30, 90)], [4, 60, 64]),  # no answer since the second before
        (None, [], [10, 20, 30, 40, 50, 60, 70, 80]),  # it is not known how many there are
    ],
)
def test_a_pipe_gets_plain_lines_now_and_then(
    done: Callable[[int], int] | None, waiting: list[int], said_at: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = watched(1000 if done else None, classify=classify(done=0, failed=0, last_error=None))
    second, told = 0, []

    async def sleep(seconds: float) -> None:
        nonlocal second
        if lines := capsys.readouterr().err.splitlines():
            told.append((second, lines[0]))
        second += 1
        totals = run.invocation.totals
        totals.stages["classify"].done = totals.rows.done = done(second) if done else second
        totals.calls.waiting_for = MISMATCH if second in waiting else None
        await asyncio.sleep(0.001)  # so that the rows can be counted meanwhile
        if second == 89:
            raise Over

    with pytest.raises(Over):
        asyncio.run(progress.plainly(run, lambda: second, sleep))
    assert [at for at, _ in told] == said_at
    if done and done(1) == 10:
        assert told[0][1] == "classify 100/1,000 (10.0%) | 10/s | ETA 1m 30s | $0.84"
        assert told[2][1] == "classify 300/1,000 (30.0%) | 10/s | ETA 1m 10s | $0.84"


def test_a_pipe_is_told_at_once_that_the_run_stops_and_what_a_second_signal_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = watched(1000, classify=classify(done=0, failed=0, last_error=None))
    second, told = 0, []

    async def sleep(seconds: float) -> None:
        nonlocal second
        if said := capsys.readouterr().err:
            told.append((second, said))
        second += 1
        if second == 5:
            run.invocation.stop_signal.interrupt()
        if second == 20:
            raise Over

    with pytest.raises(Over):
        asyncio.run(progress.plainly(run, lambda: second, sleep))
    assert [at for at, _ in told] == [5], "once"
    assert "stopping: waiting for what was begun (Ctrl-C again ends it)" in told[0][1], "no call is in flight"


class Stream:
    def __init__(self, tty: bool) -> None:
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


def test_lines_are_painted_only_where_they_can_be() -> None:
    for tty, environ, live in (
        (True, {"TERM": "xterm-256color"}, True),
        (True, {"TERM": "xterm", "CI": "false"}, True),
        (True, {"TERM": "xterm", "CI": "true"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (False, {"TERM": "xterm"}, False),
    ):
        assert progress.is_live(Stream(tty), environ) is live  # type: ignore[arg-type]
