"""Stages as a run's stored definition tells them: prompts and fingerprints are rebuilt from it and the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agac.core.errors import Where
from agac.core.keys import Fingerprinter
from agac.core.types import JSONValue, Message, Params, RowId, Schema
from agac.plan.prepare import rendered, reuse_salt
from agac.spec.template import Template, compile_template, visible_row
from agac.spec.workflow import Example, ReusePolicy


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """A stage of a stored definition. `model` is `provider/model`; `params` holds only what is set; `alias` the short
    name that was `written`, and what it `means`."""

    name: str
    index: int
    upstream: str | None
    model: str
    system: str | None
    prompt: Template
    params: Mapping[str, Any]
    schema: Schema | None
    reuse: ReusePolicy
    variables: Mapping[str, JSONValue]
    examples: tuple[Example, ...] = ()
    alias: Mapping[str, str] | None = None

    def messages(self, data: Mapping[str, JSONValue], results: Mapping[str, JSONValue]) -> tuple[Message, ...]:
        """What was asked of a row. `results` are those of the stages before it. Raises MissingField."""
        visible = visible_row(dict(data), dict(results), dict(self.variables))
        asked = (*rendered(self.examples, visible), Message.of("user", self.prompt.render(visible)))
        return (Message.of("system", self.system), *asked) if self.system else asked

    def fingerprint(self, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes:
        """The fingerprint that the engine gave this task."""
        provider, _, model = self.model.partition("/")
        set_params: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in self.params.items()}
        params = Params(**set_params)
        prints = Fingerprinter(provider=provider, model=model, params=params, schema=self.schema)
        return prints.fingerprint(messages, salt=reuse_salt(self.reuse, row_id, run))


def recorded_stages(definition: Mapping[str, Any]) -> tuple[RecordedStage, ...]:
    """The stages of a definition as `store.runs.definition_of` gives it, in the order in which a row meets them."""
    return tuple(_stage(index, body, definition["vars"]) for index, body in enumerate(definition["stages"]))


def _stage(index: int, body: Mapping[str, Any], variables: Mapping[str, JSONValue]) -> RecordedStage:
    schema = body["schema"]
    return RecordedStage(
        name=body["name"],
        index=index,
        upstream=body["needs"],
        model=body["model"],
        system=body["system"],
        prompt=_template(body["prompt"]),
        params=body["params"],
        schema=Schema(schema["name"], schema["body"]) if schema else None,
        reuse=body.get("reuse", "content"),
        variables=variables,
        examples=tuple(Example(one["role"], _template(one["content"]), "") for one in body.get("messages", ())),
        alias=body.get("alias"),
    )


def _template(text: str) -> Template:
    template, _ = compile_template(text, Where("the stored definition"))
    assert template is not None, "only a template without problems is stored"
    return template
