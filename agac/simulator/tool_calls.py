"""Tools that a request offers, and the calls that a conversation asks a model to make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from agac.simulator.kinds import JsonObject

Messages = Sequence[tuple[str, str]]
"""The messages of a conversation: role and text of each."""
TurnCalls = list[tuple[str, str]]
"""The calls that one turn asks for: name and arguments of each."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a request, with its JSON Schema."""

    name: str
    parameters: Any = None
    strict: bool = False
    kind: str = ""
    """empty, or `web_search` or such: the provider runs it"""


class AskedTool(NamedTuple):
    """A call that a model asks for."""

    id: str
    name: str
    arguments: str
    """JSON as the model writes it"""


class Page(NamedTuple):
    """A made-up page that a search finds."""

    url: str
    title: str


class HostedUse(NamedTuple):
    """A use of one of the provider's own tools, and what it looked for."""

    kind: str
    query: str

    @property
    def pages(self) -> tuple[Page, Page]:
        """The pages that it finds: one that the answer cites, and one that it does not."""
        url = f"https://simulated.example/{self.query.replace(' ', '-')}"
        cited = Page(url, self.query.capitalize())
        return cited, Page(f"{url}/more", f"More about {self.query}")


def cited_pages(uses: Iterable[HostedUse]) -> list[Page]:
    """Returns the pages of web searches that an answer cites."""
    return [use.pages[0] for use in uses if use.kind == "web_search"]


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """The reply of a model where all the rule's texts are within the messages."""

    match: str | Sequence[str] = ""
    turn: int | None = None
    """the turn of the conversation that it is about, from 1; None: all"""
    reply: Any = None
    """a text is sent as it is, everything else as JSON"""
    calls: Sequence[JsonObject] = ()
    """calls to ask for, with name and arguments"""

    def applies(self, messages: Messages) -> bool:
        """True if the rule is meant for a conversation as far as it is."""
        turn = 1 + sum(role == "assistant" for role, _ in messages)
        if self.turn not in (None, turn):
            return False
        wanted = [self.match] if isinstance(self.match, str) else self.match
        return all(any(match in text for _, text in messages) for match in wanted)


CALL_MARK = re.compile(r"\btool:([\w.-]+)[ \t]+(?=\{)")
"""The mark in a text of a call that the model is to make: `tool:web_search {"query": "lamps"}`."""


def marked_turns(text: str) -> Iterator[TurnCalls]:
    """Gives the calls that a text marks, by name and arguments.

    Those in lines that follow each other are one turn.
    """
    turn: TurnCalls = []
    for line in text.split("\n"):
        mark = CALL_MARK.search(line)
        if mark is not None:
            turn.append((mark[1], marked_arguments(line[mark.end() :])))
        elif turn:
            yield turn
            turn = []
    if turn:
        yield turn


def marked_arguments(text: str) -> str:
    """Returns the JSON that a text begins with; all of it if there is none.

    The text may be part of a JSON string.
    """
    for written in (text, text.replace('\\"', '"')):
        with suppress(ValueError):
            return json.dumps(json.JSONDecoder().raw_decode(written)[0], ensure_ascii=False)
    return text.rstrip()


def asked_turns(messages: Messages, automatic: int) -> list[TurnCalls]:
    """Returns the calls of each turn that a conversation asks for.

    Those that the user's messages mark, or else so many `automatic` turns, without calls; then
    those that results mark, as a model makes them that believes all it reads.
    """
    by_user: list[TurnCalls] = []
    by_results: list[TurnCalls] = []
    for role, text in messages:
        if role == "user" and "tool:" in text:
            by_user += marked_turns(text)
        elif role == "tool" and "tool:" in text:
            by_results += marked_turns(text)
    return (by_user or [[]] * automatic) + by_results
