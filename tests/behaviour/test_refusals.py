"""What a refusal is about decides who bears it: the row, the lane, the account, or the frame of all requests."""

from typing import Any

import pytest
from support.batchcase import Start
from support.batchrun import Make, failed
from support.project import ProjectFolder
from support.server import Faulty
from support.soak import few

import agac
from agac.core.errors import ExitCode

ECHO: dict[str, Any] = {"name": "say", "prompt": "${text}", "model": "local/echo"}
FAST = {"batch": {"poll_interval": "0.05s"}}


def texts(count: int, *blocked: int) -> list[dict[str, Any]]:
    """Rows, of which those with these numbers hold what a firewall blocks."""
    return [{"id": f"r-{n}", "text": f"{'<script>' if n in blocked else 'number'} {n}."} for n in range(1, count + 1)]


def ask(project: ProjectFolder, rows: list[dict[str, Any]], **options: Any) -> agac.RunReport:
    project.rows(rows)
    project.workflow("reviews", stages=[ECHO])
    return project.run(**options)


def errors(project: ProjectFolder) -> dict[str, str]:
    return {one["id"]: one["error"]["message"] for one in project.envelopes() if one["error"]}


# One request, or the rate of all?


def test_a_request_that_is_larger_than_the_limit_fails_its_row_and_pauses_nobody(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "too_large", "match": "number 3."}]))
    report = ask(project, texts(12))
    assert (report.exit_code, report.summary["rows"]["failed"]) == (ExitCode.ROWS_FAILED, 1)
    assert server.account()["requests"] == 12
    assert "Limit 30000, Requested 47522" in errors(project)["r-3"]
    assert "Shorten the prompt" in errors(project)["r-3"]
    assert "waits" not in report.invocation


@pytest.mark.usefixtures("short_pauses")
def test_an_ordinary_rate_that_speaks_of_tokens_and_limits_stays_a_pause(
    project: ProjectFolder, faulty: Faulty
) -> None:
    words = "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 28000, Requested 4000."
    rate = {"kind": "rate_limit", "message": words, "retry_after": 0.01, "match": "number 3.", "first": 2}
    server = project.asks(faulty([rate]))
    assert ask(project, texts(5)).exit_code == ExitCode.DONE
    assert server.account()["requests"] == 7


# The key, or something between that does not like a row's text?


def test_a_page_that_refuses_one_row_fails_that_row_once_the_key_was_accepted(
    project: ProjectFolder, faulty: Faulty
) -> None:
    """Even where it is refused before any other call was answered, and in a later run that asks it alone."""
    server = project.asks(
        faulty([{"kind": "blocked", "match": "<script>"}, {"kind": "slow_first_byte", "seconds": 0.2}])
    )
    report = ask(project, texts(6, 1), concurrency=6)
    assert (report.exit_code, failed_rows(project)) == (ExitCode.ROWS_FAILED, ["r-1"])
    assert "firewall" in errors(project)["r-1"]
    assert server.account()["requests"] == 6
    again = project.run()
    assert (again.exit_code, failed_rows(project)) == (ExitCode.ROWS_FAILED, ["r-1"])
    assert server.account()["requests"] == 7


def failed_rows(project: ProjectFolder) -> list[str]:
    return list(errors(project))


def test_a_page_before_any_accepted_call_blames_the_key(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "blocked", "always": True}]))
    report = ask(project, texts(40), concurrency=4)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")
    assert "may not use this" in (report.stopped or "")
    assert report.summary["rows"]["failed"] == 0
    assert server.account()["requests"] <= 12


def test_another_key_was_not_accepted_by_what_the_first_one_did(
    project: ProjectFolder, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-first")
    project.asks(faulty([{"kind": "blocked", "match": "<script>"}]), api_key="${MY_KEY}")
    assert ask(project, texts(3)).exit_code == ExitCode.DONE
    monkeypatch.setenv("MY_KEY", "sk-second")
    report = ask(project, texts(4, 4))
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")


def test_many_such_pages_in_a_row_stop_the_run(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "blocked", "match": "<script>"}]))
    report = ask(project, texts(200, *range(31, 201)), concurrency=1)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")
    assert "10 requests in a row were refused though the key was accepted before" in (report.stopped or "")
    assert (report.summary["rows"]["done"], server.account()["requests"]) == (30, 40)


# Batches and their files are judged by the same table.


@pytest.mark.parametrize(
    "refused",
    [
        {"code": "model_not_found", "message": "The provided model 'm' is not supported by the Batch API."},
        {"code": "invalid_request_error", "message": "Invalid schema for response_format 'answer': no."},
        {"code": "invalid_function_parameters", "message": "Invalid schema for function 'look': no."},
        {"code": "insufficient_quota", "message": "You exceeded your current quota."},
        {"code": "model_mismatch", "message": "The model of the line is another one."},
    ],
    ids=lambda refused: refused["code"],
)
def test_a_batch_that_is_refused_for_what_all_rows_share_stops_the_run_and_fails_none(
    batches_at: Make, refused: dict[str, str]
) -> None:
    """Although the refusal names the first line."""
    project = batches_at({"kind": "batch_reject", "line": 1, "at": [1], **refused})
    project.batched(ECHO, defaults=FAST)
    report = project.run(wait=True)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")
    assert refused["message"] in (report.stopped or "")
    assert "nothing was charged" in (report.stopped or "")
    assert project.steps() == ["REJECTED"]
    assert project.query("SELECT count(*) FROM row WHERE state = 0") == [(10,)]
    assert project.run(wait=True).exit_code == ExitCode.DONE


def test_a_batch_that_is_refused_for_what_passes_is_created_again(batches_at: Make) -> None:
    busy = {"kind": "batch_reject", "code": "rate_limit_exceeded", "message": "Too many batches.", "at": [1]}
    project = batches_at(busy)
    project.batched(ECHO)
    project.run()
    assert project.retrieve().exit_code in (0, 75)
    assert project.steps() == ["UPLOADED"]
    assert "Too many batches" in str(project.notes())
    assert project.query("SELECT count(*) FROM row WHERE state = 0") == [(10,)]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_file_that_is_too_large_is_halved_until_it_is_taken(api: str, case_at: Start) -> None:
    op = "upload" if api == "openai" else "create"
    case = case_at(api, {"kind": "batch_too_large", "op": op, "bytes": 900})
    case.submit()
    refused = case.project.query("SELECT count(*) FROM batch WHERE state = 'NOT_CREATED'")[0][0]
    assert refused >= 1
    assert case.account()["calls"]["upload" if api == "openai" else "create"] <= 40
    case.finish("retrieve")
    assert {one["ok"] for one in case.project.envelopes()} == {True}
    case.project.assert_sound()


def test_a_row_that_is_too_large_alone_fails_and_the_others_are_answered(batches_at: Make) -> None:
    project = batches_at({"kind": "batch_too_large", "bytes": 2500})
    rows = texts(8)
    rows[4]["text"] = "x" * 4000
    project.rows(rows)
    project.batched(ECHO, defaults=FAST)
    report = project.run(wait=True)
    assert (report.exit_code, failed(project)) == (ExitCode.ROWS_FAILED, {"r-5": "ProviderError"})
    assert "too large for a batch" in errors(project)["r-5"]
    assert project.charged()[1] == 7
    uploads = project.account["calls"]["upload"]
    assert uploads <= 12
    project.run()
    assert project.account["calls"]["upload"] <= uploads + 2  # the row is tried again, and what was learned stays


# What a firewall says of the file of a batch is about some of its rows.


def blocked(api: str, **more: Any) -> dict[str, Any]:
    return {"kind": "batch_blocked", "op": "upload" if api == "openai" else "create", **more}


def accept_key(project: ProjectFolder, stage: dict[str, Any]) -> None:
    """A call of another workflow, with the same key."""
    project.workflow("first", stages=[stage])
    assert project.run("first", sample=1, sample_seed=1).exit_code == ExitCode.DONE


@pytest.mark.parametrize("status", few([403, 405, 406, 415, 418, 451, 400], 3))
def test_a_page_for_the_file_of_a_batch_fails_only_the_rows_that_it_is_about(batches_at: Make, status: int) -> None:
    project = batches_at(blocked("openai", match="<script>", status=status))
    project.batched(ECHO, defaults=FAST)
    project.rows(texts(12))
    assert project.run(wait=True).exit_code == ExitCode.DONE
    project.rows(texts(36, 15, 29))
    report = project.run(wait=True)
    assert report.stopped is None
    assert (report.exit_code, failed(project)) == (
        ExitCode.ROWS_FAILED, {"r-15": "ProviderError", "r-29": "ProviderError"}
    )  # fmt: skip
    assert "firewall or gateway in front of the provider" in errors(project)["r-15"]
    assert f"titled '{status} " in errors(project)["r-15"]
    assert project.charged()[1] == 34
    uploads = project.account["calls"]["upload"]
    assert uploads <= 40
    project.rows(texts(66, 15, 29))
    project.run(wait=True)
    assert project.account["calls"]["upload"] <= uploads + 16, "new rows go into whole files"
    project.assert_sound()


def test_a_page_for_inline_requests_fails_only_the_rows_that_it_is_about(case_at: Start) -> None:
    case = case_at("anthropic", blocked("anthropic", match="Review: 7"))
    rows = case.project.query
    case.project.rows([{"id": f"r-{n}", "text": f"{n}."} for n in (1, 2)])
    case.finish("run")
    case.project.rows([{"id": f"r-{n}", "text": f"{n}."} for n in range(1, 10)])
    ran = case.run("--wait")
    assert ran.code == ExitCode.ROWS_FAILED
    assert rows("SELECT id, error_type FROM row WHERE error_type IS NOT NULL") == [("r-7", "ProviderError")]
    assert case.account()["charged"] == 8
    case.project.assert_sound()


def test_a_page_for_a_file_before_anything_was_accepted_blames_the_key(batches_at: Make) -> None:
    project = batches_at(blocked("openai"))
    project.batched(ECHO, defaults=FAST)
    report = project.run(wait=True)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")
    assert "may not use this" in (report.stopped or "")
    assert "titled '403 Forbidden', perhaps of a firewall or proxy. If a firewall or proxy refused it, change" in (
        report.stopped or ""
    )
    assert "or have it let through. If not, the key for " in (report.stopped or "")
    assert project.account["calls"]["upload"] == 1


def test_a_page_for_every_file_stops_the_run_and_fails_few_rows(batches_at: Make) -> None:
    project = batches_at({**blocked("openai"), "at": list(range(2, 500))})
    project.rows(texts(2))
    project.batched(ECHO, defaults=FAST)
    assert project.run(wait=True).exit_code == ExitCode.DONE
    project.rows(texts(200))
    report = project.run(wait=True)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")
    assert "in a row were refused though the key was accepted before" in (report.stopped or "")
    assert project.account["calls"]["upload"] <= 120
    assert report.summary["rows"]["failed"] <= 10


def test_a_page_where_a_batch_is_created_is_no_batch(batches_at: Make) -> None:
    """With a status that proves nothing it is looked for before it is cut."""
    project = batches_at(blocked("anthropic", status=418) | {"at": [1]})
    project.batched(ECHO, defaults={"batch": {"poll_interval": "0.05s", "grace": "0.05s"}})
    report = project.run(wait=True)
    assert (report.exit_code, project.charged()[1]) == (ExitCode.DONE, 10)
    assert project.account["duplicates"] == 0


def test_an_upload_that_is_refused_for_good_is_not_sent_for_ever(batches_at: Make) -> None:
    project = batches_at({"kind": "batch_status", "op": "upload", "status": 400, "message": "No such purpose."})
    project.batched(ECHO, defaults=FAST)
    report = project.run(wait=True)
    assert (report.exit_code, report.stop) == (ExitCode.FAILED, "fatal")
    assert project.account["calls"]["upload"] == 1


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("status", "type_", "message"),
    [
        (404, "not_found_error", "model: no such model"),
        (400, "invalid_request_error", "Invalid schema for response_format 'answer': no."),
        (401, "authentication_error", "invalid key"),
    ],
)
def test_lines_that_are_all_refused_for_what_they_share_stop_the_run_and_fail_no_row(
    api: str, status: int, type_: str, message: str, case_at: Start
) -> None:
    """Some providers look at the model and the schema of a batch only when they come to its lines."""
    case = case_at(api, {"kind": "batch_line_status", "status": status, "type": type_, "message": message, "at": [1]})
    case.submit()
    stopped = case.retrieve()
    assert stopped.code == ExitCode.FAILED
    assert message in stopped.err
    rows = len(case.project.query("SELECT key FROM row"))
    assert case.project.query("SELECT count(*) FROM row WHERE state = 0") == [(rows,)]
    assert case.run().code == ExitCode.DONE
    case.finish("retrieve")
    assert case.account()["charged"] == rows


def test_a_line_that_is_refused_beside_answered_ones_fails_its_row_alone(batches_at: Make) -> None:
    project = batches_at({"kind": "batch_line_status", "status": 401, "lines": [5]})
    project.batched(ECHO, defaults=FAST)
    assert project.run(wait=True).exit_code == ExitCode.ROWS_FAILED
    assert failed(project) == {"r-5": "ProviderError"}
