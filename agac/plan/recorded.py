"""Stages as a run's stored definition tells them: prompts and fingerprints are rebuilt from it and the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agac.core.errors import Where
from agac.core.keys import Fingerprinter, replicas_fingerprint
from agac.core.types import JSONValue, Message, Params, RowId, Schema
from agac.plan.prepare import Sight, rendered, reuse_salt
from agac.plan.replicas import replica_prints
from agac.spec.grouping import Group, seen_after
from agac.spec.levels import Makes
from agac.spec.operations import CHANGING, formed, made_by
from agac.spec.template import NO_TEXT, Template, compile_template
from agac.spec.workflow import Example, ReusePolicy, Visibility, field_shape, shape_of_replicas


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
    replicas: int = 1
    vote: str | None = None
    explode: tuple[str, ...] | None = None
    group: Group | None = None

    @property
    def makes(self) -> Makes | None:
        """What it makes of the rows that come to it."""
        return made_by(self.explode, self.group, next(iter(self.operation)) if self.operation else None)

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
        return data if self.operation is None else formed(self.operation, data, value)

    def messages(self, sight: Sight) -> tuple[Message, ...]:
        """What was asked of a row. Raises MissingField."""
        visible = sight.sent(self)
        asked = (*rendered(self.examples, visible), Message.of("user", self.prompt.render(visible)))
        return (Message.of("system", self.system), *asked) if self.system else asked

    def fingerprint(self, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes:
        """The fingerprint that the engine gave this task."""
        if self.replicas > 1:
            return replicas_fingerprint(self.replica_prints(messages, row_id, run), self.vote)
        return self._prints().fingerprint(messages, salt=reuse_salt(self.reuse, row_id, run))

    def replica_prints(self, messages: tuple[Message, ...], row_id: RowId, run: int) -> tuple[bytes, ...]:
        """The fingerprints that the engine gave this task's replicas; none where it is asked once."""
        salt = reuse_salt(self.reuse, row_id, run)
        return replica_prints(self._prints(), messages, salt, self.replicas) if self.replicas > 1 else ()

    def _prints(self) -> Fingerprinter:
        provider, _, model = self.model.partition("/")
        set_params: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in self.params.items()}
        params = Params(**set_params)
        return Fingerprinter(
            provider=provider, model=model, params=params, schema=self.schema, output_field=self.output_field
        )


def recorded_stages(definition: Mapping[str, Any]) -> tuple[RecordedStage, ...]:
    """The stages of a definition as `store.runs.definition_of` gives it, in the order in which a row meets them."""
    stages: dict[str, RecordedStage] = {}
    for body in definition["stages"]:
        needs = needs_of(body)
        seen = seen_after([stages[need] for need in needs], stages)
        ancestors, rows_of = ((), None) if "group_by" in body else seen
        made = _stage(len(stages), body, needs, ancestors, definition["vars"])
        stages[body["name"]] = replace(made, rows_of=rows_of)
    return tuple(stages.values())


def needs_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages that one of a stored definition needs: None, one name, or several."""
    needs = body["needs"]
    return tuple(needs) if isinstance(needs, list) else (needs,) if needs else ()


def ends_of(definition: Mapping[str, Any]) -> list[int]:
    """The positions of the stages whose results are a row's result, in a stored definition."""
    names = [body["name"] for body in definition["stages"]]
    return [names.index(name) for name in definition.get("results", names[-1:])]


def written_of(definition: Mapping[str, Any]) -> int | None:
    """The position of the stage that made the rows that are written, in a stored definition; None: the input's are."""
    names = [body["name"] for body in definition["stages"]]
    return names.index(definition["rows"]) if "rows" in definition else None


def model_of(body: Mapping[str, Any]) -> str:
    """The model of a stage of a stored definition; of one that asks none what it does."""
    return str(body["model"]) if "model" in body else next(iter(body["operation"]))


def shape_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON Schema of the results of a stage of a stored definition; None: plain text."""
    if "operation" in body:
        return {}
    shape: dict[str, Any] | None = body["schema"]["body"] if body["schema"] else None
    if body.get("output_field"):
        shape = field_shape(body["output_field"])
    return shape_of_replicas(shape, body.get("replicas", 1), body.get("vote"))


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
            explode=_explode(body),
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
        replicas=body.get("replicas", 1),
        vote=body.get("vote"),
        explode=_explode(body),
        group=Group.of(body),
    )


def _explode(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    return tuple(body["explode"].split(".")) if "explode" in body else None


def _visibility(body: Mapping[str, Any] | None) -> Visibility | None:
    if body is None:
        return None
    return Visibility(None if body["only"] is None else frozenset(body["only"]), frozenset(body["never"]))


def _template(text: str) -> Template:
    template, _ = compile_template(text, Where("the stored definition"))
    assert template is not None, "only a template without problems is stored"
    return template
