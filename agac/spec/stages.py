"""One stage with everything resolved: its card, its texts, its schema, and who says which parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agac.core.errors import Path_, Problem, Where, any_error, key_path
from agac.core.types import JSONValue
from agac.spec.batchrules import batch_rules, places, rule_problems
from agac.spec.cards import Card, find_card, load_card
from agac.spec.examples import stage_examples
from agac.spec.guards import Guard, compile_guard
from agac.spec.instructions import Filling, fill
from agac.spec.levels import StageNode
from agac.spec.localstages import exploded, grouping, misplaced, operation, operations_of
from agac.spec.models import DefaultsFile, StageFile, TimeoutFile, VisibleFile, WorkflowFile
from agac.spec.rules import budget
from agac.spec.schemas import load_schema
from agac.spec.template import Template, compile_template, default_prompt, group_prompt
from agac.spec.texts import template_file, text_or_file
from agac.spec.votes import vote_problems
from agac.spec.workflow import (
    Example,
    JsonSchema,
    Level,
    Overrides,
    ProjectSpec,
    SchemaSpec,
    Timeout,
    Visibility,
    WrittenStage,
)
from agac.spec.yamlfile import Document

_PARAMS = ("temperature", "max_tokens")
_TYPED = {"model": "--model", "run_mode": "--run-mode"}
"""Keys of stages that the command line gives to all of them, with its flags."""
_ORDER: tuple[Level, ...] = ("project", "defaults", "card", "stage", "override")


@dataclass(slots=True)
class StageBuilder:
    """What all stages of one workflow share while they are being built. Problems gather in `problems`."""

    project: ProjectSpec
    document: Document
    file: WorkflowFile
    variables: Mapping[str, JSONValue]
    overrides: Overrides
    problems: list[Problem] = field(default_factory=list)
    _answers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def stage(self, link: StageNode, order: int) -> WrittenStage | None:
        """The stage of `link`, the `order`-th (from 0) that a row meets; None when something is wrong with it."""
        before = len(self.problems)
        written, path = self.file.stages[link.index], ("stages", link.index)
        self.problems += misplaced(written, self.document, path)
        before_it = self._answers_before(written, link)
        if operations_of(written):
            return self._local(written, link, order, path, before)
        card = self._card(written, path)
        prompt = self._prompt(written, path, _sent(before_it, written.visible))
        instructions = self._instructions(written, path, card)
        schema = self._schema(written, path)
        self.problems += vote_problems(written, schema, self.document, path)
        guard = self._guard(written, path)
        messages = self._messages(written, path, card)
        where = self._where(written, path, card)
        levels = self._levels(written, card)
        model_level, model = _strongest(levels, "model")
        run_mode, batch, mode_levels = batch_rules(levels)
        if any_error(self.problems[before:]) or prompt is None:
            return None
        stage = WrittenStage(
            name=written.name,
            index=order,
            needs=link.needs,
            ancestors=link.ancestors,
            rows_of=link.rows_of,
            system=instructions,
            prompt=prompt,
            schema=schema.schema if isinstance(schema, JsonSchema) else None,
            output_schema=schema,
            model=model,
            model_level=model_level,
            params=_params(levels),
            timeout=_timeout(_strongest(levels, "timeout")[1]),
            concurrency=self.overrides.concurrency or _strongest(levels, "concurrency")[1],
            run_mode=run_mode,
            where=where,
            path=key_path(path),
            fallback=self._fallback(levels, model_level),
            repair=_or(_strongest(levels, "repair")[1], 1),
            json_repair=_or(_strongest(levels, "json_repair")[1], False),
            reuse=_or(_strongest(levels, "reuse")[1], "content"),
            max_age=_strongest(levels, "max_age")[1],
            budget=budget(written.budget),
            examples=messages,
            guard=guard,
            otherwise=written.otherwise or "skip",
            visibility=_visibility(written.visible),
            output_field=written.output_field,
            replicas=written.replicas or 1,
            vote=written.vote,
            explode=exploded(written),
            group=grouping(written),
            on_empty=written.on_empty,
            batch=batch,
            mode_levels=mode_levels,
        )
        self.problems += rule_problems(stage)
        return stage

    def _answers_before(self, written: StageFile, link: StageNode) -> tuple[str, ...]:
        """The stages that ask a model and that this one follows, perhaps by way of others."""
        found = tuple(dict.fromkeys(name for need in link.needs for name in self._answers.get(need, ())))
        self._answers[written.name] = found if operations_of(written) else (written.name,)
        return found

    def _local(self, written: StageFile, link: StageNode, order: int, path: Path_, before: int) -> WrittenStage | None:
        """A stage that asks no model."""
        does, problems = operation(written, self.document, path, self.project.root)
        self.problems += problems
        guard = self._guard(written, path)
        if does is None or any_error(self.problems[before:]):
            return None
        return WrittenStage(
            name=written.name,
            index=order,
            needs=link.needs,
            ancestors=link.ancestors,
            rows_of=link.rows_of,
            operation=does,
            guard=guard,
            otherwise=written.otherwise or "skip",
            explode=exploded(written),
            on_empty=written.on_empty,
            where={
                **{key: self.document.where((*path, key)) for key in written.model_fields_set},
                "": self.document.where(path),
            },
            path=key_path(path),
        )

    def _problem(self, path: Path_, message: str, *, key: bool = False) -> None:
        self.problems.append(Problem(self.document.where(path, key=key), message, key_path(path)))

    def _fallback(self, levels: Mapping[Level, Mapping[str, Any]], model_level: Level | None) -> tuple[str, ...]:
        """The models after the first. A stronger level's model stands without the fallbacks of a weaker one's: they
        were chosen for another model. `--model` has none."""
        level, found = _strongest(levels, "fallback")
        if level is None or model_level is None or _ORDER.index(level) < _ORDER.index(model_level):
            return ()
        return tuple(found)

    def _card(self, written: StageFile, path: Path_) -> Card | None:
        if written.agent is None:
            return None
        file, reason = find_card(written.agent, self.project)
        if file is None:
            self._problem((*path, "agent"), reason)
            return None
        card, problems = load_card(file, self.project, self.variables)
        self.problems += problems
        return card

    def _prompt(self, written: StageFile, path: Path_, answers: tuple[str, ...]) -> Template | None:
        if written.prompt is not None and written.template is not None:
            self._problem((*path, "template"), "give either prompt or template, not both", key=True)
            return None
        key = "template" if written.template is not None else "prompt"
        value = written.template or written.prompt
        where, shown = self.document.where((*path, key)), key_path((*path, key))
        if value is None:
            where = self.document.where(path)
            return default_prompt(answers, where) if written.group_by is None else group_prompt(where)
        read = template_file if written.template else text_or_file
        source, problems = read(value, self.project.root, where, shown)
        self.problems += problems
        if source is None:
            return None
        own = "" if source.is_file else shown
        template, problems = compile_template(source.text, source.where, positions=source.is_file, path=own)
        self.problems += problems
        return template

    def _messages(self, written: StageFile, path: Path_, card: Card | None) -> tuple[Example, ...]:
        """The stage's examples, else its card's."""
        if written.messages is None:
            return card.info.messages if card else ()
        found, problems = stage_examples(written.messages, self.document, (*path, "messages"))
        self.problems += problems
        return found

    def _instructions(self, written: StageFile, path: Path_, card: Card | None) -> str | None:
        if written.instructions is None:
            return card.info.instruction if card else None
        where, key = self.document.where((*path, "instructions")), key_path((*path, "instructions"))
        source, problems = text_or_file(written.instructions, self.project.root, where, key)
        self.problems += problems
        if source is None:
            return None
        filling = Filling(self.variables, source.is_file)
        text, problems = fill(source.text, source.where, filling, "" if source.is_file else key)
        self.problems += problems
        return text

    def _guard(self, written: StageFile, path: Path_) -> Guard | None:
        if written.when is None:
            return None
        at = (*path, "when")
        guard, problems = compile_guard(written.when, self.document.where(at), key_path(at))
        self.problems += problems
        return guard

    def _schema(self, written: StageFile, path: Path_) -> SchemaSpec | None:
        if written.output_schema is None:
            return None
        at = (*path, "output_schema")
        schema, problems = load_schema(written.output_schema, self.project, self.document, at, name=written.name)
        self.problems += problems
        return schema

    def _levels(self, written: StageFile, card: Card | None) -> dict[Level, Mapping[str, Any]]:
        """What each level says, weakest first: only the keys that it sets."""
        from_card = {**card.info.params, "model": card.info.model} if card else {}
        return {
            "project": _set_keys(self.project.defaults),
            "defaults": _set_keys(self.file.defaults),
            "card": {key: value for key, value in from_card.items() if value is not None},
            "stage": _set_keys(written),
            "override": {key: value for key in _TYPED if (value := getattr(self.overrides, key)) is not None},
        }

    def _where(self, written: StageFile, path: Path_, card: Card | None) -> dict[str, Where]:
        """The place of every key that holds for the stage, from the strongest level that has it."""
        defaults = {key: self.document.where(("defaults", key)) for key in self.file.defaults.model_fields_set}
        own = {key: self.document.where((*path, key)) for key in written.model_fields_set}
        of_card = {} if card is None else {key: place for key, place in card.where.items() if key}
        if card is not None and card.info.model is None:
            of_card.pop("model", None)
        placed = {key: place for key, place in self.project.where.items() if "." not in key or key.startswith("batch.")}
        typed = {key: Where(flag) for key, flag in _TYPED.items() if getattr(self.overrides, key) is not None}
        defaults |= places(self.file.defaults, self.document, ("defaults",))
        own |= places(written, self.document, path)
        return {**placed, **defaults, **of_card, **own, **typed, "": self.document.where(path)}


def _sent(answers: tuple[str, ...], limits: VisibleFile | None) -> tuple[str, ...]:
    """The answers that a prompt may name."""
    return tuple(name for name in answers if not (limits and limits.never and name in limits.never))


def _visibility(written: VisibleFile | None) -> Visibility | None:
    if written is None:
        return None
    return Visibility(None if written.only is None else frozenset(written.only), frozenset(written.never or ()))


def _set_keys(written: DefaultsFile) -> dict[str, Any]:
    known = DefaultsFile.model_fields
    return {key: getattr(written, key) for key in written.model_fields_set if key in known}


def _strongest(levels: Mapping[Level, Mapping[str, Any]], key: str) -> tuple[Level | None, Any]:
    for level in reversed(tuple(levels)):
        if key in levels[level]:
            return level, levels[level][key]
    return None, None


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _params(levels: Mapping[Level, Mapping[str, Any]]) -> dict[Level, Mapping[str, Any]]:
    """The fields of `Params` among what each level says. A card may set more of them than the others."""
    return {
        level: {key: value for key, value in values.items() if key in _PARAMS or (level == "card" and key != "model")}
        for level, values in levels.items()
        if level != "override"
    }


def _timeout(written: TimeoutFile | None) -> Timeout | None:
    return Timeout(written.connect, written.first_byte, written.total) if written else None
