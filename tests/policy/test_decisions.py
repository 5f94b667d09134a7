"""What is done about a fault: the table."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind
from agac.engine.ask.retry_policy import (
    MAX_AMBIGUOUS,
    MAX_RATE_LIMIT_RETRIES,
    MAX_RETRY_DELAY_S,
    MAX_ROW_WAIT_S,
    FailTask,
    RetryAfter,
    StopRun,
    decide,
    max_billed_calls,
    max_calls,
    with_end_of_pause,
)
from agac.spec.rules import DEFAULT_RETRIES, RetryRules

RETRY, PAUSE, FATAL, TASK = FaultKind.RETRY, FaultKind.PAUSE, FaultKind.FATAL, FaultKind.TASK


def fault(kind: FaultKind, **more: Any) -> Fault:
    return Fault(kind, ErrorType.PROVIDER_ERROR, "trouble", **more)


TABLE = [
    # fault, attempt, ambiguous → decision
    (fault(FATAL), 1, 0, StopRun()),
    (fault(FATAL, delay=1.0), 3, 2, StopRun()),
    (fault(TASK), 1, 0, FailTask()),
    (fault(TASK, delay=1.0, retries=9), 1, 0, FailTask()),
    (fault(RETRY), 1, 0, RetryAfter(0.5)),
    (fault(RETRY), 2, 0, RetryAfter(1.0)),
    (fault(RETRY), 3, 0, RetryAfter(2.0)),
    (fault(RETRY), 5, 0, RetryAfter(8.0)),
    (fault(RETRY), DEFAULT_RETRIES.attempts - 1, 0, RetryAfter(8.0)),
    (fault(RETRY), DEFAULT_RETRIES.attempts, 0, FailTask()),
    (fault(RETRY, delay=7.0), 1, 0, RetryAfter(7.0)),
    (fault(RETRY, delay=0.0), 4, 0, RetryAfter(4.0)),
    (fault(PAUSE, delay=0.0), 2, 0, RetryAfter(1.0, lane=True)),
    (fault(RETRY, retries=1), 1, 0, RetryAfter(0.5)),
    (fault(RETRY, retries=1), 2, 0, FailTask()),
    (fault(RETRY, retries=0), 1, 0, FailTask()),
    (fault(RETRY, ambiguous=True), MAX_AMBIGUOUS, MAX_AMBIGUOUS, RetryAfter(1.0)),
    (fault(RETRY, ambiguous=True), MAX_AMBIGUOUS + 1, MAX_AMBIGUOUS + 1, FailTask()),
    (fault(PAUSE), 1, 0, RetryAfter(0.5, lane=True)),
    (fault(PAUSE), 10, 0, RetryAfter(30.0, lane=True)),
    (fault(PAUSE, delay=12.0), 1, 0, RetryAfter(12.0, lane=True)),
    (fault(PAUSE), MAX_RATE_LIMIT_RETRIES, 0, RetryAfter(30.0, lane=True)),
    (fault(PAUSE), MAX_RATE_LIMIT_RETRIES + 1, 0, FailTask()),
    (fault(PAUSE, delay=MAX_RETRY_DELAY_S), 1, 0, RetryAfter(MAX_RETRY_DELAY_S, lane=True)),
    (fault(PAUSE, delay=MAX_RETRY_DELAY_S + 1), 1, 0, StopRun()),
    (fault(RETRY, delay=MAX_RETRY_DELAY_S + 1), 1, 0, FailTask()),
]


@pytest.mark.parametrize(("given_fault", "attempt", "ambiguous", "decision"), TABLE)
def test_the_table(given_fault: Fault, attempt: int, ambiguous: int, decision: object) -> None:
    assert decide(given_fault, attempt, ambiguous, 0.0) == decision
    too_long = given_fault.kind is PAUSE and decision == StopRun()
    assert decide(given_fault, attempt, ambiguous, 0.0, has_alternative=True) == (FailTask() if too_long else decision)


@pytest.mark.parametrize(
    ("met", "attempt", "rules", "decision"),
    [
        (fault(RETRY), 1, {"attempts": 1}, FailTask()),
        (fault(RETRY), 2, {"attempts": 3}, RetryAfter(1.0)),
        (fault(RETRY), 3, {"attempts": 3}, FailTask()),
        (fault(RETRY, retries=2), 1, {"attempts": 1}, FailTask()),
        (fault(RETRY, retries=2), 3, {"attempts": 9}, FailTask()),
        (fault(RETRY), 9, {"attempts": 20}, RetryAfter(30.0)),
        (fault(RETRY), 1, {"delay": 2.0}, RetryAfter(2.0)),
        (fault(RETRY), 3, {"delay": 2.0}, RetryAfter(8.0)),
        (fault(RETRY), 3, {"delay": 2.0, "max_delay": 5.0}, RetryAfter(5.0)),
        (fault(RETRY), 3, {"delay": 0.0}, RetryAfter(0.0)),
        (fault(RETRY, delay=70.0), 1, {"max_delay": 5.0}, RetryAfter(70.0)),  # what a server asks for
        (fault(PAUSE), 20, {"attempts": 1, "max_delay": 5.0}, RetryAfter(5.0, lane=True)),  # is no attempt
        (fault(PAUSE), 21, {"attempts": 50}, FailTask()),
        (fault(RETRY, ambiguous=True), 3, {"attempts": 50}, FailTask()),
    ],
)
def test_a_stages_own_rules(met: Fault, attempt: int, rules: dict[str, Any], decision: object) -> None:
    ambiguous = attempt if met.ambiguous else 0
    assert decide(met, attempt, ambiguous, 0.0, RetryRules(**rules)) == decision


def test_a_row_does_not_wait_for_ever_in_total() -> None:
    pause = fault(PAUSE, delay=MAX_RETRY_DELAY_S)
    last = RetryAfter(MAX_RETRY_DELAY_S, lane=True)
    assert decide(pause, 4, 0, 0.0, waited=MAX_ROW_WAIT_S - MAX_RETRY_DELAY_S) == last
    assert decide(pause, 5, 0, 0.0, waited=MAX_ROW_WAIT_S) == FailTask()


delays = st.none() | st.floats(0, MAX_RETRY_DELAY_S)


@given(st.sampled_from([RETRY, PAUSE]), delays, st.integers(1, 5), st.floats(0, 1, exclude_max=True))
def test_nobody_comes_back_early_or_much_later(
    kind: FaultKind, delay: float | None, attempt: int, spread: float
) -> None:
    again = decide(fault(kind, delay=delay), attempt, 0, spread)
    assert isinstance(again, RetryAfter)
    least = delay or 2.0 ** (attempt - 2)
    assert least <= again.delay <= least + min(least, 5.0) / 4


@given(
    st.sampled_from(list(FaultKind)), st.none() | st.floats(0, 1e6), st.none() | st.integers(0, 100),
    st.integers(0, 30), st.booleans(),
)  # fmt: skip
def test_every_task_ends(
    kind: FaultKind, delay: float | None, retries: int | None, attempt: int, ambiguous: bool
) -> None:
    most = retries if retries is not None else MAX_RATE_LIMIT_RETRIES
    given_fault = fault(kind, delay=delay, retries=retries, ambiguous=ambiguous)
    assert not isinstance(decide(given_fault, most + 1 + attempt, 0, 0.5), RetryAfter)


@pytest.mark.parametrize(
    ("repair", "models", "calls", "billed"),
    [(0, 1, 26, 4), (1, 1, 52, 5), (3, 1, 104, 7), (0, 3, 78, 12), (1, 3, 156, 15), (3, 3, 312, 21)],
)
def test_the_most_calls_of_a_task(repair: int, models: int, calls: int, billed: int) -> None:
    assert max_calls(repair, models) == calls
    assert max_calls(repair, models, 1) == calls * 21 / 26
    assert max_billed_calls(repair, models) == billed


faults = st.builds(
    fault, st.sampled_from([RETRY, PAUSE, TASK]), delay=st.just(0.0), retries=st.none() | st.integers(0, 2),
    ambiguous=st.booleans(),
)  # fmt: skip


@given(st.lists(faults, min_size=40, max_size=40))
def test_one_question_is_never_sent_more_often_than_the_cap_says(coming: list[Fault]) -> None:
    seen: dict[FaultKind, int] = {}
    sent = ambiguous = 0
    for met in coming:
        sent += 1
        seen[met.kind] = seen.get(met.kind, 0) + 1
        ambiguous += met.ambiguous
        if isinstance(decide(met, seen[met.kind], ambiguous, 0.0), FailTask):
            break
    assert sent <= max_calls(0, 1)
    assert ambiguous <= max_billed_calls(0, 1) - 1


def test_a_fault_that_stops_a_run_says_when_to_go_on_where_the_server_told_it() -> None:
    day = fault(FATAL, delay=86_400.0)
    assert "it asks for a pause of 1,440 minutes, until 20" in with_end_of_pause(day, 1.8e9).message
    assert with_end_of_pause(fault(FATAL, delay=60.0), 1.8e9).message == "trouble"
    assert with_end_of_pause(fault(FATAL), 1.8e9).message == "trouble"
