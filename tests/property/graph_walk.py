"""What rows come to in a workflow of stages that form a graph: worked out without agac's code.

Level after level is walked, and of each row stage after stage, as if nothing went on at the same time. Where rows leave
in more than one branch, what is asked of them besides depends on which is first: `may` has it all, `must` what is
certain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from property.answering import Content

if TYPE_CHECKING:
    from property.graph_stages import Operator

Fields = dict[str, Any]


class Fails(Exception):
    """A stage fails for a row; `str()` is the type of the error. `asked` is what was refused."""

    def __init__(self, kind: str, asked: Content | None = None) -> None:
        super().__init__(kind)
        self.asked = asked


class Gives(NamedTuple):
    """What a stage gave for a row: a result, or the row's fields from there on; or the row leaves, or `rows` stand in
    its place."""

    result: Any = None
    asked: Content | None = None
    fields: Fields | None = None
    leaves: bool = False
    rows: list[Fields] | None = None


@dataclass(frozen=True)
class Seen:
    """What a stage sees of a row. A stage that was skipped has the result None."""

    fields: Fields
    results: Mapping[str, Any]

    def field(self, name: str, error: str) -> Any:
        """A field of the row, or the error of a stage that wants it."""
        if name not in self.fields:
            raise Fails(error)
        return self.fields[name]

    def at(self, path: Sequence[str]) -> Any:
        """What a path names: a result or a field, or what is in it; None where the stage was skipped."""
        value: Any = self.results if path[0] in self.results else self.fields
        for key in path:
            if value is not None or key == path[0]:
                if key not in value:
                    raise Fails("InvalidRow")
                value = value[key]
        return value


@dataclass(frozen=True)
class Eyes:
    """What is seen of a row: results upstream, and its fields after one that changed them."""

    ancestors: tuple[str, ...]
    rows_of: str | None


@dataclass
class Walker:
    """A row on its way. `states` are done, skipped, dropped or failed, of the stages that were begun on it; `lists` is
    what stands in its place. `order` says where it stands; `own` are names that only groups have."""

    id: Any
    origin: str | None
    order: tuple[int, ...]
    forms: dict[str | None, Fields]
    parent: Walker | None = None
    results: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Content] = field(default_factory=dict)
    lists: dict[str, list[Fields]] = field(default_factory=dict)
    own: Fields = field(default_factory=dict)
    made: dict[str, list[Walker]] = field(default_factory=dict)
    state: str = ""

    def known(self, name: str) -> str | None:
        """What became of a stage, of this row or of those that it was made of."""
        if name in self.states:
            return self.states[name]
        return self.parent.known(name) if self.parent else None

    def sees(self, stage: Eyes) -> Seen:
        results = {name: self.results[name] for name in stage.ancestors if name in self.results}
        return Seen(self.forms.get(stage.rows_of, {}), {**results, **self.own})

    def through(self, stage: Operator) -> None:
        """Takes the row through a stage, when all that this needs lets it."""
        if stage.makes != "groups" and not all(self.known(need) in ("done", "skipped") for need in stage.needs):
            return
        if self.lists.keys() & set(stage.needs):
            return
        seen = self.sees(stage.eyes)
        try:
            if not stage.lets_in(seen):
                self._ends(stage, "dropped" if stage.drops else "skipped", Gives(fields=seen.fields))
                return
            gives = stage.does(seen)
            self._ends(stage, "dropped" if gives.leaves else "done", gives)
        except Fails as failure:
            self.fails(stage, failure)

    def fails(self, stage: Operator, failure: Fails) -> None:
        self.states[stage.name], self.errors[stage.name] = "failed", str(failure)
        if failure.asked:
            self.asked[stage.name] = failure.asked

    def _ends(self, stage: Operator, state: str, gives: Gives) -> None:
        self.states[stage.name] = state
        if gives.asked:
            self.asked[stage.name] = gives.asked
        if gives.rows is not None:
            self.lists[stage.name] = gives.rows
            return
        self.results[stage.name] = gives.result
        self.forms[stage.name] = self.forms[stage.eyes.rows_of] if gives.fields is None else gives.fields

    def child(self, stage: Operator, place: int, further: Fields) -> Walker:
        """A row made of this one, which has further fields, for an item's list the item; of a function's row, these
        and no others."""
        gone = stage.path[0] if len(stage.path) == 1 and stage.path[0] not in stage.eyes.ancestors else None
        forms = {
            name: {key: value for key, value in {**form, **further}.items() if key != gone}
            for name, form in self.forms.items()
        }
        row_id = self.id if stage.makes == "kept" else f"{self.id}/{place}"
        made = Walker(row_id, stage.name, (*self.order, place), forms, self, dict(self.results))
        if stage.makes == "rows":
            made.forms = {**self.forms, stage.name: further}
            made.results[stage.name] = further
        if stage.makes == "kept":
            made.forms[stage.name], made.results[stage.name] = made.forms[stage.eyes.rows_of], None
        self.made.setdefault(stage.name, []).append(made)
        return made


@dataclass(frozen=True)
class Came:
    """What a row came to; `origin` is the stage that made it.

    `at` are the stages at which it may have left, or the one that failed; `must` and `may` are what is asked about it,
    `asked` is that by stage.
    """

    id: Any
    origin: str | None
    state: str
    result: Any = None
    error: str | None = None
    at: tuple[str, ...] = ()
    must: frozenset[Content] = frozenset()
    may: frozenset[Content] = frozenset()
    asked: tuple[tuple[str, Content], ...] = ()
    states: tuple[tuple[str, str], ...] = ()


class Outcome(NamedTuple):
    """What became of all rows, and of those that are written, in order."""

    rows: list[Came]
    lines: list[Came]

    @property
    def failed(self) -> list[Came]:
        """The rows that failed."""
        return [row for row in self.rows if row.state == "failed"]


class Levels:
    """Which rows walk through which stages. `home` is what made the rows that a stage gives results to, `base` what
    made those that it begins with, `after` those that go on; `line` is the descent of rows that something made."""

    def __init__(self) -> None:
        self.home: dict[str | None, str | None] = {}
        self.base: dict[str, str | None] = {}
        self.after: dict[str, str | None] = {}
        self.line: dict[str | None, tuple[str | None, ...]] = {None: (None,)}
        self.functions: dict[str, set[str]] = {}

    def fits(self, needs: Sequence[str]) -> bool:
        """Whether there is a row that has all that these stages give."""
        lines = [self.line[self.after[need]] for need in needs]
        return all(self.after[need] in max(lines, key=len) for need in needs)

    def add(self, stage: Operator, makers: Mapping[str, str | None]) -> None:
        name = stage.name
        base = max((self.after[need] for need in stage.needs), key=lambda one: len(self.line[one]), default=None)
        self.base[name] = base
        self.home[name] = name if stage.makes in ("items", "groups") else base
        self.after[name] = name if stage.makes in ("items", "groups", "kept") else base
        if self.after[name] == name:
            self.line[name] = (name,) if stage.makes == "groups" else (*self.line[base], name)
        self.functions[name] = {need for need in stage.needs if makers[need] == "rows"}.union(
            *(self.functions[need] for need in stage.needs)
        )


class Walk:
    """All rows, through all stages."""

    def __init__(self, stages: Sequence[Operator], ends: Sequence[str], written: str | None) -> None:
        """`stages` are in the order in which a row meets them; the results of `ends` are written, of the rows that the
        stage `written` made."""
        self.stages, self.ends, self.written = {stage.name: stage for stage in stages}, ends, written
        self.levels = Levels()
        for stage in stages:
            self.levels.add(stage, {one.name: one.makes for one in stages})
        self.path = [name for name in self.levels.line[written] if name]
        written_ = [*ends, *([written] if written else [])]
        self.leading = set(ends).union(*(self.levels.functions[name] for name in written_))
        self.waiting: dict[str | None, list[Walker]] = {None: [], **{name: [] for name in self.stages}}
        self.failed: dict[str, list[list[Any]]] = {name: [] for name in self.stages}
        self.all: list[Walker] = []

    def __call__(self, rows: Iterable[tuple[str, Fields]]) -> Outcome:
        inputs = [Walker(row_id, None, (place,), {None: fields}) for place, (row_id, fields) in enumerate(rows)]
        self.waiting[None] = inputs
        for origin in (None, *(name for name, stage in self.stages.items() if stage.makes)):
            self._level(origin)
        tops = inputs
        if self.path and self.stages[self.path[0]].makes == "groups":
            tops = sorted(self.waiting[self.path.pop(0)], key=lambda one: _by_id(one.id))
        lines = [self._came(walker) for top in tops for walker in self._below(top, 0)]
        return Outcome([self._came(walker) for walker in self.all], lines)

    # level by level

    def _level(self, origin: str | None) -> None:
        maker = self.stages[origin] if origin else None
        if maker and maker.makes == "kept":
            self._keep(maker)
        if maker and maker.makes == "groups":
            self._group(maker)
        levels = self.levels
        own = [stage for name, stage in self.stages.items() if stage.makes != "kept" and levels.home[name] == origin]
        if self._is_function(origin):
            home = levels.home[origin]
            own = [s for n, s in self.stages.items() if s.makes != "kept" and levels.home[n] == home]
            own = [stage for stage in own if origin in levels.functions[stage.name]]
        for walker in self.waiting[origin]:
            self.all.append(walker)
            for stage in own:
                if stage.name not in walker.states:
                    walker.through(stage)
            self._settle(walker, own)

    def _is_function(self, origin: str | None) -> bool:
        return origin is not None and self.stages[origin].makes == "rows"

    def _settle(self, walker: Walker, own: Sequence[Operator]) -> None:
        """What a row came to, and what is made of it."""
        if "dropped" in walker.states.values():
            walker.state = "dropped"
            return
        makers = self._makers(walker.origin)
        if "failed" not in walker.states.values():
            self._make(walker, makers)
        if "failed" in walker.states.values():
            walker.state = "failed"
            walker.made.clear()
            self._lacking(walker, makers)
            return
        ends = [stage.name for stage in own if stage.name in self.ends and stage.name in walker.states]
        if self._is_written(walker):
            ends = list(self.ends)
        through = walker.lists.keys() & self.leading or not ends or any(walker.known(end) != "skipped" for end in ends)
        walker.state = "done" if through else "skipped"

    def _is_written(self, walker: Walker) -> bool:
        """Whether it has a line, if nothing stands in its place."""
        home = self.levels.home[walker.origin] if self._is_function(walker.origin) else walker.origin
        return home == self.written

    def _makers(self, origin: str | None) -> list[Operator]:
        levels, makers = self.levels, [(n, s) for n, s in self.stages.items() if s.makes not in (None, "rows")]
        if self._is_function(origin):
            assert origin is not None
            at = levels.home[origin]
            return [s for n, s in makers if levels.base[n] == at and origin in levels.functions[n]]
        return [s for n, s in makers if levels.base[n] == origin]

    def _make(self, walker: Walker, makers: Sequence[Operator]) -> None:
        """Makes rows of a row that went through; it fails where it is not fit for that."""
        made: list[tuple[Operator, list[Fields]]] = [(self.stages[name], rows) for name, rows in walker.lists.items()]
        alike: list[Operator] = []
        for maker in makers:
            if walker.lists.keys() & self.levels.functions[maker.name]:
                continue
            try:
                seen = walker.sees(maker.eyes)
                if maker.makes == "items":
                    items = seen.at(maker.path)
                    if not isinstance(items, list) and items is not None:
                        raise Fails("InvalidRow")
                    made.append((maker, [{"item": item, "index": place} for place, item in enumerate(items or [])]))
                else:
                    self._alike(walker, maker)
                    alike.append(maker)
            except Fails as failure:
                walker.fails(maker, failure)
                return
        for maker, rows in made:
            self.waiting[maker.name] += [walker.child(maker, place, row) for place, row in enumerate(rows)]
        for maker in alike:
            self.waiting[maker.name].append(walker)

    def _alike(self, walker: Walker, maker: Operator) -> list[Any]:
        return maker.alike(walker.sees(maker.member))

    def _lacking(self, walker: Walker, makers: Sequence[Operator]) -> None:
        """Groups know of members that failed, where it is known which groups these are."""
        for maker in makers:
            if maker.makes == "groups":
                try:
                    self.failed[maker.name].append(self._alike(walker, maker))
                except Fails:
                    continue

    def _keep(self, maker: Operator) -> None:
        """Of rows that are alike the first one goes on."""
        first: set[str] = set()
        goes_on = []
        for walker in sorted(self.waiting[maker.name], key=lambda one: one.order):
            value = json.dumps(self._alike(walker, maker), sort_keys=True)
            walker.states[maker.name] = "dropped" if value in first else "done"
            if value in first:
                walker.state = "dropped"
            else:
                goes_on.append(walker.child(maker, 0, {}))
            first.add(value)
        self.waiting[maker.name] = goes_on

    def _group(self, maker: Operator) -> None:
        """Makes the groups; a member that failed is counted where it is known in which."""
        members: dict[str, list[Walker]] = {}
        values: dict[str, list[Any]] = {}
        failed: Counter[str] = Counter()
        for walker in sorted(self.waiting[maker.name], key=lambda one: _by_id(one.id)):
            own = self._alike(walker, maker)
            values[json.dumps(own)] = own
            members.setdefault(json.dumps(own), []).append(walker)
        for own in self.failed[maker.name]:
            values[json.dumps(own)] = own
            failed[json.dumps(own)] += 1
        self.waiting[maker.name] = []
        for key, own in values.items():
            group = Walker(_group_id(own), maker.name, (0,), {None: maker.group(own)})
            rows = [maker.brought(walker.sees(maker.member)) for walker in members.get(key, [])]
            group.own = {"rows": rows, "rows_json": compact(rows), "rows_count": len(rows), "rows_failed": failed[key]}
            if not rows or maker.refuses(failed[key]):
                group.fails(maker, Fails("InvalidRow"))
            self.waiting[maker.name].append(group)

    # what is written

    def _below(self, walker: Walker, depth: int) -> Iterable[Walker]:
        """The rows that are written of one, in order; where it failed, it itself."""
        if walker.state == "failed":
            yield walker
        if walker.state in ("failed", "dropped"):
            return
        for name in walker.lists.keys() & self.leading:
            for child in walker.made.get(name, []):
                yield from self._below(child, depth)
            return
        if depth == len(self.path):
            yield walker
            return
        for child in walker.made.get(self.path[depth], []):
            yield from self._below(child, depth + 1)

    def _came(self, walker: Walker) -> Came:
        asked, states = frozenset(walker.asked.values()), tuple(walker.states.items())
        came = Came(
            walker.id, walker.origin, walker.state, must=asked, may=asked, asked=tuple(walker.asked.items()),
            states=states,
        )  # fmt: skip
        if walker.state == "dropped":
            left = [stage for name, stage in self.stages.items() if walker.states.get(name) == "dropped"]
            certain = set.intersection(*({*stage.eyes.ancestors, stage.name} for stage in left))
            must = frozenset(content for name, content in walker.asked.items() if name in certain)
            return replace(came, at=tuple(stage.name for stage in left), must=must)
        if walker.state == "failed":
            failed = next(name for name in self.stages if walker.states.get(name) == "failed")
            return replace(came, error=walker.errors[failed], at=(failed,))
        replaced = walker.lists.keys() & self.leading
        if walker.state == "skipped" or replaced or not self._is_written(walker):
            return came
        written = {end: self._written(walker, end) for end in self.ends}
        return replace(came, result=written if len(self.ends) > 1 else written[self.ends[0]])

    def _written(self, walker: Walker, end: str) -> Any:
        if walker.known(end) == "skipped":
            return None
        return self.stages[end].written(walker.forms[end], walker.results[end])


def _group_id(values: list[Any]) -> Any:
    """Texts and whole numbers stand for themselves, all else is JSON."""
    if not values:
        return "all"
    if len(values) == 1 and (isinstance(values[0], str) or type(values[0]) is int):
        return values[0]
    return json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _by_id(row_id: Any) -> Any:
    if isinstance(row_id, int):
        return ((0, row_id, ""),)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in row_id.split("/"))


def compact(value: Any) -> str:
    """A value as prompts have it: texts as they are, what was skipped as nothing, all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
