"""What every stream promises: put together, its events say what the same answer says when it is not streamed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.redact import Redactor
from agac.core.types import Fault, Reply
from agac.providers.bodies import encode
from agac.providers.dialect import STREAMED, Assembly, asking
from agac.providers.http import Events, GarbledStream
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS
from agac.simulator.anthropic import MESSAGES
from agac.simulator.openai import CHAT, RESPONSES
from agac.simulator.replies import AnswerMessage, ModelAnswer, ModelApi, ModelCall

DELTAS: dict[str, Callable[[str], Any]] = {
    "openai-chat": lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]},
    "openai-responses": lambda text: {"type": "response.output_text.delta", "delta": text},
    "anthropic": lambda text: {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "text_delta", "text": text},
    },
}
THOUGHTS: dict[str, Callable[[str], Any]] = {
    "openai-chat": lambda text: {"choices": [{"index": 0, "delta": {"reasoning_content": text}}]},
    "openai-responses": lambda text: {"type": "response.reasoning_summary_text.delta", "delta": text},
    "anthropic": lambda text: {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": text},
    },
}


@dataclass(frozen=True)
class Member:
    name: str
    api: ModelApi

    def assembly(self) -> Assembly:
        return DIALECTS[self.name].assembly()

    def parse(self, body: bytes) -> Reply | Fault:
        provider = Provider(name="local", dialect=self.name, base_url="http://127.0.0.1/v1")
        return DIALECTS[self.name].parse(200, {}, body, provider=provider, model="small", redactor=Redactor([]))


MEMBERS = [Member("openai-chat", CHAT), Member("openai-responses", RESPONSES), Member("anthropic", MESSAGES)]
members = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)


def ask_for(text: str = "hello") -> ModelCall:
    messages = (("user", text),)
    return ModelCall("small", messages, digest=b"0" * 16, prompt_tokens=3, stream=True, include_usage=True)


def assembled(member: Member, stream: bytes, sizes: list[int]) -> tuple[Assembly, bytes]:
    """The stream, read in chunks of these sizes and then whole."""
    assembly, events = member.assembly(), Events()
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
    whole = member.parse(member.api.body(ask, answer))
    stream = b"".join(member.api.chunks(ask, answer)).replace(b"\n", ending)
    assembly, body = assembled(member, stream, sizes)
    assert assembly.done
    assert member.parse(body) == whole
    told = answer.messages if member.name == "openai-responses" else answer.messages[-1:]
    refused = member.name == "anthropic" and answer.finish == "content_filter"  # it knows no other filter
    told_any = refused or any(m.text or m.refusal for m in told)
    assert tokens(assembly) == (told_any, told_any)


@members
@given(st.text(min_size=1), st.integers(0))
def test_a_stream_that_is_cut_is_not_whole(member: Member, text: str, where: int) -> None:
    events = list(member.api.chunks(ask_for(), ModelAnswer(text)))
    # a completion's last two say the usage and that it is over; without them its reason to stop is its end
    end = len(events) - (3 if member.name == "openai-chat" else 1)
    assembly, _ = assembled(member, b"".join(events[: where % (end + 1)]), [])
    assert not assembly.finish()


@members
def test_the_first_token_may_be_one_of_thinking(member: Member) -> None:
    assembly = member.assembly()
    assembly.take(DELTAS[member.name](""))
    assembly.take(THOUGHTS[member.name](""))
    assert tokens(assembly) == (False, False)
    assembly.take(THOUGHTS[member.name]("hm"))
    assert tokens(assembly) == (True, False)
    assembly.take(DELTAS[member.name]("42"))
    assert tokens(assembly) == (True, True)


# fmt: off
NAMES = [
    "type", "error", "response", "item", "choices", "delta", "index", "status", "headers", "message", "content_block",
    "usage", "text", "thinking", "content",
]
EVENTS = [
    "error", "response.completed", "response.output_item.done", "message_start", "message_delta", "message_stop",
    "content_block_start", "content_block_delta", "text_delta", "thinking_delta",
]
# fmt: on
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES) | st.text(max_size=3),
            inner | st.sampled_from(EVENTS),
            max_size=5,
        )
    ),
    max_leaves=15,
)


@members
@given(st.lists(json_values, max_size=5))
def test_no_event_makes_it_stumble(member: Member, events: list[Any]) -> None:
    assembly = member.assembly()
    for event in events:
        assembly.take(event)
    if assembly.finish():
        status, headers, body = assembly.result()
        assert 200 <= status < 600
        assert all(isinstance(value, str) for value in headers.values())
        member.parse(encode(body))


@members
def test_what_asks_for_a_stream_leaves_the_body_a_body(member: Member) -> None:
    dialect = DIALECTS[member.name]
    asked = json.loads(asking(b'{"model":"m","n":[1]}', STREAMED + dialect.asks_usage))
    assert asked["stream"] is True
    assert (asked["model"], asked["n"]) == ("m", [1])
    if dialect.socket_asks is not None:
        created = json.loads(asking(b'{"model":"m"}', dialect.socket_asks))
        assert created == {"type": "response.create", "model": "m"}


def test_every_dialect_says_how_it_streams() -> None:
    assert {member.name for member in MEMBERS} == set(DIALECTS)


def test_an_event_may_take_several_lines_and_comments_between_them() -> None:
    stream = b': hello\nid: 7\nevent: x\ndata: {"a":\ndata:1}\n\n: ping\n\ndata: [DONE]\n\ndata: {"lost": 1}\n'
    assert list(Events().feed(stream)) == [{"a": 1}, None]


def test_an_event_that_is_no_json_ends_the_stream() -> None:
    with pytest.raises(GarbledStream):
        list(Events().feed(b"data: <html>\n\n"))
