"""Killed after a batch was created and before that was stored: it runs and costs, and only its provider knows of it.

It is found by what the provider echoes of it, however the provider's list looks; until it can be known nothing is
created again; and where it never can be known, a human is asked.
"""

import json
import signal
import sqlite3
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import APIS, ROWS, STAGE, BatchCase, Start, assert_ended
from support.processes import asleep, asleep_at, ended, killed
from support.server import simulator
from support.soak import few

DAY_LONG = 80_000.0
RUN = ("run", "-a", "reviews")
CREATED, NOT_CREATED = "provider.create.after", "provider.create.before"
by_key_or_count = pytest.mark.parametrize("api", ["openai", "anthropic"])
everywhere = pytest.mark.parametrize("api", APIS)
by_key = pytest.mark.parametrize("api", few(["openai", "azure"], 2))


def foreign(case: BatchCase, api: str, requests: int = ROWS) -> None:
    """A batch of somebody else's in the same account."""
    folder = case.project.root.with_name(f"theirs-{case.account()['created']}")
    BatchCase(folder, case.server, api, rows=requests).submit()


@everywhere
def test_an_orphan_is_adopted_before_its_provider_has_finished_it(api: str, case_at: Start) -> None:
    """Case 5, at all providers."""
    case = case_at(api, seconds=DAY_LONG)
    case.killed(CREATED, *RUN)
    assert_ended(case.run())
    assert case.steps() == ["SUBMITTED"]
    case.advance(DAY_LONG)
    case.finish("retrieve")
    case.assert_whole()


@by_key_or_count
def test_an_orphan_that_the_list_shows_late_is_waited_for(api: str, case_at: Start) -> None:
    """Case 9a: no early create, whichever command looks and however often."""
    case = case_at(api, {"kind": "batch_list_lag", "seconds": 3600}, grace="10m")
    case.killed(CREATED, *RUN)
    for command, said in ((RUN, "is known in"), (("batch", "retrieve"), ""), (RUN, ""), (("doctor",), "is looked for")):
        ran = case.agac(*command)
        assert (ran.code in (0, 75), case.steps()) == (True, ["CREATE_INTENT"])
        assert said in ran.out
    case.advance(3600)
    case.finish("retrieve")
    case.assert_whole()


@pytest.fixture
def undecided(case_at: Start) -> BatchCase:
    """The list of this server has no pages, and the orphan is not on it: nothing can be proved."""
    case = case_at("openai", {"kind": "batch_list_lag", "seconds": 3600, "at": [1]})
    prices = {"small": {"input": 1.0, "output": 2.0}}
    case.connect("openai", batch={"api": "openai", "pages": False}, prices=prices)
    case.killed(CREATED, *RUN)
    ran = case.run()
    assert (ran.code, case.steps()) == (75, ["NEEDS_HUMAN"])
    told = case.agac("doctor")
    for way_out in ("agac doctor --adopt ID --batch-id 1", "agac doctor --resubmit --batch-id 1"):
        assert way_out in ran.out + ran.err
        assert way_out in told.out
    assert "; its requests cost up to $0.0" in told.out, "and would be billed twice"
    assert (case.run().code, case.retrieve().code, told.code, case.account()["posts"]) == (75, 75, 75, 1)
    return case


def test_where_nothing_can_be_proved_a_human_names_the_orphan(undecided: BatchCase) -> None:
    """Case 9b."""
    for wrong in ("batch_nothing", "", "file-1"):
        refused = undecided.agac("doctor", "--adopt", wrong)
        assert (refused.code, refused.err[:7], undecided.steps()) == (2, "error: ", ["NEEDS_HUMAN"]), wrong
    (orphan,) = listed_later(undecided)
    assert orphan in assert_ended(undecided.agac("doctor", "--adopt", orphan)).out
    undecided.finish("retrieve")
    undecided.assert_whole()


@pytest.mark.parametrize("moment", ["journal.submitted.before", "journal.submitted.after"])
def test_a_decision_that_is_killed_is_decided_or_not(moment: str, undecided: BatchCase) -> None:
    """Case 9b, with a kill. Decided twice it is decided once."""
    (orphan,) = listed_later(undecided)
    undecided.killed(moment, "doctor", "--adopt", orphan)
    again = undecided.agac("doctor", "--adopt", orphan)
    assert again.code == (0 if moment.endswith("before") else 2), again
    undecided.finish("retrieve")
    undecided.assert_whole()


def test_an_orphan_that_shows_up_while_a_human_gives_it_up_is_taken_in(undecided: BatchCase) -> None:
    """Case 9c, with luck: its answers are there, so nothing is asked again."""
    listed_later(undecided)
    assert_ended(undecided.agac("doctor", "--resubmit"))
    undecided.finish("retrieve")
    assert undecided.project.query("SELECT count(*) FROM row WHERE state = 1") == [(ROWS,)]
    assert (undecided.account()["posts"], undecided.account()["duplicates"]) == (1, 0)
    undecided.assert_clean()


def test_an_orphan_that_a_human_gave_up_is_reported_when_it_shows_up(undecided: BatchCase) -> None:
    """Case 9c: paid twice, and known."""
    assert_ended(undecided.agac("doctor", "--resubmit"))
    undecided.finish("retrieve")
    undecided.assert_whole(creates=2, twice=ROWS)
    (orphan,) = set(listed_later(undecided)) - {
        name for (name,) in undecided.project.query("SELECT provider_id FROM batch")
    }
    told = undecided.agac("doctor")
    assert f"had it as {orphan}" in told.out, told.out


def listed_later(case: BatchCase) -> list[str]:
    """The batches at the provider, once its list shows all of them."""
    case.advance(3600)
    with urllib.request.urlopen(f"{case.server.base_url}/batches", timeout=30) as answer:
        return [str(one["id"]) for one in json.load(answer)["data"]]


@by_key_or_count
def test_an_orphan_on_a_later_page_of_the_list_is_found(api: str, case_at: Start) -> None:
    """Case 10: three newer batches, one on each page."""
    case = case_at(api, {"kind": "batch_paged", "size": 1})
    case.killed(CREATED, *RUN)
    for _ in range(3):
        foreign(case, api, requests=3)
    assert_ended(case.run())
    assert case.account()["created"] == 4
    case.finish("retrieve")
    assert (case.account()["created"], case.account()["charged"]) == (4, ROWS + 9)


@pytest.mark.parametrize("ends", ["before it is looked for", "after it is looked for"])
@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_a_foreign_batch_of_the_same_size_is_not_taken_for_an_orphan(first: str, ends: str, case_at: Start) -> None:
    """Case 12: nothing but its results tells it from ours; it is left alone."""
    case = case_at("anthropic", seconds=DAY_LONG)
    if first == "theirs":
        foreign(case, "anthropic")
    case.killed(CREATED, *RUN)
    if first == "ours":
        foreign(case, "anthropic")
    if ends == "after it is looked for":
        assert_ended(case.run())
        assert case.account()["posts"] == 2
    case.advance(DAY_LONG)
    case.finish("retrieve")
    account = case.account()
    assert (account["posts"], account["created"], account["cancelled"]) == (2, 2, 0)
    assert account["charged"] == 2 * ROWS
    assert [one["ok"] for one in case.project.envelopes()] == [True] * ROWS
    case.assert_clean()


@pytest.mark.parametrize("ends", ["before it is looked for", "after it is looked for"])
def test_an_orphan_is_known_by_its_results_whatever_its_counts_say(ends: str, case_at: Start) -> None:
    """8 of 12 are counted: a batch that is ours all the same, and paid."""
    case = case_at("anthropic", {"kind": "batch_counts_short"}, seconds=DAY_LONG)
    case.killed(CREATED, *RUN)
    if ends == "after it is looked for":
        assert_ended(case.run())
        assert case.account()["posts"] == 1
    case.advance(DAY_LONG)
    case.finish("retrieve")
    case.assert_whole()


@pytest.mark.parametrize("ends", ["at once", "later"])
def test_a_foreign_batch_is_not_taken_for_one_that_was_never_created(ends: str, case_at: Start) -> None:
    """Case 12: ours is not there at all. What is there is ours at most until its results are there."""
    case = case_at("anthropic", seconds=DAY_LONG if ends == "later" else 0.0)
    case.killed(NOT_CREATED, *RUN)
    foreign(case, "anthropic")
    for _ in range(4):
        case.advance(DAY_LONG)
        assert case.run().code == 0
        if case.is_whole():
            break
    account = case.account()
    assert (account["posts"], account["created"], account["cancelled"]) == (2, 2, 0)
    assert account["charged"] == 2 * ROWS
    case.assert_clean()


@pytest.mark.parametrize("moment", [CREATED, NOT_CREATED])
def test_a_batch_in_doubt_holds_back_others_that_could_be_taken_for_it(moment: str, case_at: Start) -> None:
    """Case 12, both being ours: at most one create at a time is in doubt, so that what shows up is that one."""
    case = case_at("anthropic", seconds=DAY_LONG)
    case.project.workflow("other", stages=[{**STAGE, "prompt": "Other: ${text}"}], defaults=case.defaults)
    case.killed(moment, *RUN)
    posts = case.account()["posts"]
    assert_ended(case.agac("run", "-a", "other"))
    assert (case.account()["posts"], case.steps()) == (posts, ["CREATE_INTENT", "BUILT"])
    assert_ended(case.run())
    assert_ended(case.agac("run", "-a", "other"))
    assert case.steps() == ["SUBMITTED", "SUBMITTED"]
    case.advance(DAY_LONG)
    for workflow in ("reviews", "other"):
        assert_ended(case.agac("run", "-a", workflow))
    account = case.account()
    assert (account["posts"], account["charged"], account["duplicates"]) == (2, 2 * ROWS, 0)
    case.assert_clean()


@by_key
def test_an_orphan_without_our_name_is_found_by_its_input(api: str, case_at: Start) -> None:
    """Case 14: the server does not echo metadata."""
    case = case_at(api, {"kind": "batch_no_metadata"})
    case.killed(CREATED, *RUN)
    case.finish("run")
    case.assert_whole()


@by_key_or_count
def test_polling_that_is_killed_again_and_again_writes_nothing(api: str, case_at: Start) -> None:
    """Case 15."""
    case = case_at(api, seconds=DAY_LONG)
    case.submit()
    before = case.project.query("SELECT state, attempt, provider_id, submitted_at FROM batch")
    for moment in ("provider.look.before", "provider.look.after", "journal.seen.after"):
        case.killed(moment, "batch", "retrieve")
        assert case.retrieve().code == 75
    assert case.project.query("SELECT state, attempt, provider_id, submitted_at FROM batch") == before
    assert case.account()["calls"].get("list", 0) == 0
    case.advance(DAY_LONG)
    case.finish("retrieve")
    case.assert_whole()


@by_key_or_count
def test_an_orphan_of_another_key_is_a_humans_matter(api: str, case_at: Start) -> None:
    """Case 34 (b), before the id was known: with another key the list proves nothing, so nothing is created."""
    case = case_at(api, {"kind": "batch_list_lag", "seconds": 3600})
    case.connect(api, api_key="${MY_KEY}")
    assert case.agac(*RUN, kill=CREATED, env={"MY_KEY": "sk-first"}).code == -9
    ran = case.run(env={"MY_KEY": "sk-other"})
    assert (ran.code, case.steps()) == (75, ["NEEDS_HUMAN"]), f"{ran.out}{ran.err}"
    assert "another key" in ran.out + ran.err
    case.advance(3600)
    assert (case.agac("doctor", env={"MY_KEY": "sk-other"}).code, case.account()["posts"]) == (75, 1)
    assert_ended(case.agac("doctor", env={"MY_KEY": "sk-first"}))
    assert_ended(case.retrieve(env={"MY_KEY": "sk-first"}))
    case.assert_whole()


@pytest.mark.parametrize(
    ("api", "moment"), few([(api, moment) for moment in ("before", "after") for api in ("openai", "anthropic")], 3)
)
def test_a_provider_that_falls_over_meanwhile_changes_nothing(api: str, moment: str, tmp_path: Path) -> None:
    """The simulator is ended and started again over its state; ours is killed around its create."""
    flags = ("--state", str(tmp_path / "state.db"), "--batch-seconds", str(DAY_LONG))
    with ExitStack() as stack:
        with simulator(*flags) as first:
            case = BatchCase(tmp_path / "project", first, api)
            case.killed(f"provider.create.{moment}", *RUN)
        assert case.steps() == ["CREATE_INTENT"]
        stack.enter_context(simulator(*flags, "--port", first.base_url.removesuffix("/v1").rpartition(":")[2]))
        assert_ended(case.run())
        case.advance(DAY_LONG)
        case.finish("retrieve")
        case.assert_whole()


@pytest.mark.parametrize("moment", few(["before:1", "after:1", "before:2", "after:2"], 2, 1))
def test_results_that_are_half_taken_in_are_counted_once(moment: str, case_at: Start) -> None:
    """Case 18, with more results than one commit takes: rows, calls, tokens and dollars."""
    case = case_at("openai", rows=1100)
    case.connect("openai", prices={"small": {"input": 1.0, "output": 10.0, "batch": 0.5}})
    case.submit()
    case.killed(f"results.put.{moment}", "batch", "retrieve")
    case.finish("retrieve")
    case.assert_whole()
    account = case.account()
    asked, answered = account["prompt_tokens"], account["completion_tokens"]
    dollars = pytest.approx((asked * 1.0 + answered * 10.0) * 0.5 / 1e6)
    summed = "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cost) FROM attempt"
    assert case.project.query(summed) == [(1100, asked, answered, dollars)]
    ((counts, cost),) = case.project.query("SELECT counts, cost FROM batch")
    assert (json.loads(counts)["done"], cost) == (1100, dollars)


@pytest.mark.parametrize("prices", [{}, {"prices": {"small": {"input": 1.0, "output": 10.0}}}])
def test_a_batch_that_is_half_taken_in_tells_all_its_cost(prices: dict[str, Any], case_at: Start) -> None:
    """What is held for lines that never came is part of it; and no price is not a price of 0."""
    case = case_at("openai", {"kind": "batch_omit", "lines": [2, 5], "at": [1]})
    case.connect("openai", **prices)
    case.submit()
    case.killed("journal.ingested.before", "batch", "retrieve")
    case.finish("run")
    told = case.project.query("SELECT sum(cost), count(*) - count(cost) FROM batch")
    spent = case.project.query("SELECT sum(cost + held_cost) FROM counter")[0][0]
    assert told == ([(pytest.approx(spent), 0)] if prices else [(None, 2)])


@pytest.mark.parametrize("moment", few(["before:1", "amid:1", "after:1", "before:2", "amid:2", "after:2"], 2, 1))
def test_a_kill_between_the_two_files_of_results_loses_neither(moment: str, case_at: Start) -> None:
    """Case 16, with answers and errors: three lines are refused for good."""
    fault = {"kind": "batch_line_status", "status": 400, "lines": [2, 5, 9]}
    case = case_at("openai", fault)
    case.submit()
    case.killed(f"provider.download.{moment}", "batch", "retrieve")
    case.retrieve()
    account = case.account()
    assert (account["posts"], account["charged"], account["duplicates"]) == (1, 7, 0)
    assert case.project.query("SELECT state, count(*) FROM row GROUP BY state ORDER BY state") == [(1, 7), (2, 3)]
    case.assert_clean()


def test_of_two_that_submit_at_once_one_works(case_at: Start) -> None:
    """Case 39."""
    case = case_at("openai")
    both = [case.project.start(*RUN) for _ in range(2)]
    assert sorted(ended(process).code for process in both) in ([0, 0], [0, 1])
    case.finish("retrieve")
    case.assert_whole()


@by_key_or_count
def test_one_that_slept_while_another_took_its_batch_over_writes_nothing(api: str, case_at: Start) -> None:
    """Case 39: it wakes with the answer to its create, which the other has found and taken in long since."""
    case = case_at(api)
    sleeper = case.project.start(*RUN, env=asleep_at(f"{CREATED}:1"))
    try:
        asleep(sleeper)
        with sqlite3.connect(case.project.root / ".agac/agac.db", timeout=60) as store:
            store.execute("UPDATE lease SET heartbeat_at = heartbeat_at - 3600")
        store.close()
        case.finish("run")
        before = case.project.query("SELECT * FROM batch")
        sleeper.send_signal(signal.SIGCONT)
        ran = ended(sleeper)
    finally:
        if sleeper.poll() is None:
            killed(sleeper)
    assert ran.code == 1
    assert "another process took over workflow 'reviews'" in ran.err
    assert case.project.query("SELECT * FROM batch") == before
    case.assert_whole()
