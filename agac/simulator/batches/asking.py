"""One request of a batch after the other: what is answered, charged and written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agac.simulator.asks import Answer, ApiError, Ask
from agac.simulator.batches.lines import Endpoint, Lines, encoded
from agac.simulator.batches.records import Batch
from agac.simulator.batches.spoiled import INSTEAD, LineFaults, error_of, written
from agac.simulator.batches.state import short
from agac.simulator.faults import ERROR_KINDS, FaultPlan
from agac.simulator.replies import Author
from agac.simulator.spoiling import SPOILERS, spoiled, unknown_model
from agac.simulator.spoiling import error_of as error_of_rule


@dataclass(slots=True)
class Chunk:
    """What some requests came to: what is still to be written and charged. `known` are digests that were charged
    outside of batches."""

    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    executed: int = 0
    read: int = 0
    good: int = 0
    bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Model:
    """Who answers: the same author, seed and rules as where single requests are answered. `charged_before` says whether
    a content was charged there."""

    seed: int
    plan: FaultPlan
    charged_before: Callable[[bytes], bool]
    author: Author = field(default_factory=Author)

    def answer(self, endpoint: Endpoint, body: dict[str, Any], chunk: Chunk) -> Any:
        """The payload for one request, which is charged now; raises ApiError for a request that is refused."""
        if body.get("stream"):
            raise ApiError(400, "Streaming is not supported in batches: leave 'stream' out.", param="stream")
        ask = endpoint.ask_of(body, self.seed)
        if "missing" in ask.model:
            raise unknown_model(ask.model)
        answer = self.author.answer(ask)
        if self.plan.rules:
            answer = self.faulty(ask, answer, chunk)
        chunk.prompt_tokens += ask.prompt_tokens
        chunk.completion_tokens += answer.tokens
        digest = short(ask.digest)
        chunk.digests.append(digest)
        if self.charged_before(ask.digest):
            chunk.known.add(digest)
        return endpoint.body(ask, answer)

    def faulty(self, ask: Ask, answer: Answer, chunk: Chunk) -> Answer:
        """What the rules about single requests make of an answer, as far as they are not about connections. Requests of
        batches have no numbers there: rules with `at` leave them alone."""
        rule = self.plan.pick(0, ask)
        if rule is None or rule.kind not in (*ERROR_KINDS, *SPOILERS, "two_answers"):
            return answer
        chunk.faults[rule.kind] += 1
        if rule.kind in ERROR_KINDS:
            raise error_of_rule(rule, ask)
        return self.author.another(ask, answer) if rule.kind == "two_answers" else spoiled(rule, ask, answer)


@dataclass(slots=True)
class Reader:
    """Reads the requests of one batch."""

    batch: Batch
    model: Model
    lines: Lines
    endpoint: Endpoint
    faults: LineFaults = field(init=False)

    def __post_init__(self) -> None:
        self.faults = LineFaults(self.batch.faults, self.model.seed)

    def request(self, number: int, raw: bytes, chunk: Chunk) -> None:
        """One request: its line of results, good or not, joins the chunk."""
        custom_id, body = self.lines.read(json.loads(raw))
        rules = self.faults.of_line(number, raw, custom_id) if self.faults.rules else []
        kinds = [rule["kind"] for rule in rules]
        chunk.faults.update(kinds)
        instead = next((rule for rule in rules if rule["kind"] in INSTEAD), None)
        good = False
        try:
            if instead is not None:
                line = self.replaced(instead, number, custom_id)
            else:
                payload = encoded(self.model.answer(self.endpoint, body, chunk))
                if "batch_body_text" in kinds:
                    payload = encoded(payload.decode())
                line = self.lines.good(self.batch.id, number, custom_id, payload)
                good = True
        except ApiError as error:
            line = self.lines.refused(self.batch.id, number, custom_id, error)
        chunk.read += len(raw)
        chunk.executed += 1
        chunk.good += good
        chunk.bad += not good
        (chunk.output if good or self.lines.one_file else chunk.errors).append(written(line, kinds) if kinds else line)

    def replaced(self, rule: dict[str, Any], number: int, custom_id: str) -> bytes:
        """The line of a request that a fault left without an answer."""
        if rule["kind"] == "batch_line_zero":
            return self.lines.zero(self.batch.id, number, custom_id)
        if rule["kind"] == "batch_line_error":
            told = rule.get("message") or "The model did not answer in time."
            return self.lines.failed(self.batch.id, number, custom_id, rule["code"], told)
        return self.lines.refused(self.batch.id, number, custom_id, error_of(rule))
