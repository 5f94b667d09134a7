"""Builds the stages of a workflow: each with its card, texts and schema, and the level (project,
defaults, card, stage, flag) that sets a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agac.core.errors import Path_, Problem, Where, any_error, key_path, listed
from agac.core.types import JSONValue
from agac.spec import rules, templates, workflow
from agac.spec.agent_cards import Card, find_card, member_file
from agac.spec.card_examples import stage_examples
from agac.spec.card_models import NO_LIMIT
from agac.spec.card_types import OF_ANSWERS, REQUEST, StagePart, becomes_stages
from agac.spec.default_models import DefaultsFile
from agac.spec.graph import PARTS, StageNode, stage_of
from agac.spec.guards import Check, Guard, compile_guard
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.operations import Join
from agac.spec.output_schema import field_problems, load_schema
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.skills import Skill, read_skills, with_skills
from agac.spec.stage_checks import misplaced_keys, rule_problems
from agac.spec.stage_keys import (
    LevelKeys,
    merged,
    places_of,
    same_fields,
    set_keys,
    value_of,
    with_defaults,
    with_settings,
)
from agac.spec.stage_models import EscalateFile
from agac.spec.stage_operations import group_of, operation_of
from agac.spec.stage_texts import StageTexts
from agac.spec.stage_tools import ToolReader
from agac.spec.tools import NamedTool
from agac.spec.workflow import WrittenStage
from agac.spec.yaml import Document

T = TypeVar("T")

DEEPEST = 5  # agents of which each calls the next: each multiplies what a row may cost
# that a stage may call, those that its agents may call included: each multiplies their number
MOST_AGENTS = 500
_PARAMS = ("temperature", "max_tokens")
_TYPED = {"model": "--model", "backend": "--backend", "run_mode": "--run-mode"}
"""Keys of stages that the command line gives to all of them, with its flags."""

_ORDER: tuple[rules.Level, ...] = ("project", "defaults", "card", "stage", "override")


@dataclass(slots=True)
class StageBuilder:
    """Builds the stages of one workflow, and keeps what they share."""

    project: ProjectSpec
    document: Document
    """The workflow's file."""
    file: WorkflowFile
    variables: Mapping[str, JSONValue]
    overrides: Overrides
    problems: list[Problem] = field(default_factory=list)
    """Everything that was wrong with the stages so far."""
    parts: Mapping[str, Sequence[StagePart]] = field(default_factory=dict)
    """The stages that a stage of cards becomes, by its name."""
    _answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The answers that the stages after a stage see, by its name."""
    _outer: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The answers that come to a stage with parts, by its name."""
    _built: dict[str, WrittenStage] = field(default_factory=dict)
    _callers: tuple[str, ...] = ()
    """The cards whose agents are being built, each called by the one before."""
    _agents: int = 0
    """The number of agents known so far that the stage being built may call."""
    _texts: StageTexts = field(init=False)

    def __post_init__(self) -> None:
        self._texts = StageTexts(
            self.project, self.document, self.variables, self.overrides, self.problems
        )

    def stage(self, node: StageNode, order: int) -> WrittenStage | None:
        """Builds the stage of `node`, the `order`-th (from 0) that a row meets; None when something
        is wrong with it."""
        before = len(self.problems)
        written = self.file.stages[node.index]
        path = ("stages", node.index)
        if node.is_escalation:
            return self._escalated(node, order, written, path)
        self.problems += misplaced_keys(written, self.document, path)
        answers = tuple(
            dict.fromkeys(name for need in node.needs for name in self._answers.get(need, ()))
        )
        parts = self.parts.get(written.name)
        if parts is not None:
            part = next((part for part in parts if part.name == node.name), None)
            return None if part is None else self._part(part, node, order, answers)
        if written.operations:
            # a group sees none of them
            self._answers[written.name] = answers if written.group_by is None else ()
            values = self._operation(written, node, path)
        else:
            self._answers[written.name] = (written.name,)
            values = self._asking(written, path, answers, None)
        if written.when is not None:
            where = self.document.where((*path, "when"))
            values["guard"] = self._noted(compile_guard(written.when, where))
        return self._finished(node, order, written, path, values, before)

    def _operation(self, written: StageFile, node: StageNode, path: Path_) -> dict[str, Any]:
        """Returns the fields of a stage that asks no model."""
        result = operation_of(written, node, self.document, path, self.project.root)
        return {
            **same_fields(written, DefaultsFile()),
            "operation": self._noted(result),
            "group": group_of(written),
            "where": places_of(written, self.document, path),
        }

    def _finished(
        self,
        node: StageNode,
        order: int,
        written: StageFile,
        path: Path_,
        values: dict[str, Any],
        before: int,
    ) -> WrittenStage | None:
        """Makes the stage with these values of its fields; None where there are problems after the
        first `before` ones."""
        values["where"] |= {"": self.document.where(path)}
        checks = []
        for index, check in enumerate(written.checks):
            guard = self._check(check.check, path, index)
            if guard is not None:
                checks.append(Check(guard, check.message))
        values["checks"] = tuple(checks)
        if any_error(self.problems[before:]):
            return None
        stage = WrittenStage(
            **_position(node, order),
            explode=tuple(written.explode.split(".")) if written.explode else None,
            path=key_path(path),
            **with_settings(values),
        )
        if stage.asks:
            self.problems += (*rule_problems(stage), *self._endless(stage))
        self._built[stage.name] = stage
        return stage

    def _endless(self, stage: WrittenStage) -> Iterator[Problem]:
        """Yields planners without a limit of their own, where nothing else bounds them."""
        if self.file.row_budget or self.project.file.row_budget:
            return
        message = (
            "plan_iterations is -1 unless it is written, so something else has to bound the "
            "planner; add `row_budget: {turns: 50}` to the workflow, `max_turns` to the stage, or "
            "a number here"
        )
        for agent in workflow.family(stage):
            if agent.card is None or agent.settings.tooling.max_turns != NO_LIMIT:
                continue
            if agent.card.kind == "iterative_planner":
                yield agent.card.document.problem(("plan_iterations",), message)

    def _part(
        self, part: StagePart, node: StageNode, order: int, answers: Sequence[str]
    ) -> WrittenStage | None:
        """Builds one of the stages that a stage of cards becomes; its keys hold for all whose cards
        do not set them."""
        before = len(self.problems)
        written = self.file.stages[node.index]
        path = ("stages", node.index)
        answers = self._outer.setdefault(written.name, tuple(answers))
        self._answers[part.name] = (written.name,)
        card = self._texts.loaded(part.card) if part.card is not None else None
        if card is None and not part.joined:
            return None
        file = _keys_of_part(part, written, card)
        if card is None:
            places = places_of(written, self.document, path)
            values: dict[str, Any] = {"operation": Join(part.joined), "where": places}
            values |= same_fields(file, DefaultsFile())
        else:
            values = self._asking(file, path, answers, card)
            self._add_texts_of_part(part, path, values)
        where = self.document.where((*path, "when"))
        if written.when is not None and not self._may_guard_parts(written.when, where):
            return None
        when = part.when
        if when is None:
            when = written.when
            values["otherwise"] = written.otherwise
        elif written.when is not None:
            when = f"({written.when}) && {when}"
        values["guard"] = self._noted(compile_guard(when, where)) if when is not None else None
        return self._finished(node, order, file, path, values, before)

    def _add_texts_of_part(self, part: StagePart, path: Path_, values: dict[str, Any]) -> None:
        """Puts what the part says around the prompt and the instructions of its card."""
        change = self.overrides.change
        is_changed = change is not None and change.stage == part.name and bool(change.prompt)
        around = REQUEST if is_changed else part.prompt
        prompt = values["prompt"]
        if prompt is not None and around != REQUEST:
            text = around.replace(REQUEST, prompt.text)
            values["prompt"] = templates.sound_template(text, self.document.where(path))
        values["system"] = "\n\n".join(filter(None, (values["system"], part.system))) or None

    def _may_guard_parts(self, when: str, where: Where) -> bool:
        """True if the condition of a stage of cards can be that of its parts."""
        guard = self._noted(compile_guard(when, where))
        if guard is None:
            return False
        if PARTS in guard.names:
            message = f"`{PARTS}` stands for results here; write row.{PARTS}"
            self.problems.append(Problem(where, message))
            return False
        return True

    def _escalated(
        self, node: StageNode, order: int, written: StageFile, path: Path_
    ) -> WrittenStage | None:
        """Builds the stage that asks the model of `escalate` what the stage `written` asks its own:
        without a vote as often, with a vote once. What the command line says of models holds for
        it, too."""
        path = (*path, "escalate")
        name = node.name
        first = self._built.get(written.name)
        escalate = written.escalate
        assert escalate is not None
        places = places_of(escalate, self.document, path)
        guard = self._noted(compile_guard(escalate.when, places["when"]))
        self._answers[name] = self._answers[written.name]
        if guard is None or first is None:
            return None
        if any(child.name == name for child in first.children):
            message = (
                f"an agent of {written.name!r} is called {name!r}, as this stage; give its "
                "card another name"
            )
            self.problems.append(self.document.problem(path, message, key=True))
        return replace(
            first,
            **_position(node, order),
            **self._escalated_model(escalate, first, name),
            name=name,
            path=key_path(path),
            guard=guard,
            otherwise="skip",
            explode=None,
            group=None,
            replicas=1 if first.vote else first.replicas,
            vote=None,
            expect=None,
            settings=replace(
                first.settings,
                budget=None,
                on_empty=None,
                run_mode=self._escalated_run_mode(escalate, first),
            ),
            children=tuple(_renamed(child, written.name, name) for child in first.children),
            where={**first.where, **places, "": self.document.where(path)},
        )

    def _escalated_model(
        self, escalate: EscalateFile, first: WrittenStage, name: str
    ) -> dict[str, Any]:
        """Returns the fields that say which model the escalation `name` of the stage `first` asks,
        and how."""
        change = self.overrides.change
        typed_model = change.model if change and change.stage == name else self.overrides.model
        levels = {key: level for key, level in first.levels.items() if key != "fallback"}
        return {
            "model": typed_model or escalate.model,
            "backend": first.backend if first.levels.get("backend") == "override" else None,
            "fallback": (),
            # the parameters of the model's string go before the keys of the stage, as in a
            # fallback's
            "levels": levels | {"model": "override"},
        }

    def _escalated_run_mode(self, escalate: EscalateFile, first: WrittenStage) -> rules.RunMode:
        """Returns the run mode of the escalation of the stage `first`."""
        return self.overrides.run_mode or escalate.run_mode or first.settings.run_mode

    def _asking(
        self, written: StageFile, path: Path_, answers: Sequence[str], card: Card | None
    ) -> dict[str, Any]:
        """Returns the fields of a stage that asks a model, which may send the `answers` of earlier
        stages. `card` is given for an agent that another one calls, and for a part of a stage of
        cards."""
        visible = written.visible
        never = (visible.never if visible else None) or ()
        is_child = card is not None
        card = card or self._texts.card(written, path)
        levels = self._levels(written, path, card, is_child=is_child)
        keys = merged(DefaultsFile, *(level for level, _ in levels.values()))
        names = tuple(name for name in answers if name not in never)
        prompt = self._texts.prompt(written, path, keys.syntax, names)
        system = card.instruction if card else None
        if written.instructions:
            system = self._texts.instructions(written.instructions, written.name, path, keys.syntax)
        skills = card.skills if card else ()
        if written.skills:
            skills = self._skills(written.skills, path, card)
            system = with_skills(system, skills)
        schema = self._schema(written, path, card)
        self.problems += field_problems(written, schema, self.document, path)
        examples = card.messages if card else ()
        if written.messages is not None:
            at = (*path, "messages")
            examples = self._noted(stage_examples(written.messages, self.document, at, keys.syntax))
        return {
            **self._defaulted(written, keys, levels, card),
            "system": system,
            "prompt": prompt,
            "schema": schema.schema if isinstance(schema, workflow.JsonSchema) else None,
            "output_schema": schema,
            "examples": examples,
            "visibility": visible and workflow.Visibility.of(visible.only, visible.never),
            "group": group_of(written),
            "expect": written.expect,
            **self._agent(written, path, card, skills),
        }

    def _skills(self, folders: Sequence[str], path: Path_, card: Card | None) -> tuple[Skill, ...]:
        """Reads the skills that a stage names; its card may name none then."""
        if card and card.skills:
            message = f"the card {card.name} names skills too; name them in one place"
            self.problems.append(self.document.problem((*path, "skills"), message, key=True))
        root = self.project.root
        return self._noted(read_skills(folders, self.project, self.document, root, path))

    def _check(self, text: str, path: Path_, index: int) -> Guard | None:
        """Compiles the condition of a check, which is written in a list, or as the key of a
        mapping."""
        listed = self.document.where((*path, "checks", index, "check"))
        named = self.document.where((*path, "checks", text), key=True)
        is_named = (listed.line, listed.column) <= (named.line, named.column)
        return self._noted(compile_guard(text, named if is_named else listed))

    def _schema(
        self, written: StageFile, path: Path_, card: Card | None
    ) -> workflow.SchemaSpec | None:
        """Loads the schema of the results, which the stage or its card has."""
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
        """Returns the fields of a stage that say which tools its model may call, and the agents
        among them."""
        if not self._callers:
            self._agents = 0
        agents = list[NamedTool]()
        children = self._children(card, agents, written, path) if card else ()
        reader = ToolReader(
            self.project, self.document, path, self.overrides, card, written, agents, skills
        )
        values = reader.read()
        self.problems += reader.problems
        values["card"] = card
        values["idle_timeout"] = card.keys.request_params.streaming_timeout if card else None
        values["children"] = tuple(children)
        return values

    def _children(
        self, card: Card, agents: list[NamedTool], written: StageFile, path: Path_
    ) -> list[WrittenStage]:
        """Builds the agents that an agent with this card may call; adds them to `agents` as
        tools."""
        children = []
        for index, name in enumerate(card.keys.agents):
            where = card.document.where(("agents", index))
            file, fault = self._member(name, card)
            child = self._texts.loaded(file) if file is not None else None
            if child is not None:
                fault = self._call_fault(card, child, agents)
            if fault:
                self.problems.append(Problem(where, fault))
            elif child is not None:
                self._agents += 1
                self._callers += (card.name,)
                children.append(self.of_card(child, f"{written.name}/{child.name}", path, written))
                self._callers = self._callers[:-1]
                agents.append(NamedTool("agent", child.name, where))
        return children

    def _member(self, name: str, card: Card) -> tuple[Path | None, str]:
        """Finds the file of an agent that `card` names, or None and why it cannot be called."""
        if card.remote:
            file, fault = find_card(name, self.project)
        else:
            file, fault = member_file(name, card.path, self.project)
        if file is None:
            return None, fault
        kind = becomes_stages(file, self.project)
        if not kind:
            return file, ""
        return None, (
            f"{name} is of type {kind} and becomes stages, so that no agent can call it; ask it in "
            "a stage before this one, or name its cards here"
        )

    def _call_fault(self, card: Card, child: Card, agents: Sequence[NamedTool]) -> str:
        """Says why an agent with `card` cannot call `child` next to these `agents`; "" if it
        can."""
        callers = (*self._callers, card.name)
        way = " → ".join((*callers, child.name))
        if child.name in callers:
            return f"agents call each other in a circle: {way}"
        if len(callers) >= DEEPEST:
            return (
                f"more than {DEEPEST} agents call each other in a row: {way}; do the "
                "work of two in one"
            )
        if any(agent.source == child.name for agent in agents):
            return f"names the agent {child.name!r} twice; name it once"
        if self._agents >= MOST_AGENTS:
            return (
                f"a stage may call more than {MOST_AGENTS} agents, with those that "
                "they call; name fewer"
            )
        return ""

    def of_card(
        self, card: Card, name: str, path: Path_, caller: StageFile | None = None
    ) -> WrittenStage:
        """Builds an agent that another may call, as a stage whose rows are the arguments of
        calls."""
        prompt = "${row_json}" if card.keys.tool_input_schema else "${message}"
        # with stubs no tool of any agent is run
        inherited = {
            key: getattr(caller, key, None)
            for key in ("tools_mode", "tool_stubs", "on_tool_failure")
        }
        written = StageFile.model_construct(
            {"name", "prompt"}, name=name, prompt=prompt, **inherited
        )
        values = self._asking(written, path, (), card=card)
        values["run_mode"] = "sync"
        values["where"] = values["where"] | {"": card.document.where(())}
        return WrittenStage(index=0, needs=(), path=key_path(path), **with_settings(values))

    def _defaulted(
        self,
        written: StageFile,
        keys: DefaultsFile,
        levels: Mapping[rules.Level, LevelKeys],
        card: Card | None,
    ) -> dict[str, Any]:
        """Returns the fields of a stage whose keys other levels may set: its card, the workflow's
        and the project's files."""
        setters = {key: level for level, (own, _) in levels.items() for key in set_keys(own)}
        keeps_fallback = _keeps_fallback(setters)
        if keys.fallback and not keeps_fallback and setters.get("model") == "override":
            message = (
                f"{keys.model} is asked without {listed(keys.fallback)}, the `fallback` of another "
                f"model; to have both, write `model: [{keys.model}, {', '.join(keys.fallback)}]` "
                "in the place of the flag"
            )
            self.problems.append(Problem(levels["override"][1]["model"], message, "warning"))
        params: dict[rules.Level, Mapping[str, Any]] = {
            level: {key: getattr(own, key) for key in _PARAMS if key in own.model_fields_set}
            for level, (own, _) in levels.items()
            if level != "override"
        }
        return {
            **same_fields(written, keys),
            "model": keys.model,
            "backend": keys.backend,
            "fallback": tuple(keys.fallback) if keeps_fallback else (),
            "params": params | ({"card": card.params} if card else {}),
            "timeout": value_of(keys.timeout),
            "concurrency": self.overrides.concurrency or keys.concurrency,
            "levels": setters,
            "syntax": keys.syntax if "syntax" in setters else None,
            "where": {key: place for _, places in levels.values() for key, place in places.items()},
        }

    def _noted(self, result: tuple[T, list[Problem]]) -> T:
        """Returns a result, and takes over the problems that came with it."""
        value, problems = result
        self.problems += problems
        return value

    def _levels(
        self, written: StageFile, path: Path_, card: Card | None, *, is_child: bool
    ) -> dict[rules.Level, LevelKeys]:
        """Returns the keys of a stage that each level sets, weakest first, and the place of each
        key."""
        of_card: dict[str, Any] = {}
        if card and card.keys.model is not None:
            of_card["model"] = card.keys.model
        typed = self._typed(written.name)
        if is_child and of_card:  # the command line changes the model of the agent that is asked
            typed.pop("model", None)
        shared = self.project.file.defaults
        defaults = self.file.defaults
        places = places_of(defaults, self.document, ("defaults",))
        if self.file.run_mode is not None:
            defaults = defaults.model_copy(update={"run_mode": self.file.run_mode})
            places["run_mode"] = self.document.where(("run_mode",))
        return {
            "project": (shared, places_of(shared, self.project.document, ("defaults",))),
            "defaults": (defaults, places),
            "card": (with_defaults(DefaultsFile, of_card), card.where if card else {}),
            "stage": (written, places_of(written, self.document, path)),
            "override": (
                with_defaults(DefaultsFile, typed),
                {key: Where(_TYPED[key]) for key in typed},
            ),
        }

    def _typed(self, stage: str) -> dict[str, Any]:
        """Returns the keys of a stage that the command line sets."""
        typed = {key: getattr(self.overrides, key) for key in _TYPED}
        change = self.overrides.change
        if change and change.stage == stage and change.model is not None:
            typed["model"] = change.model
        return {key: value for key, value in typed.items() if value is not None}


def _position(node: StageNode, order: int) -> dict[str, Any]:
    """Returns the fields that say where a stage is among the others, the `order`-th that a row
    meets. What it does to rows follows from its keys."""
    names = ("needs", "ancestors", "rows_of", "amends", "amended")
    return {"index": order} | {name: getattr(node, name) for name in names}


def _keys_of_part(part: StagePart, written: StageFile, card: Card | None) -> StageFile:
    """Returns the keys of a part: those of the stage `written` that its card does not set, and its
    own."""
    of_card = set[str]()
    if card:
        of_card = {*card.params, *({"model", "fallback"} if card.keys.model else ())}
    names = DefaultsFile.model_fields.keys() - of_card | {"prompt", "template", "visible"}
    if part.gives:
        names |= {*OF_ANSWERS, "replicas", "vote", "expect"}
    if part.name == written.name:
        names |= {"budget", "on_empty"}
    keys = {key: getattr(written, key) for key in names & written.model_fields_set}
    keys |= dict(part.keys)
    if part.schema:
        keys["output_schema"] = part.schema
    return StageFile.model_construct({"name", *keys}, name=part.name, **keys)


def _keeps_fallback(setters: Mapping[str, rules.Level]) -> bool:
    """True if the fallbacks go with the model. A stronger level's model goes without those of a
    weaker level: they were chosen for another model."""
    if not {"fallback", "model"} <= setters.keys():
        return False
    return _ORDER.index(setters["fallback"]) >= _ORDER.index(setters["model"])


def _renamed(agent: WrittenStage, caller: str, name: str) -> WrittenStage:
    """Returns an agent of the stage `caller`, with those that it may call, as one of the stage
    `name`."""
    children = tuple(_renamed(child, caller, name) for child in agent.children)
    return replace(agent, name=name + agent.name.removeprefix(caller), children=children)
