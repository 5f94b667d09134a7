"""One stage resolved: its card, texts and schema, and which level (project, defaults, card, stage,
flag) sets a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from agac.core.errors import Path_, Problem, Where, any_error, did_you_mean, key_path, listed
from agac.core.types import JSONValue
from agac.spec import models, templates, workflow
from agac.spec.agent_cards import (
    Card,
    Skill,
    find_card,
    load_card,
    member_file,
    read_skills,
    stage_examples,
    with_skills,
)
from agac.spec.card_models import NO_LIMIT
from agac.spec.card_types import OF_ANSWERS, ONLY_A_TOOL, REQUEST, CardPart, becomes_stages
from agac.spec.file_model import FileModel
from agac.spec.graph import PARTS, StageNode, stage_of
from agac.spec.guards import Check, Guard, compile_guard
from agac.spec.models import DefaultsFile, RedoFile, ReviewFile, StageFile, WorkflowFile
from agac.spec.notify import NotifyTarget
from agac.spec.operations import (
    Dedupe,
    Filter,
    Group,
    Join,
    Operation,
    Python,
    Rename,
    Review,
    Select,
    Vote,
    ways,
)
from agac.spec.output_schema import field_problems, load_schema
from agac.spec.paths import Refused, RemoteContent, Unusable, is_reference
from agac.spec.python_code import parse_reference
from agac.spec.rule_models import BudgetFile, RowBudgetFile, RunRulesFile
from agac.spec.stage_tools import ToolReader
from agac.spec.templates import PlacedText, Syntax, Template
from agac.spec.tools import NamedTool
from agac.spec.workflow import Overrides, ProjectSpec, WrittenStage
from agac.spec.yaml import Document

T = TypeVar("T")
Keys = TypeVar("Keys", bound=FileModel)

# what one level says of a stage, and where each of its keys stands
LevelKeys = tuple[FileModel, Mapping[str, Where]]
_DAY = 86_400.0
DEEPEST = 5  # agents of which each calls the next: each multiplies what a row may cost
# that a stage may call, those that its agents may call included: each multiplies their number
MOST_AGENTS = 500
_PARAMS = ("temperature", "max_tokens")
_TYPED = {"model": "--model", "backend": "--backend", "run_mode": "--run-mode"}
"""Keys of stages that the command line gives to all of them, with its flags."""

_ORDER: tuple[workflow.Level, ...] = ("project", "defaults", "card", "stage", "override")
_VALUES: dict[type[FileModel], type] = {
    BudgetFile: workflow.Budget,
    RowBudgetFile: workflow.RowBudget,
    models.TimeoutFile: workflow.Timeout,
    models.BatchFile: workflow.BatchRules,
    models.RetriesFile: workflow.RetryRules,
    models.VoteFile: Vote,
}
"""What mappings of files are in a Stage: the same keys, without a word of how they were written."""

_READ = {"needs", "prompt", "explode", "checks"}  # keys that say more than they are as text
SAME = StageFile.model_fields.keys() & {one.name for one in fields(workflow.Stage)} - _READ
"""The keys of files that are fields of a Stage as they stand."""

_ASKING = DefaultsFile.model_fields.keys() | {
    "agent",
    "instructions",
    "prompt",
    "template",
    "messages",
    "output_schema",
    "output_field",
    "reply",
    "visible",
    "budget",
    "group_by",
    "reduce",
    "incomplete",
    "replicas",
    "vote",
    "tools",
    "max_turns",
    "tools_mode",
    "tool_stubs",
    "on_tool_failure",
    "reads",
    "skills",
    "expect",
    "escalate",
    "runtime",
}
"""Keys that only mean something where a model is asked."""

_OF_FUNCTIONS = {"timeout", "checks", "group_by", "incomplete"}
"""Keys of stages that ask a model or call a function, and of no others."""


def merged(kind: type[Keys], *levels: FileModel) -> Keys:
    """The keys of `kind` as these levels set them, weakest first; what none of them sets is at its
    default."""
    found: dict[str, Any] = {}
    for level in levels:
        for name in level.model_fields_set & kind.model_fields.keys():
            value = getattr(level, name)
            weaker = found.get(name)
            if isinstance(value, FileModel) and value.merges and isinstance(weaker, FileModel):
                value = merged(type(value), weaker, value)
            found[name] = value
    return _with_defaults(kind, found)


def _with_defaults(kind: type[Keys], found: Mapping[str, Any]) -> Keys:
    """The mapping `kind` with these keys set, all others at their defaults."""
    return kind.model_construct(set(found), **{**_defaults(kind), **found})


@cache
def _defaults(kind: type[FileModel]) -> dict[str, Any]:
    """The keys of `kind` at their defaults. Pydantic copies each default for each value: a third
    of a stage's time."""
    return dict(kind.model_construct())


def set_keys(level: FileModel) -> Iterator[str]:
    """The keys that a level sets; those of a mapping that merges as `batch.deadline` too."""
    for name in sorted(level.model_fields_set):
        yield name
        value = getattr(level, name)
        if isinstance(value, FileModel) and value.merges:
            yield from (f"{name}.{inner}" for inner in set_keys(value))


def places_of(keys: FileModel, document: Document, path: Path_) -> dict[str, Where]:
    """Where each key of a mapping at `path` stands; those of a mapping in it that merges as
    `batch.deadline`."""
    return {key: document.where((*path, *key.split("."))) for key in set_keys(keys)}


def run_rules(
    file: RunRulesFile, document: Document, project: ProjectSpec, overrides: Overrides
) -> workflow.RunRules:
    """The rules of a workflow: the command line's, then the workflow's, the project's; both files'
    budgets hold."""
    rules = merged(RunRulesFile, project.file, file)
    typed = overrides.budget
    own = "ttft" in file.telemetry.model_fields_set
    same = {
        key: getattr(rules, key)
        for key in RunRulesFile.model_fields
        if key in workflow.RunRules.__slots__
    }
    same["confirm_above"] = rules.confirm_above.usd if rules.confirm_above else None
    told = document if "notify" in file.model_fields_set else project.document
    targets: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in one}
        for one in rules.notify
    ]
    same["notify"] = tuple(
        NotifyTarget(**one, where=told.where(("notify", n))) for n, one in enumerate(targets)
    )
    if overrides.max_errors is not None:
        same["max_errors"] = overrides.max_errors
    return workflow.RunRules(
        project=None if typed else value_of(project.file.budget),
        workflow=typed or value_of(file.budget),
        row=value_of(rules.row_budget),
        **same,
        telemetry_file=rules.telemetry.file,
        ttft=rules.telemetry.ttft,
        otel=rules.telemetry.otel,
        otel_sample=rules.telemetry.sample,
        otel_prompts=rules.telemetry.prompts,
        where=(document if own else project.document).where(("telemetry", "ttft")),
    )


def value_of(written: Any) -> Any:
    """A key's value as a Stage has it."""
    kind = _VALUES.get(type(written))
    return written if kind is None else kind(**dict(written))


@dataclass(slots=True)
class StageBuilder:
    """What all stages of one workflow share while they are being built. Problems gather in
    `problems`."""

    project: ProjectSpec
    document: Document
    file: WorkflowFile
    variables: Mapping[str, JSONValue]
    overrides: Overrides
    problems: list[Problem] = field(default_factory=list)
    parts: Mapping[str, Sequence[CardPart]] = field(default_factory=dict)
    _answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # answers that come to a stage with parts
    _outer: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _built: dict[str, WrittenStage] = field(default_factory=dict)
    _callers: tuple[str, ...] = ()
    _agents: int = 0  # that the stage may call which is being built, as far as they are known
    _files: dict[str, PlacedText] = field(default_factory=dict)  # texts of files by what names them
    _cards: dict[tuple[Path, tuple[str, ...]], tuple[Card | None, list[Problem]]] = field(
        default_factory=dict
    )
    _templates: dict[tuple[PlacedText, Syntax], tuple[Template | None, list[Problem]]] = field(
        default_factory=dict
    )

    def stage(self, node: StageNode, order: int) -> WrittenStage | None:
        """The stage of `node`, the `order`-th (from 0) that a row meets; None when something is
        wrong with it."""
        before = len(self.problems)
        written = self.file.stages[node.index]
        path = ("stages", node.index)
        if node.is_escalation:
            return self._escalated(node, order, written, path)
        self.problems += _misplaced(written, self.document, path)
        answers = tuple(
            dict.fromkeys(name for need in node.needs for name in self._answers.get(need, ()))
        )
        parts = self.parts.get(written.name)
        if parts is not None:
            part = next((one for one in parts if one.name == node.name), None)
            if part is not None:
                return self._part(part, node, order, answers)
            return None
        if written.operations:
            # a group sees none of them
            self._answers[written.name] = answers if written.group_by is None else ()
            own = {
                **_same_fields(written, DefaultsFile()),
                "operation": self._noted(
                    _operation(written, node, self.document, path, self.project.root)
                ),
                "group": _group(written),
                "where": places_of(written, self.document, path),
            }
        else:
            self._answers[written.name] = (written.name,)
            own = self._asking(written, path, answers, None)
        if written.when is not None:
            own["guard"] = self._noted(
                compile_guard(written.when, self.document.where((*path, "when")))
            )
        return self._finished(node, order, written, path, own, before)

    def _finished(
        self,
        node: StageNode,
        order: int,
        written: StageFile,
        path: Path_,
        own: dict[str, Any],
        before: int,
    ) -> WrittenStage | None:
        """The stage with these fields of its `own`; None where there are problems after the first
        `before` ones."""
        own["where"] |= {"": self.document.where(path)}
        checks = [
            (one.message, self._check(one.check, path, place))
            for place, one in enumerate(written.checks)
        ]
        own["checks"] = tuple(
            Check(guard, message) for message, guard in checks if guard is not None
        )
        if any_error(self.problems[before:]):
            return None
        stage = WrittenStage(
            **_place(node, order),
            explode=tuple(written.explode.split(".")) if written.explode else None,
            path=key_path(path),
            **own,
        )
        self.problems += (*_rule_problems(stage), *self._endless(stage)) if stage.asks else ()
        self._built[stage.name] = stage
        return stage

    def _endless(self, stage: WrittenStage) -> Iterator[Problem]:
        """Planners without a limit of their own, where nothing else bounds them."""
        bounded = self.file.row_budget or self.project.file.row_budget
        for card in (
            one.card
            for one in workflow.family(stage)
            if one.card and one.tooling.max_turns == NO_LIMIT
        ):
            if card.kind == "iterative_planner" and not bounded:
                message = (
                    "plan_iterations is -1 unless it is written, so something else has to "
                    "bound the planner; add "
                )
                message += (
                    "`row_budget: {turns: 50}` to the workflow, `max_turns` to the stage, "
                    "or a number here"
                )
                yield card.document.problem(("plan_iterations",), message)

    def _part(
        self, part: CardPart, node: StageNode, order: int, answers: Sequence[str]
    ) -> WrittenStage | None:
        """One of the stages that a stage of cards becomes; its keys hold for all whose cards say
        no other."""
        before = len(self.problems)
        written = self.file.stages[node.index]
        path = ("stages", node.index)
        answers = self._outer.setdefault(written.name, tuple(answers))
        self._answers[part.name] = (written.name,)
        card = self._loaded(part.card) if part.card is not None else None
        if card is None and not part.joined:
            return None
        if card:
            of_card = {*card.params, *({"model", "fallback"} if card.keys.model else ())}
        else:
            of_card = set[str]()
        names = DefaultsFile.model_fields.keys() - of_card | {"prompt", "template", "visible"}
        names |= {*OF_ANSWERS, "replicas", "vote", "expect"} if part.gives else set()
        names |= {"budget", "on_empty"} if part.name == written.name else set()
        keys = {key: getattr(written, key) for key in names & written.model_fields_set} | dict(
            part.keys
        )
        keys |= {"output_schema": part.schema} if part.schema else {}
        file = StageFile.model_construct({"name", *keys}, name=part.name, **keys)
        if card is None:
            own: dict[str, Any] = {
                "operation": Join(part.joined),
                "where": places_of(written, self.document, path),
            }
            own |= _same_fields(file, DefaultsFile())
        else:
            own = self._asking(file, path, answers, card)
            tried = self.overrides.change
            prompt = own["prompt"]
            if tried and tried.stage == part.name and tried.prompt:
                whole = REQUEST
            else:
                whole = part.prompt
            if prompt is not None and whole != REQUEST:
                own["prompt"] = templates.sound_template(
                    whole.replace(REQUEST, prompt.text), self.document.where(path)
                )
            own["system"] = "\n\n".join(filter(None, (own["system"], part.system))) or None
        text = part.when
        where = self.document.where((*path, "when"))
        if written.when is not None:
            outer = self._noted(compile_guard(written.when, where))
            if outer is None or PARTS in outer.names:
                message = f"`{PARTS}` stands for results here; write row.{PARTS}"
                self.problems += [Problem(where, message)] if outer else []
                return None
            own |= {"otherwise": written.otherwise} if text is None else {}
            text = written.when if text is None else f"({written.when}) && {text}"
        own["guard"] = self._noted(compile_guard(text, where)) if text is not None else None
        return self._finished(node, order, file, path, own, before)

    def _escalated(
        self, node: StageNode, order: int, written: StageFile, path: Path_
    ) -> WrittenStage | None:
        """The stage that asks the model of `escalate` what the stage `written` asks its own;
        without a vote as often, with one once. What the command line says of models holds for it,
        too."""
        path, name, first = (*path, "escalate"), node.name, self._built.get(written.name)
        assert written.escalate is not None
        own = written.escalate
        at = places_of(written.escalate, self.document, path)
        guard = self._noted(compile_guard(own.when, at["when"]))
        self._answers[name] = self._answers[written.name]
        if guard is None or first is None:
            return None
        if any(child.name == name for child in first.children):
            message = (
                f"an agent of {written.name!r} is called {name!r}, as this stage; give its "
                "card another name"
            )
            self.problems.append(self.document.problem(path, message, key=True))
        change = self.overrides.change
        typed = self.overrides.run_mode
        if change and change.stage == name:
            model = change.model
        else:
            model = self.overrides.model
        levels = {key: level for key, level in first.levels.items() if key != "fallback"}
        return replace(
            first,
            **_place(node, order),
            name=name,
            path=key_path(path),
            guard=guard,
            otherwise="skip",
            explode=None,
            group=None,
            replicas=1 if first.vote else first.replicas,
            vote=None,
            model=model or own.model,
            backend=first.backend if first.levels.get("backend") == "override" else None,
            fallback=(),
            budget=None,
            # the parameters of the model's string go before the keys of the stage, as in a
            # fallback's
            levels=levels | {"model": "override"},
            run_mode=typed or own.run_mode or first.run_mode,
            expect=None,
            on_empty=None,
            children=tuple(_renamed(child, written.name, name) for child in first.children),
            where={**first.where, **at, "": self.document.where(path)},
        )

    def _asking(
        self, written: StageFile, path: Path_, answers: Sequence[str], card: Card | None
    ) -> dict[str, Any]:
        """The fields of a stage that asks a model, which may send the `answers` of earlier ones.
        `card` of a child."""
        visible = written.visible
        never = visible.never or () if visible else ()
        is_child = card is not None
        card = card or self._card(written, path)
        levels = self._levels(written, path, card, is_child=is_child)
        keys = merged(DefaultsFile, *(own for own, _ in levels.values()))
        prompt = self._prompt(
            written, path, keys.syntax, tuple(name for name in answers if name not in never)
        )
        system = card.instruction if card else None
        if written.instructions:
            source = self._text(
                templates.text_or_file, written.instructions, (*path, "instructions"), written.name
            )
            if source:
                system = self._noted(templates.fill(source, self.variables, syntax=keys.syntax))
            else:
                system = None
            if system is not None and not system.strip():
                message = (
                    "is empty or only white space, once its variables are filled in; give "
                    "a text or remove it"
                )
                self.problems.append(self.document.problem((*path, "instructions"), message))
        skills = card.skills if card else ()
        if written.skills:
            if card and skills:
                message = f"the card {card.name} names skills too; name them in one place"
                self.problems.append(self.document.problem((*path, "skills"), message, key=True))
            base = self.project.root
            skills = self._noted(
                read_skills(written.skills, self.project, self.document, base, path)
            )
            system = with_skills(system, skills)
        schema = self._schema(written, path, card)
        self.problems += field_problems(written, schema, self.document, path)
        examples = card.messages if card else ()
        if written.messages is not None:
            examples = self._noted(
                stage_examples(written.messages, self.document, (*path, "messages"), keys.syntax)
            )
        return {
            **self._defaulted(written, keys, levels, card),
            "system": system,
            "prompt": prompt,
            "schema": schema.schema if isinstance(schema, workflow.JsonSchema) else None,
            "output_schema": schema,
            "examples": examples,
            "visibility": visible and workflow.Visibility.of(visible.only, visible.never),
            "group": _group(written),
            "expect": written.expect,
            **self._agent(written, path, card, skills),
        }

    def _check(self, text: str, path: Path_, place: int) -> Guard | None:
        """The condition of a check, which stands in a list, or as the key of a mapping."""
        listed = self.document.where((*path, "checks", place, "check"))
        named = self.document.where((*path, "checks", text), key=True)
        if (listed.line, listed.column) <= (named.line, named.column):
            where = named
        else:
            where = listed
        return self._noted(compile_guard(text, where))

    def _schema(
        self, written: StageFile, path: Path_, card: Card | None
    ) -> workflow.SchemaSpec | None:
        value = written.output_schema
        document = self.document
        at = (*path, "output_schema")
        of_card = card.keys.request_params.structured_schema if card else None
        if card and of_card is not None:
            at_card = ("request_params", "structured_schema")
            if value is not None:
                message = f"the stage {written.name} has an output_schema too; remove one of them"
                self.problems.append(card.document.problem(at_card, message))
            value = of_card
            document = card.document
            at = at_card
        if value is None:
            return None
        root = stage_of(written.name)
        name = root if root in self.parts else written.name  # equal parts ask the same
        return self._noted(
            load_schema(value, self.project, document, at, name=name.replace("/", "_"))
        )

    def _agent(
        self, written: StageFile, path: Path_, card: Card | None, skills: tuple[Skill, ...]
    ) -> dict[str, Any]:
        """The fields of a stage that say which tools its model may call, and the agents among
        them."""
        children = list[WrittenStage]()
        agents = list[NamedTool]()
        if not self._callers:
            self._agents = 0
        for index, name in enumerate(card.keys.agents if card else ()):
            assert card is not None
            where = card.document.where(("agents", index))
            beside = None if card.remote else card.path
            file, reason = (
                member_file(name, beside, self.project) if beside else find_card(name, self.project)
            )
            if file is not None and (kind := becomes_stages(file, self.project)):
                file = None
                reason = (
                    f"{name} is of type {kind} and becomes stages, so that no agent can call it; "
                )
                reason += "ask it in a stage before this one, or name its cards here"
            child = self._loaded(file) if file is not None else None
            if child is not None and child.name in (*self._callers, card.name):
                reason = (
                    "agents call each other in a circle: "
                    f"{' → '.join((*self._callers, card.name, child.name))}"
                )
            elif child is not None and len(self._callers) + 2 > DEEPEST:
                way = " → ".join((*self._callers, card.name, child.name))
                reason = (
                    f"more than {DEEPEST} agents call each other in a row: {way}; do the "
                    "work of two in one"
                )
            elif child is not None and child.name in (one.source for one in agents):
                reason = f"names the agent {child.name!r} twice; name it once"
            elif child is not None and self._agents >= MOST_AGENTS:
                reason = (
                    f"a stage may call more than {MOST_AGENTS} agents, with those that "
                    "they call; name fewer"
                )
            elif child is not None:
                self._agents += 1
                self._callers += (card.name,)
                children.append(self.of_card(child, f"{written.name}/{child.name}", path, written))
                self._callers = self._callers[:-1]
                agents.append(NamedTool("agent", child.name, where))
            if reason:
                self.problems.append(Problem(where, reason))
        reader = ToolReader(
            self.project, self.document, path, self.overrides, card, written, agents, skills
        )
        found = reader.read()
        self.problems += reader.problems
        found |= {
            "card": card,
            "idle_timeout": card.keys.request_params.streaming_timeout if card else None,
        }
        return found | {"children": tuple(children)}

    def of_card(
        self, card: Card, name: str, path: Path_, caller: StageFile | None = None
    ) -> WrittenStage:
        """An agent that another may call, as a stage whose rows are the arguments of calls."""
        prompt = "${row_json}" if card.keys.tool_input_schema else "${message}"
        # with stubs nobody runs a tool
        how = {
            key: getattr(caller, key, None)
            for key in ("tools_mode", "tool_stubs", "on_tool_failure")
        }
        written = StageFile.model_construct({"name", "prompt"}, name=name, prompt=prompt, **how)
        own = self._asking(written, path, (), card=card)
        own |= {"run_mode": "sync", "where": own["where"] | {"": card.document.where(())}}
        return WrittenStage(index=0, needs=(), path=key_path(path), **own)

    def _defaulted(
        self,
        written: StageFile,
        keys: DefaultsFile,
        levels: Mapping[workflow.Level, LevelKeys],
        card: Card | None,
    ) -> dict[str, Any]:
        """The fields of a stage whose keys other levels may set: its card, the workflow's and the
        project's files."""
        said = {key: level for level, (own, _) in levels.items() for key in set_keys(own)}
        # a stronger level's model stands without the fallbacks of a weaker one's: they were chosen
        # for another model
        chosen = {"fallback", "model"} <= said.keys() and _ORDER.index(
            said["fallback"]
        ) >= _ORDER.index(said["model"])
        if keys.fallback and not chosen and said.get("model") == "override":
            message = (
                f"{keys.model} is asked without {listed(keys.fallback)}, the `fallback` of "
                "another model; "
            )
            message += (
                f"to have both, write `model: [{keys.model}, {', '.join(keys.fallback)}]` "
                "in the place of the flag"
            )
            self.problems.append(Problem(levels["override"][1]["model"], message, "warning"))
        params: dict[workflow.Level, Mapping[str, Any]] = {
            level: {key: getattr(own, key) for key in _PARAMS if key in own.model_fields_set}
            for level, (own, _) in levels.items()
            if level != "override"
        }
        return {
            **_same_fields(written, keys),
            "model": keys.model,
            "backend": keys.backend,
            "fallback": tuple(keys.fallback) if chosen else (),
            "params": params | ({"card": card.params} if card else {}),
            "timeout": value_of(keys.timeout),
            "concurrency": self.overrides.concurrency or keys.concurrency,
            "levels": said,
            "syntax": keys.syntax if "syntax" in said else None,
            "where": {key: place for _, places in levels.values() for key, place in places.items()},
        }

    def _noted(self, found: tuple[T, list[Problem]]) -> T:
        self.problems += found[1]
        return found[0]

    def _card(self, written: StageFile, path: Path_) -> Card | None:
        if written.agent is None:
            return None
        if is_reference(written.agent):
            found = self._fetched(written.agent, (*path, "agent"), "card", written.name)
            how: dict[str, Any] = {
                "remote": found,
                "trusted": self.overrides.trust_card,
                "tools": written.tools or (),
            }
            if found:
                return self._noted(load_card(found.path, self.project, self.variables, **how))
            return None
        file, reason = find_card(written.agent, self.project)
        if file is None:
            self.problems.append(self.document.problem((*path, "agent"), reason))
            return None
        card = self._loaded(file, tuple(written.tools or ()))
        if card is not None and card.keys.tool_only:
            self.problems.append(card.document.problem(("tool_only",), ONLY_A_TOOL))
        return card

    def _prompt(
        self, written: StageFile, path: Path_, syntax: Syntax, names: tuple[str, ...]
    ) -> Template | None:
        change = self.overrides.change
        if change and change.stage == written.name and change.prompt is not None:
            return self._noted(templates.compile_template(*change.prompt, syntax))
        if written.prompt is not None and written.template is not None:
            message = "give either prompt or template, not both"
            self.problems.append(self.document.problem((*path, "template"), message, key=True))
            return None
        at = (*path, "template" if written.template is not None else "prompt")
        value = written.template or written.prompt
        if value is None:
            where = self.document.where(path)
            if written.group_by is None:
                return templates.default_prompt(names, where)
            return templates.group_prompt(where)
        if written.template:
            read = templates.template_file
        else:
            read = templates.text_or_file
        source = self._text(read, value, at, written.name)
        if source is None:
            return None
        if source[1].path:  # it is a text of this stage alone
            return self._noted(templates.compile_template(*source, syntax))
        if (source, syntax) not in self._templates:
            self._templates[source, syntax] = templates.compile_template(*source, syntax)
        return self._noted(self._templates[source, syntax])

    def _loaded(self, file: Path, tools: tuple[str, ...] = ()) -> Card | None:
        """The card in a file of the project; `tools` are its stage's."""
        if (file, tools) not in self._cards:
            self._cards[file, tools] = load_card(file, self.project, self.variables, tools=tools)
        return self._noted(self._cards[file, tools])

    def _fetched(self, reference: str, at: Path_, what: str, stage: str) -> RemoteContent | None:
        """What a reference of the stage named `stage` names."""
        try:
            return self.project.fetch(reference, f"{what} of {stage}")[0]
        except Refused as error:
            self.problems.append(self.document.problem(at, str(error)))
            return None

    def _text(
        self, read: Callable[[str, Path, Where], PlacedText], value: str, at: Path_, stage: str
    ) -> PlacedText | None:
        try:
            if is_reference(value):
                remote = self._fetched(
                    value, at, "prompt" if at[-1] == "template" else str(at[-1]), stage
                )
                if remote:
                    return templates.placed_file(remote.path, value, self.document.where(at), None)
                return None
            if value in self._files:
                return self._files[value]
            where = self.document.where(at)
            found = read(value, self.project.root, where)
            if found[1] != where:  # it is the text of a file, which other stages may name, too
                self._files[value] = found
            return found
        except Unusable as error:
            self.problems.append(error.problem)
            return None

    def _levels(
        self, written: StageFile, path: Path_, card: Card | None, *, is_child: bool
    ) -> dict[workflow.Level, LevelKeys]:
        """What each level says of a stage, weakest first, and where each of its keys stands."""
        of_card: dict[str, Any] = (
            {"model": card.keys.model} if card and card.keys.model is not None else {}
        )
        typed: dict[str, Any] = {
            key: value for key in _TYPED if (value := getattr(self.overrides, key)) is not None
        }
        change = self.overrides.change
        if change and change.stage == written.name and change.model is not None:
            typed["model"] = change.model
        if is_child and of_card:  # the command line changes the model of the agent that is asked
            typed.pop("model", None)
        shared = self.project.file.defaults
        own = self.file.defaults
        short = dict[str, Where]()
        mode = self.file.run_mode
        if mode is not None:
            own = own.model_copy(update={"run_mode": mode})
            short = {"run_mode": self.document.where(("run_mode",))}
        return {
            "project": (shared, places_of(shared, self.project.document, ("defaults",))),
            "defaults": (own, places_of(own, self.document, ("defaults",)) | short),
            "card": (_with_defaults(DefaultsFile, of_card), card.where if card else {}),
            "stage": (written, places_of(written, self.document, path)),
            "override": (
                _with_defaults(DefaultsFile, typed),
                {key: Where(_TYPED[key]) for key in typed},
            ),
        }


def _place(node: StageNode, order: int) -> dict[str, Any]:
    """Where a stage stands, the `order`-th that a row meets; what it does to rows follows from its
    keys."""
    names = ("needs", "ancestors", "rows_of", "amends", "amended")
    return {"index": order} | {name: getattr(node, name) for name in names}


def _renamed(agent: WrittenStage, caller: str, name: str) -> WrittenStage:
    """An agent of the stage `caller`, with those that it may call, as one of the stage `name`."""
    children = tuple(_renamed(child, caller, name) for child in agent.children)
    return replace(agent, name=name + agent.name.removeprefix(caller), children=children)


def _same_fields(written: StageFile, keys: DefaultsFile) -> dict[str, Any]:
    """The fields of a Stage that are keys of files: `keys` are those that several levels may
    give."""
    return {
        name: value_of(getattr(keys if name in DefaultsFile.model_fields else written, name))
        for name in SAME
    }


def _group(written: StageFile) -> Group | None:
    """How the stage makes groups; None: it makes none."""
    if written.group_by is None:
        return None
    bounds = dict(written.reduce) if written.reduce else {}
    return Group(ways(written.group_by), **bounds, incomplete=written.incomplete)


def _misplaced(written: StageFile, document: Document, path: Path_) -> list[Problem]:
    """Keys that do not go with what the stage does."""
    does = written.operations
    found: list[tuple[str, str]] = []
    if len(does) > 1:
        found.append(
            (
                does[1],
                f"a stage does one thing; this one has {' and '.join(does)}: make a stage of each",
            )
        )
    if does:
        if does[0] == "python":
            misplaced = _ASKING - _OF_FUNCTIONS
        else:
            misplaced = _ASKING | _OF_FUNCTIONS
        found += [
            (key, _of_other_stages(key, does[0]))
            for key in sorted(misplaced & written.model_fields_set)
        ]
    if written.explode is not None and written.dedupe is not None:
        found.append(
            ("explode", "explode makes rows and dedupe drops some of them; make a stage of each")
        )
    if written.explode is not None and written.review is not None:
        found.append(
            (
                "explode",
                "explode makes rows and review decides on results of others; make a stage of each",
            )
        )
    if written.when is not None and written.dedupe is not None:
        found.append(
            (
                "when",
                (
                    "dedupe looks at all rows that come to it; put the condition into a filter "
                    "before it"
                ),
            )
        )
    if written.processes is not None and written.python is None:
        found.append(
            ("processes", "processes says where a function runs; add python, or remove processes")
        )
    if written.python is not None and written.timeout is not None:
        if written.processes is None:
            message = (
                "a function can only be ended with its process; add processes, such as "
                "`processes: 4`"
            )
            found.append(("timeout", message))
        elif written.timeout.model_fields_set != {"total"}:
            found.append(
                (
                    "timeout",
                    "for a function write the seconds of a whole call, such as `timeout: 30`",
                )
            )
    return [document.problem((*path, key), message, key=True) for key, message in found]


def _of_other_stages(key: str, operation: str) -> str:
    """The message for a key of a stage with `operation`, which that stage cannot have."""
    if key == "reduce" and operation == "python":
        return "a function is given all rows of a group at once, so that none is cut; remove reduce"
    if key == "group_by":
        groups = "add a stage with group_by before or after it, which asks a model or has `python`"
        return f"a stage with {operation} works on single rows; remove group_by, or {groups}"
    return (
        f"a stage with {operation} asks no model; remove {key}, or move it to a stage that asks one"
    )


def _operation(
    written: StageFile, node: StageNode, document: Document, at: Path_, root: Path
) -> tuple[Operation | None, list[Problem]]:
    """What a stage does in the place of asking a model; None when something is wrong with it."""
    if written.review is not None:
        return _review(written.review, node, document, (*at, "review"))
    where = document.where((*at, written.operations[0]))
    if written.python is not None:
        function, problems = parse_reference(written.python, where, root)
        timeout = written.timeout.total if written.timeout else None
        return (Python(function, written.processes, timeout) if function else None), problems
    if written.filter is not None:
        guard, problems = compile_guard(written.filter, where)
        return (Filter(guard) if guard else None), problems
    if written.select is not None:
        return Select(tuple(written.select)), []
    return (
        Rename(written.rename) if written.rename is not None else Dedupe(ways(written.dedupe or ()))
    ), []


def _review(
    written: ReviewFile, node: StageNode, document: Document, at: Path_
) -> tuple[Review | None, list[Problem]]:
    """What people are asked at a stage."""
    guard = None
    problems = list[Problem]()
    if written.when is not None:
        guard, problems = compile_guard(written.when, document.where((*at, "when")))
    if node.amends is None and written.edit is not None:
        hint = "add a stage before it, which asks a model"
        if node.ancestors:
            hint = did_you_mean(written.edit, node.ancestors, "stages")
        message = f"names {written.edit!r}, which is not upstream of this stage; {hint}"
        problems.append(document.problem((*at, "edit"), message))
    elif node.amends is None:
        message = (
            f"people decide on the result of one stage, and {node.name!r} needs "
            f"{len(node.needs) or 'none'}"
        )
        if node.ancestors:
            remedy = "name it: `edit: STAGE`"
        else:
            remedy = "add a stage before it, which asks a model"
        message = f"{message}; {remedy}"
        problems.append(document.problem(at, message, key=True))
    redo = written.redo or RedoFile()
    if redo.stage not in (None, node.amends) and node.amends is not None:
        message = (
            f"the stage that is asked again is {node.amends!r}, on whose result people "
            "decide; write that"
        )
        problems.append(document.problem((*at, "redo", "stage"), message))
    if problems or node.amends is None:
        return None, problems
    others = ReviewFile.model_fields.keys() - {"when", "edit", "show", "choices", "redo"}
    choices = dict.fromkeys([*written.choices, *(["redo"] if written.redo else [])])
    own: dict[str, Any] = {one: getattr(written, one) for one in others}
    own |= {"choices": tuple(choices), "redo": redo.max if "redo" in choices else 0}
    return Review(node.amends, guard, show=ways(written.show), **own), []


def _rule_problems(stage: WrittenStage) -> Iterator[Problem]:
    """What in a stage's rules for retries and batches contradicts itself, or has no effect."""
    levels = stage.levels
    rules = stage.batch
    retries = stage.retries
    if retries.delay > retries.max_delay:
        message = (
            f"{retries.delay:g} s is longer than max_delay, {retries.max_delay:g} s; raise "
            "max_delay too"
        )
        yield Problem(
            stage.at("retries.delay" if "retries.delay" in levels else "retries.max_delay"), message
        )
    if stage.run_mode == "sync":
        own = any(level == "stage" and key.startswith("batch.") for key, level in levels.items())
        if own and levels.get("run_mode") != "override":
            message = (
                "has no effect: the stage runs in sync mode; add `run_mode: batch`, or remove batch"
            )
            yield Problem(stage.at("batch"), message, "warning")
        return
    if rules.deadline is None and "batch.on_deadline" in levels:
        yield said(
            stage,
            "on_deadline",
            "says what happens at the deadline; add deadline, or remove on_deadline",
        )
    if isinstance(rules.deadline, float) and rules.deadline > 30 * _DAY:
        yield said(
            stage,
            "deadline",
            (
                f"{rules.deadline / _DAY:g} days is longer than any provider keeps a batch; write "
                "30d or less"
            ),
        )
    if (
        rules.retry != "batch"
        and rules.max_rounds > 1
        and levels.get("batch.max_rounds") == levels["batch.retry"]
    ):
        message = (
            f"has no effect with retry: {rules.retry}, which puts no request into a second "
            "batch; remove one"
        )
        yield said(stage, "max_rounds", message, warning=True)


def said(stage: WrittenStage, key: str, message: str, *, warning: bool = False) -> Problem:
    """A problem with a key of a stage's `batch`, at the level that set it."""
    return Problem(stage.at(f"batch.{key}"), message, "warning" if warning else "error")
