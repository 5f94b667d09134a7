"""Stages as a run's stored definition tells them: prompts and fingerprints are rebuilt from it and the row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agac.core.errors import Where
from agac.core.keys import Fingerprinter
from agac.core.types import JSONValue, Message, Params, RowId, Schema
from agac.plan.prepare import Sight, rendered, reuse_salt
from agac.spec.operations import CHANGING, UnfitRow, applied
from agac.spec.template import NO_TEXT, Template, compile_template
from agac.spec.workflow import Example, ReusePolicy, Visibility, field_shape


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """A stage of a stored definition. `model` is `provider/model`; `params` holds only what is set; `alias` the short
    name that was `written`, and what it `means`."""

    name: str
    index: int
    needs: tuple[str, ...]
    ancestors: tuple[str, ...]
    model: str
    system: str | None
    prompt: Template
    params: Mapping[str, Any]
    schema: Schema | None
    reuse: ReusePolicy
    variables: Mapping[str, JSONValue]
    examples: tuple[Example, ...] = ()
    alias: Mapping[str, str] | None = None
    visibility: Visibility | None = None
    output_field: str | None = None
    operation: Mapping[str, Any] | None = None
    rows_of: str | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks a model."""
        return self.operation is None

    @property
    def changes_rows(self) -> bool:
        """Whether the row has other fields from this stage on."""
        return self.operation is not None and any(key in self.operation for key in CHANGING)

    @property
    def is_kept(self) -> bool:
        """Whether its results are stored, and so found again by their fingerprints."""
        return self.operation is None or "python" in self.operation

    def form(self, data: dict[str, JSONValue], value: str | None) -> dict[str, JSONValue] | None:
        """The row's fields after this stage, of those before it; `value` is its stored result. None: not known."""
        if self.operation is None:
            return data
        if "python" in self.operation:
            return json.loads(value) if value is not None else None
        try:
            return applied(self.operation, data)
        except UnfitRow:
            return None

    def messages(self, sight: Sight) -> tuple[Message, ...]:
        """What was asked of a row. Raises MissingField."""
        visible = sight.sent(self)
        asked = (*rendered(self.examples, visible), Message.of("user", self.prompt.render(visible)))
        return (Message.of("system", self.system), *asked) if self.system else asked

    def fingerprint(self, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes:
        """The fingerprint that the engine gave this task."""
        provider, _, model = self.model.partition("/")
        set_params: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in self.params.items()}
        params = Params(**set_params)
        prints = Fingerprinter(
            provider=provider, model=model, params=params, schema=self.schema, output_field=self.output_field
        )
        return prints.fingerprint(messages, salt=reuse_salt(self.reuse, row_id, run))


def recorded_stages(definition: Mapping[str, Any]) -> tuple[RecordedStage, ...]:
    """The stages of a definition as `store.runs.definition_of` gives it, in the order in which a row meets them."""
    stages: dict[str, RecordedStage] = {}
    for body in definition["stages"]:
        needs = needs_of(body)
        upstream = {name for need in needs for name in (*stages[need].ancestors, need)}
        ancestors = tuple(name for name in stages if name in upstream)
        forms = {stages[need].name if stages[need].changes_rows else stages[need].rows_of for need in needs}
        last = max(forms, key=lambda name: len(stages[name].ancestors) + 1 if name else 0, default=None)
        made = _stage(len(stages), body, needs, ancestors, definition["vars"])
        stages[body["name"]] = replace(made, rows_of=last)
    return tuple(stages.values())


def needs_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages that one of a stored definition needs: None, one name, or several."""
    needs = body["needs"]
    return tuple(needs) if isinstance(needs, list) else (needs,) if needs else ()


def ends_of(definition: Mapping[str, Any]) -> list[int]:
    """The positions of the stages whose results are a row's result, in a stored definition."""
    names = [body["name"] for body in definition["stages"]]
    return [names.index(name) for name in definition.get("results", names[-1:])]


def model_of(body: Mapping[str, Any]) -> str:
    """The model of a stage of a stored definition; of one that asks none what it does."""
    return str(body["model"]) if "model" in body else next(iter(body["operation"]))


def shape_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON Schema of the results of a stage of a stored definition; None: plain text."""
    if "operation" in body:
        return {}
    if body.get("output_field"):
        return field_shape(body["output_field"])
    shape: dict[str, Any] | None = body["schema"]["body"] if body["schema"] else None
    return shape


def _stage(
    index: int,
    body: Mapping[str, Any],
    needs: tuple[str, ...],
    ancestors: tuple[str, ...],
    variables: Mapping[str, JSONValue],
) -> RecordedStage:
    if "operation" in body:
        return RecordedStage(
            name=body["name"],
            index=index,
            needs=needs,
            ancestors=ancestors,
            model=model_of(body),
            system=None,
            prompt=NO_TEXT,
            params={},
            schema=None,
            reuse="content",
            variables=variables,
            operation=body["operation"],
        )
    schema = body["schema"]
    return RecordedStage(
        name=body["name"],
        index=index,
        needs=needs,
        ancestors=ancestors,
        model=model_of(body),
        system=body["system"],
        prompt=_template(body["prompt"]),
        params=body["params"],
        schema=Schema(schema["name"], schema["body"]) if schema else None,
        reuse=body.get("reuse", "content"),
        variables=variables,
        examples=tuple(Example(one["role"], _template(one["content"]), "") for one in body.get("messages", ())),
        alias=body.get("alias"),
        visibility=_visibility(body.get("visible")),
        output_field=body.get("output_field"),
    )


def _visibility(body: Mapping[str, Any] | None) -> Visibility | None:
    if body is None:
        return None
    return Visibility(None if body["only"] is None else frozenset(body["only"]), frozenset(body["never"]))


def _template(text: str) -> Template:
    template, _ = compile_template(text, Where("the stored definition"))
    assert template is not None, "only a template without problems is stored"
    return template
