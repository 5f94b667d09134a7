"""Which failed tasks, replicas and rows are not asked again: the table that runs and plans share."""

from typing import Any

import pytest

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError
from agac.core.types import Outcome
from agac.engine.decide.failures import (
    FURTHER_RUNS,
    binding_failure,
    is_shared,
    kept_failure,
    stays_failed,
    votes_of_replies,
    was_asked_enough,
)
from agac.spec.operations import Vote
from agac.spec.workflow import Stage
from agac.store.rows import PriorTask, State, StoredRow

STAGE = Stage(name="one", index=0, needs=())
REFUSED = RowError(ErrorType.REFUSED, "no")
BROKEN = RowError(ErrorType.PROVIDER_ERROR, "trouble")


def failed(error: RowError | None = REFUSED, failures: int = 1, fingerprint: bytes = b"a") -> PriorTask:
    return PriorTask(1, 0, fingerprint, Outcome.FAILED if error else Outcome.DONE, None, error, failures)


def row(error_type: ErrorType = ErrorType.REFUSED, stage: str | None = "one") -> StoredRow:
    return StoredRow(1, "r", 0, 1, b"", State.FAILED, error_type, "", stage, 1, None)


@pytest.mark.parametrize("error", [None, *ErrorType])
def test_only_answers_are_left_and_only_after_two_further_runs(error: ErrorType | None) -> None:
    for failures in (0, 1, FURTHER_RUNS, FURTHER_RUNS + 1, FURTHER_RUNS + 5):
        prior = failed(RowError(error, "") if error else None, failures)
        assert was_asked_enough(prior) == (error in ANSWER_FAILURES and failures > FURTHER_RUNS)


OFTEN = failed(failures=FURTHER_RUNS + 1)


@pytest.mark.parametrize(
    ("prior", "fingerprint", "asks_again", "row_stays", "kept"),
    [
        (None, b"a", False, True, None),
        (failed(None), b"a", False, True, None),  # it has an answer
        (failed(), b"a", False, False, None),  # an ordinary run tries it again
        (failed(), b"a", False, True, REFUSED),
        (failed(), b"b", False, True, None),  # another question
        (failed(), b"a", True, True, None),  # a retry chose it, or a batch brought something
        (OFTEN, b"a", False, False, REFUSED),
        (OFTEN, b"b", False, False, None),
        (OFTEN, b"a", True, False, None),
        (failed(BROKEN, 9), b"a", False, False, None),  # no reply of a model
        (failed(BROKEN, 9), b"a", False, True, BROKEN),
    ],
)
def test_failures_of_tasks(
    prior: PriorTask | None, fingerprint: bytes, asks_again: bool, row_stays: bool, kept: RowError | None
) -> None:
    assert kept_failure(prior, fingerprint, asks_again=asks_again, row_stays=row_stays) == kept


@pytest.mark.parametrize(
    ("failed_row", "tasks", "stages", "stays"),
    [
        (row(), [failed()], {"one"}, False),
        (row(), [failed()], {"two"}, True),  # its stage is not tried again
        (row(stage=None), [], set(), False),  # the input was wrong
        (row(), [failed(BROKEN), OFTEN], {"one"}, True),  # one of its branches was asked often enough
        (row(ErrorType.REJECTED), [failed(RowError(ErrorType.REJECTED, ""))], {"one"}, True),
    ],
)
def test_failed_rows(failed_row: StoredRow, tasks: list[PriorTask], stages: set[str], stays: bool) -> None:
    assert stays_failed(failed_row, tasks, stages.__contains__) == stays


@pytest.mark.parametrize(
    ("error", "at", "of_row", "binds"),
    [
        (REFUSED, 5.0, 7, True),
        (REFUSED, 5.0, 8, True),  # of another row: the same question
        (REFUSED, 4.9, 7, False),  # too old
        (BROKEN, 5.0, 7, False),  # no reply
        (RowError(ErrorType.CHECK_FAILED, ""), 5.0, 8, True),  # the checks look at nothing but the result
    ],
)
def test_failures_of_replicas(error: RowError, at: float, of_row: int, binds: bool) -> None:
    assert binding_failure(STAGE, 7, 5.0, {of_row: (at, error)}) == (error if binds else None)


LEAD = Vote("label", lead=2)


@pytest.mark.parametrize(
    ("replies", "vote", "votes"),
    [
        (["a", "b"], None, ["a", "b"]),
        (["a", REFUSED], LEAD, ["a", None]),
        (["a", REFUSED], Vote("label"), RowError(ErrorType.REFUSED, "replica 2: no")),
        (["a", REFUSED], None, RowError(ErrorType.REFUSED, "replica 2: no")),
        ([BROKEN, REFUSED], LEAD, RowError(ErrorType.PROVIDER_ERROR, "replica 1: trouble")),
        ([], LEAD, []),
    ],
)
def test_replies_become_votes(replies: list[Any], vote: Vote | None, votes: Any) -> None:
    assert votes_of_replies(replies, vote) == votes


@pytest.mark.parametrize(
    ("kind", "has_row_timeout", "shared"),
    [
        (ErrorType.REFUSED, True, True),
        (ErrorType.BUDGET_EXCEEDED, False, False),
        (ErrorType.TIMEOUT, True, False),  # the row may have spent its time before
        (ErrorType.TIMEOUT, False, True),
    ],
)
def test_which_failures_equal_tasks_share(kind: ErrorType, has_row_timeout: bool, shared: bool) -> None:
    assert is_shared(STAGE, RowError(kind, ""), has_row_timeout=has_row_timeout) == shared
