"""Tools that a request offers, and the calls that a conversation, or a text, asks a model to make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a request, with its JSON Schema; `kind` is empty, or `web_search` or such: the provider runs it."""

    name: str
    parameters: Any = None
    strict: bool = False
    kind: str = ""


class AskedTool(NamedTuple):
    """A call that a model asks for; `arguments` is JSON as the model writes it."""

    id: str
    name: str
    arguments: str


class Page(NamedTuple):
    """A made-up page that a search finds: its address and its title."""

    url: str
    title: str


class HostedUse(NamedTuple):
    """A use of one of the provider's own tools, by its kind, and what it looked for."""

    kind: str
    query: str

    @property
    def pages(self) -> tuple[Page, Page]:
        """The pages that it finds: one that the answer cites, and one that it does not."""
        url = f"https://simulated.example/{self.query.replace(' ', '-')}"
        return Page(url, self.query.capitalize()), Page(f"{url}/more", f"More about {self.query}")


def cited_pages(uses: Iterable[HostedUse]) -> list[Page]:
    """The pages of web searches that an answer cites."""
    return [use.pages[0] for use in uses if use.kind == "web_search"]


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """What a model says where a text, or each of several, is within the messages, in one turn of the conversation (from
    1) or in all: a `reply`, or `calls` with name and arguments; a text is sent as it is, everything else as JSON."""

    match: str | Sequence[str] = ""
    turn: int | None = None
    reply: Any = None
    calls: Sequence[dict[str, Any]] = ()

    def applies(self, messages: Sequence[tuple[str, str]]) -> bool:
        """Whether the rule is meant for a conversation as far as it is."""
        turn = 1 + sum(role == "assistant" for role, _ in messages)
        wanted = [self.match] if isinstance(self.match, str) else self.match
        return self.turn in (None, turn) and all(
            any(one in text for _, text in messages) for one in wanted
        )


MARK = re.compile(r"\btool:([\w.-]+)[ \t]+(?=\{)")
"""How a text says that the model calls a tool: `tool:web_search {"query": "lamps"}`."""


def marked_turns(text: str) -> Iterator[list[tuple[str, str]]]:
    """The calls that a text marks, by name and arguments; those in lines that follow each other are one turn."""
    lines = ((MARK.search(line), line) for line in text.split("\n"))
    for marked, turn in groupby(lines, lambda one: one[0] is not None):
        if marked:
            yield [(mark[1], marked_arguments(line[mark.end() :])) for mark, line in turn if mark]


def marked_arguments(text: str) -> str:
    """The JSON that a text begins with, also where the text is part of a JSON string; all of it if there is none."""
    for written in (text, text.replace('\\"', '"')):
        with suppress(ValueError):
            return json.dumps(json.JSONDecoder().raw_decode(written)[0], ensure_ascii=False)
    return text.rstrip()


def asked_turns(messages: Iterable[tuple[str, str]], automatic: int) -> list[list[tuple[str, str]]]:
    """The calls of each turn that a conversation asks for: those that the user's messages mark, or else so many
    `automatic` turns, without calls; then those that results mark, as a model makes them that believes all it reads."""
    said = [
        (role, turn) for role, text in messages if "tool:" in text for turn in marked_turns(text)
    ]
    by_user, by_results = ([turn for role, turn in said if role == one] for one in ("user", "tool"))
    return (by_user or [[]] * automatic) + by_results
