"""One stage resolved: its card, texts and schema, and which level (project, defaults, card, stage, flag) sets a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from agac.core.errors import Path_, Problem, Where, any_error, did_you_mean, key_path
from agac.core.types import JSONValue, Schema
from agac.spec.agent_cards import Card, find_card, load_card
from agac.spec.graph import exploded, grouping, misplaced, operation, operations_of
from agac.spec.guards import Guard, compile_guard
from agac.spec.instructions import InstructionValues, fill, stage_examples
from agac.spec.json_schema import expand_shorthand, is_json_schema, schema_faults
from agac.spec.levels import StageNode
from agac.spec.models import (
    BatchFile,
    BudgetFile,
    DefaultsFile,
    FileModel,
    RunRulesFile,
    StageFile,
    TimeoutFile,
    VisibleFile,
    WorkflowFile,
    merged,
    set_keys,
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
    RunRules,
    SchemaSpec,
    Stage,
    Timeout,
    Visibility,
    WrittenStage,
)
from agac.spec.yaml import MAX_DEPTH, Document, parse_yaml

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
    problems = [document.problem((*path, *inner), message) for inner, message in faults]
    return (None, problems) if problems else (JsonSchema(Schema(schema_name(name), body)), [])


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
    return _inline(body, document, (), path.stem)


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


_DAY = 86_400.0


def places_of(keys: FileModel, document: Document, path: Path_) -> dict[str, Where]:
    """Where each key of a mapping at `path` stands; those of a mapping in it that merges as `batch.deadline`."""
    return {key: document.where((*path, *key.split("."))) for key in set_keys(keys)}


def rule_problems(stage: WrittenStage) -> Iterator[Problem]:
    """What in a stage's rules for batches contradicts itself, or has no effect."""
    own = [key for key, level in stage.levels.items() if level == "stage" and key.startswith("batch.")]
    if stage.run_mode == "sync":
        if own and stage.levels.get("run_mode") != "override":
            message = "has no effect: the stage runs in sync mode; add `run_mode: batch`, or remove batch"
            yield Problem(stage.at("batch"), message, stage.key("batch", "stage"), "warning")
        return
    rules = stage.batch
    if rules.deadline is None and "batch.on_deadline" in stage.levels:
        yield said(stage, "on_deadline", "says what happens at the deadline; add deadline, or remove on_deadline")
    if isinstance(rules.deadline, float) and rules.deadline > 30 * _DAY:
        yield said(stage, "deadline", f"{rules.deadline / _DAY:g} days is longer than any provider keeps a batch")
    levels = stage.levels
    if rules.retry != "batch" and rules.max_rounds > 1 and levels.get("batch.max_rounds") == levels["batch.retry"]:
        message = f"has no effect with retry: {rules.retry}, which puts no request into a second batch; remove one"
        yield said(stage, "max_rounds", message, warning=True)


def said(stage: WrittenStage, key: str, message: str, *, warning: bool = False) -> Problem:
    """A problem with a key of a stage's `batch`, at the level that set it."""
    name = f"batch.{key}"
    path = stage.key(name, stage.levels.get(name, "stage"))
    return Problem(stage.at(name), message, path, "warning" if warning else "error")


def run_rules(file: RunRulesFile, document: Document, project: ProjectSpec, overrides: Overrides) -> RunRules:
    """The rules of a workflow. Budgets of both files hold together; of everything else the workflow's comes first.

    What the command line says takes the place of both files'.
    """
    where = {key: place for key, place in project.where.items() if key.startswith("project.")}
    where |= {key: document.where((key,)) for key in RunRulesFile.model_fields.keys() & file.model_fields_set}
    rules, typed = merged(RunRulesFile, project.rules, file), overrides.budget
    return RunRules(
        project=None if typed else _budget(project.rules.budget),
        workflow=typed or _budget(file.budget),
        row=_budget(rules.row_budget),
        confirm_above=rules.confirm_above.usd if rules.confirm_above else None,
        stop_loss=rules.stop_loss,
        max_errors=rules.max_errors if overrides.max_errors is None else overrides.max_errors,
        row_timeout=rules.row_timeout,
        keep_replies=rules.keep_replies,
        telemetry_file=rules.telemetry.file,
        ttft=rules.telemetry.ttft,
        where=where,
    )


def _budget(file: BudgetFile | None) -> Budget | None:
    return Budget(**dict(file)) if file else None


T = TypeVar("T")

_PARAMS = ("temperature", "max_tokens")
_TYPED = {"model": "--model", "run_mode": "--run-mode"}
"""Keys of stages that the command line gives to all of them, with its flags."""

_ORDER: tuple[Level, ...] = ("project", "defaults", "card", "stage", "override")
_VALUES: dict[type[FileModel], type] = {BudgetFile: Budget, TimeoutFile: Timeout, BatchFile: BatchRules}
"""What mappings of files are in a Stage: the same keys, without a word of how they were written."""

SAME = StageFile.model_fields.keys() & {one.name for one in fields(Stage)} - {"needs", "prompt", "explode"}
"""The keys of files that are fields of a Stage as they stand."""


@dataclass(frozen=True, slots=True)
class KeyLevel:
    """What one level says of a stage, and where each of its keys stands; those of a mapping as `batch.deadline`."""

    level: Level
    keys: FileModel
    places: Mapping[str, Where]


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
        graph = {"index": order, "needs": link.needs, "ancestors": link.ancestors, "rows_of": link.rows_of}
        own = self._local(written, path) if operations_of(written) else self._asking(written, path, before_it)
        own["guard"] = self._guard(written, path)
        if any_error(self.problems[before:]):
            return None
        stage = WrittenStage(**{**own, **graph, "explode": exploded(written), "path": key_path(path)})
        self.problems += rule_problems(stage) if stage.asks else ()
        return stage

    def _local(self, written: StageFile, path: Path_) -> dict[str, Any]:
        """The fields of a stage that asks no model."""
        does = self._noted(operation(written, self.document, path, self.project.root))
        places = {**places_of(written, self.document, path), "": self.document.where(path)}
        return {**_same_fields(written, DefaultsFile()), "operation": does, "where": places}

    def _asking(self, written: StageFile, path: Path_, before_it: tuple[str, ...]) -> dict[str, Any]:
        """The fields of a stage that asks a model."""
        card = self._card(written, path)
        prompt = self._prompt(written, path, _sent(before_it, written.visible))
        instructions = self._instructions(written, path, card)
        schema = self._schema(written, path)
        self.problems += vote_problems(written, schema, self.document, path)
        levels = self._levels(written, path, card)
        keys = merged(DefaultsFile, *(one.keys for one in levels))
        said = {key: one.level for one in levels for key in set_keys(one.keys)}
        where = {key: place for one in levels for key, place in one.places.items()}
        return {
            **_same_fields(written, keys),
            "system": instructions,
            "prompt": prompt,
            "schema": schema.schema if isinstance(schema, JsonSchema) else None,
            "output_schema": schema,
            "examples": self._examples(written, path, card),
            "visibility": _visibility(written.visible),
            "group": grouping(written),
            "model": keys.model,
            "fallback": _fallback(keys, said),
            "params": _params(levels, card),
            "timeout": value_of(keys.timeout),
            "concurrency": self.overrides.concurrency or keys.concurrency,
            "levels": said,
            "where": {**where, "": self.document.where(path)},
        }

    def _answers_before(self, written: StageFile, link: StageNode) -> tuple[str, ...]:
        """The stages that ask a model and that this one follows, perhaps by way of others."""
        found = tuple(dict.fromkeys(name for need in link.needs for name in self._answers.get(need, ())))
        self._answers[written.name] = found if operations_of(written) else (written.name,)
        return found

    def _noted(self, found: tuple[T, list[Problem]]) -> T:
        """What was read; what is wrong with it is noted."""
        self.problems += found[1]
        return found[0]

    def _problem(self, path: Path_, message: str, *, key: bool = False) -> None:
        self.problems.append(self.document.problem(path, message, key=key))

    def _card(self, written: StageFile, path: Path_) -> Card | None:
        if written.agent is None:
            return None
        file, reason = find_card(written.agent, self.project)
        if file is None:
            self._problem((*path, "agent"), reason)
            return None
        return self._noted(load_card(file, self.project, self.variables))

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
        source = self._noted(read(value, self.project.root, where, shown))
        if source is None:
            return None
        own = "" if source.is_file else shown
        return self._noted(compile_template(source.text, source.where, positions=source.is_file, path=own))

    def _examples(self, written: StageFile, path: Path_, card: Card | None) -> tuple[Example, ...]:
        """The stage's examples, else its card's."""
        if written.messages is None:
            return card.info.messages if card else ()
        return self._noted(stage_examples(written.messages, self.document, (*path, "messages")))

    def _instructions(self, written: StageFile, path: Path_, card: Card | None) -> str | None:
        if written.instructions is None:
            return card.info.instruction if card else None
        where, key = self.document.where((*path, "instructions")), key_path((*path, "instructions"))
        source = self._noted(text_or_file(written.instructions, self.project.root, where, key))
        if source is None:
            return None
        filling = InstructionValues(self.variables, source.is_file)
        return self._noted(fill(source.text, source.where, filling, "" if source.is_file else key))

    def _guard(self, written: StageFile, path: Path_) -> Guard | None:
        if written.when is None:
            return None
        at = (*path, "when")
        return self._noted(compile_guard(written.when, self.document.where(at), key_path(at)))

    def _schema(self, written: StageFile, path: Path_) -> SchemaSpec | None:
        if written.output_schema is None:
            return None
        at = (*path, "output_schema")
        return self._noted(load_schema(written.output_schema, self.project, self.document, at, name=written.name))

    def _levels(self, written: StageFile, path: Path_, card: Card | None) -> list[KeyLevel]:
        """What each level says, weakest first."""
        of_card: dict[str, Any] = {"model": card.info.model} if card and card.info.model is not None else {}
        typed: dict[str, Any] = {key: value for key in _TYPED if (value := getattr(self.overrides, key)) is not None}
        defaults, places = self.file.defaults, self.project.where
        return [
            KeyLevel("project", self.project.defaults, {key: places[key] for key in set_keys(self.project.defaults)}),
            KeyLevel("defaults", defaults, places_of(defaults, self.document, ("defaults",))),
            KeyLevel(
                "card",
                DefaultsFile.model_construct(**of_card),
                {key: at for key, at in (card.where if card else {}).items() if key and (key != "model" or of_card)},
            ),
            KeyLevel("stage", written, places_of(written, self.document, path)),
            KeyLevel("override", DefaultsFile.model_construct(**typed), {key: Where(_TYPED[key]) for key in typed}),
        ]


def _same_fields(written: StageFile, keys: DefaultsFile) -> dict[str, Any]:
    """The fields of a Stage that are keys of files: `keys` are those that several levels may give."""
    return {name: value_of(getattr(keys if name in DefaultsFile.model_fields else written, name)) for name in SAME}


def value_of(written: Any) -> Any:
    """A key's value as a Stage has it."""
    kind = _VALUES.get(type(written))
    return written if kind is None else kind(**dict(written))


def _fallback(keys: DefaultsFile, said: Mapping[str, Level]) -> tuple[str, ...]:
    """The models after the first. A stronger level's model stands without the fallbacks of a weaker one's: they were
    chosen for another model. `--model` has none."""
    if "fallback" not in said or "model" not in said or _ORDER.index(said["fallback"]) < _ORDER.index(said["model"]):
        return ()
    return tuple(keys.fallback)


def _sent(answers: tuple[str, ...], limits: VisibleFile | None) -> tuple[str, ...]:
    """The answers that a prompt may name."""
    return tuple(name for name in answers if not (limits and limits.never and name in limits.never))


def _visibility(written: VisibleFile | None) -> Visibility | None:
    if written is None:
        return None
    return Visibility(None if written.only is None else frozenset(written.only), frozenset(written.never or ()))


def _params(levels: Sequence[KeyLevel], card: Card | None) -> dict[Level, Mapping[str, Any]]:
    """The fields of `Params` that each level sets. A card may set more of them than the others."""
    found: dict[Level, Mapping[str, Any]] = {
        one.level: {key: getattr(one.keys, key) for key in _PARAMS if key in one.keys.model_fields_set}
        for one in levels
        if one.level != "override"
    }
    return found | ({"card": card.info.params} if card else {})
