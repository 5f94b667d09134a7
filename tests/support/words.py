"""A server that answers in the words of other providers, as the tables in tests/contract/other_servers say.

A table is a file of JSON lines, one for each subject. A line has

- `dialect`: the protocol, or a list of those in which the same is said;
- `provider`: who says it;
- `case`: what it is, in a few words;
- `sent`: what the server answers. `status` (200), `headers`, and one of
  - `body`: JSON, or a text as it is;
  - `events`: JSON each, or a text that is sent as it is, as comments are; with `ends` in the place of line feeds, and
    in pieces of `piece` bytes;
  - `word`: a whole answer that ends in this word, sent as a body and as a stream;
  - `usage`: one that counts its tokens so ("absent": not at all), sent in both ways, too;
- `right`: what agac makes of it (tests/contract/test_words.py);
- `source`: where it is documented, or was seen: a page, an issue, a library with its version.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.simulator.anthropic import MESSAGES
from agac.simulator.chat import CHAT
from agac.simulator.model_calls import ModelCall
from agac.simulator.openai import RESPONSES
from agac.simulator.replies import ModelAnswer, ModelApi, server_sent
from support.canned import KEPT, Answer, Talk, serving

FOLDER = Path(__file__).resolve().parents[1] / "contract" / "other_servers"
TABLES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
KEYS = {"dialect", "provider", "case", "sent", "right", "source"}
SENT = {"status", "headers", "body", "events", "ends", "piece", "word", "usage"}
APIS: dict[str, ModelApi] = {"openai-chat": CHAT, "openai-responses": RESPONSES, "anthropic": MESSAGES}
ANSWER = "an answer"
"""What an answer says of which a line has its word or its usage alone."""


@dataclass(frozen=True)
class Line:
    """A line of a table, in one dialect, sent as a stream or as a body."""

    table: str
    number: int
    dialect: str
    streamed: bool
    case: dict[str, Any]

    @property
    def name(self) -> str:
        """The name by which a request asks for it."""
        return f"{self.table}/{self.number}/{self.dialect}/{'stream' if self.streamed else 'body'}"

    @property
    def sent(self) -> dict[str, Any]:
        return {"status": 200, "headers": {}, **self.case["sent"]}

    @property
    def right(self) -> dict[str, Any]:
        return {"outcome": "answer", **self.case["right"]}

    def __str__(self) -> str:
        return f"{self.name}: {self.case['provider']}, {self.case['case']}"


def table(name: str) -> list[dict[str, Any]]:
    """The lines of a table as they are written."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").split("\n") if line]


def lines(*tables: str) -> list[Line]:
    """The lines of these tables, of all where none is named; once for each dialect and each way in which it is sent."""
    found = []
    for name in tables or TABLES:
        for number, case in enumerate(table(name), start=1):
            dialects = case["dialect"] if isinstance(case["dialect"], list) else [case["dialect"]]
            ways = [True] if "events" in case["sent"] else [False]
            if {"word", "usage"} & case["sent"].keys():
                ways = [False, True]
            found += [Line(name, number, dialect, way, case) for dialect in dialects for way in ways]
    return found


def asked() -> ModelCall:
    """A question to which the simulator's answers can be made."""
    hello = (("user", "hello"),)
    return ModelCall("small", hello, digest=b"0" * 16, prompt_tokens=3, stream=True, include_usage=True)


def stream_of(line: Line) -> bytes:
    """The stream of a line, in bytes."""
    sent = line.sent
    if "events" not in sent:
        return b"".join(server_sent(event) for event in _whole_answer(line))
    parts = [one if isinstance(one, str) else f"data: {json.dumps(one, ensure_ascii=False)}" for one in sent["events"]]
    return "".join(f"{part}\n\n" for part in parts).replace("\n", sent.get("ends", "\n")).encode()


def body_of(line: Line) -> bytes:
    """The body of a line that is not streamed, in bytes."""
    sent = line.sent
    if "body" not in sent:
        return json.dumps(_whole_answer(line)[0]).encode()
    return sent["body"].encode() if isinstance(sent["body"], str) else json.dumps(sent["body"]).encode()


def answer_of(line: Line) -> Answer:
    """What the server answers to a request that asks for a line."""
    kind = "text/event-stream" if line.streamed else "application/json"
    headers = {"content-type": kind, **line.sent["headers"]}
    headers = {name: value for name, value in headers.items() if value is not None}
    if line.streamed:
        return Answer(
            stream_of(line), line.sent["status"], headers, length="chunked", piece=line.sent.get("piece", KEPT)
        )
    return Answer(body_of(line), line.sent["status"], headers)


def good_answer(dialect: str, *, streamed: bool) -> Answer:
    """An answer without anything special."""
    api, answer = APIS[dialect], ModelAnswer(ANSWER)
    if not streamed:
        return Answer(api.body(asked(), answer), headers={"content-type": "application/json"})
    stream = b"".join(map(server_sent, api.events(asked(), answer)))
    return Answer(stream, headers={"content-type": "text/event-stream"}, length="chunked")


def _whole_answer(line: Line) -> list[Any]:
    """A whole answer with the word or the usage of a line: its events, or its body as the only one."""
    sent, api, answer = line.sent, APIS[line.dialect], ModelAnswer(ANSWER)
    if "word" in sent:
        answer = ModelAnswer(ANSWER, has_word=True, word=sent["word"])
    events: list[Any] = [*api.events(asked(), answer)] if line.streamed else [json.loads(api.body(asked(), answer))]
    if "usage" in sent:
        return [_with_usage(event, sent["usage"]) for event in events]
    return events


def _with_usage(event: Any, usage: Any) -> Any:
    """A body or an event whose usage, where it has one, is another one."""
    if not isinstance(event, dict):
        return event
    event = {name: _with_usage(one, usage) if name in ("message", "response") else one for name, one in event.items()}
    if event.get("usage") is None:
        return event
    rest = {name: one for name, one in event.items() if name != "usage"}
    return rest if usage == "absent" else {**rest, "usage": usage}


_NAMED = re.compile(rb"line ([a-z]+/\d+/[a-z-]+/(?:stream|body))")


@contextmanager
def wording(*, answers_afterwards: bool = False) -> Iterator[tuple[str, Counter[str]]]:
    """Serves all lines on loopback: a request that says `line NAME` is answered as this line says. Gives the base URL,
    and how often each was asked for. `answers_afterwards`: a line that is asked for again has passed, and a good answer
    comes."""
    known = {line.name: line for line in lines()}
    asked_for: Counter[str] = Counter()

    def take(talk: Talk) -> Answer:
        named = _NAMED.search(talk.asked().body)
        assert named is not None, "a request names the line that it asks for"
        line = known[named[1].decode()]
        asked_for[line.name] += 1
        if answers_afterwards and asked_for[line.name] > 1:
            return good_answer(line.dialect, streamed=line.streamed)
        return answer_of(line)

    with serving(take) as base_url:
        yield base_url, asked_for
