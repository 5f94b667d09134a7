"""Batches at a provider that drops, refuses, forgets and comes late, nobody being killed: every row once, paid once.

The numbers of cases are those of the list of crash points that agac's design refers to.
"""

from typing import Any

import pytest
from support.batchcase import APIS, ROWS, Start, assert_ended
from support.processes import ended, interrupt, wait_until
from support.soak import few

import agac

FIRST: dict[str, Any] = {"at": [1]}
CREATE: dict[str, Any] = {"op": "create", **FIRST}
UPLOAD: dict[str, Any] = {"op": "upload", **FIRST}
EVERYWHERE, BY_KEY_OR_COUNT, WITH_FILES = few(list(APIS), 2), ["openai", "anthropic"], few(["openai", "azure"], 2)
FORMS = ["unknown", "null", "not_utf8"]
Trouble = tuple[list[tuple[str, dict[str, Any]]], dict[str, int]]
"""APIs with the fault that each has, and what is counted in the end: posts, files, downloads."""
OVERCOME: dict[str, Trouble] = {
    # whoever sends it again, an SDK by itself too, pays twice
    "6, 45: a create whose answer was lost": (
        [(api, {"kind": "batch_drop_after", **CREATE}) for api in EVERYWHERE], {},
    ),
    "7: a create that failed after all was done": (
        [(api, {"kind": "batch_status", "status": status, "when": "after", **CREATE}) for api, status in few(
            [("openai", 500), ("openai", 503), ("openai", 408), ("openai", 409), ("anthropic", 529),
             ("anthropic", 500)], 2)], {},
    ),
    "8: a create that failed before anything was done": (
        [(api, {**fault, **CREATE}) for api in BY_KEY_OR_COUNT for fault in (
            {"kind": "batch_drop_before"}, {"kind": "batch_status", "status": 500, "when": "before"})], {"posts": 2},
    ),
    "3: an upload whose answer was lost": (
        [(api, {"kind": "batch_drop_after", **UPLOAD}) for api in WITH_FILES], {"files": 1},
    ),
    "an upload that failed": (
        [(api, {"kind": "batch_status", "status": 503, "when": "before", **UPLOAD}) for api in ("openai", "azure")], {},
    ),
    # nothing is asked again for what did not come; Azure has a file of errors, too
    **{f"17: results that were cut short, {api}": (
        [(api, {"kind": "batch_truncate", **FIRST})], {"downloads": 3 if api == "azure" else 2},
    ) for api in EVERYWHERE},
    # where nothing but the results tells batches apart, one line of ours is proof enough
    "25: a line of somebody else's before ours": (
        [(api, {"kind": "batch_foreign_line", "form": form}) for api, form in few(
            [("openai", form) for form in FORMS], 2) + few([("anthropic", form) for form in FORMS], 2, 1)], {},
    ),
    "36: a file that is not found yet": (
        [(api, {"kind": "batch_file_lag", "times": 2}) for api in WITH_FILES], {"posts": 3, "files": 1},
    ),
    "32: a create that came too fast": (
        [(api, {"kind": "batch_status", "status": 429, "retry_after": 0.2, **CREATE}) for api in BY_KEY_OR_COUNT],
        {"posts": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("api", "fault", "counted"),
    [
        pytest.param(api, fault, counted, id=f"{name}, {api}")
        for name, (faults, counted) in OVERCOME.items()
        for api, fault in faults
    ],
)
def test_what_goes_wrong_once_is_overcome_and_nothing_is_paid_twice(
    api: str, fault: dict[str, Any], counted: dict[str, int], case_at: Start
) -> None:
    """The numbers are those of cases. Nothing is sent again before it is proved that it did not come."""
    case = case_at(api, fault)
    case.submit()
    assert case.steps() == ["SUBMITTED"]
    case.finish("retrieve")
    assert case.account()["files"] == counted.get("files", case.account()["files"])
    downloads = case.account()["calls"]["download"]
    assert downloads == counted.get("downloads", downloads)
    for strange in (case.project.root / ".agac/batches").glob("*.strange"):
        strange.unlink()  # it is kept, to be looked at
    case.assert_whole(posts=counted.get("posts"))


@pytest.mark.parametrize("api", BY_KEY_OR_COUNT)
@pytest.mark.parametrize(
    "fault",
    [{"kind": "batch_get_404", "seconds": 60}, {"kind": "batch_status", "op": "poll", "status": 404, "at": [2, 3]}],
    ids=["from the start", "between its end and its results"],
)
def test_a_batch_that_its_provider_does_not_find_is_looked_at_again(
    api: str, fault: dict[str, Any], case_at: Start
) -> None:
    """Case 35: late, or seen as ended and then not found."""
    case = case_at(api, fault)
    case.submit()
    for _ in range(2):
        assert case.retrieve().code in (0, 75)
        assert not case.is_whole()
    case.advance(60)
    case.finish("retrieve")
    case.assert_whole()


@pytest.mark.parametrize("code", ["credit_balance_exhausted", "insufficient_quota"])
def test_without_money_the_run_stops_at_once_and_goes_on_when_there_is_some(code: str, case_at: Start) -> None:
    """Case 33."""
    case = case_at("openai", {"kind": "batch_status", "op": "create", "status": 429, "code": code, "at": [1]})
    ran = case.run()
    assert ran.code == 1
    assert "credit" in ran.err or "quota" in ran.err, ran.err
    assert case.account()["posts"] == 1
    case.submit()
    case.finish("retrieve")
    case.assert_whole(posts=2)


@pytest.mark.parametrize("api", BY_KEY_OR_COUNT)
def test_a_key_that_was_revoked_stops_and_a_new_one_of_the_same_project_goes_on(api: str, case_at: Start) -> None:
    """Case 34 (a)."""
    case = case_at(api)
    case.connect(api, api_key="${MY_KEY}")
    assert_ended(case.run(env={"MY_KEY": "sk-first"}))
    revoked = case.retrieve(env={"MY_KEY": "sk-invalid"})
    assert revoked.code == 1
    assert "key" in revoked.err
    assert_ended(case.retrieve(env={"MY_KEY": "sk-second"}))
    case.assert_whole()


@pytest.mark.parametrize("api", BY_KEY_OR_COUNT)
def test_a_key_of_another_project_sees_no_batch_and_submits_none(api: str, case_at: Start) -> None:
    """Case 34 (b): the batch is not found there, which proves nothing."""
    case = case_at(api, {"kind": "batch_status", "op": "poll", "status": 404, "at": [1, 2, 3, 4]})
    case.connect(api, api_key="${MY_KEY}")
    assert_ended(case.run(env={"MY_KEY": "sk-first"}))
    for _ in range(2):
        assert case.retrieve(env={"MY_KEY": "sk-other"}).code == 75
    for command in (["batch", "status"], ["batch", "list"], ["doctor"]):
        told = case.agac(*command, env={"MY_KEY": "sk-other"})
        assert "sk-" not in told.out + told.err
    assert "check that the key is that of the project which submitted it" in told.out
    assert case.account()["posts"] == 1
    assert_ended(case.retrieve(env={"MY_KEY": "sk-first"}))
    case.assert_whole()


def test_results_that_are_no_longer_kept_are_not_asked_for_again(
    case_at: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 40: they were paid for, so a human decides."""
    monkeypatch.setattr("agac.engine.batch.poll.LATE_FILES", ())
    case = case_at("anthropic")
    case.submit()
    case.advance(30 * 86_400)
    report = agac.batch_retrieve(project=case.project.root)
    assert (report.exit_code, case.steps()) == (75, ["NEEDS_HUMAN"])
    assert "agac doctor --resubmit" in case.retrieve().err
    assert case.run().code == 75
    assert case.account()["posts"] == 1
    assert_ended(case.agac("doctor", "--resubmit"))
    case.finish("retrieve")
    case.assert_whole(creates=2, twice=ROWS)


@pytest.mark.parametrize("op", ["poll", "download"])
def test_a_second_interrupt_gives_up_what_is_asked_of_a_provider(op: str, case_at: Start) -> None:
    """The first one waits for it, as long as it takes: two minutes here. Neither loses anything."""
    case = case_at("openai", {"kind": "batch_slow", "op": op, "seconds": 120, "at": [1]})
    case.submit()
    process = case.project.start("batch", "retrieve")
    wait_until(lambda: case.account()["calls"].get(op, 0) == 1, f"a {op}", process)
    interrupt(process)
    interrupt(process)
    assert ended(process, 30).code == 130
    case.finish("run")
    case.assert_whole()
