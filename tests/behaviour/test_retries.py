"""How often is asked again, how soon, and who waits: told by the provider's own account."""

from typing import Any

import pytest
from scripted_server import Step, scripted
from support.project import ProjectFolder, S
from support.server import Faulty, Server

SAY = [{"name": "say", "prompt": "${text}"}]


def one_row(project: ProjectFolder, server: S, **provider: Any) -> S:
    """One row, to be asked of this server; gives it."""
    project.workflow(rows=1, stages=SAY)
    return project.asks(server, **provider)


def attempts(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT number, purpose, status, error_type, ambiguous FROM attempt ORDER BY id")


ALWAYS = [
    ({"kind": "server_error", "retry_after": 0}, 6, 500, "ProviderError", False),
    ({"kind": "server_error", "status": 502, "retry_after": 0}, 3, 502, "ProviderError", True),
    ({"kind": "server_error", "status": 504, "retry_after": 0}, 3, 504, "Timeout", True),
    ({"kind": "server_error", "status": 503, "retry_after": 0}, 21, 503, "ProviderError", False),
    ({"kind": "rate_limit", "retry_after": 0}, 21, 429, "RateLimited", False),
    ({"kind": "rate_limit", "retry_after": 0, "in_ms": True}, 21, 429, "RateLimited", False),
    ({"kind": "bad_request"}, 1, 400, "ProviderError", False),
    ({"kind": "cut"}, 3, None, "ProviderError", True),
    ({"kind": "cut", "after_bytes": 40}, 3, None, "ProviderError", True),
    ({"kind": "invalid_body"}, 3, 200, "ProviderError", True),
]


@pytest.mark.parametrize(("fault", "calls", "status", "error", "ambiguous"), ALWAYS)
def test_what_always_fails_is_asked_so_often_and_every_call_is_kept(
    project: ProjectFolder, faulty: Faulty, fault: dict[str, Any], calls: int, status: int, error: str, ambiguous: bool
) -> None:
    server = one_row(project, faulty([{**fault, "always": True}]))
    report = project.run()
    assert report.exit_code == 3
    assert server.account()["requests"] == calls
    assert attempts(project) == [(n, "ask", status, error, int(ambiguous)) for n in range(1, calls + 1)]
    assert project.envelopes()[0]["error"]["type"] == error
    assert report.invocation["calls"] == report.summary["calls"]["count"] == calls
    assert report.invocation["retries"] == calls - 1
    assert report.summary["calls"]["failed"] == calls
    assert report.invocation["calls_perhaps_billed_without_answer"] == (calls if ambiguous else 0)
    project.assert_sound()


def test_refusals_by_rate_do_not_use_up_the_tries_that_server_errors_have(
    project: ProjectFolder, faulty: Faulty
) -> None:
    limited = {"kind": "rate_limit", "retry_after": 0, "at": [1, 2, 3, 4, 5, 6, 8]}
    server = one_row(project, faulty([limited, {"kind": "server_error", "retry_after": 0, "at": [7, 9]}]))
    assert project.run().exit_code == 0
    assert server.account()["requests"] == 10


def test_a_time_out_is_asked_again_and_may_have_been_billed(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "hang", "first": 1}]))
    report = project.run(project.workflow(rows=1, stages=[{**SAY[0], "timeout": 1.0}]))
    assert report.exit_code == 0
    assert attempts(project) == [(1, "ask", None, "Timeout", 1), (2, "ask", 200, None, 0)]
    assert report.invocation["calls_perhaps_billed_without_answer"] == 1


def test_rows_that_fail_now_and_then_all_get_through(project: ProjectFolder, faulty: Faulty) -> None:
    limited = {"kind": "rate_limit", "rate": 0.1, "retry_after": 0.02}
    server = project.asks(faulty([limited, {"kind": "server_error", "rate": 0.1, "retry_after": 0}]))
    report = project.run(project.workflow(rows=100, stages=SAY))
    assert report.exit_code == 0
    account = server.account()
    assert (account["charged"], account["duplicates"]) == (100, 0)
    assert project.query("SELECT count(*) FROM attempt") == [(account["requests"],)]
    assert report.invocation["retries"] == account["requests"] - 100
    project.assert_sound()


@pytest.mark.parametrize("kind", ["rate_limit", "server_error"])
@pytest.mark.parametrize("in_ms", [False, True])
def test_nobody_comes_back_before_the_time_that_was_asked_for(
    project: ProjectFolder, faulty: Faulty, kind: str, in_ms: bool
) -> None:
    server = one_row(project, faulty([{"kind": kind, "at": [1, 2], "retry_after": 0.3, "in_ms": in_ms}]))
    assert project.run().exit_code == 0
    account = server.account()
    assert account["requests"] == 3
    assert account["last_request_at"] - account["first_request_at"] >= 0.6


def test_lanes_do_not_wait_for_each_other(project: ProjectFolder) -> None:
    with scripted(Step(status=429, headers={"retry-after": "1"}, body="{}"), "late") as slow, scripted("ok") as quick:
        row = "{{dialect: openai-chat, base_url: '{}'}}"
        project.write(
            "agac.yml", f"providers:\n  slow: {row.format(slow.base_url)}\n  quick: {row.format(quick.base_url)}\n"
        )
        project.numbered(6)
        stages = [{"name": "one", "prompt": "${text}", "model": "quick/a"}]
        project.workflow(stages=[*stages, {"name": "two", "prompt": "two ${text}", "model": "slow/b"}])
        assert project.run(concurrency=6).exit_code == 0
    ((refused,),) = project.query("SELECT started_at FROM attempt WHERE status = 429")
    ((last,),) = project.query("SELECT max(started_at) FROM attempt WHERE stage = 0")
    assert last < refused + 1


@pytest.mark.parametrize("what", ["requests", "tokens"])
def test_a_lane_waits_for_the_reset_when_headers_say_that_nothing_is_left(project: ProjectFolder, what: str) -> None:
    headers = {f"x-ratelimit-remaining-{what}": "0", f"x-ratelimit-reset-{what}": "400ms"}
    with project.asking(scripted(Step("ok", headers=headers), "ok")) as server:
        project.workflow(rows=3, stages=SAY)
        assert project.run(concurrency=1).exit_code == 0
        first, second, third = server.times
    assert second - first >= 0.39
    assert third >= second


@pytest.mark.parametrize("limits", [{"rpm": 600}, {"tpm": 9_000}], ids=["rpm", "tpm"])
def test_the_limits_of_agac_yml_space_calls_out(project: ProjectFolder, limits: dict[str, int]) -> None:
    with project.asking(scripted("ok"), limits=limits) as server:
        project.workflow(rows=6, stages=[{**SAY[0], "max_tokens": 1000}])
        assert project.run().exit_code == 0
        assert len(server.times) == 6
        assert max(server.times) - min(server.times) >= 0.48


def test_a_bad_key_is_said_once(project: ProjectFolder, server: Server) -> None:
    project.write(".env", "LOCAL_KEY=sk-invalid\n")
    project.configure(server.base_url, api_key="${LOCAL_KEY}")
    project.workflow(rows=50, stages=SAY)
    ended = project.agac("run", "-a", "reviews", code=1)
    assert ended.err.count("Incorrect API key") == 1
    assert "LOCAL_KEY" in ended.err
    assert "sk-invalid" not in ended.err + ended.out
    project.write(".env", "LOCAL_KEY=sk-valid\n")
    assert project.agac("run", "-a", "reviews").code == 0
    assert server.account()["charged"] == 50


def test_a_re_ask_that_meets_a_server_error_is_retried_and_then_fails_with_both_reasons(project: ProjectFolder) -> None:
    trouble = Step(status=500, headers={"retry-after": "0"}, body='{"error": {"message": "out of order"}}')
    with project.asking(scripted('{"sentiment": 1}', trouble)) as server:
        project.workflow(rows=1)
        assert project.run().exit_code == 3
        assert len(server.asked) == 1 + 6
    message = project.envelopes()[0]["error"]["message"]
    assert "out of order" in message
    assert "is a required property" in message
    purposes = [(number, purpose) for number, purpose, *_ in attempts(project)]
    assert purposes == [(1, "ask"), *((n, "repair") for n in range(2, 8))]
    project.assert_sound()
