"""One stage resolved: its card, texts and schema, and which level (project, defaults, card, stage, flag) sets a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from agac.core.errors import Path_, Problem, Where, any_error, did_you_mean, key_path
from agac.core.types import JSONValue, Schema
from agac.spec.agent_cards import Card, find_card, load_card
from agac.spec.graph import exploded, grouping, misplaced, operation, operations_of
from agac.spec.guards import Guard, compile_guard
from agac.spec.instructions import InstructionValues, fill, stage_examples
from agac.spec.json_schema import SchemaFault, expand_shorthand, is_json_schema, schema_faults
from agac.spec.levels import StageNode
from agac.spec.models import (
    BatchFile,
    BudgetFile,
    DefaultsFile,
    RunRulesFile,
    StageFile,
    TelemetryFile,
    TimeoutFile,
    VisibleFile,
    WorkflowFile,
)
from agac.spec.output_schema import PREFIX, python_schema, vote_problems
from agac.spec.paths import OutsideProject, inside, read_text
from agac.spec.templates import Template, compile_template, default_prompt, group_prompt, template_file, text_or_file
from agac.spec.workflow import (
    BatchRules,
    Budget,
    Example,
    JsonSchema,
    Level,
    Overrides,
    ProjectSpec,
    RunMode,
    RunRules,
    SchemaSpec,
    Timeout,
    Visibility,
    WrittenStage,
)
from agac.spec.yaml import MAX_DEPTH, Document, parse_yaml

# `output_schema` in its four forms, each to a `SchemaSpec`: a file, inline JSON Schema, shorthand, `python:…`.

_NAME_BREAK = re.compile(r"[^A-Za-z0-9_-]+")
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_SUFFIXES = (".json", ".yaml", ".yml")


def schema_name(text: str) -> str:
    """A name that every provider takes: letters, digits, `_` and `-`, at most 64 of them."""
    return _NAME_BREAK.sub("_", text).strip("_")[:64] or "result"


def load_schema(
    value: str | dict[str, Any], project: ProjectSpec, document: Document, path: Path_, *, name: str
) -> tuple[SchemaSpec | None, list[Problem]]:
    """The schema that stands at `path` of `document`; `name` is what an inline one is called."""
    if isinstance(value, dict):
        return _inline(value, document, path, name)
    if value.startswith(PREFIX):
        return python_schema(value, project.root, document.where(path), key_path(path))
    return _from_file(value, project, document.where(path), key_path(path))


def _inline(
    value: dict[str, Any], document: Document, path: Path_, name: str
) -> tuple[SchemaSpec | None, list[Problem]]:
    body, faults = (value, schema_faults(value)) if is_json_schema(value) else expand_shorthand(value)
    problems = [_at(document, (*path, *inner), message) for inner, message in faults]
    return (None, problems) if problems else (JsonSchema(Schema(schema_name(name), body)), [])


def _at(document: Document, path: Path_, message: str) -> Problem:
    return Problem(document.where(path), message, key_path(path))


def _from_file(text: str, project: ProjectSpec, where: Where, key: str) -> tuple[SchemaSpec | None, list[Problem]]:
    try:
        path = _find(text, project)
    except OutsideProject as error:
        return None, [Problem(where, str(error), key)]
    if path is None:
        return None, [Problem(where, f"no such file: {text!r}; {_what_there_is(text, project)}", key)]
    shown = project.shown(path)
    raw, problem = read_text(path, shown)
    if problem is not None:
        return None, [problem]
    return _parsed(raw, shown, path)


def _find(text: str, project: ProjectSpec) -> Path | None:
    """From the project root, then from the folder of schemas; the suffix `.json` may be left out."""
    for base in (project.root, project.paths.schemas):
        for candidate in (text, f"{text}.json"):
            path = inside(project.root, candidate, base=base)
            if path.is_file():
                return path
    return None


def _what_there_is(text: str, project: ProjectSpec) -> str:
    if "|" in text:
        return 'a result has named fields: write {answer: "' + text + '"}'
    folder = project.paths.schemas
    files = sorted(folder.rglob("*")) if folder.is_dir() else []
    known = [project.shown(file) for file in files if file.suffix in _SUFFIXES]
    return did_you_mean(text, known, f"in {project.shown(folder)}/")


def _parsed(text: str, shown: str, path: Path) -> tuple[SchemaSpec | None, list[Problem]]:
    # JSON is (nearly) YAML: reading it so gives positions, and the file may be YAML as well
    document = parse_yaml(text, shown)
    body, problems = document.data, document.problems
    if path.suffix == ".json":
        body, problems = _json(text, shown)
        if document.problems:
            document = Document(shown, body, [])
    if problems:
        return None, problems
    if not isinstance(body, dict):
        return None, [
            Problem(Where(shown, 1, 1), "expected a JSON Schema: a mapping with type, properties and the like")
        ]
    faults: list[SchemaFault]
    body, faults = (body, schema_faults(body)) if is_json_schema(body) else expand_shorthand(body)
    problems = [_at(document, inner, message) for inner, message in faults]
    return (None, problems) if problems else (JsonSchema(Schema(schema_name(path.stem), body)), [])


def _json(text: str, shown: str) -> tuple[JSONValue, list[Problem]]:
    if not text.strip():
        return None, [Problem(Where(shown), "is empty; write a JSON Schema")]
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        return None, [Problem(Where(shown, error.lineno, error.colno), f"not valid JSON: {_json_words(error)}")]
    except (_SchemaRefused, RecursionError) as error:
        message = str(error) if isinstance(error, _SchemaRefused) else _TOO_DEEP
        return None, [Problem(Where(shown), message)]
    return (body, []) if _depth(body) <= MAX_DEPTH else (None, [Problem(Where(shown), _TOO_DEEP)])


def _json_words(error: json.JSONDecodeError) -> str:
    """The commonest slip in plain words, which Python's own versions call by different names."""
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
    rest = after[1:].lstrip() if after[:1] == "," else after if before[-1:] == "," else ""
    return f"a comma before {rest[0]!r} is one too many; remove it" if rest[:1] in ("}", "]") and rest else error.msg


def _depth(value: JSONValue) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner for v in level for inner in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())
        ]
    return depth - 1


class _SchemaRefused(ValueError):
    """JSON that Python reads and we do not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _SchemaRefused(f"duplicate key {twice!r}; keep one of them")
    return values


def _not_finite(text: str) -> NoReturn:
    raise _SchemaRefused(f"{text} is not JSON; give a finite number")


# `run_mode` and `batch` of a stage: the strongest level's word for each key, and who said it.

_DAY = 86_400.0


def batch_rules(
    levels: Mapping[Level, Mapping[str, Any]],
) -> tuple[RunMode, BatchRules, dict[str, Level]]:
    """A stage's run mode, its rules for batches, and the level of each key that is set. `levels`: weakest first."""
    mode: RunMode = "sync"
    rules: dict[str, Any] = {}
    said: dict[str, Level] = {}
    for level, values in levels.items():
        if "run_mode" in values:
            mode, said["run_mode"] = values["run_mode"], level
        for key, value in _written(values.get("batch")):
            rules[key], said[f"batch.{key}"] = value, level
    return mode, BatchRules(**rules), said


def _written(batch: BatchFile | None) -> Iterator[tuple[str, Any]]:
    for key in sorted(batch.model_fields_set) if batch else ():
        yield key, getattr(batch, key)


def places(written: DefaultsFile, document: Document, path: Path_) -> dict[str, Where]:
    """Where each key of the `batch` of one level stands, as `batch.key`."""
    return {f"batch.{key}": document.where((*path, "batch", key)) for key, _ in _written(written.batch)}


def rule_problems(stage: WrittenStage) -> Iterator[Problem]:
    """What in a stage's rules for batches contradicts itself, or has no effect."""
    own = [key for key, level in stage.mode_levels.items() if level == "stage" and key.startswith("batch.")]
    if stage.run_mode == "sync":
        if own and stage.mode_levels.get("run_mode") != "override":
            message = "has no effect: the stage runs in sync mode; add `run_mode: batch`, or remove batch"
            yield Problem(stage.at("batch"), message, stage.key("batch", "stage"), "warning")
        return
    rules = stage.batch
    if rules.deadline is None and "batch.on_deadline" in stage.mode_levels:
        yield said(stage, "on_deadline", "says what happens at the deadline; add deadline, or remove on_deadline")
    if isinstance(rules.deadline, float) and rules.deadline > 30 * _DAY:
        yield said(stage, "deadline", f"{rules.deadline / _DAY:g} days is longer than any provider keeps a batch")
    levels = stage.mode_levels
    if rules.retry != "batch" and rules.max_rounds > 1 and levels.get("batch.max_rounds") == levels["batch.retry"]:
        message = f"has no effect with retry: {rules.retry}, which puts no request into a second batch; remove one"
        yield said(stage, "max_rounds", message, warning=True)


def said(stage: WrittenStage, key: str, message: str, *, warning: bool = False) -> Problem:
    """A problem with a key of a stage's `batch`, at the level that set it."""
    name = f"batch.{key}"
    path = stage.key(name, stage.mode_levels.get(name, "stage"))
    return Problem(stage.at(name), message, path, "warning" if warning else "error")


# When a run stops by itself and what it keeps: the workflow's word over agac.yml's.


def run_rules(file: RunRulesFile, document: Document, project: ProjectSpec, overrides: Overrides) -> RunRules:
    """The rules of a workflow. Budgets of both files hold together; of everything else the workflow's comes first.

    What the command line says takes the place of both files'.
    """
    where = {key: place for key, place in project.where.items() if key.startswith("project.")}
    where |= {key: document.where((key,)) for key in RunRulesFile.model_fields.keys() & file.model_fields_set}

    def strongest(key: str) -> Any:
        own = getattr(file, key)
        return getattr(project.rules, key) if own is None else own

    confirm = strongest("confirm_above")
    stop_loss = strongest("stop_loss")
    telemetry_file, ttft = _telemetry(file.telemetry, project.rules.telemetry)
    typed = overrides.budget
    return RunRules(
        project=None if typed else budget(project.rules.budget),
        workflow=typed or budget(file.budget),
        row=budget(strongest("row_budget")),
        confirm_above=confirm.usd if confirm else None,
        stop_loss=True if stop_loss is None else stop_loss,
        max_errors=strongest("max_errors") if overrides.max_errors is None else overrides.max_errors,
        row_timeout=strongest("row_timeout"),
        keep_replies=strongest("keep_replies") or "all",
        telemetry_file=telemetry_file,
        ttft=ttft,
        where=where,
    )


def _telemetry(own: TelemetryFile | None, project: TelemetryFile | None) -> tuple[bool | None, bool]:
    """Whether the file is written, and whether calls are streamed: by both files, key by key."""
    own, project = own or TelemetryFile(), project or TelemetryFile()
    file = project.file if own.file is None else own.file
    ttft = project.ttft if own.ttft is None else own.ttft
    return file, bool(ttft)


def budget(file: BudgetFile | None) -> Budget | None:
    """A budget as it was written."""
    return Budget(file.usd, file.tokens, file.calls) if file else None


# One stage with everything resolved: its card, its texts, its schema, and who says which parameter.

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
        filling = InstructionValues(self.variables, source.is_file)
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
