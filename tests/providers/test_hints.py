"""Hints to Dynamo: what a request says of itself by version, what is learned of replies, what a refusal changes."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.canned import Answer, Canned, serving
from wire_servers import BOUNDS, a_reply, sending

from agac.providers.backend import at_backend
from agac.providers.hints import HintingSender, hinting
from agac.providers.http import Sender
from agac.providers.known_providers import SHIPPED
from agac.spec.card_examples import Example
from agac.spec.templates import NO_TEXT
from agac.spec.tools import AgentSpec
from agac.spec.workflow import Stage, StageSettings

TOOLS = [{"type": "function", "function": {"name": "look"}}]
USER, CALLED = {"role": "user", "content": "row 1"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
TOLD = {"role": "tool", "tool_call_id": "1", "content": "found"}
FIRST: dict[str, Any] = {"model": "m", "messages": [USER], "tools": TOOLS}
SECOND: dict[str, Any] = {"model": "m", "messages": [USER, CALLED, TOLD], "tools": TOOLS}
LAST: dict[str, Any] = {**SECOND, "messages": [USER, CALLED, TOLD, CALLED, TOLD], "tool_choice": "none"}
PLAIN: dict[str, Any] = {"model": "m", "messages": [USER]}


def reply(tokens: int, *, calls: bool = False) -> Answer:
    message = {"content": "yes", **({"tool_calls": [{"id": "1"}]} if calls else {})}
    return Answer({"choices": [{"message": message}], "usage": {"completion_tokens": tokens}})


def stage(*, agent: bool = True, repair: int = 0, said: int = 0) -> Stage:
    examples = tuple(Example(role, NO_TEXT, "") for _ in range(said) for role in ("user", "assistant"))
    return Stage(
        name="s", index=0, needs=(), settings=StageSettings(repair=repair), examples=examples,
        agent_spec=AgentSpec() if agent else None,
    )  # fmt: skip


@asynccontextmanager
async def hinted(
    *answers: Answer, version: str = "1.2", of: Stage | None = None
) -> AsyncIterator[tuple[HintingSender, Canned]]:
    """A sender of a stage to a server that gives these answers, and what that was asked."""
    server = Canned()
    server.answers("POST /chat/completions", *answers)
    with serving(server.take) as base_url:
        row = at_backend(f"{base_url.replace('http', 'dynamo')}?version={version}", SHIPPED)
        async with sending(base_url) as plain:
            sender = hinting(plain, row, of or stage(), 7)
            assert isinstance(sender, HintingSender)
            yield sender, server


async def told(sender: HintingSender, server: Canned, body: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The hints of a request, and the headers that are about its session."""
    a_reply(await sender.send(json.dumps(body).encode(), BOUNDS))
    asked = server.asked[-1]
    sent = json.loads(asked.body)
    hints = sent.pop("nvext", {"agent_hints": None})
    assert sent == body, "nothing else of the request changes"
    assert hints.keys() == {"agent_hints"}
    return hints["agent_hints"], {
        name.lower().removeprefix("x-dynamo-"): value for name, value in asked.headers.items() if "Dynamo" in name
    }


@pytest.mark.parametrize(
    ("version", "body", "of", "hints", "headers"),
    [
        ("1.0", FIRST, {}, {"latency_sensitivity": 1.0, "speculative_prefill": True}, set()),
        ("1.0.2", SECOND, {}, {"latency_sensitivity": 2.0, "speculative_prefill": True}, set()),
        ("1.1", FIRST, {}, {"priority": 1, "speculative_prefill": True}, set()),
        ("1.2", SECOND, {}, {"priority": 2, "speculative_prefill": True}, set()),
        ("1.2", LAST, {}, {"priority": 3}, set()),
        ("1.2", PLAIN, {"agent": False}, {"priority": 1}, set()),
        ("1.2", SECOND, {"said": 1}, {"priority": 1, "speculative_prefill": True}, set()),
        ("1.3", SECOND, {}, {"priority": 2, "speculative_prefill": True}, {"session-id", "parent-session-id"}),
        ("1.3", LAST, {}, {"priority": 3}, {"session-id", "parent-session-id", "session-final"}),
        ("1.6.1", LAST, {"repair": 1}, {"priority": 3}, {"session-id", "parent-session-id"}),
        ("1.6", PLAIN, {"agent": False}, {"priority": 1}, set()),
    ],
)
async def test_what_a_request_says_of_itself_by_version(
    version: str, body: dict[str, Any], of: dict[str, Any], hints: dict[str, Any], headers: set[str]
) -> None:
    async with hinted(reply(9), version=version, of=stage(**of)) as (sender, server):
        found = await told(sender, server, body)
    assert (found[0], found[1].keys()) == (hints, headers)


async def test_a_session_is_a_conversation_of_a_run_and_names_no_row() -> None:
    async with hinted(reply(9), version="1.3") as (sender, server):
        _, first = await told(sender, server, FIRST)
        _, second = await told(sender, server, SECOND)
        other = {**FIRST, "messages": [{**USER, "content": "row 2"}]}
        ids = [one["session-id"] for one in (first, second, (await told(sender, server, other))[1])]
        replica = (await told(sender, server, {**FIRST, "seed": 2}))[1]["session-id"]
    assert first == second
    assert first["parent-session-id"] == "agac-7"
    assert len({*ids, replica}) == 3
    assert all(one.startswith("agac-7-") and "row" not in one for one in ids)


async def test_what_came_of_turns_of_a_kind_is_expected_of_the_next() -> None:
    tokens = [10, 20, 30, 40, 50]
    async with hinted(*(reply(n, calls=n < 30) for n in tokens), reply(999)) as (sender, server):
        expected = [(await told(sender, server, FIRST))[0] for _ in range(6)]
        later, _ = await told(sender, server, SECOND)
    assert [one.get("osl") for one in expected] == [None, 10, 10, 20, 30, 40]  # the p75 of those before it
    assert [one.get("speculative_prefill") for one in expected] == [True] * 5 + [None]  # 2 of 5 called tools
    assert later == {"priority": 2, "speculative_prefill": True}


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "nvext: unknown field"), (422, "unknown field `speculative_prefill`, expected"), (400, "agent_hints")],
)
async def test_hints_that_are_refused_are_left_out_from_then_on(
    caplog: pytest.LogCaptureFixture, status: int, message: str
) -> None:
    async with hinted(Answer({"message": message}, status), reply(9)) as (sender, server):
        with caplog.at_level(logging.WARNING):
            assert (await told(sender, server, FIRST))[0] is None
            assert (await told(sender, server, SECOND))[0] is None
    assert ["nvext" in json.loads(one.body) for one in server.asked] == [True, False, False]
    assert [one.message for one in caplog.records] == [
        "local refuses hints and gets none from now on; is `version` of its backend right?"
    ]


@pytest.mark.parametrize(("status", "message"), [(400, "the prompt is too long"), (429, "nvext"), (200, "nvext")])
async def test_other_answers_are_no_refusal(status: int, message: str) -> None:
    async with hinted(Answer({"message": message}, status)) as (sender, server):
        assert a_reply(await sender.send(json.dumps(FIRST).encode(), BOUNDS)).status == status
        assert (await told(sender, server, FIRST))[0] is not None
    assert len(server.asked) == 2


async def test_without_a_version_nothing_stands_before_the_sender() -> None:
    async with sending("http://127.0.0.1:9/v1") as plain:
        for backend in ("dynamo://127.0.0.1:9", "vllm://127.0.0.1:9"):
            assert hinting(plain, at_backend(backend, SHIPPED), stage(), 1) is plain
        assert isinstance(plain, Sender)
