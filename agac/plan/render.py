"""A row and a stage become a request and its fingerprint: the same for calling, for looking up and for showing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.keys import Fingerprinter, canonical, replicas_fingerprint
from agac.core.types import JSONValue, Message, Params, Request, RowId, Visible
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.providers.dialects import unsendable
from agac.providers.provider import Provider
from agac.spec.guards import ROW, Evaluator
from agac.spec.levels import StageNode
from agac.spec.operations import Filter
from agac.spec.templates import ROWS_JSON, SKIPPED, VARS, MissingField, VisibleRow, visible_row
from agac.spec.workflow import Example, ReusePolicy, Stage


class VoteResult(NamedTuple):
    """What is made of the answers of replicas: JSON, and whose answer it is, from 1; 0: a list of all of them.

    `agreement`: how many of them say what it says, of how many, as `2/3`; None where they did not vote.
    """

    text: str
    replica: int = 0
    agreement: str | None = None

    @property
    def note(self) -> str | None:
        """What the store keeps of a vote beside its result, JSON."""
        return canonical({"agreement": self.agreement, "replica": self.replica}) if self.agreement else None


def replica_prints(prints: Fingerprinter, messages: tuple[Message, ...], salt: str, replicas: int) -> tuple[bytes, ...]:
    """The fingerprints of a task's replicas, which are counted from 1."""
    return tuple(prints.fingerprint(messages, replica=k, salt=salt) for k in range(1, replicas + 1))


def takes_seed(provider: Provider) -> bool:
    """Whether a provider can be told a seed."""
    return not any(unsendable(("seed",), provider))


def seeded(params: Params, provider: Provider, replica: int) -> Params:
    """The parameters of a replica's request: its number is its seed, where the provider can be told one. 0: of a task
    that is asked once."""
    return replace(params, seed=replica) if replica and takes_seed(provider) else params


def outcome_of_vote(answers: Sequence[str], field: str | None) -> VoteResult:
    """What comes of answers (JSON, in the order of the replicas): without a `field` a list of them; else the first one
    that has the most frequent value there. Of several values that are as frequent the one that came first counts."""
    if field is None:
        return VoteResult(f"[{','.join(answers)}]")
    values = votes(answers, field)
    winner, count = Counter(values).most_common(1)[0]
    first = values.index(winner)
    return VoteResult(answers[first], first + 1, f"{count}/{len(answers)}")


def votes(answers: Sequence[str], field: str) -> list[str]:
    """What each answer (JSON) says in a field (`a.b` is the field b of a), as canonical JSON. One without says null."""
    return [canonical(_value(json.loads(answer), field)) for answer in answers]


def _value(answer: JSONValue, field: str) -> JSONValue:
    for part in field.split("."):
        if not isinstance(answer, dict):
            return None
        answer = answer.get(part)
    return answer


def share(agreement: str) -> float:
    """`2/3` as a number."""
    count, _, most = agreement.partition("/")
    return int(count) / int(most)


class Prepared(NamedTuple):
    """A task that is ready to be looked up or asked. `replicas`: the fingerprints of those that it has, if any."""

    fingerprint: bytes
    request: Request
    replicas: tuple[bytes, ...] = ()


class RowView:
    """One row as its stages see it: `results` is what its stages gave so far, by name, `forms` the row's fields after
    each stage that changed them, and at first by None; whoever settles a stage adds to them. A stage sees the results
    of the stages upstream of it, whichever others are there. `own` are names that only this kind of row has.

    `unknown` are the stages whose answers are not there yet, and the names that hang on those, by why the first of them
    has to be asked for: only `agac plan` knows of such."""

    __slots__ = ("_all", "_sees_all", "_vars", "forms", "own", "results", "unknown")

    def __init__(
        self, data: dict[str, JSONValue], variables: dict[str, JSONValue], sees_all: Collection[str] = ()
    ) -> None:
        self.forms: dict[str | None, dict[str, JSONValue]] = {None: data}
        self.results: dict[str, JSONValue] = {}
        self.own: dict[str, JSONValue] = {}
        self.unknown: dict[str, str] = {}
        self._vars, self._sees_all = variables, sees_all
        self._all = visible_row(data, self.results, variables)

    def child(self, further: Mapping[str, JSONValue], without: str | None = None) -> RowView:
        """A row made of this one: it sees what this one does, has further fields, and one of its fields less."""
        made = RowView({}, self._vars)
        for form, fields in self.forms.items():
            made.forms[form] = {**fields, **further}
            if without is not None:
                made.forms[form].pop(without, None)
        made.results = dict(self.results)
        if self.unknown:
            made.unknown = dict(self.unknown)
        return made

    def unknown_need(self, stage: Stage) -> str | None:
        """The first name that the stage cannot do without and that is not known yet: of a stage that it needs, or of
        the rows of its group."""
        if not self.unknown:
            return None
        return next((name for name in (*stage.needs, ROWS_JSON) if name in self.unknown), None)

    def is_decided(self, stage: Stage, names: Iterable[str]) -> bool:
        """Whether a condition of the stage that reads these names looks at nothing that is not known yet."""
        unknown = self.unknown
        return not unknown or not (stage.rows_of in unknown or any(name in unknown for name in names))

    def set_fields(self, stage: Stage, fields: dict[str, JSONValue]) -> None:
        """The row has these fields from the stage on."""
        self.forms[stage.name] = self.results[stage.name] = fields

    def mark_skipped(self, stage: Stage) -> None:
        """The stage was skipped: it has no result, and leaves the row as it is."""
        if not stage.asks:
            self.forms[stage.name] = self.data(stage)
        self.results[stage.name] = SKIPPED

    def data(self, stage: Stage) -> dict[str, JSONValue]:
        """The row's fields as the stage sees them."""
        return self.forms[stage.rows_of]

    def prompt_values(self, stage: Stage) -> VisibleRow:
        """What the stage may put into a prompt."""
        limits = stage.visibility
        if limits is None:
            if stage.name in self._sees_all:
                return self._all
            return visible_row(self.data(stage), {**self.known(stage), **self.own}, self._vars)
        data = {name: value for name, value in self.data(stage).items() if not limits.hides(name)}
        results = {name: value for name, value in self.known(stage).items() if name not in limits.never}
        return visible_row(data, {**results, **self.own}, self._vars)

    def guard_values(self, stage: Stage) -> dict[str, JSONValue]:
        """What the stage's guard looks at: everything, skipped results as null; `row` holds the fields once more."""
        known = {name: None if value is SKIPPED else value for name, value in self.known(stage).items()}
        data = self.data(stage)
        return {**data, **known, **self.own, VARS: self._vars, ROW: data}

    def function_input(self, stage: Stage) -> dict[str, JSONValue]:
        """What a function of the user's is given: the row's fields, and the results upstream by their stages' names."""
        known = {name: None if value is SKIPPED else value for name, value in self.known(stage).items()}
        return {**self.data(stage), **{name: value for name, value in known.items() if name not in self.forms}}

    def known(self, stage: Stage) -> dict[str, JSONValue]:
        """The results upstream of the stage that are there."""
        return {name: self.results[name] for name in stage.ancestors if name in self.results}


def followed(stages: Iterable[StageNode]) -> frozenset[str]:
    """The stages whose results others look at: those that see them, and groups that take them from their members."""
    return frozenset(name for stage in stages for name in (*stage.ancestors, *stage.needs))


def see_all(stages: Sequence[Stage]) -> frozenset[str]:
    """The stages that see the row as it came and have no other one beside them: every result that is there when they
    are prepared is upstream."""
    after = Counter(name for stage in stages for name in stage.ancestors)
    alone = (s for s in stages if len(s.ancestors) + after[s.name] == len(stages) - 1)
    return frozenset(stage.name for stage in alone if stage.rows_of is None)


class Preparer:
    """Renders the messages of one run's tasks. `run` is its number: part of the fingerprint under `reuse: never`."""

    def __init__(self, stages: tuple[AnyStage, ...], variables: Mapping[str, JSONValue], run: int) -> None:
        self._vars, self._run = dict(variables), run
        self._sees_all = see_all(stages)
        asking = {stage.index: stage for stage in stages if isinstance(stage, PlannedStage)}
        self._systems = {i: Message.of("system", s.system) if s.system else None for i, s in asking.items()}
        self._fixed = {i: _same_for_all(s.examples) for i, s in asking.items()}

    def view(self, data: dict[str, JSONValue] | None) -> RowView:
        """What there is to see of a row, before any stage has answered."""
        return RowView(data or {}, self._vars, self._sees_all)

    def prepare(self, stage: PlannedStage, view: RowView, row_id: RowId) -> Prepared | RowError:
        """The stage's request for a row, and what stands for it; or why none can be made."""
        visible = view.prompt_values(stage)
        try:
            text = stage.prompt.render(visible)
            examples = self._fixed[stage.index]
            if examples is None:
                examples = rendered(stage.examples, visible)
        except MissingField as missing:
            return RowError(
                ErrorType.MISSING_TEMPLATE_FIELD,
                f"stage {stage.name!r}: this row has no ${{{missing.name}}}; "
                f"visible are: {', '.join(missing.visible) or 'nothing'}",
            )
        system, user = self._systems[stage.index], Message.of("user", text)
        messages = (system, *examples, user) if system else (*examples, user)
        salt = "" if stage.reuse == "content" else reuse_salt(stage.reuse, row_id, self._run)
        request = Request(messages, stage.schema, stage.params)
        if stage.replicas == 1:
            return Prepared(stage.prints.fingerprint(messages, salt=salt), request)
        replicas = replica_prints(stage.prints, messages, salt, stage.replicas)
        return Prepared(replicas_fingerprint(replicas, stage.vote), request, replicas)


def rendered(examples: tuple[Example, ...], visible: Visible) -> tuple[Message, ...]:
    """The examples as messages. Raises MissingField."""
    return tuple(Message.of(one.role, one.content.render(visible)) for one in examples)


def _same_for_all(examples: tuple[Example, ...]) -> tuple[Message, ...] | None:
    """The messages of examples without placeholders, made once; None when each row has its own."""
    return None if any(one.content.placeholders for one in examples) else rendered(examples, {})


def reuse_salt(reuse: ReusePolicy, row_id: RowId, run: int) -> str:
    """What keeps equal requests apart: nothing for `content`, the row for `row`, the row in this run for `never`."""
    match reuse:
        case "content":
            return ""
        case "row":
            return json.dumps(row_id)
        case "never":
            return json.dumps([row_id, run])


def guards(stages: Sequence[AnyStage]) -> dict[int, Evaluator]:
    """The stages' guards, by position."""
    return {stage.index: Evaluator(stage.guard, stages=stage.ancestors) for stage in stages if stage.guard}


def filters(stages: Sequence[AnyStage]) -> dict[int, Evaluator]:
    """The conditions of stages that do nothing but filter, by position."""
    return {
        stage.index: Evaluator(stage.operation.guard, stages=stage.ancestors)
        for stage in stages
        if isinstance(stage, LocalStage) and isinstance(stage.operation, Filter)
    }
