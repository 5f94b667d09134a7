"""What becomes of a task whose line brought no result, and which step of a batch's life may follow which."""

from itertools import pairwise, product

import pytest

from agac.core.errors import ErrorType, RowError
from agac.core.types import FaultKind
from agac.engine.batch.rounds import AttemptCounts, MissingAnswer, NextStep, Then, missing_error, next_step
from agac.spec.rules import BatchRules
from agac.store.batches import AT_PROVIDER, WAITING, BatchStep, may_follow

LACKS: tuple[MissingAnswer, ...] = ("expired", "cancelled", "unanswered", "missing", "malformed")
KINDS = {
    "expired": ErrorType.TIMEOUT, "cancelled": ErrorType.BATCH_LOST, "unanswered": ErrorType.PROVIDER_ERROR,
    "missing": ErrorType.BATCH_LOST, "malformed": ErrorType.BATCH_LOST,
}  # fmt: skip
LAST = 3
RETRIES = ("batch", "sync", "fail")


def asked(round_: int = 1, models: int = 0, repairs: int = 0) -> AttemptCounts:
    return AttemptCounts(round_, models, repairs)


def rules(retry: str) -> BatchRules:
    return BatchRules(retry=retry, max_rounds=LAST)  # type: ignore[arg-type]


def expected(retry: str, round_: int, models: int) -> Then | None:
    """Another round as the workflow says, while there is one; then the next model; then the task has failed."""
    if retry != "fail" and round_ < LAST:
        return "batch" if retry == "batch" else "sync"
    return "fallback" if models else None


@pytest.mark.parametrize("lack", LACKS)
def test_a_task_that_was_not_answered(lack: MissingAnswer) -> None:
    for retry, round_, models in product(RETRIES, range(1, LAST + 2), (0, 1, 2)):
        attempts = asked(round_, models, repairs=5)
        found = next_step(missing_error(lack, "as it says"), attempts, rules(retry), may_pass=True)
        assert found.then == expected(retry, round_, models), (retry, round_, models)
        assert found.error.type is KINDS[lack]
        assert "as it says" in found.error.message
        out_of_rounds = retry != "fail" and round_ >= LAST
        assert (f"(after {round_} rounds)" in found.error.message) == out_of_rounds, (retry, round_, models)


@pytest.mark.parametrize("kind", FaultKind)
def test_a_line_that_holds_an_error(kind: FaultKind) -> None:
    may_pass = kind in (FaultKind.RETRY, FaultKind.PAUSE)
    error = RowError(ErrorType.RATE_LIMITED, "slow down")
    for retry, round_, models in product(RETRIES, (1, 2, LAST), (0, 1)):
        found = next_step(error, asked(round_, models), rules(retry), may_pass=may_pass)
        other = "fallback" if models else None
        assert found.then == (expected(retry, round_, models) if may_pass else other), (retry, round_, models)
        assert found.error.type is ErrorType.RATE_LIMITED
        assert found.error.message.startswith("slow down")


ANSWER_ERRORS = (ErrorType.SCHEMA_MISMATCH, ErrorType.REFUSED, ErrorType.TRUNCATED, ErrorType.FILTERED)


@pytest.mark.parametrize("type_", ANSWER_ERRORS)
def test_a_reply_that_is_no_result(type_: ErrorType) -> None:
    error = RowError(type_, "not so")
    for retry, models, repairs in product(RETRIES, (0, 1), (0, 1, 2)):
        found = next_step(error, asked(LAST, models, repairs), rules(retry))
        quoted = type_ is ErrorType.SCHEMA_MISMATCH and repairs > 0 and retry != "fail"
        other = "fallback" if models else None
        assert found == NextStep("repair" if quoted else other, error), (retry, models, repairs)


def test_one_round_is_said_in_the_singular() -> None:
    found = next_step(missing_error("missing"), asked(1), BatchRules(max_rounds=1), may_pass=True)
    assert found == NextStep(
        None, RowError(ErrorType.BATCH_LOST, "the batch results have no line for this request (after 1 round)")
    )


ENDS = {BatchStep.CLEANED, BatchStep.NOT_CREATED, BatchStep.REJECTED}
LIFE = (
    BatchStep.PLANNED, BatchStep.BUILT, BatchStep.UPLOAD_INTENT, BatchStep.UPLOADED, BatchStep.CREATE_INTENT,
    BatchStep.SUBMITTED, BatchStep.TERMINAL, BatchStep.DOWNLOADED, BatchStep.INGESTED, BatchStep.CLEANED,
)  # fmt: skip


def test_a_batch_takes_one_step_after_the_other() -> None:
    assert all(may_follow(before, after) for before, after in pairwise(LIFE))
    assert may_follow(BatchStep.BUILT, BatchStep.CREATE_INTENT)  # where requests go inline
    jumps = {
        (before, after)
        for at, before in enumerate(LIFE)
        for after in LIFE[at + 2 :]
        if may_follow(before, after) and (before, after) != (BatchStep.BUILT, BatchStep.CREATE_INTENT)
    }
    assert jumps == set()


def test_what_may_exist_is_never_declared_absent_and_what_ran_is_ingested() -> None:
    """From where a batch may exist and cost there is no way to `NOT_CREATED` but by proof or by a human. From where
    results are known to exist there is no way to an end past INGESTED, but back to where it was asked for under another
    name, or to a human."""
    may_exist = {BatchStep.CREATE_INTENT, *AT_PROVIDER, BatchStep.INGESTED}
    assert not any(may_follow(step, BatchStep.NOT_CREATED) for step in may_exist)
    assert may_follow(BatchStep.NEEDS_HUMAN, BatchStep.NOT_CREATED)
    assert may_follow(BatchStep.NEEDS_HUMAN, BatchStep.SUBMITTED)
    for step in (BatchStep.TERMINAL, BatchStep.DOWNLOADED, BatchStep.INGESTED):
        assert not any(may_follow(step, end) for end in ENDS - {BatchStep.CLEANED})
    assert [step for step in BatchStep if may_follow(step, BatchStep.CLEANED)] == [BatchStep.INGESTED]
    assert [step for step in BatchStep if may_follow(BatchStep.INGESTED, step)] == [BatchStep.CLEANED]
    assert not WAITING & AT_PROVIDER
    elsewhere = {*ENDS, BatchStep.PLANNED, BatchStep.INGESTED, BatchStep.NEEDS_HUMAN}
    assert WAITING | AT_PROVIDER | elsewhere == set(BatchStep)


def reached(begin: BatchStep) -> set[BatchStep]:
    found = {begin}
    while more := {after for before in found for after in BatchStep if may_follow(before, after)} - found:
        found |= more
    return found


def test_every_step_is_reached_from_the_first_and_leads_to_an_end() -> None:
    assert not any(may_follow(step, step) or may_follow(step, BatchStep.PLANNED) for step in BatchStep)
    assert reached(BatchStep.PLANNED) == set(BatchStep)
    for step in BatchStep:
        assert reached(step) & ENDS, step
        assert (step in ENDS) == (reached(step) == {step})
