"""Cards that are made of other cards (chain, parallel, router, evaluator_optimizer, MAKER), as the
stages that they become. A stage N with such a card becomes parts called `N/…` and N itself, in the
order in which a row meets them; a member that is made of others again becomes `N/member/…` and
`N/member` in the same way. A MAKER is its worker alone, which is asked for a vote."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from agac.core.errors import Problem, any_error
from agac.spec import card_models as cards
from agac.spec.agent_cards import find_card, member_file, missing_members, read_card
from agac.spec.graph import ESCALATED, PARTS
from agac.spec.models import StageFile
from agac.spec.paths import is_reference
from agac.spec.project import ProjectSpec
from agac.spec.stage_models import VoteFile
from agac.spec.templates import literal_text
from agac.spec.yaml import Document

ONLY_A_TOOL = (
    "a card with `tool_only: true` is only for other agents to call and cannot run a stage"
)
REQUEST = "\0"  # stands for the message of the stage in the prompts of its parts
MOST_PARTS = 500  # of a stage; what each part needs is looked at for every other one
MOST_LEVELS = 50  # of cards of which each names the next; real ones have two or three
RATINGS = get_args(cards.EvaluatorOptimizerFile.model_fields["min_rating"].annotation)

_VERDICT = {"rating": "|".join(RATINGS), "needs_improvement": "boolean", "feedback": "string"}
_JUDGE = (
    f"Request:\n{REQUEST}\n\nAnswer:\n%s\n\nRate the answer: POOR, FAIR, GOOD or "
    "EXCELLENT. Say whether it needs "
)
_JUDGE += "improvement, and in `feedback` what exactly should be better."
_REFINE = (
    f"Request:\n{REQUEST}\n\nYour answer:\n%s\n\nIt was rated ${{%s.rating}}. What should "
    f"be better:\n${{%s.feedback}}"
)
_AGAIN = "Write the whole answer again, so that it is better."
_ROUTE = (
    "Choose the agent that can answer the message best; do not answer it yourself. The agents are:"
)

_UNFIT = {
    "explode": "explode the list at a stage before it",
    "group_by": "make one text of a group at a stage before it",
    "instructions": "write them into the cards that it names",
    "messages": "name them in the cards that it names",
    "tools": "name them in the cards that it names",
    "skills": "name them in the cards that it names",
    **dict.fromkeys(
        ("reads", "on_tool_failure"), "only a stage with a card of type agent has tools of its own"
    ),
    "max_turns": "write `request_params: {max_iterations: …}` into the cards that it names",
    "tools_mode": "give --tools-mode to the run",
    "tool_stubs": "give --tool-stubs to the run",
    "runtime": "give the stage a card of type agent, or none",
}
"""Keys of a stage that no card which is made of others goes with, and what to do instead."""

OF_ANSWERS = frozenset({"output_schema", "output_field", "reply", "checks"})
"""Keys about a result, which each part has that may give the result of the stage."""

_OF_ONE = ("replicas", "vote", "escalate", "expect")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """One of the stages that a stage of cards becomes: one has the stage's name, the others begin
    with it."""

    name: str
    needs: tuple[str, ...] = ()
    """Parts before it; without any it follows what the stage needs."""
    amends: str | None = None
    """The stage whose result this one's replaces, as in a StageNode."""
    card: Path | None = None
    """The file of the card that is asked; None: the results `joined` are put together."""
    joined: tuple[tuple[str, str], ...] = ()
    """The results that are put together: each one's label, and the part that gives it."""
    prompt: str = REQUEST
    """A template; REQUEST in it is the message of the stage."""
    when: str | None = None
    """A condition that has to hold besides the stage's."""
    gives: bool = True
    """True if its answer may be the stage's result."""
    schema: Mapping[str, Any] | None = None
    """What the answer of a judge looks like."""
    system: str = ""
    """What follows the instruction of its card."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Other keys of its stage."""
    choices: tuple[tuple[str, str], ...] = ()
    """The routers that have to choose it, each with the agent that is chosen."""


def card_parts(
    stages: Sequence[StageFile], document: Document, project: ProjectSpec
) -> tuple[dict[str, tuple[StagePart, ...]], list[Problem]]:
    """By their names the stages whose cards are made of others, with what they become; without
    parts where something is wrong with the cards. A card of type agent is left to whoever reads
    it."""
    found = dict[str, tuple[StagePart, ...]]()
    problems = list[Problem]()
    for index, stage in enumerate(stages):
        name = stage.agent if stage.enabled and not stage.operations else None
        if name and not is_reference(name):
            path = find_card(name, project)[0]
        else:
            path = None
        if path is None or stage.name in found:
            continue
        called = set[str]()
        for _ in range(2):  # so that no part has the name of an agent that another one calls
            expander = _Expander(project, {stage.name, stage.name + ESCALATED, *called})
            parts = expander.expand(StagePart(name=stage.name, card=path))
            called = expander.called
        if not expander.kinds:
            continue
        problems += expander.problems
        for key, message in _unfit(stage, expander.kinds[0], parts):
            problems.append(document.problem(("stages", index, key), message, key=True))
        found[stage.name] = () if any_error(expander.problems) else tuple(parts)
    return found, problems


def becomes_stages(path: Path, project: ProjectSpec) -> str | None:
    """Returns the type of the card in that file, where it is made of others; None of one that is
    asked itself."""
    keys = read_card(path, project, None, trusted=False)[0]
    return keys.type if type(keys) in _MADE else None


def most_calls(parts: Sequence[StagePart], calls: Mapping[str, int], depth: int = 0) -> int:
    """Counts the calls that a row needs at most, with those of each part by its name: of each
    router's agents one is asked."""
    routes: dict[str, dict[str, list[StagePart]]] = defaultdict(lambda: defaultdict(list))
    for part in (one for one in parts if len(one.choices) > depth):
        route, agent = part.choices[depth]
        routes[route][agent].append(part)
    most = (
        max(most_calls(some, calls, depth + 1) for some in agents.values())
        for agents in routes.values()
    )
    return sum(calls[part.name] for part in parts if len(part.choices) == depth) + sum(most)


def _unfit(stage: StageFile, kind: str, parts: Sequence[StagePart]) -> list[tuple[str, str]]:
    """Returns the keys of a stage that do not go with its card of this type, each with what to do
    instead."""
    wrong = dict(_UNFIT)
    if any(part.joined and part.gives for part in parts):
        wrong |= dict.fromkeys(
            (*OF_ANSWERS, *_OF_ONE), "name a card as `fan_in` that makes one answer of all"
        )
    elif sum(part.gives for part in parts) > 1:
        wrong |= dict.fromkeys(
            _OF_ONE, "let it follow as a stage of its own, whose card makes the final answer"
        )
    if any(part.gives and "vote" in part.keys for part in parts):
        wrong |= dict.fromkeys(
            ("replicas", "vote"),
            "write k, max_samples and match_strategy into the card of type MAKER",
        )
    given = [key for key in wrong if key in stage.model_fields_set]
    return [(key, f"{key} does not go with a card of type {kind}; {wrong[key]}") for key in given]


@dataclass(slots=True)
class _Expander:
    """Makes the parts of one stage."""

    project: ProjectSpec
    names: set[str]
    """The names of parts that are taken."""
    kinds: list[str] = field(default_factory=list)
    """The types of the cards made of others, the stage's first."""
    problems: list[Problem] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    """The names of agents that parts call."""
    is_large: bool = False
    """True once a stage with too many parts was reported."""
    open: tuple[Path, ...] = ()
    """The files of the cards that are being read."""
    _document: Document = field(default_factory=lambda: Document("", None, []))

    def expand(self, slot: StagePart) -> list[StagePart]:
        """Returns the parts that take the place of one; whatever follows needs the last of them."""
        assert slot.card is not None
        keys, document, below, problems = read_card(slot.card, self.project, None, trusted=False)
        making = _MADE.get(type(keys))
        if making is None:
            self.called |= {f"{slot.name}/{agent}" for agent in getattr(keys, "agents", ())}
            return [slot]
        self.problems += problems
        self.kinds.append(keys.type)
        if any_error(problems):
            self.problems += missing_members(document, slot.card, self.project)
            return [slot]
        if keys.tool_only and not self.open:
            self.problems.append(document.problem(("tool_only",), ONLY_A_TOOL))
        if (below[0] or keys.instruction) and not isinstance(keys, cards.RouterFile):
            message = f"has no effect: a card of type {keys.type} asks no model itself; remove it"
            if keys.instruction:
                where = document.where(("instruction",), key=True)
            else:
                where = below[1]
            self.problems.append(Problem(where, message, "warning"))
        outer = (self.open, self._document)
        self.open = (*self.open, slot.card)
        self._document = document
        parts = making(self, keys, slot)
        self.open, self._document = outer
        return parts

    def _asked(self, slot: StagePart, name: str, *path: str | int) -> list[StagePart]:
        """Returns the parts of a slot that the member `name` fills, which the open card names at
        this path."""
        card, reason = member_file(name, self.open[-1], self.project)
        if card in self.open:
            way = [one.stem for one in (*self.open[self.open.index(card) :], card)]
            reason = f"these cards name each other in a circle: {' → '.join(way)}"
        elif len(self.open) >= MOST_LEVELS:
            reason = (
                f"more than {MOST_LEVELS} cards name each other in a row; let one of them "
                "name fewer"
            )
        elif len(self.names) > MOST_PARTS:
            if self.is_large:
                return [slot]
            self.is_large = True
            reason = f"a stage becomes more than {MOST_PARTS} stages; let its cards name fewer"
        if reason or card is None:
            self.problems.append(self._document.problem(path, reason))
            return [slot]
        return self.expand(replace(slot, card=card))

    def _inner(self, slot: StagePart, name: str, **keys: Any) -> StagePart:
        """Returns a part below a slot whose answer is not that of the slot."""
        own = {
            "needs": slot.needs,
            "when": slot.when,
            "choices": slot.choices,
            "gives": False,
            **keys,
        }
        return StagePart(name=self._free(slot, name), **own)

    def _free(self, slot: StagePart, name: str) -> str:
        """Returns a name below that of a slot which no other part has, of letters, digits, `_` and
        `-`."""
        start = f"{slot.name}/{re.sub('[^A-Za-z0-9_-]+', '_', Path(name).stem)}"
        number = 1
        free = start
        while free in self.names or free.endswith(ESCALATED):
            number += 1
            free = f"{start}-{number}"
        self.names.add(free)
        return free

    def chain(self, keys: cards.ChainFile, slot: StagePart) -> list[StagePart]:
        found = list[StagePart]()
        said = list[tuple[str, str]]()
        for place, name in enumerate(keys.sequence):
            replies = "".join(f"\n\nReply of {one}:\n${{{part}}}" for one, part in said)
            if keys.cumulative or not said:
                prompt = slot.prompt + replies
            else:
                prompt = f"${{{said[-1][1]}}}"
            is_last = place == len(keys.sequence) - 1
            if is_last:
                one = replace(slot, prompt=prompt)
            else:
                one = self._inner(slot, name, prompt=prompt)
            one = replace(one, needs=(found[-1].name,)) if found else one
            found += self._asked(one, name, "sequence", place)
            said.append((name, one.name))
        return found

    def parallel(self, keys: cards.ParallelFile, slot: StagePart) -> list[StagePart]:
        found = list[StagePart]()
        said = list[tuple[str, str]]()
        needs = list[str]()
        for place, name in enumerate(keys.fan_out):
            one = self._inner(slot, name, prompt=slot.prompt)
            found += self._asked(one, name, "fan_out", place)
            said.append((name, one.name))
            needs.append(found[-1].name)
        if keys.fan_in is None:
            if slot.schema:
                message = (
                    "texts side by side rate nothing, and it is an `evaluator`; add a "
                    "fan_in, whose card rates"
                )
                self.problems.append(self._document.problem((), message))
            return [*found, replace(slot, card=None, joined=tuple(said), needs=tuple(needs))]
        replies = "\n\n".join(f"{name}:\n${{{part}}}" for name, part in said)
        prompt = f"{slot.prompt}\n\n{replies}" if keys.include_request else replies
        return [
            *found,
            *self._asked(replace(slot, prompt=prompt, needs=tuple(needs)), keys.fan_in, "fan_in"),
        ]

    def router(self, keys: cards.RouterFile, slot: StagePart) -> list[StagePart]:
        if len(keys.agents) == 1:
            return self._asked(slot, keys.agents[0], "agents", 0)
        choice = {"agent": {"type": "string", "enum": keys.agents}, "reason": {"type": "string"}}
        schema = {
            "type": "object",
            "properties": choice,
            "required": [*choice],
            "additionalProperties": False,
        }
        route = self._inner(slot, "route", card=self.open[-1], prompt=slot.prompt, schema=schema)
        found = [route]
        agents = list[str]()
        for place, name in enumerate(keys.agents):
            chosen = f'{PARTS}["{route.name}"].agent == {json.dumps(name)}'
            when = f"{slot.when} && {chosen}" if slot.when else chosen
            one = replace(
                slot,
                when=when,
                needs=(found[-1].name,),
                choices=(*slot.choices, (route.name, name)),
            )
            if place:
                one = replace(one, name=self._free(slot, name), amends=slot.name)
            found += self._asked(one, name, "agents", place)
            file, _ = member_file(name, self.open[-1], self.project)
            if file:
                told = read_card(file, self.project, None, trusted=False)[0].description
            else:
                told = None
            agents.append(f"- {name}: {told}" if told else f"- {name}")
        return [replace(route, system="\n".join([_ROUTE, "", *agents])), *found[1:]]

    def evaluator_optimizer(
        self, keys: cards.EvaluatorOptimizerFile, slot: StagePart
    ) -> list[StagePart]:
        found = self._asked(slot, keys.generator, "generator")
        answer = f"${{{slot.name}}}"
        again = None
        enough = json.dumps(RATINGS[RATINGS.index(keys.min_rating) :])
        ask = literal_text(keys.refinement_instruction or _AGAIN)
        request = slot.prompt
        for turn in range(1, keys.max_refinements + 1):
            whens = (slot.when, f'{PARTS}["{again}"] != null' if again else None)
            when = " && ".join(filter(None, whens)) or None
            judge = self._inner(
                slot, f"judge-{turn}", when=when, needs=(found[-1].name,), schema=_VERDICT
            )
            judge = replace(judge, prompt=(_JUDGE % answer).replace(REQUEST, request))
            found += self._asked(judge, keys.evaluator, "evaluator")
            verdict = f'{PARTS}["{judge.name}"]'
            again = self._free(slot, f"refine-{turn}")
            when = " && ".join(
                filter(None, (slot.when, f"{verdict} != null", f"!({verdict}.rating in {enough})"))
            )
            prompt = (_REFINE % (answer, judge.name, judge.name)).replace(
                REQUEST, request
            ) + f"\n\n{ask}"
            refine = replace(
                slot,
                name=again,
                amends=slot.name,
                needs=(found[-1].name,),
                when=when,
                prompt=prompt,
            )
            found += self._asked(refine, keys.generator, "generator")
        return found

    def maker(self, keys: cards.MakerFile, slot: StagePart) -> list[StagePart]:
        how = {"lead": keys.k, "match": keys.match_strategy, "max_length": keys.red_flag_max_length}
        vote = VoteFile(**{key: value for key, value in how.items() if value is not None})  # type: ignore[arg-type]
        asked = {**slot.keys, "replicas": keys.max_samples, "vote": vote}
        before = len(self.kinds)
        found = self._asked(replace(slot, keys=asked), keys.worker, "worker")
        if len(self.kinds) > before:
            message = (
                f"{keys.worker} is made of other cards; name one that is asked itself, and "
                "let a MAKER be a part of it"
            )
            self.problems.append(self._document.problem(("worker",), message))
        return found


_MADE: dict[type[cards.CardKeys], Callable[[_Expander, Any, StagePart], list[StagePart]]] = {
    cards.ChainFile: _Expander.chain,
    cards.ParallelFile: _Expander.parallel,
    cards.RouterFile: _Expander.router,
    cards.EvaluatorOptimizerFile: _Expander.evaluator_optimizer,
    cards.MakerFile: _Expander.maker,
}
