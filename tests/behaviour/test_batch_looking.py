"""What `agac batch status` and `list` say of batches, from a store that holds some."""

import re
import time
from typing import Any

import pytest
from support.batched import HOUR, put_batch, store, unsent
from support.project import ProjectFolder

import agac
from agac.cli.batch import list_lines, status_lines


@pytest.fixture
def ran(project: ProjectFolder) -> ProjectFolder:
    """A project with a finished run of ten rows, whose provider is gone by now."""
    project.numbered(10)
    assert project.run(project.workflow()).exit_code == 0
    project.configure("http://127.0.0.1:1/v1", batch="openai")
    return project


def the_status(project: ProjectFolder, batch: str | int | None = None) -> str:
    return "\n".join(status_lines(agac.batch_status(batch, project=project.root)))


def test_without_any_batch_a_sentence_and_exit_code_2(project: ProjectFolder) -> None:
    project.workflow()
    for _ in range(2):
        commands = (["retrieve"], ["wait"], ["cancel"], ["retrieve", "7"])
        for arguments in (*commands, ["status"], ["status", "7"], ["status", "--batch-id", "batch_7"]):
            ran = project.agac("batch", *arguments)
            assert (ran.code, ran.out) == (2, "")
            assert ran.err.startswith("error: no batch"), ran.err
            assert "\n  " in ran.err
        assert project.agac("batch", "list").out == "No open batches. --all includes closed ones\n"
        project.numbered(2)
        project.run()


def test_a_batch_is_named_by_our_number_or_the_providers_id(ran: ProjectFolder) -> None:
    number = put_batch(ran, provider_id="batch_abc", word="finalizing_soon")
    for named in (number, str(number), "batch_abc", None):
        (facts,) = agac.batch_status(named, project=ran.root).as_json()["batches"]
        told = ("id", "provider_id", "stage", "model", "status", "provider_status", "step")
        assert [facts[name] for name in told] == [
            1, "batch_abc", "classify", "local/small", "in_progress", "finalizing_soon", "SUBMITTED",
        ]  # fmt: skip
    assert list(facts) == [
        "id", "provider_id", "workflow", "run", "stage", "model", "provider", "step", "status", "provider_status",
        "requests", "number", "of", "done", "failed", "total", "age_s", "submitted_at", "expires_at", "deadline",
        "results_until", "stuck", "stuck_for_s", "cost_usd", "held_usd", "simulated", "waits", "note", "remedy",
        "seen_at", "try_at", "cancelling", "lane",
    ]  # fmt: skip
    assert facts["submitted_at"].endswith("Z")
    for command in ("status", "list"):
        assert ran.agac("batch", command, "--json").json["batches"][0].keys() == facts.keys()
    with pytest.raises(agac.UsageError, match="no batch 'batch_x' in this project"):
        agac.batch_status("batch_x", project=ran.root)
    for command in ("status", "retrieve", "wait", "cancel"):
        shown = ran.agac("batch", command, "1", "--batch-id", "2")
        assert (shown.code, shown.out) == (2, "")
        assert "error: 1 and --batch-id 2 name two batches" in shown.err


def test_one_batch_is_shown_in_full_and_several_in_a_line_each(ran: ProjectFolder) -> None:
    now = time.time()
    for hours in (1, 2, 3, 20):  # so long others of its lane took
        put_batch(ran, state="CLEANED", submitted_at=now - 30 * HOUR, ended_at=now - 30 * HOUR + hours * HOUR)
    put_batch(ran, state="CLEANED", submitted_at=now - 9 * HOUR, ended_at=now - 1 * HOUR, cancel_at=now)
    put_batch(ran, state="CLEANED", model="other", submitted_at=now - 9 * HOUR, ended_at=now)
    put_batch(ran, deadline=now + 5 * HOUR)
    text = the_status(ran)
    assert (
        "\nBatch job status: in_progress\nBatch 7 (batch_0007): reviews, run 1, classify 7 of 7, local/small\n" in text
    )
    assert "\nRequests: 4 done, 1 failed of 10\n" in text
    assert "1h 00m ago; of 4 in this lane half took up to 2h 00m, 95 % up to 20h 00m\n" in text
    assert re.search(r"\nThe provider gives up: .* \(in 22h 59m\)\n", text)
    assert re.search(r"\nDeadline: .*; requests not finished by then are cancelled\nCost: up to \$0\.25\n", text)
    assert re.search(r"\nThe provider deletes its results and files: .* \(in 29d 23h\)\n", text)
    assert re.search(r"\nCost of run 1 so far: .*; open batches: up to \$0\.25\Z", text)
    for status in ("completed", "validating"):
        put_batch(ran, status=status)
    text = the_status(ran)
    lines = [line for line in text.split("\n") if line.startswith("Batch job status: ")]
    assert [line.partition(";")[0].rpartition(" ")[2] for line in lines] == ["in_progress", "completed", "validating"]
    for number, line in enumerate(lines, start=7):
        assert f"classify {number} of 9; local/small; 4 done, 1 failed of 10; 1h 00m old" in line
    assert "3 batches, 12 done, 3 failed of 30 requests; 1 ended: agac batch retrieve" in text


def test_a_provider_that_is_not_there_leaves_what_was_known(ran: ProjectFolder) -> None:
    put_batch(ran)
    report = agac.batch_status(project=ran.root)
    assert len(report.not_asked) == 1
    assert "batch 1 could not be asked for at local: " in report.not_asked[0]
    assert (report.batches[0].batch.status, report.batches[0].batch.done) == ("in_progress", 4)
    shown = ran.agac("batch", "status")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("not checked: batch 1 could not be asked for at local: ")
    assert ran.query("SELECT status, done, seen_at = moved_at FROM batch") == [("in_progress", 4, 1)]


def test_files_that_changed_meanwhile_are_no_obstacle(ran: ProjectFolder) -> None:
    put_batch(ran)
    without = "providers: {local: {dialect: openai-chat, base_url: 'http://127.0.0.1:1/v1', batch: none}}\n"
    for text, said in (
        ("providers: [", "the project cannot be used: agac.yml:2:1: expected a value here"),
        ("defaults: {model: simulator/small}\n", "local could not be asked: it is no longer in agac.yml"),
        (without, "local could not be asked: local has no batches"),
    ):
        ran.write("agac.yml", text)
        report = agac.batch_status(project=ran.root)
        assert said in report.not_asked[0]
        assert report.batches[0].batch.status == "in_progress"
        assert agac.batch_list(project=ran.root).batches[0].batch.status == "in_progress"


def test_stuck_is_said_with_what_can_be_done(ran: ProjectFolder) -> None:
    now = time.time()
    put_batch(ran, moved_at=now - 7 * HOUR, submitted_at=now - 9 * HOUR)
    text = the_status(ran)
    assert "Stuck: no progress for 7h 00m" in text
    for command in ("agac batch cancel 1;", "agac batch retrieve;", "agac run -a reviews --run-mode sync"):
        assert command in text
    # what moved or ended is not
    put_batch(ran, moved_at=now - 5 * HOUR)
    put_batch(ran, moved_at=now - 50 * HOUR, status="completed")
    put_batch(ran, moved_at=now - 50 * HOUR, state="DOWNLOADED")
    put_batch(ran, moved_at=now + 50 * HOUR, submitted_at=now + 50 * HOUR)  # the clock was set back
    shown = agac.batch_status(project=ran.root).batches
    assert [line.stuck_for_s for line in shown] == [pytest.approx(7 * HOUR, abs=60), None, None, None, None]
    assert all(line.age_s is not None and line.age_s >= 0 for line in shown)
    with store(ran) as database:  # the stage says for how long nothing may move
        database.execute("""UPDATE run SET manner = '{"stages": [{"batch": {"stuck_after": 1800.0}}]}'""")
    shown = agac.batch_status(project=ran.root).batches
    assert [line.stuck for line in shown] == [True, True, False, False, False]


WAYS: list[tuple[dict[str, Any], str, str]] = [
    (unsent(note="no room for its tokens", try_at=2e9), "not submitted",
     "Not submitted: no room for its tokens; retried"),
    (unsent("CREATE_INTENT"), "not submitted", "whether the provider has it is to be found out"),
    (unsent("NEEDS_HUMAN", note="it may exist"), "needs a decision", "agac doctor --adopt ID --batch-id 1"),
    ({"state": "NEEDS_HUMAN", "note": "results are gone"}, "needs a decision", "agac doctor --resubmit --batch-id 1"),
    ({"cancel_at": 1.0, "status": "cancelling"}, "cancelling", "Cancelling; finished requests are kept"),
    ({"status": "expired"}, "expired", "take it with: agac batch retrieve"),
]  # fmt: skip


def test_what_stands_in_the_way_is_said_with_its_command(ran: ProjectFolder) -> None:
    for columns, word, said in WAYS:
        put_batch(ran, **{"id": 1, **columns})
        text = the_status(ran)
        assert f"Batch job status: {word}\n" in text
        assert said in text
        table = "\n".join(list_lines(agac.batch_list(project=ran.root), closed=False))
        assert word in table
        assert said in table or word == "expired", "that it can be taken need not be said of each"
        with store(ran) as database:
            database.execute("DELETE FROM batch")


def test_when_all_is_in_the_last_batch_is_shown_and_the_exit_code_is_0(ran: ProjectFolder) -> None:
    """Commands that need an open one say that there is none."""
    put_batch(ran, state="INGESTED", cost=0.1, ingested_at=time.time(), status="completed")
    put_batch(ran, state="REJECTED", status="failed", note="line 3: invalid_json_line", held_usd=0.25)
    for command in ("wait", "cancel"):
        shown = ran.agac("batch", command)
        assert (shown.code, shown.out) == (2, "")
        assert shown.err == (
            "error: run 1 of reviews has no open batches\n"
            "  All that was submitted is in. Look at the run with: agac status 1\n"
        )
    assert ran.agac("batch", "status", code=0).out == ran.agac("batch", "status", "2").out
    assert ran.agac("batch", "list").out.startswith("No open batches")
    lines = agac.batch_list(all=True, project=ran.root).batches
    assert [(line.batch.state, line.cost_usd, line.held_usd, line.batch.open) for line in lines] == [
        ("INGESTED", 0.1, None, False), ("REJECTED", 0.0, None, False),
    ]  # fmt: skip
    for number, said in (
        (1, "Batch job status: completed\n"),
        (1, "\nCost: $0.10\n"),
        (2, "Batch job status: failed\n"),
        (2, "\nCost: $0.00\n"),
        (2, "Note: line 3: invalid_json_line\nNext: nothing was charged; fix the problem, then run: agac run -a rev"),
    ):
        assert said in the_status(ran, number)


def test_those_of_the_run_that_submitted_last_are_meant_and_others_are_mentioned(ran: ProjectFolder) -> None:
    ran.workflow("others", stages=[{"name": "say", "prompt": "Say ${text}"}])
    with store(ran) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(run)")]
        copied = ", ".join({"id": "2", "workflow": "'others'"}.get(name, name) for name in columns)
        database.execute(f"INSERT INTO run SELECT {copied} FROM run")
        database.execute("INSERT INTO event (run_id, kind, at, body) VALUES (2, 'invocation', 1, '{}')")
    put_batch(ran, run_id=2, submitted_at=time.time() - 2 * HOUR)
    put_batch(ran)
    report = agac.batch_status(project=ran.root)
    assert ([line.batch.id for line in report.batches], report.elsewhere) == ([2], 1)
    assert the_status(ran).endswith("\nOpen batches of other runs: 1; list them with: agac batch list")
    assert [line.batch.id for line in agac.batch_list(project=ran.root).batches] == [1, 2]
    assert [line.batch.id for line in agac.batch_list("others", project=ran.root).batches] == [1]
    with pytest.raises(agac.UsageError, match="no workflow 'nobody'"):
        agac.batch_list("nobody", project=ran.root)
    with store(ran) as database:
        database.execute("UPDATE batch SET state = 'CLEANED' WHERE id = 2")
    report = agac.batch_status(project=ran.root)
    assert ([line.batch.id for line in report.batches], report.elsewhere) == ([1], 0), "of those that have open ones"
    with store(ran) as database:
        database.execute("UPDATE batch SET state = 'CLEANED'")
    chosen = agac.batch_status(project=ran.root).batches[0].batch.run_id
    taken = agac.retrieve(project=ran.root)
    assert (chosen, taken.run.summary["run"]) == (1, 1), "status and retrieve mean the same one"
    with pytest.raises(agac.UsageError, match="run 1 of reviews has no open batches"):
        agac.batch_wait(project=ran.root)


def test_status_and_runs_mention_open_batches(ran: ProjectFolder) -> None:
    with store(ran) as database:
        database.execute("UPDATE run SET finished_at = NULL")
    put_batch(ran)
    put_batch(ran, **unsent())
    text = ran.agac("status").out
    assert "  waiting  " in text
    assert (
        "Run 1 has 2 open batches, 1 not submitted yet: 4 done, 1 failed of 20 requests when last checked\n"
        "Check progress with: agac batch status. Collect results with: agac batch retrieve\n"
    ) in text
    assert ran.agac("status", "1", "--json").json["runs"][0]["open_batches"]["batches"] == 2
    assert ran.agac("runs", "--json").json["runs"][0]["state"] == "waiting"
