"""What agac makes of the words of other providers: the tables of tests/contract/other_servers, each line sent for real.

`right` of a line says what comes of it:

- `outcome`: `answer`, where nothing is said; `row`, this row fails and the others go on; `again`, the call is made once
  more; `pause`, all calls to the model wait; `stop`, the run ends;
- of an answer: `text`, `finish`, `refusal`, `calls` of tools (id, name, arguments), `tokens` (null: unknown), `rates`
  (what is left of requests, the seconds until they are reset, the same of tokens);
- of anything else: `type` of the error (ProviderError), `about`, `wait` in seconds (null), how many `retries` at most
  (null: as usual), whether it is `ambiguous` (false), and what the message `says`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.project import ProjectFolder
from support.words import ANSWER, APIS, KEYS, SENT, TABLES, Line, answer_of, lines, stream_of, table, wording

from agac.core.errors import ErrorType, ExitCode
from agac.core.redact import Redactor
from agac.core.types import About, Fault, FaultKind, Message, RateState, Reply, Request
from agac.engine.ask.retry_policy import FailTask, RetryAfter, StopRun, decide
from agac.providers.bodies import encode
from agac.providers.dialect import Dialect
from agac.providers.event_stream import Events
from agac.providers.http import HttpReply, Sender
from agac.providers.known_providers import ANTHROPIC, OPENAI, SHIPPED
from agac.providers.table import DIALECTS
from agac.providers.transport import GarbledStream
from agac.spec.rules import Timeout

CANARY = "sk-canary-0123456789abcdef"
REDACTOR = Redactor([CANARY])
PROVIDERS = {
    "openai-chat": OPENAI,
    "openai-responses": replace(SHIPPED["responses"], name="openai"),
    "anthropic": ANTHROPIC,
}
OF_FAULTS = {"type", "about", "wait", "retries", "ambiguous", "says", "code"}
OF_ANSWERS = {"text", "finish", "refusal", "calls", "tokens", "rates"}
OUTCOMES = {"answer", "row", "again", "pause", "stop"}
TOKENS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cached_tokens",
    "thought": "reasoning_tokens",
    "written": "cache_write_tokens",
    "written_1h": "cache_write_1h_tokens",
}
LINES = lines()


def written() -> list[Any]:
    """Each line of each table, as it is written."""
    return [
        pytest.param(name, number, case, id=f"{name}/{number}")
        for name in TABLES
        for number, case in enumerate(table(name), start=1)
    ]


@pytest.mark.parametrize(("name", "number", "case"), written())
def test_a_line_says_who_sends_what_and_where_that_is_documented(name: str, number: int, case: dict[str, Any]) -> None:
    where = f"{name}.jsonl, line {number}"
    assert set(case) == KEYS, where
    for key in ("provider", "case", "source"):
        assert isinstance(case[key], str), f"{where}: {key}"
        assert len(case[key].strip()) > 2, f"{where}: whoever adds a line says its {key}"
    dialects = case["dialect"] if isinstance(case["dialect"], list) else [case["dialect"]]
    assert set(dialects) <= set(DIALECTS), where
    assert set(case["sent"]) <= SENT, where
    assert len({"body", "events", "word", "usage"} & set(case["sent"])) == 1, f"{where}: one thing is sent"
    outcome = case["right"].get("outcome", "answer")
    assert outcome in OUTCOMES, where
    assert set(case["right"]) - {"outcome"} <= (OF_ANSWERS if outcome == "answer" else OF_FAULTS), where


@pytest.mark.parametrize("name", TABLES)
def test_no_line_is_there_twice(name: str) -> None:
    def key(case: dict[str, Any], dialect: str) -> str:
        return json.dumps([dialect, case["sent"]], sort_keys=True)

    seen = Counter(
        key(case, dialect)
        for case in table(name)
        for dialect in (case["dialect"] if isinstance(case["dialect"], list) else [case["dialect"]])
    )
    assert [one for one, times in seen.items() if times > 1] == []
    named = Counter((str(case["dialect"]), case["provider"], case["case"]) for case in table(name))
    assert [one for one, times in named.items() if times > 1] == []


def test_every_dialect_has_lines_and_many_providers_do() -> None:
    assert {line.dialect for line in LINES} == set(DIALECTS) == set(APIS)
    assert len({line.case["provider"] for line in LINES}) >= 12


# The client: the sender over the network, the dialect, and what is decided about it.


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with wording() as (url, _):
        yield url


async def asked(line: Line, url: str) -> tuple[Reply | Fault, RateState | None]:
    """What comes of a line that is asked for, and what its headers say of the account's limits."""
    provider = replace(PROVIDERS[line.dialect], base_url=url)
    dialect = DIALECTS[line.dialect]
    sender = Sender(provider, REDACTOR, env={}, stream=line.streamed)
    request = Request((Message("user", f"line {line.name}"),))
    try:
        sent = await sender.send(encode(dialect.build(request, "the-model", provider)), Timeout(total=30.0))
    finally:
        await sender.close()
    if isinstance(sent, Fault):
        return sent, None
    return read(line, sent), dialect.rates(sent.headers)


def read(line: Line, sent: HttpReply) -> Reply | Fault:
    """What an answer means."""
    dialect = DIALECTS[line.dialect]
    about: Any = {"provider": PROVIDERS[line.dialect], "model": "the-model", "redactor": REDACTOR}
    return dialect.parse(sent.status, sent.headers, sent.body, **about)


def outcome(found: Reply | Fault) -> str:
    """What is done about what came first."""
    if isinstance(found, Reply):
        return "answer"
    match decide(found, 1, int(found.ambiguous), 0.0):
        case StopRun():
            return "stop"
        case RetryAfter(_, lane):
            return "pause" if lane else "again"
        case FailTask():
            return "pause" if found.kind is FaultKind.PAUSE else "again" if found.kind is FaultKind.RETRY else "row"


def shown(found: Reply | Fault, rates: RateState | None) -> dict[str, Any]:
    """What came of a line, as `right` says it."""
    if isinstance(found, Fault):
        about = {"about": found.about, "wait": found.delay, "retries": found.retries, "code": found.code}
        return {"type": found.type, "ambiguous": found.ambiguous, **about}
    return {
        "text": found.text,
        "finish": found.finish,
        "refusal": found.refusal,
        "calls": [[call.id, call.name, call.arguments] for call in found.calls],
        "rates": None if rates is None else list(vars_of(rates)),
        "tokens": {name: getattr(found.usage, field) for name, field in TOKENS.items()},
    }


def vars_of(rates: RateState) -> tuple[float | None, ...]:
    return rates.remaining_requests, rates.reset_requests, rates.remaining_tokens, rates.reset_tokens


def expected(line: Line) -> dict[str, Any]:
    """The same of what is right, where that says something of it."""
    right = {name: value for name, value in line.right.items() if name not in ("outcome", "says")}
    if line.right["outcome"] == "answer":
        return {"finish": "stop", "text": ANSWER, "calls": [], **right}
    return {"type": "ProviderError", "wait": None, "retries": None, "ambiguous": False, **right}


@pytest.mark.parametrize("line", LINES, ids=str)
def test_what_a_server_says_is_understood(line: Line, base_url: str) -> None:
    found, rates = asyncio.run(asked(line, base_url))
    message = found.message if isinstance(found, Fault) else ""
    assert outcome(found) == line.right["outcome"], message
    assert_is(line, shown(found, rates))
    if isinstance(found, Fault):
        assert PROVIDERS[line.dialect].name in found.message
        assert "\n" not in found.message
        for words in line.right.get("says", ()):
            assert words in found.message
        if "word" in line.sent:  # an answer that was broken off was paid for
            assert repr(line.sent["word"]) in found.message
            assert found.usage is not None
            assert found.usage.output_tokens


def assert_is(line: Line, came: dict[str, Any]) -> None:
    """What came of a line is what is right, as far as that says something."""
    right = expected(line)
    counts = right.pop("tokens", {})
    close = {name: pytest.approx(value) if name in ("wait", "rates") else value for name, value in right.items()}
    assert {name: came[name] for name in right} == close
    assert {name: came["tokens"][name] for name in counts} == counts


@pytest.mark.parametrize("line", [line for line in LINES if "events" in line.sent], ids=str)
def test_a_stream_says_the_same_in_whatever_pieces_it_comes(line: Line) -> None:
    dialect: Dialect = DIALECTS[line.dialect]
    stream, found = stream_of(line), list[Any]()
    for size in (1, 7, len(stream)):
        assembly, events = dialect.assembly(), Events()
        try:
            for at in range(0, len(stream), size):
                for event in events.feed(stream[at : at + size]):
                    assembly.take(event)
            found.append(assembly.result() if assembly.finish() else None)
        except GarbledStream:
            found.append(GarbledStream)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("line", [one for one in LINES if not one.streamed and "body" in one.sent], ids=str)
def test_a_key_that_a_server_repeats_is_not_shown(line: Line) -> None:
    def poisoned(value: Any) -> Any:
        if isinstance(value, str):
            return f"{value} {CANARY}"
        if isinstance(value, dict):
            return {name: poisoned(part) for name, part in value.items()}
        return [poisoned(part) for part in value] if isinstance(value, list) else value

    body = line.sent["body"]
    said = f"{body} {CANARY}".encode() if isinstance(body, str) else json.dumps(poisoned(body)).encode()
    headers = {**answer_of(line).headers, "x-request-id": CANARY}
    found = read(line, HttpReply(line.sent["status"], headers, said, 0.0))
    if isinstance(found, Fault):
        assert CANARY not in repr(found)
        assert CANARY[:12] not in found.message


def test_every_error_type_and_subject_that_is_named_is_one() -> None:
    for line in LINES:
        assert ErrorType(line.right.get("type", "ProviderError"))
        assert About(line.right.get("about", "request"))


# The engine: what is stored of each line.

ENDED_AS = {
    "length": "Truncated",
    "refusal": "Refused",
    "filter": "Filtered",
    "other": "ProviderError",
    "tools": "ProviderError",
    "paused": "ProviderError",
}
"""Errors of rows whose answer ended so."""


def of_a_row(line: Line) -> bool:
    """Whether a line concerns its row alone, and nobody waits for long."""
    right = line.right
    if right["outcome"] == "again" and right.get("retries") == 0:
        return False
    return right["outcome"] in ("answer", "row", "again") and not right.get("wait") and right.get("finish") != "paused"


def stored_error(line: Line) -> str | None:
    """The type of the error with which the row of a line fails; None where it is answered."""
    right = line.right
    if right["outcome"] == "again":
        return None
    if right["outcome"] == "row":
        return str(right.get("type", "ProviderError"))
    finish = right.get("finish", "stop")
    if finish == "stop" and right.get("refusal"):
        return "Refused"
    return ENDED_AS.get(finish) or (None if right.get("text", ANSWER).strip() else "EmptyResponse")


RETRIES = {"attempts": 4, "delay": 0.01}
GROUPS = sorted({(line.dialect, line.streamed) for line in LINES})


@pytest.mark.parametrize(("dialect", "streamed"), GROUPS)
def test_a_run_stores_what_servers_said(project: ProjectFolder, dialect: str, streamed: bool) -> None:
    chosen = [one for one in LINES if (one.dialect, one.streamed) == (dialect, streamed) and of_a_row(one)]
    with wording(answers_afterwards=True) as (url, times):
        project.configure(url, dialect=dialect)
        project.rows([{"id": line.name, "text": f"line {line.name}"} for line in chosen], "data/rows.jsonl")
        model = f"local/small{'?transport=sse' if streamed else ''}"
        stage = {"name": "say", "prompt": "${text}", "model": model, "repair": 0, "retries": RETRIES}
        project.workflow(stages=[stage], path="data/rows.jsonl")
        report = project.run()
    assert report.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED), report.stopped
    came = {one["id"]: one for one in project.envelopes()}
    for line in chosen:
        row, error = came[line.name], stored_error(line)
        assert (row["error"] or {}).get("type") == error, (str(line), row["error"])
        if error is None:
            assert row["result"] == (ANSWER if line.right["outcome"] == "again" else line.right.get("text", ANSWER))
        assert times[line.name] == (2 if line.right["outcome"] == "again" else 1), str(line)
    assert_counted(project, chosen)


def assert_counted(project: ProjectFolder, chosen: list[Line]) -> None:
    """The tokens of each answer are stored as they were counted, or as unknown."""
    counted = {
        row: counts
        for row, *counts in project.query(
            "SELECT r.id, a.input_tokens, a.output_tokens, a.cached_tokens, a.reasoning_tokens, a.cache_write_tokens "
            "FROM attempt a JOIN row r ON r.key = a.row_key WHERE a.number = 1"
        )
    }
    for line in chosen:
        stored = dict(zip(TOKENS, counted[line.name], strict=False))
        right = {name: count for name, count in line.right.get("tokens", {}).items() if name in stored}
        assert {name: stored[name] for name in right} == right, str(line)


# The command, for the first line of each table that comes to a certain end.


def first_of_each() -> list[Line]:
    """The first line of each table and outcome, in each dialect and way; of pauses those that are short."""
    found: dict[tuple[str, str, str, bool], Line] = {}
    for line in LINES:
        outcome = line.right["outcome"]
        if outcome not in ("stop", "pause") or (outcome == "pause" and not 0 < (line.right.get("wait") or 0) < 0.5):
            continue
        found.setdefault((line.table, outcome, line.dialect, line.streamed), line)
    return list(found.values())


@pytest.mark.parametrize("line", first_of_each(), ids=str)
def test_the_command_stops_or_pauses_as_a_line_says(project: ProjectFolder, line: Line) -> None:
    with wording(answers_afterwards=True) as (url, times):
        project.configure(url, dialect=line.dialect)
        project.rows([{"id": "r-1", "text": f"line {line.name}"}])
        model = f"local/small{'?transport=sse' if line.streamed else ''}"
        project.workflow(stages=[{"name": "say", "prompt": "${text}", "model": model}])
        if line.right["outcome"] == "pause":
            project.agac("run", "reviews", code=ExitCode.DONE)
            assert times[line.name] == 2
            assert [one["result"] for one in project.envelopes()] == [ANSWER]
        else:
            ran = project.agac("run", "reviews", code=ExitCode.FAILED)
            assert times[line.name] == 1
            assert f"stopped: local answered {line.sent['status']}" in ran.err
