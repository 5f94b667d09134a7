"""The definition of a workflow: everything that decides what is asked, as it is stored with its runs.

It is made of the fields of the stages (`spec.workflow.StoredModel`) and read back as `RecordedStage`s, from which
prompts and fingerprints are rebuilt for a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from agac.core.keys import Fingerprinter, params_body, replicas_fingerprint
from agac.core.types import JSONValue, Message, Params, RowId
from agac.plan.render import RowView, rendered, replica_prints, reuse_salt
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import seen_after
from agac.spec.workflow import Stage, StoredModel, Workflow


def definition(workflow: Workflow, stages: Sequence[AnyStage]) -> dict[str, Any]:
    """Everything that decides what is asked. Not in it: time-outs, repairs, fallbacks, limits, where results go."""
    spec, ends = workflow.input, workflow.output.stages
    return {
        "workflow": workflow.name,
        "input": {
            "path": spec.shown,
            "format": spec.format,
            "id_field": spec.id_field,
            "on_duplicate_id": spec.on_duplicate_id,
        },
        "vars": dict(workflow.vars),
        "stages": [stage_body(stage) for stage in stages],
        # where they are not simply the last stage's results, and not of the input's rows
        **({} if ends == (workflow.stages[-1].name,) else {"results": list(ends)}),
        **({"rows": workflow.output.rows} if workflow.output.rows is not None else {}),
    }


def stored_fields(*, decides: bool) -> Iterator[tuple[Field[Any], StoredModel]]:
    """The fields of a Stage that stand in the definition, or beside it, and how they do."""
    for one in fields(Stage):
        how = one.metadata.get("stored")
        if how is not None and how.decides is decides:
            yield one, how


def stage_body(stage: Stage) -> dict[str, Any]:
    """A stage in the definition. What is new is left out at its default, so that older definitions stay the same."""
    found: dict[str, Any] = {}
    for one, how in stored_fields(decides=True):
        value = getattr(stage, one.name)
        always = how.always == "all" or (how.always == "asks" and stage.asks)
        if always or (value != one.default if not how.beside else getattr(stage, how.beside) is not None):
            written = how.write(value)
            found |= {how.key: written} if how.key else written
    if isinstance(stage, PlannedStage):
        found |= {"model": stage.lane, "params": params_body(stage.params)}
        if stage.ref is not None and stage.ref.written is not None:
            found["alias"] = {"written": stage.ref.written, "means": stage.ref.meaning}
    return found


def read_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Stage that its definition holds, by name; those that it leaves out are at their defaults."""
    return {
        one.name: how.read(body[how.key] if how.key else body)
        for one, how in stored_fields(decides=True)
        if not how.key or how.key in body
    }


def recorded_stages(body: Mapping[str, Any]) -> tuple[RecordedStage, ...]:
    """The stages of a definition as `store.runs.definition_of` gives it, in the order in which a row meets them."""
    stages: dict[str, RecordedStage] = {}
    for one in body["stages"]:
        read = read_body(one)
        seen = seen_after([stages[need] for need in read["needs"]], stages)
        ancestors, rows_of = ((), None) if read["group"] is not None else seen
        stages[one["name"]] = RecordedStage(
            **read,
            index=len(stages),
            ancestors=ancestors,
            rows_of=rows_of,
            model=model_of(one),
            params=one.get("params", {}),
            alias=one.get("alias"),
            variables=body["vars"],
        )
    return tuple(stages.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStage(Stage):
    """A stage of a stored definition. `model` is `provider/model`, of a stage that asks none what it does; `params`
    holds only what is set; `alias` the short name that was `written`, and what it `means`."""

    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    alias: Mapping[str, str] | None = None
    variables: Mapping[str, JSONValue] = field(default_factory=dict)

    def messages(self, view: RowView) -> tuple[Message, ...]:
        """What was asked of a row. Raises MissingField."""
        visible = view.prompt_values(self)
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
        params = Params(**tupled(self.params))
        return Fingerprinter(
            provider=provider, model=model, params=params, schema=self.schema, output_field=self.output_field
        )


def tupled(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they were before JSON, which has no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}


def ends_of(body: Mapping[str, Any]) -> list[int]:
    """The positions of the stages whose results are a row's result, in a stored definition."""
    names = [one["name"] for one in body["stages"]]
    return [names.index(name) for name in body.get("results", names[-1:])]


def written_of(body: Mapping[str, Any]) -> int | None:
    """The position of the stage that made the rows that are written, in a stored definition; None: the input's are."""
    names = [one["name"] for one in body["stages"]]
    return names.index(body["rows"]) if "rows" in body else None


def model_of(body: Mapping[str, Any]) -> str:
    """The model of a stage of a stored definition; of one that asks none what it does."""
    return str(body["model"]) if "model" in body else next(iter(body["operation"]))
