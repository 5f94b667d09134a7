"""From an ask to an answer: the same for the same seed and content, conforming where a schema is given."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from agac.simulator.asks import Answer, ApiError, Ask, Message, content_digest
from agac.simulator.merging import SchemaError
from agac.simulator.patterns import NoMatch
from agac.simulator.schemas import Compiler
from agac.simulator.shapes import Properties, Shape
from agac.simulator.strict import check_strict
from agac.simulator.validity import validity
from agac.simulator.words import Draft

KEPT_SCHEMAS = 256
TRIES = 40
"""How many values are tried where only validating tells whether one is right."""

ECHO = "echo"
"""The model, and the property, that say the user's text again."""


@dataclass(slots=True)
class Compiled:
    """A schema ready for use. Where it is not `unsure`, what its shape writes is valid without a look."""

    schema: Any
    shape: Shape
    unsure: bool
    _validity: Callable[[Any], bool] | None = None

    def valid(self, value: Any) -> bool:
        """Whether the value satisfies the schema; raises SchemaError for a schema that is wrong in itself."""
        if self._validity is None:
            self._validity = validity(self.schema)
        return self._validity(value)


@dataclass(slots=True)
class Author:
    """Writes answers; keeps the schemas it met last."""

    kept: OrderedDict[str, Compiled] = field(default_factory=OrderedDict)

    def answer(self, ask: Ask) -> Answer:
        """The model's answer, cut where the request says so; raises ApiError for a schema that nothing satisfies."""
        if ask.schema is not None:
            content = json.dumps(self.value(ask), ensure_ascii=False)
        elif ask.wants_json:
            content = json.dumps({ECHO if ask.model == ECHO else "answer": self.text(ask)}, ensure_ascii=False)
        else:
            content = ended(self.text(ask), ask.stop)
        return cut(Answer(content), ask.max_tokens)

    def another(self, ask: Ask, answer: Answer) -> Answer:
        """The answer after one that is as good and says something else; the same twice where there is only one."""
        asked = (replace(ask, messages=(("user", f"{text} {ask.user_text}"),)) for text in ("Awful:", "Lovely:", "So:"))
        drawn = (replace(one, digest=content_digest(index, ask.digest.hex())) for one in asked for index in range(8))
        others = (self.answer(other).content or "" for other in drawn)
        first = next((text for text in others if text != answer.content), answer.content or "")
        return replace(answer, earlier=(Message(first),))

    def text(self, ask: Ask) -> str:
        """An answer in prose."""
        if ask.model == ECHO:
            return ask.user_text
        draft = draft_for(ask, 0)
        return " ".join(draft.sentence() for _ in range(1 + draft.below(3)))

    def value(self, ask: Ask) -> Any:
        """A value that satisfies the ask's schema."""
        compiled = self.compiled(ask)
        for attempt in range(TRIES):
            try:
                value = compiled.shape.write(draft_for(ask, attempt), 0, "")
            except NoMatch:
                continue
            value = echoed(value, compiled, ask)
            if not compiled.unsure or compiled.valid(value):
                return value
        raise refused("the simulator found no value that satisfies it")

    def compiled(self, ask: Ask) -> Compiled:
        """The ask's schema, compiled once; raises ApiError for one that is wrong."""
        found = self.kept.get(ask.schema_key)
        if found is None:
            try:
                if ask.strict_name is not None:
                    check_strict(ask.schema, ask.strict_name)
                compiler = Compiler(ask.schema)
                found = Compiled(ask.schema, compiler.root, compiler.unsure)
                if compiler.unsure:
                    found.valid(None)
            except (SchemaError, RecursionError) as error:
                raise refused(str(error)) from error
            self.kept[ask.schema_key] = found
            if len(self.kept) > KEPT_SCHEMAS:
                self.kept.popitem(last=False)
        return found


def refused(reason: str) -> ApiError:
    """The schema cannot be answered; the same for every row."""
    message = f"Invalid schema for response_format: {reason}."
    return ApiError(400, message, code="invalid_json_schema", param="response_format")


def draft_for(ask: Ask, attempt: int) -> Draft:
    """A draft whose chances follow from seed and content alone."""
    return Draft(Random(int.from_bytes(ask.digest) + attempt), ask.user_text)  # noqa: S311 (nothing to guess)


def echoed(value: Any, compiled: Compiled, ask: Ask) -> Any:
    """The value with the user's text under `echo`, for the model of that name, where the schema lets it."""
    if ask.model != ECHO or not isinstance(value, dict):
        return value
    target = getattr(compiled.shape, "target", None)
    if not isinstance(target, Properties) or ECHO not in target.named:
        return value
    changed = {**value, ECHO: ask.user_text}
    return changed if compiled.valid(changed) else value


def ended(text: str, stops: tuple[str, ...]) -> str:
    """The text up to the first of the texts that end it."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def cut(answer: Answer, max_tokens: int | None) -> Answer:
    """The answer within its tokens."""
    if max_tokens is None or answer.tokens <= max_tokens:
        return answer
    return Answer((answer.content or "")[: max_tokens * 4], "length")
