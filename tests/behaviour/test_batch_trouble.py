"""Batches at a provider that drops, refuses, forgets and comes late, nobody being killed: every row once, paid once.

The numbers of cases are those of the list of crash points that agac's design refers to.
"""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from support.batchcase import APIS, ROWS, Start, assert_ended
from support.batched import store
from support.batchrun import Make, advance
from support.canned import Answer, Canned, canned, completion
from support.processes import ended, interrupt, wait_until
from support.project import ProjectFolder, Ran
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
    assert (agac.retrieve(project=case.project.root).exit_code, case.steps()) == (75, ["NEEDS_HUMAN"])
    assert "agac doctor --resubmit" in case.retrieve().err
    assert case.run().code == 75
    assert case.account()["posts"] == 1
    assert_ended(case.agac("doctor", "--resubmit"))
    case.finish("retrieve")
    case.assert_whole(creates=2, twice=ROWS)


def test_results_that_cannot_be_fetched_are_no_dead_end(case_at: Start) -> None:
    """As after a backup was put back that knows of files which were deleted since: `batch status` says the way out."""
    case = case_at("anthropic")
    case.submit()
    case.killed("provider.download.before", "batch", "retrieve")
    assert "decision" in case.agac("doctor", "--resubmit", "--batch-id", "1", code=2).err, "they can be fetched"
    with store(case.project) as database:
        database.execute("UPDATE batch SET note = 'its results could not be fetched: local answered 404'")
    for moment in ("journal.step.before", "journal.step.after", None):  # killed between its two commits too
        way_out = commands(case.agac("batch", "status", code=0))[-1]
        assert way_out == ["doctor", "--resubmit", "--batch-id", "1"]
        case.killed(moment, *way_out) if moment else case.agac(*way_out, code=0)
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


@pytest.fixture
def no_batches() -> Iterator[Canned]:
    """A server that answers calls and has neither files nor batches."""
    with canned() as server:
        server.answers("POST /chat/completions", Answer(completion("yes")))
        yield server


def refused_by(server: Canned, folder: ProjectFolder) -> Ran:
    """A run of three rows in batches at a server that has none."""
    folder.configure(server.base_url, batch="openai")
    folder.workflow(rows=3, stages=[SAY], defaults={"run_mode": "batch"})
    return folder.agac("run", "-a", "reviews", code=1)


SAY = {"name": "say", "prompt": "Say ${text}"}


def commands(ran: Ran) -> list[list[str]]:
    """Every command that is printed, with the words that follow `agac`."""
    found = re.findall(r"`agac ([^`]+)`|with: agac ([^;\n]+?)\.?(?=[;\n]|$)", ran.out + ran.err)
    return [shlex.split(quoted or plain) for quoted, plain in found]


@pytest.mark.parametrize("way_out", ["flag", "run_mode", "batch: none", "cancelled"])
def test_a_server_without_batches_is_no_dead_end(no_batches: Canned, project: ProjectFolder, way_out: str) -> None:
    """Each way out that is printed leads out, though a batch was not sent; nothing is sent there before."""
    ran = refused_by(no_batches, project)
    assert "run it with --run-mode sync, or write run_mode: sync" in ran.err
    assert commands(ran) == [["run", "-a", "reviews"]], "nothing is to be retrieved"
    for look in (["batch", "status"], ["batch", "list"]):
        assert ". Does http" in project.agac(*look, code=0).out, "the reason is kept"
    status = project.agac("status")
    assert "Run 1 stopped: local answered 404" in status.out
    assert commands(status) == [["run", "-a", "reviews"]]
    assert project.agac("doctor").code == 0
    if way_out == "cancelled":
        cancelled = project.agac("batch", "cancel", code=0)
        assert "Dropped batch 1: 3 requests, none sent" in cancelled.out
        assert commands(cancelled) == [["run", "-a", "reviews"]]
    if way_out == "batch: none":
        project.configure(no_batches.base_url, batch="none")
        retrieved = project.agac("batch", "retrieve")
        assert (retrieved.code, "`agac run` resumes them" in retrieved.err) == (75, True)
        assert "write `run_mode: sync` there" in project.agac("run", "-a", "reviews", code=2).err
    if way_out != "flag":
        project.workflow(stages=[SAY])
    project.agac("run", "-a", "reviews", *(["--run-mode", "sync"] if way_out == "flag" else []), code=0)
    assert [one["ok"] for one in project.envelopes()] == [True] * 3
    assert project.query("SELECT state FROM batch") == [("NOT_CREATED",)]
    assert no_batches.posts().count("/v1/chat/completions") == 3
    assert project.agac("doctor", code=0).out.startswith("All is well")


@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic"])
def test_the_way_out_is_one_of_the_dialect(project: ProjectFolder, dialect: str) -> None:
    """What is proposed is taken by the next command."""
    row = {"dialect": dialect, "base_url": "http://127.0.0.1:1/v1"}
    project.configure(**row)
    project.workflow(rows=1, stages=[SAY], defaults={"run_mode": "batch"})
    (problem,) = agac.validate("reviews", project=project.root).problems
    found = re.search(r"`providers: \{local: \{batch: (\w+)\}\}`", str(problem))
    assert found is not None
    assert found[1] == ("anthropic" if dialect == "anthropic" else "openai")
    project.configure(**row, batch=found[1])
    assert agac.validate("reviews", project=project.root).problems == []


@pytest.mark.parametrize("status", [400, 422, 404, 405])
def test_the_doctor_ends_well_where_files_are_not_listed_by_purpose(
    no_batches: Canned, project: ProjectFolder, status: int
) -> None:
    """A server may refuse the filter, or have no list at all; with a list, its leftovers are found."""
    refused_by(no_batches, project)
    (intent,) = project.query("SELECT intent FROM batch")[0]
    project.agac("batch", "cancel", code=0)

    names = {"f-1": (f"agac-{intent}.jsonl", "batch"), "f-2": ("agac-notes.jsonl", "assistants")}
    files = [{"id": id_, "filename": name, "purpose": why} for id_, (name, why) in names.items()]
    refused, listed = Answer({"error": {"message": "unknown purpose"}}, status), Answer({"data": files})
    no_batches.answers("GET /files", *([refused, listed] * 2 if status in (400, 422) else [refused]))
    ran = project.agac("doctor", code=0)
    assert ("leftover file agac-" in ran.out) is (status in (400, 422))
    assert "f-2" not in ran.out
    assert commands(ran) == []


def test_what_is_finished_of_a_cancelled_batch_is_taken_alone(batches_at: Make) -> None:
    """Its own run is meant by what is printed, whichever submitted last; nothing is sent with --no-submit."""
    project = batches_at(seconds=100)
    project.submit(SAY, {"name": "then", "prompt": "Then ${say}"})
    project.submit({**SAY, "prompt": "Other ${text}"}, name="others")
    advance(project.server, 40)
    take, again = commands(project.agac("batch", "cancel", "1", code=0))
    assert take == ["batch", "retrieve", "1", "--no-submit"]
    assert "Retrieved batch 1 (" in project.agac(*take, code=0).out
    before = project.charged()
    assert before == (2, 8)
    assert project.query("SELECT count(*) FROM result") == [(4,)]
    assert project.steps() == ["CLEANED", "SUBMITTED"]
    assert (project.agac(*take).code, project.charged()) == (75, before)
    assert project.agac(*again, code=0).out.count("Submitted batch") == 2
    assert project.doubles() == 0
