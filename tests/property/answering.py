"""A provider whose answers follow from what is asked, so that a test can know beforehand what every row must become."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from support import canned
from support.canned import Answer, Talk

BAD = "unspeakable"
"""A text with this word in it is refused, always."""

WRONG = '{"mood": "wrong"}'
FIELDS: dict[str, dict[str, Any]] = {
    "A": {"mood": {"type": "string", "enum": ["good", "bad"]}, "why": {"type": "string"}},
    "L": {"why": {"type": "string"}, "items": {"type": "array", "items": {"type": "string"}}},
}


CHECKED, VOTED = "checked", "voted"
"""The first words of prompts: of stages with a check, which some answers do not meet; of those whose replicas vote."""

REPLICAS = 3


class ToolUse(NamedTuple):
    """A call of a tool, and what its result begins with."""

    name: str
    word: str

    @property
    def result(self) -> str:
        return f"found {self.word}" if self.name == "look" else "Error: ValueError: nothing there"


TOOLS = """
def look(word: str) -> str:
    return "found " + word


def fail(word: str) -> str:
    raise ValueError("nothing there")
"""


class Content(NamedTuple):
    """What decides an answer: the model, its temperature, the user's message, the fields of the schema, and whether
    there are tools."""

    model: str
    temperature: float | None
    text: str
    schema: str | None
    tools: bool = False

    @property
    def digest(self) -> str:
        return blake2b(json.dumps(self).encode(), digest_size=4).hexdigest()

    @property
    def number(self) -> int:
        return int(self.digest, 16)

    @property
    def refused(self) -> bool:
        return BAD in self.text

    @property
    def unfit(self) -> bool:
        """Whether the stage's check refuses the answer."""
        return self.text.startswith(CHECKED) and self.digest < "4"

    @property
    def fails(self) -> bool:
        """Whether it never comes to an answer."""
        return self.refused or self.unfit

    @property
    def replicas(self) -> int:
        """How often it is asked for one answer."""
        return REPLICAS if self.text.startswith(VOTED) else 1

    @property
    def calls(self) -> int:
        """Answered calls that it takes: some first replies have the wrong form, and are asked again."""
        return self.replicas * (len(self.turns) + (2 if self.sloppy else 1))

    @property
    def turns(self) -> list[list[ToolUse]]:
        """The tools that are asked for, turn by turn, before the answer: some that others ask for, too."""
        found = []
        for turn in range(self.number % 3 if self.tools and not self.refused else 0):
            uses = [ToolUse("look", f"{self.digest} {turn}"), ToolUse("look", f"all {turn}"), ToolUse("fail", "all")]
            found.append(uses[: 1 + (self.number >> turn) % 3])
        return found

    @property
    def sloppy(self) -> bool:
        return self.schema is not None and not self.refused and self.number % 5 == 0

    @property
    def value(self) -> Any:
        if self.schema is None:
            return f"said {self.digest}"
        if self.schema == "L":
            return {"why": self.digest, "items": [f"{self.digest} {place // 2}" for place in range(self.number % 4)]}
        return {"mood": ("good", "bad")[self.number % 2], "why": self.digest}


class Provider:
    """Counts answered requests by content. Some contents meet server errors first, which nobody is billed for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._troubles: Counter[Content] = Counter()
        self.trouble = False
        self.answered: Counter[Content] = Counter()
        self.when_asked: Callable[[], None] | None = None
        """Called with each request, before it is answered."""
        self.base_url = ""
        self.batches = Batches(self.answer)

    def take(self) -> Counter[Content]:
        """What was answered since it was last asked."""
        with self._lock:
            found, self.answered = self.answered, Counter()
            self._troubles.clear()
        return found

    def value_of(self, content: Content) -> Any:
        """The answer to a request."""
        return content.value

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        content, first = _content(body)
        if self.when_asked is not None:
            self.when_asked()
        with self._lock:
            if self.trouble and first and content.number % 3 == 0 and self._troubles[content] < content.number % 4:
                self._troubles[content] += 1
                return 503, {"error": {"message": "overloaded"}}
            self.answered[content] += 1
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if content.refused:
            message["refusal"] = "no"
        elif (turn := _turn(content, body)) is not None:
            message["tool_calls"] = turn
        elif content.sloppy and WRONG not in [one["content"] for one in body["messages"]]:
            message["content"] = WRONG
        else:
            value = self.value_of(content)
            message["content"] = value if isinstance(value, str) else json.dumps(value)
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        choices = [{"index": 0, "message": message, "finish_reason": finish}]
        return 200, {"model": content.model, "choices": choices, "usage": usage}


def _content(body: dict[str, Any]) -> tuple[Content, bool]:
    """What was asked, and whether for the first time: a re-ask holds more messages."""
    messages = [message for message in body["messages"] if message["role"] != "system"]
    schema = (body.get("response_format") or {}).get("json_schema")
    names = sorted(schema["schema"]["properties"]) if schema else None
    kind = next((kind for kind, fields in FIELDS.items() if sorted(fields) == names), None)
    content = Content(body["model"], body.get("temperature"), messages[0]["content"], kind, "tools" in body)
    return content, len(messages) == 1


def _turn(content: Content, body: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The calls that are asked for now; None: there was all that was wanted. What they gave before has to be there."""
    asked = sum(bool(one.get("tool_calls")) for one in body["messages"])
    wanted = [use.result for turn in content.turns[:asked] for use in turn]
    results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
    assert [found[: len(want)] for found, want in zip(results, wanted, strict=True)] == wanted
    if asked == len(content.turns):
        return None
    return [
        {"id": f"{content.digest}-{asked}-{place}", "type": "function",
         "function": {"name": use.name, "arguments": json.dumps({"word": use.word})}}
        for place, use in enumerate(content.turns[asked])
    ]  # fmt: skip


class Batches:
    """OpenAI's files and batches, each of which is done when it is created. `spoil` makes other lines of those that its
    results are."""

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]) -> None:
        self._answer = answer
        self._files: dict[str, bytes] = {}
        self._made: list[dict[str, Any]] = []
        self.spoil: Callable[[list[bytes]], bytes] = b"".join

    @property
    def kept(self) -> int:
        """Files that nobody has deleted."""
        return len(self._files)

    def upload(self, kind: str, body: bytes) -> tuple[int, Any]:
        message = message_from_bytes(b"content-type: " + kind.encode() + b"\r\n\r\n" + body)
        parts = [part for part in message.walk() if part.get_filename()]
        return 200, {"id": self._keep(parts[0].get_payload(decode=True)), "object": "file"}

    def create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        lines = []
        for one in map(json.loads, self._files[asked["input_file_id"]].splitlines()):
            status, body = self._answer(one["body"])
            line = {"custom_id": one["custom_id"], "response": {"status_code": status, "body": body}, "error": None}
            lines.append(json.dumps(line).encode() + b"\n")
        batch = {
            "id": f"batch_{len(self._made)}", "object": "batch", "status": "completed", "metadata": asked["metadata"],
            "input_file_id": asked["input_file_id"], "output_file_id": self._keep(self.spoil(lines)),
            "created_at": int(time.time()),
            "request_counts": {"total": len(lines), "completed": len(lines), "failed": 0},
        }  # fmt: skip
        self._made.append(batch)
        return 200, batch

    def read(self, path: str) -> tuple[int, Any]:
        match path.split("/")[2:]:
            case ["batches"]:
                return 200, {"object": "list", "data": self._made[::-1], "has_more": False}
            case ["batches", name]:
                return 200, next(one for one in self._made if one["id"] == name)
            case ["files", name, "content"] if name in self._files:
                return 200, self._files[name]
            case ["files"]:
                return 200, {"object": "list", "data": [], "has_more": False}
        return 404, {"error": {"message": "no such thing"}}

    def delete(self, path: str) -> tuple[int, Any]:
        name = path.split("/")[-1]
        return 200, {"id": name, "deleted": self._files.pop(name, None) is not None}

    def _keep(self, body: bytes) -> str:
        name = f"file-{time.monotonic_ns()}"
        self._files[name] = body
        return name


@contextmanager
def serving(provider: Provider | None = None) -> Iterator[Provider]:
    """Serves a provider on loopback for the block."""
    provider = provider or Provider()

    def take(talk: Talk) -> Answer:
        body, batches = talk.asked(1 << 30).body, provider.batches
        if talk.command == "GET":
            status, reply = batches.read(urlsplit(talk.path).path)
        elif talk.command == "DELETE":
            status, reply = batches.delete(talk.path)
        elif talk.path.endswith("/files"):
            status, reply = batches.upload(talk.headers["content-type"], body)
        else:
            answer = batches.create if talk.path.endswith("/batches") else provider.answer
            status, reply = answer(json.loads(body))
        return Answer(reply, status, {"content-type": "application/json", "retry-after-ms": "1"})

    with canned.serving(take) as provider.base_url:
        yield provider
