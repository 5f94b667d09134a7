"""What every dialect promises, streamed or not. A new one adds a line to MEMBERS and its recorded bodies beside the
others'.

Recorded replies are in `replies/<dialect>.json`, where `differs` says what a body has that the first one has not. What
servers say in words of their own (ends, refusals, headers, usage, streams) is in the tables of `words`: test_words.py.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.canned import Answer, Talk, serving

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import (
    AssistantMessage,
    Fault,
    FaultKind,
    Finish,
    Message,
    Params,
    Reply,
    Request,
    Schema,
    SharedPrefix,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolResult,
    WebSource,
)
from agac.providers.bodies import encode
from agac.providers.citations import MAX_SOURCES, MAX_TITLE, MAX_URL
from agac.providers.dialect import STREAMED, Assembly, Dialect, asking
from agac.providers.event_stream import Events
from agac.providers.known_providers import ANTHROPIC, OPENAI, SHIPPED
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS
from agac.providers.thinking import without_thinking
from agac.providers.transport import GarbledStream
from agac.simulator.anthropic import MESSAGES as MESSAGES_API
from agac.simulator.chat import CHAT
from agac.simulator.model_calls import ModelCall
from agac.simulator.openai import RESPONSES
from agac.simulator.replies import AnswerMessage, ModelAnswer, ModelApi, server_sent
from agac.simulator.tool_calls import HostedUse

HERE = Path(__file__).parent
CANARY = "sk-canary-0123456789abcdef"
REDACTOR = Redactor([CANARY])


async def openai_sdk(base_url: str, body: dict[str, Any]) -> None:
    """Sends the body through the openai SDK, whose types and wire names are OpenAI's own."""
    import openai

    async with openai.AsyncOpenAI(api_key="sk-test", base_url=base_url, max_retries=0) as client:
        create: Any = client.chat.completions.create if "messages" in body else client.responses.create
        await create(**body)


async def anthropic_sdk(base_url: str, body: dict[str, Any]) -> None:
    """The same for Anthropic. Sampling is no argument of its SDK any more."""
    import anthropic

    sampling = {name: body[name] for name in ("temperature", "top_p", "top_k") if name in body}
    named = {name: value for name, value in body.items() if name not in sampling}
    place = base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(api_key="sk-test", base_url=place, max_retries=0) as client:
        await client.messages.create(**named, extra_body=sampling)


@dataclass(frozen=True)
class Member:
    name: str
    provider: Provider
    sdk: Callable[[str, dict[str, Any]], Awaitable[None]]
    """Sends the built body as keyword arguments through the maker's own SDK."""
    items: str
    """Where a built body has its messages."""
    api: ModelApi
    """The simulator's side of it."""
    delta: Callable[[str], Any]
    """A piece of an answer in a stream."""
    thought: Callable[[str], Any]
    """The same of thinking."""
    always: tuple[str, ...] = ()
    """Headers that go with every request, key or no key."""

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.name]

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The recorded replies, with whole bodies."""
        cases = json.loads((HERE / "replies" / f"{self.name}.json").read_text("utf-8"))
        first = next(iter(cases.values()))["body"]
        return [{"name": name, "body": patched(first, case.get("differs", {})), **case} for name, case in cases.items()]


def patched(body: Any, patch: Any) -> Any:
    """The body with what differs in it: objects member by member, of a list its first item (or, in a list, whichever it
    is `like`), anything else as a whole."""
    if isinstance(patch, dict) and isinstance(body, list):
        return [patched(body[0], patch), *body[1:]]
    if isinstance(patch, dict) and isinstance(body, dict):
        return {**body, **{name: patched(body.get(name), value) for name, value in patch.items() if name != "like"}}
    if isinstance(patch, list) and isinstance(body, list):
        return [patched(body[one["like"]], one) if isinstance(one, dict) and "like" in one else one for one in patch]
    return patch


def piece(index: int, kind: str, text: str) -> dict[str, Any]:
    """A piece of a message of Anthropic's."""
    delta = {"type": f"{kind}_delta", kind: text}
    return {"type": "content_block_delta", "index": index, "delta": delta}


MEMBERS = [
    Member(
        "openai-chat",
        OPENAI,
        openai_sdk,
        "messages",
        CHAT,
        lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]},
        lambda text: {"choices": [{"index": 0, "delta": {"reasoning_content": text}}]},
    ),
    Member(
        "openai-responses",
        replace(SHIPPED["responses"], name="openai"),  # whom the recorded errors name
        openai_sdk,
        "input",
        RESPONSES,
        lambda text: {"type": "response.output_text.delta", "delta": text},
        lambda text: {"type": "response.reasoning_summary_text.delta", "delta": text},
    ),
    Member(
        "anthropic",
        ANTHROPIC,
        anthropic_sdk,
        "messages",
        MESSAGES_API,
        partial(piece, 1, "text"),
        partial(piece, 0, "thinking"),
        ("anthropic-version",),
    ),
]

members = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)


def recorded_replies() -> list[Any]:
    return [
        pytest.param(member, case, id=f"{member.name}: {case['name']}") for member in MEMBERS for case in member.replies
    ]


def body_of(case: dict[str, Any]) -> bytes:
    return case["body"].encode() if isinstance(case["body"], str) else json.dumps(case["body"]).encode()


def parse(member: Member, status: int, headers: dict[str, str], body: bytes) -> Reply | Fault:
    return member.dialect.parse(status, headers, body, provider=member.provider, model="the-model", redactor=REDACTOR)


@contextmanager
def recording(answer: bytes) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server on loopback that answers every POST with `answer`: its base URL, and the paths and bodies that came."""
    seen: list[tuple[str, bytes]] = []

    def take(talk: Talk) -> Answer:
        seen.append((talk.path, talk.asked().body))
        return Answer(answer, headers={"content-type": "application/json"})

    with serving(take) as url:
        yield url, seen


SCHEMA = Schema(
    "verdict",
    {
        "type": "object",
        "properties": {
            "sentiment": {"type": "string", "enum": ["good", "bad"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["sentiment", "tags"],
        "additionalProperties": False,
    },
)
MESSAGES = (Message("system", "You classify reviews."), Message("user", "Grüße, „so gut“ 🎉\n\x00"))
TOOLS = (
    ToolDefinition("read", "Reads.", {"type": "object", "properties": {"path": {"type": "string"}}}),
    ToolDefinition("search", "Searches.", {**SCHEMA.body, "required": ["sentiment", "tags"]}),
)
CALLS = (ToolCall("call_a", "search", '{"q":"a"}'), ToolCall("call_b", "read", "no JSON"))
RESULTS = ToolMessage("tool", "", (ToolResult("call_a", "found: ü"), ToolResult("call_b", "no such file", True)))
TURN = (*MESSAGES, AssistantMessage("assistant", "Let me see.", CALLS), RESULTS)
REQUESTS = {
    "tools": Request(MESSAGES, SCHEMA, tools=TOOLS),
    "tools, one at a time": Request(MESSAGES, tools=TOOLS, parallel_tools=False),
    "results of tools": Request(TURN, tools=TOOLS),
    "calls without a word, and the last turn": Request(
        (*MESSAGES, AssistantMessage("assistant", "", CALLS[:1]), RESULTS, Message("user", "Answer.")),
        tools=TOOLS,
        tool_choice="none",
    ),
    "a prefix": Request(MESSAGES, prefix=SharedPrefix(1, "agac:1")),
    "a prefix, and a schema": Request(MESSAGES, SCHEMA, prefix=SharedPrefix(1, "agac:1")),
    "the prefix of a conversation": Request(TURN, tools=TOOLS, prefix=SharedPrefix(1, "agac:1")),
    "a prefix of tools": Request(MESSAGES[1:], tools=TOOLS, prefix=SharedPrefix(0, "agac:1")),
    "tools that the provider runs": Request(MESSAGES, SCHEMA, Params(web_search="on", x_search="on", web_fetch="2")),
    "both kinds of tools": Request(MESSAGES, None, Params(web_search="3"), TOOLS),
    "text": Request(MESSAGES),
    "no system message": Request(MESSAGES[1:]),
    "a dialogue": Request((*MESSAGES, Message("assistant", "{"), Message("user", "That is no JSON."))),
    "a schema": Request(MESSAGES, SCHEMA),
    "a loose schema": Request(MESSAGES, Schema("any", {"type": "object"})),
    "a list for a schema": Request(MESSAGES, Schema("tags", {"type": "array", "items": {"type": "string"}})),
    "every parameter": Request(
        MESSAGES,
        SCHEMA,
        Params(
            temperature=0.2, top_p=0.9, max_tokens=400, presence_penalty=0.1, frequency_penalty=-0.1,
            stop=("END", "\n\n"), seed=7, reasoning="low", service_tier="flex",
        ),
    ),
}  # fmt: skip
requests = pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())


@members
@requests
def test_the_makers_sdk_sends_the_same_body(member: Member, request_: Request) -> None:
    built = member.dialect.build(request_, "gpt-5.4-mini", member.provider)
    with recording(body_of(member.replies[0])) as (url, seen):
        asyncio.run(member.sdk(url, built))
    [(path, body)] = seen
    assert path == "/v1" + member.dialect.path
    assert json.loads(body) == json.loads(encode(built))


@pytest.mark.parametrize(
    ("row", "asked", "expected"),
    [
        ("responses", {"web_search": "on"}, [{"type": "web_search"}]),
        ("xai-responses", {"web_search": "on", "x_search": "on"}, [{"type": "web_search"}, {"type": "x_search"}]),
        ("anthropic", {"web_search": "3"}, [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]),
        ("anthropic", {"web_fetch": "on"}, [{"type": "web_fetch_20250910", "name": "web_fetch"}]),
        ("anthropic", {}, None),
        ("openai", {"web_search": "on"}, None),  # refused before it comes to that
    ],
)
def test_tools_that_a_provider_runs_stand_before_the_stages_own(row: str, asked: Any, expected: Any) -> None:
    provider = SHIPPED[row]
    build = DIALECTS[provider.dialect].build
    assert build(Request(MESSAGES, params=Params(**asked)), "m", provider).get("tools") == expected
    both: Any = build(Request(MESSAGES, params=Params(**asked), tools=TOOLS), "m", provider)["tools"]
    assert both[: len(expected or ())] == (expected or [])
    assert len(both) == len(expected or ()) + len(TOOLS)


EXAMPLES = (MESSAGES[0], Message("user", "Bad."), Message("assistant", "bad"), MESSAGES[1])


def marked(value: Any, at: str = "") -> Iterator[str]:
    """Where a body has marks of either kind."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        if name in ("cache_control", "prompt_cache_breakpoint"):
            yield at
        yield from marked(one, f"{at}.{name}".removeprefix("."))


@pytest.mark.parametrize(
    ("kind", "model", "request_", "marks"),
    [
        (0, "gpt-5.4-mini", "a prefix", []),
        (0, "gpt-5.6-mini", "text", []),
        (0, "gpt-5.6-mini", "a prefix", ["messages.0.content.0"]),
        (0, "gpt-6", "the prefix of a conversation", ["messages.0.content.0"]),
        (0, "gpt-5.10", "a prefix of tools", []),
        (1, "gpt-5.4", "a prefix", []),
        (1, "gpt-5.6", "a prefix", ["input.0.content.0"]),
        (1, "gpt-5.6", Request(EXAMPLES, prefix=SharedPrefix(3, "agac:1")), ["input.0.content.0"]),
        (2, "claude-sonnet-5", "text", []),
        (2, "claude-sonnet-5", "a prefix", ["system.0"]),
        (2, "claude-sonnet-5", "a prefix, and a schema", ["system.0"]),
        (2, "m", "the prefix of a conversation", ["system.0", "messages.2.content.1"]),
        (2, "m", "a prefix of tools", ["messages.0.content.0", "tools.1"]),
        (2, "m", Request(EXAMPLES, prefix=SharedPrefix(3, "agac:1")), ["messages.1.content.0"]),
    ],
)
def test_the_end_of_a_shared_prefix_is_marked_where_it_has_to_be(
    kind: int, model: str, request_: str | Request, marks: list[str]
) -> None:
    member = MEMBERS[kind]
    asked = REQUESTS[request_] if isinstance(request_, str) else request_
    built = member.dialect.build(asked, model, member.provider)
    assert sorted(marked(built)) == sorted(marks)
    assert built.get("prompt_cache_key") == ("agac:1" if asked.prefix and kind < 2 else None)
    with recording(body_of(member.replies[0])) as (url, seen):
        asyncio.run(member.sdk(url, built))
    assert json.loads(seen[0][1]) == json.loads(encode(built))
    # nobody is told what it may not know
    other = member.dialect.build(asked, model, replace(member.provider, cache="automatic"))
    assert not list(marked(other))
    assert "prompt_cache_key" not in other


@members
@requests
def test_a_request_is_built_the_same_each_time_and_left_as_it_was(member: Member, request_: Request) -> None:
    before = deepcopy(request_)
    first = encode(member.dialect.build(request_, "m", member.provider))
    assert first == encode(member.dialect.build(request_, "m", member.provider))
    assert request_ == before


@requests
@pytest.mark.parametrize("row", SHIPPED.values(), ids=SHIPPED.keys())
def test_every_shipped_provider_can_be_asked(request_: Request, row: Provider) -> None:
    wire = DIALECTS[row.dialect].build(request_, "m", row)
    assert None not in wire.values()
    assert json.loads(encode(wire))["model"] == "m"


@members
@given(st.text())
def test_any_text_survives_the_way_to_the_wire(member: Member, text: str) -> None:
    wire = json.loads(encode(member.dialect.build(Request((Message("user", text),)), "m", member.provider)))
    assert wire[member.items] == [{"role": "user", "content": text}]


@members
def test_a_lone_surrogate_travels_as_its_escape(member: Member) -> None:
    request = Request((Message("user", "before \ud83d after, grüße"),))
    sent = encode(member.dialect.build(request, "m", member.provider))
    assert b"\\ud83d" in sent
    assert json.loads(sent)[member.items][0]["content"] == "before \ud83d after, grüße"


@pytest.mark.parametrize(("member", "case"), recorded_replies())
def test_a_recorded_reply_is_read(member: Member, case: dict[str, Any]) -> None:
    found = parse(member, 200, {}, body_of(case))
    assert isinstance(found, Reply)
    reply, expected = found._asdict(), case["expect"]
    reply["usage"] = {name: getattr(found.usage, name) for name in expected.get("usage", ())}
    reply["calls"] = [asdict(call) for call in found.calls]
    assert {name: list(value) if isinstance(value := reply[name], tuple) else value for name in expected} == expected


@members
def test_an_answer_without_a_text_may_have_taken_no_tokens(member: Member) -> None:
    body = member.api.reply(ask_for(), ModelAnswer(""))
    assert isinstance(found := parse(member, 200, {}, encode(body)), Reply)
    assert (found.usage.input_tokens, found.usage.output_tokens, found.text) == (3, 0, "")


WROTE_NO_TEXT: list[tuple[int, dict[str, Any]]] = [
    (0, {"role": "assistant", "content": "", "reasoning_content": "Hm."}),
    (0, {"role": "assistant", "content": None, "reasoning": "Hm."}),
    (0, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]}),
    (0, {"role": "assistant", "content": None, "refusal": "I cannot."}),
    (1, {"type": "reasoning", "summary": []}),
    (1, {"type": "message", "content": [{"type": "refusal", "refusal": "I cannot."}]}),
    (2, {"type": "thinking", "thinking": "Hm.", "signature": "s"}),
]


@pytest.mark.parametrize(("at", "written"), WROTE_NO_TEXT)
def test_thinking_and_refusals_take_tokens_too(at: int, written: dict[str, Any]) -> None:
    body = {**MEMBERS[at].api.reply(ask_for(), ModelAnswer(""))}
    if at == 0:
        body["choices"] = [{"index": 0, "message": written, "finish_reason": "stop"}]
    else:
        body["output" if at == 1 else "content"] = [written]
    assert isinstance(found := parse(MEMBERS[at], 200, {}, encode(body)), Reply)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (3, None)


@members
def test_a_stream_that_counts_nothing_tells_of_no_tokens(member: Member) -> None:
    answer = ModelAnswer("an answer", counts_nothing=True)
    stream = b"".join(server_sent(one) for one in member.api.events(ask_for(), answer))
    _, body = assembled(member, stream, [])
    assert isinstance(found := parse(member, 200, {}, body), Reply)
    assert (found.text, found.usage.input_tokens, found.usage.output_tokens) == ("an answer", None, None)


def test_the_placeholder_at_the_beginning_of_a_message_is_no_count() -> None:
    events = list(MEMBERS[2].api.events(ask_for(), ModelAnswer("an answer")))
    for event in events:
        event.pop("usage", None) if isinstance(event, dict) else None
    _, body = assembled(MEMBERS[2], sse(*events), [])
    assert isinstance(found := parse(MEMBERS[2], 200, {}, body), Reply)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (3, None)


def test_a_zero_at_the_end_of_a_message_takes_no_count_back() -> None:
    events = [
        {**event, "usage": {**event["usage"], "input_tokens": 0}} if event.get("type") == "message_delta" else event
        for event in MEMBERS[2].api.events(ask_for(), ModelAnswer("an answer"))
    ]
    _, body = assembled(MEMBERS[2], sse(*events), [])
    assert isinstance(found := parse(MEMBERS[2], 200, {}, body), Reply)
    assert found.usage.input_tokens == 3


THINKING: list[tuple[str, str]] = [
    # a text, and the answer in it
    ("<think>Hm.</think>It is.", "It is."),
    ("<think>\n\n</think>\n\nIt is.", "It is."),
    ("\n<think>\nHm.\n</think>\n\nIt is.", "It is."),
    ("<think>One.</think>\n<think>Two.</think>\nIt is.", "It is."),
    ("<think>I must write `</think>` at the end.</think>It is.", "It is."),
    ("[THINK]Hm.[/THINK]It is.", "It is."),
    ("<seed:think>Hm.</seed:think>It is.", "It is."),
    ("<thought>Hm.</thought>It is.", "It is."),
    ("<thinking>Hm.</thinking>\n\nIt is.", "It is."),
    ("\ufeff\u200b<think>Hm.</think>It is.", "It is."),
    ("Hm.\n</think>\n\nIt is.", "It is."),
    ("Hm.</think>It is.", "It is."),
    ('Hm, {"a": 0} will not do </think> {"a": 1}', '{"a": 1}'),
    ('Hm.\n</think>\n```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```'),
    ("<think>Nothing more.</think>", ""),
    *((text, text) for text in (
        "It is.",
        "The tag </think> ends what a model thinks.",
        "Close it with `</think>`, or with '</think>'.",
        "Write <think> first, then </think>.",
        "Such a block:\n```\n</think>\n```\nends it.",
        "Such a block:\n<think>\nHm.\n</think>\nis hidden.",
        "<think> is the name of a tag.",
        '{"text": "Hm.</think>It is."}',
        '{"text": "<think>Hm.</think>It is."}',
        '[{"text": "Hm.\\n</think>"}]',
    )),
]  # fmt: skip


@members
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize(("text", "expected"), THINKING, ids=range(len(THINKING)))
def test_thinking_in_a_text_is_no_part_of_the_answer(member: Member, text: str, expected: str, streamed: bool) -> None:
    body = member.api.body(ask_for(), ModelAnswer(text))
    if streamed:
        _, body = assembled(member, b"".join(map(server_sent, member.api.events(ask_for(), ModelAnswer(text)))), [])
    assert isinstance(found := parse(member, 200, {}, body), Reply)
    assert (found.text, found.others, found.finish) == (expected, (), Finish.STOP)


@members
@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["<think>", "Hm", ".</think>", "\n\nIt", " is."], ["It", " is."]),
        (["<thi", "nk>Hm.</th", "ink>It is."], ["It is."]),
        (["<", "b>", "It is."], ["<b>", "It is."]),
        ([" ", "It is."], [" ", "It is."]),
        (["<"], ["<"]),
    ],
)
def test_a_stream_shows_no_thinking_that_its_text_begins_with(
    member: Member, pieces: list[str], shown: list[str]
) -> None:
    assembly, heard = member.dialect.assembly(), list[str]()
    assembly.heard = heard.append
    for at, one in enumerate(pieces):
        assembly.take(member.delta(one))
        if one.startswith("<thi"):
            assert assembly.answering_at is None, f"piece {at} is thinking"
    assembly.finish()
    assert [one.lstrip() for one in heard] == [one.lstrip() for one in shown]
    assert assembly.answering_at is not None


@members
def test_thinking_that_was_cut_is_no_answer(member: Member) -> None:
    body = member.api.body(ask_for(), ModelAnswer("<think>Hm, this takes", "length"))
    assert isinstance(found := parse(member, 200, {}, body), Reply)
    assert (found.text, found.finish) == ("", Finish.LENGTH)


@pytest.mark.parametrize("text", ["<think></think>", "</think> ", "`</think>`", "<think>", " </think> x", "[THINK]"])
def test_a_text_of_many_marks_is_read_once(text: str) -> None:
    long = without_thinking(text * 20_000 + "It is.")
    assert long.endswith("It is.")


UNREADABLE = [
    b"", b"not json", b'{"choices": ', b"[]", b"null", b"7", b'"text"', b"{}", b'{"choices": 3}', b'{"output": 3}',
    b'{"content": 3}', b'{"type": "message", "content": null}', b'{"output": [], "status": "in_progress"}',
    b"\xff\xfe", b"[" * 100_000,
]  # fmt: skip


@members
@pytest.mark.parametrize("body", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_good_status_without_a_reply_may_have_been_billed(member: Member, body: bytes) -> None:
    found = parse(member, 200, {}, body)
    assert isinstance(found, Fault)
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.PROVIDER_ERROR, True)


@members
def test_a_body_that_is_not_json_is_quoted_from_its_beginning_without_secrets(member: Member) -> None:
    page = f"<html>\nSign in, {CANARY}" + "x" * 1000
    found = parse(member, 200, {}, page.encode())
    assert isinstance(found, Fault)
    assert "(it begins with '<html>\\nSign in" in found.message
    assert CANARY[:12] not in found.message
    assert len(found.message) < 200


NAMES = """error choices message content code type usage details detail object text output status incomplete_details
stop_reason stop_details error_code response item delta index headers content_block thinking
tool_calls function function_call arguments id call_id name input partial_json tool_usage web_search server_tool_use
server_side_tool_usage_details action message"""
EVENTS = """error response.completed response.output_item.done message_start message_delta message_stop
content_block_start content_block_delta text_delta thinking_delta input_json_delta tool_use function_call
web_search_call response.function_call_arguments.delta"""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES.split()) | st.text(max_size=3), inner | st.sampled_from(EVENTS.split()), max_size=5
        )
    ),
    max_leaves=25,
)
header_names = [
    "retry-after", "retry-after-ms", "x-should-retry", "date", "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset",
]  # fmt: skip
any_headers = st.dictionaries(
    st.sampled_from(header_names), st.text() | st.sampled_from(["-1", "nan", "1e999", "1h2m"])
)


@members
@given(st.integers(100, 999), any_headers, json_values)
def test_nothing_that_a_server_says_raises(member: Member, status: int, headers: dict[str, str], body: Any) -> None:
    found = parse(member, status, headers, json.dumps(body).encode())
    if isinstance(found, Fault):
        assert found.delay is None or 0 <= found.delay < float("inf")
        assert len(found.message) < 1500
    else:
        assert 200 <= status < 300
    member.dialect.rates(headers)


@members
@given(st.integers(100, 999), st.binary(max_size=200))
def test_no_bytes_raise(member: Member, status: int, body: bytes) -> None:
    parse(member, status, {}, body)


@members
def test_a_provider_without_a_key_is_sent_none(member: Member) -> None:
    keyless = Provider(name="local", dialect=member.name, base_url="http://127.0.0.1/v1")
    assert set(member.dialect.headers(keyless)) == set(member.always)
    assert CANARY in str(member.dialect.headers(Provider("x", member.name, "http://127.0.0.1/v1", api_key=CANARY)))


def test_every_dialect_is_under_contract() -> None:
    assert {member.name for member in MEMBERS} == set(DIALECTS)


@pytest.mark.parametrize("filler", ["", "null", None])
def test_a_stream_that_breaks_off_is_not_whole_though_each_piece_fills_in_an_end(filler: str | None) -> None:
    pieces = [{"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": filler}]} for word in "ab"]
    assembly, _ = assembled(MEMBERS[0], sse(*pieces), [])
    assert not assembly.is_whole()
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    _, body = assembled(MEMBERS[0], sse(*pieces, last, pieces[0]), [])
    assert isinstance(found := parse(MEMBERS[0], 200, {}, body), Reply)
    assert found.finish is Finish.LENGTH


def test_a_messages_second_delta_takes_the_end_of_the_first_not_back() -> None:
    events = list(MEMBERS[2].api.events(ask_for(), ModelAnswer("an answer", finish="length")))
    at = next(place for place, event in enumerate(events) if event.get("type") == "message_delta")
    events.insert(at + 1, {**events[at], "delta": {"stop_reason": None, "stop_sequence": None}})
    _, body = assembled(MEMBERS[2], sse(*events), [])
    assert isinstance(found := parse(MEMBERS[2], 200, {}, body), Reply)
    assert found.finish is Finish.LENGTH


def test_a_status_of_a_response_is_the_same_in_capitals() -> None:
    body = {**MEMBERS[1].api.reply(ask_for(), ModelAnswer("an answer")), "status": "COMPLETED"}
    assert isinstance(parse(MEMBERS[1], 200, {}, encode(body)), Reply)


# Streams: put together, events say what the same answer says when it is not streamed.


def ask_for(text: str = "hello") -> ModelCall:
    messages = (("user", text),)
    return ModelCall("small", messages, digest=b"0" * 16, prompt_tokens=3, stream=True, include_usage=True)


def assembled(member: Member, stream: bytes, sizes: list[int]) -> tuple[Assembly, bytes]:
    """The stream, read in chunks of these sizes and then whole."""
    assembly, events = member.dialect.assembly(), Events()
    for size in [*sizes, len(stream)]:
        for event in events.feed(stream[:size]):
            assembly.take(event)
        stream = stream[size:]
    return assembly, encode(assembly.result()[2]) if assembly.finish() else b""


def tokens(assembly: Assembly) -> tuple[bool, bool]:
    """Whether a token has come, and one of the answer."""
    return assembly.begun_at is not None, assembly.answering_at is not None


answers = st.one_of(
    st.builds(ModelAnswer, content=st.text(), finish=st.sampled_from(["stop", "length", "content_filter"])),
    st.builds(ModelAnswer, content=st.none(), refusal=st.text(min_size=1)),
    st.builds(
        ModelAnswer,
        content=st.text(),
        earlier=st.lists(st.builds(AnswerMessage, text=st.text(), cut=st.booleans()), max_size=2).map(tuple),
    ),
)


@members
@given(answers, st.lists(st.integers(1, 200), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_the_same_reply_streamed_or_not(member: Member, answer: ModelAnswer, sizes: list[int], ending: bytes) -> None:
    ask = ask_for()
    whole = parse(member, 200, {}, member.api.body(ask, answer))
    assembly, body = assembled(
        member, b"".join(map(server_sent, member.api.events(ask, answer))).replace(b"\n", ending), sizes
    )
    assert assembly.done
    assert parse(member, 200, {}, body) == whole
    told = answer.messages if member.name == "openai-responses" else answer.messages[-1:]
    refused = member.name == "anthropic" and answer.finish == "content_filter"  # it knows no other filter
    told_any = refused or any(m.text or m.refusal for m in told)
    assert tokens(assembly) == (told_any, told_any)


@members
@given(st.text(min_size=1), st.integers(0))
def test_a_stream_that_is_cut_is_not_whole(member: Member, text: str, where: int) -> None:
    events = list(map(server_sent, member.api.events(ask_for(), ModelAnswer(text))))
    # a completion's last two say the usage and that it is over; without them its reason to stop is its end
    end = len(events) - (3 if member.name == "openai-chat" else 1)
    assembly, _ = assembled(member, b"".join(events[: where % (end + 1)]), [])
    assert not assembly.finish()


@members
def test_the_first_token_may_be_one_of_thinking(member: Member) -> None:
    assembly = member.dialect.assembly()
    assembly.take(member.delta(""))
    assembly.take(member.thought(""))
    assert tokens(assembly) == (False, False)
    assembly.take(member.thought("hm"))
    assert tokens(assembly) == (True, False)
    assembly.take(member.delta("42"))
    assert tokens(assembly) == (True, True)


@members
@given(st.lists(json_values, max_size=5))
def test_no_event_makes_it_stumble(member: Member, events: list[Any]) -> None:
    assembly = member.dialect.assembly()
    for event in events:
        assembly.take(event)
    if assembly.finish():
        status, headers, body = assembly.result()
        assert 200 <= status < 600
        assert all(isinstance(value, str) for value in headers.values())
        parse(member, 200, {}, encode(body))


@members
def test_what_asks_for_a_stream_leaves_the_body_a_body(member: Member) -> None:
    dialect = DIALECTS[member.name]
    asked = json.loads(asking(b'{"model":"m","n":[1]}', STREAMED + dialect.asks_usage))
    assert asked["stream"] is True
    assert (asked["model"], asked["n"]) == ("m", [1])
    if dialect.socket_asks is not None:
        created = json.loads(asking(b'{"model":"m"}', dialect.socket_asks))
        assert created == {"type": "response.create", "model": "m"}


def test_an_event_may_take_several_lines_with_comments_between_them_and_is_json() -> None:
    stream = b': hello\nid: 7\nevent: x\ndata: {"a":\ndata:1}\n\n: ping\n\ndata: [DONE]\n\ndata: {"lost": 1}\n'
    assert list(Events().feed(stream)) == [{"a": 1}, None]
    with pytest.raises(GarbledStream):
        list(Events().feed(b"data: <html>\n\n"))


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def chat_pieces(*deltas: dict[str, Any], finish: str = "tool_calls") -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    return sse(*({"choices": [one]} for one in [*choices, {"index": 0, "delta": {}, "finish_reason": finish}]))


def chat_call(arguments: str, index: int | None = None, call_id: str = "", name: str = "") -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    place = {**({} if index is None else {"index": index}), **({"id": call_id} if call_id else {})}
    return {"tool_calls": [{**place, "function": function}]}


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def json_piece(text: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": text}


REASONED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
CALLED = {"type": "function_call", "call_id": "call_a", "name": "search", "arguments": '{"q":"a"}', "id": "fc_1"}
THOUGHT = {"type": "thinking", "thinking": "", "signature": ""}
USED = {"type": "tool_use", "id": "call_a", "name": "search", "input": {}}
SEARCHED = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "x"}]}
PAUSED = sse(
    {"type": "message_start", "message": {"content": []}},
    *block(0, SEARCHED, json_piece('{"query":'), json_piece('"a"}')),
    *block(1, FOUND),
    {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"server_tool_use": {
        "web_search_requests": 2, "web_fetch_requests": 0}}},
    {"type": "message_stop"},
)  # fmt: skip
ONE = [["call_a", "search", '{"q":"a"}']]

STREAMED_TURNS: dict[str, tuple[int, bytes, list[list[str]], list[Any]]] = {
    # the calls, and what of the message goes back as it came: in the order of the members
    "chat: by index": (
        0,
        chat_pieces(
            {"content": "Let me see.", "reasoning_content": "Hm"},
            chat_call("", 0, "call_a", "search"), chat_call('{"q":', 0), chat_call('{"p', 1, "call_b", "read"),
            chat_call('"a"}', 0), chat_call('ath":1}', 1),
        ),
        [*ONE, ["call_b", "read", '{"path":1}']],
        ["Let me see.", "Hm"],
    ),
    "chat: each piece with an id of its own (vLLM)": (
        0, chat_pieces(chat_call("", 0, "call_a", "search"), chat_call('{"q":"a"}', 0, "call_x")), ONE, ["call_a"],
    ),
    "chat: all at the same index, with signatures (Gemini), which says stop": (
        0,
        chat_pieces(
            {"tool_calls": [
                {"index": 0, "id": one, "function": {"name": "read", "arguments": "{}"},
                 "extra_content": {"google": {"thought_signature": one + "-signed"}}} for one in ("g1", "g2")
            ]},
            finish="stop",
        ),
        [["g1", "read", "{}"], ["g2", "read", "{}"]],
        ["g1-signed", "g2-signed"],
    ),
    "chat: without index and id": (
        0, chat_pieces(chat_call("{}", name="read"), chat_call('{"q":"a"}', name="search")),
        [["call_0", "read", "{}"], ["call_1", "search", '{"q":"a"}']], ["call_1"],
    ),
    "responses": (
        1,
        sse(
            {"type": "response.output_item.done", "item": REASONED},
            {"type": "response.function_call_arguments.delta", "delta": '{"q'},
            {"type": "response.output_item.done", "item": CALLED},
            {"type": "response.completed", "response": {"status": "completed", "output": []}},
        ),
        ONE,
        [REASONED, CALLED],
    ),
    "anthropic": (
        2,
        sse(
            {"type": "message_start", "message": {"content": []}},
            *block(0, THOUGHT, {"type": "thinking_delta", "thinking": "Hm"},
                   {"type": "signature_delta", "signature": "sig"}),
            *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me see."}),
            *block(2, USED, json_piece(""), json_piece('{"q":'), json_piece('"a"}')),
            *block(3, {**USED, "id": "call_b", "name": "read"}),
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ),
        [*ONE, ["call_b", "read", "{}"]],
        [{**THOUGHT, "thinking": "Hm", "signature": "sig"}, {**USED, "input": {"q": "a"}}],
    ),
    "anthropic: paused": (2, PAUSED, [], [{**SEARCHED, "input": {"query": "a"}}, FOUND]),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "stream", "calls", "kept"), STREAMED_TURNS.values(), ids=STREAMED_TURNS.keys())
def test_calls_of_a_stream_are_put_together_and_go_back_with_their_message(
    kind: int, stream: bytes, calls: list[list[str]], kept: list[Any]
) -> None:
    member = MEMBERS[kind]
    assembly, body = assembled(member, stream, [])
    assert tokens(assembly) == (True, True)
    reply = parse(member, 200, {}, body)
    assert isinstance(reply, Reply)
    assert [[one.id, one.name, one.arguments] for one in reply.calls] == calls
    assert assembly.size >= sum(len(one.arguments) for one in reply.calls)  # what a sender bounds
    assert reply.finish is (Finish.TOOLS if calls else Finish.PAUSED)
    assert reply.usage.server_tools == (None if calls else {"web_search": 2})
    results = ToolMessage("tool", "", tuple(ToolResult(one.id, "ok") for one in reply.calls))
    said = AssistantMessage("assistant", reply.text, reply.calls, json.loads(json.dumps(reply.wire)))
    asked = Request((*MESSAGES, said, *([results] if calls else [])), tools=TOOLS)
    with recording(body_of(member.replies[0])) as (url, seen):
        asyncio.run(member.sdk(url, member.dialect.build(asked, "m", member.provider)))
    sent = json.loads(seen[0][1])[member.items]
    for one in kept:
        assert json.dumps(one, sort_keys=True) in json.dumps(sent, sort_keys=True)
    # what another dialect sent is told in words
    for other in MEMBERS:
        if other is not member:
            assert "encrypted" not in str(other.dialect.build(asked, "m", other.provider))


def test_reasoning_without_its_content_is_not_sent_back_to_who_stores_nothing() -> None:
    came = [{"type": "reasoning", "id": "rs_1", "summary": []}, CALLED]
    said = AssistantMessage("assistant", "", (), {"output": came})
    wire: Any = MEMBERS[1].dialect.build(Request((*MESSAGES, said), tools=TOOLS), "m", MEMBERS[1].provider)
    assert [item["type"] for item in wire["input"]] == ["message", "function_call"]


def test_a_tool_is_held_to_its_schema_where_that_can_be() -> None:
    chat, responses, _ = (member.dialect.build(REQUESTS["tools"], "m", member.provider) for member in MEMBERS)
    assert [tool["function"].get("strict") for tool in chat["tools"]] == [None, True]  # type: ignore[union-attr]
    assert [tool["strict"] for tool in responses["tools"]] == [False, True]  # type: ignore[union-attr]
    again = MEMBERS[0].dialect.build(REQUESTS["tools"], "m", MEMBERS[0].provider)
    assert again["tools"] is chat["tools"]  # which is encoded once


def test_answers_that_are_given_back_over_the_responses_api_are_messages() -> None:
    asked = Request((*MESSAGES, Message("assistant", "{"), Message("user", "That is no JSON.")))
    wire: Any = DIALECTS["openai-responses"].build(asked, "m", SHIPPED["responses"])
    assert {item["type"] for item in wire["input"]} == {"message"}


# What models say that their servers do not take back.

NO_OBJECTS = {
    "cut": '{"q": "a', "no JSON": "{no json", "nothing": "", "words after it": '{"q": "a"} as you asked',
    "a list": "[1]", "null": "null", "a text": '"{}"',
    "a number that is none": '{"q": NaN}', "a number too large": '{"q": 1e999}',
    "digits without end": '{"q": ' + "9" * 400 + "}", "a key twice": '{"q": "a", "q": "b"}',
    "half a character": '{"q": "\\ud800"}', "a line break within a text": '{"q": "a\nb"}',
    "more levels than parsers take": '{"q": ' + "[" * 120 + "]" * 120 + "}",
}  # fmt: skip
"""Arguments of calls that are the JSON of no object, or not for every parser."""


def asking_for(member: Member, calls: list[tuple[str | None, str, Any]], text: str = "") -> Reply:
    """A reply that calls tools: id, name and arguments of each."""
    named = [{"name": name, "arguments": arguments} for _, name, arguments in calls]
    ids = [call_id for call_id, *_ in calls]
    if member.name == "openai-chat":
        asked = [
            {"id": one, "type": "function", "function": function} for one, function in zip(ids, named, strict=True)
        ]
        message = {"role": "assistant", "content": text or None, "tool_calls": asked}
        body: Any = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    elif member.name == "openai-responses":
        asked = [
            {"type": "function_call", "call_id": one, **function} for one, function in zip(ids, named, strict=True)
        ]
        body = {"status": "completed", "output": asked}
    else:
        asked = [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments} for call_id, name, arguments in calls
        ]
        said = [{"type": "text", "text": text}] if text else []
        body = {"content": [*said, *asked], "stop_reason": "tool_use"}
    reply = parse(member, 200, {}, json.dumps(body).encode())
    assert isinstance(reply, Reply)
    return reply


def sent_back(member: Member, *replies: Reply) -> list[tuple[str, str, Any]]:
    """Id, name and arguments of each call of a conversation, as they are sent, and the ids of the results."""
    messages: list[Message] = [*MESSAGES]
    for reply in replies:
        results = tuple(ToolResult(one.id, "no", True) for one in reply.calls)
        messages += [reply.message(), ToolMessage("tool", "", results)]
    wire: Any = json.loads(encode(member.dialect.build(Request(tuple(messages), tools=TOOLS), "m", member.provider)))
    found, told = list[tuple[str, str, Any]](), list[str]()
    for item in wire[member.items]:
        for call in item.get("tool_calls") or ():
            function = call["function"]
            found.append((call["id"], function["name"], json.loads(function["arguments"])))
        if item.get("type") == "function_call":
            found.append((item["call_id"], item["name"], json.loads(item["arguments"])))
        blocks = item["content"] if isinstance(item.get("content"), list) else []
        found += [(one["id"], one["name"], one["input"]) for one in blocks if one["type"] == "tool_use"]
        told += [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
        told += [one for one in (item.get("tool_call_id"), item.get("call_id")) if one and "arguments" not in item]
    assert told == [call_id for call_id, *_ in found]
    return found


@pytest.mark.parametrize("arguments", NO_OBJECTS.values(), ids=NO_OBJECTS.keys())
@pytest.mark.parametrize("member", MEMBERS, ids=lambda one: one.name)
def test_arguments_that_are_no_object_go_back_as_an_empty_one(member: Member, arguments: str) -> None:
    reply = asking_for(member, [("call_a", "search", arguments), ("call_b", "read", '{"path":"x"}')])
    assert reply.calls[0].arguments == (arguments or "{}")  # for the error that the model is told
    assert sent_back(member, reply) == [("call_a", "search", {}), ("call_b", "read", {"path": "x"})]
    other = AssistantMessage("assistant", "", reply.calls)  # as another dialect's message is told
    assert sent_back(member, reply._replace(wire=other.wire))[0] == ("call_a", "search", {})


@pytest.mark.parametrize("member", MEMBERS, ids=lambda one: one.name)
def test_arguments_that_are_an_object_go_back_to_the_letter(member: Member) -> None:
    written = '{"q":  "Grüße 🎉", "n": 1.50}'
    (call,) = asking_for(member, [("call_a", "search", written)]).calls
    said = AssistantMessage("assistant", "", (call,))
    wire = str(member.dialect.build(Request((*MESSAGES, said), tools=TOOLS), "m", member.provider))
    assert (written in wire) == (member.name != "anthropic")
    assert sent_back(member, asking_for(member, [("call_a", "search", {"q": [1, {}]})])) == [
        ("call_a", "search", {"q": [1, {}]})
    ]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda one: one.name)
def test_calls_go_back_under_ids_and_names_that_every_server_takes(member: Member) -> None:
    calls: list[tuple[str | None, str, Any]] = [
        (None, "search", "{}"), ("", "read.file/x", "{}"), ("c", "", "{}"), ("c", "n" * 70, "{}"),
    ]  # fmt: skip
    found = sent_back(member, asking_for(member, calls), asking_for(member, calls[:1]), asking_for(member, calls[:1]))
    assert len({call_id for call_id, *_ in found}) == 6
    assert all(call_id for call_id, *_ in found)
    names = [name for _, name, _ in found]
    assert names == ["search", "read_file_x", "unnamed", "n" * 64, "search", "search"]


STRANGE_IDS = [
    "a" * 64, "b" * 65, "b" * 64 + "c", "call|fc_1", "functions.search:0", "é", "two words", "two\nlines", "ab12CD34x",
    "x__thought__" + "s" * 80,
]  # fmt: skip
"""Ids of calls that one server makes and another one refuses."""

TAKEN_IDS = {
    "openai": {*STRANGE_IDS[:1], *STRANGE_IDS[3:7], STRANGE_IDS[8]},
    "anthropic": {*STRANGE_IDS[:3], *STRANGE_IDS[8:]},
    "mistral": {"ab12CD34x"},
    "vllm": {*STRANGE_IDS[:1], *STRANGE_IDS[3:7], *STRANGE_IDS[8:]},
}
"""Those of them that go back as they came."""


@pytest.mark.parametrize(
    ("member", "provider", "taken"),
    [
        (MEMBERS[0], SHIPPED["openai"], "openai"),
        (MEMBERS[0], SHIPPED["azure"], "openai"),
        (MEMBERS[1], SHIPPED["responses"], "openai"),
        (MEMBERS[2], SHIPPED["anthropic"], "anthropic"),
        (MEMBERS[0], SHIPPED["mistral"], "mistral"),
        (MEMBERS[0], SHIPPED["vllm"], "vllm"),
        (MEMBERS[1], SHIPPED["openresponses"], "vllm"),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_an_id_that_a_provider_refuses_goes_back_as_another_one(member: Member, provider: Any, taken: str) -> None:
    asked = replace(member, provider=provider)
    calls: list[tuple[str | None, str, Any]] = [(call_id, "search", "{}") for call_id in STRANGE_IDS]
    replies = asking_for(member, calls), asking_for(member, calls)
    first, second = sent_back(asked, replies[0]), sent_back(asked, *replies)
    ids = [call_id for call_id, *_ in second]
    assert second[: len(first)] == first  # the beginning is the same in each request, so that it is found in a cache
    assert len(set(ids)) == len(ids)
    assert {one for one in STRANGE_IDS if one in ids} == TAKEN_IDS[taken]
    assert [one for one in ids if not re.fullmatch(provider.call_ids, one)] == []
    assert {one for one in ids if one not in STRANGE_IDS and not one.startswith(tuple(STRANGE_IDS))} == {
        one for one in ids if re.fullmatch("[a-zA-Z0-9]{9}", one) and one != "ab12CD34x"
    }
    assert (
        sent_back(asked, *(one._replace(wire=None) for one in replies)) == second
    )  # as it is told without its message


@pytest.mark.parametrize("member", MEMBERS, ids=lambda one: one.name)
def test_half_a_character_that_a_model_said_does_not_go_back(member: Member) -> None:
    reply = asking_for(member, [("call_a", "search", "{}")], text="so \ud800 it is")
    told = (*MESSAGES, reply.message(), Message("assistant", "\ud800"))
    assert b"\\ud800" not in encode(member.dialect.build(Request(told, tools=TOOLS), "m", member.provider))


def test_blocks_that_anthropic_refuses_do_not_go_back() -> None:
    """White space for a text, and thinking that nobody signed."""
    member = MEMBERS[2]
    said = [
        {"type": "thinking", "thinking": "Hm"}, {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "redacted_thinking"}, {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "text", "text": "\n\n"}, {"type": "text", "text": ""}, {"type": "text", "text": "Let me see."}, USED,
    ]  # fmt: skip
    body = {"content": said, "stop_reason": "tool_use"}
    reply = parse(member, 200, {}, json.dumps(body).encode())
    assert isinstance(reply, Reply)
    wire: Any = member.dialect.build(Request((*MESSAGES, reply.message()), tools=TOOLS), "m", member.provider)
    assert wire["messages"][-1]["content"] == [said[3], said[6], USED]


# Sources of searches that a provider runs, in the shapes of `sources.json`: a new one is an entry of it. Each source is
# its address, title, whether it is cited, quoted text, and where the text refers to it.

SOURCES = [
    pytest.param(member, case, id=f"{member.name}: {name}")
    for member in MEMBERS
    for name, case in json.loads((HERE / "sources.json").read_text("utf-8"))[member.name].items()
]


def sources_in(member: Member, body: bytes) -> tuple[WebSource, ...]:
    found = parse(member, 200, {}, body)
    assert isinstance(found, Reply)
    return found.sources


@pytest.mark.parametrize(("member", "case"), SOURCES)
def test_the_sources_of_searches_are_read_cited_ones_first(member: Member, case: dict[str, Any]) -> None:
    assert case["source"], "whoever adds a shape says where it is documented"
    assert [list(one) for one in sources_in(member, body_of(case))] == case["sources"]


SEARCHES = ModelAnswer("Lamps glow.", hosted=(HostedUse("web_search", "lamps"), HostedUse("web_search", "light")))


@members
def test_a_stream_brings_the_same_sources_as_a_body(member: Member) -> None:
    call = replace(ask_for(), extras={"include": ["web_search_call.action.sources"]})
    whole = sources_in(member, member.api.body(call, SEARCHES))
    _, body = assembled(member, b"".join(map(server_sent, member.api.events(call, SEARCHES))), [])
    assert sources_in(member, body) == whole
    told = [(one.url.removeprefix("https://simulated.example/"), one.cited) for one in whole]
    assert told == [("lamps", True), ("light", True), ("lamps/more", False), ("light/more", False)]
    assert {(one.start, one.end) for one in whole if one.cited} == {(0, len("Lamps glow."))}


def test_annotations_that_only_a_streams_events_tell_are_kept() -> None:
    member, part = MEMBERS[1], {"type": "output_text", "text": "Lamps glow."}
    cited = {"type": "url_citation", "url": "https://a.example/", "title": "A", "start_index": 0, "end_index": 5}
    item = {"type": "message", "status": "completed", "content": [part]}
    added = {"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0}
    done = {"type": "response.completed", "response": {"status": "completed", "output": [item]}}
    _, body = assembled(member, sse({**added, "annotation": cited}, {**added, "output_index": 7}, done), [])
    assert sources_in(member, body) == (WebSource("https://a.example/", "A", True, None, 0, 5),)


def test_citations_of_a_stream_go_back_with_their_text() -> None:
    member = MEMBERS[2]
    cited = {
        "type": "web_search_result_location", "url": "https://a.example/", "title": "A", "cited_text": "They glow.",
        "encrypted_index": "z",
    }  # fmt: skip
    stream = sse(
        {"type": "message_start", "message": {"content": []}},
        *block(0, {"type": "text", "text": "", "citations": []}, {"type": "citations_delta", "citation": cited},
               {"type": "text_delta", "text": "Lamps glow."}),
        *block(1, USED, json_piece('{"q":"a"}')),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )  # fmt: skip
    reply = parse(member, 200, {}, assembled(member, stream, [])[1])
    assert isinstance(reply, Reply)
    results = ToolMessage("tool", "", (ToolResult("call_a", "ok"),))
    wire = member.dialect.build(Request((*MESSAGES, reply.message(), results), tools=TOOLS), "m", member.provider)
    sent = json.loads(encode(wire))["messages"][1]["content"][0]
    assert sent == {"type": "text", "text": "Lamps glow.", "citations": [cited]}


def test_sources_are_bounded_and_a_title_is_one_line() -> None:
    many = [f"https://a.example/{number}" for number in range(MAX_SOURCES + 10)]
    odd = [
        {"url": f"https://b.example/{'x' * MAX_URL}"},
        {"url": "javascript:x", "title": "a\nb\x1b[31m\u2028c" + "d" * 999},
    ]
    choice = {"message": {"content": "Lamps glow."}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "search_results": odd, "citations": [*many, None, 7, {}, [""]]}).encode()
    first, *found = sources_in(MEMBERS[0], body)
    assert (first.url, first.title[:10], len(first.title)) == ("javascript:x", "a b [31m c", MAX_TITLE)
    assert [one.url for one in found] == many[: MAX_SOURCES - 1]


def test_the_pages_that_a_search_found_are_asked_for_where_they_are_not_told_else() -> None:
    asked = Request(MESSAGES, None, Params(web_search="on"))
    assert MEMBERS[1].dialect.build(asked, "m", MEMBERS[1].provider)["include"] == ["web_search_call.action.sources"]
    xai = SHIPPED["xai-responses"]
    assert "include" not in DIALECTS[xai.dialect].build(asked, "m", xai)
    assert "include" not in MEMBERS[1].dialect.build(Request(MESSAGES), "m", MEMBERS[1].provider)
