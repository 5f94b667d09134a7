"""Every fault over real HTTP, when rules apply, and what a wrong faults file is told."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from agac.simulator.fault_files import load_rules, parse_rules
from agac.simulator.fault_plan import FaultPlan
from agac.simulator.faults import FAULTS, OPERATIONS, FaultRule
from agac.simulator.model_calls import ModelCall
from agac.simulator.settings import SimulatorError

OPEN_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED_SCHEMA = {**OPEN_SCHEMA, "additionalProperties": False, "required": ["a"]}

STATUSES = [
    ({"kind": "rate_limit"}, 429, "requests", "rate_limit_exceeded"),
    ({"kind": "quota"}, 429, "insufficient_quota", "insufficient_quota"),
    ({"kind": "too_large"}, 429, "tokens", "rate_limit_exceeded"),
    ({"kind": "server_error"}, 500, "server_error", None),
    ({"kind": "server_error", "status": 502}, 502, "server_error", None),
    ({"kind": "server_error", "status": 503}, 503, "server_error", "server_is_overloaded"),
    ({"kind": "unauthorized"}, 401, "invalid_request_error", "invalid_api_key"),
    ({"kind": "not_found"}, 404, "invalid_request_error", "model_not_found"),
    ({"kind": "bad_request"}, 400, "invalid_request_error", None),
    ({"kind": "bad_request", "code": "context"}, 400, "invalid_request_error", "context"),
]


@pytest.mark.parametrize(("rule", "status", "kind", "code"), STATUSES)
async def test_error_faults_answer_in_the_providers_form(
    served: Any, rule: Any, status: int, kind: str, code: Any
) -> None:
    async with served(faults=[rule]) as client:
        got, headers, data = await client.ask()
        assert (got, data["error"]["type"], data["error"]["code"]) == (status, kind, code)
        assert data["error"]["message"]
        tested = {"blocked", *(one["kind"] for one, *_ in STATUSES)}
        assert tested == {kind for kind, of in FAULTS.items() if of.phase == "error"}
        assert headers["x-agac-simulated"] == "true"
        assert "retry-after" not in headers
        account = await client.account()
        assert account["faults"] == {rule["kind"]: 1}
        assert (account["charged"], account["refused"], account["answered"]) == (0, 1, 1)


async def test_a_firewall_answers_with_a_page_and_nothing_is_charged(served: Any) -> None:
    async with served(faults=[{"kind": "blocked", "at": [1]}]) as client:
        status, headers, page = await client.post({"model": "small", "messages": [{"role": "user", "content": "a"}]})
        assert (status, headers["content-type"].partition(";")[0], page[:6]) == (403, "text/html", b"<html>")
        account = await client.account()
        assert (account["charged"], account["refused"], account["answered"]) == (0, 1, 1)
        assert await client.content()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"retry_after": 2}, {"retry-after": "2"}),
        ({"retry_after": 0.25}, {"retry-after": "0.25"}),
        ({"retry_after": 0.25, "in_ms": True}, {"retry-after-ms": "250"}),
        ({"retry_after": None}, {}),
    ],
)
@pytest.mark.parametrize("kind", ["rate_limit", "server_error"])
async def test_retry_after_is_told_as_the_rule_says(
    served: Any, kind: str, more: Any, expected: dict[str, str]
) -> None:
    async with served(faults=[{"kind": kind, **more, "message": "no money"}]) as client:
        _, headers, data = await client.ask()
        assert data["error"]["message"] == "no money"
        assert {name.lower(): value for name, value in headers.items() if "retry" in name.lower()} == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_bytes", [None, 0, 40])
async def test_cut_drops_the_connection_and_is_charged(served: Any, stream: bool, after_bytes: int | None) -> None:
    async with served(faults=[{"kind": "cut", "after_bytes": after_bytes}]) as client:
        with pytest.raises(aiohttp.ClientError) as caught:
            await client.ask(stream=stream)
        assert isinstance(caught.value, aiohttp.ServerDisconnectedError) == (after_bytes is None)
        account = await client.account()
        assert (account["charged"], account["answered"], account["in_flight"]) == (1, 0, 0)


async def test_cut_after_bytes_sends_just_these(served: Any) -> None:
    async with served(faults=[{"kind": "cut", "after_bytes": 12}]) as client:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
        host, port = client.root.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        raw = await reader.read()
        writer.close()
        assert raw.partition(b"\r\n\r\n")[2] == b'{"id": "chat'


async def test_invalid_body_is_no_json(served: Any) -> None:
    async with served(faults=[{"kind": "invalid_body"}]) as client:
        status, headers, raw = await client.post({"model": "m", "messages": [{"role": "user", "content": "x"}]})
        assert (status, headers.getall("content-type")) == (200, ["application/json"])
        with pytest.raises(ValueError):
            json.loads(raw)
        assert (await client.account())["charged"] == 1


@pytest.mark.parametrize("schema", [None, OPEN_SCHEMA, {"type": "integer"}, {"type": "string"}, {"type": "array"}])
async def test_malformed_json_is_no_json(served: Any, with_schema: Any, schema: Any) -> None:
    async with served(faults=[{"kind": "malformed_json"}]) as client:
        with pytest.raises(ValueError):
            json.loads(await client.content(**({"response_format": with_schema(schema)} if schema else {})))


@pytest.mark.parametrize(
    "schema",
    [OPEN_SCHEMA, CLOSED_SCHEMA, {"type": "integer"}, {"type": ["string", "null"]}, {"type": "array", "minItems": 1}],
)
async def test_wrong_schema_is_json_that_the_schema_refuses(served: Any, with_schema: Any, schema: Any) -> None:
    async with served(faults=[{"kind": "wrong_schema"}]) as client:
        for more in ({}, {"max_tokens": 1}):  # also of an answer that is cut
            value = json.loads(await client.content(response_format=with_schema(schema), **more))
            assert not Draft202012Validator(schema).is_valid(value)
        assert json.loads(await client.content()) == {"unexpected": True}


@pytest.mark.parametrize(
    ("kind", "finish", "content", "refusal"),
    [
        ("length", "length", "one tw", None),
        ("refusal", "stop", None, "I'm sorry, I can't help with that."),
        ("filter", "content_filter", "", None),
        ("empty", "stop", "", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_answer_faults_end_in_their_own_way(
    served: Any, kind: str, finish: str, content: Any, refusal: Any, stream: bool
) -> None:
    async with served(faults=[{"kind": kind}]) as client:
        body = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}], "stream": stream}
        status, _, raw = await client.post(body)
        message, ended = streamed(raw) if stream else plain(raw)
        assert (status, ended, message.get("content"), message.get("refusal")) == (200, finish, content, refusal)
        assert (await client.account())["charged"] == 1


def plain(raw: bytes) -> tuple[dict[str, Any], str]:
    choice = json.loads(raw)["choices"][0]
    return choice["message"], choice["finish_reason"]


def streamed(raw: bytes) -> tuple[dict[str, Any], str]:
    """The message that a client builds from chunks; content that never came is None beside a refusal."""
    choices = [json.loads(line[6:])["choices"][0] for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    refusal = "".join(choice["delta"].get("refusal") or "" for choice in choices) or None
    return {"content": None if refusal else content, "refusal": refusal}, choices[-1]["finish_reason"]


async def test_slow_first_byte_holds_back_the_whole_response(served: Any) -> None:
    rules = [{"kind": "slow_first_byte", "seconds": 3600, "match": "slow"}, {"kind": "slow_first_byte", "seconds": 0.2}]
    loop = asyncio.get_running_loop()
    async with served(faults=rules) as client:
        slow = asyncio.create_task(client.ask("slow one"))
        before = loop.time()
        assert await client.content("quick one")
        assert loop.time() - before >= 0.19
        assert not slow.done()
        slow.cancel()
        assert (await client.account())["faults"] == {"slow_first_byte": 2}


async def test_hang_never_answers_until_the_client_leaves_or_the_server_stops(served: Any) -> None:
    async with served(faults=[{"kind": "hang", "at": 1}]) as client:
        hanging = asyncio.create_task(client.ask("one"))
        while not (await client.account())["faults"]:
            assert not hanging.done()
        await client.ask("two")
        hanging.cancel()
        while (await client.account())["in_flight"]:
            pass
        account = await client.account()
        assert (account["requests"], account["answered"], account["charged"]) == (2, 1, 1)
    async with served(faults=[{"kind": "hang"}]) as client:
        hanging = asyncio.create_task(client.ask())
        while not (await client.account())["faults"]:
            assert not hanging.done()
    with pytest.raises((aiohttp.ClientError, ValueError, asyncio.CancelledError, RuntimeError)):
        await hanging


UNAUTHORIZED = {"kind": "unauthorized", "always": True}


async def outcomes(rules: list[dict[str, Any]], served: Any, texts: list[str], seed: int = 0) -> list[int]:
    async with served(faults=rules, seed=seed) as client:
        return [(await client.ask(text))[0] for text in texts]


@pytest.mark.parametrize(
    ("rules", "texts", "expected"),
    [
        ([{"at": [2, 4]}], "abcde", [200, 500, 200, 500, 200]),  # counted from one
        ([{"first": 2}], "aababb", [500, 500, 500, 200, 500, 200]),  # of each question
        ([{"attempts": 1}], "aab", [500, 200, 500]),
        ([{"match": "needle"}], ["a needle here", "none"], [500, 200]),
        # all conditions must hold, and the first rule wins
        ([{"match": "a", "at": [2, 3]}, {"kind": "rate_limit", "match": "a"}, UNAUTHORIZED], "aab", [429, 500, 401]),
    ],
)
async def test_when_a_rule_applies(served: Any, rules: list[Any], texts: list[str], expected: list[int]) -> None:
    assert await outcomes([{"kind": "server_error", **rule} for rule in rules], served, texts) == expected


async def test_rate_is_kept_repeatable_free_of_order_and_drawn_anew_for_each_attempt(served: Any) -> None:
    rules = [{"kind": "server_error", "rate": 0.2}]
    texts = [f"row {i}" for i in range(400)]
    one = await outcomes(rules, served, texts)
    assert (await outcomes(rules, served, texts[::-1]))[::-1] == one
    assert 50 <= one.count(500) <= 110
    assert await outcomes(rules, served, texts, seed=1) != one
    plan = FaultPlan([FaultRule("server_error", rate=0.5)])
    ask = ModelCall(model="m", messages=(("user", "same"),), digest=b"", prompt_tokens=1)
    assert 60 < sum(plan.pick(number, ask) is None for number in range(200)) < 140


async def test_re_ask_that_quotes_the_answer_is_the_same_question(served: Any) -> None:
    async with served(faults=[{"kind": "malformed_json", "first": 1}]) as client:
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        form = {"type": "json_object"}
        bad = await client.content(messages=messages, response_format=form)
        again = [*messages, {"role": "assistant", "content": bad}, {"role": "user", "content": "That is no JSON."}]
        assert json.loads(await client.content(messages=again, response_format=form))
        account = await client.account()
        assert (account["faults"], account["duplicates"]) == ({"malformed_json": 1}, 0)


async def test_reset_forgets_what_was_asked(served: Any) -> None:
    async with served(faults=[{"kind": "server_error", "first": 1}]) as client:
        assert [(await client.ask("a"))[0] for _ in range(2)] == [500, 200]
        await client.session.post(f"{client.root}/account/reset")
        assert (await client.ask("a"))[0] == 500


def test_rules_are_read_from_yaml_and_json(tmp_path: Path) -> None:
    yaml_file = tmp_path / "faults.yml"
    yaml_file.write_text("- {kind: rate_limit, rate: 0.05, retry_after: 1.5}\n- kind: cut\n  at: 3\n")
    assert load_rules(yaml_file) == [
        FaultRule("rate_limit", rate=0.05, values={"retry_after": 1.5}),
        FaultRule("cut", at=frozenset({3})),
    ]
    json_file = tmp_path / "faults.json"
    json_file.write_text('\ufeff[{"kind": "hang", "first": 1}]')
    assert load_rules(json_file) == [FaultRule("hang", first=1)]
    (tmp_path / "empty.yml").write_text("")
    assert load_rules(tmp_path / "empty.yml") == []


def test_all_that_is_wrong_with_rules_is_said_at_once() -> None:
    rules = [
        {"kind": "rate_limt"},
        {"kind": "cut", "rat": 0.5},
        {"kind": "quota", "retry_after": 3},
        {"kind": "cut", "rate": 1.5},
        {"kind": "cut", "at": [0]},
        {"kind": "server_error", "status": 404},
        {"kind": "cut", "first": 1, "attempts": 1},
        {"kind": "rate_limit", "in_ms": True},
        {"rate": 0.1},
        "cut",
        {"kind": "cut", "always": False},
        {"kind": "batch_drop"},
        {"kind": "batch_status", "op": "make"},
        {"kind": "batch_status", "status": 200},
        {"kind": "batch_slow", "match": "x"},
        {"kind": "batch_omit", "lines": [0]},
        {"kind": "batch_reject", "lines": [1]},
        {"kind": "batch_foreign_line", "form": "odd"},
        {"kind": "batch_shuffle", "at": 0},
        {"kind": "batch_paged", "at": 1},
        {"kind": "cut", "op": "create"},
        {"kind": "batch_status", "in_ms": True},
    ]
    with pytest.raises(SimulatorError) as caught:
        parse_rules(rules, "f.yml")
    known, selectors = ", ".join(FAULTS), "rate, at, match, first, attempts, always"
    assert caught.value.problems[:11] == [
        f"f.yml: faults[0]: unknown kind 'rate_limt'; did you mean 'rate_limit'?; known: {known}",
        f"f.yml: faults[1]: unknown key 'rat'; did you mean 'rate'?; known: {selectors}, after_bytes",
        "f.yml: faults[2]: 'quota' takes no key 'retry_after'; it is for: rate_limit, server_error, batch_status",
        "f.yml: faults[3].rate: must be a share from 0 to 1, not 1.5",
        "f.yml: faults[4].at: must be a list of request numbers, counted from 1, not [0]",
        "f.yml: faults[5].status: must be a status from 500 to 599, not 404",
        "f.yml: faults[6]: `first` and `attempts` mean the same; write one of them",
        "f.yml: faults[7].in_ms: says how `retry_after` is told, which is missing; add it",
        f"f.yml: faults[8]: `kind` is missing; known: {known}",
        "f.yml: faults[9]: a rule is a mapping with a `kind`, not 'cut'",
        "f.yml: faults[10].always: must be true (or left out), not False",
    ]
    beginnings = [
        "[11]: unknown kind 'batch_drop'; did you mean 'batch_",
        f"[12].op: must be one of {', '.join(OPERATIONS)}, not 'make'",
        "[13].status: must be a status from 400 to 599, not 200",
        "[14]: 'batch_slow' takes no key 'match'; it is for: rate_limit, ",
        "[15].lines: must be a list of numbers of a batch's requests, counted from 1, not [0]",
        "[16]: 'batch_reject' takes no key 'lines'; it is for: batch_line_status, ",
        "[17].form: must be one of unknown, null, ",
        "[18].at: must be a list of numbers of calls, counted from 1 for each operation, not 0",
        "[19]: 'batch_paged' takes no key 'at'; it is for: ",
        "[20]: 'cut' takes no key 'op'; it is for: batch_drop_before, ",
        "[21].in_ms: says how `retry_after` is told, which is missing; add it",
    ]
    for said, beginning in zip(caught.value.problems[11:], beginnings, strict=True):
        assert said.startswith(f"f.yml: faults{beginning}")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("f.json", b"[\n {]", "{path}:2:3: not valid JSON: "),
        ("f.yml", b"- {kind: cut}\n- {kind: cut\n- a", "{path}:3:4: not valid YAML: "),
        ("f.yml", b"- a: 1\n- [b\n", "{path}:3:1: not valid YAML: "),
        ("f.yml", b"- a\n- b\x07\n", "{path}:2:4: not valid YAML: the character U+0007"),
        ("f.yml", b"- 2026-13-40\n", "{path}: not valid YAML: "),
        ("f.yml", b"- caf\xe9\n", "{path}: byte 6 is not UTF-8; save the file as UTF-8"),
        ("f.yml", b"kind: cut", "{path}: a faults file is a list of rules"),
        ("f.yml", None, "no such file: {path}"),
        (".", None, "{path}: the file cannot be read: "),
    ],
)
def test_unreadable_faults_file_is_named(tmp_path: Path, name: str, text: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(SimulatorError) as caught:
        load_rules(path)
    (said,) = caught.value.problems
    assert said.startswith(problem.format(path=path))
    assert "unicode string" not in said
    assert "\n" not in said
