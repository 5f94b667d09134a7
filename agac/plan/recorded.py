"""Stages as a run's stored definition tells them: prompts and fingerprints are rebuilt from it and the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agac.core.errors import Where
from agac.core.keys import Fingerprinter
from agac.core.types import JSONValue, Message, Params, RowId, Schema
from agac.plan.prepare import reuse_salt
from agac.spec.template import Template, compile_template, visible_row
from agac.spec.workflow import ReusePolicy


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """A stage of a stored definition. `model` is `provider/model`; `params` holds only what is set."""

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

    def messages(self, data: Mapping[str, JSONValue], results: Mapping[str, JSONValue]) -> tuple[Message, ...]:
        """What was asked of a row. `results` are those of the stages before it. Raises MissingField."""
        text = self.prompt.render(visible_row(dict(data), dict(results), dict(self.variables)))
        user = Message.of("user", text)
        return (Message.of("system", self.system), user) if self.system else (user,)

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
    prompt, _ = compile_template(body["prompt"], Where("the stored definition"))
    assert prompt is not None, "only a template without problems is stored"
    schema = body["schema"]
    return RecordedStage(
        name=body["name"],
        index=index,
        upstream=body["needs"],
        model=body["model"],
        system=body["system"],
        prompt=prompt,
        params=body["params"],
        schema=Schema(schema["name"], schema["body"]) if schema else None,
        reuse=body.get("reuse", "content"),
        variables=variables,
    )
